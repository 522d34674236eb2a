"""Text corpora: documents out of every kind of source, and the error for every one that cannot be read."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import datasets
import pandas as pd
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

import anisoscope.data
from anisoscope.data import builtin, check_names, hub as hub_module
from anisoscope.data.builtin import python_docs
from anisoscope.data.corpora import (
    CORPORA,
    OPENERS,
    HubPart,
    NamedCorpus,
    list_corpora,
    named_corpora,
    open_corpus,
)
from anisoscope.data.plans import hash_parts
from anisoscope.data.splitting import split_articles
from anisoscope.data.text import TextCorpus, open_text
from anisoscope.errors import CorpusError, ModelError, UsageError


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode()
    )
    return str(path)


WIKI = (
    "\n = One = \n \n Text of one . \n \n = = Part = = \n \n More = of = it . \n = 3 = \n \n"
    " = Two ( b ) = \n \n Text . \n"
)
ARTICLES = [
    "= One = \n \n Text of one . \n \n = = Part = = \n \n More = of = it . \n = 3 =",
    "= Two ( b ) = \n \n Text .",
]
LONG = "word " * 210


def test_wikitext_articles_begin_at_level_one_titles_after_a_blank_line(
    tmp_path: Path,
) -> None:
    found = open_text(write(tmp_path / "wiki.raw", WIKI))
    assert (
        found.documents == ARTICLES
        and found.block is None
        and found.source["documents"] == "titles"
    )
    assert open_text(str(tmp_path / "wiki.raw"), limit=1).documents == ARTICLES[:1]
    rows = "\n".join(json.dumps({"text": f"{line}\n"}) for line in WIKI.split("\n"))
    from_rows = open_text(write(tmp_path / "wiki.jsonl", rows))
    assert (
        from_rows.documents == ARTICLES and from_rows.fingerprint == found.fingerprint
    )


@pytest.mark.parametrize(
    ("line", "count"),
    [(" = A = ", 2), (" = a = b = ", 2), (" = = A = = ", 1), (" = A = = ", 1)],
)
def test_titles_have_one_sign_on_each_side(line: str, count: int) -> None:
    assert (
        len(
            list(
                split_articles(
                    f" = Title = \n \n text \n \n{line}\n \n text \n".split("\n")
                )
            )
        )
        == count
    )


def test_blank_lines_separate_documents_but_not_paragraphs(tmp_path: Path) -> None:
    found = open_text(
        write(tmp_path / "a.txt.gz", f"{LONG}\n{LONG}\n\n{LONG}\n \n\n{LONG}\n")
    )
    assert (
        len(found.documents) == 3
        and found.source["documents"] == "blank lines"
        and not found.notes
    )
    assert len(open_text(str(tmp_path / "a.txt.gz"), limit=2).documents) == 2
    text = "A paragraph.\n\nAnother one.\r\n\r\nA third."
    found = open_text(write(tmp_path / "b.txt", text), limit=2, documents="tokens:8192")
    assert (
        found.documents == [text.replace("\r", "")]
        and found.block == 8192
        and found.limit == 2
    )
    assert found.source["documents"] == "blocks of 8192 tokens"


def test_rows_of_json_lines_and_parquet(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "text": "one"},
        {"id": 2, "text": " "},
        {"id": 3, "text": None},
        {"id": 4, "text": "four"},
    ]
    lines = "\n\n".join(map(json.dumps, rows))
    found = open_text(write(tmp_path / "a.jsonl.gz", lines))
    assert found.documents == ["one", "four"]
    assert (found.source["column"], found.source["empty"], found.source["kind"]) == (
        "text",
        2,
        "file",
    )
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    from_parquet = open_text(str(tmp_path / "a.parquet"))
    assert (
        from_parquet.documents == found.documents
        and from_parquet.fingerprint == found.fingerprint
    )
    assert open_text(str(tmp_path / "a.parquet"), column="text", limit=1).documents == [
        "one"
    ]


def test_the_text_column_is_guessed_or_named(tmp_path: Path) -> None:
    name = write(
        tmp_path / "a.jsonl",
        json.dumps({"tokens": ["a", "b"], "premise": "p", "label": "l"}),
    )
    assert open_text(name).documents == ["a b"]
    assert open_text(name, column="premise").documents == ["p"]
    assert open_text(
        write(tmp_path / "b.jsonl", '{"n": 1, "review": "good"}')
    ).documents == ["good"]
    with pytest.raises(
        CorpusError,
        match=r"a column 'premisse' in .*; got the columns tokens, premise, label.*mean premise",
    ):
        open_text(name, column="premisse")
    with pytest.raises(
        CorpusError,
        match=r"a text column in .*; got the columns premise, label. Cure: choose one with --column",
    ):
        open_text(write(tmp_path / "c.jsonl", '{"premise": "p", "label": "l"}'))


def test_a_folder_is_one_document_per_file_or_all_rows(tmp_path: Path) -> None:
    for path, text in {
        "b.txt": "two\n\ntwo",
        "a/z.txt.gz": "one",
        "c.txt": " ",
        ".hidden.txt": "no",
        "d.bin": "\0",
    }.items():
        write(tmp_path / "texts" / path, text)
    found = open_text(str(tmp_path / "texts"))
    assert found.documents == ["one", "two\n\ntwo"]
    assert (found.source["kind"], found.source["documents"], found.source["empty"]) == (
        "folder",
        "files",
        1,
    )
    assert open_text(str(tmp_path / "texts"), limit=1).documents == ["one"]
    for k in range(2):
        write(tmp_path / "rows" / f"{k}.jsonl", json.dumps({"text": f"row {k}"}))
    assert open_text(str(tmp_path / "rows")).documents == ["row 0", "row 1"]
    write(tmp_path / "rows" / "c.txt", "text")
    with pytest.raises(
        CorpusError, match=r"got 1 text files, 2 tables and 0 other files"
    ):
        open_text(str(tmp_path / "rows"))
    write(tmp_path / "texts" / "bad.txt", "\0")
    with pytest.raises(
        CorpusError, match=r"UTF-8 text in .*bad\.txt; got a binary file"
    ):
        open_text(str(tmp_path / "texts"))
    assert open_text(str(tmp_path / "texts"), skip_bad=True).source["skipped"] == 1


def test_names_under_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    write(tmp_path / "set" / "valid.raw.txt.gz", "some text")
    write(tmp_path / "set" / "rows.jsonl", '{"text": "row"}')
    write(tmp_path / "set" / "notes.pdf", "no text")
    assert (
        open_text("set/valid.raw").documents
        == open_text("set/valid.raw.txt.gz").documents
        == ["some text"]
    )
    assert open_text("set/rows").documents == ["row"]
    assert set(list_corpora()) == {*named_corpora(), "set/valid.raw", "set/rows"}
    with pytest.raises(
        CorpusError,
        match=r"got 'set/vald.raw.txt', which does not exist. Cure: did you mean set/valid.raw",
    ):
        open_text("set/vald.raw.txt")
    monkeypatch.delenv("ANISOSCOPE_DATA")
    assert set(list_corpora()) == set(named_corpora())
    with pytest.raises(
        CorpusError, match=r"ANISOSCOPE_DATA, a folder of corpora, is not set"
    ):
        open_text("set/valid.raw.txt")


def test_fingerprint_is_that_of_the_texts(tmp_path: Path) -> None:
    one, same, other = (
        open_text(write(tmp_path / f"{k}.txt", text))
        for k, text in enumerate(["ab", "ab", "ac"])
    )
    assert (
        one.fingerprint == same.fingerprint != other.fingerprint
        and len(one.fingerprint) == 64
    )
    assert hash_parts(["a", "bc"]) != hash_parts(["ab", "c"])


# ---- sources that cannot be read


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("a.txt", b"", r"text in .*a\.txt; got no text"),
        ("a.txt", b" \n\n \n", "got no text"),
        ("a.jsonl", b"", "got no text"),
        ("a.jsonl", b'{"text": ""}\n{"text": null}', "got no text .2 empty documents"),
        (
            "a.txt",
            b"ab\0cd",
            r"UTF-8 text in .*; got a binary file \(it holds NUL bytes\)",
        ),
        (
            "a.txt",
            "é".encode("latin-1"),
            "got a byte that is not UTF-8 at position 0.*iconv",
        ),
        ("a.txt.gz", b"not gzip", "a gzip file in .*copy the file again"),
        ("a.txt.gz", gzip.compress(b"text" * 99, mtime=0)[:-12], "a gzip file in"),
        (
            "a.jsonl",
            b'{"text": "a"}\n\nno json',
            "one JSON object per line in .*; got line 3: 'no json'.*--skip-bad",
        ),
        ("a.jsonl", b"7", "got line 1"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": 5}',
            "text in column 'text' of .*; got line 2: int",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"no": "a"}', "got line 2 without that column"),
        ("a.parquet", b"PAR1 no", "a parquet file in"),
        (
            "a.csv",
            b"label,n\na,b",
            r"a text column in .*; got the columns label, n. Cure: choose one with --column",
        ),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, file: str, data: bytes, message: str
) -> None:
    (tmp_path / file).write_bytes(data)
    with pytest.raises(CorpusError, match=message):
        open_text(str(tmp_path / file))


def test_bad_lines_are_skipped_and_counted_on_request(tmp_path: Path) -> None:
    name = write(
        tmp_path / "a.jsonl", 'no json\n{"text": "a"}\n{"text": 5}\n[1]\n{"text": "b"}'
    )
    found = open_text(name, skip_bad=True)
    assert found.documents == ["a", "b"] and found.source["skipped"] == 3


def test_options_that_a_source_does_not_have(tmp_path: Path) -> None:
    name = write(tmp_path / "a.txt", "text")
    with pytest.raises(
        UsageError,
        match=r"no --split, --revision with .*; got --split, --revision with ",
    ):
        open_text(name, split="test", revision="main")
    with pytest.raises(UsageError, match=r"got --column with builtin:python-docs"):
        open_text("builtin:python-docs", column="text")
    with pytest.raises(UsageError, match=r"limit of at least 1 unit; got 0"):
        open_text("builtin:python-docs", limit=0)
    with pytest.raises(
        CorpusError, match=r"because --column names a column; got .*leave --column out"
    ):
        open_text(name, column="text")


@pytest.mark.parametrize(
    "name",
    ["builtin:python-doc", "./nothing", "/no/such/file.txt", "a/b/c", "", "no such"],
)
def test_unknown_names_need_no_network(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hub_module, "find_set", lambda *_: pytest.fail("the hub was asked")
    )
    with pytest.raises(
        CorpusError, match=r"which does not exist. Cure: (did you mean|known names)"
    ):
        open_text(name)


# ---- the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A hub of one data set, whose rows the real `datasets` reads from a folder; what the last call asked for."""
    for split, count in {"train": 5, "validation": 3}.items():
        rows = (json.dumps({"text": f"{split} {k}", "label": k}) for k in range(count))
        write(tmp_path / "set" / f"{split}.jsonl", "\n".join(rows))
    called: dict[str, object] = {}
    load = datasets.load_dataset

    def load_dataset(name: str, config: str | None = None, **options: object) -> object:
        called.update(options, name=name, config=config)
        return load(str(tmp_path / "set"), streaming=True)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(
        hub_module, "find_set", lambda part: hub_module.HubSet(part.id, "c0ffee")
    )
    return called


