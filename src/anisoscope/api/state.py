"""A measurement in parts: sums of vectors or of a model's batches, merged in any order, and finished to a run.

For data that one program does not read: a job array, Ray Data, a stream of a serving engine. Each worker has a
`State`, adds what it sees, and saves it or sends it; whoever has all of them merges and finishes. docs/scaling.md says
when.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from anisoscope.api.run import Run, run_to_folder_or_memory
from anisoscope.batch import Batch, Stream
from anisoscope.data.arrays import STACK, VectorArrays, wrap_vectors
from anisoscope.data.plans import batch_in_order
from anisoscope.errors import MeasureError, OutputError, UsageError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.inputs import LONGEST, GivenInputs
from anisoscope.measure.loop import Arrays, measure_into, summarise_embeddings
from anisoscope.measure.settings import Settings
from anisoscope.models.families import class_of
from anisoscope.models.identity import hash_some_weights
from anisoscope.options import build_settings, expand_home
from anisoscope.provenance import json_roundtrip, make_run_id
from anisoscope.runs.job import Job, OutputOptions
from anisoscope.runs.run import finish
from anisoscope.runs.vectors import limit_settings
from anisoscope.store import RunFolder

VECTORS = "vectors"
"""What a state of vectors is of, in place of a model."""
ROWS = 4096
"""Sequences that are added at once."""
OWN_UNITS = 1 << 40
"""Units that one state can number itself."""


class State:
    """Sums over vectors, or over what a model does with batches. Each worker has a state; they are merged in any
    order.

    name     of this part of the data; needed if units (documents, clips …) have no names: it tells parts apart
    options  fields of `Settings`: `panel`, `metrics`, `tokens`, `groups`, `layers`, `seed` …

    A state holds sums, not vectors: its size does not grow with the data, except for 8 bytes a unit. Merged in any
    order, states give the numbers of a single pass (up to rounding in float64).

        >>> import anisoscope, numpy
        >>> x = numpy.random.default_rng(0).normal(size=(400, 8)) + 1
        >>> state = anisoscope.State(panel="hidden").add(x[:300], units=range(300))
        >>> other = anisoscope.State(panel="hidden").add(x[300:], units=range(300, 400))
        >>> run = state.merge(other).finish()
        >>> run.table()["A"].round(1).tolist()
        [0.5]
    """

    def __init__(self, name: str = "", **options: Any) -> None:
        """Start an empty state. UsageError for an unknown option or a value that does not fit."""
        self.name = name
        self.settings: Settings = build_settings(Settings, options, also=["name"])
        self.of: dict[str, Any] = {}
        self.seconds = 0.0
        self.tokens = 0
        # Names of all states that were merged into this one.
        self.names = {name}
        # How many units without names were numbered so far.
        self._numbered = 0
        # How many sequences of each unit were added so far.
        self._seen: Counter[int] = Counter()
        self._measurement: Measurement | None = None

    def __repr__(self) -> str:
        if self._measurement is None:
            return "State of nothing yet"
        units, sums = len(self._measurement.sums.units), self._measurement.nbytes
        return f"State of {self.of['model']}: {units:,} units, {self.tokens:,} tokens, {sums / 1e6:.1f} MB"

    @property
    def n_units(self) -> int:
        """How many units (documents, clips …) were added."""
        return 0 if self._measurement is None else len(self._measurement.sums.units)

    def add(
        self, vectors: Any, *, units: Iterable[Hashable] | None = None, mask: Any = None
    ) -> "State":
        """Add vectors, and return the state.

        vectors  [vector, dim] or [sequence, token, dim], of numpy or torch; a list or dict of them, layer by layer
        units    name of the unit (independent piece of data: a document, a speaker) of each vector or sequence;
                 none: each is its own. One unit may be spread over calls and over states
        mask     [sequence, token] bool: True for real tokens

        UsageError for vectors that do not fit the state, or for a metric that needs more than vectors.
        """
        arrays = wrap_vectors(vectors, mask=mask)
        measurement = self._open(
            self._describe_vectors(arrays),
            lambda: limit_settings(arrays, self.settings),
        )
        numbers = self._number_units(units, arrays.shape[0])
        starts = self._number_first_tokens(numbers)
        with self._count_seconds():
            # Block by block, since vectors may be mapped from a file larger than
            # memory.
            for rows in batch_in_order(arrays.shape[0], ROWS):
                batch = _make_batch_of_vectors(
                    arrays, rows, numbers[rows], starts[rows]
                )
                measure_into(Arrays(), measurement, [batch])
                self.tokens += batch.n_tokens
        return self

    def add_batch(
        self,
        model: nn.Module,
        inputs: Any,
        *,
        units: Iterable[Hashable] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
    ) -> "State":
        """Run a model on a batch, add what is measured, and return the state.

        inputs   as for `measure`: a tensor, a dict, a tuple of arguments, a list of these, or a `Batch`
        units    name of the unit (independent piece of data) of each sequence; none: `unit` in the
                 dicts, else each is its own
        forward  `forward(model, inputs)`, if the model needs a special call

        UsageError for a panel that needs two passes (alignment), or for another model than before.
        """
        # A hash of some weights shows another model, or one that was trained in
        # between.
        measurement = self._open(self._describe_model(model), lambda: self.settings)
        if "centred" in self.settings.what:
            cure = "leave the panel alignment out, or use anisoscope.measure"
            raise UsageError(
                "panels that need one pass over the data",
                "alignment, which needs two passes",
                cure,
            )
        # Summaries are of the weights, which are the same for every batch.
        if self.settings.summaries and not measurement.weights:
            measurement.weights = summarise_embeddings(model, self.settings)
        with self._count_seconds():
            batches = list(self._read_batches(model, inputs, units, forward))
            # The first batch of the state also proves that the capture sees what the
            # model computes.
            measure_into(model, measurement, batches, prove=measurement.proof is None)
            self.tokens += sum(batch.n_tokens for batch in batches)
        return self

    def merge(self, *others: "State") -> "State":
        """Return a new state that holds the data of this one and of the others.

        MeasureError if the states are of different models, or if two of them have the same name and units (documents,
        clips, images) without names, which would be taken for the same ones; UsageError for different settings.
        """
        whole = self
        for other in others:
            whole = whole._merge_one(other)
        return whole

    def save(self, path: Path | str) -> Path:
        """Write the state to a file (safetensors) that `State.load` reads, and return its path."""
        target = expand_home(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._require_measurement().save(
            target, {"state": json.dumps(self._describe())}
        )
        return target

    @classmethod
    def load(cls, path: Path | str) -> "State":
        """Read a state that `save` wrote. OutputError for any other file."""
        source = expand_home(path)
        try:
            with safe_open(source, framework="pt") as file:
                about = json.loads(file.metadata()["state"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            got = f"{source}, which is not such a file ({error})"
            raise OutputError(
                "a file that State.save wrote", got, "name another file"
            ) from error
        state = cls(about["name"])
        state.settings = Settings.read(about["settings"])
        state.of = about["of"]
        state.names = set(about["names"])
        state.seconds = about["seconds"]
        state.tokens = about["tokens"]
        state._numbered = about["numbered"]
        state._measurement = Measurement.restore(
            source, Settings.read(about["measured"])
        )
        # Positions of a unit that goes on after loading begin after those that it may have had.
        state._seen = Counter(
            dict.fromkeys(state._measurement.sums.units, about["sequences"])
        )
        return state

    def finish(
        self,
        output: Path | str | None = None,
        *,
        corpus: str = "state",
        overwrite: bool = False,
    ) -> Run:
        """Return the run of everything added so far. More can be added to the state afterwards.

        output   folder of the run; none: it is kept in memory
        corpus   name of the data in the run
        """
        measurement = self._require_measurement()
        options = OutputOptions(
            output=None if output is None else expand_home(output), overwrite=overwrite
        )
        return run_to_folder_or_memory(
            lambda where: self._write(measurement, where, corpus), options
        )

    def __reduce__(self) -> Any:
        """Pickle the state as the content of its file, so that workers of other programs can send it."""
        if self._measurement is None:
            return _open_empty, (self.name, asdict(self.settings))
        # A file is the one form in which a state is written, so it is read back as
        # bytes.
        with tempfile.TemporaryDirectory() as folder:
            return _load_bytes, (self.save(Path(folder, "state")).read_bytes(),)

    def _open(
        self, described: dict[str, Any], make_settings: Callable[[], Settings]
    ) -> Measurement:
        """Return the measurement to add to; the first call creates it.

        described       what the data come from (the model, or the layers and widths of vectors): the same at all calls
        make_settings   returns the settings, for the first call

        UsageError if the data are of another kind than before.
        """
        if self._measurement is None:
            self._measurement = Measurement(make_settings())
            self.of = described
        elif described != self.of:
            cure = "use one State per model"
            raise UsageError(
                f"a state of one model or one kind of vectors ({self.of})",
                str(described),
                cure,
            )
        return self._measurement

    def _describe_vectors(self, vectors: VectorArrays) -> dict[str, Any]:
        """Return what later vectors must have in common with these.

        It is {`model`: "vectors", `layers`: {name: width}, `sequences`: whether they are sequences of vectors}.
        """
        layers = {name: int(x.shape[-1]) for name, x in vectors.layers.items()}
        return {"model": VECTORS, "layers": layers, "sequences": vectors.are_sequences}

    def _describe_model(self, model: nn.Module) -> dict[str, Any]:
        """Return what models that add to this state later must have in common with this one.

        It is {`model`: class, `parameters`: their number, `weights`: a hash of some weights, which is quick}.
        """
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return {
            "model": class_of(model).__name__,
            "parameters": parameters,
            "weights": hash_some_weights(model),
        }

    def _read_batches(
        self, model: nn.Module, inputs: Any, units: Any, forward: Any
    ) -> Iterator[Batch]:
        """Yield the inputs as batches, with the numbers that this state gives to units (documents, clips, images)."""
        given = GivenInputs(inputs, model, forward=forward)
        batches = list(given)
        # One batch that names its units is enough: numbers given here could coincide
        # with those.
        batches_name_units = units is not None or any(
            _names_units(item) for item in given.batches
        )
        if units is None and batches_name_units:
            numbers = torch.cat([batch.unit for batch in batches]).numpy()
        else:
            count = sum(len(batch.unit) for batch in batches)
            numbers = self._number_units(units, count)
        starts = self._number_first_tokens(numbers)
        first = 0
        for item, batch in zip(given.batches, batches, strict=True):
            rows = slice(first, first + len(batch.unit))
            first = rows.stop
            # A batch of the caller's own says itself where its tokens are.
            yield (
                batch
                if isinstance(item, Batch)
                else _renumber(batch, numbers[rows], starts[rows])
            )

    def _number_units(self, units: Iterable[Hashable] | None, count: int) -> np.ndarray:
        """Return the number of each sequence's unit (document, clip, image) as [sequence].

        A named unit has the same number in every state.
        """
        if units is None:
            # States with different names draw from ranges that do not overlap, so that they can be merged.
            # 2²² starts times 2⁴⁰ units stay below 2⁶³, the largest number of int64.
            first = _hash_name(self.name) % (1 << 22) * OWN_UNITS if self.name else 0
            self._numbered += count
            return first + np.arange(self._numbered - count, self._numbered)
        names = (
            units.tolist() if isinstance(units, Tensor | np.ndarray) else list(units)
        )
        if len(names) != count:
            raise UsageError(
                f"a unit for each of {count} vectors or sequences",
                str(len(names)),
                "give one unit per vector or sequence",
            )
        return np.array([_number_unit(name) for name in names], dtype=np.int64)

    def _number_first_tokens(self, numbers: np.ndarray) -> np.ndarray:
        """Return for each sequence the position of its first token within its unit (document, clip, image) [sequence].

        Sequences of one unit get positions far apart, so that no two of their tokens share one, even if the unit is
        spread over several states.

        numbers   the number of each sequence's unit [sequence]
        """
        # States with different names begin at different numbers, so that parts of one unit do not overlap either.
        first = _hash_name(self.name) % (1 << 20) if self.name else 0
        start = np.empty(len(numbers), dtype=np.int64)
        for i, unit in enumerate(numbers.tolist()):
            start[i] = (first + self._seen[unit]) * LONGEST
            self._seen[unit] += 1
        return start

    def _count_seconds(self) -> "_Clock":
        """Return a context manager that adds the time spent inside to the state."""
        return _Clock(self)

    def _merge_one(self, other: "State") -> "State":
        """Return the state of the data in this one and another. MeasureError if they do not belong together."""
        if other._measurement is None:
            return self
        if self._measurement is None:
            return other
        if self.of != other.of:
            raise MeasureError(
                f"states of the same model or vectors ({self.of})",
                str(other.of),
                "merge only states of the same model",
            )
        # Units without names are numbered from a start that depends on the state: two of one name would share numbers.
        shared_names = self.names & other.names
        if shared_names and self._numbered and other._numbered:
            got = f"two called {min(shared_names)!r} whose units have no names"
            raise MeasureError(
                "states of different data",
                got,
                "name the data of each, State(name=…), or its units, units=…",
            )
        merged = State(self.name)
        merged.settings = self.settings
        merged.of = self.of
        merged.names = self.names | other.names
        merged.seconds = self.seconds + other.seconds
        merged.tokens = self.tokens + other.tokens
        # The merged state keeps this one's name, and goes on behind every number that
        # either has given.
        merged._numbered = max(self._numbered, other._numbered)
        # Later sequences of a unit get positions behind those of both states.
        merged._seen = self._seen + other._seen
        merged._measurement = self._measurement.merge(other._measurement)
        return merged

    def _require_measurement(self) -> Measurement:
        """Return the measurement. UsageError if nothing was added yet."""
        if self._measurement is None:
            raise UsageError(
                "a state that something was added to",
                "an empty one",
                "add vectors or a batch first",
            )
        return self._measurement

    def _describe(self) -> dict[str, Any]:
        """Return what is saved of the state apart from its sums, for JSON: settings, times, counts, and how units are
        numbered.
        """
        measurement = self._require_measurement()
        return {
            "name": self.name,
            "names": sorted(self.names),
            "settings": json_roundtrip(asdict(self.settings)),
            "measured": json_roundtrip(asdict(measurement.settings)),
            "of": self.of,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "numbered": self._numbered,
            "sequences": max(self._seen.values(), default=0),
        }

    def _write(
        self, measurement: Measurement, output: OutputOptions, corpus: str
    ) -> RunFolder:
        """Write the run folder of everything measured so far.

        output   the folder to write, and what to do if it exists
        """
        assert output.output is not None
        job = Job(
            model=self.of["model"],
            corpus=corpus,
            settings=measurement.settings,
            device="cpu",
        )
        # How long it took is no part of what was measured.
        identity = json_roundtrip(
            {"state": self._describe() | {"seconds": None}, "job": asdict(job)}
        )
        target = RunFolder.start(
            output.output, identity, resume=False, overwrite=output.overwrite
        )
        facts = {
            "run": make_run_id(identity),
            # No later measurement finds this run by its settings.
            "asked": None,
            "model": self.of["model"],
            "revision": None,
            "weights_sha256": self.of.get("weights"),
            "architecture": self.of["model"],
            "parameters": self.of.get("parameters", 0),
            "settings": json_roundtrip(asdict(job)),
            "backend": None,
            "dtype": None,
            "device": "cpu",
            "corpus": {
                "name": corpus,
                "n_tokens": self.tokens,
                "n_batches": len(measurement.batches),
                "warnings": [],
            },
            "notes": [],
            "processes": len(self.names),
            "plan": "",
            "units": None,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 2),
        }
        finish(target, measurement, facts)
        return target


class _Clock:
    """A context manager that adds the time spent inside to a state's `seconds`."""

    def __init__(self, state: State) -> None:
        self.state = state

    def __enter__(self) -> None:
        self.started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.state.seconds += time.monotonic() - self.started


