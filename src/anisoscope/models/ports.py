"""Ports: architectures that transformers lacks. `register` makes its Auto classes know those named in the families."""

from functools import cache
from importlib import import_module


@cache
def register() -> None:
    """Register with transformers' Auto classes all architectures that transformers lacks and a `Family` provides."""
    import transformers
    from transformers.models.auto import configuration_auto

    from anisoscope.models.families import families

    for name, family in families().items():
        # If a newer transformers has the architecture itself, that one is used.
        if not family.port or name in configuration_auto.CONFIG_MAPPING_NAMES:  # type: ignore[attr-defined]
            continue
        module = import_module(family.module)
        classes = {auto: getattr(module, cls) for auto, cls in family.port.items()}
        config = classes.pop("AutoConfig")
        transformers.AutoConfig.register(name, config, exist_ok=True)
        for auto, model in classes.items():
            getattr(transformers, auto).register(config, model, exist_ok=True)
