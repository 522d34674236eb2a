"""The program and its Python twin, call by call: what each option hands on, and what is printed where.

What measures is a stand-in here, whose arguments are looked at; the rest is the program's own.
"""

import json
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from test_report import synthetic_manifest, synthetic_records, write_run
from typed import invoke

import anisoscope
from anisoscope.api import classifiers, functions, working
from anisoscope.api.run import Run
from anisoscope.cli import measure_commands, printed_tables, view
from anisoscope.cli.comparing import CONDITION_MET
from anisoscope.errors import UsageError
from anisoscope.progress import interrupt_hint
from anisoscope.runs.differences import NAME as REPLICATES, write_replicates
from anisoscope.runs.job import OutputOptions
from anisoscope.store import RunFolder, select

pytestmark = pytest.mark.usefixtures("runs")


def typed(line, code=0):
    """Lines on stdout and on stderr of a command line."""
    done = invoke(line)
    if done.exception is not None:
        raise done.exception
    assert done.exit_code == code, done.output
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs, of 2 and of 3 layers, below the working directory; no page is drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(
        import_module("anisoscope.report"),
        "build_page",
        lambda folder, *_: folder / "report.html",
    )
    (tmp_path / "text.txt").touch()
    for layers, name in ((2, "a"), (3, "b")):
        write_run(
            tmp_path / name,
            synthetic_records(layers=layers, heads=2),
            synthetic_manifest(),
        )
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """`asked(module, name, answer)` puts a stand-in in a place; the list that it gives gets (arguments, keywords)."""

    def stand_in(module, name, answer=None):
        calls = []

        def called(*given, **named):
            calls.append((given, named))
            return answer(*given, **named) if callable(answer) else answer

        monkeypatch.setattr(module, name, called)
        return calls

    return stand_in


# ---- measure, classes, merge ----


def test_a_run_is_shown_on_stdout_and_all_talk_on_stderr(runs, asked):
    calls = asked(functions, "measure_job", RunFolder(runs / "a"))
    out, err = typed(
        "measure builtin:minilm -c text.txt --limit 3 --seed 5 -o there --resume -q"
    )
    (((job, place, quiet), _),) = calls
    assert (job.model, job.corpus, job.limit, job.settings.seed) == (
        "builtin:minilm",
        "text.txt",
        3,
        5,
    )
    assert (place, quiet) == (OutputOptions(output=Path("there"), resume=True), True)
    assert out[0].split()[:3] == ["layer", "A", "verdict"] and len(out) > 7
    assert err == [
        "note: 27 documents are shorter than one window",
        "report: a/report.html (open it in a browser)",
        "next: anisoscope compare a ANOTHER-RUN",
    ]


def test_after_vectors_a_cure_is_suggested(runs, asked):
    """It suggested to compare them, with nothing at hand to compare with."""
    manifest = synthetic_manifest()
    manifest["corpus"] |= {"name": "vectors"}
    asked(
        functions,
        "measure_vectors",
        RunFolder(write_run(runs / "vectors", synthetic_records(layers=1), manifest)),
    )
    np.save(runs / "table.npy", np.eye(3))
    _, err = typed("measure table.npy -q")
    assert err[-1] == "next: anisoscope cure vectors"


