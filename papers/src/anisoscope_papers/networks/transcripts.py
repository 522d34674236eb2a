"""Write down what a Whisper model hears in a corpus of clips, so that its decoder can be measured on real words."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.data.media import MediaCorpus
from anisoscope.data.speech import SpeechPlan, open_speech
from anisoscope.errors import CorpusError
from anisoscope.models.load import load
from anisoscope.store import write_atomic

MOST_TOKENS = 200
"""A clip of half a minute has about 100; a model that repeats itself would never end."""


def write_transcripts(
    name: str, corpus: str, path: Path, *, limit: int | None = None
) -> None:
    """Write a manifest of a speech corpus with what the model `name` hears in each clip.

    corpus   name or path of a corpus of files, none longer than the model's window
    path     the manifest, .csv: columns path, speaker, transcript
    limit    only the first units of the corpus

    CorpusError for a clip that the model reads in several windows.
    """
    subject = load(name)
    found = open_speech(corpus, limit=limit)
    plan = SpeechPlan(found, subject.model, subject.processor)
    clips = plan.windows.clip.tolist()
    for clip, times in Counter(clips).items():
        if times > 1:
            got = f"{found.items[clip].name}, of {times} windows"
            raise CorpusError(
                f"clips of one window of {name}", got, "cut longer clips into pieces"
            )
    lines = []
    for row, clip in enumerate(clips):
        text = transcribe(subject.model, subject.processor, plan, row)
        lines.append(
            [_find_place(found, clip), found.items[clip].unit or f"clip {clip}", text]
        )
    _write_manifest(path, lines)


@torch.no_grad()
def transcribe(model: Any, processor: Any, plan: SpeechPlan, row: int) -> str:
    """Return what a Whisper model hears in the window `row` of the plan: always its most probable next token."""
    batch = plan.build(np.array([row]))
    # The encoder runs once for a clip; the decoder then reads one new token at a time,
    # with the keys and values of those before.
    heard = model.get_encoder()(batch.inputs["input_features"]).last_hidden_state
    decoder = model.get_decoder()
    # Whisper scores its next token by the embeddings that it reads.
    output = model.get_input_embeddings().weight
    # The prompt that a measurement puts before the transcript.
    read = torch.tensor([plan.prompt])
    end = int(model.config.eos_token_id)
    ids: list[int] = []
    past = None
    while len(ids) < MOST_TOKENS:
        step: Any = decoder(
            input_ids=read,
            encoder_hidden_states=heard,
            past_key_values=past,
            use_cache=True,
        )
        past = step.past_key_values
        scores: Tensor = output @ step.last_hidden_state[0, -1]
        best = int(scores.argmax())
        if best == end:
            break
        ids.append(best)
        read = torch.tensor([[best]])
    return str(processor.tokenizer.decode(ids, skip_special_tokens=True)).strip()


def _find_place(corpus: MediaCorpus, clip: int) -> str:
    """Return the path of a clip's file."""
    place = corpus.items[clip].place
    if not isinstance(place, Path):
        raise CorpusError(
            "clips in files of their own",
            "a clip inside a table or an archive",
            "name a folder of audio files",
        )
    return str(place.resolve())


def _write_manifest(path: Path, lines: list[list[str]]) -> None:
    """Write the manifest at once, so that an interrupted run leaves none."""

    def write(unfinished: Path) -> None:
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "speaker", "transcript"])
            writer.writerows(lines)

    write_atomic(path, write)
