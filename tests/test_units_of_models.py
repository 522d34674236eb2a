"""Small decisions of what finds, names and loads models, each on a few modules, names or files."""

import json
import types

import numpy as np
import pytest
import torch
from torch import nn

from anisoscope.errors import ModelError, UsageError
from anisoscope.models import (
    adapters,
    blocks,
    devices,
    families,
    formats,
    hashes,
    hub,
    hub_faults,
    hub_memory,
    identity,
    kinds,
    load as loading,
    modes,
    other_libraries,
    packaged,
    parts,
    processors,
    published,
    series,
    vectors,
)

# ---- series ----------------------------------------------------------------------------------------------------------


def test_what_an_ellipsis_leaves_open_is_what_the_hub_has_in_between(monkeypatch):
    """Neither the numbers around the gap, nor a revision of another name; in the order of numbers, not of letters."""
    there = ["step4", "step64", "step9", "step16", "step10", "step63", "step5"]
    asked = []

    def revisions(repository):
        asked.append(repository)
        return [*there, "xstep7", "step8b", "main", "step70"]

    monkeypatch.setattr(series, "list_revisions", revisions)
    monkeypatch.setattr(series, "does_exist", lambda name: pytest.fail(name))
    found = series._list_existing("o/m@step{1,2,4,…,64}")
    assert asked == ["o/m"]
    # 1, 2, 4 and 64 are written out, whatever the hub has; of 8, 16 and 32 it has one.
    steps = (1, 2, 4, 64, 16, 5, 9, 10, 63)
    assert found == [f"o/m@step{n}" for n in steps]
    written = series._list_existing("o/m@step{3,1}")
    assert written == ["o/m@step3", "o/m@step1"] and asked == ["o/m"]


def test_repositories_of_an_ellipsis_are_asked_for_one_by_one(monkeypatch):
    asked = []
    monkeypatch.setattr(series, "list_revisions", lambda name: pytest.fail(name))

    def exists(name):
        asked.append(name)
        return "step_40" in name

    monkeypatch.setattr(series, "does_exist", exists)
    found = series._list_existing("o/m-step_{0,20,…,80}k")
    assert sorted(asked) == ["o/m-step_40k", "o/m-step_60k"]
    assert found == ["o/m-step_0k", "o/m-step_20k", "o/m-step_80k", "o/m-step_40k"]
    # Groups on both sides of the @ are repositories too.
    asked.clear()
    series._list_existing("o/m-{a,b}@step{0,20,…,60}")
    assert sorted(asked) == ["o/m-a@step40", "o/m-b@step40"]


def test_the_number_of_one_group_is_read_from_a_name():
    parts_of = ["o/m.", "0,1", "-step", "1,2,…,8", "k"]
    reader = series._make_reader(parts_of, 3)
    assert reader.fullmatch("o/m.7-step12k")[1] == "12"
    assert reader.fullmatch("o/mx7-step12k") is None, "a dot is a dot"
    assert reader.fullmatch("o/m.7-stepk") is None
    first = series._make_reader(parts_of, 1)
    assert first.fullmatch("o/m.7-step12k")[1] == "7"


def test_a_name_that_is_written_out_is_there_whichever_way_came_first():
    assert series._combine_items(["m", ""], [[("4", True), ("4", False)]], "p") == {
        "m4": False
    }
    assert series._combine_items(["m", ""], [[("4", False), ("4", True)]], "p") == {
        "m4": False
    }


def test_as_many_names_as_a_pattern_may_have(monkeypatch):
    monkeypatch.setattr(series, "MOST", 6)
    assert len(series.expand_pattern("m-{0..1}-{0..2}")[0]) == 6
    with pytest.raises(UsageError, match="at most 6 names"):
        series.expand_pattern("m-{0..6}")
    for pattern in ("m}{0..1}", "m-{0..1", "m-{}", "m-{3..2}", "m-{0..9..0}"):
        with pytest.raises(UsageError):
            series.expand_pattern(pattern)
    assert list(series.expand_pattern("m-{3..3}")[0]) == ["m-3"]


def test_how_numbers_go_on():
    def go_on(before, end):
        return series._continue_numbers(before, end, "p")

    assert go_on(["0", "20"], "60") == ([40], [])
    assert go_on(["0", "20"], "61") == ([40, 60], [])
    assert go_on(["1", "4", "7"], "13") == ([10], [])
    # Of the last three, which need not begin as the series did.
    assert go_on(["0", "5", "15", "25"], "45") == ([35], [])
    assert go_on(["1", "2", "6"], "200") == ([18, 54, 162], [(6, 200)])
    assert go_on(["0", "1", "3"], "20") == ([9], [(3, 20)])
    assert go_on(["2", "3", "5"], "20") == ([], [(5, 20)])
    assert go_on(["main", "2", "4"], "8") == ([6], [])
    for before, end in ((["1"], "4"), (["a", "2"], "4"), (["1", "2"], "x")):
        with pytest.raises(UsageError, match="two numbers before"):
            go_on(before, end)
    for before, end in ((["2", "1"], "4"), (["1", "2"], "2"), (["1", "1"], "4")):
        with pytest.raises(UsageError, match="numbers that rise"):
            go_on(before, end)


def test_seeds_of_the_same_steps_share_a_line():
    def of(steps, seed):
        return [series.Checkpoint("x", step, seed) for step in steps]

    every = [*of((2000, 5), 7), *of((5, 2000), 3), *of((5,), 1)]
    assert series.describe(every) == ("seed 1: 1 steps 5\nseeds 3, 7: 2 steps 5, 2,000")


def test_files_of_weights_are_no_lists_and_folders_of_a_model_no_series(tmp_path):
    for name, is_list in (("a.txt", True), ("b.safetensors", False), ("c.th", False)):
        (tmp_path / name).write_text("x")
        assert series.is_series(str(tmp_path / name)) == is_list
    for place in (
        "one/step-1",
        "two/seed-0/step_2",
        "three/a/b/step-3",
        "four/stepping",
    ):
        (tmp_path / place).mkdir(parents=True)
    found = {
        name: series.is_series(str(tmp_path / name))
        for name in ("one", "two", "three", "four")
    }
    assert found == {"one": True, "two": True, "three": False, "four": False}
    (tmp_path / "one" / "config.json").write_text("{}")
    assert not series.is_series(str(tmp_path / "one"))
    (tmp_path / "two" / "step-9").write_text("a file")
    names = [path.name for path in series._find_step_folders(tmp_path / "two")]
    assert names == ["step_2"]
    assert series._match_folders("a@b*") == [] == series._match_folders("plain")


# ---- blocks ----------------------------------------------------------------------------------------------------------


def linear():
    return nn.Linear(2, 2)


def test_the_outermost_blocks_are_kept():
    a, b, c, whole = linear(), linear(), linear(), linear()
    assert blocks._keep_outermost([("x", a), ("x.y", b), ("xy", c)]) == [
        ("x", a),
        ("xy", c),
    ]
    assert blocks._keep_outermost([("", whole), ("x", a)]) == [("x", a)]
    assert blocks._keep_outermost([("", whole)]) == [("", whole)]


def test_wrong_names_of_blocks_are_told_with_what_repeats():
    model = nn.ModuleDict(
        {"layers": nn.Sequential(linear(), linear()), "out": nn.ReLU()}
    )
    found = blocks.find_blocks(model, ("layers.1", "ReLU"))
    assert found == {"encoder": [model["layers"][1], model["out"]]}
    with pytest.raises(
        UsageError, match=r"'layer\.\*', which matches no module.*layers\.\*"
    ):
        blocks.find_blocks(model, ("ReLU", "layer.*"))
    with pytest.raises(
        ModelError, match=r"--blocks Linear,.*it repeats Linear, layers"
    ):
        blocks.find_blocks(model)
    with pytest.raises(ModelError, match="--blocks CLASS") as told:
        blocks.find_blocks(nn.ModuleDict({"a": linear()}))
    assert "it repeats" not in str(told.value)


def test_holders_of_features_are_listed_once_in_order():
    features = ["stages.2.blocks.1", "stages.2.blocks.5", "stem", "stages.0.blocks.1"]
    assert blocks._list_holders(features) == [
        "stages.2.blocks",
        "stem",
        "stages.0.blocks",
    ]
    stage = nn.Module()
    inner = [nn.Sequential(linear()), nn.Identity(), nn.Sequential(linear())]
    stage.blocks = nn.Sequential(*inner)
    assert list(blocks._iter_blocks_of_stage(stage)) == [inner[0], inner[2]]
    alone = nn.Module()
    alone.conv = linear()
    assert list(blocks._iter_blocks_of_stage(alone)) == [alone]
    assert list(blocks._iter_blocks_of_stage(nn.Identity())) == []


