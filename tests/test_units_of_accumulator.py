"""What a pass keeps of each batch: which tokens are sampled, which masks a site has, what is saved and joined."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from anisoscope.axes import EVERYWHERE, Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import CorpusError, MeasureError, OutputError, UsageError
from anisoscope.measure import loop, tabulate
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.masks import Masks, require_labels
from anisoscope.measure.settings import Settings
from anisoscope.metrics.base import Metric
from anisoscope.reads import Vectors
from anisoscope.reads.base import Reading
from anisoscope.sums.reservoir import draw_tokens, hash_tokens

CPU, META = torch.device("cpu"), torch.device("meta")
HIDDEN = Site("encoder", 1, "hidden")


def stream_of(*rows, start=0, special=None, **more):
    real = torch.tensor(rows).bool()
    start = torch.zeros(len(rows), dtype=torch.int64) + torch.as_tensor(start)
    marked = ~real if special is None else torch.tensor(special).bool()
    return Stream(real, marked, start, **more)


def begun(streams, units=(0, 1), label=None, inputs=None, positions=None, **how):
    kept = Measurement(Settings(**({"metrics": ("mean_cosine",), "groups": 3} | how)))
    kept.classes = ("a", "b")
    batch = Batch(inputs or {}, torch.tensor(units), streams, label=label)
    kept.begin(batch, CPU, positions)
    return kept


SAMPLED = {"metrics": ("floor",), "sample": 4}


# ---- which tokens are sampled


def sampled_indices(kept, name, units, tokens=200):
    """Which tokens (unit, number) a sample holds: their hashes are unlike."""
    seed = kept.settings.seed
    known = {}
    for unit in units:
        for index in range(tokens):
            found = hash_tokens(seed, torch.tensor(unit), torch.tensor(index))
            known[int(found)] = unit, index
    return sorted(known[int(number)] for number in kept.reservoirs[name].hash)


def test_a_sample_is_of_the_first_policy_from_the_number_of_each_stack_on():
    """The decoder's tokens begin at numbers of their own; a stack without a stream has those of the first stream."""
    streams = {
        "encoder": stream_of([1, 1, 1, 0], [1, 1, 0, 0], start=[5, 70]),
        "decoder": stream_of([1, 1], [0, 1], start=[30, 90]),
    }
    how = {"tokens": ("no-first", "all"), "sample": 100, "metrics": ("floor",)}
    kept = begun(streams, (3, 8), **how)
    kept.add_sample(HIDDEN, torch.ones(2, 4, 3))
    kept.add_sample(Site("decoder", 2, "hidden"), torch.ones(2, 2, 3))
    kept.add_sample(Site("vision", 3, "hidden"), torch.ones(2, 3, 3))
    kept.add_sample(Site("vision", 4, "hidden"), torch.ones(2, 1, 3))
    kept.end()
    assert sampled_indices(kept, "encoder", (3, 8)) == [(3, 6), (3, 7), (8, 71)]
    assert sampled_indices(kept, "decoder", (3, 8)) == [(3, 31)]
    assert sampled_indices(kept, "vision.3.hidden", (3, 8)) == [
        (3, 6),
        (3, 7),
        (8, 71),
        (8, 72),
    ]
    assert sorted(kept.reservoirs) == [
        "decoder",
        "encoder",
        "vision.3.hidden",
        "vision.4.hidden",
    ]
    assert list(kept.reservoirs["encoder"].vectors) == ["encoder.1.hidden"]
    none = begun(streams, (3, 8))
    none.add_sample(HIDDEN, torch.ones(2, 4, 3))
    none.end()
    assert [len(sample.hash) for sample in none.reservoirs.values()] == [0, 0]


