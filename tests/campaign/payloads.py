"""Payloads: code hidden in weights, configurations, arrays, tables and names. None is ever run, whatever ends how."""

import io
import json
import pickle
import shutil
import zipfile
from functools import partial

import numpy as np
import pandas as pd
import tiny
import torch
from program import Program
from safetensors.torch import load_file

from campaign.cases import Case

FEWEST = {
    "weights": 12,
    "configuration": 12,
    "arrays": 8,
    "corpora": 8,
    "runs": 4,
    "names": 8,
}
RUN = "measure {model} -c {text} --panel hidden --sample 0 --max-length 12 -o {new}"


class Payload:
    """What makes the file `mark` where it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return open, (self.mark, "w")


def code(mark):
    return f"open({str(mark)!r}, 'w').close()\n"


# ---- weights ---------------------------------------------------------------------------------------------------------


def weights(mark, model):
    """{name: what is done to a folder of a model}."""
    state = load_file(model / "model.safetensors")
    hostile = {**state, "x": Payload(mark)}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Payload(mark)))
    made = {
        "pickled": pickle.dumps(Payload(mark)),
        "pickled, old protocol": pickle.dumps(Payload(mark), protocol=0),
        "zip": archive.getvalue(),
    }
    for legacy in (False, True):
        buffer = io.BytesIO()
        torch.save(hostile, buffer, _use_new_zipfile_serialization=not legacy)
        made["torch, legacy" if legacy else "torch"] = buffer.getvalue()
    whole = io.BytesIO()
    torch.save(Payload(mark), whole)
    made["torch, no dictionary"] = whole.getvalue()
    for name in (
        "pytorch_model.bin",
        "model.pt",
        "model.safetensors",
        "pytorch_model.ckpt",
    ):
        for how, content in made.items():
            yield f"{how} in {name}", {name: content}, name != "model.safetensors"
    index = {"metadata": {}, "weight_map": dict.fromkeys(state, "../../outside.bin")}
    yield (
        "an index that leads outside",
        {"model.safetensors.index.json": json.dumps(index).encode()},
        True,
    )
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        yield f"beside the weights, {name}", {name: pickle.dumps(Payload(mark))}, False


def configurations(mark, model):
    """Configurations that name code, their own or somebody's."""
    config = json.loads((model / "config.json").read_text())
    tokens = json.loads((model / "tokenizer_config.json").read_text())
    own = {
        "own.py": code(mark).encode(),
        "__init__.py": code(mark).encode(),
        "modeling_own.py": code(mark).encode(),
    }

    def changed(of_tokens=None, **of_config):
        files = {
            "config.json": config | of_config,
            "tokenizer_config.json": tokens | (of_tokens or {}),
        }
        return own | {
            name: json.dumps(content).encode() for name, content in files.items()
        }

    maps = (
        "AutoConfig",
        "AutoModel",
        "AutoModelForSequenceClassification",
        "AutoTokenizer",
        "AutoProcessor",
    )
    for name in maps:
        for place in (
            "own.Own",
            "modeling_own.Own",
            "someone/else--own.Own",
            "../own.Own",
            "os.system",
        ):
            yield f"auto_map {name} {place}", changed(auto_map={name: place})
    for place in ("own.Own", ["own.Own", "own.Own"], "os.system"):
        yield (
            f"auto_map of the tokenizer {place}",
            changed({"auto_map": {"AutoTokenizer": place}}),
        )
    yield "model_type of a path", changed(model_type="../own")
    yield "architectures of code", changed(architectures=["own.Own", "os.system"])
    yield "tokenizer_class of code", changed({"tokenizer_class": "own.Own"})
    yield (
        "a template",
        changed({"chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}),
    )
    yield "attention of code", changed(_attn_implementation="someone/else:own")
    yield (
        "custom_generate",
        changed() | {"custom_generate/generate.py": code(mark).encode()},
    )
    yield (
        "setup.py",
        changed()
        | {"setup.py": code(mark).encode(), "conftest.py": code(mark).encode()},
    )
    yield (
        "an adapter of code",
        changed()
        | {
            "adapter_config.json": json.dumps(
                {"peft_type": "LORA", "base_model_name_or_path": "../own"}
            ).encode()
        },
    )
    yield (
        "a timm model of code",
        own | {"config.json": json.dumps({"architecture": "os.system"}).encode()},
    )
    yield (
        "quantised by code",
        changed(quantization_config={"quant_method": "own", "modules": "os.system"}),
    )


def check_model(program, made, files, gone, mark, own):
    """A folder of a model with files changed, measured: nothing is run, and the end is a clear one."""
    folder = shutil.copytree(made["model"], own / "model")
    if gone:
        (folder / "model.safetensors").unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    ended = program(
        RUN.format(model=folder, text=made["text"], new=own / "new").split(),
        HF_HUB_OFFLINE="1",
    )
    check_end(ended, mark)


def check_end(ended, mark):
    """No code was run; the command is done, or says in a line why not."""
    assert not mark.exists(), "the payload was run"
    assert "Traceback" not in ended.shown and "this is a bug" not in ended.shown, (
        ended.shown[-3000:]
    )
    assert ended.code in (0, 2, 3, 4, 5, 6), (ended.code, ended.shown[-2000:])
    assert ended.code == 0 or "anisoscope: " in ended.shown, ended.shown[-2000:]


# ---- data ------------------------------------------------------------------------------------------------------------


def arrays(mark):
    """{ending: bytes} of files of vectors that hold objects."""
    objects = np.array([[Payload(mark)] * 2] * 3, dtype=object)
    plain, several = io.BytesIO(), io.BytesIO()
    np.save(plain, objects, allow_pickle=True)
    np.savez(several, a=objects, b=np.ones((3, 2)))
    yield "objects", "npy", plain.getvalue()
    yield "objects", "npz", several.getvalue()
    header = b"{'descr': __import__('os').system('true') or '<f8', 'fortran_order': False, 'shape': (1, 1), }"
    long = header + b" " * (117 - len(header) % 64) + b"\n"
    yield (
        "a header of code",
        "npy",
        b"\x93NUMPY\x01\x00" + len(long).to_bytes(2, "little") + long + bytes(8),
    )
    for ending in ("npy", "npz", "safetensors", "parquet", "csv", "pt"):
        yield "a pickle", ending, pickle.dumps(Payload(mark))
    table = pd.DataFrame({"a": [pickle.dumps(Payload(mark))] * 3})
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    yield "pickles as bytes", "parquet", buffer.getvalue()


def corpora(mark):
    """{name: files} of folders of text that hold code."""
    rows = "\n".join(
        json.dumps({"text": " ".join(tiny.WORDS)}) for _ in range(8)
    ).encode()
    loader = {
        "text.py": code(mark).encode(),
        "data.py": code(mark).encode(),
        "__init__.py": code(mark).encode(),
    }
    yield "a loading script", loader | {"data.jsonl": rows}
    yield "a script alone", loader
    card = b"---\ndataset_info: !!python/object/apply:os.system ['true']\nconfigs: [{data_files: '*.py'}]\n---\n"
    yield "a card of code", {"README.md": card, "data.jsonl": rows}
    yield (
        "dataset_infos",
        {
            "dataset_infos.json": b'{"x": {"builder_name": "text.py"}}',
            "data.jsonl": rows,
        }
        | loader,
    )
    yield "an Arrow file of pickles", {"data.arrow": pickle.dumps(Payload(mark))}
    yield "vectors of words", {"vectors.txt": pickle.dumps(Payload(mark))}
    yield "formulas", {"data.csv": b"text\n" + b"\"=cmd|'/c calc'!A0 w1 w2 w3\"\n" * 9}
    yield "a link outside", {"data.jsonl": rows, "link.txt": None}


def hostile_names():
    """Names with signs that a shell, a page, a path or a hub would take for more."""
    signs = (
        "<script>alert(1)</script>",
        "$(touch x)",
        "`touch x`",
        "; touch x",
        "a\nb",
        "%s%n",
        "{0.__class__}",
        "..",
    )
    return [
        f"w1 {sign} w2" if k % 2 else sign
        for k, sign in enumerate((*signs, "'\"><img src=x onerror=alert(1)>"))
    ]


def check_page(program, made, name, mark, own):
    """A label and a folder of that name: the page shows them as text."""
    rows = [
        {"text": f"w{k % 50} w{k * 7 % 60}", "label": (name, "other")[k % 2]}
        for k in range(60)
    ]
    (own / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    new = own / "".join(c for c in name if c not in "/\n\0")[:40].strip(". ")
    words = [
        "classes",
        made["model"],
        "-c",
        own / "t.jsonl",
        "--split",
        "all",
        "--parts",
        "directions",
        "-o",
        new,
    ]
    ended = program(words, HF_HUB_OFFLINE="1")
    check_end(ended, mark)
    for page in own.rglob("report.html"):
        text = page.read_text()
        assert "<script>alert" not in text and "<img src=x" not in text, (
            "a name became part of the page"
        )
    assert not list(own.rglob("x")), "a shell ran the name"


def check_data(program, typed, files, mark, own):
    folder = own / "data"
    folder.mkdir()
    for name, content in files.items():
        if content is None:
            (folder / name).symlink_to("/etc/hostname")
        else:
            (folder / name).write_bytes(content)
    ended = program(
        [str(word).format(data=folder, new=own / "new") for word in typed],
        HF_HUB_OFFLINE="1",
    )
    check_end(ended, mark)


def check_run(program, made, name, content, mark, own):
    """A run folder of somebody else's, one file of which is a payload: reported, compared, merged, resumed."""
    run = shutil.copytree(made["run"], own / "run")
    (run / name).write_bytes(content)
    for typed in (
        "report {run}",
        "compare {run} {other}",
        "merge {run} {other} -o {new}",
    ):
        ended = program(
            typed.format(run=run, other=made["run"], new=own / "merged").split()
        )
        check_end(ended, mark)


def cases(draw, folder):
    """All of them, in an order of its own."""
    tiny.series(folder)
    mark = folder / "executed"
    made = {
        "text": folder / "text.jsonl",
        "model": folder / "checkpoints" / "seed-0" / "step-10",
    }
    with Program() as program:
        made["run"] = folder / "run"
        assert program(RUN.format(**made, new=made["run"]).split()).code == 0
        found = [
            Case(
                "weights", name, partial(check_model, program, made, files, gone, mark)
            )
            for name, files, gone in weights(mark, made["model"])
        ]
        found += [
            Case(
                "configuration",
                name,
                partial(check_model, program, made, files, False, mark),
            )
            for name, files in configurations(mark, made["model"])
        ]
        for name, ending, content in arrays(mark):
            typed = ["measure", f"{{data}}/x.{ending}", "-o", "{new}"]
            found.append(
                Case(
                    "arrays",
                    name,
                    partial(check_data, program, typed, {f"x.{ending}": content}, mark),
                )
            )
        for name, files in corpora(mark):
            typed = [
                "measure",
                made["model"],
                "-c",
                "{data}",
                "--panel",
                "hidden",
                "-o",
                "{new}",
            ]
            found.append(
                Case("corpora", name, partial(check_data, program, typed, files, mark))
            )
        files = (
            "manifest.json",
            "identity.json",
            "records.parquet",
            "sums.safetensors",
            "reservoir.safetensors",
        )
        for name in files:
            found.append(
                Case(
                    "runs",
                    name,
                    partial(
                        check_run,
                        program,
                        made,
                        name,
                        pickle.dumps(Payload(mark)),
                        mark,
                    ),
                )
            )
        for name in hostile_names():
            found.append(
                Case("names", name, partial(check_page, program, made, name, mark))
            )
        yield from draw.sample(found, len(found))
