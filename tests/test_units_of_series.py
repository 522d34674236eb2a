"""Series and merged runs, step by step: which folder, which file, which checkpoint, without a model."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from anisoscope.errors import MeasureError, ModelError, UsageError
from anisoscope.models import series as names
from anisoscope.models.series import Checkpoint
from anisoscope.runs import merge, series
from anisoscope.runs.job import Job
from anisoscope.store import RunFolder, as_records, write_json, write_table

# ---- what is kept on disk --------------------------------------------------------------------------------------------


class Disk:
    """Which checkpoints are on a disk, and what a series did to them."""

    def __init__(self, monkeypatch, there=(), left=()):
        self.there, self.left, self.done = {*there, *left}, {*left}, []
        monkeypatch.setattr(series, "is_on_disk", lambda name: name in self.there)
        monkeypatch.setattr(series, "is_left_over", lambda name: name in self.left)
        monkeypatch.setattr(series, "delete_checkpoint", self.delete)
        monkeypatch.setattr(series, "fetch", self.fetch)

    def delete(self, name):
        self.done.append(f"-{name}")
        self.there.discard(name)

    def fetch(self, name, is_ours):
        self.done.append(f"+{name}{'' if is_ours else ' of the user'}")
        self.there.add(name)


@pytest.mark.parametrize(
    ("keep", "done"),
    [
        (1, "+a -a +b -b +c -c +d"),
        (2, "+a +b -a +c -b +d"),
        (3, "+a +b +c -a +d"),
        (9, "+a +b +c +d"),
    ],
)
def test_at_most_so_many_checkpoints_are_kept(monkeypatch, keep, done):
    disk = Disk(monkeypatch)
    store = series._CheckpointStore([*"abcd"], keep, [])
    for i in range(4):
        store.get(i, i + 1)
        assert "abcd"[i] in disk.there and len(disk.there) <= keep
    store.close()
    assert " ".join(disk.done) == done


def test_what_was_there_before_is_never_removed(monkeypatch):
    """Of the user's own `b` nothing goes; of an earlier start of ours, `c`, and the finished `x`, all does."""
    disk = Disk(monkeypatch, there=("b", "y"), left=("c", "x"))
    store = series._CheckpointStore([*"abcd"], 1, ["x", "y"])
    assert disk.done == ["-x"]
    for i in range(4):
        store.get(i, None)
    store.close()
    assert disk.done[1:] == ["+a", "+b of the user", "-a", "+c", "-c", "+d"]
    assert "b" in disk.there and "y" in disk.there


def test_a_download_that_fails_is_raised_when_its_turn_comes(monkeypatch):
    Disk(monkeypatch)

    def fetch(name, _ours):
        if name == "b":
            raise ModelError("b", "nothing", "try again")

    monkeypatch.setattr(series, "fetch", fetch)
    store = series._CheckpointStore(["a", "b"], 2, [])
    store.get(0, 1)
    with pytest.raises(ModelError, match="expected b"):
        store.get(1, 2)
    store.close()


# ---- one series ------------------------------------------------------------------------------------------------------

POINTS = [Checkpoint(f"m-seed_{seed}-step{step}", step, seed) for seed in (3, 5) for step in (0, 20)]  # fmt: skip


