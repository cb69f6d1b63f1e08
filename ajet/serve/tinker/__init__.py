"""Serves Tinker's API over one model, so that an unmodified script of that SDK trains here. In:
requests of the SDK (JSON and protobuf). Out: trained adapters and sampled tokens. It knows nothing
of tasks, agents, rewards and groups, which are the client's.
"""
