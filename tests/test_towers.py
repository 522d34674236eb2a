"""Models of two towers, adapters, models of other libraries: what people name, loaded as it is published."""

import pytest
import torch
import transformers

import anisoscope
from anisoscope.capture import capture
from anisoscope.errors import ModelError, UsageError
from anisoscope.models.load import load

TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 100}
VISION = {**TEXT, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8}


@pytest.fixture(params=["clip", "siglip"])
def towers(request, tmp_path):
    """A checkpoint with both processors beside it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(request.param, text_config=TEXT, vision_config=VISION)
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(tmp_path)
    transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32).save_pretrained(tmp_path)
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
    run = anisoscope.measure(str(folder), corpus="builtin:digits", limit=30, tower="vision")
    layers = run.records[run.records["site"] == "hidden"]["layer"]
    assert set(layers) == {0, 1, 2, 3} and "attention" in set(run.records["site"])


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
    kinds = {"CAUSAL_LM": transformers.LlamaForCausalLM, "SEQ_CLS": transformers.LlamaForSequenceClassification}
    model = kinds.get(task, transformers.LlamaModel)(config)
    model.save_pretrained(tmp_path / "base")
    words = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(["[PAD]", "[UNK]", "a", "b"])})
    words.save_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(task_type=task, r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings).eval()
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter")
    ids = torch.randint(3, 90, (2, 9))
    inner = adapted.get_base_model()
    inner = getattr(inner, "model", inner)
    subject = load(str(tmp_path / "adapter"))
    with torch.no_grad():
        ours, theirs = (m(input_ids=ids).last_hidden_state for m in (subject.model, inner))
        plain = load(str(tmp_path / "base")).model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert (ours - plain).abs().max() > 1e-2 and not any("lora" in name for name, _ in subject.model.named_modules())


def test_an_adapter_of_another_base_is_refused(tmp_path):
    peft = pytest.importorskip("peft")
    for layers, name in ((2, "small"), (3, "large")):
        config = transformers.BertConfig(**{**TEXT, "num_hidden_layers": layers})
        model = transformers.BertModel(config)
        model.save_pretrained(tmp_path / name)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"]))
    adapted.peft_config["default"].base_model_name_or_path = str(tmp_path / "small")
    adapted.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ModelError, match="find no place"):
        load(str(tmp_path / "adapter"))
    with pytest.raises(UsageError, match="--untrained"):
        load(str(tmp_path / "adapter"), untrained=True)


def test_a_model_of_timm_is_found_under_the_wrapper_of_transformers():
    """Its model type is timm_wrapper."""
    pytest.importorskip("timm")
    config = transformers.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", model_args={"img_size": 32, "patch_size": 8, "depth": 2}, do_pooling=False
    )
    model = transformers.AutoModel.from_config(config).eval()
    with capture(model, ("hidden", "query", "attention")) as tap:
        model(torch.randn(2, 3, 32, 32))
    assert tap["encoder.2.hidden"].shape == (2, 17, 192) and tap["encoder.2.attention"]["entropy"].shape == (2, 3, 17)
