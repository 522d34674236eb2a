"""Attention rows by the GPU's kernels, run on a CPU by Triton's interpreter, against plain float64 computations.

Run by `test_row_kernel.py` in a process of its own, since Triton reads TRITON_INTERPRET when it is imported:

    TRITON_INTERPRET=1 python tests/row_kernel_cases.py CASE
"""

import inspect
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import attention_matrix as matrix
import numpy as np
import torch

from anisoscope.capture import rows
from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.sums import on_chip

LENGTH = 70
"""More than one block on the chip, and no multiple of one."""
LARGE = "large scores"
"""A call whose scores of ten thousand bits are exact in float32: whole numbers, with a scale of ln 2 / 4. Processors
round other scores of this size in different ways, which moves a weight by 4e-4 of itself."""


class Always(dict):
    """Says of every form whether its kernels may be used, so that the first call is no other than the rest."""

    def __init__(self, used):
        self.used = used

    def __contains__(self, form):
        return True

    def __getitem__(self, form):
        return self.used


def compute(query, key, masking, *, by_kernels=True, **how):
    """The statistics by the kernels, or by plain blocks."""
    on_chip.CHECKED = Always(by_kernels)
    return attention_rows(query, key, masking, **how)


def check_matrix(dtype):
    """Every pattern with every kind of head, each side of padding and form of mask in turn: what each row should be."""
    kinds = itertools.product(matrix.PATTERNS, matrix.HEADS)
    others = itertools.cycle(itertools.product(matrix.SIDES, matrix.FORMS))
    next(others)
    names = []
    for (pattern, heads), (side, form) in zip(kinds, others, strict=False):
        if dtype != "float32" and pattern != "causal":
            continue
        shape = matrix.Shape(pattern, side, LENGTH, heads, dtype, form)
        check_shape(shape)
        names.append(shape.name)
    return names


