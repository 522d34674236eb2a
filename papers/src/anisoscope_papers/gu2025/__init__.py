"""Reproduce Gu et al., *When Attention Sink Emerges in Language Models: An Empirical View*, ICLR 2025, on small models.

`sinks.py` declares the study; `small_models.py` trains its models, and those of `machina2024`.
"""
