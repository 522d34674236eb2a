"""Shapes in annotations are of classes: since numpy 2.5 `NDArray[…]` is an alias, at which jaxtyping raises."""

import ast
from pathlib import Path

from trees import tree_of

import anisoscope

ROOTS = [
    Path(anisoscope.__file__).parent,
    Path(__file__).parents[1] / "papers" / "src" / "anisoscope_papers",
]


def trees():
    """{dotted name: syntax tree} of every module of both packages."""
    found = {}
    for root in filter(Path.is_dir, ROOTS):
        for path in root.rglob("*.py"):
            parts = (root.name, *path.relative_to(root).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = tree_of(path)
    return found


def is_alias(node):
    """Whether an expression is `NDArray[…]`."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "NDArray"
    )


def aliases(modules):
    """{module: names in it that stand for `NDArray[…]`}, assigned there or imported from where they are."""
    found = {}
    for name, tree in modules.items():
        assigned = [
            node
            for node in tree.body
            if isinstance(node, ast.Assign) and is_alias(node.value)
        ]
        found[name] = {target.id for node in assigned for target in node.targets}
    for _ in range(3):  # imported from where it was imported
        for name, tree in modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module in found:
                    known = found[node.module]
                    found[name] |= {
                        alias.asname or alias.name
                        for alias in node.names
                        if alias.name in known
                    }
    return found


def wrong(modules):
    """`module:line` of every shape of such an alias."""
    known = aliases(modules)
    for name, tree in modules.items():
        shapes = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "jaxtyping":
                shapes |= {alias.asname or alias.name for alias in node.names}
        for node in ast.walk(tree) if shapes else ():
            if not (
                isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Name)
                and node.value.id in shapes
            ):
                continue
            first = (
                node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            )
            if is_alias(first) or (
                isinstance(first, ast.Name) and first.id in known[name]
            ):
                yield f"{name}:{node.lineno}"


def test_shapes_are_of_classes():
    assert not list(wrong(trees())), (
        "write np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
    )


def test_an_alias_is_seen():
    head = "from numpy.typing import NDArray\nfrom jaxtyping import Float\n"
    modules = {
        "a": ast.parse("Array = NDArray[float]"),
        "b": ast.parse(f"{head}from a import Array\nx: Float[Array, 'n']"),
    }
    assert list(wrong(modules)) == ["b:4"]
    assert list(wrong({"c": ast.parse(f"{head}x: Float[NDArray[float], 'n']")})) == [
        "c:3"
    ]
