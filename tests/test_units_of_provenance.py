"""What code, commit and command a run names: which modules, words and files, each on a few lines of source."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anisoscope import provenance
from anisoscope.errors import UsageError
from anisoscope.provenance import sources

# ---- meaning of a source ---------------------------------------------------------------------------------------------

BASE = """
def f(x, y=1):
    if x > y:
        return [x, y]
    return g(x)
"""


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        (BASE.replace("def f", "# a remark\ndef f"), True),
        (BASE.replace("    if", '    """Say something."""\n    if'), True),
        ('"""A module."""\n' + BASE, True),
        (BASE.replace("return [x, y]", "return [\n            x,\n            y,\n        ]"), True),
        (BASE + '\n"a bare text"\n', True),
        (BASE + "\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\n", False),
        (BASE.replace("y=1", "y=2"), False),
        (BASE.replace("y=1", "y=1.0"), False),
        (BASE.replace("y=1", "y=True"), False),
        (BASE.replace("[x, y]", "[y, x]"), False),
        (BASE.replace("[x, y]", "[[x], y]"), False),
        (BASE.replace("[x, y]", "(x, y)"), False),
        (BASE.replace("x > y", "x >= y"), False),
        # What runs only if the condition holds, and what always runs.
        (BASE.replace("    return g(x)", "        return g(x)"), False),
        (BASE.replace("g(x)", "g(x, x)"), False),
        (BASE.replace("g(x)", "h(x)"), False),
        (BASE.replace("x, y=1", "x, *, y=1"), False),
        (BASE.replace("return g(x)", "return 'g'"), False),
        (BASE + "\nimport a\n", False),
        (BASE.replace("y=1)", "y=1, /)"), False),
    ],
)  # fmt: skip
def test_what_changes_the_meaning_of_a_source(tmp_path, changed, same):
    (tmp_path / "a.py").write_text(BASE)
    (tmp_path / "b.py").write_text(changed)
    ours, theirs = (sources.hash_file(tmp_path / name) for name in ("a.py", "b.py"))
    assert (ours == theirs) is same and len(ours) == sources.DIGITS
    # Without what earlier tests left in the cache of parsed files.
    first, second = (sources._parse_source(x.encode())[0] for x in (BASE, changed))
    assert (first == second) is same


def test_only_type_checkers_import_what_is_under_their_name():
    """The other branch runs; an attribute of `typing` is the same name."""
    for name in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        text = f"if {name}:\n    import a\nelse:\n    import b, c.d\n"
        _, found = sources._parse_source(text.encode())
        assert found == [(0, "b", []), (0, "c.d", [])]
    _, found = sources._parse_source(b"if OTHER:\n    import a\n")
    assert found == [(0, "a", [])]
    _, found = sources._parse_source(b"from ..x import y, z\nfrom . import w\n")
    assert found == [(2, "x", ["y", "z"]), (1, "", ["w"])]
    meaning, found = sources._parse_source(b"def broken(:\n")
    other, _ = sources._parse_source(b"def broken(::\n")
    assert found == [] and meaning != other


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `own` whose modules import each other in every way, and a module `single`."""
    files = {
        "own/__init__.py": "",
        "own/first.py": "from . import second\nfrom .inner.deep import value\nimport own.lonely\n",
        "own/second.py": "import single\nfrom own.inner import deep as other\n",
        "own/lonely.py": "X = 1\n",
        "own/unused.py": "X = 1\n",
        "own/inner/__init__.py": "from .. import unrelated_name\n",
        "own/inner/deep.py": "from ..late import f\nvalue = 1\n",
        "own/late.py": "from own import first\ndef f(): return 1\n",
        "single.py": "import own.unused\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    sources._find_folders_of_package.cache_clear()
    yield tmp_path
    sources._find_folders_of_package.cache_clear()


def test_all_that_a_module_imports_is_found(package):
    def found(*roots, counts=lambda name: name.startswith("own")):
        return sources.hash_modules(roots, counts)

    every = {"own", "own.first", "own.second", "own.inner", "own.inner.deep", "own.lonely", "own.late"}  # fmt: skip
    hashes = found("own.first")
    assert set(hashes) == every and list(hashes) == sorted(every)
    # `single` does not count, and what only it imports neither
    assert set(found("own.first", counts=lambda _: True)) == every | {"single", "own.unused"}  # fmt: skip
    assert set(found("own.lonely")) == {"own", "own.lonely"}
    assert set(found("own.lonely", counts=lambda _: False)) == {"own.lonely"}
    assert found("_json", counts=lambda _: False) == {"_json": sources.UNKNOWN}
    (package / "own" / "late.py").write_text(
        "from own import first\ndef f(): return 2\n"
    )
    again = found("own.first")
    assert {name for name in every if again[name] != hashes[name]} == {"own.late"}
    assert sources.are_unchanged(again) and not sources.are_unchanged(hashes)
    assert not sources.are_unchanged({"own.gone": "x"})
    (package / "own" / "late.py").write_text("# a remark\nfrom own import first\ndef f(): return 2\n")  # fmt: skip
    assert sources.are_unchanged(again)


def test_files_of_modules_packages_and_single_files(package):
    find = sources.find_file
    assert find("own") == package / "own" / "__init__.py"
    assert find("own.inner") == package / "own" / "inner" / "__init__.py"
    assert find("own.inner.deep") == package / "own" / "inner" / "deep.py"
    assert find("single") == package / "single.py"
    assert (
        find("own.gone") is None and find("single.x") is None and find("math") is None
    )
    assert sources._list_with_packages("a.b.c") == ["a", "a.b", "a.b.c"]


@pytest.mark.parametrize(
    ("statement", "of", "names"),
    [
        ((0, "own.second", []), "elsewhere", ["own.second"]),
        ((0, "own", ["first", "nothing"]), "elsewhere", ["own", "own.first"]),
        ((1, "", ["first"]), "own", ["own", "own.first"]),
        ((1, "inner", ["deep"]), "own", ["own.inner", "own.inner.deep"]),
        ((2, "", ["late"]), "own.inner", ["own", "own.late"]),
        ((2, "late", ["f"]), "own.inner", ["own.late"]),
    ],
)
def test_modules_that_an_import_may_mean(package, statement, of, names):
    assert package.is_dir() and list(sources._resolve_import(statement, of)) == names


# ---- functions -------------------------------------------------------------------------------------------------------

LEVEL = 3


def helper(x):
    return x + LEVEL


def make(inner=2, used=helper):
    def function(x, *, more=inner):
        return used(x) + more + len(sys.argv) + np.sum(x)

    return function


def test_a_function_is_hashed_with_all_it_uses(monkeypatch):
    first = sources.hash_function(make())
    assert sources.hash_function(make()) == first
    assert sources.hash_function(make(inner=3)) != first
    assert sources.hash_function(make(used=abs)) != first
    partial = functools.partial(make(), more=5)
    other = functools.partial(make(), more=6)
    prints = {first, sources.hash_function(partial), sources.hash_function(other)}
    assert len(prints) == 3
    monkeypatch.setattr(sys.modules[__name__], "LEVEL", 4)
    assert sources.hash_function(make()) != first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0), (1, "1"), (True, 1), (None, "None"), ((1, 2), [1, 2]), ((1, 2), (2, 1)),
        ({1, 2}, {1, 3}), ({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ((1, (2,)), (1, (3,))),
        (np.arange(3), np.arange(4)), (np.arange(4), np.arange(4).reshape(2, 2)),
        (np.arange(3), np.arange(3.0)), (np.zeros(2, int), np.zeros(2)), (sys, json), (len, abs), (b"a", "a"),
    ],
)  # fmt: skip
def test_values_that_a_function_uses_are_kept_apart(one, other):
    identify = sources._identify_value
    assert identify("x", one) == identify("x", one) != identify("x", other)
    assert identify("x", one) != identify("y", one)
    assert identify("x", {3, 1, 2}) == identify("x", {2, 3, 1})
    # These two sets give their members in unlike orders.
    assert identify("x", {0, 8}) == identify("x", {8, 0})
    assert identify("x", frozenset((0, 8))) == identify("x", {8, 0})


