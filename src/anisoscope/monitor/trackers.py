"""Log the results of a run to an experiment tracker: TensorBoard, Weights & Biases, Trackio.

>>> run = anisoscope.measure(model, texts)
>>> log_run(run.records, ("tensorboard",), name="my-model", folder=Path("runs/tensorboard"))

The names are those that `Monitor` logs, so that a finished model appears in the same charts as one in training.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope.errors import ExtraError, UsageError, suggest_names
from anisoscope.monitor.scalars import summarise_layers

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}
"""Names of trackers, and the package of each."""
PROJECT = "anisoscope"


def check_trackers(names: Sequence[str]) -> None:
    """Raise UsageError for an unknown tracker, ExtraError for one that is not installed."""
    for name in names:
        if name not in PACKAGES:
            raise UsageError(
                f"trackers ({', '.join(PACKAGES)})",
                repr(name),
                suggest_names(name, PACKAGES),
            )
        if find_spec(PACKAGES[name]) is None:
            got = f"an installation without {PACKAGES[name]}"
            raise ExtraError(
                f"the package of --report-to {name}",
                got,
                f"pip install {PACKAGES[name]}",
            )


def log_run(
    records: pd.DataFrame,
    trackers: Sequence[str],
    *,
    name: str,
    folder: Path,
    project: str = PROJECT,
) -> list[str]:
    """Log A, entropy, sinks … of every layer (`monitor.scalars`), at the training step of each checkpoint.

    records   of a run, or of a series: one tracker's run for each seed
    trackers  names in `PACKAGES`
    name      of the run in the tracker
    folder    of TensorBoard's files; the others write where they are configured to

    Returns a line for each tracker that says where to look. UsageError and ExtraError as `check_trackers`; UsageError
    if nothing was measured that trackers draw.
    """
    # First of all, since a wrong name needs no look at the records.
    check_trackers(trackers)
    runs = _split_by_seed(records, name)
    has_values = any(any(steps.values()) for steps in runs.values())
    if not has_values:
        expected = "a run of hidden states or attention (--panel hidden,attention)"
        raise UsageError(
            expected, "none of the values that trackers draw", "leave --report-to out"
        )
    lines = []
    for tracker in trackers:
        for run_name, steps in runs.items():
            lines.append(_LOGGERS[tracker](steps, run_name, folder, project))
    return lines


def _split_by_seed(
    records: pd.DataFrame, name: str
) -> dict[str, dict[int, dict[str, float]]]:
    """Return the values to log: {name of the tracker's run: {training step: {name: value}}}.

    There is one run for each seed if there are several. `name` is that of the run, or the beginning of it.
    """
    seeds = records["seed"].dropna().unique().tolist()
    runs: dict[str, dict[int, dict[str, float]]] = {}
    # A run of one model may have no seed: then all of its records belong together.
    for seed in sorted(seeds) or [None]:
        rows = records
        if seed is not None:
            rows = records[records["seed"] == seed]
        run_name = name if len(seeds) < 2 else f"{name}-seed-{seed}"
        # A run of one model has no step; trackers want one.
        by_step = rows.groupby(rows["step"].fillna(0).astype(int))
        runs[run_name] = {}
        for step, of_step in by_step:
            runs[run_name][int(step)] = summarise_layers(of_step)
    return runs


def _log_to_tensorboard(
    steps: dict[int, dict[str, float]],
    name: str,
    folder: Path,
    project: str,  # noqa: ARG001
) -> str:
    """Write the values to a TensorBoard events file, and return a line that says how to open it."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / name)) as writer:
        for step, values in steps.items():
            for key, value in values.items():
                writer.add_scalar(key, value, step)
    return f"logged to TensorBoard: tensorboard --logdir {folder}"


def _log_with_session(
    package: str,
) -> Callable[[dict[int, dict[str, float]], str, Path, str], str]:
    """Return a function that logs one run to a package with the interface of wandb: init, log, finish.

    It takes the values by training step, the name of the run, a folder that is not used, and the project.
    """

    def log(
        steps: dict[int, dict[str, float]],
        name: str,
        folder: Path,  # noqa: ARG001
        project: str,  # noqa: ARG001, RUF100
    ) -> str:
        """Log the values at each step as one run of the tracker, and return a line that says where to look."""
        tracker: Any = import_module(package)
        tracker.init(project=project, name=name)
        for step, values in steps.items():
            tracker.log(values, step=step)
        tracker.finish()
        return f"logged to {package}: project {project}, run {name}"

    return log


_LOGGERS = {
    "tensorboard": _log_to_tensorboard,
    "wandb": _log_with_session("wandb"),
    "trackio": _log_with_session("trackio"),
}