class World:
    """Checkpoints that exist, with their forms; runs that write the files of a run and nothing else."""

    def __init__(self, monkeypatch, *, forms=None, missing=(), bad=(), commits=None):
        self.forms = forms or {}
        self.missing, self.bad, self.commits = missing, bad, commits or {}
        self.ran, self.coded = [], []
        for name, act in (
            ("locate_checkpoint", self.locate),
            ("compute_stamp", lambda name, place: f"{place} at {name}"),
            ("recall_commit", lambda _kind, name, _revision: self.commits.get(name)),
            ("read_shape", self.read_shape),
            ("identify_corpus_state", lambda job: f"corpus of {job.corpus}"),
            ("hash_code_used", self.hash_code_used),
            ("load_subject", self.load),
            ("run", self.run),
        ):
            monkeypatch.setattr(series, name, act)
        Disk(monkeypatch, there=[point.subject for point in POINTS])

    def locate(self, name):
        if name in self.missing:
            raise ModelError("a checkpoint", name, "name another")
        return f"place of {name}"

    def read_shape(self, name, place, trust):
        assert place == f"place of {name}" and trust is True
        return {"size": 8, "vocab": 30} | self.forms.get(name, {})

    def hash_code_used(self, *used):
        self.coded.append(used)
        return {"code": "1"}

    def load(self, job):
        if job.model in self.bad:
            raise ModelError("weights", job.model, "name another")
        return f"subject of {job.model}"

    def run(self, job, folder, **how):
        self.ran.append((job.model, job.step, job.train_seed, folder.name, how))
        folder.mkdir(parents=True, exist_ok=True)
        plan = "plan" if job.model not in self.forms else self.forms[job.model].get("plan", "plan")  # fmt: skip
        write_json(folder / "identity.json", {"plan": plan})
        weights = "w20" if job.step == 20 else f"w{job.train_seed}"
        write_json(folder / "manifest.json", {"weights_sha256": weights})
        rows = pd.DataFrame([{"metric": "m", "value": float(job.step)}])
        write_table(folder / "records.parquet", as_records(rows, step=job.step))
        if how["keep_sums"]:
            (folder / "sums.safetensors").write_text(job.model)
            (folder / "reservoir.safetensors").write_text("r")


JOB = Job(model="base", corpus="texts", trust_remote_code=True)


def in_progress(output, **how):
    how = {"derived": None, "skip_bad": False, "name": "whole"} | how
    return series._SeriesInProgress(lambda _: JOB, output, **how)


def test_each_checkpoint_is_measured_into_a_folder_of_its_own(monkeypatch, tmp_path):
    world = World(monkeypatch)
    given_on = []
    progress = lambda done, total: given_on.append((done, total))  # noqa: E731
    done = series.measure_series(POINTS, JOB, tmp_path, progress=progress)
    assert [one[:3] for one in world.ran] == [
        (p.subject, p.step, p.seed) for p in POINTS
    ]
    names = [one[3] for one in world.ran]
    for name, point in zip(names, POINTS, strict=True):
        assert name.startswith(f"seed-{point.seed}-step-{point.step}-")
        assert len(name.rpartition("-")[2]) == 8
    assert len(set(names)) == 4
    for one in world.ran:
        assert one[4]["subject"] == f"subject of {one[0]}"
        assert one[4]["keep_sums"] is False and one[4]["resume"] is True
        assert one[4]["overwrite"] is False
    world.ran[2][4]["progress"](1, 2)
    assert given_on == [(5, 8)]
    assert done.records["step"].tolist() == [0, 20, 0, 20]
    assert done.records.index.tolist() == [0, 1, 2, 3]
    # steps 20 of both seeds have the same weights
    assert done.repeated == [[POINTS[1].subject, POINTS[3].subject]]
    written = json.loads((tmp_path / "series.json").read_text())
    assert written["model"] == "base" and written["skipped"] == {}
    assert written["checkpoints"][3] == {
        "subject": POINTS[3].subject, "step": 20, "seed": 5,
        "folder": names[3], "weights_sha256": "w20",
    }  # fmt: skip
    for folder in names:
        form = json.loads((tmp_path / folder / series.SHAPE).read_text())
        assert form == {"size": 8, "vocab": 30}
    kept = pd.read_parquet(tmp_path / "records.parquet")
    assert kept["step"].tolist() == [0, 20, 0, 20]


def test_finished_checkpoints_are_not_measured_again_unless_asked(
    monkeypatch, tmp_path
):
    world = World(monkeypatch)
    series.measure_series(POINTS[:2], JOB, tmp_path)
    world.ran.clear()
    series.measure_series(POINTS, JOB, tmp_path)
    assert [one[0] for one in world.ran] == [p.subject for p in POINTS[2:]]
    world.ran.clear()
    first = next(tmp_path.glob("seed-3-step-0-*"))
    (first / "mine.txt").write_text("kept")
    series.measure_series(POINTS, JOB, tmp_path, overwrite=True)
    assert len(world.ran) == 4 and (first / "mine.txt").exists()
    assert {one[4]["overwrite"] for one in world.ran} == {True}
    assert {one[4]["resume"] for one in world.ran} == {False}
    # another setting is another folder; another device is not
    world.ran.clear()
    series.measure_series(POINTS[:1], replace(JOB, device="cuda", batch_tokens=JOB.batch_tokens), tmp_path)  # fmt: skip
    assert world.ran == []
    series.measure_series(POINTS[:1], replace(JOB, corpus="others"), tmp_path)
    assert len(world.ran) == 1 and world.ran[0][3] != first.name


