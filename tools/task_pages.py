"""Pages of docs/tasks/: their commands are run, and what the program answers is written below each of them.

    python tools/task_pages.py            # all pages
    python tools/task_pages.py own-model  # one of them
    python tools/task_pages.py --into build/tasks  # written there, the pages of docs/ stay as they are

A block ```console holds lines `$ anisoscope …`, each followed by its output; the output of a line that ends with a
comment is left out. A block ```python is run as a script; the
block ```text after it holds its output. A picture with a comment `<!-- from my-run/figures/x.svg -->` is copied from
there. Everything of a page runs in one folder, in the page's order, beside the files of `write_inputs`.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from anisoscope.data.builtin import python_docs
from anisoscope.models.load import load

ROOT = Path(__file__).resolve().parents[1]
TASKS = ROOT / "docs" / "tasks"
PICTURES = ROOT / "docs" / "figures" / "tasks"
BLOCK = re.compile(r"^```(console|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^!\[.*\]\((.+)\)<!-- from (.+) -->$", re.MULTILINE)
DOCUMENTS, LINES_OF_EACH, SHORTEST = 60, 6, 50
WORDS_OF_A_QUERY = 6
TEXTS_OF_A_BATCH = 32
CONDITION_MET = 8
"""Exit code of a comparison whose `--fail-if` is met."""
COLUMNS = "100"
PYTHON = [sys.executable]
"""The interpreter that scripts are run in."""
WIDTH, HEADS = 64, 4
"""Of the models that are made here."""


def write_inputs(folder: Path) -> None:
    """The files that the pages call the reader's own: vectors of sentences, made by layer 5 of the packaged encoder;
    of the first words of each, as queries that should find it; a table with the document of each; and small models.
    """
    write_models(folder)
    documents, _ = python_docs(DOCUMENTS)
    lines = [
        (name, line)
        for name, text in enumerate(documents.documents)
        for line in long_lines(text)
    ]
    texts = [line for _, line in lines]
    vectors = embed(texts)
    np.save(folder / "my-vectors.npy", vectors)
    np.save(
        folder / "my-queries.npy",
        embed([" ".join(text.split()[:WORDS_OF_A_QUERY]) for text in texts]),
    )
    table = pd.DataFrame(
        {
            "document": [name for name, _ in lines],
            "year": 2026,
            "embedding": list(vectors),
        }
    )
    table.to_parquet(folder / "my-table.parquet")


def write_models(folder: Path) -> None:
    """Three folders of models that read the packaged encoder's tokens: its first half, an encoder and a decoder with
    random weights.
    """
    subject = load("builtin:minilm")
    vocabulary = subject.config.vocab_size
    half = BertModel(
        BertConfig.from_dict(subject.config.to_dict() | {"num_hidden_layers": 3}),
        add_pooling_layer=False,
    )
    kept = {
        name: x
        for name, x in subject.model.state_dict().items()
        if name in half.state_dict()
    }
    half.load_state_dict(kept)
    torch.manual_seed(0)
    narrow: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_attention_heads": HEADS,
    }
    encoder = BertModel(
        BertConfig(vocab_size=vocabulary, num_hidden_layers=8, **narrow)
    )
    decoder = GPT2Model(
        GPT2Config(
            vocab_size=vocabulary,
            n_layer=4,
            n_embd=WIDTH,
            n_head=HEADS,
            n_positions=512,
        )
    )
    for name, model in (
        ("half-minilm", half),
        ("new-encoder", encoder),
        ("new-decoder", decoder),
    ):
        model.save_pretrained(folder / name)
        subject.processor.save_pretrained(folder / name)


def embed(texts: list[str]) -> np.ndarray:
    """[text, dim]: the mean vector of each text in layer 5 of the packaged encoder."""
    subject = load("builtin:minilm")
    vectors = np.empty((len(texts), subject.config.hidden_size), np.float32)
    # Texts of one batch are of nearly equal lengths, so that little of it is padding.
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for first in range(0, len(texts), TEXTS_OF_A_BATCH):
        chosen = by_length[first : first + TEXTS_OF_A_BATCH]
        tokens = subject.processor(
            [texts[i] for i in chosen],
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=64,
        )
        with torch.no_grad():
            states = subject.model(**tokens, output_hidden_states=True).hidden_states[5]
        mask = tokens["attention_mask"].unsqueeze(-1)
        vectors[chosen] = ((states * mask).sum(1) / mask.sum(1)).numpy()
    return vectors


def long_lines(document: str) -> list[str]:
    """The first lines of a document that are long enough to be sentences."""
    lines = (line.strip() for line in document.splitlines())
    return [line for line in lines if len(line) >= SHORTEST][:LINES_OF_EACH]


def run_console(block: str, folder: Path) -> str:
    """The block with the present output of its commands."""
    lines = []
    for line in block.splitlines():
        if line.startswith("$ "):
            printed = run_command(line.removeprefix("$ "), folder)
            lines += [line] if " # " in line else [line, *printed, ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def run_command(line: str, folder: Path) -> list[str]:
    """Lines that a command prints. Only commands of anisoscope are run."""
    words = shlex.split(line, comments=True)
    if words[0] != "anisoscope":
        raise ValueError(f"a line `$ anisoscope …`; got {line!r}")
    return run_python(["-m", *words], folder).splitlines()


def run_python(words: list[str], folder: Path) -> str:
    """What Python prints to stdout; an error of the program ends all."""
    environment = os.environ | {"COLUMNS": COLUMNS, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [*PYTHON, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode not in (0, CONDITION_MET):
        raise RuntimeError(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return printed_text(done.stdout, done.stderr, done.returncode)


def printed_text(stdout: str, stderr: str, exit_code: int) -> str:
    """What stands on stdout; if a condition was met, also the line on stderr that says so, and the exit code."""
    text = "\n".join(line.rstrip() for line in stdout.splitlines()).strip("\n")
    if exit_code == CONDITION_MET:
        text += f"\n{stderr.strip().splitlines()[-1]}\n(exit code {exit_code})"
    return text


def refresh(text: str, folder: Path) -> str:
    """The text of a page with the present output of everything in it, run in a folder."""
    printed: list[str] = []

    def refresh_block(found: re.Match[str]) -> str:
        language, block = found.groups()
        if language == "console":
            block = run_console(block, folder)
        elif language == "python":
            printed.append(run_python(["-c", block], folder))
        elif printed:
            block = printed.pop() + "\n"
        return f"```{language}\n{block}```"

    return BLOCK.sub(refresh_block, text)


def copy_pictures(text: str, folder: Path) -> None:
    """Copy the pictures that a page names from the runs of its commands."""
    for shown, source in PICTURE.findall(text):
        target = (TASKS / shown).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / source, target)


def pages() -> list[Path]:
    """The pages, in the order of their names."""
    return sorted(TASKS.glob("*.md"))


def main(words: list[str] | None = None) -> None:
    """Write the output of every command into the pages of these names; of all pages if there is none."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        help="pages, by their file names without .md; all if none is named",
    )
    parser.add_argument(
        "--into",
        type=Path,
        help="folder that the pages are written into, without their pictures",
    )
    asked = parser.parse_args(words)
    for page in pages():
        if asked.names and page.stem not in asked.names:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_inputs(folder)
            text = refresh(page.read_text("utf-8"), folder)
            if asked.into:
                asked.into.mkdir(parents=True, exist_ok=True)
                page = asked.into / page.name
            else:
                copy_pictures(text, folder)
            page.write_text(text, "utf-8")
            sys.stdout.write(f"{page}\n")


if __name__ == "__main__":
    main()
