"""Two senders of the same weights, one for each worker of an engine over two GPUs. Each sender's
`send` runs in a thread while the engine loads from what receives from both.
"""

import threading

from ajet.core.weight_sync.broadcast import BroadcastSender, HandoverReceiver


def two_senders(version, tensors, timeout_s=30):
    """The senders, and what receives from both. They go on to the next tensor together, as trainer
    ranks do that gather it."""
    gathering = threading.Barrier(2, timeout=timeout_s)

    def gathered():
        for name, tensor in tensors.items():
            gathering.wait()
            yield name, tensor

    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    senders = [BroadcastSender("127.0.0.1", backend="ipc", timeout_s=timeout_s) for _ in range(2)]
    for sender in senders:
        sender.hold(version, shapes, gathered)
    return senders, HandoverReceiver(tuple(sender.receivers(version, 1)[0] for sender in senders))
