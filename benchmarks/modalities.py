"""What measuring speech and vision models costs: ratios to the bare forward pass, interleaved in one run.

    ANISOSCOPE_DATA=… python benchmarks/modalities.py             # without the variable: built-in images, no speech
    ANISOSCOPE_DATA=… python benchmarks/modalities.py --threads 1 --clock cpu     # on a machine whose cores others use

Models of the published base sizes with weights drawn anew (time does not depend on them), on real photographs and
real speech; hidden panel, hence what figures 3 to 5 of Godey et al. need.
"""

import argparse
import os
import statistics
import tempfile

import torch
import transformers
from overhead import CLOCKS, PANELS, Running, seconds

from anisoscope.models.load import load
from anisoscope.runs.job import Job
from anisoscope.runs.run import plan_of

ASKED = 1.10
SUBJECTS = {
    "vit-base": (transformers.ViTConfig, "vision/imagenet_sample"),
    "resnet-50": (transformers.ResNetConfig, "vision/imagenet_sample"),
    "wav2vec2-base": (transformers.Wav2Vec2Config, "speech/librispeech_test_other"),
    "whisper-base": (transformers.WhisperConfig, "speech/librispeech_test_other"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--limit", type=int, default=40, help="images or clips")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = CLOCKS[options.clock]
    print(f"{options.threads} threads, {options.clock} time")
    for name in options.models:
        config, corpus = SUBJECTS[name]
        if not os.environ.get("ANISOSCOPE_DATA"):
            if corpus.startswith("speech"):
                print(f"{name:15s} left out: ANISOSCOPE_DATA is not set")
                continue
            corpus = "builtin:digits"
        with tempfile.TemporaryDirectory() as folder:
            config().save_pretrained(folder)
            subject = load(folder, untrained=True)
        plan, _ = plan_of(Job(corpus=corpus, limit=options.limit), subject)
        batches = [plan[i] for i in range(min(len(plan), options.repetitions))]  # read and prepared once

        def bare(listed: list, index: int) -> None:  # type: ignore[type-arg]
            with torch.no_grad():
                subject.model(**listed[index].inputs)  # noqa: B023  # called before the next model

        measured = Running(subject, PANELS["hidden"])
        ratios = []
        for repetition in range(-1, options.repetitions):
            index = repetition % len(batches)
            before = seconds(bare, batches, index, clock)  # type: ignore[arg-type]
            ratio = seconds(measured, batches, index, clock) / before  # type: ignore[arg-type]
            ratios += [ratio] if repetition >= 0 else []
        median = statistics.median(ratios)
        verdict = "within" if median <= ASKED else "MISSES"
        spread = f"{min(ratios):.3f} – {max(ratios):.3f}"
        print(f"{name:15s} hidden {median:.3f} × bare   ({spread})   {verdict} {ASKED:.2f}", flush=True)


if __name__ == "__main__":
    main()
