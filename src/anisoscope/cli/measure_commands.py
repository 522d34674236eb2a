"""`anisoscope measure`, `classes` and `merge`: measure, show tables and sentences, draw the page."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from anisoscope.cli.view import (
    Config,
    Format,
    Quiet,
    Table,
    View,
    echo_wrapped,
    format_path,
    say,
    show,
    show_row,
)
from anisoscope.data.check_names import check_corpus, check_labelled, check_model
from anisoscope.errors import UsageError
from anisoscope.extras import find_missing_packages, require_extra
from anisoscope.options import (
    INPUT,
    OUTPUT,
    FilePath,
    Names,
    Text,
    expand_home,
    option,
    select_fields,
    separate_names,
)
from anisoscope.progress import interrupt_hint, show_spinner
from anisoscope.runs.job import ClassesOptions, Job, OutputOptions, VectorColumns
from anisoscope.wording import list_first

if TYPE_CHECKING:
    from anisoscope.models.series import Checkpoint
    from anisoscope.runs.series import Series
    from anisoscope.store import RunFolder

RunFolders = Annotated[tuple[FilePath, ...], option("run folders to join", INPUT)]
JOB = Job()
CLASSES = ClassesOptions()
OUTPUT_OPTIONS = OutputOptions()
FORMAT = Format()
VIEW = View()


def measure(
    job: Job = JOB,
    place: OutputOptions = OUTPUT_OPTIONS,
    view: View = VIEW,
    *,
    dry_run: Annotated[
        bool,
        option(
            "say what this would cost (for a series: list steps and seeds); load and "
            "measure nothing",
            OUTPUT,
        ),
    ] = False,
    report_to: Annotated[
        Names,
        option(
            "also log the values of each layer to trackers, with commas: tensorboard, "
            "wandb, trackio",
            OUTPUT,
            metavar="NAME,…",
        ),
    ] = (),
    quiet: Quiet = False,
    config: Config = None,  # read before this is called  # noqa: ARG001
) -> None:
    """Measure what the options name, and show what was found."""
    from anisoscope.models.series import is_series

    # Mistakes in names are reported at once, before torch is imported.
    # The very object of the defaults: no option of a job was typed.
    if job is JOB and not dry_run:
        _ask_for_corpus()
    check_model(job.model)
    check_corpus(job.corpus)
    trackers = separate_names(report_to)
    if trackers:
        from anisoscope.monitor.trackers import check_trackers

        # Before hours of measuring, not after.
        check_trackers(trackers)
    # Neither a path nor a series: a model of the hub, whose cost is told without importing what measures.
    if dry_run and not expand_home(job.model).exists() and not is_series(job.model):
        _show_cost(job, view, quiet)
        return
    with show_spinner(f"loading {job.model}", quiet=quiet):
        # Both load torch, which takes seconds.
        import anisoscope.api.functions  # noqa: F401
        from anisoscope.data.vector_files import holds_vectors

    if holds_vectors(job.model):
        _measure_vectors(job, place, view, dry_run, trackers, quiet)
    elif is_series(job.model):
        _measure_series(job, place, view, dry_run, trackers, quiet)
    else:
        _measure_model(job, place, view, dry_run, trackers, quiet)


def _measure_model(
    job: Job,
    place: OutputOptions,
    view: View,
    dry_run: bool,
    trackers: tuple[str, ...],
    quiet: bool,
) -> None:
    """Measure one model and show what was found; in a dry run, show what it would cost."""
    if dry_run:
        _show_cost(job, view, quiet)
        return
    from anisoscope.api.functions import measure_job

    _show_run(measure_job(job, place, quiet), view, quiet, trackers)


def _measure_vectors(
    job: Job,
    place: OutputOptions,
    view: View,
    dry_run: bool,
    trackers: tuple[str, ...],
    quiet: bool,
) -> None:
    """Measure a file of vectors and show what was found; in a dry run, show how the file is read."""
    if dry_run:
        _show_reading(job, view)
        return
    from anisoscope.api.functions import measure_vectors

    _show_run(measure_vectors(job, job.model, place, quiet), view, quiet, trackers)


def _show_reading(job: Job, view: Format) -> None:
    """Show how a file of vectors is read: which columns are vectors, units and labels."""
    from anisoscope.data.vector_files import open_vectors

    columns = select_fields(job, VectorColumns)
    arrays = open_vectors(job.model, split=job.split, **columns)
    reading = arrays.source["reading"]
    if view.format == "table":
        echo_wrapped(reading, indent="  ")
        return
    count, dimensions = arrays.shape[0], arrays.shape[-1]
    show_row({"vectors": count, "dimensions": dimensions, "reading": reading}, view)


def _measure_series(
    job: Job,
    output: OutputOptions,
    view: Format,
    dry_run: bool,
    trackers: tuple[str, ...],
    quiet: bool,
) -> None:
    """Measure every checkpoint of a series and show what was found; in a dry run, list the checkpoints."""
    from anisoscope.models.series import describe, expand

    checkpoints = expand(job.model)
    # Of a dry run the list of checkpoints is the answer, and this its beginning.
    is_answer = dry_run and view.format == "table"
    echo_wrapped(
        f"{len(checkpoints)} checkpoints\n{describe(checkpoints)}",
        err=not is_answer,
        indent="  ",
    )
    if dry_run:
        _list_checkpoints(checkpoints, view)
        return
    from anisoscope.api.functions import measure_checkpoints

    series = measure_checkpoints(job, output, quiet)
    _show_series(series, job.settings.tokens[0], view, quiet)
    _log_to_trackers(series.records, series.folder, trackers)


def _list_checkpoints(checkpoints: Sequence["Checkpoint"], view: Format) -> None:
    """Show seed, step and name of each checkpoint of a series, and which of them have no folder."""
    if view.format == "table":
        for one in checkpoints:
            missing = "  (no such folder)" if _is_missing_sibling(one.subject) else ""
            say(f"seed {one.seed:<3d} step {one.step:<9,d} {one.subject}{missing}")
        return
    import pandas as pd

    head = ("seed", "step", "model", "missing")
    rows: list[tuple[Any, ...]] = []
    for one in checkpoints:
        rows.append((one.seed, one.step, one.subject, _is_missing_sibling(one.subject)))
    cells = [[str(value) for value in row] for row in rows]
    show([Table(head, cells, pd.DataFrame(rows, columns=list(head)))], view)


def _ask_for_corpus() -> NoReturn:
    """Refuse `anisoscope measure` without options, since its defaults take minutes.

    It raises UsageError, which says what would be measured and how to ask for it.
    """
    from anisoscope.data.opening import default_corpus

    corpus = default_corpus("text")
    alone = f"nothing: without options {JOB.model} would be measured on all of {corpus}, which takes minutes"
    example = f"anisoscope measure --corpus {corpus} --limit 40"
    raise UsageError(
        "a model or a --corpus to measure",
        alone,
        f"name one, or for a first look type: {example}",
    )


def _show_cost(job: Job, view: Format, quiet: bool) -> None:
    """Show what measuring one model costs, from its configuration alone; sizes in bytes if not as a table."""
    # The configuration of a model of the hub is read by its library.
    require_extra("models", f"to read the configuration of {job.model}")
    with show_spinner(f"reading the configuration of {job.model}", quiet=quiet):
        from anisoscope.measure.cost import format_bytes
        from anisoscope.runs.run import estimate_cost_before

        cost = estimate_cost_before(job)
    if view.format != "table":
        row = {
            "model": job.model,
            "dtype": job.dtype,
            "weights": cost.weights,
            "state": cost.state,
            "window": cost.tokens,
            "unmeasured": cost.unmeasured,
            "cost": cost.line,
        }
        show_row(row, view)
        return
    state = f"a state that --resume reads: {format_bytes(cost.state)}; windows of {cost.tokens:,} tokens"
    echo_wrapped(
        f"{job.model}: weights {format_bytes(cost.weights)} in {job.dtype}", indent="  "
    )
    echo_wrapped(cost.line, indent="  ")
    echo_wrapped(state, indent="  ")
    if cost.unmeasured:
        echo_wrapped(cost.without_spectrum, indent="  ")


def _show_series(series: "Series", policy: str, view: Format, quiet: bool) -> None:
    """Show a measured series: A by step and layer, findings, skipped and repeated checkpoints, and where the page is.

    policy   the token policy (which tokens count) whose A is shown
    """
    from anisoscope.cli import printed_tables
    from anisoscope.runs.findings import findings

    # In a torchrun job every process comes here with the same records.
    if not _is_first_process():
        return
    records = series.records
    skipped = _describe_skipped(series.skipped)
    repeated = []
    for names in series.repeated:
        repeated.append(f"the same weights, bit for bit: {', '.join(names)}")
    table = printed_tables.tabulate_series(records, policy)
    show(
        [table],
        view,
        findings(records),
        [*skipped, *repeated],
        {"run": str(series.folder)},
    )
    for line in skipped:
        echo_wrapped(line, err=True, indent="  ")
    for line in repeated:
        echo_wrapped(f"note: {line}", err=True, indent="  ")
    echo_wrapped(_announce_page(series.folder, quiet), err=True, indent="  ")
    folder = format_path(series.folder, typed=True)
    # Otherwise there is no single first checkpoint.
    if records["seed"].nunique() == 1 and records["step"].nunique() > 1:
        echo_wrapped(
            f"next, every checkpoint against the first: anisoscope compare {folder}",
            err=True,
            indent="  ",
        )
    echo_wrapped(
        f"a page of one checkpoint: anisoscope report {folder}/seed-…",
        err=True,
        indent="  ",
    )


def _describe_skipped(skipped: Mapping[str, str]) -> list[str]:
    """Return a line for each reason why checkpoints were skipped, with the names of the first of them.

    skipped   {name: reason}
    """
    # A series has dozens of checkpoints, and what is wrong with one is mostly wrong
    # with all.
    names_by_reason: dict[str, list[str]] = {}
    first_reasons: dict[str, str] = {}
    for name, reason in skipped.items():
        # Reasons that differ only in the name of the checkpoint are one.
        without_name = reason.replace(name, "")
        names_by_reason.setdefault(without_name, []).append(name)
        first_reasons.setdefault(without_name, reason)
    lines = []
    for key, names in names_by_reason.items():
        lines.append(f"skipped: {list_first(names)}: {first_reasons[key]}")
    return lines


def _is_first_process() -> bool:
    """Return whether this process prints: in a torchrun job only the first one does."""
    # Torchrun sets RANK; without it there is one process.
    return int(os.environ.get("RANK", "0")) == 0


def _announce_page(folder: Path, quiet: bool) -> str:
    """Draw the page of a finished run or series, and return a line that says where it is.

    If packages for drawing are not installed, the line says how to get the page later.
    """
    missing = find_missing_packages("report")
    if missing:
        later = f"pip install 'anisoscope[report]', then anisoscope report {format_path(folder, typed=True)}"
        return f"no page was drawn: {' and '.join(missing)} not installed. For one: {later}"
    return f"report: {format_path(_draw_page(folder, quiet))} (open it in a browser)"


def _draw_page(folder: Path, quiet: bool) -> Path:
    """Draw the page of a finished run or series."""
    # After Ctrl-C the measurement is not lost: the hint names what draws the page
    # alone.
    command = f"anisoscope report {shlex.quote(str(folder))}"
    with (
        interrupt_hint(lambda: "the run is finished, but for its page", command),
        show_spinner("drawing the report", quiet=quiet),
    ):
        from anisoscope.report import build_page

        return build_page(folder)


def _is_missing_sibling(subject: str) -> bool:
    """Return whether a name looks like a folder next to existing ones, but does not exist."""
    path = Path(subject)
    # A revision of the hub is written NAME@REVISION.
    is_on_hub = "@" in subject
    has_parent = subject.startswith(("./", "../")) or path.parent != Path()
    if is_on_hub or not has_parent:
        return False
    return path.parent.is_dir() and not path.exists()


def classes(
    settings: ClassesOptions = CLASSES,
    place: OutputOptions = OUTPUT_OPTIONS,
    view: Format = FORMAT,
    *,
    text: Annotated[
        Text | None,
        option(
            "explain the class found for this text, word by word, and measure nothing else",
            INPUT,
        ),
    ] = None,
    quiet: Quiet = False,
    config: Config = None,  # read before this is called  # noqa: ARG001
) -> None:
    """Ask a classifier what makes its classes, and show the answer."""
    check_model(settings.model)
    check_labelled(settings.corpus)
    if text is not None:
        _show_explained_text(settings, text, view, quiet)
        return
    from anisoscope.api.classifiers import measure_classes

    _show_run(measure_classes(settings, place, quiet), view, quiet)


def _show_explained_text(
    settings: ClassesOptions, text: str, view: Format, quiet: bool
) -> None:
    """Show the class given to a text, its words coloured on a terminal, and tables of what explains it."""
    from anisoscope.api.classifiers import explain_text
    from anisoscope.cli.words import (
        colour_words,
        describe_explained_text,
        tabulate_explained_text,
    )

    explanation, notes = explain_text(settings, text, quiet)
    if view.format == "table":
        echo_wrapped(describe_explained_text(explanation))
        for line in colour_words(explanation):
            say(line)
        say("")
    show(tabulate_explained_text(explanation), view)
    for note in (*notes, *explanation.notes):
        echo_wrapped(f"note: {note}", err=True, indent="  ")


def merge(
    runs: RunFolders,
    /,
    *,
    output: Annotated[
        FilePath, option("folder to write the joined run to", OUTPUT, "-o")
    ],
    view: View = VIEW,
    quiet: Quiet = False,
) -> None:
    """Add up shards of one run, or runs of different files, and show what was found."""
    if len(runs) < 2:
        raise UsageError(
            "at least two run folders",
            str(len(runs)),
            "name the folders of all shards, or of all runs to join",
        )
    with show_spinner("adding up shards", quiet=quiet):
        from anisoscope.runs.merge import merge_runs

        merged = merge_runs(runs, output)
    _show_run(merged, view, quiet)


def _log_to_trackers(records: Any, folder: Path, trackers: tuple[str, ...]) -> None:
    """Log the layers of a run or series to trackers, and print where they are."""
    if not trackers or not _is_first_process():
        return
    from anisoscope.monitor.trackers import log_run

    for line in log_run(
        records, trackers, name=folder.name, folder=folder / "tensorboard"
    ):
        echo_wrapped(line, err=True, indent="  ")


def _show_run(
    run: "RunFolder", view: Format, quiet: bool, trackers: tuple[str, ...] = ()
) -> None:
    """Show the tables and findings of a run, draw its page, then print notes and what to do next on stderr.

    trackers   names of trackers (tensorboard, wandb, trackio) to log the layers to
    """
    from anisoscope.cli import printed_tables
    from anisoscope.data.arrays import STACK
    from anisoscope.runs.differences import read_replicates
    from anisoscope.runs.findings import findings

    if not _is_first_process():
        return
    records = run.records
    manifest = run.manifest
    # A run of `anisoscope classes`, whose records are of another kind.
    if "classes" in (run.identity() or {}):
        tables = printed_tables.tabulate_classes(records)
    else:
        replicates = read_replicates(run.folder, len(records))
        tables = _build_tables_of_run(
            records, replicates, view, manifest.get("tokens", {})
        )
    # Without this line an empty screen would look like a failure.
    if not any(table.rows for table in tables) and view.format == "table":
        file = format_path(run.folder / "records.parquet")
        echo_wrapped(
            f"No value of a whole layer was measured; all records are in {file}"
        )
    sentences = findings(records, manifest.get("tokens"))
    show(tables, view, sentences, manifest["warnings"], {"run": str(run.folder)})
    # Drawn before the notes are printed, so that its progress does not separate them.
    page_line = _announce_page(run.folder, quiet)
    for warning in manifest["warnings"]:
        echo_wrapped(f"note: {warning}", err=True, indent="  ")
    echo_wrapped(page_line, err=True, indent="  ")
    _log_to_trackers(records, run.folder, trackers)
    # What can be done next with it: vectors can be cured, models compared.
    folder = format_path(run.folder, typed=True)
    is_of_vectors = manifest["corpus"]["name"] == STACK
    following = f"cure {folder}" if is_of_vectors else f"compare {folder} ANOTHER-RUN"
    echo_wrapped(f"next: anisoscope {following}", err=True, indent="  ")


def _build_tables_of_run(
    records: Any, replicates: Any, view: Format, words: Mapping[str, str]
) -> "list[Table]":
    """Build the tables that show a run: hidden states layer by layer, then attention, then extremes.

    If there are no hidden states and no extremes, the metrics that were named on the command line get tables.

    replicates   of each record its value without each group of units, from which intervals of means over heads follow
    words        {token id: its text}
    """
    from anisoscope.cli import printed_tables
    from anisoscope.cli.extreme_tables import tabulate_extremes

    # `anisoscope classes` has no options for wide tables and heads.
    wide = isinstance(view, View) and view.wide
    heads = isinstance(view, View) and view.heads
    of_hidden = printed_tables.tabulate_layers(records, wide=wide)
    of_attention = printed_tables.tabulate_attention(
        records, replicates, heads=heads, wide=wide
    )
    of_extremes = tabulate_extremes(records, replicates, words, heads=heads, wide=wide)
    tables = []
    if of_hidden.rows:
        tables.append(of_hidden)
    if of_attention is not None:
        tables.append(of_attention)
    # The option was typed, and nothing of it can be shown: say why.
    elif heads:
        echo_wrapped(
            "note: no attention was measured, hence no heads: add attention to --panel",
            err=True,
            indent="  ",
        )
    tables += of_extremes
    if of_hidden.rows:
        tables += printed_tables.tabulate_opt_in_metrics(records)
    elif not of_extremes:
        tables += _build_tables_of_named_metrics(
            records, replicates, has_attention=of_attention is not None
        )
    # Other formats than the terminal's write an empty table too.
    return tables or [of_hidden]


def _build_tables_of_named_metrics(
    records: Any, replicates: Any, *, has_attention: bool
) -> "list[Table]":
    """Build the tables of a run that has neither hidden states nor extremes: single metrics were named.

    has_attention   whether the table of attention is shown, which has the metrics of heads already
    """
    from anisoscope.cli import printed_tables

    tables = list(printed_tables.tabulate_named_metrics(records))
    if not has_attention:
        of_heads = printed_tables.tabulate_other_head_metrics(records, replicates)
        if of_heads is not None:
            tables.append(of_heads)
    return tables
