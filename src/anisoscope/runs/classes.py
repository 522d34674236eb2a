"""Measure a classifier on a labelled corpus: an ordinary run with texts as units, and the analyses of `classes/`."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.axes import POLICIES, At
from anisoscope.classes.ablation import measure_ablations
from anisoscope.classes.cls_entropy import measure_entropies
from anisoscope.classes.faithfulness import measure_explanations
from anisoscope.classes.pooling import (
    find_neutral_padding,
    make_accuracy_records,
    make_separability_records,
    pool_vectors,
    predict_classes,
)
from anisoscope.classes.readout import read_tokens
from anisoscope.data.corpora import Columns
from anisoscope.data.encoding import Encoded, LabelledPlan, Padding, encode
from anisoscope.data.labelled import ALL, LabelledCorpus, choose_split, take_balanced
from anisoscope.data.opening import choose_text_length, open_labelled
from anisoscope.data.windows import check_vocabulary
from anisoscope.errors import (
    CorpusError,
    MeasureError,
    ModelError,
    UsageError,
    suggest_names,
)
from anisoscope.measure.settings import Panel, Settings
from anisoscope.models.blocks import find_stack, has_attention
from anisoscope.models.load import Subject, is_classifier
from anisoscope.options import expand_home, select_fields
from anisoscope.progress import Progress, set_counted_unit
from anisoscope.provenance import json_roundtrip
from anisoscope.renamed import rename_described
from anisoscope.runs.job import NOT_IN_IDENTITY, ClassesOptions, Job, LoadOptions
from anisoscope.runs.run import (
    OpenedCorpus,
    load_subject,
    resolve_dtype_and_device,
    run,
)
from anisoscope.store import RunFolder, as_records

TITLES = {
    "directions": "directions of classes",
    "ablation": "attention replaced",
    "attribution": "words explained",
}
"""What goes on in each part."""


def run_classes(
    classes: ClassesOptions,
    output: Path | None = None,
    *,
    subject: Subject | None = None,
    corpus_file: str | None = None,
    **how: Any,
) -> RunFolder:
    """Measure a classifier on a labelled corpus; `how` are keyword arguments of `run`.

    subject       the model, if it is in memory; None: it is loaded by its name
    corpus_file   where the corpus is, if the name in `classes` is no place

    ModelError, CorpusError or UsageError if model and corpus do not fit together.
    """
    classes = fill_from_training(classes)
    loading = select_fields(classes, LoadOptions)
    job = Job(
        model=classes.model,
        **loading,
        batch_tokens=classes.batch_tokens,
        settings=Settings(seed=classes.seed),
    )
    subject = subject or load_subject(job, classifier=True)
    tokenizer = require_tokenizer(subject)
    # What the model reads at most, unless the user or the training says less. It becomes
    # part of the run's identity.
    length = choose_text_length(subject.config, tokenizer, classes.max_length)
    classes = replace(classes, max_length=length)

    # The corpus, its split, and its classes in the order of the model's.
    # A corpus given in Python has a name and, apart from it, a file: it is read from the
    # file, and keeps its name in the run.
    place = corpus_file or classes.corpus
    corpus = open_labelled(
        place, columns=classes.by_role, seed=classes.split_seed, for_training=False
    )
    corpus = replace(corpus, name=classes.corpus)
    trained_on = _is_trained_on(classes)
    corpus, split, remark = choose_split(
        corpus, classes.split, trained_on=trained_on, limit=classes.limit
    )
    classes = replace(classes, split=split)
    corpus, usable, warnings = match_class_order(subject.config, corpus)
    if remark:
        warnings = [remark, *warnings]
    plan, cautions = _plan_batches(subject, job, corpus, classes, usable)
    warnings += cautions

    # Which vector is the text's: the directions of classes are made of it.
    at, stack, notes = _find_readout(
        subject.model, plan, usable=usable, asked=classes.at
    )
    warnings += notes
    classes = replace(classes, at=at)
    panels = _choose_panels(classes, subject.model)
    # All token policies, since [CLS] and other special tokens behave unlike the words.
    # If no token was found, `at` is not used: the panel `class` is left out.
    settings = Settings(
        panel=panels, tokens=POLICIES, seed=classes.seed, at=at or "first"
    )
    job = replace(job, corpus=classes.corpus, settings=settings)

    described = corpus.described() | {"split": classes.split, "warnings": warnings}
    asked_for = asdict(classes)
    for name in NOT_IN_IDENTITY:
        asked_for.pop(name, None)
    identity = {"classes": json_roundtrip(asked_for), "labelled": corpus.fingerprint}
    # Run after the pass, so that its batches are saved if one of these analyses fails.
    after_pass = _AfterPass(subject, tokenizer, corpus, plan, classes, usable, stack)
    reading = OpenedCorpus(plan, described, identity, after_pass.records)
    return run(job, output, subject=subject, reading=reading, **how)


def _plan_batches(
    subject: Subject,
    job: Job,
    corpus: LabelledCorpus,
    classes: ClassesOptions,
    usable: bool,
) -> tuple[LabelledPlan, list[str]]:
    """Return (the batches of the chosen split, warnings on texts as tokens and on padding).

    usable   whether the model's classification head can be used: then the padding must not change its decisions
    """
    tokenizer = subject.processor
    length = classes.max_length or 0
    encoded = encode(_take_examples(corpus, classes, classes.limit), tokenizer, length)
    warnings = _warn_of_encoded(encoded, tokenizer, subject.config, length)
    pad = choose_pad(tokenizer, subject.config, encoded.rows)
    padding = Padding(pad)
    if usable:
        padding = find_neutral_padding(subject.model, encoded.rows, pad)
    if padding.side == "none":
        warnings.append(
            "padding changes what the model says: only utterances of one length are looked at together"
        )
    # The device of the loaded model: "auto" was decided when it was loaded.
    plan = LabelledPlan(
        encoded,
        padding,
        batch_tokens=classes.batch_tokens,
        stack=list_reading_stacks(subject.model),
        device=resolve_dtype_and_device(job, subject).device,
        classes=corpus.labels,
    )
    return plan, warnings


def _warn_of_encoded(
    encoded: Encoded, tokenizer: Any, config: Any, length: int
) -> list[str]:
    """Return warnings on texts as tokens: ids that the model may not know, and texts that were cut.

    length   at how many tokens texts were cut
    """
    ids = np.concatenate([row["input_ids"] for row in encoded.rows]).astype(np.int32)
    warnings = list(
        check_vocabulary(tokenizer, ids, [], getattr(config, "vocab_size", None))
    )
    if encoded.truncated:
        warnings.append(f"{encoded.truncated} utterances cut at {length} tokens")
    return warnings


def _choose_panels(classes: ClassesOptions, model: Any) -> tuple[Panel, ...]:
    """Return the panels (groups of metrics) that the pass over the texts measures."""
    panels: tuple[Panel, ...] = ("hidden",)
    if has_attention(model):
        panels += ("attention",)
    # Without a token that represents the text there is no vector to take directions from.
    if "directions" in classes.parts and classes.at is not None:
        panels += ("class",)
    return panels


@dataclass(frozen=True)
class _AfterPass:
    """The analyses of classes that are made after the ordinary pass: directions, replaced attention, explained
    words.
    """

    subject: Subject
    tokenizer: Any
    corpus: LabelledCorpus
    plan: LabelledPlan
    classes: ClassesOptions
    heads: bool
    stack: str

    def records(self, progress: Progress | None) -> tuple[pd.DataFrame, list[str]]:
        """Return (records of all chosen parts, warnings that say why a part is missing)."""
        shown = {} if progress is None else {"progress": progress}
        measures: dict[str, Callable[..., list[pd.DataFrame]]] = {
            "directions": self._measure_directions,
            "ablation": self._measure_ablation,
            "attribution": self._measure_attribution,
        }
        parts: list[pd.DataFrame] = []
        warnings: list[str] = []
        for part in self.classes.parts:
            set_counted_unit(progress, "passes", TITLES[part])
            try:
                parts += measures[part](warnings, **shown)
            # A model may allow one analysis and not another: attention that cannot be
            # replaced leaves the directions.
            except MeasureError as error:
                warnings.append(f"{part} left out: {error}")
        found = [part for part in parts if len(part)]
        records = as_records(pd.DataFrame())
        if found:
            records = pd.concat(found, ignore_index=True)
        return records, warnings

    def _measure_directions(
        self, notes: list[str], **_shown: Progress
    ) -> list[pd.DataFrame]:
        """Return records on how well directions separate the classes, on accuracy, and on the entropy of the [CLS]
        row.
        """
        model, names, plan = self.subject.model, self.corpus.labels, self.plan
        labels = np.array(plan.encoded.labels)
        found = []
        if self.classes.at is not None:
            states = pool_vectors(model, plan, self.classes.at, self.stack)
            found.append(
                make_separability_records(states, labels, names, stack=self.stack)
            )
        if self.heads:
            predicted = np.array(predict_classes(model, plan.encoded, plan.padding))
            found.append(make_accuracy_records(predicted, labels, names))
        # In a decoder the first token sees itself alone, so that its row says nothing.
        if (
            has_attention(model)
            and self.classes.at == "first"
            and find_stack(model) == "encoder"
        ):
            if plan.padding.side == "left":
                notes.append(
                    "H of the first token left out: the model wants padding before it"
                )
                return found
            rows: list[dict[str, Any]] = []
            for name, values in measure_entropies(model, plan).items():
                # Names are `row.3` of layer 3, and `row` of the mean over layers, which
                # the records do not repeat.
                kind, _, layer = name.partition(".")
                if layer:
                    row = {"component": kind, "layer": int(layer)}
                    row |= {"value": float(values.mean()), "n_units": len(values)}
                    rows.append(row)
            found.append(
                as_records(pd.DataFrame(rows), metric="cls_entropy", stack=plan.stack)
            )
        return found

    def _measure_ablation(
        self, _notes: list[str], **shown: Progress
    ) -> list[pd.DataFrame]:
        """Measure how accuracy changes if attention weights are replaced, and return the records.

        Empty if the model's head cannot be used.
        """
        if not self.heads:
            return []
        chosen = _take_examples(self.corpus, self.classes, self._few)
        few = encode(chosen, self.tokenizer, self.classes.max_length or 0)
        # With the padding of the pass, which was found not to change decisions.
        plan = LabelledPlan(
            few, self.plan.padding, stack=self.plan.stacks, device=self.plan.device
        )
        return [measure_ablations(self.subject.model, plan, **shown)]

    @property
    def _few(self) -> int:
        """How many texts the slow parts read: `few`, at most `limit`, or half of a corpus without splits."""
        few = min(self.classes.few, self.classes.limit)
        # The other half is left for the directions of classes, which may not be made of
        # the texts that they explain.
        if self.classes.split == ALL:
            few = min(few, len(self.corpus.splits[ALL]) // 2)
        return few

    def _measure_attribution(
        self, notes: list[str], **shown: Any
    ) -> list[pd.DataFrame]:
        """Return records on how well attributions explain decisions; empty if the model's head cannot be used."""
        if not self.heads:
            return []
        shown |= {
            "padding": self.plan.padding,
            "stack": self.plan.stacks,
            "notes": notes,
        }
        shown |= {
            "split": self.classes.split,
            "limit": self._few,
            "max_length": self.classes.max_length,
        }
        return [
            measure_explanations(
                self.subject.model, self.tokenizer, self.corpus, **shown
            )
        ]


