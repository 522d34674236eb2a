"""Read tables, columns and rows in memory (pandas, polars, Arrow, data sets): their vectors, or their texts."""

import math
from typing import TYPE_CHECKING, Any

from anisoscope.errors import UsageError

if TYPE_CHECKING:
    from anisoscope.data.arrays import VectorArrays
    from anisoscope.data.vector_roles import Content

TABLES = {
    "pandas": ("DataFrame",),
    "pyarrow": ("Table",),
    "datasets": ("Dataset",),
    "polars": ("DataFrame",),
}
"""Libraries → their classes of tables. Their names are compared, so that none of them is imported."""
COLUMNS = {"pandas": ("Series",), "polars": ("Series",)}


def library_of(thing: Any) -> str:
    """Return the name of the library that an object is from, such as `pandas`, by its class and base classes.

    Empty for any library whose objects are not accepted here as tables, columns or models.
    """
    # With base classes: a user's own kind of DataFrame is one.
    for kind in type(thing).__mro__:
        package = kind.__module__.partition(".")[0]
        if (
            package in TABLES
            or package in COLUMNS
            or package == "sentence_transformers"
        ):
            return package
    return ""


def is_table(thing: Any) -> bool:
    """Return whether an object is a table in memory (pandas, polars, Arrow, a data set)."""
    names = {kind.__name__ for kind in type(thing).__mro__}
    return bool(names & set(TABLES.get(library_of(thing), ())))


def read_vectors_of_table(
    table: Any, *, units: Any = None, labels: Any = None, **columns: str | None
) -> "VectorArrays":
    """Read the vectors in a table in memory, by the same rules as for files (`data.vector_roles`).

    units, labels   the unit and the class of each row; UsageError for a string, which may be the name of a column
    columns         names of columns: `columns` (the vectors), `unit_column`, `label_column`; None: guessed
    """
    import numpy as np

    from anisoscope.data.vector_files import read_vectors_of

    content = read_columns_of_table(table)
    for role, given in (("unit", units), ("label", labels)):
        if given is None:
            continue
        if isinstance(given, str):
            raise UsageError(
                f"{role}s: an array with one entry per row",
                repr(given),
                f"to name a column, give {role}_column={given!r}",
            )
        # They become one more column, so that files and tables are read by the same
        # code.
        name = f"{role}s that were given"
        content.columns[name] = np.asarray(given)
        columns[f"{role}_column"] = name
    return read_vectors_of(
        content,
        f"the {type(table).__name__}",
        {"class": type(table).__name__},
        **columns,
    )


def read_columns_of_table(table: Any) -> "Content":
    """Return the columns of a table in memory, without its index."""
    from anisoscope.data.vector_files import read_dataset
    from anisoscope.data.vector_tables import read_arrow_table

    library = library_of(table)
    if library == "datasets":
        return read_dataset(table)
    if library == "pandas":
        import pyarrow  # type: ignore[import-untyped]

        # pandas may number its columns, but names in Arrow are texts.
        named = table.set_axis([str(name) for name in table.columns], axis=1)
        table = pyarrow.Table.from_pandas(named, preserve_index=False)
    elif library == "polars":
        table = table.to_arrow()
    return read_arrow_table(table)


def read_texts_of_table(inputs: Any, column: str | None) -> Any:
    """Return the texts in a table, a column, a list of rows or an iterator as a list; return anything else unchanged.

    inputs   what may hold texts. If it is an iterator over something else, an iterator over the same items is returned
    column   the column of texts; None: guessed

    A chat becomes one text: that of all its messages. A missing text is an empty one. CorpusError if a table or list of
    rows has no column of texts.
    """
    from anisoscope.data.documents import list_if_texts

    inputs = list_if_texts(inputs)
    texts = _read_column_of_texts(inputs, column)
    if texts is inputs:
        return inputs
    return [_to_text(value) for value in texts]


def _to_text(value: Any) -> Any:
    """Return a chat as one text, and a missing text or a chat without messages as an empty one; others unchanged."""
    from anisoscope.data.documents import join_chat

    if _is_missing(value) or (isinstance(value, list) and not value):
        return ""
    joined = join_chat(value)
    return value if joined is None else joined


def fill_missing_texts(inputs: Any) -> Any:
    """Return a list of texts with an empty text in place of each missing one; return anything else unchanged.

    Libraries of tables write None, NaN or pandas' `NA` for a missing text.
    """
    if not isinstance(inputs, list | tuple) or are_texts(inputs):
        return inputs
    texts = [value for value in inputs if not _is_missing(value)]
    # A list of nothing but missing values, or of other things, is no list of texts.
    if not are_texts(texts):
        return inputs
    return ["" if _is_missing(value) else value for value in inputs]


def _is_missing(value: Any) -> bool:
    """Return whether a value stands for a missing one: None, NaN, or pandas' `NA`."""
    if isinstance(value, float):
        return math.isnan(value)
    # By name, since pandas need not be loaded.
    return value is None or type(value).__name__ == "NAType"


def are_texts(inputs: Any) -> bool:
    """Return whether something is a list or tuple of strings, with at least one."""
    if not isinstance(inputs, list | tuple) or not inputs:
        return False
    return all(isinstance(text, str) for text in inputs)


def _read_column_of_texts(inputs: Any, column: str | None) -> Any:
    """Return the column of texts or chats of a table in memory as a list; return anything else unchanged."""
    from anisoscope.data.documents import choose_column

    library = library_of(inputs)
    if type(inputs).__name__ in COLUMNS.get(library, ()):
        return list(inputs)
    if _are_rows(inputs):
        chosen = choose_column(inputs[0], column, "the list of rows")
        return [row.get(chosen) for row in inputs]
    if not is_table(inputs):
        return inputs
    chosen = choose_column(
        _read_first_row(inputs), column, f"the {type(inputs).__name__}"
    )
    values = inputs[chosen]
    # Of Arrow, `list` would give scalars of its own instead of texts.
    return values.to_pylist() if library == "pyarrow" else list(values)


def _read_first_row(table: Any) -> dict[str, Any]:
    """Return the first row of a table in memory as {column: value}; empty without rows."""
    library = library_of(table)
    if library == "pandas":
        if not len(table):
            return {}
        return {str(name): table[name].iloc[0] for name in table}
    # Of a data set (`datasets`), a slice is a dict of columns already.
    columns = table[:1]
    if library == "polars":
        columns = columns.to_dict(as_series=False)
    elif library == "pyarrow":
        columns = columns.to_pydict()
    return {name: values[0] for name, values in columns.items() if len(values)}


def _are_rows(inputs: Any) -> bool:
    """Return whether something is a list of rows with texts (`{"text": …, "label": …}`), not of inputs of a model."""
    from anisoscope.data.documents import join_chat

    if not isinstance(inputs, list | tuple) or not inputs:
        return False
    # Whether they are rows is seen without looking at any value.
    if not all(isinstance(row, dict) for row in inputs):
        return False
    has_text = False
    for value in inputs[0].values():
        if isinstance(value, str) or join_chat(value) is not None:
            has_text = True
        elif not isinstance(value, int | float | None):
            # A list of numbers, an array or a tensor: the row is an input of a model.
            return False
    return has_text
