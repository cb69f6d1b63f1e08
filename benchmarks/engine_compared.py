"""Tokens a second of the in-process engine beside vLLM, llama.cpp and `generate`, on a real model.

    python benchmarks/engine_compared.py --model SmolLM2-135M-Instruct.Q4_1.gguf \
        --vllm .venv-vllm/bin/python --llama-server llama.cpp/build/bin/llama-server \
        --out benchmarks/results/engine_compared.json

32 conversations: 4 groups of 8, prompts of 324 random tokens that a group shares and that no cache
knows yet, replies of 125 tokens whatever is sampled, temperature 1, no cuts, two threads. Each
system runs in a process of its own, which loads and warms up first; then all of them run in turn,
`--repeats` times, with other prompts each time. The figure is tokens a second of wall time, prompts
included; medians. Each is given its best way to share the prompt of a group: vLLM `n=8` and its
prefix cache, llama.cpp `n_cmpl=8`; `generate` has none.

The limit beside them is measured in the same way: the matrix products of this work alone, each
distinct prompt token once and 32 rows a step, by oneDNN with packed weights (`products`) and by
`F.linear` (`linear`).

The file has the figures by the processor's widest vectors (avx2, avx512_bf16). `--systems` runs
some of them and merges the figures into the file, with the date of each run: figures of one run may
be compared. Systems whose program is not given are left out, and said to be.

Not covered: accelerators; a server's own cost (vLLM is called in its process).
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from report import measured_on, read, write

GROUPS, GROUP, PROMPT, REPLY, THREADS = 4, 8, 324, 125, 2
SYSTEMS = (
    "ajet:bfloat16",
    "vllm:bfloat16",
    "llama.cpp:q4_1",
    "generate:bfloat16",
    "products:bfloat16",
    "linear:bfloat16",
    "ajet:float32",
    "vllm:float32",
    "generate:float32",
    "products:float32",
    "linear:float32",
)
LIMITS = ("products", "linear")
MARK = "engine_compared: "
Run = Callable[[list[list[int]], int], int]
"""Samples so many tokens for each member of the groups with these prompts; returns their number."""


def prompts(seed: int) -> list[list[int]]:
    """Returns one prompt for each group."""
    draw = random.Random(seed)
    return [[draw.randrange(100, 45_000) for _ in range(PROMPT)] for _ in range(GROUPS)]


def with_ajet(folder: str, dtype: str) -> Run:
    import asyncio

    import torch

    from ajet.core.inference.endpoint import SamplingParams
    from ajet.core.model.load import load_model
    from ajet.engines.in_process import InProcessEngine

    torch.set_num_threads(THREADS)
    model = load_model(folder, dtype=dtype, device="cpu").model.eval()
    engine = InProcessEngine(model, stop_token_ids=())
    loop = asyncio.new_event_loop()

    def run(texts: list[list[int]], max_tokens: int) -> int:
        async def conversation(number: int) -> int:
            sampling = SamplingParams(max_tokens=max_tokens, seed=number)
            episode = f"{number:06d}"
            reply = await engine.generate(texts[number // GROUP], sampling, f"{episode}/0000")
            engine.leave(episode)
            return len(reply.token_ids)

        async def all_conversations() -> int:
            engine.publish(engine.policy_version + 1)  # as after an update: nothing is cached
            for number in range(GROUPS * GROUP):
                engine.enter(f"{number:06d}")
            return sum(await asyncio.gather(*map(conversation, range(GROUPS * GROUP))))

        return loop.run_until_complete(all_conversations())

    return run


def with_generate(folder: str, dtype: str) -> Run:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(THREADS)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run(texts: list[list[int]], max_tokens: int) -> int:
        config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=GROUP,
            min_new_tokens=max_tokens,
            max_new_tokens=max_tokens,
            pad_token_id=0,
        )
        ids = torch.tensor(texts)
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return (out.shape[1] - ids.shape[1]) * out.shape[0]

    return run


def with_vllm(folder: str, dtype: str) -> Run:
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}", "VLLM_CPU_KVCACHE_SPACE": "1"}
    from vllm import LLM, SamplingParams  # pyright: ignore  # an environment of its own

    model = LLM(folder, dtype=dtype, max_model_len=1024, max_num_seqs=GROUPS * GROUP, seed=0)

    def run(texts: list[list[int]], max_tokens: int) -> int:
        sampling = SamplingParams(
            n=GROUP, temperature=1.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        found = model.generate([{"prompt_token_ids": ids} for ids in texts], sampling)
        return sum(len(reply.token_ids) for request in found for reply in request.outputs)

    return run


def with_llama(server: str, file: str) -> Run:
    from ajet.servers.process import free_port

    port, slots = free_port(), GROUPS * GROUP
    command = [server, "-m", file, "--port", str(port), "-t", str(THREADS), "-np", str(slots)]
    command += ["-c", str(slots * (PROMPT + REPLY + 32)), "--no-webui", "--kv-unified", "-fa", "on"]
    log = subprocess.DEVNULL
    process = subprocess.Popen([*command, "-b", "2048", "-ub", "512"], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def ask(body: dict[str, Any], lengths: list[int]) -> None:
        request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request) as answer:
            found = json.load(answer)
        lengths += [reply["tokens_predicted"] for reply in found]

    def run(texts: list[list[int]], max_tokens: int) -> int:
        lengths: list[int] = []
        options = {"n_predict": max_tokens, "n_cmpl": GROUP, "ignore_eos": True}
        options |= {"temperature": 1.0, "samplers": ["temperature"], "cache_prompt": True}
        asking = [
            threading.Thread(target=ask, args=({"prompt": ids, **options}, lengths))
            for ids in texts
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        return sum(lengths)

    wait_for(f"{url}/health", process)
    return run


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Waits until the server answers."""
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} did not answer within a minute")


