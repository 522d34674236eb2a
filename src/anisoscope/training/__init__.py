"""Thin layers over transformers.Trainer for the models the experiments need."""
