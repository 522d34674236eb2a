"""Fosse, Nguyen, Sébillot and Gravier, TALN 2023."""
