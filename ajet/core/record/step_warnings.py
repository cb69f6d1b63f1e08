"""What a person should hear of a step: failed episodes every time, settings that miss once.

Not covered: failures that end the run (rollout/failure.py raises those).
"""

from collections.abc import Mapping, Sequence

from loguru import logger

from ajet.core.rollout.failure import failures_line
from ajet.core.trajectory.trajectory import Group

UNUSED_MODEL = (
    "a step sampled no token: does the workflow use model_tuner as its model, and do prompts fit "
    "into ajet.data.max_prompt_length and ajet.rollout.max_model_len?"
)
OWN_SAMPLING = (
    "trained agents asked for a temperature, top_p or top_k of their own: the run's hold "
    "(ajet.rollout.temperature, top_p, top_k)"
)


class StepWarnings:
    """One for a run."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def of_failures(self, where: str, groups: Sequence[Group]) -> None:
        """One line with how many episodes failed, as what, and the first error."""
        if failures := failures_line(groups):
            logger.warning(f"{where}: {failures}")

    def of_metrics(self, metrics: Mapping[str, float]) -> None:
        """What makes a run pointless, or another one than was asked for."""
        if not metrics["tokens/sampled"]:
            self._once(UNUSED_MODEL)
        if metrics["turns/sampling_not_taken"]:
            self._once(OWN_SAMPLING)

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning(text)
