"""Compare layers of two runs of the same inputs by a metric of pairs (CKA, Procrustes), on the tokens both sampled."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError
from safetensors.torch import load_file

from anisoscope import metrics
from anisoscope.errors import OutputError, UsageError
from anisoscope.measure.tabulate import build_columns
from anisoscope.metrics import Metric
from anisoscope.reads.base import Reading
from anisoscope.reads.pairs import LayerPair
from anisoscope.reads.run_pairs import SampledStack, read_across, read_sampled_stacks
from anisoscope.renamed import SETTINGS
from anisoscope.runs.differences import KeptRun, are_same_units, with_own_names

COLUMNS = (
    "run",
    "against",
    "stack",
    "layer",
    "site",
    "stack_other",
    "layer_other",
    "site_other",
    "metric",
    "value",
    "low",
    "high",
    "n_vectors",
    "n_units",
)
"""Columns of the long table: `layer` is of the first run (`against`), `layer_other` of the other (`run`)."""


def compare_layers(runs: Sequence[KeptRun], name: str) -> pd.DataFrame:
    """Compare each layer of the first run with each layer of every other run; return value and 95 % interval per
    row.

    name  a metric that reads pairs of layers or of runs, or `module:NAME`

    UsageError for another metric, for a run that kept no sample of vectors, and for runs of different tokens.
    """
    metric = find_metric_of_pairs(name)
    first, *others = with_own_names(runs)
    for run in others:
        require_same_tokens(first, run)
    ours = _read_stacks(first)
    parts = []
    for run in others:
        # The runs may have been measured with other --groups: the smaller number serves
        # for both.
        groups = min(settings_of(each)["groups"] for each in (first, run))
        readings = _iter_readings(metric, ours, _read_stacks(run), groups)
        found = _make_table(metric, readings)
        # The same inputs may be sampled at tokens that do not overlap, as in two shards.
        if not len(found):
            came = f"none in {first.name} and {run.name}"
            raise UsageError(
                "tokens that both runs sampled",
                came,
                "measure both with the same --sample and --shard",
            )
        parts.append(found.assign(run=run.name, against=first.name))
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


def _make_table(metric: Metric, readings: Iterable[Reading]) -> pd.DataFrame:
    """Return a table with one row for each value of a metric at each pair of layers."""
    parts = []
    for reading in readings:
        for columns, _ in build_columns(metric, reading, ("",)):
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def find_metric_of_pairs(name: str) -> Metric:
    """Return the metric of that name, if it reads two layers. UsageError for any other."""
    metric = metrics.find_metric_by_name(metrics.resolve_alias(name)[0])
    if not isinstance(metric.reads, LayerPair):
        known = []
        for each in metrics.find_all().values():
            if isinstance(each.reads, LayerPair):
                known.append(each.name)
        known.sort()
        came = f"{metric.name}, of {metric.reads.word}"
        raise UsageError("a metric of two layers", came, f"name {' or '.join(known)}")
    return metric


def require_same_tokens(first: KeptRun, second: KeptRun) -> None:
    """Raise UsageError, with the reason, unless two runs sampled the same tokens in the same way."""
    expected = "two runs of the same tokens"
    ours, theirs = settings_of(first), settings_of(second)
    if ours["seed"] != theirs["seed"]:
        came = f"samples of the seeds {ours['seed']} and {theirs['seed']}"
        raise UsageError(expected, came, "measure both with one --seed")
    # The sample is drawn under the first token policy.
    if ours["tokens"][0] != theirs["tokens"][0]:
        came = f"samples of {ours['tokens'][0]!r} and of {theirs['tokens'][0]!r} tokens"
        raise UsageError(expected, came, "measure both with one --tokens")
    plans = [run.manifest.get("plan") for run in (first, second)]
    # Vectors have no tokens: rows of the same units are taken as the same.
    same_rows = (
        first.is_paired_by_row
        and second.is_paired_by_row
        and are_same_units(first, second)
    )
    if not same_rows and (plans[0] is None or plans[0] != plans[1]):
        # The same documents cut into other tokens need another cure than other
        # documents.
        same_corpus = are_same_units(first, second)
        came = "the same corpus as other tokens" if same_corpus else "other inputs"
        cure = "measure both on one corpus, with one --limit, --max-length and --batch-tokens"
        cure += "; models of different tokenizers have no tokens in common"
        raise UsageError(expected, f"{came} in {first.name} and {second.name}", cure)


def settings_of(run: KeptRun) -> Mapping[str, Any]:
    """Return the settings of a run's measurement; old names are replaced by today's, missing ones by defaults."""
    saved = run.manifest.get("settings", {}).get("settings", {})
    settings: dict[str, Any] = {"groups": 32, "seed": 0, "tokens": ("all",)}
    for name, value in saved.items():
        settings[SETTINGS.get(name, name)] = value
    return settings


def _read_stacks(run: KeptRun) -> dict[str, SampledStack]:
    """Read a run's sampled vectors, by stack (encoder or decoder).

    UsageError if it kept none, OutputError if its file is damaged.
    """
    sample = run.sample
    if isinstance(sample, Path):
        try:
            sample = load_file(sample)
        except (OSError, SafetensorError) as error:
            cure = "measure it again with --overwrite"
            raise OutputError(
                f"the sample of vectors of {run.name}", f"{run.sample} ({error})", cure
            ) from error
    stacks = read_sampled_stacks(sample or {})
    if not any(len(stack.hash) for stack in stacks.values()):
        cure = "measure it into a folder, with the panel hidden or all and --sample above 0"
        raise UsageError(
            "runs that kept a sample of vectors", f"{run.name}, which kept none", cure
        )
    return stacks


def _iter_readings(
    metric: Metric,
    ours: Mapping[str, SampledStack],
    theirs: Mapping[str, SampledStack],
    groups: int,
) -> Iterator[Reading]:
    """Yield what a metric reads of each pair of stacks (encoder, decoder) with the same name.

    ours, theirs   sampled vectors of each run, by stack
    groups         number of groups of units in both runs

    If each run has a single stack, the two are paired whatever their names.
    """
    assert isinstance(metric.reads, LayerPair)
    # An encoder may be compared with a decoder.
    alone = len(ours) == len(theirs) == 1
    for stack, first in ours.items():
        second = next(iter(theirs.values())) if alone else theirs.get(stack)
        if second is not None:
            yield from read_across(metric.reads, first, second, groups)