def test_a_checkpoint_that_is_gone_is_known_by_its_commit(monkeypatch, tmp_path):
    """Measured before: its form and numbers are read from its folder; never measured: the error."""
    point = POINTS[0]
    missing = World(monkeypatch, missing=[point.subject], commits={point.subject: "c1"})
    work = in_progress(tmp_path)
    work.corpus = "corpus of texts"
    folder = work._find_folder(point, "c1")
    with pytest.raises(ModelError, match=r"a checkpoint; got m-seed_3-step0"):
        work._read_form(point)
    folder.mkdir()
    write_json(folder / "manifest.json", {})
    with pytest.raises(ModelError):
        work._read_form(point)
    write_json(folder / series.SHAPE, {"size": 3})
    assert work._read_form(point) == ({"size": 3}, folder)
    missing.commits.clear()
    with pytest.raises(ModelError):
        work._read_form(point)
    assert work._find_folder(point, "c2") != folder


def test_bad_checkpoints_are_skipped_only_if_asked(monkeypatch, tmp_path):
    """One that is not there, and one that does not load."""
    names = [point.subject for point in POINTS]
    World(monkeypatch, missing=[names[1]], bad=[names[2]])
    with pytest.raises(ModelError, match=names[1]):
        series.measure_series(POINTS, JOB, tmp_path / "a")
    World(monkeypatch, bad=[names[2]])
    with pytest.raises(ModelError, match=names[2]):
        series.measure_series(POINTS, JOB, tmp_path / "b")
    World(monkeypatch, missing=[names[1]], bad=[names[2]])
    done = series.measure_series(POINTS, JOB, tmp_path / "c", skip_bad=True)
    assert [point.subject for point in done.runs] == [names[0], names[3]]
    assert list(done.skipped) == names[1:3]
    assert names[1] in done.skipped[names[1]] and "weights" in done.skipped[names[2]]
    assert done.records["step"].tolist() == [0, 20]
    # if none is there, the first error is the reason
    World(monkeypatch, missing=names)
    with pytest.raises(ModelError, match=names[0]):
        series.measure_series(POINTS, JOB, tmp_path / "d", skip_bad=True)


def test_checkpoints_of_other_forms_or_tokens_are_no_series(monkeypatch, tmp_path):
    last = POINTS[-1].subject
    World(monkeypatch, forms={last: {"vocab": 31}})
    message = rf"architecture and vocabulary \(vocab 30\); got vocab 31 in {last}"
    with pytest.raises(ModelError, match=message):
        series.measure_series(POINTS, JOB, tmp_path / "a", skip_bad=True)
    assert not list((tmp_path / "a").glob("seed*"))
    World(monkeypatch, forms={last: {"plan": "another"}})
    with pytest.raises(MeasureError, match=r"the same tokens .*; got 2 different ones"):
        series.measure_series(POINTS, JOB, tmp_path / "b")


def test_what_is_derived_is_made_from_the_sums_which_then_go(monkeypatch, tmp_path):
    world = World(monkeypatch)

    def make(sums, settings, path):
        assert settings is JOB.settings
        path.write_text(f"of {sums.read_text()}")

    derived = series.Derived("small.txt", make)
    done = series.measure_series(POINTS[:2], JOB, tmp_path, derived=derived)
    for point, run in done.runs.items():
        assert (run.folder / "small.txt").read_text() == f"of {point.subject}"
        assert not (run.folder / "sums.safetensors").exists()
        assert not (run.folder / "reservoir.safetensors").exists()
        assert (run.folder / series.SHAPE).exists()
    assert {one[4]["keep_sums"] for one in world.ran} == {True}
    assert all(make in used for used in world.coded)
    # a run that was finished without sums is measured once more for them
    folder = next(iter(done.runs.values())).folder
    (folder / "small.txt").unlink()
    world.ran.clear()
    original = world.run

    def run_without_sums(job, folder, **how):
        if how.get("resume"):
            world.ran.append("resumed")
            return
        original(job, folder, **how)

    monkeypatch.setattr(series, "run", run_without_sums)
    series.measure_series(POINTS[:2], JOB, tmp_path, derived=derived)
    assert world.ran[0] == "resumed" and world.ran[1][4]["overwrite"] is True
    assert len(world.ran) == 2 and (folder / "small.txt").exists()


