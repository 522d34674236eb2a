"""The demo app runs without a browser: a model on texts, vectors pasted and in a file, and what is refused."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

gradio = pytest.importorskip(
    "gradio", reason="the demo app needs gradio, which no extra brings"
)

FILE = Path(__file__).parents[1] / "examples" / "app" / "app.py"


@pytest.fixture(scope="module")
def app():
    specification = importlib.util.spec_from_file_location("demo_app", FILE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def client(app):
    """The app as a visitor's browser talks to it."""
    from gradio_client import Client

    page = app.build()
    _, address, _ = page.launch(
        prevent_thread_lock=True, server_name="127.0.0.1", quiet=True, ssr_mode=False
    )
    yield Client(address, verbose=False)
    page.close()


def test_a_model_on_texts(client, app):
    findings, table, report, file = client.predict(
        next(iter(app.MODELS)), app.SAMPLE, api_name="/texts"
    )
    assert "Anisotropic" in findings
    assert "layer" in table["headers"] and len(table["data"]) == 7
    assert report.startswith("<iframe") and Path(file).read_text("utf-8").startswith(
        "<!doctype html>"
    )


def test_vectors_pasted_and_in_a_file(client, tmp_path):
    from gradio_client import handle_file

    vectors = np.random.default_rng(0).normal(size=(60, 20)) + 1
    np.save(tmp_path / "vectors.npy", vectors)
    pasted = "\n".join(", ".join(map(repr, row)) for row in vectors.tolist())
    of_text = client.predict(pasted, None, api_name="/vectors")
    of_file = client.predict(
        "", handle_file(tmp_path / "vectors.npy"), api_name="/vectors"
    )
    assert of_text[1]["data"] == of_file[1]["data"]
    assert of_text[0] == of_file[0] and "Anisotropic" in of_text[0]


@pytest.mark.parametrize(
    ("pasted", "said"),
    [
        ("", "Paste rows"),
        ("1, 2\n3, x", "as many numbers"),
        ("1, 2\n3, 4, 5", "as many numbers"),
    ],
)
def test_what_is_refused(app, pasted, said):
    with pytest.raises(gradio.Error) as caught:
        app.measure_vectors(pasted, None)
    assert said in str(caught.value)


def test_a_line_of_text_is_too_little(app):
    with pytest.raises(gradio.Error):
        app.measure_texts(next(iter(app.MODELS)), "one line")
