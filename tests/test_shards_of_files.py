"""Shards of a folder of texts read files of their own, and add up to the run of all files."""

import json
import shutil
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import tiny
import torch

from anisoscope.data import by_file
from anisoscope.data.text import plan_text
from anisoscope.errors import CorpusError, MeasureError
from anisoscope.measure.settings import Settings
from anisoscope.runs.job import Job
from anisoscope.runs.merge import merge_runs
from anisoscope.runs.run import run
from anisoscope.store import RunFolder

KEYS = ["stack", "kind", "layer", "head", "site", "token_policy", "metric", "component"]


def sentence(n):
    return (
        f"Document {n} says that {' and '.join(str(k) for k in range(n, 4 * n + 9))}."
    )


def write_tables(folder):
    """Tables of several rows each, in folders, some of their rows empty."""
    (folder / "more").mkdir(parents=True)
    for file, name in enumerate(
        ("a.jsonl", "b.jsonl", "more/a.jsonl", "z.jsonl", "zz.jsonl")
    ):
        rows = [
            {"text": sentence(7 * file + n) if n != 1 else "", "id": n}
            for n in range(3 + file % 3)
        ]
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return folder


def write_texts(folder):
    """A document in each file, one of them empty."""
    folder.mkdir()
    for file in range(9):
        (folder / f"{file}.txt").write_text(sentence(file) if file != 3 else "")
    return folder


def job(corpus, shard=(0, 1), **options):
    settings = Settings(
        metrics=("mean_cosine", "drift", "query_key", "attention", "massive"), sample=64
    )
    # in float64: how far a window is padded changes its last bits
    return Job(
        model=tiny.small_encoder(),
        corpus=str(corpus),
        dtype="float64",
        settings=settings,
        max_length=24,
        shard=shard,
        **options,
    )


@pytest.fixture(scope="module", params=[write_tables, write_texts])
def measured(request, tmp_path_factory):
    """A corpus, the run of all of it, and the folders of its three shards, with the files that were read for each."""
    folder = tmp_path_factory.mktemp("shards")
    corpus = request.param(folder / "texts")
    whole = run(job(corpus), folder / "whole")
    shards = [run(job(corpus, (i, 3)), folder / f"part-{i}").folder for i in range(3)]
    return corpus, whole, shards


def test_they_add_up_to_the_run_of_all(measured, tmp_path):
    _, whole, shards = measured
    merged = merge_runs([shards[2], shards[0], shards[1]], tmp_path / "merged")
    both = whole.records.merge(
        merged.records, on=KEYS, suffixes=("", "_merged"), validate="1:1"
    )
    assert len(both) == len(whole.records) == len(merged.records) > 50
    for name in ("value", "low", "high", "n_vectors", "n_units"):
        ours, theirs = (
            both[name].to_numpy(float),
            both[f"{name}_merged"].to_numpy(float),
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12, err_msg=name)
    for name in ("fingerprint", "n_tokens", "n_units", "empty", "skipped", "documents"):
        assert merged.manifest["corpus"][name] == whole.manifest["corpus"][name], name
    assert merged.manifest["units"] == whole.manifest["units"]  # compared in pairs


def test_each_reads_files_of_its_own(measured, tmp_path):
    """The others may hold anything; only the first table is looked at, which tells the column."""
    corpus, _, shards = measured
    files = [RunFolder(shard).manifest["corpus"]["files"].keys() for shard in shards]
    assert (
        sum(map(len, files))
        == len(frozenset().union(*files))
        == sum(path.is_file() for path in corpus.rglob("*"))
    )
    spoilt = shutil.copytree(corpus, tmp_path / "texts")
    for path in spoilt.rglob("*.*"):
        is_head = path.name == "a.jsonl" and path.parent == spoilt
        if str(path.relative_to(spoilt)) not in files[1] and not is_head:
            path.write_bytes(b"\0\xff")
    again = run(job(spoilt, (1, 3)), tmp_path / "again").records
    before = RunFolder(shards[1]).records
    assert again["value"].tolist() == pytest.approx(
        before["value"].tolist(), nan_ok=True, rel=0, abs=0
    )
    with pytest.raises(CorpusError):  # what is spoilt is noticed by whoever reads it
        run(job(spoilt, (0, 3)), tmp_path / "spoilt")


class Words:
    """A tokenizer of words by their length."""

    unk_token_id, pad_token_id, vocab_size = None, 0, 400

    def __len__(self):
        return self.vocab_size

    def __call__(self, texts, **_):
        return {
            "input_ids": [
                [len(word) % 390 + 5 for word in text.split()] for text in texts
            ]
        }


def plan_of_share(folder, part=0, parts=1):
    def make(corpus, tokenizer):
        return plan_text(corpus, tokenizer, max_length=32, batch_tokens=256)

    return by_file.PlanByFile(
        by_file.find_share(str(folder), (part, parts)), make, Words(), 400
    )


