"""Training a classifier: it learns, repeats itself, resumes, keeps its best epoch, and says what went wrong."""

import json
import math
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import paper_pages
import pytest
import torch
from typed import invoke

from anisoscope.classes.cls_entropy import measure_entropies
from anisoscope.classes.pooling import predict_classes
from anisoscope.cli import printed_tables
from anisoscope.cli.faults import explain_usage_error
from anisoscope.data.corpora import named_corpora
from anisoscope.data.encoding import LabelledPlan, encode
from anisoscope.data.opening import open_labelled
from anisoscope.errors import ModelError, OutputError, UsageError
from anisoscope.measure.loop import Interrupted
from anisoscope.models.load import load
from anisoscope_papers.networks.attention_classifier import (
    AttentionClassifier,
    AttentionClassifierConfig,
)
from anisoscope_papers.training import classifier, fit
from anisoscope_papers.training.classifier import Buckets, train_classifier
from anisoscope_papers.training.classifier_parts import build_parts
from anisoscope_papers.training.recipe import ClassifierRecipe

WHOLE = ClassifierRecipe(
    corpus="synthetic", vectors="random", dim=32, epochs=3, rate=3e-3
)
SMALL, STEPS = replace(WHOLE, limit=200), 4
"""Of few examples: three batches of an epoch, and a short one."""


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learnt") / "run"
    return train_classifier(replace(WHOLE, epochs=12, layers=2), folder)


def test_it_learns_the_synthetic_keywords(learnt):
    result = learnt.training["results"]["test"]
    assert learnt.accuracy() > 0.85 and not learnt.collapsed
    assert (
        result["n"] == 300
        and result["majority"] == 0.5
        and sum(result["predicted"].values()) == 300
    )
    right = sum(share * 150 for share in result["by_class"].values())
    assert right / 300 == pytest.approx(learnt.accuracy())


def test_the_folder_is_a_checkpoint_like_any_other_and_holds_the_best_epoch(learnt):
    assert not (learnt.folder / "checkpoints").exists()
    history = dict(map(tuple, learnt.training["validation_loss"]))
    assert history[learnt.training["best_epoch"]] == min(history.values())
    model, tokenizer = learnt.classifier()
    corpus = learnt.recipe.open()
    rows = encode(corpus.splits["validation"], tokenizer, learnt.max_length)
    loss = sum(
        float(
            model(
                input_ids=torch.tensor([r["input_ids"]]),
                labels=torch.tensor([r["labels"]]),
            ).loss.detach()
        )
        for r in rows.rows
    )
    assert loss / len(rows) == pytest.approx(min(history.values()), abs=1e-4)
    assert (
        predict_classes(model, rows, 0).count(0)
        == learnt.training["results"]["validation"]["predicted"]["class 1"]
    )
    subject = load(str(learnt.folder))
    assert type(subject.model).__name__ == "AttentionClassifierModel"


def test_training_json_names_everything(learnt):
    said = learnt.training
    assert said["corpus"]["fingerprint"] == learnt.recipe.open().fingerprint
    assert said["corpus"]["counts"]["train"] == {"class 1": 450, "class 2": 450}
    assert {
        "versions",
        "command",
        "seconds",
        "steps",
        "parameters",
        "truncated",
        "vectors",
    } <= said.keys()
    assert said["steps"] == said["epochs"] * math.ceil(900 / 64)
    assert json.loads((learnt.folder / "training.json").read_text()) == said


def test_a_seed_gives_the_same_weights_and_another_gives_others(tmp_path):
    runs = [
        train_classifier(replace(SMALL, epochs=1, seed=s), tmp_path / str(i))
        for i, s in enumerate((0, 0, 1))
    ]
    one, again, other = (weights(run.folder) for run in runs)
    assert same(one, again) and not same(one, other)


@pytest.mark.parametrize("variant", ["entropy", "entropy-columns"])
def test_a_penalty_of_weight_0_is_no_penalty_to_the_bit(tmp_path, variant):
    base = replace(SMALL, epochs=1, layers=2)
    plain = train_classifier(base, tmp_path / "plain")
    zero = train_classifier(
        replace(base, penalty=variant, weight=0.0), tmp_path / "zero"
    )
    assert same(weights(plain.folder), weights(zero.folder))
    assert plain.training["loss"] == zero.training["loss"]


