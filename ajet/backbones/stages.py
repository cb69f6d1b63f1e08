"""Runs the stages of a config: each is a run that begins from the model of the one before.

launcher_record/X/            a run with stages imitate and learn
├── imitate/                  a run folder like any other: checkpoints, episodes, attempts
├── learn/                    its ajet.model.path is imitate's last checkpoint
└── summary.json              both in numbers
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

from loguru import logger

from ajet.core.checkpoint.manifest import newest_checkpoint, step_of
from ajet.core.config import AjetConfig
from ajet.core.config.nested import with_values
from ajet.core.errors import CheckpointError, RunComplete
from ajet.core.errors.codes import Code
from ajet.core.model.allocator import release_freed_memory
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder, shown_path
from ajet.read.reports.summary_table import StageResult, write_stages


def fit_stages(
    stages: Sequence[AjetConfig], fit: Callable[[AjetConfig], object], interrupt: Interrupt
) -> list[StageResult]:
    """Trains the incomplete stages until one is stopped, and writes a summary. Returns the results
    of complete stages. Raises `RunComplete` if all were complete before."""
    results: list[StageResult] = []
    config, num_trained = stages[0], 0
    for number, stage in enumerate(stages):
        config = stage if not number else beginning_from(stage, hand_over(config))
        logger.info("stage {} ({} of {})", config.stage, number + 1, len(stages))
        try:
            fit(config)
            gc.collect()  # cycles of references hold the model, whose memory the next stage needs
            release_freed_memory()
            num_trained += 1
        except RunComplete:
            logger.info("stage {} is complete", config.stage)
        if interrupt.stopped_early:
            break
        results.append(StageResult.read(config))
        write_stages(run_folder_of(stages), results)
    if not num_trained and len(results) == len(stages):
        names = ", ".join(result.name for result in results)
        raise RunComplete(
            f"already complete: stages {names} in {shown_path(run_folder_of(stages))}; for more, "
            "set a stage's trainer_common.total_training_steps; --no-resume begins anew"
        )
    return results


def run_folder_of(stages: Sequence[AjetConfig]) -> Path:
    return stages[0].run_folder.parent


def beginning_from(config: AjetConfig, model: Path) -> AjetConfig:
    """Returns the config with another model."""
    return with_values(config, {"ajet.model.path": str(model)})


def finished_model(config: AjetConfig) -> Path | None:
    """Returns the model of a stage's last checkpoint, or None if it is not exported yet."""
    checkpoint = newest_checkpoint(RunFolder(config.run_folder).checkpoints)
    if checkpoint is None:
        return None
    has_weights = (checkpoint / "model.safetensors").exists()
    is_part = config.ajet.model.images.enabled  # of a model with a vision tower
    if has_weights and not is_part and not config.ajet.trainer_common.lora.rank:
        return checkpoint
    exported = config.run_folder / f"model_{step_of(checkpoint):06d}"
    return exported if exported.exists() else None


def hand_over(config: AjetConfig) -> Path:
    """Returns the model of a stage's last checkpoint, exported first where that is not a model's
    folder (adapters, sharded weights)."""
    if (model := finished_model(config)) is not None:
        return model
    from ajet import assembly
    from ajet.core.update.export import export_model
    from ajet.core.update.settings import LoraSettings

    checkpoint = newest_checkpoint(RunFolder(config.run_folder).checkpoints)
    if checkpoint is None:
        raise CheckpointError(
            f"stage {config.stage} has no checkpoint in {config.run_folder}",
            code=Code.CHECKPOINT_NOT_FOUND,
        )
    out = config.run_folder / f"model_{step_of(checkpoint):06d}"
    loaded = assembly.load_policy_model(config, device="cpu")
    export_model(loaded, checkpoint, out, lora=LoraSettings.from_config(config))
    return out
