"""The same statistic by Anisoscope and by what people use, each in an environment of its own, both shown to be right.

    python benchmarks/peers.py --environment metrics=/tmp/peers-metrics/bin/python lens=… nnsight=…
    python benchmarks/peers.py --peers usual sklearn          # without one of its own a peer runs in this environment

An environment is a virtual one with torch and what the peer is made of (`PEERS`). A BERT shaped as the packaged encoder
reads full windows of random ids, the same for both sides, in processes that take turns; a ratio is the peer's processor
time over ours, both with the forward passes; `beyond` is the same of the time beyond bare forward passes. The peers of
`CAUSAL` read a GPT-2 of that shape, whose sequences are of unequal lengths and padded on the right.

usual          mean cosine of all pairs a layer: all hidden states kept, U Uᵀ by numpy
eager          entropy of attention by head: `output_attentions=True` of eager attention
eager_causal   the same of a decoder, of real tokens alone
lens           entropy by head: TransformerLens' `run_with_cache`, whose bridge wants the model with a head
nnsight        mean cosine of all pairs: hidden states saved by a trace
isoscore       IsoScore by layer, by its package, of all hidden states
sklearn        mean cosine of all pairs by `cosine_similarity`
torchmetrics   mean cosine of all pairs: a metric object at each site, Σu as its state
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PEERS = {
    "usual": ("transformers", "A"),
    "eager": ("transformers", "entropy"),
    "eager_causal": ("transformers", "entropy"),
    "lens": ("transformer-lens", "entropy"),
    "nnsight": ("nnsight transformers", "A"),
    "isoscore": ("IsoScore transformers", "isoscore"),
    "sklearn": ("scikit-learn transformers", "A"),
    "torchmetrics": ("torchmetrics transformers", "A"),
}
CAUSAL = {"eager_causal"}
HOME = {"lens": "lens", "nnsight": "nnsight"}
"""Environments by name; others are in `metrics`."""
CLOSE = 2e-4
"""How far both sides may be apart: those of peers are float32 all through."""
Values = list[float]


def mask_of(ids: Any) -> Any:
    """Which ids [sequence, token] are real: 0 is padding, and no id that is drawn."""
    return ids > 0


def states_of(model: Any, ids: Any) -> list[Any]:
    """All hidden states of the corpus, layer by layer [vector, dim]."""
    import torch

    kept = []
    with torch.no_grad():
        for batch in ids:
            kept.append(
                [
                    x.flatten(0, 1)
                    for x in model(
                        input_ids=batch, output_hidden_states=True
                    ).hidden_states
                ]
            )
    return [torch.cat(layer) for layer in zip(*kept, strict=True)]


def all_pairs(x: Any) -> float:
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(u)
    return float(((u @ u.T).sum(dtype=np.float64) - n) / (n * (n - 1)))


def usual(model: Any, ids: Any) -> Values:
    return [all_pairs(x.numpy()) for x in states_of(model, ids)]


def sklearn(model: Any, ids: Any) -> Values:
    from sklearn.metrics.pairwise import cosine_similarity

    found = []
    for x in states_of(model, ids):
        n = len(x)
        found.append(
            float(
                (cosine_similarity(x.numpy()).sum(dtype=np.float64) - n) / (n * (n - 1))
            )
        )
    return found


def isoscore(model: Any, ids: Any) -> Values:
    from IsoScore.IsoScore import IsoScore

    return [float(IsoScore(x.numpy())) for x in states_of(model, ids)]


def torchmetrics(model: Any, ids: Any) -> Values:
    import torch
    from torchmetrics import Metric

    class Anisotropy(Metric):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.add_state(
                "total", torch.zeros(dim, dtype=torch.float64), dist_reduce_fx="sum"
            )
            self.add_state(
                "n", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum"
            )

        def update(self, x: Any) -> None:
            self.total += (x / x.norm(dim=1, keepdim=True)).sum(0).double()
            self.n += len(x)

        def compute(self) -> Any:
            return (self.total.square().sum() - self.n) / (self.n * (self.n - 1))

    metrics = [
        Anisotropy(model.config.hidden_size)
        for _ in range(model.config.num_hidden_layers + 1)
    ]
    with torch.no_grad():
        for batch in ids:
            states = model(input_ids=batch, output_hidden_states=True).hidden_states
            for metric, x in zip(metrics, states, strict=True):
                metric.update(x.flatten(0, 1))
    return [float(metric.compute()) for metric in metrics]


def nnsight(model: Any, ids: Any) -> Values:
    import torch
    from nnsight import NNsight

    traced, kept = NNsight(model), []
    with torch.no_grad():
        for batch in ids:
            with traced.trace(input_ids=batch, output_hidden_states=True):
                states = traced.output.hidden_states.save()
            kept.append([x.detach().flatten(0, 1) for x in states])
    return [all_pairs(torch.cat(layer).numpy()) for layer in zip(*kept, strict=True)]


def _entropy(weights: Any) -> Any:
    """Summed over rows, by head, of weights [sequence, head, query, key]."""
    return -(weights * weights.clamp(min=1e-30).log()).sum(-1).double().sum((0, 2))


def eager(model: Any, ids: Any) -> Values:
    import torch

    model.set_attn_implementation("eager")
    totals: Any = 0
    with torch.no_grad():
        for batch in ids:
            totals = totals + torch.stack(
                [
                    _entropy(w)
                    for w in model(input_ids=batch, output_attentions=True).attentions
                ]
            )
    return (totals / sum(batch.numel() for batch in ids)).flatten().tolist()  # type: ignore[no-any-return]


def eager_causal(model: Any, ids: Any) -> Values:
    import torch

    model.set_attn_implementation("eager")
    totals: Any = 0
    with torch.no_grad():
        for batch in ids:
            real = mask_of(batch)
            weights = model(
                input_ids=batch, attention_mask=real.long(), output_attentions=True
            ).attentions
            totals = totals + torch.stack(
                [_entropy(w * real[:, None, :, None]) for w in weights]
            )
    return (totals / sum(int(mask_of(batch).sum()) for batch in ids)).flatten().tolist()  # type: ignore[no-any-return]


def lens(model: Any, ids: Any) -> Values:
    import torch

    totals: Any = 0
    with torch.no_grad():
        for batch in ids:
            _, cache = model.run_with_cache(
                batch, names_filter=lambda name: name.endswith("hook_pattern")
            )
            totals = totals + torch.stack(
                [_entropy(cache[name]) for name in sorted(cache, key=_number)]
            )
    return (totals / sum(batch.numel() for batch in ids)).flatten().tolist()  # type: ignore[no-any-return]


def _number(name: str) -> int:
    return int(name.split(".")[1])


def ours(model: Any, ids: Any, statistic: str) -> Values:
    """The same by Anisoscope, intervals left out of what is compared but not of the time."""
    import torch

    from anisoscope.batch import Batch, Stream
    from anisoscope.measure.loop import run_pass
    from anisoscope.measure.settings import Settings

    metric = {"A": "mean_cosine", "entropy": "attention", "isoscore": "spectrum"}[
        statistic
    ]
    batches = []
    for i, batch in enumerate(ids):
        real = mask_of(batch)
        unit = torch.arange(len(batch)) + i * len(batch)
        stream = Stream(
            real, torch.zeros_like(real), torch.zeros(len(batch), dtype=torch.long)
        )
        batches.append(Batch(inputs_of(batch), unit, {stack_of(model): stream}))
    records = run_pass(
        model, batches, Settings(metrics=(metric,), tokens=("all",), sample=0)
    ).records()
    name = {
        "A": "mean_cosine",
        "entropy": "attention.entropy",
        "isoscore": "spectrum.isoscore",
    }[statistic]
    return records[
        (records["metric"] == name) & records["site"].isin(["hidden", "attention"])
    ]["value"].tolist()


def inputs_of(batch: Any) -> dict[str, Any]:
    """What a model is called with; a mask only where something is padding, as the peers do."""
    real = mask_of(batch)
    return {"input_ids": batch} | (
        {} if bool(real.all()) else {"attention_mask": real.long()}
    )


def stack_of(model: Any) -> str:
    return "decoder" if model.config.model_type == "gpt2" else "encoder"


def bare(model: Any, ids: Any) -> Values:
    import torch

    with torch.no_grad():
        for batch in ids:
            model(**inputs_of(batch))
    return []


def loaded(folder: Path, peer: str) -> Any:
    from transformers import AutoModel, BertForMaskedLM, BertModel

    if (folder / "causal").is_file():
        return AutoModel.from_pretrained(folder).eval()
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    if peer != "lens":
        return model
    from transformer_lens.model_bridge import TransformerBridge

    whole = BertForMaskedLM(model.config).eval()
    whole.bert.load_state_dict(model.state_dict())
    whole.save_pretrained(folder / "whole")
    return TransformerBridge.boot_transformers(
        str(folder / "whole"), hf_model=whole, tokenizer=None
    )


def serve(name: str, folder: Path, statistic: str) -> None:
    """A process of one side: a line in asks for a turn, a line out gives seconds and values."""
    import torch

    torch.set_num_threads(1)
    answers = sys.stdout
    sys.stdout = sys.stderr
    ids = list(torch.from_numpy(np.load(folder / "ids.npy")))
    model = loaded(folder, name)
    case: Callable[[Any, Any], Values] = (
        globals()[name] if name != "ours" else lambda m, i: ours(m, i, statistic)
    )
    for line in sys.stdin:
        do, given = (
            (bare, ids)
            if line.strip() == "bare"
            else (case, ids[:1] if line.strip() == "warm" else ids)
        )
        wall, processor = time.perf_counter(), time.process_time()
        values = do(model, given)
        spent = {
            "processor": time.process_time() - processor,
            "wall": time.perf_counter() - wall,
        }
        print(
            json.dumps({"seconds": spent, "values": values}), file=answers, flush=True
        )


class Side:
    """The process of one side."""

    def __init__(self, python: str, name: str, folder: Path, statistic: str) -> None:
        command = [python, __file__, "--serve", name, str(folder), statistic]
        self.errors = tempfile.TemporaryFile("w+")  # as long as the process  # noqa: SIM115
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True
        )

    def turn(self, what: str) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(f"{what}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise ChildProcessError(self.errors.read().strip().splitlines()[-1])
        return json.loads(line)  # type: ignore[no-any-return]

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def compared(peer: str, python: str, folder: Path, pairs: int) -> dict[str, Any]:
    from pairs import CLOCKS, middle

    statistic = PEERS[peer][1]
    mine, theirs = (
        Side(sys.executable, "ours", folder, statistic),
        Side(python, peer, folder, statistic),
    )
    turns = []
    try:
        for side in (mine, theirs):
            side.turn("warm")
        for _ in range(pairs):
            turns.append((mine.turn("bare"), mine.turn("go"), theirs.turn("go")))
    finally:
        mine.end()
        theirs.end()
    apart = float(
        np.abs(np.subtract(turns[-1][1]["values"], turns[-1][2]["values"])).max()
    )
    seconds = [[part["seconds"] for part in turn] for turn in turns]
    row = {
        c: middle([theirs[c] / mine[c] for _, mine, theirs in seconds]) for c in CLOCKS
    }
    of_bare, of_ours, of_theirs = (
        statistics.median(turn[i]["processor"] for turn in seconds) for i in range(3)
    )
    row |= {"seconds": [round(x, 3) for x in (of_bare, of_ours, of_theirs)]}  # type: ignore[dict-item]
    beyond = (
        (of_theirs - of_bare) / (of_ours - of_bare)
        if of_ours > 1.01 * of_bare
        else None
    )
    return row | {
        "beyond": beyond and round(beyond, 1),
        "apart": apart,
        "agree": apart <= CLOSE,
        "pairs": pairs,
    }


def prepare(
    folder: Path,
    tokens: int,
    window: int,
    layers: int,
    width: int,
    *,
    causal: bool = False,
) -> None:
    """Write a model with random weights and the ids that both sides read; causal: GPT-2, and unequal lengths."""
    import torch
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    torch.manual_seed(0)
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // 32,
    }
    if causal:
        GPT2Model(
            GPT2Config(vocab_size=2000, n_positions=window, use_cache=False, **sizes)
        ).save_pretrained(folder)
        (folder / "causal").touch()
    else:
        config = BertConfig(
            vocab_size=2000,
            intermediate_size=4 * width,
            max_position_embeddings=window,
            **sizes,
        )
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    batch = max(1, min(2048, tokens) // window)
    count = max(1, tokens // (batch * window))
    ids = torch.randint(5, 2000, (count, batch, window))
    if causal:
        lengths = (
            torch.linspace(window, max(1, window // 4), batch).round().unsqueeze(1)
        )
        ids = ids * (torch.arange(window) < lengths)
    np.save(folder / "ids.npy", ids.numpy())


def main(argv: Sequence[str] | None = None) -> None:
    from pairs import keep, options, told

    parser = options(__doc__)
    parser.add_argument(
        "--peers", nargs="+", choices=sorted(PEERS), default=list(PEERS)
    )
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    given = parser.parse_args(argv)
    places = dict(place.split("=", 1) for place in given.environment)
    with tempfile.TemporaryDirectory() as name:
        folders = {
            causal: Path(name, "causal" if causal else "full")
            for causal in (False, True)
        }
        for causal, folder in folders.items():
            folder.mkdir()
            prepare(
                folder,
                given.tokens,
                given.window,
                given.layers,
                given.width,
                causal=causal,
            )
        for peer in given.peers:
            folder = folders[peer in CAUSAL]
            python = places.get(HOME.get(peer, "metrics"), sys.executable)
            row: dict[str, Any] = {
                "peer": peer,
                "of": PEERS[peer][1],
                "packages": PEERS[peer][0],
                "threads": 1,
            }
            row |= {"tokens": given.tokens, "window": given.window}
            try:
                row |= compared(peer, python, folder, given.pairs)
                beyond = (
                    row["beyond"] and f"{row['beyond']:.1f} × beyond the forward passes"
                )
                agreed = f"apart by {row['apart']:.1e}" + (
                    "" if row["agree"] else ": NOT THE SAME STATISTIC"
                )
                print(
                    f"{peer:12s} {row['of']:8s} {told(row)} × ours; {beyond}; {agreed}",
                    flush=True,
                )
            except ChildProcessError as error:
                row |= {"error": str(error)}
                print(f"{peer:12s} {error}", flush=True)
            keep(given.results, "peers", [row], ("peer", "tokens", "window"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
    else:
        main()
