"""Estimates the time and memory of a run on backbone `debug` on a CPU, before it starts.

The engine and the update are measured for about ten seconds in random models: one of as many first
layers as contain each kind of layer, and one of two layers more. Episodes grow from short ones to
the run's length, if there is time. The rest is extrapolated by FLOPs:

    seconds(all layers) = seconds(few) + (seconds(more) - seconds(few)) * FLOPs of the other layers
                                                                         / FLOPs of the two

With a trial (trial.py) a rollout takes as long as the trial's, with its tools, judge and workflow,
and updates are measured with its episodes. Adapters and a critic are not measured.
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
from ajet.core.config import AjetConfig
from ajet.core.config.precision import dtype_on
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.allocator import LARGE, prepare_memory
from ajet.core.model.common_prefix import common_length_of_ids
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.loss import MAX_KEPT, MAX_LOGITS
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.engines.in_process import KV_BYTES, InProcessEngine
from ajet.engines.packed_decoder import MIN_WEIGHTS
from ajet.plan.memory import MemoryPart, has_reference, number_bytes, total
from ajet.plan.model_config import read_config
from ajet.plan.model_shape import ModelShape, shape_of
from ajet.plan.update_time import EpisodeSize, StepTokens, format_seconds

BUDGET_S = 10.0
"""After this time no longer episodes are measured."""
MORE = 2  # more layers in the second model than in the first
DECODED = (2, 10)  # tokens of the two measured replies; their difference contains no prefill
SHORTEST = 24  # tokens of the shortest measured episodes
MIN_SHARE, GROWTH = 1 / 64, 4  # of the run's lengths at first, and the factor to the next lengths
MEASURED_ROWS = 16  # rows of a measured rollout if whole episodes would take too long
STATE_BYTES = 16  # of a weight with its gradient and two moments, in float32
LIBRARIES_GIB = 0.5
"""Python, torch and transformers; measured on Linux."""
FRAGMENTED = 1.5
"""The allocator's memory for short-lived tensors, as a multiple of their bytes; measured."""
MEASURED_TOKENS = 4096
"""The most tokens of a trial's groups with which an update is measured, unless one has more."""

_part = MemoryPart.from_bytes


@dataclass(frozen=True)
class Measured:
    """Seconds measured on this machine and extrapolated to the whole model."""

    batch_s: float  # for as many episodes as run at a time
    group_s: float  # forward and backward passes of one group
    optimizer_s: float
    note: str = ""


@dataclass(frozen=True)
class Trial:
    """A rollout of some of the run's tasks. `seconds` is None if the replies were not sampled."""

    groups: list[list[TrainingSample]]
    num_episodes: int
    seconds: float | None

    @property
    def size(self) -> EpisodeSize:
        """The mean lengths of a group's common prompt, and of the rest of a row."""
        prompts = []
        for group in self.groups:
            unsampled = [sample.token_ids[: int(np.argmax(sample.loss_mask))] for sample in group]
            prompts.append(min(common_length_of_ids(unsampled[0], ids) for ids in unsampled))
        rest = [
            len(sample.token_ids) - prompt
            for group, prompt in zip(self.groups, prompts, strict=True)
            for sample in group
        ]
        return EpisodeSize(max(1, round(np.mean(prompts))), max(1, round(np.mean(rest))))


