"""What is measured of attention calls of every shape, against the plain computation of `attention_matrix`.

The suite tries a part of the matrix, drawn by a fixed seed; `make matrix` tries all of it.
"""

import random

import attention_matrix as matrix
import pytest
import torch

from anisoscope.capture.scores import sum_scores

DRAWN = 40
entropy_of = matrix.entropy_of
"""Cells that the suite tries."""


def drawn_shapes():
    """Cells drawn so that every value of every axis is among them, and all causal ones of unequal length beyond one
    block of rows.
    """
    shapes = matrix.all_shapes()
    draw = random.Random(35)
    long = [
        s
        for s in shapes
        if s.pattern == "causal" and s.side != "none" and s.length in (129, 300)
    ]
    return draw.sample(long, 8) + draw.sample(shapes, DRAWN)


def mark_long(shapes):
    """The cells as parameters: of those of 700 tokens, a second each, all but the first are for the night."""
    seen = 0
    for shape in shapes:
        seen += shape.length == 700
        late = shape.length == 700 and seen > 1
        yield pytest.param(
            shape, marks=pytest.mark.nightly if late else (), id=shape.name
        )


@pytest.mark.parametrize("shape", mark_long(drawn_shapes()))
def test_rows_are_the_plain_ones(shape):
    matrix.check_shape(shape)


def test_a_cell_that_is_wrong_is_told(monkeypatch, capsys):
    """`make matrix` in miniature: sound, with a mistake in one place, and with a name that no cell has."""
    monkeypatch.setattr(matrix, "ProcessPoolExecutor", InThisProcess)
    assert matrix.main(["--only", "causal-right-2-plain-float32"]) == 0
    assert capsys.readouterr().out == "2 of 2 cells, 0 failed\n"
    monkeypatch.setattr(
        matrix, "entropy_of", lambda outcomes: 1.001 * entropy_of(outcomes)
    )
    assert matrix.main(["--only", "causal-right-129-plain-float32"]) == 1
    told = capsys.readouterr().out
    assert (
        "FAILED causal-right-129-plain-float32-boolean: AssertionError" in told
        and "2 failed" in told
    )
    with pytest.raises(SystemExit):
        matrix.main(["--only", "casual"])


class InThisProcess:
    """A pool whose work is done here, where a mistake was put in."""

    def __init__(self, _processes):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def map(self, check, items, chunksize):
        assert chunksize
        return map(check, items)


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
    call, _, seen = matrix.call_of(
        matrix.Shape(pattern, "none", 12, "grouped", "float32", "boolean"), 0
    )
    real = torch.arange(12).expand(3, -1) < torch.tensor([[12], [7], [1]])
    sums = sum_scores(call.query, call.key, call.masking, scale=call.scale, real=real)
    assert sums["keys"][:, 0].tolist() == [12, 7, 1]
    for sequence in range(3):
        query, key = (
            x[sequence, 1].double().numpy()
            for x in (call.query, call.key.repeat_interleave(2, 1))
        )
        given = (
            query * call.scale,
            key,
            seen[sequence],
            real[sequence].numpy(),
            sequence,
            1,
        )
        matrix.compare_scores(sums, *given)
