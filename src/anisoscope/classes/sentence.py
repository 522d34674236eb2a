"""Explain the class of one text by attributions of its words: attention, values, gradient and erasure.

attention          the row of the token that the head reads, in the last layer whose attention is seen
value, contrast    cosine of a word's value to the direction of the class found, less that to the others, same layer
gradient × input   gradient of the class' logit, less the mean of the others, times the word's embedding; summed over
                   the pieces of a word
erasure            fall of the probability of the class found without the word

A text longer than the model reads is cut into windows of whole words; its class is that of their mean probability.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.batch import Batch
from anisoscope.classes.attributions import (
    CapturedText,
    average_over_words,
    compute_attributions,
    iter_captured,
)
from anisoscope.classes.faithfulness import (
    SHARES,
    Marks,
    erase_words,
    fill_if_empty,
    predict_probabilities,
    select_highest,
)
from anisoscope.classes.readout import get_logits
from anisoscope.data.encoding import Encoded, LabelledPlan, Padding, encode
from anisoscope.data.labelled import Example
from anisoscope.errors import UsageError
from anisoscope.models.modes import evaluation_mode

Array = NDArray[np.float64]
ATTENTION = "attention"
VALUE = "value, contrast"
GRADIENT = "gradient × input"
ERASURE = "erasure"
OF_WORDS = (ATTENTION, VALUE, GRADIENT, ERASURE)
DRAWS = 19
"""Random orders of the words: an attribution beyond all of them is beyond chance at the level of 5 %."""


@dataclass(frozen=True)
class Classifier:
    """A classifier with everything needed to read a text as it was trained to.

    names       names of the classes
    directions  directions of the classes by space and layer (`measure_class_directions`); None: no attribution by
                values
    """

    model: Any
    tokenizer: Any
    names: tuple[str, ...]
    max_length: int
    padding: Padding
    stack: str | tuple[str, ...] = "encoder"
    directions: dict[str, list[Array]] | None = None


@dataclass(frozen=True)
class Explanation:
    """The class that a classifier gives to a text, and attributions of the words to it.

    found, probability  the class, and how sure the classifier is of it, in [0, 1]
    words         a row for each word: `word` and its attributions (columns, as far as they can be captured)
    agreement     Spearman's correlation over words of each pair of attributions
    erasures      a row for each attribution: `comprehensiveness` (fall of the probability without its first words; more
                  is better) and `sufficiency` (fall with only these words; less is better), mean over five shares of
                  words; `…_low`, `…_high`: the least and most of 19 random orders; `beyond_chance`: comprehensiveness
                  is more than the most
    layer         the layer of attention and values; None: neither can be captured
    windows       number of windows that the text was cut into
    notes         what is left out
    """

    found: str
    probability: float
    words: pd.DataFrame
    agreement: pd.DataFrame
    erasures: pd.DataFrame
    layer: int | None
    windows: int = 1
    notes: list[str] = field(default_factory=list)

    def _repr_html_(self) -> str:
        """Return HTML with the predicted class and the words coloured by each attribution, for notebooks."""
        from html import escape

        lines = [f"<p><b>{escape(self.found)}</b> ({self.probability:.3f})</p>"]
        for name in self.words.columns[1:]:
            shades = scale_for_colours(self.words[name].to_numpy())
            spans = []
            for word, shade in zip(self.words["word"], shades, strict=True):
                # Orange speaks for the class, blue against it.
                hue = "214,90,40" if shade >= 0 else "40,100,200"
                colour = f"rgba({hue},{abs(shade):.2f})"
                spans.append(
                    f'<span style="background: {colour}">{escape(word)}</span>'
                )
            lines.append(f"<p><i>{escape(name)}</i> {' '.join(spans)}</p>")
        return "".join(lines)


def scale_for_colours(values: Array) -> Array:
    """Scale the attribution of each word [word] to [−1, 1] for its colour: the largest becomes ±1, and 0 stays 0."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return values
    return values / largest


