"""Small decisions of what asks classifiers: which words, which share, which layer, each on a few numbers."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from anisoscope.axes import Site
from anisoscope.capture.masking import Masking
from anisoscope.classes import (
    ablation,
    attributions,
    cls_entropy,
    faithfulness,
    pooling,
    readout,
    sentence,
)
from anisoscope.data.encoding import Encoded, Padding
from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.errors import MeasureError
from anisoscope.monitor import scalars, trackers
from anisoscope.store import as_records

# ---- attributions ----------------------------------------------------------------------------------------------------


def unit(*rows):
    x = np.array(rows, dtype=float)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def captured(**given):
    """A text of three tokens in two layers, of which the head reads the first and the last, one part to three."""
    draw = np.random.default_rng(0)
    rows = [draw.random((3, 3)) for _ in range(2)]
    weights = [x / x.sum(1, keepdims=True) for x in rows]
    vectors = {
        space: [unit(*draw.normal(size=(3, 4))) for _ in range(2)]
        for space in ("hidden", "value")
    }
    norms = [draw.random(3) + 1 for _ in range(2)]
    made = {"attention": weights, "vectors": vectors, "norms": norms, "found": 1}
    made["read"] = np.array([0.25, 0.0, 0.75])
    return attributions.CapturedText(**made | given)


def directions():
    draw = np.random.default_rng(1)
    return {
        space: [unit(*draw.normal(size=(3, 4))) for _ in range(2)]
        for space in ("hidden", "value")
    }


def test_each_attribution_is_its_formula():
    one, of_classes = captured(), directions()
    found = attributions.compute_attributions(one, of_classes)
    first, second = one.attention
    eye = np.eye(3)
    expected = {
        ("attention", 1): one.read @ first,
        ("attention", 2): one.read @ second,
        ("rollout", 1): one.read @ (first + eye) / 2,
        ("rollout", 2): one.read @ ((second + eye) / 2) @ ((first + eye) / 2),
        ("value norm", 1): one.read @ first * one.norms[0],
        ("value norm", 2): one.read @ second * one.norms[1],
    }
    for space, layer in ((s, n) for s in ("hidden", "value") for n in (0, 1)):
        cosine = one.vectors[space][layer] @ of_classes[space][layer].T
        expected[space, layer + 1] = cosine[:, 1]
        others = (cosine[:, 0] + cosine[:, 2]) / 2
        expected[f"{space}, contrast", layer + 1] = cosine[:, 1] - others
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, err_msg=str(key))


def test_what_is_not_seen_is_left_out():
    of_classes = directions()
    one = captured()
    one.attention[0] = None
    found = attributions.compute_attributions(one, of_classes)
    assert ("attention", 1) not in found and ("attention", 2) in found
    assert not any(name == "rollout" for name, _ in found), "a product over all layers"
    assert ("value norm", 2) in found and ("value norm", 1) not in found
    crossed = attributions.compute_attributions(captured(crossed=True), of_classes)
    assert ("attention", 1) in crossed and ("rollout", 1) not in crossed
    bare = attributions.compute_attributions(captured(norms=[]), of_classes)
    assert ("value norm", 1) not in bare


def test_directions_are_of_the_classes_that_were_found(monkeypatch):
    texts = [
        captured(found=found, pooled=[unit(row)[0], unit(row[::-1])[0]])
        for found, row in (
            (2, (1.0, 2, 3, 4)),
            (0, (4.0, 3, 1, 1)),
            (2, (0.0, 1, 0, 0)),
        )
    ]
    for i, each in enumerate(texts):
        each.vectors["value"] = [unit(*np.eye(4)[[i, i + 1]]), unit(*np.eye(4)[[0, i]])]
    monkeypatch.setattr(attributions, "iter_captured", lambda *_: enumerate(texts))
    found = attributions.measure_class_directions(None, None, 3)
    for layer in (0, 1):
        of_hidden = [each.pooled[layer] for each in texts]
        np.testing.assert_allclose(found["hidden"][layer][0], of_hidden[1])
        np.testing.assert_allclose(
            found["hidden"][layer][2], unit(of_hidden[0] + of_hidden[2])[0]
        )
        assert not found["hidden"][layer][1].any(), "never predicted"
        means = [unit(each.vectors["value"][layer].mean(0))[0] for each in texts]
        both = unit(means[0] + means[2])[0]
        np.testing.assert_allclose(found["value"][layer][2], both)


def test_words_have_the_mean_of_their_tokens_and_those_cut_off_the_least():
    values = np.array([9.0, 1, 3, -2, 5])
    found = attributions.average_over_words(values, [-1, 0, 0, 2, 2], 4)
    assert found.tolist() == [2, -2, 1.5, -2]
    example = Example(("The", "cat"), 0, ("the",))
    made = attributions.compute_baselines(
        example, {"the": 3, "cat": 0, "dog": 5}, np.random.default_rng(4)
    )
    assert made["random"].tolist() == np.random.default_rng(4).random(3).tolist()
    wanted = [-math.log(4 / 9), -math.log(1 / 9), -math.log(4 / 9)]
    assert made["rare"].tolist() == pytest.approx(wanted)


def test_attention_is_cut_to_real_queries_and_keys():
    weights = torch.arange(24.0).view(2, 3, 4)
    found = attributions._cut_attention(
        weights, 1, torch.tensor([2, 0]), torch.tensor([3, 1])
    )
    assert found.tolist() == [[23, 21], [15, 13]]
    assert attributions._cut_attention(None, 1, None, None) is None


# ---- plausible and faithful ------------------------------------------------------------------------------------------


def test_the_highest_words_are_at_least_one_and_the_first_of_equal_ones():
    def highest(values, share):
        return np.flatnonzero(
            faithfulness.select_highest(np.array(values), share)
        ).tolist()

    assert highest([1.0, 3, 2, 3], 0.5) == [1, 3] and highest([1.0, 3, 2, 3], 0.25) == [
        1
    ]
    assert highest([1.0, 3, 2], 0.01) == [1] and highest([2.0, 2, 2], 0.67) == [0, 1]
    assert highest([0.0] * 10, 0.25) == [0, 1], "2.5 words are two"


def test_the_overlap_counts_words_that_either_has():
    marks = np.array([True, True, False, False])
    found = faithfulness._intersection_over_union(marks, np.array([0.0, 9, 8, 1]), 0.5)
    assert found == pytest.approx(1 / 3)
    example = Example(("a", "b", "c"), 0, None, (0.5, 0.49, 1.0))
    assert faithfulness._find_marked(example).tolist() == [True, False, True]
    assert faithfulness._find_marked(Example(("a",), 0)).tolist() == []


def test_texts_with_words_inside_and_outside_of_the_rationale_are_taken():
    def text(label, *marks):
        return Example(tuple("abc"[: len(marks)]), label, None, marks or None)

    given = (
        text(0, 1.0, 1.0),
        text(0, 0.0, 0.0),
        text(0, 1.0, 0.0),
        Example(("a",), 0),
        text(1, 0.0, 0.5),
        text(0, 0.0, 0.9),
        text(0, 0.7, 0.1),
        text(1, 1.0, 0.0),
    )
    chosen = faithfulness.choose_marked(given, 3, 2)
    assert [given.index(each) for each in chosen] == [2, 4, 5, 7]


def test_an_erased_text_keeps_its_special_tokens_and_its_label():
    row = {"input_ids": [1, 2, 3, 4, 5], "token_type_ids": [0, 0, 0, 1, 1], "labels": 7}
    erased = faithfulness.erase_words(row, [-1, 0, 0, 1, -1], np.array([False, True]))
    assert erased == {"input_ids": [1, 4, 5], "token_type_ids": [0, 1, 1], "labels": 7}
    assert faithfulness.fill_if_empty(erased, Padding(9)) is erased
    empty = {"input_ids": [], "token_type_ids": [], "labels": 7}
    assert faithfulness.fill_if_empty(empty, Padding(9)) == {
        "input_ids": [9],
        "token_type_ids": [0],
        "labels": 7,
    }


def corpus(**splits):
    made = {
        split: tuple(Example((f"{split}{i}",), i % 2) for i in range(n))
        for split, n in splits.items()
    }
    return LabelledCorpus("c", ("a", "b"), made)


def test_no_text_is_explained_by_itself(monkeypatch):
    given = corpus(train=6, validation=4, test=2, all=8)
    chosen = {
        split: {each.text.rstrip("0123456789") for each in found}
        for split in ("test", "validation", "train", "held-out")
        for found in [faithfulness._choose_for_directions(given, split, ())]
    }
    assert chosen == {
        "test": {"validation"},
        "validation": {"train"},
        "train": {"validation"},
        "held-out": {"train"},
    }
    some = given.splits["all"][:3]
    others = faithfulness._choose_for_directions(given, "all", some)
    assert [each.text for each in others] == [f"all{i}" for i in range(3, 8)]
    twins = Example(("same",), 0), Example(("same",), 0)
    alike = LabelledCorpus("c", ("a", "b"), {"all": twins})
    assert len(faithfulness._choose_for_directions(alike, "all", twins[:1])) == 1
    monkeypatch.setattr(faithfulness, "DIRECTED", 2)
    assert len(faithfulness._choose_for_directions(given, "test", ())) == 2
    with pytest.raises(MeasureError, match="further examples than the explained"):
        faithfulness._choose_for_directions(alike, "all", twins)


def test_means_over_texts_have_the_bounds_of_their_measure():
    results = {
        (("attention", 2), "auprc"): [0.0, 0.25, 0.75, 1.0],
        (("random", None), "comprehensiveness"): [[0.0, 0.5, 0, 1], [1.0, -0.5, -1, 1]],
    }
    found = faithfulness._average_over_texts(results, 4)
    rows = {row.metric: row for row in found.itertuples()}
    first, second = rows["attribution.auprc"], rows["attribution.comprehensiveness"]
    assert (first.value, first.component, first.layer) == (0.5, "attention", 2)
    assert (second.value, second.component) == (0.25, "random") and pd.isna(
        second.layer
    )
    assert first.low >= 0 and second.low < 0 and found["n_units"].tolist() == [4, 4]


# ---- one text --------------------------------------------------------------------------------------------------------


def test_a_long_text_is_cut_before_the_word_that_does_not_fit(monkeypatch):
    """Words of one token a letter; two special tokens a window."""

    def encode(examples, _tokenizer, longest):
        assert longest == 1 << 30
        (example,) = examples
        words = [i for i, word in enumerate(example.words) for _ in word]
        return Encoded([{}], [[-1, *words, -1]])

    monkeypatch.setattr(sentence, "encode", encode)

    def cut(text, longest):
        windows = sentence.cut_into_windows(text.split(), None, longest)
        return [" ".join(window) for window in windows]

    assert cut("ab c de f", 5) == ["ab c", "de f"]
    assert cut("ab c de f", 8) == ["ab c de f"] and cut("ab c de f", 7) == [
        "ab c de",
        "f",
    ]
    assert cut("abcdef g", 5) == ["abcdef", "g"] and cut("g abcdef h", 5) == [
        "g",
        "abcdef",
        "h",
    ]


def test_a_text_of_one_word_is_taken_token_by_token():
    tokenizer = SimpleNamespace(
        convert_ids_to_tokens=lambda ids: [f"t{i}" for i in ids]
    )
    rows = [{"input_ids": [1, 7, 8, 2]}]
    words, split = sentence._split_single_word(
        ("x",), Encoded(rows, [[-1, 0, 0, -1]], 3), tokenizer
    )
    assert words == ("t7", "t8") and split.words == [[-1, 0, 1, -1]]
    assert split.rows is rows and split.truncated == 3
    alone = Encoded([{"input_ids": [1, 7, 2]}], [[-1, 0, -1]])
    assert sentence._split_single_word(("x",), alone, tokenizer) == (("x",), alone)


def test_colours_are_scaled_by_the_largest_size():
    found = sentence.scale_for_colours(np.array([0.5, -2.0, 0.0]))
    assert found.tolist() == [0.25, -1, 0]
    assert sentence.scale_for_colours(np.zeros(2)).tolist() == [0, 0]
    assert sentence.scale_for_colours(np.array([])).tolist() == []


def test_words_of_an_explained_text_are_orange_for_the_class_and_blue_against_it():
    words = pd.DataFrame(
        {
            "word": ["x<y", "c", "d"],
            "attention": [2.0, -1.0, 0.0],
            "a & b": [0.0, 0.0, -0.5],
        }
    )
    none = pd.DataFrame()
    made = sentence.Explanation("<p>", 0.8754, words, none, none, 3)

    def span(colour, word):
        return f'<span style="background: rgba({colour})">{word}</span>'

    assert made._repr_html_() == (
        "<p><b>&lt;p&gt;</b> (0.875)</p>"
        f"<p><i>attention</i> {span('214,90,40,1.00', 'x&lt;y')} "
        f"{span('40,100,200,0.50', 'c')} {span('214,90,40,0.00', 'd')}</p>"
        f"<p><i>a &amp; b</i> {span('214,90,40,0.00', 'x&lt;y')} "
        f"{span('214,90,40,0.00', 'c')} {span('40,100,200,1.00', 'd')}</p>"
    )


class Additive:
    """A stand-in for a model: the probability of class 1 is a tenth of the sum of the ids that are left."""

    def __init__(self, monkeypatch):
        self.runs = []

        def predict(_model, rows, _pad):
            self.runs.append([tuple(row["input_ids"]) for row in rows])
            of_class = [sum(row["input_ids"]) / 10 for row in rows]
            return np.array([[0.9, x] for x in of_class])

        monkeypatch.setattr(sentence, "predict_probabilities", predict)


def test_what_a_text_loses_without_each_word_and_share(monkeypatch):
    model = Additive(monkeypatch)
    rows = [{"input_ids": [1, 2]}, {"input_ids": [3]}]
    encoded = Encoded(rows, [[0, 1], [0]])
    classifier = SimpleNamespace(model=None, padding=Padding(0))
    erased = sentence._ErasedTexts(classifier, encoded, [2, 1], 1)
    assert erased.whole == pytest.approx(0.3), "the mean over windows of .3 and .3"
    assert erased.measure_words().tolist() == pytest.approx([0.05, 0.1, 0.15])
    before = len(model.runs)
    erased.measure_words()
    assert len(model.runs) == before, "each selection of words is run once"
    scores = {"good": np.array([0.0, 1, 2]), "bad": np.array([2.0, 1, 0])}
    found = erased.measure_shares(scores).set_index("attribution")
    # Shares of 1, 5, 10, 20 and 50 % of three words are one, one, one, one and two.
    assert found.loc["good", "comprehensiveness"] == pytest.approx(
        (4 * 0.15 + 0.25) / 5
    )
    assert found.loc["good", "sufficiency"] == pytest.approx((4 * 0.15 + 0.05) / 5)
    assert found.loc["bad", "comprehensiveness"] == pytest.approx((4 * 0.05 + 0.15) / 5)
    draw = np.random.default_rng(0)
    falls = {"comprehensiveness": [], "sufficiency": []}
    for _ in range(19):
        order = np.argsort(-draw.random(3), kind="stable")
        lost = np.array([0.05, 0.1, 0.15])[order]
        falls["comprehensiveness"].append((4 * lost[0] + lost[:2].sum()) / 5)
        falls["sufficiency"].append((4 * lost[1:].sum() + lost[2]) / 5)
    for measure, values in falls.items():
        assert found.loc["bad", f"{measure}_low"] == pytest.approx(min(values))
        assert found.loc["bad", f"{measure}_high"] == pytest.approx(max(values))
    assert not found["beyond_chance"].any(), "a random order may be as good"


# ---- pooling and entropy ---------------------------------------------------------------------------------------------


def test_batches_of_texts_that_must_not_be_padded_are_of_one_length():
    rows = [{"input_ids": [0] * n} for n in (1, 2, 2, 2, 3)]
    order = [0, 1, 2, 3, 4]

    def batches(side, size=2):
        return list(pooling._iter_batches(rows, order, size, Padding(0, side)))

    assert batches("right") == [[0, 1], [2, 3], [4]]
    assert batches("none") == [[0], [1, 2], [3], [4]]


def test_logits_come_in_the_order_of_the_texts():
    seen = []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids, attention_mask):
            seen.append(attention_mask.sum(1).tolist())
            sums = (input_ids * attention_mask).sum(1, keepdim=True)
            return SequenceClassifierOutput(logits=sums.float())

    rows = [{"input_ids": [5] * n, "labels": 0} for n in (3, 1, 2, 4)]
    model = Model().train()
    found = pooling.predict_logits(model, rows, 7, batch=2)
    assert found.flatten().tolist() == [15, 5, 10, 20] and model.training
    assert seen == [[1, 2], [3, 4]], "short ones together"


def test_an_entropy_is_divided_by_the_largest_there_can_be():
    nats = torch.tensor([0.5, 0.5, 0.5])
    found = cls_entropy._divide_by_largest(nats, torch.tensor([1.0, 2.0, 8.0]))
    assert found.tolist() == pytest.approx([0, 0.5 / math.log(2), 0.5 / math.log(8)])
    scores = torch.tensor([[0.0, 0.0, -1e30], [math.log(3), 0.0, -1e30]])
    wanted = [math.log(2), math.log(4) - 0.75 * math.log(3)]
    assert cls_entropy._compute_entropy(scores).tolist() == pytest.approx(wanted)


def test_a_watch_has_rows_by_layer_and_a_mean_over_them():
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    watch = cls_entropy.Watch(mask, (1, 3), columns=True)
    watch.nats = {
        1: torch.tensor([[0.2, 0.4], [0.6, 0.8]]),
        3: torch.tensor([[0.1, 0.1], [0.2, 0.4]]),
    }
    watch.sinks = {1: 0, 3: 1}
    rows = watch.rows()
    assert rows[1].tolist() == pytest.approx([0.3 / math.log(3), 0.7 / math.log(4)])
    assert rows[3].tolist() == pytest.approx([0.1 / math.log(4), 0.3 / math.log(5)])
    fewer = watch.rows(1)
    assert fewer[1].tolist() == pytest.approx([0.3 / math.log(2), 0.7 / math.log(3)])
    wanted = (fewer[1] + fewer[3]) / 2
    assert watch.row_entropy(1).tolist() == pytest.approx(wanted.tolist())
    weights = torch.rand(2, 2, 4)
    watch.firsts = {1: weights, 3: weights + 1}
    for sequence, n in ((0, 3), (1, 4)):
        of_heads = []
        for head in (0, 1):
            p = weights[sequence, head, 1:n].softmax(0)
            of_heads.append(float(-(p * p.log()).sum()) / math.log(n - 1))
        assert float(watch.again()[1][sequence]) == pytest.approx(
            np.mean(of_heads), rel=1e-5
        )
    watch.sums = {1: weights, 3: weights.flip(2)}
    both = weights + weights.flip(2)
    p = both[1, :, 1:].softmax(-1)
    wanted = float((-(p * p.log()).sum(-1) / math.log(3)).mean())
    assert float(watch.column_entropy()[1]) == pytest.approx(wanted, rel=1e-5)
    assert watch.mask[:, 0].all(), "the mask keeps [CLS]"
    forms = cls_entropy._compute_forms(watch)
    assert set(forms) == {"row", "reported", "again", "columns"} | {
        f"{name}.{layer}" for name in ("row", "reported", "again") for layer in (1, 3)
    }
    assert torch.equal(forms["reported.3"], fewer[3])
    del watch.nats[3]
    with pytest.raises(MeasureError, match=r"attention in layers \[3\]"):
        watch.rows()


# ---- replaced attention ----------------------------------------------------------------------------------------------


def test_what_a_token_may_see_is_real_named_and_not_behind_it():
    mask = torch.tensor([[True, True, True, False]])
    named = torch.tensor([[[[False, True, True, True, True]]]])

    def seen(keys=None, causal=False):
        return ablation.find_seen_pairs(Masking(keys, causal, None), mask)[
            0, 0
        ].tolist()

    real = [True, True, True, False]
    assert seen() == [real] * 4
    assert seen(causal=True)[1] == [True, True, False, False]
    assert seen(named)[0] == [False, True, True, False]
    # The first token may see nothing that is named: it gets all real ones.
    assert seen(named, causal=True)[0] == real
    assert seen(named, causal=True)[2] == [False, True, True, False]


def test_permuted_weights_keep_each_row_s_own_among_what_is_seen():
    weights = torch.rand(2, 2, 3, 5)
    seen = torch.tensor([[True, False, True, True, False], [True] * 5])[:, None, None]
    weights = weights * seen
    weights = weights / weights.sum(-1, keepdim=True)
    one, same, other = (
        ablation.replace_weights(weights, seen[:, 0, 0], "permuted", seed)
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)
    torch.testing.assert_close(one.sort(-1).values, weights.sort(-1).values)
    assert not (one * ~seen).any() and not torch.equal(one, weights)
    even = ablation.replace_weights(weights, seen[:, 0, 0], "uniform")
    assert even[0, 0, 0].tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3, 0])
    assert even.shape == weights.shape


def test_the_cosine_is_of_what_the_head_reads_and_of_all_real_tokens():
    made = ablation.Ablation("uniform", (1,))
    mask = torch.tensor([[False, True, True]])
    made.begin(mask, 0)
    assert made.read.tolist() == [[0, 1, 0]], "the first real token"
    made.layer = 1
    before = torch.tensor([[[[9.0, 9], [1, 0], [1, 0]], [[9.0, 9], [0, 1], [1, 0]]]])
    after = torch.tensor([[[[1.0, 1], [1, 0], [0, 1]], [[1.0, 1], [1, 0], [1, 0]]]])
    made._keep_cosine(before, after)
    ((found,),) = made.cosine[1]
    # By token: 1 and 0 in the heads of the first, 0 and 1 in those of the second.
    assert found.tolist() == pytest.approx([0.5, 0.5])
    made.begin(mask, 0, torch.tensor([[0.0, 0.25, 0.75]]))
    made.layer = 1
    after[0, :, 2] = torch.tensor([1.0, 0.0])
    made._keep_cosine(before, after)
    assert made.cosine[1][1][0].tolist() == pytest.approx([0.125 + 0.75, 0.75])


# ---- what trackers draw ----------------------------------------------------------------------------------------------


def logged(*rows):
    place = {"stack": "encoder", "kind": "self", "site": "hidden", "layer": 2}
    return as_records(
        pd.DataFrame([place | {"token_policy": "all"} | row for row in rows])
    )


def test_curves_are_means_and_maxima_over_the_heads_of_a_layer():
    entropy = {"metric": "attention.entropy", "site": "attention"}
    cosine = {"metric": "query_key.cosine", "site": "query.raw", "token_policy": None}
    found = scalars.summarise_layers(
        logged(
            {"metric": "mean_cosine", "value": 0.5},
            {"metric": "mean_cosine", "value": 0.9, "token_policy": "content"},
            {"metric": "mean_cosine", "value": 0.8, "site": "query.raw"},
            {"metric": "mean_cosine", "value": 0.7, "component": "3"},
            {"metric": "mean_cosine", "value": 0.6, "site": "final"},
            {"metric": "drift", "value": math.nan},
            entropy | {"value": 1.0, "head": 0},
            entropy | {"value": 4.0, "head": 1},
            entropy | {"value": 9.0, "head": 1, "kind": "cross"},
            entropy | {"value": 2.0, "head": 0, "layer": 3},
            cosine | {"value": -0.5, "head": 0},
            cosine | {"value": 0.25, "head": 1},
            {
                "metric": "sinks.rate",
                "component": ".3",
                "value": 0.2,
                "site": "attention",
            },
            {
                "metric": "sinks.rate",
                "component": ".5",
                "value": 0.9,
                "site": "attention",
            },
            {
                "metric": "massive.largest",
                "component": "1",
                "value": 7,
                "site": "extremes",
            },
            {"metric": "logits.largest", "value": 3.0, "site": "extremes", "head": 0},
            {"metric": "logits.largest", "value": 5.0, "site": "extremes", "head": 1},
            {"metric": "norms.mean", "value": 5.0},
        ),
        "x",
    )
    assert found == {
        "x/encoder.2/A": 0.5,
        "x/encoder.2/entropy": 2.5,
        "x/encoder.2/entropy_max": 4.0,
        "x/encoder.3/entropy": 2.0,
        "x/encoder.3/entropy_max": 2.0,
        "x/encoder.2/cosine_query_key": 0.375,
        "x/encoder.2/cosine_query_key_max": 0.5,
        "x/encoder.2/sink_rate": 0.2,
        "x/encoder.2/sink_rate_max": 0.2,
        "x/encoder.2/activation_max": 7.0,
        "x/encoder.2/logit_max": 5.0,
    }


def test_a_series_is_logged_seed_by_seed_and_step_by_step():
    rows = [
        {
            "metric": "mean_cosine",
            "value": seed + step / 100,
            "seed": seed,
            "step": step,
        }
        for seed in (3, 1)
        for step in (20, 10)
    ]
    found = trackers._split_by_seed(logged(*rows), "m")
    name = "anisoscope/encoder.2/A"
    assert found == {
        f"m-seed-{seed}": {step: {name: seed + step / 100} for step in (10, 20)}
        for seed in (1, 3)
    }
    assert list(found) == ["m-seed-1", "m-seed-3"]
    alone = trackers._split_by_seed(
        logged({"metric": "mean_cosine", "value": 0.5}), "m"
    )
    assert alone == {"m": {0: {name: 0.5}}}
    one = logged({"metric": "mean_cosine", "value": 0.5, "seed": 4, "step": 7})
    assert trackers._split_by_seed(one, "m") == {"m": {7: {name: 0.5}}}


# ---- records of classifiers, and passes over texts -------------------------------------------------------------------


def numbers(records, *names):
    """Columns of records as lists, with None for what is missing."""
    columns = ["metric", "component", "layer", "value", "low", "high", *names]
    frame = records[columns].astype(object)
    return frame.where(frame.notna(), None).values.tolist()


def wilson(right, count):
    """Wilson's interval, as in Wilson 1927."""
    p, z = right / count, 1.959963984540054
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z
        / (1 + z * z / count)
        * math.sqrt(p * (1 - p) / count + z * z / (4 * count**2))
    )
    return pytest.approx(middle - half), pytest.approx(middle + half)


