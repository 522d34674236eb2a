"""Metrics and their values, found by the names that the field and the records have for them."""

import pytest
import torch

import anisoscope
from anisoscope import metrics
from anisoscope.errors import UsageError

X = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)) + 0.2


@pytest.mark.parametrize("name", metrics.KNOWN_AS)
def test_every_name_of_the_field_stands_for_something(name):
    metric, value = metrics.resolve_alias(name)
    assert metric in metrics.find_all()
    if value:
        assert set(anisoscope.metric(name, X)) == {
            k for k in anisoscope.metric(metric, X) if k.split(" ")[0] == value
        }


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("isoscore", "spectrum.isoscore"),
        ("IsoScore", "spectrum.isoscore"),
        ("spectrum.isoscore", "spectrum.isoscore"),
        ("rankme", "spectrum.effective_rank_uncentred"),
        ("effective rank", "spectrum.effective_rank"),
        ("participation-ratio", "spectrum.participation_ratio"),
        ("anisotropy", "mean_cosine"),
    ],
)
def test_a_value_is_found_by_its_own_name(name, key):
    """`did you mean score_terms?` was the cure for `isoscore`."""
    metric = key.partition(".")[0]
    assert anisoscope.metric(name, X)[key] == anisoscope.metric(metric, X)[key]


def test_rankme_is_that_of_its_paper():
    """exp of the entropy of the singular values, which are not centred (Garrido et al. 2023)."""
    singular = torch.linalg.svdvals(X.double())
    shares = singular / singular.sum()
    expected = torch.exp(-(shares * shares.log()).sum()).item()
    (estimate,) = anisoscope.metric("rankme", X).values()
    assert estimate.value == pytest.approx(expected, abs=1e-5)


def test_what_is_no_name_is_told_with_those_that_are():
    with pytest.raises(UsageError, match="did you mean isoscore"):
        anisoscope.metric("isoscor", X)
    with pytest.raises(UsageError, match=r"a value of spectrum; got spectrum\.isoscor"):
        anisoscope.metric("spectrum.isoscor", X)
    with pytest.raises(
        UsageError,
        match=r"the value spectrum\.isoscore of spectrum here.*name spectrum",
    ):
        anisoscope.measure(X, metrics=["isoscore"])
