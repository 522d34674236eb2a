"""Heads whose kind was planted are named, and none of a random model is."""

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

import anisoscope
from anisoscope.runs.attention import attention_findings, attention_table
from anisoscope.store import as_records

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
        position = torch.eye(LENGTH) - 1 / LENGTH  # no mean direction: neither aligned nor opposite
        noise = torch.randn(2, sequences, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)) * 0.3
        q[:, 0] = 8 * self.mean
        k[:, 0, 0] = 8 * self.mean
        q[:, 1], k[:, 1] = 0.01 * noise
        q[:, 2], k[:, 2] = 30 * position, 30 * position.roll(1, 0)
        q[:, 3], k[:, 3] = noise[0] * 6, noise[1] * 6
        q[:, 4], k[:, 4] = 8 * self.mean + 5 * noise[0], 8 * self.mean + 5 * noise[1]
        q[:, 5], k[:, 5] = 8 * self.mean + 5 * noise[0], -8 * self.mean + 5 * noise[1]
        out = functional.scaled_dot_product_attention(q, k, x.view(sequences, LENGTH, HEADS, WIDTH).transpose(1, 2))
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
    assert kinds[0] == "sink, one-hot, aligned"  # what makes a sink is a common direction of queries and of one key
    assert kinds[1] == "uniform"
    assert kinds[2] == "one-hot"
    assert kinds[3] == ""
    assert kinds[4] == "aligned"
    assert kinds[5] == "opposite"


def test_findings_count_them_and_name_the_layers(planted):
    texts = [finding.text for finding in attention_findings(planted.records)]
    assert any(text.startswith("2 of 12 heads give more than half") and "layers 1 and 2" in text for text in texts)
    assert any("opposite mean queries and keys" in text for text in texts)
    assert all(finding.rule != "attention_ordinary" for finding in attention_findings(planted.records))


def test_the_table_of_layers_has_a_row_for_each(planted):
    table = attention_table(planted.records)
    assert list(table["layer"]) == [1, 2]
    assert list(table["heads"]) == [HEADS, HEADS]
    assert list(table["sink heads"]) == [1, 1]
    assert table["entropy"].between(0, 1).all()


def test_no_head_of_a_random_model_is_named():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=60, initializer_range=0.25, **sizes)).eval()
    run = anisoscope.measure(model, {"input_ids": torch.randint(5, 60, (24, 20))}, panel="attention")
    assert [finding.rule for finding in attention_findings(run.records)] == ["attention_ordinary"]


def test_a_value_whose_interval_crosses_the_line_names_nothing():
    row = {"metric": "attention.first_mass", "stack": "encoder", "kind": "self", "layer": 1, "head": 0, "value": 0.6}
    unsure = as_records(pd.DataFrame([row | {"low": 0.4, "high": 0.8}]))
    sure = as_records(pd.DataFrame([row | {"low": 0.55, "high": 0.65}]))
    assert [finding.rule for finding in attention_findings(unsure)] == ["attention_ordinary"]
    assert [finding.rule for finding in attention_findings(sure)] == ["attention_sink"]
    assert not list(attention_findings(as_records(pd.DataFrame())))
