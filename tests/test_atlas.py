"""An atlas: what a list asks for is measured once, summed up as its records say, and the rest is left out by name."""

import json

import numpy as np
import pandas as pd
import pytest
import tiny
from test_formats import check_answer
from typed import invoke

from anisoscope.cli.atlas import tabulate_atlas
from anisoscope.errors import UsageError
from anisoscope.report.atlas import HEAD, describe_atlas, tabulate
from anisoscope.runs.atlas import COLUMNS, _summarise_depth, read_csv, read_list
from anisoscope.runs.findings import judge_stacks
from anisoscope.store import as_records

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
    path.joinpath("list.toml").write_text(
        LIST.format(text=path / "text.jsonl", checkpoints=path / "checkpoints")
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ATLAS_OF_TESTS", str(path / "checkpoints"))
        done = invoke(
            ["atlas", path / "list.toml", "-o", path / "out", "--format", "json"]
        )
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
        own = records[
            records["metric"].eq("mean_cosine") & records["token_policy"].eq("all")
        ]
        own = own[own["site"].eq("hidden") & own["component"].isna()].set_index(
            "layer"
        )["value"]
        row = table.loc[name]
        assert row["strongest_layer"] == own.idxmax() and np.isclose(
            row["strongest"], own.max(), rtol=1e-5
        )
        assert row["weakest_layer"] == own.idxmin() and np.isclose(
            row["weakest"], own.min(), rtol=1e-5
        )
        assert (
            np.isclose(row["last"], own.loc[own.index.max()], rtol=1e-5)
            and row["layers"] == own.index.max()
        )
        entropy = records[records["metric"].eq("attention.entropy_normalised")]
        assert np.isclose(row["entropy"], entropy["value"].mean(), rtol=1e-5)
        assert row["entropy_low"] <= row["entropy"] <= row["entropy_high"]
        assert row["heads"] == len(entropy)
        first = records[records["metric"].eq("attention.first_mass")]
        assert row["sink_heads"] == (first["low"] > 0.5).sum()
    assert table.loc["second", "model"] == "$ATLAS_OF_TESTS/seed-0/step-1", (
        "a table names no folder of this machine"
    )
    assert list(table["family"])[1] == "tiny" and set(table["modality"]) == {"text"}
    page = folder.joinpath("out", "report.html").read_text()
    assert "first" in page and "nowhere: expected" in page and "<svg" in page


def test_what_is_finished_is_not_measured_again(folder, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("measured again")

    before = read_csv(folder / "out" / "atlas.csv")
    monkeypatch.setattr("anisoscope.runs.run.run_pass", refuse)
    monkeypatch.setenv("ATLAS_OF_TESTS", str(folder / "checkpoints"))
    done = invoke(
        [
            "atlas",
            folder / "list.toml",
            "-o",
            folder / "out",
            "--only",
            "first,second",
            "--format",
            "csv",
        ]
    )
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
    done = invoke(
        ["atlas", folder / "list.toml", "--only", "frist", "-o", folder / "other"]
    )
    assert done.exit_code == 2 and "did you mean first?" in str(done.exception)
    assert not folder.joinpath("other").exists()


def test_an_atlas_of_nothing_is_an_error(folder):
    done = invoke(
        ["atlas", folder / "list.toml", "--only", "nowhere", "-o", folder / "empty"]
    )
    assert done.exit_code == 5 and "nowhere: expected" in str(done.exception)


def row(metric, layer, value, half=0.02, site="hidden", **more):
    found = {
        "metric": metric,
        "stack": "encoder",
        "layer": layer,
        "site": site,
        "token_policy": "all",
    }
    return (
        found
        | {
            "value": value,
            "low": value - half,
            "high": value + half,
            "n_vectors": 900,
            "n_units": 40,
        }
        | more
    )


def summarise(shift, half_of_share=0.02):
    """The row of an atlas of three layers and a final norm, every A moved by `shift`; q95 is .1."""
    values = {
        ("hidden", 0): 0.3,
        ("hidden", 1): 0.6,
        ("hidden", 2): 0.4,
        ("final", 2): 0.2,
    }
    rows = [
        row("mean_cosine", layer, value + shift, site=site)
        for (site, layer), value in values.items()
    ]
    rows += [
        row("mean_cosine.isotropic_q95", layer, 0.1, 0.0, site=site)
        for site, layer in values
    ]
    rows += [
        row("mean_cosine.contribution", 1, 0.1, component=str(i)) for i in range(5)
    ]
    rows += [
        row("mean_cosine.contribution", 2, 0.1, component=str(i)) for i in range(3)
    ]
    for layer in range(3):
        rows.append(row("calibrated.centred", layer, 0.01 + layer / 100, 0.005))
        rows.append(
            row(
                "mean_cosine.top_share",
                layer,
                0.6 + layer / 10,
                half_of_share,
                component="1",
            )
        )
    (depth,) = judge_stacks(as_records(pd.DataFrame(rows)))
    return _summarise_depth(depth)


@pytest.mark.parametrize(
    ("half", "cause"),
    [(0.02, "1 dimension, the mean"), (0.25, "the mean")],
    ids=["clear", "may be less than half"],
)
def test_dimensions_carry_the_anisotropy_if_the_whole_interval_says_so(half, cause):
    """A share of .7 that may be .45 is no cause."""
    assert summarise(0.0, half)["cause"] == cause


def test_each_number_of_a_row_is_that_of_its_layer():
    found = summarise(0.0)
    for name, layer, value in (
        ("weakest", 0, 0.3),
        ("strongest", 1, 0.6),
        ("last", 2, 0.4),
    ):
        assert found[f"{name}_layer"] == layer
        assert (
            found[name] == value
            and found[f"{name}_low"] == value - 0.02
            and found[f"{name}_high"] == value + 0.02
        )
    assert found["final"] == 0.2 and found["layers"] == 2 and found["q95"] == 0.1
    assert (
        found["n_units"] == 40
        and found["n_vectors"] == 900
        and found["dimensions"] == 5
    )
    assert (
        found["verdict"] == "anisotropic" and found["cause"] == "1 dimension, the mean"
    )
    assert (
        found["centred"] == 0.02
        and found["dimension_share"] == 0.7
        and found["dimension_share_low"] == 0.7 - 0.02
    )


def test_of_an_isotropic_network_no_share_of_a_dimension_is_told():
    """The share of an A that may be zero says nothing."""
    found = summarise(-0.56)
    assert (
        found["verdict"] == "isotropic"
        and found["strongest"] == pytest.approx(0.04)
        and found["cause"] == ""
    )
    assert (
        found["dimension_share"] is None
        and found["dimension_share_low"] is None
        and found["centred"] == 0.02
    )


def table_of_two_stacks():
    """Every number of a row differs from every other."""
    rows = []
    for i, stack in enumerate(("encoder", "decoder")):
        cells = {
            "network": "T5",
            "stack": stack,
            "modality": "text",
            "family": "t5",
            "layers": 6 + i,
            "n_units": 40 + i,
        }
        cells |= {
            "weakest_layer": 3,
            "strongest_layer": 4,
            "last_layer": 6 + i,
            "q95": 0.05 + i / 100,
        }
        cells |= {"verdict": "anisotropic", "cause": ("the mean", "10 dimensions")[i]}
        cells |= {"heads": (72, None)[i], "sink_heads": (5, None)[i]}
        names = (
            "weakest",
            "strongest",
            "last",
            "final",
            "dimension_share",
            "centred",
            "entropy",
        )
        for k, name in enumerate(names):
            value = 0.11 + k / 10 + i / 100
            cells |= {
                name: value,
                f"{name}_low": value - 0.01,
                f"{name}_high": value + 0.01,
            }
        rows.append(cells)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def test_a_page_shows_each_number_under_its_name():
    table = tabulate(table_of_two_stacks())
    assert table.head == HEAD
    first = {
        name: " ".join(filter(None, cell))
        for name, cell in zip(HEAD, table.rows[0], strict=True)
    }
    assert first == {
        "network": "T5, encoder",
        "reads": "text",
        "family": "t5",
        "blocks": "6",
        "A weakest": ".110 @3 [.100, .120]",
        "A strongest": ".210 @4 [.200, .220]",
        "A last block": ".310 @6 [.300, .320]",
        "A final norm": ".410 [.400, .420]",
        "q95": ".050",
        "share of 1 dimension": ".510 [.500, .520]",
        "A centred": ".610 [.600, .620]",
        "carried by": "the mean",
        "sink heads": "5 of 72",
        "entropy": ".710 [.700, .720]",
        "units": "40",
    }
    second = dict(zip(HEAD, table.rows[1], strict=True))
    assert second["network"][0] == "T5, decoder" and second["sink heads"][0] == "–"


def test_a_terminal_shows_each_number_under_its_name():
    table = tabulate_atlas(table_of_two_stacks())
    assert dict(zip(table.head, table.rows[0], strict=True)) == {
        "network": "T5",
        "stack": "encoder",
        "weakest": ".110 @3",
        "strongest": ".210 [.200, .220] @4",
        "last": ".310",
        "q95": ".050",
        "carried by": "the mean",
        "sinks": "5 of 72",
    }
    assert (
        table.rows[1][-1] == ""
        and "stack" not in tabulate_atlas(table_of_two_stacks().head(1)).head
    )


def test_a_dash_says_that_nothing_was_to_explain_an_empty_cell_that_nothing_was_judged():
    table = table_of_two_stacks().assign(cause="", verdict=["isotropic", ""])
    cells = tabulate_atlas(table)
    causes = [
        dict(zip(cells.head, row, strict=True))["carried by"] for row in cells.rows
    ]
    assert causes == ["–", ""]


def test_networks_are_counted_by_what_carries_their_anisotropy():
    sentences = describe_atlas(table_of_two_stacks())
    assert sentences == [
        "2 of 2 networks are anisotropic in at least one layer.",
        "In 1 of these, centring removes the anisotropy of the layer with the highest A.",
        "In 1 of these, ten dimensions or fewer contribute more than half of the A of that layer.",
        "1 of the 1 networks whose attention was measured have a sink head.",
    ]
