"""Which modules are blocks, of which stack, and which positions are real: each rule on a few modules of its own."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anisoscope.axes import PAIRS, Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import MeasureError, ModelError, UsageError
from anisoscope.models import blocks, families, parallelism, parts


def linear():
    return nn.Linear(2, 2)


class Pretrained(nn.Module):
    """Has the place of transformers' base class of models: says what it reads, and has parts by name."""

    def __init__(self, *reads, config=None, **inner):
        super().__init__()
        self.config = config or SimpleNamespace()
        if reads:
            self.input_modalities = reads
        for name, part in inner.items():
            setattr(self, name, part)


class Checkpointed(nn.Module):
    """Has the place of transformers' layers with gradient checkpointing."""


class MPNetLayer(nn.Module):
    """Has the name that the families know as the class of blocks of MPNet."""


class Layer(nn.Module):
    """A block of nobody's."""


class TinyAttention(nn.Module):
    """Has the word in its name by which attention is known."""


class CausalAttention(TinyAttention):
    """Says that it is causal."""

    is_causal = True


@pytest.fixture
def library(monkeypatch):
    """Let the classes above stand where those of transformers do."""
    classes = {
        ("modeling_utils", "PreTrainedModel"): Pretrained,
        ("modeling_layers", "GradientCheckpointingLayer"): Checkpointed,
    }
    monkeypatch.setattr(blocks, "class_of_transformers", lambda *name: classes[name])


def of_type(name, **more):
    return SimpleNamespace(model_type=name, **more)


# ---- towers


def many_towers(**config):
    return Pretrained(
        "image",
        "text",
        config=SimpleNamespace(**config),
        text_model=Pretrained("text"),
        vision_model=Pretrained("image", vision_tower=linear()),
        vision_model_norm=linear(),
        audio_tower=linear(),
        other=Pretrained("image"),
        video=Pretrained("video"),
        qformer=linear(),
        encoder=Pretrained("image"),
        mixed=Pretrained("image", "text"),
    )


@pytest.mark.usefixtures("library")
def test_parts_that_read_images_or_sounds_are_towers():
    """The first of a kind has the name of the kind, further ones their own; what lies in a tower is no other one."""
    towers = {
        "vision_model": "vision",
        "audio_tower": "audio",
        "other": "other",
        "video": "video",
        "qformer": "qformer",
        "encoder": "encoder",
    }
    assert blocks._find_towers(many_towers()) == towers
    del towers["encoder"]
    assert blocks._find_towers(many_towers(is_encoder_decoder=True)) == towers
    wordless = many_towers()
    del wordless.text_model
    assert blocks._find_towers(wordless) == towers, "the encoder of a captioner"
    stacks = blocks.find_stacks(many_towers())
    by_class = {type(module).__name__: stacks[module] for module in stacks}
    assert by_class["Pretrained"] == "encoder"
    model = many_towers()
    stacks = blocks.find_stacks(model)
    assert stacks[model.vision_model.vision_tower] == "vision"
    assert stacks[model.vision_model_norm] == "encoder"
    assert stacks[model.qformer] == "qformer"
    assert stacks[model.text_model] == stacks[model.mixed] == "encoder"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("vision_model", "vision"),
        ("vision_tower", "vision"),
        ("visual", "vision"),
        ("vqmodel", "vision"),
        ("audio_tower", "audio"),
        ("qformer", "qformer"),
        ("perceiver_resampler", "perceiver_resampler"),
        ("perceiver", "perceiver"),
        ("resampler", "resampler"),
    ],
)
def test_every_name_of_a_tower_is_one_whatever_it_says_it_reads(name, stack):
    model = Pretrained("image", "text", **{name: linear()}, other=linear())
    assert blocks._find_towers(model) == {name: stack}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "name", ["text_model", "language_model", "text_encoder", "text_decoder"]
)
def test_every_name_of_a_part_for_texts_is_no_tower_and_makes_others_towers(name):
    model = Pretrained("image", visual=linear(), **{name: Pretrained("image")})
    assert blocks._find_towers(model) == {"visual": "vision"}


