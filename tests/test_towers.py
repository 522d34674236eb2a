"""Models of two towers, adapters, models of other libraries: what people name, loaded as it is published."""

import json
import sys
import types
from io import BytesIO

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import anisoscope
from anisoscope.axes import Site
from anisoscope.capture import capture
from anisoscope.data.images import ImagePlan, digits, open_images
from anisoscope.errors import ModelError, UsageError
from anisoscope.models import adapters
from anisoscope.models.blocks import TokenPositions, find_blocks
from anisoscope.models.identity import hash_weights
from anisoscope.models.load import _choose_tower, load
from anisoscope.runs.curing import read_layer_of_run

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "vocab_size": 100,
}
VISION = {**TEXT, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8}


@pytest.fixture(params=["clip", "siglip"])
def towers(request, tmp_path):
    """A checkpoint with both processors beside it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        request.param, text_config=TEXT, vision_config=VISION
    )
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(tmp_path)
    transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size=32
    ).save_pretrained(tmp_path)
    return model, tmp_path


@pytest.mark.parametrize("side", ["vision", "text"])
def test_a_tower_is_measured_alone(towers, side, monkeypatch):
    model, folder = towers
    monkeypatch.setattr("anisoscope.models.load.processor_of", lambda *_: None)
    subject = load(str(folder), tower=side)
    assert subject.modality == {"vision": "image", "text": "text"}[side]
    ids, pixels = torch.randint(3, 90, (2, 9)), torch.randn(2, 3, 32, 32)
    given = {"vision": {"pixel_values": pixels}, "text": {"input_ids": ids}}[side]
    with torch.no_grad():
        ours = subject.model(**given).last_hidden_state
        theirs = getattr(model, f"{side}_model")(**given).last_hidden_state
    assert torch.equal(ours, theirs)


def test_images_go_through_the_vision_tower(towers):
    _, folder = towers
    run = anisoscope.measure(
        str(folder), corpus="builtin:digits", limit=30, tower="vision"
    )
    layers = run.records[run.records["site"] == "hidden"]["layer"]
    assert set(layers) == {0, 1, 2, 3} and "attention" in set(run.records["site"])


@pytest.mark.parametrize("side", ["vision", "text", "both"])
def test_weights_that_a_tower_lacks_are_named_as_in_the_tower(towers, side):
    """So that they are left out of its hash: they are drawn anew every time."""
    missing = [
        "text_model.final.weight",
        "vision_model.head.bias",
        "vision_model.head.weight",
    ]
    part, found = _choose_tower(towers[0], missing, side, "clip")
    own = {
        "vision": ["head.bias", "head.weight"],
        "text": ["final.weight"],
        "both": missing,
    }
    assert found == own[side] and part is (
        towers[0] if side == "both" else getattr(towers[0], f"{side}_model")
    )


def test_two_towers_want_one_named(towers):
    with pytest.raises(UsageError, match="--tower vision or --tower text"):
        load(str(towers[1]))


def test_a_tower_of_a_model_without_is_refused(tmp_path):
    transformers.BertModel(transformers.BertConfig(**TEXT)).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="two towers"):
        load(str(tmp_path), tower="text")


@pytest.mark.parametrize("task", [None, "CAUSAL_LM", "SEQ_CLS"])
def test_an_adapter_is_its_base_with_the_adapter_merged(task, tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**TEXT, pad_token_id=0, num_labels=3)
    kinds = {
        "CAUSAL_LM": transformers.LlamaForCausalLM,
        "SEQ_CLS": transformers.LlamaForSequenceClassification,
    }
    model = kinds.get(task, transformers.LlamaModel)(config)
    model.save_pretrained(tmp_path / "base")
    words = transformers.BertTokenizer(
        vocab={word: i for i, word in enumerate(["[PAD]", "[UNK]", "a", "b"])}
    )
    words.save_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(
        task_type=task,
        r=4,
        target_modules=["q_proj", "v_proj"],
        init_lora_weights=False,
    )
    adapted = peft.get_peft_model(model, settings).eval()
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    ids = torch.randint(3, 90, (2, 9))
    inner = adapted.get_base_model()
    inner = getattr(inner, "model", inner)
    subject = load(str(tmp_path / "adapter"))
    with torch.no_grad():
        ours, theirs = (
            m(input_ids=ids).last_hidden_state for m in (subject.model, inner)
        )
        plain = load(str(tmp_path / "base")).model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert (ours - plain).abs().max() > 1e-2 and not any(
        "lora" in name for name, _ in subject.model.named_modules()
    )


def test_an_adapter_of_another_base_is_refused(tmp_path):
    peft = pytest.importorskip("peft")
    for layers, name in ((2, "small"), (3, "large")):
        config = transformers.BertConfig(**{**TEXT, "num_hidden_layers": layers})
        model = transformers.BertModel(config)
        model.save_pretrained(tmp_path / name)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"]))
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "small")
    adapted.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ModelError, match="without a place"):
        load(str(tmp_path / "adapter"))
    with pytest.raises(UsageError, match="--untrained"):
        load(str(tmp_path / "adapter"), untrained=True)


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({"a.lora_A": 1.0}, ""),
        (
            {"a.lora_A": 1.0, "b.lora_A": 2.0},
            "1 weight without a place in it, such as b.lora_A",
        ),
        ({}, "1 weight without a place in it, such as a.lora_A"),
        ({"a.lora_A": 2.0}, "such as a.lora_A"),
    ],
)
def test_every_weight_of_an_adapter_has_its_place(saved, said, tmp_path, monkeypatch):
    """models.adapters: a weight without a place, a place without a weight, and one of another value."""
    peft = types.ModuleType("peft")
    peft.load_peft_weights = lambda *_, **__: {
        name: torch.tensor([value]) for name, value in saved.items()
    }
    peft.get_peft_model_state_dict = lambda _: {"a.lora_A": torch.tensor([1.0])}
    whole = torch.nn.Linear(2, 2)
    merged = types.SimpleNamespace(
        merge_and_unload=lambda: types.SimpleNamespace(base_model=whole)
    )
    peft.PeftModel = types.SimpleNamespace(from_pretrained=lambda *_: merged)
    monkeypatch.setitem(sys.modules, "peft", peft)
    monkeypatch.setattr("transformers.AutoModel.from_pretrained", lambda *_, **__: None)
    (tmp_path / "adapter_config.json").write_text("{}")
    if not said:
        assert adapters.merge_adapter(str(tmp_path), "base", {}) is whole
        return
    with pytest.raises(ModelError, match=said):
        adapters.merge_adapter(str(tmp_path), "base", {})


def test_the_classes_of_an_adapter_are_those_of_its_head():
    head, lora = torch.ones(3, 4), torch.ones(8, 4)
    assert adapters._count_classes({"x.lora_A.weight": lora, "score.weight": head}) == 3
    assert (
        adapters._count_classes(
            {"classifier.dense.weight": lora, "classifier.out_proj.weight": head}
        )
        == 3
    )
    assert (
        adapters._count_classes(
            {"score.lora_B.weight": head, "score.bias": torch.ones(3)}
        )
        is None
    )
    assert not adapters._is_same(torch.ones(2), torch.ones(1, 2)) and adapters._is_same(
        torch.ones(2), torch.ones(2).double()
    )


def test_an_adapter_is_named_by_its_id_on_the_hub(tmp_path):
    peft = pytest.importorskip("peft")
    from hub_server import Hub
    from test_hub import Loader

    model = transformers.BertModel(transformers.BertConfig(**TEXT))
    model.save_pretrained(tmp_path / "base")
    words = {
        word: i
        for i, word in enumerate(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(95))]
        )
    }
    transformers.BertTokenizerFast(vocab=words).save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    )
    adapted.peft_config["default"].base_model_name_or_path = "someone/base"
    adapted.save_pretrained(tmp_path / "adapter")
    with Hub() as hub:
        for name, commit in (("base", "a" * 40), ("adapter", "b" * 40)):
            hub.add(f"someone/{name}", {commit: tmp_path / name})
        loader = Loader(hub, tmp_path / "home")
        (told,) = loader("someone/adapter")
        hub.fault = 503  # what is in the cache serves
        (again,) = loader("someone/adapter")
        loader.close()
    merged = adapted.merge_and_unload()
    assert told.get("weights") == again.get("weights") == hash_weights(merged), (
        told,
        again,
    )
    assert told["revision"] == again["revision"] == "b" * 40 and told["tokens"] == 100


# ---- timm: its own blocks, its own way to prepare an image


def test_a_model_of_timm_has_its_own_blocks_and_processor(tmp_path):
    """The defaults of ImageNet were used beside weights of timm, whose configuration says otherwise."""
    timm = pytest.importorskip("timm")
    subject = load("timm/vit_tiny_patch16_224", untrained=True)
    own = timm.get_pretrained_cfg("vit_tiny_patch16_224")
    assert subject.modality == "image" and subject.processor.data_config[
        "mean"
    ] == own.mean == (0.5, 0.5, 0.5)
    assert [len(blocks) for blocks in find_blocks(subject.model).values()] == [12]
    subject.model.save_pretrained(tmp_path)
    trained = load(str(tmp_path))
    assert trained.weights_sha256 == subject.weights_sha256
    plan = ImagePlan(
        open_images("builtin:digits", limit=2), trained.model, trained.processor
    )
    picture = Image.open(BytesIO(digits().items[0].read())).convert("RGB")
    expected = timm.data.create_transform(
        **timm.data.resolve_data_config(own.to_dict())
    )(picture)
    assert (
        torch.equal(plan[0].inputs["pixel_values"][0], expected)
        and plan.settings["processor"] == "checkpoint"
    )
    run = anisoscope.measure(
        "timm/vit_tiny_patch16_224", corpus="builtin:digits", limit=3, untrained=True
    )
    assert {"hidden", "attention"} <= set(run.records["site"])


@pytest.mark.parametrize(
    ("name", "blocks", "specials"),
    [
        ("vit_small_patch16_dinov3", 12, 5),
        ("deit_tiny_distilled_patch16_224", 12, 2),
        ("cait_xxs24_224", 24, 0),
        ("swin_tiny_patch4_window7_224", 12, 0),
        ("convnext_atto", 12, 0),
        ("resnet18", 8, 0),
        ("efficientnet_b0", 16, 0),
        ("mobilenetv3_small_100", 12, 0),
        ("eva02_tiny_patch14_224", 12, 1),
    ],
)
def test_blocks_and_special_tokens_of_timm(name, blocks, specials):
    """Registers and distillation tokens of timm counted as patches; what is no list of blocks was refused."""
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(
            transformers.TimmWrapperConfig(architecture=name)
        )
    assert timm and [len(found) for found in find_blocks(model).values()] == [blocks]
    assert TokenPositions(model).specials(Site("encoder", 3, "hidden")) == specials


def test_a_name_that_timm_does_not_know_is_refused():
    pytest.importorskip("timm")
    for name in ("timm/vit_of_mine", "timm/vit_tiny_patch16_224.of_mine"):
        with pytest.raises(ModelError, match="that timm knows"):
            load(name, untrained=True)


# ---- sentence-transformers: the vector of a text


def test_a_folder_of_sentence_transformers_is_measured_with_its_pooling(tmp_path):
    """Its Transformer was measured alone."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**TEXT)).save_pretrained(
        tmp_path / "bert"
    )
    words = {
        word: i
        for i, word in enumerate(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(95))]
        )
    }
    transformers.BertTokenizerFast(vocab=words).save_pretrained(tmp_path / "bert")
    modules = [
        Transformer(str(tmp_path / "bert")),
        Pooling(32, pooling_mode="mean"),
        Dense(32, 24),
        Normalize(),
    ]
    theirs = library.SentenceTransformer(modules=modules, device="cpu")
    theirs.save_pretrained(str(tmp_path / "folder"))
    subject = load(str(tmp_path / "folder"))
    texts = ["1 2 3 4 5", "6 7"]
    inputs = subject.processor(texts, padding=True, return_tensors="pt")
    with torch.no_grad(), capture(subject.model, ("hidden", "final")) as tap:
        inside = subject.model(**inputs).last_hidden_state
    with torch.no_grad():
        assert torch.equal(inside, subject.model(**inputs).last_hidden_state)
    ours = tap["sentence.final"]
    assert ours.shape == (2, 1, 24)
    torch.testing.assert_close(
        ours[:, 0], theirs.encode(texts, convert_to_tensor=True), atol=1e-6, rtol=0
    )
    (tmp_path / "text.txt").write_text("\n".join(f"{k} {k + 1} {k}" for k in range(30)))
    run = anisoscope.measure(subject, corpus=str(tmp_path / "text.txt"), panel="hidden")
    final = run.records[
        (run.records["stack"] == "sentence") & (run.records["metric"] == "mean_cosine")
    ]
    vectors = theirs.encode(
        [f"{k} {k + 1} {k}" for k in range(30)], convert_to_tensor=True
    ).double()
    expected = float((vectors.sum(0).square().sum() - 30) / (30 * 29))
    (value,) = final[(final["token_policy"] == "all") & (final["component"].isna())][
        "value"
    ].unique()
    assert value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", ["code of its own", "pip install"])
