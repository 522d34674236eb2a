"""Maps over words of classifiers of many families, against computations by hand in float64.

Each text goes through the model alone, without padding; attention is transformers' own (eager), values are taken from
the projections, and the position that the head reads is written down here, family by family. What is tested goes
through batches of unequal lengths, and finds that position itself.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from anisoscope.batch import Batch, Stream
from anisoscope.classes.ablation import (
    find_seen_pairs,
    measure_outcomes,
    replace_weights,
)
from anisoscope.classes.attributions import (
    compute_attributions,
    iter_captured,
    measure_class_directions,
)
from anisoscope.classes.cls_entropy import measure_entropies
from anisoscope.classes.pooling import find_neutral_padding, predict_logits
from anisoscope.classes.readout import _decide_reading, read_tokens
from anisoscope.data.encoding import Encoded, LabelledPlan, Padding
from anisoscope.errors import MeasureError
from anisoscope.runs import classes as classes_module

CLASSES, LENGTHS = 3, (9, 4, 6, 7, 5, 8)
COMMON = {
    "vocab_size": 60,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": CLASSES,
}
WIDE = COMMON | {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
WIDE |= {"max_position_embeddings": 64}
GROUPED = WIDE | {"num_key_value_heads": 2, "head_dim": 8}
GPT2 = COMMON | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DISTIL = COMMON | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
BART = COMMON | {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 64,
}
BART |= {
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
BART |= {"decoder_start_token_id": 2}
T5 = COMMON | {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
XLNET = COMMON | {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
SPECIAL = {"cls_token_id": 1, "sep_token_id": 2, "mask_token_id": 3}
XLM = COMMON | {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "pad_index": 0}
XLM |= {"summary_type": "mean", "n_langs": 1, "use_lang_emb": False}

# family → head, settings, what it reads, and the path of what projects values (`:n` the n-th third of its output)
FAMILIES = {
    "bert": ("Bert", WIDE, "first", "bert.encoder.layer.{}.attention.self.value"),
    "roberta": (
        "Roberta",
        WIDE,
        "first",
        "roberta.encoder.layer.{}.attention.self.value",
    ),
    "distilbert": (
        "DistilBert",
        DISTIL,
        "first",
        "distilbert.transformer.layer.{}.attention.v_lin",
    ),
    "electra": (
        "Electra",
        WIDE,
        "first",
        "electra.encoder.layer.{}.attention.self.value",
    ),
    "deberta": (
        "DebertaV2",
        WIDE,
        "first",
        "deberta.encoder.layer.{}.attention.self.value_proj",
    ),
    "modernbert": (
        "ModernBert",
        WIDE | SPECIAL | {"classifier_pooling": "cls"},
        "first",
        "model.layers.{}.attn.Wqkv:2",
    ),
    "modernbert mean": (
        "ModernBert",
        WIDE | SPECIAL | {"classifier_pooling": "mean"},
        "mean",
        "model.layers.{}.attn.Wqkv:2",
    ),
    "eurobert mean": (
        "EuroBert",
        GROUPED | {"classifier_pooling": "mean"},
        "mean",
        "model.layers.{}.self_attn.v_proj",
    ),
    "xlnet mean": ("XLNet", XLNET | {"summary_type": "mean"}, "mean", None),
    "xlm mean": ("XLM", XLM, "mean", "transformer.attentions.{}.v_lin"),
    "flaubert mean": ("Flaubert", XLM, "mean", "transformer.attentions.{}.v_lin"),
    "gpt2": ("GPT2", GPT2, "last", "transformer.h.{}.attn.c_attn:2"),
    "llama": ("Llama", GROUPED, "last", "model.layers.{}.self_attn.v_proj"),
    "qwen2": ("Qwen2", GROUPED, "last", "model.layers.{}.self_attn.v_proj"),
    "mistral": (
        "Mistral",
        GROUPED | {"sliding_window": 4},
        "last",
        "model.layers.{}.self_attn.v_proj",
    ),
    "gemma": ("Gemma", GROUPED, "last", "model.layers.{}.self_attn.v_proj"),
    "xlnet": ("XLNet", XLNET, "last", None),
    "bart": ("Bart", BART, "last", "model.decoder.layers.{}.encoder_attn.v_proj"),
    "t5": ("T5", T5, "last", "transformer.decoder.block.{}.layer.1.EncDecAttention.v"),
}
# Their mean is over padding too, so that texts of one length alone may be in a batch.
OF_PADDING_TOO = ("xlnet mean", "xlm mean", "flaubert mean")
SIDES = {"xlnet": "left"} | dict.fromkeys(OF_PADDING_TOO, "none")
CROSSED, CAUSAL = ("bart", "t5"), ("gpt2", "llama", "qwen2", "mistral", "gemma")


@pytest.fixture(autouse=True)
def softmax_in_float64(monkeypatch):
    """Transformers' own attention takes its softmax in float32 in many families, whatever the model is in."""
    softmax = nn.functional.softmax
    monkeypatch.setattr(
        nn.functional,
        "softmax",
        lambda x, dim=-1, dtype=None: softmax(x, dim=dim),  # noqa: ARG005
    )


