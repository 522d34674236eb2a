"""Ports of architectures that transformers lacks, under their published parameter names; `register` makes its Auto
classes know them. Imported when first needed: they load much.

May import: `models`, `errors`.
"""

from functools import cache
from typing import Any


@cache
def register() -> None:
    """Make `AutoConfig` and `AutoModel` know CharacterBERT, MANTa, VAN, the small speech CNN and the attention-only
    classifier, but what transformers knows itself."""
    from anisoscope.models.ports import attention_classifier, character_bert, manta, speech_cnn, van
    from anisoscope.models.ports.weights import is_native

    published = {"character_bert": character_bert, "manta": manta, "van": van}
    for port in (attention_classifier, speech_cnn, *(m for name, m in published.items() if not is_native(name))):
        port.register()


def config_class(name: str) -> Any:
    """The configuration class called `name`, of transformers or of a port."""
    import transformers

    from anisoscope.models.ports import character_bert, manta, van

    for module in (transformers, character_bert, manta, van):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)
