"""Small decisions of a pass and of its pages, each on a few numbers: which end, which of two, from how many on."""

import signal
import types

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture.heads import _merge_windows
from anisoscope.errors import CorpusError, MeasureError, OutputError, UsageError
from anisoscope.measure import accumulator, calls, cost, distributed, functional, inputs
from anisoscope.measure.settings import Settings
from anisoscope.measure.tabulate import Replicates
from anisoscope.report import atlas, card, comparison, figures, pushing, sections
from anisoscope.report.results import Results, describe_extent, sort_by_keys
from anisoscope.store import as_records

NAN = float("nan")


# ---- what a pass keeps -----------------------------------------------------------------------------------------------


def test_windows_of_a_sequence_are_averaged_added_or_joined():
    """Two sequences of two windows each: of one window nothing is known of how alike its rows are."""
    per_row = torch.arange(16.0).view(4, 2, 2)  # [sequence · window, head, query]
    alike = torch.tensor([[0.2, 0.3], [0.4, 0.1], [torch.nan, 0.5], [0.6, 0.7]])
    counts = torch.ones(4, 2, 3)
    merged = _merge_windows(
        {"entropy": per_row, "row_similarity": alike, "score_histogram": counts}, 2
    )
    torch.testing.assert_close(
        merged["row_similarity"], torch.tensor([[0.3, 0.2], [0.6, 0.6]])
    )
    assert (
        merged["entropy"][0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
        and (merged["score_histogram"] == 2).all()
    )


def test_values_without_a_group_stand_under_the_number_of_that_group():
    """Groups 1 and 3 of five hold nothing of the first two rows."""
    kept = Replicates(5)
    kept.add(0, np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), np.array([0, 2, 4]))
    kept.add(2, np.arange(5.0)[None], np.arange(5))
    rows, values = kept.arrays()
    assert rows.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(
        values[:2], [[0.1, NAN, 0.2, NAN, 0.3], [0.4, NAN, 0.5, NAN, 0.6]]
    )


def test_tokens_of_a_batch_are_the_real_ones_of_its_first_stack():
    def stream(*lengths):
        mask = torch.arange(5) < torch.tensor(lengths)[:, None]
        return Stream(
            mask, torch.zeros_like(mask), torch.zeros(len(lengths), dtype=torch.int64)
        )

    batch = Batch(
        {}, torch.arange(2), {"encoder": stream(5, 2), "decoder": stream(1, 1)}
    )
    assert (batch.n_tokens, Batch({}, torch.arange(2)).n_tokens) == (7, 2)


# ---- what a pass is given --------------------------------------------------------------------------------------------


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 2)

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None):  # noqa: ARG002
        return self.words(input_ids)


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Linear(3, 2)

    def forward(self, x):
        return self.own(x)


def test_arguments_are_named_after_the_parameters():
    caller = calls.Caller(Reader(), None)
    ids, mask, vectors = (
        torch.ones(2, 3, dtype=torch.int64),
        torch.ones(2, 3),
        torch.ones(2, 3, 4),
    )
    assert list(caller.name_arguments((ids, mask))) == ["input_ids", "attention_mask"]
    assert list(caller.name_arguments(ids)) == ["input_ids"] and list(
        caller.name_arguments(vectors)
    ) == ["inputs_embeds"]
    assert list(caller.name_arguments((ids, torch.tensor([0, 1])))) == ["input_ids"]
    assert caller.warnings == [
        "the second of each pair was taken for its labels and not given to the model"
    ]
    assert list(calls.Caller(None, None).name_arguments(torch.ones(1, 3, 4, 4))) == [
        "pixel_values"
    ]
    assert list(calls.Caller(None, None).name_arguments(ids)) == ["input_ids"]
    with pytest.raises(UsageError, match="at most 3 arguments"):
        caller.name_arguments((ids, mask, mask, mask))
    assert (
        calls.Caller(Line(), None).name_arguments([np.ones((2, 3))])["x"].dtype
        == torch.float32
    )
    for bad, said in (([[1, 2], [3]], "different lengths"), ([["a"]], "numbers in")):
        with pytest.raises(UsageError, match=said):
            caller.name_arguments({"input_ids": bad})


