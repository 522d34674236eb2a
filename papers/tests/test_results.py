"""The committed records: judged today as the verdicts beside them say, and every figure drawn from them."""

import json
import re
import shlex
import shutil
from dataclasses import asdict
from datetime import date
from pathlib import Path

import committed
import numpy as np
import pandas as pd
import pytest
import verdict_pages
import verdicts

from anisoscope.errors import OutputError
from anisoscope.store import as_records, write_table
from anisoscope_papers import reproduce, runner
from anisoscope_papers.runner import (
    COMPARED,
    Finished,
    find_studies,
    list_reproductions,
    open_finished,
)
from anisoscope_papers.studies_page import build_studies
from anisoscope_papers.study import Compared

RESULTS = Path(__file__).resolve().parents[1] / "results"
FOLDERS = list_reproductions(RESULTS)


def same(ours, theirs):
    """Equal, numbers to 1e-12."""
    if isinstance(theirs, float) and isinstance(ours, float):
        return ours == pytest.approx(theirs, rel=1e-12, abs=1e-12, nan_ok=True)
    return ours == theirs


def differing(ours, theirs):
    """Entries of two lists of dictionaries that are not the same."""
    assert len(ours) == len(theirs)
    return [
        (a, b)
        for a, b in zip(ours, theirs, strict=True)
        if not all(same(a[key], b[key]) for key in a | b)
    ]


@pytest.mark.parametrize(
    "folder",
    FOLDERS,
    ids=lambda path: path.relative_to(RESULTS).as_posix().replace("/", "-"),
)
def test_records_are_judged_as_the_verdicts_beside_them_say(folder):
    done = open_finished(folder)
    verdicts = json.loads((folder / "verdicts.json").read_text())
    assert not differing([asdict(v) for v in done.verdicts], verdicts)
    if (folder / COMPARED).exists():
        compared = json.loads((folder / COMPARED).read_text())
        assert not differing(
            [asdict(c) | {"verdict": c.verdict} for c in done.compared], compared
        )
    claims = {claim.name for claim in done.study.claims}
    assert {v["claim"] for v in verdicts} == claims
    assert {claim["name"] for claim in done.described["claims"]} == claims
    assert "dirty" not in done.described["code"] and done.described["code"]["commit"]


@pytest.mark.parametrize(
    "folder",
    FOLDERS,
    ids=lambda path: path.relative_to(RESULTS).as_posix().replace("/", "-"),
)
def test_intervals_lie_where_their_number_can_be(folder):
    """Spearman's ρ of 1 stood with [.73, 1.27], a share of .96 with [.87, 1.05], cosines with [−1.90, 1.02]."""
    bounds = {claim.name: claim.bounds for claim in open_finished(folder).study.claims}
    for verdict in json.loads((folder / "verdicts.json").read_text()):
        if (
            verdict["low"] is not None
            and "orrelation" in verdict["statistic"] + verdict["claim"]
        ):
            assert -1 <= verdict["low"] <= verdict["high"] <= 1, verdict
        if verdict["low"] is not None and (of := bounds[verdict["claim"]]):
            assert of[0] <= verdict["low"] <= verdict["high"] <= of[1], verdict
        if (
            verdict["low"] is not None and verdict["statistic"] == "N* ="
        ):  # a norm: one was at 183 [−621, 987]
            assert verdict["low"] >= 0, verdict
    compared = (
        json.loads((folder / COMPARED).read_text())
        if (folder / COMPARED).exists()
        else []
    )
    for row in (
        compared if folder.parts[-3] == "fosse2023" else ()
    ):  # shares, cosines, and H, which may exceed 1
        if row["low"] is not None:
            least, most = (0, float("inf")) if "H of [CLS]" in row["place"] else (-1, 1)
            assert least <= row["low"] <= row["value"] <= row["high"] <= most, row
    records = pd.read_parquet(folder / "records.parquet")
    found = records[
        records["metric"].isin(["correlation.spearman", "correlation.pearson"])
    ]
    assert not ((found["low"] < -1) | (found["high"] > 1)).any()


