"""Compare several runs with the first: differences with intervals, sentences about them, and cautions.

Whatever else could explain a difference (another corpus, tokenizer, dtype, setting, version of the code) is
reported.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.errors import UsageError, suggest_names
from anisoscope.runs.differences import (
    KEYS,
    OF_DIFFERENCES,
    Condition,
    Difference,
    KeptRun,
    are_paired,
    compare_runs,
    explain_pairing,
    find_metric,
    parse_condition,
    select_rows,
    tabulate_differences,
    with_own_names,
)
from anisoscope.runs.finding import Finding
from anisoscope.runs.short_tables import A, intervals_apart
from anisoscope.store import select
from anisoscope.wording import (
    count_noun,
    describe_layers,
    format_short,
    format_signed_interval,
    join_words,
    name_layer,
)

MOST_COMPONENTS = 6
"""Sentences on more dimensions or classes than this would bury the others: none is written."""
SETTINGS_TO_TELL = {
    "flatten": "maps are flattened otherwise",
    "at": "another token stands for a sequence",
    "seed": "other vectors were sampled (--seed)",
    "sample": "samples of other sizes (--sample)",
}
"""Settings of a measurement that change what a value means or how sure it is, and the words of their cautions."""


@dataclass(frozen=True)
class ComparedRuns:
    """One metric of several runs, each compared with the first.

    metric       its name in the records
    runs         the compared runs; the first is the reference
    tokens       token policy (which tokens count); None: all
    heads        whether single heads were compared
    differences  differences of each run but the first, in the order of `runs`
    notes        cautions, in sentences
    findings     what the intervals of the differences support, in sentences
    components   components that were chosen (classes, dimensions); empty: all
    """

    metric: str
    runs: tuple[KeptRun, ...]
    tokens: str | None
    heads: bool
    differences: tuple[tuple[Difference, ...], ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    components: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return the names of the runs; the first is the reference that the others are compared with."""
        return [run.name for run in self.runs]

    @property
    def values(self) -> pd.DataFrame:
        """Return the metric's records in every run (column `run`), also of layers that have no counterpart."""
        parts = []
        for run in self.runs:
            rows = select_rows(run, self.metric, heads=self.heads, tokens=self.tokens)
            parts.append(rows.assign(run=run.name))
        values = pd.concat(parts, ignore_index=True)
        if self.components:
            values = values[values["component"].isin(self.components)]
        return values

    @property
    def table(self) -> pd.DataFrame:
        """Return one row per difference: its place, both values with their intervals, and `second` minus `first`."""
        parts = []
        for run, differences in zip(self.runs[1:], self.differences, strict=True):
            parts.append(
                tabulate_differences(differences).assign(
                    run=run.name, against=self.names[0]
                )
            )
        # If no run shares a layer with the first, one empty table still has the columns.
        rows = [part for part in parts if len(part)] or parts[:1]
        return pd.concat(rows, ignore_index=True)[
            ["run", "against", *KEYS, *OF_DIFFERENCES]
        ]

    def across(self, metric: str) -> pd.DataFrame:
        """Compare each layer of the first run with each layer of the others by a metric of two layers (`cka`,
        `procrustes`).
        """
        from anisoscope.runs.across import compare_layers  # loads torch

        return compare_layers(self.runs, metric)

    def of_components(self, chosen: Sequence[str]) -> "ComparedRuns":
        """Return the comparison limited to some components (classes, dimensions). UsageError for unknown ones."""
        components: set[str] = set()
        for own in self.differences:
            components.update(str(one.where["component"]) for one in own)
        known = sorted(components)
        for name in chosen:
            if name not in known:
                raise UsageError(
                    f"a component of {self.metric}",
                    repr(name),
                    suggest_names(name, known),
                )
        kept = []
        findings: list[Finding] = []
        for other, own in zip(self.runs[1:], self.differences, strict=True):
            of_chosen = [one for one in own if str(one.where["component"]) in chosen]
            kept.append(tuple(of_chosen))
            # Sentences on all components may have been too many to write; those on a few
            # are not.
            findings += differs(self.runs[0], other, of_chosen, self.metric)
        return replace(
            self,
            differences=tuple(kept),
            findings=tuple(findings),
            components=tuple(chosen),
        )

    def judge(self, text: str) -> list[tuple[str, list[Difference]]]:
        """Return, by run, the differences for which a condition as `A.last > +.02` holds.

        Empty if it holds in none. The condition may name another metric than this comparison's. UsageError for a
        condition that cannot be parsed, MeasureError if the runs have no values to judge it by.
        """
        condition = parse_condition(text)
        metric = find_metric(self.runs[0], condition.metric)
        found = []
        for run, differences in zip(self.runs[1:], self.differences, strict=True):
            own: Sequence[Difference] = differences
            # Only another metric needs another comparison.
            if metric != self.metric:
                own = compare_runs(
                    self.runs[0], run, metric, heads=self.heads, tokens=self.tokens
                )
            met, beyond = condition.is_met(own)
            if met:
                found.append((run.name, beyond))
        return found


