"""What is written and shown of a reproduction: tables, pages and lines, each on studies that are all unlike."""

import contextlib
import re
import signal
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from anisoscope.errors import MeasureError, OutputError, Terminated, UsageError
from anisoscope.runs.job import OutputOptions
from anisoscope.store import as_records
from anisoscope_papers import (
    api,
    commands,
    exporting,
    processes,
    runner,
    studies_page,
    study_names,
)
from anisoscope_papers.runner import Finished
from anisoscope_papers.study import WORDS, Claim, Compared, Study, Verdict
from anisoscope_papers.training.recipe import ModelSize, Training


def make_study(name, verdicts, paper="godey2024", **more):
    """A study of two claims, whose names other studies share."""
    claims = tuple(
        Claim(which, f"{which} of {name}", f"section {name}", f"p{which}")
        for which in ("a < b", "c")
    )
    found = {
        "measure": None,
        "judge": lambda _: verdicts,
        "draw": lambda _: {},
        "settings": {"quick": 1},
        "caption": f"Caption of {name}.",
        "small": "Small.",
    }
    return Study(name, paper, f"Title of {name}", claims, **found | more)


VERDICTS = {
    "fig1": [
        Verdict("a < b", "holds", "A", 0.5, 0.25, 0.75, 8, 0.01, "why", "bert"),
        Verdict("a < b", "fails", "A", -1.0, subject="gpt2", failing="contrary"),
        Verdict("c", "identity", "B"),
    ],
    "fig10": [
        Verdict("c", "undecided", "C"),
        Verdict("c", "not comparable", "C", n=3),
        Verdict("a < b", "fails", "D", failing="beyond"),
    ],
}
LACKING = {"model": "m", "metric": "withheld", "component": "no network"}


@pytest.fixture
def finished(monkeypatch, tmp_path):
    """Two finished studies, and one that is not, below a folder."""
    studies = {name: make_study(name, found) for name, found in VERDICTS.items()}
    measured = as_records(pd.DataFrame([{"metric": "x", "value": 1.0}, LACKING]))

    def open_one(folder):
        described = {"settings_name": "quick"}
        return Finished(studies[folder.name], described, measured)

    for name in studies:
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").touch()
    # Begun, and not finished.
    (tmp_path / "fig2").mkdir()
    for module in (exporting, studies_page, runner):
        monkeypatch.setattr(module, "open_finished", open_one)
    published = {"godey2024": {"paper": "Godey & others"}}
    for module in (exporting, studies_page):
        monkeypatch.setattr(module, "read_published", published.__getitem__)
    return [*studies.values(), make_study("fig2", [])], tmp_path


def test_a_table_of_claims_has_each_verdict_with_the_claim_of_its_own_study(finished):
    studies, folder = finished
    table = exporting.build_claim_table(studies, folder)
    head = ["paper", "study", "claim", "status", "statement", "outcome"]
    assert list(table.columns)[: len(head)] == head
    status = {
        "holds": "verified",
        "fails": "falsified",
        "undecided": "inconclusive",
        "identity": "not evidence",
        "not comparable": "not evidence",
    }
    rows = iter(table.to_dict("records"))
    for name, verdicts in VERDICTS.items():
        for verdict in verdicts:
            row = next(rows)
            assert row["paper"] == "godey2024" and row["study"] == name
            assert row["statement"] == f"{verdict.claim} of {name}"
            assert row["source"] == f"section {name}"
            assert row["published"] == f"p{verdict.claim}"
            assert row["status"] == status[verdict.outcome]
            for field, value in asdict(verdict).items():
                missing = value is None and pd.isna(row[field])
                assert missing or row[field] == value
    assert next(rows, None) is None and table["n"].dtype == "Int64"
    path = exporting.export_claims(studies, folder, "csv")
    assert path == folder / "claims.csv"
    read = pd.read_csv(path)
    assert read["n"].dropna().tolist() == [8, 3] and ",8," in path.read_text()
    assert len(read) == 6 and list(read.columns) == list(table.columns)


def test_of_no_finished_study_there_is_an_empty_table_and_an_empty_list(finished):
    studies, folder = finished
    nothing = exporting.build_claim_table(studies, folder / "none")
    assert len(nothing) == 0
    whole = exporting.build_claim_table(studies, folder)
    assert list(nothing.columns) == list(whole.columns)
    (folder / "none").mkdir()
    for form in ("csv", "html"):
        path = exporting.export_claims(studies, folder / "none", form)
        assert "fig1" not in path.read_text()


