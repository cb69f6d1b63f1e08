"""The record of one ended episode, and the group of the episodes of one task."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import Limit, Truncation
from ajet.core.trajectory.turn import Turn
from ajet.core.user_code.activity import TimedCall


class EpisodeStatus(StrEnum):
    """How an episode ended; only `ok` and `truncated` are trained on."""

    OK = "ok"
    TRUNCATED = "truncated"  # a limit of tokens or turns cut it; its reward stands
    TIMEOUT = "timeout"  # the deadline passed
    ENV_ERROR = "env_error"  # the environment or a tool server failed
    AGENT_ERROR = "agent_error"  # the workflow raised or returned the wrong type
    JUDGE_ERROR = "judge_error"  # the judge raised or returned no finite reward
    STOPPED = "stopped"  # a person ended it with `ajet inspect stop`
    ABORTED = "aborted"  # the run was stopped; as a status, also: a selection left it out


class SelectionName(StrEnum):
    """What decided about an episode after it ended, in the order of the decisions."""

    ZERO = "zero"  # it failed, and counts with reward 0
    DROP_GROUP = "drop_group"  # another member failed
    REDUNDANCY = "redundancy"  # its group had enough members
    OVERLONG = "overlong"  # a limit cut it
    DYNAMIC_SAMPLING = "dynamic_sampling"  # all rewards of its group are equal
    OVERSAMPLING = "oversampling"  # the rewards of other groups differ more
    STALE = "stale"  # its tokens were too old when its turn came, or its turn never came


LEAVE_OUT = tuple(name for name in SelectionName if name is not SelectionName.ZERO)
"""The selections that keep an episode out of the update though it did not fail."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Holds what a failure policy or a selection decided about an episode, and why in one line."""

    name: SelectionName
    reason: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Holds the turns of one episode in the order they were made, its outcome and its reward.

    `outcome` is how the episode ended, `selection` what the failure policy or a selection decided
    afterwards, and `status` follows from both. `reward` and `is_success` are None until the episode
    is judged. They stay None if it failed, or if nobody rewards it in a run that needs no rewards.
    `failure` is one line with the class and the source line that raised it. `timings` are seconds
    by phase. `began_unix_s` is when the attempt began (0: never), and `calls` are its calls of
    tools, environments and the judge. `earlier_attempts` are failed ones, with the failure policy
    ``retry``.
    """

    workflow_task: WorkflowTask
    turns: tuple[Turn, ...]
    outcome: EpisodeStatus
    output: WorkflowOutput | None = None
    reward: float | None = None
    is_success: bool | None = None
    reward_breakdown: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    truncation: Truncation | None = None
    selection: Selection | None = None
    timings: dict[str, float] = field(default_factory=dict)
    began_unix_s: float = 0.0
    calls: tuple[TimedCall, ...] = ()
    earlier_attempts: "tuple[Trajectory, ...]" = ()

    def leave_out(self, by: SelectionName, reason: str) -> "Trajectory":
        """Returns the trajectory as left out: recorded and counted with its reward, not trained."""
        return replace(self, selection=Selection(by, reason))

    @property
    def left_out(self) -> SelectionName | None:
        """Returns the selection that keeps it out of the update, or None."""
        name = None if self.selection is None else self.selection.name
        return None if name is SelectionName.ZERO else name

    @property
    def status(self) -> EpisodeStatus:
        """Returns the outcome as the update sees it: `aborted` if a selection left the episode out,
        `truncated` if it failed and counts with reward 0."""
        if self.selection is None:
            return self.outcome
        return EpisodeStatus.TRUNCATED if self.left_out is None else EpisodeStatus.ABORTED

    @property
    def ended_as(self) -> EpisodeStatus:
        """Returns the outcome, under the name that earlier versions had for it."""
        return self.outcome

    @property
    def error(self) -> str | None:
        """Returns in one line why the episode was selected, cut or failed; None if it was not."""
        if self.selection is not None:
            return self.selection.reason
        return self.failure if self.truncation is None else self.truncation.detail

    @property
    def episode_id(self) -> str:
        return self.workflow_task.episode_id

    @property
    def group_id(self) -> str:
        return self.workflow_task.group_id

    @property
    def attempts(self) -> "tuple[Trajectory, ...]":
        """Returns all attempts, this one last."""
        return (*self.earlier_attempts, self)

    @property
    def is_valid(self) -> bool:
        """Tells whether it counts in its group: it did not fail and was not left out."""
        return self.status in (EpisodeStatus.OK, EpisodeStatus.TRUNCATED)

    @property
    def cut_by(self) -> Limit | None:
        """Returns the limit that ended the episode or cut its last trained reply. None if neither
        happened, and for an episode that failed or was stopped."""
        if self.outcome is EpisodeStatus.TRUNCATED:
            return Limit.UNKNOWN if self.truncation is None else self.truncation.limit
        # An agent may end normally after a reply that was cut: its answer is incomplete.
        last = next((turn for turn in reversed(self.turns) if turn.trainable), None)
        if self.outcome is not EpisodeStatus.OK or last is None or not last.is_cut:
            return None
        if last.notes.cut_by_agent:
            return Limit.WORKFLOW
        return Limit.MAX_RESPONSE_LENGTH_IN_ONE_TURN

    @property
    def is_given(self) -> bool:
        """Tells whether all its replies were given: a reward says nothing about the model then."""
        return bool(self.turns) and all(turn.is_given for turn in self.turns)

    @property
    def is_malformed(self) -> bool:
        """Tells whether a reply failed one of the run's checks."""
        return any(turn.notes.malformed for turn in self.turns)

    @property
    def agent_rewards(self) -> dict[str, float]:
        """Returns the reward of each trained agent by name; empty if all earned `reward`."""
        return {} if self.output is None or self.is_malformed else self.output.agent_rewards

    @property
    def trained_agents(self) -> list[str]:
        """Returns the names of the trained agents, in the order of their first calls."""
        return list(dict.fromkeys(turn.agent_name for turn in self.turns if turn.trainable))

    @property
    def earned(self) -> tuple[float | None, ...]:
        """Returns the episode's reward and those of its agents, in the order of their names."""
        return (self.reward, *(value for _, value in sorted(self.agent_rewards.items())))

    @property
    def num_sampled(self) -> int:
        """Returns the number of tokens in trainable turns, which the loss masks must add up to."""
        return sum(len(t.completion.token_ids) for t in self.turns if t.trainable)


@dataclass(frozen=True, slots=True)
class Group:
    """Holds the episodes of one task in one step, in the order of `rollout_index`.

    `task` is the reader's; a workflow may change only a copy. `baseline` is the reward of a greedy
    episode, if the estimator compares with one.
    """

    group_id: str
    trajectories: tuple[Trajectory, ...]
    task: Task | None = None
    baseline: float | None = None

    @property
    def number(self) -> int:
        """Returns its index in the step, the last part of `group_id`."""
        return int(self.group_id.rpartition("-")[2])

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        return tuple(t for t in self.trajectories if t.is_valid)

    @property
    def has_signal(self) -> bool:
        """Tells whether two valid members earned different rewards."""
        return len({t.earned for t in self.valid if t.reward is not None}) > 1

    def leave_out(self, by: SelectionName, reason: str) -> "Group":
        """Returns the group with all valid members left out."""
        members = (t.leave_out(by, reason) if t.is_valid else t for t in self.trajectories)
        return replace(self, trajectories=tuple(members))
