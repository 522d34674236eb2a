"""Extremes: published definitions on random networks, planted truths, and a state that merges by the larger value."""

import json
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from torch import nn
from torch.nn import functional

import anisoscope
from anisoscope.batch import Batch, Stream
from anisoscope.data.windows import is_punctuation
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.inputs import GivenInputs
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.metrics import sinks
from anisoscope.reads.extremes import EPSILONS, FEWEST_QUERIES, PARTS, _find_medians
from anisoscope.runs.extremes import activations_table, extreme_findings, sinks_table
from anisoscope.store import as_records, select
from anisoscope.sums.extremes import Extremes, find_largest_over_tokens

PLACE = ["stack", "kind", "layer", "site", "head", "token_policy"]
METRICS = ("massive", "matrix_entropy", "sinks", "logits")
LENGTH, SEQUENCES = 14, 9


def measure(model, batches, **settings):
    return run_pass(
        model, GivenInputs(batches, model), Settings(metrics=METRICS, **settings)
    ).records()


def value_of(records, metric, component=None, **place):
    found = select(records, metric=metric, component=component, **place)
    assert len(found) == 1, (metric, component, place, len(found))
    return float(found["value"].iloc[0])


def ids(seed=0, count=SEQUENCES, length=LENGTH):
    return torch.randint(
        3,
        tiny.VOCABULARY,
        (count, length),
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_extremes_beside_other_panels_are_those_of_a_pass_of_their_own(name):
    """Hidden states and extremes both added sums under the name `sequences`, in different shapes: no pass had both."""
    rows = {}
    plan = tiny.Plan(tiny.documents(6), decoder=name in tiny.TWO_STACKS)
    panels = ("hidden", "spectrum", "attention", "alignment", "extremes")
    for chosen in (panels, *((panel,) for panel in panels)):
        found = run_pass(
            tiny.model(name), plan, Settings(panel=chosen, sample=16)
        ).records()
        rows[chosen] = (
            found.drop(columns=["run"])
            .set_index([*PLACE, "metric", "component"])["value"]
            .sort_index()
        )
    apart = pd.concat([rows[panel,] for panel in panels]).sort_index()
    assert apart.index.is_unique and rows[panels].reindex(apart.index).equals(apart)
    assert (
        rows[panels]
        .index.get_level_values("metric")
        .isin(["massive.top", "intra_sequence"])
        .sum()
        > 10
    )


# ---- as published ----------------------------------------------------------------------------------------------------


def random_networks(name, seed):
    """A network of its own for each seed, and a twin with the family's own attention and raw hidden states."""
    networks = []
    for network in map(deepcopy, (tiny.model(name), tiny.eager(name))):
        generator = torch.Generator().manual_seed(seed)
        for parameter in network.parameters():
            parameter.data.add_(
                torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                * 0.1
                * seed
            )
        networks.append(network)
    return networks


FEW = 2
"""Seeds of each model that are tried every day."""


def seeds(count):
    """Seeds as parameters: the first few for every day."""
    return [
        pytest.param(seed, marks=() if seed < FEW else pytest.mark.nightly)
        for seed in range(count)
    ]


@pytest.mark.parametrize("seed", seeds(7))
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox"])
def test_the_sink_rate_of_the_first_token_is_that_of_gu_et_al(name, seed):
    """Their share over sequences, layers and heads, of maps of attention as the model's own code makes them, of 21
    networks.

    The formula is that of `compute_attention_sink` in eval_sink_open_source.py of sail-sg/Attention-Sink.
    """
    given, (network, twin) = ids(seed), random_networks(name, seed)
    records = measure(network, [{"input_ids": given}])
    with torch.no_grad(), tiny.exact_softmax():
        maps = torch.stack(
            twin(given, output_attentions=True, use_cache=False).attentions, 1
        )
    ratios = torch.arange(LENGTH, 0, -1)  # by how many queries each key is seen
    importance = (maps / ratios).sum(-2)
    for epsilon in EPSILONS:
        published = (importance > epsilon).double().mean((0, 1, 2))
        ours = select(
            records,
            metric="sinks.first_rate",
            component=f"{epsilon:g}".removeprefix("0"),
        )
        assert len(ours) == tiny.LAYERS * tiny.HEADS
        assert ours["value"].mean() == pytest.approx(float(published[0]), abs=1e-12)


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "gpt_neox"])
def test_massive_activations_are_those_of_sun_et_al(name, seed):
    """Of each layer the means over sequences of the three largest sizes, and of the median that torch gives, of 20
    networks.

    The definition is that of the experiment `exp2` in main_llm.py of locuslab/massive-activations.
    """
    given, (network, twin) = ids(seed + 1), random_networks(name, seed)
    batches = [{"input_ids": given[:4]}, {"input_ids": given[4:]}]
    records = run_pass(
        network, GivenInputs(batches, network), Settings(metrics=("massive",))
    ).records()
    with torch.no_grad(), tiny.exact_softmax():
        hidden = twin(given, output_hidden_states=True).hidden_states
    for layer, x in enumerate(hidden):
        size = x.abs()
        ordered = size.flatten(1).sort(1, descending=True).values
        place = {"site": "hidden", "layer": layer}
        for rank in range(3):
            ours = value_of(records, "massive.top", str(rank + 1), **place)
            assert ours == pytest.approx(float(ordered[:, rank].mean()), rel=1e-9)
        medians = torch.stack([torch.median(each) for each in size])
        assert value_of(records, "massive.median", **place) == pytest.approx(
            float(medians.mean()), rel=1e-9
        )
        of_dimensions = size.amax((0, 1))
        dimension = int(of_dimensions.argmax())
        assert value_of(records, "massive.largest", "1", **place) == pytest.approx(
            float(of_dimensions.max()), rel=1e-9
        )
        assert value_of(records, "massive.largest_dimension", "1", **place) == dimension
        unit, position = np.unravel_index(
            int(size[..., dimension].argmax()), size.shape[:2]
        )
        if int((size[..., dimension] == size[..., dimension].max()).sum()) == 1:
            assert value_of(records, "massive.largest_unit", "1", **place) == unit
            assert (
                value_of(records, "massive.largest_position", "1", **place) == position
            )
            assert value_of(records, "massive.largest_token", "1", **place) == int(
                given[unit, position]
            )


