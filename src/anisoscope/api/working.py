"""`compare` and `report`: what else the program does, from Python and on the command line."""

from pathlib import Path

import pandas as pd

from anisoscope.api.run import Run
from anisoscope.errors import UsageError
from anisoscope.extras import require_extra
from anisoscope.registry import entries
from anisoscope.runs.tables import named, side_by_side


def compare(*runs: Run | Path | str, metric: str = "mean_cosine", tokens: str = "all") -> pd.DataFrame:
    """One metric of several runs side by side: a row per stack, layer and site, and of each run `value`, `low`, `high`.

    runs    `Run`s or folders, two or more
    metric  a name in the `metric` column of their records (`anisoscope list metrics`)
    tokens  token policy

    What the intervals tell apart, each run against the first, stands in sentences in `attrs["findings"]` of the table.
    UsageError, with near names, for a metric that a run has not, or that has no aggregate value of hidden states.
    """
    if len(runs) < 2:
        raise UsageError("at least two runs", str(len(runs)), "name another one")
    opened = [given if isinstance(given, Run) else Run(given) for given in runs]
    table, _, found = side_by_side(named((run.name, run.records) for run in opened), metric, tokens)
    table.attrs = {"findings": [finding.text for finding in found]}
    return table


def report(run: Run | Path | str, folder: Path | str | None = None, *, pdf: bool = False) -> Path:
    """Make the page of a run anew from its records, or of what another package writes (reproductions); its path.

    run      a `Run`, a run folder, or a folder of reproductions
    folder   where a run in memory is to be written
    pdf      figures as PDF too
    """
    require_extra("report", "to draw a page")
    if not isinstance(run, Run):
        for write_page in entries("pages").values():
            page: Path | None = write_page(Path(run))
            if page is not None:
                return page
    return (run if isinstance(run, Run) else Run(run)).report(folder, pdf=pdf)