def compare(
    runs: Sequence[KeptRun],
    metric: str = A,
    *,
    tokens: str | None = "all",
    heads: bool = False,
) -> ComparedRuns:
    """Compare a metric of each run with the first run; `runs.differences.compare_runs` says how."""
    runs = with_own_names(runs)
    first = runs[0]
    name = find_metric(first, metric)
    differences = []
    findings: list[Finding] = []
    # {caution: names of the runs to which it applies}: of several runs most cautions are the same.
    cautions: dict[str, list[str]] = {}
    for other in runs[1:]:
        own = compare_runs(first, other, metric, heads=heads, tokens=tokens)
        differences.append(tuple(own))
        for caution in list_cautions(first, other, own):
            cautions.setdefault(caution, []).append(other.name)
        if own and all(np.isnan(one.low) for one in own):
            # No difference has an interval (old runs, too few units): compare the intervals of the values instead.
            findings += _tell_gaps(first, other, name, tokens)
        else:
            findings += differs(first, other, own, name)
    notes = []
    for text, names in cautions.items():
        notes.append(f"{join_words(names)} against {first.name}: {text}")
    return ComparedRuns(
        name,
        tuple(runs),
        tokens,
        heads,
        tuple(differences),
        tuple(notes),
        tuple(findings),
    )


def list_cautions(
    first: KeptRun, second: KeptRun, differences: Sequence[Difference] = ()
) -> list[str]:
    """List, a sentence each, what else could explain a difference between two runs; first how they are paired."""
    notes = [explain_pairing(first, second)]
    ours = _get_corpus(first)
    theirs = _get_corpus(second)
    # From the coarsest cause to the finest: another corpus makes its limits and splits
    # irrelevant.
    same_name = ours.get("name") == theirs.get("name")
    same_corpus = same_name and ours.get("fingerprint") == theirs.get("fingerprint")
    if not same_name:
        notes.append(
            f"Another corpus ({_write_both(first, second, ours.get('name'), theirs.get('name'))})."
        )
    elif not same_corpus:
        notes.append(f"Not the same part or version of the corpus {ours.get('name')}.")
    else:
        for name, words in (
            ("limit", "--limit"),
            ("split", "--split"),
            ("n_units", "numbers of units"),
        ):
            if ours.get(name) != theirs.get(name):
                notes.append(
                    f"Other {words} ({_write_both(first, second, ours.get(name), theirs.get(name))})."
                )
    notes += _warn_of_tokens(first, second, same_corpus)
    dtype = first.manifest.get("dtype")
    other_dtype = second.manifest.get("dtype")
    if dtype != other_dtype:
        notes.append(
            f"Another dtype ({_write_both(first, second, dtype, other_dtype)})."
        )
    notes += _warn_of_settings(first, second)
    notes += _warn_of_layers(first, second, differences)
    return notes


def _get_corpus(run: KeptRun) -> Mapping[str, Any]:
    """Return the manifest's entry on the corpus; old manifests hold only its name."""
    found = run.manifest.get("corpus")
    return found if isinstance(found, Mapping) else {"name": found}


def _write_both(first: KeptRun, second: KeptRun, ours: Any, theirs: Any) -> str:
    """Write what two runs have each, for a caution: `NAME: value; NAME: value`.

    ours, theirs   the value of the first and of the second run
    """
    return f"{first.name}: {_write_value(ours)}; {second.name}: {_write_value(theirs)}"


