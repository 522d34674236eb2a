"""Measure a fine-tuning made by others: BERT on chemical reactions, before and after it learnt to classify them.

Section 3 and figure 2 of Fosse et al. 2023 are repeated layer by layer, on the same reactions. There is one model only:
intervals are over reactions, by leaving out one of `GROUPS` groups at a time, the same for both stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from altair.typing import ChartType
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from anisoscope.axes import Site
from anisoscope.capture.tap import capture
from anisoscope.charts import builders as charts
from anisoscope.data.encoding import LabelledPlan, encode
from anisoscope.data.labelled import take_balanced
from anisoscope.data.opening import open_labelled
from anisoscope.metrics.base import normalise
from anisoscope.models.load import load
from anisoscope.models.modes import evaluation_mode
from anisoscope.store import as_records, select
from anisoscope.sums.jackknife import UNBOUNDED, jackknife_interval
from anisoscope_papers.judge import (
    GROUPS,
    Test,
    compute_equivalence_p,
    compute_p_of_units,
    judge_tests,
)
from anisoscope_papers.needs import Need
from anisoscope_papers.study import SHARE, SIGNED, Claim, Context, declare, read_claims

BEFORE, AFTER = "builtin:rxnfp-pretrained", "builtin:rxnfp-finetuned-10k"
STAGES = {BEFORE: "before fine-tuning", AFTER: "after fine-tuning"}
CORPUS, CLASSES = "reactions/test", 10
# The table has further columns: those of the text and of the class are named.
COLUMNS = {"text": "text", "label": "label"}
ALIKE, DIRECTION, OWN, OTHERS = (
    "intra_sequence",
    "class_auc",
    "class_cosine.own",
    "class_cosine.others",
)
BOUNDS = {ALIKE: SIGNED, DIRECTION: SHARE, OWN: SIGNED, OTHERS: SIGNED}
# The paper's "last four layers" of BERT's twelve (section 3).
LATE = 1 / 3
# AUC of a direction that says nothing.
CHANCE = 0.5
Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Reactions:
    """Settings: how many reactions are read, equally many of each class, and at how many tokens they are cut."""

    utterances: int = 999
    longest: int = 512


@dataclass(frozen=True)
class Seen:
    """What is kept from a model's pass over the reactions.

    alike  [reaction, layer]: mean cosine over pairs of its tokens
    cls    [reaction, layer, dim]: unit vectors of the first token
    """

    alike: Array
    cls: Array


def average_cosine_of_pairs(
    states: Float[Tensor, "row token dim"], real: Bool[Tensor, "row token"]
) -> Float[Tensor, "row"]:
    """Return the mean cosine over pairs of different real tokens, for every row of states, in float64 (equation 3).

    `real` marks the tokens that are not padding.
    """
    # Padding becomes 0 and adds nothing. A = (‖Σu‖² − n) / (n (n − 1)), as everywhere.
    units = torch.nn.functional.normalize(states.double(), dim=-1) * real[..., None]
    count = real.sum(1).double()
    return (units.sum(1).square().sum(-1) - count) / (count * (count - 1))


@torch.no_grad()
def run_model(name: str, plan: Reactions) -> tuple[Seen, Labels]:
    """Run the model `name` on the reactions of `plan`; return (similarities and [CLS] vectors by layer, class indices).

    The first is [reaction, layer] in each field of `Seen`, the second [reaction].
    """
    corpus = open_labelled(CORPUS, columns=COLUMNS, for_training=False)
    subject = load(name)
    tokenizer: Any = subject.processor
    # As many of each class, as in the paper's subsets; in the order of the file.
    examples = take_balanced(corpus.splits["all"], plan.utterances, len(corpus.labels))
    batches = LabelledPlan(
        encode(examples, tokenizer, plan.longest), int(tokenizer.pad_token_id)
    )
    states: dict[int, Tensor] = {}

    def receive(site: Site, x: Tensor) -> None:
        """Keep the hidden states of each layer. `x`: what the `site` gives in a forward call."""
        # The norm behind the last block has no number.
        if site.quantity == "hidden" and site.layer is not None:
            states[site.layer] = x

    alike = []
    cls = []
    rows = []
    with (
        evaluation_mode(subject.model),
        capture(subject.model, ("hidden",), receive=receive),
    ):
        for batch in batches:
            states.clear()
            subject.model(**batch.inputs)
            # An encoder has a single stack.
            real = next(iter(batch.streams.values())).mask
            layers = [states[layer] for layer in sorted(states)]
            alike.append(
                torch.stack([average_cosine_of_pairs(x, real) for x in layers], 1)
            )
            cls.append(torch.stack([x[:, 0].double() for x in layers], 1))
            rows.append(batch.unit)
    # Batches are sorted by length: back to the order of the labels.
    order = torch.cat(rows).argsort()
    seen = Seen(
        torch.cat(alike)[order].numpy(), normalise(torch.cat(cls)[order].numpy())
    )
    return seen, np.array(batches.encoded.labels)


def measure_directions(
    cls: Float[np.ndarray, "reaction dim"], labels: Labels
) -> tuple[float, float, float]:
    """Return (AUC, median cosine to the own class, to the other classes), averaged over all representatives.

    Every reaction serves as a representative of its class. Its AUC is the chance that another reaction of its class is
    nearer to it than one of another class. `cls`: unit vectors; `labels`: class index [reaction].
    """
    cosine = cls @ cls.T
    same = labels[:, None] == labels[None]
    # A representative without another reaction of its class has no AUC.
    alone = same.sum(1) < 2
    np.fill_diagonal(cosine, -np.inf)  # itself ranks first, and is taken off again
    np.fill_diagonal(same, False)
    own = same.sum(1)
    other = (~same).sum(1) - 1
    # The statistic of Mann and Whitney: the sum of the ranks of one's own class, less the smallest possible sum. Every
    # rank is one too high, since the representative itself, at −∞, has rank 1.
    ranks = rankdata(cosine, axis=1)
    above = (ranks * same).sum(1) - own * (own + 1) / 2 - own
    with np.errstate(divide="ignore", invalid="ignore"):
        auc = np.where(alone, np.nan, above / (own * other))
    np.fill_diagonal(cosine, np.nan)
    of_own = np.nanmedian(np.where(same, cosine, np.nan)[~alone], axis=1)
    of_others = np.nanmedian(np.where(same, np.nan, cosine)[~alone], axis=1)
    return float(np.nanmean(auc)), float(of_own.mean()), float(of_others.mean())


def compute_replicates(seen: Seen, labels: Labels) -> dict[str, Array]:
    """Return jackknife replicates {metric: [1 + group, layer]}: with all reactions, then without each group of them.

    `seen`: similarities and [CLS] vectors of one model; `labels`: class index [reaction].
    """
    group = np.arange(len(labels)) % GROUPS
    found: dict[str, list[Array]] = {name: [] for name in BOUNDS}
    # No group has the number −1: the first replicate leaves nothing out.
    for left_out in (-1, *range(GROUPS)):
        kept = group != left_out
        directions = np.array(
            [measure_directions(x, labels[kept]) for x in seen.cls[kept].swapaxes(0, 1)]
        )
        found[ALIKE].append(seen.alike[kept].mean(0))
        for place, name in enumerate((DIRECTION, OWN, OTHERS)):
            found[name].append(directions[:, place])
    return {name: np.stack(rows) for name, rows in found.items()}


def measure_last_third(curve: Array) -> Array:
    """Return which share of the gain of a curve [replicate, layer] from first to last layer lies in the last third,
    [replicate].
    """
    depth = curve.shape[1] - 1
    # At least one layer, in models of one or two.
    start = depth - max(1, round(depth * LATE))
    gained = curve[:, -1] - curve[:, 0]
    # Without growth there is no share of it.
    whole = np.where(gained > 0, gained, np.nan)
    return np.asarray((curve[:, -1] - curve[:, start]) / whole)


def measure_share_to_come(difference: Array) -> Array:
    """Return which share of the last layer's `difference` is still missing at the start of the last third, [replicate].

    `difference`: [replicate, layer].
    """
    depth = difference.shape[1] - 1
    start = depth - max(1, round(depth * LATE))
    whole = difference[:, -1]
    return np.asarray(
        (whole - difference[:, start]) / np.where(whole > 0, whole, np.nan)
    )


def compute_claimed(
    before: dict[str, Array], after: dict[str, Array]
) -> dict[str, Array]:
    """Compute the number of every claim as jackknife replicates, {claim: [replicate]}.

    before, after   curves of the two models, {metric: [replicate, layer]}
    """
    gain = after[DIRECTION] - before[DIRECTION]
    return {
        "tokens converge by fine-tuning": after[ALIKE][:, -1] - before[ALIKE][:, -1],
        "grows with depth": after[ALIKE][:, -1] - after[ALIKE][:, 0],
        "most in the last layers": measure_last_third(after[ALIKE]),
        "the direction separates": gain[:, -1],
        "not before fine-tuning": before[DIRECTION][:, -1] - CHANCE,
        "the direction comes last": measure_share_to_come(gain),
    }


def measure(plan: Reactions, context: Context) -> pd.DataFrame:
    """Return the curves by layer of both models, and the number of every claim (metric `claim`), with intervals.

    `plan`: how many reactions are read; `context`: receives the progress.
    """
    curves: dict[str, dict[str, Array]] = {}
    labels: Labels = np.zeros(0, np.int64)
    parts = []
    for done, name in enumerate(STAGES, 1):
        seen, labels = run_model(name, plan)
        # Both models have the same groups: their difference is paired by reaction.
        curves[name] = compute_replicates(seen, labels)
        for metric, theta in curves[name].items():
            # Intervals of cosines and AUC stay inside their bounds.
            ends = jackknife_interval(theta, bounds=BOUNDS[metric])
            frame = pd.DataFrame(dict(zip(("value", "low", "high"), ends, strict=True)))
            frame["layer"] = np.arange(len(frame))
            parts.append(as_records(frame, model=name, metric=metric, site="hidden"))
        context.progress("models", done, len(STAGES))
    found = compute_claimed(curves[BEFORE], curves[AFTER])
    claims = read_claims("beyond", "reactions")
    rows: list[dict[str, Any]] = []
    for claim, theta in found.items():
        bounds = claims[claim].bounds or UNBOUNDED
        value, low, high = (float(x) for x in jackknife_interval(theta, bounds=bounds))
        rows.append({"component": claim, "value": value, "low": low, "high": high})
    parts.append(as_records(pd.DataFrame(rows), model=AFTER, metric="claim"))
    return pd.concat(parts, ignore_index=True).assign(
        corpus=CORPUS, n_units=len(labels)
    )


def make_tests(records: pd.DataFrame) -> Iterator[Test]:
    """Yield a test of every claim on BERT for reactions, from its number in the records."""
    found = select(records, metric="claim").set_index("component")
    for name, claim in read_claims("beyond", "reactions").items():
        yield make_claim_test(claim, found.loc[[name]])


def make_claim_test(claim: Claim, row: pd.DataFrame) -> Test:
    """Test one claim against the value that was measured for it.

    `row`: a table of one record, with the value and its interval over groups of reactions.
    """
    value, low, high = (float(row[end].iloc[0]) for end in ("value", "low", "high"))
    n = int(row["n_units"].iloc[0])
    note = "n counts reactions: one model, fine-tuned once, by others"
    common: dict[str, Any] = {
        "value": value,
        "low": low,
        "high": high,
        "n": n,
        "note": note,
        "subject": "BERT (rxnfp)",
    }
    # Groups of the jackknife less one, as its interval uses.
    freedom = min(n, GROUPS) - 1
    if claim.within is not None:
        inside = (-claim.within, claim.within)
        up, down = compute_equivalence_p(
            value, low, high, freedom, inside, claim.bounds or UNBOUNDED
        )
        words = f"{claim.statistic} (claim: {inside[0]:g} to {inside[1]:g}):"
        return Test(claim, words, inside=inside, up=up, down=down, **common)
    limit = float(claim.limit)
    # To hold, the number must pass limit and floor; to be contrary, it must lie below the limit itself.
    above, below = (
        float(p[0]) for p in compute_p_of_units(row, claim.threshold(limit))
    )
    against = float(compute_p_of_units(row, limit)[1][0])
    floor = f" by {claim.floor:g}" if claim.floor else ""
    words = f"{claim.statistic} (claim: > {limit:g}{floor}):"
    return Test(claim, words, up=above, down=below, against=against, **common)


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw the similarity of tokens by layer, and how well the direction of [CLS] separates classes. Returns {chart
    name: chart}.
    """
    drawn: dict[str, ChartType] = {}
    titles = {ALIKE: "similarity of tokens", DIRECTION: "AUC of the direction"}
    for place, (metric, title) in enumerate(titles.items(), 1):
        frame = select(records, metric=metric)
        frame = frame.assign(model=frame["model"].map(STAGES))
        settings: dict[str, Any] = {
            "series": "model",
            "zero": metric == ALIKE,
            "size": (640, 240),
        }
        if len(frame):
            drawn[f"reactions_{place}"] = charts.layer_curve(
                frame, title=title, **settings
            )
    return drawn


SETTINGS = {
    "quick": Reactions(utterances=120, longest=128),
    "paper": Reactions(),
    "finished": Reactions(),
}
NEEDS = (
    Need("rxnfp: BERT of reactions, in a package", 0.2, "pip install rxnfp==0.1.0"),
)
STUDY = declare(
    "beyond",
    "reactions",
    settings=SETTINGS,
    needs=NEEDS,
    measure=measure,
    judge=lambda records: judge_tests(list(make_tests(records))),
    draw=draw,
)
