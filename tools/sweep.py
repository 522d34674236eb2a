"""Every model type that transformers builds from its configuration class, tiny and random, through the default run.

    python tools/sweep.py                    # all of them, on 2 processes: writes tools/sweep.json
    python tools/sweep.py bert gpt2          # these, on the screen
    python tools/sweep.py --against          # as the first, and names what differs from tools/sweep.json

What `anisoscope.measure` says in float64 is held against what the model itself returns (`output_hidden_states`, and the
weights of its eager attention), computed here with nothing of the library: A and the mean norm of every layer, and the
entropy of every head.
"""

import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

KEPT = Path(__file__).with_suffix(".json")
PROCESSES = 2
CLOSE = {"hidden": 1e-6, "attention": 1e-5}
"""Relative; models whose own code computes in float32 (rotary angles, norms) stay within."""
SAID = "not seen and left out, "
"""How a run begins to say what of attention it does not have."""


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
    """Build, run, measure and compare one model type."""
    from tiny_configs import tiny_config
    from tiny_inputs import candidates

    try:
        model = _built(tiny_config(model_type))
    except Exception as error:
        return Row("none", reason=f"not built: {_said(error)}")
    reason = "no inputs known"
    for inputs in candidates(model):
        try:
            with torch.no_grad():
                plain = model(**inputs)
            break
        except Exception as error:
            reason = reason if reason != "no inputs known" else _said(error)
    else:
        return Row("none", reason=f"not run: {reason}")
    return _measured(model, inputs, plain)


def _built(config: Any, attention: str | None = None) -> nn.Module:
    """A random model in float64; no parameter is constant, so that a bias or a norm left out shows."""
    from transformers import AutoModel

    torch.manual_seed(7)
    build: Any = AutoModel.from_config
    model: nn.Module = build(config, attn_implementation=attention, experts_implementation="eager")
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval().double()


def _measured(model: nn.Module, inputs: dict[str, Any], plain: Any) -> Row:
    import anisoscope
    from anisoscope.errors import AnisoscopeError

    try:
        run = anisoscope.measure(model, inputs)
    except AnisoscopeError as error:
        return Row("refused", reason=f"{error.expected}; got {error.got}")
    except Exception as error:
        return Row("crashed", reason=_said(error, where=True))
    with torch.no_grad():
        after = model(**inputs)
    if not _same(plain, after):
        return Row("wrong", reason="outputs differ after the run")
    ours = Ours(run.records)
    row = Row("measured", ours.layers(), ours.heads())
    own, faults = _own(model, inputs), []
    compared = []
    masks = [*masks_of(inputs), *visible_keys(own.weights)]
    for name, states in own.hidden.items():
        fault = ours.hidden_fault(states, masks)
        compared.append("hidden states")
        faults += [f"{name}: {fault}"] if fault else []
    for name, weights in own.weights.items():
        fault = ours.attention_fault(weights, masks)
        compared.append("weights")
        faults += [f"{name}: {fault}"] if fault else []
    row = row._replace(compared=" and ".join(dict.fromkeys(compared)) or "nothing returned")
    unseen = [line.removeprefix(SAID) for line in run.manifest["warnings"] if line.startswith(SAID)]
    if unseen:  # what is said not to be seen is not missed
        faults = [fault for fault in faults if "of weights" not in fault and "no attention" not in fault]
    if faults:
        return row._replace(status="wrong", reason="; ".join(faults))
    return row._replace(status="partly", reason="; ".join(unseen)) if unseen else row


# ---- what the model itself returns


class Own(NamedTuple):
    hidden: dict[str, list[Tensor]]
    weights: dict[str, list[Tensor]]


def _own(model: nn.Module, inputs: dict[str, Any]) -> Own:
    """Hidden states, and weights of a twin with eager attention, that are returned, of every part of the output."""
    hidden = {
        name: [x for x in value if isinstance(x, Tensor)]
        for name, value in _fields(_twin_output(model, inputs, None, "output_hidden_states"))
        if name.endswith("hidden_states") and isinstance(value, tuple | list) and len(value) > 1
    }
    weights: dict[str, list[Tensor]] = {}
    for name, value in _fields(_twin_output(model, inputs, "eager", "output_attentions")):
        found = [x for x in value if isinstance(x, Tensor) and x.dim() == 4] if isinstance(value, tuple | list) else []
        if found and name.endswith("attentions"):
            weights[name] = found
    return Own(hidden, weights)


