"""What commands hand on and print: cures, runs and series, comparisons of layers, settings of runs, help."""

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from cyclopts import App

from anisoscope.cli import (
    answers,
    app as program,
    comparing,
    config,
    faults,
    measure_commands,
    printed_tables,
    publishing,
    view,
)
from anisoscope.cli.command import Command, Group
from anisoscope.errors import OutputError, UsageError
from anisoscope.runs.job import ClassesOptions, Job, OutputOptions, VectorColumns
from anisoscope.store import as_records

NAN = math.nan
JSON = view.Format(format="json")


# ---- cures


@pytest.fixture
def trying(monkeypatch):
    """Notes what cures are tried on and fitted to; reads a name as the layer that is asked for."""
    from anisoscope.cures import transforms, trial
    from anisoscope.data import vector_files
    from anisoscope.runs import curing

    asked = {}
    monkeypatch.setattr(transforms, "expand_cures", lambda names: names.split(","))
    monkeypatch.setattr(vector_files, "open_vectors", lambda path: f"opened {path}")
    monkeypatch.setattr(
        curing, "read_layer_of_vectors", lambda opened, layer: (opened, layer)
    )

    def try_cures(*given, **named):
        asked["tried"] = (given, named)
        return SimpleNamespace(notes=["of trials"], text="t", trials=[], chosen=None)

    def fit(*given):
        asked["fitted"] = given
        return SimpleNamespace(apply=lambda x: f"cured {x}", save=lambda _: None)

    monkeypatch.setattr(trial, "try_cures", try_cures)
    monkeypatch.setattr(trial, "fit_to_use", fit)
    source = answers._VectorsToCure("x", "units", "labels", ("of source",))

    def read(*given):
        asked["read"] = given
        return source

    monkeypatch.setattr(answers, "_read_vectors_to_cure", read)
    monkeypatch.setattr(answers, "_tabulate_cures", lambda _: "table")
    monkeypatch.setattr(
        answers, "show", lambda *given: asked.__setitem__("shown", given)
    )
    monkeypatch.setattr(
        answers, "_write_vectors", lambda *given: asked.__setitem__("written", given)
    )
    return asked


def test_cures_are_tried_with_units_classes_partners_and_seed(trying, capsys):
    columns = VectorColumns(columns="0-3")
    answers.cure(
        "v",
        columns,
        JSON,
        corpus="c",
        limit=7,
        cures="centre",
        pairs=Path("p.npy"),
        layer="final",
        seed=5,
        write=Path("w.npy"),
        save=Path("fit file"),
        quiet=True,
    )
    assert trying["read"] == ("v", columns, "c", 7, "final", True)
    partner = ("opened p.npy", "final")
    how = {"units": "units", "labels": "labels", "partner": partner, "seed": 5}
    assert trying["tried"] == (("x", ["centre"]), how)
    assert trying["fitted"] == ("centre", "x", partner)
    assert trying["written"] == (Path("w.npy"), "cured x")
    tables, form, findings, notes, more = trying["shown"]
    assert tables == ["table"] and form is JSON and more == {"chosen": None}
    assert [found.text for found in findings] == ["t"]
    assert notes == ["of source", "of trials"]
    assert capsys.readouterr().err.splitlines() == [
        "note: of source",
        "note: of trials",
        "saved: fit file; for other vectors: anisoscope apply 'fit file' FILE",
    ]
    answers.cure("v", cures="centre", quiet=True)
    assert trying["tried"][1] == how | {"partner": None, "seed": 0}


def test_vectors_to_cure_are_of_a_run_a_file_or_a_model(monkeypatch, tmp_path):
    from anisoscope.data import check_names, vector_files
    from anisoscope.runs import curing

    found = SimpleNamespace(vectors="x", units="u", labels="l", notes=("n",))
    kinds = {"run": False, "vectors": False}
    asked = []
    monkeypatch.setattr(curing, "is_run_folder", lambda _: kinds["run"])
    monkeypatch.setattr(vector_files, "holds_vectors", lambda _: kinds["vectors"])
    monkeypatch.setattr(
        vector_files,
        "open_vectors",
        lambda *given, **named: asked.append((given, named)) or found,
    )
    monkeypatch.setattr(curing, "read_layer_of_vectors", lambda *given: given)
    monkeypatch.setattr(
        curing,
        "read_layer_of_run",
        lambda *given: asked.append(given) or found,
    )
    monkeypatch.setattr(check_names, "check_model", lambda n: asked.append(n))
    monkeypatch.setattr(check_names, "check_corpus", lambda n: asked.append(n))
    monkeypatch.setattr(
        curing,
        "measure_layer",
        lambda measure, layer: asked.append((measure(tmp_path), layer)) or found,
    )
    monkeypatch.setattr(answers, "_measure_for_cures", lambda *given: given)
    columns = VectorColumns(unit_column="who")

    def read(name, corpus=None, limit=None):
        asked.clear()
        return answers._read_vectors_to_cure(name, columns, corpus, limit, "3", True)

    source = read("m", "c", 4)
    assert (source.vectors, source.units, source.labels) == ("x", "u", None)
    assert source.notes == ("n",)
    assert asked == ["m", "c", (("m", "c", 4, tmp_path, True), "3")]
    kinds["run"] = True
    source = read("r")
    assert asked == [(Path("r"), "3")]
    assert (source.units, source.labels, source.notes) == ("u", None, ("n",))
    for option, given in (("corpus", ("c", None)), ("limit", (None, 4))):
        with pytest.raises(UsageError) as caught:
            read("r", *given)
        assert str(caught.value) == (
            f"expected --{option} only with a model; got it with r. Cure: leave --{option} out"
        )
    kinds["run"] = False
    # a file is one, whatever its ending
    (tmp_path / "x.bin").touch()
    source = read(str(tmp_path / "x.bin"))
    ((given, named),) = asked
    assert given == (tmp_path / "x.bin",) and named["unit_column"] == "who"
    assert (source.vectors, source.units, source.labels) == ((found, "3"), "u", "l")


