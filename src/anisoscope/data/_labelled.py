"""Labelled tables: JSON lines, CSV, folders of them, data sets of the hub, and the 20 Newsgroups of scikit-learn."""

import ast
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from anisoscope.data._hub import _load, hub_commit
from anisoscope.data._items import find_path
from anisoscope.data._reading import TEXT_COLUMNS
from anisoscope.data.classification import SPLITS, TEST, TRAIN, VALIDATION, Example, LabelledCorpus, divided, unknown
from anisoscope.errors import CorpusError, near_matches

PRESETS = {"imdb": "stanfordnlp/imdb", "yelp-polarity": "fancyzhx/yelp_polarity"}
GUESSES = {
    "text": (*TEXT_COLUMNS, "premise", "sentence1", "question1", "text1"),
    "second": ("second", "hypothesis", "sentence2", "question2", "text2", "text_pair"),
    "label": ("label", "labels", "class", "category", "target", "gold_label"),
    "rationale": ("rationale", "rationales", "evidence", "highlight"),
    "split": ("split",),
}
"""Columns looked for where none is named, best first."""
OPTIONAL = ("second", "rationale", "split")
ALIASES = {"dev": VALIDATION, "val": VALIDATION, "valid": VALIDATION}
SHARES = {TRAIN: 0.8, VALIDATION: 0.1, TEST: 0.1}
"""Shares of a table without splits; the share of validation is taken from training where that alone is missing."""

Row = Mapping[str, Any]


def open_preset(name: str, seed: int) -> LabelledCorpus:
    """A data set of the hub with a name of its own."""
    return _open_hub(name, PRESETS[name], {}, seed)


def open_newsgroups(name: str, seed: int) -> LabelledCorpus:
    """Posts without headers, footers and quotations; a tenth of the training posts is for validation."""
    from sklearn.datasets import fetch_20newsgroups  # type: ignore[import-untyped]

    try:
        parts = {s: fetch_20newsgroups(subset=s, remove=("headers", "footers", "quotes")) for s in (TRAIN, TEST)}
    except OSError as error:
        cure = "connect to the network, or use --corpus planted:20"
        raise CorpusError("to download 20 Newsgroups", str(error)[:160], cure) from None
    read = {
        split: [Example(tuple(text.split()), int(y)) for text, y in zip(p.data, p.target, strict=True) if text.split()]
        for split, p in parts.items()
    }
    return LabelledCorpus(name, tuple(parts[TRAIN].target_names), _completed(read, seed), source={"kind": "sklearn"})


def open_table(name: str, columns: dict[str, str], seed: int) -> LabelledCorpus:
    """A file, a folder with one file per split, or a data set of the hub (`id[:config][@revision]`)."""
    strange = set(columns) - set(GUESSES)
    if strange:
        raise CorpusError(f"columns for {', '.join(GUESSES)}", ", ".join(sorted(strange)), "name one of those")
    path = find_path(name)
    if path is None:
        if "/" not in name or name.endswith((".csv", ".tsv", ".jsonl", ".json")):
            raise unknown(name)
        return _open_hub(name, name, columns, seed)
    if path.is_dir():
        files = {
            _split_name(file): file for file in sorted(path.iterdir()) if file.suffix in (".csv", ".tsv", ".jsonl")
        }
        tables = {split: list(_rows(file)) for split, file in files.items() if split in SPLITS}
        if TRAIN not in tables:
            got = f"{', '.join(files) or 'no such file'}"
            raise CorpusError(f"train.jsonl or train.csv (and validation, test) in {path}", got, "name the files so")
    else:
        tables = {"": list(_rows(path))}
    return _corpus(name, tables, columns, seed, {"kind": "table", "path": str(path.resolve())})


def _split_name(file: Path) -> str:
    return ALIASES.get(file.stem, file.stem)


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix == ".jsonl":
        yield from _json_rows(path)
        return
    if path.suffix not in (".csv", ".tsv"):
        cure = "write it as one of those, or as a folder with train, validation and test files"
        raise CorpusError("a labelled corpus in .jsonl, .csv or .tsv", str(path), cure)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CorpusError(f"a readable table in {path}", str(error)[:120], "save it as UTF-8") from None


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"readable JSON lines in {path}", str(error)[:120], "save it as UTF-8") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            row = ()
        if row is None:
            continue
        if not isinstance(row, dict):
            raise CorpusError(f"one JSON object per line in {path}", f"line {number}: {line[:60]!r}", "mend the line")
        yield row


def _open_hub(name: str, hub_id: str, columns: dict[str, str], seed: int) -> LabelledCorpus:
    rest, _, revision = hub_id.partition("@")
    repo, _, config = rest.partition(":")
    near = "use --corpus planted, which needs no data"
    commit = hub_commit(repo, revision or None, near)
    tables, names = {}, None
    for split, rows in _load(repo, config or None, commit, near).items():
        named = ALIASES.get(split, split)
        if named in SPLITS:
            tables[named] = list(rows)
            chosen = columns.get("label") or _guess("label", set(rows.features or tables[named][0]))
            names = getattr((rows.features or {}).get(chosen), "names", None) or names
    if TRAIN not in tables:
        raise CorpusError(f"a train split of {repo}", ", ".join(tables) or "none", "name another data set")
    source = {"kind": "hub", "id": repo, "config": config or None, "commit": commit}
    return _corpus(name, tables, columns, seed, source, names)


