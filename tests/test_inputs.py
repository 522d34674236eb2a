"""What can be handed to `anisoscope.measure`: every kind of the documentation, and numbers that do not depend on how
the same data came.
"""

import json
import subprocess
from pathlib import Path

import documentation
import input_kinds
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from quick import WARM, quick
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertModel

import anisoscope.errors
from anisoscope.data.arrays import VectorPlan, wrap_vectors
from anisoscope.data.vector_files import open_vectors
from anisoscope.errors import UsageError
from anisoscope.measure.calls import Caller
from anisoscope.measure.inputs import GivenInputs
from anisoscope.store import select

QUICK = {"panel": "hidden", "sample": 0}
OWN = QUICK | {"blocks": "TransformerEncoderLayer"}


@pytest.fixture(scope="module")
def typed():
    with input_kinds.typed() as names:
        yield names


@pytest.mark.parametrize("kind", input_kinds.KINDS, ids=lambda kind: kind.what)
def test_every_kind_works_or_says_why_not(kind, typed):
    run, said = input_kinds.outcome(kind, typed)
    page = Path(__file__).parents[1].joinpath("docs", "inputs.md").read_text("utf-8")
    assert documentation.row_of_outcome(kind, run, said) in page, "make docs writes it"
    if kind.fails:
        assert said.startswith(kind.fails), said
        assert "Cure: " in said
    else:
        assert not said, said
        assert len(run.table()), "a short table of hidden states"


def test_the_page_names_every_kind():
    page = Path(__file__).parents[1].joinpath("docs", "inputs.md").read_text("utf-8")
    assert len(input_kinds.KINDS) >= 24
    for kind in input_kinds.KINDS:
        assert kind.what in page, kind.what


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    return BertModel(BertConfig(**sizes, vocab_size=50), add_pooling_layer=False).eval()


