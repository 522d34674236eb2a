"""What capture hands on is what the model computes, in every text architecture, and the model does not notice.

References come from a twin model with the family's own eager attention, hooks on its projections, and loops over heads.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
import transformers
from torch import nn

from anisoscope.capture import WHAT, capture, rows, vectors
from anisoscope.capture.counting import list_ranges
from anisoscope.capture.heads import Heads
from anisoscope.capture.masking import Masking
from anisoscope.capture.projections import _align_axes
from anisoscope.capture.rows import attention_rows
from anisoscope.errors import AnisoscopeError, MeasureError, UsageError

EVERYTHING = ("hidden", "final", "query", "key", "value", "attention")
SIDES = ("right", "left", "none")
CASES = [(name, side) for name in tiny.ARCHITECTURES for side in SIDES]
EDGES = torch.tensor([-4.0, -1.0, 0.0, 0.5, 3.0], dtype=torch.float64)
CLOSE = {"rtol": 1e-10, "atol": 1e-10}  # float64 through three blocks of random weights

ROTARY = {
    "modernbert",
    "gpt_neox",
    "llama",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
}
NORMED = {"qwen3", "gemma3"}
SCALE = {
    "t5": 1.0,
    "byt5": 1.0,
    "gemma2": 20**-0.5,
    "gemma3": 20**-0.5,
}  # elsewhere 1/√head_dim
SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"))
FUSED = ("c_attn", "Wqkv", "query_key_value")


@cache
def seen(name, side):
    """One captured call of the model, and the same call of its eager twin with its projections recorded."""
    inputs, real = tiny.padded(name, side)
    model, twin = tiny.model(name), tiny.eager(name)
    projected, handles = projections_of(twin)
    try:
        with tiny.exact_softmax(), torch.no_grad():
            with capture(model, EVERYTHING, median=True, histogram=EDGES) as tap:
                tap.real = real
                output = model(**inputs)
            expected = twin(**inputs, output_hidden_states=True, output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    return SimpleNamespace(
        tap=tap.kept, output=output, expected=expected, real=real, projected=projected
    )


def projections_of(model):
    """Outputs of the projections and of the query and key norms, in the order of their attention modules: [{name:
    tensor}].
    """
    found, handles = [], []
    for module in model.modules():
        children = dict(module.named_children())
        wanted = [
            n for trio in SEPARATE if set(trio) <= children.keys() for n in trio
        ] + [n for n in FUSED if n in children]
        if not wanted or "Attention" not in type(module).__name__:
            continue
        record = {}
        found.append(record)
        for child in (*wanted, *({"q_norm", "k_norm"} & children.keys())):
            handles.append(
                children[child].register_forward_hook(
                    lambda _m, _i, out, r=record, n=child: r.update({n: out}) or None
                )
            )
    return found, handles


def heads_of(record):
    """{query, key, value: [sequence, head, token, head_dim]} from recorded projections, head by head."""
    d, heads = tiny.HEAD_DIM, tiny.HEADS
    for trio in SEPARATE:
        if set(trio) <= record.keys():
            parts = [record[n] for n in trio]
            return [
                torch.stack(
                    [p[..., h * d : h * d + d] for h in range(p.shape[-1] // d)], 1
                )
                for p in parts
            ]
    name = next(n for n in FUSED if n in record)
    out = record[name]
    if name == "query_key_value":  # GPT-NeoX: q, k, v of one head side by side
        first = [[3 * h * d + part * d for h in range(heads)] for part in range(3)]
    else:  # all heads' q, then all k, then all v
        first = [[part * heads * d + h * d for h in range(heads)] for part in range(3)]
    return [torch.stack([out[..., i : i + d] for i in starts], 1) for starts in first]


def stacks(case):
    """(stack, expected hidden states, [(kind, expected attention maps)]) of one case."""
    e = case.expected
    if "encoder_hidden_states" in e:
        yield "encoder", e.encoder_hidden_states, [("", e.encoder_attentions)]
        yield (
            "decoder",
            e.decoder_hidden_states,
            [("", e.decoder_attentions), ("cross.", e.cross_attentions)],
        )
    else:
        stack = next(iter(case.real))
        yield stack, e.hidden_states, [("", e.attentions)]


def layers(maps):
    return enumerate(maps, start=1)


# ---- hidden states ---------------------------------------------------------------------------------------------------


def check_hidden(name="bert", side="right"):
    """Layer 0 = input of the first block, layer i = raw output of block i, at every real token."""
    case = seen(name, side)
    for stack, states, _ in stacks(case):
        names = {
            site
            for site in case.tap
            if site.startswith(stack) and site.endswith(".hidden")
        }
        assert names == {f"{stack}.{i}.hidden" for i in range(len(states))}
        for i, state in enumerate(states):
            real = case.real[stack]
            torch.testing.assert_close(
                case.tap[f"{stack}.{i}.hidden"][real], state[real], **CLOSE
            )


@pytest.mark.parametrize("name, side", CASES)
def test_hidden_states_are_the_model_s(name, side):
    check_hidden(name, side)


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_final_is_the_output_after_the_final_norm_where_there_is_one(name):
    case = seen(name, "right")
    for stack in tiny.stack_names(name):
        if name not in tiny.FINAL_NORM:
            assert f"{stack}.final" not in case.tap
            continue
        last = (
            case.output.encoder_last_hidden_state
            if stack == "encoder" and name in tiny.TWO_STACKS
            else case.output.last_hidden_state
        )
        assert torch.equal(case.tap[f"{stack}.final"], last)
        top = max(
            int(site.split(".")[1])
            for site in case.tap
            if site.startswith(stack) and site.endswith(".hidden")
        )
        assert not torch.allclose(case.tap[f"{stack}.{top}.hidden"], last)


# ---- queries, keys, values -------------------------------------------------------------------------------------------


def attention_sites(name):
    """Site prefixes in the order in which `named_modules` lists attention modules."""
    for stack in tiny.stack_names(name):
        depth = (
            len(
                tiny.model(name).encoder.block
                if stack == "encoder"
                else tiny.model(name).decoder.block
            )
            if name in tiny.TWO_STACKS
            else tiny.LAYERS
        )
        for i in range(1, depth + 1):
            yield stack, i, ""
            if stack == "decoder" and name in tiny.TWO_STACKS:
                yield stack, i, "cross."


def check_projections(name="gpt_neox", side="right"):
    case = seen(name, side)
    sites = list(attention_sites(name))
    assert len(sites) == len(case.projected)
    for (stack, layer, kind), record in zip(sites, case.projected, strict=True):
        of_keys = case.real["encoder" if kind else stack]
        for part, expected, real in zip(
            ("query.raw", "key.raw", "value"),
            heads_of(record),
            (case.real[stack], of_keys, of_keys),
            strict=True,
        ):
            got = case.tap[f"{stack}.{layer}.{kind}head.{part}"]
            assert got.shape == expected.shape
            torch.testing.assert_close(
                got.transpose(1, 2)[real], expected.transpose(1, 2)[real], **CLOSE
            )


@pytest.mark.parametrize("name, side", CASES)
def test_raw_queries_keys_and_values_are_the_projections(name, side):
    check_projections(name, side)


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_stages_are_told_apart(name):
    """Each family has the stages it computes and no other. Rotation keeps every norm, and at position 0 it does
    nothing at all.
    """
    case = seen(name, "right")
    stages = {site.split(".head.")[1] for site in case.tap if ".head." in site} - {
        "value"
    }
    expected = ["raw", *["normed"] * (name in NORMED), *["rotated"] * (name in ROTARY)]
    assert stages == {
        f"{side}.{stage}" for side in ("query", "key") for stage in expected
    }
    for layer in range(1, tiny.LAYERS + 1):
        for side, norm in (("query", "q_norm"), ("key", "k_norm")):
            place = f"{tiny.stack_names(name)[0]}.{layer}.head.{side}"
            if name in NORMED:
                normed, record = (
                    case.tap[f"{place}.normed"],
                    case.projected[layer - 1][norm],
                )
                record = (
                    record if record.shape == normed.shape else record.transpose(1, 2)
                )
                real = case.real["decoder"]
                torch.testing.assert_close(
                    normed.transpose(1, 2)[real], record.transpose(1, 2)[real], **CLOSE
                )
                assert not torch.allclose(normed, case.tap[f"{place}.raw"])
            if name in ROTARY:
                before, after = (
                    case.tap[f"{place}.{expected[-2]}"],
                    case.tap[f"{place}.rotated"],
                )
                rounding = {
                    "rtol": 1e-6,
                    "atol": 1e-6,
                }  # cos and sin are float32 in the models
                torch.testing.assert_close(
                    after.norm(dim=-1), before.norm(dim=-1), **rounding
                )
                torch.testing.assert_close(after[:, :, 0], before[:, :, 0], **rounding)
                assert not torch.allclose(after[:, :, 3], before[:, :, 3], atol=1e-2)


def test_one_stage_can_be_asked_for_by_name():
    inputs, _ = tiny.padded("qwen3", "right")
    for stage in ("raw", "normed", "rotated"):
        with torch.no_grad(), capture(tiny.model("qwen3"), (f"query.{stage}",)) as tap:
            tiny.model("qwen3")(**inputs)
        assert tap.sites == [f"decoder.{i}.head.query.{stage}" for i in (1, 2, 3)]
        assert torch.equal(
            tap[f"decoder.2.head.query.{stage}"],
            seen("qwen3", "right").tap[f"decoder.2.head.query.{stage}"],
        )


# ---- attention -------------------------------------------------------------------------------------------------------


def check_rows(name="bert", side="left"):
    """Every statistic of every row of a real query, from the eager model's attention map; masked weights are exactly
    0 there.
    """
    case = seen(name, side)
    for stack, _, kinds in stacks(case):
        for kind, maps in kinds:
            for layer, p in layers(maps):
                site = f"{stack}.{layer}.{kind}"
                score = scores(case, name, site)
                compare_rows(
                    case.tap[f"{site}attention"],
                    p,
                    score,
                    case.real[stack],
                    case.real["encoder" if kind else stack],
                )


def scores(case, name, site):
    stage = "rotated" if name in ROTARY else "raw"
    q, k = (case.tap[f"{site}head.{side}.{stage}"] for side in ("query", "key"))
    shared = q.shape[1] // k.shape[1]
    return torch.stack(
        [q[:, h] @ k[:, h // shared].transpose(1, 2) for h in range(q.shape[1])], 1
    ) * SCALE.get(name, tiny.HEAD_DIM**-0.5)


def compare_rows(got, p, score, real_queries, real_keys):
    first_key = real_keys.int().argmax(1)
    p, score, got = (
        p.numpy(),
        score.numpy(),
        {name: x.double().numpy() for name, x in got.items()},
    )
    for b in range(len(p)):
        queries = torch.nonzero(real_queries[b]).flatten().tolist()
        for h in range(p.shape[1]):
            unit = p[b, h, queries] / np.linalg.norm(
                p[b, h, queries], axis=1, keepdims=True
            )
            cosine = (unit @ unit.T)[~np.eye(len(queries), dtype=bool)]
            np.testing.assert_allclose(
                got["row_similarity"][b, h], cosine.mean(), **CLOSE
            )
            visible = p[b, h, queries] > 0
            inside = np.histogram(
                score[b, h, queries][visible], [-np.inf, *EDGES.tolist(), np.inf]
            )[0]
            assert got["score_histogram"][b, h].tolist() == inside.tolist()
            weights = [p[b, h, t][see] for t, see in zip(queries, visible, strict=True)]
            expected = {
                "keys": [len(w) for w in weights],
                "entropy": [-(w * np.log(w)).sum() for w in weights],
                "row_max": [w.max() for w in weights],
                "row_min": [w.min() for w in weights],
                "row_median": [np.median(w) for w in weights],
                "first_mass": [p[b, h, t, first_key[b]] for t in queries],
                "score": [
                    score[b, h, t][see].sum()
                    for t, see in zip(queries, visible, strict=True)
                ],
            }
            for name, values in expected.items():
                np.testing.assert_allclose(
                    got[name][b, h, queries],
                    values,
                    rtol=5e-10,
                    atol=5e-11,
                    err_msg=name,
                )


@pytest.mark.parametrize("name, side", CASES)
def test_attention_statistics_are_those_of_the_eager_map(name, side):
    check_rows(name, side)


def visible_pairs(name, stack, layer, kind, real):
    """Who may see whom, from the definition of each family."""
    q, k = real[stack].shape[1], real["encoder" if kind else stack].shape[1]
    i, j = torch.arange(q)[:, None], torch.arange(k)
    pairs = torch.ones(q, k, dtype=torch.bool)
    if stack == "decoder" and not kind:
        pairs &= j <= i
    if (
        name in ("gemma2", "gemma3")
        and tiny.model(name).config.layer_types[layer - 1] == "sliding_attention"
    ):
        pairs &= i - j < tiny.WINDOW
    if name == "modernbert" and (layer - 1) % 2:
        pairs &= (i - j).abs() <= tiny.WINDOW // 2
    return real["encoder" if kind else stack][:, None, :] & pairs


@pytest.mark.parametrize("name, side", CASES)
def test_padding_the_future_and_what_lies_outside_a_window_are_not_seen(name, side):
    case = seen(name, side)
    for stack, layer, kind in attention_sites(name):
        expected = visible_pairs(name, stack, layer, kind, case.real).sum(-1)
        keys = case.tap[f"{stack}.{layer}.{kind}attention"]["keys"]
        real = case.real[stack]
        assert torch.equal(
            keys.transpose(1, 2)[real],
            expected[real].unsqueeze(1).expand(-1, tiny.HEADS).to(keys.dtype),
        )


def test_some_layers_have_windows_and_some_do_not():
    """The window cases above are not empty."""
    for name in ("gemma2", "gemma3", "modernbert"):
        case = seen(name, "none")
        widest = {
            float(case.tap[f"{tiny.stack_names(name)[0]}.{i}.attention"]["keys"].max())
            for i in (1, 2, 3)
        }
        assert widest == {float(12), float(tiny.WINDOW + (name == "modernbert"))}, name


@pytest.mark.parametrize("name", sorted(tiny.TWO_STACKS))
def test_means_of_cross_attention_are_of_its_own_queries_and_keys(name):
    """Its keys are of the encoder's tokens, and not those of the decoder's own attention."""
    inputs, real = tiny.padded(name, "right")
    model = tiny.build(name)
    records = tiny.measure(model, [inputs], ["query_key"], tokens=("all",), sample=0)
    with torch.no_grad(), capture(model, ("query", "key")) as tap:
        model(**inputs)
    for kind, stack in (("self", "decoder"), ("cross", "encoder")):
        sides = (("query", real["decoder"]), ("key", real[stack]))
        place = "decoder.1." + "cross." * (kind == "cross")
        query, key = (
            tap[f"{place}head.{side}.raw"].transpose(0, 1)[:, mask].mean(1)
            for side, mask in sides
        )
        rows = records.query(
            "metric == 'query_key.dot' and stack == 'decoder' and layer == 1 and kind == @kind"
        )
        assert rows["value"].tolist() == pytest.approx(
            (query * key).sum(-1).tolist(), rel=1e-9
        ), kind


@pytest.mark.parametrize("name", sorted(tiny.TWO_STACKS))
def test_cross_attention_is_apart_from_self_attention(name):
    case = seen(name, "right")
    encoder, decoder = (case.real[stack].shape[1] for stack in ("encoder", "decoder"))
    assert encoder != decoder
    assert case.tap["decoder.1.cross.head.key.raw"].shape[2] == encoder
    assert case.tap["decoder.1.cross.head.query.raw"].shape[2] == decoder
    assert case.tap["decoder.1.head.key.raw"].shape[2] == decoder
    assert not any("encoder." in site and "cross" in site for site in case.tap)


def test_grouped_keys_stay_grouped():
    for name in ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"):
        tap = seen(name, "right").tap
        assert (
            tap["decoder.1.head.key.raw"].shape[1]
            == tap["decoder.1.head.value"].shape[1]
            == 2
        )
        assert (
            tap["decoder.1.head.query.raw"].shape[1]
            == tap["decoder.1.attention"]["entropy"].shape[1]
            == 4
        )


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_rows_with_queries_or_keys_centred(name):
    """Keys that several heads share are centred on the mean of their own; keys may be more than queries (cross)."""
    inputs, real = tiny.padded(name, "right")
    model = tiny.model(name)
    with torch.no_grad(), capture(model, ("query", "key", "attention")) as plain:
        plain.real = real
        model(**inputs)
    generator = torch.Generator().manual_seed(9)
    sites = [
        s.removesuffix("attention") for s in plain.sites if s.endswith("attention")
    ]
    stage, scale = (
        ("rotated" if name in ROTARY else "raw"),
        SCALE.get(name, tiny.HEAD_DIM**-0.5),
    )
    means, heads = {}, {}
    for site in sites:
        q, k = (plain[f"{site}head.{side}.{stage}"] for side in ("query", "key"))
        parts = site.split(".")
        shared = q.shape[1] // k.shape[1]
        key = torch.randn(
            k.shape[1], k.shape[3], generator=generator, dtype=torch.float64
        )
        query = torch.randn(
            q.shape[1], q.shape[3], generator=generator, dtype=torch.float64
        )
        place = (parts[0], int(parts[1]), "cross" if "cross" in parts else "self")
        means[place], heads[site] = (
            (query * scale, key.repeat_interleave(shared, 0)),
            (q, k, query, key),
        )
    seen = []
    look = Heads._compute_rows

    def rows_of(self, call, *given, **named):
        seen.append((call.query, call.key))
        return look(self, call, *given, **named)

    with (
        torch.no_grad(),
        pytest.MonkeyPatch.context() as patch,
        capture(model, ("centred",)) as tap,
    ):
        patch.setattr(Heads, "_compute_rows", rows_of)
        tap.means, tap.real = means, real
        model(**inputs)
    assert len(seen) == 3 * len(sites)  # plain, with queries centred, with keys centred
    for site, (_, of_query, of_key) in zip(
        sites, zip(*[iter(seen)] * 3, strict=True), strict=True
    ):
        q, k, query, key = heads[site]
        torch.testing.assert_close(of_query, (q - query[:, None], k), **CLOSE)
        torch.testing.assert_close(of_key, (q, k - key[:, None]), **CLOSE)
        for statistic, value in plain[f"{site}attention"].items():
            assert torch.equal(tap[f"{site}centred"]["plain"][statistic], value), (
                statistic
            )


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_sums_of_scores_are_those_of_all_keys(name):
    """Also where keys are more than queries (cross), which the keys were cut to for a moment."""
    inputs, real = tiny.padded(name, "right")
    model = tiny.model(name)
    with (
        torch.no_grad(),
        capture(model, ("query", "key", "attention", "scores")) as tap,
    ):
        tap.real = real
        model(**inputs)
    stage, scale = (
        ("rotated" if name in ROTARY else "raw"),
        SCALE.get(name, tiny.HEAD_DIM**-0.5),
    )
    sites = [site for site in tap.kept if site.endswith("scores")]
    assert sites and (name == "llama") is not any("cross" in site for site in sites)
    for site in sites:
        stack, start = site.split(".")[0], site.removesuffix("scores")
        q, k = (tap.kept[f"{start}head.{side}.{stage}"] for side in ("query", "key"))
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        of_query, of_key = real[stack], real["encoder" if "cross" in site else stack]
        sums = tap.kept[site]
        assert torch.equal(sums["keys"][:, 0], of_key.sum(1).double())
        assert torch.equal(sums["rows"][:, 0], of_query.sum(1).double())
        torch.testing.assert_close(
            sums["key"], (k * of_key[:, None, :, None]).sum(2), **CLOSE
        )
        torch.testing.assert_close(
            sums["query"], (scale * q * of_query[:, None, :, None]).sum(2), **CLOSE
        )


# ---- the walk over blocks --------------------------------------------------------------------------------------------


def visibles(queries, keys):
    """Every way in which an attention call can say who sees whom."""
    g = torch.Generator().manual_seed(1)
    seen_keys = torch.rand(3, 1, queries, keys, generator=g) < 0.7
    seen_keys[..., 0] = True
    bias = torch.randn(1, 4, queries, keys, generator=g, dtype=torch.float64)
    return {
        "all": Masking(None, False, None),
        "causal": Masking(None, True, None),
        "mask": Masking(seen_keys, False, None),
        "mask of one row": Masking(seen_keys[:, :, :1], False, None),
        "mask of one sequence": Masking(seen_keys[:1], False, None),
        "bias": Masking(None, False, bias),
        "mask and bias": Masking(seen_keys, False, bias[:, :1]),
        "left padding": Masking(
            torch.arange(keys) >= torch.tensor([0, 2, 5])[:, None, None, None],
            False,
            None,
        ),
    }


@pytest.mark.parametrize("block", [1, 13, 60, 150, 400])
@pytest.mark.parametrize("kind", visibles(11, 13))
def test_blocks_do_not_matter(monkeypatch, block, kind):
    """Blocks of part of a row, some rows, a head, two heads, a sequence, two sequences: the same statistics as in one
    piece.
    """
    g = torch.Generator().manual_seed(0)
    keys = 11 if kind == "causal" else 13
    q, k = (
        torch.randn(3, heads, n, 8, generator=g, dtype=torch.float64)
        for heads, n in ((4, 11), (2, keys))
    )
    real = torch.arange(11) < torch.tensor([11, 6, 1])[:, None]
    settings = {
        "scale": 0.3,
        "softcap": 2.0,
        "sinks": torch.randn(4, generator=g),
        "real": real,
        "median": True,
        "histogram": EDGES,
    }
    results = []
    for size in (1 << 30, block):
        monkeypatch.setattr(rows, "BLOCK", size)
        results.append(attention_rows(q, k, visibles(11, keys)[kind], **settings))
    assert results[0].keys() == results[1].keys()
    for name in results[0]:
        torch.testing.assert_close(
            results[1][name], results[0][name], rtol=1e-12, atol=1e-12, equal_nan=True
        )


@pytest.mark.parametrize("kind", visibles(11, 13))
def test_walk_against_brute_force(kind):
    """Bias, mask, cap and sinks together, on plain tensors."""
    g = torch.Generator().manual_seed(2)
    keys = 11 if kind == "causal" else 13
    q, k = (
        torch.randn(3, heads, n, 8, generator=g, dtype=torch.float64)
        for heads, n in ((4, 11), (2, keys))
    )
    real = torch.arange(11) < torch.tensor([11, 6, 2])[:, None]
    sinks, visible = torch.randn(4, generator=g).double(), visibles(11, keys)[kind]
    see = (
        torch.ones(3, 4, 11, keys, dtype=torch.bool)
        if visible.keys is None
        else visible.keys.expand(3, 4, 11, keys)
    )
    see = (
        see & (torch.arange(keys) <= torch.arange(11)[:, None])
        if visible.causal
        else see
    )
    score = torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(2, 1)) * 0.3
    logits = 2 * torch.tanh(score / 2) + (0 if visible.bias is None else visible.bias)
    weights = torch.where(see, logits.exp(), 0.0)
    p = weights / (weights.sum(-1, keepdim=True) + sinks.exp().view(1, 4, 1, 1))
    sink = 1 - p.sum(-1)
    got = attention_rows(
        q,
        k,
        visible,
        scale=0.3,
        softcap=2.0,
        sinks=sinks,
        real=real,
        median=True,
        histogram=EDGES,
    )
    entropy = -torch.xlogy(p, p).sum(-1) - torch.xlogy(
        sink, sink
    )  # the sink is one more outcome
    torch.testing.assert_close(got["entropy"], entropy, **CLOSE)
    first = torch.tensor([0, 2, 5]) if kind == "left padding" else torch.zeros(3).long()
    torch.testing.assert_close(
        got["first_mass"],
        torch.stack([p[b, :, :, first[b]] for b in range(3)]),
        **CLOSE,
    )
    for b, h, t in np.ndindex(3, 4, 11):
        w = p[b, h, t][see[b, h, t]]
        found = {
            name: float(got[name][b, h, t])
            for name in ("row_max", "row_min", "row_median", "keys", "score")
        }
        exact = {
            "row_max": w.max(),
            "row_min": w.min(),
            "row_median": np.median(w),
            "keys": len(w),
            "score": score[b, h, t][see[b, h, t]].sum(),
        }
        assert found == pytest.approx(
            {name: float(value) for name, value in exact.items()}, rel=1e-10, abs=1e-12
        )
    for b, h in np.ndindex(3, 4):
        unit = nn.functional.normalize(p[b, h][real[b]], dim=1)
        cosine = (unit @ unit.T)[~torch.eye(len(unit), dtype=torch.bool)].mean()
        assert float(got["row_similarity"][b, h]) == pytest.approx(
            float(cosine), rel=1e-10
        )


def test_closed_forms_of_rows():
    """Equal scores: entropy ln n and equal weights. One score far above: entropy 0 and all mass there. One row: no
    similarity.
    """
    q, k = torch.zeros(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    even = attention_rows(q, k, Masking(None, False, None), scale=1.0)
    torch.testing.assert_close(even["entropy"], torch.full((1, 1, 3), float(np.log(5))))
    torch.testing.assert_close(even["row_min"], torch.full((1, 1, 3), 0.2))
    torch.testing.assert_close(even["row_similarity"], torch.ones(1, 1).double())
    k = torch.tensor([[[[100.0], [0], [0]]]])
    sharp = attention_rows(
        torch.ones(1, 1, 1, 1), k, Masking(None, False, None), scale=1.0
    )
    assert (
        float(sharp["entropy"]) < 1e-35
        and float(sharp["first_mass"]) == 1
        and float(sharp["row_min"]) < 1e-35
    )
    assert torch.isnan(sharp["row_similarity"]).all()


@pytest.mark.parametrize("shift", [-900.0, 0.0, 25.0, 900.0])
def test_scores_far_from_zero_neither_overflow_nor_vanish(shift):
    """A softmax does not feel a constant added to its scores, however large; rows of one block may differ by
    hundreds.
    """
    g = torch.Generator().manual_seed(4)
    q, k = (
        torch.randn(1, 2, 9, 8, generator=g).double(),
        torch.randn(1, 2, 9, 8, generator=g).double(),
    )
    bias = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    bias[:, :, ::2] = shift
    plain, moved = (
        attention_rows(q, k, Masking(None, False, b), scale=1.0, median=True)
        for b in (None, bias)
    )
    for name in plain:
        added = (
            bias[0, 0, :, 0] if name in ("largest", "smallest") else 0.0
        )  # logits, which are moved themselves
        torch.testing.assert_close(
            moved[name] - added, plain[name], rtol=1e-10, atol=1e-11
        )


def test_a_query_that_sees_nothing_leaves_the_others_as_they_are():
    """A row of padding may be masked whole: no weight, and no 0/0 in what is summed over rows."""
    g = torch.Generator().manual_seed(3)
    q, k = (torch.randn(1, 2, 4, 8, generator=g, dtype=torch.float64) for _ in range(2))
    seen = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    seen[:, :, 3] = False
    got = attention_rows(
        q,
        k,
        Masking(seen, False, None),
        scale=1.0,
        real=torch.tensor([[True, True, True, False]]),
    )
    alone = attention_rows(q[:, :, :3], k, Masking(None, False, None), scale=1.0)
    torch.testing.assert_close(got["row_similarity"], alone["row_similarity"])
    torch.testing.assert_close(got["entropy"][..., :3], alone["entropy"])


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([1, 2, 3], "1–3"),
        ([2, 4, 5], "2, 4, 5"),
        ([1, 2], "1, 2"),
        ([7], "7"),
        ([3, 1, 2], "3, 1, 2"),
    ],
)
def test_layers_in_a_row_are_listed_as_a_range(numbers, text):
    assert list_ranges(numbers) == text


def test_a_key_without_finite_numbers_spoils_the_rows_that_see_it_alone():
    g = torch.Generator().manual_seed(4)
    q, k = (torch.randn(2, 3, 6, 4, generator=g, dtype=torch.float64) for _ in range(2))
    whole = attention_rows(q, k, Masking(None, True, None), scale=1.0)
    k[1, 2, 2] = torch.nan  # of the last head
    got = attention_rows(q, k, Masking(None, True, None), scale=1.0)
    spoiled = torch.zeros(2, 3, 6, dtype=torch.bool)
    spoiled[1, 2, 2:] = True
    for name in ("entropy", "row_max", "first_mass"):
        assert torch.equal(got[name].isnan(), spoiled), name
        torch.testing.assert_close(got[name][~spoiled], whole[name][~spoiled])


def test_a_query_without_finite_numbers_does_not_hide_that_other_scores_are_large():
    """A bound that is NaN is no bound: float32 overflows at scores of 128 bits."""
    g = torch.Generator().manual_seed(8)
    q, k = (30 * torch.randn(1, 1, 6, 4, generator=g) for _ in range(2))
    whole = attention_rows(q, k, Masking(None, False, None), scale=1.0)
    q[0, 0, 2] = torch.nan
    got = attention_rows(q, k, Masking(None, False, None), scale=1.0)
    others = torch.arange(6) != 2
    for name in ("entropy", "row_max", "first_mass"):
        assert whole[name].isfinite().all()
        torch.testing.assert_close(got[name][..., others], whole[name][..., others])


def test_a_mask_and_the_flag_hide_keys_together():
    """Where both were given the mask was passed over."""
    g = torch.Generator().manual_seed(6)
    q, k = (torch.randn(2, 3, 6, 4, generator=g, dtype=torch.float64) for _ in range(2))
    keys = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    keys[0, ..., 3] = keys[1, ..., 4:] = False
    expected = attention_rows(
        q,
        k,
        Masking(keys & torch.ones(6, 6, dtype=torch.bool).tril(), False, None),
        scale=0.5,
    )
    got = attention_rows(q, k, Masking(keys, True, None), scale=0.5)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, msg=name)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["none", "keys", "pairs"])
def test_a_key_without_finite_numbers_spoils_no_row_that_does_not_see_it(causal, form):
    """Whether it is hidden by the flag, by a mask of keys or by one of pairs."""
    g = torch.Generator().manual_seed(5)
    q, k = (torch.randn(2, 2, 6, 4, generator=g, dtype=torch.float64) for _ in range(2))
    keys = {"none": None, "keys": torch.ones(2, 1, 1, 6, dtype=torch.bool)}.get(form)
    if form == "keys":
        keys[0, ..., 3] = False
    if form == "pairs":
        keys = torch.rand(2, 1, 6, 6, generator=g) < 0.6
        keys |= torch.eye(6, dtype=torch.bool)
    visible = (
        torch.ones(2, 1, 6, 6, dtype=torch.bool)
        if keys is None
        else keys.expand(2, 1, 6, 6)
    )
    visible = visible.tril() if causal else visible
    whole = attention_rows(q, k, Masking(keys, causal, None), scale=1.0)
    k[:, 1, 3] = torch.inf
    got = attention_rows(q, k, Masking(keys, causal, None), scale=1.0)
    spoiled = torch.zeros(2, 2, 6, dtype=torch.bool)
    spoiled[:, 1] = visible[:, 0, :, 3]
    for name in ("entropy", "row_max", "first_mass"):
        assert torch.equal(got[name].isnan(), spoiled), name
        torch.testing.assert_close(got[name][~spoiled], whole[name][~spoiled])


def test_undefined_rows_give_keys_nothing():
    """What keys are given is that of the other rows alone, and so is by how many they are seen."""
    g = torch.Generator().manual_seed(7)
    q, k = (torch.randn(2, 2, 6, 4, generator=g, dtype=torch.float64) for _ in range(2))
    real = torch.arange(6) < torch.tensor([[6], [5]])
    weights = (
        (q @ k.transpose(2, 3))
        .masked_fill(~torch.ones(6, 6).tril().bool(), -torch.inf)
        .softmax(-1)
    )
    q[1, 0, 1] = torch.nan  # one row of one head
    k[0, 1, 4] = torch.inf  # all rows from there on
    counted = real[:, None].repeat(1, 2, 1)
    counted[1, 0, 1] = False
    counted[0, 1, 4:] = False
    got = attention_rows(
        q, k, Masking(None, True, None), scale=1.0, real=real, columns=True
    )
    torch.testing.assert_close(got["mass"], (weights * counted[..., None]).sum(2))
    assert torch.equal(
        got["seen"],
        (counted[..., None] & torch.ones(6, 6).tril().bool()).sum(2).double(),
    )


def test_rows_of_weights_that_learn_keep_no_graph():
    q, k = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(2))
    got = attention_rows(q, k, Masking(None, False, None), scale=1.0)
    assert not any(value.requires_grad for value in got.values())


def test_half_precision_queries_are_reduced_in_float32():
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 300, 16, generator=g).bfloat16() for _ in range(2))
    half, full = (
        attention_rows(x.to(q), y.to(q), Masking(None, True, None), scale=0.25)
        for x, y in ((q, k), (q, k))
    )
    full = attention_rows(q.double(), k.double(), Masking(None, True, None), scale=0.25)
    for name in ("entropy", "row_max", "first_mass"):
        torch.testing.assert_close(
            half[name].double(), full[name], rtol=1e-4, atol=1e-5
        )


def test_padded_keys_that_are_not_finite_do_not_count():
    """A padded position may hold anything: an eager model leaves NaN there when its whole row is masked."""
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    visible = Masking(
        torch.tensor([True, True, True, False]).expand(1, 1, 4, 4), False, None
    )
    clean = attention_rows(
        q, k, visible, scale=1.0, median=True, histogram=EDGES.float()
    )
    k[:, :, 3], q[:, :, 3] = torch.nan, torch.nan
    spoiled = attention_rows(
        q,
        k,
        visible,
        scale=1.0,
        real=torch.tensor([[True, True, True, False]]),
        median=True,
        histogram=EDGES.float(),
    )
    for name in (
        "entropy",
        "row_max",
        "row_min",
        "row_median",
        "first_mass",
        "keys",
        "score",
    ):
        torch.testing.assert_close(spoiled[name][:, :, :3], clean[name][:, :, :3])
    assert torch.isfinite(spoiled["row_similarity"]).all()
    assert spoiled["score_histogram"].sum() == 2 * 3 * 3


class TestVisible:
    """How masks and flags are read, in each form in which backends hand them over."""

    query = torch.zeros(2, 1, 3, 4)

    def read(self, mask=None, module=None, **settings):
        return Masking.read(module or SimpleNamespace(), self.query, mask, settings)

    def test_boolean(self):
        mask = torch.rand(2, 1, 3, 3) < 0.5
        assert self.read(mask).keys is mask

    def test_additive(self):
        see = torch.tensor([[True, False, True]]).expand(2, 1, 3, 3)
        read = self.read(torch.where(see, 0.0, torch.finfo(torch.float32).min))
        assert torch.equal(read.keys, see) and read.bias is None and not read.causal
        assert torch.equal(self.read(torch.where(see, 0.0, -torch.inf)).keys, see)

    def test_additive_with_a_bias_inside(self):
        bias = torch.randn(1, 4, 3, 3)
        read = self.read(bias)
        assert read.keys is None and torch.equal(read.bias, bias)
        both = self.read(bias, position_bias=bias)
        assert torch.equal(both.bias, 2 * bias)

    def test_no_mask(self):
        """The keyword decides, then the module; a single query sees everything."""
        causal, not_causal = (
            SimpleNamespace(is_causal=True),
            SimpleNamespace(is_causal=False),
        )
        assert (
            self.read(module=causal).causal and not self.read(module=not_causal).causal
        )
        assert (
            self.read(module=not_causal, is_causal=True).causal
            and not self.read(module=causal, is_causal=False).causal
        )
        assert not Masking.read(causal, self.query[:, :, :1], None, {}).causal
        assert not self.read(
            torch.ones(2, 1, 3, 3, dtype=torch.bool), module=causal
        ).causal  # the mask has said it already


# ---- the model does not notice ---------------------------------------------------------------------------------------


def state_of(model):
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()
    ]
    return hooks, [
        m.config._attn_implementation
        for m in model.modules()
        if hasattr(getattr(m, "config", None), "_attn_implementation")
    ]


def check_outputs(name="bert", side="right", backend="sdpa"):
    model, (inputs, _) = in_float32(name), tiny.padded(name, side)
    model.set_attn_implementation(backend)
    with torch.no_grad():
        before = model(**inputs)
        with capture(model, EVERYTHING, median=True):
            inside = model(**inputs)
        after = model(**inputs)
    for key, value in before.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(inside[key], value) and torch.equal(after[key], value)


@pytest.mark.parametrize(
    "name, side, backend",
    [
        (n, s, b)
        for n, s in CASES
        for b in ("sdpa", "eager")
        if (n, b) != ("gemma2", "sdpa")
    ],  # sdpa has no soft cap
)
def test_outputs_are_the_same_bit_for_bit(name, side, backend):
    check_outputs(name, side, backend)


@cache
def in_float32(name):
    return tiny.build(name, torch.float32)


@pytest.mark.parametrize("name", ["bert", "gemma2", "t5"])
def test_everything_is_put_back_even_after_an_exception(name):
    model, (inputs, _) = tiny.model(name), tiny.padded(name, "right")
    before, received = state_of(model), []
    with (
        pytest.raises(ZeroDivisionError),
        capture(model, EVERYTHING, receive=lambda site, _: received.append(site)),
    ):
        assert state_of(model) != before
        raise ZeroDivisionError
    assert state_of(model) == before
    with torch.no_grad():
        model(**inputs)
    assert not received


@pytest.mark.parametrize("what", [("hidden",), EVERYTHING])
def test_hooks_are_removed_after_ordinary_use(what):
    model, (inputs, _) = tiny.model("llama"), tiny.padded("llama", "left")
    before = state_of(model)
    with torch.no_grad(), capture(model, what):
        model(**inputs)
    assert state_of(model) == before


def test_a_receiver_may_raise():
    model, (inputs, _) = tiny.model("bert"), tiny.padded("bert", "right")
    before = state_of(model)

    def receive(site, _value):
        raise RuntimeError(site.name)

    with (
        pytest.raises(RuntimeError, match=r"encoder\.1\.attention"),
        torch.no_grad(),
        capture(model, ("attention",), receive=receive),
    ):
        model(**inputs)
    assert state_of(model) == before


def test_captures_can_be_nested_and_repeated():
    """The inner one takes nothing from the outer one, which goes on after it."""
    model, (inputs, _) = tiny.model("bert"), tiny.padded("bert", "right")
    outer_seen, inner_seen = [], []
    with (
        torch.no_grad(),
        capture(
            model, EVERYTHING, receive=lambda site, _: outer_seen.append(site.name)
        ),
    ):
        model(**inputs)
        once = list(outer_seen)
        with capture(
            model, ("attention",), receive=lambda site, _: inner_seen.append(site.name)
        ):
            model(**inputs)
        model(**inputs)
    assert outer_seen == 3 * once
    assert inner_seen == [f"encoder.{i}.attention" for i in (1, 2, 3)]
    with torch.no_grad(), capture(model, ("attention",)) as tap:
        model(**inputs)
    assert tap.sites == inner_seen


def test_a_forward_of_a_block_s_own_is_put_back():
    """torch's encoder layers are looked at without a hook; others may have wrapped their `forward` before (accelerate,
    an outer capture).
    """
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), 2
    ).eval()
    called, forward = [], model.layers[0].forward

    def own(*args, **named):
        called.append(True)
        return forward(*args, **named)

    model.layers[0].forward = own
    with torch.no_grad(), capture(model) as outer:
        with capture(model) as inner:
            model(torch.zeros(1, 3, 8))
        model(torch.ones(1, 3, 8))
    assert model.layers[0].forward is own and len(called) == 2
    assert "forward" not in vars(model.layers[1])
    assert (
        outer["encoder.0.hidden"].eq(1).all() and inner["encoder.0.hidden"].eq(0).all()
    )


def test_two_models_at_once():
    first, second = tiny.model("bert"), tiny.model("roberta")
    (inputs, _) = tiny.padded("bert", "right")
    with (
        torch.no_grad(),
        capture(first, ("attention",)) as one,
        capture(second, ("attention",)) as two,
    ):
        first(**inputs)
        assert len(one.kept) == 3 and not two.kept
        second(**inputs)
    assert len(two.kept) == 3


def test_nothing_is_computed_that_was_not_asked_for(monkeypatch):
    monkeypatch.setattr(rows._Walk, "block", None)
    model, (inputs, _) = tiny.model("bert"), tiny.padded("bert", "right")
    with torch.no_grad(), capture(model, ("hidden", "query", "key", "value")) as tap:
        model(**inputs)
    assert not any("attention" in site for site in tap.sites)


# ---- places that never fire ------------------------------------------------------------------------------------------


class Convolutional(nn.Module):
    """Blocks without attention."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_any_module_by_the_class_of_its_blocks():
    model, x = Convolutional(), torch.randn(2, 5, 4)
    with torch.no_grad(), capture(model, ("hidden",), blocks=("Linear",)) as tap:
        y = model(x)
    assert tap.sites == ["encoder.0.hidden", "encoder.1.hidden", "encoder.2.hidden"]
    assert (
        torch.equal(tap["encoder.0.hidden"], x)
        and torch.equal(tap["encoder.1.hidden"], model.blocks[0](x))
        and torch.equal(tap["encoder.2.hidden"], y)
    )


