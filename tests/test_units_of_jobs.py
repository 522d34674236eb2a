"""Jobs before they run: which shard, key, metrics and policies, and what kernels must prove, on a few numbers."""

import math
import os
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.data.arrays import wrap_vectors
from anisoscope.errors import ModelError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.runs import job as jobs, run as running, run_cache, vectors
from anisoscope.runs.job import Job
from anisoscope.store import RunFolder, write_json
from anisoscope.sums import on_chip

# ---- jobs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shard"),
    [("1/1", (0, 1)), ("2/4", (1, 4)), ("4/4", (3, 4)), ((1, 3), (1, 3)),
     ("0/4", None), ("5/4", None), ("1/0", None), ("a/2", None), ("2", None)],
)  # fmt: skip
def test_shards_are_counted_from_one_by_people(text, shard):
    if shard is None:
        with pytest.raises(UsageError):
            Job(model="m", shard=jobs.read_shard(text))
    else:
        assert Job(model="m", shard=jobs.read_shard(text)).shard == shard


def test_what_may_not_be_merged_later():
    Job(model="m", to_merge=True)
    for given, message in (
        ({"shard": (0, 2)}, "it with --shard"),
        ({"sequences": 3}, "it with --sequences"),
        ({"settings": Settings(panel=("alignment",))}, "it with the panel alignment"),
    ):
        with pytest.raises(UsageError, match=f"only for whole files; got {message}"):
            Job(model="m", to_merge=True, **given)
        Job(model="m", **given)
    for shard in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(UsageError, match="0 ≤ i < n"):
            Job(model="m", shard=shard)


def test_a_shard_is_read_from_words_text_or_numbers():
    assert jobs.read_shard(["2/4"]) == jobs.read_shard("2/4") == (1, 4)
    assert jobs.read_shard(["1/2", "2/2"]) == ["1/2", "2/2"], "pydantic refuses them"
    for text in ("0/4", "5/4", "x", "1/2/3"):
        with pytest.raises(UsageError) as fault:
            jobs.read_shard([text])
        assert str(fault.value) == (
            f"expected --shard I/N with 1 ≤ I ≤ N; got {text!r}. Cure: the second of four shards is --shard 2/4"
        )
    with pytest.raises(UsageError) as fault:
        Job(model="m", shard=(3, 3))
    assert str(fault.value) == (
        "expected a shard (i, n) with 0 ≤ i < n; got (3, 3). Cure: the first of two is (0, 2)"
    )


def test_a_metric_of_two_runs_is_no_metric_of_a_job():
    with pytest.raises(UsageError) as fault:
        Job(model="m", settings=Settings(metrics=("drift", "procrustes")))
    text = str(fault.value)
    assert text.startswith("expected metrics of one run; got procrustes, of ")
    assert text.endswith("Cure: anisoscope compare RUN OTHER-RUN --across procrustes")


def test_options_of_jobs_have_their_defaults_and_least_values():
    job = Job()
    assert (job.model, job.corpus, job.dtype, job.device) == (
        *("builtin:minilm", "", "float32", "auto"),
    )
    assert (job.untrained, job.tower, job.trust_remote_code, job.device_map) == (
        *(False, None, False, None),
    )
    assert (job.split, job.column, job.documents, job.limit) == (
        None,
        None,
        "auto",
        None,
    )
    assert (job.sequences, job.max_length, job.batch_tokens) == (None, None, 4096)
    assert (job.skip_bad, job.shard, job.to_merge) == (False, (0, 1), False)
    assert (job.keep, job.no_state, job.step, job.train_seed) == (2, False, None, None)
    assert (job.columns, job.unit_column, job.label_column) == (None, None, None)
    for name in ("limit", "sequences", "max_length", "batch_tokens", "keep"):
        assert getattr(Job(**{name: 1}), name) == 1
        with pytest.raises(ValueError, match=name):
            Job(**{name: 0})
    given = jobs.ClassesOptions()
    assert (given.model, given.corpus, given.split) == ("builtin:minilm", "", "")
    assert (given.split_seed, given.limit, given.max_length) == (0, 999, None)
    assert (given.few, given.seed, given.batch_tokens, given.at) == (60, 0, 4096, None)
    assert given.parts == ("directions", "ablation", "attribution")
    for name, least in {
        "limit": 1,
        "few": 1,
        "batch_tokens": 1,
        "max_length": 3,
        "split_seed": 0,
        "seed": 0,
    }.items():
        assert getattr(jobs.ClassesOptions(**{name: least}), name) == least
        with pytest.raises(ValueError, match=name):
            jobs.ClassesOptions(**{name: least - 1})
    assert jobs.OutputOptions() == jobs.OutputOptions(output=None, resume=False, overwrite=False)  # fmt: skip


