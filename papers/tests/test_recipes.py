"""What is asked of a training is what it is given: every field of a recipe, seen where it takes effect."""

from dataclasses import asdict, fields, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anisoscope.data import opening as data
from anisoscope.data.corpora import Columns
from anisoscope_papers.beyond import arms, outcomes, trained
from anisoscope_papers.beyond.trained import Recipe
from anisoscope_papers.training import classifier, language_model, train_small
from anisoscope_papers.training.kinds import KINDS
from anisoscope_papers.training.recipe import (
    ClassifierRecipe,
    ModelSize,
    Sizes,
    Training,
)


class Caught(Exception):
    pass


@pytest.fixture
def caught(monkeypatch):
    """`caught(go)`: material and fitting that a training hands on, and what its corpus was opened with; no step."""
    kept = {}

    def fit(made, how, on_step, folder=None):
        kept.update(made=made, how=how, on_step=on_step, folder=folder)
        raise Caught

    for module in (classifier, language_model, trained):
        monkeypatch.setattr(module, "fit", fit)

    def look(go):
        kept.clear()
        with pytest.raises(Caught):
            go()
        return SimpleNamespace(**kept)

    return look


@pytest.fixture(scope="module")
def first():
    """`first(name, look)`: what was seen at the first look of that name, which others are held against."""
    seen = {}
    return lambda name, look: (
        seen[name] if name in seen else seen.setdefault(name, look())
    )


# ---- a classifier ----------------------------------------------------------------------------------------------------

BASE = ClassifierRecipe(
    corpus="synthetic", limit=60, vectors="random", dim=8, epochs=3, batch=5
)


def setting(name):
    return lambda seen: seen.how.settings[name]


def config(name):
    return lambda seen: getattr(seen.made.model.config, name)


def words(seen):
    return seen.made.model.attention_classifier.embeddings.weight


SEEN = {
    "layers": (2, {}, config("num_hidden_layers")),
    "heads": (2, {}, config("num_attention_heads")),
    "dim": (6, {}, config("hidden_size")),
    "text": (True, {}, lambda seen: seen.made.model.config.norm == "layer_norm"),
    "frozen": (True, {}, lambda seen: not words(seen).requires_grad),
    "attention": ("uniform", {}, config("attention")),
    "freeze_after": (
        7,
        {"attention": "frozen"},
        lambda seen: seen.how.callbacks[0].after,
    ),
    "positions": ("learned", {}, config("positions")),
    "position_scale": (0.5, {}, config("position_scale")),
    "steps": (9, {"epochs": None}, lambda seen: seen.how.settings.get("max_steps")),
    "weight": (0.5, {"penalty": "entropy"}, lambda seen: seen.how.penalty.weight),
    "penalty": (
        "entropy-columns",
        {"penalty": "entropy", "weight": 0.5},
        lambda seen: seen.how.penalty.variant,
    ),
    "penalty_layers": (
        (2,),
        {"penalty": "entropy", "weight": 0.5, "layers": 2},
        lambda seen: seen.how.penalty.layers,
    ),
    "rate": (0.25, {}, setting("learning_rate")),
    "decay": (0.5, {}, setting("weight_decay")),
    "batch": (7, {}, setting("per_device_train_batch_size")),
    "epochs": (4, {}, setting("num_train_epochs")),
    "patience": (6, {}, lambda seen: seen.how.patience),
    "warmup": (7, {}, setting("warmup_steps")),
    "clip": (8.0, {}, setting("max_grad_norm")),
    "buckets": (False, {}, lambda seen: seen.how.order is not None),
    "max_length": (9, {}, config("max_position_embeddings")),
    "seed": (3, {}, setting("seed")),
}
"""Field → another value, what it needs beside it, and where it is seen."""


@pytest.fixture(scope="module")
def labelled():
    return BASE.open()


@pytest.mark.parametrize("name", SEEN)
def test_what_is_asked_of_a_classifier_reaches_its_training(
    name, caught, tmp_path, labelled
):
    """Warm-up, the largest norm of gradients or the layers of a penalty could be read and forgotten."""
    value, more, read = SEEN[name]
    go = partial(
        classifier.train_classifier,
        output=tmp_path / "run",
        overwrite=True,
        corpus=labelled,
    )
    one, other = (replace(BASE, **(more | changed)) for changed in ({}, {name: value}))
    before, after = (read(caught(partial(go, recipe))) for recipe in (one, other))
    assert after == value != before


