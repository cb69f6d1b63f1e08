"""Runs episodes. In: tasks and workflows. Out: groups of judged trajectories, failures as values.

This package ignores gradients.
"""
