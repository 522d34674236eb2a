"""Tensors, modules and files of kinds that ended in a traceback: each is measured as what it stands for, or refused."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import anisoscope
from anisoscope.errors import ModelError, UsageError
from anisoscope.models.identity import hash_weights
from anisoscope.models.vectors import word_vectors
from anisoscope.store import write_json

QUICK = {"panel": "hidden", "sample": 0}
X = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))


def a_of(run):
    return run.table()["A"].tolist()


@pytest.mark.parametrize(
    "given",
    [
        X.to_sparse(),
        X.to_sparse_csr(),
        scipy.sparse.csr_matrix(X.numpy()),
        scipy.sparse.coo_array(X.numpy()),
    ],
    ids=["coo", "csr", "scipy", "scipy array"],
)
def test_sparse_vectors_are_the_dense_ones(given):
    """NotImplementedError, RuntimeError and TypeError of torch and scipy."""
    assert a_of(anisoscope.measure(given, **QUICK)) == a_of(
        anisoscope.measure(X, **QUICK)
    )


def test_a_metric_of_a_sparse_tensor_is_that_of_the_dense_one():
    assert anisoscope.metric("mean_cosine", X.to_sparse()) == anisoscope.metric(
        "mean_cosine", X
    )


def test_quantised_and_nested_tensors():
    quantised = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    assert a_of(anisoscope.measure(quantised, **QUICK)) == a_of(
        anisoscope.measure(quantised.dequantize(), **QUICK)
    )
    with pytest.raises(UsageError, match=r"a nested tensor. Cure: pad it"):
        anisoscope.measure(torch.nested.nested_tensor([X[:3], X[:5]]))


def test_sparse_inputs_of_a_module_are_the_dense_ones():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2
    ).eval()
    own, inputs = QUICK | {"blocks": "TransformerEncoderLayer"}, X.reshape(6, 5, 8)
    assert a_of(anisoscope.measure(encoder, inputs.to_sparse(), **own)) == a_of(
        anisoscope.measure(encoder, inputs, **own)
    )


def test_int8_modules_are_measured_and_told_apart_by_their_weights():
    """Their state holds tuples in the place of tensors."""

    def made(seed):
        torch.manual_seed(seed)
        plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        return torch.ao.quantization.quantize_dynamic(
            plain, {nn.Linear}, dtype=torch.qint8
        )

    run = anisoscope.measure(made(0), X, **QUICK, blocks="Linear")
    assert np.isfinite(a_of(run)).all()
    assert hash_weights(made(0)) == hash_weights(made(0)) != hash_weights(made(1))


@pytest.mark.parametrize(
    ("text", "norm", "said"),
    [
        ("a 0 0\nb 0 0\n", 1.0, "only zeros"),
        ("a\nb\n", None, "'a' alone in line 1"),
        ("a 1 2\nb 1\n", None, "got 1 in line 2"),
        ("a nan 2\nb 1 2\n", 1.0, "NaN, Inf"),
    ],
)
def test_word_vectors_without_a_norm_or_of_another_length_are_refused(
    tmp_path, text, norm, said
):
    """A mean norm of zero made all of them NaN."""
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(ModelError, match=said):
        word_vectors(str(tmp_path / "v.txt"), ["a", "b"], [], norm=norm)


def test_word_vectors_of_any_size_and_spacing_are_scaled(tmp_path):
    """Lengths beyond float32 made all of them zero."""
    (tmp_path / "v.txt").write_text("a 3e38 3e38\nb\t1  2\n")
    found = word_vectors(str(tmp_path / "v.txt"), ["a", "b"], [], norm=1.0)
    assert found.matrix.norm(dim=1).mean().item() == pytest.approx(1)


def test_of_word_vectors_the_first_of_a_word_counts_and_special_words_have_none(
    tmp_path,
):
    """fastText and GloVe files hold some words twice, the more frequent one first."""
    (tmp_path / "v.txt").write_text("5 2\nb 1 2\na 3 4\nb 5 6\n<pad> 7 8\nother 9 9\n")
    found = word_vectors(
        str(tmp_path / "v.txt"), ["<pad>", "a", "none", "b"], ["<pad>"]
    )
    assert found.matrix.tolist() == [[0, 0], [3, 4], [0, 0], [1, 2]]
    assert found.found == 2 and found.source == "v.txt"


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a loss of power a renamed file could be empty."""
    events, rename = [], os.replace
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: events.append(str(Path(f"/proc/self/fd/{handle}").readlink())),
    )
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda a, b: (events.append("rename"), rename(a, b))
    )
    write_json(tmp_path / "a.json", {"a": 1})
    assert [event.rpartition("/")[2].partition(".json")[0] for event in events] == [
        ".a",
        "rename",
        tmp_path.name,
    ]
