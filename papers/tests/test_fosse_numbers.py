"""Every number of the studies of Fosse et al. 2023, by plain Python from records that are all unlike.

Each claim is computed from the rows that it is about, by a formula written here; each drawn point and each published
number is looked up in the same way. A lost filter, a wrong end or a wrong row gives another number.
"""

from itertools import product
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from slow_numbers import (
    SEEDS,
    Rows,
    check_points,
    check_tests as check,
    keep_drawn,
    own,
)

from anisoscope.store import as_records
from anisoscope_papers.fosse2023 import (
    explained_words,
    fig2_directions,
    replaced_attention,
    sec2_cones,
    sec3_curve,
    sec5_compensation,
    simulated_forms,
    table1_accuracy,
    table2_examples,
    table3_depth,
    table4_penalty,
)
from anisoscope_papers.fosse2023.entry import Evidence
from anisoscope_papers.fosse2023.grid import DRAWN, RAW, add_options

CORPORA = {"yelphat": "YelpHat", "esnli": "e-SNLI"}
ENCODER = "builtin:minilm"
LOST = ("yelphat", ENCODER, 1)
"""A fine-tuned encoder that learnt nothing."""
FORMS = ("row", "reported", "columns", "again")
MAPS = ("attention", "rollout", "value norm", "value, contrast", "hidden, contrast")
STARTS = {RAW: "word vectors as the encoder has them", DRAWN: "random word vectors"}


def make_rows():
    return Rows(CORPORA, LOST)


def read_tests(module, name, rows):
    return module.make_tests(Evidence(name, add_options(rows.frame())))


def check_tests(module, name, rows, expected):
    return check(read_tests(module, name, rows), expected)


@pytest.fixture
def drawn(monkeypatch):
    seen = keep_drawn(monkeypatch)

    def keep(frame, **settings):
        seen.append((frame, settings))
        return "chart"

    monkeypatch.setattr(fig2_directions, "draw_ranges", keep)
    return seen


def check_compared(module, name, rows, corpus, expected):
    """Check {place: (published, ours [seed])} of one corpus."""
    whole = Evidence(name, add_options(rows.frame()))
    (here,) = (each for each in whole.corpora if each.corpus == corpus)
    found = {one.place: one for one in module.compare(here)}
    assert found.keys() == {f"{CORPORA[corpus]}, {place}" for place in expected}
    for place, (published, values) in expected.items():
        one = found[f"{CORPORA[corpus]}, {place}"]
        assert one.published == published, place
        assert one.value == pytest.approx(np.nanmean(values), abs=1e-12), place
        assert one.n == np.isfinite(values).sum()
    return found


# table 1


@pytest.fixture
def accuracies():
    rows = make_rows()
    models = [{}, {"model": ENCODER}, {"examples": 2000}, {"examples": 6000}]
    for cell, split in product(models, ("train", "validation", "test")):
        rows.add(cell, "accuracy", component=split)
        rows.add(cell, "majority", component=split)
    rows.add({}, "accuracy", component="test_yelp50")
    rows.rows = [
        row
        for row in rows.rows
        if (row["corpus"], row.get("component")) != ("esnli", "test_yelp50")
        and (row["corpus"] == "esnli" or "n=" not in row["model"])
    ]
    rows.add({"model": ENCODER}, "collapsed")
    return rows


def test_table_1(accuracies, drawn):
    find, expected = accuracies.find, {}
    for corpus, title in CORPORA.items():
        fine, rate, one = (
            find(corpus, ENCODER, "accuracy", component="test", every=True),
            find(corpus, ENCODER, "majority", component="test", every=True),
            find(corpus, own(), "accuracy", component="test"),
        )
        expected["fine-tuned above majority", title] = fine - rate
        expected["fine-tuned above one layer", title] = fine - one
    short = find("yelphat", own(), "accuracy", component="test_yelp50")
    expected["one layer as published", "YelpHat"] = short
    expected["one layer as published", "e-SNLI"] = one
    sizes = {own(examples=2000): 2000, own(examples=6000): 6000, own(): 18_000}
    known = [find("esnli", name, "accuracy", component="test") for name in sizes]
    line = [
        np.polyfit(np.log([*sizes.values()]), of_seed, 1)
        for of_seed in zip(*known, strict=True)
    ]
    expected["one layer of as many pairs", "e-SNLI"] = np.array(
        [np.polyval(each, np.log(549_361)) for each in line]
    )
    found = check_tests(table1_accuracy, "table1", accuracies, expected)
    assert not found["one layer as published", "YelpHat"].apart
    assert "18,000" in found["one layer as published", "e-SNLI"].apart
    assert not found["one layer of as many pairs", "e-SNLI"].apart
    inside = {key: test.inside for key, test in found.items() if test.inside}
    assert inside == {
        ("one layer as published", "YelpHat"): (0.913 - 0.04, 0.913 + 0.04),
        ("one layer as published", "e-SNLI"): (0.631 - 0.04, 0.631 + 0.04),
        ("one layer of as many pairs", "e-SNLI"): (0.631 - 0.04, 0.631 + 0.04),
    }
    fine = find("yelphat", ENCODER, "accuracy", component="test", every=True)
    compared = check_compared(
        table1_accuracy,
        "table1",
        accuracies,
        "yelphat",
        {"fine-tuned encoder": (0.936, fine), "one attention layer": (0.913, short)},
    )
    notes = [one.note for one in compared.values()]
    assert all(note.startswith("majority 0.") for note in notes)
    assert notes[0].endswith(", 1 collapsed and among them")
    assert notes[1].endswith(", on reviews of 50 words")
    table1_accuracy.draw(Evidence("table1", add_options(accuracies.frame())))
    ((frame, _),) = drawn
    bars = {}
    for corpus, title in CORPORA.items():
        published = {"yelphat": (0.936, 0.913), "esnli": (0.887, 0.631)}[corpus]
        rate = next(
            row["value"]
            for row in accuracies.rows
            if (row["corpus"], row["metric"], row.get("component"))
            == (corpus, "majority", "test")
        )
        for number, (panel, model) in enumerate(
            (("fine-tuned encoder", ENCODER), ("one attention layer", own()))
        ):
            ours = find(corpus, model, "accuracy", component="test", every=True)
            bars[f"{title}, ours", panel] = ours
            bars[f"{title}, published", panel] = published[number]
            bars[f"{title}, majority rate", panel] = rate
    check_points(frame, ("what", "panel"), bars)


