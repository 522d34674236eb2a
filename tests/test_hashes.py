"""Hashes of large files and of the weights in them are computed once on a machine, and are those of every time."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import ViTConfig, ViTModel

from anisoscope.models import hashes, identity
from anisoscope.models.identity import hash_weights
from anisoscope.models.load import load

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 8,
}


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A folder with a model, a cache of its own, no smallest size; what is hashed is noted."""
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "LARGE", 0)
    calls = []

    def noted(model, but=()):
        calls.append(model)
        return hash_weights(model, but)

    monkeypatch.setattr(identity, "hash_weights", noted)
    save(tmp_path / "model", 0)
    return tmp_path / "model", calls


def save(folder, seed):
    torch.manual_seed(seed)
    model = ViTModel(ViTConfig(patch_size=4, **SIZES))
    model.save_pretrained(folder)
    return model


def test_weights_of_a_folder_are_hashed_once(counted):
    folder, calls = counted
    first = load(str(folder))
    assert first.weights_sha256 == hash_weights(first.model)
    assert load(str(folder)).weights_sha256 == first.weights_sha256
    assert len(calls) == 1


def test_other_weights_types_and_draws_are_hashed_anew(counted):
    folder, calls = counted
    seen = {
        load(str(folder)).weights_sha256,
        load(str(folder), dtype="float64").weights_sha256,
    }
    seen.add(load(str(folder), untrained=True, seed=5).weights_sha256)
    model = save(folder, 1)
    seen.add(load(str(folder)).weights_sha256)
    assert len(seen) == len(calls) == 4
    # one number in the midst of one tensor, in a file of the same size
    weight = [parameter for parameter in model.parameters() if parameter.numel() > 200][
        -1
    ]
    weight.data.view(-1)[100] += 1
    model.save_pretrained(folder)
    assert load(str(folder)).weights_sha256 == hash_weights(model)
    assert len(calls) == 5


def test_small_models_leave_nothing_behind(counted, monkeypatch):
    folder, calls = counted
    monkeypatch.setattr(hashes, "LARGE", 1 << 27)
    load(str(folder))
    assert len(calls) == 1 and not (folder.parent / "cache" / "hashes").exists()


def test_of_several_that_ask_at_once_one_computes(counted):
    folder, calls = counted
    model = load(str(folder), untrained=True).model
    calls.clear()
    with ThreadPoolExecutor(4) as pool:
        found = {
            *pool.map(
                lambda _: identity.hash_loaded_weights(model, (), [folder]), range(4)
            )
        }
    assert found == {hash_weights(model)} and len(calls) == 1


def test_a_cache_that_cannot_be_written_or_is_damaged_changes_nothing(
    counted, monkeypatch
):
    folder, calls = counted
    first = load(str(folder)).weights_sha256
    for path in (folder.parent / "cache" / "hashes").glob("[!.]*"):
        path.write_text("no hash")
    assert load(str(folder)).weights_sha256 == first
    (folder.parent / "file").write_text("")
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(folder.parent / "file"))
    assert load(str(folder)).weights_sha256 == first
    assert len(calls) == 3


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "LARGE", 4)
    monkeypatch.setattr(hashes, "MOST_KEPT", 3)
    path = tmp_path / "large"
    for number in range(6):
        path.write_text(f"content {number}")
        os.utime(path, ns=(number, number))
        expected = hashlib.sha256(path.read_bytes()).hexdigest()
        assert hashes.hash_large_file(path) == hashes.hash_large_file(path) == expected
    assert len([*(tmp_path / "cache" / "hashes").glob("[!.]*")]) == 3
