"""The same numbers as other packages give: twenty cases each. Skipped, by name, if a package is not installed.

repsim is no dependency, not even for development: `pip install repsim` beside this one.
"""

import warnings

import numpy as np
import pytest
import torch
from scipy.spatial import procrustes as scipy_procrustes

import anisoscope

CASES = range(20)


def draw_pair(seed):
    """Two clouds of the same tokens [token, dim], of different widths, the second in part a function of the first."""
    rng = np.random.default_rng(seed)
    tokens, width, other = (int(n) for n in rng.integers((20, 3, 3), (90, 16, 16)))
    x = rng.normal(size=(tokens, width)) * rng.uniform(0.2, 3, width) + rng.normal(size=width)
    y = x @ rng.normal(size=(width, other)) + rng.uniform(0.1, 3) * rng.normal(size=(tokens, other))
    return x, y


@pytest.mark.parametrize("seed", CASES)
def test_cka_is_that_of_repsim(seed):
    """Its unbiased HSIC (Song et al. 2012), normalised by that of each side with itself. Its own `cka` divides the
    unbiased estimate by biased ones, and is another number.
    """
    repsim = pytest.importorskip("repsim", reason="repsim is no dependency: pip install repsim")
    x, y = draw_pair(seed)
    hsic = repsim.hsic([x, y], kernel_type="linear", estimator="song")
    theirs = hsic[0, 1] / np.sqrt(hsic[0, 0] * hsic[1, 1])
    assert anisoscope.metric("cka", (x, y))["cka"].value == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("seed", CASES)
def test_isoscore_is_that_of_its_package(seed):
    """Within 1e-6, which is the package's own precision: it takes √d in float32."""
    package = pytest.importorskip("IsoScore.IsoScore", reason="the published package is an extra of [dev]")
    x, _ = draw_pair(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = float(package.IsoScore(torch.tensor(x)))
    assert anisoscope.metric("isoscore", x)["spectrum.isoscore"].value == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("seed", CASES)
def test_procrustes_is_that_of_scipy(seed):
    """Theirs lets the second cloud be scaled as well: 1 − ρ² where ours is 2 − 2ρ."""
    x, y = draw_pair(seed)
    width = max(x.shape[1], y.shape[1])  # theirs takes clouds of one width: zeros are no information
    padded = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in (x, y)]
    disparity = scipy_procrustes(*padded)[2]
    ours = anisoscope.metric("procrustes", (x, y))["procrustes"].value
    assert 1 - (1 - ours / 2) ** 2 == pytest.approx(disparity, abs=1e-9)
