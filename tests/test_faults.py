"""Faults through the program as it is typed, each on a terminal and on a pipe.

Every one ends with a line that says what was expected, what came and the cure, with the exit code of `docs/cli.md`, and
without a traceback; on a terminal no line is wider than it. What each did before stands beside the same fault in
test_no_silent_wrong_number.py, test_faults_of_data.py, test_checkpoint_folders.py and test_hub.py.
"""

import json
import shutil
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from hub_server import Hub
from program import NO_PAGE, Program
from rich.cells import cell_len
from safetensors.torch import load_file, save_file

from anisoscope.store import RunFolder

GOOD = [json.dumps({"text": f"w{k} w{k + 1} w{2 * k}"}) for k in range(24)]
BAD_LINES = {
    "an integer of 5,000 digits": '{"text": "a", "n": ' + "9" * 5000 + "}",
    "100,000 brackets": '{"text": "a", "n": ' + "[" * 100_000 + "}",
    "a lone surrogate": '{"text": "\\ud800"}',
}
USAGE, MODEL, CORPUS, MEASURE, OUTPUT = 2, 3, 4, 5, 6
COLUMNS = 80


@dataclass(frozen=True)
class Fault:
    """What is typed, with `{name}` for what `place` made; the exit code; words that the message holds."""

    typed: str
    code: int
    says: tuple[str, ...]
    cure: bool = True
    variables: dict[str, str] = field(default_factory=dict)


RUN = "measure {model} -c {text} --panel hidden --sample 0 --batch-tokens 16 -o {new}"
READERS = {
    "measure": "measure {model} -c {lines} --panel hidden -o {new}",
    "classes": "classes builtin:minilm -c {lines} -o {new}",
    "speech": "measure {speech} -c {clips} -o {new}",
}
OF_OPTIONS = {
    "no panel at all": Fault(
        "measure {model} -c {text} --panel ,", USAGE, ("--panel",)
    ),
    "a panel that is none": Fault(
        "measure {model} -c {text} --panel hiden", USAGE, ("hidden",)
    ),
    "blocks of no class": Fault(RUN + " --blocks Nope", USAGE, ("Nope",)),
    "a revision of a folder": Fault(
        RUN.replace("{model}", "{model}@main"), MODEL, ("revision",)
    ),
    "a negative sample": Fault(
        "measure {model} -c {text} --sample -1", USAGE, ("--sample",)
    ),
    "a sample beyond 2^63": Fault(
        "measure {model} -c {text} --sample 9223372036854775808", USAGE, ("--sample",)
    ),
    "a seed beyond 2^63": Fault(RUN + " --seed 9223372036854775808", USAGE, ("seed",)),
    "groups beyond 2^63": Fault(
        RUN + " --groups 9223372036854775808", USAGE, ("--groups",)
    ),
    "groups in words": Fault(RUN + " --groups many", USAGE, ("--groups", "many")),
    "spectrum groups beyond 2^63": Fault(
        RUN + " --spectrum-groups 9223372036854775808", USAGE, ("--spectrum-groups",)
    ),
    "the meta device": Fault(RUN + " --device meta", USAGE, ("meta",)),
    "a device that is none": Fault(RUN + " --device cpux", USAGE, ("cpux",)),
    "an output below a file": Fault(
        RUN.replace("{new}", "{text}/run"), OUTPUT, ("--output",)
    ),
    "an output that is a device": Fault(
        RUN.replace("{new}", "/dev/null"), OUTPUT, ("--output",)
    ),
    "an output of 300 characters": Fault(
        RUN.replace("{new}", "{new}" + "x" * 300), OUTPUT, ("--output",)
    ),
    "a typo in a model": Fault(
        "measure builtin:minlm -c {text}", MODEL, ("builtin:minilm",)
    ),
    "a typo in a corpus": Fault(
        "measure builtin:minilm -c builtin:python-dcs", CORPUS, ("builtin:python-docs",)
    ),
    "a typo in an option": Fault(
        "measure builtin:minilm --corpsu {text}", USAGE, ("--corpus",), cure=False
    ),
    "a typo in a command": Fault(
        "mesure builtin:minilm", USAGE, ("measure",), cure=False
    ),
}
OF_FILES = {
    **{
        f"{line}: {reader}": Fault(
            typed.replace("{lines}", f"{{line{k}}}").replace(
                "{clips}", f"{{clips{k}}}"
            ),
            CORPUS,
            ("line",),
        )
        for k, line in enumerate(BAD_LINES)
        for reader, typed in READERS.items()
    },
    "a clip that asks for gigabytes": Fault(
        "measure {speech} -c {gigabytes} -o {new}", CORPUS, ("header",)
    ),
    "a clip of an absurd rate": Fault(
        "measure {speech} -c {rate} -o {new}", CORPUS, ("samples a second",)
    ),
    "vectors with NaN": Fault(
        "measure {nan} -o {new}", MEASURE, ("40 with NaN or Inf",)
    ),
    "vectors of text": Fault(
        "measure {words} -o {new}", CORPUS, ("words", "--columns")
    ),
    "labels of no class": Fault(
        "classes builtin:minilm -c {unlabelled}", CORPUS, ("label",)
    ),
    "a tokenizer's limit in words": Fault(
        RUN.replace("{model}", "{limit}"), MODEL, ("model_max_length",)
    ),
    "a model without attention": Fault(
        "measure {fnet} -c {text} --panel attention -o {new}", MEASURE, ("attention",)
    ),
}
OF_RUNS = {
    "records cut short, report": Fault(
        "report {cut_records}", OUTPUT, ("records.parquet",)
    ),
    "records cut short, compare": Fault(
        "compare {cut_records} {run}", OUTPUT, ("records.parquet",)
    ),
    "records cut short, resume": Fault(
        RUN.replace("{new}", "{cut_records}") + " --resume",
        OUTPUT,
        ("records.parquet",),
    ),
    "a manifest cut short, report": Fault(
        "report {cut_manifest}", OUTPUT, ("manifest.json",)
    ),
    "a manifest cut short, resume": Fault(
        RUN.replace("{new}", "{cut_manifest}") + " --resume", OUTPUT, ("manifest.json",)
    ),
    "a state cut short": Fault(
        RUN.replace("{new}", "{cut_state}") + " --resume",
        OUTPUT,
        ("state.0.safetensors",),
    ),
    "the same shard twice": Fault(
        "merge {part} {part} -o {new}", MEASURE, ("in common",)
    ),
    "a shard that is missing": Fault(
        "merge {third} {third2} -o {new}", MEASURE, ("batches",)
    ),
    "a whole run among shards": Fault(
        "merge {part} {run} -o {new}", MEASURE, ("sums",)
    ),
    "a run that is not there": Fault("report {new}", OUTPUT, ()),
    "a name that no file can have": Fault(
        f"report {'a/' * 2500}", USAGE, ("too long",)
    ),
    "another run in the folder": Fault(
        RUN.replace("{new}", "{run}") + " --seed 5", OUTPUT, ("--overwrite",)
    ),
    "a metric that is not in a run": Fault(
        "compare {run} {run} --metric spectrum", USAGE, ("spectrum",)
    ),
}
ALL = OF_OPTIONS | OF_FILES | OF_RUNS


