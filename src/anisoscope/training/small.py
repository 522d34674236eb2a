"""Small models trained from scratch on the spot, kept at log-spaced steps, and found again by their settings.

A time budget is split over all models by their measured step times: every model is given the same share of the steps it
would take (`Kind.steps`). Without a budget each trains until its validation loss stops falling.

    <cache>/small/<kind>-<seed>-<hash>/step-0, step-1, step-2, step-4, … and the best, in hub format, with the processor
    <cache>/small/<kind>-<seed>-<hash>/training.json, written last: a folder without it is begun anew
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anisoscope.data.plans import digest
from anisoscope.models import ports
from anisoscope.provenance import run_id
from anisoscope.store import once, write_atomic
from anisoscope.training.kinds import KINDS, Kind, kind_named, material

Progress = Callable[[str, int, int], None]
"""Called with what is trained, steps done and steps in all."""

PROBED = 4
"""Steps that are timed to split the budget (one more warms up)."""
FEWEST = 2
TOLD = "training.json"
"""What is told of a training, written last."""


@dataclass(frozen=True)
class SmallModelRecipe:
    """How small models are trained. Everything here is part of their identity.

    seconds    for all `kinds` × `seeds` together; None: until the validation loss stops falling
    patience   evaluations without a lower validation loss after which training ends (without a budget)
    longest    most steps of one model without a budget, as a multiple of `Kind.steps`
    """

    seconds: float | None = 420.0
    seeds: int = 2
    kinds: tuple[str, ...] = tuple(KINDS)
    patience: int = 3
    longest: int = 3

    @property
    def available(self) -> list[Kind]:
        """Kinds whose data are at hand."""
        return [kind for kind in map(kind_named, self.kinds) if not kind.missing]


LONG = SmallModelRecipe(seconds=None, seeds=3)
"""Until the validation loss stops falling, or `longest` is reached: what the committed records come from."""


@dataclass(frozen=True)
class SmallModel:
    """A trained model: its folder and the steps whose checkpoints it holds; `history` has losses and times."""

    kind: Kind
    seed: int
    folder: Path
    steps: tuple[int, ...]
    history: dict[str, Any]

    def checkpoint(self, step: int) -> Path:
        """The folder of one step's checkpoint, in hub format."""
        return self.folder / f"step-{step}"

    @property
    def untrained(self) -> Path:
        """The same model before its first step."""
        return self.checkpoint(0)

    @property
    def best(self) -> int:
        """The step whose weights training ends with: its last; without a budget, the best by validation loss."""
        return int(self.history["best"])


def trained(
    kind: Kind, seed: int, recipe: SmallModelRecipe, cache: Path, progress: Progress = lambda _t, _d, _n: None
) -> SmallModel:
    """The model of one kind and seed: read from `cache`, else trained there."""
    ports.register()
    settings = {"kind": asdict(kind), "seed": seed, "recipe": asdict(recipe), "data": _data(kind)}
    folder = cache / "small" / f"{kind.name}-{seed}-{run_id(settings)[:8]}"

    def make() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        history = _train(kind, seed, recipe, folder, _planned_steps(kind, recipe, cache), progress)
        text = json.dumps({"settings": settings, **history}, indent=1, default=str)
        write_atomic(folder / TOLD, lambda path: path.write_text(text))

    once(folder, make, marker=TOLD)
    found = sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))
    return SmallModel(kind, seed, folder, tuple(found), json.loads((folder / TOLD).read_text()))


def _data(kind: Kind) -> str:
    """A hash of the training examples: other text, other weights."""
    from anisoscope.training import examples

    return digest(examples.identity(kind))[:16]


def _planned_steps(kind: Kind, recipe: SmallModelRecipe, cache: Path) -> int:
    """Steps of a model: its share of the budget, the same for every seed; without a budget the most it may take."""
    if recipe.seconds is None:
        return kind.steps * recipe.longest
    path = cache / "small" / f"budget-{run_id(asdict(recipe), [asdict(k) for k in recipe.available])[:8]}.json"

    def make() -> None:
        times = {k.name: seconds_per_step(k) for k in recipe.available}
        text = json.dumps({"seconds_per_step": times, "share": share(times, recipe)}, indent=1)
        write_atomic(path, lambda temporary: temporary.write_text(text))

    once(path, make)
    return max(FEWEST, round(kind.steps * float(json.loads(path.read_text())["share"])))


def share(times: dict[str, float], recipe: SmallModelRecipe) -> float:
    """The share of its steps that every model can take in the budget, 1 at most. `times`: seconds per step by kind."""
    needed = recipe.seeds * sum(kind_named(name).steps * seconds for name, seconds in times.items())
    return min(1.0, (recipe.seconds or needed) / needed)


def seconds_per_step(kind: Kind) -> float:
    """Measured on the first steps of a model that is thrown away."""
    from anisoscope.training import loop

    stamps: list[float] = []
    loop.fit(material(kind, 0), kind, 0, PROBED + 1, lambda _step, _model: stamps.append(time.monotonic()))
    return (stamps[-1] - stamps[1]) / max(len(stamps) - 2, 1)


def _train(
    kind: Kind, seed: int, recipe: SmallModelRecipe, folder: Path, steps: int, progress: Progress
) -> dict[str, Any]:
    """Train and keep the log-spaced checkpoints; what `training.json` says of it."""
    from anisoscope.training import loop

    made = material(kind, seed)
    name = f"{kind.label}, seed {seed}"

    def keep(step: int, model: Any) -> None:
        if step & (step - 1) == 0:
            _save(model, made.processor, folder / f"step-{step}")
        progress(name, step, steps)

    patience = None if recipe.seconds is not None else recipe.patience
    started = time.monotonic()
    history = loop.fit(made, kind, seed, steps, keep, patience)
    best = history["steps"] if patience is None else min(history["validation_loss"], key=lambda at: at[1])[0]
    _save(made.model, made.processor, folder / f"step-{best}")
    return history | {"best": best, "seconds": time.monotonic() - started}


def _save(model: Any, processor: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def train_all(recipe: SmallModelRecipe, kinds: Sequence[str], cache: Path, progress: Progress) -> list[SmallModel]:
    """Every seed of the `kinds` whose data are at hand."""
    wanted = [kind for kind in recipe.available if kind.name in kinds]
    return [trained(kind, seed, recipe, cache, progress) for kind in wanted for seed in range(recipe.seeds)]
