"""How what a caller gives becomes arguments, batches, masks, units and labels: each kind of input on a few numbers."""

import warnings
from collections import UserList
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import anisoscope
from anisoscope.batch import Batch, Stream
from anisoscope.errors import CorpusError, MeasureError, UsageError
from anisoscope.measure import calls, functional, inputs


def sentence(call, *given, kind=UsageError, **how):
    """The whole message of the error that a call raises."""
    with pytest.raises(kind) as raised:
        call(*given, **how)
    return str(raised.value)


class Reader(nn.Module):
    """Reads ids."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 2)
        self.half = nn.Linear(2, 2).half()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None):  # noqa: ARG002
        return self.words(input_ids)


class Line(nn.Module):
    """Reads vectors."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.own = nn.Linear(3, 2).to(dtype)

    def forward(self, x):
        return self.own(x)


class Named(nn.Module):
    """Takes one argument by place, one by name alone, and options by any name."""

    def forward(self, first, /, *, only=None, **options):  # noqa: ARG002
        return first


class Options(nn.Module):
    """Takes arguments by any name."""

    def forward(self, **options):
        return options


IDS = torch.ones(2, 3, dtype=torch.int64)


# ---- arguments of one call


def test_items_are_named_after_parameters_or_by_their_type():
    caller = calls.Caller(None, None)
    floats = torch.ones(1, 2)
    assert list(caller.name_arguments((IDS, floats))) == ["input_ids"]
    assert list(caller.name_arguments((floats, IDS))) == ["pixel_values"]
    reader = calls.Caller(Reader(), None)
    assert list(reader.name_arguments(torch.ones(2, 3, 2))) == ["inputs_embeds"]
    assert list(reader.name_arguments(torch.ones(2, 3))) == ["input_ids"]
    assert list(reader.name_arguments((IDS.float()[..., None], IDS[:, 0]))) == [
        "inputs_embeds"
    ]
    assert "at most 1 arguments (inputs_embeds), as Reader takes; got 3" in sentence(
        reader.name_arguments, (IDS.float()[..., None], IDS, IDS)
    )
    assert sentence(reader.name_arguments, (IDS,) * 4) == (
        "expected at most 3 arguments (input_ids, attention_mask, inputs_embeds), as Reader takes; got 4. "
        "Cure: give a dict with their names, or forward=lambda model, inputs: …"
    )

    class Listener(nn.Module):
        def forward(self, input_features, inputs_embeds=None):
            pass

    listener = calls.Caller(Listener(), None)
    assert list(listener.name_arguments(torch.ones(2, 3, 2))) == ["input_features"]
    options = calls.Caller(Options(), None)
    assert sentence(options.name_arguments, IDS) == (
        "expected Options.forward with named arguments; got none. "
        "Cure: give forward=lambda model, inputs: model(*inputs)"
    )


def test_the_second_of_a_pair_is_its_label_where_it_can_be_nothing_else():
    note = "the second of each pair was taken for its labels and not given to the model"
    line, reader = calls.Caller(Line(), None), calls.Caller(Reader(), None)
    x = torch.ones(2, 3)
    assert list(line.name_arguments((x, torch.ones(2, 7)))) == ["x"]
    assert line.warnings == [note]
    for second, names in (
        (torch.tensor(1), 1),
        (torch.tensor([0, 1]), 1),
        (torch.tensor([0, 1, 2]), 2),
        (IDS, 2),
        ("text", 2),
    ):
        assert len(reader.name_arguments((IDS, second))) == names
    reader.name_arguments((IDS, torch.tensor(1)))
    assert reader.warnings == [note], "each remark once"


def test_arrays_and_lists_become_tensors_of_the_models_type():
    """That of its first weights of floating point; whole numbers and truths stay what they are."""
    caller = calls.Caller(Reader(), None)
    given = {
        "a": np.ones((2, 2)),
        "b": [[1, 2], [3, 4]],
        "c": np.array([True, False]),
        "d": [0.5],
        "e": torch.ones(1, dtype=torch.float64),
        "f": "text",
    }
    found = caller.name_arguments(given)
    types = [getattr(value, "dtype", value) for value in found.values()]
    assert types == [
        torch.float32,
        torch.int64,
        torch.bool,
        torch.float32,
        torch.float64,
        "text",
    ]
    half = calls.Caller(Line(torch.bfloat16), None)
    assert half.name_arguments({"x": [[1.0]]})["x"].dtype == torch.bfloat16
    assert half.name_arguments({"x": [[1]]})["x"].dtype == torch.int64
    assert calls.Caller(None, None).name_arguments({"x": [1.0]})["x"].dtype.is_floating_point  # fmt: skip
    assert sentence(caller.name_arguments, (IDS, [[1], [1, 2]])) == (
        "expected argument 2 as a tensor; got lists of different lengths. "
        "Cure: padding=True, return_tensors='pt' in the tokenizer's call"
    )
    assert sentence(caller.name_arguments, {"words": np.array(["a"])}) == (
        "expected numbers in words; got an array of <U1. Cure: convert it: array.astype('float32')"
    )


