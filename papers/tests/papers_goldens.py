"""Charts, pages and settings of the studies as a whole, beside the committed ones in `papers/tests/goldens`.

`python papers/tests/papers_goldens.py [NAME …]` writes them anew; then look at the diff: every changed line
must be meant.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import goldens

FOLDER = Path(__file__).with_name("goldens")
RESULTS = Path(__file__).parents[1] / "results"


def settings() -> dict[str, Any]:
    """Every settings of every study, field by field, and what it needs from a hub; those of several studies once; and
    every small model and size.
    """
    from anisoscope_papers.runner import find_studies
    from anisoscope_papers.training.kinds import KINDS, MEASURED
    from anisoscope_papers.training.photographs_and_speech import RATE, SECONDS
    from anisoscope_papers.training.recipe import SIZES

    told: dict[str, Any] = {
        f"small model {name}": asdict(kind) for name, kind in KINDS.items()
    }
    told |= {
        "small models are measured on": MEASURED,
        "clips": {"rate": RATE, "seconds": SECONDS},
    }
    told |= {f"size {name}": asdict(size) for name, size in SIZES.items()}
    first: dict[str, str] = {}
    for study in find_studies():
        each = {
            name: asdict(one) if is_dataclass(one) else one
            for name, one in study.settings.items()
        }
        each["needs"] = [asdict(need) for need in study.needs]
        for name, one in each.items():
            place = f"{study.paper} {study.name} {name}"
            known = first.setdefault(json.dumps(one, default=str), place)
            told[place] = one if known == place else f"as {known}"
    told["godey2024 fig11 small"]["checkpoints"] = "of a variable of the environment"
    return dict(json.loads(json.dumps(told, default=str)))


def studies() -> dict[str, str]:
    """A folder of committed records for every study that has any, by its name: that of the golden, or the least."""
    from anisoscope_papers.runner import list_reproductions

    folders = {
        path.stem: goldens.golden(path.stem, FOLDER)["of"]
        for path in FOLDER.glob("*.json")
        if "of" in goldens.golden(path.stem, FOLDER)
    }
    for folder in sorted(
        list_reproductions(RESULTS),
        key=lambda path: (path / "records.parquet").stat().st_size,
    ):
        folders.setdefault(
            f"{folder.parts[-3]}-{folder.name}", folder.relative_to(RESULTS).as_posix()
        )
    return dict(sorted(folders.items()))


def charts_of(folder: str) -> dict[str, Any]:
    """The charts of a study, drawn from its records."""
    from anisoscope_papers.runner import open_finished

    with no_corpora():
        return {"of": folder} | {
            name: goldens.described(chart)
            for name, chart in open_finished(RESULTS / folder).charts.items()
        }


@contextmanager
def no_corpora() -> Iterator[None]:
    """Examples without their texts, as where the corpus is not at hand."""
    from anisoscope.errors import CorpusError
    from anisoscope_papers.fosse2023 import table2_examples as examples

    def gone(name: str) -> None:
        raise CorpusError(f"{name} at hand", "none")

    before, examples.open_corpus = examples.open_corpus, gone
    try:
        yield
    finally:
        examples.open_corpus = before


@contextmanager
def no_drawing() -> Iterator[dict[str, Any]]:
    """Pages with an empty drawing for each chart; the charts, as they are asked for."""
    from anisoscope_papers import studies_page

    kept: dict[str, Any] = {}

    def noted(chart: Any, name: str) -> str:
        kept[name] = goldens.described(chart)
        return ""

    before, studies_page.to_svg = studies_page.to_svg, noted
    try:
        yield kept
    finally:
        studies_page.to_svg = before


if __name__ == "__main__":
    import test_papers_goldens

    goldens.write(test_papers_goldens.MADE, FOLDER)
