"""Train the models that experiments need: classifiers, language models and small models of every modality.

All use one function, `fit`, on top of transformers' Trainer. May import: `classes`, and what is below it.
"""