def _write_value(value: Any) -> str:
    """Write a value as text: `none` for None, thousands separated by commas."""
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _warn_of_tokens(
    first: KeptRun, second: KeptRun, same_corpus: bool
) -> Iterator[str]:
    """Yield a sentence if the same text was split into other tokens or windows in the two runs, and why.

    same_corpus   whether both runs read the same corpus; if not, nothing is yielded
    """
    length = _get_corpus(first).get("max_length")
    other_length = _get_corpus(second).get("max_length")
    # Only texts are cut into windows.
    is_text = length is not None
    if not same_corpus or not is_text or not _have_other_tokens(first, second):
        return
    reasons = []
    # A manifest of another version may lack it.
    if other_length is not None and length != other_length:
        reasons.append(f"windows of {length:,} and {other_length:,} tokens")
    settings = first.manifest.get("settings", {})
    other_settings = second.manifest.get("settings", {})
    for name in ("documents", "sequences", "batch_tokens"):
        value = settings.get(name)
        other_value = other_settings.get(name)
        if value != other_value:
            option = name.replace("_", "-")
            reasons.append(
                f"--{option} {_write_value(value)} and {_write_value(other_value)}"
            )
    if not reasons:
        # Nothing that the user chose differs: only the tokenizer is left.
        reasons = ["another tokenizer"]
    yield f"The same text as other tokens ({join_words(reasons)})."


def _have_other_tokens(first: KeptRun, second: KeptRun) -> bool:
    """Return whether two runs on one text read other tokens or windows, as far as their manifests say."""
    plan, other_plan = first.manifest.get("plan"), second.manifest.get("plan")
    if plan is None or other_plan is None or plan == other_plan:
        return False
    tokens, other_tokens = (
        first.manifest.get("tokens_hash"),
        second.manifest.get("tokens_hash"),
    )
    # Plans may differ although tokens do not: in the stack that reads them, or in padding.
    return tokens is None or tokens != other_tokens


def _warn_of_settings(first: KeptRun, second: KeptRun) -> Iterator[str]:
    """Say which settings differ between the runs, whether one is a shard, and whether the code differs."""
    ours = first.manifest.get("settings", {}).get("settings", {})
    theirs = second.manifest.get("settings", {}).get("settings", {})
    # A setting that an old run does not name is not known to differ.
    for name, words in SETTINGS_TO_TELL.items():
        if name in ours and name in theirs and ours[name] != theirs[name]:
            yield f"{words[0].upper()}{words[1:]} ({_write_both(first, second, ours[name], theirs[name])})."
    for run in (first, second):
        part, parts = run.manifest.get("settings", {}).get("shard") or (0, 1)
        if parts > 1:
            yield f"{run.name} is shard {part + 1} of {parts}; merge the shards first."
    yield from _warn_of_code(first, second)


def _warn_of_code(first: KeptRun, second: KeptRun) -> Iterator[str]:
    """Say whether the runs were measured by other versions, or by other code of the same version."""
    code = first.manifest.get("code") or {}
    other_code = second.manifest.get("code") or {}
    version, other_version = code.get("version"), other_code.get("version")
    sources, other_sources = code.get("sources"), other_code.get("sources")
    if version and other_version and version != other_version:
        yield f"Measured by other versions ({_write_both(first, second, version, other_version)})."
    elif sources and other_sources and sources != other_sources:
        yield "Measured by other code of the same version; if that matters, measure both again."


def _warn_of_layers(
    first: KeptRun, second: KeptRun, differences: Sequence[Difference]
) -> Iterator[str]:
    """Say if layers were matched by depth, if stacks (encoder, decoder) of different names were matched, or if no
    layer matches.
    """
    if not differences:
        yield "No layer in common."
        return
    yield from _warn_of_depth(differences)
    stacks = list(first.records["stack"].dropna().unique())
    other_stacks = list(second.records["stack"].dropna().unique())
    # With one stack each, they are compared whatever their names; of several, only those of one name are.
    if len(stacks) == len(other_stacks) == 1 and stacks != other_stacks:
        yield f"Stacks of other kinds ({_write_both(first, second, stacks[0], other_stacks[0])})."


