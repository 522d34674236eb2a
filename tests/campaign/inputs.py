"""Inputs: files of every format, sound and damaged, names, patterns, options and commands typed at random.

A reader gives what was written, where the file is sound; where it is not, it gives something of the right kind or ends
with one of the house's errors: never with another exception, never with more than was there, never after a long time.
"""

import contextlib
import gzip
import io
import json
import math
import os
import shlex
import signal
import string
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import soundfile
import tiny
import torch
from cyclopts import CycloptsError
from PIL import Image
from program import Program
from rich.cells import cell_len
from safetensors.torch import save_file

import anisoscope
from anisoscope.cli.app import app, command_names
from anisoscope.cli.faults import explain_usage_error
from anisoscope.data.opening import open_labelled
from anisoscope.data.table_rows import read_table_rows
from anisoscope.data.text import open_text
from anisoscope.data.vector_files import open_vectors
from anisoscope.errors import AnisoscopeError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.models.series import expand
from anisoscope.models.vectors import word_vectors
from anisoscope.runs.job import Job
from anisoscope.store import RunFolder
from campaign.cases import Case

FEWEST = {
    "text": 1800,
    "labelled": 1200,
    "vectors": 1800,
    "tables": 800,
    "sound": 600,
    "images": 600,
    "word vectors": 600,
    "runs": 600,
    "names": 800,
    "options": 1200,
    "metric": 600,
    "terminal": 150,
    "pipe": 150,
}
"""More than 10,000 in this process, 300 through the program."""
SECONDS = 20
STRANGE = [
    "",
    " ",
    "\t",
    "é漢",
    "\u202e",
    "\ufeff",
    "\x00",
    "\x1b[31m",
    '"',
    "'",
    ",",
    "\\",
    "\r",
    "nan",
    "NaN",
    "None",
]
STRANGE += [
    "1e400",
    "-1",
    "0",
    "1_000",
    "9" * 30,
    "٣",
    "²",
    "inf",
    "../..",
    "~",
    "{0..3}",
    "*",
    "<b>",
    "a" * 5000,
    "%s",
]


def words(draw, most=12):
    return " ".join(draw.choice(tiny.WORDS) for _ in range(draw.randint(1, most)))


def damaged(draw, content):
    """Bytes of a file, damaged somehow or not at all: (bytes, whether they are as they were)."""
    how = draw.randrange(9)
    if how < 2 or not content:
        return content, True
    at = draw.randrange(len(content))
    changed = {
        2: content[:at],
        3: content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :],
        4: content[:at] + draw.randbytes(draw.randint(1, 40)) + content[at:],
        5: content[:at] + content[at + draw.randint(1, 40) :],
        6: content + draw.randbytes(draw.randint(1, 40)),
        7: draw.randbytes(len(content) % 500),
        8: content[:at]
        + draw.choice(STRANGE).encode("utf-8", "surrogatepass")
        + content[at:],
    }[how]
    return changed, changed == content


@contextlib.contextmanager
def limited():
    """An error where it takes longer than SECONDS, or asks for gigabytes; warnings are none."""

    def late(*_):
        raise AssertionError(f"it took more than {SECONDS} s")

    kept = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, kept)


def refused_or(read, sound, look):
    """What `read` gives is looked at; a house's error is an end too, but where the file is sound."""
    with limited():
        try:
            found = read()
        except AnisoscopeError as error:
            assert not sound, f"a sound file was refused: {error}"
            text = str(error)
            assert (
                text.startswith("expected ") and "; got " in text and len(text) < 6000
            ), text[:300]
            return
        with (
            contextlib.nullcontext() if sound else contextlib.suppress(AnisoscopeError)
        ):
            look(found)


# ---- files -----------------------------------------------------------------------------------------------------------


def written(draw, rows, ending):
    """A table of rows (dicts of text and numbers) as a file of that ending."""
    frame = pd.DataFrame(rows)
    if ending in ("jsonl", "jsonl.gz", "json"):
        text = (
            json.dumps(rows)
            if ending == "json"
            else "\n".join(map(json.dumps, rows)) + draw.choice(["", "\n"])
        )
    elif ending in ("csv", "tsv", "csv.gz"):
        text = frame.to_csv(index=False, sep="\t" if ending == "tsv" else ",")
    else:
        buffer = io.BytesIO()
        frame.to_parquet(buffer)
        return buffer.getvalue()
    return (
        gzip.compress(text.encode(), mtime=0)
        if ending.endswith(".gz")
        else text.encode()
    )