def test_the_median_of_padded_sequences_is_that_of_torch():
    """NumPy takes it on a CPU; one sequence has no token, one an odd number of activations, one has equal ones."""
    x = torch.randn(4, 7, 3, generator=torch.Generator().manual_seed(5))
    x[2] = x[2].round()
    real = torch.arange(7) < torch.tensor([7, 5, 6, 0])[:, None]
    found = _find_medians(torch.where(real.unsqueeze(-1), x.abs(), torch.nan), real)
    expected = torch.stack(
        [
            torch.median(each[of].abs()) if of.any() else torch.zeros(())
            for each, of in zip(x, real, strict=True)
        ]
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("name", "side"),
    [("bert", "right"), ("llama", "left"), ("gemma2", "right"), ("t5", "right")],
)
def test_what_keys_are_given_equals_maps_of_attention_in_float64(name, side):
    """Padded sequences, grouped heads, sliding windows, soft caps, position bias, cross-attention."""
    inputs, real = tiny.padded(name, side)
    streams = {}
    for stack, mask in real.items():
        special = mask & (
            inputs[
                "input_ids"
                if stack != "decoder" or name != "t5"
                else "decoder_input_ids"
            ]
            % 5
            == 0
        )
        streams[stack] = Stream(
            mask, special, torch.zeros(len(mask), dtype=torch.int64)
        )
    batch = Batch(inputs, torch.arange(3), streams)
    model = (
        tiny.eager(name) if name == "gemma2" else tiny.model(name)
    )  # sdpa has no soft cap
    with torch.no_grad(), tiny.exact_softmax():
        found = run_pass(model, [batch], Settings(metrics=("sinks",))).records()
        output = tiny.eager(name)(**inputs, output_attentions=True, use_cache=False)
    maps = {}
    if name == "t5":
        maps["encoder", "self"] = (
            output.encoder_attentions,
            real["encoder"],
            streams["encoder"],
            real["encoder"],
        )
        maps["decoder", "self"] = (
            output.decoder_attentions,
            real["decoder"],
            streams["decoder"],
            real["decoder"],
        )
        maps["decoder", "cross"] = (
            output.cross_attentions,
            real["decoder"],
            streams["encoder"],
            real["encoder"],
        )
    else:
        (stack,) = real
        maps[stack, "self"] = (
            output.attentions,
            real[stack],
            streams[stack],
            real[stack],
        )
    for (stack, kind), (layers, queries, key_stream, keys) in maps.items():
        for layer, weights in enumerate(layers, start=1):
            for head in range(weights.shape[1]):
                expected = keys_by_hand(
                    weights[:, head].double(), queries, keys, key_stream.special
                )
                place = {"stack": stack, "kind": kind, "layer": layer, "head": head}
                for (metric, component), value in expected.items():
                    ours = select(found, metric=metric, component=component, **place)
                    assert len(ours) == 1 or np.isnan(value)
                    if len(ours):
                        assert float(ours["value"].iloc[0]) == pytest.approx(
                            value, abs=1e-9, nan_ok=True
                        )


