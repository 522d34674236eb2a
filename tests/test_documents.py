"""What a document is: the rules by which a text gives units, and that no more is read than is asked for."""

import json
import sys

import pytest
import transformers

from anisoscope.__main__ import main as typed_main
from anisoscope.data import builtin
from anisoscope.data.splitting import split_text
from anisoscope.data.text import open_text, plan_text
from anisoscope.errors import UsageError


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return str(path)


ROWS = "\n".join(json.dumps({"text": f"a good row {k}"}) for k in range(40))

PARAGRAPHS = "\n\n".join(
    f"Document {i}. The cat sat on the mat number {i} and looked at the dog."
    for i in range(40)
)


def planned(path, documents="auto", limit=None):
    found = open_text(path, documents=documents, limit=limit)
    tokenizer = transformers.ByT5Tokenizer()
    return found, plan_text(found, tokenizer, max_length=64, batch_tokens=512)


@pytest.mark.parametrize(
    ("text", "documents", "units", "how"),
    [
        (PARAGRAPHS, "auto", 40, "blank lines"),
        (PARAGRAPHS.replace("\n\n", "\n"), "auto", 40, "lines"),
        (PARAGRAPHS.replace("\n\n", " "), "auto", 86, "blocks of 32 tokens"),
        (PARAGRAPHS * 9, "auto", 352, "blank lines"),
        (PARAGRAPHS.replace("\n\n", " ") * 9, "auto", 193, "blocks of 128 tokens"),
        (PARAGRAPHS.replace("\n\n", "\n") * 9, "auto", 193, "blocks of 128 tokens"),
        (PARAGRAPHS, "file", 1, "files"),
        (PARAGRAPHS, "line", 40, "lines"),
        (PARAGRAPHS, "blank-line", 40, "blank lines"),
        (PARAGRAPHS, "tokens:100", 28, "blocks of 100 tokens"),
        (f" = One = \n\n{PARAGRAPHS}", "auto", 41, "blank lines"),
    ],
)
def test_a_text_gives_units_enough_for_an_interval(
    tmp_path, text, documents, units, how
):
    """40 paragraphs were 2 units, whose interval says nothing."""
    found, plan = planned(written(tmp_path / "t.txt", text), documents)
    assert (plan.n_units, found.source["documents"]) == (units, how)
    assert any("split into units by" in note for note in plan.warnings) == (
        documents == "auto"
    )


@pytest.mark.parametrize(
    ("count", "word"), [(19, "block"), (20, "paragraph"), (21, "paragraph")]
)
def test_twenty_paragraphs_are_enough_for_an_interval(count, word):
    """Of fewer long ones blocks of tokens are made."""
    paragraph = " ".join(["a" * 99] * 9)
    text = "\n\n".join([paragraph] * count)
    found = split_text(text)
    assert (found.unit, found.guessed) == (word, True)
    assert len(found.documents) == count if word == "paragraph" else found.block == 128


def test_rules_of_documents_are_part_of_a_plan(tmp_path):
    """Another rule is another plan, with another fingerprint; a limit does not change the rule."""
    path = written(tmp_path / "t.txt", PARAGRAPHS)
    rules = ("auto", "file", "tokens:100", "tokens:101")
    assert len({planned(path, rule)[1].fingerprint for rule in rules}) == 4
    found, plan = planned(path, limit=3)
    assert plan.n_units == 3 and found.source["documents"] == "blank lines"
    written(tmp_path / "rows.jsonl", ROWS)
    assert planned(str(tmp_path / "rows.jsonl"), "tokens:50")[1].n_units == 11
    folder = tmp_path / "texts"
    written(folder / "a.txt", PARAGRAPHS)
    assert planned(str(folder))[1].n_units == 40
    written(folder / "b.txt", PARAGRAPHS)
    assert (
        planned(str(folder))[1].n_units == 2
        and planned(str(folder), "blank-line")[1].n_units == 80
    )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("lines", "did you mean line"),
        ("tokens", "--documents out of"),
        ("tokens:0", "for example tokens:512"),
        ("tokens:many", "for example tokens:512"),
    ],
)
def test_rules_that_are_none(tmp_path, rule, message):
    with pytest.raises(UsageError, match=message):
        open_text(written(tmp_path / "t.txt", PARAGRAPHS), documents=rule)


def test_rules_where_there_is_nothing_to_choose(tmp_path):
    path = written(tmp_path / "t.jsonl", ROWS)
    with pytest.raises(
        UsageError,
        match=r"no --documents but tokens:N with the table .*every row is a document",
    ):
        open_text(path, documents="line")
    with pytest.raises(UsageError, match="--documents only with text of your own"):
        open_text("builtin:python-docs", documents="line")


@pytest.mark.usefixtures("no_page")
def test_documents_through_the_program(tmp_path, monkeypatch):
    """The manifest says what a unit was and what things are called."""
    path = written(tmp_path / "t.txt", PARAGRAPHS)
    given = (
        "measure",
        "builtin:minilm",
        "-c",
        path,
        "--panel",
        "hidden",
        "-q",
        "-o",
        str(tmp_path / "run"),
    )
    monkeypatch.setattr(sys, "argv", ["anisoscope", *given])
    typed_main()
    corpus = json.loads((tmp_path / "run" / "manifest.json").read_text())["corpus"]
    assert (corpus["n_units"], corpus["documents"], corpus["words"]["unit"]) == (
        40,
        "blank lines",
        "paragraph",
    )


def test_only_what_a_limit_asks_for_is_parsed(monkeypatch):
    """The whole standard library was parsed, 2.4 s, before `--limit` cut it."""
    parsed = []
    parse = builtin._parse
    monkeypatch.setattr(
        builtin, "_parse", lambda path: parsed.append(path) or parse(path)
    )
    found = open_text("builtin:python-docs", limit=5)
    assert len(found.documents) == 5 and len(parsed) < 12
