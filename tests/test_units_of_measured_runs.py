"""What comparisons, atlases and cures are given: which run, model, checkpoint, layer and option reaches which step."""

import json
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.errors import MeasureError, OutputError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.runs import across, atlas, curing, measured_series, models_as_runs
from anisoscope.runs.attention import attention_table
from anisoscope.runs.differences import KeptRun
from anisoscope.runs.findings import judge_stacks
from anisoscope.runs.job import Job, ModelsOptions
from anisoscope.store import as_records
from anisoscope.sums.jackknife import jackknife_interval

NAN = float("nan")


def row(metric: str, **more: Any) -> dict[str, Any]:
    found = {"metric": metric, "stack": "encoder", "kind": "self", "layer": 1,
             "site": "hidden", "token_policy": "all", "value": 0.5, "low": 0.4,
             "high": 0.6, "n_vectors": 900, "n_units": 40}  # fmt: skip
    return found | more


def records(*rows: dict[str, Any]) -> pd.DataFrame:
    return as_records(pd.DataFrame(rows))


def kept(name: str, **manifest: Any) -> KeptRun:
    return KeptRun(name, records(row("drift")), None, "u", manifest)


# ---- layers of two runs ----------------------------------------------------------------------------------------------


def test_every_run_is_compared_with_the_first_in_its_own_groups(monkeypatch):
    asked: dict[str, list[Any]] = {"tokens": [], "readings": []}
    monkeypatch.setattr(across, "find_metric_of_pairs", lambda name: f"metric {name}")
    monkeypatch.setattr(
        across,
        "require_same_tokens",
        lambda a, b: asked["tokens"].append((a.name, b.name)),
    )
    monkeypatch.setattr(across, "_read_stacks", lambda run: f"stacks of {run.name}")
    monkeypatch.setattr(across, "_iter_readings", lambda *given: asked["readings"].append(given))  # fmt: skip
    empty: list[str] = []

    def make_table(metric: Any, _: Any) -> pd.DataFrame:
        assert metric == "metric cka"
        place = {"stack": "encoder", "layer": 1, "site": "hidden"}
        place |= {f"{name}_other": value for name, value in place.items()}
        ends = dict.fromkeys(("value", "low", "high", "n_vectors", "n_units"), 1)
        frame = pd.DataFrame([place | ends | {"metric": "cka"}])
        return frame[:0] if empty else frame

    monkeypatch.setattr(across, "_make_table", make_table)
    groups = [{"settings": {"settings": {"groups": n}}} for n in (8, 4, 16)]
    runs = [kept(name, **given) for name, given in zip("abc", groups, strict=True)]
    found = across.compare_layers(runs, "cka")
    assert tuple(found.columns) == across.COLUMNS
    assert found[["run", "against"]].values.tolist() == [["b", "a"], ["c", "a"]]
    assert asked["tokens"] == [("a", "b"), ("a", "c")]
    assert [given[1:] for given in asked["readings"]] == [
        ("stacks of a", "stacks of b", 4),
        ("stacks of a", "stacks of c", 8),
    ]
    empty.append("x")
    with pytest.raises(UsageError) as caught:
        across.compare_layers(runs[:2], "cka")
    assert str(caught.value) == (
        "expected tokens that both runs sampled; got none in a and b. "
        "Cure: measure both with the same --sample and --shard"
    )


def test_old_settings_are_read_under_their_new_names():
    assert across.settings_of(kept("a")) == {
        "groups": 32,
        "seed": 0,
        "tokens": ("all",),
    }
    old = kept("a", settings={"settings": {"policies": ["content"], "seed": 3}})
    assert across.settings_of(old) == {"groups": 32, "seed": 3, "tokens": ["content"]}


def test_the_same_tokens_are_needed_and_what_differs_is_named():
    def refused(ours: Any, theirs: Any, **how: Any) -> str:
        first, second = kept("a", **ours), KeptRun("b", kept("b").records, None, **how, manifest=theirs)  # fmt: skip
        with pytest.raises(UsageError) as caught:
            across.require_same_tokens(first, second)
        return str(caught.value)

    def measured(**settings: Any) -> Any:
        return {"plan": "p", "settings": {"settings": settings}}

    both = "expected two runs of the same tokens; got "
    assert refused(measured(seed=1), measured(seed=2)) == (
        f"{both}samples of the seeds 1 and 2. Cure: measure both with one --seed"
    )
    ours, theirs = measured(tokens=["all", "x"]), measured(tokens=["content", "x"])
    assert refused(ours, theirs) == (
        f"{both}samples of 'all' and of 'content' tokens. Cure: measure both with one --tokens"
    )
    cure = (
        "measure both on one corpus, with one --limit, --max-length and --batch-tokens; "
        "models of different tokenizers have no tokens in common"
    )
    for other, units, came in (
        ({"plan": "q"}, "u", "the same corpus as other tokens"),
        ({"plan": "q"}, "v", "other inputs"),
        ({}, "u", "the same corpus as other tokens"),
    ):
        assert refused({"plan": "p"}, other, units=units) == (
            f"{both}{came} in a and b. Cure: {cure}"
        )
    assert "the same corpus" in refused({}, {}, units="u")
    rows = {"corpus": {"name": "vectors"}}
    assert "the same corpus" in refused(rows, {}, units="u")
    assert "the same corpus" in refused({}, rows, units="u")
    more = measured(tokens=["all", "y"])
    across.require_same_tokens(kept("a", **ours), kept("b", **more))
    vectors = {"corpus": {"name": "vectors"}}
    across.require_same_tokens(kept("a", **vectors), kept("b", **vectors))


