"""The experiment of section 4: what untrained blocks do to a common bias, as its norm N grows.

The first block reads x + N·b with ‖b‖ = 1, one b for all tokens. All N of the grid lie on the batch axis beside the
sequences, and the sums of a site are grouped by N, so that every quantity is the same function of sums as in a
measurement. The forward pass is in `Context.dtype`, sums of hidden states and everything after them in float64: with
float32 blocks A differs from an all-float64 run by 2e-8, A of output less A of input by 1e-9 (4e-13 at N = 316), and
the change of a softmax weight between N = 0 and N = 3 by 1e-10.

Records: the names of `measure` (`mean_cosine`, `norms.mean`, `drift`, `attention.entropy` …), one row per system
(`model`), `seed` and N (`component`, as `{N:g}`); layer 0 is what the first block reads, layer i the output of block i.
Rows with a head are of that head, rows without one the mean over heads.

Fixed points: where a block's output is as long as its input. Two norms are meant by "the norm of the hidden states".
The equation of section 4 is about the mean norm of the tokens, E‖x + b‖ = E‖T(x + b)‖: LayerNorm at the end of a
post-norm block pins the right side at √d, so the root is √(d − E‖x‖²) whatever the weights are. Where the input already
has norm √d, chance decides: E‖x + b‖ ≈ √d + (N·x̄·b̂ + N²/2)/√d, so that there is a root near −2 x̄·b̂ if the mean
input points away from the bias, and none otherwise. Figure 6b shows the norm of the mean, ‖E(x + b)‖ = ‖E T(x + b)‖.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import brentq
from torch import Tensor

from anisoscope.axes import Site
from anisoscope.capture import capture
from anisoscope.metrics import drift, mean_cosine, norms
from anisoscope.provenance import make_run_id
from anisoscope.store import as_records, make_records_once
from anisoscope.sums.groups import Sums, Totals, sum_vectors
from anisoscope_papers.godey2024 import row_scores
from anisoscope_papers.godey2024.untrained_models import (
    FAMILIES,
    READINGS,
    WITHOUT_TYPE,
    Size,
    Untrained,
    build_untrained,
)
from anisoscope_papers.judge import Array
from anisoscope_papers.needs import Need
from anisoscope_papers.origin import hash_measuring_code
from anisoscope_papers.processes import run_in_parallel
from anisoscope_papers.study import Context

GRID = (0.0, *(float(f"{10 ** (i / 4 - 1):.4g}") for i in range(15)))
"""Norms N: 0, then four per decade from 0.1 to 316, well past every crossing."""
CACHED_TOKENS = 1024
"""Tokens a batch on a CPU, whatever the context says: activations stay in its cache (12 % less time than 4,096)."""
SHOWN = (0.0, 1.0, 10.0, 31.62, 100.0)
"""Norms whose histograms of scores are kept."""

# Sums that A, norms and drift are computed from. Drift is read of hidden states alone,
# so that heads need no sum of their vectors.
HIDDEN_TERMS = frozenset({"n", "unit", "vector", "norm", "norm_square"})
HEAD_TERMS = HIDDEN_TERMS - {"vector"}


@dataclass(frozen=True)
class BlockSettings:
    """What is run: each of `systems` (untrained models) in each of `sizes`, for seeds 0 … seeds − 1, at each of
    `norms`.

    trained  (model, corpus) pairs whose hidden norms are shown next to the fixed point
    limit    how many first units (documents) of such a corpus are read
    """

    systems: tuple[str, ...] = READINGS
    seeds: int = 8
    sizes: tuple[Size, ...] = (Size(),)
    norms: tuple[float, ...] = GRID
    trained: tuple[tuple[str, str], ...] = (("builtin:minilm", "builtin:python-docs"),)
    limit: int | None = 60


# N = 0, then two values per decade.
COARSE = GRID[:1] + GRID[1::2]
# The only reading of "initialised as BERT" that fits all of section 4 of the paper.
AS_BERT = ("bert:full-embedding",)
SETTINGS = {
    "quick": BlockSettings(seeds=5, sizes=(Size(sequences=4),), norms=COARSE),
    "paper": BlockSettings(),
    "architectures": BlockSettings(
        (*AS_BERT, *FAMILIES), seeds=5, sizes=(Size(sequences=4),), norms=COARSE
    ),
    "depth": BlockSettings(
        (*AS_BERT, "gpt2"), seeds=4, sizes=(Size(sequences=4, blocks=12),), norms=COARSE
    ),
    "scale": BlockSettings(
        AS_BERT,
        seeds=5,
        sizes=tuple(Size(4, scale=s) for s in (0.5, 1.0, 2.0, 4.0)),
        norms=COARSE,
    ),
    "heads": BlockSettings(
        AS_BERT,
        seeds=5,
        sizes=tuple(Size(4, heads=h) for h in (3, 12, 48)),
        norms=COARSE,
    ),
    # All tokens share a type vector, which alone makes queries anisotropic at N = 0.
    # Here it is 0: what is left comes from elsewhere.
    "no-type": BlockSettings((WITHOUT_TYPE,)),
}
"""quick: fewer sequences, seeds and N; paper: figures 6 to 10; the others: the same experiment elsewhere."""
NEEDS = (
    Need(
        work={
            "untrained blocks": 8
            * len(READINGS)
            * len(GRID)
            * 16
            * 512
            * 1.5e-12
            * 14e6
        }
    ),
)
"""Work: tokens of all passes, 14 million operations each, and half as much for the rows of attention."""
OF_BLOCK: dict[str, Any] = {"settings": SETTINGS, "needs": NEEDS}
"""What every study of the block has."""


def run_experiment(settings: BlockSettings, context: Context) -> pd.DataFrame:
    """Run the experiment and return its records. Each system (model), size and seed is a piece of work, cached on disk.

    On a CPU, as many pieces run in parallel as torch has threads.
    """
    pieces = list(product(settings.systems, settings.sizes, range(settings.seeds)))
    paths = []
    # All that a piece's numbers depend on is in its name: another grid, dtype or code
    # gets a file of its own.
    for system, size, seed in pieces:
        name = make_run_id(
            system,
            seed,
            asdict(size),
            settings.norms,
            context.dtype,
            hash_measuring_code(__name__),
        )
        paths.append(context.cache / "biased-block" / f"{name}.parquet")
    # Other processes cannot show progress: theirs is silent, and finished pieces are counted here.
    given = (settings.norms, replace(context, progress=Context.progress))
    missing = []
    for key, path in zip(pieces, paths, strict=True):
        if not path.exists():
            missing.append((path, *key, *given))
    # On an accelerator the pieces would only wait for each other.
    for done in run_in_parallel(_keep, missing, 1 if context.device != "cpu" else None):
        context.progress(
            "untrained blocks", len(pieces) - len(missing) + done, len(pieces)
        )
    return pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)


def keep_last_block(records: pd.DataFrame) -> pd.DataFrame:
    """Keep the records of the last block of each model: figures 7 to 10 show its queries, keys and attention."""
    last = records.groupby("model")["layer"].transform("max")
    return records[records["layer"] == last].reset_index(drop=True)


def _keep(path: Path, *given: Any) -> None:
    """Measure one system, size and seed (`given`: arguments of `measure_piece`) and save the records to `path`, unless
    they exist.
    """
    make_records_once(path, lambda: measure_piece(*given))


def measure_piece(
    system: str, size: Size, seed: int, grid: Sequence[float], context: Context
) -> pd.DataFrame:
    """Measure one untrained model (`system`) of one size and seed, at every N of `grid`, and return the records.

    N is the norm of the common bias that is added to the input. Measured are A, norms, weights and scores of attention;
    also the fixed points, the N at which the mean output is as long as the mean input.
    `context`: the device, the dtype and the size of batches.
    """
    subject = build_untrained(system, size, seed, context.device, context.dtype)
    ran = Pass(subject, grid, context.batch_tokens).run()
    rows = list(ran.rows())

    def again(norm: float) -> tuple[Array, Array]:
        """Return the norms of input and output (`norm_pairs`) at one more N; used to locate a fixed point."""
        return (
            Pass(subject, (norm,), context.batch_tokens, norms_only=True)
            .run()
            .norm_pairs()
        )

    # The root N* lies between two values of the grid, so that the search needs passes
    # at further N.
    rows += list_fixed_points(grid, ran.norm_pairs(), again)
    sequences, tokens, width = subject.fed.shape
    # Sequences are the independent units: tokens of one sequence are mixed by
    # attention.
    records = pd.DataFrame(rows).assign(
        stack=next(iter(ran.sites.values())).stack, kind="self", n_units=sequences
    )
    records["n_vectors"] = sequences * tokens
    # `norm_claims` knows untrained systems by the first word, and reads the width from
    # the last one; figures 9 and 10 read the number of tokens from it.
    corpus = f"uniform inputs {sequences} × {tokens} × {width}"
    return as_records(
        records, model=size.named(system), seed=seed, corpus=corpus, token_policy="all"
    )


class Pass:
    """A pass of an untrained model over all sequences with biases of all `norms`, and the sums over it.

    Group i of the sums belongs to the i-th norm.
    """

    def __init__(
        self,
        subject: Untrained,
        norms: Sequence[float],
        batch_tokens: int,
        *,
        norms_only: bool = False,
    ) -> None:
        """Prepare a pass of `subject`; with `norms_only`, only hidden states are summed. `batch_tokens`: the most
        tokens of a batch.
        """
        self.subject, self.norms, self.norms_only = subject, tuple(norms), norms_only
        tokens = batch_tokens
        if subject.fed.device.type == "cpu":
            tokens = min(batch_tokens, CACHED_TOKENS)
        self.batch = max(1, tokens // subject.fed.shape[1])
        # `Sums` wants two groups at least. In a pass at a single N the second one stays
        # empty.
        self.sums = Sums(max(2, len(self.norms)))
        self.sites: dict[str, Site] = {}
        self.histograms = [i for i, norm in enumerate(self.norms) if norm in SHOWN]

    @torch.no_grad()
    def run(self) -> "Pass":
        """Run the model on every sequence with every bias N·b (norm N, direction b) added to the block's input.

        The sums of vectors and attention rows that the figures need are accumulated in this object, which is returned.
        """
        # The search for a fixed point asks for hidden norms alone; attention would be
        # most of its time.
        what = (
            {"hidden"} if self.norms_only else {"hidden", "query", "key", "attention"}
        )
        subject = self.subject
        sequences = len(self.subject.fed)
        # Each sequence with each N is an item of its own; batches may hold several N.
        every = torch.arange(len(self.norms) * sequences, device=subject.fed.device)
        norms = torch.tensor(
            self.norms, dtype=subject.fed.dtype, device=subject.fed.device
        )
        with capture(subject.model, what, receive=self._receive):
            for rows in torch.split(every, self.batch):
                # Item r is sequence r mod n with the (r div n)-th norm. `_receive`
                # reads the group of each item from here, since the tap does not know
                # it.
                chosen, self._group = rows % sequences, rows // sequences
                subject.run(
                    chosen,
                    subject.fed[chosen]
                    + norms[self._group, None, None] * subject.direction,
                )
        return self

    def _receive(self, site: Site, value: Any) -> None:
        """Add a tensor that was seen in the forward pass to the running sums of its site. The tap calls this.

        site    which layer and which quantity (hidden states, queries, keys, rows of attention) the tensor is
        value   the tensor; its shape is that of the quantity

        The queries of a call are kept until its keys arrive, because sums of attention scores need both.
        """
        self.sites[site.name] = site
        if site.quantity == "attention":
            self._add(site, _sum_rows(value))
        elif site.quantity == "hidden":
            # Hidden states have no heads: they get an axis of one. They are summed in
            # float64, because A of the output less A of the input can be as small as
            # 1e-5.
            self._add(site, _sum_vectors(value.double().unsqueeze(1), HIDDEN_TERMS))
        elif site.stage == "raw":
            self._add(site, _sum_vectors(value, HEAD_TERMS))
        # Scores are made of queries and keys at the stage that the model multiplies
        # (after rotation in Llama), whereas figure 8 shows them at the stage `raw`.
        if site.stage == self.subject.stage and site.quantity == "query":
            self._query = value
        elif site.stage == self.subject.stage:
            # A site of our own: that of the attention rows, which the tap names, has no
            # stage.
            scores = Site(site.stack, site.layer, "attention", site.stage)
            self.sites[scores.name] = scores
            counted = torch.isin(
                self._group, torch.tensor(self.histograms, device=value.device)
            )
            how = (self.subject.attention_scale, self.subject.causal, counted)
            self._add(scores, row_scores.sum_scores(self._query, value, *how))

    def _add(self, site: Site, values: dict[str, Tensor]) -> None:
        """Add per-sequence values of a site to its sums, each to the group of its norm in this batch."""
        self.sums.add(site.name, values, self._group)

    def norm_pairs(self) -> tuple[Array, Array]:
        """Return (mean token norm, norm of the mean vector), each [norm, 2]: for the first block's input and the
        last's output.
        """
        hidden = [site for site in self.sites.values() if site.quantity == "hidden"]
        hidden.sort(key=lambda site: site.layer or 0)
        first = self.vectors(hidden[0])
        last = self.vectors(hidden[-1])
        # Each part is [norm, 1], since hidden states have one head: together they are
        # the columns input and output.
        token = np.hstack([first["norms.mean"], last["norms.mean"]])
        mean = np.hstack([first["drift"], last["drift"]])
        return token, mean

    def vectors(self, site: Site) -> dict[str, Array]:
        """Return {metric: [norm, head]} of the hidden states, queries or keys at a site, computed from the sums of
        one N at a time.
        """
        terms = self.sums.at(site.name)
        found: dict[str, list[Array]] = {}
        for i in range(len(self.norms)):
            # Of a single group: its replicate 0 is the value at this N. `compute`
            # returns [replicate, policy, head], and [0, 0] leaves [head].
            totals = Totals({term: value[i : i + 1] for term, value in terms.items()})
            found.setdefault("mean_cosine", []).append(
                mean_cosine.compute(totals)[""][0, 0]
            )
            found.setdefault("norms.mean", []).append(
                norms.compute(totals)["mean"][0, 0]
            )
            if site.quantity == "hidden":
                found.setdefault("drift", []).append(drift.compute(totals)[""][0, 0])
        return {name: np.stack(values) for name, values in found.items()}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the long table for all sites as {column: value}, still without model and seed."""
        for site in self.sites.values():
            if site.quantity == "attention":
                yield from self._attention(site)
            elif site.quantity == "hidden" or site.stage == "raw":
                place = {"site": site.label, "layer": site.layer}
                yield from self._table(
                    self.vectors(site), place, heads=site.quantity != "hidden"
                )

    def _attention(self, site: Site) -> Iterator[dict[str, Any]]:
        """Yield the rows of attention weights or scores of one site, with histograms of scores at a few N (norm of the
        bias).
        """
        terms = self.sums.at(site.name)
        place = {"site": "attention", "layer": site.layer}
        # Rows of attention weights have no stage; scores have that of the queries and keys they are made of.
        if not site.stage:
            yield from self._table(self._average_rows(terms), place)
            return
        yield from self._table(
            row_scores.compute_metrics(terms, self.subject.position_bias), place
        )
        for i in self.histograms:
            for metric, counts in row_scores.HISTOGRAMS.items():
                # Only filled bins have a row: of 300 most are empty.
                for filled in np.flatnonzero(terms[counts][i]):
                    component = f"{self.norms[i]:g} {filled}"
                    yield {
                        **place,
                        "metric": metric,
                        "component": component,
                        "value": float(terms[counts][i][filled]),
                    }

    def _average_rows(self, terms: dict[str, Any]) -> dict[str, Array]:
        """Return {metric: [norm, head]} of attention: the largest and smallest weight of a row, averaged over rows, and
        of a sequence, averaged over sequences.

        With a bias of positions also entropies of rows. `terms`: the sums of these quantities, and their counts.
        """
        over = {
            "row_max": "rows",
            "row_min": "rows",
            "sequence_max": "sequences",
            "sequence_min": "sequences",
        }
        # Elsewhere entropies come from the scores; a bias of positions is in the weights only.
        if self.subject.position_bias:
            over = {"entropy": "rows", "entropy_normalised": "rows"} | over
        means = {}
        # With a single N the second group of the sums is empty: 0 / 0.
        with np.errstate(invalid="ignore"):
            for name, count in over.items():
                means[f"attention.{name}"] = terms[name] / terms[count]
        return means

    def _table(
        self, values: dict[str, Array], place: dict[str, Any], heads: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Yield rows for each of `values` ({metric: [norm, head]}): one per norm with the mean over heads; with
        `heads`, one per head.

        `place`: the columns `site` and `layer` of the rows.
        """
        for metric, value in values.items():
            # Not strict: with a single N the sums have a second, empty group.
            for norm, of_heads in zip(self.norms, value, strict=False):
                row = {**place, "metric": metric, "component": f"{norm:g}"}
                yield row | {"value": float(of_heads.mean())}
                if not heads:
                    continue
                for head, v in enumerate(of_heads):
                    yield row | {"head": head, "value": float(v)}


def _sum_vectors(x: Tensor, terms: frozenset[str]) -> dict[str, Tensor]:
    """Return the sums `terms` over the vectors x of each sequence [sequence, head, token, dim], by term; no position
    is masked.
    """
    masks = torch.ones(len(x), 1, x.shape[2], device=x.device)
    return {
        k: v for k, v in sum_vectors(x, masks, None, terms)[0].items() if k in terms
    }


def _sum_rows(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sum attention rows that see several keys, and take extremes over each sequence; return {term: [sequence, head]}.

    `rows`: statistics of rows (keys, entropy, row_max, row_min), [sequence, head, query] each.
    """
    # A row with a single key has weight 1 whatever the scores are: it would only dilute the means.
    several = (rows["keys"] > 1).double()
    values = {
        name: (several * rows[name]).sum(-1)
        for name in ("entropy", "row_max", "row_min")
    }
    # A row with one key has ln 1 = 0 below the line; it has weight 0, so that any other
    # divisor does.
    values["entropy_normalised"] = (
        several * rows["entropy"] / rows["keys"].clamp(min=2).log()
    ).sum(-1)
    # Rows that do not count must not be an extreme: weights lie in [0, 1], so that they
    # count as 0 for the largest and as 1 for the smallest.
    values["sequence_max"] = (several * rows["row_max"]).amax(-1)
    values["sequence_min"] = rows["row_min"].masked_fill(several == 0, 1.0).amin(-1)
    one = torch.ones_like(values["sequence_max"])
    return values | {"rows": several.sum(-1), "sequences": one}


Norms = tuple[Array, Array]
"""(mean token norm, norm of the mean), each [norm, 2]: input and output."""

KINDS = ("token_norm", "mean_norm")
TOLERANCE = 1e-6
"""Norms that differ by less than this share are equal: at N = 0 a normalised input already has the output's norm."""
PRECISION = 1e-4
"""Relative precision of N*, far below its spread over seeds."""


def find_brackets(
    norms: Sequence[float], gap: Array, scale: Array
) -> list[tuple[float, float]]:
    """Return the pairs of neighbouring N (norm of the bias) between which `gap` = output − input changes sign.

    `gap` and `scale` are [norm]. Gaps below TOLERANCE · `scale` have no sign.
    """
    signs = np.where(np.abs(gap) > TOLERANCE * scale, np.sign(gap), 0)
    known = np.flatnonzero(signs)
    # N without a sign are passed over: the bracket then reaches to the next N that has
    # one.
    return [
        (norms[i], norms[j])
        for i, j in pairwise(known.tolist())
        if signs[i] != signs[j]
    ]


def list_fixed_points(
    norms: Sequence[float], at_grid: Norms, at: Callable[[float], Norms]
) -> list[dict[str, Any]]:
    """Return rows of the long table on the fixed points, the N (norm of the bias) at which a block's output is as long
    as its input.

    They hold the number of crossings, and for each crossing (component) N* and the norm there. N* is found by Brent's
    method.

    at_grid  norms of input and output at all `norms`: (mean token norm, norm of the mean), each [norm, 2]
    at       measures the same at any one N
    """
    # Brent's method begins at the ends of the bracket, which the grid holds already: a
    # pass over all sequences is not repeated.
    known = {n: (at_grid[0][i], at_grid[1][i]) for i, n in enumerate(norms)}

    def measured(norm: float, kind: int) -> list[float]:
        """Return [norm of input, norm of output] at one N, measured only once. `kind`: 0 for token norms, 1 for the
        norm of the mean.
        """
        if norm not in known:
            token, mean = at(norm)
            known[norm] = token[0], mean[0]
        return list(map(float, known[norm][kind]))

    def gap(norm: float, kind: int) -> float:
        """Return output norm − input norm at one N. `kind`: 0 for token norms, 1 for the norm of the mean."""
        before, after = measured(norm, kind)
        return after - before

    rows: list[dict[str, Any]] = []
    for kind, name in enumerate(KINDS):
        pairs = at_grid[kind]
        solved = []
        for low, high in find_brackets(
            norms, pairs[:, 1] - pairs[:, 0], pairs.max(axis=1)
        ):
            solved.append(
                float(
                    brentq(
                        gap, low, high, (kind,), xtol=PRECISION * high, rtol=PRECISION
                    )
                )
            )
        rows.append({"metric": f"fixed_point.{name}.crossings", "value": len(solved)})
        for which, norm in enumerate(solved, start=1):
            for metric, value in {"": norm, ".norm": measured(norm, kind)[1]}.items():
                rows.append(
                    {
                        "metric": f"fixed_point.{name}{metric}",
                        "component": str(which),
                        "value": value,
                    }
                )
    return [{"site": "hidden", **row} for row in rows]
