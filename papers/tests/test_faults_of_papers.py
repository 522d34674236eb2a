"""Faults of what classifiers are trained on, through the program as it is typed, each on a terminal and on a pipe."""

import gzip

import pytest
from test_faults import BAD_LINES, COLUMNS, CORPUS, GOOD, MODEL, Fault, check

TRAIN = "train classifier --vectors random --dim 8 -c {file} -o {new}"
FAULTS = {
    **{
        name: (("\n".join([*GOOD, line])).encode(), Fault(TRAIN, CORPUS, ("line",)))
        for name, line in BAD_LINES.items()
    },
    "labels of no class": (
        ("text,label\n" + "".join(f"word {k},-1\n" for k in range(40))).encode(),
        Fault(TRAIN, CORPUS, ("label",)),
    ),
    "word vectors of a corrupt gzip": (
        gzip.compress(b"the 1 2 3\n" * 999, mtime=0)[:-12],
        Fault(
            "train classifier --vectors {file} -c synthetic --limit 40 -o {new}",
            MODEL,
            ("vectors.txt.gz",),
        ),
    ),
}
"""What a file holds, and how what reads it must end."""
FILES = {
    "labels of no class": "t.csv",
    "word vectors of a corrupt gzip": "vectors.txt.gz",
}


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_clearly(program, tmp_path, name, terminal):
    content, fault = FAULTS[name]
    file = tmp_path / FILES.get(name, "t.jsonl")
    file.write_bytes(content)
    words = fault.typed.format(file=file, new=tmp_path / "new").split()
    check(program(words, terminal=terminal, columns=COLUMNS), fault, terminal)
    assert not (tmp_path / "new" / "manifest.json").exists(), (
        "nothing that looks finished is left"
    )
