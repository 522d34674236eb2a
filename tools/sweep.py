"""Every model type that transformers builds from its configuration class, tiny and random, through the default run.

    python tools/sweep.py                    # all of them, on 2 processes: writes tools/sweep.json and the page of it
    python tools/sweep.py bert gpt2          # these, on the screen
    python tools/sweep.py --part=1/4         # a fourth of them, into tools/sweep.json too

What `anisoscope.measure` says in float64 is held against what the model itself returns (`output_hidden_states`, and the
weights of its eager attention), computed here with nothing of the library: A and the mean norm of every layer, and the
entropy of every head. It ends with 1 if anything is wrong or crashes, and names what became of a type that was kept as
another.
"""

import argparse
import copy
import json
import multiprocessing
import os
import queue
import re
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from pages import table_row
from torch import Tensor, nn

KEPT = Path(__file__).with_suffix(".json")
PAGE = KEPT.parents[1] / "docs" / "model-types.md"
PROCESSES = 2
CLOSE = {"hidden": 1e-6, "attention": 1e-5}
"""Relative; models whose own code computes in float32 (rotary angles, norms) stay within."""
MIXED = "as many as units in the batch"
"""What a run expects that cannot tell which vector is of which sequence."""
SAID = "not seen and left out, "
"""How a run begins to say what of attention it does not have."""


MOST_WEIGHTS = 60_000_000
"""Of a model that is built with its default widths."""
MOST_OF_DEFAULT_RUN = 4_000_000
"""Weights from which on the spectrum has no interval, which would take minutes of layers a thousand wide."""
MOST_SECONDS = 40
"""Seconds of a core that a model type may take."""
MOST_TOKENS = 16
"""Longer masks are those of sounds."""
Figures = tuple[float, float]
"""A and mean norm of a layer."""


class Row(NamedTuple):
    """What became of a model type.

    status      measured · partly (some attention is not seen, which the run says) · refused (with a reason, which the
                run says) · wrong · crashed · none (the model itself does not run here)
    hidden      layers of each stack
    attention   layers whose heads are seen, of those that blocks have
    compared    what the model itself returned to compare with
    reason      of everything but "measured"
    """

    status: str
    hidden: str = ""
    attention: str = ""
    compared: str = ""
    reason: str = ""


