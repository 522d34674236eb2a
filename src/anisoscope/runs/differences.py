"""Differences between two runs, with an interval: paired by unit if both measured the same units, else unpaired.

A run keeps, with each value, the values with one group of units left out (`replicates.parquet`). If two runs put the
same units into the same groups, the difference is measured with the same group left out on both sides: what the runs
share (hard documents, long ones) cancels. The interval is the delete-a-group jackknife of the difference itself.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import special

from anisoscope.data.plans import hash_parts
from anisoscope.errors import MeasureError, OutputError, UsageError, suggest_names
from anisoscope.renamed import METRICS
from anisoscope.runs.layers_of_heads import average_heads
from anisoscope.store import read_run, write_atomic
from anisoscope.sums.jackknife import FEWEST

# Not NDArray: since numpy 2.5 that is an alias, inside which jaxtyping sees no class.
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

NAME = "replicates.parquet"
SAMPLE = "reservoir.safetensors"
KEYS = [
    "step",
    "seed",
    "stack",
    "kind",
    "layer",
    "head",
    "site",
    "token_policy",
    "metric",
    "component",
]
"""Columns that say which value a row is, within one run."""
PLACE = ["stack", "kind", "site", "token_policy", "metric", "component", "head"]
"""Columns in which two runs must agree; layers are matched apart, since stacks may differ in depth."""


@dataclass(frozen=True)
class Difference:
    """One value in two runs, and the difference: second minus first.

    where       stack, kind, layer, head, site, token policy, metric, component, as in the records of the first run
    layer_other the layer of the second run that was matched to it
    value, low, high   the difference and its 95 % interval; NaN ends if there is none
    paired      whether the same groups of units were left out on both sides
    first_ends, second_ends   the interval of the value in each run by itself
    """

    where: dict[str, Any]
    layer_other: Any
    first: float
    second: float
    value: float
    low: float
    high: float
    paired: bool
    first_ends: tuple[float, float] = (np.nan, np.nan)
    second_ends: tuple[float, float] = (np.nan, np.nan)


@dataclass(frozen=True)
class KeptRun:
    """A run as a comparison needs it: records, replicates, and which units (documents, clips, images) it measured.

    replicates  each record's value with one group of units left out [row, group]; NaN if the group holds none of the
                record's vectors; None if the run kept none
    units       hash of the units and their groups; two runs with the same hash are paired; None if unknown
    manifest    the run's manifest: what was measured, with which settings
    sample      the sampled vectors: a file, or tensors as `Reservoir.tensors` names them; None if the run kept none
    """

    name: str
    records: pd.DataFrame
    replicates: Float[Array, "row group"] | None = None
    units: str | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    sample: Path | Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        records: pd.DataFrame,
        manifest: Mapping[str, Any],
        replicates: Float[Array, "row group"] | None,
        sample: Path | Mapping[str, Any] | None = None,
    ) -> "KeptRun":
        """Make a KeptRun from its parts.

        A shard measured only some of the units, so its number becomes part of `units`.
        """
        units = manifest.get("units")
        shard = manifest.get("settings", {}).get("shard") or [0, 1]
        # The hash is that of the whole corpus, of which a shard read a part.
        if units is not None and shard[1] > 1:
            units = f"{units}, shard {shard[0] + 1}/{shard[1]}"
        return cls(name, records, replicates, units, manifest, sample)

    @property
    def is_paired_by_row(self) -> bool:
        """Return whether the run measured an array of vectors, so that units of two runs are matched by row number."""
        corpus = self.manifest.get("corpus")
        return isinstance(corpus, Mapping) and corpus.get("name") == "vectors"


def identify_units(corpus: Mapping[str, Any], plan: Any, settings: Any) -> str | None:
    """Return a hash of the units and their groups. Runs with the same hash are compared in pairs, whatever the model.

    corpus    the manifest's entry on the corpus
    plan      the batches
    settings  settings of the measurement

    Documents, clips and images are known by the content of the corpus. Blocks of tokens and chosen windows depend on
    the tokenizer, so that the batches must be the same. Vectors and inputs are paired row by row, by their units.
    None if nothing is known.
    """
    # Units meet in pairs only if the same of them are left out together: the number of
    # groups and the seed decide that.
    groups = [settings.groups, settings.spectrum_groups, settings.seed]
    if "fingerprint" in corpus:
        parts = [corpus["fingerprint"], corpus.get("limit"), corpus.get("split")]
        of_tokens = (
            "token" in str(corpus.get("documents", ""))
            or corpus.get("sequences") is not None
        )
        if of_tokens:
            parts.append(getattr(plan, "fingerprint", None))
        return hash_parts([json.dumps([groups, parts], default=str)])
    # Vectors: the unit of each row, as the caller gave it.
    unit = getattr(plan, "unit", None)
    if isinstance(unit, np.ndarray):
        return hash_parts(
            [json.dumps(groups), np.ascontiguousarray(unit, dtype=np.int64)]
        )
    # Inputs of the caller are known by their content; a loader's may be others next time.
    if corpus.get("name") == "inputs":
        return hash_parts([json.dumps(groups), str(getattr(plan, "fingerprint", ""))])
    return None


def open_kept_run(folder: Path) -> KeptRun:
    """Read a run folder for a comparison. OutputError if it holds no run."""
    records, manifest = read_run(folder)
    replicates = read_replicates(folder, len(records))
    return KeptRun.of(
        folder.name or str(folder), records, manifest, replicates, find_sample(folder)
    )


def find_sample(folder: Path) -> Path | None:
    """Return the file of the vectors that a run sampled; None if it kept none."""
    path = folder / SAMPLE
    return path if path.is_file() else None


def with_own_names(runs: Sequence[KeptRun]) -> list[KeptRun]:
    """Return the runs with distinct names: a repeated name gets its number appended, as `run (2)`."""
    taken: set[str] = set()
    found = []
    for number, run in enumerate(runs, start=1):
        name = f"{run.name} ({number})" if run.name in taken else run.name
        taken.add(name)
        found.append(replace(run, name=name))
    return found


def write_replicates(
    path: Path, rows: NDArray[np.int64], left_out: Float[Array, "row group"]
) -> None:
    """Write replicates as Parquet.

    rows      number of the record that each row belongs to
    left_out  its value with each group of units left out [row, group]
    """
    columns: dict[str, Any] = {"row": rows}
    for group in range(left_out.shape[1]):
        columns[f"group_{group}"] = left_out[:, group]
    frame = pd.DataFrame(columns)
    write_atomic(
        path,
        lambda temporary: frame.to_parquet(temporary, index=False, compression="zstd"),
    )


def read_replicates(folder: Path, rows: int) -> Float[Array, "row group"] | None:
    """Read the replicates of a run folder [row, group]: every record's value with one group of units (documents,
    clips, images) left out.

    rows   how many records the run has; those without replicates get NaN

    None if the run kept none. OutputError if the file is damaged.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        frame = pd.read_parquet(path)
        # Records without replicates, such as maxima, have no row in the file.
        found = np.full((rows, frame.shape[1] - 1), np.nan)
        found[frame["row"].to_numpy()] = frame.drop(columns="row").to_numpy(
            dtype=np.float64
        )
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise OutputError(
            "the values from which the intervals of a run are computed",
            f"{path} ({error})",
            "measure it again with --overwrite",
        ) from error
    return found


