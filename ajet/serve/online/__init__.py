"""Serves a model that learns from its traffic: sessions and feedback come in over HTTP, and rounds
of training make new versions."""
