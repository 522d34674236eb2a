"""Series of checkpoints: patterns, folders and lists; measured one at a time, bad ones told, finished ones kept."""

import html
import json
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from transformers import ViTConfig, ViTModel

from anisoscope.api.run import Run
from anisoscope.data.check_names import check_model
from anisoscope.data.local import find_path
from anisoscope.errors import AnisoscopeError, ModelError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.models.load import load
from anisoscope.models.series import describe, expand, expand_pattern, is_series
from anisoscope.report import build_page
from anisoscope.runs import run as run_module, series as series_runner
from anisoscope.runs.findings import findings
from anisoscope.runs.job import Job
from anisoscope.runs.run import load_subject, run
from anisoscope.runs.run_cache import make_key
from anisoscope.runs.series import measure_series
from anisoscope.store import read_run
from anisoscope.wording import format_number

# ---- names -----------------------------------------------------------------------------------------------------------


def texts(pattern):
    return list(expand_pattern(pattern)[0])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("m-{0..2}", ["m-0", "m-1", "m-2"]),
        ("m-{0..40..20}k", ["m-0k", "m-20k", "m-40k"]),
        ("m@step{0,1,512}", ["m@step0", "m@step1", "m@step512"]),
        ("m-{0,20,…,100}", [f"m-{n}" for n in (0, 20, 40, 60, 80, 100)]),
        ("m-{0,20,...,60}", ["m-0", "m-20", "m-40", "m-60"]),
        ("m-{1,2,4,…,32}", [f"m-{n}" for n in (1, 2, 4, 8, 16, 32)]),
        (
            "m-{1,20,40,60,…,120}",
            [f"m-{n}" for n in (1, 20, 40, 60, 80, 100, 120)],
        ),  # the last three tell how
        ("s{0..1}-{a,b}", ["s0-a", "s0-b", "s1-a", "s1-b"]),
    ],
)
def test_patterns(pattern, expected):
    assert texts(pattern) == expected


def test_the_paper_s_pattern_names_its_checkpoints():
    found = texts("google/multiberts-seed_{0..4}-step_{0,20,…,2000}k")
    assert len(found) == 5 * 101
    assert found[0] == "google/multiberts-seed_0-step_0k"
    assert found[-1] == "google/multiberts-seed_4-step_2000k"


def test_a_name_is_supposed_if_any_part_of_it_is():
    """A seed that is written out does not make a step exist that an ellipsis stands for."""
    names, _ = expand_pattern("m-seed_{0..1}@step_{0,20,…,80}k")
    assert {name for name, supposed in names.items() if supposed} == {
        f"m-seed_{seed}@step_{step}k" for seed in (0, 1) for step in (40, 60)
    }
    assert len(names) == 10
    both, _ = expand_pattern("m-{0,1,…,3}-{0,1,…,3}")
    assert [name for name, supposed in both.items() if not supposed] == [
        f"m-{a}-{b}" for a in "013" for b in "013"
    ]


def test_only_names_of_an_ellipsis_need_not_exist():
    names, gaps = expand_pattern("m@step{0,1,2,4,…,143000}")
    assert [name for name, supposed in names.items() if not supposed] == [
        f"m@step{n}" for n in (0, 1, 2, 4, 143000)
    ]
    assert list(names)[4] == "m@step8"
    assert names["m@step8"]
    assert [(low, high) for _read, low, high in gaps] == [(4, 143000)]


@pytest.mark.parametrize(
    "pattern",
    [
        "m-{0..",
        "m-{}",
        "m-{5..0}",
        "m-{0,…,9}",
        "m-{4,2,…,9}",
        "m-{a,b,…,9}",
        "m-{0..400}-{0..400}",
    ],
)
def test_patterns_that_cannot_be_read(pattern):
    with pytest.raises(UsageError):
        expand_pattern(pattern)


@pytest.fixture
def folders(tmp_path):
    for seed in (1, 0):
        for step in (100, 20, 3):
            place = tmp_path / "runs" / f"seed-{seed}" / f"checkpoint-{step}"
            place.mkdir(parents=True)
            (place / "config.json").write_text("{}")
    return tmp_path / "runs"


