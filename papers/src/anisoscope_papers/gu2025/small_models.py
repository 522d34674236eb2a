"""Train small models of Pythia's architecture (GPT-NeoX) with several forms of attention, and look at their sinks.

    <cache>/gu2025/<arm>-<seed>-<hash>/step-N.parquet     measurements at step N
    <cache>/gu2025/<arm>-<seed>-<hash>/resume             the state of a running training, to resume from
    <cache>/gu2025/<arm>-<seed>-<hash>/read.json          hashes of the texts for training and measuring
    <cache>/gu2025/<arm>-<seed>-<hash>/records.parquet    measurements at all steps; written last

An arm is a form of attention: `base` (softmax), `sigmoid` (of `beyond.forms`), `key-bias`. Models of one seed begin
with the same weights in every arm. Records of each head:

sinks.first          share of a row's weights that the first key gets, mean over rows and texts
sinks.first_rate     share of texts in which that is more than `EPSILON`; at the last step also on random tokens
                     (`sinks.first_rate_random`)
sinks.bias_rate      the same of the learnt key
sinks.value_norm     norm of the first token's value over the mean of the others' (`sinks.key_norm`: of keys)
sinks.cosine_rise    cosine of later queries with the first key, less that with the other keys that they see

Of hidden states: `mean_cosine` and its parts, also at the site `plain`: after the final norm without its learnt
weights. Of embeddings: `partition`. By step: `training.loss`, `training.skill`.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from anisoscope.capture.backends import intercept_attention
from anisoscope.capture.masking import Call
from anisoscope.data.opening import open_plan
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.modes import evaluation_mode
from anisoscope.provenance import make_run_id
from anisoscope.store import as_records, make_records_once, select
from anisoscope_papers.beyond import forms
from anisoscope_papers.beyond.trained import (
    LOSS,
    SEEN,
    SKILL,
    compute_unigram_loss,
    compute_unigram_shares,
    list_corpora,
)
from anisoscope_papers.training.contents import hash_corpora
from anisoscope_papers.training.fit import Fitting, Material, fit
from anisoscope_papers.training.language_model import build_settings
from anisoscope_papers.training.recipe import ModelSize, Training
from anisoscope_papers.training.text import (
    Examples,
    cache_folder,
    open_training_corpus,
    prepare,
)

BASE, SIGMOID, KEY_BIAS = "base", "sigmoid", "key-bias"
ARMS = (BASE, SIGMOID, KEY_BIAS)
EPSILON = 0.3
"""More attention than this makes a sink of a key (Gu et al. 2025)."""
DECAY = 0.1
"""Weight decay, theirs."""
SIZE = ModelSize(
    layers=4,
    width=64,
    heads=4,
    vocabulary=1024,
    window=64,
    batch=4,
    rate=3e-3,
    steps=2000,
)
"""Their 2,000 steps until sinks have emerged, and their 64 tokens; batches as small as they are because only the number
of steps counts (their table 10), and a fast rate because a slow one delays sinks (their table 9)."""
HIDDEN = ("mean_cosine", "partition", "norms")
VERSION = 1
"""Raise it when what a cell holds changes."""

Heads = Float[Tensor, "sequence head"]


@dataclass(frozen=True)
class SmallModels:
    """How the models are trained and measured. Every field is part of a model's identity.

    steps, looks   steps of training; a model is measured at the steps `looks`, at step 0 and at the last
    probe          windows it is measured on, evenly spread over a text that no model was trained on
    """

    size: ModelSize = SIZE
    steps: int = SIZE.steps
    looks: tuple[int, ...] = (50, 100, 200, 400, 700, 1000, 1400)
    probe: int = 100

    @property
    def seen(self) -> tuple[int, ...]:
        """The training steps at which a model is measured."""
        return tuple(sorted({0, *self.looks, self.steps}))

    def folder(self, arm: str, seed: int) -> Path:
        """Return the folder of the model (cell) of an arm (form of attention) and a seed."""
        identity = make_run_id([asdict(self), VERSION, list_corpora()])
        return cache_folder() / "gu2025" / f"{arm}-{seed}-{identity[:8]}"

    def hash_data(self) -> dict[str, str]:
        """Return {name of a corpus: hash of its files} for training and measuring."""
        return hash_corpora(*list_corpora())

    def train(self, arm: str, seed: int, folder: Path, device: str) -> None:
        """Train the model of an arm (form of attention) and a seed in `folder`, or resume, and write its records."""
        size, (named, probed) = self.size, list_corpora()
        tokenizer, tokens = prepare(
            open_training_corpus(named), "causal-lm", size.vocabulary, size.window
        )
        windows, held = tokens.parts()
        model = build_untrained(arm, size, len(tokenizer), seed)
        validation = Examples(tokens, held, len(held), 0, shuffled=False)
        examples = Examples(tokens, windows, self.steps * size.batch, seed)
        # The loss of always predicting tokens by their frequency: skill counts from
        # there.
        guess = compute_unigram_loss(
            compute_unigram_shares(tokens, windows), validation
        )
        plan = open_plan(
            probed, model, tokenizer, modality="text", sequences=self.probe
        )[0]

        def on_step(step: int, _last: int, model: Any) -> None:
            """Measure the model if this step is one of those to be seen."""
            if step in self.seen:
                # Records of a step are kept, so that a resumed training does not
                # measure it again.
                measure = partial(measure_model, model, plan, last=step == self.steps)
                make_records_once(folder / f"step-{step}.parquet", measure)

        training = Training(
            task="causal-lm", own_size=size, steps=self.steps, seed=seed, device=device
        )
        how = Fitting(
            build_settings(training) | {"weight_decay": DECAY},
            evaluated=frozenset(self.seen),
            share=training.share,
        )
        # `fit` reports steps only after they are made.
        on_step(0, 0, model)
        history = fit(
            # Examples come as whole batches: there is nothing to collate.
            Material(model, tokenizer, examples, validation, dict),
            how,
            on_step,
            folder / "resume",
        )
        losses = pd.DataFrame(
            history["validation_loss"], columns=["step", "value"]
        ).assign(metric=LOSS)
        skill = losses.assign(metric=SKILL, value=1 - losses["value"] / guess)
        looks = [
            pd.read_parquet(folder / f"step-{step}.parquet").assign(step=step)
            for step in self.seen
        ]
        whole = pd.concat([*looks, losses, skill], ignore_index=True).assign(
            model=arm, seed=seed, corpus=probed
        )
        # Written last: a folder without it is not finished. Only then the state is not
        # needed any more.
        make_records_once(folder / SEEN, lambda: as_records(whole))
        shutil.rmtree(folder / "resume", ignore_errors=True)


FULL = SmallModels()
BRIEF = replace(FULL, steps=60, looks=(6,), probe=24)


def build_untrained(arm: str, size: ModelSize, vocabulary: int, seed: int) -> Any:
    """Build a GPT-NeoX of this size and arm (form of attention), with weights drawn from `seed`, in training mode."""
    torch.manual_seed(seed)
    config = transformers.GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        max_position_embeddings=size.window,
        use_cache=False,
    )
    # The name under which the form is registered in transformers' attention interface.
    if arm != BASE:
        config._attn_implementation = arm
    model: Any = transformers.GPTNeoXForCausalLM(config)
    # Added after all other weights were drawn, and zero: models of one seed begin alike
    # in every arm.
    if arm == KEY_BIAS:
        for layer in model.gpt_neox.layers:
            layer.attention.key_bias = nn.Parameter(
                torch.zeros(size.heads, size.width // size.heads)
            )
    return model.train()


def compute_biased_weights(
    scores: Float[Tensor, "sequence head query key"],
    bias: Float[Tensor, "sequence head query"],
) -> Float[Tensor, "sequence head query key_and_bias"]:
    """Return attention weights over the keys of the tokens and one learnt key, whose weight comes last.

    scores   of the tokens' keys
    bias     scores of the learnt key
    """
    return torch.cat((scores, bias.unsqueeze(-1)), -1).softmax(-1)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float,
    dropout: float = 0.0,  # noqa: ARG001
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention with one learnt key (`module.key_bias`) in addition to those of the tokens; its value is 0.

    It has the signature of transformers' attention functions: query, key, value are [sequence, head, token, dim].
    Returns (output [sequence, query, head, dim], weights of the tokens [sequence, head, query, key]).
    """
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = compute_biased_weights(scores, _score_bias(module, query) * scaling)
    # The last column is that of the learnt key, whose value adds nothing.
    of_tokens = weights[..., :-1]
    return (of_tokens @ value).transpose(1, 2).contiguous(), of_tokens


