"""Write what other packages make of twenty drawn clouds into `peer_values.json`, which `test_peers.py` compares with.

    pip install --target /tmp/peers repsim IsoScore rsatoolbox
    PYTHONPATH=tests:/tmp/peers python tests/peer_values.py

None of these packages is a dependency, not even for development: what is kept here is compared without it.
"""

import json
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

CASES = range(20)
VALUES = Path(__file__).with_suffix(".json")


def draw_pair(seed):
    """Two clouds of the same tokens [token, dim], of different widths, the second in part a function of the first."""
    rng = np.random.default_rng(seed)
    tokens, width, other = (int(n) for n in rng.integers((20, 3, 3), (90, 16, 16)))
    x = rng.normal(size=(tokens, width)) * rng.uniform(0.2, 3, width) + rng.normal(
        size=width
    )
    y = x @ rng.normal(size=(width, other)) + rng.uniform(0.1, 3) * rng.normal(
        size=(tokens, other)
    )
    return x, y


def cka_of_repsim(x, y):
    """Its unbiased HSIC (Song et al. 2012), normalised by that of each side with itself.

    Its own `cka` divides the unbiased estimate by biased ones, and is another number.
    """
    import repsim

    hsic = repsim.hsic([x, y], kernel_type="linear", estimator="song")
    return float(hsic[0, 1] / np.sqrt(hsic[0, 0] * hsic[1, 1]))


def isoscore_of_its_authors(x):
    """IsoScore by the published package, which takes √d in float32: right to about 1e-6."""
    import torch
    from IsoScore import IsoScore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(IsoScore.IsoScore(torch.tensor(x)))


def procrustes_of_rsatoolbox(x, y):
    """The Bures similarity of the matrices of squared distances, which is the share that the best rotation explains.

    Its distances are divided by the number of dimensions, which the similarity does not depend on.
    """
    from rsatoolbox.data import Dataset
    from rsatoolbox.rdm import calc_rdm, compare

    similarity = compare(
        *(calc_rdm(Dataset(part), method="euclidean") for part in (x, y)),
        method="bures",
    )
    return 2 - 2 * float(similarity.item())


def main():
    """Write the values of each package that is here, its version, and a sum of each pair, which tells other draws."""
    pairs = [draw_pair(seed) for seed in CASES]
    found = (
        json.loads(VALUES.read_text("utf-8")) if VALUES.exists() else {"made by": {}}
    )
    found["sum"] = [float(x.sum() + y.sum()) for x, y in pairs]
    if find_spec("IsoScore"):
        found["isoscore"] = [isoscore_of_its_authors(x) for x, _ in pairs]
        found["made by"]["isoscore"] = f"IsoScore {version('IsoScore')}"
    if find_spec("repsim"):
        found["cka"] = [cka_of_repsim(x, y) for x, y in pairs]
        found["made by"]["cka"] = f"repsim {version('repsim')}"
    if find_spec("rsatoolbox"):
        found["procrustes"] = [procrustes_of_rsatoolbox(x, y) for x, y in pairs]
        found["made by"]["procrustes"] = f"rsatoolbox {version('rsatoolbox')}"
    VALUES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
