"""Models that people write by hand (nanoGPT, x-transformers): blocks by name, attention of every layer against a
computation by hand.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

import anisoscope

DIM, HEADS, LAYERS, WORDS = 24, 3, 2, 40


class CausalSelfAttention(nn.Module):
    """As in nanoGPT: one projection for all three, by torch's fused product or by hand."""

    def __init__(self, flash):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.flash = flash
        self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = (
            y.view(batch, length, HEADS, -1).transpose(1, 2)
            for y in self.c_attn(x).split(DIM, dim=2)
        )
        if self.flash:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / (k.size(-1) ** 0.5))
            scores = scores.masked_fill(
                self.bias[:, :, :length, :length] == 0, float("-inf")
            )
            y = functional.softmax(scores, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, dim))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, flash):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = (
            nn.LayerNorm(DIM),
            CausalSelfAttention(flash),
            nn.LayerNorm(DIM),
        )
        self.mlp = nn.Sequential(
            nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """nanoGPT's model: parts in a `ModuleDict`, weights tied, logits and loss returned."""

    def __init__(self, flash):
        super().__init__()
        parts = {
            "wte": nn.Embedding(WORDS, DIM),
            "wpe": nn.Embedding(64, DIM),
            "drop": nn.Dropout(0.1),
        }
        parts |= {
            "h": nn.ModuleList(Block(flash) for _ in range(LAYERS)),
            "ln_f": nn.LayerNorm(DIM),
        }
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(DIM, WORDS, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        t = self.transformer
        x = t.drop(t.wte(idx) + t.wpe(torch.arange(idx.shape[1])))
        for block in t.h:
            x = block(x)
        logits = self.lm_head(t.ln_f(x))
        loss = (
            None
            if targets is None
            else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        )
        return logits, loss


@pytest.mark.parametrize("flash", [True, False])
def test_a_plain_nanogpt_is_measured_whole(flash):
    torch.manual_seed(0)
    model = GPT(flash).double().eval()
    ids = torch.randint(0, WORDS, (4, 9), generator=torch.Generator().manual_seed(1))
    run = anisoscope.measure(model, ids, blocks=("Block",), tokens="all", sample=0)
    x = model.transformer.wte(ids) + model.transformer.wpe(torch.arange(9))
    hidden, entropies = [x], []
    for block in model.transformer.h:
        q, k, _ = (
            y.view(4, 9, HEADS, -1).transpose(1, 2)
            for y in block.attn.c_attn(block.ln_1(x)).split(DIM, 2)
        )
        scores = q @ k.transpose(-2, -1) / (DIM // HEADS) ** 0.5
        p = scores.masked_fill(
            ~torch.tril(torch.ones(9, 9)).bool(), float("-inf")
        ).softmax(-1)
        entropies.append(-(p * p.clamp(min=1e-300).log()).sum(-1).mean((0, 2)))
        x = block(x)
        hidden.append(x)
    hidden.append(model.transformer.ln_f(x))
    rows = run.records[run.records["component"].isna()]
    cosines = rows[
        (rows["metric"] == "mean_cosine") & rows["site"].isin(["hidden", "final"])
    ]["value"].tolist()
    for given, found in zip(hidden, cosines, strict=True):
        vectors = functional.normalize(given.flatten(0, 1), dim=-1)
        n = len(vectors)
        expected = ((vectors.sum(0).square().sum() - n) / (n * (n - 1))).item()
        assert found == pytest.approx(expected, abs=1e-9)
    measured = rows[rows["metric"] == "attention.entropy"].sort_values(
        ["layer", "head"]
    )["value"]
    assert measured.tolist() == pytest.approx(torch.cat(entropies).tolist(), abs=1e-9)
