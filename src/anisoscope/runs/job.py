"""Settings of a job: a model on a corpus, or the classes of a classifier.

The command line reads its options from these classes, so this module imports nothing heavy.
"""

from collections.abc import Callable
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from anisoscope import renamed
from anisoscope.axes import At
from anisoscope.data.corpora import Columns, named_corpora
from anisoscope.data.splitting import check_rule
from anisoscope.errors import UsageError
from anisoscope.measure.settings import Settings
from anisoscope.options import (
    INPUT,
    MACHINE,
    OUTPUT,
    PYTHON_ONLY,
    WHAT,
    CorpusName,
    Device,
    FilePath,
    Text,
    Whole,
    declare_settings,
    option,
    split_names,
)
from anisoscope.provenance import hash_code_used, is_tracked, json_roundtrip
from anisoscope.provenance.sources import unwrap

if TYPE_CHECKING:
    from anisoscope.batch import BatchPlan
    from anisoscope.models.load import Subject

NOT_IN_IDENTITY = ("device", "device_map", "trust_remote_code", "keep", "no_state")
"""Fields of a job that do not change the numbers."""


def read_shard(given: Any) -> Any:
    """Parse a shard: `2/4`, the second of four, becomes (1, 4). A value that is not text is returned unchanged.

    UsageError unless it has the form I/N with 1 ≤ I ≤ N.
    """
    # The command line hands over the words of an option as a list.
    text = given[0] if isinstance(given, list) and len(given) == 1 else given
    if not isinstance(text, str):
        return given
    try:
        part, parts = (int(number) for number in text.split("/"))
    except ValueError:
        part, parts = 0, 0
    if not 1 <= part <= parts:
        raise UsageError(
            "--shard I/N with 1 ≤ I ≤ N",
            repr(text),
            "the second of four shards is --shard 2/4",
        )
    # Users count from 1, indices of batches from 0.
    return part - 1, parts


@declare_settings
class ModelAndCorpus:
    """The model and the corpus to measure. An empty corpus name means the built-in corpus for the model."""

    model: Annotated[
        Text,
        option(
            "hub id (with @revision), folder, file of weights, preset, builtin:…, module:factory; or a series of "
            "checkpoints: pattern such as step-{0..4} or step-{0,20,...,2000}, folder of step-* or checkpoint-*, or a "
            "text file that lists them",
            INPUT,
        ),
    ] = field(default="builtin:minilm", kw_only=False)
    corpus: Annotated[
        CorpusName,
        option(
            "what the model reads: built-in name, hub data set, file or folder; "
            "default: the built-in corpus for the model",
            INPUT,
            "-c",
        ),
    ] = ""


@declare_settings
class LoadOptions:
    """How a model is loaded. The fields are keyword arguments of `models.load.load`."""

    untrained: Annotated[
        bool,
        option(
            "replace the weights by the architecture's own random initialisation", INPUT
        ),
    ] = False
    tower: Annotated[
        Literal["vision", "text", "both"] | None,
        option(
            "for models like CLIP: vision, text, or both (images with captions)", INPUT
        ),
    ] = None
    trust_remote_code: Annotated[
        bool, option("run code that comes with the model", INPUT)
    ] = False
    dtype: Annotated[
        Literal["float32", "float64", "bfloat16", "float16", "auto"],
        option(
            "dtype of the model: float32, float64, bfloat16, float16, or auto (that of "
            "the checkpoint); sums are always float64",
            MACHINE,
        ),
    ] = "float32"
    device: Annotated[
        Device,
        option(
            "auto (the accelerator, if there is one), cpu, cuda, cuda:1, mps; with torchrun each process uses its own",
            MACHINE,
        ),
    ] = "auto"
    device_map: Annotated[
        Literal["auto", "balanced", "sequential"] | None,
        option(
            "spread a large model over all devices and the CPU's memory: auto, "
            "balanced or sequential (as in accelerate)",
            MACHINE,
        ),
    ] = None


@declare_settings
class ReadOptions:
    """How a corpus is read. The fields are keyword arguments of `data.opening.open_plan`."""

    split: Annotated[
        Text | None,
        option(
            "split of a hub data set; default: validation, else test, else train", INPUT
        ),
    ] = None
    column: Annotated[
        Text | None,
        option(
            "column of a table that holds the text, or the paths of clips or images; "
            "default: guessed",
            INPUT,
        ),
    ] = None
    documents: Annotated[
        Text,
        AfterValidator(check_rule),
        option(
            "what counts as one document in a text file: auto (guessed), file, "
            "blank-line, line, tokens:N (N tokens)",
            INPUT,
        ),
    ] = "auto"
    limit: Annotated[
        Whole | None,
        Field(ge=1),
        option(
            "read only the first N documents, clips (or speakers) or images of the "
            "corpus",
            INPUT,
        ),
    ] = None
    sequences: Annotated[
        Whole | None,
        Field(ge=1),
        option("read only so many windows of the text, evenly spread over it", INPUT),
    ] = None
    max_length: Annotated[
        Whole | None,
        Field(ge=1),
        option(
            "tokens per window of text, special tokens included; default: as many as "
            "the model reads, at most 512",
            INPUT,
        ),
    ] = None
    batch_tokens: Annotated[Whole, Field(ge=1), option("tokens per batch", MACHINE)] = (
        4096
    )
    skip_bad: Annotated[
        bool,
        option(
            "leave unreadable files, rows and checkpoints out and count them, instead "
            "of stopping",
            INPUT,
        ),
    ] = False


