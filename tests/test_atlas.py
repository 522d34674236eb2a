"""An atlas: what a list asks for is measured once, summed up as its records say, and the rest is left out by name."""

import json

import numpy as np
import pandas as pd
import pytest
import tiny
from test_formats import check_answer
from typed import invoke

from anisoscope.errors import UsageError
from anisoscope.runs.atlas import read_csv, read_list

LIST = """
[defaults]
corpus = "{text}"
panel = "hidden,attention"
sample = 8

[[network]]
name = "first"
model = "{checkpoints}/seed-0/step-10"

[[network]]
name = "second"
model = "$ATLAS_OF_TESTS/seed-0/step-1"
modality = "text"
family = "tiny"

[[network]]
name = "nowhere"
model = "{checkpoints}/seed-0/step-999"

[[network]]
name = "unset"
model = "$NO_SUCH_VARIABLE/model"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tiny checkpoints, a list of them, and the atlas of the list."""
    path = tmp_path_factory.mktemp("atlas")
    tiny.series(path)
    path.joinpath("list.toml").write_text(LIST.format(text=path / "text.jsonl", checkpoints=path / "checkpoints"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ATLAS_OF_TESTS", str(path / "checkpoints"))
        done = invoke(["atlas", path / "list.toml", "-o", path / "out", "--format", "json"])
    assert done.exit_code == 7, done.output
    path.joinpath("answer.json").write_text(done.stdout)
    path.joinpath("talk.txt").write_text(done.stderr)
    return path


def test_what_cannot_be_had_is_named(folder):
    answer = check_answer(folder.joinpath("answer.json").read_text(), "atlas")
    assert list(answer["left_out"]) == ["nowhere", "unset"]
    assert "NO_SUCH_VARIABLE" in answer["left_out"]["unset"]
    assert "left out: nowhere: expected" in folder.joinpath("talk.txt").read_text()
    assert [row["network"] for row in answer["records"]] == ["first", "second"]


def test_a_row_says_what_the_records_of_its_run_say(folder):
    table = read_csv(folder / "out" / "atlas.csv").set_index("network")
    runs = json.loads(folder.joinpath("out", "atlas.json").read_text())["runs"]
    for name, run in runs.items():
        records = pd.read_parquet(folder / "out" / run / "records.parquet")
        own = records[records["metric"].eq("mean_cosine") & records["token_policy"].eq("all")]
        own = own[own["site"].eq("hidden") & own["component"].isna()].set_index("layer")["value"]
        row = table.loc[name]
        assert row["strongest_layer"] == own.idxmax() and np.isclose(row["strongest"], own.max(), rtol=1e-5)
        assert row["weakest_layer"] == own.idxmin() and np.isclose(row["weakest"], own.min(), rtol=1e-5)
        assert np.isclose(row["last"], own.loc[own.index.max()], rtol=1e-5) and row["layers"] == own.index.max()
        entropy = records[records["metric"].eq("attention.entropy_normalised")]
        assert np.isclose(row["entropy"], entropy["value"].mean(), rtol=1e-5)
        assert row["entropy_low"] <= row["entropy"] <= row["entropy_high"]
        assert row["heads"] == len(entropy)
        first = records[records["metric"].eq("attention.first_mass")]
        assert row["sink_heads"] == (first["low"] > 0.5).sum()
    assert table.loc["second", "model"] == "$ATLAS_OF_TESTS/seed-0/step-1", "a table names no folder of this machine"
    assert list(table["family"])[1] == "tiny" and set(table["modality"]) == {"text"}
    page = folder.joinpath("out", "report.html").read_text()
    assert "first" in page and "nowhere: expected" in page and "<svg" in page


def test_what_is_finished_is_not_measured_again(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("measured again")

    before = read_csv(folder / "out" / "atlas.csv")
    monkeypatch.setattr("anisoscope.runs.run.run_pass", refuse)
    monkeypatch.setenv("ATLAS_OF_TESTS", str(folder / "checkpoints"))
    done = invoke(["atlas", folder / "list.toml", "-o", folder / "out", "--only", "first,second", "--format", "csv"])
    assert done.exit_code == 0, done.output
    pd.testing.assert_frame_equal(read_csv(folder / "out" / "atlas.csv"), before)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at least one [[network]]"),
        ("[[networks]]\nmodel = 'a'", "did you mean network?"),
        ("[[network]]\nname = 'a'", "a model in network 1"),
        ("[[network]]\nmodel = 'a'\nlimt = 3", "did you mean limit or"),
        ("[[network]]\nmodel = 'a'\nlimit = 0", "network 1"),
        ("[[network]]\nmodel = 'a'\n[[network]]\nmodel = 'a'", "'a' twice"),
        ("[[network]", "networks as TOML"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(tmp_path, text, said):
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_list(path)
    assert said in str(caught.value)


def test_a_name_that_the_list_has_not_is_refused(folder):
    done = invoke(["atlas", folder / "list.toml", "--only", "frist", "-o", folder / "other"])
    assert done.exit_code == 2 and "did you mean first?" in str(done.exception)
    assert not folder.joinpath("other").exists()


def test_an_atlas_of_nothing_is_an_error(folder):
    done = invoke(["atlas", folder / "list.toml", "--only", "nowhere", "-o", folder / "empty"])
    assert done.exit_code == 5 and "nowhere: expected" in str(done.exception)