def test_an_accuracy_is_of_all_texts_and_of_each_class_that_has_some():
    labels = np.array([0, 0, 0, 2, 2])
    predicted = np.array([0, 1, 1, 2, 0])
    found = pooling.make_accuracy_records(predicted, labels, ("a", "b", "c"))
    assert numbers(found, "n_units") == [
        ["accuracy", None, None, 0.4, *wilson(2, 5), 5],
        ["accuracy", "a", None, pytest.approx(1 / 3), *wilson(1, 3), 5],
        ["accuracy", "c", None, 0.5, *wilson(1, 2), 5],
        ["majority", None, None, 0.6, None, None, 5],
    ]


def test_separability_has_a_record_for_each_layer_measure_and_class(monkeypatch):
    asked = []

    def separate(states, labels, classes, groups, units):
        asked.append((states.tolist(), labels.tolist(), classes, groups, units))
        n = len(asked)
        return {
            "auc": (n, n + 0.1, n + 0.2),
            "auc.1": (n + 10, n + 10.1, n + 10.2),
            "dimensions": (n + 20, n + 20.1, n + 20.2),
        }

    monkeypatch.setattr(pooling, "separability", separate)
    states = np.arange(12.0).reshape(3, 2, 2)
    labels, units = np.array([0, 1, 1]), np.array([5, 5, 6])
    found = pooling.make_separability_records(
        states, labels, ("a", "b"), stack="decoder", units=units, groups=7
    )
    places = ["stack", "site", "n_units", "n_vectors"]
    rows = []
    for layer in (0, 1):
        n = layer + 1
        for name, component, more in (
            ("auc", None, 0),
            ("auc", "b", 10),
            ("dimensions", None, 20),
        ):
            ends = [n + more, n + more + 0.1, n + more + 0.2]
            rows.append(
                [
                    f"class_direction.{name}",
                    component,
                    layer,
                    *ends,
                    "decoder",
                    "hidden",
                    2,
                    3,
                ]
            )
    assert numbers(found, *places) == rows
    assert [given[0] for given in asked] == [
        states[:, 0].tolist(),
        states[:, 1].tolist(),
    ]
    assert asked[0][1:] == ([0, 1, 1], 2, 7, units)
    alone = pooling.make_separability_records(states, labels, ("a", "b"))
    assert set(alone["n_units"]) == {3} and set(alone["stack"]) == {"encoder"}