def keys_by_hand(weights, queries, keys, special):
    """What `sinks` says of one head, sequence by sequence, from whole maps [sequence, query, key]."""
    masses, strongest, at, above, first_above = [], [], [], [], []
    for of_sequence, real_query, real_key, marked in zip(
        weights, queries, keys, special, strict=True
    ):
        rows = of_sequence[real_query].numpy()
        places = np.flatnonzero(real_key.numpy())
        parts, part_of = dict.fromkeys(PARTS, 0.0), {}
        for place in places:
            if place == places[0]:
                part = "first"
            elif place == places[-1]:
                part = "last"
            else:
                part = "special" if marked[place] else "other"
            part_of[place] = part
            parts[part] += rows[:, place].sum() / rows[:, places].sum()
        masses.append([parts[part] for part in PARTS])
        seen = (rows > 0).sum(0)
        counted = [
            place
            for place in places
            if seen[place] >= FEWEST_QUERIES or place == places[0]
        ]
        alpha = {
            place: rows[:, place].sum() / seen[place]
            for place in counted
            if seen[place]
        }
        first_above.append(
            [alpha.get(places[0], 0.0) > epsilon for epsilon in EPSILONS]
        )
        if alpha:
            top = max(alpha, key=alpha.get)
            strongest.append(alpha[top])
            at.append([part_of[top] == part for part in PARTS])
            above.append([alpha[top] > epsilon for epsilon in EPSILONS])
    found = {
        ("sinks.mass", part): float(value)
        for part, value in zip(PARTS, np.mean(masses, 0), strict=True)
    }
    found |= {
        ("sinks.at", part): float(value)
        for part, value in zip(PARTS, np.mean(at, 0), strict=True)
    }
    for name, shares in (("rate", above), ("first_rate", first_above)):
        means = np.mean(shares, 0)
        found |= {
            (f"sinks.{name}", line): float(value)
            for line, value in zip(sinks.LINES, means, strict=True)
        }
    found["sinks.strongest", None] = float(np.mean(strongest)) if strongest else np.nan
    return found


