"""Studies of positions, of frozen attention, and of seeds × utterances × splits: how their cells are trained, named,
measured and judged.
"""

from dataclasses import replace
from itertools import count, product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.errors import CorpusError, ModelError, UsageError
from anisoscope.store import Busy, as_records, select
from anisoscope_papers import runner
from anisoscope_papers.beyond import cells, crossed, frozen, positions
from anisoscope_papers.fosse2023 import grid
from anisoscope_papers.fosse2023.entry import Seeds
from anisoscope_papers.fosse2023.grid import PAPER, RECIPES, Cell, Grid
from anisoscope_papers.networks.attention_classifier import (
    AttentionClassifier,
    AttentionClassifierConfig,
)
from anisoscope_papers.study import FEWEST, Context
from anisoscope_papers.training.classifier import train_classifier
from anisoscope_papers.training.recipe import ClassifierRecipe

STUDIES = {
    study.name: study for study in runner.find_studies() if study.paper == "beyond"
}
SMALL = ClassifierRecipe(
    corpus="synthetic", limit=96, vectors="random", dim=16, epochs=2
)


# the model and its training


def logits_of(ids, **changes):
    torch.manual_seed(0)
    config = AttentionClassifierConfig(
        vocab_size=20, hidden_size=8, num_labels=2, max_position_embeddings=9, **changes
    )
    model = AttentionClassifier(config).eval()
    with torch.no_grad():
        return model, model(torch.tensor([ids])).logits


def test_without_positions_the_order_of_words_changes_nothing():
    forth, back = [19, 3, 4, 5, 6], [19, 6, 5, 4, 3]
    for changes in ({"positions": "none"}, {"position_scale": 0.0}):
        torch.testing.assert_close(
            logits_of(forth, **changes)[1], logits_of(back, **changes)[1]
        )
    for changes in ({}, {"position_scale": 0.25}, {"positions": "learned"}):
        assert (
            logits_of(forth, **changes)[1] - logits_of(back, **changes)[1]
        ).abs().max() > 1e-5


def test_learned_positions_start_near_zero_and_are_trained(tmp_path):
    model, _ = logits_of([19, 3, 4], positions="learned")
    assert (
        0.015
        < float(model.attention_classifier.positions.weight.detach().std())
        < 0.025
    )
    done = train_classifier(
        replace(SMALL, positions="learned", rate=0.05), tmp_path / "run"
    )
    table = done.classifier()[0].attention_classifier.positions.weight.detach()
    assert float(table[:5].abs().max()) > float(table[500:].abs().max())


def test_a_training_of_fixed_length_keeps_its_last_step(tmp_path):
    recipe = ClassifierRecipe(
        corpus="synthetic", limit=96, vectors="random", dim=16, steps=5
    )
    done = train_classifier(recipe, tmp_path / "run")
    assert done.training["steps"] == done.training["kept_step"] == 5
    assert done.training["recipe"]["epochs"] is None
    longer = train_classifier(replace(recipe, steps=6), tmp_path / "longer")
    before, after = (one.classifier()[0].classifier.weight for one in (done, longer))
    assert not torch.equal(before, after)


@pytest.mark.parametrize("after", [0, 3])
def test_attention_is_frozen_after_so_many_steps(tmp_path, after):
    base = replace(SMALL, epochs=None)
    free = train_classifier(replace(base, steps=max(after, 1)), tmp_path / "free")
    recipe = replace(base, steps=5, attention="frozen", freeze_after=after)
    kept = (
        train_classifier(recipe, tmp_path / "kept")
        .classifier()[0]
        .attention_classifier.blocks[0]
        .attention
    )
    now = kept.in_proj.weight[:32]
    then = (
        free.classifier()[0]
        .attention_classifier.blocks[0]
        .attention.in_proj.weight[:32]
    )
    assert torch.equal(now, then) == (after > 0)
    if after == 0:
        start = cells.CellAtStart(
            Cell("synthetic", dim=16),
            replace(Grid(corpora=("synthetic",)), limit=96),
            tmp_path,
        )
        assert torch.equal(
            now,
            start.classifier[0]
            .attention_classifier.blocks[0]
            .attention.in_proj.weight[:32],
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"freeze_after": 3},
        {"positions": "none", "position_scale": 0.25},
        {"positions": "learned", "text": True},
        {"steps": 5, "epochs": 2},
        {"steps": 5, "patience": 2},
        {"positions": "rotary"},
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes):
    with pytest.raises(UsageError):
        ClassifierRecipe(corpus="synthetic", **changes)


