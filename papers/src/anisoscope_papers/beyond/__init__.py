"""Our own studies: what the papers leave open, asked of models trained here.

One file per question; `STUDY` declares it. Claims and their floors are in published.toml, and were written before
anything was trained. May import: the modules at the top of
`anisoscope_papers`, `training`, `networks`, the papers that it goes beyond, and the tool.
"""