def test_sequences_without_a_key_that_counts_enter_neither_the_rate_nor_where_a_sink_is():
    """No real query sees their first key, and fewer than eight see any other: of 4 sequences 2 are such."""
    totals = {
        "key_sequences": 4.0,
        "sink_sequences": 2.0,
        "strongest": 1.2,
        "value_ratio": 0.6,
        "value_sequences": 2.0,
    }
    totals |= {"above": [2.0, 1.0, 1.0, 0.0], "first_above": [1.0, 1.0, 0.0, 0.0]}
    totals |= {
        "strongest_part": [1.0, 0.0, 0.0, 1.0, 0.0],
        "part_mass": [2.0, 1.0, 0.0, 1.0, 0.0],
    }
    found = sinks.compute(
        SimpleNamespace(
            totals={name: np.array([x]) for name, x in totals.items()}, extremes={}
        )
    )
    assert {name: value[0].tolist() for name, value in found.items()} == {
        "rate": [1.0, 0.5, 0.5, 0.0],
        "first_rate": [0.25, 0.25, 0.0, 0.0],
        "strongest": 0.6,
        "at": [0.5, 0.0, 0.0, 0.5, 0.0],
        "mass": [0.5, 0.25, 0.0, 0.25, 0.0],
        "value_norm": 0.3,
    }


@pytest.mark.parametrize("name", ["gpt2", "bert", "gpt_neox"])
def test_logits_are_what_the_softmax_sees(name):
    """ln of a weight plus the row's ln of its sum is the logit: differences inside a row are those of ln weights."""
    given = ids(2)
    model = tiny.model(name)
    records = measure(model, [{"input_ids": given}])
    tensors = {}
    query, key = (
        ("query.rotated", "key.rotated")
        if name == "gpt_neox"
        else ("query.raw", "key.raw")
    )
    with anisoscope.capture(model, (query, key)) as tap, torch.no_grad():
        model(input_ids=given)
        tensors |= {site: tap[site] for site in tap.sites}
    causal = name in tiny.CAUSAL
    visible = (
        torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        if causal
        else torch.ones(LENGTH, LENGTH).bool()
    )
    stack = "decoder" if causal else "encoder"
    for layer in range(1, tiny.LAYERS + 1):
        q, k = (tensors[f"{stack}.{layer}.head.{side}"] for side in (query, key))
        logit = q @ k.transpose(-1, -2) / np.sqrt(tiny.HEAD_DIM)
        for head in range(tiny.HEADS):
            seen = logit[:, head][:, visible]
            place = {"layer": layer, "head": head}
            assert value_of(records, "logits.largest", **place) == pytest.approx(
                float(seen.max()), rel=1e-9
            )
            assert value_of(records, "logits.smallest", **place) == pytest.approx(
                float(seen.min()), rel=1e-9
            )
            typical = float(seen.amax(1).mean())
            assert value_of(records, "logits.typical", **place) == pytest.approx(
                typical, rel=1e-9
            )
    assert (
        records[records["metric"].isin(["logits.largest", "logits.smallest"])]["low"]
        .isna()
        .all()
    )


def test_a_learnt_sink_takes_its_share_of_what_keys_are_given():
    from anisoscope.capture.masking import Masking
    from anisoscope.capture.rows import attention_rows

    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 2, 2, 5, 4, dtype=torch.float64, generator=generator)
    sinks = torch.tensor([2.0, 300.0], dtype=torch.float64)
    rows = attention_rows(
        q,
        k,
        Masking(None, causal=True, bias=None),
        scale=0.5,
        sinks=sinks,
        columns=True,
    )
    logit = (q @ k.transpose(-1, -2) * 0.5).masked_fill(
        ~torch.ones(5, 5).bool().tril(), -torch.inf
    )
    whole = torch.cat([logit, sinks.view(1, 2, 1, 1).expand(2, 2, 5, 1)], -1).softmax(
        -1
    )
    torch.testing.assert_close(
        rows["mass"], whole[..., :5].sum(2), rtol=1e-12, atol=1e-14
    )
    assert rows["seen"][0, 0].tolist() == [5, 4, 3, 2, 1]


# ---- planted truths --------------------------------------------------------------------------------------------------

