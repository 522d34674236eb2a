"""Train and measure the classifiers of the studies ahead of them: `python -m anisoscope.studies.fosse2023`.

Any number of processes may do so at once, each takes what no other has; a stopped one goes on at its last epoch. The
studies find the classifiers where `--output` is theirs too (`anisoscope reproduce fosse2023 --settings paper`).
"""

import argparse
from pathlib import Path

from anisoscope.progress import shown
from anisoscope.studies._study import Context
from anisoscope.studies.fosse2023 import _grid, _trained


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m anisoscope.studies.fosse2023", description=__doc__)
    parser.add_argument("--settings", choices=("quick", "paper"), default="paper")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduction"), help="as in anisoscope reproduce")
    options = parser.parse_args()
    plan: _grid.Plan = _grid.SETTINGS[options.settings]
    cells = plan.everything()
    with shown(f"{len(cells)} classifiers of fosse2023", "classifiers", quiet=False) as progress:
        context = Context(
            options.output, options.output / "cache", progress=lambda _text, done, total: progress(done, total)
        )
        for trained in _trained.each(cells, plan, context, lambda trained: trained):
            found = trained.found
            said = f"{trained.cell.corpus} {trained.cell.label} seed {trained.cell.seed}"
            print(f"{said}: {found.accuracy():.3f}{' collapsed' * found.collapsed}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
