"""One text explained: word by word, in Python and on the command line."""

import json
import re
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from test_class_maps import WIDE, build, texts, widen
from tokenizers.processors import TemplateProcessing
from typed import invoke

import anisoscope
from anisoscope.classes import sentence
from anisoscope.classes.faithfulness import DIRECTED
from anisoscope.data.encoding import Padding, build_tokenizer
from anisoscope.data.labelled import LabelledCorpus
from anisoscope.data.opening import open_labelled
from anisoscope.errors import MeasureError, ModelError, UsageError
from anisoscope.runs import explaining
from anisoscope.runs.job import ClassesOptions

NAMES = {
    "id2label": {0: "class 1", 1: "class 2"},
    "label2id": {"class 1": 0, "class 2": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random BERT for the two synthetic classes, and its tokenizer."""
    path = tmp_path_factory.mktemp("bert")
    tokenizer = build_tokenizer(open_labelled("synthetic"), max_length=40)
    torch.manual_seed(0)
    settings = WIDE | {"vocab_size": len(tokenizer), **NAMES}
    del settings["num_labels"]
    widen(
        transformers.BertForSequenceClassification(
            transformers.BertConfig(**settings)
        ).eval()
    ).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def classifier(folder):
    opened, notes = explaining.open_classifier(
        ClassesOptions(str(folder), corpus="synthetic")
    )
    assert notes == [] and opened.names == ("class 1", "class 2")
    return opened


def test_a_classifier_is_opened_on_the_columns_the_division_and_the_length_that_are_asked_for(
    folder, monkeypatch
):
    """Directions of other examples, or of texts cut elsewhere, would be other directions."""
    asked, real = [], explaining.open_labelled
    corpus = real("synthetic", limit=30)
    monkeypatch.setattr(
        explaining,
        "open_labelled",
        lambda place, **how: asked.append((place, how)) or corpus,
    )
    options = {
        "text_column": "t",
        "label_column": "l",
        "split_seed": 3,
        "max_length": 9,
    }
    opened, _ = explaining.open_classifier(
        ClassesOptions(str(folder), corpus="synthetic", **options)
    )
    where = {
        "columns": {"text": "t", "label": "l"},
        "seed": 3,
        "limit": DIRECTED,
        "for_training": False,
    }
    assert asked == [("synthetic", where)]
    assert opened.max_length == 9
    longer, _ = explaining.open_classifier(
        ClassesOptions(str(folder), corpus="synthetic"), corpus_file="elsewhere"
    )
    assert longer.max_length == 40 and asked[1][0] == "elsewhere"
    assert opened.directions.keys() == longer.directions.keys()
    for space, of_layers in opened.directions.items():
        assert not np.allclose(of_layers[-1], longer.directions[space][-1])


def test_classes_have_the_model_s_own_names_if_it_has_any():
    corpus = LabelledCorpus("c", ("x", "y"), {})
    named, nameless = (
        {"id2label": dict(enumerate(names)), "num_labels": 2}
        for names in ("ab", ("LABEL_0", "LABEL_1"))
    )
    for config, expected in ((named, ("a", "b")), (nameless, ("x", "y"))):
        assert explaining._name_classes(SimpleNamespace(**config), corpus) == expected
    assert explaining._name_classes(SimpleNamespace(**nameless), None) == (
        "LABEL_0",
        "LABEL_1",
    )


def text_of(count=12, start=0):
    return " ".join(open_labelled("synthetic").splits["test"][start].words * 3).split()[
        :count
    ]


def test_each_number_of_a_text_is_its_definition(classifier):
    words = text_of()
    found = sentence.explain(classifier, " ".join(words))
    model, tokenizer = classifier.model, classifier.tokenizer

    def probabilities(kept):
        with torch.no_grad():
            given = tokenizer(" ".join(kept), return_tensors="pt")
            return model(**given).logits.double().softmax(-1)[0]

    whole = probabilities(words)
    label = int(whole.argmax())
    assert found.found == classifier.names[
        label
    ] and found.probability == pytest.approx(float(whole[label]), abs=1e-6)
    falls = [
        float(whole[label] - probabilities(words[:i] + words[i + 1 :])[label])
        for i in range(len(words))
    ]
    np.testing.assert_allclose(found.words["erasure"], falls, atol=1e-6)
    given = tokenizer(" ".join(words), return_tensors="pt")
    embedded = (
        model.get_input_embeddings()(given.pop("input_ids")).detach().requires_grad_()
    )
    logits = model(inputs_embeds=embedded, **given).logits[0]
    (gradient,) = torch.autograd.grad(logits[label] - logits[1 - label], embedded)
    expected = (
        (gradient * embedded).sum(-1)[0, 1:].detach().numpy()
    )  # one token a word, behind <cls>
    np.testing.assert_allclose(found.words["gradient × input"], expected, atol=1e-5)
    first = np.argsort(-found.words["erasure"].to_numpy(), kind="stable")
    comprehensive, sufficient = [], []
    for share in (0.01, 0.05, 0.1, 0.2, 0.5):
        top = set(first[: max(1, round(share * len(words)))].tolist())
        comprehensive.append(
            float(
                whole[label]
                - probabilities([w for i, w in enumerate(words) if i not in top])[label]
            )
        )
        sufficient.append(
            float(
                whole[label]
                - probabilities([w for i, w in enumerate(words) if i in top])[label]
            )
        )
    row = found.erasures.set_index("attribution").loc["erasure"]
    assert row["comprehensiveness"] == pytest.approx(np.mean(comprehensive), abs=1e-6)
    assert row["sufficiency"] == pytest.approx(np.mean(sufficient), abs=1e-6)
    assert row["comprehensiveness_low"] <= row["comprehensiveness_high"]
    assert (
        list(found.words.columns) == ["word", *sentence.OF_WORDS] and found.layer == 2
    )
    assert np.allclose(np.diag(found.agreement), 1)


@pytest.mark.parametrize(
    ("weights", "beyond"), [([9, 4, 3, 2, 1, 1, 1, 1, 1, 1], True), ([1] * 10, False)]
)
def test_an_attribution_is_beyond_chance_if_no_random_order_takes_more(weights, beyond):
    """Of ten words, one decides, or all are alike: then the first words of any order take the same."""
    weights = np.array(weights, dtype=float)
    erased = object.__new__(sentence._ErasedTexts)
    erased.count, erased.whole = len(weights), float(weights.sum())
    erased.predict = lambda kept: np.array([weights[each].sum() for each in kept])
    scores = {
        "by weight": weights,
        "of no order": np.array([3, 9, 1, 7, 5, 10, 2, 8, 4, 6.0]),
        "against it": -weights,
    }
    by_weight, of_no_order, against = erased.measure_shares(scores).to_dict("records")
    assert by_weight["beyond_chance"] == beyond
    assert not of_no_order["beyond_chance"] and not against["beyond_chance"]
    assert by_weight["comprehensiveness_low"] <= against["comprehensiveness_high"]
    if beyond:
        assert (
            by_weight["comprehensiveness"]
            > by_weight["comprehensiveness_high"]
            > against["comprehensiveness"]
        )


def test_a_long_text_is_cut_between_words_and_its_class_is_that_of_the_mean(classifier):
    from dataclasses import replace

    words = [*text_of(12), *text_of(12, start=1)]
    short = replace(classifier, max_length=9)
    windows = sentence.cut_into_windows(words, classifier.tokenizer, 9)
    assert [word for window in windows for word in window] == words and {
        len(w) for w in windows
    } == {8}
    found = sentence.explain(short, " ".join(words))
    of_windows = []
    with torch.no_grad():
        for window in windows:
            given = classifier.tokenizer(" ".join(window), return_tensors="pt")
            of_windows.append(classifier.model(**given).logits.softmax(-1)[0].numpy())
    assert found.windows == 3 and found.probability == pytest.approx(
        float(np.mean(of_windows, axis=0).max()), abs=1e-6
    )
    assert list(found.words["word"]) == words and found.words.notna().all().all()


def test_a_sentence_takes_less_than_a_second(classifier):
    text = " ".join(text_of(20))
    started = time.process_time()
    sentence.explain(classifier, text)
    assert time.process_time() - started < 1


def test_a_text_without_blanks_is_explained_by_its_tokens(classifier):
    """A formula is one word: taken whole, every attribution would say the same of it."""
    from dataclasses import replace

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"c(=)o"]
    tokenizer = transformers.BertTokenizerFast(
        vocab={word: i for i, word in enumerate(vocabulary)}
    )

    found = sentence.explain(replace(classifier, tokenizer=tokenizer), "c(=o)o")
    assert list(found.words["word"]) == ["c", "(", "=", "o", ")", "o"]
    assert found.words["erasure"].nunique() > 2 and "no blanks" in found.notes[0]


def test_a_text_without_words_is_refused(classifier):
    with pytest.raises(UsageError, match="a text with words"):
        sentence.explain(classifier, "  ")


def test_a_run_explains_and_another_kind_of_run_does_not(folder, tmp_path):
    text = " ".join(text_of())
    options = {"limit": 20, "few": 4, "parts": ("directions",), "quiet": True}
    run = anisoscope.classes(folder, "synthetic", **options)
    found = run.explain(text)
    assert "class" in found._repr_html_() and "background" in found._repr_html_()
    kept = anisoscope.classes(folder, "synthetic", output=tmp_path / "run", **options)
    again = anisoscope.Run(kept.folder).explain(text)
    np.testing.assert_allclose(again.words["erasure"], found.words["erasure"])
    vectors = anisoscope.measure(
        np.random.default_rng(0).normal(size=(30, 4)), quiet=True
    )
    with pytest.raises(UsageError, match="a run of anisoscope"):
        vectors.explain(text)


def test_a_run_explains_a_list_and_a_column_of_texts(folder):
    many = [" ".join(text_of()), " ".join(text_of(start=1))]
    run = anisoscope.classes(
        folder, "synthetic", limit=20, few=4, parts=("directions",), quiet=True
    )
    found = run.explain(many)
    assert [one.words["word"].tolist() for one in found] == [
        text.split() for text in many
    ]
    np.testing.assert_array_equal(
        found[1].words["erasure"], run.explain(many[1]).words["erasure"]
    )
    table = pd.DataFrame({"text": many, "number": [1, 2]})
    assert [one.found for one in run.explain(table["text"])] == [
        one.found for one in found
    ]
    with pytest.raises(UsageError, match="choose a column"):
        run.explain(table)
    with pytest.raises(UsageError, match="nan at index 1"):
        run.explain([many[0], float("nan")])


def test_the_command_explains_one_text(folder):
    text = " ".join(text_of())
    result = invoke(["classes", str(folder), "--text", text, "-c", "synthetic", "-q"])
    assert result.exit_code == 0, result.output
    for part in (
        "Its probability falls most without",
        "gradient × input",
        "comprehensiveness",
        "rank correlation",
    ):
        assert part in result.output
    alone = invoke(["classes", str(folder), "--text", text, "-q"])
    assert alone.exit_code == 0 and "it needs the directions of classes" in " ".join(
        alone.output.split()
    )
    refused = invoke(["classes", "builtin:minilm", "--text", text, "-q"])
    assert refused.exit_code == ModelError.exit_code and "no head for classes" in str(
        refused.exception
    )


def test_what_is_known_of_the_classifier_is_said_beside_its_answer(folder, tmp_path):
    """Classes without names are called as the corpus calls them: whoever reads them must know."""
    shutil.copytree(folder, tmp_path / "nameless")
    config = json.loads((tmp_path / "nameless/config.json").read_text())
    config |= {
        "id2label": {0: "LABEL_0", 1: "LABEL_1"},
        "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    }
    (tmp_path / "nameless/config.json").write_text(json.dumps(config))
    result = invoke(
        [
            "classes",
            str(tmp_path / "nameless"),
            "--text",
            " ".join(text_of()),
            "-c",
            "synthetic",
            "-q",
        ]
    )
    assert result.exit_code == 0, result.output
    told = "the model's classes have no names: taken as class 1, class 2"
    assert told in " ".join(result.output.split())
    options = {"limit": 20, "few": 4, "parts": ("directions",), "quiet": True}
    run = anisoscope.classes(tmp_path / "nameless", "synthetic", **options)
    assert any(told in note for note in run.explain(" ".join(text_of())).notes)


class Words:
    """One token a word: its number."""

    def __call__(self, texts_, _second=None, **_options):
        rows = [[*map(int, text.split()), 2] for text in texts_]
        spans = []
        for text in texts_:
            starts = np.cumsum([0, *(len(w) + 1 for w in text.split())])
            spans.append(
                [
                    *(
                        (int(s), int(s) + len(w))
                        for s, w in zip(starts, text.split(), strict=False)
                    ),
                    (0, 0),
                ]
            )
        numbers = [[*[0] * (len(row) - 1), None] for row in rows]
        given = {"input_ids": rows, "offset_mapping": spans}
        return type("Encoding", (dict,), {"sequence_ids": lambda _self, i: numbers[i]})(
            given
        )


def test_gradient_times_input_is_of_the_class_less_the_mean_of_all_others():
    """Of three classes; of two the mean of the others is the other."""
    model, row = build("bert"), texts()[0]["input_ids"]
    opened = sentence.Classifier(model, Words(), ("a", "b", "c"), 40, Padding(0))
    found = sentence.explain(opened, " ".join(map(str, row)))
    label = opened.names.index(found.found)
    ids = torch.tensor([[*row, 2]])
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=embedded).logits[0]
    contrast = 1.5 * logits[label] - logits.sum() / 2
    (gradient,) = torch.autograd.grad(contrast, embedded)
    expected = (gradient * embedded).sum(-1)[0, :-1].detach().numpy()
    np.testing.assert_allclose(found.words["gradient × input"], expected, atol=1e-9)


def test_what_is_not_shown_is_left_out_and_told():
    """BART's decoder reads the words too, so that their embeddings are not the only way to the logits."""
    stack = ("encoder", "decoder")
    opened = sentence.Classifier(
        build("bart"), Words(), ("a", "b", "c"), 40, Padding(0), stack
    )
    found = sentence.explain(opened, " ".join(map(str, texts()[0]["input_ids"])))
    assert list(found.words.columns) == ["word", "attention", "erasure"]
    assert any("gradient × input left out" in note for note in found.notes)


def with_end(tokenizer):
    """The tokenizer of the synthetic words, with the mark of the end that an encoder-decoder's head looks for."""
    tokenizer.add_special_tokens({"eos_token": "</s>"})
    end = tokenizer.eos_token_id
    template = TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", end)]
    )
    tokenizer.backend_tokenizer.post_processor = template
    return tokenizer, end


def classifier_of_kind(kind, folder):
    """A tiny random classifier of the two synthetic classes, saved with its tokenizer; `kind`: its architecture."""
    tokenizer = build_tokenizer(open_labelled("synthetic"), max_length=40)
    small = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 32,
        "intermediate_size": 32,
    }
    if kind in ("bart", "t5"):
        tokenizer, end = with_end(tokenizer)
    sized = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        **NAMES,
    }
    torch.manual_seed(0)
    if kind == "bart":
        sides = {
            f"{s}_{n}": 2
            for s in ("encoder", "decoder")
            for n in ("layers", "attention_heads")
        }
        sides |= {
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "d_model": 32,
            "max_position_embeddings": 64,
        }
        ends = {"eos_token_id": end, "bos_token_id": 0, "decoder_start_token_id": end}
        model = transformers.BartForSequenceClassification(
            transformers.BartConfig(**sized, **sides, **ends)
        )
    elif kind == "t5":
        ends = {"eos_token_id": end, "decoder_start_token_id": tokenizer.pad_token_id}
        sides = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        model = transformers.T5ForSequenceClassification(
            transformers.T5Config(**sized, **sides, **ends)
        )
    elif kind == "gpt2":
        inner = {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 2,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        model = transformers.GPT2ForSequenceClassification(
            transformers.GPT2Config(**sized, **inner)
        )
    elif kind == "llama":
        model = transformers.LlamaForSequenceClassification(
            transformers.LlamaConfig(**sized | small)
        )
    elif kind == "tokens":
        model = transformers.BertForTokenClassification(
            transformers.BertConfig(**sized | small)
        )
    else:
        model = transformers.BertForSequenceClassification(
            transformers.BertConfig(**sized | small)
        )
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("bart", ["attention", "value, contrast", "erasure"]),
        ("t5", ["attention", "value, contrast", "erasure"]),
        ("gpt2", list(sentence.OF_WORDS)),
        ("llama", list(sentence.OF_WORDS)),
    ],
)
def test_decoders_and_encoder_decoders_are_explained(kind, shown, tmp_path):
    from anisoscope.runs.explaining import open_classifier
    from anisoscope.runs.job import ClassesOptions

    text = text_of()
    folder = classifier_of_kind(kind, tmp_path)
    opened, _ = open_classifier(ClassesOptions(str(folder), corpus="synthetic"))
    found = sentence.explain(opened, " ".join(text))
    assert (
        list(found.words.columns) == ["word", *shown]
        and found.words.notna().all().all()
    )
    with torch.no_grad():
        whole = opened.model(
            **opened.tokenizer(" ".join(text), return_tensors="pt")
        ).logits.softmax(-1)[0]
    assert found.probability == pytest.approx(float(whole.max()), abs=1e-5)


