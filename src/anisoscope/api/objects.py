"""Accept objects of other libraries: tables as vectors or texts, and transformers pipelines and sentence-transformers
models as models.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anisoscope.errors import UsageError

if TYPE_CHECKING:
    from anisoscope.data.arrays import VectorArrays
    from anisoscope.data.vector_roles import Content
    from anisoscope.models.load import Subject

TABLES = {"pandas": ("DataFrame",), "pyarrow": ("Table",), "datasets": ("Dataset",), "polars": ("DataFrame",)}
"""Libraries → their classes of tables. They are told by name, so that none is imported for it."""
COLUMNS = {"pandas": ("Series",), "polars": ("Series",)}


def library_of(thing: Any) -> str:
    """Return the name of the library that defines the class of an object, or one of its base classes."""
    packages = (kind.__module__.partition(".")[0] for kind in type(thing).__mro__)
    known = {*TABLES, *COLUMNS, "sentence_transformers"}
    return next((package for package in packages if package in known), "")


def is_table(thing: Any) -> bool:
    """Tell whether an object is a table in memory (pandas, polars, Arrow, a data set)."""
    names = {kind.__name__ for kind in type(thing).__mro__}
    return bool(names & set(TABLES.get(library_of(thing), ())))


def read_vectors_of_table(table: Any, *, units: Any = None, labels: Any = None, **asked: str | None) -> "VectorArrays":
    """Read the vectors in a table in memory, by the same rules as for files (`data.vector_roles`).

    units, labels   one for each row. UsageError for the name of a column: pass that as `unit_column`, `label_column`
    """
    import numpy as np

    from anisoscope.data.vector_files import read_vectors_of

    content = read_columns_of_table(table)
    for role, given in (("unit", units), ("label", labels)):
        if given is None:
            continue
        if isinstance(given, str):
            raise UsageError(f"{role}s, one each a row", repr(given), f"name a column with {role}_column={given!r}")
        name = f"{role}s that were given"
        content.columns[name] = np.asarray(given)
        asked[f"{role}_column"] = name
    return read_vectors_of(content, f"the {type(table).__name__}", {"class": type(table).__name__}, **asked)


def read_columns_of_table(table: Any) -> "Content":
    """Return the columns of a table in memory, without its index."""
    from anisoscope.data.vector_files import read_dataset
    from anisoscope.data.vector_tables import read_arrow_table

    library = library_of(table)
    if library == "datasets":
        return read_dataset(table)
    if library == "pandas":
        import pyarrow  # type: ignore[import-untyped]

        named = table.set_axis([str(name) for name in table.columns], axis=1)
        table = pyarrow.Table.from_pandas(named, preserve_index=False)
    elif library == "polars":
        table = table.to_arrow()
    return read_arrow_table(table)


def read_texts_of_table(inputs: Any, column: str | None) -> Any:
    """Return the texts of a table, of one of its columns, or of a list of rows, as a list; anything else unchanged.

    A chat gives the text of its messages. CorpusError without a text.
    """
    from anisoscope.data.documents import join_chat

    texts = _read_column_of_texts(inputs, column)
    return texts if texts is inputs else [join_chat(text) or text for text in texts]


def _read_column_of_texts(inputs: Any, column: str | None) -> Any:
    """Return the column of texts or chats of a table in memory as a list; anything else unchanged."""
    from anisoscope.data.documents import choose_column

    library = library_of(inputs)
    if type(inputs).__name__ in COLUMNS.get(library, ()):
        return list(inputs)
    if _are_rows(inputs):
        chosen = choose_column(inputs[0], column, "the list of rows")
        return [row.get(chosen) or "" for row in inputs]
    if not is_table(inputs):
        return inputs
    if library == "pandas":
        first = {str(name): inputs[name].iloc[0] for name in inputs} if len(inputs) else {}
    else:
        first = inputs[:1].to_dict(as_series=False) if library == "polars" else inputs[:1]
        first = first.to_pydict() if library == "pyarrow" else first
        first = {name: values[0] for name, values in first.items() if len(values)}
    chosen = choose_column(first, column, f"the {type(inputs).__name__}")
    values = inputs[chosen]
    return values.to_pylist() if library == "pyarrow" else list(values)


def _are_rows(inputs: Any) -> bool:
    """Return whether something is a list of rows with texts, `{"text": …, "label": …}`, and not of a model's inputs."""
    from anisoscope.data.documents import join_chat

    if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(row, dict) for row in inputs):
        return False
    values = inputs[0].values()
    texts = [value for value in values if isinstance(value, str) or join_chat(value) is not None]
    others = [value for value in values if not isinstance(value, str | int | float | list | None)]
    numbers = [value for value in values if isinstance(value, list) and join_chat(value) is None]
    return bool(texts) and not others and not numbers


@contextmanager
def unwrap_model(model: Any, processor: Any) -> Iterator[tuple[Any, Any]]:
    """Yield model and processor of a transformers pipeline or a sentence-transformers model; others unchanged.

    A context manager: what it adds to a user's own model is removed at the end.
    """
    if library_of(model) == "sentence_transformers":
        with _unwrap_sentence_transformer(model) as subject:
            yield subject, processor
    elif hasattr(model, "model") and hasattr(model, "preprocess") and hasattr(model, "tokenizer"):
        parts = (getattr(model, name, None) for name in ("tokenizer", "image_processor", "feature_extractor"))
        yield model.model, processor or next((part for part in parts if part is not None), None)
    else:
        yield model, processor


@contextmanager
def _unwrap_sentence_transformer(model: Any) -> Iterator["Subject"]:
    """Yield the Transformer of a sentence-transformers model, with the modules that make text vectors from its
    output.
    """
    from torch import nn

    from anisoscope.models.beside import LAST_STATES, try_text_pooling
    from anisoscope.models.identity import hash_weights
    from anisoscope.models.load import Subject

    first, *behind = list(model)
    base = getattr(first, "auto_model", None)
    if not isinstance(base, nn.Module):
        got = f"a {type(model).__name__} whose first module is {type(first).__name__}"
        raise UsageError("a model of transformers", got, "measure its vectors: anisoscope.measure(model.encode(texts))")
    how = getattr(first, "modality_config", {}).get("text", {})
    name, notes = type(model).__name__, list[str]()
    if behind:
        base.sentence = nn.ModuleList(behind)
        base.sentence.reads = how.get("method_output_name", LAST_STATES)
        notes = try_text_pooling(base, model.tokenizer, ", ".join(type(module).__name__ for module in model))
    prompt = getattr(model, "default_prompt_name", None)
    if prompt:
        notes.append(f"texts are measured without the prompt that encode() would put first, {prompt!r}")
    try:
        yield Subject(base, model.tokenizer, name, None, hash_weights(base), notes)
    finally:
        if hasattr(base, "sentence"):
            del base.sentence
