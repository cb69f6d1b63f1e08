"""Hands the episodes of a run to clients over HTTP, and takes their results back."""
