"""The trainer ranks: N actors, each with a `Learner`, which all get all groups of a step.

groups ── put once into Ray's store ──> rank 0   rank 1   …   score, estimate, update together
rank 0 ──> the record: advantages, samples, metrics; weights; checkpoints
       ──> the progress of the update, on request (in a separate thread)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from loguru import logger
from ray.exceptions import RayActorError

from ajet.cluster.actors import ImportEnv, result_of, results_of
from ajet.cluster.nodes import Listener, use_interface_of
from ajet.cluster.shared_images import SharedImages
from ajet.core.config import AjetConfig
from ajet.core.task.workflow_task import WorkflowOutput
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.core.weight_sync.manifest import WeightsError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from ajet.core.trajectory.sample import TrainingSample
    from ajet.core.trajectory.samples import TokenAdvantages
    from ajet.core.trajectory.trained_tokens import TrainedTokens
    from ajet.core.weight_sync.adapters import Adapters
    from ajet.core.weight_sync.broadcast import BroadcastReceiver, HandoverReceiver
    from ajet.core.weight_sync.folder import FolderSource

ActorOptions = dict[str, Any]
ADAPTERS = "adapters"
"""The subfolder for adapters that are sent without the base weights."""
PROGRESS_INTERVAL_S = 0.5
PROGRESS_GROUP = "progress"
CHECKPOINT_GROUP = "checkpoint"
"""The concurrency groups, and so the threads, that work while a rank trains."""


@dataclass(frozen=True, slots=True)
class RankUpdate:
    """The `UpdateRecord` of an update, as rank 0 sends it to the driver."""

    advantages: TokenAdvantages
    samples: Sequence[TrainingSample]
    tokens: TrainedTokens


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The parts of the model that the driver needs; it does not load the model itself."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    end_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Publishing:
    """How new weights come to the engines: written below `root`, broadcast to receivers of `width`,
    or handed over to engines on each rank's device. `to_servers`: the engines are servers."""

    root: Path | None
    width: int | None = None
    hands_over: bool = False
    to_servers: bool = False


