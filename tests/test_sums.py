"""The accumulator: a value with one merge, the same over processes and files; second moments and the sample on their
way into it.
"""

import math
import os
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError
from quick import quick
from scipy import stats
from threadpoolctl import threadpool_info, threadpool_limits

from anisoscope.errors import MeasureError
from anisoscope.sums.groups import (
    COUNTED,
    Sums,
    Totals,
    sum_single_vectors,
    sum_vectors,
)
from anisoscope.sums.moments import TERMS as OF_MOMENTS, Moments, add_head_moments
from anisoscope.sums.reservoir import Reservoir, hash_tokens
from anisoscope.sums.threads import run_in_parallel

GROUPS = 4
TERMS = ("n", "unit", "zero")
SHAPES = {"n": (GROUPS, 1, 2), "unit": (GROUPS, 1, 2, 3), "zero": (GROUPS,)}
SINGLE_TERMS = COUNTED | {
    "n",
    "vector",
    "unit",
    "unit_square",
    "norm",
    "norm_square",
    "sequence_cosine",
    "sequences",
}
SINGLE_TERMS |= {"subset_n", "subset_unit"}
WHOLE = st.integers(-1000, 1000)  # whole numbers add exactly, so equality is exact


@st.composite
def some_sums(draw):
    sums = Sums(GROUPS)
    for site in draw(st.sets(st.sampled_from(["a.0.hidden", "a.1.hidden", "b.final"]))):
        for term in draw(st.sets(st.sampled_from(TERMS))):
            size = int(np.prod(SHAPES[term]))
            entries = draw(st.lists(WHOLE, min_size=size, max_size=size))
            sums.buffer(site, term, SHAPES[term]).add_(
                torch.tensor(entries, dtype=torch.float64).view(SHAPES[term])
            )
    sums.units = draw(st.sets(st.integers(0, 9)))
    return sums


def check_equal(a, b):
    assert (
        a.groups == b.groups and a.units == b.units and a.terms.keys() == b.terms.keys()
    )
    for key, value in a.terms.items():
        assert value.dtype == torch.float64 and torch.equal(value, b.terms[key]), key


# ---- one merge -------------------------------------------------------------------------------------------------------


@given(some_sums(), some_sums(), some_sums())
@settings(max_examples=50, deadline=None)
def test_merge_is_associative_and_commutative_and_the_empty_one_is_neutral(a, b, c):
    check_equal(a.merge(b).merge(c), a.merge(b.merge(c)))
    check_equal(a.merge(b), b.merge(a))
    check_equal(a.merge(Sums(GROUPS)), a)
    check_equal(Sums(GROUPS).merge(a), a)


@given(some_sums(), some_sums())
@settings(max_examples=30, deadline=None)
def test_merge_leaves_its_parts_alone(a, b):
    before = {key: value.clone() for key, value in a.terms.items()}
    merged = a.merge(b)
    for value in merged.terms.values():
        value.add_(1)
    assert all(torch.equal(a.terms[key], value) for key, value in before.items())


@given(some_sums())
@settings(max_examples=20, deadline=None)
def test_saved_and_loaded_is_the_same(tmp_path_factory, a):
    path = tmp_path_factory.mktemp("sums") / "sums.safetensors"
    a.save(path)
    check_equal(Sums.load(path), a)


def random_sums(seed, n=60, groups=GROUPS):
    rng = np.random.default_rng(seed)
    sums = Sums(groups)
    x = torch.tensor(rng.standard_normal((n, 2, 5, 3)))
    mask = torch.tensor(rng.random((n, 1, 5)) < 0.8)
    unit = torch.tensor(rng.integers(0, 100, n))
    values, _ = sum_vectors(
        x,
        mask,
        None,
        frozenset({"n", "unit", "vector", "norm", "norm_square", "unit_square"}),
    )
    sums.add("a.0.hidden", values, unit % groups)
    sums.units.update(unit.tolist())
    return sums