def test_the_seed_decides_which_tokens_are_sampled_and_drawn():
    stream = {"encoder": stream_of([1] * 40, [1] * 40, start=[100, 500])}
    index = torch.stack([torch.arange(40) + 100, torch.arange(40) + 500])
    unit = torch.tensor([[6], [7]])
    samples, draws = [], []
    for seed in (0, 9):
        kept = begun(stream, (6, 7), seed=seed, **SAMPLED)
        kept.add_sample(HIDDEN, torch.ones(2, 40, 3))
        kept.end()
        samples.append(kept.reservoirs["encoder"].hash.tolist())
        every = hash_tokens(seed, unit, index).flatten().sort().values
        assert samples[-1] == every[:4].tolist()
        how = {"panel": ("spectrum",), "metrics": (), "spectrum_share": 0.25}
        kept = begun(stream, (6, 7), seed=seed, **how)
        masks = kept.find_masks(HIDDEN, torch.ones(2, 40, 3))
        expected = draw_tokens(0.25, seed, unit, index)
        assert torch.equal(masks.drawn, expected) and 0 < masks.drawn.sum() < 40
        assert kept.moments._share == 0.25
        draws.append(masks.drawn)
    assert samples[0] != samples[1] and not torch.equal(*draws)
    assert not begun(stream).find_masks(HIDDEN, torch.ones(2, 40, 3)).drawn.numel()


# ---- what a batch begins with


def test_labels_are_those_of_the_current_batch():
    """Read only if a metric of classes is measured, and checked then."""
    stream = {"encoder": stream_of([1], [1])}
    label = torch.tensor([1, 0])
    kept = begun(stream, label=label, metrics=("class_direction",))
    assert kept.label.tolist() == [1, 0]
    assert begun(stream, label=label).label is None
    with pytest.raises(UsageError, match="labels below 2, the number of classes"):
        begun(stream, label=label + 1, metrics=("class_direction",))
    with pytest.raises(UsageError, match="batches without labels"):
        begun(stream, metrics=("class_direction",))


def test_groups_are_those_of_units_everywhere():
    kept = begun({"encoder": stream_of([1], [1], [1])}, (7, 5, 7), groups=3)
    assert kept.group.tolist() == [1, 2, 1] and kept.sums.units == {5, 7}
    assert kept.moments._group.tolist() == [1, 2, 1]
    assert begun({}, spectrum_groups=2).moments._groups == 2
    kept.begin(Batch({}, torch.tensor([9]), {"encoder": stream_of([1])}), CPU)
    assert kept.group.tolist() == [0] and kept.sums.units == {5, 7, 9}


def test_copies_of_a_batch_are_made_once_for_each_thing():
    kept = begun({"encoder": stream_of([1], [1])})
    one, two = torch.ones(2), torch.ones(2)
    copy = kept.copy_to(one, META)
    assert copy.is_meta and kept.copy_to(one, META) is copy
    assert kept.copy_to(two, META) is not copy and kept.copy_to(one, CPU) is one
    kept.begin(Batch({}, torch.tensor([1]), {"encoder": stream_of([1])}), CPU)
    assert kept.copy_to(one, META) is not copy


def test_places_of_tokens_are_kept_only_for_extremes():
    stream = {"encoder": stream_of([0, 1, 1], [1, 1, 0], start=[4, 50])}
    ids = {"input_ids": torch.arange(6).view(2, 3) + 100}
    x = torch.ones(2, 3, 2)
    kept = begun(stream, (3, 9), inputs=ids, metrics=("sinks", "mean_cosine"))
    found = kept.find_masks(HIDDEN, x).places
    assert found[0].tolist() == [[3, 4, -1, 100], [3, 5, 0, 101], [3, 6, 1, 102]]
    assert found[1, 1].tolist() == [9, 51, 1, 104]
    assert not begun(stream, (3, 9), inputs=ids).find_masks(HIDDEN, x).places.numel()
    both = {
        "encoder": stream_of([1, 1], [1, 1]),
        "decoder": stream_of([1, 1], [1, 1]),
    }
    named = ids | {"decoder_input_ids": torch.arange(4).view(2, 2) + 7}
    kept = begun(both, inputs=named, metrics=("sinks", "mean_cosine"))
    site = Site("decoder", 1, "hidden")
    assert kept.find_masks(site, torch.ones(2, 2, 2)).places[..., 3].tolist() == [
        [7, 8],
        [9, 10],
    ]
    unknown = kept.find_masks(HIDDEN, torch.ones(2, 2, 2)).places[..., 3]
    assert unknown.unique().tolist() == [-1], "ids of another length"


# ---- which masks a site has


