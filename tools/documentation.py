"""Pages of the documentation made from the code of the tool: `make docs` writes them into docs/.

A page is a function without arguments that returns Markdown; `PAGES` names its file. Those of the papers:
`papers/tools/paper_pages.py`.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import scaling
import seen
import speed
import wrappers
from pages import table_row, text_of, write

from anisoscope import metrics
from anisoscope.axes import LAYER_QUANTITIES
from anisoscope.registry import list_entries_of

ENVIRONMENT = {
    "ANISOSCOPE_DATA": "a folder of corpora: its files and folders can be named without their path",
    "ANISOSCOPE_DATA_<NAME>": "the local copy of one named corpus, as in ANISOSCOPE_DATA_COMMON_VOICE",
    "ANISOSCOPE_GOLDEN": "a folder of fixtures, only for tests",
    "ANISOSCOPE_CACHE": "another folder for remembered hashes of code and weights (default: below the user's cache)",
    "HF_HOME": "the cache of models and data sets of the hub",
    "HF_ENDPOINT": "the address of another hub",
    "HF_TOKEN": "access to gated models and data sets",
    "HF_HUB_OFFLINE": "1: send no requests to the hub, read only the cache",
    "OMP_NUM_THREADS": "threads of the arithmetic on a CPU",
    "OMP_WAIT_POLICY": "how these threads wait (default: PASSIVE; with ACTIVE, two cores take a third longer)",
    "RANK, WORLD_SIZE": "set by torchrun: the number of this process, and how many processes there are",
    "COLUMNS": "width of the terminal, if it is not known",
    "NO_COLOR, TERM=dumb, CI=true": "no colours; the last two also replace the progress bar by lines now and then",
}
"""Variables of the environment that the program reads."""

TRAPS = {
    "canine": "q, k, v by hooks on the projections; the first block sees chunks of 128 characters; molecules are a "
    "quarter of the characters, [CLS] first; padding changes what molecules are; "
    "in float64 the model itself gives NaN, because of the masks it makes",
    "byt5": "encoder three times as deep as the decoder",
    "t5": "relative positions are part of the scores, not of q and k; scale 1",
    "wav2vec2": "group norm over the whole clip: never padded; "
    "the strides of the convolutions decide how many frames a clip has",
    "wav2vec2-stable": "frames of padding are masked and never counted",
    "hubert": "as wav2vec 2.0",
    "whisper": "one frame per two mel frames; frames of padding are seen by the model but never counted; queries are "
    "scaled before they reach the attention interface, so `raw` is read at the output of the projection",
    "vit": "the class token comes first and counts as a special token",
    "beit": "as ViT; relative positions come with the mask",
    "deit": "the class token and the distillation token come first and count as special tokens",
    "segformer": "per block and per stage (after the stage's norm); keys and values are fewer than queries",
    "resnet": "`pre_relu` before each block's last ReLU: after it every cosine is ≥ 0",
    "efficientnet": "a stage ends with its last block; the top convolution is not a layer",
    "cvt": "q, k, v by hooks on the projections; scale 1/√width; class token in the last stage only: special, and not "
    "in the stage's output",
    "convnext": "stages begin with a downsampling that is part of no block",
    "gpt_neox": "q and k `raw` and `rotated`; value without rotation",
    "llama": "keys and values of fewer heads; `raw` and `rotated`",
    "qwen3": "`raw`, `normed` and `rotated`",
    "gemma3": "`raw`, `normed` and `rotated`; windows on some layers",
}
"""What to know of an architecture before its numbers are read."""


def architectures() -> str:
    """Count, order and shape of what is captured of each architecture, from a tiny random model of it."""
    import tiny_models as tiny

    lines = captured(tiny.ARCHITECTURES, TRAPS)
    return f"""# Architectures

Layer 0 is the input of the first block, layer i the raw output of block i. The table comes from tiny random models that
read 12 positions (240 samples, 24 frames or 32 × 32 pixels). What is captured, and in which order, is as in the real
models; the number of layers and all sizes are not.
Maps are flattened to one vector per position here (`--flatten position`); with `--flatten image` a map is one vector.

{chr(10).join(lines)}

## What is seen of other families and libraries

Each family was measured as a tiny random model, in float64, on a padded batch (images and latents without padding). Its
outputs are the same bit for bit as without measuring.

- *q, k, v, rows*: in how many attention layers these are seen, of all attention layers that the blocks have.
- *weights*, *the model's own*: the attention weights that we compute equal those that the model returns, to 1e-6.
  *Checked by hand*: the model returns none, so `tests/test_entry_points.py` computes them from queries and keys.