def test_arguments_that_no_parameter_has():
    """Labels and masks are left out; options by any name take all but tensors, unless there are no other names."""
    for model, given, kept in (
        (Line(), ("x", "labels", "attention_mask"), ["x"]),
        (Named(), ("first", "only"), ["first", "only"]),
        (
            Options(),
            ("a", "labels", "attention_mask"),
            ["a", "labels", "attention_mask"],
        ),
    ):
        caller = calls.Caller(model, None)
        arguments = {name: torch.ones(2, 3) for name in given}
        assert list(caller.select_accepted(arguments)) == kept
    assert calls.Caller(Named(), None).select_accepted({"first": IDS, "x": 3})["x"] == 3
    line = calls.Caller(Line(), None)
    line.select_accepted({"x": torch.ones(2, 3), "targets": IDS})
    assert line.warnings == ["targets is no argument of Line: not given to it"]
    for model, names in ((Line(), "x"), (Named(), "first, only")):
        name = names.partition(",")[0]
        message = sentence(
            calls.Caller(model, None).select_accepted,
            {name: torch.ones(2, 3), "others": torch.ones(2, 3)},
        )
        assert message.startswith(
            f"expected arguments of {type(model).__name__} ({names}); got 'others'. "
            "Cure: leave that argument out, or "
        )


def test_types_of_inputs_that_a_model_cannot_read():
    line, reader = calls.Caller(Line(), None), calls.Caller(Reader(), None)
    assert sentence(line.select_accepted, {"x": IDS}) == (
        "expected floating-point inputs; got int64 [2, 3] for a model without an embedding of ids. "
        "Cure: convert them: x.float()"
    )
    both = nn.Module()
    both.own = nn.Linear(2, 2)

    def forward(x=None, places=None, input_ids=None):  # noqa: ARG001
        return x

    both.forward = forward
    caller = calls.Caller(both, None)
    caller.select_accepted({"x": torch.ones(2, 3), "places": IDS})
    caller.select_accepted({"input_ids": IDS})
    with pytest.raises(UsageError):
        caller.select_accepted({"places": IDS, "x": torch.ones(2, 3)})
    assert sentence(reader.select_accepted, {"input_ids": torch.ones(2, 3)}) == (
        "expected token ids (integers) as input_ids; got float32 [2, 3]. "
        "Cure: give ids, or name it inputs_embeds"
    )


def test_masks_hold_zeros_and_ones_or_are_noted():
    caller = calls.Caller(Options(), None)

    def check(**masks):
        caller._check_masks(masks)

    added = torch.zeros(2, 1, 3, 3) - 9
    check(attention_mask=added, decoder_attention_mask=IDS)
    check(attention_mask=IDS, decoder_attention_mask=added)
    check(padding_mask=IDS == 1, key_padding_mask=IDS == 1, src_key_padding_mask=IDS)
    assert caller.warnings == []
    for name in ("attention_mask", "decoder_attention_mask"):
        assert sentence(check, **{name: IDS * 2 - 1 + IDS}) == (
            f"expected 0 and 1 in {name}; got values up to 2. "
            "Cure: give a dict with the names of its entries"
        )
        check(**{name: IDS})
    check(head_mask=IDS)
    check(head_mask=IDS, global_attention_mask=IDS)
    assert caller.warnings == [
        "head_mask is given to the model; every position counts (attention_mask would leave some out)"
    ]


# ---- the call itself


