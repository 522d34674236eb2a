"""Class directions against their definitions pair by pair; similarities and entropies of a fixed model in float64."""

import copy
import math
import signal
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from transformers import BertConfig, BertModel

import anisoscope
from anisoscope.batch import Batch
from anisoscope.classes.cls_entropy import measure_entropies
from anisoscope.classes.pooling import make_separability_records, pool_vectors
from anisoscope.data.arrays import VectorPlan, wrap_vectors
from anisoscope.data.encoding import LabelledPlan, build_tokenizer, encode
from anisoscope.data.opening import open_labelled
from anisoscope.errors import AnisoscopeError, MeasureError, UsageError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.loop import Arrays, Interrupted, run_pass
from anisoscope.measure.settings import Settings
from anisoscope.metrics import class_direction as direction
from anisoscope.store import select
from anisoscope.sums.jackknife import jackknife_interval
from anisoscope_papers.networks.attention_classifier import (
    AttentionClassifier,
    AttentionClassifierConfig,
)

CLASSES = 3


def cloud(n=41, layers=2, d=6, apart=1.0, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    labels[:CLASSES] = range(CLASSES)
    centres = rng.standard_normal((CLASSES, layers, d)) * apart
    return centres[labels] + rng.standard_normal((n, layers, d)), labels


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


BY_NAME = Settings(metrics=("class_direction",), tokens=("all",), sample=0)


def of_vectors(x, labels, **more):
    """Records of the matrix alone, of vectors [vector, dim]."""
    vectors = wrap_vectors(x, labels=[f"c{label}" for label in labels], **more)
    return run_pass(Arrays(), VectorPlan(vectors), BY_NAME).records()


def by_pair(records):
    return dict(
        zip(
            zip(records["layer"], records["component"], strict=True),
            records["value"],
            strict=True,
        )
    )


def test_the_matrix_is_the_mean_over_pairs():
    x, labels = cloud()
    for layer in range(2):
        found = of_vectors(x[:, layer], labels)
        value = found.set_index("component")["value"]
        for a in range(CLASSES):
            for b in range(a, CLASSES):
                one, two = np.flatnonzero(labels == a), np.flatnonzero(labels == b)
                expected = np.mean(
                    [
                        cosine(x[i, layer], x[j, layer])
                        for i in one
                        for j in two
                        if i != j
                    ]
                )
                (name,) = {f"c{a} × c{b}", f"c{b} × c{a}"} & set(value.index)
                assert value[name] == pytest.approx(expected, abs=1e-12)
        assert (found["low"] < found["value"]).all() and (
            found["value"] < found["high"]
        ).all()


def test_intervals_leave_out_groups_of_units():
    """The definition of the matrix on the vectors of all groups but one, for every group of units mod 32."""
    x, labels = cloud(n=120, layers=1)
    labels, group = (
        np.sort(labels),
        np.arange(120) // 2 % 32,
    )  # classes named in order of appearance
    found = of_vectors(x[:, 0], labels, units=np.arange(120) // 2)
    kept = [np.ones(120, bool), *(group != g for g in range(32))]
    values = [
        list(
            direction.reference(
                [x[k & (labels == c), 0] for c in range(CLASSES)]
            ).values()
        )
        for k in kept
    ]
    for column, expected in zip(
        ("value", "low", "high"),
        jackknife_interval(np.array(values), bounds=(-1, 1)),
        strict=True,
    ):
        np.testing.assert_allclose(found[column], expected, atol=1e-9)


def test_cosines_to_classes_leave_the_utterance_out():
    x, labels = cloud(layers=1)
    found = direction.cosine_to_classes(x[:, 0], labels, CLASSES)
    u = direction.normalise(x[:, 0])
    for i in range(len(u)):
        for c in range(CLASSES):
            others = [j for j in range(len(u)) if labels[j] == c and j != i]
            assert found[i, c] == pytest.approx(
                cosine(u[i], u[others].mean(0)), abs=1e-10
            )
    assert direction.cosine_to_one(x[:, 0], 4)[7] == pytest.approx(
        cosine(x[7, 0], x[4, 0])
    )


def test_auc_is_the_share_of_pairs():
    rng = np.random.default_rng(1)
    values, positive = rng.integers(0, 5, 40).astype(float), rng.random(40) < 0.4
    pairs = [
        (a > b) + 0.5 * (a == b) for a in values[positive] for b in values[~positive]
    ]
    assert direction.auc(values, positive) == pytest.approx(np.mean(pairs))
    assert math.isnan(direction.auc(values, np.zeros(40, bool)))


def test_separability_tells_separate_classes_from_mixed_ones():
    x, labels = cloud(n=200, apart=8.0)
    sure = direction.separability(x[:, 0], labels, CLASSES)
    assert sure["auc"].value > 0.99 and sure["nearest"].value > 0.98
    mixed = direction.separability(
        *(
            cloud(n=400, apart=0.0)[i][:, 0] if i == 0 else cloud(n=400, apart=0.0)[1]
            for i in (0, 1)
        ),
        CLASSES,
    )
    assert mixed["auc"].low < 0.5 < mixed["auc"].high
    assert mixed["nearest"].low < 1 / 3 < mixed["nearest"].high
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((6, 6)))[0]
    again = direction.separability(3 * x[:, 0] @ turn, labels, CLASSES)
    assert again["auc"].value == pytest.approx(sure["auc"].value)


def test_classes_that_never_touch_have_the_interval_of_so_many_units():
    """Wilson's of the units where there are some, else of the utterances: two of one unit are not two witnesses."""
    x, labels = np.repeat(np.eye(6)[:2], 40, 0), np.repeat([0, 1], 40)
    for units, counted in ((None, 80), (np.arange(80) // 4, 20)):
        found = direction.separability(x, labels, 2, groups=8, units=units)
        expected = jackknife_interval(np.ones(9), bounds=(0.0, 1.0), counted=counted)
        assert (
            found["nearest"].low == pytest.approx(float(expected.low))
            and float(expected.low) < 0.96
        )


def test_dimensions_that_classes_take():
    """A simplex takes C − 1, a line 1; what does not differ takes none; the definition, pair by pair."""
    labels, draw = np.arange(600) % 4, np.random.default_rng(3)
    noise = 0.05 * draw.standard_normal((600, 9))
    line = np.array([1.0, 2, 3, 4])[labels, None] * np.eye(9)[0] + 10 * np.eye(9)[1]
    assert direction.dimensions(np.eye(9)[labels] + noise, labels, 4) == pytest.approx(
        3, abs=0.01
    )
    assert direction.dimensions(line + noise, labels, 4) == pytest.approx(1, abs=0.01)
    x = np.eye(9)[labels] * np.array([1, 2, 1, 3])[labels, None] + 8 * noise
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    matrix = np.zeros((4, 4))
    for a, b in np.ndindex(4, 4):
        cosines = u[labels == a] @ u[labels == b].T
        matrix[a, b] = (
            cosines[~np.eye(150, dtype=bool)].mean() if a == b else cosines.mean()
        )
    centre = np.eye(4) - 1 / 4
    eigenvalues = np.linalg.eigvalsh(centre @ matrix @ centre)
    expected = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    assert direction.dimensions(x, labels, 4) == pytest.approx(expected)
    found = direction.separability(3 * x, labels, 4)["dimensions"]
    assert (
        found.value == pytest.approx(expected)
        and 1 <= found.low < expected < found.high <= 3
    )
    few = np.append(labels[:120], 4)
    assert direction.dimensions(x[:121], few, 7) == pytest.approx(
        direction.dimensions(x[:120], few[:-1], 4)
    ), "classes without a pair of members tell nothing"
    same = np.array(
        [
            direction.dimensions(draw.standard_normal((60, 9)), labels[:60], 4)
            for _ in range(40)
        ]
    )
    assert 8 < np.isnan(same).sum() < 32, "chance differences: as often none as some"


def test_a_class_of_one_has_no_direction_without_its_utterance():
    x, labels = np.eye(3), np.array([0, 0, 1])
    found = direction.cosine_to_classes(x, labels, 2)
    assert np.isnan(found[2, 1]) and found[0, 1] == 0
    assert by_pair(of_vectors(x, labels)) == {(0, "c0 × c0"): 0, (0, "c0 × c1"): 0}


def test_a_class_of_one_has_no_auc_and_moves_no_mean():
    """It had an AUC of 1, and random vectors of two classes and one more were told apart (.64 to .71)."""
    found = []
    for seed in range(20):
        x, labels = (
            np.random.default_rng(seed).standard_normal((81, 12)),
            np.arange(81) % 2,
        )
        labels[-1] = 2
        three = direction.separability(x, labels, 3)
        two = direction.separability(x[:-1], labels[:-1], 2)
        assert np.isnan(three["auc.2"]).all()
        assert three["auc"].value == pytest.approx(
            (three["auc.0"].value + three["auc.1"].value) / 2
        )
        assert (
            three["nearest"].value <= two["nearest"].value
        )  # the third direction may be nearer
        found.append(three["auc"].value)
    assert abs(np.mean(found) - 0.5) < 0.03
    x, labels = np.eye(4)[[0, 0, 1, 1, 2]], np.array([0, 0, 1, 1, 2])
    found = direction.separability(x, labels, 4)  # of the fourth class there is nobody
    assert [found[name].value for name in ("auc", "nearest", "auc.0", "auc.1")] == [
        1,
        1,
        1,
        1,
    ]
    assert np.isnan(found["auc.2"].value) and np.isnan(found["auc.3"].value)
    assert found["auc"].low < 1
    none = direction.separability(np.eye(3), np.arange(3), 3)
    assert all(np.isnan(estimate).all() for estimate in none.values())


@pytest.mark.parametrize("kind", ["equal", "scaled", "rounding", "zero", "one class"])
def test_vectors_that_are_equal_tell_no_classes(kind):
    """Rounding noise made an AUC of .875 of them: layer 0 of a model that is read at [CLS]."""
    draw = np.random.default_rng(4)
    labels = np.arange(60) % 3
    x = np.tile(draw.standard_normal(24), (60, 1))
    if kind == "scaled":
        x *= draw.uniform(0.1, 9, (60, 1))
    elif kind == "rounding":
        x = (
            (x.astype(np.float32) * (1 + 1e-7 * draw.standard_normal(x.shape)))
            .astype(np.float32)
            .astype(float)
        )
        assert len(np.unique(x, axis=0)) > 50
    elif kind == "zero":
        x *= 0
    elif kind == "one class":
        x, labels = draw.standard_normal((60, 24)), 0 * labels
    found = direction.separability(x, labels, 3)
    undefined = [name for name, estimate in found.items() if np.isnan(estimate).all()]
    assert set(undefined) == set(found) - (
        {"nearest"} if kind == "one class" else set()
    )
    x[:, 0] += 1e-4 * np.linalg.norm(x[0]) * labels
    if kind in ("equal", "rounding"):  # a small difference is one all the same
        assert direction.separability(x, labels, 3)["auc"].low > 0.9


def test_every_group_is_left_out_in_turn():
    """The last one too; and equal vectors have as many replicates as others, none of them defined."""
    x, labels = cloud(n=60, layers=1)
    x, units = x[:, 0], np.arange(60) // 2
    found = direction.separability_replicates(x, labels, CLASSES, 5, units)
    for replicate, left_out in enumerate([None, 0, 1, 2, 3, 4]):
        kept = np.ones(60, bool) if left_out is None else units % 5 != left_out
        cosine = direction.cosine_to_classes(x[kept], labels[kept], CLASSES)
        each = [direction.auc(cosine[:, c], labels[kept] == c) for c in range(CLASSES)]
        np.testing.assert_allclose(found[replicate, 3:], each, atol=1e-12)
    assert len(found) == 6
    equal = direction.separability_replicates(
        np.ones((60, 4)), labels, CLASSES, 5, units
    )
    assert equal.shape == found.shape and np.isnan(equal).all()


def test_layer_0_of_cls_has_no_auc(fixed):
    """Nothing but [CLS] itself is there: the same vector in every utterance."""
    _, encoded, plan = fixed
    torch.manual_seed(0)
    vocabulary = 1 + max(max(row["input_ids"]) for row in encoded.rows)
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    model = BertModel(BertConfig(vocab_size=vocabulary, **shape)).eval()
    states = pool_vectors(model, plan)
    records = make_separability_records(
        states, np.array(encoded.labels), ("a", "b", "c")
    )
    defined = (
        select(records, metric="class_direction.auc")
        .groupby("layer")["value"]
        .apply(lambda x: x.notna().all())
    )
    assert not defined[0] and defined[1:].all()


def test_a_zero_vector_is_alike_to_no_class_and_changes_no_other():
    x, labels = (
        np.array([[0.0, 0], [1, 0], [1, 1], [0, 1], [0, 2]]),
        np.array([0, 0, 0, 1, 1]),
    )
    found = direction.cosine_to_classes(x, labels, 2)
    assert np.array_equal(found[0], [0, 0])
    assert found[1:] == pytest.approx(direction.cosine_to_classes(x[1:], labels[1:], 2))


@pytest.fixture(scope="module")
def fixed():
    """A fixed model in float32 on 100 utterances of a corpus."""
    corpus = open_labelled("synthetic:3", limit=100)
    tokenizer = build_tokenizer(corpus, max_length=64)
    encoded = encode(corpus.splits["test"][:100], tokenizer, 64)
    torch.manual_seed(0)
    config = AttentionClassifierConfig(
        vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=2, num_labels=3
    )
    return (
        AttentionClassifier(config).eval(),
        encoded,
        LabelledPlan(encoded, 0, batch_tokens=300),
    )


def slowly(model, encoded):
    """Each utterance alone, in float64: keys, values, states and attention of every layer."""
    model = copy.deepcopy(model).double()
    encoder = model.attention_classifier
    with torch.no_grad():
        for row in encoded.rows:
            x = encoder.embeddings(torch.tensor([row["input_ids"]]))
            x = x + encoder._positions(x)
            layers = []
            for block in encoder.blocks:
                q, k, v = block.attention.in_proj(x)[0].chunk(3, -1)
                layers.append((x[0], k, v, torch.softmax(q @ k.T * 24**-0.5, -1)))
                x = block(x)
            yield layers, x[0]


def similarity(m):
    """Eq. 3 term by term."""
    n = len(m)
    return sum(cosine(m[i], m[j]) for i in range(n) for j in range(n) if i != j) / (
        n * (n - 1)
    )


def entropy(p):
    return -sum(float(a) * math.log(a) for a in p if a > 0)


@pytest.mark.parametrize("policy", ["all", "content"])
def test_similarities_and_norms_equal_a_slow_evaluation(fixed, policy):
    model, encoded, plan = fixed
    records = run_pass(
        model,
        plan,
        Settings(metrics=("intra_sequence", "norms"), tokens=("all", "content")),
    ).records()
    first = 0 if policy == "all" else 1
    for layer in (1, 2):
        for site, part in (("key.raw", 1), ("value", 2)):
            rows = [
                layers[layer - 1][part][first:].numpy()
                for layers, _ in slowly(model, encoded)
            ]
            where = {"layer": layer, "site": site, "token_policy": policy}
            (found,) = select(records, metric="intra_sequence", **where)["value"]
            assert found == pytest.approx(
                np.mean([similarity(m) for m in rows]), abs=1e-6
            )
            (norm,) = select(records, metric="norms.mean", **where)["value"]
            assert norm == pytest.approx(
                np.mean([np.linalg.norm(x) for m in rows for x in m]), rel=1e-6
            )
    (last,) = select(
        records, metric="intra_sequence", layer=2, site="hidden", token_policy=policy
    )["value"]
    assert last == pytest.approx(
        np.mean([similarity(x[first:].numpy()) for _, x in slowly(model, encoded)]),
        abs=1e-6,
    )


def test_entropies_equal_a_slow_evaluation(fixed):
    model, encoded, plan = fixed
    found = measure_entropies(model, plan, (1,))
    for i, (layers, _) in enumerate(slowly(model, encoded)):
        weights, n = layers[0][3], len(layers[0][0])
        h = entropy(weights[0].tolist())
        second = torch.softmax(weights.sum(0)[1:], -1)
        assert float(found["row"][i]) == pytest.approx(h / math.log(n), abs=1e-6)
        assert float(found["reported"][i]) == pytest.approx(
            h / math.log(n - 1), abs=1e-6
        )
        assert float(found["columns"][i]) == pytest.approx(
            entropy(second.tolist()) / math.log(n - 1), abs=1e-6
        )


def test_states_of_utterances_come_in_order_of_the_utterances(fixed):
    model, encoded, plan = fixed
    found = pool_vectors(model.train(), plan)
    assert model.training and found.shape == (100, 3, 24)
    for i, (layers, last) in enumerate(slowly(model.eval(), encoded)):
        expected = torch.stack([layers[0][0][0], layers[1][0][0], last[0]]).numpy()
        np.testing.assert_allclose(found[i], expected, atol=2e-5)


# ---- the road of every metric ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact(fixed):
    """The fixed model in float64, and its batches."""
    model, _, plan = fixed
    return copy.deepcopy(model).double(), plan


@pytest.fixture(scope="module")
def whole(exact):
    return run_pass(*exact, BY_NAME).records()


def check_same(ours, theirs):
    keys = ["layer", "site", "metric", "component", "n_vectors", "n_units"]
    assert ours[keys].equals(theirs[keys])
    for column in ("value", "low", "high"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=0, atol=1e-9)


@pytest.mark.parametrize("at", ["first", "last", "mean"])
def test_asked_for_by_name_it_is_its_definition_on_pooled_states(exact, fixed, at):
    """Each utterance alone; by name it was refused: only `anisoscope classes` had it, by a road of its own."""
    model, plan = exact
    pool = {
        "first": lambda x: x[0],
        "last": lambda x: x[-1],
        "mean": lambda x: x.mean(0),
    }[at]
    vectors = [
        [pool(x).numpy() for x in (*(of[0] for of in layers), last)]
        for layers, last in slowly(*fixed[:2])
    ]
    labels, states = np.array(plan.encoded.labels), np.array(vectors)
    records = run_pass(
        model, plan, Settings(metrics=("class_direction",), at=at)
    ).records()
    assert set(records["metric"]) == {"class_direction"} and set(records["site"]) == {
        "hidden"
    }
    found, names = (
        by_pair(records),
        ["0 × 0", "0 × 1", "0 × 2", "1 × 1", "1 × 2", "2 × 2"],
    )
    for layer in range(3):
        expected = direction.reference(
            [states[labels == c, layer] for c in range(CLASSES)]
        )
        assert [found[layer, name] for name in names] == pytest.approx(
            list(expected.values()), abs=1e-9
        )
    assert set(records["n_vectors"]) == set(records["n_units"]) == {100}


def test_merged_shards_are_the_whole(exact, whole):
    model, plan = exact
    parts = [
        run_pass(model, plan, BY_NAME, only=range(i, len(plan), 3)) for i in range(3)
    ]
    assert len(plan) > 6
    check_same(parts[2].merge(parts[0]).merge(parts[1]).records(), whole)
    nothing = run_pass(model, plan, BY_NAME, only=())
    check_same(nothing.merge(parts[2].merge(parts[0]).merge(parts[1])).records(), whole)


def test_classes_of_other_names_are_not_merged():
    one, two = (
        Measurement(BY_NAME, classes=names) for names in (("a", "b"), ("b", "a"))
    )
    with pytest.raises(MeasureError, match="measure both with the same classes"):
        one.merge(two)


def test_interrupted_and_resumed_is_the_whole(exact, whole, tmp_path):
    """The names of the classes are part of the state too."""
    calls = []

    def progress(done, _total):
        calls.append(done)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)

    state = tmp_path / "state"
    with pytest.raises(Interrupted):
        run_pass(*exact, BY_NAME, state=state, progress=progress)
    assert Measurement.restore(state, BY_NAME).classes == ("0", "1", "2")
    check_same(run_pass(*exact, BY_NAME, state=state, resume=True).records(), whole)


def test_beside_other_metrics_it_is_the_same(exact, whole):
    together = run_pass(
        *exact, Settings(metrics=("class_direction", "mean_cosine"), tokens=("all",))
    )
    check_same(
        select(together.records(), metric="class_direction").reset_index(drop=True),
        whole,
    )


def test_labels_in_dicts_and_in_batches(exact, whole):
    """Of a model that takes labels too; a label below 0 is none."""
    model, plan = exact
    dicts = [
        batch.inputs | {"labels": batch.label, "unit": batch.unit} for batch in plan
    ]
    check_same(tiny.measure(model, dicts, ["class_direction"], tokens=("all",)), whole)
    check_same(
        tiny.measure(model, list(plan), ["class_direction"], tokens=("all",)), whole
    )
    check_same(tiny.measure(model, plan, ["class_direction"], tokens=("all",)), whole)
    some = [
        replace(batch, label=torch.where(batch.unit < 50, batch.label, -1))
        for batch in plan
    ]
    kept = tiny.measure(model, some, ["class_direction"])
    assert set(kept["n_vectors"]) == {50}


@pytest.mark.parametrize(
    "label, says",
    [
        (None, "batches without labels"),
        (torch.tensor([0, 1, 3]), "labels below 3"),
        (torch.tensor([0]), "labels of 3"),
    ],
)
def test_labels_that_cannot_be_are_refused(label, says):
    with pytest.raises(UsageError, match=says):
        batch = Batch(
            {"input_ids": torch.ones(3, 4).long()}, torch.arange(3), label=label
        )
        Measurement(BY_NAME, classes=("a", "b", "c")).begin(batch, torch.device("cpu"))


def test_pooling_is_a_keyword_and_typing_errors_are_told(exact):
    model, plan = exact
    records = anisoscope.measure(
        model, plan, metrics=["class_direction"], at="mean"
    ).records
    expected = run_pass(
        model, plan, Settings(metrics=("class_direction",), at="mean")
    ).records()
    check_same(records, expected)
    with pytest.raises(UsageError, match="did you mean mean"):
        Settings(at="men")


def test_without_labels_it_is_refused_and_says_where_it_is():
    for given in (
        {"inputs": ["a text", "another one"]},
        {"inputs": [{"input_ids": torch.ones(2, 4).long()}]},
    ):
        with pytest.raises(AnisoscopeError, match="use anisoscope classes") as error:
            anisoscope.measure("builtin:minilm", metrics=["class_direction"], **given)
        assert "batches without labels" in str(error.value)
    with pytest.raises(UsageError, match="give labels of two classes"):
        anisoscope.measure(np.eye(4), metrics=["class_direction"])


def test_vectors_that_are_no_direction_are_left_out():
    x, labels = cloud(layers=1)
    x = np.concatenate(
        [x[:, 0], np.zeros((1, 6)), np.full((1, 6), np.nan), np.full((1, 6), np.inf)]
    )
    found, clean = of_vectors(x, [*labels, 0, 1, 2]), of_vectors(x[:-3], labels)
    assert by_pair(found) == pytest.approx(by_pair(clean), abs=1e-12) and set(
        found["n_vectors"]
    ) == {41}
