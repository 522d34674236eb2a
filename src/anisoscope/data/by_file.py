"""Plan the files of a folder of texts one after the other, so that memory does not grow with the number of files."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anisoscope.batch import Batch
from anisoscope.data.corpora import CorpusOptions, resolve_corpus
from anisoscope.data.documents import fix_column, list_separate_files
from anisoscope.data.plans import Plan, hash_parts
from anisoscope.data.text import TextCorpus, open_separate_file, refuse_empty
from anisoscope.data.windows import Affixes, IdCounts, TextPlan, check_counts, count_ids
from anisoscope.errors import CorpusError

HELD = 1 << 22
"""Tokens of a share whose plans are all kept in memory. Those of a larger one are made twice: to count, to measure."""
MakePlan = Callable[[TextCorpus, Any], TextPlan]


@dataclass(frozen=True)
class ShareOfFiles:
    """The files of a folder of texts that one shard (one of several jobs) reads.

    name     of the corpus
    files    all texts or tables of the folder, in path order
    part     the shard reads files number `part`, `part + parts`, `part + 2 · parts` …
    parts    number of shards
    options  how they are read, with the column of tables
    """

    name: str
    folder: Path
    files: Sequence[Path]
    options: CorpusOptions
    part: int
    parts: int

    @property
    def numbers(self) -> range:
        """The indices of the files that this shard reads, in the list of all files."""
        return range(self.part, len(self.files), self.parts)

    def open(self, number: int) -> TextCorpus:
        """Read file `number` as a corpus."""
        return open_separate_file(
            self.folder, number, self.files, self.options, self.name
        )

    def name_file(self, number: int) -> str:
        """Return the path of a file inside the folder."""
        return str(self.files[number].relative_to(self.folder))

    @property
    def described(self) -> str:
        """What the share is called in errors."""
        return f"the files of shard {self.part + 1}/{self.parts} of {self.name}"


def find_share(name: str, shard: tuple[int, int], **options: Any) -> ShareOfFiles:
    """Find the files that one shard of a corpus reads. CorpusError if it is no folder of texts.

    name      of the corpus, a folder in which every document ends with its file
    shard     (i, n): the shard's number from 0, and the number of shards
    options   fields of `CorpusOptions`
    """
    corpus_options = CorpusOptions(**options)
    folder = resolve_corpus(name, "text", corpus_options)
    if not isinstance(folder, Path):
        raise CorpusError("a folder of texts", name, "name a folder")
    files = list_separate_files(folder, corpus_options)
    return ShareOfFiles(
        name, folder, files, fix_column(folder, files, corpus_options), *shard
    )


class PlanByFile(Plan):
    """The batches of a share of files. A batch holds windows of one file; only one file is in memory at a time.

    Each file is read once to count its batches. It is read again when they are measured, unless all files together
    are small.

    source   the manifest's entry on the corpus, with a hash of each file
    longest  tokens of the longest window
    """

    def __init__(
        self,
        share: ShareOfFiles,
        make: MakePlan,
        tokenizer: Any,
        vocab_size: int | None,
    ) -> None:
        """Count the batches of all files.

        share       the files
        make        function (corpus, tokenizer) that makes the plan of one file for the model
        tokenizer   of the model; in a torchrun job that of all processes, which all count the same files
        vocab_size  of the model

        CorpusError if no file holds text, ModelError if the tokenizer does not fit the model.
        """
        # `Plan.__init__` wants all batches, which are known only at the end: its fields
        # are set here.
        self.share, self._make, self._tokenizer = share, make, tokenizer
        self.tokens, self.n_units, self.longest = [], 0, 0
        self.frequency_bins, self.warnings = [], []
        self.source: dict[str, Any] = {}
        self._hashes: dict[int, str] = {}
        self._first: list[int] = []
        self._fingerprints: list[str] = []
        self._affixes: dict[Affixes, None] = {}
        self._counts = IdCounts()
        self._held: dict[int, TextPlan] = {}
        for number in share.numbers:
            # Where the batches of this file begin, to find the file of a batch later.
            self._first.append(len(self.tokens))
            corpus = share.open(number)
            self._note_source(number, corpus)
            if corpus.documents:
                self._note_plan(number, make(corpus, tokenizer))
        self._close(vocab_size)

    def _note_source(self, number: int, corpus: TextCorpus) -> None:
        """Add the manifest's entry on a file to that on the whole share.

        number   of the file
        """
        self._hashes[number] = corpus.fingerprint
        of_others = self.source
        # an empty file does not say how documents are separated
        if corpus.documents or not of_others:
            self.source = dict(corpus.source)
        else:
            self.source = dict(of_others)
        for name in ("empty", "skipped"):
            self.source[name] = of_others.get(name, 0) + corpus.source[name]

    def _note_plan(self, number: int, plan: TextPlan) -> None:
        """Add the counts of a file's plan to those of the share, and keep the plan if all files together are small."""
        self.words = plan.words
        self.tokens += plan.tokens
        self.n_units += plan.n_units
        self.longest = max(self.longest, int(plan.lengths.max(initial=0)))
        # The files of a corpus give mostly the same notes: each is kept once.
        self.warnings += [note for note in plan.warnings if note not in self.warnings]
        self._fingerprints.append(plan.fingerprint)
        # One affix once, in the order of their coming: a set has no order.
        self._affixes |= dict.fromkeys(plan.affixes.values())
        self._counts = self._counts.add(count_ids(self._tokenizer, plan.windows.ids))
        self._hold(number, plan)

    def _close(self, vocab_size: int | None) -> None:
        """Check the files as a whole after all were read, and set the hash of the plan.

        CorpusError if they hold no usable text, ModelError if the tokenizer does not fit the model.

        vocab_size   number of the model's embeddings; None: unknown
        """
        if not self._fingerprints:
            raise refuse_empty(
                self.share.described, self.source["empty"], self.source["skipped"]
            )
        # Once for all files: much of a short file may be unknown by chance.
        self.warnings += check_counts(
            self._tokenizer, self._counts, self._affixes, vocab_size
        )
        if not self.tokens:
            got = f"{self.share.described}, which holds none"
            raise CorpusError(
                "texts that are long enough for the model", got, "name longer texts"
            )
        # Of the files of this shard with their hashes, and the names of all, by which
        # runs of shards are put together.
        files = {
            self.share.name_file(number): hashed
            for number, hashed in self._hashes.items()
        }
        every = [
            self.share.name_file(number) for number in range(len(self.share.files))
        ]
        self.source |= {"files": files, "all_files": every}
        self.fingerprint = hash_parts(self._fingerprints)

    @property
    def corpus_fingerprint(self) -> str:
        """The hash of the texts of all files of the share."""
        return hash_parts(self._hashes.values())

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.tokens)

    def __getitem__(self, index: int) -> Batch:
        """Build batch number `index`; its file is read again if its plan was dropped.

        CorpusError if the file was changed since its batches were counted.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        # The last file whose first batch is not behind this one.
        place = bisect_right(self._first, index) - 1
        number = self.share.numbers[place]
        batch = self._plan_of(number)[index - self._first[place]]
        return batch if self.call is None else replace(batch, call=self.call)

    def _plan_of(self, number: int) -> TextPlan:
        """Return the plan of a file: the one in memory, or a new one. CorpusError if the file was changed."""
        held = self._held.get(number)
        if held is not None:
            return held
        corpus = self.share.open(number)
        # Counts and hash would be of another text than the numbers.
        if corpus.fingerprint != self._hashes[number]:
            got = f"{self.share.name_file(number)}, whose text has changed"
            raise CorpusError(
                "files that stay as they are while they are measured",
                got,
                "measure them again",
            )
        # of a torchrun job each process reads only the files of its own batches, when it comes to them
        plan = self._make(corpus, getattr(self._tokenizer, "unshared", self._tokenizer))
        self._hold(number, plan)
        return plan

    def _hold(self, number: int, plan: TextPlan) -> None:
        """Keep the plan of a file in memory; drop those of other files, unless all files together are small."""
        # While files are still being counted this is the total so far: plans are
        # dropped as soon as it is exceeded.
        if self._counts.total > HELD:
            self._held.clear()
        self._held[number] = plan
