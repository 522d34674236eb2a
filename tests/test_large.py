"""What large models need: chosen layers, and a cost that is known before the pass."""

from functools import cache
from importlib import import_module

import pytest
import tiny
import torch
from safetensors import safe_open

import anisoscope
from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import UsageError
from anisoscope.measure import cost
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.cost import estimate_cost, find_shapes, find_shapes_on_meta
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.store import KEYS

PLACE = [
    name
    for name in KEYS
    if name not in ("run", "model", "revision", "step", "seed", "corpus")
]


def records(name, **settings):
    """The long table of a tiny model, by place, and its measurement."""
    plan = tiny.Plan(tiny.documents(8), decoder=name in tiny.TWO_STACKS)
    measured = run_pass(tiny.model(name), plan, Settings(sample=16, **settings))
    frame = measured.records()
    return frame.set_index(PLACE)[
        ["value", "low", "high", "n_vectors", "n_units"]
    ], measured


@pytest.fixture(autouse=True)
def _nothing_remembered():
    """What a site costs is remembered by its shape and the settings, not by the constants that tests change."""

    def forget():
        for remembered in (cost._count_bytes, cost._count_flops):
            remembered.cache_clear()

    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def every_layer():
    """`records` of a model with all its layers, measured once."""
    return cache(lambda name, panels: records(name, panel=panels))


@pytest.mark.parametrize(
    ("name", "layers", "chosen"),
    [
        ("bert", (0, 2), {0, 2}),
        ("gemma3", (1, -1), {1, 3}),
        ("t5", (0, -2), {0, 2}),
        ("bert", (0,), {0}),
    ],
)
def test_chosen_layers_are_those_of_the_whole_run(every_layer, name, layers, chosen):
    panels = ("hidden", "spectrum", "attention", "alignment")
    whole, _ = every_layer(name, panels)
    part, measured = records(name, panel=panels, layers=layers)
    expected = whole[
        whole.index.get_level_values("layer").isna()
        | whole.index.get_level_values("layer").isin(chosen)
    ]
    assert len(part) == len(expected) > 50
    assert part.sort_index().equals(expected.sort_index())
    depth = tiny.LAYERS
    assert {
        depth if site.layer is None else site.layer for site in measured.sites.values()
    } == chosen


@pytest.mark.parametrize("layer", [4, -5])
def test_a_layer_that_is_not_there_is_told_with_those_that_are(layer):
    with pytest.raises(UsageError, match=r"from 0 to 3, or from the end"):
        records("bert", layers=(0, layer))


