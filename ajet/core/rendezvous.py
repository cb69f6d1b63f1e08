"""Lets a group of processes meet at a torch store that listens at one address.

    rank 0      store = listen(host, port, size, timeout_s)     port 0: one that is free
    the others  store = join(host, port, size, timeout_s)       waits until it listens

By default torch's store listens at every address of the machine. Not covered: what the processes
send each other afterwards; gloo's and NCCL's own connections.
"""

import socket
from datetime import timedelta
from typing import Any


def listen(host: str, port: int, size: int, timeout_s: float) -> Any:
    """Opens rank 0's store and returns before the others have joined. Raises OSError where it
    cannot listen."""
    from torch._C import _distributed_c10d as dist

    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(max(size, 128))
        bound_port = listener.getsockname()[1]
        return dist.TCPStore(
            host,
            bound_port,
            size,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # the store owns it from now on
        )


def join(host: str, port: int, size: int, timeout_s: float) -> Any:
    """Opens the store of another rank, and waits until rank 0 listens."""
    from torch._C import _distributed_c10d as dist

    return dist.TCPStore(
        host, port, size, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
    )
