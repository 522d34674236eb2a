"""Settings: what is typed, given in Python or read from a file is one object, checked by one rule."""

import inspect
import json
from dataclasses import asdict, fields, replace
from importlib import import_module
from typing import Annotated, Literal, get_args, get_type_hints

import pytest
from pydantic import Field
from typed import invoke

from anisoscope.cli import config, measure_commands, view
from anisoscope.cli.app import COMMANDS, app
from anisoscope.cli.faults import explain_usage_error
from anisoscope.errors import CorpusError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.options import (
    INPUT,
    PYTHON_ONLY,
    Device,
    FilePath,
    Names,
    Number,
    Numbers,
    Text,
    Whole,
    build_settings,
    declare_settings,
    list_field_names,
    option,
    select_fields,
    split_names,
)
from anisoscope.runs.job import ClassesOptions, Job, LoadOptions, ReadOptions


@declare_settings
class Inner:
    letters: Annotated[
        tuple[Literal["a", "b", "c"], ...],
        split_names(("a", "b")),
        option("letters", INPUT),
    ] = ("a",)


@declare_settings
class Outer:
    """A field of every type."""

    whole: Annotated[
        Whole | None, Field(ge=1, le=5), option("a number", INPUT, "-w")
    ] = None
    free: Annotated[Whole, option("any number", INPUT)] = 0
    number: Annotated[Number, Field(ge=0, le=0.9), option("a number", INPUT)] = 0.5
    flag: Annotated[bool, option("a flag", INPUT)] = False
    text: Annotated[Text, option("a text", INPUT)] = ""
    path: Annotated[FilePath | None, option("a path", INPUT)] = None
    names: Annotated[Names, option("names", INPUT)] = ()
    numbers: Annotated[Numbers, option("numbers", INPUT)] = ()
    device: Annotated[Device, option("a device", INPUT)] = "auto"
    hidden: Annotated[bool, PYTHON_ONLY] = False
    inner: Inner = Inner()


GOOD = [
    ("whole", "1", 1),
    ("whole", 5, 5),
    ("whole", None, None),
    ("free", "-9223372036854775807", 1 - 2**63),
    ("free", 2**63 - 1, 2**63 - 1),
    ("number", "0.25", 0.25),
    ("number", 0, 0.0),
    ("flag", True, True),
    ("names", "a, b,", ("a", "b")),
    ("names", ["a,b", "c"], ("a", "b", "c")),
    ("names", "", ()),
    ("numbers", "0,8,-1,8", (0, 8, -1)),
    ("numbers", [3, 4], (3, 4)),
    ("numbers", "all", ()),
    ("letters", "all", ("a", "b")),
    ("letters", "c", ("c",)),
    ("letters", "all,c", ("a", "b", "c")),
    ("letters", "c,all,a", ("c", "a", "b")),
    ("device", "cuda:1", "cuda:1"),
]
BAD = [
    ("whole", "0", "{} of at least 1; got 0. Cure: raise {}"),
    ("whole", 6, "{} of at most 5; got 6. Cure: lower {}"),
    ("whole", "9" * 30, "{} of at most 5; got 9"),
    (
        "whole",
        "2.5",
        "a whole number for {}; got '2.5'. Cure: give one of 1 to 5, in digits",
    ),
    ("whole", True, "a whole number for {}; got True"),
    ("free", 2**63, "{} of at most 9,223,372,036,854,775,807; got 9223372036854775808"),
    ("number", "nan", "a finite {}; got nan. Cure: change {}"),
    ("number", "0.91", "{} of at most 0.9; got 0.91"),
    ("number", "x", "a number for {}; got 'x'. Cure: give one of 0 to 0.9, in digits"),
    ("flag", "maybe", "true or false for {}; got 'maybe'"),
    (
        "text",
        "a\x07",
        r"{} without control characters, in UTF-8; got 'a\x07'. Cure: correct or rename it",
    ),
    ("text", "a\udc80", r"{} without control characters, in UTF-8; got 'a\udc80'"),
    ("path", "a\x07", r"{} without control characters, in UTF-8; got 'a\x07'"),
    ("names", ",", "names for {}; got ','. Cure: leave it out"),
    ("names", 5, "{}: a valid tuple; got 5, int. Cure: correct {}"),
    ("numbers", "1,x", "whole numbers for {}; got 'x'. Cure: give them with commas"),
    ("letters", "a,d", "{} among a, b, c; got 'd'. Cure: known names: a, b, c"),
    ("letters", ",", "names for {}; got ','. Cure: name some of a, b, c"),
    ("device", "cudda", "Cure: did you mean cuda or cpu?"),
    ("device", "gpu", "Cure: use cuda"),
    ("device", "meta:0", "Cure: use --device cpu, cuda or mps"),
]


