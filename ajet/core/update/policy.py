"""The policy's update: samples of one training step in, changed weights and metrics out.

    samples ─ mini-batches (whole groups, in order) ─ micro-batches (token budget) ─ layout
                    │                                                            │
              one optimizer step each  <── gradients add up <── loss <── log-probs of trained tokens

Old log-probabilities are those that the sampler recorded, in every mini-batch and pass, unless a
sample has the trainer's own. With `old_logprobs: trainer` or a correction (correction.py) the
trainer's own are computed first; a correction's importance weights make up for the difference from
the sampler's, and without one it is left as it is. Samples whose every
advantage is 0 have no gradient if they carry no other component and there is no entropy term: they
are not computed (`skipped_samples`), but count in the denominators.

A loss that reads more than one token gets its numbers (mini_batch_tokens.py) from a pass without
gradient before the first micro-batch of a mini-batch; if there is only one micro-batch, from that
one. So does `off_policy_mask` (off_policy.py).

The weights are the model's own, so an engine with the same model has each step at once. The
same samples in the same order give bit-identical weights.

With several ranks (ranks.py) every rank is given all samples and calls the same methods, which
contain collectives. Each computes its part of the micro-batches; every rank gets the whole results.

Several adapters over one sharded base are a policy each over the same model (`beside`), of which
one computes at a time. Not covered: training several policies at once.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.losses import LOSSES
from ajet.core.losses.mini_batch_tokens import MiniBatchTokens
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss
from ajet.core.model.allocator import is_large, release_freed_memory
from ajet.core.trajectory.sample import Component, TrainingSample
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.update.correction import apply_correction
from ajet.core.update.engine_weights import (
    adapter_weights,
    describe_adapters,
    engine_shapes,
    engine_weights,
)
from ajet.core.update.frozen_model import Reference
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import Row, concat_to_device, scatter_to_samples
from ajet.core.update.lora import FIRST, activate, add_adapters, weights_of_adapter, with_lora
from ajet.core.update.loss import (
    EpisodeWeights,
    coefficient,
    component_weights,
    kl_penalty,
    score_tokens,
    token_logprobs,
)
from ajet.core.update.micro_batch_balancing import balance_micro_batches, numbers_of_samples
from ajet.core.update.mini_batches import NumbersOfSamples, split_by_group
from ajet.core.update.off_policy import OFF_POLICY, off_policy_tokens
from ajet.core.update.optimizer import ModelOptimizer, ModelState
from ajet.core.update.ranks import ONE_RANK, Ranks
from ajet.core.update.settings import LoraSettings, UpdateSettings
from ajet.core.update.shards import full_tensor, reshard
from ajet.core.update.token_record import record_tokens
from ajet.core.update.update_metrics import TokenValues, UpdateMetrics
from ajet.core.update.weights import train_every_embedding, trainable
from ajet.core.weight_sync.adapters import Adapters

METRICS: dict[Component, str] = {
    "policy_gradient": "pg_loss",
    "kl_reference": "kl",
    "cross_entropy": "cross_entropy",
    "kl_teacher": "kl_teacher",
}
"""The metric of each component: the mean of its value over the tokens that carry it."""


class Policy:
    """Trains a policy on `model`, a transformers causal model.

    With `settings.lora` the model is wrapped, and with several ranks it is sharded, both in place.
    `loss` is given where `settings.policy_loss` names one of the user's own.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: UpdateSettings,
        ranks: Ranks = ONE_RANK,
        loss: PolicyLoss | None = None,
        beside: Sequence[LoraSettings] = (),
    ) -> None:
        """`beside` are further adapters of the model, for each of which `policies` returns a
        policy."""
        train_every_embedding(model)
        self.settings, self.ranks = settings, ranks
        self.loss = loss or LOSSES[settings.policy_loss]
        self.model = with_lora(model, settings.lora) if settings.lora else model
        self._adapter, self._others = FIRST, add_adapters(self.model, beside) if beside else []
        self.model.eval()  # no dropout: the ratio compares with what the sampler computed
        self.device = ranks.device(self.model)
        self._releases_memory = self.device.type == "cpu" and is_large(self.model)
        self.layout = make_layout(
            self.model,
            settings.batch_layout,
            self.device,
            ranks.sequence,
            settings.activation_checkpointing,
        )
        keeps = settings.kl_loss_coef or settings.keep_reference
        self.reference = Reference(self.model, self.layout, settings, ranks) if keeps else None
        ranks.shard(self.model)
        self.optimizer = ModelOptimizer(self.model, settings, self.trainable())
        is_wide = any(p.dtype == torch.float64 for p in self.model.parameters())
        self._logprob_dtype = np.float64 if is_wide else np.float32

    def policies(self) -> list[Self]:
        """Returns this policy, and one with an optimizer of its own for each adapter beside."""
        made = [self]
        for name in self._others:
            other = copy.copy(self)
            other._adapter = name
            other.optimizer = ModelOptimizer(other.model, other.settings, other.trainable())
            made.append(other)
        return made

    def update(
        self,
        samples: Sequence[TrainingSample],
        *,
        on_progress: Callable[[float], None] | None = None,
        tokens: TrainedTokens | None = None,
    ) -> dict[str, float]:
        """Makes `ppo_epochs` passes over the mini-batches of one training step, always in the same
        order.

        `on_progress` gets the fraction done; `tokens` gets what the first pass computed for each
        token, of all ranks.
        """
        started = time.perf_counter()
        self._activate()
        self._release_freed_memory()
        samples, correction = self._with_old_logprobs(samples)
        metrics = UpdateMetrics(samples, self.settings.ppo_epochs)
        first_pass = split_by_group(samples, self.settings.mini_batch_num)
        parts = first_pass * self.settings.ppo_epochs
        own = None if tokens is None else TrainedTokens()
        for i, indices in enumerate(parts):
            mini_batch = [samples[index] for index in indices]
            of_pass = own if i < len(first_pass) else None
            for fraction in self._train_mini_batch(mini_batch, metrics, of_pass):
                if on_progress:
                    on_progress((i + fraction) / len(parts))
        self._release_freed_memory()
        metrics.all_reduce(self.ranks)
        if tokens is not None:
            for of_rank in self.ranks.all_gather(own):
                tokens.merge(of_rank)
        return metrics.result(time.perf_counter() - started) | correction

    def score(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns log-probabilities of the trained tokens under the present policy, as
        `numbers_of_samples` does."""
        self._activate()
        budget = self.settings.max_tokens_per_micro_batch
        return numbers_of_samples(samples, self._logprobs, self.layout, budget, self.ranks)

    def reference_scores(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns the same under the reference model; `kl_loss_coef` or `keep_reference` must
        be set.
        """
        assert self.reference is not None, "no reference is kept: set keep_reference"
        compute, budget = self.reference.logprobs, self.settings.max_tokens_per_micro_batch
        return numbers_of_samples(samples, compute, self.layout, budget, self.ranks)

    def state_dict(self) -> ModelState:
        """Returns what a checkpoint holds of the policy (`ModelOptimizer.checkpoint`)."""
        reshard(self.model)
        return self.optimizer.checkpoint()

    def weights(self, *, is_base: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights for an engine (engine_weights.py); with `is_base`, without adapters.
        All ranks must iterate together. After the last one unused GPU memory is released."""
        reshard(self.model)
        yield from engine_weights(self.model, self.ranks.compute_dtype, is_base=is_base)
        self.release_memory()

    def release_memory(self) -> None:
        """Gives back the GPU memory that the update used, because an engine on that GPU is about to
        wake."""
        reshard(self.model)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the names and shapes of `weights`."""
        return engine_shapes(self.model)

    def describe_adapters(self) -> Adapters | str:
        """Describes the adapters for engines that get them alone, or says why they cannot; all
        ranks must call it."""
        reshard(self.model)
        return describe_adapters(self.model, self.ranks.compute_dtype)

    def adapter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the adapters alone, as `weights` yields all weights."""
        reshard(self.model)
        yield from adapter_weights(self.model)
        self.release_memory()

    def template(self) -> dict[str, Tensor]:
        """Returns tensors with the names, shapes and shards of a checkpoint's, with arbitrary
        content.
        """
        reshard(self.model)
        return self.optimizer.checkpoint_template()

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restores the weights and the optimizer from a checkpoint."""
        reshard(self.model)
        self.optimizer.restore(tensors, state)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Returns the weights that it trains."""
        if self._others:
            return weights_of_adapter(self.model, self._adapter)
        return trainable(self.model)

    def trained_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights that it trains, whole. All ranks must iterate together."""
        reshard(self.model)
        for name, weight in self.trainable().items():
            yield name, full_tensor(weight.detach())

    def _activate(self) -> None:
        if self._others:
            activate(self.model, self._adapter)

    def _with_old_logprobs(
        self, samples: Sequence[TrainingSample]
    ) -> tuple[Sequence[TrainingSample], dict[str, float]]:
        """Adds the trainer's old log-probabilities and the importance weights, where the settings
        ask for them.
        """
        if not self.settings.recomputes_old_logprobs or not any(s.num_sampled for s in samples):
            return samples, {}
        if any(sample.old_logprobs is None for sample in samples):
            scores = self.score(samples)
            pairs = zip(samples, scores, strict=True)
            samples = [replace(sample, old_logprobs=score) for sample, score in pairs]
        if not self.settings.correction.is_on:
            return samples, {}
        samples, metrics = apply_correction(samples, self.settings.correction)
        if not self.settings.old_is_trainers:  # they were needed for the rejection alone
            samples = [replace(sample, old_logprobs=None) for sample in samples]
        return samples, metrics

    def _train_mini_batch(
        self,
        mini_batch: Sequence[TrainingSample],
        metrics: UpdateMetrics,
        tokens: TrainedTokens | None,
    ) -> Iterator[float]:
        """Makes one optimizer step; yields the fraction done."""
        weights = component_weights(mini_batch, self.settings)
        with_gradient = self._samples_with_gradient(mini_batch)
        if (
            not weights or not with_gradient
        ):  # a step would still change the weights by momentum and weight decay
            metrics.empty_mini_batches += 1
            return
        rows = [Row.of(sample, i) for i, sample in enumerate(with_gradient)]
        budget = self.settings.max_tokens_per_micro_batch
        balanced = balance_micro_batches(rows, self.layout, budget, self.ranks)
        metrics.count(balanced.micro_batches, self.layout)
        numbers = None
        is_divided = len(balanced.micro_batches) > 1 or self.ranks.size > 1
        if is_divided and self._reads_mini_batch and "policy_gradient" in weights:
            results = ((rows, self._logprobs(rows)) for rows in balanced.local)
            numbers = self._numbers(with_gradient, results)
        for k, micro_batch in enumerate(balanced.local):
            self.ranks.begin_micro_batch(self.model, is_last=k + 1 == len(balanced.local))
            self._backward(micro_batch, with_gradient, weights, numbers, metrics, tokens)
            if k == 0:  # its activations lie between the gradients that were made among them
                self._release_freed_memory()
            yield (k + 1) / (len(balanced.local) + 1)
        if any(self._has_gradient(sample, sample.weights) for sample in with_gradient):
            metrics.steps.append(self.optimizer.step())
        else:  # computed nevertheless, because the sampler metrics are about rejected tokens too
            self.optimizer.zero_grad()
            metrics.empty_mini_batches += 1
        yield 1.0

    def _samples_with_gradient(self, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        """Returns the samples that must be computed: those with a gradient, or all trained ones for
        a loss over the mini-batch; for losses over episodes with every timeline of these episodes.
        """
        trained = [sample for sample in samples if sample.num_trained]
        if self.loss.scope == "mini_batch":
            return trained
        live = [sample for sample in trained if self._has_gradient(sample)]
        if not self._reads_mini_batch:
            return live
        episodes = {sample.episode_id for sample in live}
        return [sample for sample in trained if sample.episode_id in episodes]

    def _has_gradient(
        self, sample: TrainingSample, weights: NDArray[np.float32] | None = None
    ) -> bool:
        """Tells whether a token of the sample has a loss, with the importance weights if given."""
        others: tuple[Component, ...] = ("cross_entropy", "kl_reference", "kl_teacher")
        if any(coefficient(name, self.settings) and sample.carries(name) for name in others):
            return True
        sampled = sample.stream("policy_gradient") != 0
        if self.settings.entropy_coef or not self.loss.needs_advantage:
            return bool(sampled.any())
        advantages = sample.advantages if weights is None else sample.advantages * weights
        return bool(advantages[sampled].any())

    def _release_freed_memory(self) -> None:
        if self._releases_memory:
            release_freed_memory()

    @property
    def _reads_mini_batch(self) -> bool:
        """Tells whether a token's loss depends on other tokens of the mini-batch."""
        return self.loss.of_mini_batch is not None or self.settings.off_policy_mask is not None

    def _numbers(
        self, samples: Sequence[TrainingSample], results: Iterable[tuple[Sequence[Row], Tensor]]
    ) -> NumbersOfSamples:
        """Returns the numbers from the log-probabilities of all rows of the mini-batch."""
        logprobs = scatter_to_samples(samples, results, self.ranks, self._logprob_dtype)
        steps = self.optimizer.num_steps + self.optimizer.num_skipped
        tokens = MiniBatchTokens.of(samples, logprobs, (self.settings.seed, steps))
        numbers: dict[str, NDArray[np.float64]] = {}
        if self.loss.of_mini_batch is not None:
            numbers |= self.loss.of_mini_batch(tokens, self.settings)
        if self.settings.off_policy_mask is not None:
            numbers[OFF_POLICY] = off_policy_tokens(tokens, self.settings.off_policy_mask)
        return NumbersOfSamples.of(samples, numbers)

    def _logprobs(self, rows: Sequence[Row]) -> Tensor:
        return token_logprobs(self.layout, rows, self.settings.temperature)

    def _backward(
        self,
        rows: Sequence[Row],
        samples: Sequence[TrainingSample],
        weights: EpisodeWeights,
        numbers: NumbersOfSamples | None,
        metrics: UpdateMetrics,
        tokens: TrainedTokens | None,
    ) -> None:
        """Adds the gradient of one micro-batch to the weights' gradients; `samples` are those of
        the mini-batch, and `weights` those of its components. `tokens` gets each token's numbers.
        """
        settings = self.settings
        reference_M = None
        if self.reference is not None and "kl_reference" in weights:
            # Before the policy's own pass, whose activations and probabilities take memory.
            reference_M = self.reference.logprobs(rows)
        output = self.layout.forward(rows)
        targets_M = concat_to_device((row.targets for row in rows), self.device)
        scores = score_tokens(output, targets_M, settings.temperature, settings.entropy_coef != 0)
        if numbers is None and self._reads_mini_batch and "policy_gradient" in weights:
            # The only micro-batch: its own pass has what a loss reads of the mini-batch.
            numbers = self._numbers(samples, [(rows, scores.logprobs_M.detach())])
        values = {"entropy": scores.entropy_M.detach()}
        ratio_M, losses = scores.logprobs_M.new_zeros(0), []
        policy_loss: tuple[TokenLoss | None, Tensor | None] = (None, None)
        for component, of_episodes in weights.items():
            at = self._tokens_of(rows, [row.sample.stream(component) != 0 for row in rows])
            if component == "policy_gradient":
                pg = self._policy_loss(rows, scores.logprobs_M, at, numbers)
                policy_loss = (pg, at)
                loss_M = value_M = pg.loss_M * _at(self._importance_weights(rows), at)
                values |= {f"clip_fraction_{n}": cut.float() for n, cut in pg.cuts.items()}
                ratio_M = pg.ratio_M.detach()
                if settings.entropy_coef:
                    loss_M = loss_M - settings.entropy_coef * _at(scores.entropy_M, at)
            else:
                value_M = _at(self._value(component, rows, scores.logprobs_M, reference_M), at)
                loss_M = coefficient(component, settings) * value_M
            values[METRICS[component]] = value_M.detach()
            weights_M = self._token_weights(rows, component, of_episodes)
            losses.append(torch.sum(_at(weights_M, at) * loss_M))
        loss = sum(losses[1:], start=losses[0])
        loss.backward()
        sampled = self._tokens_of(rows, [row.sample.sampled_mask for row in rows])
        sampler_M = concat_to_device(
            (row.trained(row.sample.logprobs) for row in rows), self.device
        )
        gap_M = _at(scores.logprobs_M.detach() - sampler_M, sampled)
        metrics.add(TokenValues(loss.detach(), values, ratio_M, gap_M))
        if tokens is not None:
            computed = {"policy_logprobs": scores.logprobs_M, "entropies": scores.entropy_M}
            if reference_M is not None:
                computed["reference_logprobs"] = reference_M
            record_tokens(tokens, rows, computed, *policy_loss)

    def _value(
        self,
        component: Component,
        rows: Sequence[Row],
        logprobs_M: Tensor,
        reference_M: Tensor | None,
    ) -> Tensor:
        """Returns the value of each trained token in a component other than the policy gradient."""
        if component == "cross_entropy":
            return -logprobs_M
        if component == "kl_reference":
            assert reference_M is not None
            return kl_penalty(logprobs_M, reference_M, self.settings.kl_loss_type)
        teacher = (
            np.zeros(len(row.positions), np.float32)
            if row.sample.teacher_logprobs is None
            else row.trained(row.sample.teacher_logprobs)
            for row in rows
        )
        value_M = kl_penalty(logprobs_M, concat_to_device(teacher, self.device), "k1")
        return value_M * self._importance_weights(rows)

    def _policy_loss(
        self,
        rows: Sequence[Row],
        logprobs_M: Tensor,
        at: Tensor | None,
        numbers: NumbersOfSamples | None,
    ) -> TokenLoss:
        """Returns the policy loss of the trained tokens at these indices, or of all."""
        advantages_M = concat_to_device(
            (row.trained(row.sample.advantages) for row in rows), self.device
        )
        of_tokens = {} if numbers is None else numbers.of_rows(rows, logprobs_M)
        of_tokens = {name: _at(number_M, at) for name, number_M in of_tokens.items()}
        off_policy_M = of_tokens.pop(OFF_POLICY, None)
        found = self.loss.of_tokens(
            LossInputs(
                _at(logprobs_M, at),
                _at(self._old_logprobs(rows), at),
                _at(advantages_M, at),
                of_tokens,
            ),
            self.settings,
        )
        if off_policy_M is None:
            return found
        is_off_M = off_policy_M != 0
        loss_M = torch.where(is_off_M, 0.0, found.loss_M)
        return replace(found, loss_M=loss_M, cuts={**found.cuts, OFF_POLICY: is_off_M})

    def _tokens_of(self, rows: Sequence[Row], masks: Sequence[NDArray[np.bool_]]) -> Tensor | None:
        """Returns the indices of the rows' trained tokens for which a mask over their samples'
        tokens is true; None if these are all."""
        pairs = zip(rows, masks, strict=True)
        chosen_M = np.concatenate([row.trained(mask_T) for row, mask_T in pairs])
        if chosen_M.all():
            return None
        return torch.from_numpy(np.flatnonzero(chosen_M)).to(self.device)

    def _old_logprobs(self, rows: Sequence[Row]) -> Tensor:
        """Returns the trainer's log-probabilities before the update, or the sampler's where
        they are unknown.
        """
        arrays = (row.trained(row.sample.old_or_sampled) for row in rows)
        return concat_to_device(arrays, self.device)

    def _token_weights(
        self, rows: Sequence[Row], component: Component, of_episodes: Mapping[str, float]
    ) -> Tensor:
        arrays = (
            row.trained(row.sample.stream(component))
            * np.float32(of_episodes.get(row.episode_id, 0.0))
            for row in rows
        )
        return concat_to_device(arrays, self.device)

    def _importance_weights(self, rows: Sequence[Row]) -> Tensor:
        pairs = ((row, row.sample.weights) for row in rows)
        arrays = (
            np.ones(len(row.positions), np.float32) if weights is None else row.trained(weights)
            for row, weights in pairs
        )
        return concat_to_device(arrays, self.device)


def _at(values_M: Tensor, at: Tensor | None) -> Tensor:
    """Returns the values at these indices, or all."""
    return values_M if at is None else values_M[at]
