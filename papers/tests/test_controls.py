"""Controls of judges: worlds in which a claim is false are told from those in which it is true."""

import json

import controls
import numpy as np
import pytest

from anisoscope_papers.study import Claim

CLAIM = Claim("grows", "It grows", "", statistic="growth", floor=0.1, because="any")


@pytest.mark.filterwarnings("ignore")
def test_a_judge_says_no_where_nothing_moves_and_where_time_runs_backwards():
    """Growth of |cos| in trainings as they were found, in untrained twins, and backwards."""
    said = {}
    for name, world in controls.OF_SERIES.items():
        claims, told = controls.control("fig13", "causal", world, 3)
        said[name] = told["cosine-grows", ""]
    assert set(said["as found"].words) == {"holds"} and said["as found"].truth(claims["cosine-grows"])[0]
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
    told = controls.Told(["holds"] * 50, list(centre + 0.01 * np.random.default_rng(0).standard_normal(50)), statistic)
    assert told.truth(CLAIM) == truth
    assert controls.Told(["undecided"], [np.nan], statistic).truth(CLAIM) is None


def test_wrong_verdicts_are_counted_where_they_could_be_wrong():
    told = {
        ("grows", ""): controls.Told(["holds", "contrary", "undecided"] * 10, [0.05] * 30, "x (claim: > 0 by 0.1):")
    }
    (row,) = controls.rates({"grows": CLAIM}, told)
    assert (row["false_holds"], row["of_false"]) == (10, 30)
    assert (row["false_contrary"], row["of_not_contrary"]) == (10, 30)
    assert controls.marked(row)
    assert not controls.marked(row | {"false_holds": 1, "false_contrary": 0})
    of_200 = {"false_holds": 11, "of_false": 200, "false_contrary": 0, "of_not_contrary": 200}
    assert controls.marked(of_200), "5.5 % is more than 5 %"
    assert not controls.beyond_chance(of_200)
    assert controls.beyond_chance(of_200 | {"false_holds": 20})


def test_an_interval_of_the_right_width_errs_as_often_as_it_says():
    """Five numbers around the very threshold are said to hold in one case of forty."""
    verdict = {"n": 5, "low": -0.1, "high": 0.3, "statistic": "growth (claim: > 0 by 0.1):"}
    row = controls._edge(CLAIM, verdict, 400)
    assert row["false_holds"] <= 20 and row["false_contrary"] <= 20 and row["said_no"] > 0


def test_worlds_that_are_finished_are_not_run_again(tmp_path, monkeypatch):
    """An hour of draws went lost where the command was stopped: a world is saved as soon as it is finished."""
    row = {"claim": "x", "false_holds": 0, "of_false": 2, "false_contrary": 0, "of_not_contrary": 2, "said_no": 1}
    begun = []

    def control(study, *_):
        if len(begun) == 1:
            raise KeyboardInterrupt
        begun.append(study)
        return {}, {}

    monkeypatch.setattr(controls, "CONTROLS", tmp_path / "controls.json")
    monkeypatch.setattr(controls, "control", control)
    monkeypatch.setattr(controls, "rates", lambda *_: [row])
    monkeypatch.setattr(controls, "at_the_edge", lambda _: [row | {"paper": "p", "study": "s", "world": "edge"}])
    monkeypatch.setattr(controls, "worlds", lambda: [("a", "", {"one": None}), ("b", "", {"one": None})])
    monkeypatch.setattr(controls, "EDGE", "edge")
    monkeypatch.setattr("sys.argv", ["controls.py", "--draws", "2"])
    with pytest.raises(KeyboardInterrupt):
        controls.main()
    assert "to be run: b, one." in controls.page()
    begun.clear()
    controls.main()
    assert begun == ["b"]
    assert "to be run" not in controls.page()
    assert {row["study"] for row in json.loads(controls.CONTROLS.read_text("utf-8"))} == {"a", "b", "s"}
