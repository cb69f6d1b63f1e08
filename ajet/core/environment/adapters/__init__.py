"""Environments of other packages and processes, as ours."""