@dataclass(frozen=True)
class _Selection:
    """Records of one metric, their number in the run as column `row`, and replicates (values with one group of units
    left out) to look up by that number.
    """

    rows: pd.DataFrame
    left_out: Array | None


def compare_runs(
    first: KeptRun,
    second: KeptRun,
    metric: str,
    *,
    heads: bool = False,
    tokens: str | None = None,
) -> list[Difference]:
    """Return the differences (second minus first) of one metric at every place (stack, layer, head …) that both runs
    have.

    metric   name of a metric, or of one of its values, as `attention.entropy`
    heads    head by head; otherwise values of whole layers, for metrics of heads the mean over the heads
    tokens   token policy (which tokens count), for metrics that have one; None: all policies

    Stacks (encoder, decoder) of the same name are compared; if each run has only one stack, these two, whatever their
    names. Layers are matched by number if both stacks are equally deep or only some layers were measured, otherwise
    by relative depth. UsageError, with similar names, if one of the runs lacks the metric or the token policy.
    """
    ours = _select(first, metric, heads, tokens)
    theirs = _select(second, metric, heads, tokens)
    paired = are_paired(first, second)
    # Layers 3 and 9 of a model of 12 are not the first and last of two: if only some
    # were measured, relative depths mean nothing.
    by_number = bool(_get_chosen_layers(first) or _get_chosen_layers(second))
    found: list[Difference] = []
    pairs = list(_match(ours.rows, theirs.rows, by_number))
    if heads:
        # Layer by layer, as in the records: places are matched head by head.
        pairs.sort(key=lambda pair: pair[0].row)
    for row, other in pairs:
        found.append(_subtract(ours, theirs, row, other, paired))
    return found


