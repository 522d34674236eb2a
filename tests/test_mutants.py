"""The checks can fail: each of these mistakes, put into the code for a moment, is caught by the check named beside it.

A mutant replaces text in the source of one function and swaps the function's code, so that every holder of it sees
the change.
"""

import inspect
import re
import textwrap
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, SimpleNamespace

import mutant_places
import mutant_tests
import mutants as tool
import numpy as np
import pytest
import test_capture
import test_jackknife
import test_measuring
import test_metrics
import test_no_silent_wrong_number
import test_sums
from transformers.utils import import_utils

from anisoscope.capture import backends, masking as visible, projections, rows
from anisoscope.capture.heads import Heads
from anisoscope.capture.tap import Tap
from anisoscope.measure import loop as measuring, masks
from anisoscope.metrics import (
    calibrated,
    drift,
    group_cosine,
    mean_cosine,
    norms,
    partition,
    spectrum,
)
from anisoscope.reads.rows import add_rows
from anisoscope.sums import groups as sums, jackknife
from anisoscope.sums.groups import Sums, Totals, _sum_piece, sum_rows
from anisoscope.sums.moments import Moments
from anisoscope.sums.reservoir import Reservoir, hash_tokens

ROOT = Path(__file__).parents[1]


def code_named(code, name):
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found = constant if constant.co_name == name else code_named(constant, name)
            if found is not None:
                return found
    return None


def however_wrapped(text):
    """Return a pattern that finds `text` whatever lines a formatter has broken it into."""
    pattern = ""
    before = ""
    for token in re.findall(r"\w+|\S", text):
        both_words = before.isidentifier() and token.isidentifier()
        pattern += r"\s+" if both_words else r"\s*"
        pattern += r",?\s*" + re.escape(token) if token in ")]}" else re.escape(token)
        before = token[-1]
    return pattern.removeprefix(r"\s*")


def test_a_text_is_found_however_it_is_wrapped():
    found = re.compile(however_wrapped("f(a, b[0])")).search(
        "x = f(\n    a,\n    b[0],\n)"
    )
    assert found is not None and found[0].startswith("f(")
    assert re.search(however_wrapped("not in held"), "notin held") is None