def test_modules_that_cannot_be_read_are_said(kind, tmp_path, monkeypatch):
    transformers.BertModel(transformers.BertConfig(**TEXT)).save_pretrained(tmp_path)
    rows = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    rows += [
        {
            "path": "1_Pooling",
            "type": "their_own.Pooling"
            if "code" in kind
            else "sentence_transformers.models.P",
        }
    ]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    monkeypatch.setattr("anisoscope.models.other_libraries.find_spec", lambda _: None)
    monkeypatch.setattr("anisoscope.models.load.processor_of", lambda *_: None)
    assert any(kind in note for note in load(str(tmp_path)).notes)


# ---- module:function


OWN = """
import torch
from torch import nn
from transformers import BertTokenizerFast
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(40))]
class Own(nn.Module):
    def __init__(self, words=len(WORDS)):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(words, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 2)
    def forward(self, input_ids, attention_mask):
        return self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
class Bare(Own):
    def forward(self, ids):
        return self.encoder(self.embed(ids))
words = lambda: BertTokenizerFast(vocab={word: i for i, word in enumerate(WORDS)})
def make(): return Own(), words()
def narrow(): return Own(7), words()
def bare(): return Bare(), words()
def mute(): return Own()
"""


def test_a_module_of_one_s_own_reads_a_corpus_by_its_tokenizer(tmp_path, monkeypatch):
    """Without a configuration, it ended in a traceback; as a list of strings in Python too."""
    (tmp_path / "own_to_measure.py").write_text(OWN)
    texts = [
        " ".join(str((7 * k + i) % 40) for i in range(4 + k % 5)) for k in range(24)
    ]
    (tmp_path / "text.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in texts)
    )
    monkeypatch.chdir(tmp_path)
    words = {"corpus": "text.jsonl", "panel": "hidden,attention", "sample": 0}
    run = anisoscope.measure("own_to_measure:make", **words)
    made, tokenizer = sys.modules["own_to_measure"].make()
    inputs = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    given = anisoscope.measure(made, [inputs], panel="hidden,attention", sample=0)
    typed = anisoscope.measure(
        made, texts, processor=tokenizer, panel="hidden,attention", sample=0
    )
    place = ["stack", "layer", "head", "site", "metric", "component"]
    tables = [
        r.records.query("token_policy == 'all'").set_index(place)["value"]
        for r in (run, typed, given)
    ]
    tables = [
        x[x.index.get_level_values("metric").isin(["mean_cosine", "drift", "entropy"])]
        for x in tables
    ]
    assert len(tables[0]) > 4 and tables[0].equals(tables[1])
    torch.testing.assert_close(
        *(torch.tensor(x.sort_index().to_numpy()) for x in tables[::2]),
        rtol=1e-5,
        atol=1e-6,
    )
    for name, says in (
        ("narrow", "inputs that Own takes"),
        ("bare", r"Bare.forward\(ids\)"),
        ("mute", "a tokenizer"),
    ):
        with pytest.raises(UsageError, match=says):
            anisoscope.measure(f"own_to_measure:{name}", **words)


