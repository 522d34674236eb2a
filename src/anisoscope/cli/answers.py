"""`anisoscope cure`, `apply` and `doctor`: what to do about it, and whether this installation can."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from anisoscope.cli.view import (
    Format,
    Quiet,
    Table,
    count_columns as terminal_columns,
    echo_wrapped,
    format_path,
    say,
    say_json,
    show,
    show_row,
)
from anisoscope.errors import OutputError, UsageError
from anisoscope.options import (
    INPUT,
    OUTPUT,
    WHAT,
    CorpusName,
    FilePath,
    Text,
    Whole,
    expand_home,
    option,
    select_fields,
)
from anisoscope.progress import show_spinner
from anisoscope.runs.job import VectorColumns

if TYPE_CHECKING:
    from anisoscope.cures.trial import Trials
    from anisoscope.doctor import Diagnosis
    from anisoscope.store import RunFolder

FORMAT = Format()
COLUMNS = VectorColumns()
CURES_HELP = (
    "cures (changes of all vectors) to try, with commas: centre, standardise, whiten, "
    "remove-top:3 (the three principal directions with the largest variance; 1..3: "
    "one, two and three of them), drop-dims:auto or drop-dims:5,17 (these dimensions)"
)


def cure(
    vectors: Annotated[
        Text,
        option(
            "file of vectors, run folder, or model (anything that measure accepts)",
            INPUT,
        ),
    ],
    /,
    columns: VectorColumns = COLUMNS,
    view: Format = FORMAT,
    *,
    corpus: Annotated[
        CorpusName | None,
        option(
            "for a model: what it reads: built-in name, hub data set, file or folder",
            INPUT,
        ),
    ] = None,
    limit: Annotated[
        Whole | None,
        Field(ge=1),
        option(
            "for a model: read only the first N documents, clips or images of the "
            "corpus",
            INPUT,
        ),
    ] = None,
    cures: Annotated[Text, option(CURES_HELP, WHAT)] = "",
    pairs: Annotated[
        FilePath | None,
        option(
            "file with one partner for each vector, in the same order (such as the "
            "answer to each question)",
            INPUT,
        ),
    ] = None,
    layer: Annotated[
        Text | None,
        option(
            "which layer, if there are several, as 5, final or decoder 5; default: the "
            "one with the highest anisotropy A",
            INPUT,
        ),
    ] = None,
    seed: Annotated[
        Whole,
        Field(ge=0),
        option(
            "seed that decides on which half of the documents (or clips, images) cures "
            "are fitted",
            WHAT,
        ),
    ] = 0,
    write: Annotated[
        FilePath | None,
        option(
            "file to write the vectors to, changed by the chosen cure (.npy)", OUTPUT
        ),
    ] = None,
    save: Annotated[
        FilePath | None,
        option(
            "file to save the chosen cure to, for anisoscope apply (.safetensors)",
            OUTPUT,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Try cures on vectors, and say which one fits."""
    from anisoscope.cures.transforms import DEFAULT, expand_cures

    # Before anything is read or measured: a cure that does not exist is reported at
    # once.
    names = expand_cures(cures or DEFAULT)
    source = _read_vectors_to_cure(vectors, columns, corpus, limit, layer, quiet)
    with show_spinner(f"trying cures on {vectors}", quiet=quiet):
        # Imported under the spinner, since they take seconds.
        from anisoscope.cures.trial import fit_to_use, try_cures
        from anisoscope.data.vector_files import open_vectors
        from anisoscope.runs.curing import read_layer_of_vectors

        partner = None
        if pairs is not None:
            partner = read_layer_of_vectors(open_vectors(pairs), layer)
        trials = try_cures(
            source.vectors,
            names,
            units=source.units,
            labels=source.labels,
            partner=partner,
            seed=seed,
        )
    # The answer comes first: what was tried is shown even if no cure can be written
    # below.
    _show_trials(trials, view, source.notes)
    if write is None and save is None:
        return
    # For the trial it was fitted on one half of the units; the vectors to be used
    # deserve the fit on all.
    final = fit_to_use(_choose_cure(trials, names), source.vectors, partner)
    if write is not None:
        _write_vectors(write, final.apply(source.vectors))
    if save is not None:
        final.save(save)
        following = (
            f"for other vectors: anisoscope apply {format_path(save, typed=True)} FILE"
        )
        echo_wrapped(f"saved: {format_path(save)}; {following}", err=True)


