"""Names of models and corpora before anything is loaded: what a slip is compared with, and messages word for word."""

import pytest

from anisoscope.data import check_names, corpora
from anisoscope.data.corpora import NamedCorpus
from anisoscope.errors import CorpusError, ModelError

TABLE = {
    "long-reviews": NamedCorpus("text", "texts", hub="a/reviews"),
    "long-revues": NamedCorpus("labelled", "texts with classes", hub="a/revues"),
}


@pytest.fixture(autouse=True)
def table(monkeypatch, tmp_path):
    """A text corpus and one with classes of almost the same name, an empty folder, and no folder of data."""
    for module in (check_names, corpora):
        monkeypatch.setattr(module, "named_corpora", lambda: TABLE)
    monkeypatch.setattr(check_names, "list_corpora", lambda: TABLE)
    monkeypatch.setattr(check_names, "require_extra", lambda *_: None)
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def message_of(error, call, *given, **how):
    with pytest.raises(error) as caught:
        call(*given, **how)
    return str(caught.value)


def test_a_misspelt_corpus_is_compared_with_those_of_its_kind():
    for labelled, name in ((False, "long-reviews"), (True, "long-revues")):
        check_names.check_corpus(name, labelled=labelled)
        slip = name[:-1] + "z"
        message = message_of(
            CorpusError, check_names.check_corpus, slip, labelled=labelled
        )
        assert message.startswith(f"expected a corpus' name; got {slip!r}. Cure: ")
        other = TABLE.keys() - {name}
        assert name in message and not any(each in message for each in other)


def test_a_misspelt_model_is_named_with_its_revision_and_corrected_without():
    message = message_of(ModelError, check_names.check_model, "builtin:minlim@v2")
    start, cure = message.split(". Cure: ")
    assert start == "expected a model's name; got 'builtin:minlim@v2'"
    assert "builtin:minilm" in cure and "v2" not in cure


def test_a_path_that_is_not_there_is_named_as_it_was_written(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "text.txt").write_text("x")
    for error, call, expected in (
        (ModelError, check_names.check_model, "a checkpoint or a file of vectors"),
        (CorpusError, check_names.check_corpus, "a file or folder"),
    ):
        message = message_of(error, call, "runs/texd.txt")
        assert message.startswith(
            f"expected {expected}; got runs/texd.txt, which is not there. Cure: "
        )
        assert "runs/text.txt" in message
    assert check_names.suggest_path("runs/texd.txt") == "runs/text.txt"


def test_texts_for_a_corpus_are_cut_in_the_message():
    text = "a text of several words " * 5
    assert message_of(CorpusError, check_names.check_corpus, text) == (
        f"expected a file, a folder or the name of a corpus; got the text {text[:60]!r}. "
        "Cure: write texts into a file, one a line; in Python give a list of them"
    )


def test_only_a_function_that_makes_a_model_needs_no_packages(monkeypatch):
    asked = []
    monkeypatch.setattr(
        check_names, "require_extra", lambda *given: asked.append(given)
    )
    for name in ("module:function", "builtin:minilm", "builtin:other", "a/b:c", "bert"):
        check_names.require_for_model(name)
    assert asked == [
        (
            "demo" if name == "builtin:minilm" else "models",
            f"to load {name}",
        )
        for name in ("builtin:minilm", "builtin:other", "a/b:c", "bert")
    ]
