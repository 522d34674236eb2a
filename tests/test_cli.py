"""The command line: help with an example, errors in one line with their exit code, interruption and resume."""

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import documentation
import pytest
from program import NO_PAGE, STOPPED, Program
from quick import BARE, quick

import anisoscope
from anisoscope import __main__, errors, metrics
from anisoscope.cli.app import EXIT_CODES
from anisoscope.cli.printed_tables import list_entries
from anisoscope.cli.reading import LISTS

COMMANDS = ("measure", "merge", "report", "compare", "list")
RUN = [sys.executable, "-m", "anisoscope"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*quick(BARE), "-m", "anisoscope", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, env=ENV
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    done = call(command, "--help")
    assert done.returncode == 0
    assert f"Example: anisoscope {command}" in " ".join(done.stdout.split())


TYPOS = [
    (
        ["measur"],
        2,
        "expected a command of anisoscope; got 'measur'. Cure: did you mean measure?",
    ),
    (
        ["measure", "--limmit", "3"],
        2,
        "expected an option of anisoscope measure; got --limmit. Cure: did you mean --limit?",
    ),
    (
        ["measure", "--zzz"],
        2,
        "got --zzz. Cure: anisoscope measure --help lists all options",
    ),
    (
        ["measure", "builtin:minilm", "more"],
        2,
        "expected fewer arguments after anisoscope measure; got 'more'",
    ),
    (
        ["merge", "runs/a", "runs/b"],
        2,
        "expected --output of anisoscope merge; got none. Cure: add it",
    ),
    (["compare"], 2, "expected runs of anisoscope compare; got none"),
    (
        ["measure", "--limit", "0"],
        2,
        "expected --limit of at least 1; got 0. Cure: raise --limit",
    ),
    (
        ["measure", "--limit", "many"],
        2,
        "expected a whole number for --limit; got 'many'. Cure: give one of at least 1",
    ),
    (
        ["measure", "--limit", "-3"],
        2,
        "expected --limit of at least 1; got -3. Cure: raise --limit",
    ),
    (
        ["measure", "--groups", "9" * 30],
        2,
        "expected --groups of at most 65,536; got 9",
    ),
    (
        ["measure", "--groups", "9" * 5000],
        2,
        "expected a whole number for --groups; got '9",
    ),
    (
        ["measure", "--spectrum-groups", str(1 << 63)],
        2,
        "expected --spectrum-groups of at most 65,536; got 9",
    ),
    (
        ["measure", "--sample", str(1 << 63)],
        2,
        "expected --sample of at most 2,147,483,648; got 9",
    ),
    (
        ["measure", "--seed", str(1 << 63)],
        2,
        "expected --seed of at most 9,223,372,036,854,775,807; got 9",
    ),
    (
        ["classes", "--few", "0x10"],
        2,
        "expected a whole number for --few; got '0x10'. Cure: give one of at least 1",
    ),
    (
        ["measure", "--limit"],
        2,
        "expected a value for --limit; got none. Cure: give one after --limit, or leave --limit out",
    ),
    (
        ["measure", "builtin:mini\x07lm"],
        2,
        r"expected --model without control characters, in UTF-8; got 'builtin:mini\x07lm'",
    ),
    (
        ["measure", "--corpus", "a\udc80.txt"],
        2,
        r"expected --corpus without control characters, in UTF-8; got 'a\udc80.txt'",
    ),
    (
        ["merge", "runs/a", "runs/b\x1b[31m", "-o", "runs/c"],
        2,
        r"got 'runs/b\x1b[31m'. Cure: correct or rename it",
    ),
    (["measure", "--shard", "3/2"], 2, "1 ≤ I ≤ N"),
    (["measure"], 2, "builtin:minilm would be measured on all of builtin:python-docs"),
    (
        ["measure", "--quiet", "-o", "runs/mine"],
        2,
        "measure --corpus builtin:python-docs --limit 40",
    ),
    (["measure", "builtin:minilmm"], 3, "did you mean builtin:minilm?"),
    (["measure", "./nowhere"], 3, "which is not there"),
    (
        ["measure", "--corpus", "builtin:python-dox"],
        4,
        "did you mean builtin:python-docs",
    ),
    (["measure", "--corpus", "no-such-file.txt"], 4, "which is not there"),
    (["measure", "--panel", "hiden"], 2, "did you mean hidden?"),
    (["measure", "--panel", ","], 2, "name some of hidden, spectrum, attention"),
    (["measure", "--tokens", "contnt"], 2, "did you mean content?"),
    (["measure", "--device", "cudda"], 2, "did you mean cuda"),
    (["measure", "--device", "meta"], 2, "Cure: use --device cpu, cuda or mps"),
    (["classes", "--device", "meta:0"], 2, "Cure: use --device cpu, cuda or mps"),
    (["measure", "--dtype", "float23"], 2, "did you mean float32"),
    (["measure", "--flatten", "positon"], 2, "did you mean position?"),
    (["measure", "--format", "jsn"], 2, "did you mean json?"),
    (["classes", "--at", "middle"], 2, "first, last, mean"),
    (["classes", "--parts", "direction"], 2, "did you mean directions?"),
    (["merge", "runs/a", "-o", "runs/b"], 2, "name the folders of all shards"),
    (["compare", "runs/a"], 2, "at least two run folders"),
    (["measure", "--device", "gpu"], 2, "use cuda"),
    (["list", "metric"], 2, "did you mean metrics?"),
    (["report", "/nonexistent"], 6, "name a folder that anisoscope measure wrote"),
]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    TYPOS,
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_errors_are_one_line_with_a_cure_before_anything_heavy_is_loaded(
    words: list[str], code: int, text: str
) -> None:
    check_error(words, code, text)


def check_error(words: list[str], code: int, text: str) -> None:
    """Typos in names and options were told after six seconds of imports."""
    check = (
        "import sys, anisoscope.__main__ as m\ntry: m.main()\nfinally: "
        "print(*{'torch', 'scipy'} & set(sys.modules))"
    )
    command = [*quick(BARE), "-c", check, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENV)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() == "", "loaded"


LIGHT = [*(["list", what] for what in LISTS), ["--help"], ["measure", "--help"]]


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_what_is_only_looked_up_loads_nothing_heavy(words: list[str]) -> None:
    check_light(words)


def check_light(words: list[str], *more: str) -> None:
    """`list studies` imported every study, with torch and transformers: seven seconds."""
    heavy = {"torch", "scipy", "transformers", "altair", *more}
    check = f"import sys, anisoscope.__main__ as m\ntry: m.main()\nfinally: print('loaded', *{heavy} & set(sys.modules))"  # noqa: E501
    command = [*quick(BARE), "-c", check, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENV)
    assert done.stdout.splitlines()[-1] == "loaded"


def test_what_is_listed_is_what_there_is() -> None:
    """Lists are read from files, without importing what they name."""
    assert [name for name, _ in list_entries("metrics").rows] == sorted(
        metrics.find_all()
    )


def test_an_unforeseen_error_says_that_it_is_a_bug() -> None:
    code = "import anisoscope.__main__ as m, anisoscope.cli.printed_tables as t\nt.list_entries = None\nm.main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "list", "models"],
        capture_output=True,
        text=True,
        check=False,
        env=ENV,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "Please report it with the command and the lines above."
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(
        "\n\n".join(
            f"Paragraph {i} of a text that goes on for a while. " * 8 for i in range(8)
        )
    )
    return path


def _measure(corpus: Path, output: Path, *more: str) -> list[str]:
    words = [
        "measure",
        "--corpus",
        str(corpus),
        "--output",
        str(output),
        "--panel",
        "hidden",
        "--sample",
        "16",
    ]
    return [
        *RUN,
        *words,
        "--batch-tokens",
        "64",
        "--max-length",
        "64",
        "--quiet",
        *more,
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_run_that_goes_on(
    program: Program, corpus: Path, tmp_path: Path, number: int
) -> None:
    output = tmp_path / "run"
    words = _measure(corpus, output)[len(RUN) :]
    ended = program(words, setup=STOPPED.format(number=int(number)))
    assert ended.code == 128 + number, ended.shown
    told, _, again = ended.told.strip().splitlines()[-1].partition("; to go on: ")
    assert told == f"anisoscope: interrupted; {output} holds what is measured"
    assert again == shlex.join(["anisoscope", *words, "--resume"])
    assert (output / "state.0.safetensors").exists()
    if number == signal.SIGINT:
        return
    refused = program(words)
    assert refused.code == 6 and "add --resume" in refused.told
    done = program([*words, "--resume"], setup=NO_PAGE)
    assert done.code == 0, done.shown
    assert (output / "manifest.json").exists()
    assert not (output / "state.0.safetensors").exists()


def test_a_full_disk_is_told_and_leaves_no_half_run(
    program: Program, corpus: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    full = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    )
    ended = program(_measure(corpus, output, "--limit", "2")[len(RUN) :], setup=full)
    assert ended.code == 6, ended.shown
    assert "Cure: free space" in ended.told
    assert "Traceback" not in ended.told
    assert not (output / "manifest.json").exists()


def test_exit_codes_and_environment_variables_are_in_the_docs() -> None:
    codes = {
        error.exit_code
        for error in vars(errors).values()
        if hasattr(error, "exit_code")
    }
    assert codes <= EXIT_CODES.keys()
    sources = "".join(
        path.read_text("utf-8")
        for path in Path(anisoscope.__file__).parent.rglob("*.py")
    )
    assert (
        set(re.findall(r"ANISOSCOPE_[A-Z]+", sources))
        <= documentation.ENVIRONMENT.keys()
    )


def test_a_dry_run_says_which_folders_of_a_pattern_are_not_there(
    tmp_path: Path,
) -> None:
    """A pattern of six folders listed six checkpoints where three exist."""
    for step in (0, 2, 4):
        (tmp_path / f"step-{step}").mkdir()
    shown = call("measure", f"{tmp_path}/step-{{0..5}}", "--dry-run").stdout
    missing = [
        line.split()[3] for line in shown.splitlines() if "no such folder" in line
    ]
    assert missing == ["1", "3", "5"]


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.ELOOP])
def test_a_name_that_the_system_refuses_is_no_bug(number):
    text, code = __main__._explain_error(OSError(number, os.strerror(number), "x"))
    assert code == 2 and "got x …" in text and "check the name" in text
