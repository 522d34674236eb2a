"""Field by field: what is asked for is handed on, what tells two runs apart is compared, what is told is so."""

import json
import os
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import tiny
import torch
from PIL import Image

import anisoscope
from anisoscope.api import classifiers
from anisoscope.data import items, opening
from anisoscope.data.corpora import HubPart
from anisoscope.data.encoding import Encoded, LabelledPlan, build_tokenizer, encode
from anisoscope.data.hub import HubSet
from anisoscope.data.labelled import Example
from anisoscope.data.local import use_copies
from anisoscope.data.opening import open_labelled, open_plan
from anisoscope.data.plans import hash_parts
from anisoscope.data.text import open_text, plan_text
from anisoscope.errors import MeasureError, ModelError
from anisoscope.measure import cost as cost_module, loop
from anisoscope.measure.inputs import GivenInputs
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models import download, hub_memory
from anisoscope.models.families import Family
from anisoscope.models.hub import ModelPlace
from anisoscope.models.load import DRAWN, load
from anisoscope.models.series import Checkpoint
from anisoscope.models.vectors import word_vectors
from anisoscope.runs import (
    classes as classes_module,
    run as run_module,
    run_cache,
    series as series_module,
)
from anisoscope.runs.job import NOT_IN_IDENTITY, ClassesOptions, Job
from anisoscope.runs.merge import merge_runs
from anisoscope.runs.run import run
from anisoscope.runs.run_cache import (
    identify_corpus_state,
    identify_model_state,
    make_key,
)
from anisoscope.store import RunFolder


class Stop(Exception):
    """What was asked for has been seen."""


def stop():
    raise Stop


# ---- what is asked for is handed on ----------------------------------------------------------------------------------


def test_every_setting_reaches_the_capture(monkeypatch):
    """Medians, bins, layers, `tokens_first` and what gives the output could be lost between settings and capture."""
    seen = []

    @contextmanager
    def capture(_model, what, **how):
        seen.append(how | {"what": what})
        raise Stop
        yield

    monkeypatch.setattr(loop, "capture", capture)
    others = {
        "blocks": ("X",),
        "tokens_first": True,
        "medians": True,
        "flatten": "image",
        "layers": (0, 2),
    }
    for name, value in {**others, "bins": (0.0, 1.0), "attention": "fused"}.items():
        for settings in (
            Settings(panel=("hidden",)),
            Settings(panel=("hidden",), **{name: value}),
        ):
            with pytest.raises(Stop):
                run_pass(tiny.model("bert"), tiny.Plan(tiny.documents(2)), settings)
            how = seen.pop()
            how["medians"] = how.pop("median")
            assert {each: how[each] for each in others} == {
                each: getattr(settings, each) for each in others
            }
            assert (
                None if how["histogram"] is None else how["histogram"].tolist()
            ) == ([*settings.bins] or None)
            assert (
                how["fused"] is (settings.attention == "fused")
                and how["optional"] == set()
            )


def test_every_setting_of_the_sites_reaches_the_pass_for_means_of_heads(monkeypatch):
    seen = []

    def run(_model, _plan, settings, **_):
        seen.append(settings)
        raise Stop

    monkeypatch.setattr(loop, "run_pass", run)
    others = {"blocks": ("X",), "tokens_first": True, "layers": (0, 2)}
    for settings in (Settings(), Settings(**others, tokens=("content", "all"))):
        with pytest.raises(Stop):
            loop.measure_head_means(
                tiny.model("bert"), tiny.Plan(tiny.documents(2)), settings
            )
        assert {name: getattr(seen[-1], name) for name in others} == {
            name: getattr(settings, name) for name in others
        }
        assert seen[-1].tokens == settings.tokens[:1] and seen[-1].metrics == (
            "score_terms",
        )


