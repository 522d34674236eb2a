"""Find studies and run them: records, charts and verdicts, each in `<output>/<paper>/<settings>/<study>`."""

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
from anisoscope.errors import CorpusError, MeasureError, ModelError, OutputError, UsageError, suggest_names
from anisoscope.models.hub_memory import ask_once
from anisoscope.models.modes import flush_denormals
from anisoscope.progress import show_progress
from anisoscope.store import as_records, read_table, write_json, write_table
from anisoscope.wording import list_first
from anisoscope_papers.judge import verdict_without_test
from anisoscope_papers.origin import provenance
from anisoscope_papers.study import STANDS_IN, WITHHELD, Compared, Context, Study, Verdict
from anisoscope_papers.study_names import chosen, folder_of, number_of, packages

COMPARED = "compared.json"
"""Beside the verdicts: published numbers and ours, one by one."""
FINISHED = "finished"
"""Settings that look at what was trained, and train nothing."""
EFFICIENCY = 0.4
"""Share of the speed of a plain matrix product that a measurement reaches, about."""


@cache
def found() -> tuple[Study, ...]:
    """Find every study of every paper: `STUDY`, or `STUDIES` if a file holds a tight group."""
    studies: list[Study] = []
    papers = packages()
    for paper, package in papers.items():
        for name in (module.name for module in iter_modules(package.__path__) if module.name != "__main__"):
            content = vars(import_module(f"{package.__name__}.{name}"))
            must = re.match(r"(fig|table|sec)\d", name)  # others may
            declared: tuple[Any, ...] = content.get("STUDIES", (content.get("STUDY"),))
            if declared and all(isinstance(study, Study) for study in declared):
                studies.extend(declared)
            elif declared != (None,) or must or any(isinstance(x, Study) for x in content.values()):
                where = f"STUDY = declare(…) in {paper}/{name}.py"
                raise MeasureError(where, repr(declared), "declare it; see docs/adding.md")
    order = list(papers)
    return tuple(sorted(studies, key=lambda s: (order.index(s.paper), number_of(s.name))))


def choose(paper: str, only: str = "") -> list[Study]:
    """Select the studies of a paper that `only` names (`names.chosen`)."""
    folder_of(paper)
    studies = {study.name: study for study in found() if study.paper == paper}
    return [studies[name] for name in chosen(paper, only)]


def describe(studies: Sequence[Study], settings: str) -> list[str]:
    """Describe what would be measured, and what the settings need from a hub."""
    for study in studies:
        _settings_of(study, settings)
    if settings != "paper":
        return [f"{study.name:8s} {study.title}" for study in studies]
    return list(_costs(studies))


def _costs(studies: Sequence[Study]) -> Iterator[str]:
    """List the lines of a dry run: what each study loads and computes that none before it does, and the sum."""
    known: dict[str, str] = {}
    runs: dict[str, float] = {}
    loaded = disk = 0.0
    unknown: list[str] = []
    pace = speed() * EFFICIENCY * 3600 if any(study.needs for study in studies) else 1.0
    for study in studies:
        yield f"{study.name:8s} {study.title}"
        new = [need for need in study.needs if need.name and need.name not in known]
        for need in new:
            yield f"         {need.name}"
            size = "size unknown" if need.gigabytes is None else _gigabytes(need.gigabytes)
            yield f"           {size}; {need.note}" if need.note else f"           {size}"
        again = dict.fromkeys(known[need.name] for need in study.needs if need.name in known)
        work = {run: cost for need in study.needs for run, cost in need.work.items() if run not in runs}
        load = sum(need.gigabytes or 0.0 for need in new)
        parts = [f"what {', '.join(again)} load{'s' * (len(again) == 1)}"] if again else []
        parts += [f"{_gigabytes(load)} to load"] if new else []
        hours = sum(work.values()) / pace
        if study.needs:
            parts.append(f"about {_hours(hours)}" if work else "nothing more to compute")
            yield f"         {'; '.join(parts)}"
        known |= {need.name: study.name for need in new}
        unknown += [need.name for need in new if need.gigabytes is None]
        runs |= work
        loaded, disk = loaded + load, disk + sum(need.on_disk for need in new)
    if known:
        more = f", and {len(unknown)} of unknown size" if unknown else ""
        hours = sum(runs.values()) / pace
        yield f"in all   {_gigabytes(loaded)} to load{more}; {_gigabytes(disk)} on the disk; about {_hours(hours)} here"
        yield "         what is in the cache of the hub, or at hand as a local copy, is not loaded"


