"""Converts a file of another system to a `Conversion`: it is read (a YAML, or a script's command),
its interpolations are resolved, the system's module converts the keys, and values that ajet's
config refuses are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ajet.convert import (
    agentjet,
    chatlearn,
    roll,
    roll_keys,
    trinity,
    trinity_keys,
    verl,
    verl_keys,
)
from ajet.convert.command_line import CommandLine, read_script, with_overrides
from ajet.convert.draft import DEFAULT, Absent, Category, Conversion, Draft, OmittedKey
from ajet.convert.source import NotConvertible, SourceConfig, read_file, resolve, unflatten
from ajet.core.config.explain import message_of
from ajet.core.config.other_systems import recognise
from ajet.core.config.support import refusals_and_notices, unread_keys
from ajet.core.config.tree import AjetConfig
from ajet.core.errors import OptionError

YAML = (".yaml", ".yml")
ALGORITHM = (
    "ajet.trainer_common.algorithm",
    "ajet.trainer_common.critic",
    "ajet.trainer_common.optim",
    "ajet.trainer_common.lora",
    "ajet.trainer_common.use_kl",
    "ajet.trainer_common.kl_",
    "ajet.trainer_common.ppo_epochs",
    "ajet.trainer_common.mini_batch_num",
    "ajet.rollout.temperature",
    "ajet.rollout.top_",
    "ajet.rollout.num_repeat",
    "ajet.rollout.agent_madness",
    "ajet.rollout.compute_madness",
    "ajet.rollout.enable_oversample",
    "ajet.data.train_batch_size",
    "ajet.environment.custom_envs",
    "ajet.environment.train_env_manager",
    "ajet.task_judge",
)
"""Prefixes of the keys that decide what is trained, and how."""


@dataclass(frozen=True)
class System:
    """One system: how to convert its configs, their defaults, and keys without counterpart."""

    name: str
    take: Callable[[Draft], None]
    absent: Mapping[str, Absent]
    defaults: Mapping[str, Any]
    known_defaults: tuple[str, ...] = ()  # the system's own files that `defaults:` may name
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further defaults, by patterns of programs, of the system's own files and of sections."""
    entry: tuple[str, ...] = ()  # parts of the names, or starts of the keys, of what starts it
    trainers: tuple[str, ...] = ("*",)  # the programs that compute what the system's config says


SYSTEMS = {
    "roll": System(
        "ROLL",
        roll.take,
        roll_keys.ABSENT,
        roll_keys.DEFAULTS,
        ("deepspeed_*",),
        entry=("start_agentic_pipeline",),
    ),
    "verl": System(
        "verl",
        verl.take,
        verl_keys.ABSENT,
        verl_keys.DEFAULTS,
        tuple(
            f"{name}ppo_*trainer"
            for name in ("", "fully_async_", "one_step_off_", "transfer_queue_")
        ),
        verl_keys.CONFIGS,
        ("verl.", "recipe.", "recipe/", "main_ppo", "actor_rollout_ref."),
        ("verl.*", "*recipe[./]dapo[./]*", "main_ppo*", "*verl/trainer/*"),
    ),
    "chatlearn": System(
        "ChatLearn",
        chatlearn.take,
        chatlearn.ABSENT,
        chatlearn.DEFAULTS,
        entry=("entrypoint.py", "chatlearn.entrypoint"),
    ),
    "agentjet": System(
        "AgentJet",
        agentjet.take,
        agentjet.ABSENT,
        agentjet.DEFAULTS,
        ("verl_default", "trinity_default", "ajet_default"),
    ),
    "trinity": System("Trinity-RFT", trinity.take, trinity_keys.ABSENT, trinity_keys.DEFAULTS),
}


def convert(
    system: str, path: Path | str, overrides: Sequence[str] = (), launch: int | None = None
) -> Conversion:
    """Converts the file. Each of its keys is in the result, as a value or as something left out.
    `launch` is the number of the training, for a script that starts several."""
    source_system, path = SYSTEMS[system], Path(path)
    result = Conversion(source_system.name, path.name)
    read, line = _read(source_system, path, launch)
    unknown = with_overrides(read, [*line.overrides, *overrides], line.unknown)
    _refuse_other_systems(system, read.values, path)
    resolve(read)
    read.unresolved |= unknown
    names = [line.module, *read.shipped, *read.values]
    defaults = dict(source_system.defaults)
    for pattern, more in source_system.configs.items():
        if any(fnmatchcase(name, pattern) for name in names):
            defaults |= more
    draft = Draft(read, result, defaults)
    try:
        source_system.take(draft)
    except (TypeError, ValueError, AttributeError) as error:  # such as text instead of a list
        problem = f"a value has a type that {source_system.name} does not take: {error}"
        raise NotConvertible(f"{path}: {problem}") from error
    draft.classify_remaining(source_system.absent)
    # Every key is unknown: this is another system's file, or another kind of file.
    if draft.is_foreign and not recognise(read.values):
        problem = f"not a config of {source_system.name}: ajet knows none of its keys"
        raise NotConvertible(f"{path}: {problem}")
    if line.module and not any(fnmatchcase(line.module, name) for name in source_system.trainers):
        reason = f"a trainer based on {source_system.name}'s: what it changes is in its code"
        result.left_out.append(OmittedKey("program", line.module, reason, "algorithm"))
    drop_refused(result)
    if "ajet.model.path" not in result.values | result.blanks:
        draft.to_do("name the model: ajet.model.path")
    result.to_do += line.to_do
    return result


