"""Choose where a model computes and with which numbers: devices and floating-point types by name."""

import os

import torch
from torch import nn

from anisoscope.errors import ModelError, suggest_names


def device_of(name: str) -> torch.device:
    """Return the device of this name. `auto` means the available accelerator, else the CPU.

    In a torchrun job with several accelerators it is the one of this process. ModelError if the device does not exist
    or cannot compute.
    """
    cure = "use --device auto, cpu, cuda or mps"
    if name == "auto":
        there = torch.accelerator.current_accelerator(check_available=True)
        name = "cpu" if there is None else there.type
    if (
        "LOCAL_RANK" in os.environ
        and ":" not in name
        and name not in ("cpu", "mps")
        and torch.accelerator.is_available()
    ):
        name = f"{name}:{int(os.environ['LOCAL_RANK']) % max(torch.accelerator.device_count(), 1)}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            "a device that is there", f"{name!r} ({str(error).splitlines()[0]})", cure
        ) from error
    if device.type == "meta":
        raise ModelError(
            "a device that computes", "'meta', which knows shapes only", cure
        )
    return device


def dtype_of(name: str) -> torch.dtype:
    """Return the floating-point type of this name. ModelError if there is none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        known = ["float32", "float64", "bfloat16", "float16"]
        raise ModelError(
            "a floating-point dtype", repr(name), suggest_names(name, known)
        )
    return dtype


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that the memory of the host or of a device is full."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    message = str(error)  # a RuntimeError of the CPU, and of MPS
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in message or "out of memory" in message
    )


def find_without_values(model: nn.Module) -> str | None:
    """Return the path of the first module with weights on the meta device, which have shapes but no values.

    Modules whose weights accelerate has offloaded do not count. None if there is no such module; "" means the model
    itself.
    """
    name: str
    for name, module in model.named_modules():
        is_offloaded = hasattr(module, "_hf_hook")
        if not is_offloaded and any(
            parameter.is_meta for parameter in module.parameters(recurse=False)
        ):
            return name
    return None