def test_a_page_of_a_claim_counts_its_verdicts(finished, monkeypatch):
    studies, folder = finished
    pages = {}

    class Environment:
        def __init__(self, **how):
            assert how["autoescape"]

        def from_string(self, _):
            return SimpleNamespace(render=lambda **given: given)

    monkeypatch.setattr(exporting, "Environment", Environment)
    monkeypatch.setattr(
        exporting, "_write", lambda path, given: pages.update({path.name: given})
    )
    path = exporting.export_claims(studies, folder, "html")
    assert path == folder / "claims" / "index.html"
    assert list(pages) == [
        *("fig1-a-b.html", "fig1-c.html", "fig10-c.html", "fig10-a-b.html"),
        "index.html",
    ]
    first = pages["fig1-a-b.html"]
    assert first["counts"] == [("verified", 1), ("falsified", 1)]
    assert (first["paper"], first["source"]) == ("Godey & others", "section fig1")
    assert (first["statement"], first["published"]) == ("a < b of fig1", "pa < b")
    bert, gpt2 = first["verdicts"]
    assert (bert["subject"], bert["n"], bert["p"]) == ("bert", 8, 0.01)
    assert (gpt2["value"], gpt2["n"], gpt2["low"]) == (-1.0, None, None)
    other = pages["fig10-c.html"]
    assert other["counts"] == [("inconclusive", 1), ("not evidence", 1)]
    listed = pages["index.html"]["listed"]
    assert [row["link"] for row in listed] == list(pages)[:-1]
    assert pages["index.html"]["paper"] == "Godey & others"


def read_cells(page, tag="td"):
    return re.findall(f"<{tag}>(.*?)</{tag}>", page.read_text())


def test_pages_of_claims_can_be_read(finished):
    studies, folder = finished
    object.__setattr__(
        studies[0],
        "judge",
        lambda _: [
            Verdict("a < b", "fails", "A:", failing="beyond", subject="x & y"),
            Verdict("a < b", "fails", "A:", 1.23456, n=7, p=0.0123, reason="few"),
            Verdict("a < b", "holds", "A:", 0.5, 0.25, 0.75),
        ],
    )
    exporting.export_claims(studies, folder, "html")
    page = folder / "claims" / "fig1-a-b.html"
    assert "<h1>a &lt; b of fig1</h1>" in page.read_text()
    assert "<p>section fig1; published: pa &lt; b</p>" in page.read_text()
    assert "All claims</a> · Godey &amp; others · fig1</p>" in page.read_text()
    cells = read_cells(page)
    assert cells[:5] == [
        "falsified<br><small>beyond</small>",
        "x &amp; y",
        "<small>A</small>",
        "",
        "",
    ]
    assert cells[5:10] == [
        "falsified",
        "",
        "1.235<br><small>A; few</small>",
        "7",
        "0.012",
    ]
    assert cells[10:] == [
        "verified",
        "",
        "0.5 [0.25, 0.75]<br><small>A</small>",
        "",
        "",
    ]
    listed = folder / "claims" / "index.html"
    assert read_cells(listed, "h1") == ["Godey &amp; others"]
    # In the order of the words, not of their numbers.
    assert read_cells(listed)[:3] == [
        "fig1",
        '<a href="fig1-a-b.html">a &lt; b of fig1</a>',
        "1 verified, 2 falsified",
    ]