def explain(classifier: Classifier, text: str) -> Explanation:
    """Predict the class of a text and explain it by attributions of its words; UsageError for a text without words."""
    words = tuple(text.split())
    if not words:
        raise UsageError(
            "a text with words", repr(text[:40]), "give a text that has words"
        )
    windows = cut_into_windows(words, classifier.tokenizer, classifier.max_length)
    encoded = encode(
        [Example(window, 0) for window in windows],
        classifier.tokenizer,
        classifier.max_length,
    )
    counts = [len(window) for window in windows]
    notes: list[str] = []
    if encoded.truncated:
        notes.append(f"{encoded.truncated} words longer than the model reads were cut")
    # A formula, or a language without blanks.
    if len(words) == 1:
        words, encoded = _split_single_word(words, encoded, classifier.tokenizer)
        counts = [len(words)]
        if len(words) > 1:
            notes.append(
                "the text has no blanks: its tokens are explained in place of words"
            )
    probabilities = predict_probabilities(
        classifier.model, encoded.rows, classifier.padding
    ).mean(0)
    found = int(probabilities.argmax())
    layer, columns = _attribute_by_layer(classifier, encoded, counts, found, notes)
    gradient = _compute_gradient_times_input(classifier, encoded, counts, found)
    if gradient is None:
        notes.append(
            f"{GRADIENT} left out: the model does not read its words through its input embeddings"
        )
    else:
        columns[GRADIENT] = gradient
    erased = _ErasedTexts(classifier, encoded, counts, found)
    columns[ERASURE] = erased.measure_words()
    scores = {name: columns[name] for name in OF_WORDS if name in columns}
    table = pd.DataFrame({"word": list(words), **scores})
    return Explanation(
        found=classifier.names[found],
        probability=float(probabilities[found]),
        words=table,
        # Spearman's correlation is that of ranks.
        agreement=table[list(scores)].rank().corr(),
        erasures=erased.measure_shares(scores),
        layer=layer,
        windows=len(windows),
        notes=notes,
    )


def _split_single_word(
    words: tuple[str, ...], encoded: Encoded, tokenizer: Any
) -> tuple[tuple[str, ...], Encoded]:
    """Split a text of one word into its tokens, each taken as a word; unchanged if it has one token."""
    ids: list[int] = []
    index: list[int] = []
    for token, word in zip(encoded.rows[0]["input_ids"], encoded.words[0], strict=True):
        # Special tokens belong to no word.
        if word < 0:
            index.append(-1)
            continue
        index.append(len(ids))
        ids.append(token)
    if len(ids) < 2:
        return words, encoded
    # The rows of token ids stay; only which token belongs to which word is new.
    return tuple(tokenizer.convert_ids_to_tokens(ids)), Encoded(
        encoded.rows, [index], encoded.truncated
    )


def cut_into_windows(
    words: Sequence[str], tokenizer: Any, max_length: int
) -> list[tuple[str, ...]]:
    """Cut the words of a text into as few consecutive windows as possible, each no longer than the model can read.

    max_length   tokens of a window at most, special ones included
    """
    # Without a limit on the length, so that no word is cut off.
    whole = encode([Example(tuple(words), 0)], tokenizer, 1 << 30).words[0]
    # Every window gets the special tokens again.
    special = sum(word < 0 for word in whole)
    pieces = np.bincount([word for word in whole if word >= 0], minlength=len(words))
    windows: list[list[str]] = [[]]
    room = max_length - special
    for word, count in zip(words, pieces, strict=True):
        # A word longer than a window gets one of its own, in which it is cut.
        if count > room and windows[-1]:
            windows.append([])
            room = max_length - special
        windows[-1].append(word)
        room -= int(count)
    return [tuple(window) for window in windows]