def outcome(found, final, turned):
    return ablation.Outcome(np.array(found), np.array(final, float), turned)


def test_ablations_are_of_all_layers_then_of_each_by_every_kind(monkeypatch):
    """What changes is told of each kind and layer; how far its output turns, of a single layer alone."""
    before = outcome([0, 1, 1, 0], np.eye(4)[:, :2], {})
    asked, done = [], []

    def measure(model, _batches, kind, layers, readings):
        asked.append((model, kind, tuple(layers), readings))
        if not layers:
            return before
        k = ("uniform", "permuted", "another").index(kind)
        turned = {n: np.array([[0.1 * n + k, 0.5]] * 4) for n in layers}
        return outcome(
            [0, 1, 0, 0] if k else [0, 1, 1, 1], np.eye(4)[:, :2] * (k + 1) / 4, turned
        )

    monkeypatch.setattr(ablation, "measure_outcomes", measure)
    monkeypatch.setattr(ablation, "read_batches", lambda *_: "readings")
    monkeypatch.setattr(ablation, "count_layers", lambda _: 2)
    monkeypatch.setattr(
        ablation, "estimate_mean", lambda x, bounds: (x.mean(), *bounds)
    )
    batches = SimpleNamespace(encoded=SimpleNamespace(labels=[0, 1, 0, 0]))
    found = ablation.measure_ablations("model", batches, lambda *n: done.append(n))
    assert asked[0][2] == () and {given[3] for given in asked} == {"readings"}
    assert [given[1:3] for given in asked[1:]] == [
        (kind, layers)
        for kind in ("uniform", "permuted", "another")
        for layers in ((1, 2), (1,), (2,))
    ]
    assert done == [(n, 9) for n in range(1, 10)]
    rows = []
    for k, kind in enumerate(("uniform", "permuted", "another")):
        # of four texts three are right before; one changes to wrong, or one to right
        accuracy, agreement = (0.25, 0.75) if k else (-0.25, 0.75)
        for layer in (None, 1, 2):
            of_place = {
                "accuracy": (accuracy, -1, 1),
                "agreement": (agreement, 0, 1),
                "cls": ((k + 1) / 8, -1, 1),
            }
            if layer:
                of_place["output"] = (pytest.approx(0.1 * layer + k), -1, 1)
                of_place["rows"] = (0.5, -1, 1)
            for measure_, ends in of_place.items():
                rows.append([f"ablation.{measure_}", kind, layer, *ends, 4])
    assert numbers(found, "n_units") == rows
    asked.clear()
    monkeypatch.setattr(ablation, "count_layers", lambda _: 1)
    found = ablation.measure_ablations("model", batches)
    assert [given[2] for given in asked] == [(), (1,), (1,), (1,)]
    whole = found[found["component"].eq("uniform")]
    assert whole["layer"].isna().sum() == 3 and whole["layer"].eq(1).sum() == 5


