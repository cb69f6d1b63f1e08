"""Makes the JSON Schema of a config file, for editors that complete and check YAML.

    # yaml-language-server: $schema=ajet.schema.json

It has each key's type, default and description, from the typed tree. Dropped and renamed keys are
deprecated and say why; sections of the user's own are let through.
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
"""A value that Hydra computes, as ${oc.env:HOME}, may replace a number or a choice."""
Schema = dict[str, Any]


def config_schema() -> Schema:
    schema = AjetConfig.model_json_schema(ref_template="#/$defs/{model}")
    definitions: dict[str, Schema] = schema["$defs"]
    for model in _sections(AjetConfig):
        properties = definitions[model.__name__]["properties"]
        for name in model.model_fields:
            properties[name].pop("title", None)
            properties[name] = _with_interpolation(properties[name])
    for old, new in RENAMED.items():
        _add(schema, old, f"is {new} now")
    for old, absent in ABSENT.items():
        _add(schema, old, f"{'refused' if absent.refused else 'without effect'}: {absent.reason}")
    # A stage may set any key of `ajet`; the tree has it as a free-form mapping.
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


def _with_interpolation(key: Schema) -> Schema:
    """Returns the key's schema with an interpolation as another value. A section gets none, so that
    mistakes are found in it."""
    if "$ref" in key:
        key.pop("default", None)  # the section's keys have their own
        return key
    # Annotations stay outside of anyOf, where editors look for them.
    annotations = {
        name: key.pop(name) for name in ("default", "description", "deprecated") if name in key
    }
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
        # The section's own reference, or that of an anyOf with null.
        refs = [
            choice["$ref"]
            for choice in [properties, *properties.get("anyOf", ())]
            if "$ref" in choice
        ]
        place = schema["$defs"][refs[0].rpartition("/")[2]] if refs else None
    if place is not None and name not in place["properties"]:
        place["properties"][name] = {"deprecated": True, "description": description}