def with_products(folder: str, dtype: str, packed: bool) -> Run:
    import torch
    from transformers import AutoModelForCausalLM

    from ajet.engines.packed_decoder import PackedLinear

    torch.set_num_threads(THREADS)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    own: list[tuple[Any, ...]] = []
    for layer in model.model.layers:
        attn, mlp = layer.self_attn, layer.mlp
        own += [(attn.q_proj, attn.k_proj, attn.v_proj), (attn.o_proj,), (mlp.gate_proj,)]
        own += [(mlp.up_proj,), (mlp.down_proj,)]
    head = (model.lm_head,)

    def product(layers: tuple[Any, ...]) -> tuple[int, Callable[[torch.Tensor], torch.Tensor]]:
        size = layers[0].in_features
        if packed:
            return size, PackedLinear.of(*layers)
        weight = torch.cat([layer.weight for layer in layers])
        return size, lambda x: torch.nn.functional.linear(x, weight)

    with torch.inference_mode():
        body, logits = [product(layers) for layers in own], product(head)

    def run(texts: list[list[int]], max_tokens: int) -> int:
        inputs = {
            (rows, size): torch.randn(rows, size).to(model.dtype)
            for rows in (PROMPT, GROUPS * GROUP)
            for size in {size for size, _ in body}
        }
        with torch.inference_mode():
            for rows in [PROMPT] * GROUPS + [GROUPS * GROUP] * max_tokens:
                for size, multiply in body:
                    multiply(inputs[rows, size])
                if rows == GROUPS * GROUP:
                    logits[1](inputs[rows, logits[0]])
        return GROUPS * GROUP * max_tokens

    return run


def work(system: str, folder: str, gguf: str, llama_server: str) -> None:
    """Loads one system, then answers each line, a seed, with the figures of a run."""
    name, precision = system.split(":")
    if name == "llama.cpp":
        run = with_llama(llama_server, gguf)
    elif name in LIMITS:
        run = with_products(folder, precision, packed=name == "products")
    else:
        start = {"ajet": with_ajet, "vllm": with_vllm, "generate": with_generate}[name]
        run = start(folder, precision)
    run(prompts(-1), 4)
    print(f"{MARK}ready", flush=True)
    for line in sys.stdin:
        started_s = time.perf_counter()
        sampled = run(prompts(int(line)), REPLY)
        figures = {"tokens": sampled, "seconds": time.perf_counter() - started_s}
        print(MARK + json.dumps(figures), flush=True)


class Worker:
    """Runs a system in a process of its own."""

    def __init__(self, system: str, python: str, options: list[str]) -> None:
        self.system = system
        self.tokens_s: list[float] = []
        self._process = subprocess.Popen(
            [python, __file__, "--worker", system, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return line.removeprefix(MARK).strip()
        raise SystemExit(f"{self.system} ended: run {__file__} --worker {self.system} to see why")

    def measure(self, seed: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        found = json.loads(self.answer())
        assert found["tokens"] == GROUPS * GROUP * REPLY, f"{self.system}: {found['tokens']} tokens"
        self.tokens_s.append(found["tokens"] / found["seconds"])

    def stop(self) -> None:
        os.killpg(self._process.pid, 15)
        self._process.wait()


def save_folder(model: str, folder: str) -> None:
    """Writes a GGUF file's model as a transformers folder, for those who don't read GGUF."""
    from ajet.core.model.load import load_model

    loaded = load_model(model, dtype="float32")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)


def compare(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Starts the systems, then measures each in turn."""
    options = ["--model", args.model, "--folder", folder, "--llama-server", args.llama_server]
    workers: list[Worker] = []
    try:
        for system in args.systems:
            name = system.partition(":")[0]
            if (name == "vllm" and not args.vllm) or (
                name == "llama.cpp" and not args.llama_server
            ):
                print(f"{system}: left out, its program is not given")
                continue
            workers.append(Worker(system, args.vllm if name == "vllm" else sys.executable, options))
            workers[-1].answer()
            print(f"{system}: ready", flush=True)
        for repeat in range(args.repeats):
            if args.pause:
                input(f"round {repeat + 1}: press return\n")
            for worker in workers:
                worker.measure(repeat)
                print(f"{worker.system}: {worker.tokens_s[-1]:.0f} tokens/s", flush=True)
    finally:
        for worker in workers:
            worker.stop()
    return {
        worker.system: {
            "tokens_s": statistics.median(worker.tokens_s),
            "all_tokens_s": worker.tokens_s,
            "run": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        }
        for worker in workers
    }


def main() -> None:
    """Measure, print, merge into the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS, metavar="SYSTEM")
    parser.add_argument("--vllm", default="", help="a Python with vLLM's CPU build: ajet servers")
    parser.add_argument("--llama-server", default="", help="llama.cpp's llama-server")
    parser.add_argument("--folder", default="", help="the model as a transformers folder, if made")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pause", action="store_true", help="wait for a line before each round")
    parser.add_argument("--out", type=Path, help="merge the figures into this JSON file")
    parser.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.folder, args.model, args.llama_server)
        return
    with tempfile.TemporaryDirectory() as made:
        if not args.folder:
            save_folder(args.model, made)
        figures = compare(args, args.folder or made)
    for system, found in figures.items():
        print(f"{system}: {found['tokens_s']:.0f} tokens/s")
    if args.out:
        report, now = read(args.out), measured_on()
        systems = report.get(now["vectors"], {}).get("systems", {}) | figures
        write(args.out, report | now | {now["vectors"]: {**now, "systems": systems}})


if __name__ == "__main__":
    main()
