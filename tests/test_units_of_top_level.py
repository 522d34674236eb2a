"""Small decisions of what all parts share: words and numbers, batches, run folders, settings, names that are added."""

import json
import math
import os
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from anisoscope import (
    doctor,
    errors,
    extras,
    options,
    progress,
    registry,
    renamed,
    store,
    wording,
)
from anisoscope.axes import Site, pluralise
from anisoscope.batch import Batch, Stream
from anisoscope.errors import OutputError, UsageError

NAN, INF = math.nan, math.inf


def row(value=0.5, low=NAN, high=NAN, **place):
    return SimpleNamespace(**{"value": value, "low": low, "high": high} | place)


# ---- words and numbers

WORDS = {
    wording.format_short: [
        ((0.2464,), ".246"),
        ((-0.0031,), "−.003"),
        ((-0.0004,), ".000"),
        ((9.9994,), "9.999"),
        ((9.9995,), "10.0"),
        ((999.94,), "999.9"),
        ((999.95,), "1,000"),
        ((0.126, 2), ".13"),
        ((NAN,), "–"),
        ((-INF,), "–"),
        ((None,), "–"),
    ],
    wording.format_number: [
        ((5e-4,), ".001"),
        ((4.9e-4,), "4.9 · 10⁻⁴"),
        ((-3.14e-6,), "−3.1 · 10⁻⁶"),
        ((999_999.0,), "999,999"),
        ((1e6,), "1.0 · 10⁶"),
        ((0,), ".000"),
        ((NAN,), "–"),
    ],
    wording.format_interval: [
        ((0.5, 0.25, 0.75), ".500 [.250, .750]"),
        ((0.5, 0.25, 0.75, 1), ".5 [.2, .8]"),
        ((5e-6, 4e-6, 6e-6, None), "5.0 · 10⁻⁶ [4.0 · 10⁻⁶, 6.0 · 10⁻⁶]"),
        ((0.5, NAN, 0.75), ".500"),
        ((0.5, 0.25, INF), ".500"),
        ((0.5, 0.5, 0.5), ".500"),
    ],
    wording.format_signed: [((0.034,), "+.034"), ((-0.5,), "−.500"), ((0.0,), ".000")],
    wording.format_signed_interval: [
        ((0.1, -0.2, 0.3), "+.100 [−.200, +.300]"),
        ((0.1, NAN, 0.3), "+.100"),
        ((0.1, -0.2, NAN), "+.100"),
        ((0.1, 0.1, 0.1), "+.100"),
    ],
    wording.format_measured: [
        ((row(0.5, 0.25, 0.75),), ".500 [.250, .750]"),
        ((row(5e-6, 4e-6, 6e-6), None), "5.0 · 10⁻⁶ [4.0 · 10⁻⁶, 6.0 · 10⁻⁶]"),
    ],
    wording.format_ends: [
        ((row(0, 0.25, 0.75),), "[.250, .750]"),
        ((row(0, 0.25),), ""),
        ((row(0, NAN, 0.75),), ""),
    ],
    wording.name_layer: [
        ((row(stack="encoder", site="hidden", layer=3.0),), "layer 3"),
        ((row(stack="encoder", site="final", layer=3),), "the final norm"),
        ((row(stack="joint", site="hidden", layer=0),), "the joint vectors"),
        ((row(stack="sentence", site="final", layer=0),), "the sentence vectors"),
        ((row(site="hidden", layer=2),), "layer 2"),
    ],
    wording.at_layer: [
        ((row(stack="encoder", site="hidden", layer=3),), "at layer 3"),
        ((row(stack="encoder", site="final", layer=3),), "at the final norm"),
        ((row(stack="joint", site="hidden", layer=0),), "in the joint vectors"),
    ],
    wording.join_words: [
        (([],), ""),
        ((["a"],), "a"),
        ((["a", "b"],), "a and b"),
        ((["a", "b", "c"],), "a, b and c"),
    ],
    wording.list_first: [
        ((["a", "b", "c"],), "a, b, c"),
        ((["a", "b", "c", "d", "e"],), "a, b, c, and 2 more"),
    ],
    wording.format_percent: [
        ((0.444,), "44 %"),
        ((0.0314,), "3.1 %"),
        ((0.1,), "10 %"),
        ((0.0999,), "10.0 %"),
        ((-0.5,), "−50 %"),
    ],
    wording.format_count: [((1234567.0,), "1,234,567"), ((12,), "12")],
    wording.count_noun: [
        ((1, "head"), "1 head"),
        ((0, "patch"), "0 patches"),
        ((1200, "head"), "1,200 heads"),
    ],
    wording.format_duration: [
        ((0.4,), "0 s"),
        ((59.4,), "59 s"),
        ((59.6,), "1 min 00 s"),
        ((312.4,), "5 min 12 s"),
        ((3599.4,), "59 min 59 s"),
        ((3599.6,), "1 h 00 min"),
        ((7500,), "2 h 05 min"),
    ],
    wording.use_words_of_corpus: [
        (
            (
                "tokens and a token, special tokens, real tokens, tokenizer",
                {"position": "patch"},
            ),
            "patches and a patch, special tokens, real tokens, tokenizer",
        ),
    ],
    pluralise: [
        (("batch",), "batches"),
        (("class",), "classes"),
        (("box",), "boxes"),
        (("clip",), "clips"),
    ],
}


