"""The images of a run whose processes are on several nodes: an actor on the driver's node keeps
them in the run folder, and the other processes ask it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ajet.core.config import AjetConfig
from ajet.core.images.store import ImageFile, ImageStore
from ajet.core.record.run_folder import RunFolder

if TYPE_CHECKING:
    from ajet.core.images.processor import ImageProcessor


@dataclass(frozen=True, slots=True)
class KeptImages:
    """Images that the keeper has, for an `ImageStore` in another process."""

    keeper: Any

    def read(self, key: int) -> bytes | None:
        return self.keeper.read.remote(key).future().result()

    def write(self, images: Sequence[tuple[int, bytes]]) -> None:
        # It waits: another process may ask for them as soon as a prompt names them.
        self.keeper.write.remote(images).future().result()


@dataclass(frozen=True, slots=True)
class SharedImages:
    """Gives each process of a run its images: from the run folder, or, if there is a `keeper`, from
    that."""

    config: AjetConfig
    keeper: Any = None

    @classmethod
    def of(cls, config: AjetConfig, num_nodes: int) -> SharedImages | None:
        """Returns None where the model sees no images. On several nodes it starts a keeper, which
        ends when nobody has its handle."""
        if not config.ajet.model.images.enabled:
            return None
        if num_nodes == 1:
            return cls(config)
        # All that it knows is in the file, so that another process may take its place.
        actor = ray.remote(ImageFile).options(
            num_cpus=0,
            scheduling_strategy=drivers_node(),
            max_restarts=-1,
            max_task_retries=-1,
        )
        # An actor has another current folder.
        return cls(config, actor.remote(_file_of(config).absolute()))

    def store(self) -> ImageStore:
        kept = ImageFile(_file_of(self.config)) if self.keeper is None else KeptImages(self.keeper)
        return ImageStore(self.config.ajet.model.images.limits, kept)

    def processor(self) -> ImageProcessor:
        """Loads the image processor, in a process that has no model."""
        from ajet.core.model.load import load_image_processor

        return load_image_processor(self.config.ajet.model.path or "", self.store())


def _file_of(config: AjetConfig) -> Path:
    return RunFolder(config.run_folder).images_db


def drivers_node() -> NodeAffinitySchedulingStrategy:
    """Returns the strategy that starts an actor on the driver's node, which calls this."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