def _warn_of_depth(differences: Sequence[Difference]) -> Iterator[str]:
    """Say if a layer was compared with one of another number, as in models of different depths."""
    # `layer_other` is missing if what was compared belongs to no layer.
    matched = [one for one in differences if not pd.isna(one.layer_other)]
    # In equally deep models every layer meets its own number, and nothing need be
    # explained.
    if all(one.layer_other == one.where["layer"] for one in matched):
        return
    layers = [one.where["layer"] for one in differences]
    deepest = max(int(layer) for layer in layers if not pd.isna(layer))
    deepest_other = max(int(one.layer_other) for one in matched)
    yield f"Layers are matched by relative depth ({deepest} and {deepest_other} layers)."


def differs(
    first: KeptRun, second: KeptRun, differences: Sequence[Difference], metric: str
) -> Iterator[Finding]:
    """Say in which layers a second run differs from the first, and where most, one sentence for each stack (encoder or
    decoder).
    """
    beginning = f"{second.name} against {first.name}"
    if metric != A:
        beginning += f" in {metric}"
    if not differences:
        yield Finding(
            "differs", f"{beginning}: no verdict, as there is no layer in common."
        )
        return
    groups = _group_by_stack(differences)
    has_stacks = len({(stack, kind) for stack, kind, _ in groups}) > 1
    # Differences without components count as one.
    n_components = len({component for _, _, component in groups})
    if n_components > MOST_COMPONENTS:
        return
    paired = ", paired" if are_paired(first, second) else ""
    for (stack, kind, component), own in groups.items():
        subject = beginning
        # The stack and the component are named only if there are several.
        if has_stacks:
            subject = f"{_name_stack(stack, kind)}: {subject}"
        if n_components > 1:
            subject += f" ({component})"
        yield _tell_difference(subject, own, metric, paired)


def _name_stack(stack: Any, kind: Any) -> str:
    """Return the beginning of a sentence on one stack: `Encoder`, `Decoder, cross-attention`."""
    name = str(stack).capitalize()
    if kind == "cross":
        name += ", cross-attention"
    return name


def _group_by_stack(
    differences: Sequence[Difference],
) -> dict[tuple[Any, ...], list[Difference]]:
    """Return {(stack, kind of attention, component): differences}, with None for what a difference lacks."""
    groups: dict[tuple[Any, ...], list[Difference]] = {}
    for one in differences:
        place = []
        for name in ("stack", "kind", "component"):
            value = one.where[name]
            # Missing values of pandas are not equal to themselves, so that each would be
            # a group of its own.
            place.append(None if pd.isna(value) else value)
        groups.setdefault(tuple(place), []).append(one)
    return groups


def _tell_difference(
    beginning: str, differences: Sequence[Difference], metric: str, paired: str
) -> Finding:
    """Return the sentence on one stack: in which layers or heads the interval of the difference excludes zero.

    beginning   the words that begin the sentence
    paired      how the runs were paired, in words
    """
    words = ("higher", "lower")
    if metric == A:
        words = ("more anisotropic", "less anisotropic")
    parts = []
    numbers: list[dict[str, Any]] = []
    for word, own in zip(words, _sort_by_sign(differences), strict=True):
        if not own:
            continue
        top = max(own, key=lambda one: abs(one.value))
        numbers.append(_to_plain_dict(top))
        parts.append(f"{word} {_describe_clear(own, top, differences, paired)}")
    # A difference without an interval is unclear too.
    unclear = [one for one in differences if not _is_clear(one)]
    if unclear:
        parts.append(
            f"no clear difference {_describe_unclear(unclear, differences, alone=not parts)}"
        )
    return Finding("differs", f"{beginning}: {'; '.join(parts)}.", tuple(numbers))


def _sort_by_sign(
    differences: Sequence[Difference],
) -> tuple[list[Difference], list[Difference]]:
    """Return the differences whose interval lies above zero, and those whose interval lies below it."""
    higher = [one for one in differences if one.low > 0]
    lower = [one for one in differences if one.high < 0]
    return higher, lower


def _is_clear(one: Difference) -> bool:
    """Return whether the interval of a difference excludes zero; not if it has none: comparing with NaN is False."""
    return one.low > 0 or one.high < 0


