"""Charts, pages and settings as a whole, beside the committed ones in `tests/goldens`: whatever differs is told.

`python tests/goldens.py [NAME …]` writes them anew; then look at the diff: every changed line must be meant.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("goldens")
RESULTS = Path(__file__).parents[1] / "results"
FEW = 12
"""Rows of data that stand in a golden one by one; of more, each column's count and two sums, or a digest."""


def described(chart: Any) -> dict[str, Any]:
    """The specification of a chart as it goes to the renderer, with its data in few numbers."""
    spec = chart if isinstance(chart, dict) else chart.to_dict(validate=False)
    tables = spec.get("datasets", {})

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            left_out = ("$schema", "config", "datasets")
            found = {key: plain(value) for key, value in part.items() if key not in left_out}
            if set(part) == {"name"} and part["name"] in tables:
                found = {"rows": table(tables[part["name"]])}
            return found
        return [plain(each) for each in part] if isinstance(part, list) else part

    return dict(plain(spec))


def table(rows: list[dict[str, Any]]) -> Any:
    """Rows of data: a few of them as they are, of many what each column adds up to in their order."""
    if len(rows) <= FEW:
        return rows
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: column([row.get(name) for row in rows]) for name in names}


def column(values: list[Any]) -> list[Any]:
    """How many there are, and of numbers the sum and one that knows their order; of others a digest."""
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if numbers and all(each is None or isinstance(each, int | float) for each in values):
        weights = 1 + np.arange(len(numbers)) % 7
        return [len(numbers), float(np.sum(numbers)), float(np.abs(numbers) @ weights)]
    return [len(values), sha256("\n".join(map(str, values)).encode()).hexdigest()[:12]]


def settings() -> dict[str, Any]:
    """Every settings of every study, field by field, and what it needs from a hub; those of several studies once; and
    every small model and size.
    """
    from anisoscope_papers.runner import found
    from anisoscope_papers.training.kinds import KINDS, MEASURED
    from anisoscope_papers.training.photographs_and_speech import RATE, SECONDS
    from anisoscope_papers.training.recipe import SIZES

    told: dict[str, Any] = {f"small model {name}": asdict(kind) for name, kind in KINDS.items()}
    told |= {"small models are measured on": MEASURED, "clips": {"rate": RATE, "seconds": SECONDS}}
    told |= {f"size {name}": asdict(size) for name, size in SIZES.items()}
    first: dict[str, str] = {}
    for study in found():
        each = {name: asdict(one) if is_dataclass(one) else one for name, one in study.settings.items()}
        each["needs"] = [asdict(need) for need in study.needs]
        for name, one in each.items():
            place = f"{study.paper} {study.name} {name}"
            known = first.setdefault(json.dumps(one, default=str), place)
            told[place] = one if known == place else f"as {known}"
    told["godey2024 fig11 small"]["checkpoints"] = "of a variable of the environment"
    return dict(json.loads(json.dumps(told, default=str)))


def studies() -> dict[str, str]:
    """A folder of committed records for every study that has any, by its name: that of the golden, or the least."""
    from anisoscope_papers.runner import reproductions

    folders = {path.stem: golden(path.stem)["of"] for path in FOLDER.glob("*.json") if "of" in golden(path.stem)}
    for folder in sorted(reproductions(RESULTS), key=lambda path: (path / "records.parquet").stat().st_size):
        folders.setdefault(f"{folder.parts[-3]}-{folder.name}", folder.relative_to(RESULTS).as_posix())
    return dict(sorted(folders.items()))


def charts_of(folder: str) -> dict[str, Any]:
    """The charts of a study, drawn from its records."""
    from anisoscope_papers.runner import finished

    with no_corpora():
        return {"of": folder} | {name: described(chart) for name, chart in finished(RESULTS / folder).charts.items()}


