"""Estimates the time and memory of a run on backbone `debug` on a CPU, before it starts.

The engine and the update are measured for some ten seconds in random models of the first layers:
so many that each kind is among them, and two more. Episodes are short at first, and as long as the
run's if there is time. The rest follows by FLOPs:

    seconds(all layers) = seconds(few) + (seconds(more) - seconds(few)) * FLOPs of the other layers
                                                                         / FLOPs of the two

A step is the rollout of its episodes, `max_env_worker` at a time, and the update of its groups as
trees. With a trial (trial.py) a rollout takes as long as the trial's, with its tools, judge and
workflow, and updates are measured with its episodes. Adapters and a critic are not measured.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ajet.cluster.machine import machine_memory
from ajet.core.common_prefix import common_length_of_ids
from ajet.core.config import AjetConfig
from ajet.core.config.precision import dtype_on
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.engines.in_process import KV_BYTES, InProcessEngine
from ajet.core.inference.engines.packed_decoder import MIN_WEIGHTS
from ajet.core.model.allocator import LARGE, prepare_memory
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.loss import MAX_KEPT, MAX_LOGITS
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.plan.memory import MemoryPart, has_reference, number_bytes, total
from ajet.plan.model_config import read_config
from ajet.plan.model_shape import ModelShape, shape_of
from ajet.plan.update_time import EpisodeSize, StepTokens, format_seconds

BUDGET_S = 10.0
"""Seconds after which no longer pass is measured."""
MORE = 2  # more layers in the second model than in the first
DECODED = (2, 10)  # the tokens of the two measured replies: their difference has no prefill in it
SHORTEST = 24  # tokens of the shortest episodes that are measured
MIN_SHARE, GROWTH = 1 / 64, 4  # the first measured lengths, and how much longer the next ones are
MEASURED_ROWS = 16  # rows of a measured rollout where whole episodes would take too long
STATE_BYTES = 16  # a weight with its gradient and two moments, in float32
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
    note: str = ""  # what was measured


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
        setting = trainer.fsdp_config.activation_checkpointing
        return self.is_large if setting == "auto" else setting

    def kept_parts(self) -> list[MemoryPart]:
        """Returns what the process holds from the first optimizer step on."""
        parameters, (value, wide) = self.shape.parameters, self._bytes
        masters, note = (wide * parameters, "with float32 masters") if value < wide else (0, "")
        memory = [
            MemoryPart("libraries", LIBRARIES_GIB, "Python, torch, transformers"),
            _part("weights", value * parameters + masters, note),
            _part("optimizer", 2 * wide * parameters, "two moments"),
        ]
        if has_reference(self.batch.config):
            memory.append(_part("reference", value * parameters, "use_kl_loss: a copy"))
        return memory

    def rollout_parts(self) -> list[MemoryPart]:
        """Returns what is added at the peak of a rollout or of a validation."""
        value, shape = self._bytes[0], self.shape
        if not self.batch.config.samples:
            return []
        tokens, rows = self._cached()
        cache = shape.kept_bytes(value, tokens, rows)
        # The engine has a budget for running rows, and again for the prefixes that it keeps.
        memory = [_part("cache", 2 * min(cache, KV_BYTES), "rollout: keys and values")]
        if shape.largest_linear >= MIN_WEIGHTS and value < 8:
            packed = value * shape.linear_parameters
            memory.append(_part("packed weights", packed, "rollout: a copy, as oneDNN reads them"))
        return memory

    def update_parts(self) -> list[MemoryPart]:
        """Returns what is added at the peak of an update, in its last micro-batch."""
        shape, (value, wide), tokens = self.shape, self._bytes, self._tokens_of_a_pass()
        replies = self.batch.config.ajet.rollout.num_repeat * self.size.reply
        read = tokens * replies // (self.size.prompt + replies)
        # wide_layer.py keeps neither the norms' outputs nor an MLP's product and activation apart;
        # others, and narrow models, keep about twice what it does.
        widths = [layer.kept - 2 * shape.hidden - layer.mlp for layer in shape.layers]
        layers = max(widths) if self.recomputes else sum(widths)
        is_wide = shape.has_decoder and shape.hidden >= 256 and value < 8
        kept = layers * (1 if is_wide else 2)
        kept += len(shape.layers) * shape.hidden if self.recomputes else 0
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
        kept, rollout, update = map(
            total, (self.kept_parts(), self.rollout_parts(), self.update_parts())
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
        batches = (
            (self._sampled_episodes, self.batch.config.ajet.rollout.num_repeat),
            (self.batch.validation_episodes, self.batch.config.validation_repeats),
        )
        rows = [(self._at_once(episodes), repeat) for episodes, repeat in batches]
        return max(
            (-(-num // repeat) * self.size.prompt + num * self.size.reply, num)
            for num, repeat in rows
        )

    def memory_rows(self) -> list[tuple[str, str, str]]:
        memory = [*self.kept_parts(), *self.rollout_parts(), *self.update_parts()]
        rows = [(part.name, f"{part.gib:.2f}", part.note) for part in memory]
        return [*rows, ("peak", f"{self.peak_gib:.2f}", "of this process")]

    def time_rows(self) -> list[tuple[str, str, str]]:
        size = f"{self.size.prompt} + {self.size.reply} tokens an episode"
        steps, validations = self.batch.total_steps, self.num_validations
        rollout = ("rollout", format_seconds(self.rollout_s), f"{self.at_once} at once, {size}")
        how = "rollout and update" if self._sampled_episodes else "replies are given: an update"
        return [
            *([rollout] if self._sampled_episodes else []),
            ("update", format_seconds(self.update_s), self.measured.note),
            ("step", format_seconds(self.step_s), how),
            ("validation", format_seconds(self.validation_s), f"{validations} in the run"),
            ("run", format_seconds(self.run_s), f"{steps:,} steps, without loading and saving"),
        ]


def local_plan(
    config: AjetConfig,
    batch: BatchPlan,
    size: EpisodeSize,
    trial: Trial | None = None,
    tell: Callable[[str], None] = lambda _: None,
    budget_s: float = BUDGET_S,
) -> LocalPlan:
    """Measures this machine and returns the plan; a trial's lengths replace `size`. `tell` gets a
    line that says what is about to be measured. No longer pass begins after `budget_s`."""
    path = config.ajet.model.path
    if path is None:
        raise ConfigError(
            "ajet.model.path: a plan needs the model whose shape it measures", code=Code.KEY_MISSING
        )
    model_config = read_config(path, download=True)
    shape = shape_of(model_config, path)
    size = size if trial is None else trial.size
    plan = LocalPlan(batch, shape, size, Measured(0.0, 0.0, 0.0))
    if plan.is_large:
        prepare_memory()  # as loading a model does
    measured = _measure(plan, model_config, trial, tell, budget_s)
    if trial is not None and trial.seconds is not None:
        batch_s = trial.seconds * plan.at_once / trial.num_episodes
        measured = replace(measured, batch_s=batch_s)
    return replace(plan, measured=measured)


def with_first_layers(model_config: Any, shape: ModelShape, num: int) -> Any:
    """Returns the config of a model that has only the first layers: lists over layers are cut."""
    first = copy.deepcopy(model_config)
    whole = len(shape.layers)
    for name, value in vars(model_config).items():
        if isinstance(value, list) and len(value) == whole:
            setattr(first, name, value[:num])
    if hasattr(first, "num_kv_shared_layers"):
        first.num_kv_shared_layers = sum(not layer.kv for layer in shape.layers[:num])
    if per_layer := model_config.to_dict().get("per_layer_config"):
        first.per_layer_config = {
            int(index): fields for index, fields in per_layer.items() if int(index) < num
        }
    first.num_hidden_layers = num
    return first


def _measure(
    plan: LocalPlan,
    model_config: Any,
    trial: Trial | None,
    tell: Callable[[str], None],
    budget_s: float,
) -> Measured:
    """Returns the seconds of the whole model, from those of two models of its first layers."""
    shape, size, whole = plan.shape, plan.size, len(plan.shape.layers)
    num_few = 1 + max(shape.layers.index(layer) for layer in set(shape.layers))
    num_more = min(whole, num_few + MORE)
    few, more = (replace(shape, layers=shape.layers[:num]) for num in (num_few, num_more))
    in_layers = sum(layer.parameters for layer in more.layers)
    needed = STATE_BYTES * (shape.embedding_parameters + in_layers)
    if needed > (machine_memory() or needed):
        raise ConfigError(
            f"measuring {len(more.layers)} of the model's {whole} layers takes "
            f"{needed / 1e9:.0f} GB, which this machine has not; plan for a GPU with --gpu",
            code=Code.DOES_NOT_FIT,
        )
    tell(
        f"measuring {len(more.layers)} of {whole} layers with random weights for {budget_s:.0f} s, "
        "or as long as the shortest passes take"
    )
    deadline = time.perf_counter() + budget_s
    model = _random_model(plan, model_config, more)
    # Longer and longer episodes, while there is time for twice the next: that of the other model.
    points, share = [], min(1.0, max(MIN_SHARE, SHORTEST / size.length))
    while True:
        lengths = _share_of(size, share)
        groups = [_random_group(plan, lengths, shape.vocab)]
        if trial is not None and share == 1:
            groups = trial.groups[: _num_groups(plan, size)]
        update_s, optimizer_s = _update_seconds(model, plan, [s for g in groups for s in g])
        group_s = update_s / len(groups)
        points.append((3 * _step_tokens(plan, lengths, more).forward_flops(more), group_s))
        longer = min(1.0, GROWTH * share)
        if share == 1 or 4 * update_s * longer / share > deadline - time.perf_counter():
            break
        share = longer
    rows = plan.at_once if share == 1 else max(1, min(plan.at_once, MEASURED_ROWS))
    prompts = lengths if trial is None or trial.seconds is None else None
    high = np.array((*_rollout_seconds(plan, model, prompts, rows), group_s, optimizer_s))
    seconds = high
    if num_few < num_more:
        model = _random_model(plan, model_config, few)
        update_s, optimizer_s = _update_seconds(model, plan, [s for g in groups for s in g])
        rollout_s = _rollout_seconds(plan, model, prompts, rows)
        low = np.array((*rollout_s, update_s / len(groups), optimizer_s))
        flops = [sum(layer.token_flops for layer in part.layers) for part in (few, more, shape)]
        seconds = low + np.maximum(high - low, 0) * ((flops[2] - flops[0]) / (flops[1] - flops[0]))
    prefill_s, decode_s, group_s, optimizer_s = map(float, seconds)
    if share < 1:
        (flops_1, seconds_1), (flops_2, seconds_2) = [(0.0, 0.0), *points][-2:]
        of_flop_s = max(seconds_2 - seconds_1, 0) / (flops_2 - flops_1)
        whole_flops, flops = (
            3 * _step_tokens(plan, lengths, shape).forward_flops(shape)
            for lengths in (size, _share_of(size, share))
        )
        group_s += of_flop_s * (whole_flops - flops)
        prefill_s *= plan.at_once * size.prompt / (rows * lengths.prompt)
        decode_s *= plan.at_once / rows
    note = f"measured with {len(more.layers)} of {whole} layers"
    note += "" if share == 1 else f", episodes of {lengths.prompt} + {lengths.reply} tokens"
    return Measured(prefill_s + size.reply * decode_s, group_s, optimizer_s, note)


def _num_groups(plan: LocalPlan, size: EpisodeSize) -> int:
    """Returns how many groups of a trial an update is measured with."""
    config, tokens = plan.batch.config, _step_tokens(plan, size, plan.shape).num
    of_step = config.ajet.data.train_batch_size // plan.batch.optimizer_steps_per_step
    return max(1, min(of_step, MEASURED_TOKENS // tokens))


def _step_tokens(plan: LocalPlan, size: EpisodeSize, shape: ModelShape) -> StepTokens:
    """Returns the tokens of an update of one group."""
    return replace(StepTokens.of(plan.batch.config, shape, size), groups=1)


def _share_of(size: EpisodeSize, share: float) -> EpisodeSize:
    return EpisodeSize(max(1, round(share * size.prompt)), max(1, round(share * size.reply)))


def _random_model(plan: LocalPlan, model_config: Any, shape: ModelShape) -> Any:
    """Returns a random model that has the first layers."""
    import torch
    from transformers import AutoModelForCausalLM

    first = with_first_layers(model_config, plan.shape, len(shape.layers))
    first._experts_implementation = None  # the one that transformers chooses for a run
    dtype = getattr(torch, dtype_on(plan.batch.config, gpu=False))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(first, dtype=dtype)


def _rollout_seconds(
    plan: LocalPlan, model: Any, size: EpisodeSize | None, at_once: int
) -> tuple[float, float]:
    """Returns the seconds of prefill and of one token of each request; 0 where a trial has shown
    what a rollout takes."""
    return (
        (0.0, 0.0) if size is None else asyncio.run(_sampling_seconds(plan, model, size, at_once))
    )


async def _sampling_seconds(
    plan: LocalPlan, model: Any, size: EpisodeSize, at_once: int
) -> tuple[float, float]:
    config, rng = plan.batch.config, np.random.default_rng(0)
    engine = InProcessEngine(
        model,
        stop_token_ids=(),
        max_num_seqs=at_once,
        max_model_len=config.ajet.rollout.max_model_len,
    )
    repeat, seconds = config.ajet.rollout.num_repeat, []
    prompts = [rng.integers(0, plan.shape.vocab, size.prompt) for _ in range(-(-at_once // repeat))]
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


def _random_group(plan: LocalPlan, size: EpisodeSize, vocab_size: int) -> list[TrainingSample]:
    """Returns a group's samples: one prompt, and a reply each."""
    rng, samples = np.random.default_rng(0), []
    prompt = rng.integers(0, vocab_size, size.prompt)
    for member in range(plan.batch.config.ajet.rollout.num_repeat):
        ids = np.concatenate((prompt, rng.integers(0, vocab_size, size.reply)))
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
    model: Any, plan: LocalPlan, samples: list[TrainingSample]
) -> tuple[float, float]:
    """Returns the seconds of the samples' passes and of one optimizer step."""
    settings = replace(
        UpdateSettings.from_config(plan.batch.config),
        activation_checkpointing=plan.recomputes,
        mini_batch_num=1,
        ppo_epochs=1,
    )
    policy = Policy(model, settings)
    if not plan.is_large:
        policy.update(samples)  # warms up
    started = time.perf_counter()
    policy.update(samples)
    whole = time.perf_counter() - started
    for weight in policy.model.parameters():
        weight.grad = weight.new_zeros(weight.shape)
    started = time.perf_counter()
    policy.optimizer.step()
    optimizer = time.perf_counter() - started
    return max(whole - optimizer, 0.0), optimizer