def test_of_several_processes_the_first_speaks(runs, asked, monkeypatch):
    asked(functions, "measure_job", RunFolder(runs / "a"))
    for rank, said in (("1", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        out, err = typed("measure builtin:minilm -q")
        assert bool(out) == bool(err) == said


def test_a_run_of_heads_alone_shows_attention(runs, asked):
    """It said that no hidden states were measured, and nothing else."""
    records = synthetic_records(layers=2, heads=2)
    folder = write_run(
        runs / "heads", records[records["head"].notna()], synthetic_manifest()
    )
    asked(functions, "measure_job", RunFolder(folder))
    out, _ = typed("measure builtin:minilm -q")
    assert out[0].split()[:2] == ["layer", "entropy"]
    assert [line.split()[0] for line in out[1:3]] == ["1", "2"]
    assert json.loads("\n".join(typed("measure builtin:minilm -q --format json")[0]))[
        "records"
    ]
    assert typed("measure builtin:minilm -q --heads")[0][0].split()[:3] == [
        "layer",
        "head",
        "entropy",
    ]


def test_a_run_without_a_table_says_where_its_records_are(runs, asked):
    """One value for each of many dimensions is no table."""
    row = synthetic_records(layers=2, heads=2).query("metric == 'drift.share'").iloc[:1]
    many = pd.concat([row.assign(component=str(dimension)) for dimension in range(40)])
    folder = write_run(runs / "many", many, synthetic_manifest())
    asked(functions, "measure_job", RunFolder(folder))
    assert typed("measure builtin:minilm -q")[0][0] == (
        "No value of a whole layer was measured; all records are in many/records.parquet"
    )


def test_a_dry_run_of_one_model_tells_its_cost_and_measures_nothing(asked):
    cost = SimpleNamespace(
        weights=2_000_000,
        line="the line",
        state=3000,
        tokens=1234,
        unmeasured=2,
        without_spectrum="no",
    )
    before = asked(import_module("anisoscope.runs.run"), "estimate_cost_before", cost)
    calls = asked(functions, "measure_job")
    out, err = typed("measure builtin:minilm --dtype float64 --dry-run -q")
    assert out == [
        "builtin:minilm: weights 2 MB in float64",
        "the line",
        "a state that --resume reads: 3 kB; windows of 1,234 tokens",
        "no",
    ]
    assert (err, calls, len(before)) == ([], [], 1)
    cost.unmeasured = 0
    assert typed("measure builtin:minilm --dry-run -q")[0][-1].startswith(
        "a state that"
    )


@pytest.fixture
def series(runs, asked):
    """A series of two steps in a list, and what measuring it gives: one checkpoint is left out, two are alike."""
    for step in (0, 10):
        (runs / f"step-{step}").mkdir()
    (runs / "list.txt").write_text(
        f"{runs}/step-0 0 1\n{runs}/step-10 10 1\n{runs}/step-20 20 1\n"
    )
    parts = [
        synthetic_records(layers=2, heads=1).assign(step=step, seed=1)
        for step in (0, 10)
    ]
    skipped = {
        "step-20": "step-20 is not there",
        "step-30": "step-30 is not there",
        "step-40": "another width",
    }
    found = SimpleNamespace(
        folder=runs / "of",
        records=pd.concat(parts),
        skipped=skipped,
        repeated=[["step-0", "step-10"]],
    )
    return asked(functions, "measure_checkpoints", found)


def test_a_series_is_a_row_a_step_and_what_was_left_out_is_told(series):
    out, err = typed("measure step-{0,10} --keep 5 -o of -q --tokens content,all")
    (((job, place, quiet), _),) = series
    assert (job.model, str(place.output), quiet, job.keep) == (
        "step-{0,10}",
        "of",
        True,
        5,
    )
    assert out[0].split() == ["seed", "step", "A", "0", "A", "1", "A", "2"]
    assert [line.split()[:2] for line in out[1:3]] == [["1", "0"], ["1", "10"]]
    rows = synthetic_records(layers=2, heads=1).query(
        "metric == 'mean_cosine' and site == 'hidden'"
    )
    (first,) = rows.query("layer == 2 and token_policy == 'content'")["value"]
    assert out[1].split()[-1] == f"{first:.3f}".removeprefix("0")
    assert err[0] == "2 checkpoints"
    assert err[-6:] == [
        "skipped: step-20, step-30: step-20 is not there",
        "skipped: step-40: another width",
        "note: the same weights, bit for bit: step-0, step-10",
        "report: of/report.html (open it in a browser)",
        "next, every checkpoint against the first: anisoscope compare of",
        "a page of one checkpoint: anisoscope report of/seed-…",
    ]


@pytest.mark.usefixtures("series")
def test_a_series_of_several_processes_is_told_by_the_first(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert typed("measure step-{0,10} -q")[0] == []


def test_a_dry_run_of_a_series_lists_its_steps(series):
    out, err = typed("measure ./step-{0,10,20} --dry-run -q")
    assert out[0] == "3 checkpoints" and not err and not series
    listed = [line.split() for line in out if " step " in line]
    assert [line[3] for line in listed] == ["0", "10", "20"]
    assert ["no such folder" in line for line in out if " step " in line] == [
        False,
        False,
        True,
    ]


NAMED_COLUMNS = {"columns": "0-7", "unit_column": "speaker", "label_column": "class"}
OPTIONS_OF_COLUMNS = "--columns 0-7 --unit-column speaker --label-column class"


class Stop(Exception):
    """What was asked for has been seen."""


def stop(*_given, **_named):
    raise Stop


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("measure x.npz --split train", {"split": "train"}),
        ("measure x.npz --split train --dry-run", {"split": "train"}),
        ("cure x.npz", {}),
        ("apply fit.safetensors x.npz -o y.npy", {}),
    ],
)
def test_columns_that_are_named_reach_each_reader_of_vectors(runs, asked, line, given):
    """A reader that loses them decides by rules, and shows numbers of other columns."""
    (runs / "x.npz").touch()
    calls = asked(import_module("anisoscope.data.vector_files"), "open_vectors", stop)
    with pytest.raises(Stop):
        typed(f"{line} {OPTIONS_OF_COLUMNS} -q")
    (((path,), named),) = calls
    assert str(path) == "x.npz" and named == NAMED_COLUMNS | given


def test_a_file_of_vectors_that_is_compared_is_read_of_the_split_that_is_named(
    runs, asked
):
    (runs / "x.npz").touch()
    calls = asked(import_module("anisoscope.runs.models_as_runs"), "open_vectors", stop)
    with pytest.raises(Stop):
        typed("compare x.npz a --split train -q")
    assert calls[0][1]["split"] == "train"


def test_a_model_that_is_cured_is_measured_on_what_is_named(asked):
    calls = asked(functions, "measure_job", stop)
    with pytest.raises(Stop):
        typed("cure builtin:minilm --corpus text.txt --limit 7 -q")
    (((job, _, quiet), _),) = calls
    assert (job.model, job.corpus, job.limit, quiet) == (
        "builtin:minilm",
        "text.txt",
        7,
        True,
    )


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("measure builtin:minilm", "a"),
        ("measure vectors.npy", "b"),
        ("measure step-{0,10}", "of"),
    ],
)
def test_layers_are_logged_of_a_model_of_vectors_and_of_a_series(
    runs, asked, series, line, place
):
    assert series == []
    asked(functions, "measure_job", RunFolder(runs / "a"))
    asked(functions, "measure_vectors", RunFolder(runs / "b"))
    (runs / "vectors.npy").write_bytes(b"")
    trackers = import_module("anisoscope.monitor.trackers")
    asked(trackers, "check_trackers")
    calls = asked(trackers, "log_run", ["logged there"])
    _, err = typed(f"{line} --report-to tensorboard,wandb -q")
    (((records, names), where),) = calls
    assert names == ("tensorboard", "wandb") and "logged there" in err
    assert where == {"name": place, "folder": runs / place / "tensorboard"}
    if place == "of":
        assert sorted(records["step"].unique()) == [0, 10]
    else:
        pd.testing.assert_frame_equal(records, Run(runs / place).records)


