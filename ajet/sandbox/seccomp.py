"""A small seccomp filter against system calls that exploits need and ordinary programs do not.

It is a second protection in addition to namespaces, and without them the only one against the
network. OMP_PROC_BIND does not work, since threads cannot be bound to a CPU.
"""

import ctypes
import errno
import fcntl
import os
import platform
import signal
import struct

from ajet.sandbox import kernel

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_ANY, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_OFFSET_NUMBER, _OFFSET_ARCH = 0, 4
_NEW_NAMESPACE_FLAGS = 0x7E020080
_X32_BIT = 0x40000000
_FILTER_MODE = 2
_SET_FILTER, _NEW_LISTENER = 1, 8  # operation and flag of seccomp(2)
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1  # ioctls of a listener, and the answer
_NOTIFICATION, _ANSWER = 80, struct.Struct("=QqiI")  # seccomp_notif, seccomp_notif_resp
_AF_UNIX = 1
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 5, 0xF

# name -> (x86-64, AArch64)
_NUMBERS = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "clone": (56, 220),
    "clone3": (435, 435),
    "seccomp": (317, 277),
}
# Besides what changes the machine, memory that belongs to no process (memfd_create, System V's
# shared memory and queues), so that no limit could count it: "operation not permitted".
_REFUSED = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
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
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
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
# Calls about one process: (x86-64, AArch64, required first argument). With None the process is the
# first argument, else the second. They are only for the caller (0) or the program's first process:
# without namespaces the trainer's processes belong to the same user.
_OWN_PROCESS_ONLY = {
    "ioprio_set": (251, 30, 1),  # IOPRIO_WHO_PROCESS
    "migrate_pages": (256, 238, None),
    "move_pages": (279, 239, None),
    "prlimit64": (302, 261, None),
    "sched_setaffinity": (203, 122, None),
    "sched_setattr": (314, 274, None),
    "sched_setparam": (142, 118, None),
    "sched_setscheduler": (144, 119, None),
    "setpriority": (141, 140, 0),  # PRIO_PROCESS
}
# Calls that send a signal: (x86-64, AArch64, index of the target argument, index of the signal).
_SIGNALS = {
    "kill": (62, 129, 0, 1),
    "pidfd_send_signal": (424, 424, None, 1),  # the target is a file descriptor: any
    "rt_sigqueueinfo": (129, 138, 0, 1),
    "rt_tgsigqueueinfo": (297, 240, 0, 2),
    "tgkill": (234, 131, 0, 2),
    "tkill": (200, 130, 0, 1),
}
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(code: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | code)


def _load_argument(index: int) -> bytes:
    """Loads the lower half of an argument, which is all that the kernel reads of an int."""
    return _instruction(_LOAD, 16 + 8 * index)


