"""Clips: what a header must say, what is cut off, which samples are decoded, and words and windows of their plans."""

from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from anisoscope.data import sound, speech
from anisoscope.data.sound import ClipInfo
from anisoscope.data.speech import ClipWindows, SoundInput, SpeechPlan
from anisoscope.errors import CorpusError, UsageError


def encode(samples, rate=1000, form="WAV", kind="FLOAT"):
    file = BytesIO()
    soundfile.write(file, np.asarray(samples, np.float32), rate, kind, format=form)
    return file.getvalue()


def refused(call, *given):
    with pytest.raises(CorpusError) as error:
        call(*given)
    text = str(error.value)
    begin = "expected a sound file in n; got "
    end = ". Cure: repair or remove it, or pass --skip-bad"
    assert text.startswith(begin) and text.endswith(end)
    return text.removeprefix(begin).removesuffix(end)


# ---- one clip --------------------------------------------------------------------------------------------------------


def test_a_clip_at_another_rate_has_a_begun_sample_more():
    info = ClipInfo(10, 8000, 2)
    assert [info.resampled(rate) for rate in (8000, 16_000, 4000, 3000, 2400)] == [10, 20, 5, 4, 3]  # fmt: skip


def test_channels_are_averaged_and_kept_at_their_rate():
    left, right = np.linspace(0, 0.5, 20), np.linspace(0.25, -0.5, 20)
    data = encode(np.stack([left, right], 1))
    assert sound.check("n", data, False) == ClipInfo(20, 1000, 2)
    mono = sound.decode_samples("n", data, 1000)
    assert mono.dtype == np.float32 and mono.shape == (20,)
    assert np.allclose(mono, (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize(("own", "rate"), [(1000, 2000), (3000, 1000), (1000, 1500)])
def test_a_tone_is_the_same_tone_at_another_rate(own, rate):
    """40 Hz for a second, away from its ends."""
    tone = np.sin(2 * np.pi * 40 * np.arange(own) / own)
    found = sound.decode_samples("n", encode(tone, own), rate)
    assert len(found) == rate
    wanted = np.sin(2 * np.pi * 40 * np.arange(rate) / rate)
    inside = slice(rate // 10, -rate // 10)
    assert np.abs(found - wanted)[inside].max() < 0.02


def test_samples_that_are_no_numbers():
    for bad in (np.nan, np.inf, -np.inf):
        data = encode([0, 0.5, bad, 0])
        assert sound.check("n", data, False).frames == 4
        for call in (lambda d: sound.decode_samples("n", d, 1000), lambda d: sound.check("n", d, True)):  # fmt: skip
            assert refused(call, data) == "NaN or Inf among its samples"


def test_a_clip_may_end_up_to_a_hundredth_of_a_second_early(monkeypatch):
    """At 1,000 samples a second ten may be missing."""
    data = encode(np.zeros(100))
    for missing in (0, 9, 10, 11, 50):
        monkeypatch.setattr(sound, "_read_header", lambda *_, m=missing: ClipInfo(100 + m, 1000, 1))  # fmt: skip
        for rate in (1000, 16_000, 200):
            if missing <= 10:
                assert len(sound.decode_samples("n", data, rate)) == rate // 10
            else:
                message = refused(sound.decode_samples, "n", data, rate)
                assert message == f"it ends after 100 of {100 + missing} samples"


def declare(data, size):
    return data[:4] + size.to_bytes(4, "little") + data[8:]


def test_a_file_that_was_cut_is_shorter_than_it_says():
    """One byte may be missing; 0 and the largest number stand in the header of a stream."""
    data = encode(np.zeros(100))
    size = len(data)
    for message in (size - 8, size - 7, 0, 0xFFFFFFFF):
        assert sound._read_header("n", declare(data, message)).frames == 100
    for message in (size - 6, size + 5, 0xFFFFFFFE):
        found = refused(sound._read_header, "n", declare(data, message))
        assert found == f"it ends after {size} of {message + 8} bytes"


@pytest.mark.parametrize(
    ("frames", "rate", "channels", "got"),
    [
        (0, 1000, 1, "no samples"),
        (1, 1000, 1, None),
        (1, 768_000, 1, None),
        (1, 999, 1, "a header that says 999 samples a second"),
        (1, 768_001, 1, "a header that says 768,001 samples a second"),
        (2**28, 1000, 2, None),
        (2**28 + 1, 1000, 2, "a header that says 268,435,457 samples of 2 channels; 536,870,912 at most are read"),
    ],
)  # fmt: skip
def test_a_header_may_say_what_a_clip_can_be(monkeypatch, frames, rate, channels, got):
    info = SimpleNamespace(frames=frames, samplerate=rate, channels=channels)
    monkeypatch.setattr(soundfile, "info", lambda _: info)
    if got is None:
        assert sound._read_header("n", b"fLaC") == (frames, rate, channels)
    else:
        assert refused(sound._read_header, "n", b"fLaC") == got


def test_what_is_no_clip():
    assert refused(sound.check, "n", b"", False) == "an empty file"
    assert refused(sound.check, "n", b"hello" * 99, False) == "it is no sound file"


def test_only_headers_of_wav_and_flac_tell_the_length(monkeypatch):
    """A clip of another format, or one to be decoded, has as many samples as are in it."""
    decoded = []

    def decode(_name, _data, rate):
        decoded.append(rate)
        return np.zeros(7)

    monkeypatch.setattr(sound, "decode_samples", decode)
    for form, kind, is_read in (
        ("WAV", "FLOAT", True),
        ("FLAC", "PCM_16", True),
        ("AIFF", "PCM_16", False),
    ):
        data = encode(np.zeros(50), form=form, kind=kind)
        found = sound.check("n", data, False)
        assert found == ClipInfo(50 if is_read else 7, 1000, 1)
        assert sound.check("n", data, True) == ClipInfo(7, 1000, 1)
    assert decoded == [1000] * 4


# ---- a corpus and its transcripts ------------------------------------------------------------------------------------


def test_formats_and_seconds_of_a_corpus(tmp_path):
    for name, samples, rate, channels in (("a", 2000, 1000, 1), ("b", 1000, 4000, 2), ("c", 400, 4000, 2)):  # fmt: skip
        (tmp_path / f"{name}.wav").write_bytes(encode(np.zeros((samples, channels)), rate))  # fmt: skip
    source = speech.open_speech(str(tmp_path)).source
    assert source["seconds"] == 2.4, "2, 0.25 and 0.1"
    assert source["formats"] == {"1000 Hz, 1 channels": 1, "4000 Hz, 2 channels": 2}


ALONE = "the decoder reads the same prompt with every clip, so that its numbers say little about the corpus: "


class Reader:
    """An id for each letter; special tokens would be 0 before and behind."""

    def __call__(self, text, add_special_tokens=True):
        ids = [ord(letter) - 96 for letter in text]
        return {"input_ids": [0, *ids, 0] if add_special_tokens else ids}


@pytest.mark.parametrize(
    ("texts", "clips", "room", "ids", "note"),
    [
        (("ab", "c"), (1, 0), 0, [[3], [1, 2]], ""),
        (("ab", "c"), (0, 1), 5, [[1, 2], [3]], ""),
        (("abc", "d"), (0, 1), 5, [[1, 2], [4]], "1 transcripts cut to the 2 tokens that the decoder has room for"),
        (("", ""), (0, 1), 0, [], f"{ALONE}no clip has a transcript"),
        (("a", "", ""), (0, 1, 2, 2), 0, [], f"{ALONE}2 of 3 clips have no transcript"),
        (("a", "b"), (0, 0, 1), 0, [], f"{ALONE}transcripts of clips that are cut into several windows cannot be cut"),
    ],
)  # fmt: skip
def test_the_transcripts_that_a_decoder_reads(texts, clips, room, ids, note):
    """Three tokens are its prompt; a clip without a window is none of the corpus."""
    corpus = SimpleNamespace(items=[SimpleNamespace(text=t) for t in (*texts, "")])
    windows = SimpleNamespace(clip=np.array(clips))
    config = SimpleNamespace(max_target_positions=room)
    processor = SimpleNamespace(tokenizer=Reader())
    found = speech._read_transcripts(corpus, windows, processor, config, 3)
    assert found == (ids, note)
    if ids:
        found = speech._read_transcripts(corpus, windows, None, config, 3)
        assert found == ([], f"{ALONE}the checkpoint has no tokenizer for the transcripts")  # fmt: skip


def test_the_field_of_convolutions_is_counted_from_the_last_one():
    for kernels, strides, samples in (
        ((10, 3), (5, 2), 20),
        ((3, 10), (2, 5), 21),
        ((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), 400),
        ((), (), 1),
    ):
        config = SimpleNamespace(conv_kernel=kernels, conv_stride=strides)
        assert speech._find_receptive_field(config) == samples


def test_a_window_may_be_as_short_as_one_position():
    config = SimpleNamespace(conv_kernel=(20,), conv_stride=(20,))
    how = speech.choose_sound_input(config, None, 1)
    assert (how.longest, how.shortest) == (20, 20)
    with pytest.raises(UsageError, match="windows of at least 21 samples; got 20"):
        config = SimpleNamespace(conv_kernel=(21,), conv_stride=(20,))
        speech.choose_sound_input(config, None, 1)


def test_the_usual_extractors_have_the_window_and_bins_of_the_model():
    """1,500 positions of two frames of 160 samples are 30 seconds."""
    for positions, bins, seconds in ((1500, 80, 30), (100, 128, 2), (10, 80, 1)):
        config = SimpleNamespace(max_source_positions=positions, num_mel_bins=bins)
        found = speech._default_extractor(config, True)
        assert (found.chunk_length, found.feature_size) == (seconds, bins)
        assert found.sampling_rate == 16_000
    found = speech._default_extractor(None, False)
    assert found.do_normalize is True and found.sampling_rate == 16_000


# ---- windows and batches ---------------------------------------------------------------------------------------------


class Extractor:
    hop_length, nb_max_frames = 10, 30

    def __init__(self):
        self.asked = []

    def __call__(self, sounds, *, sampling_rate, return_tensors, padding=None, return_attention_mask=None):  # fmt: skip
        self.asked.append((sampling_rate, return_tensors, padding, return_attention_mask))  # fmt: skip
        if padding is None:
            return {"input_features": torch.zeros(len(sounds), 2, 30)}
        width = max(map(len, sounds))
        values, mask = torch.zeros(len(sounds), width), torch.zeros(len(sounds), width)
        for row, samples in enumerate(sounds):
            values[row, : len(samples)] = torch.from_numpy(samples)
            mask[row, : len(samples)] = 1
        return {"input_values": values, "attention_mask": mask}


def corpus_of(*clips, unit, text=None):
    """Clips of these samples at 1,000 a second."""
    found = []
    for k, samples in enumerate(clips):
        data = encode(samples)
        found.append(SimpleNamespace(name=f"c{k}", read=lambda d=data: d, text=(text or "a" * 9)[k]))  # fmt: skip
    return SimpleNamespace(
        items=found,
        infos=[ClipInfo(len(samples), 1000, 1) for samples in clips],
        unit=np.array(unit),
        fingerprint="print",
        skip_bad=False,
        unit_word=lambda _: "speaker",
    )


def plan_of(monkeypatch, kind, *clips, unit, longest=40, prompt=(), text=None, budget=4096, **settings):  # fmt: skip
    how = SoundInput(kind, Extractor(), 1000, longest, 5, 5, settings)
    monkeypatch.setattr(speech, "choose_sound_input", lambda *_: how)
    monkeypatch.setattr(speech, "_find_prompt", lambda *_: list(prompt))
    model = SimpleNamespace(config=SimpleNamespace(max_source_positions=3))
    processor = SimpleNamespace(tokenizer=Reader())
    corpus = corpus_of(*clips, unit=unit, text=text)
    return SpeechPlan(corpus, model, processor, batch_tokens=budget)


RAMP = np.arange(70) / 100


def test_a_plan_is_for_the_model_its_processor_and_its_longest_window(monkeypatch):
    how = SoundInput("padded", Extractor(), 1000, 40, 5, 5, {})
    asked = []
    monkeypatch.setattr(
        speech, "choose_sound_input", lambda *given: asked.append(given) or how
    )
    monkeypatch.setattr(
        speech, "_find_prompt", lambda *given: asked.append(given) or []
    )
    model = SimpleNamespace(config="config")
    SpeechPlan(corpus_of(RAMP, unit=[0]), model, "processor", max_length=7)
    assert asked == [("config", "processor", 7), ("config", "processor")]


def test_windows_of_clips_are_decoded_whatever_the_order(monkeypatch):
    """The last clip is kept: going back to an earlier one decodes that one again."""
    plan = plan_of(monkeypatch, "padded", RAMP, -RAMP[:30], unit=[0, 1])
    assert plan.windows.clip.tolist() == [0, 0, 1]
    for row, wanted in ((1, RAMP[35:]), (2, -RAMP[:30]), (0, RAMP[:35]), (2, -RAMP[:30])):  # fmt: skip
        assert np.allclose(plan._window(row), wanted, atol=1e-6)
    batch = plan.build(np.array([2, 1]))
    assert batch.inputs["attention_mask"].sum(1).tolist() == [30, 35]
    stream = batch.streams["samples"]
    assert stream.mask.sum(1).tolist() == [30, 35] and not stream.special.any()
    assert stream.start.tolist() == [0, 35] and batch.unit.tolist() == [1, 0]
    assert list(batch.streams) == ["samples"]
    assert plan.how.extractor.asked == [(1000, "pt", True, True)]
    assert [plan.words[k] for k in ("position", "sequence", "unit", "counted")] == [
        *("frame", "window", "speaker", "sample"),
    ]


def test_without_padding_no_mask_is_asked_for(monkeypatch):
    plan = plan_of(monkeypatch, "unpadded", RAMP[:30], RAMP[:20], RAMP[:30], unit=[0, 1, 1])  # fmt: skip
    assert [rows.tolist() for rows in plan.batches] == [[0, 2], [1]]
    batch = plan[0]
    assert set(batch.inputs) == {"input_values"}
    assert plan.how.extractor.asked == [(1000, "pt", False, False)]
    assert plan.words["sequence"] == "clip" and plan.tokens == [60, 20]


def test_a_decoder_reads_prompt_and_transcript(monkeypatch):
    """Its inputs are counted through the unit, padded with the first token, and marked as special in the prompt."""
    plan = plan_of(monkeypatch, "features", RAMP[:25], RAMP[:30], unit=[4, 4],
                   prompt=(8, 9), text=["ab", "c"])  # fmt: skip
    assert plan.texts == [[1, 2], [3]] and plan.real.tolist() == [3, 3]
    batch = plan.build(np.array([1, 0]))
    assert batch.inputs["decoder_input_ids"].tolist() == [[8, 9, 3, 8], [8, 9, 1, 2]]
    assert batch.inputs["decoder_attention_mask"].tolist() == [[1, 1, 1, 0], [1] * 4]
    decoder, frames = batch.streams["decoder"], batch.streams["frames"]
    assert decoder.mask.long().tolist() == [[1, 1, 1, 0], [1] * 4]
    assert decoder.special.long().tolist() == [[1, 1, 0, 0]] * 2
    assert decoder.start.tolist() == [4, 0] and frames.start.tolist() == [30, 0]
    assert frames.mask.shape == (2, 30) and frames.mask.sum(1).tolist() == [3, 3]
    assert plan.words["counted"] == "mel frame" and plan.warnings == []
    assert plan.settings["decoder_reads"] == "transcripts"
    alone = plan_of(monkeypatch, "features", RAMP[:25], unit=[4], prompt=(8, 9), text=[""])  # fmt: skip
    assert alone.warnings == [f"{ALONE}no clip has a transcript"]
    assert alone[0].inputs["decoder_input_ids"].tolist() == [[8, 9]]
    assert "decoder_attention_mask" not in alone[0].inputs
    assert "decoder_reads" not in alone.settings


def test_what_is_heard_or_read_changes_the_hash_of_a_plan(monkeypatch):
    def print_of(unit=(0, 1), **how):
        return plan_of(monkeypatch, "features", RAMP[:25], RAMP[:30], unit=unit, **how).fingerprint  # fmt: skip

    prompt = {"prompt": (8, 9)}
    prints = [
        print_of(),
        print_of(unit=(0, 0)),
        print_of(longest=20),
        print_of(budget=7),
        print_of(kind_of_norm="x"),
        print_of(**prompt, text=["a", "b"]),
        print_of(**prompt, text=["a", "c"]),
        print_of(**prompt, text=["", ""]),
        print_of(prompt=(8,), text=["", ""]),
    ]
    assert len(set(prints)) == len(prints) and print_of() == prints[0]


def test_clips_that_are_too_short_are_left_out_and_counted(monkeypatch):
    """Four samples are too few, five are enough."""
    how = SoundInput("padded", Extractor(), 1000, 40, 5, 3, {})
    monkeypatch.setattr(speech, "choose_sound_input", lambda *_: how)
    corpus = corpus_of(RAMP[:4], RAMP[:5], RAMP[:3], RAMP[:9], unit=[0, 1, 2, 3])
    with pytest.raises(CorpusError) as error:
        SpeechPlan(corpus, None)
    assert str(error.value) == (
        "expected clips of at least 5 samples at 1000 Hz; got 2 faulty: c0 (4 samples), c2 (3 samples). "
        "Cure: pass --skip-bad"
    )
    corpus.skip_bad = True
    plan = SpeechPlan(corpus, None)
    assert plan.warnings == ["2 clips of fewer than 5 samples left out"]
    assert plan.windows.clip.tolist() == [1, 3]


def test_a_clip_is_cut_into_as_few_windows_as_fit():
    how = SoundInput("padded", Extractor(), 2000, 40, 5, 5, {})
    corpus = corpus_of(RAMP[:20], RAMP[:21], RAMP[:40], unit=[0, 0, 1])
    found = speech.cut_into_windows(corpus, np.array([0, 1, 2]), how)
    assert isinstance(found, ClipWindows)
    assert found.clip.tolist() == [0, 1, 1, 2, 2]
    assert found.length.tolist() == [40, 21, 21, 40, 40]
    assert found.first.tolist() == [0, 0, 21, 0, 40]
    assert found.start.tolist() == [0, 40, 61, 0, 40]


def test_a_clip_that_cannot_be_decoded_is_named(monkeypatch):
    def fail(*_, **__):
        raise soundfile.SoundFileError("whatever")

    data = encode(np.zeros(9))
    monkeypatch.setattr(soundfile, "read", fail)
    assert refused(sound.decode_samples, "n", data, 1000) == "damaged after its header"
    assert refused(sound.check, "n", data, True) == "damaged after its header"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_mel_bins": 80, "model_type": "other"},
         "a model that reads samples, or Whisper; got other. "
         "Cure: name a model such as wav2vec 2.0, HuBERT or Whisper"),
        ({"num_mel_bins": 80, "max_source_positions": 50},
         "a feature extractor of 100 frames per window, which the model reads; got 70 frames. "
         "Cure: use the feature extractor published with the model"),
        ({"conv_kernel": (50,), "conv_stride": (10,)},
         "windows of at least 50 samples; got 40. Cure: raise --max-length"),
    ],
)  # fmt: skip
def test_a_model_that_reads_sound_otherwise_is_refused(config, message):
    extractor = SimpleNamespace(sampling_rate=1000, nb_max_frames=70)
    with pytest.raises(UsageError) as error:
        speech.choose_sound_input(SimpleNamespace(**config), extractor, 4)
    assert str(error.value) == f"expected {message}"