def _score_bias(module: Any, query: Tensor) -> Tensor:
    """Return the product of every query with the learnt key of its head, [sequence, head, query]."""
    return torch.einsum("shqd,hd->shq", query, module.key_bias)


AttentionInterface.register(KEY_BIAS, _attend)
# The mask that eager attention takes: a tensor that is added to the scores.
AttentionMaskInterface.register(KEY_BIAS, eager_mask)


@torch.no_grad()
def measure_model(model: Any, plan: Any, *, last: bool) -> pd.DataFrame:
    """Measure a small model at one training step, and return a table of records.

    They are: measures of attention sinks of every head, A (mean cosine) by layer, and the isotropy I(W) of embeddings
    (Mu & Viswanath 2018).

    plan   the batches of texts to measure
    last   it is the last step: sinks are also measured on random tokens
    """
    # The tokenizer has no padding token, so that a batch holds windows of one length:
    # no mask is needed.
    batches = [plan[i].inputs["input_ids"] for i in range(len(plan))]
    with evaluation_mode(model):
        rows = list(measure_sinks_of_heads(model, batches))
        if last:
            rate = "sinks.first_rate"
            of_random = measure_sinks_of_heads(
                model, list(_draw_random(batches, model.config.vocab_size))
            )
            for row in of_random:
                if row["metric"] == rate:
                    rows.append(row | {"metric": f"{rate}_random"})
        rows += list(_measure_plain(model, batches))
        hidden = run_pass(
            model, plan, Settings(metrics=HIDDEN, tokens=("all",), groups=8, sample=0)
        ).records()
    kept = [
        "mean_cosine",
        "mean_cosine.isotropic_q95",
        "mean_cosine.top_share",
        "partition",
        "norms.mean",
    ]
    hidden = select(hidden, metric=kept, head=None)
    sites = ["hidden", "final", "embedding.input", "embedding.output"]
    # Intervals of the pass are over texts; those of the study are over seeds.
    hidden = hidden[hidden["site"].isin(sites)].assign(low=np.nan, high=np.nan)
    return as_records(pd.concat([hidden, pd.DataFrame(rows)], ignore_index=True))


