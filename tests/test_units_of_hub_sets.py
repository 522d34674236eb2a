"""Data sets of the hub that cannot be had: what each error names and cures, word for word, and which commit it is."""

from types import SimpleNamespace

import datasets
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    RevisionNotFoundError,
)

from anisoscope.data import hub
from anisoscope.data.corpora import HubPart
from anisoscope.errors import CorpusError


def part(**given):
    wanted = {"name": "my/name", "id": "a/b", "modality": "text", "config": "c"}
    return HubPart(**(wanted | {"revision": "v1", "cure": "ask them"} | given))


def message_of(call, *given, **more):
    with pytest.raises(CorpusError) as caught:
        call(*given, **more)
    return str(caught.value)


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail


def reply(status):
    return SimpleNamespace(headers={}, request=None, status_code=status)


# ---- looking a set up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cure", "message"),
    [
        (HFValidationError("no such form"), "ask them",
         "expected a corpus; got 'a/b', which is neither here nor on the hub. "
         "Cure: ask them; a private or gated data set needs `hf auth login`"),
        (HFValidationError("no such form"), "",
         "expected a corpus; got 'a/b', which is neither here nor on the hub. "
         "Cure: names like my/name; a private or gated data set needs `hf auth login`"),
        (RevisionNotFoundError("x", response=reply(404)), "ask them",
         "expected a revision of the data set a/b; got v1. Cure: leave the revision out for the newest one"),
        (HfHubHTTPError("x", response=reply(403)), "ask them",
         "expected access to a/b; got a token without the right to read it (403). "
         "Cure: give the token the right to read it, or accept the repository's terms on its page"),
    ],
)  # fmt: skip
def test_a_set_that_is_not_found_says_why(monkeypatch, error, cure, message):
    """Names are suggested for the name that the user wrote."""
    monkeypatch.setattr("anisoscope.data.corpora._suggest", lambda name, _: f"names like {name}")  # fmt: skip
    monkeypatch.setattr(hub, "get_answer", fail_with(error))
    assert message_of(hub.find_set, part(cure=cure)) == message


def test_a_hub_that_fails_is_no_error_and_is_noted(monkeypatch):
    monkeypatch.setattr(hub, "get_answer", fail_with(HfHubHTTPError("x", response=reply(503))))  # fmt: skip
    found = hub.find_set(part())
    assert found == hub.HubSet(
        "a/b", None, "a failure of the hub itself (503): read from the local cache"
    )
    assert found.notes == {
        "hub": "a failure of the hub itself (503): read from the local cache"
    }
    assert hub.HubSet("a/b", None).notes == {} == hub.HubSet("a/b", "c1").notes
    assert hub.HubSet("a/b", "c1", "refused").notes == {"hub": "refused"}


def test_the_commit_of_a_set_is_the_hub_s_or_the_last_known(monkeypatch):
    monkeypatch.setattr(hub, "recall_commit", lambda *given: f"old of {given}")
    monkeypatch.setattr(hub, "find_set", lambda p: hub.HubSet(p.id, "new"))
    assert hub.find_commit_of_set(part()) == "new"
    old = "old of ('data set', 'a/b', 'v1')"
    monkeypatch.setattr(hub, "find_set", lambda p: hub.HubSet(p.id, None))
    assert hub.find_commit_of_set(part()) == old
    monkeypatch.setattr(hub, "find_set", fail_with(CorpusError("x", "y")))
    assert hub.find_commit_of_set(part()) == old
    assert hub.find_commit_of_set(part(revision=None)).endswith("'a/b', None)")


def test_what_the_hub_said_is_remembered_for_its_revision(monkeypatch):
    asked, kept = [], []

    class Info:
        sha = "c0ffee"

    def info(_self, name, **how):
        asked.append((name, how))
        return Info()

    monkeypatch.setattr(HfApi, "dataset_info", info)
    monkeypatch.setattr(hub, "get_timeout", lambda: 7)
    monkeypatch.setattr(hub, "get_answer", lambda _key, ask: ask())
    monkeypatch.setattr(hub, "with_token_fallback", lambda ask: (ask(False), False))
    monkeypatch.setattr(hub, "remember", lambda *given: kept.append(given))
    found = hub.find_set(part())
    message = (
        "the hub refuses the token; the data set is public and was read without it"
    )
    assert found == hub.HubSet("a/b", "c0ffee", message, False)
    assert asked == [("a/b", {"revision": "v1", "timeout": 7, "token": False})]
    assert kept == [("data set", "a/b", "v1", "c0ffee")]


