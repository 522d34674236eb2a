"""A checkpoint with a short name."""

from anisoscope.models.named import NamedModel

MODEL = NamedModel("guest/model", "text", "a guest's")
