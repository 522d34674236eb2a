"""Objects of other libraries handed to `measure`, and texts in the forms in which people have them."""

import json
import time
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pyarrow
import pytest
import tiny
import torch
import transformers

import anisoscope
from anisoscope.api.comparison import Comparison
from anisoscope.api.objects import unwrap_model
from anisoscope.data.check_names import check_corpus, check_model
from anisoscope.data.in_memory import fill_missing_texts, read_texts_of_table
from anisoscope.data.text import open_text
from anisoscope.errors import AnisoscopeError, CorpusError, ModelError, UsageError
from anisoscope.models.load import load
from anisoscope.store import select

QUICK = {"panel": "hidden", "sample": 0}
X = np.random.default_rng(0).normal(size=(40, 6)) + 0.3
TEXTS = [f"a good film {k}" for k in range(12)]


def values(run):
    return run.records.drop(columns=["run", "corpus", "model"])


@pytest.fixture(scope="module")
def encoder():
    """A small encoder with its tokenizer: these tests are about what is given to it."""
    return load(tiny.small_encoder())


def same(ours, theirs):
    pd.testing.assert_frame_equal(values(ours), values(theirs), rtol=1e-9, atol=1e-12)


TABLES = {
    "frame": lambda: pd.DataFrame(X),
    "frame with an index": lambda: pd.DataFrame(X, index=[f"w{k}" for k in range(40)]),
    "frame with an id": lambda: pd.DataFrame(X).assign(
        id=np.arange(40) * 7, text="hello"
    ),
    "frame of lists": lambda: pd.DataFrame({"text": "hello", "embedding": list(X)}),
    "arrow": lambda: pyarrow.table({"v": X.tolist(), "id": list(range(40))}),
    "data set": lambda: datasets.Dataset.from_dict(
        {"v": X.tolist(), "id": list(range(40))}
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_by_the_rules_for_files(name):
    run = anisoscope.measure(TABLES[name](), **QUICK)
    same(run, anisoscope.measure(X, **QUICK))
    assert "40 vectors of 6 numbers" in run.manifest["corpus"]["reading"]


def test_columns_units_and_labels_of_a_table():
    frame = pd.DataFrame(X, columns=[f"d{k}" for k in range(6)]).assign(
        speaker=np.arange(40) // 4, kind=["a", "b"] * 20
    )
    given = anisoscope.measure(
        frame, columns="d*", unit_column="speaker", label_column="kind", **QUICK
    )
    same(
        given,
        anisoscope.measure(
            X, units=np.arange(40) // 4, labels=["a", "b"] * 20, **QUICK
        ),
    )
    same(
        anisoscope.measure(
            frame, columns="d*", units=np.arange(40) // 4, label_column="kind", **QUICK
        ),
        given,
    )
    with pytest.raises(
        UsageError, match="to name a column, give unit_column='speaker'"
    ):
        anisoscope.measure(frame, columns="d*", units="speaker", **QUICK)
    with pytest.raises(
        CorpusError, match="one way to read the columns of the DataFrame"
    ):
        anisoscope.measure(pd.DataFrame(np.c_[np.arange(40) * 3, X]), **QUICK)


def test_texts_in_a_table_or_a_column(encoder):
    expected = anisoscope.measure(encoder, TEXTS, **QUICK)
    frame = pd.DataFrame({"n": range(12), "review": TEXTS})
    for given in (
        frame,
        frame["review"],
        datasets.Dataset.from_pandas(frame),
        pyarrow.Table.from_pandas(frame),
    ):
        same(anisoscope.measure(encoder, given, **QUICK), expected)
    two = frame.assign(title="film")
    with pytest.raises(CorpusError, match=r"a text column in the DataFrame.*--column"):
        anisoscope.measure(encoder, two, **QUICK)
    same(anisoscope.measure(encoder, two, column="review", **QUICK), expected)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA], ids=repr)
