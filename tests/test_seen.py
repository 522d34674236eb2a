"""What could be wrong unseen: identities with a part left out, seeds that move nothing, options without effect, text
held out that is trained on, old states that stay. A test goes over all of its kind; docs/tried.md lists them.
"""

from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import soundfile
import tiny
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typed import invoke

from anisoscope.data.arrays import VectorArrays, VectorPlan
from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.data.opening import open_labelled, open_plan
from anisoscope.data.text import open_text, plan_text
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.identity import hash_weights
from anisoscope.models.load import load
from anisoscope.runs.job import NOT_IN_IDENTITY, Job
from anisoscope.runs.run import _describe_kept, run
from anisoscope.runs.series import measure_series
from anisoscope.store import RunFolder

# ---- identities: nothing that numbers depend on is left out ----------------------------------------------------------


class Weights(nn.Module):
    def __init__(self, **given):
        super().__init__()
        for name, x in given.items():
            self.register_buffer(name, x)


def test_a_hash_of_weights_knows_names_shapes_types_and_values():
    x = torch.arange(6, dtype=torch.float32)
    same = [Weights(a=x), Weights(a=x.clone())]
    others = [
        Weights(b=x),
        Weights(a=x.reshape(2, 3)),
        Weights(a=x.view(torch.int32)),
        Weights(a=-x),
    ]
    others += [Weights(a=x, b=x), Weights(a=x.reshape(3, 2))]
    assert len({hash_weights(w) for w in same}) == 1
    assert len({hash_weights(w) for w in (*same, *others)}) == 1 + len(others)


def test_a_fingerprint_of_labelled_examples_knows_every_field():
    """Rationales, or the label, could be left out: then another corpus counts as the same."""
    example = Example(("a", "b"), 0, ("c",), (0.0, 1.0, 0.5))
    corpus = LabelledCorpus(
        "x", ("no", "yes"), {"train": (example,), "test": (example,)}
    )
    examples = {
        "words": ("a", "d"),
        "label": 1,
        "second": ("d",),
        "rationale": (0.0, 1.0, 0.6),
    }
    assert examples.keys() == {field.name for field in fields(Example)}
    others = [
        replace(
            corpus,
            splits={"train": (replace(example, **{name: value}),), "test": (example,)},
        )
        for name, value in examples.items()
    ]
    others += [replace(corpus, labels=("yes", "no")), replace(corpus, tokenised=True)]
    others += [replace(corpus, splits={"train": (example,), "validation": (example,)})]
    assert replace(corpus, name="y").fingerprint == corpus.fingerprint
    assert len({c.fingerprint for c in (corpus, *others)}) == 1 + len(others)


@pytest.fixture(scope="module")
def subject(small_series):
    return load(str(small_series / "checkpoints" / "seed-0" / "step-10"))


def test_a_plan_of_text_knows_corpus_settings_and_which_windows(small_series, subject):
    """Of windows spread over the corpus only that they were was known, not which."""
    corpus, how = (
        open_text(str(small_series / "text.jsonl")),
        {"max_length": 12, "batch_tokens": 96},
    )
    plan = plan_text(corpus, subject.processor, **how)
    others = [plan_text(corpus, subject.processor, **how | {name: 16}) for name in how]
    others.append(plan_text(corpus, subject.processor, padding_side="left", **how))
    others.append(
        plan_text(
            replace(corpus, documents=[*corpus.documents[:-1], "w1"]),
            subject.processor,
            **how,
        )
    )
    others += [plan.spread(3), plan.spread(4), plan.at_least(12)]
    count = len(plan.lengths)
    assert plan.spread(count + 1).warnings == [
        *plan.warnings,
        f"{count} windows only, {count + 1} asked for",
    ]
    assert plan.spread(3).warnings == plan.spread(count).warnings == plan.warnings
    shifted = plan_text(
        open_text(str(small_series / "text.jsonl"), limit=23), subject.processor, **how
    )
    assert len({p.fingerprint for p in (plan, *others, shifted)}) == 2 + len(others)
    assert plan.fingerprint == plan_text(corpus, subject.processor, **how).fingerprint


