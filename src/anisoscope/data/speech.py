"""Speech corpora: read a folder, a manifest or a hub data set, cut clips into windows, and batch them for a model."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anisoscope.batch import Batch, Stream
from anisoscope.data.corpora import CorpusOptions
from anisoscope.data.media import MediaCorpus, open_media
from anisoscope.data.plans import Index, Plan, find_decoder_start, hash_parts, pack
from anisoscope.data.sound import Samples, check, decode_samples
from anisoscope.data.table_rows import list_faulty
from anisoscope.errors import CorpusError, UsageError

SECONDS = 30  # longest window; a longer clip is cut into equal windows
RATE = 16_000  # samples per second where the checkpoint does not say
# samples per position of a model that does not say; what every wav2vec 2.0 has
STRIDE = 320
RECORDED = (
    "do_normalize",
    "feature_size",
    "padding_value",
    "n_fft",
    "hop_length",
    "chunk_length",
)
"""Settings of a feature extractor that a manifest names."""
TRANSCRIPTS = "transcripts"
"""What the manifest calls the text that the decoder reads, if it reads any."""


def open_speech(name: str, **options: Any) -> MediaCorpus:
    """Open a speech corpus: a sound file, a folder of them, a manifest (a table of clips), or a hub data set.

    A folder is read by a `manifest.csv` in it or above it, if there is one. A unit is a speaker if a column names
    speakers, otherwise a clip.

    options   fields of `CorpusOptions`
    """
    corpus = open_media(name, "speech", CorpusOptions(**options), check)
    formats = Counter(
        f"{info.rate} Hz, {info.channels} channels" for info in corpus.infos
    )
    seconds = round(sum(info.frames / info.rate for info in corpus.infos), 1)
    return replace(
        corpus, source={**corpus.source, "formats": dict(formats), "seconds": seconds}
    )


def _find_prompt(config: Any, processor: Any) -> list[int]:
    """Return the token ids that the decoder reads before any text; empty for a model without a decoder.

    These are the prompt of the processor's tokenizer (Whisper: start, language and task, no timestamps), else the
    start token alone.
    """
    if not getattr(config, "is_encoder_decoder", False):
        return []
    prefix = getattr(getattr(processor, "tokenizer", None), "prefix_tokens", None)
    if not prefix:
        return [find_decoder_start(config)]
    return list(map(int, prefix))


def _read_transcripts(
    corpus: MediaCorpus,
    windows: "ClipWindows",
    processor: Any,
    config: Any,
    prompt: int,
) -> tuple[list[list[int]], str]:
    """Return (token ids of each window's transcript, a note to the user); no ids if the decoder is to read none.

    The decoder reads transcripts if every clip has one and none is cut into several windows: nobody knows which words
    of a transcript belong to a window, and clips with and without words must not be mixed.

    windows   the windows that the clips are cut into
    config    the model's configuration
    prompt    how many tokens the decoder reads before the transcript
    """
    clips = windows.clip.tolist()
    # One entry a clip: fewer texts than windows then show that a clip was cut.
    texts = {clip: corpus.items[clip].text for clip in clips}
    tokenizer: Any = getattr(processor, "tokenizer", None)
    reason = _explain_no_transcripts(list(texts.values()), len(clips), tokenizer)
    if reason:
        alone = "the decoder reads the same prompt with every clip, so that its numbers say little about the corpus"
        return [], f"{alone}: {reason}"
    ids = []
    for clip in clips:
        # without special tokens: those before the text are the prompt
        encoded = tokenizer(texts[clip], add_special_tokens=False)
        ids.append(list(map(int, encoded["input_ids"])))
    longest = max(map(len, ids))
    # prompt and transcript share the decoder's positions
    # Without a limit in the configuration, the longest transcript fits.
    room = int(getattr(config, "max_target_positions", 0) or longest + prompt) - prompt
    note = ""
    n_long = sum(len(text) > room for text in ids)
    if n_long:
        note = f"{n_long} transcripts cut to the {room} tokens that the decoder has room for"
    return [text[:room] for text in ids], note


def _explain_no_transcripts(texts: list[str], windows: int, tokenizer: Any) -> str:
    """Say why the decoder cannot read transcripts; empty if it can.

    texts     transcript of each clip, empty if it has none
    windows   number of windows that the clips are cut into
    """
    n_without = texts.count("")
    if n_without == len(texts):
        return "no clip has a transcript"
    if n_without:
        return f"{n_without} of {len(texts)} clips have no transcript"
    if len(texts) < windows:
        return "transcripts of clips that are cut into several windows cannot be cut"
    if tokenizer is None:
        return "the checkpoint has no tokenizer for the transcripts"
    return ""


def _find_decoder_starts(unit: Index, prompt: int, texts: list[list[int]]) -> Index:
    """Return for each window at which token of its unit the decoder's input begins [window].

    The decoder's inputs of all windows of a unit (a speaker or clip) are counted through.

    unit     number of each window's unit
    prompt   length of the prompt
    texts    token ids of each window's transcript; empty if it reads the prompt alone
    """
    reached: Counter[int] = Counter()
    starts = []
    for window, number in enumerate(unit.tolist()):
        starts.append(reached[number])
        reached[number] += prompt
        if texts:
            reached[number] += len(texts[window])
    return np.array(starts, np.int64)


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


def choose_sound_input(
    config: Any, processor: Any, max_length: int | None
) -> SoundInput:
    """Find out how a model reads sound: as log-mel windows or as samples, and how many samples make a position.

    config       the model's configuration
    processor    the checkpoint's feature extractor, alone or inside a processor; None: the default of its family
    max_length   positions of a window at most; None: as many as 30 seconds have

    UsageError for a model that reads no sound, or an extractor of another window length.
    """
    reads_features = hasattr(config, "num_mel_bins")
    # a model of mel features without such a table is none of Whisper's family
    if reads_features and not hasattr(config, "max_source_positions"):
        family = getattr(config, "model_type", type(config).__name__)
        raise UsageError(
            "a model that reads samples, or Whisper",
            family,
            "name a model such as wav2vec 2.0, HuBERT or Whisper",
        )
    # The extractor may be given itself, or inside a processor.
    extractor = getattr(processor, "feature_extractor", processor)
    is_given = hasattr(extractor, "sampling_rate")
    if not is_given:
        extractor = _default_extractor(config, reads_features)
    rate = int(extractor.sampling_rate)
    if reads_features:
        _require_window(config, extractor)
        kind = "features"
        # Whisper's second convolution joins two mel frames to a position
        stride = 2 * getattr(extractor, "hop_length", 160)
        # Whisper pads every window to its full length, so that no clip is too short.
        shortest = 1
    else:
        # a first convolution that is normalised over time knows no mask: padding would change its numbers
        kind = "unpadded"
        if getattr(config, "feat_extract_norm", None) == "layer":
            kind = "padded"
        stride = prod(getattr(config, "conv_stride", (STRIDE,)))
        shortest = _find_receptive_field(config)
    # Whisper's extractor has a window of its own; for others it is 30 seconds.
    longest = int(getattr(extractor, "n_samples", 0)) or SECONDS * rate
    if max_length:
        longest = min(longest, max_length * stride)
    if longest < shortest:
        raise UsageError(
            f"windows of at least {shortest} samples",
            f"{longest}",
            "raise --max-length",
        )
    settings = {
        **_record_settings(extractor),
        "extractor": "checkpoint" if is_given else "default",
        "class": type(extractor).__name__,
        "rate": rate,
        "batching": kind,
        "window_seconds": longest / rate,
    }
    return SoundInput(kind, extractor, rate, longest, shortest, stride, settings)


def _record_settings(extractor: Any) -> dict[str, Any]:
    """Return those settings of a feature extractor that the run's manifest lists, by name."""
    settings = {}
    for name in RECORDED:
        if hasattr(extractor, name):
            settings[name] = getattr(extractor, name)
    return settings


def _require_window(config: Any, extractor: Any) -> None:
    """Raise UsageError if a feature extractor makes windows of another length than the model reads.

    Whisper reads windows of one length only, that of its position table.
    """
    # Two mel frames to a position, as in `choose_sound_input`.
    wanted = 2 * int(config.max_source_positions)
    got = int(getattr(extractor, "nb_max_frames", 0))
    if wanted != got:
        expected = (
            f"a feature extractor of {wanted} frames per window, which the model reads"
        )
        raise UsageError(
            expected,
            f"{got} frames",
            "use the feature extractor published with the model",
        )


def _default_extractor(config: Any, features: bool) -> Any:
    """Return the usual feature extractor of a model's family, for a checkpoint that has none.

    features   the model reads log-mel features, rather than samples
    """
    from transformers import Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

    if not features:
        return Wav2Vec2FeatureExtractor(sampling_rate=RATE, do_normalize=True)  # type: ignore[no-untyped-call]
    # Two mel frames make a position, and 160 samples a frame.
    seconds = max(1, config.max_source_positions * 2 * 160 // RATE)
    return WhisperFeatureExtractor(  # type: ignore[no-untyped-call]
        feature_size=config.num_mel_bins, sampling_rate=RATE, chunk_length=seconds
    )


def _find_receptive_field(config: Any) -> int:
    """Return how many samples the convolutions of a speech model need for one position.

    config   the model's configuration
    """
    kernels = getattr(config, "conv_kernel", ())
    strides = getattr(config, "conv_stride", ())
    # Receptive field, layer by layer: r = (r − 1) · stride + kernel. For wav2vec 2.0
    # that is 400 samples, or 25 ms.
    needed = 1
    # from the last convolution back to the samples
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=False):
        needed = (needed - 1) * stride + kernel
    return int(needed)


class ClipWindows(NamedTuple):
    """Windows cut from clips; every column is [window] int64.

    clip, unit      number of the clip in the corpus, and of its unit (a speaker or clip)
    first, length   first sample of the window in its clip, and number of its samples
    start           where the window begins within its unit, in samples or mel frames
    """

    clip: Index
    first: Index
    length: Index
    unit: Index
    start: Index


def cut_into_windows(corpus: MediaCorpus, kept: Index, how: SoundInput) -> ClipWindows:
    """Cut every clip into as few windows of equal length (to a sample) as the longest window allows.

    kept   numbers of the clips to cut
    how    how the model reads sound, with the longest window
    """
    rows = []
    reached = dict.fromkeys(corpus.unit.tolist(), 0)
    for clip in kept.tolist():
        total = corpus.infos[clip].resampled(how.rate)
        unit = int(corpus.unit[clip])
        n_windows = ceil(total / how.longest)
        edges = np.linspace(0, total, n_windows + 1).astype(np.int64).tolist()
        for first, last in pairwise(edges):
            length = last - first
            rows.append((clip, first, length, unit, reached[unit]))
            # a window of features is padded to the full length
            if how.kind == "features":
                reached[unit] += how.extractor.nb_max_frames
            else:
                reached[unit] += length
    return ClipWindows(*np.array(rows, dtype=np.int64).T)


class SpeechPlan(Plan):
    """The batches of a speech corpus for one model, decoded on demand.

    Windows of at most 30 seconds are grouped into batches of at most `batch_tokens` positions of the model, padding
    counted.

    processor   the checkpoint's feature extractor, alone or inside a processor; None: the defaults of its family
    max_length  positions of a window, if fewer than 30 seconds have

    Streams: `samples` [window, sample]; for Whisper `frames` [window, mel frame] and `decoder` [window, token]. The
    decoder reads a fixed prompt of special tokens and, if every clip has a transcript and none is cut, the transcript.
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
        notes = []
        n_short = len(corpus.infos) - len(kept)
        if n_short:
            notes.append(
                f"{n_short} clips of fewer than {how.shortest} samples left out"
            )
        self.prompt = _find_prompt(config, processor)
        self.windows = windows = cut_into_windows(corpus, kept, how)
        self.settings = {
            **how.settings,
            "decoder_prompt": self.prompt,
            "batch_tokens": batch_tokens,
        }
        self.texts: list[list[int]] = []
        if self.prompt:
            self.texts, note = _read_transcripts(
                corpus, windows, processor, config, len(self.prompt)
            )
            notes.append(note)
        if self.texts:
            self.settings |= {
                "decoder_reads": TRANSCRIPTS,
                "transcripts": hash_parts([self.texts]),
            }
        self._decoder_start = _find_decoder_starts(
            windows.unit, len(self.prompt), self.texts
        )
        # Windows of a clip are equally long, and so often follow each other: it is
        # decoded once.
        self._last: tuple[int, Samples] = (-1, np.empty(0, np.float32))
        self.real = windows.length
        if how.kind == "features":
            # mel frames, the last one rounded up
            self.real = -(-windows.length // how.extractor.hop_length)
        batches = _batch_windows(windows.length, how, batch_tokens, config)
        identity = [corpus.fingerprint, self.settings, *windows]
        super().__init__(
            batches,
            self.real,
            windows.unit,
            identity,
            self._name_things(),
            list(filter(None, notes)),
        )

    def _name_things(self) -> dict[str, str]:
        """Return what tables and the page call positions, sequences, units and what is counted, as {role: word}."""
        clips = self.windows.clip
        are_whole_clips = len(np.unique(clips)) == len(clips)
        return {
            "position": "frame",
            "sequence": "clip" if are_whole_clips else "window",
            "unit": self.corpus.unit_word("clip"),
            "counted": "mel frame" if self.how.kind == "features" else "sample",
        }

    def build(self, rows: Index) -> Batch:
        """Build the batch of these windows: the model's inputs, units, and streams (which positions are real)."""
        inputs, name, width = self._inputs([self._window(row) for row in rows.tolist()])
        real = torch.from_numpy(np.arange(width) < self.real[rows, None])
        streams = {
            name: Stream(
                real, torch.zeros_like(real), torch.from_numpy(self.windows.start[rows])
            )
        }
        if self.prompt:
            ids, mask = self._decoder_ids(rows)
            inputs["decoder_input_ids"] = ids
            # Nothing is padded if the prompt is all that is read, or all transcripts
            # are equally long.
            if not mask.all():
                inputs["decoder_attention_mask"] = mask.long()
            special = mask & (torch.arange(ids.shape[1]) < len(self.prompt))
            streams["decoder"] = Stream(
                mask, special, torch.from_numpy(self._decoder_start[rows])
            )
        return Batch(inputs, torch.from_numpy(self.unit[rows]), streams)

    def _decoder_ids(self, rows: Index) -> tuple[Tensor, Tensor]:
        """Return (token ids [window, token] that the decoder reads, which of them are real [window, token]).

        Transcripts of different lengths are padded on the right with the prompt's first token.
        """
        texts = []
        for row in rows.tolist():
            transcript = self.texts[row] if self.texts else []
            texts.append([*self.prompt, *transcript])
        lengths = torch.tensor(list(map(len, texts)))
        width = int(lengths.max())
        mask = torch.arange(width) < lengths[:, None]
        ids = torch.full((len(texts), width), self.prompt[0])
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
        return ids, mask

    def _window(self, row: int) -> Samples:
        """Return the samples of window number `row`; the last decoded clip is remembered."""
        clip = int(self.windows.clip[row])
        if self._last[0] != clip:
            item = self.corpus.items[clip]
            self._last = clip, decode_samples(item.name, item.read(), self.how.rate)
        first = int(self.windows.first[row])
        return self._last[1][first : first + int(self.windows.length[row])]

    def _inputs(self, sounds: list[Samples]) -> tuple[dict[str, Any], str, int]:
        """Return (the model's keyword arguments for these sounds, what it reads: `frames` or `samples`, their number).

        sounds   samples of each window
        """
        how = self.how
        options = {"sampling_rate": how.rate, "return_tensors": "pt"}
        if how.kind == "features":
            features = how.extractor(sounds, **options)["input_features"]
            return {"input_features": features}, "frames", features.shape[-1]
        has_padding = how.kind == "padded"
        values = how.extractor(
            sounds, padding=has_padding, return_attention_mask=has_padding, **options
        )
        inputs = {"input_values": values["input_values"]}
        if has_padding:
            inputs["attention_mask"] = values["attention_mask"]
        return inputs, "samples", inputs["input_values"].shape[1]


def _select_long_enough(corpus: MediaCorpus, how: SoundInput) -> Index:
    """Return the numbers of the clips that are long enough for a position of the model.

    CorpusError if none is, or if some are not, unless bad ones are skipped.

    how   how the model reads sound, with the fewest samples of a position
    """
    lengths = np.array([info.resampled(how.rate) for info in corpus.infos])
    kept = np.flatnonzero(lengths >= how.shortest)
    short = np.flatnonzero(lengths < how.shortest)
    if len(short) and (not len(kept) or not corpus.skip_bad):
        named = []
        for clip in short:
            named.append(f"{corpus.items[clip].name} ({lengths[clip]} samples)")
        expected = f"clips of at least {how.shortest} samples at {how.rate} Hz"
        cure = "pass --skip-bad" if len(kept) else "name another corpus"
        raise CorpusError(expected, list_faulty(named), cure)
    return kept


def _batch_windows(
    lengths: Index, how: SoundInput, budget: int, config: Any
) -> list[Index]:
    """Group windows of clips into batches of at most `budget` positions; returns the window numbers of each batch.

    Only windows of the same length share a batch if the model allows no padding.

    lengths   samples of each window
    how       how the model reads sound
    config    the model's configuration
    """
    # Whisper pads every window to the whole of its position table
    if how.kind == "features":
        return pack(np.full_like(lengths, config.max_source_positions), budget)
    # A window that is shorter than the stride still makes a position.
    positions = np.maximum(1, lengths // how.stride)
    if how.kind == "padded":
        return pack(positions, budget)
    batches = []
    longest_first = np.unique(lengths)[::-1]
    for length in longest_first:
        rows = np.flatnonzero(lengths == length)
        for inner in pack(positions[rows], budget):
            batches.append(rows[inner])
    return batches
