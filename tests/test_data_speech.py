"""Speech corpora: clips out of folders, manifests and hub data sets; windows, masks and prompts for each family."""

import csv
import json
from io import BytesIO
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import soundfile
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from tiny_models import build
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperModel

from anisoscope.data import hub, sound, speech
from anisoscope.data.corpora import list_corpora
from anisoscope.data.hub import HubSet
from anisoscope.data.opening import default_corpus, open_plan
from anisoscope.data.sound import decode_samples
from anisoscope.data.speech import SpeechPlan, open_speech
from anisoscope.errors import CorpusError, UsageError
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings

RATE = 16_000


def tone(seconds, rate=RATE, pitch=440.0, channels=1, seed=0):
    """A tone with a little noise, [sample] or [sample, channel]."""
    time = np.arange(round(seconds * rate)) / rate
    noise = 0.01 * np.random.default_rng(seed).standard_normal((len(time), channels))
    sound = 0.3 * np.sin(2 * np.pi * pitch * time)[:, None] + noise
    return sound[:, 0] if channels == 1 else sound


def clip(path, sound, rate=RATE):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, sound, rate)
    return path


def table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ","
        )
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def model(**config):
    return SimpleNamespace(config=SimpleNamespace(**config))


GROUP = model(feat_extract_norm="group", conv_kernel=(10, 8), conv_stride=(5, 4))
LAYER = model(feat_extract_norm="layer", conv_kernel=(10, 8), conv_stride=(5, 4))
SIZES = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "num_mel_bins": 80,
}
WHISPER = SimpleNamespace(
    config=WhisperConfig(**SIZES, max_source_positions=50, decoder_start_token_id=7)
)
"""One second of sound per window."""


@pytest.fixture
def folder(tmp_path):
    """Four clips of three rates, mono and stereo, wav and flac; no manifest."""
    clip(tmp_path / "a.wav", tone(0.5))
    clip(tmp_path / "b" / "b.flac", tone(0.4, 8000), 8000)
    clip(tmp_path / "c.WAV", tone(0.3, 44_100, channels=2), 44_100)
    clip(tmp_path / "d.wav", tone(0.2, seed=1))
    (tmp_path / "notes.txt").write_text("not a clip")
    return tmp_path


def test_a_folder_is_read_in_the_order_of_its_paths_each_clip_a_unit(folder):
    corpus = open_speech(str(folder))
    assert [item.name for item in corpus.items] == [
        "a.wav",
        "b/b.flac",
        "c.WAV",
        "d.wav",
    ]
    assert corpus.unit.tolist() == [0, 1, 2, 3] and corpus.source["unit"] == "file"
    assert corpus.source["formats"] == {
        "16000 Hz, 1 channels": 2, "8000 Hz, 1 channels": 1, "44100 Hz, 2 channels": 1
    }  # fmt: skip
    assert (
        corpus.source["seconds"] == pytest.approx(1.4)
        and len(open_speech(str(folder), limit=2).items) == 2
    )
    assert open_speech(str(folder / "a.wav")).unit.tolist() == [0]
    before = corpus.fingerprint
    clip(folder / "d.wav", tone(0.2, seed=2))
    assert open_speech(str(folder)).fingerprint != before


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_a_manifest_names_clips_and_speakers(folder, ending):
    names = {"a.wav": "eve", "b/b.flac": "", "c.WAV": "eve", "d.wav": "bob"}
    rows = [{"path": name, "speaker_id": speaker} for name, speaker in names.items()]
    place = folder / f"list{ending}"
    if ending == ".jsonl":
        place.write_text("\n".join(map(json.dumps, rows)))
    else:
        table(place, rows)
    corpus = open_speech(str(place))
    assert corpus.unit.tolist() == [0, 1, 0, 2] and corpus.source["unit"] == "speaker"
    assert (
        len(open_speech(str(place), limit=2).items) == 3
    )  # up to the clip that begins the third unit


def test_the_manifest_in_or_above_a_folder_is_used_and_common_voice_keeps_its_clips_apart(
    folder, tmp_path
):
    table(
        folder / "manifest.csv",
        [{"file": "b/b.flac", "speaker": "eve"}, {"file": "a.wav", "speaker": "eve"}],
    )
    assert [item.name for item in open_speech(str(folder)).items] == [
        "b/b.flac",
        "a.wav",
    ]
    assert [item.unit for item in open_speech(str(folder / "b")).items] == ["eve"]
    clip(tmp_path / "cv" / "clips" / "x.mp3", tone(0.3))
    voices = table(
        tmp_path / "cv" / "dev.tsv",
        [{"client_id": "f0", "path": "x.mp3", "sentence": "hm"}],
    )
    corpus = open_speech(voices)
    assert corpus.unit.tolist() == [0] and corpus.infos[0].frames == pytest.approx(
        4800, abs=1200
    )


