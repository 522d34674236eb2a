"""What frames every command: exit codes, signals and messages of the program, names of the package, its diagnosis."""

import errno
import io
import os
import pickle
import signal
import sys
import threading
from importlib import metadata
from types import ModuleType, SimpleNamespace

import pytest
import torch

import anisoscope
from anisoscope import (
    __main__ as program,
    axes,
    doctor,
    errors,
    progress,
    renamed,
    wording,
)
from anisoscope.batch import Batch
from anisoscope.errors import Interrupted, OutputError, Terminated, UsageError

# ---- the package


def test_public_names_stay_what_they_are_and_moved_ones_say_where_they_are():
    kept = anisoscope.capture
    anisoscope.capture = ModuleType("capture")
    assert anisoscope.capture is kept, "a sub-package does not hide the function"
    try:
        # any other module is bound as Python does it
        anisoscope.a_module = module = ModuleType("other")
        assert anisoscope.a_module is module
        anisoscope.report = other = len
        assert anisoscope.report is other
    finally:
        vars(anisoscope).pop("a_module", None)
        vars(anisoscope).pop("report", None)
    for name in ("train", "reproduce"):
        with pytest.raises(AttributeError) as caught:
            getattr(anisoscope, name)
        assert str(caught.value) == (
            f"{name!r} is in another package: pip install anisoscope-papers, anisoscope_papers.{name}"
        )
    with pytest.raises(AttributeError, match="has no attribute 'x'; it has classes, e"):
        anisoscope.x  # noqa: B018
    assert dir(anisoscope) == sorted(anisoscope.__all__)
    assert pickle.loads(pickle.dumps(anisoscope)) is anisoscope


# ---- the program


def run_main(monkeypatch, act):
    """The exit code of the program whose command line does this."""
    monkeypatch.setattr(program, "_run", act)
    monkeypatch.setattr(program.gc, "set_threshold", lambda *_: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    try:
        program.main()
    except SystemExit as stop:
        return stop.code
    return 0


def raising(error):
    def act(*_):
        raise error

    return act


def test_the_program_ends_with_the_code_of_its_command(monkeypatch, capsys):
    for code in (0, 1, 2, 8):
        assert run_main(monkeypatch, lambda code=code: code) == code
    assert run_main(monkeypatch, raising(KeyboardInterrupt())) == 130
    assert run_main(monkeypatch, raising(Terminated(143))) == 143
    assert capsys.readouterr().err.count("interrupted; nothing to keep; to go on") == 2


def test_an_interrupted_command_says_how_it_goes_on(monkeypatch, capsys):
    line = ["anisoscope", "measure", "m", "--overwrite", "--resume", "--corpus", "a b"]
    monkeypatch.setattr(sys, "argv", line)

    def report(stop, *notes):
        if notes:
            stop.__notes__ = list(notes)
        code = program._report_interruption(stop)
        return code, capsys.readouterr().err

    # what is kept must not be deleted by the line that goes on
    assert report(KeyboardInterrupt(), "2 of 5", "--resume") == (
        130,
        "anisoscope: interrupted; 2 of 5; to go on: anisoscope measure m --corpus 'a b' --resume\n",
    )
    # any other option or command leaves the line as it was typed
    typed = "anisoscope measure m --overwrite --resume --corpus 'a b'"
    assert report(Interrupted(15), "x", "--again")[1].endswith(f"{typed} --again\n")
    assert report(Interrupted(15), "x", "--again")[0] == 143
    assert report(Terminated(143), "x", "the same command") == (
        143,
        "anisoscope: interrupted; x; to go on: the same command\n",
    )
    assert report(Interrupted(2)) == (
        130,
        f"anisoscope: interrupted; nothing to keep; to go on: {typed}\n",
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert report(KeyboardInterrupt())[1].startswith("\ranisoscope: ")


def test_every_kind_of_error_has_its_message_and_code(monkeypatch, capsys):
    explain = program._explain_error
    assert explain(OutputError("a", "b", "c")) == (
        "anisoscope: expected a; got b. Cure: c",
        6,
    )
    for number in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EFBIG,
    ):
        text, code = explain(OSError(number, "why", "f"))
        assert code == 6
        assert text == "anisoscope: cannot write f: why. Cure: free space, or --output"
    for number in (errno.ENAMETOOLONG, errno.ELOOP):
        text, code = explain(OSError(number, "why", "n" * 50))
        assert code == 2 and text == (
            f"anisoscope: expected a file or folder; got {'n' * 40} …: why. Cure: check the name"
        )
    assert capsys.readouterr().err == ""
    text, code = explain(ZeroDivisionError("lines"))
    assert code == 1 and text == (
        "anisoscope: this is a bug (ZeroDivisionError). Please report it with the command and the lines above."
    )
    assert "ZeroDivisionError: lines" in capsys.readouterr().err
    from anisoscope.cli import app

    monkeypatch.setattr(sys, "argv", ["anisoscope", "x"])
    asked = []
    monkeypatch.setattr(app, "run_command_line", lambda words: asked.append(words) or 3)
    assert program._run() == 3 and asked == [["x"]]
    monkeypatch.setattr(app, "run_command_line", raising(UsageError("a", "b")))
    assert program._run() == 2
    assert capsys.readouterr().err == "anisoscope: expected a; got b\n"
    monkeypatch.setattr(app, "run_command_line", raising(Interrupted(15)))
    assert program._run() == 143
    monkeypatch.setattr(app, "run_command_line", raising(BrokenPipeError()))
    closed = []
    monkeypatch.setattr(os, "dup2", lambda *given: closed.append(given))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(fileno=lambda: 1))
    assert program._run() == 1 and closed[0][1] == 1


