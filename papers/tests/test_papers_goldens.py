"""Every chart of a study, every page of studies and every study's settings, as they were looked at.

What is meant to change is written anew by `python papers/tests/papers_goldens.py`; its diff is looked at, line by line.
"""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import goldens
import papers_goldens
import pytest

from anisoscope_papers.studies_page import build_studies

Told = dict[str, Any]


def page(fill: Callable[[Path], Path]) -> Told:
    """The text of a page; its charts have goldens of their own. `fill` builds it in a folder."""
    with tempfile.TemporaryDirectory() as folder, papers_goldens.no_drawing() as charts:
        lines = [
            line.replace(folder, "") for line in goldens.text_of(fill(Path(folder)))
        ]
        return {"text": lines, "charts": goldens.wide_and_narrow(charts)}


def of_studies(folder: Path) -> Path:
    for name in (
        "godey2024/quick/fig18",
        "fosse2023/finished/table1",
        "godey2024/packaged/fig4",
    ):
        shutil.copytree(papers_goldens.RESULTS / name, folder / name)
    return build_studies(folder)


def of_one_paper(folder: Path) -> Path:
    for name in ("table1", "sec5"):
        shutil.copytree(
            papers_goldens.RESULTS / "fosse2023/finished" / name, folder / name
        )
    return build_studies(folder)


STUDIES = {
    name: partial(papers_goldens.charts_of, folder)
    for name, folder in papers_goldens.studies().items()
}
PAGES = {made.__name__: made for made in (of_studies, of_one_paper)}
MADE = {
    "settings": papers_goldens.settings,
    **STUDIES,
    **{f"page_{name}": partial(page, made) for name, made in PAGES.items()},
}


@pytest.mark.parametrize("name", MADE)
def test_it_is_as_it_was_looked_at(name: str) -> None:
    goldens.check(
        name, MADE[name](), papers_goldens.FOLDER, "papers/tests/papers_goldens.py"
    )
