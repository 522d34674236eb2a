"""Figure 6: a common bias survives an untrained block, and there is a norm at which the block keeps it.

The experiment and its records are described in `biased_block.py`; the readings of "initialised as BERT" in
`untrained_models.py`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.charts import norm_charts
from anisoscope.store import as_records, select
from anisoscope.studies.godey2024 import biased_block, norm_claims
from anisoscope.studies.godey2024.fixed_point import KINDS
from anisoscope.studies.godey2024.layer_curves import trained_layers, widths
from anisoscope.studies.godey2024.untrained_models import label
from anisoscope.studies.judge import Test, judged, stated
from anisoscope.studies.study import Claim, Context, Study, Verdict
from anisoscope.sums.jackknife import over_seeds

SOURCE = "Godey et al. 2024, section 4.1, figure 6"
ABOVE = Claim(
    "output-above-input", "The output of the block is more anisotropic than its input, at every N", f"{SOURCE}a"
)
GROWS = Claim("mean-output-grows", "The norm of the average output grows with N", f"{SOURCE}b")
FIXED = {
    "mean_norm": Claim(
        "fixed-point-of-the-mean", "Input and output averages have equal norm at exactly one N", f"{SOURCE}b"
    ),
    "token_norm": Claim(
        "fixed-point-of-tokens",
        "Inputs and outputs have equal mean norm at exactly one N*",
        "Godey et al. 2024, section 4.1, E‖x + b‖ = E‖T(x + b)‖",
    ),
}
TRAINED = Claim(
    "norm-as-trained",
    "The norm at the fixed point is of the order of trained hidden norms (within a factor √10 of them)",
    SOURCE,
)
ORDER = np.sqrt(10.0)
NORMS = ("norms.mean", "drift")


def measure(settings: biased_block.BlockSettings, context: Context) -> pd.DataFrame:
    """Records of hidden states, fixed points, and the hidden norms of trained models."""
    records = biased_block.experiment(settings, context)
    trained = trained_layers(settings.trained, settings.limit, context)
    return as_records(pd.concat([select(records, site="hidden"), trained], ignore_index=True))


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    pairs = zip(_anisotropy(records, 0), _anisotropy(records), strict=True)
    verdicts = [norm_claims.judge_above(ABOVE, below, above) for below, above in pairs]
    verdicts += [norm_claims.judge_trend(GROWS, curve, 1) for curve in norm_claims.curves(records, "drift", "hidden")]
    for system in norm_claims.systems(records):
        verdicts += [_judge_fixed(records, system, kind) for kind in KINDS]
    trained = _trained_share(records)
    if trained is not None:
        verdicts += judged([_order(records, system, trained) for system in norm_claims.systems(records)])
    return verdicts


def _anisotropy(records: pd.DataFrame, layer: int | None = None) -> Iterator[norm_claims.Curves]:
    return norm_claims.curves(records, "mean_cosine", "hidden", layer)


def _width(records: pd.DataFrame, system: str) -> int:
    return int(select(records, model=system)["corpus"].iloc[0].rsplit(" ", 1)[1])


def _of(records: pd.DataFrame, system: str, metric: str, component: str | None) -> pd.Series:
    """Values per seed."""
    rows = select(records, model=system, metric=metric, component=component)
    return rows.set_index("seed")["value"]


def _judge_fixed(records: pd.DataFrame, system: str, kind: str) -> Verdict:
    """Existence by the number of crossings of every seed, and N* with its interval over the seeds that have one."""
    crossings = _of(records, system, f"fixed_point.{kind}.crossings", None)
    n, one = len(crossings), int((crossings == 1).sum())
    several, none = int((crossings > 1).sum()), int((crossings == 0).sum())
    holds = True if one == n else False if one == 0 else None
    counted = {"one": one, "none": none, "several": several}
    reason = "crossings: " + ", ".join(f"{word} in {count} seeds" for word, count in counted.items() if count)
    solved = _of(records, system, f"fixed_point.{kind}", "1")
    if not len(solved):
        return stated(FIXED[kind], holds, "no N*", n=n, reason=reason, subject=system)
    estimate = over_seeds(solved)
    at = over_seeds(_of(records, system, f"fixed_point.{kind}.norm", "1"))
    reason += f"; norm there {at.value:.4g}" + (f" [{at.low:.4g}, {at.high:.4g}]" if n > 1 else "")
    numbers = (float(estimate.value), float(estimate.low), float(estimate.high))
    return stated(FIXED[kind], holds, "N* =", *numbers, len(solved), None, reason, system)


def _trained_share(records: pd.DataFrame) -> pd.DataFrame | None:
    """Mean token norms of trained layers over √d, the first block's input left out; None where none was measured."""
    width = widths(records)
    rows = select(records, metric="norms.mean", site="hidden", model=list(width))
    rows = rows[rows["layer"] > 0]
    return rows.assign(share=rows["value"] / np.sqrt(rows["model"].map(width).astype(float))) if len(rows) else None


