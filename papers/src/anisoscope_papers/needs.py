"""What the settings of a study load and compute, for the dry run: gigabytes, disk and hours, each counted once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anisoscope.data.corpora import named_corpora
from anisoscope_papers.models import PRESETS, PaperModel

POSITIONS = {"text": 1.0, "speech": 50.0, "image": 200.0}
"""Vectors that a model makes of a token, a second of sound or an image, about; convolutional networks: as if."""
OF_MODEL = {"canine-s": 2.0, "canine-c": 2.0, "manta-base": 3.0, "byt5-base": 4.0, "whisper-base": 250.0}
"""The same of models that read bytes, or windows of 30 seconds however short the clip."""
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


def parameters(preset: PaperModel) -> float | None:
    """Return the number of parameters of a published model; None if its authors do not say."""
    return float(preset.size[:-1]) * _UNITS[preset.size[-1]] if preset.size[-1] in _UNITS else None


def needed(systems: Sequence[tuple[str, str]], how: str = "") -> tuple[Need, ...]:
    """List the needs of published models, each measured on a corpus, and of the corpora; `how`: tells runs of one
    pair apart.
    """
    found: dict[str, Need] = {}
    for model, corpus in systems:
        preset, data = PRESETS[model], named_corpora()[corpus]
        size = parameters(preset)
        positions = data.millions * OF_MODEL.get(model, POSITIONS[preset.modality])
        work = {f"{model} × {corpus} {how}": 2e-6 * (size or 0.0) * positions}
        found[model] = Need(preset.hub_id, size and size * 4e-9, preset.licence, work=work)
    return (*found.values(), *(of_corpus(corpus) for corpus in dict.fromkeys(corpus for _, corpus in systems)))


def of_corpus(name: str) -> Need:
    """Return the need of a named corpus."""
    row = named_corpora()[name]
    instead = f"; {row.stand_in} stands in" if row.stand_in else ""
    return Need(row.hub.partition(":")[0], row.gigabytes, f"{row.split}; {row.licence}{instead}")
