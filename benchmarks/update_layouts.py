"""One update as a token tree against padded batches through transformers' own forward.

    python -m benchmarks.update_layouts [--rounds 7] [--threads 1] [--out FILE]

The same samples, loss and optimizer; only the layout differs. Layouts alternate within each round,
so other load on the machine falls on all of them; the ratio is of median times. The limit is the
ratio of token counts (padded cells over distinct tokens): what is saved if a token costs the same
everywhere. Claim: at least 2.5x for a group of 8 at the demo's and at GSM8K's shape.
"""

import json
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.policy import Policy
from ajet.core.update.settings import BatchLayout, UpdateSettings
from benchmarks.measuring import sample, tiny_model
from benchmarks.report import options, write

LIMIT = 2.5
VOCAB = 1024


@dataclass(frozen=True)
class Shape:
    """Token counts; `turns` alternates sampled and given spans. Lengths vary by a quarter."""

    name: str
    num_groups: int
    system: int
    question: int
    turns: tuple[int, ...]
    micro_batch: int = 4096


SHAPES = (
    Shape("demo, one group of 8", 1, 250, 35, (40, 30, 12)),
    Shape("GSM8K 225/66, one group of 8", 1, 0, 225, (66,)),
    Shape("demo, 32 groups of 8", 32, 250, 35, (40, 30, 12)),
)


def make_samples(shape: Shape, rng: np.random.Generator) -> list[TrainingSample]:
    system = rng.integers(0, VOCAB, shape.system)
    samples = []
    for g in range(shape.num_groups):
        prompt = np.concatenate((system, rng.integers(0, VOCAB, shape.question)))
        for e in range(8):
            lengths = [max(1, round(n * rng.uniform(0.75, 1.25))) for n in shape.turns]
            mask = np.concatenate(
                [np.zeros(len(prompt), bool)]
                + [np.full(n, i % 2 == 0) for i, n in enumerate(lengths)]
            )
            ids = np.concatenate((prompt, rng.integers(0, VOCAB, sum(lengths))))
            samples.append(sample(g, e, ids, mask, float(rng.normal()), VOCAB))
    return samples


def make_policy(layout: BatchLayout, micro_batch: int) -> Policy:
    settings = UpdateSettings(lr=1e-5, batch_layout=layout, max_tokens_per_micro_batch=micro_batch)
    return Policy(tiny_model(), settings)


def measure(shape: Shape, layouts: tuple[BatchLayout, ...], rounds: int) -> dict[str, object]:
    samples = make_samples(shape, np.random.default_rng(0))
    policies = {name: make_policy(name, shape.micro_batch) for name in layouts}
    metrics = {name: policy.update(samples) for name, policy in policies.items()}  # warm-up
    wall_s: dict[str, list[float]] = {name: [] for name in layouts}
    cpu_s: dict[str, list[float]] = {name: [] for name in layouts}
    for _ in range(rounds):
        for name, policy in policies.items():
            wall, cpu = time.perf_counter(), time.process_time()
            policy.update(samples)
            wall_s[name].append(time.perf_counter() - wall)
            cpu_s[name].append(time.process_time() - cpu)
    median_s = {name: statistics.median(times) for name, times in wall_s.items()}
    median_cpu_s = {name: statistics.median(times) for name, times in cpu_s.items()}
    return {
        "shape": shape.name,
        "median_wall_s": median_s,
        "median_cpu_s": median_cpu_s,
        "speedup": {n: median_s["padded"] / s for n, s in median_s.items() if n != "padded"},
        "speedup_cpu": {
            n: median_cpu_s["padded"] / s for n, s in median_cpu_s.items() if n != "padded"
        },
        "token_ratio": metrics["padded"]["tree_tokens"] / metrics["tree"]["tree_tokens"],
        "grad_norm": {name: m["grad_norm"] for name, m in metrics.items()},
        "limit": LIMIT,
    }


def main() -> None:
    parser = options(__doc__, "update_layouts", rounds=7, threads=1)
    parser.add_argument("--shapes", type=int, nargs="*", default=list(range(len(SHAPES))))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = []
    for i in args.shapes:
        rounds = args.rounds if SHAPES[i].num_groups == 1 else 2
        results.append(measure(SHAPES[i], ("padded", "packed", "tree"), rounds))
        print(json.dumps(results[-1], indent=1))
    write(args.out, {"threads": args.threads, "torch": torch.__version__, "results": results})


if __name__ == "__main__":
    main()
