"""How a classifier makes its classes: directions layer by layer, what its attention is worth, what explains its
decisions. All of it takes a model and batches of labelled utterances; `runs/classes.py` runs it on one model,
studies on many.

May import: `metrics`, `capture`, `models`, `data`, and what is below them.
"""
