"""Landlock: the kernel's file and signal rules that need no namespace and no privilege.

It is used without namespaces. Names and attributes of files (`stat`) stay visible, and a program
can change attributes (`chmod`) of its user's files.
"""

import ctypes
import os
import struct
from pathlib import Path

from ajet.sandbox import kernel
from ajet.sandbox.isolation import FilesystemView

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_NUM_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # 16 from version 5 on
_NO_TCP, _NO_OUTSIDE_SIGNALS_OR_SOCKETS = 3, 3
_SIGNALS_SINCE, _TCP_SINCE, TRUNCATION_SINCE = 6, 4, 3  # Linux 6.12, 6.7 and 6.2


def version() -> int:
    """Returns the version of the kernel's Landlock, 0 if it has none."""
    try:
        return kernel.raw_call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def describe(abi: int) -> str:
    """Describes what this version forbids to programs, and what it does not."""
    if abi >= _SIGNALS_SINCE:
        return "Landlock holds back reads, writes, truncation and signals"
    if abi >= TRUNCATION_SINCE:
        return "Landlock holds back reads, writes and truncation, NOT signals"
    return "Landlock holds back reads and writes, NOT truncation, NOT signals"


def restrict(view: FilesystemView, scratch: str) -> None:
    """Restricts the calling process to reading and executing what is in the view, and to the
    scratch folder, where it may do everything. Needs no-new-privileges."""
    abi = version()
    if abi == 0:
        return
    every_right = (1 << _NUM_FILE_RIGHTS.get(abi, 16)) - 1
    fields = [every_right]
    if abi >= _TCP_SINCE:
        fields.append(_NO_TCP)
    if abi >= _SIGNALS_SINCE:
        fields.append(_NO_OUTSIDE_SIGNALS_OR_SOCKETS)
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    size = ctypes.c_size_t(len(attributes))
    rules = kernel.raw_call(_CREATE, attributes, size, ctypes.c_uint32(0))
    for path in view.folders:
        if path.startswith("/dev/"):
            rights = _READ_FILE | _WRITE_FILE
        elif Path(path).is_dir():
            rights = _EXECUTE | _READ_FILE | _READ_DIR
        else:
            rights = _EXECUTE | _READ_FILE
        _allow(rules, path, rights)
    _allow(rules, scratch, every_right)
    kernel.raw_call(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    beneath = struct.pack("=Qi", rights, fd)
    rule_type = ctypes.c_int(1)
    kernel.raw_call(_ADD_RULE, ctypes.c_int(rules), rule_type, beneath, ctypes.c_uint32(0))
    os.close(fd)
