"""`reproduce --settings paper` against a hub on this machine, a part of it: `make paper-rehearsal` runs the whole.

What cannot be had is left out and said, the rest goes on; a second start does nothing; local copies go before the hub.
"""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
from paper_hub import paper_hub
from program import Program

from anisoscope.data.corpora import CorpusOptions, resolve_corpus
from anisoscope.data.local import find_part_of_copy, use_copies
from anisoscope.errors import CorpusError, UsageError
from anisoscope_papers import runner
from anisoscope_papers.fosse2023 import trained_cells
from anisoscope_papers.needs import Need
from anisoscope_papers.study import Context

PAPER = ["reproduce", "godey2024", "--settings", "paper", "--output"]
IMAGES = "imagenet-1k"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(scope="module")
def hub(folder):
    with paper_hub(folder / "served", steps=()) as hub:
        hub.repositories.pop("openai/whisper-base")  # two systems cannot be had
        hub.repositories["facebook/hubert-base-ls960"].gated = True
        yield hub


@pytest.fixture(scope="module")
def program(hub, folder):
    environment = hub.environment(folder / "home")
    for name in [name for name in environment if name.startswith("ANISOSCOPE_DATA")]:
        environment.pop(name)
    with Program(environment) as program:
        yield program


def asked(hub):
    """(requests, bodies) since the last time."""
    found = (
        [line for line in hub.requests if "agent-harnesses" not in line],
        list(hub.fetched),
    )
    hub.requests.clear(), hub.fetched.clear()
    return found


def records(folder, study):
    return pd.read_parquet(folder / "godey2024" / "paper" / study / "records.parquet")


def test_what_cannot_be_had_is_left_out_and_a_second_start_does_nothing(
    hub, program, folder
):
    command = [*PAPER, folder / "out", "--only", "fig3a,fig3b", "-q"]
    first = program(command, terminal=True)
    assert first.code == 7 and max(map(len, first.lines)) <= 80, first.shown
    text = " ".join(" ".join(first.lines).split())
    for expected in (
        "whisper-base (in fig3a)",
        "a gated repository (401)",
        "librispeech stands in",
        "and 1 more",
    ):
        assert expected in text, text
    of_speech = records(folder / "out", "fig3a")
    assert set(of_speech["corpus"].dropna()) == {"librispeech"}
    assert set(of_speech[of_speech["metric"] == "withheld"]["model"]) == {
        "whisper-base",
        "hubert-base",
    }
    (row,) = of_speech[of_speech["metric"] == "stands in"].to_dict("records")
    assert (row["model"], row["corpus"]) == (
        "common-voice",
        "librispeech",
    ) and "Common Voice has left" in row["component"]
    verdicts = json.loads(
        (folder / "out" / "godey2024" / "paper" / "fig3b" / "verdicts.json").read_text()
    )
    assert {v["outcome"] for v in verdicts} == {
        "undecided"
    } and "ImageNet is gated" in verdicts[0]["reason"]
    page = (folder / "out" / "godey2024" / "paper" / "report.html").read_text()
    assert (
        "common-voice (librispeech stands in)" in page and "a gated repository" in page
    )
    asked(hub)
    kept = {
        path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.parquet")
    }
    assert program(command, terminal=True).code == 7
    requests, fetched = asked(hub)
    questions = [line for line in requests if "/api/" in line]
    assert not fetched and len(questions) == len(set(questions)), requests
    assert kept == {
        path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.parquet")
    }