@pytest.mark.parametrize("function", WORDS, ids=lambda of: of.__name__)
def test_numbers_and_names_in_words(function):
    assert [function(*given) for given, _ in WORDS[function]] == [
        said for _, said in WORDS[function]
    ]


def test_layers_are_listed_with_ranges_of_three_and_more():
    names = [*(f"layer {n}" for n in range(7)), "the final norm"]
    phrases = {
        (0, 1, 2, 3, 4, 5, 6, 7): "in every layer",
        (2, 3, 4, 5, 6, 7): "from layer 2 on",
        (7,): "at the final norm",
        (6, 7): "from layer 6 on",
        (1,): "at layer 1",
        (1, 2): "at layers 1 and 2",
        (1, 2, 3): "at layers 1–3",
        (1, 2, 3, 5, 7): "at layers 1–3, 5 and the final norm",
        (0, 2, 4, 5, 6): "at layers 0, 2 and 4–6",
        (0, 7): "at layer 0 and the final norm",
    }
    assert {
        chosen: wording.describe_layers(chosen, names) for chosen in phrases
    } == phrases
    assert (
        wording.describe_layers((0,), ["the joint vectors"]) == "in the joint vectors"
    )
    assert wording.describe_layers((0,), ["layer 4"]) == "at layer 4"


def test_sites_are_named_by_stack_layer_kind_and_stage():
    names = {
        Site("encoder", 3, "hidden"): ("encoder.3.hidden", "hidden", "hidden"),
        Site("encoder", None, "final"): ("encoder.final", "final", "final"),
        Site("decoder", 2, "attention", kind="cross"): (
            "decoder.2.cross.attention",
            "attention",
            "attention",
        ),
        Site("decoder", 2, "query", "raw"): (
            "decoder.2.head.query.raw",
            "query.raw",
            "query",
        ),
        Site("decoder", 2, "value", kind="cross"): (
            "decoder.2.cross.head.value",
            "value",
            "value",
        ),
        Site("vision", 1, "stage"): ("vision.1.stage", "stage", "hidden"),
        Site("vision", 1, "pre_relu"): ("vision.1.pre_relu", "pre_relu", "hidden"),
    }
    assert {site: (site.name, site.label, site.measured_as) for site in names} == names
    assert Site("d", 2, "key", kind="cross").place == ("d", 2, "cross")


