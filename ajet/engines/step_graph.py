"""CUDA graphs for decode steps of the in-process engine: a step is captured once and replayed.

first step after the batch's tensors moved   eager; warms up what the capture uses
second step                                  captured, and replayed
later steps                                  replayed: one launch instead of hundreds
"""

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.model.decoder import is_sharded
from ajet.core.model.transfer import UploadBuffer

Compute = Callable[[], Tensor]
"""Computes a step from fixed memory, and returns the logits."""


class Graph(Protocol):
    """The launches of one step on one device."""

    def warm_up(self, compute: Compute) -> Tensor:
        """Computes a step, to prepare for capturing the next one."""
        ...

    def capture(self, compute: Compute) -> Tensor:
        """Captures a step in place of the previous one, without computing it. Returns the tensor to
        which each replay writes the logits; the old one must not be used any more."""
        ...

    def replay(self) -> None:
        """Computes the captured step on the present content of its memory."""
        ...

    def free(self) -> None:
        """Drops the captured step and its memory."""
        ...


MakeGraph = Callable[[nn.Module], Graph | None]
"""Returns a graph for a model's decode steps; None if they must run eagerly."""


class StepGraph:
    """Computes decode steps, with a graph if the previous step had the same tensors.

    A replay repeats the same launches on the same memory. So tokens, positions and the column are
    copied into fixed tensors before each replay, and the keys and values of the batch (`CudaBatch`
    or `GraphBatch`) do not move. Which steps are replayed depends only on the rows, not on timing.
    """

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self._graph, self._device = graph, device
        self._inputs: tuple[Tensor, UploadBuffer] | None = None
        self._logits: Tensor | None = None
        self.num_replayed = 0

    def step(
        self, tokens: Tensor, places: NDArray[np.int64], compute: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Returns the logits of a step. `tokens` and `places` change from step to step. The next
        step overwrites the logits."""
        is_first = self._inputs is None
        if self._inputs is None:
            static = torch.empty_like(tokens, dtype=torch.long, device=self._device)
            self._inputs = static, UploadBuffer(places, self._device)
        static, buffer = self._inputs
        inputs = static.copy_(tokens, non_blocking=True), buffer.write(places)
        if is_first:
            return self._graph.warm_up(lambda: compute(*inputs))
        if self._logits is None:
            self._logits = self._graph.capture(lambda: compute(*inputs))
        self._graph.replay()
        self.num_replayed += 1
        return self._logits

    def forget(self) -> None:
        """Notes that the next step has different tensors or rows."""
        self._inputs = self._logits = None

    def free(self) -> None:
        """Frees the memory of the captured step."""
        self.forget()
        self._graph.free()


class CudaGraph:
    """A `Graph` on a CUDA GPU."""

    _capturing = threading.Lock()  # torch captures one graph of a process at a time

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def warm_up(self, compute: Compute) -> Tensor:
        """Computes on the capture's stream, so that libraries allocate their workspaces for it."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            out = compute()
        current.wait_stream(self._stream)
        return out

    def capture(self, compute: Compute) -> Tensor:
        """Captures a step, in the memory of the previous graph."""
        # Not torch.cuda.graph(), which also returns all cached memory to the driver: too slow for
        # batches that change shape every few steps. "thread_local": other threads may use the GPU.
        graph = torch.cuda.CUDAGraph()
        pool = None if self._graph is None else self._graph.pool()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with self._capturing, torch.cuda.stream(self._stream):
                graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    out = compute()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            cause, _, _ = str(error.__context__ or error).partition("\n")
            raise ModelError(
                f"in-process engine: a decode step cannot be captured as a CUDA graph: {cause}; "
                "set ajet.rollout.cuda_graphs=false",
                code=Code.ENGINE_FAILED,
            ) from error
        self._graph = graph
        return out

    def replay(self) -> None:
        assert self._graph is not None, "capture() comes first"
        self._graph.replay()

    def free(self) -> None:
        self._graph = None


def cuda_graph_of(model: nn.Module) -> Graph | None:
    """Returns a graph for a model on a CUDA GPU. Sharded weights, which are gathered for each
    layer, have none."""
    device = next(model.parameters()).device
    return CudaGraph(device) if device.type == "cuda" and not is_sharded(model) else None
