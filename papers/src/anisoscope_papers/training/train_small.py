"""Train small models from scratch, with checkpoints at log-spaced steps; found again in the cache by their settings.

Each takes a share of the steps it would need (`Kind.steps`), or trains until its validation loss stops falling.

    <cache>/small/<kind>-<seed>-<hash>/step-0, step-1, step-2, step-4, … and the best, in hub format, with the processor
    <cache>/small/<kind>-<seed>-<hash>/training.json, written last: a folder without it is trained again
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anisoscope.models import ports
from anisoscope.provenance import make_run_id
from anisoscope.store import make_once, write_json
from anisoscope_papers.training import fit
from anisoscope_papers.training.kinds import Kind, find_kind, prepare_material

Progress = Callable[[str, int, int], None]
"""Called with what is trained, steps done and steps in all."""

FEWEST = 2
EVALUATIONS = 8
"""Evaluations per `Kind.steps`, if the validation loss decides when to stop."""
WARM_UP = 0.05
TRAINED = "training.json"


@dataclass(frozen=True)
class SmallModelRecipe:
    """How small models are trained. Every field is part of their identity.

    share      of the steps that a kind would need; None: until the validation loss stops falling
    patience   evaluations without a lower validation loss after which training ends (without a share)
    longest    most steps of one model without a share, as a multiple of `Kind.steps`
    """

    share: float | None = 0.2
    seeds: int = 2
    patience: int = 3
    longest: int = 3


BRIEF = SmallModelRecipe()
"""A fifth of the steps: what the settings `quick` take."""
LONG = SmallModelRecipe(share=None, seeds=3)
"""Until the validation loss stops falling, or `longest` is reached."""
PART = SmallModelRecipe(share=0.4, seeds=3)
"""Two fifths of the steps, in the time that two cores have: losses of photographs and clips were still falling."""


@dataclass(frozen=True)
class SmallModel:
    """A trained small model: its folder, the steps whose checkpoints it holds, and `history` with losses and times."""

    kind: Kind
    seed: int
    folder: Path
    steps: tuple[int, ...]
    history: dict[str, Any]

    def checkpoint(self, step: int) -> Path:
        """Return the folder of one step's checkpoint, in hub format."""
        return self.folder / f"step-{step}"

    @property
    def best(self) -> int:
        """The step whose weights count as the trained model's.

        It is the last one if the recipe fixes the length of the training (`share`), else that of the lowest validation
        loss.
        """
        return int(self.history["best"])


def train_all(
    recipe: SmallModelRecipe, kinds: Sequence[str], cache: Path, progress: Progress
) -> list[SmallModel]:
    """Train every seed of the `kinds` of small models whose data are available, or find them in `cache`."""
    # An unknown kind is an error before anything is trained.
    wanted = [kind for kind in map(find_kind, kinds) if not kind.missing]
    models = []
    for kind in wanted:
        for seed in range(recipe.seeds):
            models.append(train_or_load(kind, seed, recipe, cache, progress))
    return models


def train_or_load(
    kind: Kind,
    seed: int,
    recipe: SmallModelRecipe,
    cache: Path,
    progress: Progress = lambda _t, _d, _n: None,
) -> SmallModel:
    """Return the small model of one kind and seed: read from `cache`, or trained there by `recipe`."""
    # Kinds that transformers lacks are loaded by it once they are registered.
    ports.register()
    settings = {
        "kind": asdict(kind),
        "seed": seed,
        "recipe": asdict(recipe),
        "data": kind.data,
    }
    folder = cache / "small" / f"{kind.name}-{seed}-{make_run_id(settings)[:8]}"

    def make() -> None:
        """Train the model into its folder, whose earlier content is removed."""
        shutil.rmtree(folder, ignore_errors=True)
        history = _train(kind, seed, recipe, folder, progress)
        write_json(folder / TRAINED, {"settings": settings, **history})

    # The marker is written last: a folder without it was left by a training that did
    # not finish.
    make_once(folder, make, marker=TRAINED)
    found = sorted(
        int(path.name.removeprefix("step-")) for path in folder.glob("step-*")
    )
    return SmallModel(
        kind, seed, folder, tuple(found), json.loads((folder / TRAINED).read_text())
    )


def _train(
    kind: Kind, seed: int, recipe: SmallModelRecipe, folder: Path, progress: Progress
) -> dict[str, Any]:
    """Train a small model and keep its log-spaced checkpoints in `folder`; return the content of `training.json`."""
    made = prepare_material(kind, seed)
    # A share fixes the number of steps; without one, patience decides, up to a limit.
    share = recipe.share
    patience: int | None = None
    if share is None:
        patience = recipe.patience
        steps = recipe.longest * kind.steps
    else:
        steps = max(FEWEST, round(kind.steps * share))

    def on_step(step: int, last: int, model: Any) -> None:
        """Save a checkpoint if the step is a power of two, and report progress towards the `last` step."""
        # 1, 2, 4, …: dense at the beginning, where most changes.
        if step & (step - 1) == 0:
            fit.keep(folder / f"step-{step}", model, made.processor)
        progress(f"{kind.label}, seed {seed}", step, last)

    folder.mkdir(parents=True)
    fit.keep(folder / "step-0", made.model, made.processor)
    history = fit.fit(made, build_fitting(kind, seed, steps, patience), on_step)
    # With a fixed share of the steps the trained model is the last one, whatever its
    # loss: all seeds are compared at one step.
    best = history["steps"]
    if patience is not None:
        best, _loss = min(history["validation_loss"], key=lambda at: at[1])
    fit.keep(folder / f"step-{best}", made.model, made.processor)
    return history | {"best": best}


def build_fitting(
    kind: Kind, seed: int, steps: int, patience: int | None = None
) -> fit.Fitting:
    """Return the settings of a training of `steps` steps: AdamW with warm-up, then linear decay to the last step.

    With `patience`, the rate is constant and training stops early.
    """
    # A part of the steps that the kind needs, however much longer it may train: so
    # patience means the same for all.
    every = max(1, min(steps, kind.steps) // EVALUATIONS)
    settings: dict[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": kind.batch,
        "per_device_eval_batch_size": 2 * kind.batch,
        "learning_rate": kind.rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": max(1, int(WARM_UP * min(steps, kind.steps))),
        "seed": seed,
        "data_seed": seed,
        "use_cpu": True,
        "logging_steps": every,
    }
    if patience is None:
        # The steps whose checkpoints are kept, so that each has a loss.
        kept = {1 << k for k in range(steps.bit_length())}
        return fit.Fitting(settings, evaluated=frozenset(kept | {steps}))
    asked = {
        "eval_strategy": "steps",
        "eval_steps": every,
        "save_strategy": "steps",
        "save_steps": every,
    }
    return fit.Fitting(
        settings | fit.BEST | asked | {"save_only_model": True}, patience
    )
