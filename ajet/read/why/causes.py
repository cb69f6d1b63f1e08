"""Why a run's reward stays flat: one check a cause, each a function of the evidence that returns
what it found or None. Bounds are set so that a healthy run has none; benchmarks/why.py plants each
fault and counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ajet.core.advantage import find_estimator
from ajet.core.config.task_reader import TaskReaderConfig
from ajet.core.record.evaluation import wilson
from ajet.core.record.run_checks import Z_999, cuts_by_limit
from ajet.read.why.evidence import Evidence, Seen, contains

MIN_EPISODES = 40
"""Fewer episodes say nothing about a share."""
MIN_STEPS = 4


@dataclass(frozen=True, slots=True)
class Cause:
    """What was found: a name, one sentence with the numbers, the change to make, an episode that
    shows it."""

    name: str
    found: str
    change: str
    episode_id: str | None = None


Check = Callable[[Evidence], Cause | None]


def learning_rate(evidence: Evidence) -> Cause | None:
    optim = evidence.config.ajet.trainer_common.optim
    rates = evidence.values("update/lr")
    if optim.lr == 0:
        text = "the learning rate is 0: no weight changes"
        return Cause("learning_rate", text, "set ajet.trainer_common.optim.lr")
    if not rates or median(rates) > 0.01 * optim.lr:
        return None
    low = [rate for rate in rates if rate <= 0.01 * optim.lr]
    return Cause(
        "learning_rate",
        f"in {len(low)} of {len(rates)} steps the learning rate was at most {max(low):.2g} instead "
        f"of {optim.lr:.2g}: the schedule ({optim.lr_schedule}, {optim.warmup_steps} steps of "
        "warm-up) keeps it near 0",
        "set ajet.trainer_common.optim.warmup_steps, lr_schedule or min_lr_ratio",
    )


def betas(evidence: Evidence) -> Cause | None:
    first, second = evidence.config.ajet.trainer_common.optim.betas
    if 0 <= first <= 0.98 and 0.8 <= second <= 0.9999 and first <= second:
        return None
    return Cause(
        "betas",
        f"AdamW's betas are {first:g} and {second:g}: the mean of {1 / (1 - first):,.0f} gradients "
        f"over a scale of {1 / (1 - second):,.0f}",
        "set ajet.trainer_common.optim.betas: [0.9, 0.95]",
    )


def group_of_one(evidence: Evidence) -> Cause | None:
    ajet = evidence.config.ajet
    algorithm = ajet.trainer_common.algorithm
    row = find_estimator(algorithm.adv_estimator)
    if ajet.rollout.num_repeat > 1 or row is None:
        return None
    if not row.compares(algorithm):
        return None
    return Cause(
        "group_of_one",
        f"adv_estimator {algorithm.adv_estimator} compares the episodes of a task, and each task "
        "has one",
        "set ajet.rollout.num_repeat to 4 or more, or another adv_estimator",
        _first_id(evidence.episodes),
    )


def same_replies(evidence: Evidence) -> Cause | None:
    """Sampling at a very low temperature: the first steps' groups hold one reply each."""
    temperature = evidence.config.ajet.rollout.temperature
    groups = [g for g in evidence.groups.values() if len(g) > 1][:MIN_EPISODES]
    alike = [g for g in groups if len({seen.replies for seen in g}) == 1]
    if len(groups) < MIN_STEPS or len(alike) < 0.9 * len(groups) or temperature > 0.3:
        return None
    return Cause(
        "temperature",
        f"in {len(alike)} of the first {len(groups)} groups all episodes have the same replies, at "
        f"temperature {temperature:g}: nothing is compared",
        "set ajet.rollout.temperature: 1.0",
        _first_id(alike[0]),
    )


def untrained_tokens(evidence: Evidence) -> Cause | None:
    sampled, trained = (evidence.total(f"tokens/{name}") for name in ("sampled", "trained"))
    if not sampled or trained >= 0.5 * sampled:
        return None
    prefix = "tokens/untrained_"
    names = [name for name in evidence.steps[-1][1] if name.startswith(prefix)]
    reasons = Counter({name.removeprefix(prefix): evidence.total(name) for name in names})
    reason, number = reasons.most_common(1)[0] if reasons else ("", 0.0)
    if reason == "failed_episode" or (reason == "other_agent" and trained >= 0.1 * sampled):
        return None  # failures have their own cause; some agents are left out on purpose
    of_them = f", {number:,.0f} of them because of: {reason.replace('_', ' ')}" if number else ""
    return Cause(
        "untrained_tokens",
        f"{trained:,.0f} of {sampled:,.0f} sampled tokens were trained{of_them}",
        "see the workflow's trainable_targets, and `ajet inspect audit`",
        _first_id(evidence.episodes),
    )