def places(spec):
    return [(c.seed, c.step) for c in expand(str(spec))]


def test_folders_and_lists_are_read_in_order(folders, tmp_path):
    every = [(seed, step) for seed in (0, 1) for step in (3, 20, 100)]
    assert places(folders) == every
    assert places(folders / "seed-1") == every[3:]
    assert places(f"{folders}/seed-*/checkpoint-*") == every
    assert places(f"{folders}/seed-{{0,1}}/checkpoint-{{3,20}}") == [
        (0, 3),
        (0, 20),
        (1, 3),
        (1, 20),
    ]
    listed = tmp_path / "steps.txt"
    listed.write_text(
        "# a remark\nhere/one 20 4\nhere/seed-7/other 5\n\nhere/seed-3/step_2k\n"
    )
    assert [(c.subject, c.step, c.seed) for c in expand(str(listed))] == [
        ("here/seed-3/step_2k", 2000, 3),
        ("here/one", 20, 4),
        ("here/seed-7/other", 5, 7),
    ]
    assert describe(expand(str(folders))) == "seeds 0, 1: 3 steps 3, 20, 100"
    assert all(
        map(is_series, map(str, (folders, listed, folders / "seed-0", "m@step{0,1}")))
    )
    assert not is_series(str(folders / "seed-0" / "checkpoint-3"))
    assert not is_series("bert-base-uncased")


@pytest.mark.parametrize(
    ("name", "step", "seed"),
    [
        ("google/multiberts-seed_12-step_20k", 20_000, 12),
        ("org/model-seed3@step512", 512, 3),
        ("org/model-seed=4@step1M", 1_000_000, 4),
        ("seed-1/again-seed-2/checkpoint-7", 7, 2),  # the innermost folder says it
        ("step-5-warm/step-30", 30, 0),
        ("warm-step-9/seed-17/ckpt_8", 8, 17),
        ("org/step-3-model@step40", 40, 0),  # the revision says it
    ],
)
def test_step_and_seed_are_read_from_a_name(name, step, seed, tmp_path):
    """The last of each; of a seed all digits."""
    listed = tmp_path / "steps.txt"
    listed.write_text(f"{name}\n")
    assert [(c.subject, c.step, c.seed) for c in expand(str(listed))] == [
        (name, step, seed)
    ]


def test_the_path_to_a_folder_of_checkpoints_says_no_seed(tmp_path):
    place = tmp_path / "seed-99" / "mine" / "step-4"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    assert places(tmp_path / "seed-99" / "mine") == [(0, 4)]
    assert places(tmp_path / "seed-99") == [(99, 4)]


def test_a_series_in_the_home_folder_is_found(folders, monkeypatch):
    monkeypatch.setenv("HOME", str(folders.parent))
    assert is_series("~/runs/seed-0") and is_series("~/runs/*/checkpoint-3")
    assert places("~/runs/seed-0") == [(0, 3), (0, 20), (0, 100)]
    assert places("~/runs/*/checkpoint-3") == [(0, 3), (1, 3)]


def test_stars_are_those_of_a_shell(folders):
    """`**` within a name ended in a traceback."""
    expected = [(0, step) for step in (3, 20, 100)]
    assert places(f"{folders}/seed-0/*") == expected
    for name in ("**-0", "se**-0", "se***-0", "****-0", "seed-0***"):
        assert places(f"{folders}/{name}/check*") == expected, name
    assert places(f"{folders}/***/checkpoint-3") == places(f"{folders}/*/checkpoint-3")


def test_series_that_cannot_be_read(folders, tmp_path):
    bad = tmp_path / "bad.txt"
    for text, message in {
        "m one": "line 1",
        "m-step-1\nn-step-1": "every step only once",
        "model-a": "a step that",
    }.items():
        bad.write_text(text)
        with pytest.raises(UsageError, match=message):
            expand(str(bad))
    bad.write_bytes(b"\x00\x01" * 9)  # the error held the whole file
    with pytest.raises(ModelError, match=r"got .*bad.txt, which is none of these"):
        expand(str(bad))
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="a list of checkpoints"):
        expand(str(bad))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="matches nothing"):
        expand(str(tmp_path / "empty"))
    shutil.copytree(folders / "seed-0", folders / "again-0")
    with pytest.raises(UsageError, match="every step only once per seed"):
        expand(str(folders))


