"""The papers are guests: they import public names of the tool only, in layers and in no circle."""

import ast
from functools import cache
from pathlib import Path

import test_imports as of_tool
from test_imports import circles, outside_functions
from trees import tree_of

import anisoscope
import anisoscope_papers
from anisoscope import public

ROOT = Path(anisoscope_papers.__file__).parent
LAYERS = (
    ("cli", "commands", "api"),
    ("studies_page", "exporting"),
    ("runner",),
    ("godey2024", "fosse2023", "beyond"),
    ("judge", "processes"),
    ("study",),
    ("needs", "study_charts", "series_charts"),
    ("training",),
    ("networks",),
    (
        "origin",
        "study_names",
        "models",
        "families",
        "corpora",
        "benchmarks",
        "__init__",
    ),
)
"""From the top: a module imports from its own layer and those below."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FIRST = ("godey2024", "fosse2023", "beyond")
GUESTS = {path.parent.name for path in ROOT.glob("*/published.toml")} - set(FIRST)
"""Studies that came later: folders of their own, which stand in no list."""
LEVEL |= dict.fromkeys(GUESTS, LEVEL[FIRST[0]])
SEVERAL = {("beyond", "fosse2023"), ("beyond", "godey2024"), ("godey2024", "beyond")}
"""Packages of studies of which some modules build on those of another one."""


def test_the_picture_of_layers_is_what_is_kept():
    assert of_tool.layers_drawn(2) == [
        tuple(n for n in names if not n.startswith("__")) for names in LAYERS
    ]


@cache
def modules():
    """{dotted name inside the package: syntax tree}; packages are `name.__init__`."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): tree_of(path)
        for path in sorted(ROOT.rglob("*.py"))
    }


def names_of(tree, package, nodes=ast.walk):
    """(module, name) of everything that a syntax tree imports from a package."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            if (node.module or "").split(".")[0] == package:
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (
                (alias.name, "")
                for alias in node.names
                if alias.name.split(".")[0] == package
            )


def resolve(module, name):
    """The module of this package that an import is of."""
    parts = [*module.split(".")[1:], *filter(None, [name])]
    while (
        parts
        and ".".join(parts) not in modules()
        and f"{'.'.join(parts)}.__init__" not in modules()
    ):
        parts.pop()
    return ".".join(parts) or "__init__"


def graph(nodes=ast.walk):
    """{module: modules of this package that it imports}."""
    return {
        name.removesuffix(".__init__"): {
            resolve(*given) for given in names_of(tree, "anisoscope_papers", nodes)
        }
        for name, tree in modules().items()
    }


def test_only_public_names_of_the_tool_are_imported():
    """They prove that these are enough to build on; `anisoscope/public.py` lists them."""
    known = {(module, name) for module, names in public.NAMES.items() for name in names}
    known |= {("anisoscope", name) for name in anisoscope.__all__} | {
        ("anisoscope", "")
    }
    used = {
        given for tree in modules().values() for given in names_of(tree, "anisoscope")
    }
    assert not used - known, "list them in src/anisoscope/public.py, or do without"
    private = ast.parse("from anisoscope.capture.heads import _stood_in_for")
    assert not set(names_of(private, "anisoscope")) & known


def test_every_module_has_its_layer():
    assert not {name.split(".")[0] for name in modules()} - LEVEL.keys()


def test_imports_go_down_only():
    level = lambda name: LEVEL[name.split(".")[0]]  # noqa: E731
    programs = ("__init__", "fosse2023.__main__")
    upward = [
        (a, b)
        for a, targets in graph().items()
        for b in targets
        if a not in programs and level(b) < level(a)
    ]
    assert not upward
    across = {
        (a.split(".")[0], b.split(".")[0])
        for a, targets in graph().items()
        for b in targets
    }
    assert {(a, b) for a, b in across if {a, b} <= set(FIRST) and a != b} <= SEVERAL
    earlier = {(a, b) for a, b in across if b in GUESTS and a not in GUESTS}
    assert not earlier, "nothing builds on a study that came later"


def test_imports_go_in_no_circle():
    assert not circles(graph(outside_functions))
