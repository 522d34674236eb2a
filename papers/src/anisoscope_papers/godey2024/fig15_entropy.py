"""Figure 15: entropy of attention rows along training, and what the drift of queries and keys does to it.

The paper takes from the growth of Q̄·K̄ that drift makes attention sharp. A softmax does not see Q̄·K̄, nor anything else
that is constant along a row; so the entropy is measured once more with the queries centred and with the keys centred,
and the variance of scores inside rows is divided into what the mean query and what deviations alone put there
(`metrics/score_terms.py`, `metrics/centred_attention.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.store import select
from anisoscope_papers import series_charts
from anisoscope_papers.godey2024 import checkpoints, courses
from anisoscope_papers.godey2024.fig13_14_alignment import HeadTable, read_table
from anisoscope_papers.judge import (
    Array,
    Test,
    average_over_seeds,
    judge_tests,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.study import Claim, Context, Verdict, declare, read_claims

KEPT = (
    *(
        "attention.entropy",
        "attention.entropy_normalised",
        "score_terms.mean_query_share",
        "score_terms.centred_share",
    ),
    *(
        f"centred_attention.{name}"
        for name in ("query", "query_rise", "key", "key_rise")
    ),
    "query_key.cosine",
)
TIME, FALL = "", ", by the fall of the loss"
"""How the clock is told after a layer; time is not."""
MOVED = {"query_key.cosine": 0.1, "attention.entropy": 0.05}
"""What |cos(Q̄, K̄)| must rise by, and the entropy (nats) fall by, before it is asked when it did: the floors of the
claims that they do.
"""


def measure(series: checkpoints.CheckpointSettings, context: Context) -> pd.DataFrame:
    """Return entropies and score statistics of every head at every checkpoint of `series`, with the validation
    losses.
    """
    if series.cells is not None:
        return checkpoints.measure_heads((*KEPT, checkpoints.LOSS), series, context)
    pieces = checkpoints.measure(series, context)
    return pd.concat(
        [checkpoints.read_records(pieces, KEPT), checkpoints.read_losses(pieces)],
        ignore_index=True,
    )


def judge(records: pd.DataFrame) -> list[Verdict]:
    """Judge figure 15: how the entropy of attention falls in training, and how much of that the drift (mean vector)
    explains.
    """
    claim = read_claims("godey2024", "fig15")
    heads = read_table(records, "attention.entropy")
    entropy = heads.values.mean(-1)  # [seed, step, layer]
    tests = list(_test_fall(claim, records, entropy, heads))
    # A course that is lowest at its end needs no test: it becomes a verdict at once.
    # Only tests are corrected together.
    turns: list[Test | Verdict] = []
    for i, layer in enumerate(heads.layers):
        turns.append(
            make_test_of_turn(
                claim["entropy-rises-again"],
                entropy[:, :, i],
                heads.steps,
                f"layer {layer}",
            )
        )
    turns += make_tests_of_order(claim, records, entropy.mean(-1), heads.steps)
    untested: list[Verdict] = []
    for one in turns:
        if isinstance(one, Test):
            tests.append(one)
        else:
            untested.append(one)
    tests += _test_first_layer(claim["first-layer-sharper"], records, entropy)
    tests += _test_drift(claim, records, entropy)
    untested.append(_judge_mean_key(claim["mean-key-idle"], records))
    return [*judge_tests(tests), *untested]


def _test_fall(
    claim: dict[str, Claim], records: pd.DataFrame, entropy: Array, heads: HeadTable
) -> Iterator[Test]:
    """Yield the tests that the entropy [seed, step, layer] falls: in all, in each layer, and all along.

    `heads`: the table that holds its seeds, steps and layers.
    """
    # Positive if attention sharpens; the claims are on the change, which then lies
    # below 0.
    lost = entropy[:, 0] - entropy[:, -1]
    reason = f"by layer: {_list_numbers(-lost.mean(0), '.2f')}"
    yield make_test_of_seeds(claim["entropy-decays"], -lost.mean(1), reason=reason)
    # Steps are a clock of their own choosing: most of them come when little is learnt. The fall of the loss is another.
    clocks = {TIME: np.tile(np.array(heads.steps, dtype=np.float64), (len(entropy), 1))}
    fallen = checkpoints.compute_fall(records, heads.seeds, heads.steps)
    if fallen is not None:
        clocks[FALL] = fallen
    for i, layer in enumerate(heads.layers):
        yield make_test_of_seeds(
            claim["entropy-decays-in-layer"], -lost[:, i], subject=f"layer {layer}"
        )
        for name, clock in clocks.items():
            pairs = zip(entropy[:, :, i], clock, strict=True)
            trends = np.array([courses.correlate_with_clock(*pair) for pair in pairs])
            yield make_test_of_seeds(
                claim["entropy-falls-all-along"], trends, subject=f"layer {layer}{name}"
            )


def _test_first_layer(
    claim: Claim, records: pd.DataFrame, entropy: Array
) -> Iterator[Test]:
    """Yield the tests that the first layer's entropy is below the last one's at the end: in nats, and normalised.

    `entropy` [seed, step, layer], in nats. Nothing for a single layer.
    """
    if entropy.shape[-1] == 1:
        return
    # The paper shows nats. Normalised by ln(visible keys), rows that see few keys count
    # as much as others.
    normalised = read_table(records, "attention.entropy_normalised").values.mean(-1)
    for name, values in (("normalised", normalised), ("nats", entropy)):
        reason = f"first, last: {_list_numbers(values[:, -1, [0, -1]].mean(0), '.3f')}"
        apart = values[:, -1, 0] - values[:, -1, -1]
        yield make_test_of_seeds(claim, apart, reason=reason, subject=name)


def _test_drift(
    claim: dict[str, Claim], records: pd.DataFrame, entropy: Array
) -> Iterator[Test]:
    """Yield the tests on how much the mean query sharpens attention, and on its share of the variance of scores.

    `entropy` [seed, step, layer].
    """
    lost = entropy[:, 0] - entropy[:, -1]
    # What the entropy rises by if queries are centred, at the last step.
    gain = read_table(records, "centred_attention.query_rise").values.mean(-1)[:, -1]
    reason = f"by layer: {_list_numbers(gain.mean(0), '.3f')}"
    yield make_test_of_seeds(claim["mean-query-sharpens"], gain.mean(-1), reason=reason)
    # The ratio of two means, not the mean of ratios: a layer that lost almost nothing
    # would have a share without bound.
    explained = _compute_share(gain.mean(-1), lost.mean(-1))
    # A data frame's mean leaves out the seeds that lost no entropy, which have no share.
    of_layers = pd.DataFrame(_compute_share(gain, lost)).mean().to_numpy(float)
    reason = f"by layer: {_list_numbers(of_layers, '.2f')}"
    yield make_test_of_seeds(
        claim["drift-explains-sharpening"], explained, reason=reason
    )
    share = read_table(records, "score_terms.mean_query_share").values.mean(-1)
    # The other part of the variance inside rows; both, and twice their covariance, make 1.
    others = read_table(records, "score_terms.centred_share").values[:, -1].mean()
    parts = f"(q − Q̄)·(k − K̄): {others:.2f}; by layer: {_list_numbers(share[:, -1].mean(0), '.2f')}"
    yield make_test_of_seeds(
        claim["mean-query-leads"], share[:, -1].mean(-1), reason=parts
    )
    start = f"at step 0: {share[:, 0].mean():.2f}"
    if np.isnan(share[:, 0]).all():
        start = "not measured at step 0"
    grown = (share[:, -1] - share[:, 0]).mean(-1)
    yield make_test_of_seeds(claim["mean-query-share-grows"], grown, reason=start)


def _judge_mean_key(claim: Claim, records: pd.DataFrame) -> Verdict:
    """Judge that centring the keys changes no attention.

    No test is needed: centring adds the same number to all scores of a row, which softmax ignores, so that any change
    is an error of the measurement.
    """
    rises = select(records, metric="centred_attention.key_rise")
    largest = float(rises["value"].abs().max())
    reason = "queries and keys as they are scored; any more would be an error of the measurement"
    holds = largest <= float(claim.limit)
    return make_verdict_without_test(
        claim, holds, claim.statistic, largest, n=len(rises), reason=reason
    )


def make_test_of_turn(
    claim: Claim, course: Array, steps: Sequence[int], subject: str = ""
) -> Test | Verdict:
    """Test how much a course [seed, step] of values at the training steps `steps` rises from its lowest point to the
    end.

    A course that is lowest at the end in every seed does not rise: it fails without a test. `subject`: the model or
    layer that the values are about.
    """
    places = courses.find_turning_places(course)
    if (places == len(steps) - 1).all():
        reason = f"lowest at the last step, {steps[-1]:,}, with every seed left out"
        nothing = make_verdict_without_test(
            claim,
            False,
            claim.statistic,
            0.0,
            n=len(course),
            reason=reason,
            subject=subject,
        )
        return replace(nothing, failing="too small")
    # The mean over seeds of where the turn is.
    share = 1 - np.mean([steps[i] for i in places]) / steps[-1]
    reason = f"lowest at step {_list_steps(steps, places)} of {steps[-1]:,}; {share:.0%} of training comes after"
    return make_test_of_seeds(
        claim,
        courses.measure_rise_since_turning(course),
        reason=reason,
        subject=subject,
    )


def make_tests_of_order(
    claim: dict[str, Claim], records: pd.DataFrame, entropy: Array, steps: Sequence[int]
) -> Iterator[Test | Verdict]:
    """Test which moves first, |cos(Q̄, K̄)| of mean query and key, or the entropy [seed, step], both as means over
    heads.

    A second test is on what the entropy does after the step where |cos| is highest. `claim`: the figure's claims by
    name; `steps`: the training steps.
    """
    before = claim["alignment-before-sharpness"]
    after = claim["sharpens-after-alignment"]
    if select(records, metric="query_key.cosine").empty:
        why = "cosines of means are not in these records"
        yield from (
            make_verdict_without_test(each, None, "not measured", reason=why)
            for each in (before, after)
        )
        return
    cosine = np.abs(read_table(records, "query_key.cosine").values).mean((2, 3))
    # The entropy falls and `measure_lead` wants a rise.
    ahead, places = courses.measure_lead(
        cosine, -entropy, (MOVED["query_key.cosine"], MOVED["attention.entropy"])
    )
    yield make_test_of_seeds(
        before, ahead, reason=f"read at step {_list_steps(steps, places)}"
    )
    peaks = courses.find_turning_places(-cosine)
    seeds = np.arange(len(cosine))
    lost = entropy[:, 0] - entropy[:, -1]
    highest = cosine[seeds, peaks].mean()
    reason = f"|cos| is highest at step {_list_steps(steps, peaks)}, {highest:.2f}"
    reason += f", and ends at {cosine[:, -1].mean():.2f}"
    reason += f"; the entropy falls by {lost.mean():.2f} in all"
    # Nothing is measured after the last step: what attention does then is not known.
    if (peaks == len(steps) - 1).all():
        yield make_verdict_without_test(
            after, None, "|cos| is highest at the end", n=len(cosine), reason=reason
        )
        return
    yield make_test_of_seeds(
        after, entropy[:, -1] - entropy[seeds, peaks], reason=reason
    )


def _list_steps(steps: Sequence[int], places: Array) -> str:
    """Name the steps at some indices (`places`), each once and in order: `100 and 200`."""
    return " and ".join(f"{step:,}" for step in sorted({steps[i] for i in places}))


def _compute_share(part: Array, whole: Array) -> Array:
    """Return what share `part` is of `whole`, arrays of one shape; NaN if the whole is not positive."""
    # The inner `where` keeps the division defined where its result is not used.
    return np.asarray(np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan))


def _list_numbers(values: Array, form: str) -> str:
    """Format numbers by the format `form` (as in `.2f`), separated by commas."""
    return ", ".join(f"{x:{form}}" for x in values)


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw the entropy per layer (nats and normalised), with centred queries and keys, and the parts of the scores.

    Returns {chart name: chart}.
    """

    def over_seeds(metric: str) -> pd.DataFrame:
        """Average a metric over heads and then over seeds, by layer and step."""
        heads = select(records, metric=metric).groupby(
            ["metric", "layer", "step", "seed"]
        )["value"]
        return average_over_seeds(heads.mean().reset_index(), "layer", "step")

    entropy = over_seeds("attention.entropy")
    normalised = over_seeds("attention.entropy_normalised")
    query = over_seeds("centred_attention.query")
    key = over_seeds("centred_attention.key")
    terms = {
        "by the mean query": "score_terms.mean_query_share",
        "by deviations": "score_terms.centred_share",
    }
    centred = {"as it is": entropy, "queries centred": query, "keys centred": key}
    shares = {name: over_seeds(metric) for name, metric in terms.items()}
    return {
        "fig15": series_charts.draw_layers(entropy, "entropy (nats)"),
        "fig15_normalised": series_charts.draw_layers(normalised, "entropy / ln(keys)"),
        "fig15_centred": series_charts.draw_parts(centred, "entropy (nats)"),
        "fig15_terms": series_charts.draw_parts(
            shares, "share of the variance in rows", zero=True
        ),
    }


STUDY = declare(
    "godey2024",
    "fig15",
    **checkpoints.OF_HEADS,
    measure=measure,
    judge=judge,
    draw=draw,
)
