"""Syntax trees of Python files, read once in a process; nobody changes them."""

import ast
from functools import cache


@cache
def tree_of(path):
    return ast.parse(path.read_text("utf-8"))
