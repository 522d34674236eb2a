"""Ask what Machina & Mercer, *Anisotropy is Not Inherent to Transformers*, NAACL 2024, claim, of models at hand.

`trained.py` reads the small models of `gu2025`, of the architecture of Pythia; `networks.py` real networks of packages.
"""
