"""Computes one step's metrics, by name.

    reward/mean, reward/std, reward/success      over judged episodes, also those that a selection
                                                 left out: selection/… has both means
    reward/mean/NAME                             of one agent, if agents are rewarded separately,
                                                 or of one of several adapters
    episodes/ok, episodes/timeout, …             how they ended, before a policy or a selection
    episodes/retried, episodes/retried_timeout…  failed attempts that another one replaced
    episodes/turns_mean                          calls of the model
    episodes/malformed                           with a reply that failed one of the run's checks
    tokens/sampled, tokens/trained, tokens/…     every sampled token, by what was done with it
    turns/cut_by_length, turns/fresh_branches    replies without an end; calls that had to begin a
                                                 new branch though a recorded one matched
    turns/sampling_not_taken                     calls that asked for another temperature in vain
    turns/calls_in_other_form                    replies with calls that only another tool parser
                                                 reads (step_warnings.py)
    turns/malformed_nonsense, …                  replies that failed the check
    compaction/episodes, compaction/summaries    share of episodes that were compacted; summaries,
    compaction/summary_tokens, …                 their mean length, how many were cut or empty; all
                                                 of them only in steps with a summary
    timelines/per_episode                        paths of tokens in an episode
    timelines/merge_ratio                        calls of the model for each of them
    timelines/token_ratio                        tokens of one row a call, over those of timelines
    drift/checked, drift/rate, …                 calls whose fresh render would have other ids, and
                                                 the first position that differs
    episodes/cut                                 those that a limit cut, or whose last reply was
                                                 cut by its own; episodes/cut_… by the limit's key
    groups/total, groups/trained, …              tasks; with a valid member; whose rewards differ
    groups/with_advantage                        with something to learn from (signal.py): a trained
                                                 token with an advantage, given, or with a teacher
    curriculum/with_signal, curriculum/solved, curriculum/hopeless, curriculum/unknown   with an
                                                 order of tasks by results: tasks by what their last
                                                 group showed, and those that had none
    correlation/reply_length                     Pearson's r of the reward and the sampled tokens of
                                                 a reply, on average over the episode's replies
    correlation/reply_format                     the same with the share of well-formed replies:
                                                 ended by the model itself, every tool call
                                                 readable, no check of the run failed
    correlation/episodes                         the episodes behind them, less one for each group
    selection/…                                  episodes kept and left out (selection.py)
    rollout/…                                    speed, greedy episodes included
    baseline/…                                   greedy episodes, above in rollout/… alone (remax)
    advantage/…, kl_in_reward/…, critic/…, update/…   the learner's own figures; with several
                                                 adapters also update/…/NAME, those of one
    preference/loss, preference/accuracy, …      of a preference run: the loss before the update,
                                                 pairs with a margin above 0, implicit rewards
    reward/overlong, reward/clipped              share of episodes that `reward_shaping` changed
    sync/seconds, sync/bytes                     bringing the new weights to the engines
    staleness/mean, staleness/max, …             updates between sampling a token and training it
    staleness/old_keys                           tokens before a call whose keys older weights made
    trainer/waited_s, buffer/ready, …            on trinity: waits, groups on their way
    feedback/unreliable_clients, feedback/unreliable_sessions   of `ajet serve --learn`: clients
                                                 that contradict others and are left out of the
                                                 round, and their sessions so far
    workflow/…                                   means of what workflows and games log
    run/attempt                                  the start of the run that made the step
    held_out/…                                   of a validation, logged at the step it came after;
                                                 held_out/success/TAG of one tag's tasks
    held_out_greedy/success, held_out_sampled/success   by the second decoding, of the validations
                                                 before the first step and after the last

The part before the "/" is the group under which a page shows a metric. The site's list of metrics
is made from these lines (scripts/site_pages.py).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev

from ajet.core.record.evaluation import Evaluation
from ajet.core.record.selection import selection_metrics
from ajet.core.record.signal import num_with_signal
from ajet.core.record.step_warnings import CallForms
from ajet.core.record.timeline_counts import DROPPED, OTHER_AGENT, RETRIED, TimelineCounts
from ajet.core.rollout.batch import StepGroups
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.trajectory import (
    LEAVE_OUT,
    EpisodeStatus,
    Group,
    SelectionName,
    Trajectory,
)
from ajet.core.trajectory.turn import Turn


def step_metrics(
    rollout: StepGroups,
    samples: Sequence[TrainingSample],
    counts: TimelineCounts,
    update_metrics: Mapping[str, float],
    *,
    selections: Sequence[SelectionName] = (),
) -> dict[str, float]:
    """Returns all metrics of one training step. `update_metrics` are the learner's, `selections`
    those that the config enables."""
    groups, rollout_s = rollout.groups, rollout.seconds
    trajectories = [t for g in groups for t in g.trajectories]
    final_turns = [turn for t in trajectories for turn in t.turns]  # not those of retried attempts
    all_trajectories = [t for g in rollout.all for t in g.trajectories]
    turns = [turn for t in all_trajectories for a in t.attempts for turn in a.turns]
    sampled = sum(len(turn.completion.token_ids) for turn in turns)
    return {
        **_reward_metrics(trajectories),
        **_status_metrics(trajectories),
        "turns/cut_by_length": float(sum(turn.is_cut for turn in final_turns)),
        "turns/fresh_branches": float(sum(turn.notes.reason is not None for turn in final_turns)),
        "turns/sampling_not_taken": float(
            sum(bool(turn.notes.sampling_not_taken) for turn in final_turns)
        ),
        "turns/calls_in_other_form": float(CallForms.of(trajectories).num_other),
        **_compaction_metrics(trajectories),
        **_timeline_metrics(counts),
        "groups/total": float(len(groups)),
        "groups/trained": float(sum(bool(group.valid) for group in groups)),
        "groups/with_signal": float(sum(group.has_signal for group in groups)),
        "groups/with_advantage": float(num_with_signal(groups, samples)),
        **correlation_metrics(groups),
        **selection_metrics(groups, selections),
        "rollout/seconds": rollout_s,
        "rollout/episodes_per_s": len(all_trajectories) / rollout_s,
        "rollout/tokens_per_s": sampled / rollout_s,
        **_baseline_metrics(rollout.baselines),
        **update_metrics,
    }


def held_out_metrics(report: Evaluation) -> dict[str, float]:
    """Returns all metrics of one validation."""
    return {
        "held_out/tasks": float(report.num_tasks),
        "held_out/success": report.success.value,
        "held_out/reward": report.mean_at_k.value,
        **{f"held_out/pass_at_{k}": estimate.value for k, estimate in report.pass_at_k.items()},
        **{
            f"held_out/success/{tag}": success.value
            for tag, success in report.success_by_tag.items()
        },
    }


def _reward_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns reward and success over judged episodes, and the means of the metrics that workflows
    log. Episodes with given replies have no reward."""
    sampled = [t for t in trajectories if not t.is_given]
    if len(sampled) < len(trajectories):
        # In a step with given replies, an episode without turns is a row that was too long.
        sampled = [t for t in sampled if t.turns]
    valid = [t for t in sampled if t.is_valid or (t.left_out and t.reward is not None)]
    rewards = [t.reward for t in valid if t.reward is not None]
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in valid:
        for name, value in (trajectory.output.log_metrics if trajectory.output else {}).items():
            by_name[name].append(float(value))
    metrics = {f"workflow/{name}": fmean(values) for name, values in by_name.items()}
    if rewards:
        metrics["reward/mean"] = fmean(rewards)
        metrics["reward/std"] = pstdev(rewards)
        metrics["reward/success"] = fmean(bool(t.is_success) for t in valid if t.reward is not None)
    return metrics | _rewards_by_name(valid)