def test_layers_are_counted_in_the_part_that_reads_texts():
    text = SimpleNamespace(num_hidden_layers=7)
    both = SimpleNamespace(num_hidden_layers=3, get_text_config=lambda: text)
    assert ablation.count_layers(SimpleNamespace(config=both)) == 7
    assert ablation.count_layers(SimpleNamespace(config=text)) == 7


def call_of(queries, keys):
    value = torch.rand(1, 1, keys, 2)
    return SimpleNamespace(
        query=torch.rand(1, 2, queries, 2), key=torch.rand(1, 1, keys, 2), value=value
    )


def test_only_attention_of_all_tokens_to_all_is_replaced():
    made = ablation.Ablation("uniform", (1,))
    made.begin(torch.ones(1, 3, dtype=torch.bool), 0)
    for queries, keys in ((1, 3), (3, 4)):
        with pytest.raises(
            MeasureError, match=f"got {queries} queries and {keys} keys of 3 tokens"
        ):
            made._check(call_of(queries, keys))
    made._check(call_of(3, 3))


def test_a_watch_looks_at_its_layers_alone_and_at_every_row():
    mask = torch.ones(1, 3, dtype=torch.bool)

    def call(n, queries=3, sinks=0):
        scores = torch.full((1, 2, 1, 3 + sinks), float(n))
        weights = torch.full((1, 2, queries, 3), n / 10)
        return SimpleNamespace(
            scores=lambda _rows: scores,
            weights=lambda: weights,
            query=torch.zeros(1, 2, queries, 4),
            key=torch.zeros(1, 1, 3, 4),
        )

    watch = cls_entropy.Watch(mask, (2,), columns=True)
    for n in (1, 2, 3):
        watch.look(call(n, sinks=1))
    assert list(watch.nats) == list(watch.firsts) == list(watch.sums) == [2]
    assert watch.nats[2].shape == (1, 2) and watch.sinks == {2: 1}
    assert watch.nats[2][0, 0] == pytest.approx(math.log(4))
    assert watch.firsts[2].flatten().tolist() == pytest.approx([0.2] * 6)
    assert watch.sums[2].flatten().tolist() == pytest.approx([0.6] * 6)
    every = cls_entropy.Watch(mask, (), columns=False)
    every.look(call(1, queries=1))
    assert list(every.nats) == [1] and not every.firsts
    with pytest.raises(MeasureError, match="got 1 of 3 rows"):
        cls_entropy.Watch(mask, (), columns=True).look(call(1, queries=1))
    with pytest.raises(MeasureError, match="padding before them"):
        cls_entropy.Watch(
            torch.tensor([[True, True], [False, True]]), (), columns=False
        )


