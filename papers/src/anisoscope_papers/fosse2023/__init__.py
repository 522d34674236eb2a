"""Fosse, Nguyen, Sébillot and Gravier, TALN 2023: a file per table, figure or section, `STUDY` its declaration.

May import: `studies` and what is below it.
"""
