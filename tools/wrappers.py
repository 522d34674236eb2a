"""What large models wear, each with every panel: are the numbers those of the bare model?

    python tools/wrappers.py                 # all whose library is installed: writes tools/wrappers.json
    python tools/wrappers.py lora ddp        # these, on the screen

The model is a tiny Llama. If a wrapper leaves its numbers as they are, records are held against those of the bare
model. If it changes them (8 bits, adapters), they are held against those of a bare model whose linear layers give back
what the wrapped ones gave without any capture. It ends with 1 if anything is wrong or crashes.
"""

import argparse
import copy
import json
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
import torch
from pages import table_row
from torch import nn

KEPT = Path(__file__).with_suffix(".json")
PANELS = ("hidden", "spectrum", "attention", "alignment", "extremes", "floor")
COLUMNS = (*PANELS, "Monitor")
CLOSE = 1e-5
"""Largest difference of a value, as a share of 1 or of the value, whichever is larger; all is in float32."""
KEYS = ["stack", "kind", "layer", "head", "site", "token_policy", "metric", "component"]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
}
HEADS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
Make = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Wrapper:
    """Something that a model may be wrapped in.

    title      what it is, in a user's words
    make       wraps the bare model
    library    what has to be installed
    processes  how many it is tried with
    changes    whether it changes the numbers of the model
    """

    title: str
    make: Make
    library: str = "torch"
    processes: int = 1
    changes: bool = False


def bare_model() -> nn.Module:
    """The tiny Llama, the same each time; no weight is constant."""
    transformers: Any = import_module("transformers")
    torch.manual_seed(7)
    model: nn.Module = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, **HEADS)
    )
    for parameter in model.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def batches() -> list[dict[str, torch.Tensor]]:
    """Batches of different lengths, each padded."""
    made = []
    draw = torch.Generator().manual_seed(1)
    for length in (6, 9, 12):
        mask = torch.arange(length) < torch.tensor([length, length - 2])[:, None]
        ids = torch.randint(5, 60, (2, length), generator=draw) * mask
        made.append({"input_ids": ids, "attention_mask": mask.long()})
    return made


# ---- the wrappers


def _fsdp2(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def _fsdp1(model: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def _tensor_parallel(_model: Any) -> Any:
    make: Any = import_module("transformers.distributed").DistributedConfig
    how = make(tp_size=torch.distributed.get_world_size(), tp_plan="auto")
    return _loaded(distributed_config=how)


def _torch_int8(model: Any) -> Any:
    quantize: Any = torch.ao.quantization.quantize_dynamic
    return quantize(model, {nn.Linear}, dtype=torch.qint8)


def _torchao(kind: str) -> Make:
    def make(model: Any) -> Any:
        quantization = import_module("torchao.quantization")
        quantization.quantize_(model, getattr(quantization, kind)())
        return model

    return make


def _bitsandbytes(**how: Any) -> Make:
    def make(_model: Any) -> Any:
        config = import_module("transformers").BitsAndBytesConfig(**how)
        return _loaded(quantization_config=config, device_map="cpu")

    return make


def _cpu_offload(model: Any) -> Any:
    accelerate = import_module("accelerate")
    return accelerate.cpu_offload(model, execution_device=torch.device("cpu"))


def _disk_offload(model: Any) -> Any:
    accelerate = import_module("accelerate")
    folder = tempfile.mkdtemp(prefix="offload-")
    return accelerate.disk_offload(model, folder, execution_device=torch.device("cpu"))


def _accelerate(model: Any) -> Any:
    accelerate = import_module("accelerate")
    return accelerate.Accelerator(cpu=True).prepare_model(model)


def _accelerate_fsdp2(model: Any) -> Any:
    accelerate = import_module("accelerate")
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    )
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)
    optimizer = torch.optim.SGD(model.parameters())
    return accelerator.prepare(model, optimizer)[0]


def _deepspeed(model: Any) -> Any:
    deepspeed = import_module("deepspeed")
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29517",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    os.environ.update({"DS_ACCELERATOR": "cpu", **where})
    engine, *_ = deepspeed.initialize(
        model=model, config={"train_micro_batch_size_per_gpu": 2}
    )
    return engine


def _lightning(model: Any) -> Any:
    class Module(import_module("lightning").LightningModule):  # type: ignore[misc]
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, **inputs: Any) -> Any:
            return self.network(**inputs)

    return Module(model).eval()


def _fabric(model: Any) -> Any:
    return import_module("lightning").Fabric(accelerator="cpu", devices=1).setup(model)