def test_a_page_of_studies_counts_every_word(finished, monkeypatch):
    studies, folder = finished
    pages = []

    def write(place, template, **given):
        pages.append((place, template.name, given))
        return place / "report.html"

    monkeypatch.setattr(studies_page, "write_page", write)
    monkeypatch.setattr(
        studies_page, "to_svg", lambda chart, name: f"<svg {chart} {name}>"
    )
    monkeypatch.setattr(
        studies_page,
        "list_reproductions",
        lambda _: [folder / "fig1", folder / "fig10"],
    )
    object.__setattr__(
        studies[1],
        "draw",
        lambda _: {"fig10": "x", "fig10_of-heads": "y", "other": "z"},
    )
    object.__setattr__(
        studies[1], "compare", lambda _: [Compared("p", 1.0), Compared("q", 2.0)]
    )
    assert studies_page.build_studies(folder) == folder / "report.html"
    ((place, name, page),) = pages
    assert (place, name) == (folder, "studies.html.j2")
    counts = dict.fromkeys(WORDS, 0)
    for verdicts in VERDICTS.values():
        for verdict in verdicts:
            counts[verdict.word] += 1
    assert page["counts"] == counts and page["failing"] == 2 and page["figures"] == 3
    assert page["command"] == (
        "anisoscope reproduce godey2024 --only fig1,fig10 --settings quick"
    )
    assert (page["paper"], page["settings"]) == ("Godey & others", "quick")
    first, second = page["studies"]
    assert first["caption"] == "Caption of fig1. Small."
    assert first["lacking"] == {"m": "no network"}
    assert [v["word"] for v in first["verdicts"]] == ["holds", "contrary", "identity"]
    assert [v["of"].statement for v in first["verdicts"]] == [
        *("a < b of fig1", "a < b of fig1", "c of fig1"),
    ]
    labels = {f["name"]: (f["label"], str(f["svg"])) for f in second["figures"]}
    assert labels == {
        "fig10": ("fig10", "<svg x fig10-fig10>"),
        "fig10_of-heads": ("of heads", "<svg y fig10-fig10_of-heads>"),
        "other": ("other", "<svg z fig10-other>"),
    }
    assert second["counted"] == "2 open, 0 agree, 0 differ"


@pytest.mark.parametrize("several", [False, True])
def test_pages_of_several_papers_are_listed(monkeypatch, tmp_path, several):
    found = [tmp_path / "p" / "quick" / name for name in ("fig1", "fig2")]
    if several:
        found.append(tmp_path / "q" / "long" / "table1")
    written, lists = [], []

    def write_one(place, studies):
        written.append((place, studies))
        return place / "report.html", {"paper": place.parent.name}

    def write_list(folder, template, **given):
        lists.append((folder, template.name, given))
        return folder / "report.html"

    monkeypatch.setattr(studies_page, "list_reproductions", lambda _: found)
    monkeypatch.setattr(studies_page, "_write_page", write_one)
    monkeypatch.setattr(studies_page, "write_page", write_list)
    page = studies_page.build_studies(tmp_path)
    assert written[0] == (tmp_path / "p" / "quick", found[:2])
    if not several:
        assert page == tmp_path / "p" / "quick" / "report.html" and not lists
        # A single study has a page of its own.
        monkeypatch.setattr(studies_page, "list_reproductions", lambda _: [found[0]])
        assert studies_page.build_studies(found[0]) == found[0] / "report.html"
        return
    ((_, name, given),) = lists
    assert name == "reproductions.html.j2" and given["outcomes"] == WORDS
    assert given["pages"] == [
        {"paper": "p", "link": "p/quick/report.html"},
        {"paper": "q", "link": "q/long/report.html"},
    ]


def test_a_folder_without_a_finished_study_has_no_page(tmp_path):
    with pytest.raises(OutputError, match="finished studies below"):
        studies_page.build_studies(tmp_path)
    assert studies_page.rebuild_page(tmp_path) is None


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_of_studies_is_told_its_places_and_leaves_a_page(
    monkeypatch, tmp_path, fails
):
    folder = tmp_path / "godey2024" / "long"
    studies = [SimpleNamespace(name="fig1"), SimpleNamespace(name="fig2")]
    asked, pages, hints = [], [], []

    def reproduce(given, settings, output, *, device, quiet):
        asked.append((given, settings, output, device, quiet))
        (folder / "fig1").mkdir(parents=True)
        (folder / "fig1" / "study.json").touch()
        yield "a line"
        if fails:
            raise ValueError

    @contextlib.contextmanager
    def hint(kept, *, again):
        yield
        hints.append((kept(), again))

    monkeypatch.setattr(runner, "reproduce", reproduce)
    monkeypatch.setattr(studies_page, "build_studies", pages.append)
    monkeypatch.setattr(api, "interrupt_hint", hint)
    lines = api.run_studies(studies, folder, "cuda", True)
    assert next(lines) == "a line"
    if fails:
        with pytest.raises(ValueError):
            next(lines)
    else:
        assert next(lines, None) is None
        held = f"{folder} holds 1 of 2 studies, and what is done of the next"
        assert hints == [(held, "")]
    assert asked == [(studies, "long", tmp_path, "cuda", True)]
    assert pages == [folder]