def check_text(draw, own):
    texts = [words(draw) for _ in range(draw.randint(1, 12))]
    ending = draw.choice(
        ["txt", "jsonl", "csv", "tsv", "parquet", "jsonl.gz", "txt.gz"]
    )
    if ending.startswith("txt"):
        content = "\n".join(texts).encode()
        content = gzip.compress(content, mtime=0) if ending.endswith("gz") else content
    else:
        content = written(draw, [{"text": text} for text in texts], ending)
    content, sound = damaged(draw, content)
    (own / f"t.{ending}").write_bytes(content)
    how = {"documents": "line"} if ending.startswith("txt") else {}

    def look(corpus):
        assert corpus.documents and all(
            isinstance(d, str) and d.strip() for d in corpus.documents
        )
        assert not sound or list(corpus.documents) == texts, corpus.documents

    refused_or(
        partial(
            open_text, str(own / f"t.{ending}"), **how, skip_bad=draw.random() < 0.3
        ),
        sound,
        look,
    )


def check_labelled(draw, own):
    rows = [
        {"text": words(draw), "label": draw.choice(["a", "b", "c"][: 2 + k % 2])}
        for k in range(40)
    ]
    ending = draw.choice(["jsonl", "csv", "tsv", "parquet"])
    content, sound = damaged(draw, written(draw, rows, ending))
    if draw.random() < 0.3:
        odd = {
            "text": words(draw),
            "label": draw.choice([None, "", -1, math.nan, "1e400", True, 3.5, [1], {}]),
        }
        with contextlib.suppress(Exception):  # what pandas itself cannot write
            content, sound = written(draw, [*rows[1:], odd], ending), False
    sound = (
        sound
        and min(
            sum(row["label"] == name for row in rows)
            for name in {r["label"] for r in rows}
        )
        >= 8
    )
    (own / f"t.{ending}").write_bytes(content)

    def look(corpus):
        examples = [e for split in corpus.splits.values() for e in split]
        assert len(corpus.labels) >= 2 and all(
            0 <= e.label < len(corpus.labels) and e.words for e in examples
        )
        if sound:
            got = sorted((" ".join(e.words), corpus.labels[e.label]) for e in examples)
            assert got == sorted((row["text"], row["label"]) for row in rows)

    refused_or(partial(open_labelled, str(own / f"t.{ending}")), sound, look)


def embeddings(draw, vectors, ending):
    """Vectors as JSON, in one of the shapes that services answer with."""
    key = draw.choice(["embedding", "vector", "values"])
    records = [
        {"id": f"{row}", key: vector, "index": row}
        for row, vector in enumerate(vectors)
    ]
    if ending == "jsonl":
        return "\n".join(
            json.dumps(record) for record in draw.choice([records, vectors])
        )
    nested = {
        "embeddings": {"float": vectors},
        "texts": [words(draw) for _ in vectors],
        "id": "a",
    }
    return json.dumps(
        draw.choice(
            [
                {"data": records, "model": "m"},
                {"embeddings": vectors},
                nested,
                records,
                vectors,
            ]
        )
    )


def write_frame(draw, frame, ending, buffer):
    """A table of vectors with an index, an id or a text beside them, or with none of these."""
    if draw.random() < 0.3:
        frame = frame.assign(id=[draw.randrange(10**6) for _ in range(len(frame))])
    if draw.random() < 0.3:
        frame = frame.assign(text=[words(draw) for _ in range(len(frame))])
    if ending == "parquet":
        frame.to_parquet(buffer)
    else:
        frame.to_csv(
            buffer,
            index=draw.random() < 0.5,
            sep="\t" if ending == "tsv" else draw.choice(",;"),
        )


