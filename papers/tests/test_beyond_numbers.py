"""Every number of the studies `beyond` of classifiers and small models, by plain Python from records all unlike.

Each claim and each drawn point is computed from the rows that it is about, by a formula written here.
"""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from slow_numbers import SEEDS, Rows, check_points, check_tests, keep_drawn, own

from anisoscope_papers.beyond import (
    common,
    dimension,
    erased,
    frozen,
    needed,
    pooling,
    positions,
    whole,
)
from anisoscope_papers.beyond.cells import AFTERWARDS
from anisoscope_papers.beyond.small_cells import OfSmall, add_setting_columns
from anisoscope_papers.fosse2023.entry import Evidence
from anisoscope_papers.fosse2023.grid import COMMON, RECIPES, add_options

CORPORA = {"yelphat": "YelpHat", "esnli": "e-SNLI"}
RECIPES_OF_OTHERS = ("¼ sinusoids", "learned positions")


@pytest.fixture
def drawn(monkeypatch):
    return keep_drawn(monkeypatch)


def make_rows(lost=None):
    return Rows(CORPORA, lost)


def read(study, rows):
    return Evidence(study, add_options(rows.frame()), paper="beyond")


def options_of(recipe, **cell):
    positions, scale = RECIPES[recipe]
    return {"positions": positions, "scale": scale, **cell}


# classifiers: positions and a common direction


def add_geometry(rows, cell, depth):
    for behind, layer in product(("", " untrained"), range(1, depth + 1)):
        for site, policy in product(("hidden", "key.raw", "value"), ("all", "content")):
            place = {"layer": layer, "site": site, "token_policy": policy}
            rows.add(cell, "intra_sequence", behind, **place)
        for form in ("row", "reported", "columns"):
            rows.add(cell, "cls_entropy", behind, layer=layer, component=form)


def add_accuracies(rows, cell, *, afterwards):
    for split in ("validation", "test"):
        rows.add(cell, "accuracy", component=split)
        rows.add(cell, "majority", component=split)
    if afterwards:
        rows.add(cell, "accuracy", component=AFTERWARDS)


class Looked:
    """Slow look-ups of the quantities of `positions.Quantities`."""

    def __init__(self, rows, corpus):
        self.rows, self.corpus = rows, corpus

    def accuracy(self, cell, split="test", *, every=True):
        return self.rows.find(
            self.corpus, own(**cell), "accuracy", component=split, every=every
        )

    def used(self, cell):
        afterwards, as_it_is = (
            self.accuracy(cell, split, every=False) for split in (AFTERWARDS, "test")
        )
        return afterwards - as_it_is

    def entropy(self, cell, layer=1):
        place = {"layer": layer, "component": "reported"}
        return self.rows.find(self.corpus, own(**cell), "cls_entropy", **place)

    def alike(self, cell, site, layer, behind=""):
        place = {"layer": layer, "site": site, "token_policy": "all"}
        name = own(**cell) + behind
        return self.rows.find(self.corpus, name, "intra_sequence", **place)


