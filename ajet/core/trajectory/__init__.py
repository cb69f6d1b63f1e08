"""Records episodes and turns them into samples.

In: the calls of an episode. Out: trajectories, timelines, and samples that the update reads. Every
sampled token of a trainable agent is in exactly one loss mask. Ignored: what rewards mean.
"""