def identified(monkeypatch, job, more=None):
    """The identity of a job, and what its code was hashed from."""
    used = []
    monkeypatch.setattr(jobs, "hash_code_used", lambda *given: used.append(given) or "h")  # fmt: skip
    subject = SimpleNamespace(
        weights_sha256="w",
        form="form",
        processor=Settings(),
        model=torch.nn.Sequential(torch.nn.Linear(2, 2)),
    )
    plan = type("Plan", (), {"fingerprint": "f"})()
    found = job.identity(subject, plan, more)
    (given,) = used
    return found, given, type(plan)


def test_the_identity_of_a_job_has_all_that_changes_its_numbers(monkeypatch):
    job = Job(
        model="m", corpus="c", untrained=True, dtype="float64", device="cpu",
        device_map="auto", trust_remote_code=True, keep=7, no_state=True, split="s",
        column="k", documents="line", limit=3, sequences=4, max_length=5,
        batch_tokens=6, skip_bad=True, shard=(1, 3), step=8,
    )  # fmt: skip
    found, used, plan = identified(monkeypatch, job)
    settings = found.pop("settings")
    assert settings["seed"] == job.settings.seed and "panel" in settings
    assert found == {
        "model": "m", "corpus": "c", "untrained": True, "dtype": "float64",
        "split": "s", "column": "k", "documents": "line", "limit": 3, "sequences": 4,
        "max_length": 5, "batch_tokens": 6, "skip_bad": True, "shard": [1, 3],
        "step": 8, "weights_sha256": "w", "architecture": "form", "plan": "f",
        "code": "h",
    }  # fmt: skip
    assert {*used[len(job.code) :]} == {
        *(plan, Settings, torch.nn.Sequential, torch.nn.Linear)
    }
    assert [*used[: len(job.code)]] == job.code
    rare = {"tower": "text", "columns": "0-3", "unit_column": "u", "label_column": "l", "train_seed": 0}  # fmt: skip
    found, *_ = identified(monkeypatch, Job(to_merge=True, **rare))
    assert {name: found[name] for name in rare} == rare and found["to_merge"] is True
    for name, value in rare.items():
        found, *_ = identified(monkeypatch, Job(**{name: value}))
        assert {*rare} & found.keys() == {name}
    assert found["limit"] is None and "to_merge" not in found


def test_what_a_job_does_after_the_pass_is_hashed_too(monkeypatch):
    after = partial(running.finish, 1)
    _, used, _ = identified(monkeypatch, Job(), after)
    assert used[-1] == "anisoscope.runs.run"
    _, used, _ = identified(monkeypatch, Job(), math.hypot)
    assert "math" not in used


def test_the_code_of_a_job_is_that_of_its_metrics_and_its_corpus(monkeypatch):
    metric = SimpleNamespace(compute="compute", reads=SimpleNamespace(summary=lambda: "summary"))  # fmt: skip
    none = SimpleNamespace(compute="other", reads=SimpleNamespace(summary=lambda: None))
    corpora = {"made": SimpleNamespace(maker="a.module:make"), "held": SimpleNamespace(maker="")}  # fmt: skip
    monkeypatch.setattr(jobs, "named_corpora", lambda: corpora)
    monkeypatch.setattr(Settings, "chosen", [metric, none])
    own = ["compute", SimpleNamespace, "summary", "other", SimpleNamespace]
    for corpus, module in (("made", ["a.module"]), ("held", []), ("a folder", [])):
        assert Job(corpus=corpus).code == ["anisoscope.runs.run", *module, *own]


# ---- finished runs ---------------------------------------------------------------------------------------------------


def finished(folder, asked, code, *, complete=True):
    folder.mkdir()
    write_json(folder / "identity.json", {"code": code})
    if complete:
        run = RunFolder(folder)
        run.finish(pd.DataFrame({"value": [1.0]}), {"asked": asked})
    return folder


