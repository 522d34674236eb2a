"""Estimate what a study downloads and computes, for the dry run: gigabytes, disk and hours, each counted once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anisoscope.data.corpora import named_corpora
from anisoscope_papers.models import PRESETS, PaperModel

POSITIONS = {"text": 1.0, "speech": 50.0, "image": 200.0}
"""Vectors that a model makes of a token, a second of sound or an image, about; convolutional networks: as if."""
# CANINE reads characters, MANTa and ByT5 bytes, ByT5 also in its decoder. Whisper pads
# a clip of some 6 s to 30: five times 50 frames a second.
OF_MODEL = {
    "canine-s": 2.0,
    "canine-c": 2.0,
    "manta-base": 3.0,
    "byt5-base": 4.0,
    "whisper-base": 250.0,
}
"""The same of models that read bytes, or windows of 30 seconds however short the clip."""
_UNITS = {"M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class Need:
    """Something that a study downloads; without a name, only a computation.

    gigabytes   approximate size of the download; None: not known
    kept        how much of it is on disk at a time, if that is less
    note        licence, and what else must be known
    work        {run: approximate operations in 1e12} of what is computed with it; studies share runs
    """

    name: str = ""
    gigabytes: float | None = None
    note: str = ""
    kept: float | None = None
    work: Mapping[str, float] = field(default_factory=dict)

    @property
    def on_disk(self) -> float:
        """Gigabytes on disk at a time; 0 if not known."""
        if self.kept is None:
            return self.gigabytes or 0.0
        return self.kept


def count_parameters(preset: PaperModel) -> float | None:
    """Return the number of parameters of a published model (`preset`); None if its authors do not say."""
    if preset.size[-1] in _UNITS:
        return float(preset.size[:-1]) * _UNITS[preset.size[-1]]
    return None


def list_needs(systems: Sequence[tuple[str, str]], how: str = "") -> tuple[Need, ...]:
    """List the needs of (model, corpus) pairs: each published model and each corpus once.

    `how` distinguishes runs of the same pair.
    """
    found: dict[str, Need] = {}
    for model, corpus in systems:
        preset = PRESETS[model]
        data = named_corpora()[corpus]
        size = count_parameters(preset)
        positions = data.millions * OF_MODEL.get(model, POSITIONS[preset.modality])
        # Two operations, a product and a sum, for each parameter and position;
        # positions are in millions and work in 1e12. The name of the run is its key:
        # studies that share it count it once.
        work = {f"{model} × {corpus} {how}": 2e-6 * (size or 0.0) * positions}
        # Published weights are of 4 bytes each (float32): 4e-9 gigabytes.
        found[model] = Need(
            preset.hub_id, size and size * 4e-9, preset.licence, work=work
        )
    # Models first, then corpora: several models read one corpus.
    for _, corpus in systems:
        found.setdefault(f"corpus {corpus}", make_corpus_need(corpus))
    return tuple(found.values())


def make_corpus_need(name: str) -> Need:
    """Return what must be downloaded for the corpus `name`: size, split and licence, and its stand-in if it has one."""
    row = named_corpora()[name]
    # Common Voice 11 is no longer on the hub for everyone: LibriSpeech is read instead.
    instead = f"; {row.stand_in} stands in" if row.stand_in else ""
    return Need(
        # The configuration behind the colon is no part of what is downloaded.
        row.hub.partition(":")[0],
        row.gigabytes,
        f"{row.split}; {row.licence}{instead}",
    )
