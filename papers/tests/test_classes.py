"""The classes of any classifier: replaced attention, attributions of words, and `anisoscope classes` as a whole."""

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from classifiers import one_by_one
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)
from typed import invoke

from anisoscope.classes import (
    ablation as replaced,
    attributions,
    faithfulness as explained,
    pooling,
)
from anisoscope.data.encoding import LabelledPlan, build_tokenizer
from anisoscope.data.labelled import Example
from anisoscope.data.opening import open_labelled
from anisoscope.errors import (
    CorpusError,
    MeasureError,
    ModelError,
    OutputError,
    UsageError,
)
from anisoscope.metrics.class_direction import auc, cosine_to_classes
from anisoscope.models.load import load
from anisoscope.runs import classes as runs_of_classes
from anisoscope.runs.classes import run_classes
from anisoscope.runs.job import ClassesOptions
from anisoscope.store import select
from anisoscope.sums.jackknife import wilson_interval
from anisoscope_papers.training.classifier import train_classifier
from anisoscope_papers.training.recipe import ClassifierRecipe


def random_weights(seed=0):
    """Rows of softmax over the real keys, and the mask."""
    mask = torch.arange(7) < torch.tensor([7, 4, 5])[:, None]
    scores = torch.randn(3, 2, 7, 7, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(~mask[:, None, None], -1e30).softmax(-1), mask


@pytest.mark.parametrize("kind", replaced.KINDS)
def test_replaced_weights_are_weights_over_the_real_tokens(kind):
    weights, mask = random_weights()
    changed = replaced.replace_weights(weights, mask, kind, seed=1)
    for i, n in enumerate(mask.sum(1).tolist()):
        rows = changed[i, :, :n]
        torch.testing.assert_close(rows.sum(-1), torch.ones(2, n))
        assert not rows[..., n:].any()
        assert kind == "another" or (rows - weights[i, :, :n]).abs().max() > 0.01
        if kind == "permuted":
            torch.testing.assert_close(
                rows.sort(-1).values, weights[i, :, :n].sort(-1).values
            )
        if kind == "uniform":
            torch.testing.assert_close(rows[..., :n], torch.full((2, n, n), 1 / n))
    if (
        kind == "another"
    ):  # the second sentence has 4 tokens and gets the third's 5: 0, 1.33, 2.67, 4
        source = torch.tensor([0, 1, 3, 4])
        taken = weights[2][:, source][:, :, source]
        torch.testing.assert_close(
            changed[1, :, :4, :4], taken / taken.sum(-1, keepdim=True)
        )


def attended(kind, weights, value, **settings):
    """Output [sequence, query, head, dim] of one layer whose weights are replaced."""
    ablation, real = (
        replaced.Ablation(kind, [1]),
        torch.ones(len(weights), weights.shape[-1], dtype=torch.bool),
    )
    ablation.begin(real, 0)
    masking = SimpleNamespace(keys=None, causal=False)
    given = {
        "query": value,
        "key": value,
        "value": value,
        "masking": masking,
        "settings": settings,
    }
    call = SimpleNamespace(weights=lambda: weights, **given)
    return ablation.attend(call)


@pytest.mark.parametrize("kind", replaced.KINDS)
def test_what_goes_to_a_sink_stays_with_it(kind):
    draw = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 3, 4, 4, generator=draw, dtype=torch.float64).softmax(
        -1
    ) * torch.tensor([0.9, 0.5, 0.2, 1])
    value = torch.ones(
        2, 3, 4, 5, dtype=torch.float64
    )  # so that an output is the sum of its weights
    sums, one = (
        weights.sum(-1).transpose(1, 2),
        torch.ones(2, 4, 3, dtype=torch.float64),
    )
    kept = attended(kind, weights, value, s_aux=torch.zeros(3))[..., 0]
    torch.testing.assert_close(kept, sums)
    if kind != "permuted":  # whose weights are the model's own
        torch.testing.assert_close(attended(kind, weights, value)[..., 0], one)


