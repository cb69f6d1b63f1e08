"""The processes of one attempt of a run: workers run episodes, engines sample, ranks train."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from loguru import logger

from ajet import assembly
from ajet.cluster.engines import Engines
from ajet.cluster.placement import Placement
from ajet.cluster.rollout_worker import TokenizerSpec
from ajet.cluster.rollout_workers import RolloutWorkers
from ajet.cluster.run_attempts import ProcessOptions
from ajet.cluster.shared_images import SharedImages
from ajet.cluster.trainer_group import ModelInfo, TrainerGroup
from ajet.cluster.weight_store import (
    WAYS,
    make_weight_store,
    ranks_beside,
    remove_weight_store,
    shares_run_folder,
    start_in_memory,
    sync_method,
)
from ajet.core.buffer.journal import Journal
from ajet.core.config import AjetConfig
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import ModelEndpoint
from ajet.core.judge import make_judge
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.request import step_of_group
from ajet.core.run.run_state import ResumePoint, find_resume_point
from ajet.core.run.training_run import TrainingRun
from ajet.serve.exchange.gateway import ExchangeGateway
from ajet.servers.serving import EngineName, ServerSpec, engine_name


class DriverRollout:
    """A stand-in for `RolloutWorkers` that runs clients' episodes in the driver.

        client ──HTTP──> gateway, exchange ─┐
                                            ├─ the driver ──assign──> router
        GroupRunner ──plans──> episodes ────┘       └──prompt, reply──> engines

    Such an episode only waits for its client, so one process holds a thousand of them. The exchange
    and the gateway listen on one port, for all attempts of the run."""

    def __init__(self, config: AjetConfig, gateway: ExchangeGateway) -> None:
        self._config, self._gateway = config, gateway
        self._judge = make_judge(config)

    async def check(self) -> None:
        """Does nothing: the driver has imported the user's code."""

    async def start(
        self, make_endpoint: Callable[[], ModelEndpoint], spec: TokenizerSpec
    ) -> GroupRunner:
        """Tells the exchange that an attempt begins; returns a runner of groups."""
        self._gateway.exchange.begin_attempt()
        return assembly.make_runner(
            self._config,
            make_endpoint(),
            spec.template(),
            judge=self._judge,
            gateway=self._gateway,
            workflows=self._gateway.workflows,
        )

    def close(self) -> None:
        """Does nothing: the command that made the gateway closes it, after the last attempt."""


