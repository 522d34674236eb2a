"""Arrays given as vectors: layers, sequences, masks, units, classes, batches and hashes, on a few numbers each."""

import numpy as np
import pytest
import scipy.sparse
import torch

from anisoscope.data import arrays
from anisoscope.data.arrays import VectorArrays, VectorPlan, wrap_vectors
from anisoscope.errors import AnisoscopeError, CorpusError, UsageError

CURE = "store numbers [vector, dim] or [sequence, token, dim]"


def numbers(*shape, start=0.0):
    return np.arange(float(np.prod(shape))).reshape(shape) + start + 0.25


def message_of(call, *given, **how):
    """The whole message of the error that a call ends with."""
    with pytest.raises(AnisoscopeError) as caught:
        call(*given, **how)
    return str(caught.value)


# ---- what is given ---------------------------------------------------------------------------------------------------


def test_rows_of_every_layer_are_read_as_floating_point_numbers():
    layers = {
        "f8": numbers(6, 2),
        "f4": numbers(6, 2, start=50).astype(np.float32),
        "f2": torch.tensor(numbers(6, 2)).half(),
        "i2": np.arange(12, dtype=np.int16).reshape(6, 2),
        "i4": np.arange(12, dtype=np.int32).reshape(6, 2) + 2**30,
        "u8": torch.arange(12).reshape(6, 2) + 2**50,
        "b1": torch.arange(12, dtype=torch.uint8).reshape(6, 2),
    }
    given = VectorArrays("x", layers, np.arange(6))
    types = {"f8": 64, "f4": 32, "f2": 32, "i2": 32, "i4": 64, "u8": 64, "b1": 32}
    for layer, x in layers.items():
        block = given.block(layer, np.array([2, 3, 4]))
        assert block.shape == (3, 1, 2)
        assert block.dtype == {64: torch.float64, 32: torch.float32}[types[layer]]
        expected = np.asarray(x[2:5], np.float64)
        np.testing.assert_array_equal(block[:, 0].double().numpy(), expected)
    assert given.shape == (6, 2) and not given.are_sequences
    deep = VectorArrays("x", {"a": numbers(6, 3, 2)}, np.arange(6))
    assert deep.are_sequences
    np.testing.assert_array_equal(deep.block("a", np.array([5])).numpy(), numbers(6, 3, 2)[5:])  # fmt: skip


def test_types_that_torch_lacks_become_those_that_it_has():
    x = numbers(2, 2)
    for kind in (">f4", ">f8", "<f4", "longdouble", ">i4", "u1"):
        found = arrays.to_native(x.astype(kind))
        assert found.dtype.isnative and found.dtype.itemsize <= 8
        np.testing.assert_array_equal(found, x.astype(kind).astype("f8"))
        torch.from_numpy(found)
    assert arrays.to_native(x.astype("longdouble")).dtype == np.float64
    assert arrays.to_native(x.astype(">f4")).dtype == np.float32
    assert arrays.to_native(x) is not x


def test_sparse_and_quantised_numbers_are_written_out():
    x = torch.tensor([[0.0, 1.5], [2.5, 0.0]])
    assert arrays.to_dense(x) is x
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        assert arrays.to_dense(sparse).layout == torch.strided
        assert arrays.to_dense(sparse).tolist() == x.tolist()
    quantised = torch.quantize_per_tensor(x, 0.5, 3, torch.quint8)
    assert arrays.to_dense(quantised).tolist() == x.tolist()
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.coo_array):
        found = arrays.to_dense(kind(x.numpy()))
        assert isinstance(found, np.ndarray) and found.tolist() == x.tolist()
        assert wrap_vectors({"a": kind(x.numpy())}).layers["a"].tolist() == x.tolist()
    nested = torch.nested.nested_tensor([x, x[:1]])
    assert message_of(arrays.to_dense, nested) == (
        "expected a tensor with a shape; got a nested tensor. "
        "Cure: pad it: torch.nested.to_padded_tensor(x, 0.0), and give a mask"
    )


def test_layers_have_the_names_that_they_were_given():
    x, y = numbers(4, 2), numbers(4, 3)
    for given, names in (
        (x, ["0"]),
        ([x, y], ["0", "1"]),
        ((x, y), ["0", "1"]),
        ({"b": x, "a": y}, ["b", "a"]),
        (torch.tensor(x), ["0"]),
    ):
        found = wrap_vectors(given)
        assert list(found.layers) == names
        if len(names) == 2:
            assert [v.shape for v in found.layers.values()] == [(4, 2), (4, 3)]
        assert (found.name, found.source, found.classes) == ("vectors", {}, ())
        assert found.units.tolist() == [0, 1, 2, 3]
        assert found.labels is None and found.mask is None
    named = wrap_vectors(x, name="n", source={"kind": "k"})
    assert (named.name, named.source) == ("n", {"kind": "k"})


