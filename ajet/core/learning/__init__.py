"""Connects advantages with the update: computes here what both need of the models.

In: the groups of a step. Out: changed weights, and the metrics of the change. Ignored: rollouts.
"""
