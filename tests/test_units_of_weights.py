"""Weights that lie packed, laid off or in parts, ports, groups of processes and streams of batches: on stand-ins."""

import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anisoscope.batch import Batch
from anisoscope.errors import MeasureError
from anisoscope.measure import distributed, loop, random_state
from anisoscope.models import hub_memory, identity, modes, parallelism, ports
from anisoscope.models.families import Family


def linear():
    return nn.Linear(2, 2)


# ---- weights as they lie


class FourBit(nn.Module):
    """A layer of bitsandbytes: its own method changes the weight, and its scales are kept apart."""

    def __init__(self, packing=True):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.weight.quant_state = SimpleNamespace(
            packing_format_for_cpu=packing,
            as_dict=lambda packed: {"absmax": torch.tensor([3.0 + packed])},
        )
        self.changed = 0

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        self.changed += 1
        super()._save_to_state_dict(destination, prefix, keep_vars)


def test_the_state_of_packed_layers_is_read_without_a_change():
    model = nn.ModuleDict({"a": FourBit(), "b": FourBit(packing=False), "c": linear()})
    state = identity._read_state(model)
    assert sorted(state) == ["a.weight", "a.weight.absmax", "b.weight", "c.bias", "c.weight"]  # fmt: skip
    assert state["a.weight.absmax"].tolist() == [4]
    assert (model["a"].changed, model["b"].changed) == (0, 1)
    assert "_save_to_state_dict" not in vars(model["a"]), "its own method is back"
    first = identity.hash_weights(model)
    model["a"].weight.quant_state.as_dict = lambda packed: {"absmax": torch.tensor([5.0])}  # noqa: ARG005  # fmt: skip
    assert identity.hash_weights(model) != first


def test_weights_of_several_processes_and_laid_off_ones_are_read_whole():
    x = torch.arange(4.0)
    split = SimpleNamespace(full_tensor=lambda: x)
    assert identity.gather_whole(split) is x and identity.gather_whole(3) == 3
    model = nn.ModuleDict({"inner": nn.Module()})
    inner = model["inner"]
    inner.register_parameter("w", nn.Parameter(torch.zeros(4, device="meta")))
    inner._hf_hook = SimpleNamespace(weights_map={"w": x})
    here = nn.ModuleDict({"inner": nn.Module()})
    here["inner"].register_parameter("w", nn.Parameter(x.clone()))
    assert identity.hash_weights(model) == identity.hash_weights(here)
    inner._hf_hook.weights_map["w"] = x + 1
    assert identity.hash_weights(model) != identity.hash_weights(here)
    read = distributed.read_whole_weight
    assert torch.equal(read(model, inner, "w"), x + 1)
    own = linear()
    assert read(own, own, "weight") is own.weight
    inner.packed = (1, 2)
    assert read(model, inner, "packed") == (1, 2)


def test_only_the_innermost_unit_around_a_weight_is_gathered(monkeypatch):
    from torch.distributed import fsdp

    opened = []

    class Unit(nn.Module):
        def __init__(self, **inner):
            super().__init__()
            for name, module in inner.items():
                setattr(self, name, module)

        @staticmethod
        @contextmanager
        def summon_full_params(unit, **how):
            opened.append((unit, how))
            yield

    monkeypatch.setattr(fsdp, "FullyShardedDataParallel", Unit)
    layer = linear()
    inner = Unit(layer=layer)
    outer = Unit(other=Unit(x=linear()), inner=inner)
    found = distributed.read_whole_weight(outer, layer, "weight")
    assert torch.equal(found, layer.weight) and found is not layer.weight
    assert opened == [(inner, {"recurse": False, "writeback": False})]


def test_a_model_is_wrapped_if_any_part_of_it_is():
    wrapper = nn.parallel.DistributedDataParallel.__new__(
        nn.parallel.DistributedDataParallel
    )
    nn.Module.__init__(wrapper)
    assert parallelism._is_wrapped(nn.ModuleDict({"a": linear(), "b": wrapper}))
    assert not parallelism._is_wrapped(nn.ModuleDict({"a": linear()}))


# ---- ports and modes


