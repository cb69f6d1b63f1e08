"""Serves environments over HTTP, in AgentJet's protocol (client.py describes it).

Each instance is a new `Environment`. Its tasks are named train-0, train-1, … and validation-0, ….
Run it in one process, which holds the instances.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from ajet.core.environment.environment import Environment, Info
from ajet.core.environment.live import call_environment, close_quietly
from ajet.core.environment.returns import checked_reset, checked_step, text_alone
from ajet.core.errors import EnvironmentFault
from ajet.core.seeding import derive

if TYPE_CHECKING:
    from fastapi import FastAPI

Maker = Callable[[], Environment]

SUCCESS = 1.0
MAX_FAILURE_SCORE = 0.99
CLOSE_WAIT_S = 5.0
IDLE_S = 3600.0
MAX_INSTANCES = 4096
NUM_TASKS = {"train": 64, "validation": 16}
VERBS = ("get_env_profile", "create", "step", "evaluate", "get_info", "release")


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
        self.environment = make()
        self._name = type(self.environment).__name__

    def reset(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Resets the environment. `params.seed`, or else the task's id, decides the instance; the
        part of the id before its last "-" is the split."""
        seed = params.get("seed")
        seed = derive("env_service", self.task_id) if seed is None else int(seed)
        split = self.task_id.rpartition("-")[0]
        options, who = {"split": split} if split else {}, f"{self._name}.reset()"
        returned = call_environment(lambda: self.environment.reset(seed, options), who)
        first_observation = checked_reset(returned, who)
        state = [{"role": "user", "content": text_alone(first_observation)}]
        if self.environment.instruction:
            state.insert(0, {"role": "system", "content": self.environment.instruction})
        info = _json_part(returned[1])
        return {"state": state, "reward": 0.0, "is_terminated": False, "info": info}

    def step(self, action: str) -> dict[str, Any]:
        with self._lock:
            if self.is_over:
                return _observation("The episode is over.", 0.0, True, {})
            who = f"{self._name}.step()"
            returned = call_environment(lambda: self.environment.step(action), who)
            step = checked_step(returned, who)
            self.is_over = step.terminated or step.truncated
            self._earned += step.reward
            if "success" in step.metrics:
                self._is_success = step.metrics["success"] > 0
            info = _json_part(returned[4]) | {"truncated": step.truncated}
            if step.metrics:
                info["metrics"] = dict(step.metrics)
            return _observation(text_alone(step), step.reward, self.is_over, info)

    def score(self, is_sparse: bool) -> float:
        """Returns the sum of the rewards. With a `success` metric it is 1 for a success, else the
        sum limited to MAX_FAILURE_SCORE, or 0 if `is_sparse`."""
        if self._is_success is None:
            return self._earned
        if self._is_success or is_sparse:
            return SUCCESS * bool(self._is_success)
        return min(self._earned, MAX_FAILURE_SCORE)

    def close(self) -> None:
        """Closes the environment, after waiting up to CLOSE_WAIT_S for a running step."""
        is_free = self._lock.acquire(timeout=CLOSE_WAIT_S)
        try:
            self.is_over = True
            close_quietly(self.environment)
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


class Request(BaseModel):
    env_type: str | None = None
    task_id: str | None = None
    instance_id: str | None = None
    messages: dict[str, Any] = {}
    params: dict[str, Any] = {}


class RequestRefused(Exception):
    """The caller's mistake, with its HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class EnvironmentService:
    """Holds the instances of all environments; every verb of the protocol is a method."""

    def __init__(self, makers: Mapping[str, Maker], num_tasks: Mapping[str, int]) -> None:
        self._makers = makers
        self._num_tasks = num_tasks
        self._lock = threading.Lock()
        self.instances: dict[str, Instance] = {}

    def get_env_profile(self, request: Request) -> list[str]:
        self._maker(request)
        split = str(request.params.get("split", "train"))
        return [f"{split}-{index}" for index in range(self._num_tasks.get(split, 0))]

    def create(self, request: Request) -> dict[str, Any]:
        # A client that was killed does not release its instances.
        oldest_s = time.monotonic() - IDLE_S
        with self._lock:
            idle = [n for n, item in self.instances.items() if item.last_used_s < oldest_s]
            dropped = [self.instances.pop(name) for name in idle]
        for instance in dropped:
            instance.close()
        if len(self.instances) >= MAX_INSTANCES:
            raise RequestRefused(503, f"{MAX_INSTANCES} instances are alive; release some")
        if not request.task_id or not request.instance_id:
            raise RequestRefused(400, "task_id and instance_id are needed")
        instance = Instance(self._maker(request), request.task_id)
        with self._lock:
            earlier = self.instances.pop(request.instance_id, None)
            self.instances[request.instance_id] = instance
        if earlier is not None:  # the client lost the answer and sends the request again
            earlier.close()
        return _with_instance_id(instance.reset(request.params), request)

    def step(self, request: Request) -> dict[str, Any]:
        action = str(request.messages.get("content") or "")
        return _with_instance_id(self._instance(request).step(action), request)

    def evaluate(self, request: Request) -> float:
        return self._instance(request).score(is_sparse=bool(request.params.get("sparse")))

    def get_info(self, request: Request) -> Any:
        instance = self._instance(request)
        return {"task_id": instance.task_id, "instruction": instance.environment.instruction}

    def release(self, request: Request) -> bool:
        with self._lock:
            instance = self.instances.pop(request.instance_id or "", None)
        if instance is not None:
            instance.close()
        return instance is not None

    def _maker(self, request: Request) -> Maker:
        maker = self._makers.get(request.env_type or "")
        if maker is None:
            raise RequestRefused(
                404, f"no env_type {request.env_type!r}; there are {sorted(self._makers)}"
            )
        return maker

    def _instance(self, request: Request) -> Instance:
        instance = self.instances.get(request.instance_id or "")
        if instance is None:
            raise RequestRefused(404, f"no instance {request.instance_id!r}")
        instance.last_used_s = time.monotonic()
        return instance


def make_app(makers: Mapping[str, Maker], num_tasks: Mapping[str, int] = NUM_TASKS) -> FastAPI:
    """Returns the service as a FastAPI application; `app.state.service` holds the instances."""
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse

    app = FastAPI(title="environments")
    service = app.state.service = EnvironmentService(makers, num_tasks)

    def answer(verb: str, request: Request) -> Any:
        try:
            data = getattr(service, verb)(request)
        except RequestRefused as refused:
            body = {"success": False, "detail": str(refused)}
            return JSONResponse(body, status_code=refused.status)
        except EnvironmentFault as fault:
            return JSONResponse({"success": False, "detail": str(fault)}, status_code=500)
        return {"success": data is not False, "data": data}

    # FastAPI runs a plain function in a thread, so a slow environment does not block the others.
    for verb in VERBS:
        app.post(f"/{verb}")(partial(answer, verb))
    return app


def _with_instance_id(observation: dict[str, Any], request: Request) -> dict[str, Any]:
    return observation | {"info": observation["info"] | {"instance_id": request.instance_id}}
