"""Runs a command in a separate network whose only way out is one port of the host. It is run by its
path, behind docker's door too, so it uses only the standard library.

    python -I -S loopback.py '{"inner": 8080, "outer": 40123, …}' COMMAND…
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NO_NAMESPACE, NOT_FOUND, SIGNALLED = 125, 127, 128
HOST, SOCKET = "127.0.0.1", "socket"
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_SET_DUMPABLE = 4
_CHUNK = 1 << 16
_DOOR_S, _POLL_S = 60.0, 0.1
"""How long a door may take to hand over its socket, and how often to look for it."""


@dataclass(frozen=True)
class Settings:
    """The caller's JSON. With `inner` 0 no port is reachable. If a user namespace is needed (not
    for root), at most `most_processes` processes and threads run in it (0: any number). `door` is
    the command line of a door, if there is one, and `door_folder` a folder that both see."""

    inner: int
    outer: int
    most_processes: int = 0
    door: Sequence[str] = ()
    door_folder: str = ""


def main(settings: Settings, command: list[str]) -> int:
    """Returns the command's exit code (128 plus the number of a signal), or 125 if the kernel
    forbids network namespaces. The listening socket is made inside and handed out, so no other
    process has to run inside:

        command ── its own 127.0.0.1:inner ──> this process ──> the host's 127.0.0.1:outer
    """
    if settings.door:
        return _run_behind_door(settings, command)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _run_inside(theirs, settings, command)
    theirs.close()
    _forward_received(ours, settings.outer)
    return _exit_code(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _exit_code(code: int) -> int:
    return code if code >= 0 else SIGNALLED - code


def _forward_received(ours: socket.socket, port: int) -> None:
    """Receives a listening socket, if one is sent, and forwards its clients in a thread."""
    with ours:
        _message, descriptors, _flags, _address = socket.recv_fds(ours, 1, 1)
    if descriptors:
        listener = socket.socket(fileno=descriptors[0])
        threading.Thread(target=_forward_all, args=(listener, port), daemon=True).start()


def _send_listener(outside: socket.socket, port: int) -> None:
    """Makes the listening socket of this network, if there is a port, and sends it."""
    with outside:
        if port:
            listener = socket.create_server((HOST, port))
            socket.send_fds(outside, [b"1"], [listener.fileno()])
            listener.close()


def _run_inside(outside: socket.socket, settings: Settings, command: list[str]) -> None:
    """Becomes the command, in a new network."""
    try:
        _enter_network(settings.most_processes)
    except OSError as error:
        print(f"cannot make a separate network: {error.strerror}", file=sys.stderr)
        os._exit(NO_NAMESPACE)
    _send_listener(outside, settings.inner)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(NOT_FOUND)


def _run_behind_door(settings: Settings, command: list[str]) -> int:
    """Starts the door and runs the command. Docker's daemon makes a network for each container, so
    it is that of a first container, the door, which the command's container joins. The door is
    process 1 of both: it ends when its standard input does, also if this process is killed, and
    takes all processes of the command along."""
    Path(settings.door_folder).mkdir(exist_ok=True)
    os.chdir(settings.door_folder)  # the path of a socket has at most 107 characters
    Path(SOCKET).unlink(missing_ok=True)  # left by an earlier program in these folders
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(SOCKET)
        server.listen(1)
        server.settimeout(_POLL_S)
        with subprocess.Popen(settings.door, stdin=subprocess.PIPE) as door:
            last_s = time.monotonic() + _DOOR_S
            while door.poll() is None and time.monotonic() < last_s:
                try:
                    ours = server.accept()[0]
                except TimeoutError:
                    continue
                _forward_received(ours, settings.outer)
                return _exit_code(subprocess.run(command, check=False).returncode)
            print("the container of its network did not start", file=sys.stderr)
            return NO_NAMESPACE


def be_door(folder: str, port: int) -> None:
    """Makes the socket and hands it over; then reaps processes until standard input ends."""
    ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0)  # hides /proc/1/root from the command
    os.chdir(folder)
    outside = socket.socket(socket.AF_UNIX)
    outside.connect(SOCKET)
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    _send_listener(outside, port)
    sys.stdin.buffer.read()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _enter_network(most: int) -> None:
    """Moves this process into a new network and turns its loopback on. An ordinary user needs
    a user namespace for that, in which it keeps its id; the kernel counts processes there
    separately."""
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
    """Copies until the source ends, and then closes the target for writing."""
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one side is gone; the other direction ends too


if __name__ == "__main__":
    if sys.argv[1] == "door":
        be_door(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main(Settings(**json.loads(sys.argv[1])), sys.argv[2:]))
