"""Reads and writes YAML by libyaml where PyYAML was built with it, in a fifth of Python's time.

PyYAML's own parser and emitter handle what libyaml refuses: lone surrogates, and mistakes, so that
an error reads the same with libyaml and without.
"""

from typing import Any

import yaml
from yaml.constructor import SafeConstructor

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def root_of(text: str) -> yaml.Node | None:
    """Returns the YAML's root node, whose nodes have line numbers; None for an empty document.
    Raises yaml.YAMLError, and RecursionError for what nests too deeply."""
    try:
        return yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError:
        return yaml.compose(text)


def constructed(root: yaml.Node) -> Any:
    """Returns the data of a root. Raises yaml.YAMLError for a value that is not plain."""
    return SafeConstructor().construct_document(root)


def from_yaml(text: str) -> Any:
    """Returns what the YAML holds. Raises as `root_of` and `constructed` do."""
    root = root_of(text)
    return None if root is None else constructed(root)


def to_yaml(values: Any) -> str:
    """Returns plain data as YAML, in the order of its keys."""
    try:
        return yaml.dump(values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    except UnicodeEncodeError:  # a lone surrogate
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