def test_a_function_of_the_users_is_called_with_the_model_and_what_was_given():
    model = Line()
    given = []

    def forward(own, item):
        given.append((own, item))
        return own(item["x"]) + 1

    caller = calls.Caller(model, forward)
    item = {"x": torch.ones(1, 3), "name": "text"}
    found = caller(inputs=item)
    assert torch.equal(found, model(item["x"]) + 1)
    assert given[0][0] is model and given[0][1] == item
    assert not model._forward_pre_hooks, "counting ends with the call"
    with pytest.raises(UsageError):
        calls.Caller(model, lambda *_: None)(inputs=item)
    assert not model._forward_pre_hooks
    for count in (0, 2):
        twice = calls.Caller(
            model, lambda own, x, n=count: [own(x["x"]) for _ in range(n)]
        )
        assert sentence(twice, inputs=item) == (
            f"expected forward= to call the model once; got {count} calls. "
            "Cure: measure the module that it calls, or give the inputs of each call as a batch"
        )


def test_what_a_function_is_given_is_on_the_device_of_the_model(monkeypatch):
    monkeypatch.setattr(calls, "find_device", lambda _model: "there")
    monkeypatch.setattr(calls, "move_batch", lambda item, device: (item, device))
    given = []

    def forward(own, item):
        given.append(item)
        own(torch.ones(1, 3))

    calls.Caller(Line(), forward)(inputs="item")
    assert given == [("item", "there")]


