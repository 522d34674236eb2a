"""How a classifier is opened and measured: which corpus, split, seed, length, token and warning reach which step."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anisoscope.axes import POLICIES
from anisoscope.data.encoding import Padding
from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.errors import CorpusError, MeasureError, ModelError, UsageError
from anisoscope.runs import classes, explaining
from anisoscope.runs.job import ClassesOptions

EXAMPLES = tuple(Example((f"w{i}", "v"), i % 3) for i in range(9))
SORTED = tuple(sorted(EXAMPLES, key=lambda example: example.label))
CORPUS = LabelledCorpus(
    "a corpus", ("x", "y", "z"), {"train": EXAMPLES, "test": EXAMPLES[:6]}
)


class Recorder:
    """Functions that note what they are called with, and return what is laid down for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.calls: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}
        self.monkeypatch, self.module = monkeypatch, module

    def put(self, name: str, answer: Any) -> None:
        def call(*given: Any, **how: Any) -> Any:
            self.calls.setdefault(name, []).append((given, how))
            return answer(*given, **how) if callable(answer) else answer

        self.monkeypatch.setattr(self.module, name, call)

    def last(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.calls[name][-1]


# ---- a classifier is measured ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["mean", None])
def test_what_is_asked_of_a_classifier_reaches_each_step(monkeypatch, at):
    calls = Recorder(monkeypatch, classes)
    subject = SimpleNamespace(config="config", model="model", processor="tokenizer")
    calls.put("load_subject", subject)
    calls.put("require_tokenizer", "tokenizer")
    calls.put("choose_text_length", 77)
    calls.put("open_labelled", replace(CORPUS, name="a file"))
    calls.put("_is_trained_on", True)
    calls.put("choose_split", lambda corpus, *_, **__: (corpus, "train", "a remark"))
    calls.put("match_class_order", lambda _, corpus: (corpus, False, ["of classes"]))
    calls.put("_plan_batches", ("plan", ["of padding"]))
    calls.put("_find_readout", (at, "decoder", ["of reading"]))
    calls.put("_choose_panels", ("hidden", "class"))
    calls.put("run", "a run")
    asked = ClassesOptions(
        model="m",
        corpus="named",
        split="validation",
        split_seed=3,
        seed=4,
        limit=50,
        max_length=88,
        few=7,
        at="last",
        batch_tokens=321,
        dtype="float64",
        device="cpu",
        text_column="t",
        label_column="l",
    )
    found = classes.run_classes(asked, "out", corpus_file="place", resume=True)
    assert found == "a run"
    (job,), how = calls.last("load_subject")
    assert how == {"classifier": True}
    assert (job.model, job.dtype, job.batch_tokens) == ("m", "float64", 321)
    assert job.settings.seed == 4
    assert calls.last("choose_text_length")[0] == ("config", "tokenizer", 88)
    (place,), how = calls.last("open_labelled")
    assert place == "place" and how["seed"] == 3 and how["for_training"] is False
    assert how["columns"] == asked.by_role and asked.by_role
    (corpus, split), how = calls.last("choose_split")
    assert (corpus.name, split) == ("named", "validation")
    assert how == {"trained_on": True, "limit": 50}
    (config, corpus), _ = calls.last("match_class_order")
    assert config == "config" and corpus.name == "named"
    (of, _, corpus, chosen, usable), _ = calls.last("_plan_batches")
    assert of is subject and usable is False
    assert (chosen.max_length, chosen.split, chosen.limit) == (77, "train", 50)
    assert calls.last("_find_readout") == (
        ("model", "plan"),
        {"usable": False, "asked": "last"},
    )
    (chosen, model), _ = calls.last("_choose_panels")
    assert (chosen.at, model) == (at, "model")
    (job, output), how = calls.last("run")
    assert output == "out" and how["subject"] is subject and how["resume"] is True
    assert job.corpus == "named" and job.model == "m" and job.dtype == "float64"
    settings = job.settings
    assert settings.panel == ("hidden", "class") and settings.tokens == POLICIES
    assert settings.seed == 4 and settings.at == (at or "first")
    reading = how["reading"]
    assert reading.plan == "plan"
    assert reading.corpus["split"] == "train" and reading.corpus["warnings"] == [
        "a remark",
        "of classes",
        "of padding",
        "of reading",
    ]
    identity = reading.identity
    assert identity["labelled"] == CORPUS.fingerprint and "a corpus" not in str(
        identity
    )
    of_classes = identity["classes"]
    assert not {"device", "device_map", "trust_remote_code"} & of_classes.keys()
    assert of_classes["max_length"] == 77 and of_classes["at"] == at
    assert of_classes["few"] == 7 and of_classes["corpus"] == "named"
    after = reading.more.__self__
    assert (after.subject, after.plan, after.stack) == (subject, "plan", "decoder")
    assert (after.heads, after.tokenizer) == (False, "tokenizer")
    assert after.corpus.name == "named" and after.classes.at == at
    # A model in memory is not loaded again.
    classes.run_classes(asked, subject=subject)
    assert len(calls.calls["load_subject"]) == 1
    assert calls.last("open_labelled")[0] == ("named",)


def test_batches_of_texts_take_the_length_padding_and_classes_of_the_corpus(
    monkeypatch,
):
    calls = Recorder(monkeypatch, classes)
    rows = [{"input_ids": [1, 2]}]
    encoded = SimpleNamespace(rows=rows, truncated=2, labels=[0])
    calls.put("encode", encoded)
    calls.put("check_vocabulary", ["of ids"])
    calls.put("choose_pad", 5)
    calls.put("find_neutral_padding", Padding(5, "none"))
    calls.put("LabelledPlan", lambda *_, **how: how)
    calls.put("list_reading_stacks", "encoder")
    calls.put("resolve_dtype_and_device", SimpleNamespace(device="cuda:1"))
    config = SimpleNamespace(vocab_size=30)
    subject = SimpleNamespace(config=config, model="model", processor="tokenizer")
    asked = ClassesOptions(limit=5, few=2, max_length=9, batch_tokens=123, split="test")

    def plan(usable):
        return classes._plan_batches(subject, "job", CORPUS, asked, usable)

    made, warnings = plan(True)
    assert made == {
        "batch_tokens": 123,
        "stack": "encoder",
        "device": "cuda:1",
        "classes": ("x", "y", "z"),
    }
    assert warnings == [
        "of ids",
        "2 utterances cut at 9 tokens",
        "padding changes what the model says: only utterances of one length are looked at together",
    ]
    (examples, tokenizer, length), _ = calls.last("encode")
    assert len(examples) == 5 and (tokenizer, length) == ("tokenizer", 9)
    (of, ids, special, size), _ = calls.last("check_vocabulary")
    assert (of, ids.tolist(), special, size) == ("tokenizer", [1, 2], [], 30)
    assert calls.last("choose_pad")[0] == ("tokenizer", config, rows)
    assert calls.last("find_neutral_padding")[0] == ("model", rows, 5)
    assert calls.last("LabelledPlan")[0] == (encoded, Padding(5, "none"))
    _, warnings = plan(False)
    assert warnings == ["of ids", "2 utterances cut at 9 tokens"]
    assert len(calls.calls["find_neutral_padding"]) == 1
    assert calls.last("LabelledPlan")[0] == (encoded, Padding(5))
    encoded.truncated = 0
    assert plan(False)[1] == ["of ids"]


@pytest.mark.parametrize(
    ("parts", "at", "attention", "panels"),
    [
        (("directions",), "first", True, ("hidden", "attention", "class")),
        (("directions",), None, False, ("hidden",)),
        (("ablation",), "first", False, ("hidden",)),
    ],
)
def test_panels_of_a_classifier(monkeypatch, parts, at, attention, panels):
    monkeypatch.setattr(classes, "has_attention", lambda _: attention)
    asked = ClassesOptions(parts=parts, at=at)
    assert classes._choose_panels(asked, "model") == panels


def after_pass(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "subject": SimpleNamespace(model="model"),
        "tokenizer": "tokenizer",
        "corpus": CORPUS,
        "plan": SimpleNamespace(
            padding=Padding(5, "left"),
            encoded=SimpleNamespace(labels=[0, 1, 2]),
            stack="decoder",
            stacks=("encoder", "decoder"),
            device="cuda:1",
        ),
        "classes": ClassesOptions(
            split="train", limit=5, few=9, max_length=9, at="first"
        ),
        "heads": True,
        "stack": "encoder",
    }
    return classes._AfterPass(**given | changed)


def test_a_part_that_cannot_be_measured_leaves_the_others(monkeypatch):
    after = after_pass(classes=ClassesOptions(parts=("attribution", "directions")))
    titles: list[Any] = []
    monkeypatch.setattr(
        classes, "set_counted_unit", lambda *given: titles.append(given)
    )
    kind = type(after)

    def fail(_self: Any, notes: list[str], **how: Any) -> Any:
        notes.append(f"noted {sorted(how)}")
        raise MeasureError("a thing", "none", "do it")

    monkeypatch.setattr(kind, "_measure_attribution", fail)
    frame = classes.as_records(pd.DataFrame({"metric": ["a"]}))
    monkeypatch.setattr(
        kind, "_measure_directions", lambda *_, **__: [frame, frame[:0], frame]
    )
    records, warnings = after.records("progress")
    assert len(records) == 2 and warnings == [
        "noted ['progress']",
        "attribution left out: expected a thing; got none. Cure: do it",
    ]
    assert titles == [
        ("progress", "passes", "words explained"),
        ("progress", "passes", "directions of classes"),
    ]
    monkeypatch.setattr(kind, "_measure_directions", lambda *_, **__: [])
    records, _ = after.records(None)
    assert len(records) == 0 and "metric" in records


def test_directions_of_classes_are_of_the_vectors_at_the_token_that_is_read(
    monkeypatch,
):
    calls = Recorder(monkeypatch, classes)
    calls.put("pool_vectors", "states")
    calls.put("make_separability_records", "separability")
    calls.put("predict_classes", [0, 1, 1])
    calls.put("make_accuracy_records", "accuracy")
    calls.put("has_attention", True)
    calls.put("find_stack", "encoder")
    values = {"row.2": np.array([1.0, 3.0]), "row": np.zeros(2), "row.7": np.ones(2)}
    calls.put("measure_entropies", values)
    after, notes = after_pass(), []
    found = after._measure_directions(notes)
    assert found == ["separability", "accuracy"] and notes == [
        "H of the first token left out: the model wants padding before it"
    ]
    plan = after.plan
    assert calls.last("pool_vectors")[0] == ("model", plan, "first", "encoder")
    (states, labels, names), how = calls.last("make_separability_records")
    assert (states, labels.tolist(), names) == ("states", [0, 1, 2], ("x", "y", "z"))
    assert how == {"stack": "encoder"}
    assert calls.last("predict_classes")[0] == ("model", plan.encoded, plan.padding)
    (predicted, labels, names), _ = calls.last("make_accuracy_records")
    assert (predicted.tolist(), labels.tolist()) == ([0, 1, 1], [0, 1, 2])
    assert names == ("x", "y", "z")
    plan.padding = Padding(5, "right")
    *_, rows = after._measure_directions([])
    columns = ["metric", "stack", "layer", "component", "value", "n_units"]
    assert rows[columns].values.tolist() == [
        ["cls_entropy", "decoder", 2, "row", 2.0, 2],
        ["cls_entropy", "decoder", 7, "row", 1.0, 2],
    ]
    # Only of an encoder whose first token represents the text.
    for changed in ({"find_stack": "decoder"}, {"has_attention": False}):
        for name, answer in changed.items():
            calls.put(name, answer)
        assert after._measure_directions([]) == ["separability", "accuracy"]
        calls.put("find_stack", "encoder")
        calls.put("has_attention", True)
    last = after_pass(classes=ClassesOptions(at="last"), heads=False)
    last.plan.padding = Padding(5, "right")
    assert last._measure_directions([]) == ["separability"]
    none = after_pass(classes=ClassesOptions(at=None))
    assert none._measure_directions([]) == ["accuracy"]


def test_slow_parts_read_few_texts_of_the_chosen_split(monkeypatch):
    calls = Recorder(monkeypatch, classes)
    calls.put("encode", "few")
    calls.put("LabelledPlan", lambda *given, **how: (given, how))
    calls.put("measure_ablations", "ablation")
    calls.put("measure_explanations", "explanations")
    after = after_pass()
    assert after._measure_ablation([], progress="p") == ["ablation"]
    (examples, tokenizer, length), _ = calls.last("encode")
    assert len(examples) == 5 and (tokenizer, length) == ("tokenizer", 9)
    (model, plan), how = calls.last("measure_ablations")
    assert (model, how) == ("model", {"progress": "p"})
    assert plan == (
        ("few", Padding(5, "left")),
        {"stack": ("encoder", "decoder"), "device": "cuda:1"},
    )
    notes: list[str] = []
    assert after._measure_attribution(notes, progress="p") == ["explanations"]
    given, how = calls.last("measure_explanations")
    assert given == ("model", "tokenizer", CORPUS) and how.pop("notes") is notes
    assert how == {
        "progress": "p",
        "padding": Padding(5, "left"),
        "stack": ("encoder", "decoder"),
        "split": "train",
        "limit": 5,
        "max_length": 9,
    }
    headless = after_pass(heads=False)
    assert headless._measure_ablation([]) == headless._measure_attribution([]) == []
    assert after_pass(classes=ClassesOptions(few=9, limit=5))._few == 5
    whole = replace(CORPUS, splits={"all": EXAMPLES})
    of_all = ClassesOptions(few=9, limit=8, split="all")
    assert after_pass(corpus=whole, classes=of_all)._few == 4
    of_all = replace(of_all, few=3)
    assert after_pass(corpus=whole, classes=of_all)._few == 3


@pytest.mark.parametrize("stack", ["decoder", "encoder"])
def test_the_token_that_represents_a_text(monkeypatch, stack):
    usual = "last" if stack == "decoder" else "first"
    monkeypatch.setattr(classes, "find_stack", lambda _: stack)
    plan = ["first batch", "second"]
    plan = type("Plan", (list,), {"stack": "of plan"})(plan)

    def find(reading: Any, usable: bool = True, asked: Any = None) -> Any:
        def read(model: Any, batch: Any) -> Any:
            assert (model, batch) == ("model", "first batch")
            if isinstance(reading, Exception):
                raise reading
            return reading

        monkeypatch.setattr(classes, "read_tokens", read)
        return classes._find_readout("model", plan, usable=usable, asked=asked)

    assert find(None, usable=False) == (usual, "of plan", [])
    assert find(None, usable=False, asked="mean") == ("mean", "of plan", [])
    why = MeasureError("a thing", "none")
    note = "which tokens the head reads is not known: expected a thing; got none"
    assert find(why) == (usual, "of plan", [note])
    assert find(why, asked="max") == ("max", "of plan", [note])
    seen = SimpleNamespace(at="mean", stack="of head")
    assert find(seen) == ("mean", "of head", [])
    assert find(seen, asked="last") == ("last", "of head", [])
    seen.at = None
    assert find(seen, asked="last") == ("last", "of head", [])
    assert find(seen) == (None, "of head", [
        "the head reads neither the first token nor the last, nor the mean or maximum of all: directions of classes "
        "left out (--at chooses a token); maps are those of the tokens that it reads"
    ])  # fmt: skip


def test_the_stacks_that_read_a_text(monkeypatch):
    monkeypatch.setattr(classes, "find_stack", lambda _: "decoder")
    both = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=True))
    assert classes.list_reading_stacks(both) == ("encoder", "decoder")
    assert classes.list_reading_stacks(SimpleNamespace()) == "decoder"