# cells


def every_cell():
    return [
        *PAPER.by_positions(),
        *PAPER.by_length(),
        *PAPER.by_split(),
        *PAPER.by_direction(),
    ]


def test_labels_say_what_a_cell_is():
    asked = list(dict.fromkeys(every_cell()))
    found = grid.add_options(pd.DataFrame({"model": [cell.label for cell in asked]}))
    assert len({(cell.label, cell.corpus, cell.seed) for cell in asked}) == len(asked)
    for cell, row in zip(asked, found.itertuples(), strict=True):
        assert (row.positions, row.scale, row.arm, row.split) == (
            cell.positions,
            cell.scale,
            cell.arm,
            cell.split,
        )
        assert (row.freeze_after == cell.freeze_after) or (
            np.isnan(row.freeze_after) and cell.freeze_after is None
        )
        assert (row.steps == cell.steps) or (np.isnan(row.steps) and cell.steps is None)
    own = [cell.label for cell in grid.PAPER.by_depth()]
    assert set(grid.add_options(pd.DataFrame({"model": own}))["family"]) == {grid.OWN}


def test_every_cell_is_one_training():
    asked = list(dict.fromkeys(every_cell()))
    assert len({PAPER.recipe(cell).filled() for cell in asked}) == len(asked)


def test_cells_are_measured_once_and_taken_from_earlier_records(tmp_path, monkeypatch):
    plan = Grid(
        corpora=("synthetic",), limit=160, epochs=2, utterances=30, vector_norm=5.0
    )
    asked = [
        Cell("synthetic", positions="none"),
        Cell("synthetic", positions="none", arm="uniform"),
    ]
    context = Context(tmp_path / "study", tmp_path / "cache")
    first = cells.collect_records(asked, plan, context)
    assert not list((tmp_path / "cache" / "cells").glob("*/"))
    assert not first["metric"].isin(["missing", "diverged"]).any()
    learned = select(first, model=asked[0].label)
    accuracy = {
        row.component: row.value
        for row in select(learned, metric="accuracy").itertuples()
    }
    for row in select(learned, metric=cells.RIGHT).itertuples():
        name, right = cells.unpack_bits(
            row.component, int(select(learned, metric="accuracy")["n_units"].max())
        )
        assert right.mean() == pytest.approx(accuracy[name]) == pytest.approx(row.value)
    at_start = select(
        first,
        model=asked[0].label + grid.UNTRAINED,
        metric="cls_entropy",
        component="row",
    )
    assert at_start["value"].tolist() == pytest.approx(
        [1.0], abs=1e-3
    )  # the query of [CLS] is 0 without positions
    assert not len(select(first, model=asked[1].label, metric="cls_entropy"))

    def refuse(*_given):
        raise AssertionError("trained again")

    monkeypatch.setattr(cells, "train_cell", refuse)
    pd.testing.assert_frame_equal(cells.collect_records(asked, plan, context), first)
    (tmp_path / "elsewhere").mkdir()
    cells.write_table(tmp_path / "elsewhere" / "records.parquet", first)
    again = cells.collect_records(
        asked, plan, Context(tmp_path / "elsewhere", tmp_path / "empty")
    )
    pd.testing.assert_frame_equal(again, first)
    absent = cells.collect_records(
        [replace(asked[0], seed=9)], replace(plan, train=False), context
    )
    assert absent["metric"].tolist() == ["missing"]