def test_two_tokens_take_both_ends_of_the_weights_of_another():
    weights = torch.eye(4).expand(2, 1, 4, 4).clone()
    weights[:, :, 0, 3] = 1
    real = torch.tensor([[True, True, False, False], [True] * 4])
    found = replaced.replace_weights(weights, real, "another")[0, 0]
    assert (
        found[:2, :2].tolist() == [[0.5, 0.5], [0, 1]]
        and not found[2:].any()
        and not found[:, 2:].any()
    )


def test_a_sentence_alone_in_its_batch_takes_the_weights_of_the_one_before():
    weights, mask = random_weights()
    other = weights[2:], mask[2:]
    changed = replaced.replace_weights(weights[1:2], mask[1:2], "another", other=other)
    source = torch.tensor([0, 1, 3, 4])
    taken = weights[2][:, source][:, :, source]
    torch.testing.assert_close(
        changed[0, :, :4, :4], taken / taken.sum(-1, keepdim=True)
    )


def test_batches_of_one_are_replaced_too(classifier):
    model, plan = classifier
    alone = LabelledPlan(plan.encoded, 0, batch_tokens=1)
    assert max(len(batch.unit) for batch in alone) == 1
    _, _, turned = replaced.average_outcome(model, alone, "another", (1,))
    assert turned[1][0] < 0.999


def test_nothing_replaced_is_the_model_itself(classifier):
    model, plan = classifier
    found, final, turned = replaced.average_outcome(model, plan, "uniform", ())
    with torch.no_grad():
        for batch in plan:
            out = model(**batch.inputs)
            assert (out.logits.argmax(-1).numpy() == found[batch.unit.numpy()]).all()
    assert not turned and np.allclose(np.linalg.norm(final, axis=1), 1)


def test_where_values_coincide_attention_does_not_matter(classifier):
    """The metamorphic form of the paper's title; and where they do not, it does."""
    model, plan = classifier
    projection = model.attention_classifier.blocks[1].attention.in_proj
    kept = projection.weight.detach().clone(), projection.bias.detach().clone()
    _, before, _ = replaced.average_outcome(model, plan, "another", ())
    _, after, turned = replaced.average_outcome(model, plan, "another", (2,))
    assert turned[2][0] < 0.999 and (before * after).sum(1).min() < 1 - 1e-6
    try:
        with torch.no_grad():
            projection.weight[-16:] = 0
            projection.bias[-16:] = torch.randn(
                16, generator=torch.Generator().manual_seed(0)
            )
        _, before, _ = replaced.average_outcome(model, plan, "another", ())
        _, after, turned = replaced.average_outcome(model, plan, "another", (2,))
        assert turned[2] == pytest.approx((1, 1), abs=1e-6)
        np.testing.assert_allclose(after, before, atol=1e-5)
    finally:
        with torch.no_grad():
            projection.weight.copy_(kept[0])
            projection.bias.copy_(kept[1])


def test_rollout_and_attention_are_their_definitions(classifier):
    model, plan = classifier
    number, one = next(attributions.iter_captured(model, plan))
    alone = list(one_by_one(model, plan))[number]
    np.testing.assert_allclose(one.attention[0], alone[3].numpy(), atol=1e-5)
    np.testing.assert_allclose(one.norms[0], alone[2].norm(dim=1).numpy(), rtol=1e-4)
    directions = attributions.measure_class_directions(model, plan, 3)
    found = attributions.compute_attributions(one, directions)
    first, second = ((a + np.eye(len(a))) / 2 for a in one.attention)
    np.testing.assert_allclose(found["rollout", 2], (second @ first)[0], atol=1e-12)
    np.testing.assert_allclose(
        found["value norm", 1], one.attention[0][0] * one.norms[0]
    )
    mean = one.vectors["value"][0] @ directions["value"][0].T
    others = [c for c in range(3) if c != one.found]
    np.testing.assert_allclose(
        found["value, contrast", 1], mean[:, one.found] - mean[:, others].mean(1)
    )


