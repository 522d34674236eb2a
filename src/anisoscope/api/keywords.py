"""Keywords of the public functions, from the declared options of settings: the words of the command line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, TypedDict, get_args, get_type_hints

from anisoscope.errors import UsageError, near_matches
from anisoscope.options import Option


class Measuring(TypedDict, total=False):
    """Keywords of `measure` and `series`, as the options of `anisoscope measure` (`anisoscope measure --help`)."""

    metrics: Sequence[str]
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
    flatten: str
    at: str
    split: str | None
    column: str | None
    documents: str
    limit: int | None
    sequences: int | None
    max_length: int | None
    batch_tokens: int
    dtype: str
    untrained: bool
    shard: str
    device: str
    trust_remote_code: bool
    skip_bad: bool


class Looking(TypedDict, total=False):
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


PARAMETERS = ("corpus", "output", "resume", "overwrite", "quiet")
"""What else all of these functions take."""


@dataclass(frozen=True)
class Keyword:
    """One field of settings as a keyword: the name it is given by, and how it was declared."""

    name: str
    field: "Field[Any]"
    option: Option | None


def keywords(settings: type[Any]) -> Iterator[Keyword]:
    """The keywords of a class of settings; a field without an option goes by its own name."""
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        option = next((x for x in get_args(hints[field.name])[1:] if isinstance(x, Option)), None)
        flag = option.flags[0].removeprefix("--").replace("-", "_") if option and option.flags else field.name
        yield Keyword(flag, field, option)


def taken(given: dict[str, Any], settings: type[Any]) -> dict[str, Any]:
    """Fields of `settings` that are in `given`, by field name; they are taken out of it. UsageError for what cannot be.

    A text stands for several names with commas, and for what the command line makes of it.
    """
    found = {}
    for keyword in keywords(settings):
        if keyword.name in given:
            value = _value(given.pop(keyword.name), keyword)
            if keyword.option is not None and keyword.option.check is not None and value is not None:
                keyword.option.check(value)
            found[keyword.field.name] = value
    return found


def _value(value: Any, keyword: Keyword) -> Any:
    option, several = keyword.option, isinstance(keyword.field.default, tuple)
    if isinstance(value, str) and option is not None:
        if option.every and value == option.every:
            return keyword.field.default
        if option.parse is not None:
            return option.parse(value)
    if several and isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if several and value is not None else value


def refuse(given: Mapping[str, Any], known: type[Any], *settings: type[Any]) -> None:
    """UsageError for keywords that are left over; `known`: the names there are."""
    for name in given:
        other = next((k.name for s in settings for k in keywords(s) if k.field.name == name), None)
        cure = f"it is called {other} here" if other else near_matches(name, [*known.__annotations__, *PARAMETERS])
        raise UsageError("a known keyword", repr(name), cure)
