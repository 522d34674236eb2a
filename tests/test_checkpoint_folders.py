"""Folders that are no checkpoint, or a damaged one: named for what they are, with a cure; code in them is never run."""

import contextlib
import gzip
import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, BertTokenizerFast

from anisoscope.errors import ModelError
from anisoscope.models import formats, other_libraries
from anisoscope.models.load import load
from anisoscope.models.series import is_series
from anisoscope.models.vectors import word_vectors


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny BERT without its pooler, as a masked language model is saved, and its tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *(f"w{k}" for k in range(95)),
    ]
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    BertModel(
        BertConfig(vocab_size=100, **sizes), add_pooling_layer=False
    ).save_pretrained(folder)
    BertTokenizerFast(vocab={word: k for k, word in enumerate(words)}).save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of it that a test may damage."""
    return shutil.copytree(whole, tmp_path / "model")


def refused(name, **options):
    """The error of a load: what came, and the cure."""
    with pytest.raises(ModelError) as caught:
        load(str(name), **options)
    error = caught.value
    assert error.exit_code == 3 and error.cure and "\n" not in str(error)
    return error


def edited(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_pooler_that_is_not_there_is_no_warning(whole):
    """Every masked language model was loaded with a warning of weights that nothing measures."""
    assert load(str(whole)).notes == []


def test_weights_that_are_missing_are_an_error(folder):
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if "query.weight" in key)
    del weights[name]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert f"1 missing, such as {name}" in refused(folder).got


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("body", [b"{", b"", b"<html>login</html>", None])
def test_damaged_files_are_one_line(folder, name, body):
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if body is None else body)
    assert "download or save it again" in refused(folder).cure


def test_weights_of_other_sizes_are_refused(folder):
    edited(folder / "config.json", intermediate_size=32)
    assert (
        "encoder.layer.0.intermediate.dense.bias (16,) for (32,)" in refused(folder).got
    )


FORMATS = {
    "adapter_config.json": "adapter (LoRA, PEFT)",
    "model.Q4_K_M.gguf": "GGUF",
    "model_index.json": "diffusers",
    "open_clip_config.json": "open_clip",
    "tf_model.h5": "TensorFlow",
    "flax_model.msgpack": "Flax",
    "model.onnx": "ONNX",
    "modules.json": "sentence-transformers",
    "last.ckpt": "the state of a training",
    "model.pt": "without the model's code",
}


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_checkpoint_is_named_for_what_it_is(tmp_path, name):
    """All of them were "a checkpoint folder without config.json: save it with model.save_pretrained"."""
    (tmp_path / name).write_text("{}")
    assert FORMATS[name] in refused(tmp_path).cure
    if name.endswith((".gguf", ".ckpt", ".pt", ".onnx")):
        assert FORMATS[name] in refused(tmp_path / name).cure
        assert not is_series(str(tmp_path / name)), "read as a list of checkpoints"


CONFIGS = {
    "diffusers": {"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.30"},
    "timm": {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {}},
    "pip install gptqmodel": {
        "model_type": "bert",
        "quantization_config": {"quant_method": "gptq", "bits": 4},
    },
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_configurations_that_are_not_for_transformers_alone(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[kind]))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert kind in refused(tmp_path).cure


@pytest.mark.parametrize(
    ("spec", "cure"), [(None, "pip install timm"), ("there", formats.OWN)]
)
def test_a_library_is_to_be_installed_only_if_it_is_not(monkeypatch, spec, cure):
    monkeypatch.setattr(formats, "find_spec", lambda _name: spec)
    assert formats.explain_config(CONFIGS["timm"]) == f"it is a model of timm: {cure}"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "nothing.txt"])
def test_weights_in_another_format_or_none(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    refused(folder)


@pytest.mark.parametrize(
    "name", ["tf_model.h5", "flax_model.msgpack", "model.onnx", "last.ckpt"]
)
def test_weights_of_another_format_beside_a_configuration_are_named(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    error = refused(folder)
    assert "weights of torch in" in error.expected and FORMATS[name] in error.cure


def test_a_pickle_never_runs_what_it_holds(folder, tmp_path):
    class Payload:
        def __reduce__(self):
            return open, (str(tmp_path / "executed"), "w")

    (folder / "model.safetensors").unlink()
    torch.save(
        {"embeddings.word_embeddings.weight": Payload()}, folder / "pytorch_model.bin"
    )
    refused(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))
    refused(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_beside_the_weights_runs_only_where_it_is_trusted(folder, tmp_path, file):
    (folder / "own.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    kinds = {
        "config.json": {"AutoConfig": "own.C", "AutoModel": "own.M"},
        "tokenizer_config.json": {},
    }
    own = (
        {"model_type": "own", "auto_map": kinds[file]}
        if kinds[file]
        else {"auto_map": {"AutoTokenizer": ["own.T"] * 2}}
    )
    edited(folder / file, **own, **({} if kinds[file] else {"tokenizer_class": "T"}))
    if kinds[file]:
        assert "--trust-remote-code" in refused(folder).cure
    else:
        with contextlib.suppress(
            ModelError
        ):  # loaded with a tokenizer of transformers in its place, or not at all
            load(str(folder))
    assert not (tmp_path / "executed").exists()


def test_a_model_without_a_tokenizer_says_so(folder):
    """transformers makes one up, of special tokens alone: every word was unknown."""
    for path in folder.glob("tokenizer*"):
        path.unlink()
    error = refused(folder)
    assert (
        error.expected == f"a tokenizer with {folder}"
        and "tokenizer.save_pretrained" in error.cure
    )
    assert "none of tokenizer.json, vocab.txt" in error.got


@pytest.mark.parametrize("value", ["512", "long", [5], True, -3])
def test_a_limit_of_the_tokenizer_that_is_no_number_is_refused(folder, value):
    """A text there ended in a TypeError."""
    edited(folder / "tokenizer_config.json", model_max_length=value)
    error = refused(folder)
    assert (
        "model_max_length in tokenizer_config.json" in error.expected
        and error.got == repr(value)
    )


def test_a_revision_of_a_folder_is_refused(folder):
    """It was ignored: the weights of another revision than the one that was asked for."""
    for error in (
        refused(f"{folder}@step1"),
        refused(folder, revision="step1"),
        refused("builtin:minilm@v1"),
    ):
        assert "revision" in error.expected
    other = shutil.copytree(folder, folder.with_name("model@step1"))
    assert load(str(other)).weights_sha256 == load(str(folder)).weights_sha256


def test_a_device_that_cannot_compute_is_refused_before_anything_is_loaded():
    """It was refused after the download."""
    assert refused("./nowhere", device="meta").expected == "a device that computes"
    assert (
        refused("no_such_module:factory", device="nowhere").expected
        == "a device that is there"
    )
    assert refused("./nowhere", dtype="int8").expected == "a floating-point dtype"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_paths_that_are_no_folder_are_not_looked_for_on_the_hub(name):
    assert (
        "no network" not in str(refused(name))
        and refused(name).cure == "check the path"
    )


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_weights_are_finite(folder, dtype, number):
    """One number of one weight; the largest that the type holds are weights like others."""
    weights = {
        key: x.to(getattr(torch, dtype))
        for key, x in load_file(folder / "model.safetensors").items()
    }
    name = next(key for key in weights if "query.weight" in key)
    ends = torch.finfo(weights[name].dtype)
    weights[name][3, 4:6] = torch.tensor(
        [ends.max, ends.min], dtype=weights[name].dtype
    )
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert load(str(folder), dtype=dtype).notes == []
    weights[name][3, 5] = float(number)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert f"got NaN or Inf in {name}" in str(refused(folder, dtype=dtype))


# ---- word vectors


@pytest.mark.parametrize("number", ["nan", "inf", "-Infinity", "1e400", "1e39"])
def test_9_word_vectors_are_finite(tmp_path, number):
    """They were taken, and with them a training that cannot but diverge."""
    (tmp_path / "v.txt").write_text(f"cat 1 2\ndog 3 {number}\nunused nan nan\n")
    with pytest.raises(
        ModelError,
        match=r"finite numbers in every line of .*; got NaN, Inf .* in line 2 \(dog\)",
    ):
        word_vectors(str(tmp_path / "v.txt"), ["cat", "dog"], [])
    assert word_vectors(str(tmp_path / "v.txt"), ["cat"], []).found == 1
    with pytest.raises(ValueError, match="a finite mean norm above 0"):
        word_vectors(str(tmp_path / "v.txt"), ["cat"], [], norm=float("nan"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_damaged_gzip_files_of_vectors_are_one_line(tmp_path, damage):
    """The library's own EOFError and zlib.error came through."""
    body = bytearray(
        gzip.compress("".join(f"w{k} {k / 7} {k / 3}\n" for k in range(5_000)).encode())
    )
    if damage == "flipped":
        body[len(body) // 2] ^= 0xFF
    body = {
        "cut": body[: len(body) // 2],
        "flipped": body,
        "other": b"<html>not found</html>",
    }[damage]
    (tmp_path / "v.gz").write_bytes(body)
    with pytest.raises(
        ModelError, match=r"a complete gzip file at .*Cure: download it again"
    ):
        word_vectors(str(tmp_path / "v.gz"), ["w4999"], [])


def test_a_name_of_timm_is_asked_of_timm_alone_where_it_is_installed(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(
        other_libraries,
        "import_module",
        lambda name: pytest.fail(f"{name} was imported"),
    )
    monkeypatch.setattr(other_libraries, "find_spec", lambda _: None)
    assert other_libraries.load_timm_config("timm/resnet18") is None
    monkeypatch.setattr(other_libraries, "find_spec", lambda _: True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timm" / "mine").mkdir(parents=True)
    assert (
        other_libraries.load_timm_config("timm/mine")
        is None
        is other_libraries.load_timm_config("one/resnet18")
    )