def of(settings, name):
    return settings.inner.letters if name == "letters" else getattr(settings, name)


@pytest.mark.parametrize(("name", "given", "read"), GOOD, ids=str)
def test_what_fits_is_read(name, given, read):
    found = of(build_settings(Outer, {name: given}), name)
    assert found == read and type(found) is type(read)
    assert (
        of(type_in(f"--{name}", given), name) == read
        if isinstance(given, str)
        else True
    )


@pytest.mark.parametrize(("name", "given", "told"), BAD, ids=str)
def test_what_does_not_fit_is_told_alike_in_python_and_as_it_is_typed(
    name, given, told
):
    with pytest.raises(UsageError) as error:
        build_settings(Outer, {name: given})
    assert told.replace("{}", name) in str(error.value)
    if isinstance(given, str):
        with pytest.raises(UsageError) as error:
            type_in(f"--{name}={given}")
        assert told.replace("{}", f"--{name}") in str(error.value)


def type_in(*words, **more):
    """The settings that some words make."""
    from cyclopts import App, CycloptsError

    def command(given: Outer = Outer(), *, config: view.Config = None):  # noqa: ARG001, B008
        return given

    how = {
        "exit_on_error": False,
        "print_error": False,
        "result_action": "return_value",
    }
    own = App(default_parameter=app.default_parameter, config=app.config, **how, **more)
    own.default(command)
    try:
        return own(list(words))
    except CycloptsError as error:
        raise explain_usage_error(error) from error


def test_short_flags_repeats_and_what_python_alone_gives():
    assert (
        type_in("-w", "2").whole == 2
        and type_in("--whole=2", "--whole", "3").whole == 3
    )
    assert type_in("--names", "a", "--names", "b,c").names == ("a", "b", "c")
    with pytest.raises(UsageError, match="got --hidden"):
        type_in("--hidden")
    assert Outer(hidden=True).hidden and "hidden" in list_field_names(Outer)


def test_settings_inside_others_are_given_by_their_own_names_or_whole():
    assert build_settings(Outer, {"letters": "b", "whole": 2}) == Outer(
        whole=2, inner=Inner(letters=("b",))
    )
    assert build_settings(Outer, {"inner": Inner(), "letters": "c"}).inner.letters == (
        "c",
    )
    # What is not named keeps the value that was given with the whole.
    given = {"model": "m", "settings": Settings(panel=("hidden",)), "tokens": ("all",)}
    assert build_settings(Job, given).settings == Settings(
        panel=("hidden",), tokens=("all",)
    )
    assert {"letters", "whole"} <= {
        *list_field_names(Outer)
    } and "inner" not in list_field_names(Outer)
    with pytest.raises(
        UsageError, match=r"a known keyword; got 'lettrs'. Cure: did you mean letters"
    ):
        build_settings(Outer, {"lettrs": "b"})
    with pytest.raises(UsageError, match="did you mean output"):
        build_settings(Outer, {"outpu": "b"}, also=["output"])
    with pytest.raises(UsageError, match="whole of at least 1"):
        replace(Outer(), whole=0)