def test_a_claim_is_data_that_can_be_judged():
    """A threshold at a bound would hold whatever is measured: no interval reaches a bound."""
    of_paper = {claim for study in find_studies() for claim in study.claims}
    for claim in of_paper:
        least, most = claim.bounds or (float("-inf"), float("inf"))
        ends = claim.inside or (() if claim.limit == "q95" else (claim.limit,))
        assert claim.within is not None or all(least < end < most for end in ends), (
            claim
        )
        assert claim.source and "{" not in claim.statement, claim
    assert {
        claim.name for claim in of_paper if claim.source.startswith(("ours", "beyond"))
    } >= {
        "effect of training",
        "mean-key-idle",
    }
    assert (
        sum(not claim.source.startswith(("ours", "beyond")) for claim in of_paper)
        > len(of_paper) / 2
    )


COUNTED = {
    "several anisotropic",
    "other speech models",
    "false positives",
    "fixed-point-of-the-mean",
}
COUNTED |= {"seeds-differ-in-direction", "alike values, dispensable attention"}
"""Claims that a count decides, or a law of its own, or that were registered without a floor before they were judged."""


@pytest.mark.parametrize("paper", ["godey2024", "beyond"])
def test_a_figure_is_judged_by_one_claim_and_every_floor_has_a_reason(paper):
    for study in (study for study in find_studies() if study.paper == paper):
        assert [claim.primary for claim in study.claims].count(True) == 1, study.name
        for claim in study.claims:
            by_p = not (
                claim.identity or claim.inside or claim.within or claim.name in COUNTED
            )
            told = bool(claim.floor and claim.because)
            assert told or claim.limit == "q95" or claim.limit != 0 or not by_p, (
                study.name,
                claim.name,
            )
            assert not claim.floor or claim.because, (study.name, claim.name)


def test_each_number_stands_beside_what_it_was_held_against():
    """Published accuracies differ by corpus: with one of them beside all, a number within it would seem to fail."""
    stem = "difference (claim: > 0 by 0.1):"
    outcomes = {
        "subject": "",
        "value": 1.0,
        "low": None,
        "high": None,
        "outcome": "holds",
    }
    path, alike = (
        Path("paper/settings/study/study.json"),
        [outcomes | {"statistic": stem}] * 2,
    )
    assert verdict_pages.list_outcomes([(path, one) for one in alike]) == (
        "Compared with > 0 by 0.1.<br>**holds** 2: settings: 1; settings: 1"
    )
    failed = {"outcome": "fails", "failing": "too small"}
    other = (
        outcomes
        | {"statistic": "largest A, at encoder layer 4, against q95 0.145:"}
        | failed
    )
    told = "**holds** 1: settings: 1 against > 0 by 0.1<br>**too small** 1: settings: 1 against q95 0.145"
    assert verdict_pages.list_outcomes([(path, alike[0]), (path, other)]) == told


def test_all_records_together_are_small():
    assert (
        0
        < sum(path.stat().st_size for path in RESULTS.rglob("records.parquet"))
        <= 4_000_000
    )


