"""Ports of architectures that transformers lacks, under their published parameter names; `register` makes its Auto
classes know them. Imported when first needed: they load much.

May import: `models`, `errors`.
"""

from functools import cache
from importlib import import_module


@cache
def register() -> None:
    """Make transformers' Auto classes know every port in the table of families that transformers itself lacks."""
    import transformers
    from transformers.models.auto import configuration_auto

    from anisoscope.models.families import FAMILIES

    for name, family in FAMILIES.items():
        if not family.port or name in configuration_auto.CONFIG_MAPPING_NAMES:  # type: ignore[attr-defined]
            continue
        port = import_module(f"anisoscope.models.ports.{name}")
        classes = {auto: getattr(port, cls) for auto, cls in family.port.items()}
        config = classes.pop("AutoConfig")
        transformers.AutoConfig.register(name, config, exist_ok=True)
        for auto, model in classes.items():
            getattr(transformers, auto).register(config, model, exist_ok=True)
