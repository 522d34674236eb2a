"""Every door: for a package that is installed, for a script, and by name; what is wrong is told."""

import json
import os
import re
import subprocess
import warnings
from pathlib import Path

import guests
import numpy as np
import pytest
from quick import WARM, quick

import anisoscope
from anisoscope import metrics, registry
from anisoscope.data.corpora import NamedCorpus, named_corpora, open_corpus
from anisoscope.errors import UsageError
from anisoscope.metrics import Metric, Sample, Vectors
from anisoscope.models.families import Family, family_named
from anisoscope.models.named import NamedModel, hub_id
from anisoscope.registry import ExtensionWarning, list_added, list_entries_of, register
from anisoscope.testing import check_metric

HERE = Path(__file__).parent
TEMPLATE = HERE.parent / "examples" / "own_metric"
X = np.random.default_rng(0).standard_normal((60, 5)) + 0.5


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The guest of the tests and the template of a metric, as if they were installed."""
    target = tmp_path_factory.mktemp("site")
    guests.install(HERE / "plugin", target)
    return guests.install(TEMPLATE, target)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """What a test registers is not known to the next one."""
    monkeypatch.setattr(registry, "_registered", {group: {} for group in registry.LATE})


# ---- a package that is installed -------------------------------------------------------------------------------------


def test_what_a_guest_adds_is_found_by_entry_point(installed, monkeypatch):
    with guests.found(monkeypatch, installed):
        assert set(list_added("metrics")) == {"guest_radius", "mean_energy"}
        assert (
            "guest-letters" in named_corpora()
            and hub_id("guest-model") == "guest/model"
        )
        assert family_named("guest_net").blocks == (
            "Layer",
        ) and "greet" in list_entries_of("commands")
        assert len(open_corpus("guest-letters", limit=5).documents) == 5
        got = anisoscope.metric("guest_radius", X)["guest_radius"]
        assert got.value == pytest.approx(
            np.linalg.norm(X - X.mean(0), axis=1).max(), rel=1e-6
        )
        for name in ("guest_radius", "mean_energy"):
            check_metric(metrics.find_metric_by_name(name))
        assert "guest_radius" not in {
            metric.name
            for metric in metrics.choose_metrics(
                (), ("hidden", "spectrum", "attention")
            )
        }
    assert (
        "guest_radius" not in metrics.find_all()
        and "guest-letters" not in named_corpora()
    )


def program(line, installed, folder):
    """What the program prints in a folder, with the packages installed."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(installed), os.environ.get("PYTHONPATH", "")]
        )
    }
    words = [*quick(WARM), "-m", "anisoscope", *line.split()]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_guest_is_used_on_the_command_line(installed, tmp_path, monkeypatch):
    with guests.found(monkeypatch, installed):
        from guest.network import GuestConfig, GuestModel

        GuestModel(GuestConfig()).save_pretrained(tmp_path / "model")
    line = "measure ./model --corpus guest-letters --metric guest_radius,mean_energy,drift -o run -q"
    assert "guest_radius" in program(line, installed, tmp_path)
    records = anisoscope.Run(tmp_path / "run").records
    assert {"guest_radius", "mean_energy", "drift"} <= set(records["metric"])
    assert set(records["n_units"]) == {26} and set(records["layer"]) == {0, 1, 2}
    assert (
        records.dropna(subset="low")["low"]
        .le(records.dropna(subset="low")["value"])
        .all()
    )
    assert program("greet", installed, tmp_path) == "hello from a guest\n"
    listed = program("list metrics", installed, tmp_path)
    assert (
        re.search(r"guest_radius +The radius: the distance", listed)
        and "mean_energy" in listed
    )