def test_a_capture_keeps_its_own_stack_kind_and_quantities():
    kept = attributions._Capture("decoder", "cross")
    sites = [
        ("decoder", 1, "hidden", "self"),
        ("decoder", 0, "hidden", "self"),
        ("encoder", 1, "hidden", "self"),
        ("decoder", None, "final", "self"),
        ("decoder", 1, "key", "cross"),
        ("decoder", 1, "key", "self"),
        ("encoder", 1, "value", "cross"),
        ("decoder", 2, "value", "cross"),
        ("decoder", 2, "query", "cross"),
    ]
    for n, (stack, layer, quantity, kind) in enumerate(sites):
        kept.receive(Site(stack, layer, quantity, kind=kind), n)
    assert kept.states == {1: 0} and kept.of_heads == {"key": {1: 4}, "value": {2: 7}}
    weights = torch.arange(8.0).reshape(1, 2, 2, 2)
    call = SimpleNamespace(weights=lambda: weights)
    for stack, layer, kind in (
        ("decoder", 1, "self"),
        ("encoder", 1, "cross"),
        ("decoder", 0, "cross"),
    ):
        kept.look(Site(stack, layer, "attention", kind=kind), call)
    assert kept.attention == {}
    kept.look(Site("decoder", 3, "attention", kind="cross"), call)
    assert kept.attention[3].tolist() == [[[2, 3], [4, 5]]]


