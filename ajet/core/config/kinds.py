"""Defines `ajet.kind`, what a run learns from, and what follows from it for other keys.

reinforcement   rewards of sampled episodes
supervised      given replies: rows of chat messages; one episode a row, no judge, no baseline
preference      given replies of which one is better, or which are good or bad: DPO and KTO
distillation    a teacher's log-probabilities of sampled tokens, alone or with rewards
"""

from typing import Any, Literal

from pydantic import Field

from ajet.core.config.section import Address, Section

Kind = Literal["reinforcement", "supervised", "preference", "distillation"]
PreferenceLoss = Literal["dpo", "kto"]
TRAINER = "ajet.trainer_common"
ALGORITHM = f"{TRAINER}.algorithm"
GIVEN_VALUES: dict[str, Any] = {
    "ajet.rollout.num_repeat": 1,
    "ajet.rollout.group_size_redundancy": 0,
    "ajet.rollout.enable_oversample": False,
    "ajet.rollout.temperature": 1.0,
    f"{TRAINER}.use_kl_loss": False,
    f"{ALGORITHM}.adv_estimator": "reinforce",
    f"{ALGORITHM}.policy_loss": "ppo",
    f"{ALGORITHM}.entropy_coef": 0.0,
    f"{ALGORITHM}.off_policy_mask": None,
    f"{ALGORITHM}.use_kl_in_reward": False,
    f"{ALGORITHM}.whiten_advantages": None,
    f"{ALGORITHM}.reward_shaping": None,
    f"{ALGORITHM}.reward_normalization.grouping": "none",
    f"{ALGORITHM}.dynamic_sampling.enable": False,
    f"{ALGORITHM}.rollout_correction.level": None,
    f"{ALGORITHM}.rollout_correction.reject": {},
    f"{ALGORITHM}.overlong.buffer_len": 0,
    f"{ALGORITHM}.overlong.mask_truncated": True,
}
"""Maps keys to the values that they have in a run on given replies, whatever the YAML says. Nothing
is sampled, so nothing is compared; a row that exceeds a limit is left out, never cut."""
PREFERENCE_VALUES = GIVEN_VALUES | {
    "ajet.rollout.compute_madness_checklist": [],
    f"{ALGORITHM}.loss_agg_mode": "seq-mean-token-sum",
    f"{TRAINER}.mini_batch_num": 1,
    f"{TRAINER}.ppo_epochs": 1,
}
"""The same of a preference run. Its weights are those before the step, so a step is one update. The
reward is what the row says of a reply, so no check may change it."""


def forced_values(kind: Kind, loss: PreferenceLoss) -> dict[str, Any]:
    """Returns the values of keys that follow from the kind."""
    match kind:
        case "supervised":
            return GIVEN_VALUES
        case "preference":
            return PREFERENCE_VALUES | {"ajet.rollout.num_repeat": 2 if loss == "dpo" else 1}
    return {}


class RowsConfig(Section):
    """Configures learning from rows."""

    too_long: Literal["leave_out", "refuse"] = Field(
        default="leave_out",
        description="A row beyond the limits of tokens or calls is left out and counted, or ends "
        "the run.",
    )
    validation: Literal["rows", "tasks"] = Field(
        default="rows",
        description="What the validation split holds: rows, whose cross-entropy is measured (of "
        "pairs, that of the chosen replies), or tasks, which the workflow plays.",
    )


class SupervisedConfig(RowsConfig):
    """Configures learning from given replies (`ajet.kind: supervised`)."""

    train_on: Literal["all", "last"] = Field(
        default="all",
        description="Which assistant messages of a row are trained: all, or its last; one with "
        '"weight": 0 never is.',
    )


class PreferenceConfig(RowsConfig):
    """Configures learning from preferences (`ajet.kind: preference`)."""

    loss: PreferenceLoss = Field(
        default="dpo",
        description="dpo compares two replies to a prompt; kto takes replies that are good or bad.",
    )
    beta: float = Field(
        default=0.1, gt=0, description="How strongly the policy is held to the reference."
    )
    good_weight: float = Field(default=1.0, gt=0, description="Weight of good replies in kto.")
    bad_weight: float = Field(default=1.0, gt=0, description="Weight of bad replies in kto.")


class DistillationConfig(Section):
    """Configures learning from a teacher (`ajet.kind: distillation`)."""

    path: str | None = Field(
        default=None, description="The teacher: a model with the tokenizer of ajet.model.path."
    )
    base_url: Address | None = Field(
        default=None,
        description="A teacher behind a server instead: its address, as http://HOST:8000/v1. Its "
        "key is AJET_TEACHER_API_KEY of the environment.",
    )
    model: str | None = Field(default=None, description="The teacher's name on that server.")
    api: Literal["completions", "generate"] = Field(
        default="completions",
        description="How the server is asked: completions (vLLM's prompt_logprobs) or generate "
        "(SGLang's own).",
    )
    timeout_s: float = Field(
        default=300.0, gt=0, description="Longest time of one request, with its whole answer."
    )
    max_retries: int = Field(
        default=3, ge=0, description="Retries after 429, 5xx and broken connections."
    )
    max_parallel: int = Field(default=16, ge=1, description="Requests at a time of each rank.")
    own_weights: bool = Field(
        default=False,
        description="Use the policy itself, before each step's update, as the teacher; it is shown "
        "the hint.",
    )
    hint: str | None = Field(
        default=None,
        description="What the teacher alone is shown, at the end of the first user message; {name} "
        "is a field of the task's row.",
    )
    kl_coef: float = Field(
        default=1.0, ge=0, description="Coefficient of the KL from the policy to the teacher."
    )
    reward_weight: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the policy gradient from rewards, which is added; 0 has none.",
    )
