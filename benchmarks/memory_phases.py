r"""Peak memory of each phase of training SmolLM2-135M's shape on a CPU, in one process.

    python benchmarks/memory_phases.py [--dtype float32 bfloat16] [--checkpointing auto true false]

    policy       weights, float32 masters where they are narrower, the reference
    first step   an update of a few tokens, which makes AdamW's state
    rollout      4 groups of 8 episodes, prompts of 324 and replies of 125 tokens, in the engine
    update       2 groups of them: micro-batches of 1,324 tokens, KL to the reference
    checkpoint   weights and the optimizer's state are written

Each arm runs in a process of its own; the libraries of a run are loaded first (`libraries`). A
phase's peak is the kernel's mark of the resident set (VmHWM), reset before the phase. Seconds are
those of the processor. Not covered: loading a model's file (a GGUF file peaks below 1.4 GB), what
the rest of a run's libraries take (0.1 GB), a resumed run, which reads a checkpoint.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import ROOT, forget_peak, memory, options, read, write

BUDGET, PROMPT, REPLY, GROUP_SIZE = 1536, 324, 125, 8


class Phases:
    """Measures phases one after another."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start, cpu = memory("VmRSS"), time.process_time()
        forget_peak()
        yield
        measured = {"phase": name, "start": start, "peak": memory("VmHWM"), "end": memory("VmRSS")}
        self.found.append(measured | {"cpu_s": round(time.process_time() - cpu, 1)})
        print(json.dumps(self.found[-1]), file=sys.stderr, flush=True)


async def sample_replies(model: Any, vocab_size: int) -> None:
    import numpy as np

    from ajet.core.inference.endpoint import SamplingParams
    from ajet.engines.in_process import InProcessEngine

    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, vocab_size, PROMPT).tolist() for _ in range(4)]
    engine = InProcessEngine(model, stop_token_ids=(), max_num_seqs=32, max_model_len=1024)
    names = [f"{index:04d}" for index in range(4 * GROUP_SIZE)]
    for name in names:
        engine.enter(name)
    sampling = [SamplingParams(max_tokens=REPLY, seed=index) for index in range(len(names))]
    await asyncio.gather(
        *(
            engine.generate(prompts[index // GROUP_SIZE], sampling[index], f"{name}/0000")
            for index, name in enumerate(names)
        )
    )
    for name in names:
        engine.leave(name)
    await engine.close()


def run_arm(dtype: str, checkpointing: str, threads: int) -> list[dict[str, Any]]:
    phases = Phases()
    with phases.phase("libraries"):
        import torch
        from measuring import SMOLLM2, random_samples
        from transformers import LlamaConfig, LlamaForCausalLM

        from ajet import assembly  # noqa: F401
        from ajet.backbones.debug import training  # noqa: F401
        from ajet.core.checkpoint.checkpoint import prepare_checkpoint
        from ajet.core.model.allocator import prepare_memory
        from ajet.core.update.policy import Policy
        from ajet.core.update.settings import UpdateSettings
    torch.set_num_threads(threads)
    prepare_memory()  # as loading a model does
    vocab = SMOLLM2["vocab_size"]
    recompute: Any = {"true": True, "false": False}.get(checkpointing, checkpointing)
    with phases.phase("policy"):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SMOLLM2)).to(getattr(torch, dtype))
        settings = UpdateSettings(
            kl_loss_coef=0.01,
            max_tokens_per_micro_batch=BUDGET,
            activation_checkpointing=recompute,
        )
        policy = Policy(model, settings)
    with phases.phase("first step"):
        policy.update(random_samples(vocab, 1, 2, 16, 8))
    with phases.phase("rollout"):
        asyncio.run(sample_replies(model, vocab))
    with phases.phase("update"):
        policy.update(random_samples(vocab, 2, GROUP_SIZE, PROMPT, REPLY))
    with tempfile.TemporaryDirectory() as folder, phases.phase("checkpoint"):
        tensors, state = policy.state_dict()
        prepare_checkpoint(Path(folder), 1, tensors, state)()
    return phases.found


def measure(dtype: str, checkpointing: str, threads: int) -> dict[str, Any]:
    arm = ("--arm", dtype, checkpointing, "--threads", str(threads))
    paths = os.pathsep.join((str(ROOT), str(ROOT / "benchmarks")))
    done = subprocess.run(
        [sys.executable, __file__, *arm],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    phases = json.loads(done.stdout.splitlines()[-1])
    return {
        "dtype": dtype,
        "activation_checkpointing": checkpointing,
        "peak_bytes": max(each["peak"] for each in phases),
        "phases": phases,
    }


def main() -> None:
    parser = options(__doc__, "memory_phases", threads=os.cpu_count())
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--checkpointing", nargs="+", default=["auto"])
    parser.add_argument("--arm", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arm:
        dtype, checkpointing = args.arm
        print(json.dumps(run_arm(dtype, checkpointing, args.threads)))
        return
    old = read(args.out).get("arms", [])
    arms = {(each["dtype"], each["activation_checkpointing"]): each for each in old}
    for dtype in args.dtype:
        for checkpointing in args.checkpointing:
            arms[dtype, checkpointing] = measure(dtype, checkpointing, args.threads)
    write(args.out, {"threads": args.threads, "arms": list(arms.values())})


if __name__ == "__main__":
    main()
