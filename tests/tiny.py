"""Tiny random models of every text architecture, padded inputs for them, and a plan of small documents."""

import atexit
import json
import shutil
import tempfile
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from unittest.mock import patch

import numpy as np
import torch

from anisoscope.batch import Batch, Stream
from anisoscope.data.plans import hash_parts

VOCABULARY = 100
LAYERS, HEADS, HEAD_DIM, WINDOW = 3, 4, 8, 4
SPECIAL_EVERY = 11
LENGTHS = {
    "encoder": (12, 9, 5),
    "decoder": (7, 10, 4),
}  # real tokens of each sequence; two stacks differ on purpose

_FLAT = {
    "hidden_size": HEADS * HEAD_DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
_MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = _FLAT | {"num_key_value_heads": 2, "head_dim": HEAD_DIM} | _MARKS
_SLIDING = _GROUPED | {"sliding_window": WINDOW, "query_pre_attn_scalar": 20}
_T5 = {
    "num_heads": HEADS,
    "d_ff": 48,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
}

ARCHITECTURES = {
    "bert": ("BertConfig", _FLAT),
    "roberta": ("RobertaConfig", _FLAT | {"pad_token_id": 0}),
    "modernbert": (
        "ModernBertConfig",
        _FLAT
        | _MARKS
        | {
            "local_attention": WINDOW,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {
            "n_embd": 32,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_positions": 64,
            "vocab_size": VOCABULARY,
        }
        | _MARKS,
    ),
    "gpt_neox": ("GPTNeoXConfig", _FLAT | _MARKS | {"rotary_pct": 0.5}),
    "llama": ("LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2Config", _FLAT | _MARKS | {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3Config", _GROUPED),
    "gemma": ("GemmaConfig", _GROUPED),
    "gemma2": ("Gemma2Config", _SLIDING | {"attn_logit_softcapping": 3.0}),
    "gemma3": (
        "Gemma3TextConfig",
        _SLIDING
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "t5": ("T5Config", _T5 | {"d_model": 32, "d_kv": HEAD_DIM, "num_layers": LAYERS}),
    "byt5": (
        "T5Config",
        _T5
        | {
            "d_model": 24,
            "d_kv": HEAD_DIM,
            "num_layers": 3,
            "num_decoder_layers": 1,
            "feed_forward_proj": "gated-gelu",
        },
    ),
}
"""Architecture → (configuration class, its arguments)."""

CAUSAL = {"gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"}
TWO_STACKS = {"t5", "byt5"}
FINAL_NORM = set(ARCHITECTURES) - {"bert", "roberta"}


def build(name, dtype=torch.float64, **changes):
    """A new random model in evaluation mode; no parameter is constant, so a forgotten bias or norm shows."""
    import transformers

    cls, arguments = ARCHITECTURES[name]
    torch.manual_seed(7)
    model = transformers.AutoModel.from_config(
        getattr(transformers, cls)(**arguments | changes)
    ).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.25 * torch.randn_like(parameter))
    return model.to(dtype)


model = cache(build)
"""The same, built once: not to be changed."""


def stack_names(name):
    return (
        ("encoder", "decoder")
        if name in TWO_STACKS
        else ("decoder",)
        if name in CAUSAL
        else ("encoder",)
    )


def padded(name, side):
    """(inputs, {stack: mask}); `side` is left, right, or none: whole sequences and no mask at all."""
    inputs, real = {}, {}
    for stack in stack_names(name):
        prefix = "decoder_" if stack == "decoder" and name in TWO_STACKS else ""
        lengths = torch.tensor(LENGTHS["decoder" if prefix else "encoder"])
        width = int(lengths.max())
        ids = torch.randint(
            3,
            VOCABULARY,
            (len(lengths), width),
            generator=torch.Generator().manual_seed(width),
        )
        mask = torch.arange(width) < lengths[:, None]
        mask = (
            torch.ones_like(mask)
            if side == "none"
            else mask.flip(1)
            if side == "left"
            else mask
        )
        inputs[f"{prefix}input_ids"] = torch.where(mask, ids, 0)
        if side != "none":
            inputs[f"{prefix}attention_mask"] = mask.long()
        real[stack] = mask
    return inputs, real


@contextmanager
def exact_softmax():
    """Softmax in the dtype of its input: several families' eager attention goes through float32 whatever the model's
    dtype.
    """
    softmax = torch.nn.functional.softmax

    def exact(x, dim=None, dtype=None, **rest):
        return softmax(
            x, dim=dim, dtype=x.dtype if x.dtype == torch.float64 else dtype, **rest
        )

    with patch.object(torch.nn.functional, "softmax", exact):
        yield


@cache
def eager(name):
    """The same weights with the family's own eager attention, and hidden states as the blocks leave them."""
    from transformers import PreTrainedModel

    twin = deepcopy(model(name))
    twin.set_attn_implementation("eager")
    for part in twin.modules():
        if isinstance(part, PreTrainedModel):
            part.config.tie_last_hidden_states = False
    return twin


class Plan:
    """Documents [unit][token] cut into windows and batched: what a corpus hands to the loop, in any batch size and
    order.

    `left` pads on the left; special are the first token of each document and every `SPECIAL_EVERY`th id; frequency
    bins follow the id.
    """

    def __init__(
        self,
        documents,
        batch=4,
        window=9,
        order=None,
        units=None,
        decoder=False,
        left=False,
    ):
        chosen = range(len(documents)) if units is None else units
        rows = [(u, s) for u in chosen for s in range(0, len(documents[u]), window)]
        rows = (
            rows
            if order is None
            else [
                rows[i]
                for i in torch.randperm(
                    len(rows), generator=torch.Generator().manual_seed(order)
                )
            ]
        )
        self._make = partial(_batch, documents, window, decoder, left)
        self.batches = [rows[i : i + batch] for i in range(0, len(rows), batch)]
        self.tokens = [
            sum(len(documents[u][s : s + window]) for u, s in rows)
            for rows in self.batches
        ]
        self.fingerprint = hash_parts([documents, self.batches, decoder, left])

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self._make(self.batches[index])


def _batch(documents, window, decoder, left, rows):
    pieces = [documents[u][s : s + window] for u, s in rows]
    width = max(map(len, pieces))
    ids, mask = (
        torch.zeros(len(rows), width, dtype=torch.int64),
        torch.zeros(len(rows), width, dtype=torch.bool),
    )
    for row, piece in enumerate(pieces):
        place = slice(width - len(piece), width) if left else slice(0, len(piece))
        ids[row, place], mask[row, place] = torch.tensor(piece), True
    shift = torch.tensor([width - len(piece) if left else 0 for piece in pieces])
    start = torch.tensor([s for _, s in rows]) - shift
    special = mask & (
        (start[:, None] + torch.arange(width) == 0) | (ids % SPECIAL_EVERY == 0)
    )
    stream = Stream(
        mask, special, start, torch.where(mask & ~special, ids * 5 // VOCABULARY, -1)
    )
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    streams = dict.fromkeys(("encoder", "decoder"), stream)
    if decoder:
        inputs |= {f"decoder_{name}": value for name, value in inputs.items()}
    return Batch(inputs, torch.tensor([u for u, _ in rows]), streams)


def documents(units=30, seed=0, shortest=1, longest=24):
    """Units of random length and their own favourite tokens."""
    g = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(units):
        length = int(torch.randint(shortest, longest + 1, (), generator=g))
        centre = int(torch.randint(3, VOCABULARY - 20, (), generator=g))
        made.append(torch.randint(centre, centre + 20, (length,), generator=g).tolist())
    return made


def measure(model, batches, metrics=(), **settings):
    """The long table of a pass over batches as a caller hands them over."""
    from anisoscope.measure.inputs import GivenInputs
    from anisoscope.measure.loop import run_pass
    from anisoscope.measure.settings import Settings

    return run_pass(
        model, GivenInputs(batches, model), Settings(metrics=tuple(metrics), **settings)
    ).records()


WORDS = [f"w{i}" for i in range(60)]


def series(folder):
    """In a folder: two seeds of three checkpoints of a tiny random encoder of `WORDS`; a text of short documents."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    tokenizer = Tokenizer(
        models.WordLevel(
            {w: i for i, w in enumerate((*marks, *WORDS))}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=16, **names
    )
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    for seed in (0, 1):
        for step in (0, 1, 10):
            torch.manual_seed(seed)
            model = BertModel(
                BertConfig(**sizes, vocab_size=64, max_position_embeddings=16),
                add_pooling_layer=False,
            )
            for name, parameter in model.named_parameters():
                if "query.bias" in name or "key.bias" in name:
                    parameter.data += step / 10 * torch.randn_like(parameter)
            place = folder / "checkpoints" / f"seed-{seed}" / f"step-{step}"
            model.save_pretrained(place)
            fast.save_pretrained(place)
    rng = np.random.default_rng(0)
    texts = (" ".join(rng.choice(WORDS, rng.integers(5, 60))) for _ in range(24))
    (folder / "text.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in texts)
    )
    return folder


def stirred(place, seed):
    """A checkpoint with noise on every weight: no parameter is constant, so nothing is the rounding of a zero."""
    from safetensors.torch import load_file, save_file

    weights, generator = (
        place / "model.safetensors",
        torch.Generator().manual_seed(seed),
    )
    changed = {
        k: v + 0.2 * torch.randn(v.shape, generator=generator)
        for k, v in load_file(weights).items()
    }
    save_file(changed, weights, metadata={"format": "pt"})
    return place


@cache
def small_encoder():
    """A folder with a random encoder of two layers and the tokenizer of the built-in one; built once in a process.

    For tests of runs that are about no number of the built-in encoder: a tenth of its time.
    """
    from transformers import AutoTokenizer, BertConfig, BertModel

    from anisoscope.models.packaged import builtin_folder

    folder = tempfile.mkdtemp(prefix="small-encoder-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(builtin_folder("builtin:minilm"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=128,
    )
    model = BertModel(config, add_pooling_layer=False)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder
