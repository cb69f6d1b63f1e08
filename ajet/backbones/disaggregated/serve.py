"""Mode serve: serves the model of a run over HTTP, for clients of OpenAI's and Anthropic's APIs.

newest checkpoint ─> in-process engine <─ gateway on loopback <─ POST /v1/chat/completions, …
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections.abc import Mapping
from typing import Any

from loguru import logger

from ajet.backbones.evaluating import LoadedSubject, Subject, load_subject
from ajet.core.checkpoint.manifest import newest_checkpoint
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.net.address import fixed_port
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.text.redaction import PREFIX
from ajet.core.text.terminal import Console
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.workflow.gateway.gateway import NO_HEADERS, Gateway
from ajet.core.workflow.gateway.keys import Grant
from ajet.engines.in_process import InProcessEngine
from ajet.tool_parsers import parser_for

KEY_VARIABLE = "AJET_SERVE_API_KEY"
POLL_S = 0.2


class OpenGateway(Gateway):
    """The gateway that agents use in an episode, with one key for all clients. Each request counts
    as a separate episode, is not recorded, and may set its sampling parameters."""

    def __init__(self, config: AjetConfig, served: LoadedSubject, key: str) -> None:
        port = config.ajet.interchange_server.interchange_server_port
        super().__init__(fixed_port(port))
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

    def grant(self, key: str, headers: Mapping[str, str] = NO_HEADERS) -> Grant:
        """Returns a new grant for the key; another key gets a 401."""
        if not secrets.compare_digest(key.encode(), self._key.encode()):
            return super().grant(key)  # refuses it, since no other key was granted
        number = next(self._numbers)
        recorder = EpisodeRecorder(
            endpoint=self._engine,
            template=self._template,
            parser=self._parser,
            limits=self._limits,
            sampling=self._sampling,
            episode_id=f"serve-{number:08d}",
            seed_path=(self._seed, "serve", number),
            trainable_targets=[],  # nothing is trained, so the client's own sampling is used
        )
        recorder.loop = self.loop  # requests are parsed on the server's event loop
        return Grant(recorder, stored_conversations=self._stored)


def serve_model(config: AjetConfig, interrupt: Interrupt, console: Console) -> None:
    """Serves the newest checkpoint until Ctrl-C."""
    checkpoint = newest_checkpoint(RunFolder(config.run_folder).checkpoints)
    if checkpoint is None:
        logger.warning(f"no checkpoint in {config.run_folder}: the config's model is served")
    served = load_subject(config, Subject(checkpoint=checkpoint), deterministic=False)
    run_bounded(_serve(config, served, interrupt, console))


async def _serve(
    config: AjetConfig, served: LoadedSubject, interrupt: Interrupt, console: Console
) -> None:
    key = os.environ.get(KEY_VARIABLE) or PREFIX + secrets.token_hex(16)
    gateway = OpenGateway(config, served, key)
    try:
        key_text = f"the key of {KEY_VARIABLE}" if KEY_VARIABLE in os.environ else f"key {key}"
        text = f"{served.name} at {gateway.listen()}, {key_text}; Ctrl-C ends it"
        console.print(text, markup=False, soft_wrap=True, highlight=False)
        while not interrupt.requested:
            await asyncio.sleep(POLL_S)
    finally:
        gateway.close()
        await served.engine.close()
