"""The systems of paper G by name: hub id, modality and figure. Any other checkpoint of these families works by its
own id.
"""

from typing import NamedTuple


class Preset(NamedTuple):
    """A published checkpoint: `figure` of paper G it belongs to, `modality` of what it reads."""

    hub_id: str
    modality: str
    figure: str


PRESETS: dict[str, Preset] = {
    "bert-base": Preset("google-bert/bert-base-uncased", "text", "1"),
    "roberta-base": Preset("FacebookAI/roberta-base", "text", "1"),
    "gpt2": Preset("openai-community/gpt2", "text", "1"),
    "t5-base": Preset("google-t5/t5-base", "text", "1"),
}