HEADS, WIDTH, SINK_AT, MASSIVE_AT = 3, 8, 5, 11
TOKENS = 24


class PlantedAttention(nn.Module):
    """Heads that attend to the token at `SINK_AT`, evenly, and to the token before."""

    def forward(self, x):
        sequences = len(x)
        q, k = torch.zeros(2, sequences, HEADS, TOKENS, TOKENS)
        q[:, 0, :, 0], k[:, 0, SINK_AT, 0] = 20.0, 20.0
        position = 30 * torch.eye(TOKENS)
        q[:, 2], k[:, 2] = position, position.roll(1, 0)
        v = x.view(sequences, TOKENS, HEADS, WIDTH).transpose(1, 2).clone()
        v[:, 0, SINK_AT] *= 0.01
        out = functional.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).flatten(2)


class PlantedBlock(nn.Module):
    def __init__(self, massive):
        super().__init__()
        self.attention, self.massive = PlantedAttention(), massive

    def forward(self, x):
        x = x + self.attention(x)
        x[:, 3, MASSIVE_AT] = self.massive
        return x


@pytest.fixture(scope="module")
def planted():
    torch.manual_seed(2)
    model = nn.Sequential(PlantedBlock(1e-3), PlantedBlock(5000.0))
    x = torch.randn(16, TOKENS, HEADS * WIDTH)
    return anisoscope.measure(model, x, panel="extremes", blocks="PlantedBlock")


def test_a_planted_massive_dimension_is_found_in_its_layer(planted):
    table = activations_table(planted.records)
    last = table[table["layer"].eq(2)].iloc[0]
    assert (last["dimension"], last["position"], last["massive"]) == (MASSIVE_AT, 3, 1)
    assert last["largest"] == 5000
    assert (table[table["layer"].lt(2)]["massive"] == 0).all()
    (finding,) = [
        finding
        for finding in extreme_findings(planted.records)
        if finding.rule == "massive"
    ]
    assert (
        "in layer 2" in finding.text
        and f"dimension {MASSIVE_AT}, position 3" in finding.text
    )
    assert last["kurtosis dimension"] == MASSIVE_AT


def test_a_planted_sink_that_is_not_the_first_token_is_found(planted):
    table = sinks_table(planted.records, heads=True).set_index(["layer", "head"])
    for layer in (1, 2):
        assert (
            table.loc[(layer, 0), "sink rate"] == 1
            and table.loc[(layer, 0), "at first"] == 0
        )
        assert table.loc[(layer, 0), "value norm"] < 0.1
        assert (
            table.loc[(layer, 1), "sink rate"] == 0
            and table.loc[(layer, 2), "sink rate"] == 0
        )
    texts = {
        finding.rule: finding.text for finding in extreme_findings(planted.records)
    }
    assert (
        "2 of 6 heads have a sink" in texts["sinks"]
        and "all at other tokens" in texts["sinks"]
    )
    assert "adds next to nothing" in texts["sinks_without_value"]


class PunctuationBlock(nn.Module):
    """One head attends to the tokens whose first number is large, the others evenly."""

    def attend(self, x):
        q, k = torch.zeros(2, len(x), HEADS, TOKENS, TOKENS)
        q[:, 0, :, 0] = 20.0
        k[:, 0, :, 0] = 20.0 * (x[..., 0] > 3)
        v = x.view(len(x), TOKENS, HEADS, WIDTH).transpose(1, 2)
        return (
            functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )

    def forward(self, x):
        return x + 0 * self.attend(x)


