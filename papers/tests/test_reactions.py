"""BERT before and after a fine-tuning by others: numbers against their definitions, and what is judged of them."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from transformers import BertConfig, BertModel

from anisoscope.data.encoding import build_tokenizer
from anisoscope.data.labelled import Example, LabelledCorpus, take_balanced
from anisoscope.metrics.class_direction import auc
from anisoscope.sums.jackknife import jackknife_interval
from anisoscope_papers.beyond import reactions
from anisoscope_papers.study import read_claims


def test_directions_are_those_of_every_representative():
    draw = np.random.default_rng(0)
    cls = draw.normal(size=(40, 5))
    cls /= np.linalg.norm(cls, axis=1, keepdims=True)
    labels = draw.integers(0, 4, 40)
    labels[labels == 3] = 2
    labels[0] = 3  # alone in its class: no representative
    cosine, expected = cls @ cls.T, []
    for i in range(1, 40):
        others = np.arange(40) != i
        same = labels == labels[i]
        medians = np.median(cosine[i][others & same]), np.median(cosine[i][~same])
        expected.append((auc(cosine[i][others], same[others]), *medians))
    assert reactions.measure_directions(cls, labels) == pytest.approx(
        tuple(np.mean(expected, 0)), abs=1e-12
    )


def test_the_similarity_is_equation_3_of_real_tokens():
    states = torch.randn(2, 5, 7)
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    for row, count in ((0, 5), (1, 3)):
        units = torch.nn.functional.normalize(states[row, :count].double(), dim=-1)
        pairs = (units @ units.T)[~torch.eye(count, dtype=torch.bool)]
        found = reactions.average_cosine_of_pairs(states, real)[row]
        torch.testing.assert_close(found, pairs.mean(), atol=1e-12, rtol=0)


def test_shares_of_the_last_third():
    curve = np.array(
        [[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0]]
    )  # six layers: the last third begins after the fourth
    assert reactions.measure_last_third(curve) == pytest.approx([0.6])
    assert reactions.measure_share_to_come(curve) == pytest.approx([0.6])
    for falls in (reactions.measure_last_third, reactions.measure_share_to_come):
        assert np.isnan(falls(-curve)).all()
        # Of one layer, that layer is the last third.
        assert falls(np.array([[0.0, 2.0]])) == pytest.approx([1])


def test_a_replicate_leaves_out_every_reaction_of_its_group():
    """Reactions 0, 32 and 64 are of the first group; cosines to the own class and to others keep their names."""
    draw = np.random.default_rng(3)
    cls = draw.normal(size=(70, 2, 4))
    cls /= np.linalg.norm(cls, axis=2, keepdims=True)
    alike, labels = draw.uniform(size=(70, 2)), draw.integers(0, 3, 70)
    found = reactions.compute_replicates(reactions.Seen(alike, cls), labels)
    assert {name: x.shape for name, x in found.items()} == dict.fromkeys(
        reactions.BOUNDS, (33, 2)
    )
    for number in range(33):
        kept = [i for i in range(70) if number == 0 or i % 32 != number - 1]
        np.testing.assert_allclose(found["intra_sequence"][number], alike[kept].mean(0))
        for layer in (0, 1):
            numbers = [
                found[name][number, layer]
                for name in ("class_auc", "class_cosine.own", "class_cosine.others")
            ]
            assert numbers == pytest.approx(
                reactions.measure_directions(cls[kept, layer], labels[kept])
            )


def test_the_fine_tuned_model_is_compared_with_the_one_before(monkeypatch):
    """Either model has similarities and directions of its own; layer 0 is the input."""
    draw, seen, reports = np.random.default_rng(4), {}, []
    labels, plan = np.arange(64) % 4, reactions.Reactions(utterances=64)
    for name, apart in ((reactions.BEFORE, 0.1), (reactions.AFTER, 0.8)):
        cls = draw.normal(size=(64, 4, 5))
        cls[:, :, :4] += apart * np.arange(4)[:, None] * np.eye(4)[labels][:, None]
        cls /= np.linalg.norm(cls, axis=2, keepdims=True)
        alike = draw.uniform(0.0, 0.2, (64, 4)).cumsum(1) * (1 + apart)
        seen[name] = reactions.Seen(alike, cls)
    monkeypatch.setattr(
        reactions, "run_model", lambda name, given: (seen[name], labels, given)[:2]
    )
    found = reactions.measure(
        plan, SimpleNamespace(progress=lambda *given: reports.append(given))
    )
    assert reports == [("models", 1, 2), ("models", 2, 2)]
    curves = {name: reactions.compute_replicates(x, labels) for name, x in seen.items()}
    for name, metric in product(seen, reactions.BOUNDS):
        rows = found[(found["model"] == name) & (found["metric"] == metric)]
        assert rows["layer"].tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(rows["value"], curves[name][metric][0])
        assert set(rows["site"]) == {"hidden"}
    assert set(found["corpus"]) == {reactions.CORPUS} and set(found["n_units"]) == {64}
    of_claims = found[found["metric"] == "claim"].set_index("component")
    assert set(of_claims["model"]) == {reactions.AFTER}
    expected = reactions.compute_claimed(*curves.values())
    assert set(of_claims.index) == set(expected)
    for name, claim in read_claims("beyond", "reactions").items():
        ends = jackknife_interval(
            expected[name], bounds=claim.bounds or (-np.inf, np.inf)
        )
        row = of_claims.loc[name, ["value", "low", "high"]].astype(float)
        np.testing.assert_allclose(row, [float(end) for end in ends], err_msg=name)


def test_a_model_that_fine_tuning_left_as_it_was_shows_no_convergence():
    draw = np.random.default_rng(1)
    cls = draw.normal(size=(64, 7, 4))
    cls /= np.linalg.norm(cls, axis=2, keepdims=True)
    seen, labels = (
        reactions.Seen(draw.uniform(0.1, 0.3, (64, 7)), cls),
        np.arange(64) % 4,
    )
    same = reactions.compute_replicates(seen, labels)
    found = reactions.compute_claimed(same, same)
    assert (
        not found["tokens converge by fine-tuning"].any()
        and not found["the direction separates"].any()
    )
    assert set(found) == set(read_claims("beyond", "reactions"))


def test_claims_are_on_the_last_layer_and_what_they_compare():
    """Every layer of both models has a number of its own, in one replicate."""

    def curves(alike, auc):
        return {
            reactions.ALIKE: np.array([alike]),
            reactions.DIRECTION: np.array([auc]),
        }

    before = curves([0.1, 0.2, 0.3, 0.4], [0.5, 0.55, 0.6, 0.65])
    after = curves([0.1, 0.25, 0.4, 0.8], [0.5, 0.6, 0.7, 0.95])
    found = {
        name: float(value[0])
        for name, value in reactions.compute_claimed(before, after).items()
    }
    assert found == pytest.approx(
        {
            "tokens converge by fine-tuning": 0.8 - 0.4,
            "grows with depth": 0.8 - 0.1,
            "most in the last layers": (0.8 - 0.4) / (0.8 - 0.1),
            "the direction separates": 0.95 - 0.65,
            "not before fine-tuning": 0.65 - 0.5,
            "the direction comes last": 1 - (0.7 - 0.6) / (0.95 - 0.65),
        }
    )


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ((0.2, 0.15, 0.25), "holds"),
        ((0.06, 0.0, 0.12), "undecided"),
        ((-0.2, -0.25, -0.15), "contrary"),
    ],
)
def test_a_claim_is_judged_by_the_interval_over_reactions(ends, word):
    rows = [
        {"component": name, "metric": "claim", "n_units": 864}
        | dict(zip(("value", "low", "high"), ends, strict=True))
        for name in read_claims("beyond", "reactions")
    ]
    verdicts = reactions.STUDY.judge(pd.DataFrame(rows))
    (verdict,) = (v for v in verdicts if v.claim == "tokens converge by fine-tuning")
    assert verdict.word == word and verdict.n == 864


def test_p_of_a_claim_has_the_freedom_of_its_groups_the_floor_and_no_effect():
    """864 reactions are 32 groups, of which one is left out at a time."""
    claims = read_claims("beyond", "reactions")
    value, low, high = 0.04, 0.01, 0.07
    ends = {"value": [value], "low": [low], "high": [high]}

    def test_of(name, n):
        return reactions.make_claim_test(
            claims[name], pd.DataFrame(ends | {"n_units": [n]})
        )

    def sided(threshold, freedom):
        end = low if value > threshold else high
        return stats.t.sf(
            (value - threshold) / abs(value - end) * stats.t.ppf(0.975, freedom),
            freedom,
        )

    for n, freedom in ((864, 31), (20, 19)):
        found = test_of("tokens converge by fine-tuning", n)
        assert claims["tokens converge by fine-tuning"].floor == 0.05
        assert (found.up, found.down) == pytest.approx(
            (sided(0.05, freedom), 1 - sided(0.05, freedom))
        )
        assert found.against == pytest.approx(1 - sided(0.0, freedom)), (
            "contrary is below no effect, without the floor"
        )
        words = "sim of the last layer, after minus before (claim: > 0 by 0.05):"
        assert (found.statistic, found.subject, found.n) == (words, "BERT (rxnfp)", n)
        late = test_of("most in the last layers", n)
        assert late.statistic.endswith("(claim: > 0.5):") and late.value == value
        within = test_of("not before fine-tuning", n)
        assert within.statistic.endswith("(claim: -0.1 to 0.1):")
        assert within.inside == (-0.1, 0.1)
        beyond = min(1 - sided(-0.1, freedom), sided(0.1, freedom))
        assert (within.up, within.down) == pytest.approx(
            (1 - sided(0.1, freedom), beyond)
        )


def test_intervals_of_curves_stay_between_the_ends_of_their_metric(monkeypatch):
    draw = np.random.default_rng(1)
    cls = np.ones((64, 3, 4)) + 0.02 * draw.normal(size=(64, 3, 4))
    cls /= np.linalg.norm(cls, axis=2, keepdims=True)
    seen = reactions.Seen(np.where(draw.random((64, 3)) < 0.02, 0.2, 0.999), cls)
    monkeypatch.setattr(
        reactions, "run_model", lambda _name, _plan: (seen, np.arange(64) % 4)
    )
    found = reactions.measure(
        reactions.Reactions(), SimpleNamespace(progress=lambda *_: None)
    )
    curves = found[found["metric"] != "claim"]
    assert set(curves["metric"]) == set(reactions.BOUNDS)
    for metric, (least, most) in reactions.BOUNDS.items():
        ends = curves[curves["metric"] == metric]
        assert ends["low"].min() >= least and ends["high"].max() <= most
    theta = reactions.compute_replicates(seen, np.arange(64) % 4)[reactions.ALIKE]
    bounded = jackknife_interval(theta, bounds=(-1, 1))
    rows = curves[
        (curves["metric"] == reactions.ALIKE) & (curves["model"] == reactions.BEFORE)
    ]
    np.testing.assert_allclose(
        rows[["low", "high"]].astype(float), np.stack([bounded.low, bounded.high], 1)
    )
    assert set(found["n_units"]) == {64}


def test_reactions_are_cut_taken_of_every_class_and_put_back_in_order(monkeypatch):
    """What a small model says of each reaction alone, in the order of its label."""
    words = [f"w{i}" for i in range(12)]
    lengths = [3, 9, 5, 12, 4, 7, 10, 6]
    examples = [Example(tuple(words[:n]), i % 2) for i, n in enumerate(lengths)]
    corpus = LabelledCorpus(
        "reactions",
        ("a", "b"),
        {"train": tuple(examples[:0:-1]), "all": tuple(examples)},
    )
    tokenizer = build_tokenizer(corpus, max_length=40)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    torch.manual_seed(0)
    # As it may come: with dropout, which would change every number.
    model = BertModel(config).train()
    asked = []
    monkeypatch.setattr(
        reactions,
        "open_labelled",
        lambda name, **how: asked.append((name, how)) or corpus,
    )
    monkeypatch.setattr(
        reactions,
        "load",
        lambda _name: SimpleNamespace(model=model, processor=tokenizer),
    )
    seen, labels = reactions.run_model(
        "x", reactions.Reactions(utterances=6, longest=8)
    )
    assert asked == [
        (reactions.CORPUS, {"columns": reactions.COLUMNS, "for_training": False})
    ]
    assert model.training
    model.eval()
    chosen = take_balanced(tuple(examples), 6, 2)
    assert labels.tolist() == [example.label for example in chosen] and len(chosen) == 6
    for number, example in enumerate(chosen):
        given = tokenizer(
            " ".join(example.words), truncation=True, max_length=8, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**given, output_hidden_states=True).hidden_states
        real = torch.ones(given["input_ids"].shape, dtype=torch.bool)
        expected = [float(reactions.average_cosine_of_pairs(x, real)) for x in states]
        np.testing.assert_allclose(seen.alike[number], expected, atol=1e-5)
        first = torch.nn.functional.normalize(
            torch.stack([x[0, 0] for x in states]).double(), dim=-1
        )
        np.testing.assert_allclose(seen.cls[number], first, atol=1e-5)
