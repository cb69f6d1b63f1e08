"""The policy's update: samples of one training step in, changed weights and metrics out. A
mini-batch makes one optimizer step; the gradients of its micro-batches add up. The same samples in
the same order give bit-identical weights. With several ranks (ranks/ranks.py) every rank gets all
samples and calls the same methods, which contain collectives.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.losses import LOSSES
from ajet.core.losses.mini_batch_tokens import Floats, MiniBatchTokens
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss
from ajet.core.model.allocator import is_large, release_freed_memory
from ajet.core.model.routers import Routers
from ajet.core.ranks.ranks import ONE_RANK, Ranks
from ajet.core.ranks.shards import full_tensor, reshard
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
    TokenScores,
    coefficient,
    component_weights,
    kl_penalty,
    score_tokens,
    token_logprobs,
)
from ajet.core.update.mini_batches import (
    NumbersOfSamples,
    balance_micro_batches,
    numbers_of_samples,
    split_by_group,
)
from ajet.core.update.optimizer import ModelOptimizer, StepOutcome, TrainedModel
from ajet.core.update.restricted_softmax import RowMasks
from ajet.core.update.settings import LoraSettings, OptimizerSettings, UpdateSettings
from ajet.core.update.token_record import record_tokens
from ajet.core.update.update_metrics import TokenValues, UpdateMetrics
from ajet.core.update.weights import train_every_embedding, trainable
from ajet.core.weight_sync.adapters import Adapters

OFF_POLICY = "off_policy"
METRICS: dict[Component, str] = {
    "policy_gradient": "pg_loss",
    "kl_reference": "kl",
    "cross_entropy": "cross_entropy",
    "kl_teacher": "kl_teacher",
}
"""The metric of each component: the mean of its value over the tokens that carry it."""


class Policy(TrainedModel):
    """Trains a policy on `model`, a transformers causal model.

    With `settings.lora` the model is wrapped, and with several ranks it is sharded, both in place.
    The weights stay the model's own, so an engine with the same model has each step at once. `loss`
    is the user's, where `settings.policy_loss` names one."""

    def __init__(
        self,
        model: nn.Module,
        settings: UpdateSettings,
        ranks: Ranks = ONE_RANK,
        loss: PolicyLoss | None = None,
        more_loras: Sequence[LoraSettings] = (),
    ) -> None:
        """`more_loras` are further adapters over the same base; `policies` returns a policy for
        each."""
        train_every_embedding(model)
        self.settings, self.ranks = settings, ranks
        self.loss = loss or LOSSES[settings.policy_loss]
        self.model = with_lora(model, settings.lora) if settings.lora else model
        self.sends_tower = False
        """Set for servers that see images: they get the vision tower with the policy's weights."""
        self._adapter = FIRST
        self._more_adapters = add_adapters(self.model, more_loras) if more_loras else []
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
        if settings.routing_replay:
            self.layout.routers = Routers.of(self.model)
        keeps = settings.kl_loss_coef or settings.keep_reference
        # Before the model is sharded: the reference may be a copy of its whole weights.
        self.reference = Reference(self.model, self.layout, settings, ranks) if keeps else None
        ranks.shard(self.model)
        self.optimizer = ModelOptimizer(self.model, settings, self.trainable())
        is_wide = any(p.dtype == torch.float64 for p in self.model.parameters())
        self._logprob_dtype = np.float64 if is_wide else np.float32

    def policies(self) -> list[Self]:
        """Returns this policy, and one with a separate optimizer for each further adapter. They
        share the model, and one computes at a time."""
        policies = [self]
        for name in self._more_adapters:
            policy = copy.copy(self)
            policy._adapter = name
            policy.optimizer = ModelOptimizer(policy.model, policy.settings, policy.trainable())
            policies.append(policy)
        return policies

    def update(
        self,
        samples: Sequence[TrainingSample],
        *,
        on_progress: Callable[[float], None] | None = None,
        tokens: TrainedTokens | None = None,
    ) -> dict[str, float]:
        """Makes `ppo_epochs` passes over the mini-batches of one training step, always in the same
        order, and returns the metrics (update_metrics.py).

        `on_progress` gets the fraction done; `tokens` gets what the first pass computed for each
        token, on all ranks."""
        started = time.perf_counter()
        self._activate()
        self._release_freed_memory()
        # Fixed for the whole update: every mini-batch and pass compares with the same old policy.
        samples, correction = self._with_old_logprobs(samples)
        metrics = UpdateMetrics(samples, self.settings.ppo_epochs)
        if self.layout.routers is not None:
            metrics.load = self.layout.routers.new_load(self.device)
        first_pass = split_by_group(samples, self.settings.mini_batch_num)
        mini_batches = first_pass * self.settings.ppo_epochs
        rank_tokens = None if tokens is None else TrainedTokens()
        for i, indices in enumerate(mini_batches):
            mini_batch = [samples[index] for index in indices]
            recorded = rank_tokens if i < len(first_pass) else None
            for fraction in self._train_mini_batch(mini_batch, metrics, recorded):
                if on_progress:
                    on_progress((i + fraction) / len(mini_batches))
        self._release_freed_memory()
        metrics.all_reduce(self.ranks)
        if tokens is not None:
            for gathered in self.ranks.all_gather(rank_tokens):
                tokens.merge(gathered)
        return metrics.result(time.perf_counter() - started) | correction

    def accumulate(
        self, rows: Sequence[Row], loss: Callable[[Sequence[Row]], Tensor], *, is_last: bool = True
    ) -> None:
        """Adds the gradient of `loss(rows)` to the weights' gradients, whose sum the next `step`
        takes. `rows` are one micro-batch of this rank; the loss reads `scores(rows)` and is a sum
        over tokens, so that it does not matter how rows are divided. `is_last`: `step` is next."""
        self.ranks.begin_micro_batch(self.model, is_last=is_last)
        loss(rows).backward()

    def scores(self, rows: Sequence[Row]) -> TokenScores:
        """Returns the log-probability of each target [M] of the rows, in their order, with a
        gradient, and entropies; the latter have one if the settings have an entropy bonus."""
        output = self.layout.forward(rows)
        targets_M = concat_to_device((row.targets for row in rows), self.device)
        with_entropy_grad = self.settings.entropy_coef != 0
        masks = RowMasks.of(rows, self.device)
        temperature = self.settings.temperature
        return score_tokens(output, targets_M, temperature, with_entropy_grad, masks=masks)

    def step(self, adam: OptimizerSettings | None = None) -> StepOutcome:
        """Makes an optimizer step with the accumulated gradients, and drops them. `adam` are
        numbers for this step alone, in place of the settings'."""
        return self.optimizer.step(adam)

    def score(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns log-probabilities of the trained tokens under the current policy, one array
        ``[T]`` for each sample."""
        self._activate()
        budget = self.settings.max_tokens_per_micro_batch
        return numbers_of_samples(samples, self._logprobs, self.layout, budget, self.ranks)

    def reference_scores(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns the same under the reference; `kl_loss_coef` or `keep_reference` must be set."""
        assert self.reference is not None, "no reference is kept: set keep_reference"
        compute, budget = self.reference.logprobs, self.settings.max_tokens_per_micro_batch
        return numbers_of_samples(samples, compute, self.layout, budget, self.ranks)

    def weights(self, *, is_base: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights for an engine (engine_weights.py), with `is_base` without adapters.
        All ranks must iterate together. Releases unused GPU memory after the last weight."""
        reshard(self.model)
        yield from engine_weights(
            self.model, self.ranks.compute_dtype, is_base=is_base, is_whole=self.sends_tower
        )
        self.release_memory()

    def release_memory(self) -> None:
        """Gives back the GPU memory that the update used, for an engine on the same GPU."""
        reshard(self.model)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the names and shapes of `weights`."""
        return engine_shapes(self.model, is_whole=self.sends_tower)

    def describe_adapters(self) -> Adapters | str:
        """Describes the adapters for engines that get only these, or says why that is impossible;
        all ranks must call it."""
        if self.sends_tower:
            return "the servers have the whole multimodal model"
        reshard(self.model)
        return describe_adapters(self.model, self.ranks.compute_dtype)

    def adapter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields only the adapters, in the same way as `weights`."""
        reshard(self.model)
        yield from adapter_weights(self.model)
        self.release_memory()

    def trainable(self) -> dict[str, nn.Parameter]:
        if self._more_adapters:
            return weights_of_adapter(self.model, self._adapter)
        return trainable(self.model)

    def trained_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the trained weights, whole. All ranks must iterate together."""
        reshard(self.model)
        for name, weight in self.trainable().items():
            yield name, full_tensor(weight.detach())

    def _activate(self) -> None:
        if self._more_adapters:
            activate(self.model, self._adapter)

    def _with_old_logprobs(
        self, samples: Sequence[TrainingSample]
    ) -> tuple[Sequence[TrainingSample], dict[str, float]]:
        """Adds the trainer's old log-probabilities and the importance weights, where the settings
        ask for them; otherwise the loss uses the sampler's recorded log-probabilities."""
        if not self.settings.recomputes_old_logprobs or not any(s.num_sampled for s in samples):
            return samples, {}
        # A KL in the reward may have computed them already (Learner.make_batch).
        if any(sample.old_logprobs is None for sample in samples):
            scores = self.score(samples)
            pairs = zip(samples, scores, strict=True)
            samples = [replace(sample, old_logprobs=score) for sample, score in pairs]
        if not self.settings.correction.is_on:
            return samples, {}
        samples, metrics = apply_correction(samples, self.settings.correction)
        if not self.settings.old_is_trainers:  # only the rejection needed them
            samples = [replace(sample, old_logprobs=None) for sample in samples]
        return samples, metrics

    def _train_mini_batch(
        self,
        mini_batch: Sequence[TrainingSample],
        metrics: UpdateMetrics,
        tokens: TrainedTokens | None,
    ) -> Iterator[float]:
        """Makes one optimizer step; yields the fraction done."""
        # Denominators of the whole mini-batch, before any sample is skipped or sent to a rank.
        weights = component_weights(mini_batch, self.settings)
        with_gradient = self._samples_with_gradient(mini_batch)
        # A step without gradient would still change weights, by momentum and weight decay.
        if not weights or not with_gradient:
            metrics.empty_mini_batches += 1
            return
        # From here on `sample_index` counts within `with_gradient`.
        rows = [Row.of(sample, i) for i, sample in enumerate(with_gradient)]
        budget = self.settings.max_tokens_per_micro_batch
        balanced = balance_micro_batches(rows, self.layout, budget, self.ranks)
        metrics.count(balanced.micro_batches, self.layout)
        # A loss that reads other tokens of the mini-batch needs their log-probabilities before the
        # first gradient: from a pass without gradient, or from the only micro-batch's own pass.
        numbers = None
        is_divided = len(balanced.micro_batches) > 1 or self.ranks.size > 1
        if is_divided and self._reads_mini_batch and "policy_gradient" in weights:
            results = ((rows, self._logprobs(rows)) for rows in balanced.local)
            numbers = self._numbers(with_gradient, results)

        def loss(micro_batch: Sequence[Row]) -> Tensor:
            return self._loss(micro_batch, with_gradient, weights, numbers, metrics, tokens)

        self.layout.load = metrics.load
        for k, micro_batch in enumerate(balanced.local):
            self.accumulate(micro_batch, loss, is_last=k + 1 == len(balanced.local))
            if k == 0:  # its activations left gaps between the gradients, which stay allocated
                self._release_freed_memory()
            yield (k + 1) / (len(balanced.local) + 1)
        self.layout.load = None
        if any(self._has_gradient(sample, sample.weights) for sample in with_gradient):
            metrics.steps.append(self.step())
        else:  # all rejected: computed only for the metrics that compare sampler and trainer
            self.optimizer.zero_grad()
            metrics.empty_mini_batches += 1
        yield 1.0

    def _samples_with_gradient(self, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        """Returns the samples that must be computed: those with a gradient; for a loss over
        episodes, all timelines of their episodes; for a loss over the mini-batch, all samples with
        a trained token. The rest is counted as `skipped_samples`."""
        trained = [sample for sample in samples if sample.num_trained]
        if self.loss.scope == "mini_batch":
            return trained
        selected = [sample for sample in trained if self._has_gradient(sample)]
        if not self._reads_mini_batch:
            return selected
        episodes = {sample.episode_id for sample in selected}
        return [sample for sample in trained if sample.episode_id in episodes]

    def _has_gradient(
        self, sample: TrainingSample, weights: NDArray[np.float32] | None = None
    ) -> bool:
        """Tells whether a token of the sample has a loss: a component other than the policy
        gradient, an entropy term, or an advantage (times `weights`) that is not 0."""
        components: tuple[Component, ...] = ("cross_entropy", "kl_reference", "kl_teacher")
        if any(coefficient(name, self.settings) and sample.carries(name) for name in components):
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
        """Whether a token's loss depends on other tokens of the mini-batch."""
        return self.loss.of_mini_batch is not None or self.settings.off_policy_mask is not None

    def _numbers(
        self, samples: Sequence[TrainingSample], results: Iterable[tuple[Sequence[Row], Tensor]]
    ) -> NumbersOfSamples:
        """Computes the loss's numbers from the log-probabilities of the whole mini-batch, which are
        gathered from all ranks: each rank computes the same numbers."""
        logprobs = scatter_to_samples(samples, results, self.ranks, self._logprob_dtype)
        # The seed of a loss that draws tokens. A checkpoint has both counts, so a resumed run
        # draws the same.
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

    def _loss(
        self,
        rows: Sequence[Row],
        samples: Sequence[TrainingSample],
        weights: EpisodeWeights,
        numbers: NumbersOfSamples | None,
        metrics: UpdateMetrics,
        tokens: TrainedTokens | None,
    ) -> Tensor:
        """Returns the loss of one micro-batch, and adds to `metrics` and `tokens`.

        `rows` are this rank's micro-batch, `samples` the computed samples of the mini-batch, and
        `weights` the mini-batch's factors by component and episode.

        [M] counts the trained tokens of the rows, in their order. A component has values for some
        of these: `at` holds their indices in [M], or is None if they are all."""
        settings = self.settings
        reference_M = None
        if self.reference is not None and "kl_reference" in weights:
            # Before the policy's own pass, whose activations stay in memory until its backward.
            reference_M = self.reference.logprobs(rows)
        scores = self.scores(rows)
        if numbers is None and self._reads_mini_batch and "policy_gradient" in weights:
            # The only micro-batch is the mini-batch: no pass without gradient was needed.
            numbers = self._numbers(samples, [(rows, scores.logprobs_M.detach())])
        values = {"entropy": scores.entropy_M.detach()}
        ratio_M, losses = scores.logprobs_M.new_zeros(0), []
        policy_loss: tuple[TokenLoss | None, Tensor | None] = (None, None)
        # loss = sum over components of coef * sum_t weight_t * value_t (loss.py).
        for component, episode_factors in weights.items():
            at = self._indices(rows, lambda sample, c=component: sample.stream(c) != 0)
            if component == "policy_gradient":
                pg = self._policy_loss(rows, scores.logprobs_M, at, numbers)
                policy_loss = (pg, at)
                # The correction's weight scales the policy loss, not the entropy, and no
                # denominator: a rejected token (weight 0) still counts in the mean.
                loss_M = value_M = pg.loss_M * _at(self._importance_weights(rows), at)
                values |= {f"clip_fraction_{n}": cut.float() for n, cut in pg.cuts.items()}
                ratio_M = pg.ratio_M.detach()
                if settings.entropy_coef:
                    loss_M = loss_M - settings.entropy_coef * _at(scores.entropy_M, at)
            else:
                value_M = _at(self._value(component, rows, scores.logprobs_M, reference_M), at)
                loss_M = coefficient(component, settings) * value_M
            values[METRICS[component]] = value_M.detach()
            # The stream over the component's denominator in the whole mini-batch. So micro-batches
            # and ranks add up to the mean; a mean here would depend on how they are divided.
            weights_M = self._token_weights(rows, component, episode_factors)
            losses.append(torch.sum(_at(weights_M, at) * loss_M))
        # An idle row of a rank has no tokens: its loss is a sum over nothing, whose backward still
        # takes part in the collectives.
        loss = sum(losses[1:], start=losses[0])
        sampled = self._indices(rows, lambda sample: sample.sampled_mask)
        sampler_M = self._gather(rows, lambda sample: sample.logprobs)
        gap_M = _at(scores.logprobs_M.detach() - sampler_M, sampled)
        metrics.add(TokenValues(loss.detach(), values, ratio_M, gap_M))
        if tokens is not None:
            computed = {"policy_logprobs": scores.logprobs_M, "entropies": scores.entropy_M}
            if reference_M is not None:
                computed["reference_logprobs"] = reference_M
            record_tokens(tokens, rows, computed, *policy_loss)
        return loss

    def _value(
        self,
        component: Component,
        rows: Sequence[Row],
        logprobs_M: Tensor,
        reference_M: Tensor | None,
    ) -> Tensor:
        """Returns the value [M] of each trained token in a component other than the policy
        gradient."""
        if component == "cross_entropy":
            return -logprobs_M
        if component == "kl_reference":
            assert reference_M is not None
            return kl_penalty(logprobs_M, reference_M, self.settings.kl_loss_type)
        # kl_teacher. A sample without a teacher does not carry the component: its 0 is not read.
        teacher_M = self._gather(
            rows, lambda sample: _or_constant(sample.teacher_logprobs, sample, 0)
        )
        value_M = kl_penalty(logprobs_M, teacher_M, "k1")
        return value_M * self._importance_weights(rows)

    def _policy_loss(
        self,
        rows: Sequence[Row],
        logprobs_M: Tensor,
        at: Tensor | None,
        numbers: NumbersOfSamples | None,
    ) -> TokenLoss:
        """Returns the policy loss of the trained tokens at the indices `at`, or of all."""
        advantages_M = self._gather(rows, lambda sample: sample.advantages)
        # The trainer's log-probabilities before the update, or the sampler's where those were not
        # computed.
        old_M = self._gather(rows, lambda sample: sample.old_or_sampled)
        by_name = {} if numbers is None else numbers.for_rows(rows, logprobs_M)
        by_name = {name: _at(number_M, at) for name, number_M in by_name.items()}
        off_policy_M = by_name.pop(OFF_POLICY, None)
        inputs = LossInputs(_at(logprobs_M, at), _at(old_M, at), _at(advantages_M, at), by_name)
        token_loss = self.loss.of_tokens(inputs, self.settings)
        if off_policy_M is None:
            return token_loss
        is_off_M = off_policy_M != 0
        # where(), not a product: the loss of a token far off may be infinite.
        loss_M = torch.where(is_off_M, 0.0, token_loss.loss_M)
        return replace(token_loss, loss_M=loss_M, cuts={**token_loss.cuts, OFF_POLICY: is_off_M})

    def _gather(
        self, rows: Sequence[Row], read: Callable[[TrainingSample], NDArray[np.floating]]
    ) -> Tensor:
        """Returns the values [M] of the rows' trained tokens in the array [T] that `read` returns
        for each sample."""
        return concat_to_device((row.trained(read(row.sample)) for row in rows), self.device)

    def _indices(
        self, rows: Sequence[Row], mask: Callable[[TrainingSample], NDArray[np.bool_]]
    ) -> Tensor | None:
        """Returns the indices in [M] of the trained tokens where the mask [T] of their sample is
        true; None if that is everywhere."""
        chosen_M = np.concatenate([row.trained(mask(row.sample)) for row in rows])
        if chosen_M.all():
            return None
        return torch.from_numpy(np.flatnonzero(chosen_M)).to(self.device)

    def _token_weights(
        self, rows: Sequence[Row], component: Component, episode_factors: Mapping[str, float]
    ) -> Tensor:
        """Returns weight_ct of loss.py: each trained token's stream times its episode's factor."""

        def weights(sample: TrainingSample) -> NDArray[np.float32]:
            factor = np.float32(episode_factors.get(sample.episode_id, 0.0))
            return sample.stream(component) * factor

        return self._gather(rows, weights)

    def _importance_weights(self, rows: Sequence[Row]) -> Tensor:
        return self._gather(rows, lambda sample: _or_constant(sample.weights, sample, 1))


def off_policy_tokens(tokens: MiniBatchTokens, bound: float) -> Floats:
    """Returns 1 for each token whose policy loss is masked because the policy has moved away from
    its episode, 0 for the others (DeepSeek-V3.2, arXiv 2512.02556, equation 9):

        1    A < 0 and mean over the episode's tokens of log(sampler / pi) > bound

    pi is the current policy, so updates since the rollout count as well as the difference between
    sampler and trainer. KL and entropy keep all tokens, and a masked token counts in the mean."""
    gap_M = tokens.episode_means((tokens.sampler_M - tokens.logprobs_M).astype("float64"))
    return ((tokens.advantages_M < 0) & (gap_M > bound)).astype("float64")


def _or_constant(
    array_T: NDArray[np.float32] | None, sample: TrainingSample, constant: float
) -> NDArray[np.float32]:
    return np.full(len(sample), constant, np.float32) if array_T is None else array_T


def _at(values_M: Tensor, at: Tensor | None) -> Tensor:
    # None instead of all indices saves a copy, and its index_put in the backward pass.
    return values_M if at is None else values_M[at]
