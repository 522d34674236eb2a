"""The code in a run's identity: what a run really used, by meaning; a comment resumes, a changed formula is refused."""

import ast
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from program import WITHOUT_PAGE
from quick import quick

import anisoscope
from anisoscope import provenance
from anisoscope.errors import UsageError
from anisoscope.measure.settings import Settings
from anisoscope.metrics import find_all as metrics_found
from anisoscope.provenance.sources import hash_function
from anisoscope.runs.job import Job
from anisoscope.runs.run_cache import find_finished
from anisoscope.store import write_json

PACKAGE = provenance.PACKAGE
EACH = {
    "text": """
from transformers import BertConfig, BertModel, AutoTokenizer
from anisoscope.models.packaged import builtin_folder
tokenizer = AutoTokenizer.from_pretrained(builtin_folder("builtin:minilm"))
shape = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
more = dict(limit=3, output="run")
run = anisoscope.measure(BertModel(BertConfig(vocab_size=len(tokenizer), **shape)), processor=tokenizer, **more)
""",
    "image": """
from transformers import ViTConfig, ViTModel, ViTImageProcessorPil
shape = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16)
model = ViTModel(ViTConfig(patch_size=8, **shape))
processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
run = anisoscope.measure(model, processor=processor, limit=20, panel="hidden", output="run")
""",
    "vectors": """
import numpy
x = numpy.random.default_rng(0).normal(size=(60, 8))
run = anisoscope.measure(x, labels=["a", "b"] * 30, panel="hidden", output="run")
""",
    "inputs": """
import torch
encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 1)
more = dict(blocks="TransformerEncoderLayer", output="run")
run = anisoscope.measure(encoder, [torch.randn(8, 5, 16)], panel="hidden", **more)
""",
}
TOLD = """
import json, sys
identity = json.loads((run.folder / "identity.json").read_text())
makes = {f"anisoscope.{name}" for name in anisoscope.provenance.NUMBERS}
loaded = [name for name in sys.modules if ".".join(name.split(".")[:2]) in makes]
metrics = sorted({name.partition(".")[0] for name in run.records["metric"]})
print(json.dumps({"code": sorted(identity["code"]), "loaded": loaded, "metrics": metrics}))
"""


