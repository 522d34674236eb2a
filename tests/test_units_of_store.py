"""Files of runs and names that packages add: what is written, kept, refused and in which words, on tiny folders."""

import errno
import json
import os
import sys
from contextlib import suppress
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
from pyarrow import parquet

from anisoscope import registry, store
from anisoscope.data.corpora import NamedCorpus
from anisoscope.errors import OutputError, UsageError

# ---- tables and files ------------------------------------------------------------------------------------------------


def test_a_table_of_records_has_every_column_in_its_type():
    frame = store.as_records(
        pd.DataFrame({"n_units": [3], "n_vectors": [7], "seed": [2], "model": ["old"]}),
        model="new",
        step=5,
        component=None,
    )
    assert frame["model"].tolist() == ["new"] and frame["step"].tolist() == [5]
    kinds = {name: str(frame[name].dtype) for name in store.COLUMNS}
    whole = {"step", "seed", "layer", "head", "n_vectors", "n_units"}
    numbers = {"value", "low", "high"}
    assert {name for name in kinds if kinds[name] == "Int64"} == whole
    assert {name for name in kinds if kinds[name] == "float64"} == numbers
    assert {kinds[name] for name in kinds if name not in whole | numbers} == {"string"}
    # A constant of None replaces what the table has.
    cleared = store.as_records(pd.DataFrame({"component": ["a"]}), component=None)
    assert cleared["component"].isna().all()


def test_no_row_with_a_null_equals_a_value():
    frame = store.as_records(pd.DataFrame({"head": [0, None, 1], "site": ["x"] * 3}))
    assert store.select(frame, head=0).index.tolist() == [0]
    assert store.select(frame, head=None).index.tolist() == [1]
    assert store.select(frame, head=(0, 1), site="x").index.tolist() == [0, 2]
    assert store.select(frame, head=[]).index.tolist() == []


@pytest.mark.parametrize("compression", ["zstd", "brotli"])
def test_a_table_comes_back_as_it_was_written(tmp_path, compression):
    frame = pd.DataFrame(
        {
            "value": [0.1, float("nan"), -2.5],
            "layer": pd.array([1, None, 3], dtype="Int64"),
            "site": pd.array(["hidden", None, "é"], dtype="string"),
            "count": [1, 2, 3],
        }
    )
    path = tmp_path / "new" / "a.parquet"
    store.write_table(path, frame, compression=compression)
    pd.testing.assert_frame_equal(store.read_table(path), frame)
    group = parquet.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(i) for i in range(4)]
    assert {column.compression for column in columns} == {compression.upper()}
    split = {
        column.path_in_schema: "BYTE_STREAM_SPLIT" in column.encodings
        for column in columns
    }
    assert split == {"value": True, "layer": False, "site": False, "count": False}
    assert not any(column.is_stats_set for column in columns)
    assert sorted(path.parent.iterdir()) == [path]


def test_old_names_of_a_table_are_replaced_in_each_of_its_columns(tmp_path):
    frame = pd.DataFrame(
        {
            "metric": ["replaced.accuracy", "drift"],
            "site": ["unrectified", "hidden"],
            "corpus": ["planted:3", "mine"],
            "component": ["planted", "unrectified"],
        }
    )
    store.write_table(tmp_path / "a.parquet", frame)
    assert store.read_table(tmp_path / "a.parquet").to_dict("list") == {
        "metric": ["ablation.accuracy", "drift"],
        "site": ["pre_relu", "hidden"],
        "corpus": ["synthetic:3", "mine"],
        "component": ["planted", "unrectified"],
    }


@pytest.mark.parametrize("error", [KeyError, IndexError, TypeError, AttributeError])
def test_a_table_whose_description_is_damaged_is_a_value_error(monkeypatch, error):
    def read(path):
        raise error(str(path))

    monkeypatch.setattr(store.pd, "read_parquet", read)
    with pytest.raises(ValueError, match="what it says of its columns is damaged"):
        store.read_table("x.parquet")
    with pytest.raises(OutputError) as caught:
        store._read_records("x.parquet")
    assert str(caught.value) == (
        "expected the table of a run in x.parquet; got a damaged file (what it says of its columns is damaged). "
        "Cure: the run folder is damaged: measure again with --overwrite"
    )


