"""What is seen of each family and library: the second table of docs/architectures.md. Measured here, kept in seen.json,
compared by tests/test_families.py.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from families import FAMILIES, SINGLE, build, importable, inputs
from torch import Tensor

from anisoscope.capture import capture
from anisoscope.capture.heads import Heads
from anisoscope.capture.masking import Call
from anisoscope.capture.vectors import TEXT
from anisoscope.errors import MeasureError

KEPT = Path(__file__).with_suffix(".json")
HEADS = ("query", "key", "value", "attention")
CLOSE = {True: 2e-5, False: 1e-6}  # of weights in float32, in float64
STAGES = ("raw", "normed", "rotated")


class Seen(NamedTuple):
    """A row of the table; every entry as it is printed."""

    hidden: str
    heads: str
    rows: str
    alignment: str
    mechanism: str


class Looked(NamedTuple):
    """Attention calls: mechanisms, and weights by the softmax of what wchecked by hand, in order."""

    by: Counter[str]
    weights: list[Tensor]


def measure(name: str) -> Seen:
    """What is seen of a family in one padded call, against what the model itself returns; why, where it is refused."""
    try:
        return _measured(name)
    except MeasureError as error:
        return Seen("refused", "none", "none", "none", error.got)


def _measured(name: str) -> Seen:
    model, (args, named) = build(name), inputs(name)
    seen, look = Looked(Counter(), []), Heads.look

    def looked(heads: Heads, call: Call, **how: Any) -> None:
        seen.by[call.by] += 1
        seen.weights.append(call.weights())
        look(heads, call, **how)

    with torch.no_grad():
        plain = model(*args, **named)
        with (
            patch.object(Heads, "look", looked),
            capture(model, ("hidden", *HEADS), optional=HEADS) as tap,
        ):
            if "attention_mask" in named:
                tap.real = dict.fromkeys(
                    ("encoder", "decoder"), named["attention_mask"].bool()
                )
            inside = model(*args, **named)
    same = all(
        torch.equal(x, y)
        for x, y in zip(_tensors(plain), _tensors(inside), strict=True)
    )
    assert same, f"{name}: outputs changed"
    sites = Counter(
        site.split(".", 2)[0] for site in tap.kept if site.endswith(".hidden")
    )
    hidden = "; ".join(f"{stack} {n}" for stack, n in sites.items())
    layers = {
        tuple(site.split(".")[:2]) for site in tap.kept if site.endswith("attention")
    }
    stages = {site.rsplit(".", 1)[1] for site in tap.kept if ".head.query" in site}
    of_blocks = {
        stack: n - 1 for stack, n in sites.items() if stack != TEXT
    }  # a text's is that of the image
    heads = f"{len(layers)} of {sum(of_blocks.values())}" if layers else "none"
    heads += (
        f" ({', '.join(stage for stage in STAGES if stage in stages)})"
        if stages
        else ""
    )
    unseen = "; ".join(sorted(x for x in tap.unseen if " " in x))
    mechanism = ", ".join(sorted(seen.by)) or "no attention"
    mechanism += f"; not seen: {unseen}" if unseen else ""
    return Seen(
        hidden,
        heads,
        _against_own(name, seen.weights),
        _alignment(tap.kept, named),
        mechanism,
    )


def _against_own(name: str, ours: list[Tensor]) -> str:
    """Weights of what wchecked by hand against those that the model itself returns, where it does: of real rows."""
    if not ours:
        return "none"
    args, named = inputs(name)
    try:
        model = build(
            name, "eager"
        )  # asked for weights, a model built for another computes something else (Falcon)
        with torch.no_grad():
            output = model(*args, **named, output_attentions=True)
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return "checked by hand"
    encoder, decoder, cross = (
        [*(getattr(output, f"{part}attentions", None) or ())] for part in _PARTS
    )
    alternating = [x for pair in zip(decoder, cross, strict=False) for x in pair]
    own = [
        x
        for x in (*encoder, *alternating, *(getattr(output, "attentions", None) or ()))
        if x is not None
    ]
    own = [
        x if x.shape == w.shape else x.permute(2, 3, 0, 1)
        for x, w in zip(own, ours, strict=False)
        if x.dim() == 4
    ]
    if len(own) != len(ours) or any(
        x.shape != w.shape for x, w in zip(own, ours, strict=True)
    ):
        return "checked by hand"
    mask, worst = named.get("attention_mask"), 0.0
    for theirs, weights in zip(own, ours, strict=True):
        if bool(
            (theirs == theirs[:, :1]).all()
        ):  # the mean over heads, for each of them (WavLM)
            weights = weights.mean(1, keepdim=True).expand_as(weights)
        difference = (theirs - weights).abs().amax(-1)
        if mask is not None and mask.shape[1] == difference.shape[2]:
            difference = difference * mask[:, None]
        worst = max(worst, float(difference.max()))
    return (
        "the model's own" if worst < CLOSE[name in SINGLE] else f"OTHERS by {worst:.1g}"
    )


_PARTS = ("encoder_", "decoder_", "cross_")


def _alignment(kept: dict[str, Any], named: dict[str, Any]) -> str:
    """Positions of layers against those of the input."""
    widths = {x.shape[1] for site, x in kept.items() if site.endswith(".hidden")}
    tokens = named.get("input_ids")
    if tokens is not None:
        return (
            "token by token"
            if widths == {tokens.shape[1]}
            else f"positions {_range(widths)}"
        )
    return f"positions {_range(widths)}"


def _range(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers, reverse=True)))


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    values = (
        output.values()
        if hasattr(output, "values")
        else output
        if isinstance(output, list | tuple)
        else ()
    )
    return [x for part in values if part is not None for x in _tensors(part)]


def kept() -> dict[str, Seen]:
    """What was measured and is printed."""
    return {
        name: Seen(*row) for name, row in json.loads(KEPT.read_text("utf-8")).items()
    }


def table() -> list[str]:
    """Rows of the table: family or library, hidden, heads, rows, alignment, mechanism."""
    rows = [
        f"| {name} ({FAMILIES[name].library}) | {' | '.join(seen)} |"
        if FAMILIES[name].make
        else f"| {name} | {' | '.join(seen)} |"
        for name, seen in kept().items()
    ]
    return [
        "| family or library | hidden: layers | q, k, v, rows: layers (stages) | weights | alignment | mechanism |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


if __name__ == "__main__":
    found = kept() if KEPT.exists() else {}
    for name in sys.argv[1:] or FAMILIES:
        if importable(FAMILIES[name].library):
            begun = time.perf_counter()
            try:
                found[name] = measure(name)
                print(
                    f"{time.perf_counter() - begun:.2f} s  {name}: {' | '.join(found[name])}",
                    flush=True,
                )
            except Exception as error:
                print(
                    f"FAILED {name}: {type(error).__name__}: {' '.join(str(error).split())[:160]}",
                    flush=True,
                )
    KEPT.write_text(
        json.dumps({name: found[name] for name in FAMILIES if name in found}, indent=1)
        + "\n",
        "utf-8",
    )
