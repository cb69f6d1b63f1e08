"""Lets a group of processes meet at a torch store that listens on one address only.

    rank 0      store = listen(host, port, size, timeout_s)     port 0: any free port
    the others  store = join(host, port, size, timeout_s)       waits until rank 0 listens

torch's store by itself would listen on every address of the machine.
"""

import socket
from datetime import timedelta
from typing import Any


def listen(host: str, port: int, size: int, timeout_s: float) -> Any:
    """Opens rank 0's store and returns before the others have joined. Raises OSError if it cannot
    listen."""
    from torch._C import _distributed_c10d as dist

    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(max(size, 128))
        return dist.TCPStore(
            host,
            listener.getsockname()[1],
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
