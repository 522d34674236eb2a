"""Numbers: metrics of vectors and of models of every kind, against definitions written out here in float64."""

import copy
import math
import warnings
from contextlib import contextmanager
from functools import partial

import attention_matrix as matrix
import numpy as np
import tiny
import torch
from torch import nn

import anisoscope
from anisoscope.capture import capture
from anisoscope.errors import AnisoscopeError
from anisoscope.measure.settings import Settings
from campaign.cases import Case

FEWEST = {"vectors": 200, "models": 100, "attention": 30, "lengths": 40, "matrix": 150}
DTYPES = {"float64": 1e-9, "float32": 1e-6, "bfloat16": 1e-6, "float16": 1e-6}
"""How far numbers may lie from the definition on the very same vectors: sums in a batch of float32 are of float32."""
GROUPS = 32
TREATMENTS = ("plain", "wrapped", "checkpointed", "quantised", "compiled", "tied")


# ---- definitions -----------------------------------------------------------------------------------------------------


def expected(vectors, units):
    """{value: what it is} of vectors [vector, dim] in float64, pair by pair; `units` [vector]."""
    norms = np.array([math.hypot(*row) for row in vectors])
    found = {"drift": math.hypot(*vectors.mean(0)), "norms.mean": norms.mean()}
    if len(vectors) > 1:
        directions = vectors / norms[:, None]
        cosines = directions @ directions.T
        others = ~np.eye(len(vectors), dtype=bool)
        group = units % GROUPS  # pairs of different groups of units
        apart = group[:, None] != group[None, :]
        found["mean_cosine"] = cosines[others].mean()
        if apart.any():
            found["mean_cosine.between"] = cosines[apart].mean()
        found["norms.std"] = norms.std(ddof=1)
    singular = np.linalg.svd(vectors - vectors.mean(0), compute_uv=False)
    if len(vectors) > 1 and (singular**2).sum() > 1e-4 * (norms**2).sum():
        p = (
            singular[singular > 1e-7 * singular[0]]
            / singular[singular > 1e-7 * singular[0]].sum()
        )
        found["spectrum.effective_rank"] = math.exp(-(p * np.log(p)).sum())
    return found


def check(got, wanted, tolerance, where):
    """Every value that is defined is there, and near."""
    for name, value in wanted.items():
        near = max(tolerance, 2e-5) if name.startswith("spectrum") else tolerance
        scale = (
            abs(value) if name.startswith(("norms", "drift")) else max(1.0, abs(value))
        )
        base = abs(wanted["norms.mean"]) if name.startswith(("norms", "drift")) else 0.0
        assert name in got, f"{where}: no {name} among {sorted(got)[:9]}"
        assert abs(got[name] - value) <= near * max(scale, base), (
            f"{where}: {name} {got[name]!r} for {value!r}"
        )


def counted(x):
    """Which vectors count: finite and not zero."""
    return np.isfinite(x).all(-1) & (x != 0).any(-1)


# ---- vectors ---------------------------------------------------------------------------------------------------------


def vectors(draw):
    """Vectors [sequence, token, dim] of any size, type, scale, drift, mask and units; some are zero or not finite."""
    seed = draw.randrange(1 << 30)
    rng, dtype = np.random.default_rng(seed), draw.choice([*DTYPES])
    shape = (
        draw.randint(1, 12),
        draw.randint(1, 20),
        draw.choice([1, 2, 3, 8, 33, 64]),
    )
    reach = {"float16": 3, "bfloat16": 30, "float32": 30, "float64": 120}[dtype]
    scale, drift = 10.0 ** draw.uniform(-reach, reach), draw.choice([0, 0.1, 1, 30])
    x = (rng.standard_normal(shape) + drift * rng.standard_normal(shape[-1])) * scale
    mask = rng.random(shape[:2]) < draw.choice([1.0, 0.9, 0.5])
    mask[0, 0] = True
    for _ in range(draw.choice([0, 0, 1, 3])):
        x[rng.integers(shape[0]), rng.integers(shape[1])] = draw.choice(
            [0.0, np.nan, np.inf]
        )
    tensor = torch.from_numpy(x).to(getattr(torch, dtype))
    tensor[~torch.from_numpy(mask)] = draw.choice([0.0, math.nan, 7.0])
    return (
        seed,
        dtype,
        scale,
        tensor,
        mask,
        rng.integers(0, draw.choice([2, 5, 40]), shape[0]),
    )


