"""Runs of different files, measured by commands of their own, add up to the run of all files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from safetensors.torch import load_file
from test_shards_of_files import KEYS, job as job_of, sentence, write_tables

import anisoscope
from anisoscope.data.plans import number_by_content
from anisoscope.errors import MeasureError, UsageError
from anisoscope.runs.differences import SAMPLE
from anisoscope.runs.job import Job
from anisoscope.runs.merge import merge_runs
from anisoscope.runs.run import run


def job(corpus, **options):
    """With a metric of sampled vectors."""
    plain = job_of(corpus, **options)
    return replace(
        plain,
        settings=replace(
            plain.settings, metrics=(*plain.settings.metrics, "uniformity")
        ),
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The run of a folder of tables, and the folders of runs of two of its files and of the folder with the others."""
    folder = tmp_path_factory.mktemp("files")
    corpus = write_tables(folder / "texts")
    (corpus / "others").mkdir()
    for name in ("z.jsonl", "zz.jsonl", "more/a.jsonl"):
        (corpus / name).rename(corpus / "others" / name.replace("more/", "another-"))
    (corpus / "more").rmdir()
    whole = run(job(corpus, to_merge=True), folder / "whole")
    parts = []
    for name in ("a.jsonl", "b.jsonl", "others"):
        parts.append(run(job(corpus / name, to_merge=True), folder / name).folder)
    return corpus, whole, parts


def assert_same(one, other):
    both = one.records.merge(
        other.records, on=KEYS, suffixes=("", "_other"), validate="1:1"
    )
    assert len(both) == len(one.records) == len(other.records) > 50
    for name in ("value", "low", "high", "n_vectors", "n_units"):
        ours, theirs = both[name].to_numpy(float), both[f"{name}_other"].to_numpy(float)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12, err_msg=name)


def test_they_add_up_to_the_run_of_all(measured, tmp_path):
    """In any order; values, intervals and the sample, which tells the same metrics to the same digits."""
    _, whole, (a, b, others) = measured
    merged = merge_runs([others, a, b], tmp_path / "merged")
    assert_same(whole, merged)
    for name in ("fingerprint", "n_tokens", "n_units", "empty", "skipped", "documents"):
        assert merged.manifest["corpus"][name] == whole.manifest["corpus"][name], name
    assert merged.manifest["units"] == whole.manifest["units"]  # compared in pairs
    assert merged.manifest["settings"]["corpus"].endswith("b.jsonl")
    assert merged.records["corpus"].nunique() == 1
    ours, theirs = (load_file(done.folder / SAMPLE) for done in (whole, merged))
    assert ours.keys() == theirs.keys() and len(ours) > 2
    for (
        name,
        x,
    ) in ours.items():  # how far a window is padded changes last bits of vectors
        assert (
            torch.allclose(x, theirs[name], rtol=1e-6) and x.shape == theirs[name].shape
        ), name


def test_a_merged_run_takes_more_files_later(measured, tmp_path):
    _, whole, (a, b, others) = measured
    two = merge_runs([a, b], tmp_path / "two")
    assert_same(whole, merge_runs([two.folder, others], tmp_path / "three"))
    with pytest.raises(MeasureError, match="runs that have no file in common"):
        merge_runs([two.folder, b], tmp_path / "twice")


def test_a_folder_has_the_values_that_it_has_without(measured, tmp_path):
    """Only groups of units differ, so that intervals do, and what is measured between groups or on a sample."""
    corpus, whole, _ = measured
    plain = run(job(corpus), tmp_path / "plain")
    both = plain.records.merge(
        whole.records, on=KEYS, suffixes=("", "_other"), validate="1:1"
    )
    assert len(both) == len(whole.records)
    other = both["metric"].isin(
        ["massive.largest_unit", "mean_cosine.between"]
    )  # documents have other numbers
    values = both[~(other | both["metric"].str.startswith("uniformity"))]
    assert len(values) > 0.85 * len(both)
    np.testing.assert_allclose(
        values["value"], values["value_other"], rtol=1e-12, atol=1e-12
    )
    assert any(
        "bins of token frequency left out" in note
        for note in whole.manifest["warnings"]
    )


def test_the_same_texts_under_another_name_are_refused(measured, tmp_path):
    corpus, _, (a, b, _) = measured
    (tmp_path / "copy.jsonl").write_text((corpus / "a.jsonl").read_text())
    copy = run(job(tmp_path / "copy.jsonl", to_merge=True), tmp_path / "copy").folder
    with pytest.raises(
        MeasureError,
        match=r"no file in common; got copy\.jsonl of .*whose content is in .*a\.jsonl too",
    ):
        merge_runs([a, b, copy], tmp_path / "merged")


