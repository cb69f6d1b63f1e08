"""The type of a key that names a function or class of the user's own.

    file.py->name              relative to the YAML's folder, then to the current one
    package.module->name

What it names is imported where it is used (core/importing.py).
"""

from typing import Annotated

from pydantic import Field

ARROW = "->"
ImportPath = Annotated[str, Field(pattern=r"^[^>]+->\s*\w+\s*$")]