class TrainerRank:
    """The actor's class: one trainer rank."""

    def __init__(
        self, rank: int, size: int, import_env: ImportEnv, threads: int | None = None
    ) -> None:
        self._rank, self._size, self._threads = rank, size, threads
        self._step, self._done = 0, 0.0
        self._import_env = import_env

    def address(self) -> tuple[str, int]:
        """Returns this node's address and a free port of it."""
        with closing(Listener(ray.util.get_node_ip_address())) as listener:
            self._address = listener.address
        return self._address

    def start(
        self,
        config: AjetConfig,
        host: str,
        port: int,
        publishing: Publishing,
        shares_folder: bool,
        images: SharedImages | None,
    ) -> tuple[ModelInfo, int, int]:
        """Loads the model; returns its `ModelInfo`, the process's id and its CPU threads.
        `shares_folder`: all ranks see the run folder."""
        self._import_env.enter()
        import torch

        from ajet import assembly
        from ajet.core.learning.checkpoints import LearnerCheckpoints
        from ajet.core.model.load import resolve_device
        from ajet.core.model.save import model_files
        from ajet.core.ranks.ranks import join_ranks
        from ajet.core.weight_sync.broadcast import BroadcastSender
        from ajet.core.weight_sync.folder import WeightFolder

        use_interface_of(self._address[0])
        assembly.prepare_torch(config, self._threads)  # Ray sets OMP_NUM_THREADS=1
        ranks = join_ranks(config, self._rank, self._size, host=host, port=port)
        store = images and images.store()
        loaded = assembly.load_learning_model(config, ranks, images=store)
        template = assembly.make_template(loaded)
        self._folder = self._adapter_folder = self._sender = None
        sees = publishing.to_servers and loaded.vision is not None
        self._adapters: Adapters | None = None
        if self._rank == 0 and publishing.root is not None:
            # Before `make_learner` shards the model: its files are copied from it.
            files = model_files(loaded, is_whole=sees)
            self._folder = WeightFolder.for_model(publishing.root, files)
            self._adapter_folder = WeightFolder(publishing.root / ADAPTERS, keep=1)
        if self._rank == 0 and publishing.width is not None:
            backend = "nccl" if resolve_device(config.ajet.model.device).type == "cuda" else "gloo"
            self._sender = BroadcastSender(host, backend=backend, width=publishing.width)
        if publishing.hands_over:
            self._sender = BroadcastSender(self._address[0], backend="ipc")
        self._has_several = config.has_several_adapters
        self._learner = assembly.make_learner(config, loaded, ranks)
        self._learner.policy.sends_tower = sees
        keep = config.ajet.trainer_common.max_checkpoints_to_keep
        self._checkpoints = LearnerCheckpoints(
            self._learner, loaded, keep=keep, ranks=ranks, shares_folder=shares_folder
        )
        self._write_checkpoint: Callable[[], object] | None = None
        model = ModelInfo(loaded.name, loaded.tokenizer, template.stop_token_ids)
        return model, os.getpid(), torch.get_num_threads()

    def send_adapters_alone(self) -> str | None:
        """Sends engines only the adapters from now on; if that is impossible, returns the reason in
        one line, and they get all weights."""
        adapters = self._learner.policy.describe_adapters()
        if isinstance(adapters, str):
            return adapters
        self._adapters = adapters
        return None

    def load(self, checkpoint: Path) -> None:
        self._checkpoints.load(checkpoint)

    def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[RankUpdate, dict[str, float]] | None:
        """Trains one step; rank 0 returns its record and metrics."""
        self._step, self._done = step, 0.0
        if self._sender is not None and self._sender.backend == "ipc":
            self._sender.drop()  # the weights that engines were handed are about to change
        batch = self._learner.make_batch(groups)

        def set_progress(done: float) -> None:
            self._done = done

        metrics = self._learner.update(step, batch, on_progress=set_progress)
        if self._rank:
            return None
        return RankUpdate(batch.advantages, batch.samples, batch.tokens), metrics

    def cross_entropy(self, groups: Sequence[Group]) -> float:
        """Returns the mean cross-entropy of the groups' given tokens; the ranks share the work."""
        return self._learner.cross_entropy(groups)

    @ray.method(concurrency_group=PROGRESS_GROUP)
    def progress(self, step: int) -> float:
        """Returns the completed fraction of this step's update."""
        return self._done if self._step == step else 0.0

    def write_model(self, version: int) -> FolderSource | None:
        """Writes the model that servers start from: all weights, or the base if only adapters are
        sent. Rank 0 returns the folder."""
        weights = self._learner.policy.weights(is_base=not self._sends_all_weights)
        return self._folder.write(version, weights) if self._folder else _gather(weights)

    def write(self, version: int) -> FolderSource | None:
        """Writes the weights for the engines; rank 0 returns the folder."""
        if self._sends_all_weights:
            return self.write_model(version)
        weights = self._sent_adapters()
        if self._adapter_folder is None:
            return _gather(weights)
        return self._adapter_folder.write(version, weights, self._adapters)

    @property
    def _sends_all_weights(self) -> bool:
        return self._adapters is None and not self._has_several

    def _sent_adapters(self) -> Iterable[tuple[str, Tensor]]:
        """Returns the weights of the adapter or adapters that are sent without the base."""
        if self._has_several:
            return self._learner.weights()
        return self._learner.policy.adapter_weights()

    def snapshot(self, version: int) -> None:
        """Stores a copy of the weights to broadcast, on rank 0."""
        all_weights = self._sends_all_weights
        weights = self._learner.policy.weights() if all_weights else self._sent_adapters()
        if self._sender is None:
            return _gather(weights)
        return self._sender.snapshot(version, weights, self._adapters)

    def hold(self, version: int) -> None:
        """Keeps the weights, to hand them over, until the next step trains. Only adapters, which
        are small, are copied."""
        assert self._sender is not None
        policy = self._learner.policy
        # An engine on this GPU allocates its weights before the first one arrives.
        policy.release_memory()
        if self._sends_all_weights:
            self._sender.hold(version, policy.weight_shapes(), policy.weights)
        else:
            self._sender.snapshot(version, self._sent_adapters(), self._adapters)

    def receivers(self, version: int, number: int) -> list[BroadcastReceiver]:
        """Returns a receiver of the weights for each of `number` engines."""
        assert self._sender is not None
        return self._sender.receivers(version, number)

    def send(self) -> None:
        """Sends the weights. Errors are suppressed, since the receivers raise them too."""
        assert self._sender is not None
        with suppress(WeightsError):
            self._sender.send()

    def prepare_checkpoint(
        self, folder: Path, step: int, run: dict[str, Any], copies: bool
    ) -> None:
        self._write_checkpoint = self._checkpoints.prepare(folder, step, run, copies=copies)

    @ray.method(concurrency_group=CHECKPOINT_GROUP)
    def write_checkpoint(self) -> None:
        """Writes the prepared checkpoint, also while a step trains."""
        write, self._write_checkpoint = self._write_checkpoint, None
        assert write is not None
        write()