def test_tokens_of_a_stack_without_a_stream_are_numbered_as_the_first_stream_is():
    """Of one length there may be several kinds: with special tokens and without."""
    specials = {"vision": 1, "audio": 0}
    positions = SimpleNamespace(
        parts={},
        specials=lambda site: specials[site.stack],
        streams=lambda batch: batch.streams,
    )
    first = {"encoder": stream_of([1, 1], [1, 0], start=[5, 60])}
    kept = begun(first, (3, 8), positions=positions, metrics=("sinks", "mean_cosine"))

    def masks(stack, tokens):
        return kept.find_masks(Site(stack, 1, "hidden"), torch.ones(2, tokens, 3))

    vision, audio = masks("vision", 4), masks("audio", 4)
    assert vision.special.long().tolist() == [[1, 0, 0, 0]] * 2
    assert not audio.special.any() and masks("vision", 4) is vision
    assert audio.places[1, 2].tolist() == [8, 62, 2, -1]
    key = Site("encoder", 1, "key", kind="cross")
    keys = torch.ones(2, 2, 4, 3)
    with pytest.raises(MeasureError, match=r"encoder sites of shape \(2, 2\)"):
        kept.find_masks(key, keys)
    other = begun(first, (3, 8), positions=positions)
    own = other.find_masks(Site("vision", 1, "hidden"), torch.ones(2, 4, 3))
    assert other.find_masks(key, keys) is own
    value = Site("encoder", 1, "value", kind="cross")
    assert other.find_masks(value, keys) is own
    streams = {"decoder": stream_of([1, 1], [1, 1])}
    positions.streams = lambda _batch: streams
    changed = begun(first, (3, 8), positions=positions)
    assert "encoder" not in changed._masks and "decoder" in changed._masks


def test_real_tokens_at_the_end_are_not_cut_off():
    """Keys that are fewer than the encoder's tokens are its first ones only if the others are padding."""
    kept = begun({"encoder": stream_of([1, 1, 0], [1, 0, 0])})
    key = Site("decoder", 1, "key", kind="cross")
    cut = kept.find_masks(key, torch.ones(2, 1, 2, 3))
    assert cut.real.long().tolist() == [[1, 1], [1, 0]]
    with pytest.raises(MeasureError) as raised:
        kept.find_masks(key, torch.ones(2, 1, 1, 3))
    assert str(raised.value) == (
        "expected encoder sites of shape (2, 3) as in its inputs; got (2, 1). "
        "Cure: name the stream of these sites in Batch.streams"
    )


def test_vectors_of_other_sequences_are_an_error_with_its_cures():
    kept = begun({"encoder": stream_of([1, 1], [1, 0])})
    with pytest.raises(MeasureError) as raised:
        kept.find_masks(HIDDEN, torch.ones(5, 2, 3))
    message = str(raised.value)
    assert message.startswith(
        "expected vectors of 2 sequences at encoder.1.hidden, as many as units in the batch; "
        "got [sequence, token, …] of (5, 2). Cure: set tokens_first=True where"
    )
    assert message.endswith("(Qwen-VL); else measure another part")


def test_queries_are_real_where_their_stream_says_so():
    kept = begun({"encoder": stream_of([1, 1, 0], [0, 1, 1], start=[5, 60])}, (3, 8))
    site = Site("encoder", 1, "attention")

    def real(heads, queries):
        found = kept.find_real_queries(site, torch.ones(2, heads, queries))
        return found.long().tolist()

    assert real(2, 3) == [[1, 1, 0], [0, 1, 1]]
    assert real(3, 2) == [[1, 1]] * 2 and real(3, 4) == [[1] * 4] * 2
    kept._placed = True
    shorter = kept.locate_queries(site, torch.ones(2, 3, 2))
    assert shorter.tolist() == [
        [[3, 5, 0, -1], [3, 6, 1, -1]],
        [[8, 60, 0, -1], [8, 61, 1, -1]],
    ]


# ---- attention that is given up


