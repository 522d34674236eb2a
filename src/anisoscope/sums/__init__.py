"""Sums over groups of whole units, and what follows from sums alone: intervals, the law of isotropy.

May import: `axes`, `errors`.
"""