def test_a_signal_in_a_finaliser_is_sent_again(monkeypatch):
    sent = []

    class Timer:
        def __init__(self, seconds, act, given):
            sent.append((seconds, act, given))

        def start(self):
            sent.append("started")

    monkeypatch.setattr(threading, "Timer", Timer)
    for stop, number in (
        (KeyboardInterrupt(), signal.SIGINT),
        (Terminated(143), signal.SIGTERM),
    ):
        sent.clear()
        program._raise_again(SimpleNamespace(exc_value=stop))
        assert sent == [(0.05, os.kill, (os.getpid(), number)), "started"]
    sent.clear()
    printed = []
    monkeypatch.setattr(sys, "__unraisablehook__", printed.append)
    lost = SimpleNamespace(exc_value=ValueError())
    program._raise_again(lost)
    assert printed == [lost] and sent == []


# ---- errors, words and old names


def test_names_near_a_wrong_one_are_suggested_without_itself():
    assert (
        errors.suggest_names("head", ["head", "heads", "zzz"]) == "did you mean heads?"
    )
    assert errors.suggest_names("q", ["b", "a", "b"]) == "known names: a, b"
    # of names that are nearly the same the nearest is meant alone
    near = ["overwrites", "overwrited", "other"]
    assert errors.suggest_names("overwrite", near) in {
        "did you mean overwrites?",
        "did you mean overwrited?",
    }
    long = UsageError("e" * 2000, "b", "c" * 1901)
    cut = "{0} … {1} ({2} characters)".format
    assert str(long) == (
        f"expected {cut('e' * 1700, 'e' * 150, '2,000')}; got b. Cure: {cut('c' * 1700, 'c' * 150, '1,901')}"
    )
    assert long.cure == "c" * 1901
    assert Interrupted(15).number == 15 and str(Interrupted(2)).endswith("signal 2")
    assert Terminated(143).number == 15 and Terminated(143).code == 143


def test_the_final_norm_is_in_no_range_of_layers():
    names = [*(f"layer {n}" for n in range(7)), "the final norm"]
    assert (
        wording.describe_layers((0, 4, 5, 6, 7), names)
        == "at layers 0, 4–6 and the final norm"
    )
    assert (
        wording.describe_layers((0, 5, 6, 7), names)
        == "at layers 0, 5, 6 and the final norm"
    )
    assert wording.list_layers((2, 3, 4), names) == "layers 2–4"
    assert wording.list_layers((7,), names) == "the final norm"
    assert wording.format_percent(-0.05) == "−5.0 %"
    assert wording.format_duration(3600) == "1 h 00 min"


