"""Read one sound clip: its header, its samples, and what is wrong with it."""

from io import BytesIO
from math import ceil, gcd
from typing import NamedTuple

import numpy as np
import soundfile  # type: ignore[import-untyped]
from numpy.typing import NDArray
from scipy.signal import resample_poly

from anisoscope.errors import CorpusError

Samples = NDArray[np.float32]

RATES = (1_000, 768_000)
"""Lowest and highest samples per second of a clip: beyond them resampling would take gigabytes, and no sound is so."""

# most samples of a clip over all its channels: 3 hours at 48 kHz, 2 GB when decoded
LARGEST = 2**29


class ClipInfo(NamedTuple):
    """What a clip's header says: samples per channel, samples per second, number of channels."""

    frames: int
    rate: int
    channels: int

    def resampled(self, rate: int) -> int:
        """Return how many samples the clip has at another sampling rate."""
        return ceil(self.frames * rate / self.rate)


def decode_samples(name: str, data: bytes, rate: int) -> Samples:
    """Decode a clip at sampling rate `rate` into samples [sample], channels averaged. CorpusError if it is damaged.

    name   of the clip, for errors
    data   the encoded bytes
    """
    info = _read_header(name, data)
    try:
        sound, own_rate = soundfile.read(BytesIO(data), dtype="float32", always_2d=True)
    except soundfile.SoundFileError:
        raise _refuse_clip(name, "damaged after its header") from None
    if not np.isfinite(sound).all():
        raise _refuse_clip(name, "NaN or Inf among its samples")
    # Up to a hundredth of a second may be missing: that is no cut.
    if len(sound) < info.frames and info.frames - len(sound) > own_rate // 100:
        raise _refuse_clip(name, f"it ends after {len(sound)} of {info.frames} samples")
    mono = sound.mean(axis=1)
    if own_rate != rate:
        # Up and down by the two rates, in lowest terms.
        shared = gcd(own_rate, rate)
        mono = resample_poly(mono, rate // shared, own_rate // shared)
    return np.asarray(mono, dtype=np.float32)


def check(name: str, data: bytes, decode: bool) -> ClipInfo:
    """Return what a clip's header says, after a check of the clip. CorpusError if it is damaged.

    name     of the clip, for errors
    data     the encoded bytes
    decode   decode all of it; formats other than WAV and FLAC always are, since only that tells their length
    """
    info = _read_header(name, data)
    if decode or not data.startswith((b"RIFF", b"fLaC")):
        info = info._replace(frames=len(decode_samples(name, data, info.rate)))
    return info


def _read_header(name: str, data: bytes) -> ClipInfo:
    """Read a clip's header. CorpusError if it is no sound, empty, cut short, or has an impossible sampling rate.

    name   of the clip, for errors
    data   the encoded bytes
    """
    if not data:
        raise _refuse_clip(name, "an empty file")
    try:
        info = soundfile.info(BytesIO(data))
    except soundfile.SoundFileError:
        raise _refuse_clip(name, "it is no sound file") from None
    # Bytes 4 to 7 of a RIFF file say how long it is, without its first 8 bytes. Who
    # writes a stream leaves 0 or the largest number there, and the last byte may be
    # padding.
    declared = int.from_bytes(data[4:8], "little") + 8
    if (
        data.startswith(b"RIFF")
        and len(data) < declared - 1
        and declared - 8 not in (0, 0xFFFFFFFF)
    ):
        raise _refuse_clip(name, f"it ends after {len(data)} of {declared} bytes")
    if info.frames <= 0:
        raise _refuse_clip(name, "no samples")
    if not RATES[0] <= info.samplerate <= RATES[1]:
        raise _refuse_clip(
            name, f"a header that says {info.samplerate:,} samples a second"
        )
    if info.frames * info.channels > LARGEST:
        got = f"a header that says {info.frames:,} samples of {info.channels} channels; {LARGEST:,} at most are read"
        raise _refuse_clip(name, got)
    return ClipInfo(info.frames, info.samplerate, info.channels)


def _refuse_clip(name: str, got: str) -> CorpusError:
    """Make the error for an unusable clip. The caller raises it.

    name   of the clip
    got    what was found in it
    """
    return CorpusError(
        f"a sound file in {name}", got, "repair or remove it, or pass --skip-bad"
    )