def test_adding_in_pieces_is_adding_at_once():
    rng = np.random.default_rng(0)
    x, unit = (
        torch.tensor(rng.standard_normal((20, 1, 4, 3))),
        torch.tensor(rng.integers(0, 50, 20)),
    )
    mask, terms = torch.ones(20, 1, 4, dtype=torch.bool), frozenset({"n", "unit"})
    whole, pieces = Sums(GROUPS), Sums(GROUPS)
    whole.add("s", sum_vectors(x, mask, None, terms)[0], unit % GROUPS)
    for i in torch.randperm(20).tolist():
        pieces.add(
            "s",
            sum_vectors(x[i : i + 1], mask[:1], None, terms)[0],
            unit[i : i + 1] % GROUPS,
        )
    for key, value in whole.terms.items():
        torch.testing.assert_close(pieces.terms[key], value, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("piece", [6, 40, 200])
@pytest.mark.parametrize("channels_apart", [False, True])
def test_what_is_taken_at_once_changes_nothing(
    monkeypatch, heads, piece, channels_apart
):
    """Tokens of a sequence, sequences, or all of them at once; vectors whose numbers lie side by side, or apart."""
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.standard_normal((5, heads, 7, 6)))
    x[0, 0, 1], x[3, 0, 2, 0], x[4, 0, 6, 1] = 0.0, float("nan"), float("inf")
    masks, subsets = (
        torch.tensor(rng.random((5, 2, 7)) < 0.8),
        torch.tensor(rng.random((5, 3, 7)) < 0.5),
    )
    terms = frozenset(
        {
            "n",
            "unit",
            "vector",
            "norm",
            "norm_square",
            "unit_square",
            "subset_n",
            "subset_unit",
        }
    )
    terms |= {"sequence_cosine", "sequences"}
    expected, inverse = sum_vectors(x, masks.double(), subsets.double(), terms)
    assert int(expected["zero"].sum() + expected["nonfinite"].sum()) > 0
    monkeypatch.setattr("anisoscope.sums.groups.PIECE", piece)
    laid = x.transpose(2, 3).contiguous().transpose(2, 3) if channels_apart else x
    found, turned = sum_vectors(laid, masks.double(), subsets.double(), terms)
    assert found.keys() == expected.keys() == terms | {"zero", "nonfinite"}
    torch.testing.assert_close(turned, inverse)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=name)


def test_every_vector_lands_in_the_group_of_its_unit():
    sums = Sums(GROUPS)
    mask = torch.ones(5, 1, 1, dtype=torch.bool)
    values, _ = sum_vectors(
        torch.eye(5).view(5, 1, 1, 5).double(), mask, None, frozenset({"n", "unit"})
    )
    sums.add("s", values, torch.tensor([0, 1, 2, 3, 4]) % GROUPS)
    expected = torch.zeros(GROUPS, 5).double()
    for unit in range(5):
        expected[unit % GROUPS, unit] = 1
    assert torch.equal(sums.terms["s", "unit"][:, 0, 0], expected)
    assert sums.terms["s", "n"].flatten().tolist() == [2, 1, 1, 1]


def test_half_precision_vectors_are_summed_in_full():
    """bfloat16 sums of 4,096 equal unit vectors stall at 256; the accumulator does not."""
    x = torch.ones(64, 1, 64, 1, dtype=torch.bfloat16)
    values, _ = sum_vectors(
        x, torch.ones(64, 1, 64, dtype=torch.bool), None, frozenset({"n", "unit"})
    )
    sums = Sums(2)
    sums.add("s", values, torch.zeros(64).long())
    assert (
        float(sums.terms["s", "unit"].sum())
        == float(sums.terms["s", "n"].sum())
        == 4096
    )


def test_vectors_beyond_the_range_of_float32_squares_are_kept():
    values, _ = sum_vectors(
        torch.tensor([[[[1e30, 0], [0, 3.0]]]]),
        torch.ones(1, 1, 2).bool(),
        None,
        frozenset({"n", "unit", "norm"}),
    )
    assert values["n"].item() == 2 and values["nonfinite"].item() == 0
    torch.testing.assert_close(values["unit"].flatten(), torch.ones(2).double())


def test_sums_that_do_not_fit_together_are_refused():
    with pytest.raises(
        MeasureError,
        match=r"sums over 4 groups; got 5\. Cure: measure both with the same --groups",
    ):
        Sums(4).merge(Sums(5))
    with pytest.raises(MeasureError, match="at least 2 groups"):
        Sums(1)
    one, other = Sums(2), Sums(2)
    one.buffer("s", "n", (2, 3))
    other.buffer("s", "n", (2, 4))
    with pytest.raises(
        MeasureError,
        match=r"\(2, 3\); got \(2, 4\)\. Cure: merge runs of one model only",
    ):
        one.merge(other)
    with pytest.raises(MeasureError, match="one width in the whole corpus"):
        one.buffer("s", "n", (2, 5))


def test_sums_that_are_moved_to_another_device_go_on_there():
    """Those of a resumed run were read on the CPU; sums added to a copy would be lost."""
    sums = Sums(2)
    sums.buffer("s", "n", (2, 3))
    moved = sums.buffer("s", "n", (2, 3), "meta")
    assert moved.device.type == "meta" and sums.terms["s", "n"] is moved


# ---- over processes --------------------------------------------------------------------------------------------------