def test_words_and_erasure():
    values = np.array([9.0, 1.0, 3.0, 5.0])
    assert attributions.average_over_words(values, [-1, 0, 0, 2], 4).tolist() == [
        2,
        1,
        5,
        1,
    ]
    row = {"input_ids": [7, 1, 2, 3], "labels": 2}
    left = explained.erase_words(row, [-1, 0, 0, 1], np.array([False, True]))
    assert left == {"input_ids": [7, 3], "labels": 2}
    assert explained.select_highest(np.array([1.0, 4.0, 2.0, 3.0]), 0.5).tolist() == [
        False,
        True,
        False,
        True,
    ]
    assert explained.select_highest(np.array([1.0, 4.0]), 0.01).sum() == 1
    marks, top = np.array([True, True, False, False]), np.array([4.0, 1.0, 3.0, 2.0])
    assert explained._intersection_over_union(marks, top, 0.5) == pytest.approx(1 / 3)


def test_words_cut_off_divide_by_nothing():
    with np.errstate(all="raise"):
        assert attributions.average_over_words(
            np.array([2.0, 4.0]), [0, 0], 3
        ).tolist() == [3, 2, 2]


def test_as_many_of_each_class_are_explained_and_only_where_a_rationale_tells_words_apart():
    marks = {"half": (0.5, 0.0), "none": (0.49, 0.0), "all": (1.0, 0.5)}
    made = [
        Example((f"{name}{i}", "b"), i % 2, rationale=marks[name])
        for i in range(8)
        for name in marks
    ]
    assert [e.words[0] for e in explained.choose_marked(tuple(made), 5, 2)] == [
        f"half{i}" for i in range(6)
    ]
    assert explained._find_marked(made[0]).tolist() == [True, False]


def test_a_fall_is_what_is_lost_of_the_class_that_was_found(monkeypatch):
    """Without the highest word the model is at .2 of .9, with it alone at .6."""
    given = {3: [0.1, 0.9], 2: [0.8, 0.2], 1: [0.4, 0.6]}
    found = lambda _model, rows, _pad: np.array(  # noqa: E731
        [given[len(row["input_ids"])] for row in rows]
    )
    monkeypatch.setattr(explained, "predict_probabilities", found)
    encoded = SimpleNamespace(rows=[{"input_ids": [7, 8, 9]}], words=[[0, 1, 2]])
    scores = [{("attention", 1): np.array([0.1, 3.0, 0.2])}]
    falls = explained._compute_faithfulness(
        None, 0, encoded, scores, list(scores[0]), lambda _done, _total: None
    )
    first = {measure: float(values[0][0]) for (_, measure), values in falls.items()}
    assert first == pytest.approx({"comprehensiveness": 0.7, "sufficiency": 0.3})
    assert all(len(values) == len(explained.SHARES) for values in falls.values())


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 4), (5, 4), (4, 9)])
def test_attention_is_replaced_only_where_each_token_is_a_query_and_a_key(
    queries, keys
):
    looked = replaced.Ablation("uniform", (1,))
    looked.mask = torch.ones(2, 4, dtype=torch.bool)
    call = SimpleNamespace(
        query=torch.zeros(2, 1, queries, 3), key=torch.zeros(2, 1, keys, 3)
    )
    says = f"{queries} queries and {keys} keys of 4 tokens"
    with (
        pytest.raises(MeasureError, match=says)
        if (queries, keys) != (4, 4)
        else nullcontext()
    ):
        looked._check(call)