class RunProcesses:
    """The processes, from the constructor to `close`. With `gateway`, clients run the episodes and
    there are no workers."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        placement: Placement,
        options: ProcessOptions,
        gateway: ExchangeGateway | None = None,
    ) -> None:
        self._config, self._folder, self._gateway = config, folder, gateway
        self._journal: Journal | None = None
        self.images = SharedImages.of(config, len(placement.nodes))
        self._on_gpu, self._has_engines = placement.on_gpus, bool(placement.engines)
        self._engine: EngineName = "in_process"
        if self._has_engines:
            self._engine = engine_name(config, on_gpu=self._on_gpu)
        method, notice = sync_method(config, placement)
        self._weights_root = width = None
        is_server = self._engine != "in_process"
        uses_files = method in ("memory", "checkpoint")
        if self._has_engines and (uses_files or is_server):
            in_memory = method == "memory" or (not uses_files and start_in_memory(placement))
            self._weights_root = make_weight_store(folder.path, in_memory=in_memory, notice=notice)
        if self._has_engines and method == "nccl":
            # Each worker of a vLLM server receives; elsewhere one process does for the server, also
            # where several adapters are loaded from files.
            by_workers = self._engine == "vllm" and not config.has_several_adapters
            width = config.ajet.rollout.tensor_model_parallel_size if by_workers else 1
        if self._has_engines:
            logger.info(f"weights travel {WAYS[method]}")
        engine_options = [options(process) for process in placement.engines]
        self.engines = Engines(config, engine_options, self.images)
        self.workers = make_workers(config, placement, options, self.engines, gateway)
        ranks = [options(process) for process in placement.trainer]
        self.trainer = TrainerGroup(
            config,
            ranks,
            self._weights_root,
            broadcast_width=width,
            ranks_of=ranks_beside(placement) if method == "ipc" else None,
            threads=[placement.threads_of(rank) for rank in placement.trainer],
            has_engines=self._has_engines,
            sends_adapters=self._sends_adapters(),
            shares_folder=shares_run_folder(placement),
            to_servers=is_server,
            images=self.images,
        )

    def _sends_adapters(self) -> bool:
        """Returns whether to try sending the run's only adapter instead of all weights."""
        if not self._has_engines or not self._config.ajet.trainer_common.lora.rank:
            return False
        if self._config.has_several_adapters:  # then nothing else is sent anyway
            return False
        if self._engine == "sglang":
            logger.info("LoRA: an SGLang server gets all weights, with the adapters added")
        return self._engine != "sglang"

    async def start(self) -> ResumePoint | None:
        """Starts the processes. Returns the checkpoint to resume from, which the ranks have
        loaded."""
        await self.workers.check()  # mistakes in the user's code come before models are loaded
        if self._engine == "in_process":
            self._model, _ = await asyncio.gather(self.trainer.start(), self.engines.start())
        else:
            await self.engines.check(self._engine, self._on_gpu)
            self._model = await self.trainer.start()
        point = find_resume_point(self._folder, self._config.ajet.trainer_common.resume)
        if point is not None:
            await self.trainer.load(point.path)
        if self._engine != "in_process":
            weights = await self.trainer.write_model(0 if point is None else point.step)
            ends = self._model.end_token_ids
            await self.engines.start(ServerSpec(self._engine, self._on_gpu, weights, ends))
        return point

    async def begin(self, run: TrainingRun) -> None:
        """Records the run's inputs, starts the workers and opens the journal of episodes."""
        spec = save_inputs(self._model, run, self.images)
        self.validator = await self.workers.start(self.engines.endpoint_factory(), spec)
        files = assembly.user_files(self._config, run.tasks.workflows)
        journal = self._journal = Journal.resumed(
            self._folder.finished_db, self._config, files, run.state.step
        )
        if self._gateway is None:
            self.runner = self.validator.with_journal(journal)
        else:
            self.runner = self._gateway.acknowledging(self.validator, journal)
            self.validator = self._gateway.acknowledging(self.validator, None)

    async def validate_if_due(self, run: TrainingRun) -> None:
        # A cached prefix rounds differently from a computed one, and a run must sample the same
        # with and without validation, so what validation cached is dropped.
        if await run.validate_if_due(self.validator, self.trainer.cross_entropy):
            await self.engines.empty_caches()

    async def save(
        self,
        step: int,
        run: dict[str, Any],
        copies: bool,
        is_open: Callable[[str], bool] | None = None,
    ) -> Awaitable[object]:
        """Takes what a checkpoint holds, with `run`, the run's state; returns its writing. With
        `copies` ranks may train during the write. `is_open` says of a group's id whether the group
        has begun and is not in the checkpoint; by default, whether its step is later."""
        writing = await self.trainer.save(self._folder.checkpoints, step, run, copies)
        is_open = is_open or (lambda group_id: step_of_group(group_id) > step)
        return self._complete(
            writing, self._journal.groups_except(is_open) if self._journal else []
        )

    async def _complete(self, writing: Awaitable[object], saved_groups: list[str]) -> None:
        await writing
        if self._journal is not None:
            self._journal.remove(saved_groups)

    def close(self) -> None:
        """Ends all processes and removes the weights that they exchanged."""
        if self._journal is not None:
            self._journal.close()
        self.workers.close()
        self.engines.close()
        self.trainer.close()
        if self._weights_root is not None:
            remove_weight_store(self._weights_root)


def save_inputs(model: ModelInfo, run: TrainingRun, images: SharedImages | None) -> TokenizerSpec:
    """Records the run's inputs; returns what other processes need for a chat template."""
    template = ChatTemplate(model.tokenizer, model.end_token_ids)
    origin = RunOrigin.from_config(run.config, template.stop_token_ids, run.state.begun)
    files = assembly.user_files(run.config, run.tasks.workflows)
    run.recorder.save_inputs(model.tokenizer, origin, files)
    begun = datetime.fromisoformat(run.state.begun)
    if images is not None:
        assembly.save_processor_of(run.config, RunFolder(run.config.run_folder).tokenizer)
    return TokenizerSpec(model.tokenizer, model.end_token_ids, begun, images)


def make_workers(
    config: AjetConfig,
    placement: Placement,
    options: ProcessOptions,
    engines: Engines,
    gateway: ExchangeGateway | None,
) -> RolloutWorkers | DriverRollout:
    """Makes what runs the episodes: worker processes, or, with `gateway`, the clients' driver."""
    if gateway is not None:
        return DriverRollout(config, gateway)
    return RolloutWorkers(
        config, [options(process) for process in placement.workers], on_lost=engines.drop_requests
    )