def test_a_run_without_a_sample_is_named(tmp_path):
    for sample in (None, {}):
        with pytest.raises(UsageError) as caught:
            across._read_stacks(KeptRun("b", records(row("x")), sample=sample))
        assert str(caught.value) == (
            "expected runs that kept a sample of vectors; got b, which kept none. "
            "Cure: measure it into a folder, with the panel hidden or all and --sample above 0"
        )
    with pytest.MonkeyPatch.context() as patched:
        empty = {"encoder": SimpleNamespace(hash=[])}
        patched.setattr(across, "read_sampled_stacks", lambda _: empty)
        with pytest.raises(UsageError, match="which kept none"):
            across._read_stacks(KeptRun("b", records(row("x")), sample={}))
        empty["decoder"] = SimpleNamespace(hash=[1])
        assert across._read_stacks(KeptRun("b", records(row("x")), sample={})) == empty
    with pytest.raises(UsageError) as caught:
        across.find_metric_of_pairs("drift")
    assert caught.value.expected == "a metric of two layers"
    assert caught.value.cure == "name cka or procrustes"
    (tmp_path / "x").write_text("damaged")
    with pytest.raises(
        OutputError,
        match=r"the sample of vectors of b; got .*Cure: measure it again with --overwrite",
    ):
        across._read_stacks(KeptRun("b", records(row("x")), sample=tmp_path / "x"))


def test_stacks_are_read_in_pairs_of_one_name_or_alone(monkeypatch):
    pairs: list[Any] = []
    monkeypatch.setattr(
        across,
        "read_across",
        lambda _, a, b, groups: pairs.append((a, b, groups)) or [],
    )
    metric = SimpleNamespace(reads=across.LayerPair())

    def read(ours: Any, theirs: Any) -> Any:
        pairs.clear()
        assert list(across._iter_readings(metric, ours, theirs, 5)) == []
        return list(pairs)

    both = {"encoder": "e", "decoder": "d"}
    assert read({"encoder": "a"}, {"decoder": "b"}) == [("a", "b", 5)]
    assert read({"decoder": "a"}, both) == [("a", "d", 5)]
    assert read(both, {"decoder": "b"}) == [("d", "b", 5)]
    assert read(both, {"x": 1, "encoder": "y"}) == [("e", "y", 5)]


# ---- a measured series -----------------------------------------------------------------------------------------------


def series(folder: Any, rows: list[tuple[int, int]]) -> Any:
    folder.mkdir(parents=True)
    listed = [
        {"step": step, "seed": seed, "folder": f"seed-{seed}-step-{step}-0a"}
        for seed, step in rows
    ]
    (folder / "series.json").write_text(json.dumps({"checkpoints": listed}))
    return folder


def test_checkpoints_take_the_place_of_their_series(tmp_path, monkeypatch):
    one = series(tmp_path / "one", [(0, 1000), (0, 20), (0, 300)])
    names = [str(one / f"seed-0-step-{step}-0a") for step in (20, 300, 1000)]
    expand = measured_series.expand_series
    assert expand(["a", str(one), 3]) == ["a", *names, 3]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand(["b", "~/one"]) == ["b", *names]
    two = series(tmp_path / "two", [(0, 5), (0, 7)])
    with pytest.raises(UsageError) as caught:
        expand([str(one), str(two)])
    assert str(caught.value) == (
        f"expected one series of checkpoints; got 2 ({one}, {two}). "
        f"Cure: name one checkpoint of each: {names[-1]} {two}/seed-0-step-7-0a"
    )
    three = series(tmp_path / "three", [(4, 1), (2, 1)])
    with pytest.raises(UsageError) as caught:
        expand([str(three)])
    assert str(caught.value) == (
        f"expected a series of one seed; got {three}, of the seeds 2, 4. "
        f"Cure: name the checkpoints of one seed ({three}/seed-2-step-*), or one step of every seed"
    )
    for text in (
        '{"checkpoints": 3}',
        "{",
        "{}",
        '{"checkpoints": [{"step": "x"}]}',
        "[]",
    ):
        (two / "series.json").write_text(text)
        with pytest.raises(OutputError) as error:
            expand([str(two)])
        assert str(error.value).startswith(
            f"expected the list of checkpoints in {two}; got a damaged series.json ("
        )
        assert str(error.value).endswith("). Cure: measure the series again")