def _draw_random(batches: Iterable[Tensor], vocabulary: int) -> Iterator[Tensor]:
    """Yield for each batch random token ids [sequence, token] of the same shape; they are the same at every call.

    vocabulary   number of token ids
    """
    # Generated apart, so that the training's own random numbers do not change.
    drawn = torch.Generator().manual_seed(0)
    for batch in batches:
        yield torch.randint(vocabulary, batch.shape, generator=drawn)


def measure_sinks_of_heads(
    model: Any, batches: Iterable[Tensor]
) -> Iterator[dict[str, Any]]:
    """Run a model and yield a row for every head and measure of attention sinks, averaged over texts.

    Measures: the weight of the first key, how often it exceeds a bound, the norms of its value and key over those of
    other tokens, and how much more queries resemble it than other keys.

    batches   token ids [sequence, token]
    """
    found: dict[tuple[int, str], list[Heads]] = defaultdict(list)

    def keep_measures(call: Call) -> None:
        """Measure the sinks in one attention call, and append the results [text, head] to `found`, by layer."""
        # Layer i is the output of block i, counted from 1; layer 0 is the input of the
        # first block.
        layer = int(call.module.layer_idx) + 1  # type: ignore[arg-type]
        for name, of_texts in measure_sinks(call).items():
            found[layer, name].append(of_texts)

    with intercept_attention(model, keep_measures):
        for batch in batches:
            model(input_ids=batch)
    for (layer, name), parts in found.items():
        by_head = torch.cat(parts).double().mean(0).tolist()
        place = {
            "metric": f"sinks.{name}",
            "site": "attention",
            "stack": "decoder",
            "layer": layer,
        }
        yield from (
            place | {"head": head, "value": value} for head, value in enumerate(by_head)
        )