def wav(rate, frames=3200):
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2 % 2**32, 2, 16)
    head = b"WAVEfmt " + form + b"data" + struct.pack("<I", frames)
    return b"RIFF" + struct.pack("<I", 36 + frames) + head + bytes(frames)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def place(program, small_series, tmp_path_factory):
    """{name: path} of all that the faults name."""
    folder = tmp_path_factory.mktemp("faults")
    made = {
        "model": small_series / "checkpoints" / "seed-0" / "step-10",
        "text": folder / "text.jsonl",
    }
    made["text"].write_text("\n".join(GOOD))
    for name, more in {
        "run": "",
        "part": "--shard 1/2",
        "third": "--shard 1/3",
        "third2": "--shard 2/3",
    }.items():
        made[name] = folder / name
        ended = program(
            [*RUN.format(**made, new=made[name]).split(), *more.split()], setup=NO_PAGE
        )
        assert ended.code == 0, ended.shown
    make_files(folder, made)
    make_runs(folder, made)
    return {name: str(path) for name, path in made.items()}


def make_files(folder, made):
    import soundfile
    from transformers import FNetConfig, FNetModel

    for k in range(24):
        soundfile.write(folder / f"{k}.wav", np.zeros(800), 8000)
    for k, line in enumerate(BAD_LINES.values()):
        made[f"line{k}"] = folder / f"line{k}.jsonl"
        labelled = [
            json.dumps({**json.loads(good), "label": n % 2})
            for n, good in enumerate(GOOD)
        ]
        made[f"line{k}"].write_text("\n".join([*labelled, line]))
        made[f"clips{k}"] = folder / f"clips{k}.jsonl"
        clips = [json.dumps({"path": f"{n}.wav"}) for n in range(24)]
        made[f"clips{k}"].write_text("\n".join([*clips, line]))
    made["rate"], made["gigabytes"] = folder / "rate", folder / "flac"
    for name in ("rate", "gigabytes"):
        made[name].mkdir()
    (made["rate"] / "a.wav").write_bytes(wav(2_000_000_000))
    soundfile.write(made["gigabytes"] / "a.flac", np.zeros(4096), 16000, format="FLAC")
    data = bytearray((made["gigabytes"] / "a.flac").read_bytes())
    frames = int.from_bytes(data[18:26], "big") >> 36 << 36 | 2**36 - 1
    (made["gigabytes"] / "a.flac").write_bytes(
        bytes(data[:18]) + frames.to_bytes(8, "big") + bytes(data[26:])
    )
    made["nan"], made["words"] = folder / "nan.npy", folder / "words.npy"
    np.save(made["nan"], np.full((40, 8), np.nan))
    np.save(made["words"], np.array([["a", "b"]] * 40))
    made["unlabelled"] = folder / "unlabelled.csv"
    made["unlabelled"].write_text(
        "text,label\n" + "".join(f"word {k},-1\n" for k in range(40))
    )
    made["limit"] = shutil.copytree(made["model"], folder / "limit")
    told = json.loads((made["limit"] / "tokenizer_config.json").read_text())
    (made["limit"] / "tokenizer_config.json").write_text(
        json.dumps({**told, "model_max_length": "many"})
    )
    made["fnet"] = shutil.copytree(made["model"], folder / "fnet")
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    convolutions = {
        "conv_dim": (8, 8),
        "conv_stride": (5, 4),
        "conv_kernel": (10, 8),
        "num_conv_pos_embeddings": 16,
    }
    flat = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    made["speech"] = folder / "speech"
    Wav2Vec2Model(
        Wav2Vec2Config(**convolutions, **flat, num_conv_pos_embedding_groups=2)
    ).save_pretrained(made["speech"])
    Wav2Vec2FeatureExtractor().save_pretrained(made["speech"])
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "max_position_embeddings": 32,
    }
    FNetModel(FNetConfig(**sizes, intermediate_size=24)).save_pretrained(made["fnet"])


