"""Runs environments. In: an environment's name. Out: a live instance for one episode, which is
closed at its end. This package ignores models, tokens and the meaning of rewards.
"""
