"""Prepare the text that a language model trains on: its vocabulary, the corpus in tokens (cached), windows of equal
length.

Documents follow one another with a separator in between. [CLS] and [SEP] go around each window if the tokenizer adds
them. Example i is window perm(i mod N) of pass i div N, whatever the batch size, devices and resumes. Its masks are
drawn from (data seed, i).
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from anisoscope.data.corpora import open_corpus
from anisoscope.data.plans import hash_parts
from anisoscope.data.splitting import cut_pieces
from anisoscope.data.text import TextCorpus
from anisoscope.data.windows import Affixes, check_room, find_affixes, tokenise
from anisoscope.errors import CorpusError, ModelError
from anisoscope.models.hub import download, locate, split_name
from anisoscope.provenance import make_run_id
from anisoscope.store import make_once, write_atomic
from anisoscope_papers.training.recipe import Task

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END = "<|endoftext|>"
IDS = "ids.npy"
Auto: Any = AutoTokenizer
Fast: Any = PreTrainedTokenizerFast
"""Classes of the library without types."""
UNMASKED = -100
"""Label of a position that the loss does not look at, as everywhere in transformers."""
MASKED, KEPT, REPLACED = 0.15, 0.1, 0.1
"""Share of tokens to be predicted; of these, the share left as they are and replaced at random (Devlin et al. 2019)."""
HELD_OUT, HELD_BLOCK, MOST_HELD = 100, 64, 512
"""Every 100th block of 64 windows is held out for validation, 512 windows at most."""

Rows = NDArray[np.int64]


def cache_folder() -> Path:
    """Return $ANISOSCOPE_CACHE, or `anisoscope` in the user's cache folder."""
    given = os.environ.get("ANISOSCOPE_CACHE")
    if given:
        return Path(given)
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anisoscope"
    )


def prepare(
    corpus: TextCorpus, task: Task, size: int, window: int, source: str | None = None
) -> tuple[Any, "Tokens"]:
    """Return (tokenizer, tokenised corpus) for windows of `window` tokens, from the cache or newly made.

    Without a `source` (a checkpoint whose vocabulary is taken), at most `size` tokens are learnt. CorpusError if the
    corpus has fewer than two windows.
    """
    taken = _load_tokenizer(source, task) if source else None
    # Part of the folder's name. "in order" names the way in which characters are passed
    # to the trainer, see `train_word_pieces`: folders from before that are not read.
    words = hash_tokenizer(taken) if taken else "in order"
    folder = (
        cache_folder() / "tokens" / make_run_id([task, size, words, corpus.fingerprint])
    )

    def make() -> None:
        """Build the tokenizer, tokenise the corpus, and save both."""
        learn = train_byte_pairs if task == "causal-lm" else train_word_pieces
        tokenizer = taken or learn(corpus.documents, size)
        tokenizer.save_pretrained(folder)
        ids = _tokenise(tokenizer, corpus.documents)

        def write(path: Path) -> None:
            """Write the token ids to a file."""
            # Given a name, numpy would put another ending to it.
            with path.open("wb") as file:
                np.save(file, ids)

        write_atomic(folder / IDS, write)

    make_once(folder, make, marker=IDS)
    # Read back even if just made, so that the first training and all later ones have
    # the same tokenizer.
    tokenizer = Auto.from_pretrained(folder)
    tokenizer.model_max_length = window
    around = find_affixes(tokenizer)
    check_room(window, len(around))
    mask = tokenizer.mask_token_id if task == "masked-lm" else None
    # Mapped, not read: several trainings share the pages, and a large corpus does not
    # fill the memory.
    tokens = Tokens(
        np.load(folder / IDS, mmap_mode="r"), around, window, len(tokenizer), mask
    )
    if tokens.count < 2:
        got = f"{len(tokens.ids)} tokens"
        raise CorpusError(
            f"text for at least 2 windows of {window} tokens",
            got,
            "name a longer corpus",
        )
    return tokenizer, tokens


