"""Training samples in, changed weights and metrics out.

In: the `TrainingSample`s of one step. Out: optimizer steps on the policy's own weights, a dict of
floats, and checkpoints; a critic's values. Ignored: where samples come from, who serves the weights
next.
"""
