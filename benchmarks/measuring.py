"""What several benchmarks measure with: alternating timers, tiny models, made-up samples, and a
rollout whose model is scripted."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from ajet import BaseJudge, Workflow
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import ModelEndpoint, SamplingParams
from ajet.core.rollout.episode import EpisodeParts, EpisodeRunner
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.trajectory.sample import TrainingSample
from ajet.tool_parsers import parser_for

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
"""The shape of SmolLM2-135M."""


def medians(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median processor seconds of each way, which take turns; the first round is not
    counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, run in ways.items():
            started = time.process_time()
            run()
            seconds[name].append(time.process_time() - started)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def tiny_model(**changes: int) -> Any:
    """Returns a Qwen2 of the size of `embedded:math` with random weights, the same at each call."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 1024, "hidden_size": 128, "intermediate_size": 384}
    sizes |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"max_position_embeddings": 4096, **changes}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))


def sample(
    group: int,
    member: int,
    token_ids: np.ndarray,
    loss_mask: np.ndarray,
    advantage: float,
    vocab: int,
) -> TrainingSample:
    """Returns a sample whose log-probabilities are those of a model that knows nothing."""
    return TrainingSample(
        episode_id=f"{group}/{member}",
        group_id=str(group),
        token_ids=token_ids,
        loss_mask=loss_mask,
        logprobs=np.where(loss_mask, -np.log(vocab), 0).astype(np.float32),
        advantages=np.where(loss_mask, advantage, 0).astype(np.float32),
        spans=(),
        min_policy_version=0,
        max_policy_version=0,
    )


def random_samples(
    vocab: int, groups: int, members: int, prompt: int, reply: int
) -> list[TrainingSample]:
    """Returns groups of random tokens, whose members share their prompt."""
    rng = np.random.default_rng(0)
    mask = np.arange(prompt + reply) >= prompt
    samples = []
    for group in range(groups):
        prompt_ids = rng.integers(0, vocab, prompt)
        for member in range(members):
            ids = np.concatenate((prompt_ids, rng.integers(0, vocab, reply)))
            samples.append(sample(group, member, ids, mask, float(rng.normal()), vocab))
    return samples


def scripted_runner(
    workflow: Callable[[], Workflow],
    template: ChatTemplate,
    endpoint: ModelEndpoint,
    limits: RolloutLimits | None = None,
    judge: BaseJudge | None = None,
    **parts: Any,
) -> GroupRunner:
    """Returns a rollout of this workflow over a model that a benchmark made."""
    return GroupRunner.from_episode_runner(
        EpisodeRunner(
            endpoint=endpoint,
            template=template,
            parser=parser_for(template),
            parts_for=lambda mode: EpisodeParts(lambda task: workflow(), judge, SamplingParams()),
            limits=limits or RolloutLimits(),
            run_seed=0,
            **parts,
        )
    )