def measure_sinks(call: Call) -> dict[str, Heads]:
    """Compute measures of attention sinks from one attention call: {measure: [sequence, head]}.

    first         mean weight of the first key
    first_rate    1 if that exceeds `EPSILON`, else 0; `bias_rate`: the same of the learnt key
    value_norm    norm of the first token's value over the mean norm of the others; `key_norm`: of keys
    cosine_rise   mean cosine of later queries with the first key, less that with the other keys that they see
    """
    scores = call.scores()
    form = str(call.module.config._attn_implementation)  # type: ignore[union-attr]
    kept: dict[str, Heads] = {}
    # The learnt key is not in the call: its scores are made here, as `_attend` makes
    # them.
    if form == KEY_BIAS:
        weights = compute_biased_weights(
            scores, _score_bias(call.module, call.query) * call.scale
        )
        kept["bias_rate"] = (weights[..., -1].mean(-1) > EPSILON).float()
    else:
        weights = forms.compute_weights(form if form in forms.FORMS else "", scores)
    # Share of all weights: a row of sigmoids does not add up to 1 (Gu et al., equation
    # 3).
    first = (weights[..., 0] / weights.sum(-1)).mean(-1)
    kept |= {"first": first, "first_rate": (first > EPSILON).float()}
    for name, vectors in (("value_norm", call.value), ("key_norm", call.key)):
        norms = vectors.norm(dim=-1)
        kept[name] = norms[..., 0] / norms[..., 1:].mean(-1)
    cosine = functional.normalize(call.query, dim=-1) @ functional.normalize(
        call.key, dim=-1
    ).transpose(-1, -2)
    # Pairs of a query and a key that it sees, without the first key.
    others = torch.ones(cosine.shape[-2:], dtype=torch.bool).tril()
    others[:, 0] = False
    of_others = (cosine * others).sum((-1, -2)) / others.sum()
    return kept | {"cosine_rise": cosine[..., 1:, 0].mean(-1) - of_others}


def _measure_plain(model: Any, batches: Iterable[Tensor]) -> Iterator[dict[str, Any]]:
    """Yield a row with A (mean cosine) of the last hidden states after a norm without learnt weights (site `plain`)."""
    kept: list[Tensor] = []
    norm = model.gpt_neox.final_layer_norm
    # What the final norm reads: the last hidden states before it.
    hook = norm.register_forward_pre_hook(
        lambda _module, inputs: kept.append(inputs[0].flatten(0, -2))
    )
    for batch in batches:
        model(input_ids=batch)
    hook.remove()
    # The same norm with gain 1 and bias 0: what the learnt weights do is the difference
    # to `final`.
    vectors = functional.layer_norm(torch.cat(kept).double(), norm.normalized_shape)
    unit = functional.normalize(vectors, dim=-1).sum(0)
    n = sum(len(part) for part in kept)
    # A = (‖Σu‖² − n) / (n (n − 1)): mean cosine over all distinct pairs.
    value = float((unit.square().sum() - n) / (n * (n - 1)))
    yield {
        "metric": "mean_cosine",
        "site": "plain",
        "stack": "decoder",
        "token_policy": "all",
        "value": value,
    }
