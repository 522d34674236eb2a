"""Numbers that were silently wrong, and faults that ended badly: one test for each, by item of the issue's list."""

import math
import re

import pytest
import tiny
import torch
from test_cli import call
from torch import nn

# ---- 5: modes after an exception -------------------------------------------------------------------------------------


def partly_frozen():
    """An encoder in training, one block of which its user keeps in evaluation mode."""
    model = tiny.build("bert", torch.float32).train()
    model.encoder.layer[1].eval()
    return model, [module.training for module in model.modules()]


def one_batch(ids):
    from anisoscope.batch import Batch, Stream

    mask = torch.ones(ids.shape[:2], dtype=torch.bool)
    stream = Stream(mask, torch.zeros_like(mask), torch.zeros(len(ids)).long())
    return [Batch({"input_ids": ids}, torch.arange(len(ids)), {"encoder": stream})]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("who", ["utterance_states", "entropies"])
def test_5_modes_come_back_module_by_module(who, fails):
    """`model.train(before)` woke the frozen block, and an exception left all modules in evaluation mode."""
    from anisoscope.classes.pooling import utterance_states
    from anisoscope.training.entropy_penalty import entropies

    model, before = partly_frozen()
    run = {"utterance_states": utterance_states, "entropies": entropies}[who]
    ids = torch.full((2, 4), 10_000 if fails else 5)  # beyond the vocabulary
    if fails:
        with pytest.raises(IndexError):
            run(model, one_batch(ids))
    else:
        run(model, one_batch(ids))
    assert [module.training for module in model.modules()] == before


def test_5_predictions_and_attributions_leave_modes_alone(classifier):
    """They left the classifier in evaluation mode, or ran with its dropout on."""
    from anisoscope.classes.ablation import outcome
    from anisoscope.classes.attributions import seen
    from anisoscope.classes.faithfulness import probabilities
    from anisoscope.training.classifier_loop import predicted

    model, plan = classifier
    try:
        model.train().attention_classifier.blocks[0].eval()
        before = [module.training for module in model.modules()]
        pad = plan.pad_id
        for look in (
            lambda: predicted(model, plan.encoded, pad),
            lambda: probabilities(model, plan.encoded.rows, pad),
            lambda: outcome(model, plan, "uniform", (1,)),
            lambda: list(seen(model, plan)),
        ):
            look()
            assert [module.training for module in model.modules()] == before
    finally:
        model.eval()


# ---- 6: entropy with attention sinks ---------------------------------------------------------------------------------


def with_sinks(**changes):
    """A tiny GPT-OSS: every head has a learnt logit in its softmax, which takes weight from the keys."""
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 8, "intermediate_size": 16, "vocab_size": 60, "num_local_experts": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**sizes, num_experts_per_tok=1, layer_types=["full_attention"] * 2, **changes)
    model = (
        transformers.GptOssModel._from_config(config, attn_implementation="eager", experts_implementation="eager")
        .double()
        .eval()
    )
    for i, layer in enumerate(model.layers):
        layer.self_attn.sinks.data = torch.tensor([2.0, 0.0, -3.0, 150.0 * i], dtype=torch.float64)
    return model


def rows_by_hand(model, ids):
    """Weights [layer][sequence, head, query, key + sink] of each row, by the definition, in float64."""
    from anisoscope.capture import capture

    with torch.no_grad(), capture(model, ("query.rotated", "key.rotated")) as tap:
        model(input_ids=ids)
    found = []
    for i, layer in enumerate(model.layers, start=1):
        q, k = (tap[f"decoder.{i}.head.{name}.rotated"] for name in ("query", "key"))
        score = torch.einsum("bhqd,bhkd->bhqk", q, k.repeat_interleave(2, 1)) * 8**-0.5
        score = score.masked_fill(torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool(), -torch.inf)
        sink = layer.self_attn.sinks.view(1, -1, 1, 1).expand(*score.shape[:3], 1)
        found.append(torch.cat((score, sink), -1).softmax(-1))
    return found


