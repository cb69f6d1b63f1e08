"""What cut an episode short: the limit, and one line with the numbers."""

from dataclasses import dataclass
from enum import StrEnum


class Limit(StrEnum):
    """A limit that can end an episode. The value is its key in the config, if it has one."""

    MAX_PROMPT_LENGTH = "ajet.data.max_prompt_length"
    MAX_RESPONSE_LENGTH = "ajet.data.max_response_length"
    MAX_MODEL_LEN = "ajet.rollout.max_model_len"
    MAX_RESPONSE_LENGTH_IN_ONE_TURN = "ajet.rollout.max_response_length_in_one_turn"
    MAX_STEPS = "ajet.rollout.multi_turn.max_steps"
    MALFORMED_REPLY = "ajet.rollout.compute_madness_checklist"
    HARNESS = "ajet.harness.limits"
    ENGINE = "engine context"  # the inference engine refused a prompt that the run's limits allow
    WORKFLOW = "workflow limit"  # ModelTuner.truncate, .tighten_limits, max_tokens of a request
    UNKNOWN = "unknown limit"  # records of releases that stored only the line

    @property
    def text(self) -> str:
        return f"by {LIMIT_NAMES.get(self.metric, self)}"

    @property
    def metric(self) -> str:
        """Returns the last part of the metric that counts its episodes (`episodes/cut_…`)."""
        return self.value.rpartition(".")[2].replace(" ", "_")


LIMIT_NAMES = {Limit.WORKFLOW.metric: "the agent's own max_tokens or limit"}
"""What people read in place of a metric's last part that is no key of the config."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Holds the limit that ended an episode, and one line with the numbers."""

    limit: Limit
    detail: str

    def __str__(self) -> str:
        return self.detail
