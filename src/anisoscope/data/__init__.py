"""Corpora: from a name, a path or a hub data set to batches. Importing this loads neither torch nor transformers.

May import: `models` and `batch`, and what is below them.
"""