def _find_readout(
    model: Any, plan: LabelledPlan, *, usable: bool, asked: At | None
) -> tuple[At | None, str, list[str]]:
    """Find out which token's vector represents a text: (token or mean, stack, warnings).

    usable   whether the model's classification head can be used: then the first batch shows which token it reads
    asked    what the user chose; None: nothing

    If the head cannot be used, the usual token is taken: the last of a decoder, the first of an encoder. The first
    result is None if the head reads neither one of these tokens nor the mean or maximum of all.
    """
    usual: At = "last" if find_stack(model) == "decoder" else "first"
    if not usable:
        return asked or usual, plan.stack, []
    try:
        # The first batch is enough: a head reads all texts in the same way.
        reading = read_tokens(model, plan[0])
    except MeasureError as error:
        return (
            asked or usual,
            plan.stack,
            [f"which tokens the head reads is not known: {error}"],
        )
    if asked is not None or reading.at is not None:
        return asked or reading.at, reading.stack, []
    note = "the head reads neither the first token nor the last, nor the mean or maximum of all: directions of classes "
    return (
        None,
        reading.stack,
        [
            note
            + "left out (--at chooses a token); maps are those of the tokens that it reads"
        ],
    )


def list_reading_stacks(model: Any) -> str | tuple[str, ...]:
    """Return the stack (encoder or decoder) that reads the texts; both for an encoder–decoder."""
    both = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return ("encoder", "decoder") if both else find_stack(model)


