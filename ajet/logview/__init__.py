"""A local page over one run folder: its episodes in a list, each one token by token.

In: a run folder's `episodes.sqlite`, config and tokenizer, read only, also while the run goes on.
Out: a web page on the loopback interface. Ignores everything about training.
"""