def test_only_architectures_that_transformers_lacks_are_registered(monkeypatch):
    done = []

    def auto(name):
        return SimpleNamespace(register=lambda *given, **how: done.append((name, *given, how)))  # fmt: skip

    rows = {
        "q5-own": Family(
            module="own",
            port={"AutoModel": "M", "AutoConfig": "C", "AutoModelForX": "X"},
        ),
        "bert": Family(module="own", port={"AutoConfig": "C"}),
        "plain": Family(module="own"),
    }
    own = SimpleNamespace(M="model", C="config", X="headed")
    monkeypatch.setattr("anisoscope.models.families.families", lambda: rows)
    monkeypatch.setattr(ports, "import_module", lambda _: own)
    for name in ("AutoConfig", "AutoModel", "AutoModelForX"):
        monkeypatch.setattr(f"transformers.{name}", auto(name), raising=False)
    ports.register.__wrapped__()
    how = {"exist_ok": True}
    assert done == [
        ("AutoConfig", "q5-own", "config", how),
        ("AutoModel", "config", "model", how),
        ("AutoModelForX", "config", "headed", how),
    ]


def test_compiled_models_run_without_their_code(monkeypatch):
    stances = []

    @contextmanager
    def stance(name):
        stances.append(name)
        yield
        stances.append("end")

    monkeypatch.setattr(torch.compiler, "set_stance", stance)
    model = nn.Sequential(linear())
    with modes.run_eagerly(model):
        assert stances == []
    model[0]._compiled_call_impl = lambda *_: None
    with modes.run_eagerly(model):
        assert stances == ["force_eager"]
    assert stances == ["force_eager", "end"]


def test_each_refusal_of_the_hub_is_kept_and_no_other_failure():
    for status, times in ((401, 1), (403, 1), (404, 1), (500, 2), (429, 2), (0, 2)):
        asked = []

        def ask(status=status, asked=asked):
            asked.append(status)
            error = ValueError("x")
            if status:
                error.response = SimpleNamespace(status_code=status)
            raise error

        with hub_memory.ask_once():
            for _ in range(2):
                with pytest.raises(ValueError, match="x"):
                    hub_memory.get_answer("q", ask)
        assert len(asked) == times, status


# ---- groups of processes


@pytest.fixture
def job(monkeypatch):
    """A job of two processes, in which nothing is connected. Returns what was done in turn."""
    done = []

    class Store(dict):
        def set(self, name, value):
            self[name] = value
            # The other process comes a little later.
            done.append(("set", name))

        def check(self, names):
            done.append(("check", tuple(names)))
            self["here 0"] = ""
            return len(done) > 5

    store = Store()
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (1, 2))
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(
        distributed,
        "rendezvous",
        lambda url, timeout: (
            iter([(store, 1, 2)])
            if (url, timeout) == ("env://", distributed.PATIENCE)
            else None
        ),
    )

    def prefix(name, given):
        assert given is store
        done.append(("prefix", name))
        return store

    monkeypatch.setattr(distributed, "PrefixStore", prefix)
    monkeypatch.setattr(
        distributed.dist,
        "init_process_group",
        lambda backend, **how: done.append((backend, how)),
    )
    monkeypatch.setattr(
        distributed.dist, "destroy_process_group", lambda: done.append("destroy")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.accelerator, "set_device_index", lambda n: done.append(("device", n))
    )
    monkeypatch.setattr(distributed._Notices, "groups", 4)
    monkeypatch.setattr(distributed._Notices, "store", None)
    done.clear()
    return done, store


def test_a_group_is_opened_and_closed_around_a_block(job, monkeypatch):
    done, store = job
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with distributed.open_process_group("cpu"):
        assert distributed._Notices.store is store
    assert done[0] == ("prefix", "anisoscope 5")
    assert done[1] == ("set", "here 1")
    assert done[2] == ("check", ("here 0", "here 1"))
    group = {"store": store, "rank": 1, "world_size": 2}
    assert done[-2:] == [
        ("gloo", {"timeout": distributed.PATIENCE, **group}),
        "destroy",
    ]
    assert distributed._Notices.store is None
    with distributed.open_process_group("cpu"):
        pass
    assert ("prefix", "anisoscope 6") in done, "of every group its own"


def test_the_backend_of_a_group_is_that_of_its_devices(job, monkeypatch):
    """NCCL only if each process has a GPU of its own; errors end the group too."""
    done, _ = job
    for device, here, index, backend in (
        ("cuda:1", "2", 1, "nccl"),
        ("cuda", "2", 0, "nccl"),
        ("cuda:1", "3", 1, "gloo"),
        ("cpu", "1", None, "gloo"),
    ):
        done.clear()
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
        with (
            pytest.raises(KeyError),
            distributed.open_process_group(device),
        ):
            raise KeyError
        devices = [each[1] for each in done if each[0] == "device"]
        assert devices == ([] if index is None else [index])
        assert done[-1] == "destroy" and done[-2][0] == backend


