"""Short names of the papers' models: what is nearly one of them is told before anything is looked up."""

import pytest

from anisoscope.data import check_names
from anisoscope.errors import ModelError, UsageError
from anisoscope_papers.study_names import choose_names


@pytest.mark.parametrize("name", ["bert-bas", "bert-base-b"])
def test_what_is_nearly_a_name_is_told(name):
    with pytest.raises(ModelError, match="a model's name"):
        check_names.check_model(name)


@pytest.mark.parametrize(
    "name", ["bert-base", "bert-base-bc", "org/bert-base", "builtin:crepe"]
)
def test_names_and_what_is_far_from_them_pass(name):
    check_names.check_model(name)


@pytest.mark.parametrize(
    ("only", "studies"),
    [
        ("fig1-3", ["fig1", "fig2", "fig3a", "fig3b"]),
        ("fig7-fig7", ["fig7"]),
        ("fig8, fig7", ["fig8", "fig7"]),
        ("fig3,fig3b", ["fig3a", "fig3b"]),
    ],
)
def test_studies_are_chosen_by_name_number_and_range(only, studies):
    """A range holds both its ends; a number all parts of its figure."""
    assert choose_names("godey2024", only) == studies


def test_what_no_study_is_called_is_told():
    with pytest.raises(UsageError, match="figures or tables of godey2024"):
        choose_names("godey2024", "fig1,fig3b-3")