@pytest.mark.parametrize(
    ("corpus", "name"),
    [
        ("builtin:python-docs", "python-docs"),
        ("/data/my/text.txt", "data-my-text.txt"),
        ("org/corpus", "org-corpus"),
    ],
)
def test_a_language_model_has_a_folder_of_its_own(monkeypatch, tmp_path, corpus, name):
    from anisoscope_papers.training import language_model

    asked = []
    monkeypatch.setattr(
        language_model,
        "train",
        lambda training, folder, **how: asked.append((training, folder, how)),
    )
    size = ModelSize(1, 8, 1, 50, 8, 4, 1e-3, 5)
    training = Training(own_size=size, corpus=corpus, seed=6, task="causal-lm")
    place = OutputOptions(resume=True)
    api.train_language_model(training, place, True)
    api.train_language_model(training, OutputOptions(output=tmp_path), True)
    (first, folder, how), (_, given, others) = asked
    assert first is training and given == tmp_path
    assert folder == Path("runs") / f"causal-lm-small-{name}" / "seed-6"
    assert (how["resume"], how["overwrite"], others["resume"]) == (True, False, False)


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ([], ""),
        (
            ["validation"],
            "reviews has no validation split: rows were drawn at random "
            "(--split-seed): 1,200 to train on, 30 to choose the epoch by, 5 to test on",
        ),
        (["validation", "test"], "reviews has no validation or test split: rows"),
        (["train", "validation", "test"], "reviews has no splits: rows"),
    ],
)
def test_splits_that_were_drawn_are_told_with_their_sizes(drawn, words):
    counts = {
        "test": {"a": 2, "b": 3},
        "train": {"a": 700, "b": 500},
        "validation": {"a": 10, "b": 20},
    }
    found = commands.describe_drawn_splits(
        {"name": "reviews", "drawn": drawn, "counts": counts}
    )
    assert found.startswith(words) and bool(found) == bool(words)


@pytest.mark.parametrize("form", ["table", "json"])
def test_rows_of_verdicts_are_shown_unless_each_was_shown_as_it_came(
    finished, monkeypatch, form
):
    studies, folder = finished
    shown, told = [], []
    monkeypatch.setattr(
        commands, "show", lambda tables, _, notes: shown.append((tables, notes))
    )
    monkeypatch.setattr(
        commands, "echo_wrapped", lambda line, **how: told.append((line, how))
    )
    view = SimpleNamespace(format=form)
    missing = {"no network": "m (in fig1)"}
    commands._export_and_print(studies, folder, "csv", view, missing)
    ((line, how),) = told
    assert line.startswith("claims: ") and line.endswith("claims.csv") and how["err"]
    if form == "table":
        assert shown == []
        return
    (((table,), notes),) = shown
    assert notes == ["left out: m (in fig1): no network"]
    assert table.rows[0] == [
        *("fig1", "a < b", "bert", "holds", "", "0.5", "0.25", "0.75", "8"),
    ]
    assert table.rows[1] == [
        *("fig1", "a < b", "gpt2", "fails", "contrary", "-1.0", "", "", ""),
    ]
    assert len(table.rows) == 6 == len(table.records)
    told.clear()
    commands._export_and_print(studies, folder, None, view, {})
    assert told == []


# ---- parallel pieces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "threads"), [(1, 8), (None, 1), (9, 8)])
def test_a_single_process_does_the_pieces_in_turn(monkeypatch, given, threads):
    monkeypatch.setattr(processes.torch, "get_num_threads", lambda: threads)
    pieces = [(1, 2), (3, 4), (5, 6)][: 1 if given == 9 else 3]
    done = []

    def work(*piece):
        done.append(piece)

    counted = []
    for count in processes.run_in_parallel(work, pieces, given):
        counted.append((count, len(done)))
    assert counted == [(n, n) for n in range(1, len(pieces) + 1)]
    assert done == pieces
    assert list(processes.run_in_parallel(work, [], given)) == []


@pytest.mark.parametrize("before", [set(), {signal.SIGINT}])
def test_ctrl_c_is_let_through_again_once_the_processes_have_begun(before):
    """While they begin it is held back, since they inherit what is."""
    held = []

    def submit(*_):
        held.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    own = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        processes._submit_all(SimpleNamespace(submit=submit), print, [(1,), (2,)])
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, own)
    assert held == [{signal.SIGINT}] * 2


