"""Attention over a trie of tokens, for the trainer and the in-process engine."""