def test_numbers_are_rounded_as_far_as_nothing_that_is_concluded_changes(monkeypatch):
    """A growth of 1e-6 of a number was lost in 17 bits; of what is short already nothing is taken."""
    rows = [
        {"metric": "a", "value": v, "low": None, "high": 1 / 3}
        for v in (0.1, 1.0, 1.0 + 1e-6, float("inf"))
    ]
    records, told = (
        as_records(pd.DataFrame(rows)),
        {"claim": "grows", "low": None, "high": None, "p": None},
    )

    def concluded(done):
        growth = done.records["value"].iloc[2] - done.records["value"].iloc[1]
        return [{**told, "outcome": "holds" if growth > 0 else "fails", "value": 0.0}]

    monkeypatch.setattr(verdicts, "conclude", concluded)
    done = Finished(None, {}, records)
    short = verdicts.round_records(done)
    kept, before = short.records, records
    assert kept["value"].iloc[2] > 1 and kept["value"].iloc[0] != 0.1 == pytest.approx(
        kept["value"].iloc[0], 3e-7
    )
    assert (
        kept["high"].iloc[0] == pytest.approx(1 / 3, 3e-7) and kept["low"].isna().all()
    )
    assert kept["value"].iloc[3] == float("inf") and kept.drop(
        columns=["value", "high"]
    ).equals(before.drop(columns=["value", "high"]))
    monkeypatch.setattr(
        verdicts, "conclude", lambda _done: pytest.fail("it was short already")
    )
    assert verdicts.round_records(short) is short
    coarse = verdicts.round_to_bits(np.array([0.1, -3.0, np.nan, 1e-300]), 17)
    np.testing.assert_allclose(coarse, [0.1, -3.0, np.nan, 1e-300], rtol=2**-17)
    assert coarse[0] != 0.1 and coarse[1] == -3.0


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"value": 0.5 + 9e-5}, True),
        ({"high": 0.6 + 2e-4}, False),
        ({"low": None}, False),
        ({"p": 0.0402}, True),
        ({"p": 0.041}, False),
        ({"p": None}, False),
        ({"outcome": "fails"}, False),
        ({"reason": "2 of 3 N hold"}, False),
        ({"n": 4}, False),
    ],
)
def test_what_rounding_may_change(change, same):
    one = {
        "claim": "a",
        "outcome": "holds",
        "reason": "",
        "n": 5,
        "value": 0.5,
        "low": 0.5,
        "high": 0.6,
        "p": 0.04,
    }
    assert verdicts.alike(one | change, one) == same


def test_another_verdict_is_seen():
    one = {"outcome": "holds", "value": 0.5, "p": None}
    assert not differing([one], [one | {"value": 0.5 + 1e-14}])
    for other in (
        {"outcome": "fails"},
        {"value": 0.5 + 1e-9},
        {"p": 0.1},
        {"value": None},
    ):
        assert differing([one], [one | other])


@pytest.mark.parametrize("paper", ["fosse2023", "godey2024"])
def test_every_study_of_the_paper_s_records_has_a_figure(paper):
    folders = {}
    for folder in FOLDERS:
        if folder.parts[-3] == paper:
            folders.setdefault(folder.name, folder)
    assert len(folders) > 8
    for folder in folders.values():
        assert open_finished(folder).charts, folder


def test_a_committed_folder_is_drawn_anew(tmp_path):
    """The report of committed records showed no figure: it looked for drawings, which are not committed."""
    for name in ("godey2024/quick/fig18", "godey2024/heads/fig8"):
        shutil.copytree(RESULTS / name, tmp_path / name)
    index = build_studies(tmp_path)
    page = tmp_path / "godey2024/heads/report.html"
    assert (
        index == tmp_path / "report.html"
        and 'href="godey2024/heads/report.html"' in index.read_text()
    )
    assert (
        page.read_text().count("<svg") == 2
        and "The anisotropy of query vectors grows with N" in page.read_text()
    )
    assert build_studies(tmp_path / "godey2024/quick").read_text().count("<svg") == 1
    alone = build_studies(tmp_path / "godey2024/quick/fig18")
    assert alone.parent.name == "fig18" and alone.read_text().count("<svg") == 1


def test_ids_of_a_page_are_of_one_drawing_each(tmp_path):

    for name in ("fig14", "fig18"):
        folder = RESULTS / "godey2024" / {"fig14": "small", "fig18": "quick"}[name]
        shutil.copytree(folder / name, tmp_path / name)
    ids = re.findall(r' id="([^"]+)"', build_studies(tmp_path).read_text())
    assert len(ids) == len(set(ids)) and any(
        name.startswith("fig14-fig14-") for name in ids
    )


