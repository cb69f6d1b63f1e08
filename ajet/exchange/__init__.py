"""Hands the episodes of a run to clients over HTTP. In: planned episodes. Out: what clients made of
them. Training, judging and the model's own API are elsewhere."""
