"""Training of the models that experiments need: classifiers, language models and small models of every modality, all
by one `fit` over transformers' Trainer; and the `Monitor` of a training.

May import: `classes`, and what is below it.
"""
