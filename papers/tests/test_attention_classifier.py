"""The attention-only classifier: its equations, the row-only training pass, saving, loading, capture; word vectors."""

import gzip
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from anisoscope.capture import capture
from anisoscope.errors import AnisoscopeError, ModelError, UsageError
from anisoscope.models import ports
from anisoscope.models.families import family_of
from anisoscope.models.load import load
from anisoscope.models.vectors import word_vectors
from anisoscope_papers.networks.attention_classifier import (
    PAPER_TEXT,
    AttentionClassifier,
    AttentionClassifierConfig,
    make_sinusoids,
)

SIZES = {"vocab_size": 40, "hidden_size": 12, "num_labels": 3}
LENGTHS = torch.tensor([9, 5, 1, 7])


def build(**changes):
    ports.register()
    torch.manual_seed(3)
    model = AttentionClassifier(AttentionClassifierConfig(**SIZES | changes)).double()
    for parameter in model.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


def inputs():
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(9) < LENGTHS[:, None]).long()
    ids = torch.randint(2, 40, (4, 9), generator=generator) * mask
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.tensor([0, 2, 1, 2]),
    }


def by_hand(model, ids):
    """Logits of one unpadded utterance, equation by equation, with torch's own multi-head attention."""
    encoder, config = model.attention_classifier, model.config
    x = encoder.embeddings(ids)
    if config.positions == "sinusoidal":
        x = x + make_sinusoids(len(ids), config.hidden_size).double()
    for layer, block in enumerate(encoder.blocks):
        a, dim = block.attention, config.hidden_size
        attention = nn.MultiheadAttention(
            dim, config.num_attention_heads, bias=config.attention_bias
        ).double()
        state = {"in_proj_weight": a.in_proj.weight, "out_proj.weight": torch.eye(dim)}
        if config.attention_bias:
            state |= {"in_proj_bias": a.in_proj.bias, "out_proj.bias": torch.zeros(dim)}
        if config.output_projection:
            state |= {
                f"out_proj.{name}": value
                for name, value in a.out_proj.named_parameters()
            }
        attention.load_state_dict(state)
        scores = None
        if config.attention != "learned":  # no query: every score is 0, or drawn
            for parameter in (attention.in_proj_weight, attention.in_proj_bias)[
                : 1 + config.attention_bias
            ]:
                parameter.data[:dim] = 0
        if config.attention == "random":
            generator = torch.Generator().manual_seed(
                1_000 * config.attention_seed + layer
            )
            scores = torch.randn(1024, 1024, generator=generator)[
                : len(ids), : len(ids)
            ].double()
        x = x + attention(x, x, x, attn_mask=scores)[0]
        plain = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        x = plain if config.norm == "plain" else block.norm(x)
    return model.classifier(x[0])


CONFIGURATIONS = [
    {"num_hidden_layers": layers, "num_attention_heads": heads, **text}
    for layers, heads, text in product((1, 3), (1, 2), ({}, PAPER_TEXT))
]
CONFIGURATIONS += [
    {"num_hidden_layers": 2, "attention": kind, "attention_seed": 5}
    for kind in ("uniform", "random")
]


@pytest.mark.parametrize("changes", CONFIGURATIONS)
def test_the_model_is_its_equations_and_padding_changes_nothing(changes):
    model, given = build(**changes).eval(), inputs()
    logits = model(**given).logits
    for row, length in enumerate(LENGTHS.tolist()):
        expected = by_hand(model, given["input_ids"][row, :length])
        torch.testing.assert_close(logits[row], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("changes", CONFIGURATIONS)
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_the_row_of_cls_alone_gives_the_same_loss_and_gradients(changes, backend):
    model, found = build(**changes).train(), []
    model.set_attn_implementation(backend)
    for row_only in ("training", "never"):
        model.attention_classifier.row_only = row_only
        model.zero_grad()
        loss = model(**inputs()).loss
        loss.backward()
        found.append(
            (
                loss.item(),
                {name: p.grad.clone() for name, p in model.named_parameters()},
            )
        )
    (ours, gradients), (full, expected) = found
    assert ours == pytest.approx(full, abs=1e-13)
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected[name], atol=1e-13, rtol=0, msg=name
        )
    assert max(float(g.abs().max()) for g in expected.values()) > 0.01