def test_exit_codes_are_those_of_the_kinds_of_errors():
    codes = {
        name: getattr(errors, name).exit_code
        for name in dir(errors)
        if name.endswith("Error")
    }
    assert codes == {
        "AnisoscopeError": 1,
        "UsageError": 2,
        "ExtraError": 2,
        "ModelError": 3,
        "DivergedError": 3,
        "CorpusError": 4,
        "MeasureError": 5,
        "UnseenError": 5,
        "OutputError": 6,
    }
    error = UsageError("a", "b", "c")
    assert str(error) == "expected a; got b. Cure: c" and isinstance(error, ValueError)
    assert (error.expected, error.got, error.cure) == ("a", "b", "c")
    assert str(UsageError("a", "b")) == "expected a; got b"
    long = str(UsageError("a", "b" * 1901))
    assert long == f"expected a; got {'b' * 1700} … {'b' * 150} (1,901 characters)"
    assert len(str(UsageError("a", "b" * 1900))) == 1900 + len("expected a; got ")
    assert not errors.is_too_long("a" * 255) and errors.is_too_long("ä" * 128)
    assert not errors.is_too_long("/".join(["a" * 255] * 15 + ["a" * 255]))
    assert errors.is_too_long("/".join(["a" * 255] * 16 + ["a"]))
    near = ["overwrite", "overwritten", "other"]
    assert errors.suggest_names("overwrit", near) == "did you mean overwrite?"
    assert (
        errors.suggest_names("heat", ["head", "heads", "zzz"])
        == "did you mean head or heads?"
    )
    assert errors.suggest_names("q", ["a", "b"], all_names="L") == "L"


# ---- batches


def make_batch():
    """Three sequences in two stacks; every field of a stream differs from every other."""

    def stream(shift):
        mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
        numbers = torch.arange(9).reshape(3, 3) + shift
        return Stream(
            mask,
            numbers > 4,
            torch.tensor([7, 8, 9]) + shift,
            numbers,
            numbers > 5,
            numbers > 6,
        )

    inputs = {
        "ids": torch.arange(6).reshape(3, 2),
        "deep": {"x": torch.arange(3)},
        "scale": torch.tensor(2.0),
        "n": 4,
    }
    return Batch(
        inputs,
        torch.tensor([4, 5, 6]),
        {"encoder": stream(0), "decoder": stream(1)},
        print,
        torch.tensor([2, 0, 1]),
    )


def test_parts_of_a_batch_are_their_rows_of_every_field():
    batch = make_batch()
    assert batch.n_tokens == 6 and batch.split(1) == [batch]
    for count, sizes in ((2, [2, 1]), (3, [1, 1, 1]), (7, [1, 1, 1])):
        assert [len(part.unit) for part in batch.split(count)] == sizes
    first, last = batch.split(2)
    for part, rows in ((first, slice(0, 2)), (last, slice(2, 4))):
        assert part.inputs["ids"].equal(batch.inputs["ids"][rows])
        assert part.inputs["deep"]["x"].equal(batch.inputs["deep"]["x"][rows])
        assert part.inputs["scale"] == 2 and part.inputs["n"] == 4
        assert part.unit.equal(batch.unit[rows]) and part.label.equal(batch.label[rows])
        assert part.call is print
        for stack, stream in batch.streams.items():
            for name in (
                "mask",
                "special",
                "start",
                "frequency",
                "punctuation",
                "image",
            ):
                assert getattr(part.streams[stack], name).equal(
                    getattr(stream, name)[rows]
                ), name
    plain = Batch({}, torch.tensor([1, 2]))
    assert plain.n_tokens == 2 and plain.split(2)[1].label is None
    with pytest.raises(UsageError, match=r"a tensor \[2, 3\] for 3 sequences"):
        Batch({"x": torch.ones(2, 3)}, torch.tensor([1, 2, 3])).split(3)


def test_fields_of_a_stream_and_a_batch_must_fit():
    mask, start = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    for name in ("special", "frequency", "punctuation", "image"):
        fields = {"mask": mask, "special": mask, "start": start} | {
            name: torch.ones(2, 4)
        }
        with pytest.raises(
            UsageError, match=rf"`{name}` of the mask's shape \(2, 3\); got \(2, 4\)"
        ):
            Stream(**fields)
    with pytest.raises(UsageError, match=r"a mask of \(2, 3\) and starts of \(3,\)"):
        Stream(mask, mask, torch.zeros(3))
    stream = Stream(mask, mask, start)
    assert stream.to(torch.device("meta")).mask.is_meta and stream.image is None
    with pytest.raises(UsageError, match="got 2 in the stream s"):
        Batch({}, torch.tensor([1, 2, 3]), {"s": stream})
    with pytest.raises(UsageError, match=r"labels of 2 sequences.*got \(3,\)"):
        Batch({}, torch.tensor([1, 2]), label=torch.tensor([1, 2, 3]))
    with pytest.raises(UsageError, match="an empty one"):
        Batch({}, torch.zeros(0))


