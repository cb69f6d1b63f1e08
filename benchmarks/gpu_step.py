"""One GPU: the update's throughput and MFU, the engine's, the weight sync, a step beside TRL's.

    python benchmarks/gpu_step.py [--model Qwen/Qwen2.5-0.5B-Instruct] [--engine in_process]
    python benchmarks/gpu_step.py --engine vllm --python .venv-vllm/bin/python --gpu h100
    python benchmarks/gpu_step.py --device cpu          # a tiny model: every line, no figures

It has been run on a CPU with a tiny model alone, not on a GPU, and its servers not at all: expect
to mend it there. JSON goes to benchmarks/results/gpu_step.json.

Update      one optimizer step on `--groups` groups of 8 episodes, as a tree. Tokens a second are
            distinct ones (a prefix that a group shares counts once), and

                FLOPs = 6 B C + 6 H T + 12 L a D        MFU = FLOPs / seconds / peak

            B: weights of the layers, C: distinct tokens, H: vocabulary x width of the output
            layer, T: trained tokens, L: layers, a: width of the queries, D: over all distinct
            tokens, how many they attend to. 2 FLOPs a weight forwards and 4 backwards; attention
            has two products. Recomputation and padding count nothing. Peak: `--peak-tflops`, or
            the data sheet's of `--gpu` (dense bfloat16), by default the one that CUDA names.
Engine      `--requests` requests at once, of `--prompt` tokens each; `--reply` are sampled. Of the
            in-process engine also how many decode steps ran eagerly, and how many were replayed.
Sync        weights from the trainer's device to the engine: seconds of writing (where something
            is), seconds of loading, bytes; through a folder on disk, through shared memory, and
            from the device itself where the engine can (not vLLM). Each load ends with a checksum.
Step        8 tasks x 8 episodes with a tool, as benchmarks/grpo_step_vs_trl.py has it, in one
            process, with the in-process engine on both sides (TRL's `model.generate`).

Not covered: several GPUs, TRL with vLLM, a step through a server.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the step is another benchmark's

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.replica import Replica
from ajet.core.model.load import load_model
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.core.weight_sync.folder import WeightFolder, shared_memory_root
from ajet.core.weight_sync.live import LiveSource
from ajet.engines.in_process_replica import InProcessReplica
from ajet.plan.data_sheet import GPUS
from ajet.plan.model_shape import ModelShape, shape_of
from ajet.plan.update_time import EpisodeSize, StepTokens
from ajet.servers.process import free_port
from ajet.servers.sglang import SglangServerArgs, start_sglang
from ajet.servers.vllm import VllmServerArgs, start_vllm
from benchmarks import grpo_step_vs_trl

MEMBERS = 8
ON_CPU = {"model": "embedded:math", "groups": 2, "prompt": 64, "reply": 16, "requests": 8}
ON_GPU = {
    "model": "Qwen/Qwen2.5-0.5B-Instruct", "groups": 16, "prompt": 512, "reply": 512,
    "requests": 256,
}  # fmt: skip


def make_samples(args: argparse.Namespace, vocab: int) -> list[TrainingSample]:
    rng = np.random.default_rng(0)
    samples = []
    for g in range(args.groups):
        prompt = rng.integers(0, vocab, args.prompt)
        for e in range(MEMBERS):
            mask = np.arange(args.prompt + args.reply) >= args.prompt
            samples.append(
                TrainingSample(
                    episode_id=f"{g}/{e}",
                    group_id=str(g),
                    token_ids=np.concatenate((prompt, rng.integers(0, vocab, args.reply))),
                    loss_mask=mask,
                    logprobs=np.where(mask, -np.log(vocab), 0).astype(np.float32),
                    advantages=np.where(mask, rng.normal(), 0).astype(np.float32),
                    spans=(),
                    min_policy_version=0,
                    max_policy_version=0,
                )
            )
    return samples


def update_flops(args: argparse.Namespace, shape: ModelShape) -> tuple[int, float]:
    """Distinct tokens of an update, and its FLOPs: the formula above."""
    tokens = StepTokens(args.groups, MEMBERS, EpisodeSize(args.prompt, args.reply), "tree")
    return tokens.num, 3 * tokens.forward_flops(shape)


def now(device: str) -> float:
    """The clock, when the device has done all it was given."""
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure_update(args: argparse.Namespace, policy: Policy, shape: ModelShape) -> dict[str, Any]:
    samples = make_samples(args, shape.vocab)
    policy.update(samples)  # makes the optimizer's state, warms up
    seconds = []
    for _ in range(args.rounds):
        started = now(args.device)
        policy.update(samples)
        seconds.append(now(args.device) - started)
    distinct, flops = update_flops(args, shape)
    middle = statistics.median(seconds)
    peak = peak_flops(args)
    return {
        "seconds": seconds,
        "distinct_tokens": distinct,
        "tokens_a_second": distinct / middle,
        "tflops": flops / middle / 1e12,
        "peak_tflops": peak and peak / 1e12,
        "mfu": peak and flops / middle / peak,
        "peak_memory_bytes": 0 if args.device == "cpu" else torch.cuda.max_memory_allocated(),
    }


def peak_flops(args: argparse.Namespace) -> float | None:
    """Of this device; None where nobody knows it."""
    if args.peak_tflops:
        return args.peak_tflops * 1e12
    name = args.gpu or ("" if args.device == "cpu" else torch.cuda.get_device_name()).lower()
    known = [key for key in GPUS if key in name]
    return GPUS[max(known, key=len)].flops if known else None  # "a10" is in "a100"


async def start_engine(args: argparse.Namespace, folder: Path, model_path: str) -> Replica:
    """The engine of `--engine`, with the weights at `model_path`."""
    longest = args.prompt + args.reply + 1
    shared: dict[str, Any] = {"max_model_len": longest, "max_num_seqs": args.requests}
    if args.engine == "in_process":
        model = load_model(model_path, device=args.device).model
        return InProcessReplica("r0", model, stop_token_ids=(), **shared)
    where: dict[str, Any] = {
        "model_path": model_path,
        "port": free_port(),
        "python": args.python,
        "dtype": "float32" if args.device == "cpu" else "bfloat16",
        "gpu_memory_utilization": args.gpu_memory,
    }
    how: dict[str, Any] = {"name": "r0", "log_path": folder / "server.log", "stop_token_ids": ()}
    if args.engine == "vllm":
        return await start_vllm(VllmServerArgs(device=args.device, **where, **shared), **how)
    return await start_sglang(SglangServerArgs(**where, **shared), **how)


async def throughput(args: argparse.Namespace, engine: Replica, vocab: int) -> dict[str, float]:
    """After a warm-up with other prompts, which are not in the cache."""
    rng = np.random.default_rng(1)

    async def round_of(name: str) -> tuple[float, int]:
        prompts = rng.integers(0, vocab, (args.requests, args.prompt)).tolist()
        started = time.perf_counter()
        replies = await asyncio.gather(
            *(
                engine.generate(
                    prompt, SamplingParams(max_tokens=args.reply, seed=n), f"{name}{n}/0"
                )
                for n, prompt in enumerate(prompts)
            )
        )
        return time.perf_counter() - started, sum(len(reply.token_ids) for reply in replies)

    await round_of("warm-up")
    seconds, sampled = await round_of("timed")
    return {"requests": args.requests, "seconds": seconds, "tokens_a_second": sampled / seconds}


async def weight_sync(
    args: argparse.Namespace, engine: Replica, policy: Policy, folder: Path
) -> dict[str, dict[str, float]]:
    """Seconds and bytes of one transfer, by each way."""
    memory = WeightFolder(shared_memory_root() / "ajet-gpu-step")
    roots = {"checkpoint": WeightFolder(folder / "weights"), "memory": memory}
    found, version = {}, 1
    for way, root in roots.items():
        started = now(args.device)
        source = root.write(version, policy.weights())
        written_s = time.perf_counter() - started
        report = await engine.load_weights(source, version)
        found[way] = {"write_s": written_s, "load_s": report.seconds, "bytes": report.num_bytes}
        version += 1
    memory.close()
    if args.engine != "vllm":
        report = await engine.load_weights(LiveSource(version, policy.weights), version)
        found["device"] = {"write_s": 0.0, "load_s": report.seconds, "bytes": report.num_bytes}
    return found


async def measure_engine(
    args: argparse.Namespace, policy: Policy, model_path: str, vocab: int, folder: Path
) -> dict[str, Any]:
    started = time.perf_counter()
    engine = await start_engine(args, folder, model_path)
    try:
        start_s = time.perf_counter() - started
        measured = await throughput(args, engine, vocab)
        if isinstance(engine, InProcessReplica):
            stats = engine.stats
            measured |= {"eager": stats.eager_steps, "replayed": stats.replayed_steps}
        return {
            "name": args.engine,
            "start_s": start_s,
            "throughput": measured,
            "sync": await weight_sync(args, engine, policy, folder),
        }
    finally:
        await engine.close()


def measure_parts(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Update, engine and sync: one trainer's model, and an engine with its own."""
    loaded = load_model(args.model, device=args.device)
    model_path = str(folder / "model")
    loaded.model.save_pretrained(model_path)  # a server reads a folder
    loaded.tokenizer.save_pretrained(model_path)
    shape = shape_of(loaded.model.config, args.model)
    policy = Policy(
        loaded.model, UpdateSettings(max_tokens_per_micro_batch=args.micro_batch_tokens)
    )
    update = measure_update(args, policy, shape)
    return {
        "parameters": shape.parameters,
        "update": update,
        "engine": asyncio.run(measure_engine(args, policy, model_path, shape.vocab, folder)),
    }