class MaxPooled(transformers.BertPreTrainedModel):
    """A head that nobody's list of names holds: the maximum of each dimension over the real tokens."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, input_ids, attention_mask=None, **kwargs):
        x = self.bert(input_ids, attention_mask, **kwargs).last_hidden_state
        hidden = (
            torch.zeros_like(input_ids)
            if attention_mask is None
            else 1 - attention_mask
        )
        x = x.masked_fill(hidden.bool()[..., None], -torch.inf)
        return transformers.modeling_outputs.SequenceClassifierOutput(
            logits=self.classifier(x.amax(1))
        )


def build(family, **changes):
    """A random classifier in float64, with weights large enough that attention is not uniform."""
    head, settings, *_ = FAMILIES[family]
    config = getattr(transformers, f"{head}Config")(**settings | changes)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = (
        getattr(transformers, f"{head}ForSequenceClassification")(config)
        .double()
        .eval()
    )
    return centred(widen(model), texts(family))


def centred(model, rows):
    """The model with a bias that makes all classes as likely, so that the texts are not all found to be of one."""
    head = [
        m
        for m in model.modules()
        if isinstance(m, nn.Linear) and m.out_features == CLASSES
    ][-1]
    logits = torch.cat([predict_logits(model, [row], 0) for row in rows])
    bias = (
        torch.zeros(CLASSES, dtype=torch.float64)
        if head.bias is None
        else head.bias.detach()
    )
    head.bias = nn.Parameter(bias - logits.mean(0))
    return model


def widen(model):
    """The model, its projections three times as large, so that attention and logits differ from token to token."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name.lower():
                parameter.mul_(3.0)
    return model


def texts(family="", lengths=LENGTHS):
    """Rows of token ids that end with the mark of the end if the head looks for it."""
    draw = torch.Generator().manual_seed(1)
    rows = []
    for i, n in enumerate(lengths):
        ids = torch.randint(5, 60, (n,), generator=draw).tolist()
        if family in CROSSED:
            ids[-1] = COMMON["eos_token_id"]
        rows.append({"input_ids": ids, "labels": i % CLASSES})
    return rows


def plan_of(rows, padding, family="", **options):
    words = [list(range(len(row["input_ids"]))) for row in rows]
    stack = (
        ("encoder", "decoder")
        if family in CROSSED
        else "decoder"
        if family in CAUSAL
        else "encoder"
    )
    return LabelledPlan(Encoded(rows, words), padding, stack=stack, **options)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def rows_read(x, way):
    """What a head that reads in this way makes of [token, …]."""
    return {"first": x[0], "last": x[-1], "mean": x.mean(0)}[way]


