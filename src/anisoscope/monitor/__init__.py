"""Watching a training: the geometry of a model on a fixed probe, now and then, without touching the training.

May import: `measure`, and what is below it.
"""