def _lora(model: Any) -> Any:
    peft = import_module("peft")
    torch.manual_seed(3)
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"])
    )
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)
    return wrapped.eval()


def _compiled_in_place(model: Any) -> Any:
    model.compile()
    return model


WRAPPERS = {
    "plain": Wrapper("nothing", lambda model: model),
    "fsdp2": Wrapper("FSDP2 (`fully_shard`)", _fsdp2, processes=2),
    "fsdp1": Wrapper("FSDP1 (`FullyShardedDataParallel`)", _fsdp1, processes=2),
    "ddp": Wrapper(
        "`DistributedDataParallel`",
        lambda m: nn.parallel.DistributedDataParallel(m),
        processes=2,
    ),
    "tp": Wrapper(
        "tensor parallelism (`tp_plan` of transformers)",
        _tensor_parallel,
        "transformers",
        processes=2,
    ),
    "data_parallel": Wrapper("`DataParallel`", lambda model: nn.DataParallel(model)),
    "compile": Wrapper("`torch.compile(model)`", lambda model: torch.compile(model)),
    "compile_in_place": Wrapper("`model.compile()`", _compiled_in_place),
    "torch_int8": Wrapper(
        "int8 of torch (`quantize_dynamic`)", _torch_int8, changes=True
    ),
    "torchao_int8": Wrapper(
        "torchao int8 weights",
        _torchao("Int8WeightOnlyConfig"),
        "torchao",
        changes=True,
    ),
    "torchao_int8_both": Wrapper(
        "torchao int8 weights and activations",
        _torchao("Int8DynamicActivationInt8WeightConfig"),
        "torchao",
        changes=True,
    ),
    "torchao_fp8": Wrapper(
        "torchao fp8 weights",
        _torchao("Float8WeightOnlyConfig"),
        "torchao",
        changes=True,
    ),
    "bnb_int8": Wrapper(
        "bitsandbytes int8",
        _bitsandbytes(load_in_8bit=True),
        "bitsandbytes",
        changes=True,
    ),
    "bnb_nf4": Wrapper(
        "bitsandbytes 4 bits (nf4)",
        _bitsandbytes(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.float32,
        ),
        "bitsandbytes",
        changes=True,
    ),
    "cpu_offload": Wrapper(
        "weights offloaded to the CPU (Accelerate)", _cpu_offload, "accelerate"
    ),
    "disk_offload": Wrapper(
        "weights offloaded to the disk (Accelerate)", _disk_offload, "accelerate"
    ),
    "accelerate": Wrapper("`Accelerator.prepare`", _accelerate, "accelerate"),
    "accelerate_ddp": Wrapper(
        "`Accelerator.prepare`, DDP", _accelerate, "accelerate", processes=2
    ),
    "accelerate_fsdp2": Wrapper(
        "`Accelerator.prepare`, FSDP2", _accelerate_fsdp2, "accelerate", processes=2
    ),
    "deepspeed": Wrapper("engine of DeepSpeed", _deepspeed, "deepspeed"),
    "lightning": Wrapper("`LightningModule`", _lightning, "lightning"),
    "fabric": Wrapper("`Fabric.setup` of Lightning", _fabric, "lightning"),
    "lora": Wrapper("LoRA of PEFT", _lora, "peft", changes=True),
}


@contextmanager
def saved() -> Iterator[str]:
    """A folder with the bare model; in a job, of each process."""
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as folder:
        model: Any = bare_model()
        model.config.architectures = [type(model).__name__]
        model.config.to_json_file(f"{folder}/config.json")
        weights = {name: x.contiguous() for name, x in model.state_dict().items()}
        save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
        yield folder


def _loaded(**how: Any) -> Any:
    """The bare model as transformers loads it from a folder."""
    with saved() as folder:
        return (
            import_module("transformers")
            .AutoModelForCausalLM.from_pretrained(folder, **how)
            .eval()
        )


# ---- what is to come out


class Replay(nn.Module):
    """A linear layer that gives back what another one gave for inputs of the same shape."""

    def __init__(self, given: dict[Any, torch.Tensor], weight: Any) -> None:
        super().__init__()
        self.given = given
        self.weight = nn.Parameter(weight.float()) if weight is not None else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.given[tuple(x.shape[:2])]