def explain_pairing(first: KeptRun, second: KeptRun) -> str:
    """Say in one sentence whether two runs are compared in pairs of units, and if not, why not."""
    if are_paired(first, second):
        if first.is_paired_by_row:
            return "Paired by row: the vectors of both runs are taken to be of the same units, in the same order."
        return "Paired by unit: both runs measured the same units."
    if first.replicates is None or second.replicates is None:
        names = [run.name for run in (first, second) if run.replicates is None]
        return f"Not paired: {' and '.join(names)} kept no replicates, so differences have no interval."
    if first.units is None or second.units is None:
        return "Not paired: it is not known which units the runs measured."
    return "Not paired: the runs measured different units; intervals are those of independent samples."


def are_paired(first: KeptRun, second: KeptRun) -> bool:
    """Return whether both runs kept replicates (values with one group of units left out) and measured the same units in
    the same groups, so that they can be paired.
    """
    if first.replicates is None or second.replicates is None:
        return False
    same_groups = first.replicates.shape[1] == second.replicates.shape[1]
    return same_groups and are_same_units(first, second)


def are_same_units(first: KeptRun, second: KeptRun) -> bool:
    """Return whether both runs are known to have measured the same units (documents, clips, images)."""
    return first.units is not None and first.units == second.units


def _get_chosen_layers(run: KeptRun) -> Any:
    """Return the layers that the run was limited to by its settings; None if it measured all."""
    return run.manifest.get("settings", {}).get("settings", {}).get("layers")


def find_metric(run: KeptRun, name: str) -> str:
    """Return the name that a metric has in the records. Accepts that name, `A`, and names from the literature.

    UsageError, with suggestions, if the run has no such metric.
    """
    known = set(run.records["metric"].dropna())
    name = SHORT_NAMES.get(name, METRICS.get(name, name))
    if name in known:
        return name
    # Only if the name is not in the records, so that most comparisons start fast.
    from anisoscope.metrics import KNOWN_AS  # loads torch

    meant = KNOWN_AS.get(re.sub(r"[\s-]+", "_", name.strip().lower()), name)
    if meant in known:
        return meant
    # The name of a whole metric, which has several values.
    values = sorted(value for value in known if value.startswith(f"{meant}."))
    if values:
        raise UsageError(
            f"one value of {meant}", repr(name), f"name {' or '.join(values)}"
        )
    of_the_field = [word for word, target in KNOWN_AS.items() if target in known]
    raise UsageError(
        f"a metric of {run.name}",
        repr(name),
        suggest_names(name, [*known, *SHORT_NAMES, *of_the_field]),
    )


def select_rows(
    run: KeptRun, metric: str, *, heads: bool = False, tokens: str | None = None
) -> pd.DataFrame:
    """Return a metric's records as `compare_runs` compares them: of single heads, of whole layers, or means over
    heads.
    """
    return _select(run, metric, heads, tokens).rows.drop(columns="row")