def measure_peak(folder):
    """The most that planning a folder, and building a batch of each file, holds in memory, in bytes."""
    tracemalloc.start()
    plan = plan_of_share(folder)
    for first in plan._first:
        plan[first]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_share_of_many_files_takes_no_more_memory_than_one_of_few(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(by_file, "HELD", 0)
    for name, count in (("few", 3), ("many", 18)):
        (tmp_path / name).mkdir()
        for file in range(count):
            rows = (json.dumps({"text": f"{file} {sentence(n)}"}) for n in range(120))
            (tmp_path / name / f"{file:02}.jsonl").write_text("\n".join(rows))
    measure_peak(tmp_path / "few")  # what is imported and compiled on the first call
    few, many = measure_peak(tmp_path / "few"), measure_peak(tmp_path / "many")
    assert many < 1.2 * few
    monkeypatch.setattr(by_file, "HELD", 1 << 30)
    assert (
        measure_peak(tmp_path / "many") > 2 * many
    )  # what the memory of all plans would be


def test_batches_that_are_built_anew_are_those_that_were_counted(tmp_path, monkeypatch):
    corpus = write_tables(tmp_path / "texts")
    kept = plan_of_share(corpus, 1, 2)
    monkeypatch.setattr(by_file, "HELD", 0)
    anew = plan_of_share(corpus, 1, 2)
    assert (
        len(kept) == len(anew) > 2
        and anew.fingerprint == kept.fingerprint
        and len(anew._held) == 1
    )
    for i in (*range(len(kept)), 0):
        assert torch.equal(anew[i].inputs["input_ids"], kept[i].inputs["input_ids"])
        assert torch.equal(anew[i].unit, kept[i].unit)
    with pytest.raises(IndexError):
        anew[len(anew)]
    for file in corpus.rglob("*.jsonl"):
        file.write_text(json.dumps({"text": "another text"}))
    with pytest.raises(
        CorpusError,
        match=r"stay as they are .* got .*jsonl, whose text has changed",
    ):
        for i in range(len(anew)):
            anew[i]


def test_a_row_that_looks_like_a_title_is_a_row_in_every_shard(tmp_path):
    """As in the whole folder, where the first row of the first table tells."""
    (tmp_path / "texts").mkdir()
    for file in range(4):
        rows = [" = Title = " if file else "no title", "One text.", "Another text."]
        (tmp_path / "texts" / f"{file}.jsonl").write_text(
            "\n".join(json.dumps({"text": row}) for row in rows)
        )
    shard = run(job(tmp_path / "texts", (1, 2)), tmp_path / "part")
    assert (
        shard.manifest["corpus"]["documents"] == "rows"
        and shard.manifest["corpus"]["n_units"] == 6
    )


def test_two_that_read_the_same_file_are_refused_by_its_name(measured, tmp_path):
    corpus, _, shards = measured
    half = run(job(corpus, (0, 2)), tmp_path / "half").folder
    names = sorted(
        RunFolder(half).manifest["corpus"]["files"].keys()
        & RunFolder(shards[1]).manifest["corpus"]["files"]
    )
    with pytest.raises(
        MeasureError, match=rf"no file in common; got {names[0]}.*part-1"
    ):
        merge_runs([shards[1], half], tmp_path / "merged")


@pytest.mark.parametrize("lacking", [0, 1, 2])
def test_one_that_lacks_is_named(measured, lacking, tmp_path):
    _, _, shards = measured
    rest = [shard for i, shard in enumerate(shards) if i != lacking]
    with pytest.raises(
        MeasureError, match=rf"missing: {lacking + 1}/3 \(.*--shard {lacking + 1}/3"
    ):
        merge_runs(rest, tmp_path / "merged")


def test_a_file_that_came_later_is_named(tmp_path):
    corpus = write_texts(tmp_path / "texts")
    first = run(job(corpus, (0, 2)), tmp_path / "0").folder
    (corpus / "new.txt").write_text(sentence(3))
    second = run(job(corpus, (1, 2)), tmp_path / "1").folder
    with pytest.raises(MeasureError, match=r"new\.txt, which is in only one"):
        merge_runs([first, second], tmp_path / "merged")


@pytest.mark.parametrize(
    "options", [{"documents": "tokens:64"}, {"limit": 4}, {"sequences": 5}]
)
def test_what_depends_on_other_files_is_divided_by_batches(options, tmp_path):
    corpus = write_tables(tmp_path / "texts")
    parts = [run(job(corpus, (i, 2), **options), tmp_path / str(i)) for i in range(2)]
    assert all("files" not in part.manifest["corpus"] for part in parts)
    merged = merge_runs([part.folder for part in parts], tmp_path / "merged").records
    whole = run(job(corpus, **options), tmp_path / "whole").records
    both = whole.merge(merged, on=KEYS, suffixes=("", "_merged"), validate="1:1")
    assert both["value"].to_numpy() == pytest.approx(
        both["value_merged"].to_numpy(), rel=1e-12, nan_ok=True
    )


def test_units_have_the_numbers_of_the_whole_in_parquet_too(tmp_path):
    corpus = tmp_path / "texts"
    corpus.mkdir()
    for file in range(3):
        pd.DataFrame({"text": [sentence(5 * file + n) for n in range(4)]}).to_parquet(
            corpus / f"{file}.parquet"
        )
    shards = [run(job(corpus, (i, 3)), tmp_path / f"part-{i}").folder for i in range(3)]
    merged = merge_runs(shards, tmp_path / "merged")
    whole = run(job(corpus), tmp_path / "whole")
    assert merged.manifest["units"] == whole.manifest["units"]
    assert merged.records["low"].to_numpy() == pytest.approx(
        whole.records["low"].to_numpy(), abs=1e-12, nan_ok=True
    )
