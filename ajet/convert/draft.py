"""Tracks the conversion of one config: each key is taken, left out with a reason, or unknown. A
default of the other system is written if ajet's differs.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ajet.convert.source import SourceConfig
from ajet.core.config.nested import flatten
from ajet.core.config.tree import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.text.redaction import FreeForm

Category = Literal["algorithm", "machine", "unknown"]
UNRESOLVED = "its value is not known before it runs: give it as key=value"
DEFAULT = "'s default"
NAMES = ("ajet.project_name", "ajet.experiment_name", "ajet.experiment_dir")
CHOSEN = tuple(f"ajet.trainer_common.algorithm.{key}" for key in ("adv_estimator", "policy_loss"))
"""Our keys without a value where the source's has no counterpart: a default would be another
algorithm."""
COLUMNS = [f"data.{name}_key" for name in ("image", "video", "audio", "reward_fn")]
"""Keys of verl that name a column, and no secret."""
NOTHING = (None, False, 0, "", [], {})
ENABLED, MAX_IMAGES = "ajet.model.images.enabled", "ajet.model.images.max_images"
TRAIN_TOWER = "ajet.model.images.train_tower"
_NAME = re.compile(r"vlm?(?![a-z])|\dv(?![a-z])|vision|llava|pixtral|minicpm-[vo]|omni", re.I)
"""What names of models that see images have: Qwen2.5-VL, InternVL3, SmolVLM, GLM-4.1V, …"""
_TOWER = {"visual", "vision", "vision_model", "vision_tower"}
"""What families call the module."""


@dataclass(frozen=True)
class Absent:
    """Keys without a counterpart here. Nothing is lost with a value in `off`."""

    reason: str
    off: tuple[Any, ...] = NOTHING
    algorithm: bool = False


def refused(reason: str, off: tuple[Any, ...] = NOTHING) -> Absent:
    return Absent(reason, off, algorithm=True)


def keys_of(section: str, names: str, absent: Absent) -> dict[str, Absent]:
    """Returns rules for keys of one section ("" for none), named one by one. Any other key is
    unknown, perhaps a typo."""
    prefix = f"{section}." if section else ""
    return {f"{prefix}{name}": absent for name in names.split()}


@dataclass(frozen=True)
class Choices:
    """Values with a counterpart. Any other value is left out, with this reason."""

    values: Mapping[Any, Any]
    reason: str


@dataclass(frozen=True)
class Default:
    """The other system's default of a row."""

    value: Any


Row = tuple[Any, ...]
"""A row of a table: the source's key, ajet's key, how the value is converted (a function or
`Choices`, if it is) and the source's `Default`, if ajet's may differ."""


def defaults_of(*tables: Iterable[Row]) -> dict[str, Any]:
    rows = [row for table in tables for row in table]
    return {row[0]: row[-1].value for row in rows if isinstance(row[-1], Default)}


def same_keys(section: str, target: str, names: str) -> list[Row]:
    """Returns rows for keys of a section that have the same names in our section `target`."""
    return [(f"{section}.{name}", f"{target}.{name}") for name in names.split()]


def same_names(names: str) -> dict[str, str]:
    """Returns choices that have the same name in both systems."""
    return {name: name for name in names.split()}


def resume_mode(resumes: bool) -> str:
    """Returns our `resume` for a key that is true or false."""
    return "auto" if resumes else "disable"


