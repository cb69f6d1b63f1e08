"""How an SGLang server is started: the config's settings as its arguments, and the replica over it.

    arguments = to_server_args(config, model_path=…, port=30000, python=sys.executable)
    replica = await start_sglang(arguments, name="r0", log_path=…, stop_token_ids=…)

Needs CUDA. Not covered: several machines for one engine, quantisation, LoRA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.engines.sglang import SglangReplica
from ajet.core.inference.servers.process import OWN_MODULES, Command, ServerProcess
from ajet.core.inference.servers.vllm import START_S, served_model, server_dtype

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig


@dataclass(frozen=True, slots=True)
class SglangServerArgs:
    """The arguments that ajet sets; SGLang's own defaults hold for all others."""

    model_path: str
    port: int
    python: str
    dtype: str = "bfloat16"
    tensor_parallel_size: int = 1
    max_model_len: int = 4096
    max_num_seqs: int = 64
    gpu_memory_utilization: float = 0.6
    seed: int = 0
    deterministic: bool = True

    def arguments(self) -> Sequence[str]:
        """The command line."""
        pairs = {
            "--model-path": self.model_path,
            "--host": "127.0.0.1",
            "--port": self.port,
            "--dtype": self.dtype,
            "--tp-size": self.tensor_parallel_size,
            "--context-length": self.max_model_len,
            "--max-running-requests": self.max_num_seqs,
            "--mem-fraction-static": self.gpu_memory_utilization,
            "--random-seed": self.seed,
        }
        flags = ["--skip-tokenizer-init", "--enable-memory-saver"]
        if self.deterministic:  # without it a request's seed is not honoured
            flags.append("--enable-deterministic-inference")
        texts = [text for key, value in pairs.items() for text in (key, str(value))]
        return [self.python, "-m", "sglang.launch_server", *texts, *flags]


def to_server_args(
    config: AjetConfig, *, model_path: str, device: str, port: int, python: str
) -> SglangServerArgs:
    """From the config; `model_path` is a folder that the server can read."""
    rollout = config.ajet.rollout
    return SglangServerArgs(
        model_path=model_path,
        port=port,
        python=python,
        dtype=server_dtype(config.ajet.model.dtype, device),
        tensor_parallel_size=rollout.tensor_model_parallel_size,
        max_model_len=rollout.max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        gpu_memory_utilization=config.gpu_memory_utilization,
        seed=config.ajet.seed,
        deterministic=rollout.deterministic,
    )


async def start_sglang(
    args: SglangServerArgs,
    *,
    name: str,
    log_path: Path,
    stop_token_ids: tuple[int, ...],
    deadline_s: float = START_S,
    version: int = 0,
) -> SglangReplica:
    """Start a server, wait until it has sampled a token, and refuse one that is too old."""
    command = Command(args.arguments(), port=args.port, environment=OWN_MODULES)
    process = ServerProcess(command, name=name, log_path=log_path)
    replica = SglangReplica(
        name,
        command.url,
        served_model(args.model_path, args.max_model_len, stop_token_ids),
        process=process,
        version=version,
        num_workers=args.tensor_parallel_size,
    )

    async def healthy() -> None:
        await replica.health()
        await replica.sample([0], SamplingParams(max_tokens=1), "warm-up/0")

    try:
        await process.start(healthy, deadline_s)
        await replica.check_version()
    except BaseException:
        await replica.close()
        raise
    return replica
