"""Scores a recorded episode's tokens with the checkpoints of its run, for `ajet inspect score`.

Each call is scored separately (its prompt, then its completion), at the temperature of training.
Where several adapters learn, each scores the calls that it sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ajet import assembly
from ajet.core.checkpoint.checkpoint import read_weights
from ajet.core.checkpoint.manifest import naming_checkpoint, step_of
from ajet.core.inference.grammar import Grammars
from ajet.core.record.scores import EpisodeScores
from ajet.core.trajectory.sample import TokenMasks, TrainingSample
from ajet.core.update.frozen_model import FrozenModel
from ajet.core.update.lora import with_lora
from ajet.core.update.many_adapters import AdapterModels, adapter_tensors, check_names
from ajet.core.update.settings import UpdateSettings
from ajet.core.update.weights import load_weights, trainable
from ajet.read.episode_reader import EpisodeRecord, TurnRecord
from ajet.read.recorded_run import RecordedRun


def score_episode(
    run: RecordedRun, episode: EpisodeRecord, checkpoints: Sequence[Path]
) -> Iterator[EpisodeScores]:
    """Yields the scores of the run's first model (step 0), then of each checkpoint."""
    settings = UpdateSettings.from_config(run.config)
    seen = run.template.images
    loaded = assembly.load_policy_model(run.config, images=None if seen is None else seen.store)
    lora, model = settings.lora, loaded.model
    grammars = Grammars(loaded.tokenizer)
    samples = [_sample(episode, turn, grammars) for turn in episode.turns]
    if lora is not None and lora.adapters:
        adapters = AdapterModels.over(model, lora)
        models, trained = {"": model, **adapters.models}, adapters.trained
    else:
        models = {"": with_lora(model, lora) if lora else model}
        trained = {"": trainable(models[""])}
    frozen = {name: FrozenModel(adapter_model, settings) for name, adapter_model in models.items()}
    yield EpisodeScores(0, _scored(frozen, episode, samples))
    for checkpoint in checkpoints:
        with naming_checkpoint(checkpoint):
            tensors = read_weights(checkpoint)
            if "" not in trained:
                check_names(tensors, trained)
            for name, weights in trained.items():
                load_weights(weights, adapter_tensors(tensors, name) if name else tensors)
        yield EpisodeScores(step_of(checkpoint), _scored(frozen, episode, samples))


def _scored(
    models: Mapping[str, FrozenModel], episode: EpisodeRecord, samples: Sequence[TrainingSample]
) -> list[list[float]]:
    scores: dict[int, list[float]] = {}
    for name, model in models.items():
        indices = [n for n, turn in enumerate(episode.turns) if turn.notes.adapter == name]
        for n, logprobs_T in zip(indices, model.score([samples[n] for n in indices]), strict=True):
            scores[n] = logprobs_T[samples[n].loss_mask].tolist()
    return [scores[n] for n in range(len(samples))]


def _sample(episode: EpisodeRecord, turn: TurnRecord, grammars: Grammars) -> TrainingSample:
    """Returns a call as a sample whose loss mask marks the sampled tokens."""
    masks = None
    if grammar := turn.notes.grammar:
        start, length = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.token_ids)
        masks = TokenMasks.of(length, [(start, grammar, turn.token_ids.tolist())], grammars)
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
        masks=masks,
    )
