"""How settings are declared, divided, checked and explained: each kind of value and each error, in whole sentences."""

from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from cyclopts import Parameter
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from anisoscope import options
from anisoscope.errors import UsageError
from anisoscope.options import (
    INPUT,
    MACHINE,
    MODEL,
    OUTPUT,
    TRAINING,
    WHAT,
    Number,
    Text,
    Whole,
    build_settings,
    declare_settings,
    option,
    split_names,
)


@declare_settings
class Deepest:
    colour: Annotated[Literal["red", "blue"] | None, option("a colour", INPUT)] = None


@declare_settings
class Deep:
    depth: Annotated[Whole, Field(ge=2), option("a depth", INPUT)] = 2
    deepest: Deepest = Deepest()


@declare_settings
class Near:
    size: Annotated[Whole, Field(ge=1, le=9000), option("a size", INPUT)] = 1


@declare_settings
class Whole2:
    """Settings inside settings, two deep, after other settings."""

    first: Annotated[Text, option("a name", INPUT)] = field(default="a", kw_only=False)
    near: Near = Near()
    deep: Deep = Deep()
    share: Annotated[Number, Field(gt=0), option("a share", INPUT)] = 0.5
    below: Annotated[Whole, Field(le=3), option("few", INPUT)] = 0
    numbers: Annotated[options.Numbers, option("numbers", INPUT)] = ()


def test_headings_come_in_their_order():
    groups = [INPUT, WHAT, MODEL, TRAINING, MACHINE, OUTPUT]
    assert sorted(groups, key=lambda group: group.sort_key) == groups
    assert [group.name for group in groups[:2]] == ["Input", "What to measure"]


def test_a_home_is_expanded_and_one_of_nobody_stays():
    assert options.expand_home("~/x") == Path.home() / "x"
    assert options.expand_home("~nobody-at-all/x") == Path("~nobody-at-all/x")
    assert options.expand_home(Path("a/b")) == Path("a/b")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cuda:", "expected --device {}, or one of several as cuda:1; got 'cuda:'. Cure: known names: {less}"),
        ("cudda:1",
         "expected --device {}, or one of several as cuda:1; got 'cudda:1'. Cure: did you mean cuda or cpu?"),
        ("gpu:1", "expected --device {}, or one of several as cuda:1; got 'gpu:1'. Cure: use cuda"),
        ("meta", "expected a device that computes; got 'meta', which knows shapes only. "
                 "Cure: use --device cpu, cuda or mps"),
    ],
)  # fmt: skip
def test_a_device_that_is_none_is_explained(name, text):
    with pytest.raises(UsageError) as caught:
        options.check_device(name)
    every = ", ".join(options.DEVICES)
    less = ", ".join(sorted(set(options.DEVICES) - {"cuda"}))
    error = str(caught.value)
    if "{less}" in text:
        assert error.startswith(text.partition(" Cure")[0].replace("{}", every))
        assert less.split(", ", maxsplit=1)[0] in error
    else:
        assert error == text.replace("{}", every)


def test_names_and_numbers_are_divided():
    split = split_names(("x", "y"), {"old": "y"}).func
    assert split("a,all,x,b") == ("a", "x", "y", "b")
    assert split("old,all") == ("y", "x") and split("") == () and split([]) == ()
    assert split_names().func(("all",)) == ("all",) and split_names().func("all") == ()
    assert split(["a", 1]) == ["a", 1] and split(None) is None
    numbers = options.split_numbers((7, 8)).func
    assert numbers(" 1,2 ,1") == ("1", "2") and numbers("all") == (7, 8)
    assert numbers("1,all") == ("1", "all")
    assert options.separate_names(["a, b,", " ", ",c"]) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("given", "read"),
    [("+3", 3), (" 3 ", 3), ("-3", -3), ("0-3", None), ("3.0", None), ("", None)],
)
def test_whole_numbers_are_written_in_digits(given, read):
    check = TypeAdapter(Whole).validate_python
    if read is None:
        with pytest.raises(ValidationError):
            check(given)
    else:
        assert check(given) == read


def test_names_of_files_can_be_read_by_people():
    check = TypeAdapter(options.FilePath).validate_python
    for name in ("a\x1fb", "folder\x80/x", "x\udc80", "\x00"):
        with pytest.raises(ValidationError):
            check(name)
    assert check("a b/é") == Path("a b/é")