def test_checkpoints_have_the_shortest_names_that_keep_them_apart(tmp_path):
    one, two = series(tmp_path / "x" / "s", []), series(tmp_path / "y" / "s", [])
    (tmp_path / "no").mkdir()

    def named(*places: Any) -> list[str]:
        runs = [kept(f"run {i}") for i in range(len(places))]
        given = [str(place) for place in places]
        return [run.name for run in measured_series.name_checkpoints(runs, given)]

    a, b = one / "seed-0-step-20-0a", one / "seed-1-step-20-0a"
    assert named(a, one / "seed-0-step-3-0a") == ["step-20", "step-3"]
    assert named(a, "model", b) == ["seed-0-step-20", "run 1", "seed-1-step-20"]
    assert named(a, two / "seed-0-step-20-0b") == ["s/step-20", "s/step-20"]
    assert named(a, two / "seed-1-step-20-0b") == [
        "s/seed-0-step-20",
        "s/seed-1-step-20",
    ]
    # Outside of a series a folder of such a name is a run like any other.
    assert named(tmp_path / "no" / "seed-0-step-20-0a", one / "other") == [
        "run 0",
        "run 1",
    ]


def test_checkpoints_that_are_not_measured_are_refused_with_the_command(
    tmp_path, monkeypatch
):
    import anisoscope.data.vector_files as files

    name = str(tmp_path / "list.txt")
    monkeypatch.setattr(measured_series, "is_series", lambda x: x == name)
    measured_series.refuse_unmeasured_series("other")
    with pytest.raises(UsageError) as caught:
        measured_series.expand_series([name])
    assert str(caught.value) == (
        f"expected single models, or a series that was measured before; got the checkpoints {name}. "
        f"Cure: anisoscope measure {name} -o series, then anisoscope compare series"
    )
    (tmp_path / "list.txt").write_text("1 2\n")
    monkeypatch.setattr(files, "holds_vectors", lambda _: True)
    measured_series.refuse_unmeasured_series(name)
    monkeypatch.setattr(files, "holds_vectors", lambda _: False)
    with pytest.raises(UsageError):
        measured_series.refuse_unmeasured_series(name)
    assert measured_series.expand_series([name]) == [name]
    assert measured_series.expand_series(["other"]) == ["other"]


# ---- models as runs --------------------------------------------------------------------------------------------------


def test_what_a_folder_or_a_name_means(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models_as_runs, "is_series", lambda name: "steps" in name)
    for name in ("begun", "done", "listed", "model", "steps", "empty"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name, file in (
        ("begun", "identity.json"),
        ("done", "manifest.json"),
        ("listed", "series.json"),
        ("model", "config.json"),
    ):
        (tmp_path / "runs" / name / file).touch()
    found = {name: models_as_runs.is_model(f"runs/{name}") for name in
             ("begun", "done", "listed", "model", "steps", "empty")}  # fmt: skip
    assert found == {"begun": False, "done": False, "listed": False, "model": True,
                     "steps": True, "empty": False}  # fmt: skip
    (tmp_path / "v.npy").touch()
    assert models_as_runs.is_model("v.npy")
    monkeypatch.setattr(
        models_as_runs,
        "suggest_path",
        lambda name, *, surely=False: (
            "runs/done" if surely and name == "runs/doen" else None
        ),
    )  # fmt: skip
    for name, cure in (
        ("runs/doen", "did you mean runs/done?"),
        ("runs/zzz", "runs has begun, done, listed"),
    ):
        with pytest.raises(OutputError) as caught:
            models_as_runs.is_model(name)
        assert str(caught.value) == (
            f"expected a run folder or a model; got {name}, which is not there. Cure: {cure}"
        )
    monkeypatch.chdir(tmp_path / "runs")
    assert models_as_runs.is_model("bert") and models_as_runs.is_model("owner/bert")
    for i in range(2):
        (tmp_path / "runs" / f"r{i}").mkdir()
        (tmp_path / "runs" / f"r{i}" / "manifest.json").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match=r"runs has begun, done, listed, r0, r1$"):
        models_as_runs.is_model("runs/zzz")
    (tmp_path / "runs" / "z9").mkdir()
    (tmp_path / "runs" / "z9" / "manifest.json").touch()
    with pytest.raises(OutputError, match=r"runs has begun, done, listed, r0, r1 …$"):
        models_as_runs.is_model("runs/zzz")


class Shown(models_as_runs.Shown):
    def __init__(self) -> None:
        self.brief = False


