"""Plans a run on backbone `debug` on a CPU: memory by formulas, times measured on this machine.
Engine and update run for about ten seconds in two random models of the first layers; the rest is
extrapolated by FLOPs. With --try the rollout is of the run's tasks. Adapters and a critic are not
measured.
"""

import asyncio
import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ajet import assembly
from ajet.agents.frame_recorder import with_render_dir
from ajet.backbones.evaluating import Subject, load_subject
from ajet.cluster.machine import machine_memory
from ajet.core.config import AjetConfig
from ajet.core.config.precision import dtype_on
from ajet.core.errors import ConfigError, DataError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.judge import make_judge
from ajet.core.model.allocator import LARGE, prepare_memory
from ajet.core.model.attention.trie import common_length_of_ids
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.rollout.request import RolloutRequest
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.task.task import Task
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import Group
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
        prompts, rest = [], []
        for group in self.groups:
            unsampled = [sample.token_ids[: int(np.argmax(sample.loss_mask))] for sample in group]
            prompts.append(min(common_length_of_ids(unsampled[0], ids) for ids in unsampled))
            rest += [len(sample.token_ids) - prompts[-1] for sample in group]
        return EpisodeSize(max(1, round(np.mean(prompts))), max(1, round(np.mean(rest))))


@dataclass(frozen=True)
class CpuPlan:
    """The plan of a run on this machine."""

    batch: BatchPlan
    shape: ModelShape
    size: EpisodeSize
    measured: Measured

    @property
    def config(self) -> AjetConfig:
        return self.batch.config

    # --- times ---

    @property
    def sampled_episodes(self) -> int:
        """The episodes of a step whose replies are sampled."""
        is_given = self.config.learns_from_rows(is_training=True)
        return 0 if is_given else self.batch.episodes_per_step

    @property
    def at_once(self) -> int:
        """The episodes that run at a time: in a rollout, or, if replies are not sampled, in a
        validation."""
        episodes = self.sampled_episodes or self.batch.validation_episodes
        return max(1, min(self.config.ajet.rollout.max_env_worker, episodes))

    @property
    def rollout_s(self) -> float:
        return self.sampled_episodes / self.at_once * self.measured.batch_s

    @property
    def validation_s(self) -> float:
        return self.batch.validation_episodes / self.at_once * self.measured.batch_s

    @property
    def update_s(self) -> float:
        groups = self.config.ajet.data.train_batch_size * self.measured.group_s
        steps = self.batch.optimizer_steps_per_step * self.measured.optimizer_s
        return self.config.ajet.trainer_common.ppo_epochs * (groups + steps)

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.update_s

    @property
    def num_validations(self) -> int:
        trainer, steps = self.config.ajet.trainer_common, self.batch.total_steps
        if not self.batch.validation_episodes:
            return 0
        regular = -(-steps // trainer.test_freq) if trainer.test_freq > 0 else 0
        return bool(trainer.val_before_train) + regular

    @property
    def run_s(self) -> float:
        return self.batch.total_steps * self.step_s + self.num_validations * self.validation_s

    def time_rows(self) -> list[tuple[str, str, str]]:
        size = f"{self.size.prompt} + {self.size.reply} tokens an episode"
        rollout = ("rollout", format_seconds(self.rollout_s), f"{self.at_once} at once, {size}")
        how = "rollout and update" if self.sampled_episodes else "replies are given: an update"
        steps = f"{self.batch.total_steps:,} steps, without loading and saving"
        return [
            *([rollout] if self.sampled_episodes else []),
            ("update", format_seconds(self.update_s), self.measured.note),
            ("step", format_seconds(self.step_s), how),
            ("validation", format_seconds(self.validation_s), f"{self.num_validations} in the run"),
            ("run", format_seconds(self.run_s), steps),
        ]

    # --- memory ---

    @property
    def is_large(self) -> bool:
        """Whether freed memory is returned to the system around an update
        (core/model/allocator.py)."""
        return self.shape.parameters >= LARGE

    @property
    def recomputes(self) -> bool:
        setting = self.config.ajet.trainer_common.fsdp_config.activation_checkpointing
        return self.is_large if setting == "auto" else setting

    def kept_parts(self) -> list[MemoryPart]:
        """Returns the permanent memory, from the first optimizer step on."""
        parameters, (value, wide) = self.shape.parameters, number_bytes(self.config, gpu=False)
        masters, note = (wide * parameters, "with float32 masters") if value < wide else (0, "")
        memory = [
            MemoryPart("libraries", LIBRARIES_GIB, "Python, torch, transformers"),
            _part("weights", value * parameters + masters, note),
            _part("optimizer", 2 * wide * parameters, "two moments"),
        ]
        if has_reference(self.config):
            memory.append(_part("reference", value * parameters, "use_kl_loss: a copy"))
        return memory

    def rollout_parts(self) -> list[MemoryPart]:
        """Returns the additional memory at the peak of a rollout or validation."""
        if not self.config.samples:
            return []
        shape, value, rollout = self.shape, number_bytes(self.config, gpu=False)[0], []
        # Whichever has more tokens; a group's prompt is in the cache once.
        for episodes, repeat in (
            (self.sampled_episodes, self.config.ajet.rollout.num_repeat),
            (self.batch.validation_episodes, self.config.validation_repeats),
        ):
            rows = min(self.config.ajet.rollout.max_env_worker, episodes)
            rollout.append((-(-rows // repeat) * self.size.prompt + rows * self.size.reply, rows))
        cache = shape.kept_bytes(value, *max(rollout))
        # The engine has one budget for running rows and an equal one for kept prefixes.
        memory = [_part("cache", 2 * min(cache, KV_BYTES), "rollout: keys and values")]
        if shape.largest_linear >= MIN_WEIGHTS and value < 8:
            packed = value * shape.linear_parameters
            memory.append(_part("packed weights", packed, "rollout: a copy, as oneDNN reads them"))
        return memory

    def update_parts(self) -> list[MemoryPart]:
        """Returns the additional memory at the peak of an update, in its last micro-batch."""
        shape, (value, wide) = self.shape, number_bytes(self.config, gpu=False)
        budget = self.config.ajet.trainer_common.max_tokens_per_micro_batch
        replies = self.config.ajet.rollout.num_repeat * self.size.reply
        group = self.size.prompt + replies
        tokens = budget if group > budget else min(budget, group * max(1, budget // group))
        read = tokens * replies // group
        # wide_layer.py does not keep the norms' outputs, nor both an MLP's product and activation.
        # Other layers, and narrow models, keep about twice as much.
        widths = [layer.kept - 2 * shape.hidden - layer.mlp for layer in shape.layers]
        is_wide = shape.has_decoder and shape.hidden >= 256 and value < 8
        kept = (max(widths) if self.recomputes else sum(widths)) * (1 if is_wide else 2)
        kept += len(shape.layers) * shape.hidden if self.recomputes else 0
        logits = read * shape.vocab
        if value * logits > MAX_KEPT:  # computed in slices: values, softmax, gradient
            logits = 3 * MAX_LOGITS
        how = "one layer at a time" if self.recomputes else "all layers"
        activations = FRAGMENTED * value * tokens * kept
        return [
            _part("gradients", wide * shape.parameters, f"update: {wide} bytes"),
            _part("activations", activations, f"update: {tokens:,} tokens, {how}"),
            _part("logits", FRAGMENTED * value * logits, f"update: of {read:,} sampled tokens"),
        ]

    @property
    def peak_gib(self) -> float:
        rollout, update = total(self.rollout_parts()), total(self.update_parts())
        # Only a large model returns a rollout's memory to the system before the update.
        peak = max(rollout, update) if self.is_large else rollout + update
        return total(self.kept_parts()) + peak

    def memory_rows(self) -> list[tuple[str, str, str]]:
        memory = [*self.kept_parts(), *self.rollout_parts(), *self.update_parts()]
        rows = [(part.name, f"{part.gib:.2f}", part.note) for part in memory]
        return [*rows, ("peak", f"{self.peak_gib:.2f}", "of this process")]


def cpu_plan(
    batch: BatchPlan,
    size: EpisodeSize,
    trial: Trial | None = None,
    tell: Callable[[str], None] = lambda _: None,
    budget_s: float = BUDGET_S,
) -> CpuPlan:
    """Measures this machine and returns the plan; a trial's lengths replace `size`. `tell` gets a
    line about the measurement. After `budget_s` no longer episodes are measured."""
    path = batch.config.ajet.model.path
    assert path is not None, "a config that is loaded for a run has it"
    model_config = read_config(path, download=True)
    size = size if trial is None else trial.size
    plan = CpuPlan(batch, shape_of(model_config, path), size, Measured(0.0, 0.0, 0.0))
    if plan.is_large:
        prepare_memory()  # as a run does when it loads its model
    return replace(plan, measured=_measure(plan, model_config, trial, tell, budget_s))


def _measure(
    plan: CpuPlan,
    model_config: Any,
    trial: Trial | None,
    tell: Callable[[str], None],
    budget_s: float,
) -> Measured:
    """Extrapolates the seconds of the whole model from two models of its first layers:

    seconds(all layers) = seconds(few) + (seconds(more) - seconds(few)) * FLOPs of the other layers
                                                                         / FLOPs of the two
    """
    shape, size, whole = plan.shape, plan.size, len(plan.shape.layers)
    num_few = 1 + max(shape.layers.index(layer) for layer in set(shape.layers))
    num_more = min(whole, num_few + MORE)
    few, more = (replace(shape, layers=shape.layers[:num]) for num in (num_few, num_more))
    in_layers = sum(layer.parameters for layer in more.layers)
    needed = STATE_BYTES * (shape.embedding_parameters + in_layers)
    if needed > (machine_memory() or needed):
        raise ConfigError(
            f"measuring {num_more} of the model's {whole} layers needs {needed / 1e9:.0f} GB, more "
            "than this machine has; plan for a GPU with --gpu",
            code=Code.DOES_NOT_FIT,
        )
    tell(
        f"measuring {num_more} of {whole} layers with random weights for {budget_s:.0f} s, "
        "or longer if the shortest passes take longer"
    )
    deadline = time.perf_counter() + budget_s
    model = _random_model(plan, model_config, num_more)

    def group_tokens(lengths: EpisodeSize) -> StepTokens:
        return replace(StepTokens.of(plan.config, shape, lengths), groups=1)

    # Episodes grow while there is time for the next length, in this model and in the other one.
    share = min(1.0, max(MIN_SHARE, SHORTEST / size.length))
    points = [(0.0, 0.0)]  # FLOPs and seconds of a group of each length
    while True:
        lengths = EpisodeSize(*(max(1, round(share * n)) for n in (size.prompt, size.reply)))
        groups = [_random_group(plan, lengths)]
        if trial is not None and share == 1:
            batch_size = plan.config.ajet.data.train_batch_size
            per_step = batch_size // plan.batch.optimizer_steps_per_step
            num = min(per_step, MEASURED_TOKENS // group_tokens(size).num)
            groups = trial.groups[: max(1, num)]
        samples = [sample for group in groups for sample in group]
        update_s, optimizer_s = _update_seconds(model, plan, samples)
        flops = 3 * group_tokens(lengths).forward_flops(more)
        points.append((flops, update_s / len(groups)))
        longer = min(1.0, GROWTH * share)
        if share == 1 or 4 * update_s * longer / share > deadline - time.perf_counter():
            break
        share = longer
    rows = plan.at_once if share == 1 else max(1, min(plan.at_once, MEASURED_ROWS))

    def rollout_s(model: Any) -> tuple[float, float]:
        if trial is not None and trial.seconds is not None:
            return 0.0, 0.0  # the trial has measured them
        return asyncio.run(_sampling_seconds(plan, model, lengths, rows))

    seconds = high = np.array((*rollout_s(model), update_s / len(groups), optimizer_s))
    if num_few < num_more:
        model = _random_model(plan, model_config, num_few)
        update_s, optimizer_s = _update_seconds(model, plan, samples)
        low = np.array((*rollout_s(model), update_s / len(groups), optimizer_s))
        few_flops, more_flops, all_flops = (
            sum(layer.token_flops for layer in part.layers) for part in (few, more, shape)
        )
        ratio = (all_flops - few_flops) / (more_flops - few_flops)
        seconds = low + np.maximum(high - low, 0) * ratio
    prefill_s, decode_s, group_s, optimizer_s = map(float, seconds)
    note = f"measured with {num_more} of {whole} layers"
    if share < 1:
        note += f", episodes of {lengths.prompt} + {lengths.reply} tokens"
        # Extended to the run's lengths by the slope between the last two.
        (flops_1, seconds_1), (flops_2, seconds_2) = points[-2:]
        flop_s = max(seconds_2 - seconds_1, 0) / (flops_2 - flops_1)
        whole_flops, flops = (
            3 * group_tokens(tokens).forward_flops(shape) for tokens in (size, lengths)
        )
        group_s += flop_s * (whole_flops - flops)
        prefill_s *= plan.at_once * size.prompt / (rows * lengths.prompt)
        decode_s *= plan.at_once / rows
    batch_s = prefill_s + size.reply * decode_s
    if trial is not None and trial.seconds is not None:
        batch_s = trial.seconds * plan.at_once / trial.num_episodes
    return Measured(batch_s, group_s, optimizer_s, note)


def with_first_layers(model_config: Any, shape: ModelShape, num: int) -> Any:
    """Returns the config of a model of only the first `num` layers: lists over layers are cut."""
    first = copy.deepcopy(model_config)
    for name, value in vars(model_config).items():
        if isinstance(value, list) and len(value) == len(shape.layers):
            setattr(first, name, value[:num])
    if hasattr(first, "num_kv_shared_layers"):
        first.num_kv_shared_layers = sum(not layer.kv for layer in shape.layers[:num])
    if per_layer := model_config.to_dict().get("per_layer_config"):
        first.per_layer_config = {
            int(index): fields for index, fields in per_layer.items() if int(index) < num
        }
    first.num_hidden_layers = num
    return first


def _random_model(plan: CpuPlan, model_config: Any, num_layers: int) -> Any:
    import torch

    from ajet.core.model.multimodal import causal_model

    first = with_first_layers(model_config, plan.shape, num_layers)
    first._experts_implementation = None  # transformers chooses, as in a run
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dtype = getattr(torch, dtype_on(plan.config, gpu=False))
        return causal_model(first, dtype)


async def _sampling_seconds(
    plan: CpuPlan, model: Any, size: EpisodeSize, at_once: int
) -> tuple[float, float]:
    """Returns the seconds of prefill and of one token of each of `at_once` rows."""
    rollout, rng = plan.config.ajet.rollout, np.random.default_rng(0)
    engine = InProcessEngine(
        model, stop_token_ids=(), max_num_seqs=at_once, max_model_len=rollout.max_model_len
    )
    prompts = [
        rng.integers(0, plan.shape.vocab, size.prompt).tolist()
        for _ in range(-(-at_once // rollout.num_repeat))
    ]
    seconds = []
    for round_number, tokens in enumerate((DECODED[0], *DECODED)):  # the first one warms up
        engine.publish(round_number)  # drops the cached prompts
        names = [f"{round_number}-{i:04d}" for i in range(at_once)]
        for name in names:
            engine.enter(name)
        started = time.perf_counter()
        replies = (
            engine.generate(
                prompts[i // rollout.num_repeat],
                SamplingParams(max_tokens=tokens, seed=i),
                f"{name}/0000",
            )
            for i, name in enumerate(names)
        )
        await asyncio.gather(*replies)
        seconds.append(time.perf_counter() - started)
        for name in names:
            engine.leave(name)
    await engine.close()
    decode = max(seconds[2] - seconds[1], 1e-9) / (DECODED[1] - DECODED[0])
    return max(seconds[1] - DECODED[0] * decode, 0.0), decode


def _random_group(plan: CpuPlan, size: EpisodeSize) -> list[TrainingSample]:
    """Returns a group's samples: the same random prompt, and a random reply each."""
    rng, vocab, samples = np.random.default_rng(0), plan.shape.vocab, []
    prompt = rng.integers(0, vocab, size.prompt)
    for member in range(plan.config.ajet.rollout.num_repeat):
        ids = np.concatenate((prompt, rng.integers(0, vocab, size.reply)))
        mask = np.arange(len(ids)) >= len(prompt)
        logprobs = np.where(mask, -np.log(vocab), 0).astype(np.float32)
        advantages = np.where(mask, 1.0 - 2.0 * (member % 2), 0).astype(np.float32)
        sample = TrainingSample(str(member), "0", ids, mask, logprobs, advantages, (), 0, 0)
        samples.append(sample)
    return samples


def _update_seconds(
    model: Any, plan: CpuPlan, samples: list[TrainingSample]
) -> tuple[float, float]:
    """Returns the seconds of the passes over the samples, and of one optimizer step."""
    settings = replace(
        UpdateSettings.from_config(plan.config),
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


def try_rollout(config: AjetConfig, tasks: list[Task]) -> Trial:
    """Rolls out as many training tasks as the run has at a time, for `ajet plan --try`. Raises
    DataError if no episode can be trained."""
    config = with_render_dir(config, None)  # keeps no pictures of environments
    rollout = config.ajet.rollout
    at_once = min(rollout.max_env_worker, BatchPlan(config, 0, 0).episodes_per_step)
    some = tasks[: max(1, at_once // rollout.num_repeat)]
    # Errors of the workflow and the judge are raised before a model is loaded.
    played = [] if config.learns_from_rows(is_training=True) else tasks
    workflows, judge = assembly.load_workflows(config, played), make_judge(config)
    served = load_subject(config, Subject())

    async def play() -> tuple[list[Group], float]:
        gateway = assembly.make_gateway(config)
        try:
            runner = assembly.make_runner(
                config,
                served.engine,
                served.template,
                judge=judge,
                gateway=gateway,
                workflows=workflows,
            )
            # A process's first episodes import what their agent needs: they are not measured.
            await runner.rollout(RolloutRequest(some[-1:], 0, "train", rollout.num_repeat))
            started_s = time.perf_counter()
            groups = await runner.rollout(RolloutRequest(some, 1, "train", rollout.num_repeat))
            return groups, time.perf_counter() - started_s
        finally:
            gateway.close()
            await served.engine.close()

    groups, seconds = run_bounded(play())
    num_episodes = len(some) * rollout.num_repeat
    # A gradient for all sampled tokens; the advantages' values do not matter to a plan.
    samples = [
        [replace(s, advantages=s.loss_mask.astype(np.float32)) for s in to_samples([group])]
        for group in groups
    ]
    trained = [group for group in samples if group]
    if not trained:
        raise DataError(
            f"--try: none of {num_episodes} episodes can be trained; `ajet debug` shows one",
            code=Code.TOO_MANY_FAILURES,
        )
    is_given = config.learns_from_rows(is_training=True)
    return Trial(trained, num_episodes, None if is_given else seconds)