def test_arguments_that_a_model_takes():
    caller = calls.Caller(Reader(), None)
    ids = torch.ones(2, 3, dtype=torch.int64)
    kept = caller.select_accepted({"input_ids": ids, "labels": ids[:, 0]})
    assert list(kept) == ["input_ids"] and "labels is no argument" in caller.warnings[0]
    line = calls.Caller(Line(), None)
    assert list(
        line.select_accepted({"x": torch.ones(2, 3), "attention_mask": ids})
    ) == ["x"]
    for owner, given, said in (
        (caller, {"input_ids": ids, "other": ids}, "arguments of Reader"),
        (caller, {"input_ids": ids.float()}, "token ids"),
        (
            caller,
            {"input_ids": ids, "attention_mask": ids * 2},
            "0 and 1 in attention_mask",
        ),
        (line, {"x": ids}, "floating-point inputs"),
    ):
        with pytest.raises(UsageError, match=said):
            owner.select_accepted(dict(given))


@pytest.mark.parametrize("twice", [0, 2])
def test_a_function_calls_the_model_once(twice):
    model = Line()
    caller = calls.Caller(model, lambda own, x: [own(x) for _ in range(twice)])
    with pytest.raises(UsageError, match=f"{twice} calls"):
        caller(inputs=torch.ones(1, 3))
    assert calls.Caller(model, lambda own, x: own(x))(
        inputs=torch.ones(1, 3)
    ).shape == (1, 2)


def test_what_is_no_model():
    for thing, said in (
        (Line, "the class Line"),
        ("x", "str"),
        ([Line()], "tokenizer as processor="),
        ([1], "one array"),
    ):
        with pytest.raises(UsageError, match=said):
            calls.check_module(thing)
    partly = Line()
    partly.own.weight = nn.Parameter(torch.empty(2, 3, device="meta"))
    with pytest.raises(UsageError, match="device meta"):
        calls.check_module(partly)
    calls.check_module(Line())
    with pytest.raises(UsageError, match="a model that takes input_ids"):
        calls.check_called_by_name(Line(), ["input_ids"])


def test_units_and_labels_of_given_inputs():
    ids = torch.ones(2, 3, dtype=torch.int64)
    given = inputs.GivenInputs(
        [{"input_ids": ids, "labels": [2, 0]}, {"input_ids": ids}], units=[*"abac"]
    )
    first, second = given
    assert (
        first.unit.tolist() == [0, 1]
        and second.unit.tolist() == [0, 2]
        and given.tokens == [6, 6]
    )
    assert second.streams["encoder"].start.tolist() == [
        inputs.LONGEST,
        0,
    ] and first.label.tolist() == [2, 0]
    assert given.classes == ("0", "1", "2") and len(given) == 2
    for model, forward in (
        (Reader(), None),
        (Reader(), lambda model, item: model(item["input_ids"])),
        (None, None),
    ):
        (batch,) = inputs.GivenInputs(
            [{"input_ids": ids, "labels": [2, 0]}], model, forward=forward
        )
        assert batch.label.tolist() == [2, 0]
    assert [batch.unit.tolist() for batch in inputs.GivenInputs([ids, ids])] == [
        [0, 1],
        [2, 3],
    ]
    for units in ([], [*"abc"], [*"abcde"]):
        with pytest.raises(UsageError):
            list(inputs.GivenInputs([ids, ids], units=units))
    for bad, error in (
        ([], CorpusError),
        ("text", UsageError),
        (["a"], UsageError),
        ([torch.ones(3)], UsageError),
        (3, UsageError),
    ):
        with pytest.raises(error):
            inputs.GivenInputs(bad)
    prints = [
        inputs.GivenInputs([x]).fingerprint
        for x in (ids, ids, ids * 2, ids.reshape(3, 2), ids.int())
    ]
    assert prints[0] == prints[1] and len(set(prints)) == 4


