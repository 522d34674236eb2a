"""The same on the devices of one or several machines: torchrun --nproc-per-node 2 with_torchrun.py texts"""

import sys
from pathlib import Path

import pandas as pd
import torch.distributed as dist

import anisoscope

HOW = {
    "return_tensors": "pt",
    "padding": True,
    "truncation": True,
    "return_special_tokens_mask": True,
}

# Loaded first: `torch.distributed.nn`, which comes with it, holds on to a group that is open, and a thread of that
# group may then abort the process as it exits.
subject = anisoscope.load("builtin:minilm")

dist.init_process_group(
    "gloo"
)  # states are exchanged on the CPU, whatever the model runs on
rank, world = dist.get_rank(), dist.get_world_size()

state = anisoscope.State(panel="hidden,attention")
for file in sorted(Path(sys.argv[1]).glob("*.parquet"))[rank::world]:
    table = pd.read_parquet(file)
    for rows in (table[first : first + 32] for first in range(0, len(table), 32)):
        tokens = subject.processor(rows["text"].tolist(), **HOW)
        state.add_batch(subject.model, dict(tokens), units=rows["document"])

states = [None] * world
dist.gather_object(state, states if rank == 0 else None)
if rank == 0:
    first, *rest = states
    run = first.merge(*rest).finish("run")
    print(run.table(), *(finding.text for finding in run.findings), sep="\n")
dist.destroy_process_group()