def test_what_cannot_be_used_is_left_out_and_named(tmp_path, monkeypatch):
    """A package that is broken, of another kind, or takes a name of ours keeps the program from nothing."""
    (tmp_path / "bad.py").write_text(
        "from anisoscope.metrics import drift\nNOT = 3\nOURS = drift.METRIC\n1 / 0\n"
    )
    (tmp_path / "odd.py").write_text(
        "from anisoscope.metrics import Metric, Sample\nNOT = 3\ntaken = Metric('drift', Sample(), lambda s: {})\n"
    )
    points = (
        "broken = bad:OURS\nabsent = nowhere:X\nstrange = odd:NOT\ntaken = odd:taken\n"
    )
    metadata = tmp_path / "bad_guest-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bad-guest\nVersion: 1\n"
    )
    (metadata / "entry_points.txt").write_text(f"[anisoscope.metrics]\n{points}")
    with (
        guests.found(monkeypatch, tmp_path),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        known = metrics.find_all()
        metrics.find_all()  # told once
    told = sorted(
        str(each.message) for each in said if each.category is ExtensionWarning
    )
    assert known["drift"] is metrics.scan()["drift"] and not {
        "broken",
        "absent",
        "strange",
    } & set(known)
    assert len(told) == 4 and all(text.startswith("bad-guest adds ") for text in told)
    assert (
        "left out (ModuleNotFoundError: No module named 'nowhere'). Cure: pip install --upgrade bad-guest"
        in told[0]
    )
    assert (
        "'broken' to anisoscope.metrics, which cannot be loaded and is left out (ZeroDivisionError"
        in told[1]
    )
    assert "'drift' to anisoscope.metrics, which is there already" in told[2]
    assert (
        "'strange' to anisoscope.metrics, which is left out (expected Metric; got int)"
        in told[3]
    )


# ---- from a script or a notebook -------------------------------------------------------------------------------------


def lengths(totals):
    return {"": totals["norm"] / totals["n"]}


def own(name="length", compute=lengths):
    return Metric(name, Vectors(), compute, needs=frozenset({"n", "norm"}))


def test_a_metric_of_ones_own_as_it_is():
    mine = own()
    expected = np.linalg.norm(X, axis=1).mean()
    assert anisoscope.metric(mine, X)["length"].value == pytest.approx(expected)
    run = anisoscope.measure(X, metrics=(mine, "drift"))
    row = run.records.query("metric == 'length'").iloc[0]
    assert (
        row["value"] == pytest.approx(expected)
        and row["low"] < row["value"] < row["high"]
    )
    assert run.manifest["settings"]["settings"]["metrics"] == ["length", "drift"]
    assert run.table()["metric"].tolist() == ["drift", "drift.share", "length"]
    assert anisoscope.measure(X, metrics=mine).records["metric"].unique().tolist() == [
        "length"
    ]
    assert metrics.find_metric_by_name("length") is mine


def test_a_cell_that_is_run_again_replaces_what_it_registered():
    register(own())
    again = own(compute=lambda totals: {"": 2 * totals["norm"] / totals["n"]})
    assert register(again) is again and metrics.find_metric_by_name("length") is again
    assert anisoscope.metric("length", X)["length"].value == pytest.approx(
        2 * np.linalg.norm(X, axis=1).mean()
    )


def test_every_kind_of_thing_can_be_registered():
    register(NamedCorpus("text", "mine", hub="me/notes"), "notes")
    register({"short": NamedModel("me/model", "text"), "own_net": Family(causal=True)})
    assert named_corpora()["notes"].hub == "me/notes" and hub_id("short") == "me/model"
    assert family_named("own_net").causal


@pytest.mark.parametrize(
    ("thing", "name", "words"),
    [
        (own("drift"), None, "a name that is not taken among metrics; got 'drift'"),
        (own(), "other", "the metric's own name, length; got 'other'"),
        (
            NamedCorpus("text", "x"),
            None,
            "a name for one of corpora; got none",
        ),
        (
            NamedCorpus("text", "x"),
            "wikitext-103",
            "a name that is not taken among corpora",
        ),
        (3, "three", "one of Metric, NamedCorpus, .*; got int"),
        (Metric, None, "a class: make an instance of it"),
    ],
    ids=["taken", "other name", "no name", "taken corpus", "number", "class"],
)
def test_what_cannot_be_registered_says_why(thing, name, words):
    with pytest.raises(UsageError, match=words):
        register(thing, name)


def test_a_command_is_added_by_a_package_alone():
    from anisoscope.cli.command import Command

    with pytest.raises(
        UsageError,
        match=r'name it in your pyproject.toml: \[project.entry-points."anisoscope.commands"\]',
    ):
        register(Command("builtins:print", "Say hello.", "anisoscope greet"), "greet")


# ---- by name ---------------------------------------------------------------------------------------------------------


def test_a_metric_in_a_file_here_is_named_by_its_module(tmp_path):
    (tmp_path / "my_file.py").write_text(
        (TEMPLATE / "mean_energy.py").read_text("utf-8")
    )
    np.save(tmp_path / "v.npy", X)
    code = (
        "import sys; from anisoscope.__main__ import main; "
        "sys.argv[1:] = 'measure v.npy --metric my_file:METRIC -o run -q'.split(); main()"
    )
    done = subprocess.run(
        [*quick(WARM), "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert "mean_energy" in done.stdout, done.stderr
    run = anisoscope.Run(tmp_path / "run")
    mean = X.mean(0)
    assert run.records["value"].tolist() == pytest.approx(
        [mean @ mean / np.square(X).sum(1).mean()]
    )
    code = json.loads((tmp_path / "run" / "identity.json").read_text())["code"]
    assert (
        "my_file" in code
        and "anisoscope.metrics.base" in code
        and "anisoscope.metrics.drift" not in code
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("drft", "the name of a metric; got 'drft'. Cure: did you mean drift"),
        (
            "nowhere_at_all:METRIC",
            "a metric as module:NAME; got 'nowhere_at_all:METRIC' .ModuleNotFoundError",
        ),
        (
            "guests:instal",
            "guests.*has no attribute 'instal'. Cure: did you mean install",
        ),
        ("guests:install", "a Metric in guests:install; got function"),
    ],
)
def test_a_name_that_is_none_says_what_is_near(name, words):
    with pytest.raises(UsageError, match=words):
        anisoscope.measure(X, metrics=(name,))


def test_what_is_no_metric_is_refused():
    for given in (3, [3]):
        with pytest.raises(UsageError):
            anisoscope.measure(X, metrics=given)


def test_a_sample_without_its_only_group_has_no_value():
    spread = Metric(
        "spread", Sample(), lambda sample: {"": sample.replicates(lambda x: x.std())}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(
            anisoscope.metric(spread, X, unit=np.zeros(60, dtype=int))["spread"].low
        )