@pytest.mark.usefixtures("library")
def test_what_reads_one_kind_of_input_has_no_towers():
    assert blocks._find_towers(Pretrained("image", visual=linear())) == {}
    assert blocks._find_towers(Pretrained("image", "video", visual=linear())) == {}
    assert blocks._find_towers(nn.ModuleDict({"visual": linear()})) == {}
    reads = Pretrained("image", text_model=linear(), visual=linear())
    assert blocks._find_towers(reads) == {"visual": "vision"}


def test_two_towers_are_a_vision_model_and_a_text_model():
    both = nn.Module()
    both.vision_model = linear()
    assert not blocks.has_two_towers(both)
    both.text_model = "no module"
    assert not blocks.has_two_towers(both)
    both.text_model = linear()
    assert blocks.has_two_towers(both)
    del both.vision_model
    assert not blocks.has_two_towers(both)


@pytest.mark.usefixtures("library")
def test_each_tower_is_searched_by_the_rules_of_its_own_family():
    """Blocks come in the order of the model, and no block of one part hides those of another."""
    vision = Pretrained(
        "image",
        config=of_type("mpnet"),
        layers=nn.ModuleList([MPNetLayer(), MPNetLayer()]),
        extra=Checkpointed(),
    )
    text = Pretrained("text", layers=nn.ModuleList([Checkpointed()]))
    model = Pretrained("image", "text", vision_model=vision, text_model=text)
    found = blocks.find_blocks(model)
    assert list(found) == ["vision", "encoder"]
    assert found["vision"] == list(vision.layers)
    assert found["encoder"] == list(text.layers)


# ---- which rule finds blocks


@pytest.mark.usefixtures("library")
def test_the_surest_rule_comes_first(monkeypatch):
    """The row of the family, then lists of parts, then classes: what code declares, checkpointing, torch's layers."""
    torchs = nn.TransformerEncoderLayer(4, 1, 4)
    model = Pretrained(
        config=of_type("mpnet"),
        a=MPNetLayer(),
        b=linear(),
        c=Layer(),
        d=Checkpointed(),
        e=torchs,
    )
    model._can_record_outputs = {"hidden_states": Layer, "attentions": nn.ReLU}

    def found():
        return blocks.find_blocks(model)["encoder"]

    monkeypatch.setattr(blocks, "find_parts", lambda _model: [[model.d, model.b]])
    assert found() == [model.a]
    model.config.model_type = "unheard of"
    assert found() == [model.b], "the last part of a block"
    monkeypatch.setattr(blocks, "find_parts", lambda _model: [])
    assert found() == [model.c]
    model._can_record_outputs = None
    assert found() == [model.d]
    del model.d
    assert found() == [torchs]
    decoder = nn.TransformerDecoderLayer(4, 1, 4)
    model.e = decoder
    assert found() == [decoder]


@pytest.mark.usefixtures("library")
def test_classes_are_declared_in_several_ways():
    class Inner(Pretrained):
        pass

    for declared, expected in (
        (Layer, [Layer]),
        ([Layer, MPNetLayer], [Layer, MPNetLayer]),
        ((SimpleNamespace(target_class=Layer), Inner), [Layer]),
        (SimpleNamespace(target_class=MPNetLayer), [MPNetLayer]),
        (["a name", int, Pretrained], []),
    ):
        model = Pretrained(inner=linear())
        model._can_record_outputs = {"hidden_states": declared}
        assert list(blocks._iter_declared_classes(model)) == expected
        outer = Pretrained(whole=model)
        assert list(blocks._iter_declared_classes(outer)) == expected
    model._can_record_outputs = {"attentions": Layer}
    assert list(blocks._iter_declared_classes(model)) == []
    plain = nn.Module()
    plain._can_record_outputs = {"hidden_states": Layer}
    assert list(blocks._iter_declared_classes(plain)) == []


def of_timm(*features, **inner):
    kind = type("Net", (nn.Module,), {"__module__": "timm.models.net"})
    model = kind()
    for name, part in inner.items():
        setattr(model, name, part)
    model.feature_info = [{"module": name} for name in features]
    return model