# ---- what a training says --------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path):
    """A model's folder with the recipe of its training."""
    recipe = {
        "corpus": str(tmp_path / "table.csv"),
        "split_seed": 6,
        "columns": {"text": "t", "label": "l"},
    }
    written = {"recipe": recipe, "max_length": 40}
    (tmp_path / "training.json").write_text(json.dumps(written))
    return tmp_path


def test_a_training_gives_what_was_not_asked_for(trained, monkeypatch):
    fill, corpus = classes.fill_from_training, str(trained / "table.csv")

    def asked(**given: Any) -> ClassesOptions:
        return ClassesOptions(model=str(trained), **given)

    found = fill(asked())
    assert (found.corpus, found.split_seed, found.max_length) == (corpus, 6, 40)
    assert found.by_role == {"text": "t", "label": "l"}
    found = fill(asked(text_column="mine", max_length=9))
    assert found.by_role == {"text": "mine", "label": "l"} and found.max_length == 9
    monkeypatch.chdir(trained)
    (trained / "sub").mkdir()
    # The same file by another path is the same corpus, with the division of the training.
    for name in (corpus, "table.csv", "./sub/../table.csv"):
        assert fill(asked(corpus=name)).split_seed == 6
        assert fill(asked(corpus=name, split_seed=2)).split_seed == 2
        assert classes._is_trained_on(asked(corpus=name, split_seed=6))
        assert not classes._is_trained_on(asked(corpus=name))
    other = fill(asked(corpus="other"))
    assert (other.split_seed, other.max_length) == (0, 40)
    assert not classes._is_trained_on(asked(corpus="other", split_seed=6))
    with pytest.raises(UsageError) as caught:
        fill(ClassesOptions(model=str(trained / "sub")))
    assert str(caught.value) == (
        "expected --corpus; got none. Cure: name one that has labels: see anisoscope list corpora"
    )