def test_a_value_that_nobody_can_identify_is_refused():
    class Odd:
        pass

    for value in (Odd(), [Odd()], {"a": Odd()}, np.array([Odd()], object)):
        with pytest.raises(UsageError, match=r"texts, arrays and lists.*module:NAME"):
            sources._identify_value("x", value)
    # A class that was typed has a name, but no file by which the name would identify it.
    Odd.__module__ = "__main__"
    with pytest.raises(UsageError) as caught:
        sources._identify_value("x", Odd)
    assert str(caught.value) == (
        "expected a function typed into a session that uses functions, numbers, texts, arrays and lists of these; "
        "got 'x', of type. Cure: put it into a file, which is identified by its source, and name it module:NAME"
    )


def in_session(text, **known):
    """A function of a session that keeps no source, with what it may use."""
    names = {"__name__": "__main__", **known}
    exec(compile(text, "<session>", "exec"), names)
    return names["f"]


@pytest.mark.parametrize(
    "changed",
    [
        "def f(x): return x.b + 1",
        "def f(x): return x.a + 2",
        "def f(x): return x.a - 1",
        "def f(x):\n    def g(): return x.a\n    return g",
        "def f(x):\n    def g(): return x.b\n    return g",
        "def f(x):\n    def g(): return x.b, 3\n    return g",
    ],
)
def test_a_function_without_source_is_known_by_its_compiled_code(changed):
    first = sources.hash_function(in_session("def f(x): return x.a + 1"))
    assert first == sources.hash_function(in_session("def f(x): return x.a + 1"))
    other = sources.hash_function(in_session(changed))
    assert other != first
    inner = sources.hash_function(in_session("def f(x):\n    def g(): return x.c\n    return g"))  # fmt: skip
    assert other != inner