# table 3


@pytest.fixture
def similarities():
    rows = make_rows()
    for depth, behind in product((1, 2, 3), ("", " untrained")):
        for layer, site, policy in product(
            range(1, depth + 1), ("key.raw", "value", "hidden"), ("all", "content")
        ):
            place = {"layer": layer, "site": site, "token_policy": policy}
            rows.add({"layers": depth}, "intra_sequence", behind, **place)
            rows.add({"layers": depth}, "norms.mean", behind, **place)
        if not behind:
            rows.add({"layers": depth}, "accuracy", component="test")
    return rows


def test_table_3(similarities, drawn):
    def at(corpus, depth, layer, site, behind=""):
        place = {"layer": layer, "site": site, "token_policy": "all"}
        name = own(layers=depth) + behind
        return similarities.find(corpus, name, "intra_sequence", **place)

    expected = {}
    cells = [(depth, layer) for depth in (1, 2, 3) for layer in range(1, depth + 1)]
    for corpus, title in CORPORA.items():
        for name, site in (("keys", "key.raw"), ("values", "value")):
            last = [at(corpus, n, n, site) for n in (1, 2, 3)]
            first = [at(corpus, n, 1, site) for n in (1, 2, 3)]
            drawn_last = [at(corpus, n, n, site, " untrained") for n in (1, 2, 3)]
            expected[f"{name} converge", title] = (
                last[1] - first[1] + last[2] - first[2]
            ) / 2
            expected[f"{name} converge by training", title] = (
                last[1] - drawn_last[1] + last[2] - drawn_last[2]
            ) / 2
            expected[f"one layer leaves {name} as drawn", title] = (
                last[0] - drawn_last[0]
            )
            expected[f"{name} of one layer as published", title] = last[0]
        # The slope over three depths is half of the last less the first.
        expected["deeper models converge more", title] = (last[2] - last[0]) / 2
        ranks = [
            stats.spearmanr(
                [at(corpus, *cell, "key.raw")[seed] for cell in cells],
                [at(corpus, *cell, "value")[seed] for cell in cells],
            ).statistic
            for seed in SEEDS
        ]
        expected["keys and values together", title] = np.array(ranks)
    found = check_tests(table3_depth, "table3", similarities, expected)
    published = {
        ("keys", "YelpHat"): (0.578, 0.06),
        ("values", "YelpHat"): (0.372, 0.12),
        ("keys", "e-SNLI"): (0.657, 0.06),
        ("values", "e-SNLI"): (0.524, 0.12),
    }
    for (name, title), (middle, within) in published.items():
        inside = found[f"{name} of one layer as published", title].inside
        assert inside == pytest.approx((middle - within, middle + within))
    # Published for five layers; ours are of three here.
    whole = Evidence("table3", add_options(similarities.frame()))
    compared = {one.place: one for one in table3_depth.compare(whole.corpora[0])}
    assert len(compared) == 30
    for place, number, ours in (
        ("L = 2, layer 1, keys", 0.649, at("yelphat", 2, 1, "key.raw")),
        ("L = 3, layer 2, keys", 0.431, at("yelphat", 3, 2, "key.raw")),
        ("L = 3, layer 3, values", 0.494, at("yelphat", 3, 3, "value")),
    ):
        one = compared[f"YelpHat, {place}"]
        assert (one.published, one.value) == (number, pytest.approx(fmean(ours)))
        depth = int(place[4])
        right = similarities.find(
            "yelphat", own(layers=depth), "accuracy", component="test"
        )
        assert one.note == f"accuracy {fmean(right):.3f}"
    table3_depth.draw(whole)
    assert [
        frame["corpus"].unique().tolist() for frame, _ in drawn if "corpus" in frame
    ] == []
    for (frame, settings), corpus in zip(drawn, CORPORA, strict=True):
        curves = {}
        for name, site in (("keys", "key.raw"), ("values", "value")):
            for depth, layer in cells:
                curves[name, f"L = {depth}", layer] = at(corpus, depth, layer, site)
            for layer in (1, 2, 3):
                curves[name, "L = 3, untrained", layer] = at(
                    corpus, 3, layer, site, " untrained"
                )
        check_points(frame, ("site", "model", "layer"), curves)
        assert (settings["series"], settings["panel"]) == ("model", "site")