def test_real_positions_of_given_inputs():
    ids, start = torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 100])
    left = torch.tensor([[0, 1, 1], [1, 1, 1]])
    streams = inputs._build_streams(
        {"input_ids": ids, "attention_mask": left}, None, start
    )
    assert (
        streams["encoder"].start.tolist() == [-1, 100]
        and streams["decoder"].mask.sum() == 5
    )
    both = inputs._build_streams(
        {"input_ids": ids, "decoder_input_ids": ids[:, :2]}, None, start
    )
    assert both["encoder"].mask.shape == (2, 3) and both["decoder"].mask.shape == (2, 2)
    padding = inputs._build_streams(
        {"src": ids.float(), "src_key_padding_mask": left == 0}, None, start
    )
    assert padding["encoder"].mask.tolist() == left.bool().tolist()
    sound = inputs._build_streams(
        {"input_values": ids.float(), "attention_mask": left}, None, start
    )
    assert (
        list(sound) == ["samples"]
        and inputs._build_streams({"x": ids}, None, start) == {}
    )
    special = inputs._build_streams(
        {"input_ids": ids, "decoder_input_ids": ids}, left == 0, start
    )
    assert (
        special["encoder"].special.sum() == 1 and special["decoder"].special.sum() == 0
    )
    assert inputs._number_units(["b", "a", "b"]).tolist() == [0, 1, 0]
    assert inputs._find_labels({"labels": [0.5]}) is None and inputs._find_labels(
        {"label": [1, 0]}
    ).tolist() == [1, 0]


def test_vectors_masks_and_units_of_one_metric():
    x = functional._to_vectors(np.ones((4, 2)))
    assert x.shape == (4, 1, 2)
    assert functional._to_mask(x, [True, False, True, True]).tolist() == [
        [True],
        [False],
        [True],
        [True],
    ]
    assert functional._to_units(x, None).tolist() == [0, 1, 2, 3]
    for call in (
        lambda: functional._to_mask(x, [False] * 4),
        lambda: functional._to_mask(x, [True] * 3),
        lambda: functional._to_units(x, [0.5] * 4),
        lambda: functional._to_units(x, [0] * 3),
        lambda: functional._to_vectors(np.ones(3)),
        lambda: functional._to_vectors(np.ones((2, 2), int)),
        lambda: functional._to_vectors(np.ones((0, 2))),
    ):
        with pytest.raises(UsageError):
            call()


# ---- what a pass keeps -----------------------------------------------------------------------------------------------


def started(batches=1, **how):
    kept = accumulator.Measurement(
        Settings(metrics=("mean_cosine",), groups=3, **how), "plan"
    )
    draw = np.random.default_rng(0)
    for number in range(batches):
        real = torch.ones(4, 2, dtype=torch.bool)
        unit = torch.arange(4) + 4 * number
        kept.begin(
            Batch({}, unit, {"encoder": Stream(real, ~real, unit * 0)}),
            torch.device("cpu"),
        )
        kept.receive(
            Site("encoder", 1, "hidden"), torch.from_numpy(draw.normal(size=(4, 2, 3)))
        )
        kept.end(number)
    return kept


def test_two_halves_of_a_pass_are_the_whole(tmp_path):
    first, both = started(), started(2)
    rest = started(2)
    assert (
        both.batches == {0, 1}
        and both.sums.units == {*range(8)}
        and first.group.tolist() == [0, 1, 2, 0]
    )
    with pytest.raises(MeasureError, match="1 of the same batches"):
        first.merge(rest)
    with pytest.raises(UsageError, match="two measurements of groups"):
        first.merge(
            accumulator.Measurement(
                Settings(metrics=("mean_cosine",), groups=4), "plan"
            )
        )
    first.save(tmp_path / "x")
    again = accumulator.Measurement.restore(tmp_path / "x", first.settings, "plan")
    assert (
        again.batches == {0}
        and again.sums.units == {0, 1, 2, 3}
        and list(again.sites) == ["encoder.1.hidden"]
    )
    pd.testing.assert_frame_equal(again.records(), first.records())
    with pytest.raises(MeasureError, match="sums of another corpus"):
        accumulator.Measurement.restore(tmp_path / "x", first.settings, "other")
    (tmp_path / "y").write_bytes(b"x")
    with pytest.raises(OutputError, match="a damaged file"):
        accumulator.Measurement.restore(tmp_path / "y", first.settings)


