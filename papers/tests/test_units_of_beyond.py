"""Small decisions of the studies `beyond`, each on a few numbers that are all unlike."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from slow_numbers import keep_drawn

from anisoscope.store import as_records
from anisoscope_papers.beyond import crossed, dimension
from anisoscope_papers.beyond.cells import AFTERWARDS, RIGHT, pack_bits
from anisoscope_papers.fosse2023.entry import Evidence, Seeds
from anisoscope_papers.fosse2023.grid import Cell, add_options

NAN = float("nan")

# ---- crossed: seeds or splits × utterances ---------------------------------------------------------------------------


def estimate_slowly(table):
    """Return (mean, half of the interval) by sums over single cells of the table."""
    rows, columns = len(table), len(table[0])
    mean = sum(map(sum, table)) / (rows * columns)
    by_row = [sum(row) / columns for row in table]
    by_column = [sum(row[j] for row in table) / rows for j in range(columns)]
    of_rows = columns * sum((x - mean) ** 2 for x in by_row) / (rows - 1)
    of_columns = rows * sum((x - mean) ** 2 for x in by_column) / (columns - 1)
    rest = 0.0
    for i, j in product(range(rows), range(columns)):
        rest += (table[i][j] - by_row[i] - by_column[j] + mean) ** 2
    rest /= (rows - 1) * (columns - 1)
    total = of_rows + of_columns - rest
    freedom = total**2 / (
        of_rows**2 / (rows - 1)
        + of_columns**2 / (columns - 1)
        + rest**2 / ((rows - 1) * (columns - 1))
    )
    if total <= max(of_rows, of_columns):
        total, freedom = max((of_rows, rows - 1), (of_columns, columns - 1))
    half = stats.t.ppf(0.975, max(freedom, 1)) * np.sqrt(total / (rows * columns))
    return mean, float(half)


TABLES = {
    "both vary": [[0, 3, 1, 9], [2, 4, 4, 12], [7, 8, 9, 15]],
    "rows alone vary": [[0, 1, 0, 1], [9, 8, 9, 8], [20, 21, 21, 20]],
    "columns alone vary": [[0, 9, 20], [1, 8, 21], [0, 9, 21], [1, 8, 20]],
    # ±r ±c ±t with r² = c² = 1.1 and t = 1: Satterthwaite's degrees would be 0.42.
    "hardly a degree of freedom": [
        [1.0 + 2 * 1.1**0.5, -1.0],
        [-1.0, 1.0 - 2 * 1.1**0.5],
    ],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_crossed_interval_is_that_of_an_analysis_of_variance(name):
    mean, half = estimate_slowly(TABLES[name])
    found = crossed.estimate_crossed_interval(np.array(TABLES[name], float))
    assert found[:3] == pytest.approx((mean, mean - half, mean + half))
    if name == "hardly a degree of freedom":
        assert found[3] == 1 and half == pytest.approx(12.7062 * 1.2**0.5, rel=1e-5)


COUNTS = {"yelphat": 11, "esnli": 13}
TITLES = {"yelphat": "YelpHat", "esnli": "e-SNLI"}
SPLITS = {"yelphat": (0, 3, 5), "esnli": (0, 2)}
PLAIN, BARE = "sinusoids", "no positions"


def make_bits():
    """Records of single utterances, and {(corpus, positions, split, arm, seed, what): [bool]}."""
    draw = np.random.default_rng(0)
    rows, bits = [], {}
    for corpus, positions, arm, seed in product(
        COUNTS, ("sinusoidal", "none"), ("learned", "uniform", "frozen"), range(5)
    ):
        # Learned and uniform attention have three seeds in common.
        if (arm, seed) in (("learned", 4), ("uniform", 0)):
            continue
        # Of the text's recipe there are two common seeds alone.
        if positions == "none" and seed == 2:
            continue
        for split in SPLITS[corpus]:
            after = 0 if arm == "frozen" else None
            cell = Cell(
                corpus,
                arm=arm,
                seed=seed,
                split=split,
                positions=positions,
                freeze_after=after,
            )
            for what in ("test", AFTERWARDS)[: 1 if arm == "uniform" else 2]:
                right = draw.random(COUNTS[corpus]) < 0.6
                bits[corpus, positions, split, arm, seed, what] = right
                named = {"model": cell.label, "corpus": corpus, "seed": seed}
                named |= {"value": float(right.mean()), "n_units": len(right)}
                rows.append(
                    named | {"metric": RIGHT, "component": pack_bits(what, right)}
                )
                rows.append(named | {"metric": "accuracy", "component": what})
                # Another split of another size must not tell the number of utterances.
                other = {"metric": "accuracy", "component": "train", "n_units": 5}
                rows.append(named | other)
    return as_records(pd.DataFrame(rows)), bits


def subtract_slowly(bits, corpus, positions, claim, split):
    """Return the table [seed, utterance] of uniform less learned attention."""
    arm, what = ("uniform", "test")
    seeds = (1, 2, 3)
    if claim == "not used":
        arm, what = ("learned", AFTERWARDS)
        seeds = (0, 1, 2, 3)
    table = []
    for seed in seeds:
        if positions == "none" and seed == 2:
            continue
        other = bits[corpus, positions, split, arm, seed, what].astype(int)
        table.append(other - bits[corpus, positions, split, "learned", seed, "test"])
    return np.array(table, float)


def test_a_difference_of_utterances_is_paired_by_seed_and_averaged_over_splits(
    monkeypatch,
):
    records, bits = make_bits()
    whole = Evidence("crossed", add_options(records), paper="beyond")
    expected = {}
    for corpus, (positions, recipe), claim in product(
        COUNTS,
        (("sinusoidal", PLAIN), ("none", BARE)),
        ("not needed", "not used"),
    ):
        tables = [
            subtract_slowly(bits, corpus, positions, claim, split)
            for split in SPLITS[corpus]
        ]
        # Two splits do not say how splits differ: the seeds of the first one count.
        drawn = f"{len(tables[0])} seeds × {COUNTS[corpus]} utterances"
        table = tables[0]
        if len(tables) == 3:
            table = np.array([each.mean(0) for each in tables])
            drawn = f"3 splits × {COUNTS[corpus]} utterances"
        expected[claim, f"{TITLES[corpus]}, {recipe}"] = (table, drawn)
    found = {}
    for test in crossed.make_tests(whole):
        assert (test.claim.name, test.subject) not in found
        found[test.claim.name, test.subject] = test
    assert found.keys() == expected.keys()
    for key, (table, drawn) in expected.items():
        test = found[key]
        assert test.note.startswith(drawn) and test.n == len(table), key
        assert test.value == pytest.approx(table.mean()), key
        margin = test.claim.within
        assert f"(claim: {-margin:.3g} to {margin:.3g})" in test.statistic
        if len(table) < 3:
            assert np.isnan(test.low) and test.inside is None
            continue
        mean, half = estimate_slowly(table)
        assert (test.low, test.high) == pytest.approx((mean - half, mean + half)), key
        assert test.inside == (-margin, margin)
    assert {len(table) for table, _ in expected.values()} == {2, 3, 4}
    shown = keep_drawn(monkeypatch)
    crossed.draw(whole)
    ((frame, _),) = shown
    bars = frame.set_index("what")
    assert len(bars) == 3 * len(expected)
    for (claim, subject), (table, _) in expected.items():
        mean, half = estimate_slowly(table)
        alone = stats.t.ppf(0.975, len(table) - 1) * stats.sem(table.mean(1))
        for way, width in (("crossed", half), ("seeds or splits alone", alone)):
            bar = bars.loc[f"{subject}, {claim}: {way}"]
            assert bar["value"] == pytest.approx(mean) and bar["seeds"] == len(table)
            assert (bar["low"], bar["high"]) == pytest.approx(
                (mean - width, mean + width)
            )
        drawn_again = crossed.bootstrap_interval(table)
        bar = bars.loc[f"{subject}, {claim}: bootstrap of both"]
        assert (bar["value"], bar["low"], bar["high"]) == pytest.approx(drawn_again)


# ---- dimension -------------------------------------------------------------------------------------------------------


def test_the_width_that_is_enough_is_near_the_widest_and_not_the_best():
    by_width = {
        2: [0.50, 0.88, 0.879, 0.9],
        4: [0.95, 0.70, 0.90, 0.9],
        8: [0.89, 0.95, 0.90, NAN],
        128: [0.90, 0.90, 0.90, 0.9],
    }
    accuracy = Seeds({k: np.array(v) for k, v in by_width.items()}, np.full(4, NAN))
    found = dimension.find_saturation(accuracy)
    np.testing.assert_array_equal(found, [4, 8, 4, NAN])
    assert np.isnan(dimension.find_saturation(Seeds({}, np.full(3, NAN)))).all()


def test_growth_needs_three_numbers_of_classes():
    needed = {
        2: pd.Series([2.0, 4.0, NAN], [3, 5, 7]),
        4: pd.Series([4.0, NAN, 4.0], [3, 5, 7]),
        16: pd.Series([16.0, 64.0, 64.0], [3, 5, 7]),
        32: pd.Series([32.0, 256.0, NAN], [3, 5, 7]),
    }
    slope = np.polyfit([1, 4, 5], [2, 6, 8], 1)[0]
    np.testing.assert_allclose(dimension.fit_growth(needed), [1, slope, NAN])
    assert np.isnan(dimension.fit_growth({})).all()
    assert [dimension.count_classes(name) for name in ("ud_ewt", "synthetic:3")] == [
        17,
        3,
    ]
