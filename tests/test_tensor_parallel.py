"""A model whose layers are cut into parts for several processes (tensor parallelism): all of them read the same
batches, and the records are those of one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from quick import WARM, quick
from test_in_step import KEYS, batches
from test_watched_fsdp import train
from torch import nn
from torch.nn import functional

import anisoscope
from anisoscope.errors import MeasureError

METRICS = (
    "mean_cosine",
    "drift",
    "query_key",
    "score_terms",
    "attention",
    "sinks",
    "massive",
    "partition",
)
METRICS = (*METRICS, "centred_attention")
SIZES = {
    "vocab_size": 60,
    "hidden_size": 48,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
}
HEADS = {
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
MOE = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
LATENT = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
OF_TRANSFORMERS = {
    "llama": {},
    "qwen3": {},  # norms of queries and keys
    "gpt_oss": MOE,  # sinks, one a head, and experts
    "deepseek_v3": LATENT
    | {"first_k_dense_replace": 2, "num_key_value_heads": 12, "head_dim": 4},
}
"""Model types of transformers, whose own plans are used, with what they need beside sizes."""
STEPS = 4
"""Of the training that is watched."""
LOADED = {"dtype": torch.float64, "experts_implementation": "eager"}


class Attention(nn.Module):
    """`kept`: keys and values that all heads share, whole in every process."""

    def __init__(self, kept):
        super().__init__()
        self.wq, self.wo = nn.Linear(48, 48), nn.Linear(48, 48)
        self.wk, self.wv = (nn.Linear(48, 8 if kept else 48) for _ in range(2))

    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (-1, 8)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        y = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return self.wo(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(48), Attention(kept)
        self.norm_2, self.w1, self.w2 = (
            nn.LayerNorm(48),
            nn.Linear(48, 96),
            nn.Linear(96, 48),
        )

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.w2(self.w1(self.norm_2(x)).relu())


class Plain(nn.Module):
    """A model of one's own."""

    def __init__(self, kept=False):
        super().__init__()
        self.embedding = nn.Embedding(60, 48)
        self.blocks = nn.ModuleList(Block(kept) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, 60)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cut(model, world, form):
    """Torch's own tensor parallelism. With `tokens`, what lies between attention and feed-forward layers is cut by
    tokens (sequence parallelism); with `kept`, keys and values stay whole; with `zeros`, all queries are 0.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (world,))
    between = Shard(1) if form == "tokens" else Replicate()
    columns = ColwiseParallel(input_layouts=between)
    plan = {
        "attention.wq": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=between),
    }
    if form != "kept":
        plan |= {"attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel()}
    plan |= {"w1": columns, "w2": RowwiseParallel(output_layouts=between)}
    if form == "tokens":
        given = PrepareModuleInput(
            input_layouts=(between,), desired_input_layouts=(Replicate(),)
        )
        plan |= {
            "norm_1": SequenceParallel(),
            "norm_2": SequenceParallel(),
            "attention": given,
        }
        ends = {
            "embedding": RowwiseParallel(
                input_layouts=Replicate(), output_layouts=between
            )
        }
        head = ColwiseParallel(input_layouts=between, output_layouts=Replicate())
        parallelize_module(
            model, mesh, {**ends, "norm": SequenceParallel(), "head": head}
        )
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def model_of(name, folder):
    """A model whole, in float64."""
    from transformers import AutoModelForCausalLM

    if name in OF_TRANSFORMERS:
        return AutoModelForCausalLM.from_pretrained(folder / name, **LOADED).eval()
    torch.manual_seed(0)
    model = Plain(kept=name == "kept").double().eval()
    if name == "zeros":
        for block in model.blocks:
            nn.init.zeros_(block.attention.wq.weight)
            nn.init.zeros_(block.attention.wq.bias)
    return model


PLAIN = ("columns", "tokens", "kept", "zeros")
MODELS = {2: (*OF_TRANSFORMERS, *PLAIN), 3: ("llama", "columns", "tokens")}
"""By the number of processes: all kinds over two; over three, which is not a power of two, one of each way to cut."""


def cut_model_of(name, folder, world):
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    if name not in OF_TRANSFORMERS:
        return cut(model_of(name, folder), world, name)
    how = DistributedConfig(tp_size=world, tp_plan="auto")
    return AutoModelForCausalLM.from_pretrained(
        folder / name, distributed_config=how, **LOADED
    ).eval()


def data(count):
    """Batches whose lengths 2 and 3 divide, without masks (which sequence parallelism has no place for)."""
    g = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(5, 60, (2, 6 * (i + 1)), generator=g)}
        for i in range(count)
    ]


def measured(name, model, count=2, **options):
    given = batches(count) if name in OF_TRANSFORMERS else data(count)
    metrics = (
        METRICS[:-1] if name == "zeros" else METRICS
    )  # of queries of 0, rounding alone would be compared
    blocks = () if name in OF_TRANSFORMERS else ("Block",)
    options |= {
        "metrics": metrics,
        "tokens": "all",
        "groups": 4,
        "sample": 0,
        "blocks": blocks,
    }
    return anisoscope.measure(model, given, **options)


def in_each_process(folder):
    """What every process of the job does."""
    import faulthandler

    import torch.distributed as dist

    faulthandler.dump_traceback_later(
        200, exit=True
    )  # a process that waits for ever is a failure
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    hashes = pd.read_json(folder / "weights.json", typ="series")
    for name in MODELS[world]:
        run = measured(name, cut_model_of(name, folder, world))
        run.records.to_parquet(folder / f"{name}-{rank}.parquet")
        assert run.manifest["processes"] == world
        assert run.manifest["weights_sha256"] == hashes[name], name
        assert not any("not seen" in warning for warning in run.manifest["warnings"])
        capture = run.manifest["capture"]
        assert capture["attention_compared"] == 2 and capture["attention_error"] < 1e-6
    model = cut_model_of("columns", folder, world)
    on_disk = measured("columns", model, output=folder / "run")
    assert (
        on_disk.manifest["plan"] == run.manifest["plan"] and len(on_disk.records) > 100
    )
    assert not [*(folder / "run").glob("*state*")]
    for given, why in (
        (data(2 if rank else 3), "batches"),
        (data(3)[rank:][:1], "inputs"),
    ):
        try:
            anisoscope.measure(
                model, given, metrics=("drift",), sample=0, blocks=("Block",)
            )
        except MeasureError as error:
            (folder / f"{why}-{rank}").write_text(str(error))
        dist.barrier()
    watch(folder, world, rank)
    dist.destroy_process_group()


def watch(folder, world, rank):
    """The same training twice, watched the second time."""
    unwatched = train(
        cut_model_of("llama", folder, world), lambda _model, _step: None, STEPS
    )
    monitor = anisoscope.Monitor(batches(2), every=10, output=folder / "looks")
    watched = train(cut_model_of("llama", folder, world), monitor, STEPS)
    pd.DataFrame({"unwatched": unwatched, "watched": watched}).to_csv(
        folder / f"losses-{rank}.csv", index=False
    )


def save_whole_models(folder):
    from transformers import AutoConfig, AutoModelForCausalLM

    for name, more in OF_TRANSFORMERS.items():
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **(SIZES | HEADS | more))
        model = AutoModelForCausalLM.from_config(config)
        if name == "gpt_oss":
            for layer in model.model.layers:
                nn.init.normal_(layer.self_attn.sinks)
        model.save_pretrained(folder / name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with the models whole; the runs of one process, by model; and the records of its watched training."""
    folder = tmp_path_factory.mktemp("whole")
    save_whole_models(folder)
    runs = {name: measured(name, model_of(name, folder)) for name in MODELS[2]}
    hashes = {name: run.manifest["weights_sha256"] for name, run in runs.items()}
    pd.Series(hashes).to_json(folder / "weights.json")
    monitor = anisoscope.Monitor(batches(2), every=10, output=folder / "looks")
    train(model_of("llama", folder), monitor, STEPS)
    return folder, runs, monitor.records