def measure_step(args: argparse.Namespace) -> dict[str, Any]:
    """A step of ours, and TRL's; grpo_step_vs_trl.py says what is the same."""
    import trl

    config = grpo_step_vs_trl.configured(args, "chat", 0)
    tasks = grpo_step_vs_trl.make_reader(config).get_training_tasks()
    each = grpo_step_vs_trl.NUM_TASKS
    batches = [tasks[each * step :][:each] for step in range(args.steps + 1)]
    ours = grpo_step_vs_trl.summarize([grpo_step_vs_trl.with_ajet(config, batches)])
    free(args.device)
    theirs = grpo_step_vs_trl.summarize([grpo_step_vs_trl.with_trl(args, batches, 0)])
    return {
        "trl": trl.__version__,
        "episodes_a_second": {"ajet": ours.episodes_s, "trl": theirs.episodes_s},
        "ratio": ours.episodes_s / theirs.episodes_s,
        "rollout_s": {"ajet": ours.rollout_s, "trl": theirs.rollout_s},
        "update_s": {"ajet": ours.update_s, "trl": theirs.update_s},
        "reward": {"ajet": ours.all_steps_reward, "trl": theirs.all_steps_reward},
        "tokens_per_episode": {"ajet": ours.tokens_per_episode, "trl": theirs.tokens_per_episode},
    }


