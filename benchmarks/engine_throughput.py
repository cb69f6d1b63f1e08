"""Tokens a second of the in-process engine against transformers' `generate`.

    python benchmarks/engine_throughput.py --model ajet/embedded/math

N conversations of two turns: a system prompt of 250 tokens that all share, a question of 35 tokens
that a group of 8 shares, 40 sampled tokens, a tool result of 30, 12 sampled tokens; temperature 1,
fixed lengths, one thread. `generate` gets each turn as one left-padded batch and computes the whole
prompt again at the second turn, as its users do. The two run alternately, `--repeats` times; the
ratio is the median of the pairs' ratios. Time is CPU time of the process (both use one thread), so
that other work on the machine disturbs it little; the ratio of wall times is given beside it.

The limit beside it is computed, not measured: the time of the same work if every distinct token
went through the linear layers once and nothing else took time, at the machine's speed for matrix
products of that shape. It says how far the engine is from the best that a forward pass can do.

Not covered: waiting for tools and agents; several threads; accelerators.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from measuring import tiny_model
from report import options, write
from transformers import AutoModelForCausalLM, GenerationConfig

from ajet.core.inference.endpoint import SamplingParams
from ajet.engines.in_process import InProcessEngine

SYSTEM, QUESTION, TOOL = 250, 35, 30
NEW_TOKENS = (40, 12)
GROUP = 8


@dataclass(frozen=True)
class Result:
    """Tokens sampled per CPU second, and the ratios engine / generate; medians over the repeats."""

    conversations: int
    engine_tokens_s: float
    generate_tokens_s: float
    limit_tokens_s: float
    ratio: float
    wall_ratio: float


@dataclass(frozen=True)
class Spent:
    """Seconds that something took."""

    cpu_s: float
    wall_s: float

    @classmethod
    def by(cls, function: Callable[..., None], *args: Any) -> "Spent":
        cpu, wall = time.process_time(), time.perf_counter()
        function(*args)
        return cls(time.process_time() - cpu, time.perf_counter() - wall)


@dataclass(frozen=True)
class Texts:
    """Token ids of N conversations, made from a seed."""

    prompts: list[list[int]]
    tool_results: list[list[int]]

    @classmethod
    def random(cls, count: int, vocab_size: int) -> "Texts":
        generator = torch.Generator().manual_seed(count)

        def tokens(length: int) -> list[int]:
            return torch.randint(vocab_size, (length,), generator=generator).tolist()

        system = tokens(SYSTEM)
        questions = [tokens(QUESTION) for _ in range(count // GROUP)]
        return cls(
            [system + questions[n // GROUP] for n in range(count)],
            [tokens(TOOL) for _ in range(count)],
        )


def with_engine(model: Any, texts: Texts) -> None:
    """All conversations, with an empty cache at the start."""

    async def conversation(engine: InProcessEngine, number: int) -> None:
        episode, ids = f"{number:06d}", texts.prompts[number]
        for turn, max_tokens in enumerate(NEW_TOKENS):
            sampling = SamplingParams(max_tokens=max_tokens, seed=number * 2 + turn)
            reply = await engine.generate(ids, sampling, f"{episode}/{turn:04d}")
            ids = [*reply.prompt_ids, *reply.token_ids, *texts.tool_results[number]]
        engine.leave(episode)

    async def run() -> None:
        engine = InProcessEngine(model, stop_token_ids=())
        numbers = range(len(texts.prompts))
        for number in numbers:
            engine.enter(f"{number:06d}")
        await asyncio.gather(*(conversation(engine, number) for number in numbers))
        await engine.close()

    asyncio.run(run())


def with_generate(model: Any, texts: Texts) -> None:
    """The same conversations."""
    ids = torch.tensor(texts.prompts)
    for turn, new_tokens in enumerate(NEW_TOKENS):
        if turn:
            ids = torch.cat((ids, torch.tensor(texts.tool_results)), dim=1)
        config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            pad_token_id=0,
        )
        with torch.inference_mode():
            ids = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)


def limit_seconds(model: Any, texts: Texts) -> float:
    """Linear layers once per distinct token, at the speed measured for them at this batch size."""
    rows = len(texts.prompts)
    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
    head = model.get_output_embeddings().weight
    x = torch.randn(rows, max(w.shape[1] for w in weights))

    def seconds(tensors: list[torch.Tensor]) -> float:
        times = []
        for _ in range(20):
            started = time.process_time()
            for weight in tensors:
                torch.nn.functional.linear(x[:, : weight.shape[1]], weight)
            times.append(time.process_time() - started)
        return statistics.median(times)

    with torch.inference_mode():
        body, logits = seconds([w for w in weights if w is not head]), seconds([head])
    prefilled = SYSTEM + QUESTION * (rows // GROUP) + TOOL * rows
    steps = sum(NEW_TOKENS)
    return (prefilled / rows + steps) * body + steps * logits


def measure(model: Any, conversations: int, repeats: int) -> Result:
    """Alternate the two, after one short warm-up of each."""
    vocab_size = model.get_input_embeddings().weight.shape[0]
    warm = Texts.random(GROUP, vocab_size)
    with_engine(model, warm)
    with_generate(model, warm)
    texts = Texts.random(conversations, vocab_size)
    pairs = [
        (Spent.by(with_engine, model, texts), Spent.by(with_generate, model, texts))
        for _ in range(repeats)
    ]
    sampled = conversations * sum(NEW_TOKENS)
    return Result(
        conversations=conversations,
        engine_tokens_s=sampled / statistics.median(engine.cpu_s for engine, _ in pairs),
        generate_tokens_s=sampled / statistics.median(other.cpu_s for _, other in pairs),
        limit_tokens_s=sampled / limit_seconds(model, texts),
        ratio=statistics.median(other.cpu_s / engine.cpu_s for engine, other in pairs),
        wall_ratio=statistics.median(other.wall_s / engine.wall_s for engine, other in pairs),
    )


def main() -> None:
    """Measure, print, write."""
    parser = options(__doc__, "engine_throughput", repeats=3)
    parser.add_argument("--model", help="a transformers folder (default: random weights)")
    parser.add_argument("--conversations", type=int, nargs="+", default=[64, 256])
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(args.model) if args.model else tiny_model()
    model = model.float().eval()
    results = [measure(model, count, args.repeats) for count in args.conversations]
    for result in results:
        print(
            f"{result.conversations} conversations: engine {result.engine_tokens_s:,.0f} tokens/s, "
            f"generate {result.generate_tokens_s:,.0f} ({result.ratio:.1f}x, "
            f"wall {result.wall_ratio:.1f}x), limit {result.limit_tokens_s:,.0f}"
        )
    write(args.out, {"torch": torch.__version__, "results": list(map(asdict, results))})


if __name__ == "__main__":
    main()
