"""Ranks and shards: a run in any number of shards, merged in any order, or by any number of processes that are stopped
and gone on with by another number, gives the numbers of one process in one go.
"""

import json
import signal
from functools import partial

import numpy as np
import pandas as pd
import tiny
from program import Program

from anisoscope.store import KEYS
from campaign.cases import Case
from campaign.endings import setup

FEWEST = {"shards": 24, "ranks": 16}
CLOSE = 1e-9
"""What the order of additions may move in float64."""
RUN = "measure {model} -c {text} --dtype float64 --max-length 12 --sample 24 {more} -o {new}"
SETTINGS = (
    "",
    "--groups 4",
    "--tokens content",
    "--medians",
    "--spectrum-groups 2",
    "--layers 0,-1",
    "--seed 5",
)
BATCHES = (24, 64, 200)
WORLDS = (1, 2, 3)
STOPPED = (0, 143, -signal.SIGTERM, 5)
"""Codes of a process that was told to end: before it was done, at a batch, while it loaded, or because others ended."""


def check_same(folder, whole):
    """Row by row: keys equal and in order, values and ends of intervals within rounding; as many tokens."""
    ours, theirs = (
        pd.read_parquet(each / "records.parquet") for each in (folder, whole)
    )
    keys = [*(key for key in KEYS if key != "run"), "n_vectors", "n_units"]
    pd.testing.assert_frame_equal(ours[keys], theirs[keys])
    for column in ("value", "low", "high"):
        np.testing.assert_allclose(
            ours[column], theirs[column], rtol=CLOSE, atol=CLOSE, err_msg=column
        )
    ours, theirs = (
        json.loads((each / "manifest.json").read_text()) for each in (folder, whole)
    )
    for name in ("corpus", "excluded", "weights_sha256", "warnings"):
        assert ours[name] == theirs[name], (name, ours[name], theirs[name])


class Together:
    """The program, and runs of one process in one go, made once."""

    def __init__(self, program, made):
        self.program, self.made, self.wholes = program, made, {}

    def typed(self, more, new):
        return RUN.format(**self.made, more=more, new=new).split()

    def whole(self, more, folder):
        if more not in self.wholes:
            self.wholes[more] = folder / f"whole-{len(self.wholes)}"
            ended = self.program(self.typed(more, self.wholes[more]))
            assert ended.code == 0, ended.shown
        return self.wholes[more]

    def together(self, world, words, **how):
        """How each of so many processes ended."""
        return (
            self.program(words, ranks=world, **how)
            if world > 1
            else [self.program(words, **how)]
        )

    def check_shards(self, parts, order, more, folder, own):
        whole = self.whole(more, folder)
        for part in range(parts):
            ended = self.program(
                self.typed(f"{more} --shard {part + 1}/{parts}", own / str(part))
            )
            assert ended.code == 0, ended.shown
        ended = self.program(
            ["merge", *(own / str(part) for part in order), "-o", own / "merged"]
        )
        assert ended.code == 0, ended.shown
        check_same(own / "merged", whole)

    def check_ranks(self, before, after, stop, more, folder, own):
        """`before` processes, told to end after a time unless that is 0; then `after` of them go on."""
        whole = self.whole(more, folder)
        end = setup(
            {"folder": str(own), "after": stop, "number": int(signal.SIGTERM)}
            if stop
            else {}
        )
        for ended in self.together(before, self.typed(more, own / "new"), setup=end):
            assert ended.code in STOPPED, (ended.code, ended.shown[-2000:])
        if not (own / "new" / "manifest.json").exists():
            for ended in self.together(
                after, [*self.typed(more, own / "new"), "--resume"]
            ):
                assert ended.code == 0, (ended.code, ended.shown[-2000:])
        check_same(own / "new", whole)


def cases(draw, folder):
    """Shards and ranks in turn."""
    tiny.series(folder)
    made = {"text": folder / "text.jsonl"}
    made["model"] = tiny.stirred(folder / "checkpoints" / "seed-0" / "step-10", 1)
    with Program() as program:
        together = Together(program, made)
        for turn in range(max(FEWEST.values())):
            more = (
                f"{draw.choice(SETTINGS)} --batch-tokens {draw.choice(BATCHES)}".strip()
            )
            parts = draw.randint(2, 7)
            order = draw.sample(range(parts), parts)
            told = f"{parts} shards, merged as {order}, {more}"
            yield Case(
                "shards",
                told,
                partial(together.check_shards, parts, order, more, folder),
            )
            if turn < FEWEST["ranks"]:
                before, after, stop = (
                    draw.choice(WORLDS),
                    draw.choice(WORLDS),
                    draw.choice([0, draw.uniform(0.1, 1.5)]),
                )
                ends = (
                    f"stopped after {stop:.2f} s, then {after}"
                    if stop
                    else "to the end"
                )
                told = f"{before} processes, {ends}, {more}"
                yield Case(
                    "ranks",
                    told,
                    partial(together.check_ranks, before, after, stop, more, folder),
                )
