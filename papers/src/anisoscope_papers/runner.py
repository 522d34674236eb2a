"""Find studies and run them. Records, charts and verdicts go to `<output>/<paper>/<settings>/<study>`."""

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pandas as pd

from anisoscope.charts.export import save
from anisoscope.errors import (
    CorpusError,
    MeasureError,
    ModelError,
    OutputError,
    UsageError,
    suggest_names,
)
from anisoscope.models.hub_memory import ask_once
from anisoscope.models.modes import flush_denormals
from anisoscope.progress import show_progress
from anisoscope.renamed import rename_described
from anisoscope.store import as_records, read_table, write_json, write_table
from anisoscope.wording import count_noun, list_first
from anisoscope_papers.judge import make_verdict_without_test
from anisoscope_papers.needs import Need
from anisoscope_papers.origin import describe_provenance
from anisoscope_papers.study import (
    STANDS_IN,
    WITHHELD,
    Compared,
    Context,
    Study,
    Verdict,
)
from anisoscope_papers.study_names import (
    choose_names,
    find_folder,
    find_packages,
    number_of,
)

COMPARED = "compared.json"
"""Beside the verdicts: published numbers and ours, one by one."""
FINISHED = "finished"
"""Settings that look at what was trained, and train nothing."""
EFFICIENCY = 0.4
"""Share of the speed of a plain matrix product that a measurement reaches, about."""


@cache
def find_studies() -> tuple[Study, ...]:
    """Import and return every study of every paper, in order. A module declares `STUDY`, or `STUDIES` if it holds
    several.

    MeasureError if a module named like a figure, table or section declares none, or something else.
    """
    studies: list[Study] = []
    papers = find_packages()
    for paper, package in papers.items():
        for module in iter_modules(package.__path__):
            # `python -m` of a paper is a program: importing it as a study is not meant.
            if module.name != "__main__":
                studies += _find_studies_in(paper, package.__name__, module.name)
    # Papers in their own order; figures by number, so that fig10 comes after fig9.
    order = list(papers)
    return tuple(
        sorted(
            studies, key=lambda study: (order.index(study.paper), number_of(study.name))
        )
    )


def _find_studies_in(paper: str, package: str, name: str) -> tuple[Study, ...]:
    """Import the module `name` in the `package` of a paper and return the studies that it declares.

    MeasureError if it declares something else, or nothing although its name or its content is that of a study.
    """
    content = vars(import_module(f"{package}.{name}"))
    # A module without either has (None,), which differs from an empty STUDIES.
    declared: tuple[Any, ...] = content.get("STUDIES", (content.get("STUDY"),))
    if declared and all(isinstance(study, Study) for study in declared):
        return declared
    # A study under another name would never run, and nobody would notice.
    is_named_like_one = re.match(r"(fig|table|sec)\d", name)
    holds_one = any(isinstance(value, Study) for value in content.values())
    if declared != (None,) or is_named_like_one or holds_one:
        where = f"STUDY = declare(…) in {paper}/{name}.py"
        raise MeasureError(where, repr(declared), "declare it; see docs/adding.md")
    return ()


def choose(paper: str, only: str = "") -> list[Study]:
    """Return the studies of a paper that `only` names, such as `fig1-5,table3` (`choose_names`); all if it is empty."""
    find_folder(paper)
    studies = {study.name: study for study in find_studies() if study.paper == paper}
    return [studies[name] for name in choose_names(paper, only)]


def describe(studies: Sequence[Study], settings: str) -> list[str]:
    """Return lines that say what would be measured; for the settings `paper`, also downloads, disk and hours.

    UsageError if a study has no such settings.
    """
    for study in studies:
        _require_settings(study, settings)
    if settings != "paper":
        return [f"{study.name:8s} {study.title}" for study in studies]
    return list(_describe_costs(studies))


def _describe_costs(studies: Sequence[Study]) -> Iterator[str]:
    """Yield the lines of a dry run: what each study downloads and computes that no earlier one does, and the total."""
    pace = 1.0  # operations an hour, in 1e12
    # Only for hours that are shown: measuring the speed takes a third of a second.
    if any(study.needs for study in studies):
        pace = measure_speed() * EFFICIENCY * 3600
    known = _Known({}, {})
    for study in studies:
        yield f"{study.name:8s} {study.title}"
        yield from _describe_new_costs(study, known, pace)
        # Only now: what is new in a study depends on what the studies before it need.
        for need in study.needs:
            known.add(need, study.name)
    if known.loaders:
        yield from known.describe_total(pace)
        yield "         what is in the hub's cache, or at hand as a local copy, is not downloaded"


