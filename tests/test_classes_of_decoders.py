"""`anisoscope classes` on decoders, adapters and encoder–decoders, as a person has them: a folder and a table."""

import json

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from anisoscope.classes.attributions import (
    average_over_words,
    compute_attributions,
    iter_captured,
    measure_class_directions,
)
from anisoscope.classes.faithfulness import erase_words, predict_probabilities
from anisoscope.classes.pooling import predict_classes
from anisoscope.data.encoding import LabelledPlan, Padding, encode
from anisoscope.data.labelled import Example
from anisoscope.data.opening import open_labelled
from anisoscope.models.load import load
from anisoscope.runs.classes import run_classes
from anisoscope.runs.job import ClassesOptions
from anisoscope.store import select

NAMES = {
    "id2label": {0: "class 1", 1: "class 2"},
    "label2id": {"class 1": 0, "class 2": 1},
}
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}
SIZES |= {"max_position_embeddings": 256}
EOS = "<|end|>"


@pytest.fixture(scope="module")
def corpus():
    return open_labelled("synthetic")


@pytest.fixture(scope="module")
def tokenizer(corpus):
    """Byte pairs as GPT-2, Llama 3 and Qwen have them: the blank is part of the word behind it; no padding token."""
    inner = Tokenizer(models.BPE())
    inner.decoder = decoders.ByteLevel()
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[EOS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    inner.train_from_iterator(
        [" ".join(e.words) for e in corpus.splits["train"]], trainer
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=EOS)


def saved(model, tokenizer, folder):
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def learn(model, tokenizer, corpus, steps):
    """Train on the corpus, in the order of the table."""
    rows = encode(corpus.splits["train"], tokenizer, 256).rows
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(rows), (64,), generator=draw).tolist()
        width = max(len(rows[i]["input_ids"]) for i in chosen)
        ids = torch.tensor(
            [
                rows[i]["input_ids"] + [0] * (width - len(rows[i]["input_ids"]))
                for i in chosen
            ]
        )
        mask = torch.tensor(
            [[n < len(rows[i]["input_ids"]) for n in range(width)] for i in chosen]
        )
        labels = torch.tensor([rows[i]["labels"] for i in chosen])
        loss = torch.nn.functional.cross_entropy(
            model(ids, attention_mask=mask.long()).logits, labels
        )
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()


