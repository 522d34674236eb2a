"""The result of a measurement in Python: records, a short table, figures by name, sentences."""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pandas as pd

from anisoscope.errors import OutputError, UsageError, suggest_names
from anisoscope.extras import has_extra, require_extra
from anisoscope.options import expand_home
from anisoscope.renamed import FIGURES
from anisoscope.runs.attention import attention_table
from anisoscope.runs.differences import (
    NAME as REPLICATES,
    SAMPLE,
    KeptRun,
    find_sample,
    read_replicates,
    write_replicates,
)
from anisoscope.runs.finding import Finding
from anisoscope.runs.findings import findings
from anisoscope.runs.job import OutputOptions
from anisoscope.runs.short_tables import short_table, value_table
from anisoscope.store import RunFolder, read_run

if TYPE_CHECKING:
    from altair.typing import ChartType
    from numpy.typing import NDArray

    from anisoscope.classes.sentence import Classifier, Explanation
    from anisoscope.report.parts import Figure

MOST_SAMPLED = 1 << 28
"""Bytes of sampled vectors that a run in memory keeps; a larger sample is kept in folders alone."""


class Run:
    """The result of one measurement. `anisoscope.Run("runs/demo")` opens a folder; every public function returns a
    Run.

    records   the long table: a row per metric, site, layer, head, component, with `value`, `low`, `high` (the 95 %
              interval), `n_vectors`, `n_units`
    manifest  what was measured and with which settings; its `warnings` say what the user must know
    folder    where the run is written; None if it is in memory only
    replicates  each record's value with one group of units left out [record, group], for paired differences; NaN where
              there is none; None if the run kept none

    In a notebook a run shows its table and its first figure.

        >>> import anisoscope, numpy
        >>> run = anisoscope.measure(numpy.random.default_rng(0).normal(size=(300, 8)) + 1)
        >>> run.table()["A"].round(1).tolist()
        [0.5]
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        records: pd.DataFrame | None = None,
        manifest: dict[str, Any] | None = None,
        replicates: "NDArray[np.float64] | None" = None,
    ) -> None:
        """Open a run folder, or make a run of records and manifest in memory.

        OutputError if the folder does not exist or holds no finished run.
        """
        self.folder = None if folder is None else expand_home(folder)
        if records is None or manifest is None:
            if self.folder is None:
                raise UsageError(
                    "a run folder",
                    "none",
                    "give the path of one, or measure something first",
                )
            if not self.folder.exists():
                raise OutputError(
                    "a run folder",
                    f"{self.folder}, which is not there",
                    "check the path",
                )
            records, manifest = read_run(self.folder)
            replicates = read_replicates(self.folder, len(records))
        self.replicates = replicates
        self.records: pd.DataFrame = records
        self.manifest: dict[str, Any] = manifest
        self.open_classifier: Callable[[], tuple[Classifier, list[str]]] | None = (
            None  # of a run of `classes`
        )
        self.sample: Mapping[str, Any] | None = None  # of a run in memory

    @property
    def name(self) -> str:
        """The folder's name; for a run in memory the model's."""
        if self.folder is None:
            return str(self.manifest.get("model", "run"))
        return self.folder.name or str(self.folder)

    @property
    def kept(self) -> KeptRun:
        """Records, manifest, replicates (values with one group of units left out) and vector sample of this run, as a
        comparison reads them.
        """
        # Of a folder only the path is needed: it is read if a comparison asks for
        # vectors.
        sample = self.sample if self.folder is None else find_sample(self.folder)
        return KeptRun.of(
            self.name, self.records, self.manifest, self.replicates, sample
        )

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else f"in {self.folder}"
        return f"Run of {self.manifest.get('model', 'a series')}: {len(self.records):,} records, {where}"

    def table(self, tokens: str | None = None) -> pd.DataFrame:
        """Return the short table: one row per checkpoint, stack, layer and site.

        It shows A (anisotropy) with its interval and verdict, drift share, top-3 share and effective rank. If A was
        not measured, the table has a row for every metric of every layer. If no metric of whole layers was measured,
        the result is that of `attention()`.

        tokens   the token policy (which tokens count); None: the run's first. UsageError for one that the run lacks
        """
        table = short_table(self.records, tokens)
        # A run may have measured single metrics alone, or attention alone.
        if not len(table):
            table = value_table(self.records, tokens)
        if not len(table):
            table = self.attention()
        return table

    def attention(self, *, heads: bool = False) -> pd.DataFrame:
        """Return the table of attention: a row per layer (means over heads, and counts of each kind of head), or per
        head.

        Columns: normalised entropy with its interval (`low`, `high`), mass on the first token, largest weight,
        similarity of rows, cosine of the mean query and the mean key (for layers, its absolute value). Empty if
        attention was not measured.
        """
        return attention_table(self.records, heads=heads, replicates=self.replicates)

    @property
    def findings(self) -> list[Finding]:
        """Sentences about the records, by fixed rules; each is supported by an interval."""
        return findings(self.records, self.manifest.get("tokens"))

    @cached_property
    def _figures(self) -> "dict[str, Figure]":
        """The figures of this run by name."""
        from anisoscope.report.results import Results
        from anisoscope.report.sections import build_sections

        # Figures are built as for the page, so that both show the same.
        built = build_sections(Results(self.records, self.manifest, self.replicates))
        return {figure.name: figure for section in built for figure in section.figures}

    @property
    def figures(self) -> list[str]:
        """The names of the figures that `plot` can draw of this run."""
        return list(self._figures)

    def plot(self, name: str = "anisotropy", width: int = 640) -> "ChartType":
        """Return the figure called `name`, as on the report's page: an Altair chart, which a notebook shows offline
        too.

        width   of the plotting area, in pixels. UsageError, with similar names, for a figure that this run lacks
        """
        require_extra("report", "to draw a figure")
        from anisoscope.charts.export import show_alone

        # Figures are found by their old names too.
        name = FIGURES.get(name, name)
        if name not in self._figures:
            raise UsageError(
                "a figure of this run", repr(name), suggest_names(name, self._figures)
            )
        figure = self._figures[name]
        return show_alone(figure.draw(width), figure.title)

    def report(self, folder: Path | str | None = None, *, pdf: bool = False) -> Path:
        """Write the report's page and its figures, and return the page's path.

        folder   where to write; None: the run's own folder. UsageError for a run in memory without a folder
        pdf      figures as PDF too
        """
        from anisoscope.report import build_page

        target = self.folder if folder is None else expand_home(folder)
        if target is None:
            raise UsageError(
                "a folder for the report",
                "a run in memory",
                "name a folder: run.report('runs/mine')",
            )
        # A page reads the records of its own folder: another folder gets a copy of the run.
        if target != self.folder:
            self.save(target)
        return build_page(target, ("svg", "pdf") if pdf else ("svg",))

    def log(
        self,
        *trackers: str,
        name: str | None = None,
        folder: Path | str = "runs/tensorboard",
    ) -> list[str]:
        """Log A (anisotropy), entropy and sinks of every layer to experiment trackers, and return where to look.

        trackers  `tensorboard`, `wandb`, `trackio`
        name      of the run there; None: the run's own name
        folder    of TensorBoard's files

        UsageError for another tracker, ExtraError for one that is not installed.
        """
        from anisoscope.monitor.trackers import log_run

        return log_run(
            self.records, trackers, name=name or self.name, folder=expand_home(folder)
        )

    def save(self, folder: Path | str) -> "Run":
        """Copy this run into a new folder: records, manifest, replicates (values with one group of units left out),
        vector sample. Return the copy.

        OutputError if the folder holds a run already.
        """
        # A copy has an identity of its own, so that it cannot be resumed as if it were
        # the run.
        identity = {"run": self.manifest.get("run"), "copy": True}
        kept = RunFolder.start(expand_home(folder), identity, resume=False)
        if self.replicates is not None:
            # Records without replicates (maxima and the like) get no row in the file.
            rows = np.flatnonzero(~np.isnan(self.replicates).all(axis=1))
            write_replicates(kept.folder / REPLICATES, rows, self.replicates[rows])
        sample = self.kept.sample
        # A run in a folder has its sample in a file, one in memory has it as tensors.
        if isinstance(sample, Path):
            shutil.copyfile(sample, kept.folder / SAMPLE)
        elif sample is not None:
            _write_sample(kept.folder / SAMPLE, sample)
        kept.finish(self.records, self.manifest)
        return Run(kept.folder)

    @overload
    def explain(self, text: str) -> "Explanation": ...

    @overload
    def explain(
        self, text: "list[str] | tuple[str, ...] | pd.Series[str]"
    ) -> "list[Explanation]": ...

    def explain(
        self, text: "str | list[str] | tuple[str, ...] | pd.Series[str]"
    ) -> "Explanation | list[Explanation]":
        """Explain, word by word, the class that the classifier of this run gives to a text, or to each of several.

        Several texts are a list or a column of a DataFrame; the result is then a list in the same order. An explanation
        has attributions of the words by attention, values along the direction of the class, gradient × input and
        erasure, and how far these agree; its `notes` say what is left out or assumed. The model is loaded at the first
        call. UsageError if the run is not of `anisoscope.classes`, and for a text without words.
        """
        from anisoscope.classes.sentence import explain

        classifier, notes = self._classifier
        if isinstance(text, str):
            explanation = explain(classifier, text)
            return replace(explanation, notes=[*notes, *explanation.notes])
        return [self.explain(one) for one in list_texts(text)]

    @cached_property
    def _classifier(self) -> "tuple[Classifier, list[str]]":
        """The classifier of this run, opened to explain texts, and notes on it.

        UsageError if the run is not of `anisoscope.classes`.
        """
        from anisoscope.data.corpora import Columns
        from anisoscope.runs.explaining import open_classifier
        from anisoscope.runs.job import ClassesOptions

        if self.open_classifier is not None:
            return self.open_classifier()
        # A run that another session measured is opened from what its folder says.
        identity = None if self.folder is None else RunFolder(self.folder).identity()
        if identity is None or "classes" not in identity:
            raise UsageError(
                "a run of anisoscope.classes",
                repr(self),
                "make one: anisoscope.classes(model, corpus)",
            )
        fields = {"model": self.manifest["model"]} | identity["classes"]
        # The identity has {role: column}; the options have a field for each role.
        columns = Columns.as_fields(fields.pop("columns", None))
        return open_classifier(ClassesOptions(**(fields | columns)))

    def _draw_first_figure(self) -> str:
        """Return the first figure of the report as SVG; empty if there is none."""
        from anisoscope.charts.export import to_svg

        for figure in self._figures.values():
            # A notebook may show several runs on one page, whose SVGs must not share
            # ids.
            return to_svg(figure.draw(480), f"run-{id(self)}")
        return ""

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: name, findings, tables, first figure."""
        tables = [self.table()]
        # Without a short table of vectors, `table` is the one of attention already.
        if len(short_table(self.records)):
            tables.append(self.attention())
        how: dict[str, Any] = {
            "index": False,
            "float_format": "{:.3f}".format,
            "na_rep": "–",
            "border": 0,
        }
        shown = "".join(table.to_html(**how) for table in tables if len(table))
        drawn = self._draw_first_figure() if has_extra("report") else ""
        name = escape(str(self.manifest.get("model", "")))
        sentences = "".join(
            f"<li>{escape(finding.text)}</li>" for finding in self.findings
        )
        # The ink of a chart is dark, and a notebook may be too.
        on_white = (
            f'<div style="display: inline-block; background: white">{drawn}</div>'
        )
        return f"<div><p><b>{name}</b></p><ul>{sentences}</ul>{shown}{on_white}</div>"