def _describe_new_costs(study: Study, known: "_Known", pace: float) -> Iterator[str]:
    """Yield lines on what a study downloads and computes in addition to what is `known` from earlier ones.

    `pace`: operations an hour, in 1e12.
    """
    # Needs without a name are computations alone.
    new = [need for need in study.needs if need.name and need.name not in known.loaders]
    for need in new:
        yield f"         {need.name}"
        size = (
            "size unknown"
            if need.gigabytes is None
            else _format_gigabytes(need.gigabytes)
        )
        note = f"; {need.note}" if need.note else ""
        yield f"           {size}{note}"
    if not study.needs:
        return
    parts = []
    # The studies that load the rest, each once and in order.
    again: dict[str, None] = {}
    for need in study.needs:
        if need.name in known.loaders:
            again[known.loaders[need.name]] = None
    if again:
        verb = "loads" if len(again) == 1 else "load"
        parts.append(f"what {', '.join(again)} {verb}")
    if new:
        parts.append(
            f"{_format_gigabytes(sum(need.gigabytes or 0.0 for need in new))} to download"
        )
    parts.append(_describe_new_work(study, known, pace))
    yield f"         {'; '.join(parts)}"


def _describe_new_work(study: Study, known: "_Known", pace: float) -> str:
    """Say how long it takes to compute what a study needs and earlier studies (`known`) do not.

    `pace`: operations an hour, in 1e12.
    """
    # By run, so that two needs of one study with the same run cost it once.
    work: dict[str, float] = {}
    for need in study.needs:
        work |= need.work
    if work.keys() <= known.runs.keys():
        return "nothing more to compute"
    hours = sum(cost for run, cost in work.items() if run not in known.runs) / pace
    return f"about {_format_hours(hours)}"


@dataclass
class _Known:
    """What the studies of a dry run need, each thing once.

    loaders   {what is downloaded: the study that does it first}
    runs      {run: operations in 1e12}
    loaded    gigabytes to download; unknown: downloads of unknown size; disk: gigabytes on disk
    """

    loaders: dict[str, str]
    runs: dict[str, float]
    loaded: float = 0.0
    unknown: int = 0
    disk: float = 0.0

    def add(self, need: Need, study: str) -> None:
        """Add what `study` needs; what an earlier one needs counts once."""
        for run, cost in need.work.items():
            self.runs.setdefault(run, cost)
        if need.name and need.name not in self.loaders:
            self.loaders[need.name] = study
            self.loaded += need.gigabytes or 0.0
            self.unknown += need.gigabytes is None
            self.disk += need.on_disk

    def describe_total(self, pace: float) -> Iterator[str]:
        """Yield a line on all studies together. `pace`: operations an hour, in 1e12."""
        more = f", and {self.unknown} of unknown size" if self.unknown else ""
        hours = sum(self.runs.values()) / pace
        sizes = f"{_format_gigabytes(self.loaded)} to download{more}; {_format_gigabytes(self.disk)} of disk space"
        yield f"in all   {sizes}; about {_format_hours(hours)} on this machine"


def _format_gigabytes(x: float) -> str:
    """Format a number of gigabytes in words for the user: `1.5 GB`."""
    if x >= 0.05:
        return f"{x:.1f} GB"
    return "under 0.1 GB"


def _format_hours(x: float) -> str:
    """Format a duration, given in hours, in hours; under an hour, in minutes."""
    if x >= 10:
        return f"{x:,.0f} hours"
    if x >= 0.95:
        return f"{x:.1f} hours"
    return count_noun(max(round(60 * x), 1), "minute")


def measure_speed() -> float:
    """Measure the speed of this machine in a plain matrix product, in 1e12 operations per second."""
    import torch

    # The width of the base models. The first product is not timed: it starts threads.
    x = torch.randn(768, 768)
    x @ x
    began = time.monotonic()
    done = 0
    while time.monotonic() - began < 0.3:
        x @ x
        done += 1
    # A product of two n × n matrices takes 2 n³ operations.
    return done * 2e-12 * 768**3 / (time.monotonic() - began)


def _require_settings(study: Study, name: str) -> Any:
    """Return the study's settings of this name. UsageError if it has none."""
    if name not in study.settings:
        raise UsageError(
            f"settings of {study.name}", repr(name), suggest_names(name, study.settings)
        )
    return study.settings[name]


