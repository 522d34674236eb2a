"""Measure a packaged model on your texts, or your vectors, in a browser: table, findings and the whole report."""

import html
import io
import tempfile
from pathlib import Path

import gradio
import pandas as pd

import anisoscope
from anisoscope.errors import AnisoscopeError

MODELS = {"MiniLM, 6 layers (all-MiniLM-L6-v2)": "builtin:minilm"}
"""Packaged networks, by what the page calls them: none needs a download."""
MOST_DOCUMENTS, MOST_CHARACTERS = 200, 100_000
"""Of texts, so that a visitor waits for seconds."""
MOST_VECTORS = 50_000
SAMPLE = """\
The cat sat on the mat and looked at the rain.
A dog barked all night in the quiet street.
The committee will publish its report on Monday.
Add the flour slowly and stir until it is smooth.
The river froze in January for the first time.
She sold the old house and moved to the coast.
Interest rates rose again, and shares fell.
The train to the north leaves from platform nine."""


def measure_texts(name: str, text: str):
    """Measure a packaged model on texts, a document a line."""
    documents = [line.strip() for line in (text or "").splitlines() if line.strip()]
    if len(documents) < 3:
        raise gradio.Error(
            "Three lines of text or more are needed: an interval leaves out each in turn."
        )
    if len(documents) > MOST_DOCUMENTS or sum(map(len, documents)) > MOST_CHARACTERS:
        raise gradio.Error(
            f"At most {MOST_DOCUMENTS} lines and {MOST_CHARACTERS:,} characters here."
        )
    return show(
        lambda: anisoscope.measure(MODELS[name], documents, panel="hidden,attention")
    )


def measure_vectors(pasted: str, path: str | None):
    """Measure vectors: a file that anisoscope reads, or pasted rows of numbers."""
    if path:
        return show(lambda: anisoscope.measure(path))
    return show(lambda: anisoscope.measure(read_rows(pasted)))


def read_rows(pasted: str):
    """Read pasted rows of numbers, parted by commas, semicolons, tabs or spaces; a row is a vector."""
    text = (pasted or "").strip()
    if not text:
        raise gradio.Error("Paste rows of numbers, or choose a file.")
    try:
        rows = pd.read_csv(
            io.StringIO(text),
            header=None,
            sep=r"[,;\s]+",
            engine="python",
            dtype="float64",
        )
    except ValueError as error:
        raise gradio.Error(
            f"Every row must hold as many numbers as the first, and nothing else ({error})."
        ) from None
    if len(rows) > MOST_VECTORS:
        raise gradio.Error(
            f"At most {MOST_VECTORS:,} vectors here; the command line takes any number."
        )
    return rows.to_numpy()


def show(measure):
    """Return findings as Markdown, the short table, the report in a frame, and its file."""
    try:
        run = measure()
        page = run.report(tempfile.mkdtemp(prefix="anisoscope-app-"))
    except AnisoscopeError as error:
        raise gradio.Error(
            f"Expected {error.expected}; got {error.got}. {error.cure}"
        ) from None
    notes = [f"- *{note}*" for note in run.manifest["warnings"]]
    findings = "\n".join([*(f"- {finding.text}" for finding in run.findings), *notes])
    # The report is one file with its own style: a frame keeps that apart from this page's.
    source = html.escape(Path(page).read_text("utf-8"))
    frame = f'<iframe title="Report" srcdoc="{source}" style="width: 100%; height: 80vh; border: 0"></iframe>'
    return findings, run.table().round(3), frame, str(page)


def build() -> gradio.Blocks:
    """Build the page."""
    with gradio.Blocks(title="Anisoscope") as page:
        gradio.Markdown(
            "# Anisoscope\nHow anisotropic are a model's vectors, and why? Every number has a 95 % interval over "
            "documents."
        )
        with gradio.Tab("A model on your texts"):
            name = gradio.Dropdown(
                list(MODELS), value=next(iter(MODELS)), label="Model"
            )
            text = gradio.Textbox(SAMPLE, lines=8, label="Texts, a document a line")
            measure_model = gradio.Button("Measure", variant="primary")
        with gradio.Tab("Your vectors"):
            pasted = gradio.Textbox(
                lines=8,
                label="Vectors, one a row",
                placeholder="0.12, -0.4, 1.3\n0.2, -0.1, 1.1",
            )
            path = gradio.File(
                label="Or a file: .npy, .npz, .parquet, .csv, .safetensors, .jsonl",
                type="filepath",
            )
            measure_rows = gradio.Button("Measure", variant="primary")
        with gradio.Column(visible=False) as results:
            findings = gradio.Markdown()
            table = gradio.Dataframe(label="Layer by layer", interactive=False)
            file = gradio.File(label="The report as a file")
            report = gradio.HTML()
        outputs = [findings, table, report, file]
        of_texts = measure_model.click(
            measure_texts, [name, text], outputs, api_name="texts"
        )
        of_vectors = measure_rows.click(
            measure_vectors, [pasted, path], outputs, api_name="vectors"
        )
        for measured in (of_texts, of_vectors):
            measured.success(lambda: gradio.Column(visible=True), None, results)
    return page


if __name__ == "__main__":
    build().launch()
