"""Runs the user's agent code, which gives an output for each task. Training plays no part here."""
