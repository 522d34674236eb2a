"""`compare` of models: those that are no runs yet are measured first, once, and stand in one figure."""

import json

import numpy as np
import pytest
import task_pages
from typed import invoke

import anisoscope
from anisoscope.errors import ModelError, OutputError, UsageError
from anisoscope.runs import run as running
from anisoscope.runs.models_as_runs import choose_settings, name_model

MODELS = "half-minilm new-encoder new-decoder"
TEXTS = "\n\n".join(
    f"The {word} is the {number}th of a few words."
    for number, word in enumerate("abcdefghijkl")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with three small models of 3, 8 and 4 layers, and a text of 12 documents."""
    place = tmp_path_factory.mktemp("models")
    task_pages.write_models(place)
    (place / "text.txt").write_text(TEXTS)
    return place


@pytest.fixture
def measured(folder, monkeypatch):
    """The list of models that are loaded to be measured by this test, in the folder of the models."""
    monkeypatch.chdir(folder)
    real, loaded = running.load_subject, []
    monkeypatch.setattr(
        running, "load_subject", lambda job: loaded.append(job.model) or real(job)
    )
    return loaded


def typed(line, code=0):
    """What a command line printed; whatever it raised is raised."""
    done = invoke(line)
    if done.exception is not None:
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def test_models_are_measured_once_and_drawn_in_one_figure(folder, measured):
    line = f"compare {MODELS} --corpus text.txt --documents blank-line -o page -q"
    first = typed(line)
    assert measured == MODELS.split()
    assert first.stdout.splitlines()[0].split()[:3] == [
        "layer",
        "half-minilm",
        "new-encoder",
    ]
    assert (
        "Layers are matched by relative depth (3 and 8 layers)"
        in first.stderr.replace("\n  ", " ")
    )
    again = typed(line)
    assert measured == MODELS.split(), "measured again"
    assert again.stdout == first.stdout
    described = json.loads((folder / "page/comparison.json").read_text())
    assert [run["name"] for run in described["runs"]] == MODELS.split()
    svg = (folder / "page/figures/values.svg").read_text()
    assert "relative depth" in svg and all(name in svg for name in MODELS.split())


def test_what_a_measurement_costs_is_told_once(measured):
    told = typed(f"compare {MODELS} --corpus text.txt --limit 7").stderr
    assert measured == MODELS.split()
    assert told.count("memory ") == 1, told


def test_an_encoder_and_a_decoder_of_one_tokenizer_read_the_same_tokens(measured):
    told = typed(
        "compare new-encoder new-decoder --corpus text.txt --limit 6 -q"
    ).stderr
    assert measured == MODELS.split()[1:]
    assert "Stacks of other kinds" in told and "other tokens" not in told, told


def test_a_run_of_all_panels_serves_and_a_run_folder_stands_beside_a_model(measured):
    anisoscope.measure(
        "new-decoder", corpus="text.txt", limit=9, panel="hidden", output="own-run"
    )
    whole = anisoscope.measure(
        "new-encoder", corpus="text.txt", limit=9, output="runs/new-encoder-as-measured"
    )
    measured.clear()
    found = typed(
        "compare own-run new-encoder --corpus text.txt --limit 9 --format json -q"
    )
    assert measured == []
    records = json.loads(found.stdout)["records"]
    own = whole.records.query(
        "metric == 'mean_cosine' and token_policy == 'all' and layer == 8 and site == 'hidden'"
    )
    assert records[-1]["second"] == pytest.approx(own["value"].item())
    assert records[-1]["paired"]


@pytest.mark.usefixtures("measured")
def test_python_takes_models_runs_and_vectors():
    np.save("x.npy", np.random.default_rng(0).normal(size=(60, 8)) + 1)
    run = anisoscope.measure(np.random.default_rng(1).normal(size=(60, 8)))
    found = anisoscope.compare(run, "x.npy")
    assert found.table()["run"].tolist() == ["x.npy"]
    assert found.fails("A > .2")
    models = anisoscope.compare(
        "half-minilm",
        "new-decoder",
        corpus="text.txt",
        limit=9,
        metric="attention.entropy",
    )
    assert models.table()["run"].unique().tolist() == ["new-decoder"]
    with pytest.raises(UsageError, match=r"limit"):
        anisoscope.compare("half-minilm", "new-decoder", corpus="text.txt", limitt=9)


def test_what_is_measured_is_what_is_compared():
    assert choose_settings(["A"]).panel == ("hidden",)
    assert choose_settings(["A", "attention.entropy"]).panel == ("hidden", "attention")
    assert choose_settings(["rankme"]).panel == ("spectrum",)
    assert choose_settings(["procrustes"]).panel == (
        "hidden",
    )  # whose pass samples tokens
    assert choose_settings(["twonn", "A"]).metrics == ("twonn", "mean_cosine")
    with pytest.raises(UsageError, match="mean_cosine"):
        choose_settings(["mean_cosin"])


def test_names_are_short():
    assert [
        name_model(name) for name in ("builtin:minilm", "a/b", "../x/", "gpt2", "m:f")
    ] == [
        "minilm",
        "b",
        "x",
        "gpt2",
        "m:f",
    ]


@pytest.mark.parametrize(
    ("line", "error", "told"),
    [
        (
            "compare half-minilm half-minlim --corpus text.txt",
            OutputError,
            "did you mean half-minilm",
        ),
        (
            "compare half-minilm ./none/there --corpus text.txt",
            ModelError,
            "is not there",
        ),
        (
            "compare half-minilm seed_{0..2} --corpus text.txt",
            UsageError,
            "single models",
        ),
        (
            "compare half-minilm new-decoder --corpus text.txt --metric mean_cosin",
            UsageError,
            "mean_cosine",
        ),
        ("compare half-minilm", UsageError, "at least two run folders or models"),
    ],
)
def test_what_cannot_be_compared_is_told_before_anything_is_measured(
    measured, line, error, told
):
    with pytest.raises(error, match=told):
        typed(f"{line} -q")
    assert measured == []


def test_a_run_that_is_not_there_is_no_model_of_the_hub(measured, folder):
    """The hub was asked for `runs/after`, and the cure was a network."""
    (folder / "kept/before").mkdir(parents=True)
    (folder / "kept/before/identity.json").write_text("{}")
    with pytest.raises(
        OutputError, match=r"kept/other, which is not there. Cure: kept has before"
    ):
        typed("compare half-minilm kept/other -q")
    assert measured == []


@pytest.mark.usefixtures("measured")
def test_options_of_measuring_are_refused_for_runs_alone(folder):
    anisoscope.measure(np.ones((9, 3)) + np.eye(9, 3), output="one")
    with pytest.raises(
        UsageError, match=r"--limit only with a model to measure.*runs only"
    ):
        typed("compare one one --limit 3 -q")
    with pytest.raises(OutputError, match="finished run"):
        (folder / "begun").mkdir(exist_ok=True)
        (folder / "begun/identity.json").write_text("{}")
        typed("compare one begun -q")


def test_a_condition_is_measured_for_too(tmp_path, monkeypatch):
    """It may be on a metric that the comparison alone would not measure."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        np.save(f"{name}.npy", np.random.default_rng(seed).normal(size=(120, 6)))
    for bound, code in (("+9", 0), ("-9", 8)):
        done = invoke(
            [
                "compare",
                "a.npy",
                "b.npy",
                "--fail-if",
                f"spectrum.participation_ratio.last > {bound}",
                "-q",
            ]
        )
        assert done.exit_code == code, done.output