def test_a_planted_sink_at_punctuation_is_named_so_wherever_it_is():
    """A mark somewhere in each sequence; without the marks the same keys are other tokens."""
    x = torch.randn(
        16, TOKENS, HEADS * WIDTH, generator=torch.Generator().manual_seed(2)
    ).clamp(max=2)
    marks = torch.zeros(16, TOKENS, dtype=torch.bool)
    marks[torch.arange(16), torch.arange(16) + 3] = True
    x[..., 0] = torch.where(marks, 9.0, x[..., 0])
    model = nn.Sequential(PunctuationBlock(), PunctuationBlock())
    (given,) = GivenInputs({"input": x}, model)
    told = {}
    for name, punctuation in (("marked", marks), ("unmarked", None)):
        every = torch.ones_like(marks)
        stream = Stream(
            every, ~every, torch.zeros(16, dtype=torch.int64), punctuation=punctuation
        )
        batch = Batch(given.inputs, given.unit, {"encoder": stream}, call=given.call)
        records = run_pass(
            model, [batch], Settings(metrics=("sinks",), blocks=("PunctuationBlock",))
        ).records()
        (told[name],) = [
            finding.text
            for finding in extreme_findings(records)
            if finding.rule == "sinks"
        ]
        table = sinks_table(records, heads=True)
        assert table["sink rate"].tolist() == [1, 0, 0, 1, 0, 0]
        assert table["mass on punctuation"].iloc[0] == pytest.approx(
            1 if name == "marked" else 0, abs=1e-6
        )
    assert (
        "2 of 6 heads have a sink" in told["marked"]
        and "all at punctuation" in told["marked"]
    )
    assert "all at other tokens" in told["unmarked"]


def test_a_random_model_has_neither():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    model = BertModel(BertConfig(vocab_size=60, initializer_range=0.25, **sizes)).eval()
    run = anisoscope.measure(
        model, {"input_ids": torch.randint(5, 60, (24, 20))}, panel="extremes"
    )
    rules = {finding.rule for finding in extreme_findings(run.records)}
    assert {"massive_none", "sinks_none"} <= rules and not rules & {
        "massive",
        "sinks",
        "heavy_tails",
    }


def test_a_causal_head_that_looks_one_token_back_has_no_sink():
    from anisoscope.capture.masking import Masking
    from anisoscope.capture.rows import attention_rows

    position = 50 * torch.eye(TOKENS)
    q, k = position[None, None], position.roll(-1, 0)[None, None]
    rows = attention_rows(
        q, k, Masking(None, causal=True, bias=None), scale=1.0, columns=True
    )
    mean = rows["mass"] / rows["seen"]
    assert (
        float(mean[0, 0, -2:].max()) > 0.3
    )  # by the definition alone its last keys would be sinks
    assert float(mean[0, 0][rows["seen"][0, 0] >= FEWEST_QUERIES].max()) < 0.3


# ---- the state -------------------------------------------------------------------------------------------------------


def drawn(seed):
    """Extremes of a few values with ties, and where they were."""
    generator = torch.Generator().manual_seed(seed)
    made = Extremes()
    value = torch.randint(0, 3, (6,), generator=generator).double()
    where = torch.randint(0, 4, (6, 4), generator=generator)
    made.offer("site", "term", value, where)
    return made


def same(first, second):
    a, b = (part.at("site") for part in (first, second))
    return a.keys() == b.keys() and all(
        np.array_equal(x, y)
        for term in a
        for x, y in zip(a[term], b[term], strict=True)
    )


def test_extremes_merge_like_a_value():
    for seed in range(20):
        a, b, c = (drawn(3 * seed + i) for i in range(3))
        assert same(a.merge(b).merge(c), a.merge(b.merge(c)))
        assert same(a.merge(b), b.merge(a)) or ties_differ(a, b)
        assert same(a.merge(Extremes()), a) and same(Extremes().merge(a), a)
        assert same(a.merge(a), a)


def ties_differ(a, b):
    """Whether equal values lie at one unit and index with other tokens, which no run has."""
    (x, at_x), (y, at_y) = a.at("site")["term"], b.at("site")["term"]
    tied = (x == y) & (at_x[:, :2] == at_y[:, :2]).all(1)
    return bool((at_x[tied, 2:] != at_y[tied, 2:]).any())


