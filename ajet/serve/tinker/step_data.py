"""The data of one step of a training run, as its metrics and its episodes.

An episode is a datum, a turn a span of its trained positions. The data of a step that have one loss
and one first prompt are a group. Metrics have the names that they have in other runs
(core/update/update_metrics.py, core/record/step_metrics.py); `update/loss` is the sum that the API
defines. Only here:

    tinker/requests     forward_backwards of the step
    tinker/left_out     data that are counted and not recorded: with several targets at a position,
                        or beyond MAX_TOKENS
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ajet.core.inference.endpoint import Completion
from ajet.core.losses.token_loss import MAX_LOG_RATIO
from ajet.core.record.signal import MIN_ADVANTAGE
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.sample import TrainingSample, TurnSpan
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.core.update.update_metrics import SamplerGap
from ajet.serve.tinker.wire import Datum, LossResult

MAX_TOKENS = 1 << 22
"""The most tokens of a step that are recorded: they are in memory until the step."""
MAX_QUERY = 200
"""Characters of a prompt, from its end, that lists of episodes show."""
MAX_SPANS = 32
"""More spans are recorded as this many, so that a datum takes time and space for its length. The
last one then holds tokens that are not trained."""
NEARLY_1 = -1e-3
"""The log-probability above which a token counts as certain."""

TextOf = Callable[[Sequence[int]], str]
"""Returns the text of any token ids."""


@dataclass(frozen=True)
class ComputedDatum:
    """A datum with one target at each position, and the policy's log-probabilities of its targets.
    `request` counts the forward_backwards of a step, `number` the data of a request. All arrays
    are [N].

        tokens     p0 p1 p2 a0 a1 o0 b0      position n predicts target n
        targets    p1 p2 a0 a1 o0 b0 b1
        trained     0  0  1  1  0  1  1      turn 0: p0 p1 p2 -> a0 a1
        spans            [2, 4)   [5, 7)     turn 1: p0 p1 p2 a0 a1 o0 -> b0 b1
    """

    loss_fn: str
    config: Mapping[str, float]
    datum: Datum
    policy_logprobs: NDArray[np.float32]
    request: int = 0
    number: int = 0

    @property
    def is_given(self) -> bool:
        """Tells whether the targets were not sampled, as far as the loss tells."""
        return self.loss_fn == "cross_entropy"

    @property
    def tokens(self) -> NDArray[np.int64]:
        return self.datum.tokens_N

    @property
    def targets(self) -> NDArray[np.int64]:
        return self.datum.targets.reshape(-1)

    @cached_property
    def advantages(self) -> NDArray[np.float32]:
        """Returns the advantages; of cross_entropy the weights."""
        return self._input("weights" if self.is_given else "advantages")

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Returns the sampler's log-probabilities; of cross_entropy the policy's."""
        return self.policy_logprobs if self.is_given else self._input("logprobs")

    @cached_property
    def log_ratio(self) -> NDArray[np.float64]:
        """Returns log(policy / sampler)."""
        return self.policy_logprobs.astype(np.float64) - self.logprobs

    @cached_property
    def ratios(self) -> NDArray[np.float64]:
        """Returns the ratios that the loss uses: the tokens', or with gspo the datum's."""
        log_ratio = self.log_ratio
        if self.loss_fn == "gspo":
            marked = log_ratio[self._input("sequence_ratio_mask") != 0]
            log_ratio = np.full_like(log_ratio, marked.mean() if len(marked) else 0.0)
        return np.exp(log_ratio.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))

    @cached_property
    def cuts(self) -> dict[str, NDArray[np.bool_]]:
        """Returns where a bound of the loss acted, by the bound; nothing for a loss without."""
        if "clip_low_threshold" not in self.config:
            return {}
        is_low = self.ratios < self.config["clip_low_threshold"]
        is_high = self.ratios > self.config["clip_high_threshold"]
        if self.loss_fn != "cispo":  # the smaller of two terms: a bound acts on one side
            is_low, is_high = is_low & (self.advantages < 0), is_high & (self.advantages > 0)
        return {"low": is_low & self.is_trained, "high": is_high & self.is_trained}

    @cached_property
    def is_trained(self) -> NDArray[np.bool_]:
        """Returns which positions are trained: those with a weight, or else those that were
        sampled, whose advantage, `logprobs` or mask of gspo is not 0."""
        if self.is_given:
            return self.advantages != 0
        is_sampled = (self.advantages != 0) | (self.logprobs != 0)
        if self.loss_fn == "gspo":
            is_sampled |= self._input("sequence_ratio_mask") != 0
        if self.advantages.any():
            return is_sampled
        # The log-probability of a sampled token may be 0: add the gaps between sampled tokens, and
        # the end after them, in which all tokens are certain.
        is_certain = self.policy_logprobs > NEARLY_1
        for start, stop in _runs(~is_sampled):
            if start and is_certain[start:stop].all():
                is_sampled[start:stop] = True
        return is_sampled

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Returns first and last position + 1 of each turn."""
        spans = _runs(self.is_trained)
        if len(spans) > MAX_SPANS:
            spans[MAX_SPANS - 1 :] = [(spans[MAX_SPANS - 1][0], spans[-1][1])]
        return spans

    @property
    def first_prompt(self) -> NDArray[np.int64]:
        """Returns the tokens before the first trained one; all where none is trained."""
        return self.tokens[: self.spans[0][0] + 1] if self.spans else self.tokens

    def _input(self, name: str) -> NDArray[Any]:
        return self.datum.inputs[name].reshape(-1)


def _runs(is_in: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Returns first and last position + 1 of each run of true values."""
    padded = np.zeros(len(is_in) + 2, np.bool_)
    padded[1:-1] = is_in
    edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


