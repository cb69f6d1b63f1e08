"""In: the groups of a step. Out: changed weights, and the numbers that say why.

Ties advantages to the update: what both need of the models is asked for here. Ignores rollouts.
"""
