"""Processes that train together: collectives, sharded weights, sequence parallelism."""