def test_classes_that_fsdp_replaces_are_known_by_their_own_name():
    class FSDPModule:
        pass

    class Layer(nn.Module):
        pass

    class FSDPLayer(FSDPModule, Layer):
        pass

    assert families.class_of(FSDPLayer()) is Layer
    assert families.class_of(Layer()) is Layer
    assert blocks._is_match("Layer", "x", FSDPLayer())


def test_a_family_is_that_of_the_configuration_then_that_of_the_library():
    made = type("EncoderBlock", (), {"__module__": "torchvision.models.vision"})()
    assert "CNBlock" in families.family_of(made).blocks
    made.config = types.SimpleNamespace(model_type="xlnet")
    assert families.family_of(made).blocks == ("XLNetLayer",)
    made.config = types.SimpleNamespace(model_type="unheard of")
    assert "CNBlock" in families.family_of(made).blocks
    assert families.family_of(linear()) == families.Family()


def test_characters_of_canine_become_molecules_of_its_own_mask():
    from anisoscope.batch import Stream

    mask = torch.ones(2, 8, dtype=torch.bool)
    special = torch.zeros_like(mask)
    special[0, 0] = special[1, 3] = True
    stream = Stream(mask, special, torch.tensor([0, 5]), frequency=torch.zeros(2, 8))
    pooled = torch.tensor([[1, 1], [1, 0]])
    base = types.SimpleNamespace(
        config=types.SimpleNamespace(downsampling_rate=4),
        _downsample_attention_mask=lambda _given, rate: pooled if rate == 4 else None,
    )
    model = types.SimpleNamespace(base_model=base)
    found = families._adapt_canine(model, {"encoder": stream, "other": stream})
    assert list(found) == ["characters", "molecules", "characters-out", "other"]
    assert found["characters"] is found["characters-out"] is stream
    molecules = found["molecules"]
    assert molecules.mask.tolist() == [[True, True], [True, False]]
    assert molecules.special.tolist() == [[True, False], [False, False]]
    assert molecules.frequency is None
    assert families._adapt_canine(model, {"other": stream}) == {"other": stream}


def test_parts_of_blocks_are_put_together_by_their_place():
    class Stack(nn.Module):
        pass

    model, stack = nn.Module(), Stack()
    model.config = types.SimpleNamespace(model_type="xlm", causal=True)
    names = families.family_named("xlm").parts
    for name in names:
        setattr(stack, name, nn.ModuleList([linear(), linear()]))
    model.stack = stack
    assert parts.find_parts(model) == [
        [getattr(stack, name)[i] for name in names] for i in (0, 1)
    ]
    assert parts.is_causal(model)
    model.config.causal = 1
    assert not parts.is_causal(model), "what is true in no configuration"
    stack.pre_norm = True
    with pytest.raises(ModelError, match="Stack with pre_norm"):
        parts.find_parts(model)
    del stack.ffns
    assert parts.find_parts(model) == []


# ---- loading ---------------------------------------------------------------------------------------------------------


def test_weights_that_lack_are_told_unless_nothing_measures_them():
    def check(missing=(), resized=(), idle=(*loading.HEADS, *loading.IN_TRAINING)):
        info = {"missing_keys": list(missing), "mismatched_keys": list(resized)}
        loading._check_loaded(linear(), info, idle)

    check(
        ["pooler.dense.weight", "lm_head.weight", "bert.pooler.x", "masked_spec_embed"]
    )
    check(["bn.num_batches_tracked"])
    check(["mask_token", "quantizer.codevectors"], idle=loading.IN_TRAINING)
    check(["cls.predictions.bias", "score.weight", "classifier.out_proj.bias"])
    with pytest.raises(ModelError, match=r"1 missing, such as pooler\.dense\.weight"):
        check(["pooler.dense.weight"], idle=loading.IN_TRAINING)
    with pytest.raises(ModelError, match=r"1 missing, such as encoder\.weight"):
        check(["encoder.weight", "bert.pooler.x"])
    with pytest.raises(ModelError) as told:
        check([*"dcba"], [("w", (2, 3), (4, 5))])
    assert (
        "4 missing, such as a, b, c and 1 of another size, such as w (2, 3) for (4, 5)"
        in (str(told.value))
    )
    assert "every weight of Linear" in str(told.value)


def test_the_cache_is_off_in_every_part_of_a_configuration():
    text = types.SimpleNamespace(use_cache=True)
    other = types.SimpleNamespace()
    whole = types.SimpleNamespace(
        use_cache=True,
        sub_configs={"text": 0, "vision": 0, "none": 0},
        text=text,
        vision=other,
    )
    loading._disable_cache(whole)
    assert whole.use_cache is text.use_cache is False
    assert not hasattr(other, "use_cache")


def test_options_of_transformers_by_what_is_loaded():
    given = {"trust_remote_code": True, "dtype": torch.float16, "device_map": None}
    plain, encoder = type("AutoModel", (), {}), type("T5EncoderModel", (), {})
    cpu = torch.device("cpu")
    assert loading._adapt_options(given, plain, "", cpu) == given
    assert loading._adapt_options(given, encoder, "", cpu) == {
        "dtype": torch.float16,
        "device_map": None,
    }
    assert loading._adapt_options(given, plain, "awq", cpu) == {
        "trust_remote_code": True,
        "dtype": "auto",
        "device_map": {"": "cpu"},
    }
    spread = loading._adapt_options(given | {"device_map": "auto"}, plain, "awq", cpu)
    assert spread["device_map"] == "auto" and given["dtype"] == torch.float16


def test_the_method_of_quantisation_in_each_of_its_forms():
    import enum

    class Method(enum.Enum):
        GPTQ = "gptq"

    def read(settings):
        return loading._read_quantisation(
            types.SimpleNamespace(quantization_config=settings)
        )

    assert read(None) == read({}) == ""
    assert loading._read_quantisation(types.SimpleNamespace()) == ""
    assert read({"quant_method": "awq"}) == "awq" and read({"bits": 4}) == "quantised"
    assert read(types.SimpleNamespace(quant_method=Method.GPTQ)) == "gptq"
    assert read(types.SimpleNamespace(quant_method="hqq")) == "hqq"
    assert read(types.SimpleNamespace(bits=4)) == "quantised", "a method without a name"


def test_which_checkpoints_have_a_head_for_classes():
    def has(*names):
        return loading.is_classifier(types.SimpleNamespace(architectures=list(names)))

    assert has("BertForSequenceClassification") and has(
        "X", "XForSequenceClassification"
    )
    assert (
        not has("BertModel") and not has("ForSequenceClassificationBert") and not has()
    )
    assert not loading.is_classifier(types.SimpleNamespace(architectures=None))
    only = types.SimpleNamespace(architectures=["T5EncoderModel"])
    assert loading._find_encoder_class(only).__name__ == "T5EncoderModel"
    assert (
        loading._find_encoder_class(types.SimpleNamespace(architectures=["T5Model"]))
        is None
    )
    assert loading._find_encoder_class(types.SimpleNamespace()) is None


def test_what_a_model_reads_and_what_is_said_of_it():
    reads = {"input_values": "speech", "input_features": "speech"}
    reads |= {"pixel_values": "image", "input_ids": "text", "": "text"}
    for name, modality in reads.items():
        assert (
            loading.modality_of(types.SimpleNamespace(main_input_name=name)) == modality
        )
    assert loading.modality_of(object()) == "text"
    assert loading._list_notices("", "image", has_processor=True) == []
    both = loading._list_notices("old copy", "image", has_processor=False)
    assert both[0] == "old copy" and "defaults for image" in both[1] and len(both) == 2
    assert loading._read_dtype("auto") is None
    assert loading._read_dtype("float16") == torch.float16


def test_cures_of_what_transformers_says():
    cure = loading._suggest_cure
    for text in ("x does not recognize this architecture y", "Unrecognized model in z"):
        assert "newer transformers" in cure(ValueError(), text)
    assert cure(ImportError("x"), "x") == "install what is missing"
    assert cure(OSError("x"), "x") == loading.AGAIN