# ---- run folders


def write_checkpoint(folder, **manifest):
    store.RunFolder(folder).finish(
        store.as_records(pd.DataFrame({"metric": ["m"], "value": [1.0]})), manifest
    )


def test_a_series_speaks_by_its_last_step_and_lists_what_is_wrong(tmp_path):
    steps = {"late": 20, "early": 10}
    for name, step in steps.items():
        write_checkpoint(
            tmp_path / name,
            model=name,
            warnings=["both", f"of {name}"],
            seconds=float(step),
            excluded={"x": {"zero": step}},
        )
    described = {
        "checkpoints": [{"folder": name, "step": step} for name, step in steps.items()],
        "skipped": {"third": "gone"},
        "repeated": [["a", "b"]],
        "corpus": "c",
    }
    (tmp_path / "series.json").write_text(json.dumps(described))
    records = store.as_records(
        pd.DataFrame({"metric": ["m", "n"], "value": [1.0, 2.0]})
    )
    store.write_table(
        tmp_path / "records.parquet",
        records.assign(more=["x", "y"])[["more", *records.columns]],
    )
    found, manifest = store.read_run(tmp_path)
    assert list(found.columns) == [*store.COLUMNS, "more"] and found[
        "more"
    ].tolist() == ["x", "y"]
    assert manifest["model"] == "late" and manifest["seconds"] == 30
    assert (
        manifest["excluded"] == {}
        and manifest["checkpoints"] == described["checkpoints"]
    )
    assert manifest["warnings"] == [
        "both",
        "of late",
        "of early",
        "third left out: gone",
        "the same weights, bit for bit: a, b",
    ]


def test_fields_that_differ_are_named_from_either_side():
    ours = {"a": 1, "code": {"x": 1, "y": {"z": 2}}, "only": 3, "kind": {"p": 1}}
    theirs = {
        "a": 1,
        "code": {"x": 2, "y": {"z": 3}},
        "other": None,
        "kind": 4,
        "new": 5,
    }
    assert store.list_changed_fields(ours, theirs) == [
        "code.x",
        "code.y.z",
        "kind",
        "new",
        "only",
    ]
    assert store.list_changed_fields(ours, ours) == []


def test_a_folder_is_begun_resumed_and_overwritten_as_it_is_asked_for(tmp_path):
    folder = tmp_path / "run"
    run = store.RunFolder.start(folder, {"a": 1, "b": {"c": 2}}, resume=False)
    assert run.identity() == {"a": 1, "b": {"c": 2}} and not run.complete
    for rank in (0, 11):
        run.state_path(rank).write_bytes(b"x")
    (folder / "state.x.safetensors").write_bytes(b"theirs")
    (folder / "state.1.of.safetensors").write_bytes(b"theirs")
    (folder / "notes.txt").write_text("mine")
    assert [path.name for path in run.states()] == [
        "state.0.safetensors",
        "state.11.safetensors",
    ]
    with pytest.raises(OutputError, match="already holds this run"):
        store.RunFolder.start(folder, {"a": 1, "b": {"c": 2}}, resume=False)
    store.RunFolder.start(folder, {"a": 1, "b": {"c": 2}}, resume=True)
    with pytest.raises(OutputError, match=r"another run \(b\.c differ\)"):
        store.RunFolder.start(folder, {"a": 1, "b": {"c": 3}}, resume=True)
    many = {f"k{n}": n for n in range(5)}
    with pytest.raises(
        OutputError, match=r"\(a, b, k0, k1, k2, k3 and 1 more differ\)"
    ):
        store.RunFolder.start(folder, many, resume=True)
    write_checkpoint(folder, model="m")
    assert run.complete and run.states() == [] and run.manifest == {"model": "m"}
    again = store.RunFolder.start(folder, {"a": 5}, resume=False, overwrite=True)
    assert again.identity() == {"a": 5} and not again.complete
    left = {path.name for path in folder.iterdir()}
    assert left == {
        "identity.json",
        "notes.txt",
        "state.x.safetensors",
        "state.1.of.safetensors",
    }
    with pytest.raises(OutputError, match="no manifest"):
        assert again.records is None
    (folder / "identity.json").write_text('{"theirs": 1}')
    with pytest.raises(OutputError, match="no run has written"):
        store.RunFolder.start(folder, {"a": 5}, resume=False, overwrite=True)
    (tmp_path / "other").mkdir()
    store.RunFolder.start(tmp_path / "other", {"a": 1}, resume=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="belong to no run"):
            store.RunFolder.start(
                tmp_path / "full", {"a": 1}, resume=True, overwrite=overwrite
            )


