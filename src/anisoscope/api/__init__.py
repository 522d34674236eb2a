"""What the program can do, from Python: the same options by the same words; what was measured comes back as a `Run`.

`anisoscope/__init__.py` says which of these names are public. May import: everything but `cli` and `integrations`.
"""