def test_attention_that_is_refused_is_dropped():
    kept = started()
    kept.sites |= {
        site.name: site
        for site in (Site("encoder", 1, "attention"), Site("encoder", 2, "attention"))
    }
    kept.refuse({("encoder", 1, "self"): "why"})
    assert list(kept.sites) == ["encoder.1.hidden", "encoder.2.attention"]
    kept.refuse({("encoder", 1, "self"): "again", ("encoder", 3, "self"): "new"})
    assert kept.refused == {
        ("encoder", 1, "self"): "why",
        ("encoder", 3, "self"): "new",
    }
    assert (
        accumulator._find_ids(
            Batch(
                {"decoder_input_ids": torch.ones(1), "input_ids": torch.zeros(1)},
                torch.zeros(1),
                {},
            ),
            "decoder",
        )
        == 1
    )
    with pytest.raises(MeasureError, match="vectors of 4 sequences"):
        kept._find_stream_masks(
            Site("encoder", 1, "hidden"), "encoder", torch.ones(3, 2, 3)
        )
    with pytest.raises(MeasureError, match=r"Batch\.streams"):
        kept._find_stream_masks(
            Site("encoder", 1, "hidden"), "encoder", torch.ones(4, 5, 3)
        )


def test_states_of_an_interrupted_run_are_added_once(tmp_path):
    whole, part = started(2), started(1)
    whole.save(tmp_path / "0")
    part.save(tmp_path / "1")
    own = tmp_path / "own"
    held = distributed.take_over_states(
        [tmp_path / "1", tmp_path / "0"], whole.settings, "plan", own
    )
    assert held == {0, 1} and [path.name for path in tmp_path.iterdir()] == ["own"]
    assert (
        distributed.take_over_states([own], whole.settings, "plan", own) == {0, 1}
        and own.exists()
    )
    assert distributed.take_over_states([], whole.settings, "plan", own) == frozenset()


def test_a_stop_is_that_of_the_first_signal(monkeypatch):
    assert (
        distributed.find_stop_signal([15, 2]) == 15
        and distributed.find_stop_signal([]) == 0
    )
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert distributed.rank_and_world() == (2, 3)
    steps = distributed.Steps(nn.Linear(1, 1), torch.device("cpu"))
    assert steps.agree(True, 2) == (True, 2)
    with (
        pytest.raises(RuntimeError, match="other"),
        distributed.explain_lost_process_in_call(True),
    ):
        raise RuntimeError("other")
    with (
        pytest.raises(MeasureError, match="--resume"),
        distributed.explain_lost_process_in_call(True),
    ):
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(RuntimeError), distributed.explain_lost_process_in_call(False):
        raise RuntimeError("Connection closed by peer")


def test_signals_are_heard_again_once_a_backend_is_connected():
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def hear(*_):
        """A handler of the program's own."""

    try:
        for number in numbers:
            signal.signal(number, hear)
        with distributed._end_at_signals():
            assert {signal.getsignal(number) for number in numbers} == {signal.SIG_DFL}
        assert {signal.getsignal(number) for number in numbers} == {hear}
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_sizes_in_words():
    words = {
        999: "999 ",
        1000: "1 k",
        999_500: "1 M",
        13_700_000_000: "13.7 G",
        2e12: "2 T",
    }
    assert {count: cost.format_scaled(count) for count in words} == words
    assert cost.explain_missing_spectrum(
        0, 3
    ) == "" and "at 2 of 3 sites" in cost.explain_missing_spectrum(2, 3)
    found = cost.Cost(2000, 0, 1000, 100.0, {"hidden": 5.0, "spectrum": 0.0}, 0, 8)
    assert found.state == 3000
    assert (
        found.line
        == "memory 3 kB (sums 2 kB, sample 1 kB); extra work per token, of the model's 100 flop: hidden 5.0%"
    )
    sites = [Site("encoder", layer, "hidden") for layer in range(4)]
    chosen = [cost._is_chosen(site, sites, Settings(layers=(0, -1))) for site in sites]
    assert chosen == [True, False, False, True] and cost._is_chosen(
        sites[1], sites, Settings()
    )