def test_every_field_of_classes_reaches_what_it_is_for(monkeypatch):
    """Which examples are looked at, how many in what takes many passes, cut where, at which token, in which batches."""
    given = {}

    def noted(name, result):
        return lambda *args, **how: (
            given.setdefault(name, (args, how)) and result(*args, **how)
        )

    classifier = load("builtin:minilm")
    monkeypatch.setattr(
        classes_module,
        "load_subject",
        lambda _job, classifier: given.update(head=classifier) or MODEL,
    )
    corpus, encode = open_labelled("synthetic", limit=30), classes_module.encode
    plan = classes_module.LabelledPlan
    MODEL = replace(classifier, name="planted model")
    monkeypatch.setattr(
        classes_module, "open_labelled", noted("open", lambda *_, **__: corpus)
    )
    monkeypatch.setattr(classes_module, "encode", noted("encode", encode))
    monkeypatch.setattr(classes_module, "LabelledPlan", noted("plan", plan))
    monkeypatch.setattr(
        classes_module, "run", lambda job, _output, **how: (job, how["reading"])
    )
    how = {
        "split": "train",
        "limit": 10,
        "few": 4,
        "at": "mean",
        "max_length": 12,
        "parts": ("directions",),
    }
    asked_for = ClassesOptions(
        corpus="synthetic",
        text_column="t",
        split_seed=3,
        batch_tokens=77,
        seed=4,
        **how,
    )
    job, reading = classes_module.run_classes(asked_for)
    asked = {"columns": {"text": "t"}, "seed": 3, "for_training": False}
    assert given["head"] is True and given["open"] == (("synthetic",), asked)
    examples, _, length = given["encode"][0]
    assert (
        length == 12
        and {*examples} <= {*corpus.splits["train"]}
        and len(examples) == 10
    )
    assert (
        given["plan"][1]["batch_tokens"] == 77
        and given["plan"][1]["classes"] == corpus.labels
    )
    assert (job.corpus, job.settings.seed, job.settings.at) == ("synthetic", 4, "mean")
    assert "class" in job.settings.panel and reading.corpus["split"] == "train"
    of_machine = dict.fromkeys(NOT_IN_IDENTITY)
    assert (
        reading.identity["classes"] | of_machine
        == asdict(asked_for) | {"parts": ["directions"]} | of_machine
    )
    look = reading.more.__self__
    seen = {}
    monkeypatch.setattr(
        classes_module, "measure_explanations", lambda *_, **how: seen.update(how)
    )
    monkeypatch.setattr(
        classes_module,
        "measure_ablations",
        lambda _model, plan: seen.update(replaced=len(plan.encoded)),
    )
    look = replace(look, heads=True)
    notes = []
    look._measure_attribution(notes)
    look._measure_ablation(notes)
    of_plan = {"padding": look.plan.padding, "stack": look.plan.stacks, "notes": notes}
    assert (
        seen
        == {"split": "train", "limit": 4, "max_length": 12, "replaced": 4} | of_plan
    )
    assert replace(look, classes=replace(look.classes, limit=2))._few == 2
    whole = replace(corpus, splits={"train": (), "all": corpus.splits["train"][:9]})
    of_all = replace(look.classes, split="all", few=60, limit=999)
    assert replace(look, corpus=whole, classes=of_all)._few == 4, (
        "the other half is left for the directions"
    )
    lengths = []
    monkeypatch.setattr(
        classes_module,
        "encode",
        lambda *given: lengths.append(given[2]) or encode(*given),
    )
    look._measure_ablation(notes)
    assert lengths == [12], "what is replaced is cut where all is"
    monkeypatch.setattr(
        classes_module, "pool_vectors", lambda *given: seen.update(pooled=given[2:])
    )
    monkeypatch.setattr(
        classes_module,
        "make_separability_records",
        lambda *_, **how: seen.update(how) or stop(),
    )
    with pytest.raises(Stop):
        replace(look, stack="another")._measure_directions(notes)
    assert seen["stack"] == "another" and seen["pooled"] == ("mean", "another")


def test_what_a_training_tells_is_taken_where_nothing_else_is_named(tmp_path):
    recipe = {"corpus": "synthetic", "columns": {"text": "t"}, "split_seed": 6}
    (tmp_path / "training.json").write_text(
        json.dumps({"recipe": recipe, "max_length": 21})
    )
    told = classes_module.fill_from_training(ClassesOptions(str(tmp_path)))
    assert (told.corpus, told.by_role, told.split_seed, told.max_length) == (
        "synthetic",
        {"text": "t"},
        6,
        21,
    )
    mine = classes_module.fill_from_training(
        ClassesOptions(str(tmp_path), text_column="mine", label_column="l")
    )
    assert mine.by_role == {"text": "mine", "label": "l"}, (
        "what is named goes before what it was trained on"
    )
    own = ClassesOptions(
        str(tmp_path), corpus="synthetic:3", split_seed=1, max_length=9
    )
    assert classes_module.fill_from_training(own) == own
    same = classes_module.fill_from_training(
        ClassesOptions(str(tmp_path), corpus="synthetic")
    )
    assert same.split_seed == 6, (
        "the division that it was trained on, though the corpus is named"
    )
    assert classes_module._is_trained_on(same)
    assert not classes_module._is_trained_on(replace(same, model="other"))


# ---- what tells two runs apart is compared ---------------------------------------------------------------------------


def test_the_key_of_a_job_knows_its_settings_state_code_and_library(monkeypatch):
    """A run was found by what is asked for without one of them: that of other weights, of another text or formula."""
    states = {"identify_model_state": "m", "identify_corpus_state": "c", "version": "1"}

    def key(job, **other):
        for name, value in (states | other).items():
            monkeypatch.setattr(run_cache, name, lambda *_, value=value: value)
        return make_key(job)

    keys = [key(Job()), key(Job(limit=3)), key(Job(settings=Settings(sample=3)))]
    keys += [key(Job(), **{name: "other"}) for name in states]
    monkeypatch.setattr(run_cache.platform, "python_version", lambda: "4.0.0")
    keys.append(key(Job()))
    assert len({*keys}) == len(keys) and None not in keys
    assert (
        key(Job(), identify_model_state=None)
        is key(Job(), identify_corpus_state=None)
        is key(Job(trust_remote_code=True))
        is None
    )


