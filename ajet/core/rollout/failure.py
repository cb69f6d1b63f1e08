"""What an episode's failure becomes: a status, one line, and what the policy makes of its group.

mask        the episode stays in the record and out of the update; the group's baseline is that
            of the others
retry       it is run again with other seeds, at most `max_retries` times, then masked
            (not after a judge's error: another answer would not mend the judge)
drop_group  the whole group is left out
zero        it counts with reward 0, as a truncated episode
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ajet.core.errors import ChatError, RunFailed
from ajet.core.rollout.limits import FailurePolicy
from ajet.core.trajectory.limits import EndpointFault, EpisodeClosed, EpisodeTruncated
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory

RETRIED = (EpisodeStatus.TIMEOUT, EpisodeStatus.ENV_ERROR, EpisodeStatus.AGENT_ERROR)
_SOUND = (EpisodeStatus.OK, EpisodeStatus.TRUNCATED, EpisodeStatus.ABORTED)
LONGEST_LINE = 500
"""Characters of an exception's message that are recorded: one may hold a whole page."""
_OWN_CODE = str(Path(__file__).parents[2])


class EnvironmentFault(Exception):
    """Raised by a workflow or a tool: the environment failed, the agent did nothing wrong."""


def status_of(error: BaseException) -> EpisodeStatus:
    """The status of an episode whose workflow raised this."""
    match error:
        case EpisodeTruncated():
            return EpisodeStatus.TRUNCATED
        case EpisodeClosed():
            return EpisodeStatus.ABORTED
        case EnvironmentFault() | EndpointFault() | ChatError() | ConnectionError():
            return EpisodeStatus.ENV_ERROR
    return EpisodeStatus.AGENT_ERROR


def one_line(error: BaseException) -> str:
    """``ValueError: bad move (workflow.py:31)``: the class, the message's first line and the last
    line of the user's own code that it passed through, if any."""
    message = next(iter(message_of(error).lstrip()[:LONGEST_LINE].splitlines()), "").rstrip()
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = _place(error)
    return f"{text} ({place})" if place else text


def message_of(error: BaseException) -> str:
    """What an exception says; nothing where the user's `__str__` itself fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # the user's code
        return ""


def _place(error: BaseException) -> str | None:
    return user_line(traceback.extract_tb(error.__traceback__)) or None


def user_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """``workflow.py:31``: the innermost of these lines that is the user's own; "" if none is."""
    own = [f for f in frames if not _is_library(f.filename)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _is_library(filename: str) -> bool:
    return (
        "site-packages" in filename
        or filename.startswith((_OWN_CODE, "<"))
        or "/lib/python" in filename
    )


def has_failed(trajectory: Trajectory) -> bool:
    return trajectory.ended_as not in _SOUND


def check_failure_rate(failed: Sequence[Trajectory], total: int, max_rate: float) -> None:
    """Raises `RunFailed` once more than `max_rate` of `total` episodes have failed."""
    if len(failed) <= max_rate * total:
        return
    raise RunFailed(
        f"{_counted(failed, total)}, more than "
        f"ajet.rollout.max_failure_rate={max_rate:g}; first: {failed[0].error}"
    )


def failures_line(groups: Sequence[Group]) -> str | None:
    """How many episodes failed, as what, and the first one's error; None when none did."""
    trajectories = [t for group in groups for t in group.trajectories]
    failed = [t for t in trajectories if has_failed(t)]
    if not failed:
        return None
    first = failed[0]
    return f"{_counted(failed, len(trajectories))}; first: {first.episode_id}: {first.error}"


def _counted(failed: Sequence[Trajectory], total: int) -> str:
    counts = Counter(str(t.ended_as) for t in failed)
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{len(failed)} of {total} episodes failed ({listed})"


def apply_policy(group: Group, policy: FailurePolicy) -> Group:
    """The group's episodes as the update shall see them."""
    failed = [t for t in group.trajectories if has_failed(t)]
    if not failed or policy in ("mask", "retry"):
        return group
    if policy == "zero":
        seen = (_as_zero(t) if has_failed(t) else t for t in group.trajectories)
    else:
        seen = (_dropped(t, failed[0]) if t.is_valid else t for t in group.trajectories)
    return replace(group, trajectories=tuple(seen))


def _as_zero(t: Trajectory) -> Trajectory:
    return replace(
        t,
        status=EpisodeStatus.TRUNCATED,
        failed_as=t.status,
        reward=0.0,
        is_success=False,
        error=f"{t.error} (counts as reward 0)",
    )


def _dropped(t: Trajectory, failed: Trajectory) -> Trajectory:
    reason = f"group dropped: {failed.episode_id} ended as {failed.status}"
    return t.set_aside("drop_group", reason)