def _twin_output(model: nn.Module, inputs: dict[str, Any], attention: str | None, asked: str) -> Any:
    """What a model of the same weights returns when it is asked for more; None where it cannot."""
    from transformers import PreTrainedModel

    try:
        twin = _built(model.config, attention)
    except (ValueError, ImportError, TypeError):
        twin = _built(model.config)
    twin.load_state_dict(model.state_dict())
    for part in twin.modules():
        if isinstance(part, PreTrainedModel):  # the last of the hidden states is the last block's output, not normed
            part.config.tie_last_hidden_states = False
    try:
        with torch.no_grad():
            return twin(**inputs, **{asked: True})
    except Exception:
        return None


def _fields(output: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(output, Mapping):
        return
    for name, value in output.items():
        yield prefix + name, value
        yield from _fields(value, f"{prefix}{name}.")


def masks_of(inputs: dict[str, Any]) -> list[Tensor]:
    """Which positions are real, as the inputs say it."""
    return [x.bool() for name, x in inputs.items() if name.endswith("attention_mask") and x.dim() == 2]


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
    return float((unit.sum(0).square().sum() - unit.square().sum()) / (n * (n - 1))) if n > 1 else float("nan")


def _figures(x: Tensor, masks: list[Tensor]) -> list[tuple[float, float]]:
    """(A, mean norm) of a layer, for every way to read its axes and its mask."""
    if x.dim() == 4:
        ways = [x.flatten(2).transpose(1, 2).flatten(0, 1), x.flatten(0, 2)]
    elif x.dim() == 3:
        ways = [x.flatten(0, 1)]
        for mask in masks:
            if mask.shape == x.shape[:2]:
                ways.insert(0, x[mask])
            if mask.shape == (x.shape[1], x.shape[0]):
                ways.insert(0, x.transpose(0, 1)[mask])
    else:
        ways = [x.reshape(-1, x.shape[-1])]
    return [(_mean_cosine(way), float(way.double().norm(dim=-1).mean())) for way in ways]


def _entropies(weights: Tensor, masks: list[Tensor]) -> list[np.ndarray]:
    """Mean entropy of the rows of each head [head], for every mask that fits."""
    p = weights.double()
    sink = (1 - p.sum(-1)).clamp(min=0)
    sink = torch.where(sink > 1e-6, sink, 0.0)  # a learnt sink, whose share the weights over keys lack
    entropy = -torch.xlogy(p, p).sum(-1) - torch.xlogy(sink, sink)
    sees = p.sum(-1) > 0
    ways = []
    for mask in masks:
        if mask.shape == (len(p), p.shape[2]):
            real = mask[:, None] & sees
            ways.append((entropy * real).sum((0, 2)) / real.sum((0, 2)))
    ways.append((entropy * sees).sum((0, 2)) / sees.sum((0, 2)))
    return [way.numpy() for way in ways]


# ---- what the run says


class Ours:
    """The records of a run by site: A and mean norm of layers, entropies of heads."""

    def __init__(self, records: Any) -> None:
        whole = records[records["component"].isna()]
        first = whole[whole["token_policy"] == "all"]
        self.sites: dict[tuple[str, str, int], tuple[float, float]] = {}
        wanted = first[first["metric"].isin(("mean_cosine", "norms.mean"))]
        figures = {
            (
                r.stack,
                r.site,
                -1 if r.layer is None or r.layer != r.layer or str(r.layer) == "<NA>" else int(r.layer),
                r.metric,
            ): r.value
            for r in wanted.itertuples()
        }
        for stack, site, layer, _ in figures:
            a, norm = (figures.get((stack, site, layer, name), float("nan")) for name in ("mean_cosine", "norms.mean"))
            self.sites[stack, site, layer] = a, norm
        rows = whole[whole["metric"] == "attention.entropy"]
        self.entropies: dict[tuple[str, str, int], np.ndarray] = {}
        for (stack, kind, layer), group in rows.groupby(["stack", "kind", "layer"], sort=False):
            self.entropies[stack, kind, int(layer)] = group.sort_values("head")["value"].to_numpy(float)

    def stacks(self, site: str = "hidden") -> dict[str, list[tuple[float, float]]]:
        found: dict[str, list[tuple[float, float]]] = {}
        for (stack, name, layer), figures in sorted(self.sites.items()):
            if name == site and layer >= 0:
                found.setdefault(stack, []).append(figures)
        return found

    def layers(self) -> str:
        return "; ".join(f"{stack} {len(layers)}" for stack, layers in self.stacks().items())

    def heads(self) -> str:
        seen = {(stack, layer) for stack, _, layer in self.entropies}
        return f"{len(seen)} of {sum(len(layers) - 1 for layers in self.stacks().values())}" if seen else "none"

    def hidden_fault(self, states: list[Tensor], masks: list[Tensor]) -> str:
        """What does not agree with hidden states of the model: "" where all do."""
        own = [_figures(x, masks) for x in states]
        if self._holds(own):
            return ""
        final = [figures for (_, site, _), figures in self.sites.items() if site == "final"]
        faults = []
        for ours in (*self.stacks().values(), *self.stacks("stage").values()):
            faults.append(_differs(ours, own, final))
            if not faults[-1]:
                return ""
        return next((fault for fault in faults if "layers" not in fault), faults[0] if faults else "no layers")

    def _holds(self, own: list[list[tuple[float, float]]]) -> bool:
        """Whether a stack has all of these among its layers, in order: where a model returns what its stages make."""
        for layers in self.stacks().values():
            following = iter(layers)
            if len(own) < len(layers) and all(any(_agree([x], [ways]) for x in following) for ways in own):
                return True
        return False

    def attention_fault(self, weights: list[Tensor], masks: list[Tensor]) -> str:
        own = [_entropies(x, masks) for x in weights]
        series: dict[tuple[str, str], list[np.ndarray]] = {}
        for (stack, kind, _), entropies in sorted(self.entropies.items()):
            series.setdefault((stack, kind), []).append(entropies)
        for stack in {stack for stack, _ in series}:  # keys of fewer positions (PVT) count as of another kind
            of_stack = {layer: x for (name, _, layer), x in self.entropies.items() if name == stack}
            series[stack, "any"] = [of_stack[layer] for layer in sorted(of_stack)]
        faults = []
        for ours in series.values():
            if len(ours) != len(own):
                faults.append(f"{len(own)} layers of weights, {len(ours)} here")
                continue
            worst = 0.0
            for a, ways in zip(ours, own, strict=True):
                fits = [np.abs(a - way).max() for way in ways if a.shape == way.shape]
                worst = max(worst, min(fits, default=np.inf))
            if worst < CLOSE["attention"]:
                return ""
            faults.append(f"entropies differ by {worst:.2g}")
        return (
            next((fault for fault in faults if "layers" not in fault), faults[0] if faults else "not seen")
            if faults
            else "no attention"
        )


def _differs(
    ours: list[tuple[float, float]], own: list[list[tuple[float, float]]], final: list[tuple[float, float]]
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


def _agree(ours: list[tuple[float, float]], own: list[list[tuple[float, float]]]) -> bool:
    return all(any(_close(x, y) for y in ways) for x, ways in zip(ours, own, strict=True))


def _close(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return all(
        np.isclose(x, y, rtol=CLOSE["hidden"], atol=CLOSE["hidden"], equal_nan=True)
        for x, y in zip(one, other, strict=True)
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.shape == other.shape and bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))
    if isinstance(one, Mapping):
        return all(_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return all(map(_same, one, other))
    return True


def _said(error: BaseException, *, where: bool = False) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if where:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "/anisoscope/" in f.filename][-1:]
        text += f" ({', '.join(f'{Path(f.filename).name}:{f.lineno}' for f in (*ours, frame))})"
    return text


def _worker(names: Any, results: Any) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    while (name := names.get()) is not None:
        results.put((name, None, 0.0))
        begun = time.monotonic()
        try:
            row = look_at(name)
        except Exception as error:
            row = Row("crashed", reason=f"of the sweep itself: {_said(error, where=True)}")
        results.put((name, row, time.monotonic() - begun))


def sweep(names: list[str], processes: int = PROCESSES, show: Any = None) -> dict[str, Row]:
    """All of these, each in one of some processes."""
    context = multiprocessing.get_context("spawn")
    todo, results = context.Queue(), context.Queue()
    for name in [*names, *[None] * processes]:
        todo.put(name)
    workers = [context.Process(target=_worker, args=(todo, results), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    rows: dict[str, Row] = {}
    while len(rows) < len(names):
        name, row, seconds = results.get()
        if row is not None:
            rows[name] = row
            if show:
                show(name, row, seconds)
    return {name: rows[name] for name in names}


if __name__ == "__main__":
    begun = time.monotonic()
    chosen = [word for word in sys.argv[1:] if not word.startswith("-")]
    if chosen and chosen[0].startswith("@"):
        chosen = json.loads(Path(chosen[0][1:]).read_text())

    def show(name: str, row: Row, seconds: float) -> None:
        print(f"{seconds:5.1f} s  {name}: {' | '.join(row)}", flush=True)

    found = sweep(chosen or model_types(), show=show)
    counts: dict[str, int] = {}
    for row in found.values():
        counts[row.status] = counts.get(row.status, 0) + 1
    print(f"{len(found)} types in {(time.monotonic() - begun) / 60:.1f} minutes: {counts}")
    if not chosen:
        KEPT.write_text(
            json.dumps({name: list(row) for name, row in found.items()}, indent=0, ensure_ascii=False) + "\n", "utf-8"
        )
