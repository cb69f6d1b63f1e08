"""Several LoRA adapters in one server over fixed base weights.

tensors pro.NAME, con.NAME  ->  FOLDER/pro@7-d41d8cd9/, as peft writes it  ->  the server
a request of "pro"          ->  "pro@7-d41d8cd9", until its end
a request without adapter   ->  the base, or (`base_is_adapter`) an adapter of zeros
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.update.settings import LoraSettings
from ajet.core.weight_sync.load import check_tensor
from ajet.core.weight_sync.manifest import (
    Manifest,
    SyncReport,
    TensorInfo,
    WeightsError,
    WeightSource,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ajet.servers.replica import ServerReplica

ALL_LINEAR = "all-linear"
PEFT_ADAPTER = ".default."
"""Peft's name of a model's only adapter, which its files omit."""
FACTORS = re.compile(r"\.lora_[AB]\.weight$")


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """One adapter in the server: its name there, the checksum of its tensors, and the newest
    version of the run's weights that contains it."""

    name: str
    checksum: str
    version: int


class ServedAdapters:
    """The adapters of one server, which reads their files below `folder`. With `base_is_adapter`,
    for a server that cannot compute the base in a batch with adapters, requests without adapter use
    one of zeros. Unchanged adapters are not loaded again, and unused ones are unloaded after the
    next publication."""

    def __init__(self, lora: LoraSettings, folder: Path, *, base_is_adapter: bool = False) -> None:
        self._lora, self._folder, self.base_is_adapter = lora, folder, base_is_adapter
        self._newest: dict[str, LoadedAdapter] = {}
        self._in_server: set[str] = set()
        self._running: Counter[str] = Counter()

    @contextmanager
    def sampling_with(self, adapter: str) -> Iterator[LoadedAdapter]:
        """Yields the newest version of this adapter and keeps it in the server for the block."""
        if adapter not in self._newest:
            names = ", ".join(filter(None, self._newest)) or "none yet"
            raise ValueError(f"no adapter is named {adapter!r}; the server has {names}")
        loaded = self._newest[adapter]
        self._running[loaded.name] += 1
        try:
            yield loaded
        finally:
            self._running[loaded.name] -= 1

    async def publish(
        self, source: WeightSource, version: int, server: ServerReplica
    ) -> SyncReport:
        """Has the server load the changed adapters of `source`; they are used once all are loaded.
        If the server refuses one (WeightsError), it continues with those that it had."""
        started = time.perf_counter()
        infos, by_adapter = await asyncio.to_thread(self._received, source)
        newest: dict[str, LoadedAdapter] = {}
        try:
            for adapter, tensors in by_adapter.items():
                checksum = Manifest(0, tuple(i for i in infos if i.name in tensors)).checksum
                current = self._newest.get(adapter)
                if current is not None and current.checksum == checksum:
                    newest[adapter] = LoadedAdapter(current.name, checksum, version)
                    continue
                # With the checksum, since a resumed trainer reaches a version again with other
                # weights: the server's prefix cache, which goes by names, is then never stale.
                name = f"{adapter}@{version}-{checksum[:8]}"
                if name not in self._in_server:
                    path = self._folder / name
                    await asyncio.to_thread(write_peft_folder, path, adapter, tensors, self._lora)
                    await server.load_adapter(name, path)
                    self._in_server.add(name)
                newest[adapter] = LoadedAdapter(name, checksum, version)
        except WeightsError:
            await self._unload_unused(server)
            raise
        self._newest = newest
        await self._unload_unused(server)
        manifest = Manifest(version, tuple(infos))
        seconds = time.perf_counter() - started
        return SyncReport(version, seconds, manifest.num_bytes, manifest.checksum)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _received(
        self, source: WeightSource
    ) -> tuple[list[TensorInfo], dict[str, dict[str, Tensor]]]:
        """Returns the descriptions of all tensors, and each adapter's tensors by name."""
        prefix = f"weights of version {source.version}"
        infos: list[TensorInfo] = []
        by_adapter: dict[str, dict[str, Tensor]] = {}
        with closing(source.tensors()) as incoming:
            for info, tensor in incoming:
                check_tensor(info, tensor, tensor, prefix)
                infos.append(info)
                adapter, _, _ = info.name.partition(".")
                by_adapter.setdefault(adapter, {})[info.name] = tensor
        if set(by_adapter) != set(self._lora.adapters):
            names, expected = ", ".join(sorted(by_adapter)), ", ".join(sorted(self._lora.adapters))
            raise WeightsError(f"{prefix}: got adapters {names}, the server is for {expected}")
        if self.base_is_adapter:
            tensors = by_adapter[self._lora.adapters[0]]
            by_adapter[""] = {
                name[name.index(".") :]: tensor.new_zeros(tensor.shape)
                for name, tensor in tensors.items()
            }
        return infos, by_adapter

    async def _unload_unused(self, server: ServerReplica) -> None:
        newest = {loaded.name for loaded in self._newest.values()}
        for name in sorted(self._in_server - newest):
            if not self._running[name]:
                await server.unload_adapter(name)
                self._in_server.remove(name)
                shutil.rmtree(self._folder / name, ignore_errors=True)


def versions_of(lora: LoraSettings) -> int:
    """Returns how many adapters a server must hold: the newest of each, the previous one, with
    which running requests end, and the base."""
    return 2 * len(lora.adapters) + 1


def write_peft_folder(
    path: Path, adapter: str, tensors: Mapping[str, Tensor], lora: LoraSettings
) -> None:
    from safetensors.torch import save_file

    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        peft_name = name.removeprefix(f"{adapter}.").replace(PEFT_ADAPTER, ".")
        if FACTORS.search(peft_name) is None:
            raise WeightsError(
                f"adapter {adapter}: {peft_name} does not belong to a linear layer, and servers "
                "support adapters of linear layers only: set "
                "ajet.trainer_common.lora.target_modules, or ajet.rollout.name=in_process"
            )
        renamed[peft_name] = tensor.detach().to("cpu").contiguous()
    modules = {FACTORS.sub("", name).rpartition(".")[2] for name in renamed}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
    }
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    save_file(renamed, path / "adapter_model.safetensors", metadata={"format": "pt"})


def adapted_modules(lora: LoraSettings, model: Path) -> list[str]:
    """Returns the names of the modules with adapters, such as q_proj, in the layers of the model in
    this folder."""
    from safetensors import safe_open

    if not isinstance(lora.targets, str):
        return sorted({target.rpartition(".")[2] for target in lora.targets})
    linear: set[str] = set()
    for shard in sorted(model.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118, it is not a dict
                is_matrix = len(opened.get_slice(name).get_shape()) == 2
                if is_matrix and ".layers." in name and name.endswith(".weight"):
                    linear.add(name.removesuffix(".weight"))
    if lora.targets != ALL_LINEAR:
        linear = {name for name in linear if re.fullmatch(lora.targets, name)}
    return sorted({name.rpartition(".")[2] for name in linear})