# ---- measured --------------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(small_series, tmp_path):
    """Seed 0 of the small series, for a test to damage; a job on it."""
    place = tmp_path / "seed-0"
    shutil.copytree(small_series / "checkpoints" / "seed-0", place)
    return place, Job(
        corpus=str(small_series / "text.jsonl"),
        settings=Settings(panel=("hidden",), sample=0),
    )


def measured(place, job, output, **given):
    return measure_series(expand(str(place)), job, output, **given)


def test_a_step_is_what_measuring_it_alone_gives(copied, tmp_path):
    place, job = copied
    series = measured(place, job, tmp_path / "series")
    assert [c.step for c in series.runs] == [0, 1, 10]
    alone = run(
        Job(str(place / "step-10"), corpus=job.corpus, settings=job.settings),
        tmp_path / "alone",
    ).records
    whole = pd.read_parquet(tmp_path / "series" / "records.parquet")
    step = whole[whole["step"] == 10].reset_index(drop=True)
    for column in ("value", "low", "high"):
        pd.testing.assert_series_equal(step[column], alone[column], rtol=0, atol=1e-9)


def test_finished_checkpoints_are_not_loaded_again(copied, tmp_path, monkeypatch):
    place, job = copied
    first = measured(place, job, tmp_path / "series")
    folders = {c.step: done.folder for c, done in first.runs.items()}
    shutil.rmtree(folders[1])
    left = folders[0] / ".shape.json.999999999"
    (folders[0] / "shape.json").replace(
        left
    )  # a process was killed between a run and its shape
    loaded = []
    load = series_runner.load_subject
    monkeypatch.setattr(
        series_runner, "load_subject", lambda job: loaded.append(job.model) or load(job)
    )
    again = measured(place, job, tmp_path / "series")
    assert loaded == [str(place / "step-1")]
    assert (folders[0] / "shape.json").exists() and not left.exists()
    pd.testing.assert_frame_equal(
        first.records.drop(columns="run"), again.records.drop(columns="run")
    )


def test_a_changed_tokenizer_is_measured_anew(copied, tmp_path):
    """Weights and configuration alone told one state of a checkpoint from another."""
    place, job = copied
    first = measured(place, job, tmp_path / "series")
    assert {
        done.folder for done in measured(place, job, tmp_path / "series").runs.values()
    } == {done.folder for done in first.runs.values()}
    for words in place.glob("*/tokenizer.json"):
        words.write_text(words.read_text().replace('"w59"', '"other"'))
    again = measured(place, job, tmp_path / "series")
    folders = [
        {done.folder for done in series.runs.values()} for series in (first, again)
    ]
    assert not folders[0] & folders[1]
    plans = [
        {done.identity()["plan"] for done in series.runs.values()}
        for series in (first, again)
    ]
    assert plans[0] != plans[1]


def test_a_checkpoint_that_another_process_measures_comes_last(
    copied, tmp_path, monkeypatch, held
):
    place, job = copied
    first = measured(place, job, tmp_path / "series")
    folders = {c.step: done.folder for c, done in first.runs.items()}
    for folder in folders.values():
        shutil.rmtree(folder)
    loaded, load = [], series_runner.load_subject
    monkeypatch.setattr(
        series_runner,
        "load_subject",
        lambda job: loaded.append(job.model[-6:]) or load(job),
    )
    with held(folders[0], seconds=3):
        measured(place, job, tmp_path / "series")
    assert loaded == ["step-1", "tep-10", "step-0"]