def test_the_tables_of_a_run_are_of_its_records_replicates_and_words(runs, asked):
    records = synthetic_records(layers=2, heads=2)
    folder = write_run(
        runs / "c", records, synthetic_manifest() | {"tokens": {"7": "the"}}
    )
    left_out = np.random.default_rng(0).normal(size=(len(records), 3))
    write_replicates(folder / REPLICATES, np.arange(len(records)), left_out)
    asked(functions, "measure_job", RunFolder(folder))
    empty = view.Table(("layer",), [], pd.DataFrame())
    of_layers = asked(printed_tables, "tabulate_layers", empty)
    of_attention = asked(printed_tables, "tabulate_attention")
    of_heads = asked(printed_tables, "tabulate_other_head_metrics")
    asked(printed_tables, "tabulate_named_metrics", [])
    of_extremes = asked(
        import_module("anisoscope.cli.extreme_tables"), "tabulate_extremes", []
    )
    found = asked(import_module("anisoscope.runs.findings"), "findings", [])
    for wide, heads in ((False, False), (True, False), (False, True)):
        typed(f"measure builtin:minilm -q {'--wide' * wide} {'--heads' * heads}")
        assert of_layers[-1][1] == {"wide": wide}
        assert (
            of_attention[-1][1] == of_extremes[-1][1] == {"wide": wide, "heads": heads}
        )
        for (_, replicates, *_), _ in (of_attention[-1], of_extremes[-1], of_heads[-1]):
            np.testing.assert_array_equal(replicates, left_out)
        assert of_extremes[-1][0][2] == found[-1][0][1] == {"7": "the"}