@torch.no_grad()
def by_hand(model, row, family):
    """(logits, attention row, values, hidden state read) of a text alone; lists by layer from 1, in float64."""
    _, _, way, path = FAMILIES[family]
    values, ids = [], torch.tensor([row["input_ids"]])
    hooks = []
    for layer in range(2):
        if path is None:
            continue
        name, _, third = path.format(layer).partition(":")

        def keep(_module, _args, output, third=third):
            values.append(
                (output.chunk(3, -1)[int(third)] if third else output)[0].numpy()
            )

        hooks.append(model.get_submodule(name).register_forward_hook(keep))
    out = model(
        ids,
        attention_mask=torch.ones_like(ids),
        output_attentions=True,
        output_hidden_states=True,
    )
    for hook in hooks:
        hook.remove()
    given = out.cross_attentions if family in CROSSED else out.attentions
    attention = [rows_read(x[0].mean(0).numpy(), way) for x in given]
    states = out.decoder_hidden_states if family in CROSSED else out.hidden_states
    hidden = [x[0].numpy() for x in states[1:]]
    return out.logits[0].numpy(), attention, values, hidden


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_are_those_of_each_text_alone_in_float64(family):
    model, rows, way = build(family), texts(family), FAMILIES[family][2]
    padding = find_neutral_padding(model, rows, 0)
    assert padding.side == SIDES.get(family, "right")
    plan, notes = plan_of(rows, padding, family, batch_tokens=30), []
    assert len(plan) > 1
    ones = dict(iter_captured(model, plan, notes))
    assert bool(notes) == (family in CROSSED)
    expected = [by_hand(model, row, family) for row in rows]
    found = [int(logits.argmax()) for logits, *_ in expected]
    assert len(set(found)) > 1
    directions = measure_class_directions(model, plan, CLASSES)
    for i, (logits, attention, values, hidden) in enumerate(expected):
        one = ones[i]
        np.testing.assert_allclose(one.logits, logits, atol=1e-9)
        assert one.found == found[i]
        maps = compute_attributions(one, directions)
        for layer in (1, 2):
            np.testing.assert_allclose(
                maps["attention", layer], attention[layer - 1], atol=1e-10
            )
            if (
                layer == 1 and family not in CROSSED
            ):  # transformers hands out the last layer after its norm
                np.testing.assert_allclose(
                    one.pooled[0], unit(rows_read(hidden[0], way)), atol=1e-10
                )
            if not values:
                continue
            of_layer = [x[2][layer - 1] for x in expected]
            norms = np.linalg.norm(of_layer[i], axis=1)
            np.testing.assert_allclose(
                maps["value norm", layer], attention[layer - 1] * norms, atol=1e-9
            )
            # the mean unit vector of the texts that are found to be of each class
            of_class = [
                unit(
                    sum(
                        unit(unit(x).mean(0))
                        for x, c in zip(of_layer, found, strict=True)
                        if c == wanted
                    )
                )
                if wanted in found
                else np.zeros(of_layer[0].shape[1])
                for wanted in range(CLASSES)
            ]
            cosine = unit(of_layer[i]) @ np.stack(of_class).T
            others = [c for c in range(CLASSES) if c != found[i]]
            contrast = cosine[:, found[i]] - cosine[:, others].mean(1)
            np.testing.assert_allclose(
                maps["value, contrast", layer], contrast, atol=1e-9
            )
    whole = [x for x in (maps.get(("rollout", 2)),) if x is not None]
    assert bool(whole) == (family not in CROSSED)


def test_a_head_of_no_known_kind_is_found_too():
    """Each dimension of a maximum is that of one token: its share is that of the dimensions it gives."""
    torch.manual_seed(0)
    model = widen(MaxPooled(transformers.BertConfig(**WIDE)).double().eval())
    rows = texts()
    plan = plan_of(rows, find_neutral_padding(model, rows, 0))
    reading = read_tokens(model, plan[0])
    assert reading.at == "max" and (reading.weights > 0).sum(1).min() > 2
    numbers = plan[0].unit.tolist()
    for place, number in enumerate(numbers):
        ids = torch.tensor([rows[number]["input_ids"]])
        with torch.no_grad():
            x = model.bert(ids).last_hidden_state[0]
        torch.testing.assert_close(
            reading.pool(_last(model, plan[0]))[place], x.amax(0), atol=1e-10, rtol=0
        )
        shares = torch.bincount(x.argmax(0), minlength=reading.weights.shape[1]) > 0
        assert torch.equal(reading.weights[place] > 0, shares)


class OfBothStacks(transformers.BartPreTrainedModel):
    """A head that reads the first token of the encoder and of the decoder."""

    def __init__(self, config):
        super().__init__(config)
        self.model = transformers.BartModel(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels)

    def forward(self, input_ids, attention_mask=None, **kwargs):
        out = self.model(input_ids, attention_mask, **kwargs)
        both = out.last_hidden_state[:, 0] + 2 * out.encoder_last_hidden_state[:, 0]
        return transformers.modeling_outputs.SequenceClassifierOutput(
            logits=self.classifier(both)
        )


def test_of_two_stacks_that_a_head_reads_the_one_that_ran_last_counts():
    torch.manual_seed(0)
    model = widen(OfBothStacks(transformers.BartConfig(**BART)).double().eval())
    reading = read_tokens(model, plan_of(texts("bart"), Padding(0), "bart")[0])
    assert (reading.stack, reading.at) == ("decoder", "first")


def _last(model, batch):
    with torch.no_grad():
        return model.bert(**batch.inputs).last_hidden_state


