"""Runs a command in a network of its own, whose only way out is one port of the host.

    python -I -S loopback.py INNER OUTER MOST COMMAND…

    command ── its own 127.0.0.1:INNER ──> this process ──> the host's 127.0.0.1:OUTER

The command's network has nothing but loopback: no other port of the host, no other machine, no name
service. The listening socket is made inside and handed out, so nothing runs beside the command.
With INNER 0 there is no port at all. Where the network needs a namespace of users, at most MOST
processes and threads run in it (0: any number); root is not bound by that. The exit code is the
command's (128 plus the number of a signal).

The module uses the standard library alone and imports nothing of ajet: it is run by its path. Not
covered: kernels that forbid network namespaces to this user, where it ends with code 125 and one
line.
"""

import ctypes
import fcntl
import os
import resource
import socket
import struct
import sys
import threading
from pathlib import Path

NO_NAMESPACE, NOT_FOUND, SIGNALLED = 125, 127, 128
HOST = "127.0.0.1"
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_CHUNK = 1 << 16


def main(arguments: list[str]) -> int:
    """Runs the command and returns its exit code."""
    inner, outer, most = map(int, arguments[:3])
    command = arguments[3:]
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _run_inside(theirs, inner, most, command)
    theirs.close()
    _message, descriptors, _flags, _address = socket.recv_fds(ours, 1, 1)
    ours.close()
    if descriptors:
        listener = socket.socket(fileno=descriptors[0])
        threading.Thread(target=_forward_all, args=(listener, outer), daemon=True).start()
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return exit_code if exit_code >= 0 else SIGNALLED - exit_code


def _run_inside(outside: socket.socket, port: int, most: int, command: list[str]) -> None:
    """Becomes the command, in a network of its own."""
    try:
        _enter_network(most)
    except OSError as error:
        print(f"a network of its own is refused: {error.strerror}", file=sys.stderr)
        os._exit(NO_NAMESPACE)
    if port:
        listener = socket.create_server((HOST, port))
        socket.send_fds(outside, [b"1"], [listener.fileno()])
        listener.close()
    outside.close()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(NOT_FOUND)


def _enter_network(most: int) -> None:
    """Moves this process into a new network and turns its loopback on. An ordinary user needs a
    namespace of users for it, in which it keeps its own number, and in which the kernel counts its
    processes anew."""
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        if most:
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _forward_all(listener: socket.socket, port: int) -> None:
    while True:
        client, _address = listener.accept()
        threading.Thread(target=_forward, args=(client, port), daemon=True).start()


def _forward(client: socket.socket, port: int) -> None:
    """Connects one client with the host's port until both directions have ended."""
    try:
        server = socket.create_connection((HOST, port))
    except OSError:
        client.close()
        return
    back = threading.Thread(target=_copy, args=(server, client), daemon=True)
    back.start()
    _copy(client, server)
    back.join()
    client.close()
    server.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until the source ends, and tells the target so."""
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one side is gone, and the other direction finds out too


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