def test_vectors_stand_for_a_model_and_their_columns_are_handed_on(
    runs, asked, monkeypatch
):
    (runs / "vectors.npy").write_bytes(b"")
    calls = asked(functions, "measure_vectors", RunFolder(runs / "a"))
    typed(
        "measure vectors.npy --unit-column speaker --label-column class --groups 8 -q"
    )
    (((job, vectors, _, quiet), _),) = calls
    given = (vectors, quiet, job.unit_column, job.label_column, job.settings.groups)
    assert given == ("vectors.npy", True, "speaker", "class", 8)
    monkeypatch.undo()
    monkeypatch.chdir(runs)
    with pytest.raises(
        UsageError, match=r"no corpus with vectors.*the corpus text\.txt"
    ):
        typed("measure vectors.npy -c text.txt -q")
    for option in ("--unit-column", "--label-column"):
        with pytest.raises(UsageError, match="a file of vectors"):
            typed(f"measure builtin:minilm {option} x -q")


def test_classes_hands_on_what_is_asked(runs, asked):
    calls = asked(classifiers, "measure_classes", RunFolder(runs / "a"))
    typed(
        "classes folder -c synthetic --limit 7 --parts directions --dtype float64 -o new --overwrite -q"
    )
    (((look, place, quiet), _),) = calls
    assert (look.model, look.dtype, look.corpus, look.limit, look.parts) == (
        "folder", "float64", "synthetic", 7, ("directions",)
    )  # fmt: skip
    assert (str(place.output), place.overwrite, place.resume, quiet) == (
        "new",
        True,
        False,
        True,
    )


def test_merge_adds_up_what_is_named(runs, asked):
    calls = asked(
        import_module("anisoscope.runs.merge"), "merge_runs", RunFolder(runs / "a")
    )
    out, err = typed("merge a b -o c -q --format markdown")
    assert [list(map(str, calls[0][0][0])), str(calls[0][0][1])] == [["a", "b"], "c"]
    assert out[0].startswith("| layer | A") and err[-1].startswith("next: ")
    with pytest.raises(UsageError, match="at least two run folders"):
        typed("merge a -o c")


def test_a_name_is_missing_where_its_neighbours_are_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/there").mkdir()
    names = (
        "runs/there",
        "runs/gone",
        "./gone",
        "../gone",
        "owner/name",
        "name",
        "owner/name@main",
        "runs/x@main",
    )
    missing = [name for name in names if measure_commands._is_missing_sibling(name)]
    assert missing == ["runs/gone", "./gone", "../gone"]


# ---- report, compare, list ----


def test_report_prints_the_page(runs, asked):
    calls = asked(working, "report", runs / "a/report.html")
    assert typed("report a --pdf -q") == ([f"{runs}/a/report.html"], [])
    typed("report a -q")
    assert [(str(given[0]), named) for given, named in calls] == [
        ("a", {"pdf": True}),
        ("a", {"pdf": False}),
    ]


