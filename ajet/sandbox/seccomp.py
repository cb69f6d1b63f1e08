"""A small seccomp filter against system calls that exploits need and ordinary programs do not.

    socket(family, type)   only AF_UNIX; anything else is "permission denied"
    if the host's own sockets are visible, connect and datagrams (sendto) are refused too
    new namespaces, mounts, ptrace, keyrings, bpf, io_uring …   "operation not permitted"
    memfd_create, System V shared memory, queues, semaphores    "operation not permitted":
                           memory that belongs to no process, so that no limit could count it

It is a second protection behind the namespaces, and without them the only one against the network.
There are filters for x86-64 and AArch64; `is_available` says whether this machine has one.
"""

import ctypes
import errno
import functools
import platform
import struct

from ajet.sandbox import kernel

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_ANY, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARG0, _OFFSET_ARG1 = 0, 4, 16, 24
_NEW_NAMESPACE_FLAGS = 0x7E020080
_X32_BIT = 0x40000000
_FILTER_MODE = 2
_AF_UNIX = 1
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 5, 0xF

# name -> (x86-64, AArch64)
_NUMBERS = {
    "socket": (41, 198),
    "socketpair": (53, 199),
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
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setns": (308, 268),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
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
def build_filter(architecture: int, column: int, host_sockets_visible: bool) -> bytes:
    """Returns the BPF program: one test and one answer for each refused call, else allow."""
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
    if host_sockets_visible:
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
    ]
    check = _check_of_new_socket(host_sockets_visible)
    parts += [
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["socket"][column], 1, 0),
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["socketpair"][column], 0, len(check)),
        *check,
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(parts)


def _check_of_new_socket(host_sockets_visible: bool) -> list[bytes]:
    """Returns instructions that refuse new sockets but those of AF_UNIX. If the host's sockets are
    visible, datagram sockets are refused too: they send to any address without `connect`."""
    check = [
        _instruction(_LOAD, _OFFSET_ARG0),
        _instruction(_JUMP_IF_EQUAL, _AF_UNIX, 1, 0),
        _refuse(errno.EACCES),
    ]
    if host_sockets_visible:
        check += [
            _instruction(_LOAD, _OFFSET_ARG1),
            _instruction(_AND, _SOCK_TYPE_MASK),
            _instruction(_JUMP_IF_EQUAL, _SOCK_STREAM, 2, 0),
            _instruction(_JUMP_IF_EQUAL, _SOCK_SEQPACKET, 1, 0),
            _refuse(errno.EACCES),  # SOCK_DGRAM, and SOCK_RAW, which is the same here
        ]
    return check


def filter_for_this_machine(host_sockets_visible: bool) -> bytes:
    """Returns the filter for this machine, or an empty one if its call numbers are not known."""
    known = _ARCHITECTURES.get(platform.machine())
    return build_filter(*known, host_sockets_visible) if known else b""


def is_available() -> bool:
    """Returns True if there is a filter for this machine and its kernel can install it."""
    if platform.machine() not in _ARCHITECTURES:
        return False
    try:
        kernel.prctl(kernel.PR_SET_SECCOMP, _FILTER_MODE)  # without a filter, so it must fail
    except OSError as error:
        return error.errno == errno.EFAULT  # it looked for one: it knows filters
    return False


def install(host_sockets_visible: bool) -> None:
    """Installs the filter for the calling process and its children. Needs `PR_SET_NO_NEW_PRIVS`."""
    if not is_available():
        return
    code = filter_for_this_machine(host_sockets_visible)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    pointer = ctypes.create_string_buffer(program, len(program))
    kernel.prctl(kernel.PR_SET_SECCOMP, _FILTER_MODE, pointer)
