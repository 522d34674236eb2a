"""The report page: complete, self-contained, safe with hostile names, and the same bytes on every rebuild."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

DIM, UNITS, VECTORS = 24, 60, 238_412
SUBSETS = {
    "kind": ["special", "first", "content"],
    "frequency": [f"frequency {i}" for i in range(1, 6)],
    "position": ["position 0", "position 1–7", "position 8–31", "position 32–127", "position 128+"],
}
COLUMNS = "run model revision step seed corpus stack kind layer head site token_policy metric component".split()

Row = dict[str, Any]


def _row(metric: str, value: float, spread: float = 0.01, **keys: Any) -> Row:
    low, high = (value - spread, value + spread) if spread else (np.nan, np.nan)
    return {"metric": metric, "value": value, "low": low, "high": high, "n_vectors": VECTORS, "n_units": UNITS, **keys}


def _hidden_rows(rng: np.random.Generator, place: Row, depth: float) -> Iterator[Row]:
    a = 0.04 + 0.5 * depth**1.5 + 0.02 * rng.normal()
    for shift, policy in enumerate(("all", "content", "no-first")):
        here = {**place, "token_policy": policy}
        top = a * np.sort(rng.dirichlet(np.full(DIM, 0.12)))[::-1]
        shares = [top[:k].sum() / a for k in (1, 3, 10)]
        yield _row("mean_cosine", a - 0.03 * shift, **here)
        yield _row("mean_cosine.between", a - 0.04 - 0.03 * shift, **here)
        yield _row("mean_cosine.isotropic_q95", 0.084, 0, **here)
        yield _row("intra_sequence", a + 0.08, **here)
        yield _row("drift", 4 + 10 * depth, 0.2, **here)
        yield _row("drift.share", a**0.5, **here)
        yield _row("norms.mean", 12 + 9 * depth, 0.1, **here)
        yield _row("norms.variation", 0.1 + 0.2 * depth, **here)
        yield from (_row("mean_cosine.contribution", top[j], 0.003, component=str(j), **here) for j in range(DIM))
        yield from (
            _row("mean_cosine.top_share", v, component=k, **here) for k, v in zip(("1", "3", "10"), shares, strict=True)
        )
    yield _row("calibrated.centred", 0.004, 0.001, **place)
    for name, v in {"effective_rank": 18 - 9 * depth, "participation_ratio": 11 - 6 * depth, "isoscore": 0.3}.items():
        yield _row(f"spectrum.{name}", v, 0, token_policy="all", **place)
    yield _row("spectrum.cosine_square", 2 + 9 * depth, 0, token_policy="all", **place)
    for k in (1, 2, 3, 5, 10):
        yield _row("spectrum.explained", 1 - 0.9 * np.exp(-0.2 * k * (1 + depth)), 0, component=str(k), **place)
    for family in SUBSETS.values():
        for i, first in enumerate(family):
            for second in family[i:]:
                yield _row("group_cosine", rng.uniform(-0.1, 0.8), component=f"{first} × {second}", **place)


def _head_rows(rng: np.random.Generator, place: Row) -> Iterator[Row]:
    attention = {**place, "site": "attention"}
    yield _row("attention.entropy_normalised", rng.beta(6, 2), **attention)
    yield _row("attention.first_mass", rng.beta(1, 6), **attention)
    yield _row("attention.row_similarity", rng.beta(5, 3), **attention)
    policy = {"token_policy": "all"}
    cosine = float(np.tanh(rng.normal()))
    yield _row("query_key.cosine", cosine, 0.1, **place, site="query.raw", **policy)
    yield _row("query_key.dot", cosine * 40, 5, **place, site="query.raw", **policy)
    for site in ("query.raw", "key.raw", "value"):
        yield _row("intra_sequence", rng.uniform(0.2, 0.9), **place, site=site, **policy)
        yield _row("mean_cosine", rng.uniform(0.1, 0.8), **place, site=site, **policy)


def synthetic_records(
    layers: int = 6, heads: int = 12, stacks: tuple[str, ...] = ("encoder",), model: str = "builtin:minilm"
) -> pd.DataFrame:
    """Records of a plausible run: every metric of the report, for encoder and decoder stacks of any size."""
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for stack in stacks:
        for layer in range(layers + 1):
            place = {"stack": stack, "kind": "self", "layer": layer}
            rows += _hidden_rows(rng, {**place, "site": "hidden"}, layer / max(layers, 1))
            for head in range(heads if layer else 0):
                rows += _head_rows(rng, {**place, "head": head})
                if stack == "decoder":
                    rows += _head_rows(rng, {**place, "kind": "cross", "head": head})
        rows += _hidden_rows(rng, {"stack": stack, "kind": "self", "layer": layers, "site": "final"}, 0.5)
    for site in ("embedding.input", "embedding.output"):
        rows.append(_row("partition", 0.71, 0, stack=stacks[0], kind="self", site=site))
    frame = pd.DataFrame(rows).assign(run="r1", model=model, revision="main", step=None, seed=0, corpus="python-docs")
    return frame.reindex(columns=[*COLUMNS, "value", "low", "high", "n_vectors", "n_units"]).astype(
        {"layer": "Int64", "head": "Int64"}
    )


def synthetic_manifest(model: str = "builtin:minilm") -> dict[str, Any]:
    return {
        "command": f"anisoscope measure --model {model} --corpus builtin:python-docs",
        "model": model,
        "revision": "main",
        "weights_sha256": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "corpus": {"name": "builtin:python-docs", "fingerprint": "9f2c", "n_units": UNITS, "n_tokens": VECTORS},
        "settings": {"max_length": 256, "batch_tokens": 16384, "groups": 32, "panel": "all"},
        "versions": {"torch": "2.13.0", "transformers": "5.23.0", "python": "3.12.1"},
        "device": "cpu",
        "dtype": "float32",
        "backend": "sdpa",
        "started": "2026-01-01T12:00:00Z",
        "seconds": 312.4,
        "warnings": ["27 documents are shorter than one window"],
        "excluded": {"encoder.3.hidden": {"zero": 2, "nonfinite": 0}},
    }


def write_run(folder: Path, records: pd.DataFrame, manifest: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    records.to_parquet(folder / "records.parquet")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
