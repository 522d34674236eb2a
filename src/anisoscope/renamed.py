"""Old names of metrics, sites, corpora and options, and what they are called now.

Names are translated where something is read: records and descriptions of runs (`store`), names of corpora (`data`),
options, and names that a user asks for. All other code knows only today's names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

METRICS = {
    "replaced.accuracy": "ablation.accuracy",
    "replaced.agreement": "ablation.agreement",
    "replaced.cls": "ablation.cls",
    "replaced.output": "ablation.output",
    "replaced.rows": "ablation.rows",
    "explains.auprc": "attribution.auprc",
    "explains.auroc": "attribution.auroc",
    "explains.iou": "attribution.iou",
    "explains.comprehensiveness": "attribution.comprehensiveness",
    "explains.sufficiency": "attribution.sufficiency",
}
SITES = {"unrectified": "pre_relu"}
CORPORA = {"planted": "synthetic", "planted-pairs": "synthetic-pairs"}
"""Names of corpora; a number of classes may follow (`planted:3`)."""
PARTS = {"replaced": "ablation", "explained": "attribution"}
"""Parts of `anisoscope classes`."""
FIGURES = {
    "replaced-accuracy": "ablation-accuracy",
    "explains-auprc": "attribution-auprc",
    "explains-comprehensiveness": "attribution-comprehensiveness",
}
SETTINGS = {"panels": "panel", "policies": "tokens", "median": "medians"}
"""Fields of the settings of a measurement."""

NAMING_CORPORA = ("corpus", "corpora", "tasks")
"""Entries of manifests, recipes and settings of studies that name corpora."""


def rename_corpus(name: str) -> str:
    """Return today's name of a corpus; unchanged if it is no old name. `planted:3` becomes `synthetic:3`."""
    base, colon, classes = name.partition(":")
    return f"{CORPORA.get(base, base)}{colon}{classes}"


def rename_typed_corpus(name: str) -> str:
    """Return today's name of a corpus that a user named; `./planted` if there is a file or folder with an old name."""
    today = rename_corpus(name)
    # An old name is reserved no longer: it must not hide what a user calls so. With `./` it is no old name.
    if today != name and Path(name).exists():
        return f"./{name}"
    return today


def rename_site(name: str) -> str:
    """Return the current name of a site that an older version wrote; other names are returned unchanged.

    It may have stack and layer before it: `encoder.1.unrectified` becomes `encoder.1.pre_relu`.
    """
    place, dot, site = name.rpartition(".")
    return f"{place}{dot}{SITES.get(site, site)}"


def rename_described(described: Any) -> Any:
    """Return a JSON object that describes a run, a training or a study, with today's names.

    Corpora, parts of `anisoscope classes` and sites are renamed, at any depth. What is no old name stays the same.

    described   a manifest, an identity, what is noted of a training or a study, or a part of one of these
    """
    if isinstance(described, list):
        return [rename_described(part) for part in described]
    if not isinstance(described, Mapping):
        return described
    return {key: _rename_entry(key, value) for key, value in described.items()}


def _rename_entry(key: str, value: Any) -> Any:
    """Return the value of an entry of such an object with today's names; what is renamed depends on its key."""
    # Only here is a name sure to be a corpus: elsewhere `planted` may be anything.
    if key in NAMING_CORPORA:
        return _rename_corpora(value)
    if key == "parts" and isinstance(value, list):
        return [_rename_part(part) for part in value]
    if key == "excluded" and isinstance(value, Mapping):
        return {rename_site(site): counts for site, counts in value.items()}
    return rename_described(value)


def _rename_part(part: Any) -> Any:
    """Return today's name of a part of `anisoscope classes`; anything but an old name unchanged."""
    if isinstance(part, str):
        return PARTS.get(part, part)
    return part


def _rename_corpora(value: Any) -> Any:
    """Return today's names in an entry that names corpora: a name, a list of names, or an object with a `name`."""
    if isinstance(value, str):
        return rename_corpus(value)
    if isinstance(value, list):
        return [_rename_corpora(part) for part in value]
    # A manifest describes its corpus by an object with more than a name.
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return {**value, "name": rename_corpus(value["name"])}
    return value