def test_a_model_is_measured_for_cures_on_what_was_named(monkeypatch, tmp_path):
    from anisoscope.api import functions
    from anisoscope.runs.curing import METRICS

    asked = []
    monkeypatch.setattr(functions, "measure_job", lambda *given: asked.append(given))
    answers._measure_for_cures("m", "c", 9, tmp_path, True)
    answers._measure_for_cures("m", None, None, tmp_path, False)
    (job, output, quiet), (other, _, loud) = asked
    assert (job.model, job.corpus, job.limit) == ("m", "c", 9)
    assert job.settings.metrics == METRICS and job.settings.tokens == ("all",)
    assert (output.output, quiet, loud) == (tmp_path, True, False)
    assert (other.corpus, other.limit) == ("", None)


def test_a_saved_cure_is_applied_to_the_layer_that_is_named(
    monkeypatch, tmp_path, capsys
):
    from anisoscope.cures import transforms
    from anisoscope.data import vector_files
    from anisoscope.runs import curing

    asked = []
    shape = np.ones((5, 3))
    monkeypatch.setattr(
        vector_files, "open_vectors", lambda *given, **named: (given, named)
    )
    monkeypatch.setattr(
        curing, "read_layer_of_vectors", lambda *given: asked.append(given) or 2 * shape
    )
    monkeypatch.setattr(
        transforms.Fit, "load", lambda _: SimpleNamespace(apply=lambda x: x + 1)
    )
    monkeypatch.setattr(answers, "show_row", lambda *given: asked.append(given))
    out = tmp_path / "out.npy"
    columns = VectorColumns(columns="0-2")
    given = (Path("f"), Path("q.parquet"), columns)
    answers.apply(*given, output=out, layer="4", view=JSON, quiet=True)
    (opened, layer), (row, form) = asked
    assert layer == "4" and opened[0] == (Path("q.parquet"),)
    assert opened[1]["columns"] == "0-2"
    assert row == {"written": str(out), "vectors": 5, "dimensions": 3}
    assert form is JSON and np.load(out).tolist() == (2 * shape + 1).tolist()
    assert capsys.readouterr().err == f"written: {out}\n"
    answers.apply(*given, output=out, quiet=True)
    assert len(asked) == 3, "a table needs no row"
    with pytest.raises(OutputError) as caught:
        answers._write_vectors(tmp_path / "x.npz", shape)
    assert str(caught.value) == (
        f"expected a file that ends in .npy; got {tmp_path / 'x.npz'}. Cure: name the file so: --write cured.npy"
    )


def test_a_diagnosis_is_shown_in_the_form_that_is_asked_for(monkeypatch, capsys):
    from anisoscope import doctor

    asked = []
    found = SimpleNamespace(works=True, as_dict=lambda: {"a": 1})
    monkeypatch.setattr(
        doctor, "diagnose", lambda **named: asked.append(named) or found
    )
    monkeypatch.setattr(
        doctor, "render_diagnosis", lambda of, columns: f"{of is found} {columns}"
    )
    monkeypatch.setattr(answers, "_tabulate_packages", lambda _: "packages")
    monkeypatch.setattr(answers, "show", lambda *given: asked.append(given))
    assert answers.doctor(developers=True, quiet=True) == 0
    assert capsys.readouterr().out == "True 100\n"
    answers.doctor(view=JSON, quiet=True)
    assert capsys.readouterr().out == '{\n "schema": 1,\n "a": 1\n}\n'
    csv = view.Format(format="csv")
    answers.doctor(view=csv, quiet=True)
    assert asked == [
        {"developers": True},
        {"developers": False},
        {"developers": False},
        (["packages"], csv),
    ]


# ---- the program


def test_commands_are_listed_in_their_order_with_their_examples(monkeypatch, capsys):
    parent = App(name="p", help_format="plaintext")
    one = Command("builtins:print", "Do z.", "p z 1")
    two = Command("builtins:print", "Do a.", "p a 2")
    group = Group("Do more.", "p more b", {"y": one, "b": two})
    for place, (name, added) in enumerate((("z", one), ("a", two), ("more", group))):
        program.mount(parent, name, added, place)
    parent.help_print([])
    shown = capsys.readouterr().out
    places = [shown.index(word) for word in ("Do z.", "Do a.", "Do more.")]
    assert places == sorted(places)
    parent.help_print(["a"])
    assert "Example: p a 2" in capsys.readouterr().out
    parent.help_print(["more"])
    shown = capsys.readouterr().out
    assert "Example: p more b" in shown
    assert shown.index("Do z.") < shown.index("Do a.")
    monkeypatch.setattr(program, "COMMANDS", {"z": one, "more": group})
    assert list(program.command_names()) == ["z", "more", "more y", "more b"]


def test_the_exit_code_is_that_of_the_command(monkeypatch, capsys):
    class Stand:
        def __init__(self, code):
            self.code = code

        def __call__(self, words):
            assert words == ["x"]
            return self.code

        def help_print(self):
            print("help")  # noqa: T201

    for returned, code in ((None, 0), (7, 7), (0, 0)):
        monkeypatch.setattr(program, "app", Stand(returned))
        assert program.run_command_line(["x"]) == code
    assert program.run_command_line([]) == 2
    assert capsys.readouterr().out == "help\n"


def test_superfluous_arguments_are_all_named():
    from cyclopts.exceptions import UnusedCliTokensError

    error = UnusedCliTokensError(unused_tokens=["x", "y z"], command_chain=("list",))
    assert str(faults.explain_usage_error(error)) == (
        "expected fewer arguments after anisoscope list; got 'x' 'y z'. Cure: anisoscope list --help lists all options"
    )


def test_commands_alone_are_suggested():
    """Not the flags, which an App lists among them."""
    from cyclopts.exceptions import UnknownCommandError

    known = ["--help", "--version", "other", "more"]
    error = UnknownCommandError(unused_tokens=["help"])
    object.__setattr__(error, "app", known)
    explained = faults._explain_unknown_command(error, "anisoscope train")
    assert str(explained) == (
        "expected a command of anisoscope train; got 'help'. Cure: known names: more, other"
    )


# ---- a comparison of layers


