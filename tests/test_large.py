"""What large models need: chosen layers, and a cost that is known before the pass."""

import pytest
import tiny
import torch

from anisoscope.errors import UsageError
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.store import KEYS

PLACE = [name for name in KEYS if name not in ("run", "model", "revision", "step", "seed", "corpus")]


def records(name, **settings):
    """The long table of a tiny model, by place, and its measurement."""
    plan = tiny.Plan(tiny.documents(8), decoder=name in tiny.TWO_STACKS)
    measured = run_pass(tiny.model(name), plan, Settings(sample=16, **settings))
    frame = measured.records()
    return frame.set_index(PLACE)[["value", "low", "high", "n_vectors", "n_units"]], measured


@pytest.mark.parametrize(
    ("name", "layers", "chosen"),
    [("bert", (0, 2), {0, 2}), ("gemma3", (1, -1), {1, 3}), ("t5", (0, -2), {0, 2}), ("bert", (0,), {0})],
)
def test_chosen_layers_are_those_of_the_whole_run(name, layers, chosen):
    panels = ("hidden", "spectrum", "attention", "alignment")
    whole, _ = records(name, panels=panels)
    part, measured = records(name, panels=panels, layers=layers)
    expected = whole[whole.index.get_level_values("layer").isna() | whole.index.get_level_values("layer").isin(chosen)]
    assert len(part) == len(expected) > 50
    assert part.sort_index().equals(expected.sort_index())
    depth = tiny.LAYERS
    assert {depth if site.layer is None else site.layer for site in measured.sites.values()} == chosen


@pytest.mark.parametrize("layer", [4, -5])
def test_a_layer_that_is_not_there_is_told_with_those_that_are(layer):
    with pytest.raises(UsageError, match=r"0 to 3, or −1 and less"):
        records("bert", layers=(0, layer))


def test_layers_of_a_block_that_runs_several_times_are_numbered_from_the_start():
    from transformers import AlbertConfig, AlbertModel

    sizes = {"embedding_size": 16, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    model = AlbertModel(AlbertConfig(num_hidden_layers=3, vocab_size=tiny.VOCABULARY, **sizes)).eval()
    plan = tiny.Plan(tiny.documents(4))
    measured = run_pass(model, plan, Settings(panels=("hidden",), layers=(3,), sample=0))
    assert {site.layer for site in measured.sites.values()} == {3}
    with pytest.raises(UsageError, match="from the end"):
        run_pass(model, plan, Settings(panels=("hidden",), layers=(-1,), sample=0))


@pytest.mark.parametrize(("given", "read"), [("0,8,-1", (0, 8, -1)), ("all", ()), ([0, 3], (0, 3))])
def test_layers_as_typed_and_from_python(given, read):
    from anisoscope.options import asked

    field = next(field for field in asked(Settings) if field.name == "layers")
    assert field.read(given, "--layers") == read


def test_layers_that_are_no_numbers_are_refused():
    from anisoscope.measure.settings import layers_of

    with pytest.raises(UsageError, match="numbers with commas"):
        layers_of("0-3")


def test_vectors_have_layers_too():
    import anisoscope

    arrays = [torch.randn(40, 8).numpy() for _ in range(3)]
    whole = anisoscope.measure(arrays, panel="hidden", sample=0).records
    part = anisoscope.measure(arrays, panel="hidden", sample=0, layers=[0, -1]).records
    assert part["value"].tolist() == whole[whole["layer"].isin([0, 2])]["value"].tolist()
