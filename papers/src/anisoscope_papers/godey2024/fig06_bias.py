"""Figure 6: a common bias survives an untrained block, and there is a norm at which the block keeps it.

Experiment and records: `biased_block.py`; readings of "initialised as BERT": `untrained_models.py`.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import as_records, select
from anisoscope.sums.jackknife import estimate_over_seeds
from anisoscope_papers import study_charts
from anisoscope_papers.godey2024 import biased_block, norm_claims
from anisoscope_papers.godey2024.fig17_18_cosine_law import measure_trained_layers
from anisoscope_papers.godey2024.layer_curves import infer_widths
from anisoscope_papers.godey2024.untrained_models import label
from anisoscope_papers.judge import POSITIVE, Test, make_verdict_without_test
from anisoscope_papers.study import Claim, Context, Verdict, declare, read_claims

ABOVE, GROWS, TOKENS, MEAN, TRAINED = read_claims("godey2024", "fig6").values()
NORMS = {
    "drift": ("fig6b", "mean_norm", "norm of the average"),
    "norms.mean": ("fig6b_tokens", "token_norm", "mean norm of the tokens"),
}
"""Metric → chart, the fixed points on it, and its title."""
# Of the grid `biased_block.COARSE`, with which stacks of blocks are run.
DRAWN_OF_STACKS = [0.0, 1.0, 3.162, 10.0, 31.62, 100.0]


def measure(settings: biased_block.BlockSettings, context: Context) -> pd.DataFrame:
    """Return the records of hidden states and fixed points, and the hidden norms of trained models."""
    records = biased_block.run_experiment(settings, context)
    trained = measure_trained_layers(settings.trained, settings.limit, context)
    # Figures 7 to 10 show the other sites of the same experiment.
    return as_records(
        pd.concat([select(records, site="hidden"), trained], ignore_index=True)
    )


def judge(records: pd.DataFrame) -> list[Verdict]:
    """Judge the claims of figure 6 (a common bias survives an untrained block), for every untrained system (model)."""
    found: list[Test | Verdict] = []
    for below, above in _iter_anisotropy(records):
        found += norm_claims.test_gap_closes(ABOVE, below, above)
    found += norm_claims.test_trends(GROWS, records)
    systems = norm_claims.list_systems(records)
    for system in systems:
        for claim in (TOKENS, MEAN):
            found.append(_judge_fixed(claim, records, system))
    trained = _select_trained_share(records, "drift")
    if len(trained):
        found += [_make_test_of_order(records, system, trained) for system in systems]
    return norm_claims.judge_found(found)


def _iter_anisotropy(
    records: pd.DataFrame,
) -> Iterator[tuple[norm_claims.Curves, norm_claims.Curves]]:
    """Yield for each system (model) the curves of A (mean cosine) against N (norm of the bias): for the first block's
    input, and the last block's output.
    """
    of_input = norm_claims.iter_curves(records, "mean_cosine", "hidden", 0)
    of_output = norm_claims.iter_curves(records, "mean_cosine", "hidden", None)
    return zip(of_input, of_output, strict=True)


def _select_fixed_point(
    records: pd.DataFrame, system: str, name: str, component: str | None = "1"
) -> pd.Series:
    """Return a quantity of a system's (model's) fixed point, by seed: the norm of the bias at which a block's output is
    as long as its input.

    `name`: the quantity, as in the metric `fixed_point.<name>`; `component`: the number of the fixed point, from 1.
    """
    rows = select(
        records, model=system, metric=f"fixed_point.{name}", component=component
    )
    return rows.set_index("seed")["value"].astype(float)


def _judge_fixed(claim: Claim, records: pd.DataFrame, system: str) -> Verdict:
    """Judge whether a system (model) has a fixed point: every seed must have exactly one crossing.

    The verdict's number is N* (the norm of the bias there), with its interval over the seeds that have one.
    """
    # The rows of the number of crossings have no component, since they are about none
    # of them.
    crossings = _select_fixed_point(records, system, f"{claim.metric}.crossings", None)
    n = len(crossings)
    one = int((crossings == 1).sum())
    # Undecided if some seeds have exactly one crossing and others do not.
    holds = None
    if one == n:
        holds = True
    elif one == 0:
        holds = False
    counted = {
        "one": one,
        "none": int((crossings == 0).sum()),
        "several": int((crossings > 1).sum()),
    }
    counts = []
    for word, count in counted.items():
        if count:
            counts.append(f"{word} in {count} seeds")
    reason = "crossings: " + ", ".join(counts)
    solved = _select_fixed_point(records, system, claim.metric)
    if not len(solved):
        return make_verdict_without_test(
            claim, holds, "no N*", n=n, reason=reason, subject=system
        )
    at = estimate_over_seeds(
        _select_fixed_point(records, system, f"{claim.metric}.norm"), bounds=POSITIVE
    )
    reason += f"; norm there {at.value:.4g}"
    # Of a single seed with a fixed point there is no interval.
    if len(solved) > 1:
        reason += f" [{at.low:.4g}, {at.high:.4g}]"
    reason = "; ".join(
        filter(None, (reason, norm_claims.describe_one_more(solved.to_numpy(float))))
    )
    value, low, high = (float(x) for x in estimate_over_seeds(solved, bounds=POSITIVE))
    return make_verdict_without_test(
        claim, holds, "N* =", value, low, high, len(solved), None, reason, system
    )


def _select_trained_share(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the norms of trained layers over √d as the column `share`, without the first block's input.

    `metric`: `drift` for the norm of the mean, `norms.mean` for that of tokens.
    """
    # The width is read from a recorded q95, which only trained models have: untrained
    # systems drop out here.
    width = infer_widths(records)
    rows = select(records, metric=metric, site="hidden", model=list(width))
    rows = rows[rows["layer"] > 0]
    return rows.assign(
        share=rows["value"] / np.sqrt(rows["model"].map(width).astype(float))
    )


