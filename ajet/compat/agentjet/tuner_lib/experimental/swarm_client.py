"""Provides AgentJet's `ajet.tuner_lib.experimental.swarm_client`, over a server of `ajet serve`.
One argument of `begin_episode` is new: the task, because a group is planned with its task.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any
from uuid import uuid4

from loguru import logger

from ajet.client import Episode, EpisodeClient, ServeError, ServerUnreachable
from ajet.client.protocol import default_client
from ajet.compat.agentjet.tuner_lib.as_oai_baseurl_apikey import OpenaiBaseUrlAndApiKey
from ajet.compat.agentjet.tuner_lib.experimental.interchange_utils import SwarmThrottlePolicy
from ajet.compat.agentjet.utils.thread_executors import BoundedThreadPoolExecutor
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput

ROLLING, OFFLINE = "ENGINE.ROLLING", "ENGINE.OFFLINE"
BOOTING, UNREACHABLE = "ENGINE.BOOTING", "ENGINE.CANNOT_CONNECT"
STATES = {"offline": OFFLINE, "over": OFFLINE, "starting": BOOTING, "stopping": BOOTING}
"""AgentJet's names for the states of a server; the others are `ROLLING`."""
RUN_IN_PROGRESS = 409
"""The HTTP status of a start while a run is in progress."""
STEPS_UNTIL_STOPPED = 1_000_000
POLL_S, WARN_S, BOOT_S = 0.5, 60.0, 3600.0