def test_blocks_of_timm_are_found_from_its_features():
    """Members of a list stand for all of it; a list that is a feature itself is one stage, whose members are blocks."""

    def block():
        return nn.Sequential(linear())

    flat = nn.Sequential(block(), block(), nn.Identity(), block())
    model = of_timm("flat.1", "flat.3", flat=flat)
    every = [flat[0][0], flat[1][0], flat[3][0]]
    # Blocks that are lists themselves are stages of what they hold.
    assert list(blocks._iter_blocks_of_timm(model)) == []
    for place in (0, 1, 3):
        flat[place] = nn.TransformerEncoderLayer(4, 1, 4)
    every = [flat[0], flat[1], flat[3]]
    assert list(blocks._iter_blocks_of_timm(model)) == every
    wrapper = nn.Module()
    wrapper.timm_model = model
    assert list(blocks._iter_blocks_of_timm(wrapper)) == every
    stage = nn.Sequential(block(), block())
    whole = of_timm("stage", "none", stage=stage)
    assert list(blocks._iter_blocks_of_timm(whole)) == [stage[0], stage[1]]
    staged = nn.Module()
    staged.blocks = nn.Sequential(block(), block(), block())
    model = of_timm("stages.0", stages=nn.Sequential(staged))
    assert list(blocks._iter_blocks_of_timm(model)) == list(staged.blocks)
    plain = nn.Module()
    plain.feature_info = [{"module": "stage"}]
    plain.stage = stage
    assert list(blocks._iter_blocks_of_timm(plain)) == []
    assert list(blocks._iter_blocks_of_timm(of_timm(stage=stage))) == []


def test_only_what_is_repeated_is_suggested():
    holder = nn.ModuleDict(
        {
            "one": nn.ModuleList([Layer()]),
            "two": nn.ModuleList([linear(), linear()]),
            "mixed": nn.Sequential(linear(), Layer()),
        }
    )
    holder["deep"] = nn.ModuleDict({"three": nn.Sequential(Layer(), Layer())})
    assert blocks._suggest_blocks(holder) == [
        "Linear",
        "two.*",
        "Layer",
        "deep.three.*",
    ]
    assert blocks._suggest_blocks(nn.Sequential(Layer(), Layer())) == ["Layer", "*"]
    with pytest.raises(UsageError) as raised:
        blocks.find_blocks(holder, ("Layr",))
    assert str(raised.value) == (
        "expected blocks by a class or a pattern of module names of ModuleDict; "
        "got 'Layr', which matches no module. Cure: did you mean Layer or Linear?"
    )
    with pytest.raises(ModelError) as raised:
        blocks.find_blocks(holder)
    assert str(raised.value) == (
        "expected a model whose blocks can be found; got ModuleDict, which declares none. Cure: "
        "name the class of its blocks, or a pattern of their names: --blocks Linear, in Python "
        "blocks='Linear'; it repeats Linear, two.*, Layer, deep.three.*"
    )


def test_layers_of_torch_pass_on_as_their_flag_says():
    for block in (nn.LSTM(4, 4), nn.GRU(4, 4), nn.MultiheadAttention(4, 1)):
        assert blocks.has_tokens_first(nn.Module(), block)
    assert not blocks.has_tokens_first(nn.Module(), nn.GRU(4, 4, batch_first=True))
    around = Layer()
    around.inner = nn.MultiheadAttention(4, 1)
    with pytest.raises(UsageError) as raised:
        blocks.has_tokens_first(nn.Module(), around)
    assert str(raised.value) == (
        "expected to know whether blocks pass on [sequence, token, dim] or [token, sequence, dim]; "
        "got Layer around MultiheadAttention with batch_first=False. Cure: "
        "use --tokens-first or --sequences-first, in Python tokens_first=True or False"
    )


# ---- stages, attention and stacks


class SwinStage(nn.Module):
    """Has the name of a stage that the families know."""


def test_stages_are_found_under_a_head_too():
    swin = nn.Module()
    swin.config = of_type("swin")
    swin.body = nn.ModuleDict({"a": SwinStage(), "x": linear(), "b": SwinStage()})
    assert blocks.find_stages(swin) == [swin.body["a"], swin.body["b"]]
    glpn = nn.Module()
    glpn.config = of_type("glpn")
    glpn.layer_norm = nn.ModuleList([nn.LayerNorm(2), nn.LayerNorm(2)])
    assert blocks.find_stages(glpn) == list(glpn.layer_norm)
    headed = nn.Module()
    headed.config = of_type("glpn")
    headed.glpn = glpn
    headed.other = nn.ModuleList([nn.LayerNorm(2)])
    assert blocks.find_stages(headed) == list(glpn.layer_norm)
    assert blocks.find_stages(linear()) == []


