"""Tasks that are not rows of a file yet: made of documents, or taken from recorded conversations.

In: documents, traces, public data sets. Out: `Task` objects, or JSON lines. Ignores models that are
trained and agents.
"""
