"""The config: a YAML and command-line overrides become one typed, frozen tree.

In: the user's YAML (load.py composes it with the defaults of `ajet/default_config`). Out: an
`AjetConfig`. Ignored: whether models, classes and data exist.
"""

from ajet.core.config.load import load_config
from ajet.core.config.tree import AjetConfig, AjetSection, UserSection

__all__ = ["AjetConfig", "AjetSection", "UserSection", "load_config"]
