"""What cannot be read from a model of the guest's family itself."""

from anisoscope.models.families import Family

FAMILY = Family(
    blocks=("Layer",),
    attention=False,
    tokenizer="transformers:ByT5Tokenizer",
    module="guest.network",
    port={"AutoConfig": "GuestConfig", "AutoModel": "GuestModel"},
)