# table 4

LAMBDAS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 6.0)


@pytest.fixture
def penalties():
    rows = make_rows()
    models = [({"weight": weight}, "") for weight in LAMBDAS]
    models += [({"start": start}, "") for start in STARTS]
    models += [({}, " untrained")]
    for cell, behind in models:
        for site, policy in product(("key.raw", "value", "hidden"), ("all", "content")):
            place = {"layer": 1, "site": site, "token_policy": policy}
            for metric in ("intra_sequence", "norms.mean", "norms.variation"):
                rows.add(cell, metric, behind, **place)
        for form, metric in product(
            FORMS, ("cls_entropy", "cls_entropy.floor", "cls_entropy.ceiling")
        ):
            rows.add(cell, metric, behind, layer=1, component=form)
        if not behind:
            for split in ("validation", "test"):
                rows.add(cell, "accuracy", component=split)
    return rows


def test_table_4(penalties, drawn):
    keys = {"site": "key.raw", "layer": 1, "token_policy": "all"}
    places = {
        "H of [CLS]": ("cls_entropy", {"component": "reported"}),
        "sim(K)": ("intra_sequence", keys),
        "sim(V)": ("intra_sequence", keys | {"site": "value"}),
        "accuracy": ("accuracy", {"component": "test"}),
        "mean norm of keys": ("norms.mean", keys),
        "variation of the norms of keys": ("norms.variation", keys),
    }

    def at(corpus, quantity, weight, behind="", **other):
        metric, place = places[quantity]
        name = own(weight=weight) + behind
        return penalties.find(corpus, name, metric, **place | other)

    expected = {}
    claims = {
        "uniform without a penalty": "reported",
        "uniform by the second form": "columns",
        "uniform by the third form": "again",
    }
    for corpus, title in CORPORA.items():
        change = {
            name: at(corpus, name, 0.1) - at(corpus, name, 0.0) for name in places
        }
        drawn_values = at(corpus, "sim(V)", 0.0, " untrained")
        expected |= {
            ("attention becomes sparse", title): change["H of [CLS]"],
            ("values converge", title): change["sim(V)"],
            ("values converge beyond their start", title): at(corpus, "sim(V)", 0.1)
            - drawn_values,
            ("keys stay alike", title): at(corpus, "sim(K)", 0.1),
            ("key norms grow", title): np.log(
                at(corpus, "mean norm of keys", 0.1)
                / at(corpus, "mean norm of keys", 0.0)
            ),
            ("key norms spread", title): change["variation of the norms of keys"],
            ("accuracy hardly moves", title): change["accuracy"],
            ("keys decorrelate at large λ", title): at(corpus, "sim(K)", 6.0)
            - at(corpus, "sim(K)", 0.0),
        }
        for claim, form in claims.items():
            expected[claim, title] = at(corpus, "H of [CLS]", 0.0, component=form)
            for start, words in STARTS.items():
                expected[claim, f"{title}, {words}"] = penalties.find(
                    corpus, own(start=start), "cls_entropy", component=form
                )
    check_tests(table4_penalty, "table4", penalties, expected)
    published = {
        "H of [CLS]": (0.999, 0.576, 0.64, 0.0, 0.0),
        "sim(K)": (0.674, 0.737, 0.795, 0.833, 0.707),
        "sim(V)": (0.507, 0.45, 0.526, 0.868, 0.925),
    }
    table = {}
    for name, numbers in published.items():
        for weight, number in zip(LAMBDAS[:5], numbers, strict=True):
            form = {}
            if name == "H of [CLS]":
                form = {"component": "reported" if weight else "again"}
            table[f"λ = {weight:g}, {name}"] = number, at("esnli", name, weight, **form)
    found = check_compared(table4_penalty, "table4", penalties, "esnli", table)
    first = found["e-SNLI, λ = 0, H of [CLS]"].note
    low, high = (
        next(
            row["value"]
            for row in penalties.rows
            if (row["corpus"], row["metric"], row.get("component"))
            == ("esnli", f"cls_entropy.{end}", "again")
        )
        for end in ("floor", "ceiling")
    )
    at_first = at("esnli", "H of [CLS]", 0.0, " untrained", component="again").mean()
    right = at("esnli", "accuracy", 0.0).mean()
    assert first == (
        f"form C: row, again, floor {low:.3f}, ceiling {high:.3f}, untrained"
        f" {at_first:.3f}; accuracy {right:.3f}"
    )
    assert found["e-SNLI, λ = 0.1, sim(K)"].note == (
        f"accuracy {at('esnli', 'accuracy', 0.1).mean():.3f}"
    )
    table4_penalty.draw(Evidence("table4", add_options(penalties.frame())))
    ((frame, settings),) = drawn
    powers = dict(zip(LAMBDAS, (-5, -4, -3, -2, -1, np.log10(6)), strict=True))
    lines = {
        (title, name, powers[weight]): at(corpus, name, weight)
        for (corpus, title), name, weight in product(CORPORA.items(), places, LAMBDAS)
    }
    check_points(frame, ("corpus", "quantity", "power"), lines)
    assert settings["titles"][0] == "logarithm of λ, base 10 (at −5: no penalty)"


