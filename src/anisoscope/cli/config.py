"""Read settings from a file: `--config run.toml`, or the folder of a run that is to be measured again.

Light: the program imports it before it knows which command is called.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict

from anisoscope.errors import UsageError
from anisoscope.options import expand_home
from anisoscope.provenance import json_roundtrip, note_config


def apply_config(
    app: App, commands: tuple[str, ...], arguments: ArgumentCollection
) -> None:
    """Fill options that were not typed from the file or run that `--config` names, and note both for the manifest."""
    typed_path = _find_typed_path(arguments)
    if typed_path is None:
        return
    path = expand_home(typed_path)
    values = read_config(path)
    # What was typed goes before what the file says; the manifest keeps both.
    typed = _list_typed_values(arguments)
    # Read before the file fills the gaps: afterwards nobody can tell what was typed.
    overrides = {name: typed[name] for name in values if name in typed}
    by_flag = {name.replace("_", "-"): value for name, value in values.items()}
    # cyclopts' own reader of configurations: values are checked as if they were typed,
    # and errors name the file.
    Dict(by_flag, source=str(path), use_commands_as_keys=False)(
        app, commands, arguments
    )
    note_config({"file": str(path), "options": values, "overrides": overrides})


def _find_typed_path(arguments: ArgumentCollection) -> str | None:
    """Return what was typed after `--config`, the last if it was typed twice; None if it was not typed."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            return argument.tokens[-1].value
    return None


def _list_typed_values(arguments: ArgumentCollection) -> dict[str, str]:
    """Return the options that were typed on the command line: {name in Python: its values, with commas}."""
    typed = {}
    for argument in arguments:
        if not argument.tokens:
            continue
        # A switch has no value. Of an option that was repeated, the values are listed
        # with commas.
        value = ",".join(token.value or "true" for token in argument.tokens)
        for flag in argument.names:
            typed[flag.removeprefix("--").replace("-", "_")] = value
    return typed


def read_config(path: Path) -> dict[str, Any]:
    """Read options by name from a TOML file, or from a finished run.

    UsageError for what is neither; for a run that was measured as the command line cannot ask for it.
    """
    # A run is a set of options too: `--config RUN` measures something else the same
    # way.
    if path.is_dir() and (path / "manifest.json").is_file():
        return read_options_of_run(path)
    if not path.is_file():
        raise UsageError(
            "--config with a file of options or a run folder",
            f"{path}, which is neither",
            "check the path",
        )
    # Raised both for what is no TOML and for what is no UTF-8.
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        cure = 'write one option per line: limit = 20, panel = "hidden"'
        raise UsageError(f"options as TOML in {path}", str(error), cure) from None


def read_options_of_run(folder: Path) -> dict[str, Any]:
    """Return the options that a run was measured with, without those that depend on its machine."""
    from anisoscope.data.corpora import Columns
    from anisoscope.runs.job import NOT_IN_IDENTITY
    from anisoscope.store import RunFolder

    run = RunFolder(folder)
    manifest = run.manifest
    identity = run.identity() or {}
    # Runs of `anisoscope classes` have options of another command.
    if "classes" in identity:
        options = {"model": manifest["model"]} | identity["classes"]
        options |= Columns.as_fields(options.pop("columns", None))
    else:
        options = dict(manifest["settings"])
        options |= _read_settings_options(options.pop("settings"), folder)
    # What says where and which part was run, and not what was measured; a copy of it
    # would be wrong on another machine.
    left_out = (*NOT_IN_IDENTITY, "step", "train_seed", "shard")
    kept: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None and name not in left_out:
            kept[name] = value
    return kept


def _read_settings_options(saved: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of the settings that a run saved. UsageError for settings that only Python can give.

    saved    fields of `Settings`, maybe under names of older versions
    folder   of the run
    """
    from anisoscope.measure.settings import Settings
    from anisoscope.renamed import SETTINGS

    # Runs of older versions have fields under other names.
    values = {SETTINGS.get(name, name): value for name, value in saved.items()}
    for field in fields(Settings):
        if field.name not in ONLY_IN_PYTHON:
            continue
        value = values.pop(field.name, field.default)
        # Compared as JSON has them: a tuple of the settings was saved as a list.
        if json_roundtrip(value) != json_roundtrip(field.default):
            got = f"{folder}, measured with {field.name}={value!r}"
            raise UsageError(
                "a run whose settings the command line has",
                got,
                "measure it from Python",
            )
    return values


ONLY_IN_PYTHON = ("sample_heads", "bins", "at")
"""Fields of the settings that have no option."""
