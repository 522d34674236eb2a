"""A pass on an accelerator that is not there: the same numbers, no wait for each site, no tensor out of place."""

import importlib.util
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import launches
import numpy as np
import pytest
import tiny
import torch
from devices import KIND, Machine
from test_large import PLACE

from anisoscope.errors import MeasureError, ModelError
from anisoscope.measure import loop
from anisoscope.measure.loop import move_batch, prefetch, run_pass
from anisoscope.measure.random_state import fork_random_state
from anisoscope.measure.settings import Settings
from anisoscope.models.devices import device_of
from anisoscope.models.load import load
from anisoscope.sums.device import sum_on_device
from anisoscope.sums.groups import Sums, _sum_piece, sum_vectors
from anisoscope.sums.moments import TERMS, Moments

PANELS = ("hidden", "spectrum", "attention")


def table(measured):
    frame = measured.records().set_index(PLACE)
    return frame[["value", "low", "high", "n_vectors", "n_units"]].astype(float)


def batches(name, count=4):
    return tiny.Plan(
        tiny.documents(12, shortest=4),
        batch=max(1, -(-30 // count)),
        decoder=name in tiny.TWO_STACKS,
    )


def away(
    name,
    machine,
    settings,
    plan,
    dtype=torch.float32,
    split=None,
    only=None,
    progress=None,
    **changes,
):
    """A pass with the model on the machine; with `split` its blocks from that one on are on the second device."""
    model = tiny.build(name, dtype, **changes)
    with machine:
        machine.largest, largest = None, machine.largest  # of what a pass takes
        model.to(f"{KIND}:0")
        machine.largest = largest
        if split is not None:
            spread(model, split)
        measured = run_pass(model, plan, settings, only=only, progress=progress)
        return measured, table(measured) if only is None else None


def spread(model, split):
    """Blocks from `split` on, and what follows them, on the second device; inputs go where weights are."""

    def move(module, args, kwargs):
        device = next(module.parameters()).device
        return move_batch(args, device), move_batch(kwargs, device)

    for name, module in model.named_modules():
        parts = name.split(".")
        if parts[-1].isdigit():
            if int(parts[-1]) >= split:
                module.to(f"{KIND}:1")
            module.register_forward_pre_hook(move, with_kwargs=True)
        elif name in ("norm", "ln_f", "pooler"):
            module.to(f"{KIND}:1")
            module.register_forward_pre_hook(move, with_kwargs=True)


def same(here, there, tolerance):
    assert len(here) == len(there) > 200
    there = there.reindex(here.index)
    for column in here:
        np.testing.assert_allclose(
            here[column], there[column], rtol=tolerance, atol=tolerance, err_msg=column
        )


def test_blocks_on_two_devices_keep_their_sums_beside_them():
    settings, plan = Settings(panel=PANELS, sample=16), batches("bert", 2)
    here = table(run_pass(tiny.build("bert"), plan, settings))
    measured, there = away("bert", Machine(), settings, plan, torch.float64, split=1)
    same(here, there, 1e-8)
    at = {
        site: value.device.index
        for (site, term), value in measured.sums.terms.items()
        if term == "n"
    }
    assert (
        at["encoder.1.hidden"] == 0
        and at["encoder.2.hidden"] == at["encoder.3.head.key.raw"] == 1
    )


@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30, 1e-42])
def test_sums_on_a_device_are_those_of_the_cpu(size):
    """Vectors whose squares float32 does not hold, zero ones and such with NaN or Inf; two are hidden."""
    x = (
        torch.randn(3, 9, 2, 16, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-2, 2, 9)[:, None, None]
    )
    x = x * size
    x[0, 1, 0], x[1, 2, 1, 3], x[2, 0, 0, 5], x[2, 8] = (
        0.0,
        torch.nan,
        torch.inf,
        x[2, 8] * 100,
    )
    masks, subsets = torch.ones(3, 2, 9, dtype=torch.bool), torch.rand(3, 4, 9) < 0.5
    masks[0, 0, 7:] = False
    terms = frozenset(
        {"n", "vector", "unit", "unit_square", "norm", "norm_square", "subset_unit"}
    )
    for heads in (2, 1):
        expected, inverse = _sum_piece(x[:, :, :heads].double(), masks, subsets, terms)
        found, turned = sum_on_device(x[:, :, :heads].clone(), masks, subsets, terms)
        if (
            size == 1e-42
        ):  # below the smallest normal number of float32: zero, and counted as such
            assert int(found["zero"].sum()) > int(expected["zero"].sum()) and bool(
                found["unit"].isfinite().all()
            )
            continue
        for term, value in expected.items():
            close = {"rtol": 2e-5, "atol": float(value.abs().max()) * 1e-6}
            torch.testing.assert_close(
                found[term].double(), value.double(), **close, msg=f"{term} {heads}"
            )
        torch.testing.assert_close(turned, inverse.double(), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_half_precision_on_a_device_are_those_of_its_numbers(dtype):
    """They are read as they are, and summed in float32: no digit of theirs is lost."""
    x = (
        torch.randn(3, 40, 2, 64, generator=torch.Generator().manual_seed(0)) + 0.2
    ).to(dtype)
    x[0, 1], x[1, 2, 1, 3], x[2, 3, 0, 5] = 0.0, torch.nan, torch.inf
    drawn = torch.rand(3, 6, 40, generator=torch.Generator().manual_seed(1))
    masks, subsets = drawn[:, :2] < 0.8, drawn[:, 2:] < 0.5
    masks[:, 0, 1:4] = True
    terms = frozenset(
        {"n", "vector", "unit", "unit_square", "norm", "norm_square", "subset_unit"}
    )
    expected, inverse = _sum_piece(x.double(), masks, subsets, terms)
    found, turned = sum_on_device(x, masks, subsets, terms)
    assert found.keys() == expected.keys() and int(found["nonfinite"].sum()) > 0 < int(
        found["zero"].sum()
    )
    for term, value in expected.items():
        torch.testing.assert_close(
            found[term].double(), value.double(), rtol=2e-6, atol=1e-6, msg=term
        )
    torch.testing.assert_close(turned, inverse.double(), rtol=1e-6, atol=0.0)


def test_a_site_is_summed_in_few_kernels_and_reads():
    """Of 4,096 tokens of 4,096 dimensions in bfloat16 109 kernels moved 1.7 GB."""
    hidden = launches.of_site(
        "hidden", (512,), 1024, Settings(panel=("hidden",), sample=0)
    )
    query = launches.of_site(
        "query", (4, 128), 1024, Settings(panel=("attention",), sample=0)
    )
    vectors = 2 * 1024 * 512  # bytes
    assert hidden.kernels <= 60 and hidden.bytes < 30 * vectors
    assert query.kernels <= 47 and query.bytes < 25 * vectors


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
def test_a_layer_is_measured_in_few_launches_by_kernels():
    """Of a layer with 8 billion weights: hidden states, queries and keys, and attention rows of a long window."""
    layer = launches.of_layer(4096)
    name, whole = launches.of_measuring(4096, by_triton=True)[-1]
    assert name == "all of these"
    assert whole.kernels <= 100
    assert whole.seconds < 0.3 * layer.seconds
    _, plain = launches.of_measuring(4096, by_triton=False)[-1]
    assert plain.kernels > 4 * whole.kernels


def test_terms_that_an_accelerator_adds_to_at_once_are_terms_of_their_own():
    """Each may be replaced, as by a state that is loaded; what is added after it goes into what is there then."""
    values = {
        "n": torch.ones(4, 2),
        "vector": torch.arange(24.0).view(4, 2, 3),
        "zero": torch.tensor([1, 0, 2, 0]),
    }
    group, here, there = torch.tensor([0, 2, 2, 1]), Sums(3), Sums(3)
    with Machine():
        placed = {term: value.to(f"{KIND}:0") for term, value in values.items()}
        at = group.to(f"{KIND}:0")
        for number in range(4):
            here.add("a", values, group)
            there.add("a", placed, at)
            if number == 1:
                there.terms["a", "vector"] = there.terms["a", "vector"].clone()
            if number == 2:
                there.terms["a", "n"] = there.terms["a", "n"].cpu()
        for key, value in here.terms.items():
            torch.testing.assert_close(
                there.terms[key].cpu(), value, rtol=0.0, atol=0.0
            )
        with pytest.raises(MeasureError, match="one width in the whole corpus"):
            there.add("a", {"vector": torch.zeros(4, 2, 5).to(f"{KIND}:0")}, at)


@pytest.mark.parametrize("name", ["bert", "gemma3"])
def test_same_records_on_an_accelerator(name):
    settings, plan = Settings(panel=PANELS, sample=16), batches(name)
    here = table(run_pass(tiny.build(name), plan, settings))
    same(here, away(name, Machine(), settings, plan, torch.float64)[1], 1e-8)


def test_same_records_in_single_precision():
    settings, plan = Settings(panel=PANELS, sample=16), batches("bert")
    tables = (
        table(run_pass(tiny.build("bert", torch.float32), plan, settings)),
        away("bert", Machine(), settings, plan)[1],
    )
    # ranks move by the rounding of float32 products (metrics/spectrum.py)
    same(
        *(
            found[~found.index.get_level_values("metric").str.contains("_rank")]
            for found in tables
        ),
        2e-5,
    )


def test_a_share_of_the_tokens_is_drawn_on_a_device_as_on_the_cpu():
    settings, plan = (
        Settings(panel=("hidden", "spectrum"), sample=0, spectrum_share=0.5, groups=2),
        batches("bert"),
    )
    here = table(run_pass(tiny.build("bert"), plan, settings))
    same(here, away("bert", Machine(), settings, plan, torch.float64)[1], 1e-8)


def test_a_device_without_float64_has_its_sums_on_the_cpu(monkeypatch):
    """As MPS: attention and the decomposition of its scores too."""
    monkeypatch.setattr("anisoscope.sums.device.SINGLE_ONLY", {KIND})
    settings, plan = (
        Settings(
            metrics=("attention", "score_terms", "centred_attention", "drift"), sample=0
        ),
        batches("bert"),
    )
    here = table(run_pass(tiny.build("bert", torch.float32), plan, settings))
    same(here, away("bert", Machine(doubles=False), settings, plan)[1], 2e-5)


@pytest.mark.parametrize("chosen", [{"panel": PANELS}, {"metrics": ("score_terms",)}])
def test_the_host_waits_as_often_for_many_layers_as_for_few(chosen):
    settings, plan = (
        Settings(sample=16, **chosen),
        tiny.Plan(tiny.documents(40, shortest=9), batch=8),
    )
    waits = {}
    for layers in (1, 3):
        machine, waits[layers] = Machine(), []
        waited = lambda *_, of=machine, each=waits[layers]: each.append(  # noqa: E731
            of.waits.total()
        )
        away(
            "bert",
            machine,
            settings,
            plan,
            only=range(6),
            progress=waited,
            num_hidden_layers=layers,
        )
    # in the first batches products are in float64, and it is asked for how long
    of_batch = {layers: (total[5] - total[3]) / 2 for layers, total in waits.items()}
    assert of_batch[1] == of_batch[3] <= 12, waits


def test_batches_are_made_ahead_and_pinned_before_a_gpu_only(monkeypatch):
    pinned, made = [], []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: (pinned.append(x), x)[1])

    def drawn():
        for index, batch in enumerate(list(batches("bert"))):
            made.append((index, threading.get_ident()))
            yield index, batch

    for kind in ("cpu", "mps", "cuda", "xpu", KIND):
        made.clear(), pinned.clear()
        for index, batch in prefetch(drawn(), SimpleNamespace(type=kind)):
            assert isinstance(batch.inputs, dict) and made[index][0] == index
        here = {ident == threading.get_ident() for _, ident in made}
        ahead = kind in ("cuda", "xpu", KIND)
        assert (
            here == {not ahead}
            and len(made) == 4
            and len(pinned) == (8 if ahead else 0)
        )

    def broken():
        yield next(drawn())
        raise ValueError("a damaged image")

    with pytest.raises(ValueError, match="damaged"):
        list(prefetch(broken(), torch.device("cuda")))