def test_other_files_of_the_same_name_are_told_apart(measured, tmp_path):
    corpus, _, (a, _, _) = measured
    (tmp_path / "a.jsonl").write_text((corpus / "b.jsonl").read_text())
    other = run(job(tmp_path / "a.jsonl", to_merge=True), tmp_path / "other").folder
    merged = merge_runs([a, other], tmp_path / "merged")
    assert list(merged.manifest["corpus"]["files"]) == ["a.jsonl", "other: a.jsonl"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"max_length": 12},
            r"differ only in their files; got .*whose max_length differs",
        ),
        (
            {"to_merge": False},
            r"sums that are merged in .*; got none. Cure: measure it with --shard, or with --to-merge",
        ),
        ({"documents": "tokens:50"}, "whose documents differs"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(change, said, measured, tmp_path):
    corpus, _, (a, _, _) = measured
    other = run(
        replace(job(corpus / "b.jsonl", to_merge=True), **change), tmp_path / "other"
    ).folder
    with pytest.raises(MeasureError, match=said):
        merge_runs([a, other], tmp_path / "merged")


def test_documents_must_be_told_apart_alike(tmp_path):
    """A folder of texts has a document a file; a file alone is split by its blank lines."""
    (tmp_path / "texts").mkdir()
    for file in range(3):
        (tmp_path / "texts" / f"{file}.txt").write_text(sentence(file))
    lone = "\n\n".join(sentence(n) for n in range(60, 70))
    (tmp_path / "lone.txt").write_text(lone)
    folder = run(job(tmp_path / "texts", to_merge=True), tmp_path / "folder").folder
    split = run(job(tmp_path / "lone.txt", to_merge=True), tmp_path / "split").folder
    with pytest.raises(
        MeasureError,
        match=r"separated by the same rule; got files in .*same --documents",
    ):
        merge_runs([folder, split], tmp_path / "merged")


def test_what_is_no_whole_file_is_refused():
    for given, named in (
        ({"shard": (0, 2)}, "--shard"),
        ({"sequences": 3}, "--sequences"),
    ):
        with pytest.raises(
            UsageError, match=f"--to-merge only for whole files; got it with {named}"
        ):
            Job(to_merge=True, **given)
    with pytest.raises(UsageError, match="the panel alignment"):
        anisoscope.measure(
            "builtin:minilm",
            corpus="builtin:python-docs",
            panel="alignment",
            to_merge=True,
        )
    with pytest.raises(
        UsageError, match=r"got vectors or inputs of your own\. Cure: .*State"
    ):
        anisoscope.measure(np.eye(9), to_merge=True)


def test_numbers_of_units_depend_on_their_own_file_alone():
    units = np.array(
        [0, 1, 2, 3, 4, 5, 7]
    )  # of three files: 0, 1, 2 each first, then 0, 1, 2 again, then the third of 1
    numbers = number_by_content(units, ["a", "b", "c"])
    alone = number_by_content(np.array([0, 1, 2]), ["b"])
    assert (
        numbers[[1, 4, 6]].tolist() == alone.tolist()
        and len(set(numbers.tolist())) == 7
    )
    twice = number_by_content(np.array([0, 1]), ["a", "a"])
    assert twice[0] != twice[1] and twice[0] == numbers[0]
    many = number_by_content(np.arange(320), ["d"])
    assert np.bincount(many % 32).tolist() == [10] * 32
    assert (many >= 0).all() and (many.astype(float).astype(int) == many).all()


def test_images_are_merged_by_their_folder(tmp_path):
    from PIL import Image

    draw = np.random.default_rng(0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.fromarray(draw.integers(0, 255, (32, 32, 3), np.uint8)).save(
                tmp_path / name / f"{i}.png"
            )
    tiny_models.build("vit").save_pretrained(tmp_path / "vit")
    small = {"metrics": ("mean_cosine",), "sample": 0}
    runs = []
    for name in ("one", "two"):
        how = {
            "corpus": str(tmp_path / name),
            "to_merge": True,
            "output": tmp_path / f"run-{name}",
        }
        runs.append(
            Path(anisoscope.measure(str(tmp_path / "vit"), **how, **small).folder)
        )
    merged = merge_runs(runs, tmp_path / "merged")
    assert merged.manifest["corpus"]["n_units"] == 8
