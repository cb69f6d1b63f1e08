"""Episodes of ajet's own agents on a scripted model: the config and the user's files as text."""

import json

from ajet import BaseJudge, Task
from ajet.core.config import AjetConfig, load_config
from ajet.core.rollout.request import RolloutRequest
from ajet.core.workflow.registry import registered_workflow
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")


class Zero(BaseJudge):
    """For runs whose reward does not matter."""

    def compute_reward(self, workflow_task, workflow_output):
        return 0.0, False


def call(tool, **arguments):
    """How the model writes a call."""
    written = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def config_in(folder, files=None, judge="math", **multi_turn) -> AjetConfig:
    """A config in `folder`, with the files beside it."""
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    ajet = {
        "model": {"path": "m"},
        "rollout": {"user_workflow": "tool_agent", "multi_turn": multi_turn},
        "task_judge": {"judge_protocol": judge},
    }
    (folder / "run.yaml").write_text(json.dumps({"ajet": ajet}))
    return load_config(folder / "run.yaml")


async def run(config, *replies, row=None, agent="tool_agent", num=1, endpoint=None, **limits):
    """The trajectory of one episode (of `num`) whose model gives the replies in order."""

    def reply(_prompt, request_id):
        return replies[int(request_id.rpartition("/")[2])]

    endpoint = endpoint or ScriptedEndpoint(TOKENIZER, reply)
    judge = Zero() if config.ajet.task_judge.judge_protocol else None
    runner = episode_runner(
        registered_workflow(agent), endpoint, TOKENIZER, judge, config=config, **limits
    )
    task = Task("t0", "How warm is it?", metadata=row or {})
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="train", num_repeat=num))
    return group.trajectories[0] if num == 1 else group.trajectories


def told(trajectory):
    """The messages of the last call of the model, after the question."""
    return trajectory.turns[-1].messages[1:]


def texts(trajectory, role="tool"):
    """What the model was told by its tools (or its user)."""
    return [message["content"] for message in told(trajectory) if message["role"] == role]