RANK = """
    import sys, pathlib, torch, torch.distributed as dist
    from anisoscope.sums.groups import Sums
    folder, rank = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    Sums.load(folder / f"in.{rank}").all_reduce().save(folder / f"out.{rank}")
    Sums(4).merge(Sums.load(folder / "in.0") if rank else Sums(4)).all_reduce().save(folder / f"half.{rank}")
    dist.destroy_process_group()
"""


def test_all_reduce_over_two_processes_is_merge(tmp_path):
    """Ranks that saw different sites, and a rank that saw nothing."""
    parts = [random_sums(1), random_sums(2)]
    parts[1].buffer("b.final", "n", (GROUPS, 1, 1)).add_(
        torch.arange(4.0).view(4, 1, 1)
    )
    for rank, part in enumerate(parts):
        part.save(tmp_path / f"in.{rank}")
    command = [*quick(), "-c", textwrap.dedent(RANK), str(tmp_path)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors
    for rank in (0, 1):
        check_equal(Sums.load(tmp_path / f"out.{rank}"), parts[0].merge(parts[1]))
        check_equal(Sums.load(tmp_path / f"half.{rank}"), parts[0])


# ---- replicates ------------------------------------------------------------------------------------------------------


def check_replicates():
    """Replicate 0 is the sum of all groups, replicate r the sum of all but the r-th present one; absent groups are
    none.
    """
    n = np.array([[3.0], [0], [5], [7]])
    totals = Totals({"n": n, "x": 10 * n})
    assert totals["n"].tolist() == [[15], [12], [10], [8]]
    assert totals["x"].tolist() == [[150], [120], [100], [80]]
    assert totals.groups("n").tolist() == [[3], [5], [7]]
    assert totals.over(totals.groups("n") ** 2).tolist() == [[83], [74], [58], [34]]
    assert "n" in totals and "y" not in totals


def test_replicates_leave_one_group_out_each():
    check_replicates()


def test_a_group_is_present_if_it_holds_anything():
    """Sums that cancel to zero in one term do not make a group vanish."""
    totals = Totals(
        {
            "n": np.array([[2.0], [2], [0]]),
            "unit": np.array([[[0.0, 0]], [[1, 1]], [[0, 0]]]),
        }
    )
    assert totals.present.tolist() == [True, True, False]


# ---- second moments --------------------------------------------------------------------------------------------------


def add_moments(sums, moments, x, weight, group):
    """A batch, as a measurement adds it: linear sums, then moments of what counts in them."""
    values, inverse = sum_vectors(
        x.unsqueeze(1), weight.unsqueeze(1), None, frozenset({"n"})
    )
    sums.add("s", values, group)
    moments.begin(group)
    moments.add("s", x, weight & (inverse[:, 0] > 0), inverse[:, 0])


@pytest.fixture
def wide(monkeypatch):
    """Products as of vectors of many dimensions: in float32."""
    monkeypatch.setattr("anisoscope.sums.moments.NARROW", 0)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    "dtype, d",
    [
        (torch.float64, 6),
        (torch.float64, 64),
        (torch.float64, 150),
        (torch.float32, 70),
        (torch.bfloat16, 6),
    ],
)
@pytest.mark.parametrize("hidden", [torch.nan, 1e3])
def test_moments_are_those_of_the_vectors_that_count(dtype, d, hidden):
    """Σxxᵀ, Σuuᵀ, Σx and n of each group, whatever lies in vectors of weight 0 (with NaN products are in float64); over
    several flushes.
    """
    rng = np.random.default_rng(0)
    sums, kept = Sums(3), {g: [] for g in range(3)}
    moments = Moments(sums, 3)
    for step in range(41):  # in 70 dimensions vectors are few up to half of them
        x = torch.tensor(rng.standard_normal((4, 5, d)) + 1).to(dtype)
        weight, group = (
            torch.tensor(rng.random((4, 5)) < 0.7),
            torch.tensor(rng.integers(0, 3, 4)),
        )
        x[~weight] = hidden
        add_moments(sums, moments, x, weight, group)
        for row in range(4):
            kept[int(group[row])].append(x[row][weight[row]].double())
        if step % 10 == 0:
            moments.flush()
    moments.flush()
    moments.flush()  # nothing is added twice
    rounding = (
        {"rtol": 1e-12, "atol": 1e-12}
        if dtype is torch.float64
        else {"rtol": 1e-5, "atol": 1e-4}
    )
    for g, rows in kept.items():
        x = torch.cat(rows)
        u = x / x.norm(dim=1, keepdim=True)
        for term, expected in {
            "moment": x.T @ x,
            "unit_moment": u.T @ u,
            "moment_vector": x.sum(0),
            "moment_n": torch.tensor(float(len(x))),
        }.items():
            torch.testing.assert_close(
                sums.terms["s", term][g, 0], expected.double(), **rounding
            )


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("drift", [1e2, 1e3])
def test_moments_of_a_cloud_far_from_the_origin_are_those_of_its_spread(drift):
    """Rounding was that of the drift: effective ranks of untrained convolutional networks were wrong by a quarter."""
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.randn(41, 4, 5, 6, generator=generator) * torch.linspace(1, 0.01, 6)
        + drift
    ).float()
    sums = Sums(2)
    moments = Moments(sums, 2)
    for i, batch in enumerate(x):
        add_moments(
            sums, moments, batch, torch.ones(4, 5).bool(), torch.tensor([0, 1, 1, 0])
        )
        if i % 10 == 0:
            moments.flush()
    moments.flush()
    terms = {
        term: sums.terms["s", term].sum(0)[0]
        for term in ("moment", "moment_vector", "moment_n")
    }
    mean = terms["moment_vector"] / terms["moment_n"]
    found = terms["moment"] / terms["moment_n"] - mean.outer(mean)
    expected = x.double().flatten(0, 2).T.cov(correction=0)
    torch.testing.assert_close(found.diagonal(), expected.diagonal(), rtol=2e-5, atol=0)


