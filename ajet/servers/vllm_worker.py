"""Runs inside vLLM's worker: takes new weights in place, and proves that the model uses them.

    POST /collective_rpc {"method": "ajet_load_weights", "kwargs": {"path": "…/v00000007", …}}

Named by `--worker-extension-cls`; vLLM's environment finds this package by PYTHONPATH, and needs
none of its dependencies but torch and safetensors.

Everything is checked before the first byte changes: checksums, and that names and shapes are those
of the weights it holds already (their list is kept from the first load, so the first load compares
with the model's own folder).

On a CPU vLLM computes with packed copies of its linear layers, which a reload may leave stale. So
every copy must be another one after the load than before; where the plain weights are still there,
it is packed once more and must give what they say.

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
"""Relative; half types round. A stale layer is off by its whole size."""


class WeightLoading:
    """Mixed into vLLM's worker, whose `model_runner` it finds on itself."""

    model_runner: Any

    def ajet_load_weights(self, path: str, version: str, model_path: str) -> dict[str, Any]:
        """Load a version; what arrived, or {"error": one line} with the old weights in place."""
        try:
            return self._ajet_load(FolderSource(Path(path), int(version)), model_path)
        except WeightsError as error:
            return {"error": str(error)}

    def _ajet_load(self, source: FolderSource, model_path: str) -> dict[str, Any]:
        import torch

        started = time.perf_counter()
        with source.read_lock():
            expected = getattr(self, "_ajet_shapes", None) or folder_shapes(Path(model_path))
            manifest = checked(source, expected)
            model = self.model_runner.get_model()
            before = packed_layers(model)
            with torch.no_grad():
                # vLLM's own way back to the checkpoint's layout; it alone knows what was fused.
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
    """Names and shapes of the safetensors of a model's folder."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return shapes


def checked(source: FolderSource, expected: Shapes) -> Manifest:
    """The manifest of what was read, if it is what was written, and of this model."""
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


def check_names(given: Shapes, expected: Shapes, where: str) -> None:
    """The same tensors; a head that is tied to the embedding may be there or not."""
    tied = {"lm_head.weight"}
    if missing := sorted(expected.keys() - given.keys() - tied):
        raise WeightsError(f"{where}: missing {shorten_list(missing)}")
    if unknown := sorted(given.keys() - expected.keys() - tied):
        raise WeightsError(f"{where}: the served model has no tensor {shorten_list(unknown)}")
    for name in sorted(given.keys() & expected.keys()):
        if given[name] != expected[name]:
            raise WeightsError(
                f"{where}: {name} is {list(given[name])}, the served model's is "
                f"{list(expected[name])}"
            )


def packed_layers(model: nn.Module) -> dict[str, object]:
    """By name, what each packed layer computes with (CPU only). A plain `linear` packs nothing."""
    import torch

    plain = torch.nn.functional.linear
    found = {name: getattr(module, "cpu_linear", plain) for name, module in model.named_modules()}
    return {name: compute for name, compute in found.items() if compute is not plain}


def repack(model: nn.Module) -> None:
    """Pack those whose plain weights are kept: nobody may have seen that they changed."""
    modules = dict(model.named_modules())
    repackable = [modules[name] for name in packed_layers(model) if modules[name].weight.ndim == 2]
    if repackable:
        from vllm.model_executor.layers import utils as layers  # pyright: ignore[reportMissingImports]

        for module in repackable:
            layers.dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def check_fresh(model: nn.Module, before: Mapping[str, object], where: str) -> None:
    """Each packed layer is a new one, and computes what its plain weights say if it has them."""
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
        given = module.cpu_linear(probe, weight, None).float()
        expected = torch.nn.functional.linear(probe, weight).float()
        if (given - expected).abs().max() > STALE_TOLERANCE * expected.abs().max():
            raise WeightsError(f"{where}: {name} still computes with its old weights")