def test_every_field_of_a_recipe_is_seen_somewhere():
    """A field that nobody looks for may be lost on its way to the training."""
    others = {"model", "corpus", "limit", "split_seed", "tokens", "separator"}
    others |= {"vectors", "vector_norm", "vector_cosine"}
    columns = {field.name for field in fields(Columns)}
    assert {field.name for field in fields(ClassifierRecipe)} == {
        *SEEN,
        *others,
        *columns,
    }


def test_a_fixed_number_of_steps_is_not_stopped_early_and_evaluated_at_its_end(
    caught, tmp_path, labelled
):
    go = partial(
        classifier.train_classifier,
        output=tmp_path / "run",
        overwrite=True,
        corpus=labelled,
    )
    asked = replace(BASE, epochs=None, steps=9), replace(BASE, patience=4)
    fixed, free = (caught(partial(go, recipe)).how for recipe in asked)
    assert (
        fixed.patience,
        fixed.evaluated,
        fixed.settings["load_best_model_at_end"],
    ) == (None, {9}, False)
    assert (free.patience, free.evaluated, free.settings["load_best_model_at_end"]) == (
        4,
        set(),
        True,
    )
    assert "num_train_epochs" not in fixed.settings and "max_steps" not in free.settings


def test_one_seed_is_of_weights_and_order_alike(caught, tmp_path, labelled):
    go = partial(
        classifier.train_classifier,
        output=tmp_path / "run",
        overwrite=True,
        corpus=labelled,
    )
    one, other = (caught(partial(go, replace(BASE, seed=seed))) for seed in (3, 4))
    assert (
        one.how.settings["data_seed"]
        == one.how.order.seed
        == one.made.model.config.attention_seed
        == 3
    )
    assert not torch.equal(words(one), words(other))
    first, again = ([*one.how.order], [*one.how.order])
    one.how.order.set_epoch(1)
    assert first == again != [*one.how.order] and first != [*other.how.order]


@pytest.mark.parametrize(("device", "on_cpu"), [("cpu", True), ("cuda", False)])
def test_a_classifier_is_trained_on_the_device_that_is_asked_for(
    caught, tmp_path, labelled, monkeypatch, device, on_cpu
):
    monkeypatch.setattr(classifier, "check_training_device", lambda _: None)
    go = partial(
        classifier.train_classifier,
        BASE,
        tmp_path / "run",
        corpus=labelled,
        device=device,
    )
    # Settings alone: without the device, transformers would refuse them.
    assert caught(go).how.settings["use_cpu"] == on_cpu


def test_what_is_held_out_is_not_trained_on_and_the_corpus_is_as_asked(
    caught, tmp_path, monkeypatch
):
    asked, real = {}, data.open_labelled
    monkeypatch.setattr(
        data,
        "open_labelled",
        lambda name, **how: asked.update(how, name=name) or real(name, **how),
    )
    seen = caught(
        lambda: classifier.train_classifier(
            replace(BASE, split_seed=5), tmp_path / "run"
        )
    )
    assert asked == {"name": "synthetic", "columns": None, "seed": 5, "limit": 60}
    corpus = replace(BASE, split_seed=5).open()
    assert len(seen.made.train) == len(corpus.splits["train"])
    assert sorted(row["labels"] for row in seen.made.validation) == sorted(
        e.label for e in corpus.splits["validation"]
    )
    rows = {tuple(row["input_ids"]) for row in seen.made.train}
    assert not rows & {tuple(row["input_ids"]) for row in seen.made.validation}


def test_vectors_are_scaled_and_pairs_separated_where_it_is_asked(
    caught, tmp_path, labelled
):
    def made(**changes):
        recipe = replace(BASE, **({"dim": None, "vectors": "builtin:minilm"} | changes))
        given = labelled if recipe.corpus == "synthetic" else None
        return caught(
            lambda: classifier.train_classifier(
                recipe, tmp_path / "run", overwrite=True, corpus=given
            )
        )

    plain, scaled = (
        words(made(**more)).norm(dim=1) for more in ({}, {"vector_norm": 7.0})
    )
    ratio = scaled[plain > 0] / plain[plain > 0]
    assert ratio.max() / ratio.min() < 1.5 and abs(ratio.median() - 1) > 0.5
    whole = words(made(tokens="checkpoint", vector_norm=7.0)).detach()
    assert float(whole.norm(dim=1).mean()) == pytest.approx(7, rel=0.01)
    shifted = words(made(vector_norm=7.0, vector_cosine=0.5))
    known = torch.nn.functional.normalize(shifted[shifted.norm(dim=1) > 0], dim=1)
    assert 0.45 < float((known.sum(0) ** 2).sum() / len(known) ** 2) < 0.55
    for separator in (False, True):
        seen = made(vectors="random", corpus="synthetic-pairs", separator=separator)
        assert ("<sep>" in seen.made.processor.get_vocab()) == separator


