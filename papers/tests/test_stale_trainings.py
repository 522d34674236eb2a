"""A finished training is not given back once what it read has changed: names stay, contents are compared."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from transformers import BertConfig, BertModel

from anisoscope.data.opening import open_labelled
from anisoscope.errors import OutputError
from anisoscope.models.packaged import builtin_folder
from anisoscope.store import as_records, write_table
from anisoscope_papers.beyond import cells, trained
from anisoscope_papers.fosse2023 import trained_cells
from anisoscope_papers.fosse2023.grid import Cell, Grid
from anisoscope_papers.study import Context
from anisoscope_papers.training import classifier, contents
from anisoscope_papers.training.recipe import ClassifierRecipe, ModelSize
from anisoscope_papers.training.text import (
    hash_tokenizer,
    train_byte_pairs,
    train_word_pieces,
)


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Start a training, or go on, without what takes long; how many were made."""
    made = []
    saved = SimpleNamespace(save_pretrained=lambda _folder: None)
    monkeypatch.setattr(
        classifier,
        "build_parts",
        lambda *_: SimpleNamespace(model=saved, tokenizer=saved),
    )

    def fake(recipe, corpus, *_):
        made.append(1)
        return {
            "recipe": recipe.described(),
            "corpus": corpus.described(),
            **classifier.describe_environment(),
            "results": {},
        }

    monkeypatch.setattr(classifier, "_train", fake)
    corpus = open_labelled("synthetic", limit=30)

    def start(recipe, **more):
        return classifier.train_classifier(
            recipe, tmp_path / "run", resume=True, corpus=corpus, **more
        )

    return SimpleNamespace(start=start, made=made, folder=tmp_path / "run")


@pytest.fixture
def encoder(tmp_path):
    """A tiny checkpoint, with files of a tokenizer."""
    folder = tmp_path / "encoder"
    BertModel(
        BertConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    ).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_other_word_vectors_of_the_same_name_are_another_training(train, tmp_path):
    vectors = tmp_path / "glove.txt"
    vectors.write_text("the 1 2\n")
    recipe = ClassifierRecipe(vectors=str(vectors))
    first = train.start(recipe)
    assert train.start(recipe).training == first.training and len(train.made) == 1
    vectors.write_text("the 1 3\n")
    with pytest.raises(OutputError, match=r"another training \(read\.vectors differ\)"):
        train.start(recipe)
    train.start(recipe, overwrite=True)
    assert (
        len(train.made) == 2
        and train.start(recipe).training["read"] != first.training["read"]
    )


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_another_base_model_of_the_same_name_is_another_training(name, train, encoder):
    recipe = ClassifierRecipe(model=str(encoder))
    train.start(recipe)
    (encoder / "README.md").write_text("nothing that is read")
    train.start(recipe)
    assert len(train.made) == 1
    (encoder / name).write_bytes((encoder / name).read_bytes() + b" ")
    with pytest.raises(OutputError, match=r"another training \(read\.model differ\)"):
        train.start(recipe)


def test_an_adapter_counts_with_the_weights_of_its_base(train, encoder, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    (adapter / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(encoder)})
    )
    recipe = ClassifierRecipe(model=str(adapter))
    train.start(recipe)
    train.start(recipe)
    assert len(train.made) == 1
    (encoder / "model.safetensors").write_bytes(
        (encoder / "model.safetensors").read_bytes() + b" "
    )
    with pytest.raises(OutputError, match=r"another training \(read\.model differ\)"):
        train.start(recipe)


def test_the_built_in_encoder_counts_with_its_tokenizer_and_configuration(
    monkeypatch, encoder
):
    whole = contents.hash_named("builtin:minilm")
    assert whole == contents.hash_named(builtin_folder("builtin:minilm"))
    monkeypatch.setattr(
        contents, "checkpoint_path", lambda _name: SimpleNamespace(path=str(encoder))
    )
    assert contents.hash_named("builtin:minilm") != whole


def test_a_cached_cell_of_other_contents_is_refused(monkeypatch, tmp_path):
    """Where contents were not noted yet, the corpus is compared alone, as before."""
    corpus = open_labelled("synthetic", limit=30)
    monkeypatch.setattr(trained_cells, "open_corpus", lambda *_: corpus)
    plan, cell = replace(Grid(), limit=30), Cell("synthetic")
    told = {"corpus": {"fingerprint": corpus.fingerprint}}
    read = contents.hash_read(plan.recipe(cell).filled())
    for number, (more, refused) in enumerate(
        (({}, False), ({"read": read}, False), ({"read": {"vectors": "x"}}, True))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "training.json").write_text(json.dumps(told | more))
        found = trained_cells.Trained(cell, plan, folder)
        if refused:
            with pytest.raises(OutputError, match="the vectors that the classifier"):
                _ = found.corpus
        else:
            assert found.corpus is corpus


