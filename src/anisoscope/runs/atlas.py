"""An atlas: every network of a list is measured, and each run summarised in a row of a table."""

import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope.errors import (
    AnisoscopeError,
    MeasureError,
    OutputError,
    UsageError,
    suggest_names,
)
from anisoscope.measure.distributed import rank_and_world
from anisoscope.models.named import hub_id, named_models
from anisoscope.models.series import is_series
from anisoscope.options import build_settings
from anisoscope.progress import Progress
from anisoscope.registry import list_entries_of
from anisoscope.runs.attention import attention_heads, count_heads
from anisoscope.runs.differences import read_replicates
from anisoscope.runs.findings import FEW, HALF, Depth, judge_isotropy, judge_stacks
from anisoscope.runs.job import Job
from anisoscope.runs.layers_of_heads import average_heads
from anisoscope.runs.run import run
from anisoscope.store import RunFolder, check_output, write_atomic, write_json
from anisoscope.wording import count_noun, has_interval, iter_rows

COLUMNS = (
    "network",
    "model",
    "corpus",
    "modality",
    "family",
    "stack",
    "layers",
    "dimensions",
    "parameters",
    "n_units",
    "n_vectors",
    "weakest_layer",
    "weakest",
    "weakest_low",
    "weakest_high",
    "strongest_layer",
    "strongest",
    "strongest_low",
    "strongest_high",
    "last_layer",
    "last",
    "last_low",
    "last_high",
    "final",
    "final_low",
    "final_high",
    "q95",
    "verdict",
    "dimension_share",
    "dimension_share_low",
    "dimension_share_high",
    "centred",
    "centred_low",
    "centred_high",
    "cause",
    "heads",
    "sink_heads",
    "entropy",
    "entropy_low",
    "entropy_high",
)
"""Columns of the table. `_low` and `_high` are the ends of a 95 % interval, `_layer` is the layer of a value.

weakest, strongest, last   A (mean cosine) of the layer where it is lowest, where it is highest, and of the last block
final                      A after the final norm, if there is one
q95, verdict               95 % of pairs of isotropic directions have a lower cosine; the verdict on the strongest layer
dimension_share, centred   at the strongest layer: the share of A in its first dimension, and A after centring
cause                      in words: what carries A there
heads, sink_heads          of self-attention: all, and those that give more than half of their weight to the first token
entropy                    mean over these heads, 1 is uniform
"""
OWN_KEYS = ("name", "stack", "modality", "family")
"""What a network of a list may declare besides options of `measure`."""
MODALITIES = {
    "token": "text",
    "word": "text",
    "character": "text",
    "frame": "speech",
    "patch": "image",
    "position": "image",
}
"""What a network reads, by the word for its positions; used if neither the list nor the model's name says so."""


@dataclass(frozen=True)
class Listed:
    """A network of the list: its name in the table, the job that measures it, and its other entries in the list."""

    name: str
    job: Job
    declared: dict[str, str] = field(default_factory=dict)


@dataclass
class Atlas:
    """A measured atlas: its table (columns `COLUMNS`), the run folder of each network, and why others were left
    out.
    """

    folder: Path
    table: pd.DataFrame
    runs: dict[str, Path]
    left_out: dict[str, str]


def read_list(path: Path) -> list[Listed]:
    """Read the list of networks from a TOML file: `[[network]]` tables, and `[defaults]` for all of them.

    Each network has a `model`, and options of `measure` by their names. `$NAME` in `model` and `corpus` is replaced
    by that environment variable. UsageError, with the name of the network, for what cannot be read.
    """
    if not path.is_file():
        raise UsageError(
            "a list of networks in a TOML file",
            f"{path}, which does not exist",
            "check the path",
        )
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    # No TOML, or no UTF-8: both errors are ValueErrors.
    except ValueError as error:
        raise UsageError(
            f"networks as TOML in {path}",
            str(error),
            'write [[network]], then model = "…"',
        ) from None
    for key in content.keys() - {"network", "defaults"}:
        raise UsageError(
            "[[network]] and [defaults]",
            f"{key} in {path}",
            suggest_names(key, ("network", "defaults")),
        )
    networks, defaults = content.get("network", []), content.get("defaults", {})
    if not isinstance(networks, list) or not networks or not isinstance(defaults, dict):
        raise UsageError(
            f"at least one [[network]] in {path}",
            "none",
            'write [[network]], then model = "…"',
        )
    found: dict[str, Listed] = {}
    for number, network in enumerate(networks, start=1):
        listed = _read_network(network, defaults, f"network {number} of {path}")
        if listed.name in found:
            raise UsageError(
                f"names that differ in {path}",
                f"{listed.name!r} twice",
                "give one of them another name",
            )
        found[listed.name] = listed
    return list(found.values())


