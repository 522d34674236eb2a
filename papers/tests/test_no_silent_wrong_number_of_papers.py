"""Numbers of the papers that could be wrong without a word: old pieces found again, modes that were left changed."""

import pandas as pd
import torch

from anisoscope_papers.godey2024 import biased_block
from anisoscope_papers.godey2024.untrained_models import Size
from anisoscope_papers.study import Context


def test_a_changed_formula_finds_no_piece_that_a_study_kept(tmp_path, monkeypatch):
    """What studies measured and kept was found by the version of the package, which no change of a formula moves."""
    made = []

    def piece(*_):
        made.append(1)
        return pd.DataFrame({"value": [1.0]})

    monkeypatch.setattr(biased_block, "measure_piece", piece)
    monkeypatch.setattr(
        torch, "get_num_threads", lambda: 1
    )  # one piece: in this process
    settings = biased_block.BlockSettings(systems=("model",), sizes=(Size(),), seeds=1)
    context = Context(tmp_path, tmp_path)
    for code, times in (
        ({"metrics": "a"}, 1),
        ({"metrics": "a"}, 1),
        ({"metrics": "b"}, 2),
    ):
        monkeypatch.setattr(
            biased_block, "hash_measuring_code", lambda _module, code=code: code
        )
        biased_block.run_experiment(settings, context)
        assert len(made) == times


def test_5_predictions_and_attributions_leave_modes_alone(classifier):
    """They left the classifier in evaluation mode, or ran with its dropout on."""
    from anisoscope.classes.ablation import average_outcome
    from anisoscope.classes.attributions import iter_captured
    from anisoscope.classes.faithfulness import predict_probabilities
    from anisoscope.classes.pooling import predict_classes

    model, plan = classifier
    try:
        model.train().attention_classifier.blocks[0].eval()
        before = [module.training for module in model.modules()]
        pad = plan.pad_id
        for look in (
            lambda: predict_classes(model, plan.encoded, pad),
            lambda: predict_probabilities(model, plan.encoded.rows, pad),
            lambda: average_outcome(model, plan, "uniform", (1,)),
            lambda: list(iter_captured(model, plan)),
        ):
            look()
            assert [module.training for module in model.modules()] == before
    finally:
        model.eval()