@declare_settings
class VectorColumns:
    """Columns of a file of vectors that the user names. Without them the rules of `data/vector_roles.py` find them."""

    columns: Annotated[
        Text | None,
        option(
            "for a file of vectors: the columns that hold the vectors, as 0-7, 'dim_*' "
            "or embedding; default: guessed by rules; a file that can be read in two "
            "ways is refused",
            INPUT,
        ),
    ] = None
    unit_column: Annotated[
        Text | None,
        option(
            "for a file of vectors: the column (or array) with the unit (document, "
            "speaker) of each vector",
            INPUT,
        ),
    ] = None
    label_column: Annotated[
        Text | None,
        option(
            "for a file of vectors: the column (or array) with the class of each vector",
            INPUT,
        ),
    ] = None


@declare_settings
class Job(VectorColumns, LoadOptions, ReadOptions, ModelAndCorpus):
    """One model measured on one corpus (the built-in one if none is named).

    The identity of a run consists of all fields but those in `NOT_IN_IDENTITY`.
    """

    settings: Settings = field(default_factory=Settings)
    step: Annotated[Whole | None, PYTHON_ONLY] = None
    train_seed: Annotated[Whole | None, PYTHON_ONLY] = None
    shard: Annotated[
        tuple[Whole, Whole],
        BeforeValidator(read_shard),
        option(
            "measure only part I of N; anisoscope merge joins the parts. A folder of "
            "texts is divided by files, any other corpus by batches",
            MACHINE,
            shown="1/1",
            metavar="I/N",
            n_tokens=1,
        ),
    ] = (0, 1)
    to_merge: Annotated[
        bool,
        option(
            "keep what anisoscope merge needs to join this run with runs of other "
            "files",
            MACHINE,
            negative=(),
        ),
    ] = False
    keep: Annotated[
        Whole,
        Field(ge=1),
        option(
            "for a series of checkpoints: how many downloads are on the disk at the "
            "same time",
            MACHINE,
        ),
    ] = 2
    no_state: Annotated[
        bool,
        option(
            "write only the records, without the sample of vectors and what paired comparisons need later "
            "(manifest.json lists the size of this state)",
            MACHINE,
            negative=(),
        ),
    ] = False

    def __post_init__(self) -> None:
        """Check the shard, and that every metric can be measured on a single run. UsageError if not."""
        part, parts = self.shard
        if not 0 <= part < parts:
            raise UsageError(
                "a shard (i, n) with 0 ≤ i < n",
                repr(self.shard),
                "the first of two is (0, 2)",
            )
        if self.to_merge:
            self._require_merge_by_files()
        if self.settings.metrics:
            self._require_metrics_of_one_run()

    def _require_merge_by_files(self) -> None:
        """Raise UsageError for options that `--to-merge` forbids, since they need more than this run's own files."""
        given = {
            "--shard": self.shard[1] > 1,
            "--sequences": self.sequences is not None,
            "the panel alignment": "centred" in self.settings.what,
        }
        for name, is_given in given.items():
            if is_given:
                cure = "leave one of them out; shards of one folder need no --to-merge"
                raise UsageError(
                    "--to-merge only for whole files", f"it with {name}", cure
                )

    def _require_metrics_of_one_run(self) -> None:
        """Raise UsageError for a metric that compares two runs; `anisoscope compare` measures those."""
        for metric in self.settings.chosen:
            if metric.reads.runs > 1:
                cure = f"anisoscope compare RUN OTHER-RUN --across {metric.name}"
                raise UsageError(
                    "metrics of one run", f"{metric.name}, of {metric.reads.word}", cure
                )

    @property
    def code(self) -> list[Any]:
        """Return the modules and functions that compute the numbers, whose source is hashed for the run's identity.

        They are those known without model and corpus.
        """
        used: list[Any] = ["anisoscope.runs.run"]
        # A corpus that is made by a function of ours changes with its code.
        if self.corpus in named_corpora():
            module, _, _ = named_corpora()[self.corpus].maker.partition(":")
            if module:
                used.append(module)
        for metric in self.settings.chosen:
            # Both are needed: what a metric computes, and what it reads of the sums.
            used += [metric.compute, type(metric.reads)]
            if (summary := metric.reads.summary()) is not None:
                used.append(summary)
        return used

    def identity(
        self,
        subject: "Subject",
        plan: "BatchPlan",
        more: Callable[..., Any] | None = None,
    ) -> dict[str, Any]:
        """Return the run's identity: settings, weights, batches, and hashes of the code.

        Equal identities mean equal results.

        more   function that measures something after the pass (`OpenedCorpus.more`); its module is hashed too
        """
        # Options that few runs use: unset, they leave no trace in the identity.
        rare = ("train_seed", "tower", "columns", "unit_column", "label_column")
        left_out = set(NOT_IN_IDENTITY)
        for name in rare:
            if getattr(self, name) is None:
                left_out.add(name)
        if not self.to_merge:
            left_out.add("to_merge")
        described = asdict(self)
        for name in left_out:
            del described[name]
        described |= {
            "weights_sha256": subject.weights_sha256,
            "architecture": subject.form,
        }
        # The classes that made the batches, the tokens and every layer: a change in any
        # of them may change the numbers.
        kinds = {
            type(plan),
            type(subject.processor),
            *map(type, subject.model.modules()),
        }
        # The function may be wrapped or partial: its own module is what counts.
        after = "" if more is None else unwrap(more).__module__
        code = hash_code_used(
            *self.code, *kinds, *([after] if is_tracked(after) else [])
        )
        return json_roundtrip(described | {"plan": plan.fingerprint, "code": code})  # type: ignore[no-any-return]


