"""Hands planned episodes to clients, and takes the results back. A claim is one attempt at an
episode by one client. All state is under one lock; futures carry results between the threads of the
run and of the server (README.md).
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode, WorkflowOutput, WorkflowTask
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.exchange.clients import ClientGroup, Clients, Shares

if TYPE_CHECKING:
    from ajet.core.trajectory.trajectory import Group, Trajectory
    from ajet.core.workflow.gateway.gateway import Address

CLAIM_KEY, CLIENT_KEY = "claim_id", "client_name"
"""The keys of the claim's id and its client's name in the metadata of an episode's output."""
MAX_OUTCOMES = 100_000
"""The number of outcomes that are kept for repeated calls; the oldest are forgotten first."""
OF_VALIDATION = "it measures the model: its mode is eval"
Result = TypeVar("Result")
State = Literal["running", "judging", "waiting", "trained", "not_trained", "retried"]
"""The state of an episode: a client has it; it is being judged; it is stored and waits for its
step; or one of the last three, which are final."""
SETTLED: tuple[State, ...] = ("trained", "not_trained", "retried")
TaskSource = Literal["config", "client"]


@dataclass(frozen=True, slots=True)
class BeginRequest:
    """A request for an episode: of any task, of the task `task_id` of the config's data, or of the
    client's `task`. `mode` restricts it to training or validation. A second request with the same
    `request_id` gets the claim of the first. The client `client` begins at most `max_groups` groups
    of a training step with its tasks."""

    agents: tuple[str, ...] = ("default",)
    mode: Mode | None = None
    task_id: str | None = None
    task: Task | None = None
    request_id: str | None = None
    client: str = ""
    max_groups: int | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended: its status, and reward and success if it was judged. `state` says what
    happened since, with the step that trained it or the reason why none did (`left_out`)."""

    episode_id: str
    status: str
    reward: float | None = None
    is_success: bool | None = None
    error: str | None = None
    left_out: str | None = None
    state: State = "waiting"
    trained_step: int | None = None

    @classmethod
    def of(cls, t: Trajectory, left_out: str | None = None) -> Outcome:
        if t.workflow_task.mode != "train":
            left_out = OF_VALIDATION
        state: State = "waiting" if left_out is None else "not_trained"
        return cls(t.episode_id, str(t.outcome), t.reward, t.is_success, t.error, left_out, state)


@dataclass(eq=False)
class Claim:
    """One attempt at an episode, from the moment at which it is offered. Its id is random, so a
    client that returns after the claim is over, or after a restart of the server, cannot end
    somebody else's attempt.

    `task` is the task that it runs. The futures are set once each: `claimed` with the client's
    request, `access` with the model's address for each agent, `ended` by the client, `outcome` when
    the judged episode is stored.
    """

    plan: WorkflowTask
    claim_id: str = field(default_factory=lambda: secrets.token_hex(16))
    request: BeginRequest | None = None
    task: Task | None = None
    last_seen_s: float = 0.0
    claimed_unix_s: float = 0.0
    num_calls: int = 0
    claimed: Future[BeginRequest] = field(default_factory=Future)
    access: Future[Mapping[str, Address]] = field(default_factory=Future)
    ended: Future[WorkflowOutput | Abort] = field(default_factory=Future)
    outcome: Future[Outcome] = field(default_factory=Future)

    @property
    def episode_id(self) -> str:
        return self.plan.episode_id

    @property
    def member(self) -> tuple[str, int]:
        """Identifies the episode, whichever attempt this is."""
        return self.plan.group_id, self.plan.rollout_index


class EpisodeExchange:
    """Matches offers with requests. All methods may be called from any thread."""

    def __init__(
        self,
        *,
        heartbeat_s: float = 120.0,
        episode_timeout_s: float | None = None,
        tasks: TaskSource = "config",
        waits_for_group: bool = False,
        shares: Shares | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A claim ends if its client is silent for `heartbeat_s`. With `tasks="client"` clients
        bring the tasks, and the episodes of one task id make a group. With `waits_for_group` the
        judge compares groups, so an outcome may wait for other episodes. `shares` limits how many
        groups of a training step each client begins. `left_out_reason` may be set: it returns why a
        stored episode is not trained."""
        self.heartbeat_s, self.episode_timeout_s = heartbeat_s, episode_timeout_s
        self.task_source: TaskSource = tasks
        self.waits_for_group = waits_for_group
        self.left_out_reason: Callable[[Trajectory], str | None] = lambda trajectory: None
        self._clock = clock
        self._lock = threading.Lock()
        self._paused = False
        self._over: str | None = None
        self._waiting: dict[Future[Claim], BeginRequest] = {}
        self._offered: dict[str, Claim] = {}  # by the episode's id, oldest first
        self._open: dict[str, Claim] = {}  # by the claim's id: clients are working on these
        self._by_episode: dict[str, Claim] = {}  # by the attempt's id: the workflow waits for these
        self._members: dict[tuple[str, int], Claim] = {}  # the last attempt at each, until stored
        self._requests: dict[str, Claim] = {}  # by the request's id, for repeated requests
        self._clients = Clients(shares)
        self._outcomes: dict[str, Outcome] = {}  # by the claim's id
        self._acknowledged: dict[str, str] = {}  # episode's id -> claim's id, of outcomes
        self._settling: dict[str, Future[None]] = {}  # by the claim's id: done at a final outcome
        self._lost: dict[str, str] = {}  # claims that ended without their client, and why
        self._num_begun = 0
        self._begin_measuring: list[Callable[[BeginRequest], object]] = []
        self._counts: Counter[str] = Counter()
        self._step = self._trained_step = 0

    # --- the run's side --------------------------------------------------------------------------

    def begin_attempt(self) -> None:
        """Notes that another attempt of the run begins, perhaps from an earlier step. Its episodes
        are offered again, and its journal restores the clients' tasks."""
        with self._lock:
            error = "the run resumes from its last checkpoint, and offers it again"
            for claim in self._members.values():
                if claim.ended.done():
                    self._acknowledge(claim, retried(claim, error))
            self._members.clear()
            self._clients.groups.clear()
            self._step = 0

    def rewind(self, step: int) -> None:
        """Notes that the run resumes after this step: what later steps trained waits again."""
        with self._lock:
            self._trained_step = step
            for claim_id, outcome in self._outcomes.items():
                if outcome.trained_step is not None and outcome.trained_step > step:
                    again = replace(outcome, state="waiting", trained_step=None)
                    self._outcomes[claim_id] = again

    @contextmanager
    def measuring(self, begin: Callable[[BeginRequest], object]) -> Iterator[None]:
        """Within the block `begin` is called with each request to measure the model with a task of
        the client's, which then is to be offered."""
        with self._lock:
            self._begin_measuring.append(begin)
            for request in self._waiting.values():
                if self._measures(request):
                    begin(request)
        try:
            yield
        finally:
            with self._lock:
                self._begin_measuring.remove(begin)

    def reserve(self, group_id: str, request: BeginRequest) -> None:
        """Keeps a group that is not yet offered for the task of this request."""
        assert request.task is not None
        with self._lock:
            group = ClientGroup(request.task, request.client, "eval")
            self._clients.groups[group_id] = group

    def retract(self, group_id: str) -> bool:
        """Takes back what is offered of a group; returns whether a client still runs a part of
        it."""
        with self._lock:
            for claim in list(self._offered.values()):
                if claim.plan.group_id == group_id:
                    del self._offered[claim.episode_id]
            return any(claim.plan.group_id == group_id for claim in self._open.values())

    def step_trained(self, step: int, groups: Sequence[Group]) -> None:
        self.settle(step, left_out_of(groups))

    def settle(self, step: int, left_out: Mapping[str, str | None]) -> None:
        """Notes for each episode of a recorded step why it was left out; None if it was trained.
        The step's groups are over, while those of later ones may have been begun."""
        with self._lock:
            self._trained_step = max(self._trained_step, step)
            self._clients.forget_groups(step)
            for episode_id, reason in left_out.items():
                if (claim_id := self._acknowledged.get(episode_id)) is None:
                    continue
                outcome = self._outcomes[claim_id]
                if reason is None:
                    outcome = replace(outcome, state="trained", trained_step=step, left_out=None)
                else:
                    outcome = replace(outcome, state="not_trained", left_out=reason)
                self._keep(claim_id, outcome)

    @contextmanager
    def offer(self, plan: WorkflowTask) -> Iterator[Claim]:
        """Offers an attempt at an episode within the block. At its end the claim is over: a client
        that has not ended it by then gets the answer that it is too late."""
        with self._lock:
            self._step = max(self._step, plan.step)
            group = self._clients.groups.get(plan.group_id)
            claim = Claim(plan, task=plan.task if group is None else group.task)
            # An earlier attempt has failed, since another one follows. Tell its client now: the
            # outcome of the episode may take until another client has ended it.
            earlier = self._members.get(claim.member)
            if earlier is not None and earlier.ended.done():
                error = "it failed, and is offered again (ajet.rollout.failure_policy)"
                self._acknowledge(earlier, retried(earlier, error))
            self._members[claim.member] = self._by_episode[plan.episode_id] = claim
            self._offered[plan.episode_id] = claim
            self._match_waiting()
        try:
            yield claim
        finally:
            with self._lock:
                self._close(claim)

    def patience_s(self, claim: Claim) -> float:
        """Returns for how many more seconds the client may be silent; while a call of the model is
        under way it does not count as silent."""
        with self._lock:
            if claim.num_calls:
                return self.heartbeat_s
            return claim.last_seen_s + self.heartbeat_s - self._clock()

    def lose(self, claim: Claim, reason: str) -> None:
        with self._lock:
            self._note_lost(claim.claim_id, reason)

    def stored(self, trajectory: Trajectory) -> None:
        """Acknowledges an episode that is judged and stored."""
        with self._lock:
            member = (trajectory.group_id, trajectory.workflow_task.rollout_index)
            claim = self._members.pop(member, None)
            outcome = Outcome.of(trajectory, self.left_out_reason(trajectory))
            self._counts[outcome.status] += 1
            if claim is None or claim.request is None:
                return
            self._clients.count_ended(claim.request.client, outcome.status)
            if claim.ended.done():
                self._acknowledge(claim, outcome)
            else:
                reason = f"it ended as {outcome.status}: {outcome.error or 'without its client'}"
                self._lost[claim.claim_id] = reason
                self._settle(claim.claim_id)

    def restore(self, trajectory: Trajectory) -> None:
        """Restores an episode that an earlier start of the server stored: its end gets the same
        answer again, and its group keeps the client's task."""
        output = trajectory.output
        with self._lock:
            metadata = {} if output is None else output.metadata
            if self.task_source == "client":
                name = str(metadata.get(CLIENT_KEY, ""))
                plan = trajectory.workflow_task
                group = ClientGroup(plan.task, name, plan.mode)
                self._clients.groups[trajectory.group_id] = group
            if isinstance(claim_id := metadata.get(CLAIM_KEY), str):
                self._keep(claim_id, Outcome.of(trajectory))

    def close(self, reason: str) -> None:
        """Ends all waiting: the run offers nothing more."""
        with self._lock:
            self._over = reason
            error = RequestError(reason, status=410, code="run_over")
            for future in self._waiting:
                future.set_exception(error)
            self._waiting.clear()
            for claim in self._members.values():
                if not claim.outcome.done():
                    claim.outcome.set_exception(error)
            # `_keep` changes the dict, and so does `_settle` below.
            for claim_id, outcome in list(self._outcomes.items()):
                if outcome.state == "waiting":
                    message = f"{reason} before its step"
                    self._keep(claim_id, replace(outcome, state="not_trained", left_out=message))
            for claim_id in list(self._settling):
                self._settle(claim_id)

    # --- the clients' side -----------------------------------------------------------------------

    def begin(self, request: BeginRequest) -> Future[Claim]:
        """Returns a future with a claim, done when a matching episode is offered. Raises
        `RequestError` if none will be."""
        future: Future[Claim] = Future()
        with self._lock:
            if self._over is not None:
                raise RequestError(self._over, status=410, code="run_over")
            self._refuse_unfit(request)
            # The client did not get the first answer, and asks again.
            if request.request_id is not None and request.request_id in self._requests:
                future.set_result(self._requests[request.request_id])
                return future
            self._waiting[future] = request
            self._match_waiting()
            if not future.done() and self._begin_measuring and self._measures(request):
                self._begin_measuring[-1](request)
        return future

    def withdraw(self, future: Future[Claim]) -> None:
        """Takes back a request that has no claim yet."""
        with self._lock:
            self._waiting.pop(future, None)

    def end(self, claim_id: str, result: WorkflowOutput | Abort) -> Future[Outcome]:
        """Ends a claim and returns the future outcome. Repeating it changes nothing and returns the
        same outcome. Raises `RequestError` for a claim that is over without its client."""
        with self._lock:
            done: Future[Outcome] = Future()
            if claim_id in self._outcomes:
                done.set_result(self._outcomes[claim_id])
                return done
            claim = self._claim(claim_id)
            if not claim.ended.done():
                if isinstance(result, WorkflowOutput):
                    of_claim = {CLAIM_KEY: claim_id}
                    if claim.request is not None:
                        of_claim[CLIENT_KEY] = claim.request.client
                    result = replace(result, metadata=result.metadata | of_claim)
                claim.ended.set_result(result)
            return claim.outcome

    def outcome(self, claim_id: str) -> Outcome:
        """Returns the current outcome of a claim's episode, with the status "pending" until it is
        judged. Raises `RequestError` for a claim that is over without its client."""
        with self._lock:
            if (outcome := self._outcomes.get(claim_id)) is not None:
                return outcome
            claim = self._claim(claim_id)
            state: State = "judging" if claim.ended.done() else "running"
            return Outcome(claim.episode_id, "pending", state=state)

    def settled(self, claim_id: str) -> Future[None]:
        """Returns a future that is done when the claim's `outcome` is final."""
        with self._lock:
            outcome = self._outcomes.get(claim_id)
            if outcome is None:
                self._claim(claim_id)
            elif outcome.state in SETTLED:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            return self._settling.setdefault(claim_id, Future())

    def seen(self, claim_id: str) -> Claim:
        """Notes a sign of life of a claim's client, and returns the claim."""
        with self._lock:
            claim = self._claim(claim_id)
            claim.last_seen_s = self._clock()
            return claim

    @contextmanager
    def calling(self, episode_id: str) -> Iterator[None]:
        with self._lock:
            claim = self._by_episode.get(episode_id)
            if claim is not None:
                claim.num_calls += 1
        try:
            yield
        finally:
            if claim is not None:
                with self._lock:
                    claim.num_calls -= 1
                    claim.last_seen_s = self._clock()

    def is_claimed(self, episode_id: str) -> bool:
        with self._lock:
            claim = self._by_episode.get(episode_id)
            return claim is not None and claim.request is not None

    def set_paused(self, paused: bool) -> None:
        """Stops or resumes handing out episodes. Open claims are not affected."""
        with self._lock:
            self._paused = paused
            self._match_waiting()

    def tasks(self) -> list[dict[str, Any]]:
        """Returns the tasks whose episodes are offered, the oldest group first."""
        with self._lock:
            groups: dict[str, tuple[Claim, int]] = {}
            for claim in self._offered.values():
                first, number = groups.get(claim.plan.group_id, (claim, 0))
                groups[claim.plan.group_id] = first, number + 1
            return [
                {
                    **described(first),
                    "task": task_as_json(first.task or first.plan.task),
                    "num_offered": number,
                }
                for first, number in groups.values()
            ]

    def status(self) -> dict[str, Any]:
        """Returns counts of what is offered, claimed and over since the server's start."""
        with self._lock:
            silent_s: dict[str, list[float]] = {}
            now_s = self._clock()
            for claim in self._open.values():
                if claim.request is not None:
                    silent = silent_s.setdefault(claim.request.client, [])
                    silent.append(now_s - claim.last_seen_s)
            return {
                "state": "over" if self._over else "paused" if self._paused else "running",
                "reason": self._over,
                "step": self._step,
                "trained_step": self._trained_step,
                "tasks": self.task_source,
                "num_begun": self._num_begun,
                "num_offered": len(self._offered),
                "num_claimed": len(self._open),
                "num_waiting_clients": len(self._waiting),
                "num_ended": dict(self._counts),
                "clients": self._clients.status(
                    self._step, silent_s, Counter(r.client for r in self._waiting.values())
                ),
                "heartbeat_s": self.heartbeat_s,
                "episode_timeout_s": self.episode_timeout_s,
            }

    def stopping_note(self) -> str:
        """Returns what a stop after the step waits for. Takes no lock: a signal handler calls it,
        perhaps in the thread that holds the lock."""
        return (
            f"stopping after this step, which waits for clients (episodes they are running: "
            f"{len(self._open)}, offered: {len(self._offered)}); Ctrl-C again stops at once, and "
            "the same command resumes with everything acknowledged"
        )

    # --- below, the caller holds the lock --------------------------------------------------------

    def _refuse_unfit(self, request: BeginRequest) -> None:
        """Raises `RequestError` for a request that no offer of this run will match."""
        if self.task_source == "client" and request.task is None:
            raise RequestError(
                "this run takes its tasks from its clients: give `task`", param="task"
            )
        if self.task_source == "config" and request.task is not None:
            raise RequestError(
                "this run takes its tasks from its config: give `task_id` or none of the two, or "
                "serve with ajet.serve.tasks=client",
                param="task",
            )
        shares = self._clients.shares
        if shares is not None and request.client not in shares.clients:
            raise RequestError(
                f"client must be one of ajet.serve.shares: {', '.join(shares.clients)}",
                param="client",
            )

    def _claim(self, claim_id: str) -> Claim:
        """Returns a claim that its client may still work on, or has ended."""
        if (claim := self._open.get(claim_id)) is not None:
            return claim
        if (outcome := self._outcomes.get(claim_id)) is not None:
            raise RequestError(
                f"the episode is over: it ended as {outcome.status}", status=410, code="over"
            )
        reason = self._lost.get(
            claim_id,
            "this server does not know it: it never existed, or an earlier start of the server "
            "issued it and it was not ended in time",
        )
        raise RequestError(f"the episode is over: {reason}", status=410, code="over")

    def _match_waiting(self) -> None:
        if self._paused or not self._offered:
            return
        for future, request in list(self._waiting.items()):
            if (claim := self._fitting(request)) is not None:
                del self._waiting[future]
                self._hand_over(claim, request)
                future.set_result(claim)
                if not self._offered:
                    return

    def _fitting(self, request: BeginRequest) -> Claim | None:
        """Returns the oldest matching offer. A client's task goes to the group that already has it,
        else to the oldest group without a task."""
        task_id = request.task_id if request.task is None else request.task.task_id
        free, may_begin = None, dict[tuple[Mode, int], bool]()  # computed once for each step
        for claim in self._offered.values():
            if request.mode not in (None, claim.plan.mode):
                continue
            if request.task is None:
                if task_id is None or claim.plan.task_id == task_id:
                    return claim
            elif (group := self._clients.groups.get(claim.plan.group_id)) is not None:
                if group.task.task_id == task_id:
                    return claim
            elif free is None:
                mode, step = claim.plan.mode, claim.plan.step
                if (mode, step) not in may_begin:
                    may_begin[mode, step] = mode != "train" or self._clients.may_begin_group(
                        request.client, step, request.max_groups
                    )
                free = claim if may_begin[mode, step] else None
        return free

    def _measures(self, request: BeginRequest) -> bool:
        return self.task_source == "client" and request.mode == "eval"

    def _hand_over(self, claim: Claim, request: BeginRequest) -> None:
        if request.task is not None:
            group = ClientGroup(request.task, request.client, claim.plan.mode)
            claim.task = self._clients.groups.setdefault(claim.plan.group_id, group).task
        del self._offered[claim.episode_id]
        self._num_begun += 1
        claim.request, claim.last_seen_s = request, self._clock()
        claim.claimed_unix_s = time.time()
        self._open[claim.claim_id] = claim
        if request.request_id is not None:
            self._requests[request.request_id] = claim
        claim.claimed.set_result(request)

    def _close(self, claim: Claim) -> None:
        self._offered.pop(claim.episode_id, None)
        del self._by_episode[claim.episode_id]
        if claim.request is None:
            return
        if claim.request.request_id is not None:
            self._requests.pop(claim.request.request_id, None)
        if not claim.ended.done():
            del self._open[claim.claim_id]
            self._note_lost(claim.claim_id, "its deadline has passed, or the run has stopped it")
        # A client may be waiting for its keys, which will never come.
        if not claim.access.done():
            error = RequestError("the episode was stopped as it began", status=503, code="stopped")
            claim.access.set_exception(error)

    def _acknowledge(self, claim: Claim, outcome: Outcome) -> None:
        self._keep(claim.claim_id, outcome)
        if not claim.outcome.done():
            claim.outcome.set_result(outcome)

    def _note_lost(self, claim_id: str, reason: str) -> None:
        self._lost.setdefault(claim_id, reason)
        self._settle(claim_id)
        # Dicts keep the order of insertion, so the first entry is the oldest.
        while len(self._lost) > MAX_OUTCOMES:
            del self._lost[next(iter(self._lost))]

    def _keep(self, claim_id: str, outcome: Outcome) -> None:
        self._open.pop(claim_id, None)
        self._outcomes[claim_id] = outcome
        if outcome.state != "retried":  # else another attempt may have the same episode id
            self._acknowledged[outcome.episode_id] = claim_id
        if outcome.state in SETTLED:
            self._settle(claim_id)
        while len(self._outcomes) > MAX_OUTCOMES:
            oldest = next(iter(self._outcomes))
            self._acknowledged.pop(self._outcomes.pop(oldest).episode_id, None)

    def _settle(self, claim_id: str) -> None:
        waiting = self._settling.pop(claim_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def left_out_of(groups: Sequence[Group]) -> dict[str, str | None]:
    """Returns, for each episode of a step's groups, why it is not trained; None if it is."""
    reasons: dict[str, str | None] = {}
    for t in (t for group in groups for t in group.trajectories):
        ended = t.error if t.left_out else f"it ended as {t.outcome}"
        reasons[t.episode_id] = None if t.is_valid else ended
    return reasons


def retried(claim: Claim, error: str) -> Outcome:
    """Returns the outcome of an attempt whose episode is offered again."""
    return Outcome(claim.episode_id, "retried", error=error, state="retried")


async def result_within(future: Future[Result], wait_s: float | None = None) -> Result | None:
    """Returns the result of another thread's future, or None after `wait_s` seconds. If the wait is
    cancelled, the future is not."""
    waiting = asyncio.wrap_future(future)
    await asyncio.wait({waiting}, timeout=wait_s)
    return waiting.result() if waiting.done() else None


def described(claim: Claim) -> dict[str, Any]:
    plan = claim.plan
    return {"group_id": plan.group_id, "step": plan.step, "mode": plan.mode, "seed": plan.seed}


def task_as_json(task: Task) -> dict[str, Any]:
    """Returns a task with its row, where a judge or a client finds the expected answer."""
    return {
        "task_id": task.task_id,
        "main_query": task.main_query,
        "init_messages": task.init_messages,
        "metadata": task.metadata,
        **({"query_parts": task.query_parts} if task.query_parts else {}),
    }
