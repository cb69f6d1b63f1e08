"""Environments of the package verifiers: their tasks, their rollout loop and their rewards.

The package runs in another interpreter; the model's calls come in over the gateway.
"""
