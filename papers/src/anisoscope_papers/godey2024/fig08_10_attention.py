"""Figures 8 to 10: queries and keys (8) and the softmax of the untrained block as the bias grows.

Figure 9 averages extremes of each row; figure 10 takes them over a sequence and head, then averages over batch and
heads. Rows that see one key (the first of a causal block) are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.store import select
from anisoscope.sums.isotropic import q95
from anisoscope_papers import study_charts
from anisoscope_papers.godey2024 import biased_block, norm_claims
from anisoscope_papers.godey2024.norm_claims import Curves
from anisoscope_papers.judge import Test, make_test_of_seeds
from anisoscope_papers.study import Claim, Context, declare

SIDES = {"query.raw": "queries", "key.raw": "keys"}
ROWS = {"row_max": "largest", "row_median": "median", "row_min": "smallest"}
DOUBLED_AT = 100.0
"""Far beyond any N that the block itself keeps: half a decade past the crossings."""
FIXED = "fixed_point.mean_norm"
"""N*, the bias whose mean the block gives back as long as it is; recorded with figure 6."""
SMALLEST = 0.1
"""Added to N before its logarithm is taken: the smallest N above 0 that is measured."""


def measure(
    where: Mapping[str, Sequence[str]],
    settings: biased_block.BlockSettings,
    context: Context,
) -> pd.DataFrame:
    """Return the records of some sites or metrics of the last block, per head and averaged.

    `where`: which records, as {column: values}; `settings`: of the experiment on biased blocks.
    """
    records = biased_block.keep_last_block(
        select(biased_block.run_experiment(settings, context), **where)
    )
    # Of single heads only the normalised entropy is drawn.
    once = records["head"].isna() | (records["metric"] != "attention.entropy")
    return records[once].reset_index(drop=True)


def measure_rows(
    settings: biased_block.BlockSettings, context: Context
) -> pd.DataFrame:
    """Return the records of figure 9: weights and entropies of attention rows of the last block, and N* (norm of the
    bias that a block keeps).
    """
    rows = measure({"metric": IN_ROWS}, settings, context)
    fixed = select(
        biased_block.run_experiment(settings, context),
        metric=(FIXED, f"{FIXED}.crossings"),
    )
    return pd.concat([rows, fixed], ignore_index=True)


def _read_head_dim(records: pd.DataFrame, system: str) -> int:
    """Return the dimension of a head of a system (model)."""
    heads = int(select(records, model=system)["head"].max()) + 1
    return norm_claims.read_width(records, system) // heads


def judge_start(claim: Claim, records: pd.DataFrame) -> Iterator[Test]:
    """Yield the tests that queries or keys are anisotropic without a bias (norm N = 0), for each system (model).

    A (mean cosine) must be above q95 in the dimension of a head.
    """
    for curve in norm_claims.iter_curves(records, claim.metric, claim.site):
        threshold = float(q95(_read_head_dim(records, curve.system)))
        yield norm_claims.test_at_norm(
            claim, curve, 0.0, threshold, "q95 of the dimension of a head"
        )


def judge_growth(claim: Claim, records: pd.DataFrame) -> Iterator[Test]:
    """Yield the tests that a quantity grows enough to be seen, for each system (model).

    The number is its value for a bias of norm N = 100 over that for N = 0, per seed.
    """
    for curve in norm_claims.iter_curves(records, claim.metric, claim.site):
        # The first norm is N = 0.
        ratio = Curves(curve.system, curve.norms, curve.values / curve.values[:, :1])
        yield norm_claims.test_at_norm(
            claim, ratio, DOUBLED_AT, float(claim.limit), "ratio to N = 0"
        )


def judge_at_fixed_point(claim: Claim, records: pd.DataFrame) -> Iterator[Test]:
    """Yield the tests of a quantity's growth up to each seed's fixed point N* (norm of the bias that a block keeps), as
    a ratio to N = 0.

    It is interpolated linearly between the logarithms of the two neighbouring N.
    """
    for curve in norm_claims.iter_curves(records, claim.metric, claim.site):
        # The first crossing of each seed; a seed without one gets NaN.
        fixed = select(
            records, metric=FIXED, model=curve.system, component="1"
        ).set_index("seed")["value"]
        seeds = np.unique(
            select(records, metric=claim.metric, model=curve.system)["seed"].to_numpy(
                int
            )
        )
        at = fixed.reindex(seeds).to_numpy(float)
        ratios = curve.values / curve.values[:, :1]
        # A fixed point beyond the largest N has no neighbour to read from.
        inside = (at > 0) & (at <= curve.norms[-1])
        logs = np.log(np.array(curve.norms) + SMALLEST)
        read = []
        for norm, of_seed in zip(at, ratios, strict=True):
            # The grid is geometric from `SMALLEST` on, so that neighbouring N are
            # compared by their logarithms.
            read.append(np.interp(np.log(norm + SMALLEST), logs, of_seed))
        values = np.where(inside, read, np.nan)
        known = at[inside]
        where = f"N* {known.min():.3g} to {known.max():.3g}" if len(known) else "no N*"
        reason = "; ".join(
            filter(
                None,
                (
                    f"ratio to N = 0; {where}",
                    norm_claims.describe_one_more(values[inside]),
                ),
            )
        )
        yield make_test_of_seeds(
            claim, values, "at N*", reason=reason, subject=curve.system
        )


def judge_clearer(claim: Claim, records: pd.DataFrame) -> Iterator[Test]:
    """Yield the tests that the largest weights of sequences grow more than the largest of rows, up to the largest N
    (norm of the bias).

    They are paired over seeds. Both growths are divided by the rows' weight at N = 0.
    """
    of_rows = norm_claims.iter_curves(records, "attention.row_max", "attention")
    of_sequences = norm_claims.iter_curves(
        records, "attention.sequence_max", "attention"
    )
    for pair in zip(of_rows, of_sequences, strict=True):
        # One unit for both: the largest weight of a sequence is larger than that of an
        # average row from the start, and growth as a share of itself would be smaller.
        start = pair[0].values[:, :1]
        growth = []
        for curve in pair:
            grown = (curve.values[:, -1:] - curve.values[:, :1]) / start
            growth.append(Curves(curve.system, curve.norms[-1:], grown))
        yield from norm_claims.test_above(claim, *growth)


def draw_vectors(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw figures 8a, anisotropy, and 8b, norms of queries and keys; the pale band spans all heads and seeds.

    Returns {chart name: chart}.
    """
    rows = norm_claims.summarise_heads(records)
    rows["vectors"] = rows["site"].map(SIDES)
    dims = {
        _read_head_dim(records, system) for system in norm_claims.list_systems(records)
    }
    # Heads of several dimensions have no common bound.
    line = None
    if len(dims) == 1:
        line = (float(q95(dims.pop())), "q95 of one pair")
    draw = partial(study_charts.draw_against_norm, series="vectors")
    return {
        "fig8a": draw(
            select(rows, metric="mean_cosine"),
            title="anisotropy A",
            zero=True,
            line=line,
        ),
        "fig8b": draw(
            select(rows, metric="norms.mean"), title="mean norm", scale="log"
        ),
    }


