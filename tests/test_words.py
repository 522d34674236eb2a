"""One word, one sense: classes, names in the code, options and pages keep to the list of words."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import anisoscope

PACKAGE = Path(anisoscope.__file__).parent


@cache
def sources():
    """{path below the package: syntax tree} of every module."""
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def defined_twice(trees):
    """{class name: modules} of classes that more than one module defines."""
    found = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_no_two_classes_have_one_name():
    assert not defined_twice(sources())


def test_a_class_defined_twice_is_seen():
    trees = {"a.py": ast.parse("class Size: ..."), "b.py": ast.parse("def f():\n    class Size: ...")}
    assert defined_twice(trees) == {"Size": ["a.py", "b.py"]}


def assigned(tree):
    """(line, name) of every argument and every name that is bound anywhere in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


EMPTY = {"told", "said", "had", "of"}
"""Words that do not say what a name holds."""


def nameless(trees):
    return [f"{path}:{line} {name}" for path, tree in trees.items() for line, name in assigned(tree) if name in EMPTY]


def test_names_say_what_they_hold():
    assert not nameless(sources())


def documented(trees):
    """(place, docstring): of modules, classes and functions, and texts below an assignment."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                for child in node.body:
                    if isinstance(child, ast.Expr) and isinstance(getattr(child.value, "value", None), str):
                        yield f"{path}:{child.lineno}", child.value.value


def beginning_with_of(trees):
    return [place for place, text in documented(trees) if text.lstrip().startswith("Of ")]


def test_docstrings_begin_with_a_noun_or_a_verb():
    assert not beginning_with_of(sources())


def test_a_nameless_name_and_a_docstring_that_begins_with_of_are_seen():
    body = 'def f(of):\n    """Of all."""\n    for told in of:\n        pass\n'
    tree = ast.parse(body + 'x = 1\n"""Of x."""\nlambda had: had')
    assert nameless({"a.py": tree}) == ["a.py:1 of", "a.py:3 told", "a.py:7 had"]
    assert beginning_with_of({"a.py": tree}) == ["a.py:6", "a.py:2"]
    assert not nameless({"a.py": ast.parse("def told(of_all): f(of=1, said=2)")})
