"""How a model reads sound, and the batches of windows of clips built for it on demand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import torch

from anisoscope.batch import Batch, Stream
from anisoscope.data.items import Item
from anisoscope.data.plans import Index, digest, pack
from anisoscope.data.sound import ClipInfo, Samples, samples
from anisoscope.errors import UsageError

SECONDS = 30
"""Longest window; a longer clip is cut into equal windows."""

RATE = 16_000
"""Samples per second where the checkpoint does not say."""

STRIDE = 320
"""Samples per position of a model that does not say; what every wav2vec 2.0 has."""


@dataclass(frozen=True)
class SpeechCorpus:
    """Clips in order, decoded on demand. `unit` [clip]: the speaker where known, else the clip."""

    name: str
    clips: list[Item] = field(repr=False)
    infos: list[ClipInfo] = field(repr=False)
    unit: Index = field(repr=False)
    fingerprint: str
    source: dict[str, object]
    skip_bad: bool = False
    keep: Any = field(default=None, repr=False)


class SoundInput(NamedTuple):
    """How a model reads sound. `kind`: `features` (log-mel windows of one length), `padded` (samples with a mask of
    the padding) or `unpadded` (only clips of one length together: the first convolution's norm runs over the whole
    clip and knows no mask). `stride` samples make a position, fewer than `shortest` samples make none.
    """

    kind: str
    extractor: Any
    rate: int
    longest: int
    shortest: int
    stride: int
    settings: dict[str, Any]


def reading(config: Any, processor: Any, max_length: int | None) -> SoundInput:
    """How a model of `config` reads sound, by the checkpoint's feature extractor where `processor` has one."""
    extractor = getattr(processor, "feature_extractor", processor)
    given = hasattr(extractor, "sampling_rate")
    features = hasattr(config, "num_mel_bins")
    if features and not hasattr(config, "max_source_positions"):
        family = getattr(config, "model_type", type(config).__name__)
        raise UsageError("a model that reads samples, or Whisper", family, "name wav2vec 2.0, HuBERT, Whisper or kin")
    extractor = extractor if given else _default_extractor(config, features)
    rate = int(extractor.sampling_rate)
    if features:
        kind, stride, shortest = "features", 2 * getattr(extractor, "hop_length", 160), 1
        _check_window(config, extractor)
    else:
        kind = "padded" if getattr(config, "feat_extract_norm", None) == "layer" else "unpadded"
        stride, shortest = prod(getattr(config, "conv_stride", (STRIDE,))), _receptive(config)
    longest = int(getattr(extractor, "n_samples", 0)) or SECONDS * rate
    longest = min(longest, max_length * stride) if max_length else longest
    settings: dict[str, Any] = {
        "extractor": "checkpoint" if given else "default",
        "class": type(extractor).__name__,
        "rate": rate,
    }
    for key in ("do_normalize", "feature_size", "padding_value", "n_fft", "hop_length", "chunk_length"):
        if hasattr(extractor, key):
            settings[key] = getattr(extractor, key)
    if longest < shortest:
        raise UsageError(f"windows of at least {shortest} samples", f"{longest}", "raise --max-length")
    settings |= {"batching": kind, "window_seconds": longest / rate}
    return SoundInput(kind, extractor, rate, longest, shortest, stride, settings)


