"""What a function is given reaches the functions of ours that it calls: no argument is forgotten on the way.

If a caller has a value named `seed`, as a parameter or in a parameter's dataclass, and calls a function of ours that
takes an optional `seed`, it hands it on. A forgotten one is silently the default of the callee.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from trees import tree_of

PACKAGE = Path(__file__).parents[1] / "src" / "anisoscope"
MEANT = {
    ("cure", "_read_array", "layer"): "an array given by itself has no layers",
    ("cure", "open_vectors", "columns"): "the columns are those of the first file",
    ("add", "wrap_vectors", "units"): "the state numbers units over all its calls",
    ("_read_batches", "GivenInputs", "units"): "the same: the state numbers them",
    ("_compute_centred_rows", "_compute_rows", "value"): "rows alone are compared",
    ("_compute_rows_with_output", "_compute_rows", "value"): "the second try, without",
    ("_leave", "emit_vectors", "block"): "vectors between two blocks are of none",
    ("_emit_text", "emit_vectors", "block"): "vectors of texts are of no block",
    ("facet", "_stack_layers", "data"): "the facets bring the data",
    ("facet", "facet", "independent"): "the other `facet` is that of altair",
    ("list_items", "read_table_rows", "column"): "other columns name the unit",
    ("build_settings", "build_settings", "also"): "names that only the outer knows",
    ("_name_kinds", "attention_table", "replicates"): "heads have their own intervals",
    ("open_classifier", "LabelledPlan", "classes"): "another thing of the same name",
    ("write", "write_table", "compression"): "one for small tables, one for large",
    ("temporarily_register", "registered", "name"): "the name is that of the metric",
}
"""(caller, callee, argument) that is not handed on, and why."""


@cache
def trees():
    return [tree_of(path) for path in PACKAGE.rglob("*.py")]


def is_dataclass(node):
    return isinstance(node, ast.ClassDef) and any(
        "dataclass" in ast.unparse(each) for each in node.decorator_list
    )


def annotated(node):
    return {
        each.target.id: each for each in node.body if isinstance(each, ast.AnnAssign)
    }


@cache
def fields():
    """Fields of each dataclass of ours, with those that it inherits."""
    found = [node for tree in trees() for node in ast.walk(tree) if is_dataclass(node)]
    own = {node.name: set(annotated(node)) for node in found}
    for node in found:
        for base in node.bases:
            own[node.name] |= own.get(ast.unparse(base), set())
    return own


@cache
def callees():
    """By name, of each function: (its positional parameters, its optional ones)."""
    found = defaultdict(list)
    for tree in trees():
        for holder in ast.walk(tree):
            for node in ast.iter_child_nodes(holder):
                if isinstance(node, ast.FunctionDef):
                    name = holder.name if node.name == "__init__" else node.name
                    found[name].append(
                        parameters(node, isinstance(holder, ast.ClassDef))
                    )
    return found


def parameters(function, of_class):
    given = function.args
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    optional = set(positional[len(positional) - len(given.defaults) :])
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if default is not None:
            optional.add(each.arg)
    decorators = [ast.unparse(each) for each in function.decorator_list]
    if of_class and "staticmethod" not in decorators:
        positional = positional[1:]
    return positional, optional


def names_at_hand(function):
    """Names of a function's parameters, and of the fields of those that are dataclasses of ours."""
    found = set()
    for each in (*function.args.args, *function.args.kwonlyargs):
        found.add(each.arg)
        if each.annotation is not None:
            for word in ast.walk(each.annotation):
                name = getattr(word, "id", getattr(word, "value", None))
                found |= fields().get(name, set()) if isinstance(name, str) else set()
    return found - {"self", "cls"}


def forgotten(tree):
    """(caller, callee, argument) wherever an optional argument at hand is not handed on; and how many are."""
    missing = []
    handed_on = 0

    def visit(node, at_hand, caller):
        nonlocal handed_on
        if isinstance(node, ast.FunctionDef):
            at_hand, caller = at_hand | names_at_hand(node), node.name
        if isinstance(node, ast.Call):
            callee = getattr(node.func, "id", getattr(node.func, "attr", ""))
            meant = callees().get(callee, [])
            is_whole = all(each.arg for each in node.keywords) and not any(
                isinstance(each, ast.Starred) for each in node.args
            )
            if len(meant) == 1 and is_whole:
                positional, optional = meant[0]
                given = {*positional[: len(node.args)], *(k.arg for k in node.keywords)}
                handed_on += len(optional & at_hand & given)
                for name in sorted((optional & at_hand) - given):
                    missing.append((caller, callee, name))
        for child in ast.iter_child_nodes(node):
            visit(child, at_hand, caller)

    visit(tree, set(), "")
    return missing, handed_on


def test_no_argument_is_forgotten_on_its_way():
    found, handed_on = set(), 0
    for tree in trees():
        missing, more = forgotten(tree)
        found |= set(missing)
        handed_on += more
    assert found - MEANT.keys() == set(), "hand it on, or say in MEANT why not"
    assert MEANT.keys() - found == set(), "these are handed on: take them out of MEANT"
    assert handed_on > 100


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        ("measure_classes(settings, output, quiet, subject, path)", []),
        ("measure_classes(settings, output, quiet, path=path)", ["subject"]),
        ("measure_classes(**how)", []),
    ],
)
def test_a_forgotten_argument_is_seen(call, missing, monkeypatch):
    declared = (["settings", "output", "quiet", "subject", "path"], {"subject", "path"})
    monkeypatch.setitem(callees(), "measure_classes", [declared])
    text = f"def explain(settings, output, quiet, subject, path, how): {call}"
    found, _ = forgotten(ast.parse(text))
    assert found == [("explain", "measure_classes", name) for name in missing]
