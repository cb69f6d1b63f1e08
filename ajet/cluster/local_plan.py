"""Estimates the time and memory of a run on backbone `debug` on a CPU, before it starts.

The engine and the update themselves are measured for some seconds, in random models of the
configured shape that have one layer of each kind, and three of one kind. Both times lie on a line
over the layers of a kind:

    seconds(layers) = seconds(1) + (layers - 1) * (seconds(3) - seconds(1)) / 2

A step is the rollout of its episodes, `max_env_worker` at a time, and the update of its groups as
trees; a supervised step has no rollout. Memory is what the process keeps and what a rollout, a
validation or a micro-batch adds.

An episode is taken as one prompt and one reply, whose lengths the user gives; without them half of
the most that the config allows is taken. With a trial (backbones/trial.py) a rollout takes as long
as the trial's, with its tools, judge and workflow, and updates are measured with its episodes.

Not covered: adapters, a critic; the passing peak of a resumed run, which reads a checkpoint; groups
without signal, which an update skips. Without a trial neither: tools, judges and workflows that
take time; what the prompts of several groups share; episodes of many turns.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ajet.cluster.episode_size import EpisodeSize
from ajet.cluster.family_shapes import shape_of
from ajet.cluster.layer_shape import ModelShape
from ajet.cluster.memory_estimate import MemoryPart, has_reference, number_bytes
from ajet.cluster.plan import format_seconds
from ajet.core.common_prefix import common_length_of_ids
from ajet.core.config import AjetConfig
from ajet.core.config.precision import dtype_on
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.settings import UpdateSettings

MORE = 2  # more layers of one kind than of the others
DECODED = (4, 20)  # the tokens of the two measured replies: their difference has no prefill in it
MAX_LOGITS, MAX_KEPT, LARGE, MIN_PACKED, KV_BYTES = 1 << 24, 1 << 29, 1 << 25, 1 << 18, 3 << 27
"""The values of MAX_LOGITS and MAX_KEPT in core/update/loss.py, LARGE in core/model/allocator.py,
MIN_WEIGHTS in core/inference/engines/packed_decoder.py, and KV_BYTES in in_process.py there; a test
compares them."""
LIBRARIES_GIB = 0.5
"""Python, torch and transformers with what they load; measured on Linux."""
FRAGMENTED = 1.5
"""The allocator takes this many times the bytes of tensors that come and go; measured."""
MEASURED_TOKENS = 4096
"""An update is measured with as many groups of a trial as have no more tokens; with one at least.
"""

_part = MemoryPart.of_bytes


@dataclass(frozen=True)
class Measured:
    """Holds seconds that were measured on this machine, extended to the whole model."""

    batch_s: float  # of the episodes that run at a time, from the first to the last
    group_s: float  # of the forward and backward passes of one group
    optimizer_s: float


@dataclass(frozen=True)
class Trial:
    """Holds a rollout of some of the run's own tasks. `seconds` is None where the replies were
    given, not sampled."""

    groups: list[list[TrainingSample]]
    num_episodes: int
    seconds: float | None

    @property
    def size(self) -> EpisodeSize:
        """Returns the mean lengths of what a group's rows begin with, and of the rest of a row."""
        prompts = [_shared_length(group) for group in self.groups]
        rest = [
            len(sample.token_ids) - prompt
            for group, prompt in zip(self.groups, prompts, strict=True)
            for sample in group
        ]
        return EpisodeSize(max(1, round(np.mean(prompts))), max(1, round(np.mean(rest))))


def _shared_length(group: list[TrainingSample]) -> int:
    """Returns the number of tokens before the first sampled one that all samples begin with."""
    prompts = [sample.token_ids[: int(np.argmax(sample.loss_mask))] for sample in group]
    return min(common_length_of_ids(prompts[0], prompt) for prompt in prompts)