def _make_test_of_order(
    records: pd.DataFrame, system: str, trained: pd.DataFrame
) -> Test:
    """Make the test that a system's norm of the mean at the fixed point is of the same order as in trained layers
    (`trained`).

    Norms are divided by √d, so that models of different widths can be compared. The interval is over seeds.
    """
    at = _select_fixed_point(records, system, "mean_norm.norm")
    known = trained["share"]
    names = ", ".join(trained["model"].unique())
    if not len(at):
        return Test(
            TRAINED,
            "no fixed point",
            inside=TRAINED.inside,
            note=f"against {names}",
            subject=system,
        )
    share = at / np.sqrt(norm_claims.read_width(records, system))
    # An order of magnitude is a ratio: the interval is that of its logarithm.
    value, low, high = (
        float(np.exp(x)) for x in estimate_over_seeds(np.log(share / known.mean()))
    )
    note = f"‖mean‖/√d = {share.mean():.3f}; in trained layers of {names}: {known.min():.3f} to {known.max():.3f}"
    note = "; ".join(
        filter(
            None,
            (
                note,
                norm_claims.describe_one_more((share / known.mean()).to_numpy(float)),
            ),
        )
    )
    numbers = (value, low, high, len(at))
    return Test(
        TRAINED,
        TRAINED.statistic,
        *numbers,
        inside=TRAINED.inside,
        note=note,
        subject=system,
    )


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw figure 6a, A (mean cosine) of input and output and their difference, and 6b, norms of mean and tokens with
    fixed points.

    For a stack of blocks, the output is that of the last block, and A is also drawn layer by layer. Returns {chart
    name: chart}.
    """
    metrics = ("mean_cosine", *NORMS)
    untrained = select(
        records, model=norm_claims.list_systems(records), site="hidden", metric=metrics
    )
    layers = norm_claims.summarise(untrained)
    rows = layers[
        (layers["layer"] == 0)
        | (layers["layer"] == layers.groupby("model")["layer"].transform("max"))
    ]
    rows = rows.assign(place=np.where(rows["layer"] == 0, "input", "output"))
    title = "A of the output − A of the input"
    vectors = select(rows, metric="mean_cosine")
    draw = study_charts.draw_against_norm
    drawn = {
        "fig6a": draw(vectors, series="place", title="anisotropy A", zero=True),
        "fig6a_difference": draw(
            _subtract_input(records), series="reading", title=title, scale="log"
        ),
    }
    # Figure 6b shows the norm of the mean; the equation of section 4 is about that of the
    # tokens. Both are drawn, with a ring where input and output cross.
    for metric, (name, kind, title) in NORMS.items():
        marks = _make_marks(records, kind)
        trained = _find_trained_band(records, metric)
        drawn[name] = study_charts.draw_norms(
            select(rows, metric=metric), marks, title=title, trained=trained
        )
    # A single block has no depth to draw. In a stack there is one line per N.
    if layers["layer"].max() > 1:
        deep = select(layers, metric="mean_cosine", N=DRAWN_OF_STACKS)
        deep = deep.assign(bias="N = " + deep["N"].map("{:g}".format))
        drawn["fig6_depth"] = charts.layer_curve(deep, series="bias", panel="reading")
    return drawn


def _subtract_input(records: pd.DataFrame) -> pd.DataFrame:
    """Return A (mean cosine) of the output less A of the input, paired over seeds, with intervals."""
    parts = []
    for below, above in _iter_anisotropy(records):
        # The difference of two mean cosines lies between −2 and 2.
        estimate = estimate_over_seeds(
            above.values - below.values, bounds=(-2.0, 2.0)
        )._asdict()
        parts.append(
            pd.DataFrame({"reading": label(above.system), "N": above.norms, **estimate})
        )
    return pd.concat(parts, ignore_index=True)


def _make_marks(records: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Return a table of the first fixed point of each system, as means over the seeds that have one.

    Columns: reading (the system), at (N*, the norm of the bias), at_value (the norm of the output), at_text. `kind`:
    `token_norm` or `mean_norm`.
    """
    rows = []
    for system in norm_claims.list_systems(records):
        found = _select_fixed_point(records, system, kind)
        seeds = len(_select_fixed_point(records, system, f"{kind}.crossings", None))
        if len(found):
            estimate = estimate_over_seeds(found, bounds=POSITIVE)
            text = "N* = " + _format_with_error(*(float(x) for x in estimate))
            # A mean over the seeds that have a fixed point must not pass for one of all.
            if len(found) < seeds:
                text += f" ({len(found)} of {seeds} seeds)"
            norm = _select_fixed_point(records, system, f"{kind}.norm").mean()
            rows.append((label(system), found.mean(), norm, text))
    return pd.DataFrame(rows, columns=["reading", "at", "at_value", "at_text"])


def _find_trained_band(
    records: pd.DataFrame, metric: str
) -> tuple[float, float] | None:
    """Return (lowest, highest) norm of trained layers, scaled by √d to the untrained block's width; None if there are
    none.

    `metric`: `drift` for the norm of the mean, `norms.mean` for that of tokens.
    """
    trained = _select_trained_share(records, metric)
    systems = norm_claims.list_systems(records)
    if trained.empty or not systems:
        return None
    # The systems of one study have one width: the first one tells it.
    low, high = trained["share"].agg(["min", "max"]) * np.sqrt(
        norm_claims.read_width(records, systems[0])
    )
    return float(low), float(high)


def _format_with_error(value: float, low: float, high: float) -> str:
    """Format a value with half the width of its interval (low, high): `9.9 ± 0.8`, with one significant digit of
    that half.
    """
    half = (high - low) / 2
    # Also if it is NaN: a single seed has no interval.
    if not half > 0:
        return f"{value:.4g}"
    decimals = max(0, -int(np.floor(np.log10(half))))
    return f"{value:.{decimals}f} ± {half:.{decimals}f}"


STUDY = declare(
    "godey2024",
    "fig6",
    **biased_block.OF_BLOCK,
    measure=measure,
    judge=judge,
    draw=draw,
)