def test_runs_are_opened_and_models_measured_in_the_order_of_their_names(monkeypatch):
    asked: dict[str, Any] = {"checked": [], "measured": []}
    monkeypatch.setattr(models_as_runs, "is_model", lambda name: name.startswith("m"))
    monkeypatch.setattr(models_as_runs, "open_kept_run", lambda path: kept(str(path)))
    monkeypatch.setattr(
        models_as_runs, "name_checkpoints", lambda runs, names: [*runs, *names]
    )
    for name in ("refuse_unmeasured_series", "check_model", "check_corpus"):
        monkeypatch.setattr(
            models_as_runs,
            name,
            lambda x, name=name: asked["checked"].append((name, x)),
        )

    @contextmanager
    def show(_: str) -> Any:
        yield asked.setdefault("shown", Shown())

    def measure(job: Job, settings: Settings, show: Any) -> str:
        with show("x") as progress:
            asked["measured"].append(
                (job.model, job.limit, job.dtype, job.corpus, settings, progress.brief)
            )
        return f"folder of {job.model}"

    monkeypatch.setattr(models_as_runs, "find_or_measure", measure)
    how = ModelsOptions(limit=3, dtype="float64", corpus="c")
    names = ["run1", "mx/one", "run2", "builtin:m", "mz/two/"]
    found = models_as_runs.open_or_measure(names, how, ["A"], show)
    assert [getattr(run, "name", run) for run in found] == [
        "run1", "one", "run2", "builtin:m", "two", *names
    ]  # fmt: skip
    settings = Settings(panel=("hidden",))
    assert asked["measured"] == [
        ("mx/one", 3, "float64", "c", settings, False),
        ("mz/two/", 3, "float64", "c", settings, True),
    ]
    assert asked["checked"] == [
        ("refuse_unmeasured_series", "mx/one"), ("check_model", "mx/one"),
        ("refuse_unmeasured_series", "mz/two/"), ("check_model", "mz/two/"),
        ("check_corpus", "c"),
    ]  # fmt: skip
    for option, given in (("--limit", {"limit": 3}), ("--dtype", {"dtype": "float64"}), ("--corpus", {"corpus": "c"}),
                          ("--trust-remote-code", {"trust_remote_code": True})):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            models_as_runs.open_or_measure(["r"], ModelsOptions(**given), ["A"], show)
        assert str(caught.value) == (
            f"expected {option} only with a model to measure; got runs only. Cure: leave {option} out"
        )
    opened = models_as_runs.open_or_measure(["r", "s"], ModelsOptions(), ["A"], show)
    assert [getattr(run, "name", run) for run in opened] == ["r", "s", "r", "s"]


def test_a_model_is_measured_unless_its_run_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(models_as_runs, "ROOT", tmp_path)
    for name in ("m-x-1", "m-y-2", "other-1"):
        (tmp_path / name).mkdir()
    asked: dict[str, Any] = {"titles": []}
    monkeypatch.setattr(models_as_runs, "holds_vectors", lambda name: name == "v.csv")
    monkeypatch.setattr(models_as_runs, "make_key", lambda job: ("key", job))
    done: list[Any] = []

    def find(key: Any, folders: Any) -> Any:
        asked["found"] = key, [folder.name for folder in folders]
        return done[0] if done else None

    def measure(kind: str) -> Any:
        def run(*given: Any, **how: Any) -> Any:
            asked[kind] = given, how
            return SimpleNamespace(folder=f"a new {kind}")

        return run

    monkeypatch.setattr(models_as_runs, "find_finished", find)
    for kind in ("run", "run_vectors"):
        monkeypatch.setattr(models_as_runs, kind, measure(kind))
    monkeypatch.setattr(
        models_as_runs, "open_vectors", lambda *given, **how: (given, how)
    )

    @contextmanager
    def show(title: str) -> Any:
        asked["titles"].append(title)
        yield "progress"

    job, settings = Job(model="m", limit=4), Settings(panel=("hidden",))
    own = Job(model="m", limit=4, settings=settings)
    how = {"root": tmp_path, "resume": True, "progress": "progress"}
    assert models_as_runs.find_or_measure(job, settings, show) == "a new run"
    assert asked["run"] == ((own,), how)
    assert asked["found"] == (("key", job), ["m-x-1", "m-y-2"])
    done.append(SimpleNamespace(folder="an old run"))
    assert models_as_runs.find_or_measure(job, settings, show) == "an old run"
    chosen = Settings(metrics=("drift",))
    assert models_as_runs.find_or_measure(job, chosen, show) == "a new run"
    models_as_runs.find_or_measure(Job(model="m", corpus="c"), chosen, show)
    assert asked["titles"] == ["m × the built-in corpus"] * 2 + ["m × c"]
    vectors = Job(model="v.csv", split="test", columns="0-3", unit_column="u", label_column="l")  # fmt: skip
    assert (
        models_as_runs.find_or_measure(vectors, settings, show) == "a new run_vectors"
    )
    (opened, measured), given = asked["run_vectors"]
    assert given == how and measured.settings == settings and measured.split == "test"
    assert opened == (
        ("v.csv",),
        {"split": "test", "columns": "0-3", "unit_column": "u", "label_column": "l"},
    )


def test_what_is_compared_is_measured_by_panels_or_by_metrics(monkeypatch):
    asked: list[str] = []
    choose = models_as_runs.choose_settings
    assert choose(["A", "attention.entropy", "mean_cosine"]) == Settings(panel=("hidden", "attention"))  # fmt: skip
    # Procrustes is of two runs: what both sampled of their hidden states is enough.
    assert choose(["procrustes"]) == Settings(panel=("hidden",))
    named = choose(["A", "uniformity"])
    assert named.metrics == ("mean_cosine", "uniformity")
    monkeypatch.setattr(
        models_as_runs,
        "find_metric_by_name",
        lambda name: (
            asked.append(name)
            or SimpleNamespace(name=name, panel="hidden", reads=SimpleNamespace(runs=1))
        ),
    )
    choose(["my_file:A.METRIC", "attention.entropy"])
    assert asked == ["my_file:A.METRIC", "attention"]
    assert models_as_runs.name_model("builtin:minilm") == "minilm"
    assert models_as_runs.name_model("a/b/") == "b"
    assert models_as_runs.name_model("/") == "/"


