"""Environments of our own: one file each, quick, seeded, with an oracle."""