def replaying(wrapped: nn.Module) -> nn.Module:
    """A bare model whose linear layers give what those of `wrapped` give, called without any capture."""
    model = bare_model()
    names = {
        name for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    outputs: dict[str, dict[Any, torch.Tensor]] = {name: {} for name in names}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: torch.Tensor) -> None:
            outputs[name][tuple(output.shape[:2])] = output.detach().clone().float()

        return hook

    handles = [_find(wrapped, name).register_forward_hook(keep(name)) for name in names]
    with torch.no_grad():
        for batch in batches():
            wrapped(**batch)
    for handle in handles:
        handle.remove()
    for name in names:
        parent, _, own = name.rpartition(".")
        weight: Any = getattr(_find(wrapped, name), "weight", None)
        is_plain = (
            type(weight) in (nn.Parameter, torch.Tensor)
            and weight.is_floating_point()
            and weight.dim() == 2
        )
        setattr(
            model.get_submodule(parent),
            own,
            Replay(outputs[name], weight if is_plain else None),
        )
    norms = {n: p for n, p in model.named_parameters() if "norm" in n or "embed" in n}
    for (
        name,
        parameter,
    ) in norms.items():  # a library may round what it does not quantise
        parameter.data = _find(wrapped, name.rpartition(".")[0]).weight.data.float()
    return model


def _find(wrapped: nn.Module, name: str) -> Any:
    """The module of the bare model's `name`, wherever the wrapper has it."""
    found = [
        (len(path), module)
        for path, module in wrapped.named_modules()
        if f".{path}".endswith(f".{name}")
    ]
    return min(found, key=lambda pair: pair[0])[1]


Result = tuple[str, Any]
"""("measured", (table, what the run says is left out)), or (refused or crashed, why)."""


def results(model: Any) -> dict[str, Result]:
    """What each panel, and a Monitor, make of a model."""
    import anisoscope
    from anisoscope.errors import AnisoscopeError

    def panel(name: str) -> tuple[pd.DataFrame, str]:
        run = anisoscope.measure(
            model, batches(), panel=name, tokens="all", groups=4, sample=64
        )
        said = [text for text in run.manifest["warnings"] if "not seen" in text]
        return run.records, "; ".join(said)

    def monitor(_name: str) -> tuple[pd.DataFrame, str]:
        values = anisoscope.Monitor(batches()).look(model, 1)
        return pd.DataFrame({"site": values.keys(), "value": values.values()}), ""

    made: dict[str, Result] = {}
    for name in COLUMNS:
        try:
            made[name] = "measured", (monitor if name == "Monitor" else panel)(name)
        except AnisoscopeError as error:
            made[name] = "refused", str(error)
        except Exception as error:
            traceback.print_exc()
            made[name] = (
                "crashed",
                f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
            )
    return made


def compared(found: Result, expected: Result) -> dict[str, Any]:
    """A cell of the table: `status` (right, left out, refused, wrong, crashed), `apart`, `why`."""
    status, value = found
    if status != "measured":
        return {"status": status, "why": value}
    records, said = value
    whole, _ = expected[1]
    keys = [key for key in KEYS if key in records]
    both = whole.merge(
        records, on=keys, suffixes=("", "_found"), how="outer", indicator=True
    )
    if said and "attention" in said:
        both = both[both["_merge"] == "both"]
    if not (both["_merge"] == "both").all():
        return {
            "status": "wrong",
            "why": f"{int((both['_merge'] != 'both').sum())} records of one alone",
        }
    apart = 0.0
    for name in ("value", "low", "high"):
        if name in whole:
            ours, theirs = (
                both[name].to_numpy(float),
                both[f"{name}_found"].to_numpy(float),
            )
            if (np.isnan(ours) != np.isnan(theirs)).any():
                return {"status": "wrong", "why": f"{name}: not a number in one alone"}
            difference = np.abs(ours - theirs) / np.maximum(1, np.abs(ours))
            apart = max(apart, float(np.nanmax(difference, initial=0.0)))
    if not apart <= CLOSE:
        return {"status": "wrong", "why": f"apart by {apart:.1e}"}
    return {
        "status": "left out" if said else "right",
        "apart": float(f"{apart:.1e}"),
        "why": said,
    }