def read_training(model: str) -> dict[str, Any]:
    """Read the training.json in a model's folder as a dict, with today's names; empty if there is none."""
    path = Path(model) / "training.json"
    if not path.is_file():
        return {}
    return dict(rename_described(json.loads(path.read_text())))


def fill_from_training(classes: ClassesOptions) -> ClassesOptions:
    """Fill in corpus, columns, splits and length from the training.json in the model's folder, unless they were
    given.

    UsageError if no corpus is given and the file names none.
    """
    trained = read_training(classes.model)
    recipe = trained.get("recipe", {})
    if not classes.corpus:
        if not recipe.get("corpus"):
            raise UsageError(
                "--corpus",
                "none",
                "name one that has labels: see anisoscope list corpora",
            )
        # Columns that the user names replace those of the training one by one.
        columns = Columns.as_fields(
            (recipe.get("columns") or {}) | (classes.by_role or {})
        )
        classes = replace(
            classes,
            corpus=recipe["corpus"],
            split_seed=recipe.get("split_seed", 0),
            **columns,
        )
    elif classes.split_seed == 0 and _is_same_corpus(
        classes.corpus, recipe.get("corpus", "")
    ):
        # With other splits, texts that the model was trained on would be in the test.
        classes = replace(classes, split_seed=recipe.get("split_seed", 0))
    return replace(classes, max_length=classes.max_length or trained.get("max_length"))