@pytest.fixture(scope="module")
def llama(tokenizer, corpus, tmp_path_factory):
    """A tiny Llama that has learnt the synthetic words: one layer, which attends only."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), num_hidden_layers=1, **SIZES, **NAMES, pad_token_id=0
    )
    model = learn(
        transformers.LlamaForSequenceClassification(config), tokenizer, corpus, 150
    )
    return model, saved(model, tokenizer, tmp_path_factory.mktemp("llama"))


def test_tokens_are_those_of_the_text_and_belong_to_their_words(tokenizer):
    """Word by word, a tokenizer whose words begin with their blank gives other tokens than the model was taught."""
    examples = [Example(("naïve", "cats", "don't", "x"), 0), Example(("a",), 1)]
    found = encode(examples, tokenizer, 256)
    for example, row, words in zip(examples, found.rows, found.words, strict=True):
        assert row["input_ids"] == tokenizer(example.text)["input_ids"]
        for number, word in enumerate(example.words):
            pieces = [
                token
                for token, w in zip(row["input_ids"], words, strict=True)
                if w == number
            ]
            assert tokenizer.decode(pieces).strip() == word
    assert encode(examples, tokenizer, 256).words[1] == [0]


def test_maps_of_a_tiny_llama_point_where_erasure_does(llama, tokenizer, corpus):
    """The word whose loss costs most is the word that the maps name first; the first token is not."""
    model, _ = llama
    examples = corpus.splits["test"][:60]
    encoded = encode(examples, tokenizer, 256)
    plan = LabelledPlan(encoded, Padding(0), stack="decoder")
    held = LabelledPlan(
        encode(corpus.splits["validation"][:100], tokenizer, 256),
        Padding(0),
        stack="decoder",
    )
    directions = measure_class_directions(model, held, 2)
    ones = dict(iter_captured(model, plan))
    assert (
        np.mean(
            [
                one.found == example.label
                for one, example in zip(_in_order(ones), examples, strict=True)
            ]
        )
        > 0.85
    )
    whole = predict_probabilities(model, encoded.rows, 0)
    agree = {
        name: [] for name in ("value, contrast", "value norm", "attention", "first")
    }
    for i, example in enumerate(examples):
        words, count = encoded.words[i], len(example.words)
        keep = ~np.eye(count, dtype=bool)
        without = [erase_words(encoded.rows[i], words, keep[n]) for n in range(count)]
        fall = (
            whole[i, ones[i].found]
            - predict_probabilities(model, without, 0)[:, ones[i].found]
        )
        maps = compute_attributions(ones[i], directions)
        by_map = {
            name: average_over_words(maps[name, 1], words, count)
            for name in agree
            if name != "first"
        }
        by_map["first"] = -np.arange(count)
        for name, values in by_map.items():
            agree[name].append(int(np.argmax(values) in np.argsort(-fall)[:2]))
    shares = {name: np.mean(values) for name, values in agree.items()}
    assert (
        min(shares["value, contrast"], shares["value norm"])
        > 0.7
        > shares["first"] + 0.3
    )
    assert shares["attention"] > shares["first"] + 0.1


def _in_order(ones):
    return [ones[i] for i in sorted(ones)]


def test_a_llama_folder_has_all_parts_and_says_nothing_is_left_out(llama, tmp_path):
    _, folder = llama
    run = run_classes(
        ClassesOptions(folder, corpus="synthetic", limit=60, few=12), tmp_path / "run"
    )
    records = run.records
    assert not [text for text in run.manifest["warnings"] if "left out" in text]
    assert {
        "accuracy",
        "ablation.accuracy",
        "attribution.auprc",
        "class_direction.auc",
    } <= set(records["metric"])
    precise = select(records, metric="attribution.auprc", layer=1).set_index(
        "component"
    )["value"]
    chance = select(records, metric="attribution.auprc", component="random")[
        "value"
    ].item()
    assert precise["value, contrast"] > 0.7 > chance + 0.2
    for prefix in ("ablation.", "attribution."):
        rows = records[records["metric"].str.startswith(prefix)]
        assert (
            len(rows)
            and rows["low"].le(rows["value"]).all()
            and rows["high"].ge(rows["value"]).all()
        )
    assert run.manifest["settings"]["settings"]["at"] == "last"


def test_the_first_layer_is_undefined_if_the_head_reads_the_same_mark_in_all_texts(
    tokenizer, tmp_path
):
    """Before the first block of a Llama, the mark of the end is one vector in all texts: AUC of it is rounding."""
    from tokenizers.processors import TemplateProcessing

    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.post_processor = TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, tokenizer.eos_token_id)]
    )
    marked = transformers.PreTrainedTokenizerFast(tokenizer_object=own, eos_token=EOS)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(marked), num_hidden_layers=2, **SIZES, **NAMES, pad_token_id=None
    )
    folder = saved(
        transformers.LlamaForSequenceClassification(config), marked, tmp_path / "llama"
    )
    for dtype in ("float32", "bfloat16"):
        options = ClassesOptions(
            folder, corpus="synthetic", limit=40, parts=("directions",), dtype=dtype
        )
        run = run_classes(options, tmp_path / f"run-{dtype}")
        rows = select(
            run.records, metric="class_direction.auc", component=None
        ).set_index("layer")["value"]
        assert np.isnan(rows[0]) and not np.isnan(rows[1])


def test_a_model_without_padding_says_the_same_as_text_by_text(
    tokenizer, corpus, tmp_path
):
    """No padding token, and texts that hold the mark of the end: the head still reads the last token of each."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), num_hidden_layers=1, **SIZES, **NAMES
    )
    assert config.pad_token_id is None
    model = transformers.LlamaForSequenceClassification(config)
    folder = saved(model, tokenizer, tmp_path / "llama")
    options = ClassesOptions(folder, corpus="synthetic", limit=40, few=6)
    run = run_classes(options, tmp_path / "run")
    accuracy = select(run.records, metric="accuracy", component=None)["value"].item()
    examples = [
        e
        for c in (0, 1)
        for e in [e for e in corpus.splits["test"] if e.label == c][:20]
    ]
    with torch.no_grad():
        alone = [
            model(**tokenizer(e.text, return_tensors="pt")).logits.argmax().item()
            for e in examples
        ]
    assert accuracy == pytest.approx(
        np.mean([a == e.label for a, e in zip(alone, examples, strict=True)])
    )