def test_the_state_of_a_model_that_only_reading_tells_is_none(tmp_path, monkeypatch):
    """An adapter's files say nothing of its base; a function may return anything."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    states = [identify_model_state(str(tmp_path))]
    for change in (b"12345", b"54321"):
        (tmp_path / "model.safetensors").write_bytes(change)
        os.utime(tmp_path / "model.safetensors", ns=(len(states), len(states)))
        states.append(identify_model_state(str(tmp_path)))
    assert len({repr(state) for state in states}) == 3 and None not in states
    (tmp_path / "adapter_config.json").write_text("{}")
    assert (
        identify_model_state(str(tmp_path))
        is identify_model_state("module:function")
        is None
    )
    for files, told in (
        ({"config.json": ""}, "commit"),
        ({"adapter_config.json": ""}, None),
    ):
        place = ModelPlace("some", None, "commit", files)
        monkeypatch.setattr(
            run_cache, "locate_checkpoint", lambda _name, place=place: place
        )
        assert identify_model_state("some/model") == told


def test_the_state_of_a_corpus_is_of_its_split_its_files_and_what_lists_them(
    tmp_path, monkeypatch
):
    """Another speaker in a manifest, or another clip of it, was the same corpus; so was another split of a copy."""
    for place in ("set/train.txt", "set/test.txt", "elsewhere/b.wav", "clips/a.wav"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / place, np.zeros(80), 8000, format="WAV")
        os.utime(tmp_path / place, ns=(1, 1))
    manifest, listed = tmp_path / "manifest.csv", "path,speaker\nclips/a.wav,{}\n"
    manifest.write_text(listed.format("x"))
    with use_copies({"wikitext-103": tmp_path / "set"}):
        jobs = {
            split: Job(corpus="wikitext-103", split=split)
            for split in ("train", "test")
        }
        before = {split: identify_corpus_state(job) for split, job in jobs.items()}
        os.utime(tmp_path / "set" / "test.txt", ns=(2, 2))
        after = {split: identify_corpus_state(job) for split, job in jobs.items()}
    assert (
        before["train"] == after["train"]
        and len({repr(x) for x in (*before.values(), *after.values())}) == 3
    )
    of_clips = Job(corpus=str(tmp_path / "clips"))
    states = [identify_corpus_state(of_clips)]
    manifest.write_text(listed.format("y"))
    states.append(identify_corpus_state(of_clips))
    far = tmp_path / "far.csv"
    far.write_text("path\nelsewhere/b.wav\n")
    states.append(identify_corpus_state(Job(corpus=str(far))))
    os.utime(tmp_path / "elsewhere" / "b.wav", ns=(3, 3))
    states.append(identify_corpus_state(Job(corpus=str(far))))
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    for text in ("a labelled corpus", "read as text alone"):
        (tmp_path / "esnli.txt").write_text(text)
        states.append(identify_corpus_state(Job(corpus="esnli")))
    assert None not in states and len({repr(state) for state in states}) == 6


def test_the_folder_of_a_checkpoint_knows_what_its_numbers_depend_on(
    monkeypatch, tmp_path
):
    def folder(
        job=Job(),  # noqa: B008
        corpus="c",
        state="s",
        checkpoint=Checkpoint("m", 1, 2),  # noqa: B008
        code="k",  # noqa: B008, RUF100
    ):
        monkeypatch.setattr(series_module, "hash_code_used", lambda *_: code)
        work = series_module._SeriesInProgress(
            lambda _: job, tmp_path, None, False, "name"
        )
        work.corpus = corpus
        return work._find_folder(checkpoint, state).name

    names = [folder(Job(limit=3)), folder(Job(settings=Settings(sample=3)))]
    names += [folder(), folder(corpus="d"), folder(state="t"), folder(code="l")]
    names += [
        folder(checkpoint=Checkpoint(*each))
        for each in (("n", 1, 2), ("m", 3, 2), ("m", 1, 4))
    ]
    assert len({*names}) == len(names) and all(
        name.startswith("seed-2-step-1-") for name in names[:-3]
    )
    assert {folder(Job(device="cpu")), folder(Job(trust_remote_code=True))} == {
        folder()
    }


def test_a_stamp_of_a_checkpoint_knows_the_files_that_are_read(tmp_path):
    place, stamps = ModelPlace(str(tmp_path), None), set()
    for number, name in enumerate(
        ("config.json", "model.safetensors", "model-2.safetensors", "pytorch_model.bin")
    ):
        (tmp_path / name).write_bytes(b"1")
        stamps.add(download.compute_stamp(str(tmp_path), place))
        (tmp_path / name).write_bytes(b"12")
        stamps.add(download.compute_stamp(str(tmp_path), place))
        os.utime(tmp_path / name, ns=(number, number))
        stamps.add(download.compute_stamp(str(tmp_path), place))
    assert len(stamps) == 12
    (tmp_path / "README.md").write_text("text")
    assert download.compute_stamp(str(tmp_path), place) in stamps
    assert download.compute_stamp("some/model", place._replace(commit="c")) == "c"


FORM = {
    "model_type": "bert",
    "vocab_size": 9,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@pytest.mark.parametrize("name", [*FORM, "vocabulary"])
def test_checkpoints_of_another_form_are_no_series(name, monkeypatch, tmp_path):
    """All sizes are compared, and the words of the vocabulary, before anything is measured."""
    form = FORM | {"vocabulary": "abc"}
    forms = {"one": form, "two": form | {name: "other"}}
    monkeypatch.setattr(
        series_module,
        "locate_checkpoint",
        lambda subject: ModelPlace(subject, None, subject),
    )
    monkeypatch.setattr(series_module, "read_shape", lambda subject, *_: forms[subject])
    work = series_module._SeriesInProgress(
        lambda _: Job(), tmp_path, None, True, "name"
    )
    with pytest.raises(
        ModelError, match=rf"architecture and vocabulary \({name}.*{name} other in two"
    ):
        work.examine([Checkpoint("one", 1, 0), Checkpoint("two", 2, 0)])


def test_the_form_of_a_checkpoint_is_asked_for_with_the_trust_that_was_given(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(
        series_module,
        "locate_checkpoint",
        lambda subject: ModelPlace(subject, None, subject),
    )
    monkeypatch.setattr(
        series_module,
        "read_shape",
        lambda _subject, _place, trusted: {"trusted": trusted},
    )
    checkpoint = Checkpoint("one", 1, 0)
    for trusted in (True, False):
        job = Job(trust_remote_code=trusted)
        work = series_module._SeriesInProgress(
            lambda _, job=job: job, tmp_path, None, False, "name"
        )
        work.examine([checkpoint])
        assert work.forms[checkpoint] == {"trusted": trusted}


def test_the_form_of_a_checkpoint_is_read_from_its_configuration_and_words(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FORM))
    place = ModelPlace(str(tmp_path), None)
    assert download.read_shape(str(tmp_path), place) == FORM
    seen = set()
    for words in ("one two", "two one"):
        (tmp_path / "vocab.txt").write_text(words)
        told = download.read_shape(str(tmp_path), place)
        seen.add(told.pop("vocabulary"))
        assert told == FORM
    assert len(seen) == 2


def test_shards_are_of_one_run_only_where_every_part_of_their_identity_agrees(tmp_path):
    """Any part but the shard itself: weights, code, plan, each setting."""
    subject = SimpleNamespace(
        weights_sha256="w", form="f", model=torch.nn.Identity(), processor=None
    )
    plan = SimpleNamespace(fingerprint="p")
    identity = Job().identity(subject, plan)

    def shard(name, identity):
        folder = RunFolder.start(tmp_path / name, identity, resume=False)
        folder.sums_path.touch()
        folder.manifest_path.write_text("{}")
        return folder.folder

    first = shard("first", identity)
    names = [name for name in identity if name not in ("shard", "settings")]
    assert {"weights_sha256", "architecture", "plan", "code", "model", "dtype"} <= {
        *names
    }
    for name in names:
        other = shard(name, identity | {name: "another"})
        with pytest.raises(MeasureError, match=rf"whose {name} differs"):
            merge_runs([first, other], tmp_path / "merged")
    for name in identity["settings"]:
        settings = {"settings": identity["settings"] | {name: "another"}}
        with pytest.raises(MeasureError, match=rf"whose settings\.{name} differs"):
            merge_runs(
                [first, shard(f"settings {name}", identity | settings)],
                tmp_path / "merged",
            )
    with pytest.raises(KeyError):  # it goes on: the manifest of this one is empty
        merge_runs(
            [first, shard("second", identity | {"shard": [1, 2]})], tmp_path / "merged"
        )


def test_what_is_kept_of_a_data_set_is_of_its_part_column_and_commit(
    monkeypatch, tmp_path
):
    """Clips of one split, or of one column, were given for those of another."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    monkeypatch.setattr(
        items.hub, "find_set", lambda part: HubSet(part.id, part.revision)
    )
    folders = []
    monkeypatch.setattr(
        items,
        "StreamCache",
        lambda folder: folders.append(folder) or pytest.skip.Exception("stop"),
    )
    parts = [HubPart("name", "speech", "some/set", "config", "test", "commit")]
    for name, value in {
        "modality": "image",
        "id": "some/other",
        "config": "c",
        "split": "train",
        "revision": "d",
    }.items():
        parts.append(replace(parts[0], **{name: value}))
    for part, column in (*((part, None) for part in parts), (parts[0], "audio")):
        with pytest.raises(AttributeError):
            items.find_hub_items(part, column)
    assert len({*folders}) == len(folders) == 7


