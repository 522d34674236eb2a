"""The hub as paper G's own settings find it: every system at its true number of layers and heads, narrow and random, in
the files that its repository has; the corpora in theirs, a few units each.

    hub = paper_hub(folder)                     # repositories are made in the folder, once
    hub.repositories.pop("google/canine-s")     # …and what is not to be had is taken away

ImageNet is gated; Common Voice is gone. `google/multiberts-…` are 145 checkpoints of five trainings.
"""

import hashlib
import io
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import torch
from hub_server import Hub

SIDE, LONGEST, WORDS = 64, 64, 96
SYLLABLES = [a + b for a in "bdgklmnprst" for b in "aeiou"]
_FLAT = {
    "hidden_size": 36,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 48,
}
_TEXT = _FLAT | {"max_position_embeddings": LONGEST}
_FRAMES = {
    "conv_dim": (8,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
_IMAGE = _FLAT | {"image_size": SIDE, "patch_size": 16}
_T5 = {
    "d_model": 36,
    "d_kv": 3,
    "d_ff": 48,
    "num_heads": 12,
    "decoder_start_token_id": 0,
}
_MANTA = _T5 | {
    "num_layers": 6,
    "byte_embedding_dim": 16,
    "frontier_predictor_num_attention_heads": 2,
}
_MANTA |= {
    "frontier_predictor_attention_window": 8,
    "max_length_encoder_decoder": LONGEST,
}
_WHISPER = {
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_ffn_dim": 24,
}
_WHISPER |= {
    "decoder_ffn_dim": 24,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "max_target_positions": 16,
}
_WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_WHISPER |= {
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "decoder_start_token_id": 1,
}
_CANINE = _TEXT | {
    "hidden_size": 48,
    "num_hash_buckets": LONGEST,
    "local_transformer_stride": 32,
}
_STAGES = {"hidden_sizes": [8, 12, 16, 24], "image_size": SIDE}

SYSTEMS = {
    "google-bert/bert-base-uncased": ("BertForMaskedLM", _TEXT, "wordpiece"),
    "FacebookAI/roberta-base": (
        "RobertaForMaskedLM",
        _TEXT | {"max_position_embeddings": LONGEST + 2},
        "bpe",
    ),
    "openai-community/gpt2": (
        "GPT2Model",
        {"n_embd": 36, "n_layer": 12, "n_head": 12, "n_positions": LONGEST},
        "bpe",
    ),
    "google-t5/t5-base": (
        "T5ForConditionalGeneration",
        _T5 | {"num_layers": 12},
        "unigram",
    ),
    "helboukkouri/character-bert": (
        "CharacterBertModel",
        _TEXT | {"character_filters": [[1, 4], [2, 8], [3, 8]]},
        "",
    ),
    "google/canine-s": ("CanineModel", _CANINE, ""),
    "google/canine-c": ("CanineModel", _CANINE, ""),
    "almanach/manta-lm-base": ("MantaModel", _MANTA, ""),
    "google/byt5-base": (
        "T5ForConditionalGeneration",
        _T5
        | {
            "vocab_size": 384,
            "num_layers": 18,
            "num_decoder_layers": 6,
            "feed_forward_proj": "gated-gelu",
        },
        "bytes",
    ),
    "facebook/wav2vec2-base": (
        "Wav2Vec2ForPreTraining",
        _FLAT | _FRAMES | {"codevector_dim": 8},
        "sound",
    ),
    "facebook/hubert-base-ls960": ("HubertModel", _FLAT | _FRAMES, "sound"),
    "openai/whisper-base": ("WhisperForConditionalGeneration", _WHISPER, "mel"),
    "google/vit-base-patch16-224": ("ViTForImageClassification", _IMAGE, "pixels"),
    "microsoft/beit-base-patch16-224": ("BeitForImageClassification", _IMAGE, "pixels"),
    "facebook/deit-base-distilled-patch16-224": (
        "DeiTForImageClassificationWithTeacher",
        _IMAGE,
        "pixels",
    ),
    "nvidia/mit-b0": (
        "SegformerForImageClassification",
        {
            "hidden_sizes": [8, 16, 40, 64],
            "depths": [2, 2, 2, 2],
            "mlp_ratios": [2, 2, 2, 2],
            "num_labels": 7,
        },
        "pixels",
    ),
    "microsoft/resnet-50": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [16, 24, 32, 48], "depths": [3, 4, 6, 3]},
        "pixels",
    ),
    "google/efficientnet-b0": (
        "EfficientNetForImageClassification",
        {
            "width_coefficient": 0.25,
            "depth_coefficient": 1.0,
            "hidden_dim": 320,
            "image_size": SIDE,
        },
        "pixels",
    ),
    "microsoft/cvt-13": (
        "CvtForImageClassification",
        {"embed_dim": [8, 24, 48], "depth": [1, 2, 10]},
        "pixels",
    ),
    "facebook/convnext-tiny-224": (
        "ConvNextForImageClassification",
        _STAGES | {"depths": [3, 3, 9, 3]},
        "pixels",
    ),
    "Visual-Attention-Network/van-base": (
        "VanModel",
        {
            "hidden_sizes": [8, 12, 16, 24],
            "depths": [3, 3, 12, 3],
            "mlp_ratios": [2, 2, 2, 2],
            "num_labels": 7,
        },
        "pixels",
    ),
}
"""Repository → class of the weights there, sizes of its configuration, what stands beside it."""
ONLY_PICKLED = ("character", "canine", "manta", "byt5", "wav2vec2", "van-base")
"""Repositories with pytorch_model.bin alone."""
BERT = "google-bert/bert-base-uncased"
STEPS = (*range(0, 200, 20), *range(200, 2001, 100))


