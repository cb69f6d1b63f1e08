"""Plays tasks of ScienceWorld: experiments in a house of ten rooms, in tens of steps, with a score.

docs/environments.md has the settings. The simulator is a Java program that takes seconds to start:
one runs in each process that plays, with a world for each environment.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from random import Random
from typing import Any, Literal

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import ConfigError, NoSuchEnvironment, SettingError
from ajet.core.errors.codes import Code
from ajet.core.user_code.importing import require_package

MAX_ACTION = 200
"""The longest action in characters."""
UNKNOWN = "No known action matches that input."
"""The simulator's answer to text that is not an action; the world does not change."""
SIMPLE = ("close ", "go ", "look ", "open ", "pick up ")
"""The forms of action that an agent without a model writes."""
_starting = threading.Lock()
_gateways: list[Any] = []
"""The connection to the simulator, once there is one."""


class ScienceWorldEnvironment(Environment):
    """Plays one task; the seed chooses one of its variations. The reward is the change of the
    score: 1 for the whole task. A mistake that cannot be repaired ends it with a score of -1. There
    are no state keys, because much of a world's state is not shown; `max_steps` replaces the
    package's limit of steps."""

    instruction = "Write one action."

    def __init__(
        self,
        name: str,
        /,
        simplifications: str = "",
        validation_variations: Literal["dev", "test"] = "dev",
    ) -> None:
        require_package("scienceworld", wanted_by=f"scienceworld:{name}")
        self._name, self._simplifications = name, simplifications
        self._validation = validation_variations
        location = f"scienceworld:{name}"
        self._world = new_world(location)
        tasks = sorted(self._world.getTaskNames())
        if name not in tasks:
            raise NoSuchEnvironment(
                f"{location}: no task of this name; there are {', '.join(tasks)}"
            )
        known = ("easy", *self._world.getPossibleSimplifications().split(", "))
        for simplification in filter(None, simplifications.split(",")):
            if simplification not in known:
                raise SettingError(
                    f"{location}: env_config.simplifications: there is no {simplification!r}; "
                    f"there are {', '.join(known)}"
                )
        if validation_variations not in ("dev", "test"):
            raise SettingError(
                f"{location}: env_config.validation_variations is {validation_variations!r}; it "
                "must be dev or test"
            )
        self._variation, self._score, self._num_actions = 0, 0.0, 0
        self._gold: Sequence[str] | None = None
        self.observation = ""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        is_held_out = (options or {}).get("split") == "validation"
        split = self._validation if is_held_out else "train"
        variations = variations_of(self._name, split)
        self._variation = variations[Random(seed).randrange(len(variations))]
        self._load(self._world, with_gold_path=False)
        self._gold, self._num_actions = None, 0
        task = self._world.freeActionTaskDesc().strip()
        self._score = float(self._world.getScore())
        self.observation = self._text(f"{task}\n\n{self._world.freeActionLook().strip()}")
        forms = ", ".join(sorted(self._world.getPossibleActions()))
        instruction = f"{self.instruction} Its form is one of: {forms}."
        return self.observation, {"env_instruction": instruction}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        text = " ".join(action.split())[:MAX_ACTION]
        message = str(self._world.step(text)) if text else UNKNOWN
        is_known = message.strip() != UNKNOWN
        self._num_actions += is_known
        before, self._score = self._score, float(self._world.getScore())
        self.observation = self._text(message.strip())
        reward = self._score - before
        is_over = bool(self._world.getCompleted()) or self._score < 0
        metrics = {"success": self._score >= 1, "action_is_valid": is_known, "score": reward}
        info = {"metrics": metrics, "metrics_agg_mode": {"score": "sum"}}
        return self.observation, reward, is_over, False, info

    def render(self) -> str:
        return self.observation

    def sample_action(self, rng: Random) -> str:
        listed = sorted(self._world.getValidActionObjectCombinations())
        # The simulator lists some names and forms that it does not understand.
        simple = [
            command
            for command in listed
            if command.startswith(SIMPLE) and " containing " not in command
        ]
        return rng.choice(simple)

    def oracle_action(self) -> str | None:
        if self._gold is None:
            # Loading with the gold path takes seconds and leaves the world in another state.
            world = new_world(f"scienceworld:{self._name}")
            self._load(world, with_gold_path=True)
            self._gold = list(world.getGoldActionSequence())
        remaining = self._gold[self._num_actions :]
        return remaining[0] if remaining else None

    def _load(self, world: Any, *, with_gold_path: bool) -> None:
        world.load(self._name, self._variation, self._simplifications, with_gold_path)
        world.reset()

    def _text(self, message: str) -> str:
        return f"{message}\nScore: {self._score:.2f} of 1."


@cache
def variations_of(name: str, split: str) -> Sequence[int]:
    """Returns the numbers of a task's variations that belong to train, dev or test. The simulator
    lists only those of the loaded task."""
    world = new_world(f"scienceworld:{name}")
    world.load(name, 0, "", False)
    return tuple(getattr(world, f"getVariations{split.capitalize()}")())


def new_world(wanted_by: str) -> Any:
    """Returns a world in this process's simulator, which is started if none runs. It reads a pipe
    from this process, so it ends however this process does."""
    with _starting:
        if _gateways and _gateways[-1].java_process.poll() is None:
            return _gateways[-1].jvm.scienceworld.runtime.pythonapi.PythonInterface()
        if shutil.which("java") is None:
            raise ConfigError(
                f"{wanted_by}: the simulator is a Java program, and PATH has no java: install "
                "a Java runtime (Debian: default-jre-headless)",
                code=Code.PROGRAM_MISSING,
            )
        constants = import_module("scienceworld.constants")
        py4j = import_module("py4j.java_gateway")
        port, process = py4j.launch_gateway(
            classpath=constants.JAR_PATH, cwd=constants.BASEPATH, die_on_exit=True, return_proc=True
        )
        parameters = py4j.GatewayParameters(auto_field=True, port=port)
        gateway = py4j.JavaGateway(gateway_parameters=parameters, java_process=process)
        _gateways[:] = [gateway]
        return gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
