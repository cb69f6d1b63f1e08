"""Computes what checkpoints of a run make of a recorded episode's tokens, for `ajet score`.

    run folder ──> recorded ids, kept checkpoints ──> log-probabilities, call by call

Each call is scored on its own: what the model saw, then what was sampled. The model is the one that
the run began with, at the temperature of its training; nothing is sampled and nothing trained. Not
covered: checkpoints that the run has removed (`max_checkpoints_to_keep`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ajet import assembly
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.record.episode_reader import EpisodeRecord, TurnRecord
from ajet.core.record.recorded_run import RecordedRun
from ajet.core.record.scores import EpisodeScores
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.checkpoint import read_weights
from ajet.core.update.frozen_model import FrozenModel
from ajet.core.update.lora import with_lora
from ajet.core.update.manifest import step_of
from ajet.core.update.mismatch import of_checkpoint
from ajet.core.update.settings import UpdateSettings
from ajet.core.update.weights import load_weights, trainable


def score_episode(
    run: RecordedRun, episode: EpisodeRecord, checkpoints: Sequence[Path]
) -> Iterator[EpisodeScores]:
    """Yields the scores of the model that the run began with (step 0), and of each checkpoint."""
    if run.config.has_several_adapters:
        raise ConfigError(
            "ajet score computes one model's log-probabilities, and the run trained several "
            "adapters apart (ajet.trainer_common.lora.adapters)",
            code=Code.KEYS_CONFLICT,
        )
    settings = UpdateSettings.from_config(run.config)
    loaded = assembly.load_policy_model(run.config)
    model = with_lora(loaded.model, settings.lora) if settings.lora else loaded.model
    weights = trainable(model)
    frozen = FrozenModel(model, settings)
    samples = [_sample(episode, turn) for turn in episode.turns]
    yield EpisodeScores(0, _scored(frozen, samples))
    for checkpoint in checkpoints:
        with of_checkpoint(checkpoint):
            load_weights(weights, read_weights(checkpoint))
        yield EpisodeScores(step_of(checkpoint), _scored(frozen, samples))


def _scored(model: FrozenModel, samples: Sequence[TrainingSample]) -> list[list[float]]:
    pairs = zip(samples, model.score(samples), strict=True)
    return [logprobs_T[sample.loss_mask].tolist() for sample, logprobs_T in pairs]


def _sample(episode: EpisodeRecord, turn: TurnRecord) -> TrainingSample:
    """Returns a call as a sample whose sampled tokens are scored."""
    ids = np.concatenate([turn.prompt_ids, turn.token_ids]).astype(np.int64)
    is_sampled = np.arange(len(ids)) >= len(turn.prompt_ids)
    zeros = np.zeros(len(ids), np.float32)
    return TrainingSample(
        episode_id=episode.row.episode_id,
        group_id=episode.row.group_id,
        token_ids=ids,
        loss_mask=is_sampled,
        logprobs=zeros,
        advantages=zeros,
        spans=(),
        min_policy_version=turn.policy_version,
        max_policy_version=turn.policy_version,
    )
