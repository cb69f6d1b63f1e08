"""A tiny environment, and episodes of the environment agents in it on a scripted model."""

import json

from ajet.core.config import load_config
from ajet.core.environment.environment import Environment
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.environment import EnvironmentReader
from ajet.core.workflow.registry import registered_workflow
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
CORRIDOR = "tests.corridor->Corridor"


class Corridor(Environment):
    """``length`` steps to the right lead to the goal; each costs 0.1, the goal brings 1."""

    instruction = "Walk to the right end. Say Left or Right."
    is_quick = True

    def __init__(self, length=2):
        self.length = length
        self.place = 0
        self.is_closed = False

    def reset(self, seed=None, options=None):
        self.place = 0
        return self._seen(), {"state_key": "0"}

    def step(self, action):
        moves = {"Left": -1, "Right": 1}
        self.place = max(0, self.place + moves.get(action, 0))
        is_there = self.place == self.length
        metrics = {"success": is_there, "action_is_valid": action in moves, "moved": 1}
        info = {
            "metrics": metrics,
            "metrics_agg_mode": {"moved": "sum"},
            "state_key": str(self.place),
        }
        return self._seen(), (1.0 if is_there else -0.1), is_there, False, info

    def render(self):
        return self._seen()

    def close(self):
        self.is_closed = True

    def sample_action(self, rng):
        return rng.choice(["Left", "Right"])

    def oracle_action(self):
        return "Right"

    def _seen(self):
        return f"You are at {self.place} of {self.length}."


def corridor_config(folder, env_type=CORRIDOR, environment=None, ajet=None, **custom):
    """A config with one tag, Walk."""
    sections = {
        "model": {"path": "m"},
        "data": {"train_batch_size": 2},
        "task_reader": {"type": "environment"},
        "environment": {
            "custom_envs": {"Walk": {"env_type": env_type, "max_steps": 4, **custom}},
            **(environment or {}),
        },
        **(ajet or {}),
    }
    (folder / "run.yaml").write_text(json.dumps({"ajet": sections}))
    return load_config(folder / "run.yaml")


def says(*replies):
    """An endpoint whose n-th call of an episode answers with the n-th reply, then the last one."""

    def reply(_prompt, request_id):
        return replies[min(int(request_id.rpartition("/")[2]), len(replies) - 1)]

    return ScriptedEndpoint(TOKENIZER, reply)


def answers(*actions):
    return says(*(f"<answer>{action}</answer>" for action in actions))


async def play(config, endpoint, mode="train", num=1, **limits):
    """The trajectories of the first task's group."""
    reader = EnvironmentReader(config)
    held_out = mode == "eval"
    task = (reader.get_validation_tasks() if held_out else reader.get_training_tasks())[0]
    agent = registered_workflow(task.metadata["agent_name"])
    agent.check_config(config)
    limits = {"max_failure_rate": 1.0, **limits}
    runner = episode_runner(agent, endpoint, TOKENIZER, config=config, **limits)
    [group] = await runner.rollout(RolloutRequest([task], step=1, mode=mode, num_repeat=num))
    return group.trajectories
