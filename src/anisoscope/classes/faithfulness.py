"""Do attributions point to the words that people mark (plausibility), and to those the model uses (faithfulness)?

auprc, auroc       of an attribution against the rationale, the words that half of the people marked or more; mean over
                   utterances
iou                overlap of the highest words with the rationale, as many as it has on average
comprehensiveness  fall of the probability of the class found when the highest words are erased
sufficiency        its fall when only they are kept; both means over 1, 5, 10, 20 and 50 % of the words (DeYoung et
                   al. 2020), `<cls>` always kept
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.classes.ablation import count_layers
from anisoscope.classes.attributions import (
    average_over_words,
    compute_attributions,
    compute_baselines,
    iter_captured,
    measure_class_directions,
)
from anisoscope.classes.pooling import predict_logits
from anisoscope.data.encoding import Encoded, LabelledPlan, Padding, encode
from anisoscope.data.labelled import (
    ALL,
    HELD_OUT,
    TEST,
    TRAIN,
    VALIDATION,
    Example,
    Examples,
    LabelledCorpus,
    take_balanced,
)
from anisoscope.errors import MeasureError
from anisoscope.models.families import family_of
from anisoscope.progress import Progress
from anisoscope.store import as_records
from anisoscope.sums.jackknife import estimate_mean

Array = NDArray[np.float64]
Marks = NDArray[np.bool_]
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
MARKED = 0.5
DIRECTED = 300
"""Number of validation utterances that class directions are computed from."""
OF_DEEP = ("attention", "value norm", "value, contrast", "random", "rare")
"""Attributions whose faithfulness is measured in models of several layers; few, as each takes many passes there."""
FALLS = ("comprehensiveness", "sufficiency")
"""Measures that are falls of a probability, and may be below 0."""
Key = tuple[str, int | None]


def measure_explanations(
    model: Any,
    tokenizer: Any,
    corpus: LabelledCorpus,
    *,
    split: str = TEST,
    limit: int = 120,
    max_length: int = 512,
    padding: Padding | None = None,
    stack: str | tuple[str, ...] = "encoder",
    notes: list[str] | None = None,
    progress: Progress = lambda _done, _total: None,
) -> pd.DataFrame:
    """Measure how well attributions explain a classifier's decisions, and return records `attribution.<measure>`.

    Plausible attributions point to the words that people marked; faithful ones to the words whose erasure changes the
    decision. There is one record by attribution and layer (null: a baseline), with a 95 % interval over utterances.
    Without human rationales plausibility is not measured.

    split       the split whose utterances are explained
    limit       number of utterances at most
    max_length  tokens of an utterance at most; what is longer is cut
    padding     how utterances are padded to equal length; None: the tokenizer's token on the right
    stack       the stack that reads them; both, for an encoder–decoder
    notes       receives sentences on what is left out
    progress    called with the number of attributions done, and of all
    """
    has_rationales = False
    for example in corpus.splits[split]:
        if example.rationale is not None:
            has_rationales = True
            break
    classes = len(corpus.labels)
    # Areas under curves need words inside and outside of the rationale.
    choose = choose_marked if has_rationales else take_balanced
    examples = choose(corpus.splits[split], limit, classes)
    if not examples:
        return as_records(pd.DataFrame())
    pad = padding
    if pad is None:
        pad = Padding(int(tokenizer.pad_token_id or 0))
    device = next(model.parameters()).device
    encoded = encode(examples, tokenizer, max_length)
    others = _choose_for_directions(corpus, split, examples)
    encoded_others = encode(others, tokenizer, max_length)
    plan_of_others = LabelledPlan(encoded_others, pad, device=device, stack=stack)
    directions = measure_class_directions(model, plan_of_others, classes)
    scores: list[dict[Key, Array]] = [{} for _ in examples]
    for number, one in iter_captured(
        model, LabelledPlan(encoded, pad, device=device, stack=stack), notes
    ):
        words = encoded.words[number]
        count = len(examples[number].all_words)
        for key, of_tokens in compute_attributions(one, directions).items():
            scores[number][key] = average_over_words(of_tokens, words, count)
    _add_baselines(scores, examples, corpus)
    results: dict[tuple[Key, str], Any] = {}
    if has_rationales:
        results |= _compute_plausibility(examples, scores)
    is_shallow = count_layers(model) == 1
    # Each attribution takes ten runs over all texts: five shares of words, erased and
    # kept.
    keys = [key for key in scores[0] if is_shallow or key[0] in OF_DEEP]
    with _compute_first_row_alone(model):
        results |= _compute_faithfulness(model, pad, encoded, scores, keys, progress)
    return _average_over_texts(results, len(examples))


def _choose_for_directions(
    corpus: LabelledCorpus, split: str, examples: Examples
) -> Examples:
    """Choose the examples that class directions are computed from: none of those that are explained.

    split      the split that is explained
    examples   the examples of it that are explained

    MeasureError if the corpus has no others.
    """
    # Directions are made of another split, if there is one, so that no text is explained by itself.
    other_split = {VALIDATION: TRAIN, HELD_OUT: TRAIN, ALL: ALL}.get(split, VALIDATION)
    # By identity: two examples of a corpus may have the same words.
    explained = set(map(id, examples))
    others = []
    for example in corpus.splits[other_split]:
        if id(example) not in explained:
            others.append(example)
    if not others:
        expected = (
            "further examples than the explained ones, to find the directions of "
            "classes"
        )
        raise MeasureError(expected, "none", "lower --few, or give more examples")
    return take_balanced(others, DIRECTED, len(corpus.labels))


def _add_baselines(
    scores: list[dict[Key, Array]], examples: Examples, corpus: LabelledCorpus
) -> None:
    """Add to each example's attributions two that ignore the model: random numbers, and how rare each word is.

    scores   for each example, a number for every word by (attribution, layer); `layer` is None for those added here
    corpus   the corpus in whose training split words are counted
    """
    frequency: Counter[str] = Counter()
    for example in corpus.splits[TRAIN]:
        frequency.update(word.lower() for word in example.all_words)
    draw = np.random.default_rng(0)
    for example, of_example in zip(examples, scores, strict=True):
        # No layer: a baseline does not look at the model.
        for name, values in compute_baselines(example, frequency, draw).items():
            of_example[name, None] = values


@contextmanager
def _compute_first_row_alone(model: Any) -> Iterator[None]:
    """Within a `with` block, let the last layer compute the attention row of [CLS] alone, if the model can do so.

    It is faster, and enough for a head that reads [CLS] only.
    """
    part = family_of(model).cls_row_only
    base = getattr(model, part, None) if part else None
    if base is None:
        yield
        return
    before = base.row_only
    base.row_only = "always"
    try:
        yield
    finally:
        base.row_only = before


def _average_over_texts(
    results: dict[tuple[Key, str], Any], count: int
) -> pd.DataFrame:
    """Return records of the mean over texts of each result, with 95 % intervals.

    results   {((attribution, layer), measure): values [text] or [share of words, text]}
    count     number of texts
    """
    rows = []
    for (key, measure), values in results.items():
        of_utterance = np.array(values, dtype=float)
        # There is a fall for each share of the words.
        if of_utterance.ndim > 1:
            of_utterance = of_utterance.mean(0)
        bounds = (-1.0, 1.0) if measure in FALLS else (0.0, 1.0)
        value, low, high = map(float, estimate_mean(of_utterance, bounds=bounds))
        place = {
            "metric": f"attribution.{measure}",
            "component": key[0],
            "layer": key[1],
        }
        rows.append(place | {"value": value, "low": low, "high": high})
    return as_records(pd.DataFrame(rows), n_units=count)


def choose_marked(examples: Examples, limit: int, classes: int) -> Examples:
    """Return the first texts that have words inside and outside of their rationale, ⌈limit / classes⌉ of each class."""
    most = math.ceil(limit / classes)
    taken: Counter[int] = Counter()
    chosen = []
    for example in examples:
        marks = _find_marked(example)
        # Without both kinds of words precision and recall are undefined.
        has_both = marks.any() and not marks.all()
        if has_both and taken[example.label] < most:
            taken[example.label] += 1
            chosen.append(example)
    return tuple(chosen)


def _find_marked(example: Example) -> Marks:
    """Return which words of a text at least half of the annotators marked [word]."""
    return np.array(example.rationale or (), float) >= MARKED


def _compute_plausibility(
    examples: Examples, scores: list[dict[Key, Array]]
) -> dict[tuple[Key, str], Any]:
    """Return {((attribution, layer), measure): agreement of the attribution with the human rationale, for every text}.

    The measures are `auprc` (area under the precision–recall curve), `auroc` and `iou` (intersection over union).

    scores   for each text, a number for every word by (attribution, layer)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score  # type: ignore[import-untyped]

    rationales = [_find_marked(example) for example in examples]
    # As many words count as highest as people marked on average: IoU has no threshold
    # of its own.
    share = float(np.mean([marks.mean() for marks in rationales]))
    measures = {
        "auprc": average_precision_score,
        "auroc": roc_auc_score,
        "iou": lambda marks, x: _intersection_over_union(marks, x, share),
    }
    results: dict[tuple[Key, str], Any] = {}
    for key in scores[0]:
        for name, measure in measures.items():
            agreements = []
            for marks, of_text in zip(rationales, scores, strict=True):
                agreements.append(measure(marks, of_text[key]))
            results[key, name] = agreements
    return results


