"""One word, one sense: classes, names in the code, options and pages keep to the list of words."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import quoted_names
from trees import tree_of

import anisoscope

PACKAGE = Path(anisoscope.__file__).parent


@cache
def sources():
    """{path below the package: syntax tree} of every module."""
    return {
        path.relative_to(PACKAGE).as_posix(): tree_of(path)
        for path in sorted(PACKAGE.rglob("*.py"))
    }


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
    trees = {
        "a.py": ast.parse("class Size: ..."),
        "b.py": ast.parse("def f():\n    class Size: ..."),
    }
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
    return [
        f"{path}:{line} {name}"
        for path, tree in trees.items()
        for line, name in assigned(tree)
        if name in EMPTY
    ]


def test_names_say_what_they_hold():
    assert not nameless(sources())


def documented(trees):
    """(place, docstring): of modules, classes and functions, and texts below an assignment."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                for child in node.body:
                    if isinstance(child, ast.Expr) and isinstance(
                        getattr(child.value, "value", None), str
                    ):
                        yield f"{path}:{child.lineno}", child.value.value


def beginning_with_of(trees):
    return [
        place for place, text in documented(trees) if text.lstrip().startswith("Of ")
    ]


def test_docstrings_begin_with_a_noun_or_a_verb():
    assert not beginning_with_of(sources())


def test_a_nameless_name_and_a_docstring_that_begins_with_of_are_seen():
    body = 'def f(of):\n    """Of all."""\n    for told in of:\n        pass\n'
    tree = ast.parse(body + 'x = 1\n"""Of x."""\nlambda had: had')
    assert nameless({"a.py": tree}) == ["a.py:1 of", "a.py:3 told", "a.py:7 had"]
    assert beginning_with_of({"a.py": tree}) == ["a.py:6", "a.py:2"]
    assert not nameless({"a.py": ast.parse("def told(of_all): f(of=1, said=2)")})


INSTEAD = {
    "planted": "synthetic",
    "visible": "masking",
    "unrectified": "pre-activation",
    "replacement": "ablation",
}
"""Words that names in the code do not use, and the field's."""


def words_of(name):
    """`classSizes_of` → class, sizes, of."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def named(tree):
    """Names that a tree gives: to classes, functions, arguments and what is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
    yield from assigned(tree)


def not_the_fields(trees):
    return [
        f"{path}:{line} {name}: say {INSTEAD[word]}"
        for path, tree in trees.items()
        for line, name in named(tree)
        for word in words_of(name)
        if word in INSTEAD
    ]


def test_names_are_the_fields_words():
    assert not not_the_fields(sources())


def test_another_word_than_the_fields_is_seen():
    tree = ast.parse(
        "class Visible: ...\ndef open_planted(): ...\nPLANTED = isVisible = 1"
    )
    seen = [
        "a.py:1 Visible",
        "a.py:2 open_planted",
        "a.py:3 PLANTED",
        "a.py:3 isVisible",
    ]
    assert [
        line.partition(": say")[0] for line in not_the_fields({"a.py": tree})
    ] == seen


WORDS = "anisotropy drift sharpness alignment site unit group interval run record study claim verdict"


def missing_from_glossary(page):
    """Words of the house that the glossary does not explain; each row needs its meaning and what to do about it."""
    rows = re.findall(r"^\| \*\*(.+?)\*\*.*? \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    return set(WORDS.split()) - {
        word for words, _, _ in rows for word in re.findall(r"\w+", words)
    }


def test_the_glossary_explains_every_word_of_the_house():
    page = (PACKAGE.parents[1] / "docs" / "concepts.md").read_text("utf-8")
    assert not missing_from_glossary(page)
    assert missing_from_glossary(page.replace("| **drift** |", "| **shift** |")) == {
        "drift"
    }


IN_PROSE = {
    r"planted": "synthetic",
    r"unrectified": "pre-activation",
    r"utterance states?": "pooled vectors",
    r"visible (?!keys|pairs)\w+ mask|visibility": "masking",
    r"(?:attention |saliency |word )?maps? over words|random map|saliency maps?": "attribution",
    r"attention replacements?|replacements? of attention": "ablation",
    r"gold words|explained words": "rationale",
    r"unit vectors? of the mean": "direction",
}
"""Phrases that pages and the help of commands do not use, and the field's word."""


def prose_of(page):
    """The text of a page without code; of the command line's page everything."""
    text = page.read_text("utf-8")
    if page.name != "cli.md":
        return re.sub(r"```.*?```|`[^`\n]*`", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text)


def other_words(text):
    return [
        f"{found[0]}: say {better}"
        for word, better in IN_PROSE.items()
        for found in re.finditer(rf"\b(?:{word})\b", text, re.I)
    ]


def test_pages_and_help_use_the_fields_words():
    root = PACKAGE.parents[1]
    pages = [
        root / "README.md",
        *sorted((root / "docs").rglob("*.md")),
        PACKAGE / "report" / "page.toml",
    ]
    made = {page.name: other_words(prose_of(page)) for page in pages}
    assert not {name: words for name, words in made.items() if words}


def test_another_word_than_the_fields_is_seen_in_prose():
    assert other_words("Saliency maps of planted words") == [
        "planted: say synthetic",
        "Saliency maps: say attribution",
    ]
    assert not other_words("synthetic words, explanted, and a site map")


FOREIGN = frozenset(
    {
        "AttentionLayers",
        "BatchEncoding",
        "FSDPBertLayer",
        "Label",
        "TransformerEncoder",
        "add_callback",
        "build_inputs_with_special_tokens",
        "dim_1",
        "query_normalised",
        "trainer",
    }
)
"""Names of other packages, of columns in examples, and names that the code puts together: it does not have them."""


def test_docstrings_name_what_the_code_has():
    """A function that was renamed stays in the docstrings of others, unless somebody looks."""
    assert not quoted_names.find_unknown_names([PACKAGE], FOREIGN)


def test_a_name_that_the_code_has_not_is_seen(tmp_path):
    lines = [
        '"""Looks at `sums.groups`, `_make_table(frame)`, `plain` words, `a b`, `x.wav`; `_old_name` is gone."""',
        "def _make_table(frame):",
        "    # See `other_module.make`, not `groups`.",
        "    return sums",
    ]
    (tmp_path / "groups.py").write_text("\n".join(lines))
    found = quoted_names.find_unknown_names([tmp_path])
    assert found == [
        f"{tmp_path.name}/groups.py:1 _old_name",
        f"{tmp_path.name}/groups.py:3 other_module.make",
    ]
    assert (
        quoted_names.find_unknown_names(
            [tmp_path], frozenset({"_old_name", "other_module", "make"})
        )
        == []
    )
