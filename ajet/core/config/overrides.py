"""Parses command-line overrides, in Hydra's forms: key=value, +key=value, ++key=value, ~key.

ajet.experiment_name=7       -> ++ajet.experiment_name='7'    the field is text: so is the value
ajet.seed=3                  -> ++ajet.seed=3                 the tree refuses unknown keys
x.judge=judge.py->Judge      -> x.judge='judge.py->Judge'     Hydra's grammar has no arrow
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any, get_args

from pydantic import BaseModel

from ajet.core.config.redacted import redacted_value, shown_override
from ajet.core.config.tree import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

TYPED_ROOTS = tuple(AjetConfig.model_fields)
_KEY = re.compile(r"(\+{1,2}|~)?[A-Za-z_$][\w$-]*([./][\w$-]+)*(@[\w.$-]+)?", re.ASCII)


def override_key(override: str) -> str:
    """Returns the key of an override: ``ajet.seed`` for ``+ajet.seed=1``."""
    return override.split("=", 1)[0].lstrip("+~").split("@", 1)[0]


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


@lru_cache(maxsize=1024)
def parsed_override(override: str) -> Any:
    """Returns Hydra's `Override`, which callers share and must not change. Raises HydraException
    for text that its grammar does not have."""
    return _parser().parse_override(override)


def hydra_override(override: str) -> str:
    """Returns the override in the form that Hydra takes. Raises ConfigError for a malformed one."""
    from hydra.errors import HydraException

    key, equals, value = override.partition("=")
    if not _KEY.fullmatch(key) or not (equals or override.startswith("~")):
        raise ConfigError(
            f"{_quoted(override)}: write key=value, for example ajet.seed=1",
            code=Code.OVERRIDE_FORM,
        )
    _refuse_foreign(override)
    if value.endswith(".py-"):
        raise ConfigError(
            f"{_quoted(override)}: a shell takes the > of -> for a redirection, and has written "
            f"a file of the name after it: put the argument in quotes, as '{override}>Name'",
            code=Code.OVERRIDE_FORM,
        )
    try:
        parsed = parsed_override(override)
    except (HydraException, ValueError, RecursionError):
        # Text outside of Hydra's grammar (->, a brace), or a number that Python cannot parse: it is
        # meant literally.
        override = f"{key}={_quote(value)}"
        parsed = parsed_override(override)
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{_quoted(override)}: one value only; write a list as [a,b]", code=Code.OVERRIDE_FORM
        )
    if isinstance(parsed.value(), bool | int | float) and _is_text(override_key(override)):
        override = f"{key}={_quote(value)}"
    # Hydra would refuse a key that no YAML names, though the tree may have it. The ++ makes Hydra
    # accept every typed key; unknown ones are refused when the tree is validated.
    is_typed = override_key(override).split(".")[0] in TYPED_ROOTS
    plain_change = not override.startswith(("+", "~"))
    return f"++{override}" if is_typed and plain_change else override


def override_value(override: str) -> tuple[str, Any]:
    """Returns the key and the value of an override ``key=value``. Raises ConfigError for another
    form."""
    parsed = parsed_override(hydra_override(override))
    if parsed.is_delete():
        raise ConfigError(
            f"{_quoted(override)}: a value is expected here, as key=value", code=Code.OVERRIDE_FORM
        )
    return override_key(override), _plain(parsed.value())


def _plain(value: Any) -> Any:
    """Returns Hydra's value with its quoted texts as plain ones."""
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def unknown_override(override: str, composed: Mapping[str, Any]) -> str:
    """Says what to do about an override of a key that the composed YAML does not have."""
    section: Any = composed
    path: list[str] = []
    for name in override_key(override).split("."):
        if not isinstance(section, Mapping):
            key = ".".join(path)
            return f"{key} is not a section: it is {redacted_value(key, section)!r}"
        path.append(name)
        if name not in section:
            break
        section = section[name]
    close = get_close_matches(path[-1], [str(key) for key in section], 1)
    if override.startswith("~"):
        hint = f"did you mean {close[0]!r}?" if close else "there is nothing to take out"
        return f"{'.'.join(path)}: no such key; {hint}"
    hint = f"did you mean {close[0]!r}? To" if close else "to"
    added = shown_override(override).lstrip("+")
    return f"{'.'.join(path)}: no such key; {hint} add it, write +{added}"


def _quoted(override: str) -> str:
    return f"override {shown_override(override)!r}"


def _refuse_foreign(override: str) -> None:
    root = re.split(r"[./]", override_key(override))[0]
    if root == "hydra":
        raise ConfigError(
            f"{_quoted(override)}: Hydra's own settings cannot be overridden; leave it out (a "
            "YAML's hydra.searchpath is read)",
            code=Code.OVERRIDE_FORM,
        )
    key = override.partition("=")[0]
    if root in TYPED_ROOTS and ("/" in key or "@" in key):
        raise ConfigError(
            f"{_quoted(override)}: write a key of the tree as {root}.…=value",
            code=Code.OVERRIDE_FORM,
        )


def _is_text(key: str) -> bool:
    """Tells whether the tree's field takes text, so that a number is text too."""
    model: Any = AjetConfig
    for name in key.split("."):
        is_section = isinstance(model, type) and issubclass(model, BaseModel)
        if not is_section or name not in model.model_fields:
            return False
        model = model.model_fields[name].annotation
    return model is str or str in get_args(model)


def _quote(value: str) -> str:
    # In Hydra's grammar a backslash escapes only before a quote, and stands for itself elsewhere.
    return "'" + re.sub(r"(\\*)('|\Z)", _escaped, value) + "'"


def _escaped(match: re.Match[str]) -> str:
    backslashes, quote = match.groups()
    return backslashes * 2 + (quote and f"\\{quote}")
