"""Vectors in the files that people have: what pandas, numpy, arrow, torch, datasets and embedding services write. Each
is read as the vectors that were written, or refused with a cure; none gives another number.
"""

import base64
import gzip
import json
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file

import anisoscope
from anisoscope.data.vector_files import (
    _get_only_shape,
    _join_rows,
    holds_vectors,
    open_vectors,
    read_content,
)
from anisoscope.data.vector_roles import Content
from anisoscope.errors import AnisoscopeError, CorpusError, UsageError

X = np.random.default_rng(3).normal(size=(60, 8)) + 0.3
"""The vectors of every file here."""
IDS = np.random.default_rng(4).permutation(9000)[:60] + 1000
TEXTS = [f"text {row}" for row in range(60)]
NAMED = pd.DataFrame(X, columns=[f"dim_{place}" for place in range(8)])


def test_comments_go_on_behind_a_blank_line(tmp_path):
    """Between blocks of comments people leave a line free."""
    lines = [
        "# made by hand",
        "",
        "# of two runs",
        ",".join(NAMED),
        *(",".join(map(repr, row)) for row in X.tolist()),
    ]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    opened = open_vectors(tmp_path / "x.csv")
    assert opened.shape == X.shape
    (name,) = opened.layers
    np.testing.assert_array_equal(
        opened.block(name, np.arange(60))[:, 0].double().numpy(), X
    )


def records(**more):
    return [
        {"object": "embedding", "index": row, "embedding": X[row].tolist(), **more}
        for row in range(60)
    ]


def write_json(path, value):
    path.write_text(json.dumps(value))


def write_lines(path, values):
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))


def write_arrow(path, table):
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def write_folder(path, write, ending, names=None):
    path.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(60), 3)):
        write(path / f"{names[number] if names else f'part-{number}'}{ending}", rows)


def in_base64(row):
    return base64.b64encode(X[row].astype("<f4").tobytes()).decode()


def fixed_lists():
    return pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 8)


def tensors():
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(X))


