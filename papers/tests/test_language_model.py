"""Language models from scratch: the loss, the order of the text, the checkpoints, interruption and resume."""

import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoTokenizer

from anisoscope.errors import (
    CorpusError,
    DivergedError,
    ModelError,
    OutputError,
    UsageError,
)
from anisoscope.measure.loop import Interrupted
from anisoscope.models.load import load
from anisoscope_papers.training import language_model
from anisoscope_papers.training.language_model import (
    build_untrained,
    choose_checkpoint_steps,
    train,
)
from anisoscope_papers.training.recipe import SIZES, ModelSize, Sizes, Training
from anisoscope_papers.training.text import (
    SPECIAL,
    UNMASKED,
    Examples,
    open_training_corpus,
    prepare,
    train_byte_pairs,
    train_word_pieces,
)

TINY = Sizes(preset="tiny", vocab_size=300, window=12, batch=4, dropout=0.1).build()
STEPS = 9


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A text of 6,000 words out of 200, and an empty cache."""
    folder = tmp_path_factory.mktemp("text")
    os.environ["ANISOSCOPE_CACHE"] = str(folder / "cache")
    draw = random.Random(0)
    words = [
        "".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(200)
    ]
    (folder / "words.txt").write_text(
        "\n".join(" ".join(draw.choices(words, k=20)) for _ in range(300))
    )
    yield folder / "words.txt"
    del os.environ["ANISOSCOPE_CACHE"]


def training(corpus, **changes):
    return Training(
        **{"corpus": str(corpus), "own_size": TINY, "steps": STEPS, **changes}
    )


def tokens_of(corpus, task="masked-lm", window=12):
    return prepare(open_training_corpus(str(corpus)), task, 300, window)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    return train(training(corpus), tmp_path_factory.mktemp("trained") / "seed-0")


def weights(folder, step):
    return load(str(folder / f"step-{step}")).weights_sha256


def test_the_loss_on_masked_positions_is_the_loss(corpus):
    tokenizer, tokens = tokens_of(corpus)
    model = build_untrained(
        "masked-lm", Sizes(preset="tiny", window=12).build(), tokenizer, 0
    )
    library = transformers.BertForMaskedLM(model.config)
    library.load_state_dict(model.state_dict())
    batch = Examples(tokens, tokens.parts()[0], 40, 0).__getitems__(list(range(16)))
    assert 0 < int((batch["labels"] != UNMASKED).sum()) < batch["labels"].numel() / 3
    ours, theirs = model(**batch).loss, library(**batch).loss
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    ours.backward(), theirs.backward()
    for one, other in zip(model.parameters(), library.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)
    half = (
        {name: value[:8] for name, value in batch.items()},
        {name: value[8:] for name, value in batch.items()},
    )
    count = (batch["labels"] != UNMASKED).sum()
    parts = [model(**part, num_items_in_batch=count).loss for part in half]
    torch.testing.assert_close(sum(parts), ours, rtol=0, atol=1e-6)
    assert model(batch["input_ids"]).logits.shape == (16, 12, len(tokenizer))


def test_tokens_that_replace_others_are_any_of_the_vocabulary(corpus):
    _, tokens = tokens_of(corpus)
    windows = tokens.parts()[0]
    plain = tokens.rows(
        np.array([Examples(tokens, windows, 400, 0)._window(i) for i in range(400)])
    )
    batch = Examples(tokens, windows, 400, 0).__getitems__(list(range(400)))
    seen, chosen = batch["input_ids"].numpy(), batch["labels"].numpy() != UNMASKED
    assert np.array_equal(seen[~chosen], plain[~chosen]) and np.array_equal(
        batch["labels"].numpy()[chosen], plain[chosen]
    )
    masked, kept = seen[chosen] == tokens.mask_id, seen[chosen] == plain[chosen]
    assert masked.mean() == pytest.approx(
        0.8, abs=0.06
    ) and kept.mean() == pytest.approx(0.1, abs=0.05)
    other = seen[chosen][~masked & ~kept]
    assert len(other) > 20 and len({*other.tolist()}) > len(other) / 2
    assert (
        other.min() < tokens.vocabulary / 4 and other.max() > tokens.vocabulary * 3 / 4
    )


LEARN = """
import json, sys
from anisoscope_papers.training.text import train_byte_pairs, train_word_pieces

documents = open(sys.argv[1]).read().splitlines()
print(json.dumps([learn(documents, 300).get_vocab() for learn in (train_word_pieces, train_byte_pairs)]))
"""


def test_a_vocabulary_is_a_function_of_the_text(corpus):
    """In every process, though the library's hash tables have another order in each."""
    other = str(1 + (os.environ.get("PYTHONHASHSEED") == "1"))
    command, variables = (
        [sys.executable, "-c", LEARN, corpus],
        os.environ | {"PYTHONHASHSEED": other},
    )
    elsewhere = json.loads(
        subprocess.run(command, env=variables, stdout=-1, check=True).stdout
    )
    documents = corpus.read_text().splitlines()
    for _ in range(2):
        assert [
            learn(documents, 300).get_vocab()
            for learn in (train_word_pieces, train_byte_pairs)
        ] == elsewhere
    words = elsewhere[0]
    assert len(words) == 300 and sorted(words.values()) == list(range(300))
    tokenizer = train_word_pieces(documents, 300)
    assert len(tokenizer.added_tokens_decoder) == len(
        SPECIAL
    )  # the pieces given to the trainer are no special tokens
    assert tokenizer.tokenize("##a")[0] != "##a"