def test_a_missing_text_is_an_empty_one(encoder, missing):
    """One of them made a column of texts "a list of strings without a processor", which there was."""
    expected = anisoscope.measure(encoder, [*TEXTS, ""], **QUICK)
    texts = [*TEXTS, missing]
    column = pd.Series(texts, dtype=object)
    rows = [{"review": text, "n": 1} for text in texts]
    for given in (texts, column, column.to_frame("review"), rows):
        same(anisoscope.measure(encoder, given, **QUICK), expected)


@pytest.mark.parametrize("chat", [[], [{"role": "user", "content": ""}]], ids=repr)
def test_a_chat_without_words_is_an_empty_text(chat):
    said = [{"role": "user", "content": "words"}]
    rows = [{"messages": said}, {"messages": chat}]
    assert read_texts_of_table(rows, None) == ["words", ""]


def test_missing_numbers_stay_what_they_are():
    for given in ([1.0, float("nan")], [None, None], ["a", None, 1], ["a"], "a", [], X):
        assert fill_missing_texts(given) is given


def test_texts_and_chats_in_a_list_of_rows(encoder):
    """It asked for messages "as a tensor" and for padding."""
    expected = anisoscope.measure(encoder, TEXTS, **QUICK)
    same(
        anisoscope.measure(
            encoder, [{"text": text, "label": 1} for text in TEXTS], **QUICK
        ),
        expected,
    )
    chats = [
        {"id": 3, "messages": [{"role": "user", "content": text}]} for text in TEXTS
    ]
    same(anisoscope.measure(encoder, chats, **QUICK), expected)
    same(
        anisoscope.measure(
            encoder, pd.Series([row["messages"] for row in chats]), **QUICK
        ),
        expected,
    )


def inputs_of(encoder):
    """What a model takes one after the other: texts, rows, batches in each form."""
    batches = [dict(encoder.processor([text], return_tensors="pt")) for text in TEXTS]
    return {
        "texts": TEXTS,
        "rows": [{"text": text, "label": 1} for text in TEXTS],
        "batches": batches,
        "tensors": [batch["input_ids"] for batch in batches],
        "tuples": [(batch["input_ids"],) for batch in batches],
    }


@pytest.mark.parametrize("form", ["texts", "rows", "batches", "tensors", "tuples"])
@pytest.mark.parametrize(
    "once",
    [iter, lambda items: (item for item in items)],
    ids=["iterator", "generator"],
)
def test_inputs_of_a_generator_are_measured_as_those_of_a_list(encoder, form, once):
    given = inputs_of(encoder)[form]
    same(
        anisoscope.measure(encoder, once(given), **QUICK),
        anisoscope.measure(encoder, given, **QUICK),
    )


RAGGED = [X[:3], X[3:8], X[8:20], X[20:22], X[22:]]


@pytest.mark.parametrize(
    ("items", "whole"),
    [(X, X), (RAGGED, RAGGED), (X.reshape(5, 8, 6), X.reshape(5, 8, 6))],
    ids=["vectors", "of different lengths", "of one length"],
)
@pytest.mark.parametrize(
    "form",
    [np.asarray, torch.as_tensor, lambda x: x.tolist()],
    ids=["array", "tensor", "list"],
)
def test_vectors_of_a_generator_are_measured_as_the_array_that_they_make(
    items, whole, form
):
    same(
        anisoscope.measure((form(item) for item in items), **QUICK),
        anisoscope.measure(whole, **QUICK),
    )


def test_an_empty_generator_is_no_input(encoder):
    with pytest.raises(AnisoscopeError):
        anisoscope.measure(encoder, (text for text in []), **QUICK)


def test_a_generator_is_a_probe_as_its_list_is(encoder):
    one, two = (
        anisoscope.Monitor(probe, processor=encoder.processor)
        for probe in (TEXTS, (text for text in TEXTS))
    )
    assert one.look(encoder.model, 1) == two.look(encoder.model, 1)