def test_maps_that_are_left_out_are_told_with_their_reason():
    def told(attention=(), keys=(), values=(), why=(), crossed=False):
        watched = SimpleNamespace(
            states={1: 0, 2: 0},
            attention=dict.fromkeys(attention),
            of_heads={"key": dict.fromkeys(keys), "value": dict.fromkeys(values)},
        )
        reading = SimpleNamespace(stack="encoder")
        return attributions._explain_left_out(
            watched, reading, list(why), crossed=crossed
        )

    every = (1, 2)
    assert told(every, every, every) == []
    assert told((), every, every) == [
        "maps of attention left out: none is seen in encoder"
    ]
    assert told((2,), every, every, ["x", "y"]) == [
        "maps of attention left out in layers 1, and rollout in all (x; y)"
    ]
    assert told(every, (1,), every) == [
        "maps of keys left out: they are not seen in every layer of encoder"
    ]
    assert told(every, every, (), ["x"]) == [
        "maps of values left out: they are not seen in every layer of encoder (x)"
    ]
    (crossed,) = told(every, every, every, crossed=True)
    assert crossed.startswith("attention, keys and values are those of the decoder's")


def test_agreement_with_rationales_is_of_each_text_and_attribution():
    examples = [
        SimpleNamespace(rationale=[1, 0.5, 0.6, 0]),
        SimpleNamespace(rationale=[0, 0, 0.4, 1]),
    ]
    first, second = ("a", 1), ("b", None)
    scores = [
        {first: np.array([4.0, 3, 2, 1]), second: np.array([1.0, 2, 3, 4])},
        {first: np.array([1.0, 2, 4, 3]), second: np.array([4.0, 3, 2, 1])},
    ]
    found = faithfulness._compute_plausibility(examples, scores)
    assert set(found) == {
        (key, name) for key in (first, second) for name in ("auprc", "auroc", "iou")
    }
    # people marked 3 of 4 and 1 of 4 words: a half, so that the highest 2 of 4 count
    assert found[first, "iou"] == [pytest.approx(2 / 3), 0.5]
    assert found[second, "iou"] == [0.25, 0]
    assert found[first, "auroc"] == [1, pytest.approx(2 / 3)]
    assert found[second, "auroc"] == [0, 0]
    assert found[first, "auprc"] == [1, 0.5]
    precision = (1 / 2 + 2 / 3 + 3 / 4) / 3
    assert found[second, "auprc"] == [pytest.approx(precision), 0.25]


