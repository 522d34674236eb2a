"""What a classifier makes of its classes: directions layer by layer, what its attention is worth, and what explains it.
All of it takes a model and batches of labelled utterances; `runs/classes.py` runs it on one model, studies on many.

May import: `metrics`, `capture`, `models`, `data`, and what is below them.
"""
