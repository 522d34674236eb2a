"""The examples run: each script's cells, as a notebook runs them, and every Python block of the documentation."""

import json
import re
import subprocess
from pathlib import Path

import nbformat
import notebooks
import pytest
import task_pages
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from quick import WARM, quick

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED_BLOCKS = ("inputs.md",)
"""Pages whose code tests/test_inputs.py runs, kind by kind."""
DOCUMENTS = re.compile(r"\blimit=\d+")


def read_little(code, documents=2):
    """The code with few documents of each corpus: whether it runs does not depend on how many there are."""
    return DOCUMENTS.sub(f"limit={documents}", code)


class Quick(AsyncKernelManager):
    """Kernels begin in an interpreter that begins at once."""

    def format_kernel_cmd(self, extra_arguments=None):
        words = super().format_kernel_cmd(extra_arguments)
        return [*quick(WARM), *words[words.index("-m") :]]


def test_there_is_an_example_for_each_question():
    names = {
        "my_attention",
        "my_checkpoint",
        "my_metric",
        "my_training_run",
        "my_vectors",
    }
    assert {path.stem for path in SCRIPTS} == names


def test_a_notebook_installs_what_its_script_needs():
    """Nothing is installed where it is there; in Colab nothing is."""
    script = (ROOT / "examples" / "my_vectors.py").read_text("utf-8")
    code = notebooks.install_cell(script)
    assert 'if find_spec("anisoscope") is None:' in code and code.endswith(
        "'anisoscope[report]'"
    )
    assert not notebooks.install_cell('"""Title."""\n\n# %%\n# pip install this\n')


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script(script):
    written = json.loads(script.with_suffix(".ipynb").read_text("utf-8"))
    assert written == notebooks.notebook(script.read_text("utf-8")), (
        "make docs writes them"
    )


RUN_AS_BLOCKS = {"my_checkpoint", "my_training_run"}
"""Notebooks whose calls the README and docs/tasks/while-training.md have, too, whose blocks are run."""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            path,
            marks=pytest.mark.nightly if path.stem in RUN_AS_BLOCKS else (),
            id=path.stem,
        )
        for path in SCRIPTS
    ],
)
def test_a_notebook_runs_and_shows_what_was_found(script, tmp_path, monkeypatch):
    if script.stem == "my_attention":  # its model comes from the hub
        monkeypatch.setenv("MODEL", str(save_language_model(tmp_path / "model")))
    check_notebook(script, tmp_path)


def save_language_model(folder):
    """A tiny causal language model of bytes, its weights random."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    of_bytes = ByteLevelBPETokenizer()
    of_bytes.train_from_iterator(
        ["the cat sat on the mat"], vocab_size=300, show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=of_bytes._tokenizer, model_max_length=128
    )
    tokenizer.save_pretrained(folder)
    sizes = {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 128,
        "vocab_size": 300,
    }
    GPT2LMHeadModel(
        GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    ).save_pretrained(folder)
    return folder


def check_notebook(script, folder, documents=2):
    """In a kernel of its own, as in a person's hands, with few `documents` of each corpus."""
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    for cell in notebook.cells:
        cell.source = read_little(cell.source, documents)
    client = NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(folder)}}
    )
    client.kernel_manager_class = Quick
    client.execute()
    outputs = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    assert not [output for output in outputs if output.output_type == "error"]
    told = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "IProgress" not in told
    shown = [output.data for output in outputs if "data" in output]
    assert any("<table" in data.get("text/html", "") for data in shown)


def blocks(page):
    return re.findall(
        r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


TYPED = [
    (page, i)
    for page in PAGES
    if page.name not in GENERATED_BLOCKS
    for i in range(len(blocks(page)))
]
ALONE = [(page, i) for page, i in TYPED if page.parent != task_pages.TASKS]
"""Blocks of the pages of tasks are run by tests/test_task_pages.py, each in an interpreter of its own, too."""


def run_blocks(code, folder):
    """Run the code in a new interpreter."""
    words = [*quick(WARM), "-c", read_little(code)]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_block_outside_tasks_runs_in_one_interpreter(tmp_path):
    """`anisoscope.capture` was a function, and a module once something was measured: README's own order failed."""
    run_blocks("\n".join(blocks(page)[i] for page, i in ALONE), tmp_path)


@pytest.mark.nightly
def test_every_block_of_the_documentation_runs_in_one_interpreter(
    reader_files, tmp_path
):
    for file in reader_files.iterdir():
        (tmp_path / file.name).symlink_to(file)
    run_blocks("\n".join(blocks(page)[i] for page, i in TYPED), tmp_path)


@pytest.mark.parametrize(
    ("page", "i"), ALONE, ids=lambda x: x.stem if isinstance(x, Path) else str(x)
)
def test_every_block_runs_in_an_interpreter_of_its_own(page, i, tmp_path):
    first = "" if "import anisoscope" in blocks(page)[i] else "import anisoscope\n"
    run_blocks(first + blocks(page)[i], tmp_path)
