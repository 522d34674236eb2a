"""Ask whether sharp attention needs the drift of queries and keys in vision and speech Transformers, too.

The changed models (arms) of the study `drift` are small ones (`training/kinds.py`): of photographs, with hidden patches
to fill in, and of clips, with hidden spans to find. They are measured on photographs of the test split, and on speakers
that no training had.

Skill is 1 − loss / loss of a guess that ignores the example: the mean photograph, equal chances for every candidate, or
for classes their shares.
"""

import math
import shutil
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anisoscope.data.opening import open_plan
from anisoscope.errors import CorpusError
from anisoscope.provenance import make_run_id
from anisoscope_papers.beyond import arms
from anisoscope_papers.beyond.causes import ARMS, draw, judge, measure_arms
from anisoscope_papers.beyond.trained import VERSION, Experiment, train_and_measure
from anisoscope_papers.study import declare
from anisoscope_papers.training import kinds
from anisoscope_papers.training.kinds import (
    MEASURED,
    SPEECH,
    Kind,
    find_kind,
    prepare_material,
)
from anisoscope_papers.training.text import cache_folder
from anisoscope_papers.training.train_small import build_fitting


@dataclass(frozen=True)
class KindRecipe:
    """How small models of one kind are trained and measured. Every field is part of a model's identity.

    kind           in `training.kinds`: something hidden that is to be found, or classes
    steps, looks   steps of training; it is measured at the steps `looks`, at step 0 and at the last
    probe          images or speakers it is measured on, the first of those held out
    """

    kind: str
    steps: int
    looks: tuple[int, ...]
    probe: int = 64

    @property
    def seen(self) -> tuple[int, ...]:
        """The training steps at which a model is measured."""
        return tuple(sorted({0, *self.looks, self.steps}))

    def folder(self, arm: str, seed: int) -> Path:
        """Return the folder of the model (cell) of an arm (set of changes) and a seed."""
        kind = find_kind(self.kind)
        # Also the data: other clips under the same name are another training.
        identity = make_run_id(
            [asdict(self), asdict(kind), VERSION, "" if kind.missing else kind.data]
        )
        return cache_folder() / "beyond" / f"{kind.name}-{arm}-{seed}-{identity[:8]}"

    def hash_data(self) -> dict[str, str]:
        """Return {}: hashes of the training data are not needed, since the name of the folder depends on the data."""
        return {}

    def train(self, arm: str, seed: int, folder: Path, device: str) -> None:
        """Train the model of an arm (set of changes) and a seed in `folder`, or resume, and write its records unless
        they exist.

        CorpusError without its data.
        """
        kind = find_kind(self.kind)
        if kind.missing:
            raise CorpusError(
                f"what {kind.label} is trained on",
                kind.missing,
                "set ANISOSCOPE_DATA to a folder with it",
            )
        # Changed after its weights are drawn: arms of a seed start alike.
        made = prepare_material(kind, seed)
        for change in arms.list_changes(arm):
            change.model(made.model)
        plan, _ = open_plan(
            kind.corpus,
            made.model,
            made.processor,
            modality=kind.modality,
            limit=self.probe,
        )
        how = build_fitting(kind, seed, self.steps)
        how = replace(how, settings={**how.settings, "use_cpu": device == "cpu"})
        # Masks of the validation are drawn at random: the training must not notice.
        with torch.random.fork_rng([]):
            known = compute_guess_loss(kind, made)
        named = {"model": arm, "seed": seed, "corpus": kind.corpus}
        train_and_measure(made, how, plan, self.seen, known, folder, named)
        # The state to resume from is large, and all records are written.
        shutil.rmtree(folder / "resume", ignore_errors=True)


def compute_guess_loss(kind: Kind, made: Any) -> float:
    """Return the validation loss of guessing without looking at the example: the baseline of skill, which is 1 − loss
    / baseline.

    The guess is the frequencies of the classes; for masked images the mean training image in every hidden patch; for
    masked speech the same probability for the hidden frame and its distractors. As in transformers, the loss of speech
    is summed over the frames of a batch. `made`: the model with its training and validation examples.
    """
    # The batches of the evaluation, on which the loss of speech depends.
    size = 2 * kind.batch
    batches = []
    for i in range(0, len(made.validation), size):
        batches.append(made.collate(list(made.validation[i : i + size])))
    if not kind.masked:
        # The best guess is the frequency of each class; its loss is the entropy.
        shares = torch.cat([batch["labels"] for batch in batches]).bincount().double()
        shares = shares[shares > 0] / shares.sum()
        return float(-(shares * shares.log()).sum())
    if kind.modality == SPEECH:
        hidden = [batch["mask_time_indices"] for batch in batches]
        # The hidden frame among its distractors.
        chances = 1 + batches[0]["sampled_negative_indices"].shape[-1]
        # The loss of a batch is a sum over its hidden frames; the Trainer averages batches
        # by their number of clips.
        frames = sum(len(of_batch) * int(of_batch.sum()) for of_batch in hidden)
        return math.log(chances) * frames / len(made.validation)
    return _score_mean_image(made, batches)


def _score_mean_image(made: Any, batches: list[dict[str, Any]]) -> float:
    """Return the mean error per pixel of filling hidden patches with the mean training image.

    `made`: the model with its training examples; `batches`: of validation examples.
    """
    mean = made.collate(made.train)["pixel_values"].mean(0)
    # Pixels of a side of a patch: patches are counted row by row, as many as columns.
    patch = mean.shape[-1] // round(batches[0]["bool_masked_pos"].shape[1] ** 0.5)
    wrong = 0.0
    hidden = 0
    for batch in batches:
        mask = batch["bool_masked_pos"].unflatten(1, (mean.shape[-1] // patch, -1))
        # [image, row, column] of patches → the same of pixels.
        mask = mask.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
        # As transformers' loss of masked images: |error| of hidden pixels, per channel.
        wrong += float(((batch["pixel_values"] - mean).abs().mean(1) * mask).sum())
        hidden += int(mask.sum())
    return wrong / hidden


PHOTOGRAPHS = KindRecipe("vit-masked", 512, looks=(64, 128, 256))
CLIPS = KindRecipe(
    "speech-masked", 800, looks=(100, 200, 400), probe=MEASURED[kinds.CLIPS]
)
_RECIPES = {
    "vision": (KindRecipe("vit", 60, looks=(20,)), PHOTOGRAPHS),
    "speech": (KindRecipe("speech-transformer", 20, looks=(10,)), CLIPS),
}


def _list_settings(brief: KindRecipe, full: KindRecipe) -> dict[str, Experiment]:
    """Return {name of settings: what is trained}, by a recipe of some steps and by one that learns."""
    whole = Experiment(ARMS["drift"], 4, full)
    return {
        "quick": Experiment(ARMS["drift"][:2], 2, brief),
        "paper": whole,
        "finished": replace(whole, train=False),
    }


SETTINGS = {name: _list_settings(*recipes) for name, recipes in _RECIPES.items()}
"""`quick`: two arms and two seeds of a model of digits, written or spoken, which decides nothing; `paper`: as
registered; `finished`: as far as `paper` is trained, nothing is.
"""
# Each modality has a guess of its own that skill is measured against.
STUDIES = tuple(
    declare(
        "beyond",
        name,
        settings=SETTINGS[name],
        measure=partial(measure_arms, name),
        judge=partial(judge, name, baseline=baseline),
        draw=partial(draw, name, loss=loss),
    )
    for name, baseline, loss in (
        ("vision", "the average", "loss (mean error of a pixel)"),
        ("speech", "chance", "loss (sum over a batch)"),
    )
)
