"""Transforms that make vectors less anisotropic, fitted on one half of the data and tried on the other.
`trial.py` puts what each does to A and to a task (`tasks.py`) side by side, with paired intervals.

May import: `metrics` and what is below it, `store`.
"""
