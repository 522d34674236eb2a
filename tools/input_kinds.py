"""Every kind of input that a person may hand to `anisoscope.measure`, as code that runs: docs/inputs.md says what
became of each, and a test runs them all.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEFORE = """\
import anisoscope
import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel, ViTConfig, ViTModel

measure, sizes = anisoscope.measure, dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
tokenizer = anisoscope.load("builtin:minilm").processor
bert = BertModel(BertConfig(**sizes, intermediate_size=32)).eval()
vit = ViTModel(ViTConfig(**sizes, intermediate_size=32, image_size=16, patch_size=8)).eval()
layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
encoder = nn.TransformerEncoder(layer, 2).eval()
texts = ["The cat sat.", "A dog barked at it.", "A narrow cone.", "Birds sing."]
batch = tokenizer(texts, return_tensors="pt", padding=True)
x = np.random.default_rng(0).normal(size=(60, 16)).astype("float32")
quick = dict(panel="hidden", sample=0)
own = dict(quick, blocks="TransformerEncoderLayer")
"""
"""What the code of every kind is typed after."""


@dataclass(frozen=True)
class Kind:
    """A kind of input: what it is, how it is handed over, and how its error begins (empty: it works)."""

    what: str
    code: str
    fails: str = ""


MODELS = (
    Kind(
        "a model by name, on the built-in corpus",
        'measure("builtin:minilm", limit=2, **quick)',
    ),
    Kind(
        "a model by name, on a list of texts",
        'measure("builtin:minilm", texts, **quick)',
    ),
    Kind(
        "a checkpoint folder, on a text file",
        'bert.save_pretrained("mine"); tokenizer.save_pretrained("mine")\n'
        'open("mine.txt", "w").write("\\n\\n".join(texts * 50))\n'
        'measure("mine", corpus="mine.txt", max_length=32, **quick)',
    ),
    Kind(
        "a loaded model", 'measure(anisoscope.load("builtin:minilm"), texts, **quick)'
    ),
    Kind(
        "a module and its tokenizer, on a list of texts",
        "measure(bert, texts, processor=tokenizer, **quick)",
    ),
    Kind(
        "a `DataFrame` or another table with a column of texts",
        'measure(bert, pd.DataFrame({"text": texts}), processor=tokenizer, **quick)',
    ),
    Kind(
        "a pipeline of transformers",
        "from transformers import pipeline\n"
        'measure(pipeline("feature-extraction", model=bert, tokenizer=tokenizer), texts, **quick)',
    ),
    Kind("a `BatchEncoding`", "measure(bert, batch, **quick)"),
    Kind(
        "a dict of tensors", 'measure(bert, {"input_ids": batch["input_ids"]}, **quick)'
    ),
    Kind(
        "a dict of lists of one length",
        "measure(bert, dict(tokenizer(texts, padding=True)), **quick)",
    ),
    Kind("a tensor of token ids", 'measure(bert, batch["input_ids"], **quick)'),
    Kind(
        "a tuple of positional arguments",
        'measure(bert, (batch["input_ids"], batch["attention_mask"]), **quick)',
    ),
    Kind(
        "vectors for a model of tokens (`inputs_embeds`)",
        "measure(bert, torch.randn(8, 5, 16), **quick)",
    ),
    Kind(
        "a list of batches",
        "measure(bert, [batch, batch], units=[0, 1, 2, 3, 4, 5, 6, 7], **quick)",
    ),
    Kind("a generator of batches", "measure(bert, (batch for _ in range(3)), **quick)"),
    Kind(
        "a `DataLoader` of dicts",
        'rows = [{"input_ids": ids} for ids in batch["input_ids"]]\n'
        "measure(bert, DataLoader(rows, batch_size=2), **quick)",
    ),
    Kind(
        "a `DataLoader` of (inputs, labels)",
        'data = TensorDataset(batch["input_ids"], torch.tensor([0, 1, 0, 1]))\n'
        "measure(bert, DataLoader(data, batch_size=2), **quick)",
    ),
    Kind("images, a tensor", "measure(vit, torch.randn(6, 3, 16, 16), **quick)"),
    Kind(
        "any `torch.nn.Module`, a tensor",
        "measure(encoder, torch.randn(8, 5, 16), **own)",
    ),
    Kind(
        "any `torch.nn.Module`, a numpy array",
        "measure(encoder, np.random.normal(size=(8, 5, 16)), **own)",
    ),
    Kind(
        "any `torch.nn.Module`, padding masked",
        'padded = {"src": torch.randn(8, 5, 16), "src_key_padding_mask": torch.arange(5) > torch.full((8, 1), 3)}\n'
        "measure(encoder, padded, **own)",
    ),
    Kind(
        "a module that needs a special call",
        'measure(encoder, {"x": torch.randn(8, 5, 16)}, forward=lambda model, given: model(given["x"]), **own)',
    ),
)
VECTORS = (
    Kind("an array of vectors", "measure(x)"),
    Kind(
        "a `DataFrame`, a table of arrow, polars or `datasets`",
        "measure(pd.DataFrame(x))",
    ),
    Kind(
        "vectors with units and labels",
        "measure(x, units=np.arange(60) // 3, labels=np.arange(60) % 2)",
    ),
    Kind(
        "sequences of vectors with a mask",
        "measure(torch.randn(9, 7, 16), mask=torch.arange(7).repeat(9, 1) < 5)",
    ),
    Kind(
        "layers of vectors: hidden states",
        "hidden = bert(**batch, output_hidden_states=True).hidden_states\n"
        'measure(hidden, mask=batch["attention_mask"])',
    ),
    Kind(
        "a list of arrays [token, dim] of different lengths, one for each text",
        "measure([x[:5], x[5:12], x[12:15]])",
    ),
    Kind("a generator of vectors", "measure(vector for vector in x)"),
    Kind("a `.npy` file", 'np.save("x.npy", x); measure("x.npy")'),
    Kind(
        "a `.npz` file with units",
        'np.savez("x.npz", one=x, two=x + 1, units=np.arange(60) // 3); measure("x.npz")',
    ),
    Kind(
        "a `.safetensors` file of layers",
        'save_file({"layer.2": torch.tensor(x), "layer.10": torch.tensor(x)}, "x.safetensors")\n'
        'measure("x.safetensors")',
    ),
    Kind(
        "a `.parquet` file with a column of lists",
        'pd.DataFrame({"vector": list(x), "kind": ["a", "b"] * 30}).to_parquet("x.parquet")\n'
        'measure("x.parquet", label_column="kind")',
    ),
    Kind(
        "a `.csv` file",
        'pd.DataFrame(x).assign(document=np.arange(60) // 3).to_csv("x.csv", index=False)\n'
        'measure("x.csv", unit_column="document")',
    ),
    Kind(
        "a `.csv` file with row numbers and an id (both are left out); or name columns with `columns`",
        'pd.DataFrame(x).assign(id=range(60)).to_csv("x.csv"); measure("x.csv")\nmeasure("x.csv", columns="0-15")',
    ),
    Kind(
        "the answer of an embedding service (OpenAI, Voyage, Cohere, Google, text-embeddings-inference …)",
        "import json\n"
        'answer = {"data": [{"index": row, "embedding": vector} for row, vector in enumerate(x.tolist())]}\n'
        'open("x.json", "w").write(json.dumps(answer)); measure("x.json")',
    ),
    Kind(
        "a `.pt` file: a tensor, or a dict of them",
        'torch.save({"vectors": torch.tensor(x)}, "x.pt"); measure("x.pt")',
    ),
    Kind(
        "a folder of files of one kind",
        'import os; os.makedirs("many"); np.save("many/part-0.npy", x); np.save("many/part-1.npy", x)\nmeasure("many")',
    ),
    Kind(
        "a data set that `datasets` saved",
        'import datasets; datasets.Dataset.from_dict({"id": range(60), "vector": x}).save_to_disk("saved")\n'
        'measure("saved")',
    ),
)
REFUSED = (
    Kind(
        "a class in place of a model",
        "measure(BertModel, batch)",
        "expected a model; got the class BertModel",
    ),
    Kind(
        "something else in place of a model",
        "measure(len, batch)",
        "expected the name of a model",
    ),
    Kind(
        "a model without weights",
        'measure(BertModel(bert.config).to("meta"), batch)',
        "expected a model with weights",
    ),
    Kind(
        "texts without a tokenizer",
        "measure(bert, texts)",
        "expected a tokenizer for a list of strings",
    ),
    Kind(
        "a corpus without a tokenizer",
        'measure(bert, corpus="builtin:python-docs")',
        "expected a tokenizer",
    ),
    Kind(
        "an empty list",
        "measure(bert, [])",
        "expected a corpus with at least one batch",
    ),
    Kind("a number", "measure(bert, 7)", "expected a tensor, an array, a dict"),
    Kind(
        "a list of single sequences: each lacks an axis",
        'measure(bert, list(batch["input_ids"]))',
        "expected batches with an axis of sequences",
    ),
    Kind(
        "lists of different lengths",
        "measure(bert, dict(tokenizer(texts)))",
        "expected input_ids as a tensor",
    ),
    Kind(
        "token ids for a model without an embedding",
        "measure(encoder, torch.ones(4, 5, 16).long(), **own)",
        "expected floating-point inputs",
    ),
    Kind(
        "numbers for a model of token ids",
        "measure(bert, torch.randn(4, 5))",
        "expected token ids",
    ),
    Kind(
        "a name that the model does not take",
        "measure(encoder, {'sources': torch.randn(4, 5, 16)}, **own)",
        "expected arguments of TransformerEncoder",
    ),
    Kind(
        "labels in the place of a mask",
        'measure(bert, (batch["input_ids"], batch["input_ids"]))',
        "expected 0 and 1 in attention_mask",
    ),
    Kind(
        "what the model itself refuses",
        "measure(encoder, torch.randn(4, 5, 17), **own)",
        "expected inputs that TransformerEncoder takes",
    ),
    Kind(
        "units of another length",
        "measure(bert, batch, units=[0, 1], **quick)",
        "expected",
    ),
    Kind(
        "an option that is not known",
        "measure(bert, batch, panels='all')",
        "expected a known keyword; got 'panels'",
    ),
    Kind(
        "a single vector: it lacks an axis",
        "measure(x[0])",
        "expected vectors [vector, dim]",
    ),
    Kind(
        "vectors of words",
        "measure(np.array([['a', 'b']]))",
        "expected real numbers as vectors",
    ),
    Kind(
        "objects in a `.npy` file",
        'np.save("o.npy", np.array([{}, {}])); measure("o.npy")',
        "expected vectors in o.npy",
    ),
    Kind(
        "text among the columns of a table",
        'pd.DataFrame({"a": [1.0], "b": "c"}).to_csv("t.csv"); measure("t.csv")',
        "expected columns of numbers",
    ),
    Kind(
        "a column that may be an id or a dimension",
        'pd.DataFrame(np.c_[np.arange(60) * 7, x]).to_csv("t.csv"); measure("t.csv")',
        "expected one way to read the columns of t.csv",
    ),
    Kind(
        "objects that Python pickled",
        'pd.DataFrame(x).to_pickle("x.pkl"); measure("x.pkl")',
        "expected a file of vectors",
    ),
)
KINDS = (*MODELS, *VECTORS, *REFUSED)


@contextmanager
def typed() -> Iterator[dict[str, Any]]:
    """The names that the code of a kind finds, in a folder of its own."""
    names: dict[str, Any] = {}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            exec(BEFORE, names)
            yield names
        finally:
            os.chdir(here)


def outcome(kind: Kind, names: dict[str, Any]) -> tuple[Any, str]:
    """The run that the code of a kind gives, or None and what the error says."""
    from anisoscope.errors import AnisoscopeError

    *first, last = kind.code.split("\n")
    *ahead, last = last.split("; ")
    exec("\n".join([*first, *ahead]), names)
    try:
        return eval(last, names), ""
    except AnisoscopeError as error:
        return None, str(error)