def model_types() -> list[str]:
    """Names of all model types that have a model class."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def look_at(model_type: str) -> Row:
    """Build, run, measure and compare one model type, as small as it builds and runs."""
    from tiny_configs import LEVELS, tiny_config

    reasons: list[str] = []
    for level in range(len(LEVELS)):
        try:
            config = tiny_config(model_type, level)
            if level and _size(config) > MOST_WEIGHTS:
                continue
            model = build(config)
        except ImportError as error:
            return Row("none", reason=f"not built: {_said(error)}")
        except Exception as error:
            reasons.append(f"not built: {_said(error)}")
            continue
        row = _looked_at(model)
        if row.status != "none":
            return row
        reasons.append(row.reason)
    return Row("none", reason=reasons[0])


def _size(config: Any) -> int:
    """How many weights a model has."""
    from transformers import AutoModel

    make: Any = AutoModel.from_config
    with torch.device("meta"):
        return sum(p.numel() for p in make(config).parameters())


def _looked_at(model: nn.Module) -> Row:
    """Run, measure and compare a model on the first inputs that it takes; one that has the parts of all sequences in
    one row goes on with one sequence a batch, as the run that refuses it says.
    """
    from tiny_inputs import one_sequence

    row = _looked_at_batch(model)
    if row.status == "refused" and MIXED in row.reason:
        with one_sequence():
            alone = _looked_at_batch(model)
        return (
            alone._replace(compared=f"{alone.compared}; one sequence a batch")
            if alone.compared
            else row
        )
    return row


def _looked_at_batch(model: nn.Module) -> Row:
    from tiny_inputs import candidates

    reason = ""
    for inputs in candidates(model):
        try:
            plain = call(model, inputs)
        except Exception as error:
            reason = reason or _said(error)
            continue
        if not _is_whole(plain):
            break
        return _measured(model, inputs, plain)
    # some compute in float32 by themselves, or have masks whose sums overflow in float64 (CANINE)
    model = model.float()
    for inputs in map(_in_float32, candidates(model)):
        with suppress(Exception):
            row = _measured(model, inputs, call(model, inputs))
            return (
                row._replace(compared=f"{row.compared}, in float32")
                if row.compared
                else row
            )
    return Row("none", reason=f"not run: {reason or 'no inputs known'}")


def _in_float32(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        k: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x
        for k, x in inputs.items()
    }


def _is_whole(output: Any) -> bool:
    """Whether an output has no NaN."""
    return all(
        not bool(x.isnan().any()) for x in _tensors(output) if x.is_floating_point()
    )


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | tuple | list):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(part)


def build(config: Any) -> nn.Module:
    """A random model in float64; no parameter is constant, so that a bias or a norm left out shows."""
    from transformers import AutoModel

    torch.manual_seed(7)
    config.architectures = (
        config.architectures or []
    )  # of one with two bare models, which to take (Funnel)
    make: Any = AutoModel.from_config
    model: nn.Module = make(config, experts_implementation="eager")
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval().double()


def call(model: nn.Module, inputs: dict[str, Any], **asked: bool) -> Any:
    """The output of a model. What it draws by chance (ViT-MAE the patches that it hides) is the same each time."""
    torch.manual_seed(11)
    with torch.no_grad():
        return model(**inputs, **asked)


def _measured(model: nn.Module, inputs: dict[str, Any], plain: Any) -> Row:
    import anisoscope
    from anisoscope.errors import AnisoscopeError

    is_wide = sum(p.numel() for p in model.parameters()) > MOST_OF_DEFAULT_RUN
    torch.manual_seed(11)
    try:
        options: dict[str, Any] = {"spectrum_groups": 1} if is_wide else {}
        run = anisoscope.measure(model, inputs, **options)
    except AnisoscopeError as error:
        return Row("refused", reason=f"{error.expected}; got {error.got}")
    except Exception as error:
        return Row("crashed", reason=_said(error, where=True))
    if not _same(plain, call(model, inputs)):
        return Row("wrong", reason="outputs differ after the run")
    ours, own = Ours(run.records), own_of(model, inputs, plain)
    if (
        (sinks := _sinks(model))
        and own.weights
        and all(map(_lacks_no_share, chain(*own.weights.values())))
    ):
        for sink in sinks:
            sink.data.fill_(-1e4)
        row = _measured(model, inputs, call(model, inputs))
        return row._replace(
            compared=f"{row.compared}; sinks turned off, since the weights returned have no part of them"
        )
    masks = [*masks_of(inputs), *own.masks, *visible_keys(own.weights)]
    hidden = against_hidden(ours, own, masks)
    unseen = [
        line.removeprefix(SAID)
        for line in run.manifest["warnings"]
        if "; the rest is measured" in line
    ]
    attention = against_weights(ours, own, masks, is_said=bool(unseen))
    compared = [f"hidden states{hidden.note}"] if hidden.compared else []
    compared += [f"weights{attention.note}"] if attention.compared else []
    row = Row(
        "measured",
        ours.layers(),
        ours.heads(),
        "; ".join([*compared, *own.remarks]) or "nothing returned",
    )
    faults, missing = (
        hidden.faults + attention.faults,
        [*unseen, *hidden.missing, *attention.missing],
    )
    if faults:
        return row._replace(status="wrong", reason="; ".join(faults))
    return row._replace(status="partly", reason="; ".join(missing)) if missing else row


# ---- what the model itself returns


class Own(NamedTuple):
    """What a model returns by the name of the field: hidden states and weights of attention; the same of the models
    within it; which positions are real; remarks on what of it is no reference.
    """

    hidden: dict[str, list[Tensor]]
    weights: dict[str, list[Tensor]]
    within: "Own | None"
    masks: list[Tensor]
    remarks: list[str]


def own_of(model: nn.Module, inputs: dict[str, Any], plain: Any) -> Own:
    """Hidden states, and weights of a twin with eager attention, of every part of the output.

    A twin whose outputs are not those of the model computes something else, and is no reference.
    """
    remarks: list[str] = []
    whole, parts = _twin_output(model, inputs, "", "output_hidden_states")
    eager, eager_parts = _twin_output(model, inputs, "eager", "output_attentions")
    masks = [mask for output in (whole, *parts.values()) for mask in masks_of(output)]
    hidden, inner = _hidden_of(whole), _of_parts(parts, _hidden_of)
    weights, inner_weights = _weights_of(eager), _of_parts(eager_parts, _weights_of)
    if (weights or inner_weights) and not _near(plain, eager):
        weights, inner_weights, remarks = (
            {},
            {},
            ["no weights: its eager attention gives other outputs"],
        )
    has_sinks = any("sink" in name for name, _ in model.named_parameters())
    for found in (weights, inner_weights):
        for name in [
            name
            for name, layers in found.items()
            if not all(map(_lacks_no_share, layers)) and not has_sinks
        ]:
            del found[name]
            remarks.append(f"{name} are parts of the rows, and not compared")
        for name in [
            name
            for name, layers in found.items()
            if all(map(_is_mean_of_heads, layers))
        ]:
            del found[name]
            remarks.append(f"{name} are means over heads, and not compared")
    return Own(hidden, weights, Own(inner, inner_weights, None, [], []), masks, remarks)


def _hidden_of(output: Any) -> dict[str, list[Tensor]]:
    """Hidden states by the name of the field."""
    found = {
        name: [x for x in value if isinstance(x, Tensor) and x.is_floating_point()]
        for name, value in _fields(output)
        if name.endswith("hidden_states") and isinstance(value, tuple | list)
    }
    return {name: states for name, states in found.items() if len(states) > 1}


def _weights_of(output: Any) -> dict[str, list[Tensor]]:
    """Weights of attention by the name of the field."""
    found = {
        name: [x for x in value if isinstance(x, Tensor) and _are_weights(x)]
        for name, value in _fields(output)
        if name.endswith("attentions") and isinstance(value, tuple | list)
    }
    return {name: layers for name, layers in found.items() if layers}


def _of_parts(
    parts: dict[str, Any], read: Callable[[Any], dict[str, list[Tensor]]]
) -> dict[str, list[Tensor]]:
    """What is read of the outputs of the parts of a model, by path and name."""
    return {
        f"{path}: {name}": value
        for path, output in parts.items()
        for name, value in read(output).items()
    }


def _are_weights(x: Tensor) -> bool:
    """Whether a tensor is attention [sequence, head, query, key], and not what linear attention keeps in its place."""
    return x.dim() == 4 and bool((x >= 0).all()) and bool((x.sum(-1) <= 1 + 1e-4).all())


def _is_mean_of_heads(x: Tensor) -> bool:
    """Whether the weights of all heads are the same, as torch's own attention returns the mean over them."""
    return x.shape[1] > 1 and bool((x == x[:, :1]).all())


def _sinks(model: nn.Module) -> list[Tensor]:
    """The learnt sinks of a model that are not turned off."""
    return [
        p
        for name, p in model.named_parameters()
        if name.endswith("sinks") and bool((p > -1e3).any())
    ]


def _lacks_no_share(weights: Tensor) -> bool:
    """Whether the weights of every row that sees a key add up to 1."""
    total = weights.sum(-1)
    return bool(((total - 1).abs() < 1e-5)[total > 0].all())


def _twin_output(
    model: nn.Module, inputs: dict[str, Any], attention: str, asked: str
) -> tuple[Any, dict[str, Any]]:
    """What a copy of the model returns when it is asked for more, and what the models within it do; None where it
    cannot.
    """
    from transformers import PreTrainedModel

    twin: Any = copy.deepcopy(model)
    if attention:
        with suppress(
            ValueError, ImportError, TypeError, AttributeError, KeyError
        ):  # it has one kind alone
            twin.set_attn_implementation(attention)
    parts: dict[str, Any] = {}

    def keep(path: str, _module: nn.Module, _args: Any, output: Any) -> None:
        parts[path] = output

    for path, part in twin.named_modules():
        if isinstance(
            part, PreTrainedModel
        ):  # the last of the hidden states is the last block's output, not normed
            part.config.tie_last_hidden_states = False
            if path:
                part.register_forward_hook(partial(keep, path))
    for every in (True, False):  # some cannot have their parts asked
        for part in twin.modules():
            if isinstance(part, PreTrainedModel):
                with suppress(
                    ValueError
                ):  # one whose attention is not eager has no weights to return
                    setattr(part.config, asked, every)
        parts.clear()
        with suppress(Exception):
            return call(twin, inputs, **{asked: True}), parts
    return None, {}