@dataclass(frozen=True)
class LocalPlan:
    """The plan of a run on this machine."""

    batch: BatchPlan
    shape: ModelShape
    size: EpisodeSize
    measured: Measured

    @property
    def at_once(self) -> int:
        """The episodes that run at a time: in a rollout, or, if replies are not sampled, in a
        validation."""
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
        num = int(bool(trainer.val_before_train))
        return num + (-(-steps // trainer.test_freq) if trainer.test_freq > 0 else 0)

    @property
    def run_s(self) -> float:
        return self.batch.total_steps * self.step_s + self.num_validations * self.validation_s

    @property
    def _sampled_episodes(self) -> int:
        """The episodes of a step whose replies are sampled."""
        is_given = self.batch.config.learns_from_rows(is_training=True)
        return 0 if is_given else self.batch.episodes_per_step

    def _at_once(self, episodes: int) -> int:
        return min(self.batch.config.ajet.rollout.max_env_worker, episodes)

    def _rollout(self, episodes: int) -> float:
        return episodes / self.at_once * self.measured.batch_s

    @property
    def is_large(self) -> bool:
        """Whether freed memory is returned to the system around an update
        (core/model/allocator.py)."""
        return self.shape.parameters >= LARGE

    @property
    def recomputes(self) -> bool:
        trainer = self.batch.config.ajet.trainer_common
        setting = trainer.fsdp_config.activation_checkpointing
        return self.is_large if setting == "auto" else setting

    def kept_parts(self) -> list[MemoryPart]:
        """Returns the permanent memory, from the first optimizer step on."""
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
        """Returns the additional memory at the peak of a rollout or validation."""
        value, shape = self._bytes[0], self.shape
        if not self.batch.config.samples:
            return []
        tokens, rows = self._cached()
        cache = shape.kept_bytes(value, tokens, rows)
        # The engine has one budget for running rows and an equal one for kept prefixes.
        memory = [_part("cache", 2 * min(cache, KV_BYTES), "rollout: keys and values")]
        if shape.largest_linear >= MIN_WEIGHTS and value < 8:
            packed = value * shape.linear_parameters
            memory.append(_part("packed weights", packed, "rollout: a copy, as oneDNN reads them"))
        return memory

    def update_parts(self) -> list[MemoryPart]:
        """Returns the additional memory at the peak of an update, in its last micro-batch."""
        shape, (value, wide) = self.shape, self._bytes
        config = self.batch.config
        budget = config.ajet.trainer_common.max_tokens_per_micro_batch
        group = self.size.prompt + config.ajet.rollout.num_repeat * self.size.reply
        tokens = budget if group > budget else min(budget, group * max(1, budget // group))
        replies = self.batch.config.ajet.rollout.num_repeat * self.size.reply
        read = tokens * replies // (self.size.prompt + replies)
        # wide_layer.py does not keep the norms' outputs, nor both an MLP's product and activation.
        # Other layers, and narrow models, keep about twice as much.
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
        kept, rollout, update = map(
            total, (self.kept_parts(), self.rollout_parts(), self.update_parts())
        )
        # Only a large model returns a rollout's memory to the system before the update.
        return kept + (max(rollout, update) if self.is_large else rollout + update)

    @property
    def _bytes(self) -> tuple[int, int]:
        return number_bytes(self.batch.config, gpu=False)

    def _cached(self) -> tuple[int, int]:
        """Returns the tokens in the cache, prompts counted once per group, and the rows, of a
        rollout or a validation, whichever has more tokens."""
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
    line about the measurement. After `budget_s` no longer episodes are measured."""
    path = config.ajet.model.path
    if path is None:
        raise ConfigError("ajet.model.path: a plan needs the model", code=Code.KEY_MISSING)
    model_config = read_config(path, download=True)
    shape = shape_of(model_config, path)
    size = size if trial is None else trial.size
    plan = LocalPlan(batch, shape, size, Measured(0.0, 0.0, 0.0))
    if plan.is_large:
        prepare_memory()  # as a run does when it loads its model
    measured = _measure(plan, model_config, trial, tell, budget_s)
    if trial is not None and trial.seconds is not None:
        batch_s = trial.seconds * plan.at_once / trial.num_episodes
        measured = replace(measured, batch_s=batch_s)
    return replace(plan, measured=measured)


def with_first_layers(model_config: Any, shape: ModelShape, num: int) -> Any:
    """Returns the config of a model of only the first `num` layers: lists over layers are cut."""
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
    """Extrapolates the seconds of the whole model from two models of its first layers."""
    shape, size, whole = plan.shape, plan.size, len(plan.shape.layers)
    num_few = 1 + max(shape.layers.index(layer) for layer in set(shape.layers))
    num_more = min(whole, num_few + MORE)
    few, more = (replace(shape, layers=shape.layers[:num]) for num in (num_few, num_more))
    in_layers = sum(layer.parameters for layer in more.layers)
    needed = STATE_BYTES * (shape.embedding_parameters + in_layers)
    if needed > (machine_memory() or needed):
        raise ConfigError(
            f"measuring {len(more.layers)} of the model's {whole} layers needs "
            f"{needed / 1e9:.0f} GB, more than this machine has; plan for a GPU with --gpu",
            code=Code.DOES_NOT_FIT,
        )
    tell(
        f"measuring {len(more.layers)} of {whole} layers with random weights for {budget_s:.0f} s, "
        "or longer if the shortest passes take longer"
    )
    deadline = time.perf_counter() + budget_s
    model = _random_model(plan, model_config, more)
    # Episodes grow while there is time for the next length, in this model and in the other one.
    points, share = [], min(1.0, max(MIN_SHARE, SHORTEST / size.length))
    while True:
        lengths = _share_of(size, share)
        groups = [_random_group(plan, lengths, shape.vocab)]
        if trial is not None and share == 1:
            tokens = _step_tokens(plan, size, shape).num
            batch_size = plan.batch.config.ajet.data.train_batch_size
            per_step = batch_size // plan.batch.optimizer_steps_per_step
            groups = trial.groups[: max(1, min(per_step, MEASURED_TOKENS // tokens))]
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
    if share < 1:  # extrapolated to the run's lengths by the slope of the last two lengths
        (flops_1, seconds_1), (flops_2, seconds_2) = [(0.0, 0.0), *points][-2:]
        flop_s = max(seconds_2 - seconds_1, 0) / (flops_2 - flops_1)
        whole_flops, flops = (
            3 * _step_tokens(plan, lengths, shape).forward_flops(shape)
            for lengths in (size, _share_of(size, share))
        )
        group_s += flop_s * (whole_flops - flops)
        prefill_s *= plan.at_once * size.prompt / (rows * lengths.prompt)
        decode_s *= plan.at_once / rows
    note = f"measured with {len(more.layers)} of {whole} layers"
    note += "" if share == 1 else f", episodes of {lengths.prompt} + {lengths.reply} tokens"
    return Measured(prefill_s + size.reply * decode_s, group_s, optimizer_s, note)


def _step_tokens(plan: LocalPlan, size: EpisodeSize, shape: ModelShape) -> StepTokens:
    """Returns the tokens of an update of one group."""
    return replace(StepTokens.of(plan.batch.config, shape, size), groups=1)


def _share_of(size: EpisodeSize, share: float) -> EpisodeSize:
    return EpisodeSize(max(1, round(share * size.prompt)), max(1, round(share * size.reply)))


def _random_model(plan: LocalPlan, model_config: Any, shape: ModelShape) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    first = with_first_layers(model_config, plan.shape, len(shape.layers))
    first._experts_implementation = None  # transformers chooses, as in a run
    dtype = getattr(torch, dtype_on(plan.batch.config, gpu=False))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(first, dtype=dtype)


def _rollout_seconds(
    plan: LocalPlan, model: Any, size: EpisodeSize | None, at_once: int
) -> tuple[float, float]:
    """Returns the seconds of prefill and of one token of each request; 0 without a size, for a
    trial that has measured them."""
    if size is None:
        return 0.0, 0.0
    return asyncio.run(_sampling_seconds(plan, model, size, at_once))


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
        engine.publish(round_number)  # drops the cached prompts
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
    """Returns a group's samples: the same random prompt, and a random reply each."""
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
    """Returns the seconds of the passes over the samples, and of one optimizer step."""
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
