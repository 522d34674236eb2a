"""Watch a training: measure a model's geometry on a fixed probe now and then, without touching the training.

May import: `measure`, and what is below it.
"""