def test_only_attention_is_ever_given_up():
    kept = begun({"encoder": stream_of([1], [1])}, **SAMPLED)
    query, hidden = Site("encoder", 1, "query"), HIDDEN
    later = Site("encoder", 2, "query")
    for site in (query, hidden, later):
        kept.sites[site.name] = site
        kept.reservoirs[site.name].size = 1
    kept.refuse({("encoder", 1, "self"): "first"})
    assert sorted(kept.reservoirs) == ["encoder", hidden.name, later.name]
    assert sorted(kept.sites) == [hidden.name, later.name]
    kept.refuse({("encoder", 1, "self"): "again"})
    kept.refuse({("encoder", 1, "self"): "again", EVERYWHERE: "all"})
    assert kept.refused == {("encoder", 1, "self"): "first", EVERYWHERE: "all"}
    assert list(kept.sites) == [hidden.name]
    assert sorted(kept.reservoirs) == ["encoder", hidden.name]
    for site in (query, later):
        kept.receive(site, torch.ones(2, 1, 1, 2))
    assert list(kept.sites) == [hidden.name]


# ---- what is saved and joined


def with_moments(seed, batches=(0,), groups=1):
    """A measurement of spectra with products in float32 that are not in the sums yet. Returns (it, its vectors)."""
    how = {"panel": ("spectrum",), "metrics": (), "spectrum_groups": groups}
    draw = torch.Generator().manual_seed(seed)
    kept = begun({"encoder": stream_of([1, 1], [1, 1])}, **how)
    kept.moments.many.add(HIDDEN.name)
    x = torch.randn(2, 2, 3, generator=draw)
    kept.receive(HIDDEN, x)
    for number in batches:
        kept.batches.add(number)
    return kept, x.double().view(4, 3)


def whole_moment(kept):
    return kept.sums.terms[HIDDEN.name, "moment"].sum(0)


def test_products_that_are_pending_are_part_of_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("anisoscope.sums.moments.NARROW", 0)
    kept, x = with_moments(1)
    assert kept.moments.pending, "not in the sums yet"
    of_sums = sum(term.nbytes for term in kept.sums.terms.values())
    of_pending = sum(term.nbytes for term in kept.moments.pending.values())
    assert kept.nbytes == of_sums + of_pending > of_sums
    kept.save(tmp_path / "x", {"more": "text"})
    again = Measurement.restore(tmp_path / "x", kept.settings)
    assert again.moments.pending.keys() == kept.moments.pending.keys()
    other, y = with_moments(2, (1,))
    both = kept.merge(other)
    assert both.batches == {0, 1}
    assert both.moments.sums is both.sums
    alone = again.gather()
    assert alone.sums is again.sums
    one, two = whole_moment(again), whole_moment(other)
    torch.testing.assert_close(whole_moment(both), one + two)
    values = again.records()["value"]
    share = np.linalg.eigvalsh(np.cov(x.numpy().T, bias=True))
    rank = share.sum() ** 2 / (share**2).sum()
    assert any(abs(value - rank) < 1e-4 for value in values)
    torch.testing.assert_close(two[0], y.T @ y)
    with safe_open(tmp_path / "x", framework="pt") as file:
        assert file.metadata()["more"] == "text"


def test_a_state_without_a_plan_is_none_of_a_plan(tmp_path):
    kept = begun({"encoder": stream_of([1], [1])})
    kept.save(tmp_path / "x")
    assert Measurement.restore(tmp_path / "x", kept.settings, "").plan == ""
    assert Measurement.restore(tmp_path / "x", kept.settings).plan == ""
    with pytest.raises(MeasureError) as raised:
        Measurement.restore(tmp_path / "x", kept.settings, "p")
    assert str(raised.value) == (
        f"expected sums of the same corpus and settings; got sums of another corpus or other settings in "
        f"{tmp_path / 'x'}. Cure: start again with --overwrite"
    )
    kept.plan = "p"
    kept.save(tmp_path / "x")
    with pytest.raises(MeasureError):
        Measurement.restore(tmp_path / "x", kept.settings, "")


