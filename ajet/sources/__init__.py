"""Makes tasks of documents, recorded conversations and public data sets.

In: documents, traces, public data sets. Out: `Task` objects, or JSON lines. Ignores agents
and the models that are trained.
"""
