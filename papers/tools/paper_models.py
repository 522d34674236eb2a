"""Define a tiny random model of every network that transformers lacks; adds to the tool's own
(`tools/tiny_models.py`).
"""

import tiny_models
from tiny_models import TEXT, Tiny

_FILTERS = ((1, 4), (2, 8))
_MANTA = {
    "byte_embedding_dim": 16,
    "frontier_predictor_num_attention_heads": 2,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
}
_MANTA |= {
    "num_layers": 2,
    "num_heads": 4,
    "max_length_inputs": 64,
    "frontier_predictor_attention_window": 8,
}
_VAN = {
    "hidden_sizes": (8, 16, 24, 32),
    "depths": (1, 2, 1, 1),
    "mlp_ratios": (2, 2, 2, 2),
    "num_labels": 5,
}

ARCHITECTURES: dict[str, Tiny] = {
    "character_bert": Tiny(
        TEXT | {"character_filters": _FILTERS}, "words", "CharacterBERT"
    ),
    "manta": Tiny(_MANTA, "two", "MANTa-LM"),
    "van": Tiny(_VAN, "pixels", "VAN"),
}
"""Those of paper G that transformers lacks."""

tiny_models.OTHERS.update(ARCHITECTURES)
