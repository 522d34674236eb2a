"""A corpus by name, planned for one model: the right reader for what the model takes, and its length, vocabulary and stacks."""

from typing import Any

from anisoscope.data import open_corpus
from anisoscope.data._batch import BatchPlan
from anisoscope.errors import UsageError

DEFAULT_LENGTH = 512


def open_plan(
    name: str,
    model: Any,
    processor: Any,
    *,
    modality: str,
    max_length: int | None = None,
    batch_tokens: int = 4096,
    **options: Any,
) -> tuple[BatchPlan, dict[str, Any]]:
    """The batches of corpus `name` for `model`, and what the manifest says of the corpus. `options`: see `data.text.open_text`."""
    corpus = open_corpus(name, modality=modality, **options)
    if modality != "text":
        raise UsageError("a text model", f"a {modality} model", "speech and images are not read yet")
    return _text_plan(corpus, model, processor, max_length, batch_tokens)


def _text_plan(
    corpus: Any, model: Any, tokenizer: Any, max_length: int | None, batch_tokens: int
) -> tuple[BatchPlan, dict[str, Any]]:
    from anisoscope.data.text import plan_text
    from anisoscope.models.blocks import stack_of

    if tokenizer is None:
        raise UsageError("a tokenizer for a text corpus", "none", "let the factory return (model, tokenizer)")
    config = model.config
    longest = longest_input(config, tokenizer)
    if max_length is not None and longest is not None and max_length > longest:
        raise UsageError(
            f"--max-length of at most {longest}, which the model reads", str(max_length), f"use --max-length {longest}"
        )
    length = max_length or min(longest or DEFAULT_LENGTH, DEFAULT_LENGTH)
    decoder_start = None
    if getattr(config, "is_encoder_decoder", False):
        decoder_start = next(
            x
            for x in (
                getattr(config, "decoder_start_token_id", None),
                getattr(config, "bos_token_id", None),
                getattr(config, "pad_token_id", None),
                0,
            )
            if x is not None
        )
    plan = plan_text(
        corpus,
        tokenizer,
        max_length=length,
        batch_tokens=batch_tokens,
        stack="encoder" if decoder_start is not None else stack_of(model, ""),
        decoder_start_id=decoder_start,
        vocab_size=getattr(config, "vocab_size", None),
    )
    described = {"name": corpus.name, "fingerprint": corpus.fingerprint, "max_length": length, **corpus.source}
    return plan, described


def longest_input(config: Any, tokenizer: Any) -> int | None:
    """Most tokens the model reads at once, by its position table and by its tokenizer; None where neither says."""
    limits = [getattr(tokenizer, "model_max_length", None)]
    if not getattr(config, "relative_attention_num_buckets", None):
        positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        offset = 2 if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert") else 0
        limits.append(positions - offset if positions else None)
    known = [int(x) for x in limits if x is not None and 0 < x < 1_000_000]
    return min(known) if known else None
