"""Numbers that were silently wrong, and faults that ended badly: one test for each, by item of the issue's list."""

import re

import pytest
import tiny
import torch

# ---- 5: modes after an exception -------------------------------------------------------------------------------------


def partly_frozen():
    """An encoder in training, one block of which its user keeps in evaluation mode."""
    model = tiny.build("bert", torch.float32).train()
    model.encoder.layer[1].eval()
    return model, [module.training for module in model.modules()]


def one_batch(ids):
    from anisoscope.batch import Batch, Stream

    mask = torch.ones(ids.shape[:2], dtype=torch.bool)
    stream = Stream(mask, torch.zeros_like(mask), torch.zeros(len(ids)).long())
    return [Batch({"input_ids": ids}, torch.arange(len(ids)), {"encoder": stream})]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("who", ["utterance_states", "entropies"])
def test_5_modes_come_back_module_by_module(who, fails):
    """`model.train(before)` woke the frozen block, and an exception left all modules in evaluation mode."""
    from anisoscope.classes.pooling import utterance_states
    from anisoscope.training.entropy_penalty import entropies

    model, before = partly_frozen()
    run = {"utterance_states": utterance_states, "entropies": entropies}[who]
    ids = torch.full((2, 4), 10_000 if fails else 5)  # beyond the vocabulary
    if fails:
        with pytest.raises(IndexError):
            run(model, one_batch(ids))
    else:
        run(model, one_batch(ids))
    assert [module.training for module in model.modules()] == before


def test_5_predictions_and_attributions_leave_modes_alone(classifier):
    """They left the classifier in evaluation mode, or ran with its dropout on."""
    from anisoscope.classes.ablation import outcome
    from anisoscope.classes.attributions import seen
    from anisoscope.classes.faithfulness import probabilities
    from anisoscope.training.classifier_loop import predicted

    model, plan = classifier
    try:
        model.train().attention_classifier.blocks[0].eval()
        before = [module.training for module in model.modules()]
        pad = plan.pad_id
        for look in (
            lambda: predicted(model, plan.encoded, pad),
            lambda: probabilities(model, plan.encoded.rows, pad),
            lambda: outcome(model, plan, "uniform", (1,)),
            lambda: list(seen(model, plan)),
        ):
            look()
            assert [module.training for module in model.modules()] == before
    finally:
        model.eval()


def test_built_once_modes_and_the_registration_with_the_attention_interface():
    """Evaluation mode was switched by hand in seven places, and attention functions registered in two."""
    from pathlib import Path

    import anisoscope

    sources = {path: path.read_text() for path in Path(anisoscope.__file__).parent.rglob("*.py")}
    switching = {
        path.name for path, text in sources.items() if re.search(r"\.train\(training|training = model\.", text)
    }
    registering = {path.name for path, text in sources.items() if "AttentionInterface.register(" in text}
    assert not switching and registering == {"backends.py"}
