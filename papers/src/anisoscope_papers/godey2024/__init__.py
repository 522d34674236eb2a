"""Reproduce Godey, de la Clergerie & Sagot, *Anisotropy Is Inherent to Self-Attention in Transformers*, EACL 2024.

One file per figure; `STUDY` (or `STUDIES`) declares it. May import: `studies` and what is below it.
"""