RIGHT = {
    # pandas, CSV
    "index.csv": lambda p: pd.DataFrame(X).to_csv(p),
    "no-index.csv": lambda p: pd.DataFrame(X).to_csv(p, index=False),
    "index-no-header.csv": lambda p: pd.DataFrame(X).to_csv(p, header=False),
    "bare.csv": lambda p: pd.DataFrame(X).to_csv(p, index=False, header=False),
    "words.csv": lambda p: pd.DataFrame(X, index=TEXTS).to_csv(p),
    "named-index.csv": lambda p: NAMED.rename_axis("row").to_csv(p),
    "shuffled-index.csv": lambda p: NAMED.set_index(IDS).to_csv(p),
    "id.csv": lambda p: NAMED.assign(id=IDS).to_csv(p, index=False),
    "doc-id.csv": lambda p: (
        pd.DataFrame(X).assign(doc_id=IDS, year=2000 + IDS % 20).to_csv(p)
    ),
    "text-label.csv": lambda p: NAMED.assign(text=TEXTS, label=IDS % 3).to_csv(
        p, index=False
    ),
    "lists.csv": lambda p: pd.DataFrame({"id": IDS, "embedding": X.tolist()}).to_csv(
        p, index=False
    ),
    "printed-beside-texts.csv": lambda p: pd.DataFrame(
        {"t": TEXTS, "v": [str(x.tolist()) for x in X]}
    ).to_csv(p),
    "printed-scalars.csv": lambda p: pd.DataFrame(
        {"v": [str(list(x.astype(float))) for x in X]}
    ).to_csv(p),
    "printed-arrays.csv": lambda p: pd.DataFrame(
        {"id": IDS, "v": [repr(x.tolist()) for x in X]}
    ).to_csv(p),
    "semicolons.csv": lambda p: NAMED.to_csv(p, sep=";", index=False),
    "decimal-commas.csv": lambda p: NAMED.to_csv(p, sep=";", decimal=",", index=False),
    "decimal-commas-text.csv": lambda p: NAMED.assign(id=IDS, text=TEXTS).to_csv(
        p, sep=";", decimal=",", index=False
    ),
    "decimal-commas-index.tsv": lambda p: NAMED.to_csv(p, sep="\t", decimal=","),
    "packed.csv.gz": lambda p: NAMED.to_csv(p),
    "tabs.tsv": lambda p: NAMED.to_csv(p, sep="\t"),
    "whole-names.csv": lambda p: pd.DataFrame(X, columns=range(1, 9)).to_csv(
        p, index=False
    ),
    "byte-order-mark.csv": lambda p: NAMED.to_csv(p, encoding="utf-8-sig"),
    # numpy
    "savetxt.csv": lambda p: np.savetxt(p, X, delimiter=","),
    "savetxt-header.csv": lambda p: np.savetxt(
        p, X, delimiter=",", header=",".join(NAMED)
    ),
    "savetxt-remark.csv": lambda p: np.savetxt(
        p, X, delimiter=",", header="made by hand\nof eight numbers"
    ),
    "savetxt.txt": lambda p: np.savetxt(p, X),
    "savetxt-id.csv": lambda p: np.savetxt(
        p, np.c_[IDS, X], delimiter=",", header="id," + ",".join(NAMED)
    ),
    "x.npy": lambda p: np.save(p, X),
    "x.npz": lambda p: np.savez_compressed(p, X),
    "ids.npz": lambda p: np.savez(p, embeddings=X, ids=IDS, texts=np.array(TEXTS)),
    "structured.npy": lambda p: np.save(
        p, NAMED.assign(id=IDS).to_records(index=False)
    ),
    "glove.txt": lambda p: p.write_text(
        "".join(f"w{i} {' '.join(map(repr, map(float, X[i])))}\n" for i in range(60))
    ),
    # arrow
    "numbers.parquet": lambda p: NAMED.to_parquet(p),
    "index.parquet": lambda p: NAMED.set_index(IDS).to_parquet(p),
    "id.parquet": lambda p: NAMED.assign(id=IDS).to_parquet(p),
    "lists.parquet": lambda p: pd.DataFrame(
        {"id": IDS, "text": TEXTS, "vector": list(X)}
    ).to_parquet(p),
    "fixed-lists.parquet": lambda p: pa.parquet.write_table(
        pa.table({"id": IDS, "vector": fixed_lists()}), p
    ),
    "records.parquet": lambda p: pa.parquet.write_table(
        pa.table(
            {
                "r": pa.array(
                    [{"id": i, "embedding": x} for i, x in enumerate(X.tolist())]
                )
            }
        ),
        p,
    ),
    "tensors.feather": lambda p: pa.feather.write_feather(
        pa.table({"vector": fixed_lists()}), p
    ),
    "tensors.arrow": lambda p: write_arrow(p, pa.table({"vector": tensors()})),
    "polars-like.parquet": lambda p: pa.parquet.write_table(
        pa.table({"embedding": pa.array(X.tolist(), pa.large_list(pa.float64()))}), p
    ),
    # JSON of services and of pandas
    "openai.json": lambda p: write_json(
        p,
        {
            "object": "list",
            "data": records(),
            "model": "text-embedding-3-small",
            "usage": {"prompt_tokens": 9},
        },
    ),
    "openai-batch.jsonl": lambda p: write_lines(
        p,
        [
            {
                "id": f"b{r}",
                "custom_id": f"c{r}",
                "response": {"status_code": 200, "body": {"data": [records()[r]]}},
            }
            for r in range(60)
        ],
    ),
    "voyage.jsonl": lambda p: write_lines(
        p,
        [
            {"object": "list", "data": records()[n : n + 20], "model": "voyage-3"}
            for n in (0, 20, 40)
        ],
    ),
    "cohere-1.json": lambda p: write_json(
        p,
        {
            "id": "c",
            "texts": TEXTS,
            "embeddings": X.tolist(),
            "meta": {"api_version": {"version": "1"}},
        },
    ),
    "cohere-2.json": lambda p: write_json(
        p,
        {
            "id": "c",
            "embeddings": {
                "float": X.tolist(),
                "int8": np.rint(X * 30).astype(int).tolist(),
            },
            "texts": TEXTS,
        },
    ),
    "cohere-2-alone.json": lambda p: write_json(
        p, {"embeddings": {"float": X.tolist(), "ubinary": [[7]] * 60}}
    ),
    "longer-list-beside.json": lambda p: write_json(
        p, {"curve": [[0.5, 0.1]] * 90, "embeddings": X.tolist()}
    ),
    "google.json": lambda p: write_json(
        p, {"embeddings": [{"values": x} for x in X.tolist()]}
    ),
    "vertex.json": lambda p: write_json(
        p,
        {
            "predictions": [
                {"embeddings": {"values": x, "statistics": {"token_count": 4}}}
                for x in X.tolist()
            ]
        },
    ),
    "google.jsonl": lambda p: write_lines(
        p, [{"embedding": {"values": x}} for x in X.tolist()]
    ),
    "tei.json": lambda p: write_json(p, X.tolist()),
    "tei.jsonl": lambda p: write_lines(p, X.tolist()),
    "ollama.jsonl": lambda p: write_lines(
        p, [{"model": "m", "embedding": x, "took": 7} for x in X.tolist()]
    ),
    "chroma.json": lambda p: write_json(
        p,
        {
            "ids": IDS.tolist(),
            "embeddings": X.tolist(),
            "documents": TEXTS,
            "metadatas": [{"n": 1}] * 60,
        },
    ),
    "pinecone.json": lambda p: write_json(
        p,
        {
            "vectors": [
                {"id": f"{i}", "values": x, "metadata": {"year": i}}
                for i, x in enumerate(X.tolist())
            ]
        },
    ),
    "records.json": lambda p: NAMED.assign(id=IDS).to_json(
        p, orient="records", double_precision=15
    ),
    "records.jsonl": lambda p: NAMED.assign(text=TEXTS).to_json(
        p, orient="records", lines=True, double_precision=15
    ),
    "columns.json": lambda p: NAMED.to_json(p, double_precision=15),
    "split.json": lambda p: NAMED.assign(id=IDS).to_json(
        p, orient="split", double_precision=15
    ),
    "list-column.json": lambda p: pd.DataFrame({"t": TEXTS, "e": X.tolist()}).to_json(
        p, double_precision=15
    ),
    "ids.jsonl": lambda p: write_lines(
        p,
        [
            {"id": i, "input_ids": [1] * (i % 5 + 1), "vector": x}
            for i, x in enumerate(X.tolist())
        ],
    ),
    # torch
    "x.pt": lambda p: torch.save(torch.tensor(X), p),
    "dict.pt": lambda p: torch.save(
        {"embeddings": torch.tensor(X), "ids": torch.tensor(IDS), "texts": TEXTS}, p
    ),
    "rows.pt": lambda p: torch.save(list(torch.tensor(X)), p),
    "old.pt": lambda p: torch.save(
        torch.tensor(X), p, _use_new_zipfile_serialization=False
    ),
    "x.safetensors": lambda p: save_file(
        {"embeddings": torch.tensor(X), "id": torch.tensor(IDS)}, str(p)
    ),
    # folders
    "npy-folder": lambda p: write_folder(
        p, lambda f, rows: np.save(f, X[rows]), ".npy"
    ),
    "csv-folder": lambda p: write_folder(
        p, lambda f, rows: NAMED.iloc[rows].to_csv(f), ".csv"
    ),
    "parquet-folder": lambda p: write_folder(
        p,
        lambda f, rows: pd.DataFrame({"id": IDS[rows], "v": list(X[rows])}).to_parquet(
            f
        ),
        ".parquet",
    ),
    "json-folder": lambda p: write_folder(
        p,
        lambda f, rows: write_json(f, {"data": [records()[r] for r in rows]}),
        ".json",
    ),
    "pt-folder": lambda p: write_folder(
        p, lambda f, rows: torch.save(torch.tensor(X[rows]), f), ".pt"
    ),
    "datasets-folder": lambda p: datasets.Dataset.from_dict(
        {"id": IDS, "text": TEXTS, "emb": X}
    ).save_to_disk(p),
    "datasets-numbers": lambda p: datasets.Dataset.from_pandas(
        NAMED.set_index(IDS)
    ).save_to_disk(p),
    "datasets-split": lambda p: datasets.DatasetDict(
        train=datasets.Dataset.from_dict({"emb": X})
    ).save_to_disk(p),
}
"""File → how it is written. All hold `X` and are read as `X`."""

