"""`compare` and `report`, shared by Python and the command line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anisoscope.api.comparison import Comparison
from anisoscope.api.run import Run
from anisoscope.errors import UsageError
from anisoscope.extras import require_extra
from anisoscope.options import build_settings, expand_home
from anisoscope.progress import show_progress
from anisoscope.registry import list_entries_of
from anisoscope.runs.comparison import compare as compare_kept
from anisoscope.runs.job import ModelsOptions
from anisoscope.runs.measured_series import SERIES, expand_series
from anisoscope.runs.models_as_runs import open_or_measure


def compare(
    *runs: Run | Path | str,
    metric: str = "mean_cosine",
    tokens: str = "all",
    heads: bool = False,
    **options: Any,
) -> Comparison:
    """Compare runs with the first one, with an interval of each difference; paired if they measured the same units.

    runs    two or more `Run`s or run folders. Names of models and files of vectors are also accepted: they are measured
            first, into the folder `runs`, and not again the next time. A measured series of checkpoints counts as one
            run for each checkpoint, so that it may be given alone
    metric  a name in the `metric` column of their records, `A`, or a name from the literature (`anisotropy`)
    tokens  token policy (which tokens count)
    heads   compare head by head; otherwise whole layers, for metrics of heads the mean over them
    options how models are measured: `corpus`, `limit`, `max_length`, `dtype`, `device` … as for `measure`

    Layers of stacks (encoder, decoder) of different depth are matched by relative depth. What else differs between the
    runs (corpus, tokens, dtype, settings) is listed in the result's `notes`. The method `across` of the result compares
    every layer of one run with every layer of another (CKA). UsageError, with similar names, for a metric that a run
    lacks.
    """
    expanded = expand_series(_name_runs(runs))
    if len(expanded) < 2:
        raise UsageError("at least two runs", str(len(expanded)), "name one more run")
    given = dict(options)
    quiet = bool(given.pop("quiet", True))
    measuring = build_settings(ModelsOptions, given, also=("quiet",))
    # Names are opened or measured in one go, which shows one progress; then every run takes its old place.
    names = [run for run in expanded if not isinstance(run, Run)]
    opened = iter(
        open_or_measure(
            names, measuring, [metric], lambda title: show_progress(title, quiet=quiet)
        )
    )
    kept = [run.kept if isinstance(run, Run) else next(opened) for run in expanded]
    return Comparison(compare_kept(kept, metric, tokens=tokens, heads=heads))


def _name_runs(runs: Iterable[Run | Path | str]) -> list[Run | str]:
    """Replace paths and series of checkpoints by their names; return `Run`s of one model unchanged."""
    named: list[Run | str] = []
    for run in runs:
        if not isinstance(run, Run):
            # A run of a whole series is a run for each of its checkpoints, which are
            # read from its folder.
            named.append(str(run))
        elif run.folder is not None and (run.folder / SERIES).exists():
            named.append(str(run.folder))
        else:
            named.append(run)
    return named


def report(
    run: Run | Path | str, folder: Path | str | None = None, *, pdf: bool = False
) -> Path:
    """Rebuild the report's page of a run from its records, and return its path.

    run      a `Run`, a run folder, or a folder of reproductions, whose page another package writes
    folder   where to write; None: the run's own folder, which a run in memory lacks
    pdf      figures as PDF too
    """
    require_extra("report", "to draw a page")
    if isinstance(run, Run):
        return run.report(folder, pdf=pdf)
    # Another package may know the folder as its own, such as the papers' reproductions.
    for write_page in list_entries_of("pages").values():
        page: Path | None = write_page(expand_home(run))
        if page is not None:
            return page
    return Run(run).report(folder, pdf=pdf)