def test_downloads_are_few_at_a_time_in_whatever_order_they_are_asked_for(monkeypatch):
    """What was fetched ahead, left to another process and removed meanwhile was taken to be there."""
    here, log, lents = set(), [], set()
    monkeypatch.setattr(series_runner, "is_on_disk", here.__contains__)
    monkeypatch.setattr(
        series_runner,
        "fetch",
        lambda name, lent: (here.add(name), log.append(name), lents.add(lent)),
    )
    monkeypatch.setattr(series_runner, "delete_checkpoint", here.discard)
    monkeypatch.setattr(series_runner, "is_left_over", {"done"}.__contains__)
    here.update(("done", "mine"))
    shelf = series_runner._CheckpointStore(
        [f"m{i}" for i in range(5)], keep=2, done=["done", "mine"]
    )
    assert here == {
        "mine"
    }  # what a series that was cut off had fetched goes, and nothing else
    here.clear()
    for i, following in ((0, 1), (2, 3), (4, 5), (1, None), (3, None)):
        shelf.get(i, following)
        assert f"m{i}" in here
    shelf.close()
    assert (
        len(here) == 2 and log == ["m0", "m1", "m2", "m3", "m4", "m1", "m3"][: len(log)]
    )
    assert lents == {True}


def test_the_store_of_downloads_knows_which_checkpoints_are_finished(
    copied, tmp_path, monkeypatch
):
    """What a series that was cut off had fetched of them is not needed any more."""
    place, job = copied
    first = measured(place, job, tmp_path / "series")
    stores = []

    class Store(series_runner._CheckpointStore):
        def __init__(self, *given):
            stores.append([*given[:2], {name[-7:] for name in given[2]}])
            super().__init__(*given)

    monkeypatch.setattr(series_runner, "_CheckpointStore", Store)
    measured(place, job, tmp_path / "series")
    assert stores == [[[], 2, set()]]
    shutil.rmtree(next(done.folder for c, done in first.runs.items() if c.step == 1))
    measured(place, job, tmp_path / "series", keep=3)
    assert stores[1] == [[str(place / "step-1")], 3, {"/step-0", "step-10"}]


def test_equal_weights_are_told(copied, tmp_path):
    place, job = copied
    shutil.copy(
        place / "step-1" / "model.safetensors", place / "step-10" / "model.safetensors"
    )
    series = measured(place, job, tmp_path / "series")
    assert series.repeated == [[str(place / "step-1"), str(place / "step-10")]]
    told = json.loads((tmp_path / "series" / "series.json").read_text())
    assert told["repeated"] == series.repeated


def test_overwriting_a_series_takes_away_only_what_is_its_own(
    copied, tmp_path, monkeypatch
):
    """The folder of every checkpoint was removed whole, with what somebody had put beside its run."""
    place, job = copied
    output = tmp_path / "series"
    first = measured(place, job, output)
    folders = [done.folder for done in first.runs.values()]
    for folder in (output, *folders):
        (folder / "notes.md").write_text("mine")
        (folder / "model.safetensors").write_bytes(b"mine")
    loaded = []
    monkeypatch.setattr(
        series_runner,
        "load_subject",
        lambda job: loaded.append(job.step) or load_subject(job),
    )
    measured(place, job, output)
    assert not loaded
    again = measured(place, job, output, overwrite=True)
    assert (
        loaded == [0, 1, 10]
        and [done.folder for done in again.runs.values()] == folders
    )
    assert again.records.equals(first.records)
    for folder in (output, *folders):
        assert (folder / "notes.md").read_text() == "mine" and (
            folder / "model.safetensors"
        ).read_bytes() == b"mine"


def test_a_checkpoint_that_fails_to_load_is_told_and_skipped_only_when_asked(
    copied, tmp_path
):
    place, job = copied
    weights = place / "step-1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(ModelError, match="step-1"):
        measured(place, job, tmp_path / "series")
    series = measured(place, job, tmp_path / "series", skip_bad=True)
    assert [c.step for c in series.runs] == [0, 10]
    assert list(series.skipped) == [str(place / "step-1")]


