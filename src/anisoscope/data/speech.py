"""Speech corpora: read a folder, a manifest or a hub data set, cut clips into windows, and batch them for a model."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import torch

from anisoscope.batch import Batch, Stream
from anisoscope.data.corpora import CorpusOptions
from anisoscope.data.media import MediaCorpus, open_media
from anisoscope.data.plans import Index, Plan, find_decoder_start, pack
from anisoscope.data.sound import Samples, check, decode_samples
from anisoscope.data.table_rows import list_faulty
from anisoscope.errors import CorpusError, UsageError

SECONDS = 30  # longest window; a longer clip is cut into equal windows
RATE = 16_000  # samples per second where the checkpoint does not say
STRIDE = 320  # samples per position of a model that does not say; what every wav2vec 2.0 has
RECORDED = ("do_normalize", "feature_size", "padding_value", "n_fft", "hop_length", "chunk_length")
"""Settings of a feature extractor that a manifest names."""


def open_speech(name: str, **options: Any) -> MediaCorpus:
    """Open a speech corpus: a sound file, a folder (by a `manifest.csv` in or above it), a manifest, or a hub data
    set.

    options   fields of `CorpusOptions`. A unit is a speaker if a column names speakers, otherwise a clip
    """
    corpus = open_media(name, "speech", CorpusOptions(**options), check)
    formats = Counter(f"{info.rate} Hz, {info.channels} channels" for info in corpus.infos)
    seconds = round(sum(info.frames / info.rate for info in corpus.infos), 1)
    return replace(corpus, source={**corpus.source, "formats": dict(formats), "seconds": seconds})


def _find_prompt(config: Any, processor: Any) -> list[int]:
    """Return the token ids that the decoder reads when there is no text; empty for a model without a decoder.

    These are the prompt of the processor's tokenizer (Whisper: start, language and task, no timestamps), else the
    start token alone.
    """
    if not getattr(config, "is_encoder_decoder", False):
        return []
    prefix = getattr(getattr(processor, "tokenizer", None), "prefix_tokens", None)
    return [int(token) for token in prefix] if prefix else [find_decoder_start(config)]


class SoundInput(NamedTuple):
    """How a model reads sound.

    kind      `features` (log-mel windows of one length), `padded` (samples, with a mask of the padding) or `unpadded`
              (only clips of the same length together: the first convolution's norm knows no mask)
    stride    how many samples make a position
    shortest  how many samples are needed for the first position
    longest   how many samples a window has at most
    """

    kind: str
    extractor: Any
    rate: int
    longest: int
    shortest: int
    stride: int
    settings: dict[str, Any]


def choose_sound_input(config: Any, processor: Any, max_length: int | None) -> SoundInput:
    """Return how a model reads sound, by the checkpoint's feature extractor if `processor` has one.

    UsageError for a model that reads no sound, or an extractor of another window length.
    """
    reads_features = hasattr(config, "num_mel_bins")
    if reads_features and not hasattr(config, "max_source_positions"):
        family = getattr(config, "model_type", type(config).__name__)
        raise UsageError("a model that reads samples, or Whisper", family, "name wav2vec 2.0, HuBERT, Whisper or kin")
    extractor = getattr(processor, "feature_extractor", processor)
    is_given = hasattr(extractor, "sampling_rate")
    if not is_given:
        extractor = _default_extractor(config, reads_features)
    rate = int(extractor.sampling_rate)
    if reads_features:
        _require_window(config, extractor)
        kind = "features"
        stride = 2 * getattr(extractor, "hop_length", 160)
        shortest = 1
    else:
        # a first convolution that is normalised over time knows no mask: padding would change its numbers
        kind = "padded" if getattr(config, "feat_extract_norm", None) == "layer" else "unpadded"
        stride = prod(getattr(config, "conv_stride", (STRIDE,)))
        shortest = _find_receptive_field(config)
    longest = int(getattr(extractor, "n_samples", 0)) or SECONDS * rate
    if max_length:
        longest = min(longest, max_length * stride)
    if longest < shortest:
        raise UsageError(f"windows of at least {shortest} samples", f"{longest}", "raise --max-length")
    settings: dict[str, Any] = {
        **{key: getattr(extractor, key) for key in RECORDED if hasattr(extractor, key)},
        "extractor": "checkpoint" if is_given else "default",
        "class": type(extractor).__name__,
        "rate": rate,
        "batching": kind,
        "window_seconds": longest / rate,
    }
    return SoundInput(kind, extractor, rate, longest, shortest, stride, settings)


def _require_window(config: Any, extractor: Any) -> None:
    """Raise UsageError if the extractor's window is not the model's: Whisper reads windows of one length only, that of
    its position table.
    """
    wanted = 2 * int(config.max_source_positions)
    got = int(getattr(extractor, "nb_max_frames", 0))
    if wanted != got:
        expected = f"a feature extractor of {wanted} frames per window, which the model reads"
        raise UsageError(expected, f"{got} frames", "use the feature extractor published with the model")


def _default_extractor(config: Any, features: bool) -> Any:
    """Return the usual feature extractor of the model's family, for a checkpoint that has none."""
    from transformers import Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

    if not features:
        return Wav2Vec2FeatureExtractor(sampling_rate=RATE, do_normalize=True)  # type: ignore[no-untyped-call]
    seconds = max(1, config.max_source_positions * 2 * 160 // RATE)
    return WhisperFeatureExtractor(  # type: ignore[no-untyped-call]
        feature_size=config.num_mel_bins, sampling_rate=RATE, chunk_length=seconds
    )


def _find_receptive_field(config: Any) -> int:
    """Return how many samples the convolutions need for one position."""
    needed, kernels, strides = 1, getattr(config, "conv_kernel", ()), getattr(config, "conv_stride", ())
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=False):
        needed = (needed - 1) * stride + kernel
    return int(needed)


class ClipWindows(NamedTuple):
    """Windows cut from clips; every column is [window] int64.

    first, length   in samples of the clip
    start           where it begins within its unit, in samples or mel frames
    """

    clip: Index
    first: Index
    length: Index
    unit: Index
    start: Index


def cut_into_windows(corpus: MediaCorpus, kept: Index, how: SoundInput) -> ClipWindows:
    """Cut every clip into as few windows of equal length (to a sample) as the longest window allows.

    kept   indices of the clips to cut
    """
    rows = []
    reached = dict.fromkeys(corpus.unit.tolist(), 0)
    for clip in kept.tolist():
        total, unit = corpus.infos[clip].resampled(how.rate), int(corpus.unit[clip])
        edges = np.linspace(0, total, ceil(total / how.longest) + 1).astype(np.int64).tolist()
        for first, last in pairwise(edges):
            rows.append((clip, first, last - first, unit, reached[unit]))
            reached[unit] += how.extractor.nb_max_frames if how.kind == "features" else last - first
    return ClipWindows(*np.array(rows, dtype=np.int64).T)


class SpeechPlan(Plan):
    """The batches of a speech corpus for one model, decoded on demand.

    Windows of at most 30 seconds are grouped into batches of at most `batch_tokens` positions of the model, padding
    counted.

    processor   the checkpoint's feature extractor, alone or inside a processor; None: the defaults of its family
    max_length  positions of a window, if fewer than 30 seconds have

    Streams: `samples` [window, sample]; for Whisper `frames` [window, mel frame] and `decoder` [window, token], whose
    decoder reads a fixed prompt of special tokens.
    """

    def __init__(
        self,
        corpus: MediaCorpus,
        model: Any,
        processor: Any = None,
        *,
        batch_tokens: int = 4096,
        max_length: int | None = None,
    ) -> None:
        """Cut the clips into windows and batch them. CorpusError for clips too short for a position, unless bad ones
        are skipped.
        """
        config = getattr(model, "config", None)
        self.how = how = choose_sound_input(config, processor, max_length)
        self.corpus = corpus
        kept = _select_long_enough(corpus, how)
        n_short = len(corpus.infos) - len(kept)
        notes = [f"{n_short} clips of fewer than {how.shortest} samples left out"] if n_short else []
        self.prompt = _find_prompt(config, processor)
        self.windows = windows = cut_into_windows(corpus, kept, how)
        self.settings = {**how.settings, "decoder_prompt": self.prompt, "batch_tokens": batch_tokens}
        self._last: tuple[int, Samples] = (-1, np.empty(0, np.float32))
        reads_features = how.kind == "features"
        are_whole_clips = len(np.unique(windows.clip)) == len(windows.clip)
        words = {
            "position": "frame",
            "sequence": "clip" if are_whole_clips else "window",
            "unit": corpus.unit_word("clip"),
            "counted": "mel frame" if reads_features else "sample",
        }
        self.real = -(-windows.length // how.extractor.hop_length) if reads_features else windows.length
        batches = _batch_windows(windows.length, how, batch_tokens, config)
        super().__init__(batches, self.real, windows.unit, [corpus.fingerprint, self.settings, *windows], words, notes)

    def build(self, rows: Index) -> Batch:
        """Build the batch of these windows: the model's inputs, units, and streams (which positions are real)."""
        inputs, name, width = self._inputs([self._window(row) for row in rows.tolist()])
        real = torch.from_numpy(np.arange(width) < self.real[rows, None])
        streams = {name: Stream(real, torch.zeros_like(real), torch.from_numpy(self.windows.start[rows]))}
        if self.prompt:
            ids = torch.tensor(self.prompt).expand(len(rows), -1)
            inputs["decoder_input_ids"] = ids
            every = torch.ones_like(ids, dtype=torch.bool)
            start = streams[name].start // self.how.extractor.nb_max_frames * len(self.prompt)
            streams["decoder"] = Stream(every, every, start)
        return Batch(inputs, torch.from_numpy(self.unit[rows]), streams)

    def _window(self, row: int) -> Samples:
        """Return the samples of a window; the last decoded clip is remembered."""
        clip = int(self.windows.clip[row])
        if self._last[0] != clip:
            item = self.corpus.items[clip]
            self._last = clip, decode_samples(item.name, item.read(), self.how.rate)
        first = int(self.windows.first[row])
        return self._last[1][first : first + int(self.windows.length[row])]

    def _inputs(self, sounds: list[Samples]) -> tuple[dict[str, Any], str, int]:
        """Return (the model's keyword arguments for these sounds, the name of their stream: frames or samples, its
        width).
        """
        how = self.how
        options = {"sampling_rate": how.rate, "return_tensors": "pt"}
        if how.kind == "features":
            features = how.extractor(sounds, **options)["input_features"]
            return {"input_features": features}, "frames", features.shape[-1]
        has_padding = how.kind == "padded"
        values = how.extractor(sounds, padding=has_padding, return_attention_mask=has_padding, **options)
        inputs = {"input_values": values["input_values"]}
        if has_padding:
            inputs["attention_mask"] = values["attention_mask"]
        return inputs, "samples", inputs["input_values"].shape[1]


def _select_long_enough(corpus: MediaCorpus, how: SoundInput) -> Index:
    """Return the numbers of the clips that are long enough for a position of the model.

    CorpusError if none is, or if some are not, unless bad ones are skipped.
    """
    lengths = np.array([info.resampled(how.rate) for info in corpus.infos])
    kept = np.flatnonzero(lengths >= how.shortest)
    short = np.flatnonzero(lengths < how.shortest)
    if len(short) and (not len(kept) or not corpus.skip_bad):
        listed = list_faulty([f"{corpus.items[clip].name} ({lengths[clip]} samples)" for clip in short])
        expected = f"clips of at least {how.shortest} samples at {how.rate} Hz"
        raise CorpusError(expected, listed, "pass --skip-bad" if len(kept) else "name another corpus")
    return kept


def _batch_windows(lengths: Index, how: SoundInput, budget: int, config: Any) -> list[Index]:
    """Group windows of clips into batches within the budget.

    lengths   samples of each window
    budget    positions of a batch at most

    Only windows of the same length share a batch if the model allows no padding.
    """
    if how.kind == "features":
        return pack(np.full_like(lengths, config.max_source_positions), budget)
    positions = np.maximum(1, lengths // how.stride)
    if how.kind == "padded":
        return pack(positions, budget)
    batches = []
    longest_first = np.unique(lengths)[::-1]
    for length in longest_first:
        rows = np.flatnonzero(lengths == length)
        batches += [rows[inner] for inner in pack(positions[rows], budget)]
    return batches
