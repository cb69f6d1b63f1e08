"""What advantage estimators read: judged groups as numbers, and the settings of the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage import AdvantageOptions, EstimatorSettings, RewardShaping
from ajet.core.advantage.credit import EpisodeCredit, GroupCredit
from ajet.core.advantage.kl_controller import AdaptiveKLController, FixedKLController
from ajet.core.advantage.own import OwnEstimator, OwnShaping
from ajet.core.config import AjetConfig
from ajet.core.config.algorithm import KLControl
from ajet.core.config.section import same_named
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.turn import Turn
from ajet.core.user_code.importing import ARROW, load_function


def estimator_settings(config: AjetConfig) -> EstimatorSettings:
    """Reads from the config how advantages are computed; loads the user's own functions."""
    algorithm = config.ajet.trainer_common.algorithm

    def function(key: str) -> tuple[str, Callable[..., Any]] | None:
        spec, location = getattr(algorithm, key), f"ajet.trainer_common.algorithm.{key}"
        if spec is None or ARROW not in spec:
            return None
        return location, load_function(spec, base_dirs=config.base_dirs, location=location)

    estimator, shaping = function("adv_estimator"), function("reward_shaping")
    return EstimatorSettings(
        name=algorithm.adv_estimator,
        options=AdvantageOptions(**same_named(AdvantageOptions, algorithm)),
        shaping=RewardShaping(
            overlong_buffer=algorithm.overlong.buffer_len,
            overlong_factor=algorithm.overlong.penalty_factor,
            max_response_length=config.ajet.data.max_response_length,
            grouping=algorithm.reward_normalization.grouping,
            normalize_std=algorithm.reward_normalization.method == "mean_std",
            clip=algorithm.reward_clip,
            user_function=OwnShaping(*shaping) if shaping else None,
        ),
        whiten=algorithm.whiten_advantages,
        user_function=OwnEstimator(*estimator) if estimator else None,
        clip=algorithm.advantage_clip,
    )


def make_kl_controller(section: KLControl) -> FixedKLController:
    if section.type == "fixed":
        return FixedKLController(section.kl_coef)
    return AdaptiveKLController(section.kl_coef, section.target_kl, section.horizon)


def credit_of(group: Group) -> GroupCredit:
    """Returns the numbers of the group's valid episodes."""
    ordered = sorted(group.valid, key=lambda t: t.workflow_task.rollout_index)
    return tuple(_episode(trajectory, group.baseline) for trajectory in ordered)


def _episode(trajectory: Trajectory, baseline: float | None) -> EpisodeCredit:
    turns = trajectory.turns
    reward = trajectory.reward or 0.0  # None where the run needs no rewards
    # Of the longest timeline, after the first prompt: what `data.max_response_length` limits.
    lengths = [len(t.completion.prompt_ids) + len(t.completion.token_ids) for t in turns]
    response_length = max(lengths) - len(turns[0].completion.prompt_ids) if turns else 0
    return EpisodeCredit(
        episode_id=trajectory.episode_id,
        group_id=trajectory.group_id,
        reward=reward,
        turn_rewards_T=_turn_rewards(trajectory, reward),
        state_keys_T=tuple(turn.state_key for turn in turns),
        lengths_T=np.array(
            [len(turn.completion.token_ids) if turn.trainable else 0 for turn in turns], np.int64
        ),
        agents_T=tuple(map(_agent, turns)),
        tag=str(trajectory.workflow_task.task.metadata.get("tag", "")),
        response_length=response_length,
        baseline=baseline,
        log_metrics=trajectory.output.log_metrics if trajectory.output else {},
        agent_rewards={
            _agent(turn): trajectory.agent_rewards[turn.agent_name]
            for turn in turns
            if turn.trainable and trajectory.agent_rewards
        },
    )


def _agent(turn: Turn) -> str:
    return f"{turn.agent_name}/{turn.target_tag}"


def _turn_rewards(trajectory: Trajectory, reward: float) -> NDArray[np.float64]:
    """Returns a reward for each turn; they add up to `reward`. What belongs to no turn (a judge's
    reward, or one for a limit) goes to the last trained turn."""
    rewards_T = np.array([turn.reward or 0.0 for turn in trajectory.turns], np.float64)
    trained = [index for index, turn in enumerate(trajectory.turns) if turn.trainable]
    if trained:
        rewards_T[trained[-1]] += reward - rewards_T.sum()
    return rewards_T