def test_a_training_without_a_shift_of_its_vectors_keeps_the_identity_it_had_before_there_was_one():
    assert "vector_cosine" not in BASE.described()
    shifted = replace(BASE, vectors="builtin:minilm", dim=None, vector_cosine=0.5)
    assert shifted.described()["vector_cosine"] == 0.5
    for recipe in (BASE, shifted):
        assert type(BASE).read(recipe.described()) == recipe


# ---- a language model ------------------------------------------------------------------------------------------------

TINY = Sizes(preset="tiny", vocab_size=300, window=12, batch=4, dropout=0.1).build()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(
        "\n\n".join(
            f"a cat saw {i} dogs and the dog saw {i % 7} cats" for i in range(900)
        )
    )
    return path


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ANISOSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def dropout(seen):
    found = seen.made.model.config.to_dict()
    return {found[name] for name in found if name.endswith(("pdrop", "_dropout_prob"))}


TOLD = {
    "steps": ({"steps": 9}, setting("max_steps"), 9),
    "seed": ({"seed": 5}, setting("seed"), 5),
    "data_seed": ({"data_seed": 5}, setting("data_seed"), 5),
    "order of the data": ({"data_seed": 5}, lambda seen: seen.made.train.seed, 5),
    "bfloat16": ({"dtype": "bfloat16"}, setting("bf16"), True),
    "float16": ({"dtype": "float16"}, setting("fp16"), True),
    "accumulate": ({"accumulate": 2}, setting("gradient_accumulation_steps"), 2),
    "rows of a part": ({"accumulate": 2}, setting("per_device_train_batch_size"), 2),
    "report_to": ({"report_to": ("wandb",)}, setting("report_to"), ["wandb"]),
    "rate": ({"own_size": replace(TINY, rate=0.5)}, setting("learning_rate"), 0.5),
    "per_octave": (
        {"per_octave": 1},
        lambda seen: sorted(seen.how.evaluated),
        [0, 1, 2, 4, 8, 16, 20],
    ),
    "batch": (
        {"own_size": replace(TINY, batch=6)},
        lambda seen: len(seen.made.train),
        120,
    ),
    "layers": ({"own_size": replace(TINY, layers=3)}, config("num_hidden_layers"), 3),
    "width": ({"own_size": replace(TINY, width=32)}, config("hidden_size"), 32),
    "heads": ({"own_size": replace(TINY, heads=4)}, config("num_attention_heads"), 4),
    "window": (
        {"own_size": replace(TINY, window=16)},
        config("max_position_embeddings"),
        16,
    ),
    "dropout": (
        {"own_size": replace(TINY, dropout=0.3)},
        lambda seen: dropout(seen) & {0.3},
        {0.3},
    ),
}


@pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])
@pytest.mark.parametrize("name", TOLD)
def test_what_is_asked_of_a_language_model_reaches_its_training(
    name, task, caught, first, corpus, tmp_path
):
    """Mixed precision, trackers, the seed of the data or dropout could be read and forgotten."""
    changes, read, value = TOLD[name]
    base = Training(task=task, corpus=str(corpus), own_size=TINY, steps=20)
    look = lambda asked: caught(  # noqa: E731
        lambda: language_model.train(asked, tmp_path / "run", overwrite=True)
    )
    before, after = (
        read(first(task, partial(look, base))),
        read(look(replace(base, **changes))),
    )
    assert after == value != before


@pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])
def test_a_language_model_is_trained_on_its_task_text_and_rate(
    task, caught, corpus, tmp_path, monkeypatch
):
    opened, real = [], language_model.open_training_corpus
    told = {"split": "s", "column": "c", "limit": 800}
    monkeypatch.setattr(
        language_model,
        "open_training_corpus",
        lambda name, **how: opened.append((name, how)) or real(name),
    )
    base = Training(task=task, corpus=str(corpus), own_size=TINY, steps=20, **told)
    seen = caught(lambda: language_model.train(base, tmp_path / "run"))
    assert (
        opened == [(str(corpus), told)] and seen.folder == tmp_path / "run" / "resume"
    )
    assert (
        type(seen.made.model).__name__
        == {"masked-lm": "BertForMaskedLM", "causal-lm": "GPT2LMHeadModel"}[task]
    )
    assert (
        seen.how.share(0) == 1
        and seen.how.share(20) == 0
        and 0 < seen.how.share(15) < seen.how.share(5)
    )
    train, held = seen.made.train, seen.made.validation
    assert (
        not set(train.windows) & set(held.windows)
        and len(held) == len(held.windows)
        and not held.shuffled
    )


