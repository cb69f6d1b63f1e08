"""Runs inside vLLM's worker: loads new weights in place, and checks that the model uses them.

    POST /collective_rpc {"method": "ajet_load_weights", "kwargs": {"path": "…/v00000007", …}}
                         {"method": "ajet_receive_weights", "kwargs": {"memberships": …, …}}

`--worker-extension-cls` names the class here. vLLM's Python finds this file by PYTHONPATH, which is
the folder of this file alone: the packages beside ajet must not take the place of vLLM's. So it
imports nothing but torch, safetensors and vLLM, and loads files of ajet, which import torch alone,
by their paths: core/weight_sync/group.py, checksum.py, adapters.py and unused_memory.py.

Before the first byte changes, names and shapes are checked: they must be those of the weights that
the worker holds (their list is stored at the first load, which compares with the model's own
folder). The bytes of a folder are checked before, by the process that sends the request
(servers/replica.py); those of a broadcast as they come, and a damaged tensor is then in the model,
which the error says.

Adapters alone are all received and checked first. Then the worker reads the base weights from the
model's own folder once more and loads all weights, with the adapters added: vLLM fuses and packs
the weights of a layer, so one cannot be changed by itself.

On a CPU vLLM computes with packed copies of its linear layers, which a reload may leave stale. So
every copy must be a new object after the load. If the plain weights are still there, they are
packed once more, and the copy must compute the same as they do.

Not covered: quantised weights; pipeline parallelism (each rank loads the whole folder).
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
"""A relative tolerance for the rounding of 16-bit types; a stale layer differs by far more."""


class DoNotFitError(Exception):
    """Says in one line why weights are not the model's."""


class WeightLoading:
    """A mixin of vLLM's worker class, which provides the other methods, and its rank among the
    server's workers."""

    get_model: Any
    reload_weights: Any
    rank: int
    device: Any

    def ajet_load_weights(
        self, path: str, version: str, model_path: str, adapters: str | None = None
    ) -> dict[str, Any]:
        """Loads the weights of a folder, or the `adapters` there, which this describes; returns
        their version, seconds and number of bytes. If a check fails it returns
        {"error": one line}."""
        folder = Path(path)
        return self._ajet_report(
            version,
            lambda: self._ajet_load(
                folder_shapes(folder), folder_tensors(folder), model_path, adapters
            ),
        )

    def ajet_receive_weights(
        self,
        memberships: str,
        version: str,
        model_path: str,
        adapters: str | None = None,
    ) -> dict[str, Any]:
        """Takes part in a broadcast of weights, for which `memberships` has in JSON what each of
        the server's workers needs; returns what `ajet_load_weights` does, and the checksum of what
        was sent."""

        def receive() -> dict[str, Any]:
            of_group = load_file("group.py")
            tensor_checksum = load_file("checksum.py").tensor_checksum
            try:
                group = of_group.BroadcastGroup(**json.loads(memberships)[self.rank])
                incoming = Broadcast(group, tensor_checksum)
                try:
                    tensors = incoming.tensors() if adapters is None else incoming.undamaged()
                    loaded = self._ajet_load(incoming.shapes, tensors, model_path, adapters)
                finally:
                    incoming.finish()
                    group.close()
            except of_group.GroupError as error:
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
            load_file("unused_memory.py").release_unused_memory()
        return loaded | {"version": int(version), "seconds": time.perf_counter() - started}

    def _ajet_load(
        self,
        shapes: Shapes,
        tensors: Iterator[tuple[str, Tensor]],
        model_path: str,
        adapters: str | None,
    ) -> dict[str, Any]:
        import torch

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
            added = Added(adapters, shapes, expected)
            weights = added.weights(dict(counted()), Path(model_path), self.device)
        model = self.get_model()
        before = packed_layers(model)
        with torch.no_grad():
            # The worker's own method, which sets the config that vLLM's layers read while they
            # load. Only vLLM knows which tensors of the checkpoint it has fused.
            self.reload_weights(weights_iterator=weights)
            repack(model)
            check_fresh(model, before)
        self._ajet_shapes = expected
        return {"num_bytes": num_bytes}


