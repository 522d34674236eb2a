"""Declare settings once, as fields of a class that are keywords in Python and options on the command line.

    @declare_settings
    class Reading:
        limit: Annotated[Whole | None, Field(ge=1), option("first N units only", INPUT)] = None

`declare_settings` makes a frozen dataclass whose fields pydantic checks whenever one is made: in Python, from a file,
or from what was typed. `option` says how the command line (cyclopts) shows a field, and `explain` tells an error of
pydantic in our words: what was expected, what came, what to do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Le
from cyclopts import Group, Parameter
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from anisoscope.errors import AnisoscopeError, UsageError, suggest_names
from anisoscope.renamed import rename_typed_corpus

INPUT, WHAT, MODEL, TRAINING, MACHINE, OUTPUT = (
    Group(name, sort_key=place)
    for place, name in enumerate(
        ("Input", "What to measure", "Model", "Training", "Machine", "Output")
    )
)
"""Headings under which `--help` lists options, in this order."""

DTYPES = ("float32", "float64", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")
"""Kinds of devices; a number after a colon names one of several (`cuda:1`)."""
MOST = (1 << 63) - 1
"""Whole numbers are kept in 64 bits, one of them the sign."""
LONGEST = 60
"""Characters of what was given that an error shows."""

Kind = TypeVar("Kind")


def expand_home(name: str | Path) -> Path:
    """Return a path in which a leading `~` or `~user` is the home folder; unchanged if there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # a file may have such a name
        return Path(name)


# ---- the types of fields ---------------------------------------------------------------------------------------------


def _refuse_bool(value: Any) -> Any:
    """Return the value, but refuse True and False, which Python takes for the numbers 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "not a number")
    return value


def _check_readable(path: Path) -> Path:
    """Return the path; raise pydantic's error if its name has control characters or is not UTF-8."""
    if re.search(UNREADABLE, str(path)):
        raise PydanticCustomError("string_pattern_mismatch", "not readable")
    return path


def check_device(name: str) -> str:
    """Return the name of a device; UsageError unless it is a kind of device, with or without a number.

    Whether this machine has the device is seen later.
    """
    if name == "auto":
        return name
    kind, colon, number = name.partition(":")
    # A device of torch; by its letters alone, "mtia" would be suggested.
    if kind == "meta":
        got = f"{name!r}, which knows shapes only"
        raise UsageError("a device that computes", got, "use --device cpu, cuda or mps")
    is_known = kind in (*DEVICES, "privateuseone")
    if is_known and (not colon or number.isdigit()):
        return name
    expected = f"--device {', '.join(DEVICES)}, or one of several as cuda:1"
    cure = "use cuda" if kind == "gpu" else suggest_names(kind, DEVICES)
    raise UsageError(expected, repr(name), cure)


def _require_whole_number(value: Any) -> Any:
    """Return the value, but refuse what pydantic would take for a whole number: `0-3` (as −3), True and False."""
    is_other_text = isinstance(value, str) and not re.fullmatch(
        r"\s*[+-]?\d+\s*", value
    )
    if is_other_text or isinstance(value, bool):
        raise PydanticCustomError("int_type", "not a number")
    return value


UNREADABLE = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
"""Control characters, and what a name that is not in UTF-8 becomes: neither a manifest nor a page can hold them."""
Whole = Annotated[int, BeforeValidator(_require_whole_number), Field(ge=-MOST, le=MOST)]
Number = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
CorpusName = Annotated[Text, AfterValidator(rename_typed_corpus)]
FilePath = Annotated[Path, AfterValidator(_check_readable)]
Device = Annotated[Text, AfterValidator(check_device)]


