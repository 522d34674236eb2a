"""Open a classifier to explain single texts, as `anisoscope classes` opens it, with the directions of its classes."""

import re
from dataclasses import replace
from typing import Any

from anisoscope.classes.attributions import measure_class_directions
from anisoscope.classes.faithfulness import DIRECTED
from anisoscope.classes.pooling import find_neutral_padding
from anisoscope.classes.sentence import Classifier
from anisoscope.data.encoding import LabelledPlan, Padding, encode
from anisoscope.data.labelled import (
    TRAIN,
    Example,
    Examples,
    LabelledCorpus,
    take_balanced,
)
from anisoscope.data.opening import choose_text_length, open_labelled
from anisoscope.errors import ModelError
from anisoscope.models.load import Subject, is_classifier
from anisoscope.options import select_fields
from anisoscope.runs.classes import (
    choose_pad,
    fill_from_training,
    list_reading_stacks,
    match_class_order,
    read_training,
    require_tokenizer,
)
from anisoscope.runs.job import ClassesOptions, Job, LoadOptions
from anisoscope.runs.run import load_subject, resolve_dtype_and_device

TRIAL = (("a",), ("a", "b", "a", "b", "a", "b"))
"""Words on which padding is tried if there is no corpus."""


def open_classifier(
    classes: ClassesOptions,
    subject: Subject | None = None,
    corpus_file: str | None = None,
) -> tuple[Classifier, list[str]]:
    """Open a classifier to explain texts. Returns (the classifier, notes for the user).

    subject       the model, if it is in memory; None: it is loaded by its name
    corpus_file   where the corpus is, if the name in `classes` is no place

    The directions of its classes are computed on the named corpus, or on the one that the model was trained on. Without
    a corpus there are none. ModelError for a model without a classification head.
    """
    # Only if there is a corpus to find: without one, filling in would ask the user for
    # it.
    recipe = read_training(classes.model).get("recipe", {})
    if classes.corpus or recipe.get("corpus"):
        classes = fill_from_training(classes)
    job = Job(model=classes.model, **select_fields(classes, LoadOptions))
    subject = subject or load_subject(job, classifier=True)
    if not is_classifier(subject.config):
        raise _refuse_model(subject)
    model: Any = subject.model
    tokenizer = require_tokenizer(subject)
    stack = list_reading_stacks(model)
    length = choose_text_length(subject.config, tokenizer, classes.max_length)
    corpus, notes = _open_corpus(classes, subject, corpus_file)
    examples: Examples = ()
    if corpus:
        # From the training split: the text to explain may be of another one.
        examples = take_balanced(corpus.splits[TRAIN], DIRECTED, len(corpus.labels))
    tried_on = examples or tuple(Example(words, 0) for words in TRIAL)
    rows = encode(tried_on, tokenizer, length).rows
    pad = choose_pad(tokenizer, subject.config, rows)
    padding: Padding = find_neutral_padding(model, rows, pad)
    # The corpus knows the classes by name if the model has only their numbers.
    names = _name_classes(subject.config, corpus)
    opened = Classifier(model, tokenizer, names, length, padding, stack)
    if corpus is None:
        return opened, notes
    device = resolve_dtype_and_device(job, subject).device
    plan = LabelledPlan(
        encode(examples, tokenizer, length), padding, stack=stack, device=device
    )
    directions = measure_class_directions(model, plan, len(names))
    return replace(opened, directions=directions), notes


def _name_classes(config: Any, corpus: LabelledCorpus | None) -> tuple[str, ...]:
    """Return the names of the classes: the model's own or, if it has none (LABEL_0 …), those of the corpus."""
    names = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    are_nameless = all(re.fullmatch(r"LABEL_\d+", name) for name in names)
    if corpus is not None and are_nameless:
        return corpus.labels
    return names


def _refuse_model(subject: Subject) -> ModelError:
    """Make the error for a model that names no class of a whole text. The caller raises it."""
    architectures = getattr(subject.config, "architectures", None) or ()
    of_tokens = any(name.endswith("ForTokenClassification") for name in architectures)
    got = "which has no head for classes"
    if of_tokens:
        got = "which names a class for each token"
    return ModelError(
        "a classifier of texts",
        f"{subject.name}, {got}",
        "name one that was fine-tuned on texts",
    )


def _open_corpus(
    classes: ClassesOptions, subject: Subject, corpus_file: str | None
) -> tuple[LabelledCorpus | None, list[str]]:
    """Return (the corpus for the directions of the classes, notes for the user).

    corpus_file   where the corpus is, if the name in `classes` is no place

    None if no corpus is named, or its classes are not those of the model.
    """
    if not classes.corpus:
        return None, []
    place = corpus_file or classes.corpus
    # No more texts than the directions take: a hub corpus need not be loaded whole.
    corpus = open_labelled(
        place,
        columns=classes.by_role,
        seed=classes.split_seed,
        limit=DIRECTED,
        for_training=False,
    )
    corpus, is_usable, notes = match_class_order(subject.config, corpus)
    return corpus if is_usable else None, notes
