"""Shards that are added up hold every batch of the plan once: each that lacks is named, the last one too."""

from pathlib import Path
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


def made(*corpora, **facts):
    """(parts, manifests) of runs whose manifests tell these corpora."""
    parts = [
        SimpleNamespace(folder=Path(f"run-{i}")) for i in range(1, 1 + len(corpora))
    ]
    return parts, [{"corpus": corpus} | facts for corpus in corpora]


def files_of(*names, **more):
    files = {name: f"hash of {name}" for name in names}
    counted = {"n_batches": 1, "empty": 2, "skipped": 3}
    return {"files": files, "all_files": [*"abc"], "name": "texts"} | counted | more


def test_files_of_shards_are_joined_in_the_order_of_the_corpus():
    shard = {"settings": {"shard": [0, 2]}}
    parts, manifests = made(files_of("a", "c"), files_of("b"), **shard)
    whole = merge._join_files(parts, manifests)
    other = merge._join_files(parts[::-1], manifests[::-1])
    assert whole == other and not {"files", "all_files"} & whole.keys()
    assert [whole[name] for name in merge.COUNTED] == [2, 4, 6]
    assert {"n_batches", "empty", "skipped"} == {*merge.COUNTED}
    for corpora, said in (
        ((files_of("a"), files_of("b")), "2; missing: 1/2 .c."),
        ((files_of("a"), files_of("b"), files_of("b")), "b, in run-2 and in run-3"),
        ((files_of("a"), files_of("b", all_files=["a", "b"])), "c, which is in"),
        ((files_of("a"), files_of("b", all_files=[*"abcd"])), "d, which is in"),
    ):
        with pytest.raises(MeasureError, match=said):
            merge._join_files(*made(*corpora, **shard))


def test_runs_of_files_are_joined_whatever_their_order():
    corpora = []
    for name in "abcde":
        one = files_of(name, name=name, path=f"/{name}", documents="auto")
        corpora.append(one)
    parts, manifests = made(*corpora[:2])
    manifests[1]["corpus"]["skipped"] = None
    whole = merge._join_runs(parts, manifests)
    other = merge._join_runs(parts[::-1], manifests[::-1])
    assert whole["fingerprint"] == other["fingerprint"]
    assert [whole[name] for name in merge.COUNTED] == [2, 4, 3]
    assert whole["name"] == "a, b" and "path" not in whole
    same = merge._join_runs(*made(*corpora[:1], corpora[1] | {"name": "a"}))
    assert same["name"] == "a"
    assert merge._name_some([*"abc"]) == "a, b, c"
    assert merge._name_some([*"abcd"]) == "a, b, c and 1 more"
    with pytest.raises(MeasureError, match="a of run-3, whose content is in run-1 too"):
        merge._join_runs(*made(*corpora[:2], corpora[0]))
    found = [
        merge._find_kind(made(*both)[1])
        for both in (
            (files_of("a"), files_of("b")),
            ({"files": {}}, {"files": {}}),
            (files_of("a"), {"files": {}}),
            (files_of("a"), {}),
            ({"files": {}}, {}),
        )
    ]
    assert found == [merge.FILES, merge.RUNS, *[merge.BATCHES] * 3]


def test_what_is_told_of_parts_is_added_up():
    facts = [
        {"run": "x", "notes": ["a", "b"], "started": "2", "seconds": 1.5},
        {"run": "y", "notes": ["b", "c"], "started": "1", "seconds": 2.25},
    ]
    found = merge._add_up_facts([fact | {"processes": 2} for fact in facts])
    assert found == {
        "asked": None,
        "merged": ["x", "y"],
        "notes": ["a", "b", "c"],
        "started": "1",
        "seconds": 3.75,
        "processes": 4,
    }


def message(call, *given):
    with pytest.raises(MeasureError) as fault:
        call(*given)
    return str(fault.value)


def test_what_keeps_shards_of_batches_apart_is_named_with_its_cure(monkeypatch):
    assert message(added_up, monkeypatch, [range(1, 7, 3)]) == (
        "expected shards that hold all 7 batches; got 2; missing: 1/3, 3/3. Cure: measure with --shard 1/3,"
        " and name its folder too"
    )
    shards = [[0, 1], [2, 3], [1, 3, 2, 4, 5]]
    assert message(added_up, monkeypatch, shards) == (
        "expected shards that have no batch in common; got 3 batches of run-2 that run-0 holds too."
        " Cure: name each shard of one division once"
    )
    assert message(added_up, monkeypatch, [[0, 1], [2, 3], [3, 4]]) == (
        "expected shards that have no batch in common; got 1 batches of run-2 that run-1 holds too."
        " Cure: name each shard of one division once"
    )


def test_what_keeps_shards_of_files_apart_is_named_with_its_cure():
    division = {"settings": {"shard": [0, 3]}}

    def of(*files, names="abcdefghi"):
        corpora = [files_of(*each, all_files=[*names]) for each in files]
        return message(merge._join_files, *made(*corpora, **division))

    assert of("be") == (
        "expected shards that hold all 9 files; got 2; missing: 1/3, 2/3, 3/3 (a, c, d and 4 more)."
        " Cure: measure with --shard 1/3, and name its folder too"
    )
    assert of("adg", "cfi") == (
        "expected shards that hold all 9 files; got 6; missing: 2/3 (b, e, h). Cure: measure with --shard 2/3,"
        " and name its folder too"
    )
    assert of("adg", "be", "hegda") == (
        "expected shards that have no file in common; got a, d, e and 1 more, in run-1 and in run-3."
        " Cure: name each shard of one division once"
    )
    corpora = [files_of("a", all_files=[*"xab"]), files_of("b", all_files=[*"aby"])]
    assert message(merge._join_files, *made(*corpora, **division)) == (
        "expected a corpus of the same files for all shards; got x, which is in only one of run-1 and run-2."
        " Cure: measure all shards of the same files"
    )


def test_what_keeps_runs_of_files_apart_is_named_with_its_cure():
    def of(*corpora):
        return message(merge._join_runs, *made(*corpora))

    first, second = files_of("a", documents="line"), files_of("b", documents="file")
    assert of(first, second) == (
        "expected documents that are separated by the same rule; got line in run-1 and file in run-2."
        " Cure: measure all with the same --documents"
    )
    assert of(files_of("a"), files_of("b", "c"), files_of("d", "c", "b", "a")) == (
        "expected runs that have no file in common; got c, b, a of run-3, whose content is in run-2 too."
        " Cure: name each run once, and each file in one run"
    )


def test_corpora_of_merged_runs_are_named_once_and_the_rest_counted():
    corpora = [files_of(name, name=name.upper()) for name in "abcde"]
    corpora.append(files_of("f", name="A"))
    whole = merge._join_runs(*made(*corpora))
    assert whole["name"] == "A, B, C and 2 more"
    assert whole["files"] == {name: f"hash of {name}" for name in "abcdef"}