class Added:
    """Adds adapters to the base weights in the model's folder."""

    def __init__(self, adapters: str, shapes: Shapes, base: Shapes) -> None:
        """Checks that adapters of these shapes fit the base weights."""
        of_adapters = load_file("adapters.py")
        self._adapters = of_adapters.Adapters.loads(adapters)
        try:
            self._adapters.check(shapes, base)
        except of_adapters.AdaptersError as error:
            raise DoNotFitError(str(error)) from error

    def weights(
        self, tensors: Mapping[str, Tensor], model: Path, device: Any
    ) -> Iterator[tuple[str, Tensor]]:
        """Returns an iterator over all weights, those with an adapter on the device."""
        moved = {name: tensor.to(device) for name, tensor in tensors.items()}
        factors = self._adapters.factors(moved)
        return (
            (name, self._adapters.add(name, base, factors)) for name, base in folder_tensors(model)
        )


class Broadcast:
    """Receives the weights that rank 0 of a group sends; see core/weight_sync/broadcast.py."""

    def __init__(self, group: Any, tensor_checksum: Callable[[Tensor], str]) -> None:
        self._group, self._tensor_checksum = group, tensor_checksum
        self._damaged: list[str] = []
        sent = group.receive_header()["shapes"]
        self.shapes = {name: tuple(shape) for name, shape in sent.items()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yields each tensor with its name as it comes. A damaged one is noted: the others of the
        group are not left waiting."""
        for header, tensor in self._group.tensors():
            if self._tensor_checksum(tensor) != header["checksum"]:
                self._damaged.append(header["name"])
            yield header["name"], tensor

    def undamaged(self) -> Iterator[tuple[str, Tensor]]:
        """Yields each tensor as `tensors` does, and fails at the end if one came damaged."""
        yield from self.tensors()
        if self._damaged:
            raise DoNotFitError(f"{shorten_list(self._damaged)} came damaged")

    def finish(self) -> None:
        """Receives what the model did not take, so that the others of the group end."""
        for _ in self.tensors():
            pass

    def checked(self, version: int) -> str:
        """Checks that all of this version came undamaged; returns the checksum of what was sent."""
        end = self._group.end
        if self._damaged:
            raise DoNotFitError(
                f"{shorten_list(self._damaged)} came damaged (the server now holds a mixture)"
            )
        if end["end"] != version:
            raise DoNotFitError(f"version {end['end']} came")
        return end["checksum"]


def load_file(name: str) -> Any:
    """Imports a file of core/weight_sync, which is in no package here."""
    path = Path(__file__).parents[2] / "core" / "weight_sync" / name
    spec = spec_from_file_location(f"ajet_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for its types
    spec.loader.exec_module(module)
    return module


def shards(folder: Path) -> list[Path]:
    """Returns the files of a model's weights: those that its index names, else all safetensors."""
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
    """Checks that both have the same names and shapes. `lm_head.weight` may be missing in one,
    since it may be tied to the embedding."""
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
    """Returns the first few of many names, for a message of one line."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def packed_layers(model: nn.Module) -> dict[str, object]:
    """Returns the compute function of each packed layer by name (CPU only). A layer with the plain
    `linear` function is not packed."""
    import torch

    plain = torch.nn.functional.linear
    layers = {name: getattr(module, "cpu_linear", plain) for name, module in model.named_modules()}
    return {name: compute for name, compute in layers.items() if compute is not plain}


def repack(model: nn.Module) -> None:
    """Packs again the layers that keep their plain weights, in case a reload has not done so."""
    modules = dict(model.named_modules())
    repackable = [modules[name] for name in packed_layers(model) if modules[name].weight.ndim == 2]
    if repackable:
        from vllm.model_executor.layers import utils as layers  # pyright: ignore[reportMissingImports]

        for module in repackable:
            layers.dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def check_fresh(model: nn.Module, before: Mapping[str, object]) -> None:
    """Checks that each packed layer is a new object, and that it computes the same as its plain
    weights if it keeps them."""
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
