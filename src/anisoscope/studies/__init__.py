"""The studies: one file per figure or table of the two papers (what is claimed, measured, judged and drawn), and the
judge and runner they share.

May import: `runs` and what is below it.
"""