def test_6_normalised_entropy_counts_the_sink_on_both_sides():
    """H over keys and sink was divided by ln(keys) alone: 1.58 for a row of two keys; a row of one key was left out."""
    from anisoscope.measure.loop import measure
    from anisoscope.store import select

    model, ids = with_sinks(), torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(1))
    records = measure(model, [{"input_ids": ids}], ["attention"], sample=0)
    for layer, p in enumerate(rows_by_hand(model, ids), start=1):
        assert torch.allclose(p.sum(-1), torch.ones(()).double())
        outcomes = torch.arange(2, 7).double()  # one key and the sink, two keys and the sink …
        expected = (-torch.xlogy(p, p).sum(-1) / outcomes.log()).mean((0, 2))
        got = select(records, metric="attention.entropy_normalised", layer=layer)["value"]
        assert got.tolist() == pytest.approx(expected.tolist(), abs=1e-12) and got.max() <= 1
        first = select(records, metric="attention.first_mass", layer=layer)["value"]
        assert first.tolist() == pytest.approx(p[..., 0].mean((0, 2)).tolist(), abs=1e-12)


def test_6_uniform_rows_with_a_sink_have_normalised_entropy_1():
    """ln 2 / ln 1 for one key, ln 3 / ln 2 = 1.58 for two: now 1, whatever the number of keys."""
    from anisoscope.capture.masking import Visible
    from anisoscope.capture.rows import attention_rows
    from anisoscope.sums.groups import row_sums

    q, k = torch.zeros(1, 1, 3, 4).double(), torch.zeros(1, 1, 3, 4).double()
    rows = attention_rows(q, k, Visible(None, True, None), scale=1.0, sinks=torch.zeros(1))
    sums = row_sums(rows, torch.ones(1, 1, 3, dtype=torch.bool))
    assert float(sums["entropy_normalised"]) == pytest.approx(3, abs=1e-14) and float(sums["normalised_rows"]) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_6_a_sink_far_above_the_scores_does_not_overflow(dtype):
    """exp(150) is infinite in float32: such rows were counted as not finite and left out."""
    from anisoscope.capture.masking import Visible
    from anisoscope.capture.rows import attention_rows

    q, k = (torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (0, 1))
    rows = attention_rows(q, k, Visible(None, False, None), scale=1.0, sinks=torch.tensor([150.0]), median=True)
    assert all(bool(rows[name].isfinite().all()) for name in ("entropy", "row_max", "first_mass", "row_median"))
    assert float(rows["entropy"].max()) < 1e-40 and float(rows["row_max"].max()) < 1e-40