# two processes cut the same models in the same ways; three take part in `test_in_step.py`
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_records_are_those_of_one_process(world, whole, tmp_path):
    saved, alone, looks_alone = whole
    for name in (*OF_TRANSFORMERS, "weights.json"):
        (tmp_path / name).symlink_to(saved / name)
    launcher = [
        *quick(),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world),
        "--no-python",
    ]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    words = [*launcher, *quick(WARM), str(Path(__file__)), str(tmp_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=280, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in MODELS[world]:
        records = alone[name].records
        for rank in range(world):
            found = pd.read_parquet(tmp_path / f"{name}-{rank}.parquet")
            both = records.merge(
                found, on=KEYS, suffixes=("", "_parts"), validate="1:1"
            )
            assert len(both) == len(records) == len(found) > 100, name
            for column in ("value", "low", "high"):
                ours, theirs = (
                    both[column].to_numpy(float),
                    both[f"{column}_parts"].to_numpy(float),
                )
                assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6, nan_ok=True), (
                    name
                )
    for rank in range(world):
        assert (
            "the same batches in every process"
            in (tmp_path / f"batches-{rank}").read_text()
        )
        assert (
            "the same inputs in every process"
            in (tmp_path / f"inputs-{rank}").read_text()
        )
        losses = pd.read_csv(
            tmp_path / f"losses-{rank}.csv", float_precision="round_trip"
        )
        assert losses["watched"].tolist() == losses["unwatched"].tolist()
        assert losses["watched"].iloc[-1] < losses["watched"].iloc[0]
    found = anisoscope.Monitor(batches(2), every=10, output=tmp_path / "looks").records
    keys = [*found.columns.drop(["value", "low", "high"])]
    both = looks_alone.set_index(keys).join(found.set_index(keys), rsuffix="_parts")
    assert set(found["step"]) == set(looks_alone["step"]) == {1, 2, 4}
    assert both["value"].to_numpy() == pytest.approx(
        both["value_parts"].to_numpy(), abs=1e-5, nan_ok=True
    )


if __name__ == "__main__":
    in_each_process(Path(sys.argv[1]))