# section 2


def test_section_2(drawn):
    rows = make_rows()
    names = ("cone.inside", "cone.narrow", "keys.similarity", "keys.correlation")
    names += tuple(
        f"{side}.{how}"
        for side, how in product(("keys", "queries"), ("plain", "equal", "parallel"))
    )
    for weight, name in product((0.0, 0.01, 0.1), names):
        rows.add({"weight": weight}, f"cones.{name}", layer=1)
        rows.add({"weight": weight, "start": RAW}, f"cones.{name}", layer=1)
    expected = {}
    for corpus, title in CORPORA.items():

        def at(name, weight=0.0, corpus=corpus):
            return rows.find(corpus, own(weight=weight), f"cones.{name}")

        expected |= {
            ("outputs in the cone of the values", title): at("cone.inside"),
            ("equal keys", title): at("keys.equal"),
            ("equal queries", title): at("queries.equal"),
            ("keys as trained", title): at("keys.plain"),
            ("queries as trained", title): at("queries.plain"),
            ("alike keys, uniform attention", title): at("keys.correlation"),
        }
        for weight, side in product((0, 0.1), ("keys", "queries")):
            subject = f"{title}, λ = {weight:g}"
            expected[f"{side} of one direction", subject] = at(
                f"{side}.parallel", weight
            )
    found = check_tests(sec2_cones, "sec2", rows, expected)
    exact = {name for (name, _), test in found.items() if test.inside}
    assert exact == {"outputs in the cone of the values", "equal keys", "equal queries"}
    assert all(
        test.inside == pytest.approx((1 - 1e-6, 1 + 1e-6))
        for test in found.values()
        if test.inside
    )
    sec2_cones.draw(Evidence("sec2", add_options(rows.frame())))
    ((frame, _),) = drawn
    shown = {
        "H / ln n, as trained": "keys.plain",
        "H / ln n, keys of one direction": "keys.parallel",
        "similarity of rows, as trained": "queries.plain",
        "similarity of rows, queries of one direction": "queries.parallel",
    }
    bars = {
        (words, f"{title}, λ = {weight:g}"): rows.find(
            corpus, own(weight=weight), f"cones.{name}"
        )
        for (words, name), (corpus, title), weight in product(
            shown.items(), CORPORA.items(), (0.0, 0.01, 0.1)
        )
    }
    check_points(frame, ("quantity", "what"), bars)


# section 3


def test_section_3(drawn):
    rows = make_rows()
    stages = {
        "untrained": " untrained",
        "pre-trained": " pre-trained",
        "fine-tuned": "",
    }
    for behind, layer in product(stages.values(), range(7)):
        for site, policy in product(("hidden", "value"), ("all", "content")):
            place = {"layer": layer, "site": site, "token_policy": policy}
            rows.add({"model": ENCODER}, "intra_sequence", behind, **place)
            rows.add({"model": ENCODER}, "norms.mean", behind, **place)
    rows.add({"model": ENCODER}, "collapsed")

    def at(corpus, layer, behind=""):
        place = {"layer": layer, "site": "hidden", "token_policy": "all"}
        return rows.find(corpus, ENCODER + behind, "intra_sequence", **place)

    expected = {}
    for corpus, title in CORPORA.items():
        last = at(corpus, 6)
        growth = last - at(corpus, 0)
        late = np.where(growth > 0, (last - at(corpus, 4)) / growth, np.nan)
        expected |= {
            ("converges after fine-tuning", title): last
            - at(corpus, 6, " pre-trained"),
            ("more than at random", title): last - at(corpus, 6, " untrained"),
            ("grows with depth", title): growth,
            ("most in the last layers", title): late,
        }
    check_tests(sec3_curve, "sec3", rows, expected)
    one_before = {
        layer: at("esnli", layer, " pre-trained")[:1] for layer in (0, 6)
    }  # every seed has the same encoder before it is fine-tuned
    check_compared(
        sec3_curve,
        "sec3",
        rows,
        "esnli",
        {
            "input before fine-tuning": (0.12, one_before[0]),
            "last layer before fine-tuning": (0.41, one_before[6]),
            "input after fine-tuning": (0.0899, at("esnli", 0)),
            "last layer after fine-tuning": (0.6901, at("esnli", 6)),
        },
    )
    sec3_curve.draw(Evidence("sec3", add_options(rows.frame())))
    ((frame, settings),) = drawn
    curves = {
        (title, stage, float(layer)): at(corpus, layer, behind)
        for (corpus, title), (stage, behind), layer in product(
            CORPORA.items(), stages.items(), range(7)
        )
    }
    published = (0.0899, 0.2208, 0.2847, 0.2376, 0.2405, 0.2586, 0.2659)
    published += (0.3033, 0.3229, 0.3392, 0.4907, 0.5, 0.6901)
    for number, value in enumerate(published):
        curves["e-SNLI", "BERT fine-tuned, published", number / 2] = value
    check_points(frame, ("corpus", "model", "layer"), curves)
    assert settings["panel"] == "corpus"


