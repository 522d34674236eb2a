"""The words of the program, of Python and of a corpus are the same everywhere."""

from types import SimpleNamespace

import numpy as np
import pytest

import anisoscope
from anisoscope import errors, progress
from anisoscope.axes import pluralise
from anisoscope.progress import scale_progress, set_counted_unit, show_progress
from anisoscope.wording import use_words_of_corpus


def test_documents_are_chosen_in_python_too(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(
        "\n".join(f"{i}. The cat sat on the mat, and a dog barked." for i in range(30))
    )
    run = anisoscope.measure(
        "builtin:minilm", corpus=str(path), documents="line", panel="hidden", sample=0
    )
    assert run.manifest["corpus"]["n_units"] == 30


def test_plurals():
    assert [pluralise(noun) for noun in ("token", "patch", "mel frame")] == [
        "tokens",
        "patches",
        "mel frames",
    ]
    patches = use_words_of_corpus(
        "all tokens, one token, special tokens", {"position": "patch"}
    )
    assert patches == "all patches, one patch, special tokens"


def test_progress_counts_what_the_corpus_counts(capsys, monkeypatch):
    """Samples of sound and images were counted as tokens."""
    monkeypatch.setenv("CI", "true")
    with show_progress("a model", quiet=False) as progress:
        set_counted_unit(progress, "images")
        progress(3, 3)
    assert "3/3 images" in capsys.readouterr().err


def test_progress_off_the_terminal_counts_what_it_was_told_to_count(
    capsys, monkeypatch
):
    monkeypatch.setenv("CI", "true")
    with show_progress("words", "sentences", quiet=False) as progress:
        progress(3, 3)
    assert "3/3 sentences" in capsys.readouterr().err


def test_progress_of_a_series_says_which_checkpoint_and_what_it_counts(
    capsys, monkeypatch
):
    """It counted tokens, of speech too, and did not say that the bar was of all checkpoints."""
    monkeypatch.setenv("CI", "true")
    with show_progress("3 checkpoints × speech", quiet=False) as progress:
        part = scale_progress(progress, 2, 3, "checkpoint")
        set_counted_unit(part, "frames")
        part(4, 4)
    assert "12/12 frames" in (line := capsys.readouterr().err)
    assert line.strip().endswith(": checkpoint 3 of 3: 3 checkpoints × speech")


def test_work_that_follows_has_its_own_count(capsys, monkeypatch):
    monkeypatch.setenv("CI", "true")
    with show_progress("a model", quiet=False) as progress:
        progress(9, 9)
        set_counted_unit(progress, "passes", "attention replaced")
        progress(2, 2)
    assert capsys.readouterr().err.splitlines()[-1].endswith("attention replaced")


def test_vectors_are_not_called_tokens():
    """The page of vectors counted tokens."""
    run = anisoscope.measure(np.random.default_rng(0).normal(size=(60, 8)))
    assert run.manifest["corpus"]["words"]["counted"] == "vector"
    states = anisoscope.measure(np.random.default_rng(0).normal(size=(20, 5, 8)))
    assert states.manifest["corpus"]["words"]["position"] == "token"


def test_a_typo_of_corpus_is_recognised():
    """`corpu` was answered with `column`."""
    with pytest.raises(errors.UsageError, match="did you mean corpus"):
        anisoscope.measure("builtin:minilm", corpu="text.txt")


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def monotonic(self):
        return self.now


def test_lines_of_a_progress_say_the_rate_of_their_own_piece(monkeypatch, capsys):
    """A line every so many seconds and at the end; after the count has fallen another piece is counted from there."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    update, pause = progress._make_line_printer(), progress.SECONDS_BETWEEN_LINES
    for later, done in (
        (0, 100),
        (1, 150),
        (pause - 1, 300),
        (1, 400),
        (pause - 1, 20),
        (pause, 120),
        (pause, 220),
    ):
        clock.now += later
        update(done, 500, "a model", "tokens")
    clock.now += 1
    update(500, 500, "a model", "tokens")
    rate, last = 100 / pause, 480 / (2 * pause + 1)
    assert capsys.readouterr().err.splitlines() == [
        f"300/500 tokens, {200 / pause:,.0f}/s, {200 / (200 / pause):,.0f} s left: a model",
        "20/500 tokens: a model",
        f"120/500 tokens, {rate:,.0f}/s, {380 / rate:,.0f} s left: a model",
        f"220/500 tokens, {rate:,.0f}/s, {280 / rate:,.0f} s left: a model",
        f"500/500 tokens, {last:,.0f}/s: a model",
    ]


@pytest.mark.parametrize(
    ("text", "expected"), [("x" * 20, "x" * 20), ("x" * 21, "x" * 19 + "…")]
)
def test_a_line_ends_where_the_terminal_does(text, expected, monkeypatch, capsys):
    progress._print_line("y" * 300)
    assert capsys.readouterr().err == "y" * 300 + "\n"
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    progress._print_line(text)
    assert capsys.readouterr().err == f"{expected}\n"


def test_what_is_waited_for_is_said_unless_it_shall_be_quiet(capsys):
    with progress.show_spinner("loading", quiet=False):
        pass
    with progress.show_spinner("unseen", quiet=True):
        pass
    assert capsys.readouterr().err == "loading …\n"


def test_pieces_alike_are_parts_of_a_whole_and_the_first_alone_remarks():
    shown_, said, plain = [], [], []
    whole = progress.Shown(
        "a series", "tokens", lambda *given: shown_.append(given), said.append
    )
    for i in range(3):
        part = progress.scale_progress(whole, i, 3, "checkpoint")
        part(5, 10)
        progress.remark(part, f"remark {i}")
        progress.scale_progress(
            lambda done, total: plain.append((done, total)), i, 3, "checkpoint"
        )(5, 10)
    assert [given[:2] for given in shown_] == plain == [(5, 30), (15, 30), (25, 30)]
    assert [given[2] for given in shown_] == [
        f"checkpoint {i} of 3: a series" for i in (1, 2, 3)
    ]
    assert said == ["remark 0"]
    assert progress.scale_progress(whole, 0, 1, "checkpoint").what == "a series"
    assert progress.scale_progress(None, 0, 3, "checkpoint") is None


def test_a_bar_says_what_is_counted_and_begins_anew_when_the_count_falls(monkeypatch):
    from rich.progress import Progress

    made, resets, reset = [], [], Progress.reset
    start = Progress.start
    monkeypatch.setattr(Progress, "start", lambda bar: made.append(bar) or start(bar))
    monkeypatch.setattr(
        Progress,
        "reset",
        lambda bar, *given, **how: resets.append(1) or reset(bar, *given, **how),
    )
    with progress._show_bar("a model") as (update, _):
        [task], rate = made[0].tasks, made[0].columns[5]
        assert task.description == "loading a model …" and task.total is None
        seen = []
        for done, total, what in (
            (5, 10, "one"),
            (10, 10, "one"),
            (3, 10, "two"),
            (3, 0, "two"),
        ):
            update(done, total, what, "tokens")
            seen.append(
                (
                    task.completed,
                    task.total,
                    task.description,
                    task.fields["unit"],
                    len(resets),
                )
            )
        told = [
            str(rate.render(SimpleNamespace(speed=speed)))
            for speed in (None, 0.0, 1234.4)
        ]
    end = "metrics and intervals of one …"
    assert seen == [
        (5, 10, "one", "tokens", 0),
        (10, 10, end, "tokens", 0),
        (3, 10, "two", "tokens", 1),
        (3, 10, "two", "tokens", 1),
    ]
    assert told == ["", "", "1,234/s"]


def test_no_time_is_left_where_all_is_done(capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    with show_progress("a model", quiet=False) as told:
        told(1, 1000)
        told(999, 1000)
        told(int("1000"), int("1000"))
    *_, before, last = capsys.readouterr().err.splitlines()
    assert "s left" in before and "1,000/1,000" in last and "left" not in last