def test_a_measured_cell_of_other_contents_is_refused(monkeypatch, tmp_path):
    """The table of a cell was taken by the names in its recipe alone."""
    measured = []
    records = as_records(pd.DataFrame([{"metric": "accuracy", "value": 0.5}]))
    monkeypatch.setattr(
        cells, "_train_and_measure", lambda *_: measured.append(1) or records
    )
    vectors = tmp_path / "glove.txt"
    vectors.write_text("the 1 2\n")
    plan = replace(Grid(), corpora=("synthetic",), limit=30, encoder=str(vectors))
    context = Context(tmp_path / "study", tmp_path / "cache")

    def found(plan=plan):
        return cells.collect_records([Cell("synthetic")], plan, context)[
            "metric"
        ].tolist()

    assert found() == found() == ["accuracy"] and len(measured) == 1
    vectors.write_text("the 1 3\n")
    for plan_of_then in (plan, replace(plan, train=False)):
        with pytest.raises(
            OutputError,
            match=r"the vectors that the model in .*parquet was trained with",
        ):
            found(plan_of_then)
    (noted,) = (tmp_path / "cache" / "cells").glob("*.json")
    told = noted.read_text()
    noted.unlink()
    assert found() == ["accuracy"], "of before contents were noted"
    noted.write_text(told)
    vectors.unlink()
    assert found(replace(plan, train=False)) == ["accuracy"], (
        "what it read is not here: it is taken as it is"
    )
    (table,) = (tmp_path / "cache" / "cells").glob("*.parquet")
    vectors.write_text("the 1 3\n")
    table.unlink()
    assert found() == ["accuracy"] and len(measured) == 2


def test_a_trained_arm_of_another_text_is_refused(monkeypatch, tmp_path):
    """A cell was found by the names of its corpora alone."""
    text = tmp_path / "corpus"
    text.mkdir()
    (text / "a.txt").write_text("one")
    monkeypatch.setattr(
        contents, "find_path", lambda name: text if name == trained.CORPUS else None
    )
    monkeypatch.setattr(trained, "find_path", contents.find_path)
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    made = []

    def train(arm, seed, _recipe, folder, device):
        made.append((arm, seed, device))
        for name in (trained.SEEN, trained.ASKED):
            write_table(
                folder / name,
                as_records(pd.DataFrame([{"metric": name, "value": 1.0}])),
            )

    monkeypatch.setattr(trained, "_train", train)
    size = ModelSize(
        layers=1,
        width=8,
        heads=2,
        vocabulary=300,
        window=12,
        batch=4,
        rate=1e-3,
        steps=4,
    )
    experiment = trained.Experiment(
        ("base",), 1, trained.Recipe("causal-lm", size, 4, looks=())
    )
    context = Context(tmp_path, tmp_path)
    trained.measure(experiment, context)
    trained.measure(experiment, context)
    assert made == [("base", 0, "cpu")]
    (text / "b.txt").write_text("two")
    with pytest.raises(
        OutputError,
        match=f"the {trained.CORPUS} that the model in .*base-0-.* was trained with",
    ):
        trained.measure(experiment, context)
    (experiment.recipe.folder("base", 0) / trained.READ).unlink()
    trained.measure(experiment, context)
    assert len(made) == 1, "of before contents were noted"


def test_a_vocabulary_is_its_words_and_how_it_cuts():
    texts = ["a cat sat on the mat", "a dog sat on the log"] * 5
    one = train_byte_pairs(texts, 300)
    other = train_byte_pairs(texts, 300)
    assert (
        hash_tokenizer(one)
        == hash_tokenizer(other)
        != hash_tokenizer(train_word_pieces(texts, 300))
    )
    described = json.loads(other.backend_tokenizer.to_str())
    described["model"]["merges"] = described["model"]["merges"][::-1]
    turned = type(one.backend_tokenizer).from_str(json.dumps(described))
    changed = SimpleNamespace(get_vocab=one.get_vocab, backend_tokenizer=turned)
    same = SimpleNamespace(
        get_vocab=one.get_vocab, backend_tokenizer=one.backend_tokenizer
    )
    assert hash_tokenizer(changed) != hash_tokenizer(same)