@dataclass
class StepData:
    """The data of the forward_backwards since the last step, and the sums of their losses."""

    data: list[ComputedDatum] = field(default_factory=list)
    loss: float = 0.0
    sampled_loss: float = 0.0  # without that of given tokens
    num_requests: int = 0
    num_tokens: int = 0
    num_left_out: int = 0

    def add(
        self, loss_fn: str, config: Mapping[str, float], data: Sequence[Datum], result: LossResult
    ) -> None:
        """Adds the data of a request and what it computed; they must not change any more."""
        self.loss += result.loss
        self.sampled_loss += 0.0 if loss_fn == "cross_entropy" else result.loss
        for number, (datum, logprobs) in enumerate(zip(data, result.logprobs, strict=True)):
            num_tokens = len(datum.tokens_N)
            if datum.targets.size != num_tokens or self.num_tokens + num_tokens > MAX_TOKENS:
                self.num_left_out += 1
                continue
            self.num_tokens += num_tokens
            place = self.num_requests, number
            self.data.append(ComputedDatum(loss_fn, config, datum, logprobs.reshape(-1), *place))
        self.num_requests += 1

    def groups(self) -> list[list[ComputedDatum]]:
        """Returns the data by group, in the order in which they came."""
        groups: dict[tuple[str, bytes], list[ComputedDatum]] = {}
        for datum in self.data:
            key = datum.loss_fn, datum.first_prompt.tobytes()
            groups.setdefault(key, []).append(datum)
        return list(groups.values())

    def metrics(self, groups: Sequence[Sequence[ComputedDatum]]) -> dict[str, float]:
        data = self.data
        given, sampled = ([d for d in data if d.is_given is is_given] for is_given in (True, False))
        num_turns = sum(len(datum.spans) for datum in data)
        num_trained = sum(int(datum.is_trained.sum()) for datum in data)
        metrics = {
            "update/loss": self.loss,
            "update/trained_tokens": num_trained,
            "tokens/sampled": sum(stop - start for d in data for start, stop in d.spans),
            "tokens/trained": num_trained,
            "episodes/total": len(data),
            "episodes/turns_mean": num_turns / max(len(data), 1),
            "groups/total": len(groups),
            "groups/with_advantage": sum(
                any((abs(d.advantages) > MIN_ADVANTAGE).any() for d in group) for group in groups
            ),
            "tinker/requests": self.num_requests,
            "tinker/left_out": self.num_left_out,
        }
        if len(logprobs_M := _trained_values(given, "policy_logprobs")):
            metrics["update/cross_entropy"] = -float(logprobs_M.mean())
        return metrics | _sampled_metrics(sampled, self.sampled_loss)


def _sampled_metrics(data: Sequence[ComputedDatum], loss: float) -> dict[str, float]:
    """Returns the metrics of losses with advantages; none if no token was sampled."""
    advantages_M, gap = _trained_values(data, "advantages"), SamplerGap()
    if not len(advantages_M):
        return {}
    gap.add(torch.from_numpy(_trained_values(data, "log_ratio")))
    metrics = {
        "update/pg_loss": loss / len(advantages_M),
        "update/ratio_max": float(_trained_values(data, "ratios").max()),
        **{f"update/{name}": value for name, value in gap.result().items()},
        "tokens/trained_without_advantage": int((advantages_M == 0).sum()),
        "advantage/mean": float(advantages_M.mean()),
        "advantage/abs_mean": float(abs(advantages_M).mean()),
        "advantage/zero_tokens": float((advantages_M == 0).mean()),
        "advantage/zero_episodes": float(np.mean([not d.advantages.any() for d in data])),
    }
    bounded = [datum for datum in data if datum.cuts]
    num_bounded = sum(int(datum.is_trained.sum()) for datum in bounded)
    for name in ("low", "high") if num_bounded else ():
        num_cut = sum(int(datum.cuts[name].sum()) for datum in bounded)
        metrics[f"update/clip_fraction_{name}"] = num_cut / num_bounded
    return metrics


