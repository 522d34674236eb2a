"""Thin forms of Anisoscope for other libraries, which are imported where they are used only."""