class SwarmClient:
    """Begins and ends episodes of the client's tasks. Several threads may share it. `client`, which
    AgentJet's lacks, is its name in `ajet.serve.shares`."""

    def __init__(self, server_url: str, verbose: bool = True, *, client: str | None = None) -> None:
        self.server_url = server_url
        # As in AgentJet, two clients of one process have separate shares.
        self._client = EpisodeClient(
            server_url, client=client or f"{default_client()}-{uuid4().hex[:4]}"
        )
        self._episodes: dict[str, Episode] = {}
        self._job: Any = None
        self._last_step = 0

    def begin_episode(
        self,
        discard_episode_timeout: float | None = None,
        episode_type: str = "train",
        throttle_policy: SwarmThrottlePolicy | None = None,
        *,
        max_episode_time: float | None = None,
        task: Task | None = None,
    ) -> tuple[str, OpenaiBaseUrlAndApiKey]:
        """Waits for an episode of `task`, as `throttle_policy` allows: the server counts the groups
        that this client has begun in the step. `discard_episode_timeout` is the server's
        `ajet.serve.heartbeat_s`; a larger value only gives a warning."""
        task = task or _task_of_the_caller()
        if task is None:
            raise TypeError(
                "begin_episode: give task=…, the one that end_episode gets: a group is planned "
                "with its task"
            )
        if max_episode_time is not None:
            logger.warning(
                "max_episode_time has no effect: the server ends an episode after "
                "ajet.rollout.episode_timeout_s"
            )
        task_fields = {
            "task_id": task.task_id,
            "main_query": task.main_query,
            "init_messages": task.init_messages,
            "metadata": task.metadata,
        }
        max_groups = None if throttle_policy is None else throttle_policy.max_groups
        episode = self._client.begin(task=task_fields, mode=episode_type, max_groups=max_groups)
        if (discard_episode_timeout or 0) > episode.data.heartbeat_s:
            logger.warning(
                f"discard_episode_timeout={discard_episode_timeout:g} has no effect: the server "
                f"ends an idle episode after {episode.data.heartbeat_s:g} s "
                "(ajet.serve.heartbeat_s)"
            )
        self._episodes[episode.data.id] = episode
        return episode.data.id, OpenaiBaseUrlAndApiKey(episode.base_url, episode.api_key)

    def end_episode(self, task: Task, episode_uuid: str, workflow_output: WorkflowOutput) -> None:
        """Ends the episode, and returns when it is judged and stored."""
        episode = self._episodes[episode_uuid]
        if task.task_id != episode.task["task_id"]:
            raise ValueError(
                f"end_episode: the episode began with task {episode.task['task_id']!r}, not "
                f"{task.task_id!r}"
            )
        del self._episodes[episode_uuid]
        episode.end(
            workflow_output.reward,
            is_success=workflow_output.is_success,
            metadata=workflow_output.metadata,
            metrics=workflow_output.log_metrics,
        )
        if episode.data.mode == "train":
            self._last_step = max(self._last_step, episode.data.step)

    def abort_episode(self, episode_uuid: str) -> None:
        """Gives the episode up: with ajet.rollout.failure_policy=retry it is offered again."""
        self._episodes.pop(episode_uuid).abort("abort_episode")

    def can_continue_episode(self, episode_uuid: str) -> bool:
        """Tells whether the episode is still this client's."""
        episode = self._episodes.get(episode_uuid)
        try:
            if episode is not None:
                episode.heartbeat()
        except ServeError:
            return False
        return episode is not None

    def get_engine_status(self) -> tuple[str, dict[str, Any]]:
        """Returns AgentJet's name for the server's state, and its status."""
        try:
            status = self._client.status()
        except ServerUnreachable:
            return UNREACHABLE, {}
        return STATES.get(status["state"], ROLLING), status

    def get_global_step(self) -> int:
        """Returns the number of steps that the run has trained, 0 where the server does not say."""
        return self.get_engine_status()[1].get("trained_step", 0)

    def agree_sync_weight(self) -> None:
        """Waits until the step is trained in which this client last ended an episode. A batch has
        `batch_size` groups, whoever runs them, so the clients' shares must add up to that."""
        next_warning_s = time.monotonic() + WARN_S
        while True:
            state, status = self.get_engine_status()
            is_another_run = status.get("step", 0) < self._last_step
            if state != ROLLING or is_another_run or status["trained_step"] >= self._last_step:
                return
            if time.monotonic() > next_warning_s:
                next_warning_s += WARN_S
                logger.warning(
                    "the batch of step {} is not full: {} episodes are offered, and {} are being "
                    "run",
                    self._last_step,
                    status["num_offered"],
                    status["num_claimed"],
                )
            time.sleep(POLL_S)

    def print_rollout_stat(self) -> None:
        state, status = self.get_engine_status()
        logger.info("{}: {}", state, status)

    def auto_sync_train_config_and_start_engine(
        self, agent_jet_job: Any, force_restart: bool = False
    ) -> None:
        """Starts the job at a server that waits for one, or takes part in the run in progress.
        `force_restart` ends that run first; a server with a config (`ajet serve --conf`) has only
        that run, which `force_restart` leaves if it has had no episode yet."""
        state, status = self.get_engine_status()
        if state == UNREACHABLE:
            raise RuntimeError(f"{self.server_url}: no server is reached")
        if not status.get("accepts_config"):
            return self._take_part(state, status, force_restart)
        if force_restart:
            self.stop_engine()
            state = OFFLINE
        if state == OFFLINE:
            self.sync_train_config(agent_jet_job)
            try:
                return self.start_engine()
            except ServeError as error:
                if error.status != RUN_IN_PROGRESS:
                    raise  # else another client has just started one
        logger.info("{} has a run in progress, and this client takes part", self.server_url)
        self._wait_until_status_change_to(ROLLING)

    @staticmethod
    def async_and_start_multi_engine(
        client_job_pairs: Sequence[tuple[SwarmClient, Any]], force_restart: bool = False
    ) -> None:
        """Starts a job at each of several servers at the same time."""
        with ThreadPoolExecutor(len(client_job_pairs)) as pool:
            starting = [
                pool.submit(client.auto_sync_train_config_and_start_engine, job, force_restart)
                for client, job in client_job_pairs
            ]
        for started in starting:
            started.result()

    def sync_train_config(self, agent_jet_job: Any) -> None:
        """Takes the job that `start_engine` sends."""
        self._job = agent_jet_job

    def start_engine(self) -> None:
        """Starts the job of `sync_train_config`, and returns when its first episodes are
        offered."""
        if self._job is None:
            raise RuntimeError("start_engine: call sync_train_config first")
        self._require_swarm("start_engine")
        status = self._client.start(config_of(self._job))
        self._last_step = 0
        for notice in status["notices"]:
            logger.warning("{}: {}", self.server_url, notice)
        state, status = self.get_engine_status()
        while state == BOOTING:
            time.sleep(POLL_S)
            state, status = self.get_engine_status()
        if state == OFFLINE:
            error = status["error"] or "it was stopped as it started"
            raise RuntimeError(f"start_engine: {self.server_url}: {error}")

    def stop_engine(self) -> None:
        """Ends the run at once, and returns when it has. The same job continues from its last
        checkpoint."""
        self._require_swarm("stop_engine")
        self._client.stop(now=True)
        self._wait_until_status_change_to(OFFLINE)

    def _wait_until_status_change_to(
        self, desired_status: str = ROLLING, verbose: bool = True, timeout: float = BOOT_S
    ) -> None:
        # AgentJet's scripts call it by this name.
        give_up_s = time.monotonic() + timeout
        while True:
            state, status = self.get_engine_status()
            if state == desired_status:
                return
            if state == OFFLINE and status.get("error"):
                raise RuntimeError(f"{self.server_url}: the run ended: {status['error']}")
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"{self.server_url} is {state} after {timeout:g} s")
            time.sleep(POLL_S)

    def _require_swarm(self, name: str) -> None:
        state, status = self.get_engine_status()
        if not status.get("accepts_config"):
            reason = "no server is reached" if state == UNREACHABLE else "it has its own config"
            raise RuntimeError(
                f"{name}: {self.server_url}: {reason}: start it with ajet serve --swarm"
            )

    def _take_part(self, state: str, status: Mapping[str, Any], force_restart: bool) -> None:
        if state == OFFLINE:
            raise RuntimeError(f"{self.server_url}: the run is over: {status['reason']}")
        if force_restart and status["num_begun"]:
            raise RuntimeError(
                f"force_restart=True would stop a run in step {status['step']} whose server has "
                "its own config (ajet serve --conf): leave it out to take part in this run"
            )
        logger.warning(
            "{} has its own config, and the job's settings are not sent: ajet serve --swarm takes "
            "them",
            self.server_url,
        )


