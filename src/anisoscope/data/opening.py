"""Open a corpus by name for a model: with the right reader, and the model's length, vocabulary and stacks."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from anisoscope.data.corpora import (
    CorpusOptions,
    NamedCorpus,
    named_corpora,
    open_corpus,
    resolve_corpus,
)
from anisoscope.data.documents import has_text
from anisoscope.data.labelled import ALL, LabelledCorpus, require_usable
from anisoscope.data.labelled_tables import open_table
from anisoscope.data.local import detect_modality, find_path
from anisoscope.data.plans import (
    Plan,
    find_decoder_start,
    hash_parts,
    number_by_content,
)
from anisoscope.data.table_rows import is_table
from anisoscope.errors import UsageError
from anisoscope.renamed import rename_typed_corpus

DEFAULT_LENGTH = 512
UNLIMITED = 1_000_000  # tokens: a limit of as many is none
OF_SETS = ("split", "column", "config", "revision", "limit", "skip_bad")
"""Options of `CorpusOptions` that data sets have."""
OF_TEXTS = ("sequences", "max_length", "documents")
"""Options that only texts have; their defaults are None and "auto"."""

EXAMPLES = {
    "text": "builtin:python-docs, a text file or --corpus wikitext-103",
    "image": "builtin:digits, a folder of images or --corpus imagenet-1k",
    "speech": "a folder of wav or flac files, a manifest or --corpus librispeech",
}
AFTER_PADDING = {
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
    "camembert",
    "ibert",
}
AFTER_PADDING |= {
    "data2vec-text",
    "esm",
    "layoutlmv3",
    "lilt",
    "longformer",
    "luke",
    "markuplm",
    "mpnet",
}
"""Types of models whose first token has the position after the number of the padding token, 2 as a rule."""
PLANS = {
    "image": ("anisoscope.data.images", "ImagePlan"),
    "speech": ("anisoscope.data.speech", "SpeechPlan"),
}
"""Module and class of the plans that are not of texts."""
MODELS = {
    "text": "builtin:minilm or bert-base",
    "image": "vit-base or resnet-50",
    "speech": "wav2vec2-base or hubert",
}


def default_corpus(modality: str) -> str:
    """Return the built-in corpus for a modality. UsageError if there is none."""
    for name, row in named_corpora().items():
        if name.startswith("builtin:") and row.modality == modality:
            return name
    expected = f"--corpus for a {modality} model (no {modality} corpus is built in)"
    raise UsageError(expected, "none", f"name {EXAMPLES.get(modality, 'one')}")


def open_plan(
    name: str,
    model: Any,
    processor: Any,
    *,
    modality: str,
    max_length: int | None = None,
    batch_tokens: int = 4096,
    sequences: int | None = None,
    **options: Any,
) -> tuple[Plan, dict[str, Any]]:
    """Open the corpus `name` for a model. Return its batches, and the manifest's entry on it.

    processor      the model's tokenizer, feature extractor or image processor
    modality       what the model reads: text, speech or image
    max_length     tokens of a window at most, of speech positions; None: what the model reads (of texts at most 512)
    batch_tokens   positions of a batch at most, padding counted
    sequences      use only so many windows of the text, evenly spread over it
    options        fields of `data.corpora.CorpusOptions`; and `files`, (i, n), to read files i, i + n, i + 2n … of a
                   folder of texts only (`data.by_file`); and `to_merge`, whether runs of other files will be added

    UsageError for options that the modality does not have.
    """
    # Before the corpus is opened, which may take a download.
    _check_modality(name, modality, options.get("column"))
    _refuse_options_of_other_modalities(
        modality, options.get("documents", "auto"), sequences, max_length
    )
    # Taken out: they are no options of the corpus, but of how its batches are made.
    files = options.pop("files", None)
    to_merge = options.pop("to_merge", False)
    if files is not None:
        return _open_plan_by_file(
            name, model, processor, files, max_length, batch_tokens, options
        )
    corpus = open_corpus(name, modality=modality, **options)
    described = {"name": corpus.name, "fingerprint": corpus.fingerprint}
    plan: Any
    if modality == "text":
        length = choose_text_length(
            getattr(model, "config", None), processor, max_length
        )
        plan = _plan_text(corpus, model, processor, length, batch_tokens)
        if sequences is not None:
            plan = plan.spread(sequences)
        described["max_length"] = length
    else:
        plan = _plan_media(corpus, model, processor, modality, max_length, batch_tokens)
        described["preprocessing"] = plan.settings
    if to_merge:
        described |= _prepare_for_merge(plan, corpus)
    # What the reader had to leave out comes before what the plan has to say.
    warnings = [*_describe_skipped(corpus.source.get("skipped")), *plan.warnings]
    return plan, {
        **described,
        "words": plan.words,
        **corpus.source,
        "warnings": warnings,
    }


def _refuse_options_of_other_modalities(
    modality: str, documents: str, sequences: int | None, max_length: int | None
) -> None:
    """Raise UsageError for an option that corpora of this modality do not have.

    documents, sequences, max_length   the options as given: "auto" and None if they were not
    """
    if modality != "text" and documents != "auto":
        raise UsageError(
            "--documents only with a text model",
            f"a model of {modality}",
            "leave --documents out",
        )
    if modality != "text" and sequences is not None:
        raise UsageError(
            "--sequences only with a text model",
            f"a model of {modality}",
            "use --limit, which counts units",
        )
    # what an image model reads is of one size
    if modality == "image" and max_length is not None:
        raise UsageError(
            "no --max-length for an image model",
            str(max_length),
            "leave --max-length out",
        )


def _plan_media(
    corpus: Any,
    model: Any,
    processor: Any,
    modality: str,
    max_length: int | None,
    batch_tokens: int,
) -> Any:
    """Return the batches of a corpus of images or clips for a model.

    max_length     positions of a window of speech at most; None: as many as 30 seconds have
    batch_tokens   positions of a batch at most
    """
    # By name: import statements say what every run uses (`provenance.hash_code_used`), and one of texts uses neither.
    module, kind = PLANS[modality]
    plan_of_modality = getattr(import_module(module), kind)
    options: dict[str, Any] = {"batch_tokens": batch_tokens}
    if modality == "speech":
        options["max_length"] = max_length
    return plan_of_modality(corpus, model, processor, **options)


def _prepare_for_merge(plan: Any, corpus: Any) -> dict[str, Any]:
    """Change the unit numbers of a plan so that runs of other files can be added to its run.

    Units (documents, clips, images) are then numbered by the content of their file, whatever other files are measured.

    Returns the manifest's entry on the files, with their hashes.
    """
    files = getattr(corpus, "files", None) or {
        Path(corpus.name).name: corpus.fingerprint
    }
    # Counted through the files of one shard, documents of another would get the same
    # numbers.
    plan.unit = number_by_content(plan.unit, list(files.values()))
    if plan.frequency_bins:
        plan.settings = plan.settings | {"to_merge": True}
        plan.warnings.append(
            "bins of token frequency left out: a run to merge does not know the counts of other files"
        )
    return {"files": files, "fingerprint": hash_parts(sorted(files.values()))}


def _open_plan_by_file(
    name: str,
    model: Any,
    tokenizer: Any,
    files: tuple[int, int],
    max_length: int | None,
    batch_tokens: int,
    options: dict[str, Any],
) -> tuple[Plan, dict[str, Any]]:
    """Open a share of the files of a folder of texts. Return its batches, and the manifest's entry on it.

    Only one file is in memory at a time.

    files          (i, n): read files i, i + n, i + 2n … in path order
    max_length     tokens of a window at most; None: what the model reads, at most 512
    batch_tokens   positions of a batch at most, padding counted
    options        fields of `CorpusOptions`
    """
    from anisoscope.data.by_file import PlanByFile, find_share
    from anisoscope.models.families import family_named

    config = getattr(model, "config", None)
    # Once for all files, so that all have windows of one length.
    length = choose_text_length(config, tokenizer, max_length)

    def make(corpus: Any, reader: Any) -> Any:
        """Return the batches of one file, tokenised by `reader`."""
        return _plan_text(corpus, model, reader, length, batch_tokens)

    share = find_share(name, files, **options)
    vocab_size = getattr(config, "vocab_size", None)
    # a model that reads words as characters has no vocabulary for a tokenizer to fit
    if family_named(getattr(config, "model_type", "")).words:
        vocab_size = None
    plan = PlanByFile(share, make, tokenizer, vocab_size)
    described = {
        "name": name,
        "fingerprint": plan.corpus_fingerprint,
        "max_length": length,
        "words": plan.words,
    }
    warnings = [*_describe_skipped(plan.source["skipped"]), *plan.warnings]
    return plan, {**described, **plan.source, "warnings": warnings}


def _describe_skipped(count: int | None) -> list[str]:
    """Return a warning that items could not be read and were left out; empty if there are none."""
    if not count:
        return []
    plural = "" if count == 1 else "s"
    return [f"{count} unreadable item{plural} of the corpus left out"]


def open_texts_with_images(
    name: str, model: Any, processor: Any, *, batch_tokens: int = 4096, **options: Any
) -> tuple[Plan, dict[str, Any]] | None:
    """Open images with captions, or chats with images, for a vision-language model.

    Returns (its batches, the manifest's entry on the corpus); None if the corpus holds other things.

    name           of the corpus
    processor      of images and texts together; a text that says why there is none
    batch_tokens   positions of a batch at most, padding counted
    options        fields of `data.corpora.CorpusOptions`

    UsageError for options that only texts have.
    """
    from anisoscope.models.blocks import find_stack, has_two_towers

    # By name: import statements say what every run uses, and one of texts uses no images (`provenance.hash_code_used`).
    module = import_module("anisoscope.data.image_texts")
    read = _find_texts_with_images(module, name, options)
    if read is None:
        return None
    # There is a corpus of texts with images, but the model's processor could not be
    # loaded.
    if isinstance(processor, str):
        cure = "save the processor that was published with the model in its folder; some need pip install torchvision"
        raise UsageError(
            "a processor of images and texts with the model", processor, cure
        )
    _refuse_options_of_texts(options)
    corpus = read()
    plan = module.ImageTextPlan(
        corpus,
        processor,
        stack=find_stack(model),
        batch_tokens=batch_tokens,
        are_pairs=has_two_towers(model),
    )
    described = {
        "name": name,
        "fingerprint": plan.fingerprint,
        "preprocessing": plan.settings,
        "words": plan.words,
    }
    warnings = [*_describe_skipped(corpus.source["skipped"]), *plan.warnings]
    return plan, {**described, **corpus.source, "warnings": warnings}


def _find_texts_with_images(
    module: Any, name: str, options: Mapping[str, Any]
) -> Callable[[], Any] | None:
    """Return a function without arguments that reads a corpus; None if it holds no texts with images.

    module    `data.image_texts`
    name      of the corpus
    options   fields of `CorpusOptions`; those that only texts have are not used
    """
    # Presets have readers of their own, and none holds texts with images.
    if name in named_corpora():
        return None
    path = find_path(name)
    if path is None and "/" not in name:
        # a name without a slash is no data set of the hub
        return None
    # `datasets` saved it, or it can only be a data set of the hub.
    if path is None or module.is_saved_set(path):
        of_sets = {option: options[option] for option in OF_SETS if option in options}
        return module.find_image_text_set(name, **of_sets)  # type: ignore[no-any-return]
    if not module.holds_image_texts(name):
        return None
    of_images = {
        option: value for option, value in options.items() if option not in OF_TEXTS
    }
    return partial(module.open_image_texts, name, **of_images)


def _refuse_options_of_texts(options: Mapping[str, Any]) -> None:
    """Raise UsageError if an option was given that only corpora of text have.

    options   fields of `CorpusOptions`
    """
    for option in OF_TEXTS:
        value = options.get(option)
        if value is not None and value != "auto":
            cure = "leave that option out; --limit counts images or chats"
            raise UsageError(
                "options that apply to texts with images",
                f"--{option.replace('_', '-')} {value}",
                cure,
            )


def open_texts(
    texts: list[str], model: Any, processor: Any, **options: Any
) -> tuple[Plan, dict[str, Any]]:
    """Open texts in memory for a model, each a unit of its own. Return their batches, and the manifest's entry on them.

    processor   the model's tokenizer
    options     further arguments of `open_plan`
    """
    # Through a file: texts in memory are then split, counted and hashed like any
    # corpus.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts.jsonl")
        lines = [json.dumps({"text": text}) for text in texts]
        path.write_text("\n".join(lines), "utf-8")
        plan, described = open_plan(
            str(path), model, processor, modality="text", **options
        )
    # the temporary file means nothing to a reader of the manifest
    described.pop("path", None)
    described["name"] = "texts"
    return plan, described


def _check_modality(name: str, modality: str, column: str | None) -> None:
    """Raise UsageError if the corpus is known to hold something other than what the model reads.

    name       of the corpus
    modality   what the model reads
    column     the column that the user named, or None
    """
    row = named_corpora().get(name)
    path = None
    holds: str | None = None
    if row:
        holds = row.modality
    else:
        path = find_path(name)
    if path:
        holds = detect_modality(path)
    if holds not in EXAMPLES or holds == modality:
        return
    # a manifest of clips may have a column with their texts
    if (
        modality == "text"
        and path is not None
        and is_table(path)
        and (column or has_text(path))
    ):
        return
    cure = f"for this model name {EXAMPLES[modality]}; for this corpus measure {MODELS[holds]}"
    raise UsageError(
        f"a corpus that the model reads ({modality})",
        f"{name}, which holds {holds}",
        cure,
    )


def choose_text_length(config: Any, tokenizer: Any, max_length: int | None) -> int:
    """Return how many tokens a window of text has at most.

    config       the model's configuration
    max_length   as the user chose it; None: as many as the model reads, but no more than 512

    UsageError without a tokenizer, or if the model reads less than `max_length`.
    """
    if not hasattr(tokenizer, "tokenize"):
        got = "none" if tokenizer is None else type(tokenizer).__name__
        raise UsageError(
            "a tokenizer for a text corpus",
            got,
            "let the function that makes the model return (model, tokenizer)",
        )
    longest = find_longest_input(config, tokenizer)
    if max_length is not None and longest is not None and max_length > longest:
        expected = f"--max-length of at most {longest}, which the model reads"
        raise UsageError(expected, str(max_length), f"use --max-length {longest}")
    # Longer windows are the user's choice: attention costs the square of the length.
    return max_length or min(longest or DEFAULT_LENGTH, DEFAULT_LENGTH)


def find_longest_input(config: Any, tokenizer: Any) -> int | None:
    """Return how many tokens a model reads at once, by its position table and its tokenizer; None if unknown.

    config   the model's configuration
    """
    limits = [
        getattr(tokenizer, "model_max_length", None),
        # `max_length_inputs` is MANTa's.
        getattr(config, "max_length_inputs", None),
    ]
    # T5 keeps a length in its config that it does not need: its positions are relative
    if not getattr(config, "relative_attention_num_buckets", None):
        limits.append(_count_positions(config))
    # a tokenizer without a limit says 10^30
    known = [int(x) for x in limits if x is not None and 0 < x < UNLIMITED]
    return min(known, default=None)


def _count_positions(config: Any) -> int | None:
    """Return how many tokens the position table of a model has room for; None if it has none."""
    positions = getattr(config, "max_position_embeddings", None) or getattr(
        config, "n_positions", None
    )
    if not positions:
        return None
    if getattr(config, "model_type", "") not in AFTER_PADDING:
        return int(positions)
    # RoBERTa counts positions from behind the number of its padding token, 1: of 514
    # places 512 are for tokens.
    padding = getattr(config, "pad_token_id", None)
    if padding is None:
        padding = 1
    return int(positions) - (padding + 1)


def _plan_text(
    corpus: Any, model: Any, tokenizer: Any, length: int, batch_tokens: int
) -> Any:
    """Return the batches of a text corpus for a model: in tokens, or in words for a model that reads characters.

    length         tokens of a window at most
    batch_tokens   positions of a batch at most, padding counted
    """
    from anisoscope.data.text import plan_characters, plan_text
    from anisoscope.models.blocks import find_stack
    from anisoscope.models.families import family_named

    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", "")
    family = family_named(kind)
    if family.words:
        return plan_characters(
            corpus, tokenizer, max_length=length, batch_tokens=batch_tokens
        )
    start = None
    # The decoder reads the same text behind its start token.
    if getattr(config, "is_encoder_decoder", False):
        start = find_decoder_start(config)
    # An encoder–decoder reads the text in its encoder.
    stack = find_stack(model) if start is None else "encoder"
    # A budget of 1 puts every window into a batch of its own.
    if family.alone:
        batch_tokens = 1
    plan = plan_text(
        corpus,
        tokenizer,
        max_length=length,
        batch_tokens=batch_tokens,
        stack=stack,
        decoder_start_id=start,
        vocab_size=getattr(config, "vocab_size", None),
    )
    # Canine joins as many characters to a position: it reads no fewer
    if kind == "canine":
        return plan.at_least(config.downsampling_rate)
    return plan


def open_labelled(
    name: str,
    *,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    limit: int | None = None,
    for_training: bool = True,
) -> LabelledCorpus:
    """Open and check a labelled corpus. CorpusError, with a cure, if it is not fit for use.

    columns        {role: column} for the roles `text`, `second`, `label`, `rationale`, `split` of a table or hub data
                   set; others are guessed, but no second text if only `text` is given
    seed           of generated corpora, and of splits that the corpus does not have
    limit          number of examples of each split at most, balanced over the classes; None: all
    for_training   whether each split needs examples of every class; else a table without splits needs two of each
    """
    name = rename_typed_corpus(name)
    # Here the limit is only checked: it is applied below, balanced over the classes.
    place = resolve_corpus(name, "labelled", CorpusOptions(limit=limit))
    if isinstance(place, NamedCorpus):
        if columns:
            expected = f"no column names for {name}, whose columns are known"
            raise UsageError(expected, ", ".join(columns), "leave these names out")
        corpus = place.make(name, seed)
    else:
        corpus = open_table(name, place, dict(columns or {}), seed)
    # A corpus that is only measured may have all of its examples in one part.
    if not for_training and corpus.has_no_splits:
        corpus = replace(corpus, splits={ALL: corpus.all_examples, **corpus.splits})
        return require_usable(corpus.limited(limit), {ALL: 2})
    # First the whole corpus: what is wrong with it must not be blamed on the limit.
    require_usable(corpus)
    return require_usable(corpus.limited(limit))
