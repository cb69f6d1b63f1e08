"""In: messages and token ids. Out: completions, token ids with log-probabilities.

The endpoint is the seam; engines, chat templates, token sessions and tool parsers are behind it.
Ignores rewards.
"""
