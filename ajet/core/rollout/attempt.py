"""Runs one attempt at an episode: the workflow, once, to its end.

returns a WorkflowOutput     -> ok (truncated, if a limit refused a call on the way)
raises                       -> truncated, env_error or agent_error (failure.py)
runs past its deadline       -> timeout; it is cancelled, and abandoned if it does not end
is stopped by a person       -> stopped, between two calls of the model (stops.py); likewise
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from loguru import logger

from ajet.core.errors import BlockingCall
from ajet.core.judge.verdict import checked_output
from ajet.core.process.bounded_loop import abandon
from ajet.core.process.interrupt import is_from_user_code
from ajet.core.rollout.failure import status_of
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.stops import Stop
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.text.error_text import first_line, message_of, one_line
from ajet.core.trajectory.base_recorder import BaseRecorder
from ajet.core.trajectory.limits import EpisodeTruncated, Limit, Truncation
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.user_code.activity import Activity, in_call
from ajet.core.workflow.bridge import run_in_thread
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow

MIN_WAIT_S = 0.01
STOPPED = "the run was stopped"
OnError = Callable[[BaseException], None]


class TaskEnvironment(Protocol):
    """The environment of one episode. The end of the ``async with`` releases it."""

    async def begin(self, workflow_task: WorkflowTask) -> WorkflowTask:
        """Makes the environment and returns the task with the environment's first messages."""
        ...

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *_: object) -> None: ...


