"""Godey, de la Clergerie & Sagot, *Anisotropy Is Inherent to Self-Attention in Transformers*, EACL 2024: a file per
figure, `STUDY` (or `STUDIES`) its declaration.

May import: `studies` and what is below it.
"""
