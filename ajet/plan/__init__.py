"""`ajet plan`: a config and a model's config.json -> the memory and time of a run before it starts.
Nothing that starts a run imports this package.
"""
