"""Fused attention: its output against the weights written out, and what the choice moves, family by family."""

import math

import pytest
import tiny_models as tiny
import torch

import anisoscope
from anisoscope.capture import capture
from anisoscope.capture.heads import is_defined
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.errors import UsageError
from anisoscope.measure.settings import Settings

OUTPUTS = {torch.float64: 1e-12, torch.float32: 4e-6}
RECORDS = {"bert": 5e-6, "gpt2": 5e-6, "t5": 1e-5, "llama": 5e-6}
"""Of tiny models with random weights in float32, ranks aside; all families: `benchmarks/same_records.py --fused`."""


def attended(query, key, value, mask=None, **settings):
    """(output of the rows, output written out) [sequence, query, head, dim]."""
    call = Call(torch.nn.Identity(), query, key, value, mask, settings)
    named = {"softcap": settings.get("softcap"), "sinks": settings.get("s_aux")}
    rows = attention_rows(
        query, key, call.masking, scale=call.scale, value=value, **named
    )
    repeated = value.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return rows.get("output"), (call.weights() @ repeated).transpose(1, 2)


def heads(count, tokens, dim=8, sequences=3):
    return torch.randn(sequences, count, tokens, dim, dtype=torch.float64)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"is_causal": True},
        {"softcap": 2.0},
        {"s_aux": torch.tensor([3.0, -1, 0, 60])},
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_the_output_is_weights_times_values(settings, masked):
    torch.manual_seed(0)
    query, key, value = heads(4, 9), heads(2, 9), heads(2, 9, dim=5)
    mask = None
    if masked:  # the third sequence sees its first five keys, and some pairs are hidden
        mask = torch.ones(3, 1, 9, 9, dtype=torch.bool)
        mask[2, ..., 5:] = False
        mask[0, 0, 3, 1] = False
        settings = {name: x for name, x in settings.items() if name != "is_causal"}
    ours, theirs = attended(query * 5, key * 5, value, mask, **settings)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_row_that_sees_nothing_or_what_is_not_finite_leaves_the_output_to_the_model():
    query, key, value = heads(2, 4), heads(2, 4), heads(2, 4)
    mask = torch.ones(3, 1, 4, 4, dtype=torch.bool)
    mask[1, 0, 2] = False
    ours, theirs = attended(query, key, value, mask)
    undefined = ours.isnan().all(-1)
    assert (
        torch.equal(undefined[1, 2], torch.ones(2, dtype=torch.bool))
        and undefined.sum() == 2
    )
    torch.testing.assert_close(
        ours[~undefined], theirs[~undefined], rtol=1e-10, atol=1e-12
    )
    assert is_defined(attention_rows(query, key, Masking(None, False, None), scale=1.0))
    assert not is_defined(
        attention_rows(query, key, Masking(mask, False, None), scale=1.0)
    )
    key[0, 0, 0, 0] = math.nan
    assert attended(query, key, value)[0][0, :, 0].isnan().all()
    assert not is_defined(
        attention_rows(query, key, Masking(None, False, None), scale=1.0)
    )


def calls_of_the_model(model, inputs, **settings):
    """How often the model's own product ran while its attention was captured."""
    count = []
    own = torch.nn.functional.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.nn.functional,
            "scaled_dot_product_attention",
            lambda *a, **k: count.append(1) or own(*a, **k),
        )
        with capture(model, ("attention",), **settings), torch.no_grad():
            model(**inputs)
    return len(count)


def test_the_product_of_the_model_is_left_out_in_float32_and_float64_only():
    for dtype, calls in ((torch.float64, 0), (torch.float32, 0), (torch.bfloat16, 3)):
        model, inputs = tiny.build("bert", dtype), tiny.inputs("bert", (12, 7))
        assert calls_of_the_model(model, inputs, fused=True) == calls
        assert calls_of_the_model(model, inputs) == 3


def apart(ours, theirs):
    """The largest difference, as a share of the largest number or of 1."""
    assert torch.equal(
        ours.isnan(), theirs.isnan()
    )  # CANINE in float64 has nothing else
    ours, theirs = ours.nan_to_num(), theirs.nan_to_num()
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_outputs_move_by_rounding(name):
    for dtype, limit in OUTPUTS.items():
        model = tiny.build(name, dtype)
        batch = tiny.inputs(
            name, (12,) if name in ("manta", "wav2vec2") else (12, 9, 5), dtype
        )
        with torch.no_grad():
            own = model(**batch)
            with capture(
                model,
                ("hidden", "attention"),
                optional=("hidden", "attention"),
                fused=True,
            ):
                fused = model(**batch)
        for part, x in own.items():
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                assert apart(fused[part], x) <= limit, part


@pytest.mark.parametrize("name", RECORDS)
def test_records_move_by_rounding_which_is_why_it_is_a_choice(name):
    model = tiny.build(name, torch.float32)
    batches = [
        tiny.inputs(name, each, torch.float32, seed=i)
        for i, each in enumerate(((12, 9, 5), (12, 3)))
    ]
    given = {"panel": "hidden,attention", "sample": 0, "tokens": "all"}
    tables = [
        anisoscope.measure(model, batches, attention=way, **given).records
        for way in ("model", "fused")
    ]
    before, after = tables
    for column in ("value", "low", "high"):
        difference = (before[column] - after[column]).abs() / before[column].abs().clip(
            lower=1
        )
        assert 0 < difference.max() <= RECORDS[name], before.loc[difference.idxmax()]


def test_the_default_is_the_product_of_the_model():
    assert Settings().attention == "model"
    with pytest.raises(UsageError, match="model, fused"):
        Settings(attention="flash")


@pytest.mark.parametrize("settings", [{}, {"is_causal": True}])
def test_rows_of_large_heads_in_float32_are_those_of_float64(settings):
    """Blocks of one head, not all of its queries at once."""
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(1, 600, 12).unflatten(2, (1, 12)).transpose(1, 2) for _ in range(3)
    )
    found = {}
    for dtype in (torch.float32, torch.float64):
        call = Call(
            torch.nn.Identity(),
            *(x.to(dtype) for x in (query, key, value)),
            None,
            settings,
        )
        found[dtype] = attention_rows(
            call.query, call.key, call.masking, scale=call.scale, value=call.value
        )
    for name, x in found[torch.float64].items():
        torch.testing.assert_close(
            found[torch.float32][name].double(),
            x.double(),
            rtol=1e-5,
            atol=1e-5,
            msg=name,
        )
