"""`classes` and `explain`: how a classifier decides, on a corpus and on single texts.

The model is a name or in memory, and so are the texts. The command line shares the functions behind them.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import pandas as pd

from anisoscope.api.keywords import read_keywords
from anisoscope.api.objects import wrap_module
from anisoscope.api.run import Run, list_texts, run_to_folder_or_memory
from anisoscope.data.check_names import require_for_model
from anisoscope.errors import UsageError
from anisoscope.extras import require_extra
from anisoscope.progress import show_progress, show_spinner
from anisoscope.runs.job import ClassesOptions, OutputOptions

if TYPE_CHECKING:
    from torch import nn

    from anisoscope.classes.sentence import Classifier, Explanation
    from anisoscope.models.load import Subject
    from anisoscope.store import RunFolder

    Model = str | Path | nn.Module | Subject
    Labelled = str | pd.DataFrame | Iterable[tuple[str, str | int]]


def classes(
    model: "Model" = "builtin:minilm",
    corpus: "Labelled" = "",
    *,
    processor: Any = None,
    **options: Any,
) -> Run:
    """Measure how a classifier decides: do texts' vectors point in class directions, is attention used, which words
    matter?

    model      a classifier, or any other text model (then less is measured): a name, a torch module, or what
               `anisoscope.load` returned
    corpus     labelled texts: the name of a corpus, a table, a folder of tables, or a hub data set; or a `DataFrame`,
               or a list of (text, label). If it is left out, the corpus that the model was trained on
    processor  tokenizer of a torch module

    Other keywords are the options of `anisoscope classes`. Returns the run; it is kept in memory if no `output` is
    named.
    """
    name, subject = _name_model(model, processor)
    given = options | {"model": name, "corpus": _name_corpus(corpus)}
    settings, output, quiet = read_keywords(ClassesOptions, given)

    def measure(where: OutputOptions) -> "RunFolder":
        """Measure the classes and return the run folder; texts in memory are in a temporary file meanwhile."""
        with _write_temporary_file(corpus) as path:
            return measure_classes(settings, where, quiet, subject, path)

    def reopen() -> "tuple[Classifier, list[str]]":
        """Open the classifier once more, to explain texts."""
        return _open(settings, corpus, subject)

    run = run_to_folder_or_memory(measure, output)
    # A function, so that the model is loaded only if the run is asked to explain a
    # text.
    run.open_classifier = reopen
    return run


@overload
def explain(
    model: "Model",
    text: str,
    *,
    corpus: "Labelled" = "",
    processor: Any = None,
    **options: Any,
) -> "Explanation": ...


@overload
def explain(
    model: "Model",
    text: "list[str] | tuple[str, ...] | pd.Series[str]",
    *,
    corpus: "Labelled" = "",
    processor: Any = None,
    **options: Any,
) -> "list[Explanation]": ...


def explain(
    model: "Model",
    text: "str | list[str] | tuple[str, ...] | pd.Series[str]",
    *,
    corpus: "Labelled" = "",
    processor: Any = None,
    **options: Any,
) -> "Explanation | list[Explanation]":
    """Explain, word by word, the class that a classifier gives to a text, or to each of several.

    model      a classifier of texts: a name, a torch module, or what `anisoscope.load(…, classifier=True)` returned
    text       a text; or several, as a list or a column of a DataFrame: the result is then a list in the same order
    corpus     labelled texts as for `classes`, from which the directions of classes are computed. Without it, the
               attribution by values along these directions is left out, unless the model was trained by this program
    processor  tokenizer of a torch module

    Other keywords are the options of `anisoscope classes`. The result has attributions of the words by attention,
    values along the direction of the class, gradient × input and erasure, and how far these agree; its `notes` say what
    is left out or assumed. ModelError for a model without a head for classes, UsageError for a text without words.
    """
    name, subject = _name_model(model, processor)
    given = options | {"model": name, "corpus": _name_corpus(corpus)}
    settings, output, _ = read_keywords(ClassesOptions, given)
    if output != OutputOptions():
        raise UsageError(
            "no output with a text to explain, as the explanation is returned",
            "output",
            "leave output out",
        )
    # A model in memory is loaded already, whatever is installed.
    if subject is None:
        require_for_model(name)
    classifier, notes = _open(settings, corpus, subject)
    if isinstance(text, str):
        return _explain_one(classifier, text, notes)
    return [_explain_one(classifier, one, notes) for one in list_texts(text)]


def explain_text(
    settings: ClassesOptions, text: str, quiet: bool
) -> "tuple[Explanation, list[str]]":
    """Load a classifier and explain the class that it gives to a text. Returns (explanation, notes on the classifier).

    settings   the name of the classifier, and how it reads texts
    """
    require_for_model(settings.model)
    with show_spinner(f"loading {settings.model}", quiet=quiet):
        # Imported while the spinner turns: torch and transformers take seconds.
        from anisoscope.classes.sentence import explain as explain_opened
        from anisoscope.runs.explaining import open_classifier

        opened, notes = open_classifier(settings)
    return explain_opened(opened, text), notes


def measure_classes(
    settings: ClassesOptions,
    output: OutputOptions,
    quiet: bool,
    subject: "Subject | None" = None,
    corpus_file: str | None = None,
) -> "RunFolder":
    """Measure a classifier on a labelled corpus and return the run folder, with progress shown unless `quiet`.

    settings      the model, the corpus and what to measure
    output        the folder to write, and what to do if it exists
    subject       the model, if it is in memory; None: it is loaded by its name
    corpus_file   path of the corpus, if `settings` does not name a file
    """
    if subject is None:
        require_for_model(settings.model)
    require_extra("data", "to measure classes")
    with show_progress(
        f"{settings.model} × {settings.corpus or 'what it was trained on'}", quiet=quiet
    ) as progress:
        # Imported while the progress is shown: torch and transformers take seconds.
        from anisoscope.runs.classes import run_classes

        how: dict[str, Any] = {
            "subject": subject,
            "corpus_file": corpus_file,
            "progress": progress,
        }
        return run_classes(settings, **asdict(output), **how)


def _name_model(model: "Model", processor: Any) -> "tuple[str, Subject | None]":
    """Return (the model's name, the model itself if it is in memory, else None).

    UsageError for a module without a tokenizer, and for a tokenizer given together with a name.
    """
    if isinstance(model, str | Path):
        if processor is not None:
            raise UsageError(
                "processor only with a torch.nn.Module", "a name", "leave processor out"
            )
        return str(model), None
    subject = wrap_module(model, processor)
    # What `anisoscope.load` returned was loaded with its tokenizer, if there is one.
    if subject is not model and subject.processor is None:
        raise UsageError(
            "a tokenizer for a model in memory",
            "none",
            "give processor=, the model's tokenizer",
        )
    return subject.name, subject


def _name_corpus(corpus: "Labelled") -> str:
    """Return the name of a labelled corpus; `texts` if it is in memory."""
    return corpus if isinstance(corpus, str) else "texts"


@contextmanager
def _write_temporary_file(corpus: "Labelled") -> Iterator[str | None]:
    """Write labelled texts that are in memory to a file, which exists inside a `with` block.

    Yields the path of the file; None if the corpus is given by its name.

    UsageError for anything but a name, a DataFrame, or pairs of a text and its label.
    """
    if isinstance(corpus, str):
        yield None
        return
    table = corpus if isinstance(corpus, pd.DataFrame) else _tabulate_pairs(corpus)
    # Corpora are read from files, so texts in memory become one for the time of the
    # measurement.
    with tempfile.TemporaryDirectory(prefix="anisoscope-") as folder:
        path = Path(folder, "texts.parquet")
        table.to_parquet(path, index=False)
        yield str(path)


def _tabulate_pairs(corpus: Any) -> pd.DataFrame:
    """Return pairs of a text and its label as a table. UsageError for anything else."""
    expected, cure = (
        "a corpus: a name, a DataFrame, or a list of (text, label)",
        "see help(anisoscope.classes)",
    )
    # A list may hold anything: what is no pair is found here, with its place, and not
    # far below.
    if not isinstance(corpus, Iterable):
        raise UsageError(expected, type(corpus).__name__, cure)
    pairs = list(corpus)
    for number, pair in enumerate(pairs):
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not (is_pair and isinstance(pair[0], str)):
            raise UsageError(expected, f"{str(pair)[:60]!r} at index {number}", cure)
    return pd.DataFrame(pairs, columns=["text", "label"])


def _open(
    settings: ClassesOptions, corpus: "Labelled", subject: "Subject | None"
) -> "tuple[Classifier, list[str]]":
    """Open a classifier to explain texts. Returns (the classifier, notes on it)."""
    from anisoscope.runs.explaining import open_classifier

    with _write_temporary_file(corpus) as path:
        return open_classifier(settings, subject, path)


def _explain_one(
    classifier: "Classifier", text: str, notes: list[str]
) -> "Explanation":
    """Explain one text, with the notes on the classifier before those on the text."""
    from anisoscope.classes.sentence import explain as explain_opened

    # What holds for the classifier comes before what holds for this text alone.
    explanation = explain_opened(classifier, text)
    return replace(explanation, notes=[*notes, *explanation.notes])