def make_runs(folder, made):
    for name, file in (
        ("cut_records", "records.parquet"),
        ("cut_manifest", "manifest.json"),
    ):
        made[name] = shutil.copytree(made["run"], folder / name)
        cut(made[name] / file)
    made["cut_state"] = shutil.copytree(made["run"], folder / "cut_state")
    for file in ("manifest.json", "records.parquet"):
        (made["cut_state"] / file).unlink()
    shutil.copy(
        RunFolder(made["part"]).sums_path, made["cut_state"] / "state.0.safetensors"
    )
    cut(made["cut_state"] / "state.0.safetensors")


def check(ended, fault, terminal):
    """A clear end: the code, no traceback, expected and came and cure, words, nothing wider than the terminal."""
    told = " ".join(ended.lines)
    assert ended.code == fault.code, ended.shown
    assert "Traceback" not in told and "this is a bug" not in told, ended.shown
    if fault.cure:
        said = [
            k
            for k, line in enumerate(ended.lines)
            if line.startswith("anisoscope: expected ")
        ]
        assert len(said) == 1 and "; got " in told and "Cure: " in told, ended.shown
    squeezed = told.replace(" ", "")
    assert all(word.replace(" ", "") in squeezed for word in fault.says), ended.shown
    if terminal:
        assert all(
            cell_len(line) <= COLUMNS for line in ended.lines if " " in line.strip()
        ), ended.shown


PIPED = {"a negative sample", "a typo in a model", "vectors of text", "the meta device"}
"""Faults of each exit code that are looked at on a pipe every day, too; their lines are those of a terminal."""