def test_measurements_that_do_not_belong_together_are_told_by_what_differs():
    one = begun({"encoder": stream_of([1], [1])}, seed=1)
    other = begun({"encoder": stream_of([1], [1])}, seed=2)
    with pytest.raises(UsageError) as raised:
        one.merge(other)
    assert str(raised.value) == (
        "expected two measurements of seed = 1; got 2. Cure: measure both with the same settings"
    )
    same = begun({"encoder": stream_of([1], [1])}, seed=1)
    # sums of a class are kept under its number, so that another order is another thing
    for others in (("a", "c"), ("b", "a")):
        same.classes = others
        with pytest.raises(MeasureError) as raised:
            one.merge(same)
        assert str(raised.value) == (
            f"expected two measurements of the classes a, b; got {', '.join(others)}. "
            "Cure: measure both with the same classes"
        )
    same.classes = one.classes
    one.batches, same.batches = {0, 1, 2}, {1, 2, 3}
    assert one.merge(same).batches == {0, 1, 2, 3}, (
        "without a plan, numbers say nothing"
    )
    for kept, layer in ((one, 4), (same, 7)):
        site = Site("encoder", layer, "hidden")
        kept.sites[site.name] = site
    names = {"encoder.4.hidden", "encoder.7.hidden"}
    assert one.merge(same).sites.keys() == same.merge(one).sites.keys() == names
    one.plan = same.plan = "p"
    with pytest.raises(MeasureError) as raised:
        one.merge(same)
    assert str(raised.value) == (
        "expected measurements of different batches; got 2 of the same batches in both. "
        "Cure: name each part once"
    )


# ---- rows of the table


def toy(**how):
    return Metric("toy", Vectors(), lambda data: data, needs={"n"}, **how)


def of_heads(*, first_policy):
    metric = toy()
    for name, value in (("axes", ("head",)), ("first_policy", first_policy)):
        object.__setattr__(metric, name, value)
    return metric


def rows_of(values, metric, count, policies=("all", "content")):
    reading = Reading(values, {"layer": 3}, np.asarray(count, float), names=("u", "v"))
    return list(tabulate.build_columns(metric, reading, policies))


def test_each_value_has_bounds_and_counts_by_its_own_name():
    """Of two values with the same replicates, one is a share, bounded and counted."""
    values = np.array([0.5, 0.2, 0.8, 0.5]).reshape(4, 1, 1)
    asked = []

    def bound(data):
        asked.append(sorted(data))
        return (0.0, 1.0)

    metric = toy(bounds={"share": bound}, counted=frozenset({"share"}))
    free, share = rows_of({"free": values, "share": values}, metric, [[9]])
    assert asked == [["free", "share"]]
    assert free[0]["metric"] == ["toy.free"] and share[0]["metric"] == ["toy.share"]
    assert free[0]["low"][0] < 0 <= share[0]["low"][0]
    assert free[0]["high"][0] > 1 >= share[0]["high"][0]
    assert free[0]["layer"] == [3]
    assert free[1].tolist() == [[0.2, 0.8, 0.5]], "without each group, not the whole"


def test_counts_are_rounded_and_ends_are_unlike():
    values = np.array([[[2.0, 3.0]], [[1.0, 3.0]], [[4.0, 3.5]], [[2, 2]], [[3, 4]]])
    ((columns, left_out),) = rows_of({"": values}, toy(), [[2.9999999, 7.2]])
    assert columns["n_vectors"] == [3, 7]
    assert columns["token_policy"] == ["all", "all"] and columns["head"] == [0, 1]
    for low, value, high in zip(
        columns["low"], columns["value"], columns["high"], strict=True
    ):
        assert low < value < high
    assert left_out.tolist() == [[1, 4, 2, 3], [3, 3.5, 2, 4]]
    ((columns, left_out),) = rows_of({"": values[:2]}, toy(), [[1, 1]])
    assert left_out.tolist() == [[1], [3]]
    ((_, left_out),) = rows_of({"": values[:1]}, toy(), [[1, 1]])
    assert left_out is None


def test_replicates_of_a_table_have_the_numbers_of_its_rows():
    """Of a value that has too many components nothing is kept, but its rows count."""
    values = {
        "a": np.arange(6.0).reshape(3, 1, 2),
        "wide": np.ones((3, 1, 1, 65)),
        "b": np.arange(3.0).reshape(3, 1, 1) + 10,
    }
    data = SimpleNamespace(present=np.array([3, 1]), values=values)
    metric = Metric("toy", Vectors(), lambda kept: kept.values, needs={"n"})
    reading = Reading(data, {}, np.ones((1, 1)))
    reads = SimpleNamespace(readings=lambda _metric, _kept: [reading])
    replicates = tabulate.Replicates(5)
    object.__setattr__(metric, "reads", reads)
    table = tabulate.build_long_table(None, [metric, metric], ("all",), replicates)
    rows, found = replicates.arrays()
    assert len(table) == 2 * (2 + 65 + 1)
    assert rows.tolist() == [0, 1, 67, 68, 69, 135]
    nan = np.nan
    np.testing.assert_array_equal(found[0], [nan, 4, nan, 2, nan])
    np.testing.assert_array_equal(found[2], [nan, 12, nan, 11, nan])
    np.testing.assert_array_equal(found[3:], found[:3])
    assert table["value"][67] == 10