def test_the_page_is_of_the_records_and_not_of_what_was_written_beside_them(tmp_path):
    shutil.copytree(RESULTS / "godey2024/quick/fig18", tmp_path / "fig18")
    before = build_studies(tmp_path).read_text()
    (tmp_path / "fig18" / "verdicts.json").write_text("[]")
    assert (
        build_studies(tmp_path).read_text() == before and "<b>too small" not in before
    )
    table = tmp_path / "fig18" / "records.parquet"
    records = pd.read_parquet(table)
    records["value"] *= 2
    records.to_parquet(table, index=False)
    assert build_studies(tmp_path).read_text() != before


@pytest.mark.parametrize("lacking", [{}, {"a model": "not to be had"}])
@pytest.mark.parametrize(
    ("changes", "named"), [({}, []), ({"limit": 7}, ["limit"]), ({"older": 1}, [])]
)
def test_records_of_other_settings_are_told(
    tmp_path, monkeypatch, changes, named, lacking
):
    """Another version has other ones under the same name: its verdicts would be taken for those of this one. So where
    something was not to be had, is asked for again and is not to be had again.
    """
    monkeypatch.setattr(Finished, "lacking", lacking)
    monkeypatch.setattr(runner, "_run", lambda *_given: None)
    folder = tmp_path / "godey2024/quick/fig18"
    shutil.copytree(RESULTS / "godey2024/quick/fig18", folder)
    described = json.loads((folder / "study.json").read_text())
    described["settings"] |= changes
    (folder / "study.json").write_text(json.dumps(described))
    (study,) = (s for s in find_studies() if s.name == "fig18")
    told = [
        text
        for text in runner.reproduce([study], "quick", tmp_path)
        if "other settings" in text
    ]
    line = "fig18  As it was measured with other settings ({}); to measure it anew remove {}"
    assert told == [line.format(name, folder) for name in named]


@pytest.mark.parametrize(
    "lost", ["", "study.json", "records.parquet", "verdicts.json", "compared.json"]
)
def test_a_study_is_done_that_says_so_itself(tmp_path, monkeypatch, lost):
    """`study.json` is written last: records and verdicts without it are of one that was cut off."""
    folder = tmp_path / "godey2024/quick/fig18"
    shutil.copytree(RESULTS / "godey2024/quick/fig18", folder)
    (study,) = (s for s in find_studies() if s.name == "fig18")
    before = list(
        runner.reproduce([study], "quick", tmp_path)
    )  # which writes the verdicts that are not committed
    kept, asked = shutil.copytree(folder, tmp_path / "kept"), []

    def run_again(*given):
        asked.append(given)
        shutil.copytree(kept, folder, dirs_exist_ok=True)

    monkeypatch.setattr(runner, "_run", run_again)
    if lost:
        (folder / lost).unlink()
    is_done = lost != "study.json"
    assert runner.list_reproductions(tmp_path / "godey2024") == [folder] * is_done
    if lost == "records.parquet":
        with pytest.raises(OutputError, match="a study of this version"):
            list(runner.reproduce([study], "quick", tmp_path))
        return
    assert list(runner.reproduce([study], "quick", tmp_path)) == before
    assert bool(asked) is not is_done


@pytest.mark.parametrize(
    "damage",
    ["{", "[]", '{"paper": "godey2024", "study": "fig99"}', '{"study": "fig18"}'],
)
def test_a_damaged_study_is_told(tmp_path, damage):
    shutil.copytree(RESULTS / "godey2024/quick/fig18", tmp_path / "fig18")
    (tmp_path / "fig18" / "study.json").write_text(damage)
    with pytest.raises(OutputError, match="a study of this version"):
        build_studies(tmp_path)