def check_vectors(draw, own):
    rng = np.random.default_rng(draw.randrange(1 << 30))
    shape = tuple(draw.randint(1, 9) for _ in range(draw.choice([2, 2, 2, 3])))
    dtype = draw.choice(["<f4", "<f8", ">f4", "<f2"])
    endings = [
        "npy",
        "npz",
        "safetensors",
        "parquet",
        "csv",
        "tsv",
        "txt",
        "json",
        "jsonl",
        "pt",
    ]
    x, ending = rng.standard_normal(shape).astype(dtype), draw.choice(endings)
    buffer = io.BytesIO()
    if ending == "npy":
        np.save(buffer, np.asfortranarray(x) if draw.random() < 0.3 else x)
    elif ending == "npz":
        np.savez(buffer, layer0=x, layer1=x + 1)
    elif ending == "safetensors":
        save_file(
            {
                "layer0": torch.from_numpy(x.astype("f4")),
                "layer1": torch.ones(*x.shape),
            },
            own / "x.safetensors",
        )
        buffer.write((own / "x.safetensors").read_bytes())
    elif ending == "pt":
        torch.save(torch.from_numpy(x.astype("f4")), buffer)
    elif ending in ("json", "jsonl"):
        x = x.reshape(-1, shape[-1]).astype("f8")
        buffer.write(embeddings(draw, x.tolist(), ending).encode())
    elif ending == "txt":
        x = rng.standard_normal((shape[0] + 1, shape[-1] + 1))
        np.savetxt(buffer, x)
    else:
        x = rng.standard_normal((shape[0], shape[-1] + 1))
        frame = pd.DataFrame(x, columns=[f"d{k}" for k in range(shape[-1] + 1)])
        write_frame(draw, frame, ending, buffer)
    content, sound = damaged(draw, buffer.getvalue())
    (own / f"x.{ending}").write_bytes(content)

    def look(found):
        first = np.concatenate(
            [
                np.asarray(b, dtype="f8")
                for b in np.array_split(next(iter(found.layers.values())), 1)
            ]
        )
        assert first.ndim in (2, 3) and first.size
        assert not sound or np.allclose(first, x.astype("f8"), rtol=1e-6, atol=0), (
            "other numbers than were written"
        )

    refused_or(partial(open_vectors, own / f"x.{ending}"), sound, look)


def check_tables(draw, own):
    rows = [
        {"a": words(draw), "b": draw.randint(0, 9)} for _ in range(draw.randint(1, 9))
    ]
    ending = draw.choice(["jsonl", "csv", "tsv", "parquet", "jsonl.gz"])
    content, sound = damaged(draw, written(draw, rows, ending))
    (own / f"t.{ending}").write_bytes(content)

    def look(found):
        assert not sound or [row.columns["a"] for row in found if row.columns] == [
            row["a"] for row in rows
        ]

    refused_or(lambda: list(read_table_rows(own / f"t.{ending}")), sound, look)


def check_sound(draw, own):
    rate, frames = draw.choice([8000, 16000, 44100]), draw.randint(1, 3000)
    x = np.random.default_rng(frames).uniform(-0.9, 0.9, (frames, draw.choice([1, 2])))
    buffer, form = io.BytesIO(), draw.choice(["WAV", "FLAC", "OGG"])
    soundfile.write(buffer, x, rate, format=form)
    content, sound = damaged(draw, buffer.getvalue())
    (own / f"a.{form.lower()}").write_bytes(content)
    from anisoscope.data.speech import open_speech

    def look(corpus):
        assert len(corpus.items) == 1
        assert not sound or (corpus.infos[0].frames, corpus.infos[0].rate) == (
            frames,
            rate,
        ), corpus.infos

    refused_or(partial(open_speech, str(own)), sound, look)


def check_images(draw, own):
    from anisoscope.data.images import decode_picture, open_images

    size, mode = (
        (draw.randint(1, 40), draw.randint(1, 40)),
        draw.choice(["RGB", "L", "RGBA", "P", "1", "LA"]),
    )
    image = Image.fromarray(
        np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), np.uint8)
    )
    form = draw.choice(["PNG", "JPEG", "GIF", "BMP", "WEBP"])
    buffer = io.BytesIO()
    unheld = {"JPEG": ("RGBA", "P", "LA", "1"), "BMP": ("LA",)}.get(form, ())
    image.convert("RGB" if mode in unheld else mode).save(buffer, form)
    content, sound = damaged(draw, buffer.getvalue())
    (own / f"a.{form.lower()}").write_bytes(content)

    def look(corpus):
        assert len(corpus.items) == 1
        made = decode_picture(
            "a", (own / f"a.{form.lower()}").read_bytes()
        )  # only now all of it is decoded
        assert made.mode == "RGB" and (not sound or made.size == size)

    refused_or(partial(open_images, str(own)), sound, look)