def test_hub_data_sets_are_streamed_at_their_commit(hub: dict[str, object]) -> None:
    found = open_text("someone/set@v1", limit=2)
    assert found.documents == ["validation 0", "validation 1"]
    assert hub == {
        "name": "someone/set",
        "config": None,
        "revision": "c0ffee",
        "streaming": True,
    }
    expected = {
        "kind": "hub",
        "id": "someone/set",
        "split": "validation",
        "revision": "v1",
        "commit": "c0ffee",
    }
    assert expected.items() <= found.source.items()
    assert (
        len(open_text("someone/set:small", split="train").documents) == 5
        and hub["config"] == "small"
    )
    with pytest.raises(
        CorpusError,
        match=r"a split of someone/set; got valid. Cure: did you mean validation",
    ):
        open_text("someone/set", split="valid")
    with pytest.raises(
        UsageError, match=r"one revision; got someone/set@v1 and revision v2"
    ):
        open_text("someone/set@v1", revision="v2")
    with pytest.raises(
        CorpusError,
        match=r"a column 'body' in someone/set, split validation; got the columns text, label",
    ):
        open_text("someone/set", column="body")


def test_presets_name_their_configuration_and_split(
    hub: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_text("wikitext-103@main")
    assert (hub["name"], hub["config"]) == (
        "Salesforce/wikitext",
        "wikitext-103-raw-v1",
    )
    assert (found.source["split"], found.source["revision"]) == ("validation", "main")
    assert open_text("wikitext-103", split="train").documents[0] == "train 0"
    monkeypatch.setitem(
        CORPORA, "preset", NamedCorpus("text", "", hub="some/set:config", split="train")
    )
    assert open_text("preset").documents[0] == "train 0"


def test_split_is_validation_then_test_then_train() -> None:
    assert (
        hub_module.choose_split(["train", "test", "validation"], None, "x")
        == "validation"
    )
    assert hub_module.choose_split(["train", "test"], None, "x") == "test"
    assert hub_module.choose_split(["other"], None, "x") == "other"


def test_without_a_network_the_message_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        hub_module, "find_set", lambda part: hub_module.HubSet(part.id, None)
    )
    message = (
        "the hub, or a cached copy of no-one/nothing; got no network and no "
        "such copy. Cure: .*builtin:python-docs"
    )
    with pytest.raises(CorpusError, match=message) as caught:
        open_text("no-one/nothing")
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert datasets.config.HF_HUB_OFFLINE is (os.environ.get("HF_HUB_OFFLINE") == "1")


