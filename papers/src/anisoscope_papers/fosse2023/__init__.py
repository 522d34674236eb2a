"""Reproduce Fosse, Nguyen, Sébillot and Gravier, TALN 2023: one file per table, figure or section; `STUDY` declares it.

May import: `studies` and what is below it.
"""
