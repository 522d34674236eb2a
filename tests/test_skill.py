"""The page for agents: its commands work in their order, and their answers hold the fields that it names."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import llms
import numpy as np
import pytest
import yaml
from test_formats import check_answer
from typed import invoke

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "skill.md").read_text("utf-8")
COMMANDS = re.findall(r"^\$ anisoscope (.+)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each command of the page answered, in a folder with vectors in a cone of 40 dimensions."""
    folder = tmp_path_factory.mktemp("skill")
    np.save(folder / "vectors.npy", np.random.default_rng(0).normal(size=(400, 40)) + 1)
    given = []
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(
            import_module("anisoscope.report"),
            "build_page",
            lambda folder, *_: folder / "report.html",
        )
        for line in COMMANDS:
            words = shlex.split(line)
            done = invoke(words)
            assert done.exit_code == 0, (line, done.output)
            published = "reading" if "--dry-run" in words else words[0]
            given.append(
                (
                    words,
                    check_answer(done.stdout, published)
                    if "json" in words
                    else done.stdout,
                )
            )
    return given


def test_the_page_has_every_step(answers):
    assert [words[0] for words, _ in answers] == [
        "doctor",
        "measure",
        "measure",
        "cure",
        "apply",
        "measure",
        "compare",
    ]


def test_answers_hold_what_the_page_reads(answers):
    doctor, reading, measured, cured, _, after, compared = (
        answer for _, answer in answers
    )
    assert doctor["works"] and doctor["versions"]
    assert reading["records"][0]["vectors"] == 400
    assert "400 vectors" in reading["records"][0]["reading"]
    of = {row["metric"]: row for row in measured["records"] if row["component"] is None}
    a, floor = of["mean_cosine"], of["mean_cosine.isotropic_q95"]
    assert a["low"] > floor["value"] and (a["n_vectors"], a["n_units"]) == (400, 400)
    assert "nisotropic" in measured["findings"][0]["text"]
    assert cured["chosen"] == "centre"
    of = {row["metric"]: row for row in after["records"] if row["component"] is None}
    assert of["mean_cosine"]["high"] <= floor["value"]
    assert compared["failed"] == [] and compared["records"][0]["difference"] < -0.3


def test_the_list_for_programs_is_made_from_the_pages():
    assert llms.FILE.read_text("utf-8") == llms.text(), "make docs writes it"
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    for path in llms.pages_of(site["nav"]):
        assert f"]({path})" in llms.text()


def test_first_sentences():
    assert (
        llms.first_sentence("---\na: b\n---\n\n# T\n\nOne [two](x.md)\nthree. Four.")
        == "One two three."
    )
    assert llms.first_sentence("# T\n\n| a |") == ""
