"""Arms of the drift in vision and speech Transformers: trained once, found again, judged by a known guess."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.errors import CorpusError
from anisoscope.store import as_records, select
from anisoscope_papers.beyond import arms, modalities, trained
from anisoscope_papers.beyond.modalities import KindRecipe
from anisoscope_papers.beyond.trained import LOSS, SKILL, Experiment
from anisoscope_papers.study import Context
from anisoscope_papers.training import photographs_and_speech
from anisoscope_papers.training.kinds import find_kind, prepare_material

DIGITS = find_kind("vit")
SMALL = replace(
    DIGITS,
    sizes=tuple(
        (dict(DIGITS.sizes) | {"hidden_size": 16, "intermediate_size": 16}).items()
    ),
    batch=8,
)
RECIPE = KindRecipe("vit", 4, looks=(2,), probe=6)


def test_settings_for_what_is_finished_train_nothing():
    for name, settings in modalities.SETTINGS.items():
        trains = {setting: experiment.train for setting, experiment in settings.items()}
        assert trains == {"quick": True, "paper": True, "finished": False}, name
        assert settings["finished"].arms == settings["paper"].arms


@pytest.fixture(autouse=True)
def _small(tmp_path, monkeypatch):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        modalities,
        "find_kind",
        lambda name: SMALL if name == "vit" else find_kind(name),
    )


def test_cells_are_trained_once_looked_at_and_found_again(tmp_path, monkeypatch):
    experiment = Experiment((arms.BASE, "queries-centred"), 2, RECIPE)
    context = Context(tmp_path, tmp_path)
    records = trained.measure(experiment, context)
    assert set(records["step"]) == {0, 2, 4} and set(records["corpus"]) == {
        "builtin:digits"
    }
    assert {"mean_cosine", "attention.entropy", "query_key.cosine", LOSS, SKILL} <= set(
        records["metric"]
    )
    start = (
        select(records, step=0, site="hidden").groupby(["model", "seed"])["value"].sum()
    )
    assert (
        start["base", 0] == start["queries-centred", 0] != start["base", 1]
    )  # paired by seed
    lost = records[records["metric"] == LOSS].pivot(
        index=["model", "seed"], columns="step", values="value"
    )
    skill = records[records["metric"] == SKILL].pivot(
        index=["model", "seed"], columns="step", values="value"
    )
    known = modalities.compute_guess_loss(SMALL, prepare_material(SMALL, 0))
    np.testing.assert_allclose(skill.astype(float), 1 - lost.astype(float) / known)
    assert (lost.loc["base"] != lost.loc["queries-centred"]).all(axis=None)
    monkeypatch.setattr(KindRecipe, "train", None)
    pd.testing.assert_frame_equal(trained.measure(experiment, context), records)
    assert not any(place.name == "resume" for place in (tmp_path / "cache").rglob("*"))


@pytest.mark.parametrize(
    "changes",
    [{"kind": "vit-masked"}, {"steps": 5}, {"looks": (1,)}, {"probe": 7}],
    ids=lambda c: next(iter(c)),
)
def test_the_folder_of_a_cell_knows_every_setting(changes):
    assert replace(RECIPE, **changes).folder("base", 0) != RECIPE.folder("base", 0)
    places = {
        RECIPE.folder(arm, seed) for arm in ("base", "qk-norm") for seed in (0, 1)
    }
    assert len(places) == 4


def test_the_folder_of_a_cell_knows_what_it_is_trained_on(monkeypatch):
    """Models of other photographs are other models."""
    kind = type(find_kind(RECIPE.kind))
    folders = []
    for missing, data in (
        ("", "first"),
        ("", "second"),
        ("nothing there", "third"),
        ("nothing there", "fourth"),
    ):
        monkeypatch.setattr(
            kind, "missing", property(lambda _self, missing=missing: missing)
        )
        monkeypatch.setattr(kind, "data", property(lambda _self, data=data: data))
        folders.append(RECIPE.folder("base", 0))
    assert len({*folders[:3]}) == 3 and folders[2] == folders[3]


def _narrow(kind, **more):
    return tuple(
        (
            dict(kind.sizes)
            | {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
            | more
        ).items()
    )


@pytest.mark.parametrize(
    "name", ["vit", "vit-masked", "speech-transformer", "speech-masked", "token-lm"]
)
def test_queries_and_keys_of_any_encoder_are_changed(name, monkeypatch):
    """Whatever their architecture calls the projections: each of them, and no other, by the arm's change."""
    monkeypatch.setattr(
        "anisoscope_papers.training.kinds.make_examples",
        lambda _kind: (None, [], [], None),
    )
    kind = replace(find_kind(name), sizes=_narrow(find_kind(name)))
    changed = {
        "queries-centred": ("q", arms.Centred),
        "keys-centred": ("k", arms.Centred),
    }
    for arm, (letter, made) in changed.items():
        model = prepare_material(kind, 0).model
        arms.list_changes(arm)[0].model(model)
        found = {
            path.rpartition(".")[2]
            for path, module in model.named_modules()
            if isinstance(module, made)
        }
        count = sum(isinstance(module, made) for module in model.modules())
        assert count == 2 and {place[0] for place in found} == {letter}
    model = prepare_material(kind, 0).model
    arms.list_changes("no-qk-bias")[0].model(model)
    gone = [
        path
        for path, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and m.bias is None
    ]
    assert len(gone) == 4 and {path.rpartition(".")[2][0] for path in gone} == {
        "q",
        "k",
    }
    model = prepare_material(kind, 0).model
    arms.list_changes("qk-norm")[0].model(model)
    assert sum(isinstance(module, arms.Normed) for module in model.modules()) == 4


