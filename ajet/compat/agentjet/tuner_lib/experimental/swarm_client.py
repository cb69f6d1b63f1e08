"""Provides AgentJet's `ajet.tuner_lib.experimental.swarm_client`, over a server of `ajet serve`.

    swarm = SwarmClient("http://127.0.0.1:8182")      # the key is AJET_SERVE_API_KEY
    episode_uuid, api = swarm.begin_episode(task=task)
    swarm.end_episode(task, episode_uuid, workflow_output)

One argument is new: the task, when the episode begins, because a group is planned with its task. It
may be left out in a thread that gets the task as an argument: one of
`run_episodes_until_all_complete`, of AgentJet's executors, or of the script. The server needs
`ajet.serve.tasks=client`. Configuring, starting or stopping it over HTTP is refused, and so are
throttle policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from loguru import logger

from ajet.client import Episode, EpisodeClient, ServeError, ServerUnreachable
from ajet.compat.agentjet.swarm import task_of_this_thread
from ajet.compat.agentjet.tuner_lib.as_oai_baseurl_apikey import OpenaiBaseUrlAndApiKey
from ajet.compat.agentjet.utils.thread_executors import BoundedThreadPoolExecutor
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput

ROLLING, UNREACHABLE = "ENGINE.ROLLING", "ENGINE.CANNOT_CONNECT"
OFFLINE = "ENGINE.OFFLINE"
SERVED = "the server has its config and is started and stopped where it runs: ajet serve --conf"


class SwarmClient:
    """Begins and ends episodes of the client's tasks. Several threads may share it."""

    def __init__(self, server_url: str, verbose: bool = True) -> None:
        self.server_url = server_url
        self._client = EpisodeClient(server_url)
        self._episodes: dict[str, Episode] = {}

    def begin_episode(
        self,
        discard_episode_timeout: float | None = None,
        episode_type: str = "train",
        throttle_policy: Any = None,
        *,
        max_episode_time: float | None = None,
        task: Task | None = None,
    ) -> tuple[str, OpenaiBaseUrlAndApiKey]:
        """Waits for an episode of `task`. `discard_episode_timeout` is the server's
        `ajet.serve.heartbeat_s`; a larger value only gives a warning."""
        task = task or task_of_this_thread()
        if task is None:
            raise TypeError(
                "begin_episode: give task=…, the one that end_episode gets: a group is planned "
                "with its task"
            )
        if throttle_policy is not None:
            raise TypeError("begin_episode: throttle_policy has no counterpart: leave it out")
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
        episode = self._client.begin(task=task_fields, mode=episode_type)
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
        return OFFLINE if status["state"] == "over" else ROLLING, status

    def print_rollout_stat(self) -> None:
        state, status = self.get_engine_status()
        logger.info("{}: {}", state, status)

    def auto_sync_train_config_and_start_engine(
        self, agent_jet_job: Any, force_restart: bool = False
    ) -> None:
        """Checks that the server runs, like AgentJet's method when it runs already; `agent_jet_job`
        is not sent. Restarting a server that has had no episode yet changes nothing."""
        state, status = self.get_engine_status()
        if state != ROLLING:
            self._refuse(f"auto_sync_train_config_and_start_engine ({state})")
        if force_restart and (status["step"] or status["num_claimed"] or status["num_ended"]):
            self._refuse(
                "auto_sync_train_config_and_start_engine: force_restart=True would stop a run in "
                f"step {status['step']}; leave it out to take part in this run"
            )
        logger.warning(f"the settings of AgentJetJob are not sent: {SERVED}")

    def sync_train_config(self, agent_jet_job: Any) -> NoReturn:
        self._refuse("sync_train_config")

    def start_engine(self) -> NoReturn:
        self._refuse("start_engine")

    def stop_engine(self) -> NoReturn:
        self._refuse("stop_engine")

    def _refuse(self, name: str) -> NoReturn:
        raise RuntimeError(
            f"{name}: {SERVED} X.yaml ajet.serve.tasks=client (AgentJetJob.dump_job_as_yaml writes "
            "the YAML)"
        )


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
