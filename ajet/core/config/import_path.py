"""The type of a key that names a function or class of the user's own.

    file.py->name              relative to the YAML's folder, then to the current one
    package.module->name

What it names is imported where it is used (core/importing.py).
"""

from typing import Annotated

from pydantic import AfterValidator

ARROW = "->"


def _checked(value: str) -> str:
    source, arrow, name = value.partition(ARROW)
    if not (source.strip() and arrow and name.strip().isidentifier()):
        raise ValueError(f"file.py->name or package.module->name is expected, got {value[:60]!r}")
    return value


ImportPath = Annotated[str, AfterValidator(_checked)]