def split_names(
    every: tuple[str, ...] = (), renamed: Mapping[str, str] | None = None
) -> BeforeValidator:
    """Return a validator that makes a tuple of names from `a,b`, from several such texts, or from a sequence.

    every     the names that `all` stands for; if empty, `all` gives no names, which a field takes to mean all there are
    renamed   {old name: today's}, which are understood too
    """
    today = renamed or {}

    def split(value: Any) -> Any:
        """Split typed text at commas; leave other values to pydantic."""
        # Only texts are split: a wrong type is for pydantic to refuse, in its own
        # words.
        typed = _list_typed(value)
        if typed is None:
            return value
        names = tuple(today.get(name, name) for name in separate_names(typed))
        # Without a list of all names, only the typed text means all: a tuple may hold a
        # name `all`.
        if names == ("all",) and (every or isinstance(value, str)):
            return every
        # All of them, and others that are on request only.
        if every and "all" in names:
            place = names.index("all")
            return tuple(dict.fromkeys((*names[:place], *every, *names[place + 1 :])))
        # Something was typed, such as a lone comma, but it holds no name.
        if not names and any(typed):
            raise PydanticCustomError("no_names", "no names")
        return names

    return BeforeValidator(split)


def _list_typed(value: Any) -> list[str] | None:
    """Return the value of a field as a list of strings: a single string as a list of one; None for other types."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable):
        return None
    texts = list(value)
    if not all(isinstance(text, str) for text in texts):
        return None
    return texts


def separate_names(typed: Iterable[str]) -> tuple[str, ...]:
    """Split the names of a command's option, given once with commas or several times.

    Fields of settings are split by `split_names`; a parameter of a command arrives as it was typed.
    """
    words: list[str] = []
    for text in typed:
        words += [word.strip() for word in text.split(",")]
    return tuple(word for word in words if word)


def split_numbers(meaning_all: tuple[int, ...] = ()) -> BeforeValidator:
    """Return a validator that makes a tuple of numbers from `0,8,-1`; `all` gives `meaning_all`."""

    def split(value: Any) -> Any:
        """Split typed text at commas; leave other values to pydantic."""
        typed = _list_typed(value)
        if typed is None:
            return value
        words: list[str] = []
        for text in typed:
            words += [word.strip() for word in text.split(",")]
        if words == ["all"]:
            return meaning_all
        return tuple(dict.fromkeys(words))

    return BeforeValidator(split)


Names = Annotated[tuple[Text, ...], split_names()]
Numbers = Annotated[tuple[Whole, ...], split_numbers()]


# ---- fields as options -----------------------------------------------------------------------------------------------


def option(
    help: str, group: Group, *short: str, shown: str | None = None, **more: Any
) -> Parameter:
    """Declare how a field looks on the command line: its help, the heading it is listed under, and short flags.

    shown   the default as it is typed, if the value itself does not say it
    more    further arguments of `cyclopts.Parameter`
    """
    default: Any = _show_default if shown is None else shown
    return Parameter(
        help=help,
        group=group,
        alias=short,
        show_default=default,
        show_choices=False,
        **more,
    )


PYTHON_ONLY = Parameter(parse=False)
"""Marks a field that is given in Python alone."""


def _show_default(value: Any) -> str | None:
    """Return a default as a user would type it, or None if it says nothing."""
    # A switch that is off, and options that were not given, have no default worth a
    # word.
    if value is None or value is False or value in ("", ()):
        return None
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(field,)
)
def declare_settings(kind: type[Kind]) -> type[Kind]:
    """Class decorator: make a frozen dataclass of settings, whose fields are keywords in Python and flags when
    typed.

    A value that does not fit raises UsageError: one of another type, out of range, or not among the choices. A
    positional field (`field(kw_only=False)`) is typed without its flag.
    """
    # Before the class is built, since its checks and its help are read from the
    # annotations.
    for name, annotation in vars(kind).get("__annotations__", {}).items():
        kind.__annotations__[name] = _add_range_to_help(annotation)
    made = dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))(kind)
    # The check is kept, and its errors are reworded around it.
    check = made.__init__

    @wraps(check)
    def initialise(self: Any, *first: Any, **values: Any) -> None:
        """Create the settings; turn pydantic's errors into UsageError."""
        try:
            check(self, *first, **values)
        except ValidationError as error:
            raise explain_invalid(error, made) from error

    made.__init__ = initialise  # type: ignore[method-assign]
    # Without a name of its own, cyclopts shows the fields themselves as options.
    return Parameter(name="*")(made)  # type: ignore[return-value]


