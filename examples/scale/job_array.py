"""One job of an array, and the merge of all: no job waits for another, and none plans what another measures.

sbatch --array=0-7 --wrap 'python job_array.py texts states $SLURM_ARRAY_TASK_ID 8'   # then, when all have ended:
python job_array.py texts states
"""

import sys
from pathlib import Path

import pandas as pd

import anisoscope

files = sorted(Path(sys.argv[1]).glob("*.parquet"))
states = Path(sys.argv[2])
HOW = {
    "return_tensors": "pt",
    "padding": True,
    "truncation": True,
    "return_special_tokens_mask": True,
}

if len(sys.argv) > 3:
    job, jobs = int(sys.argv[3]), int(sys.argv[4])
    subject = anisoscope.load("builtin:minilm")
    state = anisoscope.State(panel="hidden,attention")
    for file in files[job::jobs]:
        table = pd.read_parquet(file)
        for rows in (table[first : first + 32] for first in range(0, len(table), 32)):
            tokens = subject.processor(rows["text"].tolist(), **HOW)
            state.add_batch(subject.model, dict(tokens), units=rows["document"])
    state.save(states / f"{job}.state")
else:
    first, *rest = map(anisoscope.State.load, sorted(states.glob("*.state")))
    run = first.merge(*rest).finish("run")
    print(run.table(), *(finding.text for finding in run.findings), sep="\n")
