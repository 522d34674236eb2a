"""Implement networks that transformers lacks, under their published parameter names.

They are ports of published networks, and small ones that experiments train. `families.py` has a row for each; a module
is imported when its network is loaded. May import: nothing of this package.
"""