def test_a_group_that_is_open_or_of_one_process_is_left_alone(job, monkeypatch):
    done, _ = job
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    with distributed.open_process_group("cpu"):
        pass
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (0, 1))
    with distributed.open_process_group("cpu"):
        pass
    assert done == []
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (1, 2))

    def lost(*_given, **_how):
        raise RuntimeError("Connection closed")

    monkeypatch.setattr(distributed.dist, "init_process_group", lost)
    with (
        pytest.raises(MeasureError, match="another process that has ended"),
        distributed.open_process_group("cpu"),
    ):
        pass
    assert distributed._Notices.store is None, "no group, so nobody to tell"
    monkeypatch.setattr(distributed, "_wait_for_all", lost)
    with (
        pytest.raises(MeasureError, match="another process that has ended"),
        distributed.open_process_group("cpu"),
    ):
        pass
    assert distributed._Notices.store is None
    numbers = (signal.SIGINT, signal.SIGTERM)
    assert all(signal.getsignal(n) is not signal.SIG_DFL for n in numbers[:1])


def test_whole_weights_of_every_unit_are_freed(monkeypatch):
    from torch.distributed import fsdp

    freed = []

    class Unit(nn.Module):
        def reshard(self):
            freed.append(self)

    monkeypatch.setattr(fsdp, "FSDPModule", Unit)
    model = Unit()
    model.a, model.b = linear(), Unit()
    distributed.reshard(model)
    assert freed == [model, model.b]


# ---- batches on their way


def test_the_next_batch_is_prepared_while_one_is_measured(monkeypatch):
    """Each is pinned, wherever its tensors are, and comes with its own number."""
    monkeypatch.setattr(loop, "PINNED", ("cpu",))
    monkeypatch.setattr(loop, "_pin", lambda x: x + 100)
    read = []

    def batches():
        for number in (3, 5, 8):
            read.append(number)
            x = torch.tensor([number])
            yield number, Batch({"x": x, "n": [x, "text"]}, torch.zeros(1))

    seen = []
    for number, batch in loop.prefetch(batches(), torch.device("cpu")):
        inner, text = batch.inputs["n"]
        seen.append((number, batch.inputs["x"].item(), inner.item(), text))
        assert batch.unit.tolist() == [0]
    assert seen == [(n, n + 100, n + 100, "text") for n in (3, 5, 8)]
    assert read == [3, 5, 8]
    monkeypatch.setattr(loop, "PINNED", ("cuda",))
    found = list(loop.prefetch(batches(), torch.device("cpu")))
    assert [batch.inputs["x"].item() for _, batch in found] == [3, 5, 8]


def test_only_tensors_of_the_host_are_pinned():
    meta = torch.zeros(1, device="meta")
    assert loop._pin(meta) is meta

    class Refusing(torch.Tensor):
        def pin_memory(self):
            raise NotImplementedError

    refusing = torch.zeros(1).as_subclass(Refusing)
    assert loop._pin(refusing) is refusing


def test_a_device_is_found_wherever_weights_are():
    hook = SimpleNamespace(execution_device=None)
    model = nn.Sequential(
        nn.Linear(1, 1, device="meta"), nn.Linear(1, 1, device="meta")
    )
    model[0]._hf_hook = hook
    assert loop.find_device(model) == torch.device("cpu")
    model[1]._hf_hook = SimpleNamespace(execution_device="meta")
    assert loop.find_device(model) == torch.device("meta")
    hook.execution_device = "cpu"
    assert loop.find_device(model) == torch.device("cpu")


def test_generators_of_every_device_are_given_back(monkeypatch):
    """Each kind of device with all of its numbers; kinds without a state of their own are not asked."""
    forked, states = [], []

    @contextmanager
    def fork(devices, **how):
        forked.append((list(devices), how))
        yield

    def accelerator():
        return SimpleNamespace(get_rng_state=lambda: None)

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    monkeypatch.setattr(torch, "cuda", accelerator())
    monkeypatch.setattr(torch, "xpu", SimpleNamespace())
    monkeypatch.setattr(
        torch,
        "mps",
        SimpleNamespace(get_rng_state=lambda: "before", set_rng_state=states.append),
    )

    def device(kind, index=None):
        return SimpleNamespace(type=kind, index=index)

    devices = [device("cuda", 3), device("cuda"), device("cuda", 1), device("cpu")]
    devices += [device("meta"), device("xpu", 0), device("mps")]
    with random_state.fork_random_state(devices):
        assert states == []
    assert forked == [([], {}), ([0, 1, 3], {"device_type": "cuda"})]
    assert states == ["before"]
