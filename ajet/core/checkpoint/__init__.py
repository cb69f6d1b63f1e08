"""Checkpoints: tensors and state of a run in a folder with a manifest, written whole or not at all."""
