"""What can be asked for: a model on a corpus, or its classes. Light: the command line reads its options here."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from anisoscope.axes import At
from anisoscope.data.corpora import Columns, named_corpora
from anisoscope.data.names import check_corpus, check_labelled, check_model
from anisoscope.data.splitting import check_rule
from anisoscope.errors import UsageError
from anisoscope.measure.settings import Settings
from anisoscope.options import DTYPES, INPUT, MACHINE, OUTPUT, WHAT, BuiltFrom, Option, check_device, check_fields
from anisoscope.provenance import code_used, is_ours, plain
from anisoscope.provenance.sources import unwrapped

if TYPE_CHECKING:
    from anisoscope.batch import BatchPlan
    from anisoscope.models.load import Subject

PARTS = ("directions", "replaced", "explained")


def shard_of(text: str) -> tuple[int, int]:
    """`2/4`, the second of four shards → (1, 4)."""
    try:
        part, parts = (int(x) for x in text.split("/"))
    except ValueError:
        part, parts = 0, 0
    if not 1 <= part <= parts:
        raise UsageError("--shard I/N with 1 ≤ I ≤ N", repr(text), "the second of four shards is --shard 2/4")
    return part - 1, parts


MODEL_HELP = (
    "hub id (with @revision), folder, file of weights, preset, builtin:…, module:factory; or a series of checkpoints: "
    "pattern {0..4} {0,20,…,2000}, folder of step-* or checkpoint-*, list in a file"
)
CORPUS_HELP = "built-in name, hub data set, file or folder; default: what is built in for the model"
DOCUMENTS_HELP = "what a document is in a text file: auto, file, blank-line, line, tokens:N"
LIMIT_HELP = "first N units of the corpus only: documents, clips (or speakers), images"
WINDOWS_HELP = "that many windows of the text only, evenly spread over it"
DTYPE_HELP = "float32, float64, bfloat16, float16, or auto: the checkpoint's own; sums are float64 always"
DEVICE_HELP = "auto (the accelerator that is there), cpu, cuda, cuda:1, mps; of torchrun each process its own"
MAP_HELP = "auto: blocks over all devices, and the CPU's memory, by accelerate; also balanced, sequential"
UNTRAINED_HELP = "draw the weights anew from the architecture's own initialisation"
BAD_HELP = "leave out and count unreadable items and checkpoints instead of stopping"
LENGTH_HELP = "tokens a window, special ones counted; default: what the model reads, 512 at most"
SHARD_HELP = "I/N: every N-th batch from the I-th; put together with anisoscope merge"


OF_MACHINE = ("device", "device_map", "trust_remote_code")
"""Fields of a job that are no part of what is measured."""


@dataclass(frozen=True)
class Job:
    """One model on one corpus (none named: the built-in one). All but `OF_MACHINE` is the run's identity."""

    model: Annotated[str, Option(MODEL_HELP, INPUT, argument=True, check=check_model)] = "builtin:minilm"
    corpus: Annotated[str, Option(CORPUS_HELP, INPUT, ("--corpus", "-c"), check=check_corpus)] = ""
    settings: Settings = field(default_factory=Settings)
    split: Annotated[str | None, Option("split of a hub data set", INPUT)] = None
    column: Annotated[str | None, Option("column of a table: text, or paths of clips or images", INPUT)] = None
    documents: Annotated[str, Option(DOCUMENTS_HELP, INPUT, check=check_rule)] = "auto"
    limit: Annotated[int | None, Option(LIMIT_HELP, INPUT, least=1)] = None
    sequences: Annotated[int | None, Option(WINDOWS_HELP, INPUT, least=1)] = None
    max_length: Annotated[int | None, Option(LENGTH_HELP, INPUT, least=1)] = None
    batch_tokens: Annotated[int, Option("tokens a batch", MACHINE, least=1)] = 4096
    dtype: Annotated[str, Option(DTYPE_HELP, MACHINE, known=(*DTYPES, "auto"))] = "float32"
    untrained: Annotated[bool, Option(UNTRAINED_HELP, INPUT)] = False
    tower: Annotated[str | None, Option("of CLIP and kin: vision or text", INPUT, known=("vision", "text"))] = None
    step: int | None = None
    train_seed: int | None = None
    shard: Annotated[tuple[int, int], Option(SHARD_HELP, MACHINE, parse=shard_of, shown="1/1")] = (0, 1)
    device: Annotated[str, Option(DEVICE_HELP, MACHINE, check=check_device)] = "auto"
    device_map: Annotated[str | None, Option(MAP_HELP, MACHINE, known=("auto", "balanced", "sequential"))] = None
    trust_remote_code: Annotated[bool, Option("run code that comes with the model", INPUT)] = False
    skip_bad: Annotated[bool, Option(BAD_HELP, INPUT)] = False

    def __post_init__(self) -> None:
        check_fields(self)
        part, parts = self.shard
        if not 0 <= part < parts:
            raise UsageError("a shard (i, n) with 0 ≤ i < n", repr(self.shard), "the first of two is (0, 2)")

    @property
    def code(self) -> list[Any]:
        """What makes the numbers, as far as it is known before model and corpus are: modules and functions."""
        maker = named_corpora()[self.corpus].maker if self.corpus in named_corpora() else ""
        modules = ["anisoscope.runs.run", *filter(None, [maker.partition(":")[0]])]
        used: list[Any] = [*modules]
        for metric in self.settings.chosen:
            used += [metric.compute, type(metric.reads)]
            if (summary := metric.reads.summary()) is not None:
                used.append(summary)
        return used

    def identity(self, subject: "Subject", plan: "BatchPlan", more: Callable[..., Any] | None = None) -> dict[str, Any]:
        """What makes a run this one; `more`: what measures more than the pass does."""
        left_out = [*OF_MACHINE] + ["train_seed"] * (self.train_seed is None)  # not of a series
        left_out += ["tower"] * (self.tower is None)
        described = {name: value for name, value in asdict(self).items() if name not in left_out}
        described |= {"weights_sha256": subject.weights_sha256, "architecture": subject.form}
        kinds = {type(plan), type(subject.processor), *map(type, subject.model.modules())}
        after = "" if more is None else unwrapped(more).__module__
        code = code_used(*self.code, *kinds, *([after] if is_ours(after) else []))
        return plain(described | {"plan": plan.fingerprint, "code": code})  # type: ignore[no-any-return]