# ---- layers to cure --------------------------------------------------------------------------------------------------


def opened(layers: dict[str, float], *, sequences: bool = False) -> Any:
    def block(layer: str, rows: Any) -> torch.Tensor:
        return torch.full((len(rows), 1, 2), layers[layer], dtype=torch.float32)

    return SimpleNamespace(layers=layers, are_sequences=sequences, shape=(3, 1, 2), block=block)  # fmt: skip


def test_a_layer_of_a_file_is_the_only_one_or_the_one_that_is_named():
    read = curing.read_layer_of_vectors
    several = opened({"a": 1.0, "b": 2.0})
    found = read(several, "b")
    assert found.tolist() == [[2.0, 2.0]] * 3 and found.dtype == np.float64
    assert read(opened({"a": 1.0}), None).tolist() == [[1.0, 1.0]] * 3
    for layer, text in (
        (None, "expected one layer of vectors; got 2: a, b. Cure: name it: --layer a"),
        ("c", "expected a layer among a, b; got 'c'. Cure: name one of them"),
    ):
        with pytest.raises(UsageError) as caught:
            read(several, layer)
        assert str(caught.value) == text
    with pytest.raises(UsageError) as caught:
        read(opened({"a": 1.0}, sequences=True), None)
    assert str(caught.value) == (
        "expected vectors [vector, dim]; got sequences [3, 1, 2]. Cure: pool them first: x.mean(1)"
    )


def test_the_highest_layer_is_that_of_its_own_place(tmp_path, monkeypatch):
    from anisoscope.axes import Site

    sites = [Site("encoder", 0, "hidden"), Site("encoder", 1, "hidden"), Site("decoder", 1, "hidden"),
             Site("encoder", None, "final")]  # fmt: skip
    vectors = {site: np.full((5, 2), i, np.float32) for i, site in enumerate(sites)}
    stacks = {
        name: SimpleNamespace(
            layers={s: v for s, v in vectors.items() if s.stack == name},
            unit=np.arange(5),
        )
        for name in ("encoder", "decoder")
    }
    alone: list[bool] = []

    def read(_: Any, *, alone_: bool = False, **how: Any) -> Any:
        alone.append(how.get("alone", alone_))
        return stacks

    monkeypatch.setattr(curing, "read_sampled_stacks", read)
    rows = [row("mean_cosine", layer=layer, stack=stack, site="hidden", value=value, n_vectors=n)
            for stack, layer, value, n in (("encoder", 0, 0.2, 5), ("encoder", 1, 0.4, 5), ("decoder", 0, 0.1, 8),
                                           ("decoder", 1, 0.7, 8))]  # fmt: skip
    rows.append(row("mean_cosine", layer=1, site="final", value=0.1, n_vectors=50))
    table = [records(*rows)]
    monkeypatch.setattr(
        curing, "RunFolder", lambda _: SimpleNamespace(records=table[0])
    )
    found = curing.read_layer_of_run(tmp_path)
    assert found.layer == "decoder layer 1" and found.vectors.tolist() == [[2, 2]] * 5
    assert found.vectors.dtype == np.float64 and alone == [True]
    assert found.notes == (
        "5 sampled vectors of decoder layer 1, where A is highest (another: --layer)",
        "the run measured 8 vectors: --sample keeps more of them",
    )
    named = curing.read_layer_of_run(tmp_path, "encoder 0")
    assert named.vectors.tolist() == [[0, 0]] * 5
    assert named.notes == ("5 sampled vectors of encoder layer 0 (another: --layer)",)
    final = curing.read_layer_of_run(tmp_path, "final")
    assert final.layer == "encoder final norm" and len(final.notes) == 2
    # The highest one need not come last.
    table[0] = records(rows[0], rows[1] | {"value": 0.8}, *rows[2:])
    assert curing.read_layer_of_run(tmp_path).layer == "encoder layer 1"
    table[0] = records(row("drift"))
    unknown = curing.read_layer_of_run(tmp_path)
    assert unknown.layer == list(stacks["decoder"].layers)[-1].stack + " layer 1"
    for name in stacks:
        stacks[name].layers = {}
    with pytest.raises(UsageError) as caught:
        curing.read_layer_of_run(tmp_path)
    assert str(caught.value) == (
        f"expected a sample of vectors of hidden states in {tmp_path}; got none. "
        "Cure: measure it with a panel that keeps one (--panel hidden), and --sample above 0"
    )


