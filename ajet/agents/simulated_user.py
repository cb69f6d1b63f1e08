"""Loads the simulated users of a run from the file that `interaction_config_path` names.

interaction:
  - {name: examiner, class_name: examiner.py->Examiner, config: {strict: true}}
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pydantic import Field

from ajet.agents.interaction import METHODS, BaseInteraction
from ajet.core.config import AjetConfig
from ajet.core.config.section import Section
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.user_code.importing import (
    as_import_spec,
    load_object,
    require_method,
    require_methods,
    run_user_code,
)
from ajet.tools.call import invoke, run_cleanup, run_with_timeout
from ajet.tools.toolbox import extra_info, find_file, read_listing

KEY = "ajet.rollout.multi_turn.interaction_config_path"


class InteractionEntry(Section):
    """A row of the file; a task's `interaction_kwargs.name` chooses one."""

    class_name: str
    name: str | None = None
    config: dict[str, Any] = Field(default={})


class SimulatedUser:
    """The simulated user of one episode. `rewards` are those of its turns; `timeout_s` bounds each
    call of its methods."""

    def __init__(
        self, interaction: Any, instance_id: str, kwargs: dict[str, Any], timeout_s: float
    ) -> None:
        self._interaction = interaction
        self._instance_id = instance_id
        self._kwargs = kwargs
        self._timeout_s = timeout_s
        self.end_failed = False
        self.rewards: list[float] = []
        self.notes: list[dict[str, Any]] = []

    async def answer(self, messages: list[dict[str, Any]]) -> str | None:
        response = await self._call_method("generate_response", messages, **self._kwargs)
        is_reply = isinstance(response, tuple | list) and len(response) == 4
        if not is_reply or not isinstance(response[1], str):
            raise TypeError(
                f"{type(self._interaction).__name__}.generate_response() returned "
                f"{type(response).__name__}: return (should_terminate, text, reward, metadata)"
            )
        is_over, text, reward, metadata = response
        if reward is not None:
            self.rewards.append(float(reward))
        if metadata:
            self.notes.append(dict(metadata))
        return None if is_over else text

    async def score(self) -> float | None:
        score = await self._call_method("calculate_score")
        return None if score is None else float(score)

    async def begin(self) -> None:
        """Calls `start_interaction`, which may return another instance id."""
        instance_id = await self._call_method("start_interaction", **self._kwargs)
        if isinstance(instance_id, str):
            self._instance_id = instance_id

    async def end(self) -> None:
        """Calls `finalize_interaction`; a failure sets `end_failed` and does not fail the
        episode."""
        finalize = self._interaction.finalize_interaction
        work = invoke(finalize, *self._instance_argument(finalize))
        who = f"{type(self._interaction).__name__}.finalize_interaction()"
        self.end_failed = not await run_cleanup(self._timeout_s, work, who)

    async def _call_method(self, method: str, *args: Any, **kwargs: Any) -> Any:
        function = getattr(self._interaction, method)
        work = invoke(function, *self._instance_argument(function), *args, **kwargs)
        return await run_with_timeout(
            self._timeout_s, work, f"{type(self._interaction).__name__}.{method}()"
        )

    def _instance_argument(self, method: Callable[..., Any]) -> tuple[str, ...]:
        """Returns the first argument of a method, which verl's base class leaves out of some."""
        kinds = {parameter.kind for parameter in inspect.signature(method).parameters.values()}
        keyword_only = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
        return () if kinds <= keyword_only else (self._instance_id,)


@asynccontextmanager
async def open_user(
    config: AjetConfig, workflow_task: WorkflowTask
) -> AsyncGenerator[SimulatedUser | None, None]:
    """Yields the simulated user of one episode, or None if the config names none."""
    interactions = load_interactions(config)
    if not interactions:
        yield None
        return
    kwargs = dict(extra_info(workflow_task).get("interaction_kwargs") or {})
    name = kwargs.get("name")
    if name is None and len(interactions) == 1:
        (name,) = interactions
    if name not in interactions:
        raise ConfigError(
            f"task {workflow_task.task_id}: extra_info.interaction_kwargs.name is {name!r}; {KEY} "
            f"has {', '.join(interactions)}",
            code=Code.TASK_SETTING,
        )
    timeout_s = config.ajet.rollout.multi_turn.tool_timeout_s
    user = SimulatedUser(interactions[name], workflow_task.episode_id, kwargs, timeout_s)
    await user.begin()
    try:
        yield user
    finally:
        await user.end()


def load_interactions(config: AjetConfig) -> dict[str, Any]:
    """Returns the simulated users of the config's file by name. The same file gives the same
    objects."""
    path = config.ajet.rollout.multi_turn.interaction_config_path
    if path is None:
        return {}
    file = find_file(path, config.base_dirs, KEY)
    return _load_cached(file, file.stat().st_mtime_ns, (file.parent, *config.base_dirs))


@lru_cache(maxsize=16)
def _load_cached(file: Path, _changed_ns: int, base_dirs: tuple[Path, ...]) -> dict[str, Any]:
    interactions_by_name: dict[str, Any] = {}
    for entry in read_listing(file, "interaction"):
        form = entry.validated_as(InteractionEntry)
        location, spec = f"{entry.location}.class_name", as_import_spec(form.class_name)
        user_class: type[Any] = load_object(
            spec, base_dirs=base_dirs, base=object, location=location
        )
        location = f"{location}: {form.class_name!r}"
        require_methods(user_class, METHODS, BaseInteraction, location)
        arguments = ("instance_id", "messages")
        require_method(user_class, "generate_response", BaseInteraction, arguments, location)
        name = form.name or user_class.__name__
        if name in interactions_by_name:
            raise ConfigError(
                f"{entry.location}: two simulated users are called {name!r}", code=Code.TOOL_TWICE
            )
        interactions_by_name[name] = run_user_code(
            partial(user_class, {"name": name} | form.config), location
        )
    return interactions_by_name