def check_word_vectors(draw, own):
    d, known = draw.randint(1, 9), draw.sample(tiny.WORDS, 20)
    lines = [
        " ".join([word, *(f"{draw.gauss(0, 1):.4f}" for _ in range(d))])
        for word in known
    ]
    lines = [f"{len(lines)} {d}", *lines] if draw.random() < 0.3 else lines
    packed = draw.random() < 0.3
    content = "\n".join(lines).encode()
    content, sound = damaged(
        draw, gzip.compress(content, mtime=0) if packed else content
    )
    path = own / ("v.txt.gz" if packed else "v.txt")
    path.write_bytes(content)
    sound = sound and d > 1  # of one number a line may be a heading

    def look(found):
        matrix = np.asarray(found.matrix)
        assert np.isfinite(matrix).all() and matrix.ndim == 2
        assert not sound or matrix.shape[1] == d

    refused_or(
        partial(word_vectors, str(path), known[:10], ("<pad>", "<unk>")), sound, look
    )


def check_runs(made, draw, own):
    """A finished run, one file of it damaged: read as it was, or refused."""
    name = draw.choice(
        ["manifest.json", "identity.json", "records.parquet", "sums.safetensors"]
    )
    for path in made["shard"].iterdir():
        if path.is_file():
            (own / path.name).write_bytes(path.read_bytes())
    content, sound = damaged(draw, (own / name).read_bytes())
    (own / name).write_bytes(content)
    run = RunFolder(own)

    def read():
        identity = run.identity()
        kept = (
            Settings.read(run.manifest["settings"]["settings"])
            if sound
            else made["settings"]
        )
        return (
            run.records,
            Measurement.restore(run.sums_path, kept, made["plan"]),
            identity,
        )

    def look(found):
        assert not sound or found[0]["value"].equals(made["values"])

    refused_or(read, sound, look)


# ---- names and options -----------------------------------------------------------------------------------------------


def text_of(draw):
    """Text of any kind, strange parts among plain ones."""
    parts = [
        draw.choice(
            [
                *STRANGE,
                *tiny.WORDS,
                draw.choice(string.printable),
                str(draw.randint(-9, 99)),
            ]
        )
        for _ in "ab"
    ]
    return "".join(parts[: draw.randint(1, 2)])


def check_names(draw, own):
    """Patterns of checkpoints."""
    parts = [
        "step-",
        "{0..3}",
        "{0,1,…,4}",
        "{",
        "}",
        "..",
        ",",
        "…",
        "k",
        "@",
        "seed_",
        "*",
        "a/b",
        text_of(draw),
    ]
    spec = "".join(draw.choice(parts) for _ in range(draw.randint(1, 5)))

    def look(found):
        assert 0 < len(found) < 100_000 and all(c.subject for c in found)

    here = Path.cwd()
    os.chdir(own)
    try:
        refused_or(partial(expand, spec), False, look)
    finally:
        os.chdir(here)


def arguments_of(name):
    """What a command takes."""
    command = app
    for word in name.split():
        command = command[word]
    return [
        each
        for each in command.assemble_argument_collection()
        if each.parse and each.show and not each.children
    ]


COMMANDS = [name for name in command_names() if name != "train"]


def typed(draw, name, sensible=0.7):
    """Options of a command with values, sensible or not."""
    found, known = [], arguments_of(name)
    for argument in draw.sample(known, min(draw.randint(1, 4), len(known))):
        if argument.index is not None:
            found.append(draw.choice(["builtin:minilm", "synthetic", text_of(draw)]))
        else:
            flag = draw.choice(argument.names)
            value = str(
                draw.choice([0, 1, 2, 7, "all", "content", "float32", "0.1", "a,b"])
            )
            value = value if draw.random() < sensible else text_of(draw)
            found += [flag] if argument.token_count()[0] == 0 else [flag, value]
    return found


