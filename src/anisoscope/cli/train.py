"""`anisoscope train`: models trained from scratch, kept along the way, for everything else to be measured on."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train language models from scratch, with checkpoints along the way, or a classifier, whose best epoch is "
    "kept; in hub format.\n\n"
    "Example: anisoscope train masked-lm --preset tiny --steps 200",
)

Corpus = Annotated[str, typer.Option("--corpus", "-c", help="text as in measure: name, hub data set, file or folder")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="folder; default: runs/<task>-<preset>-<corpus>/seed-<seed>")
]
Preset = Annotated[str, typer.Option(help="tiny, small, mini, bert-small or bert-base")]
Steps = Annotated[int | None, typer.Option(min=1, help="default: the preset's")]
Seed = Annotated[int, typer.Option(min=0, help="seed of the weights and of dropout")]
DataSeed = Annotated[
    int | None, typer.Option(min=0, help="seed of the order of the text and of the masks; default: as --seed")
]
VocabularyOption = Annotated[
    str | None, typer.Option(help="checkpoint whose vocabulary is taken; default: one learnt on the corpus")
]
VocabSize = Annotated[int | None, typer.Option(min=300, help="most tokens learnt; default: the preset's")]
Window = Annotated[int | None, typer.Option(min=4, help="tokens a sequence; default: the preset's")]
BatchSize = Annotated[int | None, typer.Option("--batch", min=1, help="sequences a step, over all devices")]
Rate = Annotated[float | None, typer.Option(min=0, help="highest learning rate; default: the preset's")]
Dropout = Annotated[float | None, typer.Option(min=0, max=0.9, help="default: the preset's (0 for small ones)")]
PerOctave = Annotated[int, typer.Option(min=1, help="checkpoints each time the number of steps doubles")]
Accumulate = Annotated[int, typer.Option(min=1, help="parts a batch is split into where memory is short")]
Precision = Annotated[str, typer.Option("--dtype", help="float32, or mixed precision: bfloat16, float16")]
Device = Annotated[str, typer.Option(help="cpu or cuda (several: start it with torchrun)")]
ReportTo = Annotated[str, typer.Option(help="trackers, with commas: tensorboard, wandb, trackio")]
Limit = Annotated[int | None, typer.Option(min=1, help="first N documents only")]
Split = Annotated[str | None, typer.Option(help="split of a hub data set")]
Column = Annotated[str | None, typer.Option(help="text column of a table")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with a training that was interrupted")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="begin anew in a folder that holds a training")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]


@app.command(
    "masked-lm",
    epilog="Example: anisoscope train masked-lm --corpus pretrain_text --preset small --seed 0 -o runs/series/seed-0",
)
def masked_lm(
    corpus: Corpus = "builtin:python-docs",
    output: Output = None,
    preset: Preset = "small",
    steps: Steps = None,
    seed: Seed = 0,
    data_seed: DataSeed = None,
    vocabulary: VocabularyOption = None,
    vocab_size: VocabSize = None,
    window: Window = None,
    batch: BatchSize = None,
    rate: Rate = None,
    dropout: Dropout = None,
    per_octave: PerOctave = 2,
    accumulate: Accumulate = 1,
    dtype: Precision = "float32",
    device: Device = "cpu",
    report_to: ReportTo = "",
    limit: Limit = None,
    split: Split = None,
    column: Column = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """A BERT that predicts masked tokens, with checkpoints at log-spaced steps: a series to be measured."""
    _train("masked-lm", locals())


@app.command(
    "causal-lm",
    epilog="Example: anisoscope train causal-lm --corpus pretrain_text --preset small --seed 0 -o runs/causal/seed-0",
)
def causal_lm(
    corpus: Corpus = "builtin:python-docs",
    output: Output = None,
    preset: Preset = "small",
    steps: Steps = None,
    seed: Seed = 0,
    data_seed: DataSeed = None,
    vocabulary: VocabularyOption = None,
    vocab_size: VocabSize = None,
    window: Window = None,
    batch: BatchSize = None,
    rate: Rate = None,
    dropout: Dropout = None,
    per_octave: PerOctave = 2,
    accumulate: Accumulate = 1,
    dtype: Precision = "float32",
    device: Device = "cpu",
    report_to: ReportTo = "",
    limit: Limit = None,
    split: Split = None,
    column: Column = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """A GPT-2 that predicts the next token, with checkpoints at log-spaced steps: a series to be measured."""
    _train("causal-lm", locals())


SIZES = {"vocab_size": "vocabulary", "window": "window", "batch": "batch", "rate": "rate", "dropout": "dropout"}
"""Options that change a preset, and its field."""


def _train(task: Any, given: dict[str, Any]) -> None:
    from anisoscope.progress import shown
    from anisoscope.training.language_model import Training, train
    from anisoscope.training.presets import size_named

    preset, corpus, seed = given["preset"], given["corpus"], given["seed"]
    size = size_named(preset, **{field: given[option] for option, field in SIZES.items()})
    same = ("corpus", "steps", "seed", "data_seed", "vocabulary", "per_octave", "accumulate", "device")
    training = Training(
        task=task,
        size=size,
        precision=given["dtype"],
        report_to=tuple(name.strip() for name in given["report_to"].split(",") if name.strip()),
        **{name: given[name] for name in (*same, "limit", "split", "column")},
    )
    place = f"{task}-{preset}-{corpus.replace('builtin:', '').strip('/').replace('/', '-')}"
    folder = given["output"] or Path("runs") / place / f"seed-{seed}"
    with shown(f"{task} {preset} × {corpus}, seed {seed}", "steps", quiet=given["quiet"]) as progress:
        train(training, folder, resume=given["resume"], overwrite=given["overwrite"], progress=progress)
    typer.echo(str(folder))
