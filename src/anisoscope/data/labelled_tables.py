"""Read labelled corpora from tables: files, folders of them, hub data sets, and scikit-learn's 20 Newsgroups."""

import ast
import math
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.data import hub
from anisoscope.data.corpora import HubPart
from anisoscope.data.documents import TEXT_COLUMNS
from anisoscope.data.files import get_stem
from anisoscope.data.labelled import (
    SPLITS,
    TEST,
    TRAIN,
    VALIDATION,
    Example,
    LabelledCorpus,
    check_example,
    split_at_random,
)
from anisoscope.data.table_rows import (
    TABLES,
    is_table,
    list_faulty,
    read_rows_strict,
    require_column,
)
from anisoscope.errors import CorpusError
from anisoscope.extras import require_extra

GUESSES = {
    "text": (*TEXT_COLUMNS, "premise", "sentence1", "question1", "text1"),
    "second": ("second", "hypothesis", "sentence2", "question2", "text2", "text_pair"),
    "label": ("label", "labels", "class", "category", "target", "gold_label"),
    "rationale": ("rationale", "rationales", "evidence", "highlight"),
    "split": ("split",),
}
"""Names of columns that are looked for if the user names none, the best first."""
OPTIONAL = ("second", "rationale", "split")
ALIASES = {"dev": VALIDATION, "val": VALIDATION, "valid": VALIDATION}
SHARES = {TRAIN: 0.8, VALIDATION: 0.1, TEST: 0.1}
"""Shares of a table without splits. If validation alone is missing, its share is taken from training."""

MORE_WORDS = 1.5  # times the words of a label that a text must have: with fewer, both columns may be labels
# text that a missing value is written as; so are numbers that are not finite
NOT_A_LABEL = ("nan", "<na>", "nat")
Row = Mapping[str, Any]
# each row after its place in the file (`t.jsonl, line 7`), which errors name
Rows = list[tuple[str, Row]]


class LabelledRow(NamedTuple):
    """A row of a labelled table: where it is, its label as text (empty: none), and its values by role (text, …)."""

    where: str
    label: str
    values: dict[str, Any]


def open_newsgroups(name: str, seed: int) -> LabelledCorpus:
    """Load 20 Newsgroups without headers, footers and quotations; a tenth of the training posts becomes validation.

    name   of the corpus
    seed   decides which posts become validation

    CorpusError if it cannot be downloaded.
    """
    require_extra("data", "to read 20newsgroups")
    from sklearn.datasets import fetch_20newsgroups  # type: ignore[import-untyped]

    # headers and footers tell the group without the text
    removed = ("headers", "footers", "quotes")
    read: dict[str, list[Example]] = {}
    classes: tuple[str, ...] = ()
    for split in (TRAIN, TEST):
        try:
            part = fetch_20newsgroups(subset=split, remove=removed)
        except OSError as error:
            cure = "connect to the network, or use --corpus synthetic:20"
            raise CorpusError(
                "to download 20 Newsgroups", str(error)[:160], cure
            ) from None
        read[split] = _read_posts(part.data, part.target)
        if split == TRAIN:
            classes = tuple(part.target_names)
    return LabelledCorpus(
        name, classes, _complete_splits(read, seed), source={"kind": "sklearn"}
    )


def _read_posts(texts: Iterable[str], labels: Iterable[Any]) -> list[Example]:
    """Return an example for each post that has words; without headers and quotations some have none.

    labels   number of each post's class
    """
    examples = []
    for text, label in zip(texts, labels, strict=True):
        words = tuple(text.split())
        if words:
            examples.append(Example(words, int(label)))
    return examples