@pytest.mark.parametrize(
    ("name", "terminal"),
    [
        pytest.param(
            name,
            terminal,
            marks=() if terminal or name in PIPED else pytest.mark.nightly,
            id=f"{name}-{'terminal' if terminal else 'pipe'}",
        )
        for name in ALL
        for terminal in (True, False)
    ],
)
def test_a_fault_ends_clearly(program, place, tmp_path, name, terminal):
    fault = ALL[name]
    words = fault.typed.format(**place, new=tmp_path / "new").split()
    ended = program(words, terminal=terminal, columns=COLUMNS)
    check(ended, fault, terminal)
    assert not (tmp_path / "new" / "manifest.json").exists(), (
        "nothing that looks finished is left"
    )


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_killed_while_the_identity_is_written(program, place, tmp_path, terminal):
    folder = tmp_path / "run"
    folder.mkdir()
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        check=True,
    )
    (folder / f".identity.json.{int(dead.stdout)}").write_text('{"model": ')
    ended = program(
        RUN.format(**place, new=folder).split(), terminal=terminal, setup=NO_PAGE
    )
    assert ended.code == 0 and not list(folder.glob(".identity*")), ended.shown


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_the_folder_is_removed_while_it_runs(program, place, tmp_path, terminal):
    folder = tmp_path / "run"

    def remove():
        while not (folder / "identity.json").exists():
            time.sleep(0.002)
        shutil.rmtree(folder, ignore_errors=True)

    threading.Thread(target=remove, daemon=True).start()
    ended = program(
        [*RUN.format(**place, new=folder).split(), "--batch-tokens", "64"],
        terminal=terminal,
        setup=NO_PAGE,
    )
    assert ended.code == 0 and (folder / "manifest.json").exists(), ended.shown


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_control_character_in_a_label_is_shown_as_a_sign(
    program, place, tmp_path, terminal
):
    labels = ("plain", "bad\x1b[31m\x00")
    rows = [
        json.dumps({"text": f"w{k % 7} w{k}", "label": labels[k % 2]})
        for k in range(40)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    words = [
        "classes",
        place["model"],
        "-c",
        tmp_path / "t.jsonl",
        "--split",
        "all",
        "-o",
        tmp_path / "run",
    ]
    # a page is the same on a terminal and on a pipe
    ended = program(
        [*words, "--parts", "directions"],
        terminal=terminal,
        setup=NO_PAGE if terminal else "",
    )
    assert (
        ended.code == 0 and "\x00" not in ended.shown and "bad\x1b" not in ended.shown
    ), ended.shown
    if not terminal:
        page = (tmp_path / "run" / "report.html").read_text()
        assert "bad␛[31m␀" in page and "\x1b" not in page and "\x00" not in page
    assert (
        "bad\\u001b[31m\\u0000" in (tmp_path / "run" / "manifest.json").read_text()
    ), "records keep it as it is"


# ---- a hub that fails ------------------------------------------------------------------------------------------------

HUB_FAULTS = {
    "html": "log in to it with a browser",
    401: "hf auth login",
    404: "check HF_ENDPOINT",
    429: "wait 7 s",
    500: "try again later",
    503: "try again later",
}
NAME = "tester/tiny"


@pytest.fixture(scope="module")
def hub(small_series):
    with Hub() as served:
        served.add(
            NAME, {"a" * 40: small_series / "checkpoints" / "seed-0" / "step-10"}
        )
        yield served


@pytest.fixture(scope="module")
def online(hub, tmp_path_factory):
    """The program where that hub is the hub."""
    with Program(hub.environment(tmp_path_factory.mktemp("home"))) as served:
        yield served


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("failing", HUB_FAULTS)
def test_a_hub_that_fails_ends_clearly(online, hub, place, tmp_path, failing, terminal):
    hub.fault = failing
    ended = online(
        RUN.format(**place | {"model": "tester/unseen"}, new=tmp_path / "new").split(),
        terminal=terminal,
    )
    hub.fault = None
    check(ended, Fault("", MODEL, (HUB_FAULTS[failing],)), terminal)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_captive_portal_leaves_the_copy_in_the_cache_in_use(
    online, hub, place, tmp_path, terminal
):
    words = [
        *RUN.format(**place | {"model": NAME}, new=tmp_path / "new").split(),
        "--overwrite",
    ]
    assert online(words, setup=NO_PAGE).code == 0
    hub.fault = "html"
    ended = online(words, terminal=terminal, setup=NO_PAGE)
    hub.fault = None
    assert (
        ended.code == 0
        and "the copy of tester/tiny in the cache is used" in " ".join(ended.lines)
    ), ended.shown


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_body_that_is_not_what_was_announced_is_refused(
    online, hub, place, small_series, tmp_path, terminal
):
    changed = shutil.copytree(
        small_series / "checkpoints" / "seed-0" / "step-10", tmp_path / "model"
    )
    weights = {k: v + 1 for k, v in load_file(changed / "model.safetensors").items()}
    save_file(weights, changed / "model.safetensors", {"format": "pt"})
    name = f"tester/tampered-{terminal}"
    hub.add(name, {("b" if terminal else "c") * 40: changed})
    hub.tampered = {"model.safetensors"}
    words = RUN.format(**place | {"model": name}, new=tmp_path / "new").split()
    ended = [online(words, terminal=terminal), online(words, terminal=terminal)]
    hub.tampered = set()
    for each in ended:
        check(each, Fault("", MODEL, ("announced",)), terminal)