def test_what_is_remembered_of_the_hub_is_of_its_kind_name_and_revision(
    monkeypatch, tmp_path
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    asked_for = [
        ("model", "a/b", None),
        ("model", "a/b", "v1"),
        ("model", "a/c", None),
        ("data set", "a/b", None),
    ]
    for number, each in enumerate(asked_for):
        hub_memory.remember(*each, str(number))
    assert [hub_memory.recall_commit(*each) for each in asked_for] == [
        "0",
        "1",
        "2",
        "3",
    ]
    hub_memory.remember(*asked_for[1], "new")
    assert [hub_memory.recall_commit(*each) for each in asked_for] == [
        "0",
        "new",
        "2",
        "3",
    ]
    assert hub_memory.recall_commit("model", "a/b", "v2") is None


def test_a_plan_knows_tokens_units_prompt_and_batches(small_series, tmp_path):
    """Another tokenizer on the same text, other speakers of the same clips, another prompt, other batches."""
    from copy import deepcopy

    from transformers import ViTImageProcessor, Wav2Vec2FeatureExtractor, WhisperConfig

    name = str(small_series / "checkpoints" / "seed-0" / "step-1")
    tokenizer, corpus = (
        load(name).processor,
        open_text(str(small_series / "text.jsonl"), limit=5),
    )
    words = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = words["model"]["vocab"]
    vocabulary["w1"], vocabulary["w2"] = vocabulary["w2"], vocabulary["w1"]
    other = deepcopy(tokenizer)
    other._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(words))
    plans = [
        plan_text(corpus, each, max_length=12, batch_tokens=96)
        for each in (tokenizer, other)
    ]
    assert (
        plans[0].settings == plans[1].settings
        and plans[0].fingerprint != plans[1].fingerprint
    )
    running = [
        open_text(str(small_series / "text.jsonl"), documents=f"tokens:{n}")
        for n in (40, 50)
    ]
    assert (
        running[0].documents == running[1].documents
        and running[0].fingerprint != running[1].fingerprint
    )

    for clip in "ab":
        soundfile.write(tmp_path / f"{clip}.wav", np.linspace(-1, 1, 8000), 8000)
        Image.fromarray(np.full((8, 8, 3), ord(clip), np.uint8)).save(
            tmp_path / f"{clip}.png"
        )
    lists = {}
    for kind in ("wav", "png"):
        for speakers in ("xx", "xy"):
            place = lists[kind, speakers] = tmp_path / f"{kind}-{speakers}.csv"
            place.write_text(
                f"path,speaker\na.{kind},{speakers[0]}\nb.{kind},{speakers[1]}\n"
            )
    conv = {"conv_kernel": (10, 3), "conv_stride": (5, 2), "feat_extract_norm": "layer"}
    ears = SimpleNamespace(config=SimpleNamespace(model_type="wav2vec2", **conv))
    eyes = SimpleNamespace(config=SimpleNamespace(image_size=8, num_channels=3))
    sizes = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "num_mel_bins": 80,
    }
    whispers = SimpleNamespace(
        config=WhisperConfig(**sizes, max_source_positions=50, decoder_start_token_id=7)
    )
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=8000)

    def of(kind, speakers="xx", model=None, processor=extractor, **how):
        modality = "speech" if kind == "wav" else "image"
        model = model or (ears if kind == "wav" else eyes)
        processor = processor if kind == "wav" else how.pop("eyes", None)
        return open_plan(
            str(lists[kind, speakers]), model, processor, modality=modality, **how
        )[0]

    for kind in ("wav", "png"):
        found_here = [of(kind), of(kind, "xy"), of(kind, batch_tokens=1)]
        assert len({plan.fingerprint for plan in found_here}) == 3, kind
        assert [len(plan) for plan in found_here] == [1, 1, 2] and found_here[
            1
        ].n_units == 2
    widths = [
        of("wav", processor=each)[0].inputs["input_values"].shape[1]
        for each in (extractor, None)
    ]
    assert widths == [
        8000,
        16_000,
    ]  # a second, at the rate of the checkpoint, and at that of most
    grey = SimpleNamespace(config=SimpleNamespace(image_size=8, num_channels=1))
    assert of("png", model=grey)[0].inputs["pixel_values"].shape == (2, 1, 8, 8)
    lighter = [
        ViTImageProcessor(size={"height": 8, "width": 8}, image_mean=[x] * 3)
        for x in (0.4, 0.5)
    ]
    assert len({of("png", eyes=each).fingerprint for each in (*lighter, None)}) == 3
    louder = Wav2Vec2FeatureExtractor(sampling_rate=8000, do_normalize=False)
    assert of("wav", processor=louder).fingerprint != of("wav").fingerprint
    prompts = [
        SimpleNamespace(tokenizer=SimpleNamespace(prefix_tokens=[7, n])) for n in (3, 4)
    ]
    asks = [of("wav", model=whispers, processor=prompt) for prompt in prompts]
    assert asks[0].prompt == [7, 3] and asks[0].fingerprint != asks[1].fingerprint


