"""Clusters, placement and processes on Ray. In: a config. Out: actors around core's classes.

Ignored: the algorithm, which is in core and the same in one process.
"""
