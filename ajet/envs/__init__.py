"""The environments that come with ajet: games of its own, and adapters to other packages.

In: the settings of `env_config`. Out: `Environment` objects (core/environment/environment.py), and
`check.py`, which plays any of them without a model. Ignores agents and training.
"""