def test_6_penalty_attribution_and_ablation_know_sinks():
    """`masked_scores` left the sink out: weights added up to 1 where the model's add up to less."""
    from anisoscope.capture.backends import looking_on
    from anisoscope.capture.masking import attention_weights
    from anisoscope.training.entropy_penalty import Watch

    model, ids = with_sinks(), torch.randint(3, 60, (3, 5), generator=torch.Generator().manual_seed(1))
    expected = rows_by_hand(model, ids)
    weights, watch = [], Watch(torch.ones(3, 5), (), columns=True)

    def look(module, query, key, value, mask, settings):
        weights.append(attention_weights(module, query, key, mask, settings, query.shape[2]))
        return (weights[-1] @ value.repeat_interleave(2, 1)).transpose(1, 2)

    with torch.no_grad(), looking_on(model, watch.look):
        plain = model(input_ids=ids, output_attentions=True)
        with looking_on(model, look):  # which stands in for the backend
            ours = model(input_ids=ids)
    for mine, theirs, by_hand in zip(weights, plain.attentions, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
        torch.testing.assert_close(mine, by_hand[..., :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.last_hidden_state, plain.last_hidden_state, rtol=0, atol=1e-10)
    row = torch.stack([p[:, :, 0] for p in expected]).mean(0)  # one key and the sink
    assert row.shape == (3, 4, 6)
    entropy = [-torch.xlogy(p[:, :, 0], p[:, :, 0]).sum(-1).mean(1) for p in expected]
    torch.testing.assert_close(watch.row_entropy(), sum(entropy) / 2 / math.log(6), rtol=0, atol=1e-12)


# ---- 7: gates taken for heads; what runs twice in a forward call -----------------------------------------------------


def gated(family):
    """Qwen's next models: one projection puts out query and gate."""
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 8, "intermediate_size": 16, "vocab_size": 60, "layer_types": ["full_attention"] * 2}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    config = {
        "qwen3_next": lambda: transformers.Qwen3NextConfig(**sizes, **experts, shared_expert_intermediate_size=8),
        "qwen3_5": lambda: transformers.Qwen3_5TextConfig(**sizes),
    }[family]()
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(config).eval()


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5"])
def test_7_raw_queries_are_no_gates(family):
    """`query.raw` had twice the heads, every other one a gate; the query norm's own input says what queries are."""
    from anisoscope.capture import capture

    model, given = gated(family), []
    for layer in model.layers:
        layer.self_attn.q_norm.register_forward_pre_hook(lambda _m, args: given.append(args[0]) or None)
    with torch.no_grad(), capture(model, ("query", "key")) as tap:
        model(input_ids=torch.randint(3, 60, (2, 7)))
    for layer, query in enumerate(given, start=1):
        assert torch.equal(tap[f"decoder.{layer}.head.query.raw"], query.transpose(1, 2))
        assert tap[f"decoder.{layer}.head.key.raw"].shape == (2, 2, 7, 8)


class Twice(nn.Module):
    """An encoder that runs twice in one forward call: on two inputs, or looped on its own output."""

    def __init__(self, looped=False):
        super().__init__()
        self.encoder, self.looped = tiny.build("bert", torch.float32).encoder, looped

    def forward(self, x):
        once = self.encoder(x)[0]
        return self.encoder(once)[0] if self.looped else once + self.encoder(x.flip(1))[0]


def test_7_an_encoder_that_runs_on_two_inputs_is_refused():
    """Every vector counted twice: 2 · 2 · 5 of 2 · 5, with the intervals of as many."""
    from anisoscope.errors import MeasureError
    from anisoscope.measure.loop import measure

    batches = [{"x": torch.randn(2, 5, 32)}]
    with pytest.raises(MeasureError, match=r"encoder\.layer\.0 run again on other input.*measure the encoder itself"):
        measure(Twice(), batches, ["mean_cosine"], blocks=("BertLayer",))


def test_7_a_loop_s_rounds_are_layers():
    """Layers 1 to 3 were counted twice and 4 to 6 were not there."""
    from anisoscope.capture import capture

    model, x = Twice(looped=True).eval(), torch.randn(2, 5, 32)
    with torch.no_grad(), capture(model, ("hidden",), blocks=("BertLayer",)) as tap:
        output = model(x)
    assert tap.sites == [f"encoder.{i}.hidden" for i in range(7)]
    assert torch.equal(tap["encoder.6.hidden"], output)
    with torch.no_grad(), capture(model.encoder, ("hidden",), blocks=("BertLayer",)) as tap:
        once = model.encoder(x)[0]
    assert torch.equal(tap["encoder.3.hidden"], once)


def test_7_shared_layers_in_groups_are_layers():
    """ALBERT with two groups of shared weights began at layer 0 again each time its first group ran."""
    import transformers

    from anisoscope.capture import capture

    sizes = {"embedding_size": 16, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.AlbertConfig(**sizes, vocab_size=60, num_hidden_layers=6, num_hidden_groups=2)
    model, ids = transformers.AlbertModel(config).eval(), torch.randint(3, 60, (2, 7))
    with torch.no_grad(), capture(model, ("hidden", "attention")) as tap:
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert [s for s in tap.sites if "hidden" in s] == [f"encoder.{i}.hidden" for i in range(7)]
    assert [s for s in tap.sites if "attention" in s] == [f"encoder.{i}.attention" for i in range(1, 7)]
    assert all(torch.equal(tap[f"encoder.{i}.hidden"], state) for i, state in enumerate(states))


def test_7_two_attentions_in_one_place_are_refused():
    """A layer that attends twice gave both under one name."""
    from anisoscope.capture import capture
    from anisoscope.errors import MeasureError

    model = tiny.build("bert", torch.float32)
    inner = model.encoder.layer[1].attention.self
    inner.register_forward_hook(lambda m, args, kwargs, _out: m.forward(*args, **kwargs), with_kwargs=True)
    said = r"one call at encoder\.2\.attention.*--panel hidden,spectrum"
    with pytest.raises(MeasureError, match=said), torch.no_grad(), capture(model, ("attention",)):
        model(input_ids=torch.randint(3, 60, (2, 7)))


# ---- 9: names of blocks; faults that are said at once ----------------------------------------------------------------


class Stack(nn.Module):
    """A model that knows nothing of transformers: blocks that return tuples, called by keyword."""

    class Block(nn.Module):
        def __init__(self, batch_first=True):
            super().__init__()
            self.attend, self.norm = nn.MultiheadAttention(16, 2, batch_first=batch_first), nn.LayerNorm(16)

        def forward(self, src):
            return self.norm(src + self.attend(src, src, src)[0]), {"more": 1}

    def __init__(self, batch_first=True):
        super().__init__()
        self.layers = nn.ModuleList(self.Block(batch_first) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(src=x)[0]
        return x


def hidden_of(model, *inputs, **options):
    """Hidden states by layer, and the output."""
    from anisoscope.capture import capture

    with torch.no_grad(), capture(model, ("hidden", "final"), **options) as tap:
        output = model(*inputs)
    return tap.kept, output


@pytest.mark.parametrize("typed, said", [("Nope", "Block"), ("Blok", "did you mean Block"), ("layer.*", r"layers\.\*")])
def test_9_blocks_that_fit_nothing_are_refused(typed, said):
    """`--blocks Nope` was ignored: the model's own blocks were measured without a word."""
    from anisoscope.errors import UsageError

    for model in (Stack(), tiny.model("bert")):
        with pytest.raises(UsageError, match=said if isinstance(model, Stack) else f"{re.escape(repr(typed))}, which"):
            hidden_of(model, torch.randn(2, 5, 16), blocks=(typed,))


def test_9_blocks_nope_through_the_program(tmp_path):
    """Exit 0 and the numbers of other blocks."""
    done = call("measure", "builtin:minilm", "--blocks", "Nope", "--limit", "2", "-o", str(tmp_path / "run"))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "'Nope', which fits none" in " ".join(done.stderr.split()) and "BertLayer" in done.stderr


def test_9_blocks_by_class_or_by_name_pattern():
    """A pattern of module names was no way to name blocks, and a block called by keyword a KeyError."""
    model, x = Stack().eval(), torch.randn(2, 5, 16)
    for blocks in (("Block",), ("layers.*",), ("layers.0", "layers.[12]")):
        kept, output = hidden_of(model, x, blocks=blocks)
        assert list(kept) == [f"encoder.{i}.hidden" for i in range(4)]
        assert torch.equal(kept["encoder.0.hidden"], x) and torch.equal(kept["encoder.3.hidden"], output)
    assert list(hidden_of(model, x, blocks=("layers.[12]",))[0]) == [f"encoder.{i}.hidden" for i in range(3)]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_9_torch_s_own_encoder(batch_first, norm_first):
    """Its layers were not found; by class they came as [token, sequence, dim] or, padded, as nested tensors."""
    from anisoscope.capture import capture

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(16), enable_nested_tensor=not norm_first).eval()
    x = torch.randn(3, 5, 16)
    real = torch.arange(5) < torch.tensor([4, 3, 1])[:, None]
    given = x if batch_first else x.transpose(0, 1)
    with torch.no_grad(), capture(model, ("hidden", "final")) as tap:
        tap.real = {"encoder": real}
        output = model(given, src_key_padding_mask=~real)
    expected = [x]
    with torch.no_grad():
        for one in model.layers:
            y = expected[-1] if batch_first else expected[-1].transpose(0, 1)
            y = one(y, src_key_padding_mask=~real)
            expected.append(y if batch_first else y.transpose(0, 1))
    output = output if batch_first else output.transpose(0, 1)
    for i, state in enumerate(expected):
        assert tap[f"encoder.{i}.hidden"].shape == (3, 5, 16)
        torch.testing.assert_close(tap[f"encoder.{i}.hidden"][real], state[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tap["encoder.final"][real], output[real], rtol=1e-5, atol=1e-5)


def test_9_torch_s_encoder_and_decoder_are_two_stacks():
    model = nn.Transformer(16, 2, 2, 3, 32, batch_first=True).eval()
    kept, output = hidden_of(model, torch.randn(2, 5, 16), torch.randn(2, 4, 16))
    names = [f"encoder.{i}.hidden" for i in range(3)] + [f"decoder.{i}.hidden" for i in range(4)]
    assert [site for site in kept if "hidden" in site] == names
    assert kept["encoder.2.hidden"].shape == (2, 5, 16) and torch.equal(kept["decoder.final"], output)


@pytest.mark.parametrize("family", ["XLNet", "FSMT"])
def test_9_families_whose_blocks_pass_on_tokens_first(family):
    """As many tokens as sequences: the two axes were swapped, and no shape said so."""
    import transformers

    if family == "XLNet":
        config = transformers.XLNetConfig(d_model=32, n_layer=3, n_head=4, d_inner=48, vocab_size=60)
    else:
        sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
        sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "d_model": 32}
        config = transformers.FSMTConfig(langs=["a", "b"], src_vocab_size=60, tgt_vocab_size=60, **sizes)
    model, ids = transformers.AutoModel.from_config(config).eval(), torch.randint(3, 60, (4, 4))
    kept, _ = hidden_of(model, ids)
    with torch.no_grad():
        states = model(ids, output_hidden_states=True)
    of_stacks = {"encoder": states.get("hidden_states", states.get("encoder_hidden_states"))}
    of_stacks |= {"decoder": states.decoder_hidden_states} if family == "FSMT" else {}
    for stack, own in of_stacks.items():
        assert all(torch.equal(kept[f"{stack}.{i}.hidden"], state) for i, state in enumerate(own))
        assert f"{stack}.{len(own)}.hidden" not in kept


def test_9_a_batch_axis_that_cannot_be_known_is_asked_for():
    """Blocks of one's own around torch's attention, which takes tokens first: either could be meant."""
    from anisoscope.errors import MeasureError, UsageError
    from anisoscope.measure.loop import measure

    model, x = Stack(batch_first=False).eval(), torch.randn(5, 2, 16)
    with pytest.raises(UsageError, match=r"Block around MultiheadAttention with batch_first=False.*tokens_first=True"):
        hidden_of(model, x, blocks=("Block",))
    kept, output = hidden_of(model, x, blocks=("Block",), tokens_first=True)
    assert torch.equal(kept["encoder.3.hidden"], output.transpose(0, 1))
    batch = {"x": x, "unit": torch.tensor([0, 1])}
    with pytest.raises(MeasureError, match=r"vectors of 2 sequences at encoder\.0\.hidden.*tokens_first=True"):
        measure(model, [batch], panels=("hidden",), blocks=("Block",), tokens_first=False)
    records = measure(model, [batch], ["mean_cosine"], blocks=("Block",), tokens_first=True, policies=("all",))
    assert set(records["n_vectors"]) == {10} and set(records["n_units"]) == {2}


def test_9_one_vector_per_example():
    """[sequence, dim] of a plain network was taken for something else: three axes were expected."""
    model, x = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), torch.randn(5, 8)
    kept, output = hidden_of(model, x, blocks=("Linear",))
    assert torch.equal(kept["encoder.0.hidden"], x.unsqueeze(1)) and kept["encoder.1.hidden"].shape == (5, 1, 6)
    assert torch.equal(kept["encoder.2.hidden"], output.unsqueeze(1))


def test_9_what_a_block_returns_is_told_where_it_is_no_vector():
    from anisoscope.errors import MeasureError

    class Odd(nn.Module):
        def forward(self, x):
            return {"logits": x}

    model = nn.Sequential(Odd())
    with pytest.raises(MeasureError, match=r"Odd to return a tensor of vectors.*got a mapping of logits"):
        hidden_of(model, torch.randn(2, 5, 4), blocks=("Odd",))


# ---- faults that must end clearly ------------------------------------------------------------------------------------


def off_the_interface(family):
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60}
    config = {
        "falcon": lambda: transformers.FalconConfig(**small),
        "bloom": lambda: transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=60),
        "mpt": lambda: transformers.MptConfig(d_model=32, n_layers=2, n_heads=4, vocab_size=60),
        "gptj": lambda: transformers.GPTJConfig(n_embd=32, n_layer=2, n_head=4, vocab_size=60, rotary_dim=4),
        "deberta": lambda: transformers.DebertaConfig(**small, intermediate_size=48),
        "deberta-v2": lambda: transformers.DebertaV2Config(**small, intermediate_size=48),
        "xlnet": lambda: transformers.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=48, vocab_size=60),
    }[family]()
    return transformers.AutoModel.from_config(config).eval()