def free(device: str) -> None:
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("--model", help="a folder, a name on the hub, embedded:math")
    parser.add_argument("--engine", choices=("in_process", "vllm", "sglang"), default="in_process")
    parser.add_argument("--python", default=sys.executable, help="the one that has the server")
    parser.add_argument("--gpu", choices=sorted(GPUS), default="", help="whose peak is taken")
    parser.add_argument("--peak-tflops", type=float, help="the peak itself")
    parser.add_argument("--gpu-memory", type=float, default=0.4, help="the server's share")
    parser.add_argument("--groups", type=int, help="of 8 episodes, in an update")
    parser.add_argument("--prompt", type=int, help="tokens")
    parser.add_argument("--reply", type=int, help="tokens")
    parser.add_argument("--requests", type=int, help="of the engine, at once")
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3, help="timed updates")
    parser.add_argument("--steps", type=int, default=3, help="timed whole steps; 0 leaves them out")
    parser.add_argument("--max-tokens", type=int, default=128, help="of one completion of a step")
    parser.add_argument("--trl-micro-batch", type=int, default=8, help="episodes")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu_step.json"))
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        sys.exit("error: torch finds no GPU; --device cpu tries the script with a tiny model")
    for name, value in (ON_CPU if args.device == "cpu" else ON_GPU).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def main() -> None:
    args = arguments()
    on_gpu = args.device != "cpu"
    with tempfile.TemporaryDirectory() as folder:
        parts = measure_parts(args, Path(folder))
    free(args.device)
    document = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "model": args.model,
        **{name: getattr(args, name) for name in ("groups", "prompt", "reply")},
        **parts,
    }
    if args.steps:
        document["step"] = measure_step(args)
    print(json.dumps(document, indent=2))
    args.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