def test_json_is_written_as_people_read_it(tmp_path):
    store.write_json(tmp_path / "a.json", {"é": [1], "path": tmp_path})
    text = f'{{\n "é": [\n  1\n ],\n "path": "{tmp_path}"\n}}'
    assert (tmp_path / "a.json").read_text() == text


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    names = []

    def write(temporary):
        names.append(temporary.name)
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", str(temporary))

    with pytest.raises(OutputError) as caught:
        store.write_atomic(path, write)
    assert str(caught.value) == (
        f"expected to write {path}; got No space left on device. "
        "Cure: free space or choose another --output; the run stays resumable"
    )
    assert names == [f".a.txt.{os.getpid()}"]
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with suppress(KeyboardInterrupt):
        store.write_atomic(path, lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_write_clears_what_killed_writers_of_this_file_left(tmp_path):
    dead = 2**22 + 1
    for name in (f".a[1].{dead}", f".b.{dead}", f".a1.{dead}", ".a[1].9" + "9" * 30):
        (tmp_path / name).touch()
    store.write_atomic(tmp_path / "a[1]", lambda path: path.write_text("x"))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a[1]", f".b.{dead}", f".a1.{dead}"}


def test_a_process_of_someone_else_is_alive(tmp_path, monkeypatch):
    (tmp_path / ".a.5").touch()

    def kill(pid, number):
        raise PermissionError(pid, number)

    monkeypatch.setattr(os, "kill", kill)
    store.clear_temporary(tmp_path)
    assert (tmp_path / ".a.5").exists()


def test_what_forbids_a_folder_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    store.check_output(tmp_path)
    store.check_output(tmp_path / "new" / "deeper")
    long = tmp_path / ("x" * 256)
    for folder, got in (
        (file, f"the file {file}"),
        (file / "below" / "it", f"the file {file}"),
        ("/dev/null", "the device /dev/null"),
        (long, f"{long}: File name too long"),
    ):
        with pytest.raises(OutputError) as caught:
            store.check_output(type(tmp_path)(folder))
        error = caught.value
        assert error.expected == "a folder for --output"
        assert (error.got, error.cure) == (got, "choose another --output")


# ---- made once -------------------------------------------------------------------------------------------------------


def test_what_was_finished_while_one_waited_is_not_made_again(tmp_path, monkeypatch):
    """The lock is had only after another process has finished, or only begun, the folder."""
    import filelock

    made = []
    for left, times in (("marker", 0), ("something", 1)):
        key = tmp_path / left

        class Lock:
            def __init__(self, path, key=key):
                assert path == key.with_name(f".{key.name}.lock")
                self.key = key

            def acquire(self, *, blocking, left=left):
                made.append(blocking)
                self.key.mkdir()
                (self.key / left).touch()

            def release(self):
                made.append("released")

        monkeypatch.setattr(filelock, "FileLock", Lock)
        store.make_once(key, lambda: made.append("made"), marker="marker", wait=False)
        assert made == [False, *["made"] * times, "released"]
        made.clear()


def test_who_does_not_wait_for_a_table_learns_which_is_busy(tmp_path, monkeypatch):
    import filelock

    class Lock:
        def __init__(self, path):
            pass

        def acquire(self, *, blocking):
            assert blocking is False
            raise filelock.Timeout("x")

    monkeypatch.setattr(filelock, "FileLock", Lock)
    with pytest.raises(store.Busy) as caught:
        store.make_records_once(tmp_path / "a.parquet", pd.DataFrame, wait=False)
    assert caught.value.args == (tmp_path / "a.parquet",)


# ---- folders of runs -------------------------------------------------------------------------------------------------


def test_refusals_of_a_folder_are_whole_sentences(tmp_path):
    folder = tmp_path / "run"
    store.RunFolder.start(folder, {"a": 1, "b": 2}, resume=False)

    def refused(identity, **how):
        with pytest.raises(OutputError) as caught:
            store.RunFolder.start(folder, identity, **how)
        return str(caught.value)

    assert refused({"a": 1, "b": 2}, resume=False) == (
        f"expected {folder} to be new; got a folder that already holds this run, unfinished or finished. "
        "Cure: add --resume to continue, or --overwrite to start again"
    )
    assert refused({"a": 1, "c": 3}, resume=True) == (
        f"expected {folder} to be new or of this run; got another run (b, c differ). "
        "Cure: choose another --output, or --overwrite"
    )
    six = {f"k{n}": n for n in range(4)}
    assert "(a, b, k0, k1, k2, k3 differ)" in refused(six, resume=True)
    (folder / "identity.json").write_text('{"theirs": 1}')
    assert refused({"a": 1}, resume=False, overwrite=True) == (
        f"expected {folder} to be new or of a run; got an identity.json that no run has written. "
        "Cure: choose another --output"
    )
    other = tmp_path / "full"
    other.mkdir()
    (other / "x").touch()
    with pytest.raises(OutputError) as caught:
        store.RunFolder.start(other, {"a": 1}, resume=False)
    assert str(caught.value) == (
        f"expected {other} to be empty; got files that belong to no run. Cure: choose another --output"
    )
    assert sorted(path.name for path in other.iterdir()) == ["x"]
    with pytest.raises(OutputError) as caught:
        _ = store.RunFolder(folder).manifest
    assert str(caught.value) == (
        f"expected a finished run in {folder}; got no manifest.json. "
        "Cure: finish it with --resume, or name another folder"
    )


def test_a_run_that_begins_again_clears_what_killed_processes_left(tmp_path):
    folder = tmp_path / "run"
    store.RunFolder.start(folder, {"a": 1}, resume=False)
    gone = folder / ".records.parquet.999999999"
    alive = folder / f".state.0.safetensors.{os.getpid()}"
    for path in (gone, alive):
        path.touch()
    store.RunFolder.start(folder, {"a": 1}, resume=True)
    assert alive.exists() and not gone.exists()


def test_a_folder_of_another_program_keeps_its_files(tmp_path):
    """It was refused only after its own manifest had been deleted."""
    for name in ("identity.json", "manifest.json", "records.parquet"):
        (tmp_path / name).write_text('{"theirs": 1}')
    with pytest.raises(OutputError):
        store.RunFolder.start(tmp_path, {"a": 1}, resume=False, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        "identity.json",
        "manifest.json",
        "records.parquet",
    }


def test_a_damaged_or_older_identity_may_be_overwritten(tmp_path):
    for text in ("{", '{"a": 0, "older": 1}', "{}"):
        (tmp_path / "identity.json").write_text(text)
        run = store.RunFolder.start(tmp_path, {"a": 1}, resume=False, overwrite=True)
        assert run.identity() == {"a": 1}


def test_an_identity_is_written_in_one_form_and_only_if_it_differs(tmp_path):
    run = store.RunFolder(tmp_path)
    assert run.identity() is None
    run.note({"b": 1, "a": {"d": 2, "c": 3}})
    path = tmp_path / "identity.json"
    text = '{\n "a": {\n  "c": 3,\n  "d": 2\n },\n "b": 1\n}'
    assert path.read_text() == text
    before = path.stat().st_ino
    run.note({"a": {"c": 3, "d": 2}, "b": 1})
    assert path.stat().st_ino == before
    run.note({"a": 5})
    assert json.loads(path.read_text()) == {"a": 5}
    path.unlink()
    run.note({"a": 5})
    assert run.identity() == {"a": 5}


def test_a_run_is_complete_only_once_its_records_are_there(tmp_path, monkeypatch):
    run = store.RunFolder(tmp_path)
    for rank in range(3):
        run.state_path(rank).touch()
    written = []
    monkeypatch.setattr(
        store,
        "write_table",
        lambda path, _: written.append((path.name, run.complete, len(run.states()))),
    )
    write_json = store.write_json

    def note_json(path, content):
        written.append((path.name, run.complete, len(run.states())))
        write_json(path, content)

    monkeypatch.setattr(store, "write_json", note_json)
    run.finish(pd.DataFrame(), {"model": "m"})
    assert written == [("records.parquet", False, 3), ("manifest.json", False, 3)]
    assert (
        run.complete
        and run.states() == []
        and run.state_path().name == ("state.0.safetensors")
    )


def test_a_damaged_manifest_is_named(tmp_path):
    path = tmp_path / "manifest.json"
    for text, got in (
        ("[1]", f"expected a JSON object in {path}; got list. "),
        ("[" * 100_000, f"expected JSON in {path}; got maximum recursion depth"),
        ("{", f"expected JSON in {path}; got Expecting property name"),
    ):
        path.write_text(text)
        with pytest.raises(OutputError) as caught:
            _ = store.RunFolder(tmp_path).manifest
        assert str(caught.value).startswith(got)
        assert str(caught.value).endswith(store.MEASURE_AGAIN)
    path.write_text('{"corpus": {"name": "planted"}, "excluded": {}}')
    manifest = store.RunFolder(tmp_path).manifest
    assert manifest == {"corpus": {"name": "synthetic"}, "excluded": {}}


def test_a_series_without_checkpoints_is_no_series(tmp_path):
    (tmp_path / "series.json").write_text('{"checkpoints": []}')
    with pytest.raises(OutputError, match=r"a series of checkpoints in .*; got none"):
        store.read_run(tmp_path)


def test_changed_fields_at_every_depth_have_their_whole_name():
    ours = {"a": {"b": {"c": 1, "d": 1}}, "x": {}}
    theirs = {"a": {"b": {"c": 2}}, "x": {"y": 1}}
    assert store.list_changed_fields(ours, theirs) == ["a.b.c", "a.b.d", "x.y"]
    assert store.list_changed_fields(ours, theirs, "p.") == [
        "p.a.b.c",
        "p.a.b.d",
        "p.x.y",
    ]


# ---- names that packages add -----------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """Nothing is registered, and each entry point is read as if for the first time."""
    monkeypatch.setattr(registry, "_registered", {group: {} for group in registry.LATE})
    caches = (registry._list_entry_points, registry._import_entry, registry._warn_once)
    for cached in (*caches, registry.list_packages):
        cached.cache_clear()
    yield
    for cached in (*caches, registry.list_packages):
        cached.cache_clear()


def point(name, value, group="metrics"):
    return EntryPoint(name, value, f"anisoscope.{group}")


@pytest.mark.usefixtures("alone")
def test_entry_points_come_by_name_after_our_own(monkeypatch):
    given = [point("z", "pack.two:Z"), point("b", "other:B"), point("z", "pack.two:Z")]
    given += [point("b", "another:B")]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: given * (len(group) > 0)
    )
    found = registry._list_entry_points("metrics")
    assert [(each.name, each.value) for each in found] == [
        ("anisoscope", "anisoscope.metrics:scan"),
        ("b", "another:B"),
        ("b", "other:B"),
        ("z", "pack.two:Z"),
    ]
    # A group without an entry of ours has those of others alone.
    assert [each.name for each in registry._list_entry_points("pages")] == [
        "b",
        "b",
        "z",
    ]
    assert registry.list_packages() == {"anisoscope", "another", "other", "pack"}
    with pytest.raises(ValueError, match=r"a group among commands, .*; got 'metric'"):
        registry._list_entry_points("metric")