def test_explanations_are_measured_of_every_attribution_and_text(monkeypatch):
    asked = {}
    train = [Example(("The", "cat"), 0), Example(("the", "dog"), 1)]
    test = [
        Example(("a", "b", "c"), 0, rationale=(1, 0, 0)),
        Example(("d", "e"), 1, rationale=(0, 1)),
    ]
    corpus = LabelledCorpus(
        "c", ("x", "y"), {"train": train, "validation": train, "test": test}
    )
    encoded = SimpleNamespace(words=[[-1, 0, 1, 2], [-1, 0, 1]], rows=[])

    def encode(examples, tokenizer, max_length):
        asked.setdefault("encoded", []).append((list(examples), tokenizer, max_length))
        return encoded

    def plan(_encoded, pad, **named):
        return ("plan", pad, named["stack"])

    def captured_texts(model, batches, notes):
        asked["captured"] = (model, batches, notes)
        yield 1, "second"
        yield 0, "first"

    def attribute(one, directions):
        asked["directions"] = directions
        count = 4 if one == "first" else 3
        return {
            ("attention", 1): np.arange(count) * 1.0,
            ("hidden", 2): np.arange(count) * 2.0,
        }

    def faithful(_model, pad, _encoded, scores, keys, _progress):
        asked["faithful"] = (keys, pad, [dict(one) for one in scores])
        return {(keys[0], "sufficiency"): [[0.5, 0.25], [0.75, 0.25]]}

    monkeypatch.setattr(faithfulness, "encode", encode)
    monkeypatch.setattr(faithfulness, "LabelledPlan", plan)
    monkeypatch.setattr(
        faithfulness, "measure_class_directions", lambda *given: ("of", *given[1:])
    )
    monkeypatch.setattr(faithfulness, "iter_captured", captured_texts)
    monkeypatch.setattr(faithfulness, "compute_attributions", attribute)
    monkeypatch.setattr(faithfulness, "_compute_faithfulness", faithful)
    monkeypatch.setattr(faithfulness, "count_layers", lambda _: 2)
    monkeypatch.setattr(
        faithfulness, "_compute_first_row_alone", lambda _: nullcontext()
    )
    model, notes = torch.nn.Linear(1, 1), []
    tokenizer = SimpleNamespace(pad_token_id=7)
    how = {"limit": 10, "max_length": 99, "stack": "decoder", "notes": notes}
    found = faithfulness.measure_explanations(model, tokenizer, corpus, **how)
    assert asked["encoded"] == [(test, tokenizer, 99), (train, tokenizer, 99)]
    assert asked["captured"] == (model, ("plan", Padding(7), "decoder"), notes)
    assert asked["directions"] == ("of", ("plan", Padding(7), "decoder"), 2)
    keys, pad, scores = asked["faithful"]
    # of a deep model erasure is measured for some attributions alone
    assert keys == [
        ("attention", 1),
        ("random", None),
        ("rare", None),
    ] and pad == Padding(7)
    assert scores[0]["attention", 1].tolist() == [1, 2, 3]
    assert scores[1]["hidden", 2].tolist() == [2, 4]
    measures = found[["metric", "component"]].drop_duplicates().values.tolist()
    for name in ("attention", "hidden", "random", "rare"):
        for measure in ("auprc", "auroc", "iou"):
            assert [f"attribution.{measure}", name] in measures
    row = found[found["metric"].eq("attribution.sufficiency")].iloc[0]
    # the mean over shares, then over texts; each is [share, text]
    assert row["value"] == pytest.approx((0.625 + 0.25) / 2) and row["n_units"] == 2
    monkeypatch.setattr(faithfulness, "count_layers", lambda _: 1)
    faithfulness.measure_explanations(
        model, tokenizer, corpus, padding=Padding(3, "left")
    )
    assert ("hidden", 2) in asked["faithful"][0] and asked["faithful"][1] == Padding(
        3, "left"
    )


