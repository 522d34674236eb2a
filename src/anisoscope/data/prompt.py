"""What a decoder reads where there is no text to read: a fixed prompt."""

from typing import Any


def decoder_prompt(config: Any, processor: Any = None) -> list[int]:
    """Ids that the decoder of `config` begins with: the prompt of the processor's tokenizer (Whisper: start, language
    and task, where set, no timestamps); else the start token alone; empty where there is no decoder.
    """
    if not getattr(config, "is_encoder_decoder", False):
        return []
    prefix = getattr(getattr(processor, "tokenizer", None), "prefix_tokens", None)
    return [int(token) for token in prefix] if prefix else [decoder_start(config)]


def decoder_start(config: Any) -> int:
    """The token that a decoder's input begins with."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    return int(next((value for name in names if (value := getattr(config, name, None)) is not None), 0))