def test_attention_is_known_by_its_name_unless_the_family_has_none():
    model = nn.Module()
    model.inner = TinyAttention()
    assert blocks.has_attention(model)
    model.config = of_type("rwkv")
    assert not blocks.has_attention(model)
    assert not blocks.has_attention(linear())


@pytest.mark.usefixtures("library")
def test_each_of_three_sources_makes_a_decoder():
    model = nn.Module()
    assert blocks.find_stack(model) == "encoder"
    model.config = of_type("mpt")
    assert blocks.find_stack(model) == "decoder"
    model.config = of_type("xlm", causal=True)
    assert blocks.find_stack(model) == "decoder"
    model.config = of_type("xlm", causal=False)
    assert blocks.find_stack(model) == "encoder"
    model.config = of_type("bert", causal=True)
    assert blocks.find_stack(model) == "encoder", "a word of XLM's alone"
    model.inner = CausalAttention()
    assert blocks.find_stack(model) == "decoder"
    # How a tower attends says nothing of how texts are read.
    towers = Pretrained(
        "image", "text", text_model=linear(), vision_model=CausalAttention()
    )
    assert blocks.find_stack(towers) == "encoder"
    towers.text_model = CausalAttention()
    assert blocks.find_stack(towers) == "decoder"


def test_the_row_of_a_family_names_its_stacks():
    """Also where the configuration would name them encoder and decoder; the outermost part of a path counts."""
    model = nn.Module()
    model.config = of_type("canine", is_encoder_decoder=True)
    model.encoder, model.decoder = linear(), linear()
    model.initial_char_encoder = nn.ModuleDict({"encoder": linear()})
    stacks = blocks.find_stacks(model)
    assert stacks[model.encoder] == "molecules"
    assert stacks[model.decoder] == "decoder"
    assert stacks[model.initial_char_encoder["encoder"]] == "characters"
    assert dict(families.family_named("canine").stacks).get("decoder") is None
    halves = nn.ModuleDict({"t": nn.Transformer(4, 2, 1, 1, 4, batch_first=True)})
    stacks = blocks.find_stacks(halves)
    assert stacks[halves["t"].decoder.layers[0]] == "decoder"
    lxmert = nn.ModuleDict(
        {name: nn.ModuleList([linear()]) for name in ("layer", "r_layers", "x_layers")}
    )
    lxmert.config = of_type("lxmert")
    stacks = blocks.find_stacks(lxmert)
    found = [stacks[lxmert[name][0]] for name in ("layer", "r_layers", "x_layers")]
    assert found == ["encoder", "vision", "encoder"]


def test_families_that_are_known_by_a_row_alone():
    causal = {
        name for name, row in families.families().items() if row.causal and name in OLD
    }
    assert causal == OLD - {"xlnet", "fsmt", "longformer"}
    first = {name for name, row in families.FAMILIES.items() if row.tokens_first}
    assert first == {"xlnet", "fsmt"}


OLD = {"bloom", "mpt", "openai-gpt", "xglm", "mamba", "falcon_mamba"}
OLD |= {"gpt_neox_japanese", "xlnet", "fsmt", "longformer"}


# ---- which positions are real


def stream_of(*rows, special=None, start=(0, 10), **more):
    mask = torch.tensor(rows, dtype=torch.bool)
    marked = torch.zeros_like(mask) if special is None else torch.tensor(special)
    return Stream(mask, marked.bool(), torch.tensor(start[: len(rows)]), **more)


