"""Checkpoints: a run's tensors and state in a folder with a manifest, whole or not there."""
