"""An engine's process starts a server of its own, speaks to it, and takes it along when it ends.

The server is the stand-in for SGLang, started as a user's would be. No Ray runs here: an
`EngineProcess` is a plain object, and `InThisProcess` stands for the actor around it.
"""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ajet.cluster.actors import ImportEnv
from ajet.cluster.engine_process import EngineProcess
from ajet.core.config import load_config
from ajet.core.errors import ConfigError, ModelError
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.routed_endpoint import RoutedEndpoint
from ajet.core.inference.router import Router, RouterSettings
from ajet.core.model.tokenizer import EMBEDDED_DIR
from ajet.core.weight_sync.folder import WeightFolder
from ajet.engines.in_process_replica import InProcessReplica
from ajet.servers.serving import ServerSpec
from tests.processes import in_group, until_gone
from tests.sglang_server import sglang_python

MODEL = EMBEDDED_DIR / "math"
PROMPT = [1, 2, 3, 50, 9, 9, 4]
SHORT = SamplingParams(max_tokens=12, seed=3)
LONG = SamplingParams(max_tokens=400, seed=1)
CONFIG = """
ajet:
  experiment_name: served
  model: {path: "embedded:math", device: cpu}
  rollout: {user_workflow: w.py->W, name: sglang, max_model_len: 512}
"""


class InThisProcess:
    """An `EngineProcess` as the `Replica` that its actor makes of it."""

    version = None  # as of an actor: nobody here knows

    def __init__(self, name, engine):
        self.name, self.engine = name, engine

    def __getattr__(self, method):
        return getattr(self.engine._replica, method)

    async def generate(self, prompt_ids, sampling, request_id):
        return await self.engine._replica.generate(prompt_ids, sampling, request_id)

    def abort(self, request_id):
        asyncio.get_running_loop().create_task(self.engine.abort(request_id))

    def leave(self, episode_id): ...


@dataclass
class Project:
    """A run's config, its weights, and the servers that were started for it."""

    config: Any
    models: list
    folder: WeightFolder
    path: Path
    version: int = 0

    def write(self, which):
        """The next version: the weights of one of the models."""
        source = self.folder.write(self.version, self.models[which].named_parameters())
        self.version += 1
        return source

    async def engine(self, name, weights, ends=()):
        engine = EngineProcess(ImportEnv.current())
        start = ServerSpec("sglang", False, weights, ends)
        await engine.start(self.config, name, start)
        return InThisProcess(name, engine)

    def group_of(self, name):
        """The process group of an engine's server, whose leader is its guard."""
        return int((self.path / f"logs/{name.replace(' ', '_')}.pid").read_text())

    def sampled_by(self, which, reply):
        """Whether the log-probabilities are those of this model."""
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        with torch.no_grad():
            logits = self.models[which](ids).logits[0, len(reply.prompt_ids) - 1 : -1]
        drawn = torch.tensor(reply.token_ids)[:, None]
        found = logits.log_softmax(-1).gather(1, drawn)[:, 0]
        return bool((found - torch.tensor(reply.logprobs)).abs().max() < 1e-4)


@pytest.fixture(scope="module")
def models():
    first = AutoModelForCausalLM.from_pretrained(MODEL)
    torch.manual_seed(1)
    return [first.eval(), AutoModelForCausalLM.from_config(first.config).eval()]


@pytest.fixture
def project(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "uvicorn.py").write_text("a file of the user's, of a name that the server has")
    python = f"ajet.rollout.server.python={sglang_python(tmp_path)}"
    config = load_config("run.yaml", [python], backbone="verl")
    folder = WeightFolder(tmp_path / "weights", extra_files=[MODEL / "config.json"], keep=1)
    return Project(config, models, folder, tmp_path / config.run_folder)


async def test_an_engines_process_says_what_its_machine_lacks_before_it_is_given_weights(project):
    engine = EngineProcess(ImportEnv.current())
    await engine.check(project.config, "sglang", False)
    lacks = load_config("run.yaml", [], backbone="verl")
    with pytest.raises(
        ConfigError, match=r"ajet\.rollout\.name=sglang: there is no sglang for the"
    ):
        await engine.check(lacks, "sglang", False)


