"""From the config to the parts that serve: which engine, how a router behaves, which server.

    engine_name(config, on_gpu)            "in_process", "vllm" or "sglang"
    router_settings(config)                -> RouterSettings
    await start_server(config, …)          a vLLM or SGLang replica, healthy

Not covered: where they run and who calls this (the cluster's actors), in-process replicas (they
need a loaded model).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ajet.core.inference.router import RouterSettings

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.inference.replicas.server import ServerReplica

EngineName = Literal["in_process", "vllm", "sglang"]
CPU_ENVIRONMENT = Path(".venv-vllm/bin/python")


def engine_name(config: AjetConfig, *, on_gpu: bool) -> EngineName:
    """Who samples."""
    name = config.ajet.rollout.name
    if name == "auto":
        return "sglang" if on_gpu else "in_process"
    return name


def router_settings(config: AjetConfig) -> RouterSettings:
    """How a router over this config's replicas behaves."""
    router = config.ajet.rollout.router
    return RouterSettings(
        skew=router.skew,
        max_tries=router.max_tries,
        health_interval_s=router.health_interval_s,
        max_failed_checks=router.max_failed_checks,
    )


def server_python(config: AjetConfig, *, engine: EngineName, on_gpu: bool) -> str:
    """The interpreter that runs the server."""
    given = config.ajet.rollout.server.python
    if given is not None:
        return given
    own = Path.cwd() / CPU_ENVIRONMENT
    return str(own) if engine == "vllm" and not on_gpu and own.exists() else sys.executable


async def start_server(
    config: AjetConfig,
    *,
    engine: Literal["vllm", "sglang"],
    name: str,
    model_path: str,
    port: int,
    log_path: Path,
    stop_token_ids: tuple[int, ...],
    on_gpu: bool,
    version: int = 0,
) -> ServerReplica:
    """Start the config's server for the model in a folder, and wait until it is healthy."""
    from ajet.core.inference.servers import sglang, vllm

    python = server_python(config, engine=engine, on_gpu=on_gpu)
    deadline_s = config.ajet.rollout.server.start_timeout_s
    where = {"name": name, "log_path": log_path, "stop_token_ids": stop_token_ids}
    if engine == "vllm":
        args = vllm.to_server_args(
            config,
            model_path=model_path,
            device="cuda" if on_gpu else "cpu",
            port=port,
            python=python,
        )
        return await vllm.start_vllm(args, **where, deadline_s=deadline_s, version=version)
    asked = sglang.to_server_args(config, model_path=model_path, port=port, python=python)
    return await sglang.start_sglang(asked, **where, deadline_s=deadline_s, version=version)
