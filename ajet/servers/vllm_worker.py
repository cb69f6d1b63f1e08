"""Runs inside vLLM's worker: loads new weights in place, and checks that the model uses them.

    POST /collective_rpc {"method": "ajet_load_weights", "kwargs": {"path": "…/v00000007", …}}

`--worker-extension-cls` names the class here. vLLM's environment finds this package by PYTHONPATH,
and needs none of its dependencies but torch and safetensors.

Everything is checked before the first byte changes: checksums, and that names and shapes are those
of the weights that the worker holds (their list is stored at the first load, which compares with
the model's own folder).

On a CPU vLLM computes with packed copies of its linear layers, which a reload may leave stale. So
every copy must be a new object after the load. If the plain weights are still there, they are
packed once more, and the copy must compute the same as they do.

Not covered: quantised weights; pipeline parallelism (each rank loads the whole folder).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.weight_sync.folder import FolderSource
from ajet.core.weight_sync.manifest import Manifest, TensorInfo, WeightsError, shorten_list

if TYPE_CHECKING:
    from torch import nn

Shapes = Mapping[str, tuple[int, ...]]
STALE_TOLERANCE = 1e-2
"""A relative tolerance for the rounding of 16-bit types; a stale layer differs by far more."""


class WeightLoading:
    """A mixin of vLLM's worker class, which provides `model_runner`."""

    model_runner: Any

    def ajet_load_weights(self, path: str, version: str, model_path: str) -> dict[str, Any]:
        """Loads a version and returns its version, seconds, size and checksum. If a check fails it
        returns {"error": one line}."""
        try:
            return self._ajet_load(FolderSource(Path(path), int(version)), model_path)
        except WeightsError as error:
            return {"error": str(error)}

    def _ajet_load(self, source: FolderSource, model_path: str) -> dict[str, Any]:
        import torch

        started = time.perf_counter()
        with source.read_lock():
            expected = getattr(self, "_ajet_shapes", None) or folder_shapes(Path(model_path))
            manifest = check_weights(source, expected)
            model = self.model_runner.get_model()
            before = packed_layers(model)
            with torch.no_grad():
                # vLLM's own function: only vLLM knows which tensors of the checkpoint it has fused.
                self.model_runner.reload_weights(
                    weights_iterator=((info.name, tensor) for info, tensor in source.tensors())
                )
                repack(model)
                check_fresh(model, before, f"weights of version {source.version}")
        self._ajet_shapes = expected
        return {
            "version": source.version,
            "seconds": time.perf_counter() - started,
            "num_bytes": manifest.num_bytes,
            "checksum": manifest.checksum,
        }


def folder_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the safetensors in a model's folder."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return shapes


def check_weights(source: FolderSource, expected: Shapes) -> Manifest:
    """Checks that the weights are undamaged and fit the model, and returns their manifest."""
    where = f"weights of version {source.version}"
    sent = source.manifest()
    check_names({info.name: info.shape for info in sent.tensors}, expected, where)
    for info, tensor in source.tensors():
        found = TensorInfo.of(info.name, tensor)
        if found != info:
            raise WeightsError(
                f"{where}: {info.name} is damaged (checksum {found.checksum}, sent {info.checksum})"
            )
    return sent


def check_names(actual: Shapes, expected: Shapes, where: str) -> None:
    """Checks that both have the same names and shapes. `lm_head.weight` may be missing in one,
    since it may be tied to the embedding."""
    tied = {"lm_head.weight"}
    if missing := sorted(expected.keys() - actual.keys() - tied):
        raise WeightsError(f"{where}: missing {shorten_list(missing)}")
    if unknown := sorted(actual.keys() - expected.keys() - tied):
        raise WeightsError(f"{where}: the served model has no tensor {shorten_list(unknown)}")
    for name in sorted(actual.keys() & expected.keys()):
        if actual[name] != expected[name]:
            raise WeightsError(
                f"{where}: {name} is {list(actual[name])}, the served model's is "
                f"{list(expected[name])}"
            )


def packed_layers(model: nn.Module) -> dict[str, object]:
    """Returns the compute function of each packed layer by name (CPU only). A layer with the plain
    `linear` function is not packed."""
    import torch

    plain = torch.nn.functional.linear
    found = {name: getattr(module, "cpu_linear", plain) for name, module in model.named_modules()}
    return {name: compute for name, compute in found.items() if compute is not plain}


def repack(model: nn.Module) -> None:
    """Packs again the layers that keep their plain weights, in case a reload has not done so."""
    modules = dict(model.named_modules())
    repackable = [modules[name] for name in packed_layers(model) if modules[name].weight.ndim == 2]
    if repackable:
        from vllm.model_executor.layers import utils as layers  # pyright: ignore[reportMissingImports]

        for module in repackable:
            layers.dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def check_fresh(model: nn.Module, before: Mapping[str, object], where: str) -> None:
    """Checks that each packed layer is a new object, and that it computes the same as its plain
    weights if it keeps them."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for name, compute in packed_layers(model).items():
        module: Any = model.get_submodule(name)
        if compute is before.get(name):
            raise WeightsError(f"{where}: {name} still computes with its old weights")
        if module.weight.ndim != 2:
            continue
        weight = module.weight
        probe = torch.randn(1, weight.shape[1], generator=generator).to(weight.dtype)
        actual = module.cpu_linear(probe, weight, None).float()
        expected = torch.nn.functional.linear(probe, weight).float()
        if (actual - expected).abs().max() > STALE_TOLERANCE * expected.abs().max():
            raise WeightsError(f"{where}: {name} still computes with its old weights")