def test_a_series_of_jobs_of_their_own_is_called_as_its_folder(monkeypatch, tmp_path):
    world = World(monkeypatch)
    made = []

    def job(checkpoint):
        made.append(checkpoint)
        return replace(JOB, corpus=f"texts {checkpoint.seed}")

    done = series.measure_series(POINTS, job, tmp_path / "curve")
    assert json.loads((tmp_path / "curve" / "series.json").read_text())["model"] == "curve"  # fmt: skip
    assert {*made} == {*POINTS} and len(world.ran) == 4 and len(done.runs) == 4


# ---- runs to merge ---------------------------------------------------------------------------------------------------


def part_of(tmp_path, number, *, sums=True, **identity):
    folder = tmp_path / f"run-{number}"
    folder.mkdir(exist_ok=True)
    given = {"weights": "w", "settings": {"tokens": "all"}, "shard": [number, 3]}
    given |= {"plan": "p", "corpus": "c", "files": "f"}
    write_json(folder / "identity.json", given | identity)
    part = RunFolder(folder)
    if sums:
        part.sums_path.write_bytes(b"")
    return part


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        (merge.BATCHES, {}, None),
        (merge.BATCHES, {"plan": "q"}, r"shards of one run; got .*run-1, whose plan differs from .*run-0.*--to-merge"),
        (merge.BATCHES, {"corpus": "q"}, r"whose corpus differs.*--to-merge"),
        (merge.BATCHES, {"weights": "q"},
         r"whose weights differs from .*run-0\. Cure: merge .* \(only --shard differs\)$"),
        (merge.FILES, {"plan": "q"}, None),
        (merge.FILES, {"corpus": "q"}, r"whose corpus differs"),
        (merge.FILES, {"settings": {"tokens": "content"}}, r"shards of one run; got .*run-1, whose settings"),
        (merge.RUNS, {"plan": "q", "corpus": "q", "files": "q"}, None),
        (merge.RUNS, {"weights": "q"}, r"runs that differ only in their files; got .*run-1, whose weights"),
    ],
)  # fmt: skip
def test_parts_of_one_run_agree_in_what_they_must(tmp_path, kind, changed, message):
    parts = [part_of(tmp_path, 0), part_of(tmp_path, 1, **changed)]
    if message is None:
        identity = merge._require_one_run(parts, kind)
        assert identity["shard"] == [0, 1] and identity["weights"] == "w"
        gone = {merge.BATCHES: set(), merge.FILES: {"plan"}, merge.RUNS: {"plan", "corpus", "files"}}[kind]  # fmt: skip
        assert {"plan", "corpus", "files"} - identity.keys() == gone
        return
    with pytest.raises(MeasureError, match=message):
        merge._require_one_run(parts, kind)


def test_runs_without_sums_or_of_classes_cannot_be_merged(tmp_path):
    whole = part_of(tmp_path, 0)
    with pytest.raises(MeasureError, match=r"merged in .*run-1; got none.*--shard"):
        merge._require_one_run([whole, part_of(tmp_path, 1, sums=False)], merge.BATCHES)
    of_classes = part_of(tmp_path, 2, classes=["a"])
    with pytest.raises(MeasureError, match=r"a run of anisoscope classes in .*run-2"):
        merge._require_one_run([whole, of_classes], merge.BATCHES)