def hash_tokenizer(tokenizer: Any) -> str:
    """Hash everything that makes tokens of a text: words and their numbers, merges, normalisation."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    rules = "" if inner is None else inner.to_str()
    return hash_parts([tokenizer.get_vocab(), type(tokenizer).__name__, rules])


def open_training_corpus(name: str, **options: Any) -> TextCorpus:
    """Open the text corpus `name`, as `measure` opens it. CorpusError if it holds no text."""
    corpus = open_corpus(name, modality="text", **options)
    if not isinstance(corpus, TextCorpus):
        raise CorpusError(
            "a text corpus", f"{name}, which holds something else", "name a text corpus"
        )
    return corpus


def train_word_pieces(documents: Iterable[str], size: int, **more: Any) -> Any:
    """Train a WordPiece tokenizer of at most `size` tokens with BERT's normalisation on documents.

    Characters are passed in a fixed order, since their numbers break ties. `more`: further settings of the tokenizer.
    """
    texts = list(_cut_documents(documents))

    def reading(model: Any) -> Any:
        """Return a tokenizer that uses `model` (WordPiece) with BERT's normalisation."""
        tokenizer: Any = Tokenizer(model)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def learnt(size: int, first: list[str]) -> Any:
        """Train a WordPiece tokenizer of at most `size` tokens, of which the special tokens `first` come first."""
        tokenizer = reading(models.WordPiece(unk_token="[UNK]"))
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=first, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return tokenizer

    # The trainer breaks ties by the numbers of characters, which it gives in the order
    # of a hash map. A first run finds the characters (`##x`), and a second gets them in
    # fixed order.
    inside = sorted(
        piece for piece in learnt(0, []).get_vocab() if piece.startswith("##")
    )
    # A new tokenizer around the trained model: to the trained one `inside` is special.
    tokenizer = reading(learnt(size, [*SPECIAL, *inside]).model)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.decoder = decoders.WordPiece()
    return _add_masking(tokenizer, **more)


def build_single_bytes(**more: Any) -> Any:
    """Build a tokenizer for which every byte is a token; nothing is learnt. `more`: further settings of the
    tokenizer.
    """
    # One visible character for each of the 256 bytes, as in GPT-2.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(
            {c: i for i, c in enumerate([*SPECIAL, *alphabet])}, [], unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _add_masking(tokenizer, **more)


def _add_masking(tokenizer: Any, **more: Any) -> Any:
    """Add the special tokens of a masked language model; [CLS] and [SEP] go around every text."""
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ids
    )
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    return Fast(tokenizer_object=tokenizer, **names, **more)