def test_moments_of_heads_are_those_of_the_vectors_that_count():
    """Sums and counts are both by weight, and by group."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 5, 4, generator=generator)
    weight = torch.rand(3, 2, 5, generator=generator) < 0.6
    sums, group = Sums(GROUPS), torch.tensor([1, 0, 1])
    add_head_moments(
        sums, "a", x.masked_fill(~weight.unsqueeze(-1), torch.nan), weight, group, 2
    )
    for g in range(2):
        for head in range(2):
            rows = x[group == g][:, head][weight[group == g][:, head]].double()
            assert float(sums.terms["a", "head_moment_n"][g, head]) == len(rows)
            torch.testing.assert_close(
                sums.terms["a", "head_moment"][g, head], rows.T @ rows
            )


@pytest.mark.usefixtures("wide")
def test_pending_moments_go_into_a_state_and_come_back():
    sums = Sums(2)
    moments = Moments(sums, 2)
    x = torch.randn(3, 40, 5)  # more vectors than go into float64 at once
    add_moments(sums, moments, x, torch.ones(3, 40).bool(), torch.tensor([0, 1, 1]))
    state = {name: value.clone() for name, value in moments.tensors("pending ").items()}
    moments.flush()
    other = Sums(2)
    other.terms |= {
        key: value.clone() if key[1] == "n" else value * 0
        for key, value in sums.terms.items()
    }
    back = Moments(other, 2)
    back.restore(state | {"something else": x}, "pending ")
    back.flush()
    check_equal(other, sums)


@pytest.mark.usefixtures("wide")
def test_products_take_one_thread_of_numpy_and_give_the_others_back(monkeypatch):
    """Threads of NumPy that spin when they are done kept torch's from computing: a pass took twice as long."""
    where = sys.modules[Moments.__module__]
    seen, product = [], where._add_product
    threads = lambda: {  # noqa: E731
        pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"
    }
    monkeypatch.setattr(
        where, "_add_product", lambda *a: seen.append(threads()) or product(*a)
    )
    sums = Sums(2)
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        add_moments(
            sums,
            Moments(sums, 2),
            torch.randn(3, 40, 5),
            torch.ones(3, 40).bool(),
            torch.arange(3) % 2,
        )
        assert before == {2} and threads() == before
    assert seen and all(found == {1} for found in seen)


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    """Torch's number of threads, which a test may change."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.usefixtures("wide")
def test_second_moments_are_the_same_bit_for_bit_with_any_number_of_threads(threads):
    found = []
    for number in (1, 2, 3):
        threads(number)
        sums = Sums(2)
        moments = Moments(sums, 2)
        x = torch.randn(4, 60, 40, generator=torch.Generator().manual_seed(0))
        for _ in range(3):
            add_moments(
                sums, moments, x, torch.ones(4, 60).bool(), torch.tensor([0, 0, 1, 1])
            )
        moments.flush()
        found.append(sums)
    for other in found[1:]:
        assert all(
            torch.equal(other.terms[key], value)
            for key, value in found[0].terms.items()
            if key[1] in OF_MOMENTS
        )


def test_parts_run_once_each_in_threads_of_their_own(threads):
    threads(3)
    seen = []
    run_in_parallel([partial(seen.append, i) for i in range(50)])
    assert sorted(seen) == list(range(50))
    inside = []
    run_in_parallel(
        [lambda: inside.append((threading.current_thread(), torch.get_num_threads()))]
        * 50
    )
    assert {number for _, number in inside} == {1} and threading.main_thread() not in {
        at for at, _ in inside
    }
    assert torch.get_num_threads() == 3
    later = []  # a thread that begins afterwards has as many as its caller
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [3]
    here = []
    run_in_parallel(
        [lambda: here.append(threading.current_thread())] * 9, torch.device("meta")
    )  # not the processor's
    assert set(here) == {threading.main_thread()}


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.enable_grad, torch.inference_mode]
)
def test_parts_have_the_modes_of_their_caller(threads, mode):
    threads(2)
    seen = []
    with mode():
        expected = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        run_in_parallel(
            [
                lambda: seen.append(
                    (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
                )
            ]
            * 4
        )
    assert set(seen) == {expected}


def test_an_error_in_a_part_is_raised_and_nothing_begins_after_it(threads):
    threads(2)
    begun = []

    def part(i):
        begun.append(i)
        time.sleep(0.01)
        if i == 3:
            raise KeyError("the third")

    with pytest.raises(KeyError, match="the third"):
        run_in_parallel([partial(part, i) for i in range(1000)])
    count = len(begun)
    assert count < 10
    time.sleep(0.05)
    assert len(begun) == count
    run_in_parallel([partial(begun.append, i) for i in range(5)])
    assert len(begun) == count + 5


def test_an_error_is_raised_whichever_thread_met_it(threads):
    threads(2)
    for failing in range(2):
        both_here = threading.Barrier(2)

        def part(i, failing=failing, both_here=both_here):
            both_here.wait(30)  # each thread has one of the two parts
            if i == failing:
                raise KeyError("lost")

        with pytest.raises(KeyError, match="lost"):
            run_in_parallel([partial(part, i) for i in range(2)])


PARTS = """
import os, signal, sys, threading, time
import torch
from anisoscope.sums.threads import run_in_parallel
torch.set_num_threads(2)
run_in_parallel([int] * 4)
"""


def test_a_signal_ends_the_parts_at_once_and_is_raised():
    program = (
        PARTS
        + """