@dataclass(frozen=True)
class LocalPlan:
    """Holds what a run on this machine takes, and the sizes that it follows from."""

    batch: BatchPlan
    shape: ModelShape
    size: EpisodeSize
    measured: Measured  # with so many episodes as `at_once`

    @property
    def at_once(self) -> int:
        """Returns the episodes that run at a time: in a rollout, or in a validation where nothing
        else asks the engine."""
        return max(1, self._at_once(self._sampled_episodes or self.batch.validation_episodes))

    @property
    def rollout_s(self) -> float:
        return self._rollout(self._sampled_episodes)

    @property
    def validation_s(self) -> float:
        return self._rollout(self.batch.validation_episodes)

    @property
    def update_s(self) -> float:
        trainer = self.batch.config.ajet.trainer_common
        groups = self.batch.config.ajet.data.train_batch_size * self.measured.group_s
        steps = self.batch.optimizer_steps_per_step * self.measured.optimizer_s
        return trainer.ppo_epochs * (groups + steps)

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.update_s

    @property
    def num_validations(self) -> int:
        trainer, steps = self.batch.config.ajet.trainer_common, self.batch.total_steps
        if not self.batch.validation_episodes:
            return 0
        return int(bool(trainer.val_before_train)) + (
            -(-steps // trainer.test_freq) if trainer.test_freq > 0 else 0
        )

    @property
    def run_s(self) -> float:
        return self.batch.total_steps * self.step_s + self.num_validations * self.validation_s

    @property
    def _sampled_episodes(self) -> int:
        """Returns the episodes of a step whose replies are sampled."""
        is_given = self.batch.config.learns_from_rows(is_training=True)
        return 0 if is_given else self.batch.episodes_per_step

    def _at_once(self, episodes: int) -> int:
        return min(self.batch.config.ajet.rollout.max_env_worker, episodes)

    def _rollout(self, episodes: int) -> float:
        return episodes / self.at_once * self.measured.batch_s

    @property
    def is_large(self) -> bool:
        """Tells whether freed memory is given back around an update (core/model/allocator.py)."""
        return self.shape.parameters >= LARGE

    @property
    def recomputes(self) -> bool:
        """Tells whether the backward pass computes activations again."""
        trainer = self.batch.config.ajet.trainer_common
        given = trainer.fsdp_config.activation_checkpointing
        return self.is_large if given == "auto" else given

    def kept_parts(self) -> list[MemoryPart]:
        """Returns what the process holds from the first optimizer step on."""
        parameters, (value, wide) = self.shape.parameters, self._bytes
        masters, note = (wide * parameters, "with float32 masters") if value < wide else (0, "")
        parts = [
            MemoryPart("libraries", LIBRARIES_GIB, "Python, torch, transformers"),
            _part("weights", value * parameters + masters, note),
            _part("optimizer", 2 * wide * parameters, "two moments"),
        ]
        if has_reference(self.batch.config):
            parts.append(_part("reference", value * parameters, "use_kl_loss: a copy"))
        return parts

    def rollout_parts(self) -> list[MemoryPart]:
        """Returns what is added at the peak of a rollout or of a validation."""
        value, shape = self._bytes[0], self.shape
        if not self.batch.config.samples:
            return []
        tokens, rows = self._cached()
        cache = shape.kept_bytes(value, tokens, rows)
        # The engine has a budget for running rows, and again for the prefixes that it keeps.
        parts = [_part("cache", 2 * min(cache, KV_BYTES), "rollout: keys and values")]
        if shape.largest_linear >= MIN_PACKED and value < 8:
            packed = value * shape.linear_parameters
            parts.append(_part("packed weights", packed, "rollout: a copy, as oneDNN reads them"))
        return parts

    def update_parts(self) -> list[MemoryPart]:
        """Returns what is added at the peak of an update, in its last micro-batch."""
        shape, (value, wide), tokens = self.shape, self._bytes, self._tokens_of_a_pass()
        replies = self.batch.config.ajet.rollout.num_repeat * self.size.reply
        read = tokens * replies // (self.size.prompt + replies)
        # As wide_layer.py keeps it; others, and narrow models, keep about twice that.
        widths = [
            2 * (1 + each.chosen) * shape.hidden + each.mixed + each.mlp_width + 2 * each.scores
            for each in shape.each_layer
        ]
        layers = max(widths) if self.recomputes else sum(widths)
        is_wide = shape.has_decoder and shape.hidden >= 256 and value < 8
        kept = layers * (1 if is_wide else 2)
        kept += shape.layers * shape.hidden if self.recomputes else 0
        logits = read * shape.vocab
        if value * logits > MAX_KEPT:  # computed in slices: values, softmax, gradient
            logits = 3 * MAX_LOGITS
        activations = FRAGMENTED * value * tokens * kept
        how = "one layer at a time" if self.recomputes else "all layers"
        return [
            _part("gradients", wide * shape.parameters, f"update: {wide} bytes"),
            _part("activations", activations, f"update: {tokens:,} tokens, {how}"),
            _part("logits", FRAGMENTED * value * logits, f"update: of {read:,} sampled tokens"),
        ]

    @property
    def peak_gib(self) -> float:
        """Returns the peak of this process. What a rollout has freed is given back before the
        update only in a large model."""
        kept, rollout, update = (
            sum(part.gib for part in parts)
            for parts in (self.kept_parts(), self.rollout_parts(), self.update_parts())
        )
        return kept + (max(rollout, update) if self.is_large else rollout + update)

    @property
    def _bytes(self) -> tuple[int, int]:
        return number_bytes(self.batch.config, gpu=False)

    def _tokens_of_a_pass(self) -> int:
        trainer, rollout = self.batch.config.ajet.trainer_common, self.batch.config.ajet.rollout
        group = self.size.prompt + rollout.num_repeat * self.size.reply
        budget = trainer.max_tokens_per_micro_batch
        return min(budget, group * max(1, budget // group) if group <= budget else budget)

    def _cached(self) -> tuple[int, int]:
        """Returns the tokens that rows of a rollout or of a validation have, whichever are more,
        each prompt once; and the rows."""
        kinds = (
            (self._sampled_episodes, self.batch.config.ajet.rollout.num_repeat),
            (self.batch.validation_episodes, self.batch.config.validation_repeats),
        )
        rows = [(self._at_once(episodes), repeat) for episodes, repeat in kinds]
        return max(
            (-(-num // repeat) * self.size.prompt + num * self.size.reply, num)
            for num, repeat in rows
        )

    def memory_rows(self) -> list[tuple[str, str, str]]:
        parts = [*self.kept_parts(), *self.rollout_parts(), *self.update_parts()]
        rows = [(part.name, f"{part.gib:.2f}", part.note) for part in parts]
        return [*rows, ("peak", f"{self.peak_gib:.2f}", "of this process")]

    def time_rows(self) -> list[tuple[str, str, str]]:
        size = f"{self.size.prompt} + {self.size.reply} tokens an episode"
        steps, validations = self.batch.total_steps, self.num_validations
        rollout = ("rollout", format_seconds(self.rollout_s), f"{self.at_once} at once, {size}")
        how = "rollout and update" if self._sampled_episodes else "replies are given: an update"
        return [
            *([rollout] if self._sampled_episodes else []),
            ("update", format_seconds(self.update_s), "measured, extended to all layers"),
            ("step", format_seconds(self.step_s), how),
            ("validation", format_seconds(self.validation_s), f"{validations} in the run"),
            ("run", format_seconds(self.run_s), f"{steps:,} steps, without loading and saving"),
        ]


def local_plan(
    config: AjetConfig, batch: BatchPlan, size: EpisodeSize, trial: Trial | None = None
) -> LocalPlan:
    """Measures this machine and returns the plan; a trial's lengths replace `size`."""
    from ajet.core.model.allocator import prepare_memory

    path = config.ajet.model.path
    if path is None:
        raise ConfigError(
            "ajet.model.path: a plan needs the model whose shape it measures", code=Code.KEY_MISSING
        )
    model_config = _model_config(path)
    shape = shape_of(model_config.to_dict(), path)
    size = size if trial is None else trial.size
    plan = LocalPlan(batch, shape, size, Measured(0.0, 0.0, 0.0))
    if plan.is_large:
        prepare_memory()  # as loading a model does
    of_kind = Counter(shape.each_layer)
    first = [shape.each_layer.index(kind) for kind in of_kind]
    low = np.array(_measure(plan, model_config, first, trial))
    seconds = low.copy()
    for index, count in zip(first, of_kind.values(), strict=True):
        if count > 1:
            chosen = sorted([*first, *[index] * MORE])
            high = np.array(_measure(plan, model_config, chosen, trial))
            seconds += (count - 1) * np.maximum(high - low, 0) / MORE
    batch_s, group_s, optimizer_s = map(float, seconds)
    if trial is not None and trial.seconds is not None:
        batch_s = trial.seconds * plan.at_once / trial.num_episodes
    return replace(plan, measured=Measured(batch_s, group_s, optimizer_s))


def _model_config(path: str) -> Any:
    from transformers import AutoConfig

    from ajet.core.model.load import find_source
    from ajet.core.model.multimodal import text_config_of

    source = find_source(path)
    if not source.is_gguf:
        text_config = text_config_of(source.name_or_path, **source.options)
        if text_config is not None:
            return text_config
    return AutoConfig.from_pretrained(source.name_or_path, **source.options)


def with_layers(model_config: Any, shape: ModelShape, chosen: Sequence[int]) -> Any:
    """Returns the config of a model that has these of the layers, in their order."""
    own = copy.deepcopy(model_config)
    for name in ("layer_types", "no_rope_layers"):
        if name in vars(model_config):
            values = getattr(model_config, name)
            setattr(own, name, values and [values[index] for index in chosen])
    dense = [n for n, index in enumerate(chosen) if shape.each_layer[index].experts is None]
    for name in ("first_k_dense_replace", "num_dense_layers"):
        if hasattr(own, name):
            setattr(own, name, len(dense))
    if hasattr(own, "mlp_only_layers"):
        own.mlp_only_layers, own.decoder_sparse_step = dense, 1
    if hasattr(own, "num_kv_shared_layers"):
        shared = [index for index in chosen if not shape.each_layer[index].kv]
        own.num_kv_shared_layers = len(shared)
    own.num_hidden_layers = len(chosen)
    if of_layer := model_config.to_dict().get("per_layer_config"):
        of_chosen = {number: of_layer.get(str(index)) for number, index in enumerate(chosen)}
        own.per_layer_config = {number: each for number, each in of_chosen.items() if each}
    return own


def _measure(
    plan: LocalPlan, model_config: Any, chosen: Sequence[int], trial: Trial | None
) -> tuple[float, float, float]:
    """Returns the numbers of `Measured` in a random model that has these of the layers."""
    import torch
    from transformers import AutoModelForCausalLM

    config, size = plan.batch.config, plan.size
    own = with_layers(model_config, plan.shape, chosen)
    dtype = getattr(torch, dtype_on(config, gpu=False))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(own, dtype=dtype)
    rng = np.random.default_rng(0)
    repeat = config.ajet.rollout.num_repeat
    num_prompts = -(-plan.at_once // repeat)
    prompts = [rng.integers(0, own.vocab_size, size.prompt) for _ in range(num_prompts)]
    batch_s = 0.0
    if trial is None or trial.seconds is None:
        prefill, decode = asyncio.run(_rollout_seconds(config, model, prompts, plan.at_once))
        batch_s = prefill + size.reply * decode
    if trial is None:
        groups = [_random_group(prompts[0], size.reply, repeat, own.vocab_size, rng)]
    else:
        of_step = config.ajet.data.train_batch_size // plan.batch.optimizer_steps_per_step
        fitting = MEASURED_TOKENS // (size.prompt + repeat * size.reply)
        groups = trial.groups[: max(1, min(of_step, fitting))]
    settings = replace(
        UpdateSettings.from_config(config),
        activation_checkpointing=plan.recomputes,
        mini_batch_num=1,
        ppo_epochs=1,
    )
    update_s, optimizer_s = _update_seconds(model, settings, [s for group in groups for s in group])
    return batch_s, update_s / len(groups), optimizer_s


async def _rollout_seconds(
    config: AjetConfig, model: Any, prompts: list[Any], at_once: int
) -> tuple[float, float]:
    """Returns the seconds of prefill and of one token of each request."""
    from ajet.core.inference.endpoint import SamplingParams
    from ajet.core.inference.engines.in_process import InProcessEngine

    engine = InProcessEngine(
        model,
        stop_token_ids=(),
        max_num_seqs=at_once,
        max_model_len=config.ajet.rollout.max_model_len,
    )
    repeat, seconds = config.ajet.rollout.num_repeat, []
    for round_number, tokens in enumerate((DECODED[0], *DECODED)):  # the first one warms up
        engine.publish(round_number)
        names = [f"{round_number}-{i:04d}" for i in range(at_once)]
        for name in names:
            engine.enter(name)
        started = time.perf_counter()

        async def reply(index: int, name: str, tokens: int = tokens) -> None:
            sampling = SamplingParams(max_tokens=tokens, seed=index)
            prompt = prompts[index // repeat].tolist()
            await engine.generate(prompt, sampling, f"{name}/0000")

        await asyncio.gather(*(reply(i, name) for i, name in enumerate(names)))
        seconds.append(time.perf_counter() - started)
        for name in names:
            engine.leave(name)
    await engine.close()
    decode = max(seconds[2] - seconds[1], 1e-9) / (DECODED[1] - DECODED[0])
    return max(seconds[1] - DECODED[0] * decode, 0.0), decode


def _random_group(
    prompt: Any, reply: int, repeat: int, vocab_size: int, rng: np.random.Generator
) -> list[TrainingSample]:
    samples = []
    for member in range(repeat):
        ids = np.concatenate((prompt, rng.integers(0, vocab_size, reply)))
        mask = np.arange(len(ids)) >= len(prompt)
        samples.append(
            TrainingSample(
                episode_id=str(member),
                group_id="0",
                token_ids=ids,
                loss_mask=mask,
                logprobs=np.where(mask, -np.log(vocab_size), 0).astype(np.float32),
                advantages=np.where(mask, 1.0 - 2.0 * (member % 2), 0).astype(np.float32),
                spans=(),
                min_policy_version=0,
                max_policy_version=0,
            )
        )
    return samples


def _update_seconds(
    model: Any, settings: UpdateSettings, samples: list[TrainingSample]
) -> tuple[float, float]:
    """Returns the seconds of the samples' passes and of one optimizer step."""
    from ajet.core.update.policy import Policy

    policy = Policy(model, settings)
    policy.update(samples)
    started = time.perf_counter()
    policy.update(samples)
    whole = time.perf_counter() - started
    for weight in policy.model.parameters():
        weight.grad = weight.new_zeros(weight.shape)
    started = time.perf_counter()
    policy.optimizer.step()
    optimizer = time.perf_counter() - started
    return max(whole - optimizer, 0.0), optimizer
