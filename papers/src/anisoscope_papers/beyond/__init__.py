"""What the papers leave open, asked of models trained here: a file per question, `STUDY` its declaration; claims and
their floors stand in published.toml and were written before anything was trained.

May import: `studies` and what is below it.
"""
