"""The environments that come with ajet: games, and adapters to other packages.

They implement core/environment/environment.py. `check.py` plays any of them without a model.
"""