def test_blocks_that_cannot_be_found_name_the_cure():
    told = r"--blocks Linear, in Python blocks='Linear';"
    with (
        pytest.raises(AnisoscopeError, match=told),
        capture(Convolutional(), ("hidden",)),
    ):
        pass


def test_a_place_that_never_fires_names_the_attention_classes_and_the_cure():
    import transformers

    model = Convolutional()
    expected = (
        r"compute attention, query; got nothing that can be captured; .* of Convolutional: "
        r"none\. Cure: measure hidden states only"
    )
    with (
        pytest.raises(MeasureError, match=expected),
        capture(model, ("attention", "query"), blocks=("Linear",)),
    ):
        model(torch.randn(1, 2, 4))
    config = transformers.LongformerConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=32,
        vocab_size=60,
        attention_window=4,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    longformer = transformers.LongformerModel(config).eval()
    before = state_of(longformer)
    with (
        pytest.raises(
            MeasureError,
            match=r"LongformerSelfAttention.*transformers' attention interface",
        ),
        capture(longformer, ("attention",)),
    ):
        longformer(input_ids=torch.randint(3, 60, (1, 32)))
    assert state_of(longformer) == before


def test_a_stage_the_family_lacks_raises():
    inputs, _ = tiny.padded("bert", "right")
    with (
        pytest.raises(MeasureError, match=r"query\.rotated"),
        torch.no_grad(),
        capture(tiny.model("bert"), ("query.rotated", "query.raw")),
    ):
        tiny.model("bert")(**inputs)


