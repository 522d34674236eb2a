"""What is measured of attention calls of every shape, against the plain computation of `attention_matrix`.

The suite tries a part of the matrix, drawn anew by a fixed seed; `make campaign` tries all of it.
"""

import random

import attention_matrix as matrix
import pytest
import torch

from anisoscope.capture.scores import score_sums

DRAWN = 40
"""Cells that the suite tries."""


def drawn_shapes():
    """Cells drawn so that every value of every axis is among them, and all causal ones of unequal length beyond one
    block of rows.
    """
    shapes = matrix.all_shapes()
    draw = random.Random(35)
    long = [s for s in shapes if s.pattern == "causal" and s.side != "none" and s.length in (129, 300)]
    return draw.sample(long, 8) + draw.sample(shapes, DRAWN)


@pytest.mark.parametrize("shape", drawn_shapes(), ids=lambda s: "-".join(map(str, vars(s).values())))
def test_rows_are_the_plain_ones(shape):
    matrix.check_shape(shape)


def test_all_values_of_the_axes_are_drawn():
    drawn = drawn_shapes()
    for axis, values in {
        "pattern": matrix.PATTERNS,
        "side": matrix.SIDES,
        "length": matrix.LENGTHS,
        "heads": matrix.HEADS,
        "dtype": matrix.DTYPES,
        "form": matrix.FORMS,
    }.items():
        assert {getattr(shape, axis) for shape in drawn} == {*values}, axis


@pytest.mark.parametrize("pattern", ["causal", "sliding"])
def test_keys_that_no_real_query_sees_are_in_no_sum_of_scores(pattern):
    """Where the tokens that count end before the model's own: later keys are seen by rows that do not count."""
    call, _, seen = matrix.call_of(matrix.Shape(pattern, "none", 12, "grouped", "float32", "boolean"), 0)
    real = torch.arange(12).expand(3, -1) < torch.tensor([[12], [7], [1]])
    sums = score_sums(call.query, call.key, call.masking, scale=call.scale, real=real)
    assert sums["keys"][:, 0].tolist() == [12, 7, 1]
    for sequence in range(3):
        query, key = (x[sequence, 1].double().numpy() for x in (call.query, call.key.repeat_interleave(2, 1)))
        given = (query * call.scale, key, seen[sequence], real[sequence].numpy(), sequence, 1)
        matrix.compare_scores(sums, *given)
