"""Imports go down only, in no circle, and what must be quick loads neither torch nor transformers."""

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from imported_names import find_missing_names, iter_statements
from quick import quick
from trees import tree_of

import anisoscope
from anisoscope import public

ROOT = Path(anisoscope.__file__).parent
LAYERS = (
    ("cli", "__main__", "integrations"),
    ("doctor",),
    ("api",),
    ("report",),
    ("runs",),
    ("monitor", "classes", "cures", "testing"),
    ("measure",),
    ("metrics",),
    ("reads",),
    ("capture",),
    ("models", "data", "charts"),
    ("batch", "store", "provenance"),
    ("sums",),
    (
        "axes",
        "errors",
        "extras",
        "options",
        "progress",
        "public",
        "registry",
        "renamed",
        "wording",
        "__init__",
    ),
)
"""From the top: a module imports from its own layer and those below (docs/architecture.md)."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
HEAVY = ("torch", "transformers", "datasets", "scipy.stats", "altair", "sklearn")


@cache
def modules():
    """{dotted name inside the package: syntax tree}; the package itself is `__init__`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[
            ".".join(
                parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
            )
        ] = tree_of(path)
    return found


@cache
def resolve(target):
    """`anisoscope.metrics.drift.METRIC` → `metrics.drift`: the longest beginning that is a module."""
    parts = target.split(".")[1:]
    while parts and ".".join(parts) not in modules():
        parts.pop()
    return ".".join(parts) or "__init__"


