"""Starts a vLLM server: turns the config into its arguments and makes the replica over it.

    arguments = VllmServerArgs.from_config(config, model_path=…, device="cpu", port=8100, python=…)
    replica = await start_vllm(arguments, name="r0", log_path=…, stop_token_ids=…)

Token ids go in and come out; the server loads a tokenizer for grammars alone. vLLM runs in a
separate environment (environment.py), so this file does not import it. One engine runs on one
machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.images.processor import ImageProcessor
from ajet.servers.adapters import versions_of
from ajet.servers.process import SAFE_PATH_ENVIRONMENT, Command, ServerProcess
from ajet.servers.settings import START_S, ServerSettings
from ajet.servers.vllm_replica import VllmReplica

WORKER_EXTENSION = "ajet_weight_loading.WeightLoading"
EXTENSION_FOLDER = Path(__file__).with_name("worker_extension")
CPU_CACHE_GIB = 1
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Possible values of `--max-lora-rank`; an adapter may have any rank up to it."""


@dataclass(frozen=True, slots=True)
class VllmServerArgs(ServerSettings):
    """The settings of a vLLM server. vLLM honours a request's seed in every mode."""

    def arguments(self) -> Sequence[str]:
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
            "--worker-extension-cls": WORKER_EXTENSION,
            "--generation-config": "vllm",  # the model's would change temperature and stops
        }
        flags = ["--enable-prefix-caching"]
        if self.routing_replay:
            flags.append("--enable-return-routed-experts")
        if self.grammars:
            common |= {"--structured-outputs-config": '{"backend": "guidance"}'}
        if not self.has_tokenizer:
            flags.append("--skip-tokenizer-init")
        if self.max_images:
            flags.append("--enable-scale-out")  # /inference/v1/generate
            common |= {"--limit-mm-per-prompt": json.dumps({"image": self.max_images, "video": 0})}
        if self.device == "cpu":
            # A chunked prompt's draw is taken back, which fails with a CPU's random generator.
            flags += ["--enforce-eager", "--no-enable-chunked-prefill"]
        else:
            common |= {"--gpu-memory-utilization": self.gpu_memory_utilization}
            flags += ["--enable-sleep-mode"]
        if self.adapters is not None:
            flags += ["--enable-lora"]
            common |= {
                "--max-lora-rank": max_lora_rank(self.adapters.rank),
                "--max-loras": len(self.adapters.adapters) + 1,  # per batch, the base included
                "--max-cpu-loras": versions_of(self.adapters),
            }
        pairs = [text for key, value in common.items() for text in (key, str(value))]
        # The `vllm` command does not find the metadata of the CPU's package.
        return [self.python, "-m", "vllm.entrypoints.openai.api_server", *pairs, *flags]

    def environment(self) -> Mapping[str, str]:
        """Returns the variables to add to this process's environment."""
        common = {
            **SAFE_PATH_ENVIRONMENT,
            "VLLM_SERVER_DEV_MODE": "1",  # /pause, /collective_rpc and the like
            "PYTHONPATH": str(EXTENSION_FOLDER),
        }
        if self.adapters is not None:
            common |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        if self.device != "cpu":
            return common
        return common | {
            "VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GIB),
            # By default several servers on one machine would all bind to its first cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }


def max_lora_rank(rank: int) -> int:
    """Returns the smallest value of `--max-lora-rank` for adapters of this rank."""
    for size in RANKS:
        if size >= rank:
            return size
    raise ConfigError(
        f"ajet.trainer_common.lora.rank={rank}: vLLM supports ranks up to {RANKS[-1]}; "
        "lower it, or set ajet.rollout.name=in_process",
        code=Code.SERVER_SETTING,
    )


async def start_vllm(
    args: VllmServerArgs,
    *,
    name: str,
    log_path: Path,
    stop_token_ids: tuple[int, ...],
    deadline_s: float = START_S,
    version: int = 0,
    images: ImageProcessor | None = None,
) -> VllmReplica:
    """Starts a server and waits until it has sampled a token."""
    command = Command(args.arguments(), port=args.port, environment=args.environment())
    replica = VllmReplica(
        name,
        command.url,
        args.served_model(stop_token_ids, images),
        process=ServerProcess(command, name=name, log_path=log_path),
        version=version,
        # On a CPU, in a batch with and without adapters, vLLM 0.32 computes rows without adapter
        # with the last adapter (lora/ops/torch_ops uses -1 as an index).
        adapters=args.served_adapters(name, base_is_adapter=True),
        sleep_mode=args.device != "cpu",
    )
    await replica.start(deadline_s)
    return replica
