"""The processes of one sitting: workers that play, engines that answer, ranks that learn.

    crew.start()         imports the user's code, loads models and the checkpoint to go on from;
                         inference servers begin with what the trainer publishes then
    crew.admit(books)    tells workers when the run began and whom to ask
    crew.runner          plays groups; what an earlier sitting finished is not played again
    crew.save            a checkpoint
    crew.close()

Not covered: what they are told to do (the backbones' loops), what is done when one is lost
(sittings.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from loguru import logger

from ajet.cluster.engine_replica import Engines, RouterEndpoint
from ajet.cluster.placement import Placement
from ajet.cluster.rollout_worker import Words
from ajet.cluster.rollout_workers import RolloutWorkers
from ajet.cluster.sittings import ProcessOptions
from ajet.cluster.trainer_group import TrainedModel, TrainerGroup
from ajet.cluster.weights_place import sync_method, weights_place
from ajet.core import assembly
from ajet.core.buffer.journal import Journal, KeptEpisodes
from ajet.core.config import AjetConfig
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.serving import ServerName, ServerStart, engine_name
from ajet.core.record.books import Books, Start, find_start
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.plans import step_of_group
from ajet.core.weight_sync.folder import FolderSource


class Crew:
    """Made at once, gone with `close`."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        placement: Placement,
        options: ProcessOptions,
    ) -> None:
        self._config, self._folder = config, folder
        self._journal: Journal | None = None
        method, notice = sync_method(config, placement)
        root = None
        if method != "nccl":
            root = weights_place(folder.path, in_memory=method == "memory", notice=notice)
        self.workers = RolloutWorkers(config, [options(each) for each in placement.workers])
        self.trainer = TrainerGroup(config, [options(each) for each in placement.trainer], root)
        self.engines = Engines(config, [options(each) for each in placement.engines])
        self._on_gpu = placement.on_gpus

    async def start(self) -> Start | None:
        """The user's code first: a mistake in it is found before a model is loaded. What the run
        goes on from, if it does: the ranks have it."""
        await self.workers.check()
        engine = engine_name(self._config, on_gpu=self._on_gpu)
        if engine == "in_process":
            self._model, _ = await asyncio.gather(self.trainer.start(), self.engines.start())
        else:
            self._model = await self.trainer.start()
        start = find_start(self._folder, self._config.ajet.trainer_common.resume)
        if start is not None:
            await self.trainer.load(start.path)
        if engine != "in_process":
            await self._start_servers(engine, 0 if start is None else start.step)
        return start

    async def _start_servers(self, engine: ServerName, version: int) -> None:
        weights = await self.trainer.publish(version)
        assert isinstance(weights, FolderSource)  # sync_method gives servers files
        ends = self._model.end_token_ids
        await self.engines.start(ServerStart(engine, self._on_gpu, weights, ends))

    async def admit(self, books: Books) -> None:
        """The books keep what the agents' words are made of, and the workers get it."""
        words = keep_words(self._model, books)
        await self.workers.start(partial(RouterEndpoint, self.engines.router), words)
        self._journal = assembly.open_journal(self._config, self._folder.finished_db)
        if num := self._journal.reopen({"": books.state.step}):
            logger.info(f"{num} episodes that an earlier sitting finished are not played again")
        self.runner = KeptEpisodes(self.workers, self._journal)

    async def save(
        self, step: int, run: dict[str, Any], is_open: Callable[[str], bool] | None = None
    ) -> None:
        """A checkpoint, with the run's own state. `is_open` are groups that it does not hold and
        that were begun: those of later steps, if nothing else is said."""
        await self.trainer.save(self._folder.checkpoints, step, run)
        if self._journal is not None:
            self._journal.keep_only(is_open or (lambda group_id: step_of_group(group_id) > step))

    def close(self) -> None:
        """End all processes."""
        if self._journal is not None:
            self._journal.close()
        self.workers.close()
        self.engines.close()
        self.trainer.close()


def keep_words(model: TrainedModel, books: Books) -> Words:
    """The books keep what words are made of."""
    books.keep_inputs(model.tokenizer, ChatTemplate(model.tokenizer, model.end_token_ids))
    begun = datetime.fromisoformat(books.state.begun)
    return Words(model.tokenizer, model.end_token_ids, begun)