def _show_trials(trials: "Trials", view: Format, notes: Sequence[str]) -> None:
    """Show the table of cures and the sentence on the one that fits; then notes, those given first, on stderr."""
    from anisoscope.runs.finding import Finding

    chosen = None if trials.chosen is None else trials.chosen.fit.name
    all_notes = [*notes, *trials.notes]
    show(
        [_tabulate_cures(trials)],
        view,
        [Finding("cure", trials.text)],
        all_notes,
        # Programs that read JSON need the name alone, not the sentence.
        {"chosen": chosen},
    )
    for note in all_notes:
        echo_wrapped(f"note: {note}", err=True, indent="  ")


def _choose_cure(trials: "Trials", names: Sequence[str]) -> str:
    """Return the cure to write or save: the one that fits, or the only one that was named.

    UsageError if several were named and none fits.
    """
    # A single cure that is named is asked for, whatever was found of it.
    if len(names) == 1:
        return names[0]
    if trials.chosen is not None:
        return trials.chosen.fit.name
    got = "none that works among those tried"
    if trials.text.startswith("No cure is needed"):
        got = "vectors that need no cure"
    raise UsageError(
        "a cure that works, to write or save",
        got,
        "to use a cure all the same, name it alone: --cures centre",
    )


@dataclass(frozen=True)
class _VectorsToCure:
    """Vectors [vector, dim] that cures are tried on, the unit and the class of each if they are known, and remarks."""

    vectors: Any
    units: Any = None
    labels: Any = None
    notes: tuple[str, ...] = ()


def _read_vectors_to_cure(
    name: str,
    columns: VectorColumns,
    corpus: str | None,
    limit: int | None,
    layer: str | None,
    quiet: bool,
) -> _VectorsToCure:
    """Read the vectors of a file, or those that a run kept; a model is measured for them first."""
    path = expand_home(name)
    with show_spinner(f"reading {name}", quiet=quiet):
        from anisoscope.data.vector_files import holds_vectors, open_vectors
        from anisoscope.runs.curing import (
            is_run_folder,
            measure_layer,
            read_layer_of_run,
            read_layer_of_vectors,
        )

        # Three kinds of things have one argument: a run, a file of vectors, and what is
        # neither is a model's name.
        is_run = is_run_folder(path)
        is_model = not is_run and not path.is_file() and not holds_vectors(name)
    if is_model:
        from anisoscope.data.check_names import check_corpus, check_model

        check_model(name)
        check_corpus(corpus or "")
        measured = measure_layer(
            lambda folder: _measure_for_cures(name, corpus, limit, folder, quiet), layer
        )
        return _VectorsToCure(measured.vectors, measured.units, None, measured.notes)
    # They say what a model is measured on; vectors that exist are taken as they are,
    # and to ignore an option silently would mislead.
    for option_name, value in {"corpus": corpus, "limit": limit}.items():
        if value is not None:
            raise UsageError(
                f"--{option_name} only with a model",
                f"it with {name}",
                f"leave --{option_name} out",
            )
    if is_run:
        of_run = read_layer_of_run(path, layer)
        return _VectorsToCure(of_run.vectors, of_run.units, None, of_run.notes)
    opened = open_vectors(path, **select_fields(columns, VectorColumns))
    return _VectorsToCure(
        read_layer_of_vectors(opened, layer), opened.units, opened.labels
    )


def _measure_for_cures(
    name: str, corpus: str | None, limit: int | None, folder: Path, quiet: bool
) -> "RunFolder":
    """Measure A of every layer of a model, and keep a sample of its vectors."""
    # Loads torch: only for models.
    from anisoscope.api.functions import measure_job
    from anisoscope.measure.settings import Settings
    from anisoscope.runs.curing import METRICS
    from anisoscope.runs.job import Job, OutputOptions

    job = Job(
        model=name,
        corpus=corpus or "",
        limit=limit,
        settings=Settings(metrics=METRICS, tokens=("all",)),
    )
    return measure_job(job, OutputOptions(output=folder), quiet)