def pairs(ours, theirs, *, run="b", stacks=("encoder",), value=None):
    """Rows of how alike each layer of one run is to each of another: hundredths of our layer plus thousandths."""
    rows = []
    for stack in stacks:
        for mine in ours:
            for other in theirs:
                found = {"run": run, "against": "a", "metric": "cka"}
                found |= {"stack": stack, "stack_other": stack, "n_vectors": 9}
                for end, layer in (("", mine), ("_other", other)):
                    is_final = layer == "final"
                    found[f"layer{end}"] = 99 if is_final else layer
                    found[f"site{end}"] = "final" if is_final else "hidden"
                number = 0.01 * found["layer"] + 0.001 * found["layer_other"]
                number = number if value is None else value
                ends = {"low": number - 0.001, "high": number + 0.002}
                rows.append(found | {"value": number} | ends)
    return pd.DataFrame(rows)


def test_layers_of_two_runs_are_tabulated_ours_down_and_theirs_across():
    table = comparing.tabulate_layers(pairs([1, 2], [3, 4, "final"]))
    assert table.head == ("cka: a", "b 3", "4", "final")
    assert table.rows == [
        ["1", ".013", ".014", ".109"],
        ["2", ".023", ".024", ".119"],
    ]
    # equally many layers of other names are no pairs of the same layer
    assert comparing.tabulate_layers(pairs([1, 2], [3, 4])).head == (
        "cka: a",
        "b 3",
        "4",
    )
    same = comparing.tabulate_layers(pairs([1, 2], [1, 2]))
    assert same.head == ("cka: a", "same layer", "b 1", "2")
    assert same.rows == [
        ["1", ".011 [.010, .013]", ".011", ".012"],
        ["2", ".022 [.021, .024]", ".021", ".022"],
    ]
    several = comparing.tabulate_layers(pairs([1], [2, 3], stacks=("e", "d")))
    assert several.head == ("cka: a", "b e 2", "e 3", "d 2", "d 3")
    assert several.rows == [
        ["e 1", ".012", ".013", "", ""],
        ["d 1", "", "", ".012", ".013"],
    ]


def test_of_many_layers_some_are_shown_and_the_last_always():
    def shown(count, width=None):
        table = comparing.tabulate_layers(pairs([0], range(1, count + 1)), width)
        assert len(table.records) == count
        return [int(name.removeprefix("b ")) for name in table.head[1:]]

    assert shown(14) == list(range(1, 15))
    assert shown(15) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert shown(28) == list(range(2, 29, 2))
    assert shown(29) == list(range(2, 30, 3))
    # `cka: a` and three columns of four letters, two blanks apart
    assert shown(3, 6 + 3 * 6) == [1, 2, 3]
    assert shown(3, 6 + 3 * 6 - 1) == [1, 3]
    assert shown(3, 1) == [3]


def test_each_run_and_metric_has_a_table_of_layers_of_its_own(monkeypatch, capsys):
    rows = [
        {"run": run, "metric": metric, "n_vectors": 5, "value": value}
        for run, metric, value in (("b", "x", 1), ("b", "y", 2), ("c", "x", 3))
    ]
    monkeypatch.setattr(
        "anisoscope.runs.across.compare_layers", lambda *_: pd.DataFrame(rows)
    )
    monkeypatch.setattr(
        comparing, "tabulate_layers", lambda part, _: list(part["value"])
    )
    shown = []
    monkeypatch.setattr(comparing, "show", lambda tables, _: shown.append(tables))
    comparing._show_layers([], "m", JSON, True)
    assert shown == [[[1], [2], [3]]] and capsys.readouterr().err == ""


def test_every_condition_is_judged_by_itself(monkeypatch):
    from anisoscope.runs import comparison

    met = {"A > 0": [("b", 1)], "A < 1": [], "H > 2": [("b", 3), ("c", 4)]}
    monkeypatch.setattr(comparison, "describe_met", lambda *given: given)
    found = comparing._describe_failed(SimpleNamespace(judge=met.get), list(met))
    assert found == [("A > 0", "b", 1), ("H > 2", "b", 3), ("H > 2", "c", 4)]


def differences(*rows):
    place = {"stack": "encoder", "kind": "self", "layer": 1, "head": None}
    place |= {"site": "hidden", "component": None, "run": "b", "layer_other": 1.0}
    values = {"first": 0.5, "first_low": 0.4, "first_high": 0.6}
    values |= {"second": 0.7, "second_low": 0.65, "second_high": 0.8}
    values |= {"difference": 0.2, "low": 0.1, "high": 0.3}
    return pd.DataFrame([place | values | given for given in rows])


def test_a_comparison_has_a_row_a_layer_with_both_values_and_their_difference():
    rows = differences(
        {"layer_other": 2.0},
        {"layer": 3, "site": "final", "layer_other": 6.0, "second": 0.1},
    )
    two = SimpleNamespace(names=["a", "b"], table=rows)
    (table,) = comparing.tabulate_comparison(two)
    assert table.head == ("layer", "a", "b", "difference")
    assert table.rows == [
        [
            "1",
            ".500 [.400, .600]",
            ".700 [.650, .800] @2",
            "+.200 [+.100, +.300]",
        ],
        # the last layer has no number to be matched by
        ["final", ".500 [.400, .600]", ".100 [.650, .800]", "+.200 [+.100, +.300]"],
    ]
    (empty,) = comparing.tabulate_comparison(
        SimpleNamespace(names=["a", "b"], table=rows[:0])
    )
    assert empty.head == ("layer",) and empty.rows == []


def test_of_three_runs_values_are_starred_where_differences_do_not_fit():
    rows = differences(
        {"low": -0.3, "high": -0.1},
        {"run": "c", "second": 0.9, "low": -0.1},
        {"layer": 2, "run": "c", "first": 0.25, "second": 0.8, "layer_other": 2.0},
    )
    three = SimpleNamespace(names=["a", "b", "c"], table=rows)
    (wide,) = comparing.tabulate_comparison(three)
    assert wide.head == ("layer", "a", "b", "difference", "c", "difference")
    assert wide.rows[1] == ["2", ".250", "", "", ".800", "+.200 [+.100, +.300]"]
    (narrow,) = comparing.tabulate_comparison(three, 40)
    assert narrow.head == ("layer", "a", "b", "c")
    assert narrow.rows == [
        ["1", ".500", ".700*", ".900"],
        ["2", ".250", "", ".800*"],
    ]
    (turned,) = comparing.tabulate_comparison(three, 17)
    assert turned.head == ("run", "1", "2")
    assert turned.rows == [
        ["a", ".500", ".250"],
        ["b", ".700*", ""],
        ["c", ".900", ".800*"],
    ]
    exact = 5 + 2 + 4 + 2 + 5 + 2 + 5
    (fits,) = comparing.tabulate_comparison(three, exact)
    assert fits.head == narrow.head
    (one_less,) = comparing.tabulate_comparison(three, exact - 1)
    assert one_less.head == turned.head