def _attribute_by_layer(
    classifier: Classifier,
    encoded: Encoded,
    counts: list[int],
    found: int,
    notes: list[str],
) -> tuple[int | None, dict[str, Array]]:
    """Compute attributions by attention and values, in the last layer in which either can be captured.

    encoded   the windows of the text as token ids
    counts    number of words in each window
    found     number of the predicted class
    notes     receives sentences on what is left out

    Returns (number of the layer, {attribution: a number for every word}); (None, {}) if there is no such layer.
    """
    device = next(classifier.model.parameters()).device
    plan = LabelledPlan(
        encoded, classifier.padding, stack=classifier.stack, device=device
    )
    seen: dict[int, CapturedText] = dict(iter_captured(classifier.model, plan, notes))
    if classifier.directions is None:
        notes.append(
            f"{VALUE} left out: it needs the directions of classes, from a labelled corpus"
        )
    directions = classifier.directions or {}
    attributions = []
    for number in range(len(encoded)):
        window = seen[number]
        # Vectors are attributed by the direction of the class, where there is one.
        vectors = {}
        for space, x in window.vectors.items():
            if space in directions:
                vectors[space] = x
        # The class is that of the whole text, which may not be the one of a window.
        window = replace(window, found=found, vectors=vectors)
        attributions.append(compute_attributions(window, directions))
    layers = [layer for name, layer in attributions[0] if name in (ATTENTION, VALUE)]
    if not layers:
        return None, {}
    # The last one is nearest to what the head reads.
    layer = max(layers)
    columns: dict[str, Array] = {}
    for name in (ATTENTION, VALUE):
        if (name, layer) in attributions[0]:
            of_windows = [of_window[name, layer] for of_window in attributions]
            columns[name] = _join_windows(of_windows, encoded, counts)
    return layer, columns


def _join_windows(
    of_windows: list[Array], encoded: Encoded, counts: list[int]
) -> Array:
    """Return an attribution of each word of a text [word], averaged over its tokens, from that of each window's tokens.

    of_windows   for each window, a number for every token
    encoded      the windows as token ids
    counts       number of words in each window
    """
    of_words = []
    for of_tokens, words, count in zip(of_windows, encoded.words, counts, strict=True):
        of_words.append(average_over_words(of_tokens, words, count))
    return np.concatenate(of_words)


def _compute_gradient_times_input(
    classifier: Classifier, encoded: Encoded, counts: list[int], found: int
) -> Array | None:
    """Return the attribution gradient × input of each word [word], summed over its tokens.

    The gradient is that of the class's logit less the mean of the others. None if the model does not read its words
    through its input embeddings.

    encoded   the windows of the text as token ids
    counts    number of words in each window
    found     number of the predicted class
    """
    device = next(classifier.model.parameters()).device
    plan = LabelledPlan(
        encoded, classifier.padding, stack=classifier.stack, device=device
    )
    of_window: dict[int, Array] = {}
    for batch in plan:
        of_tokens = _multiply_gradient_with_input(classifier.model, batch, found)
        if of_tokens is None:
            return None
        mask = batch.inputs["attention_mask"].bool().cpu().numpy()
        for row, number in enumerate(batch.unit.tolist()):
            # `encoded.words` has no entries for padding.
            of_real = of_tokens[row][mask[row]]
            index = np.array(encoded.words[number])
            in_words = index >= 0
            of_word = np.bincount(index[in_words], of_real[in_words], counts[number])
            of_window[number] = of_word.astype(np.float64)
    return np.concatenate([of_window[number] for number in range(len(encoded))])


def _multiply_gradient_with_input(model: Any, batch: Batch, found: int) -> Array | None:
    """Return gradient × input of each token [sequence, token], for the class `found` less the mean of the others.

    None if the model does not read these tokens once, through its input embeddings.
    """
    variables: list[Tensor] = []

    def replace_embeddings(_module: Any, _args: Any, output: Tensor) -> Tensor:
        """Replace the embeddings by a variable that can be differentiated with respect to."""
        variable = output.detach().requires_grad_()
        variables.append(variable)
        # A copy, since models may change embeddings in place.
        return variable.clone()

    handle = model.get_input_embeddings().register_forward_hook(replace_embeddings)
    try:
        with evaluation_mode(model), torch.enable_grad():
            logits = get_logits(model(**batch.inputs)).float()
            contrast = logits[:, found]
            others = [c for c in range(logits.shape[1]) if c != found]
            if others:
                # A logit alone says little: only differences of logits change the
                # softmax.
                contrast = contrast - logits[:, others].mean(1)
            # Texts do not see each other, so that one gradient of the sum holds that of
            # every text.
            total = contrast.sum()
    finally:
        handle.remove()
    # The decoder of an encoder–decoder reads the words too.
    if len(variables) != 1:
        return None
    (embeddings,) = variables
    tokens = batch.inputs["input_ids"].shape[1]
    # Without one vector for each token nothing can be attributed to tokens.
    if embeddings.dim() != 3 or embeddings.shape[1] != tokens:
        return None
    (gradient,) = torch.autograd.grad(total, [embeddings])
    product = (gradient.double() * embeddings.detach().double()).sum(-1)
    return np.asarray(product.cpu().numpy())