def test_accuracies_are_of_all_test_utterances_and_of_uniform_attention_in_every_layer(
    monkeypatch,
):
    labels, asked = [0, 1, 1, 0], []

    def batches(limit, split="test"):
        asked.append((limit, split))
        return SimpleNamespace(encoded=SimpleNamespace(labels=labels))

    def outcome(_model, _plan, kind, layers):
        asked.append((kind, layers))
        return np.array([0, 1, 0, 0] if layers else labels), None

    monkeypatch.setattr(cells, "average_outcome", outcome)
    of_test = {"accuracy": 1.0, "n": 4, "majority": 0.5}
    training = {"collapsed": False, "steps": 7, "kept_step": 5}
    training["results"] = {
        "validation": {"accuracy": 0.6, "n": 9, "majority": 0.4},
        "test": of_test,
    }
    for arm, layers in (("learned", (1, 2, 3)), ("uniform", None)):
        given = {
            "cell": Cell("synthetic", layers=3, arm=arm),
            "found": SimpleNamespace(training=training),
        }
        corpus = SimpleNamespace(labels=("a", "b", "c"))
        trained = SimpleNamespace(
            **given, classifier=("model", "tokenizer"), batches=batches, corpus=corpus
        )
        found = cells._measure_accuracies(trained)
        # as many as each class could have, since the classes need not be equally many
        assert asked == [
            (12, "test"),
            ("uniform", ()),
            *([("uniform", layers)] if layers else []),
        ]
        asked.clear()
        accuracy = {
            row.component: (row.value, row.n_units)
            for row in select(found, metric="accuracy").itertuples()
        }
        afterwards = {cells.AFTERWARDS: (0.75, 4)} if layers else {}
        assert accuracy == {"validation": (0.6, 9), "test": (1.0, 4)} | afterwards
        bits = dict(
            cells.unpack_bits(text, 4)
            for text in select(found, metric=cells.RIGHT)["component"]
        )
        assert bits.pop("test").all() and [*bits] == [*afterwards]
        assert [value.tolist() for value in bits.values()] == [
            [True, True, False, True]
        ] * len(afterwards)
        told = select(found, metric=("majority", "kept_step")).set_index("metric")[
            "value"
        ]
        assert told.to_dict() == {"majority": 0.5, "kept_step": 5.0}


def test_geometry_is_of_the_short_reviews_if_there_are_any():
    asked = []

    class Stop(Exception):
        pass

    def batches(limit, split):
        asked.append((limit, split))
        raise Stop

    for splits, expected in (
        ({"test": ()}, "test"),
        ({"test": (), grid.SHORT: ()}, grid.SHORT),
    ):
        corpus, plan = SimpleNamespace(splits=splits), SimpleNamespace(utterances=30)
        with pytest.raises(Stop):
            cells._measure_geometry(
                SimpleNamespace(
                    corpus=corpus, plan=plan, classifier=(None,), batches=batches
                )
            )
        assert asked.pop() == (30, expected)


@pytest.mark.parametrize("utterances", [True, False])
def test_a_study_keeps_records_of_single_utterances_only_if_it_says_so(
    utterances, monkeypatch
):
    metrics = [
        cells.RIGHT,
        "accuracy",
        "majority",
        "collapsed",
        "missing",
        "diverged",
        "norms.mean",
        "cls_entropy",
    ]
    found = as_records(pd.DataFrame({"metric": metrics, "value": 1.0}))
    monkeypatch.setattr(cells, "collect_records", lambda *_: found)
    monkeypatch.setattr(
        cells, "declare_entry", lambda _name, *, measure, **_how: measure
    )
    how = {"tests": None, "draw": None, "utterances": utterances}
    kept = cells.declare_cell_study("any", lambda _plan: [], **how)(None, None)[
        "metric"
    ].tolist()
    assert kept == (metrics[:6] if utterances else metrics[1:])


