"""Charts: builders of every kind that is drawn, one style, and files that are the same whenever they are drawn again.

May import: `sums`, `axes`, `errors`, `store`.
"""