@pytest.mark.parametrize("family", ["falcon", "bloom", "mpt", "gptj", "deberta", "deberta-v2", "xlnet"])
def test_a_missing_attention_interface_is_told_at_the_first_batch(family):
    """It was told after the whole pass, hours later; the hidden panel, which the message names, works."""
    from anisoscope.errors import MeasureError
    from anisoscope.measure.loop import measure

    model, calls = off_the_interface(family), []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    batches = [{"input_ids": torch.randint(3, 60, (2, 6))}] * 3
    with pytest.raises(MeasureError, match=r"attention classes of \w+: .*Attention.*--panel hidden,spectrum"):
        measure(model, batches, sample=0)
    assert len(calls) == 1
    records = measure(model, batches, panels=("hidden", "spectrum"), sample=0)
    assert set(records["layer"].dropna()) == {0, 1, 2} and set(records["n_units"]) == {6}


def test_a_module_without_transformers_is_measured_in_its_hidden_states():
    """All panels asked attention of `nn.MultiheadAttention`, which cannot show it, and nothing was measured."""
    from anisoscope.measure.loop import measure

    records = measure(Stack(), [{"x": torch.randn(4, 5, 16)}], blocks=("layers.*",))
    assert "mean_cosine" in set(records["metric"]) and "attention.entropy" not in set(records["metric"])