@pytest.mark.parametrize("error", [CorpusError, ModelError])
def test_one_look_for_what_cannot_be_had_is_enough(tmp_path, monkeypatch, error):
    """A download that fails takes long to fail, that of word vectors as well as that of a corpus."""
    looked, noted, reports = [], [], []

    def lost(cell, *how):
        assert how == (plan, cells.find_table(cell, plan, context.cache), "cuda")
        looked.append(cell.corpus)
        raise error("what is read", cell.corpus, "none")

    monkeypatch.setattr(cells, "_keep_measured", lost)
    context = Context(
        tmp_path,
        tmp_path / "cache",
        device="cuda",
        progress=lambda *given: reports.append(given),
    )
    plan = Grid(corpora=("synthetic",))
    monkeypatch.setattr(
        type(context),
        "note_unavailable",
        lambda _self, name, _error: noted.append(name),
    )
    asked = [Cell("synthetic", seed=seed) for seed in range(3)] + [Cell("planted")]
    found = cells.collect_records(asked, plan, context)
    assert looked == noted == ["synthetic", "planted"]
    assert found["metric"].tolist() == ["missing"] * 4
    assert found["corpus"].tolist() == ["synthetic"] * 3 + ["planted"]
    assert found["seed"].tolist() == [0, 1, 2, 0]
    assert reports == [("classifiers", done, 4) for done in (1, 2, 3, 4)]


def test_a_cell_that_another_process_trains_is_waited_for_last(tmp_path, monkeypatch):
    asked = [Cell("synthetic", seed=seed) for seed in range(3)]

    def keep(cell, _plan, table, _device):
        table.parent.mkdir(parents=True, exist_ok=True)
        rows = pd.DataFrame([{"metric": "accuracy", "value": 1.0}])
        cells.write_table(table, as_records(rows, seed=cell.seed))

    def once(table, make, *, wait):
        if table == first and not wait:
            raise Busy(table)
        make()

    monkeypatch.setattr(cells, "_keep_measured", keep)
    monkeypatch.setattr(cells, "make_once", once)
    plan, context = Grid(corpora=("synthetic",)), Context(tmp_path, tmp_path / "cache")
    first = cells.find_table(asked[0], plan, context.cache)
    found = cells.collect_records(asked, plan, context)
    assert found["seed"].tolist() == [1, 2, 0]


# judging

CALLS = [count()]


@pytest.fixture(autouse=True)
def same_noise():
    """Noise that does not depend on which tests ran before."""
    CALLS[0] = count()


def noisy(value, noise=0.001):
    return value + noise * np.sin(3 * value + 2.4 * next(CALLS[0]))


def row(cell, metric, value, **place):
    label = cell.label + place.pop("suffix", "")
    return {
        "metric": metric,
        "value": value,
        "corpus": cell.corpus,
        "seed": cell.seed,
        "model": label,
        **place,
    }


def rows_of_positions(entropy, used, needed):
    """One layer of four seeds of every recipe: H, and what uniform attention changes, by recipe."""
    rows = []
    for seed, corpus, (name, (kind, scale)) in product(
        range(4), grid.REAL, RECIPES.items()
    ):
        place = {"layer": 1, "token_policy": "all"}
        for arm in ("learned", "uniform", "frozen"):
            after = 0 if arm == "frozen" else None
            cell = Cell(
                corpus,
                seed=seed,
                arm=arm,
                positions=kind,
                scale=scale,
                freeze_after=after,
            )
            accuracy = 0.8 + (needed(name) if arm != "learned" else 0)
            rows.append(row(cell, "accuracy", noisy(accuracy), component="test"))
            if arm != "learned":
                continue
            rows.append(
                row(
                    cell,
                    "accuracy",
                    noisy(accuracy + used(name)),
                    component=cells.AFTERWARDS,
                )
            )
            rows.append(
                row(
                    cell,
                    "cls_entropy",
                    noisy(entropy(name)),
                    component="reported",
                    layer=1,
                )
            )
            for site, suffix in product(
                (cells.KEYS, cells.VALUES), ("", grid.UNTRAINED)
            ):
                alike = 0.2 if suffix else 0.3 + 0.3 * (name == "sinusoids")
                rows.append(
                    row(
                        cell,
                        "intra_sequence",
                        noisy(alike),
                        site=site,
                        suffix=suffix,
                        **place,
                    )
                )
    return as_records(pd.DataFrame(rows))


def outcomes(study, records):
    return {(v.claim, v.subject): v.outcome for v in STUDIES[study].judge(records)}


