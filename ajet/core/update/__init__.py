"""Updates the policy and the critic. In: the `TrainingSample`s of one step. Out: optimizer steps on
the models' own weights, metrics, the state for checkpoints, and a critic's values.
"""
