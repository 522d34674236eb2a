"""Mutants of an area, drawn at random: places of the code, and at each one change by an operator of cosmic-ray."""

import ast
import contextlib
import difflib
import importlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Position = tuple[int, int]
GUARDS = ("strict", "frozen", "kw_only", "slots", "init", "repr", "eq")
NO_EFFECT = (
    "overload",
    "cache",
    "lru_cache",
    "cached_property",
    "abstractmethod",
    "runtime_checkable",
    "wraps",
)
KINDS = (
    {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"},
    {"BitOr", "BitAnd", "BitXor", "RShift", "LShift"},
)
SAME = re.compile(r"_(Eq_Is|NotEq_IsNot|Is_Eq|IsNot_NotEq)$")
LEFT_OUT = """Changes that no test can see, or that none needs to see, are left out:

- in annotations, under `TYPE_CHECKING`, and within `raise` (texts of errors);
- of `strict=`, `frozen=` and the like;
- of decorators that only cache results or help a type checker;
- `is` replaced by `==`;
- an arithmetic operator replaced by one of sets or bits (a TypeError at once).

One change is drawn for each place. So `-`, which can become eleven others, counts once."""


@dataclass(frozen=True)
class Mutant:
    """One change: the module's path from the top of the tree, where, by which operator, and the new text."""

    module: str
    line: int
    column: int
    operator: str
    text: str
    change: str

    @property
    def same(self) -> tuple[str, str, str]:
        """What it is by, where lines have moved."""
        return self.module, self.operator, self.change


def modules(root: Path, area: str) -> list[Path]:
    """Files of an area: a package or a module of the tool or of the papers, or the modules beside their packages, which
    are `top` of the tool and `papers` of the papers. ValueError for an area that there is not.
    """
    tool, papers = (
        root / "src" / "anisoscope",
        root / "papers" / "src" / "anisoscope_papers",
    )
    beside = {"top": tool, "papers": papers}
    if area in beside:
        return sorted(
            path for path in beside[area].glob("*.py") if path.name != "__init__.py"
        )
    for place in (tool / area, papers / area, papers / area.removeprefix("papers/")):
        if place.is_dir():
            return sorted(place.rglob("*.py"))
        if place.with_suffix(".py").is_file():
            return [place.with_suffix(".py")]
    raise ValueError(f"{area} is no package or module of the tool or the papers")


@cache
def operators() -> dict[str, Any]:
    """Those of cosmic-ray that need no arguments, by name."""
    plugins = importlib.import_module("cosmic_ray.plugins")
    found = {name: plugins.get_operator(name) for name in plugins.operator_names()}
    return {
        name: kind()
        for name, kind in found.items()
        if not kind.arguments() and _meaningful(name)
    }


def _meaningful(name: str) -> bool:
    if SAME.search(name):
        return False
    if match := re.search(r"ReplaceBinaryOperator_(\w+)_(\w+)$", name):
        return any({match[1], match[2]} <= kind for kind in KINDS)
    return True


def left_out(tree: ast.Module) -> list[tuple[Position, Position]]:
    """Parts of a module where no mutant is drawn."""
    return [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in _left_out(tree)
    ]


def _left_out(tree: ast.Module) -> Iterator[Any]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from (
                each for each in node.decorator_list if _name(each) in NO_EFFECT
            )
            yield from filter(None, [getattr(node, "returns", None)])
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc
        elif _is_of_types(node):
            yield node


def _is_of_types(node: ast.AST) -> bool:
    """Whether a node speaks to a type checker, or guards against a mistake in the program."""
    if isinstance(node, ast.keyword):
        return node.arg in GUARDS
    if isinstance(node, ast.If):
        return _name(node.test) == "TYPE_CHECKING"
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and _is_type(node)
    )


def _is_type(node: ast.Assign) -> bool:
    """Whether `Name = A | B` names a type."""
    target = node.targets[0]
    return (
        isinstance(target, ast.Name)
        and target.id[:1].isupper()
        and not target.id.isupper()
    )


def _name(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def places(root: Path, path: Path) -> dict[tuple[str, Position], list[tuple[str, int]]]:
    """By place, the operators that change it and which of their occurrences this is."""
    of_ray = importlib.import_module("cosmic_ray.ast")
    source = path.read_text("utf-8")
    nodes, skipped = (
        list(of_ray.ast_nodes(of_ray.get_ast(source))),
        left_out(ast.parse(source)),
    )
    characters = source.splitlines()
    found: dict[tuple[str, Position], list[tuple[str, int]]] = {}
    for name, operator in operators().items():
        occurrence = -1
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                occurrence += 1
                if (
                    name == "core/RemoveDecorator"
                ):  # begins at the @, which ast does not count
                    start = (start[0], start[1] + 1)
                at = (start[0], len(characters[start[0] - 1][: start[1]].encode()))
                if not any(first <= at < last for first, last in skipped):
                    found.setdefault((str(path.relative_to(root)), start), []).append(
                        (name, occurrence)
                    )
    return found


def drawn(
    root: Path, area: str, count: int | None, seed: int
) -> tuple[int, list[Mutant]]:
    """How many places an area has, and mutants at `count` of them."""
    found = [
        item
        for path in modules(root, area)
        for item in sorted(places(root, path).items())
    ]
    chance = random.Random(f"{area} {seed}")
    chance.shuffle(found)
    mutants = []
    for (module, (line, column)), ways in found:
        name, occurrence = chance.choice(ways)
        if (text := mutated(root / module, name, occurrence)) is not None:
            change = changed((root / module).read_text("utf-8"), text)
            mutants.append(Mutant(module, line, column, name, text, change))
        if len(mutants) == count:
            break
    return len(found), mutants


def mutated(path: Path, operator: str, occurrence: int) -> str | None:
    """A module's text with one change; None where it changes nothing that is run, or where that is no Python."""
    source = path.read_text("utf-8")
    text = importlib.import_module("cosmic_ray.mutating").mutate_code(
        source, operators()[operator], occurrence
    )
    with contextlib.suppress(SyntaxError):
        if text is not None and ast.dump(ast.parse(source)) != ast.dump(
            ast.parse(text)
        ):
            return str(text)
    return None


def changed(before: str, after: str) -> str:
    """The lines that differ, with `-` and `+`."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), n=0, lineterm=""
    )
    return "\n".join(
        f"{line[0]} {line[1:].strip()}"
        for line in lines
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    )
