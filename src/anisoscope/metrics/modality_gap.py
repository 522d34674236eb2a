"""Modality gap: how far the tokens of images lie from those of texts in a stack that reads both.

Formula    u: vectors scaled to length 1; ū_I, ū_T: the means of u over image tokens and over text tokens (without
           special ones). distance = ‖ū_I − ū_T‖; cosine = cos(ū_I, ū_T).
           image, text: the mean cosine of distinct pairs of image tokens, or of text tokens, (‖Σu‖² − n)/(n(n − 1)).
           across: the mean cosine of an image token and a text token, ū_I·ū_T.
Range      distance [0, 2], 0: no gap; cosines [−1, 1]. If across is below image and text, the two lie in separate
           cones.
Unit       none.
Undefined  a site without image tokens, or without text tokens; image, text: fewer than two vectors.
Source     Liang et al. 2022 (Mind the Gap), section 2: the distance of the centres of unit vectors; the pairs are ours.
"""

import numpy as np

from anisoscope.metrics.base import (
    COSINE,
    Array,
    Metric,
    Values,
    concatenate_pairs,
    dot,
    leave_diagonal_out,
    ratio,
)
from anisoscope.reads import Modalities
from anisoscope.sums.groups import Totals


def compute(totals: Totals) -> Values:
    """Return how far apart the tokens of images and of texts lie, and how similar those of one kind are
    [replicate, head].

    distance      distance of the mean unit vector of image tokens from that of text tokens
    cosine        cosine of these two mean vectors
    image, text   mean cosine of pairs of image tokens, of pairs of text tokens
    across        mean cosine of pairs of an image token and a text token

    Replicate 0 is over all data; each other replicate leaves out one group of units (images with captions, chats).
    """
    # [replicate modality head], [… dim]
    n = totals["modality_n"]
    unit = totals["modality_unit"]
    mean = ratio(unit, n[..., None])
    image = mean[:, 0]
    text = mean[:, 1]
    across = dot(image, text)
    lengths = np.linalg.norm(image, axis=-1) * np.linalg.norm(text, axis=-1)
    # (‖Σu‖² − n)/(n(n − 1)) for each modality; `across` has no vector twice, so means
    # suffice.
    within = ratio(np.square(unit).sum(-1) - n, n * (n - 1))
    return {
        "distance": np.linalg.norm(image - text, axis=-1),
        "cosine": ratio(across, lengths),
        "image": within[:, 0],
        "text": within[:, 1],
        "across": across,
    }


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute the modality gap slowly, for tests: over all pairs of vectors.

    units   (image tokens, text tokens) of each unit, [token, dim] each

    Returns {name of a value: its number}, to compare with those of `compute`.
    """
    image, text = concatenate_pairs(units)
    image = image / np.linalg.norm(image, axis=1, keepdims=True)
    text = text / np.linalg.norm(text, axis=1, keepdims=True)
    a = image.mean(0)
    b = text.mean(0)
    expected = {
        "distance": float(np.linalg.norm(a - b)),
        "across": float((image @ text.T).mean()),
    }
    expected["cosine"] = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    for name, x in (("image", image), ("text", text)):
        cosines = leave_diagonal_out(x @ x.T)
        expected[name] = float(cosines.mean()) if len(cosines) else float("nan")
    return expected


METRIC = Metric(
    name="modality_gap",
    reads=Modalities(),
    needs=frozenset({"modality_n", "modality_unit"}),
    compute=compute,
    reference=reference,
    bounds={
        "distance": (0.0, 2.0),
        **dict.fromkeys(("cosine", "image", "text", "across"), COSINE),
    },
    invariant=frozenset({"rotation", "scaling", "order"}),
)