class Attempt:
    """Runs one workflow once, to its end or its deadline; its trajectory is not judged yet.

    A plain `def execute` runs in a thread. An `async def execute` runs on the event loop of all
    episodes. If it waits for the model or its environment without `await`, the attempt ends there,
    and is made again in a thread, as all later ones of its class.
    """

    def __init__(
        self,
        workflow: Workflow,
        workflow_task: WorkflowTask,
        recorder: BaseRecorder,
        tuner: ModelTuner,
        *,
        limits: RolloutLimits,
        debug: bool,
        environment: TaskEnvironment | None,
        on_error: OnError,
        blocking: set[type[Workflow]],
    ) -> None:
        """`blocking` holds the classes that have blocked the event loop; attempts add to it."""
        self._workflow = workflow
        self._workflow_task = workflow_task
        self._recorder = recorder
        self._tuner = tuner
        self._limits = limits
        self._debug = debug
        self._environment = environment
        self._on_error = on_error
        self._started_s = time.perf_counter()
        self._has_ended = False
        self._blocking = blocking
        self._in_thread = False
        self._has_blocked = False
        self.must_run_in_thread = False
        recorder.on_blocking = self._note_blocking
        self._stop: Stop | None = None
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def activity(self) -> Activity:
        """Returns what the attempt does now."""
        return self._recorder.activity

    def stop(self, stop: Stop) -> bool:
        """Ends the attempt between two calls of the model; returns False once it has ended."""
        if self._has_ended:
            return False
        self._stop = stop

        def report_stopped() -> None:
            if not self._stopped.done():
                self._stopped.set_result(None)

        self._recorder.stop_after(stop.num_calls, report_stopped)
        return True

    async def run(self) -> Trajectory:
        """Runs the workflow and waits for its end or its deadline."""
        # In a separate task, neither swallowing a cancellation (AgentScope's agents do that) nor
        # calling `sys.exit` reaches the rollout.
        self.activity.enter()
        task = asyncio.create_task(self._execute())
        self.activity.runs_in(task)
        timeout_s = self._limits.episode_timeout_s
        try:
            await self._wait(task)
        except asyncio.CancelledError:
            await self._cancel(task)
            return self._end(EpisodeStatus.ABORTED, STOPPED)
        if self._stop is not None and self._stopped.done():
            await self._cancel(task)
            return self._end(self._stop.status, self._stop.reason)
        if not task.done():
            await self._cancel(task)
            failure = f"not finished within {timeout_s:g} s (ajet.rollout.episode_timeout_s)"
            return self._end(EpisodeStatus.TIMEOUT, failure)
        is_cancelled = task.cancelled()
        error = RuntimeError("the workflow cancelled itself") if is_cancelled else task.exception()
        if isinstance(error, BlockingCall):
            self._note_blocking()
        if self._has_blocked:
            self.must_run_in_thread = True
            return self._end(EpisodeStatus.AGENT_ERROR, "it blocked the event loop")
        if error is not None:
            return self._trajectory_of_error(error)
        return self._trajectory_of_result(task.result())

    async def _wait(self, task: asyncio.Task[Any]) -> None:
        """Returns when the workflow is over or stopped, or has used up its time.

        Waiting for a wave does not count: the workflow waits for other episodes there, and one that
        hangs would time out all of them. Nor does `ModelTuner.pause_deadline`.
        """
        timeout_s = self._limits.episode_timeout_s
        ends = {task, self._stopped}
        if timeout_s is None:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return
        while not task.done() and not self._stopped.done():
            waited_s = self._recorder.wave_wait_s + self._recorder.paused_s
            used_s = time.perf_counter() - self._started_s - waited_s
            if used_s >= timeout_s:
                return
            # Meanwhile it may wait again, so after this many seconds the sum is made anew.
            left_s = max(timeout_s - used_s, MIN_WAIT_S)
            await asyncio.wait(ends, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def _execute(self) -> Any:
        try:
            if self._environment is not None:
                with in_call("its environment, which is made"):
                    self._workflow_task = await self._environment.begin(self._workflow_task)
            execute, arguments = self._workflow.execute, (self._workflow_task, self._tuner)
            is_async = inspect.iscoroutinefunction(execute)
            self._in_thread = not is_async or type(self._workflow) in self._blocking
            if not self._in_thread:
                return await execute(*arguments)
            if is_async:
                return await run_in_thread(asyncio.run, execute(*arguments), is_workflow=True)
            result: Any = await run_in_thread(execute, *arguments, is_workflow=True)
            return await result if inspect.isawaitable(result) else result
        except SystemExit as error:
            raise RuntimeError(f"the workflow called sys.exit({error.code!r})") from error
        except KeyboardInterrupt as error:  # it would end the event loop
            if not is_from_user_code(error):
                raise
            raise RuntimeError("the workflow raised KeyboardInterrupt") from error

    def _note_blocking(self) -> None:
        """Notes that the workflow blocks the event loop. In a thread it may wait as it likes."""
        if self._in_thread:
            return
        self._has_blocked = True
        workflow_class = type(self._workflow)
        if workflow_class not in self._blocking:
            self._blocking.add(workflow_class)
            logger.warning(
                "{}.execute is async and waits without await, which would block all other "
                "episodes: its episodes run in threads from now on; write `def execute` instead",
                workflow_class.__name__,
            )

    def _trajectory_of_result(self, result: Any) -> Trajectory:
        try:
            output = checked_output(result, type(self._workflow).__name__)
        except Exception as error:  # a subclass of WorkflowOutput may do anything
            if self._debug:
                raise
            return self._end(EpisodeStatus.AGENT_ERROR, first_line(message_of(error)))
        truncation = self._recorder.truncation
        status = EpisodeStatus.OK if truncation is None else EpisodeStatus.TRUNCATED
        return self._end(status, None, output, truncation)

    def _trajectory_of_error(self, error: BaseException) -> Trajectory:
        truncation = self._recorder.truncation
        if truncation is not None:
            # A limit stopped the workflow before it returned: the judge gets its last reply.
            turns = self._recorder.turns
            answer = turns[-1].reply["content"] if turns else ""
            output = WorkflowOutput(metadata={"final_answer": answer, "truncated": True})
            return self._end(EpisodeStatus.TRUNCATED, None, output, truncation)
        refusal = self._recorder.refused_request
        reason = f"the gateway answered {refusal}" if refusal is not None else None
        if reason is not None:
            # A client over plain HTTP may have raised something unrelated about that answer.
            BaseException.add_note(error, reason)
        if self._debug:
            raise error
        self._on_error(error)
        if self._recorder.endpoint_fault is not None:
            fault = f"the endpoint failed: {self._recorder.endpoint_fault}"
            return self._end(EpisodeStatus.ENV_ERROR, fault)
        line = f"{one_line(error)}; {reason}" if reason else one_line(error)
        if isinstance(error, EpisodeTruncated):  # raised by the workflow itself
            truncation = Truncation(Limit.WORKFLOW, line)
            return self._end(EpisodeStatus.TRUNCATED, None, truncation=truncation)
        return self._end(status_of(error), line)

    async def _cancel(self, task: asyncio.Task[Any]) -> None:
        self._recorder.close()
        abandon(task)  # a thread cannot be cancelled, and a task may ignore it
        await asyncio.wait({task}, timeout=self._limits.cancel_grace_s)

    def _end(
        self,
        outcome: EpisodeStatus,
        failure: str | None,
        output: WorkflowOutput | None = None,
        truncation: Truncation | None = None,
    ) -> Trajectory:
        self._has_ended = True
        self._recorder.close()
        self._tuner.close()
        turns = self._recorder.turns
        timings = {
            "workflow_s": time.perf_counter() - self._started_s,
            "model_s": sum(turn.ended_s - turn.started_s for turn in turns),
        }
        plan = self._workflow_task
        if self._tuner.own_task is not None:  # ModelTuner.set_task
            plan = replace(plan, task=self._tuner.own_task)
        return Trajectory(
            plan,
            turns,
            outcome,
            output=output,
            failure=failure,
            truncation=truncation,
            timings=timings,
        )
