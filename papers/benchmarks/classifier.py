"""Training throughput of the attention classifier against a plain PyTorch loop, in one run, at equal accuracy.

    python papers/benchmarks/classifier.py                  # hatexplain where ANISOSCOPE_DATA is set, else synthetic:3
    python papers/benchmarks/classifier.py --corpus yelphat --layers 2 --epochs 3

The plain loop is the same model written with `nn.MultiheadAttention`, from the same first weights, on the same examples
in batches of 64 in the order of the corpus, padded, with torch's `Adam`; all rows of all layers are computed, and the
attention weights returned, as is the module's default (`--no-weights`: not, which is quicker). Both train all
parameters, word vectors included. Epochs of both take turns, so that other work on the machine slows both; time is
processor time of one thread, without validation. Accuracy is that on the test split after the last epoch.
"""

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from pairs import CLOCKS, keep, middle, options, seconds, told, with_threads
from torch import Tensor, nn

from anisoscope.classes.pooling import predict_classes
from anisoscope.data.encoding import Encoded, pad_batch
from anisoscope.data.opening import open_labelled
from anisoscope_papers.networks.attention_classifier import make_sinusoids
from anisoscope_papers.training.classifier import Buckets
from anisoscope_papers.training.classifier_parts import Parts, build_parts
from anisoscope_papers.training.entropy_penalty import EntropyPenalty
from anisoscope_papers.training.fit import Fitting, fit
from anisoscope_papers.training.recipe import ClassifierRecipe

AIM = 2.5
BATCH, RATE = 64, 1e-3


class Plain(nn.Module):
    """The model as it is usually written."""

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        layers: int,
        classes: int,
        longest: int,
        *,
        weights: bool,
    ) -> None:
        super().__init__()
        self.weights = weights
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.register_buffer("positions", make_sinusoids(longest, dim))
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(dim, 1, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions[: ids.shape[1]]
        for attention in self.attention:
            mixed, _ = attention(
                x, x, x, key_padding_mask=~mask, need_weights=self.weights
            )
            x = x + mixed
            x = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
        return self.head(x[:, 0])

    def take(self, parts: Parts) -> "Plain":
        """The first weights of our model."""
        ours = parts.model.attention_classifier
        state = {
            "embedding.weight": ours.embeddings.weight,
            "positions": self.positions,
        }
        for i, block in enumerate(ours.blocks):
            for name, linear in (
                ("in_proj_", block.attention.in_proj),
                ("out_proj.", block.attention.out_proj),
            ):
                state |= {
                    f"attention.{i}.{name}weight": linear.weight,
                    f"attention.{i}.{name}bias": linear.bias,
                }
        state |= {
            f"head.{name}": value
            for name, value in parts.model.classifier.named_parameters()
        }
        self.load_state_dict(state)
        return self


def plain_epoch(model: Plain, optimizer: torch.optim.Optimizer, train: Encoded) -> None:
    model.train()
    for first in range(0, len(train), BATCH):
        batch = pad_batch(train.rows[first : first + BATCH], 0)
        optimizer.zero_grad()
        logits = model(batch["input_ids"], batch["attention_mask"].bool())
        nn.functional.cross_entropy(logits, batch["labels"]).backward()
        optimizer.step()


@torch.no_grad()
def plain_accuracy(model: Plain, test: Encoded) -> float:
    model.eval()
    right = 0
    for first in range(0, len(test), BATCH):
        batch = pad_batch(test.rows[first : first + BATCH], 0)
        logits = model(batch["input_ids"], batch["attention_mask"].bool())
        right += int((logits.argmax(-1) == batch["labels"]).sum())
    return right / len(test)


def train_ours(
    parts: Parts, seed: int, epochs: int, plain: Callable[[], None]
) -> list[dict[str, float]]:
    """Seconds of each of our epochs by clock, after which the plain loop has its turn."""
    steps = -(-len(parts.encoded["train"]) // BATCH)
    turns, begun = [], [{name: clock() for name, clock in CLOCKS.items()}]

    def on_step(done: int, _total: int, _model: object) -> None:
        if done % steps == 0:
            turns.append(
                {name: clock() - begun[0][name] for name, clock in CLOCKS.items()}
            )
            plain()
            begun[0] = {name: clock() for name, clock in CLOCKS.items()}

    settings = {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": BATCH,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "logging_strategy": "no",
        "save_strategy": "no",
        "seed": seed,
        "use_cpu": True,
    }
    order = Buckets(parts.encoded["train"].lengths, BATCH, seed)
    fit(
        parts.material,
        Fitting(settings, penalty=EntropyPenalty(0.0), order=order),
        on_step,
    )
    return turns


def compare(
    recipe: ClassifierRecipe, epochs: int, *, weights: bool
) -> dict[str, object]:
    """Utterances a second of both, their ratio epoch by epoch, and their accuracy."""
    torch.manual_seed(recipe.seed)
    opened = open_labelled(recipe.corpus)
    parts = build_parts(recipe, opened)
    config, train, test = (
        parts.model.config,
        parts.encoded["train"],
        parts.encoded["test"],
    )
    sizes = (
        config.vocab_size,
        config.hidden_size,
        recipe.layers,
        len(opened.labels),
        config.max_position_embeddings,
    )
    plain = Plain(*sizes, weights=weights).take(parts)
    optimizer = torch.optim.Adam(plain.parameters(), lr=RATE)
    theirs: list[dict[str, float]] = []

    def plain_turn() -> None:
        theirs.append(seconds(lambda: plain_epoch(plain, optimizer, train)))

    ours = train_ours(parts, recipe.seed, epochs, plain_turn)
    truth = test.labels
    accuracy = sum(
        a == b
        for a, b in zip(predict_classes(parts.model, test, 0), truth, strict=True)
    ) / len(truth)
    times = {
        clock: middle([b[clock] / a[clock] for a, b in zip(ours, theirs, strict=True)])
        for clock in CLOCKS
    }
    rates = [
        len(train) / statistics.median(each["processor"] for each in side)
        for side in (ours, theirs)
    ]
    print(
        f"{recipe.corpus}, {recipe.layers} layers, {parts.described['parameters']:,} parameters, {epochs} epochs:"
    )
    print(f"  ours  {rates[0]:8,.0f} utterances/s   test accuracy {accuracy:.3f}")
    reached = plain_accuracy(plain, test)
    print(f"  plain {rates[1]:8,.0f} utterances/s   test accuracy {reached:.3f}")
    print(f"  {told(times)} times as many; aim {AIM}", flush=True)
    counted = {"pairs": epochs, "utterances a second": [round(rate) for rate in rates]}
    return (
        counted
        | {"accuracy": [round(accuracy, 4), round(reached, 4)], "aim": AIM}
        | times
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--corpus",
        default="hatexplain" if os.environ.get("ANISOSCOPE_DATA") else "synthetic:3",
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vectors", default="builtin:minilm")
    parser.add_argument(
        "--no-weights",
        action="store_true",
        help="the plain loop does not ask for attention weights",
    )
    given = parser.parse_args(argv)
    for threads in given.threads:
        for layers in given.layers:
            recipe = ClassifierRecipe(
                corpus=given.corpus,
                layers=layers,
                vectors=given.vectors,
                seed=given.seed,
            )
            with with_threads(threads):
                found = compare(recipe, given.epochs, weights=not given.no_weights)
            row = {
                "corpus": given.corpus,
                "layers": layers,
                "weights": not given.no_weights,
                "threads": threads,
            }
            keep(given.results, "classifier", [row | found], (*row,))


if __name__ == "__main__":
    main()
