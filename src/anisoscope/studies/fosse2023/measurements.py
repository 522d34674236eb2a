"""What is measured of a trained classifier, kept beside it so that studies share it and nothing is measured twice."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.classes.ablation import ablations
from anisoscope.classes.faithfulness import explanations
from anisoscope.classes.pooling import predicted
from anisoscope.data.encoding import LabelledPlan, encode
from anisoscope.data.labelled import TEST
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.metrics.class_direction import units_of
from anisoscope.models.load import load
from anisoscope.provenance import measuring_code, run_id
from anisoscope.store import as_records, once, records_once, select, write_atomic
from anisoscope.studies.fosse2023.grid import Cell, Plan
from anisoscope.studies.fosse2023.trained_cells import Trained, corpus_of, each, why_lost
from anisoscope.studies.study import Context
from anisoscope.training.classifier import result
from anisoscope.training.entropy_penalty import entropies

PRETRAINED = " pre-trained"
"""Behind an encoder's name: as it was before it was fine-tuned."""
MEASURED = Settings(metrics=("intra_sequence", "norms", "attention"), policies=("all", "content", "no-first"))
KEPT = (
    "intra_sequence",
    "norms.mean",
    "norms.variation",
    "attention.entropy_normalised",
    "attention.row_similarity",
)
KEYS, VALUES = "key.raw", "value"

Array = NDArray[np.float64]


def gather(
    cells: Sequence[Cell], plan: Plan, context: Context, *looks: Callable[[Trained], pd.DataFrame]
) -> pd.DataFrame:
    """Records of all looks at all cells; a cell that is not to be had is one row of the metric `missing`, or `diverged`
    where its training was given up.
    """
    parts: list[pd.DataFrame] = []
    seen: set[Cell] = set()

    def look(trained: Trained) -> pd.DataFrame:
        seen.add(trained.cell)
        return pd.concat([look(trained) for look in looks], ignore_index=True)

    parts += each(cells, plan, context, look)
    lost = [
        {"model": c.label, "corpus": c.corpus, "seed": c.seed, "metric": why_lost(c, plan, context), "value": 1.0}
        for c in cells
        if c not in seen
    ]
    return pd.concat([*parts, as_records(pd.DataFrame(lost))], ignore_index=True)


