"""Word vectors for a vocabulary, from a GloVe, word2vec or fastText text file, or a checkpoint's embedding matrix."""

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from anisoscope.errors import ModelError, UsageError
from anisoscope.options import expand_home

_SPACES = re.compile("[ \t]+")  # other blanks are parts of words


@dataclass(frozen=True)
class WordVectors:
    """Vectors of a vocabulary: `matrix` [word, dim], zeros for a word without one; `found`: how many words have one."""

    matrix: Float[Tensor, "word dim"]
    found: int
    source: str


def word_vectors(
    name: str,
    words: Sequence[str],
    special: Sequence[str],
    *,
    norm: float | None = None,
    cosine: float | None = None,
) -> WordVectors:
    """Return vectors of `words` from a text file of vectors, or from a checkpoint (any name of `models.load`).

    name      the file or the checkpoint, whose vector of a word is the mean over the word's pieces
    special   words that get no vector
    norm      scale all vectors by one factor so that this is their mean norm; None: leave them as they are
    cosine    first shift all vectors along their common direction, so that this is the mean cosine of two words
              (`shift_to_cosine`); None: leave them where they are

    UsageError for a norm that is not finite and positive, or a cosine outside [0, 1).
    """
    wanted = {word: i for i, word in enumerate(words) if word not in set(special)}
    path = expand_home(name)
    if path.is_file():
        vectors = _read_vectors_file(path, wanted, len(words))
    else:
        vectors = _read_embeddings(name, wanted, len(words))
    adjust_vectors(vectors.matrix, name, norm=norm, cosine=cosine)
    return vectors


@torch.no_grad()
def adjust_vectors(
    matrix: Float[Tensor, "word dim"],
    name: str,
    *,
    norm: float | None = None,
    cosine: float | None = None,
) -> None:
    """Give word vectors this mean cosine and then this mean norm, in place; None: leave it as it is.

    name   where the vectors are from, for errors

    UsageError for a norm that is not finite and positive, or a cosine outside [0, 1); ModelError if all vectors are 0.
    """
    if norm is None and cosine is None:
        return
    if norm is not None and not 0 < norm < math.inf:
        expected = "a finite mean norm above 0 for the word vectors"
        raise UsageError(
            expected, str(norm), "leave --vector-norm out to keep their scale"
        )
    if cosine is not None and not 0 <= cosine < 1:
        expected = "a mean cosine of at least 0 and below 1 for the word vectors"
        raise UsageError(
            expected, str(cosine), "leave --vector-cosine out to keep their directions"
        )
    vectors = matrix.double()
    # Words without a vector have zeros, and keep them.
    has_vector = vectors.norm(dim=1) > 0
    if not bool(has_vector.any()):
        raise ModelError(
            f"word vectors in {name} that are not zero",
            "only zeros",
            "name another file",
        )
    known = vectors[has_vector]
    # Without `norm`, the mean norm before the shift is restored.
    length = known.norm(dim=1).mean()
    if cosine is not None:
        known = shift_to_cosine(known, cosine)
    if norm is not None:
        length = torch.tensor(norm, dtype=torch.float64)
    known = known * (length / known.norm(dim=1).mean())
    matrix[has_vector] = known.to(matrix.dtype)


STEPS_OF_BISECTION = 80
"""Halvings of an interval, after which double precision has no smaller one."""


def shift_to_cosine(
    vectors: Float[Tensor, "word dim"], cosine: float
) -> Float[Tensor, "word dim"]:
    """Return the vectors plus one vector, so that the mean cosine of two different ones is `cosine`.

    The vector added has the direction of the mean unit vector, which is the common direction that the vectors have
    already; it is found by bisection. UsageError for fewer than two vectors, or if no vector added gives this cosine.
    """
    if len(vectors) < 2:
        raise UsageError(
            "at least two word vectors, to give them a mean cosine",
            str(len(vectors)),
            "use a larger corpus",
        )
    common: Tensor = torch.nn.functional.normalize(vectors, dim=1).mean(0)
    direction: Tensor = common / common.norm()
    longest = float(vectors.norm(dim=1).max())
    # At the low end no vector has a positive component along the direction; at the high end it is nearly all of each.
    low, high = -longest, 1e4 * longest
    if not _mean_cosine(vectors + high * direction) > cosine:
        raise UsageError(
            "a mean cosine that adding one vector to all can give",
            str(cosine),
            "choose one nearer to 0",
        )
    for _ in range(STEPS_OF_BISECTION):
        middle = (low + high) / 2
        # Left of the point where the mean has no component along the direction, the
        # cosine rises again: the search stays to the right of it.
        if _mean_cosine(vectors + middle * direction) < cosine or middle < -float(
            vectors.mean(0) @ direction
        ):
            low = middle
        else:
            high = middle
    shifted: Tensor = vectors + high * direction
    return shifted