@pytest.mark.parametrize("kind", EACH)
def test_no_module_that_a_run_used_is_missing(kind, tmp_path):
    """What is imported in a fresh process that makes one run, but for metrics that were not chosen."""
    code = f"import anisoscope, anisoscope.provenance\n{EACH[kind]}{TOLD}"
    done = subprocess.run(
        [*quick(), "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    idle = IDLE | {
        f"anisoscope.metrics.{name}"
        for name in metrics_found()
        if name not in told["metrics"]
    }
    assert not (lacking := set(told["loaded"]) - set(told["code"]) - idle), ", ".join(
        lacking
    )
    assert {
        "anisoscope.metrics.mean_cosine",
        "anisoscope.sums.groups",
        "anisoscope.sums.jackknife",
    } <= set(told["code"])
    others = {
        "text": "data.speech",
        "image": "data.speech",
        "vectors": "data.images",
        "inputs": "data.images",
    }
    assert f"anisoscope.{others[kind]}" not in told["code"]
    assert ("anisoscope.data.images" in told["code"]) == (kind == "image")


STATEMENT = "\n\nunused = 1\n"
"""At the end of a file."""
IDLE = {
    f"anisoscope.{name}"
    for name in (
        "data.items",
        "data.media",
        "data.check_names",
        "data.in_memory",
        "models.download",
        "models.series",
    )
}
IDLE |= {
    f"anisoscope.data.vector_{name}" for name in ("files", "json", "roles", "tables")
}
"""Loaded by the way, and no part of any number: they check names, look whether a finished run lies there, and read
files of vectors and tables in memory, every number and text of which is part of the plan.
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package, a run of vectors begun with it, and what a second start with an edited copy gives."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        PACKAGE, root / "anisoscope", ignore=shutil.ignore_patterns("__pycache__")
    )
    np.save(root / "x.npy", np.random.default_rng(0).normal(size=(40, 6)) + 1)
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "ANISOSCOPE_CACHE": str(root / "cache"),
    }
    command = [
        *quick(),
        "-c",
        WITHOUT_PAGE,
        "measure",
        "x.npy",
        "--panel",
        "hidden",
        "-o",
        "run",
        "--quiet",
    ]

    def again(*more):
        done = subprocess.run(
            [*command, *more], cwd=root, env=environment, capture_output=True, text=True
        )
        return SimpleNamespace(
            code=done.returncode, said=" ".join((done.stdout + done.stderr).split())
        )

    def edited(edits):
        before = {}
        for name, (old, new) in edits.items():
            path = root / "anisoscope" / name
            text = before[path] = path.read_text()
            assert old in text, f"{old!r} stands no longer in {name}"
            path.write_text(text.replace(old, new, 1) if old else text + new)
        try:
            return again("--resume")
        finally:
            for path, text in before.items():
                path.write_text(text)

    first = again()
    assert first.code == 0, first.said
    return SimpleNamespace(edited=edited, manifest=root / "run" / "manifest.json")


def test_what_no_number_depends_on_resumes(copy):
    """A docstring, a comment, layout; and code of other runs: of the spectrum, of speech, of a page."""
    before = copy.manifest.stat().st_mtime_ns
    edits = {
        "metrics/mean_cosine.py": ('"""', '"""Another line. '),
        "sums/jackknife.py": ("\n\n", "\n\n# a comment\n"),
        "measure/loop.py": ("\n\ndef ", "\n\n\n\ndef "),
        "metrics/spectrum.py": ("", STATEMENT),
        "data/speech.py": ("", STATEMENT),
        "report/page.py": ("", STATEMENT),
    }
    done = copy.edited(edits)
    assert done.code == 0, done.said
    assert copy.manifest.stat().st_mtime_ns == before  # not measured again


def test_a_changed_formula_is_refused_by_name(copy):
    edits = {
        "metrics/drift.py": ("", STATEMENT),
        "sums/jackknife.py": ("(groups - 1) / groups", "groups / (groups - 1)"),
        "data/arrays.py": ("", STATEMENT),
    }
    done = copy.edited(edits)
    assert (
        done.code != 0 and "Traceback" not in done.said and "--overwrite" in done.said
    )
    named = [
        f"code.anisoscope.{name}"
        for name in ("data.arrays", "metrics.drift", "sums.jackknife")
    ]
    assert f"another run ({', '.join(named)} differ)" in done.said


def test_a_finished_run_is_found_only_while_its_code_is_the_same(tmp_path):
    """Before model and corpus are loaded."""
    code = provenance.hash_code("anisoscope.metrics.drift")
    folders = []
    for number, told in enumerate(
        (code, code | {"anisoscope.metrics.drift": "other"}, {}, None, "x")
    ):
        folder = tmp_path / str(number)
        write_json(folder / "manifest.json", {"asked": "key"})
        write_json(folder / "identity.json", {} if told is None else {"code": told})
        folders.append(folder)
    assert find_finished("key", folders).folder == folders[0]
    assert (
        find_finished("key", folders[1:]) is None
        and find_finished("other", folders) is None
        and find_finished(None, folders) is None
    )


def test_metrics_that_are_chosen_are_in_the_identity_and_no_others():
    plan = SimpleNamespace(fingerprint="p")
    subject = SimpleNamespace(
        model=tiny.model("bert"), processor=None, weights_sha256="w", form="f"
    )

    def modules(**settings):
        found = Job(settings=Settings(**settings)).identity(subject, plan)["code"]
        return {
            name.rpartition(".")[2]
            for name in found
            if name.startswith("anisoscope.metrics.")
        }

    assert "spectrum" not in modules(panel=("hidden",)) and "spectrum" in modules(
        panel=("spectrum",)
    )
    assert modules(metrics=("drift",)) - {"drift"} == modules(metrics=("norms",)) - {
        "norms"
    }


def np_free(x):
    return x


def test_a_metric_of_a_session_counts_by_what_it_computes(tmp_path, monkeypatch):
    """In a notebook there is no file; a module of one's own counts with what it imports of the same package."""

    def made(text):
        session = {"__name__": "__main__"}
        exec(f"def compute(totals):\n    return {text}\n", session)
        return provenance.hash_code_used(session["compute"])

    assert list(made("1")) == ["__main__.compute()"] and made("1") == made("1") != made(
        "2"
    )
    assert made("totals.x") != made("totals.y")  # names of attributes are read as such
    assert __name__ in provenance.hash_code_used(partial(np_free, 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "own_metrics_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "help.py").write_text("from anisoscope.metrics.base import ratio\n")
    (folder / "one.py").write_text(
        "from own_metrics_of_a_test import help\ndef compute(totals): ...\n"
    )
    (folder / "two.py").write_text("")
    from own_metrics_of_a_test.one import compute

    names = set(provenance.hash_code_used(compute))
    assert {
        "own_metrics_of_a_test.one",
        "own_metrics_of_a_test.help",
        "anisoscope.metrics.base",
    } <= names
    assert "own_metrics_of_a_test.two" not in names


SESSION = """
import numpy as np
from functools import partial
SCALE = {scale}
TABLE = np.array([1.0, {scale}])
class Later: ...
unused = Later()
def half(x, by={scale}): return x / by
def outer(power):
    def inner(totals): return totals.SCALE ** power
    return inner
def plain(totals): return 1
def with_number(totals): return SCALE * totals.unused
def with_array(totals): return np.dot(TABLE, totals)
def with_function(totals): return half(totals)
def with_name_of_another(totals): return np.linalg.norm(totals)
def with_object(totals): return unused
made_inside = outer({scale})
with_argument = partial(half, by={scale})
def scaled(totals, by): return totals / by
with_keyword_alone = partial(scaled, by={scale})
with_place_alone = partial(scaled, {scale})
"""


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("plain", False),
        ("with_name_of_another", False),
        ("with_number", True),
        ("with_array", True),
        ("with_function", True),
        ("made_inside", True),
        ("with_argument", True),
        ("with_keyword_alone", True),
        ("with_place_alone", True),
    ],
)
def test_what_a_function_of_a_session_uses_counts(name, changes):
    """A constant that was changed between two cells left the identity of a run as it was."""
    found = []
    for scale in (2, 2, 3):
        session = {"__name__": "__main__"}
        exec(SESSION.format(scale=scale), session)
        found.append(hash_function(session[name]))
    assert found[0] == found[1] and (found[0] != found[2]) == changes


def test_a_function_of_a_session_that_cannot_be_told_from_another_is_refused():
    session = {"__name__": "__main__"}
    exec(SESSION.format(scale=2), session)
    with pytest.raises(
        UsageError,
        match=r"got 'unused', of Later. Cure: put it into a file.*module:NAME",
    ):
        hash_function(session["with_object"])


def test_classes_of_extensions_count_and_foreign_ones_do_not(monkeypatch):
    monkeypatch.setattr(provenance, "list_packages", lambda: frozenset({"tiny"}))
    kind = type("Model", (), {"__module__": "tiny"})
    assert "tiny" in provenance.hash_code_used(kind)
    assert provenance.hash_code_used(type("Model", (), {"__module__": "json"})) == {}
    assert "json" not in provenance.hash_code_used(kind, "anisoscope.sums.groups")


def test_a_comment_in_the_file_of_a_model_of_ones_own_leaves_its_form(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    from importlib import import_module, invalidate_caches

    from anisoscope.models.identity import hash_own_sources

    text = "import torch\nclass Own(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    found = []
    for number, written in enumerate(
        (text, text.replace("x + 1", "x + 1  # a comment"), text.replace("+ 1", "+ 2"))
    ):
        (tmp_path / f"own_model_{number}.py").write_text(written)
        invalidate_caches()
        found.append(hash_own_sources(import_module(f"own_model_{number}").Own()))
    assert found[0] == found[1] != found[2] and len(found[0]) == 1


def test_import_stays_light():
    code = "import sys, anisoscope; print([n for n in sys.modules if n.startswith('anisoscope.') or n == 'ast'])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )
    assert anisoscope.__version__


def test_a_fault_of_the_parser_is_met_by_a_second_try(monkeypatch):
    """CPython 3.11: "AST constructor recursion depth mismatch", once in dozens of runs of the suite."""
    from anisoscope.provenance import sources

    answers = [
        SystemError("AST constructor recursion depth mismatch"),
        ast.parse("x = 1"),
    ]

    def parse(_written):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    expected = sources._parse_source(b"x = 1")
    monkeypatch.setattr(sources.ast, "parse", parse)
    assert sources._parse_source(b"x = 1") == expected
