"""Find studies and run them: records, charts and verdicts, each in `<output>/<paper>/<settings>/<study>`."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pandas as pd

from anisoscope.charts.export import save
from anisoscope.errors import CorpusError, MeasureError, ModelError, OutputError, UsageError, near_matches
from anisoscope.models.hub_memory import asked_once
from anisoscope.models.modes import flushed
from anisoscope.progress import shown
from anisoscope.provenance import provenance
from anisoscope.store import as_records, write_atomic, write_json
from anisoscope.studies import needs
from anisoscope.studies.names import PAPERS, number_of
from anisoscope.studies.study import Compared, Context, Study, Verdict
from anisoscope.studies.withheld import bare, drawn, judged, lacking

COMPARED = "compared.json"
"""Beside the verdicts: published numbers and ours, one by one."""


@cache
def found() -> tuple[Study, ...]:
    """Every study on disk: `STUDY`, or `STUDIES` where a file holds a tight group."""
    studies: list[Study] = []
    for paper in PAPERS:
        package = import_module(f"anisoscope.studies.{paper}")
        for name in (module.name for module in iter_modules(package.__path__) if module.name != "__main__"):
            content = vars(import_module(f"{package.__name__}.{name}"))
            must = re.match(r"(fig|table|sec)\d", name)  # others may
            declared: tuple[Any, ...] = content.get("STUDIES", (content.get("STUDY"),))
            if declared and all(isinstance(study, Study) for study in declared):
                studies.extend(declared)
            elif declared != (None,) or must or any(isinstance(x, Study) for x in content.values()):
                where = f"STUDY = Study(…) in studies/{paper}/{name}.py"
                raise MeasureError(where, repr(declared), "declare it; see docs/adding.md")
    return tuple(sorted(studies, key=lambda s: (PAPERS.index(s.paper), number_of(s.name))))


def choose(paper: str, only: str = "") -> list[Study]:
    """The studies of a paper that `only` names: `fig1,fig3-5,table2` (fig3: fig3a, fig3b …); all where it is empty."""
    if paper not in PAPERS:
        raise UsageError("a paper", repr(paper), near_matches(paper, PAPERS))
    studies = {study.name: study for study in found() if study.paper == paper}
    chosen: dict[str, Study] = {} if only else studies
    for part in filter(None, (part.strip() for part in only.split(","))):
        span = re.fullmatch(r"([a-z]+)(\d+)-(?:\1)?(\d+)", part)
        numbers = range(int(span[2]), int(span[3]) + 1) if span else ()
        wanted = [f"{span[1]}{number}" for number in numbers] if span else [part]
        named = {name: study for name, study in studies.items() if re.sub(r"(?<=\d)[a-z]$", "", name) in wanted}
        named = {part: studies[part]} if part in studies else named
        if not named:
            raise UsageError(f"figures or tables of {paper}", repr(part), near_matches(part, studies))
        chosen |= named
    return list(chosen.values())


def describe(studies: Sequence[Study], settings: str) -> list[str]:
    """What would be measured, and what the settings need from a hub."""
    for study in studies:
        _settings_of(study, settings)
    if settings != "paper":
        return [f"{study.name:8s} {study.title}" for study in studies]
    return list(needs.describe(studies))


def _settings_of(study: Study, name: str) -> Any:
    if name not in study.settings:
        raise UsageError(f"settings of {study.name}", repr(name), near_matches(name, study.settings))
    return study.settings[name]


def reproduce(
    studies: Iterable[Study], settings: str, output: Path, *, device: str = "cpu", quiet: bool = False
) -> Iterator[str]:
    """Run each study and give its verdicts as lines of text. Finished records are only judged anew, but where something
    could not be had: that is asked for again.
    """
    for study in studies:
        folder = output / study.paper / settings / study.name
        if not (folder / "study.json").exists() or finished(folder).lacking:
            _run(study, settings, folder, output / "cache", device, quiet)
        for verdict in _concluded(study, folder, pd.read_parquet(folder / "records.parquet")):
            yield line(study, verdict)


@asked_once()
def _run(study: Study, settings: str, folder: Path, cache_folder: Path, device: str, quiet: bool) -> None:
    chosen = _settings_of(study, settings)
    with flushed(), shown(f"{study.paper} {study.name}", "steps", quiet=quiet) as progress:
        context = Context(folder, cache_folder, device, progress=lambda _text, done, total: progress(done, total))
        records = _measured(study, chosen, context)
    if (folder / "study.json").exists() and finished(folder).lacking == lacking(records):
        return  # what could not be had then cannot be had now
    write_atomic(folder / "records.parquet", lambda path: records.to_parquet(path, index=False))
    _concluded(study, folder, records)
    for name, chart in drawn(study, records).items():
        save(chart, folder / name, formats=("svg", "pdf", "png"))
    described = {
        "study": study.name,
        "paper": study.paper,
        "title": study.title,
        "caption": study.caption_under(settings),
        "settings_name": settings,
        "settings": asdict(chosen),
        "claims": described_claims(study),
        **provenance(),
        "command": f"anisoscope reproduce {study.paper} --only {study.name} --settings {settings}",
    }
    write_json(folder / "study.json", described)


def described_claims(study: Study) -> list[dict[str, Any]]:
    """What is kept of a study's claims beside its records."""
    kept = ("name", "statement", "source", "published", "primary", "identity", "floor", "because")
    return [{name: getattr(claim, name) for name in kept} for claim in study.claims]


