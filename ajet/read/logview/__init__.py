"""A local web page over run folders: what changed in a run, and why, down to single tokens."""
