"""Networks that transformers lacks, under their published parameter names: ports of published ones, and the small ones
that experiments train. `families.py` has a row for each; they are imported when one is loaded.

May import: nothing of this package.
"""