def check_vectors(drawn, _folder):
    seed, dtype, _, tensor, mask, unit = drawn
    x = tensor.double().numpy()
    real = mask & counted(x)
    given = tensor if seed % 2 or dtype == "bfloat16" else tensor.numpy()
    got = {}
    for name in ("mean_cosine", "drift", "norms", "spectrum"):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                got |= {
                    k: e.value
                    for k, e in anisoscope.metric(
                        name, given, mask=mask, unit=unit
                    ).items()
                }
            except AnisoscopeError:
                assert not real.any()
                return
        assert real.any(), "vectors none of which counts were measured"
        assert any("left out" in str(w.message) for w in told) == bool(
            (mask & ~real).any()
        ), "told what is left out"
    check(
        got,
        expected(x[real], np.repeat(unit, x.shape[1]).reshape(mask.shape)[real]),
        DTYPES[dtype],
        dtype,
    )


# ---- models ----------------------------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A model inside a module that knows nothing of transformers."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.config, self.main_input_name = (
            inner,
            inner.config,
            inner.main_input_name,
        )

    def forward(self, **given):
        return self.inner(**given)


class Quantised(nn.Module):
    """A linear map whose weights are whole numbers of 8 bits, with a scale for each row."""

    def __init__(self, linear):
        super().__init__()
        scale = (
            linear.weight.detach().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        )
        self.register_buffer("scale", scale)
        self.register_buffer(
            "weight", (linear.weight.detach() / scale).round().to(torch.int8)
        )
        self.bias = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x):
        return nn.functional.linear(
            x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias
        )


