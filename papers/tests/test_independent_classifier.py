"""The attention-only classifier against an independent implementation: the same weights give the same outputs, and
trainings with and without positions agree within the spread over seeds.

ANISOSCOPE_SLOW=1 compares whole trainings on real corpora with the committed records too (half an hour of one core).
"""

import os
from pathlib import Path

import independent_classifier as independent
import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope.classes.ablation import average_outcome
from anisoscope.data.encoding import LabelledPlan, encode
from anisoscope.data.local import find_copy
from anisoscope.data.opening import open_labelled
from anisoscope.models.vectors import word_vectors
from anisoscope.store import read_table
from anisoscope_papers.beyond import cells
from anisoscope_papers.beyond.positions import name_recipes
from anisoscope_papers.fosse2023.grid import PAPER, RECIPES, add_options
from anisoscope_papers.fosse2023.measurements import (
    KEYS,
    VALUES,
    measure_entropy,
    measure_similarities,
)
from anisoscope_papers.training.classifier import train_classifier
from anisoscope_papers.training.recipe import ClassifierRecipe

RECORDS = (
    Path(__file__).resolve().parents[1]
    / "results"
    / "beyond"
    / "finished"
    / "positions"
    / "records.parquet"
)
SCALES = {"no positions": 0.0, "sinusoids": 1.0}
LIMIT, DIM, SEEDS, EPOCHS = 400, 16, 3, 12
LEVEL = 0.001
"""Two-sided; ten comparisons, so that a right implementation fails in one suite of a hundred at most."""
needs_yelphat = pytest.mark.skipif(
    find_copy("yelphat") is None, reason="ANISOSCOPE_DATA holds no YelpHat"
)