def test_positions(drawn):
    rows = make_rows(lost=("yelphat", own(positions="none"), 2))
    arms = ("learned", "uniform", "frozen")
    # Deeper models are not trained with every recipe.
    trained = [(1, recipe) for recipe in RECIPES]
    trained += [(2, recipe) for recipe in RECIPES if recipe != "learned positions"]
    for (depth, recipe), arm in product(trained, arms):
        after = 0 if arm == "frozen" else None
        cell = options_of(recipe, layers=depth, arm=arm, freeze_after=after)
        add_accuracies(rows, cell, afterwards=arm != "uniform")
        if arm == "learned":
            add_geometry(rows, cell, depth)
            rows.add(cell, "collapsed")
    expected = {}
    for corpus, title in CORPORA.items():
        look = Looked(rows, corpus)
        for depth, recipe in trained:
            cell = options_of(recipe, layers=depth)
            uniform = look.accuracy(cell | {"arm": "uniform"})
            as_drawn = look.accuracy(cell | {"arm": "frozen", "freeze_after": 0})
            learned = look.accuracy(cell)
            subject = f"{title}, L = {depth}, {recipe}"
            entropies = [look.entropy(cell, layer) for layer in range(1, depth + 1)]
            expected |= {
                ("nearly uniform", subject): entropies[0],
                ("not used", subject): look.used(cell),
                ("not needed", subject): uniform - learned,
                ("untrained attention is enough", subject): as_drawn - learned,
            }
            if depth > 1:
                expected["nearly uniform in every layer", subject] = np.min(
                    entropies, 0
                )
            for name, site in (("keys", "key.raw"), ("values", "value")):
                now = look.alike(cell, site, depth)
                then = look.alike(cell, site, depth, " untrained")
                expected[f"{name} converge", subject] = now - then
        for depth in (1, 2):
            own_cell, without, *others = (
                options_of(recipe, layers=depth)
                for recipe in (
                    "sinusoids",
                    "no positions",
                    "¼ sinusoids",
                    "learned positions",
                )
            )
            subject = f"{title}, L = {depth}"
            sharp = "positions make attention sharp"
            if depth > 1:
                sharp = "so in deeper models"
            expected |= {
                (sharp, subject): look.entropy(own_cell) - look.entropy(without),
                ("positions make attention used", subject): look.used(own_cell)
                - look.used(without),
                ("positions make keys alike", subject): look.alike(
                    own_cell, "key.raw", depth
                )
                - look.alike(without, "key.raw", depth),
                ("positions cost accuracy", subject): look.accuracy(own_cell)
                - look.accuracy(without),
            }
            for recipe, cell in zip(RECIPES_OF_OTHERS, others, strict=True):
                place = f"{subject}, {recipe}"
                if (depth, recipe) in trained:
                    sharper = look.entropy(cell) - look.entropy(without)
                    more_used = look.used(cell) - look.used(without)
                else:
                    sharper = more_used = np.full(3, np.nan)
                expected["other positions make attention sharp", place] = sharper
                expected["other positions make attention used", place] = more_used
    nothing = [key for key, values in expected.items() if np.isnan(values).all()]
    assert len(nothing) == 4
    tests = list(positions.make_tests(read("positions", rows)))
    for test in tests:
        if (test.claim.name, test.subject) in nothing:
            assert np.isnan(test.value) and test.n == 0
    check_tests(
        [test for test in tests if (test.claim.name, test.subject) not in nothing],
        {key: values for key, values in expected.items() if key not in nothing},
    )
    positions.draw(read("positions", rows))
    (accuracies, _), (others, settings) = drawn
    bars, more = {}, {}
    for (corpus, title), (depth, recipe) in product(CORPORA.items(), trained):
        look = Looked(rows, corpus)
        cell = options_of(recipe, layers=depth)
        where = f"{title}, L = {depth}, {recipe}: "
        bars[(where + "trained with attention",)] = look.accuracy(cell)
        bars[(where + "trained without",)] = look.accuracy(cell | {"arm": "uniform"})
        bars[(where + "taken away afterwards",)] = look.accuracy(cell, AFTERWARDS)
        lost = {"every": True}
        name = own(**cell)
        of_keys = {"layer": depth, "token_policy": "all"}
        more[(where + "H of [CLS]",)] = rows.find(
            corpus, name, "cls_entropy", layer=1, component="reported", **lost
        )
        for what, site in (("sim(K)", "key.raw"), ("sim(V)", "value")):
            more[(where + what,)] = rows.find(
                corpus, name, "intra_sequence", site=site, **of_keys, **lost
            )
    check_points(accuracies, ("what",), bars)
    check_points(others, ("what",), more)
    assert settings["titles"] == ("H, similarity", "")