def test_temporary_files_of_ended_processes_alone_are_removed(tmp_path):
    dead = 2**22 + 1  # no process has a number that large
    names = [f".x.{dead}", f".y.{dead}", f".x.{os.getpid()}", ".x.lock", f"x.{dead}"]
    for name in names:
        (tmp_path / name).touch()
    store.clear_temporary(tmp_path, "x")
    assert {path.name for path in tmp_path.iterdir()} == set(names[1:])
    store.clear_temporary(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(names[2:])


def test_rows_are_selected_by_values_nulls_and_lists():
    frame = store.as_records(
        pd.DataFrame({"layer": [1, 2, None, 1], "component": ["a", None, "b", "c"]})
    )

    def chosen(**where):
        return store.select(frame, **where).index.tolist()

    assert chosen(layer=1) == [0, 3] and chosen(layer=None) == [2]
    assert chosen(layer=[1, 2]) == [0, 1, 3] and chosen(component=["a", None]) == [0, 1]
    assert chosen(layer=1, component="c") == [3]
    typed = store.as_records(
        pd.DataFrame({"layer": [1.0], "value": [2], "model": ["m"]}), model="n", seed=3
    )
    assert typed.columns.tolist() == list(store.COLUMNS)
    assert typed[["layer", "seed", "model", "value"]].values.tolist() == [
        [1, 3, "n", 2.0]
    ]
    assert typed["head"].isna().all() and str(typed["head"].dtype) == "Int64"


# ---- settings


def test_typed_names_are_divided_at_commas_and_all_means_all():
    def split(value, every=(), renamed=None):
        return options.split_names(every, renamed).func(value)

    every = ("x", "y")
    assert split("a, b,,c") == ("a", "b", "c") and split(["a,b", "c"]) == (
        "a",
        "b",
        "c",
    )
    assert split("all", every) == split(["all"], every) == every
    assert split("all") == () and split(["all"]) == ("all",)
    assert split("z,all,y", every) == ("z", "x", "y")
    assert split("y,all", every) == ("y", "x")
    assert split("old,a", renamed={"old": "new"}) == ("new", "a")
    assert split(3) == 3 and split([1, "a"]) == [1, "a"] and split([]) == ()
    with pytest.raises(Exception, match="no names"):
        split(",")
    numbers = options.split_numbers((7,)).func
    assert numbers("0, 8,-1,8") == ("0", "8", "-1") and numbers("all") == (7,)
    assert numbers([1, 2]) == [1, 2] and numbers(["1,2", "3"]) == ("1", "2", "3")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("auto", ""),
        ("cpu", ""),
        ("cuda:1", ""),
        ("mps", ""),
        ("privateuseone:0", ""),
        ("cuda:", "got 'cuda:'"),
        ("cuda:x", "got 'cuda:x'"),
        ("gpu", "Cure: use cuda"),
        ("cudaa", "did you mean cuda"),
        ("meta", "which knows shapes only"),
    ],
)
def test_devices_are_kinds_with_or_without_a_number(name, error):
    if not error:
        assert options.check_device(name) == name
        return
    with pytest.raises(UsageError, match=error):
        options.check_device(name)


# ---- names that are added