def _trained_values(data: Sequence[ComputedDatum], name: str) -> NDArray[np.float64]:
    """Concatenates a field of the data, for their trained tokens."""
    parts = [getattr(datum, name)[datum.is_trained] for datum in data]
    return np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0)


class StepEpisodes:
    """The episodes of a step, as `EpisodeStore.write` takes them.

    request 0   [q q q  a a]         group 0   episode 00: prompt q q q, reply a a
                [q q q  b]                     episode 01: prompt q q q, reply b
    request 1   [r r  c c c]         group 1   episode 00: prompt r r,   reply c c c
    """

    def __init__(
        self, step: int, groups: Sequence[Sequence[ComputedDatum]], text_of: TextOf
    ) -> None:
        self.groups: list[Group] = []
        self.advantages: dict[str, list[NDArray[np.float32]]] = {}
        self.samples: list[TrainingSample] = []
        self.tokens = TrainedTokens()
        self._step, self._text_of = step, text_of
        for number, group in enumerate(groups):
            self._add(f"{step:06d}-train-{number:04d}", group)

    def _add(self, group_id: str, group: Sequence[ComputedDatum]) -> None:
        prompt = group[0].first_prompt
        text = self._text_of(prompt.tolist())
        # The same prompt is the same task in all steps.
        digest = hashlib.sha256(prompt.tobytes()).hexdigest()
        query = text if len(text) <= MAX_QUERY else f"…{text[-MAX_QUERY:]}"
        task = Task(f"prompt-{digest[:12]}", query)
        members = []
        for index, datum in enumerate(group):
            episode = WorkflowTask(
                task, f"{group_id}-{index:02d}", group_id, index, self._step, "train", seed=0
            )
            place = {"loss_fn": datum.loss_fn, "request": datum.request, "datum": datum.number}
            output = WorkflowOutput(metadata=place)
            turns = self._turns(datum, text)
            members.append(Trajectory(episode, turns, EpisodeStatus.OK, output))
            self._add_numbers(episode, datum)
        self.groups.append(Group(group_id, tuple(members), task))

    def _turns(self, datum: ComputedDatum, first_prompt: str) -> tuple[Turn, ...]:
        """Returns the turns of a datum; what is between replies is one message."""
        tokens, targets = datum.tokens.tolist(), datum.targets.tolist()
        logprobs, notes = datum.logprobs.tolist(), TurnNotes(is_given=datum.is_given)
        messages, turns, seen = [_message("prompt", first_prompt)], [], 0
        for start, stop in datum.spans:
            if turns:
                between = self._text_of(tokens[seen : start + 1])
                messages = [*messages, turns[-1].reply, _message("prompt", between)]
            # How a reply ended and which weights sampled it, the server is not told.
            completion = Completion(
                tuple(tokens[: start + 1]),
                tuple(targets[start:stop]),
                tuple(logprobs[start:stop]),
                "stop",
                self._step - 1,
            )
            reply = _message("assistant", self._text_of(targets[start:stop]))
            turns.append(Turn(completion, messages, None, reply, notes=notes))
            seen = stop + 1
        return tuple(turns)

    def _add_numbers(self, episode: WorkflowTask, datum: ComputedDatum) -> None:
        episode_id, spans = episode.episode_id, datum.spans
        self.advantages[episode_id] = [datum.advantages[start:stop] for start, stop in spans]
        for turn, (start, stop) in enumerate(spans):
            numbers: dict[str, NDArray[np.floating]] = {"policy_logprobs": datum.policy_logprobs}
            if not datum.is_given:
                numbers["ratios"] = datum.ratios
            for name, values in numbers.items():
                row = self.tokens.row(episode_id, turn, name, stop - start)
                row[:] = values[start:stop]
            for name, is_cut in datum.cuts.items():
                if len(cut := np.flatnonzero(is_cut[start:stop])):
                    self.tokens.cut(episode_id, turn, name, cut.tolist())
        if spans:
            self.samples.append(_sample(episode, datum))


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _sample(episode: WorkflowTask, datum: ComputedDatum) -> TrainingSample:
    """Returns the loss mask of a datum, as the store takes it: its position n is the sample's
    n + 1."""
    num_tokens = len(datum.tokens) + 1
    token_ids, zeros = np.zeros(num_tokens, np.int64), np.zeros(num_tokens, np.float32)
    loss_mask = np.zeros(num_tokens, np.bool_)
    loss_mask[1:] = datum.is_trained
    spans = tuple(TurnSpan(a + 1, b + 1, turn) for turn, (a, b) in enumerate(datum.spans))
    return TrainingSample(
        episode.episode_id, episode.group_id, token_ids, loss_mask, zeros, zeros, spans, 0, 0
    )
