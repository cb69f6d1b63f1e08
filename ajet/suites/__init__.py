"""Public benchmarks by name: their tasks, how the model is asked, and their official scoring.

In: the data of an installed package or of a folder. Out: tasks, a workflow and a judge, as a
config names them (registry.py). Ignores which model is measured, and how.
"""