def test_defaults_are_shown_as_they_are_typed():
    show = options._show_default
    shown = {None: None, False: None, "": None, (): None, True: "True", 0.5: "0.5"}
    assert all(show(value) == text for value, text in shown.items())
    assert show(0) == "0" and show(("a", 1)) == "a,1" and show(3) == "3"
    assert option("h", INPUT).show_default is options._show_default
    one = option("h", WHAT, "-w", shown="all", metavar="N")
    assert (one.help, one.group, one.alias) == ("h", (WHAT,), ("-w",))
    assert one.show_default == "all" and one.metavar == "N"
    assert one.show_choices is False and option("h", INPUT, shown="").show_default == ""


def test_the_range_of_a_field_is_part_of_its_help():
    def help_of(kind: type, name: str) -> Any:
        extras = kind.__annotations__[name].__metadata__
        return next(x.help for x in extras if isinstance(x, Parameter))

    assert help_of(Near, "size") == "a size; 1 to 9,000"
    assert help_of(Deep, "depth") == "a depth; at least 2"
    assert help_of(Whole2, "below") == "few; 0 to 3"
    assert help_of(Whole2, "first") == "a name"
    plain = Annotated[Whole, Field(ge=1), Parameter(parse=False)]
    assert options._add_range_to_help(plain).__metadata__[-1].help is None
    assert options.describe_range(Annotated[Whole, Field(ge=1000)]) == "at least 1,000"
    assert options.describe_range(Whole) == options.describe_range(int) == ""
    assert options._find_bounds(Annotated[Whole, Field(ge=4)]) == (4, None)
    assert options._find_bounds(Annotated[Whole, Field(le=4)]) == (None, 4)


def test_settings_are_frozen_and_checked_where_they_are_made():
    made = Whole2("b", share=0.25)
    assert made.first == "b" and made.share == 0.25

    @declare_settings
    class Fresh:
        share: Annotated[Number, option("a share", INPUT)] = 0.5

    fresh = Fresh()
    with pytest.raises(FrozenInstanceError):
        fresh.share = 1.0  # type: ignore[misc]
    with pytest.raises(UsageError) as caught:
        Fresh(shar=1)  # type: ignore[call-arg]
    assert str(caught.value) == (
        "expected a known keyword; got 'shar'. Cure: see the fields of the settings"
    )
    with pytest.raises(UsageError) as caught:
        Whole2("b", "c")  # type: ignore[call-arg]
    assert "settings by name; got 'c'. Cure: name it, as in limit=3" in str(
        caught.value
    )


def test_fields_two_deep_are_given_by_their_own_names():
    found = build_settings(Whole2, {"colour": "red", "size": 3, "first": "z"})
    assert found == Whole2(
        "z", near=Near(size=3), deep=Deep(deepest=Deepest(colour="red"))
    )
    whole = build_settings(Deep, {"deepest": Deepest(colour="red"), "depth": 4})
    assert whole == Deep(depth=4, deepest=Deepest(colour="red"))
    # What is given whole keeps its other values.
    red = Deep(deepest=Deepest(colour="red"))
    found = build_settings(Whole2, {"deep": red, "depth": 6})
    assert found.deep == Deep(depth=6, deepest=Deepest(colour="red"))
    names = ["first", "size", "depth", "colour", "share", "below", "numbers"]
    assert options.list_field_names(Whole2) == names
    with pytest.raises(UsageError) as caught:
        build_settings(Whole2, {"colur": "red", "sze": 1}, also=("shade",))
    assert str(caught.value) == (
        "expected a known keyword; got 'colur'. Cure: did you mean colour?"
    )
    with pytest.raises(UsageError, match=r"got 'shad'. Cure: did you mean shade"):
        build_settings(Whole2, {"shad": 1}, also=("shade",))
    assert options.select_fields(Whole2("q"), Whole2)["first"] == "q"
    assert options.select_fields(Near(), Near) == {"size": 1}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"size": 0}, "expected size of at least 1; got 0. Cure: raise size"),
        ({"size": "9001"}, "expected size of at most 9,000; got 9001. Cure: lower size"),
        ({"depth": "1"}, "expected depth of at least 2; got 1. Cure: raise depth"),
        ({"below": 4}, "expected below of at most 3; got 4. Cure: lower below"),
        ({"share": 0}, "expected share above 0; got 0. Cure: raise share"),
        ({"share": float("inf")}, "expected a finite share; got inf. Cure: change share"),
        ({"share": True}, "expected a number for share; got True. Cure: give one in digits"),
        ({"share": "x"}, "expected a number for share; got 'x'. Cure: give one in digits"),
        ({"depth": "x"}, "expected a whole number for depth; got 'x'. Cure: give one of at least 2, in digits"),
        ({"below": 1.5}, "expected a whole number for below; got 1.5. Cure: give one of 0 to 3, in digits"),
        ({"numbers": "1,x"},
         "expected whole numbers for numbers; got 'x'. Cure: give them with commas, as 1,2; or all"),
        ({"colour": "bleu"}, "expected colour among red, blue; got 'bleu'. Cure: did you mean blue?"),
        ({"first": "a\nb"},
         r"expected first without control characters, in UTF-8; got 'a\nb'. Cure: correct or rename it"),
        ({"near": 5}, "correct near"),
        ({"size": -(2**64)}, "expected size of at least 1; got -18446744073709551616. Cure: raise size"),
        ({"size": 2**64}, "expected size of at most 9,000; got 18446744073709551616. Cure: lower size"),
    ],
)  # fmt: skip
def test_each_error_is_a_whole_sentence(given, text):
    with pytest.raises(UsageError) as caught:
        build_settings(Whole2, given)
    error = str(caught.value)
    if text.startswith("expected"):
        assert error == text
    else:
        assert error.endswith(text)


