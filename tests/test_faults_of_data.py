"""Faults of clips, labels and batches that ended the process, or took all memory: each ends with its name."""

import struct

import numpy as np
import pandas as pd
import pytest
import soundfile
import torch

from anisoscope.batch import Batch, Stream
from anisoscope.charts import builders, export
from anisoscope.charts.style import escape_control, escape_control_in
from anisoscope.data.speech import open_speech
from anisoscope.data.text import open_text
from anisoscope.errors import CorpusError, UsageError


def wav(rate, channels=1):
    data = bytes(3200 * channels)
    form = struct.pack(
        "<IHHIIHH", 16, 1, channels, rate, rate * 2 * channels % 2**32, 2 * channels, 16
    )
    head = b"WAVEfmt " + form + b"data" + struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + head + data


def flac(path, frames):
    """A FLAC file whose header says `frames`, which it does not hold."""
    soundfile.write(path, np.zeros(4096), 16000, format="FLAC")
    data = bytearray(path.read_bytes())
    said = int.from_bytes(data[18:26], "big") >> 36 << 36 | frames
    return bytes(data[:18]) + said.to_bytes(8, "big") + bytes(data[26:])


@pytest.mark.parametrize("rate", [1, 700, 2_000_000_000])
def test_absurd_rates_are_refused(tmp_path, rate):
    """Resampling from one sample a second, or from billions, took gigabytes."""
    (tmp_path / "a.wav").write_bytes(wav(rate))
    with pytest.raises(
        CorpusError,
        match=r"1 faulty: a\.wav \(a header that says .* samples a second\)",
    ):
        open_speech(str(tmp_path))
    (tmp_path / "b.wav").write_bytes(wav(8000))
    assert open_speech(str(tmp_path), skip_bad=True).source["skipped"] == 1


def test_headers_that_ask_for_gigabytes_are_refused(tmp_path):
    """256 GB were asked for; now the clip is named."""
    path = tmp_path / "a.flac"
    path.write_bytes(flac(path, 2**36 - 1))
    with pytest.raises(
        CorpusError, match=r"a header that says 68,719,476,735 samples of 1 channels"
    ):
        open_speech(str(path))
    path.write_bytes(flac(path, 2**29 - 1))
    assert open_speech(str(path)).infos[0].frames == 2**29 - 1, (
        "within bounds: what is missing shows when it is read"
    )
    with pytest.raises(
        CorpusError,
        match=r"damaged after its header|it ends after|at least one readable",
    ):
        open_speech(str(path), skip_bad=True)


LABEL = "bad\x1b[31m\x00\x0b\uffff\x7f"


def test_control_characters_are_shown_as_signs():
    assert (
        escape_control(LABEL) == "bad␛[31m␀␋\ufffd␡"
        and escape_control("a\n\tb é 漢") == "a\n\tb é 漢"
    )
    assert escape_control_in({"a\0": [LABEL, 1, None]}) == {
        "a␀": [escape_control(LABEL), 1, None]
    }


def test_a_chart_with_a_control_character_is_drawn(tmp_path):
    """The chart library ended the process."""
    frame = pd.DataFrame(
        {
            "step": [1, 2] * 2,
            "value": [0.1, 0.2, 0.3, 0.4],
            "model": ["plain"] * 2 + [LABEL] * 2,
        }
    )
    saved = export.save(
        builders.trajectory(frame), tmp_path / "figure", ("svg", "pdf", "png")
    )
    assert (
        all(path.stat().st_size for path in saved) and "␛[31m␀" in saved[0].read_text()
    )


def stream(sequences, tokens=3, **changes):
    mask = torch.ones(sequences, tokens, dtype=torch.bool)
    return Stream(
        **({"mask": mask, "special": ~mask, "start": torch.zeros(sequences)} | changes)
    )


def test_batches_that_cannot_be_right_are_refused():
    """An empty batch, and masks or units of another length, were broadcast or ended in a traceback of torch."""
    ids = torch.ones(2, 3)
    Batch({"input_ids": ids}, torch.arange(2), {"encoder": stream(2)})
    with pytest.raises(UsageError, match="a batch of at least one sequence"):
        Batch({"input_ids": ids[:0]}, torch.arange(0))
    for units in (1, 3):
        with pytest.raises(
            UsageError, match=f"masks of {units} sequences.*got 2 in the stream encoder"
        ):
            Batch({"input_ids": ids}, torch.arange(units), {"encoder": stream(2)})
    with pytest.raises(UsageError, match=r"`special` of the mask's shape \(2, 3\)"):
        stream(2, special=torch.ones(2, 1, dtype=torch.bool))
    with pytest.raises(UsageError, match="a start for each sequence"):
        stream(2, start=torch.zeros(1))


def test_a_page_speaks_in_the_words_of_its_corpus():
    """A page of speech said `tokens 2,068,060` of samples."""
    from anisoscope.report.page import describe_run
    from anisoscope.report.results import Results
    from anisoscope.report.sections import build_sections
    from anisoscope.store import as_records

    words = {
        "position": "frame",
        "sequence": "clip",
        "unit": "speaker",
        "counted": "sample",
    }
    rows = {
        "metric": "mean_cosine",
        "stack": "encoder",
        "site": "hidden",
        "kind": "self",
        "token_policy": "all",
    }
    records = as_records(
        pd.DataFrame(
            [
                {**rows, "layer": k, "value": 0.3, "n_vectors": 640, "n_units": 3}
                for k in range(3)
            ]
        )
    )
    spoken = Results(
        records, {"corpus": {"n_tokens": 204_800, "n_units": 3, "words": words}}
    )
    assert {("frames", "640"), ("speakers", "3")} <= set(describe_run(spoken))
    told = " ".join(
        f"{s.lead} {' '.join(f.caption + f.basis for f in s.figures)}"
        for s in build_sections(spoken)
    )
    assert (
        "pairs of frame vectors" in told
        and "640 vectors in 3 speakers" in told
        and "token" not in told
    )
    written = Results(records, {"corpus": {"n_tokens": 640, "n_units": 3}})
    assert {("tokens", "640"), ("units", "3")} <= set(describe_run(written))


def test_a_quotation_mark_that_is_never_closed_costs_its_own_row(tmp_path):
    """Rows behind it were lost with it, where they do not look like rows."""
    (tmp_path / "t.csv").write_text(
        "text\n" + "\n".join(["one", '"two', "three", "four"])
    )
    found = open_text(str(tmp_path / "t.csv"), skip_bad=True)
    assert found.documents == ["one", "three", "four"] and found.source["skipped"] == 1