# ---- tokenizers, padding and classes ---------------------------------------------------------------------------------


def test_only_text_models_with_fast_tokenizers_are_classifiers_of_texts():
    def subject(modality: str = "text", **tokenizer: Any) -> Any:
        own = SimpleNamespace(**{"tokenize": 1, "is_fast": True} | tokenizer)
        return SimpleNamespace(name="m", modality=modality, processor=own)

    good = subject()
    assert classes.require_tokenizer(good) is good.processor
    bare = SimpleNamespace(
        name="m", modality="text", processor=SimpleNamespace(is_fast=True)
    )
    for bad in (subject("image"), subject(is_fast=False), bare):
        with pytest.raises(ModelError) as caught:
            classes.require_tokenizer(bad)
        assert str(caught.value) == (
            f"expected a text model with a fast tokenizer; got m ({bad.modality}, SimpleNamespace). "
            "Cure: name an encoder or decoder of text"
        )


@pytest.mark.parametrize(
    ("own", "tokenizer", "size", "used", "chosen"),
    [
        (0, {}, 9, [0], 0),
        (-1, {"pad_token_id": 4, "eos_token_id": 2}, 9, [1], 4),
        (None, {"pad_token_id": 4, "eos_token_id": 2}, 9, [4], 2),
        (None, {"pad_token_id": 9, "eos_token_id": 8}, 9, [4], 8),
        (None, {"pad_token_id": None, "eos_token_id": 2}, 9, [2, 0], 1),
        (None, {}, 2, [0, 1], 0),
        (None, {}, None, [5], 0),
    ],
)
def test_the_token_of_padding(own, tokenizer, size, used, chosen):
    inner = SimpleNamespace(pad_token_id=own, vocab_size=size)
    outer = SimpleNamespace(get_text_config=lambda: inner, pad_token_id=own)
    rows = [{"input_ids": [7]}, {"input_ids": used}]
    assert classes.choose_pad(SimpleNamespace(**tokenizer), outer, rows) == chosen
    if own != chosen:
        assert outer.pad_token_id == inner.pad_token_id == chosen
    plain = SimpleNamespace(pad_token_id=own, vocab_size=size)
    assert classes.choose_pad(SimpleNamespace(**tokenizer), plain, rows) == chosen


