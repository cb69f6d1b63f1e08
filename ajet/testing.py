"""Plays one episode of a config with scripted replies, so that a test needs no model. Workflow,
tools, environment and judge are the YAML's, called as in a validation; their exceptions are raised
unchanged. There are no tokens, chat templates or limits on them. A test must not be `async`.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.inference.endpoint import ChatCompletion, SamplingParams

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.task.task import Task
    from ajet.core.trajectory.trajectory import Trajectory

Reply = str | Mapping[str, Any]
"""A reply's text, or an assistant message in OpenAI's format."""


def tool_call(name: str, /, **arguments: Any) -> dict[str, Any]:
    """Returns the assistant message that calls the tool `name` with these arguments."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    call = {"id": "", "type": "function", "function": function}  # the recorder gives it an id
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def play(
    conf: str | Path,
    replies: Sequence[Reply],
    row: Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
) -> Trajectory:
    """Plays a task with these replies of the model, in turn, and returns the judged episode:
    `is_success`, `reward`, `output`, and `turns` with the `messages` sent to the model and its
    `reply`.

        replies = [tool_call("execute_python_code", code="print(6 * 7)"), r"\\boxed{42}"]
        assert play("train.yaml", replies, {"question": "6 * 7?", "answer": "42"}).is_success

    `row` is the task in the format of the YAML's data; by default the first held-out task, else the
    first training task. `overrides` are those of the command line: ajet.seed=1. Raises ConfigError
    for a mistake in the YAML, and EndpointFault if the agent calls the model too often.
    """
    from ajet.core.config import load_config

    config = load_config(conf, list(overrides), backbone="debug", required=())
    return asyncio.run(_episode(config, _task(config, row), ScriptedReplies(replies)))


class ScriptedReplies:
    """A chat endpoint that returns the replies one after another."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = [
            {"role": "assistant", "content": reply} if isinstance(reply, str) else dict(reply)
            for reply in replies
        ]
        self._num_calls = 0

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        sampling: SamplingParams,
        tool_choice: str | None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> ChatCompletion:
        """Returns the next reply; ValueError if there is none left."""
        if self._num_calls == len(self._replies):
            raise ValueError(
                f"the agent called the model {self._num_calls + 1} times, but play() was given "
                f"{len(self._replies)} replies: give one more, or end the agent's loop earlier"
            )
        reply = copy.deepcopy(self._replies[self._num_calls])
        self._num_calls += 1
        return ChatCompletion(reply, "stop")


def _task(config: AjetConfig, row: Mapping[str, Any] | None) -> Task:
    from ajet.core.task.reader import make_reader

    reader = make_reader(config)
    if row is None:
        return (reader.get_validation_tasks() or reader.get_training_tasks())[0]
    return reader.tasks_from_rows([row], is_training=False, split="test", source="play()")[0]


async def _episode(config: AjetConfig, task: Task, replies: ScriptedReplies) -> Trajectory:
    from ajet.assembly import make_gateway, make_runner
    from ajet.core.judge import make_judge
    from ajet.core.rollout.request import RolloutRequest

    judge = make_judge(config)
    with closing(make_gateway(config)) as gateway:
        runner = make_runner(config, replies, None, judge=judge, gateway=gateway, debug=True)
        request = RolloutRequest([task], step=0, mode="eval", num_repeat=1)
        (group,) = await runner.rollout(request)
    return group.trajectories[0]