def test_parts_of_a_hash_and_rows_after_a_break_are_told_apart():
    texts = [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], [["ab", "c"]]]
    assert len({hash_parts(parts) for parts in texts}) == len(texts)
    rows = SimpleNamespace(skip=lambda count: [{"x": count + i} for i in range(2)])
    assert list(items.hub.number_rows(rows, "set", 3)) == [
        ("row 4", {"x": 3}),
        ("row 5", {"x": 4}),
    ]


def test_a_plan_of_labelled_examples_knows_ids_labels_and_batches():
    rows = [{"input_ids": [1, 5 + i], "labels": i % 2} for i in range(4)]
    other = [row | {"labels": 1 - row["labels"]} for row in rows]
    ids = [row | {"input_ids": [1, 9]} for row in rows]
    words = [[-1, 0]] * 4
    plans = [LabelledPlan(Encoded(each, words), 0) for each in (rows, other, ids)]
    plans += [
        LabelledPlan(Encoded(rows, words), 0, batch_tokens=4),
        LabelledPlan(Encoded(rows, words), 0, classes=("a", "b")),
    ]
    assert len({plan.fingerprint for plan in plans}) == 5
    corpus = open_labelled("synthetic-pairs", limit=30)
    pair = Example(corpus.splits["train"][0].words[:2], 0, ("word",) * 9)
    cut = encode([pair], build_tokenizer(corpus, max_length=64), 6)
    assert (
        cut.words == [[-1, 0, 1, 2, 3, 4]] and cut.truncated == 1
    )  # of a pair the longer text is cut
    assert LabelledPlan(Encoded(rows, words), 0).fingerprint == plans[0].fingerprint