def num_batches(total: int, size: int) -> int:
    """Returns how many batches of this size there are, the last of which may be smaller."""
    return max(1, -(-total // max(1, size)))


SCHEDULES = Choices(
    same_names("constant linear cosine") | {"constant_with_warmup": "constant"},
    "the learning rate stays constant",
)
"""Learning-rate schedules, by their names in transformers and verl."""
BY_SEQUENCE = "seq-mean-token-mean"
"""How gspo averages token losses in verl and Trinity-RFT, and sapo and geo_mean in verl."""
AGGREGATIONS = Choices(
    same_names(f"token-mean seq-mean-token-sum {BY_SEQUENCE} seq-mean-token-sum-norm"),
    "no such aggregation",
)
"""How token losses are averaged: all systems have the same names."""


@dataclass(frozen=True)
class OmittedKey:
    key: str
    value: Any
    reason: str
    category: Category

    @property
    def shown(self) -> str:
        """The text ``key = value``, in one line and without secrets."""
        value = FreeForm(COLUMNS).allowed(self.value, *self.key.split("."))
        text = " ".join(str(value).split())
        return f"{self.key} = {text if len(text) <= 60 else f'{text[:57]}…'}"


@dataclass
class Conversion:
    system: str
    source: str
    values: dict[str, Any] = field(default_factory=dict)  # our dotted key -> value
    origins: dict[str, str] = field(default_factory=dict)  # our dotted key -> theirs
    blanks: dict[str, str] = field(default_factory=dict)  # our dotted key -> theirs, unknown
    sections: dict[str, Any] = field(default_factory=dict)  # the user's, unchanged
    left_out: list[OmittedKey] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)  # steps that only the user can take

    def of(self, category: Category) -> list[OmittedKey]:
        return [omitted for omitted in self.left_out if omitted.category == category]

    def summary(self) -> list[tuple[int, str]]:
        return [
            (len(self.values) + len(self.sections), "written"),
            (len(self.blanks), "left blank for you to fill in"),
            (len(self.of("algorithm")), "left out, and that changes the algorithm"),
            (len(self.of("unknown")), "left out, not known to ajet"),
            (len(self.of("machine")), "left out, no counterpart or no effect here"),
        ]

    @property
    def changes_the_algorithm(self) -> bool:
        """True if an omitted key changes the algorithm or may do so, as an unknown key may."""
        return bool(self.blanks) or any(omitted.category != "machine" for omitted in self.left_out)


class Draft:
    """The source's keys and the result; tracks which keys were dealt with."""

    def __init__(self, read: SourceConfig, result: Conversion, defaults: Mapping[str, Any]) -> None:
        self.read = read
        self.result = result
        self._written = flatten(read.values)
        self._defaults = defaults
        # Keys that were dealt with; a taken section covers all keys below it.
        self._taken: set[str] = set()
        self._unrecognised: set[str] = set()
        self._shown: set[str] = set()  # unknown keys that the line of a blank mentions

    def has_key(self, key: str) -> bool:
        """Tells whether the source has this key, or keys below it."""
        names = (*self._written, *self.read.unresolved)
        return any(name == key or name.startswith(f"{key}.") for name in names)

    def take(self, key: str) -> Any:
        """Returns the key's value or the system's default or None, and marks it as dealt with."""
        self._taken.add(key)
        if key in self._written:
            return self._written[key]
        # The key is a section: return it as a mapping.
        if any(name.startswith(f"{key}.") for name in self._written):
            value: Any = self.read.values
            for name in key.split("."):
                value = value[name]
            return value
        return self._defaults.get(key)

    def unknown(self, *keys: str) -> list[str]:
        """Returns those of the keys whose values are unknown."""
        return [key for key in keys if key in self.read.unresolved]

    def number(self, key: str) -> Any:
        """Like `take`, for a number; 0 if there is none."""
        value = self._expected(key, (int, float), "number")
        return 0 if value is None else value

    def section(self, key: str) -> Mapping[str, Any]:
        """Like `take`, for a section; empty if there is none."""
        return self._expected(key, (Mapping,), "section") or {}

    def _expected(self, key: str, types: tuple[type, ...], name: str) -> Any:
        value = self.take(key)
        if value is None or (isinstance(value, types) and not isinstance(value, bool)):
            return value
        raise ConfigError(
            f"{self.result.source}: {key}: a {name} is expected, got {value!r}",
            code=Code.CONVERT_VALUE,
        )

    def set(self, target: str, value: Any, *keys: str) -> None:
        """Sets our key `target`. `keys` are the source's keys from which the value is computed; it
        is left blank if one of them is unknown."""
        if unknown := self.unknown(*keys):
            self._leave_blank(target, unknown)
        if unknown or target in self.result.blanks:
            return
        if isinstance(value, bool) and type(ajet_defaults().get(target)) in (int, float):
            value = int(value)  # the source is Python, to which False is 0
        # Both systems' defaults agree, so the new YAML need not mention the key.
        written = [key for key in keys if self.has_key(key)]
        if not written and value == ajet_defaults().get(target):
            return
        self.result.values[target] = value
        origin = ", ".join(written) or f"{keys[0]}: {self.result.system}{DEFAULT}"
        if not written and self.read.missing:
            origin += f", unless {Path(self.read.missing[0]).name} sets it"
        self.result.origins[target] = origin

    def leave_blank(self, *targets: str, key: str, advice: str) -> None:
        """Leaves our keys for the user to fill in, because the source lacks the value. `key` is the
        source's key closest to it, and `advice` says what to write."""
        for target in targets:
            self.result.blanks[target] = f"{key}: see To do"
            self.result.values.pop(target, None)
        self.to_do(f"{' and '.join(targets)}: {advice}")

    def refuse_choice(self, target: str, name: Any, key: str, reason: str) -> None:
        """Refuses an algorithm that is not here, and leaves our key for the user to fill in."""
        self.refuse(key, reason)
        self.leave_blank(target, key=key, advice=f"there is no {name} here: choose one")

    def copy_all(self, rows: Iterable[Row]) -> None:
        for key, target, *rest in rows:
            self.copy(key, target, *(part for part in rest if not isinstance(part, Default)))

    def copy(
        self, key: str, target: str, change: Callable[[Any], Any] | Choices | None = None
    ) -> None:
        """Copies the key's value to `target`, converted by `change`; null is not copied."""
        value = self.take(key)
        if key in self.read.unresolved:
            self._leave_blank(target, [key])
        elif value is None:
            return
        elif not isinstance(change, Choices):
            self.set(target, change(value) if change else value, key)
        elif isinstance(value, str | int | float | bool) and value in change.values:
            self.set(target, change.values[value], key)
        else:
            reason = f"{change.reason}; there are {', '.join(map(str, change.values))}"
            if target in CHOSEN:
                self.refuse_choice(target, value, key, reason)
            else:
                self.refuse(key, reason)

    def _leave_blank(self, target: str, keys: Sequence[str]) -> None:
        """Marks `target` as one to fill in, unless it is a name: ajet has defaults for these."""
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

    def refuse(self, key: str, reason: str) -> None:
        """Leaves out a key whose loss changes the algorithm."""
        self.leave_out(key, reason, algorithm=True)

    def ignore(self, *keys: str) -> None:
        """Marks keys as dealt with, because another key carries their meaning."""
        self._taken |= set(keys)

    def to_do(self, text: str) -> None:
        self.result.to_do.append(text)

    def classify_remaining(self, absent: Mapping[str, Absent]) -> None:
        """Lists every key that was not taken as omitted: without counterpart, or unknown."""
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
            reason = "this file does not exist next to the config: its keys are unknown"
            self.result.left_out.append(OmittedKey("defaults", name, reason, "unknown"))

    @property
    def is_foreign(self) -> bool:
        """True if the source has keys, but none that the system has."""
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
            # Keys of included files are only listed if they change the algorithm: the user did not
            # write them.
            is_library = key not in self.read.explicit or self._is_variable(key)
            if value in rule.off or (is_library and not rule.algorithm and not unresolved):
                return
            category: Category = "algorithm" if rule.algorithm else "machine"
            self.result.left_out.append(OmittedKey(key, value, rule.reason, category))
        elif unresolved:
            self.result.left_out.append(OmittedKey(key, value, UNRESOLVED, "unknown"))
        elif key in self.read.explicit and not self._is_variable(key):
            self._unrecognised.add(key)
            reason = f"not a key of {self.result.system} that ajet knows"
            self.result.left_out.append(OmittedKey(key, value, reason, "unknown"))

    def _is_variable(self, key: str) -> bool:
        """Tells whether another key refers to this one, so that its value is converted there."""
        return any(key == name or key.startswith(f"{name}.") for name in self.read.referenced)


def take_thinking(draft: Draft, key: str) -> None:
    """Converts the option of chat templates that says whether a reply begins with thinking."""
    draft.copy(key, "ajet.model.chat_template_kwargs", lambda value: {"enable_thinking": value})


def take_moved(draft: Draft, key: str, earlier: str, target: str) -> None:
    """Converts a number that the system reads at `key`, and that earlier versions of it read at
    `earlier`."""
    is_early = draft.has_key(earlier) and not draft.has_key(key)
    draft.copy(earlier if is_early else key, target, float)
    if is_early and draft.take(earlier) != draft.take(key):
        draft.to_do(
            f"see whether {earlier} counts, as in earlier versions: later ones read {key}, which "
            f"is {draft.take(key)} where it is not written"
        )
    elif draft.has_key(earlier) and not is_early:
        draft.leave_out(earlier, f"{draft.result.system} reads {key}")


def take_schedule(draft: Draft, schedule: str, num_steps: str, ratio: str | None = None) -> None:
    """Converts the learning-rate schedule. `schedule`, `num_steps` (of the run) and `ratio` (of the
    last rate) are keys of the source."""
    name = SCHEDULES.values.get(draft.take(schedule), "constant")
    # Ours ends with the run's last step.
    if name != "constant" and draft.number(num_steps) < 1:
        reason = f"the learning rate stays constant: a schedule ends with the run, and {num_steps} "
        draft.refuse(schedule, f"{reason}is not set")
    else:
        draft.copy(schedule, "ajet.trainer_common.optim.lr_schedule", SCHEDULES)
    if ratio is not None:
        draft.copy(ratio, "ajet.trainer_common.optim.min_lr_ratio", float)


def sees_images(draft: Draft, path: str) -> bool:
    """Returns whether the model named by the source's key `path` is of a family that sees images,
    as far as its name tells."""
    name = draft.read.unresolved.get(path) or draft.take(path)
    return _NAME.search(str(name)) is not None


def is_tower(modules: Any) -> bool:
    """Returns whether these names or patterns of modules (".*visual.*") are those of a vision tower
    and of nothing else."""
    text = " ".join(map(str, modules)) if isinstance(modules, list) else str(modules or "")
    words = set(re.findall(r"\w+", text)) - {"model"}
    return bool(words) and words <= _TOWER


def take_tower(draft: Draft, key: str, *, has_adapters: bool) -> None:
    """Converts a vision tower that the source trains, because its `key` does not freeze it."""
    if has_adapters:
        draft.refuse(key, "adapters are those of the language model; here the tower has none")
    else:
        draft.set(TRAIN_TOWER, True, key)


@cache
def ajet_defaults() -> dict[str, Any]:
    return flatten(AjetConfig().model_dump())