def test_what_lists_of_arrays_mean():
    """Of one width and unlike lengths they are sequences; else layers."""
    ragged = arrays._are_ragged
    assert ragged([np.ones((2, 3)), np.ones((4, 3))])
    assert ragged((torch.ones(2, 3), torch.ones(4, 3)))
    assert not ragged([np.ones((2, 3)), np.ones((2, 3))])
    assert not ragged([np.ones((2, 3)), np.ones((4, 5))])
    assert not ragged([np.ones((2, 3)), np.ones((4, 3, 1))])
    assert not ragged([np.ones(3), np.ones(4)])
    assert not ragged(np.ones((2, 3))) and not ragged([])
    assert not ragged({"a": np.ones((2, 3)), "b": np.ones((4, 3))})


def test_sequences_of_unlike_lengths_are_padded_behind_with_zeros():
    parts = [numbers(2, 2), numbers(3, 2, start=10), numbers(1, 2, start=20)]
    for given in (parts, tuple(parts), iter(parts), [torch.tensor(x) for x in parts]):
        found = wrap_vectors(given)
        assert found.shape == (3, 3, 2)
        assert found.mask.tolist() == [[True, True, False], [True] * 3, [True, False, False]]  # fmt: skip
        for row, x in enumerate(parts):
            np.testing.assert_array_equal(found.layers["0"][row, : len(x)], x)
            assert not found.layers["0"][row, len(x) :].any()
        assert VectorPlan(found).tokens == [6]
    mixed = [numbers(1, 2).astype("f4"), numbers(2, 2, start=2**30)]
    assert wrap_vectors(mixed).layers["0"].dtype == np.float64
    assert wrap_vectors(mixed).layers["0"][1, 0, 0] == 2**30 + 0.25
    half = [torch.ones(1, 2).bfloat16(), torch.ones(2, 2).bfloat16()]
    assert wrap_vectors(half).layers["0"].dtype == np.float32
    whole = [torch.ones(1, 2, dtype=torch.int16), torch.ones(2, 2, dtype=torch.int16)]
    assert wrap_vectors(whole).layers["0"].dtype == np.int16
    single = wrap_vectors(x for x in numbers(4, 3))
    assert single.shape == (4, 3) and single.mask is None
    np.testing.assert_array_equal(single.layers["0"], numbers(4, 3))
    for wrong, got in (
        ([numbers(3), numbers(2, 3)], "[3], [2, 3]"),
        ([numbers(3), numbers(2), numbers(4), numbers(5)], "[3], [2], [4]"),
        ([numbers(2, 2, 2)] * 2, "[2, 2, 2], [2, 2, 2]"),
        ([], "nothing"),
    ):
        assert message_of(wrap_vectors, iter(wrong)) == (
            f"expected vectors [dim], or sequences [token, dim], of one width; got {got}. Cure: {CURE}"
        )
    for given in (parts, iter(parts)):
        assert message_of(wrap_vectors, given, mask=np.ones((3, 3), bool)) == (
            "expected a mask only with padded sequences; got one with sequences of their own lengths. "
            "Cure: leave the mask out: the lengths say which tokens are real"
        )