def test_rare_words_are_counted_in_the_training_texts_without_case():
    train = [Example(("The", "the", "Cat"), 0)]
    corpus = LabelledCorpus("c", ("x",), {"train": train, "test": []})
    scores = [{}]
    faithfulness._add_baselines(scores, [Example(("THE", "cat", "new"), 0)], corpus)
    rare = scores[0]["rare", None]
    assert rare.tolist() == pytest.approx(
        [-math.log(3 / 4), -math.log(2 / 4), -math.log(1 / 4)]
    )
    assert scores[0]["random", None].shape == (3,)


def test_logits_are_found_in_each_form_of_an_output():
    logits, other = torch.ones(1, 2), torch.zeros(1, 3)
    forms = (
        SimpleNamespace(logits=logits),
        {"logits": logits, "hidden": other},
        (logits, other),
        [logits],
        logits,
    )
    for form in forms:
        assert readout.get_logits(form) is logits
    for wrong in ((), {"hidden": other}, torch.ones(1, 2, dtype=torch.long), "text"):
        with pytest.raises(MeasureError, match=f"got {type(wrong).__name__}"):
            readout.get_logits(wrong)


def gradients(*sequences):
    return torch.tensor(sequences, dtype=torch.float64)


def test_the_way_of_reading_is_one_that_fits_every_sequence():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    a, b, none = [1.0, 2.0], [3.0, 4.0], [0.0, 0.0]
    firsts = gradients([a, none, none], [b, none, none])
    assert readout._find_way(firsts, mask) == "first"
    lasts = gradients([none, a, none], [none, none, b])
    assert readout._find_way(lasts, mask) == "last"
    means = gradients([a, a, none], [b, b, b])
    assert readout._find_way(means, mask) == "mean"
    most = gradients([[1.0, 0.0], [0.0, 2.0], none], [[0.0, 2.0], [1.0, 0.0], none])
    assert readout._find_way(most, mask) == "max"
    # the last sequence fits the first token, but the one before does not
    mixed = gradients([none, a, none], [b, none, none])
    assert readout._find_way(mixed, mask) is None
    assert readout._find_way(gradients([b, none, none], [none, none, b]), mask) is None
    uneven = gradients([a, b, none], [b, b, b])
    assert readout._find_way(uneven, mask) is None
    padded = gradients([a, a, a], [b, b, b])
    assert readout._find_way(padded, mask) is None
    assert readout._guess_shares("first", mask).tolist() == [[1, 0, 0], [1, 0, 0]]
    assert readout._guess_shares("last", mask).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert readout._guess_shares(None, mask).tolist() == [[1, 1, 0], [1, 1, 1]]
    # sequences without a gradient are read as the others; states may be filled up
    filled = torch.cat([lasts, torch.zeros(2, 2, 2)], 1)
    filled[0] = 0
    found = readout._decide_reading("encoder", filled, mask, torch.ones(2, 2), "M")
    assert found.at == "last" and found.weights.tolist() == [[0, 1, 0], [0, 0, 1]]
    apart = readout._decide_reading("encoder", uneven, mask, torch.ones(2, 2), "M")
    assert apart.at is None
    assert apart.weights.tolist() == [[0.3, 0.7, 0], [pytest.approx(1 / 3)] * 3]
    states = torch.tensor([[[1.0], [2.0], [math.nan]], [[3.0], [6.0], [9.0]]])
    assert apart.pool(torch.cat([states, states], 1)).tolist() == [
        [pytest.approx(1.7)],
        [pytest.approx(6)],
    ]
    assert found.pool(states.nan_to_num()).tolist() == [[2], [9]]
    filled[1, 4] = 1
    with pytest.raises(MeasureError, match=r"for \(2, 3\) tokens; got \(2, 5, 2\)"):
        readout._decide_reading("encoder", filled, mask, torch.ones(2, 2), "M")


@pytest.mark.parametrize(
    ("right", "left", "side"),
    [(0.0, 0.0, "right"), (1.0, 0.0, "left"), (0.0, 1.0, "right"), (1.0, 1.0, "none")],
)
def test_padding_is_put_where_it_changes_nothing(monkeypatch, right, left, side):
    rows = [{"input_ids": [1] * n, "labels": 0} for n in (9, 2, 5, 7, 3, 4)]
    asked = []

    def predict(_model, given, pad):
        lengths = [len(row["input_ids"]) for row in given]
        logits = torch.tensor([[n, 100.0] for n in lengths])
        if isinstance(pad, Padding):
            asked.append((lengths, pad))
            logits[0] += {"right": right, "left": left}[pad.side]
        return logits

    monkeypatch.setattr(pooling, "predict_logits", predict)
    assert pooling.find_neutral_padding(None, rows, 5) == Padding(5, side)
    # the shortest, the longest, and two between
    assert asked[0] == ([2, 3, 5, 9], Padding(5, "right"))
    assert pooling.find_neutral_padding(None, [], 5) == Padding(5)
    assert pooling.find_neutral_padding(None, [rows[0]] * 4, 5) == Padding(5)


def test_words_of_a_notebook_are_coloured_by_each_attribution():
    words = pd.DataFrame({"word": ["a", "<b>"], "one": [2.0, -1.0], "two": [0.0, 4.0]})
    made = sentence.Explanation("c<d", 0.25, words, words, words, 1)
    assert made._repr_html_() == (
        "<p><b>c&lt;d</b> (0.250)</p>"
        '<p><i>one</i> <span style="background: rgba(214,90,40,1.00)">a</span> '
        '<span style="background: rgba(40,100,200,0.50)">&lt;b&gt;</span></p>'
        '<p><i>two</i> <span style="background: rgba(214,90,40,0.00)">a</span> '
        '<span style="background: rgba(214,90,40,1.00)">&lt;b&gt;</span></p>'
    )
