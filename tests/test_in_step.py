"""A model whose weights are spread over processes (FSDP2): each of them calls it as often as the others, whatever the
number of its batches, and the records are those of one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from quick import WARM, quick
from transformers import BertConfig, BertForMaskedLM

import anisoscope
from anisoscope.errors import MeasureError

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
METRICS = (
    "mean_cosine",
    "drift",
    "query_key",
    "attention",
    "partition",
    "centred_attention",
)
KEYS = ["stack", "kind", "layer", "head", "site", "token_policy", "metric", "component"]


def spread(module):
    from torch.distributed.fsdp import fully_shard

    for layer in module.bert.encoder.layer:
        fully_shard(layer)
    return fully_shard(module)


def model_of():
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(vocab_size=60, max_position_embeddings=32, **SIZES)
    ).eval()


def batches(count):
    """Batches of unequal lengths, each padded."""
    g = torch.Generator().manual_seed(1)
    made = []
    for i in range(count):
        length = 5 + 3 * i
        mask = (
            torch.arange(length) < torch.tensor([length, max(1, length - 2)])[:, None]
        )
        ids = torch.randint(5, 60, (2, length), generator=g) * mask
        made.append({"input_ids": ids, "attention_mask": mask.long()})
    return made


def measured(model, count):
    """In memory; with fewer processes than batches or more, and one batch that is left over."""
    return anisoscope.measure(
        model, batches(count), metrics=METRICS, tokens="all", groups=4, sample=0
    )


def in_each_process(folder):
    """What every process of the job does."""
    import faulthandler

    import torch.distributed as dist

    faulthandler.dump_traceback_later(
        100, exit=True
    )  # a process that waits for ever is a failure
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = spread(model_of())
    for count in (1, world + 1):
        run = measured(model, count)
        run.records.to_parquet(folder / f"records-{count}-{rank}.parquet")
        assert run.manifest["processes"] == world
        assert run.manifest["weights_sha256"] == (folder / "weights").read_text()
    values = anisoscope.Monitor(batches(1))(model, 1)
    assert (values is None) == (rank > 0)
    if rank == 0:
        pd.Series(values).to_json(folder / "monitor.json")
    try:
        measured(cut_in_two_ways(model_of(), world), 2)
    except MeasureError as error:
        (folder / f"refused-{rank}").write_text(str(error))
    other_fails(folder, model, rank)
    os._exit(0)  # the group has lost a process, and would wait for it


def cut_in_two_ways(model, world):
    """Tensor parallelism of one projection, and FSDP2 of the whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("data", "parts"))
    parallelize_module(
        model.cls.predictions.transform.dense, mesh["parts"], ColwiseParallel()
    )
    return fully_shard(model, mesh=mesh["data"])


def other_fails(folder, model, rank):
    """One process ends in the midst of a pass; the others say so."""
    if rank == 1:
        model.bert.encoder.layer[1].register_forward_pre_hook(lambda *_: os._exit(0))
    try:
        measured(model, 6)
    except MeasureError as error:
        (folder / f"lost-{rank}").write_text(str(error))


# two of them take part in `test_watched_fsdp.py`
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_records_are_those_of_one_process(world, tmp_path):
    alone = {count: measured(model_of(), count) for count in (1, world + 1)}
    (tmp_path / "weights").write_text(alone[1].manifest["weights_sha256"])
    launcher = [
        *quick(),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world),
        "--no-python",
    ]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    words = [*launcher, *quick(WARM), str(Path(__file__)), str(tmp_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=280, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for count, run in alone.items():
        for rank in range(world):
            found = pd.read_parquet(tmp_path / f"records-{count}-{rank}.parquet")
            both = run.records.merge(
                found, on=KEYS, suffixes=("", "_spread"), validate="1:1"
            )
            assert len(both) == len(run.records) == len(found) > 100
            for name in ("value", "low", "high"):
                ours, theirs = (
                    both[name].to_numpy(float),
                    both[f"{name}_spread"].to_numpy(float),
                )
                assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9, nan_ok=True)
    looked = pd.read_json(tmp_path / "monitor.json", typ="series").to_dict()
    expected = anisoscope.Monitor(batches(1)).look(model_of(), 1)
    assert looked == pytest.approx(expected, abs=1e-9)
    for rank in range(world):
        assert "by tensor parallelism of" in (tmp_path / f"refused-{rank}").read_text()
        assert (
            rank == 1
            or "another process that has ended"
            in (tmp_path / f"lost-{rank}").read_text()
        )


if __name__ == "__main__":
    in_each_process(Path(sys.argv[1]))