def test_errors_of_a_call_are_told_with_what_was_given():
    class Failing(nn.Module):
        error = None

        def forward(self, **_options):
            raise self.error

    model = Failing()
    caller = calls.Caller(model, None)
    for kind in (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        model.error = kind("bad\n   shapes" + "x" * 400)
        assert sentence(caller, x=IDS, y=np.ones(2), z=3) == (
            "expected inputs that Failing takes; got x int64 [2, 3], y float64 [2], z int: "
            f"{kind.__name__}: bad shapes{'x' * 290}. "
            "Cure: give what you would call it with, or forward=lambda model, inputs: …"
        )
    model.error = KeyError("pixels")
    assert "z int: KeyError: 'pixels'. Cure: give what" in sentence(caller, z=3)
    for error in (
        torch.OutOfMemoryError("full"),
        MemoryError("full"),
        MeasureError("a", "b", "c"),
        ZeroDivisionError("x"),
    ):
        model.error = error
        with pytest.raises(type(error)) as raised:
            caller(x=IDS)
        assert raised.value is error


def test_a_corpus_gives_its_inputs_by_name():
    found = calls.check_called_by_name(Reader(), ["input_ids", "attention_mask"])
    assert found.forward is None and isinstance(found.model, Reader)
    calls.check_called_by_name(Options(), ["anything"])
    assert sentence(calls.check_called_by_name, Reader(), ["input_ids", "extra"]) == (
        "expected a model that takes input_ids and extra, which the corpus gives it; "
        "got Reader.forward(input_ids, attention_mask, inputs_embeds). Cure: wrap it in a module that "
        "takes them, or measure it in Python with inputs of its own"
    )


def test_what_is_no_model_is_told_what_to_give():
    for thing, got, cure in (
        (Line, "the class Line", "make one: Line(…)"),
        (3, "int", "load it first"),
        ((Line(), "words"), "tuple", "give the model first, and its tokenizer as processor="),
        ([1, 2], "list", "vectors go as one array or tensor: np.asarray(…)"),
        ([], "list", "vectors go as one array or tensor: np.asarray(…)"),
        (Line().to("meta"), "weights on the device meta", "load it on cpu, cuda or mps"),
        (nn.Linear(1, 1, device="meta"), "weights on the device meta", "load it on cpu, cuda or mps"),
    ):  # fmt: skip
        assert sentence(calls.check_module, thing).endswith(
            f"; got {got}. Cure: {cure}"
        )


# ---- batches


def test_kinds_of_inputs_and_the_batches_that_they_are():
    x = torch.ones(2, 3)
    batch = Batch({"x": x}, torch.arange(2))
    opened = inputs._open_batches
    assert [y.tolist() for y in opened(x.to_sparse())] == [x.tolist()]
    array = np.ones((2, 2))
    pair = (x, IDS)
    for one in (array, {"x": x}, pair, batch):
        assert opened(one) == [one] or opened(one)[0] is one
    assert len(opened([x, x])) == 2 and len(opened(iter([x, x, x]))) == 3

    class Loader:
        def __len__(self):
            return 4

        def __iter__(self):
            return iter([x] * 4)

    loader = Loader()
    assert opened(loader) is loader
    # What a list holds is looked at and kept at once, in a list of another class too.
    given = [x, x]
    listed = opened(given)
    given.append(x)
    assert len(listed) == 2
    assert sentence(opened, UserList(["a", "b"])) == (
        "expected texts in a list; got a UserList of them. Cure: give list(texts)"
    )
    for empty, kind in (([], "list"), (iter([]), "list_iterator")):
        assert sentence(opened, empty, kind=CorpusError) == (
            f"expected a corpus with at least one batch; got none. Cure: give more data: the {kind} is empty"
        )


def test_kinds_of_inputs_that_are_refused():
    import pandas as pd

    accepted = f"expected {inputs.ACCEPTED}; got"
    frame = "vectors: measure(frame.to_numpy()); texts: list(frame['text'])"
    corpus = (
        "give processor= (its tokenizer) and a list of strings, or "
        "a corpus: measure(model, corpus=…, processor=…)"
    )
    axis = "pad them to [sequence, token] (torch.nn.utils.rnn.pad_sequence) and give an attention_mask"
    single = "expected batches with an axis of sequences; got single sequences without that axis:"
    given = "expected a processor for a list of strings; got none. Cure: give processor=, the model's tokenizer"
    for thing, message in (
        (pd.DataFrame({"a": [1]}), f"{accepted} a pandas DataFrame. Cure: {frame}"),
        (pd.Series([1]), f"{accepted} a pandas Series. Cure: {frame}"),
        ("text", f"{accepted} str 'text'. Cure: {corpus}"),
        (b"text", f"{accepted} bytes. Cure: see docs/inputs.md"),
        (3, f"{accepted} int. Cure: see docs/inputs.md"),
        (["a", "b"], given),
        (
            iter(["a"]),
            "expected texts in a list; got a list_iterator of them. Cure: give list(texts)",
        ),
        ([torch.ones(3)], f"{single} float32 [3]. Cure: {axis}"),
        ([np.ones(3, int)], f"{single} int64 [3]. Cure: {axis}"),
        ([[1, 2]], f"{accepted} a list of lists of int. Cure: make tensors of them"),
    ):
        assert sentence(inputs._open_batches, thing) == message
    for fine in ([[torch.ones(2, 3)]], [[[1, 2]]], [[]], [torch.ones(2, 2)]):
        assert len(inputs._open_batches(fine)) == 1


def test_sequences_of_a_unit_have_ranges_of_their_own():
    given = inputs.GivenInputs([IDS, IDS[:1], IDS], units=[*"abaca"])
    batches = list(given)
    assert [batch.unit.tolist() for batch in batches] == [[0, 1], [0], [2, 0]]
    starts = [batch.streams["encoder"].start.tolist() for batch in batches]
    long = inputs.LONGEST
    assert starts == [[0, 0], [long], [0, 2 * long]]
    assert given.tokens == [6, 3, 6]
    named = inputs.GivenInputs([{"input_ids": IDS, "unit": torch.tensor([4, 4])}])
    (batch,) = named
    assert batch.unit.tolist() == [4, 4] and "unit" not in batch.inputs
    assert batch.streams["encoder"].start.tolist() == [0, long]
    assert [batch.unit.tolist() for batch in inputs.GivenInputs([IDS, IDS[:1]])] == [
        [0, 1],
        [2],
    ]
    for units, message in (
        ([*"abcd"], "expected units for 3 sequences, one each; got 4"),
        ([*"ab"], "expected a unit for each of 1 sequences; got 0"),
    ):
        found = inputs.GivenInputs([IDS, IDS[:1]], units=units)
        assert sentence(list, found).startswith(message)
    wrong = [{"input_ids": IDS, "unit": torch.tensor([4])}]
    assert sentence(list, inputs.GivenInputs(wrong)) == (
        "expected a unit for each of 2 sequences; got 1. Cure: give one unit per sequence, in order"
    )
    assert inputs._number_units(torch.tensor([7, 3, 7])).tolist() == [0, 1, 0]
    assert inputs._number_units(np.array(["b", "a"])).tolist() == [0, 1]


def test_a_batch_has_what_its_model_takes_and_who_calls_it():
    given = {
        "input_ids": IDS,
        "labels": torch.tensor([1, 0]),
        "special_tokens_mask": torch.tensor([[1, 0, 0], [0, 1, 0]]),
    }
    (batch,) = inputs.GivenInputs([given], Reader())
    assert list(batch.inputs) == ["input_ids"] and batch.label.tolist() == [1, 0]
    assert isinstance(batch.call, calls.Caller)
    special = batch.streams["encoder"].special
    assert special.long().tolist() == [[1, 0, 0], [0, 1, 0]]
    own = inputs.GivenInputs([given], Reader(), forward=lambda model, item: model(item))
    (batch,) = own
    assert batch.inputs["inputs"] is given and batch.label.tolist() == [1, 0]
    (batch,) = inputs.GivenInputs([given])
    assert batch.call is None and "labels" in batch.inputs
    ready = Batch({"x": IDS}, torch.arange(2), {"encoder": Stream(IDS == 1, IDS == 0, IDS[:, 0])})  # fmt: skip
    found = inputs.GivenInputs([ready])
    assert list(found) == [ready] and found.tokens == [6]
    pair = inputs.GivenInputs([(IDS, IDS[:1])], Reader(), forward=lambda *_: None)
    (batch,) = pair
    assert batch.unit.tolist() == [0, 1], "counted by the first of the pair"
    array = inputs.GivenInputs([np.ones((3, 4))], Reader(), forward=lambda *_: None)
    assert next(iter(array)).unit.tolist() == [0, 1, 2]


def test_classes_are_numbers_up_to_the_largest_label():
    def classes(*labels):
        items = [{"input_ids": IDS, "labels": label} for label in labels]
        return inputs.GivenInputs(items).classes

    assert classes([0, 3], [1, 1]) == ("0", "1", "2", "3")
    assert classes([0.5, 1.0], [[0, 1]], []) == ()
    labelled = Batch({}, torch.arange(2), label=torch.tensor([2, 0]))
    assert inputs.GivenInputs([labelled]).classes == ("0", "1", "2")
    loader = SimpleNamespace(classes=("x", "y"))
    given = inputs.GivenInputs([IDS])
    given.batches = loader
    assert given.classes == ("x", "y")
    find = inputs._find_labels
    assert find({"label": [3], "labels": [1, 0]}).tolist() == [1, 0]
    assert find({"targets": [3], "target": [1]}).tolist() == [1]
    assert find({"x": [3]}) is None and find(IDS) is None
    assert (
        find({"labels": torch.tensor([1, 2], dtype=torch.uint8)}).dtype == torch.int64
    )


def test_the_fingerprint_of_inputs_is_of_all_that_they_are():
    def print_of(*items, **how):
        return inputs.GivenInputs(list(items), **how).fingerprint

    x = torch.arange(4.0).view(2, 2)
    found = [
        print_of(x),
        print_of(x, x),
        print_of(x.view(1, 4)),
        print_of(x.bfloat16()),
        print_of(x.view(torch.int32)),
        print_of({"x": x}),
        print_of({"y": x}),
        print_of({"x": x, "n": 3}),
        print_of({"x": x, "n": 4}),
        print_of((x, x + 1)),
        print_of((x + 1, x)),
        print_of(x.numpy()),
        print_of(x, units=["a", "b"]),
        print_of(x, units=["a", "a"]),
        print_of(torch.ones(2, 0)),
    ]
    assert len(set(found)) == len(found)
    assert print_of(x) == print_of(x.clone())
    assert print_of(x, units=["a", "b"]) == print_of(x, units=["c", "d"])
    batch = Batch({"x": x}, torch.arange(2))
    assert print_of(batch) != print_of(batch), "nothing that can be hashed"


def test_how_many_sequences_a_batch_has():
    """The text counts, then the grids of images; a number is no row."""
    patches, text, grid = torch.ones(9, 2), torch.ones(2, 3), torch.ones(4, 3)
    count = inputs._count_rows
    assert count({"pixel_values": patches, "input_ids": text}) == 2
    assert count({"pixel_values": patches, "image_grid_thw": grid}) == 4
    assert count({"target_sizes": text, "grid_thw": grid, "x": patches}) == 4
    assert count({"x": patches, "target_sizes": text}) == 2
    assert count({"n": torch.tensor(3), "x": patches}) == 9
    assert sentence(count, {"n": torch.tensor(3), "m": 2}) == (
        "expected at least one tensor in a batch; got n, m. Cure: see docs/inputs.md"
    )
    assert "; got none. " in sentence(count, {})


def test_which_positions_of_given_inputs_are_real():
    start = torch.tensor([0, 100])
    left = torch.tensor([[0, 1, 1], [1, 1, 1]])

    def streams(special=None, **given):
        found = inputs._build_streams(given, special, start)
        return {
            stack: (s.mask.long().tolist(), s.start.tolist())
            for stack, s in found.items()
        }

    real = left.tolist(), [-1, 100]
    every = [[1] * 3] * 2, [0, 100]
    both = {"encoder": real, "decoder": real}
    assert streams(input_ids=IDS * 0, attention_mask=left) == both
    assert streams(input_ids=IDS * 0) == {"encoder": every, "decoder": every}
    full = torch.zeros(2, 1, 3, 3)
    assert streams(input_ids=IDS, attention_mask=full) == {"encoder": every, "decoder": every}  # fmt: skip
    assert streams(input_values=IDS, attention_mask=left) == {"samples": real}
    assert streams(input_features=IDS, attention_mask=left) == {"frames": real}
    text_and_sound = {"input_ids": IDS, "input_values": IDS, "attention_mask": left}
    assert streams(**text_and_sound) == both
    for name in calls.PADDING_MASKS:
        assert streams(src=IDS.float(), **{name: left == 0}) == both
    two = streams(
        input_ids=IDS,
        decoder_input_ids=IDS,
        attention_mask=left,
        decoder_attention_mask=left.flip(1),
    )
    assert two == {"encoder": real, "decoder": (left.flip(1).tolist(), [0, 100])}
    found = inputs._build_streams(
        {"input_ids": IDS, "decoder_input_ids": IDS}, left == 0, start
    )
    assert found["encoder"].special.long().tolist() == [[1, 0, 0], [0, 0, 0]]
    assert not found["decoder"].special.any()


# ---- one metric of vectors


def test_one_metric_is_of_the_real_tokens_of_units():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6, 5, 4)) + 1
    mask = np.ones((6, 5), bool)
    mask[:, 3:] = False
    found = anisoscope.metric("mean_cosine", x, mask=mask)
    flat = x[:, :3].reshape(-1, 4)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    cosines = unit @ unit.T
    mean = cosines[~np.eye(18, dtype=bool)].mean()
    assert found["mean_cosine"].value == pytest.approx(mean)
    owner = np.repeat(np.arange(6), 3)
    between = cosines[owner[:, None] != owner].mean()
    assert found["mean_cosine.between"].value == pytest.approx(between)
    swapped = anisoscope.metric("mean_cosine.between", x.astype(">f8"), mask=mask)
    assert list(swapped) == ["mean_cosine.between"]
    assert swapped["mean_cosine.between"].value == pytest.approx(between)
    pairs = anisoscope.metric("mean_cosine", x, mask=mask, unit=[0, 0, 1, 1, 2, 2])
    between = cosines[owner[:, None] // 2 != owner // 2].mean()
    assert pairs["mean_cosine.between"].value == pytest.approx(between)


def test_tokens_of_one_unit_are_sampled_each_for_itself():
    """Sequences of one unit have other numbers, so that none is taken for another."""
    x = np.random.default_rng(1).normal(size=(4, 3, 2))
    seen = []

    class Own(functional.Measurement):
        def end(self, *given):
            super().end(*given)
            seen.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "Measurement", Own)
        functional.metric("floor", x, unit=[0, 0, 1, 1], groups=5)
    (kept,) = seen
    hashes = kept.reservoirs["encoder"].hash
    assert len(hashes) == 12 == len(set(hashes.tolist()))
    assert kept.settings.groups == 5 and kept.settings.spectrum_groups == 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "Measurement", Own)
        functional.metric("mean_cosine", x, groups=20)
    assert (seen[-1].settings.groups, seen[-1].settings.spectrum_groups) == (20, 8)