def test_texts_in_a_table_are_a_probe_as_their_list_is(encoder):
    """Rows and tables, which `measure` takes, were taken for inputs of the model."""
    frame = pd.DataFrame({"n": range(12), "review": TEXTS})
    rows = frame.to_dict("records")
    expected, *found = (
        anisoscope.Monitor(probe, processor=encoder.processor).look(encoder.model, 1)
        for probe in (TEXTS, frame, frame["review"], rows)
    )
    assert found == [expected] * 3


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ([[0.1, 0.2], [0.3, 0.4]], "np.asarray"),
        ((torch.nn.Linear(2, 2), "a tokenizer"), "processor="),
    ],
    ids=["lists of numbers", "model and tokenizer"],
)
def test_what_is_no_model_is_told_what_to_do_with_it(given, cure):
    with pytest.raises(UsageError, match=cure):
        anisoscope.measure(given, TEXTS)


def test_a_text_in_the_place_of_a_corpus_is_told_as_one():
    with pytest.raises(CorpusError, match="write texts into a file"):
        check_corpus("The cat sat on the mat")


def test_a_pipeline_is_its_model_and_its_tokenizer(encoder):
    pipeline = transformers.pipeline(
        "feature-extraction", model=encoder.model, tokenizer=encoder.processor
    )
    same(
        anisoscope.measure(pipeline, TEXTS, **QUICK),
        anisoscope.measure(encoder, TEXTS, **QUICK),
    )


def test_a_processor_that_is_given_goes_before_that_of_a_pipeline():
    pipeline = SimpleNamespace(
        model="its model",
        preprocess=None,
        tokenizer="its tokenizer",
        image_processor=None,
    )
    for given, used in ((None, "its tokenizer"), ("mine", "mine")):
        with unwrap_model(pipeline, given) as opened:
            assert opened == ("its model", used)


def test_columns_of_a_comparison_are_those_that_tell_its_rows_apart():
    """A value of the whole beside one of a part: their place is known by the part alone, or by none."""
    found = object.__new__(Comparison)
    rows = {
        "run": "b",
        "stack": "encoder",
        "layer": [1, 1],
        "layer_other": 1,
        "head": None,
        "site": "hidden",
    }
    rows |= {
        "component": [None, "3"],
        **dict.fromkeys(("first", "second", "difference", "low", "high"), 0.5),
    }
    found.differences = pd.DataFrame(rows)
    assert list(found.table())[:3] == ["run", "layer", "component"]


def test_a_model_of_sentence_transformers_is_measured_and_left_as_it_was(
    tmp_path, encoder
):
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    encoder.model.save_pretrained(tmp_path)
    encoder.processor.save_pretrained(tmp_path)
    given = [
        modules.Transformer(str(tmp_path)),
        modules.Pooling(384, pooling_mode="mean"),
        modules.Normalize(),
    ]
    model = library.SentenceTransformer(modules=given, device="cpu")
    before = [name for name, _ in model.named_modules()]
    run = anisoscope.measure(model, TEXTS, **QUICK)
    found = select(
        run.records,
        stack="sentence",
        metric="mean_cosine",
        token_policy="all",
        component=None,
    )["value"]
    right = anisoscope.measure(model.encode(TEXTS), **QUICK).table()["A"].item()
    assert found.item() == pytest.approx(right, abs=1e-5)
    assert [name for name, _ in model.named_modules()] == before
    static = library.SentenceTransformer(
        modules=[modules.StaticEmbedding(encoder.processor, embedding_dim=8)]
    )
    with pytest.raises(
        UsageError,
        match=r"first module is StaticEmbedding. Cure: .*model\.encode\(texts\)",
    ):
        anisoscope.measure(static, TEXTS)


@pytest.mark.parametrize(
    ("name", "here"), [("tokenizer", "processor"), ("batch_size", "batch_tokens")]
)
def test_a_keyword_of_other_libraries_is_told_by_its_name_here(name, here):
    with pytest.raises(UsageError, match=f"it is called {here} here"):
        anisoscope.measure("builtin:minilm", TEXTS, **{name: 1})