def build_settings(
    kind: type[Kind], values: Mapping[str, Any], *, also: Iterable[str] = ()
) -> Kind:
    """Make settings of class `kind` from values by name; fields of nested settings are given by their own names.

    also   further names that the caller accepts, to suggest for a typo

    UsageError, with similar names, for an unknown name, and for a value that does not fit.
    """
    # A name is a field here or, if not, one of the settings inside.
    own = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in values.items():
        if name in own:
            given[name] = value
        else:
            others[name] = value
    for name, inner in _find_nested_settings(kind):
        of_inner = {
            key: others.pop(key) for key in list_field_names(inner) if key in others
        }
        if not of_inner:
            continue
        # Settings that were given whole keep their other values.
        if name in given:
            given[name] = replace(given[name], **of_inner)
        else:
            given[name] = build_settings(inner, of_inner)
    # What nobody has taken is a typo, of which the first is enough.
    for name in others:
        raise UsageError(
            "a known keyword",
            repr(name),
            suggest_names(name, [*list_field_names(kind), *also]),
        )
    return kind(**given)


def select_fields(values: Any, kind: type) -> dict[str, Any]:
    """Return the values of an object that are fields of the dataclass `kind`, by name."""
    return {each.name: getattr(values, each.name) for each in fields(kind)}


def list_field_names(kind: type) -> list[str]:
    """Return the names of all fields that a user can set, including those of nested settings."""
    names: list[str] = []
    inner = dict(_find_nested_settings(kind))
    for each in fields(kind):
        if each.name in inner:
            names += list_field_names(inner[each.name])
        else:
            names.append(each.name)
    return names


def _find_nested_settings(kind: type) -> Iterator[tuple[str, type]]:
    """Yield (name, class) of the fields that are settings themselves.

    kind   the class of the settings
    """
    for name, annotation in get_type_hints(kind).items():
        # Settings inside settings are fields whose annotation is such a class.
        if isinstance(annotation, type) and is_dataclass(annotation):
            yield name, annotation


# ---- ranges and errors in words --------------------------------------------------------------------------------------


def _add_range_to_help(annotation: Any) -> Any:
    """Return a field's annotation with its allowed range appended to the help text."""
    # Only an annotation with extras can carry help.
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *extras = get_args(annotation)
    words = describe_range(annotation)
    for place, extra in enumerate(extras):
        if isinstance(extra, Parameter) and extra.help and words:
            extras[place] = Parameter.combine(
                extra, Parameter(help=f"{extra.help}; {words}")
            )
    return Annotated[(kind, *extras)]


def describe_range(annotation: Any) -> str:
    """Describe the allowed range of a numeric field in words (`at least 1`); empty if it has none."""
    least, most = _find_bounds(annotation)
    if most is not None:
        return f"{least or 0:,} to {most:,}"
    if least is not None:
        return f"at least {least:,}"
    return ""


def _find_bounds(annotation: Any) -> tuple[Any, Any]:
    """Return (smallest, largest) allowed value of a numeric field, from its annotation; None: not bounded there."""
    least: Any = None
    most: Any = None
    for extra in get_args(annotation)[1:]:
        if not isinstance(extra, FieldInfo):
            continue
        for bound in extra.metadata:
            # The bounds of every whole number say nothing of this field.
            if isinstance(bound, Ge) and bound.ge != -MOST:
                least = bound.ge
            elif isinstance(bound, Le) and bound.le != MOST:
                most = bound.le
    return least, most


def explain_invalid(
    error: ValidationError,
    kind: type | None = None,
    *,
    flags: bool = False,
    name: str = "",
    annotation: Any = None,
) -> AnisoscopeError:
    """Turn pydantic's error into one that says in plain words what is wrong. The caller raises it.

    kind         the class of the settings; its annotations tell which choices and ranges are allowed
    flags        write field names as flags (`--max-length`) rather than as Python keywords
    name         for a value that is not a field of settings: what to call it
    annotation   the type of that value
    """
    # One error at a time, as for a typed command.
    found = error.errors(include_url=False)[0]
    # Our own validators raise our own errors, which pydantic hands on.
    own = found.get("ctx", {}).get("error")
    if isinstance(own, AnisoscopeError):
        return own
    # A place in a tuple is a number; the field around it has the name.
    fields_of_error = [part for part in found["loc"] if isinstance(part, str)]
    if not name and fields_of_error:
        name = fields_of_error[-1]
        annotation = _find_annotation(kind, name) if kind is not None else None
        if flags:
            name = f"--{name.replace('_', '-')}"
    return UsageError(*_describe_error(found, name or "the settings", annotation))


