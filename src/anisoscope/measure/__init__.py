"""One pass of a model over a corpus: settings, the accumulator, the loop, and the table made of what it summed.

May import: `metrics`, `reads`, `capture`, `models`, `data`, and what is below them.
"""
