"""Turns a YAML and command-line overrides into one typed, frozen config tree.

In: the user's YAML (load.py composes it with the defaults of `ajet/default_config`). Out: an
`AjetConfig`. This package ignores whether models, classes and data exist.
"""

from ajet.core.config.load import load_config, load_stages
from ajet.core.config.tree import AjetConfig

__all__ = ["AjetConfig", "load_config", "load_stages"]
