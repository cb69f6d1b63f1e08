"""Serves a run over HTTP: episodes that clients run, and learning from a served model's traffic."""