def test_no_more_processes_are_begun_than_there_are_pieces(monkeypatch):
    began = []

    class Stop(Exception):
        pass

    def begin(count, *_):
        began.append(count)
        raise Stop

    monkeypatch.setattr(processes, "ProcessPoolExecutor", begin)
    monkeypatch.setattr(processes.torch, "get_num_threads", lambda: 4)
    for given, pieces in ((None, 9), (None, 3), (2, 9)):
        with pytest.raises(Stop):
            next(processes.run_in_parallel(np.sum, [()] * pieces, given))
    assert began == [4, 3, 2]


@pytest.mark.parametrize("how", [KeyboardInterrupt(), Terminated(143), None])
def test_processes_are_ended_with_their_caller_and_begin_nothing_after_it(
    monkeypatch, how
):
    """Who is interrupted ends them at once; who only stops to ask lets them finish what has begun."""
    ended = []

    def submit(_pool, _work, pieces):
        futures = [Future() for _ in pieces]
        futures[0].set_result(None)
        return set(futures)

    pool = SimpleNamespace(shutdown=lambda **given: ended.append(given))
    child = SimpleNamespace(kill=lambda: ended.append("child"))
    monkeypatch.setattr(processes, "ProcessPoolExecutor", lambda *_: pool)
    monkeypatch.setattr(processes, "_submit_all", submit)
    monkeypatch.setattr(processes, "active_children", lambda: [child])
    done = processes.run_in_parallel(print, [(1,), (2,)], 2)
    assert next(done) == 1 and ended == []
    if how is None:
        done.close()
    else:
        with pytest.raises(type(how)):
            done.throw(how)
    assert ended == ["child"] * (how is not None) + [{"cancel_futures": True}]


# ---- how studies are found, asked for and computed -------------------------------------------------------------------


def test_studies_come_in_the_order_of_their_papers_and_numbers_and_no_program_is_one(
    monkeypatch,
):
    packages = {
        name: SimpleNamespace(__path__=name, __name__=f"of.{name}")
        for name in ("second", "first")
    }
    modules = {"second": ("fig10", "__main__", "fig2"), "first": ("table1", "fig3")}
    asked = []

    def find(paper, package, name):
        asked.append((paper, package, name))
        return (make_study(name, [], paper),)

    monkeypatch.setattr(runner, "find_packages", lambda: packages)
    monkeypatch.setattr(
        runner,
        "iter_modules",
        lambda path: [SimpleNamespace(name=n) for n in modules[path]],
    )
    monkeypatch.setattr(runner, "_find_studies_in", find)
    found = runner.find_studies.__wrapped__()
    assert [(study.paper, study.name) for study in found] == [
        ("second", "fig2"),
        ("second", "fig10"),
        ("first", "fig3"),
        ("first", "table1"),
    ]
    assert asked == [
        ("second", "of.second", "fig10"),
        ("second", "of.second", "fig2"),
        ("first", "of.first", "table1"),
        ("first", "of.first", "fig3"),
    ]


ONE = make_study("fig1", [])


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("fig1", {"STUDY": ONE}, (ONE,)),
        ("more", {"STUDIES": (ONE, ONE)}, (ONE, ONE)),
        ("helpers", {"number": 1}, ()),
        ("figure", {}, ()),
        # Named like a study, or holding one under another name: it would never run.
        ("fig1_x", {}, None),
        ("table2", {}, None),
        ("sec3_curve", {}, None),
        ("helpers", {"OWN": ONE}, None),
        ("helpers", {"STUDY": 1}, None),
        ("helpers", {"STUDIES": ()}, None),
        ("helpers", {"STUDIES": (ONE, 1)}, None),
    ],
)
def test_a_module_named_like_a_study_or_with_one_inside_must_declare_it(
    monkeypatch, name, content, found
):
    modules = {f"of.paper.{name}": SimpleNamespace(**content)}
    monkeypatch.setattr(runner, "import_module", modules.__getitem__)
    if found is not None:
        assert runner._find_studies_in("paper", "of.paper", name) == found
        return
    with pytest.raises(MeasureError) as error:
        runner._find_studies_in("paper", "of.paper", name)
    assert f"STUDY = declare(…) in paper/{name}.py" in str(error.value)
    assert "declare it; see docs/adding.md" in str(error.value)


