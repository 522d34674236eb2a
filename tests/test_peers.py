"""The same numbers as other packages give: twenty cases each. `peer_values.py` made and kept those of repsim, IsoScore
and rsatoolbox, none of which is a dependency, not even for development.
"""

import json

import numpy as np
import pytest
from peer_values import CASES, VALUES, draw_pair
from scipy.spatial import procrustes as scipy_procrustes

import anisoscope

THEIRS = json.loads(VALUES.read_text("utf-8"))


@pytest.mark.parametrize("seed", CASES)
def test_the_clouds_are_those_that_the_packages_were_given(seed):
    x, y = draw_pair(seed)
    assert x.sum() + y.sum() == pytest.approx(THEIRS["sum"][seed], abs=1e-9), (
        "python tests/peer_values.py"
    )


@pytest.mark.parametrize("seed", CASES)
def test_cka_is_that_of_repsim(seed):
    """Unbiased HSIC (Song et al. 2012) over that of each side with itself."""
    ours = anisoscope.metric("cka", draw_pair(seed))["cka"].value
    assert ours == pytest.approx(THEIRS["cka"][seed], abs=1e-9)


@pytest.mark.parametrize("seed", CASES)
def test_isoscore_is_that_of_its_package(seed):
    """Within 1e-6, which is the package's own precision: it takes √d in float32."""
    x, _ = draw_pair(seed)
    ours = anisoscope.metric("isoscore", x)["spectrum.isoscore"].value
    assert ours == pytest.approx(THEIRS["isoscore"][seed], abs=1e-6)


@pytest.mark.parametrize("seed", CASES)
def test_procrustes_is_that_of_rsatoolbox(seed):
    """Within 1e-6: theirs takes square roots of eigenvalues that are 0 but for rounding, of which each root is 1e-8."""
    ours = anisoscope.metric("procrustes", draw_pair(seed))["procrustes"].value
    assert ours == pytest.approx(THEIRS["procrustes"][seed], abs=1e-6)


@pytest.mark.parametrize("seed", CASES)
def test_procrustes_is_that_of_scipy(seed):
    """Theirs lets the second cloud be scaled as well: 1 − ρ² where ours is 2 − 2ρ."""
    x, y = draw_pair(seed)
    width = max(
        x.shape[1], y.shape[1]
    )  # theirs takes clouds of one width: zeros are no information
    padded = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in (x, y)]
    disparity = scipy_procrustes(*padded)[2]
    ours = anisoscope.metric("procrustes", (x, y))["procrustes"].value
    assert 1 - (1 - ours / 2) ** 2 == pytest.approx(disparity, abs=1e-9)