def train_byte_pairs(documents: Iterable[str], size: int) -> Any:
    """Train a byte-level BPE tokenizer of at most `size` tokens for a causal language model on documents."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_cut_documents(documents), trainer)
    return Fast(tokenizer_object=tokenizer, bos_token=END, eos_token=END)


def _cut_documents(documents: Iterable[str]) -> Iterator[str]:
    """Yield the documents, long ones cut into pieces at line ends."""
    return (piece for document in documents for piece in cut_pieces(document))


def _load_tokenizer(name: str, task: Task) -> Any:
    """Load the tokenizer of the checkpoint `name`. ModelError if it lacks a token that the task needs."""
    place = download(
        locate(*split_name(name), name, "Leave --vocabulary out to learn one."),
        name,
        weights=False,
    )
    try:
        tokenizer = Auto.from_pretrained(place.path)
    except (OSError, ValueError, KeyError) as error:
        got = " ".join(str(error).split())[:200]
        raise ModelError(
            f"a tokenizer in {name}", got, "name a checkpoint that has one"
        ) from None
    needed = ("mask_token", "pad_token") if task == "masked-lm" else ("eos_token",)
    lacking = [token for token in needed if getattr(tokenizer, token) is None]
    if lacking:
        cure = "take the vocabulary of a model of this task, or leave --vocabulary out to learn one"
        raise ModelError(
            f"a tokenizer for {task}", f"{name} without {', '.join(lacking)}", cure
        )
    return tokenizer


def _tokenise(tokenizer: Any, documents: Iterable[str]) -> Any:
    """Tokenise all documents into one array [position], with a separator between documents."""
    between = (
        tokenizer.sep_token_id
        if tokenizer.mask_token_id is not None
        else tokenizer.eos_token_id
    )
    # Two bytes a token are enough for vocabularies below 65,536.
    kind = np.uint16 if len(tokenizer) < 1 << 16 else np.int32
    parts: list[Any] = []
    for document in documents:
        parts += [*tokenise(list(cut_pieces(document)), tokenizer), np.array([between])]
    # The last separator has nothing after it.
    return np.concatenate(parts[:-1]).astype(kind)


@dataclass(frozen=True)
class Tokens:
    """A tokenised corpus: content ids in one row, cut into windows with special tokens around each.

    ids   [position]; window w holds ids[w·room : (w + 1)·room]
    """

    ids: NDArray[Any] = field(repr=False)
    affixes: Affixes
    window: int
    vocabulary: int
    mask_id: int | None = None

    @property
    def room(self) -> int:
        """The number of content tokens in a window, without special tokens."""
        return self.window - len(self.affixes)

    @property
    def count(self) -> int:
        """The number of windows in the corpus."""
        return len(self.ids) // self.room

    def parts(self) -> tuple[Rows, Rows]:
        """Return (windows for training, windows held out for validation), both indices [window].

        About a hundredth is held out, at most 512 windows.
        """
        # In a small corpus blocks are shorter, so that at least one is held out.
        block = max(1, min(HELD_BLOCK, self.count // HELD_OUT))
        # The last block of every hundred; in a corpus of fewer blocks, its last one.
        held = (np.arange(self.count) // block) % HELD_OUT == min(
            HELD_OUT - 1, (self.count - 1) // block
        )
        chosen = np.flatnonzero(held)
        # Evenly spread over all that is held out, if there is more than is needed.
        keep = chosen[
            np.linspace(0, len(chosen) - 1, min(len(chosen), MOST_HELD)).astype(int)
        ]
        return np.flatnonzero(~held), keep

    def rows(self, windows: Rows) -> NDArray[np.int64]:
        """Return the token ids of some windows, with special tokens, [window, token]."""
        # [window, token]: window w begins at w · room.
        content = self.ids[windows[:, None] * self.room + np.arange(self.room)].astype(
            np.int64
        )
        sides = (
            np.array(x, np.int64) for x in (self.affixes.prefix, self.affixes.suffix)
        )
        before, after = (np.broadcast_to(x, (len(windows), len(x))) for x in sides)
        return np.concatenate([before, content, after], axis=1)


class Examples(Dataset[Any]):
    """A data set of `length` training examples; it returns `input_ids` and `labels`, a batch at a time.

    Windows come in an order drawn from `seed`, or as they are.
    """

    def __init__(
        self,
        tokens: Tokens,
        windows: Rows,
        length: int,
        seed: int,
        *,
        shuffled: bool = True,
    ) -> None:
        """Prepare `length` examples from windows (indices) of the tokenised corpus; `shuffled` False keeps their
        order.
        """
        self.tokens, self.windows, self.length, self.seed, self.shuffled = (
            tokens,
            windows,
            length,
            seed,
            shuffled,
        )
        self._orders: dict[int, Rows] = {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one example, {"input_ids", "labels"}: [token] each."""
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """Return the examples of one batch, {"input_ids", "labels"}: [sequence, token] each."""
        ids = self.tokens.rows(np.array([self._window(i) for i in indices]))
        if self.tokens.mask_id is None:
            labels = ids.copy()
            labels[:, 0] = UNMASKED  # nothing predicts the first token
        else:
            ids, labels = self._masked(ids, indices)
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}

    def _window(self, index: int) -> int:
        """Return which window of the corpus the example number `index` is; each pass over the corpus has another
        order.
        """
        turn, place = divmod(index, len(self.windows))
        if not self.shuffled:
            return int(self.windows[place])
        # Only the order of the present pass is kept: examples come in turn.
        if turn not in self._orders:
            self._orders = {
                turn: np.random.default_rng([self.seed, turn]).permutation(self.windows)
            }
        return int(self._orders[turn][place])

    def _masked(
        self, ids: NDArray[np.int64], indices: list[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Choose 15 % of the content of windows [sequence, token] to predict: 80 % of it becomes [MASK], 10 % a random
        token.

        Returns (ids, labels), both [sequence, token]; labels are −100 where nothing is predicted. `indices`: numbers of
        the examples.
        """
        draws = np.stack([self._draws(i) for i in indices])
        head = len(self.tokens.affixes.prefix)
        room = self.tokens.room
        content = np.zeros(ids.shape, bool)
        content[:, head : head + room] = True
        chosen = content & (draws[:, 0] < MASKED)
        labels = np.where(chosen, ids, UNMASKED)
        # One number decides: below .1 the token stays, below .2 it is replaced, else it
        # is masked.
        fate = draws[:, 1]
        other = (draws[:, 2] * self.tokens.vocabulary).astype(np.int64)
        seen = np.where(
            fate < KEPT,
            ids,
            np.where(fate < KEPT + REPLACED, other, self.tokens.mask_id or 0),
        )
        return np.where(chosen, seen, ids), labels

    def _draws(self, index: int) -> NDArray[np.float64]:
        """Return uniform random numbers for one example, [3, token]: is it chosen, what becomes of it, which random
        token.

        They depend only on seed and index.
        """
        # A counter-based generator: example i gets its numbers without those before it
        # being drawn, whatever process asks for it.
        source = np.random.Philox(key=[self.seed, 0], counter=[0, index, 0, 0])
        return np.random.Generator(source).random((3, self.tokens.window))