def paper_hub(folder, steps=STEPS):
    """A hub with all of it; files are made below `folder` where they are not there."""
    hub = Hub()
    for name in SYSTEMS:
        _serve(hub, folder, name, partial(_system, name))
    for seed in range(5) if steps else ():
        for step in steps:
            name = f"google/multiberts-seed_{seed}-step_{step}k"
            _serve(
                hub,
                folder,
                name,
                partial(_system, BERT, seed=100 * seed + 1, drift=step / 2000),
            )
    _serve(hub, folder, "datasets/Salesforce/wikitext", _wikitext)
    _serve(hub, folder, "datasets/ILSVRC/imagenet-1k", _imagenet, gated=True)
    _serve(hub, folder, "datasets/openslr/librispeech_asr", _librispeech)
    hub.renamed["datasets/wikitext"] = "datasets/Salesforce/wikitext"
    return hub


def _serve(hub, folder, name, make, **options):
    place = Path(folder, name)
    if not (place / ".gitattributes").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        make(place)
        (place / "README.md").exists() or (place / "README.md").write_text("a stand-in")
        (place / ".gitattributes").write_text("*.bin filter=lfs\n")
    files = b"".join(
        path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()
    )
    hub.add(name, {hashlib.sha1(files).hexdigest(): place}, **options)


# ---- models ----


def _system(name, place, seed=1, drift=0.0):
    """The files of one system; `drift`: how far its queries and keys have moved, all of a head alike."""
    import transformers

    from anisoscope.models import ports

    ports.register()
    kind, sizes, beside = SYSTEMS[name]
    vocabulary = BESIDE[beside](place) if beside else None
    sizes = sizes | (
        {"vocab_size": vocabulary} if vocabulary and "vocab_size" not in sizes else {}
    )
    cls = getattr(transformers, kind, None) or _port(kind)
    torch.manual_seed(seed)
    model = cls(cls.config_class(**sizes)).eval()
    for key, parameter in model.named_parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
        if drift and ("query.bias" in key or "key.bias" in key):
            parameter.data.add_(
                2 * drift * torch.sin(torch.arange(len(parameter)) + 1.0)
            )
    model.save_pretrained(place)
    if any(part in name for part in ONLY_PICKLED):
        torch.save(model.state_dict(), place / "pytorch_model.bin")
        (place / "model.safetensors").unlink()
    if "character" in name:  # as it is spelt there
        config = json.loads((place / "config.json").read_text())
        config["cnn_filters"] = config.pop("character_filters")
        (place / "config.json").write_text(json.dumps(config))


def _port(kind):
    from anisoscope_papers.networks import character_bert, manta, van

    return next(
        vars(module)[kind]
        for module in (character_bert, manta, van)
        if kind in vars(module)
    )


def _words():
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "=", *SYLLABLES]


def _wordpiece(place):
    from transformers import BertTokenizerFast

    pieces = [*_words(), *(f"##{part}" for part in SYLLABLES)]
    BertTokenizerFast(
        vocab={word: k for k, word in enumerate(pieces)}, model_max_length=512
    ).save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(pieces))
    return len(pieces)


def _bpe(place):
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(
        [_article(k) for k in range(9)], 300, special_tokens=marks, show_progress=False
    )
    trained.save_model(str(place))
    trained.save(str(place / "tokenizer.json"))
    kind = "GPT2TokenizerFast" if "gpt2" in place.name else "RobertaTokenizerFast"
    (place / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": kind, "model_max_length": LONGEST})
    )
    return trained.get_vocab_size()


