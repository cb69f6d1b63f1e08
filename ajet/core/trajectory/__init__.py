"""Records the calls of an episode as turns, and cuts them into timelines and training samples.

Every sampled token of a trainable agent ends up in exactly one loss mask.
"""