def _read_network(network: Any, defaults: dict[str, Any], where: str) -> Listed:
    """Make a job of one network of the list. UsageError, naming `where` the entry is, for unknown options or values.

    network    the entry as read from TOML
    defaults   values of all networks
    """
    if not isinstance(network, dict) or not isinstance(network.get("model"), str):
        raise UsageError(
            f"a model in {where}",
            repr(network),
            'write model = "a hub id, a folder, builtin:…"',
        )
    declared = {key: str(network[key]) for key in OWN_KEYS if key in network}
    # As they are written: with the names of variables, not with folders of one machine.
    declared["model"] = network["model"]
    declared["corpus"] = str(network.get("corpus", defaults.get("corpus", "")))
    # What a network says itself replaces the default.
    options = {**defaults, **network}
    for key in OWN_KEYS:
        options.pop(key, None)
    for key in ("model", "corpus"):
        if isinstance(options.get(key), str):
            options[key] = os.path.expandvars(options[key])
    try:
        # As the command line checks its options, so that a list cannot hold what
        # `measure` refuses.
        job = build_settings(Job, options, also=OWN_KEYS)
    except UsageError as error:
        raise UsageError(
            f"{error.expected} in {where}", error.got, error.cure
        ) from None
    return Listed(declared.get("name", job.model), job, declared)


Shown = Callable[[str], AbstractContextManager[Progress]]
"""A function that shows progress next to a title, inside a `with` block."""