def check_shape(shape):
    call, real, seen = matrix.call_of(shape, 0)
    sinks = call.settings.get("s_aux")
    how = {"scale": call.scale, "softcap": call.settings.get("softcap"), "sinks": sinks}
    got = compute(
        call.query,
        call.key,
        call.masking,
        real=torch.from_numpy(real),
        columns=True,
        **how,
    )
    shared = call.query.shape[1] // call.key.shape[1]
    for sequence in range(len(real)):
        for head in range(call.query.shape[1]):
            parts = (
                call.query[sequence, head],
                call.key[sequence, head // shared],
                call.value[sequence, head // shared],
            )
            query, key, value = (part.double().numpy() for part in parts)
            sink = None if sinks is None else float(sinks[head])
            place = seen[sequence], real[sequence]
            wanted = matrix.plain_statistics(
                query, key, value, *place, **(how | {"sinks": sink})
            )
            wanted = {
                name: x
                for name, x in wanted.items()
                if name not in ("row_median", "output")
            }
            matrix.compare_head(got, wanted, sequence, head, real[sequence])
            check_columns(
                got,
                query,
                key,
                *place,
                sequence,
                head,
                how | {"sinks": sink},
                shape.name,
            )


def check_columns(got, query, key, seen, real, sequence, head, how, name):
    """What each key receives from real queries, and from how many."""
    scores = query @ key.T * how["scale"]
    if how["softcap"] is not None:
        scores = how["softcap"] * np.tanh(scores / how["softcap"])
    weights = matrix.softmax_rows(
        scores, seen, -np.inf if how["sinks"] is None else how["sinks"]
    )
    mass = got["mass"][sequence, head].double().numpy()
    np.testing.assert_allclose(
        mass, weights[real].sum(0), rtol=2e-5, atol=2e-6, err_msg=f"mass of {name}"
    )
    assert np.array_equal(got["seen"][sequence, head].numpy(), seen[real].sum(0)), name


def check_blocks():
    """Everything that plain blocks give, of calls that the matrix has not: biases, widths, strides, large scores."""
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    found = {}
    causal, every = Masking(None, True, None), Masking(None, False, None)
    some = torch.ones(2, 1, 40, 40, dtype=torch.bool).tril() & (draw(2, 1, 40, 40) > -1)
    some[:, :, 5] = False  # a row that sees nothing
    by_head = draw(2, 4, 40, 40) > 0
    by_head[..., 0] = True
    calls = {
        "bias of every pair": (
            draw(2, 4, 40, 16),
            draw(2, 4, 40, 16),
            Masking(None, False, draw(2, 4, 40, 40) * 3),
        ),
        "bias of heads": (
            draw(2, 4, 40, 16),
            draw(2, 4, 40, 16),
            Masking(None, True, draw(1, 4, 40, 40)),
        ),
        "bias of keys": (
            draw(2, 4, 40, 16),
            draw(2, 4, 40, 16),
            Masking(some, False, draw(2, 1, 1, 40)),
        ),
        "mask of heads": (
            draw(2, 4, 40, 16),
            draw(2, 4, 40, 16),
            Masking(by_head, False, None),
        ),
        "a row that sees nothing": (
            draw(2, 4, 40, 16),
            draw(2, 2, 40, 16),
            Masking(some, False, None),
        ),
        "fewer queries than keys": (draw(2, 4, 7, 16), draw(2, 2, 40, 16), every),
        "more queries than keys": (draw(2, 4, 40, 16), draw(2, 2, 7, 16), every),
        LARGE: (
            (60 * draw(2, 4, 40, 16)).round(),
            (60 * draw(2, 4, 40, 16)).round(),
            causal,
        ),
        "a width of no power of 2": (draw(2, 4, 70, 80), draw(2, 4, 70, 80), causal),
        "wide": (draw(1, 2, 40, 192), draw(1, 1, 40, 192), causal),
        "heads behind positions": (
            draw(2, 40, 4, 16).transpose(1, 2),
            draw(2, 40, 2, 16).transpose(1, 2),
            causal,
        ),
        "one head": (draw(1, 1, 33, 8), draw(1, 1, 33, 8), causal),
        "a mask longer than the keys": (
            draw(2, 4, 40, 16),
            draw(2, 4, 36, 16),
            Masking(by_head, False, None),
        ),
    }
    for name, (query, key, masking) in calls.items():
        real = torch.ones(len(query), query.shape[2], dtype=torch.bool)
        real[0, query.shape[2] // 2 :] = False
        scale = query.shape[-1] ** -0.5
        if name == LARGE:
            scale *= math.log(2)
        how = {"scale": scale, "real": real, "columns": True}
        found[name] = compare(query, key, masking, **how)
    return found


def compare(query, key, masking, **how):
    """The largest difference between kernels and blocks over all statistics."""
    kernels = compute(query, key, masking, **how)
    blocks = compute(query, key, masking, by_kernels=False, **how)
    assert kernels.keys() == blocks.keys()
    return max(
        on_chip.compute_difference(kernels[name], blocks[name], blocks["keys"])
        for name in blocks
    )


def check_undefined():
    """NaN in a query or key that is seen makes the same rows undefined as in plain blocks, hidden ones do not."""
    generator = torch.Generator().manual_seed(4)
    query, key = (torch.randn(3, 2, 70, 8, generator=generator) for _ in "qk")
    query[0, 1, 9, 3], key[0, 0, 66, 1] = torch.nan, torch.inf
    real = torch.ones(3, 70, dtype=torch.bool)
    real[2, 50:] = False
    key[2, :, 50:] = torch.nan
    found = {}
    for name, masking in {
        "causal": Masking(None, True, None),
        "padded": Masking(real[:, None, None], False, None),
    }.items():
        found[name] = compare(query, key, masking, scale=0.3, real=real, columns=True)
    return found


def check_first_use():
    """A kernel that gives other numbers, or fails, is not used: numbers are of plain blocks, with a warning."""
    generator = torch.Generator().manual_seed(5)
    query, key = (torch.randn(1, 2, 40, 8, generator=generator) for _ in "qk")
    masking, how = Masking(None, True, None), {"scale": 0.3}
    kernels = on_chip.load_kernels(rows.KERNELS)
    wanted, right = (
        compute(query, key, masking, by_kernels=False, **how),
        kernels.ScoreKernels.sum_rows,
    )
    found = {}
    lies = {
        "right": right,
        "a lost key": lambda self: right(replace(self, stop=self.stop - 1)),
        "a wrong scale": lambda self: right(replace(self, scale=self.scale * 1.01)),
        "not causal": lambda self: right(replace(self, causal=False)),
        "no compiler": Mock(side_effect=RuntimeError("ptxas was not found\nmore")),
    }
    for name, lie in lies.items():
        on_chip.CHECKED, kernels.ScoreKernels.sum_rows = {}, lie
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(2):
                got = attention_rows(query, key, masking, **how)
        same = all(
            torch.equal(got[x], wanted[x]) or name == "right"
            for x in wanted
            if x != "row_similarity"
        )
        found[name] = {
            "used": [*on_chip.CHECKED.values()],
            "same": same,
            "warned": [str(w.message) for w in warned],
        }
    kernels.ScoreKernels.sum_rows = right
    return found


def compile_all():
    """Both kernels, by type of number × what they are compiled for, for the target sm_90: what they need."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from anisoscope.capture import row_kernel

    forms = {
        "causal": {"CAUSAL": True},
        "masked": {"HIDDEN": True, "BIAS": True, "SOFTCAP": True},
    }
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    found = {}
    for (dtype, of_torch), (form, options) in itertools.product(
        types.items(), forms.items()
    ):
        x = torch.empty(1, 1, 1, 128, dtype=of_torch)
        pairs = (
            torch.zeros(1, 1, 1, 1, dtype=torch.bool) if "HIDDEN" in options else None
        )
        scores = row_kernel.ScoreKernels(
            x, x, 1.0, None, None, pairs, None, None, pairs is None, torch.zeros(1)
        )
        sizes = scores._block_sizes()
        warps = sizes.pop("num_warps")
        for kernel in (row_kernel._sum_rows, row_kernel._sum_columns):
            names = inspect.signature(kernel.fn).parameters
            constants = (
                dict.fromkeys(("SOFTCAP", "BIAS", "HIDDEN", "CAUSAL"), False)
                | options
                | sizes
            )
            constants |= {"EXACT": dtype == "fp32", "TWO_WEIGHTS": True}
            constants = {
                name: value for name, value in constants.items() if name in names
            }
            signature = {
                name: "constexpr" if name in constants else type_of(name, dtype)
                for name in names
            }
            # the last stride of a tensor is 1
            near = {
                (place, 4): 1
                for place, kind in enumerate(signature.values())
                if "constexpr" in kind[-1:]
            }
            source = ASTSource(kernel, signature, constants | near)
            built = triton.compile(
                source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}
            )
            found[f"{kernel.fn.__name__} {dtype} {form}"] = needs_of(built, triton)
    return found


def type_of(name, dtype):
    """The type of a kernel's argument: tensors go with their strides."""
    strides = ("i32", "i32", "i32", "constexpr")
    types = {
        "query": (f"*{dtype}", *strides),
        "key": (f"*{dtype}", *strides),
        "bounds": ("*i64",) * 3,
    }
    types |= {
        "hidden": ("*u8", *strides),
        "bias": ("*fp32", *strides),
        "sizes": ("i32",) * 4,
        "numbers": ("fp32",) * 2,
    }
    types |= dict.fromkeys(("sums", "shift", "weights"), "*fp32")
    return types.get(name, "i32")


def needs_of(built, triton):
    """Registers and stack of a thread, and whether products run on tensor cores."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    registers, stack = re.search(
        r"REG:(\d+) STACK:(\d+)", text.stdout + text.stderr
    ).groups()
    cores = "mma" in built.asm["ptx"]
    return {"registers": int(registers), "stack": int(stack), "tensor_cores": cores}


CASES = {
    "compiled": compile_all,
    "float32": lambda: check_matrix("float32"),
    "float16": lambda: check_matrix("float16"),
    "bfloat16": lambda: check_matrix("bfloat16"),
    "blocks": check_blocks,
    "undefined": check_undefined,
    "first": check_first_use,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(CASES[sys.argv[1]]()))
