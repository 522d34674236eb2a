"""Publish a run as a data set on the Hugging Face hub: a folder with records, card and badge, and its upload."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from anisoscope.errors import OutputError, UsageError
from anisoscope.extras import has_extra, require_extra
from anisoscope.models.hub_faults import classify_fault
from anisoscope.report.card import draw_badge, name_model, write_dataset_card
from anisoscope.runs.differences import NAME as REPLICATES
from anisoscope.store import check_output, read_run, read_table, write_json, write_table

LOCAL_PATH = re.compile(
    r"(?<![\w:/.~…])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\"=,]+[/\\])+(?=[^\s/\\'\"=,])"
)
"""The folders of an absolute path inside a text: what is published names no folder of this machine."""
REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


@dataclass(frozen=True)
class Publication:
    """A folder that is ready to be uploaded, with its files and their sizes in bytes."""

    folder: Path
    files: dict[str, int]


def check_repository(name: str) -> str:
    """Return a data set's name on the hub without address; UsageError if it is not OWNER/NAME."""
    name = (
        name.removeprefix("https://huggingface.co/")
        .removeprefix("datasets/")
        .rstrip("/")
    )
    # 96 is the most that the hub allows.
    if not REPOSITORY.fullmatch(name) or len(name) > 96:
        raise UsageError(
            "a data set as OWNER/NAME",
            repr(name),
            "the owner is you or an organisation of yours",
        )
    return name


def write_publication(
    run: Path, folder: Path, repository: str, licence: str = ""
) -> Publication:
    """Write the publishable part of a run or a series into a new folder.

    Paths of this machine are removed from every text. The sample of vectors is left out, since vectors can reveal the
    texts that they came from. OutputError if the run is not finished, or the folder holds other files.
    """
    if not run.is_dir():
        raise OutputError(
            "a run folder",
            f"{run}, which is not one",
            "name a folder that anisoscope measure wrote",
        )
    # Refuses a folder that holds no finished run.
    read_run(run)
    _clear(folder)
    # The folder itself; of a series also that of each checkpoint.
    parts = [Path()]
    if (run / "series.json").exists():
        described = json.loads((run / "series.json").read_text("utf-8"))
        write_json(folder / "series.json", hide_folders(described))
        parts += [Path(row["folder"]) for row in described["checkpoints"]]
    for part in parts:
        _copy_run(run / part, folder / part)
    records, manifest = read_run(folder)
    has_page = has_extra("report")
    if has_page:
        # Drawn again instead of copied: the page of the run names folders of this
        # machine.
        from anisoscope.report import build_page

        build_page(folder)
    (folder / "badge.svg").write_text(draw_badge(records), encoding="utf-8")
    card = write_dataset_card(
        records, manifest, repository, licence=licence, page=has_page
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
    return Publication(folder, sizes)


def _clear(folder: Path) -> None:
    """Make a new folder in place of an earlier publication; OutputError if it holds files of another kind."""
    check_output(folder)
    # A card marks a folder as a publication of ours, which may be replaced.
    if (
        folder.is_dir()
        and any(folder.iterdir())
        and not (folder / "README.md").is_file()
    ):
        raise OutputError(
            f"{folder} to be empty",
            "files that anisoscope push did not write",
            "choose another --output",
        )
    if folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def _copy_run(source: Path, target: Path) -> None:
    """Copy the records, replicates and manifest of a run, with paths of this machine removed."""
    target.mkdir(parents=True, exist_ok=True)
    write_table(
        target / "records.parquet",
        _hide_in_records(read_table(source / "records.parquet")),
    )
    if (source / "manifest.json").exists():
        manifest = json.loads((source / "manifest.json").read_text("utf-8"))
        write_json(target / "manifest.json", hide_folders(manifest))
    if (source / REPLICATES).exists():
        shutil.copyfile(source / REPLICATES, target / REPLICATES)


def _hide_in_records(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records with local folders removed from the names of model and corpus."""
    for name in ("model", "corpus"):
        # Tables of old runs may lack one of these columns.
        if name in records:
            # A name for each run, repeated in thousands of rows: replaced value by value.
            known = {}
            for value in records[name].dropna().unique():
                known[value] = hide_folders(value)
            records = records.assign(**{name: records[name].replace(known)})
    return records


def hide_folders(value: Any) -> Any:
    """Replace the folders of absolute paths by `…/`, in a text or in every text of nested lists and dictionaries."""
    if isinstance(value, str):
        path = PurePath(value)
        # A whole path may hold spaces; inside a sentence they end it.
        if path.is_absolute() and len(path.parts) > 2:
            return f"…/{path.name}"
        return LOCAL_PATH.sub("…/", value)
    if isinstance(value, dict):
        return {key: hide_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hide_folders(inner) for inner in value]
    return value


def push(
    publication: Publication,
    repository: str,
    *,
    create: bool = False,
    private: bool = False,
) -> str:
    """Upload a publication as one commit to a data set on the hub, and return the data set's address.

    create, private  create the data set if it does not exist, visible to its owner only

    OutputError without a token, if the data set does not exist or may not be written, if it is to be private and is
    public already, and if the hub fails.
    """
    require_extra("models", "to push to the hub")
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if get_token() is None:
        raise OutputError(
            "a token of the hub that may write",
            "none",
            "run `hf auth login`, or set HF_TOKEN",
        )
    # The caller shows that something goes on.
    disable_progress_bars()
    hub = HfApi()

    def create_data_set() -> None:
        """Create the data set, unless it exists."""
        # None leaves it to the owner's own default.
        visibility = private or None
        hub.create_repo(
            repository, repo_type="dataset", private=visibility, exist_ok=True
        )

    # Without --create a mistyped name would become a new data set.
    if create:
        _call_hub(create_data_set, repository)
    # One that exists keeps its visibility, whatever was asked for.
    if (
        private
        and not _call_hub(lambda: hub.dataset_info(repository), repository).private
    ):
        cure = "make it private in its settings on the hub, name another one, or leave --private out"
        raise OutputError(
            f"the data set {repository} to be private", "a public one", cure
        )
    _, manifest = read_run(publication.folder)
    title = f"Geometry of {name_model(manifest)}, measured with Anisoscope"

    def upload() -> None:
        """Upload the folder as one commit."""
        hub.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=publication.folder,
            commit_message=title,
        )

    _call_hub(upload, repository)
    return f"{hub.endpoint}/datasets/{repository}"


def _call_hub(call: Callable[[], Any], repository: str) -> Any:
    """Call the hub and return its answer; turn any exception into an OutputError with advice."""
    try:
        return call()
    # The hub's library lets errors of every kind through.
    except Exception as error:
        fault = classify_fault(error)
        got = fault.got
        cure = fault.cure
        # The hub says "not found" for private data sets too.
        if fault.absent:
            cure = "--create makes it; a private one needs a token that may read it"
        elif fault.denied:
            got, cure = (
                got.replace("read", "write"),
                "give the token the right to write to it: hf.co/settings/tokens",
            )
        raise OutputError(
            f"the data set {repository} to take the run", got, cure
        ) from error
