"""Hidden states by hooks on blocks; queries, keys, values and attention statistics through the attention interface."""

from anisoscope.capture.tap import WHAT, Tap, capture

__all__ = ["WHAT", "Tap", "capture"]