def test_policies_of_a_value_without_an_axis_of_them():
    metric = of_heads(first_policy=True)
    ((columns, _),) = rows_of({"x": np.ones((2, 2))}, metric, [4, 5])
    assert columns["token_policy"] == ["all", "all"] and columns["n_vectors"] == [4, 5]
    metric = of_heads(first_policy=False)
    ((columns, _),) = rows_of({"x": np.ones((2, 2))}, metric, [4, 5])
    assert columns["token_policy"] == [None, None]
    components = np.ones((2, 2, 1, 2))
    ((columns, _),) = rows_of({"x": components}, toy(), [[4], [5]])
    assert columns["token_policy"] == ["all", "all", "content", "content"]
    assert columns["n_vectors"] == [4, 4, 5, 5]


def test_masks_of_a_stream_keep_each_kind_of_mark_apart():
    stream = stream_of(
        [0, 1, 1, 1],
        special=[[1, 1, 0, 0]],
        punctuation=torch.tensor([[1, 0, 1, 0]]).bool(),
        image=torch.tensor([[1, 0, 0, 1]]).bool(),
    )
    masks = Masks.of(stream, ("content", "no-first", "all"), torch.tensor([4]))
    cut = masks.cut(3)
    for found in (masks.cut(4), masks.to(CPU)):
        assert found.special.long().tolist() == [[0, 1, 0, 0]]
        assert found.punctuation.long().tolist() == [[0, 0, 1, 0]]
        assert found.image.long().tolist() == [[0, 0, 0, 1]]
    assert cut.special.long().tolist() == [[0, 1, 0]]
    assert cut.punctuation.long().tolist() == [[0, 0, 1]]
    assert cut.image.long().tolist() == [[0, 0, 0]] and cut.places.shape == (1, 3, 4)
    assert masks.policies.long().tolist() == [[[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]]]  # fmt: skip


def test_errors_of_a_pass_name_what_is_wrong_and_its_cure(tmp_path):
    def sentence(kind, call, *given):
        with pytest.raises(kind) as raised:
            call(*given)
        return str(raised.value)

    labels = "expected labelled sequences, for class_direction; got"
    cure = "Cure: use anisoscope classes; or give vectors with labels, or `labels` [sequence] in a list of dicts"
    units = torch.arange(2)
    plain, marked = Batch({}, units), Batch({}, units, label=torch.tensor([0, 2]))
    for batch, classes, message in (
        (plain, ("a",), f"{labels} batches without labels. {cure}"),
        (marked, (), f"{labels} labels, but no list of the classes. {cure}"),
        (
            marked,
            ("a", "b"),
            "expected labels below 2, the number of classes; got 2. Cure: number the classes from 0",
        ),
    ):
        assert sentence(UsageError, require_labels, batch, classes) == message
    path = tmp_path / "x"
    path.write_bytes(b"x")
    message = sentence(OutputError, Measurement.restore, path, Settings())
    assert message.startswith(
        f"expected the sums of a measurement in {path}; got a damaged file ("
    )
    assert message.endswith(
        ". Cure: remove the file: --resume then measures its batches again"
    )
    kept = Measurement(Settings(metrics=("norms",), tokens=("all",), layers=(0, 3)))
    arrays = {str(n): torch.ones(2, 1, 3) for n in range(3)}
    batch = Batch(arrays, units, {"vectors": stream_of([1], [1])})
    assert sentence(UsageError, loop._add_arrays, kept, batch, 0) == (
        "expected --layers of vectors from 0 to 2, or from the end: −1, −2 …; got 3"
    )
    assert sentence(CorpusError, loop._require_batches, kept, None) == (
        "expected a corpus with at least one batch; got none. Cure: give more data"
    )