def _gather(weights: Iterable[object]) -> None:
    """Takes part in gathering each tensor, which is a collective, for rank 0 to send."""
    for _ in weights:
        pass


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Sends weights by broadcast: rank 0 sends its copy of this version to the engines."""

    rank: Any
    version: int

    async def make_sources(self, names: Sequence[str]) -> list[BroadcastReceiver]:
        call = self.rank.receivers.remote(self.version, len(names))
        receivers = await result_of(call, "trainer rank 0")
        self.rank.send.remote()
        return receivers


@dataclass(frozen=True, slots=True)
class Handover:
    """Hands weights over within a device: each rank to the engines on its device. `ranks_of` has
    the numbers of the ranks on the GPUs of each engine, by the engine's name."""

    ranks: tuple[Any, ...]
    ranks_of: Mapping[str, tuple[int, ...]]
    version: int

    async def make_sources(
        self, names: Sequence[str]
    ) -> list[BroadcastReceiver | HandoverReceiver]:
        from ajet.core.weight_sync.broadcast import HandoverReceiver

        ranks_of_engines = [self.ranks_of[name] for name in names]
        numbers = range(len(self.ranks))
        # A rank makes one receiver for each GPU of an engine that it serves, often none. All ranks
        # send all the same, since gathering a tensor is a collective.
        calls = [
            rank.receivers.remote(self.version, sum(r.count(number) for r in ranks_of_engines))
            for number, rank in enumerate(self.ranks)
        ]
        receivers = await results_of(calls, [f"trainer rank {number}" for number in numbers])
        for rank in self.ranks:
            rank.send.remote()
        receivers_of_engines = [
            [receivers[number].pop() for number in rank_numbers]
            for rank_numbers in ranks_of_engines
        ]
        return [
            engine_receivers[0]
            if len(engine_receivers) == 1
            else HandoverReceiver(
                tuple(replace(part, gpu=gpu) for gpu, part in enumerate(engine_receivers))
            )
            for engine_receivers in receivers_of_engines
        ]


@dataclass(frozen=True, slots=True)
class Unpublished:
    """The weights of a run without engines: nobody loads them."""

    version: int

    async def make_sources(self, names: Sequence[str]) -> list[BroadcastReceiver]:
        raise AssertionError("a run without engines sends no weights")