def test_mixed_architectures_and_vocabularies_are_refused_before_anything_is_measured(
    copied, tmp_path
):
    place, job = copied
    config = place / "step-10" / "config.json"
    kept = config.read_text()
    config.write_text(json.dumps(json.loads(kept) | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match="num_hidden_layers 3"):
        measured(place, job, tmp_path / "series")
    config.write_text(kept)
    words = place / "step-10" / "tokenizer.json"
    words.write_text(words.read_text().replace("w59", "other"))
    with pytest.raises(ModelError, match="vocabulary"):
        measured(place, job, tmp_path / "series")
    assert not list((tmp_path / "series").glob("*/manifest.json"))


def test_keeping_none_is_refused(copied, tmp_path):
    place, job = copied
    with pytest.raises(AnisoscopeError, match="--keep"):
        measured(place, job, tmp_path / "series", keep=0)


def test_the_page_of_a_series_says_what_its_records_say(small_series, tmp_path):
    """A series had records and no page; each checkpoint could be drawn alone only."""
    job = Job(
        "tiny",
        corpus=str(small_series / "text.jsonl"),
        settings=Settings(panel=("hidden", "attention"), sample=0),
    )
    series = measure_series(
        expand(str(small_series / "checkpoints")), job, tmp_path / "series"
    )
    page = build_page(series.folder).read_text("utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    records = series.records
    rows = records[
        records["metric"].eq("mean_cosine")
        & records["site"].eq("hidden")
        & records["component"].isna()
    ]
    rows = rows[rows["token_policy"].eq("all")]
    table = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", page, re.DOTALL)
    assert [name for name, _ in table] == [
        f"step {step}, seed {seed}" for seed in (0, 1) for step in (0, 1, 10)
    ]
    for name, cells in table:
        step, seed = map(int, re.findall(r"\d+", name))
        own = rows[rows["step"].eq(step) & rows["seed"].eq(seed)].sort_values("layer")
        assert [format_number(x) for x in own["value"]] == re.findall(
            r"<td>([^<]*)<small>", cells
        )
    for finding in findings(records):
        assert finding.text in " ".join(text.split())
    figures = {
        path.stem: path.read_text("utf-8")
        for path in (series.folder / "figures").glob("*.svg")
    }
    assert figures.keys() == {
        "anisotropy",
        "drift",
        "norms",
        "top-share",
        "entropy",
        "alignment",
    }
    marks = re.findall(r"<title>(.*?)</title>", figures["anisotropy"])
    assert len(marks) == len(rows), "a tooltip for every checkpoint and layer"
    assert "seed 0" in figures["anisotropy"] and "seed 1" in figures["anisotropy"]
    assert "checkpoints 6" in " ".join(text.split())
    assert Run(series.folder).manifest["model"] == "tiny"


def test_a_name_that_no_file_can_have_is_refused_and_a_pattern_may_be_that_long():
    """Both ended in a traceback of the operating system."""
    pattern = "m-step{" + ",".join(str(i) for i in range(100)) + "}"
    for name, letters in (
        ("a" * 300, r"300 letters.*255"),
        ("a/" * 3000, r"6000 letters.*4095"),
    ):
        with pytest.raises(ModelError, match=letters):
            check_model(name)
        with pytest.raises(ModelError, match=letters):
            load(name)
        assert find_path(name) is None and not is_series(name)
    assert len(pattern) > 255 and is_series(pattern) and len(expand(pattern)) == 100


# ---- what is known before anything is loaded


def test_a_finished_run_is_found_before_anything_is_loaded(
    copied, tmp_path, monkeypatch
):
    """By its folder, and below a root by name; a changed corpus, setting or model, or no state to go by, is another."""
    place, job = copied
    text = tmp_path / "text.jsonl"
    shutil.copy(job.corpus, text)
    job = replace(job, model=str(place / "step-1"), corpus=str(text))
    done = run(job, tmp_path / "run")
    below = run(job, root=tmp_path / "root")
    monkeypatch.setattr(
        run_module, "load_subject", lambda _job: pytest.fail("the model was loaded")
    )
    assert run(job, tmp_path / "run", resume=True).folder == done.folder
    assert run(job, root=tmp_path / "root", resume=True).folder == below.folder
    loaded = []
    monkeypatch.setattr(
        run_module,
        "load_subject",
        lambda job: loaded.append(job) or pytest.skip.Exception("stop"),
    )
    for other in (
        job,
        replace(job, limit=3),
        replace(job, model=str(place / "step-10")),
    ):
        with pytest.raises((AttributeError, AnisoscopeError)):
            run(other, tmp_path / "run", resume=other is not job)
    with text.open("a") as file:
        file.write('\n{"text": "more"}')
    with pytest.raises((AttributeError, AnisoscopeError)):
        run(job, tmp_path / "run", resume=True)
    assert len(loaded) == 4


def test_a_finished_run_is_not_found_by_name_for_weights_or_batches_that_are_given(
    copied, tmp_path
):
    """A model or a plan in memory has no name that it could be found by: a run of other weights was returned."""
    place, job = copied
    job = replace(job, model=str(place / "step-1"), limit=4)
    done = run(job, tmp_path / "run")
    subject = load(job.model)
    plan, described = run_module.open_plan_of(replace(job, limit=3), subject)
    others = (
        {"subject": load(str(place / "step-10"))},
        {"reading": run_module.OpenedCorpus(plan, described)},
    )
    for other in others:
        with pytest.raises(
            AnisoscopeError, match="weights_sha256" if "subject" in other else "plan"
        ):
            run(job, tmp_path / "run", resume=True, **other)
    for same in ({}, {"subject": subject}):
        assert run(job, tmp_path / "run", resume=True, **same).manifest == done.manifest


def test_the_key_of_a_job_is_none_where_a_state_can_only_be_read(copied):
    place, job = copied
    job = replace(job, model=str(place / "step-1"))
    key = make_key(job)
    assert key and key == make_key(replace(job)) != make_key(replace(job, limit=3))
    assert make_key(replace(job, corpus="no/such/file.jsonl")) is None
    assert make_key(replace(job, trust_remote_code=True)) is None
    assert make_key(replace(job, model=str(place))) is None


def test_a_checkpoint_that_was_cut_off_goes_on(copied, tmp_path, monkeypatch):
    place, job = copied
    whole = measured(place, job, tmp_path / "whole")
    write = series_runner.write_json

    def cut(path, *given):
        if path.name == "shape.json":
            (path.parent / "manifest.json").unlink()
            raise KeyboardInterrupt
        write(path, *given)

    monkeypatch.setattr(series_runner, "write_json", cut)
    with pytest.raises(KeyboardInterrupt):
        measured(place, job, tmp_path / "series")
    monkeypatch.undo()
    again = measured(place, job, tmp_path / "series")
    pd.testing.assert_frame_equal(
        whole.records.drop(columns="run"), again.records.drop(columns="run")
    )


def test_the_manifest_of_a_series_is_that_of_its_last_step(copied, tmp_path):
    place, job = copied
    series = measured(place, job, tmp_path / "series")
    path = tmp_path / "series" / "series.json"
    described = json.loads(path.read_text())
    described["checkpoints"] = [described["checkpoints"][i] for i in (1, 2, 0)]
    path.write_text(json.dumps(described))
    manifest = read_run(series.folder)[1]
    by_step = {
        checkpoint.step: done.manifest for checkpoint, done in series.runs.items()
    }
    assert (
        manifest["weights_sha256"]
        == by_step[10]["weights_sha256"]
        != by_step[0]["weights_sha256"]
    )
    assert manifest["seconds"] == pytest.approx(
        sum(each["seconds"] for each in by_step.values())
    )


def test_what_a_job_costs_is_told_of_text_alone_and_from_its_configuration(
    copied, tmp_path
):
    place, job = copied
    cost = run_module.estimate_cost_before(replace(job, model=str(place / "step-1")))
    assert cost.tokens == 16 and cost.weights > 0
    with pytest.raises(
        UsageError,
        match="--dry-run only for a model with a configuration; got small:vit",
    ):
        run_module.estimate_cost_before(replace(job, model="small:vit"))
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 8,
        "patch_size": 4,
    }
    ViTModel(ViTConfig(**sizes)).save_pretrained(tmp_path / "vit")
    with pytest.raises(UsageError, match="which reads image"):
        run_module.estimate_cost_before(replace(job, model=str(tmp_path / "vit")))