def _select(run: KeptRun, name: str, heads: bool, tokens: str | None) -> _Selection:
    """Select the records of a metric, of its heads (`heads`) or of whole layers; metrics of heads only are averaged.

    UsageError for a series of checkpoints, an unknown token policy (which tokens count), or heads of a metric that has
    none.

    name   the metric's name in the records
    """
    metric = find_metric(run, name)
    # The row number is where the replicates of a record are.
    records = run.records.reset_index(drop=True)
    numbered = records.assign(row=np.arange(len(records)))
    rows = numbered[numbered["metric"].eq(metric).fillna(False)]
    if rows["step"].nunique() > 1 or rows["seed"].nunique() > 1:
        raise UsageError(
            "runs of one model each",
            f"the series {run.name}",
            "name the folders of its checkpoints",
        )
    # Metrics of attention have no policy: for them the option is ignored.
    if tokens is not None and rows["token_policy"].notna().any():
        kept = (
            rows["token_policy"].eq(tokens).fillna(False) | rows["token_policy"].isna()
        )
        if not kept.any():
            policies = " or ".join(sorted(rows["token_policy"].dropna().unique()))
            raise UsageError(
                f"a token policy of {metric} in {run.name}",
                repr(tokens),
                f"use {policies}",
            )
        rows = rows[kept]
    of_heads = rows["head"].notna()
    if heads:
        if not of_heads.any():
            raise UsageError(
                "a metric of single attention heads with --heads",
                f"{metric}, which is of whole layers",
                "leave --heads out",
            )
        rows = rows[of_heads]
    elif of_heads.all():
        left_out = None
        if run.replicates is not None:
            left_out = run.replicates[rows["row"].to_numpy()]
        # Means have rows and replicates of their own, which are numbered from 0.
        means, left_out = average_heads(rows, left_out)
        return _Selection(means.assign(row=np.arange(len(means))), left_out)
    else:
        rows = rows[~of_heads]
    return _Selection(rows, run.replicates)


def _match(
    ours: pd.DataFrame, theirs: pd.DataFrame, by_number: bool
) -> Iterator[tuple[Any, Any]]:
    """Yield (row of the first run, row of the second) for values of the same stack, layer, head and so on.

    ours, theirs   records of one metric
    by_number      match layers by number even if the stacks differ in depth; otherwise by relative depth
    """
    stacks, other_stacks = (
        ours["stack"].dropna().unique(),
        theirs["stack"].dropna().unique(),
    )
    # An encoder may be compared with a decoder: its stack gets the other's name.
    if len(stacks) == len(other_stacks) == 1:
        theirs = theirs.assign(stack=stacks[0])
    other_places = {}
    for place, part in theirs.groupby(_join_places(theirs), sort=False):
        other_places[place] = list(part.itertuples())
    for place, part in ours.groupby(_join_places(ours), sort=False):
        if place in other_places:
            yield from _match_layers(
                list(part.itertuples()), other_places[place], by_number
            )


def _match_layers(
    rows: list[Any], others: list[Any], by_number: bool
) -> Iterator[tuple[Any, Any]]:
    """Yield (row of the first run, row of the second): layers of the same number, or of the nearest relative depth."""
    # Rows here differ in the layer alone: all else is in the place by which they were
    # grouped.
    by_layer = {_read_layer(row): row for row in others}
    deepest, deepest_other = max(map(_read_layer, rows)), max(by_layer)
    # The final norm comes after the last block, whatever number that has.
    is_final = rows[0].site == "final"
    if (deepest == deepest_other or by_number) and not is_final:
        for row in rows:
            if _read_layer(row) in by_layer:
                yield row, by_layer[_read_layer(row)]
        return
    # Both depths are multiplied by deepest · deepest_other: whole numbers, so that layers
    # that are equally near are so exactly.
    depths = [_read_layer(other) * max(deepest, 1) for other in others]
    for row in rows:
        depth = _read_layer(row) * max(deepest_other, 1)
        distances = [abs(other_depth - depth) for other_depth in depths]
        # The first of two that are equally near.
        yield row, others[distances.index(min(distances))]


def _join_places(rows: pd.DataFrame) -> pd.Series:
    """Return for each row one text of the columns in `PLACE` (stack, head, …) without the layer, by which rows are
    matched.

    Missing values count as equal.
    """
    return rows[PLACE].astype("string").fillna("").agg("|".join, axis=1)


def _read_layer(row: Any) -> float:
    """Return the layer's number as float; 0 if the row has none."""
    return 0.0 if pd.isna(row.layer) else float(row.layer)


