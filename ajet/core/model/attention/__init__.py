"""Attention over a trie of tokens, for the trainer and the in-process engine.

trie.py          rows -> a forest, in which each distinct prefix occurs once
varlen_plan.py   a forest -> the calls of flash attention
merging.py       two softmaxes over different keys become one
"""