def write_vectors(path, splits, dim, norm):
    """A text file of random word vectors, each of about this norm."""
    generator = np.random.default_rng(0)
    words = sorted(
        {
            token
            for example in splits["train"]
            for token in independent.tokens(example.all_words, False)
        }
    )
    lines = []
    for word in words:
        numbers = generator.normal(size=dim) * norm / np.sqrt(dim)
        lines.append(" ".join([word, *(f"{x:.6f}" for x in numbers)]))
    path.write_text("\n".join(lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Some real reviews, and word vectors for them: (corpus, file, the independent task)."""
    corpus = open_labelled("yelphat", limit=LIMIT)
    path = write_vectors(
        tmp_path_factory.mktemp("vectors") / "words.txt", corpus.splits, DIM, 5.0
    )
    return corpus, path, independent.Task(corpus.splits, corpus.tokenised, path)


def recipe_of(path, name, seed):
    positions, scale = RECIPES[name]
    recipe = ClassifierRecipe(
        corpus="yelphat",
        limit=LIMIT,
        vectors=str(path),
        epochs=EPOCHS,
        patience=3,
        seed=seed,
    )
    return ClassifierRecipe(
        **vars(recipe) | {"positions": positions, "position_scale": scale}
    )


def measured_of_ours(found, examples):
    """The same five numbers of a trained classifier of ours."""
    model, tokenizer = found.classifier()
    plan = LabelledPlan(
        encode(examples, tokenizer, found.max_length), tokenizer.pad_token_id
    )
    labels = np.array(plan.encoded.labels)
    records = measure_similarities(model, plan)
    alike = records[
        (records["metric"] == "intra_sequence") & (records["token_policy"] == "all")
    ]
    entropy = measure_entropy(model, plan)
    of_row = entropy[
        (entropy["metric"] == "cls_entropy") & (entropy["component"] == "reported")
    ]
    return {
        "accuracy": float(
            (average_outcome(model, plan, "uniform", ())[0] == labels).mean()
        ),
        "uniform afterwards": float(
            (average_outcome(model, plan, "uniform", (1,))[0] == labels).mean()
        ),
        "H": float(of_row["value"].iloc[0]),
        "sim(K)": float(alike[alike["site"] == KEYS]["value"].iloc[0]),
        "sim(V)": float(alike[alike["site"] == VALUES]["value"].iloc[0]),
    }


def apart(ours, theirs):
    """p of Welch's test for each quantity of two lists of measurements."""
    found = {}
    for name in ours[0]:
        a, b = ([one[name] for one in each] for each in (ours, theirs))
        found[name] = float(stats.ttest_ind(a, b, equal_var=False).pvalue)
    return found


@needs_yelphat
@pytest.mark.parametrize("name", SCALES)
def test_the_same_weights_give_the_same_outputs_and_gradients(small, tmp_path, name):
    corpus, path, task = small
    found = train_classifier(recipe_of(path, name, 0), tmp_path / "ours", corpus=corpus)
    model, tokenizer = found.classifier()
    assert tokenizer.convert_tokens_to_ids("<cls>") == len(task.vectors) - 1
    net = independent.Net(task.vectors, 2, SCALES[name])
    base, block = (
        model.attention_classifier,
        model.attention_classifier.blocks[0].attention,
    )
    same = (
        (net.words, base.embeddings),
        (net.qkv, block.in_proj),
        (net.out, block.out_proj),
        (net.head, model.classifier),
    )
    for theirs, ours in same:
        theirs.load_state_dict(ours.state_dict())
    part = range(40)
    for ids, _ in task.batches("test", list(part)):
        with torch.no_grad():
            expected = net(ids)[0]
            given = model(ids, (ids != 0).long()).logits
        torch.testing.assert_close(given, expected, atol=2e-5, rtol=1e-4)
    ids, labels = next(task.batches("test", list(part)))
    torch.nn.functional.cross_entropy(net(ids)[0], labels).backward()
    model(ids, (ids != 0).long(), labels=labels).loss.backward()
    for theirs, ours in same:
        for expected, given in zip(theirs.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(given.grad, expected.grad, atol=2e-6, rtol=1e-3)
    examples = corpus.splits["test"][:40]
    task_part = independent.Task(
        dict(corpus.splits) | {"test": examples}, corpus.tokenised, path
    )
    ours, theirs = (
        measured_of_ours(found, examples),
        independent.measured(net, task_part),
    )
    assert ours == pytest.approx(theirs, abs=2e-5)


# equal outputs and gradients at equal weights leave the initialisation and the order of batches to be seen here
@pytest.mark.nightly
@needs_yelphat
def test_trainings_agree_within_the_spread_over_seeds(small, tmp_path):
    """Initialisation, order of batches and stopping are each implementation's own."""
    corpus, path, task = small
    entropy = {}
    for name, scale in SCALES.items():
        theirs, ours = [], []
        for seed in range(SEEDS):
            net = independent.trained(task, 2, scale=scale, seed=seed, epochs=EPOCHS)
            theirs.append(independent.measured(net, task))
            found = train_classifier(
                recipe_of(path, name, seed), tmp_path / f"{scale}-{seed}", corpus=corpus
            )
            ours.append(measured_of_ours(found, corpus.splits["test"]))
        assert min(apart(ours, theirs).values()) > LEVEL, (name, ours, theirs)
        entropy[name] = [one["H"] for one in (*ours, *theirs)]
    assert max(entropy["sinusoids"]) < min(entropy["no positions"])


@pytest.mark.skipif(
    "ANISOSCOPE_SLOW" not in os.environ, reason="ANISOSCOPE_SLOW is unset: half an hour"
)
@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("corpus_name", ["yelphat", "hatexplain"])
def test_whole_trainings_agree_with_the_committed_records(tmp_path, corpus_name, name):
    corpus = open_labelled(corpus_name)
    words = sorted(
        {
            t
            for e in corpus.splits["train"]
            for t in independent.tokens(e.all_words, corpus.tokenised)
        }
    )
    matrix = word_vectors(PAPER.encoder, words, (), norm=PAPER.vector_norm).matrix
    path = tmp_path / "vectors.txt"
    rows = zip(words, matrix.tolist(), strict=True)
    path.write_text(
        "\n".join(" ".join([word, *(f"{x:.7g}" for x in row)]) for word, row in rows),
        "utf-8",
    )
    task = independent.Task(corpus.splits, corpus.tokenised, path)
    records = name_recipes(add_options(read_table(RECORDS)))
    mine = records[
        (records["corpus"] == corpus_name)
        & (records["recipe"] == name)
        & (records["layers"] == 1)
    ]
    mine = mine[(mine["arm"] == "learned") & (mine["family"] != "untrained")]
    ours = {
        c: mine[(mine["metric"] == "accuracy") & (mine["component"] == c)]["value"]
        for c in ("test", cells.AFTERWARDS)
    }
    ours["H"] = mine[
        (mine["metric"] == "cls_entropy") & (mine["component"] == "reported")
    ]["value"]
    theirs = []
    for seed in range(SEEDS):
        net = independent.trained(
            task, len(corpus.labels), scale=SCALES[name], seed=100 + seed
        )
        found = independent.measured(net, task)
        short = "test_yelp50" if "test_yelp50" in task.splits else "test"
        theirs.append(
            (
                found["accuracy"],
                found["uniform afterwards"],
                independent.measured(net, task, short)["H"],
            )
        )
    for (quantity, values), others in zip(
        ours.items(), zip(*theirs, strict=True), strict=True
    ):
        assert stats.ttest_ind(values, others, equal_var=False).pvalue > LEVEL, (
            quantity,
            list(values),
            others,
        )
