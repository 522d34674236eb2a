"""The same with Ray Data, on a machine or a cluster: python with_ray.py texts"""

import sys

import ray

import anisoscope

WORKERS = 2
HOW = {
    "return_tensors": "pt",
    "padding": True,
    "truncation": True,
    "return_special_tokens_mask": True,
}


# Reading takes processors too: workers that claim all of them would wait for their data for ever.
@ray.remote(num_cpus=0)
def add_up(shard):
    subject = anisoscope.load("builtin:minilm")
    state = anisoscope.State(panel="hidden,attention")
    for rows in shard.iter_batches(batch_size=32, batch_format="pandas"):
        tokens = subject.processor(rows["text"].tolist(), **HOW)
        state.add_batch(subject.model, dict(tokens), units=rows["document"])
    return state


shards = ray.data.read_parquet(sys.argv[1]).streaming_split(WORKERS)
first, *rest = ray.get([add_up.remote(shard) for shard in shards])
run = first.merge(*rest).finish("run")
print(run.table(), *(finding.text for finding in run.findings), sep="\n")