def _mean_cosine(vectors: Float[Tensor, "word dim"]) -> float:
    """Return the mean cosine over all pairs of different vectors: (‖Σu‖² − n) / (n (n − 1)) with unit vectors u."""
    count = len(vectors)
    total = torch.nn.functional.normalize(vectors, dim=1).sum(0)
    return float((total @ total - count) / (count * (count - 1)))


def _read_vectors_file(path: Path, wanted: dict[str, int], count: int) -> WordVectors:
    """Read word vectors from lines `word x₁ … x_d`, after an optional header `count dimension`.

    wanted   row of each word
    count    number of rows

    The first line of a word counts. ModelError for a line that is none of these.
    """
    dim = 0
    rows: dict[int, Tensor] = {}
    missing = dict(wanted)
    for number, line in enumerate(_iter_lines(path), 1):
        word, *numbers = _SPACES.split(line.rstrip())
        if number == 1 and len(numbers) == 1:
            continue  # the header of word2vec and fastText
        if not numbers:
            got = f"{word[:40]!r} alone in line {number}"
            raise ModelError(
                f"numbers after the word in {path}",
                got,
                "name a GloVe or fastText file",
            )
        dim = dim or len(numbers)
        place = missing.pop(word, None)
        # Lines of other words are not parsed: files have millions of them.
        if place is not None:
            rows[place] = _parse_vector(word, numbers, dim, number, path)
    if not rows:
        raise ModelError(
            f"vectors of words of the corpus in {path}",
            "none",
            "name a GloVe or fastText text file",
        )
    matrix = torch.zeros(count, dim)
    matrix[list(rows)] = torch.stack(list(rows.values()))
    return WordVectors(matrix, len(rows), path.name)


def _parse_vector(
    word: str, numbers: list[str], dim: int, line: int, path: Path
) -> Float[Tensor, " dim"]:
    """Return the vector of one word. ModelError if it has not `dim` finite numbers.

    line, path   where it was read, for errors
    """
    if len(numbers) != dim:
        got = f"{len(numbers)} in line {line}"
        raise ModelError(
            f"{dim} numbers in every line of {path}",
            got,
            "name a GloVe or fastText file",
        )
    try:
        vector = torch.tensor([float(x) for x in numbers])
    except ValueError:
        raise ModelError(
            f"numbers after the word in {path}", f"line {line}", "name a text file"
        ) from None
    if not bool(torch.isfinite(vector).all()):
        got = f"NaN, Inf or more than float32 holds in line {line} ({word})"
        raise ModelError(
            f"finite numbers in every line of {path}",
            got,
            "leave the line out, or use another file",
        )
    return vector


def _iter_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, gzip unpacked. ModelError if it cannot be read."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(
            path, "rt", encoding="utf-8", errors="strict", newline="\n"
        ) as file:
            yield from file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ModelError(
            f"a complete gzip file at {path}", str(error)[:120], "download it again"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        cure = "convert a binary file to text first"
        raise ModelError(
            f"a text file of vectors at {path}", str(error)[:120], cure
        ) from None


def _read_embeddings(name: str, wanted: dict[str, int], count: int) -> WordVectors:
    """Take word vectors from a checkpoint's input embeddings, averaged over the pieces of each word.

    wanted   row of each word
    count    number of rows
    """
    from anisoscope.models.load import load

    subject = load(name)
    embedding = subject.model.get_input_embeddings()  # type: ignore[operator]
    weight = getattr(embedding, "weight", None)
    if not isinstance(weight, Tensor) or not hasattr(subject.processor, "tokenize"):
        raise ModelError(
            "a checkpoint with an embedding matrix of tokens", name, "name a text model"
        )
    # A word's vector must not contain those of [CLS] and the like.
    pieces = subject.processor(list(wanted), add_special_tokens=False)["input_ids"]
    unknown = subject.processor.unk_token_id
    matrix = torch.zeros(count, weight.shape[1])
    found = 0
    for place, ids in zip(wanted.values(), pieces, strict=True):
        # A word with an unknown piece counts as one without a vector.
        if ids and unknown not in ids:
            matrix[place] = weight[ids].detach().float().mean(0)
            found += 1
    return WordVectors(matrix, found, subject.name)