def _order(records: pd.DataFrame, system: str, trained: pd.DataFrame) -> Test:
    """Norms over √d, so that models of other widths compare; the interval is over seeds."""
    at = _of(records, system, "fixed_point.mean_norm.norm", "1").to_numpy(float)
    names, inside = ", ".join(trained["model"].unique()), (1 / ORDER, ORDER)
    if not len(at):
        return Test(TRAINED, "no fixed point", inside=inside, note=f"against {names}", subject=system)
    share = at / np.sqrt(_width(records, system))
    value, low, high = (float(np.exp(x)) for x in over_seeds(np.log(share / trained["share"].mean())))
    note = f"‖mean‖/√d = {share.mean():.3f}; trained layers of {names}: {_range(trained['share'])}"
    words = "norm over √d, ratio to trained:"
    return Test(TRAINED, words, value, low, high, len(at), inside=inside, note=note, subject=system)


def _range(values: pd.Series) -> str:
    return f"{values.min():.3f} to {values.max():.3f}"


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """6a: A of input and output, and their difference; 6b: norm of the average, mean norm of tokens, fixed points.

    Of a stack, the output is that of the last block, and A is drawn layer by layer as well.
    """
    untrained = select(records, model=norm_claims.systems(records), site="hidden")
    layers = norm_claims.summary(select(untrained, metric=("mean_cosine", *NORMS)))
    rows = layers[(layers["layer"] == 0) | (layers["layer"] == layers.groupby("model")["layer"].transform("max"))]
    rows = rows.assign(place=np.where(rows["layer"] == 0, "input", "output"))
    anisotropy, average, tokens = (rows[rows["metric"] == name] for name in ("mean_cosine", "drift", "norms.mean"))
    title = "A of the output − A of the input"
    drawn = {
        "fig6a": norm_charts.against_norm(anisotropy, series="place", title="anisotropy A", zero=True),
        "fig6a_difference": norm_charts.against_norm(
            _differences(records), series="reading", panel=None, title=title, scale="log"
        ),
    }
    trained = _trained_band(records)
    for name, norms, kind, title in (
        ("fig6b", average, "mean_norm", "norm of the average"),
        ("fig6b_tokens", tokens, "token_norm", "mean norm of the tokens"),
    ):
        drawn[name] = norm_charts.norms(norms, _marks(records, kind), title=title, trained=trained)
    return drawn | ({"fig6_depth": _by_depth(layers)} if layers["layer"].max() > 1 else {})


def _by_depth(layers: pd.DataFrame) -> ChartType:
    """A of every layer of a stack, one line per N."""
    rows = select(layers, metric="mean_cosine", N=[0.0, 1.0, 3.162, 10.0, 31.62, 100.0])
    rows = rows.assign(bias="N = " + rows["N"].map("{:g}".format))
    return charts.layer_curve(rows, series="bias", panel="reading")


def _differences(records: pd.DataFrame) -> pd.DataFrame:
    """Output less input, paired over seeds."""
    parts = []
    for below, above in zip(_anisotropy(records, 0), _anisotropy(records), strict=True):
        estimate = over_seeds(above.values - below.values)._asdict()
        parts.append(pd.DataFrame({"reading": label(above.system), "N": above.norms, **estimate}))
    return pd.concat(parts, ignore_index=True)


def _marks(records: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The first fixed point of each system: `at` N*, `at_value` the norm there, means over the seeds that have one."""
    rows = []
    for system in norm_claims.systems(records):
        found = _of(records, system, f"fixed_point.{kind}", "1").to_numpy(float)
        seeds = len(_of(records, system, f"fixed_point.{kind}.crossings", None))
        if len(found):
            text = _with_error(*(float(x) for x in over_seeds(found)))
            text += f" ({len(found)} of {seeds} seeds)" if len(found) < seeds else ""
            height = float(_of(records, system, f"fixed_point.{kind}.norm", "1").mean())
            rows.append({"reading": label(system), "at": found.mean(), "at_value": height, "at_text": f"N* = {text}"})
    return pd.DataFrame(rows, columns=["reading", "at", "at_value", "at_text"])


def _with_error(value: float, low: float, high: float) -> str:
    """`9.9 ± 0.8`: as many decimals as the half width of the interval has before its first digit."""
    half = (high - low) / 2
    if not half > 0:
        return f"{value:.4g}"
    decimals = max(0, -int(np.floor(np.log10(half))))
    return f"{value:.{decimals}f} ± {half:.{decimals}f}"


def _trained_band(records: pd.DataFrame) -> tuple[float, float] | None:
    """Trained norms, brought to the width of the untrained block by √d."""
    trained, systems = _trained_share(records), norm_claims.systems(records)
    if trained is None or not systems:
        return None
    root = float(np.sqrt(_width(records, systems[0])))
    return float(trained["share"].min()) * root, float(trained["share"].max()) * root


STUDY = Study(
    name="fig6",
    paper="godey2024",
    title="A common bias through an untrained block: anisotropy, norms and their fixed points",
    claims=(ABOVE, GROWS, *FIXED.values(), TRAINED),
    settings=biased_block.SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "16 × 512 ids drawn uniformly through one untrained block, a bias of norm N added to all inputs; A over all "
        "distinct pairs, bands: 95 % intervals over seeds of weights, bias and ids. Rings: N*, where input and output "
        "are equally long. Grey: norms of the layers of trained models, brought to this width by √d."
    ),
)