def list_texts(texts: Iterable[object]) -> list[str]:
    """Return texts as a list. UsageError for a table, and for anything among them that is no text."""
    if isinstance(texts, pd.DataFrame):
        columns = ", ".join(map(str, texts))
        raise UsageError(
            "texts", f"a table with the columns {columns}", "choose a column: table[…]"
        )
    listed = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(
                "texts", f"{text!r} at index {number}", "leave that item out"
            )
        listed.append(text)
    return listed


def run_to_folder_or_memory(
    measure: Callable[[OutputOptions], RunFolder], output: OutputOptions
) -> Run:
    """Call `measure` with the output folder and return the run that it writes there.

    If `output` names no folder, a temporary one is used, and its content is kept in memory.
    """
    if output.output is not None:
        return Run(measure(output).folder)
    # Every measurement writes a folder, so a run in memory is read back from a
    # temporary one.
    with tempfile.TemporaryDirectory(prefix="anisoscope-") as folder:
        written = measure(replace(output, output=Path(folder, "run")))
        records = written.records
        replicates = read_replicates(written.folder, len(records))
        run = Run(records=records, manifest=written.manifest, replicates=replicates)
        sample = find_sample(written.folder)
        if sample is not None and sample.stat().st_size <= MOST_SAMPLED:
            run.sample = _read_sample(sample)
        return run


def _read_sample(path: Path) -> Mapping[str, Any]:
    """Read the sampled vectors of a run as tensors by name."""
    from safetensors.torch import load_file

    return load_file(path)


def _write_sample(path: Path, sample: Mapping[str, Any]) -> None:
    """Write sampled vectors to a file."""
    from safetensors.torch import save_file

    save_file(dict(sample), path)
