"""The Python interface: functions that take the options of the command line and return a `Run`.

`anisoscope/__init__.py` says which of these names are public. May import: everything but `cli` and `integrations`.
"""