def imports(tree, *, everywhere):
    """Modules of the package that a module imports; `everywhere`: inside functions too."""
    for node in ast.walk(tree) if everywhere else outside_functions(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            if (node.module or "").split(".")[0] == "anisoscope":
                yield from (
                    resolve(f"{node.module}.{alias.name}") for alias in node.names
                )
        elif isinstance(node, ast.Import):
            yield from (
                resolve(alias.name)
                for alias in node.names
                if alias.name.split(".")[0] == "anisoscope"
            )


def layers_drawn(number):
    """Layers in a picture of docs/architecture.md, from the top: the names before each line's explanation."""
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text("utf-8")
    lines = page.split("```text\n")[number].split("```")[0].splitlines()
    return [tuple(re.split(r" {2,}", line)[0].split(" · ")) for line in lines]


def test_the_picture_of_layers_is_what_is_kept():
    assert layers_drawn(1) == [
        tuple(n for n in names if not n.startswith("__")) for names in LAYERS
    ]


def outside_functions(node):
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


def upward(graph):
    """Imports that go up: (importer, imported)."""
    level = lambda name: LEVEL[name.split(".")[0]]  # noqa: E731
    return [
        (a, b) for a, targets in graph.items() for b in targets if level(b) < level(a)
    ]


def circles(graph):
    """Modules from which one comes back to them."""
    reach = {name: set(targets) - {name} for name, targets in graph.items()}
    for middle in reach:
        for name in reach:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    return sorted(name for name in reach if name in reach[name])


def test_every_module_has_its_layer():
    strange = sorted({name.split(".")[0] for name in modules()} - LEVEL.keys())
    assert not strange, (
        f"name the layer of {', '.join(strange)} in tests/test_imports.py"
    )


def test_imports_go_down_only():
    """The package itself names what is public, for editors; at run time it imports nothing until it is asked."""
    assert not upward(every_import())


def test_imports_go_in_no_circle():
    assert not circles(
        {name: set(imports(tree, everywhere=False)) for name, tree in modules().items()}
    )


def test_packages_go_in_no_circle():
    """`models` imported `data` and `data` imported `models`: neither could be read alone."""
    packages = {}
    for name, targets in every_import().items():
        own = name.split(".")[0]
        packages.setdefault(own, set()).update(
            {target.split(".")[0] for target in targets} - {own, "__init__"}
        )
    assert not circles(packages)


LAZY: dict[tuple[str, str], str] = {}
"""Imports inside functions that close a circle, each with its reason. No other may."""


@cache
def every_import():
    return {
        name: set(imports(tree, everywhere=True))
        for name, tree in modules().items()
        if name != "__init__"
    }


def test_imports_inside_functions_close_no_circle_but_the_named_ones():
    graph = every_import()
    assert not [arrow for arrow in LAZY if arrow[1] not in graph[arrow[0]]], (
        "no longer there: take it from the list"
    )
    assert not circles(
        {a: {b for b in targets if (a, b) not in LAZY} for a, targets in graph.items()}
    )
    for a, b in LAZY:
        assert circles(
            {
                n: {t for t in targets if (n, t) not in LAZY or (n, t) == (a, b)}
                for n, targets in graph.items()
            }
        )


def private(tree, package):
    """`_private` names that a module of `package` imports from another one, wherever in the file it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "anisoscope."
        ):
            home = node.module.split(".")[1]
            for name in (
                *node.module.split("."),
                *(alias.name for alias in node.names),
            ):
                if (
                    home != package
                    and name.startswith("_")
                    and not name.startswith("__")
                ):
                    yield f"{node.module}.{name}"


def test_no_private_name_is_imported_from_another_package():
    assert not [
        (name, found)
        for name, tree in modules().items()
        for found in private(tree, name.split(".")[0])
    ]


def allowed(package, text):
    """Packages and modules that a package's docstring says it may import: names in backticks, and what is below."""
    rule = text.partition("May import")[2]
    names = re.findall(r"`(\w+)`", rule.partition(";")[0])
    if "everything but" in rule:
        return LEVEL.keys() - set(names)
    below = (
        min((LEVEL[name] for name in names), default=LEVEL[package])
        if "below" in rule
        else len(LAYERS)
    )
    return {package, *names} | {name for name, level in LEVEL.items() if level > below}


PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_lives_there_and_what_it_may_import(package):
    text = ast.get_docstring(modules()[package]) or ""
    assert (
        "May import" in text
        and 2 <= len([line for line in text.splitlines() if line]) <= 5
    )
    for name, targets in every_import().items():
        if name.split(".")[0] == package:
            assert {target.split(".")[0] for target in targets} - {
                "__init__"
            } <= allowed(package, text), name


def test_the_checks_of_packages_can_fail():
    tree = ast.parse(
        "def f():\n    from anisoscope.sums.groups import _mend, Sums\n    from anisoscope.api import __all__"
    )
    assert list(private(tree, "measure")) == ["anisoscope.sums.groups._mend"]
    assert not list(private(tree, "sums"))
    assert "models" not in allowed("charts", "May import: `sums`, `axes`.")
    assert allowed("sums", "May import: `axes`.") == {"sums", "axes"}
    assert "api" in allowed(
        "cli", "May import anything below."
    ) and "cli" not in allowed("api", "May import below.")


CHECKOUT = ROOT.parents[1]
"""Without the papers' folder in a source distribution of the tool alone."""


def test_every_name_that_a_file_of_the_checkout_imports_is_there():
    """Two test files of the papers imported a renamed function, and stopped the whole suite at its collection."""
    files = [
        path
        for folder in ("src", "tests", "tools", "benchmarks", "examples", "papers")
        for path in sorted((CHECKOUT / folder).rglob("*.py"))
        if "build" not in path.parts
    ]
    assert not find_missing_names(ROOT, files)
    own = CHECKOUT / "papers" / "src" / "anisoscope_papers"
    assert not find_missing_names(own, files)


def test_a_name_that_is_not_there_is_found(tmp_path):
    path = tmp_path / "reads.py"
    path.write_text(
        "def f():\n    from anisoscope.classes.ablation import outcome, average_outcome\n"
    )
    assert find_missing_names(ROOT, [path]) == [
        f"{path}:2 anisoscope.classes.ablation.outcome"
    ]
    path = tmp_path / "others.py"
    path.write_text(
        "from anisoscope.nowhere import x\nfrom anisoscope import metrics\nfrom anisoscope.sums import groups\n"
    )
    assert find_missing_names(ROOT, [path]) == [f"{path}:1 anisoscope.nowhere.x"]


def test_the_two_checks_can_fail():
    assert upward({"sums.groups": ["metrics.drift"], "cli.app": ["sums.groups"]}) == [
        ("sums.groups", "metrics.drift")
    ]
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == ["a", "b", "c"]
    tree = ast.parse(
        "def f():\n    from anisoscope.metrics import drift\nimport anisoscope.sums.groups"
    )
    assert list(imports(tree, everywhere=True)) == ["sums.groups", "metrics.drift"]
    assert list(imports(tree, everywhere=False)) == ["sums.groups"]


def test_a_metric_sees_no_model_and_capture_no_metric():
    for name, tree in modules().items():
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        names |= {
            node.module or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        if name.startswith("metrics"):
            assert not any(
                n.split(".")[0] in ("torch", "transformers") for n in names
            ), f"{name} is numpy only"
        if name.startswith("capture"):
            assert not any(n.startswith("anisoscope.metrics") for n in names), name


def loaded_after(code):
    """The heavy modules in memory after running `code` in a fresh interpreter."""
    check = (
        f"{code}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\n")[-2].split()


@pytest.mark.parametrize(
    "module",
    [
        "anisoscope",
        "anisoscope.cli.app",
        "anisoscope.runs.job",
        "anisoscope.registry",
        "anisoscope.axes",
        "anisoscope.store",
    ],
)
def test_light_modules_load_nothing_heavy(module):
    assert loaded_after(f"import {module}") == []


OF_THE_COMMAND_LINE = {"cyclopts", "pydantic", "rich"}
NEEDED_BY_THEM = {
    "annotated_types",
    "attr",
    "attrs",
    "docstring_parser",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
}


def test_help_loads_the_libraries_of_the_command_line_alone():
    """What else is loaded makes the help late: any other package, even a small one, fails here."""
    code = (
        "import sys\n"
        "before = {*sys.modules}\n"
        "import anisoscope.__main__ as program\n"
        "sys.argv[1:] = ['--help']\n"
        "try: program.main()\n"
        "except SystemExit: pass\n"
        "loaded = {name.split('.')[0] for name in {*sys.modules} - before}\n"
        "print(*loaded - {*sys.stdlib_module_names})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split("\n")[-2].split())
    loaded = {name for name in loaded if not name.startswith("_")}
    own = {name for name in loaded if name.startswith("anisoscope")}
    assert "anisoscope" in own and "Usage" in done.stdout
    assert loaded - own - NEEDED_BY_THEM == OF_THE_COMMAND_LINE


def test_public_names_can_be_had():
    for name in {*anisoscope.__all__} - {"__version__"}:
        assert getattr(anisoscope, name).__name__ == name
    assert re.fullmatch(r"\d+\.\d+\.\d+", anisoscope.__version__) and "measure" in dir(
        anisoscope
    )
    assert {*anisoscope._PUBLIC, "__version__"} == set(anisoscope.__all__)


@pytest.mark.parametrize(
    "first",
    [
        "import anisoscope.capture",
        "anisoscope.measure",
        "from anisoscope.capture import tap",
        "import anisoscope.report, anisoscope.classes, anisoscope.monitor, anisoscope.api.working",
    ],
)
def test_no_module_takes_the_place_of_a_public_name(first):
    """Python binds a sub-package in its parent when it is imported; `capture` was a function, then a module."""
    lost = "[n for n in anisoscope.__all__ if isinstance(getattr(anisoscope, n), type(anisoscope).__base__)]"
    code = f"import anisoscope\n{first}\nprint(*{lost})"
    done = subprocess.run(
        [*quick(), "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def count_arguments(trees):
    """How many arguments each function has, `self` not counted (0 for kernels, which take all at once)."""
    return {
        f"{name}:{node.name}": (
            0
            if any(ast.unparse(each) == "triton.jit" for each in node.decorator_list)
            else len(
                {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
                - {"self", "cls"}
            )
        )
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


def test_few_functions_take_many_arguments():
    many = [
        name for name, arguments in count_arguments(modules()).items() if arguments > 8
    ]
    assert len(many) <= 12
    assert count_arguments({"m": ast.parse("def f(self, a, *b, c=0):\n    pass")}) == {
        "m:f": 3
    }


def test_few_modules_lie_at_the_top():
    top = [name for name in modules() if "." not in name]
    assert len([name for name in top if (ROOT / f"{name}.py").exists()]) <= 14


CHECKOUT = ROOT.parents[1]
OF_THE_TOOL = [
    path
    for place in ("src", "tests", "tools", "benchmarks", "examples")
    for path in sorted((CHECKOUT / place).rglob("*.py"))
]


def imported(tree):
    """Every module that a syntax tree imports, wherever in the file."""
    for node in iter_statements(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_tool_and_its_tests_import_nothing_of_the_papers():
    """It is installed, and tested, without them; they come in by entry points."""
    papers = CHECKOUT / "papers"
    guests = {"anisoscope_papers"} | {
        path.stem
        for part in ("tests", "tools")
        for path in (papers / part).glob("*.py")
    }
    guests -= {"conftest"}
    found = {
        path.relative_to(CHECKOUT).as_posix(): names
        for path in OF_THE_TOOL
        if (names := {name.split(".")[0] for name in imported(tree_of(path))} & guests)
    }
    assert len(OF_THE_TOOL) > 200 and not found
    assert "anisoscope_papers.study" in imported(
        ast.parse("def f():\n    from anisoscope_papers.study import Claim")
    )


@pytest.mark.parametrize("module", public.NAMES)
def test_what_other_packages_may_import_is_there(module):
    for name in public.NAMES[module]:
        found = getattr(import_module(module), name, None) or import_module(
            f"{module}.{name}"
        )
        assert (
            not (inspect.isfunction(found) or inspect.isclass(found)) or found.__doc__
        ), f"{module}.{name} says nothing of itself"
