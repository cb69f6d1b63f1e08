"""Tracks the conversion of one config: each key is taken, left out with a reason, or unknown.

    draft.copy("pg_clip", "ajet.trainer_common.algorithm.clip_low")      pg_clip is taken
    draft.leave_out("async_generation_ratio", "…", algorithm=True)       said in the new YAML's head
    draft.classify_remaining(ABSENT)                                     patterns, then: unknown

A system's own default is written if ajet's differs. Not covered: whether ajet's config accepts a
value (refusals.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal

from ajet.convert.source import ResolvedConfig
from ajet.core.config.nested import flatten
from ajet.core.config.tree import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.redaction import FreeForm

Category = Literal["algorithm", "machine", "unknown"]
UNRESOLVED = "its value is not known before it runs: give it as key=value"
DEFAULT = "'s default"
NAMES = ("ajet.project_name", "ajet.experiment_name", "ajet.experiment_dir")
NOTHING = (None, False, 0, "", [], {})


@dataclass(frozen=True)
class Absent:
    """Describes keys that have no counterpart here. A value in `off` means that the feature is not
    used."""

    reason: str
    off: tuple[Any, ...] = NOTHING
    algorithm: bool = False


def keys_of(section: str, names: str, absent: Absent) -> dict[str, Absent]:
    """Returns rules for keys of one section, named one by one. Any other key is unknown, perhaps a
    typo."""
    return {f"{section}.{name}": absent for name in names.split()}


@dataclass(frozen=True)
class OmittedKey:
    """A key of the source that is not in the result."""

    key: str
    value: Any
    reason: str
    category: Category

    @property
    def shown(self) -> str:
        """The text ``key = value``, in one line and without secrets."""
        value = FreeForm().allowed(self.value, *self.key.split("."))
        text = " ".join(str(value).split())
        return f"{self.key} = {text if len(text) <= 60 else f'{text[:57]}…'}"


@dataclass
class Conversion:
    """The result of converting one config."""

    system: str
    source: str
    values: dict[str, Any] = field(default_factory=dict)  # our dotted key -> value
    origins: dict[str, str] = field(default_factory=dict)  # our dotted key -> theirs
    blanks: dict[str, str] = field(default_factory=dict)  # our dotted key -> theirs, not known
    sections: dict[str, Any] = field(default_factory=dict)  # the user's own, as they are
    left_out: list[OmittedKey] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)  # steps that only the user can do

    def of(self, category: Category) -> list[OmittedKey]:
        """Returns the omitted keys of one category."""
        return [each for each in self.left_out if each.category == category]

    def summary(self) -> list[tuple[int, str]]:
        """Returns how many keys went where."""
        return [
            (len(self.values) + len(self.sections), "written"),
            (len(self.blanks), "left blank for you to fill in"),
            (len(self.of("algorithm")), "left out, and that changes the algorithm"),
            (len(self.of("unknown")), "left out, not known to ajet"),
            (len(self.of("machine")), "left out, no counterpart or no effect here"),
        ]

    @property
    def changes_the_algorithm(self) -> bool:
        """Is true if an omitted key changes the algorithm or may do so, as an unknown key may."""
        return bool(self.blanks) or any(each.category != "machine" for each in self.left_out)


class Draft:
    """Holds the source's keys and the result, and tracks which keys were dealt with."""

    def __init__(
        self, read: ResolvedConfig, result: Conversion, defaults: Mapping[str, Any]
    ) -> None:
        self.read = read
        self.result = result
        self._written = flatten(read.values)
        self._defaults = defaults
        self._taken: set[str] = set()
        self._unrecognised: set[str] = set()
        self._shown: set[str] = set()  # of the keys that are not known, those in a blank's line

    def has_key(self, key: str) -> bool:
        """Returns whether the source has this key, or keys below it."""
        names = (*self._written, *self.read.unresolved)
        return any(name == key or name.startswith(f"{key}.") for name in names)

    def take(self, key: str) -> Any:
        """Returns the key's value, or the system's default, or None, and marks the key as dealt
        with."""
        self._taken.add(key)
        if key in self._written:
            return self._written[key]
        if any(name.startswith(f"{key}.") for name in self._written):
            value: Any = self.read.values
            for name in key.split("."):
                value = value[name]
            return value
        return self._defaults.get(key)

    def unknown(self, *keys: str) -> list[str]:
        """Returns those of the keys whose values are not known."""
        return [key for key in keys if key in self.read.unresolved]

    def number(self, key: str) -> Any:
        """Does the same for a key that is a number; it is 0 if there is none."""
        value = self.take(key)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"{self.result.source}: {key}: a number is expected, got {value!r}",
                code=Code.CONVERT_VALUE,
            )
        return value

    def section(self, key: str) -> Mapping[str, Any]:
        """Does the same for a section; it is empty if there is none."""
        value = self.take(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{self.result.source}: {key}: a section is expected, got {value!r}",
                code=Code.CONVERT_VALUE,
            )
        return value

    def set(self, target: str, value: Any, *keys: str) -> None:
        """Sets our key `target`. `keys` are the source's keys that the value comes from; it is left
        blank if one of them is not known."""
        if unknown := self.unknown(*keys):
            self._leave_blank(target, unknown)
        if target in self.result.blanks:
            return
        written = [key for key in keys if self.has_key(key)]
        if not written and value == ajet_defaults().get(target):
            return
        self.result.values[target] = value
        origin = ", ".join(written) or f"{keys[0]}: {self.result.system}{DEFAULT}"
        self.result.origins[target] = origin

    def leave_blank(self, *targets: str, key: str, advice: str) -> None:
        """Leaves our keys for the user to fill in, because the source does not have the value.
        `key` is the source's that it would be with, and `advice` says what to write."""
        for target in targets:
            self.result.blanks[target] = f"{key}: see To do"
            self.result.values.pop(target, None)
        self.to_do(f"{' and '.join(targets)}: {advice}")

    def copy(self, key: str, target: str, change: Callable[[Any], Any] | None = None) -> None:
        """Copies the key's value to `target`, converted by `change`; null is not copied."""
        value = self.take(key)
        if key in self.read.unresolved:
            self._leave_blank(target, [key])
        elif value is not None:
            self.set(target, change(value) if change else value, key)

    def choose(self, key: str, target: str, choices: Mapping[Any, Any], reason: str) -> None:
        """Copies one value out of several choices; a value that is not among them is left out."""
        value = self.take(key)
        if key in self.read.unresolved:
            self._leave_blank(target, [key])
        elif isinstance(value, str | int | float | bool) and value in choices:
            self.set(target, choices[value], key)
        elif value is not None:
            known = ", ".join(map(str, choices))
            self.leave_out(key, f"{reason}; there are {known}", algorithm=True)

    def _leave_blank(self, target: str, keys: Sequence[str]) -> None:
        """Marks `target` as one that the user fills in, unless it is a name: ajet has its own."""
        if target in NAMES:
            return
        texts = [OmittedKey(key, self.read.unresolved[key], "", "unknown").shown for key in keys]
        self.result.blanks[target] = f"{'; '.join(texts)}: not known"
        self.result.values.pop(target, None)
        self._shown |= set(keys)

    def leave_out(self, key: str, reason: str, *, algorithm: bool = False) -> None:
        """Marks the key as dealt with and lists it as omitted."""
        category: Category = "algorithm" if algorithm else "machine"
        self.result.left_out.append(OmittedKey(key, self.take(key), reason, category))

    def ignore(self, *keys: str) -> None:
        """Marks keys as dealt with whose meaning another key carries."""
        self._taken |= set(keys)

    def to_do(self, text: str) -> None:
        """Adds something that the user has to do."""
        self.result.to_do.append(text)

    def classify_remaining(self, absent: Mapping[str, Absent]) -> None:
        """Lists every key that was not taken as omitted: known and absent here, or unknown."""
        for key, text in self.read.unresolved.items():
            if key in self._shown:
                continue
            if self._is_taken(key):
                self.result.left_out.append(OmittedKey(key, text, UNRESOLVED, "unknown"))
            else:
                self._classify(key, text, absent, unresolved=True)
        for key, value in self._written.items():
            if not self._is_taken(key):
                self._classify(key, value, absent)
        for name in self.read.missing:
            reason = "there is no such file beside this one: what it says is not known"
            self.result.left_out.append(OmittedKey("defaults", name, reason, "unknown"))

    @property
    def is_foreign(self) -> bool:
        """Is true if the source has keys, and the system has none of them."""
        return bool(self._unrecognised) and self._unrecognised >= self._written.keys()

    def _is_taken(self, key: str) -> bool:
        return any(key == name or key.startswith(f"{name}.") for name in self._taken)

    def _classify(
        self, key: str, value: Any, absent: Mapping[str, Absent], *, unresolved: bool = False
    ) -> None:
        if value is None:  # the system's own default, so nothing is lost
            return
        rule = next((rule for pattern, rule in absent.items() if fnmatchcase(key, pattern)), None)
        if rule is not None:
            # Keys of included files need no mention unless they change the algorithm: the user did
            # not write them.
            is_library = key not in self.read.own or self._is_variable(key)
            if value in rule.off or (is_library and not rule.algorithm and not unresolved):
                return
            category: Category = "algorithm" if rule.algorithm else "machine"
            self.result.left_out.append(OmittedKey(key, value, rule.reason, category))
        elif unresolved:
            self.result.left_out.append(OmittedKey(key, value, UNRESOLVED, "unknown"))
        elif key in self.read.own and not self._is_variable(key):
            self._unrecognised.add(key)
            reason = f"no key of {self.result.system} that ajet knows"
            self.result.left_out.append(OmittedKey(key, value, reason, "unknown"))

    def _is_variable(self, key: str) -> bool:
        """Returns whether another key refers to this one, so that its value is converted under that
        key."""
        return any(key == name or key.startswith(f"{name}.") for name in self.read.referenced)


@cache
def ajet_defaults() -> dict[str, Any]:
    """Returns ajet's dotted keys with their defaults."""
    return flatten(AjetConfig().model_dump())