def draw_weights(
    names: dict[str, dict[str, str]], records: pd.DataFrame
) -> dict[str, ChartType]:
    """Draw attention weights against N (norm of the bias), with the uniform weight; return {chart name: chart}.

    `names`: {chart: {statistic: its name in the legend}}.
    """
    rows = norm_claims.summarise_heads(records)
    charts = {}
    for chart, statistics in names.items():
        parts = [
            select(rows, metric=f"attention.{name}").assign(weight=word)
            for name, word in statistics.items()
        ]
        chosen = pd.concat(parts)
        draw = partial(
            study_charts.draw_against_norm,
            chosen.reset_index(drop=True),
            series="weight",
        )
        # A share of the largest entropy, from 0 to 1: no logarithmic axis, and uniform
        # rows lie at 1.
        if "entropy" in chart:
            charts[chart] = draw(title="entropy / ln(keys)")
            continue
        words = list(statistics.values())
        title = f"{words[0]} weight" if len(words) == 1 else "attention weight"
        charts[chart] = draw(
            title=title, scale="log", line=_find_uniform_weight(records)
        )
    return charts


def _find_uniform_weight(records: pd.DataFrame) -> tuple[float, str] | None:
    """Return (the uniform attention weight 1/keys, its label); None if it is not one number (causal or unlike
    blocks).
    """
    # BERT's rows see every token of the sequence. Causal rows see fewer, and images
    # make another number of tokens.
    if (
        records["corpus"].nunique() > 1
        or not records["model"].str.startswith("bert").all()
    ):
        return None
    # The corpus is called `uniform inputs SEQUENCES × TOKENS × WIDTH`.
    return 1 / int(records["corpus"].iloc[0].split(" × ")[1]), "uniform"


STARTS = {f"{side}-anisotropic-without-bias": judge_start for side in ("query", "key")}
IN_WEIGHTS = dict.fromkeys(
    ("row-max-grows", "row-min-shrinks"), norm_claims.relative_trends
)
IN_WEIGHTS |= {
    "row-max-doubles": judge_at_fixed_point,
    "row-max-doubles-by-100": judge_growth,
}
OF_SEQUENCES = dict.fromkeys(
    ("sequence-max-grows", "sequence-min-shrinks"), norm_claims.relative_trends
)
OF_SEQUENCES |= {"clearer-than-in-rows": judge_clearer}
IN_ROWS = [f"attention.{name}" for name in (*ROWS, "entropy", "entropy_normalised")]
DRAWN_IN_ROWS = {"fig9": ROWS, "fig9_entropy": {"entropy_normalised": "entropy"}}
IN_SEQUENCES = ["attention.sequence_max", "attention.sequence_min", "attention.row_max"]
DRAWN_IN_SEQUENCES = {
    "fig10a": {"sequence_max": "largest"},
    "fig10b": {"sequence_min": "smallest"},
}
STUDIES = tuple(
    declare(
        "godey2024",
        name,
        **biased_block.OF_BLOCK,
        measure=measure_rows if name == "fig9" else partial(measure, where),
        judge=partial(norm_claims.judge, name, others),
        draw=draw,
    )
    for name, where, others, draw in (
        ("fig8", {"site": list(SIDES)}, STARTS, draw_vectors),
        ("fig9", {"metric": IN_ROWS}, IN_WEIGHTS, partial(draw_weights, DRAWN_IN_ROWS)),
        (
            *("fig10", {"metric": IN_SEQUENCES}, OF_SEQUENCES),
            partial(draw_weights, DRAWN_IN_SEQUENCES),
        ),
    )
)
