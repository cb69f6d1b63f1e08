r"""Runs math-verify in a child process: one line of JSON in, one line out.

parent  ["1234", "1,234"]\n  -->  child: parse both, compare  -->  true\n
"""

from __future__ import annotations

import asyncio
import atexit
import json
import math
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ajet.core.process.process_guard import guarded
from ajet.judges.number_forms import may_be_euler, plain_numbers

MAX_MEMORY_BYTES = 4 << 30
TIMEOUT_S = 2
"""Processor time for one question. Ordinary answers take 0.1 s, an integral 0.5 s."""


class MathProcess:
    """Compares answers in a child process, which is started with the first question, under a
    process guard. A child that computes for more than `timeout_s` on one question is killed by a
    timer signal, which the kernel delivers even inside a long computation in C; the answer is then
    "not equal". The timer counts processor time, so a busy machine changes no verdict."""

    _shared: MathProcess | None = None

    def __init__(self, timeout_s: int = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        # Not asyncio's executor, whose threads tools may occupy. A question that waits here is
        # cancelled with its episode.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ajet-math")

    @classmethod
    def shared(cls) -> MathProcess:
        """Returns this process's instance, whose child is ended at exit."""
        if cls._shared is None:
            cls._shared = cls()
            atexit.register(cls._shared.close)
        return cls._shared

    def is_equal(self, reference: str, answer: str) -> bool:
        with self._lock:
            line = self._ask(json.dumps([reference, answer]))
            if not line:  # the timer has killed the child: the next question starts another
                self._end()
        return line.strip() == "true"

    async def is_equal_async(self, reference: str, answer: str) -> bool:
        """Like `is_equal`, without blocking the event loop. Questions are answered in order."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self.is_equal, reference, answer)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, question: str) -> str:
        if self._child is None:
            self._child = subprocess.Popen(
                guarded([sys.executable, "-m", "ajet.judges.math_process", str(self._timeout_s)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(question + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            return ""
        return child.stdout.readline()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            child.communicate()


def compare(reference: str, answer: str) -> bool:
    """Returns whether math-verify finds the two equal. Runs in the child."""
    if _is_same(plain_numbers(reference), plain_numbers(answer)):
        return True
    # 2e-2 may mean 2(e - 1) where `plain_numbers` has read 0.02.
    return may_be_euler(reference + answer) and _is_same(reference, answer)


def _is_same(reference: str, answer: str) -> bool:
    from math_verify import parse, verify

    reference_expression = parse(f"${reference}$", parsing_timeout=None)  # type: ignore[arg-type]
    answer_expression = parse(f"${answer}$", parsing_timeout=None)  # type: ignore[arg-type]
    return bool(
        reference_expression
        and answer_expression
        and verify(
            reference_expression,
            answer_expression,
            float_rounding=_decimals(reference_expression[0]),
            allow_set_relation_comp=True,  # x > 5 for (5, \\infty), as the other way round
            timeout_seconds=None,
        )
    )


def _decimals(expression: Any) -> int:
    """Returns how many decimals are compared: six, and more for numbers so small that six would
    leave fewer than five digits (1e-7 is not 2e-7)."""
    try:
        size = abs(float(expression))
    except (TypeError, ValueError, OverflowError, AttributeError):  # not a number
        return 6
    return 6 if not 0 < size < 1 else max(6, 4 - math.floor(math.log10(size)))


def main(timeout_s: int) -> None:
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    compare("0.5", r"\frac{1}{2}")  # imports sympy and fills its caches before the first timer

    for line in sys.stdin:
        # SIGPROF has no handler, so it kills this process.
        signal.setitimer(signal.ITIMER_PROF, timeout_s)
        try:
            verdict = compare(*json.loads(line))
        except Exception:  # noqa: BLE001  # sympy may raise anything; unreadable is not equal
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