def test_plans_of_clips_and_pictures_know_data_units_and_settings(tmp_path):
    from transformers import ViTImageProcessor, Wav2Vec2FeatureExtractor

    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        for k in range(3):
            pictures, clips = (
                tmp_path / f"{kind}-{name}" / ("one" if k < 2 else name)
                for kind in ("image", "speech")
            )
            for folder in (pictures, clips):
                folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 40 * k + (name == "b"), np.uint8)).save(
                pictures / f"{k}.png"
            )
            soundfile.write(clips / f"{k}.wav", rng.uniform(-1, 1, 900 + k), 8000)
    conv = {
        "conv_kernel": (10, 3),
        "conv_stride": (5, 2),
        "conv_dim": (8, 8),
        "feat_extract_norm": "group",
    }
    ears = SimpleNamespace(
        config=SimpleNamespace(model_type="wav2vec2", **conv),
        main_input_name="input_values",
    )
    eyes = SimpleNamespace(
        config=SimpleNamespace(image_size=8, num_channels=3),
        main_input_name="pixel_values",
    )

    def of(modality, name, **how):
        model, processor = {
            "speech": (ears, Wav2Vec2FeatureExtractor(sampling_rate=8000)),
            "image": (
                eyes,
                ViTImageProcessor(size={"height": how.pop("size", 8), "width": 8}),
            ),
        }[modality]
        plan, _ = open_plan(
            str(tmp_path / f"{modality}-{name}"),
            model,
            processor,
            modality=modality,
            **how,
        )
        return plan.fingerprint

    clips = [
        of("speech", "a"),
        of("speech", "b"),
        of("speech", "a", max_length=500),
        of("speech", "a", limit=2),
    ]
    pictures = [
        of("image", "a"),
        of("image", "b"),
        of("image", "a", size=16),
        of("image", "a", limit=2),
    ]
    assert (
        len(set(clips)) == 4
        and len(set(pictures)) == 4
        and of("speech", "a") == clips[0]
    )


def test_the_identity_of_a_run_knows_every_field():
    """A field of a job could be no part of its identity: another run was found in its place."""
    subject = SimpleNamespace(
        weights_sha256="w", form="f", processor=None, model=nn.Identity()
    )
    plan = SimpleNamespace(fingerprint="p")
    given = {
        "tower": "text",
        "train_seed": 7,
        "columns": "0-7",
        "unit_column": "unit",
        "label_column": "label",
    }
    given |= {"to_merge": True}
    identity = Job(**given).identity(subject, plan)
    assert identity.keys() >= {field.name for field in fields(Job)} - {*NOT_IN_IDENTITY}
    assert identity["settings"].keys() == {field.name for field in fields(Settings)}
    found = [Job(**given).identity(replace_of(subject, weights_sha256="v"), plan)]
    found += [Job(**given).identity(replace_of(subject, form="g"), plan)]
    found += [Job(**given).identity(subject, replace_of(plan, fingerprint="q"))]
    assert len({repr(sorted(each.items())) for each in (identity, *found)}) == 4


def replace_of(space, **more):
    return SimpleNamespace(**vars(space) | more)


# ---- options: what is typed is what is done --------------------------------------------------------------------------


def test_options_have_their_effect(small_series, tmp_path):
    """In records: what each of them is for."""
    text = str(small_series / "text.jsonl")
    bad = tmp_path / "bad.jsonl"
    bad.write_text(Path(text).read_text() + "\nno json")
    place = str(small_series / "checkpoints" / "seed-0" / "step-10")
    job = Job(place, corpus=text, settings=Settings(sample=0), max_length=12)

    def records(name, **more):
        changes = {k: v for k, v in more.items() if k in {f.name for f in fields(Job)}}
        settings = replace(
            job.settings, **{k: v for k, v in more.items() if k not in changes}
        )
        done = run(replace(job, settings=settings, **changes), tmp_path / name)
        return done.records, done.manifest

    plain, told = records("plain")
    spectrum = plain["metric"] == "spectrum.effective_rank"
    assert (
        plain[spectrum]["low"].notna().all()
        and not plain["metric"].str.contains("row_median").any()
    )
    assert told["dtype"] == "float32" and set(plain["token_policy"].dropna()) == {
        "all",
        "content",
        "no-first",
    }
    more, told = records(
        "more", spectrum_groups=1, medians=True, dtype="float64", tokens=("content",)
    )
    assert more[more["metric"] == "spectrum.effective_rank"]["low"].isna().all()
    assert (
        more["metric"].str.contains("row_median").any() and told["dtype"] == "float64"
    )
    assert set(more["token_policy"].dropna()) == {"content"}
    some, told = records("some", sequences=5, corpus=str(bad), skip_bad=True)
    assert told["corpus"]["skipped"] == 1 and told["corpus"]["n_tokens"] <= 5 * 12
    counted = some[
        (some["metric"] == "drift")
        & (some["site"] == "hidden")
        & (some["token_policy"] == "all")
    ]
    assert set(counted["n_vectors"]) == {told["corpus"]["n_tokens"]}