def _hash_name(name: Any) -> int:
    """Return a number below 2⁶³ for a name, the same in every process."""
    # Python's own hash of a text differs from process to process. By `repr`, 1 and "1"
    # differ.
    return (
        int.from_bytes(blake2b(repr(name).encode(), digest_size=8).digest(), "big") >> 1
    )


def _number_unit(name: Any) -> int:
    """Return the number of a unit (document, clip, image): a non-negative integer is its own number, any other name is
    hashed.
    """
    # True and False are whole numbers to Python, but names here.
    is_number = isinstance(name, int | np.integer) and not isinstance(name, bool)
    if is_number and name >= 0:
        return int(name)
    return _hash_name(name)


def _names_units(item: Any) -> bool:
    """Return whether a batch itself says which unit (document, clip, image) each sequence belongs to."""
    return isinstance(item, Batch) or (isinstance(item, Mapping) and "unit" in item)


def _renumber(batch: Batch, numbers: np.ndarray, start: np.ndarray) -> Batch:
    """Return a copy of the batch with other unit numbers and other positions of its tokens.

    numbers   the number of each sequence's unit [sequence]
    start     the position of each sequence's first token within its unit [sequence]
    """
    begin = torch.from_numpy(start)
    streams = {}
    for stack, stream in batch.streams.items():
        # `start` of a stream is the number at the first column, which may be padding before the first real token.
        first_real = stream.mask.int().argmax(1)
        streams[stack] = replace(stream, start=begin - first_real)
    return replace(batch, unit=torch.from_numpy(numbers), streams=streams)


def _make_batch_of_vectors(
    vectors: VectorArrays, rows: np.ndarray, numbers: np.ndarray, start: np.ndarray
) -> Batch:
    """Make a batch of some of the vectors or sequences.

    rows      their indices
    numbers   the number of each one's unit [row]
    start     the position of each one's first token within its unit [row]
    """
    layers = {layer: vectors.block(layer, rows) for layer in vectors.layers}
    length = vectors.shape[1] if vectors.are_sequences else 1
    # Without a mask, every vector is real.
    mask = torch.ones(len(rows), length, dtype=torch.bool)
    if vectors.mask is not None:
        mask = torch.from_numpy(vectors.mask[rows])
    stream = Stream(mask, torch.zeros_like(mask), torch.from_numpy(start))
    return Batch(layers, torch.from_numpy(numbers), {STACK: stream})


def _open_empty(name: str, settings: dict[str, Any]) -> State:
    """Rebuild a state to which nothing was added, when it is unpickled."""
    state = State(name)
    state.settings = Settings.read(settings)
    return state


def _load_bytes(content: bytes) -> State:
    """Rebuild a state when it is unpickled; `content` is that of a file that `State.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state")
        path.write_bytes(content)
        return State.load(path)
