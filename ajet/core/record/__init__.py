"""Writes and reads the run folder: episodes, metrics, warnings, summary, and the live display."""