# section 5


def test_section_5(drawn):
    rows = make_rows()
    # By number of parameters of their layers: three narrow layers have fewer than one wide one.
    sizes = ((48, 2, 3), (96, 1, 1), (144, 4, 1), (96, 1, 3))
    for (dim, heads, layers), weight in product(sizes, (0.0, 0.01, 0.1)):
        cell = {"dim": dim, "heads": heads, "layers": layers, "weight": weight}
        for layer, site, policy in product(
            (1, 2), ("key.raw", "value"), ("all", "content")
        ):
            place = {"layer": layer, "site": site, "token_policy": policy}
            rows.add(cell, "intra_sequence", **place)
        for split in ("validation", "test"):
            rows.add(cell, "accuracy", component=split)
    quantities = {
        "sim(V) of layer 1": (
            "values converge more in larger models",
            "intra_sequence",
            {"layer": 1, "site": "value", "token_policy": "all"},
        ),
        "accuracy": ("larger models lose less", "accuracy", {"component": "test"}),
    }

    def change(corpus, size, metric, place):
        dim, heads, layers = size
        with_penalty, without = (
            rows.find(
                corpus,
                own(dim=dim, heads=heads, layers=layers, weight=weight),
                metric,
                **place,
            )
            for weight in (0.1, 0.0)
        )
        return with_penalty - without

    assert [sec5_compensation.count_inner_parameters(size) for size in sizes] == [
        3 * (4 * 48**2 + 4 * 48),
        4 * 96**2 + 4 * 96,
        4 * 144**2 + 4 * 144,
        3 * (4 * 96**2 + 4 * 96),
    ]
    expected, bars = {}, {}
    for claim, metric, place in quantities.values():
        for corpus, title in CORPORA.items():
            table = [change(corpus, size, metric, place) for size in sizes]
            ranks = [
                stats.spearmanr(range(4), each).statistic
                for each in zip(*table, strict=True)
            ]
            expected[claim, title] = np.array(ranks)
    check_tests(sec5_compensation, "sec5", rows, expected)
    rows.rows = [row for row in rows.rows if row["corpus"] == "yelphat"]
    sec5_compensation.draw(Evidence("sec5", add_options(rows.frame())))
    ((frame, _),) = drawn
    for name, (_, metric, place) in quantities.items():
        for size in sizes:
            dim, heads, layers = size
            words = f"d = {dim}, {heads} head{'s' if heads > 1 else ''}, L = {layers}"
            bars[f"change of {name}", words] = change("yelphat", size, metric, place)
    check_points(frame, ("quantity", "size"), bars)


# attention that is replaced


