"""In: the calls of an episode. Out: trajectories, timelines, and samples that the update reads.

Every sampled token of a trainable agent is in exactly one loss mask. Ignores what rewards mean.
"""
