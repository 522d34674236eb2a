"""The vocabulary of a language model and its corpus in tokens: learnt or taken from a checkpoint, kept in a cache."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from anisoscope.data.corpora import open_corpus
from anisoscope.data.plans import digest
from anisoscope.data.splitting import pieces
from anisoscope.data.text import TextCorpus
from anisoscope.data.windows import affixes, check_room, tokenise
from anisoscope.errors import CorpusError, ModelError
from anisoscope.models.hub import bring, locate, split_name
from anisoscope.provenance import run_id
from anisoscope.store import once, write_atomic
from anisoscope.training.recipe import Task
from anisoscope.training.windows import Tokens

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END = "<|endoftext|>"
IDS = "ids.npy"
Auto: Any = AutoTokenizer
Fast: Any = PreTrainedTokenizerFast
"""Classes of the library without types."""


@dataclass(frozen=True)
class Vocabulary:
    """Source of the tokens: at most `size` of them learnt on the corpus, or those of the checkpoint `source`."""

    task: Task
    size: int
    source: str | None = None


def cache_folder() -> Path:
    """$ANISOSCOPE_CACHE, or `anisoscope` in the user's cache folder."""
    given = os.environ.get("ANISOSCOPE_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anisoscope"


def prepare(vocabulary: Vocabulary, corpus: TextCorpus, window: int) -> tuple[Any, Tokens]:
    """(tokenizer, tokenised corpus) from the cache, else made there; both serve every seed and every resume."""
    taken = _taken(vocabulary) if vocabulary.source else None
    words = digest([taken.get_vocab(), type(taken).__name__]) if taken else "in order"
    folder = cache_folder() / "tokens" / run_id([vocabulary.task, vocabulary.size, words, corpus.fingerprint])

    def make() -> None:
        learn = byte_pairs if vocabulary.task == "causal-lm" else word_pieces
        tokenizer = taken or learn(corpus.documents, vocabulary.size)
        tokenizer.save_pretrained(folder)
        ids = _ids(tokenizer, corpus.documents)

        def write(path: Path) -> None:
            with path.open("wb") as file:  # by its name numpy would put another ending to it
                np.save(file, ids)

        write_atomic(folder / IDS, write)

    once(folder, make, marker=IDS)
    tokenizer = Auto.from_pretrained(folder)
    tokenizer.model_max_length = window
    around = affixes(tokenizer)
    check_room(window, len(around))
    mask = tokenizer.mask_token_id if vocabulary.task == "masked-lm" else None
    tokens = Tokens(np.load(folder / "ids.npy", mmap_mode="r"), around, window, len(tokenizer), mask)
    if tokens.count < 2:
        got = f"{len(tokens.ids)} tokens"
        raise CorpusError(f"text for at least 2 windows of {window} tokens", got, "name a longer corpus")
    return tokenizer, tokens


def open_training_corpus(name: str, **options: Any) -> TextCorpus:
    """The text corpus `name`, opened as `measure` opens it."""
    corpus = open_corpus(name, modality="text", **options)
    if not isinstance(corpus, TextCorpus):
        raise CorpusError("a text corpus", f"{name}, which holds something else", "name a text corpus")
    return corpus


def word_pieces(documents: Iterable[str], size: int, **more: Any) -> Any:
    """WordPiece with BERT's normalisation (lower case), learnt on the documents. The trainer numbers the characters
    inside words by the order of a hash table, and breaks ties by these numbers: it is given them in order.
    """
    texts = list(_short(documents))

    def reading(model: Any) -> Any:
        tokenizer: Any = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def learnt(size: int, first: list[str]) -> Any:
        tokenizer = reading(models.WordPiece(unk_token="[UNK]"))
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer

    inside = sorted(piece for piece in learnt(0, []).get_vocab() if piece.startswith("##"))
    tokenizer = reading(learnt(size, [*SPECIAL, *inside]).model)  # anew, since to the trained one `inside` is special
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.decoder = decoders.WordPiece()
    return _masking(tokenizer, **more)


def single_bytes(**more: Any) -> Any:
    """Every byte is a token; nothing is learnt."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate([*SPECIAL, *alphabet])}, [], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _masking(tokenizer, **more)


def _masking(tokenizer: Any, **more: Any) -> Any:
    """With the special tokens of a masked language model; [CLS] and [SEP] go around every text."""
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    return Fast(tokenizer_object=tokenizer, **names, **more)


def byte_pairs(documents: Iterable[str], size: int) -> Any:
    """Byte-level BPE of a causal language model, learnt on the documents."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_short(documents), trainer)
    return Fast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)


def _short(documents: Iterable[str]) -> Iterator[str]:
    """Long documents in pieces, cut at line ends."""
    return (piece for document in documents for piece in pieces(document))


def _taken(vocabulary: Vocabulary) -> Any:
    """The tokenizer of a checkpoint. ModelError where it lacks what the task needs."""
    name = vocabulary.source or ""
    place = bring(locate(*split_name(name), name, "Leave --vocabulary out to learn one."), name, weights=False)
    try:
        tokenizer = Auto.from_pretrained(place.path)
    except (OSError, ValueError, KeyError) as error:
        got = " ".join(str(error).split())[:200]
        raise ModelError(f"a tokenizer in {name}", got, "name a checkpoint that has one") from None
    needed = ("mask_token", "pad_token") if vocabulary.task == "masked-lm" else ("eos_token",)
    lacking = [token for token in needed if getattr(tokenizer, token) is None]
    if lacking:
        cure = "take the vocabulary of a model of this task, or leave --vocabulary out to learn one"
        raise ModelError(f"a tokenizer for {vocabulary.task}", f"{name} without {', '.join(lacking)}", cure)
    return tokenizer


def _ids(tokenizer: Any, documents: list[str]) -> Any:
    """All documents in one row, a separator between them."""
    between = tokenizer.sep_token_id if tokenizer.mask_token_id is not None else tokenizer.eos_token_id
    kind = np.uint16 if len(tokenizer) < 1 << 16 else np.int32
    parts: list[Any] = []
    for document in documents:
        parts += [*tokenise(list(pieces(document)), tokenizer), np.array([between])]
    return np.concatenate(parts[:-1]).astype(kind)
