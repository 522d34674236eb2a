"""What one pass computes, and everything accumulated so far: a value that can be saved, restored, merged and
tabulated.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anisoscope.axes import FREQUENCY_BINS, LAYER_QUANTITIES, POSITION_EDGES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import MeasureError, OutputError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.measure.tabulate import tabulate
from anisoscope.models.streams import Layout
from anisoscope.store import write_atomic
from anisoscope.sums.classes import add_class_sums, pooled
from anisoscope.sums.groups import Sums, row_sums, vector_sums
from anisoscope.sums.moments import EVERY, Moments, add_head_moments
from anisoscope.sums.reservoir import Reservoir

WHOLE = frozenset({"n", "zero", "nonfinite", "vector", "unit", "norm", "norm_square"})
"""What is summed of whole images as vectors, whose millions of dimensions have no spectrum and no shares."""
WHOLE_GROUPS = 8


@dataclass
class _Masks:
    """One batch's stream on the device: weights of the policies and subsets."""

    real: Tensor
    policies: Tensor
    subsets: Tensor

    @classmethod
    def of(cls, stream: Stream, policies: Sequence[str]) -> "_Masks":
        real, special = stream.mask, stream.special & stream.mask
        position = real.long().cumsum(1) - 1
        first = real & (position == 0)
        by_name = {"all": real, "content": real & ~special, "no-first": real & ~first}
        edges = torch.tensor(POSITION_EDGES, device=real.device)
        position_bin = torch.where(real, torch.bucketize(position, edges, right=True) - 1, -1)
        frequency = stream.frequency if stream.frequency is not None else torch.full_like(position, -1)
        subsets = [special & ~first, first, real & ~first & ~special]
        subsets += [frequency == i for i in range(FREQUENCY_BINS)] + [
            position_bin == i for i in range(len(POSITION_EDGES))
        ]
        return cls(real, torch.stack([by_name[p] for p in policies], 1), torch.stack([s & real for s in subsets], 1))