def test_components_that_are_named_replace_the_whole_comparison(monkeypatch):
    from anisoscope.runs import comparison

    whole = SimpleNamespace(names=["a", "b"], judge=lambda _: [])
    part = SimpleNamespace(names=["a", "b"], judge=lambda _: [("b", 1)])
    whole.of_components = lambda names: part if names == ("x",) else None
    shown = []
    monkeypatch.setattr(comparing, "_expand_series", lambda names: names)
    monkeypatch.setattr(comparing, "_open_or_measure", lambda *_: "opened")
    monkeypatch.setattr(comparing, "_show_differences", lambda *of: shown.append(of[0]))
    monkeypatch.setattr(
        comparing, "_print_notes_and_page", lambda *of: shown.append(of[0])
    )
    monkeypatch.setattr(comparison, "compare", lambda *_, **__: whole)
    assert comparing.compare(("a", "b"), component=("x",), quiet=True) == 0
    assert shown == [part, part]


# ---- options of a run that was measured


def options_of(monkeypatch, identity, **manifest):
    from anisoscope import store

    run = SimpleNamespace(manifest=manifest, identity=lambda: identity)
    monkeypatch.setattr(store, "RunFolder", lambda _: run)
    return config.read_options_of_run(Path("r"))


def test_options_of_a_run_are_those_that_mean_the_same_elsewhere(monkeypatch):
    kept = {"model": "m", "corpus": "c", "limit": 20, "dtype": "float32"}
    dropped = {"device": "cuda", "step": 5, "train_seed": 1, "shard": "1/2"}
    dropped |= {"max_length": None}
    # as JSON has them: a tuple was saved as a list
    settings = {"panels": ["hidden"], "seed": 3, "sample_heads": False, "bins": []}
    settings |= {"at": "first"}
    found = options_of(
        monkeypatch, {}, settings=kept | dropped | {"settings": settings}
    )
    assert found == kept | {"panel": ["hidden"], "seed": 3}
    assert config.ONLY_IN_PYTHON == ("sample_heads", "bins", "at")
    for name in config.ONLY_IN_PYTHON:
        with pytest.raises(UsageError) as caught:
            options_of(monkeypatch, {}, settings={"settings": {name: "other"}})
        assert str(caught.value) == (
            f"expected a run whose settings the command line has; got r, measured with {name}='other'. "
            "Cure: measure it from Python"
        )
    of_classes = {"classes": {"corpus": "c", "limit": 3, "columns": {"text": "body"}}}
    found = options_of(monkeypatch, of_classes, model="m", settings={})
    assert (found["model"], found["corpus"], found["limit"]) == ("m", "c", 3)
    assert "body" in found.values() and "columns" not in found


def test_a_file_of_options_is_toml_or_a_run(tmp_path, monkeypatch):
    path = tmp_path / "run.toml"
    path.write_text('limit = 20\npanel = "hidden"\n')
    assert config.read_config(path) == {"limit": 20, "panel": "hidden"}
    cure = 'write one option per line: limit = 20, panel = "hidden"'
    for content in (b"limit 20", 'corpus = "é.txt"'.encode("latin-1")):
        path.write_bytes(content)
        with pytest.raises(UsageError) as caught:
            config.read_config(path)
        assert caught.value.expected == f"options as TOML in {path}"
        assert caught.value.cure == cure
    with pytest.raises(UsageError) as caught:
        config.read_config(tmp_path)
    assert caught.value.got == f"{tmp_path}, which is neither"
    (tmp_path / "manifest.json").touch()
    monkeypatch.setattr(config, "read_options_of_run", lambda folder: folder.name)
    assert config.read_config(tmp_path) == tmp_path.name


# ---- what is measured, and what is printed about it


def test_what_is_measured_goes_its_own_way(monkeypatch):
    from anisoscope.data import vector_files
    from anisoscope.models import series
    from anisoscope.monitor import trackers

    asked, whole, checked = [], [], []
    for name in ("_measure_vectors", "_measure_series", "_measure_model", "_show_cost"):
        monkeypatch.setattr(
            measure_commands,
            name,
            lambda *given, of=name: (
                asked.append((of, *given[3:5])) or whole.append(given)
            ),
        )
    for name in ("check_model", "check_corpus"):
        monkeypatch.setattr(
            measure_commands, name, lambda given, of=name: checked.append((of, given))
        )

    def check(names):
        if "x" in names:
            raise UsageError("a tracker", "x")

    monkeypatch.setattr(trackers, "check_trackers", check)
    monkeypatch.setattr(vector_files, "holds_vectors", lambda name: name == "v")
    monkeypatch.setattr(series, "is_series", lambda name: name == "s")

    def measure(name, **how):
        asked.clear()
        measure_commands.measure(Job(model=name), quiet=True, **how)
        return asked[0]

    names = ("a", "b")
    assert measure("v", report_to=("a,b",)) == ("_measure_vectors", False, names)
    assert measure("s", report_to=names) == ("_measure_series", False, names)
    assert measure("m", report_to=names) == ("_measure_model", False, names)
    assert measure("m", dry_run=True) == ("_show_cost",)
    place, form = OutputOptions(resume=True), view.View(wide=True)
    for name in ("v", "s", "m"):
        job = Job(model=name, corpus="c")
        for quiet in (True, False):
            measure_commands.measure(job, place, form, report_to=names, quiet=quiet)
            assert whole[-1] == (job, place, form, False, names, quiet)
            assert checked[-2:] == [("check_model", name), ("check_corpus", "c")]
    assert measure("s", dry_run=True) == ("_measure_series", True, ())
    with pytest.raises(UsageError, match="a tracker"):
        measure("m", report_to=("x",))
    # of the defaults alone a dry run may tell the cost
    measure_commands.measure(dry_run=True, quiet=True)
    assert asked[-1][0] == "_show_cost"
    with pytest.raises(UsageError) as caught:
        measure_commands.measure(quiet=True)
    error = caught.value
    assert error.expected == "a model or a --corpus to measure"
    assert error.got.startswith(
        "nothing: without options builtin:minilm would be measured on all of builtin:"
    )
    assert error.cure.startswith("name one, or for a first look type: anisoscope mea")