def _fields(output: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(output, Mapping):
        return
    for name, value in output.items():
        yield prefix + name, value
        yield from _fields(value, f"{prefix}{name}.")


def masks_of(values: Any) -> list[Tensor]:
    """Which positions are real, as the inputs or the outputs say it; of sounds, every second one too, as Whisper's
    convolutions leave them.
    """
    masks = [
        x.bool()
        for name, x in _fields(values)
        if name.endswith("attention_mask") and isinstance(x, Tensor) and x.dim() == 2
    ]
    return [*masks, *(mask[:, ::2] for mask in masks if mask.shape[1] > MOST_TOKENS)]


def visible_keys(weights: Mapping[str, list[Tensor]]) -> list[Tensor]:
    """Which positions any row attends to, where these differ from sequence to sequence: frames that an encoder makes of
    fewer inputs, of which only the model knows which are real.
    """
    masks: dict[tuple[Any, ...], Tensor] = {}
    for layers in weights.values():
        for p in layers:
            seen = (p > 0).flatten(1, 2).any(1)
            if not bool(seen.all()):
                masks[(*seen.shape, *seen.sum(1).tolist())] = seen
    return list(masks.values())


def _mean_cosine(x: Tensor) -> float:
    """A of vectors [vector, dim], from its definition."""
    unit = torch.nn.functional.normalize(x.double(), dim=-1)
    n = len(unit)
    return (
        float((unit.sum(0).square().sum() - unit.square().sum()) / (n * (n - 1)))
        if n > 1
        else float("nan")
    )


def _figures(x: Tensor, masks: list[Tensor]) -> list[Figures]:
    """(A, mean norm) of a layer, for every way to read its axes and its mask."""
    if x.dim() == 4:
        ways = [x.flatten(2).transpose(1, 2).flatten(0, 1), x.flatten(0, 2)]
    elif x.dim() == 3:
        ways = [x.flatten(0, 1)]
        for mask in masks:
            if mask.shape == x.shape[:2]:
                ways.insert(0, x[mask])
            if (
                len(mask) == len(x) and mask.shape[1] < x.shape[1]
            ):  # behind a prompt, or filled up to whole blocks
                ways += [x[:, : mask.shape[1]][mask], x[:, -mask.shape[1] :][mask]]
            if mask.shape == (x.shape[1], x.shape[0]):
                ways.insert(0, x.transpose(0, 1)[mask])
    else:
        ways = [x.reshape(-1, x.shape[-1])]
    return [
        (_mean_cosine(way), float(way.double().norm(dim=-1).mean())) for way in ways
    ]


def _entropies(weights: Tensor, masks: list[Tensor]) -> list[np.ndarray]:
    """Mean entropy of the rows of each head [head], for every mask that fits."""
    p = weights.double()
    sink = (1 - p.sum(-1)).clamp(min=0)
    sink = torch.where(
        sink > 1e-6, sink, 0.0
    )  # a learnt sink, whose share the weights over keys lack
    entropy = -torch.xlogy(p, p).sum(-1) - torch.xlogy(sink, sink)
    sees = p.sum(-1) > 0
    ways = []
    for mask in masks:
        if len(mask) == len(p) and mask.shape[1] <= p.shape[2]:
            for rows in (slice(mask.shape[1]), slice(-mask.shape[1], None)):
                real = mask[:, None] & sees[:, :, rows]
                ways.append((entropy[:, :, rows] * real).sum((0, 2)) / real.sum((0, 2)))
    ways.append((entropy * sees).sum((0, 2)) / sees.sum((0, 2)))
    return [way.numpy() for way in ways]


# ---- what the run says


class Ours:
    """The records of a run by site: A and mean norm of layers, entropies of heads."""

    def __init__(self, records: Any) -> None:
        whole = records[records["component"].isna()]
        first = whole[whole["token_policy"] == "all"]
        self.sites: dict[tuple[str, str, int], Figures] = {}
        wanted = first[first["metric"].isin(("mean_cosine", "norms.mean"))]
        figures = {
            (
                r.stack,
                r.site,
                -1
                if r.layer is None or r.layer != r.layer or str(r.layer) == "<NA>"
                else int(r.layer),
                r.metric,
            ): r.value
            for r in wanted.itertuples()
        }
        for stack, site, layer, _ in figures:
            a, norm = (
                figures.get((stack, site, layer, name), float("nan"))
                for name in ("mean_cosine", "norms.mean")
            )
            self.sites[stack, site, layer] = a, norm
        rows = whole[whole["metric"] == "attention.entropy"]
        self.entropies: dict[tuple[str, str, int], np.ndarray] = {}
        for (stack, kind, layer), group in rows.groupby(
            ["stack", "kind", "layer"], sort=False
        ):
            self.entropies[stack, kind, int(layer)] = group.sort_values("head")[
                "value"
            ].to_numpy(float)

    def stacks(self, site: str = "hidden") -> dict[str, list[Figures]]:
        found: dict[str, list[Figures]] = {}
        for (stack, name, layer), figures in sorted(self.sites.items()):
            if name == site and layer >= 0:
                found.setdefault(stack, []).append(figures)
        return found

    def layers(self) -> str:
        return "; ".join(
            f"{stack} {len(layers)}" for stack, layers in self.stacks().items()
        )

    def heads(self) -> str:
        seen = {(stack, layer) for stack, _, layer in self.entropies}
        return (
            f"{len(seen)} of {sum(len(layers) - 1 for layers in self.stacks().values())}"
            if seen
            else "none"
        )

    def series(self) -> dict[tuple[str, str], list[np.ndarray]]:
        """Entropies of the heads of each stack and kind of attention, layer by layer."""
        found: dict[tuple[str, str], list[np.ndarray]] = {}
        for (stack, kind, _), entropies in sorted(self.entropies.items()):
            found.setdefault((stack, kind), []).append(entropies)
        kinds = {
            stack: [kind for name, kind in found if name == stack] for stack, _ in found
        }
        for stack, several in kinds.items():
            if (
                len(several) > 1
            ):  # keys of fewer positions (PVT) count as of another kind
                layers = sorted(
                    (layer, kind)
                    for name, kind, layer in self.entropies
                    if name == stack
                )
                found[stack, "any"] = [
                    self.entropies[stack, kind, layer] for layer, kind in layers
                ]
        return found


class Outcome(NamedTuple):
    """What came of a comparison: how many fields agree, what does not, what the model returns and is not measured, and
    of what the model returns nothing to compare with.
    """

    compared: int
    faults: list[str]
    missing: list[str]
    note: str = ""


def against_hidden(ours: Ours, own: Own, masks: list[Tensor]) -> Outcome:
    """The layers of the run against the hidden states of the model.

    Each field has to agree with a stack, or with some of its layers in order (a model may return what its stages make),
    or to have all of its layers in order among others (what several stacks make, one after the other). One that does
    not is a fault if a stack is left that agrees with no field, which it might have been; else it is of a part that is
    not measured.
    """
    stacks = {**ours.stacks(), **ours.stacks("stage")}
    final = [x for (_, site, _), x in ours.sites.items() if site == "final"]
    apart: dict[str, list[list[Figures]]] = {}
    agreeing: set[str] = set()
    compared = 0
    for name, states in chain(
        own.hidden.items(), own.within.hidden.items() if own.within else ()
    ):
        figures = [_figures(x, masks) for x in states]
        found = [
            stack
            for stack, layers in stacks.items()
            if not _differs(layers, figures, final)
        ]
        found = found or [
            stack
            for stack, layers in stacks.items()
            if _is_within(figures, layers + final)
        ]
        found = found or [
            stack for stack, layers in stacks.items() if _holds(figures, layers)
        ]
        agreeing.update(found)
        compared += bool(found)
        if not found and name in own.hidden:
            apart[name] = figures
    left = {
        stack: layers
        for stack, layers in ours.stacks().items()
        if stack not in agreeing
    }
    if not left or not apart:
        missing = [f"{name}: of a part that is not measured" for name in apart]
        return Outcome(compared, [], missing, _not_of(left))
    faults = []
    for name, figures in apart.items():
        near = min(left.values(), key=lambda layers: abs(len(layers) - len(figures)))
        faults.append(f"{name}: {_differs(near, figures, final)}")
    return Outcome(compared, faults, [])


def against_weights(
    ours: Ours, own: Own, masks: list[Tensor], *, is_said: bool
) -> Outcome:
    """The heads of the run against the weights of the model, as `against_hidden`; `is_said`: the run says that there is
    attention that it does not see.
    """
    series = ours.series()
    apart: dict[str, list[list[np.ndarray]]] = {}
    agreeing: set[tuple[str, str]] = set()
    compared = 0
    for name, layers in chain(
        own.weights.items(), own.within.weights.items() if own.within else ()
    ):
        entropies = [_entropies(x, masks) for x in layers]
        found = [key for key, seen in series.items() if _in_order(entropies, seen)]
        if not found and (
            many := [key for key, seen in series.items() if _in_order(seen, entropies)]
        ):
            # of several kinds or stacks one after the other: all of them have to be there
            found = (
                many
                if sum(len(series[key]) for key in many if key[1] != "any")
                == len(entropies)
                else []
            )
        if is_said:  # some layers are missing
            found = found or [
                key for key, seen in series.items() if _in_order(seen, entropies)
            ]
        agreeing.update(found)
        compared += bool(found)
        if not found and name in own.weights:
            apart[name] = entropies
    agreeing |= {(stack, kind) for stack, kind in series if (stack, "any") in agreeing}
    left = {
        key: seen
        for key, seen in series.items()
        if key not in agreeing and key[1] != "any"
    }
    if is_said:  # one of which every layer is seen is not what a field of another number of layers has
        depth = {stack: len(layers) - 1 for stack, layers in ours.stacks().items()}
        wanted = {len(entropies) for entropies in apart.values()}
        left = {
            key: x
            for key, x in left.items()
            if len(x) in wanted or len(x) < depth.get(key[0], 0)
        }
    if not apart or (not left and (is_said or compared)):
        missing = (
            []
            if is_said
            else [f"{name}: of a part that is not measured" for name in apart]
        )
        return Outcome(
            compared, [], missing, _not_of(f"{stack} {kind}" for stack, kind in left)
        )
    faults = []
    for name, entropies in apart.items():
        same = [seen for seen in left.values() if len(seen) == len(entropies)]
        worst = [max(map(_entropy_gap, seen, entropies)) for seen in same]
        lengths = ", ".join(str(len(seen)) for seen in left.values()) or "none"
        fault = f"{len(entropies)} layers of weights, {lengths} here"
        faults.append(
            f"{name}: {f'entropies differ by {min(worst):.2g}' if worst else fault}"
        )
    return Outcome(compared, faults, [])


def _not_of(left: Iterable[str]) -> str:
    """A remark that nothing is there to compare some parts with."""
    names = ", ".join(left)
    return f" (none of {names})" if names else ""


def _in_order(few: list[Any], many: list[Any]) -> bool:
    """Whether all of the few are among the many, in order; one of both has for each layer what it may be."""
    following = iter(many)
    return bool(few) and all(
        any(_entropy_gap(x, y) < CLOSE["attention"] for y in following) for x in few
    )


def _entropy_gap(one: Any, other: Any) -> float:
    """The largest difference of the entropies of heads [head], from the nearest way to read those of the model."""
    seen, ways = (one, other) if isinstance(other, list) else (other, one)
    return min(
        (float(np.abs(seen - way).max()) for way in ways if seen.shape == way.shape),
        default=np.inf,
    )


def _is_within(few: list[list[Figures]], many: list[Figures]) -> bool:
    """Whether each layer that the model returns is among those of the run, in order."""
    following = iter(many)
    return len(few) <= len(many) and all(
        any(_agree([x], [ways]) for x in following) for ways in few
    )


def _holds(many: list[list[Figures]], few: list[Figures]) -> bool:
    """Whether each layer of a stack is among those that the model returns, in order; the input of the first block need
    not be.
    """
    for start in (0, 1):
        following = iter(many)
        if len(few) > start + 1 and all(
            any(_agree([x], [ways]) for ways in following) for x in few[start:]
        ):
            return True
    return False


def _differs(
    ours: list[Figures], own: list[list[Figures]], final: list[Figures]
) -> str:
    outputs = len(own) == len(ours) and _agree(ours[1:], own[:-1])
    if outputs and any(_close(x, y) for x in final for y in own[-1]):
        return ""  # outputs of the blocks, and the last of them normed (Mamba)
    if len(ours) not in (len(own), len(own) - 1):
        return f"{len(own)} layers, {len(ours)} here"
    start = len(own) - len(ours)  # stages come without the stem
    for i, ways in enumerate(own[start:]):
        here = [ours[i], *(final if i == len(ours) - 1 else [])]
        if not any(_close(x, y) for x in here for y in ways):
            a, b = ours[i], ways[0]
            return f"layer {i}: A {a[0]:.6g}, norm {a[1]:.6g}; the model's {b[0]:.6g}, {b[1]:.6g}"
    return ""


def _agree(ours: list[Figures], own: list[list[Figures]]) -> bool:
    return all(
        any(_close(x, y) for y in ways) for x, ways in zip(ours, own, strict=True)
    )


def _close(one: Figures, other: Figures) -> bool:
    return all(
        np.isclose(x, y, rtol=CLOSE["hidden"], atol=CLOSE["hidden"], equal_nan=True)
        for x, y in zip(one, other, strict=True)
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two outputs are the same bit for bit."""
    return _compare(
        one, other, lambda x, y: torch.equal(torch.nan_to_num(x), torch.nan_to_num(y))
    )


def _near(one: Any, other: Any) -> bool:
    """Whether two outputs are the same but for rounding: of float32, in which eager attention takes its softmax."""
    return _compare(
        one,
        other,
        lambda x, y: torch.allclose(x.double(), y.double(), 1e-5, 1e-5, equal_nan=True),
    )


def _compare(one: Any, other: Any, same: Callable[[Tensor, Tensor], bool]) -> bool:
    """Whether all tensors that both outputs have are the same."""
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor) and one.shape == other.shape and same(one, other)
        )
    if isinstance(one, Mapping):
        return all(
            _compare(one[name], other[name], same) for name in one if name in other
        )
    if isinstance(one, tuple | list):
        return all(_compare(x, y, same) for x, y in zip(one, other, strict=False))
    return True


def _said(error: BaseException, *, where: bool = False) -> str:
    # A module is shown with the path of its file, which is that of this machine.
    words = re.sub(r" from '[^']*'", "", " ".join(str(error).split()))
    text = f"{type(error).__name__}: {words[:200]}"
    if where:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ours = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if "/anisoscope/" in f.filename
        ][-1:]
        text += f" ({', '.join(f'{Path(f.filename).name}:{f.lineno}' for f in (*ours, frame))})"
    return text


class _LateError(BaseException):
    """A model type takes longer than it may."""


def _stop(*_: Any) -> None:
    raise _LateError


def _worker(names: Any, results: Any) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGPROF, _stop)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while (name := names.get()) is not None:
        results.put((os.getpid(), name, None, 0.0))
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        try:
            row = look_at(name)
        except _LateError:
            row = Row(
                "none", reason=f"not run: it takes more than {MOST_SECONDS} s of a core"
            )
        except Exception as error:
            row = Row(
                "crashed", reason=f"of the sweep itself: {_said(error, where=True)}"
            )
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        results.put((os.getpid(), name, row, time.process_time() - begun))


def sweep(
    names: list[str], processes: int = PROCESSES, show: Any = None
) -> dict[str, Row]:
    """All of these, each in one of some processes; `show(name, row, seconds)` is called as they come."""
    context = multiprocessing.get_context("spawn")
    todo, results = context.Queue(), context.Queue()
    for name in [*names, *[None] * processes]:
        todo.put(name)
    rows: dict[str, Row] = {}
    running: dict[int, str] = {}
    workers = [_started(context, todo, results) for _ in range(processes)]
    while len(rows) < len(names):
        try:
            process, name, row, seconds = results.get(timeout=10)
        except queue.Empty:
            for worker in [
                worker for worker in workers if worker.exitcode
            ]:  # its process was ended
                workers.remove(worker)
                workers.append(_started(context, todo, results))
                results.put(
                    (
                        0,
                        running.pop(worker.pid, ""),
                        Row("crashed", reason="the process ended"),
                        0.0,
                    )
                )
            continue
        if row is None:
            running[process] = name
        elif name:
            rows[name] = row
            if show:
                show(name, row, seconds)
    return {name: rows[name] for name in names}


def _started(context: Any, todo: Any, results: Any) -> Any:
    worker = context.Process(target=_worker, args=(todo, results), daemon=True)
    worker.start()
    return worker


# ---- what is kept of it, and its page


def kept() -> dict[str, Row]:
    """What was found and is printed."""
    return (
        {name: Row(*row) for name, row in json.loads(KEPT.read_text("utf-8")).items()}
        if KEPT.exists()
        else {}
    )


def keep(rows: Mapping[str, Row]) -> None:
    """Keep rows; those of other model types stay."""
    every = {**kept(), **rows}
    lines = {name: list(every[name]) for name in model_types() if name in every}
    KEPT.write_text(json.dumps(lines, indent=0, ensure_ascii=False) + "\n", "utf-8")


WHAT_BECAME = {
    "measured": "all layers and heads that the blocks have, equal to the model's own",
    "partly": "what is measured is equal to the model's own; what is not, and why",
    "refused": "nothing is measured, and the run says why",
    "none": "no model: it was not built, or did not run on inputs that the sweep knows, or takes a package that is not "
    "installed",
}


def page() -> str:
    """docs/model-types.md."""
    rows = kept()
    counts = {
        status: sum(row.status == status for row in rows.values())
        for status in WHAT_BECAME
    }
    lines = [
        "# Model types of transformers",
        "",
        f"Each of {len(rows)} model types of transformers that have a model class, built from its configuration, tiny",
        "and random, goes through the default run in float64. Anisotropy and mean norm of every layer are held against",
        "the `hidden_states` that the model itself returns, and the entropy of every head against the weights of its",
        "eager attention, both computed without this library: equal to 1e-6 and 1e-5. `make sweep` does it again.",
        "",
        "| | model types | what it means |",
        "|---|---|---|",
        *(
            f"| {status} | {counts[status]} | {WHAT_BECAME[status]} |"
            for status in WHAT_BECAME
        ),
    ]
    for status in ("measured", "partly"):
        lines += [
            "",
            f"## {status.capitalize()}",
            "",
            "| model type | layers | heads: layers | held against | |",
        ]
        lines += ["|---|---|---|---|---|"]
        lines += [
            table_row((name, *row[1:]))
            for name, row in rows.items()
            if row.status == status
        ]
    for status in ("refused", "none"):
        lines += [
            "",
            f"## {'Refused' if status == 'refused' else 'No model'}",
            "",
            "| model type | why |",
            "|---|---|",
        ]
        lines += [
            table_row((name, row.reason))
            for name, row in rows.items()
            if row.status == status
        ]
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> int:
    """Sweep over the model types that are named, or over all of them, or over a part; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="TYPE",
        help="model types; default: all of transformers",
    )
    parser.add_argument(
        "--part", metavar="I/N", help="the I-th of N shares of all types"
    )
    asked = parser.parse_args(words)
    begun = time.monotonic()
    names, chosen = model_types(), asked.names
    if asked.part is not None:
        read = re.fullmatch(r"(\d+)/(\d+)", asked.part)
        part, parts = map(int, read.groups()) if read else (0, 0)
        if not 1 <= part <= parts:
            parser.error(
                f"argument --part: expected I/N with 1 ≤ I ≤ N, such as 1/4; got {asked.part!r}"
            )
        names = names[part - 1 :: parts]
    before = kept()

    def show(name: str, row: Row, seconds: float) -> None:
        print(f"{seconds:5.1f} s  {name}: {' | '.join(row)}", flush=True)

    found = sweep(chosen or names, show=show)
    counts = Counter(row.status for row in found.values())
    print(
        f"{len(found)} types in {(time.monotonic() - begun) / 60:.1f} minutes: {dict(counts)}"
    )
    for name, row in found.items():
        if name in before and before[name].status != row.status:
            print(f"{name}: {before[name].status} before, {row.status} now")
    if not chosen:
        keep(found)
        PAGE.write_text(page(), "utf-8")
    return int(counts["wrong"] + counts["crashed"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
