"""Charts, pages and settings as a whole, beside the committed ones in `tests/goldens`: whatever differs is told.

`python tests/goldens.py [NAME …]` writes them anew; then look at the diff: every changed line must be meant.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("goldens")
FEW = 12
"""Rows of data that stand in a golden one by one; of more, each column's count and two sums, or a digest."""


def described(chart: Any) -> dict[str, Any]:
    """The specification of a chart as it goes to the renderer, with its data in few numbers."""
    spec = chart if isinstance(chart, dict) else chart.to_dict(validate=False)
    tables = spec.get("datasets", {})

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            left_out = ("$schema", "config", "datasets")
            found = {
                key: plain(value) for key, value in part.items() if key not in left_out
            }
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
    numbers = [
        each
        for each in values
        if isinstance(each, int | float) and not isinstance(each, bool)
    ]
    if numbers and all(
        each is None or isinstance(each, int | float) for each in values
    ):
        weights = 1 + np.arange(len(numbers)) % 7
        return [len(numbers), float(np.sum(numbers)), float(np.abs(numbers) @ weights)]
    return [len(values), sha256("\n".join(map(str, values)).encode()).hexdigest()[:12]]


@contextmanager
def no_drawing() -> Iterator[dict[str, Any]]:
    """Pages with an empty drawing for each chart; the charts, as they are asked for."""
    from anisoscope.report import page

    kept: dict[str, Any] = {}

    def noted(charts: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
        kept.update({name: described(make()) for name, make in charts.items()})
        return dict.fromkeys(charts, "")

    before, page.to_svgs = page.to_svgs, noted
    try:
        yield kept
    finally:
        page.to_svgs = before


def text_of(page: Path) -> list[str]:
    """The lines of a page without its style and its script, which are the same on every page."""
    text = re.sub(r"<(style|script)>.*?</\1>", "", page.read_text("utf-8"), flags=re.S)
    text = re.sub(r"sha256-[\w+/]+=*", "sha256-", text)
    return [line for line in text.splitlines() if line.strip()]


def wide_and_narrow(charts: dict[str, Any]) -> dict[str, Any]:
    """Of charts at two widths the wide one, and of the narrow what differs from it, if it is drawn."""
    ends = "-narrow"
    if not any(name.endswith(ends) for name in charts):
        return {}  # those of studies have goldens of their own
    wide = {name: chart for name, chart in charts.items() if not name.endswith(ends)}
    kept = {}
    for name, chart in wide.items():
        kept[name] = {"wide": chart}
        if name + ends in charts:
            kept[name]["narrow"] = dict(differing(charts[name + ends], chart))
    return kept


def differing(ours: Any, theirs: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Places where two descriptions differ, with what stands there in the first; numbers are equal to 1e-7."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            yield from differing(
                ours.get(key, "absent"), theirs.get(key, "absent"), f"{place}/{key}"
            )
    elif (
        isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs)
    ):
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differing(one, other, f"{place}/{i}")
    elif (
        isinstance(ours, float)
        and isinstance(theirs, int | float)
        and not isinstance(theirs, bool)
    ):
        if not np.isclose(ours, theirs, rtol=1e-7, atol=1e-12, equal_nan=True):
            yield place, ours
    elif ours != theirs or isinstance(ours, bool) != isinstance(theirs, bool):
        yield place, ours


def text(found: Any, indent: int = 0) -> str:
    """JSON that can be read and compared by line: what fits a line stands on one."""
    line = json.dumps(found, ensure_ascii=False)
    if len(line) + indent <= 116 or not isinstance(found, dict | list) or not found:
        return line
    ends, inner = (
        ("{}", found.items())
        if isinstance(found, dict)
        else ("[]", ((None, each) for each in found))
    )
    parts = [
        (f"{json.dumps(k, ensure_ascii=False)}: " * (k is not None))
        + text(v, indent + 1)
        for k, v in inner
    ]
    space = "\n" + " " * (indent + 1)
    return ends[0] + space + f",{space}".join(parts) + "\n" + " " * indent + ends[1]


def golden(name: str, folder: Path = FOLDER) -> Any:
    """The committed one."""
    return json.loads((folder / f"{name}.json").read_text("utf-8"))


def check(
    name: str, found: Any, folder: Path = FOLDER, by: str = "tests/goldens.py"
) -> None:
    """AssertionError that names what differs from the committed one."""
    found = json.loads(json.dumps(found))
    told = [
        f"{place}: {value!r}" for place, value in differing(found, golden(name, folder))
    ]
    assert not told, "\n".join(
        [f"not as in goldens/{name}.json (python {by} writes it anew):", *told[:20]]
    )


def write(made: Mapping[str, Callable[[], Any]], folder: Path = FOLDER) -> None:
    """Write those that are named on the command line anew, or all; files of none are removed."""
    folder.mkdir(exist_ok=True)
    for old in {path.stem for path in folder.glob("*.json")} - set(made):
        (folder / f"{old}.json").unlink()
    for name in sys.argv[1:] or made:
        found = json.loads(
            json.dumps(made[name]()),
            parse_float=lambda number: float(f"{float(number):.9g}"),
        )
        (folder / f"{name}.json").write_text(text(found) + "\n", "utf-8")


if __name__ == "__main__":
    import test_goldens

    write(test_goldens.MADE)