@pytest.mark.usefixtures("alone")
def test_what_others_added_is_not_what_is_ours(monkeypatch):
    points = (point("anisoscope", "anisoscope.metrics:scan"), point("a", "theirs:A"))
    entries = {"anisoscope": {"drift": 1}, "a": {"own": 2}}
    monkeypatch.setattr(registry, "_list_entry_points", lambda _: points)
    monkeypatch.setattr(registry, "_load_entries", lambda each: entries[each.name])
    registry._registered["metrics"]["typed"] = 3
    assert registry.list_added("metrics") == {"own": 2, "typed": 3}
    everything = registry.list_entries_of("metrics")
    assert list(everything.items()) == [("drift", 1), ("own", 2), ("typed", 3)]
    assert registry.is_own("metrics", "drift")
    assert not registry.is_own("metrics", "own")
    assert not registry.is_own("metrics", "typed")


@pytest.mark.usefixtures("alone")
def test_registered_things_go_with_their_block_or_stay_on_a_refusal():
    mine, other = (NamedCorpus("text", name, hub="me/x") for name in ("one", "two"))
    # The names of a dictionary are its keys, whatever name is given with it.
    with registry.registered({"a-name": mine, "b-name": other}, "c-name"):
        assert registry._registered["corpora"] == {"a-name": mine, "b-name": other}
    assert registry._registered["corpora"] == {}
    registry.register(mine, "a-name")
    with pytest.raises(ZeroDivisionError), registry.registered(other, "a-name"):
        assert registry._registered["corpora"]["a-name"] is other
        1 / 0  # noqa: B018
    assert registry._registered["corpora"] == {"a-name": mine}
    # A name that becomes another package's keeps what was registered before.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(registry, "list_entries_of", lambda _: {"a-name": 1})
        with pytest.raises(UsageError) as caught:
            registry.register(other, "a-name")
    assert str(caught.value) == (
        "expected a name that is not taken among corpora; got 'a-name'. Cure: choose another name"
    )
    assert registry._registered["corpora"] == {"a-name": mine}