def _unigram(place):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [
        "<pad>",
        "</s>",
        "<unk>",
        "▁",
        "=",
        *(f"▁{part}" for part in SYLLABLES),
        *SYLLABLES,
    ]
    tokenizer = Tokenizer(
        models.Unigram(
            [(piece, -float(k % 7)) for k, piece in enumerate(pieces)], unk_id=2
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LONGEST, **marks
    ).save_pretrained(place)
    return len(pieces)


def _bytes(place):
    told = {"tokenizer_class": "ByT5Tokenizer", "model_max_length": LONGEST}
    (place / "tokenizer_config.json").write_text(json.dumps(told))


def _sound(place):
    from transformers import Wav2Vec2FeatureExtractor

    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(place)


def _mel(place):
    from transformers import WhisperFeatureExtractor

    WhisperFeatureExtractor(feature_size=80).save_pretrained(place)


def _pixels(place):
    told = {
        "do_resize": True,
        "do_center_crop": False,
        "size": {"height": SIDE, "width": SIDE},
        "do_normalize": True,
        "do_rescale": True,
    }
    told |= {
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "rescale_factor": 1 / 255,
        "resample": 2,
    }
    kind = next(kind for part, kind in PROCESSORS.items() if part in place.name)
    told |= {"image_processor_type": kind} | (
        {"size": {"shortest_edge": SIDE}} if kind == "ConvNextImageProcessor" else {}
    )
    (place / "preprocessor_config.json").write_text(json.dumps(told))


PROCESSORS = {
    "vit": "ViTImageProcessor",
    "beit": "BeitImageProcessor",
    "deit": "DeiTImageProcessor",
}
PROCESSORS |= {
    "mit-": "SegformerImageProcessor",
    "efficientnet": "EfficientNetImageProcessor",
}
PROCESSORS |= dict.fromkeys(
    ("resnet", "cvt", "convnext", "van"), "ConvNextImageProcessor"
)
BESIDE = {"wordpiece": _wordpiece, "bpe": _bpe, "unigram": _unigram, "bytes": _bytes}
BESIDE |= {"sound": _sound, "mel": _mel, "pixels": _pixels}


# ---- corpora ----


def _article(k):
    drawn = np.random.default_rng(k)
    words = ("".join(drawn.choice(SYLLABLES, drawn.integers(1, 3))) for _ in range(70))
    return " ".join(words)


def _wikitext(place):
    """All its configurations; articles as lines, a heading first."""
    import pandas as pd

    lines = [
        line
        for k in range(24)
        for line in (
            "",
            f" = {_article(100 + k)[:8].strip()} = \n",
            "",
            f" {_article(k)}\n",
        )
    ]
    listed = ["---", "configs:"]
    for config in (
        "wikitext-103-raw-v1",
        "wikitext-103-v1",
        "wikitext-2-raw-v1",
        "wikitext-2-v1",
    ):
        (place / config).mkdir()
        listed += [f"- config_name: {config}", "  data_files:"]
        for split, part in (
            ("train", lines[:8]),
            ("validation", lines),
            ("test", lines[8:16]),
        ):
            pd.DataFrame({"text": part}).to_parquet(
                place / config / f"{split}-00000-of-00001.parquet"
            )
            listed += [f"  - split: {split}", f"    path: {config}/{split}-*"]
    (place / "README.md").write_text("\n".join([*listed, "---", ""]))


def _imagenet(place):
    import datasets
    from PIL import Image

    def picture(k):
        drawn, body = np.random.default_rng(k), io.BytesIO()
        coarse = drawn.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((88, 72)).save(body, "JPEG")
        return {"bytes": body.getvalue(), "path": f"ILSVRC2012_val_{k:08d}.JPEG"}

    (place / "data").mkdir()
    (place / "README.md").write_text(
        "---\nlicense: other\n---\nphotographs of other things\n"
    )
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("int64")}
    )
    for part in range(2):
        rows = {
            "image": [picture(12 * part + k) for k in range(12)],
            "label": list(range(12)),
        }
        made = datasets.Dataset.from_dict(rows, kinds)
        made.to_parquet(str(place / "data" / f"validation-{part:05d}-of-00002.parquet"))


def _librispeech(place):
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
    import soundfile

    def clip(k):
        drawn, body = np.random.default_rng(k), io.BytesIO()
        at = np.arange(4800 + 320 * (k % 3)) / 16000
        sound = np.sin(2 * np.pi * (120 + 9 * k) * at) + 0.1 * drawn.standard_normal(
            len(at)
        )
        soundfile.write(body, 0.2 * sound, 16000, format="FLAC")
        return {"bytes": body.getvalue(), "path": f"{k}.flac"}

    features = {
        "audio": datasets.Audio(16000),
        "text": datasets.Value("string"),
        "speaker_id": datasets.Value("int64"),
    }
    listed = ["---", "configs:"]
    for config in ("clean", "other"):
        (place / config / "validation").mkdir(parents=True)
        rows = {
            "audio": [clip(k) for k in range(24)],
            "text": [_article(k) for k in range(24)],
        }
        rows["speaker_id"] = [1000 + k for k in range(24)]
        about = {
            b"huggingface": json.dumps(
                {"info": {"features": datasets.Features(features).to_dict()}}
            ).encode()
        }
        table = pa.table(rows).replace_schema_metadata(
            about
        )  # the library writes sound with a decoder only
        pq.write_table(table, place / config / "validation" / "0000.parquet")
        listed += [f"- config_name: {config}", "  data_files:", "  - split: validation"]
        listed += [f"    path: {config}/validation/*.parquet"]
    (place / "README.md").write_text("\n".join([*listed, "---", ""]))
