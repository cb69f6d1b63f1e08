"""Backbone `debug`: one process. In: a config. Out: a run folder. Ignored: clusters."""