@pytest.mark.parametrize("name", ["positions", "needed"])
def test_without_a_model_claims_are_listed_of_one_layer_and_undecided(name):
    rows = [row(Cell("esnli", seed=seed), "missing", 1.0) for seed in range(3)]
    verdicts = STUDIES[name].judge(as_records(pd.DataFrame(rows)))
    (primary,) = (claim.name for claim in STUDIES[name].claims if claim.primary)
    subjects = {v.subject for v in verdicts if v.claim == primary}
    assert subjects == {"e-SNLI, L = 1"}
    for verdict in verdicts:
        assert verdict.outcome == "undecided"
        assert "3 of the planned classifiers not trained yet" in verdict.reason


def test_positions_are_judged_recipe_by_recipe():
    of_none = {"no positions": 1.0}
    records = rows_of_positions(
        lambda name: 0.97 if name in of_none else 0.2,
        lambda name: 0.0 if name in of_none else -0.3,
        lambda name: 0.0 if name in of_none else -0.1,
    )
    found = outcomes("positions", records)
    for corpus in ("YelpHat", "HateXplain", "e-SNLI"):
        assert found["positions make attention sharp", f"{corpus}, L = 1"] == "holds"
        assert found["positions make attention used", f"{corpus}, L = 1"] == "holds"
        assert found["so in deeper models", corpus] == "undecided"
        for claim in ("nearly uniform", "not used", "not needed"):
            assert found[claim, f"{corpus}, L = 1, no positions"] == "holds"
            assert found[claim, f"{corpus}, L = 1, sinusoids"] == "fails"
        assert found["keys converge", f"{corpus}, L = 1, sinusoids"] == "holds"
    of_several_layers = {"nearly uniform in every layer"}
    assert {claim for claim, _ in found} | of_several_layers == {
        claim.name for claim in STUDIES["positions"].claims
    }
    same = outcomes(
        "positions", rows_of_positions(lambda _: 0.5, lambda _: 0.0, lambda _: 0.0)
    )
    assert same["positions make attention sharp", "YelpHat, L = 1"] == "fails"
    assert same["positions make attention used", "YelpHat, L = 1"] == "fails"
    assert set(STUDIES["positions"].draw(records)) == {"positions_1", "positions_2"}


@pytest.mark.parametrize(
    ("entropies", "expected"), [((1.0, 0.05), "fails"), ((1.0, 0.97), "holds")]
)
def test_models_of_several_layers_are_judged_by_their_sharpest_too(entropies, expected):
    """The first layer stays as it was drawn, and was all that was looked at: sharp layers above it were not seen."""
    rows = []
    for seed, corpus in product(range(4), grid.REAL):
        cell = Cell(corpus, seed=seed, layers=2, positions="none")
        rows.append(row(cell, "accuracy", noisy(0.8), component="test"))
        for layer, entropy in enumerate(entropies, 1):
            rows.append(
                row(
                    cell,
                    "cls_entropy",
                    noisy(entropy),
                    component="reported",
                    layer=layer,
                )
            )
            untrained = {
                "suffix": grid.UNTRAINED,
                "component": "reported",
                "layer": layer,
            }
            rows.append(row(cell, "cls_entropy", noisy(0.02), **untrained))
    found = outcomes("positions", as_records(pd.DataFrame(rows)))
    for corpus in ("YelpHat", "HateXplain", "e-SNLI"):
        assert found["nearly uniform", f"{corpus}, L = 2, no positions"] == "holds"
        assert (
            found["nearly uniform in every layer", f"{corpus}, L = 2, no positions"]
            == expected
        )


@pytest.mark.parametrize(("gain", "expected"), [(0.0, "holds"), (0.2, "fails")])
def test_frozen_attention_is_judged_by_its_steps(gain, expected):
    rows = []
    for cell in PAPER.by_length():
        noise = 0.02 if gain and cell.arm == "frozen" else 0.001
        share = (
            1.0
            if cell.arm == "learned"
            else 0.0
            if cell.arm == "uniform"
            else cell.freeze_after / 480
        )
        rows.append(
            row(cell, "accuracy", noisy(0.7 + gain * share, noise), component="test")
        )
    records = as_records(pd.DataFrame(rows))
    found = outcomes("frozen", records)
    assert found["a tenth of training is enough", "YelpHat, no positions"] == expected
    assert found["untrained attention is enough", "e-SNLI, sinusoids"] == expected
    trend = found["more steps of attention, more accuracy", "HateXplain, sinusoids"]
    assert trend == ("fails" if gain == 0 else "holds")
    assert set(STUDIES["frozen"].draw(records)) == {"frozen_1"}


