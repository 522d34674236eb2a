"""Read settings from a file: `--config run.toml`, or the folder of a run that is to be measured again.

Light: the program imports it before it knows which command is called.
"""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict

from anisoscope.errors import UsageError
from anisoscope.options import expand_home
from anisoscope.provenance import json_roundtrip, note_config


def apply_config(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill options that were not typed from the file or run that `--config` names, and note both for the manifest."""
    named = [argument for argument in arguments if argument.name == "--config" and argument.tokens]
    if not named:
        return
    path = expand_home(named[0].tokens[-1].value)
    values = read_config(path)
    typed = {name: argument for argument in arguments if argument.tokens for name in argument.names}
    overrides = {}
    for name in values:
        argument = typed.get(f"--{name.replace('_', '-')}")
        if argument is not None:
            overrides[name] = ",".join(token.value or "true" for token in argument.tokens)
    by_flag = {name.replace("_", "-"): value for name, value in values.items()}
    Dict(by_flag, source=str(path), use_commands_as_keys=False)(app, commands, arguments)
    note_config({"file": str(path), "options": values, "overrides": overrides})


def read_config(path: Path) -> dict[str, Any]:
    """Read options by name from a TOML file, or from a finished run.

    UsageError for what is neither; for a run that was measured as the command line cannot ask for it.
    """
    if path.is_dir() and (path / "manifest.json").is_file():
        return read_options_of_run(path)
    if not path.is_file():
        raise UsageError("--config with a file of options or a run folder", f"{path}, which is none", "check the path")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # no TOML, or no UTF-8
        cure = 'write one option a line: limit = 20, panel = "hidden"'
        raise UsageError(f"options as TOML in {path}", str(error), cure) from None


def read_options_of_run(folder: Path) -> dict[str, Any]:
    """Return the options that a run was measured with, without those that depend on its machine."""
    from anisoscope.data.corpora import Columns
    from anisoscope.measure.settings import RENAMED, Settings
    from anisoscope.runs.job import NOT_IN_IDENTITY
    from anisoscope.store import RunFolder

    run = RunFolder(folder)
    manifest, identity = run.manifest, run.identity() or {}
    if "classes" in identity:
        asked = {"model": manifest["model"]} | identity["classes"]
        asked |= Columns.as_fields(asked.pop("columns", None))
    else:
        asked = dict(manifest["settings"])
        computed = {RENAMED.get(name, name): value for name, value in asked.pop("settings").items()}
        for field in fields(Settings):
            value = computed.get(field.name, field.default)
            if field.name in ONLY_IN_PYTHON and json_roundtrip(value) != json_roundtrip(field.default):
                got = f"{folder}, measured with {field.name}={value!r}"
                raise UsageError("a run that the command line can ask for", got, "measure it from Python")
        asked |= {name: value for name, value in computed.items() if name not in ONLY_IN_PYTHON}
    left_out = (*NOT_IN_IDENTITY, "step", "train_seed", "shard")
    return {name: value for name, value in asked.items() if value is not None and name not in left_out}


ONLY_IN_PYTHON = ("sample_heads", "bins", "at")
"""Fields of the settings that have no option."""
