"""Attention sinks in small models: measured as defined, and claims that fail where they are false."""

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import Plan
from transformers import GPTNeoXForCausalLM

from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.modes import evaluation_mode
from anisoscope.store import as_records
from anisoscope_papers.beyond.trained import SKILL
from anisoscope_papers.gu2025 import sinks, small_models
from anisoscope_papers.study import read_claims
from anisoscope_papers.training.recipe import ModelSize

SIZE = ModelSize(
    layers=2, width=16, heads=2, vocabulary=50, window=16, batch=2, rate=1e-3, steps=2
)
TEXT = torch.randint(50, (3, 16), generator=torch.Generator().manual_seed(1))


def sharp(arm: str) -> GPTNeoXForCausalLM:
    """A model whose rows of attention are not all alike."""
    model = small_models.build_untrained(arm, SIZE, 50, seed=0)
    with torch.no_grad():
        for layer in model.gpt_neox.layers:
            layer.attention.query_key_value.weight.mul_(40)
            if arm == small_models.KEY_BIAS:
                layer.attention.key_bias.normal_(
                    generator=torch.Generator().manual_seed(2)
                )
    return model.eval()


def measured(model: GPTNeoXForCausalLM) -> pd.Series:
    rows = pd.DataFrame(small_models.measure_sinks_of_heads(model, [TEXT]))
    return rows.set_index(["metric", "layer", "head"])["value"]


@torch.no_grad()
def test_shares_of_the_first_key_are_those_of_eager_attention() -> None:
    model = sharp("base")
    model.set_attn_implementation("eager")
    every = model(TEXT, output_attentions=True).attentions
    found = measured(model)
    for layer, weights in enumerate(every, start=1):
        first = weights[..., 0].mean(-1)  # [text, head]
        for head in range(2):
            assert found["sinks.first", layer, head] == pytest.approx(
                float(first[:, head].mean()), abs=1e-6
            )
            rate = float((first[:, head] > small_models.EPSILON).float().mean())
            assert found["sinks.first_rate", layer, head] == pytest.approx(rate)


def test_it_is_what_the_tool_measures_of_a_softmax() -> None:
    """`rename_records` gives the tool's records of sinks the study's names; both ways give the same numbers."""
    model = sharp("base")
    plan = Plan(TEXT.tolist(), window=TEXT.shape[1])
    with evaluation_mode(model):
        rows = run_pass(
            model, plan, Settings(metrics=("sinks",), tokens=("all",), sample=0)
        ).records()
    theirs = sinks.rename_records(rows, 0, 0)
    ours = measured(model)
    assert len(theirs) == 2 * 4
    for row in theirs.to_dict("records"):
        assert ours[row["metric"], row["layer"], row["head"]] == pytest.approx(
            row["value"], abs=1e-6
        )


@torch.no_grad()
def test_norms_of_the_first_token_are_over_the_mean_of_the_others() -> None:
    """Of values and keys as the projection gives them: a rotation of the keys changes no norm."""
    model = sharp("base")
    projected: list[torch.Tensor] = []
    for layer in model.gpt_neox.layers:
        layer.attention.query_key_value.register_forward_hook(
            lambda _module, _inputs, output: projected.append(output)
        )
    model(TEXT)
    found = measured(model)
    for layer, of_layer in enumerate(projected[:2], start=1):
        # [text, token, head, dim of query, key and value]
        _, key, value = of_layer.view(*TEXT.shape, 2, -1).chunk(3, -1)
        for name, vectors in (("key_norm", key), ("value_norm", value)):
            norms = vectors.norm(dim=-1)
            over_others = (norms[:, 0] / norms[:, 1:].mean(1)).mean(0).tolist()
            for head in range(2):
                assert found[f"sinks.{name}", layer, head] == pytest.approx(
                    over_others[head], rel=1e-5
                )


@torch.no_grad()
def test_a_key_bias_takes_its_share_of_every_row_and_gives_nothing() -> None:
    model = sharp("key-bias")
    scores = torch.zeros(1, 2, 3, 3).masked_fill(
        torch.ones(3, 3).triu(1).bool(), -torch.inf
    )
    weights = small_models.compute_biased_weights(scores, torch.zeros(1, 2, 3))
    assert weights[0, 0, :, -1].tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert torch.allclose(weights.sum(-1), torch.ones(1, 2, 3))
    names = {name for name, *_ in measured(model).index}
    assert "sinks.bias_rate" in names and "sinks.bias_rate" not in {
        name for name, *_ in measured(sharp("base")).index
    }
    same = small_models.build_untrained("key-bias", SIZE, 50, seed=0).state_dict()
    for name, weight in (
        small_models.build_untrained("base", SIZE, 50, seed=0).state_dict().items()
    ):
        assert torch.equal(same[name], weight), (
            "models of one seed begin alike in every arm"
        )