def test_what_can_be_had_later_is_measured_then(hub, program, folder):
    """The gate opens, and ImageNet lies here: of the rest nothing is measured again."""
    program([*PAPER, folder / "out", "--only", "fig3a,fig3b", "-q"])
    images = folder / "photographs" / "val"
    images.mkdir(parents=True)
    rows = pd.concat(
        [
            pd.read_parquet(path)
            for path in (folder / "served").rglob("imagenet-1k/data/*.parquet")
        ]
    )
    for k, image in enumerate(rows["image"]):
        (images / f"{k}.JPEG").write_bytes(image["bytes"])
    hub.repositories["facebook/hubert-base-ls960"].gated = False
    asked(hub)
    told = program(
        [
            *PAPER,
            folder / "out",
            "--only",
            "fig3",
            "-q",
            "--data",
            f"{IMAGES}={images.parent}",
        ]
    )
    assert told.code == 7 and "mit-b0" in told.shown, told.shown
    assert set(records(folder / "out", "fig3b")["model"]) == {
        "vit-base",
        "beit-base",
        "deit-base",
        "mit-b0",
    }
    assert "hubert-base" in set(
        records(folder / "out", "fig3a").query("metric == 'mean_cosine'")["model"]
    )
    _, fetched = asked(hub)
    assert not any("imagenet" in line or "wav2vec2" in line for line in fetched), (
        fetched
    )
    hub.repositories["facebook/hubert-base-ls960"].gated = True


def test_classifiers_of_a_corpus_that_cannot_be_had_are_left_out(tmp_path, monkeypatch):
    asked_for = []

    def gone(name, _limit, _split):
        asked_for.append(name)
        raise CorpusError(f"to download {name}", "no network")

    monkeypatch.setattr(trained_cells, "open_corpus", gone)
    (study,) = runner.choose("fosse2023", "table1")
    context = Context(tmp_path, tmp_path / "cache")
    found = study.measure(study.settings["paper"], context)
    assert set(found["metric"]) == {"missing"}
    assert sorted(asked_for) == ["esnli", "hatexplain", "yelphat"], (
        "each corpus is tried once"
    )
    assert [row["model"] for row in context.lacking] == asked_for
    others = [
        verdict for verdict in study.judge(found) if verdict.outcome != "undecided"
    ]
    assert {
        (verdict.outcome, verdict.subject.partition(",")[0]) for verdict in others
    } == {("not comparable", "e-SNLI")}


# ---- local copies ----


def test_a_copy_goes_before_the_hub_and_its_split_is_found(tmp_path, monkeypatch):
    copy = tmp_path / "common-voice"
    (copy / "clips").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv", "validated.tsv", "test.tsv"):
        (copy / name).write_text("client_id\tpath\na\tone.mp3\n")
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    assert resolve_corpus("common-voice", "speech", CorpusOptions()) == copy / "dev.tsv"
    assert (
        resolve_corpus("common-voice", "speech", CorpusOptions(split="train"))
        == copy / "train.tsv"
    )
    with (
        use_copies({"common-voice": str(tmp_path / "elsewhere.tsv")}),
        pytest.raises(CorpusError, match="not there"),
    ):
        resolve_corpus("common-voice", "speech", CorpusOptions())
    assert (
        resolve_corpus("common-voice@main", "speech", CorpusOptions()).id
        == "mozilla-foundation/common_voice_11_0"
    )
    (copy / "dev.tsv").unlink()
    with pytest.raises(CorpusError, match="one file or folder of the validation split"):
        resolve_corpus("common-voice", "speech", CorpusOptions())


def test_a_copy_whose_split_is_not_one_file_is_refused(tmp_path):
    for config in ("wikitext-103-raw-v1", "wikitext-2-raw-v1"):
        (tmp_path / config).mkdir()
        (tmp_path / config / "validation-00000-of-00001.parquet").touch()
    found = find_part_of_copy(tmp_path, "text", "validation", "wikitext-103-raw-v1")
    assert found.parent.name == "wikitext-103-raw-v1"
    with pytest.raises(CorpusError, match="got 2"):
        find_part_of_copy(tmp_path, "text", "validation")
    with pytest.raises(
        CorpusError,
        match=r"of the test split in .*; got none, but validation-00000-of-00001.parquet",
    ):
        find_part_of_copy(tmp_path / "wikitext-2-raw-v1", "text", "test")
    plain = tmp_path / "photographs"
    plain.mkdir()
    (plain / "a.png").touch()
    assert find_part_of_copy(plain, "image", "validation") == plain


@pytest.mark.parametrize("given", ["common-voice", "=folder", "common-voice="])
def test_data_that_names_no_folder_is_refused(given):
    from anisoscope.data.local import parse_paths

    with pytest.raises(UsageError, match="NAME=FOLDER"):
        parse_paths([given])


