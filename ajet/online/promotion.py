"""The rule by which a version is promoted or rolled back, and the report on clients.

promote: interval     the lower end of the 95 % interval of the difference >= min_difference
promote: difference   the mean difference                                  >= min_difference
max_shadow_kl         and the new version is not further away than this on shadow traffic
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from ajet.core.config.services import LearnConfig
from ajet.core.record.evaluation import IntervalEstimate
from ajet.online.log import MAX_CLIENTS, RatedSession


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a version is promoted, and why, in one line."""

    is_promoted: bool
    reason: str


def decide(learn: LearnConfig, difference: IntervalEstimate, shadow: Mapping[str, Any]) -> Decision:
    """Decides by the difference in held-out success between the new version and the served one."""
    name, value = "difference", difference.value
    if learn.promote == "interval":
        name, value = "lower end of the difference", difference.low
    success = (
        f"held-out success {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    )
    kl = shadow.get("kl")
    if learn.max_shadow_kl is not None and kl is not None and kl > learn.max_shadow_kl:
        return Decision(False, f"{success}; shadow KL {kl:.4f} is above {learn.max_shadow_kl:g}")
    if value >= learn.min_difference:
        return Decision(True, success)
    return Decision(False, f"{success}; the {name} is below {learn.min_difference:g}")


def describe_clients(sessions: Sequence[RatedSession]) -> list[dict[str, Any]]:
    """Returns the clients of a round with the number and mean of their rewards, and `z`: how many
    standard errors their mean is from that of all other clients, largest first. It is only a hint,
    since clients may differ in what they ask."""
    rewards: dict[str, list[float]] = {}
    for session in sessions:
        rewards.setdefault(session.client, []).append(session.reward)
    spread = pstdev([session.reward for session in sessions]) if sessions else 0.0
    total, count = sum(session.reward for session in sessions), len(sessions)
    clients = []
    for client, values in rewards.items():
        num_others = count - len(values)
        z = 0.0
        if num_others and spread:
            other_mean = (total - sum(values)) / num_others
            error = spread * math.sqrt(1 / len(values) + 1 / num_others)
            z = (fmean(values) - other_mean) / error
        clients.append(
            {"client": client, "sessions": len(values), "reward": fmean(values), "z": round(z, 2)}
        )
    return sorted(clients, key=lambda row: -abs(row["z"]))[:MAX_CLIENTS]
