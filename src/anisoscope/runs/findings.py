"""Findings: sentences about a run's records, by fixed rules. Each is supported by an interval.

A rule is a function from a `Depth` (A of the layers of one stack), or from all records, to findings. `RULES` is
their order. A is the anisotropy: the mean cosine of all pairs; q95(d) the 95 % quantile of cosines of random
directions. Verdicts of a layer: *isotropic* if the upper end of A is at most q95(d), *anisotropic* if its lower end
lies above it, *undecided* otherwise, and none if A has no interval.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anisoscope.axes import SENTENCES
from anisoscope.runs.attention import attention_findings
from anisoscope.runs.extremes import extreme_findings
from anisoscope.runs.finding import Finding, entry
from anisoscope.store import select
from anisoscope.wording import (
    at_layer,
    count_noun,
    describe_layers,
    format_measured,
    format_short,
    has_interval,
    iter_rows,
    list_layers,
    name_layer,
)

SITES = ("hidden", "final")
Q95 = "mean_cosine.isotropic_q95"
"""What 95 % of the cosines of isotropic directions stay below."""
EXTREME = 0.8
"""From this A on a layer is called extreme."""
HALF, AROUND = 0.5, 0.1
"""A share is about half if its interval holds .5 and stays within .1 of it."""
POINTS = 0.02
"""A change of accuracy is next to nothing if its interval stays within two points."""
CHANCE = 0.5
"""AUC of a direction that says nothing about a class."""
FEW = (1, 3, 10)
"""Numbers of dimensions whose share of A is recorded."""
FEWEST_PAIRS = 400
"""Pairs of vectors from different units for a noise floor: 4 of them lie above the level of 99 %."""


@dataclass(frozen=True)
class Depth:
    """A (anisotropy) of one stack, a row per layer from input to output, and all records of that stack (encoder or
    decoder).

    before   text that begins each sentence about it
    """

    rows: pd.DataFrame
    records: pd.DataFrame
    before: str = ""

    @property
    def top(self) -> Any:
        """Return the row of the highest A (anisotropy)."""
        return _find_top(self.rows)

    def at(self, row: Any, metric: str, component: str | None = None) -> Any:
        """Return the record of another metric at the same layer and site as `row`; None if there is none."""
        here = select(
            self.records,
            metric=metric,
            component=component,
            layer=row.layer,
            site=row.site,
        )
        return next(iter(iter_rows(here)), None)


def findings(
    records: pd.DataFrame, words: Mapping[str, str] | None = None
) -> list[Finding]:
    """Return sentences on classes, hidden states under the first token policy (which tokens count), attention and
    extreme values, in this order.

    A series of checkpoints is described at its last step.

    words  texts of tokens by id, as in the manifest (`tokens`); None: tokens are not quoted
    """
    found: list[Finding] = []
    # A reader of a classifier's run asks for its classes first.
    for rule in RULES_OF_CLASSES:
        found += rule(records)
    for depth in judge_stacks(records):
        for rule_of_stack in RULES:
            found += rule_of_stack(depth)
    for rule in RULES_OF_RUNS:
        found += rule(records)
    return [*found, *attention_findings(records), *extreme_findings(records, words)]


def judge_stacks(records: pd.DataFrame) -> list[Depth]:
    """Return A (anisotropy) of each layer and whether it is anisotropic, one `Depth` per stack.

    If the records have several token policies (rules for which tokens count), those of the first one are used.
    """
    records = select(records, head=None, site=SITES)
    # Layers whose A is undefined (no usable vector) get no verdict, and no row.
    rows = select(records, metric="mean_cosine", component=None)
    rows = rows[rows["value"].notna()]
    if not len(rows):
        return []
    records = select(records, token_policy=[select_lead_policy(rows), None])
    stacks = list(dict.fromkeys(rows["stack"]))
    found = []
    for before, part in _iter_checkpoints(records):
        for stack in stacks:
            own = select(part, stack=stack)
            # A checkpoint may lack a stack that another one has.
            judged = _judge_layers(own)
            if len(judged):
                beginning = (
                    f"{before}{stack.capitalize()}: " if len(stacks) > 1 else before
                )
                found.append(Depth(judged, own, beginning))
    return found


def _judge_layers(records: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of A of one stack from input to output, with the columns `q95` and `verdict`."""
    rows = sort_by_depth(select(records, metric="mean_cosine", component=None))
    rows = rows[rows["value"].notna()]
    place = ["layer", "site"]
    law = select(records, metric=Q95, component=None)[[*place, "value"]]
    law = law.rename(columns={"value": "q95"}).drop_duplicates(place)
    # A layer whose q95 was not measured stays, and gets no verdict.
    judged = rows.merge(law, on=place, how="left")
    ends = zip(judged["low"], judged["high"], judged["q95"], strict=True)
    judged["verdict"] = [judge_isotropy(*row) for row in ends]
    return judged


