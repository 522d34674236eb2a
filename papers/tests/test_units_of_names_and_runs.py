"""Names of papers, studies and settings with their cures, and what a run of a study asks for, writes and says."""

import contextlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import altair as alt
import pandas as pd
import pytest

from anisoscope.errors import OutputError, UsageError
from anisoscope.store import as_records
from anisoscope_papers import cli, runner, study_names
from anisoscope_papers.needs import Need
from anisoscope_papers.study import Claim, Study, Verdict


@dataclass(frozen=True)
class Asked:
    """Settings of each type that JSON writes otherwise than Python has them."""

    size: int = 3
    parts: tuple[int, ...] = (1, 2)
    folder: Path = Path("f")


def make_study(name="fig1", **more):
    found = {
        "measure": lambda *_: as_records(
            pd.DataFrame([{"model": "m", "metric": "x", "value": 2.0}])
        ),
        "judge": lambda _: [Verdict("c", "holds", "A")],
        "draw": lambda _: {},
        "settings": {"quick": Asked(), "long": Asked(9)},
        "caption": "A caption.",
        "small": "Small.",
    }
    return Study(
        name, "godey2024", f"Title of {name}", (Claim("c", "A", "s"),), **found | more
    )


# ---- names -----------------------------------------------------------------------------------------------------------


PAPERS = "beyond, fosse2023, godey2024, gu2025, machina2024"


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        ("machina2023", "did you mean machina2024?"),
        ("gu20255", "did you mean gu2025?"),
        ("beyon", "did you mean beyond?"),
        ("xyz", f"known names: {PAPERS}"),
        ("", f"known names: {PAPERS}"),
    ],
)
def test_an_unknown_paper_is_answered_with_the_nearest_of_all_papers(wrong, cure):
    with pytest.raises(UsageError) as caught:
        study_names.find_folder(wrong)
    assert str(caught.value) == f"expected a paper; got {wrong!r}. Cure: {cure}"


def test_each_paper_has_its_own_folder_of_studies():
    root = Path(study_names.__file__).parent
    found = {paper: study_names.find_folder(paper) for paper in study_names.PAPERS}
    assert found == {paper: root / paper for paper in found}
    assert ", ".join(sorted(found)) == PAPERS


LISTED = [
    ("godey2024", "fig1", "One", ["quick", "long"]),
    ("godey2024", "fig2a", "Two", ["quick", "masked"]),
    ("godey2024", "fig2b", "Three", ["quick"]),
    ("godey2024", "fig10", "Ten", ["quick"]),
    ("godey2024", "table2", "Table", ["quick"]),
    ("fosse2023", "fig1", "Other", ["generated"]),
]


@pytest.fixture
def listed(monkeypatch):
    monkeypatch.setattr(study_names, "list_studies", lambda: LISTED)


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("", ["fig1", "fig2a", "fig2b", "fig10", "table2"]),
        ("fig1", ["fig1"]),
        ("fig2", ["fig2a", "fig2b"]),
        ("fig2b,fig2", ["fig2b", "fig2a"]),
        ("fig2-10", ["fig2a", "fig2b", "fig10"]),
        ("fig2-fig9", ["fig2a", "fig2b"]),
        ("fig10, fig1-2 ,fig1", ["fig10", "fig1", "fig2a", "fig2b"]),
        ("table1-2", ["table2"]),
    ],
)
def test_spans_of_studies_hold_both_ends_and_name_each_study_once(only, names):
    assert study_names.choose_names("godey2024", only) == names


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    ("only", "settings", "message"),
    [
        (
            ",",
            "quick",
            "expected figures or tables of godey2024 for --only; got ','. Cure: leave --only out for all",
        ),
        (
            "fig1, tabel2",
            "quick",
            "expected figures or tables of godey2024; got 'tabel2'. Cure: did you mean table2?",
        ),
        (
            "zz",
            "quick",
            "expected figures or tables of godey2024; got 'zz'. "
            "Cure: known names: fig1, fig10, fig2a, fig2b, table2",
        ),
        (
            "fig1",
            "maskd",
            "expected settings of godey2024; got 'maskd'. "
            "Cure: did you mean masked? (anisoscope list studies names those of each)",
        ),
        (
            "",
            "zz",
            "expected settings of godey2024; got 'zz'. "
            "Cure: known names: long, masked, quick (anisoscope list studies names those of each)",
        ),
    ],
)
def test_wrong_studies_and_settings_are_answered_with_those_of_the_paper(
    only, settings, message
):
    with pytest.raises(UsageError) as caught:
        study_names.check("godey2024", only, settings)
    assert str(caught.value) == message