@pytest.mark.usefixtures("alone")
def test_a_thing_belongs_to_the_group_of_its_class_or_of_one_above_it():
    class Special(NamedCorpus):
        pass

    special = Special("text", "x", hub="me/x")
    assert registry._find_group(special) == "corpora"
    study = ModuleType("pack.studies")
    assert registry._find_group(study) == "studies"
    assert registry._choose_name("studies", study, None) == "studies"
    assert registry._choose_name("studies", study, "short") == "short"
    assert registry._choose_name("corpora", special, "c") == "c"
    with pytest.raises(UsageError) as caught:
        registry._find_group(3)
    assert str(caught.value) == (
        "expected one of Metric, NamedCorpus, Family, NamedModel, PackagedModel, ConvertedModel, module; got int. "
        "Cure: see anisoscope.registry.GROUPS"
    )
    with pytest.raises(UsageError) as caught:
        registry._find_group(int)
    assert caught.value.got == "<class 'int'>, a class: make an instance of it"


def test_a_metric_is_known_by_its_own_name_and_others_by_their_entry(monkeypatch):
    for group, entry, names in (
        ("metrics", SimpleNamespace(name="real"), ["real"]),
        ("metrics", {"a": 1, "b": 2}, ["a", "b"]),
        ("corpora", SimpleNamespace(name="real"), ["given"]),
        ("corpora", None, []),
    ):
        monkeypatch.setattr(registry, "_import_entry", lambda _, entry=entry: entry)
        found = registry._load_entries(point("given", "x:y", group))
        assert list(found) == names