def test_names_that_two_packages_add_are_those_of_the_first(monkeypatch):
    said = []
    monkeypatch.setattr(
        registry, "_warn_once", lambda point, what: said.append((point.name, what))
    )
    same = object()
    entries = {"first": {"a": 1, "b": same}, "second": {"a": 2, "b": same, "c": 3}}
    monkeypatch.setattr(registry, "_load_entries", lambda point: entries[point.name])
    monkeypatch.setitem(registry._registered, "metrics", {"d": 4})
    points = [
        SimpleNamespace(name=name, group="anisoscope.metrics") for name in entries
    ]
    assert registry._collect_entries("metrics", points) == {
        "a": 1,
        "b": same,
        "c": 3,
        "d": 4,
    }
    assert said == [
        (
            "second",
            "adds 'a' to anisoscope.metrics, which is there already: its own is not used",
        )
    ]


def test_entries_of_another_class_are_left_out_and_named(monkeypatch):
    said = []
    monkeypatch.setattr(registry, "_warn_once", lambda _point, what: said.append(what))
    point = SimpleNamespace(name="p", group="anisoscope.metrics")
    assert registry._drop_wrong_classes(
        point, {"a": 1, "b": "x", "c": 2.0}, (int, float)
    ) == {"a": 1, "c": 2.0}
    assert (
        said.pop()
        == "adds 'b' to anisoscope.metrics, which is left out (expected int or float; got str)"
    )
    assert registry._drop_wrong_classes(point, "x", (int,)) is None
    assert said.pop().endswith("(expected int; got str)")
    assert registry._drop_wrong_classes(point, print, ()) is print
    assert registry._drop_wrong_classes(point, 3, ()) is None
    assert said.pop().endswith("(expected a function; got int)")


# ---- what an installation can do


def package(name, status="ok", installed="1.2+cpu", reason=""):
    return doctor.Package(
        name, ">=1", None if status == "missing" else installed, status, reason
    )


def test_a_diagnosis_says_what_works_and_what_installs_the_rest():
    many = tuple(package(f"p{n}") for n in range(7))
    extras = [
        doctor.Extra("base", many, "pip install 'anisoscope'"),
        doctor.Extra(
            "speech",
            (package("a"), package("b", "missing")),
            "pip install 'anisoscope[speech]'",
        ),
        doctor.Extra(
            "x",
            (package("c", "too old", reason="c>=1 is needed"), package("d")),
            "pip install x",
        ),
    ]
    folders = [
        {
            "purpose": "cache",
            "path": "/c",
            "there": True,
            "writable": True,
            "free": 2.6e9,
        },
        {
            "purpose": "runs",
            "path": "runs",
            "there": False,
            "writable": False,
            "free": 0,
        },
    ]
    found = doctor.Diagnosis(
        {"python": "3.12", "torch": "2"}, ["cpu: 4 cores"], extras, folders
    )
    assert found.works and [extra.works for extra in extras] == [True, False, False]
    assert doctor.render_diagnosis(found).splitlines() == [
        "python 3.12",
        "torch 2",
        "",
        "Devices",
        "  cpu: 4 cores",
        "",
        "Extras",
        "  ✔ base    p0 1.2, p1 1.2, p2 1.2, p3 1.2, p4 1.2 and 2 more",
        "  – speech  b missing",
        "            pip install 'anisoscope[speech]'",
        "  ✘ x       c too old",
        "            pip install x",
        "",
        "Folders",
        "  /c",
        "    cache, 3 GB free",
        "  runs (not there yet)",
        "    runs, 0 GB free, NOT WRITABLE",
        "",
        "c 1.2+cpu: c>=1 is needed",
        "Ready to measure.",
    ]
    broken = doctor.Diagnosis(
        {},
        [],
        [
            doctor.Extra("base", (package("p", "missing"),), "pip install y"),
            *extras[1:],
        ],
    )
    assert not broken.works
    said = doctor.render_diagnosis(broken).splitlines()
    assert "  ✘ base    p missing" in said and said[-1] == "Not ready: pip install y"
    described = found.as_dict()
    assert described["works"] is True
    assert [extra["works"] for extra in described["extras"]] == [True, False, False]
    assert described["extras"][1]["packages"][1] == {
        "name": "b",
        "needed": ">=1",
        "installed": None,
        "status": "missing",
        "reason": "",
    }