def test_what_was_measured_is_shown_and_logged(monkeypatch):
    from anisoscope.api import functions

    asked = []
    monkeypatch.setattr(
        measure_commands, "_show_run", lambda *given: asked.append(given)
    )
    monkeypatch.setattr(
        functions, "measure_job", lambda *given: asked.append(given) or "run"
    )
    monkeypatch.setattr(
        functions, "measure_vectors", lambda *given: asked.append(given) or "run"
    )
    job, place, form = Job(model="m"), OutputOptions(), view.View()
    measure_commands._measure_model(job, place, form, False, ("wandb",), True)
    assert asked == [(job, place, True), ("run", form, True, ("wandb",))]
    asked.clear()
    measure_commands._measure_vectors(job, place, form, False, ("wandb",), True)
    assert asked == [(job, "m", place, True), ("run", form, True, ("wandb",))]
    asked.clear()
    monkeypatch.setattr(measure_commands, "_show_cost", lambda *of: asked.append(of))
    measure_commands._measure_model(job, place, form, True, (), True)
    assert asked == [(job, form, True)]


def test_a_dry_run_says_how_a_file_of_vectors_is_read(monkeypatch, capsys):
    from anisoscope.data import vector_files

    asked = []

    def read(*given, **named):
        asked.append((given, named))
        return SimpleNamespace(source={"reading": "so and so"})

    monkeypatch.setattr(vector_files, "open_vectors", read)
    job = Job(model="v", split="test", columns="0-3", unit_column="u")
    measure_commands._measure_vectors(job, OutputOptions(), view.View(), True, (), True)
    ((given, named),) = asked
    assert given == ("v",) and capsys.readouterr().out == "so and so\n"
    assert named == {
        "split": "test",
        "columns": "0-3",
        "unit_column": "u",
        "label_column": None,
    }


def test_checkpoints_are_listed_in_a_dry_run_and_counted_else(
    monkeypatch, capsys, tmp_path
):
    from anisoscope.api import functions
    from anisoscope.measure.settings import Settings
    from anisoscope.models import series

    (tmp_path / "there").mkdir()
    subjects = {5: str(tmp_path / "there"), 12000: str(tmp_path / "gone")}
    subjects[70] = "org/name@main"
    checkpoints = [
        SimpleNamespace(seed=seed, step=step, subject=subject)
        for seed, (step, subject) in enumerate(subjects.items())
    ]
    monkeypatch.setattr(series, "expand", lambda _: checkpoints)
    monkeypatch.setattr(series, "describe", lambda _: "described")
    asked = []
    measured = SimpleNamespace(records="records", folder=tmp_path)
    monkeypatch.setattr(
        functions, "measure_checkpoints", lambda *of: asked.append(of) or measured
    )
    monkeypatch.setattr(measure_commands, "_show_series", lambda *of: asked.append(of))
    monkeypatch.setattr(
        measure_commands, "_log_to_trackers", lambda *of: asked.append(of)
    )
    job = Job(model="s", settings=Settings(tokens=("content", "all")))
    place, form = OutputOptions(), view.View()
    measure_commands._measure_series(job, place, form, True, ("wandb",), True)
    given = capsys.readouterr()
    assert given.err == "" and given.out.splitlines() == [
        "3 checkpoints",
        "described",
        f"seed 0   step 5         {tmp_path / 'there'}",
        f"seed 1   step 12,000    {tmp_path / 'gone'}  (no such folder)",
        "seed 2   step 70        org/name@main",
    ]
    assert asked == []
    measure_commands._measure_series(job, place, form, False, ("wandb",), True)
    given = capsys.readouterr()
    assert given.out == "" and given.err.splitlines() == ["3 checkpoints", "described"]
    assert asked == [
        (job, place, True),
        # the first policy that was asked for
        (measured, "content", form, True),
        ("records", tmp_path, ("wandb",)),
    ]