def test_an_error_of_pydantic_is_explained_under_any_name():
    def explain(kind: Any, value: Any, **how: Any) -> str:
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(kind).validate_python(value)
        return str(options.explain_invalid(caught.value, **how))

    least = Annotated[Whole, Field(ge=5)]
    assert explain(least, 1, name="--rows", annotation=least) == (
        "expected --rows of at least 5; got 1. Cure: raise --rows"
    )
    assert explain(least, 1) == (
        "expected the settings of at least 5; got 1. Cure: raise the settings"
    )
    names = Annotated[
        tuple[Literal["a", "b"], ...], split_names(("a", "b")), option("x", INPUT)
    ]
    assert explain(names, [","], name="letters", annotation=names) == (
        "expected names for letters; got ','. Cure: name some of a, b"
    )
    assert explain(options.Device, "gpu").endswith("Cure: use cuda")
    assert explain(tuple[int, ...], 5, name="sizes") == (
        "expected sizes: a valid tuple; got 5, int. Cure: correct sizes"
    )
    inner = Annotated[Whole, Field(ge=2)]

    @declare_settings
    class Own:
        some_size: Annotated[inner, option("x", INPUT)] = 2

    check = TypeAdapter(dict[str, inner])
    with pytest.raises(ValidationError) as caught:
        check.validate_python({"some_size": 1})
    assert str(options.explain_invalid(caught.value, Own, flags=True)) == (
        "expected --some-size of at least 2; got 1. Cure: raise --some-size"
    )
    depth = options._find_annotation(Whole2, "depth")
    assert options.describe_range(depth) == "at least 2"
    colour = options._find_annotation(Whole2, "colour")
    assert options.list_choices(colour) == ("red", "blue")
    assert options._find_annotation(Whole2, "nothing") is None

    def refuse(_: str) -> str:
        raise ValueError("odd")

    odd = Annotated[str, AfterValidator(refuse)]
    assert (
        explain(odd, "x", name="a") == "expected a: odd; got 'x', str. Cure: correct a"
    )
    # Of several names the innermost is the field's.
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, dict[str, inner]]).validate_python({"x": {"size": 1}})
    assert str(options.explain_invalid(caught.value)).startswith("expected size of")


def test_choices_are_found_wherever_they_are_written():
    find = options.list_choices
    assert find(Literal["a", "b"]) == ("a", "b") and find(int) == ()
    assert find(int | Literal["a"] | None) == ("a",)
    assert find(Annotated[tuple[int | Literal[3, 4], ...], "x"]) == ("3", "4")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 58, "'" + "x" * 58 + "'"),
        ("x" * 59, "'" + "x" * 59 + "… (61 characters)"),
        ("é", r"'\xe9'"),
        (Path("/a/é"), r"'/a/\xe9'"),
        ([1], "[1]"),
        (2**240 - 1, str(2**240 - 1)[:60] + "… (73 characters)"),
        (2**240, "a number of 241 bits"),
        ("y" * 2000, "'" + "y" * 59 + "… (2,002 characters)"),
    ],
)
def test_what_was_given_is_shown_short(value, text):
    assert options.truncate_repr(value) == text
    assert options.truncate_repr(-(10**5000)) == "a number of 16,610 bits"
