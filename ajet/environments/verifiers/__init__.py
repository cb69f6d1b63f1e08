"""Environments of the package verifiers, in another interpreter: their tasks, loop and rewards."""
