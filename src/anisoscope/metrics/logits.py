"""The largest and the smallest attention logit of each head: what a softmax in low precision has to hold.

Formula    over all pairs of a real query and a key that it sees. largest, smallest: the largest and smallest logit, as
           it enters the softmax (q·k times scale, with position bias and soft cap). typical: the mean over sequences of
           a sequence's largest logit.
Range      (−∞, ∞). If logits differ by several dozen, attention is one-hot. If they grow during training, it may
           diverge.
Unit       nats.
Undefined  no pair. largest and smallest have no interval, because a maximum has none; typical has one. The logit of a
           learnt sink (GPT-OSS) is not a pair and does not count.
Source     Dehghani et al. 2023 (Scaling Vision Transformers to 22B), section 3; Wortsman et al. 2024 (Small-scale
           proxies for large-scale Transformer training instabilities), section 3.1.
"""

import numpy as np

from anisoscope.metrics.base import Array, Metric, Values, ratio
from anisoscope.reads import Logits
from anisoscope.reads.extremes import SumsAndExtremes

NAMED = frozenset({"largest", "smallest"})


def compute(data: SumsAndExtremes) -> Values:
    """Return attention logits of each head: the mean over sequences of their largest one (`typical`) [replicate,
    head].

    `largest` and `smallest` of all data have a single replicate [1, head]. Replicate 0 is over all data; each other
    replicate leaves out one group of units (documents, clips).
    """
    values = {
        "typical": ratio(data.totals["largest_logit"], data.totals["logit_sequences"])
    }
    if "logit" in data.extremes:
        largest = data.extremes["logit"][0]
        # The smallest logit is kept as the largest of their negatives.
        negative = data.extremes["negative_logit"][0]
        values["largest"] = np.where(np.isfinite(largest), largest, np.nan)[None]
        values["smallest"] = np.where(np.isfinite(negative), -negative, np.nan)[None]
    return values


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute the largest and smallest attention logits slowly, for tests: from all scores of one head, with all keys
    visible and scale 1.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    scores = [query @ key.T for query, key in units]
    return {
        "largest": float(max(score.max() for score in scores)),
        "smallest": float(min(score.min() for score in scores)),
        "typical": float(np.mean([score.max() for score in scores])),
    }


METRIC = Metric(
    name="logits",
    reads=Logits(),
    needs=frozenset({"logit_sequences", "largest_logit"}),
    compute=compute,
    reference=reference,
    extremes=NAMED,
    invariant=frozenset({"rotation", "order"}),
    panel="extremes",
)
