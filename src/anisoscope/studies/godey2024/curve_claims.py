"""Claims of figures 1 to 4 as tests on the curves of A: thresholds over layers, comparisons of systems, trends over
depth.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.studies.godey2024.layer_curves import TRAINED, UNTRAINED, curves, skipped
from anisoscope.studies.godey2024.left_out import Array, replicates
from anisoscope.studies.judge import Over, Test, judged, nothing, of_replicates, p_above, stated
from anisoscope.studies.study import Claim, Verdict

TRAINING = Claim(
    "effect of training",
    "Training makes the mean of A over the layers of a small model larger",
    "ours: the paper measures trained models only",
)


@dataclass(frozen=True)
class Rule:
    """A claim about A of single layers.

    threshold  a number, or None for q95(d) of the layer; `below`: A must lie below it
    over       in any, all or most layers
    systems    models it is about, by the beginning of their names (none: all); `stack`: of this stack only
    words      what a layer is of which it holds
    """

    claim: Claim
    words: str
    threshold: float | None = None
    below: bool = False
    over: Over = "any"
    systems: tuple[str, ...] = ()
    stack: str | None = None

    def tests(self, rows: pd.DataFrame) -> Iterator[Test]:
        """One test per layer of the systems it is about."""
        rows = rows[rows["model"].str.startswith(self.systems)] if self.systems else rows
        rows = rows[rows["stack"] == self.stack] if self.stack else rows
        if rows.empty:
            return
        limit = rows["q95"].to_numpy(float) if self.threshold is None else np.full(len(rows), self.threshold)
        above = p_above(rows, limit)
        name = "q95" if self.threshold is None else "threshold"
        for row, t, p in zip(rows.to_dict("records"), limit, above, strict=True):
            up, down = (1 - p, p) if self.below else (p, 1 - p)
            margin = (t - row["value"]) * (1 if self.below else -1)
            where = f"{row['stack']} layer {row['layer']}, against {name} {t:.3g}"
            yield Test(
                self.claim,
                "A",
                subject=str(row["model"]).removesuffix(TRAINED),
                value=float(row["value"]),
                low=float(row["low"]),
                high=float(row["high"]),
                n=int(row["n_units"]),
                up=float(up),
                down=float(down),
                margin=float(margin),
                over=self.over,
                seed=int(row["seed"]),
                where=where,
                words=f"layers {self.words}; n counts units",
                note=_steps(row["model"], row["step"]),
            )


Extra = Callable[[pd.DataFrame, pd.DataFrame], Iterable[Test]]
"""(records, curves of the systems the claims are about) → further tests."""


def judge(
    records: pd.DataFrame,
    rules: Sequence[Rule],
    extra: Sequence[tuple[Claim, Extra]] = (),
    several: Claim | None = None,
) -> list[Verdict]:
    """Verdicts on all claims of a figure, corrected together. `several`: that the first rule holds of two systems."""
    rows = curves(records)
    about = rows[~rows["model"].str.endswith(UNTRAINED)]
    tests = [test for rule in rules for test in rule.tests(about)]
    tests += [test for _claim, make in extra for test in make(records, about)]
    tests += _training(records, rows)
    verdicts = judged(tests)
    if several is not None:
        verdicts.append(_several(several, [v for v in verdicts if v.claim == rules[0].claim.name]))
    why = "; ".join(f"{system}: {reason}" for system, reason in skipped(records).items())
    judged_ones = {v.claim for v in verdicts}
    absent = [c for c in (*(r.claim for r in rules), *(c for c, _ in extra)) if c.name not in judged_ones]
    verdicts += [nothing(claim, why or "no system of these settings is one the claim is about") for claim in absent]
    return verdicts


def _steps(model: Any, step: Any) -> str:
    return f"trained for {step:,} steps" if str(model).endswith(TRAINED) and not pd.isna(step) else ""


def _system(model: str) -> str:
    return model.removesuffix(TRAINED)


def _several(claim: Claim, verdicts: list[Verdict]) -> Verdict:
    holding, failing, n = (sum(v.outcome == o for v in verdicts) for o in ("holds", "fails", "undecided"))
    n += holding + failing
    holds = True if holding >= 2 else False if n >= 2 and n - failing < 2 else None
    reason = "two are needed" + ("" if n >= 2 else f"; these settings have {n}")
    return stated(claim, holds, f"systems of which it holds, of {n}:", float(holding), reason=reason)


def per_system(rows: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """(model, seed, its layers) of curves."""
    for (model, seed), layers in rows.groupby(["model", "seed"], sort=False):
        yield str(model), int(str(seed)), layers


def mean_over_layers(records: pd.DataFrame, layers: pd.DataFrame, site: str = "hidden") -> Array:
    """Replicates [1 + group] of the mean of A over layers 1 and on (0 is what the blocks are given)."""
    inner = (layers["layer"] > 0).to_numpy(bool)
    return np.asarray(replicates(records, layers, "mean_cosine", site)[:, inner].mean(axis=1), dtype=np.float64)


def more_than(claim: Claim, ones: tuple[str, ...], others: tuple[str, ...]) -> Extra:
    """Every one of `ones` has a larger mean A over its layers than every one of `others` (beginnings of names)."""

    def tests(records: pd.DataFrame, rows: pd.DataFrame) -> Iterator[Test]:
        systems = list(per_system(rows))
        for a_name, seed, a in systems:
            for b_name, b_seed, b in systems:
                if not (a_name.startswith(ones) and b_name.startswith(others)):
                    continue
                if a_name.endswith(TRAINED) and b_name.endswith(TRAINED) and seed != b_seed:
                    continue
                theta = difference(mean_over_layers(records, a), mean_over_layers(records, b))
                label = f"{_system(a_name)} above {_system(b_name)}"
                yield _test(claim, label, theta, a, seed, "difference of mean A over layers")

    return tests


def difference(a: Array, b: Array) -> Array:
    """Replicates of a − b: paired where both have the same groups (the same units), else one after the other."""
    if len(a) == len(b):
        return a - b
    return np.concatenate([[a[0] - b[0]], a[1:] - b[0], a[0] - b[1:]])


def falls_with_depth(claim: Claim, systems: tuple[str, ...]) -> Extra:
    """A falls over the layers: slope of the straight line through A against depth (0 the input, 1 the last layer)."""

    def tests(records: pd.DataFrame, rows: pd.DataFrame) -> Iterator[Test]:
        for model, seed, layers in per_system(rows[rows["model"].str.startswith(systems)]):
            depth = np.linspace(-0.5, 0.5, len(layers))
            theta = -(replicates(records, layers, "mean_cosine") @ depth) / (depth @ depth)
            label = "fall of A from first to last layer, by the straight line through them"
            yield _test(claim, _system(model), theta, layers, seed, label)

    return tests


def lower_before_relu(claim: Claim) -> Extra:
    """The mean of A over layers is lower before the last ReLU of each block than after it (where blocks end so)."""

    def tests(records: pd.DataFrame, rows: pd.DataFrame) -> Iterator[Test]:
        before = {(model, seed): x for model, seed, x in per_system(curves(records, site="unrectified"))}
        for model, seed, layers in per_system(rows):
            raw = before.get((model, seed))
            if raw is None:
                continue
            after = layers[layers["layer"].isin(raw["layer"])]
            theta = difference(mean_over_layers(records, after), mean_over_layers(records, raw, "unrectified"))
            label = "mean A over layers, after less before the last ReLU"
            yield _test(claim, _system(model), theta, layers, seed, label)

    return tests


def _training(records: pd.DataFrame, rows: pd.DataFrame) -> Iterator[Test]:
    systems = {(model, seed): layers for model, seed, layers in per_system(rows)}
    for (model, seed), layers in systems.items():
        before = systems.get((_system(model) + UNTRAINED, seed))
        if model.endswith(TRAINED) and before is not None:
            theta = difference(mean_over_layers(records, layers), mean_over_layers(records, before))
            yield _test(TRAINING, _system(model), theta, layers, seed, "mean A over layers, trained less untrained")


def _test(claim: Claim, subject: str, theta: Array, layers: pd.DataFrame, seed: int, statistic: str) -> Test:
    """A test that a scalar of some `layers` is above 0."""
    value, low, high, up, down = of_replicates(theta)
    n, note = int(layers["n_units"].iloc[0]), _steps(layers["model"].iloc[0], layers["step"].iloc[0])
    test = Test(claim, statistic, value, low, high, n, up, down, subject=subject, over="all", seed=seed, note=note)
    return replace(test, margin=value, words="differences hold; n counts units")
