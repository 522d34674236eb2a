"""Windows of a text corpus for training: equal lengths, nothing padded, the order and the masks pure functions of the
data seed.

Documents follow one another with a separator between them; [CLS] and [SEP] go around each window where the tokenizer
adds them. Example i of a training is window perm(i mod N) of pass i div N, whatever the batch, the devices and the
resumes; its masks are drawn from (data seed, i).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from anisoscope.data.windows import Affixes

UNMASKED = -100
"""Label of a position that the loss does not look at, as everywhere in transformers."""
MASKED, KEPT, REPLACED = 0.15, 0.1, 0.1
"""Share of tokens to be predicted; of these, the share left as they are and replaced at random (Devlin et al. 2019)."""
HELD_OUT, HELD_BLOCK, MOST_HELD = 100, 64, 512
"""Every 100th block of 64 windows is held out for validation, 512 windows at most."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """A tokenised corpus: content ids in one row, special tokens around a window, windows of each part.

    ids    [position]; window w holds ids[w·room : (w + 1)·room]
    train, validation   [window] indices
    """

    ids: NDArray[Any] = field(repr=False)
    affixes: Affixes
    window: int
    vocabulary: int
    mask_id: int | None = None

    @property
    def room(self) -> int:
        return self.window - len(self.affixes)

    @property
    def count(self) -> int:
        return len(self.ids) // self.room

    def parts(self) -> tuple[Rows, Rows]:
        """Windows of training and of validation; a short corpus holds out one block of a hundredth of it."""
        block = max(1, min(HELD_BLOCK, self.count // HELD_OUT))
        held = (np.arange(self.count) // block) % HELD_OUT == min(HELD_OUT - 1, (self.count - 1) // block)
        chosen = np.flatnonzero(held)
        keep = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), MOST_HELD)).astype(int)]
        return np.flatnonzero(~held), keep

    def rows(self, windows: Rows) -> NDArray[np.int64]:
        """Ids [window, token], special tokens in place."""
        content = self.ids[windows[:, None] * self.room + np.arange(self.room)].astype(np.int64)
        sides = (np.array(x, np.int64) for x in (self.affixes.prefix, self.affixes.suffix))
        before, after = (np.broadcast_to(x, (len(windows), len(x))) for x in sides)
        return np.concatenate([before, content, after], axis=1)


class Examples(Dataset[Any]):
    """`length` examples in the order of `seed`, fetched a batch at a time: `input_ids` and `labels`."""

    def __init__(self, tokens: Tokens, windows: Rows, length: int, seed: int, *, shuffled: bool = True) -> None:
        self.tokens, self.windows, self.length, self.seed, self.shuffled = tokens, windows, length, seed, shuffled
        self._orders: dict[int, Rows] = {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        """The examples of one batch, [sequence, token] each."""
        ids = self.tokens.rows(np.array([self._window(i) for i in indices]))
        if self.tokens.mask_id is None:
            labels = ids.copy()
            labels[:, 0] = UNMASKED  # nothing predicts the first token
        else:
            ids, labels = self._masked(ids, indices)
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}

    def _window(self, index: int) -> int:
        turn, place = divmod(index, len(self.windows))
        if not self.shuffled:
            return int(self.windows[place])
        if turn not in self._orders:
            self._orders = {turn: np.random.default_rng([self.seed, turn]).permutation(self.windows)}
        return int(self._orders[turn][place])

    def _masked(self, ids: NDArray[np.int64], indices: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """15 % of the content to be predicted: of these 80 % behind [MASK], 10 % replaced, 10 % as they are."""
        draws = np.stack([self._draws(i) for i in indices])
        head, room = len(self.tokens.affixes.prefix), self.tokens.room
        content = np.zeros(ids.shape, bool)
        content[:, head : head + room] = True
        chosen = content & (draws[:, 0] < MASKED)
        labels = np.where(chosen, ids, UNMASKED)
        fate, other = draws[:, 1], (draws[:, 2] * self.tokens.vocabulary).astype(np.int64)
        seen = np.where(fate < KEPT, ids, np.where(fate < KEPT + REPLACED, other, self.tokens.mask_id or 0))
        return np.where(chosen, seen, ids), labels

    def _draws(self, index: int) -> NDArray[np.float64]:
        """Uniform numbers [choice, token] of one example."""
        source = np.random.Philox(key=[self.seed, 0], counter=[0, index, 0, 0])
        return np.random.Generator(source).random((3, self.tokens.window))