def test_the_meta_device_is_refused_in_one_line():
    """It ended in "Cannot copy out of meta tensor"."""
    from anisoscope.errors import ModelError
    from anisoscope.measure.loop import measure

    with torch.device("meta"):
        model = Stack()
    with pytest.raises(ModelError, match="whose weights have values"):
        measure(model, [{"x": torch.randn(4, 5, 16)}], blocks=("layers.*",))
    done = call("measure", "builtin:minilm", "--device", "meta", "--limit", "2")
    assert done.returncode == 3 and "Traceback" not in done.stderr and "a device that computes" in done.stderr


def test_nan_in_outputs_is_counted_and_said():
    """Already so; it stays so: a model that puts out NaN is measured on the rest, which is counted."""
    from anisoscope.measure.loop import Listed, run_pass
    from anisoscope.measure.settings import Settings

    model = Stack().eval()
    x = torch.randn(4, 5, 16)
    x[2, 3] = torch.nan
    found = run_pass(model, Listed([{"x": x}]), Settings(panels=("hidden",), sample=0, blocks=("layers.*",))).excluded()
    assert found["encoder.0.hidden"]["nonfinite"] == 1
    assert found["encoder.1.hidden"]["nonfinite"] == 5  # attention spreads it over its sequence


def test_built_once_modes_and_the_registration_with_the_attention_interface():
    """Evaluation mode was switched by hand in seven places, and attention functions registered in two."""
    from pathlib import Path

    import anisoscope

    sources = {path: path.read_text() for path in Path(anisoscope.__file__).parent.rglob("*.py")}
    switching = {
        path.name for path, text in sources.items() if re.search(r"\.train\(training|training = model\.", text)
    }
    registering = {path.name for path, text in sources.items() if "AttentionInterface.register(" in text}
    assert not switching and registering == {"backends.py"}