def test_names_that_are_not_old_stay_whatever_file_has_them(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    assert renamed.rename_typed_corpus("mine") == "mine"
    assert renamed.rename_corpus("planted-pairs:4") == "synthetic-pairs:4"
    assert renamed.rename_corpus("planted:") == "synthetic:"
    assert renamed.rename_site("encoder.2.hidden") == "encoder.2.hidden"
    assert renamed.SETTINGS == {
        "panels": "panel",
        "policies": "tokens",
        "median": "medians",
    }


def test_labels_are_one_for_each_sequence():
    unit = torch.tensor([1, 2, 3])
    assert Batch({}, unit, label=torch.tensor([0, 1, 0])).label.tolist() == [0, 1, 0]
    for wrong in (torch.zeros(3, 1), torch.zeros(2), torch.tensor(1)):
        with pytest.raises(UsageError) as caught:
            Batch({}, unit, label=wrong)
        assert caught.value.got == str(tuple(wrong.shape))


def test_families_of_subsets_are_cut_where_the_bins_are():
    edges = axes.POSITION_EDGES
    names = []
    for begin, end in zip(edges, [*edges[1:], None], strict=True):
        if end is None:
            names.append(f"position {begin}+")
        elif end == begin + 1:
            names.append(f"position {begin}")
        else:
            names.append(f"position {begin}–{end - 1}")
    assert axes.SUBSET_FAMILIES["position"] == tuple(names)
    frequency = axes.SUBSET_FAMILIES["frequency"]
    assert frequency == tuple(f"frequency {n}" for n in range(1, 6))
    assert len(frequency) == axes.FREQUENCY_BINS
    assert axes.POLICIES == ("all", "content", "no-first")
    every = [name for names in axes.SUBSET_FAMILIES.values() for name in names]
    assert len(every) == len(set(every))


# ---- the diagnosis


def test_extras_are_those_of_a_distribution_with_its_own_packages(monkeypatch):
    """The first distribution's extras are known by their names, those of others by both; none needs itself."""
    requires = [
        "numpy>=1",
        "own[models]; extra == 'all'",
        "b>=2; extra == 'models'",
        "c; extra == 'dev'",
        "d; sys_platform == 'nowhere'",
    ]
    monkeypatch.setattr(doctor, "DISTRIBUTIONS", ("own", "papers"))

    def described(name):
        if name == "gone":
            raise metadata.PackageNotFoundError
        return SimpleNamespace(get_all=lambda _: ["models", "all", "dev"])

    monkeypatch.setattr(doctor.metadata, "metadata", described)
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: requires)
    monkeypatch.setattr(
        doctor, "_find_version", {"numpy": "2.0", "b": "1.0", "c": "3"}.get
    )
    tried = []

    def examine(name, developers=False):
        found = doctor._examine_distribution(name, developers, tried.append)
        return [
            (extra.name, [p.name for p in extra.packages], extra.install)
            for extra in found
        ]

    assert examine("own") == [
        ("base", ["numpy"], "pip install 'own'"),
        ("models", ["b"], "pip install 'own[models]'"),
    ]
    assert tried == ["numpy"], "what is too old is not imported"
    assert examine("papers") == [
        ("papers", ["numpy"], "pip install 'papers'"),
        ("papers[models]", ["b"], "pip install 'papers[models]'"),
    ]
    assert examine("own", True)[-1] == ("dev", ["c"], "pip install 'own[dev]'")
    assert examine("gone") == []