def test_how_models_read_sound():
    """Features of two frames a position, samples with padding, samples without it."""
    mel = {"num_mel_bins": 80, "max_source_positions": 35}
    extractor = SimpleNamespace(
        sampling_rate=500, nb_max_frames=70, hop_length=8, n_samples=600, do_normalize=1
    )
    of_window = {"feature_size": 2, "padding_value": 0.5, "n_fft": 9, "chunk_length": 3}
    vars(extractor).update(of_window)
    samples = {"conv_kernel": (10, 4), "conv_stride": (5, 2)}
    for config, longest, numbers in (
        (mel, None, ("features", 600, 1, 16)),
        (mel, 30, ("features", 480, 1, 16)),
        (mel, 99, ("features", 600, 1, 16)),
        (samples | {"feat_extract_norm": "layer"}, None, ("padded", 600, 25, 10)),
        (samples | {"feat_extract_norm": "group"}, 7, ("unpadded", 70, 25, 10)),
        ({}, 1, ("unpadded", 320, 1, 320)),
    ):
        processor = SimpleNamespace(feature_extractor=extractor)
        how = speech.choose_sound_input(SimpleNamespace(**config), processor, longest)
        assert (how.kind, how.longest, how.shortest, how.stride) == numbers
        assert how.rate == 500 and how.extractor is extractor
        assert how.settings == of_window | {
            "do_normalize": 1, "hop_length": 8, "extractor": "checkpoint", "class": "SimpleNamespace",
            "rate": 500, "batching": numbers[0], "window_seconds": numbers[1] / 500,
        }  # fmt: skip


def test_the_prompt_is_that_of_the_tokenizer_or_the_start():
    reads = SimpleNamespace(is_encoder_decoder=True, decoder_start_token_id=7)
    for config, tokens, prompt in (
        (SimpleNamespace(is_encoder_decoder=False), (9,), []),
        (reads, (9, 8), [9, 8]),
        (reads, (), [7]),
        (reads, None, [7]),
    ):
        tokenizer = SimpleNamespace(prefix_tokens=tokens)
        processor = SimpleNamespace(tokenizer=tokenizer)
        assert speech._find_prompt(config, processor) == prompt
    assert speech._find_prompt(reads, None) == [7]


def test_what_a_decoder_read_before_is_counted_through_its_unit():
    unit = np.array([3, 5, 3, 3, 5])
    texts = [[1], [1, 1], [], [1, 1, 1], [1]]
    assert speech._find_decoder_starts(unit, 4, texts).tolist() == [0, 0, 5, 9, 6]
    assert speech._find_decoder_starts(unit, 4, []).tolist() == [0, 0, 4, 8, 4]
