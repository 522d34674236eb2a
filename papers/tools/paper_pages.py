"""Make pages of the documentation from the papers' code and records; `make docs` writes them into docs/."""

import sys
from pathlib import Path

import atlas_page
import controls
import documentation
import findings
import fosse_page
import godey_page
import guest_pages
import joss
import licences
import paper_models
import published_entropy
import verdict_pages
from pages import Makers, table_row, write, write_between

from anisoscope.registry import list_entries_of
from anisoscope_papers.families import FAMILIES
from anisoscope_papers.models import PACKAGED

FOUND = "<!-- What was found, made by `make docs` -->\n"
TRAPS = {
    "character_bert": "reads words of 50 character ids; no vocabulary",
    "manta": "one sequence at a time; kernels have odd sizes; "
    "each position of the encoder is a block of bytes whose borders are learnt",
    "van": "its attention is a gate of convolutions: no q, k, v; the site of a stage is its output after the norm",
}
"""What to know of an architecture before its numbers are read."""
OF_PHOTOGRAPHS = ("builtin:efficientnet-lite0",)
"""Packaged networks that look at photographs; the others listen."""
ENVIRONMENT = {
    "ANISOSCOPE_SERIES": "a folder of series of checkpoints that studies read instead of training their own",
    "ANISOSCOPE_CACHE": "where vocabularies are kept (default: $XDG_CACHE_HOME/anisoscope, else ~/.cache/anisoscope)",
}
"""Variables of the environment that only these commands read."""


def networks() -> str:
    """Return the page on networks that transformers lacks, what is captured of them, and trained ones
    that need no hub.
    """
    # Measured on tiny random models of the architectures, as for those of the tool.
    lines = documentation.captured(paper_models.ARCHITECTURES, TRAPS)
    bare = ", ".join(name for name, family in FAMILIES.items() if family.bare)
    packaged = []
    for name, row in PACKAGED.items():
        corpus = (
            "FOLDER-OF-PHOTOGRAPHS" if name in OF_PHOTOGRAPHS else "FOLDER-OF-SOUND"
        )
        packaged.append(
            f"- {row.description} (`{row.install}`): `anisoscope measure {name} --corpus {corpus}`"
        )
    photographs = (
        "`anisoscope measure resnet20-12fca82f.th --corpus cifar10/test.parquet`"
    )
    packaged.append(
        f"- residual networks for CIFAR (github.com/akamaster/pytorch_resnet_cifar10): {photographs}"
    )
    return f"""# Networks of the papers

These architectures are used in the papers but are not in the library `transformers`. They keep the parameter names of
the published code. The table is like that of [architectures](architectures.md), and comes from tiny models, too: their
sizes are not those of the papers.

{chr(10).join(lines)}

## Trained networks that need no hub

{chr(10).join(packaged)}

If you give a file of torch's weights (`.th`, `.pt`, `.pth`), the names of its parameters tell which network
it is (known: {bare}).
`--untrained` replaces the weights by random ones. The site `pre_relu` is the output of a block before its last ReLU.
In CREPE, norm and pooling follow the ReLU; they count as the beginning of the next block. Python uses the same names:
`load("builtin:crepe", untrained=True)`.
"""


def commands() -> str:
    """Return the page with the `--help` of the commands that the papers add."""
    pages = documentation.help_of(lambda name: name in list_entries_of("commands"))
    pages += [
        "## Environment variables",
        "",
        "| variable | what it does |",
        "|---|---|",
    ]
    pages += [table_row((f"`{name}`", what)) for name, what in ENVIRONMENT.items()]
    return (
        "# Commands of the papers\n\nWhat anisoscope-papers adds to [the command line](cli.md).\n\n"
        + "\n".join(pages)
    )


def found() -> str:
    """Return the findings of the README, with a link to all verdicts."""
    return f"{findings.table()}\n[All verdicts](docs/verdicts.md) can be searched.\n\n"


PAGES: Makers = {
    "papers-commands.md": commands,
    "papers-networks.md": networks,
    "results.md": verdict_pages.primary_page,
    "verdicts.md": verdict_pages.overview,
    verdict_pages.SEARCHABLE: verdict_pages.searchable,
    "findings.md": findings.page,
    "godey2024.md": godey_page.page,
    **guest_pages.PAGES,
    "controls.md": controls.page,
    "published-entropy.md": published_entropy.page,
    "fosse2023.md": fosse_page.page,
    "licences.md": licences.page,
    "atlas.md": atlas_page.page,
}

if __name__ == "__main__":
    # Pages first, then the drawings in them; README and JOSS draft have numbers as well.
    readme = Path(__file__).resolve().parents[2] / "README.md"
    for path in (
        *write(PAGES),
        *fosse_page.write_figures(),
        write_between(readme, FOUND, found()),
        joss.write(),
    ):
        sys.stdout.write(f"{path}\n")