def test_damaged_records_are_told(tmp_path):
    shutil.copytree(RESULTS / "godey2024/quick/fig18", tmp_path / "fig18")
    (tmp_path / "fig18" / "records.parquet").write_bytes(b"PAR1")
    with pytest.raises(OutputError, match="a study of this version"):
        build_studies(tmp_path)


def test_published_numbers_stand_beside_ours_on_the_page(tmp_path, monkeypatch):
    from anisoscope_papers import studies_page

    (study,) = (s for s in find_studies() if s.name == "table3")
    rows = (
        Compared("<b>HateXplain", 0.683, 0.7, 0.69, 0.71, 3, spread=0.001),
        Compared("YelpHat", 0.5),
    )
    records = pd.read_parquet(
        RESULTS / "fosse2023/finished/table3/records.parquet"
    ).head(0)
    monkeypatch.setattr(Finished, "compared", rows)
    monkeypatch.setattr(
        studies_page,
        "open_finished",
        lambda _: Finished(study, {"settings_name": "quick"}, records),
    )
    (tmp_path / "table3").mkdir()
    (tmp_path / "table3" / "study.json").touch()
    page = build_studies(tmp_path).read_text()
    assert (
        "&lt;b&gt;HateXplain" in page
        and "0.700 [0.690, 0.710]" in page
        and "differs" in page
    )
    assert "one by one: 1 open, 0 agree, 1 differ" in page


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("fig99_new", "", True),
        ("table9_new", "STUDY = None", True),
        ("sec9_new", "STUDIES = ()", True),
        (
            "beyond",
            "from anisoscope_papers.godey2024.fig07_scores import STUDY as STUDI",
            True,
        ),
        ("helper", "x = 1", False),
        ("figures", "x = 1", False),
    ],
)
def test_a_study_that_is_not_declared_is_told_and_a_part_of_studies_is_none(
    tmp_path, monkeypatch, name, content, refused
):
    """What is not a study was told from the rest by an underscore before its name."""
    from anisoscope.errors import MeasureError
    from anisoscope_papers import fosse2023

    (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.setattr(fosse2023, "__path__", [*fosse2023.__path__, str(tmp_path)])
    if refused:
        with pytest.raises(MeasureError, match=f"fosse2023/{name}.py"):
            runner.find_studies.__wrapped__()
    else:
        assert len(runner.find_studies.__wrapped__()) == len(find_studies())


def test_the_speed_of_this_machine_is_measured():
    """Hours of a dry run are what is to be computed over it: it could be nothing at all."""
    assert 1e-4 < runner.measure_speed() < 1e3  # 0.1 Gflop to 1 Pflop a second


def test_records_hold_no_path_of_a_machine():
    """A corpus that is made in the cache was named by its path there."""
    for path in sorted(RESULTS.rglob("records.parquet")):
        corpora = (
            pd.read_parquet(path, columns=["corpus"])["corpus"].dropna().astype(str)
        )
        assert not corpora.str.startswith(("/", "~", "C:")).any(), path


APART = "beyond/erased"
"""Its one-layer classifiers, with all that were trained from them without some words, are of an earlier machine."""


def accuracies_of_classifiers():
    """Every accuracy of the attention-only classifiers in all records, on each split and of each class.

    {(corpus, model, seed, metric, component): {"study": value}}.
    """
    found = {}
    for path in sorted(RESULTS.glob("*/finished/*/records.parquet")):
        study = "/".join((path.parts[-4], path.parent.name))
        records = pd.read_parquet(path)
        rows = records[
            records["metric"].isin(["accuracy", "class_accuracy"])
            & records["model"].fillna("").str.startswith("attention L=")
        ]
        columns = ["corpus", "model", "seed", "metric", "component", "value"]
        for *key, value in rows[columns].itertuples(index=False):
            if study != APART:
                found.setdefault(tuple(key), {})[study] = float(value)
    return found


def test_no_classifier_has_two_accuracies():
    """39 of 152 classifiers had two on the test split, up to .11 apart: `used` and `needed` were of different models.
    Nine more had two on other splits, or in studies that nobody had compared.

    Corpus, recipe (the name of the model) and seed make a classifier. Records are rounded to 17 bits, which are 8e-6.
    """
    found = accuracies_of_classifiers()
    assert sum(len(values) > 1 for values in found.values()) > 300
    twice = set()
    for (corpus, model, seed, *_), values in found.items():
        if max(values.values()) - min(values.values()) > 2e-5:
            twice.add((corpus, model, int(seed)))
    assert not twice, sorted(twice)


@pytest.fixture
def three_folders(tmp_path, monkeypatch):
    """Figure 6 of three settings that share one system, as all records there are."""
    for settings in ("architectures", "heads", "scale"):
        shutil.copytree(
            RESULTS / "godey2024" / settings / "fig6",
            tmp_path / "godey2024" / settings / "fig6",
        )
    monkeypatch.setattr(verdicts, "RESULTS", tmp_path)
    monkeypatch.setattr(committed, "RESULTS", tmp_path)
    return tmp_path


def test_the_same_data_are_judged_once(three_folders, monkeypatch):
    """The same draws stood under three settings, undecided once and holding twice, and were counted three times."""
    found = verdicts.find_repeated()
    assert set(found) == {"godey2024/heads/fig6", "godey2024/scale/fig6"}
    assert {(of, first) for rows in found.values() for _, of, first in rows} == {
        ("bert:full-embedding", "godey2024/architectures/fig6")
    }
    kept = json.loads((RESULTS / "repeated.json").read_text())
    assert {place: kept[place] for place in found} == found
    monkeypatch.setattr(committed, "read_repeated", lambda: found)
    path = three_folders / "godey2024/heads/fig6/study.json"
    of_system = [
        v
        for v in committed.read_verdicts(path)
        if v["subject"] == "bert:full-embedding"
    ]
    assert (
        len(of_system)
        == 5
        == len(committed.read_verdicts(path)) - len(committed.distinct_verdicts(path))
    )
    assert committed.judged_in(path, of_system[0]) == "godey2024/architectures/fig6"


def test_data_that_differ_in_one_number_are_not_the_same(three_folders):
    table = three_folders / "godey2024/heads/fig6/records.parquet"
    records = pd.read_parquet(table)
    at = records.index[records["model"] == "bert:full-embedding"][7]
    records.loc[at, "value"] *= 1.01
    write_table(table, as_records(records))
    assert set(verdicts.find_repeated()) == {"godey2024/scale/fig6"}


DRAWN = np.random.default_rng(date.today().toordinal()).choice(
    len(FOLDERS), 5, replace=False
)
"""Five of all folders, others every time; which they were stands in the name of the test."""


@pytest.mark.parametrize(
    "folder", [FOLDERS[i] for i in DRAWN], ids=lambda path: "-".join(path.parts[-3:])
)
def test_a_printed_command_gives_the_printed_numbers(folder, tmp_path, monkeypatch):
    """The command of a study, typed where its records lie, says what the committed table of verdicts says."""
    paper, settings, study = folder.parts[-3:]
    shutil.copytree(
        folder, tmp_path / "runs" / "reproduction" / paper / settings / study
    )
    table = pd.read_csv(
        committed.VERDICTS,
        keep_default_na=False,
        na_values={"value": "", "low": "", "high": ""},
    )
    rows = table[
        (table["paper"] == paper)
        & (table["settings"] == settings)
        & (table["study"] == study)
    ]
    words = shlex.split(
        json.loads((folder / "study.json").read_text("utf-8"))["command"]
    )
    assert words == [
        "anisoscope",
        "reproduce",
        paper,
        "--only",
        study,
        "--settings",
        settings,
    ]
    monkeypatch.chdir(tmp_path)
    found = reproduce(words[2], words[4], settings=words[6])
    assert len(rows) == len(found)
    for (_, row), (_, verdict) in zip(rows.iterrows(), found.iterrows(), strict=True):
        assert (row["claim"], row["subject"]) == (verdict["claim"], verdict["subject"])
        assert row["verdict"] == (verdict["failing"] or verdict["outcome"])
        assert row["statistic"] == verdict["statistic"].rstrip(":")
        for name in ("value", "low", "high"):
            said = (
                float("nan") if verdict[name] is None else verdict[name]
            )  # None: no verdict of the study has it
            assert row[name] == pytest.approx(said, rel=1e-5, nan_ok=True), (
                row["claim"],
                name,
            )


def test_the_tables_of_verdicts_are_those_of_the_records(tmp_path):
    """CSV beside the verdicts that they are made of: `python papers/tools/verdicts.py` writes them."""
    tables = {
        committed.VERDICTS: committed.verdict_table(),
        committed.PUBLISHED: committed.published_table(),
    }
    for kept, table in tables.items():
        committed.write_csv(tmp_path / kept.name, table)
        assert (tmp_path / kept.name).read_text("utf-8") == kept.read_text("utf-8")


def test_a_verdict_that_changes_needs_a_reason(monkeypatch):
    """Else a changed judge would turn what was published without a word."""
    kept = pd.read_csv(committed.VERDICTS, keep_default_na=False)
    other = kept.copy()
    other.loc[3, "verdict"] = (
        "undecided" if kept.loc[3, "verdict"] != "undecided" else "holds"
    )
    new = other.drop(index=5)
    changes = verdicts.find_changes(kept, new, "a reason")
    assert list(changes["now"]) == [other.loc[3, "verdict"], ""]
    assert list(changes["before"]) == [kept.loc[3, "verdict"], kept.loc[5, "verdict"]]
    assert set(changes.columns) == set(pd.read_csv(committed.CHANGES).columns)
    monkeypatch.setattr(verdicts, "judge_records", lambda: None)
    monkeypatch.setattr(verdicts, "verdict_table", lambda: new)
    with pytest.raises(SystemExit, match="2 verdicts changed"):
        verdicts.main([])


def test_every_change_of_a_verdict_has_a_reason():
    changes = pd.read_csv(committed.CHANGES, keep_default_na=False)
    assert len(changes) > 600
    assert (changes["why"].str.len() > 10).all()
    assert (changes["before"] != changes["now"]).all()
    assert (changes["before"] != "").all()


@pytest.mark.parametrize("trained", [False, True])
def test_a_fresh_clone_judges_the_committed_records(tmp_path, monkeypatch, trained):
    """`--settings finished` where nothing was trained said of every claim that no seed has it."""
    from anisoscope_papers.fosse2023.grid import SETTINGS
    from anisoscope_papers.fosse2023.trained_cells import TOLD, name_folder

    (study,) = runner.choose("fosse2023", "table4")
    plan, asked = SETTINGS["finished"], []
    monkeypatch.setattr(runner, "_run", lambda *given: asked.append(given[2]))
    if trained:
        cell = name_folder(plan.by_weight()[0], plan, tmp_path / "cache")
        cell.mkdir(parents=True)
        (cell / TOLD).write_text("{}")
        with pytest.raises(OutputError):  # `_run` would have made the records
            list(runner.reproduce([study], "finished", tmp_path))
        assert len(asked) == 1
        return
    lines = list(runner.reproduce([study], "finished", tmp_path))
    committed = json.loads(
        (RESULTS / "fosse2023/finished/table4/verdicts.json").read_text()
    )
    assert (
        not asked
        and "Nothing of it was trained here" in lines[0]
        and len(lines) == len(committed) + 1
    )
    again = list(runner.reproduce([study], "finished", tmp_path))
    assert [line for line in again if "other settings" not in line] == lines[1:]
    assert "quick" in study.settings and not (tmp_path / "fosse2023" / "quick").exists()
