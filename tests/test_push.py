"""A run pushed to a hub: what arrives is the run, names no folder of this machine, and what fails is said."""

import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import yaml
from hub_pushes import PushHub
from program import NO_PAGE
from quick import quick
from typed import invoke

import anisoscope
from anisoscope.report.pushing import hide_folders


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of vectors in a folder whose path is a secret."""
    folder = tmp_path_factory.mktemp("secret-place")
    np.save(folder / "vectors.npy", np.random.default_rng(0).normal(size=(80, 6)) + 3)
    done = invoke(["measure", folder / "vectors.npy", "-o", folder / "run", "-q"])
    assert done.exit_code == 0, done.output
    return folder / "run"


def pushed(words, hub, home, token="hf_good", *, setup=NO_PAGE):
    """A process that pushes to a hub, by default without drawing the page: exit code, stdout, stderr."""
    environment = hub.environment(home, **({"HF_TOKEN": token} if token else {}))
    code = f"{setup}\nimport anisoscope.__main__\nanisoscope.__main__.main()"
    line = [*quick(), "-c", code, "push", *map(str, words)]
    return subprocess.run(
        line, capture_output=True, text=True, env=environment, check=False
    )


def test_what_arrives_is_the_run(run, tmp_path):
    with PushHub(tmp_path) as hub:
        done = pushed(
            [run, "jane/geometry", "--create", "--licence", "cc-by-4.0"],
            hub,
            tmp_path / "home",
            setup="",
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == f"{hub.address}/datasets/jane/geometry"
        assert hub.messages == ["Geometry of vectors.npy, measured with Anisoscope"]
    arrived = tmp_path / "datasets--jane--geometry"
    ours, theirs = anisoscope.Run(run), anisoscope.Run(arrived)
    numbers = [
        "metric",
        "site",
        "layer",
        "value",
        "low",
        "high",
        "n_vectors",
        "n_units",
    ]
    pd.testing.assert_frame_equal(
        theirs.records[numbers], ours.records[numbers], check_exact=True
    )
    assert [f.text for f in theirs.findings] == [f.text for f in ours.findings]
    np.testing.assert_array_equal(theirs.replicates, ours.replicates)
    assert anisoscope.compare(ours, theirs).table()["difference"].abs().max() == 0
    texts = [
        path
        for path in arrived.rglob("*")
        if path.suffix in (".md", ".json", ".html", ".svg")
    ]
    assert {path.name for path in texts} >= {
        "README.md",
        "manifest.json",
        "report.html",
        "badge.svg",
    }
    for path in texts:
        assert str(run.parent) not in path.read_text("utf-8"), path.name
    assert not theirs.records["model"].str.contains("secret").any()
    assert not list(arrived.glob("reservoir*"))
    card = (arrived / "README.md").read_text("utf-8")
    assert yaml.safe_load(card.split("---")[1])["license"] == "cc-by-4.0"
    assert (
        "`report.html` is the page of the run." in card
        and 'snapshot_download("jane/geometry"' in card
    )


def test_a_private_run_is_for_its_owner_alone(run, tmp_path):
    """What is public already is not pushed to: nobody would have noticed."""
    with PushHub(tmp_path) as hub:
        (tmp_path / "public").mkdir()
        hub.add("datasets/jane/public", {"0" * 40: tmp_path / "public"})
        done = pushed(
            [run, "jane/secret", "--create", "--private"], hub, tmp_path / "home"
        )
        assert done.returncode == 0, done.stderr
        assert hub.repositories["datasets/jane/secret"].private
        for more in ([], ["--create"]):
            refused = pushed(
                [run, "jane/public", "--private", *more], hub, tmp_path / "home"
            )
            assert refused.returncode == 6 and "a public one" in refused.stderr, (
                refused.stderr
            )
        assert len(hub.messages) == 1 and not list((tmp_path / "public").iterdir())


def test_the_card_is_read_by_a_hub(run, tmp_path):
    done = invoke(
        [
            "push",
            run,
            "jane/geometry",
            "--dry-run",
            "-o",
            tmp_path / "out",
            "--format",
            "json",
        ]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["records"] == [
        {"written": str(tmp_path / "out"), "files": done.stderr.count("bytes")}
    ]
    text = (tmp_path / "out" / "README.md").read_text("utf-8")
    metadata = yaml.safe_load(text.split("---")[1])
    assert metadata["configs"] == [
        {"config_name": "default", "data_files": "records.parquet"}
    ]
    assert "license" not in metadata and "anisoscope" in metadata["tags"]
    table = anisoscope.Run(run).table()
    assert f"| 0 | {table['A'][0]:.3f}".replace("0.", ".") in text
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    compile(code, "card", "exec")
    badge = ElementTree.fromstring((tmp_path / "out" / "badge.svg").read_text("utf-8"))
    assert "layer 0, anisotropic" in badge.attrib["aria-label"]


def test_a_section_for_the_card_of_a_model(run, tmp_path):
    done = invoke(
        [
            "card",
            run,
            "--repository",
            "jane/geometry",
            "--badge",
            tmp_path / "badge.svg",
        ]
    )
    assert (
        done.exit_code == 0
        and "datasets/jane/geometry/resolve/main/badge.svg" in done.stdout
    )
    assert "| 0 |" in done.stdout and (tmp_path / "badge.svg").is_file()
    assert "badge" not in invoke(["card", run]).stdout


@pytest.mark.parametrize(
    ("token", "words", "said", "cure"),
    [
        (None, ["--create"], "a token of the hub that may write", "hf auth login"),
        ("hf_good", [], "no such repository", "--create"),
        (
            "hf_bad",
            ["--create"],
            "a token that the hub refuses",
            "hf.co/settings/tokens",
        ),
    ],
)
def test_what_fails_is_said(run, tmp_path, token, words, said, cure):
    with PushHub(tmp_path) as hub:
        done = pushed([run, "jane/geometry", *words], hub, tmp_path / "home", token)
    assert done.returncode == 6 and not done.stdout
    assert (
        said in done.stderr and cure in done.stderr and "Traceback" not in done.stderr
    )


def test_a_token_that_may_only_read(run, tmp_path):
    with PushHub(tmp_path) as hub:
        hub.fault, hub.fault_at = 403, "repos/create"
        done = pushed([run, "jane/geometry", "--create"], hub, tmp_path / "home")
    assert done.returncode == 6 and "without the right to write" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{run}", "geometry"], 2, "OWNER/NAME"),
        (["{run}", "a/b/c"], 2, "OWNER/NAME"),
        (["{run}/nothing", "jane/geometry"], 6, "a run folder"),
        (
            ["{run}/..", "jane/geometry", "--dry-run", "-o", "{tmp}/new"],
            6,
            "no manifest.json",
        ),
        (["{run}", "jane/geometry", "--dry-run", "-o", "{tmp}"], 6, "to be empty"),
    ],
)
def test_what_cannot_be_pushed_is_refused(run, tmp_path, words, code, said):
    (tmp_path / "mine.txt").write_text("kept")
    done = invoke(["push", *(word.format(run=run, tmp=tmp_path) for word in words)])
    assert done.exit_code == code and said in str(done.exception)
    assert (tmp_path / "mine.txt").read_text() == "kept" and not (
        tmp_path / "new"
    ).exists()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "anisoscope measure /home/jane/models/bert -c ~/texts/a.txt",
            "anisoscope measure …/bert -c …/a.txt",
        ),
        ("/home/jane doe/bert base", "…/bert base"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("google-bert/bert-base", "google-bert/bert-base"),
        ("runs/demo", "runs/demo"),
        ({"a": ["read C:\\Users\\jane\\x.txt"]}, {"a": ["read …/x.txt"]}),
    ],
)
def test_folders_of_this_machine_are_hidden(text, left):
    assert hide_folders(text) == left


def test_a_series_is_pushed_with_its_checkpoints(tmp_path):
    import tiny

    tiny.series(tmp_path)
    small = [
        "--panel",
        "hidden",
        "--sample",
        "8",
        "-q",
        "-c",
        str(tmp_path / "text.jsonl"),
    ]
    done = invoke(
        [
            "measure",
            tmp_path / "checkpoints" / "seed-0",
            *small,
            "-o",
            tmp_path / "series",
        ]
    )
    assert done.exit_code == 0, done.output
    done = invoke(
        [
            "push",
            tmp_path / "series",
            "jane/series",
            "--dry-run",
            "-o",
            tmp_path / "out",
        ]
    )
    assert done.exit_code == 0, done.output
    assert len(anisoscope.Run(tmp_path / "out").records) == len(
        anisoscope.Run(tmp_path / "series").records
    )
    for path in Path(tmp_path / "out").rglob("*.json"):
        assert str(tmp_path) not in path.read_text("utf-8")