def test_the_fingerprint_of_inputs_knows_everything_given():
    """Values, shapes, types, names, their order, and whose each sequence is."""
    ids = torch.arange(6).view(2, 3)
    given = [
        ids,
        ids.flip(0),
        ids.view(3, 2),
        ids.int(),
        {"input_ids": ids},
        {"other": ids},
        [ids, ids],
    ]
    given += [
        [ids, ids.flip(0)],
        [ids.flip(0), ids],
        {"input_ids": ids, "use_cache": False},
    ]
    prints = [GivenInputs(each).fingerprint for each in given]
    prints += [GivenInputs(ids, units=units).fingerprint for units in ([0, 0], [0, 1])]
    assert (
        len({*prints}) == len(prints)
        and GivenInputs(ids.clone()).fingerprint == prints[0]
    )


FAMILY = {"bert": ("encoder", None), "gpt2": ("decoder", None), "t5": ("encoder", 0)}


@pytest.mark.parametrize("name", FAMILY)
def test_a_text_is_planned_for_the_stack_and_vocabulary_of_its_model(name, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "anisoscope.data.text.plan_text", lambda *_, **how: seen.update(how)
    )
    model = tiny.model(name)
    opening._plan_text("corpus", model, "tokenizer", 33, 77)
    stack, start = FAMILY[name]
    assert seen == {
        "max_length": 33,
        "batch_tokens": 77,
        "stack": stack,
        "decoder_start_id": start,
        "vocab_size": tiny.VOCABULARY,
    }


def test_a_model_whose_blocks_depend_on_the_batch_reads_texts_alone(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        "anisoscope.data.text.plan_text", lambda *_, **how: seen.update(how)
    )
    monkeypatch.setattr(
        "anisoscope.models.families.family_named", {"own": Family(alone=True)}.get
    )
    config = SimpleNamespace(model_type="own", vocab_size=9)
    model = SimpleNamespace(config=config, modules=list, named_modules=list)
    opening._plan_text("corpus", model, "tokenizer", 33, 77)
    assert seen["batch_tokens"] == 1


@pytest.mark.parametrize(
    ("config", "most", "longest"),
    [
        ({"max_position_embeddings": 514, "model_type": "roberta"}, 512, 512),
        ({"max_position_embeddings": 514, "model_type": "roberta"}, 10**30, 512),
        (
            {
                "max_position_embeddings": 130,
                "model_type": "roberta",
                "pad_token_id": 3,
            },
            None,
            126,
        ),
        (
            {
                "max_position_embeddings": 130,
                "model_type": "roberta",
                "pad_token_id": 0,
            },
            None,
            129,
        ),
        (
            {
                "max_position_embeddings": 130,
                "model_type": "longformer",
                "pad_token_id": 1,
            },
            None,
            128,
        ),
        ({"max_position_embeddings": 512, "model_type": "bert"}, 300, 300),
        ({"n_positions": 64, "model_type": "gpt2"}, None, 64),
        ({"n_positions": 1024, "model_type": "gpt2"}, None, 1024),
        ({"n_positions": 64, "relative_attention_num_buckets": 32}, None, None),
        ({"max_length_inputs": 20, "max_position_embeddings": 64}, None, 20),
        ({}, 10**30, None),
    ],
)
def test_a_model_reads_as_many_tokens_as_its_positions_and_its_tokenizer_say(
    config, most, longest
):
    tokenizer = SimpleNamespace(model_max_length=most, tokenize=None)
    assert opening.find_longest_input(SimpleNamespace(**config), tokenizer) == longest
    assert opening.choose_text_length(
        SimpleNamespace(**config), tokenizer, None
    ) == min(longest or 512, 512)


