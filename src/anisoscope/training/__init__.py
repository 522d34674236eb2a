"""Training of the models that experiments need: classifiers, language models, small models of every modality, and the
`Monitor` of a training. Thin layers over transformers.Trainer.

May import: `measure`, `capture`, and what is below them.
"""
