"""In: requests and weights. Out: completions that carry the version of those weights.

A replica in this process; those over HTTP are in `engines/`. Ignores who else serves the model.
"""