def _rewards_by_name(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns the mean reward by agent, where they are rewarded separately, or by adapter, over the
    episodes in which it sampled."""
    earned: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        adapters = {turn.adapter for turn in trajectory.turns if turn.adapter}
        # Adapters that share an episode's reward each get it.
        shared = {} if trajectory.reward is None else dict.fromkeys(adapters, trajectory.reward)
        for name, reward in (trajectory.agent_rewards or shared).items():
            earned[name].append(reward)
    return {f"reward/mean/{name}": fmean(rewards) for name, rewards in sorted(earned.items())}


def _status_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counts = Counter(t.outcome for t in trajectories)
    retried = Counter(e.outcome for t in trajectories for e in t.earlier_attempts)
    metrics = {f"episodes/{status}": float(counts[status]) for status in EpisodeStatus}
    metrics["episodes/total"] = float(len(trajectories))
    cut = Counter(t.cut_by for t in trajectories if t.cut_by is not None)
    metrics["episodes/cut"] = float(cut.total())
    metrics |= {f"episodes/cut_{limit.metric}": float(num) for limit, num in cut.items()}
    metrics |= {f"episodes/retried_{status}": float(retried[status]) for status in retried}
    metrics["episodes/retried"] = float(retried.total())
    metrics["episodes/malformed"] = float(sum(t.is_malformed for t in trajectories))
    metrics["episodes/turns_mean"] = fmean(len(t.turns) for t in trajectories)
    return metrics


def _baseline_metrics(baselines: Sequence[Group]) -> dict[str, float]:
    if not baselines:
        return {}
    trajectories = [t for group in baselines for t in group.trajectories]
    rewards = [t.reward for t in trajectories if t.reward is not None]
    metrics = {"baseline/episodes": float(len(trajectories)), "baseline/valid": float(len(rewards))}
    return metrics | ({"baseline/reward": fmean(rewards)} if rewards else {})


def _compaction_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    with_any = sum(any(turn.notes.is_summary for turn in t.turns) for t in trajectories)
    summaries = [turn for t in trajectories for turn in t.turns if turn.notes.is_summary]
    if not summaries:
        return {}
    cut = sum(turn.is_cut for turn in summaries)
    empty = sum(not str(turn.reply.get("content") or "").strip() for turn in summaries)
    return {
        "compaction/episodes": with_any / len(trajectories),
        "compaction/summaries": float(len(summaries)),
        "compaction/summary_tokens": fmean(turn.num_sampled_tokens for turn in summaries),
        "compaction/cut": float(cut),
        "compaction/empty": float(empty),
    }


def _timeline_metrics(counts: TimelineCounts) -> dict[str, float]:
    """Counts sampled tokens: each is trained, or is not trained for one reason."""
    not_trained = dict(counts.not_trained)
    always = (OTHER_AGENT, RETRIED, DROPPED)
    names = (*always, *(name for name in LEAVE_OUT if name in not_trained))
    # What remains after these are tokens of failed episodes, by their status.
    apart = {f"untrained_{name}": not_trained.pop(name, 0) for name in names}
    tokens = {
        "sampled": counts.sampled,
        "trained": counts.trained,
        "trained_without_advantage": counts.without_advantage,
        **apart,
        "untrained_failed_episode": sum(not_trained.values()),
    }
    per_episode = counts.timelines / counts.episodes if counts.episodes else 0.0
    return {
        **{f"tokens/{name}": float(num) for name, num in tokens.items()},
        **{f"turns/malformed_{name}": float(num) for name, num in counts.malformed.items()},
        "timelines/per_episode": per_episode,
        "timelines/merge_ratio": counts.merge_ratio,
        "timelines/token_ratio": counts.token_ratio,
        **{f"drift/{name}": float(value) for name, value in counts.drift.items()},
    }


def correlation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the correlations of the reward within groups. The group's mean is subtracted from
    both values, so that harder tasks with longer replies do not count. Only groups with different
    rewards are used. A value that does not vary in them has no metric."""

    def length(turns: Sequence[Turn]) -> float:
        return fmean(len(turn.completion.token_ids) for turn in turns)

    def form(turns: Sequence[Turn]) -> float:
        return fmean(is_well_formed(turn) for turn in turns)

    metrics: dict[str, float] = {}
    judged = [[t for t in g.valid if _replies(t)] for g in groups if g.has_signal]
    metrics["correlation/episodes"] = float(sum(max(len(members) - 1, 0) for members in judged))
    for name, measure in (("reply_length", length), ("reply_format", form)):
        r = _within_groups(judged, measure)
        if r is not None:
            metrics[f"correlation/{name}"] = r
    return metrics


def is_well_formed(turn: Turn) -> bool:
    """Tells whether the model ended the reply itself, all calls in it could be read, and it passed
    the run's checks."""
    is_ended = turn.completion.finish_reason == "stop"
    return is_ended and not turn.notes.malformed and not turn.notes.malformed_calls


def _replies(trajectory: Trajectory) -> list[Turn]:
    return [turn for turn in trajectory.turns if turn.trainable]


def _within_groups(
    groups: Sequence[Sequence[Trajectory]], measure: Callable[[Sequence[Turn]], float]
) -> float | None:
    """Returns Pearson's r of reward and measure, both minus their group's mean; None if one of them
    does not vary."""

    def centred(values: Sequence[float]) -> list[float]:
        mean = fmean(values) if values else 0.0
        return [value - mean for value in values]

    rewards: list[float] = []
    values: list[float] = []
    for members in groups:
        rewards += centred([t.reward or 0.0 for t in members])
        values += centred([measure(_replies(t)) for t in members])
    spread = math.sqrt(math.fsum(x * x for x in rewards) * math.fsum(x * x for x in values))
    if spread < 1e-12:
        return None
    r = math.fsum(x * y for x, y in zip(rewards, values, strict=True)) / spread
    return min(1.0, max(-1.0, r))  # rounding may exceed the bounds
