"""Serves a model that learns from its traffic. In: requests and feedback over HTTP. Out: replies of
a version, and a log of sessions, rounds and decisions. Planned episodes and clusters are elsewhere.
"""
