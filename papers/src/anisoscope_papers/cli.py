"""Declare the commands that this package adds: `anisoscope reproduce`, `train` and `list studies` (imports nothing
heavy).
"""

from anisoscope.cli.command import Command, Group
from anisoscope_papers import study_names

REPRODUCE = Command(
    "anisoscope_papers.commands:reproduce",
    "Reproduce figures and tables of a paper, claim by claim.\n\n"
    "Records, charts, and a verdict for every claim. Finished studies are skipped. Unavailable models or data are "
    "skipped and listed; run again to retry.",
    "anisoscope reproduce godey2024 --only fig17 --settings quick",
)
TRAIN = Group(
    "Train a series of checkpoints, or a classifier.\n\nEverything is written in hub format.",
    "anisoscope train masked-lm --preset tiny --steps 200",
    {
        "masked-lm": Command(
            "anisoscope_papers.commands:masked_lm",
            "Train a BERT that predicts masked tokens.\n\nCheckpoints at log-spaced steps, to be measured as a series.",
            "anisoscope train masked-lm --preset tiny --steps 200 -o runs/mlm",
        ),
        "causal-lm": Command(
            "anisoscope_papers.commands:causal_lm",
            "Train a GPT-2 that predicts the next token.\n\n"
            "Checkpoints at log-spaced steps, to be measured as a series.",
            "anisoscope train causal-lm --preset tiny --steps 200 -o runs/clm",
        ),
        "classifier": Command(
            "anisoscope_papers.commands:classifier",
            "Train a classifier of utterances or pairs of them.\n\n"
            "Trains the attention-only model from random weights, or fine-tunes an encoder. The best epoch is kept.",
            "anisoscope train classifier --corpus synthetic --epochs 2 -o runs/first",
        ),
    },
)


def list_studies() -> list[tuple[str, str]]:
    """Return (name, one-line description) of every study."""
    return [
        (f"{paper} {name}", f"{title} (settings: {', '.join(how)})")
        for paper, name, title, how in study_names.list_studies()
    ]
