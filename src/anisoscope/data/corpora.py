"""Find corpora by name: the table of named corpora, and how a name leads to its data."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from anisoscope.data.local import (
    TEXT_ENDINGS,
    find_copy,
    find_part_of_copy,
    find_path,
    list_local_corpora,
)
from anisoscope.data.splitting import check_rule
from anisoscope.errors import CorpusError, UsageError, suggest_names
from anisoscope.extras import require_extra
from anisoscope.models.hub import describe_folder_of
from anisoscope.options import INPUT, Text, declare_settings, option, select_fields
from anisoscope.registry import list_entries_of
from anisoscope.renamed import rename_typed_corpus


class NamedCorpus(NamedTuple):
    """A corpus with its own name: made by a function (`maker`, as `module:function`), or a data set of the hub.

    hub        `id[:config]` of the data set, of which `split` is read
    cure       what to do if it cannot be downloaded
    stand_in   the corpus that a study reads instead
    gigabytes  approximate size of the split
    millions   about how many million tokens, seconds of speech or images it has, to estimate the time of a study
    """

    modality: str
    description: str
    maker: str = ""
    hub: str = ""
    split: str | None = None
    cure: str = ""
    stand_in: str = ""
    licence: str = ""
    gigabytes: float = 0.0
    millions: float = 0.0

    def make(self, *arguments: Any) -> Any:
        """Make the corpus: call its `maker` with these arguments, and return the result.

        The module of the function is imported only now.
        """
        return _import_function(self.maker)(*arguments)


def _import_function(name: str) -> Any:
    """Import and return the function named `module:function`."""
    module, function = name.split(":")
    return getattr(import_module(module), function)


# As a table in a file of its own: it is long, and read by people too.
_TABLE = Path(__file__).with_suffix(".toml").read_text("utf-8")
CORPORA = {name: NamedCorpus(**row) for name, row in tomllib.loads(_TABLE).items()}
"""Those that come with this package; `named_corpora` has those of other packages too."""

OPENERS = {
    "text": ("anisoscope.data.text:open_text", "a corpus: a path"),
    "image": (
        "anisoscope.data.images:open_images",
        "an image corpus: a folder, a manifest",
    ),
    "speech": (
        "anisoscope.data.speech:open_speech",
        "a speech corpus: a folder, a manifest",
    ),
    "labelled": (
        "anisoscope.data.opening:open_labelled",
        "a labelled corpus: a table, a folder of them",
    ),
}
"""The function that opens the corpora of each modality, and what they may be other than a preset or a hub data set."""

EXTRA_OF = {"image": "models", "speech": "speech"}
"""What reading a modality needs beyond the base."""

OFFLINE = {"image": "builtin:digits", "labelled": "synthetic"}
"""A corpus that needs no network, by modality; for text it is the documentation of Python."""

# What chooses a part of a hub data set, and means nothing for a file or a corpus that a
# function makes.
PARTS = ("split", "config", "revision")
# `owner/name:config@revision`; some old data sets have no owner (`imdb`).
_HUB_ID = re.compile(
    r"(?P<id>[\w.-]+(/[\w.-]+)?)(:(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?"
)


def open_corpus(name: str, *, modality: str | None = None, **options: Any) -> Any:
    """Open the corpus `name` with the reader for its modality (text, image, speech, labelled), and return it.

    modality   used unless the named corpus has its own; None: text
    options    fields of `CorpusOptions`; for a labelled corpus those of `data.opening.open_labelled`

    UsageError for an unknown modality, ExtraError if packages for it are missing.
    """
    name = rename_typed_corpus(name)
    known = named_corpora()
    # A preset says itself what it holds.
    if name in known:
        own = known[name].modality
        # texts with labels can be read as text alone
        if modality is None or own != "labelled":
            modality = own
    modality = modality or "text"
    if modality not in OPENERS:
        raise UsageError(f"a modality out of {', '.join(OPENERS)}", repr(modality))
    if modality in EXTRA_OF:
        require_extra(EXTRA_OF[modality], f"to read {modality} ({name})")
    return _import_function(OPENERS[modality][0])(name, **options)


def named_corpora() -> dict[str, NamedCorpus]:
    """Return the named corpora: those of this package, then those that other packages register."""
    return list_entries_of("corpora")


def list_corpora() -> dict[str, NamedCorpus]:
    """Return the named corpora, and those found under $ANISOSCOPE_DATA."""
    found = dict(named_corpora())
    # Presets come first in lists, then what is found on this machine.
    for name, (modality, path) in list_local_corpora().items():
        kind = "folder" if path.is_dir() else "file"
        found[name] = NamedCorpus(modality, f"{kind} of $ANISOSCOPE_DATA")
    return found


@dataclass(frozen=True)
class CorpusOptions:
    """How a corpus is read, apart from its name.

    split, config, revision   of a hub data set (None: the preset's; else validation, test or train)
    column     of text in a table, of paths in a manifest, of clips or images in a hub data set (None: guessed)
    limit      read the first units (documents, speakers or clips, images) only
    skip_bad   leave out what cannot be read, and count it, instead of raising; clips and images are then decoded
               at once, not only their headers checked
    documents  what a document is in a text file: `file`, `blank-line`, `line`, `tokens:N`, or `auto`
               (`data.splitting`); for tables and hub data sets, whose rows are documents, only `tokens:N`
    """

    split: str | None = None
    column: str | None = None
    config: str | None = None
    revision: str | None = None
    limit: int | None = None
    skip_bad: bool = False
    documents: str = "auto"

    def __post_init__(self) -> None:
        """Check the limit and the rule for documents. UsageError if one is invalid."""
        if self.limit is not None and self.limit < 1:
            raise UsageError(
                "a limit of at least 1 unit",
                str(self.limit),
                "raise --limit, or leave it out",
            )
        # At once, not when the text is read, which may be after a download.
        check_rule(self.documents)

    def refuse(self, name: str, *options: str) -> None:
        """Raise UsageError if an option was given that this kind of corpus does not have.

        name      of the corpus, for the error
        options   names of the options that it does not have
        """
        given = [
            f"--{option}" for option in options if getattr(self, option) is not None
        ]
        if given:
            listed = ", ".join(given)
            raise UsageError(
                f"no {listed} with this kind of corpus",
                f"{listed} with {name}",
                f"leave {listed} out",
            )


@declare_settings
class Columns:
    """Names of the columns of a table of labelled texts, by their role; None means guessed."""

    text_column: Annotated[
        Text | None,
        option(
            "column of the text in a table; default: guessed, and so is a column of "
            "second texts. If you name only this column, no second text is read",
            INPUT,
        ),
    ] = None
    second_column: Annotated[
        Text | None, option("column of the second text, in pairs of texts", INPUT)
    ] = None
    label_column: Annotated[
        Text | None, option("column of the class; default: guessed", INPUT)
    ] = None
    rationale_column: Annotated[
        Text | None,
        option(
            "column that says of each word if people marked it as a reason for the class",
            INPUT,
        ),
    ] = None
    split_column: Annotated[
        Text | None,
        option(
            "column that names the split of each row: train, validation or test", INPUT
        ),
    ] = None

    @property
    def by_role(self) -> dict[str, str] | None:
        """Return {role: column} of the columns that were named; None if none was."""
        named = {}
        for name, column in select_fields(self, Columns).items():
            if column:
                named[name.removesuffix("_column")] = column
        return named or None

    @staticmethod
    def as_fields(by_role: Mapping[str, str] | None) -> dict[str, Any]:
        """Turn {role: column} into keyword arguments of this class."""
        return {f"{role}_column": column for role, column in (by_role or {}).items()}


@dataclass(frozen=True)
class HubPart:
    """A part of a hub data set that a corpus' name stands for. None means the data set's own default."""

    name: str
    modality: str
    id: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    cure: str = ""

    @property
    def suggestion(self) -> str:
        """Say what to do if there is no such data set: the preset's cure, what lies beside it, or similar names."""
        # The name may be a mistyped path: then what lies in that folder helps more than
        # names of corpora.
        return (
            self.cure
            or describe_folder_of(self.id)
            or _suggest(self.name, self.modality)
        )


def resolve_corpus(
    name: str, modality: str, options: CorpusOptions
) -> NamedCorpus | Path | HubPart:
    """Find what a corpus' name stands for. CorpusError if it is nothing known.

    Tried in this order: a corpus that a function makes, the local copy of a preset's data set, that data set on the
    hub, a path, a path under $ANISOSCOPE_DATA.

    name       the corpus, as the user wrote it
    modality   what the model reads (text, speech, image)
    options    how the corpus is to be read
    """
    parts = _parse_hub_name(name)
    # the whole name first: names of presets may hold a colon themselves, which begins no configuration then
    row = _find_preset(name, modality)
    if row is not None:
        parts = _HubName(name)
    else:
        row = _find_preset(parts.id, modality)
    if row is None:
        return _resolve_unknown(name, parts, modality, options)
    if row.maker:
        options.refuse(name, *PARTS, "column")
        return row
    hub_id, _, own_config = row.hub.partition(":")
    split = options.split or row.split
    # a name with a configuration or a revision asks for what the local copy may not be
    if name == parts.id:
        copy = find_copy(name)
        if copy:
            # A copy on the disk is of one configuration and one revision, which cannot
            # be chosen any more.
            options.refuse(name, "config", "revision")
            return find_part_of_copy(copy, modality, split, own_config)
    _refuse_given_twice(name, parts, options)
    # What the user asked for goes before what the preset has.
    config = options.config or parts.config or own_config
    revision = options.revision or parts.revision
    # An empty text stands for no configuration in the table of presets.
    return HubPart(name, modality, hub_id, config or None, split, revision, row.cure)


class _HubName(NamedTuple):
    """A name split like one of the hub, `id:config@revision`; `is_valid` says whether the hub allows it."""

    id: str
    config: str | None = None
    revision: str | None = None
    is_valid: bool = True


def _parse_hub_name(name: str) -> _HubName:
    """Split a name `id:config@revision` into its parts; if the hub allows no such name, all of it is the id."""
    match = _HUB_ID.fullmatch(name)
    if match is None:
        return _HubName(name, is_valid=False)
    return _HubName(match["id"], match["config"], match["revision"])


def _resolve_unknown(
    name: str, parts: _HubName, modality: str, options: CorpusOptions
) -> Path | HubPart:
    """Find the path or hub data set that a name stands for, if it is not that of a preset. CorpusError if neither.

    name       the corpus, as the user wrote it
    parts      the name split like one of the hub
    modality   what the model reads (text, speech, image)
    options    how the corpus is to be read
    """
    # A file or folder here goes before a data set of the hub that has the same name.
    path = find_path(name)
    if path is not None:
        options.refuse(name, *PARTS)
        return path
    # Endings, `builtin:` and a dot at the beginning are of no data set on the hub.
    is_path = (
        name.endswith(TEXT_ENDINGS)
        or name.startswith(("builtin:", "."))
        or not parts.is_valid
    )
    # a bare word for clips or images is taken for a slip, and similar names are suggested
    is_bare = modality != "text" and "/" not in parts.id
    if is_path or is_bare:
        expected = f"{OPENERS[modality][1]}, a built-in name or a hub data set"
        raise CorpusError(
            expected, f"{name!r}, which does not exist", _suggest(name, modality)
        )
    _refuse_given_twice(name, parts, options)
    config = options.config or parts.config
    return HubPart(
        name,
        modality,
        parts.id,
        config or None,
        options.split,
        options.revision or parts.revision,
    )


def _find_preset(name: str, modality: str) -> NamedCorpus | None:
    """Return the named corpus (a preset) of this name and modality; None if there is none."""
    # A preset of another modality does not count: for this one the name may be that of
    # a file.
    row = named_corpora().get(name)
    if row is None or row.modality != modality:
        return None
    return row


def _refuse_given_twice(name: str, parts: _HubName, options: CorpusOptions) -> None:
    """Raise UsageError if config or revision are in the name and also given as an option, and differ.

    name      the corpus, as the user wrote it
    parts     the name split like one of the hub
    options   how the corpus is to be read
    """
    for part in ("config", "revision"):
        value = getattr(options, part)
        # The same value given twice is no contradiction.
        if value and getattr(parts, part) not in (None, value):
            raise UsageError(
                f"one {part}", f"{name} and {part} {value}", "give it once"
            )


def _suggest(name: str, modality: str) -> str:
    """Suggest names similar to an unknown one, and say if $ANISOSCOPE_DATA is not set."""
    known = [key for key, row in list_corpora().items() if row.modality == modality]
    suggestion = suggest_names(name, known)
    if not os.environ.get("ANISOSCOPE_DATA"):
        suggestion += " (ANISOSCOPE_DATA, a folder of corpora, is not set)"
    return suggestion
