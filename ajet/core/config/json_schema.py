"""Makes the JSON Schema of a config file, for editors that complete and check YAML.

    # yaml-language-server: $schema=ajet.schema.json

It has each key's type, default and sentence, from the typed tree. A dropped key of a section that
is still there is deprecated and says why, as is a key that has another name now. Sections of the
user's own are let through. A stage (`ajet.stages.NAME`) has the keys of `ajet`.

Not covered: what depends on several keys (`load_config` checks that), and keys below `ajet` that
Hydra's `defaults` bring in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ajet.core.config.agentjet_keys import ABSENT
from ajet.core.config.renames import RENAMED
from ajet.core.config.section import Section
from ajet.core.config.tree import AjetConfig

DIALECT = GenerateJsonSchema.schema_dialect
INTERPOLATION = {"type": "string", "pattern": r"\$\{"}
"""A value that Hydra computes, as ${oc.env:HOME}, stands wherever a number or a choice does."""
Schema = dict[str, Any]


def config_schema() -> Schema:
    """Returns the schema as plain data."""
    schema = AjetConfig.model_json_schema(ref_template="#/$defs/{model}")
    definitions: dict[str, Schema] = schema["$defs"]
    for model in _sections(AjetConfig):
        _describe(definitions[model.__name__], model)
    for old, new in RENAMED.items():
        _add(schema, old, f"is {new} now")
    for old, absent in ABSENT.items():
        _add(schema, old, f"{'refused' if absent.refused else 'without effect'}: {absent.reason}")
    stages = definitions["AjetSection"]["properties"]["stages"]
    stages["additionalProperties"] = {"anyOf": [{"$ref": "#/$defs/AjetSection"}, {"type": "null"}]}
    schema["$schema"] = DIALECT
    schema["title"] = "a config of ajet"
    schema["additionalProperties"] = True
    return schema


def _sections(model: type[Any]) -> dict[type[Section], None]:
    """Returns the classes of all sections below a model, each once."""
    sections: dict[type[Section], None] = {}
    for field in model.model_fields.values():
        for cls in _classes(field.annotation):
            if issubclass(cls, Section):
                sections |= {cls: None, **_sections(cls)}
    return sections


def _classes(annotation: Any) -> list[type[Any]]:
    inner = [cls for argument in getattr(annotation, "__args__", ()) for cls in _classes(argument)]
    return [annotation] if isinstance(annotation, type) else inner


def _describe(schema: Schema, model: type[Section]) -> None:
    """Lets an interpolation stand for each key of a section."""
    for name in model.model_fields:
        key = schema["properties"][name]
        key.pop("title", None)
        key = _with_interpolation(key)
        schema["properties"][name] = key


def _with_interpolation(key: Schema) -> Schema:
    """Returns the key's schema with an interpolation as another value; a section's stays as it is,
    so that mistakes are found in it. What is said of the key stays outside, where editors look."""
    if "$ref" in key:
        key.pop("default", None)  # its keys say theirs
        return key
    annotations = {name: key.pop(name) for name in ("default", "description", "deprecated") if name in key}
    is_text = key.get("type") == "string" and not key.keys() & {"enum", "pattern"}
    if is_text or not key:
        return key | annotations
    choices = key["anyOf"] if list(key) == ["anyOf"] else [key]
    return {"anyOf": [*choices, INTERPOLATION], **annotations}


def _add(schema: Schema, path: str, description: str) -> None:
    """Adds a key that the tree does not have, as a deprecated one of any type."""
    *sections, name = path.split(".")
    place: Schema | None = schema
    for section in sections:
        properties: Mapping[str, Any] = place["properties"].get(section, {}) if place else {}
        refs = [choice["$ref"] for choice in [properties, *properties.get("anyOf", ())] if "$ref" in choice]
        place = schema["$defs"][refs[0].rpartition("/")[2]] if refs else None
    if place is not None and name not in place["properties"]:
        place["properties"][name] = {"deprecated": True, "description": description}