@declare_settings
class ModelsOptions(LoadOptions, ReadOptions):
    """How the models of a comparison are measured that are no runs yet. The fields are fields of `Job`."""

    corpus: Annotated[
        CorpusName,
        option(
            "what a model reads: built-in name, hub data set, file or folder; default: "
            "the built-in corpus for the model",
            INPUT,
            "-c",
        ),
    ] = ""


@declare_settings
class OutputOptions:
    """The folder to write, and what to do if it exists already."""

    output: Annotated[
        FilePath | None,
        option(
            "folder to write; default: a folder in runs/, named after model and corpus",
            OUTPUT,
            "-o",
        ),
    ] = None
    resume: Annotated[
        bool,
        option("continue an interrupted run; a finished one is left unchanged", OUTPUT),
    ] = False
    overwrite: Annotated[
        bool,
        option("replace the run or training in this folder", OUTPUT),
    ] = False


ClassesPart = Literal["directions", "ablation", "attribution"]
PARTS: tuple[ClassesPart, ...] = ("directions", "ablation", "attribution")


@declare_settings
class ClassesOptions(LoadOptions, Columns, ModelAndCorpus):
    """How a classifier is measured on a labelled corpus.

    The first `limit` texts of a split (or of `all`) are read, equally many of each class. `at` says whose vector
    represents a text; by default the token that the model's head reads.
    """

    model: Annotated[
        Text,
        option(
            "folder or hub id (with @revision) of a classifier; other text models get "
            "fewer analyses",
            INPUT,
        ),
    ] = field(default="builtin:minilm", kw_only=False)
    corpus: Annotated[
        CorpusName,
        option(
            "corpus with labels: built-in name, hub data set, table or folder; "
            "default: the one that the model was trained on",
            INPUT,
            "-c",
        ),
    ] = ""
    split: Annotated[
        Text,
        option(
            "split to measure: train, validation, test, another one of the corpus, or "
            "all; default: test; if a table has no splits, all rows that the model was "
            "not trained on",
            INPUT,
        ),
    ] = ""
    split_seed: Annotated[
        Whole,
        Field(ge=0),
        option("seed for making splits, if the corpus has none", INPUT),
    ] = 0
    limit: Annotated[
        Whole,
        Field(ge=1),
        option(
            "how many texts are measured in all: the first ones of each class, equally many of each",
            INPUT,
        ),
    ] = 999
    max_length: Annotated[
        Whole | None,
        Field(ge=3),
        option(
            "longest text in tokens; longer ones are cut and counted; default: what "
            "the model was trained with, or can read",
            INPUT,
        ),
    ] = None
    at: Annotated[
        At | None,
        option(
            "which vector represents a text: that of its first or last token, or the "
            "mean or max over its tokens; default: what the head of the classifier "
            "reads",
            WHAT,
        ),
    ] = None
    parts: Annotated[
        tuple[ClassesPart, ...],
        split_names(PARTS, renamed=renamed.PARTS),
        option(
            "analyses, with commas: directions (in which vectors of the classes "
            "differ), ablation (what attention is worth), attribution (words that "
            "decide), or all",
            WHAT,
            shown="all",
            metavar="NAME,…",
        ),
    ] = PARTS
    few: Annotated[
        Whole,
        Field(ge=1),
        option(
            "how many texts the slow analyses use (each text takes many passes)", WHAT
        ),
    ] = 60
    seed: Annotated[Whole, Field(ge=0), option("seed of all random choices", WHAT)] = 0
    batch_tokens: Annotated[Whole, Field(ge=1), option("tokens per batch", MACHINE)] = (
        4096
    )
