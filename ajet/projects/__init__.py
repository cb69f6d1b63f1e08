"""Projects of the user's own: a kind, or a file that holds an agent -> files that train.

Not known here: how a run goes.
"""
