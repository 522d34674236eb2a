"""Small models: what each reads, what its blocks are, cells made once, verdicts on records made up to hold or fail."""

import json
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.errors import OutputError
from anisoscope.store import Busy, as_records, select
from anisoscope_papers import runner
from anisoscope_papers.beyond import dimension, small_cells, small_models
from anisoscope_papers.beyond.small_cells import (
    add_setting_columns,
    compare_classes,
    measure,
    read_or_measure,
)
from anisoscope_papers.beyond.small_models import (
    EACH,
    FIRST,
    MEAN,
    TREEBANK,
    SmallCell,
    SmallGrid,
    build_untrained,
    open_material,
)
from anisoscope_papers.fosse2023.entry import Seeds
from anisoscope_papers.study import Context

PLAN = SmallGrid(
    (("synthetic:3", FIRST),),
    dims=(8,),
    seeds=1,
    steps=60,
    limit=90,
    held=60,
    rate=3e-2,
)
STUDIES = {
    s.name: s
    for s in runner.find_studies()
    if s.name in ("pooling", "dimension", "whole")
}


@pytest.fixture
def context(tmp_path):
    return Context(tmp_path, tmp_path / "cache")


def batch(read, task="synthetic:3"):
    made = open_material(task, 90, 60, 0)
    return made, *made.batch("test", [3, 11, 12], read)


def test_a_tag_stands_at_each_word_and_nowhere_else():
    made, inputs, labels = batch(EACH)
    examples = made.corpus.splits["test"]
    assert {split: len(rows) for split, rows in made.encoded.items()} == {
        "train": 90,
        "test": 60,
    }
    for row, i in enumerate((3, 11, 12)):
        marks = [int(examples[i].label + 1) if m else 0 for m in examples[i].rationale]
        n = len(marks)
        assert labels[row, 0] == -100 and labels[row, 1 : n + 1].tolist() == marks
        assert (labels[row, n + 1 :] == -100).all() and inputs["attention_mask"][
            row
        ].sum() == n + 1
    assert (
        made.labels(EACH) == ("none", *made.corpus.labels)
        and made.labels(FIRST) == made.corpus.labels
    )


def test_the_treebank_has_genres_and_tags(tmp_path, monkeypatch):
    import gzip

    (tmp_path / "ud_ewt").mkdir()
    for split in ("train", "test"):
        rows = [
            {
                "tokens": [f"w{i}", "a", "b", "c", "d"],
                "upos": ["X", "A", "B", "A", "X"],
                "genre": "ab"[i % 2],
            }
            for i in range(8)
        ]
        for length in (4, 41):
            row = {"tokens": ["x"] * length, "upos": ["X"] * length, "genre": "a"}
            rows.append(row)
        # Sentences of the test split have neither every genre nor every tag.
        if split == "test":
            tags = ["B", "X"] * 20
            rows = [{"tokens": ["a"] * 40, "upos": tags, "genre": "b"}]
        text = "\n".join(json.dumps(row) for row in rows)
        (tmp_path / "ud_ewt" / f"{split}.jsonl.gz").write_bytes(
            gzip.compress(text.encode())
        )
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    made = small_models.open_material.__wrapped__(TREEBANK, 100, 100, 0)
    assert made.corpus.labels == ("a", "b") and made.names == ("A", "B", "X")
    assert len(made.encoded["train"]) == 8 and made.tags["train"][0] == [
        -100,
        2,
        0,
        1,
        0,
        2,
    ]
    (test,) = made.corpus.splits["test"]
    assert (test.label, made.tags["test"]) == (1, [[-100, *[1, 2] * 20]])


@pytest.mark.parametrize("read", [FIRST, MEAN, EACH])
def test_what_is_read_is_what_is_said_and_padding_changes_nothing(read):
    made, inputs, labels = batch(read)
    cell = SmallCell("synthetic:3", read, layers=2, dim=8)
    model = build_untrained(cell, made).eval()
    with torch.no_grad():
        states = model.states(**inputs)
        whole = model.attention_classifier(**inputs).last_hidden_state
        for row in range(3):
            n = int(inputs["attention_mask"][row].sum())
            alone = model.states(
                inputs["input_ids"][row : row + 1, :n],
                inputs["attention_mask"][row : row + 1, :n],
            )
            expected = {
                FIRST: whole[row, 0],
                MEAN: whole[row, 1:n].mean(0),
                EACH: whole[row, :n],
            }[read]
            got = states[row, :n] if read == EACH else states[row]
            assert torch.allclose(got, expected, atol=1e-5) and torch.allclose(
                got, alone[0], atol=1e-5
            )
    assert labels.shape == states.shape[:-1]
    # In training as well, where rows that are not read need not be computed.
    with torch.no_grad():
        assert torch.allclose(model.train().states(**inputs), states, atol=1e-5)