def test_the_trend_of_frozen_attention_is_over_its_steps_alone():
    """Uniform attention (−1) is no attention of fewer steps than none."""
    rising, falling = np.linspace(0.6, 0.9, 4), np.linspace(0.9, 0.6, 4)
    for uniform in (0.1, 0.75, 1.0):
        table = {-1.0: np.full(2, uniform)}
        for step, of_seeds in zip(
            (0, 38, 240, 480), np.stack([rising, falling], 1), strict=True
        ):
            table[step] = of_seeds
        found = frozen.correlate_with_steps(Seeds(table, np.full(2, np.nan)))
        np.testing.assert_allclose(found, [1, -1])


def test_the_last_layer_of_a_model_is_that_of_its_own_depth():
    depths = [(layer, layers) for layers in (1, 3, 2) for layer in range(layers + 1)]
    rows = pd.DataFrame(depths, columns=["layer", "layers"]).astype(float)
    rows = rows.assign(
        metric="intra_sequence",
        token_policy="all",
        site=positions.KEYS,
        value=range(len(rows)),
    )
    found = positions.select_last_layer(rows, positions.KEYS)
    assert found[["layer", "layers"]].to_numpy().tolist() == [[1, 1], [3, 3], [2, 2]]
    assert positions.select_last_layer(rows, positions.VALUES).empty


def test_bits_survive():
    right = np.random.default_rng(0).random(37) < 0.4
    name, found = cells.unpack_bits(
        cells.pack_bits("test, uniform afterwards", right), 37
    )
    assert name == "test, uniform afterwards" and np.array_equal(found, right)


def simulated(generator, rows, columns, of_rows, of_columns, rest):
    effects = of_rows * generator.normal(
        size=(rows, 1)
    ) + of_columns * generator.normal(size=(1, columns))
    return effects + rest * generator.normal(size=(rows, columns))


@pytest.mark.parametrize(
    ("of_rows", "of_columns", "least"),
    [(0.1, 0.0, 0.93), (0.0, 0.3, 0.93), (0.1, 0.3, 0.93), (0.0, 0.0, 0.95)],
)
def test_crossed_intervals_cover(of_rows, of_columns, least):
    """Eight seeds × 300 utterances, over 2,000 draws; where neither varies the interval is too wide, not too narrow."""
    generator = np.random.default_rng(1)
    drawn = [
        simulated(generator, 8, 300, of_rows, of_columns, 0.4) for _ in range(2000)
    ]
    inside = [
        low <= 0 <= high
        for _, low, high, _ in map(crossed.estimate_crossed_interval, drawn)
    ]
    assert least <= np.mean(inside) <= 1.0
    alone = [
        abs(np.mean(x)) <= 1.96 * np.std(x.mean(0), ddof=1) / np.sqrt(300)
        for x in drawn
    ]
    if of_rows:
        assert (
            np.mean(alone) < 0.7
        )  # an interval over utterances alone misses what seeds do


def test_crossed_interval_of_one_kind_of_variation_is_student_s():
    by_row = np.array([0.1, 0.3, 0.2, 0.6])
    mean, low, high, freedom = crossed.estimate_crossed_interval(
        np.repeat(by_row[:, None], 50, 1)
    )
    half = 3.1824 * by_row.std(ddof=1) / 2
    assert (mean, low, high) == pytest.approx((0.3, 0.3 - half, 0.3 + half), abs=1e-4)
    assert freedom == pytest.approx(3)
    assert np.isnan(crossed.estimate_crossed_interval(by_row[None])[1:]).all()


def test_the_bootstrap_of_both_agrees_with_the_crossed_interval():
    table = simulated(np.random.default_rng(2), 12, 400, 0.1, 0.3, 0.3)
    ours, theirs = (
        crossed.estimate_crossed_interval(table),
        crossed.bootstrap_interval(table),
    )
    assert ours[0] == pytest.approx(theirs[0])
    assert 0.6 < (theirs[2] - theirs[1]) / (ours[2] - ours[1]) < 1.1


