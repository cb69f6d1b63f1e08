"""Writes ajet/default_config/*.yaml from the typed tree: each key, its default, its description.

python scripts/default_config.py            # exit code 1 if a file differs from the tree
python scripts/default_config.py --write
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ajet.core.config.tree import AjetConfig

FOLDER = Path(__file__).parents[1] / "ajet/default_config"
FILES = {
    "ajet": FOLDER / "ajet_default.yaml",
    "verl": FOLDER / "verl/verl_default.yaml",
    "trinity": FOLDER / "trinity/trinity_default.yaml",
}
HEADERS = {
    "ajet": "# Every key of `ajet:` with its default. Your YAML needs only what differs.\n",
    "verl": "# The settings of backbone verl alone.\n",
    "trinity": "# The settings of backbone trinity alone.\n",
}
REQUIRED = {"env_type": "frozen_lake"}
"""Examples of the fields without a default, of entries that the user names."""
WRITTEN_BY = "# Written by scripts/default_config.py from the types in ajet/core/config.\n"


def section_lines(section: BaseModel, indent: str) -> Iterator[str]:
    """Yields the YAML lines of a section; a section that holds another has its lines below it."""
    fields = type(section).model_fields
    # Fields of the class come before inherited ones: adv_estimator before the estimators' settings.
    for name in sorted(fields, key=lambda name: name not in type(section).__annotations__):
        value, field = getattr(section, name), fields[name]
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from section_lines(value, f"{indent}  ")
            continue
        if (entry_type := section_of_entries(field)) is not None:
            yield f"{indent}# Each entry of {name} has:"
            yield from section_lines(entry_type(**REQUIRED), f"{indent}#   ")
        yield f"{indent}{name}: {scalar(value)}  # {field.description}{choices(field)}"


def section_of_entries(field: FieldInfo) -> type[BaseModel] | None:
    """Returns the class of the entries of a field that maps names to sections."""
    entry_types = get_args(field.annotation)[1:]
    is_section = entry_types and isinstance(entry_types[0], type)
    return entry_types[0] if is_section and issubclass(entry_types[0], BaseModel) else None


def choices(field: FieldInfo) -> str:
    """Returns the choices of a field, as far as its description names none."""
    values = [value for value in literals(field.annotation) if value not in str(field.description)]
    return f" One of {', '.join(literals(field.annotation))}." if values else ""


def literals(annotation: Any) -> list[str]:
    """Returns the texts that a type allows where it is a Literal or a union with one."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    return [value for part in get_args(annotation) for value in literals(part)]


def scalar(value: Any) -> str:
    """Returns a default as YAML on one line: 1.0e-06, null, [], "text"."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def file_text(name: str) -> str:
    """Returns the text of one of the files; `name` is its top key."""
    lines = section_lines(getattr(AjetConfig(), name), "  ")
    return HEADERS[name] + WRITTEN_BY + "\n".join([f"{name}:", *lines]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    different = [name for name, path in FILES.items() if path.read_text() != file_text(name)]
    if write:
        for name in different:
            FILES[name].write_text(file_text(name))
    elif different:
        print(f"{', '.join(str(FILES[name]) for name in different)}: run with --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