def test_devices_have_their_memory_in_gigabytes(monkeypatch):
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 6)
    pages = {"SC_PHYS_PAGES": 4_000_000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(doctor.os, "sysconf", pages.__getitem__)
    cuda = SimpleNamespace(
        device_count=lambda: 2,
        get_device_properties=lambda n: SimpleNamespace(
            name=f"card {n}", total_memory=(n + 1) * 10**10
        ),
    )
    there = {"mps": False, "xpu": True}
    found = SimpleNamespace(
        cuda=cuda,
        backends=SimpleNamespace(
            mps=SimpleNamespace(is_available=lambda: there["mps"])
        ),
        xpu=SimpleNamespace(
            is_available=lambda: there["xpu"],
            device_count=lambda: 2,
            get_device_name=lambda n: f"arc {n}",
        ),
    )
    cpu = "cpu: 6 cores, 16 GB of memory"
    cards = [cpu, "cuda:0: card 0, 10 GB", "cuda:1: card 1, 20 GB"]
    assert doctor._find_devices(lambda _: found) == [
        *cards,
        "xpu:0: arc 0",
        "xpu:1: arc 1",
    ]
    there.update(mps=True, xpu=False)
    assert doctor._find_devices(lambda _: found)[3:] == [
        "mps: Apple GPU (sums are kept on the CPU: it has no float64)"
    ]
    del found.xpu
    assert len(doctor._find_devices(lambda _: found)) == 4
    assert doctor._find_devices(raising(ImportError())) == [cpu]


def test_a_diagnosis_names_both_distributions_and_decides_the_code(monkeypatch, capsys):
    asked = []

    def examine(name, developers, try_import):
        asked.append((name, developers, try_import))
        return [f"extras of {name}"]

    versions = {"anisoscope": "1.2"}
    monkeypatch.setattr(doctor, "_examine_distribution", examine)
    monkeypatch.setattr(doctor, "_find_version", versions.get)
    monkeypatch.setattr(doctor, "_find_devices", lambda act: [act])
    monkeypatch.setattr(doctor, "_find_folders", lambda: ["folders"])
    found = doctor.diagnose(developers=True, try_import=len)
    names = ("anisoscope", "anisoscope-papers")
    assert asked == [(name, True, len) for name in names]
    assert found.extras == [f"extras of {name}" for name in names]
    assert found.versions["anisoscope"] == "1.2"
    assert found.versions["anisoscope-papers"] == "not installed"
    assert list(found.versions)[:2] == ["python", "platform"]
    assert found.devices == [len] and found.folders == ["folders"]
    for works, code in ((True, 0), (False, 1)):
        of = SimpleNamespace(works=works)
        monkeypatch.setattr(doctor, "diagnose", lambda of=of: of)
        monkeypatch.setattr(doctor, "render_diagnosis", lambda _: "text")
        assert doctor.main() == code and capsys.readouterr().out == "text\n"


def test_packages_are_wrapped_behind_the_name_of_their_extra():
    packages = tuple(
        doctor.Package(name, "", "1.0", "ok") for name in ("aaaa", "bbbb", "cccc")
    )
    extra = doctor.Extra("x", packages, "pip install x")
    assert doctor._render_extra(extra, 3, 24) == [
        "  ✔ x    aaaa 1.0, bbbb",
        "         1.0, cccc 1.0",
    ]
    assert doctor._render_extra(extra, 3, 60) == [
        "  ✔ x    aaaa 1.0, bbbb 1.0, cccc 1.0"
    ]
    old = doctor.Package("p", ">=2", "1.0", "too old", "p>=2 is needed, which is newer")
    found = doctor.Diagnosis({}, [], [extra, doctor.Extra("y", (old,), "pip")])
    lines = doctor.render_diagnosis(found, 20).splitlines()
    assert "p 1.0: p>=2 is" in lines and "needed, which is" in lines


def test_a_folder_can_be_written_if_the_nearest_one_there_can(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("ANISOSCOPE_DATA", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANISOSCOPE_GOLDEN", str(tmp_path / "golden"))
    (tmp_path / "home" / ".cache").mkdir(parents=True)
    asked = []

    def access(place, mode):
        asked.append((place, mode))
        return place != tmp_path

    monkeypatch.setattr(doctor.os, "access", access)
    found = {one["purpose"]: one for one in doctor._find_folders()}
    cache = tmp_path / "home" / ".cache"
    assert asked == [(cache, os.W_OK)] * 2 + [(tmp_path, os.W_OK)] * 2
    hub = found["cache of hub models and data (HF_HOME)"]
    assert (hub["path"], hub["writable"]) == (str(cache / "huggingface"), True)
    own = found["cache of Anisoscope (XDG_CACHE_HOME)"]
    assert (own["path"], own["there"]) == (str(cache / "anisoscope"), False)
    golden = found["fixtures for tests (ANISOSCOPE_GOLDEN)"]
    assert (golden["path"], golden["writable"]) == (str(tmp_path / "golden"), False)


def test_an_error_without_words_is_named_by_its_class(monkeypatch):
    from packaging.requirements import Requirement

    monkeypatch.setattr(doctor, "_find_version", lambda _: "1.0")
    found = doctor._examine_package(Requirement("p"), raising(OSError()))
    assert (found.status, found.reason) == ("broken", "OSError: OSError")
    found = doctor._examine_package(Requirement("p"), raising(OSError("x" * 300)))
    assert found.reason == f"OSError: {'x' * 200}"


# ---- signals and lines of progress


def test_a_line_is_cut_at_the_width_of_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(
        progress.shutil, "get_terminal_size", lambda: SimpleNamespace(columns=6)
    )
    progress._print_line("abcdefgh")
    assert capsys.readouterr().err == "abcdefgh\n", "a file has no width"
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    for text, line in (("abcdef", "abcdef"), ("abcdefg", "abcde…")):
        progress._print_line(text)
        assert capsys.readouterr().err == f"{line}\n"


def test_sigterm_ends_the_program_unless_it_has_a_handler(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with progress.exit_on_sigterm():
            with pytest.raises(Terminated) as caught:
                signal.raise_signal(signal.SIGTERM)
            assert caught.value.code == 143
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        for own in (lambda *_: None, signal.SIG_IGN):
            signal.signal(signal.SIGTERM, own)
            with progress.exit_on_sigterm():
                assert signal.getsignal(signal.SIGTERM) == own
            assert signal.getsignal(signal.SIGTERM) == own
    finally:
        signal.signal(signal.SIGTERM, before)
    started = threading.current_thread()
    monkeypatch.setattr(progress.threading, "main_thread", lambda: None)
    kept = signal.getsignal(signal.SIGTERM)
    with progress.exit_on_sigterm():
        assert signal.getsignal(signal.SIGTERM) == kept
    assert started is not None


def test_signals_wait_until_the_work_is_done_and_handlers_come_back():
    came = []
    before = {
        number: signal.signal(number, lambda got, _frame: came.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    own = {number: signal.getsignal(number) for number in before}
    try:
        with progress.deferred_signals() as stopped:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert stopped == [signal.SIGTERM, signal.SIGINT] and came == []
        assert came == [], "they are not raised again"
        assert {number: signal.getsignal(number) for number in own} == own

        def act():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            came.append("done")
            return "made"

        assert progress.call_uninterrupted(act) == "made"
        assert came == ["done", signal.SIGINT, signal.SIGTERM]
        with pytest.raises(ValueError), progress.deferred_signals():
            raise ValueError
        assert {number: signal.getsignal(number) for number in own} == own
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_bars_that_are_still_drawn_are_stopped_once():
    stopped = []
    bars = [SimpleNamespace(), SimpleNamespace()]

    class Bar:
        def stop(self):
            stopped.append(self)

    bars = [Bar(), Bar()]
    progress.DRAWN.update(bars)
    progress.end_bars()
    assert {*stopped} == {*bars} and len(stopped) == 2 and not progress.DRAWN


def test_progress_is_silent_a_line_or_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(progress, "is_animated", lambda: False)
    with progress.show_progress("work", "images", quiet=True) as update:
        update(1, 2)
        progress.remark(update, "text")
    with progress.show_spinner("work", quiet=True):
        pass
    assert capsys.readouterr().err == ""
    with progress.show_spinner("work", quiet=False):
        assert capsys.readouterr().err == "work …\n"
    with progress.show_progress("work", "images", quiet=False) as update:
        progress.remark(update, "text")
        update(2, 2)
    assert capsys.readouterr().err.splitlines() == ["text", "2/2 images: work"]


def test_a_bar_counts_begins_again_and_says_what_follows(monkeypatch):
    """The bar hears of a part, of its end, and of another part; it goes when the work is done."""
    seen = []
    monkeypatch.setattr(progress, "is_animated", lambda: True)
    with progress.show_progress("work", "images", quiet=False) as update:
        (bar,) = progress.DRAWN
        task = bar.tasks[0]
        assert task.description == "loading work …" and task.total is None
        for done, total in ((3, 0), (5, 8), (8, 8), (1, 4)):
            update(done, total)
            seen.append((task.completed, task.total, task.description))
        progress.set_counted_unit(update, "clips", "other")
        update(2, 4)
        seen.append((task.completed, task.description, task.fields["unit"]))
    assert not progress.DRAWN
    assert seen == [
        (3, None, "work"),
        (5, 8, "work"),
        (8, 8, "metrics and intervals of work …"),
        (1, 4, "work"),
        (2, "other", "clips"),
    ]


def test_a_line_of_progress_is_gone_from_the_terminal_at_the_end(monkeypatch):
    """The cursor goes up to the line and erases it, and nothing is printed after that."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    monkeypatch.setattr(progress, "is_animated", lambda: True)
    for name, value in (
        ("TERM", "xterm"),
        ("TTY_COMPATIBLE", "1"),
        ("TTY_INTERACTIVE", "1"),
    ):
        monkeypatch.setenv(name, value)
    with progress.show_spinner("work", quiet=False):
        pass
    assert "work …" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[1A\x1b[2K")


def test_a_folder_may_be_there_and_locked_or_not_there_and_writable():
    folder = {"purpose": "p", "path": "/f", "free": 1.4e9}
    assert doctor._render_folder(folder | {"there": True, "writable": False}) == [
        "  /f",
        "    p, 1 GB free, NOT WRITABLE",
    ]
    assert doctor._render_folder(folder | {"there": False, "writable": True}) == [
        "  /f (not there yet)",
        "    p, 1 GB free",
    ]