def _iter_checkpoints(records: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield for each seed (text that begins its sentences, records of its last step); a single run yields all
    records.
    """
    if records["step"].nunique() < 2 and records["seed"].nunique() < 2:
        yield "", records
        return
    several = records["seed"].nunique() > 1
    for seed, part in records.groupby("seed", sort=False, dropna=False):
        last = part["step"].max()
        of_last = part
        if part["step"].notna().any():
            of_last = part[part["step"].eq(last).fillna(False)]
        beginning = f"Step {last:,}: "
        if several:
            beginning = f"Seed {seed}, step {last:,}: "
        yield beginning, of_last


def sort_by_depth(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows of one stack (encoder or decoder) from its input to its output."""
    # False sorts before True: the final norm has the number of the last layer, and
    # follows it.
    return rows.sort_values(
        ["layer", "site"], key=lambda x: x.eq("final") if x.name == "site" else x
    )


def select_lead_policy(rows: pd.DataFrame) -> str | None:
    """Return the first token policy (which tokens count) of the rows, the one with spectrum and sample.

    None if they have none.
    """
    policies = rows["token_policy"].dropna()
    return str(policies.iloc[0]) if len(policies) else None


def judge_isotropy(low: float, high: float, q95: float | None) -> str:
    """Compare the interval of A with q95, the 95 % quantile for random directions.

    Return `isotropic`, `anisotropic` or `undecided`; empty if an end or q95 is missing.
    """
    # Missing ends are NaN, and every comparison with NaN is false: they would pass as
    # undecided.
    if q95 is None or not all(map(math.isfinite, (low, high, q95))):
        return ""
    if high <= q95:
        return "isotropic"
    return "anisotropic" if low > q95 else "undecided"


def unjudged(depth: Depth) -> Iterator[Finding]:
    """Say that there is no verdict, and the highest A (anisotropy), if no layer has an interval."""
    # A single layer with an interval is enough for `where_anisotropic` to speak.
    if not any(depth.rows["verdict"]):
        text = f"No interval, hence no verdict: the highest A is {format_short(depth.top.value)} {at_layer(depth.top)}."
        yield Finding("unjudged", depth.before + text, (entry(depth.top),))


def where_anisotropic(depth: Depth) -> Iterator[Finding]:
    """Say which layers are anisotropic, where A is highest, and which layers' intervals overlap with the highest."""
    layers = iter_rows(depth.rows)
    if not any(row.verdict for row in layers):
        return
    names = [name_layer(row) for row in layers]
    anisotropic = _find_places(layers, "anisotropic")
    undecided = _find_places(layers, "undecided")
    if anisotropic:
        # The sentence names the highest layer and those that may be as high: their records support it.
        behind = [row for row in layers if row.high >= depth.top.low]
        parts = _describe_anisotropic(depth, anisotropic, names)
    else:
        behind = layers
        parts = _describe_isotropic(depth, names)
    if undecided:
        # Last in either case: what is not known follows what is.
        parts.append(f"undecided {describe_layers(undecided, names)}")
    text = "; ".join(parts)
    yield Finding(
        "where_anisotropic",
        f"{depth.before}{text[0].upper()}{text[1:]}.",
        tuple(map(entry, behind)),
    )


def _find_places(layers: list[Any], verdict: str) -> list[int]:
    """Return the indices in `layers` of those with this verdict.

    layers   rows of A from input to output, with their `verdict`
    """
    return [place for place, row in enumerate(layers) if row.verdict == verdict]


def _describe_anisotropic(
    depth: Depth, anisotropic: list[int], names: list[str]
) -> list[str]:
    """Return phrases that say which layers are anisotropic, and in which A is highest.

    anisotropic   indices of the anisotropic layers
    names         names of all layers
    """
    top = depth.top
    layers = iter_rows(depth.rows)
    highest = f"A {format_measured(top)}"
    if top.low >= EXTREME:
        highest += f", extreme: at least {format_short(EXTREME, 1)}"
    found = f"anisotropic {describe_layers(anisotropic, names)}"
    if len(names) == 1:
        return [f"{found} ({highest})"]
    reaching = []
    for i, row in enumerate(layers):
        # The highest layer is itself among them, unless it has no interval.
        if row.high >= top.low:
            reaching.append(i)
    overlapping = [i for i in reaching if layers[i].Index != top.Index]
    # Only a layer that no other's interval reaches is called strongest.
    word = "strongest" if len(reaching) == 1 else "highest"
    tied = ""
    if overlapping:
        tied = f"; intervals overlap with {list_layers(overlapping, names)}"
    return [found, f"{word} {at_layer(top)} ({highest}){tied}"]


def _describe_isotropic(depth: Depth, names: list[str]) -> list[str]:
    """Return a phrase that says which layers are isotropic, and the highest A if all are; no phrase if none is.

    names   names of all layers
    """
    isotropic = _find_places(iter_rows(depth.rows), "isotropic")
    if not isotropic:
        return []
    found = f"isotropic {describe_layers(isotropic, names)}"
    if len(isotropic) < len(names):
        return [found]
    highest = f"A {format_measured(depth.top)}"
    if len(names) == 1:
        return [f"{found} ({highest})"]
    return [f"{found} (highest {highest} {at_layer(depth.top)})"]


def carried_by_few(depth: Depth) -> Iterator[Finding]:
    """Say how many dimensions carry half of A at its peak, if A is anisotropic there and the interval allows it."""
    top = depth.top
    if top.verdict != "anisotropic":
        return
    # There is a record for each dimension, if A was measured dimension by dimension.
    contributions = select(
        depth.records,
        metric="mean_cosine.contribution",
        layer=top.layer,
        site=top.site,
    )
    width = len(contributions)
    # The smallest number that can be judged counts: half in one dimension says more than half in ten.
    for k in FEW:
        share = depth.at(top, "mean_cosine.top_share", str(k))
        if share is None or not has_interval(share):
            continue
        found = _judge_share(share, is_last=k == FEW[-1])
        if found:
            text = f"{depth.before}{found} in {_name_dimensions(k, width)} (share {format_measured(share, 2)})."
            yield Finding("carried_by_few", text, (entry(share),))
            return


def _name_dimensions(count: int, width: int) -> str:
    """Return "3 of 768 dimensions"; "3 dimensions" if the `width` is 0, which means unknown."""
    if width:
        return f"{count} of {width:,} dimensions"
    return count_noun(count, "dimension")


def _judge_share(share: Any, *, is_last: bool) -> str:
    """Return the beginning of a sentence on how much of A some dimensions carry: more than half, about half, or less.

    share     the record of their share, with its interval
    is_last   whether no larger number of dimensions was recorded

    Empty if the interval decides nothing, or if they carry less than half and a larger number is to be judged next.
    """
    # The whole interval lies above one half.
    if share.low >= HALF:
        return "More than half of the anisotropy lies"
    if share.low >= HALF - AROUND and HALF <= share.high <= HALF + AROUND:
        return "About half of the anisotropy lies"
    if is_last and share.high < HALF:
        return "Not carried by a few dimensions: less than half of the anisotropy lies"
    return ""


def removed_by_centring(depth: Depth) -> Iterator[Finding]:
    """Say whether A becomes isotropic after subtracting the mean, in the layer where A is highest."""
    top = depth.top
    centred = depth.at(top, "calibrated.centred")
    if top.verdict != "anisotropic" or centred is None or not has_interval(centred):
        return
    found = {
        "isotropic": "Centring removes the anisotropy",
        "anisotropic": "Centring does not remove the anisotropy",
        "undecided": "Whether centring removes the anisotropy is undecided",
    }[judge_isotropy(centred.low, centred.high, top.q95)]
    text = f"{depth.before}{found} (A after centring {format_measured(centred)},"
    text += f" q95 of random directions {format_short(top.q95)})."
    yield Finding("removed_by_centring", text, (entry(centred),))


def class_directions(records: pd.DataFrame) -> Iterator[Finding]:
    """Say in which layers class directions separate the classes (AUC above chance), and where best."""
    rows = select(records, metric="class_direction.auc", component=None, head=None)
    # The final norm is no layer of its own.
    rows = rows[
        rows["low"].notna() & rows["site"].ne("final").fillna(True)
    ].sort_values("layer")
    if not len(rows):
        return
    # An interval wholly above chance, not only its value.
    above = [i for i, low in enumerate(rows["low"]) if low > CHANCE]
    if not above:
        top = _find_top(rows)
        highest = f"highest {format_measured(top)} {at_layer(top)}"
        text = f"Class directions separate the classes in no layer: AUC is at chance (.500), {highest}."
    else:
        top = _find_top(rows.iloc[above])
        best = ""
        if len(above) > 1:
            best = f", best {at_layer(top)}"
        elif len(rows) > 1:
            best = " only"
        layers = describe_layers(above, [name_layer(row) for row in iter_rows(rows)])
        text = f"Class directions separate the classes {layers}{best} (AUC {format_measured(top)})."
    yield Finding("class_directions", text, (entry(top),))


def dimensions_taken(records: pd.DataFrame) -> Iterator[Finding]:
    """Say how many dimensions the class directions span in the last layer, if there are three classes or more.

    The sentence also says from which layer on all intervals overlap with that of the last layer.
    """
    rows = select(records, metric="class_direction.dimensions", component=None)
    # An interval without width (all groups agree) would overlap with hardly any other.
    rows = rows[rows["low"].notna() & (rows["low"] < rows["high"])].sort_values("layer")
    count = (
        select(records, metric="class_direction.auc")["component"].dropna().nunique()
    )
    # The directions of two classes are opposite: one dimension, whatever was measured.
    if not len(rows) or count <= 2:
        return
    *before, last = iter_rows(rows)
    first = last
    # From the last layer back, until one whose interval lies apart: the layers between
    # form one plateau.
    for row in reversed(before):
        if row.high < last.low or row.low > last.high:
            break
        first = row
    # Directions are taken from the common mean, so those of c classes span at most c − 1 dimensions.
    text = f"{at_layer(last).capitalize()} the directions of {count} classes span {format_measured(last)}"
    text += f" of {count - 1} possible dimensions"
    if first is not last:
        text += f"; intervals overlap with this from {name_layer(first)} on"
    yield Finding("dimensions_taken", f"{text}.", (entry(last),))


def above_majority(records: pd.DataFrame) -> Iterator[Finding]:
    """Say whether a classifier is more accurate than always naming the most frequent class."""
    accuracies = iter_rows(select(records, metric="accuracy", component=None))
    majorities = iter_rows(select(records, metric="majority", component=None))
    if not accuracies or not majorities or not has_interval(accuracies[0]):
        return
    accuracy, majority = accuracies[0], majorities[0]
    if accuracy.low > majority.value:
        place = "above"
    elif accuracy.high < majority.value:
        place = "below"
    else:
        place = "not clearly above or below"
    text = f"Accuracy {format_measured(accuracy)}, {place} the majority rate ({format_short(majority.value)})."
    yield Finding("above_majority", text, (entry(accuracy), entry(majority)))


def attention_used(records: pd.DataFrame) -> Iterator[Finding]:
    """Say how much accuracy a classifier loses if its attention weights are replaced by uniform ones."""
    rows = select(records, metric="ablation.accuracy", component="uniform")
    rows = rows[rows["low"].notna()]
    in_all_layers = iter_rows(rows[rows["layer"].isna()])
    if not in_all_layers:
        return
    # The record without a layer is of all layers at once.
    whole = in_all_layers[0]
    text = f"{_judge_change(whole)}: with uniform weights instead, accuracy changes by {format_measured(whole)}"
    in_one_layer = iter_rows(rows[rows["layer"].notna()].sort_values("layer"))
    losing = [row for row in in_one_layer if row.high < 0]
    # In a model of one layer, that layer alone and all layers are the same.
    if whole.high < 0 and losing and len(rows) > 2:
        layers = " or ".join(str(row.layer) for row in losing)
        text += f"; it also falls if only layer {layers} has uniform weights"
    yield Finding(
        "attention_used",
        f"{text} (n = {whole.n_units}).",
        (entry(whole), *map(entry, losing)),
    )


def _judge_change(change: Any) -> str:
    """Say what a change of accuracy without attention means, by its interval."""
    if change.high < 0:
        return "This classifier uses its attention"
    # Before the sign: a gain that is certain but tiny is no harm.
    if change.low > -POINTS and change.high < POINTS:
        return "This classifier does not need its attention (within two points)"
    if change.low > 0:
        return "Attention harms this classifier"
    return "Whether this classifier uses its attention is undecided"


def words_that_decide(records: pd.DataFrame) -> Iterator[Finding]:
    """Say which attribution map finds the words whose removal changes the decision most, if it beats chance."""
    rows = select(records, metric="attribution.comprehensiveness")
    rows = rows[rows["low"].notna()]
    chance = iter_rows(rows[rows["component"].eq("random").fillna(False)])
    # Rankings that know nothing of the model are no attribution maps.
    maps = rows[~rows["component"].isin(["random", "rare"])]
    if not chance or not len(maps):
        return
    # The baseline of random words takes as many words away, and shows what any loss of
    # words does.
    best, random = _find_top(maps), chance[0]
    name = f"‘{best.component}’ of layer {best.layer}"
    fall, fall_of_random = format_measured(best), format_measured(random)
    count = count_noun(len(maps), "attribution map")
    if best.low > random.high:
        text = f"Of {count}, {name} is best at finding the words that decide."
    else:
        text = f"Of {count}, none is better than chance at finding the words that decide; {name} is best."
    text += f" Without its highest-ranked words, the probability of the predicted class falls by {fall};"
    text += f" without random words, by {fall_of_random} (n = {best.n_units})."
    yield Finding("words_that_decide", text, (entry(best), entry(random)))


def noise_floor(records: pd.DataFrame) -> Iterator[Finding]:
    """Say which cosines are noise in the last layer: 95 and 99 % of pairs of unrelated units (documents, clips,
    images) lie below them.
    """
    rows = select(
        select_text_vectors_if_any(records),
        metric=("floor.q95", "floor.q99"),
        component=None,
        site=SITES,
    )
    rows = rows[rows["value"].notna()]
    # A floor is for users of one model; of a series it would be a curve.
    if rows["step"].nunique() > 1 or rows["seed"].nunique() > 1:
        return
    several = rows["stack"].nunique() > 1
    for stack, part in rows.groupby("stack", sort=False):
        # The vector that users compare is that of the last layer.
        last = iter_rows(sort_by_depth(part[part["metric"].eq("floor.q95")]).tail(1))[0]
        before = f"{str(stack).capitalize()}: " if several else ""
        if has_enough_pairs(last.n_vectors, last.n_units):
            there = select(part, layer=last.layer, site=last.site)
            (rare,) = iter_rows(select(there, metric="floor.q99"))
            law = select(
                records,
                metric=Q95,
                stack=stack,
                layer=last.layer,
                site=last.site,
                component=None,
            )
            yield _describe_floor(before, last, rare, iter_rows(law))
        else:
            units = count_noun(int(last.n_units), "unit")
            text = f"{before}Too few vectors for a noise floor: {last.n_vectors:,} from {units}."
            yield Finding("noise_floor", text, (entry(last),))


def _describe_floor(before: str, last: Any, rare: Any, law: list[Any]) -> Finding:
    """Return the finding on chance: 95 % (99 %) of the cosines of unrelated units are below these values.

    before   text that begins the sentence
    last     record of the 95 % quantile in the last layer
    rare     record of the 99 % quantile there
    law      list with the record of the 95 % quantile of isotropic directions; empty if it was not measured
    """
    text = f"{before}Cosines up to {format_measured(last)} are noise {at_layer(last)}: "
    text += f"95 % of pairs of unrelated units have a lower cosine, and 99 % have one below {format_measured(rare)}."
    if law:
        text += f" For comparison, 95 % of pairs of random directions have one below {format_short(law[0].value)}."
    return Finding("noise_floor", text, (entry(last), entry(rare)))


def select_text_vectors_if_any(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records on vectors of whole texts, if the model makes such vectors (sentence-transformers); else all.

    Users compare these vectors by cosine, and not the vectors of tokens that they are made from.
    """
    of_sentences = records["stack"].eq(SENTENCES)
    return records[of_sentences] if of_sentences.any() else records


def has_enough_pairs(vectors: float, units: float) -> bool:
    """Return whether there are enough pairs of vectors from different units to estimate a noise floor of cosines.

    vectors   number of sampled vectors
    units     number of units that they come from, taken as equally large
    """
    # n²/2 pairs, less those inside a unit: of equally large units a share of 1/units.
    return vectors**2 * (1 - 1 / max(units, 1)) / 2 >= FEWEST_PAIRS


RULES = (unjudged, where_anisotropic, carried_by_few, removed_by_centring)
RULES_OF_CLASSES = (
    class_directions,
    dimensions_taken,
    above_majority,
    attention_used,
    words_that_decide,
)
RULES_OF_RUNS = (noise_floor,)
"""Rules that read all records."""


def _find_top(rows: pd.DataFrame) -> Any:
    """Return the row with the highest value."""
    return iter_rows(rows.iloc[[int(rows["value"].argmax())]])[0]
