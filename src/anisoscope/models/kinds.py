"""Say what to do with a model that is no torch module written in Python: exported, scripted, or of another library."""

from typing import Any

import torch

from anisoscope.errors import UsageError

VECTORS = "its hidden states as vectors, anisoscope.measure(np.asarray(states))"
ELSEWHERE = {
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "flax": "JAX",
    "equinox": "JAX",
    "haiku": "JAX",
    "mlx": "MLX",
}
"""Libraries whose models cannot be captured, by the package of a class."""


def check_kind(model: Any) -> None:
    """Raise UsageError for a model that no capture can hook: one of another library, or without its Python code."""
    name = type(model).__name__
    # With base classes: a user's own class inherits from one of the library.
    modules = [kind.__module__ for kind in type(model).__mro__]
    for module in modules:
        library = ELSEWHERE.get(module.partition(".")[0])
        if library is not None:
            raise UsageError(
                "a model of PyTorch",
                f"{name} of {library}",
                f"load its weights in PyTorch, or give {VECTORS}",
            )
    if any(module.startswith("torch.export") for module in modules):
        cure = "give the model that was exported"
        raise UsageError(
            "a model in Python code",
            f"a program of torch.export ({name}), whose blocks are gone",
            cure,
        )
    if isinstance(model, torch.jit.ScriptModule):
        cure = "give the model that was scripted or traced"
        raise UsageError(
            "a model in Python code",
            f"a program of torch.jit ({name}), which takes no hooks",
            cure,
        )