@pytest.fixture(scope="module")
def batch():
    ids = torch.randint(1, 50, (6, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor([9, 8, 4, 9, 2, 5])[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def values(run):
    return run.records.drop(columns=["run", "corpus", "model"])


def same(ours, theirs):
    pd.testing.assert_frame_equal(values(ours), values(theirs), rtol=1e-9, atol=1e-12)


def test_texts_are_measured_and_recorded_as_a_file_of_them_is(tmp_path, minilm):
    """Nothing of the file that they are read from by the way."""
    texts = [f"{i}. The cat sat on the mat." for i in range(8)]
    (tmp_path / "texts.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in texts)
    )
    of_file = anisoscope.measure(minilm, corpus=str(tmp_path / "texts.jsonl"), **QUICK)
    given = anisoscope.measure(minilm, texts, **QUICK)
    same(given, of_file)
    told, expected = given.manifest["corpus"], of_file.manifest["corpus"]
    assert told.pop("name") == "texts" and "path" in expected
    assert told == {
        name: value for name, value in expected.items() if name not in ("name", "path")
    }


def test_the_same_data_gives_the_same_numbers_however_they_come(bert, batch):
    """Positional arguments were lost: (ids, mask) was measured with its padding."""
    expected = anisoscope.measure(bert, batch, **QUICK)
    assert (
        select(expected.records, metric="mean_cosine", layer=1, token_policy="all")[
            "n_vectors"
        ].item()
        == 37
    )
    same(
        anisoscope.measure(
            bert, (batch["input_ids"], batch["attention_mask"]), **QUICK
        ),
        expected,
    )
    same(
        anisoscope.measure(bert, {k: v.tolist() for k, v in batch.items()}, **QUICK),
        expected,
    )
    same(
        anisoscope.measure(bert, {k: v.numpy() for k, v in batch.items()}, **QUICK),
        expected,
    )
    data = DataLoader(TensorDataset(*batch.values()), batch_size=4)
    same(anisoscope.measure(bert, data, **QUICK), expected)
    rows = ({k: v[i : i + 2] for k, v in batch.items()} for i in range(0, 6, 2))
    same(anisoscope.measure(bert, rows, **QUICK), expected)


def test_two_passes_read_the_same_batches(bert, batch):
    """Centred attention takes a pass for its means: a generator was used up by the first."""
    given = {"metrics": ["centred_attention"]}
    expected = anisoscope.measure(bert, batch, **given)
    same(anisoscope.measure(bert, iter([batch]), **given), expected)


def test_units_are_what_intervals_leave_out(bert, batch):
    twice = {k: torch.cat([v, v]) for k, v in batch.items()}
    run = anisoscope.measure(bert, twice, units=[*"abcdef"] * 2, **QUICK)
    assert select(run.records, metric="mean_cosine")["n_units"].unique().tolist() == [6]
    alone = anisoscope.measure(bert, twice, **QUICK)
    width = [
        (r.high - r.low).mean()
        for r in (select(x.records, metric="norms.mean") for x in (run, alone))
    ]
    assert width[0] > 1.2 * width[1]


def test_labels_of_pairs_stay_with_us(bert, batch):
    data = DataLoader(TensorDataset(batch["input_ids"], torch.arange(6)), batch_size=3)
    run = anisoscope.measure(bert, data, **QUICK)
    same(run, anisoscope.measure(bert, batch["input_ids"], **QUICK))
    assert "taken for its labels" in run.manifest["warnings"][0]


class Of(nn.Module):
    """A model of one argument, or of two."""

    def forward(self, x):
        return x


class OfTwo(Of):
    def forward(self, x, y):
        return x + y


@pytest.mark.parametrize(
    ("model", "second", "given"),
    [
        (Of(), (3, 4), ["x"]),
        (Of(), (3,), ["x"]),
        (OfTwo(), (3, 4), ["x", "y"]),
        (OfTwo(), (3,), ["x"]),
        (OfTwo(), (2,), ["x", "y"]),
        (OfTwo(), (), ["x"]),
    ],
)
def test_the_second_of_a_pair_is_of_the_model_unless_it_labels_sequences(
    model, second, given
):
    """It labels them where it has one number for each, or where the model takes one argument."""
    caller = Caller(model, None)
    assert [*caller.name_arguments((torch.zeros(3, 4), torch.zeros(second)))] == given
    assert bool(caller.warnings) is (given == ["x"])
    with pytest.raises(UsageError, match="at most"):
        caller.name_arguments([torch.zeros(3, 4)] * 3)


@pytest.mark.parametrize(
    ("labels", "classes"), [([[0, 2], [1, 0]], ("0", "1", "2")), ([[0, 0]], ("0",))]
)
def test_classes_of_numbered_labels_reach_to_the_largest(labels, classes):
    assert (
        GivenInputs(
            [{"x": torch.zeros(2, 3), "labels": torch.tensor(each)} for each in labels]
        ).classes
        == classes
    )


def test_a_mask_that_only_the_model_reads_is_told():
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2
    ).eval()
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    run = anisoscope.measure(
        encoder, {"src": torch.randn(8, 5, 16), "mask": causal}, **OWN
    )
    assert any("every position counts" in text for text in run.manifest["warnings"])


def test_a_call_that_goes_round_the_model_is_refused(bert, batch):
    with pytest.raises(
        UsageError, match="forward= to call the model once; got 0 calls"
    ):
        anisoscope.measure(
            bert,
            batch,
            forward=lambda model, given: model.embeddings(given["input_ids"]),
            **QUICK,
        )


def test_a_tensor_among_options_is_refused(bert, batch):
    """transformers' models take any keyword: a misspelt mask was given, ignored, and the padding counted."""
    with pytest.raises(UsageError, match="attn_mask"):
        anisoscope.measure(
            bert,
            {"input_ids": batch["input_ids"], "attn_mask": batch["attention_mask"]},
            **QUICK,
        )


def test_a_run_of_inputs_is_written_and_found_again(bert, batch, tmp_path):
    first = anisoscope.measure(bert, batch, output=tmp_path / "run", **QUICK)
    assert first.folder == tmp_path / "run"
    again = anisoscope.measure(
        bert, batch, output=tmp_path / "run", resume=True, **QUICK
    )
    assert again.manifest["started"] == first.manifest["started"]
    with pytest.raises(UsageError, match="the same each time"):
        anisoscope.measure(
            bert,
            DataLoader(TensorDataset(batch["input_ids"])),
            output=tmp_path / "run",
            resume=True,
        )
    changed = batch | {"input_ids": batch["input_ids"].flip(0)}
    with pytest.raises(anisoscope.errors.OutputError, match="plan"):
        anisoscope.measure(bert, changed, output=tmp_path / "run", resume=True, **QUICK)
    same(anisoscope.Run(tmp_path / "run"), first)


def test_a_path_in_the_home_folder_is_there_wherever_it_is_given(tmp_path, monkeypatch):
    """A shell would have put the folder's name in place of ~; in Python nobody does."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir(), here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    x = np.random.default_rng(0).normal(size=(60, 4)) + 0.5
    run = anisoscope.measure(x, output="~/run")
    assert run.folder == home / "run"
    opened = anisoscope.Run("~/run")
    same(opened, run)
    assert opened.save("~/copy").folder == home / "copy"
    anisoscope.cure(x, cures="centre").save("~/fit.safetensors")
    state = anisoscope.State().add(x)
    assert state.save("~/state") == home / "state"
    assert state.finish("~/finished").folder == home / "finished"
    same(anisoscope.State.load("~/state").finish(), state.finish())
    assert anisoscope.Monitor([x], output="~/monitor").output == home / "monitor"
    assert list(here.iterdir()) == []
    written = {"run", "copy", "fit.safetensors", "state", "finished"}
    assert written <= {path.name for path in home.iterdir()}


# ---- vectors ---------------------------------------------------------------------------------------------------------


def mean_cosine(x):
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(u)
    return (u @ u.T).sum() / (n * (n - 1)) - 1 / (n - 1)


def test_vectors_are_measured_by_their_definitions(tmp_path):
    x = np.random.default_rng(0).normal(size=(700, 12)) + 0.4
    for given in (x, torch.tensor(x), [x], {"one": x}):
        run = anisoscope.measure(given)
        row = run.table().iloc[0]
        assert row["A"] == pytest.approx(mean_cosine(x), abs=1e-10)
        norms = np.linalg.norm(x, axis=1)
        assert row["drift share"] == pytest.approx(
            np.linalg.norm(x.mean(0)) / norms.mean(), rel=1e-9
        )
        assert row["low"] < row["A"] < row["high"]
    np.save(tmp_path / "x.npy", x)
    same(anisoscope.measure(tmp_path / "x.npy"), anisoscope.measure(x))


def test_blocks_of_a_file_are_read_one_by_one(tmp_path, monkeypatch):
    """Blocks of another size give the same; no more than a block is in memory."""
    from anisoscope.data import arrays

    x = np.random.default_rng(0).normal(size=(300, 6)) + 1
    np.save(tmp_path / "x.npy", x)
    whole = anisoscope.measure(tmp_path / "x.npy")
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 8 * 6 * 7)
    vectors = open_vectors(tmp_path / "x.npy")
    assert isinstance(vectors.layers["x"], np.memmap)
    assert len(arrays.VectorPlan(vectors)) == 43
    same(anisoscope.measure(tmp_path / "x.npy"), whole)


def test_memory_does_not_grow_with_the_file(tmp_path):
    """A file of 64 MiB takes little more than one of 16: pages of a mapped file count as resident while there is room
    for them, so what is bounded is what is taken beyond the file itself.
    """
    code = (
        "import anisoscope, resource, sys\n"
        "anisoscope.measure(sys.argv[1], metrics=['mean_cosine'])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    used, some = [], np.random.default_rng(0).normal(size=(1 << 13, 512))
    for rows in (1 << 13, 1 << 15):
        file = np.lib.format.open_memmap(
            tmp_path / "x.npy", "w+", np.float32, (rows, 512)
        )
        for begin in range(0, rows, 1 << 13):
            file[begin : begin + (1 << 13)] = some
        file.flush()
        del file
        command = [*quick(WARM), "-c", code, str(tmp_path / "x.npy")]
        used.append(
            int(
                subprocess.run(
                    command, capture_output=True, text=True, check=True
                ).stdout
            )
        )
    assert used[1] - used[0] < (64 - 16) + 24, used


def test_units_and_labels_of_vectors():
    """Ten copies of each vector: with copies as units of their own the interval was three times too narrow."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(60, 8)) + 0.3, 10, axis=0)
    labels = np.repeat(rng.integers(0, 2, 60), 10)
    x[labels == 1, 0] += 3
    together = anisoscope.measure(x, units=np.repeat(np.arange(60), 10), labels=labels)
    apart = anisoscope.measure(x, labels=labels)
    for metric in ("norms.mean", "class_direction.auc"):
        wide, narrow = (
            select(r.records, metric=metric, component=None).iloc[0]
            for r in (together, apart)
        )
        assert wide["value"] == pytest.approx(narrow["value"], abs=1e-12)
        assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
        assert (wide.n_units, narrow.n_units) == (60, 600)
    assert (
        select(together.records, metric="class_direction.auc", component=None)[
            "value"
        ].item()
        > 0.6
    )


def test_units_are_told_from_no_units_by_none_alone():
    batches = [{"x": torch.zeros(2, 3)}]
    assert GivenInputs(batches).units is None
    for units in (np.array([4, 9]), torch.tensor([4, 9]), []):
        assert GivenInputs(batches, units=units).units is not None


def test_tokens_of_one_unit_are_told_apart_though_they_lie_in_several_sequences():
    """What is drawn of a unit is drawn by the place of a token in it: two at one place would be drawn together."""
    plan = VectorPlan(wrap_vectors(np.ones((6, 4, 3)), units=[0, 0, 0, 1, 1, 1]))
    batch = plan.build(np.arange(6))
    (stream,) = batch.streams.values()
    places = (stream.start[:, None] + torch.arange(4)).tolist()
    named = {
        (unit, place)
        for unit, row in zip(batch.unit.tolist(), places, strict=True)
        for place in row
    }
    assert len(named) == 6 * 4


def test_hidden_states_as_vectors_are_the_layers_of_the_model(bert, batch):
    with torch.no_grad():
        hidden = bert(**batch, output_hidden_states=True).hidden_states
    ours = anisoscope.measure(hidden, mask=batch["attention_mask"], tokens="all")
    model = anisoscope.measure(bert, batch, tokens="all", panel="hidden,spectrum")
    for metric in ("mean_cosine", "drift", "spectrum.effective_rank", "intra_sequence"):
        a, b = (
            select(r.records, metric=metric, component=None, site="hidden")["value"]
            for r in (ours, model)
        )
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_layers_are_in_the_order_of_their_numbers(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 4))
    np.savez(tmp_path / "x.npz", **{f"layer_{i}": x + i for i in (2, 10, 1)})
    run = anisoscope.measure(tmp_path / "x.npz")
    assert run.manifest["corpus"]["layers"] == ["layer_1", "layer_2", "layer_10"]
    assert run.table()["A"].is_monotonic_increasing


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (np.zeros((0, 4)), {}, "at least one vector"),
        (
            {"a": np.ones((5, 4)), "b": np.ones((6, 4))},
            {},
            "layers of the same shape",
        ),
        (np.ones((5, 4)), {"units": [1, 2]}, "a unit for each of 5"),
        (
            np.ones((5, 4)),
            {"labels": ["a", None, "b", "a", "b"]},
            "a label for every vector",
        ),
        (np.ones((5, 3, 4)), {"labels": [0, 1, 0, 1, 0]}, "pool them"),
        (np.ones((5, 3, 4)), {"mask": torch.ones(5, 4)}, "a mask of the shape"),
        (np.ones((5, 4)), {"metrics": ["attention"]}, "metrics of vectors"),
        (np.ones((5, 4)), {"tokens": "content"}, "token policies that vectors have"),
        (np.ones((5, 4)), {"panel": "attention"}, "the panels hidden and spectrum"),
        (np.ones((5, 4)), {"corpus": "builtin:python-docs"}, "vectors alone"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(given, options, said):
    with pytest.raises(anisoscope.errors.AnisoscopeError, match=said):
        anisoscope.measure(given, **options)


@pytest.mark.parametrize("dtype", [">f4", ">f8", "<f2", "longdouble", ">i4", "u8"])
def test_numbers_of_any_type_and_byte_order_are_read_as_they_are(tmp_path, dtype):
    """Numbers of another byte order were refused, those of 16 bytes ended in a traceback, and whole numbers above 2²⁴
    were rounded.
    """
    x = (np.random.default_rng(0).normal(size=(20, 3)) * 100 + 300).astype(dtype)
    x[0] = [1, 2, 2**24 + 1] if x.dtype.kind in "iu" else x[0]
    np.save(tmp_path / "x.npy", x)
    block = open_vectors(tmp_path / "x.npy").block("x", np.arange(20))
    assert np.array_equal(block[:, 0].double().numpy(), x.astype("f8"))


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:60], lambda b: b[: len(b) // 2], lambda b: b[:99] + b"\0" + b[100:]],
)
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_a_damaged_file_of_vectors_is_told(tmp_path, ending, damage):
    """A damaged archive, and a header that breaks off, ended in a traceback."""
    path = tmp_path / f"x.{ending}"
    np.savez(path, a=np.ones((40, 3))) if ending == "npz" else np.save(
        path, np.ones((40, 3))
    )
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(anisoscope.errors.CorpusError, match=r"vectors in .*x\.np"):
        open_vectors(path)


def test_a_header_with_a_size_that_no_machine_has_is_told(tmp_path):
    """It ended in an OverflowError."""
    path = tmp_path / "x.npy"
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**20, 3)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(999))
    with pytest.raises(anisoscope.errors.CorpusError, match=r"vectors in .*x\.npy"):
        open_vectors(path)