def check_options(draw, _own):
    """What is typed is made into settings, or refused by name, before anything is done."""
    name = draw.choice(COMMANDS)
    given = typed(draw, name)
    try:
        app.parse_args([*name.split(), *given])
    except CycloptsError as error:
        told = explain_usage_error(error)
        assert told.expected and told.got, f"{name} {given}: {error!r}"
    except AnisoscopeError:
        pass
    fields = {
        "limit": draw.choice([1, 5, 0, -1, True, 2.5, "3", None]),
        "dtype": draw.choice(["float32", "x", None, 3]),
    }
    fields |= {"max_length": draw.choice([1, 8, -2, math.nan, 1 << 70])}
    with contextlib.suppress(AnisoscopeError):
        job = Job(**fields)
        assert job.limit is None or (type(job.limit) is int and job.limit >= 1), job
        assert job.max_length is None or (
            type(job.max_length) is int and 1 <= job.max_length < 1 << 63
        ), job


def check_metric(draw, _own):
    """Things given to one metric: measured, or refused in the house's words."""
    made = [
        np.ones((3, 2)),
        np.zeros((0, 3)),
        torch.ones(2, 3, 4),
        [[1.0, 2.0]],
        None,
        "x",
        np.array([["a"]]),
        3.0,
    ]
    made += [
        np.full((4, 2), np.nan),
        torch.ones(3, 2, dtype=torch.int32),
        np.ones((2, 2), complex),
        np.ones(5),
        {},
    ]
    made += [
        np.random.default_rng(0).normal(size=(6, 3)),
        torch.randn(2, 5, 3).bfloat16(),
        np.ones((2, 3, 4, 5)),
    ]
    masks = [
        None,
        np.ones(3, bool),
        torch.zeros(2, 5, dtype=torch.bool),
        "x",
        [True],
        np.ones((2, 5)),
    ]
    units = [None, [0, 1], np.arange(6), torch.ones(2), "ab", [0.5, 1.0], [-1, -2]]
    name = draw.choice(
        [
            "mean_cosine",
            "drift",
            "norms",
            "spectrum",
            "calibrated",
            "nothing",
            "",
            "attention",
            "query_key",
        ]
    )
    given = {
        "mask": draw.choice(masks),
        "unit": draw.choice(units),
        "groups": draw.choice([32, 2, 3]),
    }
    with limited():
        try:
            found = anisoscope.metric(name, draw.choice(made), **given)
        except (AnisoscopeError, TypeError, ValueError) as error:
            assert (
                isinstance(error, AnisoscopeError)
                or type(given["mask"]) is str
                or type(given["unit"]) is str
            ), error
            return
        assert found and all(isinstance(key, str) for key in found)


# ---- the program -----------------------------------------------------------------------------------------------------


def line(draw, made, own):
    """A whole command on small material, with options drawn at random, most of them sensible."""
    new = own / "new"
    some = [
        "--panel hidden",
        "--tokens content",
        "--groups 4",
        "--sample 0",
        "--limit 3",
        "--sequences 2",
        "--seed 3",
    ]
    some += [
        "--dtype float64",
        "--max-length 8",
        "--layers 0,-1",
        "--shard 1/2",
        "--medians",
        "--quiet",
        "--format json",
    ]
    some += [
        "--documents line",
        "--batch-tokens 50",
        "--spectrum-groups 2",
        "--untrained",
        "--skip-bad",
        "--wide",
    ]
    some += [
        "--attention fused",
        "--layers 9",
        "--tokens nothing",
        "--groups 1",
        "--format csv",
        "--flatten image",
    ]
    options = " ".join(draw.sample(some, draw.randint(0, 4)))
    base = f"measure {made['model']} -c {made['text']} --max-length 12"
    kinds = {
        "measure": f"{base} {options} -o {new}",
        "damaged": f"{base.replace(str(made['text']), str(own / 't.jsonl'))} {options} -o {new}",
        "vectors": f"measure {own / 'x.npy'} {options} -o {new}",
        "classes": f"classes {made['model']} -c {made['labelled']} --limit 20 --parts directions -o {new}",
        "report": f"report {draw.choice([made['run'], made['shard'], own, made['text']])}",
        "compare": f"compare {made['run']} {draw.choice([made['run'], own, made['shard']])} --tokens all",
        "merge": f"merge {made['shard']} {draw.choice([made['shard'], made['run'], own])} -o {new}",
        "list": f"list {draw.choice(['metrics', 'models', 'corpora', 'studies', 'nothing', text_of(draw)[:9] or 'x'])}",
    }
    kind = draw.choice([*kinds, "measure", "damaged", "any", "any"])
    if kind == "any":
        name = draw.choice(
            [name for name in COMMANDS if name[0] not in ("train", "reproduce")]
        )
        words = [*name, *typed(draw, name, 0.5), "-o", str(new)]
        # a whole built-in corpus takes minutes beside other work
        whole = name == ("measure",) and "--limit" not in words
        return [*words, "--limit", "9"] if whole else words
    if kind == "damaged":
        (own / "t.jsonl").write_bytes(damaged(draw, made["text"].read_bytes())[0])
    if kind == "vectors":
        buffer = io.BytesIO()
        np.save(buffer, np.random.default_rng(1).normal(size=(30, 5)))
        (own / "x.npy").write_bytes(damaged(draw, buffer.getvalue())[0])
    try:
        return shlex.split(kinds[kind])
    except ValueError:
        return kinds[kind].split()


