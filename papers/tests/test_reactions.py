"""BERT before and after a fine-tuning by others: numbers against their definitions, and what is judged of them."""

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.metrics.class_direction import auc
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
    assert reactions.measure_directions(cls, labels) == pytest.approx(tuple(np.mean(expected, 0)), abs=1e-12)


def test_the_similarity_is_equation_3_of_real_tokens():
    states = torch.randn(2, 5, 7)
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    for row, count in ((0, 5), (1, 3)):
        units = torch.nn.functional.normalize(states[row, :count].double(), dim=-1)
        pairs = (units @ units.T)[~torch.eye(count, dtype=torch.bool)]
        found = reactions.average_cosine_of_pairs(states, real)[row]
        torch.testing.assert_close(found, pairs.mean(), atol=1e-12, rtol=0)


def test_shares_of_the_last_third():
    curve = np.array([[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0]])  # six layers: the last third begins after the fourth
    assert reactions.measure_last_third(curve) == pytest.approx([0.6])
    assert reactions.measure_share_to_come(curve) == pytest.approx([0.6])
    assert np.isnan(reactions.measure_last_third(curve[:, ::-1])).all()


def test_a_model_that_fine_tuning_left_as_it_was_shows_no_convergence():
    draw = np.random.default_rng(1)
    cls = draw.normal(size=(64, 7, 4))
    cls /= np.linalg.norm(cls, axis=2, keepdims=True)
    seen, labels = reactions.Seen(draw.uniform(0.1, 0.3, (64, 7)), cls), np.arange(64) % 4
    same = reactions.compute_replicates(seen, labels)
    found = reactions.compute_claimed(same, same)
    assert not found["tokens converge by fine-tuning"].any() and not found["the direction separates"].any()
    assert set(found) == set(read_claims("beyond", "reactions"))


def test_claims_are_on_the_last_layer_and_what_they_compare():
    """Every layer of both models has a number of its own, in one replicate."""

    def curves(alike, auc):
        return {reactions.ALIKE: np.array([alike]), reactions.DIRECTION: np.array([auc])}

    before = curves([0.1, 0.2, 0.3, 0.4], [0.5, 0.55, 0.6, 0.65])
    after = curves([0.1, 0.25, 0.4, 0.8], [0.5, 0.6, 0.7, 0.95])
    found = {name: float(value[0]) for name, value in reactions.compute_claimed(before, after).items()}
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
    [((0.2, 0.15, 0.25), "holds"), ((0.06, 0.0, 0.12), "undecided"), ((-0.2, -0.25, -0.15), "contrary")],
)
def test_a_claim_is_judged_by_the_interval_over_reactions(ends, word):
    rows = [
        {"component": name, "metric": "claim", "n_units": 864} | dict(zip(("value", "low", "high"), ends, strict=True))
        for name in read_claims("beyond", "reactions")
    ]
    verdicts = reactions.STUDY.judge(pd.DataFrame(rows))
    (verdict,) = (v for v in verdicts if v.claim == "tokens converge by fine-tuning")
    assert verdict.word == word and verdict.n == 864