class _ErasedTexts:
    """Reads a text without some of its words; each selection of words is run through the model only once."""

    def __init__(
        self, classifier: Classifier, encoded: Encoded, counts: list[int], found: int
    ) -> None:
        """Compute the probability of the predicted class for the whole text.

        encoded   the windows of the text as token ids
        counts    number of words in each window
        found     number of the predicted class
        """
        self.classifier = classifier
        self.encoded = encoded
        self.found = found
        # Probabilities that were computed, by number of the window and which of its words are kept.
        self.known: dict[tuple[int, bytes], float] = {}
        # Where a selection of words is cut into windows; the last end is that of the
        # text.
        self.ends = np.cumsum(counts)[:-1]
        self.count = sum(counts)
        self.whole = self.predict([np.ones(self.count, bool)])[0]

    def predict(self, selections: Sequence[Marks]) -> Array:
        """Return the probability of the predicted class [selection] if only some words of the text are kept.

        It is the mean over windows.

        selections   which words are kept [word], for each selection
        """
        self._run(selections)
        means = []
        for selection in selections:
            of_windows = []
            for number, part in enumerate(np.split(selection, self.ends)):
                of_windows.append(self.known[number, part.tobytes()])
            means.append(np.mean(of_windows))
        return np.array(means)

    def _run(self, selections: Sequence[Marks]) -> None:
        """Compute and remember the probability for the windows of these selections that are not known yet, in one call.

        selections   which words are kept [word], for each selection
        """
        padding = self.classifier.padding
        new: dict[tuple[int, bytes], dict[str, Any]] = {}
        for selection in selections:
            for number, part in enumerate(np.split(selection, self.ends)):
                key = number, part.tobytes()
                if key in self.known or key in new:
                    continue
                row = erase_words(
                    self.encoded.rows[number], self.encoded.words[number], part
                )
                new[key] = fill_if_empty(row, padding)
        if new:
            probabilities = predict_probabilities(
                self.classifier.model, list(new.values()), padding
            )
            self.known |= zip(new, probabilities[:, self.found].tolist(), strict=True)

    def measure_words(self) -> Array:
        """Return how far the probability of the predicted class falls without each word [word]."""
        # Row i keeps every word except word i.
        without_one = ~np.eye(self.count, dtype=bool)
        falls: Array = self.whole - self.predict(list(without_one))
        return falls

    def measure_shares(self, scores: dict[str, Array]) -> pd.DataFrame:
        """Return a table with a row for each attribution: how the probability changes if its highest words are erased.

        Columns are `comprehensiveness` (fall without the highest words), `sufficiency` (fall with only these), their
        least and largest values in random orders of the words (`_low`, `_high`), and `beyond_chance`.

        scores   a number for every word, by attribution
        """
        draw = np.random.default_rng(0)
        orders = list(scores.values())
        orders += [draw.random(self.count) for _ in range(DRAWS)]
        # A flat list, all shares of the first order first: one call of the model
        # answers for all, and each selection is run only once.
        highest = []
        for order in orders:
            for share in SHARES:
                highest.append(select_highest(order, share))
        without_highest = [~words for words in highest]
        falls: dict[str, Array] = {}
        for measure, kept in (
            ("comprehensiveness", without_highest),
            ("sufficiency", highest),
        ):
            of_shares = self.whole - self.predict(kept)
            falls[measure] = of_shares.reshape(len(orders), len(SHARES)).mean(1)
        rows = []
        for i, name in enumerate(scores):
            row: dict[str, Any] = {"attribution": name}
            for measure, values in falls.items():
                of_random = values[len(scores) :]
                row[measure] = values[i]
                row[f"{measure}_low"] = of_random.min()
                row[f"{measure}_high"] = of_random.max()
            row["beyond_chance"] = bool(
                row["comprehensiveness"] > row["comprehensiveness_high"]
            )
            rows.append(row)
        return pd.DataFrame(rows)
