"""Rows of any data set of the Hugging Face hub with a text column, streamed: only the split's own files are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from anisoscope.data.documents import choose_column
from anisoscope.errors import CorpusError, near_matches

SPLITS = ("validation", "test", "train")
"""Splits in the order they are preferred where none is named."""

_TIMEOUT = 20.0
"""Seconds to wait for the hub's first answer."""


def hub_rows(
    name: str, *, config: str | None, split: str | None, column: str | None, revision: str | None, near: str
) -> tuple[Iterator[tuple[str, dict[str, Any]]], dict[str, object]]:
    """Rows of one split with the text column only, and their provenance. `near` names names like this one, for errors.

    The commit is looked up first and the rows are read at it. Without a network the newest copy in the local cache is
    read; its commit is then not known, and the provenance says null.
    """
    commit = hub_commit(name, revision, near)
    splits = _load(name, config, commit, near)
    split = _choose_split(list(splits), split, name)
    rows = splits[split]
    for _, first in islice(_rows(rows, name), 1):
        column = choose_column(first, column, f"{name}, split {split}")
        rows = rows.select_columns([column])
    source: dict[str, object] = {
        "kind": "hub",
        "id": name,
        "config": config,
        "split": split,
        "revision": revision,
        "commit": commit,
    }
    return _rows(rows, name), source


def hub_commit(name: str, revision: str | None, near: str) -> str | None:
    """Commit of a data set; None where the hub cannot be reached. An unknown name or revision is an error."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return HfApi().dataset_info(name, revision=revision, timeout=_TIMEOUT).sha
    except RevisionNotFoundError:
        raise CorpusError(f"a revision of the data set {name}", str(revision), "leave it out for the newest") from None
    except (RepositoryNotFoundError, HFValidationError):
        cure = f"{near}; a private or gated data set needs `hf auth login`"
        raise CorpusError("a corpus", f"{name!r}, which is neither here nor on the hub", cure) from None
    except (HTTPError, OSError):
        return None


def _load(name: str, config: str | None, commit: str | None, near: str, instead: str = "builtin:python-docs") -> Any:
    """Splits by name: streamed at the commit, or from the local cache where the hub could not be reached. `instead`:
    a corpus for the error that needs no network.
    """
    import datasets  # type: ignore[import-untyped]

    try:
        if commit is not None:
            return datasets.load_dataset(name, config, revision=commit, streaming=True)
        with _offline():
            return datasets.load_dataset(name, config)
    except ConnectionError:
        cure = (
            f"{near}; else connect to the network, or load it once where there is one and share its cache (HF_HOME), "
            f"or name a local file, or use {instead}, which needs no network"
        )
        raise CorpusError(f"the hub, or a cached copy of {name}", "no connection and no such copy", cure) from None
    except (ValueError, RuntimeError, OSError, datasets.exceptions.DatasetsError) as error:
        got = " ".join(str(error).split())[:300]
        raise CorpusError(
            f"a data set {name} that can be read", got, f"write a configuration as {name}:CONFIGURATION"
        ) from None


@contextmanager
def _offline() -> Iterator[None]:
    """`datasets` without its half minute of retries."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _choose_split(splits: list[str], split: str | None, name: str) -> str:
    if split is None:
        return next((known for known in SPLITS if known in splits), splits[0])
    if split not in splits:
        raise CorpusError(f"a split of {name}", split, near_matches(split, splits))
    return split


def _rows(rows: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        for number, row in enumerate(rows, 1):
            yield f"row {number}", row
    except (HTTPError, OSError) as error:
        got = f"a broken connection ({type(error).__name__})"
        raise CorpusError(f"all rows of {name}", got, "try again, or name a local copy") from None