begun = []
def part():
    begun.append(time.sleep(.05))
threading.Timer(.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    run_in_parallel([part] * 10_000)
except KeyboardInterrupt:
    count = len(begun)
    time.sleep(.2)
    print("raised", count < 100, len(begun) == count, torch.get_num_threads())
"""
    )
    ended = subprocess.run(
        [*quick(), "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == ["raised", "True", "True", "2"], ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own():
    program = (
        PARTS
        + """
child = os.fork()
seen = []
run_in_parallel([lambda: seen.append(1)] * 4)
if child == 0:
    os._exit(len(seen))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(seen))
"""
    )
    ended = subprocess.run(
        [*quick(), "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == ["4", "4"], ended.stderr


# ---- the sample ------------------------------------------------------------------------------------------------------


def splitmix64(seed, unit, index):
    """Steele, Lea & Flood 2014, in Python's unbounded integers."""
    golden, top = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & top
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & top
        return x ^ (x >> 31)

    return mix((mix((unit * golden + seed) & top) + (index + 1) * golden) & top) & (
        top >> 1
    )


@given(st.integers(0, 2**31), st.integers(0, 2**40), st.integers(0, 2**31))
@settings(max_examples=200, deadline=None)
def test_token_hash_is_splitmix64(seed, unit, index):
    assert int(
        hash_tokens(seed, torch.tensor(unit), torch.tensor(index))
    ) == splitmix64(seed, unit, index)


LENGTHS = [int(n) for n in np.random.default_rng(9).integers(1, 40, 25)]


def sampled(size, seed=0, order=None, batch=4, window=16, units=None):
    """A reservoir over units of `LENGTHS` tokens, whose vectors name them: (unit, index)."""
    rows = [
        (u, s)
        for u in (range(len(LENGTHS)) if units is None else units)
        for s in range(0, LENGTHS[u], window)
    ]
    rows = (
        rows
        if order is None
        else [rows[i] for i in np.random.default_rng(order).permutation(len(rows))]
    )
    reservoir = Reservoir(size, seed)
    for first in range(0, len(rows), batch):
        part = rows[first : first + batch]
        unit, start = (torch.tensor(side) for side in zip(*part, strict=True))
        index = start[:, None] + torch.arange(window)
        real = index < torch.tensor([LENGTHS[u] for u, _ in part])[:, None]
        reservoir.begin(unit, start, real)
        reservoir.add(
            "s", torch.stack([unit[:, None].expand_as(index), index], -1).double()
        )
        reservoir.end()
    return reservoir


