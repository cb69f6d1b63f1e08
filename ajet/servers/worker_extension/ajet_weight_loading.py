"""Runs inside vLLM's worker: loads new weights in place, and checks that the model uses them.
PYTHONPATH contains only this folder, since ajet's packages must not shadow vLLM's. So this file
imports only torch, safetensors and vLLM, and loads files of core/weight_sync that import only torch
by their paths. Quantised weights and pipeline parallelism are not supported.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

Shapes = Mapping[str, tuple[int, ...]]
INDEX = "model.safetensors.index.json"
MAX_NAMED = 3
STALE_TOLERANCE = 1e-2
"""Relative, for the rounding of 16-bit types; a stale layer differs by far more."""


class DoNotFitError(Exception):
    """Weights that do not fit the model; the message is one line."""


class WeightLoading:
    """A mixin of vLLM's worker class, which `--worker-extension-cls` names. `rank` is the worker's
    among those of the server. POST /collective_rpc {"method": …, "kwargs": …} calls a method."""

    get_model: Any
    reload_weights: Any
    rank: int
    device: Any

    def ajet_load_weights(
        self, path: str, version: str, model_path: str, adapters: str | None = None
    ) -> dict[str, Any]:
        """Loads the weights in a folder, or the adapters there that `adapters` describes. Returns
        version, seconds and number of bytes, or {"error": one line} if a check fails. The caller
        has checked the checksums (servers/replica.py)."""
        folder = Path(path)
        return self._ajet_report(
            version,
            lambda: self._ajet_load(
                folder_shapes(folder), folder_tensors(folder), model_path, adapters
            ),
        )

    def ajet_receive_weights(
        self, memberships: str, version: str, model_path: str, adapters: str | None = None
    ) -> dict[str, Any]:
        """Takes part in a broadcast of weights; `memberships` is a JSON list with the arguments of
        each worker's group. Returns the same as `ajet_load_weights`, and the checksum of what was
        sent."""

        def receive() -> dict[str, Any]:
            groups = load_file("group.py")
            tensor_checksum = load_file("checksum.py").tensor_checksum
            try:
                group = groups.BroadcastGroup(**json.loads(memberships)[self.rank])
                incoming = Broadcast(group, tensor_checksum)
                try:
                    # Adapters are all received and checked before the model changes. Weights are
                    # loaded as they come: a damaged one is in the model before it is noticed.
                    tensors = incoming.tensors() if adapters is None else incoming.undamaged()
                    loaded = self._ajet_load(incoming.shapes, tensors, model_path, adapters)
                finally:
                    incoming.finish()
                    group.close()
            except groups.GroupError as error:
                raise DoNotFitError(str(error)) from error
            return loaded | {"checksum": incoming.checked(int(version))}

        return self._ajet_report(version, receive)

    def _ajet_report(self, version: str, load: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        started = time.perf_counter()
        try:
            loaded = load()
        except DoNotFitError as error:
            return {"error": f"weights of version {version}: {error}"}
        finally:
            load_file("group.py").release_unused_memory()
        return loaded | {"version": int(version), "seconds": time.perf_counter() - started}

    def _ajet_load(
        self,
        shapes: Shapes,
        tensors: Iterator[tuple[str, Tensor]],
        model_path: str,
        adapters: str | None,
    ) -> dict[str, Any]:
        import torch

        # The first load compares with the model's folder, later ones with what is loaded then.
        expected = getattr(self, "_ajet_shapes", None) or folder_shapes(Path(model_path))
        num_bytes = 0

        def counted() -> Iterator[tuple[str, Tensor]]:
            nonlocal num_bytes
            for name, tensor in tensors:
                num_bytes += tensor.nbytes
                yield name, tensor

        if adapters is None:
            check_names(shapes, expected)
            weights = counted()
        else:
            # vLLM fuses and packs a layer's weights, so a single one cannot be changed: the base is
            # read again, and all weights are loaded.
            base = Path(model_path)
            weights = merged(adapters, shapes, expected, counted(), base, self.device)
        model = self.get_model()
        before = packed_layers(model)
        with torch.no_grad():
            # vLLM's method sets the config that its layers read while they load, and knows which
            # tensors of the checkpoint it has fused.
            self.reload_weights(weights_iterator=weights)
            repack(model)
            check_fresh(model, before)
        self._ajet_shapes = expected
        return {"num_bytes": num_bytes}


def merged(
    adapters: str,
    shapes: Shapes,
    base_shapes: Shapes,
    tensors: Iterator[tuple[str, Tensor]],
    model: Path,
    device: Any,
) -> Iterator[tuple[str, Tensor]]:
    """Returns an iterator over the weights in the model's folder, merged with adapters, after a
    check that these fit; weights with an adapter are on the device."""
    module = load_file("adapters.py")
    loaded = module.Adapters.loads(adapters)
    try:
        loaded.check(shapes, base_shapes)
    except module.AdaptersError as error:
        raise DoNotFitError(str(error)) from error
    factors = loaded.factors({name: tensor.to(device) for name, tensor in tensors})
    return ((name, loaded.add(name, base, factors)) for name, base in folder_tensors(model))


class Broadcast:
    """Receives the weights that rank 0 of a group sends; see core/weight_sync/broadcast.py."""

    def __init__(self, group: Any, tensor_checksum: Callable[[Tensor], str]) -> None:
        self._group, self._tensor_checksum = group, tensor_checksum
        self._damaged: list[str] = []
        sent = group.receive_header()["shapes"]
        self.shapes = {name: tuple(shape) for name, shape in sent.items()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yields each tensor with its name as it comes. Damaged ones are noted and reported at the
        end: leaving now would make the other members of the group wait."""
        for header, tensor in self._group.tensors():
            if self._tensor_checksum(tensor) != header["checksum"]:
                self._damaged.append(header["name"])
            yield header["name"], tensor

    def undamaged(self) -> Iterator[tuple[str, Tensor]]:
        """Yields each tensor as `tensors` does; fails at the end if one came damaged."""
        yield from self.tensors()
        if self._damaged:
            raise DoNotFitError(f"{shorten_list(self._damaged)} came damaged")

    def finish(self) -> None:
        """Receives the rest, so that the other members of the group can end."""
        for _ in self.tensors():
            pass

    def checked(self, version: int) -> str:
        """Checks that this version came undamaged; returns the checksum of what was sent."""
        end = self._group.end
        if self._damaged:
            raise DoNotFitError(
                f"{shorten_list(self._damaged)} came damaged (the server now holds a mixture)"
            )
        if end["end"] != version:
            raise DoNotFitError(f"version {end['end']} came")
        return end["checksum"]


