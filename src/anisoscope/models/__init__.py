"""Models: load any of them by name, find blocks and streams, read series of checkpoints. Nothing here measures.

May import: `data` and `batch`, and what is below them.
"""