# ---- what is told is so ----------------------------------------------------------------------------------------------


def test_a_manifest_says_what_was_measured_with_what(
    small_series, tmp_path, monkeypatch
):
    """Revision, weights, parameters, backend, kind of numbers, device, warnings: of the model that was there."""
    name, text = (
        str(small_series / "checkpoints" / "seed-0" / "step-1"),
        str(small_series / "text.jsonl"),
    )
    subject = replace(
        load(name, dtype="float64"), revision="abc", notes=["a note on the model"]
    )
    subject.model.set_attn_implementation("eager")
    settings = Settings(metrics=("drift",), seed=3)
    job = Job(
        name,
        corpus=text,
        settings=settings,
        max_length=12,
        limit=4,
        dtype="auto",
        step=8,
    )
    monkeypatch.setattr(cost_module, "SHORT", 4)  # tokens that show what a window costs
    done = run(job, tmp_path / "run", subject=subject)
    told, records = done.manifest, done.records
    assert (
        told["revision"] == "abc" == records["revision"].iloc[0]
        and told["weights_sha256"] == subject.weights_sha256
    )
    assert (
        told["parameters"] == sum(p.numel() for p in subject.model.parameters()) > 1000
    )
    assert (told["backend"], told["dtype"], told["device"]) == (
        "eager",
        "float64",
        "cpu",
    )
    assert (
        told["settings"]["dtype"],
        told["settings"]["device"],
        told["processes"],
    ) == ("float64", "cpu", 1)
    assert (
        told["architecture"] == "BertModel"
        and told["warnings"][0] == "a note on the model"
    )
    assert (
        set(records["seed"]) == {3}
        and set(records["step"]) == {8}
        and set(records["corpus"]) == {text}
    )
    assert set(records["model"]) == {name} and set(records["run"]) == {told["run"]}
    whole = run_module.open_plan_of(replace(job, limit=None), subject)[0]
    part = run_module.open_plan_of(job, subject)[0]
    assert told["corpus"]["n_tokens"] == sum(part.tokens) < sum(whole.tokens)
    assert told["corpus"]["n_units"] == 4 and told["cost"]["tokens"] == int(
        part.lengths.max()
    )


def test_a_merged_run_tells_of_all_its_shards(small_series, tmp_path):
    """When the first began, how long all took, what each had to say; and it is nobody's shard."""
    name, text = (
        str(small_series / "checkpoints" / "seed-0" / "step-1"),
        str(small_series / "text.jsonl"),
    )
    job = Job(
        name,
        corpus=text,
        settings=Settings(metrics=("drift",)),
        max_length=12,
        limit=6,
        batch_tokens=48,
    )
    parts, facts = (
        [run(replace(job, shard=(i, 2)), tmp_path / str(i)) for i in (0, 1)],
        [],
    )
    for i, part in enumerate(parts):
        told = {
            "seconds": 2.5 + i,
            "started": f"2026-01-0{2 - i}",
            "processes": 1 + i,
            "notes": ["both", f"of {i}"],
        }
        facts.append(part.manifest | told | {"asked": "its own"})
        part.manifest_path.write_text(json.dumps(facts[-1]))
    merged = merge_runs([part.folder for part in parts], tmp_path / "merged")
    told = merged.manifest
    assert (told["seconds"], told["started"], told["processes"]) == (
        6.0,
        "2026-01-01",
        3,
    )
    assert told["warnings"][:3] == ["both", "of 0", "of 1"] and told["merged"] == [
        each["run"] for each in facts
    ]
    assert told["asked"] is None and told["settings"]["shard"] == merged.identity()[
        "shard"
    ] == [0, 1]
    assert told["run"] not in told["merged"]


def test_every_argument_of_a_metric_alone_has_its_effect(monkeypatch):
    """Which vectors count, whose they are, how many groups are left out."""
    x = torch.randn(12, 5, 6, generator=torch.Generator().manual_seed(0)) + 1
    mask = torch.ones(12, 5).bool()
    mask[:, 3:] = False
    (plain,) = anisoscope.metric("drift", x)["drift"][:1]
    assert (
        anisoscope.metric("drift", x, mask=mask)["drift"]
        == anisoscope.metric("drift", x[:, :3])["drift"]
    )
    alike = [
        anisoscope.metric("drift", x, **how)["drift"]
        for how in ({"unit": [*range(4)] * 3}, {"groups": 4})
    ]
    assert alike[0] == alike[1] and alike[0].value == plain
    assert alike[0].high - alike[0].low != pytest.approx(
        np.ptp(anisoscope.metric("drift", x)["drift"][1:]), rel=1e-3
    )
    ranks = [
        anisoscope.metric("spectrum", x, groups=groups)["spectrum.effective_rank"]
        for groups in (4, 8, 12)
    ]
    assert ranks[0].low != ranks[1].low == ranks[2].low
    monkeypatch.setattr(
        "anisoscope.sums.moments.WIDE", 4
    )  # of wide vectors a pass has no interval, unasked
    assert (
        anisoscope.metric("spectrum", x, groups=8)["spectrum.effective_rank"]
        == ranks[1]
    )


