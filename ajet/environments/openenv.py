"""Plays an environment of OpenEnv, on a server or in this process; actions are text by a rule.

    env_type: openenv:http://127.0.0.1:8000             a server, as `uvicorn server.app:app`
    env_type: openenv:my_env.server->MyEnvironment      a class of this process
    env_config:
      reset: {difficulty: easy}      arguments of reset() besides seed
      action_field: move             the field that the text is, if the action has several
      observation_fields: [board]    the fields that are shown; default: all
      timeout_s: 60                  the time limit of one answer of a server

How an action is written follows from its JSON schema (json_action.py). An environment of MCP tools
is asked for them, and an action calls one. The observation's text is its fields, without done,
reward and metadata. The metric success is taken from a bool `success` of the metadata. The seed is
always sent; `ajet inspect env` finds out whether it decides the instance. There are no splits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import ConfigError, EnvironmentFault, SettingError
from ajet.environments.json_action import ActionForm, ToolForm, fields_text, value_text
from ajet.environments.openenv_session import ActionRefused, Data, open_session

TOOL_FIELDS = {"tool_name", "arguments"}


class OpenEnvEnvironment(Environment):
    """Plays one episode of an OpenEnv environment. `settings` are the arguments of a class in this
    process."""

    def __init__(
        self,
        name: str,
        /,
        reset: Mapping[str, Any] | None = None,
        action_field: str | None = None,
        observation_fields: Sequence[str] | None = None,
        timeout_s: float = 60.0,
        **settings: Any,
    ) -> None:
        self._name = name
        self._reset_options = dict(reset or {})
        self._shown_fields = observation_fields
        self._session = open_session(name, timeout_s, settings)
        try:
            self.form = self._form(action_field)
        except (ConfigError, EnvironmentFault):
            self._session.close()
            raise
        self.instruction = self.form.instruction()
        self.observation = ""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        arguments = self._reset_options | ({} if seed is None else {"seed": seed})
        self.observation = self._text(self._session.reset(arguments))
        return self.observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        read = self._read(action)
        if read is None:
            return self._refusal()
        try:
            data = self._session.step(read)
        except ActionRefused:
            return self._refusal()
        self.observation = self._text(data)
        metrics: dict[str, Any] = {"action_is_valid": True}
        metadata = self._fields(data).get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("success"), bool):
            metrics["success"] = metadata["success"]
        reward = 0.0 if data.get("reward") is None else data["reward"]
        return self.observation, reward, data.get("done", False), False, {"metrics": metrics}

    def render(self) -> str:
        return self.observation

    def close(self) -> None:
        self._session.close()

    def sample_action(self, rng: random.Random) -> str:
        return self.form.sample(rng)

    def _form(self, action_field: str | None) -> ActionForm | ToolForm:
        schema = self._session.action_schema
        try:
            form = ActionForm.from_schema(schema, action_field)
        except KeyError:
            raise SettingError(
                f"openenv:{self._name}: env_config.action_field: the action has no field "
                f"{action_field!r}; it has {', '.join(ActionForm.from_schema(schema).fields)}"
            ) from None
        # The package's MCP environments declare a generic action; their tools say more.
        if form.fields.keys() in (set(), TOOL_FIELDS):
            return self._tool_form()
        return form

    def _tool_form(self) -> ToolForm:
        listed = self._fields(self._session.step({"type": "list_tools"})).get("tools")
        arguments, about = {}, {}
        for tool in listed if isinstance(listed, list) else []:
            if not (isinstance(tool, dict) and isinstance(tool.get("name"), str)):
                raise EnvironmentFault(f"openenv:{self._name}: list_tools: a tool has no name")
            schema = tool.get("input_schema")
            form = ActionForm.from_schema(schema if isinstance(schema, dict) else {})
            arguments[tool["name"]] = form
            about[tool["name"]] = " ".join(str(tool.get("description") or "").split())
        if not arguments:
            raise EnvironmentFault(f"openenv:{self._name}: its action has no fields and no tools")
        return ToolForm(arguments, about)

    def _read(self, text: str) -> Data | None:
        if isinstance(self.form, ActionForm):
            return self.form.read(text)
        call = self.form.read(text)
        if call is None:
            return None
        return {"type": "call_tool", "tool_name": call[0], "arguments": call[1]}

    def _refusal(self) -> tuple[str, float, bool, bool, Info]:
        metrics = {"action_is_valid": False}
        return f"{self.instruction}\n{self.observation}", 0.0, False, False, {"metrics": metrics}

    def _text(self, data: Data) -> str:
        fields = {k: v for k, v in self._fields(data).items() if k != "metadata"}
        if self._shown_fields is not None:
            missing = [name for name in self._shown_fields if name not in fields]
            if missing:
                raise EnvironmentFault(
                    f"openenv:{self._name}: the observation has no field {missing[0]!r} "
                    f"(env_config.observation_fields); it has {', '.join(fields)}"
                )
            fields = {name: fields[name] for name in self._shown_fields}
        if isinstance(self.form, ToolForm) and "tool_name" in fields:
            return _tool_answer(fields)
        return fields_text(fields)

    def _fields(self, data: Data) -> Mapping[str, Any]:
        fields = data.get("observation")
        if not isinstance(fields, dict):
            raise EnvironmentFault(f"openenv:{self._name}: the answer has no observation")
        return fields


def _tool_answer(fields: Mapping[str, Any]) -> str:
    error = fields.get("error")
    if error:
        return f"Error: {value_text(error.get('message') if isinstance(error, dict) else error)}"
    result = fields.get("result")
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        texts = [part.get("text") for part in result["content"] if isinstance(part, dict)]
        return "\n".join(part for part in texts if isinstance(part, str))
    return value_text(result)
