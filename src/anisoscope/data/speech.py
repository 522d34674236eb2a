"""Speech corpora: a folder, a manifest or a hub data set in; clips, and batches of windows of them, out."""

from typing import Any

import numpy as np

from anisoscope.data.hub_media import HubPreset, Part, hub_items
from anisoscope.data.items import Gathered, find_path, gather, local_items, named, unknown
from anisoscope.data.prompt import decoder_prompt
from anisoscope.data.sound import ClipInfo, check
from anisoscope.data.speech_plans import SpeechCorpus, SpeechPlan, cut, reading
from anisoscope.errors import CorpusError, UsageError

__all__ = ["HUB_PRESETS", "SpeechCorpus", "SpeechPlan", "open_speech", "plan_speech"]

HUB_PRESETS = {
    "common-voice": HubPreset(
        "mozilla-foundation/common_voice_11_0",
        "en",
        "validation",
        "Common Voice has left the hub: download it from datacollective.mozillafoundation.org and name its dev.tsv",
    ),
    "librispeech": HubPreset("openslr/librispeech_asr", "other", "validation"),
}


def open_speech(
    name: str,
    *,
    split: str | None = None,
    column: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
) -> SpeechCorpus:
    """The clips that `name` stands for, tried in this order: preset, path here, path under $ANISOSCOPE_DATA, data set
    of the hub (`id[:config][@revision]`). A path is a clip, a folder of clips or a manifest (.csv, .tsv, .jsonl) with
    a column of paths; a folder is read by the `manifest.csv` in it, or beside it, where there is one.

    limit     clips up to the one that begins unit limit + 1; a unit is a speaker where a column names one, else a clip
    skip_bad  decode every clip now, leave out those that cannot be, and count them; else headers are checked now,
              and the first clip that cannot be decoded ends the run
    """
    if limit is not None and limit < 1:
        raise UsageError("a limit of at least 1 unit", str(limit), "raise --limit, or leave it out")
    part = Part(config, split, revision, column)
    path = None if name in HUB_PRESETS else find_path(name)
    if path is not None:
        part._replace(column=None).refuse(name)
    found = local_items(path, "speech", column) if path is not None else hub_items(name, part, HUB_PRESETS, "speech")
    if found is None:
        raise unknown(name, HUB_PRESETS, "speech")
    clips: Gathered[ClipInfo] = gather(
        name, found, lambda item, data: check(item.name, data, skip_bad), limit=limit, skip_bad=skip_bad
    )
    rates = {f"{info.rate} Hz, {info.channels} channels": 0 for info in clips.infos}
    for info in clips.infos:
        rates[f"{info.rate} Hz, {info.channels} channels"] += 1
    seconds = round(sum(info.frames / info.rate for info in clips.infos), 1)
    source = {**clips.source, "formats": rates, "seconds": seconds}
    return SpeechCorpus(name, clips.items, clips.infos, clips.unit, clips.fingerprint, source, skip_bad, clips.keep)


def plan_speech(
    corpus: SpeechCorpus,
    model: Any,
    processor: Any = None,
    *,
    batch_tokens: int = 4096,
    max_length: int | None = None,
) -> SpeechPlan:
    """Windows of at most 30 seconds in batches of at most `batch_tokens` positions of the model, padding counted.

    processor   the checkpoint's feature extractor, alone or inside a processor; else the defaults of its family
    max_length  positions of a window, where fewer than 30 seconds have
    """
    how = reading(model.config, processor, max_length)
    bad = [k for k, info in enumerate(corpus.infos) if info.resampled(how.rate) < how.shortest]
    if bad and not corpus.skip_bad:
        listed = named([f"{corpus.clips[k].name} ({corpus.infos[k].resampled(how.rate)} samples)" for k in bad])
        raise CorpusError(f"clips of at least {how.shortest} samples at {how.rate} Hz", listed, "pass --skip-bad")
    kept = np.setdiff1d(np.arange(len(corpus.clips)), bad)
    if not len(kept):
        raise CorpusError(f"clips of at least {how.shortest} samples at {how.rate} Hz", "none", "name another corpus")
    windows = cut(corpus, kept, how)
    notes = [f"{len(bad)} clips of fewer than {how.shortest} samples left out"] if bad else []
    return SpeechPlan(corpus, model.config, how, windows, batch_tokens, decoder_prompt(model.config, processor), notes)
