"""Backbone `trinity`: an explorer and a trainer at the same time, joined by a buffer."""