def _intersection_over_union(marks: Marks, values: Array, share: float) -> float:
    """Return the intersection over union of the marked words and the words with the highest values.

    marks    which words people marked [word]
    values   the attribution of each word [word]
    share    share of the words that counts as highest
    """
    high = select_highest(values, share)
    return float((high & marks).sum() / (high | marks).sum())


def select_highest(values: Array, share: float) -> Marks:
    """Return which words have the highest values: this share of them, at least one."""
    count = max(1, round(share * len(values)))
    # A stable order: of equal values the first words are taken.
    order = np.argsort(-values, kind="stable")
    highest = np.zeros(len(values), bool)
    highest[order[:count]] = True
    return highest


def _compute_faithfulness(
    model: Any,
    pad: Padding,
    encoded: Encoded,
    scores: list[dict[Key, Array]],
    keys: list[Key],
    progress: Progress,
) -> dict[tuple[Key, str], Any]:
    """Return {((attribution, layer), measure): fall of the predicted class's probability [share of words, text]}.

    The measures are `comprehensiveness` (the highest words are erased) and `sufficiency` (only they are kept).

    pad       how texts are padded to equal length
    encoded   the texts as token ids
    scores    for each text, a number for every word by (attribution, layer)
    keys      the attributions to measure
    """
    whole = predict_probabilities(model, encoded.rows, pad)
    predicted = whole.argmax(1)
    # Falls are those of the class that is predicted for the whole text, even if another
    # class wins without the words.
    before = whole.max(1)
    every = np.arange(len(predicted))
    falls: dict[tuple[Key, str], list[Array]] = {}
    for done, key in enumerate(keys, start=1):
        for share in SHARES:
            highest = [select_highest(of_text[key], share) for of_text in scores]
            for measure, keeps_highest in (
                ("comprehensiveness", False),
                ("sufficiency", True),
            ):
                rows = []
                for row, words, is_high in zip(
                    encoded.rows, encoded.words, highest, strict=True
                ):
                    kept = is_high if keeps_highest else ~is_high
                    rows.append(fill_if_empty(erase_words(row, words, kept), pad))
                after = predict_probabilities(model, rows, pad)[every, predicted]
                falls.setdefault((key, measure), []).append(before - after)
        progress(done, len(keys))
    return falls