def open_table(
    name: str, place: Path | HubPart, columns: dict[str, str], seed: int
) -> LabelledCorpus:
    """Open a labelled table: a file, a folder with one file per split, or a hub data set.

    A table without splits is divided by its `split` column, or at random. A corpus with splits is divided by that
    column only if it was named. Splits other than training that have no labels are left out, and named in `source`.

    name      of the corpus
    place     the file or folder, or the part of a hub data set
    columns   names of columns by role (text, label, …), as far as the user named them
    seed      of splits that are drawn at random
    """
    strange = set(columns) - set(GUESSES)
    if strange:
        raise CorpusError(
            f"roles of columns among {', '.join(GUESSES)}",
            ", ".join(sorted(strange)),
            "name one of those",
        )
    tables, names, source = _read_tables(place, columns.get("label"))
    chosen = _choose_columns(name, columns, tables)
    read = _label_rows(tables, chosen, names, split_is_named="split" in columns)
    # before labels are collected: a −1 of a split without labels is no class
    unlabelled = _drop_unlabelled(read)
    # The hub's own names give classes the numbers that they have in its rows.
    labels = names or _collect_labels(list(chain.from_iterable(read.values())))
    index = {str(label).strip(): number for number, label in enumerate(labels)}
    examples: dict[str, list[Example]] = {}
    for split, rows in read.items():
        examples[split] = [_make_example(row, index) for row in rows]
    source = {**source, "columns": chosen, "split_seed": seed}
    if unlabelled:
        source["unlabelled"] = unlabelled
    drawn = _find_missing_splits(examples)
    if drawn:
        source["drawn"] = drawn
    return LabelledCorpus(
        name, tuple(labels), _complete_splits(examples, seed), source=source
    )


def _label_rows(
    tables: Mapping[str, Rows],
    chosen: Mapping[str, str],
    names: list[str] | None,
    *,
    split_is_named: bool,
) -> dict[str, list[LabelledRow]]:
    """Read labels and values of all rows, and return {split: its rows}.

    Splits are those of the tables or, if there is a column of splits, those that it names.

    tables           rows by split; "": without splits
    chosen           the column of each role
    names            names of the hub's classes; None: none are known
    split_is_named   whether the user named the column of splits, which then goes before the splits of the tables
    """
    read: dict[str, list[LabelledRow]] = {}
    for split, table in tables.items():
        read[split] = [_label_row(where, row, chosen, names) for where, row in table]
    has_no_splits = "" in tables
    if "split" in chosen and (has_no_splits or split_is_named):
        return _group_by_split(
            list(chain.from_iterable(read.values())), chosen["split"]
        )
    return read


def _drop_unlabelled(read: dict[str, list[LabelledRow]]) -> list[str]:
    """Remove the splits without labels from `read`, and return their names."""
    unlabelled = [split for split, rows in read.items() if _is_unlabelled(split, rows)]
    for split in unlabelled:
        del read[split]
    return unlabelled


def _choose_columns(
    name: str, columns: dict[str, str], tables: Mapping[str, Rows]
) -> dict[str, str]:
    """Return {role: column} of a corpus. CorpusError if it has no rows, or a needed column is missing.

    columns   as far as the user named them
    tables    rows by split
    """
    rows = [row for _, row in chain.from_iterable(tables.values())]
    # a dict, not a set: columns keep their order, in which errors name them
    present = dict.fromkeys(chain.from_iterable(rows))
    if not present:
        raise CorpusError(f"rows in {name}", "none", "name a table that has rows")
    by_content: dict[str, str] = {}
    # Only of two columns can the content tell which is the text and which the label.
    if len(present) == 2:
        texts: dict[str, list[str]] = {}
        for column in present:
            texts[column] = [str(row.get(column)) for row in rows]
        by_content = _guess_by_content(texts)
    return _assign_columns(name, columns, present, by_content)


def _is_unlabelled(split: str, rows: list[LabelledRow]) -> bool:
    """Return whether a split other than training has rows and none of them a label: GLUE gives -1 to test rows."""
    if split in ("", TRAIN) or not rows:
        return False
    return all(row.label in ("", "-1") for row in rows)


def _read_tables(
    place: Path | HubPart, label: str | None
) -> tuple[dict[str, Rows], list[str] | None, dict[str, Any]]:
    """Read the rows of a corpus: (rows by split, names of its classes or None, the manifest's entry on the source).

    place   a table, a folder of tables, or a part of a hub data set
    label   the column of labels, if the user named it
    """
    if isinstance(place, HubPart):
        return _read_hub_set(place, label)
    return _read_files(place)


