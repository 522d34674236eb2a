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
    # A cell is a number and what comes after it: its interval, or a layer.
    for row in shown.rows:
        lines.append(table_row([f"{value} {ends}".strip() for value, ends in row]))
    names = [
        network.get("name", network["model"])
        for network in tomllib.loads(LIST.read_text("utf-8"))["network"]
    ]
    # What the list names and the table lacks was not to be had on the machine that made
    # it.
    absent = [name for name in names if name not in set(table["network"])]
    missing = ""
    if absent:
        missing = f"Not measured, because they come from the hub or another package: {', '.join(absent)}.\n"
    return f"""# Atlas of real networks

One table of all trained networks that we have: how anisotropic their layers are, what causes it, and how many heads are
attention sinks. {" ".join(describe_atlas(table))}

This command makes the table, a page, and a run folder for each network:

    anisoscope atlas papers/tools/atlas.toml --output runs/atlas

If you repeat it, finished networks are not measured again. Unavailable networks are skipped and listed, and the exit
code is then 7. Each network is measured on data of the kind that it was made for, so the rows are no ranking. The
corpora are small, and the intervals are accordingly wide.

{chr(10).join(lines)}

- **A** is the mean cosine of all pairs of vectors of a layer, with its 95 % interval, for four layers: the one with the
  lowest A (*weakest*), the one with the highest A (*strongest*), the output of the last block, and the output after
  the final norm. The number after @ is the layer; layer 0 is the input of the first block.
- **q95** is the cosine that 95 % of pairs of random directions stay below. A layer is anisotropic if its A lies above.
- **share of 1 dimension**, **A centred** and **carried by** are about the strongest layer. The first is the share of A
  that comes from the dimension that contributes most. The second is A after the mean vector is subtracted.
- **carried by** names what causes the anisotropy. *N dimensions*: these alone contribute more than half of A. *The
  mean*: A after centring is below q95. *More than the mean*: A after centring is still above q95.
- **sink heads** give more than half of their weight to the first token. **entropy** is the normalised entropy of
  attention, the mean over all heads; 1 is uniform attention.
- **units** says how many texts, speakers or images were measured. A dash says that something was not measured, or that
  the network has no attention or no final norm.

{missing}
## An atlas of your own

Write a TOML file. Each table `[[network]]` is a network, with options of `anisoscope measure`. The options in
`[defaults]` are for all networks:

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

`name`, `modality` and `family` set what the columns *network*, *reads* and *family* show. `stack` chooses the encoder
or the decoder, if a network has both. `$NAME` in `model` and `corpus` is a variable of the environment. On the command
line, `--only NAME` measures only the networks of these names.
"""
