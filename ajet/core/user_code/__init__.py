"""The user's code: importing it, calling it, stopping in it, and noticing where it blocks."""
