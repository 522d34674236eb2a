"""Do attributions point to the words that people mark (plausibility), and to those the model uses (faithfulness)?

auprc, auroc       of an attribution against the rationale, the words that half of the people marked or more; mean over
                   utterances
iou                overlap of the highest words with the rationale, as many as it has on average
comprehensiveness  fall of the probability of the class found when the highest words are erased
sufficiency        its fall when only they are kept; both means over 1, 5, 10, 20 and 50 % of the words (DeYoung et
                   al. 2020), `<cls>` always kept
"""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.classes.ablation import count_layers
from anisoscope.classes.attributions import (
    average_over_words,
    compute_attributions,
    compute_baselines,
    iter_seen,
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
"""Validation utterances that class directions are made of."""
OF_DEEP = ("attention", "value norm", "value, contrast", "random", "rare")
"""Attributions whose faithfulness is measured in models of several layers, where each takes many passes."""
FALLS = ("comprehensiveness", "sufficiency")
"""Measures that are falls of a probability, and may be below 0."""
Key = tuple[str, int | None]


def explanations(
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
    """Measure how plausible and how faithful attributions are, and return records `explains.<measure>`.

    There is one record by attribution and layer (null: a baseline), with a 95 % interval over utterances. Without human
    rationales plausibility is not measured.

    padding  how utterances are padded to equal length; None: the tokenizer's token on the right
    stack    the stack that reads them; both, for an encoder–decoder
    notes    receives sentences on what is left out
    """
    marked = any(example.rationale is not None for example in corpus.splits[split])
    classes = len(corpus.labels)
    examples = (choose_marked if marked else take_balanced)(corpus.splits[split], limit, classes)
    if not examples:
        return as_records(pd.DataFrame())
    pad = Padding(int(tokenizer.pad_token_id or 0)) if padding is None else padding
    device = next(model.parameters()).device
    encoded = encode(examples, tokenizer, max_length)
    looked_at = set(map(id, examples))
    beside = {VALIDATION: TRAIN, HELD_OUT: TRAIN, ALL: ALL}.get(split, VALIDATION)
    others = [e for e in corpus.splits[beside] if id(e) not in looked_at]
    if not others:
        expected = "more examples than those that are explained, for the directions of classes"
        raise MeasureError(expected, "none", "lower --few, or give more examples")
    held = encode(take_balanced(others, DIRECTED, classes), tokenizer, max_length)
    directions = measure_class_directions(model, LabelledPlan(held, pad, device=device, stack=stack), classes)
    frequency = Counter(w.lower() for e in corpus.splits[TRAIN] for w in e.all_words)
    draw = np.random.default_rng(0)
    scores: list[dict[Key, Array]] = [{} for _ in examples]
    for number, one in iter_seen(model, LabelledPlan(encoded, pad, device=device, stack=stack), notes):
        words, count = encoded.words[number], len(examples[number].all_words)
        scores[number] |= {
            key: average_over_words(x, words, count) for key, x in compute_attributions(one, directions).items()
        }
    for example, scored in zip(examples, scores, strict=True):
        scored |= {(name, None): x for name, x in compute_baselines(example, frequency, draw).items()}
    found: dict[tuple[Key, str], Any] = _compute_plausibility(examples, scores) if marked else {}
    shallow = count_layers(model) == 1
    keys = [key for key in scores[0] if shallow or key[0] in OF_DEEP]
    with ExitStack() as ends:
        part = family_of(model).cls_row_only
        base = getattr(model, part, None) if part else None
        if base is not None:
            ends.callback(setattr, base, "row_only", base.row_only)
            base.row_only = "always"  # the last layer computes the row of [CLS] alone
        found |= _compute_faithfulness(model, pad, encoded, scores, keys, progress)
    return _average_over_texts(found, len(examples))


def _average_over_texts(found: dict[tuple[Key, str], Any], count: int) -> pd.DataFrame:
    """Return records of the mean over texts of each result, with 95 % intervals.

    found   {((attribution, layer), measure): values [text] or [share of words, text]}
    count   number of texts
    """
    rows = []
    for (key, measure), values in found.items():
        of_utterance = np.array(values, dtype=float)
        if of_utterance.ndim > 1:  # a fall for each share of the words
            of_utterance = of_utterance.mean(0)
        bounds = (-1.0, 1.0) if measure in FALLS else (0.0, 1.0)
        value, low, high = map(float, estimate_mean(of_utterance, bounds=bounds))
        place = {"metric": f"explains.{measure}", "component": key[0], "layer": key[1]}
        rows.append(place | {"value": value, "low": low, "high": high})
    return as_records(pd.DataFrame(rows), n_units=count)


def choose_marked(examples: Examples, limit: int, classes: int) -> Examples:
    """Return the first texts that have words inside and outside of their rationale, ⌈limit / classes⌉ of each class."""
    room = -(-limit // classes)
    taken: Counter[int] = Counter()
    out = []
    for example in examples:
        if taken[example.label] < room and len(set(_rationale(example).tolist())) == 2:
            taken[example.label] += 1
            out.append(example)
    return tuple(out)


def _rationale(example: Example) -> Marks:
    """Return which words of a text at least half of the people marked."""
    return np.array(example.rationale or (), float) >= MARKED


def _compute_plausibility(examples: Examples, scores: list[dict[Key, Array]]) -> dict[tuple[Key, str], Any]:
    """Return {((attribution, layer), measure): agreement of the attribution with the human rationale, for every text}.

    The measures are `auprc`, `auroc` and `iou`.

    scores   for each text, a number for every word by (attribution, layer)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score  # type: ignore[import-untyped]

    rationales = [_rationale(example) for example in examples]
    share = float(np.mean([marks.mean() for marks in rationales]))
    measures = {
        "auprc": average_precision_score,
        "auroc": roc_auc_score,
        "iou": lambda marks, x: _intersection_over_union(marks, x, share),
    }
    return {
        (key, name): [measure(marks, s[key]) for marks, s in zip(rationales, scores, strict=True)]
        for key in scores[0]
        for name, measure in measures.items()
    }


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
    top = np.zeros(len(values), bool)
    top[np.argsort(-values, kind="stable")[: max(1, round(share * len(values)))]] = True
    return top


def _compute_faithfulness(
    model: Any, pad: Padding, encoded: Encoded, scores: list[dict[Key, Array]], keys: list[Key], progress: Progress
) -> dict[tuple[Key, str], Any]:
    """Return {((attribution, layer), measure): fall of the predicted class's probability [share of words, text]}.

    scores   for each text, a number for every word by (attribution, layer)
    keys     the attributions to measure
    """
    whole = predict_probabilities(model, encoded.rows, pad)
    found, sure = whole.argmax(1), whole.max(1)
    falls: dict[tuple[Key, str], list[Array]] = {}
    for number, key in enumerate(keys):
        for share in SHARES:
            tops = [select_highest(s[key], share) for s in scores]
            for measure, keep_top in (("comprehensiveness", False), ("sufficiency", True)):
                parts = zip(encoded.rows, encoded.words, tops, strict=True)
                left = [fill_if_empty(erase_words(row, words, top == keep_top), pad) for row, words, top in parts]
                after = predict_probabilities(model, left, pad)[np.arange(len(found)), found]
                falls.setdefault((key, measure), []).append(sure - after)
        progress(number + 1, len(keys))
    return falls


def erase_words(row: dict[str, Any], words: list[int], keep: Marks) -> dict[str, Any]:
    """Return the model's input for a text of which only the words of `keep` are left; special tokens always stay."""
    kept_tokens = [i for i, word in enumerate(words) if word < 0 or keep[word]]
    return {name: [x[i] for i in kept_tokens] if isinstance(x, list) else x for name, x in row.items()}


def fill_if_empty(row: dict[str, Any], pad: Padding) -> dict[str, Any]:
    """Return a text's input for the model unchanged, or one padding token if no token of the text is left.

    row   `input_ids` and so on, of one text
    """
    if row["input_ids"]:
        return row
    blank = {"input_ids": pad.id}
    return {name: [blank.get(name, 0)] if isinstance(x, list) else x for name, x in row.items()}


def predict_probabilities(model: Any, rows: list[dict[str, Any]], pad: int | Padding) -> Array:
    """Return the probability of every class [text, class]; for a multi-label classifier, of each label on its own.

    rows   what the model reads of each text (`input_ids`, …)
    pad    the padding token, on the right; or a `Padding`
    """
    logits = predict_logits(model, rows, pad, batch=128).double()
    several = getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"
    found: Array = (logits.sigmoid() if several else logits.softmax(-1)).numpy()
    return found
