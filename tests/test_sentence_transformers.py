"""Folders of sentence-transformers: the vector of a text is what the library's own `encode` gives, or is left out and
said; what holds no model of transformers is refused with the line that measures its vectors.
"""

import json
import math

import pytest
import torch
import transformers

import anisoscope
from anisoscope.capture import capture
from anisoscope.errors import ModelError
from anisoscope.models.load import load
from anisoscope.store import select

library = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
sparse = pytest.importorskip("sentence_transformers.sparse_encoder.modules")

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 86,
}
TEXTS = ["1 2 3 4 5", "6 7", "8 9 10 11 12 13 14 15 16 17 18 19"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(81))]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Folders of tiny Transformers, each with a tokenizer."""
    folder = tmp_path_factory.mktemp("bases")
    torch.manual_seed(0)
    bert = transformers.BertConfig(**SIZES, max_position_embeddings=64)
    t5 = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, vocab_size=86
    )
    llama = transformers.LlamaConfig(**SIZES, pad_token_id=0)
    made = {
        "bert": transformers.BertModel(bert),
        "mlm": transformers.BertForMaskedLM(bert),
        "t5": transformers.T5EncoderModel(t5),
        "llama": transformers.LlamaModel(llama),
    }
    tokenizer = transformers.BertTokenizerFast(
        vocab={word: i for i, word in enumerate(WORDS)}, model_max_length=64
    )
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.padding_side = "left" if name == "llama" else "right"
        tokenizer.save_pretrained(folder / name)
    return folder


def mean(dim=16, mode="mean"):
    return modules.Pooling(dim, pooling_mode=mode)


MADE = {
    "mean": lambda b: [modules.Transformer(f"{b}/bert"), mean()],
    "dense": lambda b: [
        modules.Transformer(f"{b}/bert"),
        mean(mode="cls"),
        modules.Dense(16, 9),
        modules.Normalize(),
    ],
    "convolution": lambda b: [
        modules.Transformer(f"{b}/bert"),
        modules.CNN(16, 8),
        mean(24),
    ],
    "layers": lambda b: [
        modules.Transformer(f"{b}/bert", config_kwargs={"output_hidden_states": True}),
        modules.WeightedLayerPooling(16, num_hidden_layers=2, layer_start=1),
        mean(),
    ],
    "t5": lambda b: [
        modules.Transformer(f"{b}/t5"),
        mean(),
        modules.Dense(16, 16),
        modules.Normalize(),
    ],
    "last token": lambda b: [modules.Transformer(f"{b}/llama"), mean(mode="lasttoken")],
    "splade": lambda b: [
        modules.Transformer(f"{b}/mlm", transformer_task="fill-mask"),
        sparse.SpladePooling(),
    ],
    "splade, sum": lambda b: [
        modules.Transformer(f"{b}/mlm", transformer_task="fill-mask"),
        sparse.SpladePooling(pooling_strategy="sum"),
    ],
    "sparse autoencoder": lambda b: [
        modules.Transformer(f"{b}/bert"),
        mean(),
        sparse.SparseAutoEncoder(input_dim=16, hidden_dim=32, k=4, k_aux=8),
    ],
}


def saved(name, bases, folder):
    """A model of `MADE`, saved; the model."""
    kind = (
        library.SparseEncoder
        if name.startswith(("splade", "sparse"))
        else library.SentenceTransformer
    )
    theirs = kind(modules=MADE[name](bases), device="cpu")
    theirs.save_pretrained(str(folder))
    return theirs


@pytest.mark.parametrize("name", MADE)
def test_the_vector_of_a_text_is_that_of_encode(name, bases, tmp_path):
    """Of SPLADE it had 16 dimensions for 86; a T5 encoder was refused for want of a decoder."""
    theirs = saved(name, bases, tmp_path / "model")
    expected = theirs.encode(TEXTS, convert_to_tensor=True)
    expected = expected.to_dense() if expected.is_sparse else expected
    subject = load(str(tmp_path / "model"))
    inputs = subject.processor(TEXTS, padding=True, return_tensors="pt")
    with (
        torch.no_grad(),
        capture(subject.model, ("hidden", "attention", "final")) as tap,
    ):
        subject.model(**inputs)
    assert not subject.notes
    torch.testing.assert_close(tap["sentence.final"][:, 0], expected, atol=1e-6, rtol=0)
    assert not any(".3." in site for site in tap.sites), "blocks of its own only"


def test_a_sparse_encoder_is_measured_as_its_vectors_are(bases, tmp_path):
    theirs = saved("splade", bases, tmp_path / "model")
    texts = [f"{k % 80} {(k * 7) % 80} {(k * 3) % 80}" for k in range(40)]
    run = anisoscope.measure(
        str(tmp_path / "model"), texts, panel="hidden,attention", sample=0
    )
    vectors = theirs.encode(texts, convert_to_tensor=True).to_dense()
    expected = anisoscope.measure(vectors, panel="hidden", sample=0).records
    found = select(
        run.records,
        stack="sentence",
        metric="mean_cosine",
        token_policy="all",
        component=None,
    )["value"]
    right = select(expected, metric="mean_cosine", token_policy="all", component=None)[
        "value"
    ]
    assert found.item() == pytest.approx(right.item(), abs=1e-6)
    assert {"hidden", "attention"} <= set(run.records["site"])


def test_the_floor_of_sentences_is_measured_unasked(bases, tmp_path):
    """It was measured of vectors alone: who measured the model that makes them was not told which cosine is noise."""
    theirs = saved("dense", bases, tmp_path / "model")
    texts = [f"{k % 80} {(k * 7) % 80} {(k * 3) % 80}" for k in range(60)]
    run = anisoscope.measure(str(tmp_path / "model"), texts, panel="hidden")
    vectors = theirs.encode(texts, convert_to_tensor=True)
    expected = anisoscope.measure(vectors, panel="hidden").records
    rows = select(run.records, stack="sentence", metric=("floor.q95", "floor.q99"))[
        "value"
    ]
    right = select(expected, metric=("floor.q95", "floor.q99"))["value"]
    assert len(rows) == 2 and rows.to_list() == pytest.approx(right.to_list(), abs=1e-6)
    (finding,) = (each.text for each in run.findings if each.rule == "noise_floor")
    assert (
        "are noise in the sentence vectors: 95 %" in finding
        and "Encoder" not in finding
    )
    other = anisoscope.measure(str(tmp_path / "model"), texts, panel="attention")
    assert not other.records["metric"].str.startswith("floor").any(), (
        "of hidden states only"
    )


def test_weights_of_its_own_head_are_part_of_what_a_run_is(bases, tmp_path):
    theirs = saved("splade", bases, tmp_path / "one")
    with torch.no_grad():
        theirs[0].auto_model.cls.predictions.bias += 1
    theirs.save_pretrained(str(tmp_path / "two"))
    assert (
        load(str(tmp_path / "one")).weights_sha256
        != load(str(tmp_path / "two")).weights_sha256
    )


def test_texts_are_cut_where_the_library_cuts_them(bases, tmp_path):
    """Its longest input stood in a file of its own until version 6."""
    theirs = saved("mean", bases, tmp_path / "model")
    (tmp_path / "model" / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 8, "do_lower_case": false}'
    )
    theirs.max_seq_length = 8
    subject = load(str(tmp_path / "model"))
    assert subject.processor.model_max_length == 8
    run = anisoscope.measure(
        subject, ["1 2 3", "4 5 6 7"] * 5, panel="hidden", sample=0
    )
    assert run.manifest["corpus"]["max_length"] == 8


def test_a_prompt_that_encode_would_add_is_said(bases, tmp_path):
    theirs = library.SentenceTransformer(
        modules=MADE["mean"](bases), device="cpu", prompts={"query": "1 2 "}
    )
    theirs.default_prompt_name = "query"
    theirs.save_pretrained(str(tmp_path / "model"))
    assert any(
        "would put first, 'query'" in note
        for note in load(str(tmp_path / "model")).notes
    )


def test_modules_that_fail_are_left_out_and_the_rest_is_measured(bases, tmp_path):
    """The LSTM of the library wants lengths that its own Transformer does not give: KeyError in `encode` too."""
    found = [modules.Transformer(f"{bases}/bert"), modules.LSTM(16, 8), mean()]
    library.SentenceTransformer(modules=found, device="cpu").save_pretrained(
        str(tmp_path / "model")
    )
    subject = load(str(tmp_path / "model"))
    assert any(
        "modules (Transformer, LSTM, Pooling) fail (KeyError" in note
        for note in subject.notes
    )
    run = anisoscope.measure(subject, TEXTS, panel="hidden", sample=0)
    assert set(run.records["stack"].dropna()) == {"encoder"} and math.isfinite(
        run.table()["A"].iloc[0]
    )


def test_drawn_weights_have_no_vectors_of_a_trained_head(bases, tmp_path):
    saved("splade", bases, tmp_path / "model")
    subject = load(str(tmp_path / "model"), untrained=True)
    assert not hasattr(subject.model, "sentence") and any(
        "untrained" in note for note in subject.notes
    )


@pytest.mark.parametrize("kind", ["BoW", "StaticEmbedding", "Router"])
def test_what_is_no_model_of_transformers_is_refused_with_the_line_that_measures_it(
    kind, bases, tmp_path
):
    """A bag of words ended in `expected weights of torch`, a router in `without config.json`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{bases}/bert")
    static = modules.StaticEmbedding(tokenizer, embedding_dim=16)
    found = {
        "BoW": [modules.BoW(vocab=WORDS), modules.Dense(86, 10)],
        "StaticEmbedding": [static],
        "Router": [
            modules.Router.for_query_document(
                query_modules=[static], document_modules=MADE["mean"](bases)
            )
        ],
    }[kind]
    library.SentenceTransformer(modules=found, device="cpu").save_pretrained(
        str(tmp_path / "model")
    )
    with pytest.raises(
        ModelError,
        match=rf"whose first module is {kind}. Cure: .*SentenceTransformer\(.*\)\.encode",
    ):
        load(str(tmp_path / "model"))
    assert json.loads((tmp_path / "model" / "modules.json").read_text())[0][
        "type"
    ].endswith(kind)