async def test_an_engine_serves_the_published_weights_through_its_server(project):
    free = await InProcessReplica("free", project.models[0], stop_token_ids=()).generate(
        PROMPT, SHORT, "e/0000"
    )
    end, stop = free.token_ids[5], free.token_ids[1]
    assert free.token_ids.index(end) > free.token_ids.index(stop) == 1
    engine = await project.engine("engine 0", project.write(0), ends=(end,))
    group = project.group_of("engine 0")
    try:
        reply = await engine.generate(PROMPT, SHORT, "e/0000")  # the model's own end
        assert reply.token_ids == free.token_ids[: free.token_ids.index(end) + 1]
        assert reply.finish_reason == "stop"
        assert project.sampled_by(0, reply) and reply.policy_version == 0
        reply = await engine.generate(PROMPT, replace(SHORT, stop_token_ids=(stop,)), "e/0001")
        assert reply.token_ids == free.token_ids[:2] and reply.finish_reason == "stop"

        running = asyncio.create_task(engine.generate(PROMPT, LONG, "a/0000"))
        while not running.done():  # before the server has the request, an abort is of none
            await asyncio.sleep(0.1)
            engine.abort("a/0000")
        reply = await running
        assert reply.finish_reason == "abort" and 0 < len(reply.token_ids) < 400

        await engine.pause()
        await engine.sleep()  # its weights are gone, as those of a GPU are
        await engine.wake()
        source = project.write(1)
        report = await engine.load_weights(source, source.version)
        assert report.checksum == source.manifest().checksum
        await engine.resume()
        reply = await engine.generate(PROMPT, SHORT, "e/0002")
        assert project.sampled_by(1, reply) and reply.policy_version == 1
        assert "/release_memory_occupation" in (project.path / "logs/engine_0.log").read_text()
    finally:
        await engine.close()
    assert not until_gone(in_group(group))


async def test_a_server_that_never_gets_healthy_is_one_line_with_its_log(project):
    deaf = project.path.parent / "deaf"
    deaf.parent.mkdir(exist_ok=True)
    deaf.write_text("#!/bin/sh\necho loading\nexec sleep 600\n")
    deaf.chmod(0o755)
    asked = [f"ajet.rollout.server.python={deaf}", "ajet.rollout.server.start_timeout_s=1"]
    project.config = load_config("run.yaml", asked, backbone="verl")
    started = time.monotonic()
    with pytest.raises(ModelError) as said:
        await project.engine("engine 3", project.write(0))
    log = project.path / "logs" / "engine_3.log"
    line = f"inference server engine 3 was not healthy after 1 s: loading (all of it in {log})"
    # With room for a busy machine: a server may take 15 minutes by default.
    assert str(said.value) == line and time.monotonic() - started < 120
    assert not (project.path / "logs" / "engine_3.pid").exists()


async def test_a_server_that_is_killed_is_replaced_and_its_requests_go_on(project):
    """With the newest weights, though those that it began with are removed."""
    source = project.write(0)
    names = ["engine 0", "engine 1"]
    engines = await asyncio.gather(*(project.engine(name, source) for name in names))
    spawned = []

    async def spawn(name):
        await dead[name].close()
        spawned.append(name)
        return await project.engine(name, latest)

    dead = dict(zip(names, engines, strict=True))
    settings = RouterSettings(health_interval_s=0.1, max_failed_checks=2)
    router = Router(engines, settings, spawn=spawn)
    endpoint = RoutedEndpoint(router)
    latest = project.write(1)
    await router.load_weights(latest, 1)
    try:
        asked = [endpoint.generate(PROMPT, LONG, f"e{number}/0000") for number in range(8)]
        replies = asyncio.gather(*asked)
        await asyncio.sleep(0.2)
        os.killpg(project.group_of("engine 0"), signal.SIGKILL)
        for reply in await replies:
            assert reply.policy_version == 1 and project.sampled_by(1, reply)
        assert endpoint.stats.num_retries >= 1
        while len(router.names) < 2:
            await asyncio.sleep(0.05)
        assert spawned == ["engine 0"] and router.stats.num_replaced == 1
        again = [endpoint.generate(PROMPT, SHORT, f"f{number}/0000") for number in range(8)]
        assert all(project.sampled_by(1, reply) for reply in await asyncio.gather(*again))
    finally:
        await router.close()


def test_a_server_is_gone_when_the_process_of_its_engine_is_killed(project):
    project.write(0)
    code = textwrap.dedent(f"""
        import asyncio, time
        from pathlib import Path
        from tests.cluster.test_engine_servers import *
        config = load_config(
            "run.yaml", ["ajet.rollout.server.python={sglang_python(Path.cwd())}"], backbone="verl"
        )
        weights = FolderSource(Path({str(project.folder.root / "v00000000")!r}), 0)
        start = ServerSpec("sglang", False, weights, ())
        engine = EngineProcess(ImportEnv.current())
        asyncio.run(engine.start(config, "engine 0", start))
        print("up", flush=True)
        time.sleep(600)
    """).replace("import *", "import *\nfrom ajet.core.weight_sync.folder import FolderSource", 1)
    root = str(Path(__file__).parents[2])
    env = os.environ | {"PYTHONPATH": root, "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    group = project.group_of("engine 0")
    assert in_group(group)
    process.kill()
    process.wait()
    assert not until_gone(in_group(group))