def test_studies_are_read_with_their_own_settings_or_those_of_the_paper(
    monkeypatch, tmp_path
):
    texts = {
        "one": 'settings = ["a", "b"]\npaper = "P"\n'
        '[fig10]\ntitle = "Ten"\n[fig2]\ntitle = "Two"\nsettings = ["c"]\n'
        '[shared]\nclaims = 3\n[table1]\ntitle = "T"\n',
        "two": '[fig1]\ntitle = "First"\n',
    }
    for paper, text in texts.items():
        (tmp_path / paper).mkdir()
        (tmp_path / paper / "published.toml").write_text(text)
    monkeypatch.setattr(study_names, "find_packages", lambda: dict.fromkeys(texts))
    monkeypatch.setattr(study_names, "find_folder", tmp_path.__truediv__)
    assert study_names.list_studies() == [
        ("one", "fig2", "Two", ["c"]),
        ("one", "fig10", "Ten", ["a", "b"]),
        ("one", "table1", "T", ["a", "b"]),
        ("two", "fig1", "First", ["quick", "paper"]),
    ]


@pytest.mark.usefixtures("listed")
def test_the_list_of_studies_names_all_settings_of_each():
    assert cli.list_studies()[:3] == [
        ("godey2024 fig1", "One (settings: quick, long)"),
        ("godey2024 fig2a", "Two (settings: quick, masked)"),
        ("godey2024 fig2b", "Three (settings: quick)"),
    ]
    assert cli.list_studies()[-1] == ("fosse2023 fig1", "Other (settings: generated)")


# ---- a dry run -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gigabytes", "words"),
    [
        (0.0, "under 0.1 GB"),
        (0.049, "under 0.1 GB"),
        (0.05, "0.1 GB"),
        (0.44, "0.4 GB"),
        (0.96, "1.0 GB"),
        (12.34, "12.3 GB"),
        (1500.0, "1500.0 GB"),
    ],
)
def test_gigabytes_have_one_decimal_from_half_of_a_tenth_on(gigabytes, words):
    assert runner._format_gigabytes(gigabytes) == words


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        (0.0, "1 minute"),
        (0.03, "2 minutes"),
        (0.5, "30 minutes"),
        (0.94, "56 minutes"),
        (0.96, "1.0 hours"),
        (1.26, "1.3 hours"),
        (12.6, "13 hours"),
        (1234.5, "1,234 hours"),
    ],
)
def test_hours_are_minutes_under_an_hour_and_whole_from_ten_on(hours, words):
    assert runner._format_hours(hours) == words


def test_a_study_that_shares_with_two_earlier_ones_names_both(monkeypatch):
    monkeypatch.setattr(runner, "measure_speed", lambda: 1 / 3600 / runner.EFFICIENCY)
    one = Need("org/one", 1.0, "MIT", kept=0.25, work={"a": 1.0})
    two = Need("org/two", 0.5, work={"b": 2.0, "c": 4.0})
    new = Need("org/new", None, "by request", work={"c": 4.0, "d": 0.5})
    studies = [
        make_study("fig1", needs=(one,)),
        make_study("fig2", needs=(two,)),
        make_study("fig3", needs=(two, one, new)),
        make_study("fig4"),
    ]
    lines = runner.describe(studies, "quick")
    assert lines[0] == "fig1     Title of fig1" and len(lines) == 4
    lines = [line.strip() for line in runner._describe_costs(studies)]
    assert lines == [
        *("fig1     Title of fig1", "org/one", "1.0 GB; MIT"),
        "1.0 GB to download; about 1.0 hours",
        *("fig2     Title of fig2", "org/two", "0.5 GB"),
        "0.5 GB to download; about 6.0 hours",
        *("fig3     Title of fig3", "org/new", "size unknown; by request"),
        "what fig2, fig1 load; under 0.1 GB to download; about 30 minutes",
        "fig4     Title of fig4",
        "in all   1.5 GB to download, and 1 of unknown size; 0.8 GB of disk space; about 7.5 hours on this machine",
        "what is in the hub's cache, or at hand as a local copy, is not downloaded",
    ]


# ---- a run -----------------------------------------------------------------------------------------------------------


def draw(_):
    data = pd.DataFrame({"x": [1, 2]})
    chart = alt.Chart(data).mark_point().encode(x="x:Q")
    return {"points": chart}


def test_a_run_saves_a_chart_in_three_formats(monkeypatch, tmp_path):
    made = make_study(draw=draw)
    monkeypatch.setattr(runner, "find_studies", lambda: (made,))
    list(runner.reproduce([made], "long", tmp_path, quiet=True))
    folder = tmp_path / "godey2024" / "long" / "fig1"
    written = {path.name: path.read_bytes()[:5] for path in folder.iterdir()}
    starts = {"svg": b"<svg ", "pdf": b"%PDF-", "png": b"\x89PNG\r"}
    for suffix, start in starts.items():
        assert written.pop(f"points.{suffix}") == start
    assert sorted(written) == [
        *("compared.json", "records.parquet", "study.json", "verdicts.json"),
    ]


