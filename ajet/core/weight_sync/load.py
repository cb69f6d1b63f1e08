"""Copies weights into a model in place, all of them or none: every tensor's name, shape and
checksum is checked before the model changes. Values are cast if the model has another dtype; the
report has the checksum of what was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.core.weight_sync.adapters import Adapters, AdaptersError
from ajet.core.weight_sync.manifest import (
    Manifest,
    SyncReport,
    TensorInfo,
    WeightsError,
    WeightSource,
    shorten_list,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Weights in this process's memory or on its device, which are not written or sent; `weights()`
    returns all (name, tensor) pairs. A model in the same process copies them; an SGLang server on
    the same GPU gets handles to the memory (`/update_weights_from_tensor`). The trainer must not
    change them before the load is over."""

    version: int
    weights: Callable[[], Iterable[tuple[str, Tensor]]]
    adapters: Adapters | None = None

    @property
    def can_be_read_again(self) -> bool:
        return True

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Yields the tensors with their descriptions."""
        for name, tensor in self.weights():
            yield TensorInfo.of(name, tensor), tensor


IncomingTensors = Iterable[tuple[TensorInfo, "Tensor"]]
Targets = Mapping[str, "Tensor"]


def load_weights(
    model: nn.Module, source: WeightSource, *, base: BaseWeights | None = None
) -> SyncReport:
    """Copies `source` into `model`; raises `WeightsError` if it is damaged or does not fit.
    Adapters need `base`, the same object for all loads of a model."""
    if source.adapters is None:
        return load_tensors(model.state_dict(), source)
    assert base is not None, "adapters need the base weights"
    return base.load(model.state_dict(), source, source.adapters)


class BaseWeights:
    """Keeps a model's base weights, to which the adapters of each version are added. The model must
    have its base weights at the first load."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}  # of the adapted weights, on the CPU
        self._checksum: str | None = None

    def load(self, targets: Targets, source: WeightSource, adapters: Adapters) -> SyncReport:
        """Checks the adapters of `source` and the base, then sets the adapted weights."""
        started = time.perf_counter()
        prefix = f"weights of version {source.version}"
        sent = list(source.tensors())
        for info, tensor in sent:
            check_tensor(info, tensor, tensor, prefix)
        shapes = {name: tuple(target.shape) for name, target in targets.items()}
        try:
            adapters.check({info.name: info.shape for info, _ in sent}, shapes)
        except AdaptersError as error:
            raise WeightsError(f"{prefix}: {error}") from error
        self._remember(targets, adapters, prefix)
        factors = adapters.factors({info.name: tensor for info, tensor in sent})
        for name in adapters.scalings:
            target = targets[name]
            factor_a, factor_b = (factor.to(target.device) for factor in factors[name])
            # Added to the copy: the target has the adapters of the version before.
            target.copy_(adapters.add(name, self._copies[name], {name: (factor_a, factor_b)}))
        manifest = Manifest(source.version, tuple(info for info, _ in sent))
        seconds = time.perf_counter() - started
        return SyncReport(source.version, seconds, manifest.num_bytes, manifest.checksum)

    def _remember(self, targets: Targets, adapters: Adapters, prefix: str) -> None:
        if self._checksum is None:
            # Of tied weights, which share storage, only the first is part of the checksum.
            first: dict[tuple[int, tuple[int, ...]], str] = {}
            for name, tensor in targets.items():
                first.setdefault(_storage_key(tensor), name)
            infos = tuple(TensorInfo.of(name, targets[name]) for name in first.values())
            self._checksum = Manifest(0, infos).checksum
            for name in adapters.scalings:
                self._copies[name] = targets[name].detach().to("cpu", copy=True)
        if self._checksum != adapters.base_checksum:
            raise WeightsError(
                f"{prefix}: the engine's base weights are not those that the adapters were trained "
                "on; all machines need the same files and number format of ajet.model.path"
            )


def load_tensors(targets: Targets, source: WeightSource) -> SyncReport:
    """Copies `source` into named tensors. It needs only one name of tied weights."""
    started = time.perf_counter()
    prefix = f"weights of version {source.version}"
    if source.can_be_read_again:
        with closing(source.tensors()) as incoming:
            check(incoming, targets, prefix)
        with closing(source.tensors()) as incoming:
            infos = _copy(incoming, targets)
    else:
        collected = list(source.tensors())
        check(collected, targets, prefix)
        infos = _copy(collected, targets)
    for info in infos:
        target = targets[info.name]
        same_dtype = str(target.dtype) == f"torch.{info.dtype}"
        if same_dtype and TensorInfo.of(info.name, target) != info:
            raise WeightsError(f"{prefix}: {info.name} in the model is not what was copied")
    manifest = Manifest(source.version, tuple(infos))
    seconds = time.perf_counter() - started
    return SyncReport(source.version, seconds, manifest.num_bytes, manifest.checksum)


def check(incoming: IncomingTensors, targets: Targets, prefix: str) -> None:
    """Checks that all incoming tensors are intact and fit, and that none is missing."""
    infos: list[TensorInfo] = []
    for info, tensor in incoming:
        check_tensor(info, tensor, targets.get(info.name), prefix)
        infos.append(info)
    # Tied weights share storage: one of their names is enough.
    names = {info.name for info in infos}
    filled = {_storage_key(targets[name]) for name in names}
    missing = [n for n, t in targets.items() if n not in names and _storage_key(t) not in filled]
    if missing:
        raise WeightsError(f"{prefix}: missing {shorten_list(missing)}")


def check_tensor(info: TensorInfo, tensor: Tensor, target: Tensor | None, prefix: str) -> None:
    """Checks that the tensor is intact, and that the model has one with its name and shape."""
    if target is None:
        raise WeightsError(f"{prefix}: the model has no tensor {info.name}; is it another model's?")
    if tuple(target.shape) != info.shape:
        raise WeightsError(
            f"{prefix}: {info.name} is {list(info.shape)}, the model's is {list(target.shape)}"
        )
    received = TensorInfo.of(info.name, tensor)
    if received != info:
        raise WeightsError(
            f"{prefix}: {info.name} is damaged (checksum {received.checksum}, sent {info.checksum})"
        )


def _storage_key(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _copy(incoming: IncomingTensors, targets: Targets) -> list[TensorInfo]:
    import torch

    infos: list[TensorInfo] = []
    with torch.no_grad():
        for info, tensor in incoming:
            targets[info.name].copy_(tensor)
            infos.append(info)
    return infos
