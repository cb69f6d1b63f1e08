"""Plays an environment of OpenEnv, on a server or in this process; actions are text by a rule.

docs/environments.md has the settings, json_action.py the form of an action. An environment of MCP
tools is asked for them, and an action calls one. There are no splits.
"""

from __future__ import annotations

import inspect
import json
import random
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import ConfigError, EnvironmentFault, NoSuchEnvironment, SettingError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import one_line
from ajet.core.user_code.importing import load_object
from ajet.environments.json_action import ActionForm, ToolForm, fields_text, value_text

TOOL_FIELDS = {"tool_name", "arguments"}
MAX_MESSAGE_BYTES = 16 << 20
CLOSE_TIMEOUT_S = 1.0
Data = Mapping[str, Any]


class OpenEnvEnvironment(Environment):
    """Plays one episode of an OpenEnv environment. `settings` are the arguments of a class in this
    process. The seed is always sent; `ajet inspect env` finds out whether it decides the
    instance."""

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
        if isinstance(self.form, ActionForm):
            fields = self.form.read(action)
        else:
            call = self.form.read(action)
            fields = call and {"type": "call_tool", "tool_name": call[0], "arguments": call[1]}
        try:
            if fields is None:
                raise ActionRefused
            data = self._session.step(fields)
        except ActionRefused:
            metrics = {"action_is_valid": False}
            text = f"{self.instruction}\n{self.observation}"
            return text, 0.0, False, False, {"metrics": metrics}
        self.observation = self._text(data)
        metrics = {"action_is_valid": True}
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
        if form.fields.keys() not in (set(), TOOL_FIELDS):
            return form
        # The package's MCP environments declare a generic action; their tools say more.
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
        if isinstance(self.form, ActionForm) or "tool_name" not in fields:
            return fields_text(fields)
        if error := fields.get("error"):
            message = error.get("message") if isinstance(error, dict) else error
            return f"Error: {value_text(message)}"
        result = fields.get("result")
        if isinstance(result, dict) and isinstance(result.get("content"), list):
            texts = [part.get("text") for part in result["content"] if isinstance(part, dict)]
            return "\n".join(part for part in texts if isinstance(part, str))
        return value_text(result)

    def _fields(self, data: Data) -> Mapping[str, Any]:
        fields = data.get("observation")
        if not isinstance(fields, dict):
            raise EnvironmentFault(f"openenv:{self._name}: the answer has no observation")
        return fields


class ActionRefused(Exception):
    """The environment's action class does not take these fields."""