def quantised(model):
    """Every linear map of the blocks in 8 bits."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Quantised(child))
    return model


def blocks_of(model):
    """{stack: blocks}, from the names of the families themselves."""
    if hasattr(model, "decoder") and hasattr(model.decoder, "block"):
        return {"encoder": model.encoder.block, "decoder": model.decoder.block}
    for owner, names in (
        (model, ("layers", "h")),
        (getattr(model, "encoder", None), ("layer",)),
    ):
        for name in names:
            if hasattr(owner, name):
                return {"": getattr(owner, name)}
    raise AssertionError("a family without a way to its blocks")


@contextmanager
def watched(model):
    """{stack: [input of the first block, output of each]}, by hooks of our own."""
    seen, hooks = {}, []

    def output(stack, _module, _given, made):
        seen[stack].append(made[0] if isinstance(made, tuple) else made)

    def first(stack, _module, given, named):
        seen[stack] = [given[0] if given else named["hidden_states"]]

    for stack, blocks in blocks_of(model).items():
        hooks.append(
            blocks[0].register_forward_pre_hook(partial(first, stack), with_kwargs=True)
        )
        hooks += [
            block.register_forward_hook(partial(output, stack))
            for block in dict.fromkeys(blocks)
        ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def model_of(draw):
    """A family, a type, how it is treated, a side of padding, a scale of its embeddings."""
    treatment = draw.choice(
        [t for t in TREATMENTS for _ in range(1 if t == "compiled" else 4)]
    )
    dtype = draw.choice([*DTYPES])
    dtype = "float32" if treatment == "quantised" else dtype
    scale = 10.0 ** draw.choice([0, 0, -4, -1, 1, 3])
    return (
        draw.choice([*tiny.ARCHITECTURES]),
        dtype,
        treatment,
        draw.choice(["left", "right", "none"]),
        scale,
    )


def treated(family, dtype, treatment, scale):
    """(the model as it is measured, the same inside)."""
    inner = copy.deepcopy(tiny.model(family))
    inner.get_input_embeddings().weight.data.mul_(scale)
    inner = inner.to(getattr(torch, dtype))
    if treatment == "tied":  # the last block has the weights of the one before it
        for blocks in blocks_of(inner).values():
            first = dict(blocks[max(0, len(blocks) - 2)].named_parameters())
            for name, parameter in blocks[-1].named_parameters():
                parameter.data = first[name].data if name in first else parameter.data
    if treatment == "quantised":
        inner = quantised(inner)
    if treatment == "checkpointed" and inner.supports_gradient_checkpointing:
        inner.activation_checkpointing_enable()
        inner.train()
    outer = Wrapped(inner) if treatment == "wrapped" else inner
    return (
        torch.compile(inner, backend="eager") if treatment == "compiled" else outer
    ), inner


def check_model(family, dtype, treatment, side, scale, _folder):
    model, inner = treated(family, dtype, treatment, scale)
    inputs, real = tiny.padded(family, side)
    training = inner.training
    inner.eval()
    with torch.no_grad(), watched(inner) as seen:
        inner(**inputs)
    inner.train(training)
    metrics = ("mean_cosine", "drift", "norms", "spectrum")
    records = anisoscope.measure(model, inputs, metrics=metrics, tokens="all").records
    assert inner.training == training, "modes come back"
    rows = records[(records["site"] == "hidden") & records["component"].isna()]
    for stack, states in seen.items():
        name = stack or tiny.stack_names(family)[0]
        for layer, state in enumerate(states):
            x = state.detach().double().numpy()
            mask = real[name].numpy() & counted(x)
            of_layer = rows[(rows["layer"] == layer) & (rows["stack"] == name)]
            got = dict(zip(of_layer["metric"], of_layer["value"], strict=True))
            if mask.any():
                unit = np.broadcast_to(np.arange(len(x))[:, None], mask.shape)
                check(
                    got, expected(x[mask], unit[mask]), DTYPES[dtype], f"{name} {layer}"
                )
            assert of_layer["n_vectors"].isin([mask.sum()]).any() or not mask.any(), (
                f"{name} {layer}: n"
            )


def check_attention(family, dtype, treatment, side, _folder):
    """Entropy and largest weight of every head, from the maps of the family's own eager attention in float64."""
    model, _ = treated(family, dtype, treatment, 1.0)
    inputs, real = tiny.padded(family, side)
    with torch.no_grad(), tiny.exact_softmax():
        made = tiny.eager(family)(**inputs, output_attentions=True)
        records = tiny.measure(
            model, [inputs], ("attention",)
        )  # padding of Gemma 2 in float64 is NaN without it
    two = family in tiny.TWO_STACKS
    maps = {
        name: made[f"{name}_attentions" if two else "attentions"]
        for name in tiny.stack_names(family)
    }
    for stack, layers in maps.items():
        for layer, p in enumerate(layers, 1):
            seen = p.double().transpose(1, 2)[real[stack]]
            wanted = {
                "attention.entropy": -torch.special.xlogy(seen, seen).sum(-1).mean(0),
                "attention.row_max": seen.amax(-1).mean(0),
            }
            for metric, value in wanted.items():
                chosen = (
                    (records["metric"] == metric)
                    & (records["layer"] == layer)
                    & (records["kind"] == "self")
                )
                got = (
                    records[chosen & (records["stack"] == stack)]
                    .sort_values("head")["value"]
                    .to_numpy(float)
                )
                near = 1e-6 if dtype == "float64" else 2e-4
                np.testing.assert_allclose(
                    got,
                    value.numpy(),
                    rtol=near,
                    atol=near,
                    err_msg=f"{stack} {layer} {metric}",
                )