class TrainerGroup:
    """The driver's handle of the trainer ranks; `options` are the Ray options of each rank. If one
    is lost the group ends (`ProcessLost`), and the run resumes from its last checkpoint."""

    def __init__(
        self,
        config: AjetConfig,
        options: Sequence[ActorOptions],
        weights_root: Path | None,
        *,
        broadcast_width: int | None = None,
        ranks_of: Mapping[str, tuple[int, ...]] | None = None,
        threads: Sequence[int | None],
        has_engines: bool = True,
        sends_adapters: bool = False,
        shares_folder: bool = True,
        to_servers: bool = False,
        images: SharedImages | None = None,
    ) -> None:
        """Weights are broadcast to engines of `broadcast_width` workers, or handed over to engines
        on the ranks' devices (`ranks_of`, by the engine's name), or, if both are None, written
        below `weights_root`. `threads` are the CPU threads of each rank; None leaves torch's
        choice. With `sends_adapters` engines get only adapters, if possible. Unless all ranks see
        the run folder (`shares_folder`), rank 0 alone writes and reads checkpoints. `to_servers`
        says that the engines are servers; `images` are those that the model sees."""
        self._config, self._images = config, images
        self._publishing = Publishing(
            weights_root, broadcast_width, ranks_of is not None, to_servers
        )
        self._ranks_of, self._shares_folder = ranks_of, shares_folder
        self._has_engines, self._sends_adapters = has_engines, sends_adapters
        import_env = ImportEnv.current()
        untyped: Any = ray.remote
        remote = untyped(concurrency_groups={PROGRESS_GROUP: 1, CHECKPOINT_GROUP: 1})(TrainerRank)
        self.ranks: list[Any] = [
            remote.options(**{"num_cpus": 0} | rank_options).remote(
                rank, len(options), import_env, num_threads
            )
            for rank, (rank_options, num_threads) in enumerate(zip(options, threads, strict=True))
        ]
        self._names = [f"trainer rank {rank}" for rank in range(len(options))]
        self._published: FolderSource | None = None
        self.on_progress: Callable[[float], None] = lambda fraction: None

    async def start(self) -> ModelInfo:
        host, port = (await self._all("address"))[0]
        arguments = (self._publishing, self._shares_folder, self._images)
        started = await self._all("start", self._config, host, port, *arguments)
        self.pids = [pid for _, pid, _ in started]
        threads = ", ".join(str(num_threads) for _, _, num_threads in started)
        logger.info(f"CPU threads of the trainer ranks: {threads}")
        if self._sends_adapters:
            reason = (await self._all("send_adapters_alone"))[0]
            self._sends_adapters = reason is None
            content = "only adapters" if reason is None else f"all weights ({reason})"
            logger.info(f"LoRA: the engines get {content}")
        return started[0][0]

    async def load(self, checkpoint: Path) -> None:
        await self._all("load", checkpoint)

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[RankUpdate, dict[str, float]]:
        """Trains one step; returns its record and metrics."""
        shared = ray.put([_trainable(group) for group in groups])
        watch = asyncio.create_task(self._watch(step))
        try:
            return (await self._all("train", step, shared))[0]
        finally:
            watch.cancel()

    async def cross_entropy(self, groups: Sequence[Group]) -> float:
        """Returns the mean cross-entropy of the groups' given tokens."""
        shared = ray.put([_trainable(group) for group in groups])
        return (await self._all("cross_entropy", shared))[0]

    async def _watch(self, step: int) -> None:
        """Reports rank 0's progress until it is cancelled or the rank is lost (then `train` raises
        `ProcessLost`)."""
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            try:
                self.on_progress(await self.ranks[0].progress.remote(step))
            except RayActorError:
                return

    async def publish(self, version: int) -> FolderSource | Broadcast | Handover | Unpublished:
        if not self._has_engines:
            return Unpublished(version)
        if self._ranks_of is not None:
            await self._all("hold", version)
            return Handover(tuple(self.ranks), self._ranks_of, version)
        if self._publishing.width is None:
            return await self.write(version)
        await self._all("snapshot", version)
        return Broadcast(self.ranks[0], version)

    async def write(self, version: int) -> FolderSource:
        """Writes the weights below `weights_root`, unless this version is there already."""
        if self._published is None or self._published.version != version:
            self._published = (await self._all("write", version))[0]
        assert self._published is not None
        return self._published

    async def write_model(self, version: int) -> FolderSource:
        """Writes the model that servers start from, below `weights_root`."""
        source = (await self._all("write_model", version))[0]
        assert source is not None
        if not (self._sends_adapters or self._config.has_several_adapters):
            self._published = source
        return source

    async def check(self) -> None:
        await self._all("progress", 0)

    async def save(
        self, folder: Path, step: int, run: dict[str, Any], copies: bool
    ) -> Awaitable[object]:
        """Takes what a checkpoint holds, with `run`, the run's state; returns its writing. With
        `copies` ranks may train during the write."""
        await self._all("prepare_checkpoint", folder, step, run, copies)
        return self._all("write_checkpoint")

    def close(self) -> None:
        """Ends all ranks. Whoever made the folder of the weights removes it."""
        for rank in self.ranks:
            ray.kill(rank)

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        calls = [getattr(rank, method).remote(*arguments) for rank in self.ranks]
        return await results_of(calls, self._names)


def _trainable(group: Group) -> Group:
    """Returns a group's valid members without messages, tool results and outputs, which stay in the
    driver: the ranks need token ids, rewards and states."""
    return replace(group, task=None, trajectories=tuple(map(_without_content, group.valid)))


def _without_content(trajectory: Trajectory) -> Trajectory:
    task = trajectory.workflow_task.task
    tag = {key: task.metadata[key] for key in ("tag",) if key in task.metadata}
    bare = replace(task, main_query="", init_messages=[], metadata=tag)
    rewards = trajectory.agent_rewards
    return replace(
        trajectory,
        workflow_task=replace(trajectory.workflow_task, task=bare),
        turns=tuple(map(_without_text, trajectory.turns)),
        output=WorkflowOutput(agent_rewards=rewards) if rewards else None,
        earlier_attempts=(),
    )


def _without_text(turn: Turn) -> Turn:
    notes = TurnNotes(
        is_given=turn.is_given, adapter=turn.adapter, hinted_prompt=turn.notes.hinted_prompt
    )
    return replace(turn, messages=[], tools=None, reply={}, notes=notes)
