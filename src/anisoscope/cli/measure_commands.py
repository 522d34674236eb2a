"""`anisoscope measure`, `classes` and `merge`: measure, show tables and sentences, draw the page."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from anisoscope.cli.view import Config, Format, Quiet, View, echo_wrapped, format_path, say, show
from anisoscope.data.check_names import check_corpus, check_labelled, check_model
from anisoscope.errors import UsageError
from anisoscope.extras import find_missing_packages, require_extra
from anisoscope.options import INPUT, OUTPUT, FilePath, Names, Text, expand_home, option, select_fields
from anisoscope.progress import interrupt_hint, show_spinner
from anisoscope.runs.job import ClassesOptions, Job, OutputOptions, VectorColumns
from anisoscope.wording import list_first

if TYPE_CHECKING:
    from anisoscope.cli.view import Table
    from anisoscope.runs.series import Series
    from anisoscope.store import RunFolder

RunFolders = Annotated[tuple[FilePath, ...], option("run folders", INPUT)]
JOB, CLASSES, PLACE, FORMAT, VIEW = Job(), ClassesOptions(), OutputOptions(), Format(), View()


def measure(
    job: Job = JOB,
    place: OutputOptions = PLACE,
    view: View = VIEW,
    *,
    dry_run: Annotated[
        bool,
        option("say what it costs (of a series: list steps and seeds); load and measure nothing", OUTPUT),
    ] = False,
    report_to: Annotated[
        Names,
        option("log the layers to trackers, with commas: tensorboard, wandb, trackio", OUTPUT, metavar="NAME,…"),
    ] = (),
    quiet: Quiet = False,
    config: Config = None,  # noqa: ARG001  # read before this is called
) -> None:
    """Measure what the options name, and show what was found."""
    from anisoscope.models.series import describe, expand, is_series

    if job is JOB and not dry_run:
        _ask_for_corpus()
    check_model(job.model)
    check_corpus(job.corpus)
    if report_to:
        from anisoscope.monitor.trackers import check_trackers

        check_trackers(report_to)
    if dry_run and not expand_home(job.model).exists() and not is_series(job.model):
        _show_cost(job, quiet)
        return
    with show_spinner(f"loading {job.model}", quiet=quiet):
        from anisoscope.api.functions import measure_checkpoints, measure_job, measure_vectors
        from anisoscope.data.vector_files import holds_vectors, open_vectors

    if holds_vectors(job.model):
        if dry_run:
            reading = select_fields(job, VectorColumns)
            echo_wrapped(open_vectors(job.model, split=job.split, **reading).source["reading"], indent="  ")
            return
        _show_run(measure_vectors(job, job.model, place, quiet), view, quiet, report_to)
        return
    if dry_run and not is_series(job.model):
        _show_cost(job, quiet)
        return
    if not is_series(job.model):
        _show_run(measure_job(job, place, quiet), view, quiet, report_to)
        return
    checkpoints = expand(job.model)
    echo_wrapped(f"{len(checkpoints)} checkpoints\n{describe(checkpoints)}", err=not dry_run, indent="  ")
    if dry_run:
        for checkpoint in checkpoints:
            missing = "  (no such folder)" if _is_missing_sibling(checkpoint.subject) else ""
            say(f"seed {checkpoint.seed:<3d} step {checkpoint.step:<9,d} {checkpoint.subject}{missing}")
    else:
        series = measure_checkpoints(job, place, quiet)
        _show_series(series, job.settings.tokens[0], view, quiet)
        _log_to_trackers(series.records, series.folder, report_to)


def _ask_for_corpus() -> NoReturn:
    """Refuse a command line that says nothing of what is measured: its defaults take minutes.

    UsageError, with what would be measured and how to ask for it.
    """
    from anisoscope.data.opening import default_corpus

    corpus = default_corpus("text")
    alone = f"nothing: without options this would be {JOB.model} on all of {corpus}, minutes of work"
    example = f"anisoscope measure --corpus {corpus} --limit 40"
    raise UsageError("a --corpus, or a model", alone, f"name yours, or for a first look: {example}")


def _show_cost(job: Job, quiet: bool) -> None:
    """Show what measuring one model costs, from its configuration alone."""
    require_extra("models", f"to read the configuration of {job.model}")
    with show_spinner(f"reading the configuration of {job.model}", quiet=quiet):
        from anisoscope.measure.cost import format_bytes
        from anisoscope.runs.run import estimate_cost_before

        cost = estimate_cost_before(job)
    echo_wrapped(f"{job.model}: weights {format_bytes(cost.weights)} in {job.dtype}", indent="  ")
    echo_wrapped(cost.line, indent="  ")
    echo_wrapped(
        f"a state that --resume reads: {format_bytes(cost.state)}; windows of {cost.tokens:,} tokens", indent="  "
    )
    if cost.unmeasured:
        echo_wrapped(cost.without_spectrum, indent="  ")


def _show_series(series: "Series", policy: str, view: Format, quiet: bool) -> None:
    """Show A by step and layer, findings of the last step, checkpoints that were left out or came twice, and the
    page.
    """
    from anisoscope.cli import printed_tables
    from anisoscope.runs.findings import findings

    if int(os.environ.get("RANK", "0")):
        return
    records = series.records
    alike: dict[str, tuple[str, list[str]]] = {}
    for name, why in series.skipped.items():
        alike.setdefault(why.replace(name, ""), (why, []))[1].append(name)
    skipped = [f"skipped: {list_first(names)}: {why}" for why, names in alike.values()]
    repeated = [f"the same weights, bit for bit: {', '.join(names)}" for names in series.repeated]
    table, more = printed_tables.tabulate_series(records, policy), {"run": str(series.folder)}
    show([table], view, findings(records), [*skipped, *repeated], more)
    for line in [*skipped, *(f"note: {text}" for text in repeated)]:
        echo_wrapped(line, err=True, indent="  ")
    echo_wrapped(_announce_page(series.folder, quiet), err=True, indent="  ")
    place = format_path(series.folder, typed=True)
    if records["seed"].nunique() == 1 and records["step"].nunique() > 1:
        echo_wrapped(f"next, every checkpoint against the first: anisoscope compare {place}", err=True, indent="  ")
    echo_wrapped(f"a page of one checkpoint: anisoscope report {place}/seed-…", err=True, indent="  ")


def _announce_page(folder: Path, quiet: bool) -> str:
    """Draw the page of a finished run or series, and return a line that says where it is, or how to get one without
    charts.
    """
    missing = find_missing_packages("report")
    if missing:
        later = f"pip install 'anisoscope[report]', then anisoscope report {format_path(folder, typed=True)}"
        return f"no page was drawn: {' and '.join(missing)} not installed. For one: {later}"
    return f"report: {format_path(_draw_page(folder, quiet))} (open it in a browser)"


def _draw_page(folder: Path, quiet: bool) -> Path:
    """Draw the page of a finished run or series."""
    drawn_later = f"anisoscope report {shlex.quote(str(folder))}"
    with (
        interrupt_hint(lambda: "the run is finished, but for its page", drawn_later),
        show_spinner("drawing the report", quiet=quiet),
    ):
        from anisoscope.report import build_page

        return build_page(folder)


def _is_missing_sibling(subject: str) -> bool:
    """Tell whether a name is meant as a folder beside existing ones here, but does not exist."""
    path = Path(subject)
    local = "@" not in subject and (subject.startswith(("./", "../")) or path.parent != Path())
    return local and path.parent.is_dir() and not path.exists()


def classes(
    asked: ClassesOptions = CLASSES,
    place: OutputOptions = PLACE,
    view: Format = FORMAT,
    *,
    text: Annotated[
        Text | None,
        option("explain the class found for this text, word by word, and measure nothing else", INPUT),
    ] = None,
    quiet: Quiet = False,
    config: Config = None,  # noqa: ARG001  # read before this is called
) -> None:
    """Ask a classifier what makes its classes, and show the answer."""
    check_model(asked.model)
    check_labelled(asked.corpus)
    if text is not None:
        _show_explained_text(asked, text, view, quiet)
        return
    from anisoscope.api.classifiers import measure_classes

    _show_run(measure_classes(asked, place, quiet), view, quiet)


def _show_explained_text(asked: ClassesOptions, text: str, view: Format, quiet: bool) -> None:
    """Show the class given to a text, its words coloured on a terminal, and tables of what explains it."""
    from anisoscope.api.classifiers import explain_text
    from anisoscope.cli.words import colour_words, describe_explained_text, tabulate_explained_text

    found, notes = explain_text(asked, text, quiet)
    if view.format == "table":
        echo_wrapped(describe_explained_text(found))
        for line in colour_words(found):
            say(line)
        say("")
    show(tabulate_explained_text(found), view)
    for note in (*notes, *found.notes):
        echo_wrapped(f"note: {note}", err=True, indent="  ")


def merge(
    runs: RunFolders,
    /,
    *,
    output: Annotated[FilePath, option("new run folder", OUTPUT, "-o")],
    view: View = VIEW,
    quiet: Quiet = False,
) -> None:
    """Add up shards of one run, and show what was found."""
    if len(runs) < 2:
        raise UsageError("at least two run folders", str(len(runs)), "name all shards")
    with show_spinner("adding up shards", quiet=quiet):
        from anisoscope.runs.merge import merge_runs

        done = merge_runs(runs, output)
    _show_run(done, view, quiet)


def _log_to_trackers(records: Any, folder: Path, trackers: tuple[str, ...]) -> None:
    """Log the layers of a run or series to trackers, and print where they are."""
    if not trackers or int(os.environ.get("RANK", "0")):
        return
    from anisoscope.monitor.trackers import log_run

    for line in log_run(records, trackers, name=folder.name, folder=folder / "tensorboard"):
        echo_wrapped(line, err=True, indent="  ")


def _show_run(done: "RunFolder", view: Format, quiet: bool, trackers: tuple[str, ...] = ()) -> None:
    """Show tables and findings, draw the report, then print notes, its place and what to do next on stderr."""
    from anisoscope.cli import printed_tables
    from anisoscope.data.arrays import STACK
    from anisoscope.runs.differences import read_replicates
    from anisoscope.runs.findings import findings

    if int(os.environ.get("RANK", "0")):  # one process of a torchrun job speaks for all
        return
    records = done.records
    if "classes" in (done.identity() or {}):
        shown = printed_tables.tabulate_classes(records)
    else:
        replicates = read_replicates(done.folder, len(records))
        shown = _build_tables_of_run(records, replicates, view, done.manifest.get("tokens", {}))
    if not any(table.rows for table in shown) and view.format == "table":
        echo_wrapped(
            f"No value of a whole layer was measured; all records are in {format_path(done.folder / 'records.parquet')}"
        )
    found = findings(records, done.manifest.get("tokens"))
    show(shown, view, found, done.manifest["warnings"], {"run": str(done.folder)})
    page_line = _announce_page(done.folder, quiet)
    for warning in done.manifest["warnings"]:
        echo_wrapped(f"note: {warning}", err=True, indent="  ")
    echo_wrapped(page_line, err=True, indent="  ")
    _log_to_trackers(records, done.folder, trackers)
    folder = format_path(done.folder, typed=True)
    of_vectors = done.manifest["corpus"]["name"] == STACK
    following = f"cure {folder}" if of_vectors else f"compare {folder} ANOTHER-RUN"
    echo_wrapped(f"next: anisoscope {following}", err=True, indent="  ")


def _build_tables_of_run(records: Any, replicates: Any, view: Format, words: Mapping[str, str]) -> "list[Table]":
    """Build the tables that show a run: hidden states layer by layer, then attention, then extremes; without them the
    named metrics.
    """
    from anisoscope.cli import printed_tables
    from anisoscope.cli.extreme_tables import tabulate_extremes

    wide = isinstance(view, View) and view.wide
    heads = isinstance(view, View) and view.heads
    of_hidden = printed_tables.tabulate_layers(records, wide=wide)
    of_attention = printed_tables.tabulate_attention(records, replicates, heads=heads, wide=wide)
    shown = [of_hidden] if of_hidden.rows else []
    if of_attention is not None:
        shown.append(of_attention)
    elif heads:
        echo_wrapped("note: no attention was measured, hence no heads: add attention to --panel", err=True, indent="  ")
    of_extremes = tabulate_extremes(records, replicates, words, heads=heads, wide=wide)
    shown += of_extremes
    if of_hidden.rows:
        shown += printed_tables.tabulate_beside_hidden(records)
    elif not of_extremes:
        shown += printed_tables.tabulate_named_metrics(records)
        other = printed_tables.tabulate_other_head_metrics(records, replicates) if of_attention is None else None
        shown += [other] if other is not None else []
    return shown or [of_hidden]