def _is_trained_on(classes: ClassesOptions) -> bool:
    """Return whether training.json says that the model was trained on this corpus with the same division into
    splits.
    """
    recipe = read_training(classes.model).get("recipe", {})
    same_division = classes.split_seed == recipe.get("split_seed", 0)
    return same_division and _is_same_corpus(classes.corpus, recipe.get("corpus", ""))


def _is_same_corpus(one: str, other: str) -> bool:
    """Return whether two names mean the same corpus: equal names, or equal paths."""
    if not one or not other:
        return False
    return one == other or expand_home(one).resolve() == expand_home(other).resolve()


def require_tokenizer(subject: Subject) -> Any:
    """Return the model's tokenizer. ModelError unless it is a text model with a fast tokenizer."""
    tokenizer = subject.processor
    if (
        subject.modality != "text"
        or not hasattr(tokenizer, "tokenize")
        or not getattr(tokenizer, "is_fast", False)
    ):
        got = f"{subject.name} ({subject.modality}, {type(tokenizer).__name__})"
        raise ModelError(
            "a text model with a fast tokenizer",
            got,
            "name an encoder or decoder of text",
        )
    return tokenizer


def choose_pad(tokenizer: Any, config: Any, rows: list[dict[str, Any]]) -> int:
    """Return the id of the padding token; a model without one gets it written into its configuration.

    rows   what the model reads of each text

    Heads of decoders look for the last token that is not the configuration's padding token, so that one is preferred.
    Otherwise: the tokenizer's padding or end token, if no text holds it; else the first token that none of them holds.
    """
    # Models of text and images keep the padding token in the configuration of the text
    # part.
    of_text = config.get_text_config() if hasattr(config, "get_text_config") else config
    own = getattr(of_text, "pad_token_id", None)
    if isinstance(own, int) and own >= 0:
        return own
    candidates = _list_pad_candidates(
        tokenizer, int(getattr(of_text, "vocab_size", 0) or 1)
    )
    used: set[int] = set()
    for row in rows:
        used.update(row["input_ids"])
    # A token that some text holds would be taken for padding there.
    chosen = next((token for token in candidates if token not in used), candidates[0])
    # Both, because heads read one or the other.
    config.pad_token_id = chosen
    of_text.pad_token_id = chosen
    return chosen