def end_is_masked(evidence: Evidence) -> Cause | None:
    ended = [
        (seen, call)
        for seen in evidence.episodes
        for call in seen.calls
        if call.finish_reason == "stop" and call.trains_its_end is not None
    ]
    masked = [seen for seen, call in ended if not call.trains_its_end]
    if len(ended) < MIN_EPISODES or len(masked) < 0.5 * len(ended):
        return None
    return Cause(
        "end_token",
        f"{len(masked)} of {len(ended)} trained replies that ended by themselves are trained "
        "without their last token: the model does not learn to stop",
        "let the loss mask include the token that ends a reply",
        masked[0].episode_id,
    )


def foreign_template(evidence: Evidence) -> Cause | None:
    if evidence.marker is None:
        return None
    return Cause(
        "template",
        f"the chat template writes {evidence.marker}, which is no token of this model: it is the "
        "template of another family",
        "remove ajet.model.chat_template, or name the model's own family",
        _first_id(evidence.episodes),
    )


def foreign_parser(evidence: Evidence) -> Cause | None:
    warning = evidence.warnings.get("call_form")
    if warning is None:
        return None
    change = "set ajet.rollout.tool_parser as the line says"
    return Cause("tool_parser", warning.text, change, _first_id(evidence.episodes))


def rewards_by_chance(evidence: Evidence) -> Cause | None:
    """The same replies to the same task have different rewards: not those of their episodes."""
    pairs = differ = 0
    shown: str | None = None
    alike: dict[tuple[str, bytes], list[Seen]] = {}
    for seen in evidence.episodes:
        alike.setdefault((seen.task_id, seen.replies), []).append(seen)
    for same in alike.values():
        for seen in same[1:]:
            pairs += 1
            if seen.reward != same[0].reward:
                differ, shown = differ + 1, shown or seen.episode_id
    if pairs < MIN_EPISODES or wilson(differ, pairs, Z_999).low < 0.05:
        return None
    return Cause(
        "reward_of_another",
        f"of {pairs} pairs of equal replies to the same task {differ} have different rewards: the "
        "reward belongs to another episode, or the judge decides by chance",
        "look how the judge or the environment finds the episode that it rewards",
        shown,
    )


def inverted_judge(evidence: Evidence) -> Cause | None:
    right = [seen for seen in evidence.episodes if seen.has_reference]
    wrong = [seen for seen in evidence.episodes if seen.has_reference is False]
    if min(len(right), len(wrong)) < MIN_EPISODES // 2:
        return None
    with_it, without = (fmean(seen.reward for seen in some) for some in (right, wrong))
    rewards = [seen.reward for seen in evidence.episodes]
    if without - with_it < 0.3 * (max(rewards) - min(rewards)) or without <= with_it:
        return None
    worst = min(right, key=lambda seen: seen.reward)
    return Cause(
        "inverted_judge",
        f"replies that contain the reference answer earn {with_it:.3g} on average ({len(right)} "
        f"episodes), the others {without:.3g} ({len(wrong)})",
        "the judge rewards what it should not: look at its sign and at what it compares",
        worst.episode_id,
    )


def leaked_answer(evidence: Evidence) -> Cause | None:
    tasks = list({seen.task_id: seen for seen in evidence.episodes if seen.reference}.values())
    leaks = [seen for seen in tasks if contains(seen.announced, seen.reference)]
    # "Answer yes or no" announces the answers of all tasks, and so of none.
    others = [*tasks[1:], *tasks[:1]]
    pairs = [(a, b.reference) for a, b in zip(tasks, others, strict=True)]
    chance = sum(contains(a.announced, other) for a, other in pairs if other != a.reference)
    if len(tasks) < MIN_STEPS or len(leaks) < 0.5 * len(tasks) or chance > 0.1 * len(tasks):
        return None
    return Cause(
        "leaked_answer",
        f"the prompts of {len(leaks)} of {len(tasks)} tasks say their reference answer "
        f"({leaks[0].reference!r})",
        "take the answer out of the prompt",
        leaks[0].episode_id,
    )