def test_the_first_sequence_is_cut_to_its_real_ids():
    mask = torch.arange(40) >= torch.tensor([[10], [0]])
    stream = Stream(mask, torch.zeros_like(mask), torch.zeros(2))
    given = {
        "input_ids": torch.arange(80).reshape(2, 40),
        "vectors": torch.ones(2, 40),
        "n": 3,
    }
    cut = cost._cut_first_sequence(Batch(given, torch.arange(2), {"encoder": stream}))
    assert (
        cut["input_ids"].tolist() == [[*range(10, 26)]]
        and cut["vectors"].shape == (1, 40)
        and cut["n"] == 3
    )
    whole = cost._cut_first_sequence(
        Batch(given, torch.arange(2), {"encoder": stream}, label=torch.zeros(2))
    )
    assert whole["input_ids"].tolist() == [[*range(10, 40)]]


# ---- pages -----------------------------------------------------------------------------------------------------------


def row(metric, layer=1, value=0.5, low=NAN, high=NAN, **more):
    found = {
        "metric": metric,
        "stack": "encoder",
        "kind": "self",
        "layer": layer,
        "site": "hidden",
        "token_policy": "all",
    }
    return (
        found
        | {"value": value, "low": low, "high": high, "n_vectors": 1000, "n_units": 40}
        | more
    )


def results(rows, manifest=None):
    return Results(as_records(pd.DataFrame(rows)), manifest or {})


def test_results_choose_policy_place_and_step():
    rows = [
        row("mean_cosine", 0, 0.1),
        row("mean_cosine", 2, 0.4),
        row("mean_cosine", 2, 0.3, site="final"),
    ]
    rows += [
        row("mean_cosine", 2, 0.9, token_policy="content"),
        row("drift.share", 2, 0.7),
        row("other", 2, token_policy="x"),
    ]
    found = results(rows)
    assert found.lead == "all" and found.policies == ["all", "content", "x"]
    assert found.select_layers("mean_cosine")["value"].tolist() == [0.1, 0.4, 0.3]
    assert (
        found.peak["value"] == 0.4
        and found.find_row(found.peak, "drift.share")["value"] == 0.7
    )
    assert (
        len(found.select_rows("other")) == 1
        and found.find_row(found.peak, "norms") is None
    )
    assert (
        found.name_place(found.select_layers("mean_cosine").iloc[2]) == "the final norm"
    )
    assert (
        results([*rows, row("x", stack="decoder")]).name_place(found.peak)
        == "encoder layer 2"
    )
    wide = [
        row("mean_cosine.contribution", layer, component=str(k))
        for layer in (0, 1)
        for k in range(3)
    ]
    assert results(wide).width == 3 and found.width is None
    series = [
        row("mean_cosine", 0, v, step=s, seed=k)
        for s, k, v in ((0, 0, 1), (5, 1, 2), (5, 0, 3), (0, 1, 4))
    ]
    assert results(series, {"checkpoints": []}).last.records["value"].tolist() == [2]
    assert len(results(series).last.records) == 4
    heads = [
        row("query_key.cosine", 1, v, head=0, site=s)
        for v, s in ((1, "query"), (2, "query.raw"), (3, "key.raw"))
    ]
    assert results(heads).select_heads("query_key.cosine", "query")[
        "value"
    ].tolist() == [2]
    assert (
        found.describe_basis(found.select_layers("mean_cosine"))
        == "n = 1,000 vectors in 40 units; tokens: all"
    )
    of_units = found.select_layers("mean_cosine").assign(n_vectors=40.0)
    assert found.describe_basis(of_units, "utterances") == "n = 40 utterances", (
        "units that are counted are named once"
    )
    assert (
        found.describe_basis(of_units, "vectors")
        == "n = 40 vectors in 40 units; tokens: all"
    )
    assert (
        describe_extent(pd.Series([8, 12])) == "8 to 12"
        and describe_extent(pd.Series([NAN])) == ""
    )
    frame = pd.DataFrame({"a": [2, 1, 1], "b": [0, 1, 0]})
    assert sort_by_keys(frame, frame["a"], frame["b"]).index.tolist() == [2, 1, 0]


