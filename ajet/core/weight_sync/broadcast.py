"""Weight sync through torch.distributed: rank 0 broadcasts, every other rank receives. The first
header has all names and shapes, so that a worker can refuse them before it changes anything; each
tensor's header has its checksum, and the last one that of all. If a receiver dies, the broadcast
fails or times out, and the router starts another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.core.net.rendezvous import listen
from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.group import Backend, BroadcastGroup, GroupError, first_line
from ajet.core.weight_sync.manifest import Manifest, SyncReport, TensorInfo, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class BroadcastReceiver:
    """One receiver of one version's broadcast; cheap to send to another process.

    A receiver with several workers has the ranks `rank` to `rank + width - 1`. `gpu` is the number
    of the GPU to receive on in the receiving process (None: its current one).
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
        """Returns what each worker needs to join the group, as plain values."""
        names = ("address", "port", "rank", "size", "backend", "timeout_s")
        first = {name: getattr(self, name) for name in names}
        return [first | {"rank": self.rank + worker} for worker in range(self.width)]

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Joins the group, and yields the tensors as they arrive, each in new memory."""
        with self.joined() as group:
            yield from self.received(group)

    @contextmanager
    def joined(self) -> Iterator[BroadcastGroup]:
        """Joins the group for the length of the block, and receives the first header."""
        with _joined(self.address, self.port, self.rank, self.size, self, gpu=self.gpu) as group:
            group.receive_header()  # the shapes, which `load_tensors` checks tensor by tensor
            yield group

    def received(self, group: BroadcastGroup) -> Iterator[tuple[TensorInfo, Tensor]]:
        """Yields the tensors as they arrive, and checks at the end that all have arrived."""
        infos: list[TensorInfo] = []
        for header, tensor in group.tensors():
            infos.append(TensorInfo.from_json(header))
            yield infos[-1], tensor
        end = group.end
        assert end is not None
        if end["end"] != self.version:
            raise WeightsError(f"{group.where}: received version {end['end']}, not {self.version}")
        if end["checksum"] != Manifest(self.version, tuple(infos)).checksum:
            raise WeightsError(f"{group.where}: version {self.version} arrived incomplete")


@dataclass(frozen=True, slots=True)
class HandoverReceiver:
    """An engine over several GPUs, each shared with a trainer rank. Each rank broadcasts all
    weights in a separate group to the engine's receiver on its GPU."""

    receivers: tuple[BroadcastReceiver, ...]

    @property
    def version(self) -> int:
        return self.receivers[0].version

    @property
    def adapters(self) -> Adapters | None:
        return self.receivers[0].adapters

    @property
    def can_be_read_again(self) -> bool:
        return False

    def memberships(self) -> list[dict[str, Any]]:
        """Returns what each worker needs to join its group, as plain values."""
        return [m for receiver in self.receivers for m in receiver.memberships()]

    def copies(self) -> Generator[tuple[TensorInfo, tuple[Tensor, ...]], None, None]:
        """Yields each tensor as a tuple with its copy on every GPU."""
        with ExitStack() as stack:
            # All groups are joined before the first tensor, and then each gives its next tensor:
            # the senders gather a tensor together, so none can be ahead of the others.
            groups = [stack.enter_context(receiver.joined()) for receiver in self.receivers]
            incoming = [r.received(group) for r, group in zip(self.receivers, groups, strict=True)]
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
    """Rank 0 of every broadcast, in the process that has the weights.

        trainer    sender.snapshot(version, tensors)          a copy in CPU memory
                   receivers = sender.receivers(version, 3)   one for each engine, sent to it
                   sender.send()                              shapes, header, tensor, header, … end
        replica    load_weights(model, receiver)              joins, receives, leaves

    The copy can be sent again, for example to an engine that replaces a dead one. On the engines'
    device (backend ipc) `hold` lends the weights without a copy, until `drop`."""

    def __init__(
        self,
        address: str,
        *,
        backend: Backend = "gloo",
        timeout_s: float = TIMEOUT_S,
        width: int = 1,
    ) -> None:
        """`address` is that of this machine for the receivers, `width` the workers of each."""
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
        """Copies the weights to CPU memory, so that the trainer may change them. `adapters`
        describes them if they are adapters without base weights."""
        copy = {name: t.detach().to("cpu", copy=True) for name, t in tensors}
        self.hold(version, {name: tuple(t.shape) for name, t in copy.items()}, copy.items)
        self._adapters = adapters

    def hold(
        self,
        version: int,
        shapes: Mapping[str, tuple[int, ...]],
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
    ) -> None:
        """Makes each `send` read the weights from `weights()`, in the order of `shapes`, without a
        copy. The trainer must call `drop` before it changes them."""
        self._version, self._shapes, self._weights = version, shapes, weights
        self._adapters = None

    def drop(self) -> None:
        """Forgets the weights; no version can be sent any more."""
        self._version, self._weights = None, tuple

    def receivers(self, version: int, number: int) -> list[BroadcastReceiver]:
        """Returns `number` receivers, which may start receiving before `send` is called."""
        if version != self._version:
            state = "has moved on" if self._version is None else f"has {self._version}"
            raise WeightsError(
                f"weights of version {version} are no longer available: the trainer {state}"
            )
        if not number:
            return []
        size = number * self._width + 1  # with rank 0
        try:
            store = listen(self._address, 0, size, self.timeout_s)
        except (OSError, RuntimeError, ValueError) as error:
            raise WeightsError(
                f"weights by broadcast from {self._address}: {first_line(error)}"
            ) from error
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
        """Sends the weights to the latest receivers, one tensor at a time. Returns None if there
        are none."""
        weights = iter(self._weights())
        try:
            if self._pending is None:
                return None
            assert self._version is not None
            (store, size), self._pending = self._pending, None
            with _joined(self._address, store.port, 0, size, self, store=store) as group:
                return send_tensors(group, self._version, self._shapes, weights)
        finally:
            # Even after a failure: the other ranks gather each sharded tensor together with this
            # one.
            for _ in weights:
                pass


def send_tensors(
    group: BroadcastGroup,
    version: int,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, Tensor]],
) -> SyncReport:
    """Sends all shapes, a header and the bytes of each tensor, and finally the checksum of all."""
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
    """Joins a group for the length of the block. Its errors become `WeightsError`."""
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
