"""Every benchmark of the papers in miniature, so that none rots. Nothing is timed here."""

from pathlib import Path

import pytest
from test_benchmarks import benchmark, check_rows, forget

__all__ = ["benchmark"]  # a fixture
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MINIATURES = {
    "classifier": ["--corpus", "synthetic:3", "--layers", "1", "--epochs", "1"],
    "training": ["--steps", "1", "--cases", "attention, penalty"],
    "gpu_studies": ["--tiny", "--only", "training", "--device", "cpu"],
}


def test_no_benchmark_is_left_out():
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == {*MINIATURES}


@pytest.mark.parametrize("name", MINIATURES)
def test_a_benchmark_runs(name, benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    monkeypatch.syspath_prepend(BENCHMARKS)
    given = (
        [] if name == "gpu_studies" else ["--results", str(tmp_path / "results.json")]
    )
    benchmark(name).main([*MINIATURES[name], *given])
    assert capsys.readouterr().out.strip()
    check_rows(tmp_path / "results.json", name if given else "")
    forget(BENCHMARKS)
