"""Stream the rows of a Hugging Face hub data set; only the files of the chosen split are read."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from anisoscope.data.corpora import OFFLINE, HubPart
from anisoscope.errors import CorpusError, suggest_names
from anisoscope.extras import require_extra
from anisoscope.models.hub_faults import Fault, classify_fault
from anisoscope.models.hub_memory import (
    get_answer,
    get_timeout,
    recall_commit,
    remember,
    with_token_fallback,
)

# in the order in which they are preferred if none is named
SPLITS = ("validation", "test", "train")


class HubSet(NamedTuple):
    """A hub data set: its id and commit.

    fault   why the hub did not answer; the commit is then None
    token   False if the hub is asked without the user's token
    """

    id: str
    commit: str | None
    fault: str = ""
    token: bool | None = None

    @property
    def notes(self) -> dict[str, object]:
        """Return what the manifest says if the hub did not answer or refused the token; empty if all went well."""
        if not self.fault:
            return {}
        return {"hub": self.fault}


def find_set(part: HubPart) -> HubSet:
    """Look up a data set on the hub. CorpusError for an unknown name or revision, or if this user may not read it.

    part   the data set's name, and its revision
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RevisionNotFoundError

    def ask(token: bool | None) -> Any:
        """Ask the hub for the data set's description, with this token."""
        return HfApi().dataset_info(
            part.id, revision=part.revision, timeout=get_timeout(), token=token
        )

    try:
        info, token = get_answer(
            ("data set", part.id, part.revision), partial(with_token_fallback, ask)
        )
        # for the next time, if the hub does not answer then
        remember("data set", part.id, part.revision, str(info.sha))
        notice = ""
        if token is not None:
            notice = "the hub refuses the token; the data set is public and was read without it"
        # The id under which the hub has it now: a data set may have been renamed.
        return HubSet(getattr(info, "id", None) or part.id, info.sha, notice, token)
    except RevisionNotFoundError:
        cure = "leave the revision out for the newest one"
        raise CorpusError(
            f"a revision of the data set {part.id}", str(part.revision), cure
        ) from None
    except HFValidationError:
        fault = Fault(
            "", "a private or gated data set needs `hf auth login`", absent=True
        )
    # whatever the hub or the network did: `classify_fault` finds out its kind
    except Exception as error:
        fault = classify_fault(error)
    if fault.absent:
        cure = f"{part.suggestion}; a private or gated data set needs `hf auth login`"
        raise CorpusError(
            "a corpus", f"{part.id!r}, which is neither here nor on the hub", cure
        ) from None
    if fault.denied:
        raise CorpusError(f"access to {part.id}", fault.got, fault.cure) from None
    # no answer is no error: the data may be here
    return HubSet(part.id, None, f"{fault.got}: read from the local cache")


def find_commit_of_set(part: HubPart) -> str | None:
    """Return a data set's commit. If the hub does not answer, the last known one; None if it was never known."""
    with suppress(CorpusError):
        if commit := find_set(part).commit:
            return commit
    return recall_commit("data set", part.id, part.revision)


def load_splits(found: HubSet, part: HubPart) -> Any:
    """Return the splits by name, streamed at the commit; if the hub did not answer, the newest copy in the local cache.

    found   the data set at its commit
    part    which part of it is wanted
    """
    require_extra("data", f"to read {part.id}, a data set of the hub")
    import datasets  # type: ignore[import-untyped]

    # Without this argument the library uses the user's token.
    options = {} if found.token is None else {"token": found.token}
    # it warns of a data set's page without a head, which does no harm
    logging.getLogger("huggingface_hub.repocard").setLevel(logging.ERROR)
    try:
        if found.commit is not None:
            return datasets.load_dataset(
                found.id, part.config, revision=found.commit, streaming=True, **options
            )
        # Without the hub nothing can be streamed: the library's own copy is read as a
        # whole.
        with _fail_fast():
            return datasets.load_dataset(found.id, part.config)
    except ConnectionError:
        reason = found.fault.partition(":")[0] or "no network"
        offline = OFFLINE.get(part.modality, "builtin:python-docs")
        cure = (
            f"{part.suggestion}; else connect to the network, or load it once where there is one and share its cache "
            f"(HF_HOME), or name a local file, or use {offline}, which needs no network"
        )
        raise CorpusError(
            f"the hub, or a cached copy of {found.id}",
            f"{reason} and no such copy",
            cure,
        ) from None
    except Exception as error:  # those of the library, of what reads the files, and of the network under them
        raise _refuse_unreadable(error, found.id, part.cure) from None


def _refuse_unreadable(error: Exception, name: str, terms: str) -> CorpusError:
    """Make the error that says why an existing data set cannot be read, with a cure. The caller raises it.

    error   what the library raised
    name    of the data set
    terms   how to get access to a gated data set
    """
    import datasets
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    # On one line, and not all of it: messages of the library may hold whole schemas.
    text = " ".join(str(error).split())[:300]
    if "scripts are no longer supported" in text:
        cure = f"read its conversion: {name}@refs/convert/parquet; or name a local copy"
        return CorpusError(
            f"a data set {name} of plain files",
            "a script, which is no longer run",
            cure,
        )
    if isinstance(
        error,
        datasets.exceptions.DataFilesNotFoundError
        | datasets.data_files.EmptyDatasetError,
    ):
        got, cure = "none that can be read", "name another data set, or a local file"
        return CorpusError(f"files of data in {name}", got, cure)
    if "gated" in text:
        cure = terms or "accept its terms on the hub, then `hf auth login`"
        return CorpusError(f"access to {name}", "a gated data set", cure)
    if isinstance(error, HTTPError):
        fault = classify_fault(error)
        return CorpusError(f"the complete data set {name}", fault.got, fault.cure)
    return CorpusError(
        f"a data set {name} that can be read",
        text,
        f"write a configuration as {name}:CONFIGURATION",
    )


@contextmanager
def _fail_fast() -> Iterator[None]:
    """Within a `with` block, make `datasets` fail at once instead of retrying for half a minute."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def choose_split(splits: list[str], split: str | None, name: str) -> str:
    """Return the split asked for, else the first known one (`SPLITS`), else the first.

    CorpusError for an unknown one.

    splits   names of the splits there are
    split    the one asked for, or None
    name     of the data set, for errors
    """
    if split is None:
        for known in SPLITS:
            if known in splits:
                return known
        return splits[0]
    if split not in splits:
        raise CorpusError(f"a split of {name}", split, suggest_names(split, splits))
    return split


def open_split(found: HubSet, part: HubPart) -> tuple[Any, dict[str, Any]]:
    """Open a split of a hub data set: returns (its rows, {"config", "split", "commit"} for the manifest).

    found   the data set at its commit
    part    which part of it is wanted
    """
    splits = load_splits(found, part)
    split = choose_split(list(splits), part.split, found.id)
    return splits[split], {
        "config": part.config,
        "split": split,
        "commit": found.commit,
    }


def number_rows(
    rows: Any, name: str, after: int = 0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`row N`, row), starting after row `after`. CorpusError if the connection breaks.

    rows   of a hub data set
    name   of the data set, for errors
    """
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        rest = rows
        if after:
            rest = rows.skip(after)
        for number, row in enumerate(rest, after + 1):
            yield f"row {number}", row
    except (HTTPError, OSError) as error:
        got = f"a broken connection ({type(error).__name__})"
        raise CorpusError(
            f"all rows of {name}",
            got,
            f"{classify_fault(error).cure}, or name a local copy",
        ) from None
