"""Short names of the papers' models: what is nearly one of them is told before anything is looked up."""

import pytest

from anisoscope.data import names
from anisoscope.errors import ModelError


@pytest.mark.parametrize("name", ["bert-bas", "bert-base-b"])
def test_what_is_nearly_a_name_is_told(name):
    with pytest.raises(ModelError, match="a model's name"):
        names.check_model(name)


@pytest.mark.parametrize("name", ["bert-base", "bert-base-bc", "org/bert-base", "builtin:crepe"])
def test_names_and_what_is_far_from_them_pass(name):
    names.check_model(name)
