"""Weight sync by a broadcast of torch.distributed: rank 0 sends, every other rank receives.

    trainer    sender.snapshot(version, tensors)      a copy in the CPU's memory
               receivers = sender.receivers(version, 3)   one for each engine, sent to it
               sender.send()                          shapes, header, tensor, header, tensor, … end
    replica    load_weights(model, receiver)              joins, receives, leaves

The copy can be sent several times: to all engines, and later to one that replaces a dead one. On
the engines' own device (backend ipc) no copy is made: `hold` gives the weights as they are, until
the trainer goes on and drops them.

Each broadcast has a group of its own (group.py). The first header has all names and shapes, so that
a server's worker can refuse them before it changes a byte; each tensor's has name, type, shape and
checksum; the last one has the checksum of all. A receiver that finds a damaged tensor receives the
rest before it fails, so that the others are not left waiting. The workers of an inference server
receive by the same headers (servers/worker_extension/); each has a rank, so a server has `width`
of them.

An engine over several GPUs, each of which a trainer rank has too, is handed the weights on all of
them (`HandoverReceiver`): each rank has a broadcast of its own, to the engine's part on its GPU.

Not covered: a receiver that dies. The others' broadcast then fails or ends with the group's
timeout, and the router begins another (core/inference/router.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.core.rendezvous import listen
from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.group import Backend, BroadcastGroup, GroupError, first_line
from ajet.core.weight_sync.manifest import Manifest, SyncReport, TensorInfo, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class BroadcastReceiver:
    """Describes one receiver of one version's broadcast; it is cheap to send to another process.

    A receiver of several workers (`width`) has the ranks `rank` to `rank + width - 1`. `gpu` is the
    number of the GPU to receive on, in the process that does; None is its current one.
    """

    address: str
    port: int
    rank: int
    size: int
    version: int
    backend: Backend = "gloo"
    timeout_s: float = TIMEOUT_S
    width: int = 1
    adapters: Adapters | None = None
    gpu: int | None = None

    @property
    def can_be_read_again(self) -> bool:
        return False

    def memberships(self) -> list[dict[str, Any]]:
        """Returns what each worker needs to join the group, in plain values."""
        names = ("address", "port", "rank", "size", "backend", "timeout_s")
        first = {name: getattr(self, name) for name in names}
        return [first | {"rank": self.rank + worker} for worker in range(self.width)]

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Joins the group, waits for all its members, and yields the tensors as they come, each in
        new memory."""
        with self.joined() as group:
            yield from self.received(group)

    @contextmanager
    def joined(self) -> Iterator[BroadcastGroup]:
        """Is a member of the group for the length of the block, and has received the shapes, which
        `load_tensors` checks tensor by tensor."""
        with _joined(self.address, self.port, self.rank, self.size, self, gpu=self.gpu) as group:
            group.receive_header()
            yield group

    def received(self, group: BroadcastGroup) -> Iterator[tuple[TensorInfo, Tensor]]:
        """Yields the tensors as they come, and checks at the end that all have come."""
        infos: list[TensorInfo] = []
        for header, tensor in group.tensors():
            infos.append(TensorInfo.from_json(header))
            yield infos[-1], tensor
        end = group.end
        assert end is not None
        if end["end"] != self.version:
            raise WeightsError(f"{group.where}: version {end['end']} came, not {self.version}")
        if end["checksum"] != Manifest(self.version, tuple(infos)).checksum:
            raise WeightsError(f"{group.where}: version {self.version} came incomplete")