def test_a_connection_that_breaks_while_reading() -> None:
    def rows() -> Iterator[dict[str, object]]:
        yield {"text": "one"}
        raise ConnectionResetError

    reading = hub_module.number_rows(rows(), "some/set")
    assert next(reading) == ("row 1", {"text": "one"})
    with pytest.raises(
        CorpusError,
        match=r"all rows of some/set; got a broken connection \(ConnectionResetError\)",
    ):
        next(reading)


def test_answers_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    part = HubPart(
        "some/set", "text", "some/set", revision="v1", cure="did you mean some/sets?"
    )

    def answer(error: Exception | None) -> str | None:
        def dataset_info(*_: object, **__: object) -> object:
            if error is not None:
                raise error
            return type("Info", (), {"sha": "c0ffee"})

        monkeypatch.setattr(HfApi, "dataset_info", dataset_info)
        return hub_module.find_set(part).commit

    def status(kind: type[HfHubHTTPError], code: int = 404) -> HfHubHTTPError:
        error = kind.__new__(kind)
        Exception.__init__(error, str(code))
        error.response = SimpleNamespace(status_code=code, headers={})
        return error

    network = HfHubHTTPError.__mro__[1]("no route")
    assert answer(None) == "c0ffee"
    assert (
        answer(network) is None
        and answer(ConnectionError()) is None
        and answer(status(HfHubHTTPError, 503)) is None
    )
    with pytest.raises(
        CorpusError,
        match=r"a revision of the data set some/set; got v1. Cure: leave the revision out",
    ):
        answer(status(RevisionNotFoundError))
    with pytest.raises(
        CorpusError,
        match=r"neither here nor on the hub. Cure: did you mean some/sets.*hf auth login",
    ):
        answer(status(RepositoryNotFoundError))


