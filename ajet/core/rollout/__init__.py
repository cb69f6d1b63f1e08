"""In: tasks and workflows. Out: groups of judged trajectories, failures as values.

Ignores gradients.
"""