def reproduce(
    studies: Iterable[Study],
    settings: str,
    output: Path,
    *,
    device: str = "cpu",
    quiet: bool = False,
) -> Iterator[str]:
    """Run each study by the settings of this name and yield its verdicts as lines of text.

    Results go to `<output>/<paper>/<settings>/<study>`. If a study is finished, only its verdicts are computed again,
    from its records. It runs again if something was unavailable.
    """
    # Study by study: verdicts are shown as they come, and an interruption loses one study.
    for study in studies:
        folder = output / study.paper / settings / study.name
        # A clone without the trainings (days of CPU) can still judge what was measured.
        if kept := _copy_committed(study, settings, folder, output / "cache"):
            yield f"{study.name}  Nothing of it was trained here: judged from the records in {kept}"
        elif not (folder / "study.json").exists() or open_finished(folder).lacking:
            _run(study, settings, folder, output / "cache", device, quiet)
        # Settings of a committed study are those of its own run, which its line has named.
        others = ""
        if not kept:
            asked = _require_settings(study, settings)
            others = _name_other_settings(folder, asked)
        if others:
            yield f"{study.name}  As it was measured with other settings ({others}); to measure it anew remove {folder}"
        # Judged from the file also right after measuring, so that both give the same, and
        # a corrected judge changes verdicts of old records too.
        records = read_table(folder / "records.parquet")
        for verdict in _write_verdicts(Finished(study, {}, records), folder):
            yield format_verdict(study, verdict)


COMMITTED = Path(__file__).resolve().parents[2] / "results"
"""Records of real runs, which a clone has and an installed package has not."""


def _copy_committed(
    study: Study, settings: str, folder: Path, cache_folder: Path
) -> Path | None:
    """Copy the committed records of a study into `folder`, if none of its models was trained here.

    Only for the settings named `finished`. Returns where they come from; None if the study can be measured here, is
    finished, or has no committed records.
    """
    kept = COMMITTED / study.paper / settings / study.name
    if (
        settings != FINISHED
        or study.at_hand is None
        or study.at_hand(_require_settings(study, settings), cache_folder)
    ):
        return None
    if (folder / "study.json").exists() or not (kept / "study.json").exists():
        return None
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    return kept


def _name_other_settings(folder: Path, asked: Any) -> str:
    """Name the settings in which the finished study in `folder` differs from those asked for, comma-separated; "" if
    none.

    Only settings that both program versions have are compared.
    """
    # Both as JSON has them: tuples are lists there, and paths are texts.
    then = open_finished(folder).described["settings"]
    now = json.loads(json.dumps(asdict(asked), default=str))
    differing = []
    for name in now:
        if name in then and then[name] != now[name]:
            differing.append(name)
    return ", ".join(differing)


@ask_once()
def _run(
    study: Study,
    settings: str,
    folder: Path,
    cache_folder: Path,
    device: str,
    quiet: bool,
) -> None:
    """Measure one study by the settings of this name, and write its records, charts, verdicts and study.json into
    `folder`.

    If the same things are unavailable as in the last run, nothing is written.
    """
    asked = _require_settings(study, settings)
    # Tiny numbers of saturated softmaxes slow some CPUs down a lot.
    with (
        flush_denormals(),
        show_progress(f"{study.paper} {study.name}", "steps", quiet=quiet) as progress,
    ):
        context = Context(
            folder,
            cache_folder,
            device,
            progress=lambda _text, done, total: progress(done, total),
        )
        records = _measure(study, asked, context)
    done = Finished(study, {}, records)
    if (folder / "study.json").exists() and open_finished(
        folder
    ).lacking == done.lacking:
        # Nothing is lost by not writing: the finished folder stays valid.
        return
    write_table(folder / "records.parquet", records)
    _write_verdicts(done, folder)
    for name, chart in done.charts.items():
        save(chart, folder / name, formats=("svg", "pdf", "png"))
    # Written last: study.json marks a study as finished.
    described = {
        "study": study.name,
        "paper": study.paper,
        "title": study.title,
        "caption": study.build_caption(settings),
        "settings_name": settings,
        "settings": asdict(asked),
        "claims": describe_claims(study),
        **describe_provenance(),
        "command": f"anisoscope reproduce {study.paper} --only {study.name} --settings {settings}",
    }
    write_json(folder / "study.json", described)


def describe_claims(study: Study) -> list[dict[str, Any]]:
    """Return the fields of a study's claims that are saved with its records, by name, one dict per claim."""
    kept = (
        "name",
        "statement",
        "source",
        "published",
        "primary",
        "identity",
        "floor",
        "because",
    )
    described = []
    for claim in study.claims:
        described.append({name: getattr(claim, name) for name in kept})
    return described


def _measure(study: Study, asked: Any, context: Context) -> pd.DataFrame:
    """Measure a study by its settings (`asked`) and return its records, with rows for what was unavailable."""
    try:
        parts = [study.measure(asked, context)]
    # What cannot be found or downloaded; any other error is a fault and ends the run.
    except (ModelError, CorpusError) as error:
        context.note_unavailable(study.name, error)
        parts = []
    rows = [as_records(pd.DataFrame(context.lacking))] if context.lacking else []
    return pd.concat([*parts, *rows], ignore_index=True)


