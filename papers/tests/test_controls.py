"""Controls of judges: worlds in which a claim is false are told from those in which it is true."""

import json

import controls
import numpy as np
import pytest

from anisoscope_papers import runner
from anisoscope_papers.study import Claim

STATES = ("trained", "untrained")

CLAIM = Claim("grows", "It grows", "", statistic="growth", floor=0.1, because="any")


@pytest.mark.filterwarnings("ignore")
def test_a_judge_says_no_where_nothing_moves_and_where_time_runs_backwards():
    """Growth of |cos| in trainings as they were found, in untrained twins, and backwards."""
    said = {}
    for name, world in controls.OF_SERIES.items():
        claims, told = controls.control("fig13", "causal", world, 3)
        said[name] = told["cosine-grows", ""]
    assert (
        set(said["as found"].words) == {"holds"}
        and said["as found"].truth(claims["cosine-grows"])[0]
    )
    assert set(said["never moving"].words) == {"too small"}
    assert said["never moving"].truth(claims["cosine-grows"]) == (False, False)
    assert set(said["time backwards"].words) == {"contrary"}
    assert said["time backwards"].truth(claims["cosine-grows"]) == (False, True)


@pytest.mark.parametrize(
    ("statistic", "centre", "truth"),
    [
        ("x (claim: > 0 by 0.1):", 0.5, (True, False)),
        ("x (claim: > 0 by 0.1):", 0.05, (False, False)),
        ("x (claim: > 0 by 0.1):", -0.5, (False, True)),
        ("x (claim: -0.1 to 0.1):", 0.0, (True, False)),
        ("x (claim: -0.1 to 0.1):", 0.3, (False, False)),
        ("largest A, at layer 3, against q95 0.145:", 0.3, (True, False)),
    ],
)
def test_what_is_true_is_known_from_the_number(statistic, centre, truth):
    told = controls.Told(
        ["holds"] * 50,
        list(centre + 0.01 * np.random.default_rng(0).standard_normal(50)),
        statistic,
    )
    assert told.truth(CLAIM) == truth
    assert controls.Told(["undecided"], [np.nan], statistic).truth(CLAIM) is None


@pytest.mark.parametrize(
    ("statistic", "count", "truth"),
    [
        ("systems of which it holds, of 2:", 2.0, (True, False)),
        ("systems of which it holds, of 3:", 1.0, (False, True)),
        ("systems of which it holds, of 2:", 0.0, (False, True)),
        ("systems of which it holds, of 1:", 1.0, None),
    ],
)
def test_several_systems_are_two_at_least(statistic, count, truth):
    """One system of two was above 0, so that it was true that several are anisotropic."""
    claim = Claim("several anisotropic", "Several are", "")
    assert (
        controls.Told(["undecided"] * 9, [count] * 9, statistic).truth(claim) == truth
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("study", controls.OTHER_SYSTEMS)
def test_a_claim_about_other_systems_is_denied_where_it_is_false_and_holds_where_it_is_true(
    study,
):
    """Nine claims were never seen to fail, as no committed record is of the systems that they are about."""
    denied, held, claims = set(), set(), {}
    for world in controls.of_other_systems(study).values():
        claims, told = controls.control(study, "long", world, 1)
        for row in controls.rates(claims, told):
            assert not row["false_holds"] and not row["false_contrary"], (study, row)
            if row["of_false"] and row["false_fails"] == row["of_false"]:
                denied.add(row["claim"])
            if row["of_true"] and row["true_holds"] == row["of_true"]:
                held.add(row["claim"])
    assert denied == set(claims)
    assert held == set(claims) - {"characters only"}, (
        "byte models have the same A as others in all these worlds"
    )


def test_small_models_have_other_names_and_lie_where_a_world_puts_them():
    """The level is that of trained models; untrained ones lie lower by what training adds."""
    done = runner.open_finished(controls.RESULTS / "godey2024" / "long" / "fig3b")
    records = controls.keep_layers(done.records)
    world = controls.of_other_systems("fig3b")["other systems, at .9, more by training"]
    found = world(records, np.random.default_rng(0))
    assert set(found["model"]) == {
        f"{name}, {state}" for name in ("vit-base", "mit-b0") for state in STATES
    }
    assert len(found) == 2 * len(records)
    rows = found[found["metric"] == "mean_cosine"]
    means = rows.groupby(rows["model"].str.endswith("untrained"))["value"].mean()
    assert means[False] == pytest.approx(0.9, abs=0.02) and means[
        True
    ] == pytest.approx(0.8, abs=0.02)
    widths = (found["high"] - found["low"]).groupby(found["metric"]).sum()
    assert widths["mean_cosine"] == pytest.approx(
        2
        * (records["high"] - records["low"])
        .groupby(records["metric"])
        .sum()["mean_cosine"]
    ), "a world moves intervals and makes none narrower"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("world", "word"),
    [
        ("layers shuffled", "undecided"),
        ("seeds alike", "holds"),
        ("every second seed mirrored", "contrary"),
    ],
)
def test_seeds_that_agree_are_found_and_those_that_disagree(world, word):
    """The judge of figure 23 was seen to say no by chance alone."""
    _, found = controls.control("fig23", "causal", controls.OF_SEEDS[world], 2)
    one = found["same-layers-over-seeds", ""]
    assert set(one.words) == {word}
    least, most = {
        "undecided": (-0.2, 0.2),
        "holds": (0.9, 1.0),
        "contrary": (-0.2, -0.15),
    }[word]
    assert least - 1e-9 <= np.mean(one.values) <= most