def test_unknown_places_and_sites_come_with_near_matches():
    with (
        pytest.raises(UsageError, match=r"'atention'.*did you mean attention\?"),
        capture(tiny.model("bert"), ("atention",)),
    ):
        pass
    inputs, _ = tiny.padded("bert", "right")
    with torch.no_grad(), capture(tiny.model("bert"), ("hidden",)) as tap:
        tiny.model("bert")(**inputs)
    with pytest.raises(
        MeasureError, match=r"encoder\.1\.hiden.*did you mean encoder\.1\.hidden"
    ):
        tap["encoder.1.hiden"]


def test_a_capture_that_was_not_used_says_nothing():
    with capture(tiny.model("bert"), EVERYTHING):
        pass


def test_every_place_can_be_asked_for():
    model, (inputs, _) = tiny.model("qwen3"), tiny.padded("qwen3", "right")
    places = set(WHAT) - {"centred"}  # which needs the means of a first pass
    with torch.no_grad(), capture(model, places) as tap:
        model(**inputs)
    assert {
        site.split(".", 2)[-1].removeprefix("head.")
        for site in tap.sites
        if "final" not in site
    } == places - {
        "final",
        "query",
        "key",
        "stage",
        "pre_relu",
    }


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_capture_goes_on_watching_after_one_that_was_opened_within_it(name):
    inputs, _ = tiny.padded(name, "right")
    model = tiny.build(name)
    interface = transformers.modeling_utils.AttentionInterface
    before = interface.__getitem__, interface.__dict__.get("__getitem__")
    with torch.no_grad(), capture(model, ("attention",)) as outer:
        watched = interface.__getitem__
        with capture(model, ("attention",)) as inner:
            model(**inputs)
        assert interface.__getitem__ is watched is not before[0]
        seen_by_inner = dict(inner.kept)
        outer.kept.clear()
        model(**inputs)
    assert len(seen_by_inner) == tiny.LAYERS and {*outer.kept} == {*seen_by_inner}
    for site, rows_of in seen_by_inner.items():
        torch.testing.assert_close(
            outer[site]["entropy"], rows_of["entropy"], equal_nan=True
        )
    assert (interface.__getitem__, interface.__dict__.get("__getitem__")) == before


