"""Clients of `ajet serve` on Ray: a hundred of a whole run, and a thousand of its rollout.

    python -m benchmarks.client_episodes_on_ray [--backbone verl trinity] [--scripted 1000]

The clients are those of client_episodes.py: each begins an episode, waits until all have one, calls
the model five times and ends it. Two kinds of arms:

run        the command `ajet serve --backbone B --with-ray` with the model embedded:math on the CPU,
           one step of 13 groups of 8. A call's time is the whole, the model's included, and the
           first begin waits for Ray and the engines. What is in the run folder's episodes.sqlite is
           counted.
scripted   the driver's part of such a run (exchange, gateway, rollout, journal) in this process,
           over a router and two engines in processes of a Ray. The engines think for 0.4 to 0.6 s
           and answer with the time that it really took, which is subtracted. CPU seconds are the
           driver's. Both backbones run episodes like this.

Goal: every client has its episode at the same time, and none fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import ray

from ajet.cluster.actors import MAX_CALLS, ImportEnv
from ajet.cluster.engine_process import EngineProcess
from ajet.cluster.engines import RouterProcess, routed_endpoint
from ajet.cluster.rollout_worker import TokenizerSpec
from ajet.cluster.run_processes import DriverRollout
from ajet.cluster.session import start_ray
from ajet.core.config import AjetConfig, load_config
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.model.load import EMBEDDED_DIR
from ajet.core.process.descriptors import raise_descriptor_limit
from ajet.serve.exchange.setup import make_exchange_gateway
from benchmarks.client_episodes import CALLS, GROUP, KEY, clients, has_passed, measure_runner
from benchmarks.gateway_latency import ThinkingEndpoint
from benchmarks.report import ROOT, options, write

YAML = """
ajet:
  experiment_name: clients
  model: {path: "embedded:math", device: cpu}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: tasks.jsonl}}
  data: {train_batch_size: 13, max_prompt_length: 256, max_response_length: 256}
  rollout:
    user_workflow: client_owned
    num_repeat: 8
    max_env_worker: SLOTS
    max_response_length_in_one_turn: 12
    max_model_len: 512
  task_judge: {judge_protocol: null}
  serve: {port: auto}
  trainer_common: {total_training_steps: 1, save_freq: 1, test_freq: 0, torch_threads: 1}
"""
NUM_IN_RUN = 13 * GROUP
START_S, RUN_S = 300.0, 600.0


class ThinkingEngine(EngineProcess):
    """An engine's process whose model thinks."""

    async def start(self, *arguments: Any, **options: Any) -> int:
        from transformers import AutoTokenizer

        raise_descriptor_limit()
        template = ChatTemplate(AutoTokenizer.from_pretrained(EMBEDDED_DIR / "math"))
        self._replica: Any = ThinkingReplica(template)
        return os.getpid()


class ThinkingReplica(ThinkingEndpoint):
    """A model that thinks, with what a router asks of a replica."""

    async def health(self) -> None: ...
    async def close(self) -> None: ...


class ThinkingRouter(RouterProcess):
    """The router's process, over engines that think."""

    def _make_actor(self, name: str) -> Any:
        remote: Any = ray.remote(ThinkingEngine).options(num_cpus=0, max_concurrency=MAX_CALLS)
        return remote.remote(self._import_env)


async def scripted(pipe: Any, config: AjetConfig, count: int) -> dict[str, Any]:
    """Measures the driver with `count` clients."""
    from transformers import AutoTokenizer

    spec = TokenizerSpec(
        AutoTokenizer.from_pretrained(EMBEDDED_DIR / "math"), (), datetime(2026, 1, 1)
    )
    remote: Any = ray.remote(ThinkingRouter).options(num_cpus=0, max_concurrency=MAX_CALLS)
    router = remote.remote(config, [{}, {}], ImportEnv.current())
    await router.start.remote(None)
    gateway = make_exchange_gateway(config, KEY)
    rollout = DriverRollout(config, gateway)
    runner = await rollout.start(partial(routed_endpoint, router, 3), spec)
    return {"arm": "scripted", **await measure_runner(runner, gateway, pipe, count)}


def scripted_on_ray(pipe: Any, count: int) -> dict[str, Any]:
    """Measures the driver with `count` clients, on a Ray that is started for it."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        config = config_in(Path(folder), slots=count)
        start_ray(
            Path(folder),
            num_cpus=4,
            num_gpus=0,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
        try:
            return asyncio.run(scripted(pipe, config, count))
        finally:
            ray.shutdown()


def whole_run(pipe: Any, backbone: str) -> dict[str, Any]:
    """Measures a run of one step, which the command makes."""
    with tempfile.TemporaryDirectory(prefix="serve-") as name:
        folder = Path(name)
        config_in(folder, slots=NUM_IN_RUN)
        log = (folder / "serve.log").open("w+")
        command = ["-m", "ajet.cli.launcher", "serve", "--conf", "run.yaml", "--with-ray"]
        process = subprocess.Popen(
            [sys.executable, *command, "--backbone", backbone],
            cwd=folder,
            env=os.environ | {"AJET_SERVE_API_KEY": KEY, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )
        try:
            pipe.send((port_of(process, folder / "serve.log"), NUM_IN_RUN, False))
            found = pipe.recv()
            code = process.wait(RUN_S)
        finally:
            process.kill()
        with sqlite3.connect(folder / "launcher_record/clients/episodes.sqlite") as record:
            (ok,) = record.execute("SELECT count(*) FROM episodes WHERE status = 'ok'").fetchone()
            (calls,) = record.execute("SELECT count(*) FROM turns").fetchone()
    return {
        "arm": f"run on {backbone}",
        "clients": NUM_IN_RUN,
        "episodes_ok": ok,
        "calls_recorded": calls,
        "exit_code": code,
        **found,
    }


def port_of(process: subprocess.Popen[bytes], log: Path) -> int:
    """Returns the port that the command prints."""
    deadline = time.monotonic() + START_S
    while "episodes at " not in (said := log.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, said
        time.sleep(0.1)
    return int(said.partition("episodes at ")[2].partition(",")[0].rpartition(":")[2])


def config_in(folder: Path, slots: int) -> AjetConfig:
    """Writes the run's files into the folder, and reads its config."""
    tasks = [{"question": f"What is {number} plus 2?", "answer": ""} for number in range(13)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "run.yaml").write_text(YAML.replace("SLOTS", str(slots)))
    return load_config(folder / "run.yaml", backbone="verl")


def main() -> None:
    """Measure, print and write."""
    parser = options(__doc__, "client_episodes_on_ray")
    parser.add_argument("--backbone", nargs="*", default=["verl", "trinity"])
    parser.add_argument("--scripted", type=int, nargs="*", default=[NUM_IN_RUN, 1000])
    args = parser.parse_args()
    raise_descriptor_limit()
    load = [round(each, 1) for each in os.getloadavg()]
    with clients() as pipe:
        found = [scripted_on_ray(pipe, count) for count in args.scripted]
        found += [whole_run(pipe, backbone) for backbone in args.backbone]
    report = {
        "calls_per_episode": CALLS,
        "load_at_start": load,
        "results": found,
        "passed": all(has_passed(each) and not each.get("exit_code") for each in found),
    }
    write(args.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
