"""Read the corpora that the papers name (corpora.toml)."""

import tomllib
from pathlib import Path

from anisoscope.data.corpora import NamedCorpus

_TABLE = Path(__file__).with_suffix(".toml").read_text("utf-8")
CORPORA = {name: NamedCorpus(**row) for name, row in tomllib.loads(_TABLE).items()}