def test_compare_has_a_column_a_run_and_says_what_they_tell_apart():
    out, err = typed("compare a b --metric drift.share --tokens content -q")
    assert out[0].split() == ["layer", "a", "b", "difference"]
    assert any("kept no replicates" in line for line in err)
    assert any(
        "Layers are matched by relative depth (2 and 3 layers)" in line for line in err
    )
    records = synthetic_records(layers=3, heads=2).query(
        "metric == 'drift.share' and token_policy == 'content'"
    )
    (row,) = records.query("site == 'hidden' and layer == 3").itertuples()
    number = f"{row.value:.3f}".removeprefix("0")
    assert (
        f"{number} ["
        in next(line for line in out if line.startswith("2 ")).split("  ")[-2]
    )
    with pytest.raises(UsageError, match="at least two run folders"):
        typed("compare a")


def test_compare_fails_with_an_exit_code_of_its_own():
    from anisoscope.cli import app

    words = ["compare", "a", "a", "-q", "--fail-if"]
    assert app.run_command_line([*words, "A.last > .02"]) == 0
    assert app.run_command_line([*words, "A.last < .02"]) == CONDITION_MET == 8
    assert CONDITION_MET in app.EXIT_CODES
    for two in (
        ["A.last > .02", "--fail-if", "A.last < .02"],
        ["A.last < .02", "--fail-if", "A.last > .02"],
    ):
        assert app.run_command_line([*words, *two]) == CONDITION_MET, (
            "one that is met is enough"
        )
    with pytest.raises(UsageError, match=r"METRIC\.PLACE > NUMBER"):
        typed("compare a a -q --fail-if A.last")
    with pytest.raises(UsageError, match="mean_cosine"):
        typed("compare a a -q --fail-if mean_cosin>2")


def test_compare_gives_its_notes_as_json_too():
    out, err = typed("compare a b --format json -q")
    found = json.loads("\n".join(out))
    assert (
        set(found) == {"schema", "failed", "findings", "notes", "records"} and not err
    )
    assert {"first", "second", "difference", "low", "high", "paired"} <= set(
        found["records"][0]
    )


def test_the_version_is_printed():
    assert typed("--version") == ([anisoscope.__version__], [])


# ---- from Python ----


def test_classes_and_series_hand_on_their_keywords(runs, asked):
    calls = asked(classifiers, "measure_classes", RunFolder(runs / "a"))
    run = anisoscope.classes(
        "folder", "synthetic", limit=7, dtype="float64", output="new", overwrite=True
    )
    (((look, place, quiet, *in_memory), _),) = calls
    assert (look.model, look.dtype, look.corpus, look.limit) == (
        "folder",
        "float64",
        "synthetic",
        7,
    )
    assert in_memory == [None, None]
    assert (str(place.output), place.overwrite, quiet, run.folder) == (
        "new",
        True,
        True,
        runs / "a",
    )
    calls = asked(functions, "measure_checkpoints", RunFolder(runs / "a"))
    anisoscope.series(
        "step-*", "text.txt", output="of", keep=4, overwrite=True, quiet=False, seed=4
    )
    (((job, place, quiet), _),) = calls
    assert (job.model, job.corpus, job.settings.seed) == ("step-*", "text.txt", 4)
    assert (str(place.output), place.overwrite, quiet, job.keep) == (
        "of",
        True,
        False,
        4,
    )


def test_a_series_is_measured_as_it_is_asked_for(runs, asked):
    calls = asked(
        import_module("anisoscope.runs.series"),
        "measure_series",
        SimpleNamespace(folder=runs / "a"),
    )
    for step in (0, 10):
        (runs / f"step-{step}").mkdir()
    for how in (
        {"keep": 4, "overwrite": True, "skip_bad": True},
        {"keep": 2, "overwrite": False, "skip_bad": False},
    ):
        anisoscope.series("step-{0,10}", "text.txt", output="of", **how)
        (checkpoints, job, folder), named = calls[-1]
        assert [checkpoint.step for checkpoint in checkpoints] == [0, 10]
        assert (job.corpus, folder) == ("text.txt", Path("of"))
        assert {name: named[name] for name in how} == how


def test_a_run_is_logged_where_it_is_asked_for(runs, asked):
    calls = asked(import_module("anisoscope.monitor.trackers"), "log_run", ["there"])
    run = Run(runs / "a")
    assert run.log("tensorboard", "wandb", name="mine", folder="elsewhere") == ["there"]
    run.log("trackio")
    assert [given[1] for given, _ in calls] == [("tensorboard", "wandb"), ("trackio",)]
    assert calls[0][1] == {"name": "mine", "folder": Path("elsewhere")}
    assert calls[1][1] == {"name": "a", "folder": Path("runs/tensorboard")}