def test_channels_are_averaged_and_the_rate_is_changed(folder):
    left, right = tone(0.3, 44_100), tone(0.3, 44_100, pitch=880.0)
    data = clip(folder / "two.wav", np.stack([left, right], 1), 44_100).read_bytes()
    sound = decode_samples("two", data, RATE)
    assert sound.dtype == np.float32 and len(sound) == open_speech(
        str(folder / "two.wav")
    ).infos[0].resampled(RATE)
    wanted = (tone(0.3) + tone(0.3, pitch=880.0)) / 2
    inner = slice(200, -200)
    assert np.corrcoef(sound[inner], wanted[inner])[0, 1] > 0.995
    assert np.sqrt(np.mean((sound[inner] - wanted[inner]) ** 2)) < 0.02
    assert np.array_equal(
        decode_samples("a", (folder / "a.wav").read_bytes(), RATE).shape, (8000,)
    )


@pytest.mark.parametrize("frames", [441, 1001, 4411])
def test_a_clip_has_as_many_samples_as_its_header_promises(folder, frames):
    """Where another rate cuts a sample in two as well: 1,001 at 44.1 kHz are 363.2 at 16 kHz."""
    path = clip(folder / "odd.wav", tone(1.0, 44_100)[:frames], 44_100)
    sound = decode_samples("odd", path.read_bytes(), RATE)
    assert (
        len(sound)
        == open_speech(str(path)).infos[0].resampled(RATE)
        == -(-frames * 160 // 441)
    )


@pytest.mark.usefixtures("data_folder")
def test_the_stereo_clip_of_1961():
    """The real JFK clip, 44.1 kHz stereo: 11 seconds, and the same words at both rates."""
    corpus = open_speech("speech/jfk")
    info = corpus.infos[0]
    assert (info.rate, info.channels) == (44_100, 2)
    stored, _ = soundfile.read(corpus.items[0].place)
    sound = decode_samples("jfk", corpus.items[0].read(), RATE)
    assert len(sound) == info.resampled(RATE) == -(-len(stored) * 160 // 441)
    assert np.std(sound) == pytest.approx(np.std(stored.mean(1)), rel=0.02)
    spectrum = [
        np.abs(np.fft.rfft(x))[: 4000 * 11] for x in (sound * 441 / 160, stored.mean(1))
    ]
    width = min(map(len, spectrum))
    assert np.corrcoef(spectrum[0][:width], spectrum[1][:width])[0, 1] > 0.99


@pytest.mark.usefixtures("data_folder")
def test_real_speech_has_its_speakers_as_units():
    assert {"speech", "speech/fsdd_test", "speech/jfk"} <= set(list_corpora())
    everything = open_speech("speech")
    assert (len(everything.items), len(set(everything.unit.tolist()))) == (401, 17)
    digits = open_speech("speech/fsdd_test")
    assert (len(digits.items), len(set(digits.unit.tolist()))) == (300, 6)


def test_a_norm_over_the_clip_allows_no_padding(folder):
    clip(folder / "e.wav", tone(0.5, seed=5))
    plan = SpeechPlan(open_speech(str(folder)), GROUP)
    assert plan.settings["batching"] == "unpadded" and [len(b.unit) for b in plan] == [
        2,
        1,
        1,
        1,
    ]
    for batch in plan:
        assert (
            set(batch.inputs) == {"input_values"}
            and batch.streams["samples"].mask.all()
        )
        assert batch.inputs["input_values"].mean(1) == pytest.approx(0, abs=1e-5)
        assert batch.inputs["input_values"].std(1, correction=0) == pytest.approx(
            1, abs=1e-3
        )
    small = SpeechPlan(open_speech(str(folder)), GROUP, batch_tokens=1)
    assert [len(batch.unit) for batch in small] == [
        1
    ] * 5 and small.fingerprint != plan.fingerprint


def test_a_norm_over_features_is_padded_with_a_mask(folder):
    plan = SpeechPlan(open_speech(str(folder)), LAYER)
    (batch,) = plan
    lengths = [8000, 6400, 4800, 3200]
    assert (
        batch.inputs["attention_mask"].sum(1).tolist()
        == lengths
        == batch.streams["samples"].mask.sum(1).tolist()
    )
    assert batch.n_tokens == plan.tokens[0] == sum(lengths) and plan.n_units == 4
    assert not batch.inputs["input_values"][3, 3200:].any()


@pytest.mark.parametrize("name", ["wav2vec2", "wav2vec2-stable"])
def test_a_clip_alone_gives_the_same_frames_as_in_a_batch(folder, name):
    subject = build(name, torch.float32)
    found = []
    for budget in (1, 100_000):
        states = {}
        for batch in SpeechPlan(open_speech(str(folder)), subject, batch_tokens=budget):
            with torch.no_grad():
                hidden = subject(**batch.inputs).last_hidden_state
            lengths = subject._get_feat_extract_output_lengths(
                batch.streams["samples"].mask.sum(1)
            )
            states |= {
                unit: hidden[k, : lengths[k]]
                for k, unit in enumerate(batch.unit.tolist())
            }
        found.append(states)
    assert all(
        torch.allclose(found[0][unit], found[1][unit], atol=2e-5) for unit in range(4)
    )


def test_a_long_clip_is_cut_into_equal_windows_that_lose_nothing(tmp_path):
    sound = tone(2.6, seed=3)
    rows = [{"path": "long.wav", "speaker": "x"}, {"path": "short.wav", "speaker": "x"}]
    clip(tmp_path / "long.wav", sound), clip(tmp_path / "short.wav", tone(0.5))
    corpus = open_speech(table(tmp_path / "m.csv", rows))
    plan = SpeechPlan(corpus, GROUP, max_length=RATE // 20)
    windows = plan.windows
    assert windows.length.sum() == len(sound) + 8000 and windows.length.max() <= RATE
    assert np.ptp(windows.length[:3]) <= 1 and windows.start.tolist() == [
        0,
        *np.cumsum(windows.length)[:-1],
    ]
    assert (
        sorted(int(x) for batch in plan for x in batch.streams["samples"].start)
        == windows.start.tolist()
    )
    mel = next(iter(SpeechPlan(corpus, WHISPER, batch_tokens=100_000))).streams
    assert (mel["frames"].start.tolist(), mel["decoder"].start.tolist()) == (
        [0, 100, 200, 300],
        [0, 1, 2, 3],
    )
    pieces = np.concatenate([plan._window(k) for k in range(3)])
    assert np.array_equal(
        pieces, decode_samples("long", (tmp_path / "long.wav").read_bytes(), RATE)
    )


def test_whisper_reads_windows_of_one_length_and_a_fixed_prompt(folder):
    plan = SpeechPlan(open_speech(str(folder)), WHISPER)
    assert plan.settings["extractor"] == "default" and plan.settings[
        "decoder_prompt"
    ] == [7]
    (batch,) = plan
    assert (
        batch.inputs["input_features"].shape == (4, 80, 100)
        and "attention_mask" not in batch.inputs
    )
    assert batch.streams["frames"].mask.sum(1).tolist() == [50, 40, 30, 20]
    assert (
        batch.inputs["decoder_input_ids"].tolist() == [[7]] * 4
        and batch.streams["decoder"].special.all()
    )
    alone = SpeechPlan(open_speech(str(folder)), WHISPER, batch_tokens=1)
    assert all(
        torch.equal(
            alone[k].inputs["input_features"][0], batch.inputs["input_features"][k]
        )
        for k in range(4)
    )
    tokenizer = SimpleNamespace(prefix_tokens=[7, 3, 2])
    processor = SimpleNamespace(
        feature_extractor=WhisperFeatureExtractor(chunk_length=1), tokenizer=tokenizer
    )
    prompted = SpeechPlan(open_speech(str(folder)), WHISPER, processor)
    assert prompted.settings["extractor"] == "checkpoint"
    assert prompted[0].inputs["decoder_input_ids"].tolist() == [[7, 3, 2]] * 4
    with pytest.raises(
        UsageError,
        match=r"extractor of 100 frames per window, which the model reads; got 3000 frames",
    ):
        SpeechPlan(open_speech(str(folder)), WHISPER, WhisperFeatureExtractor())


@pytest.fixture
def broken(folder):
    """The clips of `folder` beside five that cannot be read; `late.flac` only fails when it is decoded."""
    (folder / "junk.wav").write_bytes(b"hello" * 100)
    (folder / "nothing.wav").write_bytes(b"")
    clip(folder / "silent.wav", np.zeros(0))
    whole = (folder / "a.wav").read_bytes()
    (folder / "cut.wav").write_bytes(whole[: len(whole) // 2])
    soundfile.write(
        folder / "inf.wav",
        np.array([0.1, np.nan] * 4000, np.float32),
        RATE,
        subtype="FLOAT",
    )
    noise = clip(
        folder / "late.flac", np.random.default_rng(0).uniform(-0.5, 0.5, 8000)
    ).read_bytes()
    (folder / "late.flac").write_bytes(noise[: len(noise) // 2])
    return folder


def test_clips_that_cannot_be_read_are_named_and_counted(broken):
    with pytest.raises(CorpusError) as told:
        open_speech(str(broken))
    text = str(told.value)
    for part in (
        "4 faulty: ",
        "junk.wav (it is no sound file)",
        "nothing.wav (an empty file)",
        "silent.wav (no samples)",
    ):
        assert part in text
    assert "cut.wav (it ends after" in text and "--skip-bad" in text


def test_skip_bad_leaves_them_out_and_counts_them(broken):
    corpus = open_speech(str(broken), skip_bad=True)
    assert [item.name for item in corpus.items] == [
        "a.wav",
        "b/b.flac",
        "c.WAV",
        "d.wav",
    ]
    assert (
        corpus.source["skipped"] == 6
        and "late.flac (damaged after its header)" in corpus.source["skipped_items"]
    )
    _, described = open_plan(str(broken), GROUP, None, modality="speech", skip_bad=True)
    assert described["warnings"] == ["6 unreadable items of the corpus left out"]
    assert described["preprocessing"]["batching"] == "unpadded"


def test_a_clip_that_fails_late_ends_the_run_by_name(broken):
    for name in ("junk", "nothing", "silent", "cut"):
        (broken / f"{name}.wav").unlink()
    with pytest.raises(
        CorpusError,
        match=r"in (late.flac|inf.wav); got (damaged after|NaN).*--skip-bad",
    ):
        list(SpeechPlan(open_speech(str(broken)), GROUP))


def test_missing_files_of_a_manifest_are_named_and_counted(folder):
    names = ["a.wav", *(f"gone{k}.wav" for k in range(7))]
    listed = table(folder / "m.csv", [{"path": name} for name in names])
    with pytest.raises(
        CorpusError,
        match=r"7 faulty: gone0.wav \(No such file.*gone4.wav .* and 2 more",
    ):
        open_speech(listed)
    assert open_speech(listed, skip_bad=True).source["skipped"] == 7
    with pytest.raises(CorpusError, match=r"a column of paths .* got the columns name"):
        open_speech(table(folder / "n.csv", [{"name": "a.wav"}]))


def test_clips_too_short_for_the_model_are_named_or_left_out(folder):
    clip(folder / "tiny.wav", tone(0.002))
    wanted = r"clips of at least 45 samples at 16000 Hz; got 1 faulty: tiny.wav \(32 samples\)"
    with pytest.raises(CorpusError, match=wanted):
        SpeechPlan(open_speech(str(folder)), GROUP)
    plan = SpeechPlan(open_speech(str(folder), skip_bad=True), GROUP)
    assert plan.n_units == 4 and plan.warnings == [
        "1 clips of fewer than 45 samples left out"
    ]


def test_names_and_options_that_fit_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    with pytest.raises(
        CorpusError,
        match=r"a speech corpus: a folder, a manifest.*got 'spech'.*librispeech",
    ):
        open_speech("spech")
    with pytest.raises(UsageError, match=r"got --split with"):
        open_speech(str(folder), split="test")
    with pytest.raises(
        UsageError, match=r"--corpus for a speech model.*a folder of wav or flac files"
    ):
        default_corpus("speech")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"files ending in \.wav, \.flac.*; got none"):
        open_speech(str(tmp_path / "empty"))


def test_a_model_that_reads_something_else_is_told_so(folder):
    with pytest.raises(
        UsageError,
        match=r"a corpus that the model reads \(text\); got .* which holds speech. .*python-docs",
    ):
        open_plan(str(folder), GROUP, None, modality="text")
    with pytest.raises(
        UsageError,
        match=r"a corpus that the model reads \(speech\); got builtin:digits, which holds image",
    ):
        open_plan("builtin:digits", GROUP, None, modality="speech")


def test_common_voice_is_no_longer_on_the_hub_and_the_error_says_where(monkeypatch):
    def gone(*_, **__):
        raise RepositoryNotFoundError(
            "404", response=SimpleNamespace(headers={}, request=None, status_code=404)
        )

    monkeypatch.setattr(HfApi, "dataset_info", gone)
    with pytest.raises(
        CorpusError,
        match=r"common_voice_11_0.*Common Voice has left the hub.*name its dev.tsv",
    ):
        open_speech("common-voice")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What is streamed is kept in a folder of the test's own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))


def test_clips_of_a_hub_data_set_stay_encoded(folder, monkeypatch):
    paths = [str(folder / name) for name in ("a.wav", "b/b.flac", "c.WAV", "d.wav")]
    rows = {"audio": paths, "speaker_id": [7, 7, 8, 9], "text": list("abcd")}
    split = (
        datasets.Dataset.from_dict(rows)
        .cast_column("audio", datasets.Audio())
        .to_iterable_dataset()
    )
    monkeypatch.setattr(hub, "find_set", lambda part: HubSet(part.id, "c0ffee"))
    monkeypatch.setattr(
        hub, "load_splits", lambda *_: {"train": split, "validation": split}
    )
    corpus = open_speech("librispeech")
    assert (
        corpus.unit.tolist() == [0, 0, 1, 2]
        and corpus.fingerprint != open_speech(str(folder)).fingerprint
    )
    assert (
        corpus.source["id"] == "openslr/librispeech_asr"
        and corpus.source["commit"] == "c0ffee"
    )
    assert (
        corpus.source["config"],
        corpus.source["split"],
        corpus.source["column"],
    ) == (
        "other",
        "validation",
        "audio",
    )
    plan = SpeechPlan(corpus, GROUP)
    local = SpeechPlan(open_speech(str(folder)), GROUP)
    assert all(
        torch.equal(a.inputs["input_values"], b.inputs["input_values"])
        for a, b in zip(plan, local, strict=True)
    )
    assert len(open_speech("some/set:other@v1", limit=2).items) == 3
    monkeypatch.setattr(hub, "find_set", lambda part: HubSet(part.id, "another"))
    monkeypatch.setattr(hub, "load_splits", lambda *_: {"train": split, "test": split})
    assert (
        open_speech("some/set").source["split"]
        == "test"
        == open_speech("librispeech", split="test").source["split"]
    )
    with pytest.raises(
        CorpusError, match=r"a split of openslr/librispeech_asr; got validation"
    ):
        open_speech("librispeech")
    with pytest.raises(
        CorpusError, match=r"a column of speech in some/set; got 'sound'.*audio"
    ):
        open_speech("some/set", column="sound")
    both = {"audio": paths, "noise": paths[::-1]}
    two = (
        datasets.Dataset.from_dict(both)
        .cast_column("audio", datasets.Audio())
        .cast_column("noise", datasets.Audio())
    )
    monkeypatch.setattr(
        hub, "load_splits", lambda *_: {"test": two.to_iterable_dataset()}
    )
    first, second = (
        open_speech("two/columns", column=column) for column in ("audio", "noise")
    )
    assert [item.read() for item in second.items] == [
        item.read() for item in first.items
    ][::-1]
    assert (first.source["column"], second.source["column"]) == ("audio", "noise")
    silent = split.remove_columns("audio")
    monkeypatch.setattr(hub, "load_splits", lambda *_: {"test": silent})
    with pytest.raises(
        CorpusError,
        match=r"a column of speech in no/sound; got the columns speaker_id, text\.",
    ):
        open_speech("no/sound")


@pytest.mark.parametrize(("missing", "whole"), [(0, True), (160, True), (161, False)])
def test_a_clip_may_end_a_hundredth_of_a_second_early(monkeypatch, missing, whole):
    """Frames of a header are counted from the size of the file by some encoders; more than that is a damaged clip."""
    data = BytesIO()
    soundfile.write(data, np.zeros(1000, np.float32), 16_000, format="WAV")
    monkeypatch.setattr(
        sound.soundfile,
        "read",
        lambda *_args, **_how: (np.zeros((1000 - missing, 1)), 16_000),
    )
    if whole:
        assert sound.decode_samples("a.wav", data.getvalue(), 16_000).shape == (
            1000 - missing,
        )
    else:
        with pytest.raises(
            CorpusError, match=f"it ends after {1000 - missing} of 1000 samples"
        ):
            sound.decode_samples("a.wav", data.getvalue(), 16_000)


class Letters:
    """A tokenizer of letters: a is 10, b is 11, …; the prompt of a decoder is 7, 3."""

    prefix_tokens = (7, 3)

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens  # the prompt is put before the text by the plan
        return {"input_ids": [10 + ord(letter) - ord("a") for letter in text]}


EARS = SimpleNamespace(
    feature_extractor=WhisperFeatureExtractor(chunk_length=1), tokenizer=Letters()
)
SAID = {"a.wav": "abcd", "b/b.flac": "ba", "c.WAV": "c", "d.wav": "dad"}


def transcribed(folder, said=None, name="text"):
    """A manifest of the clips in `folder` with what is said in them."""
    rows = [
        {"path": path, name: text, "speaker": "xxyy"[k]}
        for k, (path, text) in enumerate((said or SAID).items())
    ]
    return table(folder / "said.csv", rows)


@pytest.mark.parametrize(
    "name", ["text", "sentence", "transcription", "transcript", "normalized_text"]
)
def test_the_decoder_reads_the_transcripts(folder, name):
    """Whisper's decoder read its prompt alone, the same with every clip, although the manifest said what is spoken."""
    plan = SpeechPlan(open_speech(transcribed(folder, name=name)), WHISPER, EARS)
    (batch,) = plan
    decoder = batch.streams["decoder"]
    asked = {
        tuple(ids[real].tolist())
        for ids, real in zip(
            batch.inputs["decoder_input_ids"], decoder.mask, strict=True
        )
    }
    assert asked == {
        (7, 3, *(10 + ord(x) - ord("a") for x in text)) for text in SAID.values()
    }
    assert torch.equal(batch.inputs["decoder_attention_mask"], decoder.mask.long())
    assert (
        decoder.special.sum(1).tolist() == [2] * 4
        and not (decoder.special & ~decoder.mask).any()
    )
    starts = dict(
        zip(decoder.mask.sum(1).tolist(), decoder.start.tolist(), strict=True)
    )
    assert starts == {
        6: 0,
        4: 6,
        3: 0,
        5: 3,
    }  # of the first clip of each speaker 0, then behind its prompt and words
    assert plan.settings["decoder_reads"] == "transcripts" and plan.warnings == []


def test_transcripts_are_part_of_what_is_measured(folder):
    """Other words are other inputs: a finished run on them must not be taken for one on these."""
    plans = [
        SpeechPlan(open_speech(transcribed(folder, said)), WHISPER, EARS)
        for said in (SAID, {**SAID, "d.wav": "mum"})
    ]
    assert plans[0].fingerprint != plans[1].fingerprint
    encoder_only = [
        SpeechPlan(open_speech(transcribed(folder, said)), GROUP)
        for said in (SAID, {**SAID, "d.wav": "mum"})
    ]
    assert encoder_only[0].fingerprint == encoder_only[1].fingerprint


def test_when_the_decoder_reads_its_prompt_alone_it_is_said_why(folder):
    some = SpeechPlan(
        open_speech(transcribed(folder, {**SAID, "c.WAV": " "})), WHISPER, EARS
    )
    assert some.warnings == [
        "the decoder reads the same prompt with every clip, so that its numbers say little about the corpus: "
        "1 of 4 clips have no transcript"
    ]
    assert (
        some[0].inputs["decoder_input_ids"].tolist() == [[7, 3]] * 4
        and "decoder_reads" not in some.settings
    )
    none = SpeechPlan(open_speech(str(folder)), WHISPER, EARS)
    assert none.warnings[0].endswith("no clip has a transcript")
    clip(folder / "a.wav", tone(2.6))
    cut = SpeechPlan(open_speech(transcribed(folder)), WHISPER, EARS)
    assert cut.warnings[0].endswith(
        "transcripts of clips that are cut into several windows cannot be cut"
    )
    both = SpeechPlan(
        open_speech(transcribed(folder, {**SAID, "a.wav": " "})), WHISPER, EARS
    )
    assert both.warnings[0].endswith(": 1 of 4 clips have no transcript"), (
        "clips are counted, not their windows"
    )
    untold = SpeechPlan(
        open_speech(transcribed(folder, {"c.WAV": "c"})),
        WHISPER,
        EARS.feature_extractor,
    )
    assert untold.warnings[0].endswith(
        "the checkpoint has no tokenizer for the transcripts"
    )
    assert (
        SpeechPlan(open_speech(transcribed(folder)), GROUP, EARS).warnings == []
    )  # no decoder, nothing to say


def test_a_transcript_longer_than_the_decoder_is_cut_and_counted(folder):
    short = SimpleNamespace(
        config=WhisperConfig(**SIZES, max_source_positions=50, max_target_positions=5)
    )
    plan = SpeechPlan(open_speech(transcribed(folder)), short, EARS)
    assert plan.warnings == [
        "1 transcripts cut to the 3 tokens that the decoder has room for"
    ]
    assert plan[0].streams["decoder"].mask.sum(1).max() == 5


def test_the_decoder_of_transcripts_is_measured_as_of_each_clip_alone(folder):
    """Padding of shorter transcripts must not enter: against forward passes of single clips, in float64."""
    torch.manual_seed(0)
    config = WhisperConfig(
        **SIZES,
        max_source_positions=50,
        max_target_positions=16,
        decoder_attention_heads=2,
        decoder_ffn_dim=32,
    )
    network = WhisperModel(config).double().eval()
    plan = SpeechPlan(open_speech(transcribed(folder)), network, EARS)
    batches = list(plan)
    for batch in batches:
        batch.inputs["input_features"] = batch.inputs["input_features"].double()
    found = run_pass(
        network, batches, Settings(metrics=("mean_cosine",), tokens=("all", "content"))
    ).records()
    alone = {True: [], False: []}
    for row, real in enumerate(batches[0].streams["decoder"].mask):
        ids = batches[0].inputs["decoder_input_ids"][row, real][None]
        features = batches[0].inputs["input_features"][row][None]
        with torch.no_grad():
            states = network(
                features, decoder_input_ids=ids, output_hidden_states=True
            ).decoder_hidden_states[0][0]
        alone[True].append(states)
        alone[False].append(states[2:])
    for name, with_prompt in (("all", True), ("content", False)):
        vectors = torch.cat(alone[with_prompt])
        units = torch.nn.functional.normalize(vectors, dim=1)
        count = len(vectors)
        expected = float(((units.sum(0) ** 2).sum() - count) / (count * (count - 1)))
        rows = found[
            (found["stack"] == "decoder")
            & (found["layer"] == 0)
            & (found["site"] == "hidden")
        ]
        measured = rows[
            (rows["token_policy"] == name) & (rows["metric"] == "mean_cosine")
        ]["value"]
        assert float(measured.iloc[0]) == pytest.approx(expected, abs=1e-9)


def test_transcripts_of_a_hub_data_set_are_kept_with_its_clips(folder, monkeypatch):
    paths = [str(folder / name) for name in SAID]
    rows = {"audio": paths, "speaker_id": [7, 7, 8, 9], "text": list(SAID.values())}
    split = (
        datasets.Dataset.from_dict(rows)
        .cast_column("audio", datasets.Audio())
        .to_iterable_dataset()
    )
    monkeypatch.setattr(hub, "find_set", lambda part: HubSet(part.id, "c0ffee"))
    monkeypatch.setattr(hub, "load_splits", lambda *_: {"test": split})
    streamed = [item.text for item in open_speech("some/set").items]
    monkeypatch.setattr(hub, "load_splits", lambda *_: pytest.fail("all of it is here"))
    assert (
        [item.text for item in open_speech("some/set").items]
        == streamed
        == list(SAID.values())
    )


def input_of(config, processor=None, max_length=None):
    return speech.choose_sound_input(SimpleNamespace(**config), processor, max_length)


SAMPLES = {"conv_kernel": (10, 8), "conv_stride": (5, 4)}
MEL = {"num_mel_bins": 80, "max_source_positions": 50}


@pytest.mark.parametrize(
    ("config", "extractor", "max_length", "kind", "numbers"),
    [
        # rate, longest, shortest, stride: 45 = (8 − 1) · 5 + 10 samples make a position
        (SAMPLES, None, None, "unpadded", (16_000, 480_000, 45, 20)),
        (SAMPLES | {"feat_extract_norm": "group"}, None, 3, "unpadded", (16_000, 60, 45, 20)),
        (SAMPLES | {"feat_extract_norm": "layer"}, None, 4, "padded", (16_000, 80, 45, 20)),
        ({}, None, 7, "unpadded", (16_000, 2240, 1, 320)),
        ({}, {"sampling_rate": 8000}, None, "unpadded", (8000, 240_000, 1, 320)),
        ({}, {"sampling_rate": 8000}, 10**9, "unpadded", (8000, 240_000, 1, 320)),
        ({}, {"sampling_rate": 8000, "n_samples": 900}, None, "unpadded", (8000, 900, 1, 320)),
        (MEL, None, None, "features", (16_000, 16_000, 1, 320)),
        (MEL, None, 30, "features", (16_000, 9600, 1, 320)),
        (MEL, {"sampling_rate": 8000, "hop_length": 80, "nb_max_frames": 100}, None,
         "features", (8000, 240_000, 1, 160)),
        (MEL | {"max_source_positions": 1500}, None, None, "features", (16_000, 480_000, 1, 320)),
    ],
)  # fmt: skip
def test_how_a_model_reads_sound(config, extractor, max_length, kind, numbers):
    given = None if extractor is None else SimpleNamespace(**extractor)
    processors = [given]
    if given is not None:
        processors.append(SimpleNamespace(feature_extractor=given))
    for processor in processors:
        how = input_of(config, processor, max_length)
        assert (how.kind, how.rate, how.longest, how.shortest, how.stride) == (
            kind,
            *numbers,
        )
        settings = how.settings
        assert settings["extractor"] == ("default" if given is None else "checkpoint")
        assert settings["class"] == type(how.extractor).__name__
        assert (settings["rate"], settings["batching"]) == (numbers[0], kind)
        assert settings["window_seconds"] == numbers[1] / numbers[0]
        recorded = {
            name: settings[name] for name in speech.RECORDED if name in settings
        }
        assert recorded == {
            name: getattr(how.extractor, name)
            for name in speech.RECORDED
            if hasattr(how.extractor, name)
        }


def test_what_no_sound_can_be_read_by():
    with pytest.raises(
        UsageError, match=r"at least 45 samples; got 40\. Cure: raise --max-length"
    ):
        input_of(SAMPLES, None, 2)
    for config, name in (({"model_type": "other"}, "other"), ({}, "SimpleNamespace")):
        with pytest.raises(UsageError, match=rf"or Whisper; got {name}\."):
            input_of({"num_mel_bins": 80} | config)
    with pytest.raises(UsageError, match=r"of 100 frames per window.*got 0 frames"):
        input_of(MEL, SimpleNamespace(sampling_rate=16_000))


def corpus_of(frames, units, rate=RATE, skip_bad=False):
    """A corpus of clips of so many samples, without the clips."""
    infos = [sound.ClipInfo(count, rate, 1) for count in frames]
    items = [SimpleNamespace(name=f"c{k}", text="") for k in range(len(frames))]
    return SimpleNamespace(
        infos=infos, unit=np.array(units), items=items, skip_bad=skip_bad
    )


def test_windows_of_several_clips_and_units_follow_one_another():
    """Clips of 8 kHz are twice as long at 16 kHz; clip 1 is left out; units take turns."""
    corpus = corpus_of([50, 4, 30, 20, 51], [1, 0, 0, 1, 1], rate=8000)
    how = input_of(SAMPLES | {"feat_extract_norm": "layer"})._replace(longest=40)
    found = speech.cut_into_windows(corpus, np.array([0, 2, 3, 4]), how)
    rows = [
        # clip, first, length, unit, start in its unit
        (0, 0, 33, 1, 0), (0, 33, 33, 1, 33), (0, 66, 34, 1, 66),
        (2, 0, 30, 0, 0), (2, 30, 30, 0, 30),
        (3, 0, 40, 1, 100),
        (4, 0, 34, 1, 140), (4, 34, 34, 1, 174), (4, 68, 34, 1, 208),
    ]  # fmt: skip
    assert list(zip(*(column.tolist() for column in found), strict=True)) == rows
    frames = how._replace(
        kind="features", extractor=SimpleNamespace(nb_max_frames=1000)
    )
    found = speech.cut_into_windows(corpus, np.array([0, 2, 3, 4]), frames)
    assert found.start.tolist() == [0, 1000, 2000, 0, 1000, 3000, 4000, 5000, 6000]
    assert found.length.tolist() == [row[2] for row in rows]


def test_inputs_of_a_decoder_are_counted_through_its_unit():
    unit = np.array([1, 0, 1, 0, 1])
    texts = [[5] * k for k in (4, 0, 2, 3, 1)]
    assert speech._find_decoder_starts(unit, 2, texts).tolist() == [0, 0, 6, 2, 10]
    assert speech._find_decoder_starts(unit, 2, []).tolist() == [0, 0, 2, 2, 4]


def test_windows_are_batched_by_their_positions():
    lengths = np.array([100, 19, 60, 100, 40])
    config = SimpleNamespace(max_source_positions=7)

    def batched(kind, budget):
        how = input_of(SAMPLES)._replace(kind=kind)
        found = speech._batch_windows(lengths, how, budget, config)
        return [batch.tolist() for batch in found]

    # positions of 20 samples: 5, 1, 3, 5, 2
    assert batched("padded", 10) == [[0, 3], [2, 4, 1]]
    assert batched("padded", 5) == [[0], [3], [2], [4, 1]]
    assert batched("unpadded", 10) == [[0, 3], [2], [4], [1]]
    assert batched("unpadded", 9) == [[0], [3], [2], [4], [1]]
    # whatever its length, a window has all 7 positions
    assert batched("features", 14) == [[0, 1], [2, 3], [4]]
    assert batched("features", 13) == [[0], [1], [2], [3], [4]]


def test_clips_are_long_enough_for_one_position():
    how = input_of(SAMPLES)
    corpus = corpus_of([44, 45, 46], [0, 1, 2])
    with pytest.raises(
        CorpusError,
        match=r"at least 45 samples at 16000 Hz; got 1 faulty: c0 \(44 samples\).*--skip-bad",
    ):
        speech._select_long_enough(corpus, how)
    corpus = corpus_of([44, 45, 46], [0, 1, 2], skip_bad=True)
    assert speech._select_long_enough(corpus, how).tolist() == [1, 2]
    for skip_bad in (False, True):
        corpus = corpus_of([1, 44], [0, 1], skip_bad=skip_bad)
        with pytest.raises(CorpusError, match=r"2 faulty.*another corpus"):
            speech._select_long_enough(corpus, how)


@pytest.mark.parametrize(("room", "kept"), [(0, 4), (6, 4), (5, 3), (4, 2)])
def test_transcripts_fit_the_room_behind_the_prompt(folder, room, kept):
    config = SimpleNamespace(max_target_positions=room)
    corpus = open_speech(transcribed(folder))
    windows = SimpleNamespace(clip=np.array([3, 0]))
    ids, note = speech._read_transcripts(corpus, windows, EARS, config, 2)
    assert ids == [[13, 10, 13][:kept], [10, 11, 12, 13][:kept]]
    cut = {4: "", 3: "1 transcripts cut to the 3", 2: "2 transcripts cut to the 2"}
    assert note.startswith(cut[kept]) and bool(note) == bool(cut[kept])


@pytest.mark.parametrize(
    ("samples", "frames"), [(7999, 50), (8000, 50), (8001, 51), (1, 1), (160, 1)]
)
def test_a_mel_frame_that_is_begun_is_counted(tmp_path, samples, frames):
    """The last one of a window too: its samples are no multiple of a frame's."""
    clip(tmp_path / "a.wav", tone(1.0)[:samples])
    clip(tmp_path / "b.wav", tone(1.0))
    plan = SpeechPlan(open_speech(str(tmp_path)), WHISPER)
    (batch,) = plan
    assert batch.streams["frames"].mask.sum(1).tolist() == [frames, 100]
    assert plan.tokens == [frames + 100] and batch.n_tokens == frames + 100


def test_names_of_what_is_counted(folder):
    """Clips in one piece are clips, cut ones windows; a speaker is the unit if a column names one."""
    whole = SpeechPlan(open_speech(str(folder)), GROUP)
    assert {name: whole.words[name] for name in ("position", "sequence", "unit", "counted")} == {
        "position": "frame", "sequence": "clip", "unit": "clip", "counted": "sample"
    }  # fmt: skip
    said = open_speech(transcribed(folder))
    cut = SpeechPlan(said, WHISPER, max_length=20)
    assert {name: cut.words[name] for name in ("position", "sequence", "unit", "counted")} == {
        "position": "frame", "sequence": "window", "unit": "speaker", "counted": "mel frame"
    }  # fmt: skip
    small = SpeechPlan(said, WHISPER, batch_tokens=7)
    assert [plan.settings["batch_tokens"] for plan in (cut, small)] == [4096, 7]


def test_the_prompt_of_a_decoder():
    whisper = WHISPER.config
    with_tokens = SimpleNamespace(tokenizer=SimpleNamespace(prefix_tokens=(9, 8)))
    assert speech._find_prompt(whisper, with_tokens) == [9, 8]
    assert speech._find_prompt(whisper, None) == [7]
    without = SimpleNamespace(tokenizer=SimpleNamespace(prefix_tokens=[]))
    assert speech._find_prompt(whisper, without) == [7]
    assert speech._find_prompt(SimpleNamespace(), with_tokens) == []
