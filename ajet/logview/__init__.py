"""A local page over run folders: what changed in a run, and why, down to single tokens.

In: run folders, read only, also while the runs go on.
Out: a web page on the loopback interface. Ignores everything about training.
"""
