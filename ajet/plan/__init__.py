"""A config and a model's config.json -> what a run needs and takes, before it starts (`ajet plan`).

The model is built on torch's meta device, so no weights are read. Nothing that starts a run imports
this package.
"""