def apply(
    fit: Annotated[
        FilePath,
        option(
            "file of a cure: the fit.safetensors that `anisoscope cure --save` wrote",
            INPUT,
        ),
    ],
    vectors: Annotated[FilePath, option("file of vectors to read", INPUT)],
    /,
    columns: VectorColumns = COLUMNS,
    *,
    output: Annotated[
        FilePath, option("file to write the changed vectors to (.npy)", OUTPUT, "-o")
    ],
    layer: Annotated[
        Text | None, option("which layer, if the file has several", INPUT)
    ] = None,
    view: Format = FORMAT,
    quiet: Quiet = False,
) -> None:
    """Apply a saved cure to vectors, such as queries."""
    with show_spinner(f"applying {fit}", quiet=quiet):
        from anisoscope.cures.transforms import Fit
        from anisoscope.data.vector_files import open_vectors
        from anisoscope.runs.curing import read_layer_of_vectors

        x = read_layer_of_vectors(
            open_vectors(vectors, **select_fields(columns, VectorColumns)), layer
        )
        y = Fit.load(fit).apply(x)
    # The line that says so goes to stderr, hence the row below for other formats.
    _write_vectors(output, y)
    if view.format != "table":
        show_row(
            {"written": str(output), "vectors": y.shape[0], "dimensions": y.shape[1]},
            view,
        )


def doctor(
    *,
    view: Format = FORMAT,
    developers: Annotated[
        bool, option("list also the optional packages that only developers need", WHAT)
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Say what this installation can do, and try it."""
    with show_spinner("trying every package", quiet=quiet):
        from anisoscope.doctor import diagnose, render_diagnosis

        diagnosis = diagnose(developers=developers)
    if view.format == "json":
        say_json(diagnosis.as_dict())
    elif view.format == "table":
        say(render_diagnosis(diagnosis, terminal_columns(sys.stdout) or 100))
    else:
        show([_tabulate_packages(diagnosis)], view)
    # A script can ask whether the installation works.
    return 0 if diagnosis.works else 1


def _tabulate_packages(diagnosis: "Diagnosis") -> Table:
    """Return a table with a row for each package of each extra."""
    import pandas as pd

    rows = []
    for extra in diagnosis.extras:
        for package in extra.packages:
            rows.append(
                [
                    extra.name,
                    package.name,
                    package.needed,
                    package.installed or "",
                    package.status,
                ]
            )
    head = ("extra", "package", "needed", "installed", "status")
    return Table(head, rows, pd.DataFrame(rows, columns=list(head)))


def _tabulate_cures(trials: "Trials") -> Table:
    """Return a table with a row for each cure, after one for the unchanged vectors.

    Its columns are the anisotropy A, the share of nearest neighbours that stay, and the scores of tasks.
    """
    # Every trial has the scores of the unchanged vectors, which are the same.
    first = trials.trials[0].scores
    # For isoscore and rank a terminal has no room next to the tasks; the records have
    # them.
    tasks = [name for name in first if name not in ("A", "isoscore", "effective rank")]
    shown = ["A", *tasks]
    of_unchanged = [_format_estimate(first[name].before) for name in shown]
    rows = [["as it is", *of_unchanged, ""]]
    for trial in trials.trials:
        cells = [_format_estimate(trial.scores[name].after) for name in shown]
        verdict = ""
        if trial.harmed:
            verdict = "harms " + ", ".join(trial.harmed)
        elif trial.isotropic:
            verdict = "isotropic"
        if trials.chosen is trial:
            verdict = f"{verdict} ←".strip()
        rows.append([trial.fit.name, *cells, verdict])
    return Table(("cure", "A", *tasks, ""), rows, trials.table())


def _format_estimate(estimate: Any) -> str:
    """Format an estimate: its value, with its interval after it if it has one."""
    from anisoscope.wording import format_interval

    return format_interval(
        float(estimate.value), float(estimate.low), float(estimate.high)
    )


def _write_vectors(path: Path, vectors: Any) -> None:
    """Write vectors to a .npy file, completely or not at all, and say so on stderr. OutputError for another ending."""
    import numpy as np

    from anisoscope.store import write_atomic

    if path.suffix != ".npy":
        raise OutputError(
            "a file that ends in .npy", str(path), "name the file so: --write cured.npy"
        )

    def write(temporary: Path) -> None:
        """Write the vectors to this path."""
        # Given a path, numpy would add an ending to the temporary name.
        with temporary.open("wb") as file:
            np.save(file, vectors)

    write_atomic(path, write)
    echo_wrapped(f"written: {format_path(path)}", err=True)