def test_a_group_of_fields_is_handed_on_whole():
    job = Job(split="test", dtype="float64", limit=3)
    assert select_fields(job, ReadOptions) == asdict(ReadOptions(split="test", limit=3))
    assert select_fields(job, LoadOptions) == asdict(LoadOptions(dtype="float64"))


def test_what_was_saved_under_other_names_is_read():
    old = {"panels": ["hidden"], "policies": ["content"], "median": True, "groups": 5}
    assert Settings.read(old) == Settings(
        panel=("hidden",), tokens=("content",), medians=True, groups=5
    )
    assert Settings.read(asdict(Settings(groups=5))) == Settings(groups=5)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_file_gives_options_and_what_is_typed_goes_before(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        'whole = 2\nflag = true\nnames = ["a", "b"]\nnumbers = "0,-1"\nletters = "c"\n'
    )
    read = type_in("--config", str(path))
    assert read == build_settings(
        Outer,
        {"whole": 2, "flag": True, "names": "a,b", "numbers": (0, -1), "letters": "c"},
    )
    assert type_in("--whole", "3", "--config", str(path)) == replace(read, whole=3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("whle = 2", "options of .*run.toml; got whle. Cure: did you mean whole"),
        ("whole = 0", "--whole of at least 1; got 0"),
        ("whole 2", "options as TOML in .*run.toml"),
        ('[inner]\nletters = "a"', "options of .*run.toml; got inner.letters"),
    ],
)
def test_a_file_is_held_to_the_same_rules(tmp_path, text, told):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        type_in("--config", str(path))


def test_a_file_that_is_not_there_is_told(tmp_path):
    for place in (tmp_path / "run.toml", tmp_path):
        with pytest.raises(UsageError, match="a file of options or a run folder"):
            type_in("--config", str(place))


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """`measured(command)`: the settings that a command line hands on."""
    (tmp_path / "text.txt").touch()
    monkeypatch.chdir(tmp_path)
    got = []
    monkeypatch.setattr(
        "anisoscope.api.functions.measure_job", lambda job, *_: got.append(job)
    )
    monkeypatch.setattr(
        "anisoscope.api.classifiers.measure_classes",
        lambda asked, *_: got.append(asked),
    )
    monkeypatch.setattr(measure_commands, "_show_run", lambda *_: None)

    def run(words):
        done = invoke(words)
        if done.exception is not None:
            raise done.exception
        return got.pop()

    return run


TYPED = "--limit 3 --panel hidden,class --tokens content --layers 0,-1 --sequences-first --dtype float64 -c text.txt"
JOB = Job(
    corpus="text.txt",
    limit=3,
    dtype="float64",
    settings=Settings(
        panel=("hidden", "class"),
        tokens=("content",),
        layers=(0, -1),
        tokens_first=False,
    ),
)


