"""What one call of `execute_python_code` costs, and a new interpreter for the same program.

    python benchmarks/sandbox_call.py [--calls 300]

Calls come one after the other, without a pause. Goal: at most 5 ms, at the median.
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


async def time_sequential(pool: SandboxPool, num_calls: int) -> dict[str, float]:
    return summary([await time_one_call(pool) for _ in range(num_calls)])


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


def main() -> None:
    args = options(__doc__, "sandbox_call", calls=300).parse_args()
    pool = SandboxPool()
    result: dict[str, object] = {
        "mode": pool.report(),
        "load_average": round(os.getloadavg()[0], 1),
        "sequential": asyncio.run(time_sequential(pool, args.calls)),
        "new_interpreter": time_new_interpreters(30),
        "limit_median_ms": LIMIT_MEDIAN_MS,
    }
    pool.close()
    write(args.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
