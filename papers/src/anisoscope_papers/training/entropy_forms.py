"""Define the forms in which the entropy H of [CLS]'s attention was published, and how low and high each can be.

Formula    p: row of [CLS] over the n real tokens, [CLS] first; s_j = Σ_i a_ij: column sums over rows of real tokens
           `row`       H(p) / ln n                        what the authors train with
           `reported`  H(p) / ln(n − 1)                   form A, as they report it
           `columns`   H(softmax(s_2 … s_n)) / ln(n − 1)  form B: column sums, a second softmax
           `again`     H(softmax(p_2 … p_n)) / ln(n − 1)  form C: the row, a second softmax
Range      see `find_ends`. Form C cannot look sharp: weights lie in [0, 1], so its softmax hardly tells them apart, and
           all of the attention on one token of 22 gives .987. Form B is 1 if every row attends to [CLS] alone.
Unit       none.
Undefined  one token (`row`), two tokens and fewer (the others): counts as 0.
Source     Fosse et al. 2023, table 4: form C at λ = 0 on HateXplain and e-SNLI, form A elsewhere, by the history of
           their code (docs/published-entropy.md).
"""

import math
from functools import cache

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

FORMS = {
    "row": "H / ln n",
    "reported": "A: H / ln(n − 1)",
    "columns": "B: columns, again",
    "again": "C: row, again",
}


def compute_by_definition(weights: Float[np.ndarray, "query key"]) -> dict[str, float]:
    """Compute the entropy H of attention in all its published forms, as {form: H}, by explicit loops, as a reference.

    row        H(p) / ln n, of the attention row p of [CLS] over n tokens
    reported   H(p) / ln(n − 1)
    columns    H(softmax(s)) / ln(n − 1), of the column sums s without that of [CLS]
    again      H(softmax(p)) / ln(n − 1), without the weight of [CLS]: a second softmax

    `weights`: attention of one head over the real tokens of one utterance, [CLS] first.
    """
    n = len(weights)
    # s_j = Σ_i a_ij, summed exactly: this is the reference for the fast forms.
    columns = [math.fsum(float(row[j]) for row in weights) for j in range(n)]
    return compute_of_row(weights[0]) | {
        "columns": _divide_by_maximum(
            _measure_nats(_compute_softmax(columns[1:])), n - 1
        )
    }


def compute_of_row(row: Float[np.ndarray, " key"]) -> dict[str, float]:
    """Compute the entropy H in the published forms that use only the attention row of [CLS], over n real tokens.

    Returns {"row": H / ln n, "reported": H / ln(n − 1), "again": that of a second softmax over the other tokens}.
    """
    n = len(row)
    first = [float(x) for x in row]
    # The second softmax is over the other tokens only: [CLS] comes first and is left
    # out.
    again = _divide_by_maximum(_measure_nats(_compute_softmax(first[1:])), n - 1)
    return {
        "row": _divide_by_maximum(_measure_nats(first), n),
        "reported": _divide_by_maximum(_measure_nats(first), n - 1),
        "again": again,
    }


def _divide_by_maximum(nats: float, outcomes: int) -> float:
    """Divide an entropy in nats by its maximum, ln(outcomes); 0 for a single outcome."""
    if outcomes > 1:
        return nats / math.log(outcomes)
    return 0.0


def _measure_nats(p: list[float]) -> float:
    """Return the entropy of probabilities, in nats."""
    return -math.fsum(x * math.log(x) for x in p if x > 0)


def _compute_softmax(x: list[float]) -> list[float]:
    """Return the softmax of a list."""
    # The largest value is subtracted first, so that no power overflows.
    highest = max(x, default=0.0)
    powers = [math.exp(value - highest) for value in x]
    total = math.fsum(powers)
    return [power / total for power in powers]


def find_ends(lengths: NDArray[np.int64]) -> dict[str, tuple[float, float]]:
    """Return {form: (lowest, highest) mean} that each form of entropy H can have over utterances.

    `lengths`: number of real tokens of each [utterance].
    """
    found = [_find_ends(int(n)) for n in lengths]
    means = {form: np.mean([each[form] for each in found], 0) for form in FORMS}
    return {form: (float(low), float(high)) for form, (low, high) in means.items()}


@cache
def _find_ends(n: int) -> dict[str, tuple[float, float]]:
    """Return {form: (H of sharp attention, H of uniform attention)} for n real tokens.

    Sharp: all of the attention is on one token other than [CLS].
    """
    sharp = np.zeros((n, n))
    flat = np.full((n, n), 1 / n)
    # Every row gives all of its weight to the last token.
    sharp[:, -1] = 1
    low = compute_by_definition(sharp)
    high = compute_by_definition(flat)
    return {form: (low[form], high[form]) for form in FORMS}