class ServedSession:
    """One session with a server, over WebSocket; raises EnvironmentFault for answers outside the
    protocol. `reset` and `step` return observation, reward and done.

        GET  /schema                                  {"action": JSON schema, …}
        WS   /ws   {"type": "reset", "data": {"seed": 7}}
                   {"type": "step", "data": {"message": "hi"}}
               ->  {"type": "observation", "data": {"observation": {…}, "reward": 0.2, …}}
               or  {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "…"}}

    The server's routes /reset and /step make a new environment at each call, so they are not used.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self.action_schema = _action_schema(self._url, timeout_s)
        url_parts = urlsplit(self._url)
        scheme = {"http": "ws", "https": "wss"}[url_parts.scheme]
        address = urlunsplit((scheme, url_parts.netloc, f"{url_parts.path}/ws", "", ""))
        try:
            self._socket = connect(
                address,
                open_timeout=timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=MAX_MESSAGE_BYTES,
            )
        except (OSError, WebSocketException) as error:
            raise EnvironmentFault(f"{address}: {one_line(error)}") from error

    def reset(self, options: Data) -> Data:
        return self._ask("reset", options)

    def step(self, action: Data) -> Data:
        return self._ask("step", action)

    def close(self) -> None:
        self._socket.close()

    def _ask(self, message_type: str, data: Data) -> Data:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            with suppress(ConnectionClosed):  # a server without room says so, then closes
                self._socket.send(json.dumps({"type": message_type, "data": data}))
            text = self._socket.recv(timeout=self._timeout_s)
        except TimeoutError:
            raise EnvironmentFault(
                f"{self._url}: {message_type} gave no answer within {self._timeout_s:g} s "
                "(env_config.timeout_s)"
            ) from None
        except (OSError, WebSocketException) as error:
            raise EnvironmentFault(f"{self._url}: {message_type}: {one_line(error)}") from error
        answer = _json_object(text, f"{self._url}: {message_type}")
        answer_data = answer.get("data")
        if not isinstance(answer_data, dict):
            raise EnvironmentFault(f"{self._url}: {message_type}: the answer has no data")
        if answer.get("type") == "error":
            if message_type == "step" and answer_data.get("code") == "VALIDATION_ERROR":
                raise ActionRefused
            code = answer_data.get("code")
            reason = " ".join(f"{code}: {answer_data.get('message')}".split())[:300]
            if code == "CAPACITY_REACHED":
                reason += "; raise the server's max_concurrent_envs, or lower max_env_worker"
            raise EnvironmentFault(f"{self._url}: {message_type}: {reason}")
        return answer_data


class LocalSession:
    """Calls an environment object of this process; `spec` names its class."""

    def __init__(self, spec: str, settings: Data) -> None:
        self._spec = spec
        location = f"openenv:{spec}"
        environment_class: Any = load_object(
            spec, base_dirs=[Path.cwd()], base=object, location=location
        )
        step = getattr(environment_class, "step", None)
        try:
            action_class = typing.get_type_hints(step).get("action") if callable(step) else None
        except NameError:  # the annotation is imported for type checkers only
            action_class = None
        if not isinstance(action_class, type) or not hasattr(action_class, "model_json_schema"):
            raise ConfigError(
                f"{location}: {environment_class.__name__}.step needs the class of its action: "
                "annotate it, as step(self, action: MyAction)",
                code=Code.NOT_AN_ENVIRONMENT,
            )
        self._environment: Any = environment_class(**settings)
        self._action_class: Any = action_class
        reset = inspect.signature(self._environment.reset).parameters.values()
        self._takes_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in reset)
        self.action_schema = self._action_class.model_json_schema()

    def reset(self, options: Data) -> Data:
        # As in the package's server: a reset without a parameter `seed` does not get one.
        arguments = {k: v for k, v in options.items() if k != "seed" or self._takes_seed}
        return self._as_data(self._environment.reset(**arguments), "reset")

    def step(self, action: Data) -> Data:
        from pydantic import ValidationError

        serialization = import_module("openenv.core.env_server.serialization")
        try:
            action_object = serialization.deserialize_action(dict(action), self._action_class)
        except ValidationError as error:
            raise ActionRefused from error
        return self._as_data(self._environment.step(action_object), "step")

    def close(self) -> None:
        self._environment.close()

    def _as_data(self, observation: Any, call: str) -> Data:
        missing = [n for n in ("reward", "done", "model_dump") if not hasattr(observation, n)]
        if missing:
            raise EnvironmentFault(
                f"openenv:{self._spec}: {call} returned a {type(observation).__name__} without "
                f"{missing[0]}, which an observation of OpenEnv has"
            )
        fields = observation.model_dump(mode="json", exclude={"reward", "done"})
        return {"observation": fields, "reward": observation.reward, "done": observation.done}


def open_session(name: str, timeout_s: float, settings: Data) -> ServedSession | LocalSession:
    """Returns a session with the server at a URL, or with a class as `package.module->Class`."""
    if "->" in name:
        return LocalSession(name, settings)
    address = urlsplit(name)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise NoSuchEnvironment(
            f"openenv:{name}: write openenv:http://HOST:PORT, or openenv:package.module->Class"
        )
    if settings:
        raise SettingError(
            f"openenv:{name}: env_config.{next(iter(settings))}: the server made its environment; "
            "options of reset are env_config.reset"
        )
    return ServedSession(name, timeout_s)


def _action_schema(url: str, timeout_s: float) -> Mapping[str, Any]:
    import httpx

    from ajet.core.net.http_client import LimitedAsyncClient, blocking

    async def fetch() -> httpx.Response:
        limit = MAX_MESSAGE_BYTES
        async with LimitedAsyncClient(timeout=timeout_s, max_answer_bytes=limit) as client:
            return (await client.get(f"{url}/schema")).raise_for_status()

    try:
        with blocking() as wait:
            answer = wait(fetch)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EnvironmentFault(f"{url}/schema: {one_line(error)}; is the server up?") from error
    schema = _json_object(answer.text, f"{url}/schema").get("action")
    if not isinstance(schema, dict):
        raise EnvironmentFault(f"{url}/schema: the answer has no schema of actions")
    return schema


def _json_object(text: str | bytes, location: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EnvironmentFault(f"{location}: the answer is not JSON: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise EnvironmentFault(f"{location}: the answer is not a JSON object")
    return value
