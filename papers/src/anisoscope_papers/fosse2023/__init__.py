"""Reproduce Fosse, Nguyen, Sébillot and Gravier, TALN 2023: one file per table, figure or section; `STUDY` declares it.

May import: the modules at the top of `anisoscope_papers`, `training`, `networks`, and the tool.
"""
