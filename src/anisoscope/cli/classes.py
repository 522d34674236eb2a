"""Commands on labelled corpora: `anisoscope train classifier`, and `anisoscope classes`, the geometry of classes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from anisoscope.cli import tables as cli_tables
from anisoscope.cli.train import Overwrite, Quiet, Resume
from anisoscope.errors import UsageError

Corpus = Annotated[
    str,
    typer.Option(
        "--corpus",
        "-c",
        help="labelled: planted, planted-pairs, yelphat, hatexplain, esnli, imdb, yelp-polarity, 20newsgroups (see "
        "anisoscope list corpora), a .jsonl, .csv or .tsv table, a folder of them, a hub id",
    ),
]
TextColumn = Annotated[
    str | None, typer.Option(help="column of a table; default: guessed; alone: one text is read, no second")
]
SecondColumn = Annotated[str | None, typer.Option(help="column of the second text")]
LabelColumn = Annotated[str | None, typer.Option(help="column of the class")]
RationaleColumn = Annotated[str | None, typer.Option(help="column of marks, one per word")]
SplitColumn = Annotated[str | None, typer.Option(help="column of each row's split: train, validation, test")]
SplitSeed = Annotated[int, typer.Option(min=0, help="of splits the corpus does not have")]
ROLES = ("text", "second", "label", "rationale", "split")
"""Columns that can be named, each by an option."""


def classifier(
    model: Annotated[
        str, typer.Argument(help="attention (the attention-only model, from scratch), or any encoder to fine-tune")
    ] = "attention",
    corpus: Corpus = "planted",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="folder; default: runs/classifier-<corpus>-<id>")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="layers of the attention-only model")] = 1,
    heads: Annotated[int, typer.Option(min=1, help="heads of the attention-only model")] = 1,
    dim: Annotated[int | None, typer.Option(min=2, help="its width; default: that of the vectors, or 300")] = None,
    text: Annotated[bool, typer.Option("--text", help="the paper's equations instead of its code")] = False,
    vectors: Annotated[
        str, typer.Option(help="word vectors: a GloVe or fastText file, a checkpoint, or random")
    ] = "builtin:minilm",
    vector_norm: Annotated[float | None, typer.Option(help="scale the vectors to this mean norm")] = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="do not train the vectors")] = False,
    tokens: Annotated[str, typer.Option(help="paper (words of the training split) or checkpoint")] = "paper",
    separator: Annotated[bool, typer.Option("--separator", help="<sep> between the texts of a pair")] = False,
    penalty: Annotated[str, typer.Option(help="none, entropy ([CLS] row) or entropy-columns")] = "none",
    weight: Annotated[float, typer.Option(help="weight λ of the penalty")] = 0.0,
    penalty_layers: Annotated[str, typer.Option(help="layers it acts on, from 1, with commas; all")] = "1",
    rate: Annotated[float | None, typer.Option(help="learning rate; default: published (1e-3, or 5e-5)")] = None,
    decay: Annotated[float | None, typer.Option(help="weight decay; default: published (0, or 0.01)")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="utterances a step; default 64")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="most epochs; default 50")] = None,
    patience: Annotated[int | None, typer.Option(min=1, help="epochs without a lower loss; default 5")] = None,
    warmup: Annotated[int, typer.Option(min=0, help="steps of warm-up")] = 0,
    clip: Annotated[float, typer.Option(min=0, help="largest gradient norm; 0: none")] = 0.0,
    max_length: Annotated[int | None, typer.Option(min=3, help="longer utterances are cut, and counted")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="examples of each split, over all classes")] = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_column: LabelColumn = None,
    rationale_column: RationaleColumn = None,
    split_column: SplitColumn = None,
    seed: Annotated[int, typer.Option(min=0, help="of weights, order and dropout")] = 0,
    split_seed: SplitSeed = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda; one device")] = "cpu",
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """A classifier of utterances or pairs, the best epoch kept: the attention-only model, or a fine-tuned encoder."""
    given: dict[str, Any] = dict(locals())
    for name in ("output", "device", "resume", "overwrite", "quiet"):
        given.pop(name)
    given["columns"] = _columns(given)
    given["penalty_layers"] = _layers(penalty_layers)
    from anisoscope.progress import shown
    from anisoscope.training.classifier import Recipe, train_classifier

    recipe = Recipe(**given)
    with shown(f"{model} × {corpus}, seed {seed}", "steps", quiet=quiet) as progress:
        trained = train_classifier(recipe, output, resume=resume, overwrite=overwrite, device=device, progress=progress)
    for split, found in trained.training["results"].items():
        typer.echo(f"{split}: accuracy {found['accuracy']:.3f} of {found['n']:,} (majority {found['majority']:.3f})")
    if trained.collapsed:
        typer.echo("collapsed: not above the majority rate on the test split; try --warmup 100 --clip 1", err=True)
    for split, count in trained.training["truncated"].items():
        if count:
            typer.echo(f"{split}: {count:,} utterances cut at {trained.max_length} tokens", err=True)
    typer.echo(str(trained.folder))


def classes(
    model: Annotated[
        str, typer.Argument(help="folder or hub id (with @revision) of a classifier; of any other text model, less")
    ] = "builtin:minilm",
    corpus: Annotated[
        str,
        typer.Option("--corpus", "-c", help="labelled, as in train classifier; default: what the model was trained on"),
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="run folder; default: runs/<model>-<corpus>-<id>")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation, test, another of the corpus, or all")] = "test",
    limit: Annotated[int, typer.Option(min=1, help="utterances, the first of each class")] = 999,
    few: Annotated[int, typer.Option(min=1, help="of them in what takes many passes")] = 60,
    at: Annotated[
        str, typer.Option(help="whose vector stands for an utterance: first token, last, mean; default: the model's")
    ] = "",
    parts: Annotated[
        str,
        typer.Option(
            help="with commas: directions, replaced (what attention is worth), explained (maps over words), or all"
        ),
    ] = "all",
    max_length: Annotated[int | None, typer.Option(min=3, help="longer utterances are cut, and counted")] = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_column: LabelColumn = None,
    rationale_column: RationaleColumn = None,
    split_column: SplitColumn = None,
    split_seed: SplitSeed = 0,
    batch_tokens: Annotated[int, typer.Option(min=1, help="tokens a batch")] = 4096,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16, float16")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps")] = "cpu",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run code that comes with the model")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with a run that was interrupted; a finished one is left as it is")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="begin anew in a folder that holds a run")] = False,
    quiet: Quiet = False,
) -> None:
    """Is the direction of an utterance its class, layer by layer? What is attention worth to the classifier, and what
    explains it? Of any model, on any labelled corpus: a run folder with records and a report; tables on stdout.
    """
    columns = _columns(dict(locals()))
    from functools import partial

    from anisoscope.measure.distributed import rank_and_world
    from anisoscope.progress import shown
    from anisoscope.report import build
    from anisoscope.runs.classes import run_classes
    from anisoscope.runs.job import PARTS, Classes, Job

    asked = PARTS if parts == "all" else tuple(part.strip() for part in parts.split(",") if part.strip())
    look = Classes(corpus, columns, split_seed, split, limit, at or None, asked, few, max_length)  # type: ignore[arg-type]  # `at` is checked there
    job = Job(model, dtype=dtype, device=device, batch_tokens=batch_tokens, trust_remote_code=trust_remote_code)
    done = run_classes(job, look, output, resume=resume, overwrite=overwrite, shown=partial(shown, quiet=quiet))
    if rank_and_world()[0]:
        return
    page = build(done.folder)
    typer.echo(cli_tables.classes(done.records))
    for warning in done.manifest["warnings"]:
        typer.echo(f"note: {warning}", err=True)
    typer.echo(f"report: {page}", err=True)


def _columns(given: dict[str, Any]) -> dict[str, str] | None:
    """The columns that were named, by role; they are taken out of `given`."""
    named = {role: given.pop(f"{role}_column") for role in ROLES}
    return {role: column for role, column in named.items() if column} or None


def _layers(text: str) -> tuple[int, ...]:
    """`1,2` → (1, 2); `all` → ()."""
    if text.strip() == "all":
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError("--penalty-layers as 1 or 1,2 or all", repr(text)) from None
