"""What large models wear (`tools/wrappers.py`): some cells of its table, and what looking at a model must not do."""

import json

import pytest
import torch
import wrappers
from torch import nn

from anisoscope.models.identity import hash_weights

HERE = ("data_parallel", "torch_int8", "cpu_offload", "disk_offload", "lora", "fsdp1")
LATE = {"cpu_offload", "fsdp1"}
"""The hooks of one are those of `disk_offload`; the successor of the other is in `test_watched_fsdp.py`."""


def statuses(name):
    row = wrappers.row_of(name)
    return {column: cell["status"] for column, cell in row["cells"].items()}, row


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in LATE else ())
        for name in HERE
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_wrapped_model_has_the_records_of_the_bare_one(name):
    found, row = statuses(name)
    assert found == dict.fromkeys(wrappers.COLUMNS, "right"), row


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_that_has_run_is_looked_at_without_its_compiled_code(
    in_place, monkeypatch
):
    """Compiled code does not know hooks that come later."""

    def compiled(model):
        if in_place:
            model.compile(backend="eager")
            return model
        return torch.compile(model, backend="eager")

    def compiled_and_run(model):
        wrapped = compiled(model)
        for batch in wrappers.batches():
            wrapped(**batch)
        return wrapped

    monkeypatch.setitem(
        wrappers.WRAPPERS, "compile", wrappers.Wrapper("compiled", compiled_and_run)
    )
    found, row = statuses("compile")
    assert found == dict.fromkeys(wrappers.COLUMNS, "right"), row


def test_the_table_tells_wrong_numbers_and_crashes(monkeypatch):
    def moved(model):
        model.model.layers[1].mlp.down_proj.weight.data.mul_(1.01)
        return model

    def broken(model):
        model.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
        return model

    monkeypatch.setitem(wrappers.WRAPPERS, "plain", wrappers.Wrapper("moved", moved))
    found, _ = statuses("plain")
    assert found["hidden"] == found["spectrum"] == found["Monitor"] == "wrong"
    monkeypatch.setitem(wrappers.WRAPPERS, "plain", wrappers.Wrapper("broken", broken))
    found, _ = statuses("plain")
    assert set(found.values()) == {"crashed"}


def test_every_wrapper_is_in_the_kept_table_and_none_is_wrong():
    kept = json.loads(wrappers.KEPT.read_text("utf-8"))
    assert [*kept] == [*wrappers.WRAPPERS]
    for name, row in kept.items():
        assert set(row["cells"]) == {*wrappers.COLUMNS}
        assert {cell["status"] for cell in row["cells"].values()} <= {
            "right",
            "left out",
            "refused",
        }, name


class LaidOut(nn.Linear):
    """As a 4-bit layer of bitsandbytes on a CPU: its state dict turns the layout of the weight back, but not the
    scales.
    """

    def __init__(self):
        super().__init__(4, 4)
        self.weight.quant_state = State()

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        if self.weight.quant_state.packing_format_for_cpu:
            self.weight.data = self.weight.data.T
            self.weight.quant_state.packing_format_for_cpu = False
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in self.weight.quant_state.as_dict(packed=True).items():
            destination[f"{prefix}weight.{name}"] = value


class State:
    packing_format_for_cpu = True

    def __init__(self):
        self.absmax = torch.arange(4.0)

    def as_dict(self, packed):
        return {"absmax": self.absmax} if packed else {}


def test_hashing_leaves_a_quantised_model_as_it_is():
    model = nn.Sequential(LaidOut())
    before = model[0].weight.detach().clone()
    first = hash_weights(model)
    assert (
        torch.equal(model[0].weight, before)
        and model[0].weight.quant_state.packing_format_for_cpu
    )
    assert hash_weights(model) == first
    model[0].weight.quant_state.absmax += 1
    assert hash_weights(model) != first
    model[0].weight.quant_state.packing_format_for_cpu = False  # as it is saved
    assert (
        torch.equal(model.state_dict()["0.weight"], before)
        and "0.weight.absmax" in model.state_dict()
    )