def test_examples_are_balanced_over_all_classes_of_the_chosen_split():
    asked = ClassesOptions(split="test")
    of_sorted = replace(CORPUS, splits={"train": EXAMPLES, "test": SORTED})
    found = classes._take_examples(of_sorted, asked, 3)
    assert [example.label for example in found] == [0, 1, 2]
    with pytest.raises(CorpusError) as caught:
        classes._take_examples(CORPUS, replace(asked, split="tset"), 3)
    assert str(caught.value) == (
        "expected a split among train, test; got 'tset' of a corpus. Cure: did you mean test?"
    )


def test_classes_are_matched_by_name_whatever_their_case(monkeypatch):
    monkeypatch.setattr(classes, "is_classifier", lambda config: config is not None)

    def match(*names: str) -> Any:
        config = SimpleNamespace(id2label=dict(enumerate(names)), num_labels=len(names))
        return classes.match_class_order(config, CORPUS)

    corpus, usable, notes = match("Z", "x", "Y")
    assert usable and notes == [] and corpus.labels == ("z", "x", "y")
    labels = [example.label for example in corpus.splits["train"][:3]]
    assert labels == [1, 2, 0]
    assert corpus.splits["train"][0] is corpus.splits["test"][0]
    assert match("LABEL_0", "LABEL_1", "LABEL_2") == (
        CORPUS, True, ["the model's classes have no names: taken as x, y, z, in this order"]
    )  # fmt: skip
    assert match("LABEL_0", "LABEL_1", "LABEL_B")[1:] == (
        False,
        ["the model's classes (LABEL_0, LABEL_1, LABEL_B) are not called as the corpus' (x, y, z): "
         "its head is not used"],
    )  # fmt: skip
    assert match("x", "y")[1:] == (
        False, ["the model tells 2 classes (x, y), the corpus 3: its head is not used"]
    )  # fmt: skip
    assert classes.match_class_order(None, CORPUS) == (
        CORPUS, False, ["the model has no head for classes: no accuracy, nothing replaced or explained"]
    )  # fmt: skip


