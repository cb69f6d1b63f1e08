"""The SGLang adapter against a real SGLang: the claims that the stand-in passes, on a GPU.

    ajet servers install sglang
    python benchmarks/sglang_real.py [--python PATH]

Starts a server over a tiny Qwen2 saved to a temporary folder and runs tests/replica_contract.py
against it, and one with several adapters for tests/adapter_contract.py. Reports for each claim
whether it holds and how long it took. Log-probabilities are compared at the tolerance of bfloat16
unless --dtype float32 is given. Times of loading and sampling: scripts/gpu_first_contact.py.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from report import ROOT, options, write

sys.path.insert(0, str(ROOT))  # the claims are the tests' own

from ajet.core.weight_sync.folder import WeightFolder
from ajet.servers.environment import require_server
from ajet.servers.process import free_port
from ajet.servers.settings import SglangServerArgs, start_sglang
from tests.adapter_contract import ADAPTER_CONTRACT, LORA, AdapterBench, trainer_models
from tests.replica_contract import CONTRACT, MAX_LEN, Bench, save, tiny_model

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}


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


async def started(arguments: argparse.Namespace, folder: Path, model: Any, **more: Any) -> Any:
    """Starts a server over this model."""
    path = save(model, folder / "model")
    given = {"dtype": arguments.dtype, "max_model_len": MAX_LEN, **more}
    args = SglangServerArgs(path, free_port(), arguments.python, **given)
    log = folder / "sglang.log"
    return await start_sglang(args, name="r0", log_path=log, stop_token_ids=(), deadline_s=900)


async def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tries both contracts, each with a server of its own."""
    tolerance, models = TOLERANCE[arguments.dtype], [tiny_model(0), tiny_model(1)]
    replica = await started(arguments, folder / "plain", models[0])
    try:
        version = await replica.check_version()
        held = await claims(Bench(replica, models, WeightFolder(folder / "w"), tolerance), CONTRACT)
    finally:
        await replica.close()
    base = tiny_model(0)
    replica = await started(arguments, folder / "adapted", base, adapters=LORA)
    made, weights = trainer_models(base), WeightFolder(folder / "adapted" / "w")
    try:
        bench = AdapterBench(replica, base, made, weights, tolerance=tolerance)
        adapted = await claims(bench, ADAPTER_CONTRACT)
    finally:
        await replica.close()
    told = {"sglang": version, "dtype": arguments.dtype}
    return {**told, "claims": held, "adapter_claims": adapted}


def main() -> None:
    """Run it where there is a GPU; say so where there is none."""
    import torch

    parser = options(__doc__, "sglang_real")
    parser.add_argument("--python", help="the one that has SGLang, if not that of `ajet servers`")
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="bfloat16")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: SGLang needs CUDA, and there is none here")
    arguments.python = arguments.python or require_server("sglang", on_gpu=True).python
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(arguments, Path(folder)))
    write(arguments.out, result)
    all_claims = [*result["claims"], *result["adapter_claims"]]
    sys.exit(not all(claim["holds"] for claim in all_claims))


if __name__ == "__main__":
    main()