- *alignment*: how queries and keys are matched to tokens. *Token by token*: they have the same positions as the hidden
  states. *Positions N*: the model has N positions of its own.
- *mechanism*: where the attention is found: transformers' attention interface, torch's fused product, the fast path of
  torch's own layers, or products around a softmax. The windows of an image (Swin) are put together again into one
  sequence.

Attention that we cannot see is named in the last column; everything else is measured. `tests/test_families.py` measures
this table again.

{chr(10).join(seen.table())}

What anisoscope-papers adds: [its networks](papers-networks.md).
"""


def captured(rows: Mapping[str, Any], traps: Mapping[str, str]) -> list[str]:
    """A table of what is captured of tiny random models."""
    head = "| architecture | stack: layers × positions × dimensions | other sites | queries, keys | to know |"
    lines = [head, "|---|---|---|---|---|"]
    for name, row in rows.items():
        lines.append(
            f"| {row.system or name} (`{name}`) | {_captured(name)} | {traps.get(name, '')} |"
        )
    return lines


def _captured(name: str) -> str:
    """The cells of one architecture's row."""
    import tiny_models as tiny
    import torch

    from anisoscope.capture import capture
    from anisoscope.models.blocks import has_attention

    model, attention = tiny.build(name, torch.float32), False
    attention = has_attention(model)
    what = (*LAYER_QUANTITIES, "query", "key") if attention else LAYER_QUANTITIES
    with torch.no_grad(), capture(model, what) as tap:
        model(**tiny.inputs(name, dtype=torch.float32))
    layers: dict[str, list[tuple[int, ...]]] = {}
    others: dict[str, int] = {}
    stages: dict[str, None] = {}
    for site, value in tap.kept.items():
        stack, _, label = site.partition(".")
        label = label.lstrip("0123456789.")
        if label == "hidden":
            layers.setdefault(stack, []).append(tuple(value.shape[1:]))
        elif label in LAYER_QUANTITIES:
            others[label] = others.get(label, 0) + 1
        else:
            stages[label.removeprefix("cross.").removeprefix("head.").split(".")[1]] = (
                None
            )
    cells = ["; ".join(f"{stack}: {_runs(shapes)}" for stack, shapes in layers.items())]
    cells.append(
        ", ".join(f"{label} × {count}" for label, count in others.items()) or "none"
    )
    cells.append(
        ", ".join(sorted(stages, key=("raw", "normed", "rotated").index))
        if attention
        else "none"
    )
    return " | ".join(cells)


def _runs(shapes: list[tuple[int, ...]]) -> str:
    """Layers of one shape in a row as `4 × 12 × 32`."""
    runs: list[tuple[int, tuple[int, ...]]] = []
    for shape in shapes:
        count = runs.pop()[0] if runs and runs[-1][1] == shape else 0
        runs.append((count + 1, shape))
    return ", ".join(
        f"{count} × {' × '.join(map(str, shape))}" for count, shape in runs
    )


def measures() -> str:
    """The docstring of every metric of this package."""
    parts = []
    overview = ["| metric | what it says | measured by |", "|---|---|---|"]
    for name, metric in metrics.scan().items():
        text = (
            importlib.import_module(f"anisoscope.metrics.{name}").__doc__ or ""
        ).strip()
        summary, _, rest = text.partition("\n\n")
        title = " ".join(summary.split())
        command = (
            f"`measure --panel {metric.panel}`"
            if metric.panel
            else f"`measure --metric {name}`"
        )
        where = f"Reads {metric.reads.described}; "
        where += (
            f"panel `{metric.panel}`."
            if metric.panel
            else f"measured if it is named: `--metric {name}`."
        )
        if metric.reads.runs > 1:
            command = f"`compare A B --across {name}`"
            where = f"Reads {metric.reads.described}; measured between two runs: `anisoscope {command[1:]}."
        if metric.reads.labelled:
            command, where = (
                "`classes`",
                "Measured for labelled texts: `anisoscope classes`.",
            )
        overview.append(table_row((f"[`{name}`](#{name})", title, command)))
        parts.append(
            f"## `{metric.name}`\n\n{title}\n\n{where}\n\n```text\n{rest.strip()}\n```\n"
        )
    return (
        "# Metrics\n\n"
        + METRICS_INTRO
        + "\n".join(overview)
        + "\n\n"
        + "\n".join(parts)
    )


METRICS_INTRO = """The table has every metric in one line, with the command that measures it. Below it, each metric \
has its formula, range, unit and source. The [glossary](concepts.md) explains the words.

"""


