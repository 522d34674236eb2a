"""Train language models from scratch into a series of checkpoints in hub format.

<output>/step-0, step-1, step-2, step-3, step-4, step-6 … step-N   model and tokenizer at log-spaced steps
<output>/resume/checkpoint-K   the Trainer's own state, only during training
<output>/identity.json         what is trained: another training in this folder is refused
<output>/training.json         settings, seeds, corpus, losses, versions; written last
"""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import MaskedLMOutput

from anisoscope.measure.distributed import rank_and_world
from anisoscope.progress import Progress
from anisoscope.provenance import describe_environment
from anisoscope.store import RunFolder, write_json
from anisoscope_papers.origin import is_code_of
from anisoscope_papers.training.fit import (
    Fitting,
    Material,
    check_training_device,
    fit,
    keep,
)
from anisoscope_papers.training.recipe import ModelSize, Task, Training
from anisoscope_papers.training.text import (
    UNMASKED,
    Examples,
    hash_tokenizer,
    open_training_corpus,
    prepare,
)

LOGS = 200
"""Entries of the loss in a training."""


def choose_checkpoint_steps(last: int, per_octave: int) -> list[int]:
    """Return the steps whose checkpoints are kept: 0, `per_octave` of them for each doubling, and the last.

    >>> choose_checkpoint_steps(20, 2)
    [0, 1, 2, 3, 4, 6, 8, 11, 16, 20]
    """
    steps = {0, last}
    exponent = 0
    # 2^(i / per_octave): evenly spaced on a logarithmic scale. Rounding repeats small
    # steps, and a set holds each once.
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
    progress: Progress = lambda _done, _total: None,
) -> Path:
    """Train a language model into the folder `output`, and return it.

    With `resume`, a finished training of the same identity is left as it is. OutputError if the folder holds another
    training; Interrupted on SIGINT or SIGTERM, after the state was saved.
    """
    check_training_device(training.device)
    rank, world = rank_and_world()
    corpus = open_training_corpus(
        training.corpus,
        split=training.split,
        column=training.column,
        limit=training.limit,
    )
    size = training.size
    tokenizer, tokens = prepare(
        corpus, training.task, size.vocabulary, size.window, training.vocabulary
    )
    identity = training.identity(corpus.fingerprint, tokens.vocabulary) | {
        "tokenizer": hash_tokenizer(tokenizer)
    }
    # One process writes for all of them.
    if rank == 0:
        _begin(output, identity, resume=resume, overwrite=overwrite)
    # Written last: the training is finished. It was checked above that it is this one.
    if (output / "training.json").exists():
        if rank == 0:
            shutil.rmtree(output / "resume", ignore_errors=True)
        return output
    started = datetime.now(UTC)
    windows, held = tokens.parts()
    examples = Examples(tokens, windows, training.last * size.batch, training.order)
    # In the order of the text, and masked from a seed of its own: its loss at different
    # steps can be compared.
    validation = Examples(tokens, held, len(held), 0, shuffled=False)
    model = build_untrained(training.task, size, tokenizer, training.seed)
    steps = choose_checkpoint_steps(training.last, training.per_octave)
    # Before any step: the start that others compare with.
    keep(output / "step-0", model, tokenizer)

    def on_step(step: int, last: int, model: Any) -> None:
        """Save a checkpoint if this step is kept, and report progress towards the `last` step."""
        if step in steps:
            keep(output / f"step-{step}", model, tokenizer)
        if rank == 0:
            progress(step, last)

    # The validation loss is taken at every checkpoint, so that a number measured there
    # has one.
    how = Fitting(
        build_settings(training, world),
        evaluated=frozenset(steps),
        share=training.share,
    )
    history = fit(
        Material(model, tokenizer, examples, validation, dict),
        how,
        on_step,
        output / "resume",
    )
    if rank == 0:
        described = {
            "training": identity,
            "model": f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters",
            "corpus": {
                "name": corpus.name,
                "fingerprint": corpus.fingerprint,
                **corpus.source,
            },
            "windows": {
                "train": len(windows),
                "validation": len(held),
                "tokens": len(tokens.ids),
            },
            "checkpoints": steps,
            **history,
            "processes": world,
            "device": training.device,
            "started": started.isoformat(timespec="seconds"),
            **describe_environment(),
        }
        write_json(output / "training.json", described)
        shutil.rmtree(output / "resume", ignore_errors=True)
    return output