def test_a_study_is_measured_with_the_settings_folders_and_device_asked_for(
    monkeypatch, tmp_path
):
    seen = []

    def measure(asked, context):
        seen.append((asked, context.folder, context.cache, context.device))
        return as_records(pd.DataFrame([{"metric": "x", "value": 1.0}]))

    made = [make_study(name, measure=measure) for name in ("fig1", "fig2")]
    monkeypatch.setattr(runner, "find_studies", lambda: tuple(made))
    list(runner.reproduce(made, "long", tmp_path, device="meta", quiet=True))
    long = tmp_path / "godey2024" / "long"
    assert seen == [
        (Asked(9), long / "fig1", tmp_path / "cache", "meta"),
        (Asked(9), long / "fig2", tmp_path / "cache", "meta"),
    ]


@pytest.mark.parametrize("quiet", [True, False])
def test_progress_of_a_study_is_shown_unless_it_is_to_be_quiet(
    monkeypatch, tmp_path, quiet
):
    told = []

    @contextlib.contextmanager
    def show(title, unit, *, quiet):
        told.append((title, unit, quiet))
        yield lambda done, total: told.append((done, total))

    def measure(_, context):
        context.progress("parts", 2, 5)
        return as_records(pd.DataFrame([{"metric": "x", "value": 1.0}]))

    made = make_study(measure=measure)
    monkeypatch.setattr(runner, "find_studies", lambda: (made,))
    monkeypatch.setattr(runner, "show_progress", show)
    list(runner.reproduce([made], "quick", tmp_path, quiet=quiet))
    assert told == [("godey2024 fig1", "steps", quiet), (2, 5)]


def test_only_settings_that_both_versions_have_are_compared(monkeypatch, tmp_path):
    then = {"size": 3, "parts": [2, 1], "folder": "g", "gone": 1}

    def name_others(**changes):
        described = {"settings": then | changes}
        done = runner.Finished(make_study(), described, pd.DataFrame())
        monkeypatch.setattr(runner, "open_finished", lambda _: done)
        return runner._name_other_settings(tmp_path, Asked())

    assert name_others() == "parts, folder"
    assert name_others(size=4) == "size, parts, folder"
    assert name_others(parts=[1, 2], folder="f") == ""
    del then["size"]
    assert name_others(parts=[1, 2]) == "folder"
    assert asdict(Asked())["folder"] == Path("f")


@pytest.mark.parametrize(
    ("described", "kind"),
    [
        ("{", "JSONDecodeError"),
        ({"paper": "godey2024"}, "KeyError"),
        ({"paper": "godey2024", "study": "fig9"}, "ValueError"),
        ({"paper": "fosse2023", "study": "fig1"}, "ValueError"),
        ({"paper": "godey2024", "study": "fig1"}, "FileNotFoundError"),
    ],
)
def test_a_damaged_folder_is_named_with_its_fault_and_a_cure(
    monkeypatch, tmp_path, described, kind
):
    monkeypatch.setattr(runner, "find_studies", lambda: (make_study(),))
    text = described if isinstance(described, str) else json.dumps(described)
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(OutputError) as caught:
        runner.open_finished(tmp_path)
    assert re.fullmatch(
        rf"expected a study of this version in {re.escape(str(tmp_path))}; got {kind}: "
        r".*\. Cure: reproduce it again into another --output",
        str(caught.value),
        re.DOTALL,
    )


def test_reasons_are_gathered_over_studies_with_every_name_once(monkeypatch, tmp_path):
    lacking = {
        "fig1": {"m/two": "m/two is gated", "m/one": "m/one is gated", "c": "no net"},
        "fig2": {"m/one": "m/one is gated"},
        "fig3": {"m/six": "m/six is gated"},
    }

    def open_one(folder):
        rows = [
            {"model": name, "metric": "withheld", "component": why}
            for name, why in lacking[folder.name].items()
        ]
        records = as_records(pd.DataFrame(rows))
        return runner.Finished(make_study(folder.name), {}, records)

    monkeypatch.setattr(runner, "open_finished", open_one)
    for name in ("fig1", "fig2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").touch()
    (tmp_path / "fig3").mkdir()
    studies = [make_study(name) for name in lacking]
    assert runner.explain_lacking(studies, tmp_path) == {
        "m/two is gated": "m/two, m/one (in fig1, fig2)",
        "no net": "c (in fig1)",
    }


def test_settings_a_study_lacks_are_answered_with_its_own():
    study = make_study()
    assert runner._require_settings(study, "long") == Asked(9)
    with pytest.raises(UsageError) as caught:
        runner._require_settings(study, "lon")
    assert str(caught.value) == (
        "expected settings of fig1; got 'lon'. Cure: did you mean long?"
    )
