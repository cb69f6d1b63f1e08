"""What ajet does on a GPU that nobody has tried it on: one call, one table, one JSON file.

    python scripts/gpu_first_contact.py                    # on one GPU, at most 9 minutes
    python scripts/gpu_first_contact.py --device cpu       # all parts at toy size
    python scripts/gpu_first_contact.py --parts attention layouts update

    attention    tree attention against float64 under a square mask; the plan that was taken
    layouts      log-probabilities and gradients of padded, packed and tree batches against float64
    checksum     one tensor's checksum on both devices; GB/s
    engine       the in-process engine: greedy replies against transformers', sleep, wake, load, and
                 tokens a second
    graphs       its decode steps as CUDA graphs against eager ones: tokens, log-probabilities,
                 and tokens a second
    update       tokens a second, MFU and peak memory of an update, at several shapes
    sharded      one FSDP2 rank, with and without offload: seconds, peak memory; saved and loaded
    sync         weights to a second process by handles of the device's memory, by files, and a
                 broadcast
    vllm, sglang a server that is installed (`ajet servers install`): its log-probabilities against
                 transformers', weights in each way, sleep, tokens a second
    frozen_lake  some steps of the tutorial by the command line
    demo         the math demo by the command line, with its curve

A part is a process of its own with a time limit, so one that hangs or crashes is a row. Models have
random weights; nothing is downloaded. A part fails if a number is wrong, never because it is slow.
Exit code 1 if one failed.

Not covered: several GPUs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the update's FLOPs are a benchmark's

Figures = dict[str, Any]
MARK = "gpu_first_contact: "


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
    model: Any = Qwen2ForCausalLM(config)  # whose `to` has no types
    return model.to(device_of(args), dtype)


def make_samples(vocab: int, groups: int, prompt: int, reply: int) -> list[Any]:
    """Returns samples of groups of 8 that share a prompt."""
    from benchmarks.gpu_step import make_samples

    return make_samples(Namespace(groups=groups, prompt=prompt, reply=reply), vocab)


def error_of(found: Tensor, expected: Tensor) -> float:
    """Returns the norm of the difference over the norm of what is expected."""
    wide = expected.double().cpu()
    return float((found.double().cpu() - wide).norm() / wide.norm())


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
    from ajet.core.update.policy import Policy
    from ajet.core.update.settings import UpdateSettings

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


def engine(args: Namespace) -> Figures:
    """Compares greedy replies, lets the engine sleep, wake and load, and measures it."""
    from ajet.core.inference.endpoint import SamplingParams
    from ajet.core.inference.replicas.in_process import InProcessReplica
    from ajet.core.weight_sync.live import LiveSource

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
    return {"greedy_replies": len(prompts)} | throughput(args)


def graphs(args: Namespace) -> Figures:
    """Compares replies of unequal lengths, past the columns that a graph has at first."""
    from ajet.core.inference.endpoint import SamplingParams
    from ajet.core.inference.engines.in_process import EngineStats, InProcessEngine
    from ajet.core.inference.engines.step_graph import cuda_graph_of

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
        figures[f"{name}_tokens_s"] = measured["tokens_s"]
        figures[f"{name}_peak_GB"] = peak_memory(args)
    return figures


def throughput(args: Namespace, *, with_graphs: bool = True) -> Figures:
    """Measures the in-process engine on the model of 0.5 billion."""
    from ajet.core.inference.endpoint import SamplingParams
    from ajet.core.inference.engines.step_graph import cuda_graph_of
    from ajet.core.inference.replicas.in_process import InProcessReplica

    requests, prompt, reply = (8, 16, 8) if is_toy(args) else (128, 512, 128)
    model = make_model(args, torch.bfloat16)
    rng = np.random.default_rng(1)

    async def measured() -> tuple[int, float]:
        replica = InProcessReplica(
            "r0",
            model,
            stop_token_ids=(),
            max_num_seqs=requests,
            make_graph=cuda_graph_of if with_graphs else None,
        )
        sampled, seconds = 0, 0.0
        for name in ("warm-up", "timed"):
            started = now(args)
            asked = (
                replica.generate(
                    rng.integers(0, 512, prompt).tolist(),
                    SamplingParams(max_tokens=reply, seed=i),
                    f"{name}{i}/0",
                )
                for i in range(requests)
            )
            found = await asyncio.gather(*asked)
            sampled, seconds = sum(len(r.token_ids) for r in found), now(args) - started
        await replica.close()
        return sampled, seconds

    sampled, seconds = asyncio.run(measured())
    return {"requests": requests, "tokens_s": sampled / seconds}


def update(args: Namespace) -> Figures:
    """Measures the update at several shapes: groups of 8 with a shared prompt, and long rows."""
    from ajet.core.update.policy import Policy
    from ajet.core.update.settings import UpdateSettings
    from benchmarks.gpu_step import peak_flops, update_flops

    shapes = [(2, 32, 16)] if is_toy(args) else [(8, 1024, 384), (4, 512, 2048), (1, 512, 4096)]
    model = make_model(args, torch.bfloat16)
    policy = Policy(model, UpdateSettings(max_tokens_per_micro_batch=16_384, kl_loss_coef=0.0))
    shape = shape_of_model(model)
    figures: Figures = {}
    for groups, prompt, reply in shapes:
        described = Namespace(groups=groups, prompt=prompt, reply=reply)
        samples = make_samples(shape.vocab, groups, prompt, reply)
        policy.update(samples)
        reset_peak(args)
        started = now(args)
        policy.update(samples)
        seconds = now(args) - started
        distinct, flops = update_flops(described, shape)
        peak = peak_flops(Namespace(peak_tflops=None, gpu="", device=args.device))
        name = f"{groups}x8x({prompt}+{reply})"
        figures[f"{name}_tokens_s"] = distinct / seconds
        figures[f"{name}_mfu"] = flops / seconds / peak if peak else None
        figures[f"{name}_peak_GB"] = peak_memory(args)
    return figures


def sharded(args: Namespace) -> Figures:
    """Trains one FSDP2 rank with and without offload, its peak beside that of `ajet plan`; a
    checkpoint is saved and loaded."""
    from ajet.cluster.memory_estimate import TrainerMemoryInputs, trainer_memory
    from ajet.core.update.checkpoint import read_checkpoint, save_checkpoint
    from ajet.core.update.policy import Policy
    from ajet.core.update.ranks import TorchRanks, connect, disconnect
    from ajet.core.update.settings import ShardingSettings, UpdateSettings
    from ajet.servers.process import free_port

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
            planned_parts = trainer_memory(shape_of_model(model), planned)
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
            with tempfile.TemporaryDirectory() as folder:
                state = policy.state_dict()
                saved = save_checkpoint(Path(folder), 1, state.tensors, state.state, ranks=ranks)
                loaded = read_checkpoint(saved, ranks=ranks, like=state.tensors)
                before = policy.score(samples[:2])
                policy.update(samples)
                policy.load_state_dict(loaded.tensors, loaded.state)
                after = policy.score(samples[:2])
                same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
                assert same, f"{name}: a loaded policy gives other log-probabilities"
            del policy
    finally:
        disconnect()
    return figures


def sync(args: Namespace) -> Figures:
    """Brings weights to a second process by handles of the device's memory and by files, and sends
    them through a group of one."""
    from ajet.core.weight_sync.broadcast import open_store, send_tensors
    from ajet.core.weight_sync.folder import WeightFolder, shared_memory_root
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
    folder = WeightFolder(shared_memory_root("ajet-first-contact"))
    started = now(args)
    load_tensors(own, folder.write(3, own.items()))
    figures["files_s"] = now(args) - started
    folder.close()
    sending.close()
    backend = "gloo" if is_toy(args) else "nccl"
    store = open_store("127.0.0.1", 1, 60.0)
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
    """Starts a vLLM server and measures it, if one is installed."""
    return served(args, "vllm")


def sglang(args: Namespace) -> Figures:
    """Starts an SGLang server and measures it, if one is installed."""
    return {"skipped": "SGLang needs a GPU"} if is_toy(args) else served(args, "sglang")


def served(args: Namespace, engine: Literal["vllm", "sglang"]) -> Figures:
    """Compares a server's log-probabilities with transformers', before and after its weights have
    come in each way; lets it sleep; measures tokens a second."""
    from ajet.servers.environment import find_server

    on_gpu = not is_toy(args)
    found = find_server(engine, on_gpu=on_gpu)
    if found is None:
        package = engine if on_gpu else f"{engine}-cpu"
        return {"skipped": f"not installed: `ajet servers install {package}`"}
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = make_model(args, dtype)
    model.config.eos_token_id = model.config.bos_token_id = None
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/model")
        asked = {
            "model_path": f"{folder}/model",
            "python": found.python,
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
        from ajet.servers.process import free_port
        from ajet.servers.sglang import SglangServerArgs, start_sglang
        from ajet.servers.vllm import VllmServerArgs, start_vllm

        started = time.perf_counter()
        given: Any = {
            "name": "r0",
            "log_path": self.folder / "server.log",
            "stop_token_ids": (),
            "deadline_s": PARTS[self.engine][1] * self.args.patience,
        }
        if self.engine == "vllm":
            self.replica: Any = await start_vllm(VllmServerArgs(port=free_port(), **asked), **given)
        else:
            arguments = SglangServerArgs(port=free_port(), **asked)
            self.replica = await start_sglang(arguments, **given)
        self.figures["start_s"] = time.perf_counter() - started
        try:
            await self._compare("start", 1.0)
            await self._bring_weights(asked["model_path"])
            await self._sleep()
            await self._throughput()
        finally:
            await self.replica.close()
        return self.figures

    async def _compare(self, name: str, scale: float) -> None:
        """Compares log-probabilities with those of the model whose weights are times `scale`."""
        from ajet.core.inference.endpoint import SamplingParams

        prompt = np.random.default_rng(0).integers(0, 512, 17).tolist()
        sampling = SamplingParams(max_tokens=12, seed=1)
        reply = await self.replica.generate(prompt, sampling, f"{name}/0")
        weights = {n: w.detach() * scale for n, w in self.model.named_parameters()}
        ids = torch.tensor([[*prompt, *reply.token_ids]], device=device_of(self.args))
        with torch.no_grad():
            logits = torch.func.functional_call(self.model, weights, (ids,)).logits[0, 16:-1]
        wanted = torch.tensor(reply.token_ids, device=logits.device)[:, None]
        expected = logits.float().log_softmax(-1).gather(1, wanted)[:, 0].cpu()
        error = float((torch.tensor(reply.logprobs) - expected).abs().mean())
        self.figures[f"{name}_logprob_error"] = error
        assert error < (1e-3 if is_toy(self.args) else 0.1), self.figures

    async def _bring_weights(self, model_path: str) -> None:
        from ajet.core.weight_sync.folder import WeightFolder

        sending = Sender(self.args, model_path)
        several = is_toy(self.args) or torch.cuda.device_count() > 1  # NCCL wants a GPU for each
        broadcast = "gloo" if is_toy(self.args) else "nccl"
        ways = [("ipc", 1.5), *([(broadcast, 0.5)] if several else []), ("files", 2.0)]
        source: Any = None
        for version, (way, scale) in enumerate(ways, start=1):
            if way != "files":
                (source,) = sending.begin(version, scale, way)
            started = now(self.args)
            if way == "files":
                scaled = ((n, w.detach() * scale) for n, w in self.model.named_parameters())
                source = WeightFolder(self.folder / "weights").write(version, scaled)
            report = await self.replica.load_weights(source, version)
            self.figures[f"{way}_s"] = now(self.args) - started
            if way != "files":
                assert report.checksum == sending.end(), f"{way}: the server has other weights"
            await self._compare(way, scale)
        sending.close()

    async def _sleep(self) -> None:
        """Lets the server give its memory up, and brings its weights again."""
        from ajet.core.weight_sync.folder import WeightFolder

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
        await self._compare("woken", 1.0)

    async def _throughput(self) -> None:
        from ajet.core.inference.endpoint import SamplingParams

        requests, prompt, reply = (4, 16, 8) if is_toy(self.args) else (64, 512, 128)
        rng = np.random.default_rng(1)
        started = now(self.args)
        asked = (
            self.replica.generate(
                rng.integers(0, 512, prompt).tolist(),
                SamplingParams(max_tokens=reply, seed=i),
                f"timed{i}/0",
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


def shape_of_model(model: nn.Module) -> Any:
    from ajet.cluster.model_shape import shape_of

    untyped: Any = model
    return shape_of(untyped.config.to_dict(), "random")


def now(args: Namespace) -> float:
    """Returns the clock when the device has done all it was given."""
    from benchmarks.gpu_step import now

    return now(args.device)


def reset_peak(args: Namespace) -> None:
    if not is_toy(args):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(args: Namespace) -> float:
    return 0.0 if is_toy(args) else torch.cuda.max_memory_allocated() / 1e9


PARTS: dict[str, tuple[Callable[[Namespace], Figures], float]] = {
    "attention": (attention, 60),
    "layouts": (layouts, 60),
    "checksum": (checksum, 60),
    "engine": (engine, 90),
    "graphs": (graphs, 90),
    "update": (update, 90),
    "sharded": (sharded, 90),
    "sync": (sync, 90),
    "vllm": (vllm, 240),
    "sglang": (sglang, 240),
    "frozen_lake": (frozen_lake, 120),
    "demo": (demo, 300),
}
"""Each part with its time limit in seconds. The parts that come first need the least."""


def run_part(name: str, args: Namespace, left_s: float) -> Figures:
    """Runs a part in a process of its own; returns its row."""
    command = [sys.executable, str(Path(__file__)), "--part", name, "--device", args.device]
    command += ["--patience", str(args.patience)]
    started = time.perf_counter()
    limit = min(PARTS[name][1] * args.patience, left_s)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        text = done.stdout + done.stderr
        ended = f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        text, ended = "", f"not done within {limit:.0f} s"
    row: Figures = {"part": name, "seconds": time.perf_counter() - started}
    marked = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
    if marked:
        return row | {"ok": True, "figures": json.loads(marked[-1])}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return row | {"ok": False, "error": lines[-1] if lines else ended, "output": lines[-40:]}


def show(row: Figures) -> None:
    """Prints a row: the part, whether it is right, its seconds, its figures or its last line."""
    told = row.get("figures")
    words = (
        row["error"]
        if told is None
        else "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in told.items()
        )
    )
    print(f"{row['part']:12} {'ok' if row['ok'] else 'FAILED':7} {row['seconds']:6.1f} s  {words}")
    sys.stdout.flush()


def main() -> None:
    """Runs the parts, prints the table, writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--limit-s", type=float, default=530.0, help="of all parts together")
    parser.add_argument("--patience", type=float, default=1.0, help="times each part's own limit")
    parser.add_argument("--out", type=Path, default=Path("gpu_first_contact.json"))
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(MARK + json.dumps(PARTS[args.part][0](args)))
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: torch finds no GPU; --device cpu tries the script at toy size")
    name = "cpu" if args.device == "cpu" else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}")
    rows: list[Figures] = []
    started = time.perf_counter()
    for part in args.parts:
        left_s = args.limit_s - (time.perf_counter() - started)
        rows.append(
            run_part(part, args, left_s)
            if left_s > 5
            else {"part": part, "ok": False, "seconds": 0.0, "error": "no time was left"}
        )
        show(rows[-1])
        document = {"device": name, "torch": torch.__version__, "parts": rows}
        args.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(row["ok"] for row in rows) else 1)


if __name__ == "__main__":
    main()
