"""Weight sync through safetensors on disk ("checkpoint") or in shared memory ("memory"). A version
is written under a temporary name and renamed, so it is complete or absent. A reader holds a shared
lock, which the kernel releases if it dies; the writer removes old versions that are not locked. On
a network file system without `flock`, a version may be removed while it is read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ajet.core.process.file_lock import take
from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.manifest import Manifest, TensorInfo, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

SHARED_MEMORY = Path("/dev/shm")
SHARD_BYTES = 1 << 29
MANIFEST, LOCK, PREFIX = "manifest.json", ".lock", "v"
INDEX = "model.safetensors.index.json"
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged JSON file raises."""


def shared_memory_root() -> Path:
    """Returns the folder of shared memory, or the temporary folder if there is none."""
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return SHARED_MEMORY if usable else Path(tempfile.gettempdir())


@dataclass(frozen=True, slots=True)
class FolderSource:
    """One version in its folder; cheap to send to a process that sees the same file system."""

    path: Path
    version: int
    adapters: Adapters | None = None
    """Set if the folder has adapters without base weights."""

    @property
    def can_be_read_again(self) -> bool:
        return True

    def manifest(self) -> Manifest:
        """Reads the manifest; raises `WeightsError` if the folder is missing or incomplete."""
        try:
            return Manifest.loads((self.path / MANIFEST).read_text("utf-8"))
        except FileNotFoundError:
            raise WeightsError(
                f"weights of version {self.version}: {self.path} is not there (removed, or on "
                "another machine)"
            ) from None
        except UNREADABLE as error:
            raise self._damaged(MANIFEST) from error

    def tensors(self) -> Generator[tuple[TensorInfo, Tensor], None, None]:
        """Yields the tensors one by one; the folder is locked until the last one."""
        from safetensors import SafetensorError, safe_open

        with self.read_lock():
            infos = {info.name: info for info in self.manifest().tensors}
            for shard in self._shards():
                try:
                    with safe_open(self.path / shard, framework="pt") as opened:
                        for name in opened.keys():  # noqa: SIM118, it is not a dict
                            yield infos[name], opened.get_tensor(name)
                except (SafetensorError, OSError) as error:
                    raise WeightsError(
                        f"weights of version {self.version}: {self.path / shard}: {error}"
                    ) from error

    def _shards(self) -> list[str]:
        try:
            weight_map = json.loads((self.path / INDEX).read_text("utf-8"))["weight_map"]
            return sorted(set(weight_map.values()))
        except (OSError, *UNREADABLE) as error:
            raise self._damaged(INDEX) from error

    def _damaged(self, name: str) -> WeightsError:
        return WeightsError(f"weights of version {self.version}: {self.path / name} is damaged")

    @contextmanager
    def read_lock(self) -> Iterator[None]:
        """Keeps the writer from removing the folder inside the context."""
        try:
            lock = os.open(self.path / LOCK, os.O_RDONLY)
        except FileNotFoundError:
            self.manifest()  # raises a WeightsError with the reason
            raise
        try:
            take(lock, shared=True)
            yield
        finally:
            os.close(lock)


class WeightFolder:
    """Writes versions of the weights below one root; a root has one writer.

    root/v00000007/manifest.json                      version, names, shapes, checksums
                   model-00001.safetensors …          shards; one is in memory while writing
                   model.safetensors.index.json       for readers of Hugging Face's format
                   config.json …                      copied from `extra_files` for servers"""

    def __init__(
        self,
        root: Path,
        *,
        extra_files: Sequence[Path] = (),
        keep: int = 2,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        """Copies the `extra_files` into every version, and keeps the newest `keep` versions."""
        self.root = root
        self._extra_files = tuple(extra_files)
        self._keep = keep
        self._shard_bytes = shard_bytes
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f".{PREFIX}*"):  # leftovers of a writer that was killed
            shutil.rmtree(leftover, ignore_errors=True)

    @classmethod
    def for_model(cls, root: Path, files: Mapping[str, bytes]) -> Self:
        """Makes a folder in which each version is a model that a server can start from. `files` are
        the contents of the model's other files (`model_files`)."""
        (root / "model").mkdir(parents=True, exist_ok=True)
        extra_files = []
        for name, content in files.items():
            if "/" not in name:  # subfolders only have further chat templates, for no server
                extra_files.append(root / "model" / name)
                extra_files[-1].write_bytes(content)
        return cls(root, extra_files=extra_files, keep=1)

    @staticmethod
    def path_of(root: Path, version: int) -> Path:
        """Returns the folder of a version."""
        return root / f"{PREFIX}{version:08d}"

    def write(
        self,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        adapters: Adapters | None = None,
    ) -> FolderSource:
        """Writes a version, with one shard at a time in memory, and removes old ones. `adapters`
        describes the tensors if they are adapters without base weights."""
        path = self.path_of(self.root, version)
        temporary = self.root / f".{path.name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            self._write_files(temporary, version, tensors)
            shutil.rmtree(path, ignore_errors=True)
            temporary.rename(path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise WeightsError(f"weights of version {version}: {self.root}: {reason}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        for old in self.versions()[: -self._keep]:
            if old != version:  # a resumed run writes lower numbers than exist already
                _remove_unless_locked(self.path_of(self.root, old))
        return FolderSource(path, version, adapters)

    def versions(self) -> list[int]:
        """Returns the existing versions, in ascending order."""
        manifests = self.root.glob(f"{PREFIX}*/{MANIFEST}")
        return sorted(int(path.parent.name.removeprefix(PREFIX)) for path in manifests)

    def close(self) -> None:
        """Removes all versions; shared memory would outlive the process."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _write_files(
        self, temporary: Path, version: int, tensors: Iterable[tuple[str, Tensor]]
    ) -> None:
        infos: list[TensorInfo] = []
        weight_map: dict[str, str] = {}
        for number, shard in enumerate(_shards(tensors, self._shard_bytes, infos), start=1):
            name = f"model-{number:05d}.safetensors"
            weight_map |= dict.fromkeys(shard, name)
            _save(shard, temporary / name)
        if not infos:
            raise WeightsError(f"weights of version {version}: there are none")
        manifest = Manifest(version, tuple(infos))
        for path in self._extra_files:
            shutil.copy(path, temporary / path.name)
        index = {"metadata": {"total_size": manifest.num_bytes}, "weight_map": weight_map}
        (temporary / INDEX).write_text(json.dumps(index), "utf-8")
        (temporary / LOCK).touch()
        (temporary / MANIFEST).write_text(manifest.dumps(), "utf-8")


def _shards(
    tensors: Iterable[tuple[str, Tensor]], shard_bytes: int, infos: list[TensorInfo]
) -> Iterator[dict[str, Tensor]]:
    """Yields shards of at most `shard_bytes` (or one tensor), and appends to `infos`."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        infos.append(TensorInfo.of(name, tensor))  # before the copy: checksums are faster on a GPU
        # Copied, because safetensors refuses tensors that share memory.
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += tensor.nbytes
    if shard:
        yield shard


def _save(shard: dict[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(shard, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written: {error}") from error


def _remove_unless_locked(path: Path) -> None:
    """Removes the folder unless a reader has locked it. The folder is
    renamed first, so that a partly removed version is never visible."""
    try:
        lock = os.open(path / LOCK, os.O_RDONLY)
    except FileNotFoundError:  # without the file it cannot be locked
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        take(lock, wait=False)
        temporary = path.rename(path.with_name(f".{path.name}.removed"))
    except BlockingIOError:
        return
    finally:
        os.close(lock)
    shutil.rmtree(temporary, ignore_errors=True)