def test_failures_are_explained_by_what_the_folder_shows(tmp_path):
    def explain(text="boom\n twice", **files):
        for path in tmp_path.iterdir():
            path.unlink()
        for name, content in files.items():
            (tmp_path / name.replace("__", ".")).write_text(content)
        return str(
            loading._explain_failure(ValueError(text), "the-model", str(tmp_path))
        )

    trusted = explain("set trust_remote_code=True")
    assert (
        "--trust-remote-code" in trusted
        and "the-model, which runs its own code" in trusted
    )
    assert "weights of torch in the-model" in explain(config__json="{}")
    assert "TensorFlow" in explain(tf_model__h5="")
    weights = {"model__safetensors": ""}
    whole = explain(**weights)
    assert (
        "readable checkpoint the-model" in whole and "ValueError: boom twice" in whole
    )
    assert loading.AGAIN in whole
    quantised = json.dumps({"quantization_config": {"quant_method": "awq"}})
    assert "quantised (awq)" in explain(config__json=quantised)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_are_finite_numbers(value):
    model = nn.Sequential(linear(), linear())
    model.register_buffer("counts", torch.tensor([1, 2]))
    model.register_buffer("empty", torch.zeros(0))
    model.register_buffer("shape", torch.zeros(2, device="meta"))
    assert loading._require_finite(model, "m") is model
    with torch.no_grad():
        model[1].bias[1] = value
    with pytest.raises(ModelError, match=r"finite weights in m.*NaN or Inf in 1\.bias"):
        loading._require_finite(model, "m")


def test_factories_are_called_and_the_path_is_as_before(tmp_path, monkeypatch):
    import sys

    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_factory_here.py").write_text(
        "from torch import nn\n"
        "def alone(): return nn.Linear(1, 1)\n"
        "def pair(): return nn.Linear(1, 1), 'words'\n"
        "def triple(): return nn.Linear(1, 1), 1, 2\n"
        "def wrong(): return 3\n"
        "def fails(): raise ValueError('no')\n"
    )
    before = list(sys.path)
    model, processor = loading._load_factory("a_factory_here:alone")
    assert isinstance(model, nn.Linear) and processor is None
    assert loading._load_factory("a_factory_here:pair")[1] == "words"
    for name, said in (
        ("triple", "got tuple"),
        ("wrong", "got int"),
        ("fails", "ValueError: no"),
        ("none", "AttributeError"),
    ):
        with pytest.raises(ModelError, match=said):
            loading._load_factory(f"a_factory_here:{name}")
    assert sys.path == before
    with pytest.raises(UsageError, match="a_factory_here:alone"):
        loading._load_without_checkpoint("a_factory_here:alone", 3)
    assert loading._load_without_checkpoint("some/model", None) is None
    assert loading._load_without_checkpoint("builtin:x", None) is None


def test_a_revision_is_of_the_hub(tmp_path, monkeypatch):
    asked = []

    def locate(*given):
        asked.append(given)
        return hub.ModelPlace(str(tmp_path), None)

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(loading, "locate", locate)
    monkeypatch.setattr(loading, "download", lambda place, *_, **_how: place)
    loading.checkpoint_path("o/m@pinned")
    loading.checkpoint_path("o/m@pinned", "asked")
    assert [given[:3] for given in asked] == [
        ("o/m", "pinned", "o/m@pinned"),
        ("o/m", "asked", "o/m@pinned"),
    ]
    for name in (str(tmp_path), packaged.BUILTIN):
        with pytest.raises(ModelError, match="a hub id, because a revision is named"):
            loading.checkpoint_path(name, "main")


def test_short_names_that_are_near_are_suggested(monkeypatch):
    monkeypatch.setattr(loading, "named_models", lambda: {"bert-base": 0, "gpt2": 0})
    assert loading._suggest_model("bert-bse") == "did you mean bert-base?"
    assert loading._suggest_model("builtin:minlm") == "did you mean builtin:minilm?"
    assert loading._suggest_model("bert-base") == loading._suggest_model("other") == ""


# ---- files and hashes ------------------------------------------------------------------------------------------------


def test_weights_of_an_adapter_are_equal_in_the_type_they_are_loaded_in():
    x = torch.tensor([1.0, 2.000001])
    assert adapters._is_same(x, x.half()) and not adapters._is_same(x, x.half() + 1)
    assert not adapters._is_same(x, x[:1]) and not adapters._is_same(x, x[None])


def test_weights_in_an_envelope_are_taken_out():
    weights = {"a": torch.zeros(1)}
    assert published.unwrap_state_dict(weights) is weights
    assert published.unwrap_state_dict({"state_dict": weights, "epoch": 3}) is weights
    assert published.unwrap_state_dict({"model": weights}) is weights
    named = {"model": torch.zeros(1)}
    assert published.unwrap_state_dict(named) is named, "a weight of that name"
    assert published.unwrap_state_dict({"model": {}, "state_dict": weights}) is weights


@pytest.mark.filterwarnings("ignore:torch.quantize_per")
@pytest.mark.parametrize("axis", [0, None])
def test_a_quantised_weight_is_hashed_by_integers_scales_and_zero_points(axis):
    """With a scale for each row, or one for all."""

    def made(values=(1.0, 2.0), scale=0.5, zero=3):
        x = torch.tensor([values, values])
        if axis is None:
            return torch.quantize_per_tensor(x, scale, zero, torch.qint8)
        scales, zeros = torch.tensor([0.5, scale]), torch.tensor([3, zero])
        return torch.quantize_per_channel(x, scales, zeros, axis, torch.qint8)

    def hashed(x):
        return [part.tolist() for part in identity._iter_tensors((x, [x], 3))]

    parts_of = hashed(made())
    assert len(parts_of) == 6, "two tensors of three parts each"
    assert parts_of[0] == [[5, 7], [5, 7]]
    scale, zero = parts_of[1:3]
    assert (scale, zero) == (([0.5, 0.5], [3, 3]) if axis == 0 else (0.5, 3))
    for other in (made(values=(1.0, 3.0)), made(scale=0.25), made(zero=4)):
        assert hashed(other) != parts_of
    assert identity._write_settings((made(), 3, ["x"])) == ",3,'x'"


def test_weights_laid_off_are_read_from_where_they_lie():
    module = nn.Module()
    module._hf_hook = types.SimpleNamespace(weights_map={"w": torch.ones(2)})
    meta = torch.zeros(2, device="meta")
    assert identity.read_offloaded(module, "w", meta).tolist() == [1, 1]
    own = torch.zeros(2)
    assert identity.read_offloaded(module, "w", own) is own


def test_a_state_dict_is_hashed_by_name_shape_type_and_numbers():
    def made(**tensors):
        model = nn.Module()
        for name, x in tensors.items():
            model.register_buffer(name, x)
        return identity.hash_weights(model)

    x = torch.arange(4.0)
    found = [
        made(a=x),
        made(b=x),
        made(a=x.view(2, 2)),
        made(a=x.view(torch.int32)),
        made(a=x + 1),
        made(a=x, b=x),
        made(a=x, b=torch.zeros(0)),
    ]
    assert len(set(found)) == len(found)
    assert made(a=x, b=x + 1) == made(b=x + 1, a=x), "in whatever order"
    assert made(a=x.bfloat16()) != made(a=x.half())


def test_small_files_are_hashed_each_time_and_large_ones_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashes, "LARGE", 4)
    small, large = tmp_path / "a", tmp_path / "b"
    small.write_bytes(b"123")
    large.write_bytes(b"1234")
    made = []

    def compute():
        made.append(1)
        return f"{len(made):064x}"

    for files, times in (([], 2), ([small], 2), ([large], 1), ([small, small], 1)):
        made.clear()
        for _ in range(2):
            hashes.recall_hash(files, lambda: ["k"], compute)
        assert len(made) == times, files
    made.clear()
    hashes.recall_hash([large], lambda: ["other"], compute)
    assert len(made) == 1


def test_the_oldest_hashes_go_first(tmp_path, monkeypatch):
    import os

    monkeypatch.setattr(hashes, "MOST_KEPT", 2)
    for age, name in enumerate("cab"):
        for path in (tmp_path / name, tmp_path / f".{name}.lock"):
            path.write_text("x")
            os.utime(path, (100 + age, 100 + age))
    hashes._remove_oldest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".a.lock",
        ".b.lock",
        "a",
        "b",
    ]


