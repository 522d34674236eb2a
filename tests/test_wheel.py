"""The wheel holds the package whole, and measures from it, outside the checkout (`make wheel` does more of it)."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from program import NO_PAGE
from quick import WARM, quick

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what an installer makes of the wheel."""
    pytest.importorskip("setuptools", minversion="77")
    tmp_path = tmp_path_factory.mktemp("wheel")
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
    return tmp_path / "installed"


def measure_from(installed, folder, words, setup=""):
    """Run the command from the wheel, and return the folder of the run."""
    code = (
        f"{setup}\nimport anisoscope, runpy; print(anisoscope.__file__); "
        "runpy.run_module('anisoscope', run_name='__main__')"
    )
    given = os.environ | {"PYTHONPATH": str(installed)}
    command = [*quick(WARM), "-c", code, "measure", *words, "-o", "run", "--quiet"]
    done = subprocess.run(
        command, cwd=folder, env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(installed))
    return folder / "run"


def has_mean_cosine(folder):
    records = pd.read_parquet(folder / "records.parquet")
    return records["metric"].eq("mean_cosine").any()


def test_vectors_are_measured_from_the_wheel(installed, tmp_path):
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(60, 6)) + 1)
    assert has_mean_cosine(measure_from(installed, tmp_path, ["v.npy"], NO_PAGE))


# that the files of the page and of the demo are in the wheel is seen above, by their names
@pytest.mark.nightly
def test_the_demo_runs_from_the_wheel(installed, tmp_path):
    words = "builtin:minilm --corpus builtin:python-docs --limit 6 --panel hidden"
    folder = measure_from(installed, tmp_path, words.split())
    assert (folder / "report.html").stat().st_size > 10_000
    assert has_mean_cosine(folder)
