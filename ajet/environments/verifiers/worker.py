"""The program that plays environments of verifiers, in an interpreter which has that package.

It is started by path, and imports nothing of ajet. Standard input and output are lines of JSON;
what an environment prints goes to standard error.
"""

import asyncio
import json
import os
import sys
from contextlib import nullcontext
from importlib import import_module
from itertools import islice
from typing import Any

MAX_LINE_BYTES = 64 << 20


class Server:
    """Answers the messages of one environment, and holds its episodes in flight.

    {"number": 0, "call": "open", "env": {"taskset": {"id": "my-env"}}}  or {"id": "my-env", …}
    {"number": 1, "call": "tasks", "limit": 100}  -> {"number": 1, "result": [{"idx": 0, …}, …]}
    {"number": 2, "call": "run", "task": {…}, "base_url": "http://…", "api_key": "…",
     "sampling": {}}                              -> {"number": 2, "result": {"reward": 1.0, …}}
    {"number": 2, "call": "cancel"}               -> no answer
    what fails                                    -> {"number": 2, "fault": "one line"}
    """

    def __init__(self, send: Any) -> None:
        self._send = send
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        first = json.loads(await reader.readline())
        env = first["env"]
        try:
            self._player: Any = TasksetPlayer(env) if "taskset" in env else ClassicPlayer(**env)
        except Exception as error:  # noqa: BLE001  # a package's module may raise anything
            self._send({"number": first["number"], "fault": one_line(error)})
            return
        async with self._player.serving():
            self._send({"number": first["number"], "result": None})
            while line := await reader.readline():
                message = json.loads(line)
                number = message["number"]
                if message["call"] == "cancel":
                    if number in self._running:
                        self._running[number].cancel()
                    continue
                task = asyncio.create_task(self._answer(message))
                self._running[number] = task
                task.add_done_callback(lambda _, number=number: self._running.pop(number))
            for task in self._running.values():
                task.cancel()

    async def _answer(self, message: dict[str, Any]) -> None:
        number = message["number"]
        # A client of the package reads its key from a variable that its config names.
        key_name = f"AJET_EPISODE_KEY_{number}"
        try:
            if message["call"] == "tasks":
                result: Any = self._player.tasks(message["limit"])
            else:
                os.environ[key_name] = message["api_key"]
                result = await self._player.run(
                    message["task"], message["base_url"], key_name, message["sampling"]
                )
            self._send({"number": number, "result": result})
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  # an environment may raise anything
            self._send({"number": number, "fault": one_line(error)})
        finally:
            os.environ.pop(key_name, None)


class TasksetPlayer:
    """Plays an environment of tasksets and roles (verifiers.v1, as of release 0.4). Unless a role's
    config says more, it runs on this machine (`runtime.type: subprocess`), with the harness `null`
    (a conversation with the task's tools) instead of `bash`."""

    def __init__(self, env: dict[str, Any]) -> None:
        loaders = import_module("verifiers.v1.utils.loaders")
        fields = import_module("verifiers.v1.configs.agent").agent_config_fields
        roles = fields(loaders.resolve_env_config(env))
        resolved = dict(env)
        for role, config in roles.items():
            role_config = dict(env.get(role) or {})
            if "runtime" not in config.model_fields_set:
                role_config.setdefault("runtime", {"type": "subprocess"})
            if (
                config.harness is None
                and loaders.default_harness_id(env["taskset"]["id"]) == "bash"
            ):
                role_config.setdefault("harness", {"id": "null"})
            resolved[role] = role_config
        self._environment = loaders.load_environment(loaders.resolve_env_config(resolved))

    def serving(self) -> Any:
        return self._environment.serving()

    def tasks(self, limit: int | None) -> list[dict[str, Any]]:
        taskset = self._environment.taskset
        if limit is None and not taskset.bounded:
            raise ValueError(f"{type(taskset).__name__} has no end: set verifiers.num_tasks")
        return [task.data.model_dump(mode="json") for task in islice(taskset, limit)]

    async def run(
        self, task: dict[str, Any], base_url: str, key_name: str, sampling: dict[str, Any]
    ) -> dict[str, Any]:
        vf = import_module("verifiers.v1")
        environment = self._environment
        task_class = type(environment.taskset).task_type()
        data = task_class.data_type().model_validate(task)
        (slot,) = environment.slots(task_class(data, environment.config.taskset.task))
        client = vf.EvalClientConfig(base_url=base_url, api_key_var=key_name)
        sampling_config = vf.SamplingConfig.model_validate(sampling)
        context = vf.ModelContext(client=client, model="ajet", sampling=sampling_config)
        return episode_result(await environment.run_slot(slot, context))


