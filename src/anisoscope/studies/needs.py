"""What the settings of a study load and compute, for the dry run: gigabytes, disk and hours, each counted once."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from anisoscope.data.corpora import CORPORA
from anisoscope.models.families import PRESETS, NamedModel

POSITIONS = {"text": 1.0, "speech": 50.0, "image": 200.0}
"""Vectors that a model makes of a token, a second of sound or an image, about; convolutional networks: as if."""
OF_MODEL = {"canine-s": 2.0, "canine-c": 2.0, "manta-base": 3.0, "byt5-base": 4.0, "whisper-base": 250.0}
"""The same of models that read bytes, or windows of 30 seconds however short the clip."""
EFFICIENCY = 0.4
"""Share of the speed of a plain matrix product that a measurement reaches, about."""
_UNITS = {"M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class Need:
    """Something that is loaded; without a name: only computed.

    gigabytes   to load, about; None: not known
    kept        of them on the disk at a time, where those are fewer
    note        licence, and what must be known
    work        {run: operations in 1e12}, about: what is computed with it; studies share runs
    """

    name: str = ""
    gigabytes: float | None = None
    note: str = ""
    kept: float | None = None
    work: Mapping[str, float] = field(default_factory=dict)

    @property
    def on_disk(self) -> float:
        return (self.gigabytes or 0.0) if self.kept is None else self.kept


class Needing(Protocol):
    """A study, as far as it needs something."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def needs(self) -> tuple[Need, ...]: ...


def parameters(preset: NamedModel) -> float | None:
    """Parameters of a published model; None where its authors do not say."""
    return float(preset.size[:-1]) * _UNITS[preset.size[-1]] if preset.size[-1] in _UNITS else None


def needed(systems: Sequence[tuple[str, str]], how: str = "") -> tuple[Need, ...]:
    """Needs of published models, each measured on a corpus, and the corpora. `how`: tells runs of one pair apart."""
    found: dict[str, Need] = {}
    for model, corpus in systems:
        preset, data = PRESETS[model], CORPORA[corpus]
        size = parameters(preset)
        positions = data.millions * OF_MODEL.get(model, POSITIONS[preset.modality])
        work = {f"{model} × {corpus} {how}": 2e-6 * (size or 0.0) * positions}
        found[model] = Need(preset.hub_id, size and size * 4e-9, preset.licence, work=work)
    return (*found.values(), *(of_corpus(corpus) for corpus in dict.fromkeys(corpus for _, corpus in systems)))


def of_corpus(name: str) -> Need:
    """The need of a named corpus."""
    row = CORPORA[name]
    instead = f"; {row.stand_in} stands in" if row.stand_in else ""
    return Need(row.hub.partition(":")[0], row.gigabytes, f"{row.split}; {row.licence}{instead}")


def speed() -> float:
    """Operations in 1e12 a second that this machine does in a plain product of matrices."""
    import torch

    x = torch.randn(768, 768)
    x @ x
    began, done = time.monotonic(), 0
    while time.monotonic() - began < 0.3:
        x @ x
        done += 1
    return done * 2e-12 * 768**3 / (time.monotonic() - began)


def describe(studies: Sequence[Needing]) -> Iterator[str]:
    """Lines of a dry run: what each study loads and computes that none before it does, and the sum."""
    known: dict[str, str] = {}
    runs: dict[str, float] = {}
    loaded = disk = 0.0
    unknown: list[str] = []
    pace = speed() * EFFICIENCY * 3600 if any(study.needs for study in studies) else 1.0
    for study in studies:
        yield f"{study.name:8s} {study.title}"
        new = [need for need in study.needs if need.name and need.name not in known]
        for need in new:
            yield f"         {need.name}"
            size = "size unknown" if need.gigabytes is None else _gigabytes(need.gigabytes)
            yield f"           {size}; {need.note}" if need.note else f"           {size}"
        again = dict.fromkeys(known[need.name] for need in study.needs if need.name in known)
        work = {run: cost for need in study.needs for run, cost in need.work.items() if run not in runs}
        load = sum(need.gigabytes or 0.0 for need in new)
        parts = [f"what {', '.join(again)} load{'s' * (len(again) == 1)}"] if again else []
        parts += [f"{_gigabytes(load)} to load"] if new else []
        hours = sum(work.values()) / pace
        if study.needs:
            parts.append(f"about {_hours(hours)}" if work else "nothing more to compute")
            yield f"         {'; '.join(parts)}"
        known |= {need.name: study.name for need in new}
        unknown += [need.name for need in new if need.gigabytes is None]
        runs |= work
        loaded, disk = loaded + load, disk + sum(need.on_disk for need in new)
    if known:
        more = f", and {len(unknown)} of unknown size" if unknown else ""
        hours = sum(runs.values()) / pace
        yield f"in all   {_gigabytes(loaded)} to load{more}; {_gigabytes(disk)} on the disk; about {_hours(hours)} here"
        yield "         what is in the cache of the hub, or at hand as a local copy, is not loaded"


def _gigabytes(x: float) -> str:
    return f"{x:.1f} GB" if x >= 0.05 else "under 0.1 GB"


def _hours(x: float) -> str:
    return f"{x:,.0f} hours" if x >= 10 else f"{x:.1f} hours" if x >= 0.95 else f"{max(60 * x, 1):.0f} minutes"
