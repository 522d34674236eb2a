"""Vectors to try cures (corrections of anisotropy) on: the tokens that a run sampled, or a model measured for it.

A run keeps a uniform sample of its tokens with their vectors at every layer (`--sample` says how many, by default
2,048). A after a cure is no function of means and second moments, since each vector gets a norm of its
own: cures are fitted and tried on these vectors, with the units of the run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors.torch import load_file

from anisoscope.axes import Site
from anisoscope.errors import UsageError, suggest_names
from anisoscope.reads.base import Array
from anisoscope.reads.run_pairs import read_sampled_stacks
from anisoscope.runs.differences import SAMPLE
from anisoscope.store import RunFolder, select

METRICS = ("mean_cosine", "calibrated")
"""What a model is measured for: A, by which the layer is chosen, and a metric that reads the sample."""


@dataclass(frozen=True)
class LayerVectors:
    """The vectors [token, dim] of one layer that a run kept, the unit (document, clip, image) of each vector, the
    layer's name, and remarks.
    """

    vectors: Array
    units: NDArray[np.int64]
    layer: str
    notes: tuple[str, ...]


def is_run_folder(path: Path) -> bool:
    """Return whether a path is the folder of a run, finished or not."""
    # A run that was begun has its identity; a finished one, or a series, a manifest.
    has_file = (path / "manifest.json").exists() or (path / "identity.json").exists()
    return path.is_dir() and has_file


def read_layer_of_vectors(opened: Any, layer: str | None) -> Array:
    """Return the vectors [vector, dim] of one layer of a file, in float64.

    UsageError if it has several layers and none is named, or holds sequences.
    """
    names = list(opened.layers)
    if layer is None and len(names) > 1:
        raise UsageError(
            "one layer of vectors",
            f"{len(names)}: {', '.join(names[:6])}",
            f"name it: --layer {names[0]}",
        )
    if layer is not None and layer not in names:
        raise UsageError(
            f"a layer among {', '.join(names[:6])}", repr(layer), "name one of them"
        )
    if opened.are_sequences:
        raise UsageError(
            "vectors [vector, dim]",
            f"sequences {list(opened.shape)}",
            "pool them first: x.mean(1)",
        )
    rows = np.arange(opened.shape[0], dtype=np.int64)
    # A block is [row, position, dim]; vectors have a single position.
    found: Array = opened.block(layer or names[0], rows)[:, 0].double().numpy()
    return found


def read_layer_of_run(folder: Path, layer: str | None = None) -> LayerVectors:
    """Read the vectors of one layer that a finished run kept.

    layer   as `5`, `final`, or with the stack before it (`decoder 5`); None: the layer of the highest A

    UsageError if the run kept none, or has no such layer.
    """
    run = RunFolder(folder)
    records = run.records
    path = folder / SAMPLE
    layers: dict[str, tuple[Site, Array, NDArray[np.int64]]] = {}
    # Stacks are read apart: an encoder and a decoder have different tokens.
    tensors = load_file(path) if path.exists() else {}
    for stack in read_sampled_stacks(tensors, alone=True).values():
        for site, vectors in stack.layers.items():
            layers[_name_of(site)] = site, vectors, stack.unit
    if not layers:
        cure = "measure it with a panel that keeps one (--panel hidden), and --sample above 0"
        raise UsageError(
            f"a sample of vectors of hidden states in {folder}", "none", cure
        )
    if layer is None:
        name = _find_highest(records, layers)
        chosen = ", where A is highest"
    else:
        name = _find_layer(layer, list(layers))
        chosen = ""
    site, vectors, units = layers[name]
    notes = [f"{len(vectors):,} sampled vectors of {name}{chosen} (another: --layer)"]
    rows = select(records, metric="mean_cosine", component=None, head=None)
    # A text has fewer vectors of sentences than of tokens.
    here = rows[rows["stack"].eq(site.stack) & rows["site"].eq(site.label)]
    everything = here["n_vectors"].max()
    # It is missing if A was not measured.
    if not pd.isna(everything) and len(vectors) < everything:
        notes.append(
            f"the run measured {int(everything):,} vectors: --sample keeps more of them"
        )
    return LayerVectors(
        np.asarray(vectors, dtype=np.float64), units, name, tuple(notes)
    )


def measure_layer(
    measure: Callable[[Path], RunFolder], layer: str | None = None
) -> LayerVectors:
    """Measure a model into a temporary folder, and return the vectors of one layer.

    measure  writes a run into the folder that it is given
    """
    # Only the sample is wanted; a run folder that the user did not ask for would stay
    # behind.
    with TemporaryDirectory() as folder:
        return read_layer_of_run(measure(Path(folder) / "run").folder, layer)


def _name_of(site: Site) -> str:
    """Return a layer's name as users see it: `encoder layer 5`, `decoder final norm`, `sentence final`."""
    if site.stack == "sentence":
        return f"{site.stack} {site.quantity}"
    if site.layer is None:
        return f"{site.stack} final norm"
    return f"{site.stack} layer {site.layer}"


def _find_layer(asked: str, names: list[str]) -> str:
    """Return the name of the layer meant by `5`, `final` or `decoder 5`. UsageError if none or several fit.

    asked   the layer as the user wrote it
    names   names of the layers that were sampled
    """
    # As in tables (`layer 5`), in names of sites (`encoder.5`), and on pages (`final
    # norm`).
    wanted = asked.replace("layer", " ").replace("norm", " ").replace(".", " ").split()
    found = []
    for name in names:
        words = [word for word in name.split() if word not in ("layer", "norm")]
        # With the stack, or without it.
        if wanted in (words, words[1:]):
            found.append(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            "one layer",
            f"{asked!r}, which is {' or '.join(found)}",
            f"say {found[0]!r}",
        )
    raise UsageError(
        "a layer of this run",
        repr(asked),
        suggest_names(asked, [name.split(" ", 1)[1] for name in names]),
    )


def _find_highest(
    records: object, layers: dict[str, tuple[Site, Array, NDArray[np.int64]]]
) -> str:
    """Return the name of the sampled layer with the highest A (mean cosine); the last layer if A was not measured."""
    rows = select(records, metric="mean_cosine", component=None, head=None)  # type: ignore[arg-type]
    # A comparison with NaN is false: if no layer has a value, the last one stays.
    best, highest = list(layers)[-1], -np.inf
    for name, (site, _, _) in layers.items():
        here = rows[rows["stack"].eq(site.stack) & rows["site"].eq(site.label)]
        if site.layer is not None:
            here = here[here["layer"].eq(site.layer)]
        value = float(here["value"].iloc[0]) if len(here) else np.nan
        if value > highest:
            best, highest = name, value
    return best