def test_a_full_memory_halves_batches_to_the_same_records():
    settings, plan = (
        Settings(panel=PANELS, sample=16, groups=3, spectrum_groups=1),
        batches("bert", 2),
    )
    whole = table(run_pass(tiny.build("bert"), plan, settings))
    machine = Machine(largest=4000)
    measured, parts = away("bert", machine, settings, plan, torch.float64)
    assert measured.pieces > 1 and machine.full
    same(whole, parts, 1e-8)


def test_a_memory_too_small_for_one_sequence_is_told():
    with pytest.raises(MeasureError, match="one sequence"):
        away(
            "bert",
            Machine(largest=100),
            Settings(metrics=("drift",), groups=2),
            batches("bert"),
        )


def test_the_accelerator_is_taken_where_there_is_one(monkeypatch):
    assert device_of("auto").type == "cpu"
    with Machine(devices=3):
        assert device_of("auto") == torch.device(KIND)
        monkeypatch.setenv("LOCAL_RANK", "4")
        assert (
            device_of("auto") == torch.device(f"{KIND}:1")
            and device_of(f"{KIND}:2").index == 2
        )
        assert device_of("cpu").type == "cpu"


def saved(folder, dtype=torch.bfloat16, **changes):
    """A checkpoint of a tiny decoder, whose configuration may say more."""
    import json

    tiny.build("llama", dtype).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder)