def test_a_hash_has_the_form_of_the_one_that_is_expected(tmp_path):
    import hashlib

    path = tmp_path / "x"
    path.write_bytes(b"some bytes")
    git = hashlib.sha1(b"blob 10\0some bytes").hexdigest()
    large = hashlib.sha256(b"some bytes").hexdigest()
    assert hub._hash_like("a" * 40, path) == git
    assert hub._hash_like("b" * 64, path) == large
    for other in ("", "A" * 40, "c" * 41, "etag"):
        assert hub._hash_like(other, path) == other
    hub.verify_hashes(tmp_path, {"x": large}, "m")
    hub.verify_hashes(tmp_path, {"y": git}, "m")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "z").write_bytes(b"z")
    with pytest.raises(ModelError) as told:
        hub.verify_hashes(tmp_path, {"x": "0" * 64, "sub/z": "0" * 40}, "m")
    assert "(2 files in all)" in str(told.value) and "z of m" in str(told.value)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_damaged_file_goes_with_what_it_links_to(tmp_path):
    for name in ("blob", "kept"):
        (tmp_path / name).write_text("x")
    (tmp_path / "middle").symlink_to("blob")
    (tmp_path / "link").symlink_to("middle")
    hub._remove(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_files_beside_the_weights_and_of_the_configuration_alone():
    files = {
        "config.json": "",
        "vocab.txt": "",
        "code.py": "",
        "a/b.py": "",
        "model.bin": "",
    }
    place = hub.ModelPlace("o/m", None, "c", files, {"vocab.txt": 1 << 27})
    small = hub._list_small_files(place, "m", config_only=False)
    assert small == ["config.json", "code.py", "a/b.py"]
    files["tokenizer.json"] = ""
    alone = hub._list_small_files(place, "m", config_only=True)
    assert alone == ["config.json", "code.py", "a/b.py"]
    with pytest.raises(ModelError, match=r"config\.json in m"):
        hub._list_small_files(
            hub.ModelPlace("o/m", None, "c", {"x.txt": ""}), "m", config_only=False
        )


@pytest.mark.parametrize("move", [True, False])
def test_the_cache_knows_what_a_revision_means_once_all_is_there(move, tmp_path):
    folder = tmp_path / "snapshots" / "new"
    folder.mkdir(parents=True)

    def remembered(revision, commit="new"):
        hub._remember(hub.ModelPlace("o/m", revision, commit), folder, move=move)
        path = tmp_path / "refs" / (revision or "main")
        return path.read_text() if path.exists() else None

    assert remembered(None) == "new" and remembered("v/1") == "new"
    assert remembered("new") is None, "a commit means itself"
    (tmp_path / "refs" / "main").write_text("old")
    assert remembered(None) == ("new" if move else "old")


def test_a_missing_path_is_told_with_what_lies_in_its_folder(tmp_path):
    assert hub.describe_folder_of("plain") == ""
    assert hub.describe_folder_of(str(tmp_path / "none" / "x")) == ""
    assert hub.describe_folder_of(str(tmp_path / "x")).endswith("is empty")
    for name in "gfedcba":
        (tmp_path / name).mkdir()
    assert hub.describe_folder_of(str(tmp_path / "x")) == (
        f"the folder {tmp_path} has a, b, c, d, e"
    )


def test_ids_of_the_hub_have_one_slash_at_most(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a/b"):
        hub._check_is_hub_id(name, name)
    for name in ("a/b/c", "/a", "./a", "~a", "../a"):
        with pytest.raises(ModelError, match="neither a folder here nor on the hub"):
            hub._check_is_hub_id(name, name)
    (tmp_path / "x.gguf").write_text("")
    with pytest.raises(ModelError, match=r"a file.*GGUF"):
        hub._check_is_hub_id("x.gguf", "x.gguf")
    (tmp_path / "x.json").write_text("")
    with pytest.raises(ModelError, match="the folder that holds it"):
        hub._check_is_hub_id("x.json", "x.json")


# ---- the hub ---------------------------------------------------------------------------------------------------------


def reply(status, kind=None, **headers):
    from huggingface_hub import errors

    kind = kind or errors.HfHubHTTPError
    response = types.SimpleNamespace(
        status_code=status, headers=headers, request=None, url="", text=""
    )
    error = kind.__new__(kind)
    Exception.__init__(error, "told")
    error.response = response
    return error


def test_each_answer_of_the_hub_has_its_cure(monkeypatch):
    from huggingface_hub import errors

    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")

    def explain(*given, **headers):
        fault = hub_faults._explain_status(reply(*given, **headers))
        return fault.got, fault.absent, fault.denied, fault.cure

    assert explain(403, errors.GatedRepoError)[:3] == (
        "a gated repository (403)",
        False,
        True,
    )
    assert explain(404, errors.RepositoryNotFoundError)[:3] == (
        "no such repository (404)",
        True,
        False,
    )
    assert explain(403, errors.DisabledRepoError)[2]
    got, absent, denied, _ = explain(401)
    assert "refuses" in got and denied and not absent
    assert explain(403)[:3] == (
        "a token without the right to read it (403)",
        False,
        True,
    )
    assert explain(404)[1:] == (True, False, "check the spelling")
    monkeypatch.setenv("HF_ENDPOINT", "x")
    assert explain(404)[3] == "check HF_ENDPOINT"
    assert explain(429)[3].startswith("wait some minutes")
    assert explain(429, **{"Retry-After": "in 12 s"})[3].startswith("wait 12 s")
    for status in (500, 503):
        got, absent, denied, _ = explain(status)
        assert got == f"a failure of the hub itself ({status})" and not (
            absent or denied
        )
    assert explain(418)[0] == "an answer with status 418" and explain(499)[0].endswith(
        "499"
    )
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert explain(401)[3] == "run `hf auth login`"


def test_a_refused_token_is_tried_without_once(monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")
    asked = []

    def question(status, second="public"):
        def ask(token):
            asked.append(token)
            if token is None:
                raise reply(status)
            if isinstance(second, Exception):
                raise second
            return second

        return ask

    for status in (401, 403):
        assert hub_memory.with_token_fallback(question(status)) == ("public", False)
    assert asked == [None, False] * 2
    asked.clear()
    with pytest.raises(Exception) as told:
        hub_memory.with_token_fallback(question(404))
    assert told.value.response.status_code == 404 and asked == [None]
    with pytest.raises(Exception) as told:
        hub_memory.with_token_fallback(question(401, reply(500)))
    assert told.value.response.status_code == 401, "the first says more"
    assert hub_memory.with_token_fallback(lambda token: token) == (None, None)
    asked.clear()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(Exception, match="told"):
        hub_memory.with_token_fallback(question(401))
    assert asked == [None]


def test_commits_are_remembered_by_kind_name_and_revision(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    notes = {
        ("model", "o/m", None): "a",
        ("model", "o/m", "v1"): "b",
        ("data", "o/m", None): "c",
        ("model", "o/n", None): "d",
    }
    for key, commit in notes.items():
        hub_memory.remember(*key, commit)
    assert {key: hub_memory.recall_commit(*key) for key in notes} == notes
    assert hub_memory.recall_commit("model", "o/m", "main") == "a"
    assert hub_memory.recall_commit("model", "none", None) is None
    hub_memory.remember("model", "o/m", None, "e")
    assert hub_memory.recall_commit("model", "o/m", None) == "e"


# ---- processors and other libraries ----------------------------------------------------------------------------------


def test_limits_of_tokenizers_are_positive_numbers():
    for longest in (1, 512, 1e30, 0.5):
        processors._check_longest(longest, "m")
    for longest in (0, -1, True, "512", None, float("nan")):
        with pytest.raises(ModelError, match="model_max_length"):
            processors._check_longest(longest, "m")


def test_a_tokenizer_without_its_files_is_none(tmp_path):
    class Tokenizer:
        def __init__(self):
            self.vocab_files_names = {"vocab_file": "vocab.txt"}

        def __len__(self):
            return 5

    def check(size, tokenizer=None):
        config = types.SimpleNamespace(vocab_size=size)
        processors._check_vocabulary(
            tokenizer or Tokenizer(), config, str(tmp_path), "m"
        )

    check(5)
    check(None)
    with pytest.raises(ModelError, match=r"none of tokenizer\.json, vocab\.txt"):
        check(6)
    of_bytes = Tokenizer()
    of_bytes.vocab_files_names = {}
    check(6, of_bytes)
    (tmp_path / "vocab.txt").write_text("x")
    check(6)


def test_processors_of_images_and_texts_have_both():
    both = types.SimpleNamespace(tokenizer=1, image_processor=1)
    assert processors.reads_images_and_texts(both)
    for name in ("tokenizer", "image_processor"):
        one = types.SimpleNamespace(**{name: 1})
        assert not processors.reads_images_and_texts(one)
    for modalities in (("image",), ("text",), None):
        model = types.SimpleNamespace(input_modalities=modalities)
        assert processors.processor_of_images_and_texts(model, "none", False) is None


def test_why_the_vector_of_a_text_is_not_measured(monkeypatch):
    own = {"type": "sentence_transformers.models.Pooling"}
    foreign = {"type": "custom.Pool"}
    explain = other_libraries._explain_unmeasured
    monkeypatch.setattr(other_libraries, "find_spec", lambda _: "there")
    assert explain([own, own], "SentenceTransformer") == ""
    assert explain([own, own], "SparseEncoder") == ""
    assert "custom.Pool is code of its own" in explain(
        [own, foreign], "SentenceTransformer"
    )
    assert "a CrossEncoder gives no vector" in explain([own], "CrossEncoder")
    monkeypatch.setattr(other_libraries, "find_spec", lambda _: None)
    assert "pip install sentence-transformers" in explain([own], "SentenceTransformer")


def test_texts_are_pooled_by_the_modules_in_turn():
    seen = []

    class Module(nn.Module):
        def forward(self, features):
            seen.append(set(features))
            vector = features.get(
                "sentence_embedding", features["token_embeddings"].sum(1)
            )
            return features | {"sentence_embedding": 2 * vector}

    model = nn.Module()
    model.sentence = nn.ModuleList([Module(), Module()])
    states = torch.arange(12.0).view(2, 3, 2)
    inputs = {"input_ids": 1, "attention_mask": 2, "position_ids": 3}
    output = types.SimpleNamespace(last_hidden_state=states)
    found = other_libraries.pool_texts(model, inputs, output)
    assert found.shape == (2, 1, 2) and torch.equal(found[:, 0], 4 * states.sum(1))
    assert seen[0] == {"input_ids", "attention_mask", "token_embeddings"}
    both = types.SimpleNamespace(
        last_hidden_state=states, encoder_last_hidden_state=states + 1
    )
    found = other_libraries.pool_texts(model, inputs, both)
    assert torch.equal(found[:, 0], 4 * (states + 1).sum(1)), "those of the encoder"


# ---- word vectors ----------------------------------------------------------------------------------------------------


def mean_cosine(x):
    unit = x / x.norm(dim=1, keepdim=True)
    pairs = unit @ unit.T
    return float(pairs[~torch.eye(len(x), dtype=torch.bool)].mean())


def random_vectors(rows=30, dim=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, dim, generator=generator, dtype=torch.float64) + 0.4


@pytest.mark.parametrize("cosine", [0.0, 0.1, 0.5, 0.95])
def test_one_vector_added_gives_the_mean_cosine(cosine):
    x = random_vectors()
    found = vectors.shift_to_cosine(x, cosine)
    assert mean_cosine(found) == pytest.approx(cosine, abs=1e-9)
    assert vectors._mean_cosine(x) == pytest.approx(mean_cosine(x))
    added = found - x
    assert torch.allclose(added, added[:1].expand_as(added)), "the same to each"
    common = (x / x.norm(dim=1, keepdim=True)).mean(0)
    along = added[0] @ common / (added[0].norm() * common.norm())
    assert abs(float(along)) == pytest.approx(1)
    assert float(found.mean(0) @ common) > 0, "on the side of the common direction"
    with pytest.raises(UsageError, match="two word vectors"):
        vectors.shift_to_cosine(x[:1], cosine)


def test_word_vectors_get_norm_and_cosine_and_words_without_one_keep_zeros():
    x = random_vectors()
    x[3] = 0
    known = torch.arange(30) != 3
    length = float(x[known].norm(dim=1).mean())
    for norm, cosine in ((None, None), (2.0, None), (None, 0.3), (7.0, 0.3)):
        made = x.clone()
        vectors.adjust_vectors(made, "file", norm=norm, cosine=cosine)
        assert not made[3].any()
        mean = float(made[known].norm(dim=1).mean())
        assert mean == pytest.approx(norm or length)
        if cosine is None:
            ratio = (made[known] / x[known]).flatten()
            assert torch.allclose(ratio, ratio[:1].expand_as(ratio)), (
                "one factor for all"
            )
        else:
            assert mean_cosine(made[known]) == pytest.approx(cosine, abs=1e-9)
    for norm, cosine in ((0.0, None), (float("inf"), None), (None, -0.1), (None, 1.0)):
        with pytest.raises(UsageError):
            vectors.adjust_vectors(x.clone(), "file", norm=norm, cosine=cosine)
    vectors.adjust_vectors(x.clone(), "file", cosine=0.0)
    with pytest.raises(ModelError, match="word vectors in file that are not zero"):
        vectors.adjust_vectors(torch.zeros(3, 2), "file", norm=1.0)


def test_a_file_of_word_vectors_is_read_line_by_line(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("4 2\nb 1 2\na 3 4\nb 5 6\nother x y\n<pad> 7 8\n")
    found = vectors.word_vectors(str(path), ["<pad>", "a", "none", "b"], ["<pad>"])
    assert found.matrix.tolist() == [[0, 0], [3, 4], [0, 0], [1, 2]]
    assert (found.found, found.source) == (2, "v.txt")
    for text, said in (
        ("a 1 2\nb\n", "'b' alone in line 2"),
        ("a 1 2\nb 1\n", "1 in line 2"),
        ("a 1 x\n", "line 1"),
        ("a 1 nan\n", "in line 1 .a"),
        ("a 1 1e39\n", "more than float32"),
        ("c 1 2\n", "vectors of words of the corpus"),
    ):
        path.write_text(text)
        with pytest.raises(ModelError, match=said):
            vectors.word_vectors(str(path), ["a", "b"], [])


# ---- modes -----------------------------------------------------------------------------------------------------------


def test_modes_are_those_of_before_whatever_happens():
    model = nn.Sequential(linear(), linear())
    model[1].eval()
    for fails in (False, True):
        try:
            with modes.evaluation_mode(model):
                assert not any(module.training for module in model.modules())
                if fails:
                    raise ValueError
        except ValueError:
            pass
        assert [module.training for module in model.modules()] == [True, True, False]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with modes.full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_compiled_models_are_told_by_any_module():
    model = nn.Sequential(linear(), linear())
    assert not modes.is_compiled(model)
    model[1]._compiled_call_impl = lambda *_: None
    assert modes.is_compiled(model)


def test_formats_are_recognised_by_the_first_that_fits(monkeypatch):
    described = {
        name: formats.explain_format([name])
        for name in (
            "x.onnx",
            "x.ckpt",
            "x.pth",
            "x.th",
            "x.pt",
            "tf_model.h5",
            "flax_model.msgpack",
        )
    }
    assert all(described.values())
    assert "ONNX" in described["x.onnx"] and "Flax" in described["flax_model.msgpack"]
    assert described["x.pth"] == described["x.th"] == described["x.pt"]
    assert "adapter" in formats.explain_format(["adapter_config.json", "x.gguf"])
    monkeypatch.setattr(formats, "find_spec", lambda _: "there")
    assert formats.is_adapter(["adapter_config.json", "adapter_model.bin"])
    for name in formats.WEIGHTS[:4]:
        assert not formats.is_adapter(["adapter_config.json", name])
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    assert not formats.is_adapter(["adapter_config.json"])
    for names in (formats.WEIGHTS, tuple(reversed(formats.WEIGHTS))):
        assert formats.choose_weight_file(names) == "model.safetensors"
    assert formats.choose_weight_file(formats.WEIGHTS[2:]) == "pytorch_model.bin"


def test_numbers_of_a_hash_are_read_as_they_lie():
    x = torch.arange(6.0).view(2, 3)
    assert (
        bytes(identity._read_bytes(x.T)) == np.ascontiguousarray(x.numpy().T).tobytes()
    )
    assert identity._read_bytes(torch.zeros(0)) == b""


# ---- what is loaded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commit", "revision", "found"),
    [("c0ffee", "main", "c0ffee"), (None, "main", "main"), (None, None, None)],
)
def test_a_model_has_the_commit_that_its_branch_had(
    monkeypatch, tmp_path, commit, revision, found
):
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=9, intermediate_size=8, **sizes)
    BertModel(config).save_pretrained(tmp_path)
    asked = []

    def find(name, wanted, *, weights):
        asked.append((name, wanted, weights))
        return hub.ModelPlace(str(tmp_path), wanted, commit)

    monkeypatch.setattr(loading, "checkpoint_path", find)
    monkeypatch.setattr(loading, "_load_without_checkpoint", lambda *_: None)
    monkeypatch.setattr(loading, "processor_of", lambda *_: None)
    monkeypatch.setattr(loading, "processor_of_images_and_texts", lambda *_: None)
    subject = loading.load("org/model", revision=revision)
    assert asked == [("org/model", revision, True)]
    assert subject.revision == found and subject.name == "org/model"
    drawn = loading.load("org/model", untrained=True, seed=3)
    assert asked[-1] == ("org/model", None, False)
    assert loading.DRAWN in drawn.notes and loading.DRAWN not in subject.notes
    assert drawn.weights_sha256 != subject.weights_sha256


# ---- positions of a stack --------------------------------------------------------------------------------------------


def stream_of(mask, start=(0, 10), **more):
    from anisoscope.batch import Stream

    mask = torch.tensor(mask, dtype=torch.bool)
    special = torch.zeros_like(mask)
    special[:, 0] = mask[:, 0]
    return Stream(mask, special, torch.tensor(start), **more)


class Ears(nn.Module):
    """A speech model that says how many positions it makes of so many inputs."""

    main_input_name = "input_features"

    def __init__(self, count=None, name="_get_feat_extract_output_lengths"):
        super().__init__()
        self.config = types.SimpleNamespace(conv_stride=(3, 2))
        if count is not None:
            setattr(self, name, count)


def test_a_frame_is_real_if_all_its_samples_are():
    """Of 13 samples 2 frames by strides of 3 and 2; of 12 and fewer than 6 samples 2, 0."""
    samples = stream_of([[1] * 13, [1] * 12 + [0], [1] * 5 + [0] * 8], (0, 12, 61))
    found = blocks._convert_samples(Ears(lambda n: n // 6), samples)
    assert found.mask.long().tolist() == [[1, 1], [1, 1], [0, 0]]
    assert found.special.any().item() is False and found.start.tolist() == [0, 2, 10]
    assert blocks._convert_samples(Ears(), samples) is samples
    without = Ears(lambda n: n // 6)
    without.config = types.SimpleNamespace()
    assert blocks._convert_samples(without, samples).start.tolist() == [0, 12, 61]


def test_frames_become_as_many_positions_as_the_innermost_model_says():
    frames = stream_of([[1] * 12, [1] * 9 + [0] * 3], (24, 60))
    outer = Ears(lambda n: n * 100)
    outer.inner = Ears(
        lambda n: ((n + 3) // 4, n // 8), "_get_subsampling_output_length"
    )
    found = blocks._convert_frames(outer, frames)
    assert found.mask.long().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert found.start.tolist() == [6, 15] and not found.special.any()
    outer.inner = Ears(lambda n: n // 4)
    assert blocks._convert_frames(outer, frames).mask.long().tolist() == [[1] * 3, [1, 1, 0]]  # fmt: skip
    # a part that reads something else is not asked
    outer.inner.main_input_name = "input_ids"
    assert blocks._convert_frames(outer, frames).mask.shape == (2, 1200)
    assert blocks._convert_frames(outer, frames).start.tolist() == [24, 60]
    # by default two neighbours are merged
    merged = blocks._convert_frames(nn.Module(), frames)
    assert merged.mask.long().tolist() == [[1] * 6, [1] * 5 + [0]]
    assert merged.start.tolist() == [12, 30]
    assert merged.special.long().tolist() == [[1, 0, 0, 0, 0, 0]] * 2


def test_streams_of_samples_and_frames_are_those_of_the_encoder():
    from anisoscope.batch import Batch

    samples = stream_of([[1] * 12, [1] * 6 + [0] * 6])
    decoder = stream_of([[1, 1], [1, 0]])
    speaking = blocks.TokenPositions(Ears(lambda n: n // 6))
    for name in ("samples", "frames"):
        given = {name: samples, "decoder": decoder}
        found = speaking.streams(Batch({}, torch.tensor([3, 4]), given))
        assert set(found) == {"encoder", "decoder"} and found["decoder"] is decoder
        assert found["encoder"].mask.long().tolist() == [[1, 1], [1, 0]]
        assert set(given) == {name, "decoder"}, "the batch's own stay as they are"


def test_each_pair_is_an_image_and_its_text():
    from anisoscope.batch import Batch

    unit = torch.tensor([4, 4, 9])
    texts = stream_of([[1, 1]] * 3, (0, 7, 3))
    pairs = blocks._make_stream_of_pairs(Batch({}, unit, {"encoder": texts}))
    assert pairs.mask.tolist() == [[True, True]] * 3
    assert pairs.image.tolist() == [[True, False]] * 3
    assert not pairs.special.any() and pairs.start.tolist() == [0, 7, 3]
    alone = blocks._make_stream_of_pairs(Batch({}, unit))
    assert alone.start.tolist() == [0, 2, 4]


@pytest.mark.parametrize("name", ["image_token_id", "image_token_index"])
def test_places_of_images_are_marked_in_streams_of_the_ids(name):
    """Token 0 may be the mark; a stream of another length has none of these places; padding is no image."""
    from anisoscope.batch import Batch

    model = nn.Module()
    model.config = types.SimpleNamespace(**{name: 0})
    ids = torch.tensor([[5, 0, 0], [0, 7, 0]])
    streams = {
        "decoder": stream_of([[1, 1, 1], [1, 1, 0]]),
        "vision": stream_of([[1] * 4] * 2),
    }
    batch = Batch({"input_ids": ids}, torch.tensor([0, 1]))
    found = blocks._mark_images(model, batch, streams)
    assert found["decoder"].image.long().tolist() == [[0, 1, 1], [1, 0, 0]]
    assert found["vision"] is streams["vision"]
    assert streams["decoder"].image is None
    model.config = types.SimpleNamespace(image_token_id=None)
    assert blocks._mark_images(model, batch, streams) is streams
    assert blocks._mark_images(nn.Module(), batch, streams) is streams


def test_tokens_in_front_of_the_patches_are_counted():
    model = nn.Module()
    model.body = nn.Module()
    for name, shape in (
        ("cls_token", (1, 1, 8)),
        ("register_tokens", (1, 4, 8)),
        ("class_embedding", (8,)),
        ("position_embedding", (1, 9, 8)),
    ):
        model.body.register_parameter(name, nn.Parameter(torch.zeros(shape)))
    assert blocks._count_special_tokens(model) == 6
    # of DeiT, and of timm
    for name, more in (("distillation_token", 1), ("dist_token", 1), ("reg_token", 3)):
        other = nn.Module()
        other.register_parameter(name, nn.Parameter(torch.zeros(1, more, 8)))
        assert blocks._count_special_tokens(other) == more, name
    for late in ("blocks_token_only", "cls_attn_blocks", "post_network"):
        setattr(model, late, nn.ModuleList([linear()]))
        assert blocks._count_special_tokens(model) == 0, late
        delattr(model, late)


def test_each_stage_of_cvt_says_whether_it_has_a_class_token():
    from anisoscope.axes import Site

    model = nn.Module()
    model.main_input_name = "pixel_values"
    model.register_parameter("cls_token", nn.Parameter(torch.zeros(1, 1, 8)))
    model.config = types.SimpleNamespace(cls_token=[True, False, True], depth=[1, 2, 3])
    positions = blocks.TokenPositions(model)

    def count(layer, quantity="hidden", stack="encoder"):
        return positions.specials(Site(stack, layer, quantity))

    assert [count(layer) for layer in range(7)] == [1, 1, 0, 0, 1, 1, 1]
    assert count(None, "final") == 1
    with pytest.raises(IndexError, match="layer 7 of a model with 6 layers"):
        count(7)
    assert count(1, "stage") == count(1, "pre_relu") == count(1, stack="vision") == 0
    model.config.cls_token = True
    assert [count(layer) for layer in (1, 2, 99)] == [1, 1, 1]


def test_modules_are_of_the_stack_of_the_first_known_part_of_their_path():
    by_part = {"encoder": "e", "speech_encoder": "s", "decoder": "d"}
    for path, stack in (
        ("speech_encoder.encoder.0", "s"),
        ("model.decoder.encoder", "d"),
        ("encoders.0", ""),
        ("", ""),
    ):
        assert blocks._find_stack_in_path(path, by_part) == stack
    model = nn.Module()
    model.encoder, model.decoder, model.head = linear(), linear(), linear()
    assert set(blocks.find_stacks(model).values()) == {"encoder"}
    model.config = types.SimpleNamespace(is_encoder_decoder=True)
    found = blocks.find_stacks(model)
    assert (found[model.decoder], found[model.head]) == ("decoder", "encoder")
    torchs = nn.Transformer(4, 1, 1, 1, 4, batch_first=True)
    found = blocks.find_stacks(torchs)
    assert found[torchs.decoder.layers[0]] == "decoder"
    assert found[torchs.encoder.layers[0]] == "encoder"


def test_attention_that_says_it_is_causal_makes_a_decoder():
    class TinyAttention(nn.Module):
        is_causal = True

    class Causal(nn.Module):
        is_causal = True

    for inner, stack in (
        (TinyAttention(), "decoder"),
        (Causal(), "encoder"),
        (nn.MultiheadAttention(4, 1), "encoder"),
    ):
        model = nn.Module()
        model.inner = inner
        assert blocks.find_stack(model) == stack
    TinyAttention.is_causal = 1
    model.inner = TinyAttention()
    assert blocks.find_stack(model) == "encoder", "only True says so"


def test_which_way_blocks_pass_on_their_vectors():
    for first in (True, False):
        layer = nn.TransformerEncoderLayer(4, 1, 4, batch_first=first)
        assert blocks.has_tokens_first(nn.Module(), layer) is not first
        own = nn.Module()
        own.lstm = nn.LSTM(4, 4, batch_first=first)
        if first:
            assert blocks.has_tokens_first(nn.Module(), own) is False
        else:
            with pytest.raises(
                UsageError, match=r"Module around LSTM with batch_first"
            ):
                blocks.has_tokens_first(nn.Module(), own)
    assert blocks.has_tokens_first(nn.Module(), linear()) is False
    model = nn.Module()
    model.config = types.SimpleNamespace(model_type="xlnet")
    assert blocks.has_tokens_first(model, linear()) is True


def test_stages_of_efficientnet_end_at_its_scaled_numbers_of_blocks():
    class EfficientNetBlock(nn.Module):
        pass

    model = nn.Module()
    model.blocks = nn.ModuleList(EfficientNetBlock() for _ in range(7))
    # ⌈1.1 · 1⌉ = 2, ⌈1.1 · 2⌉ = 3, ⌈1.1 · 1⌉ = 2
    model.config = types.SimpleNamespace(
        model_type="efficientnet", depth_coefficient=1.1, num_block_repeats=[1, 2, 1]
    )
    assert blocks.find_stages(model) == [model.blocks[i] for i in (1, 4, 6)]


def test_patterns_of_names_stand_for_one_part_each():
    class Layer(nn.Module):
        pass

    for pattern, name, fits in (
        ("Layer", "anything.at.all", True),
        ("Layer*", "x", False),
        ("encoder.*", "encoder.3", True),
        ("encoder.*", "encoder.3.x", False),
        ("*.layer", "encoder.layer", True),
        ("*.layer", "layer", False),
        ("encoder.b*", "encoder.blocks", True),
        ("encoder.B*", "encoder.blocks", False),
    ):
        assert blocks._is_match(pattern, name, Layer()) is fits, (pattern, name)


# ---- adapters, devices, kinds ----------------------------------------------------------------------------------------


def test_the_base_of_an_adapter_is_named_in_its_configuration(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert adapters.find_base(str(tmp_path)) is None
    place = tmp_path / "adapter_config.json"
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    for given in ({}, {"base_model_name_or_path": ""}, {"base_model_name_or_path": 3}):
        place.write_text(json.dumps(given))
        with pytest.raises(ModelError, match=r"base model in .*adapter_config.json"):
            adapters.find_base(str(tmp_path))
    place.write_text(json.dumps({"base_model_name_or_path": "a/b"}))
    assert adapters.find_base(str(tmp_path)) == "a/b"


def test_a_head_has_as_many_classes_as_its_last_matrix_has_rows():
    assert adapters._count_classes({}) is None
    weights = {
        "base.score.lora_A.weight": torch.zeros(8, 4),
        "base.classifier.weight": torch.zeros(5, 16),
        "base.classifier.bias": torch.zeros(5),
        "base.score.weight": torch.zeros(7),
        "base.dense.weight": torch.zeros(9, 9),
    }
    assert adapters._count_classes(weights) == 5
    weights["base.classifier.out_proj.weight"] = torch.zeros(3, 16)
    assert adapters._count_classes(weights) == 3


def test_devices_of_a_job_are_dealt_by_the_number_of_the_process(monkeypatch):
    asked = []
    monkeypatch.setattr(
        devices.torch, "empty", lambda *_a, device: asked.append(device)
    )
    monkeypatch.setattr(devices.torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(devices.torch.accelerator, "device_count", lambda: 2)
    found = types.SimpleNamespace(type="cuda")
    monkeypatch.setattr(
        devices.torch.accelerator, "current_accelerator", lambda **_how: found
    )
    assert str(devices.device_of("auto")) == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "3")
    for name, device in (
        ("auto", "cuda:1"),
        ("cuda", "cuda:1"),
        ("cuda:0", "cuda:0"),
        ("cpu", "cpu"),
        ("mps", "mps"),
    ):
        assert str(devices.device_of(name)) == device
    found = None
    assert str(devices.device_of("auto")) == "cpu"
    with pytest.raises(ModelError, match="a device that computes; got 'meta'"):
        devices.device_of("meta")


def test_types_and_failures_by_name():
    assert devices.dtype_of("bfloat16") is torch.bfloat16
    for name in ("int8", "empty", "float3"):
        with pytest.raises(ModelError, match=rf"floating-point dtype; got '{name}'"):
            devices.dtype_of(name)
    for error, full in (
        (MemoryError(), True),
        (torch.OutOfMemoryError(), True),
        (RuntimeError("MPS backend out of memory (3 GB)"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("out of memory"), False),
    ):
        assert devices.is_out_of_memory(error) is full


def test_modules_without_values_are_found_by_path():
    model = nn.Sequential(linear(), nn.Sequential(linear(), linear()))
    assert devices.find_without_values(model) is None
    model[1][1].to("meta")
    assert devices.find_without_values(model) == "1.1"
    model[1][1]._hf_hook = object()
    assert devices.find_without_values(model) is None
    assert devices.find_without_values(linear().to("meta")) == ""


def test_models_of_other_libraries_are_told_what_to_do():
    def of(module, name="Model", bases=()):
        return type(name, bases, {"__module__": module})

    for module, said in (
        ("keras.src.models", "Model of Keras"),
        ("flax.linen", "Model of JAX"),
        ("mlx.nn", "Model of MLX"),
        ("torch.export.exported_program", "a program of torch.export"),
    ):
        with pytest.raises(UsageError, match=said):
            kinds.check_kind(of(module)())
    mine = of("mine", "Own", (of("keras.src.models"),))
    with pytest.raises(UsageError, match="Own of Keras"):
        kinds.check_kind(mine())
    with pytest.raises(
        UsageError, match=r"a program of torch.jit .*scripted or traced"
    ):
        kinds.check_kind(torch.jit.trace(linear(), torch.ones(1, linear().in_features)))
    kinds.check_kind(linear()), kinds.check_kind(of("kerasy.models")())


# ---- identity --------------------------------------------------------------------------------------------------------


def test_what_a_configuration_says_of_its_making_is_dropped_at_any_depth():
    settings = {
        "b": 1,
        "transformers_version": "5",
        "text_config": {"_name_or_path": "x", "d": 2, "c": {"_commit_hash": "y"}},
        "a": [{"_commit_hash": "z"}],
    }
    found = identity.drop_volatile(settings)
    assert found == {"a": [{"_commit_hash": "z"}], "b": 1, "text_config": {"c": {}, "d": 2}}  # fmt: skip
    assert list(found) == ["a", "b", "text_config"]


def test_a_quick_hash_reads_the_first_numbers_of_every_weight():
    def hashed(change=None, place=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 9), nn.Linear(10, 9))
        if change is not None:
            with torch.no_grad():
                model[change].weight.view(-1)[place] += 1
        return identity.hash_some_weights(model)

    first = hashed()
    assert hashed(0, 63) != first and hashed(1, 0) != first
    assert hashed(0, 64) == first == hashed(1, 89)
    renamed = nn.Sequential(nn.Linear(10, 9), nn.Linear(10, 9)).bfloat16()
    assert identity.hash_some_weights(renamed) != first


def test_weights_that_are_left_out_do_not_count():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2))
    whole, part = (
        identity.hash_weights(model),
        identity.hash_weights(model, ("1.bias",)),
    )
    with torch.no_grad():
        model[1].bias += 1
    assert identity.hash_weights(model, ("1.bias",)) == part != whole
    assert identity.hash_weights(model) != whole
    with torch.no_grad():
        model[0].bias += 1
    assert identity.hash_weights(model, ("1.bias",)) != part


# ---- parts of a series -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("org/a-step_20k  # a remark", ("org/a-step_20k", 20_000, 0)),
        ("org/a 7", ("org/a", 7, 0)),
        ("org/a-seed_3 7", ("org/a-seed_3", 7, 3)),
        ("org/a-seed_3 7 5", ("org/a-seed_3", 7, 5)),
        ("seed-1/seed-2/x-checkpoint-9", ("seed-1/seed-2/x-checkpoint-9", 9, 2)),
        ("x-step5-of-step1m", ("x-step5-of-step1m", 1_000_000, 0)),
        ("x-step5@step7", ("x-step5@step7", 7, 0)),
        ("x-step_3M", ("x-step_3M", 3_000_000, 0)),
        ("x-step_3model", ("x-step_3model", 3, 0)),
    ],
)
def test_lines_of_a_list_say_name_step_and_seed(tmp_path, line, found):
    place = tmp_path / "steps.txt"
    place.write_text(f"# all\n\n{line}\n")
    (one,) = series.expand(str(place))
    assert (one.subject, one.step, one.seed) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a-step1\nb 1 2 3\n", "line 2: 'b 1 2 3'"),
        ("a-step1\n\nb x\n", "line 3: 'b x'"),
        ("a-step1\nb\n", "a step that can be read from each name; got 'b'"),
        ("a 5 1\nb 5 1\n", "step 5 of seed 1 is a and b"),
        ("a 5\n\0", "which is none of these"),
    ],
)
def test_lines_of_a_list_that_cannot_be_read(tmp_path, text, said):
    (tmp_path / "steps.txt").write_text(text)
    with pytest.raises((UsageError, ModelError), match=said):
        series.expand(str(tmp_path / "steps.txt"))


def test_checkpoints_are_sorted_by_seed_then_by_step(tmp_path):
    (tmp_path / "steps.txt").write_text("a 5 1\nb 20 0\nc 3 1\nd 100 0\n")
    found = series.expand(str(tmp_path / "steps.txt"))
    assert [one.subject for one in found] == ["b", "d", "c", "a"]


@pytest.mark.parametrize(
    ("group", "items", "open_ranges"),
    [
        ("0..4", "0 1 2 3 4", []),
        ("0..10..5", "0 5 10", []),
        ("0..9..5", "0 5", []),
        ("3..3", "3", []),
        ("a, b", "a b", []),
        ("0,20,…,100", "0 20 40? 60? 80? 100", []),
        ("0,1,2,...,5,9", "0 1 2 3? 4? 5 9", []),
        ("1,2,4,…,64", "1 2 4 8? 16? 32? 64", [(4, 64)]),
        ("1,3,…,7", "1 3 5? 7", []),
        ("0,1,2,4,…,16", "0 1 2 4 8? 16", [(4, 16)]),
        ("2,5,6,…,9", "2 5 6 9", [(6, 9)]),
        ("x,1,2,…,4", "x 1 2 3? 4", []),
        ("1,2,4,…,16,20,30,…,50", "1 2 4 8? 16 20 30 50", [(4, 16), (30, 50)]),
        ("0,5,…,5", None, "numbers that rise"),
        ("5,…,9", None, "at least two numbers"),
        ("1,b,…,9", None, "at least two numbers"),
        ("1,2,…,b", None, "at least two numbers"),
        ("1,2,…", None, "at least two numbers"),
        ("4..0", None, "a range that rises"),
        ("0..4..0", None, "a range that rises"),
        ("", None, "something between the braces"),
    ],
)
def test_what_one_group_of_a_pattern_stands_for(group, items, open_ranges):
    if items is None:
        with pytest.raises(UsageError, match=open_ranges):
            series._parse_group(group, "pattern")
        return
    found, ranges = series._parse_group(group, "pattern")
    assert " ".join(f"{item}{'?' * implied}" for item, implied in found) == items
    assert ranges == open_ranges


def adapted(
    monkeypatch, tmp_path, saved, loaded, *, task="SEQ_CLS", merges=True, **how
):
    """Merge an adapter with a stand-in for PEFT. Returns (what was merged, what was loaded)."""
    import transformers

    asked = []
    place = tmp_path / "adapter_config.json"
    place.write_text(json.dumps({"task_type": task, "peft_type": "LORA"}))
    inner = linear()
    whole = types.SimpleNamespace(
        config=types.SimpleNamespace(architectures=["Base"]), base_model=inner
    )
    wrapped = types.SimpleNamespace(merge_and_unload=lambda: whole)
    if not merges:
        wrapped = types.SimpleNamespace()
    read = []
    stand_in = types.SimpleNamespace(
        load_peft_weights=lambda *of, device: read.append((*of, device)) or saved,
        get_peft_model_state_dict=lambda model: read.append(model) or loaded,
        PeftModel=types.SimpleNamespace(
            from_pretrained=lambda *of: read.append(of) or wrapped
        ),
    )
    monkeypatch.setattr(adapters, "import_module", lambda _: stand_in)
    for name in (*adapters.HEADED.values(), "AutoModel"):
        auto = types.SimpleNamespace(
            from_pretrained=lambda base, n=name, **given: (
                asked.append((n, base, given)) or n
            )
        )
        monkeypatch.setattr(transformers, name, auto)
    found = adapters.merge_adapter(str(tmp_path), "base", {"dtype": "d"}, **how)
    folder = str(tmp_path)
    assert read == [(folder, "cpu"), (asked[0][0], folder), wrapped]
    return found, whole, inner, asked


def test_an_adapter_is_merged_into_the_model_of_its_task(monkeypatch, tmp_path):
    """A head of classes has as many as were saved; it is kept only if it is asked for."""
    weights = {"score.weight": torch.ones(5, 4), "x.lora_A.weight": torch.ones(2, 4)}
    given = {"saved": weights, "loaded": dict(weights)}
    found, whole, inner, asked = adapted(monkeypatch, tmp_path, **given)
    name = "AutoModelForSequenceClassification"
    assert asked == [(name, "base", {"dtype": "d", "num_labels": 5})]
    assert found is inner and whole.config.architectures == ["Base"]
    found, whole, _, _ = adapted(monkeypatch, tmp_path, **given, classifier=True)
    assert found is whole and whole.config.architectures == ["SimpleNamespace"]
    for task, auto in (("CAUSAL_LM", "AutoModelForCausalLM"), ("other", "AutoModel")):
        found, _, inner, asked = adapted(
            monkeypatch, tmp_path, **given, task=task, classifier=True
        )
        assert asked == [(auto, "base", {"dtype": "d"})] and found is inner


def test_an_adapter_that_does_not_fit_names_its_weights(monkeypatch, tmp_path):
    """A weight that has no place, one that was never saved, one with other numbers or of another shape."""
    one = torch.ones(2, 3)
    for saved, loaded, got in (
        ({"a": one, "b": one}, {"a": one}, "1 weight without a place in it, such as b"),
        ({"a": one}, {"a": one, "c": one}, "1 weight without a place in it, such as c"),
        ({"a": one}, {"a": one * 2}, "1 weight without a place in it, such as a"),
        ({"a": one}, {"a": one[:1]}, "such as a"),
        (dict.fromkeys("abcd", one), {}, "4 weights without a place in it, such as a, b, c"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=rf"weights all fit base; got {got}|{got}"):
            adapted(monkeypatch, tmp_path, saved, loaded)
    same = {"a": one}
    with pytest.raises(ModelError, match="can be merged into its base; got LORA"):
        adapted(monkeypatch, tmp_path, same, same, merges=False)
    half = {"a": one.half()}
    adapted(monkeypatch, tmp_path, half, {"a": one})
