"""Warns a person of a step's problems: failed episodes every time, wrong settings once.

What is warned of once a run is kept in its record (warning_log.py).

Not covered: failures that end the run (rollout/failure.py raises those).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from loguru import logger

from ajet.core.config.services import ContextTrackerConfig
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.record.warning_log import RunWarning, WarningLog
from ajet.core.rollout.failure import descriptors_line, failures_line
from ajet.core.trajectory.trajectory import Group

UNUSED_MODEL = (
    "no token was sampled: does the workflow use model_tuner as its model, does it catch an error, "
    "and do prompts fit into ajet.data.max_prompt_length and ajet.rollout.max_model_len?"
)
OWN_SAMPLING = (
    "trained agents asked for a temperature, top_p or top_k of their own: the run's hold "
    "(ajet.rollout.temperature, top_p, top_k)"
)

NO_STATE_KEY = (
    "adv_estimator gigpo: no trained turn of the step has a state key, so no step is credited: a "
    "workflow notes it with model_tuner.credit_turn(state_key=…), an environment in info"
)
NO_TURN_REWARD = (
    "adv_estimator step_reinforce: no trained turn of the step has a reward of its own, so the "
    "last one gets all: a workflow notes it with model_tuner.credit_turn(reward=…)"
)

OnWarning = Callable[[RunWarning], None]


class StepWarnings:
    """Logs the warnings of one run; `config` says what of an episode's tokens is to be logged."""

    def __init__(
        self,
        config: ContextTrackerConfig | None = None,
        log: WarningLog | None = None,
        on_warning: OnWarning = lambda warning: None,
    ) -> None:
        """`log` holds what was warned of so far; `on_warning` is called with each new warning."""
        self._config = config or ContextTrackerConfig()
        self._log = log or WarningLog()
        self._on_warning = on_warning

    def warn_once(self, warning: RunWarning) -> None:
        """Logs the warning, unless one of its name was logged in this run."""
        if self._log.add(warning):
            logger.warning(warning.text)
            self._on_warning(warning)

    def warn_of_failures(self, where: str, groups: Sequence[Group]) -> None:
        """Logs one line with the number of failed episodes by status, and the first error; another
        for those that failed because of the machine's limits."""
        for line in (failures_line(groups), descriptors_line(groups)):
            if line is not None:
                logger.warning(f"{where}: {line}")

    def check_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Warns where the metrics show that a run is pointless, or not the one that was asked
        for."""
        if not metrics["tokens/sampled"]:
            self.warn_once(RunWarning(step, "unused_model", UNUSED_MODEL))
        if metrics["turns/sampling_not_taken"]:
            self.warn_once(RunWarning(step, "own_sampling", OWN_SAMPLING))

    def check_credit(self, estimator: str, groups: Sequence[Group], step: int = 0) -> None:
        """Warns where a step-wise estimator finds nothing of what it needs in the turns."""
        turns = [x for g in groups for t in g.valid for x in t.turns if x.trainable]
        if not turns:
            return
        if estimator == "gigpo" and all(turn.state_key is None for turn in turns):
            self.warn_once(RunWarning(step, "no_state_key", NO_STATE_KEY))
        if estimator == "step_reinforce" and all(turn.reward is None for turn in turns):
            self.warn_once(RunWarning(step, "no_turn_reward", NO_TURN_REWARD))

    def log_timelines(self, where: str, groups: Sequence[Group], counts: TimelineCounts) -> None:
        """Logs, as far as the config asks for it, wrong tool calls and timelines that break off."""
        if self._config.log_tool_format_check:
            num = counts.malformed.get("wrong_toolcall", 0)
            logger.info(f"{where}: {num} replies with a wrong call of a tool")
            if self._config.log_tool_format_error_detail:
                for line in _wrong_calls(groups):
                    logger.info(f"{where}: {line}")
        if self._config.detect_timeline_snap:
            listed = "; ".join(f"{num}: {reason}" for reason, num in counts.splits.items())
            num = sum(counts.splits.values())
            logger.info(f"{where}: {num} timelines broke off" + (f" ({listed})" if num else ""))


def _wrong_calls(groups: Sequence[Group]) -> Iterator[str]:
    for trajectory in (t for group in groups for t in group.trajectories):
        for index, turn in enumerate(trajectory.turns):
            if reason := turn.notes.get("malformed", {}).get("wrong_toolcall"):
                yield f"{trajectory.episode_id}, turn {index}: {reason}"