def test_its_family_names_the_part_that_computes_the_first_row_alone():
    model = build()
    part = getattr(model, family_of(model).cls_row_only)
    assert part is model.attention_classifier and part.row_only == "training"


def test_row_only_is_for_training_only():
    model = build(num_hidden_layers=2)
    shape = lambda: model.attention_classifier(  # noqa: E731
        inputs()["input_ids"]
    ).last_hidden_state.shape[1]
    assert (model.train() and shape(), model.eval() and shape()) == (1, 9)
    model.train().attention_classifier.row_only = "never"
    assert shape() == 9
    model.eval().attention_classifier.row_only = "always"
    assert shape() == 1


@torch.no_grad()
def test_initialisation_is_that_of_torchs_own_modules():
    model = AttentionClassifier(
        AttentionClassifierConfig(vocab_size=500, hidden_size=100, num_labels=3)
    )
    attention = model.attention_classifier.blocks[0].attention
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(100, 1)
    assert float(attention.in_proj.weight.std()) == pytest.approx(
        float(theirs.in_proj_weight.std()), rel=0.02
    )
    assert float(attention.out_proj.weight.std()) == pytest.approx(
        float(theirs.out_proj.weight.std()), rel=0.03
    )
    assert not attention.in_proj.bias.any() and not attention.out_proj.bias.any()
    assert float(
        model.attention_classifier.embeddings.weight[1:].std()
    ) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    "changes", [{}, PAPER_TEXT | {"num_hidden_layers": 2, "num_attention_heads": 2}]
)
def test_it_is_saved_loaded_and_captured_like_any_other(tmp_path, changes):
    from transformers import AutoModelForSequenceClassification

    from anisoscope.data.encoding import build_tokenizer
    from anisoscope.data.opening import open_labelled

    model, given = build(**changes).float().eval(), inputs()
    model.save_pretrained(tmp_path)
    build_tokenizer(open_labelled("synthetic"), max_length=64).save_pretrained(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} >= {"config.json", "model.safetensors"}
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(again(**given).logits, model(**given).logits)
    given.pop("labels")
    subject = load(str(tmp_path))
    assert subject.processor.tokenize("Rize") == ["rize"]
    with (
        torch.no_grad(),
        capture(subject.model, ("hidden", "query", "key", "value", "attention")) as tap,
    ):
        subject.model(**given)
    block = model.attention_classifier.blocks[0].attention
    states = tap["encoder.0.hidden"]
    key, value = block.in_proj(states).chunk(3, -1)[1:]
    heads = lambda x: x.unflatten(-1, (block.heads, -1)).transpose(1, 2)  # noqa: E731
    torch.testing.assert_close(tap["encoder.1.head.key.raw"], heads(key))
    torch.testing.assert_close(tap["encoder.1.head.value"], heads(value))
    assert f"encoder.{model.config.num_hidden_layers}.attention" in tap.sites


def test_wrong_choices_are_explained():
    for change in (
        {"norm": "batch"},
        {"positions": "rotary"},
        {"num_attention_heads": 5},
        {"hidden_size": 9},
        {"attention": "none"},
    ):
        with pytest.raises(UsageError):
            build(**change)
    with pytest.raises(UsageError, match="at most 4 tokens"):
        build(max_position_embeddings=4)(**inputs())


WORDS = ["<pad>", "<unk>", "cat", "dog", "zzz", "<cls>"]


@pytest.mark.parametrize("header", ["", "3 2\n"])
def test_vectors_of_a_text_file(tmp_path, header):
    text = f"{header}the 9 9\ncat 1 2\ndog 3 -4\ncat 8 8\n"
    (tmp_path / "v.txt").write_text(text)
    with gzip.open(tmp_path / "v.vec.gz", "wt") as file:
        file.write(text)
    for name in ("v.txt", "v.vec.gz"):
        vectors = word_vectors(str(tmp_path / name), WORDS, ["<pad>", "<unk>", "<cls>"])
        assert (
            vectors.matrix.tolist() == [[0, 0], [0, 0], [1, 2], [3, -4], [0, 0], [0, 0]]
            and vectors.found == 2
        )
    scaled = word_vectors(str(tmp_path / "v.txt"), WORDS, ["<cls>"], norm=10.0).matrix
    lengths = scaled.norm(dim=1)
    assert (
        float(lengths[lengths > 0].mean()) == pytest.approx(10)
        and float(lengths[3] / lengths[2]) > 2
    )


