"""What a pass over a corpus accumulates: sums and samples that can be saved, restored, merged and tabulated."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anisoscope.axes import EVERYWHERE, LAYER_QUANTITIES, Place, Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture.proof import Proof
from anisoscope.errors import MeasureError, OutputError, UsageError
from anisoscope.measure.masks import CPU, Masks, Near, require_labels, to_accumulation_device
from anisoscope.measure.settings import Settings
from anisoscope.measure.tabulate import Replicates, build_long_table
from anisoscope.models.blocks import Layout
from anisoscope.reads.base import Gathered
from anisoscope.store import write_atomic
from anisoscope.sums.device import choose_sum_device
from anisoscope.sums.extremes import Extremes
from anisoscope.sums.groups import Sums
from anisoscope.sums.moments import EVERY, WIDEST, Moments
from anisoscope.sums.reservoir import Reservoir


@dataclass
class Measurement:
    """What a pass over a corpus has accumulated so far; it can be saved, restored, merged and tabulated.

    plan, batches    the fingerprint of the plan (list of batches), and the indices of the batches that are summed
    weights          terms of the model's matrices by name, whichever batches were seen
    classes          names of the classes of labelled sequences
    unseen, pieces   attention that cannot be captured; parts that batches were split into for lack of memory
    refused, proof   where attention was left out, and why; how the capture was verified on the first batch
    """

    settings: Settings
    plan: str = ""
    batches: set[int] = field(default_factory=set)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    unseen: set[str] = field(default_factory=set)
    pieces: int = 1
    refused: dict[Place, str] = field(default_factory=dict)
    proof: Proof | None = None
    sums: Sums = field(init=False)
    moments: Moments = field(init=False)
    extremes: Extremes = field(init=False)
    reservoirs: dict[str, Reservoir] = field(init=False)
    sites: dict[str, Site] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Start with empty sums, and the keepers (accumulators) that the chosen metrics need."""
        self.take(Sums(self.settings.groups))
        self.extremes = Extremes()
        self._keepers = self.settings.keepers
        self._placed = any(keeper.needs_places for keeper in self._keepers)
        self._sampled = self.settings.sampled
        self.reservoirs = defaultdict(partial(Reservoir, self._sampled, self.settings.seed))

    def take(self, sums: Sums) -> None:
        """Replace the sums kept so far by `sums`; further batches are added to these."""
        widest = inf if {metric.name for metric in self.settings.chosen} == {"spectrum"} else WIDEST
        self.sums, self.moments = sums, Moments(sums, self.settings.spectrum_groups, widest)

    def begin(self, batch: Batch, device: torch.device, layout: Layout | None = None) -> dict[str, Tensor]:
        """Prepare for a batch: its groups of units, labels and token masks; call it before the forward call.

        device   where the model runs
        layout   how the positions of the model's stacks relate to its inputs; None: as the batch's streams say

        Returns the masks of real tokens [sequence, token] by stack, for the capture.
        """
        self._layout = layout
        self._unit = batch.unit.to(CPU)
        self.group = self._unit % self.settings.groups
        self.label = require_labels(batch, self.classes) if self.settings.labelled else None
        self.moments.begin(self.group)
        start = next((stream.start for stream in batch.streams.values()), torch.zeros_like(self._unit))
        self._start = start.to(CPU)
        self._masks: dict[str | tuple[int, int], Masks] = {}
        self._copies: dict[tuple[int, torch.device], Any] = {}
        self.sums.units.update(self._unit.tolist())
        for stack, given in (batch.streams if layout is None else layout.streams(batch)).items():
            stream = given.to(CPU)
            self._masks[stack] = self._make_masks(stream, _ids_of(batch, stack))
            self._start_sample(stack, stream.start, self._masks[stack])
        near = choose_sum_device(device)
        return {stack: self.near(masks, near).real for stack, masks in self._masks.items() if isinstance(stack, str)}

    def _make_masks(self, stream: Stream, ids: Tensor | None = None) -> Masks:
        """Return the token masks of a stream of inputs, with the unit and position of each token if a keeper needs
        them.

        ids   the token ids [sequence, token], if the model reads ids
        """
        unit = self._unit if self._placed else None
        return Masks.of(stream, self.settings.tokens, unit, None if ids is None else ids.to(CPU))

    def near(self, item: Near, device: torch.device) -> Near:
        """Copy masks, units or labels of the batch to a device, at most once per batch and device."""
        if device == CPU:
            return item
        key = id(item), device
        if key not in self._copies:
            self._copies[key] = item.to(device)
        return self._copies[key]  # type: ignore[no-any-return]

    def _start_sample(self, name: str, start: Tensor, masks: Masks) -> Reservoir:
        """Choose which tokens of the current batch may enter the sample of a stack, and return the sample.

        name    the stack, or a site with a sample of its own
        start   [sequence]: number of each sequence's first token in its unit
        masks   the token masks; only tokens of the first token policy are sampled
        """
        if self._sampled:
            self.reservoirs[name].begin(self._unit, start, masks.policies[:, 0])
        return self.reservoirs[name]

    def end(self, index: int | None = None) -> None:
        """Finish a batch after its forward call; `index` is its index in the plan (None: the next one)."""
        for reservoir in self.reservoirs.values():
            reservoir.end()
        self.batches.add(len(self.batches) if index is None else index)
        if len(self.batches) % EVERY == 0:
            self.moments.flush()

    def refuse(self, refused: Mapping[Place, str]) -> None:
        """Drop what was kept of the attention of some layers, if it turns out that it cannot be read completely there.

        refused   the reason by layer (stack, number, self- or cross-attention)
        """
        if refused.keys() <= self.refused.keys():
            return
        self.refused = {**refused, **self.refused}
        gone = {name for name, site in self.sites.items() if self._is_refused(site)}
        self.sites = {name: site for name, site in self.sites.items() if name not in gone}
        self.sums.terms = {key: value for key, value in self.sums.terms.items() if key[0] not in gone}
        self.extremes = self.extremes.without(gone)
        for name in gone & self.reservoirs.keys():  # which make those of other sites as they come
            del self.reservoirs[name]

    def _is_refused(self, site: Site) -> bool:
        """Return whether the site is of attention that was left out."""
        of_head = site.quantity not in LAYER_QUANTITIES
        return of_head and (site.place in self.refused or EVERYWHERE in self.refused)

    def note_proof(self, proof: Proof | None) -> None:
        """Combine the verification of the capture with an earlier one; the larger errors are kept."""
        if proof is not None:
            self.proof = proof if self.proof is None else self.proof.merge(proof)

    def receive(self, site: Site, value: Any) -> None:
        """Reduce a captured tensor to sums at once, with every keeper that takes its site."""
        if self._is_refused(site):  # in an earlier part of the pass
            return
        self.sites[site.name] = site
        value = to_accumulation_device(value)
        for keeper in self._keepers:
            if keeper.takes(site):
                keeper.add(site, value, self)

    def add_sums(self, site: str, values: Mapping[str, Tensor]) -> None:
        """Add per-sequence sums of the current batch, by name, to the groups of their units; `site` is the place in the
        model.

        values   tensors [sequence, …] by name of the sum
        """
        self.sums.add(site, values, self.near(self.group, next(iter(values.values())).device))

    def add_sample(self, site: Site, x: Tensor) -> None:
        """Offer vectors [sequence, token, …] to the sample of their stack.

        If the stack has no input stream, lengths may differ by site, and the site gets a sample of its own.
        """
        if self._sampled:
            own = site.stack not in self._masks
            masks = self._stream_masks(site, site.stack, x)
            reservoir = self._start_sample(site.name, self._start, masks) if own else self.reservoirs[site.stack]
            reservoir.add(site.name, x)

    def real_queries(self, site: Site, keys: Tensor) -> Tensor:
        """Return which queries of an attention layer are real tokens [sequence, query].

        All are, if no input stream has that length.

        keys   any statistic of the attention rows [sequence, head, query]; only its shape and device are used
        """
        masks = self._masks.get(site.stack)
        if masks is not None and masks.real.shape[1] == keys.shape[2]:
            return self.near(masks, keys.device).real
        return torch.ones_like(keys[:, 0], dtype=torch.bool)

    def places_of_queries(self, site: Site, keys: Tensor) -> Tensor:
        """Return for each query of an attention layer which token it is [sequence, query, 4] (see
        `sums.extremes.WHERE`).

        keys   any statistic of the attention rows [sequence, head, query]; only its shape and device are used
        """
        masks = self._masks.get(site.stack)
        if masks is None or masks.real.shape[1] != keys.shape[2]:
            every = torch.ones_like(keys[:, 0], dtype=torch.bool, device=CPU)
            masks = self._make_masks(Stream(every, ~every, self._start))
        return self.near(masks, keys.device).places

    def positions_of(self, site: Site, x: Tensor) -> Masks:
        """Return the token masks for vectors [sequence, token, dim] or heads [sequence, head, token, dim] of a site."""
        if site.quantity in LAYER_QUANTITIES:
            return self._stream_masks(site, site.stack, x)
        if site.kind == "cross" and site.quantity != "query":
            return self._key_masks(site, x.select(1, 0))
        return self._stream_masks(site, site.stack, x.select(1, 0))

    def _key_masks(self, site: Site, x: Tensor) -> Masks:
        """Return the token masks of cross-attention keys or values x [sequence, token, dim], which another stack made.

        They are the encoder's masks, cut if the encoder does not pass on its padding. If the keys come from a tower
        (image or sound part of the model) without an input stream, they are the masks of the tower's vectors.
        """
        masks, length = self._masks.get("encoder"), x.shape[1]
        if masks is None or masks.real.shape == x.shape[:2] or len(x) != len(self._unit):
            return self._stream_masks(site, "encoder", x)
        if masks.real.shape[1] > length and not bool(masks.real[:, length:].any()):
            return masks.cut(length)
        of_towers = [own for at, own in self._masks.items() if isinstance(at, tuple) and at[0] == length]
        return of_towers[0] if len(of_towers) == 1 else self._stream_masks(site, "encoder", x)

    def _stream_masks(self, site: Site, stack: str, x: Tensor) -> Masks:
        """Return the token masks of a stack (encoder, decoder), for values x [sequence, token, …] captured at a site of
        it.

        In a stack without an input stream every position is real, and tokens that the model puts before them are
        special. MeasureError if the shape does not fit the batch.
        """
        if len(x) != len(self._unit):
            expected = f"vectors of {len(self._unit)} sequences at {site.name}, as many as units in the batch"
            cure = "set tokens_first=True where blocks pass on [token, sequence, dim]"
            cure += " (inputs that are so too: as an anisoscope.batch.Batch, with the unit of each sequence)"
            cure += "; give one sequence a batch to a model that reads the patches of all images in one row (Qwen-VL)"
            cure += "; else measure another part"
            raise MeasureError(expected, f"[sequence, token, …] of {tuple(x.shape[:2])}", cure)
        if stack not in self._masks:
            length = x.shape[1]
            specials = self._layout.specials(site) if self._layout and length > 1 else 0
            if (length, specials) not in self._masks:
                every = torch.ones(x.shape[:2], dtype=torch.bool)
                parts = self._layout.parts.get(stack, 1) if self._layout else 1
                in_part = torch.arange(length) % max(1, length // parts)
                stream = Stream(every, every & (in_part < specials), self._start)
                self._masks[length, specials] = self._make_masks(stream)
            return self._masks[length, specials]
        masks = self._masks[stack]
        if masks.real.shape != x.shape[:2]:
            expected = f"{stack} sites of shape {tuple(masks.real.shape)} as in its inputs"
            raise MeasureError(expected, str(tuple(x.shape[:2])), "name the stream of these sites in Batch.streams")
        return masks

    def merge(self, other: "Measurement") -> "Measurement":
        """Return both measurements together, as if they had been measured in one pass.

        UsageError if their settings differ, MeasureError if both hold the same batch.
        """
        if self.settings != other.settings:
            ours, theirs = vars(self.settings), vars(other.settings)
            name = next(name for name in ours if ours[name] != theirs.get(name))
            expected = f"two measurements of {name} = {ours[name]!r}"
            raise UsageError(expected, repr(theirs.get(name)), "measure both with the same settings")
        twice = self.batches & other.batches if self.plan == other.plan != "" else set()
        if twice:
            got = f"{len(twice)} of the same batches in both"
            raise MeasureError("measurements of different batches", got, "name each part once")
        if self.classes and other.classes and self.classes != other.classes:
            expected = f"two measurements of the classes {', '.join(self.classes)}"
            raise MeasureError(expected, ", ".join(other.classes), "measure both with the same classes")
        plans = {self.plan, other.plan} - {""}
        plan = plans.pop() if len(plans) == 1 else ""
        held = self.batches | other.batches, self.weights | other.weights
        merged = Measurement(self.settings, plan, *held, self.classes or other.classes, self.unseen | other.unseen)
        merged.sites, merged.pieces = self.sites | other.sites, max(self.pieces, other.pieces)
        for part in (self, other):
            part.moments.flush()
            for name, sample in part.reservoirs.items():
                merged.reservoirs[name] = merged.reservoirs[name].merge(sample)
        merged.take(self.sums.merge(other.sums))
        merged.extremes = self.extremes.merge(other.extremes)
        merged.refuse(self.refused | other.refused)
        for part in (self, other):
            merged.note_proof(part.proof)
        return merged

    def records(self, replicates: Replicates | None = None) -> pd.DataFrame:
        """Return the long table of results: all chosen metrics at all sites.

        `replicates` receives the values without each group of units.
        """
        return build_long_table(self.kept(), self.settings.chosen, self.settings.tokens, replicates)

    def kept(self) -> Gathered:
        """Return everything that was accumulated, in the form that metrics read."""
        self.moments.flush()
        return Gathered(self.sums, self.sites, self.reservoirs, self.weights, self.classes, self.extremes)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes that the measurement holds."""
        kept = [*self.sums.terms.values(), *self.moments.pending.values()]
        kept += [x for sample in self.reservoirs.values() for x in sample.vectors.values()]
        return sum(x.numel() * x.itemsize for x in kept) + self.extremes.nbytes

    def excluded(self) -> dict[str, dict[str, int]]:
        """Count the vectors left out, for sites that have some: {"encoder.3.hidden": {"zero": 2, "nonfinite": 0}}."""
        terms = self.sums.terms
        counts = {
            site: {term: int(terms[site, term].sum()) for term in ("zero", "nonfinite") if (site, term) in terms}
            for site in self.sums.sites()
        }
        return {site: count for site, count in counts.items() if any(count.values())}

    def save(self, path: Path, more: Mapping[str, str] = {}) -> None:
        """Write the whole measurement to a file; the texts in `more` are added to its metadata."""
        tensors = {f"sums {site}|{term}": value for (site, term), value in self.sums.terms.items()}
        tensors |= self.moments.tensors("pending ") | self.extremes.tensors("extremes ")
        for name, reservoir in self.reservoirs.items():
            tensors |= reservoir.tensors(f"sample {name} ")
        tensors |= {f"weights {name}|{term}": x for name, terms in self.weights.items() for term, x in terms.items()}
        for name, held in (("units", self.sums.units), ("batches", self.batches)):
            tensors[name] = torch.tensor(sorted(held), dtype=torch.int64)
        tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
        described = {**more, "plan": self.plan, "sites": json.dumps([astuple(site) for site in self.sites.values()])}
        described |= {"classes": json.dumps(self.classes), "unseen": json.dumps(sorted(self.unseen))}
        described |= {"refused": json.dumps([[*place, why] for place, why in self.refused.items()])}
        if self.proof is not None:
            described |= {"proof": self.proof.to_json()}
        write_atomic(path, lambda temporary: save_file(tensors, temporary, metadata=described))

    @classmethod
    def restore(cls, path: Path, settings: Settings, plan: str | None = None) -> "Measurement":
        """Read a measurement that `save` wrote.

        settings   of the measurement
        plan       hash of the list of batches that it must have; None: any

        MeasureError if it belongs to another list of batches, OutputError if the file is damaged.
        """
        try:
            with safe_open(path, framework="pt") as file:
                described, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            batches, classes = set(tensors.pop("batches").tolist()), tuple(json.loads(described["classes"]))
            self = cls(settings, described["plan"], batches, {}, classes, set(json.loads(described["unseen"])))
            self.sites = {site.name: site for site in (Site(*each) for each in json.loads(described["sites"]))}
            refused = json.loads(described.get("refused", "[]"))
            self.refused = {(stack, layer, kind): why for stack, layer, kind, why in refused}
            self.proof = Proof.from_json(described["proof"]) if "proof" in described else None
            self.sums.units = set(tensors.pop("units").tolist())
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            cure = "remove the file: --resume then measures its batches again"
            raise OutputError(f"the sums of a measurement in {path}", f"a damaged file ({error})", cure) from error
        if plan not in (None, self.plan):
            expected = "a state of the same corpus and settings"
            raise MeasureError(expected, f"another plan in {path}", "start again with --overwrite")
        for name, tensor in tensors.items():
            kind, place, *_ = name.split(" ", 2)
            where, _, term = place.partition("|")
            if kind == "sums":
                self.sums.terms[where, term] = tensor
            elif kind == "weights":
                self.weights.setdefault(where, {})[term] = tensor
            elif kind == "sample" and place not in self.reservoirs:
                self.reservoirs[place].restore(tensors, f"sample {place} ")
        self.moments.restore(tensors, "pending ")
        self.extremes.restore(tensors, "extremes ")
        return self


def _ids_of(batch: Batch, stack: str) -> Tensor | None:
    """Return the token ids of a stack in a batch; None if the model is not given ids."""
    for name in (f"{stack}_input_ids", "input_ids"):
        if isinstance(batch.inputs.get(name), Tensor):
            return batch.inputs[name]  # type: ignore[no-any-return]
    return None