def erase_words(row: dict[str, Any], words: list[int], keep: Marks) -> dict[str, Any]:
    """Return a text's input for the model with only some of its words left; special tokens always stay.

    row     `input_ids` and so on, of the whole text
    words   index of each token's word; −1: a special token
    keep    which words stay [word]
    """
    tokens = [i for i, word in enumerate(words) if word < 0 or keep[word]]
    erased: dict[str, Any] = {}
    for name, value in row.items():
        # Lists have an entry for each token; the label is a number, and stays.
        if isinstance(value, list):
            value = [value[i] for i in tokens]
        erased[name] = value
    return erased


def fill_if_empty(row: dict[str, Any], pad: Padding) -> dict[str, Any]:
    """Return a text's input for the model unchanged, or one padding token if no token of the text is left.

    row   `input_ids` and so on, of one text
    pad   the padding token
    """
    if row["input_ids"]:
        return row
    # GPT-2 and the like add no special tokens: erasing all words leaves nothing to run
    # on. Batches take their attention mask from the number of ids, so that this token
    # is read.
    filled: dict[str, Any] = {}
    for name, value in row.items():
        if name == "input_ids":
            value = [pad.id]
        elif isinstance(value, list):
            value = [0]
        filled[name] = value
    return filled


def predict_probabilities(
    model: Any, rows: list[dict[str, Any]], pad: int | Padding
) -> Array:
    """Return the probability of every class [text, class]; for a multi-label classifier, of each label on its own.

    rows   what the model reads of each text (`input_ids`, …)
    pad    the padding token, on the right; or a `Padding`
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    # A CPU gains nothing by large batches, and texts of a small one have nearly the same length: less padding.
    # In float64, since falls of a saturated probability are small.
    logits = predict_logits(model, rows, pad, batch=16 if on_cpu else 128).double()
    config = getattr(model, "config", None)
    is_multi_label = (
        getattr(config, "problem_type", None) == "multi_label_classification"
    )
    probabilities = logits.sigmoid() if is_multi_label else logits.softmax(-1)
    return np.asarray(probabilities.numpy())
