"""Presents one environment in the protocol's terms: chat messages, a reward a step, one score.

    create   -> [system: its instruction, user: the first observation]
    step     -> [user: the next observation], with its `info`
    evaluate -> the score

With a `success` metric the score is 1 for a success, else the sum of the rewards, limited to 0.99.
Without that metric it is the sum.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ajet.core.environment.environment import Environment, Info
from ajet.core.environment.live import call_environment, close_quietly
from ajet.core.environment.returns import checked_reset, checked_step
from ajet.core.seeding import derive

Maker = Callable[[], Environment]

SUCCESS = 1.0
MAX_FAILURE_SCORE = 0.99
CLOSE_WAIT_S = 5.0


class Instance:
    """One live environment. Its calls come from threads; a lock runs them one at a time, because a
    client may resend a call that it gave up on."""

    def __init__(self, make: Maker, task_id: str) -> None:
        self.task_id = task_id
        self.last_used_s = time.monotonic()
        self.is_over = False
        self._lock = threading.Lock()
        self._earned = 0.0
        self._is_success: bool | None = None
        self._environment = make()
        self._name = type(self._environment).__name__

    def reset(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Resets the environment. `params.seed`, or else the task's id, decides the instance; the
        part of the id before its last "-" is the split."""
        seed = params.get("seed")
        seed = derive("env_service", self.task_id) if seed is None else int(seed)
        split = self.task_id.rpartition("-")[0]
        options, who = {"split": split} if split else {}, f"{self._name}.reset()"
        returned = call_environment(lambda: self._environment.reset(seed, options), who)
        first_observation = checked_reset(returned, who)
        state = [{"role": "user", "content": first_observation.observation}]
        if self._environment.instruction:
            state.insert(0, {"role": "system", "content": self._environment.instruction})
        info = _json_part(returned[1])
        return {"state": state, "reward": 0.0, "is_terminated": False, "info": info}

    def step(self, action: str) -> dict[str, Any]:
        with self._lock:
            if self.is_over:
                return _observation("The episode is over.", 0.0, True, {})
            who = f"{self._name}.step()"
            returned = call_environment(lambda: self._environment.step(action), who)
            step = checked_step(returned, who)
            self.is_over = step.terminated or step.truncated
            self._earned += step.reward
            if "success" in step.metrics:
                self._is_success = step.metrics["success"] > 0
            info = _json_part(returned[4]) | {"truncated": step.truncated}
            if step.metrics:
                info["metrics"] = dict(step.metrics)
            return _observation(step.observation, step.reward, self.is_over, info)

    def score(self, is_sparse: bool) -> float:
        if self._is_success is None:
            return self._earned
        if self._is_success or is_sparse:
            return SUCCESS * bool(self._is_success)
        return min(self._earned, MAX_FAILURE_SCORE)

    def info(self) -> dict[str, Any]:
        return {"task_id": self.task_id, "instruction": self._environment.instruction}

    def close(self) -> None:
        """Closes the environment, after waiting up to CLOSE_WAIT_S for a running step."""
        is_free = self._lock.acquire(timeout=CLOSE_WAIT_S)
        try:
            self.is_over = True
            close_quietly(self._environment)
        finally:
            if is_free:
                self._lock.release()


def _json_part(info: Info) -> Info:
    """Returns the entries of `info` that JSON can represent; arrays, for example, are dropped."""
    entries: Info = {}
    for name, value in info.items():
        try:
            json.dumps(value, allow_nan=False)
            entries[name] = value
        except (TypeError, ValueError, RecursionError):
            pass
    return entries


def _observation(text: str, reward: float, is_over: bool, info: Info) -> dict[str, Any]:
    state = [{"role": "user", "content": text}]
    return {"state": state, "reward": reward, "is_terminated": is_over, "info": info}
