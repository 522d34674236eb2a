"""Shared fixtures: real data by ANISOSCOPE_DATA, and the packaged model."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder():
    """The folder of real data; what needs it is skipped by name where the variable is unset."""
    folder = os.environ.get("ANISOSCOPE_DATA")
    if not folder:
        pytest.skip("ANISOSCOPE_DATA is not set: real data are not at hand")
    if not Path(folder, "wikitext").is_dir():
        pytest.skip(f"ANISOSCOPE_DATA is {folder}, where there is no wikitext/")
    return Path(folder)


@pytest.fixture(scope="session")
def minilm():
    """The packaged pretrained encoder with its tokenizer."""
    from anisoscope.models.load import load

    return load("builtin:minilm")