def test_what_an_inner_function_reads_counts_and_circles_end():
    text = "def f(x):\n    def g(): return x + LEVEL\n    return g"
    hashes = {sources.hash_function(in_session(text, LEVEL=level)) for level in (1, 2)}
    assert len(hashes) == 2
    names = {}
    circle = "def f(x): return g(x)\ndef g(x): return h(x)\ndef h(x): return g(x) + END"
    for end in (1, 2):
        f = in_session(circle, END=end)
        names[end] = sources.hash_function(f)
    assert names[1] != names[2]


def test_words_and_loops_are_kept_apart():
    assert sources._digest(["ab", "c"]) != sources._digest(["a", "bc"])
    loops = [
        f"async def f(): return [x {kind} x in y]" for kind in ("for", "async for")
    ]
    first, second = (sources._parse_source(text.encode())[0] for text in loops)
    assert first != second


def test_a_package_goes_before_a_module_of_its_name(package):
    (package / "own" / "inner.py").write_text("X = 1\n")
    assert sources.find_file("own.inner") == package / "own" / "inner" / "__init__.py"


def test_the_plain_function_inside_of_what_wraps_it():
    class Tool:
        def act(self):
            return 1

        def __call__(self):
            return 2

    @functools.wraps(helper)
    def wrapped(x):
        return helper(x)

    unwrap = sources.unwrap
    assert unwrap(functools.partial(functools.partial(wrapped, 1))) is helper
    assert unwrap(Tool().act) is Tool.act and unwrap(Tool()) is Tool
    assert unwrap(helper) is helper and unwrap(Tool) is Tool


