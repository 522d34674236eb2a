"""Does sharp attention need the drift of queries and keys in a vision Transformer, too? The arms of `drift`, in small
models of photographs that fill in hidden patches (`training/kinds.py`), looked at on photographs of the test split.

Skill is 1 − loss / loss of who fills in the mean photograph; of models of classes, of who knows their shares alone.
"""

import shutil
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anisoscope.data.opening import open_plan
from anisoscope.errors import CorpusError
from anisoscope.provenance import run_id
from anisoscope.studies.beyond import arms
from anisoscope.studies.beyond.causes import ARMS, draw, judge, kept
from anisoscope.studies.beyond.trained import VERSION, Experiment, follow
from anisoscope.studies.study import declare
from anisoscope.training.kinds import IMAGE, Kind, kind_named, material
from anisoscope.training.small import fitting
from anisoscope.training.text import cache_folder


@dataclass(frozen=True)
class ImageRecipe:
    """How small models of images are trained and looked at. Everything here is part of a cell's identity.

    kind           in `training.kinds`: of patches to be filled in, or of classes
    steps, looks   of training; at these steps it is looked at, and at step 0 and the last
    probe          images that are looked at, the first of those that are measured
    """

    kind: str
    steps: int
    looks: tuple[int, ...]
    probe: int = 64

    @property
    def seen(self) -> tuple[int, ...]:
        return tuple(sorted({0, *self.looks, self.steps}))

    def folder(self, arm: str, seed: int) -> Path:
        """Where the cell of an arm and a seed is."""
        kind = kind_named(self.kind)
        identity = run_id([asdict(self), asdict(kind), VERSION, "" if kind.missing else kind.data])
        return cache_folder() / "beyond" / f"{kind.name}-{arm}-{seed}-{identity[:8]}"

    def train(self, arm: str, seed: int, folder: Path, device: str) -> None:
        """Train a cell, or go on, and write its records, unless they are there. CorpusError without its data."""
        kind = kind_named(self.kind)
        if kind.missing:
            raise CorpusError(
                f"photographs for {kind.label}", kind.missing, "set ANISOSCOPE_DATA to a folder with them"
            )
        made = material(kind, seed)
        for change in arms.changes_of(arm):
            change.model(made.model)
        plan, _ = open_plan(kind.corpus, made.model, made.processor, modality=IMAGE, limit=self.probe)
        how = fitting(kind, seed, self.steps)
        how = replace(how, settings={**how.settings, "use_cpu": device == "cpu"})
        with torch.random.fork_rng([]):
            known = guess(kind, made)
        named = {"model": arm, "seed": seed, "corpus": kind.corpus}
        follow(made, how, plan, self.seen, known, folder, named)
        shutil.rmtree(folder / "resume", ignore_errors=True)


def guess(kind: Kind, made: Any) -> float:
    """The validation loss of the mean training image in every hidden patch, or of the shares of classes."""
    size = 2 * kind.batch
    batches = [made.collate(list(made.validation[i : i + size])) for i in range(0, len(made.validation), size)]
    if not kind.masked:
        shares = torch.cat([batch["labels"] for batch in batches]).bincount().double()
        shares = shares[shares > 0] / shares.sum()
        return float(-(shares * shares.log()).sum())
    mean = made.collate(made.train)["pixel_values"].mean(0)
    patch = mean.shape[-1] // round(batches[0]["bool_masked_pos"].shape[1] ** 0.5)
    wrong, hidden = 0.0, 0
    for batch in batches:
        mask = batch["bool_masked_pos"].unflatten(1, (mean.shape[-1] // patch, -1))
        mask = mask.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
        wrong += float(((batch["pixel_values"] - mean).abs().mean(1) * mask).sum())
        hidden += int(mask.sum())
    return wrong / hidden


FULL = ImageRecipe("vit-masked", 512, looks=(64, 128, 256))
BRIEF = ImageRecipe("vit", 60, looks=(20,))
_ARMS = ARMS["drift"]
SETTINGS = {
    "quick": Experiment(_ARMS[:2], 2, BRIEF),
    "paper": Experiment(_ARMS, 4, FULL),
    "finished": Experiment(_ARMS, 4, FULL, train=False),
}
"""`quick`: two arms and two seeds of a model of digits, which decides nothing; `paper`: as registered; `finished`: as
far as `paper` is trained, nothing is.
"""
STUDY = declare(
    "beyond",
    "vision",
    settings=SETTINGS,
    measure=partial(kept, "vision"),
    judge=partial(judge, "vision", over="the average"),
    draw=partial(draw, "vision", loss="loss (mean error of a pixel)"),
)