class Rectified(nn.Module):
    """A residual block that ends with its ReLU."""

    def __init__(self, inplace):
        super().__init__()
        self.linear, self.relu = nn.Linear(6, 6), nn.ReLU(inplace)

    def forward(self, x):
        return self.relu(x + self.linear(x))


@pytest.mark.parametrize("inplace", [False, True])
def test_what_a_last_relu_was_given_is_kept_though_it_works_in_place(inplace):
    torch.manual_seed(0)
    model = nn.Sequential(*(Rectified(inplace) for _ in range(2))).eval()
    expected, x = [], torch.randn(3, 5, 6)
    with torch.no_grad():
        hidden = x
        for block in model:
            expected.append(hidden + block.linear(hidden))
            hidden = expected[-1].relu()
        with capture(model, ("hidden", "pre_relu"), blocks=("Rectified",)) as tap:
            model(x)
    for layer, before in enumerate(expected, 1):
        assert (before < 0).any() and torch.equal(
            tap[f"encoder.{layer}.pre_relu"], before
        )
        assert torch.equal(tap[f"encoder.{layer}.hidden"], before.relu())


def test_positions_of_maps_are_those_of_height_and_width():
    """Of 2 maps, 3 high and 5 wide, of 8 channels; whichever axis the channels are."""
    last, first = nn.Sequential(nn.LayerNorm(8)), nn.Sequential(nn.Conv2d(8, 8, 1))
    assert vectors.count_positions(
        last, torch.zeros(2, 3, 5, 8), tokens_first=False
    ) == (2, 15)
    assert vectors.count_positions(
        first, torch.zeros(2, 8, 3, 5), tokens_first=False
    ) == (2, 15)


