"""Families beside Qwen2, Qwen3 and Llama: an update as a tree against padded batches, and sampling
with shared prefixes against transformers' own forward.

    python -m benchmarks.model_families [--rounds 3] [--threads 1] [--out FILE]

Models with random weights, of one shape. Both ways compute the same (tests/core/model); they
alternate within each round, and the ratio is of median processor seconds. The limit is the ratio of
the tokens that each computes. Families whose layers are not all plain attention are sampled by
transformers' forward alone. Claim: at least twice as fast for each family whose layers are.
"""

import asyncio
import json
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.flat_decoder import flat_decoder
from ajet.core.update.policy import Policy
from ajet.core.update.settings import BatchLayout, UpdateSettings
from ajet.engines.hf_forward import HfForward
from ajet.engines.in_process import InProcessEngine
from benchmarks.measuring import medians
from benchmarks.report import options, write
from benchmarks.update_layouts import VOCAB, Shape, make_samples

GOAL = 2.0
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 352}
FAMILIES: dict[str, dict[str, Any]] = {
    "smollm3": {},
    "mistral": {"sliding_window": None},
    "qwen3_moe": EXPERTS | {"num_experts": 8},
    "gemma3_text": {"sliding_window": 128, "query_pre_attn_scalar": 32},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 128},
    "qwen3_5_text": {
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}
UPDATE = Shape("4 groups of 8, 225/66", 4, 0, 225, (66,))
SYSTEM, QUESTION, TURNS, REPLY, GROUPS, GROUP_SIZE = 150, 40, 3, 24, 4, 8


def make_model(family: str) -> Any:
    """Returns a model with random weights, the same at each call."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SHAPE | FAMILIES[family])
    return AutoModelForCausalLM.from_config(config).float().eval()


def update(family: str, rounds: int) -> dict[str, Any]:
    """Measures one update of the same samples in both layouts."""
    samples = make_samples(UPDATE, np.random.default_rng(0))

    def policy(layout: BatchLayout) -> Policy:
        settings = UpdateSettings(lr=1e-6, batch_layout=layout, max_tokens_per_micro_batch=4096)
        return Policy(make_model(family), settings)

    policies = {"tree": policy("tree"), "padded": policy("padded")}
    computed = {name: each.update(samples)["tree_tokens"] for name, each in policies.items()}
    ways = {name: partial(each.update, samples) for name, each in policies.items()}
    cpu_s = medians(ways, rounds)
    return {
        "cpu_s": cpu_s,
        "ratio": cpu_s["padded"] / cpu_s["tree"],
        "token_ratio": computed["padded"] / computed["tree"],
    }


class PlainEngine(InProcessEngine):
    """Samples by transformers' own forward, whatever the model."""

    def _forward(self, model: Any, num_kv_bytes: int) -> HfForward:
        return HfForward(model, self._max_kv_tokens, num_kv_bytes)


async def conversations(engine: InProcessEngine) -> None:
    """Samples the turns of all episodes."""
    rng = np.random.default_rng(0)
    system = rng.integers(0, VOCAB, SYSTEM).tolist()
    questions = [rng.integers(0, VOCAB, QUESTION).tolist() for _ in range(GROUPS)]

    async def episode(number: int) -> None:
        ids = [*system, *questions[number // GROUP_SIZE]]
        engine.enter(name := f"e{number:02d}")
        for turn in range(TURNS):
            sampling = SamplingParams(max_tokens=REPLY, seed=100 * number + turn)
            reply = await engine.generate(ids, sampling, f"{name}/{turn}")
            ids = [*reply.prompt_ids, *reply.token_ids, number, turn]
        engine.leave(name)

    await asyncio.gather(*(episode(number) for number in range(GROUPS * GROUP_SIZE)))
    await engine.close()


def sampling(family: str, rounds: int) -> dict[str, Any] | None:
    """Measures the same conversations in both ways; None where there is one."""
    model = make_model(family)
    if flat_decoder(model).longest_plain < SHAPE["vocab_size"]:
        return None
    num_tokens: dict[str, int] = {}

    def run(name: str, kind: type[InProcessEngine]) -> None:
        engine = kind(model, stop_token_ids=())
        asyncio.run(conversations(engine))
        stats = engine.stats
        computed = stats.prompt_tokens - stats.cached_prompt_tokens
        num_tokens[name] = computed + stats.sampled_tokens

    kinds = {"shared": InProcessEngine, "plain": PlainEngine}
    ways = {name: partial(run, name, kind) for name, kind in kinds.items()}
    cpu_s = medians(ways, rounds)
    return {
        "cpu_s": cpu_s,
        "ratio": cpu_s["plain"] / cpu_s["shared"],
        "token_ratio": num_tokens["plain"] / num_tokens["shared"],
    }


def main() -> None:
    parser = options(__doc__, "model_families", rounds=3, threads=1)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = []
    for family in args.families:
        found = {
            "family": family,
            "update": update(family, args.rounds),
            "sampling": sampling(family, args.rounds),
        }
        results.append(found)
        print(json.dumps(found, indent=1), flush=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    write(args.out, {"threads": args.threads, **versions, "goal": GOAL, "results": results})


if __name__ == "__main__":
    main()