@dataclass(frozen=True)
class Finished:
    """A study that was run: its `study.json` and its records, ready to be judged and drawn."""

    study: Study
    described: dict[str, Any]
    records: pd.DataFrame

    @property
    def _bare(self) -> bool:
        """Whether the records hold no measurement, only rows on what was unavailable."""
        return bool(self.records["metric"].isin((WITHHELD, STANDS_IN)).all())

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """The verdicts computed from the records; all undecided if nothing could be measured."""
        if not self._bare:
            return self.study.judge(self.records)
        # Several systems are often unavailable for one reason: the network.
        why = "; ".join(dict.fromkeys(self.lacking.values()))
        return [
            make_verdict_without_test(claim, None, "not measured", reason=why)
            for claim in self.study.claims
        ]

    @property
    def compared(self) -> Sequence[Compared]:
        """The published numbers next to ours; empty if nothing could be measured."""
        if self._bare:
            return []
        return self.study.compare(self.records)

    @property
    def charts(self) -> Mapping[str, Any]:
        """The charts drawn from the records, by name; empty if nothing could be measured."""
        if self._bare:
            return {}
        return self.study.draw(self.records)

    @property
    def lacking(self) -> dict[str, str]:
        """{what was unavailable, or read from a stand-in corpus: the reason}."""
        rows = self.records[self.records["metric"].isin((WITHHELD, STANDS_IN))]
        # A model that was measured on another corpus is listed with the name of that one.
        instead = rows["model"] + " (" + rows["corpus"] + " stands in)"
        return dict(
            zip(
                rows["model"].where(rows["metric"] == WITHHELD, instead),
                rows["component"],
                strict=True,
            )
        )


def _write_verdicts(done: Finished, folder: Path) -> Sequence[Verdict]:
    """Judge a finished study, and write verdicts.json and compared.json (published numbers next to ours) into `folder`.

    Returns the verdicts.
    """
    verdicts = done.verdicts
    write_json(folder / "verdicts.json", [asdict(verdict) for verdict in verdicts])
    compared = []
    for one in done.compared:
        # A property, which asdict leaves out.
        compared.append(asdict(one) | {"verdict": one.verdict})
    write_json(folder / COMPARED, compared)
    return verdicts


def open_finished(folder: Path) -> Finished:
    """Open the finished study in a folder. OutputError if it is damaged, or not written by this version."""
    about = folder / "study.json"
    table = folder / "records.parquet"
    try:
        described = rename_described(json.loads(about.read_text("utf-8")))
        # A study that this version lacks gives no element, hence a ValueError.
        (study,) = (
            s
            for s in find_studies()
            if (s.paper, s.name) == (described["paper"], described["study"])
        )
        return Finished(study, described, read_table(table))
    except (ValueError, KeyError, TypeError, OSError) as error:
        cure = "reproduce it again into another --output"
        raise OutputError(
            f"a study of this version in {folder}",
            f"{type(error).__name__}: {error}",
            cure,
        ) from error


def list_reproductions(folder: Path) -> list[Path]:
    """List the folders of finished studies in `folder`: that of one study, of one paper, or of several papers."""
    found = []
    # The folder of a study, its settings, its paper, or all: 0 to 3 levels above study.json.
    for depth in range(4):
        for path in folder.glob("*/" * depth + "study.json"):
            found.append(path.parent)
    return sorted(found, key=lambda path: (path.parent, number_of(path.name)))


def format_verdict(study: Study, verdict: Verdict) -> str:
    """Format a verdict on one line: study, outcome, claim, statistic with interval, n, p and reason."""
    v = verdict
    numbers = "" if v.value is None else f" {v.value:.4g}"
    if not (v.low is None or v.high is None):
        numbers += f" [{v.low:.4g}, {v.high:.4g}]"
    if v.n is not None:
        numbers += f", n = {v.n}"
    if v.p is not None:
        numbers += f", p = {v.p:.2g}"
    subject = f" ({v.subject})" * bool(v.subject)
    reason = f"; {v.reason}" * bool(v.reason)
    return f"{study.name:7s} {v.word.upper():9s} {v.claim}{subject}: {v.statistic}{numbers}{reason}"


def explain_lacking(studies: Iterable[Study], folder: Path) -> dict[str, str]:
    """Return {reason: the names that were unavailable, and in which studies}, for finished studies in `folder`."""
    found: dict[str, tuple[str, dict[str, None], dict[str, None]]] = {}
    for study in studies:
        if not (folder / study.name / "study.json").exists():
            continue
        for name, reason in open_finished(folder / study.name).lacking.items():
            # Reasons name what they are about: without the name, equal ones are counted once.
            _, names, where = found.setdefault(
                reason.replace(name, ""), (reason, {}, {})
            )
            # Dictionaries as sets that keep their order.
            names[name] = where[study.name] = None
    explained = {}
    for reason, names, where in found.values():
        explained[reason] = f"{list_first([*names])} (in {', '.join(where)})"
    return explained
