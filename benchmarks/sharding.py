"""A rank's memory as the ranks grow: FSDP2 over gloo on the CPU.

    python benchmarks/sharding.py [--rounds 2] [--out benchmarks/results/sharding.json] [--go-on]

A random Qwen2 of 29 million float32 weights, two groups of four episodes, one optimizer step an
update. Each arm is 1, 2 or 4 processes with a thread each, with and without activation
checkpointing, and with Ulysses over 2 or 4 of them; `unsharded` is the plain process of a run with
one rank. Every arm computes the same update: the norms of their gradients are compared.

State: the bytes of the tensors that a rank keeps (float32 weights and AdamW's two moments) and of
the gradients before the optimizer's step. Limit: a rank of N keeps 1/N of them.

Peak: the most resident memory of the process during an update, above what it had before there was
a model. It has in it one gathered layer, the embeddings (gathered from a forward pass to the end
of its backward) and activations beside the state. glibc is told to give freed blocks back at once,
or it would be the peak of its own reserves.

Not covered: GPUs, several machines, offload (on a CPU it is none), low precision.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import random_samples, tiny_model
from report import forget_peak, memory, options, read, write
from torch import Tensor

from ajet.core.ranks.ranks import ONE_RANK, Ranks, TorchRanks, connect, disconnect
from ajet.core.ranks.settings import ShardingSettings
from ajet.core.ranks.shards import is_sharded
from ajet.core.update.optimizer import StepOutcome
from ajet.core.update.policy import Policy
from ajet.core.update.settings import OptimizerSettings, UpdateSettings
from ajet.servers.process import free_port

VOCAB, LAYERS, HIDDEN, INNER = 8192, 8, 512, 1536
GROUPS, MEMBERS, PROMPT, REPLY, BUDGET = 2, 4, 64, 48, 128
NUM_STATES = 4  # weights, gradients, two moments
FAR_S = 1800.0


@dataclass(frozen=True)
class Arm:
    """How many ranks, and what they are told."""

    ranks: int
    checkpointing: bool = False
    sequence: int = 1
    sharded: bool = True


ARMS = (
    Arm(1, sharded=False),
    *(Arm(ranks) for ranks in (1, 2, 4)),
    *(Arm(ranks, checkpointing=True) for ranks in (1, 2, 4)),
    *(Arm(ranks, sequence=ranks) for ranks in (2, 4)),
    *(Arm(ranks, checkpointing=True, sequence=ranks) for ranks in (2, 4)),
)


def local(tensor: Tensor) -> Tensor:
    """What this process has of it."""
    untyped: Any = tensor
    return untyped.to_local() if is_sharded(tensor) else tensor


def num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(part.numel() * part.element_size() for part in map(local, tensors))


def run_rank(rank: int, arm: Arm, port: int, rounds: int, out: Path) -> None:
    """One process of an arm; its figures to `out`."""
    torch.set_num_threads(1)
    import ajet.core.ranks.sharding  # noqa: F401  # before memory is measured

    if arm.sharded:
        connect(rank, arm.ranks, host="127.0.0.1", port=port)
    before = memory("VmRSS")
    settings = UpdateSettings(
        max_tokens_per_micro_batch=BUDGET, activation_checkpointing=arm.checkpointing
    )
    model = tiny_model(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    policy = Policy(model, settings, ranks_of(arm))
    out.write_text(json.dumps(measured(policy, before, rounds)))
    disconnect()


def ranks_of(arm: Arm) -> Ranks:
    if not arm.sharded:
        return ONE_RANK
    return TorchRanks(ShardingSettings(ulysses_sequence_parallel_size=arm.sequence))


def measured(policy: Policy, before: int, rounds: int) -> dict[str, Any]:
    """An update that makes the optimizer's state, then those that count."""
    seen: list[tuple[int, float]] = []
    step = policy.optimizer.step

    def after_a_look(adam: OptimizerSettings | None = None) -> StepOutcome:
        grads = [local(p.grad) for p in policy.model.parameters() if p.grad is not None]
        squares = np.array([sum(float(grad.double().square().sum()) for grad in grads)])
        seen.append((num_bytes(grads), float(policy.ranks.all_reduce_sum(squares)[0]) ** 0.5))
        return step(adam)

    policy.optimizer.step = after_a_look
    samples = random_samples(VOCAB, GROUPS, MEMBERS, PROMPT, REPLY)
    policy.update(samples)
    policy.optimizer.step = step
    forget_peak()
    for _ in range(rounds):
        policy.update(samples)
    moments = (t for name, t in policy.optimizer.tensors().items() if not name.endswith(".step"))
    return {
        "parameters": num_bytes(policy.model.parameters()),
        "gradients": seen[0][0],
        "optimizer": num_bytes(moments),
        "peak_rss": memory("VmHWM") - before,
        "grad_norm": seen[0][1],
        "num_parameters": sum(p.numel() for p in policy.model.parameters()),
    }


def run_arm(arm: Arm, rounds: int, folder: Path) -> dict[str, Any]:
    """The largest rank's memory."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    files = [folder / f"{rank}.json" for rank in range(arm.ranks)]
    processes = [
        context.Process(target=run_rank, args=(rank, arm, port, rounds, file))
        for rank, file in enumerate(files)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(FAR_S)
    if any(process.exitcode != 0 for process in processes):
        raise SystemExit(f"error: {arm} did not end well")
    told = [json.loads(file.read_text()) for file in files]
    largest = {
        name: max(each[name] for each in told)
        for name in ("parameters", "gradients", "optimizer", "peak_rss")
    }
    state = max(each["parameters"] + each["gradients"] + each["optimizer"] for each in told)
    limit = told[0]["num_parameters"] * 4 * NUM_STATES / arm.ranks
    return {
        **asdict(arm),
        "bytes": largest,
        "state_bytes": state,
        "limit_bytes": limit,
        "of_limit": state / limit,
        "grad_norm": told[0]["grad_norm"],
        "num_parameters": told[0]["num_parameters"],
    }


def main() -> None:
    parser = options(__doc__, "sharding", rounds=2)
    parser.add_argument("--go-on", action="store_true", help="keep the arms that --out has")
    args = parser.parse_args()
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    arms = read(args.out)["arms"] if args.go_on else []
    known = [tuple(arm[name] for name in asdict(ARMS[0])) for arm in arms]
    for arm in ARMS:
        if astuple(arm) in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            arms.append(run_arm(arm, args.rounds, Path(folder)))
        print(json.dumps(arms[-1]), flush=True)
        norms = [arm["grad_norm"] for arm in arms]
        report = {
            "torch": torch.__version__,
            "parameters": arms[0]["num_parameters"],
            "tokens": {"groups": GROUPS, "members": MEMBERS, "prompt": PROMPT, "reply": REPLY},
            "grad_norm_spread": max(norms) / min(norms) - 1,
            "arms": arms,
        }
        write(args.out, report)


if __name__ == "__main__":
    main()
