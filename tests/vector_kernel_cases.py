"""Sums of vectors by the GPU's kernels, run on a CPU by Triton's interpreter, against plain float64 computations.

Run by `test_kernels.py` in a process of its own, since Triton reads TRITON_INTERPRET when it is imported:

    TRITON_INTERPRET=1 python tests/vector_kernel_cases.py CASE
"""

import inspect
import itertools
import json
import sys
import warnings

import numpy as np
import row_kernel_cases as rows
import torch

from anisoscope.sums import device, on_chip
from anisoscope.sums.device import sum_on_device
from anisoscope.sums.groups import sum_vectors

TERMS = frozenset(
    {
        "n",
        "unit",
        "vector",
        "norm",
        "norm_square",
        "unit_square",
        "subset_unit",
        "sequence_cosine",
    }
)


def draw_masks(sequences, tokens, generator):
    """Two token policies and three subsets; the last sequence of several has no token."""
    masks, subsets = (
        torch.rand(sequences, n, tokens, generator=generator) > 0.3 for n in (2, 3)
    )
    if sequences > 1:
        masks[-1], subsets[-1] = False, False
    return masks, subsets


def sum_plainly(x, masks, subsets):
    """The sums of vectors [sequence, head, token, dim] by their definitions, in float64."""
    x = x.double().numpy()
    finite = np.isfinite(x).all(-1)
    norm = np.linalg.norm(np.where(finite[..., None], x, 0), axis=-1)
    counted = finite & (norm > 1.2e-38)
    unit = np.where(counted[..., None], x, 0) / np.where(counted, norm, 1)[..., None]
    kept = np.where(counted[..., None], x, 0)
    masks, subsets = (weights.double().numpy() for weights in (masks, subsets))
    n = np.einsum("spt,sht->sph", masks, counted)
    summed = np.einsum("spt,shtd->sphd", masks, unit)
    pairs = n * (n - 1)
    cosine = np.where(n > 1, ((summed**2).sum(-1) - n) / np.where(n > 1, pairs, 1), 0)
    norm = np.where(counted, norm, 0)
    return {
        "n": n,
        "norm": np.einsum("spt,sht->sph", masks, norm),
        "norm_square": np.einsum("spt,sht->sph", masks, norm**2),
        "zero": np.einsum("st,sht->s", masks[:, 0], finite & ~counted),
        "nonfinite": np.einsum("st,sht->s", masks[:, 0], ~finite),
        "subset_n": np.einsum("spt,sht->sph", subsets, counted),
        "vector": np.einsum("spt,shtd->sphd", masks, kept),
        "unit": summed,
        "unit_square": np.einsum("spt,shtd->sphd", masks, unit**2),
        "subset_unit": np.einsum("spt,shtd->sphd", subsets, unit),
        "sequence_cosine": cosine,
        "sequences": (n > 1).astype(float),
        "inverse": np.divide(1, norm, out=np.zeros_like(norm), where=counted).swapaxes(
            1, 2
        ),
    }


def check_sums():
    """The largest difference from the plain sums over all quantities, by case; whole numbers are equal."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    # Three blocks of tokens on the chip, the last not full.
    odd = draw(2, 1, 42, 40) + 3
    for at, value in ((3, 0.0), (5, torch.nan), (8, torch.inf), (11, -torch.inf)):
        odd[0, 0, at, 7 if value else slice(None)] = value
    odd[1, 0, 4] = (
        1e-39  # a vector whose norm float32 does not hold with all its digits
    )
    calls = {
        "a layer": draw(3, 1, 42, 300) + 1,
        "heads": draw(2, 4, 42, 16),
        "heads behind positions": draw(2, 42, 4, 16).transpose(1, 2),
        "channels of a map": draw(2, 1, 24, 42).transpose(2, 3),
        "few dimensions": draw(2, 1, 33, 3),
        "one token": draw(4, 1, 1, 20),
        "two tokens": draw(8, 1, 2, 20) + 1,
        "short vectors": 1e-30 * draw(2, 1, 42, 40),
        "long vectors": 1e30 * draw(2, 1, 42, 40),
        "zeros and what is not finite": odd,
        "bfloat16": (draw(2, 1, 42, 40) + 1).bfloat16(),
        "float16": (draw(2, 2, 42, 40) * 1000).half(),
    }
    found = {}
    for name, x in calls.items():
        masks, subsets = draw_masks(len(x), x.shape[2], generator)
        on_chip.CHECKED = rows.Always(True)
        got, inverse = sum_on_device(x.transpose(1, 2), masks, subsets, TERMS)
        got["inverse"] = inverse
        wanted = sum_plainly(x, masks, subsets)
        assert got.keys() == wanted.keys(), got.keys() ^ wanted.keys()
        for each in ("n", "zero", "nonfinite", "subset_n", "sequences"):
            assert np.array_equal(got[each].numpy(), wanted[each]), (name, each)
        found[name] = max(
            on_chip.compute_difference(got[each], torch.from_numpy(wanted[each]))
            for each in wanted
        )
    return found


def check_lengths():
    """Vectors of very different lengths: every direction counts as much, to the last digits of float32."""
    generator = torch.Generator().manual_seed(2)
    x = (
        torch.randn(1, 1, 64, 24, generator=generator)
        * torch.logspace(-30, 30, 64)[:, None]
    )
    masks, subsets = (
        torch.ones(1, 1, 64, dtype=torch.bool),
        torch.ones(1, 1, 64, dtype=torch.bool),
    )
    on_chip.CHECKED = rows.Always(True)
    got, inverse = sum_on_device(x.transpose(1, 2), masks, subsets, TERMS)
    wanted = sum_plainly(x, masks, subsets)
    found = {
        name: on_chip.compute_difference(got[name], torch.from_numpy(wanted[name]))
        for name in got
    }
    relative = inverse.numpy() / wanted["inverse"] - 1
    return found | {"inverse": float(np.abs(relative).max())}


def check_first_use():
    """Kernels that give other numbers, or fail, are not used: numbers are those of torch, with one warning."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 9, 1, 12, generator=generator) + 1
    masks, subsets = draw_masks(2, 9, generator)
    kernels = on_chip.load_kernels(device.KERNELS)
    right = kernels.sum_on_chip
    wanted = device._sum_by_products(x.transpose(1, 2), masks, subsets, True)

    def lose_a_token(x, masks, subsets, **how):
        masks = masks.clone()
        masks[0, :, 0] ^= True
        return right(x, masks, subsets, **how)

    def fail(*_, **__):
        raise RuntimeError("ptxas was not found\nmore")

    lies = {
        "right": right,
        "a lost token": lose_a_token,
        "longer vectors": lambda x, *rest, **how: right(x * 1.01, *rest, **how),
        "no compiler": fail,
    }
    found = {}
    for name, lie in lies.items():
        on_chip.CHECKED, kernels.sum_on_chip = {}, lie
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(2):
                got, _ = sum_on_device(x, masks, subsets, TERMS)
        same = name == "right" or all(
            torch.equal(got[each], wanted[each]) for each in got
        )
        found[name] = {
            "used": [*on_chip.CHECKED.values()],
            "same": same,
            "warned": [str(w.message) for w in warned],
        }
    kernels.sum_on_chip = right
    return found