def _default_extractor(config: Any, features: bool) -> Any:
    from transformers import Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

    if not features:
        return Wav2Vec2FeatureExtractor(sampling_rate=RATE, do_normalize=True)  # type: ignore[no-untyped-call]
    seconds = max(1, config.max_source_positions * 2 * 160 // RATE)
    return WhisperFeatureExtractor(  # type: ignore[no-untyped-call]
        feature_size=config.num_mel_bins, sampling_rate=RATE, chunk_length=seconds
    )


def _check_window(config: Any, extractor: Any) -> None:
    """Whisper reads windows of one length only: that of its position table."""
    wanted = 2 * int(getattr(config, "max_source_positions", 0))
    got = int(getattr(extractor, "nb_max_frames", 0))
    if wanted != got:
        expected = f"a feature extractor of {wanted} frames per window, which the model reads"
        raise UsageError(expected, f"{got} frames", "use the feature extractor published with the model")


def _receptive(config: Any) -> int:
    """Fewest samples of which the convolutions make one position."""
    needed = 1
    for kernel, stride in reversed(list(zip(*(getattr(config, f"conv_{k}", ()) for k in ("kernel", "stride"))))):  # noqa: B905
        needed = (needed - 1) * stride + kernel
    return int(needed)


class ClipWindows(NamedTuple):
    """Windows in the order of the clips: `clip`, `first` sample in it, `length` in samples, `unit`, and `start`, the
    running index of its first sample or mel frame inside the unit; all [window] int64.
    """

    clip: Index
    first: Index
    length: Index
    unit: Index
    start: Index


def cut(corpus: SpeechCorpus, kept: Index, how: SoundInput) -> ClipWindows:
    """Every clip in the fewest windows of equal length (to a sample) that are no longer than allowed."""
    rows = []
    reached = dict.fromkeys(corpus.unit.tolist(), 0)
    for clip in kept.tolist():
        total, unit = corpus.infos[clip].resampled(how.rate), int(corpus.unit[clip])
        edges = np.linspace(0, total, ceil(total / how.longest) + 1).astype(np.int64).tolist()
        for first, last in pairwise(edges):
            rows.append((clip, first, last - first, unit, reached[unit]))
            reached[unit] += how.extractor.nb_max_frames if how.kind == "features" else last - first
    return ClipWindows(*np.array(rows, dtype=np.int64).T)


class SpeechPlan:
    """The batches of one speech corpus for one model: `plan[i]` decodes and builds batch i, the same for every process.

    Streams: `samples` [window, sample], or `frames` [window, mel frame] with `decoder` [window, token] for Whisper,
    whose decoder reads a fixed prompt of special tokens.
    """

    def __init__(
        self,
        corpus: SpeechCorpus,
        config: Any,
        how: SoundInput,
        windows: ClipWindows,
        batch_tokens: int,
        prompt: list[int],
        warnings: list[str],
    ) -> None:
        self.corpus, self.how, self.windows, self.prompt, self.warnings = corpus, how, windows, prompt, warnings
        self.settings = {**how.settings, "decoder_prompt": prompt, "batch_tokens": batch_tokens}
        self.fingerprint = digest([corpus.fingerprint, self.settings, *windows])
        self.n_units = len(np.unique(windows.unit))
        self.frequency_bins: list[str] = []
        unit = "clip" if corpus.source.get("unit") == "file" else str(corpus.source.get("unit"))
        whole = len(np.unique(windows.clip)) == len(windows.clip)
        counted = "mel frame" if how.kind == "features" else "sample"
        sequence = "clip" if whole else "window"
        self.words = {"position": "frame", "sequence": sequence, "unit": unit, "counted": counted}
        self._batches = _batches(windows.length, how, batch_tokens, config)
        self.tokens = [int(self._real(rows).sum()) for rows in self._batches]
        self._last: tuple[int, Samples] = (-1, np.empty(0, np.float32))

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> Batch:
        rows = self._batches[index]
        sounds = [self._window(row) for row in rows.tolist()]
        inputs, name, width = self._inputs(sounds)
        real = torch.from_numpy(np.arange(width) < self._real(rows)[:, None])
        streams = {name: Stream(real, torch.zeros_like(real), torch.from_numpy(self.windows.start[rows]))}
        if self.prompt:
            ids = torch.tensor(self.prompt).expand(len(rows), -1)
            inputs["decoder_input_ids"] = ids
            every = torch.ones_like(ids, dtype=torch.bool)
            start = streams[name].start // self.how.extractor.nb_max_frames * len(self.prompt)
            streams["decoder"] = Stream(every, every, start)
        return Batch(inputs, torch.from_numpy(self.windows.unit[rows]), streams)

    def _real(self, rows: Index) -> Index:
        """Samples, or mel frames, of each window that are not padding."""
        lengths = self.windows.length[rows]
        return -(-lengths // self.how.extractor.hop_length) if self.how.kind == "features" else lengths

    def _window(self, row: int) -> Samples:
        clip = int(self.windows.clip[row])
        if self._last[0] != clip:
            item = self.corpus.clips[clip]
            self._last = clip, samples(item.name, item.read(), self.how.rate)
        first = int(self.windows.first[row])
        return self._last[1][first : first + int(self.windows.length[row])]

    def _inputs(self, sounds: list[Samples]) -> tuple[dict[str, Any], str, int]:
        """Keyword arguments of the model, the name of their stream, and its width."""
        how = self.how
        options = {"sampling_rate": how.rate, "return_tensors": "pt"}
        if how.kind == "features":
            features = how.extractor(sounds, **options)["input_features"]
            return {"input_features": features}, "frames", features.shape[-1]
        masked = how.kind == "padded"
        values = how.extractor(sounds, padding=masked, return_attention_mask=masked, **options)
        kept = {key: values[key] for key in ("input_values", "attention_mask") if masked or key == "input_values"}
        return kept, "samples", kept["input_values"].shape[1]


def _batches(lengths: Index, how: SoundInput, budget: int, config: Any) -> list[Index]:
    """Rows of each batch: by length within the budget; of one length only where nothing may be padded."""
    if how.kind == "features":
        return pack(np.full_like(lengths, config.max_source_positions), budget)
    positions = np.maximum(1, lengths // how.stride)
    if how.kind == "padded":
        return pack(positions, budget)
    batches: list[Index] = []
    for length in np.unique(lengths)[::-1]:
        rows = np.flatnonzero(lengths == length)
        batches += [rows[inner] for inner in pack(positions[rows], budget)]
    return batches