def _describe_clear(
    own: Sequence[Difference], top: Difference, every: Sequence[Difference], paired: str
) -> str:
    """Return a phrase: where differences of one sign are clear, and the values where the largest of them is.

    own      the clear differences of that sign
    top      the largest of them
    every    all differences of the stack, whose names of layers the phrase uses
    paired   how the runs were paired, in words
    """
    most = ""
    if _are_of_heads(every):
        where = f"in {count_noun(len(own), 'head')} of {len(every)}"
        most = f", most in head {top.where['head']} of layer {top.where['layer']}"
    else:
        where = _describe_places(own, every)
        if len(own) > 1:
            most = f", most at {_place_name(top)}"
    by = f"{format_signed_interval(top.value, top.low, top.high)}{paired}"
    values = f"{format_short(top.second)} against {format_short(top.first)}"
    return f"{where}{most} ({values}: {by})"


def _describe_unclear(
    unclear: Sequence[Difference], every: Sequence[Difference], *, alone: bool
) -> str:
    """Return a phrase for the layers or heads whose difference is unclear: `in any layer`, `at layers 1–3`.

    unclear   their differences
    every     all differences of the stack
    alone     whether no difference of the stack is clear
    """
    of_heads = _are_of_heads(every)
    if alone:
        return "in any head" if of_heads else "in any layer"
    if of_heads:
        return f"in {count_noun(len(unclear), 'head')}"
    return _describe_places(unclear, every)


def _are_of_heads(differences: Sequence[Difference]) -> bool:
    """Return whether differences are those of single heads, not of whole layers."""
    # A comparison is of heads or of layers, never of both.
    return any(not pd.isna(one.where["head"]) for one in differences)


def _to_plain_dict(one: Difference) -> dict[str, Any]:
    """Return a difference as a plain dict, as a finding keeps it.

    It holds `metric`, `stack`, `layer`, `head`, `site`, `component`, the values `first` and `second`, and their
    difference as `value` with the ends `low` and `high` of its interval.
    """
    found: dict[str, Any] = {}
    for name in ("metric", "stack", "layer", "head", "site", "component"):
        value = one.where[name]
        found[name] = None if pd.isna(value) else value
    found |= {
        "first": one.first,
        "second": one.second,
        "value": one.value,
        "low": one.low,
        "high": one.high,
    }
    for name, value in found.items():
        # Numbers of numpy and pandas cannot be written as JSON.
        if hasattr(value, "item"):
            found[name] = value.item()
    return found


def _describe_places(chosen: Sequence[Difference], every: Sequence[Difference]) -> str:
    """Name the layers of the `chosen` differences in words; `every` holds the differences of all layers."""
    names = [_place_name(one) for one in every]
    # By identity: differences hold NaN, which is not equal to itself.
    numbers_of_chosen = {id(one) for one in chosen}
    places = [i for i, one in enumerate(every) if id(one) in numbers_of_chosen]
    return describe_layers(places, names)


def _place_name(one: Difference) -> str:
    """Name the layer of a difference; `the whole model` if it has none."""
    if pd.isna(one.where["layer"]):
        return "the whole model"
    return name_layer(pd.Series(one.where))


def _tell_gaps(
    first: KeptRun, second: KeptRun, metric: str, tokens: str | None
) -> list[Finding]:
    """Return sentences on layers where the intervals of two runs do not overlap, used if differences have no interval.

    tokens   the token policy (which tokens count)
    """
    pair = []
    for run in (first, second):
        rows = select(run.records, metric=metric, head=None, component=None)
        if tokens is not None:
            rows = select(rows, token_policy=[tokens, None])
        pair.append((run.name, rows))
    if not all(len(rows) for _, rows in pair):
        return []
    return list(intervals_apart(pair[0], pair[1], metric))


def describe_met(condition: str, name: str, beyond: Sequence[Difference]) -> str:
    """Write a line on a condition that a run meets: `A.last > +.02 is met by ‘b’: +.034 [+.030, +.038] at layer 4`.

    name     the run
    beyond   the differences for which it holds
    """
    top = max(beyond, key=lambda one: abs(one.value))
    more = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
    return (
        f"{condition} is met by ‘{name}’: {format_signed_interval(top.value, top.low, top.high)} "
        f"at {_place_name(top)}{more}"
    )


__all__ = [
    "ComparedRuns",
    "Condition",
    "compare",
    "describe_met",
    "differs",
    "list_cautions",
]
