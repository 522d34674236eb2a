"""Keywords of the public functions, from the declared options of settings: the words of the command line."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from anisoscope.errors import UsageError, near_matches
from anisoscope.options import AskedField
from anisoscope.runs.job import Place

if TYPE_CHECKING:
    from anisoscope.metrics.base import Metric


class Written(TypedDict, total=False):
    """Where a run is written (`output`; none: it is in memory), and what becomes of one that is there, as on the
    command line; `quiet=False` shows progress.
    """

    output: Path | str | None
    resume: bool
    overwrite: bool
    quiet: bool


class Measuring(TypedDict, total=False):
    """Keywords of `measure` and `series`, as the options of `anisoscope measure` (`anisoscope measure --help`)."""

    metrics: "Sequence[str | Metric]"
    panel: str | Sequence[str]
    tokens: str | Sequence[str]
    groups: int
    spectrum_groups: int | None
    sample: int
    sample_heads: bool
    seed: int
    medians: bool
    bins: Sequence[float]
    blocks: str | Sequence[str]
    tokens_first: bool | None
    flatten: str
    at: str
    layers: str | Sequence[int]
    attention: str
    split: str | None
    column: str | None
    documents: str
    limit: int | None
    sequences: int | None
    max_length: int | None
    batch_tokens: int
    dtype: str
    untrained: bool
    tower: str | None
    shard: str
    device: str
    device_map: str | None
    trust_remote_code: bool
    skip_bad: bool


class Looking(Written, total=False):
    """Keywords of `classes`, as the options of `anisoscope classes`."""

    text_column: str | None
    second_column: str | None
    label_column: str | None
    rationale_column: str | None
    split_column: str | None
    split: str
    split_seed: int
    limit: int
    few: int
    at: str | None
    parts: str | Sequence[str]
    max_length: int | None
    batch_tokens: int
    dtype: str
    device: str
    trust_remote_code: bool


def read(given: Mapping[str, Any], fields: Iterable[AskedField]) -> dict[str, Any]:
    """Values by field name, read as the command line reads them (commas too). UsageError for a keyword that is none."""
    known = {field.keyword: field for field in fields}
    values = {}
    for name, value in given.items():
        if name not in known:
            other = next((keyword for keyword, field in known.items() if field.name == name), None)
            offered = [k for k, field in known.items() if field.option is not None]
            near = near_matches(name, [*offered, "corpus", *Written.__annotations__])
            raise UsageError("a known keyword", repr(name), f"it is called {other} here" if other else near)
        values[known[name].name] = known[name].read(value, name)
    return values


def written(options: Mapping[str, Any]) -> tuple[dict[str, Any], Place, bool]:
    """The options but for those of `Written`; the place; whether nothing is shown."""
    given = dict(options)
    output = given.pop("output", None)
    again = {name: given.pop(name, False) for name in ("resume", "overwrite")}
    place = Place(None if output is None else Path(output).expanduser(), **again)
    return given, place, given.pop("quiet", True)