def test_a_common_direction(drawn):
    rows = make_rows()
    recipes = ("sinusoids", "no positions")
    for recipe, start in product(recipes, ("scaled", COMMON)):
        cell = options_of(recipe, start=start)
        add_accuracies(rows, cell, afterwards=True)
        add_geometry(rows, cell, 1)
    expected, bars = {}, {}
    for (corpus, title), recipe in product(CORPORA.items(), recipes):
        look, subject = Looked(rows, corpus), f"{title}, {recipe}"
        plain, shared = (
            options_of(recipe, start=start) for start in ("scaled", COMMON)
        )
        expected |= {
            ("attention stays as sharp", subject): look.entropy(shared)
            - look.entropy(plain),
            ("attention is used as much", subject): look.used(shared)
            - look.used(plain),
            ("accuracy stays", subject): look.accuracy(shared) - look.accuracy(plain),
            ("nearly uniform", subject): look.entropy(shared),
            ("not used", subject): look.used(shared),
        }
        for name, site in (("keys", "key.raw"), ("values", "value")):
            now = look.alike(shared, site, 1)
            expected[f"{name} are more alike", subject] = now - look.alike(
                plain, site, 1
            )
            then = look.alike(shared, site, 1, " untrained")
            expected[f"{name} converge", subject] = now - then
        for cell, words in ((plain, "without"), (shared, "with")):
            for what, values in (
                ("accuracy", look.accuracy(cell)),
                ("accuracy without attention", look.accuracy(cell, AFTERWARDS)),
                ("H of [CLS]", look.entropy(cell)),
                ("sim(K)", look.alike(cell, "key.raw", 1)),
                ("sim(V)", look.alike(cell, "value", 1)),
            ):
                bars[(f"{subject}, {words} common direction: {what}",)] = values
    check_tests(common.make_tests(read("common", rows)), expected)
    common.draw(read("common", rows))
    ((frame, _),) = drawn
    check_points(frame, ("what",), bars)
    # With and without are neighbours.
    names = [name.replace("without common", "with common") for name in frame["what"]]
    assert names[::2] == names[1::2]


# frozen attention


def test_frozen_attention(drawn):
    # One that learnt nothing: that is what its few steps of attention led to.
    few = {"arm": "frozen", "freeze_after": 38, "steps": 480}
    rows = make_rows(lost=("esnli", own(**options_of("sinusoids", **few)), 1))
    recipes = ("sinusoids", "no positions")
    arms = {step: {"arm": "frozen", "freeze_after": step} for step in (0, 10, 38, 240)}
    arms |= {480: {"arm": "learned"}, -1: {"arm": "uniform"}}
    for recipe, arm in product(recipes, arms.values()):
        cell = options_of(recipe, steps=480, **arm)
        add_accuracies(rows, cell, afterwards=arm["arm"] != "uniform")
        rows.add(cell, "collapsed")
    for recipe in recipes:  # what a model is at step 0 has no number of steps
        rows.add(options_of(recipe), "accuracy", " untrained", component="test")
    expected, lines = {}, {}
    for (corpus, title), recipe in product(CORPORA.items(), recipes):
        of = {
            step: Looked(rows, corpus).accuracy(options_of(recipe, steps=480, **arm))
            for step, arm in arms.items()
        }
        ranks = [
            stats.spearmanr(
                range(5), [of[step][seed] for step in (0, 10, 38, 240, 480)]
            )
            for seed in SEEDS
        ]
        subject = f"{title}, {recipe}"
        expected |= {
            ("a tenth of training is enough", subject): of[38] - of[480],
            ("untrained attention is enough", subject): of[0] - of[480],
            ("half of training is enough", subject): of[240] - of[480],
            ("uniform is as good as drawn", subject): of[-1] - of[0],
            ("more steps of attention, more accuracy", subject): np.array(
                [rank.statistic for rank in ranks]
            ),
        }
        for step, values in of.items():
            lines[title, recipe, step] = values
    check_tests(frozen.make_tests(read("frozen", rows)), expected)
    rows.rows = [row for row in rows.rows if "untrained" not in row["model"]]
    frozen.draw(read("frozen", rows))
    ((frame, settings),) = drawn
    check_points(frame, ("corpus", "positions", "steps_of_attention"), lines)
    assert (settings["x"], settings["panel"]) == ("steps_of_attention", "positions")


# attention that is needed