def test_replaced_attention(drawn):
    rows = make_rows()
    models = [{"layers": n} for n in (1, 2, 3)]
    models += [{"weight": weight} for weight in (0.01, 0.1)]
    models += [{"start": start} for start in STARTS]
    models += [{"model": ENCODER}]
    for cell in models:
        depth = 3 if "model" in cell else cell.get("layers", 1)
        for layer in range(1, depth + 1):
            for site, policy in product(("key.raw", "value"), ("all", "content")):
                place = {"layer": layer, "site": site, "token_policy": policy}
                rows.add(cell, "intra_sequence", **place)
        for kind, metric in product(
            ("uniform", "another"), ("accuracy", "output", "agreement")
        ):
            for layer in (None, *range(1, depth + 1)):
                place = {"layer": layer, "component": kind}
                rows.add(cell, f"ablation.{metric}", **place)
    rows.add({"model": ENCODER}, "collapsed")

    def replaced(corpus, name, metric, kind, layer=None):
        place = {"component": kind, "layer": layer}
        return rows.find(corpus, name, f"ablation.{metric}", **place)

    def similar(corpus, name, layer):
        place = {"layer": layer, "site": "value", "token_policy": "all"}
        return rows.find(corpus, name, "intra_sequence", **place)

    deep = [(own(layers=n), layer) for n in (1, 2, 3) for layer in range(1, n + 1)]
    ours = deep + [(own(weight=weight), 1) for weight in (0.01, 0.1)]
    theirs = [(ENCODER, layer) for layer in (1, 2, 3)]
    expected = {}
    for corpus, title in CORPORA.items():
        for kind, claim in (
            ("uniform", "uniform attention does as well"),
            ("another", "another's attention does as well"),
        ):
            expected[claim, title] = replaced(corpus, own(), "accuracy", kind)
            for start, words in STARTS.items():
                changed = replaced(corpus, own(start=start), "accuracy", kind)
                expected[claim, f"{title}, {words}"] = changed
            expected[claim, f"{title}, fine-tuned encoder"] = replaced(
                corpus, ENCODER, "accuracy", kind
            )
        expected["sparse attention matters less than it looks", title] = replaced(
            corpus, own(weight=0.1), "accuracy", "uniform"
        )
        for metric, claim in (
            ("output", "geometry replaces attention"),
            ("agreement", "geometry keeps the decision"),
        ):
            for which, places in (
                ("", ours),
                (", layers of the fine-tuned encoder", theirs),
            ):
                pairs = [
                    (
                        similar(corpus, *place),
                        replaced(corpus, place[0], metric, "another", place[1]),
                    )
                    for place in places
                ]
                ranks = [
                    stats.spearmanr(
                        *[[pair[i][seed] for pair in pairs] for i in (0, 1)]
                    ).statistic
                    if np.isfinite(pairs[0][0][seed])
                    else np.nan
                    for seed in SEEDS
                ]
                expected[claim, title + which] = np.array(ranks)
    check_tests(replaced_attention, "replaced", rows, expected)
    found = replaced_attention.draw(Evidence("replaced", add_options(rows.frame())))
    assert list(found) == [
        "replaced_accuracy",
        "replaced_output",
        "replaced_agreement",
        "replaced_encoder",
    ]
    bars, *scatters, curves = (frame for frame, _ in drawn)
    check_points(
        bars,
        ("what",),
        {
            (f"{title}, λ = {weight:g}, {kind}",): replaced(
                corpus, own(weight=weight), "accuracy", kind
            )
            for (corpus, title), weight, kind in product(
                CORPORA.items(), (0.0, 0.01, 0.1), ("uniform", "another")
            )
        },
    )
    for metric, frame in zip(("output", "agreement"), scatters, strict=True):
        pairs = sorted(zip(frame["similar"], frame["value"], strict=True))
        assert pairs == sorted(
            (
                similar(corpus, *place)[seed],
                replaced(corpus, place[0], metric, "another", place[1])[seed],
            )
            for corpus, place, seed in product(CORPORA, ours, SEEDS)
        )
    check_points(
        curves,
        ("corpus", "attention", "layer"),
        {
            (title, kind, layer): replaced(corpus, ENCODER, "accuracy", kind, layer)
            for (corpus, title), kind, layer in product(
                CORPORA.items(), ("uniform", "another"), (1, 2, 3)
            )
        },
    )


# explained words


def test_explained_words(drawn):
    rows = make_rows()
    models = [{"layers": n} for n in (1, 2, 3)]
    models += [{"weight": 0.1}, {"start": RAW}, {"model": ENCODER}]
    measures = ("auprc", "auroc", "comprehensiveness", "sufficiency")
    for cell, measure in product(models, measures):
        depth = 4 if "model" in cell else cell.get("layers", 1)
        for name in ("random", "rare"):
            rows.add(cell, f"attribution.{measure}", component=name)
        for name, layer in product((*MAPS, "gradient"), range(1, depth + 1)):
            rows.add(cell, f"attribution.{measure}", component=name, layer=layer)
    rows.add({"model": ENCODER}, "collapsed")

    def at(corpus, model, measure, name, layer=None):
        place = {"component": name, "layer": layer}
        return rows.find(corpus, model, f"attribution.{measure}", **place)

    expected = {}
    for corpus, title in CORPORA.items():
        for which, model, last in (
            ("", own(), 1),
            (", last layer of the fine-tuned encoder", ENCODER, 4),
        ):
            for measure, claims in (
                (
                    "auprc",
                    {
                        "is plausible beyond chance": "random",
                        "is plausible beyond rarity": "rare",
                    },
                ),
                ("comprehensiveness", {"is faithful": "random"}),
            ):
                attention = at(corpus, model, measure, "attention", last)
                for words, other in claims.items():
                    expected[f"attention {words}", title + which] = attention - at(
                        corpus, model, measure, other
                    )
                what = "plausible" if measure == "auprc" else "faithful"
                expected[
                    f"directions are more {what} than attention", title + which
                ] = at(corpus, model, measure, "value, contrast", last) - attention
        falls = [
            at(corpus, own(layers=n), "auprc", "attention", 1)
            - at(corpus, own(layers=n), "auprc", "attention", n)
            for n in (2, 3)
        ]
        expected["the first layer, if any", title] = (falls[0] + falls[1]) / 2
    check_tests(explained_words, "explained", rows, expected)
    # The deepest models of one corpus have fewer layers.
    rows.rows = [
        row
        for row in rows.rows
        if (row["corpus"], "L=3" in row["model"]) != ("esnli", True)
    ]
    explained_words.draw(Evidence("explained", add_options(rows.frame())))
    *bars, deepest, plausible, erased = (frame for frame, _ in drawn)
    shown = {
        "plausibility (AUPRC)": "auprc",
        "plausibility (AUROC)": "auroc",
        "comprehensiveness": "comprehensiveness",
        "sufficiency (lower: more faithful)": "sufficiency",
    }
    for corpus, frame in zip(CORPORA, bars, strict=True):
        every = {}
        for words, measure in shown.items():
            for name in ("random", "rare"):
                every[words, name] = at(corpus, own(), measure, name)
            for name in (*MAPS, "gradient"):
                every[words, name] = at(corpus, own(), measure, name, 1)
        check_points(frame, ("quantity", "component"), every)
    depths = {"yelphat": 3, "esnli": 2}
    check_points(
        deepest,
        ("corpus", "map", "layer"),
        {
            (title, name, layer): at(
                corpus, own(layers=depths[corpus]), "auprc", name, layer
            )
            for corpus, title in CORPORA.items()
            for name in MAPS
            for layer in range(1, depths[corpus] + 1)
        },
    )
    for frame, measure in ((plausible, "auprc"), (erased, "comprehensiveness")):
        check_points(
            frame,
            ("corpus", "map", "layer"),
            {
                (title, name, layer): at(corpus, ENCODER, measure, name, layer)
                for (corpus, title), name, layer in product(
                    CORPORA.items(), MAPS, range(1, 5)
                )
            },
        )
    assert [settings["title"] for _, settings in drawn[-3:]] == [
        "plausibility (AUPRC)",
        "plausibility (AUPRC)",
        "comprehensiveness",
    ]


