"""What a classifier makes of its classes: directions layer by layer, what its attention is worth, and what explains it.

Everything here takes a model, batches of labelled utterances and nothing of a study; `runs/classes.py` runs it all on
one model, the studies of Fosse et al. 2023 on their grid of classifiers.
"""
