"""A hub that fails: every fault, for every kind of request, for models, data sets and what is in the cache already. A
command ends with its right numbers or with a line; once the hub is well again, with its right numbers.
"""

import itertools
import json
import shutil
from functools import partial

import numpy as np
import pandas as pd
import tiny
from hub_server import Hub
from program import Program

from campaign.cases import Case

FAULTS = (
    "html",
    "redirect",
    "json",
    "cut",
    "hang up",
    401,
    403,
    404,
    410,
    416,
    429,
    500,
    502,
    503,
    504,
)
PLACES = ("", "config.json", "tokenizer", "model.safetensors", "cdn/", "api/")
"""What is in the path of the requests that fail."""
FEWEST = {"model": 30, "data set": 10, "cached": 10}
PATIENT = "import time; time.sleep = lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.05))"
"""Libraries wait between their tries; here they try as often, at once."""
RUN = "measure {model} -c {text} --panel hidden --sample 0 --max-length 12 -o {new} --overwrite"


def values(folder):
    return pd.read_parquet(folder / "records.parquet")["value"].to_numpy(float)


class Hubs:
    """The hub, the program for which it is the hub, and the numbers of undisturbed runs."""

    def __init__(self, hub, program, made, folder):
        self.hub, self.program, self.made = hub, program, made
        self.numbers = itertools.count()
        self.expected = {}
        for kind in ("model", "data set"):
            ended = program(
                self.typed(
                    kind, self.named(kind), folder / f"well {kind}".replace(" ", "-")
                )
            )
            assert ended.code == 0, ended.shown
            self.expected[kind] = values(folder / f"well {kind}".replace(" ", "-"))

    def named(self, kind):
        """A repository of that kind that nobody has asked for."""
        name = f"tester/{'tiny' if kind == 'model' else 'text'}-{next(self.numbers)}"
        if kind == "model":
            self.hub.add(name, {f"{next(self.numbers):040x}": self.made["model"]})
        else:
            self.hub.add(
                f"datasets/{name}", {f"{next(self.numbers):040x}": self.made["data"]}
            )
        return name

    def typed(self, kind, name, new):
        made = self.made | ({"model": name} if kind == "model" else {"text": name})
        return RUN.format(**made, new=new).split()

    def check(self, kind, fault, place, terminal, own):
        """Fails, and is well again."""
        of = "model" if kind == "cached" else kind
        name = self.named(of)
        typed = self.typed(of, name, own / "new")
        if kind == "cached":
            assert self.program(typed).code == 0
        self.hub.fault, self.hub.fault_at = fault, place
        try:
            ended = self.program(typed, terminal=terminal, setup=PATIENT)
        finally:
            self.hub.fault, self.hub.fault_at = None, ""
        told = " ".join(ended.lines)
        assert "Traceback" not in told and "this is a bug" not in told, ended.shown[
            -3000:
        ]
        assert ended.code in (0, 3, 4), (ended.code, ended.shown[-3000:])
        if ended.code == 0:
            np.testing.assert_allclose(
                values(own / "new"), self.expected[of], rtol=1e-12, atol=1e-12
            )
        else:
            assert "expected " in told and "; got " in told and "Cure: " in told, (
                ended.shown
            )
            assert not (own / "new" / "manifest.json").exists() or kind == "cached"
        ended = self.program(typed)
        assert ended.code == 0, f"the hub is well again: {ended.shown[-3000:]}"
        np.testing.assert_allclose(
            values(own / "new"), self.expected[of], rtol=1e-12, atol=1e-12
        )


def cases(draw, folder):
    """Faults by place, some of each kind."""
    tiny.series(folder)
    made = {
        "text": folder / "text.jsonl",
        "model": folder / "checkpoints" / "seed-0" / "step-10",
    }
    made["data"] = folder / "data"
    made["data"].mkdir()
    rows = [json.loads(line) for line in made["text"].read_text().splitlines()]
    pd.DataFrame(rows).to_parquet(made["data"] / "train.parquet")
    (made["data"] / "README.md").write_text("---\nconfigs: []\n---\n")
    planned = [("model", f, p) for f in FAULTS for p in PLACES]
    planned += [("data set", f, p) for f in FAULTS for p in ("", "parquet", "api/")]
    planned += [("cached", f, p) for f in FAULTS for p in ("", "model.safetensors")]
    draw.shuffle(planned)
    kinds = {
        kind: [each for each in planned if each[0] == kind][: 2 * fewest]
        for kind, fewest in FEWEST.items()
    }
    with Hub() as hub, Program(hub.environment(folder / "home")) as program:
        hubs = Hubs(hub, program, made, folder)
        for each in itertools.chain(*itertools.zip_longest(*kinds.values())):
            if each is not None:
                yield Case(
                    each[0],
                    repr(each[1:]),
                    partial(hubs.check, *each, draw.random() < 0.5),
                )
    shutil.rmtree(folder / "home", ignore_errors=True)
