"""Runs command-line agents, unchanged, as workflows. In: a task. Out: the folder it left."""