@contextmanager
def mutant(function, old, new):
    """`function` with `old` replaced by `new` in its source, everywhere it is held."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    source = textwrap.dedent(inspect.getsource(function))
    pattern = re.compile(however_wrapped(old))
    assert pattern.search(source), (
        f"{function.__qualname__} no longer says {old!r}: name the mutant again"
    )
    kept = function.__code__
    function.__code__ = code_named(
        compile(
            pattern.sub(lambda _: new, source),
            f"<mutant of {function.__qualname__}>",
            "exec",
        ),
        function.__name__,
    )
    try:
        yield
    finally:
        function.__code__ = kept


def reference(name):
    return lambda tmp_path: test_metrics.check_reference(name)  # noqa: ARG005


def captured(check, *arguments):
    """A check of captured values, on a fresh call of the model."""

    def run(tmp_path):  # noqa: ARG001
        test_capture.seen.cache_clear()
        try:
            check(*arguments)
        finally:
            test_capture.seen.cache_clear()

    return run


def simply(check, *arguments, **named):
    return lambda tmp_path: check(*arguments, **named)  # noqa: ARG005


hidden, rows_of, projected = (
    test_capture.check_hidden,
    test_capture.check_rows,
    test_capture.check_projections,
)
read = visible.Masking.read

MUTANTS = {
    "diagonal included": (
        mean_cosine.compute,
        "dot(unit, unit) - n",
        "dot(unit, unit)",
        reference("mean_cosine"),
    ),
    "n² pairs": (mean_cosine.compute, "n * (n - 1)", "n * n", reference("mean_cosine")),
    "pairs inside groups kept": (
        mean_cosine._compute_between,
        "- totals.over(dot(unit_g, unit_g))",
        "",
        reference("mean_cosine"),
    ),
    "diagonal of subsets included": (
        group_cosine.compute,
        "product - same * n[:, first]",
        "product",
        reference("group_cosine"),
    ),
    "diagonal of sequences included": (
        sums._cosine_inside_sequences,
        "unit.square().sum(-1) - n",
        "unit.square().sum(-1)",
        reference("intra_sequence"),
    ),
    "biased variance": (norms.compute, "n - 1)", "n)", reference("norms")),
    "sum for mean": (
        drift.compute,
        'ratio(length, totals["n"])',
        "length",
        reference("drift"),
    ),
    "not centred": (
        spectrum._decompose_once,
        "diagonal[0] -= length**2",
        "diagonal[0] -= 0",
        reference("spectrum"),
    ),
    "eigenvalues for singular values": (
        spectrum.compute,
        "_compute_entropy_rank(np.sqrt(eigenvalues))",
        "_compute_entropy_rank(eigenvalues)",
        reference("spectrum"),
    ),
    "rows for eigenvectors": (
        partition.sum_partition,
        "rows @ eigenvectors",
        "rows @ eigenvectors.T",
        reference("partition"),
    ),
    "one sign": (
        partition.sum_partition,
        "np.negative(projected, out=projected)",
        "projected",
        reference("partition"),
    ),
    "sample not centred": (
        calibrated.sum_sample,
        "vectors - mean",
        "vectors",
        reference("calibrated"),
    ),
    "bf16 accumulation": (
        Sums.add,
        "value.double()",
        "value.bfloat16().double()",
        reference("mean_cosine"),
    ),
    "bf16 norms": (
        _sum_piece,
        "norm.double()",
        "norm.bfloat16().double()",
        reference("norms"),
    ),
    "mask forgotten in sums": (
        _sum_piece,
        "masks = masks.to(x.dtype)",
        "masks = torch.ones_like(masks).to(x.dtype)",
        simply(test_metrics.check_padding, "mean_cosine", 1e3),
    ),
    "mask forgotten in moments": (
        Moments.add,
        "rows[real], inv[real]",
        "rows, inv",
        simply(test_metrics.check_padding, "spectrum", 1e3),
    ),
    "zero vectors counted": (
        _sum_piece,
        "usable = norm > 0",
        "usable = norm >= 0",
        simply(test_measuring.test_zero_vectors_are_counted_and_left_out),
    ),
    "NaN averaged": (
        sum_rows,
        "real & sound",
        "real",
        simply(
            test_measuring.test_nan_and_inf_are_counted_per_layer_and_left_out,
            float("nan"),
        ),
    ),
    "group left out twice": (
        Totals.over,
        "total - per_group",
        "total - 2 * per_group",
        simply(test_sums.check_replicates),
    ),
    "group left out twice, by intervals": (
        Totals.over,
        "total - per_group",
        "total - 2 * per_group",
        simply(test_jackknife.check_mean_of_groups),
    ),
    "no jackknife factor": (
        jackknife.jackknife_interval,
        "(groups - 1) / groups",
        "1 / groups",
        simply(test_jackknife.check_mean_of_groups),
    ),
    "normal for Student": (
        jackknife.jackknife_interval,
        "_compute_student_quantile(groups - 1, (1 + level) / 2)",
        "_compute_normal_quantile((1 + level) / 2)",
        simply(test_jackknife.check_mean_of_groups),
    ),
    "mask forgotten in attention": (
        read,
        "return cls(mask if mask.dtype == torch.bool else mask != 0, False, bias)",
        "return cls(None, False, bias)",
        captured(rows_of, "bert", "left"),
    ),
    "causality forgotten": (
        read,
        "return cls(None, causal and backend not in BY_MASK_ALONE, bias)",
        "return cls(None, False, bias)",
        captured(rows_of, "gpt2", "none"),
    ),
    "position bias forgotten": (
        read,
        'settings.get("position_bias")',
        "None",
        captured(rows_of, "t5", "right"),
    ),
    "scale forgotten": (
        visible.Call.scale.fget,
        "self.query.shape[-1] ** -0.5 if scale is None else scale",
        "1.0",
        captured(rows_of, "bert", "right"),
    ),
    "soft cap forgotten": (
        Heads._compute_rows,
        'call.settings.get("softcap")',
        "None",
        captured(rows_of, "gemma2", "right"),
    ),
    "padded queries counted": (
        Heads._find_real_queries,
        "real.shape[1] != call.query.shape[2]",
        "True",
        captured(rows_of, "bert", "right"),
    ),
    "padding is the first key": (
        rows._Walk.blocks,
        "slice(start, last)",
        "slice(0, last)",
        captured(rows_of, "bert", "left"),
    ),
    "keys shared by the wrong heads": (
        rows._Walk.__init__,
        "key.repeat_interleave(shared, 1)",
        "key.repeat(1, shared, 1, 1)",
        captured(rows_of, "llama", "right"),
    ),
    "diagonal of rows included": (
        rows._Walk._compute_similarity,
        ".square().sum(-1) - n",
        ".square().sum(-1)",
        captured(rows_of, "bert", "right"),
    ),
    "layer off by one": (
        Tap._leave,
        'here.layer, "hidden"',
        'here.layer - 1, "hidden"',
        captured(hidden, "bert", "right"),
    ),
    "attention layer off by one": (
        Heads._make_site,
        "self.tap.running[stack].layer, kind",
        "self.tap.running[stack].layer - 1, kind",
        captured(rows_of, "bert", "right"),
    ),
    "output after the final norm": (
        Tap._leave,
        "find_output(block, output)",
        "find_output(block, output) * 1.001",
        captured(hidden, "llama", "right"),
    ),
    "fused projection split as GPT-2's": (
        projections._split_fused,
        'how == "by head"',
        'how == "nowhere"',
        captured(projected, "gpt_neox", "right"),
    ),
    "sink no outcome": (
        rows._Walk.result,
        "keys + 1",
        "keys",
        simply(
            test_no_silent_wrong_number.test_6_uniform_rows_with_a_sink_have_normalised_entropy_1
        ),
    ),
    "gate taken for heads": (
        projections.Source._compute_raw,
        "2 * dim if is_gated else dim",
        "dim",
        simply(
            test_no_silent_wrong_number.test_7_raw_queries_are_no_gates, "qwen3_next"
        ),
    ),
    "mask of the backend lost": (
        backends.wrap_backend,
        "made.append(function(module, query, key, value, attention_mask, ",
        "made.append(function(module, query, key, value, None, ",
        simply(test_capture.check_outputs, "t5", "left"),
    ),
    "padding counted by the loop": (
        masks.Masks.of,
        "real = stream.mask",
        "real = torch.ones_like(stream.mask)",
        simply(test_measuring.check_batches, batch=7),
    ),
    "padded rows counted by the loop": (
        add_rows,
        "real.unsqueeze(1) & (keys > 0)",
        "keys > 0",
        simply(test_measuring.check_batches, batch=7),
    ),
    "unit forgotten in the sample": (
        hash_tokens,
        "unit.long() * _GOLDEN",
        "unit.long() * 0",
        simply(test_sums.test_the_sample_does_not_depend_on_batches_or_their_order),
    ),
    "sample keeps the newest": (
        Reservoir._sort_in_new,
        "torch.argsort(joined, stable=True)",
        "torch.argsort(joined, stable=True, descending=True)",
        simply(test_sums.test_samples_merge),
    ),
    "merge forgets the other": (
        Sums.merge,
        "merged.terms[key] + total",
        "merged.terms[key]",
        simply(test_measuring.test_shards_of_one_plan_merge),
    ),
    "pending products lost on resume": (
        Moments.restore,
        "self.pending[site, term, int(g)] = matrix",
        "pass",
        test_measuring.check_resume,
    ),
    "sample lost on resume": (
        Reservoir.restore,
        'tensors[f"{prefix}hash"], tensors[f"{prefix}unit"]',
        "self.hash, self.unit",
        test_measuring.check_resume,
    ),
    "batch skipped on resume": (
        measuring.pending_batches,
        "index not in held",
        "index not in held | {1 + max(held, default=-2)}",
        test_measuring.check_resume,
    ),
    "batch measured twice on resume": (
        measuring.pending_batches,
        "index not in held",
        "index not in held - {max(held, default=-1)}",
        test_measuring.check_resume,
    ),
}
"""Name → (function, text in it, what stands there instead, the check that must fail)."""


KILLED = (
    Exception,
    pytest.fail.Exception,
)  # an error, or a check's own "did not raise", kills as well as a difference


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name, tmp_path):
    function, old, new, check = MUTANTS[name]
    for folder in ("sound", "mutant"):
        (tmp_path / folder).mkdir()
    with mutant(function, old, old):  # swapping code that is the same changes nothing
        check(tmp_path / "sound")
    with pytest.raises(KILLED), np.errstate(all="ignore"), mutant(function, old, new):
        check(tmp_path / "mutant")


def test_a_mutant_whose_text_is_gone_says_so():
    with (
        pytest.raises(AssertionError, match="no longer says 'nowhere'"),
        mutant(Totals.over, "nowhere", ""),
    ):
        pass


def test_mutants_are_drawn_in_every_package_of_both_distributions():
    """`make mutants`: a package without tests of its own named ended in a KeyError, and the papers were not found."""
    packages = {
        path.parent.name for path in (ROOT / "src/anisoscope").glob("*/__init__.py")
    }
    papers = {
        path.parent.name
        for path in (ROOT / "papers/src/anisoscope_papers").glob("*/__init__.py")
    }
    assert papers
    assert packages | papers | {"top", "papers"} == {*tool.NAMED}
    for area, named in tool.NAMED.items():
        for path in mutant_places.modules(ROOT, area):
            module = str(path.relative_to(ROOT))
            assert (
                tool.area_of(module) == area
                and mutant_tests.path_in_tree(str(path)) == module
            )
        for name in named.split():
            folders = [
                folder
                for folder in mutant_tests.TESTS_IN
                if (ROOT / folder / f"test_{name}.py").exists()
            ]
            assert len(folders) == 1, f"{area}: test_{name}.py"
    assert [path.name for path in mutant_places.modules(ROOT, "papers/judge")] == [
        "judge.py"
    ]
    with pytest.raises(ValueError, match="nowhere is no package"):
        mutant_places.modules(ROOT, "nowhere")


def test_no_file_of_ours_has_the_name_of_a_package_that_libraries_look_for():
    """`tools/kernels.py` was imported as the package of that name, and our own with it: before any mutant was made."""
    names = set(
        re.findall(
            r'is_package_available\("([\w.]+)"',
            Path(import_utils.__file__).read_text("utf-8"),
        )
    )
    folders = [tool.ROOT / folder for folder in mutant_tests.IMPORTED_FROM]
    files = {path.stem for folder in folders for path in folder.glob("*.py")}
    assert "kernels" in names and "mutants" in files and not names & files


def test_what_is_imported_beforehand_is_not_ours(monkeypatch):
    """A fork that finds the package imported would test that, and every mutant would live."""
    monkeypatch.setattr(mutant_tests, "MORE", "")
    monkeypatch.setattr(
        mutant_tests.importlib,
        "import_module",
        lambda _: SimpleNamespace(quick=list, IMPORTED=""),
    )
    with pytest.raises(RuntimeError, match="every fork would test it"):
        mutant_tests.import_slow()