def test_a_value_of_a_metric_is_found_by_its_whole_name():
    x = np.random.default_rng(2).normal(size=(40, 6))
    whole = anisoscope.metric("spectrum", x)
    names = {key.split(" ")[0].partition(".")[2] for key in whole}
    assert len(names) > 3
    for name in names:
        own = anisoscope.metric(f"spectrum.{name}", x)
        assert {key.split(" ")[0] for key in own} == {f"spectrum.{name}"}
        for key, estimate in own.items():
            np.testing.assert_equal(estimate, whole[key])
    # of a value with components its own name is told, not that of each component
    assert sentence(anisoscope.metric, "spectrum.explaine", x) == (
        "expected a value of spectrum; got spectrum.explaine. Cure: did you mean spectrum.explained?"
    )


def test_arrays_that_a_metric_cannot_take():
    x = np.ones((4, 3))
    assert sentence(anisoscope.metric, "attention", x) == (
        "expected a metric of hidden vectors; got attention, of attention rows. "
        "Cure: use anisoscope.measure(model, …)"
    )
    assert sentence(anisoscope.metric, "class_direction", x).endswith(
        "Cure: use anisoscope classes"
    )
    for given, got in (
        (np.ones((4, 3), int), "ndarray of int64"),
        (torch.ones(4, 3, dtype=torch.int32), "Tensor of torch.int32"),
        ([[1.0]], "list"),
    ):
        assert sentence(functional._to_vectors, given) == (
            f"expected vectors of floating point, in a tensor or an array; got {got}. "
            "Cure: convert them: x.float() or np.asarray(x)"
        )
    assert "got shape (3,)" in sentence(functional._to_vectors, np.ones(3))
    assert "at least one vector; got shape (0, 3)" in sentence(
        functional._to_vectors, np.ones((0, 3))
    )
    three = functional._to_vectors(np.ones((2, 4, 3)))
    flat = functional._to_vectors(x)
    for mask, shape in (([True] * 4, "(4,)"), ([[True] * 3] * 2, "(2, 3)")):
        assert sentence(functional._to_mask, three, mask) == (
            f"expected a mask of shape (2, 4); got {shape}. Cure: give one entry per vector"
        )
    single = functional._to_vectors(np.ones((1, 3, 2)))
    with pytest.raises(UsageError):
        functional._to_mask(single, [True] * 3)
    assert functional._to_mask(flat, [1, 0, 1, 1]).tolist() == [[True], [False], [True], [True]]  # fmt: skip
    for unit, got in (
        ([0.0] * 4, "torch.float32 of shape (4,)"),
        (np.ones(4, complex), "torch.complex128 of shape (4,)"),
        ([0] * 3, "torch.int64 of shape (3,)"),
        ([[0]] * 4, "torch.int64 of shape (4, 1)"),
    ):
        assert sentence(functional._to_units, flat, unit) == (
            f"expected 4 whole numbers as units, one for each sequence; got {got}. Cure: number the units from 0"
        )