def one_batch(rows, side):
    """A batch padded on a side, as a user's own loader may make it."""
    width = max(len(row["input_ids"]) for row in rows)
    ids, mask = (
        torch.zeros(len(rows), width).long(),
        torch.zeros(len(rows), width).bool(),
    )
    for i, row in enumerate(rows):
        place = (
            slice(0, len(row["input_ids"]))
            if side == "right"
            else slice(width - len(row["input_ids"]), width)
        )
        ids[i, place], mask[i, place] = torch.tensor(row["input_ids"]), True
    stream = Stream(mask, torch.zeros_like(mask), torch.zeros(len(rows)).long())
    return Batch(
        {"input_ids": ids, "attention_mask": mask.long()},
        torch.arange(len(rows)),
        {"decoder": stream},
    )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_the_last_real_token_is_found_whatever_side_is_padded(family, side):
    batch = one_batch(texts(), side)
    reading = read_tokens(build(family), batch)
    mask = batch.streams["decoder"].mask
    last = mask.flip(1).int().cumsum(1).flip(1)
    assert reading.at == "last"
    assert torch.equal(reading.weights, (mask & (last == 1)).double())


def test_the_row_of_the_first_token_needs_padding_behind_it():
    """Before it the first row is that of padding: its entropy was given as that of [CLS]."""
    batches = {side: one_batch(texts(), side) for side in ("right", "left")}
    found = measure_entropies(build("bert"), [batches["right"]])
    assert {*found} >= {"row", "again", "columns"} and all(
        bool(x.isfinite().all()) for x in found.values()
    )
    with pytest.raises(
        MeasureError, match="padding behind the tokens; got padding before them"
    ):
        measure_entropies(build("bert"), [batches["left"]])


@pytest.mark.parametrize("way", ["first", "last", "mean"])
def test_of_a_text_whose_logits_are_flat_the_tokens_are_those_that_the_others_tell(way):
    """The second text's gradient is 0 everywhere, as where a tanh is saturated."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    ends = {"first": [0, 0, 0], "last": [2, 1, 3]}
    read = (
        mask.double()
        if way == "mean"
        else torch.nn.functional.one_hot(torch.tensor(ends[way]), 4).double()
    )
    gradient = read.unsqueeze(-1).repeat(1, 1, 5)
    gradient[1] = 0
    reading = _decide_reading(
        "encoder", gradient, mask, torch.zeros(3, CLASSES), "Model"
    )
    assert reading.at == way
    torch.testing.assert_close(reading.weights, read / read.sum(1, keepdim=True))


def test_a_head_that_takes_the_end_for_padding_reads_the_token_before_it():
    """The padding token is the mark of the end, which ends every text: the head reads the last token that is not it."""
    model, rows = build("llama", pad_token_id=2), texts("bart")
    assert all(row["input_ids"][-1] == 2 for row in rows)
    plan = plan_of(rows, Padding(2))
    for i, one in iter_captured(model, plan):
        assert (
            one.read.argmax() == len(rows[i]["input_ids"]) - 2 and one.read.max() == 1
        )
    assert read_tokens(model, plan[0]).at is None


def test_a_text_says_the_same_alone_and_among_others():
    """XLNet's head reads the last position: with padding on the right, of all texts but the longest padding."""
    model, rows = build("xlnet"), texts()
    alone = torch.cat([predict_logits(model, [row], 0) for row in rows])
    wrong = predict_logits(model, rows, Padding(0))
    right = predict_logits(model, rows, find_neutral_padding(model, rows, 0))
    assert (wrong - alone).abs().max() > 0.01
    torch.testing.assert_close(right, alone, atol=1e-9, rtol=0)


def test_texts_of_one_length_are_put_together_if_padding_changes_what_is_said():
    """FNet mixes all positions, padding too: no side of it leaves texts as they are alone."""
    config = transformers.FNetConfig(**WIDE)
    torch.manual_seed(0)
    model = widen(transformers.FNetForSequenceClassification(config).double().eval())
    rows = texts(lengths=(4, 6, 6, 4, 9, 7))
    padding = find_neutral_padding(model, rows, 0)
    assert padding.side == "none"
    alone = torch.cat([predict_logits(model, [row], 0) for row in rows])
    torch.testing.assert_close(
        predict_logits(model, rows, padding), alone, atol=1e-9, rtol=0
    )
    plan = plan_of(rows, padding)
    assert (
        sorted(
            len({len(rows[i]["input_ids"]) for i in batch.unit.tolist()})
            for batch in plan
        )
        == [1] * 4
    )
    notes = []
    (_, one), *_ = iter_captured(model, plan, notes)
    assert any("maps of attention left out" in note for note in notes) and set(
        one.vectors
    ) == {"hidden"}


