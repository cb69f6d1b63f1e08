"""Readers of run folders: the page, reports, replays, traces. In: a run folder. Out: what people
look at. Ignored: how a run is trained; nothing here writes to a running one.
"""
