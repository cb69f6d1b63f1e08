"""Public benchmarks by name: their tasks, how the model is asked, and their official scoring.

They read the data of an installed package or of a folder. registry.py lists them.
"""
