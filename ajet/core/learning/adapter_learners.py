"""Training of one step with several adapters: each learns from its own turns alone.

    groups ──> of adapter "pro": the same episodes, its turns trained ──> its Learner ──┐
           └─> of adapter "con"                                       ──> its Learner ──┴─> record

Each adapter has a policy, an optimizer and a KL coefficient of its own over the shared base, so an
update of one changes nothing of another. Its batch is as if it were alone: an episode counts for
the adapters that have a trained turn in it. `AdapterLearners` does for the loop what a `Learner`
does; what it returns holds each adapter's part, and all of it together for the record.

A metric's name ends with the adapter's; without one it is over all adapters: a sum of what is
counted, the largest of what is a maximum, else the mean over their trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from typing_extensions import TypedDict

from ajet.core.advantage.credit import Advantages
from ajet.core.learning.learner import Learner, LearnerState, ScoredGroups, TrainBatch
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.update.many_adapters import check_names, named_for, of_adapter, sent_weights
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
"""The metrics of an update that count something, so that all adapters have the sum."""


class AdaptersState(TypedDict):
    """Holds what the state.json of a checkpoint says of each adapter's models."""

    adapters: dict[str, LearnerState]


class AdapterLearners:
    """Trains several adapters over one base, each with a learner of its own."""

    state_type = AdaptersState

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self.learners = dict(learners)

    @property
    def models(self) -> dict[str, nn.Module]:
        """Returns each adapter's model, for an engine of this process over the same weights."""
        wrapped: dict[str, Any] = {n: each.policy.model for n, each in self.learners.items()}
        return {name: model.get_base_model() for name, model in wrapped.items()}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights of all adapters for an engine that has the base itself. All ranks must
        iterate together."""
        return sent_weights({n: each.policy.trained_weights() for n, each in self.learners.items()})

    @property
    def policy(self) -> Policy:
        """Returns the first adapter's policy, whose device and settings are those of all."""
        return next(iter(self.learners.values())).policy

    def score(self, groups: Sequence[Group]) -> ScoredGroups:
        """Computes what `Learner.score` does for each adapter that has a turn in these groups."""
        views = {name: trained_by(groups, name) for name in self.learners}
        parts = {name: self.learners[name].score(view) for name, view in views.items() if view}
        return ScoredGroups(groups, [], None, {}, adapters=parts)

    def make_batch(self, scored: ScoredGroups) -> TrainBatch:
        """Computes the advantages and the samples of each adapter."""
        parts = {name: self.learners[name].make_batch(s) for name, s in scored.adapters.items()}
        tokens = TrainedTokens()
        for part in parts.values():
            tokens.merge(part.tokens)
        advantages = _merged([part.advantages for part in parts.values()])
        samples = [sample for part in parts.values() for sample in part.samples]
        return TrainBatch(advantages, samples, None, None, {}, tokens, adapters=parts)

    def update(
        self,
        step: int,
        batch: TrainBatch,
        *,
        on_progress: Callable[[float], None] | None = None,
    ) -> dict[str, float]:
        """Trains one adapter after another, and returns the metrics of each and of all."""
        found: dict[str, dict[str, float]] = {}
        for number, (name, part) in enumerate(batch.adapters.items()):
            found[name] = self.learners[name].update(step, part)
            batch.tokens.merge(part.tokens)
            if on_progress is not None:
                on_progress((number + 1) / len(batch.adapters))
        of_each = {f"{key}/{name}": v for name, each in found.items() for key, v in each.items()}
        return _of_all(list(found.values())) | of_each

    def cross_entropy(self, groups: Sequence[Group]) -> float:
        """Raises NotImplementedError: a run with several adapters learns from rewards alone, which
        config/support.py sees to."""
        raise NotImplementedError

    def state_dict(self) -> ModelState:
        """Returns the tensors of all adapters, and each one's state by its name."""
        tensors: dict[str, Tensor] = {}
        states: dict[str, object] = {}
        for name, learner in self.learners.items():
            own = learner.state_dict()
            tensors |= named_for(own.tensors, name)
            states[name] = own.state
        return ModelState(tensors, {"adapters": states})

    def template(self) -> dict[str, Tensor]:
        """Returns tensors with the names and shapes of a checkpoint's, with arbitrary content."""
        of_each = (named_for(each.template(), name) for name, each in self.learners.items())
        return {name: tensor for tensors in of_each for name, tensor in tensors.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor], state: AdaptersState) -> None:
        """Restores all adapters from a checkpoint's tensors and state."""
        check_names(tensors, self.learners)
        for name, learner in self.learners.items():
            learner.load_state_dict(of_adapter(tensors, name), state["adapters"][name])


def trained_by(groups: Sequence[Group], adapter: str) -> list[Group]:
    """Returns the groups in which a valid episode has a trained turn of this adapter, with those
    turns alone trained, and without the episodes that have none."""
    views = [
        replace(group, trajectories=tuple(_view(t, adapter) for t in group.trajectories))
        for group in groups
    ]
    views = [
        replace(view, trajectories=tuple(t for t in view.trajectories if t.num_sampled))
        for view in views
    ]
    return [view for view in views if view.valid]


def _view(trajectory: Trajectory, adapter: str) -> Trajectory:
    turns = (
        replace(turn, trainable=turn.trainable and turn.adapter == adapter)
        for turn in trajectory.turns
    )
    return replace(trajectory, turns=tuple(turns))


def _merged(parts: Sequence[Advantages]) -> Advantages:
    """Returns the arrays of all turns: each is trained by one adapter, and empty for the others."""
    merged: Advantages = {}
    for part in parts:
        for episode_id, of_turns in part.items():
            known = merged.get(episode_id, of_turns)
            pairs = zip(known, of_turns, strict=True)
            merged[episode_id] = tuple(own if len(own) else other for other, own in pairs)
    return merged


def _of_all(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns each metric over all adapters that were updated."""
    weights = [metrics.get("update/trained_tokens", 0.0) for metrics in found]
    together: dict[str, float] = {}
    for key in dict.fromkeys(key for metrics in found for key in metrics):
        has = [(m[key], w) for m, w in zip(found, weights, strict=True) if key in m]
        values = [value for value, _ in has]
        total = sum(weight for _, weight in has)
        if key.rpartition("/")[2] in ADDED:
            together[key] = sum(values)
        elif key.endswith("_max"):
            together[key] = max(values)
        elif total:
            together[key] = sum(value * weight for value, weight in has) / total
    return together
