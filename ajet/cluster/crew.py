"""The processes of one sitting: workers that play, engines that answer, ranks that learn.

    crew.start()         imports the user's code, loads models and the checkpoint to go on from
    crew.admit(books)    tells workers when the run began and whom to ask
    crew.close()

Not covered: what they are told to do (the backbones' loops), what is done when one is lost
(sittings.py).
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial

from ajet.cluster.engine_replica import Engines, RouterEndpoint
from ajet.cluster.placement import Placement
from ajet.cluster.rollout_worker import Words
from ajet.cluster.rollout_workers import RolloutWorkers
from ajet.cluster.sittings import ProcessOptions
from ajet.cluster.trainer_group import TrainedModel, TrainerGroup
from ajet.cluster.weights_place import sync_method, weights_place
from ajet.core.config import AjetConfig
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.record.books import Books, Start, find_start
from ajet.core.record.run_folder import RunFolder


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
        method, notice = sync_method(config, placement)
        root = None
        if method != "nccl":
            root = weights_place(folder.path, in_memory=method == "memory", notice=notice)
        self.workers = RolloutWorkers(config, [options(each) for each in placement.workers])
        self.trainer = TrainerGroup(config, [options(each) for each in placement.trainer], root)
        self.engines = Engines(config, [options(each) for each in placement.engines])

    async def start(self) -> Start | None:
        """The user's code first: a mistake in it is found before a model is loaded. What the run
        goes on from, if it does: the ranks have it."""
        await self.workers.check()
        self._model, _ = await asyncio.gather(self.trainer.start(), self.engines.start())
        start = find_start(self._folder, self._config.ajet.trainer_common.resume)
        if start is not None:
            await self.trainer.load(start.path)
        return start

    async def admit(self, books: Books) -> None:
        """The books keep what the agents' words are made of, and the workers get it."""
        words = keep_words(self._model, books)
        await self.workers.start(partial(RouterEndpoint, self.engines.router), words)

    def close(self) -> None:
        """End all processes."""
        self.workers.close()
        self.engines.close()
        self.trainer.close()


def keep_words(model: TrainedModel, books: Books) -> Words:
    """The books keep what words are made of."""
    books.keep_inputs(model.tokenizer, ChatTemplate(model.tokenizer, model.end_token_ids))
    begun = datetime.fromisoformat(books.state.begun)
    return Words(model.tokenizer, model.end_token_ids, begun)