def test_a_layer_is_meant_by_its_words_alone():
    names = [
        "encoder layer 1",
        "decoder layer 1",
        "decoder layer 2",
        "decoder final norm",
    ]
    find = curing._find_layer
    for asked, name in (
        ("2", names[2]),
        ("layer 2", names[2]),
        ("decoder.1", names[1]),
        ("encoder layer 1", names[0]),
        ("final", names[3]),
        ("decoder final norm", names[3]),
    ):
        assert find(asked, names) == name
    with pytest.raises(UsageError) as caught:
        find("1", names)
    assert str(caught.value) == (
        "expected one layer; got '1', which is encoder layer 1 or decoder layer 1. Cure: say 'encoder layer 1'"
    )
    for asked in ("decoder", "3", "encoder 2"):
        with pytest.raises(UsageError, match="a layer of this run; got"):
            find(asked, names)


def test_folders_of_runs_are_known_by_either_file(tmp_path):
    assert not curing.is_run_folder(tmp_path)
    assert not curing.is_run_folder(tmp_path / "none")
    for name in ("identity.json", "manifest.json"):
        (tmp_path / name).touch()
        assert curing.is_run_folder(tmp_path)
        (tmp_path / name).unlink()


# ---- atlases ---------------------------------------------------------------------------------------------------------