def contents(reservoir):
    assert reservoir.hash.tolist() == sorted(reservoir.hash.tolist())
    assert torch.equal(reservoir.vectors["s"][:, 0].long(), reservoir.unit)
    hashes = hash_tokens(
        reservoir.seed, reservoir.unit, reservoir.vectors["s"][:, 1].long()
    )
    assert torch.equal(
        hashes, reservoir.hash
    )  # vectors, units and hashes stay together
    return [tuple(v) for v in reservoir.vectors["s"].int().tolist()]


def test_the_sample_does_not_depend_on_batches_or_their_order():
    expected = contents(sampled(50))
    every = {(u, i) for u, n in enumerate(LENGTHS) for i in range(n)}
    ranked = sorted(every, key=lambda token: splitmix64(0, *token))
    assert expected == ranked[:50]
    for way in (
        {"batch": 1},
        {"batch": 99},
        {"order": 1},
        {"order": 2, "batch": 7},
        {"window": 3},
    ):
        assert contents(sampled(50, **way)) == expected


class Ranks:
    """As `torch.distributed` between threads, each a process of its own."""

    def __init__(self, world):
        self.world, self.here = world, threading.local()
        self.barrier, self.given = threading.Barrier(world, timeout=20), [None] * world

    def exchanged(self, x):
        self.given[self.here.rank] = x
        self.barrier.wait()
        every = list(self.given)
        self.barrier.wait()
        return every

    def of_each(self, parts, monkeypatch):
        """What `all_reduce` of each of the parts gives in its process."""
        for name in (
            "get_world_size",
            "get_rank",
            "get_backend",
            "all_gather_object",
            "all_reduce",
        ):
            monkeypatch.setattr(torch.distributed, name, getattr(self, name))
        found = [None] * self.world

        def work(rank):
            self.here.rank = rank
            found[rank] = parts[rank].all_reduce()

        threads = [
            threading.Thread(target=work, args=(rank,)) for rank in range(self.world)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def get_world_size(self):
        return self.world

    def get_rank(self):
        return self.here.rank

    def get_backend(self):
        return "gloo"

    def all_gather_object(self, into, x):
        into[:] = self.exchanged(x)

    def all_reduce(self, x):
        x.copy_(sum(self.exchanged(x.clone())))


def test_samples_of_processes_are_the_sample_of_all(monkeypatch):
    """The first process has the fewest tokens, one has none and knows no site."""
    parts = [
        sampled(50, units=units)
        for units in (range(2), range(2, 25, 2), range(3, 25, 2))
    ]
    for each in Ranks(4).of_each([*parts, Reservoir(50, 0)], monkeypatch):
        assert (
            contents(each) == contents(sampled(50))
            and each.vectors["s"].dtype == torch.float64
        )


def test_sums_of_processes_are_merged(monkeypatch):
    """Terms that only one process has are in all of them; units are those of any."""
    drawn, parts = torch.Generator().manual_seed(0), []
    for rank, terms in enumerate((("n", "unit"), ("unit", "zero"), ())):
        part = Sums(GROUPS)
        part.units = {rank, 10 * rank}
        for term in terms:
            part.buffer("a", term, SHAPES[term]).add_(
                torch.randn(SHAPES[term], generator=drawn, dtype=torch.float64)
            )
        parts.append(part)
    expected = parts[0].merge(parts[1]).merge(parts[2])
    for each in Ranks(3).of_each(parts, monkeypatch):
        check_equal(each, expected)
        assert each.units == {0, 1, 10, 2, 20} and each.groups == GROUPS


def test_samples_merge():
    odd, even = (sampled(50, units=range(first, 25, 2)) for first in (1, 0))
    assert (
        contents(odd.merge(even)) == contents(even.merge(odd)) == contents(sampled(50))
    )
    assert (
        contents(odd.merge(Reservoir(50, 0)))
        == contents(Reservoir(50, 0).merge(odd))
        == contents(odd)
    )


def test_a_sample_larger_than_the_corpus_is_the_corpus_and_padding_is_never_in_it():
    assert sorted(contents(sampled(10_000))) == [
        (u, i) for u, n in enumerate(LENGTHS) for i in range(n)
    ]


def test_the_sample_is_uniform():
    """Over 400 seeds every token is drawn as often as every other: χ² of tokens, and of tokens by unit."""
    total, size = sum(LENGTHS), 40
    unit = torch.tensor([u for u, n in enumerate(LENGTHS) for _ in range(n)])
    index = torch.tensor([i for n in LENGTHS for i in range(n)])
    times = np.zeros(total)
    for seed in range(400):
        reservoir = Reservoir(size, seed)
        reservoir.begin(
            torch.arange(len(LENGTHS)),
            torch.zeros(len(LENGTHS)).long(),
            torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None],
        )
        reservoir.end()
        chosen = torch.isin(hash_tokens(seed, unit, index), reservoir.hash).numpy()
        assert chosen.sum() == size
        times += chosen
    share = size / total
    spread = ((times - 400 * share) ** 2 / (400 * share * (1 - share))).sum()
    assert 1e-3 < stats.chi2.sf(spread, total - 1) < 1 - 1e-3
    by_unit = np.bincount(unit, times)
    expected = 400 * share * np.array(LENGTHS)
    assert (
        stats.chi2.sf(
            ((by_unit - expected) ** 2 / (expected * (1 - share))).sum(),
            len(LENGTHS) - 1,
        )
        > 1e-3
    )