def scaled_reward(evidence: Evidence) -> Cause | None:
    rewards = [seen.reward for seen in evidence.episodes]
    sizes = evidence.values("advantage/abs_mean")
    if len(rewards) < MIN_EPISODES or len(set(rewards)) < 2 or max(map(abs, rewards)) > 0.1:
        return None
    size = f", advantages of {fmean(sizes):.2g}" if sizes else ""
    return Cause(
        "reward_scale",
        f"rewards lie between {min(rewards):.3g} and {max(rewards):.3g}{size}: they weigh little "
        "next to a KL loss, and rounding counts",
        "let the judge give about 1 for a success, or set algorithm.normalize_std",
        max(evidence.episodes, key=lambda seen: seen.reward).episode_id,
    )


def strong_kl(evidence: Evidence) -> Cause | None:
    trainer = evidence.config.ajet.trainer_common
    in_reward = trainer.algorithm.use_kl_in_reward
    coef = trainer.algorithm.kl_ctrl.kl_coef if in_reward else trainer.kl_loss_coef
    if not (in_reward or trainer.use_kl_loss) or coef < 1:
        return None
    key = "algorithm.kl_ctrl.kl_coef" if in_reward else "kl_loss_coef"
    kls = evidence.values("update/kl")
    size = f"; the KL stays at {max(kls):.2g} nats a token" if kls else ""
    return Cause(
        "strong_kl",
        f"the KL to the start model counts {coef:g} times{size}: the policy is held where it began",
        f"set ajet.trainer_common.{key} to 0.001 to 0.1",
    )


def clipped(evidence: Evidence) -> Cause | None:
    low, high = (evidence.values(f"update/clip_fraction_{side}") for side in ("low", "high"))
    if len(low) < MIN_STEPS or len(low) != len(high):
        return None
    share = fmean(a + b for a, b in zip(low, high, strict=True))
    if share < 0.15:
        return None
    return Cause(
        "clipped",
        f"{share:.0%} of the trained tokens were clipped, so they have no gradient",
        "set ajet.trainer_common.algorithm.clip_low and clip_high to 0.2, a smaller optim.lr, or "
        "fewer mini-batches",
    )