def _subtract(
    ours: _Selection, theirs: _Selection, row: Any, other: Any, paired: bool
) -> Difference:
    """Return the difference of two matched rows, with an interval if both runs kept replicates.

    ours, theirs   the records of each run, with replicates (values with one group of units left out)
    row, other     the two matched rows
    paired         both runs measured the same units, so that the same groups are left out together
    """
    value = float(other.value) - float(row.value)
    low = high = np.nan
    if ours.left_out is not None and theirs.left_out is not None:
        left_out, others_left_out = ours.left_out[row.row], theirs.left_out[other.row]
        if paired:
            half = half_width_paired(
                float(row.value), float(other.value), left_out, others_left_out
            )
        else:
            half = half_width_unpaired(left_out, others_left_out)
        low, high = value - half, value + half
    where = {name: getattr(row, name) for name in KEYS}
    ends = (float(row.low), float(row.high)), (float(other.low), float(other.high))
    return Difference(
        where,
        other.layer,
        float(row.value),
        float(other.value),
        value,
        low,
        high,
        paired,
        *ends,
    )


def half_width_paired(
    value: float, other_value: float, ours: Array, theirs: Array
) -> float:
    """Return half the width of the 95 % interval of a paired difference; NaN if there are fewer than three groups.

    value, other_value   the value in each run, over all groups
    ours, theirs         the value with one group left out [group], in each run; NaN if the group has no data there

    The same group is left out on both sides, so that what both runs share cancels.
    """
    # A group that holds nothing of this place in either run gives no replicate.
    present = ~(np.isnan(ours) & np.isnan(theirs))
    # A group that holds nothing of a place in one run changes nothing there if it is left out.
    left_out = np.where(np.isnan(theirs), other_value, theirs) - np.where(
        np.isnan(ours), value, ours
    )
    error, groups = _estimate_error(left_out[present])
    if groups < FEWEST:
        return np.nan
    # Student's t at 97.5 %, with one degree of freedom fewer than groups.
    return float(special.stdtrit(groups - 1, 0.975) * error)


def half_width_unpaired(ours: Array, theirs: Array) -> float:
    """Return half the width of the 95 % interval of a difference of independent runs.

    ours, theirs   values with one group of units left out [group], in each run

    Squared errors are added, and the degrees of freedom are Welch's. NaN if a run has fewer than three groups.
    """
    error, groups = _estimate_error(ours[~np.isnan(ours)])
    other_error, other_groups = _estimate_error(theirs[~np.isnan(theirs)])
    if min(groups, other_groups) < FEWEST:
        return np.nan
    variance = error**2 + other_error**2
    # Both runs are the same in all groups; the degrees of freedom would be 0/0.
    if variance == 0:
        return 0.0
    # Welch–Satterthwaite.
    freedom = variance**2 / (
        error**4 / (groups - 1) + other_error**4 / (other_groups - 1)
    )
    return float(special.stdtrit(freedom, 0.975) * np.sqrt(variance))


def _estimate_error(left_out: Array) -> tuple[float, int]:
    """Return (standard error by the delete-a-group jackknife, number of groups), from values with one group left out
    [group].
    """
    groups = len(left_out)
    if groups < FEWEST:
        return np.nan, groups
    squares = np.square(left_out - left_out.mean()).sum()
    return float(np.sqrt((groups - 1) / groups * squares)), groups


def tabulate_differences(differences: Sequence[Difference]) -> pd.DataFrame:
    """Return one row for each difference: its place, the value in both runs, and the difference with its interval."""
    rows = []
    for one in differences:
        numbers = {"layer_other": one.layer_other}
        numbers |= {
            "first": one.first,
            "first_low": one.first_ends[0],
            "first_high": one.first_ends[1],
        }
        numbers |= {
            "second": one.second,
            "second_low": one.second_ends[0],
            "second_high": one.second_ends[1],
        }
        numbers |= {
            "difference": one.value,
            "low": one.low,
            "high": one.high,
            "paired": one.paired,
        }
        rows.append(one.where | numbers)
    return pd.DataFrame(rows, columns=[*KEYS, *OF_DIFFERENCES])


OF_DIFFERENCES = (
    "layer_other",
    "first",
    "first_low",
    "first_high",
    "second",
    "second_low",
    "second_high",
    "difference",
    "low",
    "high",
    "paired",
)
"""Columns of a table of differences, after those that say where a value is."""


