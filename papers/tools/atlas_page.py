"""Write the page of the atlas: every real network at hand in one table, from papers/results/atlas.csv."""

import tomllib
from pathlib import Path

from committed import RESULTS
from pages import table_row

from anisoscope.report.atlas import describe_atlas, tabulate
from anisoscope.runs.atlas import read_csv

TABLE = RESULTS / "atlas.csv"
"""What `anisoscope atlas papers/tools/atlas.toml` wrote on a machine without a hub."""
LIST = Path(__file__).with_name("atlas.toml")


def page() -> str:
    """Return the page: a table of every measured network, what its columns mean, and how to make it."""
    table = read_csv(TABLE)
    shown = tabulate(table)
    lines = [table_row(shown.head), table_row(["---"] * len(shown.head))]
    for row in shown.rows:
        lines.append(table_row([f"{value} {ends}".strip() for value, ends in row]))
    names = [network.get("name", network["model"]) for network in tomllib.loads(LIST.read_text("utf-8"))["network"]]
    absent = [name for name in names if name not in set(table["network"])]
    missing = (
        f"Not measured here, as they come from the hub or another package: {', '.join(absent)}.\n" if absent else ""
    )
    return f"""# Atlas of real networks

One table of every trained network at hand: how anisotropic its layers are, what carries it, and how many heads are
sinks. {" ".join(describe_atlas(table))}

    anisoscope atlas papers/tools/atlas.toml --output runs/atlas

makes it, with a page and a run folder of each network. Networks that are finished are not measured again; those that
cannot be had are left out and named, and the exit code is 7. Each network is measured on data it was made for, so the
rows are no ranking; corpora are small, and the intervals say how much that costs.

{chr(10).join(lines)}

- **A** with its 95 % interval; behind @ stands the layer, 0 is the input of the first block. **q95**: 95 % of pairs of
  isotropic directions have a lower cosine.
- **carried by**, at the strongest layer if it is anisotropic. *N dimensions*: these alone carry more than half of A.
  *The mean*: once the mean vector is taken away, A is below q95. *More than the mean*: it stays above.
- **sink heads** give more than half of their weight to the first token; **entropy** is the mean over all heads, 1 is
  uniform. A dash: not measured, or no attention.

{missing}
## An atlas of your own

A list is a TOML file; each `[[network]]` takes the options of `anisoscope measure` by their names, and `[defaults]`
holds for all:

```toml
[defaults]
corpus = "texts.jsonl"
limit = 50
panel = "hidden,attention"

[[network]]
model = "builtin:minilm"

[[network]]
name = "mine"
model = "checkpoints/step-1000"
```

`name`, `modality` and `family` are what the table says; `stack` chooses one of an encoder and decoder. `$NAME` in
`model` and `corpus` is a variable of the environment. `--only NAME` measures some of the list.
"""
