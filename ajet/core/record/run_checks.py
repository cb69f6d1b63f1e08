"""Finds what makes a run look better than it is, in the metrics of its steps so far.

All checks run after every step, `reward_without_success` after every validation. So the intervals
are of 99.9 %: with 95 % a run of 60 steps would get warnings by chance. docs/warnings.md gives the
reason for each bound.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from loguru import logger

from ajet.core.record.evaluation import wilson
from ajet.core.record.run_folder import read_bytes_of
from ajet.core.record.warning_log import RunWarning
from ajet.core.record.warning_names import WarningName
from ajet.core.trajectory.limits import LIMIT_NAMES

Z_999 = 3.290526731491894
"""The normal quantile of a two-sided 99.9 % interval."""
WINDOW = 10
"""Steps that a check pools, because one step of a small run says little."""
MIN_STEPS = 5
"""The fewest steps for a mean."""
MAX_TRUNCATED = 0.1
CUT_BY = "episodes/cut_"
MIN_ENTROPY_SHARE = 0.1
CERTAIN_SUCCESS = 0.8
"""With at least this success, a policy may well be certain."""
MAX_CORRELATION = 0.5
MIN_CORRELATED = 200
"""The fewest episodes for a correlation, not counting one of each group."""

KEPT = (
    "reward/mean",
    "reward/success",
    "update/entropy",
    "groups/total",
    "groups/with_advantage",
    "held_out/success",
    "held_out/tasks",
)
"""The metrics that checks read of older steps, and of validations."""

Metrics = Mapping[str, float]


@dataclass(slots=True)
class MetricsHistory:
    """Holds the metrics of training steps and of validations, with their steps. Steps before the
    last `WINDOW` keep only the metrics in `KEPT`, so that a long run takes little memory."""

    steps: list[tuple[int, Metrics]] = field(default_factory=list)
    held_out: list[tuple[int, Metrics]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> MetricsHistory:
        """Reads `logs/metrics.jsonl`, after the rows of lost steps were cut off."""
        history = cls()
        for step, metrics in metrics_rows(path):
            history.add(step, metrics)
        return history

    def add(self, step: int, metrics: Metrics) -> None:
        """Appends what was logged at a step: training, or a validation after it."""
        if "held_out/success" in metrics:
            self.held_out.append((step, _kept(metrics)))
            return
        self.steps.append((step, metrics))
        if len(self.steps) > WINDOW:
            oldest, row = self.steps[-WINDOW - 1]
            self.steps[-WINDOW - 1] = (oldest, _kept(row))

    def recent(self, name: str, number: int = WINDOW) -> list[float]:
        """Returns the finite values of one metric in the last steps."""
        return list(_values(self.steps[-number:], name))

    def recent_steps(self, number: int = WINDOW) -> str:
        """Returns the range of the last steps as text."""
        first, last = self.steps[-number:][0][0], self.steps[-1][0]
        return f"step {last}" if first == last else f"steps {first} to {last}"


def metrics_rows(path: Path) -> Iterator[tuple[int, Metrics]]:
    """Yields each row of `logs/metrics.jsonl` with its step; `time` is among its numbers. An
    unreadable row is left out with a warning."""
    for number, line in enumerate(read_bytes_of(path).splitlines(), 1):
        try:
            row = json.loads(line)
            step = int(row.pop("step"))
            metrics = {k: float(v) for k, v in row.items() if isinstance(v, int | float)}
        except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            logger.warning(f"{path}: line {number} cannot be read and is left out of the checks")
            continue
        yield step, metrics


Check = Callable[[MetricsHistory], RunWarning | None]


def truncation(history: MetricsHistory) -> RunWarning | None:
    """Warns if the share of truncated episodes is above `MAX_TRUNCATED`, interval included."""
    cut = sum(history.recent("episodes/cut"))
    total = sum(history.recent("episodes/total")) - sum(history.recent("episodes/aborted"))
    share = wilson(cut, total, Z_999)
    if share.low <= MAX_TRUNCATED:
        return None
    limit = cuts_by_limit(history.steps[-WINDOW:]).most_common(1)[0][0]
    return _warning(
        history,
        "truncation",
        f"{share.value:.0%} of the episodes of {history.recent_steps()} were cut by a limit "
        f"({cut:.0f} of {total:.0f}, 99.9 % interval {share.low:.0%} to {share.high:.0%}; most by "
        f"{limit}): what they earn says little about their answers",
        share=share.value,
        low=share.low,
        high=share.high,
    )


def cuts_by_limit(rows: Sequence[tuple[int, Metrics]]) -> Counter[str]:
    """Returns how many episodes of these steps each limit cut, by the last part of its key."""
    limits: Counter[str] = Counter()
    for _, metrics in rows:
        by_limit = {k.removeprefix(CUT_BY): v for k, v in metrics.items() if k.startswith(CUT_BY)}
        limits.update({LIMIT_NAMES.get(name, name): int(v) for name, v in by_limit.items()})
    return limits


def entropy_collapse(history: MetricsHistory) -> RunWarning | None:
    """Warns if the entropy fell below a tenth of that of the first steps while many episodes fail:
    the policy cannot learn what it no longer samples."""
    if len(history.steps) < 2 * MIN_STEPS:
        return None
    first = list(_values(history.steps[:MIN_STEPS], "update/entropy"))
    last = history.recent("update/entropy", MIN_STEPS)
    success = history.recent("reward/success", MIN_STEPS)
    if not first or not last or not success or fmean(success) >= CERTAIN_SUCCESS:
        return None
    before, now = fmean(first), fmean(last)
    if now >= MIN_ENTROPY_SHARE * before:
        return None
    fails = f"{1 - fmean(success):.0%} of the episodes fail"
    if not any(_values(history.steps, "reward/success")):
        fails = "no episode is reported as a success"
    return _warning(
        history,
        "entropy_collapse",
        f"the policy's entropy fell from {before:.3g} nats a token at the start to {now:.3g} in "
        f"{history.recent_steps(MIN_STEPS)}, while {fails}: "
        "it hardly tries anything new (algorithm.entropy_coef, a KL loss, a lower learning rate)",
        before=before,
        now=now,
        success=fmean(success),
    )


def reward_without_success(history: MetricsHistory) -> RunWarning | None:
    """Warns if success on held-out tasks fell between an earlier validation and the last while the
    reward of training rose, both beyond their intervals."""
    if len(history.held_out) < 2:
        return None
    last_step, last = history.held_out[-1]
    for step, earlier in history.held_out[:-1]:
        fall = _fall(earlier, last)
        rise = None if fall is None else _rise(history, step, last_step)
        if fall is None or rise is None:
            continue
        return _warning(
            history,
            "reward_without_success",
            f"the reward of training rose from {rise[0]:.3g} to {rise[1]:.3g}, while success on "
            f"held-out tasks fell from {fall[0]:.1%} (after step {step}) to {fall[1]:.1%} (after "
            f"step {last_step}): the judge may reward failures, or the run overfits",
            reward_before=rise[0],
            reward_after=rise[1],
            success_before=fall[0],
            success_after=fall[1],
        )
    return None


def length_correlation(history: MetricsHistory) -> RunWarning | None:
    return _correlation(
        history,
        "length_correlation",
        "correlation/reply_length",
        "the length of the replies",
        ("longer", "shorter"),
    )


def format_correlation(history: MetricsHistory) -> RunWarning | None:
    return _correlation(
        history,
        "format_correlation",
        "correlation/reply_format",
        "the form of the replies",
        ("well-formed", "malformed or cut"),
    )


def sampler_gap(max_kl: float) -> Check:
    """Returns a check that the KL between sampler and trainer is at most `max_kl`."""

    def check(history: MetricsHistory) -> RunWarning | None:
        text = gap_line(history.steps[-1][1], max_kl)
        if text is None:
            return None
        kl = history.steps[-1][1]["update/sampler_kl"]
        return _warning(history, "sampler_gap", text, kl=kl, max_kl=max_kl)

    return check


def gap_line(metrics: Metrics, max_kl: float) -> str | None:
    """Returns a line with the KL between sampler and trainer if it is above `max_kl`, else None."""
    kl = metrics.get("update/sampler_kl", 0.0)
    if kl <= max_kl:  # false for the NaN of an update that is not finite, which must be reported
        return None
    ess = metrics.get("update/sampler_ess", math.nan)
    ratio = metrics.get("update/sampler_ratio_max", math.nan)
    return (
        f"sampler and trainer have drifted apart: KL {kl:.3g} nats a token (bound {max_kl:g}, "
        f"ajet.trainer_common.sampler_gap.max_kl), effective sample size {ess:.0%}, largest ratio "
        f"{ratio:.3g}: look at the engine's precision, top_p and top_k, and the staleness"
    )


def run_checks(max_sampler_kl: float) -> tuple[Check, ...]:
    """Returns the checks after a step, in the order in which they warn."""
    return (
        truncation,
        entropy_collapse,
        length_correlation,
        format_correlation,
        sampler_gap(max_sampler_kl),
    )


def _warning(history: MetricsHistory, name: WarningName, text: str, **values: float) -> RunWarning:
    return RunWarning(history.steps[-1][0] if history.steps else 0, name, text, values)


def _kept(metrics: Metrics) -> Metrics:
    return {name: metrics[name] for name in KEPT if name in metrics}


def _values(rows: Sequence[tuple[int, Metrics]], name: str) -> Iterator[float]:
    values = (metrics[name] for _, metrics in rows if name in metrics)
    return (value for value in values if math.isfinite(value))


def _fall(earlier: Metrics, last: Metrics) -> tuple[float, float] | None:
    """Returns the success before and after if it fell beyond the interval of the difference
    (Newcombe 1998, from two Wilson intervals). The trials are tasks, not their repetitions."""
    before, after = earlier["held_out/success"], last["held_out/success"]
    tasks = (earlier.get("held_out/tasks", 0.0), last.get("held_out/tasks", 0.0))
    if not all(tasks) or not after < before:
        return None
    low_before = wilson(before * tasks[0], tasks[0], Z_999).low
    high_after = wilson(after * tasks[1], tasks[1], Z_999).high
    half = math.hypot(before - low_before, high_after - after)
    return (before, after) if before - after > half else None


def _rise(history: MetricsHistory, first: int, last: int) -> tuple[float, float] | None:
    """Returns the mean reward of the steps after `first`, and of as many steps up to `last`, if it
    rose beyond the interval of the difference (Welch's, over steps)."""
    start, end = (
        bisect_right(history.steps, step, key=lambda row: row[0]) for step in (first, last)
    )
    number = min(WINDOW, (end - start) // 2)
    before = list(_values(history.steps[start : start + number], "reward/mean"))
    after = list(_values(history.steps[end - number : end], "reward/mean"))
    if min(len(before), len(after)) < MIN_STEPS:
        return None
    half = half_width(before, after)
    rise = fmean(after) - fmean(before)
    return (fmean(before), fmean(after)) if rise > max(half, 0.0) else None


def half_width(before: Sequence[float], after: Sequence[float]) -> float:
    """Returns half the 99.9 % interval of the difference of two means (Welch's)."""
    return Z_999 * math.sqrt(stdev(before) ** 2 / len(before) + stdev(after) ** 2 / len(after))


def _correlation(
    history: MetricsHistory,
    name: WarningName,
    metric: str,
    subject: str,
    more_and_less: tuple[str, str],
) -> RunWarning | None:
    """Warns if the correlation, pooled over steps, is beyond `MAX_CORRELATION`, interval included.
    `more_and_less` names the replies that earn more with a positive and with a negative one."""
    pairs = [
        (metrics[metric], metrics["correlation/episodes"])
        for _, metrics in history.steps[-WINDOW:]
        if metric in metrics and metrics["correlation/episodes"] > 3
    ]
    number = sum(episodes for _, episodes in pairs)
    if number < MIN_CORRELATED:
        return None
    # With n degrees of freedom (episodes less one for each group) Fisher's z has the variance
    # 1 / (n - 2), so steps are weighted by n - 2. The z of 1 and -1 would be infinite.
    weight = sum(episodes - 2 for _, episodes in pairs)
    mean = (
        sum((episodes - 2) * math.atanh(max(-0.9999, min(0.9999, r))) for r, episodes in pairs)
        / weight
    )
    half = Z_999 / math.sqrt(weight)
    if abs(mean) - half <= math.atanh(MAX_CORRELATION):
        return None
    r, low, high = math.tanh(mean), math.tanh(mean - half), math.tanh(mean + half)
    which = more_and_less[0 if r > 0 else 1]
    return _warning(
        history,
        name,
        f"the reward follows {subject}: r = {r:+.2f} within groups (99.9 % interval {low:+.2f} to "
        f"{high:+.2f}, {number:.0f} episodes of {history.recent_steps()}); {which} replies earn "
        "more: look whether they are better",
        r=r,
        low=low,
        high=high,
        episodes=number,
    )