def test_a_list_of_networks_is_read_with_defaults_and_variables(tmp_path, monkeypatch):
    path = tmp_path / "list.toml"
    monkeypatch.setenv("WHERE", "/there")
    path.write_text(
        '[defaults]\ncorpus = "$WHERE/text"\nlimit = 3\n'
        '[[network]]\nmodel = "$WHERE/m"\nfamily = "F"\nstack = "decoder"\n'
        '[[network]]\nmodel = "n"\ncorpus = "own"\nlimit = 4\nname = "N"\nmodality = "speech"\n'
    )
    first, second = atlas.read_list(path)
    assert (first.name, first.job.model, first.job.corpus) == ("/there/m", "/there/m", "/there/text")  # fmt: skip
    assert first.job.limit == 3 and first.declared == {
        "stack": "decoder", "family": "F", "model": "$WHERE/m", "corpus": "$WHERE/text"
    }  # fmt: skip
    assert (second.name, second.job.model, second.job.limit) == ("N", "n", 4)
    assert second.job.corpus == second.declared["corpus"] == "own"
    assert second.declared["modality"] == "speech"
    for text, error in (
        ('[default]\nx = 1\n[[network]]\nmodel = "m"', f"[[network]] and [defaults]; got default in {path}. "
         "Cure: did you mean defaults?"),
        ('[[network]]\nmodel = "m"\nname = "x"\n[[network]]\nmodel = "n"\nname = "x"',
         f"names that differ in {path}; got 'x' twice. Cure: give one of them another name"),
        ('[[network]]\nmodel = "m"\n[[network]]\nlimit = 0\nmodel = "n"',
         f"limit of at least 1 in network 2 of {path}; got 0. Cure: raise limit"),
        ('[[network]]\nname = "x"', f"a model in network 1 of {path}; got {{'name': 'x'}}. "
         'Cure: write model = "a hub id, a folder, builtin:…"'),
        ("network = 3", f'at least one [[network]] in {path}; got none. Cure: write [[network]], then model = "…"'),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(UsageError) as caught:
            atlas.read_list(path)
        assert str(caught.value) == f"expected {error}"
    with pytest.raises(
        UsageError,
        match=r"a list of networks in a TOML file; got .*, which does not exist",
    ):
        atlas.read_list(tmp_path / "none")


def listed(name: str, model: str = "m", **declared: str) -> atlas.Listed:
    return atlas.Listed(
        name,
        Job(model=model, corpus=declared.get("corpus", "c")),
        {"model": model, "corpus": ""} | declared,
    )


def test_an_atlas_goes_on_without_networks_that_cannot_be_measured(
    tmp_path, monkeypatch
):
    titles: list[str] = []

    @contextmanager
    def show(title: str) -> Any:
        titles.append(title)
        yield f"progress {len(titles)}"

    def measure(network: atlas.Listed, root: Any, progress: Any) -> Any:
        assert root == tmp_path / "runs" and progress == f"progress {len(titles)}"
        if network.name == "full":
            raise OutputError("to write", "a full disk")
        if network.name == "bad":
            raise MeasureError("a thing", "none", "do it")
        return SimpleNamespace(folder=tmp_path / "runs" / "deep" / network.name)

    monkeypatch.setattr(atlas, "_measure_network", measure)
    monkeypatch.setattr(
        atlas,
        "summarise_run",
        lambda _, network: iter([{"network": network.name, "weakest": 1 / 3}]),
    )
    networks = [listed("a"), listed("bad"), listed("b")]
    found = atlas.make_atlas(networks, tmp_path, show)
    assert titles == ["1 of 3, a", "2 of 3, bad", "3 of 3, b"]
    assert found.table["network"].tolist() == ["a", "b"]
    why = "expected a thing; got none. Cure: do it"
    assert found.left_out == {"bad": why}
    written = json.loads((tmp_path / "atlas.json").read_text())
    assert written == {
        "runs": {"a": "runs/deep/a", "b": "runs/deep/b"},
        "left_out": {"bad": why},
    }
    lines = (tmp_path / "atlas.csv").read_bytes().decode().split("\n")
    assert lines[0] == ",".join(atlas.COLUMNS) and "0.333333," in lines[1]
    assert atlas.read_csv(tmp_path / "atlas.csv")["network"].tolist() == ["a", "b"]
    # Of several processes the first one writes.
    for rank in (1, 0):
        (tmp_path / "atlas.json").unlink(missing_ok=True)
        monkeypatch.setattr(atlas, "rank_and_world", lambda rank=rank: (rank, 2))
        atlas.make_atlas(networks, tmp_path, show)
        assert (tmp_path / "atlas.json").exists() is (rank == 0)
    with pytest.raises(OutputError, match="a full disk"):
        atlas.make_atlas([listed("full"), listed("a")], tmp_path, show)
    with pytest.raises(MeasureError) as caught:
        atlas.make_atlas([listed("bad")], tmp_path, show)
    assert str(caught.value) == (
        f"expected at least one network that can be measured; got none of 1. Cure: bad: {why}"
    )
    (tmp_path / "atlas.csv").write_text("network,model,stack\n1,2,3\n")
    with pytest.raises(
        OutputError,
        match="without its columns corpus, modality, family\\. Cure: write it again: anisoscope atlas LIST",
    ):
        atlas.read_csv(tmp_path / "atlas.csv")


def test_a_network_is_measured_where_the_atlas_is(tmp_path, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(atlas, "run", lambda *given, **how: asked.append((given, how)))
    monkeypatch.setattr(atlas, "is_series", lambda name: name == "steps")
    atlas._measure_network(listed("a"), tmp_path, "progress")
    how = {"root": tmp_path, "resume": True, "progress": "progress"}
    assert asked == [((listed("a").job,), how)]
    for network, text in (
        (listed("a", "x/$NO/y"), "the environment variable $NO, which model names; got no such variable. "
         "Cure: set it: x/$NO/y"),
        (listed("a", corpus="$GONE/y/z"), "the environment variable $GONE, which corpus names; got no such variable. "
         "Cure: set it: $GONE/y/z"),
        (listed("a", "steps"), "one network; got the series steps. Cure: measure it with anisoscope measure"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            atlas._measure_network(network, tmp_path, "progress")
        assert str(caught.value) == f"expected {text}"


def head(number: int, value: float, metric: str, **more: Any) -> dict[str, Any]:
    place = {"head": number, "site": "attention", "token_policy": None, "value": value}
    return row(metric, **place, low=value - 0.01, high=value + 0.01, **more)


def heads_of(stack: str, kind: str, layer: int, values: list[float]) -> list[Any]:
    where = {"stack": stack, "kind": kind, "layer": layer}
    found = [head(i, x, "attention.entropy_normalised", **where) for i, x in enumerate(values)]  # fmt: skip
    return found + [
        head(i, 0.9 if x < 0.5 else 0.1, "attention.first_mass", **where)
        for i, x in enumerate(values)
    ]


def test_a_row_of_an_atlas_is_of_one_stack_and_of_self_attention(monkeypatch):
    rows = [row("mean_cosine", stack=stack, layer=layer, value=value, low=value - 0.1, high=value + 0.1)
            for stack, layer, value in (("encoder", 1, 0.2), ("encoder", 2, 0.4), ("decoder", 1, 0.6))]  # fmt: skip
    rows += heads_of("encoder", "self", 1, [0.2, 0.4])
    rows += heads_of("encoder", "self", 2, [0.45])
    rows += heads_of("decoder", "self", 1, [0.1, 0.9])
    rows += heads_of("decoder", "cross", 1, [0.3, 0.3, 0.3])
    table = records(*rows)
    replicates = np.tile(table["value"].to_numpy(float)[:, None], (1, 4))
    replicates[:, 0] += np.linspace(0, 0.1, len(table))
    monkeypatch.setattr(atlas, "read_replicates", lambda *_: replicates)
    manifest = {
        "settings": {"corpus": "read"},
        "parameters": 77,
        "architecture": "Arch",
        "corpus": {"words": {"position": "frame"}},
    }
    done = SimpleNamespace(records=table, manifest=manifest, folder="f")
    encoder, decoder = atlas.summarise_run(done, listed("a"))
    assert encoder["stack"] == "encoder" and decoder["stack"] == "decoder"
    assert (encoder["corpus"], encoder["family"], encoder["parameters"]) == ("read", "Arch", 77)  # fmt: skip
    assert encoder["modality"] == "speech" and encoder["strongest"] == 0.4
    assert (encoder["heads"], encoder["sink_heads"]) == (3, 3)
    assert encoder["entropy"] == pytest.approx(0.35)
    assert (decoder["heads"], decoder["sink_heads"]) == (2, 1)
    assert decoder["entropy"] == pytest.approx(0.5)
    own = table["metric"].eq("attention.entropy_normalised") & table["kind"].eq("self")
    means = replicates[(own & table["stack"].eq("encoder")).to_numpy(bool)].mean(0)
    ends = jackknife_interval(np.array([0.35, *means]), bounds=(0.0, 1.0))
    assert encoder["entropy_low"] == pytest.approx(float(ends.low))
    assert encoder["entropy_high"] == pytest.approx(float(ends.high))
    one = listed("a", stack="decoder", corpus="declared", family="F", modality="image")
    (only,) = atlas.summarise_run(done, one)
    assert (only["stack"], only["corpus"], only["family"], only["modality"]) == (
        "decoder",
        "declared",
        "F",
        "image",
    )
    with pytest.raises(MeasureError) as caught:
        list(atlas.summarise_run(done, listed("a", stack="vision")))
    assert str(caught.value) == (
        "expected the stack 'vision'; got encoder and decoder. Cure: name another stack, or leave stack out"
    )
    done.records = table[table["metric"].ne("mean_cosine")]
    with pytest.raises(MeasureError, match="the anisotropy A of hidden states; got none in this run"):  # fmt: skip
        list(atlas.summarise_run(done, listed("a")))
    none = atlas._summarise_attention(table[table["head"].isna()], None, "encoder")
    assert none == dict.fromkeys(("heads", "sink_heads", "entropy", "entropy_low", "entropy_high"))  # fmt: skip
    # Tables of attention have the ends of the entropy behind it, and the columns in their own order.
    layers = attention_table(table, replicates=replicates)
    assert layers.columns.tolist()[:7] == ["stack", "kind", "layer", "heads", "entropy", "low", "high"]  # fmt: skip
    heads = attention_table(table, heads=True)
    assert heads.columns.tolist()[4:8] == ["entropy", "low", "high", "first-token mass"]
    assert np.allclose(heads["high"] - heads["entropy"], 0.01)
    assert np.allclose(heads["entropy"] - heads["low"], 0.01)


def test_the_cause_and_dimensions_are_of_the_strongest_layer():
    def summary(
        *shares: tuple[str, float, float], site: str = "hidden", low: float = 0.05
    ) -> Any:
        values = {("hidden", 1): 0.3, ("hidden", 3): 0.5, ("final", 3): 0.7}
        rows = [row("mean_cosine", layer=layer, site=at, value=x, low=x - low * layer, high=x + 0.7 - 0.2 * layer)
                for (at, layer), x in values.items()]  # fmt: skip
        rows += [row("mean_cosine.isotropic_q95", layer=layer, site=at, value=0.1) for at, layer in values]  # fmt: skip
        for at, layer, n in (("hidden", 1, 3), ("hidden", 3, 4), ("final", 3, 6)):
            rows += [
                row("mean_cosine.contribution", layer=layer, site=at, component=str(i))
                for i in range(n)
            ]
        rows += [row("mean_cosine.top_share", layer=3, site=site, component=k, value=value, low=least, high=0.99)
                 for k, value, least in shares]  # fmt: skip
        rows.append(row("calibrated.centred", layer=3, value=0.3, low=0.2, high=0.4))
        (depth,) = judge_stacks(records(*rows))
        return atlas._summarise_depth(depth)

    found = summary(("1", 0.6, 0.45), ("3", 0.7, 0.5), ("10", 0.8, 0.7))
    assert found["cause"] == "3 dimensions, more than the mean"
    assert found["dimension_share"] == 0.6 and found["dimension_share_low"] == 0.45
    assert found["dimensions"] == 4 and found["layers"] == 3
    assert (found["last"], found["final"], found["weakest"]) == (0.5, 0.7, 0.3)
    ends = found["strongest_low"], found["strongest_high"]
    assert ends == (pytest.approx(0.35), pytest.approx(0.6))
    # The share of an A that may be none says nothing.
    undecided = summary(("1", 0.6, 0.5), low=0.2)
    assert undecided["verdict"] == "undecided" and undecided["cause"] == ""
    assert undecided["dimension_share"] is None
    assert summary(("1", 0.6, NAN), ("3", 0.7, 0.4))["cause"] == "more than the mean"


def test_what_a_network_reads_is_declared_known_or_seen(monkeypatch):
    monkeypatch.setattr(atlas, "list_entries_of", lambda _: {"short": SimpleNamespace(modality="speech")})  # fmt: skip
    monkeypatch.setattr(
        atlas,
        "named_models",
        lambda: {
            "x": SimpleNamespace(hub_id="o/other", modality="text"),
            "y": SimpleNamespace(hub_id="o/m", modality="image"),
        },
    )
    monkeypatch.setattr(atlas, "hub_id", lambda name: name.partition("@")[0])

    def find(model: str, words: Any = None, **declared: str) -> str:
        return atlas._find_modality(listed("a", model, **declared), {"corpus": words or {}})  # fmt: skip

    assert find("short") == "speech" and find("short", modality="z") == "z"
    assert find("o/m@main") == "image" and find("none") == "text"
    for position, word in (("frame", "speech"), ("patch", "image"), ("position", "image"), ("word", "text"),
                           ("character", "text"), ("odd", "odd")):  # fmt: skip
        assert find("none", {"words": {"position": position}}) == word
