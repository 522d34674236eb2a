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
