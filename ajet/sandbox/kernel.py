"""Linux calls for which Python 3.11 has no function, through the C library. They raise OSError."""

import ctypes
import errno
import os
import platform
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 36, 38, 22

_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_RECURSIVE, _MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 0x8000, 0x1, 0x2
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 2

_SYS_CLONE = {"x86_64": 56, "aarch64": 220}

_libc = ctypes.CDLL(None, use_errno=True)
_python_libc = ctypes.PyDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


def raw_call(number: int, *arguments: object) -> int:
    """Makes a system call for which the C library has no function."""
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    _check(result, f"system call {number}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def fork_into_pid_namespace() -> int:
    """Forks like `os.fork`, but the child is the first process of a new PID namespace.

    `unshare` cannot do this twice without privileges. Python's fork hooks do not run, and the
    interpreter's lock is held (PyDLL), so this is safe only in a process of one thread whose child
    forks again before it runs code that needs the hooks.
    """
    number = _SYS_CLONE.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"clone is not supported on {platform.machine()}")
    zero = ctypes.c_ulong(0)
    flags = ctypes.c_ulong(CLONE_NEWPID | signal.SIGCHLD)
    pid = _python_libc.syscall(ctypes.c_long(number), flags, zero, zero, zero, zero)
    _check(pid, "clone(CLONE_NEWPID)")
    return pid


def mount(
    source: str, target: str, file_system: str | None, flags: int, data: str | None = None
) -> None:
    encoded = (None if text is None else text.encode() for text in (source, target, file_system))
    options = None if data is None else data.encode()
    result = _libc.mount(*encoded, ctypes.c_ulong(flags), options)
    _check(result, f"mount {source} on {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, old_root: str) -> None:
    _check(_libc.pivot_root(new_root.encode(), old_root.encode()), f"pivot_root {new_root}")


def make_read_only(target: str) -> None:
    """Makes a mount and all mounts below it read-only (Linux 5.12 and newer)."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    here, recursive = ctypes.c_int(-100), ctypes.c_uint(_AT_RECURSIVE)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    raw_call(_SYS_MOUNT_SETATTR, here, target.encode(), recursive, attributes, size)


def prctl(option: int, value: int = 0, pointer: object = None) -> None:
    third = ctypes.c_ulong(0) if pointer is None else pointer
    zero = ctypes.c_ulong(0)
    result = _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), third, zero, zero)
    _check(result, f"prctl({option})")


def drop_capabilities(keep_reading: bool = False) -> None:
    """Drops all capabilities; with `keep_reading` except the one to read all files. With
    `PR_SET_NO_NEW_PRIVS` no exec can regain them."""
    kept = 1 << _CAP_DAC_READ_SEARCH if keep_reading else 0
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept)  # effective, permitted, inheritable; twice 32 bits
    _check(_libc.capset(header, sets), "capset")


def has_capability(number: int) -> bool:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
    _check(_libc.capget(header, sets), "capget")
    return bool(sets[(number // 32) * 3] & (1 << (number % 32)))