# ---- reading it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modality", "fault", "cure", "got", "offline"),
    [
        ("text", "down: read from it", "ask them", "down", "builtin:python-docs"),
        ("image", "", "ask them", "no network", "builtin:digits"),
        ("labelled", "", "ask them", "no network", "synthetic"),
        ("speech", "x: y", "ask them", "x", "builtin:python-docs"),
    ],
)
def test_without_a_network_another_corpus_is_named(
    monkeypatch, modality, fault, cure, got, offline
):
    monkeypatch.setattr(datasets, "load_dataset", fail_with(ConnectionError()))
    for commit in (None, "c1"):
        found = hub.HubSet("new/id", commit, fault)
        text = message_of(hub.load_splits, found, part(modality=modality, cure=cure))
        assert text == (
            f"expected the hub, or a cached copy of new/id; got {got} and no such copy. Cure: {cure}; "
            "else connect to the network, or load it once where there is one and share its cache (HF_HOME), "
            f"or name a local file, or use {offline}, which needs no network"
        )


def test_a_name_that_may_be_a_path_is_told_what_lies_in_its_folder(
    monkeypatch, tmp_path
):
    """`many/some` beside a folder `many`: it spoke of built-in corpora and the network alone."""
    monkeypatch.setattr(datasets, "load_dataset", fail_with(ConnectionError()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "part-0.txt").write_text("a")
    found = hub.HubSet("many/some", None, "")
    text = message_of(hub.load_splits, found, part(id="many/some", cure=""))
    assert "Cure: the folder many has part-0.txt; else connect" in text


UNREADABLE = "expected a data set n that can be read; got {}. Cure: write a configuration as n:CONFIGURATION"
FILES = "expected files of data in n; got none that can be read. Cure: name another data set, or a local file"


@pytest.mark.parametrize(
    ("error", "terms", "message"),
    [
        (RuntimeError("Dataset scripts are no longer\n supported, but"), "",
         "expected a data set n of plain files; got a script, which is no longer run. "
         "Cure: read its conversion: n@refs/convert/parquet; or name a local copy"),
        (datasets.exceptions.DataFilesNotFoundError("x"), "", FILES),
        (datasets.data_files.EmptyDatasetError("x"), "", FILES),
        (RuntimeError("it is a gated dataset"), "",
         "expected access to n; got a gated data set. Cure: accept its terms on the hub, then `hf auth login`"),
        (RuntimeError("it is a gated dataset"), "the terms",
         "expected access to n; got a gated data set. Cure: the terms"),
        (HfHubHTTPError("x", response=reply(500)), "",
         "expected the complete data set n; got a failure of the hub itself (500). "
         "Cure: try again later; status.huggingface.co says more"),
        (ValueError("Config name\n\n  is missing."), "the terms", UNREADABLE.format("Config name is missing.")),
        (ValueError("x" * 400), "", UNREADABLE.format("x" * 300)),
    ],
)  # fmt: skip
def test_a_set_that_cannot_be_read_says_why(monkeypatch, error, terms, message):
    assert str(hub._refuse_unreadable(error, "n", terms)) == message
    monkeypatch.setattr(datasets, "load_dataset", fail_with(error))
    found = hub.HubSet("n", "c1")
    assert message_of(hub.load_splits, found, part(cure=terms)) == message


@pytest.mark.parametrize("before", [True, False])
def test_being_offline_ends_with_the_block(monkeypatch, before):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", before)
    with pytest.raises(KeyError), hub._fail_fast():
        assert datasets.config.HF_HUB_OFFLINE is True
        raise KeyError
    assert datasets.config.HF_HUB_OFFLINE is before


def test_the_split_is_the_first_of_those_preferred():
    for splits, found in (
        (["train", "test", "validation"], "validation"),
        (["x", "train", "test"], "test"),
        (["x", "train", "y"], "train"),
        (["x", "y", "z"], "x"),
    ):
        assert hub.choose_split(splits, None, "n") == found
        assert hub.choose_split(splits, "x" if "x" in splits else "test", "n") != "y"
    assert message_of(hub.choose_split, ["train", "test"], "tests", "n") == (
        "expected a split of n; got tests. Cure: did you mean test?"
    )


def test_an_opened_split_says_what_it_is(monkeypatch):
    monkeypatch.setattr(hub, "load_splits", lambda *_: {"train": [1], "test": [2]})
    found = hub.HubSet("n", "c1")
    assert hub.open_split(found, part()) == (
        [2],
        {"config": "c", "split": "test", "commit": "c1"},
    )
    assert hub.open_split(found, part(split="train", config=None)) == (
        [1],
        {"config": None, "split": "train", "commit": "c1"},
    )


@pytest.mark.parametrize(
    ("error", "got", "cure"),
    [
        (OSError("gone"), "OSError", "try again"),
        (HTTPError("slow"), "HTTPError", "connect to the network"),
    ],
)
def test_a_connection_that_breaks_is_named(error, got, cure):
    def rows():
        yield {"k": 0}
        raise error

    seen = []
    text = message_of(lambda: seen.extend(hub.number_rows(rows(), "n")))
    assert text == (
        f"expected all rows of n; got a broken connection ({got}). Cure: {cure}, or name a local copy"
    )
    assert seen == [("row 1", {"k": 0})]
