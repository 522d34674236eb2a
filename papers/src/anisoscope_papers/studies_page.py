"""Write HTML pages of a reproduction: every study with its charts and verdicts, and a list of all pages."""

from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from anisoscope.charts.export import to_svg
from anisoscope.errors import OutputError
from anisoscope.report.page import write_page
from anisoscope_papers.runner import Finished, list_reproductions, open_finished
from anisoscope_papers.study import FAILING, WORDS, count_comparisons, read_published

HERE = files("anisoscope_papers")


def rebuild_page(folder: Path) -> Path | None:
    """Write the page of a folder of reproductions again; return None for a folder of another kind."""
    if list_reproductions(folder):
        return build_studies(folder)
    return None


def build_studies(folder: Path) -> Path:
    """Write a `report.html` for each paper and settings in `folder`, and a list of them if there are several.

    `folder` may also be one of them, or a single study. Returns the page to open. OutputError if no study is finished
    there.
    """
    found = list_reproductions(folder)
    if not found:
        raise OutputError(
            f"finished studies below {folder}", "none", "run anisoscope reproduce first"
        )
    # A single study: its own folder gets the page.
    if found == [folder]:
        return _write_page(folder, found)[0]
    # `found` is sorted by folder, as groupby needs.
    pages = []
    for place, studies in groupby(found, key=lambda path: path.parent):
        pages.append(_write_page(place, list(studies)))
    if len(pages) == 1:
        return pages[0][0]
    listed = []
    for page, about in pages:
        listed.append(about | {"link": page.relative_to(folder).as_posix()})
    return write_page(
        folder, HERE.joinpath("reproductions.html.j2"), pages=listed, outcomes=WORDS
    )


def _write_page(folder: Path, studies: Sequence[Path]) -> tuple[Path, dict[str, Any]]:
    """Write the page of some studies (their folders) of one paper and settings; return (its path, its entry in the
    list of pages).
    """
    done = [open_finished(path) for path in studies]
    shown = [_describe_study(one) for one in done]
    paper = done[0].study.paper
    settings = done[0].described["settings_name"]
    words = []
    for study in shown:
        for verdict in study["verdicts"]:
            words.append(verdict["word"])
    # Every word is counted, also with 0, so that pages show the same columns.
    counts = {name: words.count(name) for name in WORDS}
    failing = sum(counts[way] for way in FAILING)
    figures = sum(len(study["figures"]) for study in shown)
    about = {
        "paper": read_published(paper)["paper"],
        "settings": settings,
        "counts": counts,
        "failing": failing,
        "figures": figures,
    }
    names = ",".join(one.study.name for one in done)
    command = f"anisoscope reproduce {paper} --only {names} --settings {settings}"
    return write_page(
        folder,
        HERE.joinpath("studies.html.j2"),
        **about,
        command=command,
        studies=shown,
    ), about


def _describe_study(done: Finished) -> dict[str, Any]:
    """Return what the page's template reads of a finished study, {name: value}: title, caption, verdicts, figures and
    others.

    The claims are those of the current code.
    """
    study = done.study
    # By name: records of an earlier version are judged by the claims as they are now.
    claims = {claim.name: claim for claim in done.study.claims}
    verdicts = []
    for verdict in done.verdicts:
        more = {"of": claims[verdict.claim], "word": verdict.word}
        verdicts.append(asdict(verdict) | more)
    figures = []
    for name, chart in done.charts.items():
        figures.append(_render_figure(name, chart, study.name))
    return {
        "study": study.name,
        "title": study.title,
        "caption": study.build_caption(done.described["settings_name"]),
        "lacking": done.lacking,
        "verdicts": verdicts,
        "compared": done.compared,
        "counted": count_comparisons(done.compared),
        "figures": figures,
    }


def _render_figure(name: str, chart: Any, study: str) -> dict[str, str]:
    """Return a chart for the page as {"name", "label", "svg"}; the label differs within its study."""
    # Charts are named study_part: the part says which one it is on this study's page.
    label = name.removeprefix(study).strip("_-").replace("_", " ").replace("-", " ")
    return {
        "name": name,
        "label": label or study,
        # Drawn here, not typed by anyone: it must not be escaped. Ids inside are made
        # unique by the name, as all charts share one page.
        "svg": Markup(to_svg(chart, f"{study}-{name}")),
    }
