"""What is seen of families and libraries is what docs/architectures.md says: a tiny model of each runs anew."""

import pytest
from families import FAMILIES, importable
from seen import kept, measure


def test_the_table_holds_every_family_and_no_weights_of_others():
    table = kept()
    assert table.keys() == FAMILIES.keys() and len(table) >= 60
    assert not any("OTHERS" in seen.rows for seen in table.values())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_seen_as_the_page_says(name):
    """Outputs stay bit for bit; weights by what wchecked by hand are the model's own, in float64."""
    if not importable(FAMILIES[name].library):
        pytest.skip(f"{FAMILIES[name].library} is not installed")
    assert measure(name) == kept()[name]