def test_a_saved_sample_goes_on():
    first = sampled(50, units=range(12))
    back = Reservoir(50, 0)
    back.restore(first.tensors("sample "), "sample ")
    assert contents(back.merge(sampled(50, units=range(12, 25)))) == contents(
        sampled(50)
    )


# ---- norms at the ends of what numbers can be ------------------------------------------------------------------------

RANGES = {  # exponents of ten of the norms of each vector, by type
    "float32": (-44.0, 37.0),
    "bfloat16": (-40.0, 37.0),
    "float16": (-6.0, 4.0),
    "float64": (-150.0, 150.0),
}


def scaled_vectors(dtype, kind, heads, seed=0):
    """Vectors [sequence, head, token, dim] of tiny, huge or all norms a type can hold, around a common direction."""
    rng = np.random.default_rng(seed)
    low, high = RANGES[dtype]
    least, most = {
        "tiny": (low, low + 4),
        "huge": (high - 4, high),
        "mixed": (low, min(high, 10)),
    }[kind]
    x = rng.standard_normal((4, heads, 9, 6)) + 0.8
    x *= 10 ** rng.uniform(least, most, (4, heads, 9, 1)) / np.linalg.norm(
        x, axis=-1, keepdims=True
    )
    x[0, 0, 0] = 0.0
    return torch.tensor(x).to(getattr(torch, dtype))


@pytest.mark.parametrize("laid", ["side by side", "apart"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", ["tiny", "huge", "mixed"])
@pytest.mark.parametrize("dtype", RANGES)
def test_vectors_of_every_norm_that_a_type_can_hold(dtype, kind, heads, laid):
    """Squares of float32 vanish under norms of 1e-22 and overflow over 1e19: A and drift were wrong, silently."""
    x = scaled_vectors(dtype, kind, heads)
    expected = x.double().numpy()
    norm = np.linalg.norm(expected, axis=-1)
    u = np.divide(
        expected,
        norm[..., None],
        out=np.zeros_like(expected),
        where=norm[..., None] > 0,
    )
    if laid == "apart":
        x = x.transpose(2, 3).contiguous().transpose(2, 3)
    terms = frozenset({"n", "unit", "vector", "norm", "norm_square", "unit_square"})
    values, inverse = sum_vectors(x, torch.ones(4, 1, 9).bool(), None, terms)
    rounding = 1e-12 if dtype == "float64" else 1e-5
    assert (
        int(values["zero"].sum()) == (norm == 0).sum()
        and int(values["nonfinite"].sum()) == 0
    )
    assert values["n"][:, 0].tolist() == (norm > 0).sum(-1).tolist()
    for name, of in {"unit": u, "unit_square": u**2}.items():
        np.testing.assert_allclose(
            values[name][:, 0], of.sum(2), rtol=rounding, atol=9 * rounding
        )
    for name, of in {
        "vector": expected,
        "norm": norm[..., None],
        "norm_square": norm[..., None] ** 2,
    }.items():
        found = values[name][:, 0].double().numpy().reshape(of.sum(2).shape)
        np.testing.assert_allclose(
            found, of.sum(2), rtol=rounding, atol=rounding * np.abs(of).max()
        )
    np.testing.assert_allclose(inverse.double() * norm, norm > 0, rtol=rounding)


@pytest.mark.parametrize("kind", ["tiny", "huge", "mixed"])
def test_second_moments_of_every_norm(kind):
    """Σuuᵀ and Σxxᵀ too: float32 has no squares of such numbers."""
    x = scaled_vectors("float32", kind, 1)[:, 0].repeat(1, 20, 1)
    sums = Sums(2)
    moments = Moments(sums, 2)
    weight, group = (x != 0).any(-1), torch.tensor([0, 1, 0, 1])
    add_moments(sums, moments, x, weight, group)
    moments.flush()
    for g in range(2):
        rows = x[group == g][weight[group == g]].double()
        u = rows / rows.norm(dim=1, keepdim=True)
        for term, expected in {"moment": rows.T @ rows, "unit_moment": u.T @ u}.items():
            found = sums.terms["s", term][g, 0]
            torch.testing.assert_close(
                found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max())
            )


def test_norms_beyond_float64_s_squares_are_left_out_and_counted():
    x = torch.tensor(
        [[[[1e-200, 0], [3.0, 4.0], [0, 1e200], [float("inf"), 0], [0, 0]]]],
        dtype=torch.float64,
    )
    values, inverse = sum_vectors(
        x, torch.ones(1, 1, 5).bool(), None, frozenset({"n", "unit", "norm"})
    )
    assert (
        values["n"].item() == 1
        and values["zero"].item() == 2
        and values["nonfinite"].item() == 2
    )
    assert (
        values["unit"].flatten().tolist() == pytest.approx([0.6, 0.8])
        and values["norm"].item() == 5
    )
    assert inverse.flatten().tolist() == [0, 0.2, 0, 0, 0]


def test_few_vectors_have_their_rank_whatever_the_batch():
    """200 float32 vectors in 384 dimensions: 184 directions without variance had that of rounding, and the effective
    rank moved by .3 %.
    """
    x = (
        torch.randn(200, 384, generator=torch.Generator().manual_seed(0))
        * torch.linspace(3, 0.01, 384)
        + 0.5
    )
    exact = x.double().T @ x.double()
    for batch in (200, 64, 7):
        sums = Sums(2)
        moments = Moments(sums, 2)
        for rows in x.split(batch):
            add_moments(
                sums,
                moments,
                rows[None],
                torch.ones(1, len(rows)).bool(),
                torch.tensor([0]),
            )
        moments.flush()
        found = sums.terms["s", "moment"][0, 0]
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-9)
        assert float(torch.linalg.eigvalsh(found)[:184].abs().max()) < 1e-10 * float(
            exact.diagonal().max()
        )