def _read_files(place: Path) -> tuple[dict[str, Rows], None, dict[str, Any]]:
    """Read a table, or the tables of a folder named after splits.

    Returns (rows by split, None, the manifest's entry on the source). The split of a single table is "".
    """
    files = {"": place}
    if place.is_dir():
        files = _find_splits(place)
    elif not is_table(place):
        cure = "write it as one of those, or as a folder with train, validation and test files"
        raise CorpusError(f"a labelled corpus in {', '.join(TABLES)}", str(place), cure)
    tables: dict[str, Rows] = {}
    for split, file in files.items():
        rows = read_rows_strict(file, "correct or remove these rows")
        tables[split] = [(f"{file.name}, {row.place}", row.columns) for row in rows]
    return tables, None, {"kind": "table", "path": str(place.resolve())}


def _find_splits(folder: Path) -> dict[str, Path]:
    """Return the tables of a folder by the split that their name means. CorpusError without a training table."""
    files: dict[str, Path] = {}
    for file in sorted(filter(is_table, folder.iterdir())):
        split = ALIASES.get(get_stem(file), get_stem(file))
        if split in files:
            got = f"{files[split].name} and {file.name}"
            raise CorpusError(
                f"one table of the split {split} in {folder}",
                got,
                "leave only one of them in the folder",
            )
        files[split] = file
    if TRAIN not in files:
        got = ", ".join(files) or "no such file"
        raise CorpusError(
            f"train.jsonl or train.csv (and validation, test) in {folder}",
            got,
            "give the files these names",
        )
    # A folder may hold tables of other things, which belong to no split.
    return {split: file for split, file in files.items() if split in SPLITS}


def _read_hub_set(
    part: HubPart, label: str | None
) -> tuple[dict[str, Rows], list[str] | None, dict[str, Any]]:
    """Read a hub data set: (rows by split, names of its classes or None, the manifest's entry on the source).

    label   the column of labels; None: guessed by its name
    """
    found = hub.find_set(part)
    tables: dict[str, Rows] = {}
    names: list[str] | None = None
    for split, rows in hub.load_splits(found, part).items():
        known = ALIASES.get(split, split)
        # Splits such as `unsupervised` of IMDB have no role here.
        if known not in SPLITS:
            continue
        features = rows.features or {}
        column = label or _guess("label", features)
        # a column of classes has numbers in its rows, and their names here
        names = getattr(features.get(column), "names", None) or names
        table: Rows = []
        for where, row in hub.number_rows(rows, part.id):
            table.append((f"{where} of {part.id}, {split}", row))
        tables[known] = table
    if TRAIN not in tables:
        raise CorpusError(
            f"a train split of {part.id}",
            ", ".join(tables) or "none",
            "name another data set",
        )
    source = {
        "kind": "hub",
        "id": found.id,
        "config": part.config,
        "commit": found.commit,
        **found.notes,
    }
    return tables, names, source


def _guess(role: str, present: Collection[str]) -> str | None:
    """Return the first of the usual column names of a role (text, label …) that is present; None if there is none.

    present   the columns of the table
    """
    for guess in GUESSES[role]:
        if guess in present:
            return guess
    return None


def _guess_by_content(columns: Mapping[str, list[str]]) -> dict[str, str]:
    """Guess which of a table's two columns is the text and which the label: {"text": column, "label": column}.

    Labels repeat, and texts have more words. Empty if these two signs point to different columns, or if there are not
    two columns.

    columns   {column: its values as texts}
    """
    if len(columns) != 2:
        return {}
    n_different: dict[str, int] = {}
    n_words: dict[str, int] = {}
    for name, values in columns.items():
        n_different[name] = len(set(values))
        n_words[name] = sum(len(value.split()) for value in values)
    # Of two columns, the one of fewer words may be the label.
    label, text = sorted(columns, key=lambda name: n_words[name])
    # Labels repeat: half as many different ones as rows, at most.
    n_labels, n_rows = n_different[label], len(columns[label])
    repeats = n_labels < n_different[text] and 2 * n_labels <= n_rows
    if repeats and n_words[text] > MORE_WORDS * n_words[label]:
        return {"text": text, "label": label}
    return {}