DESCRIBED = [{}, [], 3, {"index_columns": ["none"]}, {"index_columns": [7]}]


def write_described(path, change):
    """A parquet file whose description by pandas was changed."""
    table = pa.Table.from_pandas(
        pd.DataFrame(np.arange(15.0).reshape(5, 3) ** 0.5, columns=list("abc"))
    )
    known = json.loads(table.schema.metadata[b"pandas"])
    whole = {**known, **change} if change and isinstance(change, dict) else change
    pq.write_table(
        table.replace_schema_metadata({b"pandas": json.dumps(whole).encode()}), path
    )


@pytest.mark.parametrize("change", DESCRIBED, ids=map(str, DESCRIBED))
def test_a_table_whose_description_by_pandas_is_damaged_is_told(tmp_path, change):
    """KeyError, TypeError or AttributeError of pyarrow: found by the campaign, seed 2."""
    write_described(tmp_path / "x.parquet", change)
    with pytest.raises(
        anisoscope.errors.CorpusError,
        match=r"vectors in .*x\.parquet.*columns is damaged",
    ):
        open_vectors(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    "change", [{"columns": [1]}, {"index_columns": [{"kind": "range"}]}], ids=str
)
def test_a_description_by_pandas_is_read_for_the_index_alone(tmp_path, change):
    """What else is damaged in it harms no number."""
    write_described(tmp_path / "x.parquet", change)
    assert open_vectors(tmp_path / "x.parquet").shape == (5, 3)