# ---- the dry run ----


def test_the_dry_run_counts_everything_once(monkeypatch):
    monkeypatch.setattr(runner, "measure_speed", lambda: 0.1)
    told = runner.describe(runner.choose("godey2024"), "paper")
    names = [
        line.strip()
        for line in told
        if line.startswith("         ") and "/" in line and ";" not in line
    ]
    assert len(names) == len(set(names)) and "google-bert/bert-base-uncased" in names
    assert sum("multiberts" in name for name in names) == 1
    alone = runner.describe(runner.choose("godey2024", "fig1"), "paper")
    both = runner.describe(runner.choose("godey2024", "fig1,fig16"), "paper")
    assert alone[-2].startswith(
        "in all   2.3 GB to download; 2.3 GB of disk space; about "
    )
    assert "GB to download, and 2 of unknown size" in both[-2]
    quick = runner.describe(runner.choose("godey2024", "fig1"), "quick")
    assert quick == ["fig1     Anisotropy per layer of token-based Transformers"]


def test_a_dry_run_counts_what_studies_share_for_the_first_of_them(monkeypatch):
    """A model to load, and runs to compute: the second study was said to compute them once more."""
    monkeypatch.setattr(
        runner, "measure_speed", lambda: 1 / (3600 * runner.EFFICIENCY)
    )  # an operation of 1e12 is an hour
    model, both, own = (
        Need("org/model", 2.0, work={"a": 3.0}),
        Need(work={"b": 4.0}),
        Need(work={"c": 20.0}),
    )
    kept = Need("org/large", 9.0, kept=1.0)
    studies = [
        SimpleNamespace(name=name, title=name, needs=needs)
        for name, needs in (
            ("one", (model, both)),
            ("two", (model, both)),
            ("three", (both, own, kept, model)),
        )
    ]
    told = [line.strip() for line in runner._describe_costs(studies)]
    assert [line for line in told if "hour" in line or "compute" in line] == [
        "2.0 GB to download; about 7.0 hours",
        "what one loads; nothing more to compute",
        "what one loads; 9.0 GB to download; about 20 hours",
        "in all   11.0 GB to download; 3.0 GB of disk space; about 27 hours on this machine",
    ]


# ---- what the papers publish ----


def test_paper_settings_are_what_the_papers_say():
    """Godey 2024: 5 MultiBERTs of 29 checkpoints each. Fosse 2023: λ, depths, 999 utterances of a test split."""
    from anisoscope_papers.fosse2023.grid import PAPER as GRID
    from anisoscope_papers.godey2024 import biased_block, checkpoints

    steps = [0, 20, 40, 60, 80, 100, 120, 140, 160, 180, *range(200, 2001, 100)]
    assert checkpoints.SETTINGS["paper"].checkpoints == (
        f"google/multiberts-seed_{{0..4}}-step_{{{','.join(map(str, steps))}}}k"
    )
    assert (
        checkpoints.NEEDS[0].gigabytes == pytest.approx(145 * 0.44) and len(steps) == 29
    )
    norms = [
        0,
        0.1,
        0.1778,
        0.3162,
        0.5623,
        1,
        1.778,
        3.162,
        5.623,
        10,
        17.78,
        31.62,
        56.23,
        100,
        177.8,
        316.2,
    ]
    assert (
        list(biased_block.GRID) == list(biased_block.SETTINGS["paper"].norms) == norms
    )
    assert biased_block.COARSE == (0, 0.1, 0.3162, 1, 3.162, 10, 31.62, 100, 316.2)
    assert set(biased_block.SHOWN) == {0, 1, 10, 31.62, 100} <= set(norms)
    size = biased_block.SETTINGS["paper"].sizes[0]
    assert (size.tokens, size.width, size.heads, size.blocks) == (512, 768, 12, 1)
    assert GRID.weights == (0, 1e-4, 1e-3, 1e-2, 1e-1) and GRID.utterances == 999
    assert GRID.depths == {"yelphat": 5, "hatexplain": 5, "esnli": 2}
