"""Starts an SGLang server: turns the config into its arguments and makes the replica over it.

    arguments = SglangServerArgs.from_config(config, model_path=…, port=30000, python=…, …)
    replica = await start_sglang(arguments, name="r0", log_path=…, stop_token_ids=…)

SGLang needs CUDA. One engine runs on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet.core.images.processor import ImageProcessor
from ajet.servers.adapters import adapted_modules, versions_of
from ajet.servers.process import SAFE_PATH_ENVIRONMENT, Command, ServerProcess
from ajet.servers.settings import START_S, ServerSettings
from ajet.servers.sglang_replica import SglangReplica


@dataclass(frozen=True, slots=True)
class SglangServerArgs(ServerSettings):
    """The settings of an SGLang server, which always runs on a GPU."""

    device: str = "cuda"
    dtype: str = "bfloat16"

    def arguments(self) -> Sequence[str]:
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
        flags = ["--enable-memory-saver"]
        if self.routing_replay:
            flags.append("--enable-return-routed-experts")
        if self.grammars:
            pairs |= {"--grammar-backend": "llguidance"}
        if not self.has_tokenizer:
            flags.append("--skip-tokenizer-init")
        if self.max_images:
            flags.append("--enable-multimodal")
        if self.deterministic:  # without this flag SGLang ignores a request's seed
            flags.append("--enable-deterministic-inference")
        if self.adapters is not None:
            flags += ["--enable-lora", "--enable-weights-cpu-backup"]  # keeps the base in a sleep
            pairs |= {
                "--max-lora-rank": self.adapters.rank,
                "--max-loras-per-batch": len(self.adapters.adapters) + 1,  # the base counts as one
                "--max-loaded-loras": versions_of(self.adapters),
            }
            modules = adapted_modules(self.adapters, Path(self.model_path))
            flags += ["--lora-target-modules", *modules]
        texts = [text for key, value in pairs.items() for text in (key, str(value))]
        return [self.python, "-m", "sglang.launch_server", *texts, *flags]


async def start_sglang(
    args: SglangServerArgs,
    *,
    name: str,
    log_path: Path,
    stop_token_ids: tuple[int, ...],
    deadline_s: float = START_S,
    version: int = 0,
    images: ImageProcessor | None = None,
) -> SglangReplica:
    """Starts a server and waits until it has sampled a token; refuses versions that are too old."""
    command = Command(args.arguments(), port=args.port, environment=SAFE_PATH_ENVIRONMENT)
    replica = SglangReplica(
        name,
        command.url,
        args.served_model(stop_token_ids, images),
        process=ServerProcess(command, name=name, log_path=log_path),
        version=version,
        adapters=args.served_adapters(name),
        num_workers=args.tensor_parallel_size,
    )
    await replica.start(deadline_s)
    return replica
