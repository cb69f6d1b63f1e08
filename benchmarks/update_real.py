r"""One update of a real model's size on the CPU, against the speed of its matrix products alone.

    python benchmarks/update_real.py [--dtype float32 bfloat16] [--threads 2] [--out FILE]

The model has the shape of SmolLM2-135M with random weights. The batch is 4 groups of 8 with prompts
of 324 and replies of 125 tokens (5,296 distinct ones), with a KL to the reference. Activations are
kept, not computed again (`activation_checkpointing: false`). Counted are:

    products   of all linear layers, tokens x in x out x 2: forward, twice that backward, and the
               reference's forward; the head for the tokens that are read
    attention  is beside them, as are norms, softmax and the optimizer

The speed of the products alone is measured in the same run: each distinct product of each
micro-batch, forward and both of its backward ones, by the fastest way that torch has for it. The
share is the products' own seconds over the update's.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from measuring import SMOLLM2, random_samples
from report import options, write
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from ajet.core.model.allocator import prepare_memory
from ajet.core.model.wide_layer import product as wide_product
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts.layout import Row
from ajet.core.update.mini_batches import balance_micro_batches
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings

GOALS = {"float32": 0.75, "bfloat16": 0.60}
VOCAB = SMOLLM2["vocab_size"]
Product = tuple[int, int, int]
"""Holds the tokens, inputs and outputs of one linear layer."""


def make_policy(dtype: str, budget: int) -> Policy:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMOLLM2)).to(getattr(torch, dtype))
    settings = UpdateSettings(lr=1e-6, kl_loss_coef=0.01, max_tokens_per_micro_batch=budget)
    return Policy(model, settings)


def products(policy: Policy, samples: Sequence[TrainingSample]) -> Counter[Product]:
    """Returns each distinct product of the policy's forward pass, and how many times it occurs."""
    rows = [Row.of(sample, index) for index, sample in enumerate(samples)]
    found: Counter[Product] = Counter()
    budget = policy.settings.max_tokens_per_micro_batch
    for micro_batch in balance_micro_batches(rows, policy.layout, budget, policy.ranks).local:
        tokens = policy.layout.num_computed(micro_batch)
        for name, module in policy.model.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                found[tokens, module.in_features, module.out_features] += 1
        with torch.no_grad():
            read = len(policy.layout.forward(micro_batch).features_UD)
        found[read, SMOLLM2["hidden_size"], VOCAB] += 1
    return found


def best_seconds(ways: Sequence[Callable[[], Tensor]], rounds: int = 3) -> float:
    """Returns the shortest time of the fastest way; one call of each before is not counted."""
    best = float("inf")
    for way in ways:
        way()
        for _ in range(rounds):
            started = time.perf_counter()
            way()
            best = min(best, time.perf_counter() - started)
    return best


def product_seconds(product: Product, dtype: torch.dtype) -> dict[str, float]:
    """Returns the seconds of one linear layer's forward product, and of its two backward
    products."""
    tokens, inputs, outputs = product
    x, weight, grad = (
        torch.randn(shape, dtype=dtype)
        for shape in ((tokens, inputs), (outputs, inputs), (tokens, outputs))
    )

    def best(a: Tensor, b: Tensor) -> float:
        return best_seconds([lambda: a @ b.T, lambda: wide_product(a, b)])

    return {"forward": best(x, weight), "backward": best(grad, weight.T) + best(grad.T, x.T)}


def measure(dtype: str, rounds: int, budget: int) -> dict[str, Any]:
    policy, samples = make_policy(dtype, budget), random_samples(VOCAB, 4, 8, 324, 125)
    counts = products(policy, samples)
    policy.update(samples[:8])  # makes the optimizer's state
    seconds, metrics = [], {}
    for _ in range(rounds):
        started = time.perf_counter()
        metrics = policy.update(samples)
        seconds.append(time.perf_counter() - started)
    own = {p: product_seconds(p, getattr(torch, dtype)) for p in counts}
    # The reference computes one more forward pass.
    own_s = sum(n * (2 * own[p]["forward"] + own[p]["backward"]) for p, n in counts.items())
    return {
        "dtype": dtype,
        "tokens": metrics["tree_tokens"],
        "seconds": min(seconds),
        "all_seconds": seconds,
        "products": {"seconds": own_s},
        "share_of_products": own_s / min(seconds),
        "goal": GOALS[dtype],
    }


def main() -> None:
    parser = options(__doc__, "update_real", threads=2, rounds=2)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=GOALS)
    parser.add_argument("--budget", type=int, default=1536, help="tokens of a micro-batch")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prepare_memory()  # as loading a model does
    results = []
    for dtype in args.dtype:
        results.append(measure(dtype, args.rounds, args.budget))
        print(json.dumps(results[-1], indent=1))
    write(args.out, {"threads": args.threads, "torch": torch.__version__, "results": results})


if __name__ == "__main__":
    main()