def test_needed_attention(drawn):
    rows = make_rows(lost=("esnli", own(arm="uniform"), 0))
    arms = ("learned", "uniform", "random", "frozen")
    for depth, arm in product((1, 2, 3), arms):
        cell = {"layers": depth, "arm": arm}
        rows.add(cell, "collapsed")
        for split in ("validation", "test"):
            rows.add(cell, "accuracy", component=split)
        for layer in range(1, depth + 1):
            for site, policy in product(("key.raw", "value"), ("all", "content")):
                place = {"layer": layer, "site": site, "token_policy": policy}
                rows.add(cell, "intra_sequence", **place)
        for name in (None, "a"):
            rows.add(cell, "class_direction.auc", layer=depth, component=name)
    rows.add({"weight": 0.1}, "accuracy", component="test")

    def look(corpus, what, depth, arm):
        name = own(layers=depth, arm=arm)
        metric, place = {
            "accuracy": ("accuracy", {"component": "test"}),
            "values": (
                "intra_sequence",
                {"layer": depth, "site": "value", "token_policy": "all"},
            ),
            "auc": ("class_direction.auc", {"layer": depth, "component": None}),
        }[what]
        return rows.find(corpus, name, metric, every=True, **place)

    expected = {}
    for (corpus, title), depth in product(CORPORA.items(), (1, 2, 3)):
        subject = f"{title}, L = {depth}"

        def change(what, arm, corpus=corpus, depth=depth):
            own_attention = look(corpus, what, depth, "learned")
            return look(corpus, what, depth, arm) - own_attention

        expected |= {
            ("uniform attention is enough", subject): change("accuracy", "uniform"),
            ("random attention is enough", subject): change("accuracy", "random"),
            ("one epoch of attention is enough", subject): change("accuracy", "frozen"),
            ("directions without attention", subject): change("auc", "uniform"),
            ("values make up for it", subject): change("values", "uniform"),
        }
    places = list(product(CORPORA, (1, 2, 3)))
    ranks = []
    for seed in SEEDS:
        alike = [
            look(*place[:1], "values", place[1], "learned")[seed] for place in places
        ]
        lost = [
            look(place[0], "accuracy", place[1], "learned")[seed]
            - look(place[0], "accuracy", place[1], "uniform")[seed]
            for place in places
        ]
        ranks.append(stats.spearmanr(alike, lost).statistic)
    expected["alike values, dispensable attention", "all corpora"] = np.array(ranks)
    check_tests(needed.make_tests(read("needed", rows)), expected)
    needed.draw(read("needed", rows))
    for what, (frame, _) in zip(("accuracy", "values", "auc"), drawn, strict=True):
        check_points(
            frame,
            ("what",),
            {
                (f"{title}, L = {depth}, {arm}",): look(corpus, what, depth, arm)
                for (corpus, title), depth, arm in product(
                    CORPORA.items(), (1, 2, 3), arms
                )
            },
        )


# erased words


def test_erased_words(drawn):
    rows = make_rows(lost=("yelphat", own(), 1))
    names = ("attention", "directions", "class found", "random")
    for name, share in product(names, ("50%", "20%")):
        for metric in ("retrained.accuracy", "retrained.agreement"):
            rows.add({}, metric, component=f"{name}, {share}")
    rows.rows = [
        row
        for row in rows.rows
        if not row["component"].endswith("20%")
        or (row["corpus"] == "yelphat" and "found" not in row["component"])
    ]
    for cell in ({}, {"weight": 0.1}):
        rows.add(cell, "collapsed")
        for split in ("validation", "test"):
            rows.add(cell, "accuracy", component=split)

    def look(corpus, name, share, metric="accuracy"):
        component = f"{name}, {share}"
        return rows.find(corpus, own(), f"retrained.{metric}", component=component)

    expected = {}
    for corpus, title in CORPORA.items():
        for share, claim in (
            ("50%", "directions are more faithful than attention"),
            ("20%", "same with a fifth of the words"),
        ):
            if (corpus, share) == ("esnli", "20%"):
                continue
            subject = f"{title}, {share} erased"
            attention, directions, random = (
                look(corpus, name, share)
                for name in ("attention", "directions", "random")
            )
            expected |= {
                (claim, subject): attention - directions,
                ("attention is faithful", subject): random - attention,
                ("directions are faithful", subject): random - directions,
            }
        expected["the predicted class leaks", f"{title}, 50% erased"] = look(
            corpus, "class found", "50%", "agreement"
        ) - look(corpus, "directions", "50%", "agreement")
    check_tests(erased.make_tests(read("erased", rows)), expected)
    erased.draw(read("erased", rows))
    ((frame, _),) = drawn
    bars = {}
    for corpus, title in CORPORA.items():
        bars[title, "nothing erased"] = rows.find(
            corpus, own(), "accuracy", component="test"
        )
        for name, share in product(names, ("50%", "20%")):
            if share == "50%" or (corpus == "yelphat" and name != "class found"):
                bars[title, f"{name}, {share}"] = look(corpus, name, share)
    check_points(frame, ("corpus", "component"), bars)