# ---- what is remembered ----------------------------------------------------------------------------------------------


def test_parsed_sources_are_remembered_the_newest_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "MOST_REMEMBERED", 2)
    sources._load_parse_cache.cache_clear()
    try:
        for digest in ("a", "b", "c"):
            sources._new[digest] = (f"meaning {digest}", [(0, "x", [])])
        sources._save_parse_cache()
        assert sources._new == {}
        sources._load_parse_cache.cache_clear()
        assert list(sources._load_parse_cache()) == ["b", "c"]
        for damaged in ("{", '{"a": 3}', '{"a": [1, []]}', '{"a": ["x", 1]}', "[]"):
            (tmp_path / "cache" / "sources-1.json").write_text(damaged)
            sources._load_parse_cache.cache_clear()
            assert sources._load_parse_cache() == {}
    finally:
        sources._load_parse_cache.cache_clear()


def test_where_the_cache_lies(monkeypatch, tmp_path):
    for given, folder in (
        ({"ANISOSCOPE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, Path("/c")),
        ({"ANISOSCOPE_CACHE": "", "XDG_CACHE_HOME": "/x"}, Path("/x/anisoscope")),
        (
            {"ANISOSCOPE_CACHE": "", "XDG_CACHE_HOME": ""},
            tmp_path / ".cache/anisoscope",
        ),
    ):
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert sources.find_cache_folder() == folder


# ---- commit, command, environment ------------------------------------------------------------------------------------


def test_a_commit_is_dirty_only_by_its_own_modules(tmp_path):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)  # fmt: skip

    folder = tmp_path / "own"
    for name in ("__init__.py", "numbers/__init__.py", "axes.py", "report/page.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    names = ("numbers", "axes")
    git("init", "-q")
    assert provenance.find_commit(folder, names) == {"commit": None}
    git("add", "."), git("commit", "-qm", "x")
    clean = provenance.find_commit(folder, names)
    assert len(clean["commit"]) == 40 and "dirty" not in clean
    (folder / "report" / "page.py").write_text("changed")
    assert provenance.find_commit(folder, names) == clean
    for changed in ("axes.py", "numbers/new.py"):
        (folder / changed).write_text("changed")
        assert provenance.find_commit(folder, names) == clean | {"dirty": True}
        git("add", "."), git("commit", "-qm", "x")
        clean = provenance.find_commit(folder, names)
        assert "dirty" not in clean
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "__init__.py").write_text("")
    assert provenance.find_commit(tmp_path / "installed", names) == {"commit": None}


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (["/x/bin/anisoscope", "measure", "a b"], "anisoscope measure 'a b'"),
        (["/x/anisoscope/__main__.py", "list"], "anisoscope list"),
        (["/x/ipykernel_launcher.py", "-f", "x"], ""),
        (["script.py"], "script.py"),
    ],
)
def test_the_command_line_as_a_person_types_it(monkeypatch, given, command):
    monkeypatch.setattr(sys, "argv", given)
    assert provenance._describe_command() == command
    assert provenance.describe_environment()["command"] == command


def test_the_environment_names_a_configuration_only_if_one_was_read():
    provenance._find_versions.cache_clear()
    try:
        provenance.note_config({"file": "f", "options": {"a": 1}})
        assert provenance.describe_environment()["config"] == {"file": "f", "options": {"a": 1}}  # fmt: skip
        provenance.note_config({})
        described = provenance.describe_environment()
        assert "config" not in described
        assert {"command", "code", "versions", "platform"} <= described.keys()
        libraries = {"torch", "transformers", "datasets", "numpy", "scipy"}
        assert described["versions"].keys() == {"python", *libraries}
        assert {"version", "sources", "commit"} <= described["code"].keys()
        provenance.note_config({"file": "g"})
        earlier = provenance.describe_environment()
        provenance.note_config({"options": 1})
        assert earlier["config"] == {"file": "g"}
        assert provenance.describe_environment()["config"] == {"options": 1}
    finally:
        provenance.note_config({})


