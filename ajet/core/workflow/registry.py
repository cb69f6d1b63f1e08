"""The registry of workflows by agent name; a dataset's `agent_name` column picks one for each task.

    @register("math_agent")
    class MathAgent(Workflow): ...      # or a class with build_graph() and run(): see graph.py
                                        # or with run(sampling_params, …): see agent_loop.py

    agent_name: math_agent     the registered class
    agent_name: tool_agent     one of ajet's own agents (agents/), imported when it is first used
    agent_name: harness:codex  a command-line agent (harness/)
    no agent_name              the config's `ajet.rollout.user_workflow`, else `single_turn_agent`

The user's modules are those of `ajet.rollout.agent_modules`. The YAML at `agent_loop_config_path`
lists agent loops in verl's form:

    - name: math_expression                          rows name it as their agent_name
      _target_: package.module.MathAgentLoop         or file.py->Class
      max_retries: 3                                 an argument of its constructor
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ajet.core.errors import ConfigError, WrongKind
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import did_you_mean
from ajet.core.text.plain_value import plain_text
from ajet.core.user_code.importing import (
    arrow_form,
    as_import_spec,
    line_of,
    load_module,
    load_object,
)
from ajet.core.user_code.plugins import load_plugin, plugins
from ajet.core.workflow.agent_loop import as_loop_workflow, is_agent_loop
from ajet.core.workflow.graph import as_workflow, is_graph
from ajet.core.workflow.workflow import Workflow

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.task.task import Task

MAX_NAME_SHOWN = 200
LISTING_KEY = "ajet.rollout.agent.agent_loop_config_path"
IGNORED = ("_recursive_", "_convert_")
"""Keys of Hydra for the conversion of settings, which are plain values here."""
DEFAULT_AGENT = "single_turn_agent"
WORKFLOWS, HARNESSES = "ajet.workflows", "ajet.harnesses"
"""The groups of entry points with installed agents, ajet's own among them; a config names one of
the second as harness:NAME."""
HARNESS = "harness:"

T = TypeVar("T")

_WORKFLOWS: dict[str, type[Workflow]] = {}


def register(agent_name: str) -> Callable[[type[T]], type[T]]:
    """Returns a class decorator: tasks with this `agent_name` run the class."""
    if is_installed(agent_name):
        raise ConfigError(
            f"agent_name {agent_name!r} is the name of an installed agent: choose another",
            code=Code.NAME_TAKEN,
        )

    def decorate(agent_class: type[T]) -> type[T]:
        _add(agent_name, workflow_for(agent_class, f"@register({agent_name!r})", agent_name))
        return agent_class

    return decorate


def workflow_for(agent_class: type, key: str, agent_name: str | None = None) -> type[Workflow]:
    """Returns the class if it is a workflow, else a workflow that runs it as a loop or a graph (the
    registered one, unless `agent_name` names another)."""
    if issubclass(agent_class, Workflow):
        return agent_class
    is_loop = is_agent_loop(agent_class)
    if not is_loop and not is_graph(agent_class):
        raise WrongKind(
            f"{key}: {line_of(agent_class)}: {agent_class.__name__} is not a Workflow; "
            "derive it from ajet.Workflow"
        )
    # A class that is registered already keeps its wrapper, with its name and settings.
    for existing in _WORKFLOWS.values():
        wraps = getattr(existing, "loop_class" if is_loop else "graph_class", None)
        if wraps is agent_class and agent_name is None:
            return existing
    return (as_loop_workflow if is_loop else as_workflow)(
        agent_class, agent_name or agent_class.__name__
    )


def registered_workflow(agent_name: str) -> type[Workflow] | None:
    """Returns the installed agent of this name, or the class registered under it, or None."""
    if is_installed(agent_name):
        return load_plugin(*_entry(agent_name))
    return _WORKFLOWS.get(agent_name)


def is_installed(agent_name: str) -> bool:
    """Tells whether the agent comes with an installed package and not with the user's files."""
    group, name = _entry(agent_name)
    return name in plugins(group)


def _entry(agent_name: str) -> tuple[str, str]:
    if agent_name.startswith(HARNESS):
        return HARNESSES, agent_name.removeprefix(HARNESS)
    return WORKFLOWS, agent_name


