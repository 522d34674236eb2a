"""A guest of the tool: one thing for every door."""
