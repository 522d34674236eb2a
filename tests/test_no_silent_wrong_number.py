"""Numbers that were silently wrong, and faults that ended badly: one test for each, by item of the issue's list."""

import math
import re
import subprocess
import sys

import pytest
import tiny
import torch
from hub_server import Hub

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


# ---- 11: a body from a hub that is not what the hub announced --------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    """A folder of a tiny BERT and its words."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{k}" for k in range(95))]
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=100, **sizes)).save_pretrained(folder)
    BertTokenizerFast(vocab={word: k for k, word in enumerate(words)}).save_pretrained(folder)
    return folder


def loaded(hub, home):
    """Exit code, and weights or error, of one load in a process of its own."""
    code = """if True:
        import sys
        from anisoscope.errors import AnisoscopeError
        from anisoscope.models.load import load
        try:
            print(load("tester/tiny").weights_sha256)
        except AnisoscopeError as error:
            sys.exit(print(error) or error.exit_code)
    """
    done = subprocess.run([sys.executable, "-c", code], env=hub.environment(home), text=True, capture_output=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_11_a_body_that_is_not_what_the_hub_announced_is_refused_and_not_kept(tiny_bert, tmp_path, file):
    """A file with one byte changed on the way loaded as other weights, and served from the cache ever after."""
    from anisoscope.models.load import load

    with Hub() as hub:
        hub.add("tester/tiny", {"c" * 40: tiny_bert})
        hub.tampered.add(file)
        code, said = loaded(hub, tmp_path)
        assert code == 3 and f"{file} of tester/tiny with the hash that the hub announced" in said, said
        assert said.partition("got ")[2].partition(".")[0].endswith("…; removed from the cache")
        assert not list(tmp_path.rglob(file)), "it stays in the cache"
        hub.tampered.clear()
        assert loaded(hub, tmp_path) == (0, load(str(tiny_bert)).weights_sha256)


def test_11_a_copy_in_the_cache_that_changed_since_is_refused(tiny_bert, tmp_path):
    """Without a network, too: the cache itself says what was announced."""
    with Hub() as hub:
        hub.add("tester/tiny", {"c" * 40: tiny_bert})
        assert loaded(hub, tmp_path)[0] == 0
    (kept,) = tmp_path.rglob("model.safetensors")
    body = bytearray(kept.read_bytes())
    body[-1] ^= 1
    kept.resolve().write_bytes(body)
    code, said = loaded(hub, tmp_path)
    assert code == 3 and "removed from the cache" in said and not list(tmp_path.rglob("model.safetensors"))
