"""The studies: one file per figure or table of the two papers."""
