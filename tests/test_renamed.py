"""Names of older versions are still understood: in run folders, states, configuration files, commands and Python.

`tests/older_run` is a run of `anisoscope classes` on the corpus `planted`, written before the names changed.
"""

import ast
import json
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from test_capture import Rectified
from torch import nn
from trees import tree_of
from typed import invoke

import anisoscope
from anisoscope import renamed
from anisoscope.axes import OfVectors, Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture import capture
from anisoscope.cli.config import read_options_of_run
from anisoscope.data.check_names import check_corpus, check_labelled
from anisoscope.data.corpora import named_corpora, open_corpus
from anisoscope.data.opening import open_labelled
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.runs import classes
from anisoscope.runs.differences import find_metric, open_kept_run
from anisoscope.runs.job import PARTS, ClassesOptions, Job
from anisoscope.store import RunFolder, as_records, read_table, write_table

OLDER = Path(__file__).with_name("older_run")
PACKAGE = Path(anisoscope.__file__).parent


@pytest.fixture(scope="module")
def run():
    return anisoscope.Run(OLDER)


def test_records_of_an_older_run_have_todays_names_and_their_values(run):
    raw = pd.read_parquet(OLDER / "records.parquet")
    assert set(renamed.METRICS) < set(raw["metric"]) and set(
        raw["corpus"].dropna()
    ) == {"planted"}
    assert run.records["metric"].tolist() == [
        renamed.METRICS.get(name, name) for name in raw["metric"]
    ]
    assert set(run.records["corpus"].dropna()) == {"synthetic"}
    assert (run.records.dtypes == raw.dtypes).all()
    same = [name for name in raw if name not in ("metric", "corpus")]
    pd.testing.assert_frame_equal(run.records[same], raw[same])


def test_what_an_older_run_says_of_itself_has_todays_names(run):
    assert (
        run.manifest["corpus"]["name"]
        == run.manifest["settings"]["corpus"]
        == "synthetic"
    )
    raw = json.loads((OLDER / "manifest.json").read_text())
    assert raw["corpus"]["name"] == "planted"
    assert run.manifest["corpus"] == raw["corpus"] | {"name": "synthetic"}
    asked = RunFolder(OLDER).identity()["classes"]
    assert (asked["corpus"], asked["parts"]) == (
        "synthetic",
        ["directions", "ablation", "attribution"],
    )


def test_an_older_run_is_judged_drawn_and_compared_as_a_new_one(run):
    rules = {finding.rule for finding in run.findings}
    assert {
        "class_directions",
        "attention_used",
        "words_that_decide",
        "above_majority",
    } <= rules
    assert {
        "ablation-accuracy",
        "attribution-auprc",
        "attribution-comprehensiveness",
    } <= set(run.figures)
    for older, today in renamed.FIGURES.items():
        assert run.plot(older).to_dict() == run.plot(today).to_dict()
    kept = open_kept_run(OLDER)
    for older, today in renamed.METRICS.items():
        assert find_metric(kept, older) == find_metric(kept, today) == today


def test_an_older_run_can_be_measured_again_by_its_options():
    options = read_options_of_run(OLDER)
    again = ClassesOptions(**options)
    assert (again.corpus, again.parts) == ("synthetic", PARTS)


def test_older_names_of_corpora_open_todays():
    for older, today in (
        ("planted", "synthetic"),
        ("planted:3", "synthetic:3"),
        ("planted-pairs", "synthetic-pairs"),
    ):
        check_labelled(older)
        opened = open_labelled(older, limit=30)
        assert (
            opened.name == today
            and opened.fingerprint == open_labelled(today, limit=30).fingerprint
        )
        assert (
            open_corpus(older, modality="labelled", limit=30).fingerprint
            == opened.fingerprint
        )
        for options in (
            ClassesOptions("m", corpus=older),
            Job(model="m", corpus=older),
        ):
            assert options.corpus == today
    assert "planted" not in named_corpora()