# figure 2

CLASSES = ("entailment", "neutral", "contradiction")


@pytest.fixture
def directions():
    rows = make_rows()
    cell = {"model": ENCODER}
    quantiles = ("0", "0.025", "0.25", "0.5", "0.75", "0.975", "1", "mean")
    for stage in ("tuned", "pretrained"):
        for quantile, name in product(quantiles, CLASSES):
            for metric in ("auc", "others"):
                rows.add(cell, f"{metric}.{quantile}", site=stage, component=name)
            for other, metric in product(CLASSES, ("first", "representative")):
                place = {"site": stage, "component": f"{name} → {other}"}
                rows.add(cell, f"{metric}.{quantile}", **place)
        rows.add(cell, "separability.nearest", site=stage, n_units=90)
        for name in (None, *CLASSES):
            rows.add(cell, "separability.auc", site=stage, component=name)
    for name in CLASSES:
        rows.add(cell, "class_accuracy", component=name)
    for row in rows.rows:
        if row["metric"] == "separability.nearest":
            row |= {"low": row["value"] - 0.02, "high": row["value"] + 0.05}
    rows.add(cell, "collapsed")
    return rows


def test_figure_2(directions, drawn):
    def at(corpus, metric, name, stage="tuned"):
        return directions.find(corpus, ENCODER, metric, site=stage, component=name)

    def over_classes(corpus, metric, stage="tuned"):
        return sum(at(corpus, metric, name, stage) for name in CLASSES) / 3

    expected = {}
    for corpus, title in CORPORA.items():
        expected["the direction separates", title] = over_classes(
            corpus, "auc.mean"
        ) - over_classes(corpus, "auc.mean", "pretrained")
        expected["not by chance of one draw", title] = over_classes(corpus, "auc.0.025")
    alike = at("esnli", "others.mean", "contradiction")
    expected["contradiction sees two classes alike", "e-SNLI"] = alike
    places = [(corpus, name) for corpus in CORPORA for name in CLASSES]
    closeness = [at(c, "representative.mean", f"{name} → {name}") for c, name in places]
    right = [
        directions.find(c, ENCODER, "class_accuracy", component=name)
        for c, name in places
    ]
    ranks = []
    for seed in SEEDS:
        known = [i for i in range(6) if np.isfinite(closeness[i][seed])]
        ranks.append(
            stats.spearmanr(
                [closeness[i][seed] for i in known], [right[i][seed] for i in known]
            ).statistic
        )
    expected["closer classes are better classified", "all corpora"] = np.array(ranks)
    found = {
        (test.claim.name, test.subject): test
        for test in read_tests(fig2_directions, "fig2", directions)
    }
    for corpus, title in CORPORA.items():
        test = found.pop(("not before fine-tuning", title))
        before = directions.find(
            corpus, ENCODER, "separability.nearest", site="pretrained", every=True
        )[0]
        assert test.value == pytest.approx(before - 1 / 3)
        assert test.low == pytest.approx(before - 1 / 3 - 0.02)
        assert test.high == pytest.approx(before - 1 / 3 + 0.05)
        assert (test.inside, test.n) == ((-0.1, 0.1), 90)
        assert "1/3" in test.statistic
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key].value == pytest.approx(np.nanmean(values)), key
    published = {
        "entailment": (0.95, 0.37, 0.05),
        "neutral": (0.41, 0.92, 0.22),
        "contradiction": (0.19, 0.13, 0.92),
    }
    check_compared(
        fig2_directions,
        "fig2",
        directions,
        "esnli",
        {
            f"median of {other} to a representative of {name}": (
                number,
                at("esnli", "first.0.5", f"{name} → {other}"),
            )
            for name, numbers in published.items()
            for other, number in zip(CLASSES, numbers, strict=True)
        },
    )
    fig2_directions.draw(Evidence("fig2", add_options(directions.frame())))
    ends = {
        "least": "0.025",
        "lower": "0.25",
        "middle": "0.5",
        "upper": "0.75",
        "most": "0.975",
    }
    for corpus, (frame, settings) in zip(CORPORA, drawn, strict=True):
        assert len(frame) == 2 * 9
        for row in frame.to_dict("records"):
            own_class = row["to"].removeprefix("to a representative of ")
            stage = {"fine-tuned": "tuned", "pre-trained": "pretrained"}[row["stage"]]
            for end, quantile in ends.items():
                values = at(
                    corpus,
                    f"representative.{quantile}",
                    f"{own_class} → {row['of']}",
                    stage,
                )
                assert row[end] == pytest.approx(np.nanmean(values))
        assert (settings["series"], settings["panel"], settings["category"]) == (
            "stage",
            "to",
            "of",
        )