def test_masks_and_order_are_functions_of_the_data_seed(corpus):
    tokenizer, tokens = tokens_of(corpus)
    windows, held = tokens.parts()
    assert not set(windows) & set(held) and len(held) >= 1
    one, two = Examples(tokens, windows, 10**6, 3), Examples(tokens, windows, 10**6, 3)
    batch, again = one.__getitems__([5, 6, 7]), two[6]
    for name, value in batch.items():
        assert torch.equal(value[1], again[name])
    other = Examples(tokens, windows, 10**6, 4)[6]
    assert not torch.equal(again["labels"], other["labels"])
    turn = Examples(tokens, windows, 10**6, 3)
    assert {turn._window(i) for i in range(len(windows))} == set(windows)
    assert [turn._window(i) for i in range(9)] != [
        turn._window(len(windows) + i) for i in range(9)
    ]
    many = one.__getitems__(list(range(400)))
    chosen = many["labels"] != UNMASKED
    assert not chosen[:, [0, -1]].any()
    assert set(many["input_ids"][:, 0].tolist()) == {tokenizer.cls_token_id}
    assert abs(float(chosen[:, 1:-1].float().mean()) - 0.15) < 0.02
    masked = many["input_ids"][chosen] == tokenizer.mask_token_id
    assert abs(float(masked.float().mean()) - 0.8) < 0.06
    assert torch.equal(
        many["input_ids"][~chosen],
        torch.from_numpy(tokens.rows(np.array([one._window(i) for i in range(400)])))[
            ~chosen
        ],
    )


def test_checkpoints_are_log_spaced_with_the_first_and_the_last():
    steps = choose_checkpoint_steps(10_000, 2)
    assert (
        steps[:8] == [0, 1, 2, 3, 4, 6, 8, 11]
        and steps[-2:] == [8192, 10_000]
        and len(steps) == 28
    )
    assert choose_checkpoint_steps(1, 2) == [0, 1]
    assert choose_checkpoint_steps(64, 1) == [0, 1, 2, 4, 8, 16, 32, 64]


def test_a_training_leaves_a_series_that_loads(trained):
    kept = choose_checkpoint_steps(STEPS, 2)
    assert {path.name for path in trained.iterdir()} == {
        "identity.json",
        "training.json",
    } | {f"step-{s}" for s in kept}
    told = json.loads((trained / "training.json").read_text())
    assert told["checkpoints"] == kept and told["training"]["data_seed"] == 0
    assert [step for step, _ in told["validation_loss"]] == kept[1:]
    assert told["corpus"]["fingerprint"] and told["versions"]["torch"]
    first, last = load(str(trained / "step-0")), load(str(trained / f"step-{STEPS}"))
    assert first.weights_sha256 != last.weights_sha256
    assert (
        type(last.model).__name__ == "BertModel"
        and last.processor.mask_token == "[MASK]"
    )
    assert json.loads((trained / "step-0" / "config.json").read_text())[
        "architectures"
    ] == ["BertForMaskedLM"]


@pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])
def test_what_is_easy_is_learnt(task, tmp_path, monkeypatch):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "easy.txt").write_text(
        "one two three four five six seven eight nine ten\n" * 400
    )
    size = Sizes(preset="tiny", vocab_size=300, window=16, batch=8, rate=5e-3).build()
    folder = train(
        training(tmp_path / "easy.txt", task=task, own_size=size, steps=80),
        tmp_path / "easy",
    )
    losses = dict(json.loads((folder / "training.json").read_text())["validation_loss"])
    assert losses[80] < 0.5 * losses[1]


def test_seeds_of_weights_and_data_are_apart(corpus, trained, tmp_path):
    data = train(training(corpus, steps=1, data_seed=5), tmp_path / "data")
    both = train(training(corpus, steps=1, seed=5), tmp_path / "weights")
    assert weights(data, 0) == weights(trained, 0) != weights(both, 0)
    assert (
        len({weights(folder, step) for folder in (data, trained) for step in (0, 1)})
        == 3
    )


