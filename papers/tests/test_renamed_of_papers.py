"""What older versions trained and measured is read by today's names of corpora, metrics and sites."""

import ast
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from trees import tree_of

import anisoscope_papers
from anisoscope import renamed
from anisoscope.provenance import json_roundtrip
from anisoscope.store import write_json, write_table
from anisoscope_papers import runner
from anisoscope_papers.fosse2023 import trained_cells
from anisoscope_papers.fosse2023.grid import Cell, Grid
from anisoscope_papers.runner import find_studies, open_finished, reproduce
from anisoscope_papers.training import classifier
from anisoscope_papers.training.recipe import ClassifierRecipe

PACKAGE = Path(anisoscope_papers.__file__).parent
RESULTS = Path(__file__).resolve().parents[1] / "results"


def make_older(content):
    """A JSON value or a text as an older version wrote it."""
    text = json.dumps(content, ensure_ascii=False)
    for older, today in (
        *renamed.CORPORA.items(),
        *renamed.METRICS.items(),
        *renamed.SITES.items(),
    ):
        text = text.replace(f'"{today}"', f'"{older}"').replace(
            f'"{today}:', f'"{older}:'
        )
    return json.loads(text)


@pytest.mark.parametrize(
    "place",
    [
        "beyond/generated/pooling",
        "fosse2023/finished/replaced",
        "fosse2023/finished/explained",
    ],
)
def test_a_study_of_an_older_version_is_judged_as_todays(place, tmp_path):
    kept, folder = RESULTS / place, tmp_path / place
    shutil.copytree(kept, folder)
    today = pd.read_parquet(kept / "records.parquet")
    older = today.copy()
    for column in ("metric", "site", "corpus"):
        older[column] = pd.array(
            [None if pd.isna(x) else make_older(x) for x in today[column]],
            dtype="string",
        )
    assert not older.equals(today)
    write_table(folder / "records.parquet", older)
    write_json(
        folder / "study.json", make_older(json.loads((kept / "study.json").read_text()))
    )
    found, expected = open_finished(folder), open_finished(kept)
    pd.testing.assert_frame_equal(found.records, expected.records)
    assert found.described == expected.described and found.verdicts == expected.verdicts


def test_settings_of_an_older_version_are_not_taken_for_others(tmp_path):
    """The name of a corpus changed, and nothing else: no word that it was measured with other settings."""
    folder = tmp_path / "beyond" / "generated" / "pooling"
    shutil.copytree(RESULTS / "beyond/generated/pooling", folder)
    described = json.loads((folder / "study.json").read_text())
    write_json(folder / "study.json", make_older(described))
    assert "planted:5" in (folder / "study.json").read_text()
    (study,) = [
        study
        for study in find_studies()
        if (study.paper, study.name) == ("beyond", "pooling")
    ]
    lines = list(reproduce([study], "generated", tmp_path))
    assert lines and not any("other settings" in line for line in lines)
    assert runner._name_other_settings(folder, study.settings["generated"]) == ""


def test_a_recipe_of_an_older_version_is_read():
    for older, today in (
        ("planted", "synthetic"),
        ("planted:3", "synthetic:3"),
        ("planted-pairs", "synthetic-pairs"),
    ):
        assert ClassifierRecipe(corpus=older).corpus == today
    described = ClassifierRecipe(corpus="synthetic:3").described()
    assert ClassifierRecipe.read(
        described | {"corpus": "planted:3"}
    ) == ClassifierRecipe(corpus="synthetic:3")


def test_a_training_of_an_older_version_is_identified_by_todays_names(tmp_path):
    recipe = json_roundtrip(ClassifierRecipe(corpus="synthetic").filled().described())
    write_json(
        tmp_path / "training.json",
        {"recipe": recipe | {"corpus": "planted"}, "corpus": {"name": "planted"}},
    )
    training = classifier._read_training(tmp_path / "training.json")
    assert classifier._identify_training(training)["recipe"] == recipe
    assert training["corpus"]["name"] == "synthetic"


FOLDERS = {
    "yelphat-attention-L1-s0-89d63c43": Cell("yelphat"),
    "hatexplain-attention-L2-s3-eae874cc": Cell("hatexplain", layers=2, seed=3),
    "esnli-attention-L1-s0-f19cee76": Cell("esnli", positions="none", arm="uniform"),
}
"""Folders of trainings as they were called before the names changed."""


def test_folders_of_other_corpora_keep_their_names(tmp_path):
    """A new name of one corpus is not to make trainings on others be done again."""
    for name, cell in FOLDERS.items():
        assert trained_cells.name_folder(cell, Grid(), tmp_path).name == name


def test_older_names_are_not_used_by_the_papers():
    known = {
        *renamed.METRICS,
        *renamed.SITES,
        *renamed.FIGURES,
        "replaced.",
        "explains.",
    }
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            text = (
                getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            )
            if isinstance(text, str) and (
                text in known or text.partition(":")[0] in renamed.CORPORA
            ):
                found.append(f"{path.name}:{node.lineno} {text}")
    assert not found