def _refuse_other_systems(system: str, values: Mapping[str, Any], path: Path) -> None:
    """Raises ConfigError for a config that only looks like other systems' configs. AgentJet's are
    recognised by their section `ajet:`, because any other section may be the user's."""
    systems = recognise(values)
    is_marked = any(recognised.name == system for recognised in systems)
    if is_marked or not (systems or system == "agentjet"):
        return
    problem = f"not a config of {SYSTEMS[system].name}: "
    if systems:
        recognised = systems[0]
        problem += f"it looks like one of {recognised.title} (it has {recognised.key}): "
        problem += f"ajet convert --from {recognised.name} {path}"
    else:
        problem += "it has no section 'ajet:'"
    raise NotConvertible(f"{path}: {problem}")


def _refuse_other_scripts(source_system: System, path: Path) -> None:
    """Raises ConfigError for a script that starts another system, and not this one."""
    script = path.read_text(encoding="utf-8", errors="replace")
    started = [n for n, system in SYSTEMS.items() if any(word in script for word in system.entry)]
    names = [name for name in started if SYSTEMS[name] is not source_system]
    if names and len(names) == len(started):
        raise NotConvertible(
            f"{path}: not a script of {source_system.name}: it starts {SYSTEMS[names[0]].name}: "
            f"ajet convert --from {names[0]} {path}"
        )


def _read(
    source_system: System, path: Path, launch: int | None
) -> tuple[SourceConfig, CommandLine]:
    if path.suffix in YAML and launch is not None:
        raise OptionError(f"--launch {launch}: {path} is a YAML; only a script starts trainings")
    if path.suffix in YAML:
        return read_file(path, source_system.known_defaults), CommandLine()
    if not path.is_file():
        raise NotConvertible(f"{path}: no such file (the current folder is {Path.cwd()})")
    _refuse_other_scripts(source_system, path)
    if not source_system.entry:
        raise NotConvertible(f"{path}: a config of {source_system.name} ends in .yaml")
    command = read_script(path, source_system.entry, launch or 1)
    options = command.options
    name = options.get("--config-file") or options.get("--config-name", "")
    # A script may set everything on its command line, over the system's own defaults.
    if not name:
        return SourceConfig(), command
    if "--config-file" not in options:
        folder = options.get("--config-path") or options.get("--config-dir", "")
        name = str(Path(folder) / name)
        name += "" if name.endswith(YAML) else ".yaml"
    # Names in scripts are relative to where they are run: a folder above the script, perhaps.
    folders = [Path.cwd(), *path.resolve().parents]
    files = [folder / relative for folder in folders for relative in (name, Path(name).name)]
    file = next((file for file in files if file.is_file()), None)
    if file is None and not command.overrides:
        raise NotConvertible(
            f"{path}: everything it sets is in {name}, which is not here: give that file"
        )
    if file is None:
        is_shipped = any(fnmatchcase(Path(name).stem, s) for s in source_system.known_defaults)
        read = SourceConfig(shipped=[name]) if is_shipped else SourceConfig(missing=[name])
        return read, command
    return read_file(file, source_system.known_defaults), command


def drop_refused(result: Conversion) -> None:
    """Removes values that ajet's config refuses from the result, with the config's messages as
    reasons, until it refuses none. So a converted config loads, except for a missing
    ajet.model.path, which is listed as a to-do."""
    while True:  # pydantic's errors hide refusals of later checks, so one pass is not enough
        try:
            config = AjetConfig.model_validate(unflatten(result.values))
        except ValidationError as error:
            # One value may have several errors, one for each type that it could have.
            details = error.errors(include_url=False)[0]
            key = ".".join(part for part in details["loc"] if isinstance(part, str))
            is_unknown = details["type"] == "extra_forbidden"
            _drop(result, key, "no such key here" if is_unknown else message_of(details))
            continue
        refused, _ = refusals_and_notices(config)
        for key, reason in refused:
            _drop(result, key, reason)
        if not refused:
            # Defaults of the other system at keys that nothing reads would only be noise.
            for key in unread_keys(config.ajet):
                for name in [name for name in result.values if f"{name}.".startswith(f"{key}.")]:
                    if DEFAULT in result.origins[name]:
                        del result.values[name], result.origins[name]
            return


def _drop(result: Conversion, key: str, reason: str) -> None:
    """Removes the value at this key, or all values below it."""

    def is_touched(name: str) -> bool:
        return name == key or name.startswith(f"{key}.") or key.startswith(f"{name}.")

    # The error may be about something inside a value: go up to a key that the result has.
    while not (keys := list(filter(is_touched, result.values))) and "." in key:
        key = key.rpartition(".")[0]
    for name in keys:
        category: Category = "algorithm" if name.startswith(ALGORITHM) else "machine"
        value, origin = result.values.pop(name), result.origins.pop(name)
        result.left_out.append(OmittedKey(origin, value, f"{name}: {reason}", category))
