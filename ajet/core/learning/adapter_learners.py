"""Training of one step with several adapters: each learns only from its own turns, by its own
`Learner` over the shared base, so an update of one does not change another. A metric's name ends
with the adapter's; without one it is over all adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from typing_extensions import TypedDict

from ajet.core.advantage.credit import Advantages
from ajet.core.learning.learner import Learner, LearnerState, TrainBatch
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.update.many_adapters import (
    adapter_tensors,
    add_adapter_name,
    check_names,
    sent_weights,
)
from ajet.core.update.optimizer import ModelState
from ajet.core.update.policy import Policy

ADDED = (
    "optimizer_steps",
    "nonfinite_steps",
    "empty_mini_batches",
    "trained_tokens",
    "tree_tokens",
    "padded_tokens",
    "skipped_samples",
    "groups",
    "groups_without_signal",
    "seconds",
)
"""The metrics of an update that are added up over the adapters."""


class AdaptersState(TypedDict):
    """Each adapter's part of a checkpoint's state.json."""

    adapters: dict[str, LearnerState]


class AdapterLearners:
    """Trains several adapters over one base; it has the interface of a `Learner`."""

    state_type = AdaptersState

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self.learners = dict(learners)

    @property
    def models(self) -> dict[str, nn.Module]:
        """Each adapter's model, for an engine in this process over the same weights."""
        wrapped: dict[str, Any] = {n: learner.policy.model for n, learner in self.learners.items()}
        return {name: model.get_base_model() for name, model in wrapped.items()}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights of all adapters for an engine that has the base. All ranks must
        iterate together."""
        return sent_weights(
            {n: learner.policy.trained_weights() for n, learner in self.learners.items()}
        )

    @property
    def policy(self) -> Policy:
        """The first adapter's policy; all have its device and settings."""
        return next(iter(self.learners.values())).policy

    def make_batch(self, groups: Sequence[Group]) -> TrainBatch:
        """Runs `Learner.make_batch` for each adapter that has a trained turn in these groups."""
        views = {name: trained_by(groups, name) for name in self.learners}
        by_adapter = {n: self.learners[n].make_batch(view) for n, view in views.items() if view}
        tokens = TrainedTokens()
        for part in by_adapter.values():
            tokens.merge(part.tokens)
        advantages = _merged([part.advantages for part in by_adapter.values()])
        samples = [sample for part in by_adapter.values() for sample in part.samples]
        return TrainBatch(advantages, samples, None, None, {}, tokens, adapters=by_adapter)

    def update(
        self, step: int, batch: TrainBatch, *, on_progress: Callable[[float], None] | None = None
    ) -> dict[str, float]:
        """Trains one adapter after another, and returns the metrics of each and of all."""
        metrics: dict[str, dict[str, float]] = {}
        for number, (name, part) in enumerate(batch.adapters.items()):
            metrics[name] = self.learners[name].update(step, part)
            batch.tokens.merge(part.tokens)
            if on_progress is not None:
                on_progress((number + 1) / len(batch.adapters))
        by_name = {f"{key}/{name}": v for name, m in metrics.items() for key, v in m.items()}
        return _over_all_adapters(list(metrics.values())) | by_name

    def cross_entropy(self, groups: Sequence[Group]) -> float:
        """Not implemented: config/support.py refuses rows for a run with several adapters."""
        raise NotImplementedError

    def state_dict(self) -> ModelState:
        """Returns the tensors of all adapters, and each one's state by its name."""
        tensors: dict[str, Tensor] = {}
        states: dict[str, object] = {}
        for name, learner in self.learners.items():
            state = learner.state_dict()
            tensors |= add_adapter_name(state.tensors, name)
            states[name] = state.state
        return ModelState(tensors, {"adapters": states})

    def template(self) -> dict[str, Tensor]:
        """Returns tensors with the names and shapes of a checkpoint's; their content is
        arbitrary."""
        tensors: dict[str, Tensor] = {}
        for name, learner in self.learners.items():
            tensors |= add_adapter_name(learner.template(), name)
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor], state: AdaptersState) -> None:
        """Restores all adapters from a checkpoint's tensors and state."""
        check_names(tensors, self.learners)
        for name, learner in self.learners.items():
            learner.load_state_dict(adapter_tensors(tensors, name), state["adapters"][name])


def trained_by(groups: Sequence[Group], adapter: str) -> list[Group]:
    """Returns the groups with only this adapter's turns trained, without the episodes and groups
    that have none: the batch is the one that the adapter would have alone."""
    views: list[Group] = []
    for group in groups:
        trajectories = (_view(trajectory, adapter) for trajectory in group.trajectories)
        view = replace(group, trajectories=tuple(t for t in trajectories if t.num_sampled))
        if view.valid:
            views.append(view)
    return views


def _view(trajectory: Trajectory, adapter: str) -> Trajectory:
    turns = (
        replace(turn, trainable=turn.trainable and turn.adapter == adapter)
        for turn in trajectory.turns
    )
    return replace(trajectory, turns=tuple(turns))


def _merged(by_adapter: Sequence[Advantages]) -> Advantages:
    """Returns the arrays of all turns; a turn is trained by one adapter, and empty for others."""
    merged: Advantages = {}
    for advantages in by_adapter:
        for episode_id, turns in advantages.items():
            pairs = zip(merged.get(episode_id, turns), turns, strict=True)
            merged[episode_id] = tuple(new if len(new) else old for old, new in pairs)
    return merged


def _over_all_adapters(metrics_by_adapter: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns each metric over all updated adapters: the sum of counts, the largest maximum, else
    the mean weighted by trained tokens."""
    weights = [metrics.get("update/trained_tokens", 0.0) for metrics in metrics_by_adapter]
    overall: dict[str, float] = {}
    for key in dict.fromkeys(key for metrics in metrics_by_adapter for key in metrics):
        pairs = [(m[key], w) for m, w in zip(metrics_by_adapter, weights, strict=True) if key in m]
        values = [value for value, _ in pairs]
        total = sum(weight for _, weight in pairs)
        if key.rpartition("/")[2] in ADDED:
            overall[key] = sum(values)
        elif key.endswith("_max"):
            overall[key] = max(values)
        elif total:
            overall[key] = sum(value * weight for value, weight in pairs) / total
    return overall