@dataclass
class Measurement:
    """Everything accumulated so far: a value that can be saved, restored, merged and tabulated.

    `batches` are the indices, in the plan whose fingerprint is `plan`, of the batches summed. `weights` holds, by the
    name of a matrix of the model, terms of what is measured of weights: the same whichever batches were seen.
    `classes` are the names of the classes of labelled sequences.
    """

    settings: Settings
    plan: str = ""
    batches: set[int] = field(default_factory=set)
    weights: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    sums: Sums = field(init=False)
    moments: Moments | None = field(init=False, default=None)
    reservoirs: dict[str, Reservoir] = field(init=False, default_factory=dict)
    sites: dict[str, Site] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.sums = Sums(self.settings.groups)
        self._terms = {q: self._needs(q) for q in ("hidden", "final", "query", "key", "value")}
        self._moments = any("moment" in metric.needs for metric in self.settings.chosen)
        sampled = self.settings.sample_heads or any("sample" in m.quantities for m in self.settings.chosen)
        self._sampled = self.settings.sample if sampled else 0

    def _needs(self, quantity: str) -> frozenset[str]:
        asked = {quantity} | ({"query_key"} if quantity in ("query", "key") else set())
        needs = frozenset().union(*(m.needs for m in self.settings.chosen if asked & set(m.quantities)))
        needs |= {"n", "zero", "nonfinite"}
        if quantity in ("hidden", "final") and any("sample" in m.quantities for m in self.settings.chosen):
            needs |= {"vector"}  # the sample is centred on the mean of all
        return needs - {"unit_square"} if quantity in ("query", "key", "value") else needs

    def begin(self, batch: Batch, device: torch.device, layout: Layout | None = None) -> dict[str, Tensor]:
        """Prepare for a batch's forward call; the real-token masks by stack, for the tap. Without the model's `layout`
        the batch's streams are those of the stacks.
        """
        self._layout = layout
        self._unit = batch.unit.to(device)
        self._group = self._unit % self.settings.groups
        streams = batch.streams if layout is None else layout.streams(batch)
        self._label = self._labels(batch, device)
        self._streams = {stack: stream.to(device) for stack, stream in streams.items()}
        self._implied: dict[tuple[int, int], _Masks] = {}
        starts = [stream.start.to(device) for stream in batch.streams.values()]
        self._start = starts[0] if starts else torch.zeros_like(self._unit)
        self._masks = {stack: _Masks.of(stream, self.settings.policies) for stack, stream in self._streams.items()}
        self.sums.units.update(batch.unit.tolist())
        for stack, stream in self._streams.items():
            self._start_sample(stack, stream.start, self._masks[stack])
        return {stack: stream.mask for stack, stream in self._streams.items()}

    def _labels(self, batch: Batch, device: torch.device) -> Tensor | None:
        """The class of each sequence, where metrics of classes are asked for. UsageError where the batch tells none."""
        if "class" not in self.settings.quantities:
            return None
        if batch.label is None or not self.classes:
            came = "batches without labels" if batch.label is None else "labels whose classes the plan does not tell"
            cure = "use anisoscope classes; or give vectors with labels, or `labels` [sequence] in a list of dicts"
            raise UsageError("labelled sequences, for class_direction", came, cure)
        if int(batch.label.max()) >= len(self.classes):
            expected = f"labels below {len(self.classes)}, the number of classes"
            raise UsageError(expected, str(int(batch.label.max())), "number the classes from 0")
        return batch.label.to(device)

    def _start_sample(self, name: str, start: Tensor, masks: _Masks) -> Reservoir:
        reservoir = self.reservoirs.setdefault(name, Reservoir(self._sampled, self.settings.seed))
        if self._sampled:
            reservoir.begin(self._unit, start, masks.policies[:, 0])
        return reservoir

    def end(self, index: int | None = None) -> None:
        """After a batch's forward call; `index` of the batch in its plan (none given: the next)."""
        for reservoir in self.reservoirs.values():
            reservoir.end()
        self.batches.add(len(self.batches) if index is None else index)
        if self.moments is not None and len(self.batches) % EVERY == 0:
            self.moments.flush()

    def receive(self, site: Site, value: Any) -> None:
        """Reduce to sums, on the spot, what the tap hands on."""
        self.sites[site.name] = site
        if site.quantity == "attention":
            self._add_rows(site, value)
        elif site.quantity == "centred":
            for which, rows in value.items():
                self._add_rows(site, rows, f"{which}.")
        elif site.quantity == "scores":
            self.sums.add(site.name, value, self._group)
        elif site.quantity in LAYER_QUANTITIES:
            masks = self._stream_masks(site, site.stack, value)
            self._add_vectors(site, value.unsqueeze(1), masks)
            if self._label is not None and site.quantity == "hidden":
                x = pooled(value, masks.real, self.settings.at)
                add_class_sums(self.sums, site.name, x, self._label, self._group, len(self.classes))
        else:
            stack = "encoder" if site.kind == "cross" and site.quantity != "query" else site.stack
            self._add_vectors(site, value, self._stream_masks(site, stack, value.select(1, 0)))

    def _stream_masks(self, site: Site, stack: str, x: Tensor) -> _Masks:
        """The masks of a stack; every position is real in one that no corpus speaks of."""
        if len(x) != len(self._unit):
            expected = f"vectors of {len(self._unit)} sequences at {site.name}, as many as units in the batch"
            cure = "set tokens_first=True where blocks pass on [token, sequence, dim]; else measure another part"
            raise MeasureError(expected, f"[sequence, token, …] of {tuple(x.shape[:2])}", cure)
        if stack not in self._masks:
            return self._implied_masks(x, self._layout.specials(site) if self._layout and x.shape[1] > 1 else 0)
        masks = self._masks[stack]
        if masks.real.shape != x.shape[:2]:
            raise MeasureError(
                f"{stack} sites of shape {tuple(masks.real.shape)} as in its inputs",
                str(tuple(x.shape[:2])),
                "name the stream of these sites in Batch.streams",
            )
        return masks

    def _implied_masks(self, x: Tensor, specials: int) -> _Masks:
        """Masks of `specials` tokens before the rest, all real; one for all sites [sequence, token, …] of a length."""
        length = x.shape[1]
        if (length, specials) not in self._implied:
            every = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            special = every & (torch.arange(length, device=x.device) < specials)
            self._implied[length, specials] = _Masks.of(Stream(every, special, self._start), self.settings.policies)
        return self._implied[length, specials]

    def _add_vectors(self, site: Site, x: Tensor, masks: _Masks) -> None:
        terms = self._terms[site.measured_as]
        if self.settings.flatten == "image" and site.quantity in LAYER_QUANTITIES and x.shape[2] == 1:
            values, _ = vector_sums(x, masks.real.unsqueeze(1), None, terms & WHOLE)
            self.sums.add(site.name, values, self._group % WHOLE_GROUPS)
            return
        subsets = masks.subsets if "subset_unit" in terms else None
        values, inverse = vector_sums(x, masks.policies, subsets, terms)
        self.sums.add(site.name, values, self._group)
        if site.quantity in LAYER_QUANTITIES:
            if self._moments:
                self._add_moments(site, x[:, 0], masks, inverse[:, 0])
            if self._sampled:
                self._reservoir(site, masks).add(site.name, x[:, 0])
        elif "head_moment" in terms and site.quantity != "value":
            weight = masks.policies[:, :1] * (inverse > 0)
            groups = min(self.settings.spectrum_groups or 8, self.settings.groups)
            add_head_moments(self.sums, site.name, x, weight, self._group % groups, groups)
        if self.settings.sample_heads and self._sampled and site.quantity in ("query", "key") and site.kind == "self":
            self._reservoir(site, masks).add(site.name, x.transpose(1, 2))

    def _reservoir(self, site: Site, masks: _Masks) -> Reservoir:
        """The sample of a stack; where lengths differ from site to site, a site's own."""
        if site.stack in self._masks:
            return self.reservoirs[site.stack]
        return self._start_sample(site.name, self._start, masks)

    def _add_moments(self, site: Site, x: Tensor, masks: _Masks, inverse: Tensor) -> None:
        if self.moments is None:
            groups = self.settings.spectrum_groups or (8 if x.shape[-1] <= 1024 else 1)
            self.moments = Moments(self.sums, min(groups, self.settings.groups))
        weight = masks.policies[:, 0] & (inverse > 0)
        groups = self.settings.spectrum_groups or (8 if x.shape[-1] <= 1024 else 1)
        self.moments.add(site.name, x, weight, inverse, self._group % min(groups, self.moments.groups))

    def _add_rows(self, site: Site, rows: dict[str, Tensor], prefix: str = "") -> None:
        """Attention rows of a batch; `prefix`: of their terms."""
        keys = rows["keys"]
        stream = self._masks.get(site.stack)
        known = stream is not None and stream.real.shape[1] == keys.shape[2]
        real = stream.real if stream is not None and known else torch.ones_like(keys[:, 0], dtype=torch.bool)
        terms = row_sums(rows, real.unsqueeze(1) & (keys > 0))
        self.sums.add(site.name, {prefix + name: value for name, value in terms.items()}, self._group)

    def merge(self, other: "Measurement") -> "Measurement":
        """Both together, as if measured in one go. UsageError for other settings, MeasureError for batches that both
        hold.
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
        weights, classes = self.weights | other.weights, self.classes or other.classes
        merged = Measurement(self.settings, plan, self.batches | other.batches, weights, classes)
        for part in (self, other):
            if part.moments is not None:
                part.moments.flush()
        merged.sums = self.sums.merge(other.sums)
        merged.moments = None if self.moments is None else Moments(merged.sums, self.moments.groups)
        merged.sites = self.sites | other.sites
        empty = Reservoir(self._sampled, self.settings.seed)
        for stack in self.reservoirs.keys() | other.reservoirs.keys():
            merged.reservoirs[stack] = self.reservoirs.get(stack, empty).merge(other.reservoirs.get(stack, empty))
        return merged

    def records(self) -> pd.DataFrame:
        """The long table of all chosen metrics at all sites."""
        if self.moments is not None:
            self.moments.flush()
        chosen, policies = self.settings.chosen, self.settings.policies
        return tabulate(self.sums, self.sites, self.reservoirs, chosen, policies, self.weights, self.classes)

    def excluded(self) -> dict[str, dict[str, int]]:
        """Vectors left out, by site: {"encoder.3.hidden": {"zero": 2, "nonfinite": 0}}; sites with none are not
        named.
        """
        counts = {
            site: {
                term: int(self.sums.terms[site, term].sum())
                for term in ("zero", "nonfinite")
                if (site, term) in self.sums.terms
            }
            for site in self.sums.sites()
        }
        return {site: count for site, count in counts.items() if any(count.values())}

    def save(self, path: Path) -> None:
        tensors = {f"sums {site}|{term}": value.cpu() for (site, term), value in self.sums.terms.items()}
        tensors |= {} if self.moments is None else {k: v.cpu() for k, v in self.moments.tensors("pending ").items()}
        for stack, reservoir in self.reservoirs.items():
            tensors |= reservoir.tensors(f"sample {stack} ")
        tensors |= {
            f"weights {name}|{term}": value for name, terms in self.weights.items() for term, value in terms.items()
        }
        for name, held in (("units", self.sums.units), ("batches", self.batches)):
            tensors[name] = torch.tensor(sorted(held), dtype=torch.int64)
        described = {"plan": self.plan, "moment_groups": str(self.moments.groups if self.moments else 0)}
        described["classes"] = json.dumps(self.classes)
        described["sites"] = " ".join(
            f"{s.stack},{s.layer},{s.quantity},{s.stage},{s.kind}" for s in self.sites.values()
        )
        write_atomic(
            path,
            lambda temporary: save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, metadata=described),
        )

    @classmethod
    def restore(cls, path: Path, settings: Settings, plan: str | None = None) -> "Measurement":
        """A measurement read back from what `save` wrote. MeasureError if it belongs to another plan; OutputError if
        the file is damaged.
        """
        try:
            with safe_open(path, framework="pt") as file:
                described, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            classes = tuple(json.loads(described.get("classes", "[]")))
            self = cls(settings, described["plan"], set(tensors.pop("batches").tolist()), classes=classes)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            cure = "remove the file: --resume then measures its batches again"
            raise OutputError(f"the sums of a measurement in {path}", f"a damaged file ({error})", cure) from error
        if plan not in (None, self.plan):
            raise MeasureError(
                "a state of the same corpus and settings", f"another plan in {path}", "begin anew with --overwrite"
            )
        for text in described["sites"].split():
            stack, layer, quantity, stage, kind = text.split(",")
            site = Site(stack, None if layer == "None" else int(layer), quantity, stage, kind)
            self.sites[site.name] = site
        self.sums.units = set(tensors.pop("units").tolist())
        for name, tensor in tensors.items():
            kind, _, place = name.partition(" ")
            where, _, term = place.partition("|")
            if kind == "sums":
                self.sums.terms[where, term] = tensor
            elif kind == "weights":
                self.weights.setdefault(where, {})[term] = tensor
        if int(described["moment_groups"]):
            self.moments = Moments(self.sums, int(described["moment_groups"]))
            self.moments.restore(tensors, "pending ")
        for stack in {name.split()[1] for name in tensors if name.startswith("sample ")}:
            self.reservoirs[stack] = Reservoir(self._sampled, settings.seed)
            self.reservoirs[stack].restore(tensors, f"sample {stack} ")
        return self
