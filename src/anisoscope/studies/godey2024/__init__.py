"""Godey, de la Clergerie and Sagot, EACL 2024."""