@pytest.mark.parametrize("kind", [merge.BATCHES, merge.FILES, merge.RUNS])
def test_what_the_manifest_of_a_merged_run_says(monkeypatch, tmp_path, kind):
    """Of the parts' numbers, corpora and settings; sums are kept only if more files may follow."""
    parts = []
    for number in range(3):
        part = part_of(tmp_path, number)
        files = {f"file{number}": f"hash{number}"}
        corpus = {"name": f"c{number}", "n_tokens": 10**number, "n_batches": 6, "empty": 1, "skipped": 2,
                  "fingerprint": "of all", "documents": "auto"}  # fmt: skip
        if kind == merge.FILES:
            corpus |= {"files": files, "all_files": ["file0", "file1", "file2"]}
        if kind == merge.RUNS:
            corpus |= {"files": files, "path": "/x"}
        manifest = {
            "run": f"r{number}", "corpus": corpus, "plan": f"p{number}", "units": f"u{number}",
            "settings": {"shard": [number, 3], "corpus": f"c{number}", "settings": {"n": 1}, "model": "m"},
            "notes": [f"note {number // 2}"], "started": str(9 - number), "seconds": 1.5, "processes": number + 1,
            "weights_sha256": "w",
        }  # fmt: skip
        write_json(part.folder / "manifest.json", manifest)
        parts.append(part.folder)

    class Whole:
        settings = "settings"

        def __init__(self, settings, plan=None):
            self.made, self.batches, self.got = (settings, plan), set(), []

        @classmethod
        def restore(cls, path, settings, plan=None):
            shard = cls(settings, plan)
            number = int(path.parent.name[-1])
            shard.batches, shard.got = {number, number + 3}, [path.parent.name]
            return shard

        def merge(self, other):
            self.batches |= other.batches
            self.got += other.got
            return self

        def save(self, path):
            path.write_text("sums")

    finished = []
    monkeypatch.setattr(merge, "Measurement", Whole)
    monkeypatch.setattr(merge.Settings, "read", classmethod(lambda _cls, given: given))
    monkeypatch.setattr(merge, "identify_units", lambda *given: given)
    monkeypatch.setattr(merge, "finish", lambda *given: finished.append(given))
    target = merge.merge_runs(parts, tmp_path / "merged")
    ((folder, whole, facts),) = finished
    assert folder is target and whole.got == ["run-0", "run-1", "run-2"]
    assert whole.made == ({"n": 1}, "p" if kind == merge.BATCHES else None)
    assert facts["merged"] == ["r0", "r1", "r2"] and facts["asked"] is None
    assert facts["notes"] == ["note 0", "note 1"]
    assert (facts["started"], facts["seconds"], facts["processes"]) == ("7", 4.5, 6)
    assert facts["settings"]["shard"] == [0, 1] and facts["settings"]["model"] == "m"
    assert facts["run"] not in ("r0", "r1", "r2") and facts["weights_sha256"] == "w"
    corpus = facts["corpus"]
    assert corpus["n_tokens"] == 111
    name = "c0" if kind != merge.RUNS else "c0, c1, c2"
    assert corpus["name"] == facts["settings"]["corpus"] == name
    identity = target.identity()
    assert identity["shard"] == [0, 1]
    assert (target.folder / "sums.safetensors").exists() == (kind == merge.RUNS)
    if kind == merge.BATCHES:
        assert (corpus["n_batches"], facts["plan"], facts["units"]) == (6, "p0", "u0")
        assert (identity["plan"], identity["files"]) == ("p", "f")
    else:
        assert (corpus["n_batches"], corpus["empty"], corpus["skipped"]) == (18, 3, 6)
        assert facts["plan"] == "" and facts["units"][1:] == (None, "settings")
        assert facts["units"][0]["fingerprint"] == corpus["fingerprint"]
        assert identity["files"] == corpus["fingerprint"] and identity["corpus"] == name
        assert ("files" in corpus) == (kind == merge.RUNS) and "path" not in corpus
    for twice, message in (
        ([parts[0], parts[0], *parts[1:]], "in common"),
        (parts[:2], "3/3|n_"),
    ):
        if kind == merge.RUNS and twice == parts[:2]:
            continue
        with pytest.raises(MeasureError, match=message):
            merge.merge_runs(twice, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_part_that_shares_with_any_earlier_one_is_refused():
    """The third run has a file of the first, the second none of it."""
    parts = [SimpleNamespace(folder=Path(f"run-{i}")) for i in range(3)]
    files = [{"a": "1"}, {"b": "2"}, {"c": "3", "d": "1"}]
    manifests = [{"corpus": {"files": f, "all_files": [*"abcd"], "name": "n", "n_batches": 1, "empty": 0, "skipped": 0},
                  "settings": {"shard": [0, 3]}} for f in files]  # fmt: skip
    with pytest.raises(MeasureError, match="d of run-2, whose content is in run-0 too"):
        merge._join_runs(parts, manifests)
    manifests[2]["corpus"]["files"] = {"c": "3", "a": "1", "d": "4"}
    with pytest.raises(MeasureError, match="a, in run-0 and in run-2"):
        merge._join_files(parts, manifests)
    renamed = [{"a": "1"}, {"a": "2"}, {"b": "3"}]
    for manifest, of_run in zip(manifests, renamed, strict=True):
        manifest["corpus"]["files"] = of_run
    assert merge._join_runs(parts, manifests)["files"] == {"a": "1", "run-1: a": "2", "b": "3"}  # fmt: skip
    manifests[2]["corpus"]["documents"] = "line"
    with pytest.raises(MeasureError, match="None in run-0 and line in run-2"):
        merge._join_runs(parts, manifests)


# ---- names of checkpoints


@pytest.mark.parametrize(
    ("name", "step", "seed"),
    [
        ("m-step1000", 1000, 0),
        ("m-steps_20k", 20_000, 0),
        ("m_ckpt=7", 7, 0),
        ("m-iter-3M", 3_000_000, 0),
        ("m/checkpoint-12/seed-4", 12, 4),
        ("m-step_20kilo", 20, 0),
        ("m-step_20K-x", 20_000, 0),
        ("m-step1@step2", 2, 0),
        ("m-step1-step2@checkpoint-3-step4", 4, 0),
        ("seed1-m-seed=2-step5", 5, 2),
    ],
)
def test_steps_and_seeds_are_the_last_of_a_name(name, step, seed):
    assert names._parse_name("subject", name) == Checkpoint("subject", step, seed)


def test_a_revision_without_a_step_is_not_read_from_the_name():
    with pytest.raises(UsageError) as raised:
        names.expand("o/m-step5@main")
    assert str(raised.value) == (
        "expected a step that can be read from each name; got 'o/m-step5@main'. Cure: name them "
        "…step-1000, …checkpoint-1000 or …step_20k, or write `name step` lines into a file"
    )


def test_revisions_of_a_gap_lie_between_its_ends_and_come_by_number(monkeypatch):
    """An end is written in the pattern already; a revision that writes its number in another way is not the end."""
    there = ("step9", "step10", "step02", "step002", "step64", "step064", "main")
    asked = []
    monkeypatch.setattr(
        names, "list_revisions", lambda repository: asked.append(repository) or there
    )
    gap = names.Gap(re.compile(r"o/m@step(\d+)"), 2, 64)
    implied = ["o/m@step32", "o/m@step9", "o/m@step4"]
    found = names._select_revisions("o/m", implied, [gap])
    assert found == ["o/m@step9", "o/m@step9", "o/m@step10"]
    assert asked == ["o/m"]


@pytest.mark.parametrize(
    ("one", "two", "last", "more"),
    [
        (1, 2, 17, [4, 8, 16]),
        (1, 2, 16, [4, 8]),
        (2, 6, 54, [18]),
        (4, 10, 200, []),
        (0, 3, 9, []),
        (5, 20, 80, []),
    ],
)
def test_numbers_go_on_by_a_whole_factor_up_to_the_last(one, two, last, more):
    assert names._continue_by_factor(one, two, last) == more


def test_what_is_a_series_and_what_its_folders_are_called(tmp_path, monkeypatch):
    """Numbers in the folders above are no steps; files that are called as steps are none."""
    monkeypatch.chdir(tmp_path)
    for name in ("list.txt", "list", "list.csv", "a.gguf", "b.onnx", "c.ckpt"):
        (tmp_path / name).write_text("m-step1")
        assert names.is_series(name) is name.startswith("list"), name
    above = tmp_path / "step-900" / "run"
    for name in ("step-2", "checkpoint_1", "step3", "stepping-4"):
        (above / name).mkdir(parents=True)
    (above / "step-5").write_text("a file")
    found = names.expand("step-900/run")
    assert [(c.step, c.seed) for c in found] == [(1, 0), (2, 0)]
    assert found[0].subject == "step-900/run/checkpoint_1"
    (tmp_path / "step-900" / "step-7").mkdir()
    assert [c.step for c in names.expand("step-900")] == [7], "the nearest level"


def test_stars_and_question_marks_name_folders_of_this_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a-step1", "a-step22", "b@step3", "a-step4.txt"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-step9").write_text("a file")
    assert names._match_folders("a-step?") == ["a-step1"]
    assert names._match_folders("a-step*") == ["a-step1", "a-step22", "a-step4.txt"]
    assert names._match_folders("b@step*") == [] == names._match_folders("a-step1")
    assert names.is_series("a-step?") and not names.is_series("c-step?")
    assert not names.is_series("a-step1")
    long = "m-step{" + ",".join(map(str, range(3000))) + "}"
    assert names.is_series(long), "longer than any name of a file"