@dataclass(frozen=True)
class Condition:
    """A condition under which a comparison fails: `A.last > +.02`, or `attention.entropy.max < -0.1`.

    metric   name in the records (`A` means mean_cosine)
    where    `last`, `first`, `max`, `min`, `mean`, `any`, or the number of a layer
    sign     `>` or `<`
    limit    the number that the difference is compared with
    """

    text: str
    metric: str
    where: str
    sign: str
    limit: float

    def is_met(
        self, differences: Sequence[Difference]
    ) -> tuple[bool, list[Difference]]:
        """Return (whether a difference lies beyond the limit, the differences that do).

        Its whole interval must lie beyond; a difference without an interval is judged by its value. MeasureError if
        there is nothing to judge, so that a comparison that failed is not mistaken for one that passed.
        """
        # First and last are those from input to output, in whatever order the records
        # are.
        ordered = sorted(differences, key=_get_depth)
        defined = [one for one in ordered if not np.isnan(one.value)]
        if not defined:
            came = (
                "no value that is defined in both" if ordered else "no layer in common"
            )
            raise MeasureError(
                f"runs that {self.text!r} can judge",
                came,
                "compare runs of the same stacks and metrics",
            )
        chosen = self._choose(defined)
        beyond = [one for one in chosen if self._is_beyond(one)]
        return bool(beyond), beyond

    def _choose(self, ordered: Sequence[Difference]) -> list[Difference]:
        """Return the differences that the condition is about, which depends on its place.

        They are those of the first or last layer, or of the layer with a number; the most extreme one; or all.

        ordered   all differences, from input to output

        UsageError if no layer has that number.
        """
        if self.where == "any":
            return list(ordered)
        if self.where in ("first", "last"):
            # All differences at that depth, since several stacks may end there.
            end = _get_depth(ordered[0 if self.where == "first" else -1])
            return [one for one in ordered if _get_depth(one) == end]
        if self.where in ("max", "min"):
            pick = max if self.where == "max" else min
            return [pick(ordered, key=lambda one: one.value)]
        return self._choose_layer(ordered)

    def _choose_layer(self, ordered: Sequence[Difference]) -> list[Difference]:
        """Return the differences of the layer whose number the condition names. UsageError if there is none."""
        chosen = [one for one in ordered if _get_layer(one) == int(self.where)]
        if not chosen:
            known = ", ".join(f"{_get_layer(one):g}" for one in ordered)
            raise UsageError(
                f"a layer of both runs in {self.text!r}",
                self.where,
                f"layers are {known}",
            )
        return chosen

    def _is_beyond(self, one: Difference) -> bool:
        """Return whether the whole interval of a difference lies beyond `limit`; its value if it has no interval."""
        if self.sign == ">":
            least = one.value if np.isnan(one.low) else one.low
            return least > self.limit
        largest = one.value if np.isnan(one.high) else one.high
        return largest < self.limit


def _get_depth(one: Difference) -> tuple[float, bool]:
    """Return the sort key of a difference from input to output; the final norm comes after the last block.

    The key is (number of the layer, whether it is the final norm).
    """
    return _get_layer(one), one.where["site"] == "final"


def _get_layer(one: Difference) -> float:
    """Return the layer number of a difference as float; 0 if it has none."""
    layer = one.where["layer"]
    return 0.0 if pd.isna(layer) else float(layer)


SHORT_NAMES = {"A": "mean_cosine"}
PLACES = ("any", "last", "first", "max", "min")


def parse_condition(text: str) -> Condition:
    """Parse `METRIC[.PLACE] > LIMIT` (or `<`). PLACE is a layer's number or one of `PLACES`, by default `any`.

    UsageError if the text has another form.
    """
    # A minus sign as in our own output (U+2212) is read too.
    found = re.fullmatch(r"\s*([\w.]+?)\s*([<>])\s*([+−-]?\d*\.?\d+)\s*", text)
    if not found:
        raise UsageError(
            "a condition METRIC.PLACE > NUMBER",
            repr(text),
            "for example --fail-if 'A.last > +.02'",
        )
    name, sign, number = found.groups()
    # `attention.entropy` ends with a value's name, not with a place.
    metric, _, place = name.rpartition(".")
    if not metric or not (place in PLACES or place.isdigit()):
        metric, place = name, "any"
    return Condition(
        text.strip(),
        SHORT_NAMES.get(metric, metric),
        place,
        sign,
        float(number.replace("−", "-")),
    )
