"""The vocabulary of a language model and its corpus in tokens: learnt or taken from a checkpoint, kept in a cache."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.data.corpora import open_corpus
from anisoscope.data.plans import digest
from anisoscope.data.splitting import pieces
from anisoscope.data.text import TextCorpus
from anisoscope.data.windows import affixes, check_room, tokenise
from anisoscope.errors import CorpusError, ModelError
from anisoscope.provenance import run_id
from anisoscope.training.presets import Task
from anisoscope.training.windows import Tokens

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END = "<|endoftext|>"


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
    from transformers import AutoTokenizer

    taken = _taken(vocabulary) if vocabulary.source else None
    identity = [vocabulary.task, vocabulary.size, _words(taken), corpus.fingerprint]
    folder = cache_folder() / "tokens" / run_id(identity)
    if not folder.exists():
        tokenizer = taken or learnt(vocabulary, corpus.documents)
        _store(folder, tokenizer, _ids(tokenizer, corpus.documents))
    auto: Any = AutoTokenizer
    tokenizer = auto.from_pretrained(folder)
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


def learnt(vocabulary: Vocabulary, documents: list[str]) -> Any:
    """WordPiece with BERT's normalisation (lower case) for a masked, byte-level BPE for a causal model."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    trainer: Any
    if vocabulary.task == "causal-lm":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary.size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(_short(documents), trainer)
        return fast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary.size, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(_short(documents), trainer)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return fast(tokenizer_object=tokenizer, **{f"{name.strip('[]').lower()}_token": name for name in SPECIAL})


def _short(documents: list[str]) -> Iterator[str]:
    """Long documents in pieces, cut at line ends."""
    return (piece for document in documents for piece in pieces(document))


def _taken(vocabulary: Vocabulary) -> Any:
    """The tokenizer of a checkpoint. ModelError where it lacks what the task needs."""
    from transformers import AutoTokenizer

    from anisoscope.models.hub import bring, locate, split_name

    name = vocabulary.source or ""
    place = bring(locate(*split_name(name), name, "Leave --vocabulary out to learn one."), name, weights=False)
    auto: Any = AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(place.path)
    except (OSError, ValueError, KeyError) as error:
        got = " ".join(str(error).split())[:200]
        raise ModelError(f"a tokenizer in {name}", got, "name a checkpoint that has one") from None
    needed = ("mask_token", "pad_token") if vocabulary.task == "masked-lm" else ("eos_token",)
    lacking = [token for token in needed if getattr(tokenizer, token) is None]
    if lacking:
        cure = "take the vocabulary of a model of this task, or leave --vocabulary out to learn one"
        raise ModelError(f"a tokenizer for {vocabulary.task}", f"{name} without {', '.join(lacking)}", cure)
    return tokenizer


def _words(tokenizer: Any) -> str:
    return "" if tokenizer is None else digest([tokenizer.get_vocab(), type(tokenizer).__name__])


def _ids(tokenizer: Any, documents: list[str]) -> Any:
    """All documents in one row, a separator between them."""
    between = tokenizer.sep_token_id if tokenizer.mask_token_id is not None else tokenizer.eos_token_id
    kind = np.uint16 if len(tokenizer) < 1 << 16 else np.int32
    parts: list[Any] = []
    for document in documents:
        parts += [*tokenise(list(pieces(document)), tokenizer), np.array([between])]
    return np.concatenate(parts[:-1]).astype(kind)


def _store(folder: Path, tokenizer: Any, ids: Any) -> None:
    """Both files, whole or not at all; of two processes that make them at once, one's are kept."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        tokenizer.save_pretrained(temporary)
        np.save(temporary / "ids.npy", ids)
        temporary.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