def test_the_page_of_a_comparison_has_the_formats_that_are_asked_for(runs, asked):
    calls = asked(
        import_module("anisoscope.report.comparison"), "write_comparison", "page"
    )
    found = anisoscope.compare(runs / "a", runs / "b")
    found.report("there")
    found.report("there", pdf=True)
    assert [given[1:] for given, _ in calls] == [
        (Path("there"), ("svg",)),
        (Path("there"), ("svg", "pdf")),
    ]


def test_a_plot_is_as_wide_as_on_the_page(runs):
    run = Run(runs / "a")
    assert (
        run.plot().to_dict()["width"] == 640
        and run.plot(width=300).to_dict()["width"] == 300
    )
    assert (
        run.plot("drift").to_dict()["title"]
        == "Anisotropy, drift, and what centring leaves"
    )
    with pytest.raises(UsageError, match="a figure of this run"):
        run.plot("drfit")


def test_a_notebook_shows_a_plot_without_the_network(runs):
    """Altair's own display loads its scripts from an address, and is an error message offline."""
    import pickle

    import altair as alt
    from IPython.core.formatters import DisplayFormatter

    run = Run(runs / "a")
    chart = run.plot()
    assert isinstance(chart, alt.TopLevelMixin)
    for shown in (
        chart,
        chart.properties(width=300),
        pickle.loads(pickle.dumps(chart)),
        run,
    ):
        bundle, _ = DisplayFormatter().format(shown)
        assert "<svg" in bundle["text/html"]
        assert (
            "<script" not in bundle["text/html"]
            and "import(" not in bundle["text/html"]
        )
        addresses = re.findall(
            r'(?:src|href)\s*=\s*"(https?:[^"]*)', bundle["text/html"]
        )
        assert addresses == []
    assert chart.to_dict() == pickle.loads(pickle.dumps(chart)).to_dict()


@pytest.mark.parametrize(
    ("pdf", "formats"), [(False, ("svg",)), (True, ("svg", "pdf"))]
)
def test_a_report_has_the_formats_that_are_asked_for(runs, asked, pdf, formats):
    calls = asked(import_module("anisoscope.report"), "build_page", "page")
    assert working.report(runs / "a", pdf=pdf) == "page"
    assert calls == [((runs / "a", formats), {})]
    memory = Run(records=Run(runs / "a").records, manifest={})
    working.report(memory, runs / "new", pdf=pdf)
    assert (
        calls[1] == ((runs / "new", formats), {})
        and (runs / "new/records.parquet").exists()
    )
    with pytest.raises(UsageError, match="a folder for the report"):
        memory.report()
    elsewhere = working.report(runs / "a", runs / "copy", pdf=pdf)
    assert elsewhere == "page" and calls[2] == ((runs / "copy", formats), {})
    pd.testing.assert_frame_equal(Run(runs / "copy").records, Run(runs / "a").records)


def test_the_short_table_is_of_the_tokens_that_are_asked_for(runs):
    run = Run(runs / "a")
    records = select(
        run.records, metric="mean_cosine", site=("hidden", "final"), component=None
    )
    for policy in ("all", "content"):
        expected = select(records, token_policy=policy)
        assert set(run.table(policy)["A"]) == set(expected["value"])
    assert run.table("all")["A"].tolist() != run.table("content")["A"].tolist()


def test_a_notebook_gets_the_table_and_the_sentences(runs, asked):
    asked(import_module("anisoscope.charts.export"), "to_svg", "<svg/>")
    run = Run(runs / "a")
    shown = run._repr_html_()
    assert (
        "<table class=" in shown
        and "<svg/>" in shown
        and "<b>builtin:minilm</b>" in shown
    )
    assert f"<td>{run.table()['A'].iloc[0]:.3f}</td>" in shown and shown.count(
        "<li>"
    ) == len(run.findings)


