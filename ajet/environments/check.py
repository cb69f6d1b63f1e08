"""Checks an environment without a model: three agents play it, and their findings are reported.

A *fault* must be fixed (a reward that is not finite, two episodes of one seed that differ); a
*note* is worth knowing (no state keys, groups without signal).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from ajet.core.environment.environment import Environment
from ajet.core.environment.live import call_environment, close_quietly
from ajet.core.environment.registry import EnvironmentMaker
from ajet.core.environment.returns import ResetResult, StepResult, checked_reset, checked_step
from ajet.core.errors import EnvironmentFault
from ajet.core.seeding import derive

INVALID_ACTION = "?!"
"""Text that is unlikely to be a valid action of any environment."""
FORM = (
    "reset(seed, options) returns (observation, info), step(action) returns (observation, reward, "
    "terminated, truncated, info)"
)
MAX_REPLAYED = 16
MAX_SHARED = 0.25
"""The share of held-out games that may begin as a training game without a note."""
Policy = Callable[[Environment], str | None]


@dataclass(slots=True)
class Playthrough:
    """What happened in one episode. `index` is the index of its seed."""

    index: int
    start: ResetResult
    actions: list[str] = field(default_factory=list)
    steps: list[StepResult] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def reward(self) -> float:
        return sum(step.reward for step in self.steps)

    @property
    def is_success(self) -> bool:
        """Follows the same rule as the agents (agents/environment_agent.py)."""
        for step in reversed(self.steps):
            if "success" in step.metrics:
                return step.metrics["success"] > 0
        return bool(self.steps) and self.steps[-1].terminated and self.reward > 0

    @property
    def states(self) -> list[tuple[str | None, str]]:
        """The key and the observation of each state in which an action was taken."""
        states = [self.start, *self.steps[:-1]] if self.steps else []
        return [(state.state_key, state.observation) for state in states]


@dataclass(frozen=True, slots=True)
class AgentStatistics:
    name: str
    num_episodes: int
    success: float
    reward_min: float
    reward_max: float
    reward_mean: float
    reward_std: float
    num_steps: float

    @classmethod
    def of(cls, name: str, played: Sequence[Playthrough]) -> AgentStatistics:
        rewards = [playthrough.reward for playthrough in played]
        return cls(
            name,
            len(played),
            fmean(playthrough.is_success for playthrough in played),
            min(rewards),
            max(rewards),
            fmean(rewards),
            pstdev(rewards),
            fmean(len(playthrough.steps) for playthrough in played),
        )


@dataclass(slots=True)
class EnvironmentReport:
    """The result of a check. `silent_groups` is the share of the random agent's groups whose
    rewards are all equal."""

    name: str
    agents: list[AgentStatistics] = field(default_factory=list)
    num_groups: int = 0
    silent_groups: float | None = None
    seconds_per_step: float | None = None
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """Plays `num_seeds` seeds: `group_size` episodes of each with actions of `sample_action`, one
    with those of `oracle_action`, and one that repeats actions in a new instance."""

    maker: EnvironmentMaker
    num_seeds: int
    group_size: int
    seed: int
    max_steps: int
    split: str = "train"

    def run(self) -> EnvironmentReport:
        report = EnvironmentReport(self.maker.env_type)
        try:
            groups = self._random_groups(report)
            oracle = self._oracle_episodes(report)
            first = [group[0] for group in groups] or oracle
            self._check_determinism(first, report)
            self._check_invalid_action(report)
            self._check_splits(first, report)
            _check_episodes(groups, oracle, report)
        except EnvironmentFault as fault:
            report.notes.append(FORM)
            report.faults.append(str(fault))
        return report

    def _seed_of(self, index: int) -> int:
        return derive(self.seed, "env-check", index) % 2**31

    def _random_groups(self, report: EnvironmentReport) -> list[list[Playthrough]]:
        if self.maker.environment_class.sample_action is Environment.sample_action:
            report.notes.append("no sample_action(): no random agent")
            return []
        groups: list[list[Playthrough]] = []
        for index in range(self.num_seeds):
            groups.append([])
            for member in range(self.group_size):
                rng = random.Random(derive(self.seed, "env-check", index, member))
                played = self._play(index, lambda env, rng=rng: env.sample_action(rng))
                groups[-1].append(played)
        report.agents.append(AgentStatistics.of("random", [p for group in groups for p in group]))
        return groups

    def _oracle_episodes(self, report: EnvironmentReport) -> list[Playthrough]:
        if self.maker.environment_class.oracle_action is Environment.oracle_action:
            report.notes.append("no oracle_action(): the best possible result is unknown")
            return []
        played = [self._play(i, lambda e: e.oracle_action()) for i in range(self.num_seeds)]
        report.agents.append(AgentStatistics.of("oracle", played))
        return played

    def _check_determinism(self, played: Sequence[Playthrough], report: EnvironmentReport) -> None:
        """Reports a fault if the same actions under the same seed give a different episode."""
        for index, before in enumerate(played[:MAX_REPLAYED]):
            # A policy that returns None ends the episode, so it stops where the script does.
            script = iter(before.actions)
            again = self._play(index, lambda _, script=script: next(script, None))
            if difference := _difference(before, again):
                report.faults.append(
                    f"not determined by its seed: {difference} (seed {self._seed_of(index)})"
                )
                return

    def _check_invalid_action(self, report: EnvironmentReport) -> None:
        """Reports if invalid text is accepted as an action, or changes the state."""
        try:
            actions = iter([INVALID_ACTION])
            done = self._play(0, lambda _: next(actions, None))
        except EnvironmentFault as fault:
            # Without a cause step() returned the wrong form, which is not about this action.
            if fault.__cause__ is None:
                raise
            raise EnvironmentFault(
                f"{fault}: models write such text too; answer {INVALID_ACTION!r} with an "
                "observation that says what an action is"
            ) from fault
        if not done.steps:
            return
        step = done.steps[0]
        if step.metrics.get("action_is_valid", 1.0):
            report.notes.append(
                f"text without an action ({INVALID_ACTION!r}) is answered like a wrong move: with "
                "metrics action_is_valid: False a format_penalty could count it"
            )
        elif step.state_key != done.start.state_key:
            report.faults.append(f"{INVALID_ACTION!r} is invalid and yet changed the state_key")

    def _check_splits(self, played: Sequence[Playthrough], report: EnvironmentReport) -> None:
        """Notes if held-out games begin as the training games do that were played."""
        starts = {each.start.observation for each in played}
        if self.split != "train" or len(starts) < 2:  # a start that is always the same says nothing
            return
        others = range(self.num_seeds, self.num_seeds + MAX_REPLAYED)
        held_out = [self._play(index, lambda _: None, "validation") for index in others]
        num_shared = sum(each.start.observation in starts for each in held_out)
        if num_shared > MAX_SHARED * len(held_out):
            report.notes.append(
                f"{num_shared} of {len(held_out)} held-out games begin with the observation of a "
                "training game: if they are the same games, divide them by options['split']"
            )

    def _play(self, index: int, policy: Policy, split: str | None = None) -> Playthrough:
        """Plays one episode with actions of `policy`, until it returns None or the episode is
        over."""
        name = self.maker.environment_class.__name__
        environment = call_environment(self.maker, name)
        try:
            name = type(environment).__name__
            who, seed = f"{name}.reset()", self._seed_of(index)
            options = {"split": split or self.split}
            returned = call_environment(lambda: environment.reset(seed, options), who)
            played = Playthrough(index, checked_reset(returned, who))
            who = f"{name}.step()"
            while len(played.steps) < self.max_steps:
                action = call_environment(
                    lambda: policy(environment), f"{name}: choosing an action"
                )
                if action is None:
                    break
                start_s = time.perf_counter()
                returned = call_environment(lambda action=action: environment.step(action), who)
                played.seconds += time.perf_counter() - start_s
                step = checked_step(returned, who)
                played.actions.append(action)
                played.steps.append(step)
                if step.terminated or step.truncated:
                    break
            return played
        finally:
            close_quietly(environment)


def _difference(before: Playthrough, again: Playthrough) -> str | None:
    """Returns what differs at the first step where something does, or None."""
    if before.start != again.start:
        return "two instances begin differently"
    for number, (first, second) in enumerate(zip(before.steps, again.steps, strict=False), 1):
        for name in ("observation", "reward", "terminated", "truncated", "state_key"):
            if getattr(first, name) != getattr(second, name):
                return f"step {number} gives another {name}"
    return None if len(before.steps) == len(again.steps) else "one episode is longer"


def _check_episodes(
    groups: Sequence[Sequence[Playthrough]],
    oracle: Sequence[Playthrough],
    report: EnvironmentReport,
) -> None:
    drawn = [played for group in groups for played in group]
    everything = [*drawn, *oracle]
    if not everything:
        return
    num_steps = sum(len(played.steps) for played in everything)
    if num_steps:
        report.seconds_per_step = sum(played.seconds for played in everything) / num_steps
    if groups:
        report.num_groups = len(groups)
        silent = [len({played.reward for played in group}) == 1 for group in groups]
        report.silent_groups = fmean(silent)
        if all(silent):
            report.notes.append("no group of the random agent carries a signal")
    if oracle:
        best = fmean(played.reward for played in oracle)
        if drawn and best < fmean(played.reward for played in drawn):
            report.faults.append("the oracle earns less than random actions do")
        if num_lost := sum(not played.is_success for played in oracle):
            report.notes.append(
                f"the oracle does not succeed in {num_lost} of {len(oracle)} episodes"
            )
    _check_texts(everything, report)
    _check_actions(drawn, "sample_action", report)
    _check_actions(oracle, "oracle_action", report)


def _check_texts(everything: Sequence[Playthrough], report: EnvironmentReport) -> None:
    states = [(played.index, *state) for played in everything for state in played.states]
    if any(not text.strip() for _, _, text in states):
        report.faults.append("an observation is empty")
    if any(key is None for _, key, _ in states):
        report.notes.append("no info['state_key']: nothing for GiGPO's step groups")
    else:
        # Within one task, because GiGPO groups states of one task by their keys.
        seen: dict[tuple[int, str | None], str] = {}
        if any(seen.setdefault((index, key), text) != text for index, key, text in states):
            report.notes.append("one state_key stands for several observations")
    if not any("success" in step.metrics for played in everything for step in played.steps):
        report.notes.append("no metrics success: an end with a positive reward counts as one")
    if len(everything) > 1 and len({played.start.observation for played in everything}) == 1:
        report.notes.append("every seed begins with the same observation")


def _check_actions(played: Sequence[Playthrough], method: str, report: EnvironmentReport) -> None:
    """Reports a fault if an action that the environment offered is invalid."""
    for playthrough in played:
        for action, step in zip(playthrough.actions, playthrough.steps, strict=True):
            if step.metrics.get("action_is_valid", 1.0) == 0.0:
                report.faults.append(f"{method}() gave {action!r}, which step() calls invalid")
                return