def test_requirements_belong_to_the_extra_that_their_marker_names():
    from packaging.requirements import Requirement

    lines = {
        "a": ("", True),
        "a; extra == 'x'": ("x", True),
        "b; extra == 'x' and python_version >= '3'": ("x", True),
        "c; python_version >= '3'": ("", True),
        "d; python_version < '3'": ("", False),
        "e; extra == 'x' and python_version < '3'": ("x", False),
    }
    for line, (extra, belongs) in lines.items():
        for asked in ("", "x", "y"):
            found = doctor._belongs_to(Requirement(line), asked)
            assert found == (belongs and asked == extra), (line, asked)


def test_a_package_is_missing_too_old_broken_or_sound(monkeypatch):
    from packaging.requirements import Requirement

    versions = {"old": "1.0", "new": "3.0rc1", "my-pack": "2.0", "bad": "2.0"}
    monkeypatch.setattr(doctor, "_find_version", versions.get)
    tried = []

    def try_import(module):
        tried.append(module)
        if module == "bad":
            raise ImportError("no\n symbol")

    def state(line):
        found = doctor._examine_package(Requirement(line), try_import)
        return found.status, found.installed, found.reason

    assert state("none>=1") == ("missing", None, "")
    assert state("old>=2") == ("too old", "1.0", "old>=2 is needed")
    assert state("new>=2") == ("ok", "3.0rc1", "")
    assert state("my-pack") == ("ok", "2.0", "")
    assert state("bad") == ("broken", "2.0", "ImportError: no symbol")
    assert tried == ["new", "my_pack", "bad"]


def test_folders_are_those_of_the_environment_and_say_what_is_above_them(
    monkeypatch, tmp_path
):
    (tmp_path / "hub").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "HF_HOME": tmp_path / "hub",
        "XDG_CACHE_HOME": tmp_path / "not" / "there",
        "ANISOSCOPE_DATA": tmp_path,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ANISOSCOPE_GOLDEN", raising=False)
    usage = []
    monkeypatch.setattr(
        doctor.shutil,
        "disk_usage",
        lambda place: usage.append(place) or SimpleNamespace(free=len(usage)),
    )
    found = doctor._find_folders()
    assert [(one["path"], one["there"], one["free"]) for one in found] == [
        (str(tmp_path / "hub"), True, 1),
        (str(tmp_path / "not" / "there" / "anisoscope"), False, 2),
        ("runs", False, 3),
        (str(tmp_path), True, 4),
    ]
    assert [one["purpose"].partition(" (")[0] for one in found] == [
        "cache of hub models and data",
        "cache of Anisoscope",
        "runs of this folder",
        "corpora of your own",
    ]
    assert usage == [tmp_path / "hub", tmp_path, tmp_path, tmp_path]


# ---- progress


def test_lines_of_progress_have_the_rate_of_their_own_part(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 5)
    update = progress._make_line_printer()

    def at(seconds, done, total, what="work"):
        now[0] = 100.0 + seconds
        update(done, total, what, "tokens")
        return capsys.readouterr().err.strip()

    assert at(1, 100, 1000) == "", "the first count is where the rate begins"
    assert at(4.9, 200, 1000) == ""
    assert at(5, 300, 1000) == "300/1,000 tokens, 50/s, 14 s left: work"
    assert at(9.9, 400, 1000) == ""
    assert at(11, 1000, 1000) == "1,000/1,000 tokens, 90/s: work"
    # another part of the work begins again
    assert at(17, 0, 50, "more") == "0/50 tokens: more"
    assert at(22, 10, 50, "more") == "10/50 tokens, 2/s, 20 s left: more"


