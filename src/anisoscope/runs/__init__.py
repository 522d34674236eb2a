"""Run folders: one measurement, shards merged, a series of checkpoints, the classes of a classifier.

May import: `measure`, `classes`, and what is below them.
"""
