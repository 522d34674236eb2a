"""A training whose weights are spread over processes (FSDP2), watched by a Monitor: it ends, with the losses of the
same training unwatched, and the looks are those of one process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from quick import WARM, quick
from test_in_step import batches, model_of, spread

import anisoscope

STEPS = 10
"""Looks after 1, 2, 4, 5 and 10 of them: a watch that takes part in a training shows at the next step."""


def train(model, watch, steps=STEPS):
    """Train for some steps with dropout, and call `watch(model, step)` after each. Returns the losses."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = batches(3)
    model.train()
    losses = []
    for step in range(1, steps + 1):
        batch = data[step % len(data)]
        loss = model(**batch, labels=batch["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        watch(model, step)
    return losses


def in_each_process(folder):
    """What every process of the job does: the same training twice, watched the second time."""
    import faulthandler

    import torch.distributed as dist

    faulthandler.dump_traceback_later(
        200, exit=True
    )  # a process that waits for ever is a failure
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    unwatched = train(spread(model_of()), lambda _model, _step: None)
    monitor = anisoscope.Monitor(batches(2), every=5, output=folder / "looks")
    logged = []
    watched = train(
        spread(model_of()), lambda model, step: logged.append(monitor(model, step))
    )
    pd.DataFrame({"unwatched": unwatched, "watched": watched}).to_csv(
        folder / f"losses-{rank}.csv", index=False
    )
    assert sum(values is not None for values in logged) == (0 if rank else 5)
    dist.destroy_process_group()


# three processes take part in `test_in_step.py`
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_watched_training_ends_with_the_losses_of_the_unwatched_one(world, tmp_path):
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
    for rank in range(world):
        losses = pd.read_csv(
            tmp_path / f"losses-{rank}.csv", float_precision="round_trip"
        )
        assert (
            len(losses) == STEPS
            and losses["watched"].tolist() == losses["unwatched"].tolist()
        )
        assert losses["watched"].iloc[-1] < losses["watched"].iloc[0]
    # dropout draws the same numbers in every process, and all see the same batches: one process trains the same model
    expected = anisoscope.Monitor(batches(2), every=5, output=tmp_path / "alone")
    train(model_of(), expected)
    found = anisoscope.Monitor(batches(2), every=5, output=tmp_path / "looks").records
    keys = [*found.columns.drop(["value", "low", "high"])]
    assert set(found["step"]) == set(expected.records["step"])
    both = expected.records.set_index(keys).join(
        found.set_index(keys), rsuffix="_spread"
    )
    late = (
        both.index.get_level_values("step") <= 2
    )  # later, rounding of the sums of gradients has grown
    assert both["value"][late].to_numpy() == pytest.approx(
        both["value_spread"][late].to_numpy(), abs=1e-5, nan_ok=True
    )


if __name__ == "__main__":
    in_each_process(Path(sys.argv[1]))
