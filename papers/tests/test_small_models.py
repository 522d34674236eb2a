"""Small models trained on the spot: steps, checkpoints, cache, what is skipped, and the network of their own."""

import io
import json
from dataclasses import asdict, replace
from functools import cache as cache_of
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError

from anisoscope.errors import CorpusError, OutputError, UsageError
from anisoscope.models import ports
from anisoscope.models.load import load
from anisoscope_papers.godey2024 import layer_curves
from anisoscope_papers.networks import speech_cnn
from anisoscope_papers.study import Context
from anisoscope_papers.training import (
    fit,
    kinds,
    photographs_and_speech as source,
    train_small,
)
from anisoscope_papers.training.kinds import KINDS, find_kind, prepare_material

QUICK = train_small.SmallModelRecipe(share=1e-3, seeds=1)


def nothing(_step, _last, _model):
    """What is done at every step."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def resnet(cache):
    return train_small.train_or_load(KINDS["resnet"], 0, QUICK, cache)


def test_a_training_keeps_log_spaced_checkpoints_in_hub_format(resnet):
    assert resnet.steps == (0, 1, 2)
    for step in resnet.steps:
        subject = load(str(resnet.checkpoint(step)))
        assert type(subject.model).__name__ == "ResNetModel"
    assert resnet.best == 2
    assert resnet.history["steps"] == 2
    assert resnet.history["validation_loss"]


def test_the_second_call_does_not_train(resnet, cache, monkeypatch):
    monkeypatch.setattr(fit, "fit", None)
    again = train_small.train_or_load(KINDS["resnet"], 0, QUICK, cache)
    assert (again.folder, again.steps) == (resnet.folder, resnet.steps)
    with pytest.raises(TypeError):
        train_small.train_or_load(KINDS["resnet"], 1, QUICK, cache)


@pytest.fixture(scope="module")
def fewer(tmp_path_factory):
    """Files of 1,200 photographs, of which 1,000 validate, and of nine speakers, of whom five are measured."""
    every = source.list_files

    @cache_of
    def files(name):
        found = every(name)
        if found[0].suffix == ".parquet":
            path = tmp_path_factory.mktemp("photographs") / found[0].name
            rows = next(pq.ParquetFile(found[0]).iter_batches(1200))
            pq.write_table(pa.Table.from_batches([rows]), path)
            return [path]
        speakers = sorted(set(map(source.read_speaker, found)))
        return [path for path in found if source.read_speaker(path) in speakers[:9]]

    return files


@pytest.fixture
def few(fewer, monkeypatch):
    monkeypatch.setattr(source, "list_files", fewer)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "name", ["vit", "resnet", "token-lm", "vit-masked", "speech-masked"]
)
def test_the_best_weights_are_those_that_stay(name, monkeypatch):
    """Also of a model that saves its weights under other names than it holds them, or has no labels."""
    if KINDS[name].missing:
        pytest.skip(KINDS[name].missing)
    documents = [
        f"document {i} of many, and no other {i % 7} " * 16 for i in range(120)
    ]
    monkeypatch.setattr(
        kinds, "_open_corpus", lambda: SimpleNamespace(documents=documents)
    )
    kind = replace(KINDS[name], steps=8, batch=4, rate=0.05)
    made = prepare_material(kind, 0)
    made = replace(made, train=made.train[:16], validation=made.validation[:8])
    held = dict(
        fit.fit(made, train_small.build_fitting(kind, 0, 8, patience=99), nothing)[
            "validation_loss"
        ]
    )
    assert min(held, key=held.get) != max(held)
    with torch.no_grad():
        loss = made.model(**made.collate(made.validation)).loss
    assert float(loss) == pytest.approx(min(held.values()), abs=1e-4)


def test_an_unfinished_training_is_begun_anew(resnet, cache, monkeypatch):
    recipe = replace(QUICK, patience=99)

    def interrupted(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_small.train_or_load(KINDS["resnet"], 0, recipe, cache)
    monkeypatch.undo()
    found = train_small.train_or_load(KINDS["resnet"], 0, recipe, cache)
    assert found.steps == (0, 1, 2)
    assert found.folder != resnet.folder


def test_weights_come_from_the_seed():
    first, same, other = (
        prepare_material(KINDS["resnet"], seed).model.state_dict() for seed in (0, 0, 1)
    )
    name = next(key for key in first if key.endswith("convolution.weight"))
    assert torch.equal(first[name], same[name])
    assert not torch.equal(first[name], other[name])


def test_training_learns_the_digits():
    kind = replace(KINDS["resnet"], steps=25)
    made = prepare_material(kind, 0)
    history = fit.fit(made, train_small.build_fitting(kind, 0, 25), nothing)
    assert history["validation_loss"][-1][1] < 1.5  # guessing: ln 10 = 2.3


def test_without_a_share_the_validation_loss_stops_training():
    kind = replace(KINDS["resnet"], steps=8, rate=0.0)
    made = prepare_material(kind, 0)
    made.model.eval().requires_grad_(True)
    history = fit.fit(
        made, train_small.build_fitting(kind, 0, 100, patience=2), nothing
    )
    assert history["steps"] < 100
    assert len(history["validation_loss"]) >= 2


def test_the_best_weights_are_named_after_their_step(tmp_path, monkeypatch):
    losses = [(100, 2.0), (200, 1.0), (300, 1.5)]
    monkeypatch.setattr(
        fit, "fit", lambda *_: {"steps": 300, "loss": [], "validation_loss": losses}
    )
    found = train_small.train_or_load(
        KINDS["resnet"], 0, replace(QUICK, share=None), tmp_path
    )
    assert found.best == 200 and found.steps == (0, 200)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "name", [name for name, kind in KINDS.items() if kind.modality != "text"]
)
def test_every_kind_reads_its_own_processors_output(name):
    kind = KINDS[name]
    if kind.missing:
        pytest.skip(kind.missing)
    made = prepare_material(kind, 0)
    made.model.eval()
    out = made.model(**made.collate(made.train[:3]))
    assert kind.masked or out.logits.shape == (3, 10)
    assert torch.isfinite(out.loss)


def test_tokenizers_are_learnt_from_what_is_trained_on(tmp_path):
    from transformers import AutoTokenizer

    words = kinds._build_tokenizer(
        KINDS["token-lm"], ("some words, some more words",) * 3
    )
    assert words.tokenize("some words") == ["some", "words"]
    single = kinds._build_tokenizer(KINDS["byte-lm"], ())
    single.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    ids = again("é 1")["input_ids"]
    assert len(ids) == 2 + len("é 1".encode())
    assert again.decode(ids, skip_special_tokens=True) == "é 1"
    assert len(again) == dict(KINDS["byte-lm"].sizes)["vocab_size"]
    assert again.model_max_length == KINDS["byte-lm"].window


def test_windows_never_exceed_the_model():
    tokenizer = kinds._build_tokenizer(KINDS["byte-lm"], ())
    windows = kinds._cut_windows(["x" * 300, "short"], tokenizer, 128)
    assert [len(w["input_ids"]) for w in windows] == [128, 128, 50]


def test_measured_units_are_never_trained_on():
    _processor, train, validation, _collate = kinds.make_examples(KINDS["vit"])
    assert len(train) + len(validation) == 1797 - KINDS["vit"].limit


def test_speech_is_skipped_by_name_without_data(monkeypatch, tmp_path):
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    assert not train_small.train_all(QUICK, ("speech-cnn",), tmp_path, nothing)
    systems = layer_curves.Systems(small=("speech-transformer",))
    records = layer_curves.measure(systems, Context(tmp_path, tmp_path))
    assert (
        layer_curves.describe_skipped(records)
        == "small wav2vec 2.0: ANISOSCOPE_DATA is not set: no speech/fsdd_test"
    )


def test_a_folder_without_spoken_digits_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    with pytest.raises(CorpusError) as error:
        kinds._list_clips()
    assert str(error.value) == (
        f"expected spoken digits in {tmp_path}/speech/fsdd_test; got none. "
        "Cure: set ANISOSCOPE_DATA to a folder that holds them"
    )


def test_unknown_kinds_are_named():
    with pytest.raises(UsageError, match="token-lm"):
        find_kind("token-ml")


@pytest.mark.usefixtures("resnet")
def test_measuring_a_small_model_beside_its_untrained_self(cache, tmp_path):
    systems = layer_curves.Systems(small=("resnet",), recipe=QUICK, flatten="image")
    context = Context(tmp_path, cache)
    records = layer_curves.measure(systems, context)
    curves = layer_curves.select_curves(records)
    assert list(dict.fromkeys(curves["model"])) == [
        "small ResNet, untrained",
        "small ResNet, trained",
    ]
    assert curves.groupby("model")["layer"].apply(list).tolist() == [list(range(9))] * 2
    assert curves["n_units"].eq(KINDS["resnet"].limit).all()
    again = layer_curves.measure(systems, context)
    assert again["value"].tolist() == pytest.approx(
        records["value"].tolist(), nan_ok=True
    )
    assert not list(cache.rglob("sums.safetensors"))


def cnn():
    torch.manual_seed(0)
    sizes = dict(KINDS["speech-cnn"].sizes) | {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
    }
    return speech_cnn.SpeechCnnForSequenceClassification(
        speech_cnn.SpeechCnnConfig(**sizes, num_labels=10)
    ).eval()


def test_padding_changes_nothing_in_the_speech_network():
    model = cnn().double()
    alone = torch.randn(1, 2000, dtype=torch.float64)
    padded = torch.cat([alone, torch.zeros(1, 900)], 1)
    mask = torch.cat([torch.ones(1, 2000), torch.zeros(1, 900)], 1).long()
    expected = model(alone, torch.ones(1, 2000).long()).logits
    assert torch.allclose(model(padded, mask).logits, expected, atol=1e-10)


def test_the_speech_network_is_loaded_by_name(tmp_path):
    ports.register()
    model = cnn()
    model.save_pretrained(tmp_path)
    from transformers import AutoModel

    again = AutoModel.from_pretrained(tmp_path).eval()
    x = torch.randn(2, 1600)
    assert torch.equal(
        again(x).last_hidden_state, model.speech_cnn(x).last_hidden_state
    )


def test_a_recipe_is_json():
    assert json.loads(json.dumps(asdict(train_small.SmallModelRecipe())))["seeds"] == 2


def pieces_of(kind):
    made = prepare_material(KINDS[kind], 0)
    return made, made.collate(made.train[:3]), made.collate(made.validation[:3])


def test_pixels_of_photographs_stand_by_channel_row_and_column(tmp_path):
    drawn = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 3), dtype=np.uint8)
    rows = []
    for pixels in drawn:
        written = io.BytesIO()
        Image.fromarray(pixels).save(written, "PNG")
        rows.append({"bytes": written.getvalue()})
    pd.DataFrame({"image": rows, "label": [4, 7]}).to_parquet(tmp_path / "x.parquet")
    pixels, labels = source._read_pixels(tmp_path / "x.parquet")
    assert labels == [4, 7] and pixels.shape == (2, 3, 3, 5)
    np.testing.assert_array_equal(pixels.permute(0, 2, 3, 1), drawn)


def test_a_grey_photograph_has_three_channels_too(tmp_path):
    written = io.BytesIO()
    Image.new("L", (4, 2), 90).save(written, "PNG")
    rows = [{"bytes": written.getvalue()}]
    pd.DataFrame({"image": rows, "label": [1]}).to_parquet(tmp_path / "x.parquet")
    pixels, _ = source._read_pixels(tmp_path / "x.parquet")
    assert pixels.shape == (1, 3, 2, 4) and (pixels == 90).all()


@pytest.mark.usefixtures("data_folder", "few")
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.real])
def test_photographs_and_speech_are_learnt_and_not_those_that_are_measured(kind):
    """A step of each; what is hidden of the validation is the same each time, of training it is drawn anew."""
    made, batch, held = pieces_of(kind)
    assert made.model(**batch).loss.isfinite()
    again = made.collate(made.validation[:3])
    assert all(torch.equal(held[name], again[name]) for name in held)
    if KINDS[kind].masked:
        anew = made.collate(made.train[:3])
        assert any(not torch.equal(batch[name], anew[name]) for name in batch)


def test_pixels_are_those_that_the_saved_processor_makes():
    made, batch, _held = pieces_of("vit-photographs")
    from PIL import Image

    pictures = [
        Image.fromarray(e["pixels"].permute(1, 2, 0).numpy()) for e in made.train[:3]
    ]
    own = made.processor(pictures, return_tensors="pt")["pixel_values"]
    assert torch.allclose(batch["pixel_values"], own, atol=1e-6)


def test_spans_that_a_speech_model_must_find_are_hidden_from_it():
    """transformers ignores `mask_time_indices` if the configuration has no `apply_spec_augment`: nothing was hidden."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    torch.manual_seed(0)
    sizes = dict(KINDS["speech-masked"].sizes)
    sizes |= {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    model = Wav2Vec2Model(Wav2Vec2Config(**sizes)).eval()
    samples = torch.randn(1, 16_000)
    with torch.no_grad():
        seen = model(samples).last_hidden_state
        hidden = torch.zeros(seen.shape[:2], dtype=torch.bool)
        hidden[:, 10:20] = True
        unseen = model(samples, mask_time_indices=hidden).last_hidden_state
    assert (seen - unseen)[hidden].abs().max() > 0.01
    # Outside of training steps nothing is hidden unless a batch names it.
    assert torch.equal(seen, model(samples).last_hidden_state)


@pytest.mark.usefixtures("data_folder")
def test_speakers_that_are_measured_are_heard_by_no_training():
    from anisoscope.data.speech import open_speech

    kind = KINDS["speech-masked"]
    _made, batch, _held = pieces_of(kind.name)
    hidden, others = batch["mask_time_indices"], batch["sampled_negative_indices"]
    places = hidden.flatten().nonzero().flatten()
    for row in range(3):
        chosen = others[row][hidden[row]]
        assert (
            torch.isin(chosen, places).all()
            and (chosen // hidden.shape[1] == row).all()
        )
        own = torch.arange(hidden.shape[1])[hidden[row]] + row * hidden.shape[1]
        assert not (chosen == own[:, None]).any(), (
            "a frame is none of its own negatives"
        )
    measured = open_speech(kind.corpus, limit=kind.limit)
    names = {source.read_speaker(Path(item.name)) for item in measured.items}
    assert names == set(
        sorted({source.read_speaker(path) for path in source.list_files(kind.corpus)})[
            : kind.limit
        ]
    )


@pytest.mark.parametrize(
    ("error", "is_disk"),
    [
        (OSError("No space left on device"), True),
        (SafetensorError("I/O error"), True),
        (RuntimeError("PytorchStreamWriter failed: file write failed"), True),
        (RuntimeError("enforce fail: unexpected pos 64 vs 12"), True),
        (RuntimeError("a shape"), False),
        (ValueError("write failed"), False),
    ],
    ids=str,
)
def test_a_full_disk_is_told_in_each_of_its_forms(error, is_disk, tmp_path):
    told = fit._explain_error(error, tmp_path)
    assert isinstance(told, OutputError) if is_disk else told is error
    assert not is_disk or (str(error) in str(told) and "--resume" in str(told))


def test_what_the_trainer_is_told():
    """Rate, warm-up and evaluations by hand; without `patience` a line for each doubling, with it the best is kept."""
    kind = KINDS["resnet"]
    plain = train_small.build_fitting(kind, 3, 25)
    known = {
        "max_steps": 25,
        "per_device_train_batch_size": 64,
        "per_device_eval_batch_size": 128,
    }
    known |= {
        "learning_rate": 2e-3,
        "lr_scheduler_type": "linear",
        "seed": 3,
        "data_seed": 3,
        "use_cpu": True,
    }
    every, warm = (
        max(1, 25 // train_small.EVALUATIONS),
        max(1, int(25 * train_small.WARM_UP)),
    )
    assert plain.settings == known | {"warmup_steps": warm, "logging_steps": every}
    assert plain.evaluated == {1, 2, 4, 8, 16, 25} and plain.patience is None
    stopping = train_small.build_fitting(kind, 3, 400, patience=7)
    every = 400 // train_small.EVALUATIONS
    asked = {
        "eval_strategy": "steps",
        "eval_steps": every,
        "save_strategy": "steps",
        "save_steps": every,
    }
    assert stopping.patience == 7 and stopping.settings["warmup_steps"] == int(
        400 * train_small.WARM_UP
    )
    assert (
        stopping.settings.items()
        >= (fit.BEST | asked | {"save_only_model": True}).items()
    )


def test_other_data_are_other_weights(monkeypatch, tmp_path):
    """The hash that a training is kept by: of the text, and of names and sizes of clips and photographs."""
    for name in ("fsdd/a.wav", "fsdd/b.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1234")
    files = [tmp_path / "fsdd" / "a.wav", tmp_path / "fsdd" / "b.wav"]
    monkeypatch.setattr(kinds, "_list_clips", lambda: files)
    monkeypatch.setattr(
        kinds.photographs_and_speech, "list_files", lambda _name: files[:1]
    )
    monkeypatch.setattr(
        kinds, "_open_corpus", lambda: SimpleNamespace(fingerprint="one")
    )
    spoken, real = KINDS["speech-cnn"], KINDS["vit-photographs"]
    seen = [spoken.data, real.data]
    assert (
        KINDS["speech-transformer"].data == spoken.data
        and KINDS["vit-masked"].data == real.data
    )
    files[1].write_bytes(b"12345")
    seen += [spoken.data, KINDS["vit"].data, KINDS["token-lm"].data]
    assert KINDS["vit"].data == KINDS["resnet"].data and real.data == seen[1]
    monkeypatch.setattr(
        kinds, "_open_corpus", lambda: SimpleNamespace(fingerprint="other")
    )
    seen.append(KINDS["token-lm"].data)
    assert len(set(seen)) == 6 and all(len(each) == 16 for each in seen)


def test_why_data_are_missing(monkeypatch, tmp_path):
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    assert KINDS["vit"].missing == KINDS["token-lm"].missing == ""
    assert (
        KINDS["speech-cnn"].missing == "ANISOSCOPE_DATA is not set: no speech/fsdd_test"
    )
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    assert (
        KINDS["vit-photographs"].missing == f"no cifar10/test.parquet below {tmp_path}"
    )
    (tmp_path / "speech" / "fsdd_test").mkdir(parents=True)
    assert KINDS["speech-cnn"].missing == ""
    assert [KINDS[name].limit for name in ("token-lm", "vit", "vit-masked", "speech-masked", "speech-cnn")] == [
        60, 400, 400, 5, None
    ]  # fmt: skip


WEIGHTS = {
    "token-lm": 1_346_944,
    "byte-lm": 860_421,
    "vit": 821_642,
    "resnet": 1_052_650,
    "convnext": 614_410,
    "speech-transformer": 952_746,
    "speech-cnn": 609_034,
    "vit-photographs": 809_354,
    "vit-masked": 814_384,
    "speech-masked": 1_009_440,
}


@pytest.mark.parametrize("name", KINDS)
def test_sizes_are_those_whose_results_are_told(name, monkeypatch):
    monkeypatch.setattr(kinds, "make_examples", lambda _kind: (None, [], [], None))
    assert (
        sum(x.numel() for x in prepare_material(KINDS[name], 0).model.parameters())
        == WEIGHTS[name]
    )


@pytest.mark.parametrize(
    ("losses", "since"),
    [
        ([], 0),
        ([3.0], 0),
        ([3, 2, 1], 0),
        ([3, 1, 2], 1),
        ([1, 2, 1, 3], 3),
        ([1, 1], 1),
    ],
)
def test_evaluations_since_the_lowest_loss(losses, since):
    state = fit.TrainerState()
    state.log_history = [
        {"loss": 0.0},
        *({"eval_loss": loss} for loss in losses),
        {"loss": 0.0},
    ]
    assert fit._count_stale(state) == since


def test_the_newest_whole_checkpoint_is_gone_on_with(tmp_path):
    """By its number, not its name; one that was cut off while it was written is passed over."""
    for step, text in (
        (9, '{"global_step": 9}'),
        (10, '{"global_step": 10}'),
        (100, "{"),
    ):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    found, state = fit._find_last_state(tmp_path)
    assert found == str(tmp_path / "checkpoint-10") and state.global_step == 10
    assert fit._find_last_state(tmp_path / "none")[0] is None


def test_processes_agree_on_a_signal_now_and_then(monkeypatch):
    """What any of them was told is told to all, at steps that all of them know; one alone need not ask."""
    class_ = next(x for x in vars(fit).values() if hasattr(x, "_agreed"))
    told = lambda x, _how: x.copy_(torch.maximum(x, torch.tensor([15, 1])))  # noqa: E731
    monkeypatch.setattr(torch.distributed, "all_reduce", told)
    alone, two = (SimpleNamespace(world_size=n, device="cpu") for n in (1, 2))
    assert class_._agreed(None, 2, False, alone, 1) == (2, False)
    assert class_._agreed(None, 2, True, two, fit.AGREED + 1) == (0, False)
    assert class_._agreed(None, 0, False, two, 2 * fit.AGREED) == (15, True)


# ---- what is trained on, what tells when to stop, what is measured ---------------------------------------------------


@pytest.mark.parametrize("name", ["token-lm", "byte-lm"])
def test_documents_are_measured_or_tell_when_to_stop_or_are_trained_on(
    monkeypatch, name
):
    """The first 60 are measured, the next 30 validate, the others are learnt from, words among them."""
    documents = [f"word{i} " * 12 for i in range(120)]
    read = []
    windows = kinds._cut_windows
    monkeypatch.setattr(
        kinds, "_open_corpus", lambda: SimpleNamespace(documents=documents)
    )
    monkeypatch.setattr(
        kinds,
        "_cut_windows",
        lambda given, *rest: read.append(given) or windows(given, *rest),
    )
    learnt = []
    tokenizer = kinds._build_tokenizer
    monkeypatch.setattr(
        kinds,
        "_build_tokenizer",
        lambda kind, given: learnt.append(given) or tokenizer(kind, given),
    )
    kinds.make_examples(KINDS[name])
    assert sorted(map(tuple, read)) == sorted(
        [tuple(documents[60:90]), tuple(documents[90:])]
    )
    assert learnt == [tuple(documents[90:])]


def test_masks_of_the_validation_are_drawn_once_and_those_of_training_at_every_step(
    monkeypatch,
):
    """15 % of the tokens, of either; a loss on other masks each time would fall and rise by chance."""
    documents = [f"document {i} of many, and no other " * 16 for i in range(120)]
    monkeypatch.setattr(
        kinds, "_open_corpus", lambda: SimpleNamespace(documents=documents)
    )
    tokenizer, train, held, collate = kinds.make_examples(KINDS["byte-lm"])
    _, _, again, _ = kinds.make_examples(KINDS["byte-lm"])
    assert (
        held == again
        and all("labels" in example for example in held)
        and "labels" not in train[0]
    )
    torch.manual_seed(0)
    first, second = (collate(train)["labels"] for _ in range(2))
    assert not torch.equal(first, second)
    drawn = torch.cat([torch.tensor(example["labels"]) for example in held])
    for labels, part in ((first, train), (drawn, held)):
        content = sum(len(example["input_ids"]) - 2 for example in part)
        assert int((labels != -100).sum()) / content == pytest.approx(0.15, abs=0.02)
    assert tokenizer.mask_token_id in {
        i for example in held for i in example["input_ids"]
    }


def test_the_last_take_of_each_digit_validates_and_no_other(monkeypatch, tmp_path):
    import numpy as np
    import soundfile

    folder = tmp_path / kinds.CORPORA[kinds.SPEECH]
    folder.mkdir(parents=True)
    for digit in range(3):
        for take in range(4):
            soundfile.write(
                folder / f"{digit}_anna_{take}.wav",
                np.full(400, (10 * digit + take) / 100),
                kinds.RATE,
            )
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    _, train, held, collate = kinds._make_speech.__wrapped__()
    numbers = [
        [(e["labels"], round(100 * float(e["samples"][0])) % 10) for e in part]
        for part in (train, held)
    ]
    assert numbers[1] == [(digit, 3) for digit in range(3)]
    assert sorted(numbers[0]) == [
        (digit, take) for digit in range(3) for take in range(3)
    ]
    assert collate(held)["labels"].tolist() == [0, 1, 2]


def test_evaluations_are_as_many_of_what_a_kind_needs_however_long_it_may_train():
    kind = KINDS["vit"]
    for steps, every in ((3 * kind.steps, kind.steps // 8), (80, 10), (4, 1)):
        settings = train_small.build_fitting(kind, 0, steps, patience=2).settings
        assert settings["eval_steps"] == settings["save_steps"] == every
    assert (
        train_small.build_fitting(kind, 0, 80).settings["per_device_eval_batch_size"]
        == 2 * kind.batch
    )