# ---- the documentation of Python


@pytest.fixture(scope="module")
def python() -> TextCorpus:
    return open_text("builtin:python-docs")


def test_python_docs_are_text_enough_and_recorded(python: TextCorpus) -> None:
    assert (
        sum(len(text.split()) for text in python.documents) >= 150_000
        and len(python.documents) > 200
    )
    assert (
        python.source["python"] == ".".join(map(str, sys.version_info[:3]))
        and python.source["skipped"] == 0
    )
    assert not {"antigravity", "this"} & set(sys.modules)
    text = "\n".join(python.documents)
    assert ">>> " not in text and "Command-line parsing library" in text
    assert "defined as multiplication with" in text, (
        "the topics of the language reference"
    )


def test_python_docs_are_docstrings_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "b.py",
        '"""Module b."""\nclass A:\n  """Class A."""\n  def f(self):\n    """Method f."""\n    def g(): "Inner."\n',
    )
    write(
        tmp_path / "a" / "__init__.py",
        '"""Package a.\n\n    >>> 1\n    1\n\nTitle\n-----\ntwo\nlines"""\ndef _p(): "Private."\n',
    )
    write(tmp_path / "a" / "c.py", 'raise SystemExit("imported")\ndef f(): "Of c."\n')
    write(tmp_path / "_hidden.py", '"""Hidden."""')
    write(tmp_path / "test" / "test_a.py", '"""A test."""')
    write(tmp_path / "broken.py", "def (")
    write(tmp_path / "silent.py", "x = 1")
    write(
        tmp_path / "pydoc_data" / "topics.py",
        "topics = {'b': 'Topic b.', 'a': 'Topic a.'}\n",
    )
    reading, source = python_docs(library=tmp_path)
    modules = ["Package a.\nTitle two lines", "Of c.", "Module b.\nClass A.\nMethod f."]
    assert reading.documents == [*modules, "Topic a.", "Topic b."]
    assert (reading.skipped, reading.empty, source["kind"]) == (1, 1, "builtin")
    monkeypatch.setattr(builtin.sysconfig, "get_path", lambda _: str(tmp_path))
    assert open_text("builtin:python-docs", limit=2).documents == modules[:2]
    (tmp_path / "none").mkdir()
    with pytest.raises(
        CorpusError, match=r"sources of the standard library in .*full CPython"
    ):
        python_docs(library=tmp_path / "none")


