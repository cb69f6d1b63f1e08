"""Environments of the package verifiers: their tasks, their rollout loop and their rewards.

In: `verifiers.env` of a config, as `vf-eval` takes it. Out: tasks, and for each episode a reward
and metrics. The package runs in an interpreter of its own; the model's calls come in over the
gateway.
"""