def test_the_guess_is_the_loss_of_the_mean_image_in_hidden_patches():
    """As the library counts it: filled in by the mean of the training images, by place and channel."""
    from transformers import ViTConfig, ViTForMaskedImageModeling

    g = torch.Generator().manual_seed(0)
    pictures, hidden = (
        torch.randn(30, 3, 8, 8, generator=g),
        torch.rand(30, 4, generator=g) < 0.6,
    )

    def collate(chosen):
        return {"pixel_values": pictures[chosen], "bool_masked_pos": hidden[chosen]}

    made = SimpleNamespace(
        train=list(range(20)), validation=list(range(20, 30)), collate=collate
    )
    kind = replace(find_kind("vit-masked"), batch=2)
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    model = ViTForMaskedImageModeling(
        ViTConfig(image_size=8, patch_size=4, encoder_stride=4, **sizes)
    )
    mean = pictures[:20].mean(0)

    class Mean(torch.nn.Module):
        def forward(self, x):
            return mean.expand(len(x), -1, -1, -1)

    model.decoder = Mean()
    assert modalities.compute_guess_loss(kind, made) == pytest.approx(
        float(model(**collate(list(range(20, 30)))).loss), rel=1e-5
    )


def test_the_guess_at_classes_is_the_entropy_of_their_shares():
    made = SimpleNamespace(
        validation=[0, 2, 0, 0], collate=lambda chosen: {"labels": torch.tensor(chosen)}
    )
    expected = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    # In one batch or in several, the shares are those of all examples.
    for batch in (DIGITS.batch, 1):
        kind = replace(DIGITS, batch=batch)
        assert modalities.compute_guess_loss(kind, made) == pytest.approx(expected)


def test_skill_is_told_beside_the_guess_of_its_modality():
    for study, guess in zip(modalities.STUDIES, ("the average", "chance"), strict=True):
        rows = [
            {"model": arm, "seed": seed, "step": step, "metric": SKILL, "value": value}
            for arm, value in (("base", 0.25), ("queries-centred", 0.5))
            for seed in range(3)
            for step in (0, 9)
        ]
        found = {v.claim: v for v in study.judge(as_records(pd.DataFrame(rows)))}
        reason = found["the drift of queries is of use"].reason
        assert f"skill over {guess} 0.50, of base 0.25" in reason, study.name


