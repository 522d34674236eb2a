"""Draws `calibrated.svg` and prints the table beside it in `docs/concepts.md`: python docs/figures/calibrated.py

Five clouds of 2,000 vectors in 64 and in 768 dimensions, seed 0, all distinct pairs.
"""

from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.charts import export
from anisoscope.charts.style import INK, MUTED, PALETTE, facet
from anisoscope.sums import isotropic

Array = NDArray[np.float64]
VECTORS = 2000
BINS = np.linspace(-1, 1, 101)


def clouds(d: int) -> dict[str, Array]:
    """{name: vectors [token, dim]}"""
    drawn = np.random.default_rng(0)
    x = drawn.standard_normal((VECTORS, d))
    along = np.zeros(d)
    along[0] = np.sqrt(d)
    sign = drawn.choice([-1.0, 1.0], (VECTORS, 1))
    stretched = x * np.exp(-np.arange(d) / (d / 8))
    return {
        "isotropic": x,
        "common direction": x + along / 2,
        "common direction, weak": x + along / 8,
        "elongated, mean 0": stretched,
        "two opposite clusters": x + sign * along,
    }


def cosines(x: Array) -> Array:
    """Cosines of all distinct pairs."""
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    return (u @ u.T)[np.triu_indices(len(u), 1)]


def values(t: Array, d: int) -> dict[str, float]:
    """What calibrated anisotropy says of the cosines of all pairs."""
    return {
        "A": float(t.mean()),
        "d·E[cos²]": float(d * (t**2).mean()),
        "pairs > q95": float((t > isotropic.q95(d)).mean()),
        "p": float(isotropic.mean_cosine_pvalue(t.mean(), d, VECTORS)),
    }


def picture(d: int) -> alt.VConcatChart | alt.LayerChart | alt.FacetChart:
    """Cosines of the pairs of each cloud over the isotropic law, with A and q95 marked."""
    parts = []
    for name, x in clouds(d).items():
        t = cosines(x)
        of = values(t, d)
        a = abs(of["A"]) if abs(of["A"]) < 0.005 else of["A"]  # no "−0.00"
        words = f"A = {a:.2f} · d·E[cos²] = {of['d·E[cos²]']:.1f} · {100 * of['pairs > q95']:.0f} % > q95"
        height = np.histogram(t, BINS, density=True)[0]
        middle = (BINS[1:] + BINS[:-1]) / 2
        law = isotropic.cosine_density(middle, d)
        part = pd.DataFrame(
            {
                "cosine": middle,
                "left": BINS[:-1],
                "right": BINS[1:],
                "density": height,
                "law": law,
            }
        )
        parts.append(
            part.assign(cloud=f"{name}: {words}", A=of["A"], q95=isotropic.q95(d))
        )
    data = pd.concat(parts, ignore_index=True)
    y = alt.Y("density:Q", title="density", axis=alt.Axis(tickCount=3))
    x = alt.X("left:Q", title="cosine of a pair", scale=alt.Scale(domain=[-1, 1]))
    bars = (
        alt.Chart()
        .mark_rect(color=PALETTE[0], opacity=0.45)
        .encode(x=x, x2="right:Q", y=y, y2=alt.datum(0))
    )
    law_line = (
        alt.Chart()
        .mark_line(color=MUTED, strokeWidth=1.4)
        .encode(x="cosine:Q", y="law:Q")
    )
    one = alt.Chart().transform_aggregate(A="mean(A)", q95="mean(q95)")
    mean = one.mark_rule(color=PALETTE[1], strokeWidth=2).encode(x="A:Q")
    bound = one.mark_rule(color=INK, strokeDash=[4, 3]).encode(x="q95:Q")
    return facet([bars, law_line, bound, mean], data, "cloud", (640, 90), 1)


def main() -> None:
    for d in (64, 768):
        rows = {name: values(cosines(x), d) for name, x in clouds(d).items()}
        for name, of in rows.items():
            cells = (
                f"{of['A']:.4f}",
                f"{of['d·E[cos²]']:.2f}",
                f"{of['pairs > q95']:.3f}",
                f"{of['p']:.2g}",
            )
            print(f"| {d} | {name} | {' | '.join(cells)} |")  # noqa: T201
    export.save(picture(64), Path(__file__).with_name("calibrated"), ("svg",))


if __name__ == "__main__":
    main()