# ---- the registry


def test_registry_names_every_preset_and_opens_it(tmp_path: Path) -> None:
    for corpus in named_corpora().values():
        assert corpus.modality in OPENERS and bool(corpus.maker) != bool(corpus.hub)
        module, _, function = corpus.maker.partition(":")
        assert not corpus.maker or callable(getattr(import_module(module), function))
    assert open_corpus(write(tmp_path / "a.txt", "text"), limit=1).documents == ["text"]
    with pytest.raises(UsageError, match=r"a modality out of text.*; got 'smell'"):
        open_corpus("x", modality="smell")


@pytest.mark.parametrize(
    ("name", "asked", "opened"),
    [
        ("builtin:digits", None, "image"),
        ("builtin:digits", "text", "image"),
        ("imdb", None, "labelled"),
        ("imdb", "labelled", "labelled"),
        ("imdb", "text", "text"),  # texts with labels are texts too
        ("mine.txt", None, "text"),
        ("mine", "speech", "speech"),
    ],
)
def test_a_corpus_is_opened_as_what_it_is(name, asked, opened, monkeypatch) -> None:
    monkeypatch.setattr(
        "anisoscope.data.corpora._import_function",
        lambda function: lambda *_, **__: function,
    )
    assert open_corpus(name, modality=asked) == OPENERS[opened][0]


def test_labelled_texts_are_opened_by_name() -> None:
    assert open_corpus("synthetic", limit=40).labels == ("class 1", "class 2")


def test_the_registry_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'datasets', 'pyarrow', 'pandas'}"
    code = f"import sys, anisoscope.data.corpora as d; d.list_corpora(); assert not {heavy} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(anisoscope.data.__file__).parent,
    )


@pytest.mark.parametrize(
    ("name", "can_only_be_one"),
    [
        ("a/b", False),
        ("a/b/c", True),
        ("./a", True),
        ("/a", True),
        ("~/a", True),
        ("a/", True),
        ("a.TXT", True),
    ]
    + [
        (f"corpus.{end}", True)
        for end in ("txt", "csv", "tsv", "json", "jsonl", "parquet", "gz", "npy", "npz")
    ]
    + [
        (f"corpus.{end}", True)
        for end in ("wav", "flac", "png", "jpg", "jpeg", "safetensors")
    ]
    + [("safetensors", False), ("wikitext-103", False), ("org/name.txt.old", False)],
)
def test_what_can_only_be_a_path(name: str, can_only_be_one: bool) -> None:
    assert check_names._must_be_path(name) is can_only_be_one


def test_a_table_that_is_none_is_one_bad_row_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "rows" / "a.jsonl", json.dumps({"text": "row"}))
    write(tmp_path / "rows" / "b.parquet", "no parquet")
    with pytest.raises(CorpusError, match=r"b\.parquet"):
        open_text(str(tmp_path / "rows"))
    found = open_text(str(tmp_path / "rows"), skip_bad=True)
    assert found.documents == ["row"] and found.source["skipped"] == 1


@pytest.mark.parametrize(
    ("check", "name", "says"),
    [
        (check_names.check_model, "builtin:minilm", ""),
        (check_names.check_model, "builtin:minilm@main", ""),
        (check_names.check_model, "builtin:mini", "a model's name"),
        (check_names.check_model, "org/bert-base", ""),
        (check_names.check_model, "runs/no/such", "which is not there"),
        (check_names.check_model, "runs/{0..3}/no", ""),
        (check_names.check_corpus, "", ""),
        (check_names.check_corpus, "wikitext-103", ""),
        (check_names.check_corpus, "wikitext-10", "a corpus' name"),
        (check_names.check_corpus, "./no.txt", "which is not there"),
        (check_names.check_corpus, "org/data", ""),
        (check_names.check_labelled, "synthetic:3", ""),
        (check_names.check_labelled, "synthetc", "a corpus' name"),
        (check_names.check_labelled, "no/such.csv", "which is not there"),
    ],
)
def test_a_name_is_refused_where_it_cannot_be_right(check, name, says) -> None:
    if says:
        with pytest.raises((CorpusError, ModelError), match=says):
            check(name)
    else:
        check(name)