def planted(
    rates: dict[str, float],
    *,
    values: float = 0.3,
    early: float = 0.0,
    skill: float = 0.3,
) -> pd.DataFrame:
    """Records of six seeds: sink rates at the end by arm, early on, and the norm of values of sinks."""
    random = np.random.default_rng(0)

    def noise() -> float:
        return float(0.01 * random.standard_normal())

    rows = []
    for arm, rate in rates.items():
        for seed in range(6):
            common = {"model": arm, "seed": seed}
            for step, now in ((0, 0.0), (200, early), (2000, rate)):
                here = common | {"step": step, "layer": 1, "head": 0}
                rows.append(
                    here
                    | {
                        "metric": "sinks.first_rate",
                        "value": now + (step > 0) * noise(),
                    }
                )
                rows.append(
                    here | {"metric": "sinks.first", "value": 0.06 + now + noise()}
                )
            for name, value in (
                ("value_norm", values),
                ("key_norm", 0.6),
                ("cosine_rise", 0.5),
            ):
                rows.append(
                    common
                    | {
                        "step": 2000,
                        "layer": 1,
                        "head": 0,
                        "metric": f"sinks.{name}",
                        "value": value + noise(),
                    }
                )
            rows.append(
                common | {"step": 2000, "metric": "training.loss", "value": 4 + noise()}
            )
            rows.append(common | {"step": 2000, "metric": SKILL, "value": skill})
    return as_records(pd.DataFrame(rows))


def words(records: pd.DataFrame) -> dict[str, str]:
    return {verdict.claim: verdict.word for verdict in sinks.judge(records)}


def test_claims_hold_where_they_are_true_and_fail_where_they_are_false() -> None:
    true = words(planted({"base": 0.5, "sigmoid": 0.02, "key-bias": 0.02}))
    for name in (
        "sinks emerge",
        "sinks come late",
        "sigmoid has none",
        "a key bias takes the sink",
        "a sink gives nothing",
    ):
        assert true[name] == "holds", name
    assert (
        true["none before training"] == "identity"
        and true["sigmoid is as good"] == "holds"
    )
    false = words(
        planted({"base": 0.5, "sigmoid": 0.8, "key-bias": 0.5}, values=1.4, early=0.9)
    )
    assert (
        false["sigmoid has none"]
        == false["a sink gives nothing"]
        == false["sinks come late"]
        == "contrary"
    )
    assert false["a key bias takes the sink"] == "too small"
    assert (
        words(planted({"base": 0.02, "sigmoid": 0.02}))["sinks emerge"] == "too small"
    )


def test_a_tenth_of_training_is_the_look_nearest_to_it() -> None:
    """Not the second look, nor the one in the middle: of 2,000 steps it is that at 250."""
    claim = read_claims("gu2025", "sinks")["sinks come late"]
    rates = {0: 0.0, 1: 0.1, 250: 0.3, 1000: 0.4, 2000: 0.5}
    rows = [
        {
            "model": "base",
            "seed": 0,
            "step": step,
            "layer": 1,
            "head": 0,
            "metric": sinks.RATE,
            "value": rate,
        }
        for step, rate in rates.items()
    ]
    assert sinks.compute_values(
        claim, as_records(pd.DataFrame(rows)), "base"
    ).tolist() == pytest.approx([0.5 - 0.3])


def test_where_there_are_no_sinks_nothing_is_said_of_what_removes_them() -> None:
    found = {v.claim: v for v in sinks.judge(planted({"base": 0.01, "sigmoid": 0.0}))}
    assert found["sigmoid has none"].outcome == "undecided"
    assert "and a test needs 0.05" in found["sigmoid has none"].reason
    assert found["a key bias takes the sink"].statistic == "not measured"


def test_a_model_that_learnt_nothing_says_nothing() -> None:
    found = {v.claim: v for v in sinks.judge(planted({"base": 0.5}, skill=0.01))}
    assert found["sinks emerge"].outcome == "undecided" and found["sinks emerge"].n == 0
