"""What measuring speech and vision models costs: ratios to the bare forward pass.

    ANISOSCOPE_DATA=… python benchmarks/modalities.py             # without the variable: built-in images, no speech

Models of the published base sizes with weights drawn anew (time does not depend on them), on real photographs and
real speech; hidden panel, hence what figures 3 to 5 of Godey et al. need.
"""

import os
import tempfile
from collections.abc import Sequence

import transformers
from overhead import CASES, Running, bare
from pairs import BARE, against, keep, options, told, with_threads

from anisoscope.models.load import Subject, load
from anisoscope.runs.job import Job
from anisoscope.runs.run import open_plan_of

AIM = 1.10
SUBJECTS = {
    "vit-base": (transformers.ViTConfig, "vision/imagenet_sample"),
    "resnet-50": (transformers.ResNetConfig, "vision/imagenet_sample"),
    "wav2vec2-base": (transformers.Wav2Vec2Config, "speech/librispeech_test_other"),
    "whisper-base": (transformers.WhisperConfig, "speech/librispeech_test_other"),
}


def corpus_of(name: str) -> str:
    """Its data; images that are built in where there is no folder of data, and for speech nothing."""
    corpus = SUBJECTS[name][1]
    if os.environ.get("ANISOSCOPE_DATA"):
        return corpus
    return "" if corpus.startswith("speech") else "builtin:digits"


def drawn(name: str) -> Subject:
    with tempfile.TemporaryDirectory() as folder:
        SUBJECTS[name][0]().save_pretrained(folder)
        return load(folder, untrained=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--models", nargs="+", choices=sorted(SUBJECTS), default=list(SUBJECTS)
    )
    parser.add_argument("--limit", type=int, default=40, help="images or clips")
    parser.add_argument(
        "--batches", type=int, default=9, help="batches that pairs are made of, in turn"
    )
    given = parser.parse_args(argv)
    for name in given.models:
        corpus = corpus_of(name)
        if not corpus:
            print(f"{name:15s} left out: ANISOSCOPE_DATA is not set")
            continue
        subject = drawn(name)
        plan, _ = open_plan_of(Job(corpus=corpus, limit=given.limit), subject)
        batches = [
            [plan[i]] for i in range(min(len(plan), given.batches))
        ]  # read and prepared once
        for threads in given.threads:
            with with_threads(threads):
                case = {"hidden": Running(subject.model, CASES["hidden"])}
                found = against(bare(subject.model), case, batches, given.pairs)
            print(
                f"{name:15s} {threads} threads: {told(found['hidden'])} × bare; bare {told(found[BARE])}",
                flush=True,
            )
            both = {clock: found[BARE][clock] for clock in ("processor", "wall")}
            row = {"model": name, "threads": threads, "aim": AIM, "bare": both} | found[
                "hidden"
            ]
            keep(given.results, "modalities", [row], ("model", "threads"))


if __name__ == "__main__":
    main()
