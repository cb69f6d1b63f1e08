"""How many tokens the update is spared by merging the calls of an episode into timelines.

    python benchmarks/timeline_merging.py [--out FILE]

An agent whose conversation only grows, through the real recorder and chat template: its first
prompt has P tokens, it samples a tokens a call, and o tokens stand between two calls. With a row
for each call, call t repeats all before it; merged, each token stands once. The limit is

    sum over t < T of (P + t (a + o) + a)   /   P + T a + (T - 1) o

Claim: at least 99 % of it, at 4, 10 and 20 calls. What that is in seconds, with the same gradient,
frozen_lake_rows.py measures on whole conversations.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from measuring import scripted_runner
from report import options, write
from transformers import AutoTokenizer

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.core.advantage import EstimatorSettings, estimate
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.learning.credit import credit_of
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import Group
from ajet.engines.scripted import ScriptedEngine

CLAIM = 0.99


@dataclass(frozen=True)
class Shape:
    """Token counts, and how many episodes there are."""

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


def measure(template: ChatTemplate, shape: Shape) -> dict[str, object]:
    groups = asyncio.run(episodes(template, shape))
    credits = [credit_of(group) for group in groups]
    samples = to_samples(groups, estimate(credits, EstimatorSettings()).advantages)
    counts = TimelineCounts.from_groups(groups, samples)
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
        "passed": share >= CLAIM,
    }


def main() -> None:
    parser = options(__doc__, "timeline_merging")
    parser.add_argument("--model", type=Path, default=Path("ajet/embedded/math"))
    args = parser.parse_args()
    template = ChatTemplate(AutoTokenizer.from_pretrained(args.model))
    results = []
    for shape in SHAPES:
        results.append(measure(template, shape))
        print(json.dumps(results[-1], indent=1), flush=True)
    told = {"claim": CLAIM, "results": results}
    write(args.out, {**told, "passed": all(result["passed"] for result in results)})


if __name__ == "__main__":
    main()
