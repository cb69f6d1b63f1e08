"""Engines take prompt token ids and sampling parameters, and return sampled ids with logprobs.

There is one file per engine, and for the in-process engine one per part: batch, cache, forward,
sampling. Engines do not know what tokens mean; messages, tools and templates belong to the token
session.
"""