def _guess(role: str, present: set[str]) -> str | None:
    return next((guess for guess in GUESSES[role] if guess in present), None)


def _corpus(
    name: str,
    tables: dict[str, list[Row]],
    columns: dict[str, str],
    seed: int,
    source: dict[str, Any],
    names: list[str] | None = None,
) -> LabelledCorpus:
    """Examples of the tables (one without a name is divided by its `split` column, or at random)."""
    rows = [row for table in tables.values() for row in table]
    if not rows:
        raise CorpusError(f"rows in {name}", "none", "give it examples")
    chosen = _columns(name, columns, rows[0])
    label = chosen["label"]
    for number, row in enumerate(rows, 1):
        if row.get(label) in (None, "", -1):
            raise CorpusError(f"a label in every row of {name}", f"row {number} without one", "leave such rows out")
    labels = names or _label_names(rows, label)
    index = {value: i for i, value in enumerate(labels)} | ({i: i for i in range(len(labels))} if names else {})
    if "" in tables and chosen.get("split"):
        tables = _by_column(tables[""], chosen["split"])
    read = {
        s: [_example(r, chosen, index, f"row {i} of {name}") for i, r in enumerate(t, 1)] for s, t in tables.items()
    }
    known = {**source, "columns": chosen, "split_seed": seed}
    return LabelledCorpus(name, tuple(map(str, labels)), _completed(read, seed), source=known)


def _columns(name: str, given: dict[str, str], row: Row) -> dict[str, str]:
    """The column of every role, as given or guessed."""
    chosen = {}
    for role in GUESSES:
        column = given.get(role) or _guess(role, set(row))
        if column is not None and column not in row:
            raise CorpusError(f"a column for {role} in {name}", repr(column), near_matches(column, map(str, row)))
        if column is None and role not in OPTIONAL:
            cure = f"name it: --{role}-column; there are {', '.join(map(str, row))}"
            raise CorpusError(f"a column for {role} in {name} ({', '.join(GUESSES[role])})", "none", cure)
        if column is not None:
            chosen[role] = column
    return chosen


def _label_names(rows: Iterable[Row], column: str) -> list[Any]:
    """Different labels: numbers in their order, names in alphabetical order."""
    found = {row[column] for row in rows}
    return sorted(found, key=lambda value: (not str(value).lstrip("-").isdigit(), _number(value), str(value)))


def _number(value: Any) -> int:
    return int(value) if str(value).lstrip("-").isdigit() else 0


def _by_column(rows: list[Row], column: str) -> dict[str, list[Row]]:
    tables: dict[str, list[Row]] = {}
    for row in rows:
        named = str(row[column]).lower()
        tables.setdefault(ALIASES.get(named, named), []).append(row)
    return tables


def _example(row: Row, columns: Mapping[str, str], index: Mapping[Any, int], where: str) -> Example:
    second = _words(row[columns["second"]]) if "second" in columns else None
    return Example(
        _words(row[columns["text"]]),
        index[row[columns["label"]]],
        second,
        _marks(row[columns["rationale"]], where) if "rationale" in columns else None,
    )


def _words(value: Any) -> tuple[str, ...]:
    """Words between blanks; a list of words as it is."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else tuple(str(value or "").split())


def _marks(value: Any, where: str) -> tuple[float, ...] | None:
    """A list of numbers, or text that holds one (`[0, 1]`, `0 1`); empty: none."""
    if value is None or value == "" or value == []:
        return None
    try:
        if isinstance(value, str):
            text = value.strip()
            value = ast.literal_eval(text) if text.startswith("[") else text.replace(",", " ").split()
        marks = tuple(float(mark) for mark in value)
    except (ValueError, SyntaxError, TypeError):
        marks = (2.0,)
    if not all(0 <= mark <= 1 for mark in marks):
        got = f"{str(value)[:60]!r}"
        raise CorpusError(f"a rationale of numbers between 0 and 1, one per word ({where})", got, "mend it")
    return marks


def _completed(read: dict[str, list[Example]], seed: int) -> dict[str, tuple[Example, ...]]:
    """All three splits: those there, and the missing ones taken at random, class by class, from what is there."""
    if "" in read:
        return divided(read[""], SHARES, seed)
    missing = [split for split in (VALIDATION, TEST) if not read.get(split)]
    splits = {split: tuple(examples) for split, examples in read.items()}
    if missing:
        share = SHARES[VALIDATION]
        kept = {TRAIN: 1 - share * len(missing), **dict.fromkeys(missing, share)}
        splits |= divided(read.get(TRAIN, []), kept, seed)
    return {name: splits[name] for name in (*SPLITS, *(s for s in splits if s not in SPLITS))}
