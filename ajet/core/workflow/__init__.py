"""In: the user's agent code. Out: an output for each task. Ignores how tokens are trained."""