# ---- attention of newer kinds


LATENT = {
    "deepseek_v2": {"q_lora_rank": 12},
    "deepseek_v3": {"q_lora_rank": None},
    "minicpm3": {"q_lora_rank": 12},
    "deepseek_v3, narrow values": {"q_lora_rank": None, "v_head_dim": 6},
}


@pytest.mark.parametrize("name", LATENT)
def test_raw_queries_and_keys_of_latent_attention(name):
    """They were given as rotated only. Before rotation a key is its own part, then the part that all heads share."""
    from families import _LATENT

    config = transformers.AutoConfig.for_model(
        name.partition(",")[0], **_LATENT | LATENT[name]
    )
    model = transformers.AutoModel.from_config(config).eval()
    attention, seen = model.layers[1].self_attn, {}
    for part in ("q_b_proj", "q_proj", "kv_a_proj_with_mqa", "kv_b_proj"):
        if getattr(attention, part, None) is not None:
            getattr(attention, part).register_forward_hook(
                lambda _m, _a, out, part=part: seen.update({part: out})
            )
    with torch.no_grad(), capture(model, ("query", "key")) as tap:
        model(
            input_ids=torch.randint(
                3, 90, (2, 9), generator=torch.Generator().manual_seed(1)
            )
        )
    query = (
        seen["q_b_proj" if LATENT[name]["q_lora_rank"] else "q_proj"]
        .view(2, 9, 4, 12)
        .transpose(1, 2)
    )
    own = seen["kv_b_proj"].reshape(2, 9, 4, -1).transpose(1, 2)[..., :8]
    shared = seen["kv_a_proj_with_mqa"][:, None, :, 8:].expand(2, 4, 9, 4)
    assert torch.equal(tap["decoder.2.head.query.raw"], query)
    assert torch.equal(tap["decoder.2.head.key.raw"], torch.cat((own, shared), -1))
    for side in ("query", "key"):
        raw, rotated = (
            tap[f"decoder.2.head.{side}.{stage}"] for stage in ("raw", "rotated")
        )
        assert torch.equal(raw[..., :8], rotated[..., :8])  # what is not rotated
        torch.testing.assert_close(
            raw.norm(dim=-1), rotated.norm(dim=-1), atol=1e-5, rtol=1e-5
        )


