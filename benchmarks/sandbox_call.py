"""What one call of `execute_python_code` costs: `python benchmarks/sandbox_call.py`.

    sequential       one call after the other, without a pause
    with pauses      20 ms between two calls, as an agent's own turn makes them
    concurrent       8 at a time
    new interpreter  the same program in a `python -c` of its own, for comparison

`cpu_share` is what a busy loop of this process got of
one core meanwhile: well under 1 means that other work slowed all of the figures.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time

from report import options, write

from ajet.sandbox.pool import SandboxPool

PROGRAM, EXPECTED = "print(1+2)", "3\n"
LIMIT_MEDIAN_MS = 5.0


async def time_one_call(pool: SandboxPool) -> float:
    start = time.perf_counter()
    outcome = await pool.run(PROGRAM, 10)
    assert outcome.stdout == EXPECTED, outcome
    return (time.perf_counter() - start) * 1000


async def time_sequential(pool: SandboxPool, num_calls: int, pause_s: float) -> dict[str, float]:
    times = []
    for _ in range(num_calls):
        times.append(await time_one_call(pool))
        if pause_s:
            await asyncio.sleep(pause_s)
    return summary(times)


async def measure_throughput(pool: SandboxPool, num_calls: int, num_concurrent: int) -> float:
    """Calls a second."""
    gate = asyncio.Semaphore(num_concurrent)

    async def call() -> None:
        async with gate:
            await time_one_call(pool)

    start = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(num_calls)))
    return num_calls / (time.perf_counter() - start)


def time_new_interpreters(num_calls: int) -> dict[str, float]:
    times = []
    for _ in range(num_calls):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
        times.append((time.perf_counter() - start) * 1000)
    return summary(times)


def summary(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {
        "min_ms": round(ordered[0], 2),
        "median_ms": round(statistics.median(ordered), 2),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)], 2),
    }


def measure_cpu_share(seconds: float) -> float:
    start, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        pass
    return round((time.process_time() - used) / seconds, 2)


def main() -> None:
    args = options(__doc__, "sandbox_call").parse_args()
    pool = SandboxPool()
    result: dict[str, object] = {"mode": pool.report(), "cpus": os.cpu_count()}
    result["cpu_share_before"] = measure_cpu_share(0.5)
    result["load_average"] = round(os.getloadavg()[0], 1)
    result["sequential"] = asyncio.run(time_sequential(pool, 300, 0))
    result["with_pauses"] = asyncio.run(time_sequential(pool, 200, 0.02))
    result["calls_per_second_8_concurrent"] = round(
        asyncio.run(measure_throughput(pool, 300, 8)), 1
    )
    result["new_interpreter"] = time_new_interpreters(30)
    result["cpu_share_after"] = measure_cpu_share(0.5)
    result["limit_median_ms"] = LIMIT_MEDIAN_MS
    pool.close()
    write(args.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