def check_program(program, made, terminal, draw, own):
    """A command ends with a code of the house, no traceback, nothing wider than the terminal."""
    given = [word.replace("\0", "") for word in line(draw, made, own)]
    (own / "typed.json").write_text(json.dumps(given))
    columns = draw.choice([80, 100])
    ended = program(
        given, terminal=terminal, columns=columns, seconds=300, HF_HUB_OFFLINE="1"
    )
    told = " ".join(ended.lines)
    assert "Traceback" not in told and "this is a bug" not in told, (
        f"{given}: {ended.shown[-3000:]}"
    )
    assert ended.code in range(8), f"{given}: {ended.code} {ended.shown[-2000:]}"
    assert ended.code in (0, 2) or told.count("anisoscope: expected ") == 1, (
        f"{given}: {ended.shown[-2000:]}"
    )
    assert ended.code == 0 or not (own / "new" / "manifest.json").exists(), (
        f"{given}: a failed command left a run"
    )
    if terminal and ended.code != 0:
        wide = [
            text
            for text in ended.lines
            if " " in text.strip() and cell_len(text) > columns
        ]
        assert not wide or any(
            len(word) >= columns for word in " ".join(wide).split()
        ), f"{given}: {wide[:1]}"


def material(program, folder):
    """Runs, a shard and texts that commands name."""
    tiny.series(folder)
    made = {
        "text": folder / "text.jsonl",
        "model": folder / "checkpoints" / "seed-0" / "step-10",
    }
    made["labelled"] = folder / "labelled.jsonl"
    rows = [
        {"text": f"w{k % 50} w{k * 7 % 60}", "label": "ab"[k % 2]} for k in range(60)
    ]
    made["labelled"].write_text("\n".join(map(json.dumps, rows)))
    base = f"measure {made['model']} -c {made['text']} --max-length 12 --sample 8"
    for name, more in (("run", ""), ("shard", "--shard 1/2")):
        made[name] = folder / name
        ended = program(f"{base} {more} -o {made[name]}".split())
        assert ended.code == 0, ended.shown
    shard = RunFolder(made["shard"])
    made["values"], made["plan"] = shard.records["value"], shard.identity()["plan"]
    made["settings"] = Settings.read(shard.manifest["settings"]["settings"])
    return made


def cases(draw, folder):
    """Readers, names and options by the thousand; a command now and then."""
    import random

    checks = {
        "text": check_text,
        "labelled": check_labelled,
        "vectors": check_vectors,
        "tables": check_tables,
        "sound": check_sound,
        "images": check_images,
        "word vectors": check_word_vectors,
        "names": check_names,
        "options": check_options,
        "metric": check_metric,
    }
    with Program() as program:
        made = material(program, folder)
        checks["runs"] = partial(check_runs, made)
        for terminal in (True, False):
            checks["terminal" if terminal else "pipe"] = partial(
                check_program, program, made, terminal
            )
        turns = [kind for kind, count in FEWEST.items() for _ in range(count)]
        draw.shuffle(turns)
        for kind in turns:
            seed = draw.randrange(1 << 40)
            yield Case(
                kind, f"drawn from {seed}", partial(checks[kind], random.Random(seed))
            )