# small models


def small(read="first", blocks="norm", layers=1, dim=64):
    return f"read={read} blocks={blocks} L={layers} d={dim}"


def read_small(study, rows):
    return OfSmall(study, add_setting_columns(rows.frame()))


SMALL = {"ud_ewt": "UD English EWT", "synthetic:5": "5 synthetic classes"}


def test_pooling(drawn):
    rows = Rows(SMALL, lost=("ud_ewt", small("mean", layers=2), 1))
    for kind, behind, layer in product(
        ("first", "mean", "each"), ("", " untrained"), (0, 1, 2)
    ):
        name = small(kind, layers=2)
        for site, policy in product(("hidden", "value"), ("all", "content")):
            place = {"layer": layer, "site": site, "token_policy": policy}
            rows.add(name, "intra_sequence", behind, **place)
    for kind, behind, component in product(
        ("first", "mean", "each"), ("", " untrained"), (None, "NOUN")
    ):
        name = small(kind, layers=2)
        rows.add(name, "class_direction.auc", behind, layer=2, component=component)
        if component is None:
            rows.add(name, "collapsed", behind)

    def words(corpus, kind, behind="", site="hidden", layer=2):
        place = {"layer": layer, "site": site, "token_policy": "content"}
        name = small(kind, layers=2) + behind
        return rows.find(corpus, name, "intra_sequence", **place)

    expected = {}
    for corpus, title in SMALL.items():
        auc, auc_at_start = (
            rows.find(
                corpus,
                small("each", layers=2) + behind,
                "class_direction.auc",
                component=None,
            )
            for behind in ("", " untrained")
        )
        first, mean, each = (words(corpus, kind) for kind in ("first", "mean", "each"))
        expected |= {
            ("pooling makes words alike", title): first - each,
            ("a class of the sentence makes words alike", title): first
            - words(corpus, "first", " untrained"),
            ("a tag of each word does not", title): each
            - words(corpus, "each", " untrained"),
            ("the mean more than [CLS]", title): mean - first,
            ("pooling makes values alike", title): words(corpus, "first", site="value")
            - words(corpus, "each", site="value"),
            ("one direction per tag", title): auc,
            ("directions of tags are learnt", title): auc - auc_at_start,
        }
    check_tests(pooling.make_tests(read_small("pooling", rows)), expected)
    rows.rows = [
        row
        for row in rows.rows
        if "untrained" not in row["model"] or "read=each" in row["model"]
    ]  # one line of step 0, of one model here
    pooling.draw(read_small("pooling", rows))
    shown = {"first": "class from [CLS]", "mean": "class from the mean"}
    shown |= {"each": "tag of each word"}
    for corpus, (frame, _) in zip(SMALL, drawn, strict=True):
        lines = {
            (title, layer): words(corpus, kind, layer=layer)
            for (kind, title), layer in product(shown.items(), (0, 1, 2))
        }
        for layer in (0, 1, 2):
            lines["step 0", layer] = words(corpus, "each", " untrained", layer=layer)
        check_points(frame, ("what", "layer"), lines)


