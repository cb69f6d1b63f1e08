"""Checks a call's arguments against the JSON schema of its tool.

An invalid schema, or one with a reference to another document, is an error of one line before a
launch. References are never fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

if TYPE_CHECKING:
    from jsonschema import ValidationError

MAX_NAME_CHARACTERS = 128


def check_parameters(name: str, parameters: Any) -> None:
    """Raises a `ConfigError` unless the parameters are a JSON schema of an object, and the name is
    one that a model can write in a call."""
    if not name.isprintable() or len(name.split()) != 1 or len(name) > MAX_NAME_CHARACTERS:
        short_name = name[:MAX_NAME_CHARACTERS]
        raise ConfigError(
            f"tool {short_name!r}: a name is a word of 1 to {MAX_NAME_CHARACTERS} characters",
            code=Code.TOOL_SCHEMA,
        )
    if not isinstance(parameters, Mapping):
        raise ConfigError(
            f"tool {name!r}: its parameters are not a JSON schema: not an object",
            code=Code.TOOL_SCHEMA,
        )
    with _schema_errors(name):
        _follow_references(_validator(name, _as_json(parameters)))
    if "object" not in parameters.get("type", "object"):  # a name of a type, or a list of them
        raise ConfigError(
            f"tool {name!r}: its parameters are of type {parameters['type']!r}, but those of a "
            "call are an object",
            code=Code.TOOL_SCHEMA,
        )


def first_violation(
    name: str, parameters: Mapping[str, Any], arguments: Mapping[str, Any]
) -> ValidationError | None:
    """Returns how the arguments first violate the schema, or None."""
    with _schema_errors(name):
        return next(_validator(name, _as_json(parameters)).iter_errors(arguments), None)


@contextmanager
def _schema_errors(name: str) -> Iterator[None]:
    from referencing.exceptions import Unresolvable

    try:
        yield
    except Unresolvable as error:
        raise ConfigError(
            f"tool {name!r}: its parameters refer to {error.ref!r}", code=Code.TOOL_SCHEMA
        ) from None
    except RecursionError:
        raise ConfigError(
            f"tool {name!r}: its parameters refer to themselves", code=Code.TOOL_SCHEMA
        ) from None


def _as_json(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, default=str, skipkeys=True)


@lru_cache(maxsize=256)
def _validator(name: str, schema: str) -> Any:
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    parameters = json.loads(schema)
    try:
        validator_class = validator_for(parameters, default=Draft202012Validator)
        validator_class.check_schema(parameters)
    except (SchemaError, AttributeError, ValueError) as error:  # the last two: its `$schema`
        reason = " ".join(getattr(error, "message", "its $schema is not an address").split())[:200]
        raise ConfigError(
            f"tool {name!r}: its parameters are not a JSON schema: {reason}", code=Code.TOOL_SCHEMA
        ) from None
    # An empty registry: the default one would fetch references over the network.
    return validator_class(parameters, registry=Registry())


def _follow_references(validator: Any) -> None:
    """Resolves every `$ref`, and applies every part of the schema to an empty object: validation
    would only follow what the arguments lead to. A circle of references is a RecursionError."""
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012, specification_with

    dialect = validator.META_SCHEMA.get("$schema", "")
    root = Resource(validator.schema, specification_with(dialect, default=DRAFT202012))
    pending = [(root, Registry().resolver_with_root(root))]
    while pending:
        resource, resolver = pending.pop()
        for keyword in ("$ref", "$dynamicRef"):
            contents = resource.contents
            reference = contents.get(keyword) if isinstance(contents, dict) else None
            if isinstance(reference, str):
                resolver.lookup(reference)
        for _ in validator.descend({}, resource.contents, resolver=resolver):
            pass
        pending += [(part, resolver.in_subresource(part)) for part in resource.subresources()]
