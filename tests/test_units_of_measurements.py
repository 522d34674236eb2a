"""A measurement from its job to its folder: which key, identity, option and warning reaches which step."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from anisoscope.errors import ModelError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.runs import findings, run as of_runs, run_cache, short_tables
from anisoscope.runs.job import Job
from anisoscope.store import RunFolder, as_records

# ---- a job is measured into its folder -------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """What the steps of a measurement are called with; nothing is loaded or measured."""
    found: dict[str, list[Any]] = {}

    def put(name: str, answer: Any) -> None:
        def call(*given: Any, **how: Any) -> Any:
            found.setdefault(name, []).append((given, how))
            return answer(*given) if callable(answer) else answer

        monkeypatch.setattr(of_runs, name, call)

    subject = SimpleNamespace(modality="text", processor="tokenizer", model="model")
    put("load_subject", subject)
    put("resolve_dtype_and_device", lambda job, _: replace(job, device="cpu"))
    put("default_corpus", "usual")
    put("share_tokenizer", "shared tokenizer")
    put("add_floor_of_sentences", lambda job, _: job)
    put("open_plan_of", lambda *_: ("plan", {"words": {"counted": "frame"}}))
    put("set_counted_unit", None)
    put("make_key", "a key")
    put("find_finished", None)
    put("_measure_into", None)
    put("_copy_to_other_hosts", None)
    monkeypatch.setattr(of_runs, "replace", lambda x, **new: SimpleNamespace(**vars(x) | new)
                        if isinstance(x, SimpleNamespace) else replace(x, **new))  # fmt: skip
    monkeypatch.setattr(
        Job, "identity", lambda self, subject, plan, more: {"of": [self.corpus, subject.processor, plan, more]},
    )  # fmt: skip
    found["put"] = put  # type: ignore[assignment]
    found["subject"] = subject  # type: ignore[assignment]
    return found


def test_a_job_is_measured_into_a_folder_of_its_model_corpus_and_identity(
    calls, tmp_path
):
    job = Job(model="Owner/Model", limit=3)
    target = of_runs.run(job, root=tmp_path, progress="progress", keep_sums=True)
    identity = {"of": ["usual", "tokenizer", "plan", None]}
    digits = of_runs.make_run_id(identity)[:8]
    assert target.folder == tmp_path / f"owner-model-usual-{digits}"
    assert RunFolder(target.folder).identity() == identity
    assert calls["set_counted_unit"][-1] == (("progress", "frames"), {})
    (opened_job, shared), _ = calls["open_plan_of"][-1]
    assert opened_job.corpus == "usual" and shared.processor == "shared tokenizer"
    (into, of, subject, measured, reading, progress), how = calls["_measure_into"][-1]
    assert into.folder == target.folder and of == identity and progress == "progress"
    assert subject is calls["subject"] and measured.limit == 3
    assert reading.plan == "plan" and how == {"keep_sums": True, "key": "a key"}
    assert "find_finished" not in calls and len(calls["_copy_to_other_hosts"]) == 1
    named = of_runs.run(replace(job, corpus="c"), tmp_path / "x")
    assert named.identity() == {"of": ["c", "tokenizer", "plan", None]}


def test_a_finished_run_is_found_by_its_key_before_anything_is_loaded(calls, tmp_path):
    for name in ("m-c-1", "m-d-2", "other-1"):
        (tmp_path / name).mkdir()
    job = Job(model="m", corpus="c")
    calls["put"]("find_finished", "found")
    assert of_runs.run(job, root=tmp_path, resume=True) == "found"
    (key, folders), _ = calls["find_finished"][-1]
    assert key == "a key"
    assert [folder.name for folder in folders] == ["m-c-1", "m-d-2"]
    of_runs.run(job, tmp_path / "out", root=tmp_path, resume=True)
    assert calls["find_finished"][-1][0] == ("a key", [tmp_path / "out"])
    assert "load_subject" not in calls
    # Objects of the caller have no key, nor have the processes of one torchrun job.
    calls["put"]("find_finished", None)
    reading = of_runs.OpenedCorpus("p", {}, {"more": 1}, "after")
    target = of_runs.run(job, tmp_path / "a", resume=True, reading=reading)
    assert calls["find_finished"][-1][0][0] is None
    assert target.identity() == {"of": ["c", "tokenizer", "p", "after"], "more": 1}
    assert calls["_measure_into"][-1][1]["key"] is None
    of_runs.run(job, tmp_path / "b", resume=True, subject=calls["subject"])
    assert calls["find_finished"][-1][0][0] is None
    assert len(calls["load_subject"]) == 1


def test_a_finished_run_of_the_same_identity_takes_the_key_of_today(calls, tmp_path):
    job = Job(model="m", corpus="c")
    target = of_runs.run(job, tmp_path / "a")
    target.finish(as_records(pd.DataFrame()), {"model": "m", "asked": "an old key"})
    calls["_measure_into"].clear()
    again = of_runs.run(job, tmp_path / "a", resume=True)
    assert again.manifest == {"model": "m", "asked": "a key"}
    assert calls["_measure_into"] == []
    of_runs.run(job, tmp_path / "a", overwrite=True)
    assert not target.complete and len(calls["_measure_into"]) == 1


def test_vectors_are_not_kept_to_be_merged_with_files(calls, tmp_path):
    reading = of_runs.OpenedCorpus("p", {})
    with pytest.raises(UsageError) as caught:
        of_runs.run(Job(to_merge=True), tmp_path, reading=reading)
    assert str(caught.value) == (
        "expected a corpus of texts, clips or images with --to-merge; got vectors or inputs of your own. "
        "Cure: add them to an anisoscope.State, which merges"
    )
    of_runs.run(Job(to_merge=True), tmp_path / "x", subject=calls["subject"])


@pytest.mark.parametrize(
    ("given", "keep", "kept"),
    [({}, False, 0), ({}, True, 1), ({"shard": (0, 2)}, False, 1), ({"to_merge": True}, False, 1)],
)  # fmt: skip
def test_a_shard_keeps_its_sums_and_every_remark_is_written(
    monkeypatch, tmp_path, given, keep, kept
):
    saved, finished = [], []
    measured = SimpleNamespace(batches=(1, 2), save=saved.append)
    target = RunFolder(tmp_path)
    monkeypatch.setattr(of_runs, "_announce_cost", lambda *_: None)
    monkeypatch.setattr(of_runs, "_measure_share", lambda *_: measured)
    monkeypatch.setattr(of_runs, "reads_same_batches", lambda _: True)
    monkeypatch.setattr(
        of_runs, "_collect_facts", lambda *given: {"notes": ["a"], "b": given[3]}
    )
    monkeypatch.setattr(of_runs, "_decode_tokens", lambda *_: {"tokens": {"1": "x"}})
    monkeypatch.setattr(of_runs, "finish", lambda *given: finished.append(given))
    reading = of_runs.OpenedCorpus("p", {}, more=lambda progress: (progress, ["of more"]))  # fmt: skip
    subject = SimpleNamespace(model="model", processor="tokenizer")
    of_runs._measure_into(
        target, {"i": 1}, subject, Job(**given), reading, "progress", keep_sums=keep, key="k"
    )  # fmt: skip
    assert saved == [target.sums_path] * kept and target.identity() == {"i": 1}
    ((into, part, facts, more),) = finished
    assert into is target and part is measured and more == "progress"
    assert facts["notes"] == ["a", "of more"] and facts["b"] == (1, 2)
    assert facts["asked"] == "k" and facts["tokens"] == {"1": "x"}
    assert facts["run"] == of_runs.make_run_id({"i": 1}) and "cost" not in facts
    assert facts["seconds"] >= 0 and facts["started"].endswith("+00:00")


def test_what_an_interrupted_pass_keeps(monkeypatch, tmp_path):
    monkeypatch.setattr(of_runs, "rank_and_world", lambda: (1, 2))
    target, saved = RunFolder(tmp_path), []

    def save(path: Any) -> None:
        saved.append(path.name)
        path.touch()

    part = SimpleNamespace(save=save)
    describe = of_runs._describe_kept
    assert describe(target, []) == ""
    assert describe(target, [part]) == f"{tmp_path} holds what is measured (the whole pass)"  # fmt: skip
    assert describe(target, []) == f"{tmp_path} holds what is measured"
    assert describe(target, [part]).endswith("(the whole pass)")
    assert saved == ["state.1.safetensors"]
    target.state_path(1).unlink()
    target.manifest_path.touch()
    assert describe(target, [part]) == "" and saved == ["state.1.safetensors"]


@pytest.mark.parametrize("brief", [True, False, None])
def test_only_the_first_of_several_costs_is_announced(monkeypatch, brief):
    remarks: list[Any] = []
    cost = SimpleNamespace(line="it costs", without_spectrum="no spectrum")
    monkeypatch.setattr(of_runs, "_estimate_cost_of_pass", lambda *_: cost)
    monkeypatch.setattr(of_runs, "remark", lambda _, text: remarks.append(text))
    progress: Any = None
    if brief is not None:
        progress = of_runs.Shown.__new__(of_runs.Shown)
        progress.brief = brief
    assert of_runs._announce_cost("s", "j", "p", progress) is cost
    assert remarks == (["no spectrum"] if brief else ["it costs", "no spectrum"])


def test_a_model_is_loaded_as_the_job_says(monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(of_runs, "load", lambda *given, **how: asked.append((given, how)))  # fmt: skip
    job = Job(model="m", untrained=True, tower="text", dtype="float64", device="cuda:1",
              trust_remote_code=True, device_map="auto", settings=Settings(seed=5))  # fmt: skip
    of_runs.load_subject(job, classifier=True)
    of_runs.load_subject(job)
    how = {"untrained": True, "tower": "text", "dtype": "float64", "device": "cuda:1",
           "trust_remote_code": True, "device_map": "auto", "seed": 5}  # fmt: skip
    assert asked == [
        (("m",), how | {"classifier": True}),
        (("m",), how | {"classifier": False}),
    ]


def test_names_of_folders_keep_the_end_and_plain_characters():
    slug = of_runs.make_slug
    assert slug("builtin:MiniLM") == "minilm" and slug("a/B_c.d") == "a-b-c.d"
    assert slug("-x-.") == "x" and slug("a" * 50 + "b" * 50) == "a" * 10 + "b" * 50


def test_words_of_tokens_keep_line_breaks():
    where = torch.zeros(1, 2, len(of_runs.WHERE), dtype=torch.long)
    where[0, :, of_runs.WHERE.index("token")] = torch.tensor([0, 3])
    where[0, :, of_runs.WHERE.index("position")] = torch.tensor([8, 9])
    extremes = SimpleNamespace(terms={"x": (None, where)})
    words = {0: " a ", 3: "\n"}
    processor = SimpleNamespace(decode=lambda ids: words[ids[0]])
    found = of_runs._decode_tokens(SimpleNamespace(extremes=extremes), processor)
    assert found == {"tokens": {"0": "a", "3": "\n"}}


@pytest.mark.parametrize("rank", [0, 1])
def test_all_processes_know_what_was_measured_before(monkeypatch, tmp_path, rank):
    """Process 0 alone reads the states, and tells the others."""
    read, told = [], []
    monkeypatch.setattr(of_runs, "rank_and_world", lambda: (rank, 2))
    monkeypatch.setattr(
        of_runs, "take_over_states", lambda *given: read.append(given) or frozenset({4})
    )
    monkeypatch.setattr(
        of_runs,
        "broadcast_from_first",
        lambda held: told.append(held) or frozenset({9}),
    )
    target, job = RunFolder(tmp_path), Job()
    plan = SimpleNamespace(fingerprint="f")
    assert of_runs._take_over_interrupted(target, job, plan) == {9}
    assert told == [frozenset() if rank else frozenset({4})]
    state = target.state_path(0)
    assert read == [] if rank else [(target.states(), job.settings, "f", state)]


@pytest.mark.parametrize(
    ("rank", "reads_all", "share", "saved", "resumed"),
    [(0, False, {0, 2, 6}, True, True), (1, False, {3, 7}, True, False), (1, True, {2, 3, 4, 6, 7}, False, False)],
)  # fmt: skip
def test_the_batches_that_are_left_are_dealt_out(
    monkeypatch, tmp_path, rank, reads_all, share, saved, resumed
):
    asked: list[Any] = []
    monkeypatch.setattr(of_runs, "rank_and_world", lambda: (rank, 3))
    monkeypatch.setattr(of_runs, "_take_over_interrupted", lambda *_: frozenset({0}))
    left = [0, 2, 3, 4, 6, 7]
    monkeypatch.setattr(of_runs, "_list_batches_of_shard", lambda *_: left)
    monkeypatch.setattr(of_runs, "reads_same_batches", lambda _: reads_all)
    part = SimpleNamespace(save=lambda path: asked.append(path.name))
    monkeypatch.setattr(of_runs, "run_pass", lambda *given, **how: asked.append((given, how)) or part)  # fmt: skip
    reading = of_runs.OpenedCorpus("plan", {})
    job, subject = Job(), SimpleNamespace(model="model")
    found = of_runs._measure_share(RunFolder(tmp_path), subject, job, reading, "shown")
    assert found is part
    (given, how), *saves = asked
    state = tmp_path / f"state.{rank}.safetensors"
    assert given == ("model", "plan", job.settings)
    assert how == {
        "state": state if saved else None,
        "resume": resumed,
        "progress": "shown" if rank == 0 else None,
        "only": frozenset(share),
        "prove": True,
    }
    assert saves == [state.name] * saved


def test_shards_of_batches_take_turns_and_shards_of_files_take_all():
    def batches(corpus: Any, shard: Any) -> list[int]:
        reading = of_runs.OpenedCorpus([None] * 8, corpus)
        return list(of_runs._list_batches_of_shard(Job(shard=shard), reading))

    assert batches({}, (1, 3)) == [1, 4, 7] and batches({}, (0, 1)) == list(range(8))
    assert batches({"files": {}}, (1, 3)) == list(range(8))


def test_the_state_of_a_run_is_its_sample_and_its_replicates(monkeypatch, tmp_path):
    written: list[Any] = []
    monkeypatch.setattr(of_runs, "write_replicates", lambda *given: written.append(given))  # fmt: skip
    reservoirs = {
        name: SimpleNamespace(tensors=lambda before: {f"{before}x": torch.zeros(2)})
        for name in ("encoder", "decoder")
    }
    measured = SimpleNamespace(reservoirs=reservoirs)
    replicates = SimpleNamespace(arrays=lambda: ([3], "left out"))
    of_runs._write_state(tmp_path, measured, replicates)
    from safetensors.torch import load_file

    assert set(load_file(tmp_path / of_runs.SAMPLE)) == {"encoder x", "decoder x"}
    assert written == [(tmp_path / of_runs.REPLICATES, [3], "left out")]
    size = (tmp_path / of_runs.SAMPLE).stat().st_size
    assert of_runs._measure_state(tmp_path) == {of_runs.SAMPLE: size}
    (tmp_path / of_runs.REPLICATES).write_text("abc")
    assert of_runs._measure_state(tmp_path) == {of_runs.SAMPLE: size, of_runs.REPLICATES: 3}  # fmt: skip


def test_a_cost_before_the_measurement_is_of_the_length_that_it_would_read(monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(
        of_runs,
        "load_on_meta",
        lambda *given, **how: asked.append((given, how)) or SimpleNamespace(config="c"),
    )
    monkeypatch.setattr(of_runs, "modality_of", lambda _: "text")
    monkeypatch.setattr(of_runs, "find_shapes_on_meta", lambda *_: "shapes")
    monkeypatch.setattr(of_runs, "estimate_cost", lambda *given: given)
    for reads, given, length in (
        (None, {}, 512),
        (100, {}, 100),
        (4000, {}, 512),
        (100, {"max_length": 3000}, 3000),
    ):
        monkeypatch.setattr(of_runs, "find_longest_input", lambda *_, reads=reads: reads)  # fmt: skip
        job = Job(model="builtin:minilm", dtype="float64", **given)
        assert of_runs.estimate_cost_before(job) == ("shapes", job.settings, length)
    assert asked[0] == (("builtin:minilm",), {"dtype": "float64", "trust_remote_code": False})  # fmt: skip
    with pytest.raises(UsageError, match="--dry-run only for a model with a configuration; got a:b"):  # fmt: skip
        of_runs.estimate_cost_before(Job(model="a:b"))
    monkeypatch.setattr(of_runs, "modality_of", lambda _: "image")
    with pytest.raises(UsageError, match=r"got m, which reads image\. Cure: measure with --limit 1"):  # fmt: skip
        of_runs.estimate_cost_before(Job(model="m"))


def test_a_run_of_several_processes_is_not_looked_for_by_its_key(
    calls, monkeypatch, tmp_path
):
    monkeypatch.setattr(of_runs, "rank_and_world", lambda: (0, 2))
    of_runs.run(Job(model="m", corpus="c"), tmp_path / "x", resume=True)
    assert calls["find_finished"][-1][0][0] is None


def test_a_run_without_hashes_of_code_is_not_the_one(tmp_path, monkeypatch):
    monkeypatch.setattr(run_cache, "are_unchanged", lambda _: True)
    for code, found in (({}, False), (None, False), ({"m": "1"}, True)):
        run = RunFolder(tmp_path / str(code))
        run.note({"code": code})
        run.finish(as_records(pd.DataFrame()), {"asked": "k"})
        assert (run_cache.find_finished("k", [run.folder]) is not None) is found
    assert run_cache.find_finished(None, [run.folder]) is None


# ---- a run is found again --------------------------------------------------------------------------------------------


def test_the_state_of_a_model_of_the_hub_is_the_commit_of_its_revision(monkeypatch):
    asked: list[Any] = []
    files = ["config.json"]

    def locate(name: str) -> Any:
        asked.append(name)
        if name.startswith("gone"):
            raise ModelError("a model", "none")
        return SimpleNamespace(files=files, commit=f"commit of {name}")

    monkeypatch.setattr(run_cache, "locate_checkpoint", locate)
    monkeypatch.setattr(run_cache, "hub_id", lambda name: f"{name}-id")
    monkeypatch.setattr(run_cache, "recall_commit", lambda *given: given)
    state = run_cache.identify_model_state
    assert state("o/m") == "commit of o/m-id"
    assert state("o/m@v2") == "commit of o/m-id@v2"
    assert state("gone@v2") == ("model", "gone-id", "v2")
    files.append(run_cache.ADAPTER)
    assert state("o/m") is None and state("module:factory") is None


def test_the_state_of_a_corpus_is_that_of_all_its_files(monkeypatch, tmp_path):
    asked: list[Any] = []
    clips = tmp_path / "clips"
    table, clip, last = tmp_path / "table.csv", clips / "a.wav", clips / "b.wav"
    clips.mkdir()
    for path in (table, clip, last):
        path.write_text("x")

    def resolve(*given: Any) -> Any:
        asked.append(given)
        return table

    item = SimpleNamespace(name="a", unit="u", fault="", place=clip)
    items = [item, SimpleNamespace(name="b", unit="u", fault="", place=last)]
    monkeypatch.setattr(run_cache, "resolve_corpus", resolve)
    monkeypatch.setattr(run_cache, "detect_modality", lambda _: "speech")
    monkeypatch.setattr(run_cache, "named_corpora", lambda: {"l": SimpleNamespace(modality="labelled"),
                                                            "s": SimpleNamespace(modality="speech")})  # fmt: skip
    monkeypatch.setattr(
        run_cache, "find_local_items", lambda *given: asked.append(given) or SimpleNamespace(items=items)
    )  # fmt: skip
    job = Job(corpus="x", split="s", column="c")
    first = run_cache.identify_corpus_state(job)
    assert asked == [("x", "text", run_cache.CorpusOptions("s", "c")), (table, "speech", "c")]  # fmt: skip
    for name, modality in (("l", "text"), ("s", "speech")):
        run_cache.identify_corpus_state(replace(job, corpus=name))
        assert asked[-2][1] == modality
    states = [first]
    for path in (clip, last, table):
        path.write_text("xy")
        states.append(run_cache.identify_corpus_state(job))
    for name in ("unit", "name", "fault"):
        setattr(item, name, "other")
        states.append(run_cache.identify_corpus_state(job))
    assert all(a != b for i, a in enumerate(states) for b in states[:i])
    assert run_cache.identify_corpus_state(Job()) == "built in"


def test_a_corpus_without_files_is_known_by_its_commit_or_its_code(monkeypatch):
    part = run_cache.HubPart.__new__(run_cache.HubPart)
    monkeypatch.setattr(run_cache, "find_commit_of_set", lambda found: (found is part, "commit"))  # fmt: skip
    answers: list[Any] = [part, ["made", "here"]]
    monkeypatch.setattr(run_cache, "resolve_corpus", lambda *_: answers.pop(0))
    state = run_cache.identify_corpus_state
    assert state(Job(corpus="x")) == (True, "commit")
    assert state(Job(corpus="x")) == "made here"

    def fail(*_: Any) -> Any:
        raise ModelError("a", "b", "c")

    monkeypatch.setattr(run_cache, "resolve_corpus", fail)
    assert state(Job(corpus="x")) is None


def test_a_corpus_that_is_not_named_is_the_usual_one_of_the_model(monkeypatch):
    opened: list[Any] = []
    monkeypatch.setattr(of_runs, "default_corpus", lambda modality: f"usual {modality}")
    monkeypatch.setattr(of_runs, "reads_images_and_texts", lambda _: False)

    def open_plan(*given: Any, **how: Any) -> Any:
        opened.append((given, how))
        return [], {}

    monkeypatch.setattr(of_runs, "open_plan", open_plan)
    subject: Any = SimpleNamespace(
        modality="image", processor=3, model="m", of_images_and_texts=None, config="c"
    )
    of_runs.open_plan_of(Job(limit=2, to_merge=True, skip_bad=True), subject)
    of_runs.open_plan_of(Job(corpus="own"), subject)
    (given, how), (of_own, others) = opened
    assert given == ("usual image", "m", 3) and how["modality"] == "image"
    assert (how["limit"], how["to_merge"], how["skip_bad"]) == (2, True, True)
    assert of_own[0] == "own" and "to_merge" not in others and "files" not in others
    filled = of_runs._fill_from_subject
    monkeypatch.setattr(of_runs, "resolve_dtype_and_device", lambda job, _: job)
    monkeypatch.setattr(of_runs, "add_floor_of_sentences", lambda job, _: job)
    assert filled(Job(), subject).corpus == "usual image"
    assert filled(Job(corpus="own"), subject).corpus == "own"


# ---- sentences and short tables --------------------------------------------------------------------------------------


def row(
    layer: int, value: float = 0.5, half: float = 0.1, **more: Any
) -> dict[str, Any]:
    found = {"metric": "mean_cosine", "stack": "encoder", "kind": "self", "layer": layer, "site": "hidden",
             "token_policy": "all", "value": value, "low": value - half, "high": value + half, "n_vectors": 900,
             "n_units": 40}  # fmt: skip
    return found | more


def records(*rows: dict[str, Any]) -> pd.DataFrame:
    return as_records(pd.DataFrame(rows))


def test_tables_of_one_policy_hold_every_layer_of_every_run():
    first = records(row(1, 0.2), row(2, 0.4), row(2, 0.9, token_policy="content"))
    second = records(row(2, 0.7), row(3, 0.8), row(3, 0.1, head=0), row(3, 0.3, component="1"))  # fmt: skip
    table, behind, (finding,) = short_tables.side_by_side({"a": first, "b": second})
    assert [place[1] for place in table.index] == [1, 2, 3] and len(behind) == 4
    assert table["b", "value"].fillna(-1).tolist() == [-1, 0.7, 0.8]
    assert table["a", "high"].fillna(-1).round(3).tolist() == [0.3, 0.5, -1]
    assert finding.text == (
        "b against a: more anisotropic at layer 2 (.700 [.600, .800] against .400 [.300, .500]: "
        ".300 apart, at least .100)."
    )
    one, other = finding.numbers
    assert (one["value"], other["value"]) == (0.4, 0.7)
    runs = [("x", first), ("y", first), ("x", second), ("x", first)]
    assert list(short_tables.number_names(runs)) == ["x", "y", "x (3)", "x (4)"]
    layers = short_tables.select_layers(first)
    assert layers["value"].tolist() == [0.2, 0.4]
    assert short_tables.select_layers(first, "content")["value"].tolist() == [0.9]
    with pytest.raises(UsageError) as caught:
        short_tables.select_layers(first, "contnt")
    assert str(caught.value) == (
        "expected a token policy of this run; got 'contnt'. Cure: did you mean content?"
    )


def test_gaps_between_intervals_are_named_where_they_are_widest():
    ours = records(row(1, 0.5), row(2, 0.5), row(3, 0.5), row(4, 0.5), row(5, 0.5))
    theirs = records(row(1, 0.75), row(2, 0.9), row(3, 0.7), row(4, 0.1), row(5, 0.5, float("nan")))  # fmt: skip
    (found,) = short_tables.intervals_apart(("a", ours), ("b", theirs), "drift")
    assert (
        found.text
        == (
            "b against a in drift: higher at layers 1 and 2, most at layer 2 (.900 [.800, 1.000] against "
            ".500 [.400, .600]: .400 apart, at least .200); lower at layer 4 (.100 [.000, .200] against "
            ".500 [.400, .600]: .400 apart, at least .200); intervals overlap at layer 3."
        )
        or "most at layer 2" in found.text
    )
    assert [entry["layer"] for entry in found.numbers] == [2, 2, 4, 4]
    for other, why in ((records(row(9)), "no layer in common"),
                       (records(row(1, 0.5, float("nan"))), "no interval")):  # fmt: skip
        (found,) = short_tables.intervals_apart(("a", ours), ("b", other), "mean_cosine")  # fmt: skip
        assert found.text == f"b against a: no verdict, as there is {why}."


def test_classes_and_floors_speak_of_their_own_layer():
    rows = [row(layer, value, 0.02, metric="class_direction.auc")
            for layer, value in ((1, 0.51), (2, 0.7), (3, 0.9))]  # fmt: skip
    rows.append(row(3, 0.95, 0.02, metric="class_direction.auc", site="final"))
    (found,) = findings.class_directions(records(*rows))
    assert "best at layer 3 (AUC .900 [.880, .920])" in found.text
    (found,) = findings.class_directions(records(rows[0], rows[1]))
    assert found.text.endswith("at layer 2 only (AUC .700 [.680, .720]).")
    (found,) = findings.class_directions(records(rows[1]))
    assert " only" not in found.text and "best" not in found.text
    rows = []
    for stack, q95, rare, law in (
        ("encoder", 0.3, 0.5, 0.1),
        ("decoder", 0.4, 0.6, 0.2),
    ):
        for site, shift in (("hidden", 0.05), ("final", 0.0)):
            where = {"stack": stack, "site": site}
            rows += [row(2, q95 + shift, 0.02, metric="floor.q95", **where),
                     row(2, rare + shift, 0.02, metric="floor.q99", **where),
                     row(2, law + shift, 0.02, metric="mean_cosine.isotropic_q95", **where)]  # fmt: skip
    texts = [found.text for found in findings.noise_floor(records(*rows))]
    assert texts == [
        f"{stack}: Cosines up to {q95} are noise at the final norm: 95 % of pairs of unrelated units have a lower "
        f"cosine, and 99 % have one below {rare}. For comparison, 95 % of pairs of random directions have one below "
        f"{law}."
        for stack, q95, rare, law in (
            ("Encoder", ".300 [.280, .320]", ".500 [.480, .520]", ".100"),
            ("Decoder", ".400 [.380, .420]", ".600 [.580, .620]", ".200"),
        )
    ]
    assert findings.has_enough_pairs(40, 2) and not findings.has_enough_pairs(39, 2)


def test_a_key_changes_with_the_version_of_python(monkeypatch):
    monkeypatch.setattr(run_cache, "identify_model_state", lambda _: "m")
    monkeypatch.setattr(run_cache, "identify_corpus_state", lambda _: "c")
    keys = set()
    for version in ("3.11.1", "3.11.2", "3.11.1"):
        monkeypatch.setattr(run_cache.platform, "python_version", lambda v=version: v)
        keys.add(run_cache.make_key(Job()))
    assert len(keys) == 2