def test_what_was_measured_is_kept_where_what_follows_it_fails(
    small_series, tmp_path, monkeypatch
):
    """What takes many passes may fail after the pass: that is not done again."""
    job = Job(
        str(small_series / "checkpoints" / "seed-0" / "step-1"),
        corpus=str(small_series / "text.jsonl"),
        settings=Settings(metrics=("drift",)),
        limit=4,
    )
    subject = load(job.model)
    plan, described = run_module.open_plan_of(job, subject)

    def fails(_progress):
        raise MeasureError("a head", "none")

    with pytest.raises(MeasureError, match="a head"):
        run(
            job,
            tmp_path / "run",
            subject=subject,
            reading=run_module.OpenedCorpus(plan, described, more=fails),
        )
    assert not RunFolder(tmp_path / "run").complete
    monkeypatch.setattr(
        type(plan), "build", lambda *_: pytest.fail("a batch was made again")
    )
    monkeypatch.setattr(run_module, "_estimate_cost_of_pass", lambda *_: None)
    done = run(
        job,
        tmp_path / "run",
        subject=subject,
        reading=run_module.OpenedCorpus(plan, described),
        resume=True,
    )
    assert set(done.records["metric"]) == {"drift", "drift.share"}


def test_a_cost_is_of_the_windows_and_the_numbers_that_are_asked_for(small_series):
    job = Job(str(small_series / "checkpoints" / "seed-0" / "step-1"))
    parameters = sum(p.numel() for p in load(job.model).model.parameters())
    for length, dtype, tokens in ((None, "float32", 16), (8, "bfloat16", 8)):
        cost = run_module.estimate_cost_before(
            replace(job, max_length=length, dtype=dtype)
        )
        assert (cost.tokens, cost.weights) == (
            tokens,
            parameters * getattr(torch, dtype).itemsize,
        )


def test_a_cost_before_is_of_the_type_the_trust_and_the_settings_that_are_asked_for(
    monkeypatch,
):
    """Lost on its way, the type would halve or double what is said of the weights."""
    asked, real = [], run_module.load_on_meta
    monkeypatch.setattr(
        run_module,
        "load_on_meta",
        lambda name, **how: asked.append((name, how)) or real(name),
    )
    estimated = []
    monkeypatch.setattr(
        run_module,
        "estimate_cost",
        lambda _shapes, _settings, longest: estimated.append(longest),
    )
    shaped = []
    monkeypatch.setattr(
        run_module,
        "find_shapes_on_meta",
        lambda _model, settings: shaped.append(settings),
    )
    settings = Settings(metrics=("drift",))
    for job in (
        Job(
            "builtin:minilm",
            dtype="bfloat16",
            trust_remote_code=True,
            max_length=77,
            settings=settings,
        ),
        Job("builtin:minilm"),
    ):
        run_module.estimate_cost_before(job)
    how = [
        {"dtype": "bfloat16", "trust_remote_code": True},
        {"dtype": "float32", "trust_remote_code": False},
    ]
    assert asked == [("builtin:minilm", each) for each in how]
    assert shaped == [settings, Settings()] and estimated == [77, 512]


def test_weights_that_a_checkpoint_lacks_are_no_part_of_what_it_is(small_series):
    """A pooler is drawn at random at each load; untrained weights are drawn by their seed, and that is said."""
    name, hashes = str(small_series / "checkpoints" / "seed-0" / "step-1"), set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        subject = load(name)
        assert (
            any(key.startswith("pooler") for key in subject.model.state_dict())
            and not subject.notes
        )
        hashes.add(subject.weights_sha256)
    assert len(hashes) == 1 and load(name, untrained=True).notes == [DRAWN]


def test_words_without_a_vector_have_no_part_in_the_mean_norm(tmp_path):
    (tmp_path / "v.txt").write_text("a 3 4\nb 0 15\n")
    found_here = word_vectors(str(tmp_path / "v.txt"), ["a", "none", "b"], [], norm=2.0)
    assert found_here.found == 2 and found_here.matrix.norm(
        dim=1
    ).tolist() == pytest.approx([1.0, 0.0, 3.0])


@pytest.mark.parametrize(
    ("corpus", "told"),
    [
        ("reviews.csv", "a/model × reviews.csv"),
        ("", "a/model × what it was trained on"),
    ],
)
def test_progress_of_classes_says_on_which_corpus(monkeypatch, corpus, told):
    def stop(title, **_):
        raise Stop(title)

    monkeypatch.setattr(classifiers, "show_progress", stop)
    with pytest.raises(Stop, match=f"^{told}$"):
        anisoscope.classes("a/model", corpus, quiet=True)