def test_a_checkpoint_keeps_its_own_numbers_where_they_are_asked_for(
    tmp_path, monkeypatch
):
    from anisoscope.runs.job import Job
    from anisoscope.runs.run import resolve_dtype_and_device

    monkeypatch.setattr(
        "anisoscope.models.load.processor_of", lambda *_: object()
    )  # it has no tokenizer
    name = saved(tmp_path)
    assert next(load(name).model.parameters()).dtype == torch.float32
    subject = load(name, dtype="auto")
    assert next(subject.model.parameters()).dtype == torch.bfloat16
    job = resolve_dtype_and_device(Job(model=name, dtype="auto"), subject)
    assert (job.dtype, job.device) == ("bfloat16", "cpu")
    assert (
        resolve_dtype_and_device(
            Job(model=name, dtype="auto", device_map="auto"), subject
        )
        != job
    )  # but its identity is the same
    mapped = load(name, dtype="auto", device_map="auto")
    assert mapped.weights_sha256 == subject.weights_sha256


@pytest.mark.parametrize(
    ("quantised", "library"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4}, "gptqmodel"),
    ],
)
def test_quantised_weights_without_their_library_are_told_which(
    tmp_path, quantised, library
):
    with pytest.raises(ModelError, match=f"pip install {library}"):
        load(saved(tmp_path, quantization_config=quantised))


