"""How long a checkpoint holds up a run: written at once, and in the background from a copy.

    python benchmarks/checkpoint_pause.py [--rounds 5] [--out FILE]

The model has the shape of SmolLM2-135M with random weights, in bfloat16 with an optimizer in
float32; a checkpoint holds both. Each round updates alone, writes a checkpoint at once, then
updates again during the write of another one from a copy. `lost` is what a
checkpoint adds to the time of its step: the whole write, or the copy and what writing slows the
update down by.

Writes benchmarks/results/checkpoint_pause.json.
"""

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from measuring import SMOLLM2, random_samples
from report import options, write
from transformers import LlamaConfig, LlamaForCausalLM

from ajet.core.checkpoint.checkpoint import prepare_checkpoint
from ajet.core.model.allocator import prepare_memory
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings


def main() -> None:
    parser = options(__doc__, "checkpoint_pause", threads=2, rounds=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prepare_memory()  # as loading a model does
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SMOLLM2))
    policy = Policy(
        model.to(torch.bfloat16), UpdateSettings(lr=1e-6, max_tokens_per_micro_batch=1536)
    )
    samples = random_samples(SMOLLM2["vocab_size"], 2, 8, 324, 125)
    policy.update(samples)  # makes the optimizer's state
    seconds: dict[str, list[float]] = {
        name: [] for name in ("update", "write", "copy", "update_beside", "write_beside")
    }

    def timed(name: str, started: float) -> None:
        seconds[name].append(time.perf_counter() - started)

    def update(name: str) -> None:
        started = time.perf_counter()
        policy.update(samples)
        timed(name, started)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        for step in range(1, 2 * args.rounds + 1, 2):
            update("update")
            started = time.perf_counter()
            prepare_checkpoint(Path(folder), step, *policy.state_dict())()
            timed("write", started)
            started = time.perf_counter()
            state = policy.state_dict()
            in_background = prepare_checkpoint(Path(folder), step + 1, *state, copies=True)
            timed("copy", started)
            started = time.perf_counter()
            writing = pool.submit(in_background)
            update("update_beside")
            writing.result()
            timed("write_beside", started)
        saved = Path(folder) / f"step_{2 * args.rounds:06d}"
        num_bytes = sum(file.stat().st_size for file in saved.iterdir())
    medians = {name: round(statistics.median(each), 3) for name, each in seconds.items()}
    slower = max(0.0, medians["update_beside"] - medians["update"])
    lost = {"at_once": medians["write"], "in_background": round(medians["copy"] + slower, 3)}
    report = {
        "threads": args.threads,
        "checkpoint_bytes": num_bytes,
        "medians": medians,
        "lost": lost,
        "ratio": round(lost["at_once"] / lost["in_background"], 2),
        "seconds": seconds,
    }
    print({name: report[name] for name in ("checkpoint_bytes", "medians", "lost", "ratio")})
    write(args.out, report)


if __name__ == "__main__":
    main()
