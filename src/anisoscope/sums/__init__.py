"""What is accumulated, sums over groups of whole units, and what follows from sums alone: intervals, isotropy's law.

May import: `axes`, `errors`.
"""