def test_compare_in_python_has_the_findings(runs):
    found = anisoscope.compare(
        runs / "a", Run(runs / "b"), metric="drift.share", tokens="content"
    )
    assert found.findings and len(found.table()) == 4
    by_policy = {}
    for tokens in ("all", "content"):
        table = anisoscope.compare(runs / "b", Run(runs / "b"), tokens=tokens).table()
        own = select(
            Run(runs / "b").records,
            metric="mean_cosine",
            site="hidden",
            token_policy=tokens,
            layer=3,
        )
        by_policy[tokens] = table["second"][table["layer"].eq(3)].iloc[0]
        assert by_policy[tokens] == own["value"].item()
    assert by_policy["all"] != by_policy["content"]
    with pytest.raises(UsageError, match="at least two runs"):
        anisoscope.compare(runs / "a")


def stopped(*_given, **_named):
    """A generator, or a function, that Ctrl-C ends."""
    raise KeyboardInterrupt


def test_what_is_kept_is_counted_where_someone_ends_it(runs, monkeypatch):
    monkeypatch.setattr(
        import_module("anisoscope.runs.series"), "measure_series", stopped
    )
    for step in (0, 10):
        (runs / f"step-{step}").mkdir()
    (runs / "of/seed-0").mkdir(parents=True)
    (runs / "of/seed-0/manifest.json").touch()
    # Begun, but not finished.
    (runs / "of/seed-1").mkdir()
    with pytest.raises(KeyboardInterrupt) as end:
        anisoscope.series("step-{0,10}", output="of")
    assert end.value.__notes__ == ["of holds 1 of 2 checkpoints", "--resume"]
    with pytest.raises(KeyboardInterrupt) as end:
        anisoscope.series("step-{0,10}", output="nowhere")
    assert not hasattr(end.value, "__notes__")


@pytest.mark.parametrize("outer", ["", "two models are measured"])
def test_the_outermost_block_says_how_to_go_on(outer):
    """`compare`, which has no --resume, was told to go on with it."""
    inside = interrupt_hint(lambda: "a half is measured")
    with (
        pytest.raises(KeyboardInterrupt) as end,
        interrupt_hint(lambda: outer, "the same command"),
        inside,
    ):
        raise KeyboardInterrupt
    assert end.value.__notes__ == [outer or "a half is measured", "the same command"]


def test_nothing_is_overwritten_that_was_not_asked_for(runs, asked):
    calls = asked(functions, "measure_checkpoints", RunFolder(runs / "a"))
    anisoscope.series("step-*", output="of")
    ((job, place, quiet), _) = calls[0]
    assert (place, quiet, job.keep) == (OutputOptions(output=Path("of")), True, 2)


def test_a_typo_of_a_keyword_is_recognised():
    for wrong, near in (
        ("lmit", "limit"),
        ("panels", "panel"),
        ("overwrit", "overwrite"),
        ("spectrum_group", "groups"),
    ):
        with pytest.raises(
            UsageError, match=f"a known keyword; got '{wrong}'.*did you mean .*{near}"
        ):
            anisoscope.series("step-*", output="of", **{wrong: 3})


# ---- what is printed ----


def test_a_table_uses_the_whole_width(monkeypatch):
    monkeypatch.setattr(view, "count_columns", lambda _stream: 12)
    table = view.Table(
        ("layer", "A"), [["0", "1234"], ["final", "12345"]], pd.DataFrame()
    )
    assert view._to_text(table).splitlines() == [
        "layer  A",
        "0      1234",
        "final  12345",
    ]


def test_lines_are_wrapped_between_words_of_the_stream_they_go_to(monkeypatch, capsys):
    monkeypatch.setattr(
        view, "count_columns", lambda stream: 12 if stream is view.sys.stderr else None
    )
    view.echo_wrapped("one two three four-five-six", err=True, indent="  ")
    view.echo_wrapped("one two three four-five-six")
    out, err = capsys.readouterr()
    assert err.splitlines() == ["one two", "  three", "  four-five-six"]
    assert out == "one two three four-five-six\n"