def test_one_step_of_two_seeds_is_no_double(tmp_path):
    path = tmp_path / "list"
    path.write_text("a 5 1\nb 5 2\n")
    assert [c.subject for c in names.expand(str(path))] == ["a", "b"]
    path.write_text("a 5 1\nb 6 1\nc 5 1\n")
    with pytest.raises(UsageError) as raised:
        names.expand(str(path))
    assert str(raised.value) == (
        f"expected every step only once per seed in {path}; got step 5 of seed 1 is a and c. Cure: put the "
        "seed into the names (seed-0/step-100), or write `name step seed` lines into a file"
    )
    path.write_text("a-step1\n\nb 1 2 3\n")
    with pytest.raises(UsageError) as raised:
        names.expand(str(path))
    assert str(raised.value) == (
        f"expected `name [step [seed]]` in {path}, a list of checkpoints; got line 3: 'b 1 2 3'. "
        f"Cure: correct the line; a text to read is given as --corpus {path}"
    )


def test_the_folder_of_a_checkpoint_changes_with_corpus_code_and_state(
    monkeypatch, tmp_path
):
    """Each of these changes its numbers; the device does not."""
    work = in_progress(tmp_path)
    checkpoint = Checkpoint("m", 3, 4)
    monkeypatch.setattr(work, "_hash_code", lambda _: {"m": "1"})
    first = work._find_folder(checkpoint, "state")
    assert first == work._find_folder(checkpoint, "state")
    found = [first, work._find_folder(checkpoint, "other")]
    work.corpus = "another"
    found.append(work._find_folder(checkpoint, "state"))
    work.corpus = None
    monkeypatch.setattr(work, "_hash_code", lambda _: {"m": "2"})
    found.append(work._find_folder(checkpoint, "state"))
    assert len(set(found)) == 4
    asked = replace(JOB, device="cpu", keep=5)
    elsewhere = series._SeriesInProgress(lambda _: asked, tmp_path, None, False, "x")
    monkeypatch.setattr(elsewhere, "_hash_code", lambda _: {"m": "1"})
    assert elsewhere._find_folder(checkpoint, "state") == first
    for path in found:
        assert path.name.startswith(f"seed-{checkpoint.seed}-step-{checkpoint.step}-")


