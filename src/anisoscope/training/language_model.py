"""Language models trained from scratch into a series of checkpoints in hub format.

<output>/step-0, step-1, step-2, step-3, step-4, step-6 … step-N   model and tokenizer at log-spaced steps
<output>/resume/checkpoint-K   the Trainer's own state, while the training is under way
<output>/identity.json         what is trained: another training is refused
<output>/training.json         settings, seeds, corpus, losses, versions; written last
"""

import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from anisoscope.measure.distributed import rank_and_world
from anisoscope.progress import Progress
from anisoscope.provenance import provenance
from anisoscope.store import RunFolder, write_atomic
from anisoscope.training.presets import Training, untrained
from anisoscope.training.vocabulary import Vocabulary, open_training_corpus, prepare
from anisoscope.training.windows import Examples


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
    """Remove what an earlier training left in the folder."""
    (output / "training.json").unlink(missing_ok=True)
    for folder in (*output.glob("step-*"), output / "resume"):
        shutil.rmtree(folder, ignore_errors=True)