def _begin(
    output: Path, identity: dict[str, Any], *, resume: bool, overwrite: bool
) -> None:
    """Claim the folder `output` for the training with this identity.

    With `resume`, it may hold this one already; with `overwrite`, what it holds is removed. Else OutputError if it is
    not free.
    """
    # A folder from before code was hashed noted its version: if that counts as equal,
    # it is compared as it was noted.
    noted = (RunFolder(output).identity() or {}).get("code")
    as_noted = (
        identity | {"code": noted} if is_code_of(noted, identity["code"]) else identity
    )
    RunFolder.start(output, as_noted, resume=resume, overwrite=overwrite)
    if overwrite:
        (output / "training.json").unlink(missing_ok=True)
        for folder in (*output.glob("step-*"), output / "resume"):
            shutil.rmtree(folder, ignore_errors=True)


def build_settings(training: Training, world: int = 1) -> dict[str, Any]:
    """Return the fields of `TrainingArguments` for a training in `world` processes (one per device)."""
    # `batch` is that of a step, over all devices and parts, so that the recipe does not
    # depend on the machine.
    rows = training.size.batch // (world * training.accumulate)
    return {
        "max_steps": training.last,
        "per_device_train_batch_size": rows,
        "per_device_eval_batch_size": 2 * rows,
        "gradient_accumulation_steps": training.accumulate,
        "learning_rate": training.size.rate,
        "bf16": training.dtype == "bfloat16",
        "fp16": training.dtype == "float16",
        "seed": training.seed,
        "data_seed": training.order,
        "use_cpu": training.device == "cpu",
        # `Examples` shuffles itself, by seed and number, and must be read in order.
        "train_sampling_strategy": "sequential",
        "logging_steps": max(1, training.last // LOGS),
        "report_to": list(training.report_to),
    }


def build_untrained(task: Task, size: ModelSize, tokenizer: Any, seed: int) -> Any:
    """Build a BERT or GPT-2 of this size in training mode, with the library's initialisation drawn from `seed`."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": size.window,
    }
    if task == "masked-lm":
        shape |= dict.fromkeys(
            ("hidden_dropout_prob", "attention_probs_dropout_prob"), size.dropout
        )
        shape |= {
            "intermediate_size": 4 * size.width,
            "pad_token_id": tokenizer.pad_token_id,
        }
        return BertForMaskedLM(transformers.BertConfig(**shape)).train()
    shape |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), size.dropout)
    shape |= dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.eos_token_id)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**shape, use_cache=False)
    ).train()


class BertForMaskedLM(transformers.BertForMaskedLM):  # type: ignore[no-untyped-call]  # no types in its __init_subclass__
    """BERT of transformers, which computes scores only at masked positions if `labels` are given; the
    loss is the same.
    """

    def forward(
        self,
        input_ids: Int[Tensor, "sequence token"] | None = None,
        labels: Int[Tensor, "sequence token"] | None = None,
        num_items_in_batch: Any = None,
        **inputs: Any,
    ) -> MaskedLMOutput:
        """Return the loss if `labels` are given, else the output of transformers' BERT.

        `labels`: the token hidden at each masked position, −100 elsewhere. `num_items_in_batch`: the number of masked
        positions in the whole step, if a step has several batches (then their losses add up to its mean).
        """
        if labels is None:
            return super().forward(input_ids, **inputs)  # type: ignore[no-any-return]
        hidden = self.bert(input_ids, **inputs).last_hidden_state
        # [sequence, token]: with 15 % of the tokens masked, the head over the
        # vocabulary, a large part of a small model's work, is computed for these alone.
        at = labels != UNMASKED
        total = functional.cross_entropy(
            self.cls(hidden[at]).float(), labels[at], reduction="sum"
        )
        # A batch in which nothing is masked has loss 0, not 0 / 0.
        count = at.sum() if num_items_in_batch is None else num_items_in_batch
        return MaskedLMOutput(
            loss=total / torch.as_tensor(count, device=total.device).clamp(min=1)
        )
