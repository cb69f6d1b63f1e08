"""Counts a run's calls, timelines and sampled tokens, with reasons; steps can be added up.

    turn 0   [q]·a        timeline 0   [q] a [t] b     calls 3, timelines 2 in 1 episode
    turn 1   [q a t]·b    timeline 1   [q'] c          split "edited history": 1
    turn 2   [q']·c                                    merge ratio 1.5

A call is a trained turn, a timeline one row of the update. Every sampled token is trained, or has a
reason why not; every timeline of an episode after its first has a reason why it is separate. A
drift is a call that continued recorded ids although a fresh render of its messages has others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any, Self

from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.trajectory import Group, SelectionName, Trajectory
from ajet.core.trajectory.turn import Turn

OTHER_AGENT, RETRIED, DROPPED = "other_agent", "retried", "dropped_group"
SAMPLED_AGAIN = "one prompt was sampled again"
WENT_BACK = "the agent went back to an earlier call"
ANOTHER_AGENT = "another agent's conversation"
NOT_RECORDED = "its messages begin like no recorded call: a new conversation, or an edited history"


@dataclass
class TimelineCounts:
    """Holds the counts of one step or of several.

    `row_tokens` are the tokens that the update would have with one row for each call,
    `timeline_tokens` those that it has. `without_advantage` are trained tokens of advantage 0.
    `not_trained` counts tokens, `splits` timelines, `malformed` turns, and `drift_at` calls by the
    first position that differs (as text, for JSON).
    """

    episodes: int = 0
    calls: int = 0
    timelines: int = 0
    row_tokens: int = 0
    timeline_tokens: int = 0
    sampled: int = 0
    trained: int = 0
    without_advantage: int = 0
    not_trained: dict[str, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    malformed: dict[str, int] = field(default_factory=dict)
    drift_checked: int = 0
    drift_at: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_groups(cls, groups: Sequence[Group], samples: Sequence[TrainingSample]) -> Self:
        """Counts one step."""
        trajectories = [t for group in groups for t in group.trajectories]
        turns = [turn for t in trajectories for a in t.attempts for turn in a.turns]
        drifts = [turn.notes.drift for turn in turns if turn.notes.drift_checked]
        return cls(
            episodes=len({sample.episode_id for sample in samples}),
            calls=sum(len(sample.spans) for sample in samples),
            timelines=len(samples),
            # A row for one call would hold its prompt and its reply: everything up to `stop`.
            row_tokens=sum(span.stop for sample in samples for span in sample.spans),
            timeline_tokens=sum(map(len, samples)),
            sampled=sum(len(turn.completion.token_ids) for turn in turns),
            trained=sum(sample.num_trained for sample in samples),
            without_advantage=sum(_without_advantage(sample) for sample in samples),
            not_trained=_not_trained(trajectories),
            splits=_splits(trajectories, samples),
            malformed=dict(Counter(name for turn in turns for name in turn.notes.malformed)),
            drift_checked=len(drifts),
            drift_at=dict(Counter(str(at) for at in drifts if at is not None)),
        )

    def __add__(self, addend: TimelineCounts) -> TimelineCounts:
        pairs = {f.name: (getattr(self, f.name), getattr(addend, f.name)) for f in fields(self)}
        return TimelineCounts(**{name: _sum(*pair) for name, pair in pairs.items()})

    @property
    def merge_ratio(self) -> float:
        """Returns the number of calls per timeline."""
        return self.calls / self.timelines if self.timelines else 0.0

    @property
    def token_ratio(self) -> float:
        """Returns by what factor timelines save tokens: `row_tokens` over `timeline_tokens`."""
        return self.row_tokens / self.timeline_tokens if self.timeline_tokens else 0.0

    @property
    def drift(self) -> dict[str, float]:
        """Returns the number of checked calls, the share that drifted, and where."""
        metrics: dict[str, float] = {"checked": self.drift_checked}
        positions = [int(at) for at, num in self.drift_at.items() for _ in range(num)]
        if self.drift_checked:
            metrics["rate"] = len(positions) / self.drift_checked
        if positions:
            metrics["first_position_min"] = min(positions)
            metrics["first_position_median"] = median(positions)
        return metrics

    def report(self) -> dict[str, Any]:
        """Returns the block `timelines` of summary.json."""
        names = ("episodes", "calls", "timelines", "splits", "malformed")
        counts = asdict(self)
        return {
            **{name: counts[name] for name in names},
            "merge_ratio": round(self.merge_ratio, 4),
            "token_ratio": round(self.token_ratio, 4),
            "tokens": {
                "sampled": self.sampled,
                "trained": self.trained,
                "trained_without_advantage": self.without_advantage,
                "not_trained": counts["not_trained"],
            },
            "drift": self.drift,
        }


def _sum(a: Any, b: Any) -> Any:
    return dict(Counter(a) + Counter(b)) if isinstance(a, Mapping) else a + b


def _without_advantage(sample: TrainingSample) -> int:
    has_policy_loss = sample.stream("policy_gradient") != 0
    return int((has_policy_loss & (sample.advantages == 0)).sum())


def _not_trained(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Counts sampled tokens by the reason why no loss mask has them."""
    tokens: Counter[str] = Counter()
    for trajectory in trajectories:
        for attempt in trajectory.attempts:
            for turn in attempt.turns:
                reason = _reason(trajectory, attempt, turn)
                tokens[reason or ""] += len(turn.completion.token_ids)
    del tokens[""]  # those that are trained
    return dict(+tokens)  # without zeros: turns that sampled nothing


def _reason(trajectory: Trajectory, attempt: Trajectory, turn: Turn) -> str | None:
    if not turn.trainable:
        return OTHER_AGENT
    if attempt is not trajectory:
        return RETRIED
    if trajectory.is_valid:
        return None
    if trajectory.left_out is None:
        return str(trajectory.outcome)
    return DROPPED if trajectory.left_out is SelectionName.DROP_GROUP else str(trajectory.left_out)


def _splits(
    trajectories: Sequence[Trajectory], samples: Sequence[TrainingSample]
) -> dict[str, int]:
    """Counts the timelines after the first of their episode by the reason why they are separate."""
    turns = {t.episode_id: t.turns for t in trajectories}
    opened: dict[str, list[int]] = {}
    for sample in samples:
        # The first turn of a timeline is the call that did not continue another timeline.
        opened.setdefault(sample.episode_id, []).append(sample.spans[0].turn_index)
    return dict(
        Counter(
            _split_reason(turns[episode_id], at)
            for episode_id, openings in opened.items()
            for at in sorted(openings)[1:]
        )
    )


def _split_reason(turns: Sequence[Turn], at: int) -> str:
    """Returns the reason why turn `at` begins a timeline. The session's reason is exact; without
    one, the prompts tell."""
    turn, earlier = turns[at], turns[:at]
    if turn.notes.reason is not None:
        return turn.notes.reason
    prompt = turn.completion.prompt_ids
    if any(call.completion.prompt_ids == prompt for call in earlier):
        return SAMPLED_AGAIN
    if turn.notes.continues:
        return WENT_BACK
    is_new = all(call.agent_name != turn.agent_name for call in earlier)
    return ANOTHER_AGENT if is_new else NOT_RECORDED