# ---- texts -----------------------------------------------------------------------------------------------------------

CHAT = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": [{"type": "text", "text": "hi there"}]},
]
FORMS = {
    "sole.csv": ("review\na good film\na dull film\n", ["a good film", "a dull film"]),
    "numbered.csv": (
        "nr,review\n1,a good film\n2,a dull film\n",
        ["a good film", "a dull film"],
    ),
    "texts.json": (json.dumps(["one text", "another"]), ["one text", "another"]),
    "texts.jsonl": ('"one text"\n"another"\n', ["one text", "another"]),
    "chat.jsonl": (json.dumps({"id": 1, "messages": CHAT}), ["hello\nhi there"]),
    "sharegpt.json": (
        json.dumps([{"conversations": [{"from": "human", "value": "hello"}]}]),
        ["hello"],
    ),
    "with an id.json": (
        json.dumps(
            [{"id": "a_0", "conversations": [{"from": "human", "value": "hello"}]}]
        ),
        ["hello"],
    ),
    "tools.jsonl": (
        json.dumps({"messages": [*CHAT, {"role": "tool", "content": None}]}),
        ["hello\nhi there"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_texts_are_found_where_there_is_but_one_place_for_them(name, tmp_path):
    content, texts = FORMS[name]
    (tmp_path / name).write_text(content)
    assert open_text(str(tmp_path / name)).documents == texts


# ---- paths that are not there ----------------------------------------------------------------------------------------


def test_a_slip_in_a_path_is_told_at_once_and_without_the_network(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "my-model-12").mkdir(parents=True)
    (tmp_path / "texts.jsonl").write_text("{}")
    started = time.monotonic()
    for name, cure in (
        ("runs/my-modl-12", "did you mean runs/my-model-12"),
        ("runs/mymodel/step-10/x", "there is no mymodel in .*runs"),
        ("vectors.pt", "check the path"),
        ("./model", "check the path"),
    ):
        with pytest.raises(ModelError, match=cure) as told:
            anisoscope.measure(name)
        assert "network" not in str(told.value) and "hub" not in str(told.value)
    with pytest.raises(CorpusError, match=r"did you mean texts\.jsonl") as told:
        anisoscope.measure("builtin:minilm", corpus="text.jsonl")
    assert "network" not in str(told.value)
    assert time.monotonic() - started < 2
    (tmp_path / "x.npy").touch()
    (tmp_path / "gpt2x").mkdir()
    for name, cure in (
        ("x.npyy", r"did you mean x\.npy\?"),
        ("xx.npy", r"did you mean x\.npy\?"),
        ("x.npu", r"did you mean x\.npy\?"),
        ("runs/part-2.npyy", "check the path"),
        ("other.safetensorss", "check the path"),
    ):
        with pytest.raises(ModelError, match=cure) as told:
            check_model(name)
        assert "network" not in str(told.value) and "hub" not in str(told.value)
    for name, cure in (
        ("texts.jsonll", r"did you mean texts\.jsonl\?"),
        ("runs/part-0.txtt", "check the path"),
    ):
        with pytest.raises(CorpusError, match=cure) as told:
            check_corpus(name)
        assert "network" not in str(told.value)
    # names that the hub may have: near a folder, or with a version behind a dot
    for name in ("gpt2", "Qwen2.5-7B", "owner/model-v1.2", "owner/phi-3.5", "bge.m3"):
        check_model(name)
    check_model(
        "runs/my-model-350"
    )  # a number that differs names another model, which the hub may have
    check_corpus("runs/other")


def test_pictures_and_numbers_are_no_texts(tmp_path):
    with pytest.raises(CorpusError, match="a text column"):
        (tmp_path / "x.jsonl").write_text(json.dumps({"a": 1, "messages": [1, 2]}))
        open_text(str(tmp_path / "x.jsonl"))
