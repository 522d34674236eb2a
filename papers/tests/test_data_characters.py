"""Text for models of characters and bytes: CharacterBERT's words, CANINE, ByT5, MANTa-LM."""

import json

import paper_models  # makes tiny_models know them  # noqa: F401
import pytest
import torch
from tiny_models import build
from transformers import ByT5Tokenizer, CanineTokenizer

from anisoscope.data.opening import open_plan
from anisoscope.data.text import open_text, plan_characters
from anisoscope.errors import CorpusError
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope_papers.networks.character_bert import CharacterBertTokenizer

TEXTS = [
    "A cat, naïve and SMALL, sat. " * 3,
    "One two three.",
    "A cat sat on a mat and a mat sat on a cat.",
]


@pytest.fixture
def corpus(tmp_path):
    for k, text in enumerate(TEXTS):
        (tmp_path / f"{k}.txt").write_text(text)
    return tmp_path


def test_words_of_a_window_are_rows_of_character_ids(corpus):
    tokenizer = CharacterBertTokenizer()
    plan = plan_characters(
        open_text(str(corpus)), tokenizer, max_length=12, batch_tokens=24
    )
    words = {unit: [] for unit in range(3)}
    rows = []
    for batch in plan:
        stream = batch.streams["encoder"]
        assert (
            batch.inputs["input_ids"].shape == (*stream.mask.shape, 50)
            and stream.mask.numel() <= 24
        )
        assert torch.equal(batch.inputs["attention_mask"].bool(), stream.mask)
        assert not batch.inputs["input_ids"][~stream.mask].any()
        rows += zip(
            batch.unit.tolist(),
            stream.start.tolist(),
            batch.inputs["input_ids"],
            stream.mask,
            strict=True,
        )
    for unit, _, ids, mask in sorted(rows, key=lambda row: row[:2]):
        inner = ids[mask]
        assert torch.equal(
            inner[[0, -1]], tokenizer.encode([[]])["input_ids"][0]
        )  # [CLS] and [SEP] around each
        words[unit].append(inner[1:-1])
    for unit, text in enumerate(TEXTS):
        assert torch.equal(
            torch.cat(words[unit]), tokenizer([text])["input_ids"][0, 1:-1]
        )
    assert (
        plan.n_units == 3
        and len(plan.frequency_bins) == 5
        and plan.tokens == [b.n_tokens for b in plan]
    )


TOKENIZERS = {"canine": CanineTokenizer, "byt5": ByT5Tokenizer, "manta": ByT5Tokenizer}


@pytest.mark.parametrize("name", ["character_bert", *TOKENIZERS])
def test_each_is_measured_on_text(corpus, name):
    subject = build(name, torch.float32)
    tokenizer = TOKENIZERS.get(name, CharacterBertTokenizer)()
    plan, described = open_plan(
        str(corpus),
        subject,
        tokenizer,
        modality="text",
        max_length=32,
        batch_tokens=128,
    )
    assert described["max_length"] == 32
    if name == "manta":  # its blocks depend on the longest text of a batch
        assert {len(batch.unit) for batch in plan} == {1}
    measured = run_pass(subject, plan, Settings(panel=("hidden",), sample=0))
    records = measured.records()
    assert len(measured.sums.units) == 3
    assert records.loc[records["metric"] == "mean_cosine", "value"].notna().any()


def test_texts_shorter_than_a_molecule_are_left_out_and_told(tmp_path):
    """CANINE pools four characters, its two markers counted; a batch of shorter texts would stop it."""
    subject, tokenizer = build("canine", torch.float32), CanineTokenizer()
    given = {"modality": "text", "max_length": 32, "batch_tokens": 8}
    path = tmp_path / "short.jsonl"
    path.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("a", "bc", "defg", "h"))
    )
    plan, described = open_plan(str(path), subject, tokenizer, **given)
    assert described["warnings"] == [
        "2 windows of fewer than 4 tokens left out: the model cannot read them"
    ]
    measured = run_pass(subject, plan, Settings(panel=("hidden",), sample=0))
    assert measured.sums.units == {1, 2}
    path.write_text(json.dumps({"text": "a"}))
    with pytest.raises(CorpusError, match="at least 4 tokens"):
        open_plan(str(path), subject, tokenizer, **given)