@dataclass(frozen=True, slots=True)
class HandoverReceiver:
    """Describes an engine over several GPUs: a receiver on each of them, with a sender of its own.
    Each gets all weights."""

    parts: tuple[BroadcastReceiver, ...]

    @property
    def version(self) -> int:
        return self.parts[0].version

    @property
    def adapters(self) -> Adapters | None:
        return self.parts[0].adapters

    @property
    def can_be_read_again(self) -> bool:
        return False

    def memberships(self) -> list[dict[str, Any]]:
        """Returns what each worker needs to join its group, in plain values."""
        return [membership for part in self.parts for membership in part.memberships()]

    def copies(self) -> Generator[tuple[TensorInfo, tuple[Tensor, ...]], None, None]:
        """Yields each tensor on all GPUs.

        All groups are joined before the first tensor, and then the next tensor is taken from each
        of them: the senders gather it together, so none goes on before all are rid of the last one.
        """
        with ExitStack() as stack:
            groups = [stack.enter_context(part.joined()) for part in self.parts]
            incoming = [
                part.received(group) for part, group in zip(self.parts, groups, strict=True)
            ]
            for received in zip(*incoming, strict=True):
                if len({info for info, _ in received}) > 1:
                    raise WeightsError(
                        f"weights of version {self.version}: the trainer ranks sent different "
                        f"{received[0][0].name}"
                    )
                yield received[0][0], tuple(tensor for _, tensor in received)

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Yields each tensor on the first GPU."""
        with closing(self.copies()) as incoming:
            for info, tensors in incoming:
                yield info, tensors[0]


class BroadcastSender:
    """Acts as rank 0 of every broadcast, in the process that has the weights."""

    def __init__(
        self,
        address: str,
        *,
        backend: Backend = "gloo",
        timeout_s: float = TIMEOUT_S,
        width: int = 1,
    ) -> None:
        """Takes the `address` at which receivers reach this machine, and how many workers each
        receiver has."""
        self.backend: Backend = backend
        self.timeout_s = timeout_s
        self._address, self._width = address, width
        self._version: int | None = None
        self._adapters: Adapters | None = None
        self._shapes: Mapping[str, tuple[int, ...]] = {}
        self._weights: Callable[[], Iterable[tuple[str, Tensor]]] = tuple
        self._pending: tuple[Any, int] | None = None

    def snapshot(
        self,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        adapters: Adapters | None = None,
    ) -> None:
        """Copies the weights to CPU memory, so that the trainer can go on changing them. `adapters`
        describes them if they are adapters alone."""
        copy = {name: t.detach().to("cpu", copy=True) for name, t in tensors}
        self.hold(version, {name: tuple(t.shape) for name, t in copy.items()}, copy.items)
        self._adapters = adapters

    def hold(
        self,
        version: int,
        shapes: Mapping[str, tuple[int, ...]],
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
    ) -> None:
        """Has each `send` take the weights from `weights()`, in the order of `shapes`, without a
        copy. The trainer calls `drop` before it changes them."""
        self._version, self._shapes, self._weights = version, shapes, weights
        self._adapters = None

    def drop(self) -> None:
        """Forgets the weights: no version can be had any more."""
        self._version, self._weights = None, tuple

    def receivers(self, version: int, number: int) -> list[BroadcastReceiver]:
        """Returns `number` receivers, which may begin to receive before `send` is called."""
        if version != self._version:
            now = "goes on" if self._version is None else f"has {self._version}"
            raise WeightsError(
                f"weights of version {version} cannot be had again: the trainer {now}"
            )
        if not number:
            return []
        size = number * self._width + 1
        store = open_store(self._address, size, self.timeout_s)
        self._pending = store, size
        return [
            BroadcastReceiver(
                self._address,
                store.port,
                rank,
                size,
                version,
                self.backend,
                self.timeout_s,
                self._width,
                self._adapters,
            )
            for rank in range(1, size, self._width)
        ]

    def send(self) -> SyncReport | None:
        """Sends the weights to the receivers that were made last, one tensor at a time; returns
        None if there are none. All weights are taken even after a failure: where they are sharded,
        the other ranks gather each of them together with this one."""
        weights = iter(self._weights())
        try:
            if self._pending is None:
                return None
            assert self._version is not None
            (store, size), self._pending = self._pending, None
            with _joined(self._address, store.port, 0, size, self, store=store) as group:
                return send_tensors(group, self._version, self._shapes, weights)
        finally:
            for _ in weights:
                pass


def send_tensors(
    group: BroadcastGroup,
    version: int,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, Tensor]],
) -> SyncReport:
    """Sends all shapes, then a header and the bytes of each tensor, and at the end the checksum of
    all."""
    started = time.perf_counter()
    group.send_header({"shapes": {name: list(shape) for name, shape in shapes.items()}})
    infos = []
    for name, tensor in tensors:
        moved = tensor.detach().to(group.device).contiguous()
        infos.append(TensorInfo.of(name, moved))
        group.send_header(infos[-1].to_json())
        group.broadcast(moved)
    manifest = Manifest(version, tuple(infos))
    group.send_header({"end": version, "checksum": manifest.checksum})
    seconds = time.perf_counter() - started
    return SyncReport(version, seconds, manifest.num_bytes, manifest.checksum)


@contextmanager
def _joined(
    address: str,
    port: int,
    rank: int,
    size: int,
    settings: BroadcastReceiver | BroadcastSender,
    store: Any = None,
    gpu: int | None = None,
) -> Iterator[BroadcastGroup]:
    """Joins a group for the length of the block; its errors are raised as `WeightsError`."""
    try:
        group = BroadcastGroup(
            address,
            port,
            rank=rank,
            size=size,
            backend=settings.backend,
            timeout_s=settings.timeout_s,
            store=store,
            gpu=gpu,
        )
        try:
            yield group
        finally:
            group.close()
    except GroupError as error:
        raise WeightsError(str(error)) from error


def open_store(address: str, size: int, timeout_s: float) -> Any:
    """Opens the store through which a group of `size` processes meets, on a free port."""
    try:
        return listen(address, 0, size, timeout_s)
    except (OSError, RuntimeError, ValueError) as error:
        raise WeightsError(f"weights by broadcast from {address}: {first_line(error)}") from error