@pytest.mark.parametrize(
    ("given", "how", "kind", "message"),
    [
        (np.zeros((0, 4)), {"name": "f.npy"}, CorpusError,
         f"at least one vector; got an empty array in f.npy. Cure: {CURE}"),
        (torch.zeros(0, 4), {"name": "f.pt"}, CorpusError,
         f"at least one vector; got an empty array in f.pt. Cure: {CURE}"),
        ([], {}, UsageError, f"at least one array of vectors; got none. Cure: {CURE}"),
        ({}, {}, UsageError, f"at least one array of vectors; got none. Cure: {CURE}"),
        (numbers(4, 3, 2), {"labels": [1, 2, 3, 4]}, UsageError,
         "labels only with single vectors [vector, dim]; got sequences [4, 3, 2]. Cure: pool them: x.mean(1)"),
        (numbers(4, 3, 2), {"mask": np.ones((4, 2))}, UsageError,
         "a mask of the shape [4, 3]; got [4, 2]. Cure: give one entry per token"),
        (numbers(4, 3), {"mask": np.ones((4, 3))}, UsageError,
         "a mask of the shape [4, 3]; got [4, 3]. Cure: give one entry per token"),
        ({"a": numbers(4, 3, 2), "b": numbers(4, 2, 2)}, {}, UsageError,
         "layers of the same shape, as they are of the same vectors; got [4, 2, 2] in 'b' and [4, 3, 2] in another "
         "layer. Cure: measure these layers separately"),
        (numbers(4), {}, UsageError,
         "vectors [vector, dim] or [sequence, token, dim]; got [4]. Cure: add an axis: x[None]"),
        ({"a": numbers(4)}, {"name": "f.npz"}, UsageError,
         "vectors [vector, dim] or [sequence, token, dim]; got [4] in f.npz, 'a'. Cure: add an axis: x[None]"),
        (numbers(1, 2, 1, 2), {"name": "f.npz"}, UsageError,
         f"vectors [vector, dim] or [sequence, token, dim]; got [1, 2, 1, 2] in f.npz, '0'. Cure: {CURE}"),
        ({"a": "text"}, {}, UsageError,
         "arrays or tensors as vectors; got str. Cure: convert them: numpy.asarray(…)"),
        ({"a": np.array([["x", "y"]])}, {}, UsageError, f"real numbers as vectors; got text in 'a'. Cure: {CURE}"),
        ({"a": np.array([["x", "y"]])}, {"name": "f.npz"}, CorpusError,
         f"real numbers as vectors; got text in 'a'. Cure: {CURE}"),
        ({"a": np.array([[b"x", b"y"]])}, {"name": "f.npz"}, CorpusError,
         f"real numbers as vectors; got text in 'a'. Cure: {CURE}"),
        ({"a": np.array([[1j]])}, {"name": "f.npz"}, UsageError,
         f"real numbers as vectors; got complex128 in 'a'. Cure: {CURE}"),
        ({"a": torch.tensor([[True]])}, {}, UsageError,
         f"real numbers as vectors; got torch.bool in 'a'. Cure: {CURE}"),
        ({"a": np.array([[None]])}, {"name": "f.npz"}, UsageError,
         f"real numbers as vectors; got object in 'a'. Cure: {CURE}"),
        (numbers(4, 2), {"units": [1, 2]}, UsageError,
         "a unit for each of 4 vectors or sequences; got 2. Cure: give one unit per vector or sequence"),
        (numbers(4, 2), {"labels": [1, 2, 3, 4, 5]}, UsageError,
         "a label for each of 4 vectors or sequences; got 5. Cure: give one label per vector or sequence"),
        (numbers(4, 2), {"units": ["a", None, "b", None]}, UsageError,
         "a unit for every vector; got 2 missing. Cure: fill in the units"),
        (numbers(4, 2), {"labels": [np.nan, 1.0, 2.0, 1.0]}, UsageError,
         "a label for every vector; got 1 missing. Cure: fill in the labels"),
    ],
)  # fmt: skip
def test_what_cannot_be_vectors_is_refused_with_a_cure(given, how, kind, message):
    with pytest.raises(kind) as caught:
        wrap_vectors(given, **how)
    assert type(caught.value) is kind
    assert str(caught.value) == f"expected {message}"