# ---- a classifier is opened to explain texts -------------------------------------------------------------------------


@pytest.mark.parametrize("has_corpus", [True, False])
def test_a_classifier_is_opened_with_the_corpus_of_its_directions(
    monkeypatch, has_corpus
):
    calls = Recorder(monkeypatch, explaining)
    config = SimpleNamespace(id2label={0: "LABEL_0", 1: "b", 2: "c"}, num_labels=3)
    subject = SimpleNamespace(name="m", config=config, model="model", processor="t")
    calls.put("read_training", {})
    filled = ClassesOptions(model="m", corpus="filled", split_seed=5, seed=4, max_length=9,
                            text_column="t", dtype="float64")  # fmt: skip
    calls.put("fill_from_training", filled)
    calls.put("load_subject", subject)
    calls.put("is_classifier", True)
    calls.put("require_tokenizer", "tokenizer")
    calls.put("list_reading_stacks", "decoder")
    calls.put("choose_text_length", 8)
    calls.put("open_labelled", CORPUS)
    calls.put("match_class_order", (CORPUS, True, ["noted"]))
    calls.put("encode", lambda examples, *_: SimpleNamespace(rows=list(examples)))
    calls.put("choose_pad", 3)
    calls.put("find_neutral_padding", Padding(3, "left"))
    calls.put("Classifier", lambda *given: Opened(given))
    calls.put("replace", lambda opened, directions: (opened.given, directions))
    calls.put("resolve_dtype_and_device", SimpleNamespace(device="cuda:1"))
    calls.put("LabelledPlan", lambda *given, **how: ("plan", given[1], how))
    calls.put("measure_class_directions", "directions")

    class Opened:
        def __init__(self, given: Any) -> None:
            self.given = given

    if not has_corpus:
        opened, notes = explaining.open_classifier(
            ClassesOptions(model="m", max_length=9)
        )
        assert notes == [] and "fill_from_training" not in calls.calls
        assert opened.given[2] == ("LABEL_0", "b", "c")
        (rows, *_), _ = calls.calls["encode"][0]
        assert [example.words for example in rows] == list(explaining.TRIAL)
        return
    asked = ClassesOptions(model="m", corpus="named")
    calls.monkeypatch.setattr(explaining, "DIRECTED", 3)
    of_sorted = replace(CORPUS, splits={"train": SORTED, "test": EXAMPLES})
    calls.put("match_class_order", (of_sorted, True, ["noted"]))
    (given, directions), notes = explaining.open_classifier(asked, corpus_file="place")
    assert notes == ["noted"] and directions == "directions"
    assert given == ("model", "tokenizer", ("LABEL_0", "b", "c"), 8, Padding(3, "left"), "decoder")  # fmt: skip
    assert calls.last("choose_text_length")[0] == (config, "tokenizer", 9)
    (place,), how = calls.last("open_labelled")
    assert place == "place" and how == {
        "columns": filled.by_role,
        "seed": 5,
        "limit": 3,
        "for_training": False,
    }
    (job,), how = calls.last("load_subject")
    assert (job.model, job.dtype, how) == ("m", "float64", {"classifier": True})
    examples, tokenizer, length = calls.calls["encode"][0][0]
    assert [example.label for example in examples] == [0, 1, 2]
    assert (tokenizer, length) == ("tokenizer", 8)
    assert calls.last("choose_pad")[0] == ("tokenizer", config, list(examples))
    assert calls.last("find_neutral_padding")[0] == ("model", list(examples), 3)
    plan = ("plan", Padding(3, "left"), {"stack": "decoder", "device": "cuda:1"})
    assert calls.last("measure_class_directions")[0] == ("model", plan, 3)
    explaining.open_classifier(asked, subject)
    assert len(calls.calls["load_subject"]) == 1
    assert calls.last("open_labelled")[0] == ("filled",)
    # A corpus of the training is enough, and is filled in.
    calls.put("read_training", {"recipe": {"corpus": "x"}})
    explaining.open_classifier(ClassesOptions(model="m"), subject)
    assert len(calls.calls["fill_from_training"]) == 3
    # A corpus of other classes gives no directions, and its note stays.
    calls.put("match_class_order", (CORPUS, False, ["other classes"]))
    opened, notes = explaining.open_classifier(asked, subject)
    assert isinstance(opened, Opened) and notes == ["other classes"]


