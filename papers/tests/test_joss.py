"""The draft of a paper: its numbers are those of records, its length and its references those that JOSS asks for."""

import re
from pathlib import Path

import findings
import joss

FOLDER = Path(__file__).parents[2] / "paper"
TEXT = (FOLDER / "paper.md").read_text("utf-8")
ENTRIES = re.findall(
    r"@\w+\{(\w+),\n(.*?)\n\}", (FOLDER / "paper.bib").read_text("utf-8"), re.DOTALL
)


def test_the_numbers_are_those_of_the_records():
    assert joss.paper() == TEXT, "make docs writes it"
    assert len(findings.FIELD.findall(joss.DRAFT.read_text("utf-8"))) > 8
    assert "{{" not in TEXT


def test_a_number_by_hand_is_none_of_the_records():
    """Every number with an interval is a field of the draft: none was typed."""
    assert not re.findall(r"\d\.\d+ \[", joss.DRAFT.read_text("utf-8"))


def test_it_is_as_long_as_the_journal_wants():
    assert 1000 <= joss.words(TEXT) <= 1500, joss.words(TEXT)


def test_it_has_the_sections_that_the_journal_wants():
    sections = re.findall(r"^# (.+)$", TEXT, re.MULTILINE)
    wanted = [
        "Summary",
        "Statement of need",
        "State of the field",
        "Software design",
        "Research use",
    ]
    assert sections[:5] == wanted
    assert "AI usage disclosure" in sections and sections[-1] == "References"


def test_every_reference_is_cited_and_has_a_doi_or_an_address():
    cited = set(re.findall(r"@(\w+)", TEXT.split("---\n", 2)[2]))
    assert cited == {name for name, _ in ENTRIES}
    for name, fields in ENTRIES:
        doi = re.search(r"doi = \{(.+?)\}", fields)
        assert doi or "url = {https://" in fields, name
        assert not doi or re.fullmatch(r"10\.\d{4,5}/\S+", doi[1]), name


def test_files_that_the_checklist_names_are_there():
    for target in re.findall(
        r"\]\(([^)#]+)\)", (FOLDER / "checklist.md").read_text("utf-8")
    ):
        assert (FOLDER / target).exists(), target