def test_a_claim_that_is_marked_has_its_reason_on_the_page(tmp_path, monkeypatch):
    row = {
        "paper": "godey2024",
        "study": "fig23",
        "world": "w",
        "draws": 200,
        "claim": "same-layers-over-seeds",
    }
    row |= {
        "false_holds": 18,
        "of_false": 200,
        "false_contrary": 0,
        "of_not_contrary": 200,
        "said_no": 3,
    }
    monkeypatch.setattr(controls, "CONTROLS", tmp_path / "controls.json")
    controls.CONTROLS.write_text(json.dumps([row]))
    assert controls.WHY["fig23", "same-layers-over-seeds"] in controls.page()
    controls.CONTROLS.write_text(json.dumps([row | {"false_holds": 1}]))
    assert controls.WHY["fig23", "same-layers-over-seeds"] not in controls.page()


def test_every_claim_was_seen_to_fail_somewhere():
    """A judge that cannot say no is no judge: every claim has a world in which it failed."""
    rows = json.loads(controls.CONTROLS.read_text("utf-8"))
    assert not controls.never_failed(rows)
    silent = [row | {"said_no": 0} for row in rows if row["claim"] == "MiT isotropic"]
    assert controls.never_failed(silent) == [("godey2024", "fig3b", "MiT isotropic")]


def test_wrong_verdicts_are_counted_where_they_could_be_wrong():
    told = {
        ("grows", ""): controls.Told(
            ["holds", "contrary", "undecided"] * 10,
            [0.05] * 30,
            "x (claim: > 0 by 0.1):",
        )
    }
    (row,) = controls.rates({"grows": CLAIM}, told)
    assert (row["false_holds"], row["of_false"]) == (10, 30)
    assert (row["false_contrary"], row["of_not_contrary"]) == (10, 30)
    assert (row["false_fails"], row["said_no"], row["of_true"]) == (10, 10, 0)
    true = {
        ("grows", ""): controls.Told(
            ["holds", "undecided"] * 15, [0.5] * 30, "x (claim: > 0 by 0.1):"
        )
    }
    (right,) = controls.rates({"grows": CLAIM}, true)
    assert (right["true_holds"], right["of_true"], right["false_fails"]) == (15, 30, 0)
    assert controls.marked(row)
    assert not controls.marked(row | {"false_holds": 1, "false_contrary": 0})
    of_200 = {
        "false_holds": 11,
        "of_false": 200,
        "false_contrary": 0,
        "of_not_contrary": 200,
    }
    assert controls.marked(of_200), "5.5 % is more than 5 %"
    assert not controls.beyond_chance(of_200)
    assert controls.beyond_chance(of_200 | {"false_holds": 20})


def test_an_interval_of_the_right_width_errs_as_often_as_it_says():
    """Five numbers around the very threshold are said to hold in one case of forty."""
    verdict = {
        "n": 5,
        "low": -0.1,
        "high": 0.3,
        "statistic": "growth (claim: > 0 by 0.1):",
    }
    row = controls._edge(CLAIM, verdict, 400)
    assert (
        row["false_holds"] <= 20 and row["false_contrary"] <= 20 and row["said_no"] > 0
    )


def test_worlds_that_are_finished_are_not_run_again(tmp_path, monkeypatch):
    """An hour of draws went lost where the command was stopped: a world is saved as soon as it is finished."""
    row = {
        "claim": "x",
        "false_holds": 0,
        "of_false": 2,
        "false_contrary": 0,
        "of_not_contrary": 2,
        "said_no": 1,
    }
    begun = []

    def control(study, *_):
        if len(begun) == 1:
            raise KeyboardInterrupt
        begun.append(study)
        return {}, {}

    monkeypatch.setattr(controls, "CONTROLS", tmp_path / "controls.json")
    monkeypatch.setattr(controls, "control", control)
    monkeypatch.setattr(controls, "rates", lambda *_: [row])
    monkeypatch.setattr(
        controls,
        "at_the_edge",
        lambda _: [row | {"paper": "p", "study": "s", "world": "edge"}],
    )
    monkeypatch.setattr(
        controls, "worlds", lambda: [("a", "", {"one": None}), ("b", "", {"one": None})]
    )
    monkeypatch.setattr(controls, "EDGE", "edge")
    monkeypatch.setattr("sys.argv", ["controls.py", "--draws", "2"])
    with pytest.raises(KeyboardInterrupt):
        controls.main()
    assert "to be run: b, one." in controls.page()
    begun.clear()
    controls.main()
    assert begun == ["b"]
    assert "to be run" not in controls.page()
    assert {
        row["study"] for row in json.loads(controls.CONTROLS.read_text("utf-8"))
    } == {"a", "b", "s"}