REFUSED = {
    "hstacked-ids.csv": (
        lambda p: pd.DataFrame(np.c_[IDS, X]).to_csv(p, index=False),
        "'0' holds whole.*--columns 1-8",
    ),
    "hstacked-labels.txt": (
        lambda p: np.savetxt(p, np.c_[X, IDS % 3]),
        "whole numbers among decimals.*--columns 0-7",
    ),
    "hstacked-rows.npy": (
        lambda p: np.save(p, np.c_[np.arange(60), X]),
        "counts the rows.*--columns 1-8",
    ),
    "whole-first.csv": (
        lambda p: np.savetxt(p, np.arange(80).reshape(10, 8), "%d", ","),
        "a first line of whole numbers",
    ),
    "two-series.csv": (
        lambda p: pd.DataFrame(
            np.c_[X, X], columns=[f"{k}{i}" for k in "qk" for i in range(8)]
        ).to_csv(p),
        "two: q0–q7 may be the vector.*--columns q0-q7",
    ),
    "many-others.csv": (
        lambda p: pd.DataFrame(X, columns=[*"abcde", "x0", "x1", "x2"]).to_csv(p),
        "two: x0–x2 may be",
    ),
    "year-among-letters.csv": (
        lambda p: NAMED.set_axis([*"abcdefgh"], axis=1).assign(i=IDS).to_csv(p),
        "the column 'i'",
    ),
    "bad-cell.csv": (
        lambda p: p.write_text(NAMED.to_csv().replace(repr(float(X[40, 3])), "oops")),
        "line 42.*oops|oops.*line 42",
    ),
    "short-row.csv": (
        lambda p: p.write_text(NAMED.to_csv().replace("," + repr(float(X[40, 3])), "")),
        "line 42: Expected 9 columns, got 8",
    ),
    "short-row.txt": (
        lambda p: p.write_text(
            "".join(
                f"{' '.join(map(str, x[: 8 - (i == 40)]))}\n"
                for i, x in enumerate(X.tolist())
            )
        ),
        "8 values in every line.*7 in line 41",
    ),
    "broken.jsonl": (
        lambda p: p.write_text('{"embedding": [1, 2]}\n{"embedding": [1,\n'),
        "line 2",
    ),
    "columns.json": (
        lambda p: pd.DataFrame(X).to_json(p),
        "one way to read.*keys may be rows or columns",
    ),
    "dict-of-lists.json": (
        lambda p: write_json(p, {f"w{i}": x for i, x in enumerate(X.tolist())}),
        "rows or columns",
    ),
    "ragged.json": (
        lambda p: write_json(
            p, [{"e": x[: 3 + i % 2]} for i, x in enumerate(X.tolist())]
        ),
        "lists of 3 to 4",
    ),
    "bits.json": (
        lambda p: write_json(p, {"embeddings": {"ubinary": [[7, 9], [3, 1]]}}),
        "packed bits",
    ),
    "texts.jsonl": (
        lambda p: write_lines(p, [{"text": t} for t in TEXTS]),
        "text.*MODEL --corpus FILE",
    ),
    "widths.parquet": (
        lambda p: pd.DataFrame({"a": list(X), "b": list(X[:, :3])}).to_parquet(p),
        "a .8.*b .3.*--columns a",
    ),
    "printed-short.csv": (
        lambda p: pd.DataFrame({"v": ["[0.1 0.2 ... 0.3]"] * 5}).to_csv(p, index=False),
        "cut short when they were printed",
    ),
    "shapes.npz": (
        lambda p: np.savez(p, train=X, test=X[:20]),
        "arrays of the same vectors.*--columns",
    ),
    "sparse.npz": (
        lambda p: np.savez(
            p, indices=np.arange(3), indptr=np.arange(3), data=np.ones(3)
        ),
        "a sparse matrix of scipy",
    ),
    "one.npy": (lambda p: np.save(p, X[0]), r"add an axis: x\[None\]"),
    "x.pkl": (
        lambda p: pd.DataFrame(X).to_pickle(p),
        "to_parquet.*nothing is unpickled",
    ),
    "matrices.pt": (
        lambda p: torch.save([torch.tensor(X)] * 3, p),
        "a list of 3 matrices, which may be layers or sequences",
    ),
    "state.pt": (
        lambda p: torch.save(torch.nn.Linear(8, 8).state_dict(), p),
        "write a function that returns the model",
    ),
    "weights.safetensors": (
        lambda p: save_file({"a.weight": torch.ones(4, 4)}, str(p)),
        "weights of a model",
    ),
    "npy-layers-or-pieces": (
        lambda p: write_folder(p, lambda f, rows: np.save(f, X[rows]), ".npy", "abc"),
        "3 files of the shape .20, 8., which may be layers or pieces",
    ),
    "datasets-splits": (
        lambda p: datasets.DatasetDict(
            {name: datasets.Dataset.from_dict({"emb": X}) for name in ("train", "test")}
        ).save_to_disk(p),
        "one split.*--split train",
    ),
}
"""File → how it is written, and what the refusal says."""


