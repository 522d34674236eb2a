"""Kills: SIGKILL, SIGTERM and SIGINT at writes and at random moments of every long command, twice now and then. What
goes on after it ends with the numbers of a command that nobody stopped, and leaves no temporary file.
"""

import json
import shutil
import signal
import time
from functools import partial

import numpy as np
import pandas as pd
import tiny
from program import Program
from safetensors.numpy import load_file

from anisoscope.registry import list_entries_of
from campaign.cases import Case
from campaign.endings import setup

CLOSE = 1e-12
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MOMENTS, WRITES = 8, 24
"""Cases of a command: at random moments, and at most at its writes (evenly chosen where it has more)."""
MEASURE = "-c {text} --max-length 12 --batch-tokens 96 --sample 16"
CLASSIFIER = "train classifier -c {labelled} --vectors random --dim 8 --epochs 2"
COMMANDS = {
    "measure": (f"measure {{model}} {MEASURE} -o {{new}}", "--resume"),
    "series": (
        f"measure {{checkpoints}} {MEASURE} --panel hidden -o {{new}}",
        "--resume",
    ),
    "classes": (
        "classes {model} -c {labelled} --limit 24 --few 6 -o {new}",
        "--resume",
    ),
    "train masked-lm": (
        "train masked-lm -c {text} --preset tiny --window 16 --steps 6 --batch 4 -o {new}",
        "--resume",
    ),
    "train classifier": (f"{CLASSIFIER} -o {{new}}", "--resume"),
    "reproduce": ("reproduce godey2024 --only fig17 -o {new}", ""),
    "report": ("report {new}", ""),
}
"""Name: what is typed, and what is added to go on."""
for _name in ("train masked-lm", "train classifier", "reproduce"):
    if _name.split()[0] not in list_entries_of(
        "commands"
    ):  # anisoscope-papers is not installed
        del COMMANDS[_name]
FEWEST = dict.fromkeys(COMMANDS, 9)


def material(folder):
    """{name: path} of what the commands name."""
    tiny.series(folder)
    made = {
        "text": folder / "text.jsonl",
        "checkpoints": folder / "checkpoints",
        "labelled": folder / "labelled.jsonl",
    }
    rows = [
        {"text": f"w{k % 50} w{k * 7 % 60} w{k % 2}", "label": "ab"[k % 2]}
        for k in range(60)
    ]
    made["labelled"].write_text("\n".join(map(json.dumps, rows)))
    return made | {"model": made["checkpoints"] / "seed-0" / "step-10"}


def numbers(folder):
    """{file and what in it: array} of every number that a command leaves."""
    found = {}
    for path in sorted(folder.rglob("*.parquet")):
        table, name = pd.read_parquet(path), path.relative_to(folder)
        found |= {
            f"{name} {column}": table[column].to_numpy()
            for column in table
            if column != "run"
        }
    for path in sorted(folder.rglob("model.safetensors")):
        found |= {
            f"{path.relative_to(folder)} {name}": value
            for name, value in load_file(path).items()
        }
    for path in sorted(folder.rglob("verdicts.json")):
        found[str(path.relative_to(folder))] = np.array([path.read_text()])
    for path in sorted(folder.rglob("report.html")):
        found[str(path.relative_to(folder))] = np.array([path.stat().st_size > 0])
    return found


def check_same(got, expected):
    """The same things, numbers within CLOSE."""
    assert got.keys() == expected.keys(), sorted(got.keys() ^ expected.keys())
    for name, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(
                got[name], value, rtol=CLOSE, atol=CLOSE, err_msg=name
            )
        else:
            pd.testing.assert_series_equal(
                pd.Series(got[name].ravel()), pd.Series(value.ravel()), obj=name
            )


class Stopped:
    """One command: how it runs undisturbed, and what becomes of it where it is stopped."""

    def __init__(self, name, program, made, folder):
        self.words, self.more = COMMANDS[name]
        self.program, self.made, self.undrawn = program, made, None
        whole = folder / f"whole-{name.replace(' ', '-')}"
        if name == "report":
            self.undrawn = folder / "undrawn"
            assert (
                program(
                    COMMANDS["measure"][0].format(**made, new=self.undrawn).split()
                ).code
                == 0
            )
            (self.undrawn / "report.html").unlink()
            shutil.rmtree(self.undrawn / "figures", ignore_errors=True)
        count, began = folder / f"writes of {name}", time.monotonic()
        ended = self(self.begun(whole), count=str(count))
        assert ended.code == 0, ended.shown
        self.seconds, self.writes = time.monotonic() - began, count.stat().st_size
        self.expected = numbers(whole / "new")

    def begun(self, own):
        """The folder to write, in `own`: for `report` a finished run without its page."""
        if self.undrawn is not None:
            shutil.copytree(self.undrawn, own / "new")
        return own / "new"

    def __call__(self, new, more="", **end):
        """The command, ended as `end` says; what it keeps for others lies beside its folder."""
        typed = f"{self.words.format(**self.made, new=new)} {more}".split()
        how = {"HF_HUB_OFFLINE": "1", "ANISOSCOPE_CACHE": str(new.parent / "cache")}
        return self.program(
            typed, setup=setup({"folder": str(new.parent)} | end if end else {}), **how
        )

    def check(self, ends, own):
        """Stopped in these ways one after the other, then left alone: the same numbers."""
        new, more = self.begun(own), ""
        for end in ends:
            ended = self(new, more, **end)
            codes = {
                0,
                -signal.SIGKILL
                if end["number"] == signal.SIGKILL
                else 128 + end["number"],
            }
            assert ended.code in codes, (ended.code, ended.shown[-3000:])
            assert "Traceback" not in ended.shown, ended.shown[-3000:]
            more = self.more
        ended = self(new, more)
        assert ended.code == 0, (ended.code, ended.shown[-3000:])
        check_same(numbers(new), self.expected)
        left = [
            path for path in new.rglob(".*.*") if path.name.rpartition(".")[2].isdigit()
        ]
        assert not left, f"temporary files are left: {left}"


def ends_of(draw, stopped):
    """Ways to end a command: at its writes, and at any moment."""
    count = min(WRITES, stopped.writes)
    first = draw.randrange(3)
    for k in range(count):
        yield {
            "write": 1 + k * stopped.writes // count,
            "number": int(SIGNALS[(first + k) % 3]),
        }
    for k in range(MOMENTS):
        yield {
            "after": draw.uniform(0.02, stopped.seconds),
            "number": int(SIGNALS[k % 3]),
        }


def cases(draw, folder):
    """Cases of all commands in turn."""
    made = material(folder)
    with Program() as program:
        planned = {}
        for name in COMMANDS:
            stopped = Stopped(name, program, made, folder)
            planned[name] = (
                stopped,
                draw.sample(found := list(ends_of(draw, stopped)), len(found)),
            )
        for turn in range(max(len(ends) for _, ends in planned.values())):
            for name, (stopped, ends) in planned.items():
                if turn < len(ends):
                    again = draw.random() < 0.25
                    both = [ends[turn], *([draw.choice(ends)] if again else [])]
                    yield Case(name, json.dumps(both), partial(stopped.check, both))