def test_an_adapter_is_a_classifier_with_its_head(tokenizer, tmp_path):
    """LoRA folders lost their head, and the base has two classes whatever the adapter was trained for."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), num_hidden_layers=1, **SIZES
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    three = open_labelled("synthetic:3")
    model = transformers.LlamaForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=3, pad_token_id=0
    )
    lora = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=4,
        target_modules=["q_proj", "v_proj"],
        init_lora_weights=False,
    )
    adapted = peft.get_peft_model(model, lora).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "base")
    run = run_classes(
        ClassesOptions(
            str(tmp_path / "adapter"), corpus="synthetic:3", limit=30, few=6
        ),
        tmp_path / "run",
    )
    assert "attribution.comprehensiveness" in set(run.records["metric"])
    assert any(
        "taken as class 1, class 2, class 3, in this order" in text
        for text in run.manifest["warnings"]
    )
    examples = [
        e
        for c in range(3)
        for e in [e for e in three.splits["test"] if e.label == c][:10]
    ]
    with torch.no_grad():
        alone = [
            adapted(**tokenizer(e.text, return_tensors="pt")).logits.argmax().item()
            for e in examples
        ]
    accuracy = select(run.records, metric="accuracy", component=None)["value"].item()
    assert accuracy == pytest.approx(
        np.mean([a == e.label for a, e in zip(alone, examples, strict=True)])
    )
    ours = load(str(tmp_path / "adapter"), classifier=True).model
    ours.config.pad_token_id = 0
    assert predict_classes(ours, encode(examples, tokenizer, 256), 0) == alone


def test_an_encoder_decoder_is_read_at_the_mark_of_the_end(tmp_path):
    """BART's head reads the decoder at the mark of the end; the encoder's padding was taken for real tokens."""
    from anisoscope.data.encoding import build_tokenizer

    corpus = open_labelled("synthetic")
    own = build_tokenizer(corpus, max_length=40)
    from tokenizers.processors import TemplateProcessing

    inner, end = own.backend_tokenizer, own.cls_token_id
    inner.post_processor = TemplateProcessing(
        single="$A <cls>", special_tokens=[("<cls>", end)]
    )
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<cls>"
    )
    sizes = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_position_embeddings": 256,
    }
    sizes |= {
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
    }
    marks = {
        "pad_token_id": 0,
        "eos_token_id": end,
        "decoder_start_token_id": end,
        "bos_token_id": 1,
    }
    torch.manual_seed(0)
    config = transformers.BartConfig(vocab_size=len(words), **sizes, **marks, **NAMES)
    folder = saved(
        transformers.BartForSequenceClassification(config), words, tmp_path / "bart"
    )
    run = run_classes(
        ClassesOptions(folder, corpus="synthetic", limit=40, few=8), tmp_path / "run"
    )
    warnings = json.dumps(run.manifest["warnings"])
    assert (
        "ablation left out" in warnings and "cross-attention to the words" in warnings
    )
    rows = select(run.records, metric="class_direction.auc", component=None)
    assert set(rows["stack"]) == {"decoder"} and sorted(rows["layer"]) == [0, 1, 2]
    assert "attribution.auprc" in set(run.records["metric"])
