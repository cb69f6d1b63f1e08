"""Decode steps of the in-process engine on a GPU: a step is captured once and replayed.

    step after the batch's tensors have moved    eager; warms up what the capture uses
    the step after that                          captured, and replayed
    further ones                                 replayed: one launch in place of hundreds

A replay repeats the same launches on the same memory. So a step reads its tokens from one tensor,
positions and column from another, which are written to before each replay, and the batch is a
`CudaBatch` (cuda_batch.py) or a `GraphBatch` (graph_batch.py), whose keys and values keep their
places. Which steps are replayed follows from the rows alone, never from timing.

Not covered: sampling, which is a few launches after each step; sharded weights, which are gathered
for each layer; models without a flat forward. Their steps all run eagerly.
"""

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.error_codes import Code
from ajet.core.errors import ModelError
from ajet.core.model.decoder import is_sharded
from ajet.core.model.transfer import UploadBuffer

Compute = Callable[[], Tensor]
"""Computes a step from memory that it finds by itself, and returns the logits."""


class Graph(Protocol):
    """Holds the launches of one step, on one device."""

    def warm_up(self, compute: Compute) -> Tensor:
        """Computes a step where the next one may be captured."""
        ...

    def capture(self, compute: Compute) -> Tensor:
        """Captures a step in place of the one before, whose logits are not used any more. Returns
        the tensor that each replay writes the logits to; nothing is computed yet."""
        ...

    def replay(self) -> None:
        """Computes the captured step on what is in its memory now."""
        ...

    def free(self) -> None:
        """Drops the captured step and its memory."""
        ...


MakeGraph = Callable[[nn.Module], Graph | None]
"""Makes a graph for a model's decode steps; None if they must run eagerly."""


class StepGraph:
    """Computes decode steps: by a graph where the step before had the same tensors."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self._graph, self._device = graph, device
        self._inputs: tuple[Tensor, UploadBuffer] | None = None
        self._logits: Tensor | None = None
        self.num_replayed = 0

    def step(
        self,
        tokens: Tensor,
        places: NDArray[np.int64],
        compute: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Returns the logits of a step that computes on these tokens and numbers, which change from
        step to step. The next step overwrites the logits."""
        is_first = self._inputs is None
        if self._inputs is None:
            held = torch.empty_like(tokens, dtype=torch.long, device=self._device)
            self._inputs = held, UploadBuffer(places, self._device)
        held, buffer = self._inputs
        inputs = held.copy_(tokens, non_blocking=True), buffer.write(places)
        if is_first:
            return self._graph.warm_up(lambda: compute(*inputs))
        if self._logits is None:
            self._logits = self._graph.capture(lambda: compute(*inputs))
        self._graph.replay()
        self.num_replayed += 1
        return self._logits

    def forget(self) -> None:
        """Notes that the tensors of the next step are others, or other rows' ones."""
        self._inputs = self._logits = None

    def free(self) -> None:
        """Frees the memory of the captured step."""
        self.forget()
        self._graph.free()


class CudaGraph:
    """A `Graph` of CUDA's."""

    _capturing = threading.Lock()  # torch captures one graph of a process at a time

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def warm_up(self, compute: Compute) -> Tensor:
        """Computes on the capture's stream, for which libraries then have their workspaces."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            out = compute()
        current.wait_stream(self._stream)
        return out

    def capture(self, compute: Compute) -> Tensor:
        """Captures in the memory of the graph before, which ends with this one."""
        # Not torch.cuda.graph(), which also gives all cached memory back to the driver: batches
        # change shape every few steps. "thread_local": other threads may use the GPU meanwhile.
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
        """Launches the graph on the current stream."""
        assert self._graph is not None, "capture() comes first"
        self._graph.replay()

    def free(self) -> None:
        """Drops the graph; the allocator then has its memory."""
        self._graph = None


def cuda_graph_of(model: nn.Module) -> Graph | None:
    """Returns a graph for a model on a CUDA GPU whose weights are whole."""
    device = next(model.parameters()).device
    return CudaGraph(device) if device.type == "cuda" and not is_sharded(model) else None
