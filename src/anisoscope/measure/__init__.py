"""One pass of a model over a corpus: settings, the accumulator, the loop, and the table made from the sums.

May import: `metrics`, `reads`, `capture`, `models`, `data`, and what is below them.
"""
