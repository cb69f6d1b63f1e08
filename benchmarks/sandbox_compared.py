"""Our sandbox beside bubblewrap and nsjail: the time of one program, and escapes.

    python benchmarks/sandbox_compared.py [--bwrap FILE] [--nsjail FILE] [--calls 100] [--out FILE]

    ours             forked from the zygote into fresh namespaces
    bwrap, nsjail    a new interpreter for each program, shown the same folders, with the same
                     limits (by prlimit under bwrap) and the same refused system calls
    new_interpreter  the same without a sandbox

The ways take turns, call by call. `cpu_ms` is the processor time of a call with all its processes,
without what the start and the end of a pool take.

    python benchmarks/sandbox_compared.py --escapes      # only the attacks of tests/sandbox

`escapes` has how many of tests/sandbox/test_sandbox_escapes.py a tool withstands in place of the
pool, with the names of the others.

A tool that is not installed is left out. Writes benchmarks/results/sandbox_compared.json, or --out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from report import ROOT, options, read, write

from ajet.sandbox import isolation, kernel, pool, seccomp, zygote
from ajet.sandbox.limits import MIB, Limits
from ajet.sandbox.pool import SandboxError, SandboxPool

PROGRAM, EXPECTED = "print(1+2)", "3\n"
REFUSED_BY_NSJAIL = (
    "ERRNO(1) { add_key, bpf, chroot, io_uring_setup, keyctl, memfd_create, mount, msgctl, msgget, "
    "msgrcv, msgsnd, open_by_handle_at, perf_event_open, pivot_root, process_vm_readv, "
    "process_vm_writev, ptrace, request_key, semctl, semget, semop, semtimedop, setns, shmat, "
    "shmctl, shmget, unshare, userfaultfd, SYSCALL[447] } ERRNO(38) { clone3 } "
    "ERRNO(1) { clone(flags) { (flags & 0x7E020080) != 0 } } "
    "ERRNO(13) { socket(domain) { domain != 1 } } DEFAULT ALLOW"
)
_PYTHON = [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-s", "-P", "-u"]
Way = Callable[[str], str]  # a program -> what it printed


class Ours:
    """Programs in a pool of ours, each call in a loop of its own."""

    def __init__(self) -> None:
        self._pool = SandboxPool(modes=[zygote.NAMESPACES])

    def __call__(self, code: str) -> str:
        return asyncio.run(self._pool.run(code, 30)).stdout

    def close(self) -> None:
        self._pool.close()


def escapes(make: Callable[[Limits], Callable[..., Any]] | None) -> dict[str, Any]:
    """Runs the tests of escapes with a tool in place of the pool; None for the pool itself."""
    import pytest

    class ToolPool:
        def __init__(self, limits: Limits | None = None, **_: object) -> None:
            assert make is not None
            self._call = make(limits or Limits())

        def start(self) -> None:
            """Nothing is kept ready."""

        close = start

        async def run(self, code: str, timeout: float) -> pool.Outcome:
            return await asyncio.to_thread(self._call, code, timeout)

    withstood: list[str] = []
    failed: list[str] = []

    class Counter:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed or (report.when == "call" and report.passed):
                names = failed if report.failed else withstood
                names.append(report.nodeid.partition("::")[2].partition("[")[0])

    tests = str(ROOT / "tests/sandbox/test_sandbox_escapes.py")
    ours = pool.SandboxPool
    if make is not None:
        pool.SandboxPool = ToolPool  # type: ignore[misc,assignment]
    sys.modules.pop("test_sandbox_escapes", None)  # it imports the pool's class
    try:
        options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-k", "namespaces"]
        pytest.main([*options, tests], plugins=[Counter()])
    finally:
        pool.SandboxPool = ours  # type: ignore[misc]
    return {"withstood": len(withstood), "of": len(withstood) + len(failed), "failed": failed}


def outcome(
    command: list[str], code: str, fds: tuple[int, ...] = (), timeout: float = 30
) -> pool.Outcome:
    """Runs a program, whose process group is killed when the time is up."""
    with subprocess.Popen(
        [*command, "-c", code], env=pool._ENVIRONMENT, pass_fds=fds, cwd="/", text=True,
        errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            texts = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            note = f"TimeoutError: The code execution exceeded the timeout of {timeout} seconds."
            return pool.Outcome(-1, stdout, f"{stderr}\n{note}" if stderr else note)
    code_of_signal = 128 - process.returncode  # how bubblewrap and nsjail say that one ended it
    return pool.Outcome(min(code_of_signal, 0) or process.returncode, *texts)


def by_bubblewrap(bwrap: str, limits: Limits) -> Callable[..., pool.Outcome]:
    view = isolation.view_of(pool._python_folders()[0])
    command = [bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    command += ["--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--hostname", "sandbox"]
    for source, inside in view.folders.items():
        option = "--dev-bind" if inside.startswith("/dev/") else "--ro-bind"
        command += [option, source, inside]
    for inside, target in view.links.items():
        command += ["--symlink", target, inside]
    command += [
        "--proc",
        "/proc",
        "--remount-ro",
        "/proc",
        "--size",
        str(limits.scratch_bytes),
        "--tmpfs",
        "/tmp",
    ]
    command += ["--chdir", "/tmp", "--remount-ro", "/"]
    inner = ["prlimit", f"--as={limits.memory_bytes}", f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}"]
    inner += [f"--nproc={limits.num_processes}", f"--fsize={limits.scratch_bytes}", "--nofile=256"]

    def call(code: str, timeout: float = 30) -> pool.Outcome:
        reader, writer = os.pipe()
        os.write(writer, seccomp.filter_for_this_machine(host_sockets_visible=False, own_pid=0))
        os.close(writer)
        whole = [*command, "--seccomp", str(reader), "--", *inner, "--core=0", "--", *_PYTHON]
        try:
            return outcome(whole, code, (reader,), timeout)
        finally:
            os.close(reader)

    return call


def by_nsjail(nsjail: str, limits: Limits) -> Callable[..., pool.Outcome]:
    view = isolation.view_of(pool._python_folders()[0])
    command = [nsjail, "-Mo", "--really_quiet", "--user", "1000", "--group", "1000"]
    command += ["--hostname", "sandbox", "--time_limit", "0", "--iface_no_lo"]
    for source, inside in view.folders.items():
        command += ["-B" if inside.startswith("/dev/") else "-R", f"{source}:{inside}"]
    for inside, target in view.links.items():
        command += ["--symlink", f"{target}:{inside}"]
    command += ["-m", f"none:/tmp:tmpfs:size={limits.scratch_bytes}", "--cwd", "/tmp"]
    command += ["--rlimit_as", str(limits.memory_bytes // MIB), "--rlimit_cpu", str(limits.cpu_s)]
    command += ["--rlimit_nproc", str(limits.num_processes), "--rlimit_nofile", "256"]
    command += ["--rlimit_fsize", str(limits.scratch_bytes // MIB)]
    command += ["--seccomp_string", REFUSED_BY_NSJAIL]
    for name, value in pool._ENVIRONMENT.items():
        command += ["--env", f"{name}={value}"]
    return lambda code, timeout=30: outcome([*command, "--", *_PYTHON], code, (), timeout)


def ways(bwrap: str | None, nsjail: str | None) -> dict[str, Way]:
    """Those that work here; the others are named with a line."""
    made: dict[str, Way] = {"ours": Ours()}
    if bwrap:
        made["bwrap"] = _text(by_bubblewrap(bwrap, Limits()))
    if nsjail:
        made["nsjail"] = _text(by_nsjail(nsjail, Limits()))
    made["new_interpreter"] = lambda code: outcome(_PYTHON, code).stdout
    for name in list(made):
        try:
            works = made[name](PROGRAM) == EXPECTED
        except SandboxError as error:
            works = False
            print(error)
        if not works:
            print(f"{name} runs no program here and is left out")
            close(made.pop(name))
    return made


def _text(call: Callable[..., pool.Outcome]) -> Way:
    return lambda code: call(code).stdout


def close(way: Way) -> None:
    if isinstance(way, Ours):
        way.close()


def timed(made: dict[str, Way], num_calls: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(num_calls):
        for name, way in made.items():
            start = time.perf_counter()
            assert way(PROGRAM) == EXPECTED, name
            times[name].append((time.perf_counter() - start) * 1000)
    return {
        name: {
            "min_ms": round(min(each), 1),
            "median_ms": round(statistics.median(each), 1),
            "p95_ms": round(sorted(each)[int(num_calls * 0.95)], 1),
        }
        for name, each in times.items()
    }


def cpu_ms(make: Callable[[], Way], num_calls: int) -> float:
    """Of one call; a pool is begun and ended, since a process's children count when it has ended.
    A second pool that runs one program is the difference."""

    def spent(calls: int) -> float:
        before = used()
        way = make()
        for _ in range(calls):
            assert way(PROGRAM) == EXPECTED
            time.sleep(0.02)  # the next worker is made ready, as between two calls of an agent
        close(way)
        return used() - before

    return round((spent(num_calls + 1) - spent(1)) / num_calls * 1000, 1)


def used() -> float:
    """Seconds of this process and of all that it has waited for. bubblewrap leaves a process of
    its own behind, which `main` has this process adopt."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def main() -> None:
    parser = options(__doc__, "sandbox_compared", calls=100)
    parser.add_argument("--bwrap", default=shutil.which("bwrap"))
    parser.add_argument("--nsjail", default=shutil.which("nsjail"))
    parser.add_argument("--escapes", action="store_true", help="only the tests of escapes")
    arguments = parser.parse_args()
    known, bwrap, nsjail = read(arguments.out), arguments.bwrap, arguments.nsjail
    if arguments.escapes:
        found = {"ours": escapes(None)}
        if bwrap:
            found["bwrap"] = escapes(lambda limits: by_bubblewrap(bwrap, limits))
        if nsjail:
            found["nsjail"] = escapes(lambda limits: by_nsjail(nsjail, limits))
        print(found)
        return write(arguments.out, {**known, "escapes": found})
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    made = ways(bwrap, nsjail)
    about = {"load_average": round(os.getloadavg()[0], 1), "is_root": os.geteuid() == 0}
    result: dict[str, Any] = {**about, **timed(made, arguments.calls)}
    for name, way in made.items():
        close(way)
        make = Ours if name == "ours" else (lambda way=way: way)
        result[name]["cpu_ms"] = cpu_ms(make, arguments.calls)
    print(result)
    write(arguments.out, {**result, "escapes": known.get("escapes", {})})


if __name__ == "__main__":
    main()