def test_a_piece_of_work_is_shown_as_part_of_the_whole():
    shown, said = [], []
    whole = progress.Shown(
        "models", "tokens", lambda *given: shown.append(given), said.append
    )
    for i in (0, 1, 2):
        piece = progress.scale_progress(whole, i, 3, "model")
        progress.remark(piece, f"remark {i}")
        progress.remark(piece, "")
        piece(5, 10)
        progress.set_counted_unit(piece, "images", "other")
        piece(6, 10)
    assert said == ["remark 0"]
    assert shown == [
        given
        for i in (0, 1, 2)
        for given in (
            (10 * i + 5, 30, f"model {i + 1} of 3: models", "tokens"),
            (10 * i + 6, 30, "other", "images"),
        )
    ]
    assert progress.scale_progress(whole, 0, 1, "model").what == "models"
    assert progress.scale_progress(None, 0, 3, "model") is None
    counts = []
    own = progress.scale_progress(lambda *given: counts.append(given), 2, 3, "model")
    own(5, 10)
    assert counts == [(25, 30)]
    progress.set_counted_unit(whole, "clips")
    assert (whole.unit, whole.what) == ("clips", "models")


@pytest.mark.parametrize(
    ("kept", "notes", "expected"),
    [
        ("mine", (), ["mine", "again"]),
        ("", ("inner", "x"), ["inner", "again"]),
        ("mine", ("inner", "x"), ["mine", "again"]),
        ("", (), None),
    ],
)
def test_an_interruption_is_noted_with_what_is_kept_and_how_to_go_on(
    kept, notes, expected
):
    stop = KeyboardInterrupt()
    if notes:
        stop.__notes__ = list(notes)
    with (
        pytest.raises(KeyboardInterrupt) as caught,
        progress.interrupt_hint(lambda: kept, "again"),
    ):
        raise stop
    assert getattr(caught.value, "__notes__", None) == expected
    with pytest.raises(ValueError) as other, progress.interrupt_hint(lambda: "kept"):
        raise ValueError("x")
    assert not hasattr(other.value, "__notes__")


def test_nothing_moves_in_builds_files_and_dumb_terminals(monkeypatch):
    def animated(terminal=True, **environment):
        monkeypatch.setattr(
            progress.sys, "stderr", SimpleNamespace(isatty=lambda: terminal)
        )
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return progress.is_animated()

    assert animated() and animated(CI="false") and animated(CI="0")
    assert not animated(False) and not animated(TERM="dumb") and not animated(TERM="")
    for value in ("1", "true", "YES"):
        assert not animated(CI=value)


# ---- packages of extras, and old names


def test_missing_packages_are_named_as_they_are_installed(monkeypatch):
    there = {"transformers", "altair"}
    monkeypatch.setattr(
        extras, "find_spec", lambda module: module if module in there else None
    )
    assert extras.find_missing_packages("models", "report") == [
        "huggingface_hub",
        "pillow",
        "vl-convert-python",
    ]
    assert not extras.has_extra("report")
    with pytest.raises(errors.ExtraError) as caught:
        extras.require_extra("report", "to draw")
    assert str(caught.value) == (
        "expected the packages of anisoscope[report] to draw; got an installation without vl-convert-python. "
        "Cure: pip install 'anisoscope[report]'"
    )
    there.add("vl_convert")
    assert extras.has_extra("report") and extras.require_extra("report", "x") is None


def test_old_names_are_replaced_where_they_name_what_was_renamed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    old = {
        "corpus": {"name": "planted:3", "kind": "planted"},
        "tasks": ["planted", "planted-pairs", {"name": "mine"}],
        "classes": {"parts": ["replaced", "explained", 3], "corpus": "planted-pairs"},
        "excluded": {"encoder.1.unrectified": {"zero": 1}, "encoder.final": 2},
        "model": "planted",
        "list": [{"corpora": "planted"}],
    }
    assert renamed.rename_described(old) == {
        "corpus": {"name": "synthetic:3", "kind": "planted"},
        "tasks": ["synthetic", "synthetic-pairs", {"name": "mine"}],
        "classes": {
            "parts": ["ablation", "attribution", 3],
            "corpus": "synthetic-pairs",
        },
        "excluded": {"encoder.1.pre_relu": {"zero": 1}, "encoder.final": 2},
        "model": "planted",
        "list": [{"corpora": "synthetic"}],
    }
    assert renamed.rename_site("unrectified") == "pre_relu"
    assert renamed.rename_typed_corpus("planted:3") == "synthetic:3"
    (tmp_path / "planted").touch()
    assert renamed.rename_typed_corpus("planted") == "./planted"
    assert renamed.rename_typed_corpus("mine") == "mine"