def commands() -> str:
    """What `--help` says of every command; exit codes and environment variables."""
    from anisoscope.cli.app import EXIT_CODES

    pages = help_of(lambda name: name not in list_entries_of("commands"))
    pages += ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    pages += [table_row((code, meaning)) for code, meaning in EXIT_CODES.items()]
    pages += [
        "",
        "## Environment variables",
        "",
        "| variable | what it does |",
        "|---|---|",
    ]
    pages += [
        table_row((", ".join(f"`{n}`" for n in name.split(", ")), what))
        for name, what in ENVIRONMENT.items()
    ]
    intro = "The help text of every command (`anisoscope COMMAND --help`), with the most used commands first."
    added = "The second package, anisoscope-papers, adds `reproduce` and `train` ([their options](papers-commands.md))."
    return f"# The command line\n\n{intro} {added}\n\n" + "\n".join(pages)


def help_of(chosen: Callable[[str], bool]) -> list[str]:
    """What `--help` says of the commands whose first word is chosen."""
    from rich.console import Console

    from anisoscope.cli.app import app, command_names

    pages = []
    for words in command_names():
        if chosen(words.split()[0]):
            shown = StringIO()
            app.help_print(words.split(), console=Console(file=shown, width=80))
            lines = [line.rstrip() for line in shown.getvalue().strip().splitlines()]
            pages.append(
                f"## anisoscope {words}\n\n```text\n{chr(10).join(lines)}\n```\n"
            )
    return pages


def inputs() -> str:
    """What `anisoscope.measure` takes: every kind, as code, and what became of it."""
    import input_kinds as kinds

    heads = (
        "Models and their inputs",
        "Vectors that were made elsewhere",
        "What is refused",
    )
    parts = []
    with kinds.typed() as names:
        for head, group in zip(
            heads, (kinds.MODELS, kinds.VECTORS, kinds.REFUSED), strict=True
        ):
            lines = [f"## {head}", "", "| what | code | result |", "|---|---|---|"]
            for kind in group:
                lines.append(row_of_kind(kind, names))
            parts.append("\n".join(lines))
    return f"""# Inputs

Every kind of model and data that `anisoscope.measure` accepts, and what it refuses. On the command line,
`anisoscope measure MODEL --corpus DATA` accepts the same names, folders and files. A test runs every line of code on
this page, after these lines:

```python
{kinds.BEFORE}```

{(chr(10) * 2).join(parts)}

## Rules for a model's inputs

- A list holds batches. A tuple holds the positional arguments of one call.
- A loader can give pairs. The second element is taken for labels if it has one number for each sequence, or if the
  model takes only one argument. Then the run's `warnings` say so.
- An `attention_mask` [sequence, token] decides which tokens count. It is also given to the model, if the model
  accepts one. The same holds for `src_key_padding_mask` and similar masks, which are true at padding.
- Any other mask is only given to the model. Every position counts then, and a warning says so.
- `units=` names the unit of every sequence, such as its document. Two sequences of one document are not independent,
  so intervals leave out whole units.
- A model that reads the patches of all images in one row (the image part of Qwen-VL) gets one image a batch, because
  the row of patches does not show where an image ends. (The number of images is taken from `grid_thw`.)
- A program of `torch.export` or `torch.jit`, and a model of MLX, Keras or JAX, cannot be captured. The error says what
  to give instead: the PyTorch model it was made from, or its hidden states as vectors.
- A generator is read to its end at once. A list or a `DataLoader` is read batch by batch. Arrays are converted to the
  model's floating-point type.

## Rules for vectors

- By default, the metrics of the panels `hidden` and `spectrum` that need no model are measured, and `floor`. Others,
  such as `neighbours` and `twonn`, are measured if they are named (`metrics=`). With labels, class directions are
  measured, too.
- These are read in blocks, so they can be larger than memory: a `.npy` or `.safetensors` file, a large column of lists
  in a `.parquet` file, and a large array in an uncompressed `.npz` file (`numpy.savez`).
- In a `.npz` or `.safetensors` file, arrays named `units`, `labels` or `mask` are used as units, labels or mask.
- Nothing is unpickled.

## Texts with images

A vision-language model (LLaVA, PaliGemma, Gemma 3, Qwen-VL …) reads these, by its name or as a module with
`processor=` (the model's own processor of images and texts):

- a **folder of images with captions**. The captions are in a table in the folder (`metadata.csv` or `metadata.jsonl`
  with the columns `file_name` and `text` or `caption`; `--column` names another), or in a text file for each image
  (`cat.png`, `cat.txt`);
- a **data set of the hub** (`owner/name`), or a folder to which `datasets` saved one (`save_to_disk`), with a column of
  images and one of captions or chats. `--split` chooses a part. Rows of the hub are streamed once and then come from
  the cache. If a row has several captions, the first is read;
- such a **table without the folder**, or a `.parquet` file with a column of encoded images and one of captions;
- **chats with images**, one on each line (`.jsonl`): `messages` as in transformers and OpenAI, with images in their
  parts or in a column `images`; or `conversations` as in LLaVA. Paths are relative to the file. Nothing is downloaded.

Each image with its caption, or each chat, is a unit. If the model has a chat template, the template writes the text
that the model reads. A *tower* is the part of a model that reads one kind of input. The column `stack` of the records
names it: `vision` for images, and `decoder` for the language model (`encoder` if it is not causal).
Images without a caption, and missing or damaged images, are named in an error; `--skip-bad` leaves them out. If a tower
has no `final` norm, a warning of the run says so.

SigLIP was trained on texts that are padded to its maximum length, and it attends to the padding. So its texts are
padded here, too. The padding counts as special tokens: `--tokens content` leaves it out, `--tokens all` does not.

`--metric modality_gap` measures how far tokens of images lie from those of texts, layer by layer, and the page has a
figure of it (`run.plot("modality-gap")`). With `--tower both`,
a CLIP model reads the images and the captions of a folder in one run. In the records, the stack `joint` has the vectors
that CLIP compares: two for each pair, one of the image and one of the text.

## How the columns of a file are read

The program says in one line how it reads a file, on the terminal and in the manifest (`corpus`, `reading`).
`--dry-run` shows that line and measures nothing. These rules are applied in this order:

{_rules_of_roles()}
"""


