"""Converts what verl-agent, a system built on verl, adds to its config: groups of episodes in
environments, and the estimator gigpo.

    env.rollout.n                                  rollout.num_repeat
    env.max_steps                                  rollout.multi_turn.max_steps
    algorithm.gamma, with gigpo                    algorithm.step_reward_gamma
    algorithm.gigpo.mode: mean_norm                algorithm.normalize_std: false
"""

from ajet.convert.draft import Choices, Draft
from ajet.convert.verl_keys import ACTOR, ALGORITHM, TRAINER

ESTIMATOR, GAMMA = "algorithm.adv_estimator", "algorithm.gamma"
GIGPO = "algorithm.gigpo"
NORMS = Choices({"mean_norm": False, "mean_std_norm": True}, "gigpo does not scale so")
GROUP, STEPS = "env.rollout.n", "env.max_steps"
PENALTY = (f"{ACTOR}.use_invalid_action_penalty", f"{ACTOR}.invalid_action_penalty_coef")
DEFAULT_PENALTY = 0.1  # verl-agent's


def take_environments(draft: Draft) -> None:
    _discount(draft)
    if not draft.has_key(GROUP) and draft.take(ESTIMATOR) != "gigpo":
        return
    # It has no groups where the number is not positive; verl's own is 1 there.
    group = draft.number(GROUP)
    if group > 0 or draft.unknown(GROUP):
        draft.set("ajet.rollout.num_repeat", group, GROUP)
    draft.copy(STEPS, "ajet.rollout.multi_turn.max_steps", int)
    draft.to_do(
        "verl-agent trains each turn as a separate sample: ppo_mini_batch_size counts turns "
        f"there (set {TRAINER}.mini_batch_num), and max_prompt_length and max_response_length "
        "bound one turn"
    )
    if draft.take(PENALTY[0]) is not False:
        written = draft.take(PENALTY[1])
        penalty = DEFAULT_PENALTY if written is None else written
        draft.to_do(
            f"verl-agent takes {penalty} from the reward of a turn whose action is invalid: your "
            "agent or judge does it here"
        )
    draft.ignore(*PENALTY)


def _discount(draft: Draft) -> None:
    if draft.take(ESTIMATOR) != "gigpo":
        draft.copy(GAMMA, f"{ALGORITHM}.gamma", float)
        draft.ignore(GIGPO)
        return
    draft.copy(GAMMA, f"{ALGORITHM}.step_reward_gamma", float)
    weight = draft.take(f"{GIGPO}.step_advantage_w")
    target = f"{ALGORITHM}.step_reward_weight"
    draft.set(target, 1.0 if weight is None else float(weight), f"{GIGPO}.step_advantage_w")
    draft.ignore("algorithm.norm_adv_by_std_in_grpo")
    norm = f"{GIGPO}.mode"
    if draft.has_key(norm):
        draft.copy(norm, f"{ALGORITHM}.normalize_std", NORMS)
    else:
        draft.set(f"{ALGORITHM}.normalize_std", False, norm)
    if draft.take(f"{GIGPO}.enable_similarity"):
        draft.refuse(f"{GIGPO}.enable_similarity", "equal states are compared, not similar ones")
    draft.ignore(f"{GIGPO}.similarity_thresh")
    draft.refuse(
        ESTIMATOR,
        "in verl-agent an episode counts once for each of its turns in the mean of its group; "
        "written as gigpo, where it counts once",
    )
