"""Thin forms of Anisoscope for other libraries (transformers' Trainer, Lightning), imported where they are used only.

May import: `monitor` and what is below it; nothing imports it.
"""