def test_python_reproduces_with_its_copies_below_a_folder_of_paper_and_settings(
    monkeypatch, tmp_path
):
    calls = []

    @contextlib.contextmanager
    def use_copies(data):
        calls.append(("copies", data))
        yield
        calls.append("no copies any more")

    def run_studies(*given):
        calls.append(("run", *given))
        yield "first"
        yield "second"
        calls.append("ran to the end")

    monkeypatch.setattr("anisoscope.data.local.use_copies", use_copies)
    monkeypatch.setattr(api, "run_studies", run_studies)
    monkeypatch.setattr(runner, "choose", lambda *given: ("chosen", *given))
    monkeypatch.setattr(
        exporting, "build_verdict_table", lambda *given: pd.DataFrame([given])
    )
    monkeypatch.setattr(runner, "explain_lacking", lambda *given: {"why": given})
    table = api.reproduce(
        "godey2024",
        "fig1",
        settings="long",
        output=tmp_path,
        data={"a": "b"},
        device="cuda",
        quiet=False,
    )
    studies = ("chosen", "godey2024", "fig1")
    folder = tmp_path / "godey2024" / "long"
    assert calls == [
        ("copies", {"a": "b"}),
        ("run", studies, folder, "cuda", False),
        "ran to the end",
        "no copies any more",
    ]
    assert table.iloc[0].tolist() == [studies, folder]
    assert table.attrs == {"without": {"why": (studies, folder)}}
    calls.clear()
    api.reproduce("beyond")
    folder = Path("runs/reproduction/beyond/quick")
    assert calls[:2] == [
        ("copies", {}),
        ("run", ("chosen", "beyond", ""), folder, "cpu", True),
    ]


@pytest.mark.parametrize(
    ("command", "task"),
    [(commands.masked_lm, "masked-lm"), (commands.causal_lm, "causal-lm")],
)
def test_each_command_trains_its_own_kind_of_language_model(
    monkeypatch, tmp_path, capsys, command, task
):
    asked = []
    monkeypatch.setattr(commands, "check_corpus", lambda name: asked.append(name))
    folder = tmp_path / "a folder"

    def train(*given):
        asked.append(given)
        return folder

    monkeypatch.setattr(api, "train_language_model", train)
    place = OutputOptions(output=tmp_path)
    # Whatever task the options were made with.
    training = Training(corpus="text", task="masked-lm")
    command(training, place, quiet=True)
    corpus, (given, where, quiet) = asked
    assert (corpus, where, quiet) == ("text", place, True)
    assert (given.task, given.corpus) == (task, "text")
    printed = capsys.readouterr()
    assert printed.out.strip() == str(folder)
    hint = " ".join(printed.err.split())
    assert hint == f"next: anisoscope measure '{folder}' --panel hidden"


@pytest.fixture
def reproduction(monkeypatch, tmp_path):
    """A reproduction of stand-ins; what is asked of each, by name."""
    asked = {}

    def keep(module, name, answer=None):
        def called(*given):
            asked.setdefault(name, []).append(given)
            return answer

        monkeypatch.setattr(module, name, called)

    keep(study_names, "check")
    keep(runner, "choose", ["chosen"])
    keep(runner, "describe", ["first  line", "second"])
    keep(runner, "explain_lacking", {})
    keep(commands, "_export_and_print")
    lines = []
    monkeypatch.setattr(
        commands,
        "echo_wrapped",
        lambda line, **how: lines.append((line, how.get("err", False))),
    )
    return asked, lines, keep, tmp_path