def build_filter(architecture: int, column: int, host_sockets_visible: bool, own_pid: int) -> bytes:
    """Returns the BPF program: one test and one answer for each refused call, else allow.
    `own_pid` is the program's first process."""
    load_number = _instruction(_LOAD, _OFFSET_NUMBER)
    program = [
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
        program += [_instruction(_JUMP_IF_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    for *numbers, required in _OWN_PROCESS_ONLY.values():
        check = _check_of_process(required, own_pid)
        program += [_instruction(_JUMP_IF_EQUAL, numbers[column], 0, len(check)), *check]
    # clone3 has its flags in memory, which a filter cannot read. ENOSYS makes the C library fall
    # back to clone, whose flags are an argument.
    program += [
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["clone3"][column], 0, 1),
        _refuse(errno.ENOSYS),
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["clone"][column], 0, 4),
        _load_argument(0),
        _instruction(_JUMP_IF_ANY, _NEW_NAMESPACE_FLAGS, 0, 1),
        _refuse(errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    check = _check_of_new_socket(host_sockets_visible)
    program += [
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["socket"][column], 1, 0),
        _instruction(_JUMP_IF_EQUAL, _NUMBERS["socketpair"][column], 0, len(check)),
        *check,
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _check_of_process(required: int | None, own_pid: int) -> list[bytes]:
    """Returns instructions that allow a call for the caller or for `own_pid`, else refuse it."""
    check = []
    if required is not None:
        check += [_load_argument(0), _instruction(_JUMP_IF_EQUAL, required, 1, 0)]
        check += [_refuse(errno.EPERM)]
    return [
        *check,
        _load_argument(0 if required is None else 1),
        _instruction(_JUMP_IF_EQUAL, 0, 1, 0),
        _instruction(_JUMP_IF_EQUAL, own_pid, 0, 1),
        _instruction(_RETURN, _ALLOW),
        _refuse(errno.EPERM),
    ]


def _check_of_new_socket(host_sockets_visible: bool) -> list[bytes]:
    """Returns instructions that refuse new sockets except AF_UNIX. If the host's sockets are
    visible, datagram sockets are refused too, since they send to any address without `connect`."""
    check = [_load_argument(0), _instruction(_JUMP_IF_EQUAL, _AF_UNIX, 1, 0), _refuse(errno.EACCES)]
    if host_sockets_visible:
        check += [
            _load_argument(1),
            _instruction(_AND, _SOCK_TYPE_MASK),
            _instruction(_JUMP_IF_EQUAL, _SOCK_STREAM, 2, 0),
            _instruction(_JUMP_IF_EQUAL, _SOCK_SEQPACKET, 1, 0),
            _refuse(errno.EACCES),  # SOCK_DGRAM, and SOCK_RAW, which is the same here
        ]
    return check


def filter_for_this_machine(host_sockets_visible: bool, own_pid: int) -> bytes:
    architecture, column = _ARCHITECTURES[platform.machine()]
    return build_filter(architecture, column, host_sockets_visible, own_pid)


def is_available() -> bool:
    """Returns whether there is a filter for this machine and its kernel can install it."""
    if platform.machine() not in _ARCHITECTURES:
        return False
    try:
        kernel.prctl(kernel.PR_SET_SECCOMP, _FILTER_MODE)  # without a filter, so it must fail
    except OSError as error:
        return error.errno == errno.EFAULT  # it tried to read one, so it supports filters
    return False


def install(host_sockets_visible: bool) -> None:
    """Installs the filter for the calling process and its children. Needs `PR_SET_NO_NEW_PRIVS`."""
    if not is_available():
        return
    program, _buffer = _program(filter_for_this_machine(host_sockets_visible, os.getpid()))
    kernel.prctl(kernel.PR_SET_SECCOMP, _FILTER_MODE, program)


def _program(code: bytes) -> tuple[object, object]:
    """Returns the kernel's description of a filter, and the buffer to which it points."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    return ctypes.create_string_buffer(program, len(program)), buffer


def watch_sigkill() -> int:
    """Returns a listener for SIGKILLs that this process or its children send to this process or its
    group; -1 if the kernel refuses one. Each call waits for `let_continue`. It only lets the
    supervisor see that a program has killed itself: signals are left to Landlock, since a program
    may send them to its children."""
    if not is_available():
        return -1
    _, column = _ARCHITECTURES[platform.machine()]
    pid, everyone = os.getpid(), 0xFFFFFFFF
    instructions = [_instruction(_LOAD, _OFFSET_NUMBER)]
    for *numbers, target, number in _SIGNALS.values():
        check = [
            _load_argument(number),
            _instruction(_JUMP_IF_EQUAL, signal.SIGKILL, 1, 0),
            _instruction(_RETURN, _ALLOW),
        ]
        if target is not None:
            check.append(_load_argument(target))
            targets = (0, pid, everyone, -pid & 0xFFFFFFFF)  # 0 and -pid: the group, -1: everyone
            for num_left, value in zip(range(len(targets), 0, -1), targets, strict=True):
                check.append(_instruction(_JUMP_IF_EQUAL, value, num_left, 0))
            check.append(_instruction(_RETURN, _ALLOW))
        check.append(_instruction(_RETURN, _NOTIFY))
        instructions += [_instruction(_JUMP_IF_EQUAL, numbers[column], 0, len(check)), *check]
    instructions.append(_instruction(_RETURN, _ALLOW))
    program, _buffer = _program(b"".join(instructions))
    operation, flags = ctypes.c_uint(_SET_FILTER), ctypes.c_uint(_NEW_LISTENER)
    try:
        return kernel.raw_call(_NUMBERS["seccomp"][column], operation, flags, program)
    except OSError:  # an old kernel, or a container whose filter already has a listener
        return -1


def let_continue(listener: int) -> None:
    """Lets the call continue that a listener has reported."""
    notification = bytearray(_NOTIFICATION)
    fcntl.ioctl(listener, _RECEIVE, notification)
    identity = struct.unpack_from("=Q", notification)[0]
    fcntl.ioctl(listener, _SEND, _ANSWER.pack(identity, 0, 0, _CONTINUE))
