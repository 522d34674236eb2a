"""What a training step is made of: processor time of batches, model, penalty, optimiser, and what goes on around them.

    python papers/benchmarks/training.py --steps 100

Steps are those of `anisoscope train`, of the recipes that it has when nothing else is said; each after the first few is
divided into its parts by clocks around them. `rest` is the loop of the library, the check of the loss and the log.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from time import process_time
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from pairs import keep, options, with_threads
from transformers import TrainerCallback

from anisoscope.data.opening import open_labelled
from anisoscope_papers.training.classifier import Buckets
from anisoscope_papers.training.classifier_parts import build_parts
from anisoscope_papers.training.entropy_penalty import EntropyPenalty
from anisoscope_papers.training.fit import Fitting, Material, fit
from anisoscope_papers.training.language_model import build_settings, build_untrained
from anisoscope_papers.training.recipe import ClassifierRecipe, Training
from anisoscope_papers.training.text import Examples, open_training_corpus, prepare

WARM = 5  # steps that are not counted
PARTS = ("batches", "forward", "backward", "penalty", "optimiser")
CASES = ("attention", "attention, penalty", "encoder", "encoder, penalty", "masked LM")


class Clocks(TrainerCallback):
    """Processor seconds of the parts of steps after the first few."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.steps = 0

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            begun = process_time()
            try:
                return function(*given, **named)
            finally:
                self.spent[part] += process_time() - begun

        return timed

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        optimizer = given["optimizer"]
        optimizer.step = self.around("optimiser", optimizer.step)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        if state.global_step == WARM:
            self.spent.clear()
            self.begun = process_time()
        self.steps = state.global_step - WARM
        self.ended = process_time()


@contextmanager
def clocks_around(clocks: Clocks, made: Material) -> Iterator[Material]:
    """The same material, and the classes that a step passes through, with a clock around each part."""
    whole = (torch.Tensor, "backward", "backward"), (EntropyPenalty, "value", "penalty")
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in whole]
    for (owner, name, function), (_, _, part) in zip(kept, whole, strict=True):
        setattr(owner, name, clocks.around(part, function))
    made.model.forward = clocks.around("forward", made.model.forward)
    fetch = getattr(made.train, "__getitems__", None)
    if fetch is not None:  # examples are made when they are asked for
        made.train.__getitems__ = clocks.around("batches", fetch)
    try:
        yield replace(made, collate=clocks.around("batches", made.collate))
    finally:
        del made.model.forward
        for owner, name, function in kept:
            setattr(owner, name, function)


def case_of(name: str, corpus: str, steps: int) -> tuple[Material, Fitting]:
    """Material and fitting of a case, for so many steps."""
    if name == "masked LM":
        training = Training(steps=steps, limit=20)
        text = open_training_corpus(training.corpus, limit=training.limit)
        tokenizer, tokens = prepare(
            text, training.task, training.size.vocabulary, training.size.window
        )
        examples = Examples(tokens, tokens.parts()[0], steps * training.size.batch, 0)
        model = build_untrained(training.task, training.size, tokenizer, 0)
        return Material(model, tokenizer, examples, None, dict), Fitting(
            build_settings(training), share=training.share
        )
    model = "attention" if name.startswith("attention") else "builtin:minilm"
    recipe = ClassifierRecipe(corpus=corpus, model=model).filled()
    parts = build_parts(recipe, open_labelled(corpus))
    settings = {
        "max_steps": steps,
        "per_device_train_batch_size": recipe.batch,
        "learning_rate": recipe.rate,
        "weight_decay": recipe.decay,
        "max_grad_norm": recipe.clip,
        "logging_strategy": "no",
        "use_cpu": True,
    }
    order = (
        Buckets(parts.encoded["train"].lengths, recipe.batch or 1, 0)
        if recipe.buckets
        else None
    )
    return parts.material, Fitting(
        settings, penalty=EntropyPenalty(0.1 * name.endswith("penalty")), order=order
    )


def shares(name: str, corpus: str, steps: int) -> dict[str, Any]:
    """Milliseconds of a step, and the share of each part in it."""
    made, how = case_of(name, corpus, steps + WARM)
    clocks = Clocks()
    with clocks_around(clocks, made) as timed:
        fit(
            timed,
            replace(how, evaluated=frozenset(), callbacks=(clocks,)),
            lambda *_: None,
        )
    whole = clocks.ended - clocks.begun
    found = {part: round(clocks.spent[part] / whole, 4) for part in PARTS}
    return (
        {"ms a step": round(1e3 * whole / clocks.steps, 2)}
        | found
        | {"rest": round(1 - sum(found.values()), 4)}
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--corpus", default="synthetic:3", help="of the classifiers")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    given = parser.parse_args(argv)
    for threads in given.threads:
        rows = []
        with with_threads(threads):
            for case in given.cases:
                found = shares(case, given.corpus, given.steps)
                rows.append(
                    {"case": case, "threads": threads, "steps": given.steps} | found
                )
                told = ", ".join(
                    f"{part} {found[part]:.1%}" for part in (*PARTS, "rest")
                )
                print(
                    f"{case:20s} {found['ms a step']:8.2f} ms a step: {told}",
                    flush=True,
                )
        keep(given.results, "training", rows, ("case", "threads"))


if __name__ == "__main__":
    main()
