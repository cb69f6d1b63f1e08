"""How many tokens the update is spared by merging the calls of an episode into timelines.

    python benchmarks/timeline_merging.py [--rounds 3] [--out FILE]

An agent whose conversation only grows, through the real recorder and chat template: its first
prompt has P tokens, it samples a tokens a call, and o tokens stand between two calls. With a row
for each call, call t repeats all before it; merged, each token stands once. The limit is

    sum over t < T of (P + t (a + o) + a)   /   P + T a + (T - 1) o

Claim: at least 99 % of it, at 4, 10 and 20 calls. Beside it, the update's own time for both (a row
for each call, and merged; packed batches, so that padding does not flatter the merged ones) on a
small model: seconds of the processor, which other load on the machine touches little; the arms
alternate within each round, and the ratio is of medians. The gradients of both are the same, as is
seen from their norms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.core.advantage import EstimatorSettings, estimate
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.learning.credit import credit_of
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.rollout.episode import EpisodeParts, EpisodeRunner
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import Group
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.engines.scripted import ScriptedEngine
from ajet.tool_parsers import parser_for

CLAIM = 0.99
VOCAB = 1024
MICRO_BATCH = 16_384


@dataclass(frozen=True)
class Shape:
    """Token counts, and how many episodes the update gets."""

    prompt: int
    action: int
    observation: int
    calls: int
    episodes: int

    @property
    def limit(self) -> float:
        p, a, o, t = self.prompt, self.action, self.observation, self.calls
        return sum(p + i * (a + o) + a for i in range(t)) / (p + t * a + (t - 1) * o)


SHAPES = (
    Shape(200, 60, 80, 4, episodes=8),
    Shape(500, 100, 200, 10, episodes=2),
    Shape(1000, 150, 350, 20, episodes=2),
)


class Words:
    """Texts of an exact number of tokens: the tokenizer writes each digit as one."""

    def __init__(self, template: ChatTemplate, shape: Shape) -> None:
        one = len(template.prompt_ids([_user("")]))
        two = len(
            template.prompt_ids([_user(""), {"role": "assistant", "content": "7"}, _user("")])
        )
        between = two - one - len("7") - 1  # what the template writes there; the end is sampled
        self.question = "1" * (shape.prompt - one)
        self.result = "2" * (shape.observation - between)
        self.reply = [*template.encode("3" * (shape.action - 1)), template.stop_token_ids[0]]
        assert len(self.reply) == shape.action


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def workflow(words: Words, shape: Shape) -> type[Workflow]:
    class Grows(Workflow):
        async def execute(
            self, workflow_task: WorkflowTask, model_tuner: ModelTuner
        ) -> WorkflowOutput:
            messages = [_user(words.question)]
            for _ in range(shape.calls):
                messages += [await model_tuner.chat(messages), _user(words.result)]
            return WorkflowOutput(reward=float(workflow_task.rollout_index % 2))

    return Grows


async def episodes(template: ChatTemplate, shape: Shape) -> list[Group]:
    words = Words(template, shape)
    kind = workflow(words, shape)
    runner = GroupRunner.from_episode_runner(
        EpisodeRunner(
            endpoint=ScriptedEngine(lambda prompt_ids, sampling, request_id: words.reply),
            template=template,
            parser=parser_for(template),
            parts_for=lambda mode: EpisodeParts(lambda task: kind(), None, SamplingParams()),
            limits=RolloutLimits(
                max_response_length=20_000,
                max_model_len=20_000,
                max_steps=shape.calls,
                check_drift="all",
            ),
            run_seed=0,
        )
    )
    return await runner.rollout(
        RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=shape.episodes)
    )


def rows(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The same calls with a row for each: what came before a call is context in its row."""
    return [_row(sample, at) for sample in samples for at in range(len(sample.spans))]


def _row(sample: TrainingSample, at: int) -> TrainingSample:
    span = sample.spans[at]
    mask = np.zeros(span.stop, dtype=np.bool_)
    mask[span.start :] = True
    return replace(
        sample,
        token_ids=sample.token_ids[: span.stop],
        loss_mask=mask,
        logprobs=np.where(mask, sample.logprobs[: span.stop], 0).astype(np.float32),
        advantages=np.where(mask, sample.advantages[: span.stop], 0).astype(np.float32),
        spans=(span,),
    )


def make_policy() -> Policy:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16_384,
        tie_word_embeddings=True,
    )
    settings = UpdateSettings(
        lr=1e-5, batch_layout="packed", max_tokens_per_micro_batch=MICRO_BATCH
    )
    return Policy(Qwen2ForCausalLM(config), settings)


def measure(template: ChatTemplate, shape: Shape, rounds: int) -> dict[str, object]:
    groups = asyncio.run(episodes(template, shape))
    credits = [credit_of(group) for group in groups]
    samples = to_samples(groups, estimate(credits, EstimatorSettings()).advantages)
    counts = TimelineCounts.from_groups(groups, samples)
    arms = {"row_a_call": rows(samples), "merged": samples}
    seconds, norms = _updates(arms, rounds)
    share = counts.token_ratio / shape.limit
    return {
        "shape": {"P": shape.prompt, "a": shape.action, "o": shape.observation, "T": shape.calls},
        "episodes": counts.episodes,
        "calls": counts.calls,
        "timelines": counts.timelines,
        "row_tokens": counts.row_tokens,
        "timeline_tokens": counts.timeline_tokens,
        "token_ratio": round(counts.token_ratio, 4),
        "limit": round(shape.limit, 4),
        "share_of_limit": round(share, 4),
        "drift": counts.drift,
        "update_median_cpu_s": {name: round(s, 3) for name, s in seconds.items()},
        "update_speedup": round(seconds["row_a_call"] / seconds["merged"], 2),
        "grad_norm": norms,
        "passed": share >= CLAIM,
    }


def _updates(
    arms: dict[str, list[TrainingSample]], rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Median CPU seconds of an update, and the norm of the first one's gradient."""
    policies = {name: make_policy() for name in arms}
    taken: dict[str, list[float]] = {name: [] for name in arms}
    norms: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, policy in policies.items():
            started = time.process_time()
            metrics = policy.update(arms[name])
            norms.setdefault(name, metrics["grad_norm"])
            if number:  # the first one warms up
                taken[name].append(time.process_time() - started)
    return {name: statistics.median(times) for name, times in taken.items()}, norms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, default=Path("ajet/embedded/math"))
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/timeline_merging.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    template = ChatTemplate(AutoTokenizer.from_pretrained(args.model))
    results = []
    for shape in SHAPES:
        results.append(measure(template, shape, args.rounds))
        print(json.dumps(results[-1], indent=1), flush=True)
    document = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "threads": 1,
        "claim": CLAIM,
        "results": results,
        "passed": all(result["passed"] for result in results),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