def load_file(name: str) -> Any:
    """Imports a file of core/weight_sync by its path."""
    path = Path(__file__).parents[2] / "core" / "weight_sync" / name
    spec = spec_from_file_location(f"ajet_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their types there
    spec.loader.exec_module(module)
    return module


def shards(folder: Path) -> list[Path]:
    """Returns the files of a model's weights: those in its index, else all safetensors."""
    index = folder / INDEX
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    names = json.loads(index.read_text("utf-8"))["weight_map"].values()
    return [folder / name for name in sorted(set(names))]


def folder_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the weights in a model's folder."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in shards(folder):
        with safe_open(path, framework="pt") as opened:
            shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return shapes


def folder_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights of a model's folder with their names, one by one."""
    from safetensors import safe_open

    for path in shards(folder):
        with safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118, it is not a dict
                yield name, opened.get_tensor(name)


def check_names(actual: Shapes, expected: Shapes) -> None:
    """Checks that both have the same names and shapes. `lm_head.weight`, which may be tied to the
    embedding, may be missing in one."""
    tied = {"lm_head.weight"}
    if missing := sorted(expected.keys() - actual.keys() - tied):
        raise DoNotFitError(f"missing {shorten_list(missing)}")
    if unknown := sorted(actual.keys() - expected.keys() - tied):
        raise DoNotFitError(f"the served model has no tensor {shorten_list(unknown)}")
    for name in sorted(actual.keys() & expected.keys()):
        if actual[name] != expected[name]:
            raise DoNotFitError(
                f"{name} is {list(actual[name])}, the served model's is {list(expected[name])}"
            )


def shorten_list(names: list[str]) -> str:
    """Returns the first names and how many more there are."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def packed_layers(model: nn.Module) -> dict[str, object]:
    """Returns the compute function of each packed layer by name. On a CPU vLLM computes linear
    layers with packed copies of their weights, which a reload may leave stale."""
    import torch

    plain = torch.nn.functional.linear
    functions = {
        name: getattr(module, "cpu_linear", plain) for name, module in model.named_modules()
    }
    return {name: compute for name, compute in functions.items() if compute is not plain}


def repack(model: nn.Module) -> None:
    """Packs layers that keep their plain weights again, in case the reload has not."""
    modules = dict(model.named_modules())
    repackable = [modules[name] for name in packed_layers(model) if modules[name].weight.ndim == 2]
    if repackable:
        from vllm.model_executor.layers import utils as layers  # pyright: ignore[reportMissingImports]

        for module in repackable:
            layers.dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def check_fresh(model: nn.Module, before: Mapping[str, object]) -> None:
    """Checks that each packed copy is a new object and, if its plain weights are still there,
    computes the same."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for name, compute in packed_layers(model).items():
        module: Any = model.get_submodule(name)
        if compute is before.get(name):
            raise DoNotFitError(f"{name} still computes with its old weights")
        if module.weight.ndim != 2:
            continue
        weight = module.weight
        probe = torch.randn(1, weight.shape[1], generator=generator).to(weight.dtype)
        actual = module.cpu_linear(probe, weight, None).float()
        expected = torch.nn.functional.linear(probe, weight).float()
        if (actual - expected).abs().max() > STALE_TOLERANCE * expected.abs().max():
            raise DoNotFitError(f"{name} still computes with its old weights")