class WorkflowFactory:
    """Makes one workflow object for each episode of a task. `modules` are the config's modules that
    register agents."""

    def __init__(self, default: type[Workflow], modules: Sequence[ModuleType] = ()) -> None:
        self.default, self.modules = default, modules

    @classmethod
    def for_rows(cls) -> Self:
        """Returns the factory of episodes whose replies come from the rows of the data."""
        workflow = registered_workflow("given_chat")
        assert workflow is not None
        return cls(workflow)

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Imports the user's workflow; its errors are found before a model is loaded."""
        rollout, base_dirs = config.ajet.rollout, config.base_dirs
        # First the modules that register agents and the listed loops: the workflow may be one.
        key = "ajet.rollout.agent_modules"
        modules = [load_module(s, base_dirs=base_dirs, location=key) for s in rollout.agent_modules]
        for listed in _listed_loops(rollout.agent.agent_loop_config_path, base_dirs):
            _register_listed(listed)
            modules.append(sys.modules[listed.loop_class.__module__])
        key, spec = "ajet.rollout.user_workflow", rollout.user_workflow or DEFAULT_AGENT
        if (registered := registered_workflow(spec)) is not None:
            return cls(registered, modules)
        if "->" not in spec:
            if (form := arrow_form(spec)) is not None:
                raise ConfigError(f"{key}: {spec!r}: write {form}", code=Code.OWN_SPEC_FORM)
            raise ConfigError(
                f"{key}: nothing is registered as {spec!r}; name a class as path/file.py->Class, "
                f"or an agent: {unknown_agent_hint(spec)}",
                code=Code.AGENT_NOT_REGISTERED,
            )
        agent_class = load_object(spec, base_dirs=base_dirs, base=object, location=key)
        return cls(workflow_for(agent_class, f"{key}: {spec!r}"), modules)

    def __call__(self, task: Task) -> Workflow:
        return self.class_for(task)()

    def class_for(self, task: Task) -> type[Workflow]:
        """Returns the class that the task names, or the default if it names none."""
        name = task.metadata.get("agent_name")
        if not name:
            return self.default
        registered = registered_workflow(str(name))
        if registered is None:
            raise ConfigError(
                f"task {task.task_id}: no workflow is registered as agent_name "
                f"{plain_text(name, MAX_NAME_SHOWN)!r}; "
                f"{unknown_agent_hint(str(name))}",
                code=Code.AGENT_NOT_REGISTERED,
            )
        return registered

    def classes_for(self, tasks: Iterable[Task]) -> list[type[Workflow]]:
        """Returns the classes that these tasks run. Raises ConfigError for an unknown name."""
        return list(dict.fromkeys(map(self.class_for, tasks)))


def unknown_agent_hint(name: str) -> str:
    """Returns a hint for a name that is not registered: the closest name, or all names."""
    existing = sorted(
        [*plugins(WORKFLOWS), *(f"{HARNESS}{name}" for name in plugins(HARNESSES)), *_WORKFLOWS]
    )
    hint = did_you_mean(name, existing)
    return f"{hint} (a file that registers more is named in ajet.rollout.agent_modules)"


def _register_listed(listed: _ListedLoop) -> None:
    if is_installed(listed.name):
        raise ConfigError(
            f"{listed.location}: {listed.name!r} is the name of an installed agent",
            code=Code.NAME_TAKEN,
        )
    if not is_agent_loop(listed.loop_class):
        raise WrongKind(
            f"{listed.location}: {line_of(listed.loop_class)}: {listed.loop_class.__name__} "
            "is not an agent loop: derive it from ajet.compat.verl.AgentLoopBase"
        )
    existing = _WORKFLOWS.get(listed.name)
    registered = (getattr(existing, "loop_class", None), getattr(existing, "settings", None))
    if registered != (listed.loop_class, listed.settings):
        _add(listed.name, as_loop_workflow(listed.loop_class, listed.name, listed.settings))


def _add(agent_name: str, workflow: type[Workflow]) -> None:
    existing = _WORKFLOWS.get(agent_name)
    if existing is not None and _qualified_name(existing) != _qualified_name(workflow):
        raise ConfigError(
            f"agent_name {agent_name!r} is registered twice: "
            f"by {_qualified_name(existing)} and by {_qualified_name(workflow)}",
            code=Code.NAME_TAKEN,
        )
    _WORKFLOWS[agent_name] = workflow


def _qualified_name(workflow: type[Workflow]) -> str:
    return f"{workflow.__module__}.{workflow.__qualname__}"


@dataclass(frozen=True, slots=True)
class _ListedLoop:
    """One entry of the file."""

    name: str
    loop_class: type
    settings: Mapping[str, Any]
    location: str


def _listed_loops(path: str | None, base_dirs: Sequence[Path]) -> Iterator[_ListedLoop]:
    """Yields the loops of the file, imported; nothing without a file."""
    if path is None:
        return
    candidates = [(folder / Path(path).expanduser()).resolve() for folder in base_dirs]
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        tried = ", ".join(map(str, dict.fromkeys(candidates)))
        raise ConfigError(
            f"{LISTING_KEY}: {path}: no such file; looked for {tried}", code=Code.TOOL_LISTING
        )
    for order, entry in enumerate(_entries(file)):
        yield _listed(entry, f"{file.name}: [{order}]", (file.parent, *base_dirs))


def _listed(entry: Any, location: str, base_dirs: tuple[Path, ...]) -> _ListedLoop:
    fields = dict(entry) if isinstance(entry, Mapping) else {}
    name, target = fields.pop("name", None), fields.pop("_target_", None)
    if not (isinstance(name, str) and name and isinstance(target, str)):
        raise ConfigError(
            f"{location}: write an agent loop as name: … and _target_: module.Class",
            code=Code.TOOL_LISTING,
        )
    settings = {key: value for key, value in fields.items() if key not in IGNORED}
    if unknown := [key for key in settings if str(key).startswith("_")]:
        raise ConfigError(
            f"{location}: no key {unknown[0]!r} here: leave it out", code=Code.TOOL_LISTING
        )
    location = f"{location}._target_"
    loop_class = load_object(
        as_import_spec(target), base_dirs=base_dirs, base=object, location=location
    )
    return _ListedLoop(name, loop_class, settings, f"{location}: {target!r}")


def _entries(file: Path) -> list[Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        entries = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: no valid YAML: {' '.join(str(error).split())}", code=Code.TOOL_LISTING
        ) from error
    if not isinstance(entries, list):
        raise ConfigError(
            f"{file}: a list of agent loops is expected: - name: …", code=Code.TOOL_LISTING
        )
    return entries
