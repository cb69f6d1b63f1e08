"""Replicas take requests and weights, and return completions with the version of those weights.

Here is the replica in this process; those over HTTP are in `ajet/servers`. A replica does not know
the other replicas of the model.
"""
