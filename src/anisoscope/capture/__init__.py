"""Capture what a model computes: hidden states by hooks on blocks; queries, keys, values and attention statistics
through the attention interface. No arithmetic but attention's own.

May import: `models`, `sums`, `axes`, `errors`, `renamed`; no metric.
"""

from anisoscope.capture.tap import WHAT, Tap, capture

__all__ = ["WHAT", "Tap", "capture"]