def test_a_tokenizer_that_sets_no_mark_of_the_end_is_named(tmp_path):
    """T5 reads the last mark of the end, and raises a bare error if a text has none."""
    from anisoscope.runs.explaining import open_classifier
    from anisoscope.runs.job import ClassesOptions

    folder = classifier_of_kind("t5", tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A", pair="$A $B", special_tokens=[]
    )
    tokenizer.save_pretrained(folder)
    with pytest.raises(
        MeasureError,
        match=r"texts that T5ForSequenceClassification can read.*Cure: give it the token",
    ):
        open_classifier(ClassesOptions(str(folder), corpus="synthetic"))


def test_a_folder_of_an_adapter_is_explained_with_its_base(tmp_path):
    """LoRA saves only what it adds; what it adds must count."""
    peft = pytest.importorskip("peft")
    from anisoscope.runs.explaining import open_classifier
    from anisoscope.runs.job import ClassesOptions

    base = classifier_of_kind("bert", tmp_path / "base")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    adapted = peft.get_peft_model(
        loaded,
        peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]),
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    adapted.eval().save_pretrained(tmp_path / "adapter")
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.save_pretrained(tmp_path / "adapter")
    opened, _ = open_classifier(
        ClassesOptions(str(tmp_path / "adapter"), corpus="synthetic")
    )
    text = " ".join(text_of())
    found = sentence.explain(opened, text)
    with torch.no_grad():
        own = adapted(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
        without = transformers.AutoModelForSequenceClassification.from_pretrained(
            base
        ).eval()
        bare = without(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
    assert found.probability == pytest.approx(float(own.max()), abs=1e-5)
    assert abs(float(bare.max()) - float(own.max())) > 1e-4
    assert list(found.words.columns) == ["word", *sentence.OF_WORDS]


def test_a_classifier_of_tokens_is_refused_with_the_reason(tmp_path):
    """It was said to have no head for classes; it has one, for each token."""
    from anisoscope.runs.explaining import open_classifier
    from anisoscope.runs.job import ClassesOptions

    with pytest.raises(ModelError, match="names a class for each token"):
        open_classifier(
            ClassesOptions(
                str(classifier_of_kind("tokens", tmp_path)), corpus="synthetic"
            )
        )


@pytest.fixture(scope="module")
def in_memory(folder):
    """The model and the tokenizer of `folder`, in training mode, and labelled texts in a table."""
    model = transformers.BertForSequenceClassification.from_pretrained(folder).train()
    examples = open_labelled("synthetic").splits["test"][:40]
    table = pd.DataFrame(
        {
            "text": [" ".join(e.words) for e in examples],
            "label": [f"class {e.label + 1}" for e in examples],
        }
    )
    return model, transformers.AutoTokenizer.from_pretrained(folder), table


def test_a_classifier_in_memory_is_measured_as_its_folder_is(
    folder, in_memory, tmp_path
):
    """`classes` and `explain` took names alone: a model in a notebook had to be saved first."""
    model, tokenizer, table = in_memory
    table.to_csv(tmp_path / "texts.csv", index=False)
    ours = anisoscope.classes(model, table, processor=tokenizer, few=4, limit=20)
    pairs = anisoscope.classes(
        model,
        list(table.itertuples(index=False, name=None)),
        processor=tokenizer,
        few=4,
        limit=20,
    )
    named = anisoscope.classes(folder, str(tmp_path / "texts.csv"), few=4, limit=20)
    assert model.training and all(module.training for module in model.modules())
    same = [
        "stack",
        "kind",
        "layer",
        "head",
        "site",
        "token_policy",
        "metric",
        "component",
        "value",
        "low",
        "high",
    ]
    pd.testing.assert_frame_equal(ours.records[same], named.records[same])
    pd.testing.assert_frame_equal(ours.records, pairs.records)
    assert (
        set(ours.records["corpus"]) == {"texts"}
        and ours.manifest["corpus"]["name"] == "texts"
    )
    text = table["text"][0]
    with (
        torch.no_grad()
    ):  # where it stopped: gradients were asked for outside of what turns them on
        expected = named.explain(text)
    for found in (
        ours.explain(text),
        anisoscope.explain(model, text, processor=tokenizer, corpus=table),
    ):
        pd.testing.assert_frame_equal(found.words, expected.words)
        assert found.notes == expected.notes
    several = anisoscope.explain(str(folder), table["text"][:2])
    assert [one.found for one in several] == [
        anisoscope.explain(folder, one).found for one in table["text"][:2]
    ]


@pytest.mark.parametrize(
    ("model", "given", "got"),
    [
        ("memory", {}, "give processor="),
        ("folder", {"processor": True}, "leave processor out"),
        (
            "memory",
            {"processor": True, "corpus": ["a text", "another"]},
            "a list of (text, label); got 'a text' at index 0",
        ),
        (
            "memory",
            {"processor": True, "corpus": 7},
            "a list of (text, label); got int",
        ),
        (
            "memory",
            {"processor": True, "output": "there"},
            "no output with a text to explain",
        ),
        ("memory", {"processor": True, "corups": "x"}, "corpus"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_the_cure(
    folder, in_memory, model, given, got
):
    ours, tokenizer, _ = in_memory
    given = {
        name: tokenizer if value is True else value for name, value in given.items()
    }
    with pytest.raises(UsageError, match=re.escape(got)):
        anisoscope.explain(
            ours if model == "memory" else str(folder), "a text", **given
        )