@pytest.mark.parametrize("blocks", small_models.BLOCKS)
def test_blocks_are_what_their_names_say(blocks):
    made = open_material("synthetic:3", 90, 60, 0)
    model = build_untrained(SmallCell("synthetic:3", EACH, blocks, 1, 8), made).eval()
    norm, width = small_models.BLOCKS[blocks]
    block = model.attention_classifier.blocks[0]
    with torch.no_grad():
        x = torch.randn(1, 5, 8)
        y = x + block.attention(x, None)
        normed = {
            "none": lambda y: y,
            "plain": lambda y: (y - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True),
            "layer_norm": lambda y: torch.nn.functional.layer_norm(y, (8,)),
        }[norm]
        y = normed(y)
        if width:
            first, _, second = block.inner
            assert first.out_features == 8 * width
            y = normed(y + second(torch.nn.functional.gelu(first(y))))
        assert torch.allclose(block(x), y, atol=1e-5)


def test_attention_begins_alike_with_and_without_a_feed_forward_part():
    """Of blocks with such a part, too, weights are drawn as the authors draw them, and not as torch does."""
    made = open_material("synthetic:3", 90, 60, 0)
    for blocks in ("norm", "feed-forward"):
        model = build_untrained(SmallCell("synthetic:3", EACH, blocks, 2, 8), made)
        for block in model.attention_classifier.blocks:
            attention = block.attention
            assert not attention.in_proj.bias.any()
            assert not attention.out_proj.bias.any()


def test_a_small_model_is_trained_by_adam_with_a_warm_up_and_short_gradients():
    """The same steps by hand: the mean loss of all tagged words, its gradient cut to length 1, Adam of Kingma & Ba."""
    made = open_material("synthetic:3", 90, 60, 0)
    cell = SmallCell("synthetic:3", EACH, dim=16, seed=3)
    plan = SmallGrid((("synthetic:3", EACH),), steps=20, batch=8, rate=2e-3)
    model, by_hand = (build_untrained(cell, made) for _ in range(2))
    for one in (model, by_hand):
        # Far off: its first gradients are longer than 1.
        one.classifier.weight.data.mul_(10)
    small_models.train(model, cell, made, plan)
    weights, lengths = list(by_hand.parameters()), []
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    draw = torch.Generator().manual_seed(3)
    chosen = list(small_models._draw_batches(90, 8, 20, draw))
    for step, numbers in enumerate(chosen, 1):
        inputs, labels = made.batch("train", numbers, EACH)
        logits = by_hand.classifier(by_hand.states(**inputs)).log_softmax(-1)
        tagged = labels >= 0
        loss = -logits[tagged].gather(1, labels[tagged][:, None]).mean()
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        length = torch.cat([g.flatten() for g in gradients]).norm()
        lengths.append(float(length))
        rate = 2e-3 * 2 * min(1, step / 2)
        with torch.no_grad():
            for w, g, m, v in zip(weights, gradients, first, second, strict=True):
                g = g / max(1.0, length)
                m.mul_(0.9).add_(g, alpha=0.1)
                v.mul_(0.999).add_(g**2, alpha=0.001)
                scale = (v / (1 - 0.999**step)).sqrt() + 1e-8
                w -= rate * m / (1 - 0.9**step) / scale
    assert min(lengths) < 1 < max(lengths)
    # What they say: the bias of keys, which no softmax can see, moves by rounding alone.
    inputs, _ = made.batch("test", list(range(60)), EACH)
    with torch.no_grad():
        said, expected = (
            one.classifier(one.states(**inputs)) for one in (model, by_hand)
        )
    torch.testing.assert_close(said, expected, atol=1e-3, rtol=1e-4)


def test_cells_are_trained_once_and_seen_before_and_after(context):
    (cell,) = PLAN.cells()
    found = read_or_measure(cell, PLAN, context, True)
    accuracy = add_setting_columns(select(found, metric="accuracy"))
    before, after = (
        accuracy[accuracy["untrained"] == known]["value"].item()
        for known in (True, False)
    )
    assert before < 0.6 < after and set(add_setting_columns(found)["dim"]) == {8.0}
    assert {
        "intra_sequence",
        "class_direction.auc",
        "class_direction.dimensions",
        "majority",
    } <= set(found["metric"])
    path = next((context.cache / "small").glob("*.parquet"))
    made = path.stat().st_mtime_ns
    pd.testing.assert_frame_equal(read_or_measure(cell, PLAN, context, True), found)
    assert path.stat().st_mtime_ns == made
    other = SmallGrid(
        PLAN.tasks, dims=(8,), seeds=1, steps=61, limit=90, held=60, train=False
    )
    assert read_or_measure(cell, other, context, True) is None and not len(
        measure(other, context)
    )
    path.with_suffix(".json").write_text(json.dumps({cell.task: "another text"}))
    with pytest.raises(
        OutputError,
        match=f"the {cell.task} that the model in .*parquet was trained with",
    ):
        read_or_measure(cell, PLAN, context, True)


