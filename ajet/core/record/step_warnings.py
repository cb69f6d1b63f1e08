"""Warnings about one step: failed episodes, and settings that do not have the desired effect."""

from collections.abc import Iterator, Mapping, Sequence

from loguru import logger

from ajet.core.advantage import find_estimator
from ajet.core.config import AjetConfig
from ajet.core.config.services import ContextTrackerConfig
from ajet.core.record.call_forms import CallForms
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.record.warning_log import RunWarning
from ajet.core.rollout.failure import descriptors_line, failures_line
from ajet.core.trajectory.trajectory import Group

UNUSED_MODEL = (
    "no token was sampled: does the workflow use model_tuner as its model, does it catch an error, "
    "and do prompts fit into ajet.data.max_prompt_length and ajet.rollout.max_model_len?"
)
OWN_SAMPLING = (
    "trained agents asked for another temperature, top_p or top_k: the run's apply "
    "(ajet.rollout.temperature, top_p, top_k)"
)

NO_STATE_KEY = (
    "no trained turn of the step has a state key, so no step is credited: a "
    "workflow notes it with model_tuner.credit_turn(state_key=…), an environment in info"
)
NO_TURN_REWARD = (
    "no trained turn of the step has a separate reward, so the last one gets all: a workflow sets "
    "it with model_tuner.credit_turn(reward=…)"
)


def warn_of_failures(phase: str, groups: Sequence[Group]) -> None:
    """Logs one line with the number of failed episodes by status, and the first error; another for
    those that failed because of the machine's limits."""
    for line in (failures_line(groups), descriptors_line(groups)):
        if line is not None:
            logger.warning(f"{phase}: {line}")


def metric_warnings(step: int, metrics: Mapping[str, float]) -> Iterator[RunWarning]:
    """Yields a warning if the metrics show that a run is pointless, or not what the user wants."""
    if not metrics["tokens/sampled"]:
        yield RunWarning(step, "unused_model", UNUSED_MODEL)
    if metrics["turns/sampling_not_taken"]:
        yield RunWarning(step, "own_sampling", OWN_SAMPLING)


def call_form_warning(step: int, config: AjetConfig, groups: Sequence[Group]) -> RunWarning | None:
    """Returns a warning where many replies have calls in a form that the run does not read."""
    forms = CallForms.of(t for group in groups for t in group.trajectories)
    line = forms.line(config)
    if line is None:
        return None
    values = {"replies": float(forms.num_other), "with_tools": float(forms.num_replies)}
    return RunWarning(step, "call_form", f"step {step}: {line}", values)


def credit_warnings(step: int, estimator: str, groups: Sequence[Group]) -> Iterator[RunWarning]:
    """Yields a warning where a step-wise estimator finds nothing of what it needs in the turns."""
    turns = [x for g in groups for t in g.valid for x in t.turns if x.trainable]
    row = find_estimator(estimator)
    if not turns or row is None:
        return
    credits_by = row.credits_by
    if credits_by == "state_key" and all(turn.state_key is None for turn in turns):
        yield RunWarning(step, "no_state_key", f"adv_estimator {estimator}: {NO_STATE_KEY}")
    if credits_by == "reward" and all(turn.reward is None for turn in turns):
        yield RunWarning(step, "no_turn_reward", f"adv_estimator {estimator}: {NO_TURN_REWARD}")


def timeline_lines(
    config: ContextTrackerConfig, groups: Sequence[Group], counts: TimelineCounts
) -> Iterator[str]:
    """Yields a line, as far as the config asks for it, for wrong tool calls and for timelines that
    break off."""
    if config.log_tool_format_check:
        num = counts.malformed.get("wrong_toolcall", 0)
        yield f"{num} replies with a wrong call of a tool"
        if config.log_tool_format_error_detail:
            yield from _wrong_calls(groups)
    if config.detect_timeline_snap:
        listed = "; ".join(f"{num}: {reason}" for reason, num in counts.splits.items())
        num = sum(counts.splits.values())
        yield f"{num} timelines broke off" + (f" ({listed})" if num else "")


def _wrong_calls(groups: Sequence[Group]) -> Iterator[str]:
    for trajectory in (t for group in groups for t in group.trajectories):
        for index, turn in enumerate(trajectory.turns):
            if reason := turn.notes.malformed.get("wrong_toolcall"):
                yield f"{trajectory.episode_id}, turn {index}: {reason}"