def test_code_that_makes_numbers_is_hashed_and_no_other(package):
    """Of this package modules of numbers; of a package that is named, all; of others none."""
    found = provenance.hash_code("anisoscope.metrics.drift", "anisoscope.report.page")
    tops = {name.split(".")[1] for name in found if name != "anisoscope"}
    assert "metrics" in tops and tops <= set(provenance.NUMBERS)
    own = provenance.hash_code("own.second")
    assert {"own", "own.second", "own.inner", "own.inner.deep", "own.first"} <= set(own)
    assert not any(name == "single" or name.startswith("anisoscope") for name in own)
    less = provenance.hash_code("own.second", leave_out=("own.late",))
    assert set(own) - set(less) >= {"own.late"} and package.is_dir()
    every = provenance.hash_all_code.__wrapped__()
    packages = ("sums", "reads", "metrics", "models", "data", "capture", "measure", "classes")  # fmt: skip
    for name in ("axes", "batch", "sums.groups", *packages):
        assert f"anisoscope.{name}" in every
    assert not any("__init__" in name for name in every)
    assert not any(name.split(".")[1:2] == ["report"] for name in every)
    typed = provenance.hash_code_used(make(), "anisoscope.axes", Path)
    assert set(typed) >= {"anisoscope.axes"} and "pathlib" not in typed


def test_what_was_chosen_at_run_time_is_hashed_by_module_or_by_itself(monkeypatch):
    given = []
    monkeypatch.setattr(
        provenance, "hash_code", lambda *names: given.append(names) or {"m": "1"}
    )
    monkeypatch.setattr(
        provenance, "is_tracked", lambda name: name.startswith("tracked")
    )
    base = type("Base", (), {"__module__": "tracked.base"})
    kind = type("Kind", (base, dict), {"__module__": "tracked.kind"})
    f, g = (in_session(f"def f(x): return {n}") for n in (1, 2))
    g.__module__ = "no_such_module"
    found = provenance.hash_code_used("b.named", kind, helper, f, g)
    assert given == [("b.named", helper.__module__, "tracked.base", "tracked.kind")]
    assert found == {
        "m": "1",
        "__main__.f()": sources.hash_function(f),
        "no_such_module.f()": sources.hash_function(g),
    }
    # A function of the main file is hashed itself, although that file is there.
    monkeypatch.setattr(provenance, "find_file", lambda _: Path("main.py"))
    assert "__main__.f()" in provenance.hash_code_used(f)


def test_the_version_of_the_code_is_that_of_its_sources_and_commit(monkeypatch):
    asked, versions = [], []
    monkeypatch.setattr(
        provenance, "find_commit", lambda *given: asked.append(given) or {"commit": "c"}
    )
    for meaning in ("x", "y"):
        monkeypatch.setattr(provenance, "hash_all_code", lambda m=meaning: {"a": m})
        versions.append(provenance.describe_code_version.__wrapped__())
    assert versions[0]["sources"] != versions[1]["sources"]
    assert versions[0].keys() == {"version", "sources", "commit"}
    assert asked[0] == (provenance.PACKAGE, (*provenance.NUMBERS, "runs"))


def test_ids_depend_on_every_part_and_no_order_of_keys():
    make_id = provenance.make_run_id
    assert make_id({"a": 1, "b": 2}, 3) == make_id({"b": 2, "a": 1}, 3)
    different = (({"a": 1}, 3), ({"a": 1}, 4), (3, {"a": 1}), ({"a": 1},), ({"a": Path("x")}, 3))  # fmt: skip
    ids = {make_id(*parts) for parts in different}
    assert len(ids) == 5 and {len(one) for one in ids} == {16}
    assert provenance.json_roundtrip({"a": (1, Path("x"))}) == {"a": [1, "x"]}
