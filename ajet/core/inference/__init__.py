"""Takes messages or token ids and returns completions: token ids with log-probabilities.

The endpoint is the interface to engines, chat templates, token sessions and tool parsers.
"""
