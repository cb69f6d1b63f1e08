"""Turns a YAML and command-line overrides into one typed, frozen config tree.

In: the user's YAML (load.py composes it with the defaults of `ajet/default_config`). Out: an
`AjetConfig`. This package ignores whether models, classes and data exist.
"""

from ajet.core.config.load import load_config, load_stages
from ajet.core.config.tree import AjetConfig, AjetSection, UserSection

__all__ = ["AjetConfig", "AjetSection", "UserSection", "load_config", "load_stages"]
