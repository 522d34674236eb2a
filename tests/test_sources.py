"""A hash of what source code means: comments, docstrings and layout leave it, everything else moves it."""

import json
import os
import subprocess
import sys
import types

import pytest

from anisoscope.provenance import sources

PLAIN = '''\
"""A module."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from other import Name


class Shape:
    """A shape."""

    sides = 3
    """How many."""

    def area(self, x: float = 2.0) -> float:
        """Its area."""
        return math.pi * x**2  # roughly


def text():
    """Nothing else."""
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write files of a package `shapes_of_a_test`, and hash what its modules mean."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    sources._load_parse_cache.cache_clear()
    folder = tmp_path / "shapes_of_a_test"
    folder.mkdir()
    clock = iter(range(1, 1000))

    def write(**files):
        for name, text in files.items():
            path = (
                folder
                / f"{name.replace('inner_', 'inner/').replace('init', '__init__')}.py"
            )
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            now = next(clock)  # two files may be written within one tick of the clock
            os.utime(path, ns=(now, now))
        sources._find_folders_of_package.cache_clear()

    def hashed(*roots):
        found = sources.hash_modules(
            [f"shapes_of_a_test.{root}" for root in roots], is_own
        )
        return {
            name.removeprefix("shapes_of_a_test").removeprefix("."): meaning
            for name, meaning in found.items()
        }

    def is_own(name):
        return name.partition(".")[0] == "shapes_of_a_test"

    yield types.SimpleNamespace(write=write, hashed=hashed, folder=folder)
    sources._load_parse_cache.cache_clear()
    sources._find_folders_of_package.cache_clear()


SAME = {
    "a comment": PLAIN.replace("# roughly", "# the area of a circle, in fact"),
    "no comment": PLAIN.replace("  # roughly", ""),
    "docstring of the module": PLAIN.replace("A module.", "Another text."),
    "docstring of a class": PLAIN.replace('"""A shape."""', ""),
    "docstring of a method": PLAIN.replace(
        '"""Its area."""', '"""The area,\n\n        in metres."""'
    ),
    "docstring of a field": PLAIN.replace('    """How many."""\n', ""),
    "blank lines": PLAIN.replace("\n\n", "\n\n\n"),
    "layout": PLAIN.replace("math.pi * x**2", "(math.pi\n            * x ** 2)"),
    "quotes and prefix": PLAIN.replace(
        '"""Nothing else."""', "'''Nothing\n    at all.'''"
    ),
    "what type checkers import": PLAIN.replace(
        "from other import Name", "from another import Thing"
    ),
    "how a number is written": PLAIN.replace("2.0", "2.00"),
}
OTHER = {
    "a constant": PLAIN.replace("2.0", "2.5"),
    "another type of number": PLAIN.replace("2.0", "2"),
    "an operator": PLAIN.replace("x**2", "x*2"),
    "a name": PLAIN.replace("math.pi", "math.e"),
    "order": PLAIN.replace("math.pi * x**2", "x**2 * math.pi"),
    "a statement less": PLAIN.replace("        return math.pi * x**2  # roughly\n", ""),
    "a field": PLAIN.replace("sides = 3", "sides = 4"),
    "a condition": PLAIN.replace("if TYPE_CHECKING:", "if not TYPE_CHECKING:"),
    "what runs where no type checker does": PLAIN.replace(
        "    from other import Name\n",
        "    from other import Name\nelse:\n    Name = int\n",
    ),
    "an import": PLAIN.replace("import math", "import cmath as math"),
    "a decorator": PLAIN.replace("class Shape", "@print\nclass Shape"),
    "a text that is used": PLAIN.replace(
        '"""Nothing else."""', 'return "Nothing else."'
    ),
    "what is below and above": PLAIN.replace("math.pi * x**2", "(math.pi * x)**2"),
}


@pytest.mark.parametrize("name", SAME)
def test_what_never_runs_leaves_the_hash(name, package):
    assert SAME[name] != PLAIN or name == "quotes and prefix"
    package.write(a=PLAIN)
    before = package.hashed("a")
    package.write(a=SAME[name])
    assert package.hashed("a") == before


def test_everything_else_moves_it(package):
    found = {}
    for name, text in {"as it is": PLAIN, **OTHER}.items():
        package.write(a=text)
        found[name] = package.hashed("a")["a"]
    assert len(set(found.values())) == len(found)


def test_modules_that_are_imported_count_and_no_others(package):
    package.write(
        init="",
        a="from shapes_of_a_test import b\nfrom shapes_of_a_test.inner.c import thing\nimport json",
        b="def late():\n    from shapes_of_a_test.d import x\n    return x",
        d="x = 1",
        e="from shapes_of_a_test import a",
        inner_init="",
        inner_c="from . import f\nfrom ..g import y\nthing = 1",
        inner_f="",
        g="y = 2",
        h="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shapes_of_a_test import e",
    )
    assert set(package.hashed("a")) == {
        "",
        "a",
        "b",
        "d",
        "inner",
        "inner.c",
        "inner.f",
        "g",
    }
    assert set(package.hashed("e")) == {*package.hashed("a"), "e"}
    assert set(package.hashed("h")) == {"", "h"}
    before = package.hashed("a")
    package.write(d="x = 3", e="")
    after = package.hashed("a")
    assert [name for name in after if after[name] != before[name]] == ["d"]


def test_what_was_hashed_is_known_to_be_as_it_was(package):
    package.write(init="", a=PLAIN, b="x = 1")
    hashes = {
        f"shapes_of_a_test.{name}": meaning
        for name, meaning in package.hashed("a", "b").items()
        if name
    }
    assert sources.are_unchanged(hashes)
    package.write(a=SAME["a comment"])
    assert sources.are_unchanged(hashes)
    package.write(b="x = 2")
    assert not sources.are_unchanged(hashes)
    assert not sources.are_unchanged({"shapes_of_a_test.gone": "0"})
    package.write(c="def broken(:")
    broken = package.hashed("c")
    package.write(c="def broken(;")
    assert (
        package.hashed("c") != broken
    )  # nothing is raised for a file that is no Python


def test_another_process_finds_what_was_parsed(package, monkeypatch):
    """And a damaged or foreign file in its place is no error."""
    package.write(init="", a=PLAIN)
    first = package.hashed("a")
    memory = sources._find_parse_cache()
    assert len(json.loads(memory.read_text())) == 2
    for text in (None, "{", "[]", '{"x": 1}', '{"x": [1, 2]}'):
        if text is not None:
            memory.write_text(text)
        sources._load_parse_cache.cache_clear()
        sources._read_module.cache_clear()
        with monkeypatch.context() as patch:
            if text is None:
                patch.setattr(
                    sources, "_parse_source", lambda _: pytest.fail("parsed again")
                )
            assert package.hashed("a") == first
    monkeypatch.setattr(
        sources,
        "_find_parse_cache",
        lambda: package.folder / "__init__.py" / "below a file",
    )
    package.write(a=OTHER["a name"])
    assert package.hashed("a") != first


def test_functions_without_a_file_count_with_those_that_they_call():
    """As in a notebook, where no module has a file."""

    def made(helper="x + 1", body="helper(x) * 2", comment=""):
        module = {"__name__": "a_session"}
        exec(
            f"def helper(x):\n    return {helper}\ndef unused(x):\n    return x{comment}\n",
            module,
        )
        exec(f"def own(x):\n    return [{body} for _ in [0]]\n", module)
        return sources.hash_function(module["own"])

    assert made() == made(comment=" - 1")
    assert (
        len({made(), made(helper="x + 2"), made(body="helper(x) * 3"), made(body="x")})
        == 4
    )


def test_a_function_with_a_file_counts_without_its_comments(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    texts = ("x + 1", "x + 1  # more", "x + 2")
    for number, text in enumerate(texts):
        (tmp_path / f"own_{number}.py").write_text(f"def f(x):\n    return {text}\n")
        found.append(sources.hash_function(__import__(f"own_{number}").f))
    assert found[0] == found[1] != found[2]


def test_hashing_loads_nothing_heavy_and_imports_no_module():
    code = """
import sys
from anisoscope.provenance import sources
found = sources.hash_modules(["anisoscope.measure.loop"], lambda name: name.startswith("anisoscope."))
assert len(found) > 20, found
print([name for name in sys.modules if name.split(".")[0] in ("torch", "transformers", "numpy")])
ours = {name.split(".")[1] for name in sys.modules if name.startswith("anisoscope.")}
print(sorted(ours - {"errors", "provenance", "registry"}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["[]", "[]"]