def row_of(name: str) -> dict[str, Any]:
    """A row of the table: what became of a wrapper with each panel."""
    wrapper = WRAPPERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results")
        if wrapper.processes > 1:
            launcher = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(wrapper.processes),
            ]
            words = [sys.executable, *launcher, __file__, "--into", str(path), name]
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=300, check=False
            )
            if not path.exists():
                return {
                    "cells": {
                        column: {"status": "crashed", "why": done.stderr[-300:]}
                        for column in COLUMNS
                    }
                }
        else:
            look_at(name, path)
        expected, found = pickle.loads(path.read_bytes())
    if expected is None:
        expected = results(bare_model())
    cells = {column: compared(found[column], expected[column]) for column in COLUMNS}
    libraries = {
        library: version(library) for library in sorted({"torch", wrapper.library})
    }
    return {"cells": cells, "versions": libraries, "processes": wrapper.processes}


def look_at(name: str, path: Path) -> None:
    """Wrap a model, measure it, and write (what is to come out, what came out), pickled. In a job, in every process."""
    wrapper = WRAPPERS[name]
    model = wrapper.make(copy.deepcopy(bare_model()))
    expected = results(replaying(model)) if wrapper.changes else None
    found = results(model)
    if wrapper.processes == 1 or torch.distributed.get_rank() == 0:
        path.write_bytes(pickle.dumps((expected, found)))


def is_installed(name: str) -> bool:
    """Whether the library of a wrapper is here."""
    with suppress(ImportError, ValueError):
        return find_spec(WRAPPERS[name].library) is not None
    return False


# ---- the page


def page() -> str:
    """docs/wrappers.md."""
    kept = json.loads(KEPT.read_text("utf-8"))
    reasons: list[str] = []
    lines = [
        table_row(["wrapper", *COLUMNS, "tested with"]),
        table_row(["---"] * (len(COLUMNS) + 2)),
    ]
    for name, wrapper in WRAPPERS.items():
        row = kept.get(name)
        if row is None:
            lines.append(
                table_row([wrapper.title, *["not run"] * len(COLUMNS), wrapper.library])
            )
            continue
        shown = [_shown(row["cells"][column], reasons) for column in COLUMNS]
        libraries = ", ".join(
            f"{library} {number}" for library, number in row["versions"].items()
        )
        tried = libraries + (
            f"; {row['processes']} processes on Gloo" if row["processes"] > 1 else ""
        )
        lines.append(table_row([wrapper.title, *shown, tried]))
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    worst = max(
        cell.get("apart", 0) for row in kept.values() for cell in row["cells"].values()
    )
    return TEXT.format(
        table="\n".join(lines),
        notes="\n".join(notes),
        worst=f"{worst:.0e}",
        close=f"{CLOSE:.0e}",
    )


def _shown(cell: dict[str, Any], reasons: list[str]) -> str:
    if cell["status"] == "right":
        return "right"
    if cell["why"] not in reasons:
        reasons.append(cell["why"])
    return f"{cell['status']} ({reasons.index(cell['why']) + 1})"


TEXT = """# Wrapped models

Large models come in wrappers: sharded, quantised, compiled, offloaded, with adapters. Each row below is a wrapper, and each column a panel, or the `Monitor` that watches a training. Every cell
was run on a CPU with a tiny Llama (two layers, 8 heads that share 4 keys; `tools/wrappers.py`).

*right*: the records (values and intervals) differ from those of the bare model by less than {close}, absolutely or relative to the value. The largest difference
was {worst}. Some wrappers change the model's own numbers (8 bits, adapters). For these, we recorded the outputs of the wrapped
model's linear layers in a pass without measuring. Then the linear layers of the bare model were made to return the same outputs.

{table}

{notes}

A compiled model is measured without its compiled code. What only a GPU can run (fused kernels of fp8 and 4 bits, CUDA graphs, NCCL) was not
run. The panel `class` was not tested with wrappers.
"""  # noqa: E501


def main() -> int:
    """Run the wrappers that are named, or all; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("names", nargs="*", choices=[[], *WRAPPERS])
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.into is not None:
        torch.distributed.init_process_group("gloo")
        look_at(given.names[0], given.into)
        torch.distributed.destroy_process_group()
        return 0
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    failed = False
    for name in given.names or WRAPPERS:
        if not is_installed(name):
            sys.stdout.write(f"{name}: {WRAPPERS[name].library} is not installed\n")
            continue
        kept[name] = row = row_of(name)
        for column, cell in row["cells"].items():
            failed |= cell["status"] in ("wrong", "crashed")
            sys.stdout.write(
                f"{name} × {column}: {cell['status']} {cell.get('apart', '')} {cell.get('why', '')}\n"
            )
        sys.stdout.flush()
    if not given.names:
        ordered = {name: kept[name] for name in WRAPPERS if name in kept}
        KEPT.write_text(
            json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