def _measured(study: Study, chosen: Any, context: Context) -> pd.DataFrame:
    """Records of a study, with rows of what could not be had."""
    try:
        parts = [study.measure(chosen, context)]
    except (ModelError, CorpusError) as error:
        context.withhold(study.name, error)
        parts = []
    rows = [as_records(pd.DataFrame(context.lacking))] if context.lacking else []
    return pd.concat([*parts, *rows], ignore_index=True)


def _concluded(study: Study, folder: Path, records: pd.DataFrame) -> list[Verdict]:
    """The verdicts on the records of a study, written beside them, as are published numbers and ours."""
    verdicts = list(judged(study, records))
    write_json(folder / "verdicts.json", [asdict(v) for v in verdicts])
    compared = [] if bare(records) else study.compare(records)
    write_json(folder / COMPARED, [asdict(c) | {"verdict": c.verdict} for c in compared])
    return verdicts


@dataclass(frozen=True)
class Finished:
    """A study that was run: what `study.json` says of it, and its records, to judge and to draw."""

    study: Study
    described: dict[str, Any]
    records: pd.DataFrame

    @property
    def verdicts(self) -> Sequence[Verdict]:
        return judged(self.study, self.records)

    @property
    def compared(self) -> Sequence[Compared]:
        return [] if bare(self.records) else self.study.compare(self.records)

    @property
    def charts(self) -> Mapping[str, Any]:
        return drawn(self.study, self.records)

    @property
    def lacking(self) -> dict[str, str]:
        return lacking(self.records)


def finished(folder: Path) -> Finished:
    """The study in a folder. OutputError where it is damaged, or is none of ours."""
    about, table = folder / "study.json", folder / "records.parquet"
    try:
        described = json.loads(about.read_text("utf-8"))
        (study,) = (s for s in found() if (s.paper, s.name) == (described["paper"], described["study"]))
        return Finished(study, described, pd.read_parquet(table))
    except (ValueError, KeyError, TypeError, OSError) as error:
        cure = "reproduce it again into another --output"
        raise OutputError(f"a study of this version in {folder}", f"{type(error).__name__}: {error}", cure) from error


def reproductions(folder: Path) -> list[Path]:
    """Folders of finished studies in `folder`: a study, settings, a paper, or all of them."""
    files = (path for depth in range(4) for path in folder.glob("*/" * depth + "study.json"))
    return sorted((path.parent for path in files), key=lambda path: (path.parent, number_of(path.name)))


def line(study: Study, verdict: Verdict) -> str:
    """One verdict on one line: study, outcome, claim, statistic with interval, n and reason."""
    v = verdict
    numbers = "" if v.value is None else f" {v.value:.4g}"
    numbers += "" if v.low is None or v.high is None else f" [{v.low:.4g}, {v.high:.4g}]"
    numbers += "" if v.n is None else f", n = {v.n}"
    numbers += "" if v.p is None else f", p = {v.p:.2g}"
    subject, reason = f" ({v.subject})" * bool(v.subject), f" · {v.reason}" * bool(v.reason)
    return f"{study.name:7s} {v.outcome.upper():9s} {v.claim}{subject}: {v.statistic}{numbers}{reason}"


def without(studies: Iterable[Study], folder: Path) -> dict[str, str]:
    """{reason: what some finished studies in `folder` are without for it, and which these are}."""
    found: dict[str, dict[str, list[str]]] = {}
    reasons: dict[str, str] = {}
    for study in (study for study in studies if (folder / study.name / "study.json").exists()):
        for name, reason in finished(folder / study.name).lacking.items():
            found.setdefault(reason, {}).setdefault(name, []).append(study.name)
    for reason, names in found.items():
        few = list(names)[:3] + [f"and {len(names) - 3} more"] * (len(names) > 3)
        where = dict.fromkeys(study for of_name in names.values() for study in of_name)
        reasons[reason] = f"{', '.join(few)} (in {', '.join(where)})"
    return reasons