def _assign_columns(
    name: str,
    given: dict[str, str],
    present: Collection[str],
    by_content: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Decide which column of a table has which role: {role (text, label, second, …): column}.

    Roles that the user did not give are decided by the names of columns, or by the content of a table of two columns.

    name         of the table, for errors
    given        roles that the user named
    present      all columns of the table
    by_content   text and label as the content suggests

    If only the text column is given, no second text is looked for. CorpusError if a needed column is missing.
    """
    by_name = {role: _guess(role, present) for role in GUESSES}
    if "text" in given:
        by_name["second"] = None
    if by_content is None or _contradict(by_name, by_content):
        by_content = {}
    # one column cannot have two roles: what the user named is not guessed for another
    free = {}
    for role, column in by_content.items():
        if column not in given.values():
            free[role] = column
    chosen = {}
    for role, guesses in GUESSES.items():
        if role in given:
            chosen[role] = require_column(given[role], present, name, role)
            continue
        likely = by_name[role]
        if likely is None:
            likely = free.get(role)
        if likely is not None:
            chosen[role] = likely
        elif role not in OPTIONAL:
            cure = f"name it with --{role}-column; the columns are {', '.join(map(str, present))}"
            raise CorpusError(
                f"a column for {role} in {name} ({', '.join(guesses)})", "none", cure
            )
    return chosen


def _contradict(
    by_name: Mapping[str, str | None], by_content: Mapping[str, str]
) -> bool:
    """Return whether names and content of columns contradict each other about which is the text or the label.

    by_name, by_content   {role: column}; None: not known
    """
    for role in ("text", "label"):
        column = by_name[role]
        if column is not None and column != by_content.get(role):
            return True
    return False


def _label_row(
    where: str, row: Row, chosen: Mapping[str, str], names: list[str] | None
) -> LabelledRow:
    """Turn a row of a table into a `LabelledRow`. Labels 1, 1.0, "1" and "1.0" count as one.

    row      its values by column

    where    where the row is, for errors
    chosen   the column of each role
    names    names of the hub's classes, which replace class numbers; None: none are known
    """
    values = {role: row.get(column) for role, column in chosen.items()}
    label = values["label"]
    if names and isinstance(label, int):
        # the hub writes a missing label as -1, which Python would count from the end
        label = names[label] if 0 <= label < len(names) else None
    if isinstance(label, list | tuple | dict):
        cure = "give every row one label, or name another --label-column"
        raise CorpusError(
            f"a text or a number as label ({where})", repr(label)[:60], cure
        )
    text = "" if label is None else str(label).strip()
    # a column of whole numbers with one missing is read as decimals by pandas and Arrow
    if re.fullmatch(r"-?\d+\.0+", text):
        text = text.partition(".")[0]
    return LabelledRow(where, text, values)


def _collect_labels(rows: list[LabelledRow]) -> list[str]:
    """Return the distinct labels of rows, sorted.

    CorpusError for labels that mean "missing": `nan`, infinite, −1 next to 0, 1 …
    """
    found = {row.label for row in rows} - {""}
    numbers: dict[str, int] = {}
    for label in found:
        # longer ones are ids, and Python refuses to parse thousands of digits
        if re.fullmatch(r"-?\d{1,18}", label):
            numbers[label] = int(label)
    missing = set(filter(_is_missing, found))
    lowest = min(numbers.values(), default=0)
    # −1 with 1 is a pair of classes; −1 with 0, 1 … is how a missing class is written
    if lowest == -1 and 0 in numbers.values():
        missing.add("-1")
    bad = [f"{row.where} ({row.label})" for row in rows if row.label in missing]
    if bad:
        cure = "leave these rows out; if the value stands for a class, give the class a name (negative for -1)"
        raise CorpusError("a label in every row", list_faulty(bad), cure)
    # numbers in their order (2 before 10), then texts
    return sorted(
        found, key=lambda label: (label not in numbers, numbers.get(label, 0), label)
    )


def _is_missing(label: str) -> bool:
    """Return whether a label stands for no value: a number that is not finite, or a word like `nan`."""
    try:
        return label.lower() in NOT_A_LABEL or not math.isfinite(float(label))
    except ValueError:
        return False


def _group_by_split(
    rows: list[LabelledRow], column: str
) -> dict[str, list[LabelledRow]]:
    """Group rows by the value of their split column. CorpusError for a row without one."""
    splits: dict[str, list[LabelledRow]] = {}
    for row in rows:
        split = str(row.values["split"] or "").strip().lower()
        if not split:
            raise CorpusError(
                f"a split in the column {column!r} of every row ({row.where})",
                "none",
                "fill in the split of every row",
            )
        splits.setdefault(ALIASES.get(split, split), []).append(row)
    return splits


def _make_example(row: LabelledRow, index: Mapping[str, int]) -> Example:
    """Turn a row into an `Example`. CorpusError if its label is missing or unknown.

    index   {label: number of its class}
    """
    where, label, values = row
    if not label:
        raise CorpusError(
            f"a label in every row ({where})", "none", "leave such rows out"
        )
    if label not in index:
        raise CorpusError(
            f"a label among {', '.join(index)} ({where})", label, "leave such rows out"
        )
    marks = _parse_marks(values.get("rationale"), where)
    words = _split_words(values["text"], where)
    second = values.get("second")
    if second is not None:
        second = _split_words(second, where)
    example = Example(words, index[label], second, marks)
    check_example(example, where, pairs="second" in values)
    return example


def _split_words(value: Any, where: str) -> tuple[str, ...]:
    """Split a text at blanks; a list of words stays as it is. CorpusError for a list of two texts.

    where   where the row is, for errors
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        return tuple(str(value).split())
    # an entry with blanks is no word: a pair of texts in one column
    if len(value) == 2 and any(len(str(text).split()) > 1 for text in value):
        raise CorpusError(
            f"one text ({where})",
            "two",
            "give the second text a column of its own, --second-column",
        )
    return tuple(map(str, value))


def _parse_marks(value: Any, where: str) -> tuple[float, ...] | None:
    """Read a rationale: a list of numbers in [0, 1], or text that holds one (`[0, 1]`, `0 1`). None if it is empty.

    where   where the row is, for errors
    """
    if value is None or value == "" or value == []:
        return None
    entries = value
    marks = None
    try:
        if isinstance(value, str):
            entries = _split_marks(value.strip())
        marks = tuple(map(float, entries))
    # the last two: brackets nested thousands deep
    except (
        ValueError,
        SyntaxError,
        TypeError,
        OverflowError,
        RecursionError,
        MemoryError,
    ):
        pass
    if marks is None or not all(0 <= mark <= 1 for mark in marks):
        got = f"{str(entries)[:60]!r}"
        raise CorpusError(
            f"a rationale of numbers between 0 and 1, one per word ({where})",
            got,
            "correct it",
        )
    return marks


def _split_marks(text: str) -> Any:
    """Return the marks in a text, which are written as a Python list, or between blanks or commas."""
    if text.startswith("["):
        return ast.literal_eval(text)
    return text.replace(",", " ").split()


def _find_missing_splits(read: Mapping[str, list[Example]]) -> list[str]:
    """Return the splits that a table lacks, and that are therefore drawn at random."""
    if "" in read:  # a table without splits
        return list(SPLITS)
    return [split for split in (VALIDATION, TEST) if not read.get(split)]


def _complete_splits(
    read: dict[str, list[Example]], seed: int
) -> dict[str, tuple[Example, ...]]:
    """Return the examples of all splits; missing splits are drawn at random, class by class.

    read   examples by split; missing splits are drawn from the training split, or from a table without splits ("")
    seed   of the random numbers
    """
    if "" in read:
        # Named by no split, all rows are divided in the usual shares.
        return split_at_random(read[""], SHARES, seed)
    splits = {split: tuple(examples) for split, examples in read.items()}
    missing = _find_missing_splits(read)
    if missing:
        # What is missing is taken from the training split, the rest of which stays.
        share = SHARES[VALIDATION]
        kept = {TRAIN: 1 - share * len(missing), **dict.fromkeys(missing, share)}
        splits |= split_at_random(read.get(TRAIN, []), kept, seed)
    # in a fixed order, others behind: the fingerprint of a corpus depends on it
    complete = {split: splits.get(split, ()) for split in SPLITS}
    return complete | splits