def test_a_function_of_one_s_own(tmp_path, monkeypatch):
    """A module beside the prompt was not found by the installed program; an error in the function was a traceback."""
    (tmp_path / "mine_to_measure.py").write_text(
        "from torch import nn\n"
        "def make(): return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)\n"
        "def fails(): raise ZeroDivisionError('in the middle')\n"
        "def another(): return 7\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = list(sys.path)
    subject = load("mine_to_measure:make")
    assert sys.path == before and subject.weights_sha256 and not subject.model.training
    assert [len(found) for found in find_blocks(subject.model).values()] == [2]
    with pytest.raises(ModelError, match="ZeroDivisionError: in the middle"):
        load("mine_to_measure:fails")
    with pytest.raises(ModelError, match=r"returns a torch\.nn\.Module"):
        load("mine_to_measure:another")
    with pytest.raises(UsageError, match="let that function make a model"):
        load("mine_to_measure:make", untrained=True)
    with pytest.raises(ModelError, match="no_such"):
        load("mine_to_measure:no_such")


def test_the_vectors_of_texts_can_be_cured(tmp_path):
    """They are sampled on their own, and `cure` did not find what it named: `final`."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.models import Normalize, Pooling, Transformer

    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**TEXT)).save_pretrained(
        tmp_path / "bert"
    )
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(95))]
    transformers.BertTokenizerFast(
        vocab={word: i for i, word in enumerate(words)}
    ).save_pretrained(tmp_path / "bert")
    library.SentenceTransformer(
        modules=[
            Transformer(str(tmp_path / "bert")),
            Pooling(32, pooling_mode="mean"),
            Normalize(),
        ],
        device="cpu",
    ).save_pretrained(str(tmp_path / "folder"))
    texts = [f"{i} {i * 7 % 95} {i * 11 % 95}" for i in range(24)]
    anisoscope.measure(
        str(tmp_path / "folder"),
        texts,
        panel="hidden",
        output=tmp_path / "run",
        quiet=True,
    )
    sampled = read_layer_of_run(tmp_path / "run", "final")
    assert (sampled.layer, sampled.vectors.shape) == ("sentence final", (24, 32))
    theirs = library.SentenceTransformer(str(tmp_path / "folder"), device="cpu")
    # All 24 vectors are there, fewer than the tokens.
    assert len(sampled.notes) == 1
    # in the order of the sample, which is by hash
    own = theirs.encode(texts)
    assert np.allclose(
        np.sort(sampled.vectors @ own[0]), np.sort(own @ own[0]), atol=1e-5
    )