def test_layers_of_a_block_that_runs_several_times_are_numbered_from_the_start():
    from transformers import AlbertConfig, AlbertModel

    sizes = {
        "embedding_size": 16,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    torch.manual_seed(0)
    model = AlbertModel(
        AlbertConfig(num_hidden_layers=3, vocab_size=tiny.VOCABULARY, **sizes)
    ).eval()
    plan = tiny.Plan(tiny.documents(4))
    measured = run_pass(model, plan, Settings(panel=("hidden",), layers=(3,), sample=0))
    assert {site.layer for site in measured.sites.values()} == {3}
    with pytest.raises(UsageError, match="layers counted from 0"):
        run_pass(model, plan, Settings(panel=("hidden",), layers=(-1,), sample=0))


@pytest.mark.parametrize(
    ("given", "read"), [("0,8,-1", (0, 8, -1)), ("all", ()), ([0, 3], (0, 3))]
)
def test_layers_as_typed_and_from_python(given, read):
    assert Settings(layers=given).layers == read


def test_layers_that_are_no_numbers_are_refused():
    with pytest.raises(UsageError, match="layers"):
        Settings(layers="0-3")


def test_vectors_have_layers_too():
    import anisoscope

    arrays = [torch.randn(40, 8).numpy() for _ in range(3)]
    whole = anisoscope.measure(arrays, panel="hidden", sample=0).records
    part = anisoscope.measure(arrays, panel="hidden", sample=0, layers=[0, -1]).records
    assert (
        part["value"].tolist() == whole[whole["layer"].isin([0, 2])]["value"].tolist()
    )


PANELS = ("hidden", "spectrum", "attention")


def llama(device, **sizes):
    """A decoder with half as many heads for keys as for queries; on the meta device it has no values."""
    from transformers import AutoModel, LlamaConfig

    with torch.device(device):
        return AutoModel.from_config(LlamaConfig(use_cache=False, **sizes)).eval()


def like(width, layers):
    """Sizes of a decoder with heads of 16 dimensions at every width."""
    heads = {"num_attention_heads": width // 16, "num_key_value_heads": width // 32}
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * width,
    } | heads


def test_the_cost_of_a_pass_with_classes_is_told_too():
    """`anisoscope classes` ended before its pass: the batch whose cost is told has no labels."""
    model = llama("meta", **like(32, 2), vocab_size=tiny.VOCABULARY)
    shapes = find_shapes_on_meta(model, Settings(panel=("hidden", "class")))
    for chosen in ({"panel": ("hidden", "class")}, {"metrics": ("class_direction",)}):
        assert estimate_cost(shapes, Settings(**chosen)).state > 0


@pytest.mark.parametrize("panels", [PANELS, ("hidden",), ("alignment", "attention")])
def test_the_cost_is_what_a_pass_allocates_to_the_byte(panels):
    settings = Settings(panel=panels, sample=8, groups=4)
    model, plan = (
        llama("cpu", **like(32, 2), vocab_size=tiny.VOCABULARY),
        tiny.Plan(tiny.documents(8), batch=6),
    )
    said = estimate_cost(find_shapes(model, plan[0], settings), settings)
    measured = run_pass(model, plan, settings)
    assert said.state == measured.nbytes


def test_what_is_kept_of_a_model_in_half_precision_is_counted_as_it_is_kept():
    """Its vectors are sampled in float32."""
    settings = Settings(panel=("hidden",), sample=8, groups=4)
    model = llama("cpu", **like(32, 2), vocab_size=tiny.VOCABULARY).bfloat16()
    plan = tiny.Plan(tiny.documents(8), batch=6)
    said = estimate_cost(find_shapes(model, plan[0], settings), settings)
    assert said.state == run_pass(model, plan, settings).nbytes and said.sample > 0


@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [
        # products of tiny models in float32, as of large ones, and in float64
        (torch.float32, 0),
        (torch.float64, 128),
        pytest.param(torch.float32, 128, marks=pytest.mark.nightly),
        pytest.param(torch.float64, 0, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("name", ["bert", "t5", "gemma3"])
def test_the_cost_of_each_architecture_is_allocated_and_saved_to_the_byte(
    name, dtype, narrow, tmp_path, monkeypatch
):
    monkeypatch.setattr("anisoscope.sums.moments.NARROW", narrow)
    settings, model = (
        Settings(panel=PANELS, sample=8, groups=4),
        tiny.build(name, dtype),
    )
    units = (
        24 if (dtype, narrow) == (torch.float32, 0) else 8
    )  # products are in float32 once vectors are many
    plan = tiny.Plan(tiny.documents(units), batch=6, decoder=name in tiny.TWO_STACKS)
    said = estimate_cost(find_shapes(model, plan[0], settings), settings)
    measured = run_pass(model, plan, settings)
    assert said.state == measured.nbytes
    measured.save(tmp_path / "state")
    with safe_open(tmp_path / "state", framework="pt") as file:
        held = sum(
            file.get_tensor(key).nbytes
            for key in file.keys()  # noqa: SIM118
            if key.startswith(("sums ", "pending "))
        )
    assert held == said.sums + said.moments


@pytest.fixture(scope="module")
def of_8_billion():
    return llama("meta", vocab_size=128256, **like(4096, 32))


@pytest.mark.parametrize(
    ("panel", "power"), [("hidden", 1), ("spectrum", 2), ("attention", 1)]
)
def test_the_cost_of_8_billion_parameters_is_that_of_a_small_model_scaled(
    of_8_billion, panel, power, monkeypatch
):
    """Sums grow with layers and width, second moments with the square of the width; within 5 %."""
    monkeypatch.setattr(
        "anisoscope.sums.moments.NARROW", 0
    )  # the small one as the large
    small = like(64, 3)
    settings = Settings(panel=(panel,), sample=64, spectrum_groups=1)
    measured = run_pass(
        llama("cpu", vocab_size=tiny.VOCABULARY, **small),
        tiny.Plan(tiny.documents(12, longest=48), batch=4),
        settings,
    )
    said = estimate_cost(find_shapes_on_meta(of_8_billion, settings), settings).state
    sites = (32 + 2) / (3 + 2) if panel != "attention" else 32 / 3
    assert said / (measured.nbytes * sites * 64**power) == pytest.approx(1, rel=0.05)


def test_flops_are_those_of_the_products():
    width, layers, tokens = 64, 3, 200
    model = llama("meta", vocab_size=tiny.VOCABULARY, **like(width, layers))
    cost = estimate_cost(
        find_shapes_on_meta(model, Settings(spectrum_groups=1)),
        Settings(spectrum_groups=1),
        tokens,
    )
    of_block = (
        2 * (2 * width**2 + 2 * width * width // 2 + 3 * width * 2 * width)
        + 4 * tokens * width
    )
    assert cost.model == pytest.approx(layers * of_block, rel=0.01)
    products = (layers + 2) * 2 * ((width + 1) ** 2 + width**2)
    assert (
        0 < cost.panels["spectrum"] - products < 0.1 * products
    )  # and the sums that are linear in the vectors
    assert cost.panels["attention"] > layers * 2 * tokens * width
    quarter = estimate_cost(
        find_shapes_on_meta(model, Settings(spectrum_groups=1)),
        Settings(spectrum_groups=1, spectrum_share=0.25),
        tokens,
    )
    assert quarter.panels == cost.panels | {"spectrum": cost.panels["spectrum"] / 4}
    assert quarter.moments == cost.moments
    for panel in (
        "hidden",
        "attention",
        "alignment",
    ):  # whatever is measured, the model's own scores grow with windows
        assert (
            estimate_cost(
                find_shapes_on_meta(model, Settings(panel=(panel,))),
                Settings(panel=(panel,)),
                tokens,
            ).model
            == cost.model
        )


def test_wide_sites_have_no_spectrum_unless_it_is_asked_for():
    x = torch.randn(3, 5, 2049)
    batch = Batch({}, torch.arange(3))
    for settings, some in (
        (Settings(panel=PANELS), False),
        (Settings(panel=PANELS, spectrum_groups=1), True),
        (Settings(panel=("spectrum",)), True),
    ):
        measurement = Measurement(settings)
        measurement.begin(batch, torch.device("cpu"))
        measurement.receive(Site("encoder", 0, "hidden"), x)
        assert (("encoder.0.hidden", "moment") in measurement.sums.terms) is some


def test_a_large_state_is_saved_seldom(tmp_path, monkeypatch):
    from anisoscope.measure import loop

    saved = []
    monkeypatch.setattr(Measurement, "save", lambda _self, path: saved.append(path))
    clock = iter(range(0, 100_000, 70))  # 70 s a batch
    monkeypatch.setattr(loop.time, "monotonic", lambda: next(clock))
    plan = tiny.Plan(tiny.documents(12), batch=2)
    for rate, often in ((1e12, len(plan)), (1.0, 0)):
        saved.clear()
        monkeypatch.setattr(loop, "SAVE_RATE", rate)
        run_pass(
            tiny.model("bert"),
            plan,
            Settings(panel=("hidden",), sample=0),
            state=tmp_path / "state",
        )
        assert len(saved) == often


def test_the_shapes_of_a_pass_are_seen_by_the_first_real_tokens():
    """Ids and masks of the first sequence without its padding, sixteen at most; vectors and what is of no sequence as
    they are.
    """
    real = torch.zeros(2, 40).bool()
    real[0, 7:37] = real[1, :40] = True
    inputs = {
        "ids": torch.arange(80).view(2, 40),
        "mask": real.long(),
        "x": torch.rand(2, 40, 3),
        "type": torch.ones(3),
    }
    batch = Batch(
        inputs,
        torch.tensor([0, 1]),
        {"encoder": Stream(real, ~real, torch.zeros(2, dtype=torch.int64))},
    )
    seen = cost._cut_first_sequence(batch)
    assert seen["ids"].tolist() == [[*range(7, 23)]] and seen["mask"].tolist() == [
        [1] * 16
    ]
    assert torch.equal(seen["x"], inputs["x"][:1]) and torch.equal(
        seen["type"], inputs["type"]
    )
    real[0, 12:] = False
    assert cost._cut_first_sequence(batch)["ids"].tolist() == [[*range(7, 12)]]


@pytest.mark.parametrize(
    ("width", "panels", "without"),
    [(2049, PANELS, 4), (2048, PANELS, 0), (2049, ("hidden",), 0)],
)
def test_every_site_that_is_too_wide_for_a_spectrum_is_counted(width, panels, without):
    """Sites that are alike are looked at once, and each of them counts."""
    sites = {Site("decoder", layer, "hidden"): (0, width) for layer in range(4)}
    shapes = cost.Shapes(sites, 0.0, 0.0, 8, 100, torch.float32)
    told = estimate_cost(shapes, Settings(panel=panels, sample=0))
    assert (told.unmeasured, told.sites) == (without, 4)
    assert told.without_spectrum.startswith(
        "no spectrum at 4 of 4 sites" if without else ""
    )
    assert bool(told.without_spectrum) is bool(without)


def test_the_partition_function_of_a_large_matrix_is_measured_on_request(
    tmp_path, monkeypatch
):
    """It took 740 seconds of a 70B model, before the first batch, in every run."""
    monkeypatch.setattr(
        import_module("anisoscope.measure.loop"), "SLOW", tiny.VOCABULARY * 32**2 - 1
    )
    model = tiny.model("bert")
    assert model.get_input_embeddings().weight.shape == (tiny.VOCABULARY, 32)
    batches = [{"input_ids": torch.arange(4, 16).reshape(2, 6)} for _ in range(3)]
    unasked = anisoscope.measure(
        model, batches, panel="hidden", output=tmp_path / "unasked"
    )
    assert "embedding.input" not in set(unasked.records["site"])
    (said,) = (
        line for line in unasked.manifest["warnings"] if "embedding.input" in line
    )
    assert said.endswith("--metric partition measures it")
    asked = anisoscope.measure(model, batches, metrics=("partition", "norms"))
    assert "embedding.input" in set(asked.records["site"])
    assert not any("embedding.input" in line for line in asked.manifest["warnings"])
