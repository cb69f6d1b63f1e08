"""The limits on one program's use of the machine.

Not limited: disk bandwidth; without a cgroup, memory in no process's resident set (swapped out, in
pipes and sockets, shared pages after `madvise`) or freed between two measurements; without
namespaces, scratch disk beyond one file's size.
"""

import resource
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """The limits on one program: as rlimits of each process, as the size of the tmpfs, by the
    supervisor's measurements, and by a cgroup if there is one."""

    memory_bytes: int = 1024 * MIB  # for each process, and for all processes together
    cpu_s: int = 120  # for each process
    num_processes: int = 64  # threads count as processes
    scratch_bytes: int = 64 * MIB  # for one file, and for /tmp as a whole
    output_bytes: int = 64 * 1024  # kept of each stream: its beginning and its end
    flood_bytes: int = 256 * MIB  # a program that prints more than this is stopped


def apply_rlimits(limits: Limits, num_other_processes: int) -> None:
    """Limits the calling process and its children.

    The kernel counts processes per user: `num_other_processes` is the number of that user's other
    processes (0 if the program has a separate user or user namespace).
    """
    for resource_id, soft, hard in (
        (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        # The soft limit sends SIGXCPU, which shows the cause; the hard one cannot be caught.
        (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1),
        (resource.RLIMIT_NPROC, *(limits.num_processes + num_other_processes,) * 2),
        (resource.RLIMIT_FSIZE, limits.scratch_bytes, limits.scratch_bytes),
        (resource.RLIMIT_NOFILE, 256, 256),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        ceiling = resource.getrlimit(resource_id)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(resource_id, (soft, hard))