OF_CLASSES = ("batch_tokens", "dtype", "device", "trust_remote_code")
"""Fields of a job that the classes of a labelled corpus are measured with, too."""
OUTPUT_HELP = "folder; default: below runs/, named after what is in it"
RESUME_HELP = "go on with what was interrupted; what is finished is left as it is"


@dataclass(frozen=True)
class Place:
    """The folder that is written, and what becomes of what is there."""

    output: Annotated[Path | None, Option(OUTPUT_HELP, OUTPUT, ("--output", "-o"))] = None
    resume: Annotated[bool, Option(RESUME_HELP, OUTPUT)] = False
    overwrite: Annotated[bool, Option("begin anew in a folder that holds a run or a training", OUTPUT)] = False

    @property
    def again(self) -> dict[str, Any]:
        """What becomes of what is there, as keywords."""
        return {"resume": self.resume, "overwrite": self.overwrite}


COLUMNS_HELP = (
    "of a file of vectors: which columns are the vector, as 0-7, 'dim_*', embedding; default: decided by rules, and "
    "refused when two readings are possible"
)
UNIT_HELP = "of a file of vectors: the column (or array) that names the unit of each"
LABEL_HELP = "of a file of vectors: the column (or array) of its classes"


@dataclass(frozen=True)
class VectorColumns:
    """What the columns of a file of vectors are, if that is not left to the rules of `data/vector_roles.py`."""

    columns: Annotated[str | None, Option(COLUMNS_HELP, INPUT)] = None
    unit_column: Annotated[str | None, Option(UNIT_HELP, INPUT)] = None
    label_column: Annotated[str | None, Option(LABEL_HELP, INPUT)] = None


LABELLED_HELP = "labelled, as in train classifier; default: what the model was trained on"
SPLIT_HELP = (
    "train, validation, test, another of the corpus, or all; default: test, and of a table without splits all rows "
    "that the model was not trained on"
)
AT_HELP = "whose vector stands for an utterance: first token, last, mean; default: the model's"
PARTS_HELP = "with commas: directions, replaced (what attention is worth), explained (attributions over words), or all"


@dataclass(frozen=True)
class Classes:
    """Which utterances are looked at, and how: the first `limit` of a split (or of `all`), as many of each class; by
    default `at` their last token where a token sees only those before it, else at the first.
    """

    corpus: Annotated[str, Option(LABELLED_HELP, INPUT, ("--corpus", "-c"), check=check_labelled)] = ""
    columns: Annotated[Mapping[str, str] | None, BuiltFrom(Columns)] = None
    split_seed: Annotated[int, Option("of splits the corpus does not have", INPUT, least=0)] = 0
    split: Annotated[str, Option(SPLIT_HELP, INPUT)] = ""
    limit: Annotated[int, Option("utterances, the first of each class", INPUT, least=1)] = 999
    at: Annotated[At | None, Option(AT_HELP, WHAT, known=get_args(At))] = None
    parts: Annotated[tuple[str, ...], Option(PARTS_HELP, WHAT, known=PARTS, every="all")] = PARTS
    few: Annotated[int, Option("utterances of what takes many passes", WHAT, least=1)] = 60
    max_length: Annotated[int | None, Option("longer utterances are cut, and counted", INPUT, least=3)] = None

    def __post_init__(self) -> None:
        check_fields(self)
