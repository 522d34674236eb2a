"""Section 2.1: test three statements on the geometry of one layer of self-attention, on trained layers.

They are on cones of values (directions within an angle of the mean direction), and on attention with equal or parallel
keys or queries. With q̄ and k̄ the mean query and key of an utterance: `equal` puts k̄ (q̄) in place of each of them,
`parallel` gives each its own norm along the direction of k̄ (q̄).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from altair.typing import ChartType
from jaxtyping import Float
from torch import Tensor

from anisoscope.axes import Site
from anisoscope.capture.tap import capture
from anisoscope.charts import builders as charts
from anisoscope.store import as_records
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Measure,
    average_panels,
    compute_spearman,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import OWN, TITLES
from anisoscope_papers.fosse2023.measurements import measure_once
from anisoscope_papers.fosse2023.trained_cells import Trained
from anisoscope_papers.judge import Test

# A value that lies on the edge of its cone may be rounded to the outside.
ROUNDING = 1e-9
LARGEST = 0.1
# As projected, before any scaling: what section 2.1 calls q, k and v.
SITES = ("query.raw", "key.raw", "value")
SHOWN = {
    "keys.plain": "H / ln n, as trained",
    "keys.parallel": "H / ln n, keys of one direction",
    "queries.plain": "similarity of rows, as trained",
    "queries.parallel": "similarity of rows, queries of one direction",
}
Vectors = Float[Tensor, "token dim"]


def measure_cones(trained: Trained) -> pd.DataFrame:
    """Test the statements of section 2.1 on a trained model: records `cones.<statement>`, averaged over utterances.

    A cone is the set of directions within an angle of the mean direction. Also recorded: the correlation, over
    utterances, of the keys' similarity with the entropy H of attention.
    """

    def make() -> pd.DataFrame:
        """Measure the statistics on cones of one classifier and average them over utterances."""
        found = _measure_each(trained)
        # Over the utterances of this classifier: it cannot be computed from the means.
        similar, plain = (
            found[name].to_numpy(float) for name in ("keys.similarity", "keys.plain")
        )
        means = {**found.mean(), "keys.correlation": compute_spearman(similar, plain)}
        rows = [
            {"metric": f"cones.{name}", "value": value} for name, value in means.items()
        ]
        return as_records(pd.DataFrame(rows), layer=1, n_units=len(found))

    return measure_once(trained, "cones", make)


@torch.no_grad()
def _measure_each(trained: Trained) -> pd.DataFrame:
    """Return a row per utterance of at least two tokens: `compute_statements` of the first layer, mean over heads."""
    model = trained.classifier[0]
    batches = trained.batches(trained.plan.erased)
    caught: dict[str, Tensor] = {}

    def receive(site: Site, x: Tensor) -> None:
        """Keep queries, keys and values of the first layer. `x`: what the `site` gives in a forward call."""
        if site.layer == 1:
            # In float64, as identities are tested to 1e-6.
            caught[site.label] = x.double()

    rows: list[pd.Series] = []
    with capture(model, SITES, receive=receive):
        for batch in batches:
            caught.clear()
            model(**batch.inputs)
            lengths = next(iter(batch.streams.values())).mask.sum(1).tolist()
            for i, n in enumerate(lengths):
                # A single token has no pair, and no entropy.
                if n < 2:
                    continue
                # Padding is on the right: the first n tokens are real.
                sides = [caught[name][i, :, :n] for name in SITES]
                of_heads = []
                for query, key, value in zip(*sides, strict=True):
                    of_heads.append(compute_statements(query, key, value))
                rows.append(pd.DataFrame(of_heads).mean())
    return pd.DataFrame(rows)


def compute_statements(
    query: Vectors, key: Vectors, value: Vectors
) -> dict[str, float]:
    """Compute the quantities of section 2.1 from the queries, keys and values [token, dim] of one utterance and head,
    in float64.

    cone.inside       share of outputs in the narrowest circular cone about the mean direction that holds all values
    cone.narrow       1 if that cone is convex (half angle of 90° or less), else 0
    keys.similarity   mean cosine of the keys (eq. 3)
    keys.*            entropy of attention, H / ln n, with the keys as they are (`plain`), all replaced by their mean
                      (`equal`), and all turned to its direction (`parallel`)
    queries.*         mean cosine of the rows of attention, with the queries changed in the same ways
    """
    rows = _compute_weights(query, key)
    # The axis is the mean direction, the edge goes through the farthest value.
    axis = _normalise(_normalise(value).mean(0))
    widest = float((_normalise(value) @ axis).min())
    # y = Σ a v with weights a ≥ 0: a convex cone (half angle up to 90°) must hold it.
    outputs = _normalise(rows @ value) @ axis
    return {
        "cone.inside": float((outputs >= widest - ROUNDING).double().mean()),
        "cone.narrow": float(widest >= 0),
        "keys.similarity": _average_cosine(key),
        "keys.plain": _compute_entropy(rows),
        "keys.equal": _compute_entropy(
            _compute_weights(query, key.mean(0).expand_as(key))
        ),
        "keys.parallel": _compute_entropy(_compute_weights(query, _turn_to_mean(key))),
        "queries.plain": _average_cosine(rows),
        "queries.equal": _average_cosine(
            _compute_weights(query.mean(0).expand_as(query), key)
        ),
        "queries.parallel": _average_cosine(
            _compute_weights(_turn_to_mean(query), key)
        ),
    }


def _normalise(x: Tensor) -> Tensor:
    """Scale vectors [..., dim] to unit length."""
    return torch.nn.functional.normalize(x, dim=-1)


def _average_cosine(x: Tensor) -> float:
    """Return the mean cosine over pairs of rows [n, dim]; n must be at least 2."""
    n = len(x)
    # A = (‖Σu‖² − n) / (n (n − 1)) of unit vectors u.
    return float((_normalise(x).sum(0).square().sum() - n) / (n * (n - 1)))


def _compute_weights(query: Vectors, key: Vectors) -> Tensor:
    """Return attention weights [query, key], softmax(QKᵀ/√d), of queries and keys [token, dim]."""
    return torch.softmax(query @ key.T / query.shape[-1] ** 0.5, -1)


def _compute_entropy(rows: Tensor) -> float:
    """Return the entropy of attention rows over its maximum, H / ln n, averaged over rows."""
    # Every token is visible: the maximum is ln n for each row.
    return float(torch.special.entr(rows).sum(-1).mean() / np.log(rows.shape[-1]))


def _turn_to_mean(x: Vectors) -> Tensor:
    """Turn every vector of x [token, dim] to the direction of their mean, keeping its norm."""
    norms: Tensor = x.norm(dim=-1, keepdim=True)
    return norms * _normalise(x.mean(0))


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of section 2.1 on one-layer classifiers.

    Outputs lie in the cone of the values. Attention is uniform with equal keys, and nearly so with parallel ones or as
    trained; its rows are alike with equal queries, and nearly so with parallel ones or as trained. The more similar the
    keys, the more uniform the attention. `whole`: the records of all corpora; a test has one number per seed of one
    corpus.
    """
    for here in whole.corpora:
        rows = here.find(family=OWN)
        table = here.by(
            rows[rows["metric"].str.startswith("cones.")], "metric", "weight"
        )
        yield here.test(
            "outputs in the cone of the values",
            table["cones.cone.inside", 0.0],
            around=1.0,
        )
        for vectors in ("keys", "queries"):
            yield here.test(
                f"equal {vectors}", table[f"cones.{vectors}.equal", 0.0], around=1.0
            )
            yield here.test(
                f"{vectors} as trained", table[f"cones.{vectors}.plain", 0.0]
            )
        # Vectors of one direction still differ in norm, and a key of large norm makes
        # attention sharp: the paper's statement is exact for equal vectors alone.
        for weight in (0.0, LARGEST):
            keys, queries = (
                table[f"cones.{vectors}.parallel", weight]
                for vectors in ("keys", "queries")
            )
            yield here.test("keys of one direction", keys, f"λ = {weight:g}")
            yield here.test("queries of one direction", queries, f"λ = {weight:g}")
        yield here.test(
            "alike keys, uniform attention", table["cones.keys.correlation", 0.0]
        )


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the entropy or similarity of attention as trained and with keys or queries of one direction, by λ (weight of
    the penalty).

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    rows = {
        words: whole.find(family=OWN, metric=f"cones.{name}")
        for name, words in SHOWN.items()
    }
    frame = average_panels(rows, "corpus", "weight")
    frame["what"] = (
        frame["corpus"].replace(TITLES) + ", " + frame["weight"].map("λ = {:g}".format)
    )
    return whole.chart(
        charts.bars, frame, category="what", panel="quantity", size=(620, 18)
    )


STUDY = declare_entry(
    "sec2",
    measure=Measure(lambda plan: plan.by_weight(large=False), (measure_cones,)),
    tests=make_tests,
    draw=draw,
)
