"""Runs environments. In: an environment's name, or a task of a served one. Out: a live instance for
one episode, closed or released at its end.

This package ignores models, tokens and the meaning of rewards (ajet/tools/env_service/judge.py
reads the score).
"""
