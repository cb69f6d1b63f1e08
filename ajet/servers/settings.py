"""Starts vLLM and SGLang servers: turns the config into their arguments and makes the replica over
them. Both run in separate environments (environment.py), so nothing of them is imported here. One
engine runs on one machine. A vLLM server loads a tokenizer for grammars and images alone; SGLang
needs CUDA.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.config.precision import dtype_on
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.images.processor import ImageProcessor
from ajet.core.update.settings import LoraSettings
from ajet.servers.adapters import ServedAdapters, adapted_modules, versions_of
from ajet.servers.process import SAFE_PATH_ENVIRONMENT, Command, ServerProcess
from ajet.servers.replica import ExpertShape, ServedModel
from ajet.servers.sglang_replica import SglangReplica
from ajet.servers.vllm_replica import VllmReplica

if TYPE_CHECKING:
    from typing import Self

    from ajet.core.config import AjetConfig

START_S = 900.0
WORKER_EXTENSION = "ajet_weight_loading.WeightLoading"
EXTENSION_FOLDER = Path(__file__).with_name("worker_extension")
CPU_CACHE_GIB = 1
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Possible values of `--max-lora-rank`; an adapter may have any rank up to it."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The common settings. `model_path` is a folder that the server can read."""

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
    deterministic: bool = True
    adapters: LoraSettings | None = None
    """Set if the server serves several adapters over the weights that it starts with."""
    grammars: bool = False
    """Loads the tokenizer, and restricts replies to grammars with llguidance."""
    routing_replay: bool = False
    """Returns the experts of each token."""
    max_images: int = 0
    """Serves the vision tower too, for prompts with so many images."""

    @classmethod
    def from_config(
        cls, config: AjetConfig, *, model_path: str, device: str, port: int, python: str
    ) -> Self:
        rollout = config.ajet.rollout
        has_one_gpu = config.ajet.backbone == "debug"
        return cls(
            model_path=model_path,
            port=port,
            python=python,
            device=device,
            dtype=dtype_on(config, gpu=device != "cpu"),
            tensor_parallel_size=1 if has_one_gpu else rollout.tensor_model_parallel_size,
            max_model_len=rollout.max_model_len,
            max_num_seqs=rollout.num_server_seqs,
            gpu_memory_utilization=config.gpu_memory_utilization,
            seed=config.ajet.seed,
            deterministic=rollout.deterministic,
            adapters=LoraSettings.from_config(config) if config.has_several_adapters else None,
            grammars=rollout.server.grammars,
            routing_replay=rollout.routing_replay,
            max_images=images.max_images if (images := config.ajet.model.images).enabled else 0,
        )

    @property
    def has_tokenizer(self) -> bool:
        """Whether the server needs its tokenizer: for grammars, and to find a prompt's images."""
        return self.grammars or bool(self.max_images)

    def served_model(
        self, stop_token_ids: tuple[int, ...], images: ImageProcessor | None = None
    ) -> ServedModel:
        """Reads what a replica needs to know about the model from the model's folder."""
        model_config = json.loads((Path(self.model_path) / "config.json").read_text("utf-8"))
        vocab_size = model_config.get("vocab_size") or model_config["text_config"]["vocab_size"]
        return ServedModel(
            self.model_path,
            vocab_size,
            self.max_model_len,
            stop_token_ids,
            self.grammars,
            ExpertShape.from_config(model_config) if self.routing_replay else None,
            images,
        )

    def served_adapters(self, name: str, *, base_is_adapter: bool = False) -> ServedAdapters | None:
        """Returns the adapters of the server `name`, with a folder next to that of the weights."""
        if self.adapters is None:
            return None
        name_on_server = f"{name.replace(' ', '_')}-{self.port}"
        folder = Path(self.model_path).parent / "served" / name_on_server
        return ServedAdapters(self.adapters, folder, base_is_adapter=base_is_adapter)


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
