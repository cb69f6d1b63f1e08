"""The limits of a rollout: episodes at once, their time, and what a failure leads to."""

from dataclasses import dataclass
from typing import Literal, Self

from ajet.core.config import AjetConfig
from ajet.core.config.section import same_named
from ajet.core.trajectory.limits import EpisodeLimits, MalformedPolicy

FailurePolicy = Literal["mask", "retry", "drop_group", "zero"]
DriftCheck = Literal["none", "first", "all"]


@dataclass(frozen=True, slots=True)
class RolloutLimits(EpisodeLimits):
    """Holds the limits of one episode and those of the whole rollout.

    `episode_timeout_s` counts from the start of the workflow, without waiting for waves
    (attempt.py). `max_wave_wait_s` bounds how long a wave waits for one episode (watch.py). A
    workflow that still runs `cancel_grace_s` after it was cancelled is abandoned. The run fails if
    more than `max_failure_rate` of a rollout's episodes fail. `check_drift` says in which members
    of a group prompts are compared with a fresh render. `success_threshold` is the reward from
    which an episode succeeds, if neither workflow nor judge says so. `reward_names` must be in its
    `log_metrics` (gdpo). Without `needs_reward` an episode of training that nobody rewards is not a
    failure. `hint` is what a teacher is shown of each task of training (trajectory/hint.py).
    """

    max_env_worker: int = 64
    episode_timeout_s: float | None = 600.0
    max_wave_wait_s: float | None = None
    cancel_grace_s: float = 5.0
    failure_policy: FailurePolicy = "mask"
    max_retries: int = 2
    max_failure_rate: float = 0.5
    check_drift: DriftCheck = "none"
    success_threshold: float = 0.5
    reward_names: tuple[str, ...] = ()
    needs_reward: bool = True
    hint: str | None = None

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Returns the limits that the config sets."""
        ajet = config.ajet
        data, rollout, algorithm = ajet.data, ajet.rollout, ajet.trainer_common.algorithm
        sections = (data, rollout, rollout.multi_turn, ajet.context_tracker, ajet.task_judge)
        computed = {
            "reward_names": tuple(
                algorithm.reward_weights if algorithm.estimator.compares_named_rewards else ()
            ),
            "needs_reward": config.learns_from_rewards,
            "hint": ajet.distillation.hint if ajet.kind == "distillation" else None,
            "malformed": MalformedPolicy(
                checks=tuple(rollout.compute_madness_checklist),
                ends_episode=rollout.agent_madness_termination,
                reward=rollout.agent_madness_reward,
            ),
        }
        return cls(**same_named(cls, *sections) | computed)

    def checks_drift(self, rollout_index: int) -> bool:
        """Tells whether the prompts of this member of its group are compared."""
        return self.check_drift == "all" or (self.check_drift == "first" and rollout_index == 0)