def _gigabytes(x: float) -> str:
    return f"{x:.1f} GB" if x >= 0.05 else "under 0.1 GB"


def _hours(x: float) -> str:
    return f"{x:,.0f} hours" if x >= 10 else f"{x:.1f} hours" if x >= 0.95 else f"{max(60 * x, 1):.0f} minutes"


def speed() -> float:
    """Measure how many 1e12 operations a second this machine does in a plain product of matrices."""
    import torch

    x = torch.randn(768, 768)
    x @ x
    began, done = time.monotonic(), 0
    while time.monotonic() - began < 0.3:
        x @ x
        done += 1
    return done * 2e-12 * 768**3 / (time.monotonic() - began)


def _settings_of(study: Study, name: str) -> Any:
    if name not in study.settings:
        raise UsageError(f"settings of {study.name}", repr(name), suggest_names(name, study.settings))
    return study.settings[name]


def reproduce(
    studies: Iterable[Study], settings: str, output: Path, *, device: str = "cpu", quiet: bool = False
) -> Iterator[str]:
    """Run each study and give its verdicts as lines of text. Finished records are only judged anew, but where something
    could not be had: that is asked for again.
    """
    for study in studies:
        folder = output / study.paper / settings / study.name
        if kept := _as_committed(study, settings, folder, output / "cache"):
            yield f"{study.name}  Nothing of it was trained here: judged from the records in {kept}"
        elif not (folder / "study.json").exists() or finished(folder).lacking:
            _run(study, settings, folder, output / "cache", device, quiet)
        others = "" if kept else _other_settings(folder, _settings_of(study, settings))
        if others:
            yield f"{study.name}  As it was measured with other settings ({others}); to measure it anew remove {folder}"
        for verdict in _concluded(Finished(study, {}, read_table(folder / "records.parquet")), folder):
            yield line(study, verdict)


COMMITTED = Path(__file__).resolve().parents[2] / "results"
"""Records of real runs, which a clone has and an installed package has not."""


def _as_committed(study: Study, settings: str, folder: Path, cache_folder: Path) -> Path | None:
    """Copy the committed records into `folder`, to be judged in place of models that are all unavailable."""
    kept = COMMITTED / study.paper / settings / study.name
    if settings != FINISHED or study.at_hand is None or study.at_hand(_settings_of(study, settings), cache_folder):
        return None
    if (folder / "study.json").exists() or not (kept / "study.json").exists():
        return None
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    return kept


def _other_settings(folder: Path, asked: Any) -> str:
    """Names of the settings that a study in a folder was not measured with, of those that this version
    and the one that measured it both have.
    """
    then, now = finished(folder).described["settings"], json.loads(json.dumps(asdict(asked), default=str))
    return ", ".join(name for name in now if name in then and then[name] != now[name])


@ask_once()
def _run(study: Study, settings: str, folder: Path, cache_folder: Path, device: str, quiet: bool) -> None:
    asked = _settings_of(study, settings)
    with flush_denormals(), show_progress(f"{study.paper} {study.name}", "steps", quiet=quiet) as progress:
        context = Context(folder, cache_folder, device, progress=lambda _text, done, total: progress(done, total))
        records = _measured(study, asked, context)
    done = Finished(study, {}, records)
    if (folder / "study.json").exists() and finished(folder).lacking == done.lacking:
        return  # what could not be had then cannot be had now
    write_table(folder / "records.parquet", records)
    _concluded(done, folder)
    for name, chart in done.charts.items():
        save(chart, folder / name, formats=("svg", "pdf", "png"))
    described = {
        "study": study.name,
        "paper": study.paper,
        "title": study.title,
        "caption": study.caption_under(settings),
        "settings_name": settings,
        "settings": asdict(asked),
        "claims": described_claims(study),
        **provenance(),
        "command": f"anisoscope reproduce {study.paper} --only {study.name} --settings {settings}",
    }
    write_json(folder / "study.json", described)


def described_claims(study: Study) -> list[dict[str, Any]]:
    """Return what is saved of a study's claims beside its records."""
    kept = ("name", "statement", "source", "published", "primary", "identity", "floor", "because")
    return [{name: getattr(claim, name) for name in kept} for claim in study.claims]