# one model on one corpus


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A classifier that has learnt two synthetic classes, and its run."""
    folder = tmp_path_factory.mktemp("classes")
    recipe = ClassifierRecipe(
        corpus="synthetic", vector_norm=5.0, limit=600, epochs=12, patience=4
    )
    trained = train_classifier(recipe, folder / "model")
    run = run_classes(
        ClassesOptions(str(folder / "model"), limit=100, few=20), folder / "run"
    )
    return trained, run


def test_the_corpus_is_that_of_the_training_and_the_accuracy_its_own(learnt):
    trained, run = learnt
    records, manifest = run.records, run.manifest
    assert (
        manifest["corpus"]["name"] == "synthetic"
        and manifest["corpus"]["n_units"] == 100
    )
    assert manifest["settings"]["corpus"] == "synthetic"
    (row,) = select(records, metric="accuracy", component=None).to_dict("records")
    model, tokenizer = trained.classifier()
    examples = [
        e
        for c in range(2)
        for e in [e for e in open_labelled("synthetic").splits["test"] if e.label == c][
            :50
        ]
    ]
    with torch.no_grad():
        given = [
            tokenizer(list(e.words), is_split_into_words=True, return_tensors="pt")
            for e in examples
        ]
        logits = [model(**one).logits for one in given]
    right = [int(x.argmax()) == e.label for x, e in zip(logits, examples, strict=True)]
    assert (
        row["value"] == np.mean(right) > 0.75
        and row["low"] < row["value"] < row["high"]
    )


def test_directions_of_every_layer_are_their_definition(learnt):
    trained, run = learnt
    model, tokenizer = trained.classifier()
    examples = open_labelled("synthetic").splits["test"]
    kept = [e for c in range(2) for e in [e for e in examples if e.label == c][:50]]
    vectors, labels = [], np.array([e.label for e in kept])
    with torch.no_grad():
        for e in kept:
            given = tokenizer(
                list(e.words), is_split_into_words=True, return_tensors="pt"
            )
            vectors.append(
                model.attention_classifier(**given)
                .last_hidden_state[0, 0]
                .double()
                .numpy()
            )
    cosine = cosine_to_classes(np.array(vectors), labels, 2)
    expected = np.mean([auc(cosine[:, c], labels == c) for c in range(2)])
    rows = select(run.records, metric="class_direction.auc", component=None).set_index(
        "layer"
    )["value"]
    assert rows[1] == pytest.approx(expected, abs=1e-3) and rows[1] > 0.85
    assert np.isnan(rows[0])  # <cls> is the same token everywhere
    own, other = (
        select(run.records, metric="class_direction", layer=1, component=c)[
            "value"
        ].mean()
        for c in (["class 1 × class 1", "class 2 × class 2"], "class 1 × class 2")
    )
    assert own > other


def test_everything_asked_for_is_there_and_on_the_page(learnt):
    _, run = learnt
    names = set(run.records["metric"])
    assert {
        "accuracy",
        "majority",
        "cls_entropy",
        "ablation.accuracy",
        "attribution.auprc",
        "mean_cosine",
    } <= names
    result = invoke(["report", str(run.folder)])
    page = (run.folder / "report.html").read_text()
    assert result.exit_code == 0
    for title in (
        "Is the direction the class?",
        "What is attention worth?",
        "What explains the decision?",
    ):
        assert title in page


def test_classes_are_matched_by_name_not_by_number(learnt, tmp_path):
    """The head of a model whose classes stand in another order gives the same accuracies by class."""
    trained, run = learnt
    model, tokenizer = trained.classifier()
    with torch.no_grad():
        for parameter in (model.classifier.weight, model.classifier.bias):
            parameter.copy_(parameter.flip(0))
    names = [model.config.id2label[i] for i in (1, 0)]
    model.config.id2label, model.config.label2id = (
        dict(enumerate(names)),
        {n: i for i, n in enumerate(names)},
    )
    model.save_pretrained(tmp_path / "turned")
    tokenizer.save_pretrained(tmp_path / "turned")
    look = ClassesOptions(
        corpus="synthetic", limit=100, few=20, parts=("directions", "ablation")
    )
    turned = run_classes(
        replace(look, model=str(tmp_path / "turned")), tmp_path / "run"
    ).records
    whole = {"component": "", "layer": -1}
    for metric in ("accuracy", "class_direction.auc", "ablation.accuracy"):
        ours, theirs = (
            select(records, metric=metric).fillna(whole).set_index([*whole])["value"]
            for records in (run.records, turned)
        )
        assert theirs.to_dict() == pytest.approx(
            ours.to_dict(), abs=1e-9, nan_ok=True
        ), metric


@pytest.mark.parametrize(
    ("names", "said", "used"),
    [
        (["yes", "no"], "are not called as the corpus'", False),
        (["a", "b", "c"], "the model tells 3 classes", False),
        (
            ["LABEL_0", "LABEL_1"],
            "have no names: taken as class 1, class 2, in this order",
            True,
        ),
    ],
)
def test_a_head_of_other_classes_is_not_used(learnt, tmp_path, names, said, used):
    model, tokenizer = learnt[0].classifier()
    if len(names) == 3:
        model.classifier = torch.nn.Linear(model.config.hidden_size, 3)
    model.config.id2label, model.config.label2id = (
        dict(enumerate(names)),
        {n: i for i, n in enumerate(names)},
    )
    model.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    run = run_classes(
        ClassesOptions(str(tmp_path / "other"), corpus="synthetic", limit=40, few=10),
        tmp_path / "run",
    )
    found = set(run.records["metric"])
    assert ("accuracy" in found) == used and "class_direction.auc" in found
    assert any(said in text for text in run.manifest["warnings"])


def test_a_head_without_its_weights_is_refused(learnt, tmp_path):
    model, tokenizer = learnt[0].classifier()
    weights = {
        name: x
        for name, x in model.state_dict().items()
        if not name.startswith("classifier.")
    }
    model.save_pretrained(tmp_path / "bare", state_dict=weights)
    tokenizer.save_pretrained(tmp_path / "bare")
    with pytest.raises(ModelError, match=r"classifier\."):
        run_classes(
            ClassesOptions(str(tmp_path / "bare"), corpus="synthetic"), tmp_path / "run"
        )
    assert (
        load(str(tmp_path / "bare")).model is not None
    )  # of no use to what is measured without it


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(open_labelled("synthetic"), max_length=40)


def saved(model, tokenizer, folder):
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_causal_classifier_is_looked_at_in_its_last_token(tokenizer, tmp_path):
    torch.manual_seed(0)
    names = {
        "id2label": {0: "class 1", 1: "class 2"},
        "label2id": {"class 1": 0, "class 2": 1},
    }
    size = {
        "vocab_size": len(tokenizer),
        "n_positions": 64,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
    }
    config = GPT2Config(**size, pad_token_id=0, **names)
    folder = saved(GPT2ForSequenceClassification(config), tokenizer, tmp_path / "gpt2")
    run = run_classes(
        ClassesOptions(
            folder,
            corpus="synthetic",
            limit=40,
            few=10,
            parts=("directions", "ablation"),
        ),
        tmp_path / "run",
    )
    assert not [text for text in run.manifest["warnings"] if "left out" in text]
    records = run.records
    assert (
        select(records, metric="ablation.output", component="uniform")["value"]
        .lt(1 - 1e-6)
        .all()
    )
    assert set(select(records, metric="class_direction.auc")["stack"]) == {"decoder"}
    auc_0 = select(records, metric="class_direction.auc", layer=0, component=None)[
        "value"
    ].iloc[0]
    assert auc_0 != pytest.approx(
        0.5
    )  # the last token differs from utterance to utterance, as <cls> does not
    assert "accuracy" in set(records["metric"])


def test_a_bert_is_replaced_layer_by_layer_and_explained(tokenizer, tmp_path):
    torch.manual_seed(0)
    names = {
        "id2label": {0: "class 1", 1: "class 2"},
        "label2id": {"class 1": 0, "class 2": 1},
    }
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        **names,
    )
    folder = saved(BertForSequenceClassification(config), tokenizer, tmp_path / "bert")
    run = run_classes(
        ClassesOptions(folder, corpus="synthetic", limit=40, few=10), tmp_path / "run"
    )
    rows = select(run.records, metric="ablation.agreement")
    assert set(rows["component"]) == set(replaced.KINDS) and set(
        rows["layer"].dropna()
    ) == {1, 2}
    assert not run.manifest["warnings"]
    erased = set(
        select(run.records, metric="attribution.comprehensiveness")["component"]
    )
    assert erased == set(explained.OF_DEEP)


def test_explaining_leaves_the_model_as_it_was(learnt):
    model, tokenizer = learnt[0].classifier()
    model.attention_classifier.row_only = "never"
    assert len(
        explained.measure_explanations(
            model, tokenizer, open_labelled("synthetic"), limit=4
        )
    )
    assert model.attention_classifier.row_only == "never"


def test_a_corpus_without_rationales_is_explained_by_erasure_alone(learnt, tmp_path):
    path = tmp_path / "mine.jsonl"
    examples = open_labelled("synthetic").splits["test"][:120]
    path.write_text(
        "\n".join(
            json.dumps({"text": e.text, "label": f"class {e.label + 1}"})
            for e in examples
        )
    )
    look = ClassesOptions(corpus=str(path), split="all", few=20, parts=("attribution",))
    run = run_classes(replace(look, model=str(learnt[0].folder)), tmp_path / "run")
    found = set(run.records["metric"])
    assert "attribution.comprehensiveness" in found and "attribution.auprc" not in found
    assert run.manifest["corpus"]["n_units"] == 120


def test_a_finished_run_is_resumed_as_it_is_and_another_refused(learnt):
    trained, run = learnt
    look = ClassesOptions(str(trained.folder), limit=100, few=20)
    before = run.manifest["started"]
    assert run_classes(look, run.folder, resume=True).manifest["started"] == before
    with pytest.raises(OutputError, match="classes"):
        run_classes(replace(look, few=21), run.folder, resume=True)


def test_bad_input_is_explained(learnt, tmp_path):
    folder = str(learnt[0].folder)
    for model, look, error, expected in (
        ("builtin:minilm", {}, UsageError, "--corpus"),
        (folder, {"split": "tests"}, CorpusError, "did you mean test"),
        (folder, {"corpus": "hatexplane"}, CorpusError, "did you mean hatexplain"),
        (folder, {"parts": ("direction",)}, UsageError, "did you mean directions"),
        (folder, {"at": "second"}, UsageError, "at among first, last, mean, max"),
        (folder, {"limit": 0}, UsageError, "limit of at least 1"),
        (
            "builtin:minilm",
            {"corpus": "synthetic", "max_length": 604},
            UsageError,
            "--max-length of at most 512",
        ),
        ("no/such-model", {"corpus": "synthetic"}, ModelError, "no/such-model"),
    ):
        with pytest.raises(error, match=expected):
            run_classes(ClassesOptions(model, **look), tmp_path / "run")
    learnt[0].classifier()[0].save_pretrained(tmp_path / "model")
    load("builtin:minilm").processor.save_pretrained(tmp_path / "model")
    with pytest.raises(
        ModelError, match="a tokenizer that matches the model's vocabulary"
    ):
        run_classes(
            ClassesOptions(str(tmp_path / "model"), corpus="synthetic"),
            tmp_path / "run",
        )


@pytest.mark.usefixtures("no_page")
def test_the_command_prints_tables(learnt, tmp_path):
    trained, _ = learnt
    given = [
        "classes",
        str(trained.folder),
        "--limit",
        "40",
        "--few",
        "10",
        "-o",
        str(tmp_path / "run"),
        "-q",
    ]
    result = invoke(given)
    assert result.exit_code == 0, result.output
    for text in (
        "AUC",
        "attention replaced",
        "words explained by",
        "accuracy",
        "report: ",
    ):
        assert text in result.output


def test_only_fast_tokenizers_of_text_say_which_word_a_token_is_of():
    def subject(modality="text", **tokenizer):
        known = {"tokenize": None, "is_fast": True}
        return SimpleNamespace(
            name="m", modality=modality, processor=SimpleNamespace(**known | tokenizer)
        )

    whole = subject()
    assert runs_of_classes.require_tokenizer(whole) is whole.processor
    for other in (subject("image"), subject(is_fast=False)):
        with pytest.raises(
            ModelError, match="a text model with a fast tokenizer; got m"
        ):
            runs_of_classes.require_tokenizer(other)


@pytest.mark.parametrize(
    ("of_model", "of_tokenizer", "end", "chosen"),
    [
        (7, 3, 2, 7),  # the head looks for the padding that its configuration names
        (None, 3, 2, 3),
        (None, None, 2, 2),
        (None, None, 5, 1),  # the texts end with it: a head would read the token before
        (None, None, None, 1),
    ],
)
def test_padding_is_what_the_head_takes_for_padding(
    of_model, of_tokenizer, end, chosen
):
    config = SimpleNamespace(pad_token_id=of_model, vocab_size=9)
    tokenizer = SimpleNamespace(pad_token_id=of_tokenizer, eos_token_id=end)
    rows = [{"input_ids": [0, 4, 5]}, {"input_ids": [6, 5]}]
    assert (
        runs_of_classes.choose_pad(tokenizer, config, rows)
        == chosen
        == config.pad_token_id
    )


# ---- what is recorded, by definition ---------------------------------------------------------------------------------


def test_what_is_recorded_of_a_replacement_is_of_its_layers_and_less_what_was_before(
    monkeypatch,
):
    """Accuracy against the labels, agreement with the model itself; of all layers, of each, and of either cosine."""
    labels, own = np.array([0, 1, 0, 0]), np.array([0, 1, 1, 0])
    after = {
        (): own,
        (1, 2): np.array([1, 1, 1, 0]),
        (1,): own,
        (2,): np.array([0, 0, 0, 0]),
    }
    unit, turned = np.eye(4), np.roll(np.eye(4), 1, 0) * 0.2 + np.eye(4) * 0.6

    def outcome(_model, _batches, kind, layers, _readings):
        vectors = unit if not layers else turned if kind == "uniform" else unit
        return replaced.Outcome(
            after[layers],
            vectors,
            {layer: np.tile((layer / 10, layer / 5), (4, 1)) for layer in layers},
        )

    monkeypatch.setattr(replaced, "measure_outcomes", outcome)
    monkeypatch.setattr(replaced, "read_batches", lambda *_: [])
    model = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=2))
    records = replaced.measure_ablations(
        model, SimpleNamespace(encoded=SimpleNamespace(labels=labels))
    )
    for kind in replaced.KINDS:
        of_kind = select(records, component=kind).assign(
            layer=lambda x: x["layer"].fillna(0).astype(int)
        )
        found = of_kind.set_index(["metric", "layer"])["value"].to_dict()
        cls = 0.6 if kind == "uniform" else 1.0
        assert found == pytest.approx(
            {
                **{
                    ("ablation.accuracy", layer): x
                    for layer, x in ((0, -0.25), (1, 0.0), (2, 0.0))
                },
                **{
                    ("ablation.agreement", layer): x
                    for layer, x in ((0, 0.75), (1, 1.0), (2, 0.5))
                },
                **{("ablation.cls", layer): cls for layer in (0, 1, 2)},
                **{("ablation.output", layer): layer / 10 for layer in (1, 2)},
                **{("ablation.rows", layer): layer / 5 for layer in (1, 2)},
            }
        )
    assert set(records["n_units"]) == {4}


def test_how_far_outputs_turn_is_of_cls_and_of_real_rows(classifier):
    """Equal weights: the output is the mean value. Padding has rows too, and they are none of the sentence's."""
    model, plan = classifier
    _, _, turned = replaced.average_outcome(model, plan, "uniform", (1,))
    of_cls, of_rows = [], []
    for _, _, values, weights in one_by_one(model, plan):
        before = weights.double() @ values.double()
        cosine = torch.cosine_similarity(
            before, values.double().mean(0, keepdim=True), dim=-1
        )
        of_cls.append(float(cosine[0]))
        of_rows.append(float(cosine.mean()))
    assert turned[1] == pytest.approx((np.mean(of_cls), np.mean(of_rows)), abs=1e-6)
    assert abs(np.mean(of_cls) - np.mean(of_rows)) > 1e-5