@pytest.mark.usefixtures("alone")
def test_functions_are_called_only_where_entries_are_no_functions(monkeypatch):
    module = ModuleType("a_guest")
    corpus = NamedCorpus("text", "x", hub="me/x")
    module.page = lambda: pytest.fail("called")
    module.make = lambda: {"c": corpus, "bad": 3, "d": corpus}
    module.one = corpus
    module.kind = lambda: NamedCorpus("text", "made", hub="me/y")
    monkeypatch.setitem(sys.modules, "a_guest", module)
    warned = []
    monkeypatch.setattr(registry, "_warn_once", lambda _, what: warned.append(what))
    load = registry._import_entry
    assert load(point("p", "a_guest:page", "pages")) is module.page
    assert load(point("m", "a_guest:make", "corpora")) == {"c": corpus, "d": corpus}
    assert warned == [
        "adds 'bad' to anisoscope.corpora, which is left out (expected NamedCorpus; got int)"
    ]
    assert load(point("o", "a_guest:one", "corpora")) is corpus
    assert load(point("k", "a_guest:kind", "corpora")).hub == "me/y"
    assert load(point("w", "a_guest:one", "pages")) is None
    assert warned[1] == (
        "adds 'w' to anisoscope.pages, which is left out (expected a function; got NamedCorpus)"
    )
    assert load(point("x", "a_guest:one", "models")) is None
    assert warned[2].endswith(
        "(expected NamedModel or PackagedModel or ConvertedModel; got NamedCorpus)"
    )


@pytest.mark.usefixtures("alone")
def test_a_broken_package_is_named_as_it_is_installed(monkeypatch):
    broken = point("p", "no_such.module:X", "corpora")
    named = SimpleNamespace(dist=SimpleNamespace(name="its-package"), module="m")
    assert registry._name_package(named) == "its-package"
    assert registry._name_package(SimpleNamespace(dist=None, module="m.n")) == "m.n"
    with pytest.warns(registry.ExtensionWarning) as warned:
        assert registry._import_entry(broken) is None
    assert str(warned[0].message) == (
        "no_such.module adds 'p' to anisoscope.corpora, which cannot be loaded and is left out "
        "(ModuleNotFoundError: No module named 'no_such'). Cure: pip install --upgrade no_such.module, "
        "or uninstall it"
    )
    monkeypatch.setattr(registry, "_name_package", lambda _: "its-package")
    registry._import_entry.cache_clear()
    with pytest.warns(registry.ExtensionWarning, match=r"--upgrade its-package, or"):
        registry._import_entry(broken)


def test_a_thing_of_a_file_here_hides_nothing_that_is_installed(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("NAME = 'theirs'\n")
    (tmp_path / "a_file_here.py").write_text("thing = 3\n_thin = 4\n1 / int(thing)\n")
    (tmp_path / "a_broken_file.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    monkeypatch.delitem(sys.modules, "json")
    assert registry.import_thing("a_file_here:thing", "a thing") == 3
    assert registry.import_thing("json:dumps", "a function")([1]) == "[1]"
    for reference, expected, cure in (
        ("a_file_here:thin", "a thing; got 'a_file_here:thin': module 'a_file_here' has no attribute 'thin'",
         "did you mean thing?"),
        ("a_broken_file:x", "a thing; got 'a_broken_file:x' (ZeroDivisionError: division by zero)",
         "check the name; a module in this folder is found, others by PYTHONPATH"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            registry.import_thing(reference, "a thing")
        assert str(caught.value) == f"expected {expected}. Cure: {cure}"
    assert sys.path == before
    for name in ("a_file_here", "a_broken_file"):
        sys.modules.pop(name, None)