def test_a_folder_with_an_older_name_of_a_corpus_is_read(tmp_path, monkeypatch):
    """Whoever calls a folder of texts so would get made-up sentences, or be told that there is no such corpus."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "own.txt").write_text("a text of my own\n")
    (tmp_path / "planted-pairs").write_text("a text of my own\n")
    for name in ("planted", "planted-pairs"):
        assert Job(model="m", corpus=name).corpus == f"./{name}"
        check_corpus(name)
    assert [text.strip() for text in open_corpus("planted").documents] == [
        "a text of my own"
    ]
    assert Job(model="m", corpus="planted:3").corpus == "synthetic:3"


def test_older_names_are_understood_on_the_command_line_and_in_a_file(
    tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(
        "anisoscope.provenance._CONFIG", {}
    )  # what is noted of the file ends with this test
    monkeypatch.setattr(
        "anisoscope.api.classifiers.measure_classes",
        lambda options, *_: asked.append(options) or 1,
    )
    monkeypatch.setattr("anisoscope.cli.measure_commands._show_run", lambda *_: None)
    (tmp_path / "older.toml").write_text(
        'corpus = "planted:3"\nparts = "replaced,explained"\n'
    )
    for line in (
        "-c planted:3 --parts replaced,explained",
        f"--config {tmp_path / 'older.toml'}",
    ):
        assert invoke(f"classes builtin:minilm {line}").exit_code == 0
    assert len(asked) == 2 and asked[0] == asked[1]
    assert (asked[0].corpus, asked[0].parts) == (
        "synthetic:3",
        ("ablation", "attribution"),
    )
    assert ClassesOptions("m", parts=("explained", "directions")).parts == (
        "attribution",
        "directions",
    )


def test_a_model_that_an_older_version_trained_is_known_by_its_corpus(tmp_path):
    recipe = {"corpus": "planted:3", "split_seed": 4, "columns": None}
    (tmp_path / "training.json").write_text(
        json.dumps({"recipe": recipe, "max_length": 16})
    )
    filled = classes.fill_from_training(ClassesOptions(str(tmp_path)))
    assert (filled.corpus, filled.split_seed) == (
        "synthetic:3",
        4,
    ) and classes._is_trained_on(filled)
    assert (
        classes.fill_from_training(ClassesOptions(str(tmp_path), corpus="planted:3"))
        == filled
    )


def rectified():
    torch.manual_seed(0)
    return nn.Sequential(Rectified(False), Rectified(False)).eval(), torch.randn(
        9, 5, 6
    )


def test_a_capture_takes_the_older_name_of_a_site():
    model, x = rectified()
    with (
        torch.no_grad(),
        capture(model, ("unrectified",), blocks=("Rectified",)) as tap,
    ):
        model(x)
    assert list(tap.sites) == ["encoder.1.pre_relu", "encoder.2.pre_relu"]


def measured():
    """A measurement of one batch at a site before a ReLU and at one after it."""
    made = Measurement(
        Settings(panel=("hidden", "spectrum", "extremes"), groups=3), "plan"
    )
    torch.manual_seed(0)
    real = torch.ones(9, 5, dtype=torch.bool)
    stream = Stream(real, torch.zeros_like(real), torch.arange(9) * 5)
    made.begin(Batch({}, torch.arange(9), {"encoder": stream}), torch.device("cpu"))
    for quantity in ("hidden", "pre_relu"):
        made.receive(Site("encoder", 1, quantity), torch.randn(9, 5, 6))
    made.end(0)
    return made


def test_sums_of_an_older_version_give_the_same_records(tmp_path):
    """Names of sites are in the metadata of the file, and in the names of its tensors."""
    whole = measured()
    whole.save(tmp_path / "sums.safetensors")
    with safe_open(tmp_path / "sums.safetensors", framework="pt") as file:
        metadata = {
            name: text.replace("pre_relu", "unrectified")
            for name, text in file.metadata().items()
        }
        names = list(file.keys())
        tensors = {
            name.replace("pre_relu", "unrectified"): file.get_tensor(name)
            for name in names
        }
    assert {name.partition(" ")[0] for name in tensors if "unrectified" in name} >= {
        "sums",
        "sample",
        "extremes",
    }
    save_file(tensors, tmp_path / "older.safetensors", metadata=metadata)
    older = Measurement.restore(tmp_path / "older.safetensors", whole.settings)
    assert list(older.sites) == ["encoder.1.hidden", "encoder.1.pre_relu"]
    assert (
        older.sites == whole.sites
        and older.reservoirs.keys() == whole.reservoirs.keys()
    )
    pd.testing.assert_frame_equal(older.records(), whole.records())


def test_no_new_name_is_an_older_one_and_all_are_there(run):
    tables = (
        renamed.METRICS,
        renamed.SITES,
        renamed.CORPORA,
        renamed.PARTS,
        renamed.FIGURES,
        renamed.SETTINGS,
    )
    for names in tables:
        assert not set(names) & set(names.values())
    assert set(renamed.METRICS.values()) <= set(run.records["metric"])
    assert set(renamed.CORPORA.values()) <= set(named_corpora())
    assert set(renamed.PARTS.values()) <= set(PARTS)
    assert set(renamed.SETTINGS.values()) <= asdict(Settings()).keys()
    assert set(renamed.SITES.values()) <= set(OfVectors.__args__)


def older_names(path):
    """Strings of a module that are older names, or begin as older metrics do."""
    known = {
        *renamed.METRICS,
        *renamed.SITES,
        *renamed.CORPORA,
        *renamed.FIGURES,
        "replaced.",
        "explains.",
    }
    for node in ast.walk(tree_of(path)):
        text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and (
            text in known or text.partition(":")[0] in renamed.CORPORA
        ):
            yield f"{path.name}:{node.lineno} {text}"


def test_older_names_are_in_one_module_only(tmp_path):
    found = [
        name
        for path in PACKAGE.rglob("*.py")
        if path.name != "renamed.py"
        for name in older_names(path)
    ]
    assert not found
    (tmp_path / "a.py").write_text(
        'NAMES = f"replaced.{name}", "planted:3", "unrectified", "synthetic"'
    )
    assert len(list(older_names(tmp_path / "a.py"))) == 3


def test_tables_without_older_names_are_read_as_they_are(tmp_path):
    frame = as_records(
        pd.DataFrame(
            [{"metric": "drift", "site": "hidden", "corpus": "x", "value": 0.1}]
        )
    )
    write_table(tmp_path / "a.parquet", frame)
    pd.testing.assert_frame_equal(read_table(tmp_path / "a.parquet"), frame)
    rows = [
        {"metric": "drift", "site": "unrectified", "corpus": "planted-pairs"},
        {"metric": "x"},
    ]
    older = as_records(pd.DataFrame(rows))
    write_table(tmp_path / "b.parquet", older)
    found = read_table(tmp_path / "b.parquet")
    assert found["site"].tolist() == ["pre_relu", pd.NA] and found[
        "corpus"
    ].tolist() == ["synthetic-pairs", pd.NA]
    assert (found.dtypes == older.dtypes).all()
