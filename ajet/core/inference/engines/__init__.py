"""Engines take prompt token ids and sampling parameters, and return sampled ids with logprobs.

One file per engine; the in-process engine has one per part: batch, cache, forward, sampling.
"""