@pytest.mark.parametrize("variant", ["entropy", "entropy-columns"])
def test_a_penalty_lowers_its_entropy(tmp_path, variant):
    found = []
    for weight in (0.0, 2.0):
        recipe = replace(SMALL, epochs=6, penalty=variant, weight=weight)
        trained = train_classifier(recipe, tmp_path / str(weight))
        model, tokenizer = trained.classifier()
        encoded = encode(recipe.open().splits["test"], tokenizer, 64)
        values = measure_entropies(model, LabelledPlan(encoded, 0), (1,))
        found.append(float(values["row" if variant == "entropy" else "columns"].mean()))
    assert found[1] < found[0] - 0.2


class Stop(Exception):
    pass


def test_an_interrupted_training_resumes_to_the_same_weights(tmp_path):
    recipe = replace(SMALL, epochs=4, warmup=5, clip=1.0)

    def interrupt(done, _total):
        if done == 2 * STEPS + 2:
            raise Stop

    whole = train_classifier(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        train_classifier(recipe, tmp_path / "parts", progress=interrupt)
    assert not (tmp_path / "parts" / "training.json").exists()
    steps = []
    parts = train_classifier(
        recipe,
        tmp_path / "parts",
        resume=True,
        progress=lambda done, _: steps.append(done),
    )
    assert steps[0] == 2 * STEPS + 1
    assert same(weights(whole.folder), weights(parts.folder))
    assert whole.training["validation_loss"] == parts.training["validation_loss"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_an_epoch_loses_no_step_and_no_loss(tmp_path, number):
    recipe = replace(SMALL, epochs=3, warmup=8, penalty="entropy", weight=0.1)

    def stop(done, _total):
        if done == STEPS + 2:
            os.kill(os.getpid(), number)

    whole = train_classifier(recipe, tmp_path / "whole")
    with pytest.raises(Interrupted) as caught:
        train_classifier(recipe, tmp_path / "parts", progress=stop)
    steps = []
    parts = train_classifier(
        recipe,
        tmp_path / "parts",
        resume=True,
        progress=lambda done, _: steps.append(done),
    )
    assert caught.value.number == number and steps[0] in (STEPS + 3, STEPS + 4)
    assert same(weights(whole.folder), weights(parts.folder))
    for name in ("loss", "validation_loss", "results", "best_epoch"):
        assert whole.training[name] == parts.training[name]


def test_a_signal_at_the_end_of_an_epoch_is_heard_after_its_validation(tmp_path):
    recipe = replace(SMALL, epochs=2)
    with pytest.raises(Interrupted):
        train_classifier(
            recipe,
            tmp_path / "run",
            progress=lambda done, _: (
                os.kill(os.getpid(), signal.SIGTERM) if done == STEPS else 0
            ),
        )
    parts = train_classifier(recipe, tmp_path / "run", resume=True)
    whole = train_classifier(recipe, tmp_path / "whole")
    assert parts.training["validation_loss"] == whole.training["validation_loss"]
    assert same(weights(whole.folder), weights(parts.folder))


def test_a_training_stopped_at_its_last_step_is_not_prolonged(tmp_path):
    recipe = replace(SMALL, epochs=30, patience=1, rate=1e-2)
    whole = train_classifier(recipe, tmp_path / "whole")
    last, folder = whole.training["steps"], tmp_path / "parts"
    assert last < 30 * STEPS

    with pytest.raises(Interrupted):
        train_classifier(
            recipe,
            folder,
            progress=lambda done, _: os.kill(os.getpid(), 15) if done == last else 0,
        )
    torn = folder / "checkpoints" / "checkpoint-9999"
    shutil.copytree(folder / "checkpoints" / f"checkpoint-{last}", torn)
    (torn / "trainer_state.json").write_text("{")  # killed while it was written
    parts = train_classifier(
        recipe, folder, resume=True, progress=lambda *_: pytest.fail("trained on")
    )
    assert parts.training["validation_loss"] == whole.training["validation_loss"]
    assert same(weights(whole.folder), weights(parts.folder))


def test_a_finished_training_is_left_as_it_is(tmp_path):
    recipe = replace(SMALL, epochs=1)
    done = train_classifier(recipe, tmp_path / "run")
    killed = subprocess.Popen(["true"])
    killed.wait()
    left = tmp_path / "run" / f".training.json.{killed.pid}"
    left.write_text("{")
    (
        checkpoints := tmp_path / "run" / "checkpoints"
    ).mkdir()  # by a process killed after its last write
    again = train_classifier(
        recipe,
        tmp_path / "run",
        resume=True,
        progress=lambda *_: pytest.fail("trained again"),
    )
    assert (
        again.training == done.training
        and not left.exists()
        and not checkpoints.exists()
    )
    for other, resume, expected in (
        (recipe, False, "to be new"),
        (replace(recipe, seed=3), True, "another training"),
    ):
        with pytest.raises(OutputError, match=expected):
            train_classifier(other, tmp_path / "run", resume=resume)
    fresh = train_classifier(replace(recipe, seed=3), tmp_path / "run", overwrite=True)
    assert fresh.training["recipe"]["seed"] == 3


def test_seconds_are_those_of_all_sessions(tmp_path, monkeypatch):
    """Times of a clock that a step moves by one second; the two steps after the last checkpoint are lost."""
    clock = [0.0]
    monkeypatch.setattr(fit, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def tick(done, _total):
        clock[0] += 1
        if done == clock[0] == STEPS + 2:
            raise Stop

    recipe = replace(SMALL, epochs=2)
    with pytest.raises(Stop):
        train_classifier(recipe, tmp_path / "run", progress=tick)
    assert (
        train_classifier(recipe, tmp_path / "run", resume=True, progress=tick).training[
            "seconds"
        ]
        == 2 * STEPS
    )


def test_a_diverged_training_is_reported_and_overwrites_nothing(tmp_path):
    kept = train_classifier(replace(SMALL, epochs=1), tmp_path / "run")
    before = weights(kept.folder)
    with pytest.raises(ModelError, match=r"a loss of (nan|inf) at step \d+"):
        train_classifier(replace(SMALL, rate=1e30), tmp_path / "run", overwrite=True)
    assert same(before, weights(kept.folder))
    assert json.loads((tmp_path / "run" / "training.json").read_text()) == kept.training


def test_what_is_to_be_overwritten_stays_until_the_other_is_finished(tmp_path):
    def interrupt(done, _total):
        if done == STEPS + 2:
            raise Stop

    old, new = replace(SMALL, epochs=1), replace(SMALL, epochs=2, seed=1)
    kept = train_classifier(old, tmp_path / "run")
    before = weights(kept.folder)
    with pytest.raises(Stop):
        train_classifier(new, tmp_path / "run", overwrite=True, progress=interrupt)
    assert (
        train_classifier(old, tmp_path / "run", resume=True).training == kept.training
    )
    assert same(before, weights(kept.folder))
    for recipe, resume, expected in (
        (new, False, "to be new"),
        (replace(new, seed=2), True, "another training"),
    ):
        with pytest.raises(OutputError, match=expected):
            train_classifier(recipe, tmp_path / "run", resume=resume)
    steps = []
    done = train_classifier(
        new, tmp_path / "run", resume=True, progress=lambda step, _: steps.append(step)
    )
    assert steps[0] == STEPS + 1 and done.training["recipe"]["seed"] == 1
    assert same(
        weights(done.folder), weights(train_classifier(new, tmp_path / "whole").folder)
    )
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert (
        train_classifier(new, tmp_path / "run", resume=True).training == done.training
    )


@pytest.mark.parametrize(
    ("device", "error"),
    [("cuda:0", (UsageError, ModelError)), ("gpu", ModelError), ("cpu:0", UsageError)],
)
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path, device, error
):
    with pytest.raises(error, match="device"):
        train_classifier(SMALL, tmp_path / "run", device=device)
    assert not (tmp_path / "run").exists()


def test_denormals_are_zero_in_training_only(tmp_path):
    found = []
    least = torch.tensor(1e-40)
    train_classifier(
        replace(SMALL, epochs=1),
        tmp_path / "run",
        progress=lambda *_: found.append((least * 1).item()),
    )
    assert found and set(found) == {0.0} and (least * 1).item() > 0


def test_one_device_is_used_where_there_are_several(tmp_path, monkeypatch):
    """With more, a step would read a batch on each."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    parts = build_parts(SMALL, SMALL.open())
    how = fit.Fitting({"per_device_train_batch_size": 64})
    trainer = fit.FittingTrainer(parts.material, how, lambda *_: None, tmp_path)
    assert trainer.args.train_batch_size == 64


@pytest.mark.parametrize(("more", "collapsed"), [(0, True), (3, True), (7, False)])
def test_a_training_has_collapsed_that_is_above_the_majority_by_chance_alone(
    monkeypatch, tmp_path, more, collapsed
):
    """Of 60 utterances 30 are of the commonest class; from 37 right on that is no chance any more (one-sided, 5 %)."""
    corpus, recipe = open_labelled("synthetic", limit=60), SMALL.filled()
    assert corpus.counts()["test"] == dict.fromkeys(corpus.labels, 30)
    history = {
        "steps": 3,
        "seconds": 0.1,
        "loss": [(3, 0.7)],
        "validation_loss": [(3, 0.7)],
    }
    monkeypatch.setattr(classifier, "fit", lambda *_: history)

    def found(_model, encoded, _pad):
        wrong = len(encoded) // 2 - more
        return [
            1 - e.label if i < wrong else e.label
            for i, e in enumerate(corpus.splits[encoded.split])
        ]

    monkeypatch.setattr(classifier, "predict_classes", found)
    encoded = {
        split: SplitOnly(split, len(examples))
        for split, examples in corpus.splits.items()
    }
    model = SimpleNamespace(attention_classifier=SimpleNamespace())
    parts = SimpleNamespace(
        model=model, encoded=encoded, pad_id=0, material=None, described={}
    )
    told = classifier._train(recipe, corpus, parts, tmp_path, "cpu", lambda *_: None)
    assert (
        told["results"]["test"]["accuracy"] == 0.5 + more / 60
        and told["collapsed"] is collapsed
    )


class SplitOnly(list):
    """So many examples of a split, of which nothing is known but their number."""

    def __init__(self, split, count):
        super().__init__(range(count))
        self.split, self.lengths = split, [1] * count


def test_a_collapsed_training_is_marked(tmp_path):
    run = train_classifier(
        replace(WHOLE, epochs=1, rate=1e-12, corpus="synthetic:20"), tmp_path / "run"
    )
    result = run.training["results"]["test"]
    assert run.collapsed and result["accuracy"] <= result["above_chance"]
    assert result["above_chance"] == pytest.approx(
        0.05 + 1.645 * math.sqrt(0.05 * 0.95 / 300)
    )


def test_early_stopping_keeps_the_best_epoch(tmp_path):
    run = train_classifier(
        replace(SMALL, epochs=30, patience=1, rate=1e-2), tmp_path / "run"
    )
    losses = [loss for _, loss in run.training["validation_loss"]]
    assert len(losses) < 30 and losses[-1] > losses[-2] == min(losses)
    assert run.training["best_epoch"] == len(losses) - 1
    a_epoch = run.training["steps"] // len(losses)
    assert run.training["kept_step"] == run.training["best_epoch"] * a_epoch


def test_frozen_vectors_stay_and_trained_ones_do_not(tmp_path):
    name = "attention_classifier.embeddings.weight"
    runs = {}
    for frozen in (True, False):
        recipe = replace(
            SMALL, vectors="builtin:minilm", dim=None, epochs=1, frozen=frozen, limit=64
        )
        runs[frozen] = train_classifier(recipe, tmp_path / str(frozen))
    table = load("builtin:minilm").model.get_input_embeddings().weight
    tokenizer = runs[True].classifier()[1]
    matrix = weights(runs[True].folder)[name]
    word = tokenizer.convert_ids_to_tokens(5)
    ids = load("builtin:minilm").processor(word, add_special_tokens=False)["input_ids"]
    torch.testing.assert_close(matrix[5], table[ids].mean(0).detach())
    assert not torch.equal(matrix, weights(runs[False].folder)[name])


@pytest.mark.parametrize("kind", ["uniform", "random"])
def test_attention_that_is_not_learned_is_what_it_is_called(tmp_path, kind):
    done = train_classifier(
        replace(SMALL, attention=kind, epochs=1, layers=2, seed=4), tmp_path / "run"
    )
    model, tokenizer = done.classifier()
    encoded = encode(done.recipe.open().splits["test"][:40], tokenizer, 64)
    found = measure_entropies(model, LabelledPlan(encoded, 0))
    assert bool((found["row"] - 1).abs().max() < 1e-5) == (kind == "uniform")
    assert model.config.attention_seed == 4 and float(found["row"].min()) > 0.6


def test_frozen_attention_stays_after_the_first_epoch_also_over_a_resume(
    tmp_path, monkeypatch
):
    """Momentum moved queries and keys on for a while after their gradients were gone."""
    recipe = replace(SMALL, epochs=2, decay=0.1, seed=1, patience=9, limit=160)
    first, free, frozen = (
        train_classifier(
            replace(recipe, attention=kind, epochs=epochs), tmp_path / f"{kind}{epochs}"
        )
        for kind, epochs in (("learned", 1), ("learned", 2), ("frozen", 2))
    )
    one, two, kept = (weights(done.folder) for done in (first, free, frozen))
    for name in (n for n in one if "in_proj" in n):
        part = 2 * len(one[name]) // 3
        assert torch.equal(kept[name][:part], one[name][:part]) and not torch.equal(
            kept[name][part:], one[name][part:]
        )
        assert not torch.equal(two[name][:part], one[name][:part])
    from anisoscope_papers.training import classifier

    stop = SimpleNamespace(on_step_end=classifier.FrozenAttention.on_step_end)

    def interrupted(self, args, state, control, **given):
        stop.on_step_end(self, args, state, control, **given)
        if state.global_step == 4:  # in the second epoch of 3 steps
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(classifier.FrozenAttention, "on_step_end", interrupted)
    with pytest.raises(Interrupted):
        train_classifier(replace(recipe, attention="frozen"), tmp_path / "again")
    monkeypatch.undo()
    again = train_classifier(
        replace(recipe, attention="frozen"), tmp_path / "again", resume=True
    )
    assert same(weights(again.folder), kept)


def test_an_encoder_is_fine_tuned_on_pairs_with_its_own_tokenizer(tmp_path):
    recipe = ClassifierRecipe(
        model="builtin:minilm",
        corpus="synthetic-pairs",
        limit=24,
        epochs=1,
        batch=8,
        penalty="entropy",
        weight=0.1,
    )
    run = train_classifier(recipe, tmp_path / "run")
    model, tokenizer = run.classifier()
    assert (
        type(model).__name__ == "BertForSequenceClassification"
        and model.config.id2label[1] == "neutral"
    )
    assert tokenizer.cls_token == "[CLS]" and run.training["results"]["test"]["n"] == 24
    assert load(str(run.folder)).model.config.num_hidden_layers == 6


def test_the_matrix_and_tokenizer_of_a_checkpoint_can_be_used_as_they_are(tmp_path):
    run = train_classifier(
        ClassifierRecipe(
            corpus="synthetic", limit=64, epochs=1, tokens="checkpoint", frozen=True
        ),
        tmp_path / "r",
    )
    table = load("builtin:minilm").model.get_input_embeddings().weight
    assert torch.equal(
        weights(run.folder)["attention_classifier.embeddings.weight"], table
    )


def test_long_utterances_are_counted(tmp_path):
    run = train_classifier(replace(SMALL, epochs=1, max_length=12), tmp_path / "run")
    corpus = run.recipe.open()
    longer = {
        s: sum(len(e.words) > 11 for e in examples)
        for s, examples in corpus.splits.items()
    }
    assert run.training["truncated"] == longer and longer["test"] > 0


def test_buckets_hold_every_example_once_and_waste_little():
    lengths = torch.randint(
        5, 60, (1000,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    sampler = Buckets(lengths, 64, seed=1)
    first = list(sampler)
    assert first == list(sampler) and sorted(first) == list(range(1000))
    sampler.set_epoch(1)
    assert first != list(sampler)
    batches = [[lengths[i] for i in first[k : k + 64]] for k in range(0, 1000, 64)]
    assert sum(max(b) * len(b) for b in batches) < 1.1 * sum(lengths)
    assert max(batches[0]) != max(lengths) or max(batches[1]) != max(
        lengths
    )  # not longest first
    assert list(Buckets(lengths, 64, seed=2)) != first


BAD = {
    "layers of at least 1": {"layers": 0},
    "a finite rate": {"rate": math.nan},
    "a penalty for --weight": {"weight": 0.1},
    "a penalty weight of at least 0": {"penalty": "entropy", "weight": -1.0},
    "penalty.*did you mean entropy": {"penalty": "entropi", "weight": 1.0},
    "weight; got nan": {"weight": math.nan},
    "vector_norm; got nan": {"vector_norm": math.nan},
    "vector_norm; got inf": {"vector_norm": math.inf},
    "vector_norm above 0; got 0": {"vector_norm": 0.0},
    "no --vector-norm with --vectors random": {"vectors": "random", "vector_norm": 5.0},
    "no --separator with --tokens checkpoint": {
        "tokens": "checkpoint",
        "separator": True,
    },
    "no --penalty-layers with --penalty none": {"penalty_layers": (1, 2)},
    "no --layers with the model bert-base": {"model": "bert-base", "layers": 2},
    "no --heads with": {"model": "bert-base", "heads": 2},
    "no --dim with": {"model": "bert-base", "dim": 32},
    "no --text with": {"model": "bert-base", "text": True},
    "no --vectors with": {"model": "bert-base", "vectors": "random"},
    "no --vector-norm with": {"model": "bert-base", "vector_norm": 5.0},
    "no --frozen with": {"model": "bert-base", "frozen": True},
    "no --tokens with": {"model": "bert-base", "tokens": "checkpoint"},
    "no --separator with": {"model": "bert-base", "separator": True},
}


@pytest.mark.parametrize("expected", BAD)
def test_bad_recipes_are_explained(expected):
    with pytest.raises(UsageError, match=expected):
        ClassifierRecipe(**BAD[expected])


def test_other_bad_input_is_explained(tmp_path):
    for given, error, expected in (
        ({"vectors": "random", "tokens": "words"}, UsageError, "tokens among"),
        (
            {"vectors": "random", "tokens": "checkpoint"},
            UsageError,
            "a checkpoint in --vectors",
        ),
        ({"dim": 32}, UsageError, "--dim 384"),
        ({"model": "no/such-model"}, ModelError, "no/such-model"),
        (
            {"model": "builtin:minilm", "max_length": 604},
            UsageError,
            "--max-length of at most 512",
        ),
        (
            {"vectors": "random", "separator": True},
            UsageError,
            "pairs of texts for --separator; got synthetic",
        ),
        ({"penalty": "entropy", "weight": math.nan}, UsageError, "a finite weight"),
    ):
        with pytest.raises(error, match=expected):
            train_classifier(ClassifierRecipe(**given), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    Path(tmp_path, "mine", "notes.txt").write_text("x")
    with pytest.raises(OutputError, match="files that belong to no training run"):
        train_classifier(SMALL, tmp_path / "mine")


def test_a_training_that_was_killed_before_its_first_file_begins_anew(
    tmp_path, monkeypatch
):
    """It was refused as files that are no training: found by the campaign, seed 2."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / f".identity.json.{2**31 - 1}").write_text(
        "{"
    )  # of a process that is no more

    def parts_of(*_):
        raise StopIteration

    monkeypatch.setattr(classifier, "build_parts", parts_of)
    for resume in (True, False):
        with pytest.raises(StopIteration):
            train_classifier(SMALL, tmp_path, resume=resume)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_command_trains_and_reports(tmp_path):
    given = (
        "--vectors random --dim 16 --epochs 1 --max-length 12 --penalty "
        "entropy --weight 0.1 --penalty-layers all -q"
    )
    command = [
        "train",
        "classifier",
        "--corpus",
        "synthetic",
        *given.split(),
        "-o",
        str(tmp_path / "run"),
    ]
    done = invoke(command)
    assert done.exit_code == 0, done.output
    assert (
        "test: accuracy" in done.output and "utterances cut at 12 tokens" in done.output
    )
    said = json.loads((tmp_path / "run" / "training.json").read_text())
    assert said["recipe"]["penalty_layers"] == [] and said["recipe"]["weight"] == 0.1
    wrong = invoke(["first" if word == "all" else word for word in command])
    refused = str(explain_usage_error(wrong.exception))
    assert refused.startswith(
        "expected whole numbers for --penalty-layers; got 'first'. Cure: "
    ), refused


def test_the_command_divides_a_table_by_its_column_and_says_what_it_takes(tmp_path):
    lines = [
        {
            "text": f"w{i} x",
            "label": i % 2,
            "part": ("train", "dev", "test")[i // 2 % 3],
        }
        for i in range(60)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    given = "--split-column part --vectors random --dim 16 --epochs 1 -q"
    command = [
        "train",
        "classifier",
        "--corpus",
        str(tmp_path / "t.jsonl"),
        *given.split(),
        "-o",
        str(tmp_path / "r"),
    ]
    done = invoke(command)
    assert done.exit_code == 0, done.output
    said = json.loads((tmp_path / "r" / "training.json").read_text())
    assert said["corpus"]["counts"] == {
        split: {"0": 10, "1": 10} for split in ("train", "validation", "test")
    }
    assert "torchrun" not in invoke(["train", "classifier", "--help"]).output
    assert "classifier" in invoke(["train", "--help"]).output.partition("Example")[0]


def test_labelled_corpora_are_listed_and_the_documentation_has_every_command():
    listed = dict(printed_tables.list_entries("corpora").rows)
    assert all(
        listed[name].startswith("labelled: ")
        for name, corpus in named_corpora().items()
        if corpus.modality == "labelled"
    )
    page = paper_pages.commands()
    assert (
        "## anisoscope train classifier\n" in page
        and "## anisoscope train masked-lm\n" in page
    )
    assert "--split-column" in page and "## anisoscope measure\n" not in page


def test_the_result_of_predictions_by_hand():
    corpus = open_labelled("synthetic:3", limit=60)
    truth = [example.label for example in corpus.splits["test"]]
    predicted = [0] * len(truth)
    predicted[truth.index(1)] = 1
    found = classifier.measure_result(corpus, "test", predicted)
    n, first, second = len(truth), truth.count(0), truth.count(1)
    majority = max(truth.count(label) for label in range(3)) / n
    assert (
        found["n"] == n
        and found["accuracy"] == (first + 1) / n
        and found["majority"] == majority
    )
    assert found["above_chance"] == pytest.approx(
        majority + 1.645 * (majority * (1 - majority) / n) ** 0.5
    )
    assert list(found["by_class"].values()) == [1.0, 1 / second, 0.0] and second > 1
    assert list(found["predicted"].values()) == [n - 1, 1, 0]


def test_a_classifier_starts_as_torch_s_parts_do():
    """Embeddings of deviation 1 with a row of zeros for padding, Xavier for queries, keys and values together, a
    linear layer's own bounds for the others; gradients reach what makes queries and keys.
    """
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 500,
        "hidden_size": 64,
        "max_position_embeddings": 8,
        "num_labels": 3,
    }
    model = AttentionClassifier(AttentionClassifierConfig(**sizes))
    table = next(m for m in model.modules() if isinstance(m, torch.nn.Embedding)).weight
    assert (
        float(table[1:].detach().std()) == pytest.approx(1, rel=0.02)
        and not table[0].any()
    )
    attention = model.attention_classifier.blocks[0].attention
    bounds = {attention.in_proj: math.sqrt(6 / (4 * 64)), attention.out_proj: 1 / 8}
    for part, bound in bounds.items():
        assert (
            float(part.weight.detach().abs().max()) == pytest.approx(bound, rel=0.01)
            and not part.bias.any()
        )
    [head] = [
        m
        for name, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and m.out_features == 3
    ]
    assert (
        0.9 / 8 < float(head.weight.detach().abs().max()) <= 1 / 8 and head.bias.any()
    )
    model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([1])).loss.backward()
    assert all(part.any() for part in attention.in_proj.weight.grad.chunk(3))
