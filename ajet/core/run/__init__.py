"""Holds what every training loop shares.

In: a config and its tasks. Out: the next step, when to validate and to save, and the state from
which a killed run resumes. Ignores how a step is computed: each backbone's loop does that.
"""
