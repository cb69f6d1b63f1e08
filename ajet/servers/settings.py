"""The settings that vLLM and SGLang servers have in common, read from the config."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.config.precision import dtype_on
from ajet.core.update.settings import LoraSettings
from ajet.servers.adapters import ServedAdapters
from ajet.servers.replica import ExpertShape, ServedModel

if TYPE_CHECKING:
    from typing import Self

    from ajet.core.config import AjetConfig
    from ajet.core.images.processor import ImageProcessor

START_S = 900.0


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
