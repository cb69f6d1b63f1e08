"""The rule by which a version is promoted or rolled back, and what is said of clients.

    promote: interval     the lower end of the 95 % interval of the difference >= min_difference
    promote: difference   the mean difference                                  >= min_difference
    max_shadow_kl         and the new version is not further away than this on shadow traffic

Pure functions of what was measured.
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
    """Says whether a version is promoted, and why, in one line."""

    is_promoted: bool
    reason: str


def decide(learn: LearnConfig, difference: IntervalEstimate, shadow: Mapping[str, Any]) -> Decision:
    """Decides about a version whose held-out success differs so from that of the served one."""
    name, value = "difference", difference.value
    if learn.promote == "interval":
        name, value = "lower end of the difference", difference.low
    said = (
        f"held-out success {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    )
    kl = shadow.get("kl")
    if learn.max_shadow_kl is not None and kl is not None and kl > learn.max_shadow_kl:
        return Decision(False, f"{said}; shadow KL {kl:.4f} is above {learn.max_shadow_kl:g}")
    if value >= learn.min_difference:
        return Decision(True, said)
    return Decision(False, f"{said}; the {name} is below {learn.min_difference:g}")


def describe_clients(sessions: Sequence[RatedSession]) -> list[dict[str, Any]]:
    """Returns the clients of a round with the number and mean of their rewards, and `z`: how many
    standard errors their mean is from that of all other clients. The ones furthest from the others
    come first; it is a hint, since clients may differ in what they ask."""
    rewards: dict[str, list[float]] = {}
    for each in sessions:
        rewards.setdefault(each.client, []).append(each.reward)
    spread = pstdev([each.reward for each in sessions]) if sessions else 0.0
    total, count = sum(each.reward for each in sessions), len(sessions)
    clients = []
    for client, own in rewards.items():
        num_others = count - len(own)
        z = 0.0
        if num_others and spread:
            others = (total - sum(own)) / num_others
            error = spread * math.sqrt(1 / len(own) + 1 / num_others)
            z = (fmean(own) - others) / error
        clients.append(
            {"client": client, "sessions": len(own), "reward": fmean(own), "z": round(z, 2)}
        )
    return sorted(clients, key=lambda each: -abs(each["z"]))[:MAX_CLIENTS]