@contextmanager
def no_corpora() -> Iterator[None]:
    """Examples without their texts, as where the corpus is not at hand."""
    from anisoscope.errors import CorpusError
    from anisoscope_papers.fosse2023 import table2_examples as examples

    def gone(name: str) -> None:
        raise CorpusError(f"{name} at hand", "none")

    before, examples.corpus_of = examples.corpus_of, gone
    try:
        yield
    finally:
        examples.corpus_of = before


@contextmanager
def no_drawing() -> Iterator[dict[str, Any]]:
    """Pages with an empty drawing for each chart; the charts, as they are asked for."""
    from anisoscope.report import page, studies_page

    kept: dict[str, Any] = {}

    def noted(charts: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
        kept.update({name: described(make()) for name, make in charts.items()})
        return dict.fromkeys(charts, "")

    before = page.to_svgs, studies_page.to_svg
    page.to_svgs, studies_page.to_svg = noted, lambda chart, name: noted({name: lambda: chart})[name]
    try:
        yield kept
    finally:
        page.to_svgs, studies_page.to_svg = before


def text_of(page: Path) -> list[str]:
    """The lines of a page without its style."""
    text = re.sub(r"<style>.*?</style>", "", page.read_text("utf-8"), flags=re.S)
    return [line for line in text.splitlines() if line.strip()]


def wide_and_narrow(charts: dict[str, Any]) -> dict[str, Any]:
    """Of charts at two widths the wide one, and of the narrow what differs from it."""
    ends = "-narrow"
    if not any(name.endswith(ends) for name in charts):
        return {}  # those of studies have goldens of their own
    wide = {name: chart for name, chart in charts.items() if not name.endswith(ends)}
    return {
        name: {"wide": chart, "narrow": dict(differing(charts[name + ends], chart))} for name, chart in wide.items()
    }


def differing(ours: Any, theirs: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Places where two descriptions differ, with what stands there in the first; numbers are equal to 1e-7."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            yield from differing(ours.get(key, "absent"), theirs.get(key, "absent"), f"{place}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differing(one, other, f"{place}/{i}")
    elif isinstance(ours, float) and isinstance(theirs, int | float) and not isinstance(theirs, bool):
        if not np.isclose(ours, theirs, rtol=1e-7, atol=1e-12, equal_nan=True):
            yield place, ours
    elif ours != theirs or isinstance(ours, bool) != isinstance(theirs, bool):
        yield place, ours


def text(found: Any, indent: int = 0) -> str:
    """JSON that can be read and compared by line: what fits a line stands on one."""
    line = json.dumps(found, ensure_ascii=False)
    if len(line) + indent <= 116 or not isinstance(found, dict | list) or not found:
        return line
    ends, inner = ("{}", found.items()) if isinstance(found, dict) else ("[]", ((None, each) for each in found))
    parts = [(f"{json.dumps(k, ensure_ascii=False)}: " * (k is not None)) + text(v, indent + 1) for k, v in inner]
    space = "\n" + " " * (indent + 1)
    return ends[0] + space + f",{space}".join(parts) + "\n" + " " * indent + ends[1]


def golden(name: str) -> Any:
    """The committed one."""
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def check(name: str, found: Any) -> None:
    """AssertionError that names what differs from the committed one."""
    found = json.loads(json.dumps(found))
    told = [f"{place}: {value!r}" for place, value in differing(found, golden(name))]
    assert not told, "\n".join([f"not as in goldens/{name}.json (python tests/goldens.py writes it anew):", *told[:20]])


def main() -> None:
    import test_goldens

    FOLDER.mkdir(exist_ok=True)
    for old in {path.stem for path in FOLDER.glob("*.json")} - set(test_goldens.MADE):
        (FOLDER / f"{old}.json").unlink()
    for name in sys.argv[1:] or test_goldens.MADE:
        found = json.loads(
            json.dumps(test_goldens.MADE[name]()), parse_float=lambda number: float(f"{float(number):.9g}")
        )
        (FOLDER / f"{name}.json").write_text(text(found) + "\n", "utf-8")


if __name__ == "__main__":
    main()
