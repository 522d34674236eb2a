"""Records that are all unlike, and a slow way to look them up: what a study computes of them is checked by formula."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from anisoscope.charts import builders
from anisoscope.store import as_records
from anisoscope_papers.fosse2023.grid import Cell

SEEDS = (0, 1, 2)


class Rows:
    """Records with a value of their own each.

    corpora  each row is added for all of them
    lost     (corpus, model, seed) of a model that learnt nothing, if rows `collapsed` are added
    """

    def __init__(self, corpora, lost=None):
        self.rows = []
        self.corpora = tuple(corpora)
        self.lost = lost
        self.draw = np.random.default_rng(0)

    def add(self, cell, metric, behind="", **place):
        """Add a row for every corpus and seed.

        cell    options of a classifier (`Cell`), or the name of a model
        behind  what its name ends with
        """
        for corpus, seed in product(self.corpora, SEEDS):
            name = cell
            if isinstance(cell, dict):
                name = Cell(corpus, seed=seed, **cell).label
            value = float(self.draw.uniform(0.1, 0.9))
            if metric == "collapsed":
                value = float((corpus, name, seed) == self.lost)
            row = {"model": name + behind, "metric": metric, "corpus": corpus}
            self.rows.append(row | {"seed": seed, "value": value, **place})

    def frame(self):
        return as_records(pd.DataFrame(self.rows))

    def find(self, corpus, model, metric, *, every=False, **place):
        """Return the values [seed]; NaN for a seed that learnt nothing, unless `every` is true."""
        found = np.full(len(SEEDS), np.nan)
        for row in self.rows:
            if (row["corpus"], row["model"], row["metric"]) != (corpus, model, metric):
                continue
            if any(row.get(name) != value for name, value in place.items()):
                continue
            if (corpus, model, row["seed"]) == self.lost and not every:
                continue
            assert np.isnan(found[row["seed"]]), "two rows fit"
            found[row["seed"]] = row["value"]
        assert not np.isnan(found).all(), (corpus, model, metric, place)
        return found


def own(**cell):
    """Return the name of a classifier with these options."""
    return Cell("", **cell).label


def check_tests(tests, expected):
    """Check the mean over seeds of every test; `expected`: {(claim, subject): [seed]}. Return the tests by key."""
    found = {}
    for test in tests:
        assert (test.claim.name, test.subject) not in found
        found[test.claim.name, test.subject] = test
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key].value == pytest.approx(np.nanmean(values), abs=1e-12), key
        assert found[key].n == np.isfinite(values).sum(), key
    return found


def keep_drawn(monkeypatch):
    """Make builders of charts keep what they are given, and return the list of it: [(table, settings)]."""
    seen = []

    def keep(frame, **settings):
        seen.append((frame, settings))
        return "chart"

    for name in ("bars", "trajectory", "layer_curve", "scatter"):
        monkeypatch.setattr(builders, name, keep)
    return seen


def check_points(frame, keys, expected):
    """Check every drawn value; `expected`: {values of the columns `keys`: value, or values [seed]}."""
    found = {}
    for row in frame.to_dict("records"):
        key = tuple(row[name] for name in keys)
        assert key not in found
        found[key] = row["value"]
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(float(np.nanmean(value)), abs=1e-12), key