def test_names_of_classes_are_the_model_s_own_if_it_has_any():
    def name(corpus: Any, *names: str) -> Any:
        config = SimpleNamespace(id2label=dict(enumerate(names)), num_labels=len(names))
        return explaining._name_classes(config, corpus)

    assert name(CORPUS, "a", "b", "c") == ("a", "b", "c")
    assert name(CORPUS, "LABEL_0", "LABEL_1", "LABEL_2") == ("x", "y", "z")
    assert name(CORPUS, "LABEL_0", "b", "LABEL_2") == ("LABEL_0", "b", "LABEL_2")
    assert name(None, "LABEL_0", "LABEL_1") == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("architectures", "got"),
    [
        (["BertForTokenClassification"], "which names a class for each token"),
        (["BertModel"], "which has no head for classes"),
        (None, "which has no head for classes"),
    ],
)
def test_a_model_without_classes_of_texts_is_refused(monkeypatch, architectures, got):
    config = SimpleNamespace(architectures=architectures)
    subject = SimpleNamespace(name="m", config=config)
    monkeypatch.setattr(explaining, "is_classifier", lambda _: False)
    monkeypatch.setattr(explaining, "read_training", lambda _: {})
    with pytest.raises(ModelError) as caught:
        explaining.open_classifier(ClassesOptions(model="m"), subject)
    assert str(caught.value) == (
        f"expected a classifier of texts; got m, {got}. Cure: name one that was fine-tuned on texts"
    )
