"""The paper's own numbers, in published.toml beside this file: {table: {corpus: …}}."""

import tomllib
from importlib.resources import files
from typing import Any

NUMBERS: dict[str, dict[str, Any]] = tomllib.loads(
    files("anisoscope.studies.fosse2023").joinpath("published.toml").read_text("utf-8")
)
