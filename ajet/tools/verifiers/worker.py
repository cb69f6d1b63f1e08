"""The program that plays environments of verifiers, in an interpreter which has that package.

    {"number": 0, "call": "open", "env": {"taskset": {"id": "my-env"}}}
    {"number": 1, "call": "tasks", "limit": 100}      -> {"number": 1, "result": [{"idx": 0, …}, …]}
    {"number": 2, "call": "run", "task": {…}, "base_url": "http://…", "api_key": "…",
     "sampling": {}}                                  -> {"number": 2, "result": {"reward": 1.0, …}}
    {"number": 2, "call": "cancel"}                   -> no answer
    what fails                                        -> {"number": 2, "fault": "one line"}

It is started by path, and imports nothing of ajet; an environment is an installed package, or a
folder of the current one. Standard input and output are lines of JSON; what
an environment prints goes to standard error. A role whose config says nothing else runs on this
machine (`runtime.type: subprocess`); the harness `null`, a conversation with the task's tools, is
the default in the place of `bash`.
"""

import asyncio
import json
import os
import sys
from importlib import import_module
from itertools import islice
from typing import Any

MAX_LINE_BYTES = 64 << 20


class Player:
    """Holds one environment and its episodes in flight."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answers messages until the input ends."""
        first = json.loads(await reader.readline())
        try:
            self._open(first["env"])
        except Exception as error:  # noqa: BLE001  # a package's module may raise anything
            self._send({"number": first["number"], "fault": one_line(error)})
            return
        async with self._environment.serving():
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

    def _open(self, env: dict[str, Any]) -> None:
        loaders = import_module("verifiers.v1.utils.loaders")
        fields = import_module("verifiers.v1.configs.agent").agent_config_fields
        roles = fields(loaders.resolve_env_config(env))
        given = dict(env)
        for role, config in roles.items():
            own = dict(env.get(role) or {})
            if "runtime" not in config.model_fields_set:
                own.setdefault("runtime", {"type": "subprocess"})
            if (
                config.harness is None
                and loaders.default_harness_id(env["taskset"]["id"]) == "bash"
            ):
                own.setdefault("harness", {"id": "null"})
            given[role] = own
        self._environment = loaders.load_environment(loaders.resolve_env_config(given))

    async def _answer(self, message: dict[str, Any]) -> None:
        number = message["number"]
        try:
            result = await (self._tasks if message["call"] == "tasks" else self._run)(message)
            self._send({"number": number, "result": result})
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  # an environment may raise anything
            self._send({"number": number, "fault": one_line(error)})

    async def _tasks(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        taskset = self._environment.taskset
        if message["limit"] is None and not taskset.bounded:
            raise ValueError(f"{type(taskset).__name__} has no end: set verifiers.num_tasks")
        return [task.data.model_dump(mode="json") for task in islice(taskset, message["limit"])]

    async def _run(self, message: dict[str, Any]) -> dict[str, Any]:
        vf = import_module("verifiers.v1")
        environment = self._environment
        kind = type(environment.taskset).task_type()
        data = kind.data_type().model_validate(message["task"])
        (slot,) = environment.slots(kind(data, environment.config.taskset.task))
        key_name = f"AJET_EPISODE_KEY_{message['number']}"  # a client takes its key from there
        os.environ[key_name] = message["api_key"]
        try:
            client = vf.EvalClientConfig(base_url=message["base_url"], api_key_var=key_name)
            sampling = vf.SamplingConfig.model_validate(message["sampling"])
            context = vf.ModelContext(client=client, model="ajet", sampling=sampling)
            episode = await environment.run_slot(slot, context)
        finally:
            del os.environ[key_name]
        return episode_result(episode)


def episode_result(episode: Any) -> dict[str, Any]:
    """Returns what an episode came to. Its reward is the mean over its trained agents."""
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    metrics: dict[str, float] = {}
    for trace in trained:
        rewards = {name: each.value for name, each in trace.rewards.items() if each is not None}
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


def one_line(error: BaseException) -> str:
    """Returns an error's class and message in one line of bounded length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


async def main() -> None:
    loop = asyncio.get_running_loop()
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what an environment prints must not get among the answers
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def send(message: dict[str, Any]) -> None:
        output.write(json.dumps(message).encode() + b"\n")

    await Player(send).serve(reader)


if __name__ == "__main__":
    asyncio.run(main())
