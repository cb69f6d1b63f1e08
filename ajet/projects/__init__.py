"""A project of the user's own: a kind, or a file with an agent  ->  files that train as they are."""
