"""A stand-in for a CUDA graph on the CPU."""

from torch import Tensor, nan
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Notes each operator with the very tensors and numbers that it was given, and what it gave in
    memory of its own: what is no view and was not written in place."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {storage_of(tensor) for tensor in tensors_of((args, kwargs))}
        own = [(n, t) for n, t in enumerate(tensors_of(out)) if storage_of(t) not in given]
        self.calls.append((func, args, kwargs or {}, own))
        return out


class TapedGraph:
    """Repeats the captured operators on the memory that they had, with the numbers that they had:
    a step that another tensor has been put in for, or another column, computes nonsense."""

    def __init__(self):
        self.calls = []
        self.num_captured = self.num_freed = 0

    def warm_up(self, compute):
        return compute()

    def capture(self, compute):
        with Tape() as tape:
            out = compute()
        self.calls = tape.calls
        self.num_captured += 1
        return out.fill_(nan)  # capturing computes nothing

    def replay(self):
        assert self.calls, "nothing was captured"
        for func, args, kwargs, own in self.calls:
            out = func(*args, **kwargs)
            for number, tensor in own:
                tensor.copy_(tensors_of(out)[number])

    def free(self):
        self.calls = []
        self.num_freed += 1


def tensors_of(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def storage_of(tensor):
    return tensor.untyped_storage().data_ptr()