@pytest.mark.parametrize(
    ("right", "collapsed"), [(55, 1), (65, 1), (68, 1), (69, 0), (90, 0)]
)
@pytest.mark.parametrize("sentences", [100, 25])
def test_a_model_has_learnt_something_if_chance_would_not_give_as_much(
    sentences, right, collapsed, monkeypatch
):
    """Of 100 texts, or tagged words, 60 of the largest class: by always naming it 68 are right once in twenty draws."""
    truth = torch.tensor([0] * 60 + [1] * 40)
    said = torch.where(torch.arange(100) < right, truth, 1 - truth)
    monkeypatch.setattr(
        small_cells,
        "_read",
        lambda *_: (torch.eye(2)[said], truth, torch.arange(100) % sentences),
    )
    nothing = as_records(pd.DataFrame({"metric": []}))
    monkeypatch.setattr(
        small_cells, "run_pass", lambda *_: SimpleNamespace(records=lambda: nothing)
    )
    monkeypatch.setattr(small_cells, "LabelledPlan", lambda *_: None)
    made = SimpleNamespace(
        encoded={"test": range(sentences)},
        tokenizer=SimpleNamespace(pad_token_id=0),
        labels=lambda _read: ("a", "b"),
    )
    model = torch.nn.Sequential()
    model.classifier = torch.nn.Identity()
    found = small_cells.measure_model(model, PLAN.cells()[0], made).set_index("metric")[
        "value"
    ]
    assert (found["accuracy"], found["majority"], found["collapsed"]) == (
        right / 100,
        0.6,
        collapsed,
    )


def test_a_corpus_that_is_not_there_is_stood_in_for_and_said(context, monkeypatch):
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    plan = SmallGrid(
        ((TREEBANK, EACH),), dims=(8,), seeds=1, steps=2, limit=40, held=40
    )
    assert set(measure(plan, context)["corpus"]) == {"synthetic:5"}
    assert (
        context.lacking[0]["model"] == TREEBANK
        and context.lacking[0]["corpus"] == "synthetic:5"
    )


def test_all_small_models_are_read_and_one_that_another_process_trains_last(
    tmp_path, monkeypatch
):
    """Of three widths and two seeds; those of width 16 are not trained yet."""
    plan, reports = replace(PLAN, dims=(8, 16, 32), seeds=2), []
    context = Context(tmp_path, tmp_path, progress=lambda *given: reports.append(given))

    def read(cell, *given):
        *rest, wait = given
        assert rest == [plan, context]
        if (cell.dim, cell.seed) == (8, 0) and not wait:
            raise Busy("another process")
        if cell.dim == 16:
            return None
        row = {"metric": "accuracy", "value": cell.dim + cell.seed}
        return as_records(pd.DataFrame([row]))

    monkeypatch.setattr(small_cells, "read_or_measure", read)
    assert measure(plan, context)["value"].tolist() == [32, 9, 33, 8]
    assert reports == [("small models", done, 6) for done in range(1, 7)]


def test_at_step_0_no_model_is_blamed_for_what_it_has_not_learnt():
    rows = [
        row("collapsed", 1.0, corpus="synthetic:3", step0=step0, seed=0)
        for step0 in (True, False)
    ]
    rows.append(row("accuracy", 0.5, corpus="synthetic:3", step0=True, seed=0))
    found = add_setting_columns(as_records(pd.DataFrame(rows)))
    pairs = list(zip(found["metric"], found["untrained"], strict=True))
    assert pairs == [("collapsed", False), ("accuracy", True)]
    # Generated sentences are what these studies are about, and stand in for none.
    (here,) = small_cells.OfSmall("pooling", found).corpora
    assert (here.title, here.note) == ("3 synthetic classes", "1 learnt nothing")


def test_each_seed_has_a_generated_corpus_of_its_own(context, monkeypatch):
    seen = []

    def measure_nothing(_model, cell, sentences):
        seen.append((cell.seed, sentences.corpus.splits))
        return pd.DataFrame([{"metric": "accuracy", "value": 1.0}])

    monkeypatch.setattr(small_cells, "measure_model", measure_nothing)
    monkeypatch.setattr(small_cells, "train", lambda *_: None)
    made = {}
    for seed in (0, 1):
        cell = replace(PLAN.cells()[0], seed=seed)
        found = read_or_measure(cell, PLAN, context, wait=True)
        assert found["model"].tolist() == [f"{cell.label} untrained", cell.label]
        assert found["seed"].tolist() == [seed] * 2
        assert found["corpus"].tolist() == ["synthetic:3"] * 2
        made[seed] = open_material("synthetic:3", 90, 60, seed).corpus.splits
    assert made[0] != made[1]
    # Before and after training.
    assert seen == [(seed, made[seed]) for seed in (0, 0, 1, 1)]