LONG = {"gpt2": {"n_positions": 1024}, "t5": {}, "byt5": {}}
"""What lets a tiny family read long sequences; the others: `max_position_embeddings`."""


def lengths_of(draw):
    """A family, a backend, a side of padding, and unequal lengths about a block of rows, the longest beyond it."""
    family = draw.choice(
        [name for name in tiny.ARCHITECTURES if name not in tiny.TWO_STACKS]
    )
    longest = draw.choice([n for n in matrix.LENGTHS if 127 <= n <= 300])
    lengths = (
        longest,
        draw.choice([n for n in matrix.LENGTHS if n <= longest]),
        draw.randint(1, longest),
    )
    return (
        family,
        draw.choice(["sdpa", "eager"]),
        draw.choice(["left", "right"]),
        lengths,
    )


def check_lengths(family, backend, side, lengths, _folder):
    """Entropy and largest weight of every row of a batch of unequal lengths, from the family's own weights."""
    model = tiny.build(family, **LONG.get(family, {"max_position_embeddings": 1024}))
    real = torch.from_numpy(matrix.real_tokens(lengths, side))
    ids = torch.randint(
        3,
        tiny.VOCABULARY,
        real.shape,
        generator=torch.Generator().manual_seed(sum(lengths)),
    )
    inputs = {"input_ids": torch.where(real, ids, 0), "attention_mask": real.long()}
    stack = tiny.stack_names(family)[0]
    with torch.no_grad(), tiny.exact_softmax():
        model.set_attn_implementation("eager")
        maps = model(**inputs, output_attentions=True).attentions
        model.set_attn_implementation(
            "eager" if family == "gemma2" else backend
        )  # which caps its scores
        with capture(model, ("attention",)) as tap:
            tap.real = {stack: real}
            model(**inputs)
    for layer, p in enumerate(maps, 1):
        rows, seen = tap[f"{stack}.{layer}.attention"], p.double().transpose(1, 2)[real]
        wanted = {
            "entropy": -torch.special.xlogy(seen, seen).sum(-1),
            "row_max": seen.amax(-1),
        }
        wanted["keys"] = (seen > 0).sum(-1).double()
        for name, value in wanted.items():
            got = rows[name].transpose(1, 2)[real].double().numpy()
            told = f"{layer} {name}"
            np.testing.assert_allclose(
                got, value.numpy(), rtol=1e-6, atol=1e-8, err_msg=told
            )


def check_cell(shape, seed, _folder):
    """A cell of the matrix of attention calls."""
    matrix.check_shape(shape, seed)


def cases(draw, _folder):
    """Vectors, models and their attention in turn."""
    Settings()  # imports before time is counted
    cells = draw.sample(matrix.all_shapes(), FEWEST["matrix"])
    for turn in range(FEWEST["vectors"]):
        drawn = vectors(draw)
        told = f"seed {drawn[0]}, {drawn[1]}, scale {drawn[2]:.1e}, {tuple(drawn[3].shape)}"
        yield Case("vectors", told, partial(check_vectors, drawn))
        if turn < FEWEST["models"]:
            given = model_of(draw)
            yield Case("models", repr(given), partial(check_model, *given))
        if turn < FEWEST["attention"]:
            given = (
                draw.choice([*tiny.ARCHITECTURES]),
                draw.choice(["float64", "float32"]),
                draw.choice(["plain", "wrapped", "checkpointed"]),
                draw.choice(["left", "right", "none"]),
            )
            yield Case("attention", repr(given), partial(check_attention, *given))
        if turn < FEWEST["lengths"]:
            given = lengths_of(draw)
            yield Case("lengths", repr(given), partial(check_lengths, *given))
        if turn < FEWEST["matrix"]:
            seed = draw.randrange(1 << 30)
            yield Case(
                "matrix",
                f"{cells[turn]}, seed {seed}",
                partial(check_cell, cells[turn], seed),
            )
