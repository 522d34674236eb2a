"""Models with short names, also from other packages: checkpoints of the hub, and networks inside installed packages."""

from typing import NamedTuple, TypeVar

from anisoscope.registry import list_entries_of

Row = TypeVar("Row")


class NamedModel(NamedTuple):
    """A checkpoint of the hub with a short name.

    modality       what it reads: `text`, `speech` or `image`
    note           what else a list says of it
    licence, size  as its authors state them; size in parameters
    """

    hub_id: str
    modality: str
    note: str = ""
    licence: str = "unknown"
    size: str = "unknown"


class PackagedModel(NamedTuple):
    """Weights in a Python package, which the command `install` installs. The package is located, but never imported."""

    package: str
    file: str
    install: str
    description: str


class ConvertedModel(NamedTuple):
    """A trained network in a Python package (`install` installs it), converted once to a folder in hub format.

    convert   `module:function`, called with the name; it returns the folder. Imported when the model is loaded
    modality  what it reads: `text`, `speech` or `image`
    """

    convert: str
    install: str
    description: str
    modality: str


def named_models() -> dict[str, NamedModel]:
    """Return the checkpoints of the hub that have short names, by name."""
    return _list_rows(NamedModel)


def packaged_models() -> dict[str, PackagedModel]:
    """Return the models whose weights are in an installed package, by name (`builtin:…`)."""
    return _list_rows(PackagedModel)


def converted_models() -> dict[str, ConvertedModel]:
    """Return the models in packages that are first converted to a folder in hub format, by name (`builtin:…`)."""
    return _list_rows(ConvertedModel)


def _list_rows(kind: type[Row]) -> dict[str, Row]:
    """Return the models with short names whose row is of the class `kind`, by name."""
    rows = {}
    for name, row in list_entries_of("models").items():
        if isinstance(row, kind):
            rows[name] = row
    return rows


def hub_id(name: str) -> str:
    """Return the hub id that a short name stands for; any other name unchanged."""
    named = named_models()
    return named[name].hub_id if name in named else name
