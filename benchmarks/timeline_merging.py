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

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import medians, scripted_runner, tiny_model
from report import options, write
from transformers import AutoTokenizer

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.core.advantage import EstimatorSettings, estimate
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.learning.credit import credit_of
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import Group
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.engines.scripted import ScriptedEngine

CLAIM = 0.99
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
    limits = RolloutLimits(
        max_response_length=20_000,
        max_model_len=20_000,
        max_steps=shape.calls,
        check_drift="all",
    )
    engine = ScriptedEngine(lambda prompt_ids, sampling, request_id: words.reply)
    runner = scripted_runner(workflow(words, shape), template, engine, limits)
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
    model = tiny_model(
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16_384,
    )
    settings = UpdateSettings(
        lr=1e-5, batch_layout="packed", max_tokens_per_micro_batch=MICRO_BATCH
    )
    return Policy(model, settings)


def measure(template: ChatTemplate, shape: Shape, rounds: int) -> dict[str, object]:
    groups = asyncio.run(episodes(template, shape))
    credits = [credit_of(group) for group in groups]
    samples = to_samples(groups, estimate(credits, EstimatorSettings()).advantages)
    counts = TimelineCounts.from_groups(groups, samples)
    arms = {"row_a_call": rows(samples), "merged": samples}
    policies = {name: make_policy() for name in arms}
    norms = {name: policies[name].update(arms[name])["grad_norm"] for name in arms}
    seconds = medians({name: partial(policies[name].update, arms[name]) for name in arms}, rounds)
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


def main() -> None:
    parser = options(__doc__, "timeline_merging", rounds=3)
    parser.add_argument("--model", type=Path, default=Path("ajet/embedded/math"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    template = ChatTemplate(AutoTokenizer.from_pretrained(args.model))
    results = []
    for shape in SHAPES:
        results.append(measure(template, shape, args.rounds))
        print(json.dumps(results[-1], indent=1), flush=True)
    told = {"torch": torch.__version__, "threads": 1, "claim": CLAIM, "results": results}
    write(args.out, {**told, "passed": all(result["passed"] for result in results)})


if __name__ == "__main__":
    main()