def test_layers_that_share_the_keys_of_others():
    """Of Gemma 3n: a shared layer's keys are those of the layer they are of, and it has no raw ones of its own."""
    from families import _GEMMA3N

    sizes = _GEMMA3N | {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    }
    config = transformers.Gemma3nTextConfig(
        **sizes | {"layer_types": ["sliding_attention", "full_attention"] * 2}
    )
    model = transformers.AutoModel.from_config(config).double().eval()
    with torch.no_grad(), capture(model, ("query", "key", "value", "attention")) as tap:
        model(
            input_ids=torch.randint(
                3, 90, (2, 9), generator=torch.Generator().manual_seed(1)
            )
        )
    for shared, owner in ((3, 1), (4, 2)):
        assert torch.equal(
            tap[f"decoder.{shared}.head.key.rotated"],
            tap[f"decoder.{owner}.head.key.rotated"],
        )
        assert (
            f"decoder.{shared}.head.key.raw" not in tap.kept
            and f"decoder.{shared}.attention" in tap.kept
        )
    with (
        torch.no_grad(),
        pytest.raises(MeasureError, match="several residual streams"),
        capture(model, ("hidden",)),
    ):
        model(input_ids=torch.tensor([[3, 4, 5]]))


def test_keys_that_are_no_tokens_are_refused_with_the_reason():
    """Of DeepSeek-V4 some keys stand for several tokens: rows are of all keys, but such keys are of no position."""
    from families import _LATENT

    sizes = _LATENT | {
        "layer_types": ["heavily_compressed_attention"] * 2,
        "compress_rates": {},
    }
    sizes["compress_rates"] = {
        "compressed_sparse_attention": 2,
        "heavily_compressed_attention": 4,
    }
    model = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model("deepseek_v4", **sizes)
    ).eval()
    ids = torch.randint(3, 90, (8, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), capture(model, ("attention",)) as tap:
        model(input_ids=ids)
    assert tap["decoder.1.attention"]["keys"].amax() == 12 + 3
    with (
        torch.no_grad(),
        pytest.raises(MeasureError, match="15 keys for 12 positions"),
        capture(model, ("key",)),
    ):
        model(input_ids=ids)


def test_a_norm_s_output_is_turned_the_way_its_norms_fit():
    """Where there are as many heads as tokens, norms tell [head, token] from [token, head]: rotation keeps them."""
    x = torch.randn(2, 4, 4, 6, generator=torch.Generator().manual_seed(0))
    turned = x.roll(1, -1) * torch.tensor([1.0, -1, 1, 1, -1, 1])
    assert torch.equal(_align_axes(x, turned), x) and torch.equal(
        _align_axes(x.transpose(1, 2), turned), x
    )
    for few in (x[:, :3], x[:, :3].transpose(1, 2)):
        assert torch.equal(_align_axes(few, turned[:, :3]), x[:, :3])
    assert torch.equal(
        _align_axes(x[:, :3].transpose(1, 2).flatten(2), turned[:, :3]), x[:, :3]
    )


def test_grouped_keys_lie_behind_the_queries_of_a_fused_projection():
    """Phi-3: four heads, two of keys, two of values."""
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
    }
    model = transformers.Phi3Model(
        transformers.Phi3Config(
            vocab_size=50, num_hidden_layers=1, pad_token_id=0, **sizes
        )
    ).eval()
    outputs = []
    hook = model.layers[0].self_attn.qkv_proj.register_forward_hook(
        lambda *call: outputs.append(call[2])
    )
    with torch.no_grad(), capture(model, ("query.raw", "key.raw")) as tap:
        model(input_ids=torch.tensor([[5, 9, 2, 7, 3]]))
    hook.remove()
    query, key, _ = outputs[-1].view(1, 5, 8, 8).transpose(1, 2).split([4, 2, 2], dim=1)
    assert torch.equal(tap["decoder.1.head.query.raw"], query) and torch.equal(
        tap["decoder.1.head.key.raw"], key
    )