def kept(trained: Trained, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The records `make` gives of a classifier, made once; those that name no model are of the classifier."""
    cell, plan = trained.cell, trained.plan
    path = trained.folder / f"{name}-{run_id([measuring_code(), plan.utterances, plan.erased])[:8]}.parquet"
    found = records_once(path, lambda: as_records(make(), corpus=cell.corpus, seed=cell.seed), wait=trained.wait)
    return found.assign(model=found["model"].fillna(cell.label))


def accuracies(trained: Trained) -> pd.DataFrame:
    """Accuracy and majority rate by split, and whether the training collapsed."""
    training = trained.found.training
    rows: list[dict[str, Any]] = []
    results = training["results"] | ({} if trained.cell.attention else {TEST: tested(trained)})
    for split, found in results.items():
        rows += [
            {"metric": name, "component": split, "value": found[name], "n_units": found["n"]}
            for name in ("accuracy", "majority")
        ]
    by_class = results[TEST]["by_class"]
    rows += [{"metric": "class_accuracy", "component": name, "value": value} for name, value in by_class.items()]
    rows += [
        {"metric": "collapsed", "value": float(training["collapsed"])},
        {"metric": "parameters", "value": training["parameters"]},
        {"metric": "epochs", "value": training["epochs"]},
        {"metric": "truncated", "value": sum(training["truncated"].values())},
    ]
    cell = trained.cell
    return as_records(pd.DataFrame(rows), model=cell.label, corpus=cell.corpus, seed=cell.seed)


def tested(trained: Trained) -> dict[str, Any]:
    """What an encoder that is fine-tuned on part of a corpus finds on the test split of the attention-only model."""
    limit = trained.plan.limit
    path = trained.folder / f"tested-{limit or 'all'}-{run_id(measuring_code())[:8]}.json"

    def make() -> None:
        corpus = corpus_of(replace(trained.plan.recipe(trained.cell), limit=limit))
        model, tokenizer = trained.classifier
        encoded = encode(corpus.splits[TEST], tokenizer, trained.found.max_length)
        found = result(corpus, TEST, predicted(model, encoded, int(tokenizer.pad_token_id or 0)))
        write_atomic(path, lambda temporary: temporary.write_text(json.dumps(found, indent=1)))

    once(path, make, wait=trained.wait)
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def geometry(trained: Trained) -> pd.DataFrame:
    """Eq. 3 of hidden states, keys and values under each token policy, norms, entropies; of an encoder also as it was
    before it was fine-tuned.
    """

    def make() -> pd.DataFrame:
        model, batches = trained.classifier[0], trained.batches(trained.plan.utterances)
        parts = [similarities(model, batches)]
        if trained.cell.attention:
            parts.append(entropy_records(model, batches))
        else:
            before = load(trained.cell.model).model
            parts.append(similarities(before, batches).assign(model=trained.cell.model + PRETRAINED))
        return pd.concat(parts, ignore_index=True)

    return kept(trained, "geometry", make)


def similarities(model: Any, batches: LabelledPlan) -> pd.DataFrame:
    """Records per layer, mean over heads, with intervals over utterances."""
    records = run_pass(model, batches, MEASURED).records()
    records = records[records["metric"].isin(KEPT) & records["component"].isna()]
    heads = records["head"].notna()
    keys = ["stack", "kind", "layer", "site", "token_policy", "metric"]
    means = records[heads].groupby(keys, dropna=False)[["value"]].mean().reset_index()
    whole = records[~heads]
    return as_records(pd.concat([whole, as_records(means)], ignore_index=True))


def entropy_records(model: Any, batches: LabelledPlan) -> pd.DataFrame:
    """H of the [CLS] row of the first layer: as trained with (`row`), as the paper reports it (`reported`), and of the
    second published form (`columns`); means over utterances.
    """
    found = entropies(model, batches, (1,))
    rows = [
        {"metric": "cls_entropy", "component": name, "layer": 1, "value": float(values.mean()), "n_units": len(values)}
        for name, values in found.items()
        if name in ("row", "reported", "columns")
    ]
    return as_records(pd.DataFrame(rows))


def final_vectors(trained: Trained) -> dict[str, Array]:
    """Final vectors of every measured utterance: `tuned` and `pretrained` unit vectors of [CLS] after the last layer
    [utterance, dim] (`pretrained` of encoders only), its class in `labels`, and the class found in `predicted`.
    """
    path = trained.folder / f"final-{run_id([measuring_code(), trained.plan.utterances])[:8]}.npz"

    def make() -> None:
        from anisoscope.classes.pooling import pooled_vectors

        batches = trained.batches(trained.plan.utterances)
        model, tokenizer = trained.classifier
        found: dict[str, Any] = {"tuned": units_of(pooled_vectors(model, batches)[:, -1])}
        if not trained.cell.attention:
            found["pretrained"] = units_of(pooled_vectors(load(trained.cell.model).model, batches)[:, -1])
        found["labels"] = np.array(batches.encoded.labels)
        found["predicted"] = np.array(predicted(model, batches.encoded, int(tokenizer.pad_token_id or 0)))

        def save(temporary: Any) -> None:
            with temporary.open("wb") as file:
                np.savez_compressed(
                    file, **{k: v.astype(np.float32 if v.ndim > 1 else np.int64) for k, v in found.items()}
                )

        write_atomic(path, save)

    once(path, make, wait=trained.wait)
    with np.load(path) as read:
        return {name: read[name].astype(np.float64 if read[name].ndim > 1 else np.int64) for name in read}


def replaced(trained: Trained) -> pd.DataFrame:
    """`ablations` of the attention of each layer and of all; of an encoder on fewer utterances."""
    limit = trained.plan.utterances if trained.cell.attention else trained.plan.erased
    name = "replaced" if trained.cell.attention else "replaced-layers"
    return kept(trained, name, lambda: ablations(trained.classifier[0], trained.batches(limit)))


def explained(trained: Trained) -> pd.DataFrame:
    """`explanations` of test utterances, of a corpus with rationales."""
    limit, longest = trained.plan.erased, trained.found.max_length
    name = "explained" if trained.cell.attention and trained.cell.layers == 1 else "explained-deep"
    return kept(
        trained, name, lambda: explanations(*trained.classifier, trained.corpus, limit=limit, max_length=longest)
    )


def one(rows: pd.DataFrame, **where: Any) -> float:
    """The value of the only row; NaN where there is none."""
    found = select(rows, **where)["value"]
    return float(found.iloc[0]) if len(found) else float("nan")