def test_compare_shows_the_metric_and_the_tokens_asked_for(small_series, tmp_path):
    job = Job(
        str(small_series / "checkpoints" / "seed-0" / "step-10"),
        corpus=str(small_series / "text.jsonl"),
    )
    folder = run(
        replace(job, settings=Settings(panel=("hidden",), sample=0), max_length=12),
        tmp_path / "run",
    ).folder
    records = RunFolder(folder).records
    for metric, tokens in (
        ("mean_cosine", "all"),
        ("drift", "all"),
        ("mean_cosine", "content"),
    ):
        words = [
            "compare",
            str(folder),
            str(folder),
            "--metric",
            metric,
            "--tokens",
            tokens,
            "--format",
            "csv",
        ]
        done = invoke(words)
        assert done.exit_code == 0, done.output
        shown = pd.read_csv(StringIO(done.stdout))
        assert set(shown["metric"]) == {metric} and set(shown["token_policy"]) == {
            tokens
        }
        ours = records[
            (records["metric"] == metric)
            & (records["token_policy"] == tokens)
            & records["component"].isna()
        ]
        for column in ("first", "second"):
            assert set(shown[column].round(9)) == set(
                ours["value"].astype(float).round(9)
            )


# ---- seeds: what must differ, differs; what must not, does not -------------------------------------------------------


def test_the_seed_of_untrained_weights_and_of_the_sample(small_series):
    name = str(small_series / "checkpoints" / "seed-0" / "step-10")
    hashes = [
        load(name, untrained=True, seed=seed).weights_sha256 for seed in (0, 1, 1)
    ]
    assert hashes[0] != hashes[1] == hashes[2]
    x = tiny.Plan(tiny.documents(12), window=9)

    kept = [
        run_pass(tiny.model("bert"), x, Settings(sample=6, seed=seed))
        .reservoirs["encoder"]
        .hash
        for seed in (0, 1, 1)
    ]
    assert not torch.equal(kept[0], kept[1]) and torch.equal(kept[1], kept[2])


