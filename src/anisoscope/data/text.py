"""Text corpora: a name, a file, a folder or a hub data set in; documents, and batches of windows, out."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from anisoscope.data.builtin import python_docs
from anisoscope.data.documents import ENDINGS, Wanted, local_names, read_path, read_rows
from anisoscope.data.hub import hub_rows
from anisoscope.data.plans import digest
from anisoscope.data.splitting import SplitText, check_rule
from anisoscope.data.tables import Row
from anisoscope.data.windows import TextPlan, affixes, blocks, check_room, check_vocabulary, cut, tokenise
from anisoscope.errors import CorpusError, UsageError, near_matches

__all__ = ["TextCorpus", "TextPlan", "open_text", "plan_text"]

BUILTIN: dict[str, Callable[[int | None], tuple[SplitText, dict[str, object]]]] = {"builtin:python-docs": python_docs}
"""Text that needs no file: its documents, of which no more are read than asked for, and where they came from."""

HUB_PRESETS = {"wikitext-103": ("Salesforce/wikitext", "wikitext-103-raw-v1", "validation")}
"""Names for data sets of the hub: its id, configuration and split."""

_HUB_ID = re.compile(r"(?P<id>[\w.-]+(/[\w.-]+)?)(:(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class TextCorpus:
    """Documents in order, one per unit, with a hash of their texts and where they came from.

    block  None, or the tokens of a unit of running text: its documents are pieces of it, whose tokens a plan joins and
           cuts; `limit` is then the number of units to keep, which only the plan can count
    unit   what a unit is called; `notes`: remarks for the run's warnings
    """

    name: str
    documents: list[str] = field(repr=False)
    fingerprint: str
    source: dict[str, object]
    block: int | None = None
    limit: int | None = None
    unit: str = "document"
    notes: tuple[str, ...] = ()


def open_text(
    name: str,
    *,
    split: str | None = None,
    column: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    documents: str = "auto",
) -> TextCorpus:
    """The corpus that `name` stands for, tried in this order: built in, preset, path here, path under $ANISOSCOPE_DATA
    (its ending may be left out), data set of the hub (`id[:config][@revision]`).

    limit     the first units only
    column    column of text in JSON lines, parquet or a hub data set (else guessed)
    split, config, revision   of a hub data set; split: validation, else test, else train
    skip_bad  leave out what cannot be read, and count it, where it would be an error
    documents what a document is in a text file: `file`, `blank-line`, `line`, `tokens:N`, or `auto` (`data.splitting`);
              of tables and hub data sets, whose rows are documents, `tokens:N` can be chosen instead
    """
    if limit is not None and limit < 1:
        raise UsageError("a limit of at least 1 unit", str(limit), "raise --limit, or leave it out")
    wanted = Wanted(column, limit, skip_bad, check_rule(documents))
    if name in BUILTIN:
        _refuse({"split": split, "config": config, "revision": revision, "column": column}, name)
        if documents != "auto":
            raise UsageError("--documents with text of your own", f"it with {name}", "leave it out")
        reading, source = BUILTIN[name](limit)
        return _corpus(name, replace(reading, documents=reading.documents[:limit]), source, limit)
    path = None if name in HUB_PRESETS else _local_path(name)
    if path is None:
        return _open_hub(name, wanted, config, split, revision)
    _refuse({"split": split, "config": config, "revision": revision}, name)
    source = {"kind": "folder" if path.is_dir() else "file", "path": str(path.resolve())}
    return _corpus(name, read_path(path, wanted), source, limit)


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
    notes = check_vocabulary(tokenizer, windows.ids, list(layouts.values()), vocab_size)
    settings: dict[str, object] = {
        "max_length": max_length,
        "batch_tokens": batch_tokens,
        "padding_side": padding_side,
        "pad_id": _pad_id(tokenizer, vocab_size),
        "special_tokens": {name: [layout.prefix, layout.suffix] for name, layout in layouts.items()},
    }
    fingerprint = digest([corpus.fingerprint, settings, windows.ids, windows.unit, windows.length])
    words = {"position": "token", "sequence": "window", "unit": corpus.unit, "counted": "token"}
    return TextPlan(windows, layouts, settings, fingerprint, len(units), [*corpus.notes, *notes], words)


def _corpus(name: str, reading: SplitText, source: dict[str, object], limit: int | None) -> TextCorpus:
    """The corpus of a reading, with how its documents were told apart and what was left out in the provenance."""
    if not reading.documents:
        got = f"no text ({reading.empty} empty and {reading.skipped} unreadable documents)"
        raise CorpusError(f"text in {name}", got, "name a corpus with text, or another column")
    counts = {"column": reading.column, "limit": limit, "empty": reading.empty, "skipped": reading.skipped}
    provenance = {**source, "documents": reading.how, **counts}
    fingerprint = digest([True if reading.block is None else reading.block, *reading.documents])
    note = f"the text marks no documents: its units are told apart by {reading.how}; choose otherwise with --documents"
    notes = (note,) if reading.guessed else ()
    limit = None if reading.block is None else limit
    return TextCorpus(name, reading.documents, fingerprint, provenance, reading.block, limit, reading.unit, notes)


def _local_path(name: str) -> Path | None:
    """The file or folder that a name stands for, here or under $ANISOSCOPE_DATA; None where it may be on the hub."""
    candidates = [Path(name).expanduser()]
    root = os.environ.get("ANISOSCOPE_DATA")
    if root:
        candidates += (Path(root, name + ending) for ending in ("", *ENDINGS))
    found = next((path for path in candidates if name and path.exists()), None)
    if found is None and (name.endswith(ENDINGS) or name.startswith(("builtin:", ".")) or not _HUB_ID.fullmatch(name)):
        kind = "a built-in corpus" if name.startswith("builtin:") else "a corpus: a path, a preset or a hub data set"
        raise CorpusError(kind, f"{name!r}, which does not exist", _near(name))
    return found


def _open_hub(name: str, wanted: Wanted, config: str | None, split: str | None, revision: str | None) -> TextCorpus:
    """A data set of the hub: a preset (whose split and configuration can be changed) or `id[:config][@revision]`."""
    marked = _HUB_ID.fullmatch(name)
    parts = marked.groupdict() if marked else {}
    base = parts.get("id") or name
    for option, value in (("config", config), ("revision", revision)):
        if value and parts.get(option) not in (None, value):
            raise UsageError(f"one {option}", f"{name} and {option} {value}", "give it once")
    hub_id, preset_config, preset_split = HUB_PRESETS.get(base, (base, None, None))
    rows, source = hub_rows(
        hub_id,
        config=config or parts.get("config") or preset_config,
        split=split or preset_split,
        column=wanted.column,
        revision=revision or parts.get("revision"),
        near=_near(name),
    )
    read = read_rows((Row(place, row) for place, row in rows), wanted, hub_id)
    return _corpus(name, read, source, wanted.limit)


def _near(name: str) -> str:
    """Names like an unknown one, and where else names would come from."""
    unset = "" if os.environ.get("ANISOSCOPE_DATA") else " (ANISOSCOPE_DATA, a folder of corpora, is not set)"
    return near_matches(name, [*BUILTIN, *HUB_PRESETS, *local_names()]) + unset


def _refuse(options: dict[str, str | None], name: str) -> None:
    """An error for options that the kind of corpus does not have."""
    given = [f"--{option}" for option, value in options.items() if value is not None]
    if given:
        raise UsageError(
            "a hub data set where a part of one is chosen", f"{', '.join(given)} with {name}", "leave it out"
        )


def _units(corpus: TextCorpus, tokenizer: PreTrainedTokenizerBase) -> list[NDArray[np.int32]]:
    """Ids of each unit that has any."""
    if corpus.block is None:
        units = tokenise(corpus.documents, tokenizer)
    else:
        needed = None if corpus.limit is None else corpus.limit * corpus.block
        units = blocks(tokenise(corpus.documents, tokenizer, needed), corpus.block, corpus.limit)
    return [unit for unit in units if len(unit)]


def _pad_id(tokenizer: PreTrainedTokenizerBase, vocab_size: int | None) -> int:
    """The tokenizer's padding id; 0 where it has none or one that the model cannot embed (padding is masked anyway)."""
    pad_id = tokenizer.pad_token_id
    fits = isinstance(pad_id, int) and (vocab_size is None or pad_id < vocab_size)
    return pad_id if fits and isinstance(pad_id, int) else 0
