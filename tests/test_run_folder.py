"""A run folder begun anew gives up what is the run's own, and nothing else that lies there."""

import pytest

from anisoscope.errors import OutputError
from anisoscope.store import RunFolder

OWN = (
    "manifest.json",
    "records.parquet",
    "replicates.parquet",
    "sums.safetensors",
    "reservoir.safetensors",
)
STATES = ("state.0.safetensors", "state.12.safetensors")
FOREIGN = (
    "model.safetensors",
    "adapter_model.safetensors",
    "state.best.safetensors",
    "state.0.old.safetensors",
    "data.parquet",
    "records-of-mine.parquet",
    "notes.md",
    "kept/records.parquet",
)


@pytest.fixture
def begun(tmp_path):
    """The folder of a run, in which somebody has put files of their own."""
    run = RunFolder.start(tmp_path / "run", {"of": "one"}, resume=False)
    for name in (*OWN, *STATES, *FOREIGN):
        path = run.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return run


def test_overwriting_takes_away_only_what_is_the_runs_own(begun):
    """Every *.safetensors and *.parquet of the folder was lost: a model beside its run, a table of data."""
    RunFolder.start(begun.folder, {"of": "another"}, resume=False, overwrite=True)
    assert [name for name in FOREIGN if not (begun.folder / name).exists()] == []
    assert [name for name in (*OWN, *STATES) if (begun.folder / name).exists()] == []
    assert begun.identity() == {"of": "another"}


def test_a_folder_of_another_program_is_not_overwritten(tmp_path):
    """Its identity.json was taken for a run's, and replaced."""
    for name in ("identity.json", *OWN):
        (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(
        OutputError, match=r"identity\.json that no run has written.*another --output"
    ):
        RunFolder.start(tmp_path, {"of": "one"}, resume=False, overwrite=True)
    assert all(
        (tmp_path / name).read_text() == '{"mine": 1}'
        for name in ("identity.json", *OWN)
    )


def test_states_are_those_of_processes(begun):
    assert [path.name for path in begun.states()] == list(STATES)


def test_without_overwriting_nothing_is_touched(begun):
    with pytest.raises(OutputError, match=r"another run \(of differ\)"):
        RunFolder.start(begun.folder, {"of": "another"}, resume=True)
    assert all((begun.folder / name).exists() for name in (*OWN, *STATES, *FOREIGN))


def test_what_differs_is_named_but_not_all_of_it(tmp_path):
    before, after = (
        {"code": {f"module_{i}": text for i in range(9)}} for text in ("a", "b")
    )
    RunFolder.start(tmp_path / "run", before, resume=False)
    with pytest.raises(
        OutputError, match=r"code\.module_0, .*code\.module_5 and 3 more differ"
    ):
        RunFolder.start(tmp_path / "run", after, resume=True)