def test_a_dry_reproduction_describes_its_own_settings(reproduction, monkeypatch):
    asked, lines, _, folder = reproduction
    monkeypatch.setattr(api, "run_studies", lambda *_: pytest.fail("ran"))
    given = {"only": "fig1", "settings": "long", "dry_run": True, "quiet": True}
    assert commands.reproduce("beyond", output=folder, **given) is None
    assert asked["check"] == [("beyond", "fig1", "long")]
    assert asked["choose"] == [("beyond", "fig1")]
    assert asked["describe"] == [(["chosen"], "long")]
    assert lines == [("first  line\nsecond", False)]
    assert not any(folder.iterdir())


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("lacks", [False, True])
@pytest.mark.parametrize("page", [False, True])
def test_a_reproduction_names_its_page_and_what_it_lacks(
    reproduction, form, lacks, page
):
    asked, lines, keep, folder = reproduction
    keep(api, "run_studies", iter(["fig1 HOLDS", "fig2 FAILS"]))
    missing = {"no network": "m (in fig1)"} if lacks else {}
    keep(runner, "explain_lacking", missing)
    place = folder / "beyond" / "long"
    place.mkdir(parents=True)
    if page:
        (place / "report.html").touch()
    view = SimpleNamespace(format=form)
    given = {"settings": "long", "export": "html", "device": "cuda", "quiet": True}
    code = commands.reproduce("beyond", output=folder, view=view, **given)
    assert code == (7 if lacks else None)
    assert asked["run_studies"] == [(["chosen"], place, "cuda", True)]
    assert asked["explain_lacking"] == [(["chosen"], place)]
    assert asked["_export_and_print"] == [(["chosen"], place, "html", view, missing)]
    # In formats for other programs, verdicts are no part of the output.
    expected = [(line, form == "json") for line in ("fig1 HOLDS", "fig2 FAILS")]
    if page:
        shown = commands.format_path(place / "report.html")
        expected.append((f"report: {shown} (open it in a browser)", True))
    if lacks:
        expected.append(("left out: m (in fig1): no network", True))
    assert lines == expected


@pytest.mark.parametrize("form", ["html", "csv"])
def test_claims_are_exported_in_the_form_that_is_asked_for(
    finished, monkeypatch, form, capsys
):
    studies, folder = finished
    asked = []

    def export(*given):
        asked.append(given)
        return folder / "claims.x"

    monkeypatch.setattr(exporting, "export_claims", export)
    view = SimpleNamespace(format="table")
    commands._export_and_print(studies, folder, form, view, {})
    assert asked == [(studies, folder, form)]
    assert capsys.readouterr().err.startswith("claims: ")


@pytest.mark.parametrize("model", ["org/model", "attention"])
@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("collapsed", [False, True])
def test_a_classifier_s_names_are_checked_and_its_numbers_shown(
    monkeypatch, tmp_path, model, form, collapsed
):
    calls, lines, rows = [], [], []
    for name in ("check_model", "check_labelled", "check_corpus"):
        monkeypatch.setattr(
            commands, name, lambda given, name=name: calls.append((name, given))
        )
    results = {
        "validation": {"accuracy": 0.75, "n": 1200, "majority": 0.5},
        "test": {"accuracy": 0.625, "n": 30, "majority": 0.25},
    }
    trained = SimpleNamespace(
        folder=tmp_path / "my c",
        collapsed=collapsed,
        max_length=64,
        training={
            "results": results,
            "truncated": {"train": 0, "test": 1500},
            "corpus": {"name": "c"},
        },
    )

    def train(*given):
        calls.append(given)
        return trained

    monkeypatch.setattr(api, "train_classifier", train)
    monkeypatch.setattr(commands, "say", lambda line: lines.append((line, False)))
    monkeypatch.setattr(
        commands,
        "echo_wrapped",
        lambda line, **how: lines.append((line, how.get("err", False))),
    )
    monkeypatch.setattr(commands, "show_row", lambda row, _: rows.append(row))
    recipe = SimpleNamespace(model=model, corpus="c")
    view = SimpleNamespace(format=form)
    commands.classifier(recipe, "place", view, device="cuda", quiet=True)
    checks = [] if model == "attention" else [("check_model", model)]
    checks.append(("check_labelled", "c"))
    assert calls == [*checks, (recipe, "place", True, "cuda")]
    expected = []
    if form == "table":
        expected += [
            ("validation: accuracy 0.750 (1,200 texts; majority rate 0.500)", False),
            ("test: accuracy 0.625 (30 texts; majority rate 0.250)", False),
        ]
    if collapsed:
        line = "collapsed: not above the majority rate on the test split; "
        expected.append((f"{line}try --warmup 100 --clip 1", True))
    expected.append(("test: 1,500 utterances cut at 64 tokens", True))
    if form == "table":
        expected.append((str(tmp_path / "my c"), False))
    expected.append((f"next: anisoscope classes '{tmp_path / 'my c'}'", True))
    # No line breaks inside a path.
    assert [(line.replace("\x1f", " "), err) for line, err in lines] == expected
    if form == "json":
        row = {"folder": str(tmp_path / "my c"), "collapsed": collapsed}
        assert rows == [row | {"validation": 0.75, "test": 0.625}]