def test_every_batch_and_layer_is_dealt_anew(classifier, monkeypatch):
    model, plan = classifier
    seeds = []
    monkeypatch.setattr(
        replaced,
        "replace_weights",
        lambda weights, *given: seeds.append(given[2]) or weights,
    )
    small = LabelledPlan(plan.encoded, 0, batch_tokens=200)
    replaced.average_outcome(model, small, "permuted", (1, 2))
    assert len(seeds) == len(set(seeds)) == 2 * len(small) > 4


def test_rarity_is_that_of_the_word_in_training_however_it_is_written():
    found = attributions.compute_baselines(
        Example(("The", "cat", "sat"), 0),
        Counter({"the": 8, "cat": 1}),
        np.random.default_rng(0),
    )
    assert (
        found["rare"] == pytest.approx(-np.log([0.9, 0.2, 0.1]))
        and len(set(found["random"])) == 3
    )


class Stop(Exception):
    """What was asked for has been seen."""


@pytest.mark.parametrize(
    ("split", "directed"),
    [
        ("test", "validation"),
        ("validation", "train"),
        ("train", "validation"),
        ("held-out", "train"),
        ("all", "all"),
    ],
)
def test_directions_are_of_utterances_that_are_not_explained_and_rarity_of_training(
    monkeypatch, split, directed
):
    """What explains a decision may not be made of the very utterances it explains."""
    words = {"train": "a", "validation": "b", "test": "c", "held-out": "d", "all": "e"}
    splits = {
        s: tuple(Example((w, f"{w}{i}"), i % 2) for i in range(20))
        for s, w in words.items()
    }
    corpus = SimpleNamespace(labels=("x", "y"), splits=splits)
    seen = {}
    monkeypatch.setattr(explained, "encode", lambda examples, *_: tuple(examples))
    monkeypatch.setattr(explained, "LabelledPlan", lambda examples, *_, **__: examples)

    def class_directions(_model, examples, classes):
        seen.update(
            directions={e.words[0] for e in examples},
            classes=classes,
            examples=examples,
        )
        return {}

    def baselines(_example, frequency, _draw):
        seen.update(frequency=frequency)
        raise Stop

    monkeypatch.setattr(explained, "measure_class_directions", class_directions)
    monkeypatch.setattr(explained, "iter_captured", lambda *_: ())
    monkeypatch.setattr(explained, "compute_baselines", baselines)
    model, tokenizer = torch.nn.Linear(1, 1), SimpleNamespace(pad_token_id=0)
    with pytest.raises(Stop):
        explained.measure_explanations(model, tokenizer, corpus, split=split, limit=4)
    assert seen["directions"] == {words[directed]} and seen["classes"] == 2
    assert not set(seen["examples"]) & set(splits[split][:4]), (
        "the first four are explained"
    )
    assert (
        seen["frequency"]["a"] == 20
        and seen["frequency"]["b"] == seen["frequency"]["c"] == 0
    )