def _task_of_the_caller() -> Task | None:
    """Returns the task among the arguments of the function that calls the caller, or of the nearest
    one above it that has one: AgentJet's `begin_episode` has no argument for it."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            if isinstance(task := frame.f_locals.get(name), Task):
                return task
        frame = frame.f_back
    return None


def config_of(job: Any) -> dict[str, Any]:
    """Returns the job's settings for a server whose clients bring tasks and rewards, and measure
    the model themselves. Without a number of steps the run trains until it is stopped."""
    config = deepcopy(job.changed_settings())
    ajet = config.setdefault("ajet", {})
    trainer = ajet.setdefault("trainer_common", {})
    trainer.setdefault("total_training_steps", STEPS_UNTIL_STOPPED)
    trainer |= {"test_freq": 0, "val_before_train": False}
    ajet.setdefault("serve", {})["tasks"] = "client"
    ajet["task_reader"] = {"type": "random_dummy"}
    return config


def run_episodes_until_all_complete(
    tasks: Sequence[Any],
    func: Callable[[Any], Any],
    max_workers: int | None = None,
    auto_retry: bool = True,
) -> list[Any]:
    """Calls `func` with each task in a thread and returns the results in the order of the tasks;
    with `auto_retry` a call that raises is repeated."""
    if not tasks:
        return []
    workers = max_workers or len(tasks)
    executor = BoundedThreadPoolExecutor(workers, workers, auto_retry=auto_retry)
    futures = [executor.submit(func, task) for task in tasks]
    executor.shutdown(wait=True)
    return [future.result() for future in futures]