# table 2 and the forms of entropy


def test_table_2():
    rows = make_rows()
    cell = {"model": ENCODER}
    for number, name in enumerate(table2_examples.ROWS):
        rows.add(cell, "example", component=f"{name} | class | {number}")
    rows.add(cell, "example", component="representative | class | 9")
    rows.add(cell, "overlap")
    rows.add(cell, "collapsed")
    expected = {}
    for corpus, title in CORPORA.items():
        near, far = (
            rows.find(corpus, ENCODER, "example", component=component)
            for component in (
                "nearest, other class | class | 1",
                "farthest, same class | class | 3",
            )
        )
        expected["direction is not shared words", title] = rows.find(
            corpus, ENCODER, "overlap"
        )
        expected["some of the other class are near", title] = near - far
    check_tests(table2_examples, "table2", rows, expected)


def test_the_forms_of_entropy(drawn):
    """A draw with published numbers between its steps: the plain H is interpolated between their neighbours."""
    rows = []

    def add(**row):
        rows.append({"corpus": "hatexplain", "model": "any", "seed": 0, **row})

    add(metric="forms.floor", component="again", value=0.97, n_units=7)
    add(metric="forms.floor", component="reported", value=0.01, n_units=7)
    kinds = {simulated_forms.DRAWN: (0.0, 0.02, 0.04), simulated_forms.ONE_WORD: (0.1,)}
    for kind, shifts in kinds.items():
        for seed, shift in enumerate(shifts):
            for step, again, plain in ((4, 0.98, 0.2), (2, 0.99, 0.4), (0, 1.0, 0.9)):
                of = {"metric": "forms.simulated", "site": kind, "seed": seed}
                add(**of, model=f"{step}", component="again", value=again)
                add(**of, model=f"{step}", component="reported", value=plain + shift)
    frame = as_records(pd.DataFrame(rows))
    here = Evidence("forms", frame, "hatexplain")
    # 0.988 is published: eight tenths of the way from 0.98 to 0.99.
    middle = 0.2 + 0.8 * 0.2
    value, low, high = simulated_forms.estimate_plain(here, simulated_forms.DRAWN)
    assert value == pytest.approx(middle + 0.02)
    assert low == pytest.approx(middle - 0.05 * 0.2 + 0.001)  # the lowest draw, nearly
    assert high == pytest.approx(middle + 0.05 * 0.2 + 0.039)
    found = {(t.claim.name, t.subject): t for t in simulated_forms.make_tests(here)}
    floor = found["form C cannot look sharp", "HateXplain"]
    assert (floor.value, floor.low, floor.high, floor.n) == (0.97, 0.97, 0.97, 7)
    assert floor.inside == (0.9, 1.0)
    word = found["a change of form", f"HateXplain, {simulated_forms.ONE_WORD}"]
    assert word.value == pytest.approx(middle + 0.1)
    assert word.inside == pytest.approx((0.31 - 0.08, 0.31 + 0.08))
    law = found["not uniform behind form C", f"HateXplain, {simulated_forms.DRAWN}"]
    assert law.value == pytest.approx(middle + 0.02) and law.inside == (0, 0.9)
    assert len(found) == 5
    simulated_forms.draw(frame)
    ((table, _),) = drawn
    expected = {
        (kind, plain + fmean(shifts)): again
        for kind, shifts in kinds.items()
        for again, plain in ((0.98, 0.2), (0.99, 0.4), (1.0, 0.9))
    }
    found = {
        (row["site"], round(row["plain"], 9)): row["value"]
        for row in table.to_dict("records")
    }
    assert found == {
        (kind, round(x, 9)): pytest.approx(y) for (kind, x), y in expected.items()
    }
    assert table["plain"].is_monotonic_increasing
