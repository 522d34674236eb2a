"""The GPU's kernels: run on a CPU by Triton's interpreter, and compiled for an H100."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest
from quick import quick

FOLDER = Path(__file__).parent
ROWS, VECTORS = FOLDER / "row_kernel_cases.py", FOLDER / "vector_kernel_cases.py"
IMPORTED = """triton.language torch torch.distributed torch.distributed.tensor scipy.stats pandas pyarrow.parquet
transformers.modeling_utils"""
"""What the cases import, before each is forked."""
NEAR = 2e-6
"""Of the largest number: some ten units in the last place of float32."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def run_case(cases, name, folder, *, interpreted=True):
    """What a case finds, in a process of its own."""
    environment = os.environ | {
        "TRITON_CACHE_DIR": str(folder),
        "TRITON_INTERPRET": "1" if interpreted else "0",
    }
    # A server for each way: Triton reads TRITON_INTERPRET as it is imported.
    with patch.dict(os.environ, environment):
        interpreter = quick(IMPORTED if interpreted else f"{IMPORTED} triton.compiler")
    command = [*interpreter, str(cases), name]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("dtype", "cells"),
    [
        pytest.param("float32", 16, marks=pytest.mark.nightly),
        pytest.param("float16", 4, marks=pytest.mark.nightly),
        ("bfloat16", 4),  # fewer digits than the others have
    ],
)
def test_rows_are_those_of_a_plain_computation(dtype, cells, tmp_path):
    """Every pattern × kind of head, with each side of padding and each form of mask among them, in float64 by hand."""
    assert len(run_case(ROWS, dtype, tmp_path)) == cells


def test_rows_are_those_of_plain_blocks(tmp_path):
    """Biases, masks of heads, other numbers of queries and keys, widths, strides, large scores, hidden rows."""
    apart = run_case(ROWS, "blocks", tmp_path)
    assert len(apart) == 13
    assert {name: x for name, x in apart.items() if x > NEAR} == {}


def test_undefined_rows_are_undefined(tmp_path):
    """A NaN that is seen makes the rows undefined that see it, and no others."""
    assert max(run_case(ROWS, "undefined", tmp_path).values()) <= NEAR


@pytest.mark.parametrize("case", ["sums", "lengths", "whole"])
def test_sums_of_vectors_are_those_of_float64(case, tmp_path):
    """Layers, heads, strides, types of numbers, lengths from 1e-30 to 1e30, zeros and what is not finite."""
    apart = run_case(VECTORS, case, tmp_path)
    assert len(apart) >= 10
    assert {name: x for name, x in apart.items() if x > NEAR} == {}


@pytest.mark.parametrize(
    ("cases", "lies"),
    [
        (ROWS, {"a lost key", "a wrong scale", "not causal", "no compiler"}),
        (VECTORS, {"a lost token", "longer vectors", "no compiler"}),
    ],
    ids=["rows", "vectors"],
)
def test_kernels_prove_themselves_at_first_use(cases, lies, tmp_path):
    """What is wrong or cannot run is not used, the numbers are right all the same, and one warning says why."""
    found = run_case(cases, "first", tmp_path)
    assert found.pop("right") == {"used": [True], "same": True, "warned": []}
    assert set(found) == lies
    for name, each in found.items():
        assert each["used"] == [False], name
        assert each["same"], name
        assert len(each["warned"]) == 1, name
        assert "plain operations" in each["warned"][0]
    assert "ptxas was not found" in found["no compiler"]["warned"][0]


@pytest.mark.nightly
def test_kernels_compile_for_an_h100_without_spilling(tmp_path):
    """Each form, by the compiler itself: the registers suffice, so that no sum is kept in slow memory."""
    of_rows, of_vectors = (
        run_case(cases, "compiled", tmp_path, interpreted=False)
        for cases in (ROWS, VECTORS)
    )
    assert (len(of_rows), len(of_vectors)) == (12, 9)
    found = of_rows | of_vectors
    assert {
        name: each
        for name, each in found.items()
        if each["stack"] > 0 or each["registers"] > 255
    } == {}
    with_tensor_cores = {name for name, each in of_rows.items() if each["tensor_cores"]}
    assert with_tensor_cores == {
        name for name in of_rows if "bf16" in name or "fp16" in name
    }
