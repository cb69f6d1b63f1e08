"""The error of a checkpoint whose tensors do not fit the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code

WHAT_TO_DO = "use the model and lora settings of the run that wrote it"


class WeightMismatch(CheckpointError):
    """Raised with the name of a tensor and what is wrong with it."""

    usual_code = Code.CHECKPOINT_DIFFERS

    def __str__(self) -> str:
        return f"checkpoint does not fit the model: {self.args[0]}; {WHAT_TO_DO}"


@contextmanager
def naming_checkpoint(path: Path) -> Iterator[None]:
    """Turns a `WeightMismatch` into a CheckpointError that names the checkpoint: "checkpoint
    …/step_000002 does not fit the model: head.weight (3, 2) is of shape (4, 2); use …"."""
    try:
        yield
    except WeightMismatch as mismatch:
        raise CheckpointError(
            f"checkpoint {path} does not fit the model: {mismatch.args[0]}; {WHAT_TO_DO}",
            code=mismatch.code,
        ) from mismatch
