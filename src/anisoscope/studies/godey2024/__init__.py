"""Godey, de la Clergerie & Sagot, *Anisotropy Is Inherent to Self-Attention in Transformers*, EACL 2024."""
