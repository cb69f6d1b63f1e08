"""Saves and loads a learner's checkpoints (the format is in checkpoint/checkpoint.py)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ajet.core.checkpoint.checkpoint import checked_state, prepare_checkpoint, read_checkpoint
from ajet.core.checkpoint.manifest import naming_checkpoint
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.learning.learner import Learner
from ajet.core.model.load import LoadedModel
from ajet.core.model.save import model_files
from ajet.core.ranks.ranks import ONE_RANK, Ranks
from ajet.core.update.weights import has_more_than_weights


class LearnerCheckpoints:
    """Saves and loads a learner's checkpoints; all ranks together."""

    def __init__(
        self,
        learner: Learner | AdapterLearners,
        loaded: LoadedModel,
        *,
        keep: int,
        ranks: Ranks = ONE_RANK,
        shares_folder: bool = True,
    ) -> None:
        """The newest `keep` checkpoints stay. Only rank 0 writes and reads them unless all ranks
        see the folder (`shares_folder`)."""
        self._learner, self._keep, self._ranks = learner, keep, ranks.apart()
        self._shares_folder = shares_folder
        # Only a checkpoint with all weights loads as a model, so only it gets a config.json: not
        # one of adapters, nor of a model that has buffers too.
        is_part = learner.policy.settings.lora or has_more_than_weights(loaded.model)
        self._files = {} if is_part else model_files(loaded)

    def prepare(
        self, folder: Path, step: int, run: dict[str, Any], *, copies: bool
    ) -> Callable[[], Path]:
        """Returns the function that writes the learner's state together with `run`, the state of
        the run. With `copies` updates may run during the write; all ranks give the same."""
        tensors, state = self._learner.state_dict()
        return prepare_checkpoint(
            folder,
            step,
            tensors,
            state | {"run": run},
            keep=self._keep,
            files=self._files,
            ranks=self._ranks,
            shares_folder=self._shares_folder,
            copies=copies,
        )

    def save(self, folder: Path, step: int, run: dict[str, Any]) -> None:
        """Writes a checkpoint now."""
        self.prepare(folder, step, run, copies=False)()

    def load(self, path: Path) -> None:
        """Restores the learner from the checkpoint at `path`."""
        like = self._learner.template() if self._ranks.size > 1 else None
        with naming_checkpoint(path):
            checkpoint = read_checkpoint(
                path, like=like, ranks=self._ranks, shares_folder=self._shares_folder
            )
            state: Any = checked_state(self._learner.state_type, checkpoint.state, checkpoint.path)
            self._learner.load_state_dict(checkpoint.tensors, state)