def test_photographs_that_are_not_there_are_told(tmp_path, monkeypatch):
    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    absent = KindRecipe("vit-masked", 4, looks=(2,))
    assert not len(
        trained.measure(
            Experiment((arms.BASE,), 1, absent, train=False),
            Context(tmp_path, tmp_path),
        )
    )
    with pytest.raises(CorpusError, match="ANISOSCOPE_DATA"):
        trained.measure(
            Experiment((arms.BASE,), 1, absent), Context(tmp_path, tmp_path)
        )


def test_the_guess_at_hidden_spans_is_the_loss_of_equal_chances(monkeypatch):
    """As the library counts it, a sum over each batch, and as the Trainer does, the mean over examples."""
    from transformers import Wav2Vec2ForPreTraining

    def equal(_target, negatives, _predicted, _temperature):
        return torch.zeros(1 + len(negatives), *negatives.shape[1:3])

    monkeypatch.setattr(
        Wav2Vec2ForPreTraining, "compute_contrastive_logits", staticmethod(equal)
    )
    kind = replace(
        find_kind("speech-masked"), batch=1, sizes=_narrow(find_kind("speech-masked"))
    )
    monkeypatch.setattr(
        "anisoscope_papers.training.kinds.make_examples",
        lambda _kind: (None, [], [], None),
    )
    model, spans = (
        prepare_material(kind, 0).model.eval(),
        partial(photographs_and_speech._draw_spans, 98, 20),
    )
    drawn, free = (
        [spans(np.random.default_rng(i)) for i in range(3)],
        torch.Generator().manual_seed(0),
    )

    def collate(chosen):
        hidden, others = (
            torch.from_numpy(np.stack(x))
            for x in zip(*(drawn[i] for i in chosen), strict=True)
        )
        waves = torch.randn(len(chosen), 32_000, generator=free)
        first = 98 * torch.arange(len(chosen)).view(-1, 1, 1)
        return {
            "input_values": waves,
            "mask_time_indices": hidden,
            "sampled_negative_indices": others + first,
        }

    class Distinct(
        torch.nn.Module
    ):  # no entry of the codebook twice, else the library leaves the others out
        def forward(self, x, **_):
            return torch.randn(*x.shape[:2], 64, generator=free), torch.tensor(1.0)

    model.quantizer = Distinct()
    made = SimpleNamespace(train=[], validation=[0, 1, 2], collate=collate)
    losses = [
        float(model(**collate(chosen)).contrastive_loss) for chosen in ([0, 1], [2])
    ]
    assert modalities.compute_guess_loss(kind, made) == pytest.approx(
        (2 * losses[0] + losses[1]) / 3, rel=1e-5
    )


def test_patches_of_validation_photographs_are_hidden_once(monkeypatch):
    """Those of photographs to train on are drawn for each batch."""
    pixels = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    read = (pixels, list(range(5)))
    monkeypatch.setattr(photographs_and_speech, "_read_pixels", lambda _: read)
    monkeypatch.setattr(photographs_and_speech, "VALIDATION", 2)
    _, learnt, held, collate = photographs_and_speech.make_photographs(
        "photographs", 0, {"image_size": 8, "patch_size": 1}, masked=True
    )
    assert [example["labels"] for example in learnt] == [0, 1, 2]
    assert [example["labels"] for example in held] == [3, 4]
    for examples, fixed in ((learnt, False), (held, True)):
        first, second = (collate(examples)["bool_masked_pos"] for _ in range(2))
        assert first.shape == (len(examples), 64)
        same = (first == second).all(1).tolist()
        assert same == [fixed] * len(examples)
