"""Measure outcomes of a trained language model at the end of its training: sinks, outliers, probing, retrieval.

sinks.first_share    share of attention that rows give to the first key, by layer and head, over rows that see several
                     keys; for any form of attention, since weights need not add up to 1
outliers.top_share   share of the largest dimension in the mean square of hidden states, by layer
probing.accuracy     share of the words of UD English EWT (test split) whose part of speech a linear discriminant reads
                     off the last hidden state of their last token. It has no setting, and no affine change of the
                     hidden states changes it: it shows what they hold, not their geometry
retrieval.precision  share of windows of text whose nearest other window, by the cosine of mean last hidden states, is
                     of the same document; it depends on the geometry
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn import functional

from anisoscope.capture.backends import intercept_attention
from anisoscope.capture.masking import Call
from anisoscope.data.local import find_path
from anisoscope.models.modes import evaluation_mode
from anisoscope.store import as_records
from anisoscope_papers.beyond import arms, forms

TREEBANK, SENTENCES = "ud_ewt", {"train": 2000, "test": 1000}
"""Sentences, spread evenly over a split: about 25,000 and 12,000 words, whose accuracy is known to half a point."""
WINDOWS = 1000
"""Windows that are looked for, spread evenly over the text (`trained.PROBE`: 60 documents)."""

Rows = Iterator[dict[str, Any]]


@torch.no_grad()
def measure_outcomes(model: Any, tokenizer: Any, plan: Any, texts: Any) -> pd.DataFrame:
    """Measure all outcomes of a trained model: sinks, outliers, retrieval, and a probe of parts of speech.

    `plan`: batches of windows of text; `texts`: batches of windows for retrieval. Without a treebank on disk the probe
    is left out.
    """
    with evaluation_mode(model):
        rows = [
            *_measure_sinks(model, plan),
            *_measure_outliers(model, plan),
            *_measure_retrieval(model, texts),
        ]
        folder = find_path(TREEBANK)
        if folder:
            rows += _probe_words(model, tokenizer, folder)
    return as_records(pd.DataFrame(rows))


def _measure_sinks(model: Any, plan: Any) -> Rows:
    """Yield rows with the share of attention that goes to the first key, by layer and head, over the batches `plan`."""
    sums: dict[int, list[Tensor]] = defaultdict(list)
    form = arms.find_form(model.config.arm)

    def look(call: Call) -> None:
        """Compute the share of attention that one attention call gives to the first key, and keep it."""
        # Scores are turned into weights here, since the library knows no other forms. The
        # first row is left out: it sees one key and has no choice.
        weights = forms.compute_weights(form, call.scores())[:, :, 1:].double()
        # Of what the row gives: weights of these forms need not add up to 1.
        first = weights[..., 0] / weights.sum(-1)
        # [sequence, head], averaged over rows.
        sums[int(call.module.layer_idx)].append(first.mean(-1))  # type: ignore[arg-type]

    with intercept_attention(model, look):
        for i in range(len(plan)):
            model.bert(**plan[i].inputs)
    for layer, found in sums.items():
        shares = torch.cat(found).mean(0).tolist()
        named = {
            "metric": "sinks.first_share",
            "site": "attention",
            "stack": "encoder",
            "layer": layer + 1,
        }
        for head, share in enumerate(shares):
            yield named | {"head": head, "value": share}


def _measure_outliers(model: Any, plan: Any) -> Rows:
    """Yield a row for each layer: the largest dimension's share of the mean square of hidden states.

    plan   the batches that the model is run on, by number
    """
    # [layer, dim]: summed batch by batch, since the states of all batches are large.
    squares: Any = 0
    for i in range(len(plan)):
        hidden = model.bert(**plan[i].inputs, output_hidden_states=True).hidden_states
        of_batch = [x.double().square().sum((0, 1)) for x in hidden]
        squares = squares + torch.stack(of_batch)
    for layer, of_layer in enumerate(torch.as_tensor(squares)):
        share = float(of_layer.max() / of_layer.sum())
        yield {
            "metric": "outliers.top_share",
            "site": "hidden",
            "stack": "encoder",
            "layer": layer,
            "value": share,
        }


def _measure_retrieval(model: Any, texts: Any) -> Rows:
    """Yield a row with the precision of retrieval by the mean last hidden states of windows (`texts`: batches)."""
    # Windows are all of one length, so that a plain mean has no padding in it.
    batches = [texts[i] for i in range(len(texts))]
    last = torch.cat(
        [model.bert(**batch.inputs).last_hidden_state.mean(1) for batch in batches]
    )
    yield {
        "metric": "retrieval.precision",
        "value": compute_precision(last, torch.cat([batch.unit for batch in batches])),
    }


def compute_precision(vectors: Float[Tensor, "window dim"], unit: Tensor) -> float:
    """Return the share of windows whose nearest other window by cosine is of the same unit (document).

    Windows whose unit has no other are left out. `unit`: number of the document of each [window].
    """
    directions = functional.normalize(vectors.double(), dim=-1)
    # No window finds itself.
    cosine = (directions @ directions.T).fill_diagonal_(-torch.inf)
    # A document of one window cannot be found.
    several = (unit[:, None] == unit).sum(1) > 1
    return float((unit[cosine.argmax(1)] == unit)[several].double().mean())


def _probe_words(model: Any, tokenizer: Any, folder: Path) -> Rows:
    """Yield a row with the accuracy of a linear discriminant that reads parts of speech from the last hidden states.

    `folder`: of the treebank UD English EWT.
    """
    window = model.config.max_position_embeddings
    parts = []
    for split, sentences in SENTENCES.items():
        parts.append(
            _read_words(
                model, tokenizer, folder / f"{split}.jsonl.gz", sentences, window
            )
        )
    (seen, tags), (words, right) = parts
    # Fitted on words of the training split, and tested on those of the test split.
    found = LinearDiscriminantAnalysis().fit(seen, tags).predict(words)
    yield {"metric": "probing.accuracy", "value": float((found == right).mean())}


def _read_words(
    model: Any, tokenizer: Any, path: Path, sentences: int, window: int
) -> tuple[Any, Any]:
    """Return (last hidden states [word, dim], part-of-speech tags [word]) of some sentences of a treebank file.

    sentences   how many are read, evenly spread over the file
    window      tokens at which a sentence is cut
    """
    # Sentences of one length make a batch, so that none needs padding.
    by_length: dict[int, list[_TaggedSentence]] = defaultdict(list)
    for sentence in _pick_sentences(path, sentences):
        tagged = _tokenise_sentence(sentence, tokenizer, window)
        by_length[len(tagged.ids)].append(tagged)
    states: list[Tensor] = []
    tags: list[str] = []
    for group in by_length.values():
        hidden = model.bert(
            torch.tensor([tagged.ids for tagged in group])
        ).last_hidden_state
        for of_tokens, tagged in zip(hidden, group, strict=True):
            states.append(of_tokens[tagged.ends])
            tags += tagged.tags
    return torch.cat(states).double().numpy(), np.array(tags)


class _TaggedSentence(NamedTuple):
    """A tokenised sentence: token ids, and for each whole word the place of its last token, and its part of speech."""

    ids: list[int]
    ends: list[int]
    tags: list[str]


def _pick_sentences(path: Path, count: int) -> list[dict[str, Any]]:
    """Return `count` sentences of a treebank file, evenly spread over it; all if it has fewer."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        every = [json.loads(line) for line in lines]
    chosen = np.linspace(0, len(every) - 1, min(count, len(every))).astype(int)
    return [every[i] for i in chosen]


def _tokenise_sentence(
    sentence: dict[str, Any], tokenizer: Any, window: int
) -> _TaggedSentence:
    """Tokenise a sentence word by word; it is cut at `window` tokens, and a word that is cut is left out."""
    # The leading space is part of a word, as the tokenizer learnt it inside texts.
    pieces = tokenizer(
        [f" {word}" for word in sentence["tokens"]], add_special_tokens=False
    )["input_ids"]
    # A word's last token has seen all of it, also in a causal model.
    ids = [token for word in pieces for token in word]
    lengths = [len(word) for word in pieces]
    ends = [int(end) - 1 for end in np.cumsum(lengths) if end <= window]
    return _TaggedSentence(ids[:window], ends, sentence["upos"][: len(ends)])
