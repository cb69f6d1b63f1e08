"""Connects advantages with the update. In: a step's groups. Out: changed weights and metrics."""
