"""Mode serve: the model of a run over HTTP, as OpenAI's and Anthropic's clients ask for it.

    newest checkpoint ─> in-process engine <─ gateway on loopback <─ POST /v1/chat/completions, …

The gateway is the one that agents get in an episode, with a key that is good until the end: every
request is an episode of its own, is not recorded, and may set its own sampling. Without a
checkpoint it is the config's model. Not covered: other hosts, other engines, weights that come
later.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from typing import Any

from loguru import logger
from rich.console import Console

from ajet.backbones.evaluating import Served, Subject, serve
from ajet.core.bounded_loop import run_bounded
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.engines.in_process import InProcessEngine
from ajet.core.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from ajet.core.redaction import PREFIX
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.update.checkpoint import newest_checkpoint
from ajet.core.workflow.gateway.gateway import Gateway
from ajet.core.workflow.gateway.keys import Grant
from ajet.tool_parsers import parser_for

KEY_VARIABLE = "AJET_SERVE_API_KEY"
POLL_S = 0.2


class OpenGateway(Gateway):
    """One key, and a recorder for each request."""

    def __init__(self, config: AjetConfig, served: Served, key: str) -> None:
        port = config.ajet.interchange_server.interchange_server_port
        super().__init__(None if port == "auto" else port)
        assert isinstance(served.engine, InProcessEngine) and served.template is not None
        self._engine, self._template = served.engine, served.template
        self._parser = parser_for(served.template, config.ajet.rollout.tool_parser)
        self._limits = RolloutLimits.from_config(config)
        self._sampling = SamplingParams.from_config(config, "eval")
        self._seed = config.ajet.seed
        self._key = key
        self._numbers = itertools.count()
        self._stored: dict[str, list[dict[str, Any]]] = {}
        self.loop = asyncio.get_running_loop()

    def grant(self, key: str) -> Grant:
        """A fresh one; 401 for another key."""
        if not secrets.compare_digest(key.encode(), self._key.encode()):
            return super().grant(key)  # refuses it: no other was given out
        number = next(self._numbers)
        recorder = EpisodeRecorder(
            endpoint=self._engine,
            template=self._template,
            parser=self._parser,
            limits=self._limits,
            sampling=self._sampling,
            episode_id=f"serve-{number:08d}",
            seed_path=(self._seed, "serve", number),
            trainable_targets=[],  # so that a client's own sampling is taken
        )
        recorder.loop = self.loop  # requests are parsed on the server's
        return Grant(recorder, stored_conversations=self._stored)


def serve_model(config: AjetConfig, interrupt: Interrupt, console: Console) -> None:
    """Until Ctrl-C."""
    checkpoint = newest_checkpoint(RunFolder(config.run_folder).checkpoints)
    if checkpoint is None:
        logger.warning(f"no checkpoint in {config.run_folder}: the config's own model is served")
    served = serve(config, Subject(checkpoint=checkpoint), deterministic=False)
    run_bounded(_serve(config, served, interrupt, console))


async def _serve(
    config: AjetConfig, served: Served, interrupt: Interrupt, console: Console
) -> None:
    key = os.environ.get(KEY_VARIABLE) or PREFIX + secrets.token_hex(16)
    gateway = OpenGateway(config, served, key)
    try:
        shown = f"the key of {KEY_VARIABLE}" if KEY_VARIABLE in os.environ else f"key {key}"
        text = f"{served.name} at {gateway.listen()}, {shown}; Ctrl-C ends it"
        console.print(text, markup=False, soft_wrap=True, highlight=False)
        while not interrupt.requested:
            await asyncio.sleep(POLL_S)
    finally:
        gateway.close()
        await served.engine.close()
