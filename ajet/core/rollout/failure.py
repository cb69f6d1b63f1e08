"""Turns an episode's failure into a status, and applies the failure policy to its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ajet.core.errors import ChatError, EnvironmentFault, RunFailed
from ajet.core.errors.codes import Code
from ajet.core.process.descriptors import NONE_LEFT, descriptor_limit
from ajet.core.rollout.limits import FailurePolicy
from ajet.core.trajectory.limits import EndpointFault, EpisodeClosed
from ajet.core.trajectory.trajectory import (
    EpisodeStatus,
    Group,
    Selection,
    SelectionName,
    Trajectory,
)

RETRIED = (EpisodeStatus.TIMEOUT, EpisodeStatus.ENV_ERROR, EpisodeStatus.AGENT_ERROR)
"""Without a judge's error: another answer would not repair the judge."""
_NOT_FAILED = (EpisodeStatus.OK, EpisodeStatus.TRUNCATED, EpisodeStatus.ABORTED)


def status_of(error: BaseException) -> EpisodeStatus:
    """Returns the status of an episode whose workflow raised this exception."""
    match error:
        case EpisodeClosed():
            return EpisodeStatus.ABORTED
        case EnvironmentFault() | EndpointFault() | ChatError() | ConnectionError():
            return EpisodeStatus.ENV_ERROR
    return EpisodeStatus.AGENT_ERROR


def has_failed(trajectory: Trajectory) -> bool:
    """Returns True if the episode ended in an error or a timeout."""
    return trajectory.outcome not in _NOT_FAILED


def check_failure_rate(failed: Sequence[Trajectory], total: int, max_rate: float) -> None:
    """Raises `RunFailed` once more than `max_rate` of `total` episodes have failed."""
    if len(failed) <= max_rate * total:
        return
    raise RunFailed(
        f"{_failure_counts(failed, total)}, more than "
        f"ajet.rollout.max_failure_rate={max_rate:g}; first: {failed[0].error}",
        code=Code.TOO_MANY_FAILURES,
    )


def descriptors_line(groups: Sequence[Group]) -> str | None:
    """Returns how many episodes failed because no file descriptor was left, and what to do, in one
    line; None if none did."""
    trajectories = [t for group in groups for t in group.trajectories]
    num_failed = sum(has_failed(t) and NONE_LEFT in (t.error or "") for t in trajectories)
    if not num_failed:
        return None
    return (
        f"{num_failed} of {len(trajectories)} episodes failed because no file descriptor was left "
        f"(a process may have {descriptor_limit()}): raise the limit (ulimit -Hn; LimitNOFILE of a "
        "service, --ulimit nofile of a container) or lower ajet.rollout.max_env_worker"
    )


def failures_line(groups: Sequence[Group]) -> str | None:
    """Counts the failed episodes by status and quotes the first error, in one line; None if none
    failed."""
    trajectories = [t for group in groups for t in group.trajectories]
    failed = [t for t in trajectories if has_failed(t)]
    if not failed:
        return None
    first = failed[0]
    return f"{_failure_counts(failed, len(trajectories))}; first: {first.episode_id}: {first.error}"


def _failure_counts(failed: Sequence[Trajectory], total: int) -> str:
    counts = Counter(str(t.outcome) for t in failed)
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{len(failed)} of {total} episodes failed ({listed})"


def apply_policy(group: Group, policy: FailurePolicy) -> Group:
    """Returns the group with what the failure policy decides about its failed members: `mask` and
    `retry` (once there is none left) only do not train them, and the group's baseline is that of
    the others; `drop_group` leaves the whole group out; `zero` counts them with reward 0."""
    failed = [t for t in group.trajectories if has_failed(t)]
    if not failed or policy in ("mask", "retry"):
        return group
    if policy == "drop_group":
        reason = f"group dropped: {failed[0].episode_id} ended as {failed[0].outcome}"
        return group.leave_out(SelectionName.DROP_GROUP, reason)
    members: list[Trajectory] = []
    for t in group.trajectories:
        if has_failed(t):
            counted = Selection(SelectionName.ZERO, f"{t.error} (counts as reward 0)")
            t = replace(t, selection=counted, reward=0.0, is_success=False)
        members.append(t)
    return replace(group, trajectories=tuple(members))