def make_atlas(networks: list[Listed], folder: Path, show: Shown) -> Atlas:
    """Measure each network and write `atlas.csv` and `atlas.json`.

    Networks that were finished earlier are not repeated.

    folder  the run folders are in its `runs/`, named after model, corpus and identity
    show    is called with the title of each network, and shows its progress

    A network that cannot be loaded or measured is left out, and the atlas says why. OutputError for a folder that
    cannot be written; MeasureError if no network remains.
    """
    check_output(folder)
    rows: list[dict[str, Any]] = []
    runs: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for number, listed in enumerate(networks, start=1):
        try:
            with show(f"{number} of {len(networks)}, {listed.name}") as progress:
                done = _measure_network(listed, folder / "runs", progress)
                own = list(summarise_run(done, listed))
        # The disk is full or not writable: the networks that follow would fail alike.
        except OutputError:
            raise
        except AnisoscopeError as error:
            # One network that is not on this machine should not cost the others.
            left_out[listed.name] = str(error)
            continue
        runs[listed.name] = done.folder
        rows += own
    if not rows:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise MeasureError(
            "at least one network that can be measured",
            f"none of {len(networks)}",
            reasons,
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    atlas = Atlas(folder, table, runs, left_out)
    if rank_and_world()[0] == 0:
        write_atlas(atlas)
    return atlas


def write_atlas(atlas: Atlas) -> None:
    """Write the table (`atlas.csv`), and the run folder of each network and reasons for missing ones
    (`atlas.json`).
    """
    text = format_csv(atlas.table)
    write_atomic(
        atlas.folder / "atlas.csv",
        lambda temporary: temporary.write_text(text, encoding="utf-8"),
    )
    # Relative, so that the atlas can be moved.
    runs = {}
    for name, path in atlas.runs.items():
        runs[name] = str(path.relative_to(atlas.folder))
    write_json(atlas.folder / "atlas.json", {"runs": runs, "left_out": atlas.left_out})


def format_csv(table: pd.DataFrame) -> str:
    """Write the table as CSV with six digits a number: enough for every interval, and with small diffs."""
    # The same line ends on every system, so that tables can be compared byte by byte.
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def read_csv(path: Path) -> pd.DataFrame:
    """Read the table of a written atlas. OutputError if the file is missing or lacks columns."""
    if not path.is_file():
        raise OutputError(
            "the table of an atlas",
            f"{path}, which does not exist",
            "write it: anisoscope atlas LIST",
        )
    table = pd.read_csv(path, keep_default_na=True)
    if missing := [name for name in COLUMNS if name not in table]:
        raise OutputError(
            "the table of an atlas",
            f"{path} without its columns {', '.join(missing[:3])}",
            "write it again: anisoscope atlas LIST",
        )
    return table[list(COLUMNS)]


def _measure_network(listed: Listed, root: Path, progress: Progress) -> RunFolder:
    """Measure a network, or return its finished run. UsageError for an unset variable or a series of checkpoints."""
    job = listed.job
    for key, value in (("model", job.model), ("corpus", job.corpus)):
        # `expandvars` leaves the name of an unset variable as it is.
        if "$" in value:
            variable = value[value.index("$") :].split("/")[0]
            raise UsageError(
                f"the environment variable {variable}, which {key} names",
                "no such variable",
                f"set it: {value}",
            )
    if is_series(job.model):
        raise UsageError(
            "one network",
            f"the series {job.model}",
            "measure it with anisoscope measure",
        )
    return run(job, root=root, resume=True, progress=progress)


def summarise_run(done: RunFolder, listed: Listed) -> Iterator[dict[str, Any]]:
    """Yield a row of the atlas, as a dict by column, for each measured stack (encoder, decoder) of a finished run.

    MeasureError if it has no hidden states, or not the stack that the list of networks names.
    """
    records, manifest = done.records, done.manifest
    replicates = read_replicates(done.folder, len(records))
    found = judge_stacks(records)
    stacks = [str(depth.rows["stack"].iloc[0]) for depth in found]
    # Without a stack in the list every measured stack gets a row.
    wanted = listed.declared.get("stack")
    if wanted is not None and wanted not in stacks:
        raise MeasureError(
            f"the stack {wanted!r}",
            f"{' and '.join(stacks) or 'none'}",
            "name another stack, or leave stack out",
        )
    if not found:
        raise MeasureError(
            "the anisotropy A of hidden states",
            "none in this run",
            "add hidden to panel",
        )
    for stack, depth in zip(stacks, found, strict=True):
        if wanted in (None, stack):
            row = {"network": listed.name, "model": listed.declared["model"]}
            row["corpus"] = listed.declared["corpus"] or manifest["settings"]["corpus"]
            row |= {
                "modality": _find_modality(listed, manifest),
                "parameters": manifest["parameters"],
            }
            row |= {
                "family": listed.declared.get("family", manifest["architecture"]),
                "stack": stack,
            }
            yield (
                row
                | _summarise_depth(depth)
                | _summarise_attention(records, replicates, stack)
            )


def _find_modality(listed: Listed, manifest: dict[str, Any]) -> str:
    """Return what a network reads (text, speech, image): from the list, from the named models, or from the
    manifest.
    """
    if "modality" in listed.declared:
        return listed.declared["modality"]
    named = list_entries_of("models").get(listed.job.model)
    known = getattr(named, "modality", None)
    if known is None:
        # The list may give the hub's id of a model that has a short name.
        for row in named_models().values():
            if row.hub_id == hub_id(listed.job.model):
                known = row.modality
                break
    word = manifest["corpus"].get("words", {}).get("position", "token")
    return str(known or MODALITIES.get(word, word))


def _summarise_depth(depth: Depth) -> dict[str, Any]:
    """Return the columns of an atlas row on hidden states, for one stack.

    They are the number of `layers`; A (anisotropy) with its interval at the `weakest`, `strongest` and `last` layer and
    after the final norm (`final`); and for the strongest one counts, `q95`, `verdict`, A after centring (`centred`),
    the share of the largest dimension (`dimension_share`), and the `cause` in words.
    """
    # The norm after the last block is no layer: it has columns of its own.
    blocks = depth.rows[depth.rows["site"].eq("hidden")]
    blocks = blocks if len(blocks) else depth.rows
    final = depth.rows[depth.rows["site"].eq("final")]
    places: dict[str, Any] = {
        "weakest": blocks["value"].argmin(),
        "strongest": blocks["value"].argmax(),
    }
    places["last"] = len(blocks) - 1
    row: dict[str, Any] = {"layers": int(blocks["layer"].max())}
    for name, place in places.items():
        (there,) = iter_rows(blocks.iloc[[int(place)]])
        row |= {f"{name}_layer": int(there.layer)} | _add_ends(name, there)
    row |= _add_ends("final", next(iter(iter_rows(final)), None))
    (top,) = iter_rows(blocks.iloc[[int(places["strongest"])]])
    row |= {
        "n_units": top.n_units,
        "n_vectors": top.n_vectors,
        "q95": top.q95,
        "verdict": top.verdict,
    }
    # There is a record for each dimension, and none of the width itself.
    is_contribution = (
        depth.records["metric"].eq("mean_cosine.contribution")
        & depth.records["site"].eq(top.site)
        & depth.records["layer"].eq(top.layer)
    )
    row["dimensions"] = int(is_contribution.fillna(False).sum()) or None
    centred = depth.at(top, "calibrated.centred")
    share = None
    # The share of an A that may be zero says nothing.
    if top.verdict == "anisotropic":
        share = depth.at(top, "mean_cosine.top_share", "1")
    row |= _add_ends("centred", centred) | _add_ends("dimension_share", share)
    row["cause"] = _name_cause(depth, top, centred)
    return row


def _name_cause(depth: Depth, top: Any, centred: Any) -> str:
    """Name what carries A (anisotropy) in its highest layer: a few dimensions, the mean vector, or more than the mean.

    Empty if A is not anisotropic there, or its cause is not known.

    top       the record of A in that layer
    centred   the record of A after centring there, or None
    """
    if top.verdict != "anisotropic":
        return ""
    parts = []
    # The smallest number of dimensions that carry half of A, if any does.
    for k in FEW:
        share = depth.at(top, "mean_cosine.top_share", str(k))
        if share is not None and has_interval(share) and share.low >= HALF:
            parts.append(count_noun(k, "dimension"))
            break
    if centred is not None and has_interval(centred):
        after = judge_isotropy(centred.low, centred.high, top.q95)
        words = {"isotropic": "the mean", "anisotropic": "more than the mean"}
        # An undecided interval names no cause.
        if after in words:
            parts.append(words[after])
    return ", ".join(parts)


def _summarise_attention(
    records: pd.DataFrame, replicates: Any, stack: str
) -> dict[str, Any]:
    """Return the columns of an atlas row on self-attention: `heads`, `sink_heads`, mean normalised `entropy` with
    interval.

    None values if attention was not measured.

    replicates   each record's value with one group of units left out [record, group], or None
    """
    counts = []
    for (of_stack, kind, _), found in count_heads(records).items():
        if (of_stack, kind) == (stack, "self"):
            counts.append(found)
    rows = attention_heads(records)
    rows = rows[
        rows["metric"].eq("attention.entropy_normalised")
        & rows["stack"].eq(stack)
        & rows["kind"].eq("self")
    ]
    if not counts or not len(rows):
        return {"heads": None, "sink_heads": None} | _add_ends("entropy", None)
    # Rows keep their number in the records, by which replicates are found.
    left_out = None if replicates is None else replicates[rows.index.to_numpy()]
    # All heads as those of one layer, so that they become one mean with one interval.
    means, _ = average_heads(rows.assign(layer=0), left_out)
    total = {
        "heads": sum(found["heads"] for found in counts),
        "sink_heads": sum(found["sink"] for found in counts),
    }
    return total | _add_ends("entropy", next(iter(iter_rows(means)), None))


def _add_ends(name: str, row: Any) -> dict[str, float | None]:
    """Return {name: value, name_low: …, name_high: …} of a record; None values if there is no record."""
    if row is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: row.value, f"{name}_low": row.low, f"{name}_high": row.high}