def test_whole_encoders(drawn):
    rows = Rows({"synthetic:5": ""})
    blocks = ("bare", "norm", "gain", "feed-forward", "whole")
    for block, depth, behind in product(blocks, (1, 2, 3), ("", " untrained")):
        for layer, site, policy in product(
            range(depth + 1), ("hidden", "value"), ("all", "content")
        ):
            place = {"layer": layer, "site": site, "token_policy": policy}
            name = small(blocks=block, layers=depth)
            rows.add(name, "intra_sequence", behind, **place)

    def last(block, depth, behind=""):
        name = small(blocks=block, layers=depth) + behind
        place = {"layer": depth, "site": "hidden", "token_policy": "content"}
        return rows.find("synthetic:5", name, "intra_sequence", **place)

    gain = {
        block: (
            last(block, 2)
            - last(block, 2, " untrained")
            + last(block, 3)
            - last(block, 3, " untrained")
        )
        / 2
        for block in blocks
    }
    title = "5 synthetic classes"
    check_tests(
        whole.make_tests(read_small("whole", rows)),
        {
            ("a whole encoder converges", title): gain["whole"],
            ("attention alone converges", title): gain["norm"],
            ("the norm adds to it", title): gain["norm"] - gain["bare"],
            ("its gain adds to it", title): gain["gain"] - gain["norm"],
            ("feed-forward adds to it", title): gain["feed-forward"] - gain["norm"],
            ("most of it is attention's", title): gain["norm"] - gain["whole"] / 2,
        },
    )
    whole.draw(read_small("whole", rows))
    ((frame, _),) = drawn
    check_points(
        frame,
        ("blocks", "when", "layers"),
        {
            (block, when, depth): last(block, depth, behind)
            for block, (when, behind), depth in product(
                blocks, (("trained", ""), ("step 0", " untrained")), (1, 2, 3)
            )
        },
    )


def test_dimensions(drawn):
    classes = {"synthetic:2": 2, "synthetic:5": 5, "synthetic:10": 10, "ud_ewt": 17}
    widths = (2, 4, 8, 128)
    # A model that learnt nothing has an accuracy all the same.
    rows = Rows(classes, lost=("synthetic:5", small(dim=4), 1))
    for width, behind in product(widths, ("", " untrained")):
        name = small(dim=width)
        if not behind:
            rows.add(name, "collapsed")
        for split in ("train", "test"):
            rows.add(name, "accuracy", behind, component=split)
        for metric in ("class_cosine.mean", "class_cosine.most"):
            rows.add(name, metric, behind)
        rows.add(name, "class_direction.dimensions", behind, layer=1)
    # From which width on each seed is as accurate as at the widest.
    enough = {
        "synthetic:2": (2, 2, 4),
        "synthetic:5": (4, 8, 4),
        "synthetic:10": (8, 128, 8),
        "ud_ewt": (128, 128, 128),
    }
    for row in rows.rows:
        width = int(row["model"].partition(" d=")[2].partition(" ")[0])
        if row["metric"] == "accuracy" and row.get("component") == "test":
            is_enough = width >= enough[row["corpus"]][row["seed"]]
            row["value"] = row["value"] / 100 + (0.9 if is_enough else 0.5)

    def at(corpus, width, metric, **place):
        return rows.find(corpus, small(dim=width), metric, every=True, **place)

    expected, counts = {}, [2, 5, 10]
    for corpus, count in classes.items():
        title = "UD English EWT" if corpus == "ud_ewt" else f"{count} synthetic classes"
        if corpus != "ud_ewt":
            expected["a simplex where there is room", title] = at(
                corpus, 128, "class_cosine.most"
            ) + 1 / (count - 1)
        narrow = [width for width in widths if width < count]
        if narrow:
            expected["fewer dimensions than classes", title] = at(
                corpus, narrow[-1], "accuracy", component="test"
            ) - at(corpus, 128, "accuracy", component="test")
        if count > 2:
            taken = at(corpus, 128, "class_direction.dimensions") / (count - 1)
            expected["classes take every dimension they can", title] = taken
    slopes = [
        np.polyfit(
            np.log2(counts),
            np.log2([enough[f"synthetic:{n}"][seed] for n in counts]),
            1,
        )[0]
        for seed in SEEDS
    ]
    key = ("more classes need more dimensions", "all corpora")
    expected[key] = np.array(slopes)
    check_tests(dimension.make_tests(read_small("dimension", rows)), expected)
    rows.rows = [row for row in rows.rows if row.get("component") != "train"]
    dimension.draw(read_small("dimension", rows))
    for metric, (frame, _) in zip(
        ("accuracy", "class_direction.dimensions"), drawn, strict=True
    ):
        names = {corpus: str(count) for corpus, count in classes.items()}
        names["ud_ewt"] = "17 tags"
        check_points(
            frame,
            ("corpus", "dim"),
            {
                (names[corpus], width): at(corpus, width, metric)
                for corpus, width in product(classes, widths)
            },
        )