def test_of_equal_values_the_first_unit_is_kept_whatever_the_order():
    x = torch.tensor([[[1.0], [4.0]], [[4.0], [2.0]]])
    places = torch.tensor([[[7, 0, 0, 0], [7, 1, 1, 0]], [[2, 5, 0, 0], [2, 6, 1, 0]]])
    for order in ([0, 1], [1, 0]):
        value, where = find_largest_over_tokens(x[order], places[order])
        assert value.tolist() == [4] and where.tolist() == [[2, 5, 0, 0]]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_batches_order_and_halves_do_not_matter(name, tmp_path):
    documents = tiny.documents(10, longest=40)
    model, settings = tiny.model(name), Settings(metrics=METRICS)

    def passed(**how):
        return run_pass(model, tiny.Plan(documents, window=12, **how), settings)

    whole = passed(batch=50)
    other = passed(batch=3, order=4, left=False)
    first, second = passed(units=range(5)), passed(units=range(5, 10))
    first.save(tmp_path / "state")
    halves = Measurement.restore(tmp_path / "state", settings).merge(second)
    expected = whole.records()
    keys = ["stack", "kind", "layer", "head", "site", "metric", "component"]
    for part in (other, halves):
        both = expected.merge(
            part.records(), on=keys, suffixes=("", "_two"), validate="1:1"
        )
        assert len(both) == len(expected)
        np.testing.assert_allclose(
            both["value"], both["value_two"], rtol=1e-9, atol=1e-9
        )


# ---- what is shown ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((mark, True) for mark in (".", " ,", "...", "\n", "—", "。")),
        *((word, False) for word in (" ", "", "a.", "7", "$", "é")),
    ],
)
def test_what_punctuation_is(text, expected):
    assert is_punctuation(text) is expected


def test_the_built_in_encoder_names_its_tokens(tmp_path):
    texts = [
        "The cat sat on the mat, and nobody knew why.",
        "A dog barked, then it went home.",
        "One, two, three; four.",
    ]
    run = anisoscope.measure("builtin:minilm", texts, panel="extremes")
    assert "[CLS]" in run.manifest["tokens"].values()
    table = sinks_table(run.records, replicates=run.replicates)
    assert table["sink rate"].ge(table["at first"]).all()
    assert (
        table["mass on punctuation"].gt(0).all()
        and table["low"].le(table["sink rate"]).all()
    )
    shares = (
        select(run.records, metric="sinks.mass")
        .groupby(["layer", "head"])["value"]
        .sum()
    )
    np.testing.assert_allclose(shares, 1, atol=1e-6)
    assert any("‘[CLS]’" in finding.text for finding in run.findings)
    saved = run.save(tmp_path / "run")
    assert [finding.text for finding in saved.findings] == [
        finding.text for finding in run.findings
    ]
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["tokens"]


def test_a_layer_has_the_ends_of_its_heads_and_the_means_of_the_rest():
    """The smallest logit of a layer is that of the head that has the smallest, the longest key that of the longest."""
    names = {"logits.smallest": "smallest logit", "logits.largest": "largest logit"}
    names |= {
        "sinks.query_norm": "longest query",
        "sinks.key_norm": "longest key",
        "sinks.strongest": "strongest key",
    }
    rows = [
        {
            "metric": name,
            "stack": "encoder",
            "kind": "self",
            "layer": layer,
            "head": head,
            "site": "attention",
        }
        | {
            "value": (head + 1.0) * (-1 if name == "logits.smallest" else 1)
            + 10 * layer,
            "n_units": 9,
        }
        for name in names
        for layer in (1, 2)
        for head in (0, 1, 2)
    ]
    table = sinks_table(as_records(pd.DataFrame(rows))).set_index("layer")
    for layer in (1, 2):
        found = {
            label: table.loc[layer, label] - 10 * layer for label in names.values()
        }
        assert found == {
            "smallest logit": -3,
            "largest logit": 3,
            "longest query": 3,
            "longest key": 3,
            "strongest key": 2,
        }