def _measured(study: Study, asked: Any, context: Context) -> pd.DataFrame:
    """Measure the records of a study, with rows for what was unavailable."""
    try:
        parts = [study.measure(asked, context)]
    except (ModelError, CorpusError) as error:
        context.withhold(study.name, error)
        parts = []
    rows = [as_records(pd.DataFrame(context.lacking))] if context.lacking else []
    return pd.concat([*parts, *rows], ignore_index=True)


@dataclass(frozen=True)
class Finished:
    """A study that was run: its `study.json` and its records, to judge and to draw;"""

    study: Study
    described: dict[str, Any]
    records: pd.DataFrame

    @property
    def _bare(self) -> bool:
        return bool(self.records["metric"].isin((WITHHELD, STANDS_IN)).all())

    @property
    def verdicts(self) -> Sequence[Verdict]:
        if not self._bare:
            return self.study.judge(self.records)
        why = "; ".join(dict.fromkeys(self.lacking.values()))
        return [verdict_without_test(claim, None, "not measured", reason=why) for claim in self.study.claims]

    @property
    def compared(self) -> Sequence[Compared]:
        return [] if self._bare else self.study.compare(self.records)

    @property
    def charts(self) -> Mapping[str, Any]:
        return {} if self._bare else self.study.draw(self.records)

    @property
    def lacking(self) -> dict[str, str]:
        """What the records are without, or have from another corpus, with the reasons."""
        rows = self.records[self.records["metric"].isin((WITHHELD, STANDS_IN))]
        instead = rows["model"] + " (" + rows["corpus"] + " stands in)"
        return dict(zip(rows["model"].where(rows["metric"] == WITHHELD, instead), rows["component"], strict=True))


def _concluded(done: Finished, folder: Path) -> Sequence[Verdict]:
    """Judge a study, and write verdicts and published numbers beside its records."""
    verdicts = done.verdicts
    write_json(folder / "verdicts.json", [asdict(v) for v in verdicts])
    write_json(folder / COMPARED, [asdict(c) | {"verdict": c.verdict} for c in done.compared])
    return verdicts


def finished(folder: Path) -> Finished:
    """Open the study in a folder; OutputError where it is damaged, or is none of ours."""
    about, table = folder / "study.json", folder / "records.parquet"
    try:
        described = json.loads(about.read_text("utf-8"))
        (study,) = (s for s in found() if (s.paper, s.name) == (described["paper"], described["study"]))
        return Finished(study, described, read_table(table))
    except (ValueError, KeyError, TypeError, OSError) as error:
        cure = "reproduce it again into another --output"
        raise OutputError(f"a study of this version in {folder}", f"{type(error).__name__}: {error}", cure) from error


def reproductions(folder: Path) -> list[Path]:
    """List folders of finished studies in `folder`: a study, settings, a paper, or all of them."""
    files = (path for depth in range(4) for path in folder.glob("*/" * depth + "study.json"))
    return sorted((path.parent for path in files), key=lambda path: (path.parent, number_of(path.name)))


def line(study: Study, verdict: Verdict) -> str:
    """Format one verdict on one line: study, outcome, claim, statistic with interval, n and reason."""
    v = verdict
    numbers = "" if v.value is None else f" {v.value:.4g}"
    numbers += "" if v.low is None or v.high is None else f" [{v.low:.4g}, {v.high:.4g}]"
    numbers += "" if v.n is None else f", n = {v.n}"
    numbers += "" if v.p is None else f", p = {v.p:.2g}"
    subject, reason = f" ({v.subject})" * bool(v.subject), f" · {v.reason}" * bool(v.reason)
    return f"{study.name:7s} {v.word.upper():9s} {v.claim}{subject}: {v.statistic}{numbers}{reason}"


def without(studies: Iterable[Study], folder: Path) -> dict[str, str]:
    """Return {reason: what some finished studies in `folder` lack for it, and which these are};"""
    found: dict[str, tuple[str, dict[str, None], dict[str, None]]] = {}
    for study in (study for study in studies if (folder / study.name / "study.json").exists()):
        for name, reason in finished(folder / study.name).lacking.items():
            _, names, where = found.setdefault(reason.replace(name, ""), (reason, {}, {}))
            names[name] = where[study.name] = None
    return {reason: f"{list_first([*names])} (in {', '.join(where)})" for reason, names, where in found.values()}