def test_a_run_can_be_measured_again_as_it_was(measured, tmp_path):
    """Its manifest, of an older version too, is read as a file of options."""
    job = measured(f"measure {TYPED}")
    assert job == JOB
    told = {"settings": json.loads(json.dumps(asdict(job))), "model": job.model}
    told["settings"] |= {
        "shard": [1, 4],
        "device": "cuda:3",
        "trust_remote_code": True,
        "step": 8,
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run/manifest.json").write_text(json.dumps(told))
    assert measured("measure --config run") == JOB  # on this machine, and all of it
    assert measured("measure --config run --limit 5 other").limit == 5
    older = {"panels": "panel", "policies": "tokens", "median": "medians"}
    for name, now in older.items():
        told["settings"]["settings"][name] = told["settings"]["settings"].pop(now)
    (tmp_path / "run/manifest.json").write_text(json.dumps(told))
    assert measured("measure --config run") == JOB
    told["settings"]["settings"]["metrics"] = ["drift"]
    (tmp_path / "run/manifest.json").write_text(json.dumps(told))
    assert measured("measure --config run").settings.metrics == ("drift",)
    told["settings"]["settings"]["bins"] = [0.0, 1.0]
    (tmp_path / "run/manifest.json").write_text(json.dumps(told))
    with pytest.raises(
        UsageError,
        match=r"measured with bins=\[0.0, 1.0\]. Cure: measure it from Python",
    ):
        measured("measure --config run")


def test_the_classes_of_a_run_can_be_measured_again(measured, tmp_path):
    asked = measured(
        "classes some/model -c synthetic --text-column t --parts directions --untrained --few 4"
    )
    expected = ClassesOptions(
        "some/model",
        corpus="synthetic",
        text_column="t",
        parts=("directions",),
        untrained=True,
        few=4,
    )
    assert asked == expected
    (tmp_path / "run").mkdir()
    (tmp_path / "run/manifest.json").write_text(
        json.dumps({"model": "some/model", "settings": {}})
    )
    identity = json.loads(json.dumps(asdict(asked)))
    for classes in (
        identity,
        {
            "corpus": "synthetic",
            "columns": {"text": "t"},
            "parts": ["directions"],
            "few": 4,
        },
    ):
        (tmp_path / "run/identity.json").write_text(json.dumps({"classes": classes}))
        again = measured("classes --config run --untrained")
        assert again == expected


def test_names_are_looked_at_before_anything_is_loaded(measured):
    with pytest.raises(CorpusError, match="did you mean builtin:python-docs"):
        measured("measure -c builtin:python-dox")
    with pytest.raises(CorpusError, match="did you mean synthetic"):
        measured("classes -c synthetc")


def test_every_option_of_a_command_has_its_help_and_stands_under_a_heading():
    """Anybody's command too: what has no heading stands under `Parameters`, which is none of ours."""
    from anisoscope.cli.app import command_names

    for name in command_names():
        command = app
        for word in name.split():
            command = command[word]
        if name == "train":
            continue
        shown = [
            each
            for each in command.assemble_argument_collection()
            if each.show and not each.children
        ]
        for each in shown:
            assert each.parameter.help, (name, each.names)
            assert {group.name for group in each.parameter.group} <= {
                "Input", "What to measure", "Model", "Training", "Machine", "Output"
            }, (name, each.names)  # fmt: skip


def test_names_that_a_command_is_given_by_itself_are_separated_there():
    """A parameter arrives as it was typed: `--report-to tensorboard,wandb` named no tracker."""
    commands = [
        entry
        for each in COMMANDS.values()
        for entry in getattr(each, "commands", {"": each}).values()
    ]
    found = []
    for command in commands:
        module, _, name = command.run.partition(":")
        function = getattr(import_module(module), name)
        for parameter, hint in get_type_hints(function, include_extras=True).items():
            if get_args(hint)[: len(get_args(Names))] == get_args(Names):
                found.append(parameter)
                assert f"separate_names({parameter})" in inspect.getsource(function), (
                    command.run,
                    parameter,
                )
    assert {"report_to", "only", "component"} <= {*found}


def test_every_setting_is_an_option_or_said_to_be_of_python_alone():
    """A field without an option could not be typed, and nobody was told."""
    arguments = app["measure"].assemble_argument_collection()
    typed = {
        each.names[0].removeprefix("--").replace("-", "_")
        for each in arguments
        if each.parse
    }
    python = (
        {field.name for kind in (Job, Settings) for field in fields(kind)}
        - typed
        - {"settings"}
    )
    assert python == {"step", "train_seed", *config.ONLY_IN_PYTHON}


@pytest.mark.parametrize(
    "words",
    [
        ["measure", "--config", "~nobody-here/run.toml"],
        ["measure", "~nobody-here/model"],
    ],
)
def test_a_home_of_nobody_is_a_path_that_is_not_there(program, words):
    """It was a RuntimeError, told as a bug of ours."""
    ended = program(words)
    assert (
        "bug" not in ended.shown
        and "~nobody-here" in ended.shown
        and ended.code not in (0, 1)
    )
