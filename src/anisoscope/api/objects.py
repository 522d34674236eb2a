"""Accept objects of other libraries: tables as vectors or texts, and transformers pipelines and sentence-transformers
models as models.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anisoscope.errors import UsageError

if TYPE_CHECKING:
    from anisoscope.data.arrays import VectorArrays
    from anisoscope.data.vector_roles import Content
    from anisoscope.models.load import Subject

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

    A chat becomes one text: that of all its messages. CorpusError if a table or list of rows has no column of texts.
    """
    from anisoscope.data.documents import join_chat, list_if_texts

    inputs = list_if_texts(inputs)
    texts = _read_column_of_texts(inputs, column)
    if texts is inputs:
        return inputs
    return [join_chat(text) or text for text in texts]


def _read_column_of_texts(inputs: Any, column: str | None) -> Any:
    """Return the column of texts or chats of a table in memory as a list; return anything else unchanged."""
    from anisoscope.data.documents import choose_column

    library = library_of(inputs)
    if type(inputs).__name__ in COLUMNS.get(library, ()):
        return list(inputs)
    if _are_rows(inputs):
        chosen = choose_column(inputs[0], column, "the list of rows")
        # A row may lack the column: that is an empty text.
        return [row.get(chosen) or "" for row in inputs]
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


@contextmanager
def unwrap_model(model: Any, processor: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (model, processor) taken from a transformers pipeline or a sentence-transformers model, in a `with` block.

    Any other model and its processor are yielded unchanged. What is added to a user's model is removed at the end.
    """
    # By its attributes, so that transformers is not imported for this.
    is_pipeline = (
        hasattr(model, "model")
        and hasattr(model, "preprocess")
        and hasattr(model, "tokenizer")
    )
    if library_of(model) == "sentence_transformers":
        with _unwrap_sentence_transformer(model) as subject:
            yield subject, processor
    elif is_pipeline:
        yield model.model, processor or _find_processor(model)
    else:
        yield model, processor


def _find_processor(pipeline: Any) -> Any:
    """Return the tokenizer, image processor or feature extractor of a transformers pipeline; None if it has none."""
    for name in ("tokenizer", "image_processor", "feature_extractor"):
        part = getattr(pipeline, name, None)
        if part is not None:
            return part
    return None


@contextmanager
def _unwrap_sentence_transformer(model: Any) -> Iterator["Subject"]:
    """Yield the Transformer of a sentence-transformers model, with the modules that make text vectors from its
    output.
    """
    from torch import nn

    from anisoscope.models.identity import hash_weights
    from anisoscope.models.load import Subject
    from anisoscope.models.other_libraries import LAST_STATES, try_text_pooling

    # The model is a sequence of modules: the Transformer, then pooling and so on.
    modules = list(model)
    first, behind = modules[0], modules[1:]
    base = getattr(first, "auto_model", None)
    if not isinstance(base, nn.Module):
        got = f"a {type(model).__name__} whose first module is {type(first).__name__}"
        raise UsageError(
            "a sentence-transformers model built on transformers",
            got,
            "measure its vectors: anisoscope.measure(model.encode(texts))",
        )
    notes: list[str] = []
    if behind:
        # Capture finds the modules behind the Transformer as its attribute `sentence`.
        base.sentence = nn.ModuleList(behind)
        # Which output of the Transformer the modules behind it read.
        text_config = getattr(first, "modality_config", {}).get("text", {})
        base.sentence.reads = text_config.get("method_output_name", LAST_STATES)
        chain = ", ".join(type(module).__name__ for module in modules)
        notes = try_text_pooling(base, model.tokenizer, chain)
    prompt = getattr(model, "default_prompt_name", None)
    if prompt:
        notes.append(
            f"texts are measured without the prompt that encode() would put first, {prompt!r}"
        )
    try:
        yield Subject(
            base, model.tokenizer, type(model).__name__, None, hash_weights(base), notes
        )
    finally:
        if hasattr(base, "sentence"):
            del base.sentence


def wrap_module(model: Any, processor: Any) -> "Subject":
    """Return a torch module as a `Subject`: the model with its processor and the hash of its weights.

    model       a torch module; a `Subject` (what `anisoscope.load` returns) is returned as it is
    processor   tokenizer or the like; if given, it replaces that of a `Subject`
    """
    from anisoscope.measure.calls import check_module
    from anisoscope.models.families import class_of
    from anisoscope.models.identity import hash_weights
    from anisoscope.models.load import Subject

    if isinstance(model, Subject):
        return model if processor is None else replace(model, processor=processor)
    check_module(model)
    return Subject(
        model, processor, class_of(model).__name__, None, hash_weights(model)
    )