def test_zero_and_broken_vectors_are_counted():
    x = np.random.default_rng(0).normal(size=(80, 4))
    x[3], x[7, 1] = 0, np.nan
    run = anisoscope.measure(x)
    assert run.manifest["excluded"]["vectors.0.hidden"] == {"zero": 1, "nonfinite": 1}
    good = np.delete(x, [3, 7], axis=0)
    assert run.table()["A"].item() == pytest.approx(mean_cosine(good), abs=1e-10)


def test_the_program_measures_a_file_of_vectors(tmp_path):
    from typed import invoke

    x = np.random.default_rng(0).normal(size=(90, 6)) + 1
    np.savez(
        tmp_path / "x.npz",
        a=x,
        b=x + 1,
        document=np.arange(90) // 3,
        kind=np.arange(90) % 2,
    )
    columns = ["--unit-column", "document", "--label-column", "kind"]
    done = invoke(
        [
            "measure",
            str(tmp_path / "x.npz"),
            *columns,
            "-o",
            str(tmp_path / "run"),
            "-q",
        ]
    )
    assert done.exit_code == 0, done.output
    python = anisoscope.measure(
        tmp_path / "x.npz", unit_column="document", label_column="kind"
    )
    same(anisoscope.Run(tmp_path / "run"), python)
    assert (tmp_path / "run" / "report.html").exists()
    refused = invoke(["measure", "builtin:minilm", *columns])
    assert "a file of vectors" in str(refused.exception)


def test_a_model_of_which_one_part_has_no_weights_is_refused():
    """As one that was loaded with a part of it left on the meta device."""
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, device="meta")
    )
    with pytest.raises(
        anisoscope.errors.UsageError,
        match=r"weights on the device meta.*load it on cpu",
    ):
        anisoscope.measure(model, [{"x": torch.zeros(2, 4)}])