def test_a_run_is_found_by_its_key_and_unchanged_code(tmp_path, monkeypatch):
    monkeypatch.setattr(
        run_cache, "are_unchanged", lambda code: code.get("a") == "same"
    )
    same = {"a": "same"}
    folders = [
        finished(tmp_path / "no-code", "k", {}),
        finished(tmp_path / "odd-code", "k", "text"),
        finished(tmp_path / "changed", "k", {"a": "other"}),
        finished(tmp_path / "other-key", "j", same),
        finished(tmp_path / "begun", "k", same, complete=False),
        tmp_path / "gone",
        finished(tmp_path / "right", "k", same),
        finished(tmp_path / "later", "k", same),
    ]
    assert run_cache.find_finished("k", folders).folder == tmp_path / "right"
    assert run_cache.find_finished("j", folders).folder == tmp_path / "other-key"
    assert run_cache.find_finished(None, folders) is None
    assert run_cache.find_finished("k", folders[:6]) is None


def test_what_a_model_s_state_is(tmp_path, monkeypatch):
    state = run_cache.identify_model_state
    assert state(run_cache.BUILTIN) == run_cache.BUILTIN_SHA256
    assert state("my:factory") is None
    assert state(str(tmp_path)) is None
    for name in ("config.json", "model.safetensors", "in/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    stamps = state(str(tmp_path))
    assert [name.rpartition("/")[2] for name, _, _ in stamps] == ["config.json", "x", "model.safetensors"]  # fmt: skip
    assert [size for _, size, _ in stamps] == [11, 4, 17]
    os.utime(tmp_path / "in" / "x", ns=(5, 5))
    assert state(str(tmp_path)) != stamps and state(str(tmp_path))[1][2] == 5
    (tmp_path / run_cache.ADAPTER).write_text("{}")
    assert state(str(tmp_path)) is None
    asked = []
    monkeypatch.setattr(run_cache, "hub_id", lambda name: f"org/{name}")
    place = SimpleNamespace(files=["config.json"], commit="c1")
    monkeypatch.setattr(run_cache, "locate_checkpoint", lambda name: asked.append(name) or place)  # fmt: skip
    assert state("bert@v1") == "c1" == state("bert")
    assert asked == ["org/bert@v1", "org/bert"]
    place.files.append(run_cache.ADAPTER)
    assert state("bert") is None

    def fail(_name):
        raise ModelError("a", "b", "c")

    monkeypatch.setattr(run_cache, "locate_checkpoint", fail)
    monkeypatch.setattr(run_cache, "recall_commit", lambda *given: given)
    assert state("bert@v1") == ("model", "org/bert", "v1")


def test_a_key_is_of_settings_states_and_versions(monkeypatch):
    states = {"model": "m1", "corpus": "c1", "version": "1"}
    monkeypatch.setattr(run_cache, "identify_model_state", lambda _: states["model"])
    monkeypatch.setattr(run_cache, "identify_corpus_state", lambda _: states["corpus"])
    monkeypatch.setattr(run_cache, "version", lambda _: states["version"])
    keys = {run_cache.make_key(Job(model="a"))}
    keys.add(run_cache.make_key(Job(model="a", limit=3)))
    for name, value in (("model", "c1"), ("corpus", "m1"), ("version", "2")):
        states[name] = value
        keys.add(run_cache.make_key(Job(model="a")))
    states |= {"model": "c1", "corpus": "m1"}
    assert len(keys) == 5 and None not in keys
    assert run_cache.make_key(Job(model="a", trust_remote_code=True)) is None
    states["corpus"] = None
    assert run_cache.make_key(Job(model="a")) is None
    states |= {"corpus": "c", "model": None}
    assert run_cache.make_key(Job(model="a")) is None


def test_a_key_has_the_version_of_every_library_that_may_change_the_numbers(
    monkeypatch,
):
    made = []
    monkeypatch.setattr(run_cache, "identify_model_state", lambda _: "m")
    monkeypatch.setattr(run_cache, "identify_corpus_state", lambda _: "c")
    monkeypatch.setattr(run_cache, "make_run_id", lambda *given: made.append(given))
    monkeypatch.setattr(run_cache.platform, "python_version", lambda: "3.x")

    def version(name):
        if name == "datasets":
            raise run_cache.PackageNotFoundError
        return f"of {name}"

    monkeypatch.setattr(run_cache, "version", version)
    run_cache.make_key(Job(model="a", limit=3))
    ((settings, model, corpus, versions),) = made
    assert (settings["model"], settings["limit"], model, corpus) == ("a", 3, "m", "c")
    names = "torch transformers tokenizers numpy scipy scikit-learn pillow torchvision"
    found = {name: f"of {name}" for name in names.split()}
    assert versions == found | {"datasets": "", "python": "3.x"}


# ---- vectors ---------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(12, 4)) + 1


def limited(given, labels=None, mask=None, **settings):
    return vectors.limit_settings(wrap_vectors(given, labels=labels, mask=mask), Settings(**settings))  # fmt: skip


def test_metrics_and_policies_that_vectors_have():
    sequences = np.random.default_rng(1).normal(size=(6, 3, 4))
    assert limited(X, tokens=("content", "all")).tokens == ("all",)
    both = ("no-first", "all", "content")
    assert limited(sequences, tokens=both).tokens == ("no-first", "all")
    with pytest.raises(
        UsageError, match=r"vectors have \(all\); got content, no-first"
    ):
        limited(X, tokens=("content", "no-first"))
    with pytest.raises(UsageError, match=r"have \(all, no-first\); got content\."):
        limited(sequences, tokens=("content",))
    plain = limited(X, panel=("hidden",)).metrics
    assert "mean_cosine" in plain and "drift" in plain
    assert set(vectors.UNASKED) & set(plain)
    assert not set(vectors.UNASKED) & set(limited(X, panel=("spectrum",)).metrics)
    labels = [0, 1] * 6
    with_classes = set(limited(X, labels=labels, metrics=("drift",)).metrics)
    assert "drift" in with_classes and len(with_classes) > 1
    assert limited(X, metrics=("drift",)).metrics == ("drift",)
    assert limited(X, labels=[1] * 12, metrics=("drift",)).metrics == ("drift",)
    for metric, message in (
        ("attention", "measure the model for the others"),
        ("cka", "give the vectors of several layers"),
        ("class_direction", "give labels of two classes"),
        ("matrix_entropy", "measure the model for the others"),
    ):
        with pytest.raises(UsageError, match=rf"got '{metric}'\. Cure: {message}"):
            limited(X, metrics=("drift", metric))
    assert "cka" in limited([X, X * 2], metrics=("cka",)).metrics
    with pytest.raises(UsageError, match="only the panels hidden and spectrum"):
        limited(X, panel=("attention",))


def test_classes_are_kept_apart_layer_by_layer(monkeypatch):
    """The second layer separates them; a layer that is too large is left out by its number."""
    labels = np.array([0, 1] * 6)
    far = X.copy()
    far[labels == 1] -= 9
    given = wrap_vectors([X, far, np.c_[X, X]], labels=labels)
    job = Job(model="m", settings=Settings(groups=4))
    records, warnings = vectors._measure_separability(given, job)
    assert warnings == [] and records["layer"].unique().tolist() == [0, 1, 2]
    auc = records[records["metric"].str.contains("auc") & records["component"].isna()]
    values = auc.groupby("layer")["value"].max()
    assert values[1] == 1 > values[0]
    monkeypatch.setattr(vectors, "LABELLED_BYTES", 8 * 12 * 4)
    records, warnings = vectors._measure_separability(given, job)
    assert records["layer"].unique().tolist() == [0, 1]
    assert warnings == ["no AUC of classes in layer 2: 12 vectors are too many to hold at once"]  # fmt: skip
    monkeypatch.setattr(vectors, "LABELLED_BYTES", 8 * 12 * 4 - 1)
    records, warnings = vectors._measure_separability(given, job)
    assert len(records) == 0 and len(warnings) == 3
    one = wrap_vectors(X, labels=[1] * 12)
    assert vectors._measure_separability(one, job)[1] == ["one class only: nothing to tell apart"]  # fmt: skip
    shard = Job(model="m", shard=(0, 2))
    assert "left out of a shard" in vectors._measure_separability(given, shard)[1][0]


@pytest.mark.parametrize(
    ("given", "written"),
    [(torch.bfloat16, "bfloat16"), (torch.float16, "float16"), (torch.float64, "float64"),
     (torch.float32, "float32"), (torch.int64, "float32")],
)  # fmt: skip
def test_vectors_are_measured_in_the_type_that_they_have(monkeypatch, given, written):
    asked = []
    monkeypatch.setattr(vectors, "run", lambda job, *_, **__: asked.append(job))
    vectors.run_vectors(wrap_vectors(torch.from_numpy(X).to(given)), Job(model="m"))
    assert [job.dtype for job in asked] == [written]


@pytest.mark.parametrize("labels", [None, [0, 1] * 6])
def test_vectors_hand_on_what_they_are_called_and_where_they_are_from(
    monkeypatch, labels, tmp_path
):
    """The type is that of the first layer; the file's own words of its origin are kept."""
    asked, told = [], []
    monkeypatch.setattr(
        vectors, "run", lambda *given, **how: asked.append((given, how))
    )
    monkeypatch.setattr(vectors, "remark", lambda *given: told.append(given))
    layers = {"a": torch.from_numpy(X), "b": torch.from_numpy(X).half()}
    source = {"kind": "vectors", "path": "/x.npy", "reading": "as one array"}
    given = wrap_vectors(layers, labels=labels, name="x.npy", source=source)
    job = Job(model="m", corpus="c", settings=Settings(groups=5, metrics=("drift",)))
    vectors.run_vectors(given, job, tmp_path, progress="p", resume=True)
    (((made, output), how),) = asked
    subject, opened = how.pop("subject"), how.pop("reading")
    assert (output, how) == (tmp_path, {"progress": "p", "resume": True})
    assert (made.model, made.corpus, made.dtype, made.device) == ("x.npy", "vectors", "float64", "cpu")  # fmt: skip
    assert made.settings.groups == 5 and subject.name == "x.npy"
    assert source.items() <= opened.corpus.items() and opened.corpus["layers"] == ["a", "b"]  # fmt: skip
    assert opened.corpus["name"] == "vectors" and told == [("p", "as one array")]
    assert (opened.more is None) == (labels is None)
    if opened.more is not None:
        assert opened.more.args == (given, made)


# ---- facts of a run --------------------------------------------------------------------------------------------------


def test_type_and_device_are_those_of_the_weights():
    def resolve(model, **given):
        found = running.resolve_dtype_and_device(
            Job(model="m", **given), SimpleNamespace(model=model)
        )
        return found.dtype, found.device

    model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    assert resolve(model, dtype="auto", device="auto") == ("bfloat16", "cpu")
    assert resolve(model, dtype="float32", device="auto") == ("float32", "cpu")
    model.quantization_method = "q"
    assert resolve(model, dtype="float32", device="auto") == ("bfloat16", "cpu")
    assert resolve(torch.nn.ReLU(), dtype="auto", device="auto") == ("auto", "cpu")
    assert resolve(torch.nn.ReLU(), dtype="auto", device="cuda") == ("auto", "cuda")
    mixed = torch.nn.Sequential(torch.nn.Linear(2, 2).to("meta"), torch.nn.Linear(2, 2).double())  # fmt: skip
    assert resolve(mixed, dtype="auto", device="auto") == ("float64", "cpu")


def test_a_manifest_has_the_facts_of_model_and_corpus(monkeypatch):
    asked = []
    monkeypatch.setattr(running, "identify_units", lambda *given: asked.append(given) or "u")  # fmt: skip
    monkeypatch.setattr(running, "rank_and_world", lambda: (1, 3))
    model = torch.nn.Linear(3, 2)
    subject = SimpleNamespace(
        model=model, revision="r", weights_sha256="w", notes=("of the model",),
        config=SimpleNamespace(_attn_implementation="sdpa"),
    )  # fmt: skip
    plan = [None] * 4
    plan = type("P", (list,), {"tokens": [1, 10, 100, 1000], "fingerprint": "f", "tokens_hash": "t"})(plan)  # fmt: skip
    reading = running.OpenedCorpus(plan, {"name": "c", "warnings": ["of the corpus"]})
    job = Job(model="m", split="test", sequences=7, dtype="bfloat16")
    facts = running._collect_facts(subject, job, reading, {0, 2})
    assert facts["corpus"] == {"name": "c", "warnings": ["of the corpus"], "n_tokens": 101, "n_batches": 4}  # fmt: skip
    assert facts["notes"] == ["of the model", "of the corpus"]
    assert (facts["model"], facts["revision"], facts["weights_sha256"]) == (
        "m",
        "r",
        "w",
    )
    assert (facts["architecture"], facts["parameters"]) == ("Linear", 8)
    assert (facts["backend"], facts["dtype"], facts["device"]) == ("sdpa", "bfloat16", "cpu")  # fmt: skip
    assert (facts["processes"], facts["plan"], facts["tokens_hash"]) == (3, "f", "t")
    assert facts["settings"]["sequences"] == 7 and facts["units"] == "u"
    ((corpus, given, settings),) = asked
    assert (corpus["sequences"], corpus["split"]) == (7, "test")
    assert given is plan and settings is job.settings


@pytest.mark.parametrize(
    ("modality", "given", "own"),
    [
        ("text", {"shard": (1, 3)}, True),
        ("text", {}, False),
        ("image", {"shard": (1, 3)}, False),
        ("text", {"shard": (1, 3), "sequences": 5}, False),
        ("text", {"shard": (1, 3), "settings": Settings(panel=("alignment",))}, False),
    ],
)
def test_shards_of_texts_read_files_of_their_own(monkeypatch, modality, given, own):
    asked = []
    monkeypatch.setattr(running, "read_by_files", lambda *a, **how: asked.append((a, how)) or True)  # fmt: skip
    job = Job(model="m", column="c", skip_bad=True, documents="line", limit=4, **given)
    assert running.reads_own_files(job, "corpus", modality) is own
    if own:
        how = {"column": "c", "limit": 4, "skip_bad": True, "documents": "line"}
        assert asked == [(("corpus", (1, 3)), how)]


# ---- kernels ---------------------------------------------------------------------------------------------------------


def test_the_difference_of_two_tensors():
    t = torch.tensor
    difference = on_chip.compute_difference
    assert difference(t([1.0, -4.0]), t([1.0, -4.0])) == 0
    assert difference(t([1.0, -3.0]), t([1.0, -4.0])) == 0.25
    assert difference(t([0.0, 9.0]), t([2.0, 9.0]), t([0.0, 1.0])) == 0
    assert difference(t([0.0, 9.0]), t([2.0, 9.0]), t([1.0])) == pytest.approx(2 / 9)
    assert difference(t([math.nan, 1]), t([math.inf, 1])) == 0
    for found, expected in (([math.nan, 1], [1, 1]), ([1, 1], [math.inf, 1])):
        assert difference(t(found), t(expected)) == math.inf
    assert difference(t([math.nan]), t([math.nan])) == 0.0
    assert difference(t([1.0]), t([0.0])) == pytest.approx(1e30)


def test_kernels_that_fail_or_differ_are_not_used(monkeypatch):
    monkeypatch.setattr(on_chip, "CHECKED", {})
    right = {"n": torch.tensor([2.0, 0]), "x": torch.tensor([5.0, 7])}
    nearly = {"n": right["n"], "x": right["x"] * (1 + 5e-5)}
    wrong = {"n": right["n"], "x": right["x"] * 1.01}
    elsewhere = {"n": right["n"], "x": torch.tensor([5.0, 999])}

    def compute(form, kernel, counts=None):
        return on_chip.compute_checked((form,), kernel, lambda: right, what="sums", counts=counts)  # fmt: skip

    assert compute("a", lambda: nearly) is right
    assert compute("a", lambda: nearly) is nearly
    with pytest.warns(
        RuntimeWarning, match=r"sums are computed by plain .*x by 1.0e-02 of"
    ):
        assert compute("b", lambda: wrong) is right
    assert compute("b", lambda: wrong) is right
    with pytest.warns(RuntimeWarning, match="slower: ZeroDivisionError: division"):
        assert compute("c", lambda: 1 / 0) is right
    assert compute("d", lambda: elsewhere, "n") is right
    assert compute("d", lambda: elsewhere, "n") is elsewhere
    right_ones = {name for (_, name), is_right in on_chip.CHECKED.items() if is_right}
    assert len(on_chip.CHECKED) == 4 and right_ones == {"a", "d"}


@pytest.mark.parametrize(
    ("dtype", "device", "interpreted", "there", "runs"),
    [
        (torch.float32, "cuda", "", True, True),
        (torch.bfloat16, "cpu", "1", True, True),
        (torch.float32, "cuda", "1", True, False),
        (torch.float32, "cpu", "", True, False),
        (torch.float64, "cuda", "", True, False),
        (torch.float32, "cuda", "", False, False),
    ],
)
def test_where_kernels_run(monkeypatch, dtype, device, interpreted, there, runs):
    monkeypatch.setenv(on_chip.INTERPRETED, interpreted)
    monkeypatch.setattr(on_chip, "load_kernels", lambda _: object() if there else None)
    x = SimpleNamespace(dtype=dtype, device=SimpleNamespace(type=device))
    assert on_chip.has_kernels(x, "m") is runs
