"""Train and measure the classifiers of the studies ahead of them: `python -m anisoscope_papers.fosse2023`.

Any number of processes may do so at once, each takes what no other has; a stopped one goes on at its last epoch. The
studies find the classifiers if they have the same `--output` (`anisoscope reproduce fosse2023 --settings paper`).
"""

import argparse
from pathlib import Path

from anisoscope.models.modes import flush_denormals
from anisoscope.progress import show_progress
from anisoscope_papers import runner
from anisoscope_papers.fosse2023.entry import Measure
from anisoscope_papers.fosse2023.grid import SETTINGS, Cell
from anisoscope_papers.fosse2023.measurements import Look
from anisoscope_papers.fosse2023.trained_cells import Trained, apply_to_each
from anisoscope_papers.study import Context


def main() -> None:
    """Parse the command line, then train and measure every classifier of the plan, printing a line for each."""
    parser = argparse.ArgumentParser(
        prog="python -m anisoscope_papers.fosse2023", description=__doc__
    )
    parser.add_argument("--settings", choices=tuple(SETTINGS), default="paper")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/reproduction"),
        help="as in anisoscope reproduce",
    )
    given = parser.parse_args()
    plan = SETTINGS[given.settings]
    cells = plan.everything()
    # Others, such as `forms`, measure no classifier of the grid.
    measures = [
        study.measure
        for study in runner.choose("fosse2023")
        if isinstance(study.measure, Measure)
    ]
    asked: dict[Cell, list[Measure]] = {
        cell: [m for m in measures if cell in m.cells(plan)] for cell in cells
    }

    def measure_everything(trained: Trained) -> str:
        """Measure all that any study needs of a trained classifier; return a line that describes it."""
        looks: dict[Look, None] = {}
        # Each once: several studies ask for the same measurement.
        for measure in asked[trained.cell]:
            looks |= dict.fromkeys(measure.looks)
        for look in looks:
            look(trained)
        cell = trained.cell
        found = trained.found
        return f"{cell.corpus} {cell.label} seed {cell.seed}: {found.accuracy():.3f}{' collapsed' * found.collapsed}"

    with (
        flush_denormals(),
        show_progress(
            f"{len(cells)} classifiers of fosse2023", "classifiers", quiet=False
        ) as progress,
    ):
        context = Context(
            given.output,
            given.output / "cache",
            progress=lambda _, done, total: progress(done, total),
        )
        for line in apply_to_each(cells, plan, context, measure_everything):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