def _find_annotation(kind: type, name: str) -> Any:
    """Return the annotation of a field of settings, nested settings included.

    kind   the class of the settings
    name   of the field
    """
    own = get_type_hints(kind, include_extras=True).get(name)
    if own is not None:
        return own
    for _, inner in _find_nested_settings(kind):
        annotation = _find_annotation(inner, name)
        if annotation is not None:
            return annotation
    return None


def _describe_error(
    found: ErrorDetails, label: str, annotation: Any
) -> tuple[str, str, str]:
    """Describe one error of pydantic: (what was expected, what was given, what to do).

    found        one entry of pydantic's list of errors
    label        what the value is called
    annotation   the annotation of the field
    """
    limits = found.get("ctx", {})
    got = truncate_repr(found["input"])
    least, most = _find_bounds(annotation)
    # Typed numbers are texts.
    number = got.strip("'")
    match found["type"]:
        case "greater_than_equal":
            return (
                f"{label} of at least {limits['ge'] if least is None else least:,}",
                number,
                f"raise {label}",
            )
        case "greater_than":
            return f"{label} above {limits['gt']:,}", number, f"raise {label}"
        case "less_than_equal":
            return (
                f"{label} of at most {limits['le'] if most is None else most:,}",
                number,
                f"lower {label}",
            )
        case "finite_number":
            return f"a finite {label}", number, f"change {label}"
        case "int_type" | "int_parsing" | "int_parsing_size" | "int_from_float":
            # A wrong member of a list of numbers, not a wrong number.
            if isinstance(found["loc"][-1], int):
                return (
                    f"whole numbers for {label}",
                    got,
                    "give them with commas, as 1,2; or all",
                )
            return f"a whole number for {label}", got, _suggest_number(annotation)
        case "float_type" | "float_parsing":
            return f"a number for {label}", got, _suggest_number(annotation)
        case "bool_type" | "bool_parsing":
            return (
                f"true or false for {label}",
                got,
                f"leave {label} out, or give true or false",
            )
        case "literal_error":
            choices = list_choices(annotation)
            return (
                f"{label} among {', '.join(choices)}",
                got,
                suggest_names(str(found["input"]), choices),
            )
        case "no_names":
            choices = list_choices(annotation)
            came = (
                found["input"]
                if isinstance(found["input"], str)
                else ",".join(found["input"])
            )
            return (
                f"names for {label}",
                repr(came),
                f"name some of {', '.join(choices)}" if choices else "leave it out",
            )
        case "unexpected_positional_argument":
            return "settings by name", got, "name it, as in limit=3"
        case "unexpected_keyword_argument":
            return "a known keyword", repr(label), "see the fields of the settings"
        case "string_pattern_mismatch" | "string_unicode":
            return (
                f"{label} without control characters, in UTF-8",
                got,
                "correct or rename it",
            )
        case _:
            message = (
                found["msg"]
                .removeprefix("Input should be ")
                .removeprefix("Value error, ")
            )
            came = f"{got}, {type(found['input']).__name__}"
            return f"{label}: {message}", came, f"correct {label}"


def _suggest_number(annotation: Any) -> str:
    """Say how to give a number, and in which range if the field has one."""
    words = describe_range(annotation)
    if not words:
        return "give one in digits"
    return f"give one of {words}, in digits"


def list_choices(annotation: Any) -> tuple[str, ...]:
    """Return the values that a field's annotation allows (those of its first `Literal`); empty if it has none."""
    # Choices may lie inside a tuple, an optional or another annotation.
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    for part in get_args(annotation):
        found = list_choices(part)
        if found:
            return found
    return ()


def truncate_repr(value: Any) -> str:
    """Return a given value as an error message shows it, shortened."""
    # Writing out a number of a million digits takes long, and Python refuses it.
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a number of {value.bit_length():,} bits"
    # In ASCII, so that control characters cannot disturb the terminal.
    text = ascii(str(value)) if isinstance(value, str | Path) else repr(value)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… ({len(text):,} characters)"