def test_cosines_between_classes_are_of_mean_directions():
    x = np.array([[2.0, 0], [1, 0.0], [0, 3], [0, 1], [-5, 0], [-1, 0]])
    found = compare_classes(x, np.array([0, 0, 1, 1, 2, 2]))
    assert found["most"] == pytest.approx(0) and found["mean"] == pytest.approx(-1 / 3)


def test_the_width_that_is_enough():
    table = {2.0: [0.2, 0.2], 4.0: [0.9, 0.89], 8.0: [0.5, 0.9], 16.0: [0.9, np.nan]}
    accuracy = Seeds(
        {width: np.array(x) for width, x in table.items()}, np.full(2, np.nan)
    )
    first, second = dimension.find_saturation(accuracy)
    assert first == 16 and np.isnan(second)
    del accuracy[8.0]
    assert dimension.find_saturation(accuracy)[0] == 4


def row(
    metric,
    value,
    *,
    corpus="ud_ewt",
    read=FIRST,
    blocks="norm",
    layers=3,
    dim=64,
    step0=False,
    **place,
):
    label = f"read={read} blocks={blocks} L={layers} d={dim}" + " untrained" * step0
    return {"metric": metric, "value": value, "corpus": corpus, "model": label} | place


def outcomes(study, rows):
    found = STUDIES[study].judge(as_records(pd.DataFrame(rows)))
    return {v.claim: v.outcome for v in found}


@pytest.mark.parametrize(("effect", "expected"), [(0.3, "holds"), (-0.3, "fails")])
def test_pooling(effect, expected):
    rows = []
    for s, (read, more), step0 in product(
        range(4), {FIRST: 1, MEAN: 2, EACH: 0}.items(), (True, False)
    ):
        alike = (
            0.3
            + (0 if step0 else more * effect)
            + 0.003 * np.sin(7 * s + more + 3 * step0)
        )
        if read == EACH and not step0 and expected == "fails":
            alike += 0.3
        where = {"seed": s, "read": read, "step0": step0, "layer": 3}
        rows += [
            row("intra_sequence", alike, site=site, token_policy="content", **where)
            for site in ("hidden", "value")
        ]
        rows.append(
            row(
                "class_direction.auc",
                (0.5 if step0 else 0.97 if effect > 0 else 0.4)
                + 0.001 * s * (2 - step0),
                **where,
            )
        )
    assert set(outcomes("pooling", rows).values()) == {expected}


def test_dimensions_and_whole_encoders():
    rows = []
    for s, (place, count), width in product(
        range(3), enumerate(dimension.CLASSES), dimension.WIDTHS
    ):
        where = {"corpus": f"synthetic:{count}", "seed": s, "layers": 1, "dim": width}
        right = 0.9 if width >= (2, 4, 8, 16, 32 * (1 + s % 2))[place] else 0.3
        rows.append(
            row(
                "accuracy",
                right + 0.002 * np.sin(5 * s + count + width),
                component="test",
                **where,
            )
        )
        rows.append(
            row("class_cosine.most", -1 / (count - 1) + 0.01 * np.sin(s), **where)
        )
        taken = (count - 1) * (0.95 + 0.005 * np.sin(3 * s))
        rows.append(row("class_direction.dimensions", taken, layer=1, **where))
    found = outcomes("dimension", rows)
    assert (
        found["a simplex where there is room"]
        == found["classes take every dimension they can"]
        == "holds"
    )
    assert found["fewer dimensions than classes"] == "fails"
    assert found["more classes need more dimensions"] == "holds"
    rows = []
    for s, (place, blocks), n in product(
        range(3), enumerate(small_models.BLOCKS), (1, 2, 3)
    ):
        for step0 in (True, False):
            gained = 0 if step0 else (0.05, 0.2, 0.4, 0.3, 0.39)[place]
            where = {
                "seed": s,
                "blocks": blocks,
                "layers": n,
                "layer": n,
                "step0": step0,
            }
            alike = 0.2 + gained + 0.004 * np.sin(s + place + 2 * step0 + n)
            rows.append(
                row(
                    "intra_sequence",
                    alike,
                    site="hidden",
                    token_policy="content",
                    **where,
                )
            )
    assert outcomes("whole", rows) == dict.fromkeys(
        (
            "a whole encoder converges",
            "attention alone converges",
            "the norm adds to it",
            "its gain adds to it",
        ),
        "holds",
    ) | {"feed-forward adds to it": "holds", "most of it is attention's": "undecided"}
    for study in STUDIES.values():
        assert study.draw(as_records(pd.DataFrame(rows))) is not None