def test_a_head_of_every_token_is_told_apart():
    config = transformers.BertConfig(**WIDE)
    model = transformers.BertForTokenClassification(config).eval()
    rows = texts()
    with pytest.raises(
        MeasureError, match="names a class for each sequence; got logits of shape"
    ):
        next(iter(iter_captured(model, plan_of(rows, 0))))


# ---- attention replaced in decoders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uniform", "permuted", "another"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_weights_of_a_decoder_are_replaced_by_those_of_tokens_it_may_see(kind, side):
    lengths, width = (6, 3, 5), 6
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    mask = mask.flip(1) if side == "left" else mask
    causal = torch.ones(width, width).tril().bool()
    visible = mask[:, None, None, :] & causal & mask[:, None, :, None] | (
        ~mask[:, None, :, None] & mask[:, None, None]
    )
    scores = torch.randn(
        3, 2, width, width, generator=torch.Generator().manual_seed(0)
    ).double()
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    other = replace_weights(weights, mask, kind, 3, None, visible)
    assert not (other * ~visible).any()
    for i, n in enumerate(lengths):
        real = mask[i].nonzero().flatten()
        rows = other[i][:, real][:, :, real]
        torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows[..., 0]))
        for query in range(n):
            seen_weights = rows[:, query, : query + 1]
            if kind == "uniform":
                torch.testing.assert_close(
                    seen_weights, torch.full_like(seen_weights, 1 / (query + 1))
                )
            if kind == "permuted":
                own = weights[i][:, real][:, :, real][:, query, : query + 1]
                torch.testing.assert_close(
                    seen_weights.sort(-1).values, own.sort(-1).values
                )


@pytest.mark.parametrize("asked", [None, "last", "mean"])
@pytest.mark.parametrize("found", [None, "first"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_token_that_is_asked_for_goes_before_the_one_that_the_head_reads(
    monkeypatch, asked, found, stack
):
    monkeypatch.setattr(classes_module, "find_stack", lambda _model: stack)
    monkeypatch.setattr(
        classes_module, "read_tokens", lambda *_: SimpleNamespace(at=found, stack=stack)
    )
    plan = type(
        "Plan", (), {"stack": "of the plan", "__getitem__": lambda _self, _i: None}
    )()
    at, of, notes = classes_module._find_readout(None, plan, usable=True, asked=asked)
    assert (at, of) == (asked or found, stack)
    assert bool(notes) is (asked is None and found is None)
    usual = {"encoder": "first", "decoder": "last"}[stack]
    assert classes_module._find_readout(None, plan, usable=False, asked=asked) == (
        asked or usual,
        "of the plan",
        [],
    )

    def fail(*_):
        raise MeasureError("a head", "none", "another")

    monkeypatch.setattr(classes_module, "read_tokens", fail)
    at, of, notes = classes_module._find_readout(None, plan, usable=True, asked=asked)
    assert (at, of) == (asked or usual, "of the plan") and "is not known" in notes[0]


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "eurobert mean"])
def test_uniform_attention_is_that_of_equal_scores(family):
    """Queries that are zero score all keys alike: the model with its own queries taken away is the reference."""
    model, rows = build(family), texts()
    plan = plan_of(rows, 0, batch_tokens=30)
    found = measure_outcomes(model, plan, "uniform", (1, 2))
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "q_proj"):
                module.q_proj.weight.zero_()
            if hasattr(module, "c_attn"):
                module.c_attn.weight[:, :32] = 0
                module.c_attn.bias[:32] = 0
    untouched = measure_outcomes(model, plan, "uniform", ())
    np.testing.assert_allclose(found.final, untouched.final, atol=1e-9)
    assert (found.found == untouched.found).all()


def test_who_sees_whom_is_kept_of_a_window():
    from anisoscope.capture.masking import Masking

    mask = torch.tensor([[True, True, True, False]])
    near = (torch.arange(4)[:, None] - torch.arange(4)).abs() < 2
    pairs = find_seen_pairs(Masking(near[None, None], False, None), mask)
    assert pairs[0, 0, :3].tolist() == (near & mask).tolist()[:3]