def test_places_and_pairs_of_the_matrices():
    rows = [
        row("group_cosine", layer, layer / 10, component=name)
        for layer in range(4)
        for name in ("a × a", "a × b")
    ]
    rows += [
        row("mean_cosine", layer, value)
        for layer, value in enumerate((0.1, 0.2, 0.6, 0.3))
    ]
    found = results(rows)
    chosen = figures._choose_places(found, found.select_components("group_cosine"))
    assert list(dict.fromkeys(chosen["place"])) == [
        "layer 0, first",
        "layer 2, most anisotropic",
        "layer 3, last",
    ]
    mirrored = figures._mirror_pairs(chosen[chosen["layer"].eq(0)])
    assert list(zip(mirrored["first"], mirrored["second"], strict=True)) == [
        ("a", "a"),
        ("a", "b"),
        ("b", "a"),
    ]


def test_tables_of_a_page():
    rows = [row("mean_cosine", 0, 0.25, 0.2, 0.3), row("drift", 1, 2.0)]
    columns = {"mean_cosine": "A", "drift": "drift"}
    table = sections.tabulate_layers(
        results(rows), {"columns": columns, "caption": "c {basis}"}
    )
    assert table.head == ("site", "A", "drift")
    assert table.rows == (
        (("layer 0", ""), (".250", "[.200, .300]"), ("–", "")),
        (("layer 1", ""), ("–", ""), ("2.000", "")),
    )
    entry = {
        "prefix": "r.",
        "whole": " all",
        "columns": {"b": "B", "a": "A", "z": "Z"},
        "first": "f",
    }
    effects = sections.tabulate_effects(
        results(
            [row("r.a", None, 1.0, component="u"), row("r.b", 2, 3.0, component="u")]
        ),
        entry,
    )
    assert effects.head == ("f", "B", "A") and [
        cells[0][0] for cells in effects.rows
    ] == ["u all", "u, layer 2"]
    assert sections.tabulate_effects(results(rows), entry) is None
    steps = [
        row("mean_cosine", 0, 0.1, step=s, seed=k) for s in (0, 10) for k in (0, 1)
    ]
    by_step = sections.tabulate_steps(
        results(steps), {"metric": "mean_cosine", "caption": ""}
    )
    assert [cells[0][0] for cells in by_step.rows] == [
        "step 0, seed 0",
        "step 10, seed 0",
        "step 0, seed 1",
        "step 10, seed 1",
    ]


def test_depths_and_panels_of_a_comparison():
    frame = pd.DataFrame(
        {
            "run": [*"aabb"],
            "layer": [1, 2, 2, 4],
            "site": ["hidden", "final", "hidden", "hidden"],
        }
    )
    assert comparison._scale_depths(frame, "layer").tolist() == [
        0.5,
        comparison.FINAL_AT,
        0.5,
        1.0,
    ]
    table = pd.DataFrame(
        {"stack": ["e", "e"], "kind": ["self", "cross"], "component": ["x", None]}
    )
    assert comparison._name_panels(table).tolist() == ["e x", "e, cross-attention"]
    many = pd.DataFrame(
        {"stack": "e", "kind": "self", "component": [*map(str, range(9))]}
    )
    assert comparison._name_panels(many).unique().tolist() == ["e"]
    assert len(comparison._name_panels(many[:8]).unique()) == 8
    assert comparison._format_estimate(0.5, 0.4, 0.6) == (".500", "[.400, .600]")
    assert comparison._format_estimate(0.5, 0.5, 0.5)[1] == ""
    assert (
        comparison._format_estimate(NAN, NAN, NAN) == ("–", "")
        and comparison._format_entry(2.0) == "2"
        and comparison._format_entry(None) == ""
    )
    assert (
        describe_extent(pd.Series([8, 12])) == "8 to 12"
        and describe_extent(pd.Series([8, 8])) == "8"
    )


