"""The SGLang adapter against a real SGLang: the claims that the stand-in passes, on a GPU.

    ajet servers install sglang
    python benchmarks/sglang_real.py [--python PATH] [--out benchmarks/results/sglang_real.json]

Starts a server over a tiny Qwen2 saved to a temporary folder and runs tests/replica_contract.py
against it, and one with several adapters for tests/adapter_contract.py. Reports for each claim
whether it holds and how long it took, the time to load new weights from disk, from shared memory
and from the device, and tokens a second of 64 requests.
Log-probabilities are compared at the tolerance of bfloat16 unless --dtype float32 is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the claims are the tests' own

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.weight_sync.folder import WeightFolder, shared_memory_root
from ajet.core.weight_sync.live import LiveSource
from ajet.servers.environment import require_server
from ajet.servers.process import free_port
from ajet.servers.sglang import SglangServerArgs, start_sglang
from tests.adapter_contract import ADAPTER_CONTRACT, LORA, AdapterBench, trainer_models
from tests.replica_contract import CONTRACT, MAX_LEN, PROMPT, Bench, save, tiny_model

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}
REQUESTS, TOKENS = 64, 128


async def claims(bench: Bench | AdapterBench, contract: list[Any]) -> list[dict[str, Any]]:
    """Each claim, whether it holds, and why not."""
    found = []
    for claim in contract:
        started, failure = time.perf_counter(), None
        try:
            await asyncio.wait_for(claim(bench), 300)
        except Exception:  # noqa: BLE001, the next claim is tried all the same
            failure = traceback.format_exc(limit=-1).strip().splitlines()[-1]
        seconds = round(time.perf_counter() - started, 2)
        found.append({"claim": claim.__name__, "holds": failure is None, "seconds": seconds})
        found[-1] |= {"failure": failure} if failure else {}
        print(found[-1], flush=True)
    return found


async def loads(bench: Bench, on_device: Any) -> dict[str, Any]:
    """Seconds and bytes of one load, by each way."""
    memory = WeightFolder(shared_memory_root() / "ajet-sglang-real")
    version = bench.next_version
    sources = {
        "checkpoint": bench.folder.write(version(), bench.models[0].named_parameters()),
        "memory": memory.write(version(), bench.models[0].named_parameters()),
        "device": LiveSource(version(), on_device.named_parameters),
    }
    found = {}
    for way, source in sources.items():
        report = await bench.replica.load_weights(source, source.version)
        found[way] = {"seconds": round(report.seconds, 3), "bytes": report.num_bytes}
    memory.close()
    return found


async def adapter_claims(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The claims on several adapters, by a server of their own."""
    base = tiny_model(0)
    path = save(base, folder / "adapted" / "model")
    args = SglangServerArgs(
        path,
        free_port(),
        arguments.python,
        dtype=arguments.dtype,
        max_model_len=MAX_LEN,
        adapters=LORA,
    )
    replica = await start_sglang(
        args, name="r1", log_path=folder / "adapted.log", stop_token_ids=(), deadline_s=900
    )
    made, weights = trainer_models(base), WeightFolder(folder / "adapted" / "w")
    bench = AdapterBench(replica, base, made, weights, tolerance=TOLERANCE[arguments.dtype])
    try:
        return await claims(bench, ADAPTER_CONTRACT)
    finally:
        await replica.close()


async def throughput(bench: Bench) -> float:
    """Sampled tokens a second."""
    sampling = SamplingParams(max_tokens=TOKENS)
    started = time.perf_counter()
    replies = await asyncio.gather(
        *(bench.replica.generate([*PROMPT, n], sampling, f"t{n}/0000") for n in range(REQUESTS))
    )
    sampled = sum(len(reply.token_ids) for reply in replies)
    return round(sampled / (time.perf_counter() - started), 1)


async def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start, measure, stop."""
    models = [tiny_model(0), tiny_model(1)]
    path = save(models[0], folder / "model")
    args = SglangServerArgs(
        path, free_port(), arguments.python, dtype=arguments.dtype, max_model_len=MAX_LEN
    )
    began = time.perf_counter()
    replica = await start_sglang(
        args, name="r0", log_path=folder / "sglang.log", stop_token_ids=(), deadline_s=900
    )
    start_s = round(time.perf_counter() - began, 1)
    bench = Bench(replica, models, WeightFolder(folder / "w"), TOLERANCE[arguments.dtype])
    try:
        version = await replica.check_version()
        held = await claims(bench, CONTRACT)
        ways = await loads(bench, tiny_model(0).to("cuda"))
        return {
            "sglang": version,
            "dtype": arguments.dtype,
            "start_seconds": start_s,
            "claims": held,
            "adapter_claims": await adapter_claims(arguments, folder),
            "loads": ways,
            "tokens_a_second": await throughput(bench),
        }
    finally:
        await replica.close()


def main() -> None:
    """Run it where there is a GPU; say so where there is none."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--python", help="the one that has SGLang; by default as `ajet servers` says"
    )
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="bfloat16")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sglang_real.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: SGLang needs CUDA, and there is none here")
    arguments.python = arguments.python or require_server("sglang", on_gpu=True).python
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(arguments, Path(folder)))
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    all_claims = [*result["claims"], *result["adapter_claims"]]
    sys.exit(not all(claim["holds"] for claim in all_claims))


if __name__ == "__main__":
    main()