def rows_of_directions(changes):
    """One layer of four seeds with and without a common direction of the word vectors, which `changes` quantities."""
    rows = []
    for cell in PAPER.by_direction():
        common = cell.start == grid.COMMON
        place = {"layer": 1, "token_policy": "all"}
        rows.append(
            row(cell, "accuracy", noisy(0.8 - changes * common), component="test")
        )
        rows.append(
            row(
                cell,
                "accuracy",
                noisy(0.8 - 2 * changes * common),
                component=cells.AFTERWARDS,
            )
        )
        rows.append(
            row(
                cell,
                "cls_entropy",
                noisy(0.95 - changes * common),
                component="reported",
                layer=1,
            )
        )
        for site, suffix in product((cells.KEYS, cells.VALUES), ("", grid.UNTRAINED)):
            alike = 0.2 if suffix else 0.2 + changes * common
            rows.append(
                row(
                    cell,
                    "intra_sequence",
                    noisy(alike),
                    site=site,
                    suffix=suffix,
                    **place,
                )
            )
    return as_records(pd.DataFrame(rows))


def test_a_common_direction_of_word_vectors_is_judged_by_what_it_changes():
    same = rows_of_directions(changes=0.0)
    other = rows_of_directions(changes=0.3)
    stays = {
        "attention stays as sharp",
        "attention is used as much",
        "accuracy stays",
        "nearly uniform",
        "not used",
    }
    moves = {
        "keys are more alike",
        "values are more alike",
        "keys converge",
        "values converge",
    }
    of_same, of_other = outcomes("common", same), outcomes("common", other)
    assert (
        {claim for claim, _ in of_same}
        == stays | moves
        == {claim.name for claim in STUDIES["common"].claims}
    )
    for claim, subject in of_same:
        assert of_same[claim, subject] == ("holds" if claim in stays else "fails")
        assert of_other[claim, subject] == ("fails" if claim in stays else "holds")
    assert set(STUDIES["common"].draw(same)) == {"common_1"}


@pytest.mark.parametrize(("less", "expected"), [(0.0, "holds"), (0.15, "fails")])
def test_a_difference_is_judged_over_seeds_utterances_and_splits(less, expected):
    generator, rows = np.random.default_rng(3), []
    easy = {corpus: generator.random(2000) < 0.8 for corpus in grid.REAL}
    for cell in PAPER.by_split():
        for what in ("test", cells.AFTERWARDS)[: 1 + (cell.arm == "learned")]:
            lost = less if cell.arm == "uniform" or what != "test" else 0.0
            right = np.where(
                generator.random(2000) < 0.01, ~easy[cell.corpus], easy[cell.corpus]
            )
            right &= generator.random(2000) >= lost
            value = float(right.mean())
            rows.append(
                row(cell, cells.RIGHT, value, component=cells.pack_bits(what, right))
            )
            rows.append(row(cell, "accuracy", value, component=what, n_units=2000))
    records = as_records(pd.DataFrame(rows))
    verdicts = STUDIES["crossed"].judge(records)
    assert {v.outcome for v in verdicts} == {expected} and len(verdicts) == 2 * 2 * 3
    notes = {v.subject: v.reason for v in verdicts}
    assert (
        "4 splits × 2000" in notes["YelpHat, sinusoids"]
        and "8 seeds × 2000" in notes["e-SNLI, sinusoids"]
    )
    assert set(STUDIES["crossed"].draw(records)) == {"crossed_1"}


@pytest.mark.parametrize("splits", [1, FEWEST - 1, FEWEST, FEWEST + 2])
def test_rows_are_splits_if_there_are_enough_of_them(splits):
    """Each a mean over its seeds; else the seeds of the first split."""
    by_split = {7 + k: np.arange(12.0).reshape(4, 3) + 100 * k for k in range(splits)}
    table = crossed.stack_splits(by_split)
    if splits < FEWEST:
        assert np.array_equal(table, by_split[7])
    else:
        assert np.array_equal(table, [each.mean(0) for each in by_split.values()])