def known():
    """A stream of which everything is known of its tokens."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    return Stream(
        mask,
        torch.tensor([[0, 1, 0], [1, 0, 0]]).bool(),
        torch.tensor([6, 21]),
        frequency=torch.ones(2, 3, dtype=torch.int64),
        punctuation=mask,
        image=mask,
    )


def test_positions_that_are_no_single_tokens_have_nothing_of_their_marks():
    model = SimpleNamespace(
        config=SimpleNamespace(prompt_length=2, window=2, downsampling_rate=1),
        _downsample_attention_mask=lambda mask, _rate: mask,
    )
    pad = families._make_padder("window")
    made = {
        "merged": blocks._take_every(2, known()),
        "lengthened": families._lengthen(known(), before=1),
        "padded": pad(model, {"encoder": known()})["encoder"],
        "prompted": families._adapt_cpmant(model, {"x": known()})["x"],
        "classed": families._add_class_token(model, {"x": known()})["x"],
        "tripled": families._adapt_decision_transformer(model, {"x": known()})["x"],
        "molecules": families._adapt_canine(model, {"encoder": known()})["molecules"],
    }
    for name, stream in made.items():
        marks = (stream.frequency, stream.punctuation, stream.image)
        assert marks == (None, None, None), name
    seen = {
        name: (s.mask.long().tolist(), s.special.long().tolist(), s.start.tolist())
        for name, s in made.items()
    }
    assert seen == {
        "merged": ([[1, 0], [1, 0]], [[0, 0], [1, 0]], [3, 10]),
        "lengthened": (
            [[0, 1, 1, 0], [0, 1, 0, 0]],
            [[0, 0, 1, 0], [0, 1, 0, 0]],
            [5, 20],
        ),
        "padded": ([[1, 1, 0, 0], [1, 0, 0, 0]], [[0, 1, 0, 0], [1, 0, 0, 0]], [6, 21]),
        "prompted": (
            [[0, 0, 1, 1, 0], [0, 0, 1, 0, 0]],
            [[0, 0, 0, 1, 0], [0, 0, 1, 0, 0]],
            [4, 19],
        ),
        "classed": (
            [[1, 1, 0, 0], [1, 0, 0, 0]],
            [[0, 1, 0, 0], [1, 0, 0, 0]],
            [6, 21],
        ),
        "tripled": (
            [[1, 1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]],
            [[0, 0, 0, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]],
            [18, 63],
        ),
        "molecules": ([[1, 1, 0], [1, 0, 0]], [[0, 0, 0], [1, 0, 0]], [6, 21]),
    }


def test_inputs_are_padded_to_whole_blocks_of_the_largest_length():
    other = known()
    for window, tokens, length in ((3, 3, 3), (2, 3, 4), ([1, 4, 2], 3, 4), (5, 3, 5)):
        model = SimpleNamespace(config=SimpleNamespace(window=window))
        pad = families._make_padder("window")
        found = pad(model, {"encoder": known(), "decoder": other})
        assert found["encoder"].mask.shape == (2, length), (window, tokens)
        assert found["decoder"] is other
        assert pad(model, {"decoder": other}) == {"decoder": other}


def test_a_family_changes_the_streams_of_its_models():
    model = nn.Module()
    model.config = of_type("decision_transformer")
    positions = blocks.TokenPositions(model)
    batch = Batch({}, torch.arange(2), {"decoder": known()})
    assert positions.streams(batch)["decoder"].mask.shape == (2, 9)
    assert positions.parts == {}


def test_two_towers_make_pairs_of_an_image_and_a_text_only_if_both_are_read():
    model = nn.Module()
    model.vision_model, model.text_model = linear(), linear()
    positions = blocks.TokenPositions(model)
    texts = known()
    for names, stacks in (
        (("pixel_values",), ["encoder"]),
        (("input_ids",), ["encoder"]),
        (("input_ids", "pixel_values"), ["encoder", PAIRS]),
    ):
        inputs = {name: torch.zeros(2, 9) for name in names}
        batch = Batch(inputs, torch.arange(2), {"encoder": texts})
        assert list(positions.streams(batch)) == stacks
        assert list(batch.streams) == ["encoder"]
    one = nn.Module()
    one.vision_model = linear()
    found = blocks.TokenPositions(one).streams(batch)
    assert list(found) == ["encoder"]


@pytest.mark.usefixtures("library")
def test_special_tokens_are_those_of_each_tower():
    def with_tokens(count):
        part = Pretrained("image")
        part.cls_token = nn.Parameter(torch.zeros(1, count, 4))
        return part

    model = Pretrained(
        "image",
        "text",
        text_model=with_tokens(7),
        vision_model=with_tokens(2),
        other=with_tokens(3),
        audio_tower=with_tokens(5),
    )
    positions = blocks.TokenPositions(model)

    def count(stack, quantity="hidden"):
        return positions.specials(Site(stack, 1, quantity))

    stacks = ("vision", "other", "audio", "encoder", "none")
    assert [count(stack) for stack in stacks] == [2, 3, 0, 0, 0]
    assert count("vision", "stage") == count("vision", "pre_relu") == 0
    assert count("vision", "query") == 2
    alone = nn.Module()
    alone.main_input_name, alone.config = "pixel_values", None
    alone.dist_token = nn.Parameter(torch.zeros(1, 1, 4))
    assert blocks.TokenPositions(alone).specials(Site("encoder", 0, "hidden")) == 1
    late = nn.Module()
    late.body = nn.ModuleDict({"cls_attn_blocks": linear()})
    late.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
    assert blocks._count_special_tokens(late) == 0


def test_stretches_of_sound_are_numbered_by_the_frames_that_they_cover():
    """Of 11 frames 4 positions: each of them covers three (11 / 4, rounded), and never less than one."""

    class Ears(nn.Module):
        main_input_name = "input_features"

        def __init__(self, count):
            super().__init__()
            self._get_feat_extract_output_lengths = count

    frames = stream_of([1] * 11, [1] * 6 + [0] * 5, start=(0, 22))
    four = blocks._convert_frames(Ears(lambda n: (n + 2) // 3), frames)
    assert four.mask.long().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert four.start.tolist() == [0, 7]
    more = blocks._convert_frames(Ears(lambda n: n * 2), frames)
    assert more.mask.shape == (2, 22) and more.start.tolist() == [0, 22]


# ---- parts of blocks that are no modules


def stack_of(*layers, size=2, residual="Residual"):
    """Layers of x-transformers: norms (before, of the branch, behind), the layer, the sum."""
    kind = type(residual, (nn.Module,), {})
    made = [((before, None, behind), layer, kind()) for before, layer, behind in layers]
    stack_kind = type("AttentionLayers", (), {"__module__": "x_transformers.x"})
    stack = stack_kind()
    stack.layers, stack.len_default_block = made, size
    return stack


def test_layers_of_x_transformers_are_put_together_by_their_number():
    six = [(linear(), linear(), None) for _ in range(6)]
    for size, lengths in ((2, [6, 6, 6]), (3, [9, 9]), (6, [18])):
        stack = stack_of(*six, size=size)
        found = parts._split_layers(stack)
        assert [len(block) for block in found] == lengths
        flat = [module for block in found for module in block]
        expected = []
        for (before, _, _), layer, residual in stack.layers:
            expected += [before, layer, residual]
        assert flat == expected
    for wrong in (
        stack_of((None, linear(), None)),
        stack_of((linear(), linear(), linear())),
        stack_of((linear(), linear(), None), residual="GRUGating"),
    ):
        with pytest.raises(ModelError) as raised:
            parts._split_layers(wrong)
        assert str(raised.value) == (
            "expected blocks that begin with a norm and end with a sum; got AttentionLayers of "
            "x-transformers with other norms or sums than its default. Cure: take the default, or measure "
            "the hidden states that it returns itself, as vectors: anisoscope.measure(array)"
        )


def test_who_says_that_blocks_of_parts_are_causal():
    def with_layers(*causal):
        model = nn.Module()
        for number, value in enumerate(causal):
            layers = nn.Module()
            layers.len_default_block, layers.causal = 2, value
            setattr(model, f"l{number}", layers)
        return model

    assert parts.is_causal(with_layers(False, True))
    assert not parts.is_causal(with_layers(False, 1))
    assert not parts.is_causal(with_layers())
    assert not parts.is_causal(linear())


def test_every_list_of_parts_must_be_there():
    model = nn.Module()
    model.config = of_type("xlm")
    for name in families.family_named("xlm").parts[:3]:
        setattr(model, name, nn.ModuleList([linear(), linear()]))
    assert parts.find_parts(model) == []
    model.layer_norm2 = nn.ModuleList([linear(), linear()])
    assert [len(block) for block in parts.find_parts(model)] == [4, 4]
    model.pre_norm = True
    with pytest.raises(ModelError, match="Module with pre_norm, which adds them up"):
        parts.find_parts(model)


# ---- how a model is spread


def split(*kinds, mesh=None):
    """A parameter that is split (s), summed (p) or repeated (r) along each axis of a mesh."""
    placements = [
        SimpleNamespace(
            is_replicate=lambda k=kind: k == "r", is_shard=lambda k=kind: k == "s"
        )
        for kind in kinds
    ]
    order = torch.tensor(mesh if mesh is not None else [1, 0])
    own = SimpleNamespace(mesh=order, ndim=order.dim())
    return SimpleNamespace(placements=placements, device_mesh=own)


def spread(monkeypatch, *parameters, world=2, wrapped=False, counted=None):
    monkeypatch.setattr(parallelism.dist, "is_initialized", lambda: world > 0)
    monkeypatch.setattr(parallelism.dist, "get_world_size", lambda: world)
    monkeypatch.setattr(parallelism, "_is_wrapped", lambda _model: wrapped)
    model = SimpleNamespace(parameters=lambda: iter(parameters))
    if counted:
        model._tp_size = counted
    found = parallelism.find_spread(model)
    return found.in_step, found.ranks


def test_how_a_model_is_spread_over_processes(monkeypatch):
    plain = SimpleNamespace()
    assert spread(monkeypatch, plain) == (False, ())
    assert spread(monkeypatch) == (False, ())
    assert spread(monkeypatch, split("s"), world=1) == (False, ())
    assert spread(monkeypatch, plain, split("s")) == (True, (1, 0))
    assert spread(monkeypatch, split("p")) == (True, (1, 0))
    assert spread(monkeypatch, split("r")) == (False, ())
    assert spread(monkeypatch, plain, counted=2) == (True, (0, 1))
    assert spread(monkeypatch, split("s"), wrapped=True) == (True, ())
    assert spread(monkeypatch, plain, wrapped=True, counted=2) == (True, ())
    assert spread(monkeypatch, SimpleNamespace(ds_id=3)) == (True, ())
    repeated = split("r", "s", mesh=[[0, 1, 2, 3]])
    assert spread(monkeypatch, repeated, world=4) == (True, (0, 1, 2, 3))


def test_a_model_that_is_spread_in_two_ways_is_refused(monkeypatch):
    for parameters, how, got in (
        ([split("s")], {"world": 3}, "of 2 of 3 processes"),
        ([SimpleNamespace()], {"world": 3, "counted": 2}, "of 2 of 3 processes"),
        (
            [split("s", "s", mesh=[[0, 1], [2, 3]])],
            {"world": 4},
            "of 4 of 4 processes",
        ),
        (
            [split("s", "s", mesh=[[0, 1], [2, 3]])],
            {"world": 4, "wrapped": True},
            "of 4 of 4 processes and by FSDP or DDP",
        ),
    ):
        with pytest.raises(MeasureError) as raised:
            spread(monkeypatch, *parameters, **how)
        assert str(raised.value) == (
            "expected a model that is spread over all processes in one way: by tensor parallelism, or by "
            f"FSDP; got SimpleNamespace, by tensor parallelism {got}. Cure: start as many "
            "processes as there are parts, or spread its weights with FSDP2 alone (fully_shard)"
        )


@pytest.mark.parametrize(
    ("library", "names"),
    [
        ("diffusers", "BasicTransformerBlock JointTransformerBlock FluxTransformerBlock FluxSingleTransformerBlock"),
        ("open_clip", "ResidualAttentionBlock"),
        ("torchvision", "EncoderBlock SwinTransformerBlock SwinTransformerBlockV2 CNBlock BasicBlock Bottleneck"),
    ],
)  # fmt: skip
def test_blocks_of_libraries_without_a_configuration_are_known_by_class(library, names):
    for name in names.split():
        model = type("Whole", (nn.Module,), {"__module__": f"{library}.models.x"})()
        block = type(name, (nn.Module,), {})
        model.visual = nn.Sequential(block(), nn.Linear(2, 2), block())
        stack = "vision" if library == "open_clip" else "encoder"
        found = blocks.find_blocks(model)
        assert found == {stack: [model.visual[0], model.visual[2]]}, name


def test_lists_of_blocks_are_no_blocks():
    """They are never called: what they hold is, whatever a pattern of names fits."""
    inner, alone = nn.ModuleList([Layer(), Layer()]), Layer()
    model = nn.ModuleDict({"a": nn.ModuleDict({"x": inner, "y": alone})})
    found = blocks.find_blocks(model, ("a.*", "Layer"))
    assert found == {"encoder": [*inner, alone]}
    assert blocks.find_blocks(model, ("a.*",)) == {"encoder": [alone]}
