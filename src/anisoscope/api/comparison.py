"""The result of comparing runs, for Python: table, sentences, figures by name, page, conditions that can fail."""

from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from anisoscope.errors import UsageError, suggest_names
from anisoscope.extras import has_extra, require_extra
from anisoscope.options import expand_home
from anisoscope.runs.comparison import ComparedRuns, describe_met
from anisoscope.runs.finding import Finding

if TYPE_CHECKING:
    from altair.typing import ChartType

    from anisoscope.report.parts import Figure


class Comparison:
    """The result of `anisoscope.compare`: every run compared with the first.

    differences  the long table: a row for each place (stack, layer, head …) and each run but the first, with the value
                 in both runs (`first`, `second`, each with its interval), `difference`, `low`, `high`, and `paired`
    findings     what the intervals of the differences support, in sentences
    notes        how runs were paired, and what else differs between them: corpus, tokens, dtype, settings, code

    In a notebook it shows its sentences, its table and its first figure.

        >>> import anisoscope, numpy
        >>> x = numpy.random.default_rng(0).normal(size=(300, 8))
        >>> found = anisoscope.compare(anisoscope.measure(x + 1), anisoscope.measure(x))
        >>> found.table()["difference"].round(1).tolist()
        [-0.5]
        >>> found.fails("A > 0"), found.fails("A < -.2")
        (False, True)
    """

    def __init__(self, found: ComparedRuns) -> None:
        """Wrap a finished comparison.

        found   as `runs.comparison.compare` returns it
        """
        self._found = found
        self.differences: pd.DataFrame = found.table
        self.findings: list[Finding] = list(found.findings)
        self.notes: list[str] = list(found.notes)

    def __repr__(self) -> str:
        names = self._found.names
        return f"Comparison of {self._found.metric}: {', '.join(names[1:])} against {names[0]}"

    def table(self) -> pd.DataFrame:
        """Return one row for each value (layer, head …) and each run but the first: both values, difference and
        interval.
        """
        shown = []
        for name in (
            "run",
            "stack",
            "layer",
            "layer_other",
            "head",
            "site",
            "component",
        ):
            # Columns that are the same in all rows would only widen the table.
            varies = self.differences[name].nunique(dropna=False) > 1
            if varies or name in ("run", "layer"):
                shown.append(name)
        return self.differences[
            [*shown, "first", "second", "difference", "low", "high"]
        ]

    def across(self, metric: str = "cka") -> pd.DataFrame:
        """Return how similar each layer of the first run is to each layer of the others: a row per pair, with its
        interval.

        metric  one that reads two layers: `cka`, `procrustes`, or `module:NAME`

        Computed on the tokens that both runs sampled. UsageError for runs of different inputs, or without a sample.
        """
        return self._found.across(metric)

    def fails(self, condition: str) -> bool:
        """Return whether any run differs from the first as a condition says, such as `A.last > +.02`.

        The condition is `METRIC.PLACE > LIMIT` (or `<`), where the place is last, first, max, min, any (the default) or
        the number of a layer: `attention.entropy.max < -.1`. Only what the whole interval of a difference supports
        counts. `A` is the anisotropy. UsageError for a condition that cannot be parsed, MeasureError if the runs have
        no values to judge it by.
        """
        return bool(self._found.judge(condition))

    def explain(self, condition: str) -> list[str]:
        """Return a sentence for each run that meets a condition, which is written as for `fails`."""
        return [
            describe_met(condition, name, beyond)
            for name, beyond in self._found.judge(condition)
        ]

    @cached_property
    def _figures(self) -> "dict[str, Figure]":
        """The figures of this comparison by name."""
        from anisoscope.report.comparison import build_figures

        return {figure.name: figure for figure in build_figures(self._found)}

    @property
    def figures(self) -> list[str]:
        """The names of the figures that `plot` can draw."""
        return list(self._figures)

    def plot(self, name: str = "", width: int = 640) -> "ChartType":
        """Return the figure called `name` (default: the first) as an Altair chart, with all runs in one picture.

        width   of the plotting area, in pixels. UsageError, with similar names, for an unknown figure
        """
        require_extra("report", "to draw a figure")
        # Imported where a chart is drawn: Altair is optional, and takes time.
        from anisoscope.charts.export import show_alone

        name = name or next(iter(self._figures), "")
        if name not in self._figures:
            raise UsageError(
                "a figure of this comparison",
                repr(name),
                suggest_names(name, self._figures),
            )
        figure = self._figures[name]
        return show_alone(figure.draw(width), figure.title)

    def report(self, folder: Path | str, *, pdf: bool = False) -> Path:
        """Write the report's page, its figures and all numbers into a folder, and return the page's path.

        pdf   figures as PDF too
        """
        require_extra("report", "to draw a page")
        from anisoscope.report.comparison import write_comparison

        return write_comparison(
            self._found, expand_home(folder), ("svg", "pdf") if pdf else ("svg",)
        )

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: sentences, table, first figure."""
        table = self.table().to_html(
            index=False, float_format="{:.3f}".format, na_rep="–", border=0
        )
        sentences = [finding.text for finding in self.findings] + self.notes
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
        drawn = ""
        if has_extra("report") and self._figures:
            from anisoscope.charts.export import to_svg

            first = next(iter(self._figures.values()))
            # A notebook may show several comparisons on one page, whose SVGs must not
            # share ids.
            drawn = to_svg(first.draw(480), f"comparison-{id(self)}")
        # The ink of a chart is dark, and a notebook may be too.
        on_white = (
            f'<div style="display: inline-block; background: white">{drawn}</div>'
        )
        return f"<div><ul>{items}</ul>{table}{on_white}</div>"
