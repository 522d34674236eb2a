"""Judges at their thresholds, and windows that are held out: what a change of the code would silently move."""

import numpy as np
import pytest

from anisoscope_papers.judge import LEVEL, judge_tests, make_test_of_seeds
from anisoscope_papers.study import Claim
from anisoscope_papers.training.text import open_training_corpus, prepare


def test_held_out_windows_are_never_trained_on(tmp_path, monkeypatch):
    """Documents of the validation could be trained on."""
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path))
    text = tmp_path / "t.txt"
    text.write_text(
        "\n\n".join(f"number {k} and {k * 7} of the text" for k in range(900))
    )
    _, tokens = prepare(open_training_corpus(str(text)), "masked-lm", 400, 16)
    train, validation = tokens.parts()
    assert len(train) and len(validation) and not set(train) & set(validation)
    held = set(range(tokens.count)) - set(train)
    assert set(validation) <= held and len(held) < tokens.count / 20


@pytest.mark.parametrize("below", [None, 0.5])
def test_the_level_is_two_and_a_half_percent_on_one_side(below):
    """.025 could be .05: values with a one-sided p of .03 decide nothing, of .02 they do."""
    from scipy import stats

    assert LEVEL == 0.025
    claim = Claim("claim", "Any claim", "", below=below)
    spread = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    error = spread.std(ddof=1) / np.sqrt(len(spread))
    for p, outcome in ((0.03, "undecided"), (0.02, "holds")):
        away = stats.t.isf(p, len(spread) - 1) * error
        values = spread + away if below is None else below - away + spread
        (verdict,) = judge_tests([make_test_of_seeds(claim, values)])
        assert verdict.outcome == outcome and verdict.p == pytest.approx(p)
        (contrary,) = judge_tests(
            [
                make_test_of_seeds(
                    claim, -values if below is None else 2 * below - values
                )
            ]
        )
        assert contrary.outcome == {"undecided": "undecided", "holds": "fails"}[outcome]