def stale_weights(evidence: Evidence) -> Cause | None:
    gap = evidence.values("update/sampler_kl")
    if len(gap) < MIN_STEPS:
        return None
    bound = evidence.config.max_staleness
    last = evidence.episodes[-1] if evidence.episodes else None
    if last is not None and last.max_version is not None:
        behind = last.step - 1 - last.max_version
        if behind > bound + MIN_STEPS:
            text = f"episodes of step {last.step} were sampled by weights {behind} updates old"
            change = "look whether the engine gets the weights, and at trinity.max_staleness"
            return Cause("stale_weights", text, change, last.episode_id)
    first, late = abs(gap[0]), median(map(abs, gap[len(gap) // 2 :]))
    if late < 0.005 or late < 100 * first:
        return None
    return Cause(
        "stale_weights",
        f"the sampler's log-probabilities were the trainer's at first (KL {first:.1g}), and later "
        f"are not (KL {late:.2g} nats a token): the engine samples with old weights",
        "look whether the engine gets the weights after each step",
        None if last is None else last.episode_id,
    )


def truncated(evidence: Evidence) -> Cause | None:
    cut, total = evidence.total("episodes/cut"), evidence.total("episodes/total")
    if not total or wilson(cut, total, Z_999).low < 0.1:
        return None
    limits = cuts_by_limit(evidence.steps)
    limit = limits.most_common(1)[0][0] if limits else "a limit"
    shown = next(
        (e for e in evidence.episodes if any(c.finish_reason == "length" for c in e.calls)), None
    )
    return Cause(
        "truncated",
        f"{cut:,.0f} of {total:,.0f} episodes were cut, most by {limit}",
        f"raise {limit}, or let the prompt ask for shorter replies",
        None if shown is None else shown.episode_id,
    )


def failures(evidence: Evidence) -> Cause | None:
    kinds = ("timeout", "env_error", "agent_error", "judge_error")
    numbers = Counter({kind: evidence.total(f"episodes/{kind}") for kind in kinds})
    total, failed = evidence.total("episodes/total"), numbers.total()
    if not total or wilson(failed, total, Z_999).low < 0.1:
        return None
    kind = numbers.most_common(1)[0][0]
    text = f"{failed:,.0f} of {total:,.0f} episodes failed, most with {kind}"
    episode_id, error = evidence.failures.get(kind, (None, ""))
    if error:
        text += f": {error}"
    return Cause("failures", text, "`ajet debug` shows the error in full", episode_id)


def length_exploit(evidence: Evidence) -> Cause | None:
    """Longer replies earn more. (Where shorter ones do, long ones may only be cut.)"""
    warning = evidence.warnings.get("length_correlation")
    if warning is None or warning.values.get("r", 0.0) <= 0:
        return None
    return Cause("length_exploit", warning.text, "let the judge ignore the length of a reply")


def no_signal(evidence: Evidence) -> Cause | None:
    total, signal = (evidence.total(f"groups/{name}") for name in ("total", "with_signal"))
    if not total or signal > 0.05 * total:
        return None
    rewards = Counter(seen.reward for seen in evidence.episodes)
    if not rewards:
        return None  # nothing was rewarded, which other causes explain
    value, number = rewards.most_common(1)[0]
    answers = len({seen.replies for seen in evidence.episodes})
    if value == 1:
        change = "take harder tasks; data.sampler: adaptive prefers those solved now and then"
    else:
        change = (
            "check with `ajet debug` that the judge knows a right answer; then easier tasks, a "
            "better prompt or a supervised stage (ajet.stages)"
        )
    return Cause(
        "no_signal",
        f"{signal:,.0f} of {total:,.0f} groups have different rewards; {number} of "
        f"{rewards.total()} episodes earn {value:g}, for {answers} different replies",
        change,
        _first_id(evidence.episodes),
    )


def entropy(evidence: Evidence) -> Cause | None:
    warning = evidence.warnings.get("entropy_collapse")
    if warning is None:
        return None
    change = "set algorithm.entropy_coef or a KL loss, or a lower learning rate"
    return Cause("entropy", warning.text, change)


def held_out_leak(evidence: Evidence) -> Cause | None:
    both, all_of_them = evidence.held_out_trained
    source = _shared_source(evidence.config.ajet.task_reader)
    if source is not None:
        text = f"held-out tasks are read from {source}, as the training tasks are"
    elif both > 0.1 * all_of_them:
        text = f"{both} of {all_of_them} held-out questions are trained on"
    else:
        return None
    change = "give held-out tasks that are not trained on (ajet.task_reader)"
    return Cause("held_out_leak", f"{text}: their success says nothing", change)


def _shared_source(reader: TaskReaderConfig) -> str | None:
    """Returns the file or split that training and validation both read, if they do."""
    files = (reader.jsonl_dataset_file.training, reader.jsonl_dataset_file.validation)
    of_hub, of_any = reader.huggingface_dat_repo, reader.dataset
    if reader.type == "jsonl_dataset_file" and files[0].file_path == files[1].file_path:
        return files[0].file_path
    if reader.type == "huggingface_dat_repo" and of_hub.training_split == of_hub.validation_split:
        return f"the split {of_hub.training_split}"
    is_one = of_any.validation in (None, of_any.training)
    if reader.type == "dataset" and is_one and of_any.training_split == of_any.validation_split:
        return f"the split {of_any.training_split}"
    return None


def few_tasks(evidence: Evidence) -> Cause | None:
    num_repeat = evidence.config.ajet.rollout.num_repeat
    passes = evidence.num_trained / max(1, evidence.num_tasks * num_repeat)
    if not 0 < evidence.num_tasks <= 16 or passes < 4:
        return None
    return Cause(
        "few_tasks",
        f"there are {evidence.num_tasks} different training tasks, each was trained {passes:.0f} "
        "times: the model learns them by heart",
        "give more tasks (ajet.task_reader); some hundreds are a start",
    )


def _first_id(episodes: Sequence[Seen]) -> str | None:
    return episodes[0].episode_id if episodes else None


CAUSES: tuple[Check, ...] = (
    learning_rate,
    betas,
    group_of_one,
    foreign_template,
    foreign_parser,
    same_replies,
    untrained_tokens,
    end_is_masked,
    failures,
    rewards_by_chance,
    inverted_judge,
    leaked_answer,
    stale_weights,
    clipped,
    strong_kl,
    scaled_reward,
    length_exploit,
    truncated,
    few_tasks,
    no_signal,
    held_out_leak,
    entropy,
)
"""In the order of the report: what hides other causes comes first (with a wrong tool parser all
rewards are 0, so the parser stands before equal rewards), and the most general come last."""


def causes(evidence: Evidence) -> list[Cause]:
    """Returns what was found, the likely cause first."""
    return [cause for check in CAUSES if (cause := check(evidence)) is not None]
