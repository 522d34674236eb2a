"""Train and measure the classifiers of the studies ahead of them: `python -m anisoscope.studies.fosse2023`.

Any number of processes may do so at once, each takes what no other has; a stopped one goes on at its last epoch. The
studies find the classifiers where `--output` is theirs too (`anisoscope reproduce fosse2023 --settings paper`).
"""

import argparse
from pathlib import Path

from anisoscope.progress import shown
from anisoscope.studies.fosse2023 import grid, trained_cells
from anisoscope.studies.fosse2023.class_directions import directions
from anisoscope.studies.fosse2023.cones import cones
from anisoscope.studies.fosse2023.measurements import explained, geometry, replaced
from anisoscope.studies.fosse2023.table2_examples import examples
from anisoscope.studies.study import Context
from anisoscope.training.denormals import flushed


def everything(trained: trained_cells.Trained) -> str:
    """Measure all that a study may ask of a classifier; a line that says what it is."""
    cell, found, plan = trained.cell, trained.found, trained.plan
    looks = [geometry]
    if not cell.attention:
        looks += [directions, examples, replaced, explained]
    elif cell.dim == grid.WIDTH:
        own = cell.start == grid.SCALED
        looks += [cones] if own and cell.layers == 1 else []
        looks += [replaced] if cell in plan.to_replace() else []
        looks += [explained] if own and cell.weight == 0 else []
    for look in looks:
        look(trained)
    return f"{cell.corpus} {cell.label} seed {cell.seed}: {found.accuracy():.3f}{' collapsed' * found.collapsed}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m anisoscope.studies.fosse2023", description=__doc__)
    parser.add_argument("--settings", choices=tuple(grid.SETTINGS), default="paper")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduction"), help="as in anisoscope reproduce")
    options = parser.parse_args()
    plan: grid.Plan = grid.SETTINGS[options.settings]
    cells = plan.everything()
    with flushed(), shown(f"{len(cells)} classifiers of fosse2023", "classifiers", quiet=False) as progress:
        context = Context(
            options.output, options.output / "cache", progress=lambda _text, done, total: progress(done, total)
        )
        for line in trained_cells.each(cells, plan, context, everything):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
