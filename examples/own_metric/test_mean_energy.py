"""The metric keeps every law that the metrics of Anisoscope keep, and gives what is known in a simple case."""

import numpy as np
import pytest
from mean_energy import METRIC

import anisoscope
from anisoscope.testing import laws_of


@pytest.mark.parametrize("law", laws_of(METRIC), ids=lambda law: law.name)
def test_the_metric_keeps_the_law(law):
    law.hold(METRIC)


def test_two_vectors_around_their_mean():
    found = anisoscope.metric(METRIC, np.array([[3.0, 1.0], [3.0, -1.0]]))
    assert found["mean_energy"].value == pytest.approx(0.9)
