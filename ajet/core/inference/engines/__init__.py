"""In: prompt token ids and sampling parameters. Out: sampled ids with their log-probabilities.

One file per engine, and for the in-process engine one per part: batch, cache, forward, sampling.
Ignores what the tokens mean: messages, tools and templates are the business of the token session.
"""