def test_vectors_of_a_checkpoint_are_means_over_pieces(minilm):
    vectors = word_vectors(
        "builtin:minilm", [*WORDS, "unhappiest"], ["<pad>", "<unk>", "<cls>"]
    )
    table = minilm.model.get_input_embeddings().weight
    ids = minilm.processor("unhappiest", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1 and vectors.found == 4
    torch.testing.assert_close(vectors.matrix[-1], table[ids].mean(0))
    assert not vectors.matrix[[0, 1, 5]].any()


@pytest.mark.parametrize("cosine", [0.0, 0.25, 0.6])
def test_vectors_are_shifted_along_their_common_direction(tmp_path, cosine):
    drawn = np.random.default_rng(0).normal(size=(60, 8)) + 0.3
    lines = [" ".join([f"w{i}", *map(str, x)]) for i, x in enumerate(drawn)]
    (tmp_path / "v.txt").write_text("\n".join(lines))
    words = ["<pad>", *(f"w{i}" for i in range(60)), "unknown"]
    found = (
        word_vectors(str(tmp_path / "v.txt"), words, ["<pad>"], norm=5.0, cosine=cosine)
        .matrix.double()
        .numpy()
    )
    assert not found[[0, -1]].any()
    shifted = found[1:-1]
    lengths = np.linalg.norm(shifted, axis=1, keepdims=True)
    cosines = (shifted / lengths) @ (shifted / lengths).T
    assert cosines[~np.eye(60, dtype=bool)].mean() == pytest.approx(cosine, abs=1e-6)
    assert lengths.mean() == pytest.approx(5.0, rel=1e-6)
    # One vector was added to all, before all were scaled by one factor: differences of vectors keep their directions.
    before, after = drawn[1:] - drawn[0], shifted[1:] - shifted[0]
    ratio = np.linalg.norm(after, axis=1) / np.linalg.norm(before, axis=1)
    np.testing.assert_allclose(after, before * ratio.mean(), rtol=1e-4, atol=1e-6)
    own = (
        word_vectors(str(tmp_path / "v.txt"), words, ["<pad>"], cosine=cosine)
        .matrix.double()
        .numpy()[1:-1]
    )
    assert np.linalg.norm(own, axis=1).mean() == pytest.approx(
        np.linalg.norm(drawn, axis=1).mean(), rel=1e-6
    )


@pytest.mark.parametrize("cosine", [-0.1, 1.0, float("nan")])
def test_a_mean_cosine_that_vectors_cannot_have_is_refused(tmp_path, cosine):
    (tmp_path / "v.txt").write_text("cat 1 2\ndog 3 -4\n")
    with pytest.raises(UsageError, match="a mean cosine of at least 0"):
        word_vectors(str(tmp_path / "v.txt"), WORDS, [], cosine=cosine)
    (tmp_path / "v.txt").write_text("cat 1 2\n")
    with pytest.raises(UsageError, match="at least two word vectors"):
        word_vectors(str(tmp_path / "v.txt"), WORDS, [], cosine=0.5)


def test_bad_vectors_are_explained(tmp_path):
    for text, expected in (
        ("cat 1 2\ndog 1\n", "2 numbers in every line"),
        ("x 1 2\n", "words of the corpus"),
    ):
        (tmp_path / "v.txt").write_text(text)
        with pytest.raises(ModelError, match=expected):
            word_vectors(str(tmp_path / "v.txt"), WORDS, [])
    (tmp_path / "v.bin").write_bytes(b"\xff\xfe\x00")
    for name in (str(tmp_path / "v.bin"), "no-such-file.txt"):
        with pytest.raises(AnisoscopeError):
            word_vectors(name, WORDS, [])
