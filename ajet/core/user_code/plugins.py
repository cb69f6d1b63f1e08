"""Finds what packages register by entry point, ajet's own packages included.

    [project.entry-points."ajet.judges"]
    my_judge = "my_package.judges:MyJudge"      # then: judge_protocol: my_judge

Groups: ajet.workflows, ajet.harnesses, ajet.judges, ajet.environments, ajet.environment_prefixes,
ajet.readers, ajet.estimators, ajet.losses, ajet.suites, ajet.commands, ajet.compat. An object is
imported when it is used.
"""

from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from ajet.core.errors import ConfigError, WrongKind
from ajet.core.errors.codes import Code

OURS = "ajet"

T = TypeVar("T")


@cache
def _installed() -> Any:
    # Reads the metadata of every distribution, whatever the group. The type differs by version of
    # Python; all of them have `select`.
    return entry_points()


@cache
def plugins(group: str) -> Mapping[str, EntryPoint]:
    """Returns the entry points of a group by name: ajet's own first, both parts sorted by name.
    Raises ConfigError where two distributions register one name."""
    by_name: dict[str, EntryPoint] = {}
    for entry_point in sorted(_installed().select(group=group), key=_ours_first):
        earlier = by_name.setdefault(entry_point.name, entry_point)
        if earlier.value != entry_point.value:
            raise ConfigError(
                f"{group}: {entry_point.name!r} is registered by {_origin(earlier)} and by "
                f"{_origin(entry_point)}: uninstall one of them",
                code=Code.NAME_TAKEN,
            )
    return by_name


def load_plugin(group: str, name: str, instance_of: type | None = None) -> Any:
    """Imports and returns the object that is registered under `name`, which must exist. Raises
    ConfigError if it cannot be imported, or is not an instance of the class that is asked for."""
    entry_point = plugins(group)[name]
    try:
        plugin = entry_point.load()
    except (ImportError, AttributeError) as error:
        if _is_ours(entry_point):
            raise
        raise ConfigError(
            f"{group}: {name!r} of {_origin(entry_point)} cannot be imported: {error}",
            code=Code.OWN_FILE_FAILS,
        ) from error
    if instance_of is not None and not isinstance(plugin, instance_of):
        raise WrongKind(
            f"{group}: {name!r} of {_origin(entry_point)} is a {type(plugin).__name__}, where a "
            f"{instance_of.__name__} is expected"
        )
    return plugin


def find_row(rows: Mapping[str, T], group: str, name: str, row_type: type[T]) -> T | None:
    """Returns the row of a registry under this name, or the one that a package registers in the
    group, or None. Raises ConfigError where both have the name."""
    refuse_names(rows, group)
    return load_plugin(group, name, row_type) if name in plugins(group) else rows.get(name)


def refuse_names(names: Collection[str], group: str) -> None:
    """Raises ConfigError where a package registers one of ajet's names in the group."""
    for name in sorted(plugins(group).keys() & names):
        raise ConfigError(
            f"{group}: {name!r} of {_origin(plugins(group)[name])} has the name of one of ajet's: "
            "uninstall the package, or register it under another name",
            code=Code.NAME_TAKEN,
        )


def _is_ours(entry_point: EntryPoint) -> bool:
    return entry_point.dist is not None and entry_point.dist.name == OURS


def _ours_first(entry_point: EntryPoint) -> tuple[bool, str]:
    return not _is_ours(entry_point), entry_point.name


def _origin(entry_point: EntryPoint) -> str:
    name = "an unknown package" if entry_point.dist is None else entry_point.dist.name
    return f"{name} ({entry_point.value})"
