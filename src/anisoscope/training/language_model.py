"""Language models trained from scratch into a series of checkpoints in hub format.

<output>/step-0, step-1, step-2, step-3, step-4, step-6 … step-N   model and tokenizer at log-spaced steps
<output>/resume/checkpoint-K   the Trainer's own state, while the training is under way
<output>/identity.json         what is trained: another training is refused
<output>/training.json         settings, seeds, corpus, losses, versions; written last
"""

import json
import shutil
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anisoscope.data.text import TextCorpus
from anisoscope.errors import UsageError
from anisoscope.measure.distributed import rank_and_world
from anisoscope.progress import Progress
from anisoscope.provenance import code_version, provenance
from anisoscope.store import RunFolder, write_atomic
from anisoscope.training.presets import TASKS, Size, Task, size_named, untrained
from anisoscope.training.vocabulary import Vocabulary, open_training_corpus, prepare
from anisoscope.training.windows import Examples, Tokens

PRECISIONS = ("float32", "bfloat16", "float16")
WARM_UP, LONGEST_WARM_UP = 0.05, 10_000
"""The learning rate rises over 5 % of the steps, 10,000 at most, then falls linearly."""


@dataclass(frozen=True)
class Training:
    """What is trained, on what, how long. Everything but the last two fields is part of its identity.

    seed, data_seed   of the weights (and dropout); of the order of the windows and their masks (None: as `seed`)
    per_octave        checkpoints each time the number of steps doubles, besides 0 and the last
    accumulate        batches a step is split into where memory is short
    """

    task: Task = "masked-lm"
    corpus: str = "builtin:python-docs"
    size: Size = size_named("small")  # noqa: RUF009  # a frozen value
    steps: int | None = None
    seed: int = 0
    data_seed: int | None = None
    vocabulary: str | None = None
    per_octave: int = 2
    precision: str = "float32"
    accumulate: int = 1
    split: str | None = None
    column: str | None = None
    limit: int | None = None
    device: str = "cpu"
    report_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, value, known in (("a task", self.task, TASKS), ("a precision", self.precision, PRECISIONS)):
            if value not in known:
                raise UsageError(f"{what} among {', '.join(known)}", repr(value))
        if self.last < 1 or self.per_octave < 1 or self.accumulate < 1:
            raise UsageError("steps, checkpoints per octave and batches a step of at least 1", "less", "raise them")
        parts = rank_and_world()[1] * self.accumulate
        if self.size.batch % parts:
            got = f"{self.size.batch} sequences over {parts} parts (processes × --accumulate)"
            raise UsageError("a batch that can be split evenly", got, f"use a multiple of {parts} for --batch")

    @property
    def last(self) -> int:
        """The last step."""
        return self.size.steps if self.steps is None else self.steps

    @property
    def order(self) -> int:
        """The seed of the data."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def warm_up(self) -> int:
        return max(1, min(LONGEST_WARM_UP, int(WARM_UP * self.last)))

    def identity(self, corpus: TextCorpus, tokens: Tokens) -> dict[str, Any]:
        described = asdict(self) | {"steps": self.last, "data_seed": self.order}
        for name in ("device", "report_to"):
            described.pop(name)
        described |= {"corpus_fingerprint": corpus.fingerprint, "vocabulary_size": tokens.vocabulary}
        return described | {"code": code_version()["version"]}


def checkpoint_steps(last: int, per_octave: int) -> list[int]:
    """Steps whose checkpoints are kept: 0, then `per_octave` of them each time the number doubles, and the last.

    >>> checkpoint_steps(20, 2)
    [0, 1, 2, 3, 4, 6, 8, 11, 16, 20]
    """
    steps, exponent = {0, last}, 0
    while (step := round(2 ** (exponent / per_octave))) < last:
        steps.add(step)
        exponent += 1
    return sorted(steps)


def train(
    training: Training,
    output: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train into the folder `output` and return it. A finished training of the same identity is left as it is where
    `resume` is set. OutputError for another's folder; Interrupted on SIGINT or SIGTERM, after the state was saved.
    """
    from anisoscope.training.checkpoints import check_device
    from anisoscope.training.series_trainer import fit

    check_device(training.device)
    rank, _ = rank_and_world()
    corpus = open_training_corpus(training.corpus, split=training.split, column=training.column, limit=training.limit)
    vocabulary = Vocabulary(training.task, training.size.vocabulary, training.vocabulary)
    tokenizer, tokens = prepare(vocabulary, corpus, training.size.window)
    if rank == 0:
        RunFolder.start(output, training.identity(corpus, tokens), resume=resume, overwrite=overwrite)
        if overwrite:
            _clear(output)
    if (output / "training.json").exists():
        return output
    started, clock = datetime.now(UTC), time.monotonic()
    model = untrained(training.task, training.size, tokenizer, training.seed)
    windows, held = tokens.parts()
    examples = Examples(tokens, windows, training.last * training.size.batch, training.order)
    validation = Examples(tokens, held, len(held), 0, shuffled=False)
    history = fit(training, model, tokenizer, examples, validation, output, progress)
    if rank == 0:
        described = {
            "training": training.identity(corpus, tokens),
            "model": f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters",
            "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint, **corpus.source},
            "windows": {"train": len(windows), "validation": len(held), "tokens": len(tokens.ids)},
            "checkpoints": checkpoint_steps(training.last, training.per_octave),
            **history,
            "processes": rank_and_world()[1],
            "device": training.device,
            "started": started.isoformat(timespec="seconds"),
            "seconds_of_last_session": round(time.monotonic() - clock, 1),
            **provenance(),
        }
        text = json.dumps(described, indent=1, default=str, ensure_ascii=False)
        write_atomic(output / "training.json", lambda path: path.write_text(text))
        shutil.rmtree(output / "resume", ignore_errors=True)
    return output


def _clear(output: Path) -> None:
    """What an earlier training left in the folder."""
    (output / "training.json").unlink(missing_ok=True)
    for folder in (*output.glob("step-*"), output / "resume"):
        shutil.rmtree(folder, ignore_errors=True)
