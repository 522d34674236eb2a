"""Sums of vectors as an accelerator makes them in plain torch: lengths far apart, and what is left out."""

import pytest
import torch

from anisoscope.sums.device import sum_on_device

NAMES = frozenset({"unit_square"})


def of_tokens(rows, dtype=torch.float64):
    """One sequence of one head: its vectors, and one policy and one subset that count all of them."""
    x = torch.tensor(rows, dtype=dtype)[None, :, None]
    every = torch.ones(1, 1, len(rows), dtype=torch.bool)
    return {n: v.flatten().tolist() for n, v in _sums(x, every).items()}


def _sums(x, every):
    found, inverse = sum_on_device(x, every, every, NAMES)
    return found | {"inverse": inverse}


@pytest.mark.parametrize("left_out", [1e300, -1e200, float("inf"), float("nan")])
def test_short_vectors_keep_their_digits_next_to_one_too_long_to_count(left_out):
    found = of_tokens([[3e-100, 4e-100], [left_out, 0.0], [0.0, 2e-100]])
    assert found["vector"] == pytest.approx([3e-100, 6e-100], rel=1e-14, abs=0)
    assert found["norm"] == pytest.approx([7e-100], rel=1e-14, abs=0)
    assert found["unit"] == pytest.approx([0.6, 1.8], rel=1e-14)
    assert found["inverse"] == pytest.approx([2e99, 0, 5e99], rel=1e-14)
    assert (found["n"], found["zero"], found["nonfinite"]) == ([2], [0], [1])


def test_float32_vectors_of_lengths_at_either_end_of_the_type_are_summed():
    """The sum of norms is one that float32 could not hold."""
    found = of_tokens([[3e38, 0.0], [0.0, 3e38], [-1e-30, 0.0]], torch.float32)
    assert found["vector"] == pytest.approx([3e38, 3e38], rel=1e-6)
    assert found["norm"] == pytest.approx([6e38], rel=1e-6)
    assert found["norm_square"] == pytest.approx([18e76], rel=1e-6)
    assert found["unit"] == pytest.approx([0, 1], abs=1e-6)
    assert found["unit_square"] == pytest.approx([2, 1], rel=1e-6)
    assert found["n"] == found["subset_n"] == [3]


def test_sums_of_zeros_are_zero():
    found = of_tokens([[0.0, 0.0], [0.0, 0.0]])
    assert (found.pop("zero"), found.pop("nonfinite")) == ([2], [0])
    assert {x for values in found.values() for x in values} == {0.0}