def test_an_atlas_in_sentences():
    columns = {
        "network": [*"aab"],
        "stack": ["e", "d", "e"],
        "verdict": ["anisotropic", "isotropic", "anisotropic"],
    }
    table = pd.DataFrame(
        columns
        | {
            "cause": ["1 dimension, the mean", "", "more than the mean"],
            "heads": [4, NAN, 2],
            "sink_heads": [0, NAN, 1],
        }
    )
    assert atlas.describe_atlas(table) == [
        "2 of 3 networks are anisotropic in at least one layer.",
        "In 1 of these, centring removes the anisotropy of the layer with the highest A.",
        "In 1 of these, ten dimensions or fewer contribute more than half of the A of that layer.",
        "1 of the 2 networks whose attention was measured have a sink head.",
    ]
    assert atlas._label_rows(table) == ["a, e", "a, d", "b"]
    made = types.SimpleNamespace(
        x=0.5, x_low=0.4, x_high=0.6, y=NAN, y_low=NAN, y_high=NAN
    )
    assert atlas._format_estimate(made, "x") == (
        ".500",
        "[.400, .600]",
    ) and atlas._format_estimate(made, "y") == (
        "–",
        "",
    )


def test_what_is_published_names_no_folder():
    hide = pushing.hide_folders
    assert hide("/home/me/my model") == "…/my model" and hide(
        {"a": ["see /home/me/x.csv now", 3]}
    ) == {"a": ["see …/x.csv now", 3]}
    assert (
        hide("org/name") == "org/name"
        and hide("/x") == "/x"
        and hide("https://a.b/c/d") == "https://a.b/c/d"
    )
    assert pushing.check_repository("https://huggingface.co/datasets/me/x/") == "me/x"
    for bad in ("x", "me/x/y", "me/" + "x" * 96, "-me/x"):
        with pytest.raises(UsageError):
            pushing.check_repository(bad)
    assert (
        card.name_model({"model": "/a/b"}) == "b"
        and card.name_model({"model": "…/b"}) == "b"
        and card.name_model({}) == "unnamed model"
    )


def test_a_card_says_on_how_many_units_of_which_corpus():
    """Of some layers fewer may count, such as those with an undefined direction."""
    rows = [row("mean_cosine", 0), row("mean_cosine", 1) | {"n_units": 30}]
    written = card.write_model_card(
        as_records(pd.DataFrame(rows)), {"corpus": {"name": "/home/me/talks.jsonl"}}
    )
    assert "of an unknown version on talks.jsonl (40 units)." in written


def test_a_badge_has_the_highest_layer_of_all_stacks():
    rows = [
        row("mean_cosine", 5, 0.2, 0.15, 0.25),
        row("mean_cosine", 4, 0.5, 0.4, 0.6, stack="decoder"),
    ]
    rows += [
        row("mean_cosine.isotropic_q95", layer, 0.1, stack=stack)
        for layer, stack in ((5, "encoder"), (4, "decoder"))
    ]
    badge = card.draw_badge(as_records(pd.DataFrame(rows)))
    narrow = [
        each | {"low": 0.05} if each["value"] == 0.2 else each for each in rows
    ]  # of the first stack: undecided
    assert card.draw_badge(as_records(pd.DataFrame(narrow))) == badge
    assert (
        "anisotropy: A .500, layer 4, anisotropic" in badge
        and card.COLOURS["anisotropic"] in badge
    )
    assert "not measured" in card.draw_badge(as_records(pd.DataFrame()))


def test_a_message_shortens_what_is_too_long_to_read():
    """A pattern of 5,000 letters was repeated whole in the error about it."""
    error = UsageError(
        "a step that can be read from each name",
        repr("a" * 5000 + "z"),
        "write step=NUMBER",
    )
    assert (
        len(str(error)) < 2100
        and "… aaa" in str(error)
        and "(5,003 characters)" in str(error)
    )
    assert str(error).endswith("Cure: write step=NUMBER") and len(error.got) == 5003
    assert str(UsageError("a", "b" * 1900)) == "expected a; got " + "b" * 1900
