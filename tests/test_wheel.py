"""The wheel holds the package whole, and the demo runs from it, outside the checkout (`make wheel` does more of it)."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from quick import WARM, quick

ROOT = Path(__file__).parents[1]


def test_the_demo_runs_from_the_wheel(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    left_out = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "source" / "src", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "source")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    if subprocess.run([*pip[:3], "--version"], capture_output=True).returncode:
        pytest.skip("pip is not here")
    subprocess.run([*pip, "--wheel-dir", tmp_path, tmp_path / "source"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        names = {name for name in held.namelist() if ".dist-info/" not in name}
        held.extractall(tmp_path / "installed")  # what an installer does with it
    files = (
        path
        for path in (tmp_path / "source" / "src").rglob("*")
        if path.is_file() and ".egg-info" not in str(path)
    )
    assert names == {
        path.relative_to(tmp_path / "source" / "src").as_posix() for path in files
    }
    words = [
        "measure",
        "builtin:minilm",
        "--corpus",
        "builtin:python-docs",
        "--limit",
        "6",
        "--panel",
        "hidden",
    ]
    code = "import anisoscope, runpy; print(anisoscope.__file__); runpy.run_module('anisoscope', run_name='__main__')"
    given = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    command = [*quick(WARM), "-c", code, *words, "--output", "demo", "--quiet"]
    done = subprocess.run(
        command, cwd=tmp_path, env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(tmp_path / "installed"))
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert (
        pd.read_parquet(tmp_path / "demo" / "records.parquet")["metric"]
        .eq("mean_cosine")
        .any()
    )