def _list_pad_candidates(tokenizer: Any, size: int) -> list[int]:
    """Return the ids that may serve as padding token, the best first.

    size   of the model's vocabulary, which may be smaller than the tokenizer's
    """
    candidates = []
    for name in ("pad_token_id", "eos_token_id"):
        token = getattr(tokenizer, name, None)
        if isinstance(token, int) and token < size:
            candidates.append(token)
    return [*candidates, *range(size)]


def _take_examples(corpus: LabelledCorpus, classes: ClassesOptions, limit: int) -> Any:
    """Take `limit` examples of the chosen split, balanced over classes. CorpusError if there is no such split."""
    if classes.split not in corpus.splits:
        got = f"{classes.split!r} of {corpus.name}"
        raise CorpusError(
            f"a split among {', '.join(corpus.splits)}",
            got,
            suggest_names(classes.split, corpus.splits),
        )
    return take_balanced(corpus.splits[classes.split], limit, len(corpus.labels))


def match_class_order(
    config: Any, corpus: LabelledCorpus
) -> tuple[LabelledCorpus, bool, list[str]]:
    """Return (corpus with its classes in the model's order, whether the model's head can be used, notes for the user).

    config   the model's configuration

    The head cannot be used if the model has none, or if its classes are not those of the corpus.
    """
    if not is_classifier(config):
        return (
            corpus,
            False,
            [
                "the model has no head for classes: no accuracy, nothing replaced or explained"
            ],
        )
    own = [str(config.id2label[i]) for i in range(config.num_labels)]
    if len(own) != len(corpus.labels):
        reason = f"the model tells {len(own)} classes ({', '.join(own)}), the corpus {len(corpus.labels)}"
        return corpus, False, [f"{reason}: its head is not used"]
    # The names that transformers gives to classes without any.
    if all(re.fullmatch(r"LABEL_\d+", name) for name in own):
        return (
            corpus,
            True,
            [
                f"the model's classes have no names: taken as {', '.join(corpus.labels)}, in this order"
            ],
        )
    # Hubs write the same class `POSITIVE` and `positive`.
    place = {name.lower(): i for i, name in enumerate(own)}
    if set(place) != {name.lower() for name in corpus.labels}:
        reason = f"the model's classes ({', '.join(own)}) are not called as the corpus' ({', '.join(corpus.labels)})"
        return corpus, False, [f"{reason}: its head is not used"]
    return (
        _reorder_classes(corpus, [place[name.lower()] for name in corpus.labels]),
        True,
        [],
    )


def _reorder_classes(corpus: LabelledCorpus, new: list[int]) -> LabelledCorpus:
    """Return the corpus with each class under its new number.

    new   the new number of each class, by the old one
    """
    # `new` maps old numbers to new ones; here the inverse is needed.
    labels = tuple(corpus.labels[new.index(number)] for number in range(len(new)))
    renumbered: dict[int, Any] = {}
    splits = {}
    for split, examples in corpus.splits.items():
        of_split = []
        for example in examples:
            # An example that is in two splits stays one object: examples are compared by
            # identity, so that none explains itself.
            if id(example) not in renumbered:
                renumbered[id(example)] = replace(example, label=new[example.label])
            of_split.append(renumbered[id(example)])
        splits[split] = tuple(of_split)
    return replace(corpus, labels=labels, splits=splits)
