"""Records of hidden states and a stand-in for the builders of charts, for tests of what is drawn."""

import pandas as pd
import pytest

from anisoscope.charts import builders
from anisoscope.report.results import Results
from anisoscope.store import as_records


def row(metric, layer, value, **keys):
    """A row of hidden states of an encoder, whose interval reaches a hundredth of its value to both sides."""
    found = {"metric": metric, "stack": "encoder", "kind": "self", "layer": layer}
    found |= {"site": "hidden", "token_policy": "all", "value": value, "seed": 0}
    found |= {"low": value * 0.99, "high": value * 1.01}
    return found | {"n_vectors": 1000, "n_units": 40} | keys


def results(rows, **manifest):
    """Results of a run with these rows and this manifest."""
    return Results(as_records(pd.DataFrame(rows)), manifest)


@pytest.fixture
def drawn(monkeypatch):
    """What the builders of charts were asked for: (builder, frame, options)."""
    calls = []
    for name in ("trajectory", "layer_curve", "heatmap", "scatter", "bars"):

        def build(frame, *, of=name, **options):
            calls.append((of, frame, options))

        monkeypatch.setattr(builders, name, build)
    return calls


def entry(**more):
    """An entry of a page's list of figures."""
    texts = {"name": "n", "title": "t", "caption": "c", "alt": "a"}
    return texts | {"metric": "mean_cosine", "draw": {"title": "up"}} | more