def test_an_interrupted_training_goes_on_to_the_same_weights(corpus, trained, tmp_path):
    def stop(step, _last):
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(training(corpus), tmp_path / "run", progress=stop)
    assert not (tmp_path / "run" / "training.json").exists()
    assert [path.name for path in (tmp_path / "run" / "resume").iterdir()] in (
        ["checkpoint-5"],
        ["checkpoint-6"],
    )
    seen = []
    train(
        training(corpus),
        tmp_path / "run",
        resume=True,
        progress=lambda step, _last: seen.append(step),
    )
    assert seen[0] in (6, 7)
    for step in choose_checkpoint_steps(STEPS, 2):
        assert weights(tmp_path / "run", step) == weights(trained, step)
    ours, theirs = (
        json.loads((f / "training.json").read_text())
        for f in (tmp_path / "run", trained)
    )
    assert (
        ours["validation_loss"] == theirs["validation_loss"]
        and ours["loss"] == theirs["loss"]
    )
    (
        left := tmp_path / "run" / "resume"
    ).mkdir()  # by a process killed after its last write
    assert (
        train(training(corpus), tmp_path / "run", resume=True) == tmp_path / "run"
        and not left.exists()
    )


def test_parts_of_a_batch_give_the_same_training(corpus, tmp_path):
    size = Sizes(preset="tiny", vocab_size=300, window=12, batch=4).build()
    whole = train(training(corpus, own_size=size, steps=3), tmp_path / "whole")
    parts = train(
        training(corpus, own_size=size, steps=3, accumulate=2), tmp_path / "parts"
    )
    read = transformers.BertForMaskedLM.from_pretrained
    one, two = (read(folder / "step-3").state_dict() for folder in (whole, parts))
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=1e-3, atol=1e-4)


def test_a_loss_that_is_not_finite_ends_it_by_its_exit_code(corpus, tmp_path):
    with pytest.raises(
        DivergedError, match=r"a loss of (nan|inf) at step \d+"
    ) as caught:
        train(
            training(
                corpus,
                own_size=Sizes(
                    preset="tiny", vocab_size=300, window=12, rate=1e30
                ).build(),
            ),
            tmp_path / "run",
        )
    assert caught.value.exit_code == 3


def test_another_training_is_refused(corpus, trained):
    with pytest.raises(
        OutputError, match=r"another run \(seed differ|data_seed, seed differ"
    ):
        train(training(corpus, seed=1), trained, resume=True)
    with pytest.raises(OutputError, match="add --resume"):
        train(training(corpus), trained)


def test_a_causal_model_learns_and_loads(corpus, tmp_path):
    folder = train(training(corpus, task="causal-lm", steps=4), tmp_path / "causal")
    subject = load(str(folder / "step-4"))
    assert type(subject.model).__name__ == "GPT2Model"
    assert (
        subject.processor.eos_token == "<|endoftext|>"
        and subject.processor.model_max_length == 12
    )
    assert (
        subject.processor.decode(subject.processor("abc  d\n")["input_ids"])
        == "abc  d\n"
    )


def test_a_vocabulary_is_taken_from_a_checkpoint(corpus, trained, tmp_path):
    source = str(trained / "step-0")
    folder = train(training(corpus, steps=1, vocabulary=source), tmp_path / "taken")
    one, other = (
        AutoTokenizer.from_pretrained(path) for path in (source, folder / "step-1")
    )
    assert one.get_vocab() == other.get_vocab()
    with pytest.raises(ModelError, match="without eos_token"):
        train(training(corpus, task="causal-lm", vocabulary=source), tmp_path / "wrong")


def test_the_text_is_of_the_column_and_the_limit_that_are_named(tmp_path, monkeypatch):
    place = tmp_path / "texts.jsonl"
    rows = [{"text": f"text {i}", "title": f"title {i}"} for i in range(5)]
    place.write_text("\n".join(map(json.dumps, rows)))
    read = []

    def stop_with(opened, *_):
        read.append(list(opened.documents))
        raise KeyboardInterrupt

    monkeypatch.setattr(language_model, "prepare", stop_with)
    for given in ({}, {"column": "title"}, {"column": "title", "limit": 2}):
        with pytest.raises(KeyboardInterrupt):
            train(training(place, **given), tmp_path / "out")
    titles = [row["title"] for row in rows]
    assert read == [[row["text"] for row in rows], titles, titles[:2]]


def test_bad_input_is_told(corpus, tmp_path):
    with pytest.raises(UsageError, match="did you mean tiny"):
        Sizes(preset="tini")
    with pytest.raises(UsageError, match="a multiple of 3"):
        training(corpus, accumulate=3)
    with pytest.raises(UsageError, match="task among"):
        training(corpus, task="masked")
    (tmp_path / "short.txt").write_text("three words only")
    with pytest.raises(CorpusError, match="at least 2 windows of 12"):
        train(training(tmp_path / "short.txt"), tmp_path / "short")
    assert set(SIZES) == {"tiny", "small", "mini", "bert-small", "bert-base"}


def test_published_sizes_are_those_of_the_papers():
    """Turc et al. 2019 and Devlin et al. 2019."""
    small, base = (
        ModelSize(4, 512, 8, 30_522, 128, 256, 5e-4, 200_000, 0.1),
        SIZES["bert-base"],
    )
    assert SIZES["bert-small"] == small
    assert base == ModelSize(12, 768, 12, 30_522, 512, 256, 1e-4, 1_000_000, 0.1)