def test_sizes_are_as_they_are_asked_for():
    asked = {"vocab_size": 301, "window": 13, "batch": 3, "rate": 0.5, "dropout": 0.25}
    assert asked.keys() | {"preset"} == {field.name for field in fields(Sizes)}
    tiny = Sizes(preset="tiny").build()
    for name, value in asked.items():
        field = "vocabulary" if name == "vocab_size" else name
        assert Sizes(preset="tiny", **{name: value}).build() == replace(
            tiny, **{field: value}
        )
    # No dropout is a dropout too.
    assert Sizes(preset="bert-small").build().dropout == 0.1
    assert Sizes(preset="bert-small", dropout=0.0).build().dropout == 0.0
    assert Training(seed=4, data_seed=0).order == 0 and Training(seed=4).order == 4


# ---- small models, arms of experiments -------------------------------------------------------------------------------


@pytest.mark.parametrize("patience", [None, 2])
def test_a_small_model_is_fitted_as_its_kind_and_seed_say(patience):
    kind = KINDS["vit"]
    how = train_small.build_fitting(kind, 5, 300, patience)
    of = how.settings
    assert (of["seed"], of["data_seed"], of["learning_rate"], of["max_steps"]) == (
        5,
        5,
        kind.rate,
        300,
    )
    assert (
        of["per_device_train_batch_size"] == kind.batch
        and of["warmup_steps"] == 15
        and how.patience == patience
    )
    assert of["lr_scheduler_type"] == (
        "linear" if patience is None else "constant_with_warmup"
    )
    assert (how.evaluated == frozenset({1, 2, 4, 8, 16, 32, 64, 128, 256, 300})) == (
        patience is None
    )


@pytest.mark.parametrize("share", [0.1, None])
def test_a_small_model_is_trained_for_its_share_or_until_it_no_longer_learns(
    share, monkeypatch, tmp_path
):
    """Steps, patience and the best checkpoint; what was begun before is begun anew."""
    kind, kept, asked = KINDS["vit"], [], {}
    monkeypatch.setattr(
        train_small,
        "prepare_material",
        lambda _kind, seed: SimpleNamespace(model=f"seed {seed}", processor=None),
    )
    monkeypatch.setattr(
        train_small.fit,
        "keep",
        lambda folder, *parts: kept.append((folder.name, parts[0])),
    )

    def fit(made, how, on_step):
        asked.update(
            steps=how.settings["max_steps"],
            patience=how.patience,
            seed=how.settings["seed"],
        )
        for step in (1, 2, 3):
            on_step(step, 3, made.model)
        return {"steps": 3, "validation_loss": [(1, 0.5), (2, 0.2), (3, 0.4)]}

    monkeypatch.setattr(train_small.fit, "fit", fit)
    recipe = train_small.SmallModelRecipe(share=share, patience=7, longest=2)
    (tmp_path / "small").mkdir()
    told = []
    done = train_small.train_or_load(
        kind, 4, recipe, tmp_path, lambda *at: told.append(at)
    )
    assert told == [("small ViT, seed 4", step, 3) for step in (1, 2, 3)]
    best = 2 if share is None else 3
    assert asked == {
        "steps": 2000 if share is None else 100,
        "patience": 7 if share is None else None,
        "seed": 4,
    }
    assert (
        kept == [(f"step-{s}", "seed 4") for s in (0, 1, 2, best)] and done.best == best
    )
    noted = done.history["settings"]
    assert (noted["seed"], noted["data"]) == (4, kind.data)
    assert noted["recipe"] == asdict(recipe) and noted["kind"]["name"] == "vit"
    begun = done.folder / "of a training that was killed"
    begun.touch()
    (done.folder / train_small.TRAINED).unlink()
    train_small.train_or_load(kind, 4, recipe, tmp_path)
    assert not begun.exists()