def test_folders_next_to_others_are_missed_and_names_of_the_hub_are_not(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    missing = {
        "runs/a": False,
        "runs/b": True,
        "./b": True,
        "b": False,
        "org/name": False,
        "runs/b@main": False,
        "../nowhere-at-all": True,
    }
    found = {name: measure_commands._is_missing_sibling(name) for name in missing}
    assert found == missing


def test_the_cost_of_a_model_is_shown_line_by_line(monkeypatch, capsys):
    from anisoscope.runs import run

    cost = SimpleNamespace(
        weights=2_000_000,
        state=5_000_000_000,
        tokens=3000,
        line="a line",
        unmeasured=True,
        without_spectrum="without",
    )
    monkeypatch.setattr(run, "estimate_cost_before", lambda _: cost)
    monkeypatch.setattr(measure_commands, "require_extra", lambda *_: None)
    from anisoscope.measure.cost import format_bytes

    job = Job(model="m", dtype="bfloat16")
    measure_commands._show_cost(job, view.View(), True)
    lines = [
        f"m: weights {format_bytes(2_000_000)} in bfloat16",
        "a line",
        f"a state that --resume reads: {format_bytes(5_000_000_000)}; windows of 3,000 tokens",
        "without",
    ]
    assert capsys.readouterr().out.splitlines() == lines
    cost.unmeasured = False
    measure_commands._show_cost(job, view.View(), True)
    assert capsys.readouterr().out.splitlines() == lines[:-1]


def a_series(folder, steps=(1, 2)):
    rows = [
        {"seed": 0, "step": step, "metric": "drift", "value": 1.0} for step in steps
    ]
    return SimpleNamespace(
        records=as_records(pd.DataFrame(rows)),
        skipped={"s": "why"},
        repeated=[("a", "b")],
        folder=folder,
    )


def test_a_series_says_what_it_left_out_in_json_too(monkeypatch, capsys, tmp_path):
    shown = []
    monkeypatch.setattr(printed_tables, "tabulate_series", lambda *of: of[1])
    monkeypatch.setattr("anisoscope.runs.findings.findings", lambda _: ["finding"])
    monkeypatch.setattr(measure_commands, "show", lambda *given: shown.append(given))
    monkeypatch.setattr(measure_commands, "_announce_page", lambda *_: "a page")
    measure_commands._show_series(a_series(tmp_path), "content", JSON, True)
    repeated = "the same weights, bit for bit: a, b"
    notes = ["skipped: s: why", repeated]
    more = {"run": str(tmp_path)}
    assert shown == [(["content"], JSON, ["finding"], notes, more)]
    assert capsys.readouterr().err.splitlines() == [
        "skipped: s: why",
        f"note: {repeated}",
        "a page",
        f"next, every checkpoint against the first: anisoscope compare {tmp_path}",
        f"a page of one checkpoint: anisoscope report {tmp_path}/seed-…",
    ]
    # of the processes of a torchrun job the first one prints
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    measure_commands._show_series(a_series(tmp_path), "content", JSON, True)
    assert len(shown) == 1 and capsys.readouterr().err == ""


def shown_run(monkeypatch, tmp_path, corpus, *, identity=None, words=None, **form):
    """Show a run whose tables are stand-ins: what they were asked for."""
    from anisoscope.data import arrays
    from anisoscope.monitor import trackers
    from anisoscope.runs import differences

    asked = {}

    def note(name, result):
        def called(*given, **named):
            asked[name] = (given, named)
            return result

        return called

    tables = [view.Table(("a",), [["1"]], pd.DataFrame())]
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(measure_commands, "_build_tables_of_run", note("built", tables))
    monkeypatch.setattr(printed_tables, "tabulate_classes", note("classes", tables))
    monkeypatch.setattr(differences, "read_replicates", note("read", "replicates"))
    monkeypatch.setattr("anisoscope.runs.findings.findings", note("found", ["f"]))
    monkeypatch.setattr(measure_commands, "show", note("shown", None))
    monkeypatch.setattr(measure_commands, "_announce_page", lambda *_: "a page")
    monkeypatch.setattr(trackers, "log_run", note("logged", ["to look at"]))
    assert arrays.STACK == "vectors"
    manifest = {"warnings": ["w1", "w2"], "corpus": {"name": corpus}}
    manifest |= {"tokens": words} if words else {}
    run = SimpleNamespace(
        records="rec",
        manifest=manifest,
        folder=tmp_path / "run",
        identity=lambda: identity,
    )
    measure_commands._show_run(run, view.View(**form), True, ("wandb",))
    return asked


def test_a_run_is_shown_with_its_words_and_warnings_and_what_comes_next(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    asked = shown_run(monkeypatch, tmp_path, "vectors", words={"7": "the"})
    assert asked["built"][0][:2] == ("rec", "replicates")
    assert asked["built"][0][3] == {"7": "the"}
    assert asked["found"] == (("rec", {"7": "the"}), {})
    assert asked["read"][0] == (tmp_path / "run", 3)
    assert asked["shown"][0][2:] == (
        ["f"],
        ["w1", "w2"],
        {"run": str(tmp_path / "run")},
    )
    place = {"name": "run", "folder": tmp_path / "run" / "tensorboard"}
    assert asked["logged"] == (("rec", ("wandb",)), place)
    lines = ["note: w1", "note: w2", "a page", "to look at"]
    assert capsys.readouterr().err.splitlines() == [
        *lines,
        "next: anisoscope cure run",
    ]
    asked = shown_run(monkeypatch, tmp_path, "texts", identity={"classes": {}})
    assert "classes" in asked and "built" not in asked
    assert asked["found"] == (("rec", None), {})
    assert capsys.readouterr().err.splitlines() == [
        *lines,
        "next: anisoscope compare run ANOTHER-RUN",
    ]


@pytest.fixture
def tables_of_a_run(monkeypatch):
    """Builds the tables of a run from stand-ins: (names that have rows, options) → (tables, what was asked for)."""
    from anisoscope.cli import extreme_tables

    def build(there, form):
        asked = {}

        def stand(module, name, label, many=False):
            def called(*_given, **named):
                asked[label] = named
                rows = [["1"]] if label in there else []
                table = view.Table((label,), rows, pd.DataFrame())
                if many:
                    return [table] if rows else []
                return table if rows or label == "hidden" else None

            monkeypatch.setattr(module, name, called)

        stand(printed_tables, "tabulate_layers", "hidden")
        stand(printed_tables, "tabulate_attention", "attention")
        stand(extreme_tables, "tabulate_extremes", "extremes", True)
        stand(printed_tables, "tabulate_opt_in_metrics", "opt-in", True)
        stand(printed_tables, "tabulate_named_metrics", "named", True)
        stand(printed_tables, "tabulate_other_head_metrics", "other heads")
        made = measure_commands._build_tables_of_run("rec", "rep", form, {})
        return [table.head[0] for table in made], asked

    return build


def test_tables_of_a_run_are_of_what_it_has(tables_of_a_run, capsys):
    every = {"hidden", "attention", "extremes", "opt-in", "named", "other heads"}
    wide = view.View(wide=True)
    names, asked = tables_of_a_run(every, wide)
    assert names == ["hidden", "attention", "extremes", "opt-in"]
    assert asked["hidden"] == {"wide": True}
    both = {"heads": False, "wide": True}
    assert asked["attention"] == both == asked["extremes"]
    names, asked = tables_of_a_run(every, view.View(heads=True))
    assert asked["hidden"] == {"wide": False}
    assert asked["attention"] == {"heads": True, "wide": False} == asked["extremes"]
    assert tables_of_a_run(every - {"hidden"}, wide)[0] == ["attention", "extremes"]
    single = every - {"hidden", "extremes"}
    assert tables_of_a_run(single, wide)[0] == ["attention", "named"]
    heads = single - {"attention"}
    assert tables_of_a_run(heads, wide)[0] == ["named", "other heads"]
    assert tables_of_a_run(set(), wide)[0] == ["hidden"]
    # the options of a command that has neither wide tables nor heads
    assert tables_of_a_run(every, view.Format())[1]["extremes"] == {
        "heads": False,
        "wide": False,
    }
    assert capsys.readouterr().err == ""
    tables_of_a_run({"hidden"}, view.View(heads=True))
    assert capsys.readouterr().err == (
        "note: no attention was measured, hence no heads: add attention to --panel\n"
    )


def test_an_explained_text_has_notes_on_the_classifier_and_on_the_text(
    monkeypatch, capsys
):
    from anisoscope.api import classifiers
    from anisoscope.cli import words

    found = SimpleNamespace(notes=["of the text"])
    asked = []
    monkeypatch.setattr(
        classifiers,
        "explain_text",
        lambda *of: asked.append(of) or (found, ["of the model"]),
    )
    monkeypatch.setattr(words, "describe_explained_text", lambda _: "described")
    monkeypatch.setattr(words, "colour_words", lambda _: ["line one", "line two"])
    monkeypatch.setattr(words, "tabulate_explained_text", lambda _: "tables")
    monkeypatch.setattr(measure_commands, "show", lambda *of: asked.append(of))
    checked = []
    for name in ("check_model", "check_labelled"):
        monkeypatch.setattr(
            measure_commands, name, lambda given, of=name: checked.append((of, given))
        )
    settings = ClassesOptions(model="m", corpus="c")
    table = view.Format()
    measure_commands.classes(settings, view=table, text="a text", quiet=True)
    assert asked == [(settings, "a text", True), ("tables", table)]
    given = capsys.readouterr()
    assert given.out == "described\nline one\nline two\n\n"
    assert given.err == "note: of the model\nnote: of the text\n"
    assert checked == [("check_model", "m"), ("check_labelled", "c")]
    measure_commands.classes(settings, view=JSON, text="a text", quiet=True)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(classifiers, "measure_classes", lambda *of: of)
    monkeypatch.setattr(measure_commands, "_show_run", lambda *of: asked.append(of))
    place = OutputOptions(resume=True)
    measure_commands.classes(settings, place, JSON, quiet=True)
    assert asked[-1] == ((settings, place, True), JSON, True)


def test_at_least_two_runs_are_merged(monkeypatch):
    from anisoscope.runs import merge

    asked = []
    monkeypatch.setattr(merge, "merge_runs", lambda *of: asked.append(of) or "run")
    monkeypatch.setattr(measure_commands, "_show_run", lambda *of: asked.append(of))
    runs = (Path("a"), Path("b"))
    measure_commands.merge(runs, output=Path("o"), quiet=True)
    assert asked == [(runs, Path("o")), ("run", measure_commands.VIEW, True)]
    with pytest.raises(UsageError) as caught:
        measure_commands.merge(runs[:1], output=Path("o"), quiet=True)
    assert str(caught.value) == (
        "expected at least two run folders; got 1. Cure: name the folders of all shards, or of all runs to join"
    )


def test_where_a_page_is_and_how_to_get_it_later(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    missing = []
    hints = []

    def hint(kept, command):
        hints.append((kept(), command))
        return nullcontext()

    monkeypatch.setattr(
        measure_commands,
        "find_missing_packages",
        lambda name: missing * (name == "report"),
    )
    monkeypatch.setattr(measure_commands, "interrupt_hint", hint)
    import importlib

    monkeypatch.setattr(
        importlib.import_module("anisoscope.report"),
        "build_page",
        lambda folder: folder / "report.html",
    )
    folder = tmp_path / "my run"
    line = measure_commands._announce_page(folder, True)
    shown = line.replace(view.GLUE, " ")
    assert shown == "report: my run/report.html (open it in a browser)"
    command = f"anisoscope report '{folder}'"
    assert hints == [("the run is finished, but for its page", command)]
    missing += ["altair", "vl-convert-python"]
    shown = measure_commands._announce_page(folder, True).replace(view.GLUE, " ")
    assert shown == (
        "no page was drawn: altair and vl-convert-python not installed. For one: "
        "pip install 'anisoscope[report]', then anisoscope report 'my run'"
    )


# ---- cards and pushes


def test_a_card_hides_folders_and_links_to_where_the_run_was_pushed(
    monkeypatch, tmp_path, capsys
):
    from anisoscope import store
    from anisoscope.report import card as cards

    asked = []
    run = tmp_path / "run"
    run.mkdir()
    manifest = {"model": "/home/me/net"}
    monkeypatch.setattr(store, "read_run", lambda _: ("records", manifest))
    monkeypatch.setattr(
        cards, "write_model_card", lambda *of: asked.append(of) or "a card"
    )
    monkeypatch.setattr(cards, "draw_badge", lambda of: f"badge of {of}")
    publishing.card(
        run, repository="datasets/me/x", badge=tmp_path / "b.svg", quiet=True
    )
    assert asked == [("records", {"model": "…/net"}, "me/x")]
    assert (tmp_path / "b.svg").read_text() == "badge of records"
    given = capsys.readouterr()
    assert given.out == "a card\n" and given.err == f"badge: {tmp_path / 'b.svg'}\n"
    publishing.card(run, view=JSON, quiet=True)
    assert asked[1][2] == "" and '"card": "a card"' in capsys.readouterr().out
    with pytest.raises(OutputError) as caught:
        publishing.card(run, badge=tmp_path / "b.png", quiet=True)
    assert caught.value.cure == "name the file so: --badge anisotropy.svg"
    with pytest.raises(OutputError) as caught:
        publishing.card(tmp_path / "none", badge=tmp_path / "b.svg", quiet=True)
    assert caught.value.got == f"{tmp_path / 'none'}, which is not one"
    assert caught.value.cure == "name a folder that anisoscope measure wrote"


def test_a_push_names_the_licence_and_the_card_that_comes_next(
    monkeypatch, tmp_path, capsys
):
    from anisoscope.report import pushing

    asked = []
    made = SimpleNamespace(folder=tmp_path, files={"a": 1})
    monkeypatch.setattr(
        pushing, "write_publication", lambda *of: asked.append(of[2:]) or made
    )
    monkeypatch.setattr(pushing, "push", lambda *_, **__: "address")
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.chdir(tmp_path)
    publishing.push(run, "me/x", licence="mit", dry_run=True, quiet=True)
    publishing.push(run, "me/x", licence="mit", quiet=True)
    assert asked == [("me/x", "mit")] * 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == (
        "next, a section for the model's card: anisoscope card run --repository me/x"
    )


def test_a_page_is_drawn_again_and_its_path_is_the_answer(
    monkeypatch, tmp_path, capsys
):
    from anisoscope.api import working
    from anisoscope.cli import reading

    asked = []
    page = tmp_path / "report.html"
    monkeypatch.setattr(
        working, "report", lambda run, pdf: asked.append((run, pdf)) or page
    )
    reading.report(tmp_path, quiet=True)
    assert capsys.readouterr().out == f"{page}\n"
    reading.report(tmp_path, pdf=True, view=JSON, quiet=True)
    assert f'"page": "{page}"' in capsys.readouterr().out
    assert asked == [(tmp_path, False), (tmp_path, True)]
    with pytest.raises(OutputError) as caught:
        reading.report(tmp_path / "none", quiet=True)
    assert str(caught.value) == (
        f"expected a run folder; got {tmp_path / 'none'}, which is not one. Cure: "
        "name a folder that anisoscope measure wrote"
    )


def test_an_interrupted_atlas_counts_its_finished_runs(monkeypatch, tmp_path):
    from anisoscope.cli import atlas as command
    from anisoscope.runs import atlas as runs

    hints = []

    def hint(count, again):
        hints.append((count, again))
        return nullcontext()

    made = SimpleNamespace(table="t", left_out={}, folder=tmp_path, runs={})
    monkeypatch.setattr(runs, "read_list", lambda _: [])
    monkeypatch.setattr(runs, "make_atlas", lambda *_: made)
    monkeypatch.setattr(command, "interrupt_hint", hint)
    monkeypatch.setattr(command, "tabulate_atlas", lambda _: "table")
    monkeypatch.setattr(command, "show", lambda *_, **__: None)
    monkeypatch.setattr(command, "_print_files", lambda *_: None)
    command.atlas(Path("l"), output=tmp_path, quiet=True)
    ((count, again),) = hints
    assert again == "the same command" and count() == ""
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "manifest.json").touch()
    (tmp_path / "runs" / "c").mkdir()
    assert count() == f"{tmp_path} holds 2 finished runs"


def test_the_cure_that_fits_is_named_in_the_answer(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(answers, "show", lambda *given: shown.append(given))
    monkeypatch.setattr(answers, "_tabulate_cures", lambda _: "table")
    fits = SimpleNamespace(fit=SimpleNamespace(name="centre"))
    trials = SimpleNamespace(chosen=fits, text="Centre fits.", notes=["n"])
    answers._show_trials(trials, JSON, ["first"])
    (tables, form, (finding,), notes, more) = shown[0]
    assert (tables, form, more) == (["table"], JSON, {"chosen": "centre"})
    assert finding.text == "Centre fits." and notes == ["first", "n"]
    assert capsys.readouterr().err == "note: first\nnote: n\n"


def test_a_series_to_compare_is_its_checkpoints(monkeypatch):
    from anisoscope.runs import measured_series

    monkeypatch.setattr(
        measured_series, "expand_series", lambda names: [f"{n}/x" for n in names]
    )
    assert comparing._expand_series(["a", "b"]) == ("a/x", "b/x")
    with pytest.raises(UsageError) as caught:
        comparing._expand_series(["a"])
    assert str(caught.value) == (
        "expected at least two run folders or models; got 1. Cure: name one more"
    )


def test_progress_is_shown_and_tables_fit_unless_asked_otherwise(monkeypatch):
    """Each function hands on whether to be quiet, and how wide the terminal is."""
    from anisoscope.api import working

    asked = []

    def open_runs(names, _measuring, _wanted, progress):
        progress("a title")
        return names

    def show(title, *, quiet):
        asked.append((title, quiet))
        return nullcontext()

    monkeypatch.setattr("anisoscope.runs.models_as_runs.open_or_measure", open_runs)
    monkeypatch.setattr(working, "open_or_measure", open_runs)
    monkeypatch.setattr(working, "expand_series", list)
    monkeypatch.setattr(working, "compare_kept", lambda *_, **__: None)
    monkeypatch.setattr(working, "Comparison", lambda found: found)
    for module in (comparing, working):
        monkeypatch.setattr(module, "show_progress", show)
    monkeypatch.setattr(comparing, "show_spinner", show)
    for quiet in (True, False):
        comparing._open_or_measure(["m"], None, [], quiet)
        working.compare("a", "b", quiet=quiet)
    titles = ["opening runs", "a title", "a title"]
    assert asked == [(title, quiet) for quiet in (True, False) for title in titles]
    monkeypatch.setattr(comparing, "count_columns", lambda _: 77)
    monkeypatch.setattr(
        comparing, "tabulate_comparison", lambda *given: asked.append(given) or []
    )
    monkeypatch.setattr(comparing, "show", lambda *_: None)
    compared = SimpleNamespace(findings=[], notes=[], names=["a"])
    comparing._show_differences(compared, [], JSON)
    assert asked[-1] == (compared, 77)


def test_a_value_of_another_type_is_answered_with_what_it_should_be():
    argument = SimpleNamespace(
        name="--share",
        field_info=SimpleNamespace(annotation=float),
        required=False,
        tokens=(),
    )
    token = SimpleNamespace(keyword="--share", value="x", source="cli")
    explained = faults._explain_wrong_type(
        SimpleNamespace(target_type=float), token, argument
    )
    assert str(explained) == (
        "expected --share of type float; got 'x'. Cure: correct --share"
    )
    named = {"--badge": "--badge", "RUN": "run"}
    assert {
        name: faults._name_as_typed(SimpleNamespace(name=name)) for name in named
    } == named
    assert faults._name_as_typed(SimpleNamespace(name="--output"), "-o") == "-o"
