"""Callbacks for other libraries (transformers' Trainer, Lightning), imported only if they are used.

May import: `monitor` and what is below it; nothing imports it.
"""
