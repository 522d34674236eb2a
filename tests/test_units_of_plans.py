"""What plans of all modalities share: batches of a budget, numbers of units, and hashes by their written form."""

import hashlib
import json

import numpy as np
import pytest

from anisoscope.axes import WORDS
from anisoscope.data import plans
from anisoscope.errors import UsageError


def written(*parts):
    """The hash of parts of bytes, each after its length in eight bytes."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def test_a_hash_is_of_the_parts_in_their_written_form():
    """Runs of older versions are found by it, so that it must stay what it is."""
    ids = np.array([[1, -2, 3], [4, 5, 6]], np.int32)
    assert plans.hash_parts([]) == written()
    assert plans.hash_parts(["a\u00e9", "\ud800"]) == written(b"a\xc3\xa9", b"\xed\xa0\x80")  # fmt: skip
    assert plans.hash_parts([ids]) == written(ids.tobytes())
    assert plans.hash_parts([ids.T]) == written(ids.T.copy().tobytes())
    assert plans.hash_parts([ids[:, :0], np.array(["x"])]) == written(b"", np.array(["x"]).tobytes())  # fmt: skip
    thing = {"b": [1, None, "\u00e9"], "a": True}
    assert plans.hash_parts([thing, 7]) == written(json.dumps(thing, sort_keys=True).encode(), b"7")  # fmt: skip
    short = np.array([3, -1], np.int16)
    wide = short.astype(np.int64).tobytes()
    assert plans.hash_parts(["x", plans.Int64(short)]) == written(b"x", wide)
    assert plans.Int64(short).nbytes == 16
    assert [part.tolist() for part in plans.Int64(short).iter_blocks()] == [[3, -1]]


@pytest.mark.parametrize("further", [65_534, 65_535, 65_536, 65_537, 131_072])
def test_rows_are_packed_whatever_their_lengths_differ_by(further):
    """Equal ones by row number, the longest first; each batch by its own longest."""
    lengths = np.array([1, 1 + further, 2, 1 + further, 1])
    found = plans.pack(lengths, 2 + 2 * further)
    assert [rows.tolist() for rows in found] == [[1, 3], [2, 0, 4]]
    assert {rows.dtype for rows in found} == {np.dtype(np.int64)}
    tight = plans.pack(lengths, 2)
    assert [rows.tolist() for rows in tight] == [[1], [3], [2], [0, 4]]
    for budget in (0, -1):
        with pytest.raises(UsageError) as error:
            plans.pack(lengths, budget)
        assert str(error.value) == (
            f"expected a budget of at least 1 token per batch; got {budget}. Cure: raise --batch-tokens"
        )


def test_numbers_of_units_depend_on_their_file_alone():
    """Also of how many files there are; equal files stay apart; no number is too large for a float64."""

    def start(hashed, seen):
        return int(plans.hash_parts([hashed, seen])[:16], 16) % 2**53

    one = plans.number_by_content(np.array([0, 1, 2]), ["x"])
    assert one.tolist() == [(start("x", 0) + k) % 2**53 for k in range(3)]
    three = plans.number_by_content(np.array([2, 0, 4, 3, 5]), ["x", "y", "x"])
    assert three.tolist() == [
        start("x", 1), start("x", 0), start("y", 0) + 1, start("x", 0) + 1, start("x", 1) + 1,
    ]  # fmt: skip
    far = plans.number_by_content(np.array([2**53, 2**54 + 5]), ["x"])
    assert far.tolist() == [start("x", 0), (start("x", 0) + 5) % 2**53]


def test_a_plan_counts_what_is_no_padding():
    real = np.array([5, 7, 9, 2], np.int16)
    batches = [np.array([2, 0]), np.array([1]), np.array([], np.int64)]
    made = plans.Plan(batches, real, np.array([4, 4, 8, 9]), ["x"], {"unit": "clip"}, iter(["a"]))  # fmt: skip
    assert made.tokens == [14, 7, 0] and made.n_units == 3 and len(made) == 3
    assert made.words == WORDS | {"unit": "clip"} and made.words["unit"] == "clip"
    assert made.warnings == ["a"] and made.fingerprint == plans.hash_parts(["x"])
    assert made.classes == () and made.frequency_bins == [] and made.call is None
    with pytest.raises(NotImplementedError):
        made[0]
    none = np.array([], np.int64)
    assert plans.Plan([], none, none, [], {}).n_units == 0
    assert [rows.tolist() for rows in plans.batch_in_order(7, 3)] == [[0, 1, 2], [3, 4, 5], [6]]  # fmt: skip
    assert [rows.tolist() for rows in plans.batch_in_order(3, 3)] == [[0, 1, 2]]