@pytest.mark.parametrize("name", RIGHT)
def test_what_programs_write_is_read_as_it_was(name, tmp_path):
    path = tmp_path / name
    RIGHT[name](path)
    assert holds_vectors(path)
    vectors = open_vectors(path)
    block = vectors.block(next(iter(vectors.layers)), np.arange(60))
    assert len(vectors.layers) == 1 and block.shape == (60, 1, 8)
    np.testing.assert_allclose(block[:, 0].double().numpy(), X, rtol=0, atol=1e-12)
    reading = vectors.source["reading"]
    assert (
        reading.startswith(f"{name}: 60 vectors of 8 numbers") and "\n" not in reading
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused_with_a_cure(name, tmp_path):
    write, said = REFUSED[name]
    write(tmp_path / name)
    with pytest.raises(AnisoscopeError, match=said) as told:
        anisoscope.measure(tmp_path / name, panel="hidden")
    assert "Cure: " in str(told.value)


def aggregate(run):
    rows = run.records
    chosen = rows[
        (rows["metric"] == "mean_cosine")
        & rows["component"].isna()
        & (rows["token_policy"] == "all")
    ]
    return chosen["value"].item()


@pytest.mark.parametrize(
    "name",
    ["index.csv", "bare.csv", "id.parquet", "voyage.jsonl", "dict.pt", "csv-folder"],
)
def test_the_anisotropy_is_that_of_the_vectors(name, tmp_path):
    """A table with its index gave .933 for .099; without a header the first vector was lost."""
    RIGHT[name](tmp_path / name)
    run = anisoscope.measure(tmp_path / name, panel="hidden")
    assert aggregate(run) == pytest.approx(
        aggregate(anisoscope.measure(X, panel="hidden")), abs=1e-9
    )
    assert run.manifest["corpus"]["reading"].startswith(name)


@pytest.mark.parametrize(
    ("name", "columns", "place"),
    [
        ("hstacked-ids.csv", "1-8", slice(0, 8)),
        ("hstacked-rows.npy", "1-8", slice(0, 8)),
        ("two-series.csv", "q*", slice(0, 8)),
        ("two-series.csv", "k0-k7", slice(0, 8)),
        ("widths.parquet", "a", slice(0, 8)),
        ("widths.parquet", "b", slice(0, 3)),
        ("year-among-letters.csv", "a,b,c", slice(0, 3)),
    ],
)
def test_columns_say_which_reading_is_meant(name, columns, place, tmp_path):
    REFUSED[name][0](tmp_path / name)
    vectors = open_vectors(tmp_path / name, columns=columns)
    layer = next(iter(vectors.layers))
    np.testing.assert_allclose(
        vectors.block(layer, np.arange(60))[:, 0].double().numpy(),
        X[:, place],
        atol=1e-12,
    )


def test_columns_that_are_not_there_are_told_with_what_is(tmp_path):
    NAMED.to_csv(tmp_path / "x.csv")
    for columns, said in (
        ("dim_9", "dim_0–dim_7"),
        ("7-12", "columns are numbered from 0 to 8"),
        (" ", "names, patterns or numbers"),
    ):
        with pytest.raises(AnisoscopeError, match=said):
            open_vectors(tmp_path / "x.csv", columns=columns)
    NAMED.assign(text=TEXTS).to_csv(tmp_path / "y.csv")
    with pytest.raises(CorpusError, match="numbers in the column 'text'"):
        open_vectors(tmp_path / "y.csv", columns="dim_*,text")


def test_the_line_says_what_was_left_out(tmp_path):
    NAMED.assign(id=IDS, text=TEXTS, label=IDS % 2).to_csv(tmp_path / "x.csv")
    vectors = open_vectors(tmp_path / "x.csv", unit_column="id")
    assert vectors.source["reading"] == (
        "x.csv: 60 vectors of 8 numbers, columns dim_0–dim_7; units: id; labels: label; "
        "left out: row numbers, text; header in line 1"
    )
    assert sorted(vectors.classes) == ["0", "1"]


def test_sequences_of_different_lengths_have_a_mask(tmp_path):
    """Token vectors: text-embeddings-inference's `embed_all`, pipelines of transformers, lists of lists in parquet."""
    parts = np.split(X, [3, 10, 30])
    write_json(tmp_path / "tei.json", [part.tolist() for part in parts])
    write_lines(
        tmp_path / "hf.jsonl", [{"token_embeddings": [part.tolist()]} for part in parts]
    )
    pd.DataFrame({"tokens": [part.tolist() for part in parts]}).to_parquet(
        tmp_path / "x.parquet"
    )
    for name in ("tei.json", "hf.jsonl", "x.parquet"):
        vectors = open_vectors(tmp_path / name)
        assert vectors.shape == (4, 30, 8) and vectors.mask is not None, name
        values = (
            vectors.block(next(iter(vectors.layers)), np.arange(4)).double().numpy()
        )
        np.testing.assert_allclose(values[vectors.mask], X, atol=1e-12)
        assert "4 sequences of up to 30 vectors" in vectors.source["reading"]


def test_embeddings_in_base64_are_read(tmp_path):
    write_json(
        tmp_path / "x.json",
        {"data": [{"index": row, "embedding": in_base64(row)} for row in range(60)]},
    )
    vectors = open_vectors(tmp_path / "x.json")
    np.testing.assert_allclose(
        vectors.block("embedding", np.arange(60))[:, 0], X.astype("f4")
    )


def test_files_of_a_folder_are_layers_by_their_names_and_can_be_units(tmp_path):
    write_folder(
        tmp_path / "layers",
        lambda file, _rows: np.save(file, X),
        ".npy",
        ["layer_0", "layer_1", "layer_10"],
    )
    assert list(open_vectors(tmp_path / "layers").layers) == [
        "layer_0",
        "layer_1",
        "layer_10",
    ]
    RIGHT["npy-folder"](tmp_path / "pieces")
    assert np.array_equal(
        open_vectors(tmp_path / "pieces", unit_column="file").units, np.arange(60) // 20
    )


def test_folders_that_are_no_vectors_are_not_taken_for_them(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    save_file({"a": torch.ones(3, 3)}, str(tmp_path / "model" / "model.safetensors"))
    (tmp_path / "texts").mkdir()
    write_lines(tmp_path / "texts" / "a.jsonl", [{"text": "one"}, {"text": "two"}])
    (tmp_path / "steps.txt").write_text("one 0 0\ntwo 1000 0\n")
    (tmp_path / "empty").mkdir()
    assert not any(
        holds_vectors(tmp_path / name)
        for name in ("model", "texts", "steps.txt", "empty")
    )


def test_large_whole_numbers_stay_apart_as_units(tmp_path):
    """In a float64 2⁵³ and 2⁵³ + 1 are one number, and would be one unit."""
    frame = NAMED.assign(unit=2**53 + np.arange(60))
    frame.to_csv(tmp_path / "x.csv", index=False)
    assert len(set(open_vectors(tmp_path / "x.csv").units.tolist())) == 60


def test_a_column_may_go_on_otherwise_than_it_began(tmp_path):
    """The first lines of an id look like whole numbers; the rest need not."""
    ids = [*range(5000), *(f"x{row}" for row in range(5000))]
    rows = np.random.default_rng(0).normal(size=(10_000, 4))
    pd.DataFrame(rows, columns=[f"d{i}" for i in range(4)]).assign(id=ids).to_csv(
        tmp_path / "x.csv", index=False
    )
    vectors = open_vectors(tmp_path / "x.csv")
    assert np.array_equal(vectors.block("x", np.arange(10_000))[:, 0], rows)


def test_gzip_of_json_lines_is_read(tmp_path):
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps({'vector': x})}\n" for x in X.tolist())
    assert holds_vectors(Path(tmp_path, "x.jsonl.gz"))
    assert np.array_equal(open_vectors(tmp_path / "x.jsonl.gz").layers["vector"], X)


def test_a_column_that_is_an_index_in_one_file_is_one_in_the_folder():
    parts = [
        Content({"i": np.arange(3), "v": X[:3]}, index=index)
        for index in ((), ("i",), ())
    ]
    joined = _join_rows(parts, [Path(name) for name in ("a.csv", "b.csv", "c.csv")])
    assert joined.index == ("i",) and len(joined.columns["v"]) == 9
    assert joined.columns["file"].tolist() == [
        name for name in ("a.csv", "b.csv", "c.csv") for _ in range(3)
    ]


@pytest.mark.parametrize("name", ["layers", "layers/0.npy"])
def test_a_split_of_what_has_no_splits_is_refused(name, tmp_path):
    """A folder of files has layers, and only a data set that was saved has splits."""
    (tmp_path / "layers").mkdir()
    np.save(tmp_path / "layers" / "0.npy", X)
    with pytest.raises(UsageError, match="a data set of several splits"):
        read_content(tmp_path / name, split="train")


def test_what_holds_several_arrays_has_no_shape_of_its_own():
    wide, other = np.ones((5, 3)), np.ones((5, 4))
    assert _get_only_shape(Content({"a": wide, "id": np.arange(5)})) == (5, 3)
    assert _get_only_shape(Content({"a": wide, "b": other})) == ()
    assert _get_only_shape(Content({"id": np.arange(5)})) == ()


# ---- serving engines: requests of different lengths


def requests():
    """Hidden states [token, dim] of four requests."""
    return [X[:5], X[5:8], X[8:20], X[20:24]]


def cosine_of(run, layer=0):
    """Return A, its number of vectors and of units."""
    rows = run.records.query(
        "site == 'hidden' and metric == 'mean_cosine' and token_policy == 'all'"
    )
    rows = rows[rows["component"].isna() & (rows["layer"] == layer)]
    return tuple(rows[["value", "n_vectors", "n_units"]].iloc[0])


def expected_cosine(x):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return ((unit.sum(0) ** 2).sum() - len(x)) / (len(x) * (len(x) - 1))


@pytest.mark.parametrize("form", ["list", "tensors", "generator"])
def test_requests_of_different_lengths_are_sequences(form):
    """A list of them was refused as layers of different vectors, a generator as no model."""
    given = {
        "list": requests(),
        "tensors": [torch.tensor(x) for x in requests()],
        "generator": iter(requests()),
    }[form]
    value, vectors, units = cosine_of(
        anisoscope.measure(given, panel="hidden", sample=0)
    )
    assert value == pytest.approx(expected_cosine(X[:24]), abs=1e-12)
    assert (vectors, units) == (24, 4)


def test_a_generator_of_vectors_or_of_equal_requests_is_never_layers():
    value, vectors, units = cosine_of(
        anisoscope.measure((x for x in X), panel="hidden", sample=0)
    )
    assert (vectors, units) == (60, 60) and value == pytest.approx(
        expected_cosine(X), abs=1e-12
    )
    same = cosine_of(
        anisoscope.measure(
            (X[i : i + 4] for i in range(0, 60, 4)), panel="hidden", sample=0
        )
    )
    assert same[1:] == (60, 15)
    with pytest.raises(UsageError, match="of one width"):
        anisoscope.measure(iter([X, X[:, :3]]))
    with pytest.raises(UsageError, match="a mask"):
        anisoscope.measure(requests(), mask=np.ones((4, 12), bool))


def test_layers_of_a_request_of_vllm_are_no_tokens(tmp_path):
    """hidden_states [token, layer, dim] were read as sequences of as many tokens as there are layers."""
    folder = tmp_path / "requests"
    folder.mkdir()
    for number, x in enumerate(requests()):
        states = torch.tensor(np.stack([x, x**2], 1))
        save_file(
            {"hidden_states": states, "token_ids": torch.arange(len(x))},
            folder / f"{number}.safetensors",
        )
    run = anisoscope.measure(folder, panel="hidden", sample=0, unit_column="file")
    for layer, x in enumerate((X[:24], X[:24] ** 2)):
        value, vectors, units = cosine_of(run, layer)
        assert value == pytest.approx(expected_cosine(x), abs=1e-12) and (
            vectors,
            units,
        ) == (24, 4)


def test_the_output_of_llama_cpp_is_read(tmp_path):
    """`llama-embedding --embd-output-format json` and `array`."""
    answer = {"object": "list", "data": records()}
    write_json(tmp_path / "json.json", answer)
    lines = ",".join(
        "[" + ",".join(f"{number:.17g}" for number in row) + "]" for row in X
    )
    (tmp_path / "array.json").write_text(f"[{lines}]\n")
    for name in ("json", "array"):
        value, vectors, _ = cosine_of(
            anisoscope.measure(tmp_path / f"{name}.json", panel="hidden", sample=0)
        )
        assert vectors == 60 and value == pytest.approx(expected_cosine(X), abs=1e-12)
