"""Devices that are not there: tensors that say they lie on one, compute on the CPU, and tell what a real one minds.

Operations on tensors of two devices raise; waits of the host for a device are counted. Nothing is timed.
"""

from collections import Counter

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

KIND = "npu"
CPU = torch.device("cpu")
aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.is_nonzero.default,
}
"""Operations whose result, or its shape, the host must know before it goes on."""
ACROSS = (
    aten._to_copy.default,
    aten.copy_.default,
    aten.index.Tensor,
    aten.index_put_.default,
)
"""Operations that may read one device and write another, or index by what lies on the CPU."""


def tensors(x):
    """Those among the arguments of an operation, which are nested in nothing but tuples, lists and dicts."""
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, tuple | list | dict):
        for part in x.values() if isinstance(x, dict) else x:
            yield from tensors(part)


def changed(x, change):
    """The same with each tensor changed."""
    if isinstance(x, torch.Tensor):
        return change(x)
    if isinstance(x, tuple | list):
        return type(x)([changed(part, change) for part in x])
    return (
        {name: changed(part, change) for name, part in x.items()}
        if isinstance(x, dict)
        else x
    )


class _Module(backend_registration._DummyBackendModule):
    devices = 0

    def is_available(self):
        return self.devices > 0

    def device_count(self):
        return self.devices


class _Hook(backend_registration._DummyPrivateUse1Hook):
    def is_available(self):
        return _Module.devices > 0


class Away(torch.Tensor):
    """A tensor that says it lies on `device`; `inner` holds its values."""

    @staticmethod
    def __new__(cls, inner, device):
        layout = {
            "strides": inner.stride(),
            "storage_offset": inner.storage_offset(),
            "dtype": inner.dtype,
        }
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, **layout, device=device
        )
        made.inner = inner
        return made

    def __repr__(self, **_):
        return f"Away({self.inner}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} outside of its machine")


class Machine(TorchDispatchMode):
    """A machine with `devices` of them. `waits` counts, by operation, what the host waited for; `largest` numbers in a
    tensor raise what a full memory does; `doubles` says whether they know float64.
    """

    def __init__(self, devices=2, largest=None, doubles=True):
        super().__init__()
        if not hasattr(torch, KIND):
            backend_registration._setup_privateuseone_for_python_backend(
                KIND, _Module(), _Hook()
            )
        self.devices, self.largest, self.doubles = devices, largest, doubles
        self.waits, self.launched, self.full = Counter(), Counter(), 0

    def __enter__(self):
        _Module.devices = self.devices
        self._tensor, torch.tensor = torch.tensor, self._constant
        return super().__enter__()

    def __exit__(self, *error):
        _Module.devices, torch.tensor = 0, self._tensor
        return super().__exit__(*error)

    def _constant(self, data, *, device=None, **options):
        """`torch.tensor`, which passes no mode by."""
        made = self._tensor(data, **options)
        return made if device is None else made.to(device)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        given = [*tensors((args, kwargs))]
        away = [x for x in given if isinstance(x, Away)]
        asked = (
            torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        )
        if asked is not None:
            kwargs["device"] = CPU
        at = asked or next((x.device for x in away), CPU)
        mixed = {str(x.device) for x in away} | {
            "cpu" for x in given if away and not isinstance(x, Away) and x.dim()
        }
        if len(mixed) > 1 and function not in ACROSS:
            raise RuntimeError(f"{function} of tensors on {', '.join(sorted(mixed))}")
        self._count(function, args, away, at)
        inner_args, inner_kwargs = changed(
            (args, kwargs), lambda x: x.inner if isinstance(x, Away) else x
        )
        out = function(*inner_args, **inner_kwargs)
        if at.type == "cpu":
            return out
        known = {id(x.inner): x for x in away}
        return changed(out, lambda x: self._made(x, at, known))

    def _count(self, function, args, away, at):
        """Count what is launched, and what the host waits for."""
        self.launched[str(function)] += 1 if away else 0
        by_mask = function in ACROSS[2:] and any(
            x.dtype == torch.bool for x in tensors(args[1:])
        )
        home = function is aten._to_copy.default and at.type == "cpu"
        home |= function is aten.copy_.default and not isinstance(args[0], Away)
        if away and (function in WAITS or by_mask or home):
            self.waits[str(function)] += 1

    def _made(self, x, at, known):
        if id(x) in known:
            return known[id(x)]
        if self.largest is not None and x.numel() > self.largest:
            self.full += 1
            raise torch.OutOfMemoryError(f"Tried to allocate {x.numel()} numbers")
        if not self.doubles and x.dtype == torch.float64:
            raise TypeError("Cannot convert a tensor to float64 on this device")
        return Away(x, at)