def test_float32_products_are_of_float32_inside_a_pass():
    from anisoscope.models.modes import full_precision

    before = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    try:
        with full_precision():
            assert (
                torch.get_float32_matmul_precision() == "highest"
                and not torch.backends.cudnn.allow_tf32
            )
        assert (
            torch.get_float32_matmul_precision() == "high"
            and torch.backends.cudnn.allow_tf32 == before
        )
    finally:
        torch.set_float32_matmul_precision("highest")


def test_moments_on_a_device_leave_out_what_is_hidden(monkeypatch):
    """What lies in padding there, NaN too, is in no product; vectors whose squares float32 does not hold are summed in
    float64, however many there are.
    """
    monkeypatch.setattr("anisoscope.sums.moments.NARROW", 0)
    g, machine = torch.Generator().manual_seed(0), Machine()
    x, weight = torch.randn(4, 90, 6, generator=g), torch.rand(4, 90, generator=g) < 0.7
    group = torch.tensor([0, 1, 1, 0])
    for size, many in ((1.0, True), (1e-13, False), (1e12, False)):
        rows = x * size
        values, inverse = sum_vectors(
            rows.unsqueeze(1), weight.unsqueeze(1), None, frozenset({"n"})
        )
        hidden = torch.where(weight.unsqueeze(-1), rows, torch.nan)
        sums = Sums(2)
        sums.add("s", values, group)
        moments = Moments(sums, 2)
        with machine:
            moments.begin(group)
            moments.add(
                "s",
                hidden.to(f"{KIND}:0"),
                weight.to(f"{KIND}:0"),
                inverse[:, 0].float().to(f"{KIND}:0"),
            )
            moments.flush()
            assert ("s" in moments.many) is many
            found = {term: sums.terms["s", term].sum(0)[0].cpu() for term in TERMS}
        kept = rows[weight].double()
        unit = kept / kept.norm(dim=1, keepdim=True)
        assert found["moment_n"] == len(kept)
        moments_of = {
            "moment": kept.T @ kept,
            "unit_moment": unit.T @ unit,
            "moment_vector": kept.sum(0),
        }
        for term, expected in moments_of.items():
            torch.testing.assert_close(
                found[term], expected, rtol=1e-4, atol=1e-4 * float(expected.max())
            )


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps", "hpu"])
def test_random_numbers_of_a_training_stay_as_they_are_on_every_kind_of_device(
    monkeypatch, kind
):
    """Those of XPU, NPU and MPS moved on, so that a watched training was another than the unwatched one."""
    states = {0: torch.tensor([3]), 1: torch.tensor([4])}
    module = SimpleNamespace()
    if kind == "mps":
        module.get_rng_state = lambda: states[0]
        module.set_rng_state = lambda state: states.update({0: state})
    else:
        module.get_rng_state = lambda index: states[index]
        module.set_rng_state = lambda state, index: states.update({index: state})
    monkeypatch.setattr(torch, kind, module, raising=False)
    monkeypatch.setattr(
        torch, "get_device_module", lambda _kind: module
    )  # it remembers the modules that it found
    before = torch.get_rng_state()
    there = (
        [torch.device("mps")]
        if kind == "mps"
        else [torch.device(kind, 0), torch.device(kind, 1)]
    )
    with fork_random_state([*there, torch.device("cpu"), torch.device("meta")]):
        torch.rand(3)
        states.update({index: state + 1 for index, state in states.items()})
    assert states[0] == 3 and (kind == "mps" or states[1] == 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_numbers_of_a_kind_without_a_module_in_torch_are_left_as_they_are():
    """XLA has none in torch: a Monitor on it ended the training."""
    with fork_random_state([torch.device("xla", 0)]):
        torch.rand(1)


def test_a_look_at_a_training_keeps_the_random_state_of_its_device(monkeypatch):
    kept = []
    monkeypatch.setattr(
        loop,
        "fork_random_state",
        lambda devices: kept.extend(devices) or fork_random_state([]),
    )
    monkeypatch.setattr(loop, "find_device", lambda _model: torch.device("xpu", 1))
    monkeypatch.setattr(loop, "measure_into", lambda *_: None)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    loop.measure_probe(torch.nn.Linear(1, 1), [], Settings())
    assert kept == [torch.device("xpu", 1)]