def test_units_and_classes_have_numbers_in_the_order_of_their_coming():
    x = numbers(5, 2)
    for entries in (["b", "a", "b", "c", "a"], iter("babca"), np.array([*"babca"])):
        found = wrap_vectors(x, labels=entries, units=[9, 9, 4, 4, 9])
        assert found.labels.tolist() == [0, 1, 0, 2, 1]
        assert found.labels.dtype == np.int64
        assert found.classes == ("b", "a", "c")
        assert found.units.tolist() == [0, 0, 1, 1, 0]
    found = wrap_vectors(x, units=torch.tensor([7, 3, 7, 7, 3]), labels=[5, 5, 2, 5, 2])
    assert found.units.tolist() == [0, 1, 0, 0, 1]
    assert found.classes == ("5", "2")
    units, mask = [3, 3, 1, 1, 3], np.array([[1, 0], [1, 1], [0, 1], [1, 1], [1, 0]])
    for given in (mask, torch.tensor(mask), mask.astype(bool)):
        found = wrap_vectors(numbers(5, 2, 3), units=units, mask=given)
        assert found.mask.dtype == bool and found.mask.tolist() == (mask == 1).tolist()
        assert found.units.tolist() == [0, 0, 1, 1, 0]


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_holds_its_rows_of_everything(monkeypatch):
    monkeypatch.setattr(arrays, "MOST_ROWS", 3)
    x, y = numbers(7, 2), numbers(7, 5, start=100)
    units, labels = [4, 4, 4, 8, 8, 2, 2], [*"abcbaca"]
    plan = VectorPlan(wrap_vectors({"x": x, "y": y}, units=units, labels=labels))
    assert [rows.tolist() for rows in plan.batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert (plan.tokens, plan.n_units, plan.length) == ([3, 3, 1], 3, 1)
    assert plan.classes == ("a", "b", "c")
    assert (plan.words["position"], plan.words["counted"]) == ("vector", "vector")
    for batch, rows in zip(plan, plan.batches, strict=True):
        np.testing.assert_array_equal(batch.inputs["x"][:, 0].numpy(), x[rows])
        np.testing.assert_array_equal(batch.inputs["y"][:, 0].numpy(), y[rows])
        assert batch.unit.tolist() == np.array([0, 0, 0, 1, 1, 2, 2])[rows].tolist()
        assert batch.label.tolist() == np.array([0, 1, 2, 1, 0, 2, 0])[rows].tolist()
        (stream,) = batch.streams.values()
        assert stream.mask.tolist() == [[True]] * len(rows)
        assert stream.special.tolist() == [[False]] * len(rows)
        assert stream.start.tolist() == rows.tolist()


def test_batches_of_sequences_have_the_mask_of_their_rows(monkeypatch):
    monkeypatch.setattr(arrays, "MOST_ROWS", 2)
    mask = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]], bool)
    x = numbers(5, 3, 2)
    plan = VectorPlan(wrap_vectors([x], mask=mask))
    assert plan.tokens == [3, 5, 1] and plan.length == 3
    assert (plan.words["position"], plan.words["counted"]) == ("token", "token")
    for batch, rows in zip(plan, plan.batches, strict=True):
        (stream,) = batch.streams.values()
        assert stream.mask.tolist() == mask[rows].tolist()
        assert stream.start.tolist() == (3 * rows).tolist()
        np.testing.assert_array_equal(batch.inputs["0"].numpy(), x[rows])
        assert batch.label is None
    whole = VectorPlan(wrap_vectors([x]))
    assert whole.tokens == [6, 6, 3]
    assert whole[2].streams["vectors"].mask.tolist() == [[True] * 3]


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        ([(10, 4)], 8),
        ([(10, 4), (10, 16)], 2),
        ([(10, 16), (10, 4)], 2),
        ([(10, 2, 8)], 2),
        ([(10, 40)], 1),
        ([(10, 1)], 9),
    ],
)
def test_a_block_of_the_widest_layer_fits_into_the_budget(monkeypatch, shapes, rows):
    """Of 256 bytes: 32 numbers of eight bytes; at most nine rows, at least one."""
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 256)
    monkeypatch.setattr(arrays, "MOST_ROWS", 9)
    plan = VectorPlan(wrap_vectors([numbers(*shape) for shape in shapes]))
    assert len(plan.batches[0]) == rows
    assert sum(map(len, plan.batches)) == 10


def test_plans_differ_by_everything_that_they_are_made_of():
    x = numbers(4, 2)
    deep = x.reshape(4, 2, 1)
    mask = np.array([[1, 1], [1, 0], [1, 1], [1, 1]], bool)
    prints = [
        VectorPlan(wrap_vectors(layers, **more)).fingerprint
        for layers, more in (
            ({"a": x}, {}),
            ({"b": x}, {}),
            ({"a": x, "b": x}, {}),
            ({"a": x.astype("f4")}, {}),
            ({"a": x + np.array([0, 1])}, {}),
            ({"a": x[[0, 1, 3, 2]]}, {}),
            ({"a": x}, {"units": [0, 0, 1, 2]}),
            ({"a": x}, {"labels": [0, 0, 1, 2]}),
            ({"a": x}, {"labels": [0, 0, 1, 3]}),
            ({"a": x}, {"labels": [0, 1, 2, 3]}),
            ({"a": deep}, {}),
            ({"a": deep}, {"mask": mask}),
            ({"a": deep}, {"mask": ~mask}),
            ({"a": x.reshape(4, 1, 2)}, {}),
        )
    ]
    assert len(set(prints)) == len(prints)
    again = VectorPlan(wrap_vectors({"a": x}, name="other", source={"kind": "other"}))
    assert again.fingerprint == prints[0]