def test_a_metric_of_two_layers_takes_two_arrays():
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(30, 4)), draw.normal(size=(30, 4))
    name = next(
        metric.name
        for metric in functional.all_metrics.find_all().values()
        if metric.reads.arrays == 2
    )
    found = anisoscope.metric(name, (x, y))
    assert found and not any(" " in key for key in found)
    for given, got in ((x, "ndarray"), ((x,), "tuple of 1"), ([x, y, x], "list of 3")):
        assert sentence(anisoscope.metric, name, given) == (
            f"expected two arrays of the same tokens for {name}; got {got}. "
            f"Cure: anisoscope.metric({name!r}, (x, y))"
        )
    assert "; got (30, 1, 4) and (29, 1, 4). " in sentence(
        anisoscope.metric, name, (x, y[:29])
    )


def test_two_layers_of_one_metric_may_differ_in_width():
    x = np.random.default_rng(5).normal(size=(30, 4))
    wider = np.hstack([x, np.zeros((30, 2))])
    found = anisoscope.metric("cka", (x, wider))
    assert found["cka"].value == pytest.approx(1)


def test_vectors_that_are_left_out_are_counted_by_their_kind():
    x = np.random.default_rng(4).normal(size=(9, 4))
    x[0], x[1], x[2, 1] = 0, np.nan, np.inf
    with pytest.warns(UserWarning, match="mean_cosine: of 8 vectors, these") as raised:
        anisoscope.metric("mean_cosine", x, mask=[True] * 8 + [False])
    assert str(raised[0].message) == (
        "mean_cosine: of 8 vectors, these were left out: 2 with NaN or infinity, 1 zero"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cure = "a direction needs a finite vector that is not zero; find out where the others come from"
        assert sentence(anisoscope.metric, "mean_cosine", x[:3]) == (
            f"expected vectors to measure; got 3, of them 2 with NaN or infinity, 1 zero. Cure: {cure}"
        )
