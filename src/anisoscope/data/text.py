"""Text corpora: a name, a file, a folder or a hub data set in; documents, and batches of windows, out."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from anisoscope.data import CORPORA
from anisoscope.data._hub import hub_rows
from anisoscope.data._plan import digest, pack
from anisoscope.data._reading import ENDINGS, Reading, Wanted, local_names, read_path, read_rows
from anisoscope.data._windows import (
    BLOCK,
    Affixes,
    TextPlan,
    affixes,
    blocks,
    check_room,
    check_vocabulary,
    cut,
    frequency_bins,
    tokenise,
)
from anisoscope.data.builtin import python_docs
from anisoscope.errors import CorpusError, UsageError, near_matches

__all__ = ["TextCorpus", "TextPlan", "open_text", "plan_text"]

BUILTIN: dict[str, Callable[[], tuple[list[str], dict[str, object]]]] = {"builtin:python-docs": python_docs}

HUB_PRESETS = {"wikitext-103": ("Salesforce/wikitext", "wikitext-103-raw-v1", "validation")}
"""Names for data sets of the hub: its id, configuration and split."""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class TextCorpus:
    """Documents in order, one per unit, with a hash of their texts and where they came from.

    Running text without marks has `marked` False: its documents are pieces of it, and a plan joins their tokens and cuts
    units of 8,192; `limit` is then the number of units to keep, which only the plan can count.
    """

    name: str
    documents: list[str] = field(repr=False)
    fingerprint: str
    source: dict[str, object]
    marked: bool = True
    limit: int | None = None


def open_text(
    name: str,
    *,
    split: str | None = None,
    column: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
) -> TextCorpus:
    """The corpus that `name` stands for, tried in this order: built in, preset, path here, path under $ANISOSCOPE_DATA
    (its ending may be left out), data set of the hub (`id` or `id@revision`).

    limit     the first units only
    column    column of text in JSON lines, parquet or a hub data set (else guessed)
    split, config, revision   of a hub data set; split: validation, else test, else train
    skip_bad  leave out what cannot be read, and count it, where it would be an error
    """
    if limit is not None and limit < 1:
        raise UsageError("a limit of at least 1 unit", str(limit), "raise --limit, or leave it out")
    wanted = Wanted(column, limit, skip_bad)
    hub_options = {"split": split, "config": config, "revision": revision}
    path = None if name in BUILTIN or name in HUB_PRESETS else _local_path(name)
    if name in BUILTIN or path is not None:
        _refuse({**hub_options, "column": column} if path is None else hub_options, name)
    if path is not None:
        source: dict[str, object] = {"kind": "folder" if path.is_dir() else "file", "path": str(path.resolve())}
        return _corpus(name, read_path(path, wanted), source, limit)
    if name in BUILTIN:
        documents, source = BUILTIN[name]()
        return _corpus(name, Reading(documents[:limit], str(source.pop("documents"))), source, limit)
    return _open_hub(name, wanted, hub_options)


def plan_text(
    corpus: TextCorpus,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    batch_tokens: int,
    stack: str = "encoder",
    padding_side: str = "right",
    decoder_start_id: int | None = None,
    vocab_size: int | None = None,
) -> TextPlan:
    """Windows of at most `max_length` tokens, special tokens counted and added to every window, in batches of at most
    `batch_tokens` positions, padding counted (a longer single window is a batch of its own).

    stack             name of the only stack's stream, `encoder` or `decoder`
    padding_side      `right`, `left`; with `left`, models with absolute positions need their own `position_ids`
    decoder_start_id  of an encoder–decoder: adds `decoder_input_ids`, the window shifted right behind this (special)
                      token, with a second stream `decoder`
    vocab_size        of the model; a tokenizer that does not fit it is an error
    """
    if padding_side not in ("right", "left"):
        raise UsageError("padding_side 'right' or 'left'", repr(padding_side))
    layouts = {stack: affixes(tokenizer)}
    if decoder_start_id is not None:
        layouts = {"encoder": layouts[stack], "decoder": layouts[stack].shifted_right(decoder_start_id)}
    n_special = max(map(len, layouts.values()))
    check_room(max_length, n_special)
    units = _units(corpus, tokenizer)
    windows = cut(units, max_length, n_special)
    added = [token for layout in layouts.values() for token in (*layout.prefix, *layout.suffix)]
    check_vocabulary(tokenizer, windows.ids, added, vocab_size)
    lengths = windows.length + len(next(iter(layouts.values())))
    batches = pack(lengths, batch_tokens)
    bin_of_id, labels = frequency_bins(windows.ids)
    pad_id = _pad_id(tokenizer, vocab_size)
    settings = _settings(layouts, max_length, batch_tokens, padding_side, pad_id)
    return TextPlan(
        tokens=[int(lengths[rows].sum()) for rows in batches],
        fingerprint=digest([corpus.fingerprint, settings, windows.ids, windows.unit, windows.length]),
        n_units=len(units),
        frequency_bins=labels,
        settings=settings,
        windows=windows,
        batches=batches,
        layouts=layouts,
        bin_of_id=bin_of_id,
        pad_id=pad_id,
        left=padding_side == "left",
    )


def _corpus(name: str, reading: Reading, source: dict[str, object], limit: int | None) -> TextCorpus:
    """The corpus of a reading, with how its documents were told apart and what was left out in the provenance."""
    if not reading.documents:
        got = f"no text ({reading.empty} empty and {reading.skipped} unreadable documents)"
        raise CorpusError(f"text in {name}", got, "name a corpus with text, or another column")
    how = reading.how if reading.marked else f"blocks of {BLOCK} tokens"
    counts = {"column": reading.column, "limit": limit, "empty": reading.empty, "skipped": reading.skipped}
    provenance = {**counts, "documents": how, **source}
    fingerprint = digest([reading.marked, *reading.documents])
    return TextCorpus(name, reading.documents, fingerprint, provenance, reading.marked, None if reading.marked else limit)


def _local_path(name: str) -> Path | None:
    """The file or folder that a name stands for, here or under $ANISOSCOPE_DATA; None where it can only be on the hub."""
    names = local_names()
    under_data = _data_folder(name)
    for path in (Path(name).expanduser(), names.get(name), under_data):
        if path is not None and path.exists():
            return path
    hub_like = _HUB_ID.fullmatch(name.partition("@")[0]) and not name.startswith(".") and not name.endswith(ENDINGS)
    if hub_like:
        return None
    kind = "a built-in corpus" if name.startswith("builtin:") else "a file, a folder, a preset or a hub data set"
    raise CorpusError(kind, f"{name!r}, which does not exist", _cure(name))