def check_whole():
    """A state of sums by kernels, and by pieces on a CPU: the same names and shapes, and nearly the same numbers."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(5, 2, 40, 24, generator=generator) + 1
    masks, subsets = draw_masks(5, 40, generator)
    on_chip.CHECKED = rows.Always(True)
    on_cpu, _ = sum_vectors(x, masks, subsets, TERMS)
    by_kernel, _ = sum_on_device(x.transpose(1, 2), masks, subsets, TERMS)
    assert on_cpu.keys() == {name for name in by_kernel if name in on_cpu}
    assert all(on_cpu[name].shape == by_kernel[name].shape for name in on_cpu)
    return {
        name: on_chip.compute_difference(by_kernel[name], on_cpu[name])
        for name in on_cpu
    }


def compile_all():
    """The kernels, by type of number, for the target sm_90: registers and stack of a thread."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from anisoscope.sums import vector_kernel

    types = ("bf16", "fp16", "fp32")
    kernels = (
        vector_kernel._measure_lengths,
        vector_kernel._sum_tokens,
        vector_kernel._compare_inside,
    )
    found = {}
    for dtype, kernel in itertools.product(types, kernels):
        vectors = (f"*{dtype}", "i32", "i32", "i32", "constexpr")
        weights = ("*u8", "i32", "i32", "constexpr")
        kinds = {
            "vectors": vectors,
            "masks": weights,
            "subsets": weights,
            "found": ("*fp64",) * 5,
            "powers": "*fp32",
        }
        kinds |= dict.fromkeys(("norms", "cosine", "unit", "counts"), "*fp64") | {
            "count": "i32"
        }
        sizes = {"_measure_lengths": 2, "_sum_tokens": 4, "_compare_inside": 2}[
            kernel.fn.__name__
        ]
        kinds["sizes"] = ("i32",) * sizes
        constants = {"SQUARES": True, "ROWS": vector_kernel.LEAST_ROWS}
        if kernel is vector_kernel._sum_tokens:
            constants |= {"TOKENS": vector_kernel.TOKENS, "DIMS": vector_kernel.DIMS}
        else:
            constants |= {
                "TOKENS": vector_kernel.TOKENS_OF_LENGTH,
                "DIMS": vector_kernel.DIMS_OF_LENGTH,
            }
        names = inspect.signature(kernel.fn).parameters
        signature = {
            name: "constexpr" if name in constants else kinds[name] for name in names
        }
        near = {
            (place, len(kind) - 1): 1
            for place, kind in enumerate(signature.values())
            if "constexpr" in kind[-1:]
        }
        constants = {name: value for name, value in constants.items() if name in names}
        source = ASTSource(kernel, signature, constants | near)
        built = triton.compile(
            source,
            target=GPUTarget("cuda", 90, 32),
            options={"num_warps": vector_kernel.WARPS},
        )
        found[f"{kernel.fn.__name__} {dtype}"] = rows.needs_of(built, triton)
    return found


CASES = {
    "sums": check_sums,
    "lengths": check_lengths,
    "first": check_first_use,
    "whole": check_whole,
    "compiled": compile_all,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(CASES[sys.argv[1]]()))
