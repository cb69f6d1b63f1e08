"""Ray: clusters, placement, supervised processes. In: a config. Out: actors around core's classes.

Ignored: the algorithm, which is core's and the same in one process.
"""