def test_shapes_of_arguments_are_checked_while_tests_run():
    """A mask of other tokens than the vectors is seen at the call, not in a product far below."""
    with pytest.raises(TypeCheckError, match="token"):
        sum_vectors(
            torch.zeros(2, 1, 5, 3),
            torch.ones(2, 1, 4, dtype=torch.bool),
            None,
            frozenset({"unit"}),
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize(
    "group",
    [
        torch.arange(96) % 8,
        (torch.arange(96) + 3) % 8,
        torch.arange(97) % 8,
        torch.arange(96) // 20,
        torch.arange(96) % 8 // 2 * 2,
        torch.arange(96) * 7 % 11 % 8,
    ],
    ids=[
        "in-turn",
        "in-turn-from-3",
        "one-over",
        "side-by-side",
        "half-empty",
        "mixed",
    ],
)
def test_single_vectors_are_summed_by_group_as_sequences_are(group, odd, dtype):
    torch.manual_seed(0)
    x, terms = torch.randn(len(group), 1, 12).to(dtype) + 0.5, SINGLE_TERMS
    if odd:
        x[5], x[7, 0, 3], x[9] = 0, math.nan, x[9] * 1e-30
    masks, subsets = (
        torch.rand(len(group), 2, 1) > 0.2,
        torch.rand(len(group), 3, 1) > 0.5,
    )
    plain, ours = Sums(8), Sums(8)
    values, inverse = sum_vectors(x.unsqueeze(1), masks, subsets, terms)
    plain.add("site", values, group)
    values, of_vectors, present = sum_single_vectors(x, masks, subsets, terms, group)
    ours.add("site", values, present)
    assert ours.terms.keys() == plain.terms.keys()
    near = (
        {"rtol": 1e-12, "atol": 1e-12}
        if dtype == torch.float64
        else {"rtol": 2e-6, "atol": 2e-6}
    )
    for key, value in plain.terms.items():
        torch.testing.assert_close(ours.terms[key], value, **near)
    torch.testing.assert_close(of_vectors, inverse)


def test_vectors_that_are_left_out_are_counted_among_those_of_the_first_policy():
    """Of each sequence those that are zero or not finite, whatever other policies leave out."""
    x = torch.ones(2, 1, 4, 3)
    x[0, 0, 0] = x[0, 0, 2] = x[1, 0, 3] = 0
    x[1, 0, 1] = torch.nan
    masks = torch.ones(2, 2, 4, dtype=torch.bool)
    masks[:, 1, :2] = False
    masks[1, 0, 3] = False  # padding
    values, _ = sum_vectors(x, masks, None, frozenset({"n"}))
    assert values["zero"].tolist() == [2, 0] and values["nonfinite"].tolist() == [0, 1]
    assert values["n"].squeeze(-1).tolist() == [[2, 1], [2, 1]]
