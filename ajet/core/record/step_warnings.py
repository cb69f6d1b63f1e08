"""Warnings about one step: failed episodes, and settings that do not have the desired effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from loguru import logger

from ajet.core.advantage import find_estimator
from ajet.core.config import AjetConfig
from ajet.core.config.services import ContextTrackerConfig
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.record.warning_log import RunWarning
from ajet.core.rollout.failure import descriptors_line, failures_line
from ajet.core.trajectory.trajectory import Group, Trajectory

REPORTED_SHARE = 0.1
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


@dataclass(frozen=True, slots=True)
class CallForms:
    """Holds the number of sampled replies that were offered tools, and of those whose calls only
    another parser than that of the run would have read, by its name."""

    num_replies: int
    by_parser: Mapping[str, int]

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Self:
        turns = [turn for t in trajectories for a in t.attempts for turn in a.turns]
        # A call in another form can only be a mistake if tools were offered to the model.
        offered = [turn for turn in turns if turn.tools and not turn.is_given]
        forms = [turn.notes.other_form for turn in offered]
        return cls(len(offered), dict(Counter(form for form in forms if form is not None)))

    @property
    def num_other(self) -> int:
        return sum(self.by_parser.values())

    def line(self, config: AjetConfig) -> str | None:
        """Returns the count and the remedy in one line; None if the share is below
        `REPORTED_SHARE`: a model that knows its form writes a stray call now and then."""
        if not self.by_parser or self.num_other < REPORTED_SHARE * self.num_replies:
            return None
        best = max(self.by_parser, key=lambda name: self.by_parser[name])
        listed = ", ".join(f"{num} as {name}" for name, num in self.by_parser.items())
        of_suite = "offer functions in the benchmark's own prompt (+suite.prompting=text), or "
        return (
            f"{self.num_other} of {self.num_replies} replies to an offer of tools have a call that "
            f"ajet.rollout.tool_parser={config.ajet.rollout.tool_parser} does not read, but others "
            f"do ({listed}), so the agent saw no call: set ajet.rollout.tool_parser={best}, or "
            f"{of_suite if 'suite' in config.user_sections() else ''}"
            "teach the model its chat template's form, by the prompt or a supervised stage"
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
            for trajectory in (t for group in groups for t in group.trajectories):
                for index, turn in enumerate(trajectory.turns):
                    if reason := turn.notes.malformed.get("wrong_toolcall"):
                        yield f"{trajectory.episode_id}, turn {index}: {reason}"
    if config.detect_timeline_snap:
        listed = "; ".join(f"{num}: {reason}" for reason, num in counts.splits.items())
        num = sum(counts.splits.values())
        yield f"{num} timelines broke off" + (f" ({listed})" if num else "")