def test_the_seed_of_splits_moves_them_and_nothing_else(tmp_path):
    rows = pd.DataFrame(
        {
            "text": [f"text number {k}" for k in range(80)],
            "label": [k % 2 for k in range(80)],
        }
    )
    rows.to_csv(tmp_path / "t.csv", index=False)
    first, other, again = (
        open_labelled(str(tmp_path / "t.csv"), seed=seed) for seed in (0, 1, 0)
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.counts() == other.counts()
    of = [
        sorted(e.text for split in c.splits.values() for e in split)
        for c in (first, other)
    ]
    assert of[0] == of[1]


# ---- runs: what is kept, and what is written -------------------------------------------------------------------------


def test_what_is_overwritten_leaves_nothing_behind(tmp_path):
    folder = RunFolder.start(tmp_path / "run", {"a": 1}, resume=False).folder
    names = (
        "state.0.safetensors",
        "state.3.safetensors",
        "sums.safetensors",
        "reservoir.safetensors",
        "records.parquet",
    )
    for name in names:
        save_file({"x": torch.ones(1)}, folder / name)
    (folder / "manifest.json").write_text("{}")
    RunFolder.start(folder, {"a": 2}, resume=False, overwrite=True)
    assert [path.name for path in folder.iterdir()] == ["identity.json"]
    assert RunFolder(folder).identity() == {"a": 2}


def test_a_series_says_seed_and_step_of_every_checkpoint(small_series, tmp_path):
    from anisoscope.models.series import expand

    places = expand(str(small_series / "checkpoints"))
    job = Job(
        "",
        corpus=str(small_series / "text.jsonl"),
        settings=Settings(metrics=("drift",)),
        max_length=12,
        limit=4,
    )
    series = measure_series(places, job, tmp_path / "series")
    expected = {(seed, step) for seed in (0, 1) for step in (0, 1, 10)}
    assert (
        set(zip(series.records["seed"], series.records["step"], strict=True))
        == expected
    )
    for checkpoint, done in series.runs.items():
        assert (
            f"seed-{checkpoint.seed}" in checkpoint.subject
            and f"step-{checkpoint.step}" in checkpoint.subject
        )
        assert set(done.records["seed"]) == {checkpoint.seed} and set(
            done.records["step"]
        ) == {checkpoint.step}


def test_shards_count_their_own_tokens_and_the_final_norm_is_of_the_last_layer(
    small_series, tmp_path
):
    model = str(small_series / "checkpoints" / "seed-0" / "step-10")
    job = Job(
        model,
        corpus=str(small_series / "text.jsonl"),
        settings=Settings(metrics=("drift",)),
        max_length=12,
        batch_tokens=96,
    )
    tokens = [
        run(replace(job, shard=shard), tmp_path / f"{shard}").manifest["corpus"][
            "n_tokens"
        ]
        for shard in ((0, 1), (0, 2), (1, 2))
    ]
    assert tokens[0] == tokens[1] + tokens[2] and 0 < tokens[1] < tokens[0]
    records = tiny.measure(
        tiny.model("gpt2"), [tiny.padded("gpt2", "right")[0]], ("drift",)
    )
    layers = {
        site: set(rows["layer"].tolist()) for site, rows in records.groupby("site")
    }
    assert layers["final"] == {tiny.LAYERS} and layers["hidden"] == {
        *range(tiny.LAYERS + 1)
    }


def test_a_plan_of_vectors_knows_every_number_and_what_stands_beside_them():
    given = {
        "layers": {"0": np.ones((6, 2, 3)), "1": np.zeros((6, 2, 3))},
        "units": np.arange(6) // 2,
    }
    given |= {
        "labels": np.arange(6) % 2,
        "classes": ("a", "b"),
        "mask": np.ones((6, 2), bool),
    }
    other = np.ones((6, 2, 3))
    other[5, 1, 2] = 2
    hidden = given["mask"].copy()
    hidden[3, 1] = False
    changes = [
        {"layers": given["layers"] | {"0": other}},
        {"layers": given["layers"] | {"1": other}},
        {"layers": {"0": given["layers"]["0"], "2": given["layers"]["1"]}},
        {"layers": {name: x.astype(np.float32) for name, x in given["layers"].items()}},
        {"units": np.arange(6)},
        {"labels": np.arange(6) // 3},
        {"labels": None},
        {"classes": ("a", "c")},
        {"mask": hidden},
        {"mask": None},
    ]
    seen = [
        VectorPlan(VectorArrays("memory", **given | change)).fingerprint
        for change in ({}, *changes)
    ]
    assert VectorPlan(VectorArrays("other name", **given)).fingerprint == seen[0]
    assert len(set(map(str, seen))) == len(seen)


@pytest.mark.parametrize("done", [(), ("pass",)])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("complete", [False, True])
def test_what_is_kept_of_a_run_that_is_interrupted(done, state, complete, tmp_path):
    """The whole pass where it was done and nothing holds it yet; what a state holds already is not written again."""
    target = RunFolder(tmp_path)
    if state:
        target.state_path().write_bytes(b"before")
    if complete:
        target.manifest_path.write_text("{}")
    told = _describe_kept(
        target,
        [SimpleNamespace(save=lambda path: path.write_bytes(b"whole"))] * len(done),
    )
    saved = bool(done) and not complete and not state
    assert [path.read_bytes() for path in target.states()] == [b"before"] * state + [
        b"whole"
    ] * saved
    held = f"{tmp_path} holds what is measured" + " (the whole pass)" * bool(done)
    assert told == (held if state or saved else "")
