"""What stands on stdout: JSON, CSV and Markdown of every command that shows a table, with all talk on stderr."""

import json
from importlib import import_module
from io import StringIO
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
import tiny
from pyarrow import parquet
from rich.cells import cell_len
from typed import invoke

from anisoscope.cli import printed_tables, view
from anisoscope.cli.reading import LISTS
from anisoscope.store import COLUMNS, as_records, read_table, write_table

SMALL = "measure {model} --panel hidden --sample 8 --batch-tokens 256 --documents line --overwrite"
COMMANDS = {
    "measure": SMALL + " -c {folder}/text.txt -o {folder}/new",
    "vectors": "measure {folder}/vectors.npy -o {folder}/vectors --overwrite",
    "merge": "merge {folder}/part-1 {folder}/part-2 -o {folder}/merged-{form}",
    "compare": "compare {folder}/run {folder}/run",
    "classes": "classes {model} --corpus synthetic --limit 12 --parts directions -o {folder}/classes --overwrite",
}


def shown(line, **where):
    """stdout and stderr of a command line that works."""
    done = invoke(line.format(model=tiny.small_encoder(), **where).split())
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.fixture(scope="module", autouse=True)
def _no_pictures():
    """The page is drawn elsewhere (tests/test_report.py)."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            import_module("anisoscope.report"),
            "build_page",
            lambda folder, *_: folder / "report.html",
        )
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("formats")
    path.joinpath("text.txt").write_text(
        "\n".join(f"{i}. The cat sat on the mat; a dog barked." for i in range(12))
    )
    np.save(path / "vectors.npy", np.random.default_rng(0).normal(size=(90, 8)) + 2)
    small = f'model = "{tiny.small_encoder()}"\npanel = "hidden"\ndocuments = "line"'
    path.joinpath("list.toml").write_text(
        f'[[network]]\n{small}\ncorpus = "{path / "text.txt"}"\n'
    )
    for name, shard in (("run", "1/1"), ("part-1", "1/2"), ("part-2", "2/2")):
        shown(
            SMALL + " -c {folder}/text.txt -o {folder}/{name} --shard {shard}",
            folder=path,
            name=name,
            shard=shard,
        )
    return path


SCHEMA = json.loads(
    (Path(__file__).parents[1] / "docs" / "answers.schema.json").read_text("utf-8")
)
OTHERS = {
    "cure": "cure {folder}/vectors.npy --cures centre,whiten --save {folder}/fit.safetensors",
    "atlas": "atlas {folder}/list.toml -o {folder}/atlas",
    "doctor": "doctor",
    "list": "list metrics",
    "report": "report {folder}/run",
    "reading": "measure {folder}/vectors.npy --dry-run",
    "cost": "measure {model} --dry-run",
    "checkpoints": "measure {folder}/step{{1,2}} --dry-run",
    "push": "push {folder}/run jane/geometry --dry-run -o {folder}/pushed",
    "card": "card {folder}/run",
    "apply": "apply {folder}/fit.safetensors {folder}/vectors.npy -o {folder}/cured.npy",
}
DEFINED = {
    "vectors": "measure",
    "classes": "measure",
    "merge": "measure",
    "report": "done",
    "apply": "done",
}
DEFINED |= {"push": "done", "card": "done", "reading": "done"}
DEFINED |= {"cost": "done", "checkpoints": "done"}
"""Commands whose answer has the definition of another name."""


def check_answer(out, command):
    """The JSON on stdout, valid by the definition of its command in the published schema."""
    given = json.loads(
        out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    definition = DEFINED.get(command, command)
    one = {
        "$schema": SCHEMA["$schema"],
        "$ref": f"#/$defs/{definition}",
        "$defs": SCHEMA["$defs"],
    }
    jsonschema.Draft202012Validator(one).validate(given)
    assert given["schema"] == view.SCHEMA
    return given


@pytest.mark.parametrize("command", COMMANDS)
def test_json_and_csv_are_records(folder, command):
    out, err = shown(COMMANDS[command] + " --format json", folder=folder, form="json")
    given = check_answer(out, command)
    assert given["records"]
    if command == "compare":
        assert given["failed"] == []
    else:
        assert Path(given["run"], "records.parquet").is_file()
        assert all(row.keys() == set(COLUMNS) for row in given["records"])
    if command != "compare":
        assert "report: " in err and "next: " in err
    wide = " --wide" if command in ("measure", "vectors", "merge") else ""
    out, _ = shown(
        COMMANDS[command] + " --format csv" + wide, folder=folder, form="csv"
    )
    rows = pd.read_csv(StringIO(out))
    assert list(rows.columns) == list(given["records"][0])
    assert len(rows) >= len(given["records"])


@pytest.mark.parametrize("command", OTHERS)
def test_every_other_answer_is_as_published_too(folder, command):
    if command == "apply":
        shown(OTHERS["cure"], folder=folder)
    out, _ = shown(OTHERS[command] + " --format json", folder=folder)
    given = check_answer(out, command)
    if command == "cure":
        assert given["chosen"] == "centre"
        assert given["findings"][0]["text"].startswith("Best cure: centre.")
    if command == "apply":
        assert given["records"] == [
            {"written": str(folder / "cured.npy"), "vectors": 90, "dimensions": 8}
        ]


def test_components_are_named_with_commas(folder):
    """`--component 1,3` was taken for one name."""
    line = "compare {folder}/run {folder}/run --metric mean_cosine.top_share --component 1,3 --format json"
    out, _ = shown(line, folder=folder)
    assert {row["component"] for row in json.loads(out)["records"]} == {"1", "3"}


def test_a_definition_refuses_what_is_no_answer():
    """Else the schema would be no promise."""
    with pytest.raises(jsonschema.ValidationError):
        check_answer(
            '{"schema": 1, "findings": [], "notes": [], "records": [{"value": "high"}], "run": "x"}',
            "measure",
        )
    with pytest.raises(jsonschema.ValidationError):
        check_answer(
            '{"schema": 2, "findings": [], "notes": [], "records": [], "run": "x"}',
            "measure",
        )


def test_json_has_numbers_to_the_last_digits(folder, capsys):
    """Whatever their size; what is not finite is null, which JSON knows."""
    numbers = [1 / 3, -2e-9 / 3, 1e20 / 3, 123456.789012345678, np.inf, np.nan]
    records = (
        pd.read_parquet(folder / "run" / "records.parquet")
        .head(6)
        .assign(value=numbers)
    )
    view.show([view.Table(("value",), [], records)], view.View(format="json"))
    given = json.loads(capsys.readouterr().out)["records"]
    assert [row["value"] for row in given] == [*numbers[:4], None, None]
    assert [row["n_vectors"] for row in given] == records["n_vectors"].tolist()


def test_a_table_on_disk_is_small_and_read_as_it_was_by_anyone(tmp_path):
    """pandas finds the same numbers and types again, and what knows nothing of pandas the same columns."""
    numbers = np.random.default_rng(0).normal(size=2000)
    rows = {
        "metric": "a",
        "model": "b",
        "head": [None, 3] * 1000,
        "value": numbers,
        "high": [np.inf, 1] * 1000,
    }
    records = as_records(pd.DataFrame(rows))
    write_table(tmp_path / "ours.parquet", records)
    records.to_parquet(tmp_path / "pandas.parquet", index=False)
    for read in (pd.read_parquet, read_table):
        pd.testing.assert_frame_equal(
            read(tmp_path / "ours.parquet"), records, check_exact=True
        )
    plain = parquet.read_table(tmp_path / "ours.parquet").to_pydict()
    assert (
        list(plain) == list(COLUMNS)
        and plain["head"][:2] == [None, 3]
        and plain["value"] == list(numbers)
    )
    sizes = [
        (tmp_path / f"{name}.parquet").stat().st_size for name in ("ours", "pandas")
    ]
    assert sizes[0] < 0.8 * sizes[1]
    write_table(tmp_path / "smaller.parquet", records, compression="brotli")
    pd.testing.assert_frame_equal(
        read_table(tmp_path / "smaller.parquet"), records, check_exact=True
    )
    assert (
        parquet.ParquetFile(tmp_path / "smaller.parquet")
        .metadata.row_group(0)
        .column(0)
        .compression
        == "BROTLI"
    )
    write_table(tmp_path / "empty.parquet", records.head(0))
    pd.testing.assert_frame_equal(
        read_table(tmp_path / "empty.parquet"), records.head(0)
    )


@pytest.mark.parametrize("command", ["measure", "compare"])
def test_markdown_is_a_table(folder, command):
    out, _ = shown(
        COMMANDS[command] + " --format markdown", folder=folder, form="markdown"
    )
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 3
    assert len({line.count("|") for line in rows}) == 1


def test_wide_has_every_column_that_was_measured(folder):
    narrow, _ = shown(COMMANDS["measure"], folder=folder, form="")
    wide, _ = shown(COMMANDS["measure"] + " --wide", folder=folder, form="")
    assert "A between" in wide and "A between" not in narrow
    assert "d·E[cos²]" not in wide, "no spectrum was measured"
    assert max(map(len, wide.splitlines())) > max(map(len, narrow.splitlines()))


@pytest.mark.parametrize("what", LISTS)
@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_lists_fit_the_terminal(what, width, monkeypatch):
    """Wide by cells of a terminal: a combining bar (x̄) takes none."""
    monkeypatch.setattr(view, "count_columns", lambda _stream: width)
    out, _ = shown(f"list {what}")
    assert max(map(cell_len, out.splitlines())) <= width
    given = json.loads(shown(f"list {what} --format json")[0])["records"]
    assert given and all(row.keys() == {"name", "description"} for row in given)


@pytest.mark.parametrize("width", [20, 40, 80, None])
def test_a_path_is_never_broken(width, monkeypatch, tmp_path, capsys):
    """A path with spaces was wrapped at them: what was copied from the terminal was no path."""
    monkeypatch.setattr(view, "count_columns", lambda _stream: width)
    path = tmp_path / "runs of mine, all of them" / "a run"
    view.echo_wrapped(
        f"report: {view.format_path(path)} (open it in a browser)", indent="  "
    )
    view.echo_wrapped(
        f"next: anisoscope compare {view.format_path(path, typed=True)} ANOTHER-RUN",
        indent="  ",
    )
    shown = capsys.readouterr().out
    assert str(path) in shown and f"'{path}'" in shown
    assert all(
        len(line) <= (width or 999) or str(path) in line for line in shown.splitlines()
    )


def test_a_series_of_attention_shows_the_mean_over_heads():
    """Where no hidden states were measured; each head counts once."""
    found = pd.DataFrame(
        {"layer": 1, "head": [0, 1, 2], "value": [1.0, 2.0, 6.0], "step": 10, "seed": 0}
    )
    records = as_records(
        found,
        metric="attention.entropy",
        kind="self",
        site="attention",
        stack="encoder",
    )
    table = printed_tables.tabulate_series(records, "all")
    assert table.head == ("seed", "step", "H (nats) 1") and table.rows == [
        ["0", "10", printed_tables.format_short(3.0)]
    ]


@pytest.mark.parametrize(("width", "lines"), [(200, 3), (64, 6), (45, None)])
def test_intervals_stand_below_their_values_if_the_terminal_is_narrow(
    monkeypatch, width, lines
):
    """They were cut inside: `.977 [.976,` above `.977]`."""
    monkeypatch.setattr(view, "count_columns", lambda _stream: width)
    rows = [["as it is", ".977 [.976, .977]", "1.000", ".248 [.186, .324]", ""]]
    rows += [
        [
            "whiten",
            ".005 [.000, .009]",
            ".333 [.311, .357]",
            ".224 [.165, .297]",
            "isotropic ←",
        ]
    ]
    text = view._to_text(
        view.Table(
            ("cure", "A", "neighbours kept", "pairs found", ""), rows, pd.DataFrame()
        )
    )
    assert all(len(line) <= width for line in text.splitlines())
    if lines is not None:
        assert len(text.splitlines()) == lines, text
        assert all(
            end in text
            for end in (
                "[.976, .977]",
                "[.186, .324]",
                "[.000, .009]",
                "[.311, .357]",
                "[.165, .297]",
            )
        )
    if width == 64:
        assert ".977 [" not in text


def test_words_of_a_heading_are_not_cut_if_they_fit(monkeypatch):
    """`(position` stood above `)`."""
    monkeypatch.setattr(view, "count_columns", lambda _stream: 32)
    rows = [
        ["0", "before (13)", "5.049", "38"],
        ["final", "kettle (127)", "2.764", "16"],
    ]
    text = view._to_text(
        view.Table(
            ("layer", "token (position)", "medians", "dim."), rows, pd.DataFrame()
        )
    )
    words = text.split()
    assert {"(position)", "kettle", "(127)", "medians", "dim."} <= {*words}


@pytest.mark.parametrize("width", [70, 76, 80, 81, 82, 90])
def test_no_word_of_a_heading_is_lost(monkeypatch, width):
    """Of `of random words` the last letters were cut off between 76 and 81 columns."""
    monkeypatch.setattr(view, "count_columns", lambda _stream: width)
    head = (
        "attribution",
        "comprehensiveness",
        "of random words",
        "sufficiency",
        "of random words",
    )
    rows = [["gradient × input", ".909", ".307 to .927", ".741", ".601 to .931"]]
    text = view._to_text(view.Table(head, rows, pd.DataFrame()))
    assert sorted(text.split()) == sorted(" ".join([*head, *rows[0]]).split())
    assert max(map(len, text.splitlines())) <= width