SIZE = ModelSize(
    layers=2, width=16, heads=2, vocabulary=300, window=12, batch=4, rate=1e-3, steps=4
)
RECIPE = Recipe("causal-lm", SIZE, 4, looks=(2,), probe=4)
REACHES = {
    "decay": lambda seen: seen.how.settings["weight_decay"] == 0.1,
    "balanced": lambda seen: len(set(seen.made.model.token_weights.tolist())) > 1,
    "type": lambda seen: bool(
        seen.made.model.bert.embeddings.token_type_embeddings.weight.any()
    ),
    "untied": lambda seen: (
        seen.made.model.cls.predictions.decoder.weight.data_ptr()
        != seen.made.model.bert.embeddings.word_embeddings.weight.data_ptr()
    ),
    "no-qk-bias": lambda seen: biases(seen) == {None},
    "queries-centred": lambda seen: (
        kinds_of(seen, "query") == {"Centred"} != kinds_of(seen, "key")
    ),
    "keys-centred": lambda seen: (
        kinds_of(seen, "key") == {"Centred"} != kinds_of(seen, "query")
    ),
    "qk-norm": lambda seen: (
        kinds_of(seen, "query") == kinds_of(seen, "key") == {"Normed"}
    ),
    "held-0": lambda seen: seen.made.model.held == 0.0,
    "held-.2": lambda seen: seen.made.model.held == 0.2,
    "held-.5": lambda seen: seen.made.model.held == 0.5,
    "softmax1": lambda seen: seen.made.model.config._attn_implementation == "softmax1",
    "sigmoid": lambda seen: seen.made.model.config._attn_implementation == "sigmoid",
}


def attentions(seen):
    return [layer.attention.self for layer in seen.made.model.bert.encoder.layer]


def biases(seen):
    return {
        getattr(attention, side).bias
        for attention in attentions(seen)
        for side in ("query", "key")
    }


def kinds_of(seen, side):
    return {type(getattr(attention, side)).__name__ for attention in attentions(seen)}


@pytest.fixture
def cell(caught, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(trained, "list_corpora", lambda: (str(corpus),) * 2)
    monkeypatch.setattr(outcomes, "WINDOWS", 8)
    monkeypatch.setattr(
        trained,
        "_measure_step",
        lambda *_, **__: trained.as_records(trained.pd.DataFrame()),
    )
    return lambda arm, seed=1: caught(
        lambda: trained._train(arm, seed, RECIPE, tmp_path / f"{arm}-{seed}", "cpu")
    )


@pytest.mark.parametrize("arm", arms.CHANGES)
def test_every_arm_changes_what_it_says_in_what_is_trained(arm, cell, first):
    """Decay, or the weights of tokens, could stay where they are: an arm that changes nothing."""
    assert REACHES.keys() == arms.CHANGES.keys()
    base, other = first("arm", partial(cell, arms.BASE)), cell(arm)
    assert REACHES[arm](other) and not REACHES[arm](base)
    assert {name for name, reached in REACHES.items() if reached(other)} == {arm}


def test_arms_of_one_seed_read_the_same_text_and_none_that_is_held_out(cell):
    base, other, again = cell(arms.BASE), cell("untied"), cell(arms.BASE, seed=2)
    assert (
        base.made.train.seed == other.made.train.seed == base.how.settings["seed"] == 1
    )
    assert again.made.train.seed == again.how.settings["data_seed"] == 2
    weights = [
        seen.made.model.bert.embeddings.word_embeddings.weight
        for seen in (base, other, again)
    ]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(
        weights[0], weights[2]
    )
    assert not set(base.made.train.windows) & set(base.made.validation.windows) and len(
        base.made.validation
    )
    assert base.how.settings["max_steps"] == 4 and base.how.evaluated == {0, 2, 4}
    assert base.how.share(1) == 1 and base.how.share(4) == 0


def test_one_step_moves_output_embeddings_of_their_own_and_not_the_others(cell):
    model = cell("untied").made.model
    words, outputs = (
        model.bert.embeddings.word_embeddings.weight,
        model.cls.predictions.decoder.weight,
    )
    before = words.detach().clone()
    with torch.no_grad():
        outputs.add_(1.0)
    assert torch.equal(words, before)


def test_shares_of_tokens_are_of_the_windows_that_are_trained_on():
    tokens = SimpleNamespace(vocabulary=4, room=2, affixes=SimpleNamespace(prefix=[9]))
    ids = np.array([[9, 1, 1, 9], [9, 2, 1, 9], [9, 3, 3, 9]])
    tokens.rows = lambda windows: ids[windows]
    assert trained.compute_unigram_shares(tokens, np.array([0, 1])).tolist() == [
        1 / 8,
        4 / 8,
        2 / 8,
        1 / 8,
    ]
    balance = trained.compute_balanced_weights(np.array([0.25, 0.75]))
    assert balance[0] / balance[1] == pytest.approx(3**0.5) and balance @ [
        0.25,
        0.75,
    ] == pytest.approx(1)


def test_the_loss_of_the_unigrams_is_of_what_is_to_be_found():
    examples = [{"labels": torch.tensor([-100, 0])}, {"labels": torch.tensor([1, 1])}]
    found = trained.compute_unigram_loss(np.array([0.5, 0.25, 0.25]), examples)
    assert found == pytest.approx(-(np.log(0.5) + 2 * np.log(0.25)) / 3)
