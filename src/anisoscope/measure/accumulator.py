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
from anisoscope.measure.masks import (
    CPU,
    Masks,
    Near,
    require_labels,
    to_accumulation_device,
)
from anisoscope.measure.settings import Settings
from anisoscope.measure.tabulate import Replicates, build_long_table
from anisoscope.models.blocks import TokenPositions
from anisoscope.reads.base import Gathered
from anisoscope.renamed import rename_site
from anisoscope.store import write_atomic
from anisoscope.sums.device import choose_sum_device
from anisoscope.sums.extremes import Extremes
from anisoscope.sums.groups import Sums
from anisoscope.sums.moments import EVERY, WIDEST, Moments
from anisoscope.sums.reservoir import Reservoir, draw_tokens


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
        self.reservoirs = defaultdict(
            partial(Reservoir, self._sampled, self.settings.seed)
        )

    def take(self, sums: Sums) -> None:
        """Replace the sums kept so far by `sums`; further batches are added to these."""
        widest: float = WIDEST
        # Who asks for the spectrum alone accepts what it costs.
        if {metric.name for metric in self.settings.chosen} == {"spectrum"}:
            widest = inf
        self.sums = sums
        settings = self.settings
        self.moments = Moments(
            sums, settings.spectrum_groups, widest, settings.spectrum_share
        )

    def begin(
        self,
        batch: Batch,
        device: torch.device,
        positions: TokenPositions | None = None,
    ) -> dict[str, Tensor]:
        """Prepare for a batch: groups of units, labels and token masks are set up. Call it before the model's forward.

        device      where the model runs
        positions   finds which positions of each stack are real tokens; None: the batch's own streams say it

        Returns the masks of real tokens [sequence, token] by stack, for the capture.
        """
        self._positions = positions
        self._unit = batch.unit.to(CPU)
        self.group = self._unit % self.settings.groups
        self.label = None
        if self.settings.labelled:
            self.label = require_labels(batch, self.classes)
        self.moments.begin(self.group)
        # Stacks without a stream number their tokens as the first stream does.
        first = next(iter(batch.streams.values()), None)
        self._start = (
            torch.zeros_like(self._unit) if first is None else first.start.to(CPU)
        )
        self._masks: dict[str | tuple[int, int], Masks] = {}
        self._copies: dict[tuple[int, torch.device], Any] = {}
        self.sums.units.update(self._unit.tolist())
        streams = batch.streams if positions is None else positions.streams(batch)
        for stack, given in streams.items():
            stream = given.to(CPU)
            self._masks[stack] = self._make_masks(stream, _find_ids(batch, stack))
            self._start_sample(stack, stream.start, self._masks[stack])
        # Masks by name are those of stacks; others come later, for stacks without an input.
        near = choose_sum_device(device)
        return {
            stack: self.copy_to(masks, near).real
            for stack, masks in self._masks.items()
            if isinstance(stack, str)
        }

    def _make_masks(self, stream: Stream, ids: Tensor | None = None) -> Masks:
        """Return the token masks of a stream of inputs, with the unit and position of each token if a keeper needs
        them.

        ids   the token ids [sequence, token], if the model reads ids
        """
        if ids is not None:
            ids = ids.to(CPU)
        # Four numbers for each token: kept only if a metric says where its extremes
        # are.
        unit = self._unit if self._placed else None
        drawn = None
        if self.settings.spectrum_share < 1:
            # The number of a token in its unit, as the sample uses it: the same tokens
            # are drawn however texts are batched.
            index = stream.start.unsqueeze(1) + torch.arange(stream.mask.shape[1])
            drawn = draw_tokens(
                self.settings.spectrum_share,
                self.settings.seed,
                self._unit.unsqueeze(1),
                index,
            )
        return Masks.of(stream, self.settings.tokens, unit, ids, drawn)

    def copy_to(self, item: Near, device: torch.device) -> Near:
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
        # After a fixed number of batches: float32 sums stay short, and a resumed pass
        # rounds as one that was not interrupted.
        if len(self.batches) % EVERY == 0:
            self.moments.flush()

    def refuse(self, refused: Mapping[Place, str]) -> None:
        """Delete everything accumulated from the attention of some layers, because it cannot be read completely there.

        refused   {layer (stack, number, self- or cross-attention): the reason}
        """
        if refused.keys() <= self.refused.keys():
            return
        # The first reason stays: later ones may only follow from it.
        self.refused = {**refused, **self.refused}
        gone = {name for name, site in self.sites.items() if self._is_refused(site)}
        self.sites = {
            name: site for name, site in self.sites.items() if name not in gone
        }
        # Of earlier batches too: a mean over some of the batches would pass for one
        # over all.
        self.sums.terms = {
            key: value for key, value in self.sums.terms.items() if key[0] not in gone
        }
        self.extremes = self.extremes.without(gone)
        # Only samples that exist: to look one up creates it.
        for name in gone & self.reservoirs.keys():
            del self.reservoirs[name]

    def _is_refused(self, site: Site) -> bool:
        """Return whether the site belongs to attention that `refuse` has given up."""
        of_head = site.quantity not in LAYER_QUANTITIES
        return of_head and (site.place in self.refused or EVERYWHERE in self.refused)

    def note_proof(self, proof: Proof | None) -> None:
        """Store the result of a check that the capture leaves the model's outputs unchanged and reads them correctly.

        If there is a result already, as when parts of a run are merged, the larger error of each layer is kept.
        """
        if proof is not None:
            self.proof = proof if self.proof is None else self.proof.merge(proof)

    def receive(self, site: Site, value: Any) -> None:
        """Give a captured tensor to every keeper (accumulator) that wants its site; only sums of it are kept.

        value   a tensor, or a dict of tensors, that the model has just computed for the current batch
        """
        # Refused in an earlier part of the pass, which the capture does not know.
        if self._is_refused(site):
            return
        self.sites[site.name] = site
        # Once for all keepers that read the site.
        value = to_accumulation_device(value)
        for keeper in self._keepers:
            if keeper.takes(site):
                keeper.add(site, value, self)

    def add_sums(self, site: str, values: Mapping[str, Tensor]) -> None:
        """Add per-sequence sums of the current batch, by name, to the groups of their units; `site` is the place in the
        model.

        values   tensors [sequence, …] by name of the sum
        """
        self.sums.add(
            site, values, self.copy_to(self.group, next(iter(values.values())).device)
        )

    def add_sample(self, site: Site, x: Tensor) -> None:
        """Offer vectors [sequence, token, …] to the sample of their stack.

        If the stack has no input stream, lengths may differ by site, and the site gets a sample of its own.
        """
        if not self._sampled:
            return
        masks = self._find_stream_masks(site, site.stack, x)
        # Tokens of a stack are the same at all its sites, so one choice serves them
        # all. Maps of a convolutional network shrink from layer to layer.
        if site.stack in self._masks:
            reservoir = self.reservoirs[site.stack]
        else:
            reservoir = self._start_sample(site.name, self._start, masks)
        reservoir.add(site.name, x)

    def find_real_queries(self, site: Site, keys: Tensor) -> Tensor:
        """Return which queries of an attention layer are real tokens, not padding [sequence, query].

        If the number of queries is not that of any input stream's tokens, all are taken as real.

        keys   any statistic of the attention rows [sequence, head, query]; only its shape and device are used
        """
        masks = self._masks.get(site.stack)
        if masks is not None and masks.real.shape[1] == keys.shape[2]:
            return self.copy_to(masks, keys.device).real
        # As of the patches of an image, which are all real.
        return torch.ones_like(keys[:, 0], dtype=torch.bool)

    def locate_queries(self, site: Site, keys: Tensor) -> Tensor:
        """Return for each query of an attention layer which token it is [sequence, query, 4] (see
        `sums.extremes.WHERE`).

        keys   any statistic of the attention rows [sequence, head, query]; only its shape and device are used
        """
        masks = self._masks.get(site.stack)
        if masks is None or masks.real.shape[1] != keys.shape[2]:
            every = torch.ones_like(keys[:, 0], dtype=torch.bool, device=CPU)
            # Not known to be the tokens of any stream: numbered from the start of the
            # sequence, with no id.
            masks = self._make_masks(Stream(every, ~every, self._start))
        return self.copy_to(masks, keys.device).places

    def find_masks(self, site: Site, x: Tensor) -> Masks:
        """Return the token masks for vectors [sequence, token, dim] or heads [sequence, head, token, dim] of a site."""
        if site.quantity in LAYER_QUANTITIES:
            return self._find_stream_masks(site, site.stack, x)
        # In cross-attention only queries are the stack's own tokens; keys and values
        # come from another stack.
        if site.kind == "cross" and site.quantity != "query":
            return self._find_key_masks(site, x.select(1, 0))
        # Any head will do: only the axes of sequences and tokens are compared.
        return self._find_stream_masks(site, site.stack, x.select(1, 0))

    def _find_key_masks(self, site: Site, x: Tensor) -> Masks:
        """Return the token masks of cross-attention keys or values x [sequence, token, dim], which another stack made.

        They are the encoder's masks, cut if the encoder does not pass on its padding. If the keys come from a tower
        (image or sound part of the model) without an input stream, they are the masks of the tower's vectors.
        """
        masks = self._masks.get("encoder")
        length = x.shape[1]
        # Without masks, or if they fit, or in another number of sequences than units
        # (an error, which is explained there), nothing is to be chosen.
        if (
            masks is None
            or masks.real.shape == x.shape[:2]
            or len(x) != len(self._unit)
        ):
            return self._find_stream_masks(site, "encoder", x)
        is_longer = masks.real.shape[1] > length
        # An encoder that drops padding at the end leaves the real tokens where they
        # were.
        if is_longer and not bool(masks.real[:, length:].any()):
            return masks.cut(length)
        # Masks of a tower are kept by (length, number of special tokens); if several fit, none is known to be the one.
        of_towers = [
            own
            for key, own in self._masks.items()
            if isinstance(key, tuple) and key[0] == length
        ]
        if len(of_towers) == 1:
            return of_towers[0]
        return self._find_stream_masks(site, "encoder", x)

    def _find_stream_masks(self, site: Site, stack: str, x: Tensor) -> Masks:
        """Return the token masks of a stack (encoder, decoder), for values x [sequence, token, …] captured at a site of
        it.

        In a stack without an input stream every position is real, and tokens that the model puts before them are
        special. MeasureError if the shape does not fit the batch.
        """
        if len(x) != len(self._unit):
            expected = f"vectors of {len(self._unit)} sequences at {site.name}, as many as units in the batch"
            cure = "set tokens_first=True where blocks pass on [token, sequence, dim]"
            cure += " (inputs that are so too: as an anisoscope.batch.Batch, with the unit of each sequence)"
            cure += "; give one sequence per batch to a model that reads the patches of all images in one row (Qwen-VL)"
            cure += "; else measure another part"
            raise MeasureError(
                expected, f"[sequence, token, …] of {tuple(x.shape[:2])}", cure
            )
        if stack not in self._masks:
            return self._make_masks_without_stream(site, stack, x)
        masks = self._masks[stack]
        if masks.real.shape != x.shape[:2]:
            expected = (
                f"{stack} sites of shape {tuple(masks.real.shape)} as in its inputs"
            )
            raise MeasureError(
                expected,
                str(tuple(x.shape[:2])),
                "name the stream of these sites in Batch.streams",
            )
        return masks

    def _make_masks_without_stream(self, site: Site, stack: str, x: Tensor) -> Masks:
        """Return the token masks of a stack that reads no input stream, such as an image tower, for values of one site.

        Every position is real. In each part of a sequence (frame or crop of an image), those that the model puts before
        the others are special.
        """
        length = x.shape[1]
        parts = 1
        specials = 0
        if self._positions is not None:
            parts = self._positions.parts.get(stack, 1)
            # A single vector for each sequence is what was made of all its tokens.
            if length > 1:
                specials = self._positions.specials(site)
        if (length, specials) not in self._masks:
            position_in_part = torch.arange(length) % max(1, length // parts)
            real = torch.ones(x.shape[:2], dtype=torch.bool)
            stream = Stream(real, real & (position_in_part < specials), self._start)
            self._masks[length, specials] = self._make_masks(stream)
        return self._masks[length, specials]

    def merge(self, other: "Measurement") -> "Measurement":
        """Return both measurements together, as if they had been measured in one pass.

        UsageError if their settings differ, MeasureError if both hold the same batch.
        """
        self._require_compatible(other)
        plans = {self.plan, other.plan} - {""}
        merged = Measurement(
            self.settings,
            # Parts of two plans have none in common: batches with the same number are
            # then different ones.
            plan=plans.pop() if len(plans) == 1 else "",
            batches=self.batches | other.batches,
            weights=self.weights | other.weights,
            classes=self.classes or other.classes,
            unseen=self.unseen | other.unseen,
            pieces=max(self.pieces, other.pieces),
        )
        merged.sites = self.sites | other.sites
        for part in (self, other):
            # Pending products belong to the sums.
            part.moments.flush()
            for name, sample in part.reservoirs.items():
                merged.reservoirs[name] = merged.reservoirs[name].merge(sample)
        # Through `take`, so that later batches are added to the merged sums and not to
        # those of a part.
        merged.take(self.sums.merge(other.sums))
        merged.extremes = self.extremes.merge(other.extremes)
        # One part may have kept attention that the other found to be unreadable.
        merged.refuse(self.refused | other.refused)
        for part in (self, other):
            merged.note_proof(part.proof)
        return merged

    def _require_compatible(self, other: "Measurement") -> None:
        """Raise UsageError for other settings, MeasureError for the same batches or other classes."""
        if self.settings != other.settings:
            ours = vars(self.settings)
            theirs = vars(other.settings)
            name = next(name for name in ours if ours[name] != theirs.get(name))
            expected = f"two measurements of {name} = {ours[name]!r}"
            raise UsageError(
                expected, repr(theirs.get(name)), "measure both with the same settings"
            )
        # Without a plan, batches are numbered as they come, and equal numbers say nothing.
        same_plan = self.plan == other.plan != ""
        twice = self.batches & other.batches
        if same_plan and twice:
            got = f"{len(twice)} of the same batches in both"
            raise MeasureError(
                "measurements of different batches", got, "name each part once"
            )
        if self.classes and other.classes and self.classes != other.classes:
            expected = f"two measurements of the classes {', '.join(self.classes)}"
            raise MeasureError(
                expected, ", ".join(other.classes), "measure both with the same classes"
            )

    def records(self, replicates: Replicates | None = None) -> pd.DataFrame:
        """Return the long table of results: all chosen metrics at all sites.

        `replicates` receives the values without each group of units.
        """
        return build_long_table(
            self.gather(), self.settings.chosen, self.settings.tokens, replicates
        )

    def gather(self) -> Gathered:
        """Return everything that was accumulated, in the form that metrics read."""
        self.moments.flush()
        return Gathered(
            self.sums,
            self.sites,
            self.reservoirs,
            self.weights,
            self.classes,
            self.extremes,
        )

    @property
    def nbytes(self) -> int:
        """Return the number of bytes that the measurement holds."""
        tensors = [*self.sums.terms.values(), *self.moments.pending.values()]
        for sample in self.reservoirs.values():
            tensors += sample.vectors.values()
        return sum(x.numel() * x.itemsize for x in tensors) + self.extremes.nbytes

    def excluded(self) -> dict[str, dict[str, int]]:
        """Count the vectors left out, for sites that have some: {"encoder.3.hidden": {"zero": 2, "nonfinite": 0}}."""
        terms = self.sums.terms
        by_site = {}
        for site in self.sums.sites():
            counted = [term for term in ("zero", "nonfinite") if (site, term) in terms]
            counts = {term: int(terms[site, term].sum()) for term in counted}
            if any(counts.values()):
                by_site[site] = counts
        return by_site

    def save(self, path: Path, more: Mapping[str, str] = {}) -> None:
        """Write the whole measurement to a file; the texts in `more` are added to its metadata."""
        tensors = {
            f"sums {site}|{term}": value
            for (site, term), value in self.sums.terms.items()
        }
        tensors |= self.moments.tensors("pending ")
        tensors |= self.extremes.tensors("extremes ")
        for name, reservoir in self.reservoirs.items():
            tensors |= reservoir.tensors(f"sample {name} ")
        for name, terms in self.weights.items():
            tensors |= {f"weights {name}|{term}": x for term, x in terms.items()}
        for name, numbers in (("units", self.sums.units), ("batches", self.batches)):
            tensors[name] = torch.tensor(sorted(numbers), dtype=torch.int64)
        # Safetensors refuses views; and a state on the CPU can be read where there is
        # no accelerator.
        tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
        metadata = {
            **more,
            "plan": self.plan,
            "sites": json.dumps([astuple(site) for site in self.sites.values()]),
            "classes": json.dumps(self.classes),
            "unseen": json.dumps(sorted(self.unseen)),
            "refused": json.dumps(
                [[*place, why] for place, why in self.refused.items()]
            ),
        }
        if self.proof is not None:
            metadata["proof"] = self.proof.to_json()
        # A signal or a full disk in the middle must leave the state before this one
        # readable.
        write_atomic(
            path, lambda temporary: save_file(tensors, temporary, metadata=metadata)
        )

    @classmethod
    def restore(
        cls, path: Path, settings: Settings, plan: str | None = None
    ) -> "Measurement":
        """Read a measurement that `save` wrote.

        settings   of the measurement
        plan       hash of the list of batches that it must have; None: any

        MeasureError if it belongs to another list of batches, OutputError if the file is damaged.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self = cls(settings, metadata["plan"], set(tensors.pop("batches").tolist()))
            self._restore_metadata(metadata)
            self.sums.units = set(tensors.pop("units").tolist())
        # Everything that a truncated or foreign file leads to; with a cure, since only
        # the batches are lost.
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            cure = "remove the file: --resume then measures its batches again"
            raise OutputError(
                f"the sums of a measurement in {path}",
                f"a damaged file ({error})",
                cure,
            ) from error
        # Indices of batches mean nothing in another plan: its batches would be counted
        # twice or never.
        if plan not in (None, self.plan):
            expected = "sums of the same corpus and settings"
            raise MeasureError(
                expected,
                f"sums of another corpus or other settings in {path}",
                "start again with --overwrite",
            )
        tensors = {_rename_place(name): tensor for name, tensor in tensors.items()}
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

    def _restore_metadata(self, metadata: Mapping[str, str]) -> None:
        """Read what `save` wrote besides tensors: classes, sites, what could not be captured, the proof."""
        self.classes = tuple(json.loads(metadata["classes"]))
        self.unseen = set(json.loads(metadata["unseen"]))
        for stack, layer, quantity, *rest in json.loads(metadata["sites"]):
            today: Any = rename_site(quantity)
            site = Site(stack, layer, today, *rest)
            self.sites[site.name] = site
        # Files of older versions have no entry for what was refused, and none for the proof.
        for stack, layer, kind, why in json.loads(metadata.get("refused", "[]")):
            self.refused[stack, layer, kind] = why
        if "proof" in metadata:
            self.proof = Proof.from_json(metadata["proof"])


def _rename_place(tensor: str) -> str:
    """Return the name of a saved tensor with today's name of its site: `sums encoder.1.pre_relu|linear`."""
    kind, _, rest = tensor.partition(" ")
    place, bar, term = rest.partition("|")
    words = " ".join(map(rename_site, place.split(" ")))
    return f"{kind} {words}{bar}{term}" if rest else kind


def _find_ids(batch: Batch, stack: str) -> Tensor | None:
    """Return the token ids of a stack in a batch; None if the model is not given ids."""
    for name in (f"{stack}_input_ids", "input_ids"):
        ids = batch.inputs.get(name)
        if isinstance(ids, Tensor):
            return ids
    return None
