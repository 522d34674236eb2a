"""Shards that are added up hold every batch of the plan once: each that lacks is named, the last one too."""

from types import SimpleNamespace

import pytest

from anisoscope.errors import MeasureError
from anisoscope.runs import merge


class Added:
    """A measurement that knows its batches only."""

    def __init__(self, _settings=None, _plan="", batches=frozenset()):
        self.batches = batches

    @classmethod
    def restore(cls, path, *_):
        return cls(batches=frozenset(path))

    def merge(self, other):
        return Added(batches=self.batches | other.batches)


def added_up(monkeypatch, shards, total=7, division=3):
    """The batches of shards, each an iterable of them, of a plan of `total` batches in `division` shards."""
    monkeypatch.setattr(merge, "Measurement", Added)
    parts = [
        SimpleNamespace(sums_path=tuple(shard), folder=f"run-{i}")
        for i, shard in enumerate(shards)
    ]
    manifest = {
        "settings": {"settings": {}, "shard": [0, division]},
        "corpus": {"n_batches": total},
    }
    return merge._add_shards(parts, "plan", [manifest]).batches


def test_all_shards_are_the_whole(monkeypatch):
    assert added_up(monkeypatch, [range(i, 7, 3) for i in range(3)]) == set(range(7))


@pytest.mark.parametrize("lacking", [0, 1, 2])
def test_a_shard_that_lacks_is_named(lacking, monkeypatch):
    shards = [range(i, 7, 3) for i in range(3) if i != lacking]
    with pytest.raises(
        MeasureError, match=rf"missing: {lacking + 1}/3\b.*--shard {lacking + 1}/3"
    ):
        added_up(monkeypatch, shards)


@pytest.mark.parametrize("batch", range(7))
def test_a_single_batch_that_lacks_is_missed(batch, monkeypatch):
    """The last of the plan, too."""
    whole = set(range(7)) - {batch}
    with pytest.raises(MeasureError, match=rf"6; missing: {batch % 3 + 1}/3"):
        added_up(monkeypatch, [whole])


def test_a_batch_of_two_shards_is_refused(monkeypatch):
    with pytest.raises(MeasureError, match="1 batches of run-1 that run-0 holds too"):
        added_up(monkeypatch, [range(4), range(3, 7)])