def test_a_checkpoint_is_measured_once_marker_and_form_are_there(tmp_path):
    work = in_progress(tmp_path)
    for present, measured in (
        (("shape.json",), False),
        (("manifest.json",), False),
        (("shape.json", "manifest.json"), True),
    ):
        folder = tmp_path / "-".join(present)
        folder.mkdir()
        for name in present:
            (folder / name).touch()
        assert work._is_measured(folder) is measured
        work.folders[present] = folder
    (tmp_path / "shape.json" / "notes.txt").touch()
    work.delete_earlier_runs()
    left = {path.name for folder in work.folders.values() for path in folder.iterdir()}
    assert left == {"notes.txt"} and work.overwrite


def test_a_series_is_written_again_if_any_entry_of_its_list_changed(tmp_path):
    work = in_progress(tmp_path)
    described = {"model": "m", "checkpoints": [1], "skipped": {}, "repeated": []}
    (tmp_path / "series.json").write_text(json.dumps(described | {"versions": 3}))
    (tmp_path / "records.parquet").touch()
    assert work._is_written(described)
    changed = {
        "model": "n",
        "checkpoints": [2],
        "skipped": {"a": "b"},
        "repeated": [["a"]],
    }
    for name, value in changed.items():
        assert not work._is_written(described | {name: value})
    (tmp_path / "records.parquet").unlink()
    assert not work._is_written(described)
