"""The classifier of Fosse et al. 2023 once more, in plain torch, from their page and none of our code but the data.

One layer, one head:  x₀ = word vector (+ sinusoid)   a = softmax(q · k / √d)   y = x₀ + W_O (a V)   x₁ = norm(y)
class scores = linear(x₁ at <cls>), where norm subtracts the mean over dimensions and divides by the unbiased standard
deviation. Adam at 1e-3 without decay, batches of 64, the epoch with the lowest validation loss.
"""

import math
import re
from collections import Counter

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

BATCH, RATE, EPOCHS, PATIENCE = 64, 1e-3, 50, 3


class Net(nn.Module):
    def __init__(self, vectors, classes, scale):
        super().__init__()
        d = vectors.shape[1]
        self.words = nn.Embedding.from_pretrained(
            vectors.clone(), freeze=False, padding_idx=0
        )
        self.qkv, self.out, self.head = (
            nn.Linear(d, 3 * d),
            nn.Linear(d, d),
            nn.Linear(d, classes),
        )
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)
        self.scale = scale

    def sinusoids(self, length, d):
        rows = []
        for position in range(length):
            row = []
            for i in range(0, d, 2):
                angle = position / 10_000 ** (i / d)
                row += [math.sin(angle), math.cos(angle)]
            rows.append(row)
        return torch.tensor(rows)

    def forward(self, ids, uniform=False):
        """Class scores, and what is measured: the <cls> row of attention, keys, values."""
        x = self.words(ids)
        if self.scale:
            if getattr(self, "table", x[0, :0]).shape[0] < x.shape[1]:
                self.table = self.sinusoids(x.shape[1], x.shape[2])
            x = x + self.scale * self.table[: x.shape[1]]
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = (query[:, :1] @ key.transpose(1, 2)).squeeze(1) / math.sqrt(x.shape[2])
        if uniform:
            scores = scores * 0
        row = scores.masked_fill(ids == 0, float("-inf")).softmax(-1)
        y = x[:, 0] + self.out((row.unsqueeze(1) @ value).squeeze(1))
        y = (y - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True)
        return self.head(y), row, key, value


def tokens(words, split):
    text = " ".join(words).lower()
    return text.split() if split else re.findall(r"\w+|[^\w\s]+", text)


class Task:
    """A corpus as ids: <pad> 0, <unk> 1, words of the training split by frequency, <cls> last and in front."""

    def __init__(self, splits, tokenised, vector_file):
        read = {
            name: [(tokens(e.all_words, tokenised), e.label) for e in part]
            for name, part in splits.items()
        }
        count = Counter(token for words, _ in read["train"] for token in words)
        names = [
            "<pad>",
            "<unk>",
            *sorted(count, key=lambda token: (-count[token], token)),
            "<cls>",
        ]
        number = {name: i for i, name in enumerate(names)}
        self.splits = {
            split: [
                ([len(names) - 1, *(number.get(token, 1) for token in words)], label)
                for words, label in part
            ]
            for split, part in read.items()
        }
        lines = [
            line.split(" ") for line in vector_file.read_text("utf-8").splitlines()
        ]
        self.vectors = torch.zeros(len(names), len(lines[0]) - 1)
        for word, *numbers in lines:
            if word in number and word not in ("<pad>", "<unk>", "<cls>"):
                self.vectors[number[word]] = torch.tensor([float(x) for x in numbers])

    def batches(self, split, order):
        for start in range(0, len(order), BATCH):
            rows = [self.splits[split][i] for i in order[start : start + BATCH]]
            width = max(len(ids) for ids, _ in rows)
            ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows])
            yield ids, torch.tensor([label for _, label in rows])


def trained(task, classes, *, scale, seed, uniform=False, epochs=EPOCHS):
    """The net of the best epoch."""
    torch.manual_seed(seed)
    net = Net(task.vectors, classes, scale)
    adam = torch.optim.Adam(net.parameters(), lr=RATE)
    best, kept, stale = math.inf, None, 0
    held = sorted(
        range(len(task.splits["validation"])),
        key=lambda i: len(task.splits["validation"][i][0]),
    )
    for _ in range(epochs):
        for ids, labels in task.batches(
            "train", torch.randperm(len(task.splits["train"])).tolist()
        ):
            adam.zero_grad()
            cross_entropy(net(ids, uniform)[0], labels).backward()
            adam.step()
        with torch.no_grad():
            losses = [
                cross_entropy(net(i, uniform)[0], y, reduction="sum")
                for i, y in task.batches("validation", held)
            ]
        loss = float(sum(losses)) / len(held)
        if loss < best:
            best, kept, stale = (
                loss,
                {name: x.clone() for name, x in net.state_dict().items()},
                0,
            )
        elif (stale := stale + 1) == PATIENCE:
            break
    net.load_state_dict(kept)
    return net


@torch.no_grad()
def measured(net, task, split="test", uniform=False):
    """Accuracy, accuracy with attention made uniform, H / ln(n − 1), sim(K), sim(V): means over utterances."""
    found = []
    for i in range(len(task.splits[split])):
        ((ids, labels),) = task.batches(split, [i])
        scores, row, key, value = net(ids, uniform)
        n = ids.shape[1]
        entropy = (
            -float((row * row.clamp(min=1e-30).log()).sum()) / math.log(n - 1)
            if n > 2
            else 0.0
        )
        flat = net(ids, uniform=True)[0]
        right = [float(x.argmax() == labels[0]) for x in (scores, flat)]
        found.append((*right, entropy, alike(key[0]), alike(value[0])))
    columns = torch.tensor(found, dtype=torch.float64).nanmean(0).tolist()
    return dict(
        zip(
            ("accuracy", "uniform afterwards", "H", "sim(K)", "sim(V)"),
            columns,
            strict=True,
        )
    )


def alike(x):
    """Mean cosine over ordered pairs of different rows, zero ones left out (keys of <unk>); NaN for one row."""
    x = x[x.abs().sum(1) > 0]
    n = len(x)
    return (
        (float(cosine_similarity(x[:, None], x[None], dim=-1).sum()) - n)
        / (n * (n - 1))
        if n > 1
        else math.nan
    )