@pytest.fixture
def shown_and_hinted(monkeypatch):
    """What a training shows as its progress (title, unit, quiet), and what it would say if it were stopped."""
    shown, hints = [], []

    @contextlib.contextmanager
    def progress(title, unit, *, quiet):
        shown.append((title, unit, quiet))
        yield "progress"

    @contextlib.contextmanager
    def hint(kept):
        yield
        hints.append(kept())

    monkeypatch.setattr(api, "show_progress", progress)
    monkeypatch.setattr(api, "interrupt_hint", hint)
    return shown, hints


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_classifier_is_trained_at_its_place_with_a_hint_on_what_is_kept(
    monkeypatch, shown_and_hinted, tmp_path, overwrite
):
    from anisoscope_papers.training import classifier

    shown, hints = shown_and_hinted
    asked = []

    def fit(recipe, **how):
        asked.append((recipe, how))
        return "trained"

    monkeypatch.setattr(classifier, "train_classifier", fit)
    recipe = SimpleNamespace(model="m", corpus="c", seed=4)
    place = OutputOptions(output=tmp_path, overwrite=overwrite)
    assert api.train_classifier(recipe, place, True, "cuda") == "trained"
    assert shown == [("m × c, seed 4", "steps", True)]
    assert hints == ["" if overwrite else "the steps that are done are kept"]
    how = asdict(place) | {"device": "cuda", "progress": "progress"}
    assert asked == [(recipe, how)]


@pytest.mark.parametrize("state", [False, True])
def test_a_language_model_hints_at_its_last_state_once_there_is_one(
    monkeypatch, shown_and_hinted, tmp_path, state
):
    from anisoscope_papers.training import language_model

    shown, hints = shown_and_hinted

    monkeypatch.setattr(
        language_model, "train", lambda *given, **how: (given, how["progress"])
    )
    if state:
        (tmp_path / "resume").mkdir()
    training = Training(task="causal-lm", preset="tiny", corpus="c", seed=7)
    place = OutputOptions(output=tmp_path)
    found = api.train_language_model(training, place, False)
    assert found == ((training, tmp_path), "progress")
    assert shown == [("causal-lm tiny × c, seed 7", "steps", False)]
    assert hints == [f"{tmp_path} holds the last state" if state else ""]


def test_python_trains_each_task_by_its_own_recipe(monkeypatch):
    asked = []

    def classifier(*given):
        asked.append(given)
        return SimpleNamespace(folder="of the classifier")

    monkeypatch.setattr(api, "train_classifier", classifier)
    monkeypatch.setattr(
        api,
        "train_language_model",
        lambda *given: asked.append(given) or "of the language model",
    )
    given = {"corpus": "c", "seed": 3, "overwrite": True}
    assert api.train("classifier", device="cuda", **given) == "of the classifier"
    assert api.train("classifier", quiet=False, **given) == "of the classifier"
    found = api.train("causal-lm", device="cuda", steps=5, **given)
    assert found == "of the language model"
    (recipe, place, quiet, device), (_, _, loud, other), (training, at, _) = asked
    assert (recipe.corpus, recipe.seed, place.overwrite) == ("c", 3, True)
    assert (quiet, device, loud, other) == (True, "cuda", False, "cpu")
    assert (training.task, training.device, training.steps) == ("causal-lm", "cuda", 5)
    assert at.overwrite
    with pytest.raises(UsageError) as error:
        api.train("translation")
    assert str(error.value).startswith("expected a task; got 'translation'")
    for task in ("masked-lm", "causal-lm", "classifier"):
        assert task in error.value.cure
    assert len(asked) == 3


def test_a_worker_has_one_thread_and_ends_with_its_caller(monkeypatch):
    calls = []
    monkeypatch.setattr(processes.torch, "set_num_threads", calls.append)
    caller = SimpleNamespace(join=lambda: calls.append("joined"))
    monkeypatch.setattr(processes, "parent_process", lambda: caller)
    monkeypatch.setattr(
        processes.os, "_exit", lambda code: calls.append(f"exit {code}")
    )

    class Thread:
        def __init__(self, target, daemon):
            assert daemon
            self.target = target

        def start(self):
            calls.append("started")
            self.target()

    monkeypatch.setattr(processes.threading, "Thread", Thread)
    processes._begin()
    assert calls == [1, "started", "joined", "exit 1"]
