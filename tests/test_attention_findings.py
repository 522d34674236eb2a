"""Heads whose kind was planted are named, and none of a random model is."""

import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

import anisoscope
from anisoscope.cli.measure_commands import _build_tables_of_run
from anisoscope.cli.printed_tables import tabulate_attention
from anisoscope.cli.view import View, show
from anisoscope.report import build_page
from anisoscope.report.page import list_tiles
from anisoscope.report.results import Results
from anisoscope.runs import attention
from anisoscope.runs.attention import (
    RULES,
    attention_findings,
    attention_layers,
    attention_table,
)
from anisoscope.store import as_records, select
from anisoscope.wording import format_measured

HEADS, WIDTH, LENGTH = 6, 16, 16


class PlantedAttention(nn.Module):
    """One layer whose heads attend as planted: to the first token, uniformly, to the token before, to themselves, with
    mean queries and keys aligned, with opposite ones.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mean = functional.normalize(torch.randn(WIDTH), dim=0)

    def forward(self, x):
        sequences = len(x)
        q = torch.zeros(sequences, HEADS, LENGTH, WIDTH)
        k = torch.zeros(sequences, HEADS, LENGTH, WIDTH)
        position = (
            torch.eye(LENGTH) - 1 / LENGTH
        )  # no mean direction: neither aligned nor opposite
        noise = (
            torch.randn(
                2, sequences, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)
            )
            * 0.3
        )
        q[:, 0] = 8 * self.mean
        k[:, 0, 0] = 8 * self.mean
        q[:, 1], k[:, 1] = 0.01 * noise
        q[:, 2], k[:, 2] = 30 * position, 30 * position.roll(1, 0)
        q[:, 3], k[:, 3] = noise[0] * 6, noise[1] * 6
        q[:, 4], k[:, 4] = 8 * self.mean + 5 * noise[0], 8 * self.mean + 5 * noise[1]
        q[:, 5], k[:, 5] = 8 * self.mean + 5 * noise[0], -8 * self.mean + 5 * noise[1]
        out = functional.scaled_dot_product_attention(
            q, k, x.view(sequences, LENGTH, HEADS, WIDTH).transpose(1, 2)
        )
        return out.transpose(1, 2).flatten(2)


class PlantedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = PlantedAttention()

    def forward(self, x):
        return x + self.attention(x)


@pytest.fixture(scope="module")
def planted():
    torch.manual_seed(2)
    model = nn.Sequential(*(PlantedBlock() for _ in range(2)))
    x = torch.randn(24, LENGTH, HEADS * WIDTH)
    return anisoscope.measure(model, x, panel="attention", blocks="PlantedBlock")


def test_every_planted_head_is_named(planted):
    heads = attention_table(planted.records, heads=True)
    kinds = heads[heads["layer"].eq(1)].set_index("head")["kind of head"].to_dict()
    assert (
        kinds[0] == "sink, one-hot, aligned"
    )  # what makes a sink is a common direction of queries and of one key
    assert kinds[1] == "uniform"
    assert kinds[2] == "one-hot"
    assert kinds[3] == ""
    assert kinds[4] == "aligned"
    assert kinds[5] == "opposite"


def test_findings_count_them_and_name_the_layers(planted):
    texts = [finding.text for finding in attention_findings(planted.records)]
    assert any(
        text.startswith("2 of 12 heads give more than half")
        and "layers 1 and 2" in text
        for text in texts
    )
    assert any("opposite mean queries and keys" in text for text in texts)
    assert all(
        finding.rule != "attention_ordinary"
        for finding in attention_findings(planted.records)
    )


def test_the_table_of_layers_has_a_row_for_each(planted):
    table = attention_table(planted.records)
    assert list(table["layer"]) == [1, 2]
    assert list(table["heads"]) == [HEADS, HEADS]
    assert list(table["sink heads"]) == [1, 1]
    assert table["entropy"].between(0, 1).all()


def test_kinds_of_heads_are_counted_once_for_all_layers(planted, monkeypatch):
    """Of 48 layers of 64 heads the table took 8 seconds, as all heads were counted again for each layer."""
    counted = []
    count_heads = attention.count_heads
    monkeypatch.setattr(
        attention,
        "count_heads",
        lambda records: counted.append(records) or count_heads(records),
    )
    table = attention_table(planted.records)
    assert table["sink heads"].tolist() == [1, 1] and len(counted) == 1


def test_no_head_of_a_random_model_is_named():
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
        model, {"input_ids": torch.randint(5, 60, (24, 20))}, panel="attention"
    )
    assert [finding.rule for finding in attention_findings(run.records)] == [
        "attention_ordinary"
    ]


def test_a_value_whose_interval_crosses_the_line_names_nothing():
    row = {
        "metric": "attention.first_mass",
        "stack": "encoder",
        "kind": "self",
        "layer": 1,
        "head": 0,
        "value": 0.6,
    }
    unsure = as_records(pd.DataFrame([row | {"low": 0.4, "high": 0.8}]))
    sure = as_records(pd.DataFrame([row | {"low": 0.55, "high": 0.65}]))
    assert [finding.rule for finding in attention_findings(unsure)] == [
        "attention_ordinary"
    ]
    assert [finding.rule for finding in attention_findings(sure)] == ["attention_sink"]
    assert not list(attention_findings(as_records(pd.DataFrame())))


def rows_of_heads(metric, values, half=0.01, **more):
    """Records of single heads {(layer, head): value}, with intervals of `half` on each side."""
    place = {"metric": metric, "stack": "encoder", "kind": "self"} | more
    rows = [
        place
        | {
            "layer": layer,
            "head": head,
            "value": value,
            "low": value - half,
            "high": value + half,
        }
        for (layer, head), value in values.items()
    ]
    return as_records(pd.DataFrame(rows))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_names_the_heads_that_lie_beyond_its_line_with_their_whole_interval(
    rule,
):
    """On its own side: that a head was opposite was once read off the wrong end of its interval in no test."""
    outward = 1 if rule.above else -1
    by_head = dict(enumerate((0.02, 0.005, -0.005, -0.02)))
    values = {
        (1, head): rule.line + outward * beyond for head, beyond in by_head.items()
    }
    of_pairs = (
        {"site": "query.raw", "token_policy": "all"}
        if rule.metric == "query_key.cosine"
        else {}
    )
    records = rows_of_heads(rule.metric, values, **of_pairs)
    kinds = attention_table(records, heads=True)["kind of head"].tolist()
    assert [rule.name in kind.split(", ") for kind in kinds] == [
        True,
        False,
        False,
        False,
    ]
    told = [finding.text for finding in attention_findings(records)]
    assert any(text.startswith(f"1 of 4 heads {rule.one}") for text in told)


def test_aligned_and_opposite_heads_do_not_cancel_in_the_table_of_layers():
    place = {"site": "query.raw", "token_policy": "all"}
    records = rows_of_heads(
        "query_key.cosine",
        {(1, 0): 0.9, (1, 1): -0.7, (2, 0): -0.2, (2, 1): 0.0},
        **place,
    )
    table = attention_table(records)
    np.testing.assert_allclose(table["|query–key cosine|"], [0.8, 0.1])
    heads = attention_table(records, heads=True)
    np.testing.assert_allclose(heads["query–key cosine"], [0.9, -0.7, -0.2, 0.0])


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ([3], "in layer 3"),
        ([2, 1], "in layers 1 and 2"),
        ([1, 2, 3, 3], "in layers 1–3"),
        ([1, 3, 4, 5, 9], "in layers 1, 3–5 and 9"),
        ([1, 2, 4, 5, 6], "in layers 1, 2 and 4–6"),
    ],
)
def test_layers_that_follow_each_other_are_told_as_a_range(layers, told):
    assert attention.describe_layer_numbers(layers) == told


@pytest.mark.parametrize(
    ("rises", "told"),
    [
        ({(1, 0): 0.2, (1, 1): 0.0, (3, 2): -0.5}, "attention in 2 heads"),
        ({(1, 0): 0.2, (1, 1): 0.105}, "attention in 1 head "),
        ({(1, 0): 0.05, (1, 1): -0.05}, "the entropy of no head"),
        ({(1, 0): 0.05, (1, 1): 0.105}, ""),
        ({(1, 0): 0.05, (1, 1): -0.105}, ""),
    ],
)
def test_what_centring_the_queries_would_change(rises, told):
    """Either way: the head that is named moves most, up or down; nothing is said if an interval holds the line."""
    found = [
        f
        for f in attention_findings(
            rows_of_heads("centred_attention.query_rise", rises)
        )
        if "entring" in f.text
    ]
    assert len(found) == bool(told)
    assert all(told in finding.text for finding in found)
    if "2 heads" in told:
        assert (
            "in layers 1 and 3" in found[0].text
            and "most in head 2 of layer 3: −.50 nats" in found[0].text
        )


def test_means_over_heads_have_intervals_and_the_terminal_shows_them(planted):
    table = planted.attention()
    assert (table["low"] <= table["entropy"]).all() and (
        table["entropy"] <= table["high"]
    ).all()
    assert (table["high"] > table["low"]).all()
    assert list(table["uniform heads"]) == list(table["opposite heads"]) == [1, 1]
    shown = tabulate_attention(planted.records, planted.replicates)
    assert shown.head == (
        "layer",
        "entropy",
        "first token",
        "largest weight",
        "|cos q,k|",
        "kinds",
    )
    layers = select(
        attention_layers(planted.records, planted.replicates),
        metric="attention.entropy_normalised",
    )
    assert [row[1] for row in shown.rows] == [
        format_measured(row) for _, row in layers.iterrows()
    ]
    assert shown.rows[0][-1] == "1 sink, 1 uniform, 2 one-hot, 2 aligned, 1 opposite"
    heads = tabulate_attention(planted.records, heads=True)
    assert heads.head[:2] == ("layer", "head") and len(heads.rows) == 2 * HEADS
    assert [row[-1] for row in heads.rows[:2]] == ["sink, one-hot, aligned", "uniform"]
    assert tabulate_attention(planted.records.iloc[:0]) is None


def test_a_run_of_attention_alone_has_a_table_everywhere(planted, tmp_path):
    """It printed that no hidden states were measured, and a notebook was shown an empty table."""
    assert len(planted.table()) == 2
    assert "entropy" in planted._repr_html_()
    folder = planted.save(tmp_path / "run").folder
    page = build_page(folder).read_text("utf-8")
    assert "kinds of heads" in page
    for form in ("table", "json", "csv"):
        done = StringIO()
        with redirect_stdout(done):
            view = View(format=form)
            show(
                _build_tables_of_run(planted.records, planted.replicates, view, {}),
                view,
                planted.findings,
            )
        assert "No " not in done.getvalue().split("heads")[0]
        assert "entropy" in done.getvalue()
    found = json.loads(_json_of(planted))
    rows = [
        row
        for row in found["records"]
        if row["metric"] == "attention.entropy_normalised"
    ]
    assert [row["layer"] for row in rows] == [1, 2]
    assert all(
        row["head"] is None and row["low"] < row["value"] < row["high"] for row in rows
    )


def _json_of(run):
    done = StringIO()
    with redirect_stdout(done):
        view = View(format="json")
        show(
            _build_tables_of_run(run.records, run.replicates, view, {}),
            view,
            run.findings,
        )
    return done.getvalue()


def test_no_tile_stands_over_uniform_heads():
    """The page praised the alignment of a head whose attention did not see its queries."""

    def make(head, entropy, cosine):
        place = {"stack": "encoder", "kind": "self", "layer": 1, "head": head}
        ends = {"value": entropy, "low": entropy - 0.01, "high": entropy + 0.01}
        yield (
            place
            | ends
            | {"metric": "attention.entropy_normalised", "site": "attention"}
        )
        yield place | {
            "value": cosine,
            "metric": "query_key.cosine",
            "site": "query.raw",
            "token_policy": "all",
        }

    rows = [*make(0, 0.98, 0.9), *make(1, 0.5, 0.4)]
    found = {
        label: value
        for label, value, _ in list_tiles(Results(as_records(pd.DataFrame(rows)), {}))
    }
    assert found == {"sharpest head": ".500", "strongest alignment": ".400"}
    flat = as_records(pd.DataFrame([*make(0, 0.98, 0.9), *make(1, 0.99, 0.4)]))
    assert [(label, value) for label, value, _ in list_tiles(Results(flat, {}))] == [
        ("attention", "uniform")
    ]