class ClassicPlayer:
    """Plays the environment that `load_environment(**args)` of a module returns (verifiers up to
    0.3): a data set, a rollout loop and a rubric. `split` is train or eval, which an environment
    may lack."""

    def __init__(self, id: str, args: dict[str, Any] | None = None, split: str = "train") -> None:
        types = import_module("verifiers.types")
        self._client_config = types.ClientConfig
        self._environment = import_module("verifiers").load_environment(id, **(args or {}))
        if self._environment.requires_group_rollouts:
            raise ValueError(f"{id} rewards whole groups, and ajet rewards each episode separately")
        if split == "eval" and self._environment.build_eval_dataset() is None:
            raise ValueError(f"{id} has no separate data set for evaluation")
        self._rows = getattr(
            self._environment, "get_dataset" if split == "train" else "get_eval_dataset"
        )

    def serving(self) -> Any:
        return nullcontext()

    def tasks(self, limit: int | None) -> list[dict[str, Any]]:
        rows = self._rows(n=-1 if limit is None else limit).to_list()
        return [{"idx": row["example_id"], "prompt": row["prompt"], "input": row} for row in rows]

    async def run(
        self, task: dict[str, Any], base_url: str, key_name: str, sampling: dict[str, Any]
    ) -> dict[str, Any]:
        client = self._client_config(api_base_url=base_url, api_key_var=key_name, max_retries=0)
        output = await self._environment.run_rollout(task["input"], client, "ajet", sampling)
        error = output.get("error")
        return {
            "reward": output["reward"],
            "metrics": {name: float(v) for name, v in (output.get("metrics") or {}).items()},
            "ended_by": output.get("stop_condition"),
            "answer": _last_text(output.get("completion")),
            "is_ok": error is None,
            "error": None if error is None else " ".join(error["error_chain_str"].split())[:600],
        }


def episode_result(episode: Any) -> dict[str, Any]:
    """Returns the result of an episode. Its reward is the mean over its trained agents."""
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    metrics: dict[str, float] = {}
    for trace in trained:
        rewards = {name: value.value for name, value in trace.rewards.items() if value is not None}
        metrics |= {name: float(v) for name, v in rewards.items()}
        metrics |= {name: float(v) for name, v in trace.metrics.items() if v is not None}
    errors = [*episode.errors, *(error for trace in trained for error in trace.errors)]
    return {
        "reward": sum(trace.reward for trace in trained) / len(trained) if trained else None,
        "metrics": metrics,
        "ended_by": trained[0].stop_condition if trained else None,
        "answer": str(trained[0].last_reply or "") if trained else "",
        "is_ok": episode.ok,
        "error": f"{errors[-1].type}: {errors[-1].message}" if errors else None,
    }


def _last_text(messages: Any) -> str:
    """Returns the text of an episode's last reply, empty if it has none."""
    if isinstance(messages, str):  # a completion of plain text
        return messages
    replies = [message for message in messages or () if message.get("role") == "assistant"]
    content = replies[-1].get("content") if replies else None
    return content if isinstance(content, str) else ""


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


async def main() -> None:
    loop = asyncio.get_running_loop()
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what an environment prints must not get among the answers
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def send(message: dict[str, Any]) -> None:
        output.write(json.dumps(message).encode() + b"\n")

    await Server(send).serve(reader)


if __name__ == "__main__":
    asyncio.run(main())