def test_as_many_words_are_highest_as_rationales_have_on_average():
    """Rationales of a half and of a fourth: three eighths of the words, 1.5 of four and 3 of eight."""
    marks = (1.0, 1.0, 0.0, 0.0), (1.0, 0.5, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0)
    examples = tuple(
        Example(tuple("abcdefgh"[: len(m)]), 0, rationale=m) for m in marks
    )
    key = ("attention", 1)
    scores = [
        {key: np.array([4.0, 3.0, 2.0, 1.0])},
        {key: np.array([8.0, 1, 7, 6, 5, 4, 3, 2])},
    ]
    found = explained._compute_plausibility(examples, scores)
    assert found[key, "iou"] == pytest.approx([1.0, 1 / 4])
    assert found[key, "auroc"] == pytest.approx([1.0, 6 / 12])


def test_accuracy_of_a_class_has_the_interval_of_its_own_number_and_the_majority_is_of_labels():
    labels, found = np.array([0] * 6 + [1] * 2), np.array([0] * 3 + [1] * 5)
    records = pooling.make_accuracy_records(found, labels, ("a", "b"))
    accuracies = select(records, metric="accuracy")
    rows = dict(
        zip(
            accuracies["component"].fillna("all"),
            accuracies.to_dict("records"),
            strict=True,
        )
    )
    for name, share, n in (("all", 5 / 8, 8), ("a", 0.5, 6), ("b", 1.0, 2)):
        low, high = map(float, wilson_interval(share, n))
        assert (
            rows[name]["value"],
            rows[name]["low"],
            rows[name]["high"],
        ) == pytest.approx((share, low, high)), name
    assert select(records, metric="majority")["value"].item() == 0.75
