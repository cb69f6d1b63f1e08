"""A small seccomp filter: system calls that no honest program needs and many exploits do.

    socket(family)   only AF_UNIX; anything else is "permission denied"
    connect          refused as well where the host's own sockets are in sight
    new namespaces, mounts, ptrace, keyrings, bpf, io_uring …  "operation not permitted"

A second wall behind the namespaces, and the only one against the network where those are missing.
Known for x86-64 and AArch64; `install` says whether it could be put in place.
"""

import ctypes
import errno
import functools
import platform
import struct

from ajet.tools.sandbox import kernel

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARG0 = 0, 4, 16
_NEW_NAMESPACE_FLAGS = 0x7E020080
_X32_BIT = 0x40000000
_AF_UNIX = 1

# name -> (x86-64, AArch64)
_NUMBERS = {
    "socket": (41, 198),
    "connect": (42, 203),
    "clone": (56, 220),
    "clone3": (435, 435),
}
_REFUSED = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "setns": (308, 268),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(code: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | code)


@functools.cache  # filled in the zygote, used in every program
def build_filter(architecture: int, column: int, refuse_connect: bool) -> bytes:
    """The BPF program: one test and one answer for each call, else allow."""
    load_number = _instruction(_LOAD, _OFFSET_NUMBER)
    load_arg0 = _instruction(_LOAD, _OFFSET_ARG0)
    parts = [
        _instruction(_LOAD, _OFFSET_ARCH),
        _instruction(_JUMP_IF_EQUAL, architecture, 1, 0),
        _refuse(errno.EPERM),  # 32-bit calls, which have other numbers
        load_number,
        _instruction(_JUMP_IF_ANY, _X32_BIT, 0, 1),
        _refuse(errno.EPERM),
    ]
    refused = [numbers[column] for numbers in _REFUSED.values()]
    if refuse_connect:
        refused.append(_NUMBERS["connect"][column])
    for number in refused:
        parts += [_instruction(_JUMP_IF_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    # The C library falls back to clone, whose flags can be looked at.
    parts += [
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["clone3"][column], 0, 1),
        _refuse(errno.ENOSYS),
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["clone"][column], 0, 4),
        load_arg0,
        _instruction(_JUMP_IF_ANY, _NEW_NAMESPACE_FLAGS, 0, 1),
        _refuse(errno.EPERM),
        _instruction(_RETURN, _ALLOW),
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["socket"][column], 0, 3),
        load_arg0,
        _instruction(_JUMP_IF_EQUAL, _AF_UNIX, 1, 0),
        _refuse(errno.EACCES),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(parts)


def filter_for_this_machine(refuse_connect: bool) -> bytes:
    """Empty on an architecture whose call numbers are not known here."""
    known = _ARCHITECTURES.get(platform.machine())
    return build_filter(*known, refuse_connect) if known else b""


def install(refuse_connect: bool) -> bool:
    """Put the filter on the calling process and its children. Needs `PR_SET_NO_NEW_PRIVS`."""
    code = filter_for_this_machine(refuse_connect)
    if not code:
        return False
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    try:
        kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.create_string_buffer(program, len(program)))
    except OSError:
        return False  # a kernel without seccomp
    return True