def row_of_kind(kind: Any, names: dict[str, Any]) -> str:
    """A row of the page of inputs: a kind of input, its code, and what became of it."""
    import input_kinds

    return row_of_outcome(kind, *input_kinds.outcome(kind, names))


def row_of_outcome(kind: Any, run: Any, said: str) -> str:
    """A row of the page of inputs, of a kind that was measured to a run, or was refused in these words."""
    code = " ".join(f"`{line}`" for line in kind.code.split("\n"))
    return table_row((kind.what, code, "works" if run is not None else _error(said)))


def _rules_of_roles() -> str:
    """The rules of `data/vector_roles.py`, as its docstring numbers them."""
    from anisoscope.data import vector_roles

    return "1. " + (vector_roles.__doc__ or "").partition("\n1. ")[2].strip()


def _error(said: str) -> str:
    """The beginning of an error, short enough for a table."""
    return f"*error*: {said.split('; got')[0]}"


TREE = {
    "src/anisoscope/": "the tool: measures any model; docs/architecture.md shows its layers",
    "tests/": "its tests, one file per concern; test_metrics.py covers every metric, test_capture.py the models",
    "papers/src/": "anisoscope-papers: studies of the papers, code that runs and judges them, small models, networks",
    "papers/tests/": "its tests; papers/ also has results/ of real runs, tools, benchmarks and an example",
    "examples/": "scripts and notebooks: my checkpoint, training run, vectors, metric; a package with a metric",
    "tools/": "programs that write generated pages, and tiny random models; not in the package",
    "benchmarks/": "claims of speed, memory, exactness and coverage, each measured in one run",
    "docs/": "concepts, architecture, decisions and generated tables of both packages",
    "paper/": "draft of a paper on the tool, with numbers from records, and the journal's checklist",
}
"""The tree of the README: two lines for each distribution, and what both share."""


def tree() -> str:
    """The tree of the README."""
    return "\n".join(f"{name:<17} {what}" for name, what in TREE.items())


def write_tree(page: Path) -> Path:
    """The tree anew in the README."""
    before, _, rest = page.read_text("utf-8").partition("## The tree\n\n```text\n")
    after = rest.partition("```")[2]
    page.write_text(
        f"{before}## The tree\n\n```text\n{tree()}\n```{after}", encoding="utf-8"
    )
    return page


PAGES: dict[str, Callable[[], str]] = {
    "architectures.md": architectures,
    "metrics.md": measures,
    "cli.md": commands,
    "inputs.md": inputs,
    "scaling.md": scaling.page,
    "limit.md": speed.page,
    "wrappers.md": wrappers.page,
}


def page(name: str) -> str:
    """The text of a generated page."""
    return text_of(PAGES[name])


if __name__ == "__main__":
    import llms
    import notebooks

    readme = Path(__file__).resolve().parents[1] / "README.md"
    for path in (*write(PAGES), *notebooks.write(), write_tree(readme), llms.write()):
        sys.stdout.write(f"{path}\n")
